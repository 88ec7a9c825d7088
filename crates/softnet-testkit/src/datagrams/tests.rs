use std::net::{Ipv4Addr, UdpSocket};
use std::time::Instant;

use proptest::prelude::*;

use super::*;
use crate::{net_allowed, raise_loopback};
use softnet_dev::netlink::{self, Netlink, Offload};
use softnet_dev::netns::NetNs;

const PATIENCE: Duration = Duration::from_secs(20);
const ANY: &str = "127.0.0.1:0";

fn bound(addresses: &[&str], stop: &Stop) -> KernelSockets {
    raise_loopback();
    let addresses: Vec<SocketAddr> = addresses.iter().map(|a| a.parse().unwrap()).collect();
    KernelSockets::bound(&addresses, 8, stop).unwrap()
}

fn ready(set: &mut KernelSockets) -> Vec<usize> {
    let mut ready = Vec::new();
    set.wait(Some(PATIENCE), &mut ready).unwrap();
    ready.sort_unstable();
    ready
}

/// Sends `lens` from one set to another and back, and compares every byte.
fn there_and_back(address: &str, lens: &[usize]) {
    let stop = Stop::new().unwrap();
    let mut server = bound(&[address], &stop);
    let at = server.local_addrs().unwrap()[0];
    let mut client = KernelSockets::connected(at, 1, 8, &stop).unwrap();
    let mut outbox = Outbox::default();
    for (i, len) in lens.iter().enumerate() {
        outbox.begin(at);
        outbox.put(&vec![i as u8; *len]);
    }
    assert_eq!(client.send(0, &outbox).unwrap(), 0);
    let mut echoed = Outbox::default();
    while echoed.len() < lens.len() {
        assert_eq!(ready(&mut server), [0]);
        for i in 0..server.recv(0).unwrap() {
            let (from, bytes) = server.datagram(i);
            assert_eq!(from, client.local_addrs().unwrap().pop().unwrap().ip_of(from));
            echoed.begin(from);
            echoed.put(bytes);
        }
    }
    assert_eq!(server.send(0, &echoed).unwrap(), 0);
    let mut seen = 0;
    while seen < lens.len() {
        assert_eq!(ready(&mut client), [0]);
        for i in 0..client.recv(0).unwrap() {
            let (from, bytes) = client.datagram(i);
            assert_eq!(from, at);
            assert_eq!(bytes, vec![seen as u8; lens[seen]]);
            seen += 1;
        }
    }
}

trait IpOf {
    fn ip_of(self, other: SocketAddr) -> SocketAddr;
}
impl IpOf for SocketAddr {
    /// With the IP address of `other`: a client that is bound to any address is seen with the one it sent by.
    fn ip_of(mut self, other: SocketAddr) -> SocketAddr {
        self.set_ip(other.ip());
        self
    }
}

