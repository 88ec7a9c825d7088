//! A UDP frame to send.

use std::net::Ipv4Addr;

const ETH_LEN: usize = 14;
const IP_LEN: usize = 20;
const UDP_LEN: usize = 8;

/// Description of an Ethernet frame with one UDP datagram over IPv4.
#[derive(Clone, Copy, Debug)]
pub struct UdpFrame {
    /// Source MAC address.
    pub src_mac: [u8; 6],
    /// Destination MAC address.
    pub dst_mac: [u8; 6],
    /// Source address.
    pub src: Ipv4Addr,
    /// Destination address.
    pub dst: Ipv4Addr,
    /// Source port.
    pub src_port: u16,
    /// Destination port.
    pub dst_port: u16,
    /// Length of the frame in bytes without FCS: a "64-byte frame" on the wire is 60. No less than 42 are made.
    pub len: u16,
}

impl UdpFrame {
    /// The bytes of the frame: TTL 64, don't-fragment, IPv4 checksum right, no UDP checksum (RFC 768 allows it), the
    /// payload zero.
    pub fn build(&self) -> Vec<u8> {
        let len = usize::from(self.len).max(ETH_LEN + IP_LEN + UDP_LEN);
        let ip_len = (len - ETH_LEN) as u16;
        let mut frame = Vec::with_capacity(len);
        frame.extend(self.dst_mac);
        frame.extend(self.src_mac);
        frame.extend([0x08, 0x00]);
        frame.extend([0x45, 0]);
        frame.extend(ip_len.to_be_bytes());
        frame.extend([0, 0, 0x40, 0, 64, 17, 0, 0]);
        frame.extend(self.src.octets());
        frame.extend(self.dst.octets());
        let checksum = checksum(&frame[ETH_LEN..]);
        frame[ETH_LEN + 10..ETH_LEN + 12].copy_from_slice(&checksum.to_be_bytes());
        frame.extend(self.src_port.to_be_bytes());
        frame.extend(self.dst_port.to_be_bytes());
        frame.extend((ip_len - IP_LEN as u16).to_be_bytes());
        frame.extend([0, 0]);
        frame.resize(len, 0);
        frame
    }
}

/// Internet checksum (RFC 1071) of an even number of bytes.
fn checksum(bytes: &[u8]) -> u16 {
    let mut sum: u32 = bytes.as_chunks::<2>().0.iter().map(|pair| u32::from(u16::from_be_bytes(*pair))).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_is_right() {
        let frame = UdpFrame {
            src_mac: [2, 0, 0, 0, 0, 1],
            dst_mac: [2, 0, 0, 0, 0, 2],
            src: Ipv4Addr::new(192, 168, 0, 1),
            dst: Ipv4Addr::new(192, 168, 0, 199),
            src_port: 1000,
            dst_port: 9,
            len: 60,
        }
        .build();
        assert_eq!(frame.len(), 60);
        assert_eq!(checksum(&frame[14..34]), 0, "a right header sums to zero");
        assert_eq!(frame[16..18], 46u16.to_be_bytes());
        assert_eq!(frame[34..42], [0x03, 0xe8, 0, 9, 0, 26, 0, 0]);
    }
}
