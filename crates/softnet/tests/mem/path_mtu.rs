//! Paths that take less than their first link: which reports of that are believed, and which flows they concern.

use std::net::{Ipv4Addr, SocketAddr};

use softnet::net::UdpSocket;
use softnet_core::ip::checksum;

use super::frames::{ip, own};
use super::frames6::{host6, own6, too_big6};
use super::scope::{next6, start6};
use super::udp::{payload, sent, start};
use super::world::{Lane, World, until};

/// A host far away, by way of the one at port 0.
fn far(i: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 100, 0, i)
}

/// The IPv4 frames that softnet sends by `lane`, until there are `n`.
fn frames(lane: &mut Lane, n: usize) -> Vec<Vec<u8>> {
    let mut got: Vec<Vec<u8>> = Vec::new();
    until("frames are sent", || {
        lane.receive(|frame| got.extend((frame[12..14] == [8, 0]).then(|| frame.to_vec())));
        got.len() >= n
    });
    assert_eq!(got.len(), n);
    got
}

/// What a router says of the frame that was sent: that it takes only so many bytes.
fn too_big(frame: &[u8], mtu: u16) -> Vec<u8> {
    let mut message = [&[3, 4, 0, 0, 0, 0][..], &mtu.to_be_bytes(), &frame[14..14 + 28]].concat();
    let check = !checksum::sum(&message);
    message[2..4].copy_from_slice(&check.to_be_bytes());
    ip(0, own(0), 64, 1, &message)
}

/// How many paths are known to take less, and how many reports of one were not believed.
fn known(world: &World) -> (u64, u64) {
    let stats = world.view.stats();
    (stats.path_mtus, stats.pmtu_ignored)
}

/// Of one destination's path it is known that it takes less: what goes to others is as long as
/// before, leaves in batches, and does not come by the slow path.
#[test]
fn one_path_s_mtu_is_no_business_of_others() {
    let (world, mut lanes, handle) = start(&[1], true);
    let socket = UdpSocket::bind(&handle, (own(0), 7)).unwrap();
    let to = |i: u8| SocketAddr::from((far(i), 999));
    let long = payload(1400);
    socket.send_to(&long, to(1)).unwrap();
    let whole = frames(&mut lanes[0], 1).remove(0);
    assert_eq!(lanes[0].send(&[too_big(&whole, 1000)]), 1);
    world.settle(1);
    assert_eq!(known(&world), (1, 0));
    let entered = || world.view.stats().slow_path;
    let before = entered();
    for round in 0..4u8 {
        let messages: Vec<_> = (0..50).map(|i| (&long[..], Some(to(2 + i + 50 * round)))).collect();
        assert_eq!(socket.send_batch(&messages).unwrap(), 50);
        let sent: Vec<_> = frames(&mut lanes[0], 50).iter().filter_map(|frame| sent(frame)).collect();
        assert!(sent.len() == 50 && sent.iter().all(|(_, _, payload)| *payload == long));
    }
    // To that destination, too, what its path takes.
    socket.send_to(&payload(1000 - 28), to(1)).unwrap();
    assert_eq!(frames(&mut lanes[0], 1)[0].len(), 14 + 1000);
    assert_eq!(entered(), before, "the slow path was not asked");
    socket.send_to(&payload(1000 - 27), to(1)).unwrap();
    assert!(frames(&mut lanes[0], 2).iter().all(|frame| frame.len() <= 14 + 1000));
    assert_eq!(entered(), before + 1);
    // A path that takes less than anything is cut for: its routers may do it, also of what is no
    // longer than that.
    socket.send_to(&long, to(2)).unwrap();
    let whole = frames(&mut lanes[0], 1).remove(0);
    assert_eq!(lanes[0].send(&[too_big(&whole, 400)]), 1);
    world.settle(2);
    for (len, dont_fragment, frame) in [(400, 0x40, 400), (401, 0, 401), (552, 0, 552)] {
        socket.send_to(&payload(len - 28), to(2)).unwrap();
        let sent = frames(&mut lanes[0], 1).remove(0);
        assert_eq!((sent.len(), sent[20]), (14 + frame, dont_fragment), "{len} bytes");
    }
    socket.send_to(&payload(553 - 28), to(2)).unwrap();
    assert_eq!(frames(&mut lanes[0], 2).len(), 2);
    drop(socket);
    world.end(lanes);
}

