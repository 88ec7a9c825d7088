//! Fast and slow path of IPv6 together, on frames that a stranger makes up: neighbour discovery, ICMPv6, extension headers,
//! fragments, to softnet and past it.

use super::world::*;
use super::*;
use crate::fuzz::Script;
use crate::ip::v6::addr::{ALL_NODES, link_local};

/// Bytes of payload that fit a frame.
const MOST: usize = 1700;

/// From whom and to whom a packet is that came by device `dev`, and with what hop limit. All of these get further than most
/// addresses would.
fn ends(dev: u16, byte: u8) -> (Ipv6Addr, Ipv6Addr, u8) {
    let at = usize::from(dev);
    let (here, there) = if dev == 0 { (CLIENT, SERVER) } else { (SERVER, CLIENT) };
    let mac = if dev == 0 { CLIENT_MAC } else { SERVER_MAC };
    let src = match byte & 7 {
        0 => here,
        1 => link_local(mac),
        2 => Ipv6Addr::UNSPECIFIED,
        3 => FAR,
        4 => GATEWAY,
        5 => OWN[at],
        6 => net(dev, 77),
        _ => ALL_NODES,
    };
    let dst = match byte >> 3 & 7 {
        0 => OWN[at],
        1 => link_local(MACS[at]),
        2 => solicited_node(OWN[at]),
        3 => ALL_NODES,
        4 => there,
        5 => FAR,
        6 => net(1 - dev, 88),
        // No way there.
        _ => Ipv6Addr::new(0x2001, 0xdb8, 0x67, 0, 0, 0, 0, 1),
    };
    (src, dst, [255, 64, 1, 0][usize::from(byte >> 6)])
}

/// Plays a script: frames of both devices, time, and devices that vanish and return. After each step the books balance,
/// and in the end all memory is at home (`World` asserts both).
pub fn forward6(data: &[u8]) {
    let mut script = Script::new(data);
    let mut world = match script.byte() {
        // Scarce memory; nobody known yet; everybody known.
        Some(0) => World::with_frames(6),
        Some(1) => World::with_frames(64),
        _ => World::acquainted(),
    };
    while let Some(op) = script.byte() {
        let dev = u16::from(op & 1);
        match op >> 1 & 7 {
            0 => drop(world.pass(u64::from(script.byte().unwrap_or(0)) * SECOND / 4)),
            1 => match world.ifaces[usize::from(dev)] {
                Some(_) => world.vanish(dev),
                None => world.ifaces[usize::from(dev)] = Some(iface(dev.into())),
            },
            2 => {
                let bytes = script.bytes();
                let mut frame = bytes[..bytes.len().min(MOST)].to_vec();
                if op >> 4 & 1 != 0 && frame.len() >= ETH_LEN {
                    frame[..6].copy_from_slice(&MACS[usize::from(dev)]);
                    frame[12..14].copy_from_slice(&[0x86, 0xdd]);
                }
                world.one(dev, frame);
            }
            how => {
                let (src, dst, hop_limit) = ends(dev, script.byte().unwrap_or(0));
                let kind = script.byte().unwrap_or(0);
                let bytes = script.bytes();
                let payload = &bytes[..bytes.len().min(MOST)];
                let frame = match how {
                    // With a checksum that is right.
                    3 | 4 => {
                        let message = [&[kind, 0, 0, 0], payload].concat();
                        icmp(dev, src, dst, hop_limit, &message)
                    }
                    // A fragment: where it lies, whether more follow, and what it is of, in few values each.
                    5 => {
                        let word = u16::from(kind >> 2) * 8 + u16::from(kind & 1);
                        let of = if kind & 2 != 0 { next::ICMPV6 } else { next::UDP };
                        let [high, low] = word.to_be_bytes();
                        let header = [of, 0, high, low, 0, 0, 0, op >> 4];
                        ip(dev, src, dst, hop_limit, next::FRAGMENT, &[&header, payload].concat())
                    }
                    // Anything, extension headers too.
                    _ => ip(dev, src, dst, hop_limit, kind, payload),
                };
                world.one(dev, frame);
            }
        }
    }
}
