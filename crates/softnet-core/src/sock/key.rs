//! The keys of sockets: addresses and ports, and their hash.
//!
//! Plain values; any thread may use them. Invariant: equal keys have equal hashes, whatever their
//! family.

use std::hash::Hasher;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};

use super::scope::{scope_id, unscoped};
use crate::fold::{FoldKey, fold};

/// An address in the form that sockets use: 16 bytes in host order, IPv4 mapped (RFC 4291 section
/// 2.5.5.2), IPv6 link-local with its [scope](super::scope). 0 is the wildcard of both families.
pub type Addr = u128;

/// The wildcard address.
pub const ANY: Addr = 0;

/// An IPv4 address, in host order.
#[inline(always)]
pub const fn mapped(v4: u32) -> Addr {
    0xffff << 32 | v4 as u128
}

/// The IPv4 address that `addr` is, if it is one.
#[inline(always)]
pub const fn unmapped(addr: Addr) -> Option<u32> {
    if is_v4(addr) { Some(addr as u32) } else { None }
}

/// Whether `addr` is a mapped IPv4 address.
#[inline(always)]
pub const fn is_v4(addr: Addr) -> bool {
    addr >> 32 == 0xffff
}

/// Converts an address of `std`, without a scope; the wildcards of both families become [`ANY`].
pub fn addr_of(ip: IpAddr) -> Addr {
    match ip {
        ip if ip.is_unspecified() => ANY,
        IpAddr::V4(v4) => mapped(v4.to_bits()),
        IpAddr::V6(v6) => v6.to_bits(),
    }
}

/// An address and port in the form of `std`, as seen by an IPv4 socket (`v4`) or by an IPv6 socket,
/// which sees IPv4 addresses as mapped ones. The scope of a link-local address becomes its
/// `scope_id`.
pub fn socket_addr(addr: Addr, port: u16, v4: bool) -> SocketAddr {
    if v4 {
        return SocketAddr::new(IpAddr::V4((addr as u32).into()), port);
    }
    SocketAddrV6::new(Ipv6Addr::from_bits(unscoped(addr)), port, 0, scope_id(addr).into()).into()
}

/// Protocol, source and destination of a packet, seen from this host. Each protocol has ports of
/// its own; where it has none, they are 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// Our address.
    pub local: Addr,
    /// The other end's.
    pub remote: Addr,
    /// Our port.
    pub lport: u16,
    /// The other end's.
    pub rport: u16,
    /// IANA's number.
    pub protocol: u8,
}

/// What of a packet's flow a socket's key has to match, the most first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Match {
    /// All of it: the socket is connected.
    Flow,
    /// Our end.
    Local,
    /// Our port, whatever the address.
    Port,
}

/// The key of a socket: a flow, of which what the key does not match is [`ANY`] and 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    /// What is matched.
    pub flow: Flow,
    /// How much of it.
    pub matches: Match,
}

impl Key {
    /// That of a socket that is bound but not connected; to [`ANY`]: to no address.
    #[inline(always)]
    pub const fn bound(protocol: u8, local: Addr, lport: u16) -> Self {
        let matches = if local == ANY { Match::Port } else { Match::Local };
        Key { flow: Flow { local, remote: ANY, lport, rport: 0, protocol }, matches }
    }

    /// That of a socket that is connected by `flow`.
    #[inline(always)]
    pub const fn connected(flow: Flow) -> Self {
        Key { flow, matches: Match::Flow }
    }

    /// Whether it is that of a connected socket.
    #[inline(always)]
    pub const fn is_connected(&self) -> bool {
        matches!(self.matches, Match::Flow)
    }

    /// A hash of the whole key. Programs on this host choose the keys, and not remote hosts, so it
    /// need not resist attacks; the seed keeps a bad case on one stack from being bad on every
    /// stack.
    #[inline(always)]
    pub(super) fn hash(&self, seed: u64) -> u32 {
        let half = |addr: Addr, seed: u64, k: u64| fold(addr as u64 ^ seed, (addr >> 64) as u64 ^ k);
        let Flow { local, remote, protocol, .. } = self.flow;
        let local = half(local, seed ^ (u64::from(protocol) << 32 | u64::from(self.flow.ports())), K[0]);
        let hash = match self.is_connected() {
            true => local ^ half(remote, local ^ K[1], K[2]),
            false => local,
        };
        (fold(hash, K[3]) >> 32) as u32
    }
}

