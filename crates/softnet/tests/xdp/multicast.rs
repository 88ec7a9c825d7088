//! Multicast: groups that softnet's sockets have joined, and kernels at the other ends of the wires.
//!
//! All on the wire to host 1, which has one queue: what was sent later comes later.

use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket as KernelSocket};
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, eth, ipproto, recv, sendto, socket_with,
};
use softnet::net::UdpSocket;
use softnet_core::ip::checksum;
use softnet_dev::netns::NetNs;

use super::world::{World, host, kernel, softnet, until};

const GROUP: Ipv4Addr = Ipv4Addr::new(239, 1, 2, 3);
const OTHER: Ipv4Addr = Ipv4Addr::new(239, 1, 2, 4);
/// What is to this one comes, and all before it has come then.
const LAST: Ipv4Addr = Ipv4Addr::new(239, 255, 255, 255);
const PORT: u16 = 7;

/// A socket of softnet's that is in `group` on the wire to host 1.
fn member(world: &World, group: Ipv4Addr) -> UdpSocket {
    let socket = UdpSocket::builder(&world.handle()).reuse_port(true).bind(("0.0.0.0", PORT)).unwrap();
    socket.set_nonblocking(true).unwrap();
    socket.join_multicast_v4(&group, &softnet(1)).unwrap();
    socket
}

/// A socket of the kernel's, of host 1.
fn kernel_socket(ns: &NetNs, port: u16) -> KernelSocket {
    let socket = ns.run(|| KernelSocket::bind((Ipv4Addr::UNSPECIFIED, port)).unwrap()).unwrap();
    socket.set_nonblocking(true).unwrap();
    socket
}

/// Whether the kernel in the middle is in `group`.
fn kernel_is_member(world: &World, group: Ipv4Addr) -> bool {
    let read = || std::fs::read_to_string("/proc/thread-self/net/igmp").unwrap();
    let name = format!("{:08X}", u32::from_ne_bytes(group.octets()));
    world.middle.run(read).unwrap().contains(&name)
}

/// Everything that waits for `socket`: each time the payload, which must be of host 1.
fn waiting(socket: &UdpSocket) -> Vec<Vec<u8>> {
    let mut buffer = vec![0; 1 << 16];
    let next = || {
        let (n, from) = socket.recv_from(&mut buffer).ok()?;
        assert_eq!(from.ip(), host(1));
        Some(buffer[..n].to_vec())
    };
    std::iter::from_fn(next).collect()
}

/// Sends a datagram to each of `groups`, then one to the last, and waits until that is there.
fn send(sender: &KernelSocket, last: &UdpSocket, groups: &[Ipv4Addr]) {
    for group in groups.iter().chain([&LAST]) {
        sender.send_to(group.to_string().as_bytes(), (*group, PORT)).unwrap();
    }
    until("the last", || !waiting(last).is_empty());
}

#[test]
fn members_get_what_the_kernel_sends_as_long_as_they_are_in() {
    let Some(mut world) = World::new(2) else { return };
    world.start();
    let sender = kernel_socket(&world.hosts[1], 0);
    let last = member(&world, LAST);
    let payload = GROUP.to_string().into_bytes();
    assert!(!kernel_is_member(&world, GROUP));
    let (a, b) = (member(&world, GROUP), member(&world, GROUP));
    assert!(kernel_is_member(&world, GROUP));
    let groups = |world: &World| world.view().devs().swap_remove(1).groups;
    assert_eq!(groups(&world), [(GROUP.into(), 2), (LAST.into(), 1)].into());
    for _ in 0..3 {
        send(&sender, &last, &[OTHER, GROUP]);
        assert_eq!((waiting(&a), waiting(&b)), (vec![payload.clone()], vec![payload.clone()]));
    }
    // Long ones are put together.
    let long: Vec<u8> = (0..5000).map(|i| (i * 7) as u8).collect();
    sender.send_to(&long, (GROUP, PORT)).unwrap();
    send(&sender, &last, &[]);
    assert_eq!((waiting(&a), waiting(&b)), (vec![long.clone()], vec![long]));
    a.leave_multicast_v4(&GROUP, &softnet(1)).unwrap();
    send(&sender, &last, &[GROUP]);
    assert_eq!((waiting(&a), waiting(&b)), (vec![], vec![payload]));
    assert!(kernel_is_member(&world, GROUP));
    // A socket that is closed leaves its groups; and what has no members does not even come to softnet.
    drop(b);
    assert!(!kernel_is_member(&world, GROUP) && kernel_is_member(&world, LAST));
    assert_eq!(groups(&world), [(LAST.into(), 1)].into());
    let received = |world: &World| world.view().devs()[1].rx_packets;
    let before = received(&world);
    send(&sender, &last, &[GROUP, OTHER]);
    assert_eq!((waiting(&a).len(), received(&world)), (0, before + 1));
    // The stack's end ends all, whichever sockets are open still.
    let middle = world.middle.try_clone().unwrap();
    world.end();
    let igmp = middle.run(|| std::fs::read_to_string("/proc/thread-self/net/igmp").unwrap()).unwrap();
    assert!(!igmp.contains("FFFFFFEF"), "{igmp}");
    drop((a, last));
}

