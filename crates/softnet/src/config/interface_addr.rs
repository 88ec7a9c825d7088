//! Addresses of softnet's own, as the configuration writes them. Any thread may use them. Invariant:
//! the address is in its network.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use softnet_core::ip::{Address, IpPrefix, Prefix, PrefixError};

use super::ParseError;

/// An own address and the network it is in: `10.0.0.1/24`, `2001:db8::1/64`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InterfaceAddr {
    addr: IpAddr,
    network: IpPrefix,
}

impl InterfaceAddr {
    /// `addr` in its network of `len` bits, 1 to 32, or to 128.
    pub fn new(addr: impl Into<IpAddr>, len: u8) -> Result<Self, PrefixError> {
        let addr = addr.into();
        if len == 0 {
            return Err(PrefixError::Length { len, max: addr.width() });
        }
        Ok(InterfaceAddr { addr, network: Prefix::containing(addr, len)? })
    }

    /// The address.
    pub fn addr(self) -> IpAddr {
        self.addr
    }

    /// The connected network.
    pub fn network(self) -> IpPrefix {
        self.network
    }

    /// Whether `host` can be reached on this network's link: inside, and neither the network's own address nor its
    /// broadcast. Of IPv4, networks of /31 and /32 have neither (RFC 3021); IPv6 has no broadcast, the network's own address
    /// is that of any of its routers, and networks of /127 and /128 have none (RFC 6164).
    pub fn has_host(self, host: IpAddr) -> bool {
        let net = self.network;
        net.contains(host)
            && match host {
                IpAddr::V4(_) => net.len() > 30 || ![net.addr(), net.last()].contains(&host),
                IpAddr::V6(_) => net.len() > 126 || host != net.addr(),
            }
    }
}

impl fmt::Display for InterfaceAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.addr, self.network.len())
    }
}

impl FromStr for InterfaceAddr {
    type Err = ParseError;

    /// Reads `ADDRESS/LENGTH`.
    fn from_str(s: &str) -> Result<Self, ParseError> {
        let read = || {
            let (addr, len) = s.split_once('/')?;
            InterfaceAddr::new(addr.parse::<IpAddr>().ok()?, len.parse().ok()?).ok()
        };
        let expected = "an address with its prefix length, such as \"10.0.0.1/24\" or \"2001:db8::1/64\"";
        read().ok_or_else(|| ParseError::new(expected, s))
    }
}

/// Whether `addr` is one of IPv6 that means nothing beyond its link.
pub(crate) fn is_link_local(addr: IpAddr) -> bool {
    matches!(addr, IpAddr::V6(addr) if addr.is_unicast_link_local())
}
