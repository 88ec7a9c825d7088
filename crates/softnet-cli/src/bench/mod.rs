//! `softnet bench`: measurements that anyone can repeat.

mod conntrack;
mod contexts_switch;
mod cpu;
mod device;
pub(crate) mod echo;
mod flow_hash;
mod forward;
mod forward_xdp;
mod harness;
mod idle;
mod irq_suspend;
mod kv;
pub(crate) mod latency;
mod napi_context;
mod nat;
mod nat_wire;
mod offer;
mod others;
mod pass;
mod proc_net;
pub(crate) mod report;
mod rfs;
mod routes;
mod rules;
mod rx_handoff;
mod shape;
mod skb_cache;
mod tcp;
mod templates;
mod tx_enqueue;
mod udp;

use std::path::PathBuf;

use clap::{Args, Subcommand};
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::Failure;
use crate::text::print;
use report::{Baseline, PageFile};

/// What every bench takes.
#[derive(Args, Debug, Clone)]
pub(crate) struct Common {
    /// Print one JSON object instead of a table
    #[arg(long)]
    pub(crate) json: bool,
    /// Print all figures, with their ranges, however wide the table gets
    #[arg(long, conflicts_with = "json")]
    wide: bool,
    /// Fewer and shorter rounds
    #[arg(long)]
    pub(crate) quick: bool,
    /// Exit with 1 if a stated bound is missed
    #[arg(long)]
    pub(crate) check: bool,
    /// Write a page with the table, bounds and plots
    #[arg(long, value_name = "FILE.html")]
    report: Option<PathBuf>,
    /// Print the ratio to an earlier run: FILE is what --json printed
    #[arg(long, value_name = "FILE.json")]
    baseline: Option<PathBuf>,
    /// Rounds to take the median of [default: 7, with --quick 3]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: Option<u16>,
    /// CPU to measure on
    #[arg(long, default_value_t = 0)]
    pub(crate) cpu: usize,
}

impl Common {
    pub(crate) fn rounds(&self) -> usize {
        self.rounds_or(7, 3)
    }

    /// Rounds for a bench whose rounds are long.
    pub(crate) fn rounds_or(&self, usual: usize, quick: usize) -> usize {
        self.rounds.map_or(if self.quick { quick } else { usual }, usize::from)
    }
}

