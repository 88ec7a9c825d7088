//! The answer to an echo request that came in fragments. (One that came in one packet is answered in its own buffer,
//! by [`echo_reply`](super::icmp::echo_reply).)

use std::net::Ipv4Addr;

use super::checksum;
use super::fragment::{Addresses, Datagram};
use super::header::{Ipv4Header, validate_header};
use super::icmp::{ECHO_REPLY, ECHO_REQUEST, ICMP_LEN, TTL, is_answerable};
use super::{ETH_LEN, header::protocol, is_group};
use crate::skb::{DropReason, SkbList};

/// An echo reply, to be [emitted](super::fragment::emit).
#[derive(Debug)]
pub struct EchoReply {
    /// Its header but for the identification.
    pub datagram: Datagram,
    /// Bytes of the ICMP message.
    pub len: usize,
    message: [u8; ICMP_LEN],
    /// Where the payload begins in the request's first skb.
    payload: usize,
}

impl EchoReply {
    /// The ICMP message: a new header, and the payload of the request, which is `run`.
    pub fn pieces<'a>(&'a self, run: &'a SkbList) -> impl Iterator<Item = &'a [u8]> {
        let rest = run.data().enumerate().map(|(i, data)| match i {
            0 => data.get(self.payload..).unwrap_or_default(),
            _ => data,
        });
        std::iter::once(&self.message[..]).chain(rest)
    }
}

/// What answers the echo request to softnet that `run` is, whose first skb has an Ethernet header before the IPv4 header
/// of the whole. `broadcast` and the reasons as for [`echo_reply`](super::icmp::echo_reply).
pub fn echo_reply_of_run(
    run: &SkbList,
    broadcast: impl Fn(Ipv4Addr) -> bool,
) -> Result<EchoReply, DropReason> {
    let first = run.data().next().ok_or(DropReason::PktTooSmall)?;
    let packet = first.get(ETH_LEN..).ok_or(DropReason::PktTooSmall)?;
    let lengths = validate_header(packet)?;
    let header = Ipv4Header::new(packet).ok_or(DropReason::PktTooSmall)?;
    let begins = packet.get(lengths.header..).ok_or(DropReason::PktTooSmall)?;
    let Some(&[kind, code, high, low, a, b, c, d]) = begins.first_chunk::<ICMP_LEN>() else {
        return Err(DropReason::IcmpMalformed);
    };
    // All but the last are of even length, as fragments are.
    let rest = run.data().skip(1);
    let (len, sum) = rest.fold((begins.len(), checksum::sum(begins)), |(len, sum), data| {
        (len + data.len(), checksum::add(sum, checksum::sum(data)))
    });
    if len != lengths.total - lengths.header {
        return Err(DropReason::PktTooSmall);
    }
    if sum != 0xffff {
        return Err(DropReason::IcmpCsum);
    }
    let group = first.first_chunk().is_some_and(is_group);
    if kind != ECHO_REQUEST || group || !is_answerable(header.src(), header.dst(), broadcast) {
        return Err(DropReason::IcmpIgnored);
    }
    let check = u16::from_be_bytes([high, low]);
    let check = checksum::update16(check, u16::from(ECHO_REQUEST) << 8, u16::from(ECHO_REPLY) << 8);
    let [high, low] = check.to_be_bytes();
    let (from, to) = (Ipv4Addr::from(header.dst()), Ipv4Addr::from(header.src()));
    let datagram = Datagram {
        addresses: Addresses::V4 { src: from, dst: to },
        protocol: protocol::ICMP,
        ttl: TTL,
        tos: header.tos(),
        id: 0,
        dont_fragment: false,
    };
    let message = [ECHO_REPLY, code, high, low, a, b, c, d];
    Ok(EchoReply { datagram, len, message, payload: ETH_LEN + lengths.header + ICMP_LEN })
}
