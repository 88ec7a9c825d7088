//! Multicast of IPv4 where there is more than one device: which of them is meant if the socket does not say.

use std::net::Ipv4Addr;

use softnet::config::InterfaceAddr;
use softnet::net::UdpSocket;

use super::frames::{own, own_mac};
use super::frames6::own6;
use super::scope::errno;
use super::world::{Lane, Setup, until};

const GROUP: Ipv4Addr = Ipv4Addr::new(239, 1, 2, 3);
const ANY: Ipv4Addr = Ipv4Addr::UNSPECIFIED;

/// The port by which the next datagram to the group leaves.
fn leaves_by(lanes: &mut [Lane]) -> usize {
    let mut by = None;
    until("it is sent", || {
        for lane in &mut *lanes {
            let port = lane.port;
            lane.receive(|frame| {
                if frame[..3] == [1, 0, 0x5e] {
                    assert_eq!((&frame[6..12], by.replace(port)), (&own_mac(port)[..], None));
                }
            });
        }
        by.is_some()
    });
    by.unwrap()
}

/// As the kernel's `ip_mc_leave_group`.
#[test]
fn a_membership_on_any_device_is_left_without_naming_it() {
    let (world, lanes) = Setup { ports: &[1, 1], workers: 1, known: true, ..Setup::default() }.start();
    let socket = UdpSocket::bind(&world.handle(), (ANY, 7)).unwrap();
    socket.join_multicast_v4(&GROUP, &own(1)).unwrap();
    socket.leave_multicast_v4(&GROUP, &ANY).unwrap();
    assert_eq!(errno(socket.leave_multicast_v4(&GROUP, &ANY)), Some(99), "EADDRNOTAVAIL");
    // So it can be joined again.
    socket.join_multicast_v4(&GROUP, &own(1)).unwrap();
    drop(socket);
    world.end(lanes);
}

#[test]
fn a_choice_of_device_is_undone() {
    let (world, mut lanes) = Setup { ports: &[1, 1], workers: 1, known: true, ..Setup::default() }.start();
    let socket = UdpSocket::bind(&world.handle(), (own(1), 7)).unwrap();
    for (chosen, port) in [(None, 1), (Some(own(0)), 0), (Some(ANY), 1)] {
        chosen.iter().for_each(|own| socket.set_multicast_if_v4(own).unwrap());
        socket.send_to(b"to all", (GROUP, 9)).unwrap();
        assert_eq!(leaves_by(&mut lanes), port, "{chosen:?}");
    }
    drop(socket);
    world.end(lanes);
}

#[test]
fn the_first_device_is_one_that_speaks_ipv4() {
    let setup = Setup { ports: &[1, 1], workers: 1, known: false, ..Setup::default() };
    let (world, mut lanes) = setup.start_with(|config| {
        config.devices[0].addresses = vec![InterfaceAddr::new(own6(0), 64).unwrap()];
        config.routes.clear();
    });
    let socket = UdpSocket::bind(&world.handle(), (ANY, 7)).unwrap();
    socket.join_multicast_v4(&GROUP, &ANY).unwrap();
    socket.send_to(b"to all", (GROUP, 7)).unwrap();
    assert_eq!(leaves_by(&mut lanes), 1);
    assert_eq!(socket.recv(&mut [0; 64]).unwrap(), 6, "it is a member where it sends");
    drop(socket);
    world.end(lanes);
}
