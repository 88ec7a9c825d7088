//! End to end, over veth pairs in namespaces of the test's own: the kernel at one end, an `xdp` device at the other.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use softnet_core::skb::{Batch, CacheSizes, DropReason, Region, Skb};

use super::*;
use crate::device::Doorbell;
use crate::memfd::MemfdMemory;
use crate::netns::NetNs;
use crate::testing::net_allowed;

const FRAMES: u32 = 16384;

/// Softnet's side and the kernel's, and softnet's memory.
struct World {
    here: NetNs,
    there: NetNs,
    umem: Arc<Umem>,
}

/// Softnet's address on pair `i`, the address of the kernel at the other end, and that of the kernel on this.
fn softnet(i: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 9, i, 1)
}
fn peer(i: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 9, i, 2)
}
fn kernel(i: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 9, i, 3)
}

fn udp(from: Ipv4Addr) -> UdpSocket {
    let socket = UdpSocket::bind((from, 0)).unwrap();
    socket.set_nonblocking(true).unwrap();
    socket
}

impl World {
    fn new() -> Option<Self> {
        net_allowed().then(|| Self::with_frames(FRAMES))
    }

    fn with_frames(frames: u32) -> Self {
        let memory = MemfdMemory::new(Region::bytes(frames, frames)).unwrap();
        let region = Region::new(Box::new(memory), frames, frames).unwrap();
        let (here, there) = (NetNs::new().unwrap(), NetNs::new().unwrap());
        for ns in [&here, &there] {
            ns.run(|| {
                // Link-local addresses are good at once.
                for knob in ["all", "default"] {
                    std::fs::write(format!("/proc/sys/net/ipv6/conf/{knob}/accept_dad"), "0").unwrap();
                }
            })
            .unwrap();
        }
        World { here, there, umem: Umem::new(region).unwrap() }
    }

    fn ctx(&self) -> SoftnetData {
        SoftnetData::new(self.umem.region().clone(), CacheSizes::default())
    }

    /// Makes pair `i`: `s<i>` here, `k<i>` there with an address.
    fn add_pair(&self, i: u8, queues: u32) {
        let (name, other) = (format!("s{i}"), format!("k{i}"));
        self.here
            .run(|| {
                let mut netlink = Netlink::new().unwrap();
                netlink.add_veth(&name, &other, (queues, queues), Some(&self.there)).unwrap();
                netlink.set_up(&name).unwrap();
            })
            .unwrap();
        self.there
            .run(|| {
                let mut netlink = Netlink::new().unwrap();
                netlink.add_address(&other, peer(i), 24).unwrap();
                netlink.set_up(&other).unwrap();
            })
            .unwrap();
    }

    fn delete_pair(&self, i: u8) {
        self.here.run(|| Netlink::new().unwrap().delete_link(&format!("s{i}")).unwrap()).unwrap();
    }

    fn config(&self, i: u8) -> XdpConfig {
        XdpConfig {
            ring: 256,
            claim: Claim { addresses: vec![softnet(i)] },
            ..XdpConfig::new(format!("s{i}"))
        }
    }

    fn open(&self, cfg: &XdpConfig, ctx: &mut SoftnetData) -> Result<(OpenDevice, Claims), XdpError> {
        let number = cfg.interface[1..].parse().unwrap();
        // The caller's thread stays where it is; a context belongs to whoever has it.
        self.here.run(|| open_with_claims(cfg, &self.umem, number, ctx)).unwrap()
    }

    fn peer_socket(&self, i: u8) -> UdpSocket {
        self.there.run(|| udp(peer(i))).unwrap()
    }

    /// All frames and heads are where they started.
    fn assert_whole(&self, ctx: &mut SoftnetData) {
        ctx.drain();
        let region = self.umem.region();
        assert_eq!(region.frames_free(), u64::from(region.frame_count()), "frames");
        assert_eq!(region.heads_free(), u64::from(region.head_count()), "heads");
    }
}

fn close(device: OpenDevice, ctx: &mut SoftnetData) {
    device.rx.into_iter().for_each(|half| half.close(ctx));
    device.tx.into_iter().for_each(|half| half.close(ctx));
}

