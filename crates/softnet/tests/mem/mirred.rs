//! Filters with the action `mirred`: what is redirected or mirrored arrives, byte for byte; what goes in circles ends, is
//! counted, and leaves the stack as good as before.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use softnet::config::Context;
use softnet::control::Direction::{Egress, Ingress};
use softnet::control::MirredAction::{Mirror, Redirect};
use softnet::control::show::FilterRow;
use softnet::control::{Action, Direction, MirredAction, SetFilter, SetMirred};
use softnet::internals::{MAX_BACKLOG, TxHint, dev_queue_xmit};
use softnet::{Introspect, NapiPoller, PacketFilter, PollerParams};
use softnet_core::ip::v4::arp::ArpPacket;
use softnet_core::skb::Batch;

use super::frames::{Rng, arp_answer, batch_of, host, host_mac, number_of, numbered, own_mac, random};
use super::poller::{PREFER, mem0, set_knobs};
use super::world::{Lane, Setup, World, on_all, ping, until};

/// A hook: a port, and the direction.
type Place = (usize, Direction);

fn filter(action: Action, hook: Place, mirred: Option<(MirredAction, Place)>) -> SetFilter {
    let mirred =
        mirred.map(|(action, (to, direction))| SetMirred { direction, action, dev: format!("mem{to}") });
    SetFilter { dev: format!("mem{}", hook.0), parent: hook.1, action, mirred }
}

fn add(view: &Introspect, hook: Place, action: MirredAction, to: Place) {
    view.set_filter(&filter(Action::Add, hook, Some((action, to)))).unwrap();
}

fn del(view: &Introspect, hook: Place) {
    view.set_filter(&filter(Action::Del, hook, None)).unwrap();
}

fn row(view: &Introspect, hook: Place) -> FilterRow {
    let dev = format!("mem{}", hook.0);
    view.filters().into_iter().find(|row| row.dev == dev && row.parent == hook.1).expect("a filter")
}

/// Packets, drops and overlimits.
fn counts(view: &Introspect, hook: Place) -> (u64, u64, u64) {
    let row = row(view, hook);
    (row.packets, row.drops, row.overlimits)
}

fn dropped(view: &Introspect, port: usize, reason: &str) -> u64 {
    let dev = format!("mem{port}");
    view.drops().iter().filter(|row| row.dev == dev && row.reason == reason).map(|row| row.packets).sum()
}

fn send(lane: &mut Lane, frame: &[u8]) {
    assert_eq!(lane.send(&[frame.to_vec()]), 1);
}

/// The next frame that arrives at `lane`.
fn arrives(lane: &mut Lane) -> Vec<u8> {
    let mut got = Vec::new();
    until("a frame", || {
        lane.receive(|frame| got.push(frame.to_vec()));
        !got.is_empty()
    });
    assert_eq!(got.len(), 1);
    got.remove(0)
}

fn nothing(lane: &mut Lane) {
    assert_eq!(lane.receive(|frame| panic!("{frame:?}")), 0);
}

/// `frame` as softnet forwards it to the host at `port`.
fn forwarded(mut frame: Vec<u8>, port: usize) -> Vec<u8> {
    frame[..6].copy_from_slice(&host_mac(port));
    frame[6..12].copy_from_slice(&own_mac(port));
    frame[22] -= 1;
    let check = u16::from_be_bytes([frame[24], frame[25]]);
    let (sum, carry) = check.overflowing_add(0x100);
    frame[24..26].copy_from_slice(&(sum + u16::from(carry)).to_be_bytes());
    frame
}

fn sent(lanes: &[Lane]) -> u64 {
    lanes.iter().map(|lane| lane.counts().0).sum()
}

fn taken(lanes: &[Lane]) -> u64 {
    lanes.iter().map(|lane| lane.counts().1).sum()
}

/// Waits until what was sent by `lanes` was received and has ended somewhere, taking what arrives. Returns how much that was.
fn settle(world: &World, lanes: &mut [Lane]) -> u64 {
    let (mut arrived, mut before) = (0, None);
    until("all packets have ended somewhere", || {
        arrived += lanes.iter_mut().map(|lane| lane.receive(|_| ()) as u64).sum::<u64>();
        let s = world.view.stats();
        let (ins, outs) =
            (s.received + s.originated, s.transmitted + s.delivered + s.dropped + s.merged + s.held);
        // What came in was counted before what went out: so the same twice, for copies may be made in between.
        let same = before.replace((ins, outs)) == Some((ins, outs));
        same && s.received == sent(lanes) && ins == outs && s.held == 0 && s.transmitted == taken(lanes)
    });
    arrived
}

