//! The packets of `bench forward`: templates with known destinations, the wire that writes them, and the wire
//! that checks what comes out.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{Arc, Mutex, PoisonError};

use softnet_core::ip::v6::header::{Ipv6Header, next};
use softnet_core::ip::{Address, IpPrefix, Prefix, Prefix6, checksum};
use softnet_dev::mem::{Sink, Source};

/// Bytes of a template: a 64-byte frame.
pub(super) const SIZE: usize = 64;
/// Where a template's number stands: in the UDP payload; of IPv6, for want of room, in the ports.
const NUMBER: usize = 42;
const NUMBER6: usize = 54;

/// A frame, aligned as in a packet buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(align(64))]
pub(super) struct Template(pub(super) [u8; SIZE]);

/// A small generator of pseudo-random numbers (xorshift64*), seeded: every run has the same packets.
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Uniform below `n` (`n` > 0).
    pub(super) fn below(&mut self, n: usize) -> usize {
        ((u128::from(self.next()) * n as u128) >> 64) as usize
    }
}

/// `n` distinct prefixes with the lengths of a BGP table (mostly /24, some longer), none of them martian or of a link.
pub(super) fn bgp_prefixes(n: usize, random: &mut Random) -> Vec<Prefix> {
    let mut seen = std::collections::HashSet::with_capacity(n);
    let mut prefixes = Vec::with_capacity(n);
    while prefixes.len() < n {
        let len = match random.below(100) {
            0..=1 => 16,
            2..=4 => 19,
            5..=9 => 20,
            10..=14 => 21,
            15..=26 => 22,
            27..=36 => 23,
            37..=96 => 24,
            _ => 25 + random.below(8) as u8,
        };
        let addr = Ipv4Addr::from(random.next() as u32);
        let first = addr.octets()[0];
        let Ok(prefix) = Prefix::containing(addr, len) else { continue };
        // 198.18.0.0/15 is the bench's own (RFC 2544).
        let own = u32::from(addr) >> 17 == u32::from(Ipv4Addr::new(198, 18, 0, 0)) >> 17;
        let forwarded = first != 0 && first != 127 && first < 224 && !addr.is_link_local();
        if forwarded && !own && seen.insert(prefix) {
            prefixes.push(prefix);
        }
    }
    prefixes
}

/// `n` distinct prefixes of IPv6 with the lengths of a BGP table (mostly /48 and /32), and some that only an inner network
/// has. They lie as the registries deal them out: in /32 blocks, six prefixes to a block on average, within a few /12.
pub(super) fn bgp_prefixes6(n: usize, random: &mut Random) -> Vec<Prefix6> {
    let block = |random: &mut Random| {
        let registry = [0x2400, 0x2600, 0x2800, 0x2a00, 0x2c00][random.below(5)] + random.below(16);
        (registry as u128) << 112 | u128::from(random.next() as u16) << 96
    };
    let blocks: Vec<u128> = (0..n.div_ceil(6)).map(|_| block(random)).collect();
    let mut seen = std::collections::HashSet::with_capacity(n);
    let mut prefixes = Vec::with_capacity(n);
    while prefixes.len() < n {
        let len = match random.below(100) {
            0..=2 => 29,
            3..=14 => 32,
            15..=19 => 36,
            20..=28 => 40,
            29..=30 => 42,
            31..=40 => 44,
            41..=43 => 46,
            44..=46 => 47,
            47..=95 => 48,
            96..=98 => 64,
            _ => 128,
        };
        let rest = (u128::from(random.next()) << 64 | u128::from(random.next())) >> 32;
        let Ok(prefix) =
            Prefix::containing(Ipv6Addr::from_bits(blocks[random.below(blocks.len())] | rest), len)
        else {
            continue;
        };
        if seen.insert(prefix) {
            prefixes.push(prefix);
        }
    }
    prefixes
}

/// Sixteen prefixes of /16.
pub(super) fn sixteen_prefixes() -> Vec<Prefix> {
    let prefix = |i: u8| Prefix::containing(Ipv4Addr::new(16 + 12 * i, 1, 0, 0), 16).ok();
    (0..16).filter_map(prefix).collect()
}

