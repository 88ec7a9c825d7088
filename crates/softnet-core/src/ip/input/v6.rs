//! The fast path's view of IPv6 packets (RFC 8200 section 3).

use std::net::Ipv6Addr;

use super::{Exception, FastPath, Verdict};
use crate::ip::adjacency::Adjacency;
use crate::ip::ethernet::{EthHeader, ethertype};
use crate::ip::v6::header::{Ipv6Header, LEN, next};
use crate::ip::{ETH_LEN, MacAddr};
use crate::skb::DropReason;

type Headers<'a> = (EthHeader<&'a [u8; ETH_LEN]>, Ipv6Header<&'a [u8; LEN]>);

/// The link header and the IPv6 header of a frame.
#[inline(always)]
fn headers(frame: &[u8]) -> Option<Headers<'_>> {
    let both = frame.first_chunk::<{ ETH_LEN + LEN }>()?;
    Some((EthHeader::new(both)?, Ipv6Header::new(&both[ETH_LEN..])?))
}

impl FastPath for Ipv6Addr {
    const HEADER_LEN: usize = LEN;

    #[inline(always)]
    fn classify(frame: &[u8], len: usize, mac: &MacAddr) -> Verdict<u128> {
        let Some((eth, ip)) = headers(frame) else { return short(frame, mac) };
        let dst = ip.dst().to_bits();
        // Addresses that are not plainly global begin with 0x0000 (::, ::1, IPv4 in disguise), 0xfe (link-local) or 0xff
        // (groups).
        let special = |bits: u128| ((bits >> 112) as u16).wrapping_add(0x200) < 0x201;
        let odd = special(ip.src().to_bits()) | special(dst) | (ip.next_header() == next::HOP_BY_HOP);
        if !eth.is_to(mac) || eth.ethertype() != ethertype::IPV6 || ip.version() != 6 || odd {
            return unusual(frame, mac);
        }
        if LEN + usize::from(ip.payload_len()) > len - ETH_LEN {
            return Verdict::Drop(DropReason::IpInHdr);
        }
        Verdict::Forward(dst)
    }

    #[inline(always)]
    fn forward(frame: &mut [u8], hop: &Adjacency<Self>) -> Result<usize, Exception> {
        let Some(both) = frame.first_chunk_mut::<{ ETH_LEN + LEN }>() else {
            return Err(Exception::Unusual);
        };
        let (eth, rest) = both.split_at_mut(ETH_LEN);
        let (Some(mut eth), Some(mut ip)) = (EthHeader::new_mut(eth), Ipv6Header::new_mut(rest)) else {
            return Err(Exception::Unusual);
        };
        if ip.hop_limit() <= 1 {
            return Err(Exception::Ttl);
        }
        let total = LEN + usize::from(ip.payload_len());
        if total > usize::from(hop.mtu) {
            return Err(Exception::TooBig);
        }
        eth.set(&hop.rewrite);
        ip.decrease_hop_limit();
        Ok(ETH_LEN + total)
    }

    #[inline(always)]
    fn source(frame: &[u8]) -> Option<Self> {
        Some(headers(frame)?.1.src())
    }

    #[inline(always)]
    fn destination(frame: &[u8]) -> Option<u128> {
        let ip = headers(frame)?.1;
        (ip.version() == 6).then(|| ip.dst().to_bits())
    }

    /// Behind extension headers only the slow path looks.
    #[inline(always)]
    fn protocol(frame: &[u8]) -> Option<u8> {
        Some(headers(frame)?.1.next_header())
    }
}

#[cold]
#[inline(never)]
fn short(frame: &[u8], mac: &MacAddr) -> Verdict<u128> {
    match EthHeader::new(frame) {
        Some(eth) if eth.ethertype() != ethertype::IPV6 => Verdict::Other,
        Some(eth) if !eth.is_for(mac) => Verdict::Drop(DropReason::OtherHost),
        Some(_) => Verdict::Drop(DropReason::PktTooSmall),
        None => Verdict::Other,
    }
}

#[cold]
#[inline(never)]
fn unusual(frame: &[u8], mac: &MacAddr) -> Verdict<u128> {
    match EthHeader::new(frame) {
        Some(eth) if eth.ethertype() == ethertype::IPV6 && eth.is_for(mac) => {
            Verdict::Exception(Exception::Unusual)
        }
        Some(eth) if eth.ethertype() == ethertype::IPV6 => Verdict::Drop(DropReason::OtherHost),
        _ => Verdict::Other,
    }
}

#[cfg(all(test, not(feature = "loom")))]
#[path = "v6_tests.rs"]
mod tests;
