//! Over an in-process wire of two queues, whose far end writes and reads frames byte by byte.

use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use softnet::Stack;
use softnet::config::{Config, DeviceConfig, InterfaceAddr, NeighbourConfig};
use softnet::driver::OpenRequest;
use softnet::internals::Assembly;
use softnet_core::SoftnetData;
use softnet_core::ip::checksum;
use softnet_core::ip::v4::header::{Ipv4Header, protocol};
use softnet_core::skb::{Batch, CacheSizes, HEADROOM};
use softnet_dev::mem::{PairConfig, pair};
use softnet_dev::{Device, OpenDevice, RxQueue, TxQueue};

use super::*;
use crate::store::Store;
use crate::{Counters, Server};

const PATIENCE: Duration = Duration::from_secs(60);
const MACS: [[u8; 6]; 2] = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]];
const OWN: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const SECOND: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 9);
const HOST: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const HEADERS: usize = 14 + 20 + 8;

/// One queue of the far end.
struct Lane {
    rx: Box<dyn RxQueue>,
    tx: Box<dyn TxQueue>,
    ctx: SoftnetData,
    _device: Arc<dyn Device>,
}

impl Lane {
    fn send(&mut self, frame: &[u8]) {
        let mut batch = Batch::new();
        let mut memory = self.ctx.alloc_frame().unwrap();
        memory.bytes_mut()[HEADROOM..][..frame.len()].copy_from_slice(frame);
        let skb = self.ctx.build_skb(memory, HEADROOM, frame.len()).ok().unwrap();
        batch.push(skb).unwrap();
        assert_eq!(self.tx.tx_burst(&mut self.ctx, &mut batch), 1);
        self.tx.kick(&mut self.ctx);
    }
}

/// Ports and payload of the next datagram that softnet sends, by whichever queue.
fn receive(lanes: &mut [Lane]) -> ([u16; 2], Vec<u8>) {
    let (frame, payload) = receive_frame(lanes);
    let port = |at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
    ([port(34), port(36)], payload)
}

/// The frame of it, and its payload.
fn receive_frame(lanes: &mut [Lane]) -> (Vec<u8>, Vec<u8>) {
    let give_up = Instant::now() + PATIENCE;
    loop {
        for lane in &mut *lanes {
            let mut batch = Batch::new();
            lane.rx.rx_burst(&mut lane.ctx, &mut batch, 1);
            if let Some(skb) = batch.drain().next() {
                let frame = skb.data().to_vec();
                lane.ctx.free_skb(skb);
                assert_eq!(frame[..14], [&MACS[1][..], &MACS[0], &[8, 0]].concat());
                let payload = frame[HEADERS..].to_vec();
                return (frame, payload);
            }
        }
        assert!(Instant::now() < give_up, "nothing comes");
        std::thread::yield_now();
    }
}

/// What is answered to a request that comes by `queue`.
fn ask(lanes: &mut [Lane], queue: usize, id: u8, request: &[u8]) -> Vec<u8> {
    lanes[queue].send(&ip(0, &udp(999, id, request)));
    let (ports, answer) = receive(lanes);
    assert_eq!((ports, &answer[..8]), ([11211, 999], &[0, id, 0, 0, 0, 1, 0, 0][..]));
    answer[8..].to_vec()
}

/// A datagram of memcached's protocol.
fn udp(port: u16, id: u8, request: &[u8]) -> Vec<u8> {
    let len = 16 + request.len() as u16;
    let mut udp = [port, 11211, len, 0].map(u16::to_be_bytes).concat();
    udp.extend([0, id, 0, 0, 0, 1, 0, 0]);
    udp.extend(request);
    udp
}

