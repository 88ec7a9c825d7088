//! A forwarder between two wires, and how it is measured under load.
//!
//! ```text
//!  generator ─► veth ═══ veth  [forwarder]  veth ═══ veth ─► sink
//! ```
//!
//! Each [`Rig`] has namespaces and wires of its own, so that all can be up at the same time and be measured in turn: one
//! that gets no packets sleeps. Invariant: after every measurement each packet that the generator sent is accounted for,
//! as arrived, or as dropped in a counter.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use softnet::config::{Config, DeviceConfig, InterfaceAddr, NeighbourConfig, RouteConfig, RouteTarget};
use softnet::internals::{Assembly, XdpOpener};
use softnet::{DeviceError, Stack};
use softnet_core::ip::Prefix;
use softnet_dev::netlink::Netlink;
use softnet_dev::netns::NetNs;
use softnet_testkit::{Generator, GeneratorConfig, KernelNapi, Report, Sink, SinkFilter, Testbed};

use crate::bench::cpu::{Used, kernel_threads, ksoftirqd, softirq_ns};
use crate::bench::text;

/// What is routed: the benchmarking network of RFC 2544, 198.18.0.0/15.
const NET: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 0);
const NET_LEN: u8 = 15;
/// Port of the packets that the sink counts and drops.
pub(super) const PORT: u16 = 9;
/// Flows in the load, each with a destination of its own.
const FLOWS: u16 = 256;
/// How long the interfaces and rings get to become empty after the generator stopped.
const DRAIN: Duration = Duration::from_secs(10);

/// What forwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// softnet, routing.
    Routed,
    /// softnet's driver alone: what comes in by one interface goes out by the other.
    Plain,
    /// The kernel, routing.
    Kernel(KernelNapi),
}

/// See the [module](self). Field order matters: the forwarder gives its interfaces back before they vanish.
pub(super) struct Rig {
    pub(super) way: Way,
    stack: Option<Stack>,
    sink: Sink,
    pub(super) testbed: Testbed,
    /// CPU of the generator.
    source_cpu: usize,
    /// Threads that do the forwarder's work, where it has any.
    forwarders: Vec<u32>,
    /// The kernel's thread for softirqs that were put off, on the generator's CPU.
    deferred: Vec<u32>,
    load: Vec<Vec<u8>>,
}

/// What one measurement found.
#[derive(Clone, Copy, Debug)]
pub(super) struct Trial {
    /// Packets that arrived at the sink, a second.
    pub(super) rate: f64,
    /// Packets that the generator had due, a second: sent, refused by the interface, or skipped because it was late.
    pub(super) offered: f64,
    /// Share of what was due that did not arrive, 0 to 1.
    pub(super) loss: f64,
    /// Share of time in which the generator's CPU had nothing to do for it, 0 to 1.
    pub(super) idle: f64,
    /// CPU time of the forwarder's threads per time, 0 to 1.
    pub(super) worker: f64,
    /// CPU time of the forwarder within the generator's sends per time, 0 to 1.
    pub(super) softirq: f64,
    /// Time that generator and forwarder waited for their CPUs, per time.
    pub(super) waited: f64,
}

/// Counters at some moment.
struct Snapshot {
    at: Instant,
    generator: Report,
    source: Used,
    deferred: Used,
    forwarder: Used,
    softirq_ns: u64,
    arrived: u64,
}

impl Rig {
    /// Makes the wires and starts the forwarder, on `cpu`. The generator is to run on `source_cpu`.
    pub(super) fn new(way: Way, cpu: usize, source_cpu: usize) -> Result<Self, String> {
        let testbed = Testbed::new(1).map_err(text)?;
        let mut stack = None;
        let mut forwarders = Vec::new();
        match way {
            Way::Kernel(napi) => {
                testbed.forward_by_kernel(NET, NET_LEN, napi).map_err(text)?;
                if let KernelNapi::Threaded { .. } = napi {
                    forwarders = kernel_threads(&format!("napi/{}-", testbed.incoming.far));
                }
            }
            Way::Routed | Way::Plain => {
                let running = start_stack(&testbed, way, cpu)?;
                forwarders = worker_threads(&running);
                stack = Some(running);
            }
        }
        if way != Way::Kernel(KernelNapi::Softirq) {
            if forwarders.is_empty() {
                return Err("the forwarder has no thread".into());
            }
            forwarders.extend(ksoftirqd(cpu));
        }
        let sink = testbed
            .sink
            .run(|| Sink::attach(testbed.outgoing.near_index, SinkFilter::UdpPort(PORT)))
            .map_err(text)?
            .map_err(text)?;
        let load = (0..FLOWS).map(|flow| testbed.frame(destination(flow), PORT, super::SIZE)).collect();
        let deferred = ksoftirqd(source_cpu);
        Ok(Rig { way, stack, sink, testbed, source_cpu, forwarders, deferred, load })
    }

