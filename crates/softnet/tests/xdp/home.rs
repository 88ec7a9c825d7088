//! `examples/home-router.toml` between kernels: a host inside, the provider's gateway behind a
//! modem that puts the VLAN's tag on what leaves.
//!
//! ```text
//!  inside, eth0 ── lan0 [ softnet ] wan0 ── eth0, modem, port ── eth0, outside
//! ```

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use softnet::config::{Config, GroMode, available_cpus};
use softnet::{Introspect, Stack};
use softnet_dev::netlink::Netlink;
use softnet_dev::netns::NetNs;
use softnet_testkit::{VlanEnd, VlanPort, net_allowed};

use super::hosts::Icmp;
use super::nat::{PATIENCE, received, talk};
use super::world::until;

const EXAMPLE: &str = include_str!("../../../../examples/home-router.toml");

/// As the example has them.
pub(super) const LAN: Ipv4Addr = Ipv4Addr::new(192, 168, 1, 1);
pub(super) const SERVER: Ipv4Addr = Ipv4Addr::new(192, 168, 1, 10);
pub(super) const WAN: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 5);
pub(super) const GATEWAY: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 1);
const TAG: (u16, u16) = (0x8100, 7);
pub(super) const WEB: [u16; 2] = [8080, 80];
const VPN: u16 = 51820;

/// Others: a host inside, and one beyond the gateway, which is the gateway's kernel, too.
const CLIENT: Ipv4Addr = Ipv4Addr::new(192, 168, 1, 20);
pub(super) const REMOTE: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 9);
/// Where it listens.
const PORT: u16 = 7000;

/// The namespaces, and the stack between them.
pub(super) struct Home {
    pub(super) inside: NetNs,
    pub(super) outside: NetNs,
    stack: Stack,
    _ends: (VlanEnd, NetNs, NetNs),
}

/// Joins `name` here to `eth0` there.
fn wire(name: &str, there: &NetNs) -> u32 {
    let mut netlink = Netlink::new().unwrap();
    netlink.add_veth(name, "eth0", (1, 1), Some(there)).unwrap();
    netlink.set_up(name).unwrap();
    netlink.existing_link(name).unwrap().index
}

/// Gives a host its addresses, and a gateway.
fn host(ns: &NetNs, addresses: [(Ipv4Addr, u8); 2], gateway: Option<Ipv4Addr>) {
    let up = || {
        let mut netlink = Netlink::new().unwrap();
        addresses.into_iter().for_each(|(addr, len)| netlink.add_address("eth0", addr, len).unwrap());
        netlink.set_up("eth0").unwrap();
        netlink.wait_running("eth0").unwrap();
        gateway.into_iter().for_each(|via| netlink.add_route(Ipv4Addr::UNSPECIFIED, 0, via).unwrap());
    };
    ns.run(up).unwrap();
}

impl Home {
    /// Runs the example; `None` if that is not permitted. Neighbours are known afterwards.
    pub(super) fn new() -> Option<Home> {
        Self::with(|_| {})
    }

    /// The same, changed.
    pub(super) fn with(change: impl FnOnce(&mut Config)) -> Option<Home> {
        if !net_allowed() || !VlanEnd::is_possible() {
            return None;
        }
        let [router, inside, modem, outside] = std::array::from_fn(|_| NetNs::new().unwrap());
        router.run(|| [("lan0", &inside), ("wan0", &modem)].map(|(name, ns)| wire(name, ns))).unwrap();
        let port = modem.run(|| wire("port", &outside)).unwrap();
        let attach = || {
            let mut netlink = Netlink::new().unwrap();
            netlink.set_up("eth0").unwrap();
            netlink.wait_running("eth0").unwrap();
            let trunk = netlink.existing_link("eth0").unwrap().index;
            VlanEnd::attach(trunk, &[VlanPort { ifindex: port, tags: vec![TAG] }]).unwrap()
        };
        let vlan = modem.run(attach).unwrap();
        host(&inside, [(CLIENT, 24), (SERVER, 24)], Some(LAN));
        // Nothing leads back to what is inside.
        host(&outside, [(GATEWAY, 24), (REMOTE, 32)], None);
        let mut config = Config::parse(EXAMPLE, "examples/home-router.toml", &[0]).unwrap();
        config.stack.workers = available_cpus()[..1].to_vec();
        change(&mut config);
        let stack = router.run(|| Stack::start(config).unwrap()).unwrap();
        let home = Home { inside, outside, stack, _ends: (vlan, modem, router) };
        home.ping(REMOTE, 1400);
        Some(home)
    }