/// Stops the stack with one packet more through it, from port 0 to port 1, which no filter touches any more.
fn end(world: World, mut lanes: Vec<Lane>) {
    let (first, others) = lanes.split_at_mut(1);
    ping(&mut first[0], &mut others[..1], 1234);
    settle(&world, &mut lanes);
    world.end(lanes);
}

const PORTS: Setup<'static> =
    Setup { ports: &[1, 1, 1], workers: 2, known: true, xps: [&[], &[]], rss: false, tx: None };

#[test]
fn what_is_redirected_or_mirrored_arrives() {
    let (world, mut lanes) = PORTS.start();
    let view = &world.view;
    for action in [Redirect, Mirror] {
        let mirrors = action == Mirror;
        let frame = numbered(0, host(1), 1, 7);
        let routed = forwarded(frame.clone(), 1);

        // As it came.
        add(view, (0, Ingress), action, (2, Egress));
        send(&mut lanes[0], &frame);
        assert_eq!(arrives(&mut lanes[2]), frame);
        if mirrors {
            assert_eq!(arrives(&mut lanes[1]), routed);
        }
        del(view, (0, Ingress));

        // As it leaves.
        add(view, (1, Egress), action, (2, Egress));
        send(&mut lanes[0], &frame);
        assert_eq!(arrives(&mut lanes[2]), routed);
        if mirrors {
            assert_eq!(arrives(&mut lanes[1]), routed);
        }
        del(view, (1, Egress));

        // As if it had come by port 2, whose MAC address it has.
        let to_2 = numbered(2, host(1), 2, 8);
        add(view, (0, Ingress), action, (2, Ingress));
        send(&mut lanes[0], &to_2);
        assert_eq!(arrives(&mut lanes[1]), forwarded(to_2, 1));
        del(view, (0, Ingress));

        // What leaves has that of the next hop, so an application takes it.
        let napi = view.napis()[2].id;
        let params = PollerParams::default();
        let mut poller = NapiPoller::new(&world.handle(), napi, "test", PacketFilter::All, params).unwrap();
        add(view, (1, Egress), action, (2, Ingress));
        send(&mut lanes[0], &frame);
        let mut batch = Batch::new();
        assert_eq!(poller.wait(&mut batch, Some(Duration::from_secs(60))).unwrap(), 1);
        let skb = batch.pop().unwrap();
        assert_eq!((skb.data(), skb.head().dev, skb.head().queue), (&routed[..], 2, 0));
        poller.ctx().free_skb(skb);
        if mirrors {
            assert_eq!(arrives(&mut lanes[1]), routed);
        }
        let FilterRow { bytes, packets, drops, overlimits, .. } = row(view, (1, Egress));
        assert_eq!((bytes, packets, drops, overlimits), (frame.len() as u64, 1, 0, 0));
        del(view, (1, Egress));

        assert_eq!(settle(&world, &mut lanes), 0, "nothing else");
    }
    assert_eq!(view.stats().originated, 4, "the copies");
    // The original of the mirrored one, which came by port 0.
    assert_eq!((view.stats().dropped, dropped(view, 0, "otherhost")), (1, 1));
    end(world, lanes);
}

/// Lets 100 packets through to port 1 under `rules`, and tells what each rule counted for each packet.
fn loops(rules: &[(Place, MirredAction, Place)], check: impl FnOnce(&World, &[(u64, u64, u64)], u64)) {
    const N: u64 = 100;
    let (world, mut lanes) = PORTS.start();
    rules.iter().for_each(|(hook, action, to)| add(&world.view, *hook, *action, *to));
    let frames: Vec<_> = (0..N).map(|number| numbered(0, host(1), 0, number as u32)).collect();
    assert_eq!(lanes[0].send(&frames) as u64, N);
    let arrived = settle(&world, &mut lanes);
    let each = |n: u64| {
        assert_eq!(n % N, 0, "{n}");
        n / N
    };
    let counts = rules.iter().map(|(hook, ..)| counts(&world.view, *hook));
    let counts: Vec<_> = counts.map(|(n, drops, over)| (each(n), each(drops), each(over))).collect();
    check(&world, &counts, each(arrived));
    rules.iter().for_each(|(hook, ..)| del(&world.view, *hook));
    end(world, lanes);
}