    /// Sends `frames` at `rate` packets a second, or as fast as possible.
    pub(super) fn generate(&self, frames: Vec<Vec<u8>>, rate: Option<u64>) -> Result<Generator, String> {
        let interface = self.testbed.incoming.near.clone();
        let config = GeneratorConfig { interface, frames, rate, cpu: Some(self.source_cpu) };
        Generator::start(&self.testbed.source, config).map_err(text)
    }

    fn snapshot(&self, generator: &Generator) -> Result<Snapshot, String> {
        Ok(Snapshot {
            at: Instant::now(),
            arrived: self.arrived()?,
            generator: generator.report(),
            source: Used::of(&[generator.thread()]),
            deferred: Used::of(&self.deferred),
            forwarder: Used::of(&self.forwarders),
            softirq_ns: softirq_ns(self.source_cpu),
        })
    }

    /// Packets at the sink so far.
    fn arrived(&self) -> Result<u64, String> {
        self.sink.count().map_err(text)
    }

    /// Offers `rate` packets a second (or as many as possible) for `warm` and then for `time`, which is measured, and
    /// accounts for every packet.
    pub(super) fn measure(&self, rate: Option<u64>, warm: Duration, time: Duration) -> Result<Trial, String> {
        let before = self.ledger()?;
        let generator = self.generate(self.load.clone(), rate)?;
        std::thread::sleep(warm);
        let begin = self.snapshot(&generator)?;
        std::thread::sleep(time);
        let end = self.snapshot(&generator)?;
        let total = generator.stop().map_err(text)?;
        self.settle(&before, total.sent)?;
        Ok(self.trial(&begin, &end))
    }

    fn trial(&self, begin: &Snapshot, end: &Snapshot) -> Trial {
        let seconds = (end.at - begin.at).as_secs_f64();
        let share = |ns: u64| ns as f64 / 1e9 / seconds;
        let sent = end.generator.since(&begin.generator);
        let source = end.source.since(begin.source);
        let deferred = end.deferred.since(begin.deferred);
        let forwarder = end.forwarder.since(begin.forwarder);
        let arrived = end.arrived.saturating_sub(begin.arrived) as f64;
        let due = (sent.sent + sent.refused + sent.skipped) as f64;
        // What runs within the generator's sends: of the AF_XDP cases the driver's receiving, XDP and the copy, of the
        // kernel's softirq all it does, and nothing but the hand-over to the thread if it has one.
        let softirq = match self.way {
            Way::Kernel(KernelNapi::Threaded { .. }) => 0.0,
            _ => share(end.softirq_ns.saturating_sub(begin.softirq_ns)),
        };
        let worker = share(forwarder.cpu_ns);
        let busy = share(source.cpu_ns + deferred.cpu_ns);
        Trial {
            rate: arrived / seconds,
            offered: due / seconds,
            // What was under way when counting began may arrive after.
            loss: if due > 0.0 { (1.0 - arrived / due).max(0.0) } else { 0.0 },
            idle: sent.idle_share().min(1.0 - busy).max(0.0),
            worker,
            softirq,
            waited: share(source.waited_ns + forwarder.waited_ns),
        }
    }
}

/// Where packets are, by the counters of everybody on their way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Ledger {
    /// Counted by the sink.
    arrived: u64,
    /// Dropped by the kernel on the way into the middle: rings that were full.
    lost_in: u64,
    /// Dropped by the kernel on the way out of the middle, or at the sink's interface.
    lost_out: u64,
    /// softnet's own totals.
    received: u64,
    transmitted: u64,
    dropped: u64,
}

impl Ledger {
    fn since(self, earlier: Ledger) -> Ledger {
        Ledger {
            arrived: self.arrived.saturating_sub(earlier.arrived),
            lost_in: self.lost_in.saturating_sub(earlier.lost_in),
            lost_out: self.lost_out.saturating_sub(earlier.lost_out),
            received: self.received.saturating_sub(earlier.received),
            transmitted: self.transmitted.saturating_sub(earlier.transmitted),
            dropped: self.dropped.saturating_sub(earlier.dropped),
        }
    }

    /// Whether it accounts for each of `sent` packets; `stack`: softnet forwarded, and its totals must add up too.
    fn balances(&self, sent: u64, stack: bool) -> bool {
        let whole = self.arrived + self.lost_in + self.lost_out + self.dropped == sent;
        let parts = self.lost_in + self.received == sent
            && self.received == self.transmitted + self.dropped
            && self.transmitted == self.arrived + self.lost_out;
        whole && (parts || !stack)
    }
}