/// Runs `step` until it says that it is done.
fn until(what: &str, mut step: impl FnMut() -> bool) {
    let give_up = Instant::now() + Duration::from_secs(10);
    while !step() {
        assert!(Instant::now() < give_up, "{what}: nothing came of it");
        std::thread::yield_now();
    }
}

/// Makes of an ARP request the reply, and of a UDP packet its echo. False if it is neither.
fn answer(skb: &mut Skb, mac: [u8; 6], address: Ipv4Addr) -> bool {
    let data = skb.data_mut();
    let swap = |data: &mut [u8], a: usize, b: usize, n: usize| {
        for k in 0..n {
            data.swap(a + k, b + k);
        }
    };
    match (data[12], data[13]) {
        (0x08, 0x06) if data[21] == 1 => {
            data[21] = 2;
            swap(data, 22, 32, 10);
            data[22..28].copy_from_slice(&mac);
            data[28..32].copy_from_slice(&address.octets());
            data.copy_within(6..12, 0);
            data[6..12].copy_from_slice(&mac);
            true
        }
        (0x08, 0x00) if data[23] == 17 => {
            swap(data, 0, 6, 6);
            swap(data, 26, 30, 4);
            swap(data, 34, 36, 2);
            // Without checksum: what a veth peer leaves in the field is only the pseudo-header's sum.
            data[40..42].fill(0);
            true
        }
        _ => false,
    }
}

/// One round of answering on every queue. Returns packets per queue.
fn serve(device: &mut OpenDevice, ctx: &mut SoftnetData, address: Ipv4Addr) -> Vec<usize> {
    let mac = device.device.info().mac;
    let mut counts = vec![];
    for (queue, (rx, tx)) in device.rx.iter_mut().zip(&mut device.tx).enumerate() {
        let mut batch = Batch::new();
        counts.push(rx.rx_burst(ctx, &mut batch, 64));
        let mut out = Batch::new();
        for mut skb in batch.drain() {
            assert_eq!(usize::from(skb.head().queue), queue);
            assert_eq!(usize::from(skb.head().dev), device.device.info().name[1..].parse::<usize>().unwrap());
            if answer(&mut skb, mac, address) {
                assert!(out.push(skb).is_ok());
            } else {
                ctx.free(skb, DropReason::UnhandledProto);
            }
        }
        let n = out.len();
        assert_eq!(tx.tx_burst(ctx, &mut out), n);
        if n > 0 {
            tx.kick(ctx);
        }
        tx.reap(ctx);
    }
    counts
}

/// Every socket sends to `to` and gets its own payload back. Returns packets per queue.
fn echo(device: &mut OpenDevice, ctx: &mut SoftnetData, sockets: &[UdpSocket], to: Ipv4Addr) -> Vec<usize> {
    let mut counts = vec![0; device.rx.len()];
    for (i, socket) in sockets.iter().enumerate() {
        let payload = format!("payload number {i}");
        socket.send_to(payload.as_bytes(), (to, 7)).unwrap();
        let mut buffer = [0; 64];
        until("echo", || {
            let served = serve(device, ctx, to);
            counts.iter_mut().zip(served).for_each(|(sum, n)| *sum += n);
            match socket.recv_from(&mut buffer) {
                Ok((n, from)) => {
                    assert_eq!((&buffer[..n], from), (payload.as_bytes(), SocketAddr::from((to, 7))));
                    true
                }
                Err(_) => false,
            }
        });
    }
    counts
}

fn echo_in_mode(mode: Mode) -> Option<(DeviceInfo, Vec<usize>)> {
    let world = World::new()?;
    let mut ctx = world.ctx();
    world.add_pair(0, 2);
    let cfg = XdpConfig { mode, ..world.config(0) };
    let (mut device, _claims) = world.open(&cfg, &mut ctx).unwrap();
    assert_eq!((device.rx.len(), device.tx.len()), (2, 2));
    let sockets: Vec<_> = (0..32).map(|_| world.peer_socket(0)).collect();
    let counts = echo(&mut device, &mut ctx, &sockets, softnet(0));
    let info = device.device.info().clone();
    let received: u64 = device.rx.iter().map(|rx| rx.stats().packets.get()).sum();
    let sent: u64 = device.tx.iter().map(|tx| tx.stats().packets.get()).sum();
    assert_eq!(received, counts.iter().sum::<usize>() as u64);
    assert_eq!(sent + ctx.stats().dropped(), received);
    assert_eq!(device.tx[0].held(), 0, "veth completes within the call");
    assert_eq!(device.device.link(), LinkState::Up);
    assert_eq!(device.rx[0].stats().ring_drops.get(), 0);
    close(device, &mut ctx);
    assert!(world.umem.reclaimed() > 0);
    world.assert_whole(&mut ctx);
    Some((info, counts))
}

