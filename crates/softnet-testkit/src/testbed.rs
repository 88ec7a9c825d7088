//! Two wires between three namespaces, and the kernel as a forwarder in the middle one.

use std::io;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicU32, Ordering};

use super::frame::UdpFrame;
use softnet_dev::netlink::{self, Netlink, Offload};
use softnet_dev::netns::NetNs;
use softnet_dev::sys_error::{SysError, SysResult};

/// One veth pair: `near` is the end outside, `far` the end in the middle namespace.
#[derive(Clone, Debug)]
pub struct Wire {
    /// Interface in the source or sink namespace.
    pub near: String,
    /// Its index there.
    pub near_index: u32,
    /// Its MAC address.
    pub near_mac: [u8; 6],
    /// Its address, as the router in the middle knows it; the interface itself does not have it.
    pub near_ip: Ipv4Addr,
    /// Interface in the middle namespace.
    pub far: String,
    /// Its index there.
    pub far_index: u32,
    /// Its MAC address.
    pub far_mac: [u8; 6],
    /// The router's address there, with a prefix of 24 bits; the interface itself has it only if the kernel is the
    /// router.
    pub far_ip: Ipv4Addr,
}

/// Which context polls the kernel's NAPI instance of the incoming wire in the middle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelNapi {
    /// Softirq, which on veth means: the CPU of the sender, inside its send.
    Softirq,
    /// The kernel's own NAPI threads, on this CPU.
    Threaded {
        /// The CPU.
        cpu: usize,
    },
}

/// The namespaces and wires. All vanish with it, or with the process.
pub struct Testbed {
    /// Where the generator is.
    pub source: NetNs,
    /// Where the forwarder is.
    pub middle: NetNs,
    /// Where the sink is.
    pub sink: NetNs,
    /// From the source to the middle.
    pub incoming: Wire,
    /// From the middle to the sink: `near` is the sink's end.
    pub outgoing: Wire,
}

/// Interface names are unique in the machine, because kernel threads carry them.
static SERIAL: AtomicU32 = AtomicU32::new(0);

impl Testbed {
    /// Makes it, with `queues` RX and TX queues at each end of each wire; all interfaces are up, none has an address,
    /// and IPv6 is off so that nothing speaks unasked.
    ///
    /// # Errors
    /// Needs CAP_SYS_ADMIN and CAP_NET_ADMIN.
    pub fn new(queues: u32) -> io::Result<Self> {
        let [source, middle, sink] = [NetNs::new()?, NetNs::new()?, NetNs::new()?];
        for ns in [&source, &middle, &sink] {
            ns.run(|| {
                // A kernel without IPv6 has no such knob, and no need of it.
                let _ = sysctl("ipv6/conf/all/disable_ipv6", "1");
                let _ = sysctl("ipv6/conf/default/disable_ipv6", "1");
            })?;
        }
        let id = format!("{}x{}", std::process::id(), SERIAL.fetch_add(1, Ordering::Relaxed));
        let incoming = wire(&source, &middle, queues, [format!("g{id}"), format!("i{id}")], 1)?;
        let outgoing = wire(&sink, &middle, queues, [format!("s{id}"), format!("o{id}")], 2)?;
        Ok(Testbed { source, middle, sink, incoming, outgoing })
    }

    /// A frame from the source to `dst` by way of the middle.
    pub fn frame(&self, dst: Ipv4Addr, dst_port: u16, len: u16) -> Vec<u8> {
        UdpFrame {
            src_mac: self.incoming.near_mac,
            dst_mac: self.incoming.far_mac,
            src: self.incoming.near_ip,
            dst,
            src_port: 40_000,
            dst_port,
            len,
        }
        .build()
    }

    /// Makes the kernel forward `dst` with a prefix of `len` bits from the incoming to the outgoing wire: addresses,
    /// a route, a permanent neighbour, `ip_forward`.
    ///
    /// May be called again to switch `napi`, with the same or another prefix; not while an XDP program is attached in
    /// the middle, which sets the same offloads for its own purposes.
    pub fn forward_by_kernel(&self, dst: Ipv4Addr, len: u8, napi: KernelNapi) -> io::Result<()> {
        let threaded = matches!(napi, KernelNapi::Threaded { .. });
        // Frames to a veth take the way through its NAPI only if it merges segments and its peer does not.
        self.source.run(|| netlink::set_offload(&self.incoming.near, Offload::Tso, !threaded))??;
        self.middle.run(|| -> io::Result<()> {
            let mut netlink = Netlink::new()?;
            sysctl("ipv4/ip_forward", "1")?;
            for wire in [&self.incoming, &self.outgoing] {
                unless_there(netlink.add_address(&wire.far, wire.far_ip, 24))?;
                netlink.add_neighbour(&wire.far, wire.near_ip, wire.near_mac)?;
            }
            unless_there(netlink.add_route(dst, len, self.outgoing.near_ip))?;
            let far = &self.incoming.far;
            match napi {
                KernelNapi::Threaded { cpu } => {
                    netlink::set_offload(far, Offload::Gro, true)?;
                    netlink::set_threaded(far, true)?;
                    netlink::pin_napi_threads(far, cpu)?;
                }
                KernelNapi::Softirq => {
                    match netlink::set_threaded(far, false) {
                        // Without a NAPI instance it has no threads either.
                        Err(error) if error.errno() == Some(libc::EOPNOTSUPP) => {}
                        result => result?,
                    }
                    netlink::set_offload(far, Offload::Gro, false)?;
                }
            }
            Ok(())
        })?
    }
}

fn wire(near: &NetNs, middle: &NetNs, queues: u32, names: [String; 2], net: u8) -> io::Result<Wire> {
    let [near_name, far_name] = names;
    let near_link = near.run(|| -> SysResult<_> {
        let mut netlink = Netlink::new()?;
        netlink.add_veth(&near_name, &far_name, (queues, queues), Some(middle))?;
        netlink.set_up(&near_name)?;
        netlink.existing_link(&near_name)
    })??;
    let far_link = middle.run(|| -> SysResult<_> {
        let mut netlink = Netlink::new()?;
        netlink.set_up(&far_name)?;
        netlink.wait_running(&far_name)?;
        netlink.existing_link(&far_name)
    })??;
    near.run(|| Netlink::new()?.wait_running(&near_name))??;
    Ok(Wire {
        near: near_name,
        near_index: near_link.index,
        near_mac: near_link.mac,
        near_ip: Ipv4Addr::new(10, 71, net, 2),
        far: far_name,
        far_index: far_link.index,
        far_mac: far_link.mac,
        far_ip: Ipv4Addr::new(10, 71, net, 1),
    })
}

fn unless_there(result: SysResult<()>) -> SysResult<()> {
    match result {
        Err(error) if error.errno() == Some(libc::EEXIST) => Ok(()),
        result => result,
    }
}

/// Writes a network sysctl of the calling thread's namespace; `knob` is its path below `net`.
pub fn sysctl(knob: &str, value: &str) -> SysResult<()> {
    std::fs::write(format!("/proc/sys/net/{knob}"), value)
        .map_err(|error| SysError::new(format!("set net/{knob} to {value}"), error).needs("CAP_NET_ADMIN"))
}
