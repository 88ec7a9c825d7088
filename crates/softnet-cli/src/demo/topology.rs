//! The network of the demo: `client ── router ── server`, three anonymous namespaces and two veth pairs. Nothing of
//! the machine's own network is touched, and the kernel removes all of it when the process ends, however it ends.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use softnet::config::{Config, DeviceConfig, InterfaceAddr, available_cpus};
use softnet::driver::{DeviceDriver, Packet, Xdp};
use softnet_core::ip::PrefixError;
use softnet_dev::netlink::Netlink;
use softnet_dev::netns::NetNs;

use super::flow::Ip;
use crate::Failure;

/// Host `host` on the client's network (1) or the server's (2).
const fn v4(net: u8, host: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, net, 0, host)
}
const fn v6(net: u16, host: u16) -> Ipv6Addr {
    Ipv6Addr::new(0xfd00, 0, 0, net, 0, 0, 0, host)
}

/// The client's IPv4 address.
pub(crate) const CLIENT: Ipv4Addr = v4(1, 2);
/// The server's.
pub(crate) const SERVER: Ipv4Addr = v4(2, 2);

/// The server's address.
pub(crate) const fn server(ip: Ip) -> IpAddr {
    match ip {
        Ip::V4 => IpAddr::V4(SERVER),
        Ip::V6 => IpAddr::V6(v6(2, 2)),
    }
}

/// The router's own address on the client's network.
pub(crate) const fn router(ip: Ip) -> IpAddr {
    match ip {
        Ip::V4 => IpAddr::V4(PORTS[0].router.0),
        Ip::V6 => IpAddr::V6(PORTS[0].router.1),
    }
}

/// One side of the router.
pub(crate) struct Port {
    /// The router's interface.
    pub(crate) interface: &'static str,
    /// The router's addresses on it.
    pub(crate) router: (Ipv4Addr, Ipv6Addr),
    /// The other end.
    host: (Ipv4Addr, Ipv6Addr),
}

/// Lengths of both networks' prefixes, of IPv4 and of IPv6.
pub(crate) const PREFIX_LEN: (u8, u8) = (24, 64);

/// The router's ports.
pub(crate) const PORTS: [Port; 2] = [
    Port { interface: "to-client", router: (v4(1, 1), v6(1, 1)), host: (CLIENT, v6(1, 2)) },
    Port { interface: "to-server", router: (v4(2, 1), v6(2, 1)), host: (SERVER, v6(2, 2)) },
];

/// How softnet takes its interfaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Taken {
    /// By AF_XDP, as root.
    Xdp,
    /// By packet sockets: root of a user namespace may have neither BPF programs nor, in many
    /// places, /dev/net/tun.
    Packet,
}

impl Taken {
    fn driver(self) -> DeviceDriver {
        match self {
            Taken::Xdp => Xdp::default().into(),
            Taken::Packet => Packet::default().with(|packet| packet.offloads = true).into(),
        }
    }
}

/// The namespaces.
pub(crate) struct Topology {
    pub(crate) client: NetNs,
    pub(crate) router: NetNs,
    pub(crate) server: NetNs,
}

impl Topology {
    /// Makes everything but the router's addresses: those are the router's to take.
    pub(crate) fn build(taken: Taken) -> io::Result<Topology> {
        let topology = Topology { client: NetNs::new()?, router: NetNs::new()?, server: NetNs::new()? };
        let ends = [&topology.client, &topology.server];
        // No other host has their link-local addresses: they are good at once, and not a second later.
        for ns in [&topology.client, &topology.router, &topology.server] {
            ns.run(|| std::fs::write("/proc/sys/net/ipv6/conf/default/accept_dad", "0"))??;
        }
        topology.router.run(|| -> io::Result<()> {
            if taken == Taken::Packet {
                // The kernel gets a copy of each frame, and is to answer none.
                std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1")?;
            }
            let mut netlink = Netlink::new()?;
            for (port, end) in PORTS.iter().zip(ends) {
                netlink.add_veth(port.interface, "eth0", (1, 1), Some(end))?;
                netlink.set_up(port.interface)?;
            }
            Ok(())
        })??;
        for (port, end) in PORTS.iter().zip(ends) {
            end.run(|| -> io::Result<()> {
                let mut netlink = Netlink::new()?;
                netlink.set_up("eth0")?;
                netlink.add_address("eth0", port.host.0, PREFIX_LEN.0)?;
                netlink.add_address("eth0", port.host.1, PREFIX_LEN.1)?;
                netlink.add_route(Ipv4Addr::UNSPECIFIED, 0, port.router.0)?;
                Ok(netlink.add_route(Ipv6Addr::UNSPECIFIED, 0, port.router.1)?)
            })??;
        }
        // Until then the kernel drops what the endpoints send, and they would wait a second before they try again.
        for end in ends {
            end.run(|| Netlink::new()?.wait_running("eth0"))??;
        }
        Ok(topology)
    }
}

/// softnet as the router.
pub(crate) fn config(taken: Taken) -> Result<Config, Failure> {
    let cpus = available_cpus();
    let device = |port: &Port| -> Result<DeviceConfig, PrefixError> {
        let addresses = vec![
            InterfaceAddr::new(port.router.0, PREFIX_LEN.0)?,
            InterfaceAddr::new(port.router.1, PREFIX_LEN.1)?,
        ];
        Ok(DeviceConfig::new(port.interface).with(|device| {
            device.addresses = addresses;
            device.driver = taken.driver();
        }))
    };
    let devices: Result<Vec<_>, _> = PORTS.iter().map(device).collect();
    let devices = devices.map_err(|error| Failure::of("configuring the demo", error))?;
    let config = Config::default().with(|config| {
        config.stack.name = "demo".into();
        config.stack.workers = cpus.iter().copied().take(1).collect();
        config.devices = devices;
    });
    config.check(&cpus).map_err(|errors| Failure::of("configuring the demo", errors))?;
    Ok(config)
}