#[test]
fn native_mode_echoes_on_every_queue() {
    let Some((info, counts)) = echo_in_mode(Mode::Auto) else { return };
    assert_eq!((info.mode.as_str(), info.driver), ("native", "xdp"));
    assert!(info.features.partial_csum && !info.features.zero_copy);
    assert!(counts.iter().all(|n| *n > 0), "a queue without packets: {counts:?}");
}

#[test]
fn skb_mode_echoes() {
    let Some((info, counts)) = echo_in_mode(Mode::Skb) else { return };
    assert!(info.mode.starts_with("skb mode: as configured"), "{}", info.mode);
    assert!(counts[0] > 0, "{counts:?}");
}

#[test]
fn a_refused_native_mode_says_why_and_falls_back() {
    let Some(world) = World::new() else { return };
    let mut ctx = world.ctx();
    // A veth with fewer RX queues than its peer has TX queues can't do native XDP.
    world
        .here
        .run(|| {
            let mut netlink = Netlink::new().unwrap();
            netlink.add_veth("s0", "k0", (1, 2), Some(&world.there)).unwrap();
            netlink.set_up("s0").unwrap();
        })
        .unwrap();
    world
        .there
        .run(|| {
            let mut netlink = Netlink::new().unwrap();
            netlink.add_address("k0", peer(0), 24).unwrap();
            netlink.set_up("k0").unwrap();
        })
        .unwrap();
    let native = XdpConfig { mode: Mode::Native, ..world.config(0) };
    let error = world.open(&native, &mut ctx).err().unwrap().to_string();
    assert!(error.contains("s0") && error.contains("Native"), "{error}");
    let (mut device, _claims) = world.open(&world.config(0), &mut ctx).unwrap();
    let mode = &device.device.info().mode;
    assert!(mode.starts_with("skb mode: native refused: No space left on device"), "{mode}");
    assert!(mode.contains("as many RX queues"), "{mode}");
    echo(&mut device, &mut ctx, &[world.peer_socket(0)], softnet(0));
    close(device, &mut ctx);
    world.assert_whole(&mut ctx);
}

#[test]
fn what_is_not_softnets_reaches_the_kernel() {
    let Some(world) = World::new() else { return };
    for mode in [Mode::Native, Mode::Skb] {
        let mut ctx = world.ctx();
        world.add_pair(0, 2);
        let (v4, v6, index) = world
            .here
            .run(|| {
                Netlink::new().unwrap().add_address("s0", kernel(0), 24).unwrap();
                let v6 = UdpSocket::bind("[::]:0").unwrap();
                v6.set_nonblocking(true).unwrap();
                (udp(kernel(0)), v6, Netlink::new().unwrap().link("s0").unwrap().unwrap())
            })
            .unwrap();
        let [a, b, c, d, e, f] = index.mac;
        let local =
            std::net::Ipv6Addr::from([0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xff, 0xfe, d, e, f]);
        let scope = world.there.run(|| Netlink::new().unwrap().link("k0").unwrap().unwrap().index).unwrap();

        let cfg = XdpConfig { mode, ..world.config(0) };
        let (mut device, _claims) = world.open(&cfg, &mut ctx).unwrap();
        let sender = world.peer_socket(0);
        let sender6 = world.there.run(|| UdpSocket::bind("[::]:0").unwrap()).unwrap();
        let mut buffer = [0; 64];
        let to6 = std::net::SocketAddrV6::new(local, v6.local_addr().unwrap().port(), 0, scope);
        let mut from_kernel = |socket: &UdpSocket, send: &dyn Fn() -> bool| {
            until("to the kernel", || {
                // Link-local addresses and routes take a moment to appear.
                let sent = send();
                serve(&mut device, &mut ctx, softnet(0));
                sent && socket.recv_from(&mut buffer).is_ok()
            });
        };
        from_kernel(&v4, &|| sender.send_to(b"4", v4.local_addr().unwrap()).is_ok());
        from_kernel(&v6, &|| sender6.send_to(b"6", to6).is_ok());
        // Both got by; nothing of it came to softnet.
        assert_eq!(device.rx.iter().map(|rx| rx.stats().packets.get()).sum::<u64>(), 0);
        // And softnet's own address still answers, ARP included.
        echo(&mut device, &mut ctx, &[sender], softnet(0));
        close(device, &mut ctx);
        world.assert_whole(&mut ctx);
        world.delete_pair(0);
    }
}

