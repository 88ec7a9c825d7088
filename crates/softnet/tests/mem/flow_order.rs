//! Every flow leaves by one TX queue from its first packet on, in order, while neighbours are looked for and TX queues are
//! contended for; and nothing that is made here is lost.
//!
//! Cases are random, each made from a seed that a failure names. Device `mem0` has four TX queues, whose owners are kept from
//! their CPU now and then, and neighbours that are not known at the start. Sockets, raw senders and a poller send by it, and
//! packets from `mem1` are forwarded to it; the host at its far end answers ARP and neighbour discovery late, by any queue, and
//! checks what comes. As many packets wait for a neighbour as there is room for, but no more.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use softnet::config::{Context, InterfaceAddr};
use softnet::net::UdpSocket;
use softnet::{NapiPoller, PacketFilter, PollerParams, RawSender, WouldBlock};
use softnet_core::SoftnetData;
use softnet_core::skb::Batch;
use softnet_dev::{QueueStats, Reaped, TxQueue};

use super::frames::{Rng, arp_answer, batch_of, host, numbered, own};
use super::frames6::{advert6, datagram6, host6, own6};
use super::world::{Lane, Setup, World, of_port, on_all, until};

const QUEUES: usize = 4;
/// Packets on the way to one neighbour at the most; a few more may wait for one.
const WINDOW: u64 = 96;
/// How long cases are run, and how many at the most.
const TIME: Duration = Duration::from_secs(8);
const CASES: u64 = 60;
const MTU: usize = 1500;

/// A TX queue whose owner is kept from its CPU now and then.
struct Stalling(Box<dyn TxQueue>, Rng);

impl Stalling {
    fn before(queue: Box<dyn TxQueue>) -> Box<dyn TxQueue> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Box::new(Stalling(queue, Rng(NEXT.fetch_add(1, Ordering::Relaxed))))
    }
}

impl TxQueue for Stalling {
    fn reap(&mut self, ctx: &mut SoftnetData) -> Reaped {
        self.0.reap(ctx)
    }
    fn tx_burst(&mut self, ctx: &mut SoftnetData, batch: &mut Batch) -> usize {
        self.0.tx_burst(ctx, batch)
    }
    fn kick(&mut self, ctx: &mut SoftnetData) -> bool {
        match self.1.below(64) {
            0 => std::thread::sleep(Duration::from_micros(200)),
            1..8 => (0..self.1.below(20)).for_each(|_| std::thread::yield_now()),
            _ => {}
        }
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

/// A neighbour on the link of `mem0`, and the packets on the way to it.
struct Neighbour {
    addr: IpAddr,
    sent: AtomicU64,
    arrived: AtomicU64,
}

impl Neighbour {
    fn new(addr: IpAddr) -> Self {
        Neighbour { addr, sent: AtomicU64::new(0), arrived: AtomicU64::new(0) }
    }
}

/// How packets of a flow come to `mem0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    /// By this queue of `mem1`.
    Forwarded(usize),
    Made,
}

/// A flow that the host at the far end knows by its number.
#[derive(Debug)]
struct Flow {
    number: u32,
    origin: Origin,
    /// Which neighbour it goes by; `None` if its sender knows the MAC address itself.
    by: Option<usize>,
    dst: IpAddr,
    packets: u32,
}

/// A socket and its flows.
#[derive(Debug)]
struct Sender {
    v6: bool,
    connected: bool,
    nonblocking: bool,
    /// Several datagrams in one call.
    batches: bool,
    flows: Vec<Flow>,
}

/// One case.
struct Case {
    neighbours: Vec<Neighbour>,
    sockets: Vec<Sender>,
    /// Flows of raw senders, each with one, and of a poller.
    raw: Vec<Flow>,
    forwarded: Vec<Flow>,
    qdisc_max_burst: u32,
    contexts: [Context; 2],
    /// Forwarded packets that were dropped because too many were pending.
    dropped: AtomicU64,
    /// All packets have come, or a thread has failed.
    over: AtomicBool,
}

/// When it is dropped the case is over.
struct Over<'a>(&'a Case);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.over.store(true, Ordering::Relaxed);
    }
}

