//! What `softnet show` prints: one row type for each table, shared by the instance that fills them and the
//! program that prints them. JSON carries raw numbers under these names; units are in the names or the docs.
//!
//! Invariant: every counter here only grows while an instance runs, so that two answers give a rate.

mod nat;
mod route;
mod rule;
mod skb;
mod steering;
mod tcp;

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::{Direction, MirredAction};
use crate::config::Context;

pub use nat::{ConntrackRow, NatAddressRow, NatStats};
pub use route::{FollowStats, FpmStats, HopRow, RouteRow};
pub use rule::RuleRow;
pub use skb::{SkbCacheRow, SkbContextRow, SkbPool, SkbStats};
pub use steering::{FlowFilterRow, NtupleRow, RssRow, SteeredRow, SteeringRow};
pub use tcp::{TcpInfoRow, TcpRow, TcpStats, TcpSummary};

/// The tables an instance can show.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Table {
    /// Devices: a list of [`DevRow`].
    Dev,
    /// NAPI instances: a list of [`NapiRow`].
    Napi,
    /// Workers and the other threads that poll: a list of [`WorkerRow`].
    Worker,
    /// Neighbours: a list of [`NeighRow`].
    Neigh,
    /// Routes: a list of [`RouteRow`].
    Route,
    /// Drops by device and reason, only those that happened: a list of [`DropRow`].
    Drops,
    /// Queueing disciplines: a list of [`QdiscRow`].
    Qdisc,
    /// Filters: a list of [`FilterRow`].
    Filter,
    /// Sockets: a list of [`SocketRow`].
    Socket,
    /// TCP: one [`TcpStats`].
    Tcp,
    /// Steering of RX queues: a list of [`SteeringRow`].
    Steering,
    /// RSS: a list of [`RssRow`].
    Rss,
    /// Ntuple filters: a list of [`NtupleRow`].
    Ntuple,
    /// Connections: a list of [`ConntrackRow`], the first 65,536 of them.
    Conntrack,
    /// Translation of addresses: one [`NatStats`].
    Nat,
    /// Filter rules: a list of [`RuleRow`].
    Rule,
    /// Packet memory: one [`SkbStats`].
    Skb,
    /// Totals: one [`Stats`].
    Stats,
}

impl Table {
    /// All of them.
    pub const ALL: [Table; 18] = [
        Table::Dev,
        Table::Napi,
        Table::Worker,
        Table::Neigh,
        Table::Route,
        Table::Drops,
        Table::Qdisc,
        Table::Filter,
        Table::Socket,
        Table::Tcp,
        Table::Steering,
        Table::Rss,
        Table::Ntuple,
        Table::Conntrack,
        Table::Nat,
        Table::Rule,
        Table::Skb,
        Table::Stats,
    ];

    /// Its name, as it is asked for.
    pub const fn name(self) -> &'static str {
        [
            "dev",
            "napi",
            "worker",
            "neigh",
            "route",
            "drops",
            "qdisc",
            "filter",
            "socket",
            "tcp",
            "steering",
            "rss",
            "ntuple",
            "conntrack",
            "nat",
            "rule",
            "skb",
            "stats",
        ][self as usize]
    }

    /// What it tells, in one line.
    pub const fn help(self) -> &'static str {
        match self {
            Table::Dev => "Devices: link, addresses, traffic",
            Table::Napi => {
                "NAPI instances: which thread polls which queue, what it brings, and why it is awake or asleep"
            }
            Table::Worker => "Workers and the other threads that poll: CPU use, sleeps, and what woke them",
            Table::Neigh => "Neighbours: IP and MAC addresses on the links",
            Table::Route => "Routes: connected and configured",
            Table::Drops => "Packets that were dropped, by device and reason",
            Table::Qdisc => "Queueing disciplines of the TX queues: what they sent, hold and dropped",
            Table::Filter => "Filters: what is redirected or mirrored, and where to",
            Table::Socket => "Sockets: what is bound and connected where, and what waits in each",
            Table::Tcp => "TCP: listeners, connections and what they know of the network, counters",
            Table::Steering => "Steering: which workers go on with what each RX queue brings",
            Table::Rss => "RSS: how devices spread flows over their RX queues",
            Table::Ntuple => "Ntuple filters of devices: which packets go to which RX queue, or nowhere",
            Table::Conntrack => {
                "Connections that are tracked: their packets in both directions, and what is translated"
            }
            Table::Nat => "NAT: connections, mappings, and ports of external addresses in use",
            Table::Rule => "Filter rules: which packets pass, and how many each rule decided",
            Table::Skb => "Packet memory: heads and frames, each thread's caches of them, and what ran out",
            Table::Stats => "Totals: every packet is somewhere",
        }
    }
}

