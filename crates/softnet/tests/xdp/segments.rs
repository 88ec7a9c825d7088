//! Segments that were merged, or not cut yet: in SKB mode softnet can't take them.

use softnet::driver::{Xdp, XdpMode};
use softnet_dev::ethtool::Ethtool;
use softnet_dev::netlink::Netlink;
use softnet_dev::netns::NetNs;

use super::hosts::tcp;
use super::world::{World, host, interface};

fn ethtool(ns: &NetNs, name: &str) -> Ethtool {
    ns.run(|| Ethtool::new(Netlink::new().unwrap().existing_link(name).unwrap().index).unwrap()).unwrap()
}

fn too_long(world: &World) -> u64 {
    world.view().drops().iter().filter(|row| row.reason == "rx_too_long").map(|row| row.packets).sum()
}

const SEGMENTATION: [&str; 4] = [
    "tx-tcp-segmentation",
    "tx-tcp6-segmentation",
    "tx-tcp-mangleid-segmentation",
    "tx-tcp-ecn-segmentation",
];

/// The port of a bridge merges what the host sent segment by segment, and does not while softnet has the bridge.
#[test]
fn tcp_passes_a_bridge_whose_port_would_merge_segments() {
    let Some(mut world) = World::new(2) else { return };
    world.middle.run(|| Netlink::new().unwrap().add_bridge("br0", &interface(0)).unwrap()).unwrap();
    let port = ethtool(&world.middle, &interface(0));
    port.set(&["rx-gro"], true).unwrap();
    world.hosts.iter().for_each(|host| ethtool(host, "eth0").set(&SEGMENTATION, false).unwrap());
    let mut config = world.config();
    config.devices[0].name = "br0".into();
    config.devices.iter_mut().for_each(|device| device.driver.get_mut::<Xdp>().unwrap().mode = XdpMode::Skb);
    world.start_with(config);
    assert_eq!(port.is_on("rx-gro").unwrap(), Some(false));
    tcp(&world.hosts[0], &world.hosts[1], host(1), 4_000_000);
    assert_eq!(too_long(&world), 0, "{:?}", world.view().drops());
    // The wire goes with the namespace of either end.
    let _hosts = std::mem::take(&mut world.hosts);
    world.end();
    assert_eq!(port.is_on("rx-gro").unwrap(), Some(true));
}

/// What the other end of the wire does is not the interface's to change: it is named, and what is lost is counted.
#[test]
fn segments_that_a_peer_does_not_cut_are_counted_for_their_own_reason() {
    let Some(mut world) = World::new(2) else { return };
    let mut config = world.config();
    config.devices.iter_mut().for_each(|device| device.driver.get_mut::<Xdp>().unwrap().mode = XdpMode::Skb);
    world.start_with(config);
    for row in world.devs() {
        assert!(row.mode.contains("its veth peer") && row.mode.contains("tso off"), "{}", row.mode);
    }
    tcp(&world.hosts[0], &world.hosts[1], host(1), 100_000);
    assert!(too_long(&world) > 0, "{:?}", world.view().drops());
    assert!(world.devs().iter().all(|row| row.rx_ring_drops == 0));
    world.end();
}
