//! ICMP (RFC 792): errors about packets that can't go on, and answers to echo requests.
//!
//! Packets are skbs with their Ethernet header before the IPv4 header at [`l3`](crate::skb::Head::l3), as a device
//! delivers them; the results are of the same shape, to be routed like any other packet, which also fills in
//! their MAC addresses. Invariant: nothing is ever sent in answer to an ICMP error, to a group, or to an address
//! that is not a host's (RFC 1122 section 3.2.2, RFC 1812 section 4.3.2.7).

use std::net::Ipv4Addr;

use super::checksum;
use super::header::{Ipv4Header, MIN_LEN, is_unicast, protocol, validate, validate_header};
use super::{ETH_LEN, is_group};
use crate::skb::{DropReason, Flags, Skb, Store};

/// Time to live of what is made here (RFC 1700).
pub(super) const TTL: u8 = 64;
/// An error message is no longer than this, from its IPv4 header on (RFC 1812 section 4.3.2.3).
const ERROR_MAX: usize = 576;
/// Bytes of an ICMP header.
pub(super) const ICMP_LEN: usize = 8;
pub(super) const ECHO_REPLY: u8 = 0;
pub(super) const ECHO_REQUEST: u8 = 8;

/// What there is to complain about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IcmpError {
    /// The time to live ran out on the way (11/0).
    TimeExceeded,
    /// Fragments of a datagram to softnet did not come in time (11/1).
    ReassemblyTimeExceeded,
    /// No route to the destination (3/0).
    NetUnreachable,
    /// The last router's neighbour does not answer (3/1).
    HostUnreachable,
    /// Nobody serves this protocol here (3/2).
    ProtocolUnreachable,
    /// Nobody serves this port here (3/3).
    PortUnreachable,
    /// Too long for the way on, and not to be fragmented (3/4, RFC 1191).
    FragmentationNeeded {
        /// What would fit, in bytes from the IPv4 header on.
        mtu: u16,
    },
}

impl IcmpError {
    /// The first eight bytes of the message, without checksum.
    fn header(self) -> [u8; ICMP_LEN] {
        let (kind, code, mtu) = match self {
            IcmpError::TimeExceeded => (11, 0, 0),
            IcmpError::ReassemblyTimeExceeded => (11, 1, 0),
            IcmpError::NetUnreachable => (3, 0, 0),
            IcmpError::HostUnreachable => (3, 1, 0),
            IcmpError::ProtocolUnreachable => (3, 2, 0),
            IcmpError::PortUnreachable => (3, 3, 0),
            IcmpError::FragmentationNeeded { mtu } => (3, 4, mtu),
        };
        let [high, low] = u16::to_be_bytes(mtu);
        [kind, code, 0, 0, 0, 0, high, low]
    }
}

