//! Link-local addresses and groups of IPv6: softnet's sockets, and kernels at the other ends of two wires.

use std::io::ErrorKind;
use std::net::{Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket as KernelSocket};
use std::time::Duration;

use softnet::net::UdpSocket;
use softnet_core::ip::v6::addr::{ALL_NODES, link_local};
use softnet_dev::netlink::Netlink;
use softnet_dev::netns::NetNs;

use super::hosts::Icmp;
use super::world::{World, host6, interface, softnet6, until};

const RETRY: Duration = Duration::from_millis(200);
const LINK: Ipv6Addr = Ipv6Addr::new(0xff12, 0x1234, 0, 0, 0, 0, 0, 0x77);
const SITE: Ipv6Addr = Ipv6Addr::new(0xff05, 0, 0, 0, 0, 0, 0, 0x77);

fn payload(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + len) as u8).collect()
}

fn on(addr: Ipv6Addr, port: u16, index: u32) -> SocketAddr {
    SocketAddrV6::new(addr, port, 0, index).into()
}

/// An end of a wire: its link-local address, and what the kernel there calls it.
fn end(ns: &NetNs, name: &str) -> (Ipv6Addr, u32) {
    let link = ns.run(|| Netlink::new().unwrap().existing_link(name).unwrap()).unwrap();
    (link_local(link.mac), link.index)
}

/// A socket of the kernel's.
fn kernel_socket(ns: &NetNs, port: u16) -> KernelSocket {
    let socket = ns.run(|| KernelSocket::bind((Ipv6Addr::UNSPECIFIED, port)).unwrap()).unwrap();
    socket.set_read_timeout(Some(RETRY)).unwrap();
    socket
}

/// A socket of softnet's.
fn socket(world: &World, addr: impl Into<SocketAddr>) -> UdpSocket {
    let socket = UdpSocket::bind(&world.handle(), addr.into()).unwrap();
    socket.set_read_timeout(Some(RETRY)).unwrap();
    socket
}

#[test]
fn link_local_addresses_are_spoken_to_and_from() {
    let Some(mut world) = World::dual(2) else { return };
    world.start_with(world.config_dual());
    let _echoes = world.echoes();
    let any = socket(&world, (Ipv6Addr::UNSPECIFIED, 7));
    let mut buffer = vec![0; 1 << 16];
    for i in 0..2 {
        let index = world.handle().if_nametoindex(&interface(i)).unwrap();
        let ((ours, _), (theirs, eth0)) = (end(&world.middle, &interface(i)), end(&world.hosts[i], "eth0"));
        let icmp = Icmp::v6(&world.hosts[i]);
        until("a ping", || {
            let reply = icmp.ping_on(ours, eth0, 64, b"are you there?");
            icmp.receive(|message| message.from == ours && message.kind == (129, 0))
                .is_some_and(|message| message.bytes == reply)
        });
        // Until the kernel has made sure that no other host has it, it does not have it either.
        let mut client = None;
        until("the host has its address", || {
            client = world.hosts[i].run(|| KernelSocket::bind(on(theirs, 0, eth0)).ok()).unwrap();
            client.is_some()
        });
        let client = client.unwrap();
        client.set_read_timeout(Some(RETRY)).unwrap();
        let bound = socket(&world, on(ours, 0, index));
        for len in [0, 1, 1452, 1453, 20_000] {
            until("softnet answers", || {
                let _ = client.send_to(&payload(len), on(ours, 7, eth0));
                let Ok((n, from)) = any.recv_from(&mut buffer) else { return false };
                assert_eq!(from, on(theirs, client.local_addr().unwrap().port(), index));
                assert!(buffer[..n] == payload(len));
                any.send_to(&buffer[..n], from).unwrap();
                client.recv_from(&mut buffer).is_ok_and(|(n, from)| {
                    assert!(buffer[..n] == payload(len) && from == on(ours, 7, eth0));
                    true
                })
            });
            // The other way round, from the address there, which says the link.
            until("the kernel answers", || {
                let _ = bound.send_to(&payload(len), on(theirs, 7, 0));
                bound.recv_from(&mut buffer).is_ok_and(|(n, from)| {
                    assert!(buffer[..n] == payload(len) && from == on(theirs, 7, index));
                    true
                })
            });
        }
        bound.connect(on(theirs, 9, index)).unwrap();
        let refused = |kind| kind == ErrorKind::ConnectionRefused;
        until("the kernel refuses", || {
            let sent = bound.send(b"anybody there?");
            sent.is_err_and(|e| refused(e.kind()))
                || bound.recv(&mut [0; 9]).is_err_and(|e| refused(e.kind()))
        });
        client.connect(on(ours, 9, eth0)).unwrap();
        until("softnet refuses", || {
            let _ = client.send(b"anybody there?");
            client.recv(&mut [0; 9]).is_err_and(|error| refused(error.kind()))
        });
        // No host has that address on this link.
        let silent = socket(&world, (Ipv6Addr::UNSPECIFIED, 0));
        silent.connect(on(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0x77), 9, index)).unwrap();
        assert_eq!(silent.local_addr().unwrap().ip(), ours);
        until("the host is unreachable", || {
            let sent = silent.send(b"anybody there?");
            sent.is_err_and(|error| error.kind() == ErrorKind::HostUnreachable)
        });
    }
    drop(any);
    world.end();
}

