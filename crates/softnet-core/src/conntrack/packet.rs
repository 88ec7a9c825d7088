//! What a packet is to the table, of either family: its tuple, what it quotes, and how it opens a
//! connection of which nothing is translated.
//!
//! For hooks, which see heads that say where the L4 header is. IPv6 is looked at only if the table
//! [tracks it](Conntrack::with_ipv6).

use std::net::{Ipv4Addr, Ipv6Addr};

use super::entry::{DNAT, Holds, SNAT};
use super::tuple::{L4_MIN, query_ports};
use super::{Conntrack, Found, New, Refused, State, Tuple};
use crate::ip::v4::header::protocol;
use crate::ip::v6::header::{Ipv6Header, next, upper};
use crate::ip::{ETH_LEN, Family};
use crate::skb::Skb;

/// Bytes of an ICMP header.
const ICMP_LEN: usize = 8;
/// Of TCP's without options.
const TCP_MIN: usize = 20;

/// The IP packet in `skb`.
#[inline(always)]
fn packet(skb: &Skb) -> &[u8] {
    skb.data().get(ETH_LEN..).unwrap_or_default()
}

#[inline(always)]
fn is_ipv6(packet: &[u8]) -> bool {
    packet.first().is_some_and(|first| first >> 4 == 6)
}

/// The L4 header of a packet, and what follows.
#[inline(always)]
fn l4(skb: &Skb) -> Option<&[u8]> {
    match skb.head().l4 {
        0 => None,
        at => skb.data().get(usize::from(at)..),
    }
}

/// The ports of a packet of IPv6, as tuples have them.
fn ports6(number: u8, header: &[u8; L4_MIN], len: usize) -> Option<u32> {
    let [a, b, c, d, high, low, ..] = *header;
    let ports = u32::from_be_bytes([a, b, c, d]);
    match number {
        protocol::UDP => Some(ports),
        protocol::TCP => (len >= TCP_MIN).then_some(ports),
        // The echo, and its answer: as those of ICMP.
        next::ICMPV6 => match a {
            128 => query_ports(8, u16::from_be_bytes([high, low])),
            129 => query_ports(0, u16::from_be_bytes([high, low])),
            _ => None,
        },
        _ => None,
    }
}

/// The flags of a TCP packet whose header is whole; 0 of any other.
#[inline(always)]
pub(crate) fn tcp_flags(skb: &Skb) -> u8 {
    match skb.head().protocol {
        protocol::TCP => l4(skb).and_then(|header| header.get(13)).copied().unwrap_or(0),
        _ => 0,
    }
}

/// Whether a packet is the answer to an ICMP query.
pub(crate) fn is_answer(skb: &Skb) -> bool {
    let kind = l4(skb).and_then(<[u8]>::first);
    match skb.head().protocol {
        protocol::ICMP => matches!(kind, Some(0 | 14 | 16 | 18)),
        next::ICMPV6 => kind == Some(&129),
        _ => false,
    }
}

/// Whether a packet is an ICMP error.
pub(crate) fn is_error(skb: &Skb) -> bool {
    let kind = l4(skb).and_then(<[u8]>::first);
    match skb.head().protocol {
        protocol::ICMP => matches!(kind, Some(3 | 4 | 11 | 12)),
        next::ICMPV6 => matches!(kind, Some(1..=4)),
        _ => false,
    }
}

/// What an ICMP error quotes of a packet.
fn quote(skb: &Skb) -> Option<&[u8]> {
    is_error(skb).then(|| l4(skb)?.get(ICMP_LEN..))?
}

/// The tuple of the packet that an ICMP error of IPv4 quotes, and where its L4 header begins there.
pub(crate) fn quoted_tuple(skb: &Skb) -> Option<(Tuple, usize)> {
    Tuple::quoted(quote(skb)?)
}

