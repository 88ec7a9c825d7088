//! `softnet bench nat`: how many packets a second one worker forwards whose sources it hides.

use std::collections::{HashMap, HashSet};
use std::net::Ipv4Addr;
use std::sync::{Arc, PoisonError};

use clap::{Args, ValueEnum};
use serde_json::json;
use softnet_core::conntrack::Timeouts;
use softnet_core::ip::hooks::Slot;
use softnet_core::ip::{IpPrefix, Prefix, checksum};
use softnet_core::nat::{Blocks, Nat, NatRules, NatState, SourceNat};
use softnet_dev::hugepage::HugePages;

use super::forward::{self, RX_MAC, Setup};
use super::harness::{Case, alternate, wanted};
use super::nat_wire;
use super::report::{Bound, REFERENCE, Report, Row};
use super::templates::{Random, SIZE, Template, number, sixteen_prefixes, templates};
use super::{Common, pin};
use crate::bench::text;

pub(super) const HELP: &str = "\
One worker on one core forwards 64-byte IPv4 packets of UDP from one emulated NIC to another, by 16 routes, and hides \
their sources behind a pool of addresses. Each packet is written afresh into its buffer within the measured time; the \
connections take turns, in another order than that in which they were made. What comes out is verified after the run.

  forward      the same packets, 10,000 of them, forwarded as they are
  nat-1        one connection
  nat-10k      10,000 connections
  nat-1m       1,000,000 connections
  blocks-10k   10,000 connections of hosts that have a block of ports each (RFC 7422)

--device xdp and tap: TCP streams of the kernel's sockets through softnet, beside the kernel's router with nftables' \
masquerading (in softirq, and by NAPI threads), and both without translation (-route). Both sides have the same offloads. \
xdp: kernel-xdp is the kernel's router with an XDP program on its interfaces that lets all pass, so that veth does the \
same with what they receive; softnet-2 and kernel-xdp-threaded-2 have two workers and two NAPI threads, each with a device \
and a CPU; kernel-segments is the kernel at its best, with segments that veth hands over by reference. --ends threaded \
and rps have the endpoints of all of them receive on the other CPU. --iperf3: the streams are iperf3's.

  gbit_s           payload that arrived
  cpu_percent      of all CPUs, endpoints and router together";

/// External addresses: enough for a million connections.
const POOL: u8 = 64;
/// Connections of each host inside.
const PER_HOST: u32 = 16;
/// First address of the hosts.
const HOSTS: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 0);
/// Length of the prefix of those that have blocks: 1,023 hosts of 16 connections are more than
/// 10,000.
const BLOCKS_LEN: u8 = 22;

#[derive(Args, Debug)]
pub(crate) struct NatBench {
    #[command(flatten)]
    pub(super) common: Common,
    /// What the packets come by and leave by
    #[arg(long, value_enum, default_value = "mem")]
    device: Device,
    /// Only this row (may be repeated), as for a profile: `perf record softnet bench nat --case nat-10k`
    #[arg(long = "case", value_name = "CASE")]
    cases: Vec<String>,
    /// Where the kernel's endpoints process what they receive (xdp)
    #[arg(long, value_enum, default_value = "softirq")]
    ends: nat_wire::Ends,
    /// The streams are iperf3's, which must be installed (xdp, tap)
    #[arg(long)]
    iperf3: bool,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq)]
enum Device {
    /// Emulated NICs: what the stack itself costs
    Mem,
    /// AF_XDP on veth pairs between kernel endpoints, beside the kernel's NAT
    Xdp,
    /// TAPs with offloads between kernel endpoints, beside the kernel's NAT
    Tap,
}

/// What becomes of the sources.
#[derive(Clone, Copy, PartialEq)]
enum Source {
    Kept,
    /// Each connection has a port of the pool.
    Hidden,
    /// Each connection has a port of its host's block.
    Blocks,
}

