//! Addresses by the names of `net`, and the run of a case that a frame belongs to.

use std::net::{Ipv4Addr, Ipv6Addr};

use super::{Decoder, LETTER, addr6, be16};
use crate::net::{
    BROADCAST, GATEWAY_LOCAL, LINKS, OTHER, anybody_mac, gateway_mac, gateway4, gateway6, group_mac,
    router_local, router_mac, router4, router6, solicited_node,
};
use crate::packet::{ICMP6, Mac};

impl Decoder<'_> {
    pub(crate) fn mac(&self, mac: Mac) -> String {
        for link in LINKS {
            let letter = LETTER[link];
            for (known, name) in [
                (router_mac(link), "R"),
                (gateway_mac(link), "gw"),
                (anybody_mac(link), "anybody"),
                (self.net.host_mac(link), "host"),
                (self.net.other_mac(link), "other"),
            ] {
                if mac == known {
                    return format!("{name}.{letter}");
                }
            }
        }
        match self.groups().map(group_mac).contains(&mac) {
            true => "group.host".into(),
            false if mac == BROADCAST => "all".into(),
            false => mac.map(|byte| format!("{byte:02x}")).join(":"),
        }
    }

    /// The solicited-node groups of the case's hosts.
    pub(super) fn groups(&self) -> [Ipv6Addr; 6] {
        let [a, b, c] = LINKS;
        let (global, local) = (|link| self.net.host6(link), |link| self.net.host_local(link));
        [global(a), self.net.other6(a), self.net.other6(b), local(a), local(b), local(c)].map(solicited_node)
    }

    pub(crate) fn ip4(&self, addr: Ipv4Addr) -> String {
        for link in LINKS {
            let letter = LETTER[link];
            for (known, name) in [
                (router4(link), "R"),
                (gateway4(link), "gw"),
                (self.net.host4(link), "host"),
                (self.net.other4(link), "other"),
                (self.net.remote4(link), "remote"),
            ] {
                if addr == known {
                    return format!("{name}.{letter}");
                }
            }
        }
        addr.to_string()
    }

    pub(crate) fn ip6(&self, addr: Ipv6Addr) -> String {
        for link in LINKS {
            let letter = LETTER[link];
            for (known, name) in [
                (router6(link), "R"),
                (router_local(link), "R.local"),
                (gateway6(link), "gw"),
                (GATEWAY_LOCAL, "gw.local"),
                (self.net.beyond6(link), "beyond"),
                (self.net.host6(link), "host"),
                (self.net.other6(link), "other"),
                (self.net.host_local(link), "host.local"),
                (self.net.remote6(link), "remote"),
            ] {
                if addr == known {
                    return format!("{name}.{letter}");
                }
            }
        }
        if self.groups().contains(&addr) {
            return "group.host".into();
        }
        let prefix = u128::from(addr) & !0xffff_ffff;
        if u128::from(self.net.within(prefix.into())) == u128::from(addr) {
            return format!("{}host", Ipv6Addr::from(prefix));
        }
        addr.to_string()
    }
}

/// The run that a frame belongs to: one of those for which `known` says so, by the first address in it.
pub(crate) fn run_of(frame: &[u8], known: impl Fn(u16) -> bool) -> Option<u16> {
    let run_at = |at: usize| {
        let rest = &frame[at..];
        let run = match rest {
            [10, 1..=3, hi, lo, ..] => [hi & !OTHER, *lo],
            [2, 0x0a | 0x0b, 0, 1..=3, hi, lo, ..] | [198, 18 | 19, hi, lo, ..] | [100, 64, hi, lo, ..] => {
                [*hi, *lo]
            }
            [0x20, 1, 0x0d, 0xb8, 0, _, 0, 0, 0, 0, 0, 0, 0, 0xa, hi, lo, ..]
            | [0xfd, 0, 0, 0, 0, 0, 0, _, 0, 0, 0, 0, 0, 0xa | 0xb, hi, lo, ..]
            | [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xa..=0xc, hi, lo, ..] => [*hi, *lo],
            _ => return None,
        };
        Some(u16::from_be_bytes(run)).filter(|run| known(*run))
    };
    (0..frame.len().min(200)).find_map(run_at)
}

/// Whether a router sends it of its own accord: reports of its groups, and solicitations of routers.
pub(crate) fn is_noise(frame: &[u8]) -> bool {
    match be16(frame, 12) {
        0x0800 => frame.get(23) == Some(&2),
        0x86dd => {
            let hop_by_hop = frame.get(20) == Some(&0) && frame.get(54) == Some(&ICMP6);
            let at = if hop_by_hop { 62 } else { 54 };
            (hop_by_hop || frame.get(20) == Some(&ICMP6)) && matches!(frame.get(at), Some(131..=133 | 143))
        }
        _ => false,
    }
}

/// Whether it tells all of an address of its own.
pub(crate) fn is_announcement(frame: &[u8]) -> bool {
    match be16(frame, 12) {
        0x0806 => frame.get(28..32) == frame.get(38..42),
        0x86dd => {
            let advertisement = frame.get(20) == Some(&ICMP6) && frame.get(54) == Some(&136);
            advertisement && addr6(frame, 38).is_multicast()
        }
        _ => false,
    }
}
