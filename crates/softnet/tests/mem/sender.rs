//! Many local senders on one TX queue: order, sums, and what happens while the thread that owns it does not go on.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::Scope;
use std::time::Duration;

use softnet::config::{Config, DeviceConfig, InterfaceAddr, NeighbourConfig, StackConfig, available_cpus};
use softnet::control::show::QdiscRow;
use softnet::control::{Action, SetQdisc};
use softnet::driver::OpenRequest;
use softnet::internals::{Assembly, TxHint, dev_queue_xmit};
use softnet::net::{SendBatch, UdpSocket};
use softnet::{RawSender, Stack, WouldBlock};
use softnet_core::SoftnetData;
use softnet_core::qdisc::Verdict;
use softnet_core::skb::Batch;
use softnet_dev::{QueueStats, Reaped, TxQueue};

use super::frames::{batch_of, host, host_mac, number_of, numbered, own};
use super::world::{Lane, World, until, wire};

/// The thread that a [`Gate`] stops.
const LEADER: &str = "leader";

/// Stops the leader where it tells the device to send, as if it were preempted, for as long as it is shut.
#[derive(Clone, Default)]
pub(crate) struct Gate {
    shut: Arc<AtomicBool>,
    /// The leader was stopped since it was shut.
    caught: Arc<AtomicBool>,
}

impl Gate {
    fn pass(&self) {
        while self.shut.load(Ordering::Acquire) && std::thread::current().name() == Some(LEADER) {
            self.caught.store(true, Ordering::Release);
            std::thread::yield_now();
        }
    }

    /// Shuts it, and has a leader own the TX queue that `sender` sends by, until what is returned is dropped.
    pub(crate) fn shut<'scope>(&self, scope: &'scope Scope<'scope, '_>, mut sender: RawSender) -> Shut {
        self.caught.store(false, Ordering::Release);
        self.shut.store(true, Ordering::Release);
        let (shut, gate) = (Shut(self.clone()), self.clone());
        let lead = move || {
            // It hands its packet over instead if another thread happens to own the queue.
            while !gate.caught.load(Ordering::Acquire) {
                let mut batch = packet(sender.ctx(), 9, 0);
                sender.send(&mut batch);
            }
        };
        std::thread::Builder::new().name(LEADER.into()).spawn_scoped(scope, lead).unwrap();
        until("the leader owns the queue", || self.caught.load(Ordering::Acquire));
        shut
    }
}

/// A gate that is shut; opened when this is dropped.
pub(crate) struct Shut(Gate);

impl Drop for Shut {
    fn drop(&mut self) {
        self.0.shut.store(false, Ordering::Release);
    }
}

/// A TX queue behind a [`Gate`].
struct Gated(Box<dyn TxQueue>, Gate);

impl TxQueue for Gated {
    fn reap(&mut self, ctx: &mut SoftnetData) -> Reaped {
        self.0.reap(ctx)
    }
    fn tx_burst(&mut self, ctx: &mut SoftnetData, batch: &mut Batch) -> usize {
        self.0.tx_burst(ctx, batch)
    }
    fn kick(&mut self, ctx: &mut SoftnetData) -> bool {
        self.1.pass();
        self.0.kick(ctx)
    }
    fn stats(&self) -> Arc<QueueStats> {
        self.0.stats()
    }
    fn held(&self) -> usize {
        self.0.held()
    }
    fn close(self: Box<Self>, ctx: &mut SoftnetData) {
        self.0.close(ctx);
    }
}

/// A stack with one device with one TX queue, behind the gate, and the far end of its wire.
pub(crate) fn start(qdisc: &str, qdisc_max_burst: u32, gate: &Gate) -> (World, Stack, Lane) {
    let device = DeviceConfig::new("mem0").with(|device| {
        device.addresses = vec![InterfaceAddr::new(own(0), 24).unwrap()];
        device.qdisc = Some(qdisc.parse().unwrap());
    });
    let workers = available_cpus().into_iter().take(1).collect();
    let stack = StackConfig::default().with(|stack| {
        stack.workers = workers;
        stack.qdisc_max_burst = qdisc_max_burst;
        stack.frames = 32768;
    });
    let neighbour = NeighbourConfig::new("mem0", host(0), host_mac(0));
    let config = Config::default().with(|config| {
        config.stack = stack;
        config.devices = vec![device];
        config.neighbours = vec![neighbour];
    });
    let far = Arc::new(Mutex::new(Vec::new()));
    let assembly = Assembly::new(config, Vec::new(), |region| {
        let (region, far, gate) = (region.clone(), far.clone(), gate.clone());
        Ok(move |&OpenRequest { dev, .. }: &OpenRequest<'_>, _: &mut SoftnetData| {
            let (mut near, lanes) = wire(&region, dev, 1);
            let gated = |tx| Box::new(Gated(tx, gate.clone())) as Box<dyn TxQueue>;
            near.tx = near.tx.into_iter().map(gated).collect();
            far.lock().unwrap().extend(lanes);
            Ok::<_, String>(near)
        })
    });
    let stack = Stack::run(assembly.unwrap()).unwrap();
    let lane = far.lock().unwrap().pop().unwrap();
    (World::watching(&stack), stack, lane)
}

