//! Which metrics there are, and of which row of `softnet show` each is made.
//!
//! Called by the metrics thread. Labels have values of bounded number only (names of devices,
//! threads, reasons), never addresses of peers or sentences. Invariant: all families are there in
//! every answer, with or without samples, and their names do not change.

use std::collections::BTreeMap;

use super::exposition::Kind::{Counter, Gauge, Info};
use super::exposition::{Exposition, Family};
use crate::assembly::Introspect;
use crate::control::show::{
    DevRow, DropRow, NapiRow, NatStats, QdiscRow, SkbStats, Stats, TcpSummary, WorkerRow,
};

/// What is told at one time: rows as `softnet show` has them.
#[cfg_attr(test, derive(Default))]
pub(super) struct Snapshot {
    pub(super) stats: Stats,
    pub(super) devs: Vec<DevRow>,
    pub(super) drops: Vec<DropRow>,
    pub(super) workers: Vec<WorkerRow>,
    pub(super) napis: Vec<NapiRow>,
    pub(super) qdiscs: Vec<QdiscRow>,
    pub(super) nat: NatStats,
    pub(super) tcp: TcpSummary,
    pub(super) tcp_counters: BTreeMap<String, u64>,
    pub(super) skb: SkbStats,
}

impl Snapshot {
    /// Of a running stack.
    pub(super) fn of(view: &Introspect) -> Snapshot {
        let (tcp, tcp_counters) = view.tcp_summary();
        Snapshot {
            stats: view.stats(),
            devs: view.devs(),
            drops: view.drops(),
            workers: view.workers(),
            napis: [view.napis(), view.backlogs()].concat(),
            qdiscs: view.qdiscs(),
            nat: view.nat(),
            tcp,
            tcp_counters,
            skb: view.skb(),
        }
    }

    /// As OpenMetrics has it.
    pub(super) fn text(&self) -> String {
        let mut out = Exposition::default();
        totals(&mut out, &self.stats);
        devices(&mut out, &self.devs, &self.drops);
        workers(&mut out, &self.workers);
        napis(&mut out, &self.napis);
        qdiscs(&mut out, &self.qdiscs);
        nat(&mut out, &self.nat);
        tcp(&mut out, &self.tcp, &self.tcp_counters);
        memory(&mut out, &self.skb);
        out.finish()
    }
}

fn totals(out: &mut Exposition, stats: &Stats) {
    let Stats { name, version, .. } = stats;
    let mut info = out.family("softnet", Info, "The instance and its version.");
    info.sample(&[("name", name), ("version", version)], 1);
    let uptime_ns = (stats.uptime_s * 1e9) as u64;
    out.family("softnet_uptime_seconds", Gauge, "Time since it started.").nanos(&[], uptime_ns);
    for (name, help, value) in [
        ("softnet_received_packets", "Packets that came in by devices.", stats.received),
        ("softnet_originated_packets", "Packets made by softnet itself.", stats.originated),
        ("softnet_transmitted_packets", "Packets that left by devices.", stats.transmitted),
        ("softnet_delivered_packets", "Packets that reached softnet itself.", stats.delivered),
        ("softnet_dropped_packets", "Packets dropped, for whatever reason.", stats.dropped),
        ("softnet_merged_packets", "Packets that became part of another.", stats.merged),
        ("softnet_icmp_limited", "ICMP errors that rate limits kept from being sent.", stats.icmp_limited),
        (
            "softnet_address_conflicts",
            "Times that a neighbour claimed an address of softnet's own.",
            stats.address_conflicts,
        ),
        ("softnet_slow_path_entries", "Times that the slow path was entered.", stats.slow_path),
        (
            "softnet_reassembled_datagrams",
            "Fragmented datagrams that became whole.",
            stats.fragments.reassembled,
        ),
        ("softnet_fragmented_packets", "Packets cut for the next link.", stats.fragments.cut),
        ("softnet_neighbour_table_full", "Neighbours without room in the table.", stats.neigh_table_fulls),
    ] {
        out.family(name, Counter, help).sample(&[], value);
    }
    for (name, help, value) in [
        ("softnet_held_packets", "Packets inside now: waiting, queued, in sockets.", stats.held),
        ("softnet_routes", "Routes.", stats.routes),
        ("softnet_fib_bytes", "Memory of the FIBs.", stats.fib_bytes),
        ("softnet_neighbours", "Entries of the neighbour table.", stats.neighbours),
        ("softnet_sockets", "Sockets that are open.", stats.sockets),
    ] {
        out.family(name, Gauge, help).sample(&[], value);
    }
    let follow = stats.follow.unwrap_or_default();
    for (name, help, value) in [
        ("softnet_follow_events", "Changes of routes that the kernel told.", follow.events),
        ("softnet_follow_lists", "Times that all of the kernel's routes were listed.", follow.lists),
        ("softnet_follow_overruns", "Times that the kernel dropped notifications.", follow.overruns),
        ("softnet_follow_errors", "Times that the kernel could not be asked or heard.", follow.errors),
    ] {
        let mut family = out.family(name, Counter, help);
        if stats.follow.is_some() {
            family.sample(&[], value);
        }
    }
}

