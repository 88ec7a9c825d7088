//! Hook slots on the way of what sockets send: once through `output` and `postrouting`, whichever way a datagram takes.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use softnet::config::InterfaceAddr;
use softnet::net::UdpSocket;
use softnet_core::ip::checksum;
use softnet_core::ip::hooks::{Hook, HookContext, Passage, Slot};
use softnet_core::ip::v4::header::Ipv4Header;
use softnet_core::skb::{Batch, DropReason, Skb};

use super::frames::{arp_answer, batch_of, host, numbered, own};
use super::frames6::{advert6, host6, own6};
use super::sender::{Gate, start};
use super::udp::sent;
use super::world::{Lane, Setup, World, until};

const SLOTS: [Slot; 2] = [Slot::Output, Slot::Postrouting];

/// A hook that does something to each packet, which goes on if that says so.
struct Each<A>(A);

impl<A: Fn(Passage, &mut Skb) -> bool + Send + Sync> Hook for Each<A> {
    fn run(&self, cx: &mut HookContext<'_>, passage: Passage, batch: &mut Batch) {
        let mut some = std::mem::take(batch);
        for mut skb in some.drain() {
            match (self.0)(passage, &mut skb) {
                true => batch.push(skb).unwrap(),
                false => cx.ctx.free(skb, DropReason::TcEgress),
            }
        }
    }
}

/// Has `act` done to what passes `slots`.
fn hook(world: &World, slots: &[Slot], act: impl Fn(Passage, &mut Skb) -> bool + Send + Sync + 'static) {
    let hook: Arc<dyn Hook> = Arc::new(Each(act));
    world.shared.control().replace_tables(&*world.shared, |tables| {
        slots.iter().for_each(|slot| tables.hooks.set(*slot, Some(hook.clone())));
    });
}

/// Two devices of both families. What is sent leaves by the second, of whose neighbours one is known.
fn two_devices() -> (World, Vec<Lane>) {
    let setup = Setup { ports: &[1, 1], workers: 1, known: true, ..Setup::default() };
    setup.start_with(|config| {
        for (port, device) in config.devices.iter_mut().enumerate() {
            device.addresses.push(InterfaceAddr::new(own6(port), 64).unwrap());
        }
    })
}

/// Counts datagrams and fragments of them that come by `lane`, until there are `n`, and answers for `neighbour`.
fn take(lane: &mut Lane, n: usize, neighbour: IpAddr) {
    let mut got = 0;
    until("all packets", || {
        let mut answer = None;
        lane.receive(|frame| {
            let asked = match neighbour {
                IpAddr::V4(addr) => arp_answer(1, addr, frame),
                IpAddr::V6(addr) => advert6(1, addr, frame),
            };
            let udp = frame[12..14] == [8, 0] && frame[23] == 17;
            got += usize::from(udp || frame[12..14] == [0x86, 0xdd] && [17, 44].contains(&frame[20]));
            answer = answer.take().or(asked);
        });
        lane.send(answer.as_slice());
        assert!(got <= n, "{got} of {n}");
        got == n
    });
}

#[test]
fn what_sockets_send_passes_output_and_postrouting_once() {
    let (world, mut lanes) = two_devices();
    let passed = Arc::new(Mutex::new(Vec::new()));
    let notes = passed.clone();
    hook(&world, &SLOTS, move |passage, _| {
        notes.lock().unwrap().push(passage);
        true
    });
    let groups: [IpAddr; 2] = ["239.1.2.3".parse().unwrap(), "ff05::9".parse().unwrap()];
    let cases: [[IpAddr; 4]; 2] = [
        [own(1).into(), host(1).into(), Ipv4Addr::new(10, 1, 0, 77).into(), groups[0]],
        [own6(1).into(), host6(1).into(), "fd00:0:0:1::77".parse().unwrap(), groups[1]],
    ];
    for [own, known, unknown, group] in cases {
        let socket = UdpSocket::bind(&world.handle(), (own, 0)).unwrap();
        let lane = &mut lanes[1];
        // One of IPv6 is not, before it was asked for.
        socket.send_to(b"x", (known, 9)).unwrap();
        take(lane, 1, known);
        passed.lock().unwrap().clear();
        for (dst, len, n) in [
            (known, 10, 1),
            (known, 3000, 3),
            (unknown, 20, 1),
            (unknown, 3000, 3),
            (known, 30, 1),
            (group, 40, 1),
            (group, 3000, 3),
        ] {
            socket.send_to(&vec![7; len], (dst, 9)).unwrap();
            let passages = { std::mem::take(&mut *passed.lock().unwrap()) };
            let each = SLOTS.map(|slot| Passage { slot, input: None, output: Some(1) });
            assert_eq!(passages, each.repeat(n), "{len} bytes to {dst}");
        }
        take(lane, 13, unknown);
        // Several in one call, and those that never leave.
        let to = Some(SocketAddr::from((known, 9)));
        assert_eq!(socket.send_batch(&[(&b"x"[..], to); 5]).unwrap(), 5);
        take(lane, 5, known);
        socket.send_to(b"x", socket.local_addr().unwrap()).unwrap();
        assert_eq!(socket.recv(&mut [0; 9]).unwrap(), 1);
        let slots: Vec<_> = passed.lock().unwrap().drain(..).map(|passage| passage.slot).collect();
        assert_eq!(slots, SLOTS.map(|slot| [slot; 5]).concat());
    }
    assert_eq!(world.view.drops(), []);
    world.end(lanes);
}

