//! Where servers and clients are: two stacks in this process, or a veth pair between namespaces.
//!
//! * `mem`: softnet at both ends of an [emulated wire](super::wire).
//! * `xdp`: softnet by AF_XDP at the server's end, the kernel at the client's.
//! * `kernel`: the kernel at both ends, with the offloads that veth pairs have, or without segments
//!   (`plain`).
//!
//! On veth the CPU that sends does the other end's softirq as well. So the server's CPU does the
//! receiving of the client's kernel, and the client's CPU that of the server's, whichever stack
//! serves.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use softnet::config::{Config, DeviceConfig, GroMode, NeighbourConfig, RouteConfig, RouteTarget};
use softnet::driver::{OpenRequest, Xdp};
use softnet::internals::{Assembly, XdpOpener};
use softnet::{DeviceError, Stack};
use softnet_core::SoftnetData;
use softnet_core::gso::TxOffloads;
use softnet_core::skb::Region;
use softnet_dev::bpf::XdpLink;
use softnet_dev::mem::{NicConfig, nic};
use softnet_dev::netlink::{self, Netlink, Offload};
use softnet_dev::netns::NetNs;
use softnet_dev::sched::Policy;
use softnet_testkit::{InlineNapi, sysctl};

use super::flood::{Flood, GATEWAY};
use super::host::{Kernel, Softnet};
use super::server_threads;
use super::ways::Side;
use super::wire::{Lane, Receives, Sends};
use crate::bench::cpu::kernel_threads;
use crate::bench::echo::xdp::{CLIENT, SERVER, Veth};
use crate::bench::pass::let_pass;
use crate::bench::text;

/// Frames of each packet memory.
const FRAMES: u32 = 1 << 16;
/// How long a client that polls its end may be away before the kernel's timer polls it instead.
const INLINE_TIMEOUT: Duration = Duration::from_millis(20);
/// Sockets that a stack may have.
const SOCKETS: u32 = 1 << 18;
pub(super) const MACS: [[u8; 6]; 2] = [[2, 0, 0, 0, 1, 0], [2, 0, 0, 0, 2, 0]];
/// Ports that clients take: 100,000 connections to four ports need 25,000 each.
const CLIENT_PORTS: [u16; 2] = [1024, 65_535];
/// Ports that the server listens at: with one, a client has too few for its connections.
pub(super) const PORTS: [u16; 4] = [7001, 7002, 7003, 7004];

/// The server's addresses.
pub(super) fn addresses() -> Vec<SocketAddr> {
    PORTS.iter().map(|port| (SERVER, *port).into()).collect()
}

/// What the two ends are.
pub(super) enum Ends {
    Mem { server: Softnet, client: Softnet },
    Xdp { server: Softnet, client: Kernel },
    Kernel { server: Kernel, client: Kernel },
}

/// See the module. Stacks go before the interfaces do.
pub(in crate::bench) struct Rig {
    pub(super) stacks: Vec<Stack>,
    pub(super) ends: Ends,
    /// What arrives at the server, of two stacks.
    to_server: Option<Arc<Lane>>,
    veth: Option<Arc<Veth>>,
    program: Option<XdpLink>,
    /// The kernel's threads that receive for the server.
    napi_threads: Vec<u32>,
}

/// A stack with address `own`, whose `neighbours` are fixed; the last of them is the router to all else.
pub(super) fn config(
    cpu: usize,
    mut device: DeviceConfig,
    own: Ipv4Addr,
    neighbours: &[(Ipv4Addr, [u8; 6])],
) -> Result<Config, String> {
    let mut config = Config::default();
    config.stack.workers = vec![cpu as u32];
    config.stack.worker_policy = Some(Policy::Fifo(1));
    config.stack.frames = FRAMES;
    config.stack.max_sockets = SOCKETS;
    // As the kernel's end has it.
    config.tcp.ip_local_port_range = CLIENT_PORTS;
    device.addresses = vec![format!("{own}/24").parse().map_err(text)?];
    device.arp_notify = false;
    device.dad = false;
    device.gro = GroMode::Frags;
    let fixed = |(ip, mac): &(Ipv4Addr, [u8; 6])| NeighbourConfig::new(device.name.clone(), *ip, *mac);
    config.neighbours = neighbours.iter().map(fixed).collect();
    config.devices = vec![device];
    // What is spoofed has a way, too: an answer to it costs what it costs behind a router.
    let all = "0.0.0.0/0".parse().map_err(text)?;
    config
        .routes
        .extend(neighbours.last().map(|(ip, _)| RouteConfig::new(all, RouteTarget::Via((*ip).into()))));
    Ok(config)
}

