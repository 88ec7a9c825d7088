//! The endpoints over the kernel's own forwarding, so that what they say of softnet can be believed: a router that works,
//! one that stops for a while, and one that does nothing.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::atomic::Ordering::Relaxed;

use serde_json::{Value, json};
use softnet::control::Request;
use softnet::internals::Handler;
use softnet_dev::netlink::Netlink;
use softnet_testkit::datagrams::KernelSockets;
use softnet_testkit::net_allowed;

use super::*;
use softnet::control::show::SocketRow;
use topology::{PORTS, PREFIX_LEN};

/// The kernel as the router.
struct Kernel;

impl Kernel {
    fn start(topology: &Topology) -> Kernel {
        let configure = || {
            let mut netlink = Netlink::new().unwrap();
            for port in &PORTS {
                netlink.add_address(port.interface, port.router.0, PREFIX_LEN.0).unwrap();
                netlink.add_address(port.interface, port.router.1, PREFIX_LEN.1).unwrap();
            }
            std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap();
            std::fs::write("/proc/sys/net/ipv6/conf/all/forwarding", "1").unwrap();
            // Else it forgets them when an interface goes down.
            std::fs::write("/proc/sys/net/ipv6/conf/all/keep_addr_on_down", "1").unwrap();
        };
        topology.router.run(configure).unwrap();
        Kernel
    }
}

impl Handler for Kernel {
    fn request(&self, request: Request) -> Result<Value, String> {
        let Request::Show(table) = request else { return Err("the demo changes nothing".into()) };
        match table {
            Table::Stats => Ok(json!(Stats::default())),
            _ => Ok(json!([])),
        }
    }
}

impl Instance for Kernel {
    fn stop(&self) {}
}

/// For what must happen, however busy the machine is.
const PATIENCE: Duration = Duration::from_secs(60);

/// The router's servers on the kernel's sockets: at the router's addresses, or where it is told.
fn kernel_served(topology: &Topology, at: Option<SocketAddr>) -> Served {
    let open = |addresses: &[SocketAddr], stop: &_| match at {
        Some(at) => KernelSockets::bound(&[at], 64, stop),
        None => KernelSockets::bound(addresses, 64, stop),
    };
    let listen = |ip| -> Box<dyn Listen> {
        let at = at.map_or(own::address(ip), |at| SocketAddr::new(at.ip(), 0));
        Box::new(TcpListener::bind(at).unwrap())
    };
    topology.router.run(|| (Kv::start(open).unwrap(), Ip::BOTH.map(listen))).unwrap()
}

/// Runs over the kernel until it is interrupted, when `done` says so.
fn run_demo(topology: &Topology, done: impl FnMut(&Flows, Duration) -> bool) -> Summary {
    let served = kernel_served(topology, None);
    exchange(topology, &Kernel, served, PATIENCE, Progress::Quiet, done).unwrap()
}

/// Waits for `wanted`, at most so long. Says whether it came.
fn wait_for(wait: Duration, wanted: impl Fn() -> bool) -> bool {
    let give_up = Instant::now() + wait;
    while !wanted() && Instant::now() < give_up {
        std::thread::sleep(Duration::from_millis(10));
    }
    wanted()
}

/// Something of each flow has arrived.
fn all_arrive(flows: &Flows, wait: Duration) -> bool {
    wait_for(wait, || flows.all().iter().all(|flow| flow.bytes.load(Relaxed) > 0))
}

/// The summary as JSON, of a run in which all was right.
fn all_right(summary: &Summary) -> Value {
    let shown: Value = serde_json::from_str(&summary.json().unwrap()).unwrap();
    assert!(summary.ok, "{shown:#}");
    for flow in shown["flows"].as_array().unwrap() {
        assert!(flow["payloads"].as_u64().unwrap() > 0 && flow["bytes"].as_u64().unwrap() > 0, "{shown:#}");
    }
    for flow in [2, 4, 7, 9] {
        assert_eq!(shown["flows"][flow]["payloads"], 2, "TCP streams");
    }
    let answered = [3, 8].map(|flow| &shown["flows"][flow]);
    let sum = |key: &str| answered.iter().map(|flow| flow[key].as_u64().unwrap()).sum::<u64>();
    let served = shown["router"]["kv"]["requests"].as_u64().unwrap();
    assert!((sum("payloads")..=sum("payloads") + sum("retries")).contains(&served), "{shown:#}");
    assert!(summary.text().contains("Every payload arrived intact: "), "{}", summary.text());
    shown
}

#[test]
fn all_payloads_arrive_over_the_kernel() {
    if !net_allowed() {
        return;
    }
    let topology = Topology::build(Taken::Xdp).unwrap();
    Kernel::start(&topology);
    all_right(&run_demo(&topology, all_arrive));
}

