//! `softnet bench forward`: how many packets a second one worker forwards.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use serde_json::json;
use softnet::config::{Config, DeviceConfig, NeighbourConfig, RouteConfig, RouteTarget, SteeringMode};
use softnet::driver::{OpenRequest, Own, Vlan};
use softnet::internals::Assembly;
use softnet_core::ip::{Address, IpPrefix, Prefix};
use softnet_core::skb::{BATCH, Region};
use softnet_dev::mem::{NicConfig, NicPort, nic};

use super::harness::{Case, alternate, wanted};
use super::report::{Bound, REFERENCE, Report, Row, Sample};
use super::templates::{Counter, Found, Random, SIZE, Sums, Template, Wire};
use super::templates::{
    bgp_prefixes, bgp_prefixes6, destination, number, sixteen_prefixes, tagged, templates,
};
use super::{Common, pin};
use crate::bench::text;

#[derive(Args, Debug)]
pub(crate) struct Forward {
    #[command(flatten)]
    pub(super) common: Common,
    /// What the packets come by and leave by
    #[arg(long, value_enum, default_value = "mem")]
    device: Device,
    /// Only this row (may be repeated), as for a profile: `perf record softnet bench forward --case fib-10k`
    #[arg(long = "case", value_name = "CASE")]
    cases: Vec<String>,
    /// How RX queues of `mem` are steered: what looking after that costs where nothing is steered
    #[arg(long, value_enum, default_value = "auto")]
    steering: Watching,
}

/// What there is to steer.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Default)]
pub(super) enum Watching {
    /// `steering = "off"`
    Off,
    /// `steering = "auto"`, as by default, with one worker: there is nothing to choose
    #[default]
    Auto,
    /// The same beside a second worker, which sleeps: polls are sampled, and stay where they are
    Sampled,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq)]
enum Device {
    /// Emulated NICs: what the stack itself costs
    Mem,
    /// AF_XDP on veth pairs, beside the kernel's forwarding
    Xdp,
}

pub(super) const RX_MAC: [u8; 6] = [0x02, 0, 0, 0, 1, 0];
const TX_MAC: [u8; 6] = [0x02, 0, 0, 0, 2, 0];
/// Gateways that the routes are spread over.
const GATEWAYS: u8 = 16;

/// Those of IPv6 and of IPv4 are the same machines.
fn gateway(i: u8, v6: bool) -> (IpAddr, [u8; 6]) {
    let addr = match v6 {
        true => Ipv6Addr::new(0x2001, 2, 0, 2, 0, 0, 0, 2 + u16::from(i)).into(),
        false => Ipv4Addr::new(198, 19, 0, 2 + i).into(),
    };
    (addr, [0x02, 0, 0, 0, 3, i])
}

/// One row of the comparison.
pub(super) struct Setup {
    pub(super) case: &'static str,
    pub(super) prefixes: Arc<[IpPrefix]>,
    pub(super) templates: Arc<[Template]>,
    /// What comes before them, once.
    pub(super) first: Option<Arc<[Template]>>,
    pub(super) burst: usize,
    pub(super) routed: bool,
    pub(super) steering: Watching,
    /// VLANs that packets come by and leave by.
    pub(super) vlans: Option<[u8; 2]>,
}

/// A stack of one worker between two emulated NICs, run by the calling thread.
pub(super) struct Bench {
    pub(super) assembly: Assembly,
    port: NicPort,
    pub(super) found: Arc<Mutex<Found>>,
    pub(super) offered: u64,
}