    fn view(&self) -> &Introspect {
        self.stack.view()
    }

    /// Pings from inside, until it is answered.
    pub(super) fn ping(&self, to: Ipv4Addr, len: usize) {
        let icmp = Icmp::new(&self.inside);
        until(&format!("a ping of {to}"), || {
            let reply = icmp.ping(to, 64, &vec![7; len]);
            let answer = icmp.receive(|message| message.from == to && message.kind == (0, 0));
            answer.is_some_and(|message| message.bytes == reply)
        });
    }

    /// A socket inside or outside.
    fn udp(&self, ns: &NetNs, own: (Ipv4Addr, u16)) -> UdpSocket {
        let socket = ns.run(|| UdpSocket::bind(own).unwrap()).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket
    }

    fn listen(&self, ns: &NetNs, at: (Ipv4Addr, u16)) -> TcpListener {
        ns.run(|| TcpListener::bind(at).unwrap()).unwrap()
    }

    fn drops(&self, reason: &str) -> u64 {
        self.view().drops().iter().filter(|row| row.reason == reason).map(|row| row.packets).sum()
    }

    /// Stops the router. Every packet is in the books, and all memory home.
    pub(super) fn end(self) {
        assert_eq!(self.drops("vlan_unknown"), 0);
        let view = self.stack.view().clone();
        drop(self.stack);
        let s = view.stats();
        let gone = s.transmitted + s.delivered + s.dropped + s.merged;
        assert_eq!(s.received + s.originated, gone, "{s:?}\n{:?}", view.drops());
        assert_eq!((s.held, s.leaked, s.frames_free), (0, 0, s.frames), "{s:?}");
    }
}

#[test]
fn hosts_inside_reach_the_internet_as_the_router() {
    let Some(home) = Home::new() else { return };
    // As long as the VLAN takes.
    [LAN, WAN, GATEWAY, REMOTE].into_iter().for_each(|to| home.ping(to, 1472));

    let (client, server) = (home.udp(&home.inside, (CLIENT, 5001)), home.udp(&home.outside, (REMOTE, PORT)));
    for len in [1, 1472] {
        client.send_to(&vec![5; len], (REMOTE, PORT)).unwrap();
        let (said, from) = received(&server);
        assert_eq!((said, from.ip()), (vec![5; len], IpAddr::from(WAN)));
        server.send_to(&vec![6; len], from).unwrap();
        assert_eq!(received(&client), (vec![6; len], (REMOTE, PORT).into()));
    }

    let listener = home.listen(&home.outside, (REMOTE, PORT));
    let to = (REMOTE, PORT).into();
    assert_eq!(talk(&home.inside, to, &listener, 4 << 20), IpAddr::from(WAN));

    // By the VLAN, hidden, and shaped with its tag by the link's discipline.
    let devs = home.view().devs();
    let vlan = devs.iter().find(|row| row.name == "wan0.7").unwrap();
    assert!(vlan.tx_packets > 2000 && vlan.rx_packets > 2000, "{devs:?}");
    let shown = home.view().connections();
    let hidden = shown.iter().filter(|row| row.snat && row.reply_dst.ip() == WAN);
    assert!(hidden.count() >= 3, "{shown:?}");
    let qdiscs = home.view().qdiscs();
    let shaped = qdiscs.iter().find(|row| row.dev == "wan0" && row.queue.is_none()).unwrap();
    assert!(shaped.bytes > 4 << 20 && shaped.overlimits > 0, "{qdiscs:?}");
    home.end();
}

