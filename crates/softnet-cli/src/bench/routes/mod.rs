//! `softnet bench routes`: the kernel's routes as a routing daemon has them, by the million, followed while packets
//! pass.

mod rig;

use std::net::IpAddr;
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::json;
use softnet_testkit::RouteChange;

use super::report::{Bound, Report, Row, Sample};
use super::tcp::idle::resident;
use super::templates::{Random, bgp_prefixes, bgp_prefixes6};
use super::{Common, cpus};
use rig::{Passed, Rig};

pub(super) const HELP: &str = "\
A router of one worker between two veth pairs, over AF_XDP, with `follow = \"kernel\"`, in namespaces of its own (root). \
The kernel gets routes with the lengths of a BGP table, a thousand with each system call. One round: the figures are of a \
whole process, and not of a case. --rounds is for others.

  load             1,000,000 routes of IPv4 and 200,000 of IPv6 (with --quick 100,000 and 20,000) come into an empty table
  forward          packets as fast as they can be sent, and no route changes
  forward-updates  the same while routes change their gateway, 50,000 a second
  flaps            10,000 routes come and go, and the route of the packets itself changes its gateway, while 50,000 \
packets a second pass

  kernel_s         until the kernel had all routes
  load_s           until softnet had them as well, from the same moment on
  resident_mib     growth of the process's resident set from before the stack was started: packet memory, tables and all
  updates_per_s    routes that the kernel was told to change, by the time that the changes took
  behind_ms        from the last change in the kernel until softnet had published all
  overruns         times that the kernel dropped notifications, so that all routes were listed again
  dropped          packets that softnet dropped, for any reason
  differ           routes that are not the kernel's at the end";

/// Routes that come and go.
const FLAPS: u32 = 10_000;
/// Changes a second that are wanted, and how many at a time.
const UPDATES: u64 = 50_000;
const AT_A_TIME: usize = 1000;

#[derive(Args, Debug)]
pub(crate) struct Routes {
    #[command(flatten)]
    pub(super) common: Common,
}

fn params(routes: u64) -> Vec<(&'static str, serde_json::Value)> {
    vec![("device", json!("xdp")), ("context", json!("softirq")), ("routes", json!(routes))]
}

fn mpps(passed: &Passed) -> f64 {
    passed.arrived as f64 / passed.seconds / 1e6
}

