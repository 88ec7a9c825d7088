//! The wire of `bench skb-cache --app nat`: streams of full-sized TCP segments or UDP datagrams in
//! a VLAN, and the far end that checks what a router made of them.
//!
//! The payload of a measured run is the same in every packet, and is written only where a frame
//! does not have it yet: a network card's DMA costs the CPU nothing, so neither should this.
//! Headers are written afresh, with right checksums. The far end looks at headers alone then, which
//! with a known payload is enough to verify the L4 checksum of every packet. In a run to verify,
//! every packet has a payload of its own, and the far end compares all bytes.
//!
//! Invariant: a packet that is lost, doubled, out of its flow's order, or has a wrong byte in what
//! is looked at, is told.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::Instant;

use softnet_core::ip::checksum;
use softnet_core::skb::{Csum, GsoType, Skb};
use softnet_dev::mem::{Segmenter, Sink, Source};

use crate::bench::templates::Random;

/// Flows, and packets of one that come in a row.
pub(super) const FLOWS: usize = 8;
const TRAIN: usize = 8;
/// Segments of a TCP sender's burst: with as many, and timestamps, an aggregate stays below 64 KiB.
const WRITE: u32 = 45;

pub(super) const LAN_MAC: [u8; 6] = [0x02, 0, 0, 0, 1, 0];
pub(super) const WAN_MAC: [u8; 6] = [0x02, 0, 0, 0, 2, 0];
pub(super) const GATEWAY_MAC: [u8; 6] = [0x02, 0, 0, 0, 3, 0];
pub(super) const LAN_VLAN: u16 = 10;
pub(super) const WAN_VLAN: u16 = 20;
/// Address that sources are hidden behind.
pub(super) const WAN_ADDR: [u8; 4] = [198, 19, 0, 1];
/// Network of the servers, one to a flow.
pub(super) const SERVERS: [u8; 4] = [198, 51, 100, 0];
const PORT: u16 = 5001;

/// Offsets in a frame with one tag.
const TAG: usize = 14;
const IP: usize = 18;
const L4: usize = 38;
const TTL: u8 = 64;
/// L3 packets of this size.
const MTU: usize = 1500;
pub(super) const LEN: usize = IP + MTU;

/// What the streams consist of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Proto {
    Udp,
    Tcp,
}

impl Proto {
    pub(super) fn name(self) -> &'static str {
        ["udp", "tcp"][self as usize]
    }

    fn number(self) -> u8 {
        [17, 6][self as usize]
    }

    /// Bytes of its header; that of TCP has timestamps.
    fn header(self) -> usize {
        [8, 32][self as usize]
    }

    fn check_at(self) -> usize {
        [6, 16][self as usize]
    }

    /// Bytes of payload in a packet.
    pub(super) fn payload(self) -> usize {
        MTU - 20 - self.header()
    }
}

/// The payload of measured runs.
static PAYLOAD: LazyLock<[u8; MTU]> = LazyLock::new(|| {
    let mut random = Random::new(15);
    std::array::from_fn(|_| random.next() as u8)
});

/// Writes the payload of packet `n` of flow `flow` in a run to verify.
fn own_payload(payload: &mut [u8], flow: usize, n: u32) {
    let key = (flow as u32 + 1).wrapping_mul(0x9e37_79b9) ^ n.wrapping_mul(0x85eb_ca6b);
    let key = key.to_be_bytes();
    payload.iter_mut().zip(&*PAYLOAD).zip(key.iter().cycle()).for_each(|((to, byte), key)| *to = byte ^ key);
}

/// Sum of the pseudo-header of the packet whose IP header is at the start of `ip`.
fn pseudo_header(ip: &[u8], l4_len: usize) -> u16 {
    let word = |at: usize| u32::from_be_bytes(std::array::from_fn(|i| ip[at + i]));
    checksum::pseudo_header_sum(word(12), word(16), ip[9], l4_len as u16)
}

fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn put16(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

/// Measures what the wire takes, by the poll and by the kick: a network card and the machines
/// behind it do in parallel what the emulation does on the worker's CPU.
#[derive(Clone, Default)]
pub(super) struct Stopwatch {
    /// ns so far; `None`: what the wire takes is the worker's.
    ns: Option<Arc<AtomicU64>>,
    since: Option<Instant>,
}

impl Stopwatch {
    pub(super) fn running() -> Self {
        Stopwatch { ns: Some(Arc::default()), since: None }
    }

    pub(super) fn ns(&self) -> u64 {
        self.ns.as_ref().map_or(0, |ns| ns.load(Relaxed))
    }

    #[inline(always)]
    fn begin(&mut self) {
        self.since = self.ns.is_some().then(Instant::now);
    }

    #[inline(always)]
    fn end(&mut self) {
        if let (Some(since), Some(ns)) = (self.since.take(), &self.ns) {
            // One thread writes it.
            ns.store(ns.load(Relaxed) + since.elapsed().as_nanos() as u64, Relaxed);
        }
    }
}

/// The senders.
pub(super) struct Streams {
    proto: Proto,
    watch: Stopwatch,
    /// Each packet has a payload of its own.
    own: bool,
    payload_sum: u16,
    headers: [[u8; L4 + 32]; FLOWS],
    /// Packets so far.
    sent: [u32; FLOWS],
    /// Of all flows.
    at: usize,
}

impl Streams {
    pub(super) fn new(proto: Proto, own: bool, watch: Stopwatch) -> Self {
        let header = |flow: usize| {
            let mut h = [0; L4 + 32];
            h[..6].copy_from_slice(&LAN_MAC);
            h[6..12].copy_from_slice(&[2, 0, 0, 0, 9, flow as u8]);
            h[12..18].copy_from_slice(&[0x81, 0, 0, LAN_VLAN as u8, 8, 0]);
            let ip = [0x45, 0, (MTU >> 8) as u8, MTU as u8, 0, 0, 0x40, 0, TTL, proto.number(), 0, 0];
            h[IP..IP + 12].copy_from_slice(&ip);
            h[IP + 12..IP + 16].copy_from_slice(&[198, 18, 0, 10 + flow as u8]);
            let [a, b, c, d] = SERVERS;
            h[IP + 16..L4].copy_from_slice(&[a, b, c, d + 1 + flow as u8]);
            put16(&mut h, L4, 40000 + flow as u16);
            put16(&mut h, L4 + 2, PORT);
            match proto {
                Proto::Udp => put16(&mut h, L4 + 4, (MTU - 20) as u16),
                Proto::Tcp => {
                    // An acknowledgement number, 32 bytes of header, ACK, a window, and timestamps.
                    h[L4 + 8..L4 + 16].copy_from_slice(&[1, 2, 3, 4, 8 << 4, 0x10, 4, 0]);
                    h[L4 + 20..].copy_from_slice(&[1, 1, 8, 10, 0, 0, 3, 4, 0, 0, 5, 6]);
                }
            }
            h
        };
        let payload_sum = checksum::sum(&PAYLOAD[..proto.payload()]);
        let headers = std::array::from_fn(header);
        Streams { proto, watch, own, payload_sum, headers, sent: [0; FLOWS], at: 0 }
    }
}

impl Source for Streams {
    const AHEAD: bool = true;

    #[inline(always)]
    fn begin(&mut self) {
        self.watch.begin();
    }

    #[inline(always)]
    fn end(&mut self) {
        self.watch.end();
    }

    #[inline(always)]
    fn next_len(&self) -> usize {
        LEN
    }

    #[inline]
    fn write(&mut self, buf: &mut [u8]) -> usize {
        let proto = self.proto;
        let flow = self.at / TRAIN % FLOWS;
        self.at += 1;
        let n = self.sent[flow];
        self.sent[flow] = n.wrapping_add(1);
        let (len, start) = (proto.payload(), L4 + proto.header());
        let Some((header, payload)) = buf.get_mut(..LEN).and_then(|buf| buf.split_at_mut_checked(start))
        else {
            return 0;
        };
        header.copy_from_slice(&self.headers[flow][..start]);
        put16(header, IP + 4, n as u16);
        let check = !checksum::sum(&header[IP..L4]);
        put16(header, IP + 10, check);
        if proto == Proto::Tcp {
            header[L4 + 4..L4 + 8].copy_from_slice(&n.wrapping_mul(len as u32).to_be_bytes());
            if n % WRITE == WRITE - 1 {
                header[L4 + 13] |= 0x08;
            }
        }
        let sum = if self.own {
            own_payload(payload, flow, n);
            checksum::sum(payload)
        } else {
            let all = &PAYLOAD[..len];
            if payload[..8] != all[..8] || payload[len - 8..] != all[len - 8..] {
                payload.copy_from_slice(all);
            }
            self.payload_sum
        };
        let pseudo = pseudo_header(&header[IP..L4], proto.header() + len);
        let check = !checksum::add(checksum::add(pseudo, sum), checksum::sum(&header[L4..]));
        put16(header, L4 + proto.check_at(), if check == 0 { 0xffff } else { check });
        LEN
    }
}

/// What the far end found.
#[derive(Default)]
pub(super) struct Found {
    /// Packets on the wire, and in how many pieces the NIC was given them.
    pub(super) packets: u64,
    pub(super) pieces: u64,
    /// The first that was not as it should be, and why.
    pub(super) wrong: Option<String>,
}

/// The far end.
pub(super) struct FarEnd {
    proto: Proto,
    /// Packets come as they were sent, but for their order among flows.
    as_sent: bool,
    watch: Stopwatch,
    own: bool,
    payload_sum: u16,
    /// By flow: packets so far, and the port that its source has out there.
    seen: [u32; FLOWS],
    ports: [u16; FLOWS],
    found: Found,
    report: Arc<Mutex<Found>>,
}

impl FarEnd {
    /// And where it reports when it is dropped.
    pub(super) fn new(proto: Proto, own: bool, watch: Stopwatch) -> (Self, Arc<Mutex<Found>>) {
        let report = Arc::new(Mutex::new(Found::default()));
        let far = FarEnd {
            proto,
            as_sent: false,
            watch,
            own,
            payload_sum: checksum::sum(&PAYLOAD[..proto.payload()]),
            seen: [0; FLOWS],
            ports: [0; FLOWS],
            found: Found::default(),
            report: report.clone(),
        };
        (far, report)
    }

    /// One that no router is before.
    pub(super) fn unrouted(mut self) -> Self {
        self.as_sent = true;
        self
    }

    /// Looks at the headers of a packet that stands for `n` on the wire. `flags` are those of TCP
    /// that may differ.
    #[inline]
    fn headers(&mut self, packet: &[u8], n: u32) -> Result<(usize, u32), &'static str> {
        let proto = self.proto;
        let Some(h) = packet.get(..L4 + proto.header()) else { return Err("it is cut short") };
        let (to, vlan, ttl) =
            if self.as_sent { (LAN_MAC, LAN_VLAN, TTL) } else { (GATEWAY_MAC, WAN_VLAN, TTL - 1) };
        if h[..6] != to || !self.as_sent && h[6..12] != WAN_MAC {
            return Err("wrong MAC addresses");
        }
        if h[12..18] != [0x81, 0, 0, vlan as u8, 8, 0] {
            return Err("a wrong tag");
        }
        let ip = &h[IP..L4];
        if ip[..2] != [0x45, 0] || ip[6..10] != [0x40, 0, ttl, proto.number()] || checksum::sum(ip) != 0xffff
        {
            return Err("a wrong IP header");
        }
        let flow = usize::from(ip[19]).wrapping_sub(1);
        let source = if self.as_sent { [198, 18, 0, (10 + flow) as u8] } else { WAN_ADDR };
        if ip[12..16] != source || ip[16..19] != SERVERS[..3] || flow >= FLOWS || be16(h, L4 + 2) != PORT {
            return Err("a wrong address");
        }
        let first = self.seen[flow];
        if be16(ip, 4) != first as u16 {
            return Err("it is out of order");
        }
        let payload = n as usize * proto.payload();
        if usize::from(be16(ip, 2)) != 20 + proto.header() + payload {
            return Err("a wrong length");
        }
        match proto {
            Proto::Tcp => {
                let ends = (first + n).is_multiple_of(WRITE);
                let seq = first.wrapping_mul(proto.payload() as u32).to_be_bytes();
                if h[L4 + 4..L4 + 8] != seq || h[L4 + 13] != if ends { 0x18 } else { 0x10 } {
                    return Err("a wrong TCP header");
                }
            }
            Proto::Udp if usize::from(be16(h, L4 + 4)) != 8 + payload => return Err("a wrong UDP header"),
            Proto::Udp => {}
        }
        let port = be16(h, L4);
        if self.ports[flow] != port {
            if self.ports[flow] != 0 || self.ports.contains(&port) {
                return Err("a wrong source port");
            }
            self.ports[flow] = port;
        }
        self.seen[flow] = first + n;
        self.found.packets += u64::from(n);
        self.found.pieces += 1;
        Ok((flow, first))
    }

    fn packet(&mut self, packet: &[u8]) -> Result<(), &'static str> {
        if packet.len() != LEN {
            return Err("a wrong size");
        }
        let (flow, n) = self.headers(packet, 1)?;
        let start = L4 + self.proto.header();
        let payload = &packet[start..];
        let sum = if self.own {
            let mut own = [0; MTU];
            let own = &mut own[..payload.len()];
            own_payload(own, flow, n);
            if own != payload {
                return Err("a wrong payload");
            }
            checksum::sum(payload)
        } else {
            self.payload_sum
        };
        let pseudo = pseudo_header(&packet[IP..L4], packet.len() - L4);
        let sum = checksum::add(checksum::add(pseudo, sum), checksum::sum(&packet[L4..start]));
        if sum != 0xffff { Err("a wrong checksum") } else { Ok(()) }
    }

    /// An aggregate, or a packet with a partial checksum, that the NIC is to finish.
    fn unfinished(&mut self, skb: &Skb) -> Result<(), &'static str> {
        let (head, proto) = (skb.head(), self.proto);
        let Csum::Partial { start, offset } = head.csum else { return Err("no checksum to be completed") };
        if (usize::from(start), usize::from(offset)) != (L4, proto.check_at()) {
            return Err("its checksum is elsewhere");
        }
        let n = (skb.len() - L4 - proto.header()) / proto.payload();
        let kind = if proto == Proto::Tcp { GsoType::TcpV4 } else { GsoType::UdpL4 };
        let is_one = head.gso_size == 0 && n == 1;
        let size_is_right = usize::from(head.gso_size) == proto.payload() && usize::from(head.gso_segs) == n;
        let is_right = is_one || (head.gso_type == kind && size_is_right);
        if !is_right {
            return Err("it is to be cut otherwise");
        }
        if skb.len() != L4 + proto.header() + n * proto.payload() {
            return Err("it is not of whole segments");
        }
        let packet = skb.data();
        self.headers(packet, n as u32)?;
        let l4_len = proto.header() + n * proto.payload();
        if be16(packet, L4 + proto.check_at()) != pseudo_header(&packet[IP..L4], l4_len) {
            return Err("a wrong partial checksum");
        }
        Ok(())
    }

    #[inline]
    fn note(&mut self, verdict: Result<(), &'static str>, packet: &[u8]) {
        if let Err(why) = verdict
            && self.found.wrong.is_none()
        {
            self.found.wrong = Some(format!("{why}: {:02x?}", &packet[..packet.len().min(L4 + 32)]));
        }
    }
}

