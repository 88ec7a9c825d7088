//! The network of the demo: `client ── router ── server`, three anonymous namespaces and two veth pairs. Nothing of
//! the machine's own network is touched, and the kernel removes all of it when the process ends, however it ends.

use std::io;
use std::net::Ipv4Addr;

use softnet::config::{Config, DeviceConfig, InterfaceAddr, StackConfig, available_cpus};
use softnet_dev::netlink::Netlink;
use softnet_dev::netns::NetNs;

use crate::Failure;

/// The client's address.
pub(crate) const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 2);
/// The server's address.
pub(crate) const SERVER: Ipv4Addr = Ipv4Addr::new(10, 2, 0, 2);

/// One side of the router.
pub(crate) struct Port {
    /// The router's interface.
    pub(crate) interface: &'static str,
    /// The router's address on it.
    pub(crate) router: Ipv4Addr,
    /// Who is at the other end.
    host: Ipv4Addr,
}

/// Length of both networks' prefixes.
pub(crate) const PREFIX_LEN: u8 = 24;

/// The router's ports.
pub(crate) const PORTS: [Port; 2] = [
    Port { interface: "to-client", router: Ipv4Addr::new(10, 1, 0, 1), host: CLIENT },
    Port { interface: "to-server", router: Ipv4Addr::new(10, 2, 0, 1), host: SERVER },
];

/// The namespaces.
pub(crate) struct Topology {
    pub(crate) client: NetNs,
    pub(crate) router: NetNs,
    pub(crate) server: NetNs,
}

impl Topology {
    /// Makes everything but the router's addresses: those are for who routes.
    pub(crate) fn build() -> io::Result<Topology> {
        let topology = Topology { client: NetNs::new()?, router: NetNs::new()?, server: NetNs::new()? };
        let ends = [&topology.client, &topology.server];
        topology.router.run(|| -> io::Result<()> {
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
                netlink.add_address("eth0", port.host, PREFIX_LEN)?;
                netlink.set_up("eth0")?;
                Ok(netlink.add_route(Ipv4Addr::UNSPECIFIED, 0, port.router)?)
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
pub(crate) fn config() -> Result<Config, Failure> {
    let cpus = available_cpus();
    let device = |port: &Port| {
        let address = InterfaceAddr::new(port.router, PREFIX_LEN);
        address.map(|address| DeviceConfig { addresses: vec![address], ..DeviceConfig::new(port.interface) })
    };
    let devices: Result<Vec<_>, _> = PORTS.iter().map(device).collect();
    let config = Config {
        stack: StackConfig {
            name: "demo".into(),
            workers: cpus.iter().copied().take(1).collect(),
            ..StackConfig::default()
        },
        devices: devices.map_err(|error| Failure::of("configuring the demo", error))?,
        ..Config::default()
    };
    config.check(&cpus).map_err(|errors| Failure::of("configuring the demo", errors))?;
    Ok(config)
}
