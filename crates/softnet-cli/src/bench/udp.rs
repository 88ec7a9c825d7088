//! `softnet bench udp`: what a datagram costs that a socket receives or sends, by how many at once and how many sockets
//! there are.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::json;
use softnet::config::{Config, DeviceConfig, NeighbourConfig};
use softnet::driver::{OpenRequest, Own};
use softnet::internals::Assembly;
use softnet::net::{Handle, RecvBatch, UdpSocket};
use softnet_core::SoftnetData;
use softnet_core::ip::checksum;
use softnet_core::ip::v4::header::{Ipv4Header, protocol};
use softnet_core::skb::{BATCH, Region};
use softnet_dev::mem::{NicConfig, NicPort, Sink, Source, nic};

use super::harness::{Case, alternate};
use super::report::{Bound, REFERENCE, Report, Row, Sample};
use super::templates::{Random, SIZE, Template};
use super::{Common, pin};
use crate::bench::text;

/// What `softnet bench udp --help` ends with.
pub(super) const HELP: &str = "\
One thread is everything: it plays the wire of an emulated NIC, runs the worker, and is the application. 64 datagrams of \
22 bytes arrive or leave in a round, for or from so many sockets as there are, in an order that has nothing to do with how \
they were opened.

  recv    from the NIC's ring through a socket to the application; BATCH of them by one call (recv_from, or recv_batch
          without a copy), and for one socket after the other
  send    from the application's bytes to the NIC; BATCH of them by one call (send_to, or send_batch)

Every payload is compared, and all are counted.";

const MAC: [u8; 6] = [0x02, 0, 0, 0, 1, 0];
const PEER: (Ipv4Addr, [u8; 6]) = (Ipv4Addr::new(198, 18, 255, 1), [0x02, 0, 0, 0, 9, 9]);
const PEER_PORT: u16 = 9;
/// Own addresses, each with as many sockets as the others.
const ADDRESSES: usize = 4;
const FIRST_PORT: usize = 1024;
const PAYLOAD: usize = SIZE - 42;

#[derive(Args, Debug)]
pub(crate) struct Udp {
    #[command(flatten)]
    pub(super) common: Common,
}

fn own(i: usize) -> Ipv4Addr {
    Ipv4Addr::new(198, 18, 0, 1 + i as u8)
}

/// Address and port of socket `i`.
fn name(i: usize) -> (Ipv4Addr, u16) {
    (own(i % ADDRESSES), (FIRST_PORT + i / ADDRESSES) as u16)
}

/// The payload of datagrams to and from socket `i`.
fn payload(i: usize) -> [u8; PAYLOAD] {
    let mut payload = [0x5a; PAYLOAD];
    payload[..8].copy_from_slice(&(i as u64).to_be_bytes());
    payload
}

/// A datagram from the peer to socket `i`.
fn template(i: usize) -> Template {
    let mut t = [0; SIZE];
    let ((dst, port), len) = (name(i), (SIZE - 34) as u16);
    let (src, dst) = (PEER.0.to_bits(), dst.to_bits());
    t[..6].copy_from_slice(&MAC);
    t[6..12].copy_from_slice(&PEER.1);
    t[12] = 8;
    if let Some(mut ip) = Ipv4Header::new_mut(&mut t[14..]) {
        ip.fill((SIZE - 14) as u16, 0, 64, protocol::UDP, src, dst);
    }
    for (at, word) in [(34, PEER_PORT), (36, port), (38, len)] {
        t[at..at + 2].copy_from_slice(&word.to_be_bytes());
    }
    t[42..].copy_from_slice(&payload(i));
    let pseudo = checksum::pseudo_header_sum(src, dst, protocol::UDP, len);
    let check = !checksum::add(pseudo, checksum::sum(&t[34..]));
    t[40..42].copy_from_slice(&check.to_be_bytes());
    Template(t)
}

/// Writes the templates in turn, each so often in a row as is said.
struct Wire {
    templates: Arc<[Template]>,
    at: usize,
    left: u64,
    repeat: Arc<AtomicU64>,
}

impl Source for Wire {
    fn next_len(&self) -> usize {
        SIZE
    }

    #[inline(always)]
    fn write(&mut self, buf: &mut [u8]) -> usize {
        if self.left == 0 {
            self.left = self.repeat.load(Ordering::Relaxed);
            self.at = if self.at + 1 >= self.templates.len() { 0 } else { self.at + 1 };
        }
        self.left -= 1;
        let Some((buf, template)) = buf.first_chunk_mut().zip(self.templates.get(self.at)) else { return 0 };
        *buf = template.0;
        SIZE
    }
}

/// What left by the NIC: how many datagrams, the sum of the numbers they carry and of the sockets' ports, and how many
/// were not as they should be.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
struct Left {
    datagrams: u64,
    numbers: u64,
    ports: u64,
    strange: u64,
}

impl Left {
    #[inline(always)]
    fn add(&mut self, number: u64, port: u16) {
        self.datagrams += 1;
        self.numbers = self.numbers.wrapping_add(number);
        self.ports += u64::from(port);
    }
}