#[test]
fn claims_change_while_the_device_is_open() {
    let Some(world) = World::new() else { return };
    let mut ctx = world.ctx();
    world.add_pair(0, 1);
    world.here.run(|| Netlink::new().unwrap().add_address("s0", kernel(0), 24).unwrap()).unwrap();
    let (mut device, claims) = world.open(&world.config(0), &mut ctx).unwrap();
    let socket = world.peer_socket(0);
    echo(&mut device, &mut ctx, std::slice::from_ref(&socket), softnet(0));
    // An address that both have is softnet's.
    claims.replace(&Claim { addresses: vec![kernel(0)] }).unwrap();
    echo(&mut device, &mut ctx, std::slice::from_ref(&socket), kernel(0));
    close(device, &mut ctx);
    claims.replace(&Claim::default()).unwrap();
    world.assert_whole(&mut ctx);
}

#[test]
fn a_device_can_be_opened_again_at_once() {
    let Some(world) = World::new() else { return };
    let mut ctx = world.ctx();
    world.add_pair(0, 2);
    let sockets: Vec<_> = (0..4).map(|_| world.peer_socket(0)).collect();
    for mode in [Mode::Native, Mode::Native, Mode::Skb, Mode::Native] {
        let cfg = XdpConfig { mode, ..world.config(0) };
        let (mut device, _claims) = world.open(&cfg, &mut ctx).unwrap();
        echo(&mut device, &mut ctx, &sockets, softnet(0));
        close(device, &mut ctx);
        world.assert_whole(&mut ctx);
    }
}

#[test]
fn interfaces_vanish_and_return_in_any_order() {
    let Some(world) = World::new() else { return };
    let mut ctx = world.ctx();
    let mut devices = vec![];
    for i in 0..3 {
        world.add_pair(i, 1);
        devices.push(Some(world.open(&world.config(i), &mut ctx).unwrap().0));
    }
    let all = [0u8, 1, 2];
    // The one that registered the memory, the last, the middle one, two, all.
    for gone in [&[0u8][..], &[2], &[1], &[0, 1], &[2, 0], &all, &all] {
        for &i in gone {
            world.delete_pair(i);
        }
        for &i in gone {
            let mut device = devices[usize::from(i)].take().unwrap();
            assert_eq!(device.device.link(), LinkState::Gone);
            // What is sent into nothing is dropped for a reason, and nothing waits.
            let mut batch = Batch::new();
            batch.push(packet(&mut ctx, i)).unwrap();
            device.tx[0].tx_burst(&mut ctx, &mut batch);
            device.tx[0].kick(&mut ctx);
            batch.push(packet(&mut ctx, i)).unwrap();
            assert_eq!(device.tx[0].tx_burst(&mut ctx, &mut batch), 1);
            assert!(batch.is_empty() && !device.rx[0].doorbell().pending());
            close(device, &mut ctx);
        }
        for i in all.iter().filter(|i| !gone.contains(i)) {
            let device = devices[usize::from(*i)].as_mut().unwrap();
            echo(device, &mut ctx, &[world.peer_socket(*i)], softnet(*i));
        }
        // They return in the order they went.
        for &i in gone {
            world.add_pair(i, 1);
            devices[usize::from(i)] = Some(world.open(&world.config(i), &mut ctx).unwrap().0);
        }
        for i in all {
            let device = devices[usize::from(i)].as_mut().unwrap();
            assert_eq!(device.device.link(), LinkState::Up);
            echo(device, &mut ctx, &[world.peer_socket(i)], softnet(i));
        }
    }
    assert!(ctx.stats().dropped() >= 13);
    devices.into_iter().flatten().for_each(|device| close(device, &mut ctx));
    world.assert_whole(&mut ctx);
}