/// A device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct DevRow {
    /// softnet's index of it: its place in the configuration.
    pub index: u16,
    /// Interface name.
    pub name: String,
    /// `xdp`, `tap`, `packet`, `mem`.
    pub driver: String,
    /// How the driver is attached, and why if not in the best way.
    pub mode: String,
    /// `up`, `down`, `gone`.
    pub link: String,
    /// `02:00:00:00:00:01`.
    pub mac: String,
    /// Largest L3 packet in bytes.
    pub mtu: u16,
    /// Own addresses, `10.0.0.1/24`; while it is open, also the link-local one.
    pub addresses: Vec<String>,
    /// Addresses that it was to have, and that are not used: another station has them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub duplicates: Vec<String>,
    /// Multicast groups that sockets have joined on it, each with how many have.
    #[serde(default)]
    pub groups: BTreeMap<IpAddr, usize>,
    /// RX and TX queues open.
    pub queues: u16,
    /// Packets received.
    pub rx_packets: u64,
    /// Bytes received, from the Ethernet header on.
    pub rx_bytes: u64,
    /// Packets the device lost because no frame was posted.
    pub rx_ring_drops: u64,
    /// System calls that got the receive side going.
    pub rx_kicks: u64,
    /// Packets sent.
    pub tx_packets: u64,
    /// Bytes sent, from the Ethernet header on.
    pub tx_bytes: u64,
    /// Packets the device refused to send.
    pub tx_ring_drops: u64,
    /// System calls that got the transmit side going.
    pub tx_kicks: u64,
    /// Packets that came in here and that softnet dropped, for whatever reason (`show drops` tells them apart).
    pub drops: u64,
    /// Frames in its TX rings and disciplines now.
    pub held: u64,
    /// What neighbours said to all, heard beside the kernel since the device was opened.
    #[serde(default)]
    pub snooped: u64,
    /// Times the interface went away and was opened again.
    pub reopened: u64,
}

