//! The endpoints over the kernel's own forwarding, so that what they say of softnet can be believed: a router that works,
//! one that stops for a while, and one that does nothing.

use serde_json::{Value, json};
use softnet::control::{Handler, Request};
use softnet_dev::netlink::Netlink;
use softnet_dev::testing::net_allowed;

use super::*;
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

fn run_demo(topology: &Topology, wait: impl FnMut(Duration) -> bool) -> Summary {
    exchange(topology, &Kernel, Duration::from_secs(2), Progress::Quiet, wait).unwrap()
}

fn sleep(wait: Duration) -> bool {
    std::thread::sleep(wait);
    false
}

#[test]
fn all_payloads_arrive_over_the_kernel() {
    if !net_allowed() {
        return;
    }
    let topology = Topology::build().unwrap();
    Kernel::start(&topology);
    let summary = run_demo(&topology, sleep);
    let shown: Value = serde_json::from_str(&summary.json().unwrap()).unwrap();
    assert!(summary.ok, "{shown:#}");
    for flow in shown["flows"].as_array().unwrap() {
        assert!(flow["payloads"].as_u64().unwrap() > 0 && flow["bytes"].as_u64().unwrap() > 0, "{shown:#}");
    }
    for flow in [2, 5] {
        assert_eq!(shown["flows"][flow]["payloads"], 2, "TCP streams");
    }
    assert!(summary.text().contains("Every payload arrived intact: "), "{}", summary.text());
}

#[test]
fn an_interrupted_demo_ends_in_order() {
    if !net_allowed() {
        return;
    }
    let topology = Topology::build().unwrap();
    Kernel::start(&topology);
    let summary = run_demo(&topology, |_| {
        std::thread::sleep(Duration::from_millis(300));
        true
    });
    assert!(summary.ok, "{}", summary.text());
}

#[test]
fn what_is_lost_is_sent_again_and_counted() {
    if !net_allowed() {
        return;
    }
    let topology = Topology::build().unwrap();
    Kernel::start(&topology);
    let mut waits = 0;
    let summary = run_demo(&topology, |_| {
        waits += 1;
        std::thread::sleep(Duration::from_millis(100));
        if waits == 2 {
            let set = |change: fn(&mut Netlink)| {
                topology.router.run(|| change(&mut Netlink::new().unwrap())).unwrap()
            };
            set(|netlink| netlink.set_down("to-server").unwrap());
            std::thread::sleep(Duration::from_millis(700));
            set(|netlink| netlink.set_up("to-server").unwrap());
        }
        waits > 3
    });
    let shown: Value = serde_json::from_str(&summary.json().unwrap()).unwrap();
    assert!(summary.ok, "{shown:#}");
    for flow in &shown["flows"].as_array().unwrap()[..2] {
        assert!(flow["retries"].as_u64().unwrap() > 0, "{shown:#}");
    }
}

#[test]
fn a_router_that_does_not_forward_is_found_out() {
    if !net_allowed() {
        return;
    }
    let topology = Topology::build().unwrap();
    let summary = run_demo(&topology, sleep);
    let shown: Value = serde_json::from_str(&summary.json().unwrap()).unwrap();
    assert!(!summary.ok, "{shown:#}");
    for flow in shown["flows"].as_array().unwrap() {
        assert!(!flow["errors"].as_array().unwrap().is_empty(), "{shown:#}");
    }
    assert!(summary.text().ends_with("NOT every payload arrived intact.\n"), "{}", summary.text());
}