/// A family with one sample for each row.
fn each<'a, R: 'a, const N: usize>(
    mut family: Family<'_>,
    rows: impl IntoIterator<Item = &'a R>,
    labels: impl Fn(&'a R) -> [(&'static str, &'a str); N],
    value: impl Fn(&R) -> u64,
) {
    rows.into_iter().for_each(|row| family.sample(&labels(row), value(row)));
}

/// A number of rows, and what it is called.
type Column<R> = (&'static str, &'static str, fn(&R) -> u64);

fn devices(out: &mut Exposition, devs: &[DevRow], drops: &[DropRow]) {
    let label = |dev| -> [(&'static str, &str); 1] {
        let dev: &DevRow = dev;
        [("device", &dev.name)]
    };
    let mut info = out.family("softnet_device", Info, "Driver and MAC address of a device.");
    for dev in devs {
        info.sample(&[("device", &dev.name), ("driver", &dev.driver), ("mac", &dev.mac)], 1);
    }
    let gauges: [Column<DevRow>; 4] = [
        ("softnet_device_up", "Whether its link is up.", |dev| (dev.link == "up").into()),
        ("softnet_device_mtu_bytes", "Its largest L3 packet.", |dev| dev.mtu.into()),
        ("softnet_device_queues", "RX and TX queues that are open.", |dev| dev.queues.into()),
        ("softnet_device_held_packets", "Packets in its TX rings and disciplines now.", |dev| dev.held),
    ];
    for (name, help, value) in gauges {
        each(out.family(name, Gauge, help), devs, label, value);
    }
    let counters: [Column<DevRow>; 9] = [
        ("softnet_device_receive_packets", "Packets received.", |dev| dev.rx_packets),
        ("softnet_device_receive_bytes", "Bytes received, from the Ethernet header on.", |dev| dev.rx_bytes),
        (
            "softnet_device_receive_ring_drops",
            "Packets that the device lost because no frame was posted.",
            |dev| dev.rx_ring_drops,
        ),
        ("softnet_device_receive_kicks", "System calls for its receive side.", |dev| dev.rx_kicks),
        ("softnet_device_transmit_packets", "Packets sent.", |dev| dev.tx_packets),
        ("softnet_device_transmit_bytes", "Bytes sent, from the Ethernet header on.", |dev| dev.tx_bytes),
        ("softnet_device_transmit_ring_drops", "Packets that the device refused to send.", |dev| {
            dev.tx_ring_drops
        }),
        ("softnet_device_transmit_kicks", "System calls for its transmit side.", |dev| dev.tx_kicks),
        ("softnet_device_reopened", "Times that its interface went away and was opened again.", |dev| {
            dev.reopened
        }),
    ];
    for (name, help, value) in counters {
        each(out.family(name, Counter, help), devs, label, value);
    }
    let family = out.family("softnet_drops", Counter, "Packets dropped, by the device they came by.");
    each(family, drops, |drop| [("device", &drop.dev), ("reason", &drop.reason)], |drop| drop.packets);
}

fn workers(out: &mut Exposition, rows: &[WorkerRow]) {
    let mut cpu = out.family("softnet_thread_cpu_seconds", Counter, "CPU time of a thread that polls.");
    rows.iter().for_each(|row| cpu.nanos(&[("thread", &row.name)], row.cpu_ns));
    let label = |row| -> [(&'static str, &str); 1] {
        let row: &WorkerRow = row;
        [("thread", &row.name)]
    };
    let asleep = out.family("softnet_thread_asleep", Gauge, "Whether it sleeps now.");
    each(asleep, rows, label, |row| (row.state == "sleeping").into());
    let counters: [Column<WorkerRow>; 4] = [
        ("softnet_thread_rounds", "Rounds of its poll loop.", |row| row.rounds),
        ("softnet_thread_packets", "Packets that it polled.", |row| row.packets),
        ("softnet_thread_sleeps", "Times that it went to sleep.", |row| row.sleeps),
        ("softnet_thread_time_squeeze", "Rounds that ended by budget or time with work left.", |row| {
            row.time_squeeze
        }),
    ];
    for (name, help, value) in counters {
        each(out.family(name, Counter, help), rows, label, value);
    }
    let mut wakeups = out.family("softnet_thread_wakeups", Counter, "Times that it woke, by cause.");
    for row in rows {
        for (cause, times) in &row.wakeups {
            wakeups.sample(&[("thread", &row.name), ("cause", cause)], *times);
        }
    }
}

/// The state that an instance is in, of those that `time_ns` has times of.
fn state(row: &NapiRow) -> &'static str {
    match (row.owner.as_str(), row.doorbell.as_str(), row.timer.as_ref().map(|timer| timer.knob.as_str())) {
        (owner, ..) if owner.starts_with("application ") => "application",
        ("none", "unmasked", _) => "irq",
        ("none", _, Some("gro_flush_timeout")) => "deferred",
        ("none", _, Some(_)) => "suspended",
        _ => "polled",
    }
}

fn napis(out: &mut Exposition, rows: &[NapiRow]) {
    let label = |row| -> [(&'static str, &str); 2] {
        let row: &NapiRow = row;
        [("device", &row.dev), ("napi", &row.name)]
    };
    let mut context = out.family(
        "softnet_napi_state",
        Gauge,
        "1: the context an instance is polled in, the thread that does, and why it is awake or asleep: \
         irq (its doorbell can ring), deferred, suspended, polled, application.",
    );
    for row in rows {
        let [dev, napi] = label(row);
        let context_name = row.context.name();
        let labels = [dev, napi, ("context", context_name), ("thread", &row.thread), ("state", state(row))];
        context.sample(&labels, 1);
    }
    let help = "Time that an instance was in each state.";
    let mut times = out.family("softnet_napi_state_seconds", Counter, help);
    for row in rows {
        for (state, ns) in &row.time_ns {
            let [dev, napi] = label(row);
            times.nanos(&[dev, napi, ("state", state)], *ns);
        }
    }
    let counters: [Column<NapiRow>; 12] = [
        ("softnet_napi_polls", "Times that it was polled.", |row| row.polls),
        ("softnet_napi_empty_polls", "Polls that brought nothing.", |row| row.empty_polls),
        ("softnet_napi_full_polls", "Polls that brought as much as they may.", |row| row.full_polls),
        ("softnet_napi_packets", "Packets that it brought.", |row| row.packets),
        ("softnet_napi_doorbells", "Times that its doorbell rang and led to a poll.", |row| row.doorbells),
        ("softnet_napi_deferrals", "Times that gro_flush_timeout ran out.", |row| row.deferrals),
        ("softnet_napi_suspensions", "Times that applications suspended its doorbell.", |row| {
            row.suspensions
        }),
        ("softnet_napi_rescues", "Times that irq_suspend_timeout ran out.", |row| row.rescues),
        ("softnet_napi_busy_polls", "Times that an application polled it.", |row| row.busy_polls),
        ("softnet_napi_gro_merged_packets", "Packets that became part of another.", |row| row.gro.merged),
        ("softnet_napi_gro_aggregates", "Packets made of several.", |row| row.gro.aggregates),
        ("softnet_napi_application_drops", "Packets for which applications had no room.", |row| {
            row.application_drops
        }),
    ];
    for (name, help, value) in counters {
        each(out.family(name, Counter, help), rows, label, value);
    }
}

fn qdiscs(out: &mut Exposition, rows: &[QdiscRow]) {
    // A root `mq` is but the sum of the others.
    let leaves = || rows.iter().filter(|row| row.kind != "mq");
    let queues: Vec<String> = leaves().map(|row| row.queue.unwrap_or(0).to_string()).collect();
    let mut all = |name, kind, help, value: fn(&QdiscRow) -> Option<u64>| {
        let mut family = out.family(name, kind, help);
        for (row, queue) in leaves().zip(&queues) {
            let labels = [("device", row.dev.as_str()), ("queue", queue), ("kind", &row.kind)];
            if let Some(value) = value(row) {
                family.sample(&labels, value);
            }
        }
    };
    let counter = "Packets that left a queueing discipline.";
    all("softnet_qdisc_packets", Counter, counter, |row| Some(row.packets));
    all("softnet_qdisc_bytes", Counter, "Bytes that left it.", |row| Some(row.bytes));
    all("softnet_qdisc_drops", Counter, "Packets that it dropped.", |row| Some(row.drops));
    all("softnet_qdisc_overlimits", Counter, "Times that a packet had to wait for its rate.", |row| {
        Some(row.overlimits)
    });
    all("softnet_qdisc_requeues", Counter, "Packets that the device gave back.", |row| Some(row.requeues));
    all("softnet_qdisc_queued_packets", Gauge, "Packets in it now.", |row| Some(row.qlen));
    all("softnet_qdisc_backlog_bytes", Gauge, "Bytes in it now.", |row| Some(row.backlog));
    let tx = "Times that a thread owned the TX queue.";
    all("softnet_tx_queue_owned", Counter, tx, |row| Some(row.tx.as_ref()?.owned));
    all("softnet_tx_queue_handed_over_packets", Counter, "Packets left to its owner.", |row| {
        Some(row.tx.as_ref()?.handed_over)
    });
    all("softnet_tx_queue_held_back", Counter, "Times that a sender had to wait.", |row| {
        Some(row.tx.as_ref()?.held_back)
    });
    all("softnet_tx_queue_inflight_bytes", Gauge, "Bytes in its ring.", |row| {
        Some(row.tx.as_ref()?.inflight)
    });
    all("softnet_tx_queue_limit_bytes", Gauge, "Bytes that byte queue limits allow there.", |row| {
        Some(row.tx.as_ref()?.limit)
    });
    let mut waited = out.family("softnet_tx_queue_held_back_seconds", Counter, "Time that senders waited.");
    for (row, queue) in leaves().zip(&queues) {
        let labels = [("device", row.dev.as_str()), ("queue", queue), ("kind", &row.kind)];
        if let Some(tx) = &row.tx {
            waited.nanos(&labels, tx.held_back_ns);
        }
    }
}

fn nat(out: &mut Exposition, nat: &NatStats) {
    for (name, help, value) in [
        ("softnet_conntrack_entries", "Connections that are tracked.", nat.connections),
        ("softnet_conntrack_entries_limit", "Connections that there can be.", nat.connections_max),
        ("softnet_conntrack_memory_bytes", "Memory of connections and mappings.", nat.bytes),
        ("softnet_nat_mappings", "Internal endpoints that have an external one.", nat.mappings),
        ("softnet_nat_hosts", "Hosts inside that have connections, if those are limited.", nat.hosts),
    ] {
        out.family(name, Gauge, help).sample(&[], value);
    }
    for (name, help, value) in [
        ("softnet_conntrack_opened", "Connections that were made.", nat.created),
        ("softnet_conntrack_expired", "Connections that expired.", nat.expired),
        ("softnet_conntrack_ended", "Connections whose rule or address was no more.", nat.ended),
        ("softnet_conntrack_early_drop", "Connections ended to make room.", nat.early_drop),
        ("softnet_conntrack_full", "Connections without room.", nat.full),
        ("softnet_conntrack_connlimit", "Connections refused by connlimit.", nat.connlimit),
        ("softnet_nat_ports_exhausted", "Times that no port was free.", nat.ports_exhausted),
    ] {
        out.family(name, Counter, help).sample(&[], value);
    }
    let help = "Ports, or identifiers of ICMP, of an external address in use.";
    let mut ports = out.family("softnet_nat_ports", Gauge, help);
    for row in &nat.addresses {
        let address = row.address.to_string();
        for (protocol, used) in [("tcp", row.tcp), ("udp", row.udp), ("icmp", row.icmp)] {
            let labels = [("device", row.dev.as_str()), ("address", &address), ("protocol", protocol)];
            ports.sample(&labels, used.into());
        }
    }
}

fn tcp(out: &mut Exposition, summary: &TcpSummary, counters: &BTreeMap<String, u64>) {
    let mut sockets = out.family("softnet_tcp_sockets", Gauge, "TCP sockets, by state as ss -s has them.");
    for (state, count) in [
        ("listening", summary.listening),
        ("connections", summary.connections),
        ("syn_recv", summary.syn_recv),
        ("time_wait", summary.time_wait),
    ] {
        sockets.sample(&[("state", state)], count);
    }
    let mut events = out.family("softnet_tcp_events", Counter, "Counters of TCP, by nstat's names.");
    counters.iter().for_each(|(name, count)| events.sample(&[("name", name)], *count));
}

fn memory(out: &mut Exposition, skb: &SkbStats) {
    let help = "Frames and heads of packet memory, by where they are: free, cached, deferred, in_use.";
    let mut places = out.family("softnet_memory_buffers", Gauge, help);
    for (kind, pool) in [("frame", &skb.frames), ("head", &skb.heads)] {
        for (place, count) in [
            ("free", pool.free),
            ("cached", pool.cached),
            ("deferred", pool.deferred),
            ("in_use", pool.in_use),
        ] {
            places.sample(&[("kind", kind), ("place", place)], count);
        }
    }
    let mut totals = out.family("softnet_memory_buffers_limit", Gauge, "All frames and heads there are.");
    totals.sample(&[("kind", "frame")], skb.frames.total);
    totals.sample(&[("kind", "head")], skb.heads.total);
    out.family("softnet_memory_frame_bytes", Gauge, "Bytes of a frame.").sample(&[], skb.frame_size);
    let help = "Allocations that found neither cache nor pool filled.";
    out.family("softnet_memory_exhausted", Counter, help).sample(&[], skb.exhausted);
    let help = "Handles that were lost; above 0 is a bug in softnet.";
    out.family("softnet_memory_leaked", Counter, help).sample(&[], skb.leaked);
}
