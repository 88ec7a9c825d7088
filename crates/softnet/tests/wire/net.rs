//! Which host has which address: the routers, and the hosts that a case plays.
//!
//! ```text
//!   remote.a ── gw.a ─┐ link a                     link b ┌─ gw.b ── remote.b
//!                     ├────────── R.a router R.b ─────────┤
//!              host.a ┘            R.c  │ link c, MTU 1400 └ host.b
//!                                       ├─ gw.c ── remote.c
//!                                       └ host.c
//! ```
//!
//! Each run of a case has a number of its own, and with it hosts and remote hosts that no other run has, so that what comes
//! out can be told apart. Gateways are permanent neighbours, hosts are asked for by ARP and neighbour discovery.

use std::net::{Ipv4Addr, Ipv6Addr};

use super::packet::{Arp, Frame, Ip4, Ip6, Layer3, Mac};

pub(crate) const A: usize = 0;
pub(crate) const B: usize = 1;
pub(crate) const C: usize = 2;
pub(crate) const LINKS: [usize; 3] = [A, B, C];
/// MTU of each link.
pub(crate) const MTU: [u32; 3] = [1500, 1500, 1400];
/// Runs have numbers from this on: no address of a router or gateway looks like one of theirs.
pub(crate) const FIRST_RUN: u16 = 0x0101;

/// The bit of the other host's address. No run has it in its number.
pub(crate) const OTHER: u8 = 0x80;

pub(crate) const BROADCAST: Mac = [0xff; 6];

pub(crate) fn router4(link: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, link as u8 + 1, 0, 1)
}
pub(crate) fn router6(link: usize) -> Ipv6Addr {
    Ipv6Addr::new(0xfd00, 0, 0, link as u16 + 1, 0, 0, 0, 1)
}
pub(crate) fn router_mac(link: usize) -> Mac {
    [2, 0, 0, 0, link as u8 + 1, 1]
}
/// Its link-local address, which follows from the MAC address.
pub(crate) fn router_local(link: usize) -> Ipv6Addr {
    Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0x00ff, 0xfe00, (link as u16 + 1) << 8 | 1)
}
pub(crate) fn gateway4(link: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, link as u8 + 1, 255, 254)
}
pub(crate) fn gateway6(link: usize) -> Ipv6Addr {
    Ipv6Addr::new(0xfd00, 0, 0, link as u16 + 1, 0, 0, 0, 0xfffe)
}
pub(crate) fn gateway_mac(link: usize) -> Mac {
    [2, 0, 0, 0, link as u8 + 1, 0xfe]
}
/// Whatever else is asked for there, by a case that runs alone.
pub(crate) fn anybody_mac(link: usize) -> Mac {
    [2, 0, 0, 0, link as u8 + 1, 0x77]
}
/// The network behind the gateway of a link, of 16 bits.
pub(crate) fn remote_net4(link: usize) -> Ipv4Addr {
    [Ipv4Addr::new(198, 18, 0, 0), Ipv4Addr::new(198, 19, 0, 0), Ipv4Addr::new(100, 64, 0, 0)][link]
}
/// The same of IPv6, of 48 bits.
pub(crate) fn remote_net6(link: usize) -> Ipv6Addr {
    Ipv6Addr::new(0x2001, 0xdb8, link as u16 + 1, 0, 0, 0, 0, 0)
}
/// The gateway by its link-local address, and a network of 48 bits behind it.
pub(crate) const GATEWAY_LOCAL: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0xfe);
pub(crate) fn beyond_net6(link: usize) -> Ipv6Addr {
    Ipv6Addr::new(0x2001, 0xdb8, 0x21 + link as u16, 0, 0, 0, 0, 0)
}
/// What has an unreachable route, a blackhole and no route at all, of 24 bits and of 48.
pub(crate) const UNREACHABLE4: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 0);
pub(crate) const BLACKHOLE4: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 0);
pub(crate) const NO_ROUTE4: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 0);
pub(crate) const UNREACHABLE6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0x11, 0, 0, 0, 0, 0);
pub(crate) const BLACKHOLE6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0x12, 0, 0, 0, 0, 0);
pub(crate) const NO_ROUTE6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0x13, 0, 0, 0, 0, 0);

/// The solicited-node group of an address.
pub(crate) fn solicited_node(addr: Ipv6Addr) -> Ipv6Addr {
    let [.., a, b, c] = addr.octets();
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | u16::from(a), u16::from_be_bytes([b, c]))
}
/// The MAC address of a group of IPv6.
pub(crate) fn group_mac(group: Ipv6Addr) -> Mac {
    let [.., a, b, c, d] = group.octets();
    [0x33, 0x33, a, b, c, d]
}
/// The MAC address of a group of IPv4.
pub(crate) fn group_mac4(group: Ipv4Addr) -> Mac {
    let [_, b, c, d] = group.octets();
    [1, 0, 0x5e, b & 0x7f, c, d]
}

