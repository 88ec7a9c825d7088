//! Client and server at the two ends of a veth pair. The client is by AF_XDP, whichever stack serves: what its end costs is the same
//! for softnet and the kernel.
//!
//! On veth the sender's CPU runs the receiver's softirq, unless the receiver's NAPI instance has a thread of its own, or is
//! polled by whom it is for.
//! * **The client's end** is polled by the client's thread, inside its own calls, as the queue of a NIC whose interrupt is
//!   masked ([`InlineNapi`](softnet_testkit::InlineNapi)): no response wakes anything, whether it is sent alone or in a
//!   batch, and none of the client's work is the server's.
//! * **The server's end**: what a NIC's driver does there (for softnet XDP and the copy into packet memory, for the kernel
//!   the skb) is done as [`Receive`] says, the same for both.

use std::net::SocketAddr;

use softnet::config::DeviceConfig;
use softnet::driver::Xdp;
use softnet::internals::{Assembly, XdpOpener};
use softnet::{DeviceError, Stack};
use softnet_dev::netlink::{self, NapiKnobs, NetdevFamily, Netlink, Offload};
use softnet_dev::netns::NetNs;
use softnet_dev::sched::{Policy, set_policy_of};
use softnet_testkit::datagrams::{KernelSockets, Stop};

use super::light::Light;
use super::packet::{Ends, Format, PORTS, Request, number};
use super::{Bed, Host, Receive, Side, config, host, text};
use crate::bench::cpu::kernel_threads;
use crate::bench::echo::xdp::{CLIENT, ClientEnd, RING, SERVER, Veth};
use crate::bench::echo::{Client, Sent, Wire};

struct XdpWire {
    end: ClientEnd,
    format: Format,
    /// Number of the server's next request.
    next: u64,
    light: Light,
}

impl Wire for XdpWire {
    fn send(&mut self, first: u64, n: u64, _: u64) -> Result<Sent, String> {
        let XdpWire { end, format, .. } = self;
        let left = end.send(n, |i, buf| format.write(Request::Server((first + i) as u16), buf))?;
        self.next = first + left;
        Ok(Sent { left, lost: 0 })
    }

    fn receive(&mut self, now: u64, answered: &mut Vec<u64>) -> Result<(), String> {
        let XdpWire { end, format, next, light } = self;
        if let Some(number) = light.take_due(now)
            && end.send(1, |_, buf| format.write(Request::Second(number as u16), buf))? == 0
        {
            light.put_back();
        }
        end.receive(|packet| match format.answered(packet) {
            Some(Request::Server(id)) => {
                answered.push(number(id, *next));
                Ok(())
            }
            Some(Request::Second(id)) => light.answered(id, now),
            None => Err(format!("{packet:02x?} came, which is no response to any request")),
        })?;
        light.give_up(now);
        Ok(())
    }

    fn measure(&mut self, begins: Option<u64>) {
        self.light.measure(begins);
    }

    fn is_busy(&self) -> bool {
        self.light.is_busy()
    }
}

fn ends(veth: &Veth) -> Result<Ends, String> {
    Ok(Ends { client: (Veth::mac(&veth.client)?, CLIENT), server: (Veth::mac(&veth.server)?, SERVER) })
}

/// From now on the NAPI instances of an interface are polled by threads of the kernel, which are returned. They preempt
/// whatever else is on `cpu`.
fn poll_by_threads((ns, name): &(NetNs, String), cpu: usize) -> Result<Vec<u32>, String> {
    let poll = || {
        netlink::set_threaded(name, true)?;
        netlink::pin_napi_threads(name, cpu)
    };
    ns.run(poll).map_err(text)?.map_err(text)?;
    let threads = kernel_threads(&format!("napi/{name}-"));
    for thread in &threads {
        // Without the privilege they compete, as softnet's worker does then.
        let _ = set_policy_of(*thread, Policy::Fifo(1));
    }
    Ok(threads)
}

fn bed(veth: Veth, host: Host, receive: Receive, format: Format) -> Result<Bed, String> {
    let threads = match receive {
        Receive::Server { cpu } => poll_by_threads(&veth.server, cpu)?,
        Receive::Client => Vec::new(),
    };
    let (light, second) = Light::new();
    let mut end = ClientEnd::open(&veth)?;
    end.poll_inline(&veth)?;
    let wire = XdpWire { end, format, next: 0, light };
    let side = Side { second, host, veth: Some(veth), threads };
    Ok(Bed { client: Client::with_lanes(Box::new(wire), PORTS), side })
}

pub(super) fn softnet(cpu: usize, policy: Option<Policy>, receive: Receive) -> Result<Bed, String> {
    let veth = Veth::new()?;
    let ends = ends(&veth)?;
    let xdp = Xdp::default().with(|xdp| xdp.ring = RING).into();
    let device = DeviceConfig::new(&veth.server.1).with(|device| {
        device.driver = xdp;
        device.arp_notify = false;
        device.dad = false;
    });
    let config = config(cpu, policy, device, &ends)?;
    let run = || {
        let opener = |region: &_| XdpOpener::new(region, 1).map_err(DeviceError::from);
        Stack::run(Assembly::new(config, vec![], opener).map_err(text)?).map_err(text)
    };
    let stack = veth.server.0.run(run).map_err(text)??;
    bed(veth, host(stack)?, receive, Format::new(ends, true))
}

pub(super) fn kernel(receive: Receive) -> Result<Bed, String> {
    let veth = Veth::new()?;
    let ends = ends(&veth)?;
    let ((near, name), (far, peer)) = (&veth.server, &veth.client);
    let addresses = || {
        let mut netlink = Netlink::new()?;
        netlink.add_address(name, SERVER, 24)?;
        netlink.add_neighbour(name, CLIENT, ends.client.0)
    };
    near.run(addresses).map_err(text)?.map_err(text)?;
    if let Receive::Server { .. } = receive {
        // Frames to a veth take the way through its NAPI only if it merges segments and its peer does not.
        far.run(|| netlink::set_offload(peer, Offload::Tso, false)).map_err(text)?.map_err(text)?;
        near.run(|| netlink::set_offload(name, Offload::Gro, true)).map_err(text)?.map_err(text)?;
    }
    bed(veth, Host::Kernel, receive, Format::new(ends, false))
}

/// Sets the knobs of the kernel's NAPI instance at the server's end.
pub(super) fn set_knobs(veth: &Veth, knobs: NapiKnobs) -> Result<(), String> {
    let (ns, name) = &veth.server;
    let set = || {
        let ifindex = Netlink::new()?.existing_link(name)?.index;
        let mut family = NetdevFamily::new()?;
        let napis = family.napis(ifindex)?;
        napis.iter().try_for_each(|napi| family.set_napi(napi.id, knobs))
    };
    ns.run(set).map_err(text)?.map_err(text)
}

/// The kernel's sockets at the server's end.
pub(super) fn kernel_sockets(
    veth: &Veth,
    addresses: &[SocketAddr],
    batch: usize,
    stop: &Stop,
) -> Result<KernelSockets, String> {
    veth.server.0.run(|| KernelSockets::bound(addresses, batch, stop)).map_err(text)?.map_err(text)
}