/// A frame with this IPv4 payload; `fragment` is what is said of fragments.
fn ip(fragment: u16, payload: &[u8]) -> Vec<u8> {
    let mut frame = [&MACS[0][..], &MACS[1], &[8, 0], &[0; 20], payload].concat();
    let mut header = Ipv4Header::new_mut(&mut frame[14..]).unwrap();
    header.fill(20 + payload.len() as u16, 7, 64, protocol::UDP, HOST.to_bits(), OWN.to_bits());
    frame[20..22].copy_from_slice(&fragment.to_be_bytes());
    frame[24..26].fill(0);
    let check = !checksum::sum(&frame[14..34]);
    frame[24..26].copy_from_slice(&check.to_be_bytes());
    frame
}

fn world() -> (Stack, Vec<Lane>) {
    let mut config = Config::default();
    let addresses = [OWN, SECOND].map(|own| InterfaceAddr::new(own, 24).unwrap()).to_vec();
    config.devices = vec![DeviceConfig::new("mem0").with(|device| device.addresses = addresses)];
    config.neighbours = vec![NeighbourConfig::new("mem0", HOST, MACS[1])];
    let lanes = Arc::new(Mutex::new(Vec::new()));
    let assembly = Assembly::new(config, Vec::new(), |region| {
        let (region, lanes) = (region.clone(), lanes.clone());
        Ok(move |&OpenRequest { dev, .. }: &OpenRequest<'_>, _: &mut SoftnetData| {
            let names = ["mem0".into(), "host0".into()];
            let config = PairConfig { queues: 2, ring: 256, macs: MACS, names, mtu: 1500, rss: false };
            let [near, far] = pair(&region, [dev, dev + 32], &config).unwrap();
            let OpenDevice { device, rx, tx, .. } = far;
            let lane = |(rx, tx)| Lane {
                rx,
                tx,
                ctx: SoftnetData::new(region.clone(), CacheSizes::default()),
                _device: device.clone(),
            };
            lanes.lock().unwrap().extend(rx.into_iter().zip(tx).map(lane));
            Ok::<_, String>(near)
        })
    });
    let stack = Stack::run(assembly.unwrap()).unwrap();
    let lanes = std::mem::take(&mut *lanes.lock().unwrap());
    (stack, lanes)
}

/// Stops the stack, and checks that all packets are in the books and all memory is home.
fn end(stack: Stack, lanes: Vec<Lane>) {
    let view = stack.view().clone();
    drop(stack);
    for mut lane in lanes {
        lane.rx.close(&mut lane.ctx);
        lane.tx.close(&mut lane.ctx);
        lane.ctx.drain();
    }
    let s = view.stats();
    assert_eq!(s.received + s.originated, s.transmitted + s.delivered + s.dropped + s.merged, "{s:?}");
    assert_eq!((s.frames_free, s.heads_free, s.held, s.leaked), (s.frames, s.heads, 0, 0), "{s:?}");
}

fn bound(stack: &Stack, waiting: Waiting, stop: &Stop) -> io::Result<SoftnetSockets> {
    SoftnetSockets::bound(&stack.handle(), &[(OWN, 11211).into()], waiting, stop)
}

const POLLS: Waiting = Waiting {
    params: EpollParams { busy_poll_usecs: 50, busy_poll_budget: 64, prefer_busy_poll: true },
    max_events: 1,
    batch: 8,
    longest: Some(Duration::from_millis(1)),
};

#[test]
fn each_thread_serves_what_comes_by_its_instance() {
    for waiting in [Waiting::default(), POLLS] {
        let (stack, mut lanes) = world();
        let stop = Arc::new(Stop::new().unwrap());
        let sets: Vec<_> = (0..2).map(|_| bound(&stack, waiting, &stop).unwrap()).collect();
        assert_eq!(sets[0].local_addrs().unwrap(), [(OWN, 11211).into()]);
        let napis: Vec<u32> = stack.view().napis().iter().map(|napi| napi.id).collect();
        sets.iter().zip(&napis).for_each(|(set, napi)| set.lead_napi(*napi));
        let mut server = Server::start(sets, &Arc::new(Store::new(1 << 20, 1)), &stop).unwrap();
        assert_eq!(ask(&mut lanes, 0, 1, b"set key 5 0 3\r\nabc\r\n"), b"STORED\r\n");
        for (i, queue) in [0, 1, 1, 0, 1].into_iter().enumerate() {
            // Of one flow, by either queue.
            let answer = ask(&mut lanes, queue, i as u8, b"get key\r\n");
            assert_eq!(answer, b"VALUE key 5 3\r\nabc\r\nEND\r\n");
        }
        stop.stop();
        server.join().unwrap();
        let received = |counters: &Counters| (counters.received.get(), counters.sent.get());
        assert_eq!(server.counters().iter().map(received).collect::<Vec<_>>(), [(3, 3), (3, 3)]);
        end(stack, lanes);
    }
}