#[derive(Default)]
struct Counter(Left, Arc<Mutex<Left>>);

impl Sink for Counter {
    #[inline(always)]
    fn read(&mut self, packet: &[u8]) {
        match packet.first_chunk::<SIZE>() {
            Some(p) if packet.len() == SIZE && p[36..38] == PEER_PORT.to_be_bytes() => {
                let number = p[42..50].first_chunk().map_or(0, |number| u64::from_be_bytes(*number));
                self.0.add(number, u16::from_be_bytes([p[34], p[35]]));
            }
            _ => self.0.strange += 1,
        }
    }
}

impl Drop for Counter {
    fn drop(&mut self) {
        *self.1.lock().unwrap_or_else(PoisonError::into_inner) = self.0;
    }
}

/// A stack of one worker with an emulated NIC, and so many sockets.
struct Rig {
    sockets: Vec<UdpSocket>,
    assembly: Assembly,
    port: NicPort,
    repeat: Arc<AtomicU64>,
    left: Arc<Mutex<Left>>,
    /// What should have left.
    expected: Left,
    received: u64,
    /// Whose turn it is to receive, and to send.
    turns: [usize; 2],
    batch: RecvBatch,
}

impl Rig {
    fn new(sockets: usize) -> Result<Self, String> {
        let mut config = Config::default();
        config.stack.frames = 4096;
        let address = |i| format!("{}/16", own(i)).parse();
        let addresses = (0..ADDRESSES).map(address).collect::<Result<_, _>>().map_err(text)?;
        config.devices = vec![DeviceConfig::new("nic0").with(|device| {
            device.addresses = addresses;
            device.driver = Own.into();
        })];
        config.neighbours = vec![NeighbourConfig::new("nic0", PEER.0, PEER.1)];
        let (repeat, left) = (Arc::new(AtomicU64::new(1)), Arc::<Mutex<Left>>::default());
        let templates: Arc<[Template]> = (0..sockets).map(template).collect();
        let ports = Arc::new(Mutex::new(None));
        let mut wire = Some((
            Wire { templates, at: sockets, left: 0, repeat: repeat.clone() },
            Counter(Left::default(), left.clone()),
        ));
        let opened = ports.clone();
        let opener = move |_: &Arc<Region>| {
            Ok(move |&OpenRequest { dev, name, .. }: &OpenRequest<'_>, _: &mut SoftnetData| {
                let config = NicConfig { name: name.into(), mac: MAC, ..NicConfig::default() };
                let wire = wire.take().ok_or("opened twice")?;
                let nic = nic(dev, &config, vec![wire]).map_err(|e| e.to_string())?;
                *opened.lock().unwrap_or_else(PoisonError::into_inner) = nic.ports.into_iter().next();
                Ok::<_, String>(nic.open)
            })
        };
        let assembly = Assembly::new(config, vec![], opener).map_err(|e| e.to_string())?;
        let port = ports.lock().unwrap_or_else(PoisonError::into_inner).take().ok_or("no NIC")?;
        let handle = assembly.handle();
        let sockets = open(&handle, sockets).map_err(|e| format!("opening sockets: {e}"))?;
        let (expected, batch) = (Left::default(), RecvBatch::new());
        Ok(Rig { sockets, assembly, port, repeat, left, expected, received: 0, turns: [0; 2], batch })
    }

    fn round(&mut self) -> Result<(), String> {
        self.assembly.workers.first_mut().ok_or("no worker")?.round();
        Ok(())
    }

    /// The next socket in turn, and its number.
    fn turn(&mut self, what: usize) -> (usize, &UdpSocket) {
        let i = self.turns[what];
        self.turns[what] = if i + 1 == self.sockets.len() { 0 } else { i + 1 };
        (i, &self.sockets[i])
    }

    /// Receives `n` datagrams, `batch` by each call. Returns the time it took.
    fn receive(&mut self, n: usize, batch: usize) -> Result<Duration, String> {
        self.repeat.store(batch as u64, Ordering::Relaxed);
        let mut buffer = [0; PAYLOAD + 1];
        let start = Instant::now();
        for _ in 0..n / BATCH {
            self.port.offer(BATCH as u64);
            while self.port.waiting() > 0 {
                self.round()?;
            }
            for _ in 0..BATCH / batch {
                let mut received = std::mem::take(&mut self.batch);
                let (i, socket) = self.turn(0);
                let wanted = payload(i);
                let right = match batch {
                    1 => socket.recv_from(&mut buffer).map(|(n, _)| buffer[..n] == wanted),
                    _ => socket
                        .recv_batch(&mut received, batch)
                        .map(|n| n == batch && received.iter().all(|r| r.data() == Some(&wanted[..]))),
                };
                match right {
                    Ok(true) => {}
                    Ok(false) => return Err(format!("socket {i} received something else")),
                    Err(error) => return Err(format!("socket {i}: {error}")),
                }
                self.batch = received;
            }
        }
        self.batch.clear();
        self.received += n as u64;
        Ok(start.elapsed())
    }

    /// Sends `n` datagrams, `batch` by each call. Returns the time it took.
    fn send(&mut self, n: usize, batch: usize) -> Result<Duration, String> {
        let to = SocketAddr::from((PEER.0, PEER_PORT));
        let start = Instant::now();
        for _ in 0..n / BATCH {
            for _ in 0..BATCH / batch {
                let (i, socket) = self.turn(1);
                let payload = payload(i);
                let sent = match batch {
                    1 => socket.send_to(&payload, to).map(|n| n == PAYLOAD),
                    _ => socket.send_batch(&[(&payload[..], Some(to)); BATCH][..batch]).map(|n| n == batch),
                };
                match sent {
                    Ok(true) => {}
                    Ok(false) => return Err(format!("socket {i} sent less")),
                    Err(error) => return Err(format!("socket {i}: {error}")),
                }
                (0..batch).for_each(|_| self.expected.add(i as u64, name(i).1));
            }
            self.round()?;
        }
        Ok(start.elapsed())
    }

    /// Ends the run, and checks that all were received, and all left.
    fn verify(mut self) -> Result<(), String> {
        for _ in 0..BATCH {
            self.round()?;
        }
        let Rig { sockets, assembly, left, expected, received, batch, .. } = self;
        drop((sockets, batch));
        let view = assembly.view.clone();
        drop(assembly);
        let (stats, left) = (view.stats(), *left.lock().unwrap_or_else(PoisonError::into_inner));
        if left != expected {
            return Err(format!("{expected:?} were sent, and {left:?} left"));
        }
        let counts = (stats.received, stats.delivered, stats.dropped, stats.held, stats.leaked);
        if counts != (received, received, 0, 0, 0) {
            return Err(format!("received {received} datagrams, but {stats:?}, drops {:?}", view.drops()));
        }
        Ok(())
    }
}

