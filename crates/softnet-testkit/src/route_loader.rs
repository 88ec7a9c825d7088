//! Changes of the kernel's routes as a routing daemon makes them: many in one message to the kernel, which answers
//! for those that it refuses and for the last.
//!
//! Used by one thread. The routes are those of the namespace in which the loader was made.

use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;

use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, connect, recv, send, socket_with,
};

/// Messages to the kernel at a time: as many bytes as a socket may have under way.
const BATCH: usize = 1000;

/// `NLM_F_REQUEST`, `NLM_F_ACK`, and what a change is.
const REQUEST: u16 = 0x1;
const ACK: u16 = 0x4;
const REPLACE: u16 = 0x100;
const EXCL: u16 = 0x200;
const CREATE: u16 = 0x400;

/// What is done to routes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouteChange {
    /// They are added; one that is there already is refused.
    Add,
    /// They are added, or lead elsewhere.
    Replace,
    /// They are taken away.
    Delete,
}

/// A route by a gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadedRoute {
    /// Destinations.
    pub to: (IpAddr, u8),
    /// The router, of the same family.
    pub via: IpAddr,
    /// The interface's index.
    pub ifindex: u32,
}

/// Adds and removes routes of the kernel in batches.
#[derive(Debug)]
pub struct RouteLoader {
    socket: OwnedFd,
    sequence: u32,
    bytes: Vec<u8>,
}

impl RouteLoader {
    /// One for the calling thread's network namespace.
    ///
    /// # Errors
    /// Those of socket(2). Its use needs CAP_NET_ADMIN.
    pub fn new() -> io::Result<Self> {
        // Without a protocol it is NETLINK_ROUTE.
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
        connect(&socket, &SocketAddrNetlink::new(0, 0))?;
        Ok(RouteLoader { socket, sequence: 0, bytes: Vec::new() })
    }

    /// Makes `change` of all `routes`, in their order. Returns how many the kernel refused.
    ///
    /// # Errors
    /// The kernel could not be asked.
    pub fn change(
        &mut self,
        change: RouteChange,
        routes: impl IntoIterator<Item = LoadedRoute>,
    ) -> io::Result<u64> {
        let mut routes = routes.into_iter().peekable();
        let mut refused = 0;
        while routes.peek().is_some() {
            self.bytes.clear();
            let mut last = 0;
            for route in routes.by_ref().take(BATCH) {
                last = self.bytes.len();
                self.sequence = self.sequence.wrapping_add(1);
                message(&mut self.bytes, change, &route, self.sequence);
            }
            // The flags of the last.
            self.bytes[last + 6] |= ACK as u8;
            send(&self.socket, &self.bytes, SendFlags::empty())?;
            refused += self.answers()?;
        }
        Ok(refused)
    }

    /// Reads answers up to that for the last message. Returns how many refuse something.
    fn answers(&mut self) -> io::Result<u64> {
        let mut buffer = [0; 1 << 16];
        let mut refused = 0;
        loop {
            let (n, _) = recv(&self.socket, &mut buffer[..], RecvFlags::empty())?;
            let mut rest = buffer.get(..n).unwrap_or(&[]);
            // Header: length, kind, flags, sequence, port; then the error.
            while let (Some(len), Some(sequence), Some(error)) =
                (word(rest, 0), word(rest, 8), word(rest, 16))
            {
                refused += u64::from(error != 0);
                if sequence == self.sequence {
                    return Ok(refused);
                }
                rest = rest.get((len as usize).next_multiple_of(4).max(16)..).unwrap_or(&[]);
            }
        }
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes)
}

/// Appends an `RTM_NEWROUTE` or `RTM_DELROUTE` of the main table.
fn message(bytes: &mut Vec<u8>, change: RouteChange, route: &LoadedRoute, sequence: u32) {
    let (kind, flags) = match change {
        RouteChange::Add => (libc::RTM_NEWROUTE, CREATE | EXCL),
        RouteChange::Replace => (libc::RTM_NEWROUTE, CREATE | REPLACE),
        RouteChange::Delete => (libc::RTM_DELROUTE, 0),
    };
    let start = bytes.len();
    bytes.extend([0; 4]);
    bytes.extend(kind.to_ne_bytes());
    bytes.extend((REQUEST | flags).to_ne_bytes());
    bytes.extend(sequence.to_ne_bytes());
    bytes.extend([0; 4]);
    let family = if route.to.0.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    // As bird: by a daemon, for everywhere, by a gateway.
    let protocol = 12;
    bytes.extend([family as u8, route.to.1, 0, 0, libc::RT_TABLE_MAIN, protocol, 0, libc::RTN_UNICAST]);
    bytes.extend([0; 4]);
    attribute(bytes, libc::RTA_DST, &octets(route.to.0));
    attribute(bytes, libc::RTA_GATEWAY, &octets(route.via));
    attribute(bytes, libc::RTA_OIF, &route.ifindex.to_ne_bytes());
    let len = (bytes.len() - start) as u32;
    bytes[start..start + 4].copy_from_slice(&len.to_ne_bytes());
}

/// All of these are whole words.
fn attribute(bytes: &mut Vec<u8>, kind: u16, value: &[u8]) {
    bytes.extend((4 + value.len() as u16).to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().into(),
        IpAddr::V6(address) => address.octets().into(),
    }
}
