//! The two routers, alike but for what routes: each in a namespace of its own, with three links to another in which
//! nothing lives but packet sockets.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket as KernelSocket};

use softnet::Stack;
use softnet::config::{
    Config, DeviceConfig, InterfaceAddr, NeighbourConfig, RouteConfig, RouteTarget, StackConfig,
    available_cpus,
};
use softnet::driver::{Xdp, XdpMode};
use softnet::net::UdpSocket;
use softnet_core::ip::IpPrefix;
use softnet_dev::netlink::{Netlink, Offload, set_offload};
use softnet_dev::netns::NetNs;
use softnet_testkit::PacketSocket;

use super::net::{
    BLACKHOLE4, BLACKHOLE6, GATEWAY_LOCAL, LINKS, MTU, UNREACHABLE4, UNREACHABLE6, beyond_net6, gateway_mac,
    gateway4, gateway6, remote_net4, remote_net6, router_local, router_mac, router4, router6,
};

/// The port that is served by sending back what comes, and the one that is served by not answering.
pub(crate) const ECHO_PORT: u16 = 7;
pub(crate) const DISCARD_PORT: u16 = 9;

/// A router, and what is at the other ends of its links.
pub(crate) struct Router {
    pub(crate) name: &'static str,
    /// The far ends of its links.
    pub(crate) ends: Vec<PacketSocket>,
    /// Serve what was received.
    servers: Vec<Box<dyn FnMut() -> usize>>,
    stack: Option<Stack>,
    _namespaces: [NetNs; 2],
}

fn near(link: usize) -> String {
    format!("near{link}")
}

fn far(link: usize) -> String {
    format!("far{link}")
}

fn write(knob: &str, value: &str) {
    let path = format!("/proc/sys/net/{knob}");
    std::fs::write(&path, value).unwrap_or_else(|error| panic!("{path}: {error}"));
}

/// The links, up, with their MAC addresses and MTUs. The far ends speak neither IPv4 nor IPv6.
fn plug() -> (NetNs, NetNs, Vec<PacketSocket>) {
    let (router, ends) = (NetNs::new().unwrap(), NetNs::new().unwrap());
    ends.run(|| write("ipv6/conf/default/disable_ipv6", "1")).unwrap();
    router
        .run(|| {
            // Interfaces get no link-local address and ask for no routers.
            for (knob, value) in [("addr_gen_mode", "1"), ("accept_ra", "0"), ("dad_transmits", "0")] {
                write(&format!("ipv6/conf/default/{knob}"), value);
            }
            let mut netlink = Netlink::new().unwrap();
            for link in LINKS {
                let name = near(link);
                netlink.add_veth(&name, &far(link), (1, 1), Some(&ends)).unwrap();
                netlink.set_mac(&name, router_mac(link)).unwrap();
                netlink.set_mtu(&name, MTU[link]).unwrap();
                set_offload(&name, Offload::TxChecksum, false).unwrap();
                netlink.set_up(&name).unwrap();
            }
        })
        .unwrap();
    let sockets = ends
        .run(|| {
            let mut netlink = Netlink::new().unwrap();
            for link in LINKS {
                // Room for tags.
                netlink.set_mtu(&far(link), 1600).unwrap();
                netlink.set_up(&far(link)).unwrap();
            }
            LINKS.map(|link| {
                netlink.wait_running(&far(link)).unwrap();
                PacketSocket::open(&far(link)).unwrap()
            })
        })
        .unwrap();
    router.run(|| LINKS.map(|link| Netlink::new().unwrap().wait_running(&near(link)).unwrap())).unwrap();
    (router, ends, sockets.into())
}

/// What is served on every address of a router, by address.
fn services() -> Vec<(IpAddr, u16)> {
    let v4 = LINKS.map(|link| IpAddr::from(router4(link)));
    let v6 = LINKS.map(|link| IpAddr::from(router6(link)));
    let addrs = v4.into_iter().chain(v6);
    addrs.flat_map(|addr| [ECHO_PORT, DISCARD_PORT].map(|port| (addr, port))).collect()
}