#[test]
fn softnet_serves_while_it_routes_and_gives_all_back() {
    if net_allowed() {
        serves_while_it_routes(Taken::Xdp);
    }
}

#[test]
fn the_same_without_af_xdp() {
    if net_allowed() {
        serves_while_it_routes(Taken::Packet);
    }
}

fn serves_while_it_routes(taken: Taken) {
    let topology = Topology::build(taken).unwrap();
    let config = topology::config(taken).unwrap();
    let router = topology.router.run(|| instance::start(config)).unwrap().unwrap();
    let served = serve(&router).unwrap();
    let summary = exchange(&topology, &*router, served, PATIENCE, Progress::Quiet, all_arrive).unwrap();
    let shown = all_right(&summary);
    assert_eq!(shown["router"]["kv"]["napi"], "to-client-0", "{shown:#}");
    assert_eq!(shown["router"]["kv"]["polled_by"], shown["router"]["workers"][0]["name"], "{shown:#}");
    assert_eq!(shown["router"]["kv"]["drops"], 0, "{shown:#}");
    assert!(summary.text().contains(" times by softnet/"), "{}", summary.text());
    router.stop();
    assert!(router.handle().is_none());
    let s: Stats = instance::ask(&*router, Table::Stats).unwrap();
    assert!(s.delivered > 0 && s.originated > 0, "{s:?}");
    assert_eq!(s.received + s.originated, s.transmitted + s.delivered + s.dropped + s.merged, "{s:?}");
    assert_eq!((s.held, s.leaked, s.frames_free, s.heads_free), (0, 0, s.frames, s.heads), "{s:?}");
    let sockets: Vec<SocketRow> = instance::ask(&*router, Table::Socket).unwrap();
    assert_eq!(sockets, []);
}

#[test]
fn what_is_lost_is_sent_again_and_counted() {
    if !net_allowed() {
        return;
    }
    let topology = Topology::build(Taken::Xdp).unwrap();
    Kernel::start(&topology);
    let mut cut = false;
    let summary = run_demo(&topology, |flows, wait| {
        if !cut {
            cut = all_arrive(flows, wait);
            return false;
        }
        let set =
            |change: fn(&mut Netlink)| topology.router.run(|| change(&mut Netlink::new().unwrap())).unwrap();
        set(|netlink| netlink.set_down("to-server").unwrap());
        let asked_again = || {
            let flows = [&flows.ping, &flows.udp].map(|flows| Ip::BOTH.map(|ip| &flows[ip]));
            flows.iter().flatten().all(|flow| flow.retries.load(Relaxed) > 0)
        };
        assert!(wait_for(PATIENCE, asked_again));
        set(|netlink| netlink.set_up("to-server").unwrap());
        true
    });
    let shown = all_right(&summary);
    for flow in [0, 1, 5, 6] {
        assert!(shown["flows"][flow]["retries"].as_u64().unwrap() > 0, "{shown:#}");
    }
}

#[test]
fn a_router_that_does_not_forward_is_found_out() {
    if !net_allowed() {
        return;
    }
    let topology = Topology::build(Taken::Xdp).unwrap();
    // The router has no addresses at all, so that its server is not found either.
    let served = kernel_served(&topology, Some((Ipv4Addr::UNSPECIFIED, 9).into()));
    let while_it_sends = |_: &Flows, wait| {
        std::thread::sleep(wait);
        false
    };
    let summary =
        exchange(&topology, &Kernel, served, Duration::from_secs(1), Progress::Quiet, while_it_sends)
            .unwrap();
    let shown: Value = serde_json::from_str(&summary.json().unwrap()).unwrap();
    assert!(!summary.ok, "{shown:#}");
    for flow in shown["flows"].as_array().unwrap() {
        assert!(!flow["errors"].as_array().unwrap().is_empty(), "{shown:#}");
    }
    assert!(summary.text().ends_with("NOT every payload arrived intact.\n"), "{}", summary.text());
}

#[test]
fn what_is_shown_fits_eighty_columns() {
    let flow = flow::Flow::new("ping6");
    flow.payloads.store(9_876_543, Relaxed);
    flow.bytes.store(1023 << 20, Relaxed);
    flow.retries.store(65_432, Relaxed);
    flow.latency.record(Duration::from_millis(123));
    let cells = live::flow_cells(&flow, 12_345.0, 1.2e9);
    let table = crate::text::table(&live::flow_headers(), &[cells]);
    let mut router = Router::default();
    (router.stats.received, router.stats.transmitted) = (123_456_789, 123_456_789);
    (router.stats.delivered, router.stats.dropped) = (12_345_678, 1234);
    router.drops = serde_json::from_value(json!([{
        "dev": "to-client", "reason": "socket_close", "packets": 1234,
        "help": "its socket was closed before the packet was read"
    }]))
    .unwrap();
    let text = table + &live::router_lines(&router, None);
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
}