/// A batch with one packet of `flow`.
pub(crate) fn packet(ctx: &mut SoftnetData, flow: u32, number: u32) -> Batch {
    batch_of(ctx, &numbered(0, host(0), flow, number), 1)
}

pub(crate) fn root(world: &World) -> QdiscRow {
    world.view.qdiscs().swap_remove(0)
}

/// What the far end gets, until `n` packets have come: flow and number of each.
fn take(lane: &mut Lane, n: usize) -> Vec<(u32, u32)> {
    let mut got = Vec::new();
    until("all packets", || {
        lane.receive(|frame| got.push(number_of(frame).expect("nothing else is sent")));
        got.len() >= n
    });
    got
}

#[test]
fn senders_keep_their_order_and_the_sums_add_up() {
    const SENDERS: u32 = 6;
    const EACH: u32 = 2000;
    for qdisc in ["pfifo limit 20000", "pfifo_fast", "tbf rate 8gbit burst 100kb limit 20mb", "noqueue"] {
        let (world, stack, mut lane) = start(qdisc, 64, &Gate::default());
        let got = std::thread::scope(|scope| {
            for flow in 0..SENDERS {
                let mut sender = stack.sender("mem0").unwrap();
                scope.spawn(move || {
                    for number in 0..EACH {
                        let mut batch = packet(sender.ctx(), flow, number);
                        sender.send(&mut batch);
                        assert!(batch.is_empty());
                    }
                });
            }
            let mut got = Vec::new();
            until("every packet is sent or dropped", || {
                lane.receive(|frame| got.push(number_of(frame).expect("nothing else is sent")));
                let stats = world.view.stats();
                stats.originated == u64::from(SENDERS * EACH)
                    && stats.transmitted + stats.dropped == stats.originated
                    && stats.transmitted == got.len() as u64
            });
            got
        });
        for flow in 0..SENDERS {
            let numbers: Vec<u32> =
                got.iter().filter(|(of, _)| *of == flow).map(|(_, number)| *number).collect();
            assert!(numbers.is_sorted(), "{qdisc}: flow {flow}");
        }
        let row = root(&world);
        if qdisc.starts_with("pfifo limit") {
            assert_eq!((got.len(), row.drops), ((SENDERS * EACH) as usize, 0), "{row:?}");
        }
        if qdisc != "noqueue" {
            assert_eq!((row.packets, row.qlen), (got.len() as u64, 0), "{row:?}");
            assert_eq!(row.packets + row.drops, u64::from(SENDERS * EACH), "{row:?}");
        }
        drop(stack);
        world.end(vec![lane]);
    }
}

/// A socket that does not block is told that it would have to, and when it may send again; one that blocks waits.
#[test]
fn a_socket_is_held_back_and_told_when_it_may_send() {
    const BURST: usize = 50;
    let gate = Gate::default();
    let (world, stack, mut lane) = start("pfifo limit 1000", BURST as u32, &gate);
    let socket = UdpSocket::bind(&stack.handle(), (own(0), 7)).unwrap();
    socket.connect((host(0), 9)).unwrap();
    std::thread::scope(|scope| {
        let shut = gate.shut(scope, stack.sender("mem0").unwrap());
        socket.set_nonblocking(true).unwrap();
        let sent = (0..).take_while(|_| socket.send(b"x").is_ok()).count();
        assert_eq!(sent, BURST, "as many may be pending as qdisc_max_burst");
        assert!(!socket.readiness().writable);
        socket.set_nonblocking(false).unwrap();
        socket.set_write_timeout(Some(Duration::from_millis(3))).unwrap();
        assert_eq!(socket.send(b"x").unwrap_err().kind(), ErrorKind::WouldBlock);
        drop(shut);
        until("it may send again", || socket.readiness().writable);
        socket.set_write_timeout(None).unwrap();
        socket.send(b"x").unwrap();
    });
    let mut got = 0;
    until("all are sent", || {
        let from_socket =
            |frame: &[u8]| frame[..6] == host_mac(0) && frame[23] == 17 && frame[34..38] == [0, 7, 0, 9];
        lane.receive(|frame| got += usize::from(from_socket(frame)));
        got == BURST + 1
    });
    drop((socket, stack));
    world.end(vec![lane]);
}

