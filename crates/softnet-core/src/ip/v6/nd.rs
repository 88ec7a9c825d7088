//! Neighbour discovery (RFC 4861): solicitations and advertisements, in and out.
//!
//! What to learn from a message is the neighbour table's business ([`neigh`](super::super::neigh)). Invariant: what was
//! parsed passed every check of sections 7.1.1 and 7.1.2, so it came from a node on the link.

use std::net::Ipv6Addr;

use super::super::{ETH_LEN, MacAddr, is_group};
use super::addr::{ALL_NODES, multicast_mac, solicited_node};
use super::header::{LEN, next};
use super::icmp::{begin, finish};
use crate::skb::{DropReason, Skb};

/// ICMPv6 type of a neighbour solicitation.
pub const SOLICITATION: u8 = 135;
/// ICMPv6 type of a neighbour advertisement.
pub const ADVERTISEMENT: u8 = 136;
/// ICMPv6 type of a redirect.
const REDIRECT: u8 = 137;
/// Hop limit of every message: no router lets it pass, so it can't come from beyond.
const HOP_LIMIT: u8 = 255;
/// Bytes of either message without options.
const MESSAGE_LEN: usize = 24;
/// Option: the sender's link-layer address.
const SOURCE_MAC: u8 = 1;
/// Option: the target's link-layer address.
const TARGET_MAC: u8 = 2;
/// Option: the beginning of the packet that a redirect is about.
const REDIRECTED: u8 = 4;
/// Bytes of that option before the packet.
const REDIRECTED_LEN: usize = 8;
/// The bytes of a redirect without options.
const REDIRECT_LEN: usize = 40;
/// A redirect is no longer than the smallest MTU there may be, from its IPv6 header on (section 8.2).
const REDIRECT_MAX: usize = 1280;
/// The bytes of such an option: type, length in units of eight, address.
const MAC_OPTION_LEN: usize = 8;
const ROUTER: u8 = 0x80;
const SOLICITED: u8 = 0x40;
const OVERRIDE: u8 = 0x20;

/// A message, as far as softnet understands it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// Which node has `target`?
    Solicitation {
        /// The address that is asked for.
        target: Ipv6Addr,
        /// Where the sender is; not known if it has no address yet.
        mac: Option<MacAddr>,
    },
    /// The sender has `target`. (That it is a router, or not, makes no difference: routes are configured.)
    Advertisement {
        /// The address.
        target: Ipv6Addr,
        /// Where it is. An answer to a unicast question may leave it out.
        mac: Option<MacAddr>,
        /// It is an answer.
        solicited: bool,
        /// It is to replace what is known.
        overrides: bool,
    },
}

/// Reads the ICMPv6 `message` from `src` to `dst`, which came with `hop_limit`; its checksum was found right, and its type is
/// one of the two. What is not as it must be is silently discarded, as section 7.1 has it.
pub fn parse(message: &[u8], hop_limit: u8, src: Ipv6Addr, dst: Ipv6Addr) -> Result<Message, DropReason> {
    if hop_limit != HOP_LIMIT {
        return Err(DropReason::NdiscHopLimit);
    }
    let malformed = DropReason::NdiscMalformed;
    let (fixed, options) = message.split_first_chunk::<MESSAGE_LEN>().ok_or(malformed)?;
    let target = Ipv6Addr::from(std::array::from_fn::<u8, 16, _>(|i| fixed[8 + i]));
    if fixed[1] != 0 || target.is_multicast() {
        return Err(malformed);
    }
    let solicitation = fixed[0] == SOLICITATION;
    let mac = mac_option(options, if solicitation { SOURCE_MAC } else { TARGET_MAC })?;
    if solicitation {
        // A node that asks whether an address is free can't be answered, and has none to tell.
        if src.is_unspecified() && (dst != solicited_node(target) || mac.is_some()) {
            return Err(malformed);
        }
        return Ok(Message::Solicitation { target, mac });
    }
    let (solicited, overrides) = (fixed[4] & SOLICITED != 0, fixed[4] & OVERRIDE != 0);
    if solicited && dst.is_multicast() {
        return Err(malformed);
    }
    Ok(Message::Advertisement { target, mac, solicited, overrides })
}

/// The link-layer address in the option `kind`, if there is one (section 4.6). Other options are skipped.
fn mac_option(mut options: &[u8], kind: u8) -> Result<Option<MacAddr>, DropReason> {
    let malformed = DropReason::NdiscMalformed;
    let mut found = None;
    while !options.is_empty() {
        let &[this, units, ..] = options else { return Err(malformed) };
        let (option, rest) = options.split_at_checked(usize::from(units) * 8).ok_or(malformed)?;
        if units == 0 {
            return Err(malformed);
        }
        if this == kind {
            let mac: MacAddr =
                *option.get(2..MAC_OPTION_LEN).and_then(|m| m.first_chunk()).ok_or(malformed)?;
            if option.len() != MAC_OPTION_LEN || is_group(&mac) || mac == [0; 6] {
                return Err(malformed);
            }
            found = Some(mac);
        }
        options = rest;
    }
    Ok(found)
}