/// A UDP packet of [`SIZE`] bytes to `dst` by way of `mac`, numbered `number`.
pub(super) fn template(number: u32, mac: [u8; 6], dst: Ipv4Addr) -> Template {
    let mut t = [0; SIZE];
    t[..6].copy_from_slice(&mac);
    t[6..12].copy_from_slice(&[2, 0, 0, 0, 9, 9]);
    t[12..14].copy_from_slice(&[0x08, 0x00]);
    let mut ip = [0x45, 0, 0, (SIZE - 14) as u8, 0, 0, 0, 0, 64, 17, 0, 0, 198, 18, 0, 1, 0, 0, 0, 0];
    ip[16..].copy_from_slice(&dst.octets());
    let check = !checksum::ipv4_header_sum(&ip);
    ip[10..12].copy_from_slice(&check.to_be_bytes());
    t[14..34].copy_from_slice(&ip);
    t[34..42].copy_from_slice(&[0x30, 0x39, 0x00, 0x09, 0, (SIZE - 34) as u8, 0, 0]);
    t[NUMBER..NUMBER + 4].copy_from_slice(&number.to_be_bytes());
    Template(t)
}

/// The same packet with a tag of VLAN `vlan`, and four bytes of payload less. Of IPv4 only.
pub(super) fn tagged(of: &Template, vlan: u8) -> Template {
    let mut t = [0; SIZE];
    t[..12].copy_from_slice(&of.0[..12]);
    t[12..16].copy_from_slice(&[0x81, 0, 0, vlan]);
    t[16..].copy_from_slice(&of.0[12..SIZE - 4]);
    t[20..22].copy_from_slice(&[0, (SIZE - 18) as u8]);
    t[42..44].copy_from_slice(&[0, (SIZE - 38) as u8]);
    t[28..30].fill(0);
    let check = checksum::checksum(&t[18..38]);
    t[28..30].copy_from_slice(&check.to_be_bytes());
    Template(t)
}

/// The same with IPv6.
fn template6(number: u32, mac: [u8; 6], dst: Ipv6Addr) -> Template {
    let mut t = [0; SIZE];
    t[..6].copy_from_slice(&mac);
    t[6..14].copy_from_slice(&[2, 0, 0, 0, 9, 9, 0x86, 0xdd]);
    let (payload, src) = ((SIZE - NUMBER6) as u16, Ipv6Addr::new(0x2001, 2, 0, 1, 0, 0, 0, 1));
    if let Some(mut header) = Ipv6Header::new_mut(&mut t[14..]) {
        header.fill(payload, next::UDP, 64, src, dst);
    }
    t[NUMBER6..NUMBER6 + 4].copy_from_slice(&number.to_be_bytes());
    t[NUMBER6 + 4..NUMBER6 + 6].copy_from_slice(&payload.to_be_bytes());
    Template(t)
}

/// `n` numbered templates whose destinations are uniform over `prefixes`, and within each uniform over its
/// addresses.
pub(super) fn templates(n: usize, mac: [u8; 6], prefixes: &[IpPrefix], random: &mut Random) -> Vec<Template> {
    (0..n as u32)
        .map(|i| {
            let prefix = prefixes[random.below(prefixes.len())];
            let (first, last) = (prefix.addr().bits(), prefix.last().bits());
            // Of IPv4 one number is enough, and always was.
            let host = match prefix.addr() {
                IpAddr::V4(_) => random.next().into(),
                IpAddr::V6(_) => u128::from(random.next()) << 64 | u128::from(random.next()),
            };
            match prefix.addr().with_bits(first | host & (first ^ last)) {
                IpAddr::V4(dst) => template(i, mac, dst),
                IpAddr::V6(dst) => template6(i, mac, dst),
            }
        })
        .collect()
}

/// Where a template goes.
pub(super) fn destination(packet: &Template) -> IpAddr {
    match packet.0[14] >> 4 {
        6 => IpAddr::from(std::array::from_fn::<u8, 16, _>(|i| packet.0[38 + i])),
        _ => IpAddr::from(std::array::from_fn::<u8, 4, _>(|i| packet.0[30 + i])),
    }
}