/// A packet to send by device `i`, to whom does not matter.
fn packet(ctx: &mut SoftnetData, i: u8) -> Skb {
    let mut skb = ctx.alloc_skb().unwrap();
    skb.put(60).unwrap().fill(0);
    skb.head_mut().dev = u16::from(i);
    skb
}

#[test]
fn an_interface_that_is_down_drops_and_recovers() {
    let Some(world) = World::new() else { return };
    let mut ctx = world.ctx();
    world.add_pair(0, 1);
    let (mut device, _claims) = world.open(&world.config(0), &mut ctx).unwrap();
    let socket = world.peer_socket(0);
    echo(&mut device, &mut ctx, std::slice::from_ref(&socket), softnet(0));
    world.here.run(|| Netlink::new().unwrap().set_down("s0").unwrap()).unwrap();
    assert_eq!(device.device.link(), LinkState::Down);
    let mut batch = Batch::new();
    for _ in 0..3 {
        batch.push(packet(&mut ctx, 0)).unwrap();
        assert_eq!(device.tx[0].tx_burst(&mut ctx, &mut batch), 1);
        device.tx[0].kick(&mut ctx);
    }
    // The first was on the ring before anybody knew.
    assert_eq!(ctx.stats().drops(0, DropReason::DevReady), 2);
    assert!(!device.rx[0].doorbell().pending());
    world.here.run(|| Netlink::new().unwrap().set_up("s0").unwrap()).unwrap();
    until("link up", || device.device.link() == LinkState::Up);
    device.tx[0].kick(&mut ctx);
    echo(&mut device, &mut ctx, &[socket], softnet(0));
    close(device, &mut ctx);
    world.assert_whole(&mut ctx);
}

fn readable(doorbell: &Arc<dyn Doorbell>) -> bool {
    let fd = doorbell.fd();
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() > 0
}

#[test]
fn the_doorbell_rings_while_there_are_packets() {
    let Some(world) = World::new() else { return };
    let mut ctx = world.ctx();
    world.add_pair(0, 1);
    let (mut device, _claims) = world.open(&world.config(0), &mut ctx).unwrap();
    let socket = world.peer_socket(0);
    // ARP is settled here.
    echo(&mut device, &mut ctx, std::slice::from_ref(&socket), softnet(0));
    until("quiet", || serve(&mut device, &mut ctx, softnet(0)) == [0]);
    let doorbell = device.rx[0].doorbell();
    assert!(!doorbell.pending() && !readable(&doorbell));
    socket.send_to(b"ring", (softnet(0), 7)).unwrap();
    until("ring", || doorbell.pending());
    assert!(readable(&doorbell));
    until("answered", || serve(&mut device, &mut ctx, softnet(0)) == [1]);
    assert!(!doorbell.pending() && !readable(&doorbell));

    // It may outlive its queue, and is silent then, though packets were waiting.
    socket.send_to(b"ring", (softnet(0), 7)).unwrap();
    until("ring", || doorbell.pending());
    close(device, &mut ctx);
    assert_eq!(ctx.stats().drops(0, DropReason::Shutdown), 1);
    assert!(!doorbell.pending() && !readable(&doorbell));
    world.assert_whole(&mut ctx);
}

