//! `softnet bench filter`: how many packets a second one worker forwards that rules are asked about.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use clap::Args;
use serde_json::json;
use softnet_core::conntrack::{Conntrack, Timeouts};
use softnet_core::filter::{Action, Addresses, Chain, Filter, FlowState, Rule, Rules};
use softnet_core::fold::FoldKey;
use softnet_core::ip::{IpPrefix, Prefix};
use softnet_dev::hugepage::HugePages;

use super::forward::{self, Setup};
use super::harness::{Case, alternate, wanted};
use super::nat::sessions;
use super::report::{Bound, Report, Row};
use super::templates::sixteen_prefixes;
use super::{Common, pin};
use crate::bench::text;

pub(super) const HELP: &str = "\
One worker on one core forwards 64-byte IPv4 packets of UDP from one emulated NIC to another, by 16 routes; there are \
10,000 of them, with other sources. Rules are at the hook `forward`, and none matches but what lets all pass, so each \
packet is held against all of them.

  forward      without rules
  rules-10     10 rules with addresses, protocols and ports
  rules-100    100 of them
  set-100k     one rule for 100,000 prefixes, as sources
  stateful     rules that ask for states: 10,000 connections, looked up and let pass";

/// Packets, and connections.
const FLOWS: usize = 10_000;
/// What there is room for.
const CAPACITY: u32 = 16_384;

#[derive(Args, Debug)]
pub(crate) struct FilterBench {
    #[command(flatten)]
    pub(super) common: Common,
    /// Only this row (may be repeated), as for a profile: `perf record softnet bench filter --case
    /// rules-100`
    #[arg(long = "case", value_name = "CASE")]
    cases: Vec<String>,
}

const CASES: [&str; 5] = ["forward", "rules-10", "rules-100", "set-100k", "stateful"];

/// A prefix that no packet is of: 20.0.0.0 and what follows.
fn foreign(n: u32, len: u8) -> Result<IpPrefix, String> {
    Prefix::containing(IpAddr::V4(Ipv4Addr::from_bits((20 << 24) + n * 512)), len).map_err(text)
}

/// The rules of a case; `None`: none.
fn rules(case: &str) -> Result<Option<Rules>, String> {
    let rule = |action| Rule { chains: vec![Chain::Forward], action, ..Rule::default() };
    // Those of one kind differ in what they ask for.
    let stranger = |n: u32| {
        let mut rule = Rule { protocol: vec![17], ..rule(Action::Drop) };
        match n % 3 {
            0 => rule.source = vec![Addresses::Prefix(foreign(n, 24)?)],
            1 => rule.destination_port = vec![n as u16..=n as u16],
            _ => rule.destination = vec![Addresses::Prefix(foreign(n, 16)?)],
        }
        Ok::<_, String>(rule)
    };
    let mut rules = Rules::default();
    match case {
        "rules-10" => rules.rules = (0..10).map(stranger).collect::<Result<_, _>>()?,
        "rules-100" => rules.rules = (0..100).map(stranger).collect::<Result<_, _>>()?,
        "set-100k" => {
            let set: Result<Vec<_>, _> = (0..100_000).map(|n| foreign(n, 24 + (n % 9) as u8)).collect();
            rules.sets = vec![set?];
            rules.rules = vec![Rule { source: vec![Addresses::Set(0)], ..rule(Action::Drop) }];
        }
        "stateful" => {
            let belongs = vec![FlowState::Established, FlowState::Related];
            rules.rules = vec![
                Rule { state: belongs, ..rule(Action::Allow) },
                Rule { state: vec![FlowState::New], input: vec![0], ..rule(Action::Allow) },
            ];
            rules.policies[Chain::Forward as usize] = Action::Drop;
        }
        _ => return Ok(None),
    }
    Ok(Some(rules))
}

/// Starts a stack with these rules.
fn start(setup: &Setup, rules: Option<&Rules>) -> Result<forward::Bench, String> {
    let bench = setup.start(false)?;
    let Some(rules) = rules else { return Ok(bench) };
    let conntrack = rules.ask_for_states().then(|| {
        let table = Conntrack::new(
            CAPACITY,
            FoldKey::new([0x9e37_79b9_7f4a_7c15, 0xd1b5_4a32_d192_ed03]),
            &Timeouts::default(),
            &HugePages,
        );
        (Arc::new(table.with_ipv6()), None)
    });
    let filter = Filter::new(rules, conntrack).map_err(text)?;
    let shared = &bench.assembly.shared;
    shared.control().replace_tables(&**shared, |tables| filter.stand(rules, &mut tables.hooks));
    Ok(bench)
}

/// Forwards all packets, and checks that they were decided by what lets them pass.
fn verify(setup: &Setup, rules: Option<&Rules>) -> Result<(), String> {
    let mut bench = start(setup, rules)?;
    let n = 3 * setup.templates.len() as u64;
    bench.forward(n)?;
    let contexts = bench.assembly.shared.contexts();
    let decided = |number: u16| contexts.iter().map(|context| context.rule(number.into())[0]).sum::<u64>();
    let passed = match rules {
        None => n,
        Some(rules) if rules.ask_for_states() => decided(1),
        Some(_) => decided(Chain::Forward.policy_number()),
    };
    bench.end()?;
    if passed == n { Ok(()) } else { Err(format!("{}: {passed} of {n} packets were let pass", setup.case)) }
}

impl FilterBench {
    pub(crate) fn run(&self) -> Result<Report, String> {
        let cpu = pin(self.common.cpu)?;
        let wanted = wanted(&self.cases, &CASES)?;
        let prefixes: Arc<[IpPrefix]> = sixteen_prefixes().into_iter().map(Prefix::any).collect();
        let mut setups = Vec::new();
        for case in wanted {
            let setup = Setup::of_sessions(case, &prefixes, sessions(FLOWS, &prefixes));
            setups.push((setup, rules(case)?));
        }
        let packets = forward::packets(&self.common);
        let mut benches = Vec::new();
        for (setup, rules) in &setups {
            let mut bench = start(setup, rules.as_ref())?;
            bench.forward(setup.templates.len() as u64)?;
            benches.push(Some(bench));
        }
        let cases = setups
            .iter()
            .zip(&mut benches)
            .map(|((setup, rules), bench)| Case {
                row: Row::new(
                    setup.case,
                    forward::params([("rules", json!(rules.as_ref().map_or(0, |rules| rules.rules.len())))]),
                ),
                measure: Box::new(move || bench.as_mut().ok_or("ended")?.sample(packets)),
            })
            .collect();
        let mut report = alternate("filter", Some(cpu), self.common.rounds(), cases)?;
        for ((setup, rules), bench) in setups.iter().zip(&mut benches) {
            if let Some(bench) = bench.take() {
                bench.end()?;
            }
            verify(setup, rules.as_ref())?;
        }
        if self.cases.is_empty() {
            let none: [(&str, serde_json::Value); 0] = [];
            let grown = report.ratio_where(("rules-100", &none), ("rules-10", &none), "ns_per_packet");
            report
                .bound_value("rules-100 / rules-10 ns_per_packet".into(), grown, Bound::AtMost(1.5))
                .meaning("Ten times as many rules cost hardly more.");
        }
        Ok(report)
    }
}
