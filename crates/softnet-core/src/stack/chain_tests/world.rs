//! The world of these tests: the composition with two devices, both families, sockets, a filter in the slot `input`, and
//! disciplines, in virtual time. After every step the books must balance, and in the end all memory must be at home.

mod host;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::{Arc, Mutex};

use crate::SoftnetData;
use crate::fold::FoldKey;
use crate::ip::adjacency::{Adjacency, Kind as Hop};
use crate::ip::fragment::{Addresses, Datagram, emit};
use crate::ip::hooks::{Hook, HookContext, Passage, Slot};
use crate::ip::icmp_limit::IcmpParams;
use crate::ip::iface::Iface;
use crate::ip::input::{Exceptions, Ingress};
use crate::ip::neigh::NeighParams;
use crate::ip::pmtu::RecentPeers;
use crate::ip::slow::SlowPath;
use crate::ip::source::RpFilter;
use crate::ip::tables::Tables;
use crate::ip::v4::fib::Fib;
use crate::ip::v4::options::OptionPolicy;
use crate::ip::v6::fib::Fib6;
use crate::ip::{ETH_LEN, MacAddr, Prefix, Prefix6, checksum, testing};
use crate::qdisc::{DevParams, Origin, QdiscStats, Spec};
use crate::skb::{Batch, CacheSizes, DropReason, Frame, HEADROOM, HeapMemory, Region, Skb};
use crate::sock::key::{ANY, addr_of};
use crate::sock::udp::UdpInbox;
use crate::sock::udp::output::UdpHead;
use crate::sock::{Arrivals, Bind, Binder, Flow, SockMem, SocketError, Sockets, Transport};
use crate::stack::device::{QueueStats, Reaped, TxQueue};
use crate::stack::receive::{Receive, ReceiveHost};
use crate::stack::slow::{SlowHost, SlowPathState};
use crate::stack::sockets::SocketHost;
use crate::stack::tx_queue::{NetdevQueue, TxWake};
use crate::steer::TxChoice;

use self::host::{Device, Filter, Host, Nothing, Receiving};

const MACS: [MacAddr; 2] = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 1, 1]];
const CLIENT_MAC: MacAddr = [2, 0, 0, 0, 0, 9];
const GATEWAY_MAC: MacAddr = [2, 0, 0, 0, 1, 9];
const MTUS: [u16; 2] = [1500, 1280];
/// Per family: ours on either device, the client, a host behind the gateway, the gateway, a group.
const V4: [Ipv4Addr; 6] = [
    Ipv4Addr::new(10, 0, 0, 1),
    Ipv4Addr::new(10, 1, 0, 1),
    Ipv4Addr::new(10, 0, 0, 9),
    Ipv4Addr::new(10, 9, 0, 1),
    Ipv4Addr::new(10, 1, 0, 254),
    Ipv4Addr::new(239, 1, 2, 3),
];
const V6: [Ipv6Addr; 6] = [
    Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1),
    Ipv6Addr::new(0x2001, 0xdb8, 0, 1, 0, 0, 0, 1),
    Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 9),
    Ipv6Addr::new(0x2001, 0xdb8, 9, 0, 0, 0, 0, 1),
    Ipv6Addr::new(0x2001, 0xdb8, 0, 1, 0, 0, 0, 0xfe),
    Ipv6Addr::new(0xff05, 0, 0, 0, 0, 0, 0, 0x1234),
];
/// Descriptors of a device's ring.
const RING: usize = 16;

/// A discipline of each kind, with limits that are soon reached.
pub(super) const SPECS: [&str; 5] =
    ["noqueue", "pfifo_fast", "pfifo limit 3", "bfifo limit 4000", "tbf rate 4mbit burst 2000 limit 6000"];

