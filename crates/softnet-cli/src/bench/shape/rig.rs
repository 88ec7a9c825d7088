//! A router that shapes, between a sender and a receiver that are the kernel's, and how it is measured.
//!
//! ```text
//!  generator ─► veth ═══ veth  [router]  tbf ─► veth ═══ veth ─► UDP socket
//! ```
//!
//! The receiver is measured by the counter of bytes that its interface has, which is read over netlink: of frames from
//! the Ethernet header on, without FCS, which is also what `tbf` counts here and in the kernel. That the socket gets the
//! datagrams is seen to once ([`Rig::check`]); while time is taken it is not read, but it keeps ICMP errors away.
//!
//! Invariant: after every measurement each packet that the generator sent is accounted for.

use std::net::{Ipv4Addr, UdpSocket};
use std::time::{Duration, Instant};

use softnet::Stack;
use softnet::config::{Config, DeviceConfig, InterfaceAddr, NeighbourConfig};
use softnet::control::{Action, SetQdisc};
use softnet_dev::netlink::Netlink;
use softnet_dev::netns::NetNs;
use softnet_testkit::{Generator, GeneratorConfig, KernelNapi, Testbed, UdpFrame, Wire};

use super::arrivals::{Arrivals, Reading};
use super::cases::Shaping;
use super::kernel;
use crate::bench::cpu::{Used, softirq_ns, softirq_runs};
use crate::bench::{cpus, text};

const PORT: u16 = 9;
/// Time between two looks at the receiver.
const STEP: Duration = Duration::from_millis(5);
/// How long queues get to become empty after the generator stopped, and packets to arrive.
const DRAIN: Duration = Duration::from_secs(10);
/// Datagrams that the receiver must get in order before anything is measured; told apart by their source ports.
const CHECKED: u16 = 64;

/// What routes and shapes.
enum Router {
    Softnet(Stack),
    Kernel,
}

/// See the [module](self). Field order matters: the router gives its interfaces back before they vanish.
pub(super) struct Rig {
    router: Router,
    testbed: Testbed,
    receiver: UdpSocket,
    /// CPU of the generator.
    source_cpu: usize,
}

/// Counters of a discipline.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Books {
    pub(super) drops: u64,
    pub(super) overlimits: u64,
    pub(super) requeues: u64,
    pub(super) qlen: u64,
}

/// What one measurement found.
#[derive(Debug)]
pub(super) struct Trial {
    pub(super) arrivals: Arrivals,
    /// Bytes a second that the generator sent.
    pub(super) offered: f64,
    /// What the discipline counted, a second.
    pub(super) drops: f64,
    pub(super) overlimits: f64,
    pub(super) requeues: f64,
    /// CPU time of the router per time, 0 to 1: of softnet's worker, and of the softirqs in which the kernel hands it packets;
    /// of all softirqs where the kernel routes.
    pub(super) cpu: f64,
    /// Times a second that the router was woken: softnet's worker, or the kernel's softirqs NET_RX and NET_TX.
    pub(super) wakeups: f64,
    /// Those of them that a timer was the cause of: the worker's, or NET_TX, which the discipline's watchdog raises.
    pub(super) timer_wakeups: f64,
    /// Time that softnet's worker waited for its CPU, 0 to 1; the kernel has no thread for it.
    pub(super) waited: Option<f64>,
}

/// Counters at some moment.
struct Snapshot {
    at: Instant,
    sent: u64,
    books: Books,
    woken: Woken,
    worker: Option<Used>,
    /// CPU time of softirqs that are the router's.
    softirq_ns: u64,
}

/// How often a router was woken.
#[derive(Clone, Copy)]
struct Woken {
    all: u64,
    by_timer: u64,
}

impl Rig {
    /// With softnet in the middle, its worker on `cpu`. The generator is to run on `source_cpu`.
    pub(super) fn softnet(cpu: usize, source_cpu: usize) -> Result<Self, String> {
        let testbed = Testbed::new(1).map_err(text)?;
        let stack = start_stack(&testbed, cpu)?;
        Rig::new(Router::Softnet(stack), testbed, source_cpu)
    }

