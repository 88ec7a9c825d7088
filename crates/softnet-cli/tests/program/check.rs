//! `softnet run --check`, beside real interfaces.

use rustix::process::Signal;
use softnet_dev::netlink::Netlink;

use super::process::{Process, World};

/// Whatever would keep a start from taking the interfaces is told, and none is touched.
#[test]
fn a_check_looks_at_interfaces_if_it_is_asked_to() {
    let Some(world) = World::new() else { return };
    let config = world.config("r.toml", "");
    let check = |args: &[&str]| {
        let all: Vec<&str> = ["run", "--check", &config].into_iter().chain(args.iter().copied()).collect();
        let mut check = world.middle().run(|| Process::start(&all)).unwrap();
        (check.end().code(), check.errors())
    };
    assert_eq!(check(&["--live"]), (Some(0), String::new()));
    let own = std::net::Ipv4Addr::new(10, 0, 0, 1);
    world.middle().run(|| Netlink::new().unwrap().add_address("s0", own, 24).unwrap()).unwrap();
    world.middle().run(|| Netlink::new().unwrap().delete_link("s1").unwrap()).unwrap();
    assert_eq!(check(&[]), (Some(0), String::new()));
    let (code, errors) = check(&["--live"]);
    let (conflict, gone) = ("s0: the kernel has 10.0.0.1", "no interface s1 here");
    assert!(code == Some(1) && errors.contains(conflict) && errors.contains(gone), "{errors}");
    let (code, errors) = check(&["--live", "--force"]);
    assert!(code == Some(1) && !errors.contains(conflict) && errors.contains(gone), "{errors}");
}

/// With the MTU that the device has: at a check, and when it is opened.
#[test]
fn a_burst_below_the_longest_frame_is_warned_of() {
    let Some(world) = World::new() else { return };
    world.middle().run(|| Netlink::new().unwrap().set_mtu("s0", 1600).unwrap()).unwrap();
    let config = world.config("r.toml", "qdisc = \"tbf rate 10mbit burst 1600b latency 50ms\"");
    let warning = "s0: tbf: burst 1600b is less than the longest frame, 1614 bytes with an MTU of 1600: ";
    let mut check = world.middle().run(|| Process::start(&["run", "--check", &config])).unwrap();
    assert_eq!(check.end().code(), Some(0));
    let errors = check.errors();
    assert!(errors.starts_with(&format!("warning: {warning}")), "{errors}");
    let mut process = world.running(&config);
    process.signal(Signal::TERM);
    process.end();
    let errors = process.errors();
    assert!(errors.starts_with(&format!("process-test: {warning}")), "{errors}");
}
