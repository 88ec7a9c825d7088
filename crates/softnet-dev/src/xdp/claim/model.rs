//! The rule as a function, for tests: what the program must do.

use std::cell::RefCell;
use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use softnet_core::ip::v6::addr::ALL_ROUTERS;
use softnet_core::sock::key::{ANY, Addr, addr_of};
use softnet_core::sock::scope::scoped;

use super::ClaimFilter;
use super::layout::*;
use crate::xdp::ports::{ANY4, Port};

/// What becomes of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It is the kernel's.
    Pass,
    /// It is softnet's, which gets it without its tag, if that is of no VLAN.
    Claim,
    /// It is softnet's, and too long.
    TooLong,
}

/// What softnet's sockets are up to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sockets<'a> {
    /// Groups that they joined.
    pub(super) groups: &'a [IpAddr],
    /// Ports that they have open; addresses [`ANY4`] and [`ANY`] are none in particular.
    pub(super) ports: &'a [Port],
    /// Datagrams whose first fragment was theirs.
    pub(super) fragments: &'a RefCell<HashSet<Vec<u8>>>,
}

impl Sockets<'_> {
    /// Remembers of a first fragment whether it is `ours`, and says it.
    fn first(&self, datagram: Vec<u8>, ours: bool) -> bool {
        let mut known = self.fragments.borrow_mut();
        if ours {
            known.insert(datagram)
        } else {
            known.remove(&datagram)
        };
        ours
    }
}

fn field<const N: usize>(frame: &[u8], at: usize) -> [u8; N] {
    frame[at..at + N].try_into().unwrap()
}

fn port(frame: &[u8], at: usize) -> u16 {
    u16::from_be_bytes(field(frame, at))
}

fn under(mask: [u8; 2], value: [u8; 2]) -> [u8; 2] {
    [mask[0] & value[0], mask[1] & value[1]]
}

impl ClaimFilter {
    /// What becomes of `frame`.
    pub(super) fn verdict(&self, frame: &[u8], sockets: Sockets<'_>) -> Verdict {
        if frame.len() < IPV4_END {
            return Verdict::Pass;
        }
        let mut untagged = frame.to_vec();
        let (mut ours, tag) = (false, field::<2>(frame, ETHERTYPE));
        if TAGS.contains(&tag) {
            let vid = under(VID, field(frame, ETH_LEN));
            match vid {
                [0, 0] => _ = untagged.drain(ETHERTYPE..ETHERTYPE + TAG_LEN),
                [a, b] => ours = self.vlans.contains(&[tag[0], tag[1], a, b]),
            }
        }
        ours |= self.untagged && untagged.len() >= IPV4_END && self.is_ours(&untagged, sockets);
        match ours {
            true if frame.len() > self.longest => Verdict::TooLong,
            true => Verdict::Claim,
            false => Verdict::Pass,
        }
    }

    fn is_ours(&self, frame: &[u8], sockets: Sockets<'_>) -> bool {
        match field(frame, ETHERTYPE) {
            ARP => self.arp(frame),
            IPV4 => self.ipv4(frame, sockets),
            IPV6 => frame.len() >= IPV6_END && self.ipv6(frame, sockets),
            _ => false,
        }
    }

    fn arp(&self, frame: &[u8]) -> bool {
        if frame.len() < ARP_END
            || !(frame.starts_with(&self.mac) || frame.starts_with(&[0xff; 6]))
            || field(frame, ARP_FORMAT) != ARP_IPV4
            || field(frame, ARP_LENGTHS) != ARP_MAC_IPV4
        {
            return false;
        }
        let target = Ipv4Addr::from(field::<4>(frame, ARP_TARGET));
        match field(frame, ARP_OPERATION) {
            REQUEST => self.v4.own().any(|own| *own == target),
            REPLY => self.v4.ours.contains(&target),
            _ => false,
        }
    }

    fn ipv4(&self, frame: &[u8], sockets: Sockets<'_>) -> bool {
        let (to, protocol) = (Ipv4Addr::from(field::<4>(frame, IPV4_DST)), frame[IPV4_PROTOCOL]);
        let joined = protocol == UDP && sockets.groups.contains(&to.into());
        if frame[0] & TO_MANY != 0 {
            return joined;
        }
        if !frame.starts_with(&self.mac) {
            return false;
        }
        if self.v4.ours.contains(&to) {
            return true;
        }
        if self.v4.kernel.contains(&to) {
            return false;
        }
        let plain = frame[IPV4_VIHL] == PLAIN && under(FRAGMENTED, field(frame, IPV4_FRAGMENT)) == [0, 0];
        if self.v4.shared.contains(&to) {
            let open = |(protocol, port)| is_open(sockets, [addr_of(to.into()), ANY4], protocol, port);
            let long = frame.len() >= IPV4_END + UDP_LEN;
            return match protocol {
                _ if frame[IPV4_VIHL] != PLAIN => false,
                UDP | TCP if plain => long && open((protocol, port(frame, IPV4_END + PORT_DST))),
                UDP => {
                    let datagram = [&frame[IPV4_SRC..IPV4_END], &frame[IPV4_ID..IPV4_ID + 2]].concat();
                    match under(OFFSET, field(frame, IPV4_FRAGMENT)) == [0, 0] {
                        true => {
                            long && sockets.first(datagram, open((UDP, port(frame, IPV4_END + PORT_DST))))
                        }
                        false => sockets.fragments.borrow().contains(&datagram),
                    }
                }
                ICMP => plain && quoted4(frame).is_some_and(open),
                _ => false,
            };
        }
        if to.octets()[0] >= FIRST_GROUP4 {
            return joined;
        }
        let dhcp = plain
            && protocol == UDP
            && frame.len() >= BOOTP_END
            && field(frame, IPV4_END) == DHCP_PORTS
            && frame[BOOTP] == BOOTREPLY
            && field(frame, BOOTP_CHADDR) == self.mac;
        !dhcp
    }