/// Datagrams that many sockets send by one batch stay in it while it is held back, and what is dropped with it is counted.
#[test]
fn a_send_batch_that_is_held_back_keeps_what_it_took() {
    const BURST: usize = 64;
    let gate = Gate::default();
    let (world, stack, mut lane) = start("pfifo limit 1000", BURST as u32, &gate);
    let sockets = [7, 8].map(|port| UdpSocket::bind(&stack.handle(), (own(0), port)).unwrap());
    let push = |out: &mut SendBatch, i: usize| {
        out.push(&sockets[i % 2], &i.to_be_bytes(), Some((host(0), 9).into()))
    };
    let (mut out, mut lost) = (SendBatch::new(&stack.handle()), SendBatch::new(&stack.handle()));
    let kept = std::thread::scope(|scope| {
        let shut = gate.shut(scope, stack.sender("mem0").unwrap());
        let kept = (0..).take_while(|i| push(&mut out, *i).is_ok()).count();
        assert_eq!((kept % BURST, out.len()), (0, BURST), "what is full is pending, or stays");
        assert_eq!(out.flush(Duration::from_millis(3)).unwrap_err().kind(), ErrorKind::WouldBlock);
        assert_eq!(out.len(), BURST);
        push(&mut lost, 0).unwrap();
        drop(lost);
        assert_eq!(world.view.stats().dropped, 1);
        drop(shut);
        out.flush(Duration::from_secs(60)).unwrap();
        assert!(out.is_empty());
        kept
    });
    let mut got = Vec::new();
    until("all are sent, in order", || {
        lane.receive(|frame| {
            if frame[..6] == host_mac(0) && frame[23] == 17 && frame[36..38] == [0, 9] {
                got.push((usize::from(frame[35]), usize::from(frame[49])));
            }
        });
        got.len() == kept
    });
    assert!(got.iter().copied().eq((0..kept).map(|i| (7 + i % 2, i))));
    drop((out, sockets, stack));
    world.end(vec![lane]);
}

/// Two sockets that are both held back stay so until there is room: that one tries is no news to the other.
#[test]
fn senders_held_back_do_not_wake_each_other() {
    const BURST: u32 = 8;
    let gate = Gate::default();
    let (world, stack, mut lane) = start("pfifo limit 1000", BURST, &gate);
    let sockets = [7, 8].map(|port| UdpSocket::bind(&stack.handle(), (own(0), port)).unwrap());
    sockets.iter().for_each(|socket| socket.connect((host(0), 9)).unwrap());
    std::thread::scope(|scope| {
        let shut = gate.shut(scope, stack.sender("mem0").unwrap());
        for socket in &sockets {
            socket.set_nonblocking(true).unwrap();
            while socket.send(b"x").is_ok() {}
        }
        for _ in 0..10 {
            assert!(sockets.iter().all(|socket| !socket.readiness().writable));
            for socket in &sockets {
                assert_eq!(socket.send(b"x").unwrap_err().kind(), ErrorKind::WouldBlock);
            }
        }
        drop(shut);
        until("both may send again", || sockets.iter().all(|socket| socket.readiness().writable));
    });
    until("all are sent", || {
        lane.receive(|_| ());
        let stats = world.view.stats();
        stats.transmitted == stats.originated
    });
    drop((sockets, stack));
    world.end(vec![lane]);
}