#[test]
fn what_a_slot_drops_counts_for_the_device_it_would_have_left_by() {
    for slot in SLOTS {
        let (world, mut lanes) = two_devices();
        let seen = Arc::new(AtomicUsize::new(0));
        let n = seen.clone();
        hook(&world, &[slot], move |_, _| !n.fetch_add(1, Ordering::Relaxed).is_multiple_of(3));
        let unknown = Ipv4Addr::new(10, 1, 0, 77);
        for own in [IpAddr::from(own(1)), own6(1).into()] {
            let socket = UdpSocket::bind(&world.handle(), (own, 0)).unwrap();
            let dsts = if own.is_ipv4() { [host(1).into(), unknown.into()] } else { [host6(1).into(); 2] };
            let before = seen.load(Ordering::Relaxed);
            for (dst, len) in dsts.into_iter().flat_map(|dst: IpAddr| [(dst, 10), (dst, 3000), (dst, 20)]) {
                assert_eq!(socket.send_to(&vec![7; len], (dst, 9)).unwrap(), len);
            }
            let all = before..seen.load(Ordering::Relaxed);
            assert_eq!(all.len(), 10);
            take(&mut lanes[1], all.filter(|n| n % 3 != 0).count(), dsts[1]);
        }
        let drops = world.view.drops();
        let rows: Vec<_> = drops.iter().map(|row| (&*row.dev, &*row.reason, row.packets)).collect();
        assert_eq!(rows, [("mem1", "tc_egress", 7)], "{slot:?}");
        world.end(lanes);
    }
}

/// As source NAT does.
#[test]
fn a_source_that_postrouting_rewrites_is_on_the_wire() {
    let (world, mut lanes) = two_devices();
    let other = Ipv4Addr::new(10, 1, 0, 50);
    hook(&world, &[Slot::Postrouting], move |_, skb| {
        let packet = &mut skb.data_mut()[14..];
        let (ip, udp) = packet.split_at_mut(20);
        let mut ip = Ipv4Header::new_mut(ip).unwrap();
        ip.set_src(other.to_bits());
        ip.renew_check();
        udp[6..8].fill(0);
        let pseudo = checksum::pseudo_header_sum(ip.src(), ip.dst(), 17, udp.len() as u16);
        let check = !checksum::add(pseudo, checksum::sum(udp));
        udp[6..8].copy_from_slice(&check.to_be_bytes());
        skb.head_mut().hash = 0;
        true
    });
    let socket = UdpSocket::bind(&world.handle(), (own(1), 7)).unwrap();
    let unknown = Ipv4Addr::new(10, 1, 0, 77);
    for dst in [host(1), unknown] {
        socket.send_to(b"hello", (dst, 9)).unwrap();
        let mut got = None;
        until("a datagram", || {
            let mut answer = None;
            lanes[1].receive(|frame| {
                answer = arp_answer(1, unknown, frame);
                got = got.take().or(sent(frame));
            });
            lanes[1].send(answer.as_slice());
            got.is_some()
        });
        let (from, to, payload) = got.unwrap();
        assert_eq!((*from.ip(), from.port(), *to.ip(), &payload[..]), (other, 7, dst, &b"hello"[..]));
    }
    drop(socket);
    world.end(lanes);
}