impl Case {
    fn new(rng: &mut Rng) -> Case {
        let v4 = (0..3).map(|i| Ipv4Addr::new(10, 0, 0, 10 + i).into()).chain([host(0).into()]);
        let v6 = (0..3).map(|i| Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 10 + i).into());
        let neighbours: Vec<_> = v4.chain(v6).map(Neighbour::new).collect();
        let mut numbers = 0..;
        let mut flow = |rng: &mut Rng, v6: bool, origin, packets: usize| {
            let by = if v6 { 4 + rng.below(3) } else { rng.below(4) };
            let number = numbers.next().expect("without end");
            // That one is the gateway to a network.
            let dst =
                if by == 3 { Ipv4Addr::new(10, 100, 1, number as u8).into() } else { neighbours[by].addr };
            Flow { number, origin, by: Some(by), dst, packets: (packets + rng.below(packets)) as u32 }
        };
        let sockets = (0..6).map(|_| {
            let [v6, connected, nonblocking, batches] = std::array::from_fn(|_| rng.below(2) == 0);
            let n = if connected { 1 } else { 1 + rng.below(3) };
            let flows = (0..n).map(|_| flow(rng, v6, Origin::Made, 40)).collect();
            Sender { v6, connected, nonblocking, batches, flows }
        });
        let sockets = sockets.collect();
        let known = |flow: Flow| Flow { by: None, dst: host(0).into(), ..flow };
        let raw = (0..3).map(|_| known(flow(rng, false, Origin::Made, 100))).collect();
        let forwarded = (0..2 * QUEUES).map(|i| {
            let v6 = rng.below(2) == 0;
            flow(rng, v6, Origin::Forwarded(i % QUEUES), 150)
        });
        let forwarded = forwarded.collect();
        let context = |rng: &mut Rng| [Context::Softirq, Context::Threaded, Context::Workqueue][rng.below(3)];
        Case {
            neighbours,
            sockets,
            raw,
            forwarded,
            qdisc_max_burst: [1, 4, 16, 1000][rng.below(4)],
            contexts: [context(rng), context(rng)],
            dropped: AtomicU64::new(0),
            over: AtomicBool::new(false),
        }
    }

    fn flows(&self) -> impl Iterator<Item = &Flow> {
        self.sockets.iter().flat_map(|socket| &socket.flows).chain(&self.raw).chain(&self.forwarded)
    }

    /// Whether forwarded packets may be dropped: local senders may fill the pending list.
    fn may_drop(&self) -> bool {
        self.qdisc_max_burst < 1000
    }

    fn start(&self) -> (World, Vec<Lane>) {
        let setup = Setup {
            ports: &[QUEUES, QUEUES],
            workers: 2,
            known: false,
            tx: Some(Stalling::before),
            ..Setup::default()
        };
        setup.start_with(|config| {
            config.stack.txq_reselection_ms = 0;
            config.stack.qdisc_max_burst = self.qdisc_max_burst;
            config.stack.default_qdisc = "pfifo limit 20000".parse().unwrap();
            for (port, device) in config.devices.iter_mut().enumerate() {
                device.threaded = self.contexts[port];
                device.addresses.push(InterfaceAddr::new(own6(port), 64).unwrap());
            }
        })
    }

    /// Waits until `n` more packets to neighbour `by` may be on the way. Those that were dropped are.
    fn reserve(&self, by: usize, n: u64) {
        let Neighbour { sent, arrived, .. } = &self.neighbours[by];
        until("room for more packets", || {
            assert!(!self.over.load(Ordering::Relaxed), "another thread failed");
            let arrived = arrived.load(Ordering::Acquire);
            // None is before the neighbour is known.
            let lost = if arrived > 0 { self.dropped.load(Ordering::Relaxed) } else { 0 };
            let fits = |sent: u64| (sent + n <= arrived + lost + WINDOW).then_some(sent + n);
            sent.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_ok()
        });
    }
}

/// The number of a flow and of a packet of it, again and again: in every fragment it comes first.
fn payload(flow: u32, number: u32, words: usize) -> Vec<u8> {
    [flow.to_be_bytes(), number.to_be_bytes()].concat().repeat(words)
}

/// Packets that a datagram with `len` bytes of payload is sent in.
fn packets_of(v6: bool, len: usize) -> u64 {
    let (header, room) = if v6 { (40, (MTU - 48) & !7) } else { (20, (MTU - 20) & !7) };
    if header + 8 + len <= MTU { 1 } else { (8 + len).div_ceil(room) as u64 }
}