/// Writes the templates in turn, from the first to the last and round again.
pub(super) struct Wire {
    templates: Arc<[Template]>,
    at: usize,
    /// What follows the last one, for good.
    then: Option<Arc<[Template]>>,
}

impl Wire {
    /// Those of `first` come once before, if there are any.
    pub(super) fn new(templates: Arc<[Template]>, first: Option<Arc<[Template]>>) -> Self {
        match first {
            Some(first) => Wire { templates: first, at: 0, then: Some(templates) },
            None => Wire { templates, at: 0, then: None },
        }
    }
}

impl Source for Wire {
    #[inline(always)]
    fn next_len(&self) -> usize {
        SIZE
    }

    #[inline(always)]
    fn write(&mut self, buf: &mut [u8]) -> usize {
        let Some((buf, template)) = buf.first_chunk_mut::<SIZE>().zip(self.templates.get(self.at)) else {
            return 0;
        };
        *buf = template.0;
        self.at += 1;
        if self.at == self.templates.len() {
            self.at = 0;
            if let Some(then) = self.then.take() {
                self.templates = then;
            }
        }
        SIZE
    }
}

/// Sums of every packet's eight words: cheap enough to run within the timed loop, and different if any byte of
/// any packet is, or one is missing, or one comes twice in place of another.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(super) struct Sums {
    pub(super) packets: u64,
    words: [u64; SIZE / 8],
}

impl Sums {
    #[inline(always)]
    pub(super) fn add(&mut self, packet: &[u8; SIZE]) {
        self.packets += 1;
        for (sum, word) in self.words.iter_mut().zip(packet.as_chunks::<8>().0) {
            *sum = sum.wrapping_add(u64::from_ne_bytes(*word));
        }
    }

    /// Adds another's packets `times` over.
    pub(super) fn add_times(&mut self, other: &Sums, times: u64) {
        self.packets += other.packets * times;
        for (sum, word) in self.words.iter_mut().zip(other.words) {
            *sum = sum.wrapping_add(word.wrapping_mul(times));
        }
    }
}

/// What the sink found, and how closely it looks.
#[derive(Default)]
pub(super) struct Found {
    pub(super) sums: Sums,
    /// Packets of another size than [`SIZE`].
    pub(super) strange: u64,
    /// While this is set, whole packets are kept.
    pub(super) keep: Option<Vec<Template>>,
}

/// The wire behind the sending NIC.
#[derive(Default)]
pub(super) struct Counter {
    sums: Sums,
    strange: u64,
    keep: bool,
    kept: Vec<Template>,
    report: Arc<Mutex<Found>>,
}

impl Counter {
    /// A sink, and where it reports when it is dropped.
    pub(super) fn new(keep: bool) -> (Self, Arc<Mutex<Found>>) {
        let report = Arc::new(Mutex::new(Found::default()));
        let mut counter = Counter::default();
        counter.keep = keep;
        counter.report = report.clone();
        (counter, report)
    }
}

impl Sink for Counter {
    #[inline(always)]
    fn read(&mut self, packet: &[u8]) {
        match packet.first_chunk::<SIZE>() {
            Some(chunk) if packet.len() == SIZE => {
                self.sums.add(chunk);
                if self.keep {
                    self.kept.push(Template(*chunk));
                }
            }
            _ => self.strange += 1,
        }
    }
}

impl Drop for Counter {
    fn drop(&mut self) {
        let mut found = self.report.lock().unwrap_or_else(PoisonError::into_inner);
        found.sums = std::mem::take(&mut self.sums);
        found.strange = self.strange;
        found.keep = self.keep.then(|| std::mem::take(&mut self.kept));
    }
}

/// The number that a packet carries.
pub(super) fn number(packet: &Template) -> u32 {
    let at = if destination(packet).is_ipv6() { NUMBER6 } else { NUMBER };
    u32::from_be_bytes(std::array::from_fn(|i| packet.0[at + i]))
}