/// A sender that is held back has its datagrams still, and these have been nowhere.
#[test]
fn what_is_held_back_has_passed_no_slot() {
    const BURST: usize = 8;
    let gate = Gate::default();
    let (world, stack, mut lane) = start("pfifo limit 1000", BURST as u32, &gate);
    let passed = Arc::new(AtomicUsize::new(0));
    let n = passed.clone();
    hook(&world, &[Slot::Output], move |_, _| {
        n.fetch_add(1, Ordering::Relaxed);
        true
    });
    let socket = UdpSocket::bind(&stack.handle(), (own(0), 7)).unwrap();
    socket.connect((host(0), 9)).unwrap();
    socket.set_nonblocking(true).unwrap();
    std::thread::scope(|scope| {
        let shut = gate.shut(scope, stack.sender("mem0").unwrap());
        for len in [10, 3000] {
            let taken = (0..).take_while(|_| socket.send(&vec![7; len]).is_ok()).count();
            let expected = if len == 10 { BURST } else { 0 };
            assert_eq!((taken, passed.load(Ordering::Relaxed)), (expected, BURST));
            assert_eq!(socket.send(&vec![7; len]).unwrap_err().kind(), ErrorKind::WouldBlock);
        }
        drop(shut);
        until("it may send again", || socket.readiness().writable);
        socket.send(b"x").unwrap();
    });
    until("all are sent", || {
        lane.receive(|_| ());
        let stats = world.view.stats();
        stats.transmitted == stats.originated
    });
    assert_eq!((passed.load(Ordering::Relaxed), world.view.drops()), (BURST + 1, vec![]));
    drop((socket, stack));
    world.end(vec![lane]);
}

/// A hook that makes a copy of the first packet that it sees.
struct CopiesOnce(AtomicUsize);

impl Hook for CopiesOnce {
    fn run(&self, cx: &mut HookContext<'_>, _: Passage, batch: &mut Batch) {
        if self.0.fetch_add(1, Ordering::Relaxed) == 0 {
            let copy = cx.ctx.copy(&batch.as_slice()[0]).unwrap();
            cx.emit(copy);
        }
    }
}

/// What a hook makes of a socket's packets leaves by the slow path, through the slots.
#[test]
fn what_a_hook_makes_of_a_sockets_packets_is_sent() {
    for slot in SLOTS {
        let (world, mut lanes) = two_devices();
        let hook = Arc::new(CopiesOnce(AtomicUsize::new(0)));
        world.shared.control().replace_tables(&*world.shared, |tables| {
            tables.hooks.set(slot, Some(hook.clone()));
        });
        let socket = UdpSocket::bind(&world.handle(), (own(1), 0)).unwrap();
        socket.send_to(b"x", (host(1), 9)).unwrap();
        take(&mut lanes[1], 2, host(1).into());
        assert_eq!(hook.0.load(Ordering::Relaxed), 2);
        assert_eq!(world.view.drops(), []);
        drop(socket);
        world.end(lanes);
    }
}

/// A hook that fills the queue itself, on the way of a socket that does not block.
#[test]
fn what_has_passed_a_slot_is_taken_although_the_queue_is_full() {
    const BURST: u32 = 4;
    let gate = Gate::default();
    let (world, stack, mut lane) = start("pfifo limit 1000", BURST, &gate);
    let filler = Arc::new(Mutex::new(Some(stack.sender("mem0").unwrap())));
    let fill = filler.clone();
    hook(&world, &[Slot::Output], move |_, _| {
        let mut sender = fill.lock().unwrap();
        while let Some(sender) = &mut *sender {
            let mut batch = batch_of(sender.ctx(), &numbered(0, host(0), 3, 0), 1);
            if sender.try_send(&mut batch).is_err() {
                sender.ctx().free_skbs(&mut batch, |_| {});
                break;
            }
        }
        true
    });
    let socket = UdpSocket::bind(&stack.handle(), (own(0), 7)).unwrap();
    socket.connect((host(0), 9)).unwrap();
    socket.set_nonblocking(true).unwrap();
    let done = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let shut = gate.shut(scope, stack.sender("mem0").unwrap());
        let send = scope.spawn(|| {
            let sent = [socket.send(b"x"), socket.send(b"x")];
            done.store(1, Ordering::Release);
            sent.map(|sent| sent.map_err(|error| error.kind()))
        });
        until("the sender is not blocked", || done.load(Ordering::Acquire) == 1);
        assert_eq!(send.join().unwrap(), [Ok(1), Err(ErrorKind::WouldBlock)]);
        filler.lock().unwrap().take();
        drop(shut);
    });
    until("all are sent", || {
        lane.receive(|_| ());
        let stats = world.view.stats();
        stats.transmitted == stats.originated
    });
    drop((socket, stack));
    world.end(vec![lane]);
}