/// What a frame says: its flow and number, and which fragment it is, in units of 8 bytes, and whether others follow.
fn said(frame: &[u8]) -> Option<(u32, u32, u32, bool)> {
    const UDP: u8 = 17;
    const FRAGMENT: u8 = 44;
    let half = |at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
    let (data, offset, more) = match (half(12), frame[20], frame[23]) {
        (0x0800, _, UDP) => (34, half(20) & 0x1fff, half(20) & 0x2000 != 0),
        (0x86dd, UDP, _) => (54, 0, false),
        (0x86dd, FRAGMENT, _) => (62, half(56) >> 3, half(56) & 1 != 0),
        _ => return None,
    };
    let data = if offset == 0 { data + 8 } else { data };
    let word = |at: usize| u32::from_be_bytes([frame[at], frame[at + 1], frame[at + 2], frame[at + 3]]);
    Some((word(data), word(data + 4), offset.into(), more))
}

/// A socket's thread.
fn send_datagrams(world: &World, case: &Case, sender: &Sender, mut rng: Rng) {
    let own: IpAddr = if sender.v6 { own6(0).into() } else { own(0).into() };
    let socket = UdpSocket::bind(&world.handle(), (own, 0)).unwrap();
    socket.set_nonblocking(sender.nonblocking).unwrap();
    let to = |flow: &Flow| SocketAddr::new(flow.dst, 9);
    if sender.connected {
        socket.connect(to(&sender.flows[0])).unwrap();
    }
    let mut next = vec![0; sender.flows.len()];
    while let Some(left) = (0..next.len()).find(|i| next[*i] < sender.flows[*i].packets) {
        let at = Some(rng.below(next.len())).filter(|i| next[*i] < sender.flows[*i].packets).unwrap_or(left);
        let flow = &sender.flows[at];
        let n = (flow.packets - next[at]).min(if sender.batches { 1 + rng.below(5) as u32 } else { 1 });
        let datagrams: Vec<_> = (next[at]..next[at] + n)
            .map(|number| {
                let words = if rng.below(6) == 0 { 1 + rng.below(600) } else { 1 + rng.below(100) };
                payload(flow.number, number, words)
            })
            .collect();
        let packets = datagrams.iter().map(|data| packets_of(sender.v6, data.len())).sum();
        case.reserve(flow.by.expect("a socket needs one"), packets);
        let mut left = &datagrams[..];
        until("the datagrams are taken", || {
            let to = (!sender.connected).then(|| to(flow));
            let sent = match (left, to) {
                _ if sender.batches => {
                    socket.send_batch(&left.iter().map(|data| (&data[..], to)).collect::<Vec<_>>())
                }
                ([data], Some(to)) => socket.send_to(data, to).map(|_| 1),
                ([data], None) => socket.send(data).map(|_| 1),
                _ => unreachable!("one of them"),
            };
            match sent {
                Ok(n) => left = &left[n..],
                Err(error) => {
                    assert_eq!((error.kind(), sender.nonblocking), (ErrorKind::WouldBlock, true), "{error}");
                }
            }
            left.is_empty()
        });
        next[at] += n;
        if rng.below(10) == 0 {
            std::thread::yield_now();
        }
    }
}

/// Sends the packets of a flow by `send`, which leaves in the batch what it does not take.
fn send_frames(flow: &Flow, rng: &mut Rng, mut send: impl FnMut(&[Vec<u8>], bool)) {
    let mut next = 0;
    while next < flow.packets {
        let last = flow.packets.min(next + 1 + rng.below(10) as u32);
        let frames: Vec<_> = (next..last).map(|number| numbered(0, host(0), flow.number, number)).collect();
        send(&frames, rng.below(2) == 0);
        next = last;
        std::thread::yield_now();
    }
}

/// Frames in a batch.
fn batch(ctx: &mut SoftnetData, frames: &[Vec<u8>]) -> Batch {
    let mut batch = Batch::new();
    for frame in frames {
        batch_of(ctx, frame, 1).drain().for_each(|skb| batch.push(skb).unwrap());
    }
    batch
}

/// A raw sender's thread.
fn send_raw(mut sender: RawSender, flow: &Flow, mut rng: Rng) {
    send_frames(flow, &mut rng, |frames, waits| {
        let mut batch = batch(sender.ctx(), frames);
        until("the frames are taken", || match waits {
            true => {
                sender.send(&mut batch);
                true
            }
            false => sender.try_send(&mut batch) != Err(WouldBlock),
        });
    });
}