impl Conntrack {
    /// The tuple of a packet of either family, see [`Tuple::of`].
    #[inline(always)]
    pub(crate) fn tuple_of(&self, skb: &Skb) -> Option<Tuple> {
        match is_ipv6(packet(skb)) {
            false => Tuple::of(skb),
            true => self.tuple_of6(skb),
        }
    }

    fn tuple_of6(&self, skb: &Skb) -> Option<Tuple> {
        let (src, dst) = self.tracks_ipv6().then(|| Ipv6Addr::ends(packet(skb)))??;
        let header = l4(skb)?;
        self.tuple6(skb.head().protocol, (src, dst), header.first_chunk()?, header.len())
    }

    fn tuple6(
        &self,
        number: u8,
        (src, dst): (Ipv6Addr, Ipv6Addr),
        header: &[u8; L4_MIN],
        len: usize,
    ) -> Option<Tuple> {
        let ports = ports6(number, header, len)?;
        let [src, dst] = [src, dst].map(|addr| self.hash6(addr.to_bits()));
        Some(Tuple::folded(number, ports, src, dst))
    }

    /// The connection of the packet that an ICMP error is about, in the direction in which the error
    /// goes. An error keeps none alive.
    pub(crate) fn about(&self, now: u32, skb: &Skb) -> Option<Found> {
        let is_to_its_sender = |quote: &[u8]| match is_ipv6(quote) {
            false => Some(Ipv4Addr::ends(packet(skb))?.1 == Ipv4Addr::ends(quote)?.0),
            true => Some(Ipv6Addr::ends(packet(skb))?.1 == Ipv6Addr::ends(quote)?.0),
        };
        let quote = quote(skb)?;
        let tuple = match is_ipv6(quote) {
            false => Tuple::quoted(quote)?.0,
            true => self.quoted6(quote)?,
        };
        // An error is of the family of what it is about.
        let found = (is_ipv6(quote) == is_ipv6(packet(skb))).then(|| self.peek(now, &tuple.inverse()))??;
        // And goes to its sender: or one connection would do to reach any host. What is translated
        // is NAT's to tell.
        let translated = found.life.flags() & (SNAT | DNAT) != 0;
        (translated || is_to_its_sender(quote)?).then_some(found)
    }

    /// The same of an error of IPv4 that is made here, about a packet whose source was not translated yet.
    pub(crate) fn about_made(&self, now: u32, skb: &Skb) -> Option<Found> {
        let found = self.peek(now, &quoted_tuple(skb)?.0)?;
        Some(Found { id: found.id ^ 1, ..found })
    }

    fn quoted6(&self, quote: &[u8]) -> Option<Tuple> {
        let header = self.tracks_ipv6().then(|| Ipv6Header::new(quote))??;
        let behind = upper(quote).ok()?;
        // Eight bytes of TCP are all that may be there.
        let l4 = quote.get(behind.at..)?.first_chunk()?;
        self.tuple6(behind.protocol, (header.src(), header.dst()), l4, TCP_MIN)
    }

    /// The connection of a packet that goes on: the one that there is by now, or a new one, of which
    /// nothing is translated. `None` if it opens none.
    /// If it takes the place of another, `released` gets what that held.
    pub(crate) fn open(
        &self,
        now: u32,
        skb: &Skb,
        released: impl FnMut(Holds),
    ) -> Result<Option<Found>, Refused> {
        let flags = tcp_flags(skb);
        let Some(tuple) = self.tuple_of(skb) else { return Ok(None) };
        let Some(state) = State::first(tuple.protocol(), flags).filter(|_| !is_answer(skb)) else {
            return Ok(None);
        };
        let _turn = self.own(&tuple)?;
        // One before it in the batch may have opened it.
        if let Some(found) = self.find(now, &tuple, flags) {
            return Ok(Some(found));
        }
        let mut new = New::plain(tuple, state);
        if let Some((src, dst)) = Ipv6Addr::ends(packet(skb)).filter(|_| tuple.is_ipv6()) {
            new.ends6 = [src, dst].map(Ipv6Addr::to_bits);
        }
        self.insert_with(now, &new, released).map(Some)
    }
}