/// What a datagram is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// To this port of ours.
    Udp(u16),
    ToGroup,
    Echo,
    /// To us, which is not served.
    Tcp,
    /// To the host behind the gateway.
    Forwarded,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Fault {
    None,
    Lost(u8),
    Twice(u8),
    Damaged(u8, u16),
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Train {
    pub(super) v6: bool,
    pub(super) kind: Kind,
    /// Bytes of payload.
    pub(super) len: usize,
    /// What its sender cuts it for.
    pub(super) mtu: usize,
    /// Seeds the order in which its packets come.
    pub(super) order: u64,
    pub(super) fault: Fault,
}

/// What the filter does with datagrams for us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    Pass,
    Drop,
    Mirror,
    Redirect,
    MirrorIngress,
    RedirectIngress,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Step {
    /// A train by device 0, its packets in frames that are cut as the number says; 0: not.
    Train(Train, u64),
    /// A datagram from here to the first socket.
    Local {
        len: usize,
        v6: bool,
    },
    /// So many ms pass.
    Pass(u64),
    /// Devices complete what they send, or do not.
    Complete(bool),
    Graft(usize, usize),
    /// A socket is opened or closed.
    Socket(usize, bool),
    Receive(usize, usize),
    Filter(Mode),
    /// So many frames are taken by others.
    Scarce(usize),
}

/// Packets that were sent, each with its device.
pub(super) type Sent = Vec<(u16, Vec<u8>)>;

/// Payloads of one length are alike.
pub(super) fn payload(len: usize) -> Vec<u8> {
    (0..len).map(|i| ((i * 31) ^ (i >> 8) ^ len) as u8).collect()
}

/// What was sent, what sockets received, and drops by reason, with the packets delivered, made here and merged.
pub(super) type Fare = (Sent, Vec<Vec<u8>>, BTreeMap<&'static str, u64>);

pub(super) struct World {
    ctx: SoftnetData,
    receive: Receive,
    slow: SlowPathState,
    host: Host,
    filter: Arc<Filter>,
    completes: Arc<Mutex<bool>>,
    sent: Arc<Mutex<Sent>>,
    qdiscs: [Option<Arc<QdiscStats>>; 2],
    inboxes: [Option<UdpInbox>; 2],
    got: Vec<Vec<u8>>,
    taken: Vec<Frame>,
    received: u64,
    trains: u32,
}

impl World {
    /// With both sockets open, in memory of `frames` frames.
    pub(super) fn new(frames: u32) -> Self {
        let memory = Box::new(HeapMemory::new(Region::bytes(frames, frames)));
        let region = Region::new(memory, frames, frames).unwrap();
        let filter = Arc::new(Filter { mode: Mutex::new(Mode::Pass), kept: Mutex::default() });
        let ifaces: Vec<_> = (0..2).map(|dev| Some(iface(dev))).collect();
        let mut tables = tables(&ifaces);
        tables.hooks.set(Slot::Input, Some(filter.clone()));
        let mut slow = SlowPath::new(NeighParams::default(), [1, 2]);
        let most = u32::MAX;
        let limits = IcmpParams { icmp_ratelimit: 0, icmpv6_ratelimit: 0, ..IcmpParams::default() };
        let limits = IcmpParams { icmp_msgs_per_sec: most, icmp_msgs_burst: most, ..limits };
        slow.configure(limits, OptionPolicy::default());
        let slow = SlowPathState::new(slow);
        let (completes, sent) = (Arc::new(Mutex::new(true)), Arc::<Mutex<Sent>>::default());
        let tx = [0, 1].map(|dev| {
            let (completes, sent) = (completes.clone(), sent.clone());
            let device = Device { dev, ring: VecDeque::new(), completes, sent, stats: Arc::default() };
            NetdevQueue::new(&region, dev, None, Box::new(device), 1000, Nothing)
        });
        let binder = Binder::new(region.clone(), 8, 1);
        let host = Host {
            now: Cell::new(0),
            tables: RefCell::new(Arc::new(tables)),
            tx,
            sockets: binder.sockets().clone(),
            binder: RefCell::new(binder),
            recent: RecentPeers::new(FoldKey::new([1, 2])),
            memory: SockMem::new(frames),
            held: Cell::new(0),
        };
        let mut world = World {
            ctx: SoftnetData::new(region, CacheSizes::default()),
            receive: Receive::default(),
            slow,
            host,
            filter,
            completes,
            sent,
            qdiscs: [None, None],
            inboxes: [None, None],
            got: Vec::new(),
            taken: Vec::new(),
            received: 0,
            trains: 0,
        };
        (0..2).for_each(|socket| world.socket(socket, true));
        world
    }

    pub(super) fn step(&mut self, step: Step) {
        match step {
            Step::Train(train, cuts) => self.train(train, cuts),
            Step::Local { len, v6 } => self.local(len, v6),
            Step::Pass(ms) => self.pass(ms * 1_000_000),
            Step::Complete(completes) => *self.completes.lock().unwrap() = completes,
            Step::Graft(dev, spec) => self.graft(dev, spec),
            Step::Socket(socket, open) => self.socket(socket, open),
            Step::Receive(socket, n) => self.receive(socket, n),
            Step::Filter(mode) => *self.filter.mode.lock().unwrap() = mode,
            Step::Scarce(n) => {
                self.ctx.free_frames(self.taken.drain(..));
                self.taken.extend((0..n).map_while(|_| self.ctx.alloc_frame()));
            }
        }
        self.send_kept();
        self.check();
    }

    /// What came of it all.
    pub(super) fn outcome(mut self) -> Fare {
        (0..2).for_each(|socket| self.receive(socket, usize::MAX));
        let stats = self.ctx.stats();
        let reasons = DropReason::ALL.iter().map(|reason| (reason.name(), self.drops(*reason)));
        let counts = [
            ("delivered", stats.delivered.get()),
            ("originated", stats.originated.get()),
            ("merged", stats.merged.get()),
        ];
        let counts = reasons.chain(counts).filter(|(_, n)| *n > 0).collect();
        let sent = std::mem::take(&mut *self.sent.lock().unwrap());
        (sent, std::mem::take(&mut self.got), counts)
    }

    pub(super) fn drops(&self, reason: DropReason) -> u64 {
        (0..2).map(|dev| self.ctx.stats().drops(dev, reason)).sum()
    }

    fn check(&self) {
        let stats = self.ctx.stats();
        let transmitted: u64 = self.host.tx.iter().map(|queue| queue.stats().packets.get()).sum();
        let queued: usize = self.qdiscs.iter().flatten().map(|stats| stats.qlen()).sum();
        let in_sockets = stats.sk_queued.get() - stats.sk_taken.get();
        let held = (self.slow.slow.held() + queued) as u64 + in_sockets;
        assert_eq!(
            self.received + stats.originated.get(),
            transmitted + stats.delivered.get() + stats.dropped() + stats.merged.get() + held,
            "received {} transmitted {transmitted} held {held} in sockets {in_sockets}",
            self.received,
        );
        assert!(self.host.held.get() >= in_sockets as usize, "each has a frame");
    }

    fn train(&mut self, train: Train, cuts: u64) {
        self.trains += 1;
        let mut packets = packets(&train, self.trains);
        // A permutation by a generator of its own.
        let mut seed = train.order;
        let mut next = |n: usize| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 33) as usize % n.max(1)
        };
        if !train.order.is_multiple_of(3) {
            (1..packets.len()).rev().for_each(|i| packets.swap(i, next(i + 1)));
        }
        let n = packets.len();
        match train.fault {
            Fault::None => {}
            Fault::Lost(packet) => drop(packets.remove(usize::from(packet) % n)),
            Fault::Twice(packet) => packets.push(packets[usize::from(packet) % n].clone()),
            Fault::Damaged(packet, at) => {
                let packet = &mut packets[usize::from(packet) % n];
                // Not in its headers, which other tests damage.
                let (at, len) = (usize::from(at), packet.len());
                packet[(len / 2 + at % (len / 2)).max(70).min(len - 1)] ^= 1;
            }
        }
        // A whole echo request is answered in its own buffer, which takes one frame.
        let cuts = if n == 1 && train.kind == Kind::Echo { 0 } else { cuts };
        for packets in packets.chunks(64) {
            let mut batch = Batch::new();
            for (i, packet) in packets.iter().enumerate() {
                if let Some(mut skb) = self.skb(packet, cuts.rotate_left(7 * i as u32)) {
                    skb.head_mut().dev = 0;
                    batch.push(skb).unwrap();
                    self.received += 1;
                }
            }
            self.input(&mut batch);
        }
    }

    /// A packet in frames that are cut as the bits of `cuts` say; `None` without memory.
    fn skb(&mut self, packet: &[u8], cuts: u64) -> Option<Skb> {
        let sizes = (0..4).map(|i| 100 + (cuts >> (9 * i) & 0x1ff) as usize);
        let mut rest = packet;
        let mut skb: Option<Skb> = None;
        for size in sizes.chain(std::iter::repeat(1700)) {
            let size = if cuts == 0 { rest.len() } else { size.min(rest.len()) };
            let (now, later) = rest.split_at(size);
            rest = later;
            let frame = self.ctx.alloc_frame().map(|mut frame| {
                frame.bytes_mut()[HEADROOM..][..size].copy_from_slice(now);
                frame
            });
            let part = frame.map(|frame| self.ctx.build_skb(frame, HEADROOM, size));
            let part = match part {
                Some(Ok(part)) => part,
                none => {
                    none.into_iter().filter_map(Result::err).for_each(|frame| self.ctx.free_frame(frame));
                    skb.into_iter().for_each(|skb| self.ctx.free_skb(skb));
                    return None;
                }
            };
            match &mut skb {
                Some(skb) => skb.append(part).unwrap(),
                None => skb = Some(part),
            }
            if rest.is_empty() {
                break;
            }
        }
        skb
    }

    fn input(&mut self, batch: &mut Batch) {
        let ingress = Ingress { dev: 0, mac: MACS[0], partial_csum: false, rp_filter: RpFilter::Off };
        let World { ctx, receive, slow, host, .. } = self;
        let tables = host.tables();
        receive.ip(ctx, &tables, &ingress, 0, batch, &mut Receiving { host, slow });
        assert!(batch.is_empty());
    }

    /// Sends what the filter kept. What comes in again is not kept a second time.
    fn send_kept(&mut self) {
        let kept = std::mem::take(&mut *self.filter.kept.lock().unwrap());
        let mode = std::mem::replace(&mut *self.filter.mode.lock().unwrap(), Mode::Pass);
        for (skb, ingress) in kept {
            let mut batch = Batch::from(skb);
            match ingress {
                true => self.input(&mut batch),
                false => self.host.xmit_on(&mut self.ctx, 1, Origin::Forwarded, &mut batch),
            }
        }
        *self.filter.mode.lock().unwrap() = mode;
    }

    fn local(&mut self, len: usize, v6: bool) {
        let [src, dst] = [2, 0].map(|i| if v6 { addr_of(V6[i].into()) } else { addr_of(V4[i].into()) });
        let head = UdpHead { src, dst, sport: 5, dport: 7, ttl: 64, tos: 0 };
        let Some(skb) = head.write_chain(&mut self.ctx, &payload(len)) else { return };
        self.ctx.originate();
        let mut unserved = Batch::new();
        self.host.local_input(
            &mut self.ctx,
            Transport::Udp,
            &mut Batch::from(skb),
            &mut unserved,
            &mut Vec::new(),
        );
        self.ctx.free_batch(&mut unserved, DropReason::IpNoProto);
    }

    fn pass(&mut self, ns: u64) {
        self.host.now.set(self.host.now.get() + ns);
        let World { ctx, slow, host, .. } = self;
        slow.run(ctx, host, |slow, ctx, view, out| slow.poll(ctx, view, out));
        host.tx.iter().for_each(|queue| _ = queue.run(ctx, host.now.get()));
        host.tx.iter().for_each(|queue| queue.reap(ctx, host.now.get()));
    }

    fn graft(&mut self, dev: usize, spec: usize) {
        let params = DevParams { mtu: MTUS[dev].into(), tx_queue_len: 2 };
        let spec: Spec = SPECS[spec].parse().unwrap();
        let qdisc = spec.build(&params).unwrap();
        self.qdiscs[dev] = qdisc.as_ref().map(|qdisc| qdisc.stats().clone());
        self.host.tx[dev].graft(&mut self.ctx, self.host.now.get(), qdisc);
    }

    fn socket(&mut self, socket: usize, open: bool) {
        let mut binder = self.host.binder.borrow_mut();
        match (&self.inboxes[socket], open) {
            (None, true) => {
                let port = 7 + socket as u16;
                let bind =
                    Bind { local: ANY, port, v4: true, v6: true, dev: None, reuseport: false, limit: 12 };
                let inbox = binder.open(&bind).unwrap();
                for group in [addr_of(V4[5].into()), addr_of(V6[5].into())] {
                    binder.join(inbox.slot().index(), group, 0).unwrap();
                }
                self.inboxes[socket] = Some(inbox);
            }
            (Some(_), false) => {
                let Some(inbox) = self.inboxes[socket].take() else { return };
                let index = inbox.slot().index();
                binder.close(index);
                let gone = inbox.close(&mut self.ctx);
                binder.release(index);
                self.host.held.set(self.host.held.get() - gone);
            }
            _ => {}
        }
    }

    fn receive(&mut self, socket: usize, n: usize) {
        let Some(inbox) = &mut self.inboxes[socket] else { return };
        for _ in 0..n {
            let Some(datagram) = inbox.next(&mut self.ctx) else { break };
            let mut buffer = vec![0; datagram.len()];
            assert_eq!(datagram.copy_to(&mut buffer), buffer.len());
            assert_eq!(buffer, payload(buffer.len()), "as it was sent, or not at all");
            assert!(datagram.parts().flatten().eq(&buffer));
            self.got.push(buffer);
            datagram.free(&mut self.ctx);
        }
        self.host.held.set(self.host.held.get() - inbox.gone());
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        self.ctx.free_frames(self.taken.drain(..));
        (0..2).for_each(|socket| self.socket(socket, false));
        assert_eq!(self.host.held.get(), 0, "frames in sockets");
        for queue in &self.host.tx {
            queue.close(&mut self.ctx);
        }
        (0..2).for_each(|dev| self.graft(dev, 0));
        self.slow.slow.shutdown(&mut self.ctx);
        self.check();
        self.ctx.drain();
        let region = self.ctx.region();
        assert_eq!(region.frames_free(), u64::from(region.frame_count()));
        assert_eq!(region.heads_free(), u64::from(region.head_count()));
    }
}