/// The thread of a poller that sends.
fn poll_and_send(mut poller: NapiPoller, flow: &Flow, mut rng: Rng) {
    send_frames(flow, &mut rng, |frames, waits| {
        poll(&mut poller);
        let mut batch = batch(poller.ctx(), frames);
        until("the frames are taken", || match waits {
            true => {
                poller.send(&mut batch);
                true
            }
            false => poller.try_send(&mut batch) != Err(WouldBlock),
        });
    });
}

/// Polls what it does not want any of.
fn poll(poller: &mut NapiPoller) {
    let mut none = Batch::new();
    assert_eq!(poller.wait(&mut none, Some(Duration::from_micros(100))).unwrap(), 0);
}

/// The host at `mem1` sends what is to be forwarded.
fn send_through(case: &Case, lane: &mut Lane, mut rng: Rng) {
    let of_lane = |flow: &&Flow| flow.origin == Origin::Forwarded(lane.queue);
    let flows: Vec<_> = case.forwarded.iter().filter(of_lane).collect();
    let mut next: BTreeMap<usize, u32> = (0..flows.len()).map(|i| (i, 0)).collect();
    while !next.is_empty() {
        let left = next.len();
        let (&at, number) = next.iter_mut().nth(rng.below(left)).expect("not empty");
        let flow = flows[at];
        let last = flow.packets.min(*number + 1 + rng.below(12) as u32);
        let frame = |number: u32| match flow.dst {
            IpAddr::V4(dst) => numbered(1, dst, flow.number, number),
            IpAddr::V6(dst) => datagram6(1, (host6(1), dst), (7, 9), &payload(flow.number, number, 1)),
        };
        let frames: Vec<_> = (*number..last).map(frame).collect();
        case.reserve(flow.by.expect("it has a next hop"), frames.len() as u64);
        let mut left = &frames[..];
        until("room in the ring", || {
            left = &left[lane.send(left)..];
            left.is_empty()
        });
        *number = last;
        if last == flow.packets {
            next.remove(&at);
        }
        if rng.below(4) == 0 {
            std::thread::yield_now();
        }
    }
}

/// What the far end of `mem0` has seen of a flow.
#[derive(Default)]
struct Seen {
    queue: Option<usize>,
    next: u32,
    /// Of the fragment that comes next.
    offset: u32,
    packets: u64,
}

/// The host at `mem0`: answers late, by any queue, and checks what comes, until all has.
fn receive(world: &World, case: &Case, lanes: &mut [Lane], sources_done: &AtomicU32, mut rng: Rng) {
    let flows: BTreeMap<u32, &Flow> = case.flows().map(|flow| (flow.number, flow)).collect();
    let mut seen: BTreeMap<u32, Seen> = flows.keys().map(|flow| (*flow, Seen::default())).collect();
    let mut answers: Vec<(Instant, usize, Vec<u8>)> = Vec::new();
    let forwarded = case.forwarded.iter().map(|flow| u64::from(flow.packets)).sum();
    until("all packets", || {
        for lane in &mut *lanes {
            let queue = lane.queue;
            lane.receive(|frame| {
                let Some((number, packet, offset, more)) = said(frame) else {
                    let answer = case.neighbours.iter().find_map(|neighbour| match neighbour.addr {
                        IpAddr::V4(addr) => arp_answer(0, addr, frame),
                        IpAddr::V6(addr) => advert6(0, addr, frame),
                    });
                    let late = Duration::from_micros(rng.below(4000) as u64);
                    answers.extend(answer.map(|frame| (Instant::now() + late, rng.below(QUEUES), frame)));
                    return;
                };
                let (flow, seen) = (flows[&number], seen.get_mut(&number).unwrap());
                let first = *seen.queue.get_or_insert(queue);
                assert_eq!(first, queue, "{flow:?} changes its TX queue at {packet}");
                if let Origin::Forwarded(queue) = flow.origin {
                    assert_eq!(first, queue, "{flow:?}");
                }
                let lost = case.may_drop() && flow.origin != Origin::Made && packet > seen.next;
                assert!(
                    lost || (packet, offset) == (seen.next, seen.offset),
                    "{flow:?}: {packet} at {offset} for {} at {}, queue {queue}",
                    seen.next,
                    seen.offset
                );
                (seen.next, seen.offset) = match more {
                    true => (packet, offset + (MTU as u32 - if frame[12] == 8 { 20 } else { 48 }) / 8),
                    false => (packet + 1, 0),
                };
                seen.packets += 1;
                if let Some(by) = flow.by {
                    case.neighbours[by].arrived.fetch_add(1, Ordering::Release);
                }
            });
        }
        answers.retain(|(at, queue, frame)| {
            let waits = *at > Instant::now();
            if !waits {
                lanes[*queue].send(std::slice::from_ref(frame));
            }
            waits
        });
        let drops = world.view.drops();
        let dropped = drops.iter().map(|row| row.packets).sum();
        assert!(dropped == 0 || case.may_drop(), "{drops:?}");
        assert!(drops.iter().all(|row| row.reason == "qdisc_burst_drop"), "{drops:?}");
        case.dropped.store(dropped, Ordering::Relaxed);
        let complete = |flow: &Flow| {
            flow.origin != Origin::Made && case.may_drop() || seen[&flow.number].next == flow.packets
        };
        flows.values().all(|flow| complete(flow))
            && sources_done.load(Ordering::Acquire) == QUEUES as u32
            && is_idle(world, lanes, forwarded)
    });
}