impl Flow {
    /// Both ports in one word.
    #[inline(always)]
    pub(crate) const fn ports(&self) -> u32 {
        (self.lport as u32) << 16 | self.rport as u32
    }

    /// A keyed hash of the whole flow: remote hosts choose the flows of packets, and must not be
    /// able to predict it.
    #[inline]
    pub(super) fn secret_hash(&self, key: &FoldKey) -> u32 {
        let hash = key.hash(|hasher| {
            hasher.write_u128(self.remote);
            hasher.write_u128(self.local);
            hasher.write_u64(self.ports().into());
        });
        // The hashes of neighbouring ports are equal steps apart. Steps near a simple fraction of 2^64, as one key of a
        // hundred makes them, would share out unevenly.
        (fold(fold(hash ^ u64::from(self.protocol), K[0]), K[1]) >> 32) as u32
    }
}

/// Odd numbers without a pattern.
const K: [u64; 4] =
    [0x9e37_79b9_7f4a_7c15, 0xbf58_476d_1ce4_e5b9, 0x94d0_49bb_1331_11eb, 0xd6e8_feb8_6659_fd93];

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use std::collections::HashSet;
    use std::net::Ipv4Addr;

    use super::super::scope::scoped;
    use super::*;
    use crate::steer::scale;

    #[test]
    fn addresses_come_back() {
        for text in ["10.0.0.1:7", "[2001:db8::1]:65535", "0.0.0.0:1", "[::]:1"] {
            let there: SocketAddr = text.parse().unwrap();
            let back = socket_addr(addr_of(there.ip()), there.port(), there.is_ipv4());
            assert_eq!(back, there);
        }
        let there = scoped(addr_of("fe80::1".parse().unwrap()), 2);
        assert_eq!(socket_addr(there, 7, false).to_string(), "[fe80::1%3]:7");
        let v4 = Ipv4Addr::new(192, 0, 2, 1);
        assert_eq!(addr_of(v4.into()), addr_of(v4.to_ipv6_mapped().into()));
        assert_eq!((unmapped(mapped(7)), unmapped(7), is_v4(ANY)), (Some(7), None, false));
    }

    /// Ports of one address, addresses of one port, and peers of one socket spread over buckets
    /// like random values.
    #[test]
    fn hashes_spread() {
        const N: u32 = 1 << 14;
        let bound = |local, lport| Key::bound(17, local, lport);
        let own = bound(mapped(0x0a00_0001), 7);
        let peer = |remote, rport| Key::connected(Flow { remote, rport, ..own.flow });
        let sets: [(&str, &dyn Fn(u32) -> Key); 5] = [
            ("ports", &|i| bound(own.flow.local, i as u16)),
            ("addresses", &|i| bound(mapped(0x0a00_0000 + i), 7)),
            ("networks", &|i| bound(u128::from(i) << 64 | 1, 7)),
            ("peers", &|i| peer(mapped(0x0b00_0000 + i), 53)),
            ("peer ports", &|i| peer(mapped(0x0b00_0001), 1 + i as u16)),
        ];
        for seed in [0, 1, 0xdead_beef_0bad_cafe] {
            for (what, key) in &sets {
                let buckets: HashSet<u32> = (0..N).map(|i| key(i).hash(seed) % N).collect();
                // Of as many balls as bins, 1 - 1/e of the bins get one.
                let share = buckets.len() as f64 / f64::from(N);
                assert!(share > 0.61, "{what}, seed {seed:#x}: {share}");
            }
        }
    }

    /// Whatever the key is, neighbouring ports of one peer are shared evenly among the sockets of a group.
    #[test]
    fn neighbouring_ports_are_shared_whatever_the_key() {
        let base = Flow { remote: mapped(0x0a00_0002), ..Key::bound(17, mapped(0x0a00_0001), 7).flow };
        // Factors close to simple fractions of 2^64 are the hard cases.
        let fractions = (1..=8).flat_map(|of| (0..of).map(move |n| (u64::MAX / of).wrapping_mul(n)));
        let factors = fractions.flat_map(|near| (8..60).map(move |bit| near.wrapping_add(1 << bit)));
        for (i, factor) in factors.enumerate() {
            let key = FoldKey::new([0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(i as u64 + 1), factor]);
            let mut shares = [0; 4];
            for rport in 1000..1400 {
                shares[scale(Flow { rport, ..base }.secret_hash(&key), 4)] += 1;
            }
            assert!(shares.iter().all(|n| (50..150).contains(n)), "factor {factor:#x}: {shares:?}");
        }
    }
}