/// Of a batch that is held back in part the first ones were sent, and the rest was not: none is lost, none sent twice.
#[test]
fn what_was_taken_of_a_batch_are_its_first_ones() {
    const BURST: usize = 4;
    let gate = Gate::default();
    let (world, stack, mut lane) = start("pfifo limit 1000", BURST as u32, &gate);
    let handle = stack.handle();
    let here = UdpSocket::bind(&handle, (own(0), 8)).unwrap();
    let unknown = Ipv4Addr::new(10, 0, 0, 77);
    let socket = UdpSocket::bind(&handle, (own(0), 7)).unwrap();
    for socket in [&here, &socket] {
        socket.set_nonblocking(true).unwrap();
    }
    std::thread::scope(|scope| {
        let shut = gate.shut(scope, stack.sender("mem0").unwrap());
        while socket.send_to(b"x", (host(0), 9)).is_ok() {}
        let message = |ip: Ipv4Addr, port| (&b"x"[..], Some(SocketAddr::from((ip, port))));
        let batch = [message(own(0), 8), message(host(0), 9), message(own(0), 8)];
        let sent = [socket.send_batch(&batch), socket.send_batch(&batch[1..])];
        let long = socket.send_batch(&[batch[1], (&[0; 3000][..], batch[2].1)]);
        let held = world.view.stats().held;
        let waits = socket.send_batch(&[batch[1], message(unknown, 9)]);
        let for_neighbour = world.view.stats().held - held;
        drop(shut);
        let [first, second] = sent.map(|sent| sent.map_err(|error| error.kind()));
        assert_eq!((first, second), (Ok(1), Err(ErrorKind::WouldBlock)));
        assert_eq!(long.map_err(|error| error.kind()), Err(ErrorKind::WouldBlock));
        assert_eq!((waits.map_err(|error| error.kind()), for_neighbour), (Err(ErrorKind::WouldBlock), 0));
        let got = std::iter::from_fn(|| here.recv(&mut [0; 9]).ok()).count();
        assert_eq!(got, 1);
    });
    until("all is sent", || lane.receive(|_| {}) == 0 && world.view.stats().held == 0);
    drop((here, socket, handle, stack));
    world.end(vec![lane]);
}

/// Members here get what left for their group, and nothing of what was given back to its sender.
#[test]
fn members_here_get_what_was_taken() {
    const BURST: usize = 4;
    let gate = Gate::default();
    let (world, stack, mut lane) = start("pfifo limit 1000", BURST as u32, &gate);
    let handle = stack.handle();
    let group = Ipv4Addr::new(239, 1, 2, 3);
    let member = UdpSocket::bind(&handle, "0.0.0.0:8").unwrap();
    member.join_multicast_v4(&group, &own(0)).unwrap();
    let socket = UdpSocket::bind(&handle, (own(0), 7)).unwrap();
    for socket in [&member, &socket] {
        socket.set_nonblocking(true).unwrap();
    }
    let got = || std::iter::from_fn(|| member.recv(&mut [0; 9]).ok()).count();
    let to = Some(SocketAddr::from((group, 8)));
    let mut out = SendBatch::new(&handle);
    std::thread::scope(|scope| {
        let shut = gate.shut(scope, stack.sender("mem0").unwrap());
        let taken = (0..).take_while(|_| socket.send_batch(&[(b"x", to)]).is_ok()).count();
        assert_eq!((taken, got()), (BURST, BURST));
        assert_eq!(socket.send_batch(&[(&b"x"[..], to); 3]).unwrap_err().kind(), ErrorKind::WouldBlock);
        out.push(&socket, b"x", to).unwrap();
        out.push(&socket, b"x", to).unwrap();
        assert_eq!(out.flush(Duration::ZERO).unwrap_err().kind(), ErrorKind::WouldBlock);
        let mut lost = SendBatch::new(&handle);
        lost.push(&socket, b"x", to).unwrap();
        drop(lost);
        assert_eq!(got(), 0, "none of it left");
        drop(shut);
        out.flush(Duration::from_secs(60)).unwrap();
        assert_eq!(got(), 2);
    });
    until("all is sent", || lane.receive(|_| {}) == 0 && world.view.stats().held == 0);
    drop((member, socket, out, handle, stack));
    world.end(vec![lane]);
}