#[test]
fn a_device_that_redirects_to_itself() {
    loops(&[((1, Egress), Redirect, (1, Egress))], |world, counts, arrived| {
        assert_eq!((counts, arrived), (&[(2, 0, 1)][..], 0));
        assert_eq!((dropped(&world.view, 1, "tc_egress"), world.view.stats().dropped), (100, 100));
    });
    loops(&[((1, Egress), Mirror, (1, Egress))], |_, counts, arrived| {
        assert_eq!((counts, arrived), (&[(2, 0, 1)][..], 2));
    });
    loops(&[((0, Ingress), Redirect, (0, Ingress))], |world, counts, arrived| {
        assert_eq!((counts, arrived), (&[(4, 1, 0)][..], 0));
        assert_eq!(dropped(&world.view, 0, "tc_ingress"), 100);
    });
    // Each round but the last lets a packet pass.
    loops(&[((0, Ingress), Mirror, (0, Ingress))], |_, counts, arrived| {
        assert_eq!((counts, arrived), (&[(4, 1, 0)][..], 3));
    });
}

#[test]
fn two_devices_that_redirect_to_each_other() {
    let rules = [((1, Egress), Redirect, (2, Egress)), ((2, Egress), Redirect, (1, Egress))];
    loops(&rules, |world, counts, arrived| {
        assert_eq!((counts, arrived), (&[(2, 0, 1), (1, 0, 0)][..], 0));
        assert_eq!(dropped(&world.view, 1, "tc_egress"), 100);
    });
    let rules = [((1, Egress), Mirror, (2, Egress)), ((2, Egress), Mirror, (1, Egress))];
    loops(&rules, |_, counts, arrived| assert_eq!((counts, arrived), (&[(2, 0, 1), (1, 0, 0)][..], 3)));
}

#[test]
fn a_loop_by_way_of_ingress_ends_at_the_packets_depth() {
    let rules = [((1, Egress), Redirect, (2, Ingress)), ((2, Ingress), Redirect, (1, Egress))];
    loops(&rules, |world, counts, arrived| {
        assert_eq!((counts, arrived), (&[(3, 0, 0), (3, 1, 0)][..], 0));
        assert_eq!((dropped(&world.view, 2, "tc_ingress"), world.view.stats().dropped), (100, 100));
    });
}

/// Port 0 leads what leaves to the ingress of port 1, from where it is routed to port 0 again, for the host there seems to
/// have the MAC address of port 1.
#[test]
fn a_loop_that_routing_closes() {
    let (world, mut lanes) = Setup { known: false, ..PORTS }.start();
    let first = numbered(1, host(0), 0, 0);
    send(&mut lanes[1], &first);
    let question = arrives(&mut lanes[0]);
    let request = ArpPacket::parse(&question[14..]).unwrap();
    let mut answer = arp_answer(0, host(0), &question).expect("a request for the host's address");
    assert_eq!(request.target_ip, host(0));
    // Sender's MAC address.
    answer[14 + 8..14 + 14].copy_from_slice(&own_mac(1));
    send(&mut lanes[0], &answer);
    assert_eq!(arrives(&mut lanes[0])[..6], own_mac(1));

    add(&world.view, (0, Egress), Redirect, (1, Ingress));
    let frames: Vec<_> = (0..50).map(|number| numbered(1, host(0), 0, number)).collect();
    lanes[1].send(&frames);
    until("all but the question went round", || dropped(&world.view, 0, "tc_egress") == 50);
    assert_eq!(counts(&world.view, (0, Egress)), (4 * 50, 50, 0));
    nothing(&mut lanes[0]);
    del(&world.view, (0, Egress));
    let again = numbered(1, host(0), 0, 99);
    send(&mut lanes[1], &again);
    arrives(&mut lanes[0]);
    settle(&world, &mut lanes);
    world.end(lanes);
}