/// Builds the error message about `packet`, which stays with the caller (to be freed for its own reason), from
/// `source`, the address of the interface that `packet` came in by. `broadcast` says whether an address is the
/// directed broadcast of an attached subnet.
///
/// `None` if there may be no error about this packet, `limit` has no token left at `now` (ns), or no memory is
/// left. A packet that there may be no error about costs no token.
pub fn build_error(
    store: &mut Store,
    packet: &Skb,
    error: IcmpError,
    source: Ipv4Addr,
    broadcast: impl Fn(Ipv4Addr) -> bool,
    limit: &mut RateLimit,
    now: u64,
) -> Option<Skb> {
    if packet.head().flags & Flags::ORIGINATED != 0 {
        // It would come to ourselves, and nobody here would read it.
        return None;
    }
    let l3 = usize::from(packet.head().l3);
    if packet.data().first_chunk().is_some_and(|mac| l3 >= ETH_LEN && is_group(mac)) {
        return None;
    }
    let offending = packet.data().get(l3..)?;
    let lengths = validate_header(offending).ok()?;
    let header = Ipv4Header::new(offending)?;
    // Of a datagram in several skbs, what is in the first.
    let in_run = packet.head().flags & Flags::MORE != 0;
    let offending = match offending.get(..lengths.total) {
        Some(whole) => whole,
        None if in_run => offending,
        None => return None,
    };
    if !may_report(offending, lengths.header, broadcast) || !limit.allow(now) {
        return None;
    }
    let quote = &offending[..offending.len().min(ERROR_MAX - MIN_LEN - ICMP_LEN)];
    let total = MIN_LEN + ICMP_LEN + quote.len();

    let mut skb = store.alloc_skb()?;
    let Some(data) = skb.put(ETH_LEN + total) else {
        store.free_skb(skb);
        return None;
    };
    let (eth, ip) = data.split_at_mut(ETH_LEN);
    eth.fill(0);
    eth[12] = 0x08;
    ip[MIN_LEN..MIN_LEN + ICMP_LEN].copy_from_slice(&error.header());
    ip[MIN_LEN + ICMP_LEN..].copy_from_slice(quote);
    let check = checksum::checksum(&ip[MIN_LEN..]);
    ip[MIN_LEN + 2..MIN_LEN + 4].copy_from_slice(&check.to_be_bytes());
    if let Some(mut to) = Ipv4Header::new_mut(ip) {
        to.fill(total as u16, 0, TTL, protocol::ICMP, source.to_bits(), header.src());
        // Never fragmented, so the identification need not be unique (RFC 6864 section 4.1).
        to.set_dont_fragment(true);
        // The offender's type of service, at the precedence of internetwork control, and never ECN-capable
        // (RFC 1812 sections 4.3.2.4 and 4.3.2.5).
        to.set_tos((header.tos() & 0x1c) | 0xc0);
        to.renew_check();
    }
    let head = skb.head_mut();
    head.l3 = ETH_LEN as u16;
    head.dev = packet.head().dev;
    head.flags = Flags::ORIGINATED;
    Some(skb)
}

/// Whether an error about `packet`, whose header has `header_len` bytes, may be sent to its source.
pub(super) fn may_report(packet: &[u8], header_len: usize, broadcast: impl Fn(Ipv4Addr) -> bool) -> bool {
    let Some(header) = Ipv4Header::new(packet) else { return false };
    if !is_answerable(header.src(), header.dst(), broadcast) || header.fragment_offset() != 0 {
        return false;
    }
    if header.protocol() != protocol::ICMP {
        return true;
    }
    // Queries only: echo, timestamp, information, address mask. Types that are not known may be errors.
    matches!(packet.get(header_len), Some(0 | 8 | 13..=18))
}

/// Whether what came from `src` to `dst` may be answered at all: both are one host's. Destinations too may be unicast
/// only: no group, no broadcast.
pub(super) fn is_answerable(src: u32, dst: u32, broadcast: impl Fn(Ipv4Addr) -> bool) -> bool {
    [src, dst].into_iter().all(|addr| is_unicast(addr) && !broadcast(Ipv4Addr::from_bits(addr)))
}

