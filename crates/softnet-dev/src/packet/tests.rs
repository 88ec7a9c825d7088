//! End to end, over a veth pair: a packet socket of the kernel's at one end, the device at the
//! other.

use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::thread::CapabilitySet;
use softnet_core::SoftnetData;
use softnet_core::gso;
use softnet_core::skb::{Batch, CacheSizes, Csum, DropReason, GsoType, HeapMemory, Region, Skb};

use super::*;
use crate::device::{LinkState, OpenDevice};
use crate::ethtool::Ethtool;
use crate::netlink::{Netlink, Offload, set_offload};
use crate::netns::NetNs;
use crate::testing::{assert_whole, close, rings};
use softnet_testkit::net_allowed;

const FRAMES: u32 = 1024;

struct World {
    here: NetNs,
    there: NetNs,
    ctx: SoftnetData,
    /// The other end of the wire.
    peer: PacketSocket,
    macs: [[u8; 6]; 2],
}

impl World {
    fn new(mtu: u32) -> Option<Self> {
        if !net_allowed() {
            return None;
        }
        let memory = HeapMemory::new(Region::bytes(FRAMES, FRAMES));
        let region = Region::new(Box::new(memory), FRAMES, FRAMES).unwrap();
        let ctx = SoftnetData::new(region, CacheSizes::default());
        let (here, there) = (NetNs::new().unwrap(), NetNs::new().unwrap());
        // The kernel is to say nothing of its own.
        for ns in [&here, &there] {
            ns.run(|| std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1").unwrap()).unwrap();
        }
        let up = |name: &str| {
            let mut netlink = Netlink::new().unwrap();
            netlink.set_mtu(name, mtu).unwrap();
            netlink.set_up(name).unwrap();
            netlink.existing_link(name).unwrap()
        };
        let ours = here
            .run(|| {
                Netlink::new().unwrap().add_veth("s0", "k0", (1, 1), Some(&there)).unwrap();
                up("s0")
            })
            .unwrap();
        let (theirs, peer) = there
            .run(|| {
                let link = up("k0");
                Netlink::new().unwrap().wait_running("k0").unwrap();
                let peer = PacketSocket::open(link.index, &[]).unwrap();
                (link, peer)
            })
            .unwrap();
        here.run(|| Netlink::new().unwrap().wait_running("s0").unwrap()).unwrap();
        Some(World { here, there, ctx, peer, macs: [ours.mac, theirs.mac] })
    }

    fn try_open(&mut self, config: &PacketConfig) -> Result<OpenDevice, PacketError> {
        self.here.run(|| open(config, 5)).unwrap()
    }

    fn open(&mut self, config: &PacketConfig) -> OpenDevice {
        self.try_open(config).unwrap_or_else(|error| panic!("{error}"))
    }

    /// A frame from `from` to `to`, with `n` bytes behind its type.
    fn frame(&self, to: [u8; 6], from: [u8; 6], ethertype: u16, n: usize) -> Vec<u8> {
        let payload = (0..n).map(|i| ((i * 7) ^ (i >> 8)) as u8);
        to.into_iter().chain(from).chain(ethertype.to_be_bytes()).chain(payload).collect()
    }

    fn end(mut self) {
        let region = self.ctx.region().clone();
        assert_whole(&mut self.ctx, &region);
    }
}

fn bytes(skb: &Skb) -> Vec<u8> {
    skb.frames().flatten().copied().collect()
}

/// The next `n` packets, of all queues, each with its queue.
fn receive(open: &mut OpenDevice, ctx: &mut SoftnetData, n: usize) -> Vec<(u16, Vec<u8>)> {
    let give_up = Instant::now() + Duration::from_secs(10);
    let mut got = Vec::new();
    while got.len() < n {
        assert!(Instant::now() < give_up, "{} of {n} packets came", got.len());
        for rx in &mut open.rx {
            let mut batch = Batch::new();
            rx.rx_burst(ctx, &mut batch, 64);
            for skb in batch.drain() {
                assert_eq!(skb.head().dev, 5);
                got.push((skb.head().queue, bytes(&skb)));
                ctx.free_skb(skb);
            }
        }
    }
    got
}

fn send(open: &mut OpenDevice, ctx: &mut SoftnetData, frame: &[u8]) -> usize {
    let skb = crate::rx_frames::copied(ctx, [frame, &[], &[]]).unwrap();
    let mut batch = Batch::from(skb);
    let n = open.tx[0].tx_burst(ctx, &mut batch);
    assert!(!open.tx[0].kick(ctx) && batch.is_empty());
    n
}

/// What the other end gets next.
fn arrived(world: &World) -> Vec<u8> {
    let mut buffer = vec![0; 70_000];
    loop {
        if let Some(n) = world.peer.recv(&mut buffer).unwrap() {
            return buffer[..n].to_vec();
        }
        poll(&mut [PollFd::new(&world.peer, PollFlags::IN)], None).unwrap();
    }
}

#[test]
fn frames_of_all_lengths_go_both_ways() {
    for mtu in [1500, 9000] {
        let Some(mut world) = World::new(mtu) else { return };
        let [ours, theirs] = world.macs;
        let mut open = world.open(&PacketConfig::new("s0"));
        let info = open.device.info().clone();
        assert_eq!((info.driver, info.mac, u32::from(info.mtu)), ("packet", ours, mtu));
        assert_eq!(open.device.link(), LinkState::Up);
        // Enough to go round the ring.
        let all = (0..1200).map(|i| (i * 37) % (mtu as usize + 1)).chain([0, 46, mtu as usize]);
        for n in all {
            let frame = world.frame(ours, theirs, 0x88b5, n);
            world.peer.send(&frame).unwrap();
            let got = receive(&mut open, &mut world.ctx, 1);
            assert!(got[0].1 == frame, "{n}");
            let frame = world.frame(theirs, ours, 0x88b5, n);
            assert_eq!(send(&mut open, &mut world.ctx, &frame), 1);
            assert!(arrived(&world) == frame, "{n}");
        }
        // Nothing of what was sent came back.
        let mut batch = Batch::new();
        assert_eq!(open.rx[0].rx_burst(&mut world.ctx, &mut batch, 64), 0);
        assert_eq!((open.rx[0].stats().packets.get(), open.tx[0].stats().packets.get()), (1203, 1203));
        // One that is longer than the interface takes is dropped, and stops no other.
        let frame = world.frame(theirs, ours, 0x88b5, mtu as usize + 100);
        send(&mut open, &mut world.ctx, &frame);
        assert_eq!(world.ctx.stats().drops(5, DropReason::PktTooBig), 1);
        close(open, &mut world.ctx);
        world.end();
    }
}

#[test]
fn tags_are_put_back_where_they_were() {
    let Some(mut world) = World::new(1500) else { return };
    let [ours, theirs] = world.macs;
    let mut open = world.open(&PacketConfig::new("s0"));
    for tag in [&[0x81, 0x00, 0x60, 0x07][..], &[0x88, 0xa8, 0, 9], &[0x88, 0xa8, 0, 9, 0x81, 0, 0, 7]] {
        for n in [46, 1490] {
            let mut frame = world.frame(ours, theirs, 0x88b5, n);
            frame.splice(12..12, tag.iter().copied());
            world.peer.send(&frame).unwrap();
            assert!(receive(&mut open, &mut world.ctx, 1)[0].1 == frame, "{tag:x?} {n}");
        }
        let mut frame = world.frame(theirs, ours, 0x88b5, 46);
        frame.splice(12..12, tag.iter().copied());
        send(&mut open, &mut world.ctx, &frame);
        // (The kernel takes one out on its way in, and does not put it back for this socket.)
        assert_eq!(arrived(&world), [&frame[..12], &frame[16..]].concat());
    }
    close(open, &mut world.ctx);
    world.end();
}

#[test]
fn what_is_for_others_is_not_received() {
    let Some(mut world) = World::new(1500) else { return };
    let [ours, theirs] = world.macs;
    let mut open = world.open(&PacketConfig::new("s0"));
    world
        .here
        .run(|| {
            let up = std::process::Command::new("ip").args(["link", "set", "s0", "promisc", "on"]).status();
            assert!(up.unwrap().success());
        })
        .unwrap();
    let group = [1, 0, 0x5e, 1, 2, 3];
    let wanted = [ours, [0xff; 6], group].map(|to| world.frame(to, theirs, 0x88b5, 60));
    world.peer.send(&world.frame([2, 9, 9, 9, 9, 9], theirs, 0x88b5, 60)).unwrap();
    wanted.iter().for_each(|frame| world.peer.send(frame).unwrap());
    let got: Vec<_> = receive(&mut open, &mut world.ctx, 3).into_iter().map(|(_, bytes)| bytes).collect();
    assert_eq!(got, wanted);
    close(open, &mut world.ctx);
    world.end();
}

/// Each queue gets whole flows, in order, and none gets a frame twice.
#[test]
fn queues_share_the_interface_by_flow() {
    let Some(mut world) = World::new(1500) else { return };
    let [ours, theirs] = world.macs;
    let mut open = world.open(&PacketConfig { queues: 4, ..PacketConfig::new("s0") });
    assert_eq!((open.rx.len(), open.tx.len()), (4, 4));
    let (flows, rounds) = (64u16, 5u8);
    for round in 0..rounds {
        for flow in 0..flows {
            let mut frame = world.frame(ours, theirs, 0x0800, 46);
            frame[14..34]
                .copy_from_slice(&[0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 2, 10, 0, 0, 1]);
            frame[34..36].copy_from_slice(&(5000 + flow).to_be_bytes());
            frame[36..38].copy_from_slice(&[0, 7]);
            frame[50] = round;
            world.peer.send(&frame).unwrap();
        }
    }
    let got = receive(&mut open, &mut world.ctx, usize::from(flows) * usize::from(rounds));
    for flow in 0..flows {
        let of: Vec<_> = got.iter().filter(|(_, b)| b[34..36] == (5000 + flow).to_be_bytes()).collect();
        assert!(of.iter().map(|(_, bytes)| bytes[50]).eq(0..rounds), "{flow}");
        assert!(of.iter().all(|(queue, _)| *queue == of[0].0));
    }
    assert!((0..4).all(|queue| got.iter().any(|(at, _)| *at == queue)));
    let mut batch = Batch::new();
    for rx in &mut open.rx {
        assert_eq!(rx.rx_burst(&mut world.ctx, &mut batch, 64), 0);
    }
    close(open, &mut world.ctx);
    world.end();
}

#[test]
fn frames_without_memory_wait_in_the_ring_and_what_finds_no_slot_is_counted() {
    let Some(mut world) = World::new(1500) else { return };
    let [ours, theirs] = world.macs;
    let mut open = world.open(&PacketConfig { ring: 64, ..PacketConfig::new("s0") });
    let bell = open.rx[0].doorbell();
    let mut taken = Vec::new();
    while let Some(frame) = world.ctx.alloc_frame() {
        taken.push(frame);
    }
    let frames: Vec<_> = (0..100).map(|n| world.frame(ours, theirs, 0x88b5, 46 + n)).collect();
    frames.iter().for_each(|frame| world.peer.send(frame).unwrap());
    assert!(bell.pending() && rings(&*bell) && !bell.starved());
    let mut batch = Batch::new();
    assert_eq!(open.rx[0].rx_burst(&mut world.ctx, &mut batch, 64), 0);
    assert!(bell.starved() && !bell.pending() && !rings(&*bell));
    world.ctx.free_frames(taken.into_iter());
    let got = receive(&mut open, &mut world.ctx, 64);
    assert!(got.iter().map(|(_, bytes)| bytes).eq(&frames[..64]) && !bell.starved());
    assert_eq!((open.device.link(), world.ctx.stats().dropped()), (LinkState::Up, 0));
    let stats = open.rx[0].stats();
    assert_eq!((stats.packets.get(), stats.ring_drops.get()), (64, 36));
    // And asked again, nothing is counted twice.
    open.device.link();
    assert_eq!(stats.ring_drops.get(), 36);
    close(open, &mut world.ctx);
    world.end();
}

/// A socket of the peer's kernel leaves the checksum of what it sends.
#[test]
fn checksums_that_a_peer_left_are_completed_and_its_segments_counted() {
    use std::net::UdpSocket;
    let Some(mut world) = World::new(1500) else { return };
    let mut open = world.open(&PacketConfig::new("s0"));
    let socket = world
        .there
        .run(|| {
            let mut netlink = Netlink::new().unwrap();
            netlink.add_address("k0", std::net::Ipv4Addr::new(10, 7, 0, 2), 24).unwrap();
            let mac = world.macs[0].map(|byte| format!("{byte:02x}")).join(":");
            let told = std::process::Command::new("ip")
                .args(["neigh", "replace", "10.7.0.1", "lladdr", &mac, "dev", "k0"])
                .status();
            assert!(told.unwrap().success());
            let index = netlink.existing_link("k0").unwrap().index;
            assert_eq!(Ethtool::new(index).unwrap().is_on("tx-checksum-ip-generic").unwrap(), Some(true));
            UdpSocket::bind("10.7.0.2:0").unwrap()
        })
        .unwrap();
    socket.send_to(b"a checksum, please", "10.7.0.1:7").unwrap();
    let (_, packet) = receive(&mut open, &mut world.ctx, 1).remove(0);
    let udp = &packet[34..];
    let pseudo =
        softnet_core::ip::checksum::pseudo_header_sum(0x0a07_0002, 0x0a07_0001, 17, udp.len() as u16);
    let sum = softnet_core::ip::checksum::add(pseudo, softnet_core::ip::checksum::sum(udp));
    assert_eq!((sum, &udp[8..]), (0xffff, &b"a checksum, please"[..]));
    close(open, &mut world.ctx);
    world.end();
}

/// Aggregates leave as they are, and the kernel cuts them if the interface can't.
#[test]
fn aggregates_are_cut_for_an_interface_that_cannot() {
    const MSS: usize = 1000;
    const PAYLOAD: usize = 4500;
    for whole in [true, false] {
        let Some(mut world) = World::new(1500) else { return };
        let [ours, theirs] = world.macs;
        world.here.run(|| set_offload("s0", Offload::Tso, whole).unwrap()).unwrap();
        let mut open = world.open(&PacketConfig::new("s0"));
        let mut frame = world.frame(theirs, ours, 0x0800, 40 + PAYLOAD);
        let total = (40 + PAYLOAD) as u16;
        frame[14..24].copy_from_slice(&[0x45, 0, (total >> 8) as u8, total as u8, 0, 0, 0x40, 0, 64, 6]);
        frame[24..38].copy_from_slice(&[0, 0, 10, 7, 0, 1, 10, 7, 0, 2, 0, 7, 0, 7]);
        frame[38..54].copy_from_slice(&[0, 0, 0, 0, 0, 0, 0, 0, 0x50, 0x10, 1, 0, 0, 0, 0, 0]);
        let mut skb = crate::rx_frames::copied(&mut world.ctx, [&frame, &[], &[]]).unwrap();
        let head = skb.head_mut();
        (head.l3, head.l4, head.protocol) = (14, 34, 6);
        head.csum = Csum::Partial { start: 34, offset: 16 };
        (head.gso_type, head.gso_size) = (GsoType::TcpV4, MSS as u16);
        head.gso_segs = PAYLOAD.div_ceil(MSS) as u16;
        gso::announce();
        let mut batch = Batch::from(skb);
        assert_eq!(open.tx[0].tx_burst(&mut world.ctx, &mut batch), 1);
        let mut got = Vec::new();
        while got.iter().map(|(_, bytes): &(usize, Vec<u8>)| bytes.len()).sum::<usize>() < PAYLOAD {
            let frame = arrived(&world);
            let seq = u32::from_be_bytes(frame[38..42].try_into().unwrap());
            got.push((seq as usize, frame[54..].to_vec()));
        }
        let size = if whole { PAYLOAD } else { MSS };
        let pieces = frame[54..].chunks(size).enumerate().map(|(i, bytes)| (i * size, bytes.to_vec()));
        assert_eq!(got, pieces.collect::<Vec<_>>(), "{whole}");
        assert_eq!(world.ctx.stats().dropped(), 0);
        close(open, &mut world.ctx);
        world.end();
    }
}

#[test]
fn an_interface_that_is_down_drops_what_is_sent_and_is_found_up_again() {
    let Some(mut world) = World::new(1500) else { return };
    let [ours, theirs] = world.macs;
    let mut open = world.open(&PacketConfig::new("s0"));
    let set = |world: &World, up: bool| {
        let set = |name: &str, up: bool| {
            let mut netlink = Netlink::new().unwrap();
            if up { netlink.set_up(name) } else { netlink.set_down(name) }.unwrap();
        };
        world.here.run(|| set("s0", up)).unwrap();
        if up {
            world.here.run(|| Netlink::new().unwrap().wait_running("s0").unwrap()).unwrap();
        }
    };
    set(&world, false);
    let frame = world.frame(theirs, ours, 0x88b5, 46);
    assert_eq!((send(&mut open, &mut world.ctx, &frame), open.tx[0].down()), (1, true));
    assert_eq!(world.ctx.stats().drops(5, DropReason::DevReady), 1);
    assert_eq!(open.device.link(), LinkState::Down);
    // The socket tells of it once.
    let (mut batch, bell) = (Batch::new(), open.rx[0].doorbell());
    for _ in 0..2 {
        assert_eq!(open.rx[0].rx_burst(&mut world.ctx, &mut batch, 64), 0);
    }
    assert!(!rings(&*bell));
    set(&world, true);
    assert_eq!((send(&mut open, &mut world.ctx, &frame), open.tx[0].down()), (1, false));
    // (The peer's socket may have been told that its carrier went.)
    let frame = world.frame(ours, theirs, 0x88b5, 46);
    while world.peer.send(&frame).is_err() {}
    assert!(receive(&mut open, &mut world.ctx, 1)[0].1 == frame);
    close(open, &mut world.ctx);
    world.end();
}

#[test]
fn refusals_say_what_mends_them() {
    let Some(mut world) = World::new(1500) else { return };
    let refusal = |world: &mut World, config: &PacketConfig| {
        world.try_open(config).err().map_or_else(|| panic!("{config:?}"), |error| error.to_string())
    };
    let good = PacketConfig::new("s0");
    assert_eq!(refusal(&mut world, &PacketConfig::new("s9")), "no interface s9 here; there are: lo, s0");
    assert!(refusal(&mut world, &PacketConfig::new("lo")).contains("no Ethernet interface"));
    let address = std::net::Ipv4Addr::new(10, 7, 0, 3);
    world.here.run(|| Netlink::new().unwrap().add_address("s0", address, 24).unwrap()).unwrap();
    let refused = refusal(&mut world, &good);
    assert!(refused.starts_with("s0: the kernel has 10.7.0.3 on it: "), "{refused}");
    let forced = world.open(&PacketConfig { force: true, ..good.clone() });
    close(forced, &mut world.ctx);
    let open_without = || {
        let mut sets = rustix::thread::capabilities(None).unwrap();
        sets.effective = CapabilitySet::empty();
        rustix::thread::set_capabilities(None, sets).unwrap();
        open(&PacketConfig { force: true, ..good }, 5).err().map(|error| error.to_string())
    };
    let unprivileged = world.here.run(open_without).unwrap().unwrap();
    assert!(unprivileged.contains("needs CAP_NET_RAW"), "{unprivileged}");
    world.end();
}

/// A discipline of the interface's own drops a flow: those behind it do not wait for it.
#[test]
fn what_the_kernel_drops_is_dropped_and_stops_no_other() {
    let Some(mut world) = World::new(1500) else { return };
    let [ours, theirs] = world.macs;
    let mut open = world.open(&PacketConfig::new("s0"));
    let tc = |args: &str| {
        let told =
            world.here.run(|| std::process::Command::new("tc").args(args.split(' ')).status()).unwrap();
        assert!(told.unwrap().success(), "{args}");
    };
    tc("qdisc add dev s0 root handle 1: htb default 1");
    (1..3).for_each(|n| tc(&format!("class add dev s0 parent 1: classid 1:{n} htb rate 1gbit")));
    // A queue without a place.
    tc("qdisc add dev s0 parent 1:2 pfifo limit 0");
    tc("filter add dev s0 parent 1: protocol 0x88b6 u32 match u32 0 0 classid 1:2");
    let kinds = [0x88b5, 0x88b6, 0x88b6, 0x88b5, 0x88b6, 0x88b5];
    let mut batch = Batch::new();
    for (n, kind) in kinds.into_iter().enumerate() {
        let frame = world.frame(theirs, ours, kind, 46 + n);
        batch.push(crate::rx_frames::copied(&mut world.ctx, [&frame, &[], &[]]).unwrap()).unwrap();
    }
    assert_eq!(open.tx[0].tx_burst(&mut world.ctx, &mut batch), 6);
    assert!(batch.is_empty() && open.tx[0].reap(&mut world.ctx).room > 0);
    let dropped = world.ctx.stats().drops(5, DropReason::KernelEgress);
    assert_eq!((dropped, world.ctx.stats().dropped(), open.tx[0].stats().packets.get()), (3, 3, 3));
    for n in [0, 3, 5] {
        assert_eq!(arrived(&world).len(), 14 + 46 + n);
    }
    close(open, &mut world.ctx);
    world.end();
}

/// Neighbours look for an address in a group of its own, which the kernel is in as long as softnet has the address.
#[test]
fn groups_follow_addresses_that_come_and_go() {
    let Some(mut world) = World::new(1500) else { return };
    world.here.run(|| std::fs::write("/proc/sys/net/ipv6/conf/s0/disable_ipv6", "0").unwrap()).unwrap();
    let config = PacketConfig { force: true, ..PacketConfig::new("s0") };
    let (open, own) = world.here.run(|| open_with_addresses(&config, 5)).unwrap().unwrap();
    let (one, two) = ("ff0200000000000000000001ff000001", "ff0200000000000000000001ff000002");
    let joined_in = |world: &World| {
        let all = world.here.run(|| std::fs::read_to_string("/proc/thread-self/net/igmp6").unwrap()).unwrap();
        let is = |group: &str| all.lines().any(|line| line.contains("s0") && line.contains(group));
        (is(one), is(two))
    };
    assert_eq!(joined_in(&world), (false, false));
    // From whichever namespace.
    let address = |text: &str| text.parse().unwrap();
    assert_eq!(own.replace(&[address("fd00::1"), address("10.0.0.1")]), None);
    assert_eq!(joined_in(&world), (true, false));
    assert_eq!(own.replace(&[address("fd00::2")]), None);
    assert_eq!(joined_in(&world), (false, true));
    assert_eq!(own.replace(&[]), None);
    assert_eq!(joined_in(&world), (false, false));
    // One that the kernel has, too, is told once.
    world
        .here
        .run(|| Netlink::new().unwrap().add_address("s0", std::net::Ipv4Addr::new(10, 7, 0, 3), 24).unwrap())
        .unwrap();
    let taken = [address("10.7.0.3")];
    assert_eq!(own.conflict(&taken).map(|conflict| conflict.holder).as_deref(), Some("s0"));
    assert_eq!(own.replace(&taken).map(|conflict| conflict.address), Some(taken[0]));
    assert_eq!((own.replace(&taken), own.replace(&[]), own.conflict(&[])), (None, None, None));
    close(open, &mut world.ctx);
    // Without effect, and without harm.
    assert_eq!(own.replace(&[address("fd00::1")]), None);
    assert_eq!(joined_in(&world), (false, false));
    world.end();
}
