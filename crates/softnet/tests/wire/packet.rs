//! Packets and frames as cases write them: every field has its usual value until it is said otherwise, and any of them may be
//! wrong. Shares nothing with softnet's own code for headers.

use std::net::{Ipv4Addr, Ipv6Addr};

pub(crate) type Mac = [u8; 6];

pub(crate) const ICMP: u8 = 1;
pub(crate) const TCP: u8 = 6;
pub(crate) const UDP: u8 = 17;
pub(crate) const HOP_BY_HOP: u8 = 0;
pub(crate) const ROUTING: u8 = 43;
pub(crate) const FRAGMENT: u8 = 44;
pub(crate) const ICMP6: u8 = 58;
pub(crate) const NO_NEXT: u8 = 59;
pub(crate) const DESTINATION: u8 = 60;

/// Identification of every IPv4 packet and IPv6 fragment that is sent.
pub(crate) const ID: u16 = 0x1234;

/// One's-complement sum of all bytes in a row, folded.
pub(crate) fn sum(parts: &[&[u8]]) -> u16 {
    let bytes = parts.concat();
    let words = bytes.chunks(2).map(|w| u32::from(w[0]) << 8 | u32::from(*w.get(1).unwrap_or(&0)));
    let mut sum = words.fold(0u32, |sum, word| sum.wrapping_add(word));
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// `len` bytes of payload in which no address can be mistaken for one.
pub(crate) fn data(len: usize) -> Vec<u8> {
    (0..len).map(|i| 0x80 | ((i * 7) ^ (i >> 8)) as u8).collect()
}

/// Anything that goes into a frame.
pub(crate) trait Layer3 {
    const ETHERTYPE: u16;
    fn bytes(&self) -> Vec<u8>;
}

fn udp_header(sport: u16, dport: u16, len: usize) -> Vec<u8> {
    [sport.to_be_bytes(), dport.to_be_bytes(), (len as u16 + 8).to_be_bytes(), [0; 2]].concat()
}

fn tcp_header(sport: u16, dport: u16, flags: u8) -> Vec<u8> {
    let ack: u32 = if flags & 0x10 != 0 { 0x0102_0304 } else { 0 };
    let ports = [sport.to_be_bytes(), dport.to_be_bytes()].concat();
    [&ports[..], &0x0a0b_0c0du32.to_be_bytes(), &ack.to_be_bytes(), &[0x50, flags, 0x10, 0, 0, 0, 0, 0]]
        .concat()
}

/// Puts the checksum that `pseudo` and `message` have at `at` of it.
fn fill_check(message: &mut [u8], pseudo: &[u8], at: usize) {
    message[at..at + 2].fill(0);
    let check = !sum(&[pseudo, message]);
    message[at..at + 2].copy_from_slice(&check.to_be_bytes());
}

/// Where the checksum is in a message of a protocol.
fn check_at(proto: u8) -> usize {
    match proto {
        UDP => 6,
        TCP => 16,
        _ => 2,
    }
}

/// An IPv4 packet.
#[derive(Clone, Debug)]
pub(crate) struct Ip4 {
    pub(crate) src: Ipv4Addr,
    pub(crate) dst: Ipv4Addr,
    pub(crate) payload: Vec<u8>,
    tos: u8,
    id: u16,
    /// Flags and offset.
    word: u16,
    ttl: u8,
    proto: u8,
    options: Vec<u8>,
    first: Option<u8>,
    total: Option<u16>,
    bad_check: bool,
}

impl Ip4 {
    pub(crate) fn new(src: Ipv4Addr, dst: Ipv4Addr) -> Ip4 {
        Ip4 {
            src,
            dst,
            payload: Vec::new(),
            tos: 0,
            id: ID,
            word: 0,
            ttl: 64,
            proto: 253,
            options: Vec::new(),
            first: None,
            total: None,
            bad_check: false,
        }
    }
    pub(crate) fn tos(self, tos: u8) -> Ip4 {
        Ip4 { tos, ..self }
    }
    pub(crate) fn id(self, id: u16) -> Ip4 {
        Ip4 { id, ..self }
    }
    pub(crate) fn ttl(self, ttl: u8) -> Ip4 {
        Ip4 { ttl, ..self }
    }
    pub(crate) fn df(self) -> Ip4 {
        Ip4 { word: self.word | 0x4000, ..self }
    }
    pub(crate) fn reserved_flag(self) -> Ip4 {
        Ip4 { word: self.word | 0x8000, ..self }
    }
    pub(crate) fn mf(self) -> Ip4 {
        Ip4 { word: self.word | 0x2000, ..self }
    }
    /// At this offset in bytes, a multiple of eight.
    pub(crate) fn offset(self, bytes: usize) -> Ip4 {
        Ip4 { word: self.word & 0xe000 | (bytes / 8) as u16, ..self }
    }
    /// Options, filled up with zeros.
    pub(crate) fn options(mut self, options: &[u8]) -> Ip4 {
        self.options = options.to_vec();
        self.options.resize(options.len().next_multiple_of(4), 0);
        self
    }
    /// The first byte: version and header length.
    pub(crate) fn first_byte(self, first: u8) -> Ip4 {
        Ip4 { first: Some(first), ..self }
    }
    pub(crate) fn total(self, total: u16) -> Ip4 {
        Ip4 { total: Some(total), ..self }
    }
    pub(crate) fn bad_check(self) -> Ip4 {
        Ip4 { bad_check: true, ..self }
    }
    pub(crate) fn proto(self, proto: u8, payload: &[u8]) -> Ip4 {
        Ip4 { proto, payload: payload.to_vec(), ..self }
    }
    fn pseudo(&self) -> Vec<u8> {
        let len = (self.payload.len() as u16).to_be_bytes();
        [&self.src.octets()[..], &self.dst.octets(), &[0, self.proto], &len].concat()
    }
    /// Renews the checksum of the payload.
    pub(crate) fn checked(mut self) -> Ip4 {
        let pseudo = if self.proto == ICMP { Vec::new() } else { self.pseudo() };
        fill_check(&mut self.payload, &pseudo, check_at(self.proto));
        self
    }
    pub(crate) fn udp(self, dport: u16, len: usize) -> Ip4 {
        let datagram = [udp_header(4000, dport, len), data(len)].concat();
        self.proto(UDP, &datagram).checked()
    }
    pub(crate) fn tcp(self, flags: u8, dport: u16, len: usize) -> Ip4 {
        let segment = [tcp_header(4000, dport, flags), data(len)].concat();
        self.proto(TCP, &segment).checked()
    }
    pub(crate) fn icmp(self, kind: u8, code: u8, rest: u32, body: &[u8]) -> Ip4 {
        let message = [&[kind, code, 0, 0][..], &rest.to_be_bytes(), body].concat();
        self.proto(ICMP, &message).checked()
    }
    pub(crate) fn echo(self, len: usize) -> Ip4 {
        self.icmp(8, 0, 0x4321_0001, &data(len))
    }
    /// Writes over the payload, checksum left as it is.
    pub(crate) fn patch(mut self, at: usize, bytes: &[u8]) -> Ip4 {
        self.payload[at..at + bytes.len()].copy_from_slice(bytes);
        self
    }
    /// Breaks the checksum of the payload.
    pub(crate) fn bad_payload_check(mut self) -> Ip4 {
        self.payload[check_at(self.proto)] ^= 0x55;
        self
    }
    /// The fragments of it with these bytes of the payload; whichever ends with it is the last.
    pub(crate) fn fragments(&self, parts: &[(usize, usize)]) -> Vec<Ip4> {
        let fragment = |&(start, end): &(usize, usize)| {
            let mut fragment = self.clone().offset(start);
            fragment.payload = self.payload[start..end].to_vec();
            if end < self.payload.len() { fragment.mf() } else { fragment }
        };
        parts.iter().map(fragment).collect()
    }
}

impl Layer3 for Ip4 {
    const ETHERTYPE: u16 = 0x0800;

    fn bytes(&self) -> Vec<u8> {
        let header_len = 20 + self.options.len();
        let first = self.first.unwrap_or(0x40 | (header_len / 4) as u8);
        let total = self.total.unwrap_or((header_len + self.payload.len()) as u16);
        let mut header = vec![first, self.tos];
        for word in [total, self.id, self.word] {
            header.extend(word.to_be_bytes());
        }
        header.extend([self.ttl, self.proto, 0, 0]);
        header.extend(self.src.octets());
        header.extend(self.dst.octets());
        header.extend(&self.options);
        let said = (usize::from(first & 15) * 4).clamp(12, header.len());
        let check = !sum(&[&header[..said]]) ^ if self.bad_check { 0x0101 } else { 0 };
        header[10..12].copy_from_slice(&check.to_be_bytes());
        [header, self.payload.clone()].concat()
    }
}

/// An IPv6 packet.
#[derive(Clone, Debug)]
pub(crate) struct Ip6 {
    pub(crate) src: Ipv6Addr,
    pub(crate) dst: Ipv6Addr,
    pub(crate) payload: Vec<u8>,
    class: u8,
    flow: u32,
    hops: u8,
    /// Extension headers, without their first byte.
    headers: Vec<(u8, Vec<u8>)>,
    proto: u8,
    version: u8,
    len: Option<u16>,
}

impl Ip6 {
    pub(crate) fn new(src: Ipv6Addr, dst: Ipv6Addr) -> Ip6 {
        Ip6 {
            src,
            dst,
            payload: Vec::new(),
            class: 0,
            flow: 0,
            hops: 64,
            headers: Vec::new(),
            proto: NO_NEXT,
            version: 6,
            len: None,
        }
    }
    pub(crate) fn class(self, class: u8) -> Ip6 {
        Ip6 { class, ..self }
    }
    pub(crate) fn flow(self, flow: u32) -> Ip6 {
        Ip6 { flow, ..self }
    }
    pub(crate) fn hops(self, hops: u8) -> Ip6 {
        Ip6 { hops, ..self }
    }
    pub(crate) fn version(self, version: u8) -> Ip6 {
        Ip6 { version, ..self }
    }
    /// The payload length that the header states.
    pub(crate) fn len(self, len: u16) -> Ip6 {
        Ip6 { len: Some(len), ..self }
    }
    pub(crate) fn proto(self, proto: u8, payload: &[u8]) -> Ip6 {
        Ip6 { proto, payload: payload.to_vec(), ..self }
    }
    fn pseudo(&self) -> Vec<u8> {
        let len = (self.payload.len() as u32).to_be_bytes();
        [&self.src.octets()[..], &self.dst.octets(), &len, &[0, 0, 0, self.proto]].concat()
    }
    /// Renews the checksum of the payload.
    pub(crate) fn checked(mut self) -> Ip6 {
        let pseudo = self.pseudo();
        fill_check(&mut self.payload, &pseudo, check_at(self.proto));
        self
    }
    pub(crate) fn udp(self, dport: u16, len: usize) -> Ip6 {
        let datagram = [udp_header(4000, dport, len), data(len)].concat();
        self.proto(UDP, &datagram).checked()
    }
    pub(crate) fn tcp(self, flags: u8, dport: u16, len: usize) -> Ip6 {
        let segment = [tcp_header(4000, dport, flags), data(len)].concat();
        self.proto(TCP, &segment).checked()
    }
    pub(crate) fn icmp(self, kind: u8, code: u8, rest: u32, body: &[u8]) -> Ip6 {
        let message = [&[kind, code, 0, 0][..], &rest.to_be_bytes(), body].concat();
        self.proto(ICMP6, &message).checked()
    }
    pub(crate) fn echo(self, len: usize) -> Ip6 {
        self.icmp(128, 0, 0x4321_0001, &data(len))
    }
    pub(crate) fn patch(mut self, at: usize, bytes: &[u8]) -> Ip6 {
        self.payload[at..at + bytes.len()].copy_from_slice(bytes);
        self
    }
    pub(crate) fn bad_payload_check(mut self) -> Ip6 {
        self.payload[check_at(self.proto)] ^= 0x55;
        self
    }
    /// One more extension header, behind those that there are; `body` is all but its first byte.
    pub(crate) fn header(mut self, kind: u8, body: &[u8]) -> Ip6 {
        self.headers.push((kind, body.to_vec()));
        self
    }
    /// One more header of options, filled up with PadN to a multiple of eight bytes.
    pub(crate) fn opts(self, kind: u8, options: &[u8]) -> Ip6 {
        let len = (options.len() + 2).next_multiple_of(8);
        let mut body = vec![(len / 8 - 1) as u8];
        body.extend(options);
        match len - 2 - options.len() {
            0 => {}
            1 => body.push(0),
            n => {
                body.extend([1, n as u8 - 2]);
                body.resize(len - 1, 0);
            }
        }
        self.header(kind, &body)
    }
    /// One more routing header of this type, with so many segments left, with `via`.
    pub(crate) fn routing(self, kind: u8, left: u8, via: &[Ipv6Addr]) -> Ip6 {
        let mut body = vec![via.len() as u8 * 2, kind, left, 0, 0, 0, 0];
        via.iter().for_each(|addr| body.extend(addr.octets()));
        self.header(ROUTING, &body)
    }
    /// One more fragment header.
    pub(crate) fn fragment(self, offset: usize, more: bool) -> Ip6 {
        let word = (offset as u16 & !7) | u16::from(more);
        let body = [&[0][..], &word.to_be_bytes(), &u32::from(ID).to_be_bytes()].concat();
        self.header(FRAGMENT, &body)
    }
    /// The fragments of it with these bytes of the payload; whichever ends with it is the last.
    pub(crate) fn fragments(&self, parts: &[(usize, usize)]) -> Vec<Ip6> {
        let fragment = |&(start, end): &(usize, usize)| {
            let mut fragment = self.clone().fragment(start, end < self.payload.len());
            fragment.payload = self.payload[start..end].to_vec();
            fragment
        };
        parts.iter().map(fragment).collect()
    }
}

impl Layer3 for Ip6 {
    const ETHERTYPE: u16 = 0x86dd;

    fn bytes(&self) -> Vec<u8> {
        let kinds = self.headers.iter().map(|(kind, _)| *kind).chain([self.proto]);
        let mut next = kinds.collect::<Vec<_>>().into_iter();
        let first = next.next().unwrap_or(NO_NEXT);
        let mut behind = Vec::new();
        for ((_, body), kind) in self.headers.iter().zip(next) {
            behind.push(kind);
            behind.extend(body);
        }
        behind.extend(&self.payload);
        let word = u32::from(self.version) << 28 | u32::from(self.class) << 20 | self.flow;
        let mut packet = word.to_be_bytes().to_vec();
        packet.extend(self.len.unwrap_or(behind.len() as u16).to_be_bytes());
        packet.extend([first, self.hops]);
        packet.extend(self.src.octets());
        packet.extend(self.dst.octets());
        packet.extend(behind);
        packet
    }
}

/// An ARP packet of IPv4 over Ethernet.
#[derive(Clone, Debug)]
pub(crate) struct Arp {
    pub(crate) operation: u16,
    pub(crate) sender: (Mac, Ipv4Addr),
    pub(crate) target: (Mac, Ipv4Addr),
    /// Hardware, protocol, and the lengths of their addresses.
    pub(crate) format: [u8; 6],
}

impl Arp {
    pub(crate) fn new(operation: u16, sender: (Mac, Ipv4Addr), target: (Mac, Ipv4Addr)) -> Arp {
        Arp { operation, sender, target, format: [0, 1, 8, 0, 6, 4] }
    }
    pub(crate) fn format(self, format: [u8; 6]) -> Arp {
        Arp { format, ..self }
    }
}

impl Layer3 for Arp {
    const ETHERTYPE: u16 = 0x0806;

    fn bytes(&self) -> Vec<u8> {
        let mut packet = [&self.format[..], &self.operation.to_be_bytes()].concat();
        for (mac, addr) in [self.sender, self.target] {
            packet.extend(mac);
            packet.extend(addr.octets());
        }
        packet
    }
}

/// A frame to send by a link.
#[derive(Clone, Debug)]
pub(crate) struct Frame {
    pub(crate) link: usize,
    dst: Mac,
    src: Mac,
    tag: Option<[u8; 4]>,
    ethertype: u16,
    payload: Vec<u8>,
}

impl Frame {
    pub(crate) fn new<T: Layer3>(link: usize, (src, dst): (Mac, Mac), packet: &T) -> Frame {
        Frame { link, dst, src, tag: None, ethertype: T::ETHERTYPE, payload: packet.bytes() }
    }
    pub(crate) fn to(self, dst: Mac) -> Frame {
        Frame { dst, ..self }
    }
    pub(crate) fn from(self, src: Mac) -> Frame {
        Frame { src, ..self }
    }
    /// With a VLAN tag of this ethertype and tag control information.
    pub(crate) fn tag(self, ethertype: u16, control: u16) -> Frame {
        let [a, b] = ethertype.to_be_bytes();
        let [c, d] = control.to_be_bytes();
        Frame { tag: Some([a, b, c, d]), ..self }
    }
    pub(crate) fn ethertype(self, ethertype: u16) -> Frame {
        Frame { ethertype, ..self }
    }
    /// With so many more bytes behind the packet.
    pub(crate) fn trailer(mut self, len: usize) -> Frame {
        self.payload.resize(self.payload.len() + len, 0xee);
        self
    }
    /// Cut to so many bytes behind the Ethernet header.
    pub(crate) fn cut(mut self, len: usize) -> Frame {
        self.payload.truncate(len);
        self
    }
    /// Filled up to the shortest frame of Ethernet.
    pub(crate) fn padded(mut self) -> Frame {
        self.payload.resize(self.payload.len().max(46), 0);
        self
    }
    /// What it carries.
    pub(crate) fn packet(&self) -> &[u8] {
        &self.payload
    }
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let tag = self.tag.as_ref().map_or(&[][..], |tag| &tag[..]);
        [&self.dst[..], &self.src, tag, &self.ethertype.to_be_bytes(), &self.payload].concat()
    }
}
