//! Fast and slow path together, on frames that a stranger makes up.

use std::net::{Ipv4Addr, Ipv6Addr};

use super::world::{CLIENT_MAC, MACS, SECOND, SERVER_MAC, TestFamily, World, icmp, v4};
use crate::fuzz::Script;
use crate::ip::ETH_LEN;
use crate::ip::v6::addr::{ALL_NODES, link_local, solicited_node};
use crate::ip::v6::header::next;

/// Bytes of an IPv4 packet that fit a frame.
const MOST: usize = 1778;
/// Bytes of payload of IPv6 that do.
const MOST6: usize = 1700;

/// Of IPv4.
pub fn forward(data: &[u8]) {
    play::<Ipv4Addr>(data);
}

/// Of IPv6: neighbour discovery, ICMPv6, extension headers, fragments, to softnet and past it.
pub fn forward6(data: &[u8]) {
    play::<Ipv6Addr>(data);
}

/// A family of which frames can be made of a script.
trait FuzzFamily: TestFamily {
    /// The frame that comes by device `dev`, of the script's next bytes; `op` says how it is made.
    fn frame(dev: u16, op: u8, script: &mut Script<'_>) -> Vec<u8>;
}

/// Plays a script: frames of both devices, time, and devices that vanish and return. After each step the books balance,
/// and in the end all memory is at home (`World` asserts both).
fn play<F: FuzzFamily>(data: &[u8]) {
    let mut script = Script::new(data);
    let mut world = match script.byte() {
        // Scarce memory; no neighbour known yet; all known.
        Some(0) => World::<F>::with_frames(6),
        Some(1) => World::with_frames(64),
        _ => World::acquainted(),
    };
    while let Some(op) = script.byte() {
        let dev = u16::from(op & 1);
        match op >> 1 & 7 {
            0 => drop(world.pass(u64::from(script.byte().unwrap_or(0)) * SECOND / 4)),
            1 => match world.iface(dev) {
                Some(_) => world.vanish(dev),
                None => world.appear(dev),
            },
            _ => drop(world.one(dev, F::frame(dev, op, &mut script))),
        }
    }
}

impl FuzzFamily for Ipv4Addr {
    fn frame(dev: u16, op: u8, script: &mut Script<'_>) -> Vec<u8> {
        let (how, bytes) = (op >> 1 & 7, script.bytes());
        let mut frame = bytes[..bytes.len().min(MOST + ETH_LEN)].to_vec();
        // Hardly any frame gets past the first checks by itself.
        if how > 2 && frame.len() >= ETH_LEN + 20 {
            frame[..6].copy_from_slice(&MACS[usize::from(dev)]);
            if how > 3 {
                frame[12..14].copy_from_slice(&[8, 0]);
                frame[ETH_LEN] = 0x40 | (frame[ETH_LEN] & 15).max(5);
                let header = usize::from(frame[ETH_LEN] & 15) * 4;
                if frame.len() >= ETH_LEN + header {
                    return v4::mend(frame);
                }
            }
        }
        frame
    }
}

/// The addresses of a packet that comes by device `dev`, and its hop limit. All of these get further than most addresses
/// would.
fn ends(dev: u16, byte: u8) -> (Ipv6Addr, Ipv6Addr, u8) {
    type F = Ipv6Addr;
    let own = F::OWN[usize::from(dev)];
    let (here, there, mac) = match dev {
        0 => (F::CLIENT, F::SERVER, CLIENT_MAC),
        _ => (F::SERVER, F::CLIENT, SERVER_MAC),
    };
    let src = match byte & 7 {
        0 => here,
        1 => link_local(mac),
        2 => Ipv6Addr::UNSPECIFIED,
        3 => F::FAR,
        4 => F::GATEWAY,
        5 => own,
        6 => F::host(dev, 77),
        _ => ALL_NODES,
    };
    let dst = match byte >> 3 & 7 {
        0 => own,
        1 => link_local(MACS[usize::from(dev)]),
        2 => solicited_node(own),
        3 => ALL_NODES,
        4 => there,
        5 => F::FAR,
        6 => F::host(1 - dev, 88),
        _ => F::UNREACHABLE,
    };
    (src, dst, [255, 64, 1, 0][usize::from(byte >> 6)])
}

impl FuzzFamily for Ipv6Addr {
    fn frame(dev: u16, op: u8, script: &mut Script<'_>) -> Vec<u8> {
        let how = op >> 1 & 7;
        if how == 2 {
            let bytes = script.bytes();
            let mut frame = bytes[..bytes.len().min(MOST6)].to_vec();
            if op >> 4 & 1 != 0 && frame.len() >= ETH_LEN {
                frame[..6].copy_from_slice(&MACS[usize::from(dev)]);
                frame[12..14].copy_from_slice(&[0x86, 0xdd]);
            }
            return frame;
        }
        let (src, dst, hop_limit) = ends(dev, script.byte().unwrap_or(0));
        let kind = script.byte().unwrap_or(0);
        let bytes = script.bytes();
        let payload = &bytes[..bytes.len().min(MOST6)];
        match how {
            // With a checksum that is right.
            3 | 4 => icmp(dev, src, dst, hop_limit, &[&[kind, 0, 0, 0], payload].concat()),
            // A fragment: where it lies, whether more follow, and what it is of, in few values each.
            5 => {
                let word = u16::from(kind >> 2) * 8 + u16::from(kind & 1);
                let of = if kind & 2 != 0 { next::ICMPV6 } else { next::UDP };
                let [high, low] = word.to_be_bytes();
                let header = [of, 0, high, low, 0, 0, 0, op >> 4];
                Self::ip(dev, src, dst, hop_limit, next::FRAGMENT, &[&header, payload].concat())
            }
            // Anything, extension headers too.
            _ => Self::ip(dev, src, dst, hop_limit, kind, payload),
        }
    }
}