/// The hosts that a run of a case plays.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Net {
    pub(crate) run: u16,
}

impl Net {
    pub(crate) fn host4(self, link: usize) -> Ipv4Addr {
        let [hi, lo] = self.run.to_be_bytes();
        Ipv4Addr::new(10, link as u8 + 1, hi, lo)
    }
    pub(crate) fn host6(self, link: usize) -> Ipv6Addr {
        Ipv6Addr::new(0xfd00, 0, 0, link as u16 + 1, 0, 0, 0xa, self.run)
    }
    pub(crate) fn host_local(self, link: usize) -> Ipv6Addr {
        Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0xa + link as u16, self.run)
    }
    pub(crate) fn host_mac(self, link: usize) -> Mac {
        let [hi, lo] = self.run.to_be_bytes();
        [2, 0x0a, 0, link as u8 + 1, hi, lo]
    }
    /// Another host of the case.
    pub(crate) fn other4(self, link: usize) -> Ipv4Addr {
        let [hi, lo] = self.run.to_be_bytes();
        Ipv4Addr::new(10, link as u8 + 1, hi | OTHER, lo)
    }
    pub(crate) fn other6(self, link: usize) -> Ipv6Addr {
        Ipv6Addr::new(0xfd00, 0, 0, link as u16 + 1, 0, 0, 0xb, self.run)
    }
    /// An address that begins like `prefix` and ends like the host's.
    pub(crate) fn within(self, prefix: Ipv6Addr) -> Ipv6Addr {
        Ipv6Addr::from(u128::from(prefix) & !0xffff_ffff | 0xa_0000 | u128::from(self.run))
    }
    /// The MAC address of the other host, or where the host moved to.
    pub(crate) fn other_mac(self, link: usize) -> Mac {
        let [hi, lo] = self.run.to_be_bytes();
        [2, 0x0b, 0, link as u8 + 1, hi, lo]
    }
    pub(crate) fn remote4(self, link: usize) -> Ipv4Addr {
        let ([a, b, ..], [hi, lo]) = (remote_net4(link).octets(), self.run.to_be_bytes());
        Ipv4Addr::new(a, b, hi, lo)
    }
    pub(crate) fn remote6(self, link: usize) -> Ipv6Addr {
        Ipv6Addr::new(0x2001, 0xdb8, link as u16 + 1, 0, 0, 0, 0xa, self.run)
    }

    /// A remote host behind the gateway's link-local address.
    pub(crate) fn beyond6(self, link: usize) -> Ipv6Addr {
        self.within(beyond_net6(link))
    }

    /// From the remote host behind link a to the router's address there.
    pub(crate) fn to_router(self) -> Ip4 {
        Ip4::new(self.remote4(A), router4(A))
    }
    /// From the remote host behind link a to that behind link b.
    pub(crate) fn through(self) -> Ip4 {
        Ip4::new(self.remote4(A), self.remote4(B))
    }
    /// From the remote host behind link a to that behind link c, whose MTU is smaller.
    pub(crate) fn to_small(self) -> Ip4 {
        Ip4::new(self.remote4(A), self.remote4(C))
    }
    pub(crate) fn to_router6(self) -> Ip6 {
        Ip6::new(self.remote6(A), router6(A))
    }
    pub(crate) fn through6(self) -> Ip6 {
        Ip6::new(self.remote6(A), self.remote6(B))
    }
    pub(crate) fn to_small6(self) -> Ip6 {
        Ip6::new(self.remote6(A), self.remote6(C))
    }

    /// By link a, from the gateway to the router.
    pub(crate) fn a(self, packet: impl Layer3) -> Frame {
        self.by(A, packet)
    }
    /// By a link, from the gateway to the router.
    pub(crate) fn by(self, link: usize, packet: impl Layer3) -> Frame {
        Frame::new(link, (gateway_mac(link), router_mac(link)), &packet)
    }
    /// By link a, from the case's host to the router.
    pub(crate) fn host(self, packet: impl Layer3) -> Frame {
        Frame::new(A, (self.host_mac(A), router_mac(A)), &packet)
    }
    /// All of them by link a, from the gateway.
    pub(crate) fn all_a<P: Layer3>(self, packets: Vec<P>) -> Vec<Frame> {
        packets.into_iter().map(|packet| self.a(packet)).collect()
    }
    /// An ARP request of the case's host for `wanted`.
    pub(crate) fn who_has(self, wanted: Ipv4Addr) -> Arp {
        Arp::new(1, (self.host_mac(A), self.host4(A)), ([0; 6], wanted))
    }
}
