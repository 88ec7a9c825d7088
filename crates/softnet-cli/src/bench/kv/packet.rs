//! Requests and responses: memcached's `get` over UDP, of few items whose values are known.
//!
//! A request's id is the lower half of its number (16 bits), and everything else of the request follows from the id: the
//! port that it goes to, the port that it comes from, the key. So a response says which request it answers, and each of its
//! bytes is known.

use std::net::Ipv4Addr;

use softnet_core::ip::checksum;
use softnet_core::ip::v4::header::protocol;
use softnet_testkit::UdpFrame;

/// Sockets of the server, at ports in a row. Requests go to them in turn, and at the most as many are outstanding at maximum load: so
/// each stands for a connection that asks for one thing at a time, as those of the kernel's experiment do, and what a case gains
/// by letting requests pile up is not that several are taken from one socket at once.
pub(crate) const PORTS: usize = 512;
/// The first of these ports.
pub(super) const FIRST_PORT: u16 = 11211;
/// Port of the second application.
pub(super) const SECOND_PORT: u16 = 7;
/// Requests come from so many ports, from the first on.
const CLIENT_PORTS: u16 = 1024;
const FIRST_CLIENT_PORT: u16 = 20_000;
/// Requests to the second application come from this one.
const SECOND_CLIENT_PORT: u16 = 19_999;
/// Items of the store.
pub(super) const ITEMS: usize = 256;
/// Bytes of a value.
pub(super) const VALUE: usize = 64;

const HEADERS: usize = 14 + 20 + 8;
const FRAME: usize = 8;
/// Of a request.
const REQUEST: usize = FRAME + "get key-000\r\n".len();

/// MAC and IP addresses of the two ends.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ends {
    pub(super) client: ([u8; 6], Ipv4Addr),
    pub(super) server: ([u8; 6], Ipv4Addr),
}

/// Which application a request is for, and the lower half of its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Request {
    Server(u16),
    Second(u16),
}

impl Request {
    fn id(self) -> u16 {
        let (Request::Server(id) | Request::Second(id)) = self;
        id
    }

    fn item(self) -> usize {
        // Not in the order of the ports.
        usize::from(self.id().wrapping_mul(0x9e37) >> 8)
    }

    /// Port of the client, and of the server.
    fn ports(self) -> (u16, u16) {
        match self {
            Request::Server(id) => {
                let n = PORTS as u16;
                (FIRST_CLIENT_PORT + id / n % CLIENT_PORTS, FIRST_PORT + id % n)
            }
            Request::Second(_) => (SECOND_CLIENT_PORT, SECOND_PORT),
        }
    }
}

/// Key and value of an item.
pub(super) fn item(i: usize) -> (String, Vec<u8>) {
    let value = (0..VALUE).map(|at| b'a' + ((at * 7 + i * 11) % 26) as u8).collect();
    (format!("key-{i:03}"), value)
}

/// What packets between two ends look like.
#[derive(Clone)]
pub(super) struct Format {
    ends: Ends,
    request: Vec<u8>,
    /// By item, what follows the frame header of a response.
    values: Vec<Vec<u8>>,
    /// Whether UDP checksums of responses are right. The kernel leaves them to the device, which a veth pair does not have.
    pub(super) checksums: bool,
}

impl Format {
    pub(super) fn new(ends: Ends, checksums: bool) -> Self {
        let frame = UdpFrame {
            src_mac: ends.client.0,
            dst_mac: ends.server.0,
            src: ends.client.1,
            dst: ends.server.1,
            src_port: 0,
            dst_port: 0,
            len: (HEADERS + REQUEST) as u16,
        };
        let mut request = frame.build();
        request[HEADERS..].copy_from_slice(b"\0\0\0\0\0\x01\0\0get key-000\r\n");
        let value = |i| {
            let (key, value) = item(i);
            let mut response = format!("VALUE {key} 0 {VALUE}\r\n").into_bytes();
            response.extend(value);
            response.extend(b"\r\nEND\r\n");
            response
        };
        Format { ends, request, values: (0..ITEMS).map(value).collect(), checksums }
    }

    /// Bytes of a request.
    pub(super) fn len(&self) -> usize {
        self.request.len()
    }

    /// Writes a request to the start of `buf`, which has room for it. Returns its length.
    #[inline]
    pub(super) fn write(&self, request: Request, buf: &mut [u8]) -> usize {
        let packet = &mut buf[..self.request.len()];
        packet.copy_from_slice(&self.request);
        let (client, server) = request.ports();
        packet[34..36].copy_from_slice(&client.to_be_bytes());
        packet[36..38].copy_from_slice(&server.to_be_bytes());
        packet[HEADERS..HEADERS + 2].copy_from_slice(&request.id().to_be_bytes());
        let (digits, item) = (&mut packet[HEADERS + FRAME + 8..][..3], request.item());
        digits.copy_from_slice(&[item / 100, item / 10 % 10, item % 10].map(|digit| b'0' + digit as u8));
        packet.len()
    }

    /// The request that `packet` is the response to, if it is one, down to the last byte.
    #[inline]
    pub(super) fn answered(&self, packet: &[u8]) -> Option<Request> {
        let (header, payload) = packet.split_at_checked(HEADERS)?;
        let word = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
        let Ends { client, server } = &self.ends;
        let link = header[..6] == client.0 && header[6..12] == server.0 && word(12) == 0x0800;
        let ip = header[14] == 0x45 && header[23] == protocol::UDP && word(16) as usize == packet.len() - 14;
        let addresses = header[26..30] == server.1.octets() && header[30..34] == client.1.octets();
        let lengths = word(38) as usize == packet.len() - 34;
        if !(link && ip && addresses && lengths) || checksum::sum(&header[14..34]) != 0xffff {
            return None;
        }
        let (frame, response) = payload.split_at_checked(FRAME)?;
        let id = u16::from_be_bytes([frame[0], frame[1]]);
        let request = if word(34) == SECOND_PORT { Request::Second(id) } else { Request::Server(id) };
        let right = (word(36), word(34)) == request.ports()
            && frame[2..] == [0, 0, 0, 1, 0, 0]
            && response == self.values[request.item()];
        (right && (!self.checksums || self.udp_sum(packet) == 0xffff)).then_some(request)
    }

    fn udp_sum(&self, packet: &[u8]) -> u16 {
        let Ends { client, server } = &self.ends;
        let (src, dst, len) = (server.1.to_bits(), client.1.to_bits(), (packet.len() - 34) as u16);
        checksum::add(checksum::pseudo_header_sum(src, dst, protocol::UDP, len), checksum::sum(&packet[34..]))
    }
}

/// The number of which `id` is the lower half, and which is below `next`, but by less than 2^16.
pub(super) fn number(id: u16, next: u64) -> u64 {
    let last = next.wrapping_sub(1);
    last.wrapping_sub(u64::from((last as u16).wrapping_sub(id)))
}