/// A host on either link has the same address, and the same port.
#[test]
fn one_address_on_two_links_is_two_hosts() {
    const BOTH: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0x99);
    let Some(mut world) = World::dual(2) else { return };
    world.start_with(world.config_dual());
    let sockets = [0, 1].map(|i| {
        let add = || Netlink::new().unwrap().add_address("eth0", BOTH, 64).unwrap();
        world.hosts[i].run(add).unwrap();
        kernel_socket(&world.hosts[i], 7)
    });
    let socket = socket(&world, (Ipv6Addr::UNSPECIFIED, 7));
    let mut buffer = [0; 64];
    for round in 0..10u8 {
        for (kernel, index) in sockets.iter().zip(1..) {
            until("the host hears", || {
                let _ = socket.send_to(&[round, index as u8], on(BOTH, 7, index));
                kernel.recv_from(&mut buffer).is_ok_and(|(n, from)| {
                    assert_eq!(buffer[1], index as u8);
                    let _ = kernel.send_to(&buffer[..n], from);
                    buffer[0] == round
                })
            });
            until("and is heard", || {
                socket.recv_from(&mut buffer).is_ok_and(|(_, from)| {
                    let SocketAddr::V6(from) = from else { panic!("{from}") };
                    assert_eq!((buffer[1], from.scope_id()), (index as u8, index));
                    buffer[0] == round
                })
            });
        }
    }
    drop(socket);
    world.end();
}

#[test]
fn groups_are_joined_and_sent_to() {
    let Some(mut world) = World::dual(2) else { return };
    world.start_with(world.config_dual());
    let mut buffer = vec![0; 1 << 16];
    for i in 0..2 {
        let index = world.handle().if_nametoindex(&interface(i)).unwrap();
        let ((ours, _), (theirs, eth0)) = (end(&world.middle, &interface(i)), end(&world.hosts[i], "eth0"));
        let kernel = kernel_socket(&world.hosts[i], 7);
        let member = socket(&world, (Ipv6Addr::UNSPECIFIED, 7));
        member.set_multicast_loop_v6(false).unwrap();
        let other_link = socket(&world, on(LINK, 8, 3 - index));
        other_link.join_multicast_v6(&LINK, 3 - index).unwrap();
        // All nodes: what they are told by UDP, as long as a socket has joined it here.
        for (group, own) in [(LINK, ours), (SITE, softnet6(i)), (ALL_NODES, ours)] {
            kernel.join_multicast_v6(&group, eth0).unwrap();
            member.join_multicast_v6(&group, index).unwrap();
            // The last does not fit a packet.
            for len in [0, 1, 1452, 5000] {
                until("softnet's member gets it", || {
                    let _ = kernel.send_to(&payload(len), on(group, 7, eth0));
                    let _ = kernel.send_to(b"by the other link", on(group, 8, eth0));
                    member.recv_from(&mut buffer).is_ok_and(|(n, from)| {
                        let of_host = on(theirs, 7, index) == from || on(host6(i), 7, 0) == from;
                        assert!(of_host, "{from}");
                        buffer[..n] == payload(len)
                    })
                });
                // The kernel hears itself, too.
                until("the kernel's member gets it", || {
                    member.send_to(&payload(len), on(group, 7, index)).unwrap();
                    let mut got = || kernel.recv_from(&mut buffer).ok().map(|(n, from)| (n, from.ip()));
                    std::iter::from_fn(&mut got).any(|(n, from)| from == own && n == len)
                });
            }
            member.leave_multicast_v6(&group, 0).unwrap();
            kernel.leave_multicast_v6(&group, eth0).unwrap();
        }
        assert!(!other_link.readiness().readable);
    }
    world.end();
}

/// A socket that hears nothing more after it left is no member for the kernel either, which speaks MLD for softnet.
#[test]
fn a_group_that_was_left_is_left_by_the_kernel() {
    let Some(mut world) = World::dual(1) else { return };
    world.start_with(world.config_dual());
    let joined = || {
        let read = || std::fs::read_to_string("/proc/thread-self/net/igmp6").unwrap();
        world.middle.run(read).unwrap().contains(&format!("{:032x}", LINK.to_bits()))
    };
    let sockets = [7, 8].map(|port| socket(&world, (Ipv6Addr::UNSPECIFIED, port)));
    sockets.iter().for_each(|socket| socket.join_multicast_v6(&LINK, 1).unwrap());
    assert!(joined());
    sockets[0].leave_multicast_v6(&LINK, 1).unwrap();
    assert!(joined());
    drop(sockets);
    assert!(!joined());
    world.end();
}