/// A NAPI instance.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct NapiRow {
    /// Its number.
    pub id: u32,
    /// `eth1-0`.
    pub name: String,
    /// Device it polls.
    pub dev: String,
    /// RX queue it polls.
    pub queue: u16,
    /// Index of the worker that polls it in the context `softirq`.
    pub worker: usize,
    /// Which threads poll it: `softirq`, `threaded`, `workqueue`, `busy-poll`.
    pub context: Context,
    /// Name of the thread that polls it; of the pool, `napi-wq`.
    pub thread: String,
    /// Its thread id; 0 for the pool.
    pub tid: i32,
    /// Bits of its state word that are set, lower-case: `sched`, `missed`, `disable`.
    pub state: Vec<String>,
    /// Whether its doorbell can ring now: `masked`, `unmasked`.
    pub doorbell: String,
    /// Knob: completions without work that leave the doorbell masked.
    pub napi_defer_hard_irqs: u32,
    /// Knob: ns until a masked queue is polled.
    pub gro_flush_timeout: u64,
    /// Knob: ns for which an application that receives may leave a masked queue alone.
    pub irq_suspend_timeout: u64,
    /// What keeps a knob that is set from acting.
    pub warning: Option<String>,
    /// Its owner now: `none`, the name of the thread that polls it, or `application NAME`.
    pub owner: String,
    /// In one sentence: why it is awake or asleep now.
    pub why: String,
    /// Its timer, if armed.
    pub timer: Option<TimerRow>,
    /// Times that `gro_flush_timeout` ran out.
    pub deferrals: u64,
    /// ns that they took on average, from arming to poll; 0 if there was none.
    pub effective_timeout: u64,
    /// Times that `irq_suspend_timeout` ran out: an application did not come back in time.
    pub rescues: u64,
    /// Times its doorbell rang and led to a poll.
    pub doorbells: u64,
    /// Times an application polled it by itself.
    pub busy_polls: u64,
    /// Times an application wanted to, and another thread had it.
    pub busy_poll_lost: u64,
    /// Times an application suspended its doorbell, or went on doing so.
    pub suspensions: u64,
    /// Times an application gave it back, before it slept.
    pub resumptions: u64,
    /// Applications that take packets of it.
    pub applications: Vec<AppRow>,
    /// Packets that applications had no room for, those that have gone too.
    #[serde(default)]
    pub application_drops: u64,
    /// ns so far in each state: `irq` (the doorbell can ring), `deferred`, `suspended`, `polled` (by its context),
    /// `application` (polled by one).
    pub time_ns: BTreeMap<String, u64>,
    /// Whether the kernel's own interrupt of the queue stays quiet as well: `masked while deferred`, `not masked: ` and
    /// why, `none` of a device that the kernel does not have.
    pub kernel_irq: String,
    /// What becomes one packet of what it brings.
    #[serde(default)]
    pub gro: GroRow,
    /// Times it was polled.
    pub polls: u64,
    /// Of these, how many brought nothing.
    pub empty_polls: u64,
    /// Of these, how many brought as much as they may: more was waiting.
    pub full_polls: u64,
    /// Packets it brought.
    pub packets: u64,
    /// Times it was put on a poll list.
    pub schedules: u64,
    /// Times it was scheduled while it was polled.
    pub missed: u64,
}

/// GRO of an instance.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct GroRow {
    /// Knob: `off`, `frags`, `frags-udp`, `list`.
    pub mode: String,
    /// Packets that it holds now, for more of their flows to come.
    pub held: u64,
    /// Packets that became part of another.
    pub merged: u64,
    /// Packets made of several.
    pub aggregates: u64,
    /// Segments in these.
    pub segments: u64,
    /// Packets that were held, by why they are no more: `last` (the last segment said so),
    /// `mismatch` (one of the flow came that could not be merged), `full` (of 64 KiB, or of as many
    /// segments as may be), `evicted` (by other flows), `old`, `poll_end`.
    pub flushed: BTreeMap<String, u64>,
}

/// An armed timer of an instance.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct TimerRow {
    /// The knob it was armed with: `gro_flush_timeout`, `irq_suspend_timeout`.
    pub knob: String,
    /// ns from now until it is due; 0 if it is.
    pub left: u64,
}

/// An application that takes packets of an instance.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct AppRow {
    /// Its name.
    pub name: String,
    /// The thread that uses it; 0 before it does.
    pub tid: i32,
    /// Packets it was given.
    pub packets: u64,
    /// Packets for which there was no room.
    pub dropped: u64,
    /// Frames of the packets that wait for it.
    pub queued: u64,
    /// Times it blocked.
    pub sleeps: u64,
    /// CPU time of its thread so far, in nanoseconds.
    pub cpu_ns: u64,
}

/// A thread that polls: a worker, an instance's own, or one of the pool.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct WorkerRow {
    /// Name of the thread. That of a worker ends in its index, as `workers` of a device names it.
    pub name: String,
    /// What it polls in: `softirq` is a worker.
    pub context: Context,
    /// CPU it is pinned to; only workers are.
    pub cpu: Option<u32>,
    /// The scheduling policy it has now, as the kernel tells: `other`, `batch`, `idle`, `fifo 10`, `rr 10`; `-` for others.
    pub policy: String,
    /// Thread id, for `top -H` and `perf`.
    pub tid: i32,
    /// `running`, `sleeping`.
    pub state: String,
    /// CPU time of the thread so far, in nanoseconds.
    pub cpu_ns: u64,
    /// Share of a core it used since it started, in percent.
    pub cpu_percent: f64,
    /// Rounds of its poll loop (the kernel's `net_rx_action`).
    pub rounds: u64,
    /// Times it went to sleep.
    pub sleeps: u64,
    /// Times it woke, by cause: `doorbell`, `timer`, `wake`.
    pub wakeups: BTreeMap<String, u64>,
    /// Rounds that ended by budget or time with work left (`time_squeeze` of `/proc/net/softnet_stat`).
    pub time_squeeze: u64,
    /// Packets it polled.
    pub packets: u64,
    /// Heads in its cache.
    pub cached_heads: u64,
    /// Frames in its cache.
    pub cached_frames: u64,
}

