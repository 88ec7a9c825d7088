//! End to end: the kernel at one end of a TAP in a namespace of the test's own, the device at the
//! other.

use std::net::{Ipv4Addr, UdpSocket};
use std::time::{Duration, Instant};

use rustix::thread::CapabilitySet;
use softnet_core::skb::{Batch, CacheSizes, Csum, DropReason, GsoType, HeapMemory, Region, Skb};

use super::*;
use crate::netns::NetNs;
use crate::testing::{assert_whole, close, rings};
use softnet_testkit::net_allowed;

const FRAMES: u32 = 512;
const KERNEL: Ipv4Addr = Ipv4Addr::new(10, 8, 0, 2);
const OURS: Ipv4Addr = Ipv4Addr::new(10, 8, 0, 1);

/// A namespace, and a stack's memory.
struct World {
    ns: NetNs,
    ctx: SoftnetData,
    kept: Option<Arc<TapQueues>>,
}

impl World {
    fn new() -> Option<Self> {
        Self::with_frames(FRAMES)
    }

    fn with_frames(frames: u32) -> Option<Self> {
        let memory = HeapMemory::new(Region::bytes(frames, frames));
        let region = Region::new(Box::new(memory), frames, frames).unwrap();
        let ctx = SoftnetData::new(region, CacheSizes::default());
        net_allowed().then(|| World { ns: NetNs::new().unwrap(), ctx, kept: None })
    }

    fn try_open(&mut self, config: &TapConfig) -> Result<OpenDevice, TapError> {
        let World { ns, ctx, kept } = self;
        ns.run(|| open(config, kept, 3, ctx)).unwrap()
    }

    fn open(&mut self, config: &TapConfig) -> OpenDevice {
        self.try_open(config).unwrap_or_else(|error| panic!("{error}"))
    }

    fn refusal(&mut self, config: &TapConfig) -> String {
        let refused = self.try_open(config).err();
        refused.map_or_else(|| panic!("{config:?} was opened"), |error| error.to_string())
    }

    fn netlink<T: Send>(&self, work: impl FnOnce(&mut Netlink) -> T + Send) -> T {
        self.ns.run(|| work(&mut Netlink::new().unwrap())).unwrap()
    }

    /// Gives the kernel's end an address, and the neighbour at the other end.
    fn address(&self, name: &str, open: &OpenDevice) -> UdpSocket {
        let mac = open.device.info().mac;
        self.netlink(|netlink| netlink.add_address(name, KERNEL, 24).unwrap());
        let neighbour = mac.map(|byte| format!("{byte:02x}")).join(":");
        self.ns
            .run(|| {
                let to = OURS.to_string();
                let told = std::process::Command::new("ip")
                    .args(["neigh", "replace", &to, "lladdr", &neighbour, "dev", name])
                    .status();
                assert!(told.unwrap().success());
                let socket = UdpSocket::bind((KERNEL, 0)).unwrap();
                socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
                socket
            })
            .unwrap()
    }

    fn end(mut self) {
        let region = self.ctx.region().clone();
        assert_whole(&mut self.ctx, &region);
    }
}

/// Receives on all queues until a packet of IPv4 and UDP is there. Others are let go.
fn next_udp(open: &mut OpenDevice, ctx: &mut SoftnetData) -> Skb {
    let give_up = Instant::now() + Duration::from_secs(10);
    loop {
        assert!(Instant::now() < give_up, "nothing came");
        for rx in &mut open.rx {
            let mut batch = Batch::new();
            rx.rx_burst(ctx, &mut batch, 1);
            for skb in batch.drain() {
                if skb.data()[12..14] == [8, 0] && skb.data()[23] == 17 {
                    return skb;
                }
                ctx.free_skb(skb);
            }
        }
    }
}

/// Makes of a UDP packet its echo, without a checksum.
fn turn_around(skb: &mut Skb) {
    let data = skb.data_mut();
    for k in 0..6 {
        data.swap(k, 6 + k);
    }
    for k in 0..4 {
        data.swap(26 + k, 30 + k);
    }
    for k in 0..2 {
        data.swap(34 + k, 36 + k);
    }
    data[40..42].fill(0);
}

fn payload(len: usize) -> Vec<u8> {
    (0..len).map(|i| ((i * 7) ^ (i >> 8)) as u8).collect()
}

