//! A flood of SYNs from addresses that answer nothing, put on the wire to the server at a fixed rate.
//!
//! Its time is the client's thread's, so that it ends with the measurement. Invariant: between two calls
//! at most [`BURST`] segments are sent; what a call comes too late for is not made up for.

use std::sync::Arc;

use softnet_core::ip::v4::header::{Ipv4Header, protocol};
use softnet_dev::mem::Sink;

use super::rig::PORTS;
use super::wire::{Lane, Sends};
use crate::bench::echo::xdp::SERVER;

/// Segments that one call sends at the most.
const BURST: u64 = 512;
const IP: usize = 14;
const L4: usize = 34;

/// See the module.
pub(super) struct Flood {
    to: Sends,
    segment: Vec<u8>,
    /// Segments a second.
    rate: u64,
    /// Up to when what was due was sent, ns since the run began.
    at: u64,
    /// Segments sent.
    pub(super) sent: u64,
}

impl Flood {
    /// Of `rate` SYNs a second to the server, whose interface has address `mac`.
    pub(super) fn new(lane: &Arc<Lane>, (mac, from): ([u8; 6], [u8; 6]), rate: u64) -> Self {
        // MSS 1460, SACK permitted, timestamps, no-operation, window scale 7.
        let options = [2, 4, 5, 0xb4, 4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 0, 1, 3, 3, 7];
        let mut segment = vec![0; L4 + 20 + options.len()];
        segment[..6].copy_from_slice(&mac);
        segment[6..12].copy_from_slice(&from);
        segment[12] = 8;
        let tcp = &mut segment[L4..];
        tcp[12] = (((20 + options.len()) / 4) << 4) as u8;
        tcp[13] = 2;
        tcp[14..16].copy_from_slice(&64_000_u16.to_be_bytes());
        tcp[20..].copy_from_slice(&options);
        Flood { to: Sends { lane: lane.clone() }, segment, rate, at: 0, sent: 0 }
    }

    /// Sends what is due by `now`, ns since the run began.
    pub(super) fn send(&mut self, now: u64) {
        let due = now.saturating_sub(self.at).saturating_mul(self.rate) / 1_000_000_000;
        if due == 0 {
            return;
        }
        self.at = if due > BURST { now } else { self.at + due * 1_000_000_000 / self.rate };
        for _ in 0..due.min(BURST) {
            self.sent += 1;
            // splitmix64: each of them a flow of its own.
            let z = self.sent.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let z = z ^ z >> 27;
            // 100.64.0.0/10 (RFC 6598).
            let source = 0x6440_0000 | (z as u32 & 0x003f_ffff);
            let len = self.segment.len() - IP;
            if let Some(mut ip) = Ipv4Header::new_mut(&mut self.segment[IP..]) {
                ip.fill(len as u16, 0, 64, protocol::TCP, source, SERVER.to_bits());
            }
            let port = PORTS[self.sent as usize % PORTS.len()];
            let tcp = &mut self.segment[L4..];
            tcp[..2].copy_from_slice(&((z >> 32) as u16 | 1024).to_be_bytes());
            tcp[2..4].copy_from_slice(&port.to_be_bytes());
            tcp[4..8].copy_from_slice(&((z >> 16) as u32).to_be_bytes());
            self.to.read(&self.segment);
        }
    }
}
