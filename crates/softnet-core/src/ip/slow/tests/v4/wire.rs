//! What passes a router and what does not.

use std::sync::Arc;

use super::*;
use crate::ip::adjacency::{Adjacency, Kind};
use crate::ip::icmp_limit::IcmpParams;
use crate::ip::v4::fib::Fib;
use crate::ip::v4::header::is_link_local;

#[test]
fn messages_of_each_type_may_be_limited() {
    let mut world = World::acquainted();
    world.control.slow.configure(IcmpParams::default(), Default::default());
    let dead = udp(0, CLIENT, SERVER, 1, 10);
    assert_eq!(world.input(0, &vec![dead.clone(); 20]).len(), 6);
    world.pass(2 * SECOND);
    let answers = world.input(0, &vec![dead.clone(); 20]);
    assert_eq!(answers.iter().filter(|(_, frame)| frame[12..14] == [8, 0]).count(), 2);
    // Answers to echo are not errors.
    assert_eq!(world.input(0, &vec![echo(OWN[0], 64); 60]).len(), 60);
    // Unless they are said to be limited, too.
    let params = IcmpParams { icmp_ratemask: 1, ..IcmpParams::default() };
    world.control.slow.configure(params, Default::default());
    world.pass(60 * SECOND);
    world.one(0, Ipv4Addr::question(0, CLIENT, CLIENT_MAC));
    assert_eq!(world.input(0, &vec![echo(OWN[0], 64); 60]).len(), 6);
    assert_eq!(world.input(0, &vec![dead; 60]).len(), 60);
}

/// RFC 3927 section 2.7. Softnet itself may have such an address.
#[test]
fn what_is_of_a_link_stays_there() {
    let mut world = World::acquainted();
    let (there, beside) = (Ipv4Addr::new(169, 254, 7, 7), Ipv4Addr::new(169, 253, 7, 7));
    assert!(is_link_local(there.into()) && !is_link_local(beside.into()));
    for ttl in [1, 64] {
        world.refused(udp(0, there, SERVER, ttl, 10), DropReason::IpInvalidSource, None);
        world.refused(udp(0, CLIENT, there, ttl, 10), DropReason::IpInvalidDest, None);
        world.refused(udp(0, there, there, ttl, 10), DropReason::IpInvalidSource, None);
    }
    // Even where there is a route, and where options take the packet aside.
    Arc::make_mut(&mut world.tables.v4).next_hops[1] = Adjacency::connected(1, MTUS[1]);
    let hops = &world.tables.v4.next_hops;
    let local = hops.iter().position(|hop| hop.kind == Kind::Local).unwrap() as u32;
    let fib = [("0.0.0.0/0", 3), ("10.0.0.1/32", local), ("169.254.0.1/32", local)];
    let fib: Vec<_> = fib.into_iter().map(|(prefix, hop)| (prefix.parse().unwrap(), hop)).collect();
    Arc::make_mut(&mut world.tables.v4).fib = Arc::new(Fib::build(&fib).unwrap());
    world.refused(udp(0, CLIENT, there, 64, 10), DropReason::IpInvalidDest, None);
    world.refused(with_options(there, 64, &[1, 1, 1, 1]), DropReason::IpInvalidDest, None);
    let beside = udp(0, beside, beside, 64, 10);
    Ipv4Addr::assert_forwarded(&world.one(0, beside.clone())[0], &beside, 1, SERVER_MAC);
    // To ourselves: a datagram for which there is no socket.
    let own = Ipv4Addr::new(169, 254, 0, 1);
    let before = world.drops(DropReason::IpNoProto);
    world.one(0, udp(0, there, own, 64, 10));
    assert_eq!(world.drops(DropReason::IpNoProto), before + 1);
    assert_eq!(world.drops(DropReason::IpInvalidDest), 4);
}
