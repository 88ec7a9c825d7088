//! Devices that are set down and up by hand: routes by way of them give way, and VLANs go with their links.

use std::net::Ipv4Addr;

use softnet::config::{DeviceConfig, InterfaceAddr};
use softnet::control::{LinkChange, LiveAction, NextHop, RouteType, SetLink, SetRoute};
use softnet::driver::Vlan;

use super::frames::{host, numbered};
use super::world::{Setup, until};

#[test]
fn a_device_that_is_down_gives_way_and_stays_down() {
    let setup = Setup { ports: &[1, 1], workers: 1, known: true, ..Setup::default() };
    let (world, mut lanes) = setup.start_with(|config| {
        config.devices.push(DeviceConfig::new("v5").with(|device| {
            device.addresses = vec![InterfaceAddr::new(Ipv4Addr::new(10, 50, 0, 1), 24).unwrap()];
            device.driver = Vlan::new("mem1", 5).into();
        }));
    });
    lanes.sort_by_key(|lane| lane.port);
    let view = &world.view;
    let set = |dev: &str, change| {
        let answer = view.set_link(SetLink { dev: dev.into(), change });
        answer.map(|answer| answer.changed).map_err(|error| error.to_string())
    };
    for (via, metric) in [(Ipv4Addr::new(10, 50, 0, 2), 1), (host(0), 2)] {
        let nexthops = vec![NextHop { via: Some(via.into()), dev: None, weight: 1 }];
        let (to, kind) = (Some("10.9.0.0/16".into()), RouteType::Unicast);
        let add = SetRoute { action: LiveAction::Add, to, kind, nexthops, metric: Some(metric) };
        view.set_route(add).unwrap();
    }
    let leads_by =
        || view.lookup([10, 9, 0, 1].into()).hops.iter().map(|hop| hop.dev.clone()).collect::<Vec<_>>();
    let links = || view.devs().into_iter().map(|row| row.link).collect::<Vec<_>>();
    assert_eq!((leads_by(), links()), (vec!["v5".to_string()], vec!["up".into(); 3]));
    assert_eq!(set("v5", LinkChange::Down), Ok(1));
    assert_eq!((leads_by(), &links()[2][..]), (vec!["mem0".to_string()], "down"));
    assert_eq!(set("v5", LinkChange::Down), Ok(0));
    assert_eq!(set("v5", LinkChange::Up), Ok(1));
    assert_eq!((leads_by(), &links()[2][..]), (vec!["v5".to_string()], "up"));
    assert_eq!(set("v5", LinkChange::Up), Ok(0));
    // What can't be done changes nothing.
    let refused = "nothing was changed: v5: the MTU of a device of driver \"vlan\" can't be set";
    assert_eq!(set("v5", LinkChange::Mtu(1400)), Err(refused.into()));
    assert!(
        set("v6", LinkChange::Up)
            .unwrap_err()
            .starts_with("dev: no device \"v6\"; there are: mem0, mem1, v5")
    );
    assert_eq!(links(), ["up"; 3]);
    // A VLAN goes with its link.
    assert_eq!(set("mem1", LinkChange::Down), Ok(1));
    assert_eq!(
        (leads_by(), links()),
        (vec!["mem0".to_string()], ["up", "down", "gone"].map(String::from).to_vec())
    );
    assert_eq!((set("v5", LinkChange::Up), set("v5", LinkChange::Down)), (Ok(0), Ok(1)));
    assert_eq!(links()[2], "down");
    // A route that has no other to give way to says where packets would go.
    assert_eq!(lanes[0].send(&[numbered(0, host(1), 0, 1)]), 1);
    let lost = || view.drops().into_iter().map(|row| (row.reason, row.packets)).collect::<Vec<_>>();
    until("the drop", || !lost().is_empty());
    assert_eq!(lost(), [("dev_ready".to_string(), 1)]);
    world.end(lanes);
}
