//! `bench skb-cache --app nat`: the cache of buffer heads where it was proposed, in a router that
//! takes tagged traffic in, translates its sources, and sends it out tagged, with GRO and GSO.
//!
//! Owned by the thread that runs the bench, which is the stack's worker too.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::json;
use softnet::config::{
    Action, CacheSizes, Chain, Config, DeviceConfig, FlowState, GroMode, NatConfig, NatSourceConfig,
    NeighbourConfig, RouteConfig, RouteTarget, RuleAddresses, RuleConfig,
};
use softnet::driver::{OpenRequest, Own, Vlan};
use softnet::internals::Assembly;
use softnet_core::gso::TxOffloads;
use softnet_core::skb::{BATCH, Region};
use softnet_dev::mem::{NicConfig, NicPort, nic};

use super::published;
use super::streams::{
    FarEnd, Found, GATEWAY_MAC, LAN_MAC, LAN_VLAN, LEN, Proto, SERVERS, Stopwatch, Streams, WAN_ADDR,
    WAN_MAC, WAN_VLAN,
};
use crate::bench::harness::{Case, alternate};
use crate::bench::report::{Bound, REFERENCE, Report, Row, Sample};
use crate::bench::{Common, pin, text};

/// What the caches are like.
const CACHES: [(&str, CacheSizes); 4] = [
    ("none", CacheSizes::OFF),
    ("separate", CacheSizes::SEPARATE),
    ("unified-64", CacheSizes::unified(64, 16, 32)),
    ("unified-128", CacheSizes::unified(128, 32, 32)),
];
const NONE: usize = 0;
const TODAY: usize = 3;

/// Networks that [`rules`] block.
const BLOCKED: u8 = 10;
/// All of those rules.
const RULES: u8 = BLOCKED + 2;

/// What a router has that keeps strangers out: networks that are blocked, answers that are let in, and all that comes from
/// inside. Every packet here is held against all of them.
fn rules() -> Result<Vec<RuleConfig>, String> {
    let rule = |action: Action, condition: &dyn Fn(&mut RuleConfig)| {
        let mut rule = RuleConfig::default();
        (rule.hook, rule.action) = (vec![Chain::Forward], action);
        condition(&mut rule);
        rule
    };
    let mut rules = Vec::new();
    for n in 0..BLOCKED {
        let blocked = format!("20.0.{n}.0/24").parse().map_err(text)?;
        rules.push(rule(Action::Drop, &|rule| rule.source = vec![RuleAddresses::Prefix(blocked)]));
    }
    let belongs = [FlowState::Established, FlowState::Related];
    rules.push(rule(Action::Allow, &|rule| rule.state = belongs.to_vec()));
    rules.push(rule(Action::Allow, &|rule| rule.input = vec!["lan".into()]));
    Ok(rules)
}

/// A row.
#[derive(Clone, Copy, Debug)]
struct Setup {
    /// Of heads.
    cache: usize,
    /// Frames are cached as in `unified-128`; else each comes from the pool by itself.
    frames_cached: bool,
    proto: Proto,
    gro: GroMode,
    /// The NIC cuts TCP, and completes checksums.
    tso: bool,
    /// The NIC has verified what it receives.
    rx_csum: bool,
    /// Packets that arrive at a time.
    burst: u64,
    /// Without a router: what comes in by one NIC goes out by the other.
    raw: bool,
    /// With the rules of a router that keeps strangers out.
    rules: bool,
}

impl Setup {
    const fn new(cache: usize, proto: Proto, gro: GroMode) -> Self {
        let burst = BATCH as u64;
        let (frames_cached, tso, rx_csum) = (true, true, true);
        Setup { cache, frames_cached, proto, gro, tso, rx_csum, burst, raw: false, rules: false }
    }