    /// With the kernel in the middle.
    pub(super) fn kernel(source_cpu: usize) -> Result<Self, String> {
        let testbed = Testbed::new(1).map_err(text)?;
        let net = Ipv4Addr::from_bits(testbed.outgoing.near_ip.to_bits() & !255);
        testbed.forward_by_kernel(net, 24, KernelNapi::Softirq).map_err(text)?;
        Rig::new(Router::Kernel, testbed, source_cpu)
    }

    fn new(router: Router, testbed: Testbed, source_cpu: usize) -> Result<Self, String> {
        let wire = &testbed.outgoing;
        let receiver = testbed.sink.run(|| -> std::io::Result<_> {
            let mut netlink = Netlink::new()?;
            netlink.add_address(&wire.near, wire.near_ip, 24)?;
            // Whence the datagrams come: a receiver that filters by source (`rp_filter`) must know a way back.
            netlink.add_route(Ipv4Addr::UNSPECIFIED, 0, wire.far_ip)?;
            UdpSocket::bind((wire.near_ip, PORT))
        });
        let receiver = receiver.map_err(text)?.map_err(text)?;
        Ok(Rig { router, testbed, receiver, source_cpu })
    }

    /// Shapes so from now on, with a full bucket.
    pub(super) fn shape(&self, shaping: &Shaping) -> Result<(), String> {
        let (dev, tbf) = (&self.testbed.outgoing.far, shaping.tbf());
        match &self.router {
            Router::Softnet(stack) => {
                let action = Action::Replace;
                stack
                    .view()
                    .set_qdisc(SetQdisc { dev: dev.clone(), queue: None, action, qdisc: Some(tbf) })
                    .map(drop)
                    .map_err(text)
            }
            Router::Kernel => kernel::set(&self.testbed.middle, dev, &tbf),
        }
    }

    fn frame(&self, size: u16, src_port: u16) -> Vec<u8> {
        let (incoming, dst) = (&self.testbed.incoming, self.testbed.outgoing.near_ip);
        UdpFrame {
            src_mac: incoming.near_mac,
            dst_mac: incoming.far_mac,
            src: incoming.near_ip,
            dst,
            src_port,
            dst_port: PORT,
            len: size,
        }
        .build()
    }

    fn generate(&self, frames: Vec<Vec<u8>>, rate: u64) -> Result<Generator, String> {
        let interface = self.testbed.incoming.near.clone();
        let config = GeneratorConfig { interface, frames, rate: Some(rate), cpu: Some(self.source_cpu) };
        Generator::start(&self.testbed.source, config).map_err(text)
    }

    /// Sends numbered datagrams at half the rate: the receiver's socket must get all of them whole and in order.
    pub(super) fn check(&self, shaping: &Shaping) -> Result<(), String> {
        self.shape(shaping)?;
        self.receiver.set_read_timeout(Some(DRAIN)).map_err(text)?;
        let payload = usize::from(shaping.size) - 42;
        let frames = (0..CHECKED).map(|number| self.frame(shaping.size, 1024 + number)).collect();
        let generator = self.generate(frames, (shaping.packets() / 2.0) as u64)?;
        let mut buffer = [0; 2048];
        for number in 0..CHECKED {
            let (n, from) = self
                .receiver
                .recv_from(&mut buffer)
                .map_err(|error| format!("datagram {number}: {error}"))?;
            if (n, from.port()) != (payload, 1024 + number) || buffer[..n].iter().any(|byte| *byte != 0) {
                return Err(format!(
                    "datagram {number}: {n} bytes from port {} arrived in its place",
                    from.port()
                ));
            }
        }
        generator.stop().map(drop).map_err(text)
    }

