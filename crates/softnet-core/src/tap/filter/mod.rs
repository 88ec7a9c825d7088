//! Expressions that choose packets, in the syntax of `pcap-filter(7)`, as far as it goes here: see
//! [`parse`](Filter::parse).
//!
//! Parsed once, by whatever thread starts a capture; asked by threads that touch packets, which it
//! costs no allocation and no call. Invariant: asking looks at the packet's first frame only, takes
//! time bounded by the expression's length, and cannot fail: what a packet is too short for does
//! not match.

mod facts;
mod parse;
#[cfg(all(test, not(feature = "loom")))]
mod tests;

use std::net::IpAddr;

pub use facts::Facts;
pub use parse::FilterError;

/// Which of a packet's two ends is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Src,
    Dst,
    Either,
    Both,
}

impl Side {
    #[inline]
    fn holds<T: Copy>(self, [src, dst]: [T; 2], is: impl Fn(T) -> bool) -> bool {
        match self {
            Side::Src => is(src),
            Side::Dst => is(dst),
            Side::Either => is(src) || is(dst),
            Side::Both => is(src) && is(dst),
        }
    }
}

/// What is looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Test {
    EtherType(u16),
    EtherHost(Side, [u8; 6]),
    Group {
        broadcast: bool,
    },
    Vlan(Option<u16>),
    Protocol(u8),
    /// A prefix of addresses: the first, and how many bits count.
    Net(Side, IpAddr, u8),
    Ports(Side, u16, u16),
    /// Bytes at least, from the Ethernet header on.
    Greater(u32),
    /// At most.
    Less(u32),
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Op {
    Test(Test),
    Not,
    And,
    Or,
}

/// An expression. The default takes every packet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// In postfix order.
    ops: Vec<Op>,
}

/// Parts of an expression that may wait for others at once; as many bits.
const MAX_DEPTH: u32 = 64;

impl Filter {
    /// The one that takes every packet.
    pub const ALL: Filter = Filter { ops: Vec::new() };

    /// Whether it takes every packet.
    pub fn is_all(&self) -> bool {
        self.ops.is_empty()
    }

    /// Whether it takes the packet that starts with `frame` (Ethernet header first), has `len`
    /// bytes, and whose outer VLAN tag, if it was taken out, has this control information.
    pub fn matches(&self, frame: &[u8], len: usize, tag: Option<u16>) -> bool {
        if self.is_all() {
            return true;
        }
        let facts = Facts::of(frame, len, tag);
        // The top of the stack is the lowest bit; the parser bounds how deep it gets.
        let mut stack = 0u64;
        for op in &self.ops {
            match op {
                Op::Test(test) => stack = stack << 1 | u64::from(test.holds(&facts)),
                Op::Not => stack ^= 1,
                Op::And => stack = stack >> 1 & (stack | !1),
                Op::Or => stack = stack >> 1 | stack & 1,
            }
        }
        stack & 1 != 0
    }
}

impl Test {
    fn holds(&self, facts: &Facts) -> bool {
        match *self {
            Test::EtherType(ethertype) => facts.ethertype == ethertype,
            Test::EtherHost(side, mac) => facts.macs.is_some_and(|macs| side.holds(macs, |one| one == mac)),
            Test::Group { broadcast } => facts.macs.is_some_and(|[_, to]| match broadcast {
                true => to == [0xff; 6],
                false => to[0] & 1 != 0,
            }),
            Test::Vlan(None) => facts.vlans().next().is_some(),
            Test::Vlan(Some(id)) => facts.vlans().any(|one| one == id),
            Test::Protocol(protocol) => facts.protocol == Some(protocol),
            Test::Net(side, net, bits) => {
                facts.addrs.is_some_and(|addrs| side.holds(addrs, |addr| within(addr, net, bits)))
            }
            Test::Ports(side, from, to) => {
                facts.ports.is_some_and(|ports| side.holds(ports, |port| (from..=to).contains(&port)))
            }
            Test::Greater(len) => facts.len >= len as usize,
            Test::Less(len) => facts.len <= len as usize,
        }
    }
}

/// Whether the first `bits` bits are the same.
fn within(addr: IpAddr, net: IpAddr, bits: u8) -> bool {
    match (addr, net) {
        (IpAddr::V4(addr), IpAddr::V4(net)) => {
            (addr.to_bits() ^ net.to_bits()).checked_shr(32 - u32::from(bits)).unwrap_or(0) == 0
        }
        (IpAddr::V6(addr), IpAddr::V6(net)) => {
            (addr.to_bits() ^ net.to_bits()).checked_shr(128 - u32::from(bits)).unwrap_or(0) == 0
        }
        _ => false,
    }
}
