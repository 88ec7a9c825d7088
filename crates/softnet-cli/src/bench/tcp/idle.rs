//! `softnet bench tcp-idle`: what connections cost that do nothing.

use std::io::ErrorKind;
use std::net::Ipv4Addr;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use clap::Args;
use parking_lot::Mutex;
use serde_json::json;
use softnet::Stack;
use softnet::config::{Config, DeviceConfig, NeighbourConfig};
use softnet::driver::OpenRequest;
use softnet::internals::Assembly;
use softnet::net::{TcpBuilder, TcpListener, TcpStream};
use softnet_core::SoftnetData;
use softnet_core::ip::v4::header::{Ipv4Header, protocol};
use softnet_core::skb::Region;
use softnet_dev::mem::{NicConfig, Sink, nic};

use super::stack_threads;
use super::wire::{Lane, RING, Receives, Sends};
use crate::bench::Common;
use crate::bench::echo::Usage;
use crate::bench::harness::{Case, alternate};
use crate::bench::report::{Bound, Report, Row, Sample};
use crate::bench::text;

/// What `softnet bench tcp-idle --help` ends with.
pub(in crate::bench) const HELP: &str = "\
A generator on an emulated wire opens connections to a listener (timestamps, SACK and window scaling agreed on), which an \
application accepts and keeps. Nothing is sent on them. Each round has a stack of its own.

  bytes_per_connection    growth of the process's resident set from the first tenth of the connections to the last, for each: \
engine, tables, timers, and the application's TcpStream
  cpu_percent             of the stack's threads, over two seconds in which nothing happens
  opened_per_s            connections a second from SYN to accept, by one worker and one application thread";

/// The figures that decide.
pub(in crate::bench) const LEADING: &[&str] = &["bytes_per_connection", "cpu_percent", "opened_per_s"];

const OWN: (Ipv4Addr, [u8; 6]) = (Ipv4Addr::new(198, 18, 0, 1), [2, 0, 0, 0, 1, 0]);
/// The first of the generator's addresses.
const GENERATOR: Ipv4Addr = Ipv4Addr::new(198, 18, 1, 1);
const PEER_MAC: [u8; 6] = [2, 0, 0, 0, 2, 0];
const PORT: u16 = 7001;
/// Connections that are opened at once.
const AT_ONCE: usize = 512;
/// Ports that each of the generator's addresses has.
const PORTS: usize = 50_000;
/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(30);
const L4: usize = 34;
const SYN_ACK: u8 = 0x12;

#[derive(Args, Debug)]
pub(crate) struct TcpIdle {
    #[command(flatten)]
    pub(crate) common: Common,
    /// Connections [default: 1000000, with --quick 100000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1000..=2_000_000))]
    connections: Option<u32>,
}

/// A segment to the listener.
fn segment(src: (u32, u16), (seq, ack): (u32, u32), flags: u8, options: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; L4 + 20 + options.len()];
    bytes[..6].copy_from_slice(&OWN.1);
    bytes[6..12].copy_from_slice(&PEER_MAC);
    bytes[12] = 8;
    let len = bytes.len() - 14;
    if let Some(mut ip) = Ipv4Header::new_mut(&mut bytes[14..]) {
        ip.fill(len as u16, 0, 64, protocol::TCP, src.0, OWN.0.to_bits());
    }
    let tcp = &mut bytes[L4..];
    tcp[..2].copy_from_slice(&src.1.to_be_bytes());
    tcp[2..4].copy_from_slice(&PORT.to_be_bytes());
    tcp[4..8].copy_from_slice(&seq.to_be_bytes());
    tcp[8..12].copy_from_slice(&ack.to_be_bytes());
    tcp[12] = (((20 + options.len()) / 4) << 4) as u8;
    tcp[13] = flags;
    tcp[14..16].copy_from_slice(&64_000_u16.to_be_bytes());
    tcp[20..].copy_from_slice(options);
    bytes
}