/// Ids of threads are known when they run.
pub(super) fn started(stack: Stack) -> Result<Stack, String> {
    let patience = std::time::Instant::now() + std::time::Duration::from_secs(10);
    while stack.view().workers().iter().any(|worker| worker.tid == 0) {
        if std::time::Instant::now() > patience {
            return Err("the worker does not start".into());
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    Ok(stack)
}

/// A stack with the emulated NIC at one end of a wire.
fn mem_stack(cpu: usize, side: usize, lanes: &[Arc<Lane>; 2]) -> Result<Stack, String> {
    let (own, peer) = if side == 0 { (SERVER, CLIENT) } else { (CLIENT, SERVER) };
    let config = config(cpu, DeviceConfig::new("nic0"), own, &[(peer, MACS[1 - side]), GATEWAY])?;
    let (tx, rx) = (lanes[side].clone(), lanes[1 - side].clone());
    let port = Arc::new(Mutex::new(None));
    let opener = {
        let (port, rx) = (port.clone(), rx.clone());
        move |_: &Arc<Region>| {
            Ok(move |&OpenRequest { dev, name, .. }: &OpenRequest<'_>, _: &mut SoftnetData| {
                let wires = vec![(Receives { lane: rx.clone(), next: 0 }, Sends { lane: tx.clone() })];
                let config = NicConfig {
                    name: name.into(),
                    mac: MACS[side],
                    rx_ring: rx.ring(),
                    tx_ring: tx.ring(),
                    rx_csum: true,
                    offloads: TxOffloads { csum: true, tso4: true, ..TxOffloads::default() },
                    ..NicConfig::default()
                };
                let nic = nic(dev, &config, wires).map_err(text)?;
                *port.lock().unwrap_or_else(PoisonError::into_inner) = nic.ports.into_iter().next();
                Ok::<_, String>(nic.open)
            })
        }
    };
    let stack = Stack::run(Assembly::new(config, vec![], opener).map_err(text)?).map_err(text)?;
    let port = port.lock().unwrap_or_else(PoisonError::into_inner).take().ok_or("the NIC was not opened")?;
    rx.port.set(parking_lot::Mutex::new(port)).map_err(|_| "the NIC was opened twice")?;
    started(stack)
}

/// The servers' rigs over veth.
pub(in crate::bench) fn over_veth(server: Side, cpu: usize, inline_client: bool) -> Result<Rig, String> {
    let mut rig = match server {
        Side::Softnet => Rig::xdp(cpu, true),
        Side::Kernel => Rig::kernel(true),
        Side::KernelXdp => Rig::kernel_xdp(None),
        Side::KernelXdpThreaded => Rig::kernel_xdp(Some(cpu)),
    }?;
    if inline_client {
        rig.poll_client_inline()?;
    }
    Ok(rig)
}

/// Namespace and interface of the kernel's end, with its address.
fn kernel_end(end: &(NetNs, String), own: Ipv4Addr, peer: (Ipv4Addr, [u8; 6])) -> Result<(), String> {
    let (ns, name) = end;
    let set = || -> Result<(), String> {
        let mut netlink = Netlink::new().map_err(text)?;
        netlink.add_address(name, own, 24).map_err(text)?;
        for (ip, mac) in [peer, GATEWAY] {
            netlink.add_neighbour(name, ip, mac).map_err(text)?;
        }
        netlink.add_route(Ipv4Addr::UNSPECIFIED, 0, GATEWAY.0).map_err(text)?;
        let [from, to] = CLIENT_PORTS;
        sysctl("ipv4/ip_local_port_range", &format!("{from} {to}")).map_err(text)
    };
    ns.run(set).map_err(text)?
}

impl Rig {
    fn new(stacks: Vec<Stack>, ends: Ends, veth: Option<Arc<Veth>>) -> Self {
        Rig { stacks, ends, to_server: None, veth, program: None, napi_threads: Vec::new() }
    }

    /// Two stacks with a worker each. `whole`: runs of segments pass as they are. The NICs have `ring`
    /// descriptors in each ring.
    pub(in crate::bench) fn mem(
        server: usize,
        client: usize,
        whole: bool,
        ring: usize,
    ) -> Result<Self, String> {
        let lanes = [Lane::new(whole, ring), Lane::new(whole, ring)];
        let stacks = vec![mem_stack(client, 1, &lanes)?, mem_stack(server, 0, &lanes)?];
        let ends = Ends::Mem { client: Softnet(stacks[0].handle()), server: Softnet(stacks[1].handle()) };
        let [_, to_server] = lanes;
        Ok(Rig { to_server: Some(to_server), ..Rig::new(stacks, ends, None) })
    }

    /// softnet, whose worker is on CPU `server`, and a client of the kernel's. `tso`: runs of segments
    /// go to the kernel whole.
    pub(super) fn xdp(server: usize, tso: bool) -> Result<Self, String> {
        let veth = Arc::new(Veth::new()?);
        let mac = [Veth::mac(&veth.server)?, Veth::mac(&veth.client)?];
        let device = DeviceConfig::new(&veth.server.1).with(|device| {
            device.driver = Xdp::default().with(|xdp| (xdp.ring, xdp.tso) = (2048, tso)).into();
        });
        let config = config(server, device, SERVER, &[(CLIENT, mac[1]), GATEWAY])?;
        let run = || {
            let opener = |region: &_| XdpOpener::new(region, 1).map_err(DeviceError::from);
            Stack::run(Assembly::new(config, vec![], opener).map_err(text)?).map_err(text)
        };
        let stack = started(veth.server.0.run(run).map_err(text)??)?;
        kernel_end(&veth.client, CLIENT, (SERVER, mac[0]))?;
        let client = Kernel::new(&veth.client.0).map_err(text)?;
        let ends = Ends::Xdp { server: Softnet(stack.handle()), client };
        Ok(Rig::new(vec![stack], ends, Some(veth)))
    }

    /// The kernel alone; with `segments`, interfaces hand on aggregates as they are, and without,
    /// packets of the MTU.
    pub(super) fn kernel(segments: bool) -> Result<Self, String> {
        let veth = Arc::new(Veth::new()?);
        let mac = [Veth::mac(&veth.server)?, Veth::mac(&veth.client)?];
        kernel_end(&veth.client, CLIENT, (SERVER, mac[0]))?;
        kernel_end(&veth.server, SERVER, (CLIENT, mac[1]))?;
        if !segments {
            for (ns, name) in [&veth.server, &veth.client] {
                let off = || {
                    netlink::set_offload(name, Offload::Tso, false)?;
                    netlink::set_offload(name, Offload::Gso, false)
                };
                ns.run(off).map_err(text)?.map_err(text)?;
            }
        }
        let [server, client] = [&veth.server, &veth.client].map(|end| Kernel::new(&end.0));
        let ends = Ends::Kernel { server: server.map_err(text)?, client: client.map_err(text)? };
        Ok(Rig::new(vec![], ends, Some(veth)))
    }

    /// The kernel alone, and what comes to the server passes the way that it takes to AF_XDP, its
    /// receiving done by the CPU that sends, or by a thread on CPU `thread_on`.
    pub(super) fn kernel_xdp(thread_on: Option<usize>) -> Result<Self, String> {
        let mut rig = Rig::kernel(true)?;
        let Some((ns, name)) = rig.veth.as_ref().map(|veth| &veth.server) else { return Ok(rig) };
        rig.program = Some(ns.run(|| let_pass(name)).map_err(text)??);
        if let Some(cpu) = thread_on {
            let thread = || {
                netlink::set_threaded(name, true)?;
                netlink::pin_napi_threads(name, cpu)
            };
            ns.run(thread).map_err(text)?.map_err(text)?;
            rig.napi_threads = kernel_threads(&format!("napi/{name}-"));
        }
        Ok(rig)
    }

    /// From now on the client's thread polls the NAPI instance at its end itself, whenever it waits: what
    /// the server sends costs the server no softirq of the client's, as between two machines. Runs of
    /// segments do not leave the server uncut.
    pub(super) fn poll_client_inline(&mut self) -> Result<(), String> {
        let Some(veth) = &self.veth else { return Ok(()) };
        let ((server, near), (ns, far)) = (&veth.server, &veth.client);
        server.run(|| netlink::set_offload(near, Offload::Tso, false)).map_err(text)?.map_err(text)?;
        ns.run(|| netlink::set_offload(far, Offload::Gro, true)).map_err(text)?.map_err(text)?;
        let napi = InlineNapi::new(ns, (server, near), INLINE_TIMEOUT).map_err(text)?;
        if let Ends::Xdp { client, .. } | Ends::Kernel { client, .. } = &mut self.ends {
            client.polls(napi);
        }
        Ok(())
    }

    /// A flood of `rate` SYNs a second to the server.
    pub(super) fn flood(&self, rate: u64) -> Result<Flood, String> {
        match (&self.to_server, &self.veth) {
            (Some(lane), _) => Ok(Flood::on_wire(lane, MACS[0], rate)),
            (None, Some(veth)) => {
                let (ns, name) = &veth.client;
                Flood::by_interface(ns, name, Veth::mac(&veth.server)?, rate)
            }
            (None, None) => Err("there is no wire".into()),
        }
    }

    /// Packets so far that found no room in the ring of the server's NIC, of two stacks.
    pub(super) fn refused(&self) -> Option<usize> {
        Some(self.to_server.as_ref()?.refused.load(Ordering::Relaxed))
    }

    /// The server's stack, if it is softnet's.
    pub(in crate::bench) fn server_stack(&self) -> Option<&Stack> {
        self.stacks.last()
    }

    /// Ids of the threads that serve: `application`, a stack's, and those of the kernel that receive.
    pub(in crate::bench) fn server_threads(&self, application: i32) -> Vec<i32> {
        let mut threads = server_threads(self.server_stack(), application);
        threads.extend(self.napi_threads.iter().map(|tid| *tid as i32));
        threads
    }
}