/// The benches.
#[derive(Subcommand, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) enum Bench {
    /// What connections cost: to find, to make, to expire, and to keep in memory
    #[command(after_help = conntrack::HELP)]
    Conntrack(conntrack::ConntrackBench),
    /// What switching between polling contexts, each millisecond, costs the traffic
    #[command(after_help = CONTEXTS_SWITCH)]
    ContextsSwitch(contexts_switch::ContextsSwitch),
    /// Packets per second of one worker that filter rules are asked about
    #[command(after_help = rules::HELP)]
    Filter(rules::FilterBench),
    /// What the flow hash of a packet costs
    #[command(after_help = flow_hash::HELP)]
    FlowHash(flow_hash::FlowHash),
    /// Packets per second that one worker forwards, by size of the routing table
    #[command(after_help = FORWARD)]
    Forward(forward::Forward),
    /// What a router costs while nothing happens, and how long the first packet then takes
    #[command(after_help = IDLE)]
    Idle(idle::Idle),
    /// Throughput, latency and CPU use of an application by how its queue's interrupt is deferred or suspended
    #[command(after_help = irq_suspend::HELP)]
    IrqSuspend(irq_suspend::IrqSuspend),
    /// Latency of applications that others compete with, by the context that polls for them
    #[command(after_help = NAPI_CONTEXT)]
    NapiContext(napi_context::NapiContext),
    /// Whether flows go to their consumers' CPUs: RFS beside RPS, and consumers that move all the time
    #[command(after_help = rfs::HELP)]
    Rfs(rfs::Rfs),
    /// Packets per second whose sources one worker translates, by number of connections
    #[command(after_help = nat::HELP)]
    Nat(nat::NatBench),
    /// The kernel's routes by the million: to load, to keep, and to follow while packets pass (root)
    #[command(after_help = routes::HELP)]
    Routes(routes::Routes),
    /// One RX queue that brings more than one CPU can carry: one worker, hand-off, RPS, and the automatic choice
    #[command(after_help = rx_handoff::HELP)]
    RxHandoff(rx_handoff::RxHandoff),
    /// Whether what tbf shapes keeps to its rate, beside the kernel's own tbf
    #[command(after_help = shape::HELP)]
    Shape(shape::Shape),
    /// Cost of packet buffers, beside the system allocator and mimalloc; what their caches are
    /// worth to a router
    #[command(after_help = skb_cache::HELP)]
    SkbCache(skb_cache::SkbCache),
    /// Connections a second that are accepted, asked once, and closed, beside the kernel's sockets (root)
    #[command(after_help = tcp::conn::HELP)]
    TcpConn(tcp::conn::TcpConn),
    /// What a TCP connection costs that does nothing: memory, by resident set, and CPU
    #[command(after_help = tcp::idle::HELP)]
    TcpIdle(tcp::idle::TcpIdle),
    /// Goodput over paths that lose or reorder packets, beside the kernel's (root)
    #[command(after_help = tcp::loss::HELP)]
    TcpLoss(tcp::loss::TcpLoss),
    /// Requests and responses over TCP, by number of connections and size, beside the kernel's sockets
    #[command(after_help = tcp::rr::HELP)]
    TcpRr(tcp::rr::TcpRr),
    /// Blocks by TCP at a fixed rate, by the context that polls, with a part of a CPU
    #[command(after_help = tcp::storage::HELP)]
    TcpStorage(tcp::storage::TcpStorage),
    /// Bytes that flow one way over TCP, one stream and four, beside the kernel's sockets
    #[command(after_help = tcp::stream::HELP)]
    TcpStream(tcp::stream::TcpStreams),
    /// Many senders to one TX queue: deferred enqueue, beside locks around the same discipline
    #[command(after_help = tx_enqueue::HELP)]
    TxEnqueue(tx_enqueue::TxEnqueue),
    /// What a datagram costs that a socket receives or sends
    #[command(after_help = udp::HELP)]
    Udp(udp::Udp),
}

const EXAMPLES: &str = "\
Examples:
  softnet bench forward                  the forwarding path alone, on one core
  softnet bench forward --device xdp     over AF_XDP on veth pairs, beside the kernel (root)
  softnet bench idle                     CPU use and wake-ups of a router without traffic (root)
  softnet bench irq-suspend --quick      full busy polling, interrupts, and what lies between (root)
  softnet bench napi-context             what it is good for to poll in threads, to be read with --report
  softnet bench nat                      what it costs to hide the sources of packets, on one core
  softnet bench shape --check            is a router's tbf within 2 % of its rate? (root)
  softnet bench skb-cache --json | jq '.rows[] | {case, ns_per_pair}'
  softnet bench skb-cache --app nat      a router with VLANs, NAT, GRO and GSO, by how it caches buffers
  softnet bench tcp-rr --device xdp      a server on TCP sockets beside the same on the kernel's (root)
  softnet bench tx-enqueue --peer kernel many senders to one TX queue: deferred enqueue, locks, the kernel (root)
  softnet bench forward --report f.html  a page with plots, to keep or to show
  softnet bench forward --json > f.json; …; softnet bench forward --baseline f.json
                                         what a change gained or cost

The cases of a bench take turns in one run. Printed is the median of the rounds, with minimum and maximum; a round \
that other programs disturbed is repeated. Bounds stand at the end, and fail a run only with --check. \
Those of a rate or a time were set for the machine that softnet is developed on, and are judged there alone.