#[test]
fn packets_of_all_lengths_go_both_ways() {
    for (mtu, queues) in [(1500, 1), (9000, 1), (9000, 3)] {
        let Some(mut world) = World::new() else { return };
        let mut open = world.open(&TapConfig { mtu: Some(mtu), queues, ..TapConfig::new("t0") });
        assert_eq!((open.rx.len(), open.tx.len()), (queues as usize, queues as usize));
        let info = open.device.info().clone();
        assert_eq!(
            (info.driver, u32::from(info.mtu), &info.mode[..]),
            ("tap", mtu, "made by softnet, offloads off")
        );
        assert!(info.mac != info.interface_mac() && info.mac[0] & 3 == 2, "{:x?}", info.mac);
        assert_eq!(open.device.link(), LinkState::Up);
        let socket = world.address("t0", &open);
        for len in [0, 1, 18, 1000, mtu as usize - 28] {
            socket.send_to(&payload(len), (OURS, 7)).unwrap();
            let mut skb = next_udp(&mut open, &mut world.ctx);
            assert_eq!((skb.head().dev, usize::from(skb.head().queue) < queues as usize), (3, true));
            assert!(skb.frames().flatten().skip(42).take(len).eq(&payload(len)), "{len}");
            assert_eq!(skb.is_chained(), len > 1800, "{len}");
            turn_around(&mut skb);
            let mut batch = Batch::from(skb);
            assert_eq!(open.tx[0].tx_burst(&mut world.ctx, &mut batch), 1);
            assert!(!open.tx[0].kick(&mut world.ctx) && batch.is_empty());
            let mut answer = vec![0; 10_000];
            let (n, from) = socket.recv_from(&mut answer).unwrap();
            assert_eq!((answer[..n] == payload(len)[..], from), (true, (OURS, 7).into()), "{len}");
        }
        let stats = [open.tx[0].stats().packets.get(), open.tx[0].stats().bytes.get()];
        assert_eq!((stats[0], stats[1] > 5 * 42), (5, true));
        close(open, &mut world.ctx);
        world.end();
    }
}

#[test]
fn the_doorbell_rings_while_packets_wait_and_not_without_memory() {
    let Some(mut world) = World::with_frames(64) else { return };
    let mut open = world.open(&TapConfig::new("t0"));
    let socket = world.address("t0", &open);
    let bell = open.rx[0].doorbell();
    let mut batch = Batch::new();
    socket.send_to(b"t1", (OURS, 7)).unwrap();
    assert!(bell.pending() && rings(&*bell) && !bell.starved());
    // All memory is taken: there is one slot ready, for the first packet.
    let mut taken = Vec::new();
    while let Some(frame) = world.ctx.alloc_frame() {
        taken.push(frame);
    }
    for _ in 0..3 {
        socket.send_to(b"more", (OURS, 7)).unwrap();
    }
    assert_eq!((open.rx[0].rx_burst(&mut world.ctx, &mut batch, 64), open.rx[0].held()), (1, 0));
    assert!(bell.starved() && !bell.pending() && !rings(&*bell));
    assert_eq!(open.rx[0].rx_burst(&mut world.ctx, &mut batch, 64), 0);
    world.ctx.free_frames(taken.into_iter());
    // (The kernel may have more to say than was asked for.)
    let mut got = 0;
    while got < 3 {
        open.rx[0].rx_burst(&mut world.ctx, &mut batch, 64);
        got = batch.as_slice().iter().filter(|skb| skb.data().ends_with(b"more")).count();
    }
    assert!(!bell.starved());
    batch.drain().for_each(|skb| world.ctx.free_skb(skb));
    assert_eq!(world.ctx.stats().dropped(), 0);
    close(open, &mut world.ctx);
    world.end();
}