    /// All there are: each cache by what GRO does and by protocol, and what one of these is without
    /// this or that. Those that a bound compares stand side by side: few machines are equally
    /// fast for long.
    fn all() -> Vec<Setup> {
        let mut all = Vec::new();
        for proto in [Proto::Udp, Proto::Tcp] {
            let frags = if proto == Proto::Tcp { GroMode::Frags } else { GroMode::FragsUdp };
            for gro in [GroMode::Off, frags, GroMode::List] {
                let mut setups: Vec<_> =
                    (0..CACHES.len()).map(|cache| Setup::new(cache, proto, gro)).collect();
                if gro == frags {
                    setups.reverse();
                }
                all.append(&mut setups);
            }
        }
        let tcp = Setup::new(TODAY, Proto::Tcp, GroMode::Frags);
        all.push(Setup { tso: false, ..tcp });
        all.push(Setup { rx_csum: false, ..tcp });
        for proto in [Proto::Udp, Proto::Tcp] {
            all.push(Setup { frames_cached: false, ..Setup::new(TODAY, proto, GroMode::Off) });
        }
        for (raw, rules) in [(true, false), (false, true)] {
            for gro in [GroMode::Off, GroMode::Frags] {
                all.push(Setup { raw, rules, ..Setup::new(TODAY, Proto::Tcp, gro) });
            }
        }
        all.extend(
            (0..CACHES.len()).map(|at| Setup { burst: 1, ..Setup::new(at, Proto::Udp, GroMode::Off) }),
        );
        all
    }

    /// As the row has it.
    fn case(&self) -> &'static str {
        if self.raw { "raw" } else { CACHES[self.cache].0 }
    }

    /// As the row has it.
    fn gro(&self) -> &'static str {
        match self.gro {
            GroMode::Off => "off",
            GroMode::Frags | GroMode::FragsUdp => "frags",
            GroMode::List => "list",
        }
    }

    fn params(&self) -> Vec<(&'static str, serde_json::Value)> {
        let frames = if self.frames_cached { TODAY } else { NONE };
        vec![
            ("proto", json!(self.proto.name())),
            ("gro", json!(self.gro())),
            ("tso", json!(self.tso)),
            ("rx_csum", json!(self.rx_csum)),
            ("frames", json!(CACHES[frames].0)),
            ("burst", json!(self.burst)),
            ("rules", json!(if self.rules { RULES } else { 0 })),
            ("app", json!("nat")),
            ("device", json!("mem")),
            ("context", json!("softirq")),
            ("threads", json!(1)),
            ("pinned", json!(true)),
            ("size", json!(LEN)),
        ]
    }

    fn config(&self) -> Result<Config, String> {
        let nic = |name: &str| DeviceConfig::new(name).with(|device| device.driver = Own.into());
        let vlan = |name: &str, link: &str, id: u16, address: &str| -> Result<DeviceConfig, String> {
            let addresses = vec![address.parse().map_err(text)?];
            Ok(DeviceConfig::new(name).with(|device| {
                device.addresses = addresses;
                device.driver = Vlan::new(link, id).into();
            }))
        };
        let mut config = Config::default();
        config.stack.frames = 4096;
        config.stack.skb_cache = CACHES[self.cache].1;
        config.stack.frame_cache = Some(CACHES[if self.frames_cached { TODAY } else { NONE }].1);
        let wan = Ipv4Addr::from(WAN_ADDR);
        config.devices = vec![
            nic("nic0").with(|device| device.gro = self.gro),
            nic("nic1"),
            vlan("lan", "nic0", LAN_VLAN, "198.18.0.254/24")?,
            vlan("wan", "nic1", WAN_VLAN, &format!("{wan}/24"))?,
        ];
        let gateway = IpAddr::from([198, 19, 0, 2]);
        config.neighbours.push(NeighbourConfig::new("wan", gateway, GATEWAY_MAC));
        let servers = format!("{}/24", Ipv4Addr::from(SERVERS)).parse().map_err(text)?;
        config.routes.push(RouteConfig::new(servers, RouteTarget::Via(gateway)));
        let source = vec![NatSourceConfig::new("wan")];
        let mut nat = NatConfig::default();
        (nat.connections, nat.source) = (1024, source);
        config.nat = Some(nat);
        if self.rules {
            config.filter.rules = rules()?;
            config.filter.policies[Chain::Forward as usize] = Action::Drop;
        }
        Ok(config)
    }

    /// With `own`, every packet has a payload of its own, which the far end compares.
    fn start(&self, own: bool) -> Result<Router, String> {
        // Where packets come one by one, to look at the time twice for each would be more than is
        // left out.
        let watch = if self.burst == 1 { Stopwatch::default() } else { Stopwatch::running() };
        let (far, found) = FarEnd::new(self.proto, own, watch.clone());
        let far = if self.raw { far.unrouted() } else { far };
        let (mut far, timed) = (Some(far), watch.clone());
        let port = Arc::new(Mutex::new(None));
        let (ports, setup) = (port.clone(), *self);
        let tso = TxOffloads { csum: true, tso4: true, tso6: true, uso: false };
        let opener = move |_: &Arc<Region>| {
            Ok(move |&OpenRequest { dev, name, .. }: &OpenRequest<'_>, _: &mut softnet_core::SoftnetData| {
                // Only the first receives, only the second sends.
                let is_wan = name == "nic1";
                let config = NicConfig {
                    name: name.into(),
                    mac: if is_wan { WAN_MAC } else { LAN_MAC },
                    rx_csum: setup.rx_csum,
                    offloads: if setup.tso { tso } else { TxOffloads::default() },
                    ..NicConfig::default()
                };
                let streams = Streams::new(setup.proto, own, timed.clone());
                let far = if is_wan { far.take() } else { None };
                let far = far.unwrap_or_else(|| FarEnd::new(setup.proto, own, Stopwatch::default()).0);
                let nic = nic(dev, &config, vec![(streams, far)])?;
                if !is_wan {
                    *ports.lock().unwrap_or_else(PoisonError::into_inner) = nic.ports.into_iter().next();
                }
                Ok::<_, std::io::Error>(nic.open)
            })
        };
        let assembly = Assembly::new(self.config()?, if self.raw { vec![(0, 1)] } else { vec![] }, opener)
            .map_err(text)?;
        let port = port.lock().unwrap_or_else(PoisonError::into_inner).take();
        let port = port.ok_or("the receiving NIC was not opened")?;
        Ok(Router { setup: *self, assembly, port, watch, found, offered: 0 })
    }
}

