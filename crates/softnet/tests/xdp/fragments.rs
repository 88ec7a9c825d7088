//! Fragments to softnet and through it, of the kernel's making and of others'.

use std::cell::Cell;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, ipproto, sendto, socket_with};
use softnet_core::ip::checksum;
use softnet_core::ip::v4::header::{Ipv4Header, protocol};
use softnet_dev::netlink::Netlink;
use softnet_dev::netns::NetNs;

use super::hosts::Icmp;
use super::world::{World, host, host6, interface, softnet, softnet6, until};

fn payload(len: usize) -> Vec<u8> {
    (0..len).map(|i| ((i * 7) ^ (i >> 8)) as u8).collect()
}

/// A host's raw socket: sends IPv4 packets as they are, fragments too.
struct Raw {
    socket: OwnedFd,
    from: Ipv4Addr,
    to: Ipv4Addr,
    id: Cell<u16>,
}

impl Raw {
    fn new(ns: &NetNs, from: Ipv4Addr, to: Ipv4Addr) -> Raw {
        let open =
            || socket_with(AddressFamily::INET, SocketType::RAW, SocketFlags::CLOEXEC, Some(ipproto::RAW));
        Raw { socket: ns.run(open).unwrap().unwrap(), from, to, id: Cell::new(1) }
    }

    /// Sends the parts of `message`, an ICMP message of one datagram, that these offsets and ends say, in this order.
    /// Those of the second list have other bytes in them.
    fn send(&self, message: &[u8], parts: &[(usize, usize)], forged: &[(usize, usize)]) {
        self.id.set(self.id.get() + 1);
        let lies = vec![0xee; message.len()];
        let parts =
            parts.iter().map(|part| (part, message)).chain(forged.iter().map(|part| (part, &lies[..])));
        for (&(start, end), bytes) in parts {
            let mut packet = vec![0; 20];
            packet.extend(&bytes[start..end]);
            let total = packet.len() as u16;
            let mut header = Ipv4Header::new_mut(&mut packet).unwrap();
            header.fill(total, self.id.get(), 64, protocol::ICMP, self.from.into(), self.to.into());
            header.set_fragment(false, end < message.len(), (start / 8) as u16);
            header.renew_check();
            let to = SocketAddrV4::new(self.to, 0);
            // What cannot be sent now is sent again with all the rest.
            let _ = sendto(&self.socket, &packet, SendFlags::empty(), &to);
        }
    }
}

/// An echo request, and the reply that it deserves.
fn echo(len: usize) -> [Vec<u8>; 2] {
    [8, 0].map(|kind| {
        let mut message = [&[kind, 0, 0, 0, 0x43, 0x21, 0, 1], &payload(len)[..]].concat();
        let check = checksum::checksum(&message);
        message[2..4].copy_from_slice(&check.to_be_bytes());
        message
    })
}

#[test]
fn pings_of_any_size_are_answered() {
    let Some(mut world) = World::new(2) else { return };
    world.start();
    let icmp = Icmp::new(&world.hosts[0]);
    for len in [1472, 1473, 1480, 1481, 2952, 2953, 8000, 65_506, 65_507] {
        for to in [softnet(0), softnet(1), host(1)] {
            until(&format!("a ping of {to} with {len} bytes"), || {
                let reply = icmp.ping(to, 64, &payload(len));
                let answered = icmp.receive(|message| message.from == to && message.kind == (0, 0));
                answered.is_some_and(|message| message.bytes == reply)
            });
        }
    }
    world.end();
}

#[test]
fn pings_of_any_size_are_answered_over_ipv6() {
    let Some(mut world) = World::dual(2) else { return };
    world.start_with(world.config_dual());
    let icmp = Icmp::v6(&world.hosts[0]);
    for len in [1452, 1453, 2900, 8000, 65_487] {
        for to in [softnet6(0), softnet6(1), host6(1)] {
            until(&format!("a ping of {to} with {len} bytes"), || {
                let reply = icmp.ping(to, 64, &payload(len));
                let answered = icmp.receive(|message| message.from == to && message.kind == (129, 0));
                answered.is_some_and(|message| message.bytes == reply)
            });
        }
    }
    world.end();
}

/// Both ways through a link with a smaller MTU: softnet cuts what comes without don't-fragment.
#[test]
fn packets_are_cut_for_a_smaller_mtu() {
    let Some(mut world) = World::new(2) else { return };
    for (ns, name) in [(&world.middle, interface(1)), (&world.hosts[1], "eth0".into())] {
        ns.run(|| Netlink::new().unwrap().set_mtu(&name, 1400).unwrap()).unwrap();
    }
    world.start();
    let icmp = Icmp::new(&world.hosts[0]);
    let raw = Raw::new(&world.hosts[0], host(0), host(1));
    // One packet of the larger MTU, and a datagram of several.
    for (len, parts) in [(1472, &[(0, 1480)][..]), (4000, &[(0, 1480), (1480, 2960), (2960, 4008)])] {
        let [request, reply] = echo(len);
        until("an echo that was cut", || {
            raw.send(&request, parts, &[]);
            let answered = icmp.receive(|message| message.from == host(1) && message.kind == (0, 0));
            answered.is_some_and(|message| message.bytes == reply)
        });
    }
    let drops = world.view().drops();
    assert!(drops.iter().all(|row| row.reason != "pkt_too_big"), "{drops:?}");
    assert!(world.view().stats().fragments.cut >= 2);
    world.end();
}

#[test]
fn fragments_in_any_order_and_twice_but_none_that_overlap() {
    let Some(mut world) = World::new(2) else { return };
    world.start();
    let icmp = Icmp::new(&world.hosts[0]);
    let raw = Raw::new(&world.hosts[0], host(0), softnet(0));
    let [request, reply] = echo(3001);
    let (a, b, c) = ((0, 1000), (1000, 2000), (2000, 3009));
    let answer = || icmp.receive(|message| message.from == softnet(0) && message.kind == (0, 0));
    for order in [&[a, b, c][..], &[c, b, a], &[b, c, a], &[b, b, c, c, c, b, a]] {
        until(&format!("an echo in the order {order:?}"), || {
            raw.send(&request, order, &[]);
            answer().is_some_and(|message| message.bytes == reply)
        });
    }
    let count = |reason: &str| {
        world.view().drops().iter().filter(|row| row.reason == reason).map(|row| row.packets).sum::<u64>()
    };
    assert!(count("dup_frag") >= 4 && count("frag_overlap") == 0);
    // Across two, within one, in place of one: the datagram is given up, and what is sent to complete it with it.
    for (len, forged) in [(2998, (992, 1008)), (2999, (8, 16)), (3000, b)] {
        let [request, reply] = echo(len);
        let c = (2000, request.len());
        until("an overlap that is refused", || {
            let before = count("frag_overlap");
            raw.send(&request, &[a, b], &[forged, c]);
            let answered = answer().is_some_and(|message| message.bytes == reply);
            let refused = count("frag_overlap") - before;
            assert!(refused < 4 || !answered);
            refused == 4
        });
    }
    // A first part that will not be completed: for half a minute nothing is heard of it, and it is accounted for.
    until("a fragment that is held", || {
        raw.send(&request, &[a], &[]);
        world.view().stats().held > 0
    });
    let fragments = world.view().stats().fragments;
    assert!(fragments.waiting >= 1 && fragments.reassembled >= 4, "{fragments:?}");
    world.end();
}