    fn snapshot(&self, generator: &Generator) -> Result<Snapshot, String> {
        let (woken, worker, softirq_ns) = match &self.router {
            Router::Softnet(stack) => {
                let workers = stack.view().workers();
                let worker = workers.first().ok_or("no worker")?;
                let by_timer = worker.wakeups.get("timer").copied().unwrap_or(0);
                let woken = Woken { all: worker.sleeps, by_timer };
                // On its own CPU they are part of its system calls.
                (woken, Some(Used::of(&[worker.tid as u32])), softirq_ns(self.source_cpu))
            }
            Router::Kernel => {
                let by_timer = softirq_runs(&["NET_TX"]);
                let woken = Woken { all: by_timer + softirq_runs(&["NET_RX"]), by_timer };
                (woken, None, cpus().into_iter().map(softirq_ns).sum())
            }
        };
        let (at, sent, books) = (Instant::now(), generator.report().sent, self.books()?);
        Ok(Snapshot { at, sent, books, woken, worker, softirq_ns })
    }

    /// Offers packets for `warm`, in which the bucket runs dry, and then for `time`, which is measured.
    pub(super) fn measure(&self, shaping: &Shaping, warm: Duration, time: Duration) -> Result<Trial, String> {
        self.shape(shaping)?;
        let before = self.ledger()?;
        let generator = self.generate(vec![self.frame(shaping.size, 40_000)], shaping.offered())?;
        std::thread::sleep(warm);
        let begin = self.snapshot(&generator)?;
        let arrivals = self.watch(time)?;
        let end = self.snapshot(&generator)?;
        let sent = generator.stop().map_err(text)?.sent;
        self.settle(&before, sent)?;
        let seconds = (end.at - begin.at).as_secs_f64();
        let per_second =
            |of: fn(&Books) -> u64| of(&end.books).saturating_sub(of(&begin.books)) as f64 / seconds;
        let used = begin.worker.zip(end.worker).map(|(before, after)| after.since(before));
        let share = |ns: u64| ns as f64 / 1e9 / seconds;
        let softirq_ns = end.softirq_ns.saturating_sub(begin.softirq_ns);
        let wakeups =
            |of: fn(&Woken) -> u64| of(&end.woken).saturating_sub(of(&begin.woken)) as f64 / seconds;
        Ok(Trial {
            arrivals,
            offered: (end.sent - begin.sent) as f64 * f64::from(shaping.size) / seconds,
            drops: per_second(|books| books.drops),
            overlimits: per_second(|books| books.overlimits),
            requeues: per_second(|books| books.requeues),
            cpu: share(used.map_or(0, |used| used.cpu_ns) + softirq_ns),
            wakeups: wakeups(|woken| woken.all),
            timer_wakeups: wakeups(|woken| woken.by_timer),
            waited: used.map(|used| share(used.waited_ns)),
        })
    }

    /// Looks at the receiver for `time`.
    fn watch(&self, time: Duration) -> Result<Arrivals, String> {
        let mut netlink = self.testbed.sink.run(Netlink::new).map_err(text)?.map_err(text)?;
        let (start, mut arrivals) = (Instant::now(), Arrivals::default());
        loop {
            let from = start.elapsed();
            let bytes = netlink.counters(&self.testbed.outgoing.near).map_err(text)?.rx_bytes;
            arrivals.push(Reading { from, to: start.elapsed(), bytes });
            if from >= time {
                return Ok(arrivals);
            }
            std::thread::sleep(STEP);
        }
    }
}

/// Where packets are, by the counters of everybody on their way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Ledger {
    /// Seen by the receiver's interface.
    arrived: u64,
    /// Dropped by the kernel on the way in or out of the middle: rings that were full.
    lost: u64,
    /// Dropped by the discipline.
    drops: u64,
    /// softnet's own totals.
    received: u64,
    transmitted: u64,
    dropped: u64,
}

impl Ledger {
    fn since(self, earlier: Ledger) -> Ledger {
        Ledger {
            arrived: self.arrived.saturating_sub(earlier.arrived),
            lost: self.lost.saturating_sub(earlier.lost),
            drops: self.drops.saturating_sub(earlier.drops),
            received: self.received.saturating_sub(earlier.received),
            transmitted: self.transmitted.saturating_sub(earlier.transmitted),
            dropped: self.dropped.saturating_sub(earlier.dropped),
        }
    }