/// Writes into `skb`, whatever it held, the question for `target` from `source` at `mac` (`::`:
/// whether another has it, RFC 4862 section 5.4.2): to the MAC address `to`, or to the group of
/// those that might have it. `None`, and the skb as it was, if there is no room behind its first
/// byte. Device and flags are left to the caller.
pub fn write_solicitation(
    skb: &mut Skb,
    mac: MacAddr,
    source: Ipv6Addr,
    target: Ipv6Addr,
    to: Option<MacAddr>,
) -> Option<()> {
    let dst = if to.is_some() { target } else { solicited_node(target) };
    let to = to.unwrap_or(multicast_mac(dst));
    // One without an address has no neighbour to be learnt (section 4.3).
    let option = (!source.is_unspecified()).then_some(SOURCE_MAC);
    write(skb, (to, mac), (source, dst), [SOLICITATION, 0], target, option)
}

/// The same for the answer to a node that asked from `asker`: `target` is at `mac`. `to` is where
/// the node is. One without an address is told by telling all nodes (section 7.2.4). `source` is an
/// address that is softnet's alone. If the target is not, or not for sure, the answer `overrides`
/// none that came before (section 7.2.7).
pub fn write_advertisement(
    skb: &mut Skb,
    mac: MacAddr,
    (source, target, overrides): (Ipv6Addr, Ipv6Addr, bool),
    (asker, to): (Ipv6Addr, MacAddr),
) -> Option<()> {
    let overrides = if overrides { OVERRIDE } else { 0 };
    let (dst, to, flags) = match asker.is_unspecified() {
        true => (ALL_NODES, multicast_mac(ALL_NODES), ROUTER | overrides),
        false => (asker, to, ROUTER | SOLICITED | overrides),
    };
    write(skb, (to, mac), (source, dst), [ADVERTISEMENT, flags], target, Some(TARGET_MAC))
}

/// The same for telling all nodes, unasked, that `target` is at `mac` (section 7.2.6).
pub fn write_announcement(skb: &mut Skb, mac: MacAddr, target: Ipv6Addr) -> Option<()> {
    write_advertisement(skb, mac, (target, target, true), (Ipv6Addr::UNSPECIFIED, mac))
}

/// The same for what tells the host at `to` to send to `target`, which is at `mac` if that is known, what is for `dst`, as
/// `packet` is, which begins at its IPv6 header (section 4.5). The link header is left to the caller.
pub fn write_redirect(
    skb: &mut Skb,
    (source, to): (Ipv6Addr, Ipv6Addr),
    (target, mac): (Ipv6Addr, Option<MacAddr>),
    (dst, packet): (Ipv6Addr, &[u8]),
) -> Option<()> {
    let mac_len = mac.map_or(0, |_| MAC_OPTION_LEN);
    let room = REDIRECT_MAX - LEN - REDIRECT_LEN - mac_len - REDIRECTED_LEN;
    // Options are of whole units.
    let quote = &packet[..packet.len().min(room) / 8 * 8];
    let units = ((REDIRECTED_LEN + quote.len()) / 8) as u8;
    let all = ETH_LEN + LEN + REDIRECT_LEN + mac_len + REDIRECTED_LEN + quote.len();
    if skb.len() + skb.tailroom() < all {
        return None;
    }
    skb.trim(0);
    let frame = skb.put(all)?;
    let message = begin(frame, next::ICMPV6, HOP_LIMIT, source, to)?;
    message[..8].copy_from_slice(&[REDIRECT, 0, 0, 0, 0, 0, 0, 0]);
    message[8..24].copy_from_slice(&target.octets());
    message[24..REDIRECT_LEN].copy_from_slice(&dst.octets());
    let (known, about) = message[REDIRECT_LEN..].split_at_mut(mac_len);
    if let (Some(mac), [kind, len, at @ ..]) = (mac, known) {
        (*kind, *len) = (TARGET_MAC, 1);
        at.copy_from_slice(&mac);
    }
    about[..REDIRECTED_LEN].copy_from_slice(&[REDIRECTED, units, 0, 0, 0, 0, 0, 0]);
    about[REDIRECTED_LEN..].copy_from_slice(quote);
    finish(message, source, to);
    skb.head_mut().l3 = ETH_LEN as u16;
    Some(())
}