/// The checklist's leader that stands still: others return at once, fill the pending list, and are held back then;
/// forwarded packets are dropped.
#[test]
fn while_the_owner_stands_still_others_hand_over_and_are_held_back_then() {
    const BURST: u32 = 50;
    let gate = Gate::default();
    let (world, stack, mut lane) = start("pfifo limit 1000", BURST, &gate);
    std::thread::scope(|scope| {
        let shut = gate.shut(scope, stack.sender("mem0").unwrap());
        let mut other: RawSender = stack.sender("mem0").unwrap();
        let mut number = 0;
        let full = loop {
            let mut batch = packet(other.ctx(), 0, number);
            match other.try_send(&mut batch) {
                Ok(verdict) => assert_eq!(verdict, Verdict::Success),
                Err(WouldBlock) => break batch,
            }
            number += 1;
        };
        assert_eq!(number, BURST, "as many may be pending as qdisc_max_burst");
        assert_eq!(
            (full.len(), world.view.stats().originated),
            (1, u64::from(BURST)),
            "the caller has it still"
        );
        other.ctx().free_skb({ full }.pop().unwrap());
        // A forwarded packet can't wait.
        let mut ctx = world.shared.context();
        let mut batch = packet(&mut ctx, 8, 0);
        ctx.originated(1);
        dev_queue_xmit(
            &mut ctx,
            &world.shared.netdevs[0],
            world.shared.clock.now(),
            TxHint::forwarded(0),
            &mut batch,
        );
        assert!(batch.is_empty());
        let drops = world.view.drops();
        assert_eq!(
            drops.iter().map(|row| (&row.reason[..], row.packets)).collect::<Vec<_>>(),
            [("qdisc_burst_drop", 1)]
        );
        // One that blocks goes on when the owner does.
        scope.spawn(move || {
            let mut batch = packet(other.ctx(), 0, number);
            assert_eq!(other.send(&mut batch), Verdict::Success);
        });
        until("it waits", || root(&world).tx.unwrap().held_back == 1);
        drop(shut);
        let got = take(&mut lane, BURST as usize + 2);
        assert_eq!(got[0], (9, 0));
        assert!(got[1..].iter().copied().eq((0..=BURST).map(|number| (0, number))), "{got:?}");
        ctx.drain();
    });
    let tx = root(&world).tx.unwrap();
    assert!(tx.handed_over >= u64::from(BURST) && tx.held_back_ns >= tx.held_back_longest_ns, "{tx:?}");
    drop(stack);
    world.end(vec![lane]);
}

/// The stack stops while a sender owns the queue and others' packets are pending: each is freed once.
#[test]
fn stopping_while_packets_are_pending_frees_each_once() {
    let gate = Gate::default();
    let (world, stack, lane) = start("pfifo", 1000, &gate);
    std::thread::scope(|scope| {
        let shut = gate.shut(scope, stack.sender("mem0").unwrap());
        let mut other = stack.sender("mem0").unwrap();
        for number in 0..100 {
            let mut batch = packet(other.ctx(), 1, number);
            assert_eq!(other.try_send(&mut batch), Ok(Verdict::Success));
        }
        scope.spawn(move || drop(stack));
        until("the queue is being closed", || world.shared.devices[0].live.load().is_none());
        let mut batch = packet(other.ctx(), 1, 100);
        assert_eq!(other.send(&mut batch), Verdict::Drop);
        drop(shut);
    });
    let stats = world.view.stats();
    assert_eq!((stats.originated, stats.transmitted + stats.dropped), (102, 102), "{stats:?}");
    world.end(vec![lane]);
}

/// A discipline takes the place of another while senders go on: each packet is sent, or dropped and counted.
#[test]
fn disciplines_change_while_senders_go_on() {
    let (world, stack, mut lane) = start("pfifo_fast", 1000, &Gate::default());
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for flow in 0..3 {
            let (over, mut sender) = (&over, stack.sender("mem0").unwrap());
            scope.spawn(move || {
                let mut number = 0;
                while !over.load(Ordering::Acquire) {
                    if let Some(skb) = sender.ctx().alloc_skb() {
                        sender.ctx().free_skb(skb);
                        let mut batch = packet(sender.ctx(), flow, number);
                        sender.send(&mut batch);
                        number += 1;
                    }
                }
            });
        }
        let kinds =
            ["tbf rate 1gbit burst 32kb latency 5ms", "bfifo limit 64kb", "noqueue", "pfifo limit 10", "mq"];
        for qdisc in kinds.iter().cycle().take(40) {
            let set = SetQdisc {
                dev: "mem0".into(),
                queue: None,
                action: Action::Replace,
                qdisc: Some((*qdisc).into()),
            };
            let rows = world.view.set_qdisc(set).unwrap();
            assert!(qdisc.starts_with(&rows[0].kind), "{rows:?}");
            let before = world.view.stats().transmitted;
            until("packets pass", || {
                lane.receive(|_| {});
                world.view.stats().transmitted > before + 500
            });
        }
        over.store(true, Ordering::Release);
    });
    until("every packet has ended somewhere", || {
        lane.receive(|_| {});
        let stats = world.view.stats();
        stats.originated == stats.transmitted + stats.dropped
    });
    drop(stack);
    world.end(vec![lane]);
}