/// The SYN of connection `i`.
fn syn(i: usize) -> Vec<u8> {
    // MSS 1460, SACK permitted, timestamps, no-operation, window scale 7.
    let options = [2, 4, 5, 0xb4, 4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 0, 1, 3, 3, 7];
    let address = GENERATOR.to_bits() + (i / PORTS) as u32;
    segment((address, (10_000 + i % PORTS) as u16), (1000, 0), 0x02, &options)
}

/// Ends each handshake.
struct Acks {
    to: Arc<Mutex<Sends>>,
}

impl Sink for Acks {
    fn read(&mut self, packet: &[u8]) {
        // Nothing else is sent.
        let Some(tcp) = packet.get(L4..).filter(|tcp| tcp.len() >= 40 && tcp[13] & 0x3f == SYN_ACK) else {
            return;
        };
        let word = |bytes: &[u8], at: usize| {
            bytes.get(at..).and_then(|b| b.first_chunk()).map_or(0, |b| u32::from_be_bytes(*b))
        };
        let stamp =
            tcp[20..].windows(10).position(|w| w[..2] == [8, 10]).map_or(0, |at| word(tcp, 20 + at + 2));
        let mut options = [1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 0];
        options[8..].copy_from_slice(&stamp.to_be_bytes());
        let src = (word(packet, 30), u16::from_be_bytes([tcp[2], tcp[3]]));
        let ack = segment(src, (1001, word(tcp, 4).wrapping_add(1)), 0x10, &options);
        self.to.lock().read(&ack);
    }
}

/// A stack, what arrives at it, and its listener.
struct Bed {
    syns: Arc<Mutex<Sends>>,
    listener: TcpListener,
    stack: Stack,
}

impl Bed {
    fn new(cpu: usize, connections: usize) -> Result<Self, String> {
        let mut config = Config::default();
        config.stack.workers = vec![cpu as u32];
        config.stack.max_sockets = connections as u32 + 1024;
        config.devices = vec![DeviceConfig::new("nic0").with(|device| {
            device.addresses = vec![format!("{}/15", OWN.0).parse().expect("an address")];
            device.arp_notify = false;
            device.dad = false;
        })];
        for i in 0..connections.div_ceil(PORTS) {
            let address = Ipv4Addr::from_bits(GENERATOR.to_bits() + i as u32);
            config.neighbours.push(NeighbourConfig::new("nic0", address, PEER_MAC));
        }
        let lane = Lane::new(true, RING);
        let syns = Arc::new(Mutex::new(Sends { lane: lane.clone() }));
        let port = Arc::new(std::sync::Mutex::new(None));
        let opener = {
            let (port, lane, to) = (port.clone(), lane.clone(), syns.clone());
            move |_: &Arc<Region>| {
                Ok(move |&OpenRequest { dev, name, .. }: &OpenRequest<'_>, _: &mut SoftnetData| {
                    let wires = vec![(Receives { lane: lane.clone(), next: 0 }, Acks { to: to.clone() })];
                    let config = NicConfig {
                        name: name.into(),
                        mac: OWN.1,
                        rx_ring: RING,
                        tx_ring: RING,
                        rx_csum: true,
                        ..NicConfig::default()
                    };
                    let nic = nic(dev, &config, wires).map_err(text)?;
                    *port.lock().unwrap_or_else(PoisonError::into_inner) = nic.ports.into_iter().next();
                    Ok::<_, String>(nic.open)
                })
            }
        };
        let stack = Stack::run(Assembly::new(config, vec![], opener).map_err(text)?).map_err(text)?;
        let port =
            port.lock().unwrap_or_else(PoisonError::into_inner).take().ok_or("the NIC was not opened")?;
        lane.port.set(Mutex::new(port)).map_err(|_| "the NIC was opened twice")?;
        let listener = TcpBuilder::new(&stack.handle()).backlog(4096).listen((OWN.0, PORT)).map_err(text)?;
        listener.set_nonblocking(true).map_err(text)?;
        Ok(Bed { syns, listener, stack })
    }

    /// Opens connections until there are `n`.
    fn open(&self, n: usize, streams: &mut Vec<TcpStream>) -> Result<(), String> {
        while streams.len() < n {
            let (first, until) = (streams.len(), Instant::now() + PATIENCE);
            let end = n.min(first + AT_ONCE);
            for i in first..end {
                self.syns.lock().read(&syn(i));
            }
            while streams.len() < end {
                match self.listener.accept() {
                    Ok((stream, _)) => streams.push(stream),
                    Err(error) if error.kind() == ErrorKind::WouldBlock && Instant::now() < until => {
                        std::thread::yield_now();
                    }
                    Err(error) => return Err(format!("after {} connections: {error}", streams.len())),
                }
            }
        }
        Ok(())
    }
}