/// A neighbour.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct NeighRow {
    /// Device it is behind.
    pub dev: String,
    /// Its address.
    pub ip: IpAddr,
    /// Its MAC address, if known.
    pub mac: Option<String>,
    /// `incomplete`, `reachable`, `stale`, `delay`, `probe`, `failed`, `permanent`.
    pub state: String,
    /// Seconds since it was last confirmed (or, while it never was, since it was made).
    pub age_s: f64,
    /// Packets that wait for its address.
    pub queued: u64,
}

/// What became of fragments. (Those that were dropped are among the drops, each for its reason.)
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct FragStats {
    /// Datagrams to softnet that are not whole, or that were given up not long ago.
    pub waiting: u64,
    /// Those that became whole.
    pub reassembled: u64,
    /// Packets that were too long for the next link, and were cut.
    pub cut: u64,
}

/// Packets dropped for one reason.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct DropRow {
    /// Device they came in by; `-` for none.
    pub dev: String,
    /// The reason's name.
    pub reason: String,
    /// How many.
    pub packets: u64,
    /// What the reason means.
    pub help: String,
}

/// A queueing discipline.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct QdiscRow {
    /// Device.
    pub dev: String,
    /// TX queue it is before; none for the root.
    pub queue: Option<u16>,
    /// `mq`, `pfifo_fast`, `tbf`, …
    pub kind: String,
    /// Its parameters in `tc`'s words, a limit that was left out included; empty if it has none.
    pub options: String,
    /// Bytes that left, from the Ethernet header on.
    pub bytes: u64,
    /// Packets that left.
    pub packets: u64,
    /// Packets it dropped.
    pub drops: u64,
    /// Times a packet had to wait for its rate.
    pub overlimits: u64,
    /// Packets that the device gave back, to be sent later.
    pub requeues: u64,
    /// Packets in it now.
    pub qlen: u64,
    /// Bytes in it now.
    pub backlog: u64,
    /// Packets it dropped, by reason; only those that happened.
    pub drops_by_reason: BTreeMap<String, u64>,
    /// The TX queue's owner word and its ring (of TX queue 0, for another root than `mq`); none for the root `mq`.
    pub tx: Option<TxRow>,
    /// What it does that is hardly meant: drop the device's longest frames.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warning: Option<String>,
}

/// How often a TX queue was owned, how long senders waited for it, and what is in its ring.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct TxRow {
    /// Times a thread owned it.
    pub owned: u64,
    /// Packets that other threads left to the owner, and went on.
    pub handed_over: u64,
    /// Times an owner left the rest to the next.
    pub parked: u64,
    /// Times a sender here was held back, since too many packets were pending.
    pub held_back: u64,
    /// ns that such senders waited, in all.
    pub held_back_ns: u64,
    /// ns of the longest of these waits.
    pub held_back_longest_ns: u64,
    /// Bytes that byte queue limits allow in the ring.
    pub limit: u64,
    /// Bytes in the ring.
    pub inflight: u64,
}

/// The filter in one of a device's hooks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct FilterRow {
    /// Device.
    pub dev: String,
    /// The hook: `ingress`, `egress`.
    pub parent: Direction,
    /// `matchall`.
    pub kind: String,
    /// `mirred`.
    pub action: String,
    /// Whether packets leave by the other device, `egress`, or come in by it, `ingress`.
    pub direction: Direction,
    /// `redirect`, `mirror`.
    pub mirred_action: MirredAction,
    /// The other device.
    pub to_dev: String,
    /// Bytes of the packets that the action was applied to, from the Ethernet header on.
    pub bytes: u64,
    /// Packets that the action was applied to.
    pub packets: u64,
    /// Packets that were not sent, or not copied: through too many redirects, no memory, the other device not open.
    pub drops: u64,
    /// Packets that were not sent, or not copied, since they would come back.
    pub overlimits: u64,
}

