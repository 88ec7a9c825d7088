//! Against the kernel, in namespaces of their own.

use std::net::{IpAddr, Ipv4Addr, UdpSocket};

use super::*;
use crate::netns::NetNs;
use softnet_testkit::net_allowed;

const LEFT: Ipv4Addr = Ipv4Addr::new(10, 7, 0, 1);
const RIGHT: Ipv4Addr = Ipv4Addr::new(10, 7, 0, 2);

/// Two namespaces with a veth pair (`left`, `right`) between them, up and addressed.
fn pair() -> (NetNs, NetNs) {
    let (a, b) = (NetNs::new().unwrap(), NetNs::new().unwrap());
    a.run(|| {
        let mut netlink = Netlink::new().unwrap();
        netlink.add_veth("left", "right", (2, 3), Some(&b)).unwrap();
        netlink.add_address("left", LEFT, 24).unwrap();
        netlink.set_up("left").unwrap();
    })
    .unwrap();
    b.run(|| {
        let mut netlink = Netlink::new().unwrap();
        netlink.add_address("right", RIGHT, 24).unwrap();
        netlink.set_up("right").unwrap();
    })
    .unwrap();
    (a, b)
}

#[test]
fn datagrams_pass_between_two_namespaces() {
    if !net_allowed() {
        return;
    }
    let (a, b) = pair();
    let server = b.run(|| UdpSocket::bind((RIGHT, 0)).unwrap()).unwrap();
    let client = a.run(|| UdpSocket::bind((LEFT, 0)).unwrap()).unwrap();
    server.set_read_timeout(Some(std::time::Duration::from_secs(10))).unwrap();
    client.set_read_timeout(Some(std::time::Duration::from_secs(10))).unwrap();
    client.send_to(b"ping", server.local_addr().unwrap()).unwrap();
    let mut buffer = [0; 16];
    let (length, from) = server.recv_from(&mut buffer).unwrap();
    assert_eq!((&buffer[..length], from), (&b"ping"[..], client.local_addr().unwrap()));
    server.send_to(b"pong", from).unwrap();
    let (length, _) = client.recv_from(&mut buffer).unwrap();
    assert_eq!(&buffer[..length], b"pong");
}

#[test]
fn links_are_described_changed_and_deleted() {
    if !net_allowed() {
        return;
    }
    let (a, b) = pair();
    a.run(|| {
        let mut netlink = Netlink::new().unwrap();
        let link = netlink.link("left").unwrap().unwrap();
        assert_eq!((link.rx_queues, link.tx_queues, link.mtu), (2, 3, 1500));
        assert_eq!(link.kind.as_deref(), Some("veth"));
        assert!(link.up && link.carrier);
        let of_ipv4 = |addr: &IpAddr| addr.is_ipv4();
        assert!(netlink.addresses(link.index).unwrap().into_iter().filter(of_ipv4).eq([IpAddr::V4(LEFT)]));
        let ipv6: IpAddr = "fd00::7".parse().unwrap();
        netlink.add_address("left", ipv6, 64).unwrap();
        assert!(netlink.addresses(link.index).unwrap().contains(&ipv6));

        let mac = [0x02, 0, 0, 0, 0, 0x2a];
        netlink.set_mac("left", mac).unwrap();
        netlink.set_mtu("left", 9000).unwrap();
        netlink.set_down("left").unwrap();
        let changed = netlink.link("left").unwrap().unwrap();
        assert_eq!((changed.mac, changed.mtu, changed.up, changed.index), (mac, 9000, false, link.index));

        assert_eq!(netlink.link("absent").unwrap(), None);
        let error = netlink.add_veth("left", "other", (1, 1), None).unwrap_err();
        assert_eq!(error.errno(), Some(libc::EEXIST));
        assert_eq!(netlink.set_up("absent").unwrap_err().errno(), Some(libc::ENODEV));

        netlink.delete_link("left").unwrap();
        assert_eq!(netlink.link("left").unwrap(), None);
    })
    .unwrap();
    assert_eq!(b.run(|| Netlink::new().unwrap().link("right").unwrap()).unwrap(), None);
}