impl Router {
    /// The kernel's own.
    pub(crate) fn kernel() -> Router {
        let (router, ends, sockets) = plug();
        router.run(kernel_routes).unwrap();
        let open = |(addr, port): (IpAddr, u16)| {
            let socket = router.run(|| KernelSocket::bind((addr, port)).unwrap()).unwrap();
            socket.set_nonblocking(true).unwrap();
            let mut buffer = vec![0; 1 << 16];
            let serve = move || match socket.recv_from(&mut buffer) {
                Ok((len, from)) => {
                    if port == ECHO_PORT {
                        let _ = socket.send_to(&buffer[..len], from);
                    }
                    1usize
                }
                Err(_) => 0,
            };
            Box::new(serve) as Box<dyn FnMut() -> usize>
        };
        let servers = services().into_iter().map(open).collect();
        Router { name: "kernel", ends: sockets, servers, stack: None, _namespaces: [router, ends] }
    }

    /// softnet, attached in this mode.
    pub(crate) fn softnet(mode: XdpMode) -> Router {
        let (router, ends, sockets) = plug();
        let stack = router.run(|| Stack::start(config(mode)).unwrap()).unwrap();
        let handle = stack.handle();
        let open = |(addr, port): (IpAddr, u16)| {
            let socket = UdpSocket::bind(&handle, (addr, port)).unwrap();
            socket.set_nonblocking(true).unwrap();
            let mut buffer = vec![0; 1 << 16];
            let serve = move || match socket.recv_from(&mut buffer) {
                Ok((len, from)) => {
                    if port == ECHO_PORT {
                        let _ = socket.send_to(&buffer[..len], from);
                    }
                    1usize
                }
                Err(_) => 0,
            };
            Box::new(serve) as Box<dyn FnMut() -> usize>
        };
        let servers = services().into_iter().map(open).collect();
        Router { name: "softnet", ends: sockets, servers, stack: Some(stack), _namespaces: [router, ends] }
    }

    /// Serves what was received. Whether there was anything.
    pub(crate) fn serve(&mut self) -> bool {
        self.servers.iter_mut().map(|serve| serve()).sum::<usize>() > 0
    }

    /// Stops it. Every packet must be in the books, and all memory home.
    pub(crate) fn end(mut self) {
        self.servers.clear();
        let Some(stack) = self.stack.take() else { return };
        let view = stack.view().clone();
        drop(stack);
        let s = view.stats();
        let drops = view.drops();
        assert_eq!(
            s.received + s.originated,
            s.transmitted + s.delivered + s.dropped + s.merged,
            "{s:?}\n{drops:?}"
        );
        assert_eq!((s.held, s.leaked), (0, 0), "{s:?}");
        assert_eq!((s.frames_free, s.heads_free), (s.frames, s.heads), "{s:?}");
    }
}

