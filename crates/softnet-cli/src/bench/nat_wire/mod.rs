//! `softnet bench nat --device xdp|tap`: TCP of kernel endpoints through softnet's NAT, beside the kernel's own.
//!
//! Cases, all measured in turn in one run, each between namespaces and wires of its own:
//! * `softnet`: one worker on `--cpu` translates;
//! * `softnet-2`, `kernel-xdp-threaded-2` (`--device xdp`): two workers or NAPI threads, each with a device and a
//!   CPU of its own;
//! * `kernel`: the kernel's router with nftables' masquerading, in softirq, on whichever CPU sends;
//! * `kernel-threaded`: the same by the kernel's NAPI threads, on `--cpu`;
//! * `softnet-route`, `kernel-route`, `kernel-threaded-route`: the same without translation;
//! * `plain` (`--device tap`): softnet's driver alone, what comes in by one TAP goes out by the
//!   other: what TAPs cost as such. (That of AF_XDP is in `bench forward --device xdp`.)
//! * `kernel-xdp`, `kernel-xdp-threaded`, and both with `-route` (`--device xdp`): the kernel's router
//!   with an XDP program on its interfaces that lets all pass: what veth does for AF_XDP, it does
//!   here too;
//! * `softnet-plain`, `kernel-xdp-plain` and both with `-route` (`--device xdp`): `softnet` and
//!   `kernel-xdp`, cutting what they merged before it leaves;
//! * `kernel-segments`, `kernel-segments-route` (`--device xdp`): the kernel at its best, with
//!   segments of up to 64 KB that veth hands over by reference;
//! * `kernel-taps`, `kernel-taps-route` (`--device tap`): the kernel routes between TAPs, too. The
//!   other end of a TAP is a program, so softnet's driver joins each to that of a host.
//!
//! **Same offloads.** Attaching XDP to a veth has the other end send frames of the MTU, so the hosts do
//! in `softnet` as in `kernel-xdp`. Both merge what they receive (GRO), and what they send leaves
//! uncut (`tso`, TSO). `kernel` and `kernel-threaded` have no XDP, and TSO off at all ends. A TAP
//! takes segments and partial checksums as they are. The kernel's best way to join namespaces then is
//! a veth pair with all offloads, which hands segments over by reference; a TAP copies each, once for
//! each end.
//!
//! **Verified**: before anything is timed, four megabytes each way, byte for byte, and the address that the server saw.

mod iperf3;
mod rig;
mod routers;

use std::time::Duration;

use serde_json::json;

use super::Common;
use super::harness::{Case, alternate, wanted};
use super::report::{Bound, REFERENCE, Report, Row};
pub(super) use rig::Ends;
use rig::{Rig, Router, Wires};

/// Streams at a time.
const STREAMS: [usize; 2] = [1, 4];

/// What sends and receives.
pub(super) struct Streams {
    /// Where the kernel's endpoints process what they receive.
    pub(super) ends: Ends,
    /// iperf3, not the bench itself.
    pub(super) iperf3: bool,
}