--report writes one page that needs nothing outside it; the table is printed all the same. It names the commit if the \
program was built with SOFTNET_COMMIT=$(git describe --always --dirty). --baseline compares rows \
with the same case and parameters: the table has the ratio of each row's first figure, --json those of all figures as \
ratio_to_baseline. Compare only runs on the same machine.";

const CONTEXTS_SWITCH: &str = "\
70 % of what passes at most, sent by the clock, while a queue or a device is switched to another context every \
millisecond, for ten seconds (with --quick three). No flow may go back, and what is missing must have been counted by a \
ring that was full, or the bench fails.

  switch_*_us          how long a switch took
  longest_stall_ms     longest time without a packet at the far end (bound: 20)
  longest_latency_ms   longest that a packet was on its way
  source_stall_ms      longest time in which the sender, which needs a CPU as well, sent nothing
  machine_stall_ms     how late threads woke that only sleep, one on each CPU; and what the hypervisor took (steal_ms)
  lost                 packets that a full ring or socket had no room for";

const FORWARD: &str = "\
--device mem: one worker on one core routes 64-byte IPv4 packets from one emulated NIC to another. Each packet is \
written afresh into its buffer within the measured time, its destination drawn from all prefixes; what comes out is \
verified after the run.

  raw          the same loop without routing: what the emulation and the drivers cost
  fib-16       16 routes
  vlan-16      the same from one VLAN to another, with a tag in and out
  fib-10k      10,000 routes; -burst32 and -burst8 with at most so many packets a poll
  fib-1m       1,000,000 routes

--device xdp: over two veth pairs in network namespaces, beside the kernel's own forwarding. Needs root and two CPUs. \
On veth the generator's CPU also does the receiving interface's softirq, so flat out every row is limited by its \
generator and says so: compare the CPU time for a packet, and the rows at half load.";

const IDLE: &str = "\
The router of `softnet demo`, with all its threads, left alone for ten seconds a round. Needs root.

  cpu_percent        all threads together, of one core
  wakeups_per_s      how often they blocked
  first_packet_us    from one kernel socket to another, after the silence
  next_packet_us     the packet after that";

const NAPI_CONTEXT: &str = "\
Responders answer 1000 flows, each of which sends its next request when it has the response to the last. Each context \
(softirq, threaded, workqueue, busy-poll) polls for them in turn; the applications themselves only sleep and are woken. \
The clients are played by the emulated NIC, so that no thread of theirs takes a CPU from what is measured.

  contended    two RX queues with a responder each, both queues' interrupts on one CPU, beside hungry threads that only
               compute, as many as there are CPUs; all unpinned but the worker
  one-queue    the same with one queue and one responder: it has another CPU to go to
  spread       the same as contended, with the second queue's worker on another CPU
  hog          one queue and one responder; two hungry threads are bound to the worker's CPU, as a service with a CPU
               affinity is, and nothing else but the worker is pinned
  pinned       one queue, its poller on one CPU and the responder on another, no other thread

In the context softirq, the worker is measured with the policy SCHED_FIFO, with which it preempts other threads as the \
kernel's softirq does (needs CAP_SYS_NICE; softnet run: worker_policy), and as an ordinary thread, the default. The \
bounds compare threaded to the first in contended and to the second in hog, with 1 B and 1 µs of work a request. Each \
round is of several runs with new threads, taken together, since much depends on where the scheduler happens to put them.

  poller_wait_percent, app_wait_percent    time that they wanted to run and could not, of one CPU
  others_cpu_percent                       what other programs used meanwhile; the tail is theirs if that is much

--app tcp: a server of 1000 TCP connections sends requests of 1 byte, 5 KB and 1 MB back; those of 1 MB come by 64 \
connections, since packet memory has no room for more. Server and pollers are bound to one CPU, and the client, a second \
stack of softnet, to another; the contexts are softirq, threaded and workqueue, and the set-ups

  pinned       nothing else runs on the server's CPU; the bound is of its requests of 1 byte
  hog          two hungry threads are bound to it
  cpu_percent  the server's threads: application, pollers, timers";