impl Sink for FarEnd {
    #[inline(always)]
    fn begin(&mut self) {
        self.watch.begin();
    }

    #[inline(always)]
    fn end(&mut self) {
        self.watch.end();
    }

    #[inline]
    fn read(&mut self, packet: &[u8]) {
        let verdict = self.packet(packet);
        self.note(verdict, packet);
    }

    fn read_offloaded(&mut self, skb: Skb, segmenter: &mut Segmenter) -> Option<Skb> {
        let unfinished = matches!(skb.head().csum, Csum::Partial { .. }) || skb.head().gso_size > 0;
        if unfinished && !self.own {
            let verdict = self.unfinished(&skb);
            self.note(verdict, skb.data());
        } else if unfinished {
            // The NIC's own cutting, and then every byte.
            let pieces = self.found.pieces;
            segmenter.cut(&skb, |packet| self.read(packet));
            self.found.pieces = pieces + 1;
        } else {
            self.read(skb.data());
        }
        Some(skb)
    }
}

impl Drop for FarEnd {
    fn drop(&mut self) {
        *self.report.lock().unwrap_or_else(PoisonError::into_inner) = std::mem::take(&mut self.found);
    }
}

/// The tag's offset is what the headers above are written by.
const _: () = assert!(TAG + 4 == IP && IP + 20 == L4);