fn iface(dev: usize) -> Iface {
    Iface {
        mac: MACS[dev],
        mtu: MTUS[dev],
        addresses: vec![(V4[dev], Prefix::containing(V4[dev], 24).unwrap())],
        addresses6: vec![(V6[dev], Prefix6::containing(V6[dev], 64).unwrap())],
        send_redirects: false,
        rp_filter: RpFilter::Off,
    }
}

/// Routes to the links and beyond, with the neighbours known.
fn tables(ifaces: &[Option<Iface>]) -> Tables {
    let mut tables = Tables::new(FoldKey::new([1, 2]));
    let v4 = Arc::make_mut(&mut tables.v4);
    let routes = [
        ("10.0.0.0/24", Adjacency::connected(0, MTUS[0])),
        ("10.9.0.0/16", Adjacency::gateway(1, MTUS[1], V4[4])),
        ("10.0.0.1/32", Adjacency::special(Hop::Local)),
    ];
    v4.next_hops.extend(routes.map(|(_, hop)| hop));
    v4.fib = Arc::new(
        Fib::build(&routes.iter().zip(1..).map(|((p, _), i)| (p.parse().unwrap(), i)).collect::<Vec<_>>())
            .unwrap(),
    );
    let v6 = Arc::make_mut(&mut tables.v6);
    let routes = [
        ("2001:db8::/64", Adjacency::connected(0, MTUS[0])),
        ("2001:db8:9::/48", Adjacency::gateway(1, MTUS[1], V6[4])),
        ("2001:db8::1/128", Adjacency::special(Hop::Local)),
    ];
    v6.next_hops.extend(routes.map(|(_, hop)| hop));
    v6.fib = Arc::new(
        Fib6::build(&routes.iter().zip(1..).map(|((p, _), i)| (p.parse().unwrap(), i)).collect::<Vec<_>>())
            .unwrap(),
    );
    tables.set_ifaces(ifaces);
    for (dev, i, mac) in [(0, 2, CLIENT_MAC), (1, 4, GATEWAY_MAC)] {
        tables.set_neighbour((dev, V4[i].into(), Some(mac)));
        tables.set_neighbour((dev, V6[i].into(), Some(mac)));
    }
    tables
}

