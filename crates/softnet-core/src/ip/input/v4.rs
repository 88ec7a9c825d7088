//! The fast path's view of IPv4 packets (RFC 1812 section 5.2.2).

use std::net::Ipv4Addr;

use super::{Exception, FastPath, Verdict};
use crate::ip::adjacency::Adjacency;
use crate::ip::checksum::ipv4_header_sum;
use crate::ip::ethernet::{EthHeader, ethertype};
use crate::ip::v4::header::{
    Ipv4Header, MIN_LEN, is_link_local, is_martian_destination, is_martian_source, is_multicast,
};
use crate::ip::{ETH_LEN, MacAddr};
use crate::skb::DropReason;

/// What an address may be by its first octet: RFC 1812 section 5.3.7, RFC 6890.
static MARTIAN: [u8; 256] = {
    let mut table = [0; 256];
    let mut first = 0;
    while first < 256 {
        let addr = (first as u32) << 24;
        table[first] = if is_martian_source(addr) { MARTIAN_SOURCE } else { 0 }
            | if is_martian_destination(addr) { MARTIAN_DEST } else { 0 }
            | if is_multicast(addr) { GROUP } else { 0 }
            | if first == 169 { LINK_LOCAL } else { 0 };
        first += 1;
    }
    table
};

/// It can't be a source.
const MARTIAN_SOURCE: u8 = 1 << 0;
/// It can't be a destination.
const MARTIAN_DEST: u8 = 1 << 1;
/// It is a group.
const GROUP: u8 = 1 << 2;
/// It may be link-local.
const LINK_LOCAL: u8 = 1 << 3;

/// Version 4, and a header without options.
const PLAIN: u8 = 0x45;

/// The link header and the IPv4 header of a frame.
#[inline(always)]
fn headers(frame: &[u8]) -> Option<(EthHeader<&[u8; ETH_LEN]>, &[u8; MIN_LEN])> {
    let both = frame.first_chunk::<{ ETH_LEN + MIN_LEN }>()?;
    Some((EthHeader::new(both)?, both[ETH_LEN..].first_chunk()?))
}

impl FastPath for Ipv4Addr {
    const HEADER_LEN: usize = MIN_LEN;

    #[inline(always)]
    fn classify(frame: &[u8], len: usize, mac: &MacAddr) -> Verdict<u32> {
        let Some((eth, header)) = headers(frame) else { return short(frame, mac) };
        let ip = Ipv4Header::over(header);
        if !eth.is_to(mac) || eth.ethertype() != ethertype::IPV4 || ip.version_and_len() != PLAIN {
            return unusual(frame, mac);
        }
        let total = usize::from(ip.total_len());
        if total < MIN_LEN || total > len - ETH_LEN {
            return Verdict::Drop(DropReason::IpInHdr);
        }
        if ipv4_header_sum(header) != 0xffff {
            return Verdict::Drop(DropReason::IpCsum);
        }
        let first = |addr: u32| MARTIAN[(addr >> 24) as usize];
        let suspect = first(ip.src()) & (MARTIAN_SOURCE | LINK_LOCAL)
            | first(ip.dst()) & (MARTIAN_DEST | GROUP | LINK_LOCAL);
        if suspect != 0
            && let Some(verdict) = judge(suspect, ip.src(), ip.dst())
        {
            return verdict;
        }
        Verdict::Forward(ip.dst())
    }

    #[inline(always)]
    fn forward(frame: &mut [u8], hop: &Adjacency<Self>) -> Result<usize, Exception> {
        let Some(both) = frame.first_chunk_mut::<{ ETH_LEN + MIN_LEN }>() else {
            return Err(Exception::Unusual);
        };
        let (eth, rest) = both.split_at_mut(ETH_LEN);
        let (Some(mut eth), Some(mut ip)) = (EthHeader::new_mut(eth), Ipv4Header::new_mut(rest)) else {
            return Err(Exception::Unusual);
        };
        if ip.ttl() <= 1 {
            return Err(Exception::Ttl);
        }
        let total = ip.total_len();
        if total > hop.mtu {
            return Err(Exception::TooBig);
        }
        eth.set(&hop.rewrite);
        ip.decrease_ttl();
        Ok(ETH_LEN + usize::from(total))
    }

    #[inline(always)]
    fn source(frame: &[u8]) -> Option<Self> {
        Some(Ipv4Addr::from_bits(Ipv4Header::over(headers(frame)?.1).src()))
    }

    #[inline(always)]
    fn destination(frame: &[u8]) -> Option<u32> {
        let ip = Ipv4Header::over(headers(frame)?.1);
        (ip.version() == 4).then(|| ip.dst())
    }

    #[inline(always)]
    fn protocol(frame: &[u8]) -> Option<u8> {
        let ip = Ipv4Header::over(headers(frame)?.1);
        (!ip.is_fragment()).then_some(ip.protocol())
    }
}

/// Looks closer at addresses of which `suspect` says what they may be.
#[cold]
#[inline(never)]
fn judge(suspect: u8, src: u32, dst: u32) -> Option<Verdict<u32>> {
    if suspect & MARTIAN_SOURCE != 0 {
        return Some(Verdict::Drop(DropReason::IpInvalidSource));
    }
    if suspect & (MARTIAN_DEST | GROUP) != 0 {
        return Some(Verdict::Drop(DropReason::IpInvalidDest));
    }
    // They may be for softnet, but go no further.
    (is_link_local(src) || is_link_local(dst)).then_some(Verdict::Exception(Exception::Unusual))
}

#[cold]
#[inline(never)]
fn short(frame: &[u8], mac: &MacAddr) -> Verdict<u32> {
    let Some(eth) = EthHeader::new(frame) else { return Verdict::Drop(DropReason::PktTooSmall) };
    match eth.ethertype() {
        _ if !eth.is_for(mac) => Verdict::Drop(DropReason::OtherHost),
        ethertype::ARP => Verdict::Exception(Exception::Arp),
        ethertype::IPV6 => Verdict::Other,
        ethertype::IPV4 => Verdict::Drop(DropReason::PktTooSmall),
        _ => Verdict::Drop(DropReason::UnhandledProto),
    }
}

#[cold]
#[inline(never)]
fn unusual(frame: &[u8], mac: &MacAddr) -> Verdict<u32> {
    let (Some(eth), Some(rest)) = (EthHeader::new(frame), frame.get(ETH_LEN..)) else {
        return Verdict::Drop(DropReason::PktTooSmall);
    };
    match eth.ethertype() {
        _ if !eth.is_for(mac) => Verdict::Drop(DropReason::OtherHost),
        ethertype::ARP => Verdict::Exception(Exception::Arp),
        ethertype::IPV6 => Verdict::Other,
        ethertype::IPV4 => Verdict::Exception(Exception::Unusual),
        // A tag of VLAN 0 has only a priority (IEEE 802.1Q section 6.9).
        ethertype::VLAN | ethertype::PROVIDER_VLAN if matches!(rest, [high, 0, ..] if high & 0x0f == 0) => {
            Verdict::Untag
        }
        _ => Verdict::Drop(DropReason::UnhandledProto),
    }
}

#[cfg(all(test, not(feature = "loom")))]
#[path = "v4_tests.rs"]
mod tests;