/// To make up a report, it takes more than the name of a port that is served, and of a victim.
#[test]
fn a_report_about_what_was_not_sent_is_ignored_and_counted() {
    let (world, mut lanes, handle) = start(&[1], true);
    let socket = UdpSocket::bind(&handle, "0.0.0.0:7").unwrap();
    let other = UdpSocket::bind(&handle, (own(0), 8)).unwrap();
    other.connect((far(9), 999)).unwrap();
    socket.send_to(&payload(1400), (far(1), 999)).unwrap();
    let whole = frames(&mut lanes[0], 1).remove(0);
    let mut n = 0;
    let mut reports = |lane: &mut Lane, change: &dyn Fn(&mut Vec<u8>)| {
        let mut quoted = whole.clone();
        change(&mut quoted);
        assert_eq!(lane.send(&[too_big(&quoted, 1000)]), 1);
        n += 1;
        world.settle(n);
        known(&world)
    };
    let to = |i: u8| move |quoted: &mut Vec<u8>| quoted[30..34].copy_from_slice(&far(i).octets());
    // Nothing was sent there; from there; or by a port that no socket has.
    assert_eq!(reports(&mut lanes[0], &to(2)), (0, 1));
    assert_eq!(reports(&mut lanes[0], &|quoted| quoted[29] = 77), (0, 2));
    assert_eq!(reports(&mut lanes[0], &|quoted| quoted[35] = 9), (0, 3));
    // Of a socket that is connected, only by its own flow.
    let connected = |peer: u16| {
        move |quoted: &mut Vec<u8>| {
            to(9)(quoted);
            quoted[34..36].copy_from_slice(&8u16.to_be_bytes());
            quoted[36..38].copy_from_slice(&peer.to_be_bytes());
        }
    };
    assert_eq!(reports(&mut lanes[0], &connected(998)), (0, 4));
    assert!(!other.readiness().error);
    assert_eq!(reports(&mut lanes[0], &connected(999)), (1, 4));
    assert_eq!(other.take_error().unwrap().unwrap().raw_os_error(), Some(90), "EMSGSIZE");
    // Something short went there, which fits everywhere.
    socket.send_to(b"short", (far(3), 999)).unwrap();
    frames(&mut lanes[0], 1);
    assert_eq!(reports(&mut lanes[0], &to(3)), (1, 5));
    // And this was sent. (One about a packet that would have fitted changes nothing.)
    assert_eq!(
        reports(&mut lanes[0], &|quoted| quoted[16..18].copy_from_slice(&1000u16.to_be_bytes())),
        (1, 5)
    );
    assert_eq!(reports(&mut lanes[0], &|_| {}), (2, 5));
    socket.send_to(&payload(1400), (far(2), 999)).unwrap();
    assert_eq!(frames(&mut lanes[0], 1)[0].len(), whole.len());
    drop((socket, other));
    world.end(lanes);
}

/// The same of IPv6, and of one that waits for its neighbour.
#[test]
fn of_ipv6_too() {
    let (world, mut lanes, handle) = start6();
    let socket = UdpSocket::bind(&handle, "[::]:7").unwrap();
    let long = payload(1400);
    let (a, b) = (host6(0), host6(1));
    socket.send_to(&long, (a, 999)).unwrap();
    let (_, frame) = next6(&mut lanes[0]);
    let mut made_up = frame.clone();
    made_up[14 + 24..14 + 40].copy_from_slice(&b.octets());
    let reports = |lane: &mut Lane, quoted: &[u8], mtu| {
        assert_eq!(lane.send(&[too_big6(0, (a, own6(0)), quoted, mtu)]), 1);
    };
    reports(&mut lanes[0], &made_up, 1280);
    until("it is ignored", || known(&world) == (0, 1));
    // Nothing shorter is ever needed (RFC 8201 section 4).
    reports(&mut lanes[0], &frame, 1279);
    reports(&mut lanes[0], &frame, 1280);
    until("it is believed", || known(&world) == (1, 1));
    socket.send_to(&long, (b, 999)).unwrap();
    assert_eq!(next6(&mut lanes[1]).0.payload, long);
    socket.send_to(&long, (a, 999)).unwrap();
    let mut parts = Vec::new();
    until("it leaves in pieces", || {
        let is_part = |frame: &[u8]| frame[12..14] == [0x86, 0xdd] && frame[20] == 44;
        lanes[0].receive(|frame| parts.extend(is_part(frame).then_some(frame.len())));
        parts.len() == 2
    });
    assert!(parts.iter().all(|len| *len <= 14 + 1280), "{parts:?}");
    drop(socket);
    world.end(lanes);
}
