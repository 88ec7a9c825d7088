//! Requests and responses: UDP packets that carry a number, so that each response names its request.
//!
//! A response is the request with the addresses and ports of its two ends exchanged, and not another byte changed.

use std::net::Ipv4Addr;

use softnet_testkit::UdpFrame;

/// Port of the application.
pub(crate) const PORT: u16 = 7;
/// Bytes before the payload: Ethernet, IPv4, UDP.
const HEADERS: usize = 14 + 20 + 8;
/// The smallest payload: the number.
const MIN_PAYLOAD: usize = 8;
/// The largest payload: that of an Ethernet frame.
const MAX_PAYLOAD: usize = 1500 - 20 - 8;
/// Requests come from so many ports in turn, from the first on.
const PORTS: u64 = 1024;
const FIRST_PORT: u16 = 20_000;
const CLIENT_PORT_IN_REQUEST: usize = 34;
const CLIENT_PORT_IN_RESPONSE: usize = 36;

/// One end of the wire.
#[derive(Clone, Copy, Debug)]
pub(super) struct End {
    pub(super) mac: [u8; 6],
    pub(super) address: Ipv4Addr,
}

/// What packets between two ends look like.
#[derive(Clone)]
pub(super) struct Format {
    request: Vec<u8>,
    /// Of a response; the client's port and the number differ.
    response: Vec<u8>,
}

impl Format {
    /// Packets of `payload` bytes, or the next length there can be.
    pub(super) fn new(client: End, server: End, payload: usize) -> Self {
        let len = HEADERS + payload.clamp(MIN_PAYLOAD, MAX_PAYLOAD);
        let frame = UdpFrame {
            src_mac: client.mac,
            dst_mac: server.mac,
            src: client.address,
            dst: server.address,
            src_port: FIRST_PORT,
            dst_port: PORT,
            len: len as u16,
        };
        let mut request = frame.build();
        request[HEADERS..].iter_mut().enumerate().for_each(|(at, byte)| *byte = (at * 7 + 1) as u8);
        let mut response = request.clone();
        answer(&mut response);
        Format { request, response }
    }

    /// Bytes of a packet.
    pub(super) fn len(&self) -> usize {
        self.request.len()
    }

    /// Writes request `number` to the start of `buf`, which has room for it. Returns its length.
    #[inline]
    pub(super) fn write(&self, number: u64, buf: &mut [u8]) -> usize {
        let len = self.request.len();
        let packet = &mut buf[..len];
        packet.copy_from_slice(&self.request);
        packet[CLIENT_PORT_IN_REQUEST..CLIENT_PORT_IN_REQUEST + 2].copy_from_slice(&port(number));
        packet[HEADERS..HEADERS + 8].copy_from_slice(&number.to_be_bytes());
        len
    }

    /// The number of the request that `packet` is the response to, if it is one, down to the last byte.
    #[inline]
    pub(super) fn answered(&self, packet: &[u8]) -> Option<u64> {
        let (like, at) = (&self.response, CLIENT_PORT_IN_RESPONSE);
        if packet.len() != like.len()
            || packet[..at] != like[..at]
            || packet[at + 2..HEADERS] != like[at + 2..HEADERS]
            || packet[HEADERS + 8..] != like[HEADERS + 8..]
        {
            return None;
        }
        let number = u64::from_be_bytes(packet[HEADERS..HEADERS + 8].try_into().ok()?);
        (packet[at..at + 2] == port(number)).then_some(number)
    }
}

/// The client's port in request `number`.
#[inline]
fn port(number: u64) -> [u8; 2] {
    (FIRST_PORT + (number % PORTS) as u16).to_be_bytes()
}

/// Makes a request, a UDP packet without IP options, its response. `false`, and nothing changed: it is too short.
#[inline]
pub(super) fn answer(packet: &mut [u8]) -> bool {
    if packet.len() < HEADERS {
        return false;
    }
    let mut exchange = |a: usize, b: usize, len: usize| {
        let (first, second) = packet.split_at_mut(b);
        first[a..a + len].swap_with_slice(&mut second[..len]);
    };
    exchange(0, 6, 6);
    exchange(26, 30, 4);
    exchange(34, 36, 2);
    true
}

#[cfg(test)]
mod tests {
    use softnet_core::ip::checksum::ipv4_header_sum;

    use super::*;

    fn format(payload: usize) -> Format {
        let end = |n| End { mac: [2, 0, 0, 0, 0, n], address: Ipv4Addr::new(198, 18, 0, n) };
        Format::new(end(1), end(2), payload)
    }

    #[test]
    fn a_response_names_its_request() {
        for (payload, len) in [(1, 50), (18, 60), (64, 106), (1400, 1442), (9000, 1514)] {
            let format = format(payload);
            let mut buf = [0; 2048];
            for number in [0, 1, 1023, 1024, 1 << 40] {
                let n = format.write(number, &mut buf);
                assert_eq!((n, format.len()), (len, len));
                assert_eq!(format.answered(&buf[..n]), None, "a request is no response");
                assert!(answer(&mut buf[..n]));
                assert_eq!(format.answered(&buf[..n]), Some(number));
                let header = buf[14..34].try_into().unwrap();
                assert_eq!(ipv4_header_sum(header), 0xffff, "exchanging addresses keeps the sum");
            }
        }
    }

    #[test]
    fn any_other_byte_makes_it_no_response_to_that_request() {
        let format = format(64);
        let mut buf = [0; 256];
        let n = format.write(77, &mut buf);
        answer(&mut buf[..n]);
        for at in 0..n {
            buf[at] ^= 1;
            assert_ne!(format.answered(&buf[..n]), Some(77), "byte {at}");
            buf[at] ^= 1;
        }
        assert_eq!(format.answered(&buf[..n - 1]), None);
        assert!(!answer(&mut [0; 41]));
    }
}