    /// Whether it accounts for each of `sent` packets; `stack`: softnet routed, and its totals must add up too.
    fn balances(&self, sent: u64, stack: bool) -> bool {
        let parts = self.received == self.transmitted + self.dropped && self.dropped == self.drops;
        self.arrived + self.lost + self.drops == sent && (parts || !stack)
    }
}

impl Rig {
    fn books(&self) -> Result<Books, String> {
        let dev = &self.testbed.outgoing.far;
        let Router::Softnet(stack) = &self.router else { return kernel::books(&self.testbed.middle, dev) };
        let row = stack.view().qdiscs().into_iter().find(|row| row.dev == *dev && row.queue.is_none());
        let row = row.ok_or("the discipline is gone")?;
        Ok(Books { drops: row.drops, overlimits: row.overlimits, requeues: row.requeues, qlen: row.qlen })
    }

    fn ledger(&self) -> Result<Ledger, String> {
        let (incoming, outgoing) = (&self.testbed.incoming, &self.testbed.outgoing);
        let counters =
            |ns: &NetNs, name: &str| ns.run(|| Netlink::new()?.counters(name)).map_err(text)?.map_err(text);
        let (middle, receiver) = (&self.testbed.middle, counters(&self.testbed.sink, &outgoing.near)?);
        let mut ledger = Ledger {
            arrived: receiver.rx_packets,
            lost: counters(middle, &incoming.far)?.rx_dropped
                + counters(middle, &outgoing.far)?.tx_dropped
                + receiver.rx_dropped,
            drops: self.books()?.drops,
            ..Ledger::default()
        };
        if let Router::Softnet(stack) = &self.router {
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
            let (ledger, queued) = (self.ledger()?.since(*before), self.books()?.qlen);
            if queued == 0 && ledger.balances(sent, matches!(self.router, Router::Softnet(_))) {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(format!("{sent} packets were sent, but {ledger:?}, and {queued} are queued"));
            }
            std::thread::sleep(STEP);
        }
    }
}

fn start_stack(testbed: &Testbed, cpu: usize) -> Result<Stack, String> {
    let device = |wire: &Wire| -> Result<DeviceConfig, String> {
        let addresses = vec![InterfaceAddr::new(wire.far_ip, 24).map_err(text)?];
        Ok(DeviceConfig::new(&wire.far).with(|device| {
            device.addresses = addresses;
            device.arp_notify = false;
            device.dad = false;
        }))
    };
    let outgoing = &testbed.outgoing;
    let mut config = Config::default();
    config.stack.workers = vec![cpu as u32];
    // What waits in the discipline waits in frames, of which small packets need as many as large ones.
    config.stack.frames = 1 << 15;
    config.devices = vec![device(&testbed.incoming)?, device(outgoing)?];
    config.neighbours = vec![NeighbourConfig::new(outgoing.far.clone(), outgoing.near_ip, outgoing.near_mac)];
    config.check(&cpus().iter().map(|cpu| *cpu as u32).collect::<Vec<_>>()).map_err(text)?;
    testbed.middle.run(|| Stack::start(config).map_err(text)).map_err(text)?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ledger_balances_only_if_nothing_is_missing() {
        let whole = Ledger { arrived: 90, lost: 5, drops: 5, received: 97, transmitted: 92, dropped: 5 };
        assert!(whole.balances(100, true) && !whole.balances(101, true));
        for broken in [
            Ledger { arrived: 89, ..whole },
            Ledger { lost: 4, ..whole },
            Ledger { drops: 4, ..whole },
            Ledger { received: 96, ..whole },
            Ledger { transmitted: 91, ..whole },
        ] {
            assert!(!broken.balances(100, true), "{broken:?}");
        }
        // The kernel has no totals of its own to add up.
        let kernel = Ledger { received: 0, transmitted: 0, dropped: 0, ..whole };
        assert!(kernel.balances(100, false) && !kernel.balances(99, false));
    }
}