    fn ipv6(&self, frame: &[u8], sockets: Sockets<'_>) -> bool {
        let (to, next) = (Ipv6Addr::from(field::<16>(frame, IPV6_DST)), frame[IPV6_NEXT]);
        let joined = to.is_multicast() && sockets.groups.contains(&to.into());
        let asks_for_us = frame.len() >= ND_END
            && next == ICMPV6
            && frame[ND_TYPE] == SOLICITATION
            && self.v6.own().any(|own| own.octets() == field::<16>(frame, ND_TARGET));
        let is_datagram = [UDP, FRAGMENT].contains(&next);
        if frame[0] & TO_MANY != 0 {
            let to_all_routers = self.speaks_ipv6()
                && next == ICMPV6
                && frame.get(ND_TYPE) == Some(&ECHO_REQUEST)
                && frame.starts_with(&SOLICITED_NODE[..2])
                && ALL_ROUTERS.contains(&to);
            return match frame.starts_with(&SOLICITED_NODE) {
                _ if is_datagram => joined,
                true => asks_for_us,
                false => to_all_routers,
            };
        }
        if !frame.starts_with(&self.mac) || !self.speaks_ipv6() {
            return false;
        }
        if to.is_multicast() {
            return if is_datagram { joined } else { asks_for_us };
        }
        if self.v6.ours.contains(&to) {
            return true;
        }
        if self.v6.kernel.contains(&to) {
            return false;
        }
        if self.v6.shared.contains(&to) {
            let dev = self.scope.wrapping_sub(1);
            let own = scoped(to.to_bits(), dev);
            let open = |(protocol, port)| is_open(sockets, [own, ANY], protocol, port);
            return match next {
                UDP | TCP => {
                    frame.len() >= IPV6_END + UDP_LEN && open((next, port(frame, IPV6_END + PORT_DST)))
                }
                FRAGMENT if frame.len() >= FRAGMENT_END && frame[IPV6_END] == UDP => {
                    let datagram = [&frame[IPV6_SRC..IPV6_END], &frame[IPV6_ID..FRAGMENT_END]].concat();
                    let long = frame.len() >= FRAGMENT_END + UDP_LEN;
                    match under(OFFSET6, field(frame, IPV6_FRAGMENT)) == [0, 0] {
                        true => {
                            long && sockets.first(datagram, open((UDP, port(frame, FRAGMENT_END + PORT_DST))))
                        }
                        false => sockets.fragments.borrow().contains(&datagram),
                    }
                }
                ICMPV6 => asks_for_us || quoted6(frame).is_some_and(open),
                _ => false,
            };
        }
        !to.is_unicast_link_local()
    }
}

fn is_open(sockets: Sockets<'_>, on: [Addr; 2], protocol: u8, number: u16) -> bool {
    on.iter().any(|addr| sockets.ports.contains(&Port { protocol, addr: *addr, number }))
}

/// Protocol and source port of what an ICMP error quotes.
fn quoted4(frame: &[u8]) -> Option<(u8, u16)> {
    let quote = IPV4_END + QUOTE;
    let plain = frame.len() >= quote + 20 + UDP_LEN
        && ICMP_ERRORS.contains(&frame[IPV4_END])
        && frame[quote] == PLAIN
        && [UDP, TCP].contains(&frame[quote + 9])
        && under([0x1f, 0xff], field(frame, quote + 6)) == [0, 0];
    plain.then(|| (frame[quote + 9], port(frame, quote + 20)))
}

fn quoted6(frame: &[u8]) -> Option<(u8, u16)> {
    let quote = IPV6_END + QUOTE;
    let plain = frame.len() >= quote + 42
        && (1..=LAST_ICMPV6_ERROR).contains(&frame[IPV6_END])
        && [UDP, TCP].contains(&frame[quote + 6]);
    plain.then(|| (frame[quote + 6], port(frame, quote + 40)))
}