#[test]
fn losses_are_counted_and_a_starved_queue_does_not_sleep() {
    let Some(world) = World::new() else { return };
    let world = World { umem: World::with_frames(512).umem, ..world };
    let mut ctx = world.ctx();
    world.add_pair(0, 1);
    let cfg = XdpConfig { ring: 128, ..world.config(0) };
    let (mut device, _claims) = world.open(&cfg, &mut ctx).unwrap();
    let socket = world.peer_socket(0);
    echo(&mut device, &mut ctx, std::slice::from_ref(&socket), softnet(0));
    let before = device.rx[0].stats().packets.get();

    // Somebody else has all the frames.
    let mut hoard = vec![];
    while let Some(frame) = ctx.alloc_frame() {
        hoard.push(frame);
    }
    const SENT: u64 = 300;
    for _ in 0..SENT {
        socket.send_to(b"x", (softnet(0), 7)).unwrap();
    }
    let mut batch = Batch::new();
    let mut held = vec![];
    until("the posted frames", || {
        device.rx[0].rx_burst(&mut ctx, &mut batch, 64);
        held.extend(batch.drain());
        device.device.link();
        let stats = device.rx[0].stats();
        stats.packets.get() - before + stats.ring_drops.get() == SENT
    });
    assert_eq!(device.rx[0].held(), 0);
    assert!(device.rx[0].stats().ring_drops.get() >= SENT - 128);
    assert!(device.rx[0].doorbell().pending(), "would sleep for ever");
    hoard.into_iter().for_each(|frame| ctx.free_frame(frame));
    held.into_iter().for_each(|skb| ctx.deliver(skb));
    device.rx[0].rx_burst(&mut ctx, &mut batch, 64);
    assert!(!device.rx[0].doorbell().pending());
    echo(&mut device, &mut ctx, &[socket], softnet(0));
    close(device, &mut ctx);
    world.assert_whole(&mut ctx);
}

#[test]
fn frames_move_between_devices_without_a_copy() {
    let Some(world) = World::new() else { return };
    let mut ctx = world.ctx();
    let mut devices: Vec<_> = (0..2)
        .map(|i| {
            world.add_pair(i, 1);
            world.open(&world.config(i), &mut ctx).unwrap().0
        })
        .collect();
    let sockets = [world.peer_socket(0), world.peer_socket(1)];
    for i in 0..2u8 {
        echo(&mut devices[usize::from(i)], &mut ctx, &sockets[usize::from(i)..][..1], softnet(i));
    }
    let (mac, to) = world
        .there
        .run(|| (Netlink::new().unwrap().link("k1").unwrap().unwrap().mac, sockets[1].local_addr().unwrap()))
        .unwrap();
    let held: Vec<_> = devices.iter().map(|device| device.rx[0].held()).collect();
    // More than a ring holds, so that frames go round.
    for number in 0..600u32 {
        sockets[0].send_to(&number.to_be_bytes(), (softnet(0), to.port())).unwrap();
        let mut batch = Batch::new();
        until("a packet", || devices[0].rx[0].rx_burst(&mut ctx, &mut batch, 64) > 0);
        for skb in batch.as_mut_slice() {
            let data = skb.data_mut();
            data[..6].copy_from_slice(&mac);
            data[26..30].copy_from_slice(&softnet(1).octets());
            data[30..34].copy_from_slice(&peer(1).octets());
            // 10.9.0.2 to 10.9.0.1 became 10.9.1.1 to 10.9.1.2.
            let sum = u16::from_be_bytes([data[24], data[25]]);
            let sum =
                (0..2).fold(sum, |sum, _| sum.checked_sub(0x100).unwrap_or_else(|| sum.wrapping_sub(0x101)));
            data[24..26].copy_from_slice(&sum.to_be_bytes());
            data[40..42].fill(0);
        }
        let out = &mut devices[1].tx[0];
        assert_eq!(out.tx_burst(&mut ctx, &mut batch), 1);
        out.kick(&mut ctx);
        out.reap(&mut ctx);
        let mut buffer = [0; 8];
        until("the packet", || match sockets[1].recv_from(&mut buffer) {
            Ok((n, _)) => {
                assert_eq!(buffer[..n], number.to_be_bytes());
                true
            }
            Err(_) => false,
        });
    }
    assert_eq!(devices[1].tx[0].held(), 0);
    assert!(devices[0].rx[0].held() + 64 > held[0]);
    devices.into_iter().for_each(|device| close(device, &mut ctx));
    world.assert_whole(&mut ctx);
}