#[test]
fn chains_up_to_the_limits_pass() {
    let (world, mut lanes) = Setup { ports: &[1; 7], workers: 2, known: true, ..Setup::default() }.start();
    let view = &world.view;
    for port in 1..5 {
        add(view, (port, Egress), Redirect, (port + 1, Egress));
    }
    let frame = numbered(0, host(1), 0, 1);
    send(&mut lanes[0], &frame);
    assert_eq!(arrives(&mut lanes[5]), forwarded(frame.clone(), 1));
    add(view, (5, Egress), Redirect, (6, Egress));
    send(&mut lanes[0], &frame);
    until("one redirect more", || dropped(view, 5, "tc_egress") == 1);
    assert_eq!(counts(view, (5, Egress)), (1, 1, 0));
    (1..6).for_each(|port| del(view, (port, Egress)));

    for port in 0..3 {
        add(view, (port, Ingress), Redirect, (port + 1, Ingress));
    }
    let frame = numbered(3, host(5), 0, 2);
    send(&mut lanes[0], &frame);
    assert_eq!(arrives(&mut lanes[5]), forwarded(frame.clone(), 5));
    add(view, (3, Ingress), Redirect, (4, Ingress));
    send(&mut lanes[0], &frame);
    until("one redirect more", || dropped(view, 3, "tc_ingress") == 1);
    assert_eq!(counts(view, (3, Ingress)), (1, 1, 0));
    (0..4).for_each(|port| del(view, (port, Ingress)));
    end(world, lanes);
}

/// The context that polls the device that receives is told, and nothing is lost while that changes.
#[test]
fn in_every_context() {
    let (world, mut lanes) = PORTS.start();
    add(&world.view, (0, Ingress), Redirect, (2, Ingress));
    for _ in 0..3 {
        for context in Context::ALL {
            world.set(2, context);
            for number in 0..50 {
                let frame = numbered(2, host(1), 0, number);
                send(&mut lanes[0], &frame);
                assert_eq!(arrives(&mut lanes[1]), forwarded(frame, 1));
            }
        }
    }
    assert_eq!(counts(&world.view, (0, Ingress)), (600, 0, 0));
    del(&world.view, (0, Ingress));
    end(world, lanes);
}

/// An application sends on a thread that polls for no other.
#[test]
fn what_an_application_sends_is_received() {
    let (world, mut lanes) = PORTS.start();
    let napi = world.view.napis()[0].id;
    let params = PollerParams::default();
    let mut poller =
        NapiPoller::new(&world.handle(), napi, "test", PacketFilter::EtherType(0x88b5), params).unwrap();
    add(&world.view, (0, Egress), Redirect, (2, Ingress));
    for number in 0..100 {
        let frame = numbered(2, host(1), 0, number);
        poller_send(&mut poller, &frame);
        assert_eq!(arrives(&mut lanes[1]), forwarded(frame, 1));
    }
    del(&world.view, (0, Egress));
    drop(poller);
    end(world, lanes);
}

/// One that polls by itself and suspends its queue gets what came by that, and what is redirected there, each in order.
#[test]
fn an_application_that_polls_receives_from_both() {
    const N: u32 = 2000;
    let (world, mut lanes) = PORTS.start();
    set_knobs(&world.view, 10, 100_000, 20_000_000);
    let napi = mem0(&world.view).id;
    let mut poller = NapiPoller::new(&world.handle(), napi, "test", PacketFilter::All, PREFER).unwrap();
    add(&world.view, (1, Ingress), Redirect, (0, Ingress));
    let (mut next, mut sent, mut batch) = ([0; 2], 0, Batch::new());
    while next != [N; 2] {
        while sent < N && sent < next[0].min(next[1]) + 100 {
            for port in [0, 1] {
                assert_eq!(lanes[port].send(&[numbered(port, host(2), port as u32, sent)]), 1);
            }
            sent += 1;
        }
        assert!(poller.wait(&mut batch, Some(Duration::from_secs(60))).unwrap() > 0, "{next:?} of {sent}");
        for skb in batch.drain() {
            let (flow, number) = number_of(skb.data()).unwrap();
            assert_eq!((next[flow as usize], skb.head().dev), (number, 0));
            next[flow as usize] += 1;
            poller.ctx().free_skb(skb);
        }
    }
    del(&world.view, (1, Ingress));
    drop(poller);
    end(world, lanes);
}

fn poller_send(poller: &mut NapiPoller, frame: &[u8]) {
    let mut batch = batch_of(poller.ctx(), frame, 1);
    poller.send(&mut batch);
}

