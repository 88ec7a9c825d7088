//! `examples/router.toml` is read by people who write their own: it must be right, and the defaults it shows must be
//! the defaults.

use softnet::config::{Config, DeviceConfig, RouteTarget, StackConfig};
use softnet::driver::Vlan;

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

#[test]
fn shows_every_kind_of_route_and_section() {
    let config = example();
    let has = |what: fn(&RouteTarget) -> bool| config.routes.iter().any(|route| what(&route.target));
    assert!(has(|target| matches!(target, RouteTarget::Via(_))));
    assert!(has(|target| matches!(target, RouteTarget::ViaLinkLocal(..))));
    assert!(has(|target| matches!(target, RouteTarget::Dev(_))));
    assert!(has(|target| matches!(target, RouteTarget::Blackhole)));
    assert!(has(|target| matches!(target, RouteTarget::Unreachable)));
    assert_eq!((config.devices.len(), config.neighbours.len()), (3, 1));
    assert!(config.devices[2].driver == Vlan::new("eth2", 10).into());
}