impl Routes {
    pub(crate) fn run(&self) -> Result<Report, String> {
        let all = cpus();
        let cpu = self.common.cpu;
        if !all.contains(&cpu) {
            return Err(format!("--cpu {cpu}: there are {} CPUs", all.len()));
        }
        // Away from the worker, if there is another one.
        let source_cpu = all.iter().copied().find(|other| *other != cpu).unwrap_or(cpu);
        let (v4, v6) = if self.common.quick { (100_000, 20_000) } else { (1_000_000, 200_000) };
        let time = Duration::from_secs(if self.common.quick { 3 } else { 10 });
        eprintln!("making routes");
        let prefixes: Vec<(IpAddr, u8)> = {
            let v4 = bgp_prefixes(v4, &mut Random::new(3)).into_iter().map(|to| (to.addr().into(), to.len()));
            let v6 =
                bgp_prefixes6(v6, &mut Random::new(5)).into_iter().map(|to| (to.addr().into(), to.len()));
            // The wires' own networks are no daemon's, and what comes and goes comes later.
            let own = |addr: IpAddr| match addr {
                IpAddr::V4(addr) => matches!(addr.octets(), [10, 71, ..] | [100, 64..=127, ..]),
                IpAddr::V6(_) => false,
            };
            v4.chain(v6).filter(|(addr, _)| !own(*addr)).collect()
        };
        let before = resident()?;
        let mut rig = Rig::new(cpu, source_cpu)?;

        eprintln!("loading them");
        let began = Instant::now();
        let taken = rig.change(RouteChange::Add, prefixes.iter().copied(), 0)?;
        let kernel_s = began.elapsed().as_secs_f64();
        rig.until_routes(taken)?;
        let load_s = began.elapsed().as_secs_f64();
        rig.settle()?;
        let follow = rig.view().stats().follow.unwrap_or_default();
        let mut rows = Vec::new();
        let mut push = |case: &str, sample: Sample| {
            let mut row = Row::new(case, params(taken));
            row.push(sample);
            rows.push(row);
        };
        let grown = resident()?.saturating_sub(before);
        push(
            "load",
            vec![
                ("kernel_s", kernel_s),
                ("load_s", load_s),
                ("resident_mib", grown as f64 / f64::from(1 << 20)),
                ("overruns", follow.overruns as f64),
            ],
        );

        eprintln!("forwarding");
        let passed = rig.traffic(None, |_| {
            std::thread::sleep(time);
            Ok(())
        })?;
        push("forward", vec![("mpps", mpps(&passed)), ("dropped", passed.dropped as f64)]);

        eprintln!("forwarding while routes change");
        let overruns = |rig: &Rig| rig.view().stats().follow.map_or(0, |follow| follow.overruns);
        let (had, mut rate, mut behind) = (overruns(&rig), 0.0, 0.0);
        let passed = rig.traffic(None, |rig| {
            let began = Instant::now();
            let mut made = 0u64;
            for (i, some) in prefixes.chunks(AT_A_TIME).cycle().enumerate() {
                if began.elapsed() >= time {
                    break;
                }
                // Each time around by the other gateway.
                let way = 1 + i / prefixes.len().div_ceil(AT_A_TIME);
                made += rig.change(RouteChange::Replace, some.iter().copied(), way)?;
                let due = Duration::from_nanos(made * 1_000_000_000 / UPDATES);
                std::thread::sleep(due.saturating_sub(began.elapsed()));
            }
            rate = made as f64 / began.elapsed().as_secs_f64();
            // One more, which is new: once it is there, so are all before it.
            let last = rig.view().stats().routes + 1;
            let told = Instant::now();
            rig.change(RouteChange::Add, flap(0..1), 0)?;
            while rig.view().stats().routes != last && told.elapsed() < Duration::from_secs(60) {
                std::thread::sleep(Duration::from_millis(1));
            }
            behind = told.elapsed().as_secs_f64() * 1000.0;
            rig.change(RouteChange::Delete, flap(0..1), 0).map(|_| ())
        })?;
        let lost = overruns(&rig) - had;
        push(
            "forward-updates",
            vec![
                ("mpps", mpps(&passed)),
                ("dropped", passed.dropped as f64),
                ("updates_per_s", rate),
                ("behind_ms", behind),
                ("overruns", lost as f64),
            ],
        );

        eprintln!("flapping");
        rig.settle()?;
        let mut flaps = 0;
        let passed = rig.traffic(Some(50_000), |rig| {
            let began = Instant::now();
            while began.elapsed() < time {
                rig.change(RouteChange::Add, flap(0..FLAPS), flaps)?;
                rig.move_traffic(1 + flaps)?;
                rig.change(RouteChange::Delete, flap(0..FLAPS), flaps)?;
                flaps += 1;
            }
            Ok(())
        })?;
        rig.settle()?;
        eprintln!("comparing");
        push(
            "flaps",
            vec![
                ("mpps", mpps(&passed)),
                ("lost", passed.sent.saturating_sub(passed.arrived) as f64),
                ("dropped", passed.dropped as f64),
                ("flaps_per_s", f64::from(FLAPS) * flaps as f64 / passed.seconds),
                ("differ", rig.differing()? as f64),
            ],
        );
        let mut report = Report::new("routes", rows, None);
        report
            .bound("load", "resident_mib", Bound::AtMost(300.0))
            .meaning("A full table of both families fits into a small router.");
        report
            .bound("flaps", "dropped", Bound::AtMost(0.0))
            .meaning("A packet is lost by no change of a route that is there before and after.");
        report.bound("flaps", "differ", Bound::AtMost(0.0)).meaning("softnet has the kernel's routes.");
        Ok(report)
    }
}

/// Prefixes that no packet goes to (RFC 6598).
fn flap(numbers: std::ops::Range<u32>) -> impl ExactSizeIterator<Item = (IpAddr, u8)> {
    let all: Vec<_> = numbers.map(|n| (std::net::Ipv4Addr::from(0x6440_0000 | n << 8).into(), 24)).collect();
    all.into_iter()
}