impl Bench {
    /// Runs the bench and prints its report.
    pub(crate) fn run(&self) -> Result<(), Failure> {
        if cfg!(debug_assertions) {
            eprintln!("softnet: this is a debug build; its figures mean nothing (use cargo run --release)");
        }
        // Flows are spread alike in each run. (One that was set before stays: there is none.)
        let _ = softnet_core::steer::set_flow_hkey(&softnet_core::steer::PUBLISHED_HKEY);
        let (name, common) = match self {
            Bench::Conntrack(b) => ("conntrack", &b.common),
            Bench::ContextsSwitch(b) => ("contexts-switch", &b.common),
            Bench::Filter(b) => ("filter", &b.common),
            Bench::FlowHash(b) => ("flow-hash", &b.common),
            Bench::Forward(b) => ("forward", &b.common),
            Bench::Idle(b) => ("idle", &b.common),
            Bench::IrqSuspend(b) => ("irq-suspend", &b.common),
            Bench::NapiContext(b) => ("napi-context", &b.common),
            Bench::Rfs(b) => ("rfs", &b.common),
            Bench::Nat(b) => ("nat", &b.common),
            Bench::Routes(b) => ("routes", &b.common),
            Bench::RxHandoff(b) => ("rx-handoff", &b.common),
            Bench::Shape(b) => ("shape", &b.common),
            Bench::SkbCache(b) => ("skb-cache", &b.common),
            Bench::TcpConn(b) => ("tcp-conn", &b.common),
            Bench::TcpIdle(b) => ("tcp-idle", &b.common),
            Bench::TcpLoss(b) => ("tcp-loss", &b.common),
            Bench::TcpRr(b) => ("tcp-rr", &b.common),
            Bench::TcpStorage(b) => ("tcp-storage", &b.common),
            Bench::TcpStream(b) => ("tcp-stream", &b.common),
            Bench::TxEnqueue(b) => ("tx-enqueue", &b.common),
            Bench::Udp(b) => ("udp", &b.common),
        };
        // Both before the run, which may take minutes.
        let baseline = common.baseline.as_deref().map(|file| Baseline::read(file, name));
        let baseline = baseline.transpose().map_err(Failure::Usage)?;
        let page = common.report.as_deref().map(PageFile::open).transpose().map_err(Failure::Usage)?;
        let mut report = match self {
            Bench::Conntrack(b) => b.run(),
            Bench::ContextsSwitch(b) => b.run(),
            Bench::Filter(b) => b.run(),
            Bench::FlowHash(b) => b.run(),
            Bench::Forward(b) => b.run(),
            Bench::Idle(b) => b.run(),
            Bench::IrqSuspend(b) => b.run(),
            Bench::NapiContext(b) => b.run(),
            Bench::Rfs(b) => b.run(),
            Bench::Nat(b) => b.run(),
            Bench::Routes(b) => b.run(),
            Bench::RxHandoff(b) => b.run(),
            Bench::Shape(b) => b.run(),
            Bench::SkbCache(b) => b.run(),
            Bench::TcpConn(b) => b.run(),
            Bench::TcpIdle(b) => b.run(),
            Bench::TcpLoss(b) => b.run(),
            Bench::TcpRr(b) => b.run(),
            Bench::TcpStorage(b) => b.run(),
            Bench::TcpStream(b) => b.run(),
            Bench::TxEnqueue(b) => b.run(),
            Bench::Udp(b) => b.run(),
        }
        .map_err(Failure::Run)?;
        report.leading = leading(name);
        report.explained = explained(name);
        if let Some(baseline) = &baseline {
            report.compare(baseline);
        }
        let written = page.map_or(Ok(()), |page| page.write(&report));
        print(&report.render(common.json, common.wide))?;
        written.map_err(Failure::Run)?;
        if common.check && !report.holds() { Err(Failure::Told) } else { Ok(()) }
    }
}