/// The parameters that rows of emulated NICs have in common, and those of one bench.
pub(super) fn params<const N: usize>(
    own: [(&'static str, serde_json::Value); N],
) -> Vec<(&'static str, serde_json::Value)> {
    let common = [
        ("device", json!("mem")),
        ("context", json!("softirq")),
        ("threads", json!(1)),
        ("pinned", json!(true)),
        ("size", json!(SIZE)),
    ];
    common.into_iter().chain(own).collect()
}

/// Packets of a round.
pub(super) fn packets(common: &Common) -> u64 {
    if common.quick { 4_000_000 } else { 20_000_000 }
}

impl Setup {
    /// Packets of sessions, `first` and then `templates`, past 16 routes.
    pub(super) fn of_sessions(
        case: &'static str,
        prefixes: &Arc<[IpPrefix]>,
        [first, templates]: [Arc<[Template]>; 2],
    ) -> Self {
        Setup {
            case,
            prefixes: prefixes.clone(),
            templates,
            first: Some(first),
            burst: BATCH,
            routed: true,
            steering: Watching::Auto,
            vlans: None,
        }
    }

    fn is_ipv6(&self) -> bool {
        self.prefixes.first().is_some_and(|prefix| prefix.addr().is_ipv6())
    }

    fn config(&self) -> Result<Config, String> {
        let device = |name: &str, address: &str| -> Result<DeviceConfig, String> {
            let addresses = vec![address.parse().map_err(text)?];
            Ok(DeviceConfig::new(name).with(|device| {
                device.addresses = addresses;
                device.driver = Own.into();
                device.workers = vec![0];
                if self.steering == Watching::Off {
                    device.steering = SteeringMode::Off;
                }
            }))
        };
        let mut config = Config::default();
        config.stack.dev_weight = self.burst as u32;
        config.stack.frames = 4096;
        if self.steering == Watching::Sampled {
            config.stack.workers = vec![0, 1];
        }
        // For benchmarks: RFC 2544, RFC 5180.
        let own = match self.is_ipv6() {
            true => ["2001:2:0:1::fe/64", "2001:2:0:2::1/64"],
            false => ["198.18.0.254/24", "198.19.0.1/24"],
        };
        config.devices = vec![device("nic0", own[0])?, device("nic1", own[1])?];
        let mut out = "nic1";
        if let Some(ids) = self.vlans {
            for (at, (name, id)) in ["in", "out"].into_iter().zip(ids).enumerate() {
                let link = &mut config.devices[at];
                let mut vlan = DeviceConfig::new(name);
                vlan.addresses = std::mem::take(&mut link.addresses);
                vlan.driver = Vlan::new(&link.name, id.into()).into();
                config.devices.push(vlan);
            }
            out = "out";
        }
        for i in 0..GATEWAYS {
            let (address, mac) = gateway(i, self.is_ipv6());
            config.neighbours.push(NeighbourConfig::new(out, address, mac));
        }
        let route = |(i, to): (usize, &IpPrefix)| {
            RouteConfig::new(
                *to,
                RouteTarget::Via(gateway((i % usize::from(GATEWAYS)) as u8, to.addr().is_ipv6()).0),
            )
        };
        config.routes = self.prefixes.iter().enumerate().map(route).collect();
        Ok(config)
    }

    /// With `keep`, the sink keeps every packet.
    pub(super) fn start(&self, keep: bool) -> Result<Bench, String> {
        let (counter, found) = Counter::new(keep);
        let mut counter = Some(counter);
        let mut port = None;
        let port_of = Arc::new(Mutex::new(None));
        let templates = match self.vlans {
            None => self.templates.clone(),
            Some([vlan, _]) => self.templates.iter().map(|t| tagged(t, vlan)).collect(),
        };
        let ports = port_of.clone();
        let first = self.first.clone();
        let opener = move |_: &Arc<Region>| {
            Ok(move |&OpenRequest { dev, name, .. }: &OpenRequest<'_>, _: &mut softnet_core::SoftnetData| {
                let mac = if dev == 0 { RX_MAC } else { TX_MAC };
                let config = NicConfig { name: name.into(), mac, ..NicConfig::default() };
                // Only the first receives, only the second sends.
                let sink = if dev == 1 { counter.take() } else { None }.unwrap_or_default();
                let nic = nic(dev, &config, vec![(Wire::new(templates.clone(), first.clone()), sink)])?;
                if dev == 0 {
                    *ports.lock().unwrap_or_else(PoisonError::into_inner) = nic.ports.into_iter().next();
                }
                Ok::<_, std::io::Error>(nic.open)
            })
        };
        let patches = if self.routed { vec![] } else { vec![(0, 1)] };
        let assembly = Assembly::new(self.config()?, patches, opener).map_err(|e| e.to_string())?;
        if let Some(opened) = port_of.lock().unwrap_or_else(PoisonError::into_inner).take() {
            port = Some(opened);
        }
        let port = port.ok_or("the receiving NIC was not opened")?;
        Ok(Bench { assembly, port, found, offered: 0 })
    }

    /// What must become of template `t`.
    fn expected(&self, t: &Template, hop: usize) -> Template {
        let mut bytes = t.0;
        if !self.routed {
            return Template(bytes);
        }
        bytes[..6].copy_from_slice(&gateway((hop % usize::from(GATEWAYS)) as u8, false).1);
        bytes[6..12].copy_from_slice(&TX_MAC);
        if destination(t).is_ipv6() {
            bytes[21] -= 1;
            return Template(bytes);
        }
        bytes[22] -= 1;
        // Computed afresh, not by difference.
        bytes[24..26].copy_from_slice(&[0, 0]);
        let check = softnet_core::ip::checksum::checksum(&bytes[14..34]);
        bytes[24..26].copy_from_slice(&check.to_be_bytes());
        Template(bytes)
    }

    /// What must come out for each template, by a look-up that shares nothing with the FIB.
    fn all_expected(&self) -> Vec<Template> {
        let index: std::collections::HashMap<IpPrefix, usize> =
            self.prefixes.iter().enumerate().map(|(i, p)| (*p, i)).collect();
        let longest = |dst: IpAddr| {
            let around =
                |len| Prefix::containing(dst, len).ok().and_then(|prefix| index.get(&prefix).copied());
            (0..=dst.width()).rev().find_map(around)
        };
        let expected = |t| {
            let expected = self.expected(t, longest(destination(t)).unwrap_or(0));
            self.vlans.map_or(expected, |[_, vlan]| tagged(&expected, vlan))
        };
        self.templates.iter().map(expected).collect()
    }
}

impl Bench {
    /// Forwards `packets` packets. Returns the time it took.
    pub(super) fn forward(&mut self, packets: u64) -> Result<Duration, String> {
        self.offered += packets;
        let mut left = packets;
        let worker = self.assembly.workers.first_mut().ok_or("no worker")?;
        let start = Instant::now();
        while left > 0 || self.port.waiting() > 0 {
            // Before the ring is empty, so that polling never pauses; by the batch, to be cheap with small bursts too.
            let room = self.port.room();
            if left > 0 && room >= BATCH as u64 {
                left -= self.port.offer(left.min(room));
            }
            worker.round();
        }
        while worker.round() {}
        Ok(start.elapsed())
    }

    /// A round of `packets` packets, as a row's sample.
    pub(super) fn sample(&mut self, packets: u64) -> Result<Sample, String> {
        let ns = self.forward(packets)?.as_nanos() as f64 / packets as f64;
        Ok(vec![("mpps", 1000.0 / ns), ("ns_per_packet", ns)])
    }

    /// Ends the run and checks that every packet came out once. Returns what the sink found, and how many were offered.
    pub(super) fn end(self) -> Result<(Arc<Mutex<Found>>, u64), String> {
        let Bench { assembly, port, found, offered } = self;
        drop(port);
        let view = assembly.view.clone();
        drop(assembly);
        let stats = view.stats();
        if (stats.received, stats.transmitted, stats.dropped, stats.leaked) != (offered, offered, 0, 0) {
            let drops = view.drops();
            return Err(format!("offered {offered} packets, but {stats:?}, drops {drops:?}"));
        }
        if (stats.frames_free, stats.heads_free) != (stats.frames, stats.heads) {
            return Err(format!("packet memory is missing: {stats:?}"));
        }
        Ok((found, offered))
    }

    /// Ends the run and checks that every packet came out once, as it should.
    fn verify(self, setup: &Setup, expected: &[Template]) -> Result<(), String> {
        let (found, offered) = self.end()?;
        let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
        let n = expected.len() as u64;
        let mut want = Sums::default();
        let mut rest = Sums::default();
        for (i, template) in expected.iter().enumerate() {
            want.add(&template.0);
            if (i as u64) < offered % n {
                rest.add(&template.0);
            }
        }
        rest.add_times(&want, offered / n);
        if found.strange > 0 || found.sums != rest {
            return Err(format!(
                "{}: what came out is not what should have: {} packets of a wrong size, sums {:?} instead of {:?}",
                setup.case, found.strange, found.sums, rest
            ));
        }
        let kept = found.keep.take().unwrap_or_default();
        let pairs = kept.iter().zip(expected.iter().zip(&*setup.templates).cycle());
        for (packet, (expected, template)) in pairs {
            if packet != expected {
                return Err(format!(
                    "{}: packet {} came out as {:02x?} instead of {:02x?}",
                    setup.case,
                    number(template),
                    packet.0,
                    expected.0
                ));
            }
        }
        Ok(())
    }
}

impl Forward {
    pub(crate) fn run(&self) -> Result<Report, String> {
        match self.device {
            Device::Mem => self.run_mem(),
            Device::Xdp => super::forward_xdp::run(&self.common),
        }
    }

    fn run_mem(&self) -> Result<Report, String> {
        let cpu = pin(self.common.cpu)?;
        let mut random = Random::new(1);
        const TEMPLATES: usize = 1 << 16;
        let mut set = |prefixes: Vec<IpPrefix>, count: usize| -> (Arc<[IpPrefix]>, Arc<[Template]>) {
            let templates = templates(count, RX_MAC, &prefixes, &mut random);
            (prefixes.into(), templates.into())
        };
        eprintln!("making routes and packets");
        let bgp = |n, seed| bgp_prefixes(n, &mut Random::new(seed)).into_iter().map(Prefix::any).collect();
        let bgp6 = |n, seed| bgp_prefixes6(n, &mut Random::new(seed)).into_iter().map(Prefix::any).collect();
        let (few, few_t) = set(sixteen_prefixes().into_iter().map(Prefix::any).collect(), TEMPLATES);
        let (many, many_t) = set(bgp(10_000, 2), TEMPLATES);
        // As many packets as prefixes, so that the whole table is used and not a cached part of it.
        let (full, full_t) = set(bgp(1_000_000, 3), 1 << 20);
        let (many6, many6_t) = set(bgp6(10_000, 4), TEMPLATES);
        let (full6, full6_t) = set(bgp6(200_000, 5), 1 << 18);
        let setup =
            |case, (prefixes, templates): (&Arc<[IpPrefix]>, &Arc<[Template]>), burst, routed| Setup {
                case,
                prefixes: prefixes.clone(),
                templates: templates.clone(),
                first: None,
                burst,
                routed,
                steering: self.steering,
                vlans: None,
            };
        let setups = [
            setup("raw", (&few, &few_t), BATCH, false),
            setup("fib-16", (&few, &few_t), BATCH, true),
            Setup { vlans: Some([10, 20]), ..setup("vlan-16", (&few, &few_t), BATCH, true) },
            setup("fib-10k", (&many, &many_t), BATCH, true),
            setup("fib-10k-burst32", (&many, &many_t), 32, true),
            setup("fib-10k-burst8", (&many, &many_t), 8, true),
            setup("fib-1m", (&full, &full_t), BATCH, true),
            setup("ipv6-10k", (&many6, &many6_t), BATCH, true),
            setup("ipv6-200k", (&full6, &full6_t), BATCH, true),
        ];
        let names: Vec<_> = setups.iter().map(|s| s.case).collect();
        let wanted = wanted(&self.cases, &names)?;
        let setups: Vec<Setup> = setups.into_iter().filter(|s| wanted.contains(&s.case)).collect();
        let packets = packets(&self.common);
        let mut benches = Vec::new();
        for setup in &setups {
            benches.push(Some(setup.start(false)?));
        }
        let cases = setups
            .iter()
            .zip(&mut benches)
            .map(|(setup, bench)| Case {
                row: Row::new(
                    setup.case,
                    params([
                        ("routes", json!(if setup.routed { setup.prefixes.len() } else { 0 })),
                        ("vlans", json!(setup.vlans.is_some())),
                        ("burst", json!(setup.burst)),
                        ("templates", json!(setup.templates.len())),
                    ]),
                ),
                measure: Box::new(move || -> Result<Sample, String> {
                    bench.as_mut().ok_or("ended")?.sample(packets)
                }),
            })
            .collect();
        let mut report = alternate("forward", Some(cpu), self.common.rounds(), cases)?;
        for (setup, bench) in setups.iter().zip(&mut benches) {
            let expected = setup.all_expected();
            if let Some(bench) = bench.take() {
                bench.verify(setup, &expected)?;
            }
            // Once more with every packet kept and compared.
            let mut kept = setup.start(true)?;
            kept.forward(setup.templates.len() as u64)?;
            kept.verify(setup, &expected)?;
        }
        let least =
            [("fib-16", 25.0), ("fib-10k", 20.0), ("fib-1m", 10.0), ("ipv6-10k", 10.0), ("ipv6-200k", 5.0)];
        for (case, least) in least {
            if report.row(case).is_some() {
                report
                    .bound(case, "mpps", Bound::AtLeast(least))
                    .on(&REFERENCE)
                    .meaning("One worker on one core forwards 64-byte packets at this rate.");
            }
        }
        for (case, least) in [("fib-10k-burst32", 0.85), ("fib-10k-burst8", 0.5)] {
            if let (Some(row), Some(full)) = (report.row(case), report.row("fib-10k")) {
                let share = row.median("mpps") / full.median("mpps");
                report
                    .bound_value(format!("{case} / fib-10k mpps"), share, Bound::AtLeast(least))
                    .meaning("Short bursts keep this share of the rate that full ones have.");
            }
        }
        Ok(report)
    }
}