#[test]
fn a_backlog_is_bounded() {
    let (mut assembly, mut lanes) = PORTS.assemble(Context::Softirq);
    let (shared, view) = (assembly.shared.clone(), assembly.view.clone());
    while assembly.workers.iter_mut().any(|worker| worker.round()) {}
    add(&view, (1, Egress), Redirect, (2, Ingress));
    let mut ctx = shared.context();
    let frame = numbered(2, host(0), 0, 0);
    let n = MAX_BACKLOG.div_ceil(50) + 3;
    for _ in 0..n {
        let mut batch = batch_of(&mut ctx, &frame, 50);
        ctx.originated(50);
        dev_queue_xmit(&mut ctx, &shared.netdevs[1], 0, TxHint::forwarded(0), &mut batch);
        assert!(batch.is_empty());
    }
    let lost = (n * 50 - MAX_BACKLOG) as u64;
    assert_eq!((view.stats().held, dropped(&view, 2, "cpu_backlog")), (MAX_BACKLOG as u64, lost));
    // In portions, and none is left behind.
    let mut arrived = 0;
    while assembly.workers.iter_mut().any(|worker| worker.round()) {
        while let n @ 1.. = lanes[0].receive(|_| ()) {
            arrived += n;
        }
    }
    while let n @ 1.. = lanes[0].receive(|_| ()) {
        arrived += n;
    }
    assert_eq!((arrived, view.stats().held), (MAX_BACKLOG, 0));

    // What is in it when the device is closed is dropped.
    let mut batch = batch_of(&mut ctx, &frame, 20);
    ctx.originated(20);
    dev_queue_xmit(&mut ctx, &shared.netdevs[1], 0, TxHint::forwarded(0), &mut batch);
    drop(ctx);
    drop(assembly);
    assert_eq!(dropped(&view, 2, "shutdown"), 20);
    let s = view.stats();
    assert_eq!(s.originated, s.transmitted + s.dropped, "{s:?}");
    lanes.drain(..).for_each(|lane| _ = lane.close());
    let s = view.stats();
    assert_eq!((s.frames_free, s.heads_free, s.leaked), (s.frames, s.heads, 0));
}

#[test]
fn a_device_that_is_not_open() {
    let (world, mut lanes) = PORTS.start();
    let view = &world.view;
    let frame = numbered(0, host(1), 0, 1);
    for (direction, n) in [(Egress, 1), (Ingress, 2)] {
        let live = world.shared.devices[2].live.swap(None);
        add(view, (1, Egress), Mirror, (2, direction));
        send(&mut lanes[0], &frame);
        assert_eq!(arrives(&mut lanes[1]), forwarded(frame.clone(), 1));
        assert_eq!(counts(view, (1, Egress)), (1, 1, 0));
        let redirect = filter(Action::Replace, (1, Egress), Some((Redirect, (2, direction))));
        view.set_filter(&redirect).unwrap();
        send(&mut lanes[0], &frame);
        until("dropped", || dropped(view, 2, "dev_ready") == n);
        assert_eq!(counts(view, (1, Egress)), (1, 1, 0));
        // What was set holds when the device is back.
        world.shared.devices[2].live.store(live);
        send(&mut lanes[0], &frame);
        match direction {
            Egress => assert_eq!(arrives(&mut lanes[2]), forwarded(frame.clone(), 1)),
            Ingress => until("otherhost", || dropped(view, 2, "otherhost") == 1),
        }
        assert_eq!(counts(view, (1, Egress)), (2, 1, 0));
        del(view, (1, Egress));
    }
    end(world, lanes);
}

#[test]
fn a_copy_for_which_there_is_no_memory_is_counted() {
    let (assembly, lanes) = PORTS.assemble(Context::Softirq);
    let (shared, view) = (assembly.shared.clone(), assembly.view.clone());
    add(&view, (1, Egress), Mirror, (2, Egress));
    let mut ctx = shared.context();
    let frame = numbered(1, host(1), 0, 0);
    let mut batch = batch_of(&mut ctx, &frame, 10);
    ctx.originated(10);
    let mut all: Vec<_> = std::iter::from_fn(|| ctx.alloc_frame()).collect();
    // Enough for three copies.
    all.drain(..3).for_each(|frame| ctx.free_frame(frame));
    dev_queue_xmit(&mut ctx, &shared.netdevs[1], 0, TxHint::forwarded(0), &mut batch);
    assert_eq!(counts(&view, (1, Egress)), (10, 7, 0));
    let s = view.stats();
    assert_eq!((s.originated, s.transmitted, s.dropped), (13, 13, 0));
    all.into_iter().for_each(|frame| ctx.free_frame(frame));
    drop(ctx);
    drop(assembly);
    lanes.into_iter().for_each(|lane| _ = lane.close());
}