/// With offloads a datagram of several segments comes whole, with its checksum left, and goes back
/// so.
#[test]
fn segments_pass_whole_with_offloads() {
    let Some(mut world) = World::new() else { return };
    let mut open = world.open(&TapConfig { offloads: true, ..TapConfig::new("t0") });
    let socket = world.address("t0", &open);
    // UDP_SEGMENT: the kernel leaves the cutting to the device.
    let size: libc::c_int = 1000;
    // SAFETY: a live value of the stated length.
    let set = unsafe {
        use std::os::fd::AsRawFd;
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_UDP,
            libc::UDP_SEGMENT,
            (&raw const size).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    assert_eq!(set, 0);
    let bytes = payload(30_500);
    socket.send_to(&bytes, (OURS, 7)).unwrap();
    let mut skb = next_udp(&mut open, &mut world.ctx);
    if skb.head().gso_type == GsoType::None {
        // A kernel without USO on TAPs.
        world.ctx.free_skb(skb);
        close(open, &mut world.ctx);
        return world.end();
    }
    let head = skb.head();
    assert_eq!((head.gso_type, head.gso_size, head.gso_segs), (GsoType::UdpL4, 1000, 31));
    assert_eq!(head.csum, Csum::Partial { start: 34, offset: 6 });
    assert!(skb.len() == 42 + bytes.len() && skb.frames().flatten().skip(42).eq(&bytes));
    // Its echo: the sum of the pseudo-header is the same the other way round.
    let check = [skb.data()[40], skb.data()[41]];
    turn_around(&mut skb);
    skb.data_mut()[40..42].copy_from_slice(&check);
    let mut batch = Batch::from(skb);
    open.tx[0].tx_burst(&mut world.ctx, &mut batch);
    let mut got: Vec<u8> = Vec::new();
    while got.len() < bytes.len() {
        let mut datagram = vec![0; 65_536];
        let n = socket.recv(&mut datagram).unwrap();
        assert_eq!(n, 1000.min(bytes.len() - got.len()));
        got.extend(&datagram[..n]);
    }
    assert_eq!(got, bytes);
    close(open, &mut world.ctx);
    world.end();
}

#[test]
fn an_interface_that_is_down_or_gone_drops_what_is_sent() {
    let Some(mut world) = World::new() else { return };
    let mut open = world.open(&TapConfig::new("t0"));
    let packets = |ctx: &mut SoftnetData, n: usize| {
        let mut batch = Batch::new();
        for _ in 0..n {
            let mut skb = ctx.alloc_skb().unwrap();
            skb.put(60).unwrap().fill(0xff);
            batch.push(skb).unwrap();
        }
        batch
    };
    let drops = |ctx: &SoftnetData| ctx.stats().drops(3, DropReason::DevReady);
    world.netlink(|netlink| netlink.set_down("t0").unwrap());
    assert_eq!(open.device.link(), LinkState::Down);
    let mut batch = packets(&mut world.ctx, 5);
    assert_eq!((open.tx[0].tx_burst(&mut world.ctx, &mut batch), open.tx[0].down()), (5, true));
    assert_eq!(drops(&world.ctx), 5);
    world.netlink(|netlink| netlink.set_up("t0").unwrap());
    let mut batch = packets(&mut world.ctx, 2);
    // One that is no Ethernet frame is refused, and stops no other.
    batch.as_mut_slice()[0].trim(5);
    assert_eq!((open.tx[0].tx_burst(&mut world.ctx, &mut batch), open.tx[0].down()), (2, false));
    assert_eq!((drops(&world.ctx), open.tx[0].stats().packets.get()), (5, 1));
    assert_eq!(world.ctx.stats().drops(3, DropReason::PktTooSmall), 1);
    world.netlink(|netlink| netlink.delete_link("t0").unwrap());
    assert_eq!(open.device.link(), LinkState::Gone);
    let mut batch = packets(&mut world.ctx, 2);
    assert_eq!((open.tx[0].tx_burst(&mut world.ctx, &mut batch), open.tx[0].down()), (2, true));
    assert_eq!(open.rx[0].rx_burst(&mut world.ctx, &mut batch, 64), 0);
    close(open, &mut world.ctx);
    // It is made anew.
    let open = world.open(&TapConfig::new("t0"));
    assert_eq!(open.device.link(), LinkState::Up);
    close(open, &mut world.ctx);
    world.end();
}

#[test]
fn an_interface_outlives_its_device_and_not_its_stack() {
    let Some(mut world) = World::new() else { return };
    let open = world.open(&TapConfig::new("t0"));
    let index = open.device.info().ifindex;
    let mac = open.device.info().mac;
    close(open, &mut world.ctx);
    let link = world.netlink(|netlink| netlink.existing_link("t0").unwrap());
    assert!(link.index == index && !link.carrier);
    let open = world.open(&TapConfig::new("t0"));
    assert_eq!((open.device.info().ifindex, open.device.info().mac), (index, mac));
    assert!(world.netlink(|netlink| netlink.existing_link("t0").unwrap().carrier));
    close(open, &mut world.ctx);
    world.kept = None;
    assert_eq!(world.netlink(|netlink| netlink.link("t0").unwrap()), None);
    world.end();
}

fn ip(ns: &NetNs, args: &str) {
    let run = || std::process::Command::new("ip").args(args.split(' ')).status().unwrap().success();
    assert!(ns.run(run).unwrap(), "ip {args}");
}

#[test]
fn an_existing_interface_is_left_as_it_is() {
    let Some(mut world) = World::new() else { return };
    ip(&world.ns, "tuntap add dev t1 mode tap");
    ip(&world.ns, "tuntap add dev many mode tap multi_queue");
    world.netlink(|netlink| {
        netlink.set_mtu("t1", 1400).unwrap();
        netlink.set_mac("t1", [2, 1, 1, 1, 1, 1]).unwrap();
    });
    for (name, queues) in [("t1", 1), ("many", 1), ("many", 4)] {
        let open = world.open(&TapConfig { queues, ..TapConfig::new(name) });
        let info = open.device.info();
        assert_eq!((open.rx.len(), &info.mode[..]), (queues as usize, "existed, offloads off"));
        assert_eq!(open.device.link(), LinkState::Down, "it was not set up before");
        if name == "t1" {
            assert_eq!(
                (info.mtu, info.interface_mac(), info.mac),
                (1400, [2, 1, 1, 1, 1, 1], [2, 1, 1, 1, 1, 0])
            );
        }
        close(open, &mut world.ctx);
        world.kept = None;
        assert!(world.netlink(|netlink| netlink.existing_link(name).is_ok()));
    }
    world.end();
}

#[test]
fn refusals_say_what_mends_them() {
    let Some(mut world) = World::new() else { return };
    ip(&world.ns, "tuntap add dev t1 mode tap");
    ip(&world.ns, "tuntap add dev tun0 mode tun");
    world.netlink(|netlink| netlink.add_veth("v0", "v1", (1, 1), None).unwrap());
    for (config, told) in [
        (
            TapConfig::new("v0"),
            "v0: there is an interface of this name already, which is no TAP (of kind veth): ",
        ),
        (
            TapConfig::new("lo"),
            "lo: there is an interface of this name already, which is no TAP (hardware or loopback): ",
        ),
        (
            TapConfig::new("tun0"),
            "tun0: there is an interface of this name already, which is no TAP (a TUN, which has no Ethernet): ",
        ),
        (
            TapConfig { queues: 2, ..TapConfig::new("t1") },
            "t1: this TAP was made with one queue, and 2 are configured: say `queues = 1`, ",
        ),
        (
            TapConfig { mtu: Some(9000), ..TapConfig::new("t1") },
            "t1: this TAP exists, with an MTU of 1500, and is left as it is: leave out `mtu = 9000`, ",
        ),
    ] {
        let refused = world.refusal(&config);
        assert!(refused.starts_with(told), "{refused}");
    }
    let open = world.open(&TapConfig::new("t1"));
    let mut other = World { kept: None, ..World::with_frames(64).unwrap() };
    std::mem::swap(&mut world.ns, &mut other.ns);
    let refused = other.refusal(&TapConfig::new("t1"));
    assert!(refused.starts_with("t1: another program has this TAP open, "), "{refused}");
    std::mem::swap(&mut world.ns, &mut other.ns);
    let mac = open.device.info().interface_mac();
    close(open, &mut world.ctx);
    let refused = world.refusal(&TapConfig { mac: Some(mac), ..TapConfig::new("t1") });
    assert!(refused.contains("is the MAC address of the kernel's end of this TAP"), "{refused}");
    // Without privileges.
    let unprivileged = {
        let World { ns, ctx, kept } = &mut world;
        ns.run(|| {
            let mut sets = rustix::thread::capabilities(None).unwrap();
            sets.effective = CapabilitySet::empty();
            rustix::thread::set_capabilities(None, sets).unwrap();
            open_error(&TapConfig::new("fresh"), kept, ctx)
        })
        .unwrap()
    };
    assert!(unprivileged.contains("needs CAP_NET_ADMIN"), "{unprivileged}");
    other.end();
    let mut poor = World { kept: None, ..World::with_frames(64).unwrap() };
    let mut taken = Vec::new();
    while let Some(frame) = poor.ctx.alloc_frame() {
        taken.push(frame);
    }
    let refused = poor.refusal(&TapConfig::new("t0"));
    assert_eq!(refused, "t0: no packet memory left for queue 0: raise `frames` in [stack]");
    poor.ctx.free_frames(taken.into_iter());
    poor.end();
    world.end();
}

fn open_error(config: &TapConfig, kept: &mut Option<Arc<TapQueues>>, ctx: &mut SoftnetData) -> String {
    open(config, kept, 3, ctx).err().map_or_else(String::new, |error| error.to_string())
}

#[test]
fn frames_are_as_many_as_the_longest_packet_takes() {
    for (mtu, offloads, frames) in
        [(1500, false, 1), (1769, false, 1), (1770, false, 2), (9000, false, 5), (1500, true, 33)]
    {
        assert_eq!(frames_ready(mtu, offloads), frames, "{mtu}");
    }
}