/// A row, and how many connections it has.
const CASES: [(&str, usize, Source); 5] = [
    ("forward", 10_000, Source::Kept),
    ("nat-1", 1, Source::Hidden),
    ("nat-10k", 10_000, Source::Hidden),
    ("nat-1m", 1_000_000, Source::Hidden),
    ("blocks-10k", 10_000, Source::Blocks),
];

/// Bytes of the link header, and of the IP header after it.
const ETH: usize = 14;
const IP: usize = 20;

/// Writes the source of session `n`, and right checksums.
fn set_source(template: &mut Template, n: u32) {
    let addr = Ipv4Addr::from_bits(HOSTS.to_bits() + 1 + n / PER_HOST);
    let port = (1024 + 2003 * (n % PER_HOST) + n / PER_HOST % 2000) as u16;
    let bytes = &mut template.0;
    bytes[26..30].copy_from_slice(&addr.octets());
    bytes[34..36].copy_from_slice(&port.to_be_bytes());
    bytes[24..26].fill(0);
    let check = checksum::checksum(&bytes[ETH..ETH + IP]);
    bytes[24..26].copy_from_slice(&check.to_be_bytes());
    bytes[40..42].fill(0);
    // 0 would be none (RFC 768).
    let check = match !udp_sum(&bytes[ETH..]) {
        0 => 0xffff,
        check => check,
    };
    bytes[40..42].copy_from_slice(&check.to_be_bytes());
}

/// Sum of a UDP packet, which begins at its IP header, with its pseudo-header.
fn udp_sum(packet: &[u8]) -> u16 {
    let word = |at: usize| u32::from_be_bytes(std::array::from_fn(|i| packet[at + i]));
    let udp = &packet[IP..];
    checksum::add(checksum::pseudo_header_sum(word(12), word(16), 17, udp.len() as u16), checksum::sum(udp))
}

/// The packets of `n` sessions: as they come at first, and as they come then.
pub(super) fn sessions(n: usize, prefixes: &[IpPrefix]) -> [Arc<[Template]>; 2] {
    let mut random = Random::new(7);
    let mut all = templates(n, RX_MAC, prefixes, &mut random);
    all.iter_mut().zip(0..).for_each(|(template, n)| set_source(template, n));
    let first = all.clone().into();
    for i in (1..all.len()).rev() {
        all.swap(i, random.below(i + 1));
    }
    [first, all.into()]
}

/// Starts a stack, with NAT if sources are not kept and room for as many connections.
fn start(setup: &Setup, source: Source, keep: bool) -> Result<forward::Bench, String> {
    let bench = setup.start(keep)?;
    if source != Source::Kept {
        let n = setup.templates.len() as u32;
        let state = NatState::new(n + n / 16 + 16, [11, 12, 13, 14], &Timeouts::default(), &HugePages);
        let addresses: Vec<_> = (0..POOL).map(|n| Ipv4Addr::new(203, 0, 113, n)).collect();
        let mut hides = SourceNat::new(1, addresses);
        if source == Source::Blocks {
            let hosts = Prefix::new(HOSTS, BLOCKS_LEN).map_err(text)?;
            hides.deterministic = Blocks::new(hosts, hides.addresses.len());
        }
        let rules = NatRules { source: vec![hides], ..NatRules::default() };
        let nat = Arc::new(Nat::new(Arc::new(state), &rules).map_err(text)?);
        let shared = &bench.assembly.shared;
        shared.control().replace_tables(&**shared, |tables| {
            tables.hooks.set(Slot::Prerouting, Some(nat.clone()));
            tables.hooks.set(Slot::Postrouting, Some(nat));
        });
    }
    Ok(bench)
}

