//! Frames that pass on the wires, and randomness to make them of.

use std::net::Ipv4Addr;

use softnet_core::SoftnetData;
use softnet_core::ip::checksum;
use softnet_core::ip::v4::arp::{ArpPacket, BROADCAST, Operation};
use softnet_core::ip::v4::header::Ipv4Header;
use softnet_core::skb::Batch;

pub(crate) type Mac = [u8; 6];

/// Bytes before the IPv4 header, and before a UDP payload.
const ETH: usize = 14;
const HEADERS: usize = ETH + 20 + 8;

/// softnet's MAC address on port `port`, and its address there.
pub(crate) fn own_mac(port: usize) -> Mac {
    [2, 0, 0, 0, port as u8, 1]
}
pub(crate) fn own(port: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, port as u8, 0, 1)
}

/// The host at the far end of port `port`, which is also the gateway to 10.(100 + port).0.0/16.
pub(crate) fn host_mac(port: usize) -> Mac {
    [2, 0, 0, 0, port as u8, 2]
}
pub(crate) fn host(port: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, port as u8, 0, 2)
}

/// splitmix64.
pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// 0 to `n` - 1.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
}

/// An IPv4 packet in a frame to softnet's port `port`.
pub(crate) fn ip(port: usize, dst: Ipv4Addr, ttl: u8, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = [&own_mac(port)[..], &host_mac(port), &[8, 0], &[0; 20]].concat();
    let total = 20 + payload.len() as u16;
    let src = host(port).to_bits();
    Ipv4Header::new_mut(&mut frame[ETH..]).unwrap().fill(total, 1, ttl, protocol, src, dst.to_bits());
    frame.extend(payload);
    frame
}

/// UDP to `dst` that says which flow it is of, and its number there.
pub(crate) fn numbered(port: usize, dst: Ipv4Addr, flow: u32, number: u32) -> Vec<u8> {
    let mut payload = vec![0x12, 0x34, 0, 9, 0, 16, 0, 0];
    payload.extend(flow.to_be_bytes());
    payload.extend(number.to_be_bytes());
    ip(port, dst, 64, 17, &payload)
}

/// The same to another UDP port. (Without a checksum, so that none is wrong.)
pub(crate) fn to_port(mut frame: Vec<u8>, port: u16) -> Vec<u8> {
    frame[HEADERS - 6..HEADERS - 4].copy_from_slice(&port.to_be_bytes());
    frame
}

/// Flow and number, if `frame` is a [`numbered`] one.
pub(crate) fn number_of(frame: &[u8]) -> Option<(u32, u32)> {
    let payload = frame.get(HEADERS..HEADERS + 8).filter(|_| frame[12..14] == [8, 0] && frame[23] == 17)?;
    let word =
        |at: usize| u32::from_be_bytes([payload[at], payload[at + 1], payload[at + 2], payload[at + 3]]);
    Some((word(0), word(4)))
}

fn arp(to: Mac, packet: ArpPacket) -> Vec<u8> {
    let mut frame = [&to[..], &packet.sender_mac, &[8, 6], &[0; 28]].concat();
    packet.write(frame[ETH..].first_chunk_mut().unwrap());
    frame
}

/// The answer to `frame`, if it is a question for `ip` on port `port`.
pub(crate) fn arp_answer(port: usize, ip: Ipv4Addr, frame: &[u8]) -> Option<Vec<u8>> {
    let question = ArpPacket::parse(frame.get(ETH..).filter(|_| frame[12..14] == [8, 6])?).ok()?;
    let ours = question.operation == Operation::Request && question.target_ip == ip;
    ours.then(|| arp(own_mac(port), question.reply(host_mac(port))))
}

/// Anything that may come in by port `port` of `ports`: good, bad, and in between.
pub(crate) fn random(rng: &mut Rng, port: usize, ports: usize) -> Vec<u8> {
    let other = rng.below(ports);
    let byte = rng.next() as u8;
    let mut good = {
        let dst = if byte & 1 == 0 { host(other) } else { Ipv4Addr::new(10, 100 + other as u8, byte, 7) };
        let payload = vec![byte; 8 + rng.below(1400)];
        ip(port, dst, 64, 17, &payload)
    };
    match rng.below(20) {
        0 => {
            good[ETH + 8] = 1;
            mend(good)
        }
        1 => {
            let mut echo = vec![8, 0, 0, 0, 1, 2, 3, 4];
            let check = checksum::checksum(&echo);
            echo[2..4].copy_from_slice(&check.to_be_bytes());
            ip(port, own(other), 64, 1, &echo)
        }
        2 => arp(BROADCAST, ArpPacket::request(host_mac(port), host(port), own(port))),
        // Neighbours that do not exist.
        3 => ip(port, Ipv4Addr::new(10, other as u8, 0, 3 + byte % 60), 64, 17, &[0; 20]),
        // No route, a group, softnet itself.
        4 => ip(port, Ipv4Addr::new(172, 16, byte, 1), 64, 17, &[0; 20]),
        5 => ip(port, Ipv4Addr::new(224, 0, 0, byte), 64, 17, &[0; 20]),
        6 => ip(port, own(port), 64, byte, &[0; 20]),
        7 => {
            good[..6].fill(0xff);
            good
        }
        // Options: a source route, which points to the first of none, or whatever `byte` is.
        8 => {
            let option = if rng.below(2) == 0 { 131 } else { byte };
            good.splice(ETH + 20..ETH + 20, [option, 4, 4, 0]);
            good[ETH] = 0x46;
            let total = (good.len() - ETH) as u16;
            good[ETH + 2..ETH + 4].copy_from_slice(&total.to_be_bytes());
            mend(good)
        }
        9 | 10 => {
            for _ in 0..1 + rng.below(4) {
                let at = rng.below(60.min(good.len()));
                good[at] = rng.next() as u8;
            }
            if byte & 1 == 0 { good } else { mend(good) }
        }
        11 => {
            good.truncate(rng.below(good.len()));
            good
        }
        12 => (0..rng.below(100)).map(|_| rng.next() as u8).collect(),
        _ => good,
    }
}

/// Puts the right header checksum in.
fn mend(mut frame: Vec<u8>) -> Vec<u8> {
    let len = usize::from(frame[ETH] & 15) * 4;
    frame[ETH + 10..ETH + 12].fill(0);
    let check = checksum::checksum(frame.get(ETH..ETH + len).unwrap_or_default());
    frame[ETH + 10..ETH + 12].copy_from_slice(&check.to_be_bytes());
    frame
}

/// `n` packets made here, each with the bytes `frame`.
pub(crate) fn batch_of(ctx: &mut SoftnetData, frame: &[u8], n: usize) -> Batch {
    let mut batch = Batch::new();
    for _ in 0..n {
        let mut skb = ctx.alloc_skb().unwrap();
        skb.put(frame.len()).unwrap().copy_from_slice(frame);
        batch.push(skb).unwrap();
    }
    batch
}