#[test]
fn only_default_routes_of_the_main_table_count_as_such() {
    if !net_allowed() {
        return;
    }
    let (a, _b) = pair();
    a.run(|| {
        let mut netlink = Netlink::new().unwrap();
        let index = netlink.link("left").unwrap().unwrap().index;
        netlink.add_route(Ipv4Addr::new(10, 8, 0, 0), 16, RIGHT).unwrap();
        assert_eq!(netlink.default_route_links().unwrap(), []);
        netlink.add_route(Ipv4Addr::UNSPECIFIED, 0, RIGHT).unwrap();
        assert_eq!(netlink.default_route_links().unwrap(), [index]);
        let away =
            netlink.add_route(Ipv4Addr::new(10, 9, 0, 0), 16, Ipv4Addr::new(192, 0, 2, 1)).unwrap_err();
        assert_eq!(away.errno(), Some(libc::ENETUNREACH));
        assert!(away.to_string().contains("Nexthop"), "the kernel's words are missing: {away}");
        netlink.add_neighbour("left", Ipv4Addr::new(10, 7, 0, 9), [2, 0, 0, 0, 0, 9]).unwrap();
        let arp = std::fs::read_to_string("/proc/thread-self/net/arp").unwrap();
        assert!(arp.contains("02:00:00:00:00:09"), "{arp}");
    })
    .unwrap();
}

/// The events there are now.
fn drain(monitor: &mut LinkMonitor) -> Vec<LinkEvent> {
    std::iter::from_fn(|| monitor.next().unwrap()).collect()
}

#[test]
fn the_monitor_sees_deletion_and_re_creation() {
    if !net_allowed() {
        return;
    }
    let (a, _b) = pair();
    a.run(|| {
        let mut monitor = LinkMonitor::new().unwrap();
        let mut netlink = Netlink::new().unwrap();
        // What is about the interfaces as they were: carrier and link-local addresses take a moment.
        drain(&mut monitor);
        let old = netlink.link("left").unwrap().unwrap();
        netlink.delete_link("left").unwrap();
        netlink.add_veth("left", "right", (1, 1), None).unwrap();
        netlink.add_address("left", LEFT, 24).unwrap();
        netlink.set_up("left").unwrap();
        let new = netlink.link("left").unwrap().unwrap();

        let events = drain(&mut monitor);
        let removed = LinkEvent::Removed { index: old.index, name: "left".into() };
        let removed = events.iter().position(|event| *event == removed).unwrap();
        let appeared = events
            .iter()
            .position(|event| matches!(event, LinkEvent::Appeared(link) if link.name == "left"))
            .unwrap();
        assert!(removed < appeared, "{events:?}");
        assert!(events.contains(&LinkEvent::AddressChanged { index: new.index }), "{events:?}");
        assert!(events.contains(&LinkEvent::Changed(new.clone())), "{events:?}");
        assert!(monitor.links().any(|link| *link == new));
    })
    .unwrap();
}

#[test]
fn a_monitor_that_lost_notifications_still_tells_the_outcome() {
    if !net_allowed() {
        return;
    }
    let (a, _b) = pair();
    a.run(|| {
        let mut monitor = LinkMonitor::new().unwrap();
        let mut netlink = Netlink::new().unwrap();
        let old = netlink.link("left").unwrap().unwrap();
        netlink.delete_link("left").unwrap();
        // Each change is a message of over a kilobyte; the socket's buffer holds some two hundred kilobytes.
        netlink.add_veth("right", "peer", (1, 1), None).unwrap();
        for mtu in 1000..2000 {
            netlink.set_mtu("right", mtu).unwrap();
        }
        netlink.add_veth("left", "far", (1, 1), None).unwrap();
        let events = drain(&mut monitor);
        assert!(events.len() < 1000, "nothing was lost: {}", events.len());
        assert!(events.contains(&LinkEvent::Removed { index: old.index, name: "left".into() }));
        assert!(events.iter().any(|event| matches!(event, LinkEvent::Appeared(link) if link.name == "left")));
        assert!(monitor.links().any(|link| link.name == "right" && link.mtu == 1999));
    })
    .unwrap();
}

#[test]
fn offloads_and_threaded_can_be_switched() {
    if !net_allowed() {
        return;
    }
    let (a, _b) = pair();
    a.run(|| {
        for offload in [Offload::Tso, Offload::TxChecksum, Offload::Gro] {
            set_offload("left", offload, false).unwrap();
            set_offload("left", offload, true).unwrap();
        }
        assert_eq!(set_offload("absent", Offload::Tso, false).unwrap_err().errno(), Some(libc::ENODEV));
        set_threaded("left", true).unwrap();
        set_threaded("left", false).unwrap();
        assert_eq!(set_threaded("absent", true).unwrap_err().errno(), Some(libc::ENOENT));
        assert!(set_threaded("../../etc", true).is_err());
        for cpus in [&[0][..], &[]] {
            set_rps("left", cpus).unwrap();
        }
        assert_eq!(set_rps("absent", &[0]).unwrap_err().errno(), Some(libc::ENOENT));
    })
    .unwrap();
}