#[test]
fn forwarded_ports_lead_to_the_server_inside() {
    let Some(home) = Home::new() else { return };
    let listener = home.listen(&home.inside, (SERVER, WEB[1]));
    let to: SocketAddr = (WAN, WEB[0]).into();
    assert_eq!(talk(&home.outside, to, &listener, 2 << 20), IpAddr::from(GATEWAY));
    // From inside, too: the hairpin.
    assert_eq!(talk(&home.inside, to, &listener, 2 << 20), IpAddr::from(WAN));

    let (server, client) = (home.udp(&home.inside, (SERVER, VPN)), home.udp(&home.outside, (REMOTE, 6000)));
    client.send_to(b"hello", (WAN, VPN)).unwrap();
    assert_eq!(received(&server), (b"hello".to_vec(), (REMOTE, 6000).into()));
    server.send_to(b"and back", (REMOTE, 6000)).unwrap();
    assert_eq!(received(&client), (b"and back".to_vec(), (WAN, VPN).into()));
    home.end();
}

/// The router takes a new configuration, though the VLAN's link has no address, and translates on.
#[test]
fn a_router_with_a_link_without_addresses_is_reloaded() {
    let Some(home) = Home::new() else { return };
    let before = home.view().devs().len();
    for limit in [500, 600] {
        let mut config = Config::parse(EXAMPLE, "examples/home-router.toml", &[0]).unwrap();
        config.stack.workers = available_cpus()[..1].to_vec();
        config.nat.as_mut().unwrap().connlimit = Some(limit);
        let changes = home.view().apply(config).unwrap().changes;
        assert!(!changes.is_empty(), "{limit}");
        home.ping(REMOTE, 1400);
    }
    assert_eq!(home.view().devs().len(), before);
    home.end();
}

/// Segments that became one packet keep their tag, their address outside, and their place in the
/// discipline. Each interface has a worker of its own, if there are CPUs.
#[test]
fn aggregates_pass_as_their_segments_do() {
    for mode in [GroMode::Frags, GroMode::FragsUdp, GroMode::List] {
        let gro = |config: &mut Config| {
            config.stack.workers = available_cpus().into_iter().take(2).collect();
            config.devices[..2].iter_mut().for_each(|device| device.gro = mode);
        };
        let Some(home) = Home::with(gro) else { return };
        let listener = home.listen(&home.outside, (REMOTE, PORT));
        assert_eq!(talk(&home.inside, (REMOTE, PORT).into(), &listener, 4 << 20), IpAddr::from(WAN));
        let listener = home.listen(&home.inside, (SERVER, WEB[1]));
        for (from, seen) in [(&home.outside, GATEWAY), (&home.inside, WAN)] {
            assert_eq!(talk(from, (WAN, WEB[0]).into(), &listener, 1 << 20), IpAddr::from(seen));
        }
        let merged = home.view().stats().merged;
        assert!(merged > 100, "{mode:?}: {merged}");
        home.end();
    }
}

#[test]
fn nothing_else_comes_in() {
    let Some(home) = Home::new() else { return };
    // A port that is open inside, but not forwarded.
    let open = home.listen(&home.inside, (SERVER, WEB[0] + 1));
    open.set_nonblocking(true).unwrap();
    let refused = home.outside.run(|| TcpStream::connect_timeout(&(WAN, WEB[0] + 1).into(), PATIENCE));
    // By the router, which has no socket there.
    let refused = refused.unwrap().unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused, "{refused}");
    assert_eq!(open.accept().unwrap_err().kind(), ErrorKind::WouldBlock);

    // A port that a host inside has open to another.
    let (client, server) = (home.udp(&home.inside, (CLIENT, 5001)), home.udp(&home.outside, (REMOTE, PORT)));
    client.send_to(b"hello", (REMOTE, PORT)).unwrap();
    let mapped = received(&server).1;
    let stranger = home.udp(&home.outside, (REMOTE, PORT + 1));
    stranger.connect(mapped).unwrap();
    stranger.send(b"let me in").unwrap();
    let error = stranger.recv(&mut [0; 10]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{error}");
    server.send_to(b"and back", mapped).unwrap();
    assert_eq!(received(&client), (b"and back".to_vec(), (REMOTE, PORT).into()));
    client.set_nonblocking(true).unwrap();
    assert_eq!(client.recv(&mut [0; 10]).unwrap_err().kind(), ErrorKind::WouldBlock);
    home.end();
}