#[test]
fn connected_sockets_ask_their_peer_and_hear_nobody_else() {
    let (stack, mut lanes) = world();
    let stop = Stop::new().unwrap();
    let peer = (HOST, 11211).into();
    let mut set = SoftnetSockets::connected(&stack.handle(), peer, 2, POLLS, &stop).unwrap();
    let ports: Vec<u16> = set.local_addrs().unwrap().iter().map(SocketAddr::port).collect();
    assert!(ports[0] != ports[1] && !ports.contains(&0), "{ports:?}");
    let mut outbox = Outbox::default();
    // Whatever it names: it goes to the peer.
    outbox.begin(SocketAddr::from((Ipv4Addr::new(192, 0, 2, 1), 9)));
    outbox.put(b"request");
    for (socket, port) in ports.iter().enumerate() {
        assert_eq!(set.send(socket, &outbox).unwrap(), 0);
        set.wait(Some(Duration::ZERO), &mut Vec::new()).unwrap();
        assert_eq!(receive(&mut lanes), ([*port, 11211], b"request".to_vec()));
    }
    let to = |port: u16, from: u16| {
        let header = [from, port, 8 + 6, 0].map(u16::to_be_bytes).concat();
        ip(0, &[&header[..], b"answer"].concat())
    };
    lanes[0].send(&to(ports[1], 11212));
    lanes[0].send(&to(ports[1], 11211));
    let (mut ready, give_up) = (Vec::new(), Instant::now() + PATIENCE);
    while ready.is_empty() {
        assert!(Instant::now() < give_up, "nothing comes");
        set.wait(Some(PATIENCE), &mut ready).unwrap();
    }
    assert_eq!((&ready[..], set.recv(1).unwrap(), set.datagram(0)), (&[1][..], 1, (peer, &b"answer"[..])));
    let nowhere = (Ipv4Addr::new(192, 0, 2, 1), 9).into();
    let unreachable = SoftnetSockets::connected(&stack.handle(), nowhere, 1, POLLS, &stop).map(|_| ());
    assert_eq!(unreachable.unwrap_err().kind(), ErrorKind::NetworkUnreachable);
    drop(set);
    end(stack, lanes);
}

#[test]
fn a_datagram_that_came_in_fragments_is_one_piece() {
    let (stack, mut lanes) = world();
    let stop = Stop::new().unwrap();
    let mut set = bound(&stack, Waiting::default(), &stop).unwrap();
    let value: Vec<u8> = (0..2000).map(|i| b'a' + (i % 26) as u8).collect();
    let whole = udp(999, 1, &value);
    let (first, second) = whole.split_at(1208);
    const MORE: u16 = 0x2000;
    lanes[0].send(&ip(0, &udp(998, 2, b"before")));
    lanes[0].send(&ip(MORE, first));
    lanes[0].send(&ip(1208 / 8, second));
    lanes[0].send(&ip(0, &udp(997, 3, b"after")));
    let (mut ready, mut seen) = (Vec::new(), Vec::new());
    while seen.len() < 3 {
        set.wait(Some(PATIENCE), &mut ready).unwrap();
        assert_eq!(ready, [0]);
        for i in 0..set.recv(0).unwrap() {
            let (from, datagram) = set.datagram(i);
            seen.push((from.port(), datagram[8..].to_vec()));
        }
    }
    seen.sort_by_key(|(port, _)| *port);
    assert_eq!(seen, [(997, b"after".to_vec()), (998, b"before".to_vec()), (999, value)]);
    assert!(stack.view().napis().iter().any(|napi| napi.id == set.napi_id(0)));
    drop(set);
    end(stack, lanes);
}