/// Mirrors and redirects that multiply packets and lead them in circles, under everything that may come, while contexts
/// are switched, filters changed, and at last the stack stopped.
#[test]
fn circles_under_load_lose_nothing() {
    for stop in [false, true] {
        let ports = [2, 1, 2];
        let (mut world, lanes) = Setup { ports: &ports, workers: 2, known: true, ..Setup::default() }.start();
        let over = AtomicBool::new(false);
        let goes_on = || !over.load(Ordering::Relaxed);
        let mut lanes = std::thread::scope(|scope| {
            let chatting = scope.spawn(|| {
                on_all(lanes, |lane| {
                    let mut rng = Rng((lane.port * 8 + lane.queue) as u64);
                    while goes_on() {
                        let n = rng.below(64);
                        let frames: Vec<_> =
                            (0..n).map(|_| random(&mut rng, lane.port, ports.len())).collect();
                        lane.send(&frames);
                        lane.receive(|_| ());
                    }
                })
            });
            let mut rng = Rng(42);
            for round in 0..100 {
                let place = |rng: &mut Rng| (rng.below(3), if rng.below(2) == 0 { Ingress } else { Egress });
                let (hook, to) = (place(&mut rng), place(&mut rng));
                let action = if rng.below(2) == 0 { Redirect } else { Mirror };
                let set = filter(Action::Replace, hook, Some((action, to)));
                world.view.set_filter(&set).unwrap();
                if round % 10 == 0 {
                    world.set(rng.below(3), Context::ALL[rng.below(4)]);
                }
                let before = world.view.stats().received;
                until("traffic goes on", || world.view.stats().received > before);
            }
            if stop {
                world.stop();
            }
            over.store(true, Ordering::Relaxed);
            chatting.join().unwrap()
        });
        if !stop {
            settle(&world, &mut lanes);
        }
        world.end(lanes);
    }
}

#[test]
fn what_cannot_be_set_is_said() {
    let (world, lanes) = PORTS.start();
    let view = &world.view;
    let set = |action, hook, mirred| view.set_filter(&filter(action, hook, mirred));
    let to = |port| Some((Redirect, (port, Egress)));
    for (answer, expected) in [
        (set(Action::Del, (0, Ingress), None), "ingress of mem0 has no filter, so none to delete"),
        (set(Action::Add, (7, Ingress), to(0)), "no device \"mem7\"; there are: mem0, mem1, mem2"),
        (set(Action::Add, (0, Ingress), to(7)), "no device \"mem7\"; there are: mem0, mem1, mem2"),
        (
            set(Action::Add, (0, Ingress), None),
            "expected what to do, such as `action mirred egress redirect dev DEV`",
        ),
    ] {
        assert_eq!(answer.unwrap_err().to_string(), expected);
    }
    assert!(view.filters().is_empty());
    assert_eq!(set(Action::Add, (0, Ingress), to(0)).unwrap().len(), 1, "a device to itself");
    let error = set(Action::Add, (0, Ingress), to(1)).unwrap_err().to_string();
    assert_eq!(error, "ingress of mem0 has a filter already: `replace` it, or `del` it first");
    set(Action::Add, (0, Egress), to(2)).unwrap();
    let rows = set(Action::Replace, (0, Ingress), to(1)).unwrap();
    let rows: Vec<_> = rows.iter().map(|row| (row.parent, &row.to_dev[..])).collect();
    assert_eq!(rows, [(Ingress, "mem1"), (Egress, "mem2")]);
    assert_eq!(set(Action::Del, (0, Ingress), None).unwrap().len(), 1);
    del(view, (0, Egress));
    end(world, lanes);
}

#[test]
fn what_a_local_sender_sends_passes_the_filter_too() {
    let (world, mut lanes) = PORTS.start();
    let mut sender = softnet::RawSender::new(&world.handle(), "mem1").unwrap();
    for (action, here) in [(Mirror, 1), (Redirect, 0)] {
        add(&world.view, (1, Egress), action, (2, Egress));
        for number in 0..2 {
            let frame = numbered(1, host(1), 0, number);
            let mut batch = batch_of(sender.ctx(), &frame, 1);
            match number {
                0 => _ = sender.send(&mut batch),
                _ => assert_eq!(sender.try_send(&mut batch), Ok(softnet_core::qdisc::Verdict::Success)),
            }
            assert!(batch.is_empty());
            assert_eq!(arrives(&mut lanes[2]), frame);
            (0..here).for_each(|_| assert_eq!(arrives(&mut lanes[1]), frame));
        }
        assert_eq!(counts(&world.view, (1, Egress)), (2, 0, 0));
        del(&world.view, (1, Egress));
    }
    drop(sender);
    nothing(&mut lanes[1]);
    assert_eq!(world.view.stats().originated, 6, "four, and two copies");
    end(world, lanes);
}
