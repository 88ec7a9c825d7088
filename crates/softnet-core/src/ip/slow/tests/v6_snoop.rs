//! Neighbour advertisements that were not for softnet.

use super::*;

const MOVED: MacAddr = [2, 0, 0, 0, 0, 0x77];
const OVERRIDE: u8 = 0x20;

/// The client tells `dst` that it is somewhere else.
fn unsolicited(dst: Ipv6Addr, flags: u8) -> Vec<u8> {
    let message = [&[136, 0, 0, 0, flags, 0, 0, 0][..], &CLIENT.octets(), &[2, 1], &MOVED].concat();
    icmp(0, CLIENT, dst, 255, &message)
}

#[test]
fn a_neighbour_that_moved_is_where_it_advertises() {
    for (dst, moved) in [(ALL_NODES, true), (OWN[0], true), (net(0, 0x33), false)] {
        let mut world = World::acquainted();
        let mut overhear = |frame: &[u8]| {
            let mut out = Effects::default();
            let view = RouteSnapshot { now: world.now, tables: &world.tables, ifaces: &world.ifaces };
            let result = world.slow.overhear(&mut world.ctx, view, (0, frame), &mut out);
            out.publish.into_iter().for_each(|neighbour| world.tables.set_neighbour(neighbour));
            assert!(out.send.is_empty());
            result
        };
        let said = unsolicited(dst, OVERRIDE);
        let mut damaged = said.clone();
        *damaged.last_mut().unwrap() ^= 1;
        let damaged = overhear(&damaged);
        assert_eq!(damaged.is_err(), moved, "{damaged:?}");
        assert_eq!(overhear(&said), Ok(()));
        let to_it = udp(1, SERVER, CLIENT, 9, 10);
        let sent = world.one(1, to_it.clone());
        assert_forwarded(&sent[0], &to_it, 0, if moved { MOVED } else { CLIENT_MAC });
    }
}