/// Addresses that are not the Internet's neither leave nor come from there.
#[test]
fn private_addresses_stay_inside() {
    let Some(home) = Home::new() else { return };
    let icmp = Icmp::new(&home.inside);
    until("an error for a private network", || {
        icmp.ping(Ipv4Addr::new(10, 9, 9, 9), 64, b"there?");
        icmp.receive(|message| message.from == LAN && message.kind.0 == 3).is_some()
    });
    // An impostor outside, who writes to a port that is forwarded.
    let impostor = Ipv4Addr::new(192, 168, 1, 30);
    home.outside.run(|| Netlink::new().unwrap().add_address("eth0", impostor, 32).unwrap()).unwrap();
    let server = home.udp(&home.inside, (SERVER, VPN));
    for own in [impostor, GATEWAY] {
        home.udp(&home.outside, (own, 6000)).send_to(b"hello", (WAN, VPN)).unwrap();
    }
    assert_eq!(received(&server).1, (GATEWAY, 6000).into());
    until("the drop", || home.drops("ip_rpfilter") == 1);
    home.end();
}

/// A host on the WAN's link, which has a route to what is inside, reaches nothing there but the
/// ports that are open, and is not told of it.
#[test]
fn a_route_from_outside_leads_nowhere() {
    let Some(home) = Home::new() else { return };
    let to_inside = || Netlink::new().unwrap().add_route(Ipv4Addr::new(192, 168, 1, 0), 24, WAN).unwrap();
    home.outside.run(to_inside).unwrap();
    // What is open inside, for those inside.
    let private = home.udp(&home.inside, (CLIENT, 5001));
    private.set_nonblocking(true).unwrap();
    let listener = home.listen(&home.inside, (SERVER, WEB[0] + 1));
    listener.set_nonblocking(true).unwrap();
    let stranger = home.udp(&home.outside, (REMOTE, 6000));
    stranger.send_to(b"let me in", (CLIENT, 5001)).unwrap();
    until("the datagram's drop", || home.drops("netfilter_drop") == 1);
    let attempt = || TcpStream::connect_timeout(&(SERVER, WEB[0] + 1).into(), Duration::from_millis(300));
    let error = home.outside.run(attempt).unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    let icmp = Icmp::new(&home.outside);
    icmp.ping(SERVER, 64, b"there?");
    until("the ping's drop", || home.drops("netfilter_drop") >= 3);
    assert_eq!(private.recv(&mut [0; 10]).unwrap_err().kind(), ErrorKind::WouldBlock);
    assert_eq!(listener.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
    assert!(icmp.receive(|message| message.from == SERVER).is_none());
    // Answers to those inside pass, though.
    private.send_to(b"hello", (REMOTE, 6000)).unwrap();
    let (said, from) = received(&stranger);
    assert_eq!((&said[..], from.ip()), (&b"hello"[..], IpAddr::from(WAN)));
    stranger.send_to(b"and back", from).unwrap();
    until("the answer", || private.recv(&mut [0; 10]).is_ok());
    let rules = home.view().rules();
    let policy = rules.iter().find(|row| row.rule == "policy" && row.hooks == ["forward"]).unwrap();
    assert_eq!((policy.packets, policy.action.as_str()), (home.drops("netfilter_drop"), "drop"));
    let packets = |name: &str| rules.iter().find(|row| row.name.as_deref() == Some(name)).unwrap().packets;
    assert!(packets("belongs") >= 1 && packets("from inside") >= 1, "{rules:?}");
    home.end();
}
