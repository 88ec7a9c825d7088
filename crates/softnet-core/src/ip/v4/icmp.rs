//! ICMP (RFC 792): errors about packets that can't go on, and answers to echo requests.
//!
//! Packets are skbs with their Ethernet header before the IPv4 header at [`l3`](crate::skb::Head::l3), as a device
//! delivers them; the results are of the same shape, to be routed like any other packet, which also fills in
//! their MAC addresses. Invariant: nothing is ever sent in answer to an ICMP error, to a group, or to an address
//! that is not a host's (RFC 1122 section 3.2.2, RFC 1812 section 4.3.2.7).

use std::net::Ipv4Addr;

use super::super::icmp_limit::IcmpLimit;
use super::super::{ETH_LEN, Family, checksum, is_group};
use super::header::{Ipv4Header, MIN_LEN, is_unicast, protocol, validate, validate_part};
use super::options::EchoOptions;
use crate::skb::{DropReason, Flags, Skb, Store};

/// Time to live of what is made here (RFC 1700).
pub(in crate::ip) const TTL: u8 = 64;
/// An error message is no longer than this, from its IPv4 header on (RFC 1812 section 4.3.2.3).
const ERROR_MAX: usize = 576;
/// Bytes of an ICMP header.
pub(in crate::ip) const ICMP_LEN: usize = 8;
pub(in crate::ip) const ECHO_REPLY: u8 = 0;
pub(in crate::ip) const ECHO_REQUEST: u8 = 8;

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
    /// This protocol is not served here (3/2).
    ProtocolUnreachable,
    /// This port is not served here (3/3).
    PortUnreachable,
    /// A filter does not let it pass (3/13, RFC 1812 section 5.2.7.1).
    AdminProhibited,
    /// Too long for the way on, and not to be fragmented (3/4, RFC 1191).
    FragmentationNeeded {
        /// What would fit, in bytes from the IPv4 header on.
        mtu: u16,
    },
    /// Options that can't be understood (12/0).
    ParameterProblem {
        /// Where, from the first byte of the IPv4 header.
        pointer: u8,
    },
}

impl IcmpError {
    /// The first eight bytes of the message, without checksum.
    fn header(self) -> [u8; ICMP_LEN] {
        let (kind, code, pointer, mtu) = match self {
            IcmpError::TimeExceeded => (11, 0, 0, 0),
            IcmpError::ReassemblyTimeExceeded => (11, 1, 0, 0),
            IcmpError::NetUnreachable => (3, 0, 0, 0),
            IcmpError::HostUnreachable => (3, 1, 0, 0),
            IcmpError::ProtocolUnreachable => (3, 2, 0, 0),
            IcmpError::PortUnreachable => (3, 3, 0, 0),
            IcmpError::AdminProhibited => (3, 13, 0, 0),
            IcmpError::FragmentationNeeded { mtu } => (3, 4, 0, mtu),
            IcmpError::ParameterProblem { pointer } => (12, 0, pointer, 0),
        };
        let [high, low] = u16::to_be_bytes(mtu);
        [kind, code, 0, 0, pointer, 0, high, low]
    }
}

/// Builds the error message about `packet`, which stays with the caller (to be freed for its own
/// reason), from `source`, an address of softnet's. `broadcast` says whether an address is the
/// directed broadcast of an attached subnet.
///
/// `None` if there may be no error about this packet, `limit` does not allow one at `now` (ns), or
/// no memory is left. A packet that there may be no error about is not charged for.
pub fn build_error(
    store: &mut Store,
    packet: &Skb,
    error: IcmpError,
    source: Ipv4Addr,
    broadcast: impl Fn(Ipv4Addr) -> bool,
    limit: &mut IcmpLimit,
    now: u64,
) -> Option<Skb> {
    if packet.head().flags & Flags::ORIGINATED != 0 {
        // It would come to ourselves, and nothing here would read it.
        return None;
    }
    let l3 = usize::from(packet.head().l3);
    if packet.data().first_chunk().is_some_and(|mac| l3 >= ETH_LEN && is_group(mac)) {
        return None;
    }
    let offending = packet.data().get(l3..)?;
    let lengths = validate_part(offending, packet.len() - l3).ok()?;
    let header = Ipv4Header::new(offending)?;
    // In case there is link-layer padding. (The L4 header is in the first frame.)
    let offending = &offending[..lengths.total.min(offending.len())];
    let message = error.header();
    if !may_report(offending, lengths.header, broadcast)
        || !limit.allow(now, (message[0], message[1]), header.src().into())
    {
        return None;
    }
    let quote = |quote: &mut [u8]| packet.copy_bits(l3, quote);
    let mut skb = write_about(store, message, source, (header, lengths.total), quote)?;
    let head = skb.head_mut();
    (head.dev, head.queue) = (packet.head().dev, packet.head().queue);
    Some(skb)
}