#[test]
fn memberships_outlive_their_interface() {
    let Some(mut world) = World::new(2) else { return };
    world.start();
    let (stays, leaves) = (member(&world, GROUP), member(&world, OTHER));
    world.unplug(1);
    let link = |world: &World| world.view().devs().swap_remove(1).link;
    until("the interface is gone", || link(&world) == "gone");
    drop(leaves);
    assert_eq!(world.view().devs()[1].groups, [(GROUP.into(), 1)].into());
    world.plug(1);
    until("the interface is back", || link(&world) == "up");
    until("it is in the group again", || kernel_is_member(&world, GROUP));
    assert!(!kernel_is_member(&world, OTHER));
    let sender = kernel_socket(&world.hosts[1], 0);
    until("a datagram", || {
        let _ = sender.send_to(b"again", (GROUP, PORT));
        waiting(&stays).contains(&b"again".to_vec())
    });
    drop(stays);
    world.end();
}

/// Sees all that host 1 sends and receives.
struct Tap(OwnedFd);

impl Tap {
    fn new(ns: &NetNs) -> Self {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let open = || socket_with(AddressFamily::PACKET, SocketType::RAW, flags, Some(eth::ALL));
        Tap(ns.run(open).unwrap().unwrap())
    }

    /// Whether an IGMP message of this type about `group` has passed (RFC 2236, RFC 3376 section 4).
    fn saw(&self, kind: u8, group: Ipv4Addr) -> bool {
        let mut frame = [0; 2048];
        while let Ok((_, n)) = recv(&self.0, &mut frame, RecvFlags::empty()) {
            let Some([0x08, 0x00, first]) = frame[..n].get(12..15) else { continue };
            let message = frame[..n].get(14 + usize::from(first & 15) * 4..).unwrap_or_default();
            let about = message.windows(4).any(|word| word == group.octets());
            if frame[23] == 2 && message.first() == Some(&kind) && about {
                return true;
            }
        }
        false
    }
}

const QUERY: u8 = 0x11;
const REPORT_V2: u8 = 0x16;
const LEAVE_V2: u8 = 0x17;
const REPORT_V3: u8 = 0x22;

/// The kernel speaks IGMP for softnet: says that there is a member, and says so again when it is asked, by a query to the very
/// group whose datagrams are softnet's.
#[test]
fn routers_and_switches_hear_of_members() {
    let Some(mut world) = World::new(2) else { return };
    world.start();
    let tap = Tap::new(&world.hosts[1]);
    let socket = member(&world, GROUP);
    until("a report", || tap.saw(REPORT_V3, GROUP));
    let open =
        || socket_with(AddressFamily::INET, SocketType::RAW, SocketFlags::CLOEXEC, Some(ipproto::IGMP));
    let router = world.hosts[1].run(open).unwrap().unwrap();
    // To be answered within a tenth of a second.
    let mut query = [&[QUERY, 1, 0, 0][..], &GROUP.octets()].concat();
    let check = checksum::checksum(&query);
    query[2..4].copy_from_slice(&check.to_be_bytes());
    until("an answer", || {
        sendto(&router, &query, SendFlags::empty(), &SocketAddrV4::new(GROUP, 0)).unwrap();
        std::thread::sleep(Duration::from_millis(20));
        tap.saw(REPORT_V2, GROUP)
    });
    drop(socket);
    until("a farewell", || tap.saw(LEAVE_V2, GROUP));
    world.end();
}

/// A datagram is softnet's or the kernel's, by the interface that it comes by.
#[test]
fn the_kernels_own_members_get_what_softnet_does_not() {
    let Some(mut world) = World::new(2) else { return };
    world.start();
    let own = kernel_socket(&world.middle, PORT);
    own.join_multicast_v4(&GROUP, &kernel(1)).unwrap();
    let sender = kernel_socket(&world.hosts[1], 0);
    let got = || own.recv(&mut [0; 64]).is_ok();
    let comes = || {
        sender.send_to(b"whose?", (GROUP, PORT)).unwrap();
        got()
    };
    until("a datagram to the kernel", comes);
    let (ours, last) = (member(&world, GROUP), member(&world, LAST));
    send(&sender, &last, &[]);
    while got() {}
    send(&sender, &last, &[GROUP]);
    assert_eq!((waiting(&ours).len(), got()), (1, false));
    drop(ours);
    assert!(kernel_is_member(&world, GROUP), "as it was before");
    until("a datagram to the kernel", comes);
    drop(last);
    world.end();
}

#[test]
fn kernels_get_what_softnet_sends() {
    let Some(mut world) = World::new(2) else { return };
    world.start();
    let member = kernel_socket(&world.hosts[1], PORT);
    member.join_multicast_v4(&GROUP, &host(1)).unwrap();
    let socket = UdpSocket::bind(&world.handle(), "0.0.0.0:0").unwrap();
    socket.set_multicast_if_v4(&softnet(1)).unwrap();
    let mut buffer = [0; 64];
    until("a datagram", || {
        for group in [OTHER, GROUP] {
            socket.send_to(group.to_string().as_bytes(), (group, PORT)).unwrap();
        }
        std::thread::sleep(Duration::from_millis(1));
        member.recv_from(&mut buffer).is_ok_and(|(n, from)| {
            assert_eq!((&buffer[..n], from.ip()), (GROUP.to_string().as_bytes(), softnet(1).into()));
            true
        })
    });
    drop(socket);
    world.end();
}
