//! Options of IPv4: record route, timestamp, source routes, router alert, and what is malformed (RFC 791 3.1, RFC 1812 5.3.13,
//! RFC 7126).

use std::net::Ipv4Addr;

use crate::case::Cases;
use crate::net::{B, Net, UNREACHABLE4, gateway4, router4};
use crate::packet::Ip4;

/// An option with its length and a pointer, with so many bytes of room.
fn room(kind: u8, pointer: u8, room: usize) -> Vec<u8> {
    [&[kind, room as u8 + 3, pointer][..], &vec![0; room]].concat()
}

/// A source route through these.
fn route(kind: u8, pointer: u8, via: &[Ipv4Addr]) -> Vec<u8> {
    let mut option = vec![kind, via.len() as u8 * 4 + 3, pointer];
    via.iter().for_each(|addr| option.extend(addr.octets()));
    option
}

fn stamps(pointer: u8, flags: u8, room: usize) -> Vec<u8> {
    [&[68, room as u8 + 4, pointer, flags][..], &vec![0; room]].concat()
}

pub(crate) fn cases() -> Cases {
    let mut cases = Cases::new("options");
    let c = &mut cases;
    let plain: Vec<(String, Vec<u8>)> = [
        ("end", vec![0]),
        ("nops", vec![1; 4]),
        ("nops-40", vec![1; 40]),
        ("end-then-rubbish", vec![0, 7, 7, 7]),
        ("rr-3", room(7, 4, 12)),
        ("rr-9", room(7, 4, 36)),
        ("rr-1", room(7, 4, 4)),
        ("rr-second", room(7, 8, 12)),
        ("rr-full", room(7, 16, 12)),
        ("rr-beyond-full", room(7, 20, 12)),
        ("rr-no-room", room(7, 4, 0)),
        ("rr-room-2", room(7, 4, 2)),
        ("rr-room-6-second", room(7, 8, 6)),
        ("rr-pointer-0", room(7, 0, 12)),
        ("rr-pointer-3", room(7, 3, 12)),
        ("rr-pointer-5", room(7, 5, 12)),
        ("rr-pointer-255", room(7, 255, 12)),
        ("rr-length-0", vec![7, 0, 4, 0]),
        ("rr-length-1", vec![7, 1, 4, 0]),
        ("rr-length-2", vec![7, 2, 4, 0]),
        ("rr-beyond-header", vec![7, 15, 4, 0, 0, 0, 0, 0]),
        ("rr-behind-nop", [vec![1], room(7, 4, 12)].concat()),
        ("rr-twice", [room(7, 4, 8), vec![1], room(7, 4, 8)].concat()),
        ("ts", stamps(5, 0, 12)),
        ("ts-second", stamps(9, 0, 12)),
        ("ts-full", stamps(17, 0, 12)),
        ("ts-full-overflow-3", stamps(17, 0x30, 12)),
        ("ts-full-overflow-15", stamps(17, 0xf0, 12)),
        ("ts-address", stamps(5, 1, 16)),
        ("ts-address-full", stamps(21, 1, 16)),
        ("ts-address-room-4", stamps(5, 1, 4)),
        ("ts-flag-2", stamps(5, 2, 16)),
        ("ts-flag-15", stamps(5, 15, 16)),
        ("ts-pointer-4", stamps(4, 0, 12)),
        ("ts-pointer-0", stamps(0, 0, 12)),
        ("ts-no-room", stamps(5, 0, 0)),
        ("ts-length-3", vec![68, 3, 5, 0]),
        ("ts-length-2", vec![68, 2, 5, 0]),
        ("ts-beyond-header", vec![68, 40, 5, 0]),
        ("ts-twice", [stamps(5, 0, 4), stamps(5, 0, 4)].concat()),
        ("alert", vec![148, 4, 0, 0]),
        ("alert-value-1", vec![148, 4, 0, 1]),
        ("alert-length-3", vec![148, 3, 0, 0]),
        ("alert-length-6", vec![148, 6, 0, 0, 0, 0]),
        ("alert-twice", vec![148, 4, 0, 0, 148, 4, 0, 0]),
        ("security", vec![130, 11, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
        ("stream", vec![136, 4, 0, 1]),
        ("cipso", vec![134, 10, 0, 0, 0, 1, 1, 4, 0, 0]),
        ("mtu-probe", vec![11, 4, 5, 0xdc]),
        ("experiment", vec![30, 6, 1, 2, 3, 4]),
        ("experiment-copied", vec![158, 6, 1, 2, 3, 4]),
        ("unknown", vec![99, 4, 1, 2]),
        ("unknown-copied", vec![227, 4, 1, 2]),
        ("unknown-length-0", vec![99, 0, 1, 2]),
        ("unknown-length-1", vec![99, 1, 1, 2]),
        ("unknown-beyond-header", vec![99, 9, 1, 2]),
        ("unknown-at-the-end", vec![1, 1, 1, 99]),
    ]
    .map(|(name, option)| (name.to_owned(), option))
    .into();
    for (name, option) in plain {
        let given = option.clone();
        c.add(format!("{name}-through"), move |n| n.a(n.through().options(&given).udp(5, 20)));
        let given = option.clone();
        c.add(format!("{name}-echo"), move |n| n.a(n.to_router().options(&given).echo(20)));
        if option.len() > 11 || option[0] == 1 || option[0] == 0 || option[0] == 148 {
            c.add(format!("{name}-closed-port"), move |n| n.a(n.to_router().options(&option).udp(5, 20)));
        }
    }
    for (name, kind) in [("lsrr", 131), ("ssrr", 137)] {
        c.add(format!("{name}-to-router"), move |n| {
            n.a(n.to_router().options(&route(kind, 4, &[n.remote4(B)])).udp(5, 20))
        });
        c.add(format!("{name}-to-router-gateway"), move |n| {
            n.a(n.to_router().options(&route(kind, 4, &[gateway4(B), n.remote4(B)])).udp(5, 20))
        });
        c.add(format!("{name}-to-router-done"), move |n| {
            n.a(n.to_router().options(&route(kind, 8, &[n.remote4(B)])).echo(20))
        });
        c.add(format!("{name}-to-router-done-closed-port"), move |n| {
            n.a(n.to_router().options(&route(kind, 8, &[n.remote4(B)])).udp(5, 20))
        });
        c.add(format!("{name}-to-router-itself"), move |n| {
            n.a(n.to_router().options(&route(kind, 4, &[router4(B)])).echo(20))
        });
        c.add(format!("{name}-through"), move |n| {
            n.a(n.through().options(&route(kind, 4, &[gateway4(B)])).udp(5, 20))
        });
        c.add(format!("{name}-through-done"), move |n| {
            n.a(n.through().options(&route(kind, 8, &[gateway4(B)])).udp(5, 20))
        });
        c.add(format!("{name}-through-ttl-1"), move |n| {
            n.a(n.through().ttl(1).options(&route(kind, 4, &[gateway4(B)])).udp(5, 20))
        });
        for pointer in [0, 3, 5, 255] {
            c.add(format!("{name}-pointer-{pointer}"), move |n| {
                n.a(n.to_router().options(&route(kind, pointer, &[n.remote4(B)])).echo(20))
            });
            c.add(format!("{name}-pointer-{pointer}-through"), move |n| {
                n.a(n.through().options(&route(kind, pointer, &[gateway4(B)])).udp(5, 20))
            });
        }
        c.add(format!("{name}-length-2"), move |n| n.a(n.through().options(&[kind, 2, 4, 0]).udp(5, 20)));
        c.add(format!("{name}-twice"), move |n| {
            let twice = [route(kind, 4, &[gateway4(B)]), route(kind, 4, &[gateway4(B)])].concat();
            n.a(n.through().options(&twice).udp(5, 20))
        });
    }
    let both = |n: Net, packet: Ip4| {
        n.a(packet
            .options(&[route(131, 4, &[gateway4(B)]), route(137, 4, &[gateway4(B)])].concat())
            .udp(5, 20))
    };
    c.add("lsrr-and-ssrr-through", move |n| both(n, n.through()));
    c.add("lsrr-and-ssrr-to-router", move |n| both(n, n.to_router()));
    c.add("ts-prespecified-router", |n| {
        let option =
            [&[68, 20, 5, 3][..], &router4(B).octets(), &[0; 4], &gateway4(B).octets(), &[0; 4]].concat();
        n.a(n.through().options(&option).udp(5, 20))
    });
    c.add("ts-prespecified-incoming", |n| {
        let option = [&[68, 12, 5, 3][..], &router4(0).octets(), &[0; 4]].concat();
        n.a(n.through().options(&option).udp(5, 20))
    });
    c.add("ts-prespecified-other", |n| {
        let option = [&[68, 12, 5, 3][..], &gateway4(B).octets(), &[0; 4]].concat();
        n.a(n.through().options(&option).udp(5, 20))
    });
    c.add("ts-prespecified-echo", |n| {
        let option = [&[68, 12, 5, 3][..], &router4(0).octets(), &[0; 4]].concat();
        n.a(n.to_router().options(&option).echo(20))
    });
    // What errors say of packets with options.
    c.add("rr-ttl-1", |n| n.a(n.through().ttl(1).options(&room(7, 4, 12)).udp(5, 20)));
    c.add("ts-ttl-1", |n| n.a(n.through().ttl(1).options(&stamps(5, 0, 12)).udp(5, 20)));
    c.add("nops-ttl-1", |n| n.a(n.through().ttl(1).options(&[1; 8]).udp(5, 20)));
    c.add("malformed-ttl-1", |n| n.a(n.through().ttl(1).options(&[7, 1, 4, 0]).udp(5, 20)));
    c.add("rr-unreachable", |n| {
        let mut packet = n.through();
        packet.dst = Ipv4Addr::from(u32::from(UNREACHABLE4) + 9);
        n.a(packet.options(&room(7, 4, 12)).udp(5, 20))
    });
    c.add("rr-in-malformed-error", |n| n.a(n.through().options(&[7, 1, 4, 0]).icmp(3, 1, 0, &[0x45; 28])));
    c.add("rr-full-df-cut", |n| n.a(n.to_small().df().options(&room(7, 16, 12)).udp(5, 1400)));
    c.add("rr-cut", |n| n.a(n.to_small().options(&room(7, 4, 12)).udp(5, 1400)));
    c.add("lsrr-cut-copied", |n| n.a(n.to_small().options(&[158, 6, 1, 2, 3, 4, 30, 4, 7, 7]).udp(5, 1400)));
    cases
}
