//! The load over AF_XDP: kernel sockets in namespaces of their own, on veth pairs, with softnet between them.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, UdpSocket};
use std::time::Duration;

use rustix::net::sockopt::set_socket_recv_buffer_size_force;
use softnet::{Introspect, Stack};
use softnet_dev::netlink::Netlink;
use softnet_dev::netns::NetNs;
use softnet_testkit::{Sink as PacketFilter, SinkFilter};

use super::load::{FLOWS, Packet, Sink, Source, Wires};
use super::mem::books;
use crate::bench::{proc_net, text};
use crate::demo::topology::{self, PORTS, SERVER, Taken, Topology};

const PORT: u16 = 9;

/// See the [module](self). Field order matters: the stack gives its interfaces back before they vanish.
pub(super) struct Xdp {
    stack: Stack,
    _in_order: PacketFilter,
    topology: Topology,
}

/// A socket for each flow.
pub(super) struct Sockets(Vec<UdpSocket>);

/// What a veth without an XDP program receives it puts on the backlog of the CPU that it was sent on, and there are as many
/// of these as CPUs: packets of threads that take turns, each on a CPU of its own, pass each other there. With a
/// program, here one that takes nothing of the load, they go through one ring.
fn keep_order() -> Result<PacketFilter, String> {
    let link = Netlink::new().and_then(|mut netlink| netlink.existing_link("eth0")).map_err(text)?;
    PacketFilter::attach(link.index, SinkFilter::UdpPort(PORT + 1)).map_err(text)
}

impl Xdp {
    pub(super) fn start() -> Result<Xdp, String> {
        let topology = Topology::build(Taken::Xdp).map_err(|e| format!("making the network: {e}"))?;
        let in_order = topology.server.run(keep_order).map_err(text)??;
        let config = topology::config(Taken::Xdp).map_err(|e| format!("{e:?}"))?;
        let stack = topology.router.run(|| Stack::start(config)).map_err(text)?.map_err(text)?;
        Ok(Xdp { stack, _in_order: in_order, topology })
    }
}

impl Wires for Xdp {
    type Source = Sockets;
    type Sink = UdpSocket;

    fn view(&self) -> &Introspect {
        self.stack.view()
    }

    fn devices(&self) -> [&'static str; 2] {
        PORTS.map(|port| port.interface)
    }

    fn lost(&self) -> Result<u64, String> {
        let counters =
            |ns: &NetNs, name: &str| ns.run(|| Netlink::new()?.counters(name)).map_err(text)?.map_err(text);
        let (router, server) = (&self.topology.router, &self.topology.server);
        let snmp = server.run(|| std::fs::read_to_string("/proc/thread-self/net/snmp")).map_err(text)?;
        Ok(counters(router, PORTS[0].interface)?.rx_dropped
            + counters(router, PORTS[1].interface)?.tx_dropped
            + counters(server, "eth0")?.rx_dropped
            + self.view().stats().dropped
            + full_buffers(&snmp.map_err(text)?))
    }

    fn ends(&mut self) -> Result<(Sockets, UdpSocket), String> {
        let sockets = || -> std::io::Result<Vec<UdpSocket>> {
            (0..FLOWS)
                .map(|_| {
                    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
                    socket.connect((SERVER, PORT))?;
                    Ok(socket)
                })
                .collect()
        };
        let source = self.topology.client.run(sockets).map_err(text)?.map_err(text)?;
        let sink =
            self.topology.server.run(|| UdpSocket::bind((SERVER, PORT))).map_err(text)?.map_err(text)?;
        // So that a reader that is late loses nothing.
        set_socket_recv_buffer_size_force(&sink, 16 << 20).map_err(text)?;
        find_neighbours(&source[0], &sink)?;
        sink.set_nonblocking(true).map_err(text)?;
        Ok((Sockets(source), sink))
    }

    fn end(self, _: Sockets, _: UdpSocket) -> Result<(), String> {
        let view = self.stack.view().clone();
        drop(self.stack);
        books(&view)
    }
}

/// One packet until it arrives, so that all on the way know each other: the kernel does not count in one place what it drops
/// for want of a neighbour's address.
fn find_neighbours(source: &UdpSocket, sink: &UdpSocket) -> Result<(), String> {
    sink.set_read_timeout(Some(Duration::from_millis(200))).map_err(text)?;
    let arrives = (0..50).any(|_| source.send(&[0]).is_ok() && sink.recv(&mut [0; 64]).is_ok());
    // Those before it may come after it.
    while arrives && sink.recv(&mut [0; 64]).is_ok() {}
    arrives.then_some(()).ok_or_else(|| "no packet passes".into())
}

/// Datagrams for which a socket's buffer had no room, by `/proc/net/snmp`.
fn full_buffers(snmp: &str) -> u64 {
    proc_net::sum(snmp, "Udp", &["RcvbufErrors"]).unwrap_or(0)
}

impl Source for Sockets {
    fn send(&mut self, packets: &[Packet; FLOWS]) -> Result<usize, String> {
        // What the kernel has no room for was not sent.
        let sent =
            self.0.iter().zip(packets).filter(|(socket, packet)| socket.send(&packet.to_bytes()).is_ok());
        Ok(sent.count())
    }
}

impl Sink for UdpSocket {
    fn receive(&mut self, each: &mut dyn FnMut(Packet)) -> Result<usize, String> {
        let mut bytes = [0; 64];
        for n in 0..64 {
            match self.recv(&mut bytes) {
                Ok(len) => each(Packet::from_bytes(&bytes[..len]).ok_or("something else came out")?),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(n),
                Err(error) => return Err(text(error)),
            }
        }
        Ok(64)
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn reads_what_the_kernel_writes() {
        let snmp =
            "Ip: Forwarding\nIp: 1\nUdp: InDatagrams RcvbufErrors SndbufErrors\nUdp: 5 7 9\nUdpLite: A\n";
        assert_eq!(super::full_buffers(snmp), 7);
        assert_eq!(super::full_buffers("nonsense"), 0);
    }
}