/// Opens `n` sockets, in no order.
fn open(on: &Handle, n: usize) -> std::io::Result<Vec<UdpSocket>> {
    let mut order: Vec<usize> = (0..n).collect();
    let mut random = Random::new(1);
    (1..n).for_each(|i| order.swap(i, random.below(i + 1)));
    let mut sockets: Vec<Option<UdpSocket>> = vec![None; n];
    for i in order {
        let socket = UdpSocket::bind(on, name(i))?;
        socket.set_nonblocking(true)?;
        sockets[i] = Some(socket);
    }
    Ok(sockets.into_iter().flatten().collect())
}

impl Udp {
    pub(crate) fn run(&self) -> Result<Report, String> {
        let cpu = pin(self.common.cpu)?;
        let (counts, batches): (&[usize], &[usize]) = match self.common.quick {
            true => (&[1, 100_000], &[1, 64]),
            false => (&[1, 1000, 100_000], &[1, 8, 64]),
        };
        let datagrams = if self.common.quick { 1 << 18 } else { 1 << 21 };
        let rigs = counts.iter().map(|n| Rig::new(*n).map(std::cell::RefCell::new));
        let rigs = rigs.collect::<Result<Vec<_>, _>>()?;
        let mut cases = Vec::new();
        for what in ["recv", "send"] {
            for (rig, sockets) in rigs.iter().zip(counts) {
                for &batch in batches {
                    let parameters = vec![
                        ("device", json!("mem")),
                        ("sockets", json!(sockets)),
                        ("batch", json!(batch)),
                        ("size", json!(PAYLOAD)),
                    ];
                    cases.push(Case {
                        row: Row::new(what, parameters),
                        measure: Box::new(move || -> Result<Sample, String> {
                            let mut rig = rig.borrow_mut();
                            let time = match what {
                                "recv" => rig.receive(datagrams, batch)?,
                                _ => rig.send(datagrams, batch)?,
                            };
                            let ns = time.as_nanos() as f64 / datagrams as f64;
                            Ok(vec![("ns_per_datagram", ns), ("mpps", 1000.0 / ns)])
                        }),
                    });
                }
            }
        }
        let mut report = alternate("udp", Some(cpu), self.common.rounds(), cases)?;
        rigs.into_iter().try_for_each(|rig| rig.into_inner().verify())?;
        for (what, sockets, batch, most) in BOUNDS {
            let row = [("sockets", json!(sockets)), ("batch", json!(batch))];
            report
                .bound_where((what, &row), "ns_per_datagram", Bound::AtMost(most))
                .on(&REFERENCE)
                .meaning("A datagram passes between the NIC's ring and the application in this time.");
        }
        Ok(report)
    }
}

/// Case, sockets, batch, and what a datagram may cost in ns.
const BOUNDS: [(&str, usize, usize, f64); 4] = [
    ("recv", 1, 64, 300.0),
    ("recv", 100_000, 1, 1000.0),
    ("send", 1, 64, 300.0),
    ("send", 100_000, 1, 1000.0),
];