/// What the rows and figures of bench `name` are: its help.
fn explained(name: &str) -> &'static str {
    match name {
        "conntrack" => conntrack::HELP,
        "contexts-switch" => CONTEXTS_SWITCH,
        "filter" => rules::HELP,
        "flow-hash" => flow_hash::HELP,
        "forward" => FORWARD,
        "idle" => IDLE,
        "irq-suspend" => irq_suspend::HELP,
        "napi-context" => NAPI_CONTEXT,
        "rfs" => rfs::HELP,
        "nat" => nat::HELP,
        "routes" => routes::HELP,
        "shape" => shape::HELP,
        "skb-cache" => skb_cache::HELP,
        "tcp-conn" => tcp::conn::HELP,
        "tcp-idle" => tcp::idle::HELP,
        "tcp-loss" => tcp::loss::HELP,
        "tcp-rr" => tcp::rr::HELP,
        "tcp-storage" => tcp::storage::HELP,
        "tcp-stream" => tcp::stream::HELP,
        "tx-enqueue" => tx_enqueue::HELP,
        "udp" => udp::HELP,
        _ => "",
    }
}

/// The figures of bench `name` that decide, the first most of all.
fn leading(name: &str) -> &'static [&'static str] {
    match name {
        "conntrack" => {
            &["ns_per_lookup", "new_per_s", "expired_per_s", "longest_sweep_us", "bytes_per_connection"]
        }
        "contexts-switch" => {
            &["longest_stall_ms", "switch_p99_us", "longest_latency_ms", "lost", "reordered", "switches"]
        }
        "forward" => &["mpps", "ns_per_packet", "cpu_ns_per_packet", "generator_idle_percent"],
        "irq-suspend" => {
            &["qps", "p99_us", "cpu_percent", "p50_us", "sustained_percent", "worker_cpu_percent"]
        }
        "filter" => &["mpps", "ns_per_packet"],
        "nat" => &["mpps", "ns_per_packet", "gbit_s", "cpu_percent", "gbit_s_per_cpu"],
        "napi-context" => &["qps", "p50_us", "p99_us", "p999_us", "app_wait_percent", "poller_wait_percent"],
        "rfs" => rfs::LEADING,
        "routes" => &["mpps", "load_s", "resident_mib", "updates_per_s", "dropped", "differ"],
        "skb-cache" => &["ns_per_pair", "mpps", "gbit_per_s", "ns_per_packet"],
        "shape" => &["mbit", "ratio", "cpu_percent", "wakeups_per_s", "timer_wakeups_per_s", "burst_percent"],
        "tcp-conn" => tcp::conn::LEADING,
        "tcp-idle" => tcp::idle::LEADING,
        "tcp-loss" => tcp::loss::LEADING,
        "tcp-rr" => tcp::rr::LEADING,
        "tcp-storage" => tcp::storage::LEADING,
        "tcp-stream" => tcp::stream::LEADING,
        "tx-enqueue" => &["mpps", "cpu_ns_per_packet", "p50_us", "p99_us", "switches_per_s", "drops_percent"],
        _ => &[],
    }
}

/// CPUs that are online, whatever the calling thread is pinned to.
pub(crate) fn cpus() -> Vec<usize> {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let number = |line: &str| line.strip_prefix("processor")?.split(':').nth(1)?.trim().parse().ok();
    info.lines().filter_map(number).collect()
}

/// Pins the calling thread to `cpu` and returns it.
pub(crate) fn pin(cpu: usize) -> Result<usize, String> {
    let mut set = CpuSet::new();
    if cpu >= CpuSet::MAX_CPU {
        return Err(format!("--cpu {cpu}: there are {} CPUs", cpus().len()));
    }
    set.set(cpu);
    sched_setaffinity(None, &set)
        .map_err(|e| format!("--cpu {cpu}: {e}; there are {} CPUs", cpus().len()))?;
    Ok(cpu)
}

/// An error as what is printed of it.
fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}