#[test]
fn batches_arrive_in_order_and_whole() {
    // More than a batch holds, and datagrams as short and as long as they can be.
    there_and_back(ANY, &[0, 1, 7, 1400, 9000, MAX_DATAGRAM, 3, 0, 5, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
}

#[test]
fn ipv6_addresses_keep_all_they_have() {
    match UdpSocket::bind("[::1]:0") {
        Ok(_) => there_and_back("[::1]:0", &[1, 2, 3]),
        Err(error) => println!("skipped: no IPv6 here: {error}"),
    }
}

#[test]
fn a_wait_tells_which_sockets_and_ends_when_told_to_stop() {
    let stop = Stop::new().unwrap();
    let mut set = bound(&[ANY, ANY, ANY], &stop);
    let at = set.local_addrs().unwrap();
    let peer = UdpSocket::bind(ANY).unwrap();
    peer.send_to(b"x", at[2]).unwrap();
    assert_eq!(ready(&mut set), [2]);
    peer.send_to(b"y", at[0]).unwrap();
    assert_eq!(ready(&mut set), [0, 2], "level-triggered: what was not taken is told again");
    for socket in [0, 2] {
        assert_eq!(set.recv(socket).unwrap(), 1);
        assert_eq!(set.recv(socket).unwrap(), 0);
    }
    let mut none = vec![7];
    set.wait(Some(Duration::ZERO), &mut none).unwrap();
    assert_eq!(none, [0usize; 0]);
    assert!(!stop.told());
    stop.stop();
    assert!(stop.told());
    set.wait(None, &mut none).unwrap();
    assert_eq!(none, [0usize; 0]);
}

#[test]
fn two_sets_may_have_the_same_address() {
    let stop = Stop::new().unwrap();
    let mut one = bound(&[ANY], &stop);
    let at = one.local_addrs().unwrap()[0];
    let mut other = bound(&[&at.to_string()], &stop);
    let peers: Vec<UdpSocket> = (0..64).map(|_| UdpSocket::bind(ANY).unwrap()).collect();
    for peer in &peers {
        peer.send_to(b"x", at).unwrap();
    }
    let taken =
        |set: &mut KernelSockets| std::iter::from_fn(|| Some(set.recv(0).unwrap())).take(16).sum::<usize>();
    let (one, other) = (taken(&mut one), taken(&mut other));
    assert_eq!(one + other, 64);
    assert!(one > 0 && other > 0, "{one} and {other}");
}

/// Two hosts whose wire has two queues each way, on which the receiver's packets come by NAPI instances.
#[test]
fn packets_are_led_by_the_queue_they_came_by() {
    if !net_allowed() {
        return;
    }
    let [near, far] = [NetNs::new().unwrap(), NetNs::new().unwrap()];
    let [here, there] = [1, 2].map(|host| Ipv4Addr::new(10, 77, 0, host));
    let set_up = |name: &str, ip| {
        let mut netlink = Netlink::new().unwrap();
        netlink.add_address(name, ip, 24).unwrap();
        netlink.set_up(name).unwrap();
    };
    near.run(|| {
        Netlink::new().unwrap().add_veth("near0", "far0", (2, 2), Some(&far)).unwrap();
        netlink::set_offload("near0", Offload::Tso, false).unwrap();
        set_up("near0", here);
    })
    .unwrap();
    far.run(|| {
        netlink::set_offload("far0", Offload::Gro, true).unwrap();
        set_up("far0", there);
        Netlink::new().unwrap().wait_running("far0").unwrap();
    })
    .unwrap();
    let stop = Stop::new().unwrap();
    let at = SocketAddr::from((there, 7));
    let mut sets = far.run(|| [(); 2].map(|()| KernelSockets::bound(&[at], 8, &stop).unwrap())).unwrap();
    sets[0].lead_by_queue(2).unwrap();
    // Each flow keeps to one queue; of so many, each queue has some.
    let flows: Vec<UdpSocket> =
        near.run(|| (0..64).map(|_| UdpSocket::bind((here, 0)).unwrap()).collect()).unwrap();
    let mut ids = [None; 2];
    for flow in &flows {
        flow.send_to(b"x", at).unwrap();
        let give_up = Instant::now() + PATIENCE;
        let set = loop {
            let taken = sets.iter_mut().position(|set| set.recv(0).unwrap() > 0);
            if let Some(set) = taken {
                break set;
            }
            assert!(Instant::now() < give_up, "a packet did not arrive");
            std::thread::yield_now();
        };
        let id = sets[set].napi_id(0);
        assert_ne!(id, 0, "it came by a NAPI instance");
        assert_eq!(*ids[set].get_or_insert(id), id, "a set gets the packets of one");
    }
    assert_ne!(ids[0], ids[1]);
    assert!(ids.iter().all(Option::is_some), "{ids:?}");
}

#[test]
fn what_cannot_be_sent_is_counted_and_the_rest_is_sent() {
    let stop = Stop::new().unwrap();
    let mut set = bound(&[ANY], &stop);
    let peer = UdpSocket::bind(ANY).unwrap();
    let mut outbox = Outbox::default();
    let port_zero = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    for (to, text) in
        [(port_zero, "a"), (peer.local_addr().unwrap(), "b"), (port_zero, "c"), (port_zero, "d")]
    {
        outbox.begin(to);
        outbox.put(text.as_bytes());
    }
    outbox.begin(peer.local_addr().unwrap());
    outbox.put(&vec![0; MAX_DATAGRAM + 1]);
    outbox.begin(peer.local_addr().unwrap());
    assert_eq!(set.send(0, &outbox).unwrap(), 4);
    peer.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut got = [0; 8];
    assert_eq!(peer.recv(&mut got).unwrap(), 1);
    assert_eq!(got[0], b'b');
    assert_eq!(peer.recv(&mut got).unwrap(), 0);
}

#[test]
fn a_client_learns_that_the_port_is_closed() {
    let stop = Stop::new().unwrap();
    raise_loopback();
    let closed = UdpSocket::bind(ANY).unwrap().local_addr().unwrap();
    let mut client = KernelSockets::connected(closed, 1, 8, &stop).unwrap();
    let mut outbox = Outbox::default();
    outbox.begin(closed);
    assert_eq!(client.send(0, &outbox).unwrap(), 0);
    assert_eq!(ready(&mut client), [0]);
    assert_eq!(client.recv(0).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
    assert_eq!(client.recv(0).unwrap(), 0, "once");
}

proptest! {
    /// An outbox is a list of datagrams.
    #[test]
    fn an_outbox_has_what_was_put(
        datagrams in prop::collection::vec((1u16.., prop::collection::vec(any::<u8>(), 0..40)), 0..20),
        keep in 0usize..20,
    ) {
        let mut outbox = Outbox::default();
        let to = |port: u16| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        for (port, bytes) in &datagrams {
            outbox.begin(to(*port));
            let (one, two) = bytes.split_at(bytes.len() / 2);
            outbox.put(one);
            outbox.put(two);
            prop_assert_eq!(outbox.last_len(), bytes.len());
        }
        outbox.truncate(keep);
        let kept = &datagrams[..keep.min(datagrams.len())];
        prop_assert_eq!(outbox.len(), kept.len());
        for (i, (port, bytes)) in kept.iter().enumerate() {
            prop_assert_eq!(outbox.get(i), (to(*port), &bytes[..]));
            outbox.get_mut(i).fill(9);
        }
        for (i, (_, bytes)) in kept.iter().enumerate() {
            prop_assert_eq!(outbox.get(i).1, &vec![9; bytes.len()][..]);
        }
        outbox.clear();
        prop_assert!(outbox.is_empty());
        outbox.begin(to(1));
        prop_assert_eq!(outbox.last_len(), 0);
    }
}

/// A set that is bound to no address answers from the one that was asked: a client that is connected to it takes no other.
#[test]
fn sets_that_are_bound_to_no_address_answer_from_the_one_that_was_asked() {
    let stop = Stop::new().unwrap();
    for (any, asked) in [
        ("0.0.0.0:0", &["127.0.0.1", "127.0.0.5", "127.9.9.9"][..]),
        ("[::]:0", &["::1", "127.0.0.1", "127.0.0.5"]),
        ("127.0.0.5:0", &["127.0.0.5"]),
    ] {
        let mut server = bound(&[any], &stop);
        let at = server.local_addrs().unwrap()[0];
        for asked in asked {
            let asked: std::net::IpAddr = asked.parse().unwrap();
            let mut client = KernelSockets::connected((asked, at.port()).into(), 1, 8, &stop).unwrap();
            let mut outbox = Outbox::default();
            for text in ["one", "two"] {
                outbox.begin(at);
                outbox.put(text.as_bytes());
            }
            assert_eq!(client.send(0, &outbox).unwrap(), 0);
            let mut answers = Outbox::default();
            while answers.len() < 2 {
                assert_eq!(ready(&mut server), [0]);
                for i in 0..server.recv(0).unwrap() {
                    let ((peer, bytes), local) = (server.datagram(i), server.local(i));
                    let told = local.map(|local| local.addr.to_canonical());
                    assert_eq!(told, at.ip().is_unspecified().then_some(asked));
                    answers.begin(Endpoints { peer, local });
                    answers.put(bytes);
                }
            }
            assert_eq!(server.send(0, &answers).unwrap(), 0);
            let mut seen = 0;
            while seen < 2 {
                assert_eq!(ready(&mut client), [0], "{asked} by {any}");
                seen += client.recv(0).unwrap();
            }
        }
    }
}