/// A socket.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct SocketRow {
    /// `udp`; `tcp` of listeners (connections are in [`TcpStats`]).
    pub protocol: String,
    /// Address and port that it is bound to: `10.0.0.1:7`, `0.0.0.0:7`; `[::]:7` for both families.
    pub local: String,
    /// Address and port that it is connected to.
    pub peer: Option<String>,
    /// Frames of the packets that wait for it to be received.
    pub queued: u64,
    /// Frames that may.
    pub limit: u64,
    /// Datagrams that were dropped, for want of room for them.
    pub drops: u64,
    /// Id of the NAPI instance that the last datagram came by; 0 if none did.
    pub napi_id: u32,
    /// Name of that instance, if it is there.
    pub napi: Option<String>,
    /// The thread that received from it last; 0 if none did.
    pub tid: i32,
    /// That thread's name, if it runs.
    pub thread: Option<String>,
}

/// Totals of an instance. Nothing is lost silently: received + originated = transmitted + delivered + dropped +
/// merged + held, once nothing is in motion.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Stats {
    /// Name of the instance.
    pub name: String,
    /// Version of softnet.
    pub version: String,
    /// Process id.
    pub pid: u32,
    /// Seconds since it started.
    pub uptime_s: f64,
    /// Packets that came in by devices.
    pub received: u64,
    /// Packets made here (ARP, ICMP; segments that a packet was cut into, but for the first).
    pub originated: u64,
    /// Packets that left by devices.
    pub transmitted: u64,
    /// Packets that reached softnet itself.
    pub delivered: u64,
    /// Packets dropped, for whatever reason.
    pub dropped: u64,
    /// Packets that became part of another: of the fragments of a datagram that was put together,
    /// all but one; of the segments that GRO made one of, too.
    #[serde(default)]
    pub merged: u64,
    /// Packets inside now: waiting for a neighbour, for other fragments, for the slow path while
    /// another thread has it, in a socket, in a discipline, in a backlog, or in GRO. (Those in a
    /// transmit ring count as transmitted.)
    pub held: u64,
    /// ICMP errors that were not sent, because there were too many.
    pub icmp_limited: u64,
    /// Times that a neighbour claimed an address of softnet's own.
    #[serde(default)]
    pub address_conflicts: u64,
    /// Destinations whose path is known to take less than its first link.
    #[serde(default)]
    pub path_mtus: u64,
    /// ICMP errors that said so of one, and were not believed: nothing of the kind was sent there lately.
    #[serde(default)]
    pub pmtu_ignored: u64,
    /// Times that the slow path was entered: for a batch of exceptions, a datagram that does not fit, a timer.
    #[serde(default)]
    pub slow_path: u64,
    /// Fragments, of datagrams to softnet and of packets that it forwards.
    pub fragments: FragStats,
    /// Times packet memory ran out.
    pub exhausted: u64,
    /// Handles that were lost; anything above 0 is a bug in softnet.
    pub leaked: u64,
    /// Frames of the region.
    pub frames: u64,
    /// Of these, free in the shared pool (caches and rings hold others).
    pub frames_free: u64,
    /// Heads of the region.
    pub heads: u64,
    /// Of these, free in the shared pool.
    pub heads_free: u64,
    /// Routes.
    pub routes: u64,
    /// Bytes of the FIBs, both copies if they were changed.
    pub fib_bytes: u64,
    /// Of the kernel's routes, if they are followed.
    #[serde(default)]
    pub follow: Option<FollowStats>,
    /// Entries of the neighbour table.
    pub neighbours: u64,
    /// New neighbours for which its table, that of their family and device, had no room (the kernel's `table_fulls`).
    #[serde(default)]
    pub neigh_table_fulls: u64,
    /// Sockets that are open.
    #[serde(default)]
    pub sockets: u64,
    /// CPU time of all threads of the instance so far, in nanoseconds.
    pub cpu_ns: u64,
}