/// Turns an echo request to `ours` that `skb` holds into the reply, in place; link-layer padding is cut off and
/// IPv4 options are left out. `broadcast` as for [`build_error`].
///
/// An `Err` says what to free the skb for: [`IcmpMalformed`](DropReason::IcmpMalformed) and
/// [`IcmpCsum`](DropReason::IcmpCsum) as they say, [`IpFragLocal`](DropReason::IpFragLocal) for a fragment,
/// [`IcmpIgnored`](DropReason::IcmpIgnored) for any sound message that is no echo request to an address of one
/// host from another (the kernel's `icmp_echo_ignore_broadcasts` is 1), and the reasons of [`validate`].
pub fn echo_reply(skb: &mut Skb, broadcast: impl Fn(Ipv4Addr) -> bool) -> Result<(), DropReason> {
    let l3 = usize::from(skb.head().l3);
    let group_mac = l3 >= ETH_LEN && skb.data().first_chunk().is_some_and(is_group);
    let packet = skb.data().get(l3..).ok_or(DropReason::PktTooSmall)?;
    let lengths = validate(packet)?;
    let header = Ipv4Header::new(packet).ok_or(DropReason::PktTooSmall)?;
    let (src, dst) = (header.src(), header.dst());
    if header.is_fragment() {
        return Err(DropReason::IpFragLocal);
    }
    if header.protocol() != protocol::ICMP {
        return Err(DropReason::IcmpIgnored);
    }
    let message = &packet[lengths.header..lengths.total];
    let Some(&[kind, _, high, low, ..]) = message.first_chunk::<ICMP_LEN>() else {
        return Err(DropReason::IcmpMalformed);
    };
    if checksum::sum(message) != 0xffff {
        return Err(DropReason::IcmpCsum);
    }
    if kind != ECHO_REQUEST || group_mac || !is_answerable(src, dst, broadcast) {
        return Err(DropReason::IcmpIgnored);
    }

    skb.trim(l3 + lengths.total);
    let options = lengths.header - MIN_LEN;
    if options > 0 {
        // Up to the last options byte everything moves towards the payload.
        skb.data_mut().copy_within(..l3 + MIN_LEN, options);
        skb.pull(options).ok_or(DropReason::PktTooSmall)?;
    }
    let packet = skb.data_mut().get_mut(l3..).ok_or(DropReason::PktTooSmall)?;
    let check = checksum::update16(
        u16::from_be_bytes([high, low]),
        u16::from(ECHO_REQUEST) << 8,
        u16::from(ECHO_REPLY) << 8,
    );
    let message = packet.get_mut(MIN_LEN..).and_then(|m| m.first_chunk_mut::<4>());
    let message = message.ok_or(DropReason::IcmpMalformed)?;
    message[0] = ECHO_REPLY;
    message[2..].copy_from_slice(&check.to_be_bytes());
    let total = packet.len() as u16;
    let mut header = Ipv4Header::new_mut(packet).ok_or(DropReason::PktTooSmall)?;
    header.set_plain(total);
    header.set_ttl(TTL);
    header.set_src(dst);
    header.set_dst(src);
    header.renew_check();
    let head = skb.head_mut();
    head.flags = Flags::ORIGINATED;
    // Of the flow in the other direction, which has not been redirected yet.
    (head.hash, head.tc_depth) = (0, 0);
    Ok(())
}

/// A token bucket in virtual time: what keeps errors from being an amplifier (RFC 1812 section 4.3.2.8).
#[derive(Clone, Debug)]
pub struct RateLimit {
    per_second: u64,
    /// A message costs [`COST`](Self::COST); this is what the bucket holds at the most.
    limit: u64,
    credit: u64,
    last: u64,
    limited: u64,
}

impl RateLimit {
    /// Credit of one message: a nanosecond brings `per_second` of it.
    const COST: u64 = 1_000_000_000;

    /// A full bucket of `burst` messages, filled at `per_second`.
    pub fn new(per_second: u32, burst: u32) -> Self {
        let limit = u64::from(burst) * Self::COST;
        RateLimit { per_second: per_second.into(), limit, credit: limit, last: 0, limited: 0 }
    }

    /// Whether one more message may be sent at `now` (ns); if so, it is paid for.
    pub fn allow(&mut self, now: u64) -> bool {
        let earned = now.saturating_sub(self.last).saturating_mul(self.per_second);
        self.credit = self.credit.saturating_add(earned).min(self.limit);
        self.last = self.last.max(now);
        match self.credit.checked_sub(Self::COST) {
            Some(rest) => {
                self.credit = rest;
                true
            }
            None => {
                self.limited += 1;
                false
            }
        }
    }

    /// Messages that were not sent.
    pub fn limited(&self) -> u64 {
        self.limited
    }
}

impl Default for RateLimit {
    /// The kernel's `icmp_msgs_per_sec` 1000 and `icmp_msgs_burst` 50.
    fn default() -> Self {
        Self::new(1000, 50)
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use proptest::prelude::*;

    use super::super::testing::context;
    use super::*;
    use crate::SoftnetData;

    const CLIENT: u32 = 0x0a00_0002;
    const SERVER: u32 = 0x0a01_0002;
    const ROUTER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
    const SUBNET_BROADCAST: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 255);

    fn broadcast(addr: Ipv4Addr) -> bool {
        addr == SUBNET_BROADCAST
    }

