//! An instance that answers over a real control socket, always the same.

use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};
use softnet::control::show::Table;
use softnet::control::{Request, Set, Target};
use softnet::internals::{Handler, Listener, Server};

/// GRO of an instance that has it on.
fn gro() -> Value {
    json!({"mode": "frags", "held": 1, "merged": 5600, "aggregates": 200, "segments": 5800,
           "flushed": {"last": 150, "mismatch": 40, "full": 11, "evicted": 0, "old": 0, "poll_end": 1200}})
}

fn gro_off() -> Value {
    json!({"mode": "off", "held": 0, "merged": 0, "aggregates": 0, "segments": 0, "flushed": {}})
}

/// A listener, a connection that goes well, and one that does not.
fn tcp() -> Value {
    let info = r#"{
        "congestion": "cubic", "ca_state": "open", "options": ["ts", "sack", "wscale"], "snd_wscale": 7, "rcv_wscale": 10,
        "rto_us": 201000, "backoff": 0, "rtt_us": 412, "rttvar_us": 60, "min_rtt_us": 300, "ato_us": 40000,
        "snd_mss": 1448, "rcv_mss": 536, "advmss": 1448, "pmtu": 1500, "snd_cwnd": 10, "snd_ssthresh": null,
        "bytes_sent": 5000000, "bytes_retrans": 0, "bytes_acked": 4999000, "bytes_received": 77, "segs_out": 3500,
        "segs_in": 1800, "data_segs_out": 3460, "data_segs_in": 1, "last_data_sent_ms": 4, "last_data_recv_ms": 1200,
        "last_ack_recv_ms": 3, "pacing_rate": 70000000, "delivery_rate": 12500000,
        "delivery_rate_app_limited": true, "delivered": 3459, "delivered_ce": 0, "unacked": 1, "sacked": 0, "lost": 0,
        "retrans": 0, "total_retrans": 0, "total_rto": 0, "dsack_dups": 0, "reordering": 3, "reord_seen": 0,
        "rcv_ooopack": 0, "notsent_bytes": 0, "rcv_rtt_us": null, "rcv_space": 14600, "rcv_ssthresh": 64088,
        "snd_wnd": 65160, "rcv_wnd": 65536, "rmem": 0, "rcvbuf": 131072, "sndbuf": 16384
    }"#;
    let info: Value = serde_json::from_str(info).unwrap();
    let mut bad = info.clone();
    for (name, value) in [
        ("backoff", 2),
        ("snd_cwnd", 1),
        ("snd_ssthresh", 5),
        ("retrans", 1),
        ("total_retrans", 12),
        ("lost", 3),
        ("sacked", 2),
        ("reordering", 9),
        ("reord_seen", 1),
    ] {
        bad[name] = value.into();
    }
    bad["ca_state"] = "loss".into();
    for name in ["rtt_us", "pacing_rate", "last_data_recv_ms"] {
        bad[name] = Value::Null;
    }
    let row = |state: &str, queues: [u64; 2], ends: [Option<&str>; 2], napi_id: u32, info: Value| {
        json!({"state": state, "recv_q": queues[0], "send_q": queues[1], "local": ends[0], "peer": ends[1],
               "attached": true, "requests": ends[1].is_none().then_some(5), "napi_id": napi_id,
               "napi": (napi_id == 8193).then_some("eth1-0"), "info": info})
    };
    json!({
        "sockets": [
            row("LISTEN", [3, 1024], [Some("0.0.0.0:80"), None], 0, Value::Null),
            row("ESTAB", [0, 1000], [Some("10.0.0.1:80"), Some("10.0.0.2:40000")], 8193, info),
            row("CLOSE-WAIT", [77, 0], [Some("[fd00::1]:8080"), Some("[fd00::2]:40001")], 8194, bad),
        ],
        "summary": {"listening": 1, "connections": 2, "estab": 1, "orphaned": 0, "syn_recv": 5, "time_wait": 1_200},
        "counters": {"TcpActiveOpens": 0, "TcpPassiveOpens": 1_202, "TcpExtTCPLossProbes": 7},
    })
}