/// Writes a message with this header from `source` to the sender of a packet with the IPv4 header `about`, of whose `len` bytes
/// `quote` writes as many as there is room for. `None` if there is no memory.
pub(in crate::ip) fn write_about(
    store: &mut Store,
    message: [u8; ICMP_LEN],
    source: Ipv4Addr,
    (about, len): (Ipv4Header<&[u8; MIN_LEN]>, usize),
    quote: impl FnOnce(&mut [u8]),
) -> Option<Skb> {
    let total = MIN_LEN + ICMP_LEN + len.min(ERROR_MAX - MIN_LEN - ICMP_LEN);

    let mut skb = store.alloc_skb()?;
    let Some(data) = skb.put(ETH_LEN + total) else {
        store.free_skb(skb);
        return None;
    };
    let (eth, ip) = data.split_at_mut(ETH_LEN);
    eth.fill(0);
    eth[12..].copy_from_slice(&Ipv4Addr::ETHERTYPE.to_be_bytes());
    ip[MIN_LEN..MIN_LEN + ICMP_LEN].copy_from_slice(&message);
    quote(&mut ip[MIN_LEN + ICMP_LEN..]);
    let check = checksum::checksum(&ip[MIN_LEN..]);
    ip[MIN_LEN + 2..MIN_LEN + 4].copy_from_slice(&check.to_be_bytes());
    if let Some(mut to) = Ipv4Header::new_mut(ip) {
        to.fill(total as u16, 0, TTL, protocol::ICMP, source.to_bits(), about.src());
        // Never fragmented, so the identification need not be unique (RFC 6864 section 4.1).
        to.set_dont_fragment(true);
        // The offender's type of service, at the precedence of internetwork control, and never ECN-capable
        // (RFC 1812 sections 4.3.2.4 and 4.3.2.5).
        to.set_tos((about.tos() & 0x1c) | 0xc0);
        to.renew_check();
    }
    let head = skb.head_mut();
    (head.l3, head.flags) = (ETH_LEN as u16, Flags::ORIGINATED);
    Some(skb)
}