/// A stack of one worker between two emulated NICs, run by the calling thread.
struct Router {
    setup: Setup,
    assembly: Assembly,
    port: NicPort,
    watch: Stopwatch,
    found: Arc<Mutex<Found>>,
    offered: u64,
}

impl Router {
    /// Forwards `packets` packets. Returns the time it took, and how much of that was the wire's.
    fn forward(&mut self, packets: u64) -> Result<(Duration, Duration), String> {
        let before = self.watch.ns();
        let all = self.run(packets)?;
        Ok((all, Duration::from_nanos(self.watch.ns() - before)))
    }

    fn run(&mut self, packets: u64) -> Result<Duration, String> {
        self.offered += packets;
        let (mut left, burst) = (packets, self.setup.burst);
        let worker = self.assembly.workers.first_mut().ok_or("no worker")?;
        let start = Instant::now();
        if burst == 1 {
            // Each is out, and the worker idle, before the next comes.
            for _ in 0..packets {
                self.port.offer(1);
                while worker.round() {}
            }
            return Ok(start.elapsed());
        }
        while left > 0 || self.port.waiting() > 0 {
            // Before the ring is empty, so that every poll is full and GRO goes on.
            if left > 0 && self.port.room() >= burst {
                left -= self.port.offer(left.min(burst));
            }
            worker.round();
        }
        while worker.round() {}
        Ok(start.elapsed())
    }

