//! VLANs over an interface: hosts in VLANs behind a trunk, whose far end tags and untags for them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use softnet::config::{Config, DeviceConfig, InterfaceAddr};
use softnet::driver::{Vlan, VlanProtocol};
use softnet::net::UdpSocket;
use softnet_dev::netlink::Netlink;
use softnet_dev::netns::NetNs;
use softnet_testkit::{VlanEnd, VlanPort};

use super::hosts::{Echo, Icmp, ask};
use super::world::{World, host, interface, softnet, until};

const CUSTOMER: u16 = 0x8100;
const PROVIDER: u16 = 0x88a8;

/// EtherTypes and numbers, the outermost first.
type Tags = &'static [(u16, u16)];

/// Names, as softnet calls them, links, and tags; over each other in this order.
const VLANS: [(&str, &str, Tags); 3] = [
    ("v5", "s0", &[(CUSTOMER, 5)]),
    ("v7", "s0", &[(PROVIDER, 7)]),
    ("v7.9", "v7", &[(PROVIDER, 7), (CUSTOMER, 9)]),
];

/// softnet's address in a VLAN, and the host's.
fn own(vlan: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 20 + vlan as u8, 0, 1)
}
fn far(vlan: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 20 + vlan as u8, 0, 2)
}
fn own6(vlan: usize) -> Ipv6Addr {
    Ipv6Addr::new(0xfd00, 0, 0, 20 + vlan as u16, 0, 0, 0, 1)
}
fn far6(vlan: usize) -> Ipv6Addr {
    Ipv6Addr::new(0xfd00, 0, 0, 20 + vlan as u16, 0, 0, 0, 2)
}

/// A wire has room for one tag beyond its MTU.
fn mtu(vlan: usize) -> u32 {
    1504 - 4 * VLANS[vlan].2.len() as u32
}

/// The VLANs of host 0's wire, with a host in each.
pub(crate) struct Vlans {
    hosts: Vec<NetNs>,
    _end: VlanEnd,
}

impl Vlans {
    /// `None` if the kernel has not what they are made of.
    pub(crate) fn new(world: &World) -> Option<Vlans> {
        if !VlanEnd::is_possible() {
            return None;
        }
        let trunk = &world.hosts[0];
        let hosts: Vec<_> = VLANS.iter().map(|_| NetNs::new().unwrap()).collect();
        let mut ports = Vec::new();
        for (i, (_, _, tags)) in VLANS.iter().enumerate() {
            let port = format!("p{i}");
            let ifindex = trunk.run(|| {
                let mut netlink = Netlink::new().unwrap();
                netlink.add_veth(&port, "eth0", (1, 1), Some(&hosts[i])).unwrap();
                netlink.set_up(&port).unwrap();
                netlink.existing_link(&port).unwrap().index
            });
            ports.push(VlanPort { ifindex: ifindex.unwrap(), tags: tags.to_vec() });
            let up = || {
                // Addresses are good at once.
                std::fs::write("/proc/sys/net/ipv6/conf/all/accept_dad", "0").unwrap();
                std::fs::write("/proc/sys/net/ipv6/conf/eth0/accept_dad", "0").unwrap();
                let mut netlink = Netlink::new().unwrap();
                netlink.add_address("eth0", far(i), 24).unwrap();
                netlink.set_mtu("eth0", mtu(i)).unwrap();
                netlink.set_up("eth0").unwrap();
                netlink.add_address("eth0", far6(i), 64).unwrap();
                netlink.wait_running("eth0").unwrap();
                netlink.add_route(Ipv4Addr::UNSPECIFIED, 0, own(i)).unwrap();
                netlink.add_route(Ipv6Addr::UNSPECIFIED, 0, own6(i)).unwrap();
            };
            hosts[i].run(up).unwrap();
        }
        let attach = || VlanEnd::attach(Netlink::new().unwrap().existing_link("eth0").unwrap().index, &ports);
        Some(Vlans { _end: trunk.run(attach).unwrap().unwrap(), hosts })
    }
}

/// That of the world, with the VLANs.
pub(crate) fn config(world: &World) -> Config {
    over(world.config())
}

/// The same over another.
pub(crate) fn over(mut config: Config) -> Config {
    for (i, (name, link, tags)) in VLANS.iter().enumerate() {
        let (proto, id) = *tags.last().unwrap();
        config.devices.push(DeviceConfig::new(*name).with(|device| {
            let own = [InterfaceAddr::new(own(i), 24), InterfaceAddr::new(own6(i), 64)];
            device.addresses = own.map(Result::unwrap).to_vec();
            let kind = if proto == PROVIDER { VlanProtocol::Dot1ad } else { VlanProtocol::Dot1q };
            let told = |vlan: &mut Vlan| (vlan.protocol, vlan.mtu) = (kind, Some(mtu(i) as u16));
            device.driver = Vlan::new(*link, id).with(told).into();
        }));
    }
    config
}

/// Waits until a host in each VLAN reaches the others and `to`.
pub(crate) fn assert_reached(vlans: &Vlans, to: IpAddr) {
    for (i, ns) in vlans.hosts.iter().enumerate() {
        for other in (0..VLANS.len()).filter(|j| *j != i) {
            let _echo = Echo::start(&vlans.hosts[other]);
            for to in [IpAddr::from(far(other)), far6(other).into()] {
                until(&format!("an echo of {to}"), || ns.run(|| ask(to, b"which VLAN?")).unwrap());
            }
        }
        until(&format!("an echo of {to}"), || ns.run(|| ask(to, b"out of the VLAN")).unwrap());
    }
}