/// Whether nothing is on the way, now that all `forwarded` packets were sent to softnet: what it received and made has come by
/// `lanes`, the only ones that it sends by, or was dropped.
fn is_idle(world: &World, lanes: &[Lane], forwarded: u64) -> bool {
    let s = world.view.stats();
    let (answers, came) = lanes.iter().map(Lane::counts).fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1));
    s.received == forwarded + answers
        && s.received + s.originated == s.transmitted + s.delivered + s.dropped
        && s.transmitted == came
}

fn run(seed: u64) {
    let mut rng = Rng(seed);
    let case = Case::new(&mut rng);
    let (world, mut sources) = case.start();
    let mut sinks = of_port(&mut sources, 0);
    let sources_done = AtomicU32::new(0);
    let instance = |port: u16, queue: u16| {
        let napis = world.shared.napis();
        napis.iter().find(|i| (i.napi.dev, i.napi.queue) == (port, queue)).expect("it is open").napi.id
    };
    let poller = |id: u32, usecs: u32| {
        let params =
            PollerParams { busy_poll_usecs: usecs, prefer_busy_poll: usecs == 0, ..PollerParams::default() };
        NapiPoller::new(&world.handle(), id, "test", PacketFilter::UdpPort(99), params).unwrap()
    };
    let pollers = [(0, rng.below(QUEUES)), (1, rng.below(QUEUES))]
        .map(|(port, queue)| poller(instance(port, queue as u16), 30 * rng.below(2) as u32));
    let lanes = std::thread::scope(|scope| {
        let mut seeds = std::iter::repeat_with(|| Rng(rng.next()));
        let mut next = || seeds.next().expect("without end");
        let (case, done, over) = (&case, &sources_done, Over(&case));
        for sender in &case.sockets {
            let (world, rng) = (&world, next());
            scope.spawn(move || send_datagrams(world, case, sender, rng));
        }
        let [sends, mut polls] = pollers;
        let (by_poller, raw) = case.raw.split_first().expect("some");
        for flow in raw {
            let (sender, rng) = (RawSender::new(&world.handle(), "mem0").unwrap(), next());
            scope.spawn(move || send_raw(sender, flow, rng));
        }
        let rng = next();
        scope.spawn(move || poll_and_send(sends, by_poller, rng));
        scope.spawn(move || {
            while !case.over.load(Ordering::Relaxed) {
                poll(&mut polls);
            }
        });
        let seed = next().next();
        let through = scope.spawn(move || {
            on_all(sources, |lane| {
                send_through(case, lane, Rng(seed ^ lane.queue as u64));
                done.fetch_add(1, Ordering::Release);
            })
        });
        receive(&world, case, &mut sinks, done, next());
        drop(over);
        through.join().unwrap().into_iter().chain(sinks).collect()
    });
    world.end(lanes);
}

/// Says by which seed a case was made that failed.
struct Seed(u64);

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the case of seed {}", self.0);
        }
    }
}

#[test]
fn flows_keep_their_queue_and_order_while_neighbours_are_found() {
    let begin = Instant::now();
    for seed in (0..CASES).take_while(|_| begin.elapsed() < TIME) {
        let seed = Seed(seed);
        run(seed.0);
    }
}