impl Rig {
    fn ledger(&self) -> Result<Ledger, String> {
        let (incoming, outgoing) = (&self.testbed.incoming, &self.testbed.outgoing);
        let counters =
            |ns: &NetNs, name: &str| ns.run(|| Netlink::new()?.counters(name)).map_err(text)?.map_err(text);
        let (middle, sink) = (&self.testbed.middle, &self.testbed.sink);
        let mut ledger = Ledger {
            lost_in: counters(middle, &incoming.far)?.rx_dropped,
            lost_out: counters(middle, &outgoing.far)?.tx_dropped
                + counters(sink, &outgoing.near)?.rx_dropped,
            arrived: self.arrived()?,
            ..Ledger::default()
        };
        if let Some(stack) = &self.stack {
            let stats = stack.view().stats();
            (ledger.received, ledger.transmitted, ledger.dropped) =
                (stats.received, stats.transmitted, stats.dropped);
        }
        Ok(ledger)
    }

    /// Waits until each of `sent` packets has come to its end.
    fn settle(&self, before: &Ledger, sent: u64) -> Result<(), String> {
        let deadline = Instant::now() + DRAIN;
        loop {
            let ledger = self.ledger()?.since(*before);
            if ledger.balances(sent, self.stack.is_some()) {
                return Ok(());
            }
            if Instant::now() > deadline {
                let drops = self.stack.as_ref().map(|stack| stack.view().drops());
                return Err(format!("{sent} packets were sent, but {ledger:?}; drops {drops:?}"));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Destination of flow `flow`.
pub(super) fn destination(flow: u16) -> Ipv4Addr {
    // Over both halves of the network.
    Ipv4Addr::from(u32::from(NET) + (u32::from(flow) << 9) + 1)
}

fn start_stack(testbed: &Testbed, way: Way, cpu: usize) -> Result<Stack, String> {
    let (incoming, outgoing) = (&testbed.incoming, &testbed.outgoing);
    let device = |wire: &softnet_testkit::Wire| -> Result<DeviceConfig, String> {
        let addresses = vec![InterfaceAddr::new(wire.far_ip, 24).map_err(text)?];
        Ok(DeviceConfig::new(&wire.far).with(|device| {
            device.addresses = addresses;
            device.arp_notify = false;
            device.dad = false;
        }))
    };
    let mut config = Config::default();
    config.stack.workers = vec![cpu as u32];
    config.devices = vec![device(incoming)?, device(outgoing)?];
    let target = RouteTarget::Via(outgoing.near_ip.into());
    config.routes = vec![RouteConfig::new(Prefix::containing(NET, NET_LEN).map_err(text)?.any(), target)];
    config.neighbours = vec![NeighbourConfig::new(outgoing.far.clone(), outgoing.near_ip, outgoing.near_mac)];
    config.check(&crate::bench::cpus().iter().map(|cpu| *cpu as u32).collect::<Vec<_>>()).map_err(text)?;
    let patches = if way == Way::Plain { vec![(0, 1)] } else { vec![] };
    testbed
        .middle
        .run(|| {
            let opener = |region: &_| XdpOpener::new(region, 2).map_err(DeviceError::from);
            Stack::run(Assembly::new(config, patches, opener).map_err(text)?).map_err(text)
        })
        .map_err(text)?
}

/// Ids of the workers' threads, once they run.
fn worker_threads(stack: &Stack) -> Vec<u32> {
    let deadline = Instant::now() + DRAIN;
    loop {
        let tids: Vec<u32> = stack.view().workers().iter().map(|worker| worker.tid as u32).collect();
        if tids.iter().all(|tid| *tid != 0) || Instant::now() > deadline {
            return tids.into_iter().filter(|tid| *tid != 0).collect();
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ledger_balances_only_if_nothing_is_missing() {
        let whole =
            Ledger { arrived: 90, lost_in: 5, lost_out: 3, received: 95, transmitted: 93, dropped: 2 };
        assert!(whole.balances(100, true));
        for broken in [
            Ledger { arrived: 89, ..whole },
            Ledger { lost_in: 4, ..whole },
            Ledger { lost_out: 4, ..whole },
            Ledger { received: 96, ..whole },
            Ledger { transmitted: 94, ..whole },
            Ledger { dropped: 3, ..whole },
        ] {
            assert!(!broken.balances(100, true), "{broken:?}");
        }
        assert!(!whole.balances(101, true));
        // The kernel has no totals of its own to add up.
        let kernel = Ledger { arrived: 95, lost_in: 2, lost_out: 3, ..Ledger::default() };
        assert!(kernel.balances(100, false) && !kernel.balances(99, false));
    }

    #[test]
    fn flows_differ_and_are_within_the_route() {
        let net = Prefix::containing(NET, NET_LEN).unwrap();
        let all: std::collections::BTreeSet<_> = (0..FLOWS).map(destination).collect();
        assert_eq!(all.len(), usize::from(FLOWS));
        assert!(all.into_iter().all(|address| net.contains(address)));
    }
}