fn ping(icmp: &Icmp, to: impl Into<IpAddr>, len: usize) {
    let (to, payload) = (to.into(), vec![7; len]);
    let kind = if to.is_ipv4() { (0, 0) } else { (129, 0) };
    until(&format!("a ping of {to}"), || {
        icmp.ping(to, 64, &payload);
        icmp.receive(|message| message.from == to && message.kind == kind)
            .is_some_and(|message| message.bytes.ends_with(&payload))
    });
}

/// Pings and datagrams, between VLANs, to softnet, and to what has no tag.
fn assert_connected(world: &World, vlans: &Vlans) {
    let others = || vlans.hosts.iter().enumerate().map(|(i, ns)| (ns, far(i)));
    let all: Vec<_> = others().chain([(&world.hosts[1], host(1))]).collect();
    let _echoes: Vec<_> = all.iter().map(|(ns, _)| Echo::start(ns)).collect();
    for (from, address) in &all {
        for (_, to) in all.iter().filter(|(_, to)| to != address) {
            for len in [1, 1472] {
                until(&format!("an echo from {to} to {address}"), || {
                    from.run(|| ask(*to, &vec![len as u8; len])).unwrap()
                });
            }
        }
    }
    for (i, ns) in vlans.hosts.iter().enumerate() {
        let icmp = Icmp::new(ns);
        [0, 1468].iter().for_each(|len| ping(&icmp, own(i), *len));
        ping(&icmp, softnet(1), 100);
        ping(&icmp, host(1), 100);
        let icmp = Icmp::v6(ns);
        ping(&icmp, own6(i), 100);
        ping(&icmp, far6((i + 1) % vlans.hosts.len()), 1400);
    }
}

/// In native mode: the kernel spares packets that a program redirected, as the far end does, the
/// generic hook.
#[test]
fn hosts_in_vlans_reach_each_other_and_the_rest() {
    let Some(mut world) = World::new(2) else { return };
    let Some(vlans) = Vlans::new(&world) else { return };
    world.start_with(config(&world));
    assert_connected(&world, &vlans);
    let rows = world.view().devs();
    for (name, _, _) in VLANS {
        let row = rows.iter().find(|row| row.name == name).unwrap();
        assert!(row.rx_packets > 10 && row.tx_packets > 10, "{row:?}");
        assert_eq!((&row.link[..], &row.mac), ("up", &rows[0].mac));
    }
    // The wire's own, without a tag.
    ping(&Icmp::new(&world.hosts[0]), softnet(0), 10);
    let drops = world.view().drops();
    assert!(drops.iter().all(|row| row.reason != "vlan_unknown"), "{drops:?}");
    world.end();
}

/// Of a trunk without addresses softnet takes the VLANs alone; a socket serves what is there.
#[test]
fn a_trunk_without_addresses_is_the_kernels_but_for_the_vlans() {
    let Some(mut world) = World::new(1) else { return };
    let Some(vlans) = Vlans::new(&world) else { return };
    let mut config = config(&world);
    config.devices[0].addresses.clear();
    // Not this one, whose frames stay the kernel's.
    config.devices.retain(|device| device.name != "v5");
    world.start_with(config);
    let kernel = super::world::kernel(0);
    ping(&Icmp::new(&world.hosts[0]), kernel, 100);
    ping(&Icmp::new(&vlans.hosts[1]), own(1), 100);
    assert!(!vlans.hosts[0].run(|| ask(own(0), b"is it softnet's?")).unwrap());
    let socket = UdpSocket::bind(&world.handle(), (own(2), 7)).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut buf = [0; 2048];
            for _ in 0..10 {
                let (n, from) = socket.recv_from(&mut buf).unwrap();
                socket.send_to(&buf[..n], from).unwrap();
            }
        });
        let mut answered = 0;
        until("ten answers of a socket", || {
            answered += usize::from(vlans.hosts[2].run(|| ask(own(2), &[9; 1000])).unwrap());
            answered == 10
        });
    });
    drop(socket);
    let drops = world.view().drops();
    assert!(drops.iter().all(|row| row.reason != "vlan_unknown"), "{drops:?}");
    world.end();
}

/// The VLANs come and go with their link, and have its MTU.
#[test]
fn vlans_follow_their_link() {
    let Some(mut world) = World::new(1) else { return };
    let Some(vlans) = Vlans::new(&world) else { return };
    world.start_with(config(&world));
    ping(&Icmp::new(&vlans.hosts[2]), own(2), 100);
    let rows = |world: &mut World| -> Vec<_> {
        world.devs().into_iter().skip(1).map(|row| (row.link, row.mtu, row.reopened)).collect()
    };
    let up = |mtus: [u16; 3], lives| mtus.map(|mtu| ("up".to_owned(), mtu, lives)).to_vec();
    assert_eq!(rows(&mut world), up([1500, 1500, 1496], 0));
    world.middle.run(|| Netlink::new().unwrap().set_mtu(&interface(0), 1400).unwrap()).unwrap();
    until("the new MTU", || rows(&mut world) == up([1400; 3], 1));
    ping(&Icmp::new(&vlans.hosts[2]), own(2), 100);
    world.unplug(0);
    until("the link is gone", || rows(&mut world) == vec![("gone".to_owned(), 0, 2); 3]);
    world.plug(0);
    until("the link is back", || rows(&mut world) == up([1500, 1500, 1496], 2));
    world.end();
}
