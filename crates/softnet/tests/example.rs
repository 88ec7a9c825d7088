//! `examples/router.toml` is read by people who write their own: it must be right, and the defaults it shows must be
//! the defaults.

use softnet::config::{Config, DeviceConfig, RouteTarget, StackConfig};
use softnet::driver::{DeviceDriver, Packet, Tap, Vlan};

const EXAMPLE: &str = include_str!("../../../examples/router.toml");

/// The example, on a machine with one CPU.
fn example() -> Config {
    Config::parse(EXAMPLE, "examples/router.toml", &[0]).unwrap_or_else(|errors| panic!("{errors}"))
}

#[test]
fn shows_the_defaults() {
    let config = example();
    assert_eq!(config.stack, StackConfig::default());
    for device in config.devices.iter().filter(|device| device.driver.get::<Vlan>().is_none()) {
        let addresses = device.addresses.clone();
        assert_eq!(
            *device,
            DeviceConfig::new(device.name.clone()).with(|device| device.addresses = addresses)
        );
    }
}

/// The section is there in comments, with every knob.
#[test]
fn shows_the_defaults_of_tcp() {
    let section = EXAMPLE.lines().skip_while(|line| *line != "# [tcp]").take_while(|line| !line.is_empty());
    let lines: Vec<_> = section.map(|line| line.trim_start_matches("# ")).collect();
    let text = format!("[[device]]\nname = \"a\"\naddresses = [\"10.0.0.1/24\"]\n{}", lines.join("\n"));
    let config = Config::parse(&text, "router.toml", &[0]).unwrap_or_else(|errors| panic!("{errors}"));
    assert_eq!(config.tcp, Default::default());
    assert!(lines.len() > 30, "{lines:?}");
}

#[test]
fn shows_every_kind_of_route_and_section() {
    let config = example();
    let has = |what: fn(&RouteTarget) -> bool| config.routes.iter().any(|route| what(&route.target));
    assert!(has(|target| matches!(target, RouteTarget::Via(_))));
    assert!(has(|target| matches!(target, RouteTarget::ViaLinkLocal(..))));
    assert!(has(|target| matches!(target, RouteTarget::Dev(_))));
    assert!(has(|target| matches!(target, RouteTarget::Blackhole)));
    assert!(has(|target| matches!(target, RouteTarget::Unreachable)));
    assert!(has(|target| matches!(target, RouteTarget::Prohibit)));
    assert!(has(|target| matches!(target, RouteTarget::NextHops(_))));
    assert!(config.routes.iter().any(|route| route.metric > 0));
    assert_eq!((config.devices.len(), config.neighbours.len()), (3, 1));
    assert!(config.devices[2].driver == Vlan::new("eth2", 10).into());
}

/// `examples/tap.toml` has the keys of the other drivers, with their defaults.
#[test]
fn shows_the_defaults_of_other_drivers() {
    const TEXT: &str = include_str!("../../../examples/tap.toml");
    let config = Config::parse(TEXT, "examples/tap.toml", &[0]).unwrap_or_else(|errors| panic!("{errors}"));
    let drivers: [DeviceDriver; 2] = [Tap::default().into(), Packet::default().into()];
    assert_eq!(config.devices.len(), drivers.len());
    for (device, driver) in config.devices.iter().zip(drivers) {
        let addresses = device.addresses.clone();
        let shown =
            DeviceConfig::new(device.name.clone()).with(|d| (d.addresses, d.driver) = (addresses, driver));
        assert_eq!(*device, shown);
    }
    for key in ["queues", "mac", "mtu", "offloads", "ring", "force"] {
        let is_shown = |line: &str| line.trim_start_matches("# ").starts_with(&format!("{key} = "));
        assert!(TEXT.lines().any(is_shown), "{key}");
    }
    let page = include_str!("../../../docs/src/configuration.md");
    let (_, drivers) = page.split_once("### Drivers").expect("a section on drivers");
    for key in ["queues", "mac", "mtu", "offloads", "ring"] {
        assert!(drivers.contains(&format!("| `{key}` |")), "{key}");
    }
}

/// `examples/home-router.toml` hides what is inside behind its VLAN, and shapes the VLAN's link.
#[test]
fn the_home_router_is_right() {
    const TEXT: &str = include_str!("../../../examples/home-router.toml");
    let config =
        Config::parse(TEXT, "examples/home-router.toml", &[0]).unwrap_or_else(|errors| panic!("{errors}"));
    let [lan, link, wan] = &config.devices[..] else { panic!("{:?}", config.devices) };
    assert!(wan.driver == Vlan::new(link.name.clone(), 7).into());
    assert!(link.addresses.is_empty() && link.qdisc.is_some());
    let nat = config.nat.expect("translates");
    assert_eq!(nat.source.iter().map(|rule| &rule.dev).collect::<Vec<_>>(), [&wan.name]);
    let inside = lan.addresses[0];
    assert!(nat.forward.iter().all(|rule| rule.dev == wan.name && inside.has_host((*rule.to.ip()).into())));
}