    /// Ends the run. Fails unless each packet came out once, as it should, and all memory is home.
    /// Returns packets on the wire, and in how many pieces they left.
    fn end(self) -> Result<(u64, u64), String> {
        let Router { assembly, port, found, offered, .. } = self;
        drop(port);
        let view = assembly.view.clone();
        drop(assembly);
        let stats = view.stats();
        let found = found.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(wrong) = &found.wrong {
            return Err(wrong.clone());
        }
        let balance = stats.received + stats.originated == stats.transmitted + stats.merged;
        if !balance || (stats.received, stats.dropped, stats.leaked) != (offered, 0, 0) {
            return Err(format!("offered {offered} packets, but {stats:?}, drops {:?}", view.drops()));
        }
        if (stats.frames_free, stats.heads_free) != (stats.frames, stats.heads) {
            return Err(format!("packet memory is missing: {stats:?}"));
        }
        if (found.packets, found.pieces) != (offered, stats.transmitted) {
            let Found { packets, pieces, .. } = &*found;
            return Err(format!("offered {offered}; out: {packets} packets in {pieces} pieces; {stats:?}"));
        }
        Ok((found.packets, found.pieces))
    }
}

pub(super) fn run(common: &Common) -> Result<Report, String> {
    let cpu = pin(common.cpu)?;
    let setups = Setup::all();
    let packets: u64 = if common.quick { 200_000 } else { 2_000_000 };
    // All bytes of some, before anything is measured.
    for setup in &setups {
        let mut router = setup.start(true)?;
        router.forward(if setup.burst == 1 { 500 } else { 20_000 })?;
        let (packets, pieces) = router.end().map_err(|e| format!("{setup:?}: {e}"))?;
        if setup.gro != GroMode::Off && setup.proto == Proto::Tcp && setup.tso && setup.gro != GroMode::List {
            let per_piece = packets / pieces;
            if per_piece < 8 {
                return Err(format!("{setup:?}: {packets} packets left in {pieces} pieces"));
            }
        }
    }
    let mut routers = Vec::new();
    for setup in &setups {
        routers.push(Some(setup.start(false)?));
    }
    let cases = setups
        .iter()
        .zip(&mut routers)
        .map(|(setup, router)| Case {
            row: Row::new(setup.case(), setup.params()),
            measure: Box::new(move || -> Result<Sample, String> {
                let router = router.as_mut().ok_or("ended")?;
                let packets = if setup.burst == 1 { packets / 2 } else { packets };
                let (all, wire) = router.forward(packets)?;
                let each = |time: Duration| time.as_nanos() as f64 / packets as f64;
                let ns = each(all.saturating_sub(wire));
                // As iperf counts: payload.
                let gbit = (8 * setup.proto.payload()) as f64 / ns;
                Ok(vec![
                    ("mpps", 1000.0 / ns),
                    ("gbit_per_s", gbit),
                    ("ns_per_packet", ns),
                    ("wire_ns_per_packet", each(wire)),
                ])
            }),
        })
        .collect();
    let mut report = alternate("skb-cache", Some(cpu), common.rounds(), cases)?;
    for (setup, router) in setups.iter().zip(&mut routers) {
        if let Some(router) = router.take() {
            router.end().map_err(|e| format!("{setup:?}: {e}"))?;
        }
    }
    bounds(&mut report);
    report.published.push(published::table(&report, ratio));
    Ok(report)
}

