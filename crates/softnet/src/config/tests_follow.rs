//! `stack.follow` by FPM, as a user writes it, and the errors as one sees them.

use std::time::Duration;

use super::tests::each_is_told;
use super::{Config, FollowConfig, FpmConfig};

const DEVICE: &str = "[[device]]\nname = \"eth1\"\naddresses = [\"10.0.0.1/24\"]\n";

#[test]
fn what_it_means() {
    let read = |text: &str| {
        Config::parse(&format!("[stack]\nfollow = {text}\n{DEVICE}"), "f.toml", &[0])
            .unwrap()
            .stack
            .follow
            .unwrap()
    };
    assert_eq!(read("\"fpm\""), FollowConfig::fpm());
    let listen: std::net::SocketAddr = ([127, 0, 0, 1], 2620).into();
    assert_eq!(FollowConfig::fpm().fpm, Some(FpmConfig::new(listen).hold(Duration::from_secs(60))));
    let own = FpmConfig::new("[::1]:2621".parse().unwrap()).hold(Duration::from_secs(5));
    let expected =
        FollowConfig { tables: vec![100], neighbours: false, fpm: Some(own), ..FollowConfig::default() };
    assert_eq!(read("{ fpm = \"[::1]:2621\", hold = 5, tables = [100], neighbours = false }"), expected);
}

#[test]
fn one_error_each() {
    each_is_told(&[
        (
            "[stack]\nfollow = \"bgp\"",
            "r.toml:5:10: stack.follow: expected \"kernel\", \"fpm\", or { tables = [\"main\", 100] }, found \"bgp\"",
        ),
        (
            "[stack]\nfollow = { fpm = \"0.0.0.0:2620\" }",
            "r.toml:5:18: stack.follow.fpm: expected an address of loopback and a port, such as \
             \"127.0.0.1:2620\", found \"0.0.0.0:2620\"",
        ),
        (
            "[stack]\nfollow = { fpm = true }",
            "r.toml:5:18: stack.follow.fpm: expected an address of loopback and a port, such as \
             \"127.0.0.1:2620\", found true",
        ),
        (
            "[stack]\nfollow = { fpm = \"[::1]:2620\", hold = 0 }",
            "r.toml:5:39: stack.follow.hold: expected a number from 1 to 86400, found 0",
        ),
        (
            "[stack]\nfollow = { hold = 60 }",
            "r.toml:5:19: stack.follow.hold: expected fpm = \"127.0.0.1:2620\" beside it: it is of routes that zebra \
             tells",
        ),
    ]);
}

/// Of a configuration that a program makes, too.
#[test]
fn none_but_this_machine_connects() {
    for (fpm, wrong) in [
        (FpmConfig::new("0.0.0.0:2620".parse().unwrap()), "FPM at an address of loopback"),
        (FpmConfig::new("127.0.0.1:0".parse().unwrap()), "FPM at an address of loopback"),
        (FpmConfig::default().hold(Duration::ZERO), "a number from 1 to 86400, found 0"),
    ] {
        let mut config = Config::parse(DEVICE, "f.toml", &[0]).unwrap();
        config.stack.follow = Some(FollowConfig { fpm: Some(fpm), ..FollowConfig::default() });
        let error = config.check(&[0]).unwrap_err().to_string();
        assert!(error.contains(wrong), "{error}");
    }
}