/// Forwards each packet three times, and checks all that comes out: sums, what may not change, and
/// that each session keeps a source of its own.
fn verify(setup: &Setup, source: Source) -> Result<(), String> {
    let mut bench = start(setup, source, true)?;
    let n = setup.templates.len();
    bench.forward(3 * n as u64)?;
    let (found, _) = bench.end()?;
    let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
    let kept = found.keep.take().unwrap_or_default();
    let sent: HashMap<u32, &Template> = setup.templates.iter().map(|t| (number(t), t)).collect();
    let wrong = |what: &str, t: &Template| Err(format!("{}: {what}: {:02x?}", setup.case, t.0));
    let mut sources = HashMap::new();
    for out in &kept {
        let bytes = &out.0;
        if checksum::sum(&bytes[ETH..ETH + IP]) != 0xffff || udp_sum(&bytes[ETH..]) != 0xffff {
            return wrong("a wrong checksum", out);
        }
        let Some(sent) = sent.get(&number(out)) else { return wrong("no such packet", out) };
        let same =
            |bytes: &[u8; SIZE]| [bytes[30..34].to_vec(), bytes[36..40].to_vec(), bytes[42..].to_vec()];
        if same(bytes) != same(&sent.0) {
            return wrong("it is not what was sent", out);
        }
        let seen = (bytes[26..30].to_vec(), bytes[34..36].to_vec());
        if (source == Source::Kept) == (seen.0[..3] == [203, 0, 113]) {
            return wrong("a source that it should not have", out);
        }
        if *sources.entry(number(out)).or_insert(seen.clone()) != seen {
            return wrong("its source changed", out);
        }
    }
    let distinct: HashSet<_> = sources.values().collect();
    if (kept.len(), sources.len(), distinct.len()) != (3 * n, n, n) {
        let counts = (kept.len(), sources.len(), distinct.len());
        return Err(format!("{}: packets, sessions and sources are {counts:?}, of {n}", setup.case));
    }
    Ok(())
}

impl NatBench {
    pub(crate) fn run(&self) -> Result<Report, String> {
        match self.device {
            Device::Mem => self.run_mem(),
            Device::Xdp => self.run_wire(false),
            Device::Tap => self.run_wire(true),
        }
    }

    fn run_wire(&self, taps: bool) -> Result<Report, String> {
        // What a TAP brings, the kernel processes where it is written.
        let ends = if taps { nat_wire::Ends::Softirq } else { self.ends };
        let streams = nat_wire::Streams { ends, iperf3: self.iperf3 };
        nat_wire::run(&self.common, &self.cases, taps, streams)
    }

    fn run_mem(&self) -> Result<Report, String> {
        let cpu = pin(self.common.cpu)?;
        let wanted = wanted(&self.cases, &CASES.map(|case| case.0))?;
        eprintln!("making packets");
        let prefixes: Arc<[IpPrefix]> = sixteen_prefixes().into_iter().map(Prefix::any).collect();
        let setups: Vec<_> = CASES
            .into_iter()
            .filter(|(case, ..)| wanted.contains(case))
            .map(|(case, n, source)| (Setup::of_sessions(case, &prefixes, sessions(n, &prefixes)), source))
            .collect();
        let packets = forward::packets(&self.common);
        let mut benches = Vec::new();
        for (setup, source) in &setups {
            let mut bench = start(setup, *source, false)?;
            // Opens all connections.
            bench.forward(setup.templates.len() as u64)?;
            benches.push(Some(bench));
        }
        let cases = setups
            .iter()
            .zip(&mut benches)
            .map(|((setup, source), bench)| Case {
                row: Row::new(
                    setup.case,
                    forward::params([(
                        "connections",
                        json!(if *source == Source::Kept { 0 } else { setup.templates.len() }),
                    )]),
                ),
                measure: Box::new(move || bench.as_mut().ok_or("ended")?.sample(packets)),
            })
            .collect();
        let mut report = alternate("nat", Some(cpu), self.common.rounds(), cases)?;
        for ((setup, source), bench) in setups.iter().zip(&mut benches) {
            if let Some(bench) = bench.take() {
                bench.end()?;
            }
            verify(setup, *source)?;
        }
        for (case, least) in [("nat-1", 11.0), ("nat-10k", 11.0), ("nat-1m", 8.0), ("blocks-10k", 11.0)] {
            if report.row(case).is_some() {
                report.bound(case, "mpps", Bound::AtLeast(least)).on(&REFERENCE).meaning(
                    "One worker on one core forwards 64-byte packets and hides their sources at this rate.",
                );
            }
        }
        Ok(report)
    }
}