/// Whether an error about `packet`, whose header has `header_len` bytes, may be sent to its source.
pub(in crate::ip) fn may_report(
    packet: &[u8],
    header_len: usize,
    broadcast: impl Fn(Ipv4Addr) -> bool,
) -> bool {
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
pub(in crate::ip) fn is_answerable(src: u32, dst: u32, broadcast: impl Fn(Ipv4Addr) -> bool) -> bool {
    [src, dst].into_iter().all(|addr| is_unicast(addr) && !broadcast(Ipv4Addr::from_bits(addr)))
}

/// Turns an echo request to softnet that `skb` holds into the reply, in place; link-layer padding
/// is cut off, and in place of the request's IPv4 options it has `options`, which take no more
/// room. `broadcast` as for [`build_error`]. `ident` is asked for an identification if that of the
/// request need not be unique, as its datagram was not to be fragmented (RFC 6864 section 4.1); the
/// reply may be.
///
/// An `Err` says what to free the skb for: [`IcmpMalformed`](DropReason::IcmpMalformed) and
/// [`IcmpCsum`](DropReason::IcmpCsum) as they say, [`IpFragLocal`](DropReason::IpFragLocal) for a
/// fragment, [`IcmpIgnored`](DropReason::IcmpIgnored) for any sound message that is no echo request
/// to an address of one host from another (the kernel's `icmp_echo_ignore_broadcasts` is 1), and
/// the reasons of [`validate`].
pub fn echo_reply(
    skb: &mut Skb,
    options: &EchoOptions,
    broadcast: impl Fn(Ipv4Addr) -> bool,
    ident: impl FnOnce() -> u16,
) -> Result<(), DropReason> {
    let l3 = usize::from(skb.head().l3);
    let group_mac = l3 >= ETH_LEN && skb.data().first_chunk().is_some_and(is_group);
    let packet = skb.data().get(l3..).ok_or(DropReason::PktTooSmall)?;
    let lengths = validate(packet)?;
    let header = Ipv4Header::new(packet).ok_or(DropReason::PktTooSmall)?;
    let (src, dst, dont_fragment) = (header.src(), header.dst(), header.dont_fragment());
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
    let options = options.as_slice();
    if options.len() > lengths.header - MIN_LEN {
        return Err(DropReason::PktTooSmall);
    }
    let check = reply_check([high, low], || checksum::sum(&message[4..]) == 0);

    skb.trim(l3 + lengths.total);
    let shorter = (lengths.header - MIN_LEN).saturating_sub(options.len());
    if shorter > 0 {
        // Up to the last byte that is kept of the header everything moves towards the payload.
        skb.data_mut().copy_within(..l3 + lengths.header - shorter, shorter);
        skb.pull(shorter).ok_or(DropReason::PktTooSmall)?;
    }
    let packet = skb.data_mut().get_mut(l3..).ok_or(DropReason::PktTooSmall)?;
    let total = packet.len() as u16;
    let split = packet.split_at_mut_checked(lengths.header - shorter);
    let (bytes, message) = split.ok_or(DropReason::PktTooSmall)?;
    let message = message.first_chunk_mut::<4>().ok_or(DropReason::IcmpMalformed)?;
    message[0] = ECHO_REPLY;
    message[2..].copy_from_slice(&check.to_be_bytes());
    bytes[0] = 0x40 | (bytes.len() / 4) as u8;
    bytes[MIN_LEN..].copy_from_slice(options);
    let mut header = Ipv4Header::new_mut(bytes).ok_or(DropReason::PktTooSmall)?;
    header.set_total_len(total);
    // The reserved flag, too, is that of the request only.
    header.set_fragment(false, false, 0);
    if dont_fragment {
        header.set_id(ident());
    }
    header.set_ttl(TTL);
    header.set_src(dst);
    header.set_dst(src);
    renew_check(bytes);
    // It is of the flow in the other direction.
    skb.head_mut().turn_around();
    Ok(())
}

/// The checksum of the reply to an echo request that has this one; `zeros` says whether there is
/// nothing else in it but zeros.
pub(in crate::ip) fn reply_check(request: [u8; 2], zeros: impl FnOnce() -> bool) -> u16 {
    let [request_type, reply_type] = [ECHO_REQUEST, ECHO_REPLY].map(|kind| u16::from(kind) << 8);
    let check = u16::from_be_bytes(request);
    if check == !request_type && zeros() {
        // The reply is nothing but zeros. By difference (RFC 1624, equation 3) its checksum would be
        // 0, with which a receiver's sum is 0 and not 0xffff. RFC 1071's of zeros is 0xffff, with
        // which every sum is right. (Linux 6.18 sends 0, and drops that when it is the receiver.)
        return 0xffff;
    }
    checksum::update16(check, request_type, reply_type)
}

/// Computes the checksum of a whole IPv4 header anew.
pub(in crate::ip) fn renew_check(header: &mut [u8]) {
    let set = |header: &mut [u8], check| {
        if let Some(mut fields) = Ipv4Header::new_mut(header) {
            fields.set_check(check);
        }
    };
    set(header, 0);
    let check = checksum::checksum(header);
    set(header, check);
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use proptest::prelude::*;

    use super::super::super::icmp_limit::IcmpParams;
    use super::super::super::testing::context;
    use super::super::options::{self, Record};
    use super::*;
    use crate::SoftnetData;
    use crate::siphash::SipKey;

    const CLIENT: u32 = 0x0a00_0002;
    const SERVER: u32 = 0x0a01_0002;
    const ROUTER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
    const SUBNET_BROADCAST: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 255);

    fn broadcast(addr: Ipv4Addr) -> bool {
        addr == SUBNET_BROADCAST
    }

    fn limit() -> IcmpLimit {
        IcmpLimit::new(IcmpParams::default(), SipKey::new([1, 2]))
    }

    /// The reply, without options, and with another identification than the request if that is
    /// asked for.
    fn reply(skb: &mut Skb) -> Result<(), DropReason> {
        echo_reply(skb, &EchoOptions::NONE, broadcast, || 99)
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
        let made = build_error(ctx, &packet, error, ROUTER, broadcast, &mut limit(), 0);
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
            (IcmpError::ParameterProblem { pointer: 22 }, [12, 0, 22, 0, 0, 0]),
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
        let params = IcmpParams { icmp_msgs_burst: 1, ..IcmpParams::default() };
        let mut limit = IcmpLimit::new(params, SipKey::new([2, 2]));
        let quiet = packet(&mut ctx, protocol::ICMP, 0, &icmp(3, 1, &[0; 4]));
        let loud = packet(&mut ctx, protocol::UDP, 0, &[0; 8]);
        let mut sent = |skb: &Skb| {
            let made =
                build_error(&mut ctx, skb, IcmpError::NetUnreachable, ROUTER, broadcast, &mut limit, 0);
            made.map(|skb| ctx.deliver(skb)).is_some()
        };
        assert!(!sent(&quiet) && sent(&loud));
        let more = (0..100).filter(|_| sent(&loud)).count();
        assert!(more < 6 && !sent(&quiet));
        let (global, host) = limit.limited();
        assert_eq!(global + host, 100 - more as u64);
        let mut own = packet(&mut ctx, protocol::UDP, 0, &[0; 8]);
        own.head_mut().flags = Flags::ORIGINATED;
        let mut limit = super::tests::limit();
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
            assert_eq!(reply(&mut skb), Ok(()));
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

    /// The sum of nothing but zeros is 0, and its checksum 0xffff: with another the reply is
    /// damaged to a host that adds up. Any other reply has what adding up anew comes to, too.
    #[test]
    fn the_checksum_of_a_reply_is_right() {
        let mut ctx = context();
        let mut answer = |rest: &[u8]| {
            let mut skb = packet(&mut ctx, protocol::ICMP, 0, &icmp(8, 0, rest));
            reply(&mut skb).unwrap();
            let message = skb.data()[ETH_LEN + 20..].to_vec();
            ctx.deliver(skb);
            message
        };
        for len in [4, 12, 13, 1400] {
            let zeros = vec![0; len];
            assert_eq!(answer(&zeros)[..4], [0, 0, 0xff, 0xff], "{len}");
            assert_eq!(answer(&zeros), icmp(0, 0, &zeros));
        }
        // Others that add up to the same as none.
        for rest in [&[0xff; 4][..], &[0x12, 0x34, 0xed, 0xcb], &[0, 0, 0, 0, 0xff, 0xff, 0, 0], &[7; 9]] {
            assert_eq!(answer(rest), icmp(0, 0, rest));
            assert_eq!(checksum::sum(&answer(rest)), 0xffff);
        }
    }

    /// Flags are not the request's, the reserved one neither: the reply may be fragmented, under an
    /// identification that is unique, which that of a request that may not be need not be.
    #[test]
    fn the_flags_of_a_reply_are_its_own() {
        let mut ctx = context();
        for (word, id) in [(0, 77), (0x8000, 77), (0x4000, 99), (0xc000, 99)] {
            let mut skb = packet(&mut ctx, protocol::ICMP, 0, &icmp(8, 0, &[5; 12]));
            skb.data_mut()[ETH_LEN + 6..][..2].copy_from_slice(&u16::to_be_bytes(word));
            rehash(&mut skb);
            reply(&mut skb).unwrap();
            let bytes = &skb.data()[ETH_LEN..];
            assert!(validate(bytes).is_ok());
            assert_eq!((&bytes[6..8], Ipv4Header::new(bytes).unwrap().id()), (&[0, 0][..], id));
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
            let (before, verdict) = (skb.data().to_vec(), reply(&mut skb));
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
            let mut limit = limit();
            if let Some(made) = build_error(&mut ctx, &skb, IcmpError::TimeExceeded, ROUTER, broadcast, &mut limit, 0) {
                ctx.deliver(made);
            }
            let packet = skb.data().get(usize::from(skb.head().l3)..).unwrap_or_default();
            let header = packet.get(..usize::from(packet.first().unwrap_or(&0) & 15) * 4).unwrap_or_default();
            let record = Record { addr: ROUTER, time: 7, is_own: &|_| true };
            let of = |found| EchoOptions::of(header, &found, &record);
            let options = options::parse(header).map_or(EchoOptions::NONE, of);
            if echo_reply(&mut skb, &options, broadcast, || 99).is_ok() {
                prop_assert!(validate(&skb.data()[usize::from(skb.head().l3)..]).is_ok());
            }
            ctx.deliver(skb);
        }
    }
}