/// Bytes of this process that are in memory.
pub(in crate::bench) fn resident() -> Result<u64, String> {
    let status = std::fs::read_to_string("/proc/self/status").map_err(text)?;
    let kib = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    Ok(kib.ok_or("/proc/self/status has no VmRSS")? << 10)
}

pub(super) fn measure(cpu: usize, n: usize) -> Result<Sample, String> {
    let bed = Bed::new(cpu, n)?;
    let mut streams = Vec::with_capacity(n);
    // All that does not grow with the number is in memory then.
    bed.open(n / 10, &mut streams)?;
    let (first, before, begin) = (streams.len(), resident()?, Instant::now());
    bed.open(n, &mut streams)?;
    let (seconds, after) = (begin.elapsed().as_secs_f64(), resident()?);
    // Every one is there, and usable.
    let mut missing = vec![true; n];
    for stream in &streams {
        let peer = stream.peer_addr().map_err(text)?;
        let std::net::IpAddr::V4(address) = peer.ip() else {
            return Err(format!("a connection with {peer}"));
        };
        let place = (address.to_bits().wrapping_sub(GENERATOR.to_bits()) as usize).saturating_mul(PORTS)
            + usize::from(peer.port()).wrapping_sub(10_000);
        match missing.get_mut(place) {
            Some(missing) if *missing && stream.readiness().writable => *missing = false,
            _ => return Err(format!("a connection with {peer}")),
        }
    }
    let opened = (n - first) as f64;
    std::thread::sleep(Duration::from_millis(300));
    let threads = stack_threads(Some(&bed.stack));
    let (used, begin) = (Usage::of(&threads), Instant::now());
    std::thread::sleep(Duration::from_secs(2));
    let cpu = (Usage::of(&threads) - used).cpu_ns as f64 / 1e9 / begin.elapsed().as_secs_f64();
    // The listener's stack stops first: a million connections need no farewell.
    let Bed { listener, stack, .. } = bed;
    drop(listener);
    drop(stack);
    Ok(vec![
        ("bytes_per_connection", after.saturating_sub(before) as f64 / opened),
        ("cpu_percent", 100.0 * cpu),
        ("opened_per_s", opened / seconds),
    ])
}

impl TcpIdle {
    pub(crate) fn run(&self) -> Result<Report, String> {
        let n = self.connections.unwrap_or(if self.common.quick { 100_000 } else { 1_000_000 }) as usize;
        // What one round frees the next would have in memory already: each is measured in a process
        // that is as large as the last left it, so only the first is.
        let row = Row::new("softnet", vec![("device", json!("mem")), ("connections", json!(n))]);
        let cpu = self.common.cpu;
        let mut first = None;
        let measure = move || match first.take() {
            Some(sample) => Ok(sample),
            None => {
                let sample = measure(cpu, n)?;
                first = Some(sample.clone());
                Ok(sample)
            }
        };
        let cases = vec![Case { row, measure: Box::new(measure) }];
        let mut report = alternate("tcp-idle", None, 1, cases)?;
        report.bound("softnet", "bytes_per_connection", Bound::AtMost(1024.0));
        report.bound("softnet", "cpu_percent", Bound::AtMost(1.0));
        Ok(report)
    }
}