/// Makes the kernel of this namespace the router.
fn kernel_routes() {
    for knob in [
        "ipv4/ip_forward=1",
        "ipv6/conf/all/forwarding=1",
        // Neither limits errors, as far as a case can tell.
        "ipv4/icmp_ratelimit=0",
        "ipv4/icmp_ratemask=0",
        "ipv6/icmp/ratelimit=0",
        "ipv6/icmp/ratemask=",
        // Labels are random.
        "ipv6/auto_flowlabels=0",
        // What the kernel does unless it is told otherwise; distributions do tell it otherwise.
        "ipv4/conf/all/rp_filter=0",
        "ipv4/conf/default/rp_filter=0",
        "ipv4/conf/all/accept_source_route=0",
        "ipv4/conf/all/send_redirects=1",
        "ipv4/conf/all/log_martians=0",
        "ipv4/conf/all/arp_ignore=0",
        "ipv4/conf/all/arp_announce=0",
        "ipv4/icmp_echo_ignore_broadcasts=1",
        "ipv4/icmp_ignore_bogus_error_responses=1",
    ] {
        let (knob, value) = knob.split_once('=').unwrap();
        write(knob, value);
    }
    let mut netlink = Netlink::new().unwrap();
    for link in LINKS {
        let name = near(link);
        for (knob, value) in [
            ("ipv4/conf/@/rp_filter", "0"),
            ("ipv4/conf/@/accept_source_route", "0"),
            ("ipv4/conf/@/send_redirects", "1"),
            // What is answered after a random time otherwise.
            ("ipv4/neigh/@/proxy_delay", "0"),
            ("ipv6/neigh/@/proxy_delay", "0"),
        ] {
            write(&knob.replace('@', &name), value);
        }
        netlink.add_address(&name, router4(link), 16).unwrap();
        netlink.add_address(&name, router6(link), 64).unwrap();
        netlink.add_address(&name, router_local(link), 64).unwrap();
        netlink.add_neighbour(&name, gateway4(link), gateway_mac(link)).unwrap();
        netlink.add_neighbour(&name, gateway6(link), gateway_mac(link)).unwrap();
        // To the kernel the first address of a network is a host's.
        let first = Ipv4Addr::from(u32::from(router4(link)) & 0xffff_0000);
        netlink.add_neighbour(&name, first, gateway_mac(link)).unwrap();
        netlink.add_route(remote_net4(link), 16, gateway4(link)).unwrap();
        netlink.add_route(remote_net6(link), 48, gateway6(link)).unwrap();
        netlink.add_neighbour(&name, GATEWAY_LOCAL, gateway_mac(link)).unwrap();
        netlink.add_route_on(&name, beyond_net6(link), 48, GATEWAY_LOCAL).unwrap();
    }
    for (net4, net6, with_error) in [(UNREACHABLE4, UNREACHABLE6, true), (BLACKHOLE4, BLACKHOLE6, false)] {
        netlink.add_reject_route(net4, 24, with_error).unwrap();
        netlink.add_reject_route(net6, 48, with_error).unwrap();
    }
}

fn config(mode: XdpMode) -> Config {
    let prefix = |addr: IpAddr, len| IpPrefix::new(addr, len).unwrap();
    let device = |link: usize| {
        DeviceConfig::new(near(link)).with(|device| {
            device.dad = false;
            device.driver = Xdp::default()
                .with(|xdp| {
                    xdp.ring = 512;
                    xdp.mode = mode;
                })
                .into();
            device.addresses = vec![
                InterfaceAddr::new(router4(link), 16).unwrap(),
                InterfaceAddr::new(router6(link), 64).unwrap(),
            ];
        })
    };
    let mut routes = Vec::new();
    let mut neighbours = Vec::new();
    for link in LINKS {
        let gateways = [IpAddr::from(gateway4(link)), IpAddr::from(gateway6(link))];
        let nets = [prefix(remote_net4(link).into(), 16), prefix(remote_net6(link).into(), 48)];
        for (address, to) in gateways.into_iter().zip(nets) {
            routes.push(RouteConfig::new(to, RouteTarget::Via(address)));
            neighbours.push(NeighbourConfig::new(near(link), address, gateway_mac(link)));
        }
        let (to, address) = (prefix(beyond_net6(link).into(), 48), GATEWAY_LOCAL);
        routes.push(RouteConfig::new(to, RouteTarget::ViaLinkLocal(address, near(link))));
        neighbours.push(NeighbourConfig::new(near(link), address, gateway_mac(link)));
    }
    let six = |addr: Ipv6Addr| prefix(addr.into(), 48);
    for (to, target) in [
        (prefix(UNREACHABLE4.into(), 24), RouteTarget::Unreachable),
        (six(UNREACHABLE6), RouteTarget::Unreachable),
        (prefix(BLACKHOLE4.into(), 24), RouteTarget::Blackhole),
        (six(BLACKHOLE6), RouteTarget::Blackhole),
    ] {
        routes.push(RouteConfig::new(to, target));
    }
    Config::default().with(|config| {
        config.stack = StackConfig::default().with(|stack| {
            stack.workers = available_cpus().into_iter().take(1).collect();
            stack.frames = 8192;
        });
        config.devices = LINKS.map(device).into();
        config.routes = routes;
        config.neighbours = neighbours;
    })
}