fn write(
    skb: &mut Skb,
    (to, mac): (MacAddr, MacAddr),
    (src, dst): (Ipv6Addr, Ipv6Addr),
    [kind, flags]: [u8; 2],
    target: Ipv6Addr,
    option: Option<u8>,
) -> Option<()> {
    let all = ETH_LEN + LEN + MESSAGE_LEN + option.map_or(0, |_| MAC_OPTION_LEN);
    if skb.len() + skb.tailroom() < all {
        return None;
    }
    skb.trim(0);
    let frame = skb.put(all)?;
    let message = begin(frame, next::ICMPV6, HOP_LIMIT, src, dst)?;
    message[..8].copy_from_slice(&[kind, 0, 0, 0, flags, 0, 0, 0]);
    message[8..MESSAGE_LEN].copy_from_slice(&target.octets());
    if let (Some(option), [kind, len, at @ ..]) = (option, &mut message[MESSAGE_LEN..]) {
        (*kind, *len) = (option, 1);
        at.copy_from_slice(&mac);
    }
    finish(message, src, dst);
    frame[..6].copy_from_slice(&to);
    frame[6..12].copy_from_slice(&mac);
    skb.head_mut().l3 = ETH_LEN as u16;
    Some(())
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use proptest::prelude::*;

    use super::super::super::testing::context;
    use super::super::header::Ipv6Header;
    use super::*;

    const MAC: MacAddr = [2, 0, 0, 0, 0, 1];
    const ASKER_MAC: MacAddr = [2, 0, 0, 0, 0, 2];
    const OWN: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1);
    const ASKER: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 2);

    /// What a receiver makes of the frame in `skb`.
    fn read(skb: &Skb) -> Message {
        let packet = &skb.data()[ETH_LEN..];
        let header = Ipv6Header::new(packet).unwrap();
        assert_eq!((packet.len(), header.payload_len(), header.next_header()), (72, 32, next::ICMPV6));
        parse(&packet[LEN..], header.hop_limit(), header.src(), header.dst()).unwrap()
    }

    #[test]
    fn what_is_written_is_understood() {
        let mut ctx = context();
        let mut skb = ctx.alloc_skb().unwrap();
        for to in [None, Some(ASKER_MAC)] {
            write_solicitation(&mut skb, MAC, OWN, ASKER, to).unwrap();
            assert_eq!(read(&skb), Message::Solicitation { target: ASKER, mac: Some(MAC) });
            assert_eq!(skb.data()[..6], to.unwrap_or([0x33, 0x33, 0xff, 0, 0, 2]));
        }
        for (asker, solicited, to) in
            [(ASKER, true, ASKER_MAC), (Ipv6Addr::UNSPECIFIED, false, multicast_mac(ALL_NODES))]
        {
            // In place of whatever the buffer held.
            write_advertisement(&mut skb, MAC, (OWN, OWN, true), (asker, ASKER_MAC)).unwrap();
            let says = Message::Advertisement { target: OWN, mac: Some(MAC), solicited, overrides: true };
            assert_eq!((read(&skb), &skb.data()[..6]), (says, &to[..]));
        }
        let says = Message::Advertisement { target: OWN, mac: Some(MAC), solicited: false, overrides: true };
        write_announcement(&mut skb, MAC, OWN).unwrap();
        assert_eq!((read(&skb), &skb.data()[..6]), (says, &multicast_mac(ALL_NODES)[..]));
        let tailroom = skb.tailroom();
        skb.put(tailroom).unwrap();
        let all = skb.len();
        skb.pull(all - 85).unwrap();
        assert_eq!(write_solicitation(&mut skb, MAC, OWN, ASKER, None), None);
        assert_eq!(skb.len(), 85);
        ctx.deliver(skb);
    }

    proptest! {
        #[test]
        fn no_message_panics_and_what_passes_is_sound(
            kind in prop::sample::select(vec![SOLICITATION, ADVERTISEMENT]),
            mut message in prop::collection::vec(any::<u8>(), 4..64),
            options in prop::collection::vec((0u8..4, 0u8..3, any::<u8>()), 0..4),
            src: u128,
            dst: u128,
        ) {
            (message[0], message[1]) = (kind, 0);
            message.resize(MESSAGE_LEN.max(message.len() / 2), 0);
            for (kind, units, fill) in options {
                message.extend([kind, units]);
                message.extend(vec![fill & 0xfe; (usize::from(units) * 8).saturating_sub(2)]);
            }
            let (src, dst) = (Ipv6Addr::from_bits(src), Ipv6Addr::from_bits(dst));
            if let Ok(read) = parse(&message, HOP_LIMIT, src, dst) {
                let (Message::Solicitation { target, mac } | Message::Advertisement { target, mac, .. }) = read;
                prop_assert!(!target.is_multicast() && mac.is_none_or(|mac| !is_group(&mac) && mac != [0; 6]));
            }
            prop_assert_eq!(parse(&message, HOP_LIMIT - 1, src, dst), Err(DropReason::NdiscHopLimit));
        }
    }
}