/// The packets of a train, as the client sends them.
fn packets(train: &Train, id: u32) -> Vec<Vec<u8>> {
    let Train { v6, kind, len, mtu, .. } = *train;
    let to = match kind {
        Kind::ToGroup => 5,
        Kind::Forwarded => 3,
        _ => 0,
    };
    let [src, dst] = [2, to].map(|i| if v6 { addr_of(V6[i].into()) } else { addr_of(V4[i].into()) });
    let addresses = match v6 {
        true => Addresses::V6 { src: V6[2], dst: V6[to], dev: 0 },
        false => Addresses::V4 { src: V4[2], dst: V4[to] },
    };
    let sum = |protocol: u8, message: &[u8]| {
        let pseudo = match v6 {
            true => checksum::pseudo_header_sum6(V6[2], V6[to], protocol, message.len() as u16),
            false => checksum::pseudo_header_sum(V4[2].into(), V4[to].into(), protocol, message.len() as u16),
        };
        !checksum::add(if protocol == 1 { 0 } else { pseudo }, checksum::sum(message))
    };
    let mut data = payload(len);
    let (protocol, field, header) = match kind {
        Kind::Echo if v6 => (58, Some(2), vec![128, 0, 0, 0, 7, 7, 0, 1]),
        Kind::Echo => (1, Some(2), vec![8, 0, 0, 0, 7, 7, 0, 1]),
        Kind::Tcp => (6, Some(16), [&[0, 9, 0, 80][..], &[0; 8], &[0x50, 2, 0, 0, 0, 0, 0, 0]].concat()),
        Kind::Udp(dport) => (17, None, udp(src, dst, dport, &data)),
        Kind::ToGroup | Kind::Forwarded => (17, None, udp(src, dst, 7, &data)),
    };
    data.splice(..0, header);
    if let Some(field) = field {
        let check = sum(protocol, &data).to_be_bytes();
        data[field..field + 2].copy_from_slice(&check);
    }
    let datagram = Datagram { addresses, protocol, ttl: 64, tos: 0, id, dont_fragment: false };
    let mut ctx = testing::context();
    let mut list = emit(&mut ctx, &datagram, mtu, data.len(), [&data[..]]).unwrap();
    let mut packets = Vec::new();
    while let Some(mut skb) = list.pop_front() {
        let group = to == 5;
        let mac = if group { [1, 0, 0x5e, 1, 2, 3] } else { MACS[0] };
        skb.data_mut()[..6].copy_from_slice(&mac);
        skb.data_mut()[6..12].copy_from_slice(&CLIENT_MAC);
        assert!(skb.data().len() > ETH_LEN);
        packets.push(skb.data().to_vec());
        ctx.free_skb(skb);
    }
    packets
}

fn udp(src: u128, dst: u128, dport: u16, data: &[u8]) -> Vec<u8> {
    UdpHead { src, dst, sport: 5, dport, ttl: 64, tos: 0 }.datagram(data).1.to_vec()
}