/// An instance that has seen better days.
pub(crate) struct Instance;

impl Handler for Instance {
    fn request(&self, request: Request) -> Result<Value, String> {
        let table = match request {
            Request::Show(table) => table,
            Request::Knobs(_) => return self.request(Request::Show(Table::Napi)),
            Request::Filter(set) if set.dev != "eth1" => {
                return Err(format!("no device {:?}; there are: eth1, wan", set.dev));
            }
            Request::Filter(_) => return self.request(Request::Show(Table::Filter)),
            Request::Steering(_) => return self.request(Request::Show(Table::Steering)),
            Request::Rss(set) if set.dev != "eth1" => {
                return Err(format!(
                    "{}: not supported: its driver has no way to set RSS or filters",
                    set.dev
                ));
            }
            Request::Rss(set) => {
                let context = set.change.starts_with("context new").then_some(1);
                return Ok(json!({"context": context, "rss": self.request(Request::Show(Table::Rss))?}));
            }
            Request::Ntuple(_) => {
                return Ok(json!({"location": 1023, "filters": self.request(Request::Show(Table::Ntuple))?}));
            }
            Request::Route(_) | Request::Neigh(_) | Request::Addr(_) | Request::Link(_) => {
                return Ok(json!({"changed": 1}));
            }
            Request::Reload => return Ok(json!({"changes": ["eth1: qdisc"]})),
            Request::Lookup(addr) => return Ok(json!({"addr": addr, "routes": [], "hops": []})),
            Request::TakeOver(_) => return Err("not of this instance".into()),
            Request::Capture(_) => return Err("not of this instance".into()),
            Request::Qdisc(_) => return self.request(Request::Show(Table::Qdisc)),
            Request::Set(Set { target: Target::Dev(dev), .. }) => {
                return Err(format!("no device {dev:?}; there are: eth1, wan"));
            }
            Request::Set(Set { target: Target::Napi(_), threaded }) => {
                let mut napis = self.request(Request::Show(Table::Napi))?;
                napis[0]["context"] = threaded.name().into();
                return Ok(napis);
            }
        };
        Ok(match table {
            Table::Dev => json!([
                {"index": 0, "name": "eth1", "driver": "xdp", "mode": "native", "link": "up", "mac": "02:00:00:00:00:01",
                 "mtu": 1500, "addresses": ["10.0.0.1/24", "10.0.8.1/24"],
                 "groups": {"224.0.1.129": 1, "239.1.2.3": 2}, "queues": 4, "rx_packets": 1234567,
                 "rx_bytes": 987654321, "rx_ring_drops": 3, "rx_kicks": 17, "tx_packets": 1234000, "tx_bytes": 987000000,
                 "tx_ring_drops": 0, "tx_kicks": 40000, "drops": 567, "held": 2048, "snooped": 12, "reopened": 0},
                {"index": 1, "name": "wan", "driver": "xdp", "mode": "skb mode: native refused: no driver support",
                 "link": "down", "mac": "02:00:00:00:00:02", "mtu": 1500, "addresses": ["192.0.2.2/31"], "groups": {}, "queues": 1,
                 "rx_packets": 0, "rx_bytes": 0, "rx_ring_drops": 0, "rx_kicks": 0, "tx_packets": 12, "tx_bytes": 504,
                 "tx_ring_drops": 0, "tx_kicks": 12, "drops": 0, "held": 0, "snooped": 0, "reopened": 1},
            ]),
            Table::Napi => json!([
                {"id": 8193, "name": "eth1-0", "dev": "eth1", "queue": 0, "worker": 0, "context": "softirq",
                 "thread": "softnet/0", "tid": 4711, "state": ["sched", "missed"], "doorbell": "masked",
                 "napi_defer_hard_irqs": 100, "gro_flush_timeout": 20000, "irq_suspend_timeout": 20000000, "warning": null,
                 "owner": "application echo", "why": "awake: application echo has polled for 12.0 µs",
                 "timer": {"knob": "irq_suspend_timeout", "left": 19200000}, "deferrals": 500,
                 "effective_timeout": 65100, "rescues": 1, "doorbells": 100, "busy_polls": 400, "busy_poll_lost": 2,
                 "suspensions": 390, "resumptions": 8,
                 "applications": [{"name": "echo", "tid": 5000, "packets": 58000, "dropped": 0, "queued": 2,
                                   "sleeps": 17, "cpu_ns": 7000000}],
                 "application_drops": 0,
                 "time_ns": {"irq": 5000, "deferred": 2000, "suspended": 2000, "polled": 990, "application": 10},
                 "kernel_irq": "masked while deferred",
                 "gro": gro(), "polls": 1000, "empty_polls": 10, "full_polls": 900, "packets": 59000,
                 "schedules": 100, "missed": 2},
                {"id": 8194, "name": "wan-0", "dev": "wan", "queue": 0, "worker": 0, "context": "workqueue",
                 "thread": "napi-wq", "tid": 0, "state": [], "doorbell": "unmasked", "napi_defer_hard_irqs": 2,
                 "gro_flush_timeout": 0, "irq_suspend_timeout": 0,
                 "warning": "napi_defer_hard_irqs has no effect without gro_flush_timeout", "owner": "none",
                 "why": "asleep: nothing came for 3.20 s; its doorbell will wake napi-wq", "timer": null, "deferrals": 0,
                 "effective_timeout": 0, "rescues": 0, "doorbells": 0, "busy_polls": 0, "busy_poll_lost": 0,
                 "suspensions": 0, "resumptions": 0, "applications": [], "application_drops": 0,
                 "time_ns": {"irq": 10000, "deferred": 0, "suspended": 0, "polled": 0, "application": 0},
                 "kernel_irq": "not masked",
                 "gro": gro_off(), "polls": 0, "empty_polls": 0, "full_polls": 0, "packets": 0,
                 "schedules": 1, "missed": 0},
            ]),
            Table::Worker => json!([
                {"name": "softnet/0", "context": "softirq", "cpu": 2, "policy": "fifo 10", "tid": 4711, "state": "sleeping", "cpu_ns": 123456789, "cpu_percent": 12.34,
                 "rounds": 5000, "sleeps": 300, "wakeups": {"doorbell": 290, "timer": 10}, "time_squeeze": 4,
                 "packets": 59000, "cached_heads": 96, "cached_frames": 80},
                {"name": "napi-wq/0", "context": "workqueue", "cpu": null, "policy": "other", "tid": 4712, "state": "running",
                 "cpu_ns": 0, "cpu_percent": 0.0, "rounds": 0, "sleeps": 1, "wakeups": {"doorbell": 1, "timer": 0},
                 "time_squeeze": 0, "packets": 0, "cached_heads": 0, "cached_frames": 0},
            ]),
            Table::Neigh => json!([
                {"dev": "eth1", "ip": "10.0.0.2", "mac": "02:00:00:00:00:09", "state": "reachable", "age_s": 4.25,
                 "queued": 0},
                {"dev": "eth1", "ip": "10.0.0.77", "mac": null, "state": "incomplete", "age_s": 0.5, "queued": 3},
            ]),
            Table::Route => json!([
                {"prefix": "0.0.0.0/0", "kind": "via", "via": "10.0.0.2", "dev": "eth1",
                 "metric": 0, "source": "static", "used": true},
                {"prefix": "10.66.0.0/16", "kind": "blackhole", "via": null, "dev": null,
                 "metric": 20, "source": "kernel", "used": false},
            ]),
            Table::Drops => json!([]),
            Table::Qdisc => json!([
                {"dev": "eth1", "queue": null, "kind": "mq", "options": "", "bytes": 987000000, "packets": 1234000,
                 "drops": 12, "overlimits": 0, "requeues": 3, "qlen": 0, "backlog": 0,
                 "drops_by_reason": {"qdisc_overlimit": 12}, "tx": null},
                {"dev": "eth1", "queue": 0, "kind": "pfifo_fast", "options": "", "bytes": 987000000, "packets": 1234000,
                 "drops": 12, "overlimits": 0, "requeues": 3, "qlen": 0, "backlog": 0,
                 "drops_by_reason": {"qdisc_overlimit": 12},
                 "tx": {"owned": 40000, "handed_over": 700, "parked": 1, "held_back": 2, "held_back_ns": 3000000,
                        "held_back_longest_ns": 2000000, "limit": 90840, "inflight": 1514}},
                {"dev": "wan", "queue": null, "kind": "tbf", "options": "rate 10Mbit burst 15Kb lat 50ms", "bytes": 504,
                 "packets": 12, "drops": 0, "overlimits": 4, "requeues": 0, "qlen": 2, "backlog": 3028,
                 "drops_by_reason": {},
                 "tx": {"owned": 12, "handed_over": 0, "parked": 0, "held_back": 0, "held_back_ns": 0,
                        "held_back_longest_ns": 0, "limit": 0, "inflight": 0}},
            ]),
            Table::Filter => json!([
                {"dev": "eth1", "parent": "ingress", "kind": "matchall", "action": "mirred", "direction": "egress",
                 "mirred_action": "redirect", "to_dev": "wan", "bytes": 98400, "packets": 1200, "drops": 3,
                 "overlimits": 0},
                {"dev": "wan", "parent": "egress", "kind": "matchall", "action": "mirred", "direction": "ingress",
                 "mirred_action": "mirror", "to_dev": "eth1", "bytes": 504, "packets": 12, "drops": 0, "overlimits": 12},
            ]),
            Table::Socket => json!([
                {"protocol": "udp", "local": "10.0.0.1:7", "peer": null, "queued": 3, "limit": 481, "drops": 1_200, "napi_id": 8_193,
                 "napi": "eth1-0", "tid": 0, "thread": null},
                {"protocol": "udp", "local": "10.0.0.1:9", "peer": "10.0.0.2:40000", "queued": 0, "limit": 481, "drops": 0,
                 "napi_id": 0, "napi": null, "tid": 77, "thread": "server"}
            ]),
            Table::Tcp => tcp(),
            Table::Steering => json!([
                {"name": "eth1-0", "id": 8193, "dev": "eth1", "queue": 0, "mode": "rps+rfs", "processing_cpu": null,
                 "rps_cpus": [1, 2], "rps_flow_cnt": 4096, "moves": 17,
                 "filters": {"now": 3, "set": 9, "expired": 6, "refused": 0, "late": 0}, "workers": [
                    {"worker": "softnet/1", "packets": 750_000, "wakeups": 1200, "dropped": 5, "flow_limited": 0, "held": 0, "backlog": 12},
                    {"worker": "softnet/2", "packets": 250_000, "wakeups": 800, "dropped": 0, "flow_limited": 64, "held": 0, "backlog": 0}
                 ]},
                {"name": "wan-0", "id": 8194, "dev": "wan", "queue": 0, "mode": "none", "processing_cpu": null,
                 "rps_cpus": [], "rps_flow_cnt": 16, "moves": 0, "workers": [],
                 "warning": "rps_flow_cnt has no effect without rps_cpus"},
            ]),
            Table::Rss => json!([
                {"dev": "eth1", "context": 0, "queues": 4, "table": [0, 1, 2, 3, 0, 1, 2, 3], "hfunc": "toeplitz", "xfrm": "none",
                 "fields": {"tcp4": "sdfn", "udp4": "sd"}, "hkey": "6d:5a:56:da"},
                {"dev": "eth1", "context": 1, "queues": 4, "table": [0, 0, 0, 0, 0, 0, 3, 3], "hfunc": "toeplitz", "xfrm": "none",
                 "fields": {"tcp4": "sdfn", "udp4": "sd"}, "hkey": "6d:5a:56:da"},
                {"dev": "wan", "context": 0, "queues": 0, "table": [], "hfunc": "", "xfrm": "", "fields": {}, "hkey": "",
                 "why": "not supported: its driver has no way to set RSS or filters"},
            ]),
            Table::Ntuple => json!([
                {"dev": "eth1", "location": 7, "rule": "flow-type udp4 dst-port 53 action 2", "packets": 1234},
                {"dev": "eth1", "location": 1023, "rule": "flow-type ip4 tos 16 action -1"},
                {"dev": "eth1", "location": 1030, "rule": "flow-type tcp4 src-port 7 dst-port 80 action 1", "packets": 9,
                 "rfs": true},
            ]),
            Table::Conntrack => json!([
                {"protocol": "tcp", "state": "established", "src": "192.168.1.9:40000", "dst": "192.0.2.7:443",
                 "reply_src": "192.0.2.7:443", "reply_dst": "203.0.113.5:51234", "snat": true, "dnat": false,
                 "age_s": 61, "expires_s": 7300},
                {"protocol": "udp", "state": "unreplied", "src": "198.51.100.2:53", "dst": "203.0.113.5:5353",
                 "reply_src": "192.168.1.9:53", "reply_dst": "198.51.100.2:53", "snat": false, "dnat": true,
                 "age_s": 0, "expires_s": 120},
            ]),
            Table::Nat => json!({
                "connections_max": 262144, "connections": 1200, "created": 5000, "expired": 3790, "ended": 4,
                "early_drop": 10, "full": 2, "connlimit": 7, "hosts": 12, "most_of_a_host": 300,
                "mappings": 1100, "ports_exhausted": 1, "bytes": 31457280,
                "addresses": [{"dev": "wan", "address": "203.0.113.5", "tcp": 800, "udp": 300, "icmp": 1}],
            }),
            Table::Rule => json!([
                {"number": 1, "name": "belongs", "hooks": ["forward"], "rule": "state established,related",
                 "action": "allow", "packets": 12000, "bytes": 9000000},
                {"number": 2, "name": null, "hooks": ["input", "forward"], "rule": "in wan source @bad",
                 "action": "drop", "packets": 17, "bytes": 1020},
                {"number": null, "name": null, "hooks": ["forward"], "rule": "policy", "action": "drop",
                 "packets": 3, "bytes": 180},
            ]),
            Table::Skb => {
                let cache = json!({"cached": 96, "deferred": 3, "refills": 104, "flushes": 101, "remote_frees": 11340,
                    "kicks": 12, "local_at_limit": 0, "came_home": 11337});
                let pool = json!({"total": 16384, "free": 16000, "cached": 192, "deferred": 3, "in_use": 189,
                    "cache_size": 128, "cache_refill": 32, "cache_flush": 32});
                json!({"region": 1, "frame_size": 2048, "heads": pool, "frames": pool, "skb_defer_max": 128,
                    "exhausted": 0, "leaked": 0,
                    "contexts": [{"thread": "softnet/0", "heads": cache, "frames": cache}]})
            }
            Table::Stats => json!({
                "name": "edge", "version": "0.1.0", "pid": 77, "uptime_s": 245.0, "received": 59000, "originated": 1,
                "transmitted": 58000, "delivered": 1001, "dropped": 0, "held": 0, "icmp_limited": 0,
                "fragments": {"waiting": 2, "reassembled": 4100, "cut": 7}, "exhausted": 0,
                "leaked": 0, "frames": 4096, "frames_free": 4000, "heads": 4096, "heads_free": 4000, "routes": 2,
                "fib_bytes": 1000, "neighbours": 1, "cpu_ns": 500000000
            }),
        })
    }
}

/// Serves [`Instance`] at `path`.
pub(crate) fn serve(path: &Path) -> Server {
    Listener::bind(path).unwrap().serve(Arc::new(Instance)).unwrap()
}