/// What tells a row where nothing is left out.
fn full(proto: &str, gro: &str, rules: u8) -> [(&'static str, serde_json::Value); 7] {
    [
        ("proto", json!(proto)),
        ("gro", json!(gro)),
        ("tso", json!(true)),
        ("rx_csum", json!(true)),
        ("frames", json!(CACHES[TODAY].0)),
        ("burst", json!(BATCH)),
        ("rules", json!(rules)),
    ]
}

/// Rate of `setup` divided by that of `by`.
fn ratio(report: &Report, case: &str, by: &str, proto: &str, gro: &str) -> f64 {
    let params = full(proto, gro, 0);
    report.ratio_where((case, &params), (by, &params), "mpps")
}

/// Rate of TCP with GRO divided by that without.
fn gain(report: &Report, case: &str, rules: u8) -> f64 {
    let [frags, off] = ["frags", "off"].map(|gro| full("tcp", gro, rules));
    report.ratio_where((case, &frags), (case, &off), "mpps")
}

fn bounds(report: &mut Report) {
    let (none, separate, today) = (CACHES[NONE].0, CACHES[1].0, CACHES[TODAY].0);
    for (proto, gro) in [("udp", "off"), ("tcp", "off"), ("udp", "list"), ("tcp", "frags"), ("udp", "frags")]
    {
        for unified in [CACHES[2].0, today] {
            let gain = ratio(report, unified, none, proto, gro);
            report
                .bound_value(
                    format!("{unified} / {none} mpps, {proto}, gro {gro}"),
                    gain,
                    Bound::AtLeast(1.03),
                )
                .on(&REFERENCE)
                .meaning("The cache of heads gains this much, as the proposal's did.");
        }
        let equal = ratio(report, today, separate, proto, gro);
        report
            .bound_value(
                format!("{today} / {separate} mpps, {proto}, gro {gro}"),
                equal,
                Bound::AtLeast(0.98),
            )
            .on(&REFERENCE)
            .meaning("One array is no worse than two: equal, within what runs differ by.");
    }
    for (what, case, rules, least, meaning) in [
        (String::new(), today, 0, 4.0, "With GRO and a NIC that cuts, TCP is forwarded so much faster."),
        (
            format!(", {RULES} rules"),
            today,
            RULES,
            4.0,
            "The same where the router filters too: the more it has to do, the more GRO saves.",
        ),
        (
            ", no router".into(),
            "raw",
            0,
            0.5,
            "What GRO costs by itself, where nothing is saved: the floor that the ratios above have.",
        ),
    ] {
        let gain = gain(report, case, rules);
        report
            .bound_value(format!("gro frags / off mpps, tcp{what}"), gain, Bound::AtLeast(least))
            .on(&REFERENCE)
            .meaning(meaning);
    }
    let single = [("burst", json!(1))];
    let latency = report.ratio_where((today, &single), (none, &single), "ns_per_packet");
    report
        .bound_value(format!("{today} / {none} ns per packet, one a poll"), latency, Bound::AtMost(1.03))
        .on(&REFERENCE)
        .meaning(
            "A packet that comes alone does not wait for the cache: no worse, within what runs differ by.",
        );
}

#[cfg(test)]
mod tests {
    use softnet_dev::mem::{Sink, Source};

    use super::*;

    /// Every row forwards what it should; a far end that expects something else says so.
    #[test]
    fn each_setup_forwards_every_byte() {
        for setup in Setup::all() {
            for own in [true, false] {
                let mut router = setup.start(own).unwrap();
                router.forward(if setup.burst == 1 { 20 } else { 4000 }).unwrap();
                let (packets, pieces) = router.end().unwrap_or_else(|e| panic!("{setup:?}: {e}"));
                let merges = setup.gro == GroMode::Frags && setup.tso;
                // How much is merged depends on how long it takes.
                assert_eq!(pieces < packets, merges, "{setup:?}: {packets} packets in {pieces} pieces");
            }
        }
    }

    #[test]
    fn what_is_missing_or_changed_is_found() {
        let setup = Setup::new(TODAY, Proto::Tcp, GroMode::Off);
        let (mut far, found) = FarEnd::new(Proto::Tcp, true, Stopwatch::default());
        let mut packet = [0; LEN];
        Streams::new(Proto::Tcp, true, Stopwatch::default()).write(&mut packet);
        far.read(&packet);
        drop(far);
        let found = found.lock().unwrap();
        assert!(found.wrong.as_ref().is_some_and(|wrong| wrong.starts_with("wrong MAC addresses")));
        let mut router = setup.start(true).unwrap();
        router.forward(64).unwrap();
        // One more is said to have come than did.
        router.offered += 1;
        assert!(router.end().unwrap_err().contains("offered 65"));
    }
}