/// Runs the bench on AF_XDP, or on TAPs; only the cases `asked` for, if there are any.
pub(super) fn run(
    common: &Common,
    asked: &[String],
    taps: bool,
    Streams { ends, iperf3 }: Streams,
) -> Result<Report, String> {
    let cpus = super::cpus();
    if !cpus.contains(&common.cpu) {
        return Err(format!("--cpu {}: CPUs here: {cpus:?}", common.cpu));
    }
    let (warm, time) = match common.quick {
        true => (Duration::from_millis(300), Duration::from_millis(700)),
        false => (Duration::from_millis(500), Duration::from_secs(2)),
    };
    let other = cpus.iter().copied().find(|cpu| *cpu != common.cpu).unwrap_or(common.cpu);
    let (one, two) = ([common.cpu; 2], [common.cpu, other]);
    let softirq = Router::Kernel(None);
    let (threaded, threaded2) = (Router::Kernel(Some(one)), Router::Kernel(Some(two)));
    let (softnet, softnet2) = (Router::Softnet(one), Router::Softnet(two));
    let (own, veth) = if taps { (Wires::Taps, Wires::VethSegments) } else { (Wires::VethXdp, Wires::Veth) };
    let mut ways = vec![
        ("softnet", own, softnet, true),
        ("kernel", veth, softirq, true),
        ("kernel-threaded", veth, threaded, true),
        ("softnet-route", own, softnet, false),
        ("kernel-route", veth, softirq, false),
        ("kernel-threaded-route", veth, threaded, false),
    ];
    if taps {
        ways.extend([
            ("plain", own, Router::Plain, false),
            ("kernel-taps", own, softirq, true),
            ("kernel-taps-route", own, softirq, false),
        ]);
    }
    if !taps {
        ways.extend([
            ("kernel-xdp", own, softirq, true),
            ("kernel-xdp-threaded", own, threaded, true),
            ("softnet-2", own, softnet2, true),
            ("kernel-xdp-threaded-2", own, threaded2, true),
            ("softnet-plain", Wires::VethXdpPlain, softnet, true),
            ("kernel-xdp-plain", Wires::VethXdpPlain, softirq, true),
            ("kernel-segments", Wires::VethSegments, softirq, true),
            ("kernel-xdp-route", own, softirq, false),
            ("kernel-xdp-threaded-route", own, threaded, false),
            ("softnet-plain-route", Wires::VethXdpPlain, softnet, false),
            ("kernel-xdp-plain-route", Wires::VethXdpPlain, softirq, false),
            ("kernel-segments-route", Wires::VethSegments, softirq, false),
        ]);
    }
    let all: Vec<_> = ways.iter().map(|way| way.0).collect();
    let wanted = wanted(asked, &all)?;
    ways.retain(|way| wanted.contains(&way.0));
    let mut rigs = Vec::new();
    for (case, wires, router, nat) in ways {
        let rig =
            Rig::new(wires, router, nat, (common.cpu, ends)).map_err(|error| format!("{case}: {error}"))?;
        rig.verify().map_err(|error| format!("{case}: {error}"))?;
        rigs.push((case, nat, rig));
    }
    let mut cases = Vec::new();
    for streams in STREAMS {
        for (case, nat, rig) in &rigs {
            let row = Row::new(
                *case,
                vec![
                    ("device", json!(if taps { "tap" } else { "xdp" })),
                    ("nat", json!(nat)),
                    ("ends", json!(format!("{ends:?}").to_lowercase())),
                    ("connections", json!(streams)),
                ],
            );
            let measure: Box<dyn FnMut() -> _> = match iperf3 {
                true => Box::new(move || rig.measure_iperf3(streams, warm, time)),
                false => Box::new(move || rig.measure(streams, warm, time)),
            };
            cases.push(Case { row, measure });
        }
    }
    let mut report = alternate("nat", None, common.rounds(), cases)?;
    for streams in STREAMS {
        let params = [("connections", json!(streams))];
        for suffix in ["", "-route"] {
            let row = |name: &str| format!("{name}{suffix}");
            let median =
                |name: &str| report.row_where(&row(name), &params).map_or(0.0, |row| row.median("gbit_s"));
            // Each in its best configuration.
            let best =
                |names: &[&'static str]| names.iter().copied().max_by(|a, b| median(a).total_cmp(&median(b)));
            let peers: &[&'static str] = match taps {
                true => &["kernel-taps"],
                false => &["kernel-xdp", "kernel-xdp-threaded", "kernel-xdp-threaded-2"],
            };
            let [Some(softnet), Some(best)] = [best(&["softnet-2", "softnet"]), best(peers)] else {
                continue;
            };
            let [softnet, best] = [row(softnet), row(best)];
            if [&softnet, &best].iter().any(|case| report.row_where(case, &params).is_none()) {
                continue;
            }
            let ratio = report.ratio_where((&softnet, &params), (&best, &params), "gbit_s");
            let what = format!("{softnet} / {best} gbit_s, {streams} streams, by round");
            report.bound_value(what, ratio, Bound::AtLeast(1.0)).on(&REFERENCE).meaning(
                "Bulk TCP through softnet is as fast as through the kernel's router on the same interfaces.",
            );
        }
    }
    Ok(report)
}
