//! A flood of SYNs from addresses that answer nothing, sent to the server at a fixed rate: on the
//! emulated wire, or by a packet socket at the client's end of a veth pair.
//!
//! Its time is the client's thread's, so that it ends with the measurement. What the server answers goes
//! to a [gateway](GATEWAY), as behind a router, which is neither end: the client sees none of it.
//! Invariant: between two calls at most [`BURST`] segments are sent; what a call comes too late for is
//! not made up for.

use std::net::Ipv4Addr;
use std::sync::Arc;

use softnet_core::ip::checksum;
use softnet_core::ip::v4::header::{Ipv4Header, protocol};
use softnet_dev::netns::NetNs;
use softnet_testkit::FrameBurst;

use super::rig::PORTS;
use super::wire::{Lane, Sends};
use crate::bench::echo::xdp::SERVER;
use crate::bench::text;

/// The gateway that the spoofed addresses are behind. Nothing has its MAC address: what goes there
/// leaves the emulated wire by another port, and is not for the kernel of a client.
pub(super) const GATEWAY: (Ipv4Addr, [u8; 6]) = (Ipv4Addr::new(198, 18, 0, 3), [2, 0, 0, 0, 3, 0]);

/// Segments that one call sends at the most.
const BURST: u64 = 512;
const IP: usize = 14;
const L4: usize = 34;
/// MSS 1460, SACK permitted, timestamps, no-operation, window scale 7.
const OPTIONS: [u8; 20] = [2, 4, 5, 0xb4, 4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 0, 1, 3, 3, 7];
const LEN: usize = L4 + 20 + OPTIONS.len();

enum Out {
    Wire(Sends),
    Socket(FrameBurst),
}

/// See the module.
pub(super) struct Flood {
    out: Out,
    segments: Segments,
    /// Segments a second.
    rate: u64,
    /// Up to when what was due was sent, ns since the run began.
    at: u64,
    /// Segments that were sent.
    pub(super) sent: u64,
}

impl Flood {
    /// Of `rate` SYNs a second, on the wire to the server.
    pub(super) fn on_wire(lane: &Arc<Lane>, mac: [u8; 6], rate: u64) -> Self {
        Flood::new(Out::Wire(Sends { lane: lane.clone() }), mac, rate)
    }

    /// The same by the interface called `name` at the client's end.
    pub(super) fn by_interface(ns: &NetNs, name: &str, mac: [u8; 6], rate: u64) -> Result<Self, String> {
        let socket = ns.run(|| FrameBurst::open(name, LEN, BURST as usize)).map_err(text)?;
        Ok(Flood::new(Out::Socket(socket.map_err(text)?), mac, rate))
    }

    fn new(out: Out, mac: [u8; 6], rate: u64) -> Self {
        Flood { out, segments: Segments::to(mac), rate, at: 0, sent: 0 }
    }

    /// Sends what is due by `now`, ns since the run began.
    pub(super) fn send(&mut self, now: u64) -> Result<(), String> {
        let due = now.saturating_sub(self.at).saturating_mul(self.rate) / 1_000_000_000;
        if due == 0 {
            return Ok(());
        }
        self.at = if due > BURST { now } else { self.at + due * 1_000_000_000 / self.rate };
        let n = due.min(BURST) as usize;
        let Flood { out, segments, .. } = self;
        let sent = match out {
            Out::Wire(wire) => wire.put(n, |_, bytes| {
                bytes[..LEN].copy_from_slice(segments.next_one());
                Some(LEN)
            }),
            Out::Socket(socket) => {
                socket.send(n, |bytes| bytes.copy_from_slice(segments.next_one())).map_err(text)?
            }
        };
        self.sent += sent as u64;
        Ok(())
    }
}

/// SYNs, each of a flow of its own.
struct Segments {
    bytes: [u8; LEN],
    number: u64,
}

impl Segments {
    fn to(mac: [u8; 6]) -> Self {
        let mut bytes = [0; LEN];
        bytes[..6].copy_from_slice(&mac);
        bytes[6..12].copy_from_slice(&GATEWAY.1);
        bytes[12] = 8;
        let tcp = &mut bytes[L4..];
        tcp[12] = (((20 + OPTIONS.len()) / 4) << 4) as u8;
        tcp[13] = 2;
        tcp[14..16].copy_from_slice(&64_000_u16.to_be_bytes());
        tcp[20..].copy_from_slice(&OPTIONS);
        Segments { bytes, number: 0 }
    }

    fn next_one(&mut self) -> &[u8; LEN] {
        self.number += 1;
        // splitmix64.
        let z = self.number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = z ^ z >> 27;
        // 100.64.0.0/10 (RFC 6598).
        let source = Ipv4Addr::from_bits(0x6440_0000 | (z as u32 & 0x003f_ffff));
        let len = LEN - L4;
        if let Some(mut ip) = Ipv4Header::new_mut(&mut self.bytes[IP..]) {
            ip.fill((LEN - IP) as u16, 0, 64, protocol::TCP, source.to_bits(), SERVER.to_bits());
        }
        let port = PORTS[self.number as usize % PORTS.len()];
        let tcp = &mut self.bytes[L4..];
        tcp[..2].copy_from_slice(&((z >> 32) as u16 | 1024).to_be_bytes());
        tcp[2..4].copy_from_slice(&port.to_be_bytes());
        tcp[4..8].copy_from_slice(&((z >> 16) as u32).to_be_bytes());
        let (from, to) = (source.to_bits(), SERVER.to_bits());
        let pseudo = checksum::pseudo_header_sum(from, to, protocol::TCP, len as u16);
        tcp[16..18].copy_from_slice(&pseudo.to_be_bytes());
        let check = checksum::checksum(tcp);
        tcp[16..18].copy_from_slice(&check.to_be_bytes());
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Receivers drop what does not add up.
    #[test]
    fn segments_differ_and_add_up() {
        let (mut segments, mut flows) = (Segments::to([2; 6]), std::collections::HashSet::new());
        for _ in 0..1000 {
            let segment = segments.next_one();
            let [from, to] = [26, 30].map(|at| u32::from_be_bytes(*segment[at..].first_chunk().unwrap()));
            assert_eq!(checksum::sum(&segment[IP..L4]), 0xffff);
            let pseudo = checksum::pseudo_header_sum(from, to, protocol::TCP, (LEN - L4) as u16);
            let pieces = [&pseudo.to_be_bytes()[..], &segment[L4..]];
            assert_eq!(checksum::sum_pieces(pieces.into_iter()).1, 0xffff);
            assert!(flows.insert((from, [segment[L4], segment[L4 + 1]])));
        }
    }
}