#[test]
fn what_cannot_be_sent_is_dropped_for_a_reason() {
    let Some(world) = World::new() else { return };
    let mut ctx = world.ctx();
    world.add_pair(0, 1);
    let (mut device, _claims) = world.open(&world.config(0), &mut ctx).unwrap();
    let stranger = World::with_frames(64);
    let mut foreign = stranger.ctx();
    let mut batch = Batch::new();
    batch.push(ctx.alloc_skb().unwrap()).unwrap();
    batch.push(packet(&mut foreign, 0)).unwrap();
    assert_eq!(device.tx[0].tx_burst(&mut ctx, &mut batch), 2);
    assert_eq!(ctx.stats().drops(0, DropReason::PktTooSmall), 1);
    assert_eq!(ctx.stats().drops(0, DropReason::NoFrame), 1);
    // A full ring takes no more, and what it did not take stays.
    let mut taken = 0;
    loop {
        while batch.room() > 0 {
            batch.push(packet(&mut ctx, 0)).unwrap();
        }
        let n = device.tx[0].tx_burst(&mut ctx, &mut batch);
        taken += n;
        if n == 0 {
            break;
        }
    }
    assert_eq!((taken, batch.len(), device.tx[0].held()), (256, 64, 256));
    device.tx[0].kick(&mut ctx);
    assert_eq!(device.tx[0].reap(&mut ctx), 256);
    assert!(device.tx[0].stats().kicks.get() >= 1);
    for skb in batch.drain() {
        ctx.free(skb, DropReason::FullRing);
    }
    close(device, &mut ctx);
    world.assert_whole(&mut ctx);
    stranger.assert_whole(&mut foreign);
}

#[test]
fn refusals_say_what_is_wrong_and_leave_nothing_behind() {
    let Some(world) = World::new() else { return };
    let mut ctx = world.ctx();
    world.add_pair(0, 1);
    let good = world.config(0);
    let refused = |cfg: &XdpConfig, ctx: &mut SoftnetData| world.open(cfg, ctx).err().unwrap();

    let error = refused(&XdpConfig { interface: "s7".into(), ..good.clone() }, &mut ctx).to_string();
    assert!(error.contains("no interface s7") && error.contains("lo, s0"), "{error}");
    for ring in [0, 64, 1000, 1 << 20] {
        let error = refused(&XdpConfig { ring, ..good.clone() }, &mut ctx);
        assert!(matches!(error, XdpError::RingSize(r) if r == ring), "{error}");
    }
    world.here.run(|| Netlink::new().unwrap().set_mtu("s0", MAX_MTU + 1).unwrap()).unwrap();
    let error = refused(&good, &mut ctx).to_string();
    assert!(error.contains("MTU of 1779") && error.contains("mtu 1778"), "{error}");
    world.here.run(|| Netlink::new().unwrap().set_mtu("s0", MAX_MTU).unwrap()).unwrap();

    world
        .here
        .run(|| {
            let mut netlink = Netlink::new().unwrap();
            netlink.add_address("s0", kernel(0), 24).unwrap();
            netlink.add_route(Ipv4Addr::UNSPECIFIED, 0, peer(0)).unwrap();
        })
        .unwrap();
    let error = refused(&good, &mut ctx).to_string();
    assert!(error.contains("default route") && error.contains("--force"), "{error}");
    let good = XdpConfig { force: true, ..good };

    let poor = World::with_frames(48);
    let error = refused(&good, &mut poor.ctx());
    assert!(matches!(error, XdpError::Region { .. }), "{error}");
    let mut poor_ctx = poor.ctx();
    let poor = World { here: world.here.try_clone().unwrap(), ..poor };
    let error = poor.open(&good, &mut poor_ctx).err().unwrap();
    assert!(matches!(error, XdpError::NoFrames { posted: 48, .. }), "{error}");
    poor.assert_whole(&mut poor_ctx);

    let (device, _claims) = world.open(&good, &mut ctx).unwrap();
    let error = refused(&good, &mut ctx);
    assert!(matches!(error, XdpError::Occupied { .. }), "{error}");
    close(device, &mut ctx);
    world.assert_whole(&mut ctx);
}