#[test]
fn waits_end_and_what_cannot_be_sent_is_refused() {
    let (stack, mut lanes) = world();
    let stop = Stop::new().unwrap();
    let mut set = bound(&stack, Waiting::default(), &stop).unwrap();
    let mut ready = vec![1];
    set.wait(Some(Duration::from_millis(1)), &mut ready).unwrap();
    assert_eq!((ready.len(), set.recv(0).unwrap()), (0, 0));
    let mut impatient = bound(&stack, POLLS, &stop).unwrap();
    impatient.wait(None, &mut ready).unwrap();
    assert!(ready.is_empty());
    let mut outbox = Outbox::default();
    for to in [(HOST, 9), (Ipv4Addr::new(192, 0, 2, 1), 9), (HOST, 0), (HOST, 10)] {
        outbox.begin(SocketAddr::from(to));
        outbox.put(b"datagram");
    }
    outbox.begin(SocketAddr::from((HOST, 9)));
    outbox.put(&[0; 65_508]);
    assert_eq!(set.send(0, &outbox).unwrap(), 3, "no route, no port, too long");
    set.wait(Some(Duration::ZERO), &mut ready).unwrap();
    for port in [9, 10] {
        assert_eq!(receive(&mut lanes), ([11211, port], b"datagram".to_vec()));
    }
    stop.stop();
    set.wait(None, &mut ready).unwrap();
    assert!(ready.is_empty());
    let params = EpollParams { busy_poll_budget: 65, ..EpollParams::default() };
    let wrong = bound(&stack, Waiting { params, ..Waiting::default() }, &stop).map(|_| ()).unwrap_err();
    assert_eq!(wrong.kind(), ErrorKind::InvalidInput);
    let foreign = SoftnetSockets::bound(&stack.handle(), &[(HOST, 1).into()], Waiting::default(), &stop);
    assert_eq!(foreign.map(|_| ()).unwrap_err().kind(), ErrorKind::AddrNotAvailable);
    drop((set, impatient));
    end(stack, lanes);
}

/// A server that is bound to no address answers from the one that was asked.
#[test]
fn a_server_on_no_address_answers_from_the_one_that_was_asked() {
    let (stack, mut lanes) = world();
    let stop = Arc::new(Stop::new().unwrap());
    let addresses = [("0.0.0.0:11211", OWN), ("0.0.0.0:11211", SECOND)];
    let set =
        SoftnetSockets::bound(&stack.handle(), &[addresses[0].0.parse().unwrap()], Waiting::default(), &stop);
    let mut server = Server::start(vec![set.unwrap()], &Arc::new(Store::new(0, 1)), &stop).unwrap();
    for (_, asked) in addresses {
        // In one piece, and in fragments.
        let request = [b"get ".to_vec(), vec![b'x'; 200], b"\r\n".to_vec()].concat();
        let whole = udp(999, 7, &request);
        let (first, second) = whole.split_at(64);
        for frames in [vec![ip(0, &whole)], vec![ip(0x2000, first), ip(8, second)]] {
            for mut frame in frames {
                frame[30..34].copy_from_slice(&asked.octets());
                frame[24..26].fill(0);
                let check = !checksum::sum(&frame[14..34]);
                frame[24..26].copy_from_slice(&check.to_be_bytes());
                lanes[0].send(&frame);
            }
            let (frame, answer) = receive_frame(&mut lanes);
            assert_eq!((&frame[26..30], &answer[8..]), (&asked.octets()[..], &b"END\r\n"[..]));
        }
    }
    stop.stop();
    server.join().unwrap();
}