    /// An Ethernet frame with an IPv4 packet of `protocol` and `payload`, after `options` bytes of options.
    fn packet(ctx: &mut SoftnetData, protocol: u8, options: usize, payload: &[u8]) -> Skb {
        let mut skb = ctx.alloc_skb().unwrap();
        let header = MIN_LEN + options;
        let data = skb.put(ETH_LEN + header + payload.len()).unwrap();
        data[..ETH_LEN].copy_from_slice(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0]);
        let ip = &mut data[ETH_LEN..];
        let total = ip.len() as u16;
        Ipv4Header::new_mut(ip).unwrap().fill(total, 77, 3, protocol, CLIENT, SERVER);
        ip[0] = 0x40 | (header / 4) as u8;
        // End of options, then whatever.
        ip[MIN_LEN..header].fill(0);
        ip[header..].copy_from_slice(payload);
        skb.head_mut().l3 = ETH_LEN as u16;
        skb.head_mut().dev = 5;
        rehash(&mut skb);
        skb
    }

    fn rehash(skb: &mut Skb) {
        let ip = &mut skb.data_mut()[ETH_LEN..];
        let header = usize::from(ip[0] & 15) * 4;
        ip[10..12].fill(0);
        let check = checksum::checksum(&ip[..header]);
        ip[10..12].copy_from_slice(&check.to_be_bytes());
    }

    fn icmp(kind: u8, code: u8, rest: &[u8]) -> Vec<u8> {
        let mut message = vec![kind, code, 0, 0];
        message.extend(rest);
        let check = checksum::checksum(&message);
        message[2..4].copy_from_slice(&check.to_be_bytes());
        message
    }

    /// The error about `packet`, as bytes from its IPv4 header on; frees both.
    fn error_about(ctx: &mut SoftnetData, packet: Skb, error: IcmpError) -> Option<Vec<u8>> {
        let made = build_error(ctx, &packet, error, ROUTER, broadcast, &mut RateLimit::default(), 0);
        ctx.free(packet, DropReason::IpTtl);
        let made = made?;
        assert_eq!((made.head().l3, made.head().dev, made.head().flags), (14, 5, Flags::ORIGINATED));
        assert_eq!(made.data()[12..14], [8, 0]);
        let bytes = made.data()[ETH_LEN..].to_vec();
        ctx.deliver(made);
        assert_eq!(validate(&bytes).unwrap().total, bytes.len());
        assert_eq!(checksum::sum(&bytes[MIN_LEN..]), 0xffff);
        Some(bytes)
    }

    #[test]
    fn errors_on_the_wire() {
        let mut ctx = context();
        for (error, want) in [
            (IcmpError::TimeExceeded, [11, 0, 0, 0, 0, 0]),
            (IcmpError::ReassemblyTimeExceeded, [11, 1, 0, 0, 0, 0]),
            (IcmpError::NetUnreachable, [3, 0, 0, 0, 0, 0]),
            (IcmpError::HostUnreachable, [3, 1, 0, 0, 0, 0]),
            (IcmpError::ProtocolUnreachable, [3, 2, 0, 0, 0, 0]),
            (IcmpError::PortUnreachable, [3, 3, 0, 0, 0, 0]),
            (IcmpError::FragmentationNeeded { mtu: 1400 }, [3, 4, 0, 0, 0x05, 0x78]),
        ] {
            let skb = packet(&mut ctx, protocol::UDP, 4, &[7; 30]);
            let original = skb.data()[ETH_LEN..].to_vec();
            let bytes = error_about(&mut ctx, skb, error).unwrap();
            assert_eq!([&bytes[20..22], &bytes[24..28]].concat(), want);
            assert_eq!(bytes[28..], original[..]);
            let header = Ipv4Header::new(&bytes).unwrap();
            assert_eq!((header.src(), header.dst()), (ROUTER.to_bits(), CLIENT));
            assert_eq!((header.ttl(), header.protocol(), header.tos()), (64, 1, 0xc0));
            assert!(header.dont_fragment());
        }
    }

    #[test]
    fn quotes_what_fits_and_no_padding() {
        let mut ctx = context();
        let skb = packet(&mut ctx, protocol::TCP, 0, &[7; 1400]);
        let original = skb.data()[ETH_LEN..].to_vec();
        let bytes = error_about(&mut ctx, skb, IcmpError::TimeExceeded).unwrap();
        assert_eq!((bytes.len(), &bytes[28..]), (576, &original[..548]));
        let mut skb = packet(&mut ctx, protocol::UDP, 0, &[7; 8]);
        skb.put(18).unwrap().fill(0xee);
        assert_eq!(error_about(&mut ctx, skb, IcmpError::TimeExceeded).unwrap().len(), 28 + 28);
    }

    #[test]
    fn no_error_where_none_may_be() {
        let mut ctx = context();
        let mut verdict = |protocol, payload: &[u8], change: &dyn Fn(&mut [u8])| {
            let mut skb = packet(&mut ctx, protocol, 0, payload);
            change(skb.data_mut());
            rehash(&mut skb);
            error_about(&mut ctx, skb, IcmpError::TimeExceeded).is_some()
        };
        let udp = &[7; 8];
        assert!(verdict(protocol::UDP, udp, &|_| {}));
        // About ICMP: queries yes; errors, redirects, unknown types, and what has no type, no.
        for (kind, may) in
            [(8, true), (0, true), (13, true), (3, false), (5, false), (11, false), (12, false), (42, false)]
        {
            assert_eq!(verdict(protocol::ICMP, &icmp(kind, 0, &[0; 4]), &|_| {}), may, "type {kind}");
        }
        assert!(!verdict(protocol::ICMP, &[], &|_| {}));
        // Fragments: the first yes, others no.
        assert!(verdict(protocol::UDP, udp, &|d| d[ETH_LEN + 6] = 0x20));
        assert!(!verdict(protocol::UDP, udp, &|d| d[ETH_LEN + 7] = 1));
        // Groups on either layer, and sources that are no host.
        assert!(!verdict(protocol::UDP, udp, &|d| d[..6].fill(0xff)));
        assert!(!verdict(protocol::UDP, udp, &|d| d[0] = 1));
        for (at, addr) in [
            (16, [224, 0, 0, 1]),
            (16, [255; 4]),
            (16, SUBNET_BROADCAST.octets()),
            (12, [0; 4]),
            (12, [127, 0, 0, 1]),
            (12, [224, 0, 0, 1]),
            (12, [255; 4]),
            (12, SUBNET_BROADCAST.octets()),
        ] {
            assert!(
                !verdict(protocol::UDP, udp, &|d| d[ETH_LEN + at..][..4].copy_from_slice(&addr)),
                "{addr:?}"
            );
        }
    }

    #[test]
    fn only_errors_that_may_be_sent_cost_a_token() {
        let mut ctx = context();
        let mut limit = RateLimit::new(1, 1);
        let quiet = packet(&mut ctx, protocol::ICMP, 0, &icmp(3, 1, &[0; 4]));
        let loud = packet(&mut ctx, protocol::UDP, 0, &[0; 8]);
        let mut sent = |skb: &Skb| {
            let made =
                build_error(&mut ctx, skb, IcmpError::NetUnreachable, ROUTER, broadcast, &mut limit, 0);
            made.map(|skb| ctx.deliver(skb)).is_some()
        };
        assert_eq!([sent(&quiet), sent(&loud), sent(&loud), sent(&quiet)], [false, true, false, false]);
        assert_eq!(limit.limited(), 1);
        let mut own = packet(&mut ctx, protocol::UDP, 0, &[0; 8]);
        own.head_mut().flags = Flags::ORIGINATED;
        let mut limit = RateLimit::default();
        let error = IcmpError::HostUnreachable;
        assert!(build_error(&mut ctx, &own, error, ROUTER, broadcast, &mut limit, 0).is_none());
        ctx.free(own, DropReason::NeighFailed);
        ctx.free(quiet, DropReason::IpNoRoute);
        ctx.free(loud, DropReason::IpNoRoute);
    }

    #[test]
    fn echo_is_answered_in_place() {
        let mut ctx = context();
        for options in [0, 4, 40] {
            let payload: Vec<u8> = (0..56).collect();
            let message = icmp(8, 0, &[&[0x12, 0x34, 0, 9], &payload[..]].concat());
            let mut skb = packet(&mut ctx, protocol::ICMP, options, &message);
            skb.head_mut().hash = 99;
            skb.head_mut().tc_depth = 2;
            skb.put(5).unwrap().fill(0xee);
            assert_eq!(echo_reply(&mut skb, broadcast), Ok(()));
            assert_eq!(skb.data()[12..14], [8, 0]);
            let bytes = &skb.data()[ETH_LEN..];
            assert_eq!(validate(bytes).unwrap().total, bytes.len());
            let header = Ipv4Header::new(bytes).unwrap();
            assert_eq!((header.src(), header.dst(), header.ttl()), (SERVER, CLIENT, 64));
            assert_eq!((header.id(), header.header_len()), (77, 20));
            assert_eq!(bytes[20..], icmp(0, 0, &message[4..])[..]);
            assert_eq!((skb.head().flags, skb.head().hash, skb.head().tc_depth), (Flags::ORIGINATED, 0, 0));
            ctx.deliver(skb);
        }
    }

    #[test]
    fn echo_that_is_not_answered() {
        let mut ctx = context();
        let mut verdict = |protocol, message: &[u8], change: &dyn Fn(&mut [u8])| {
            let mut skb = packet(&mut ctx, protocol, 0, message);
            change(skb.data_mut());
            rehash(&mut skb);
            let (before, verdict) = (skb.data().to_vec(), echo_reply(&mut skb, broadcast));
            assert!(verdict.is_ok() || skb.data() == before);
            ctx.deliver(skb);
            verdict
        };
        let echo = icmp(8, 0, &[0; 12]);
        assert_eq!(verdict(protocol::ICMP, &echo, &|_| {}), Ok(()));
        assert_eq!(verdict(protocol::ICMP, &echo[..7], &|_| {}), Err(DropReason::IcmpMalformed));
        assert_eq!(verdict(protocol::ICMP, &echo, &|d| d[ETH_LEN + 30] = 1), Err(DropReason::IcmpCsum));
        assert_eq!(verdict(protocol::ICMP, &icmp(0, 0, &[0; 4]), &|_| {}), Err(DropReason::IcmpIgnored));
        assert_eq!(verdict(protocol::UDP, &echo, &|_| {}), Err(DropReason::IcmpIgnored));
        assert_eq!(verdict(protocol::ICMP, &echo, &|d| d[ETH_LEN + 6] = 0x20), Err(DropReason::IpFragLocal));
        assert_eq!(verdict(protocol::ICMP, &echo, &|d| d[..6].fill(0xff)), Err(DropReason::IcmpIgnored));
        for (at, addr) in
            [(16, [224, 0, 0, 1]), (16, SUBNET_BROADCAST.octets()), (12, SUBNET_BROADCAST.octets())]
        {
            let to = |d: &mut [u8]| d[ETH_LEN + at..][..4].copy_from_slice(&addr);
            assert_eq!(verdict(protocol::ICMP, &echo, &to), Err(DropReason::IcmpIgnored));
        }
    }

    #[test]
    fn bucket_empties_and_fills() {
        let mut limit = RateLimit::default();
        let burst = |limit: &mut RateLimit, now| (0..1000).filter(|_| limit.allow(now)).count();
        assert_eq!(burst(&mut limit, 5), 50);
        assert_eq!(limit.limited(), 950);
        assert_eq!(burst(&mut limit, 1_000_004), 0);
        assert_eq!(burst(&mut limit, 1_000_005), 1);
        // Time that stands still or runs backwards earns nothing.
        assert_eq!(burst(&mut limit, 0), 0);
        assert_eq!(burst(&mut limit, 3_000_005), 2);
        assert_eq!(burst(&mut limit, u64::MAX), 50);
        assert!(!RateLimit::new(0, 0).allow(u64::MAX));
    }

    proptest! {
        #[test]
        fn any_bytes_are_answered(
            bytes in prop::collection::vec(any::<u8>(), 0..120),
            l3 in 0u16..40,
            sound: bool,
            at in 0usize..60,
            value: u8,
        ) {
            let mut ctx = context();
            let mut skb = match sound {
                true => packet(&mut ctx, protocol::ICMP, 8, &icmp(8, 0, &bytes)),
                false => ctx.alloc_skb().unwrap(),
            };
            if sound {
                if let Some(byte) = skb.data_mut().get_mut(at) {
                    *byte = value;
                }
            } else {
                skb.put(bytes.len()).unwrap().copy_from_slice(&bytes);
                skb.head_mut().l3 = l3;
            }
            let mut limit = RateLimit::default();
            if let Some(made) = build_error(&mut ctx, &skb, IcmpError::TimeExceeded, ROUTER, broadcast, &mut limit, 0) {
                ctx.deliver(made);
            }
            if echo_reply(&mut skb, broadcast).is_ok() {
                prop_assert!(validate(&skb.data()[usize::from(skb.head().l3)..]).is_ok());
            }
            ctx.deliver(skb);
        }
    }
}
