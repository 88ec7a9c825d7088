//! What happens to interfaces, as it happens.
//!
//! The monitor knows which interfaces there are: it lists them when it is made, and again whenever the kernel had to
//! drop notifications for want of buffer space (ENOBUFS), and then tells the difference. So a reader that is slow
//! loses intermediate states, never the last one.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use libc::{RTM_DELADDR, RTM_DELLINK, RTM_NEWADDR, RTM_NEWLINK};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};

use super::link::Link;
use super::route::InterfaceAddress;
use super::socket::{Netlink, RECV_LEN, messages, number};
use crate::sys_error::{SysError, SysResult};

const GROUPS: u32 = (libc::RTMGRP_LINK | libc::RTMGRP_IPV4_IFADDR | libc::RTMGRP_IPV6_IFADDR) as u32;

/// Something happened to an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkEvent {
    /// It was made, or moved into this namespace.
    Appeared(Link),
    /// Its name, state, address or MTU changed (or may have).
    Changed(Link),
    /// It was deleted, or moved to another namespace.
    Removed {
        /// Its index while it was there.
        index: u32,
        /// Its last name.
        name: String,
    },
    /// Its IPv4 or IPv6 addresses changed, or may have.
    AddressChanged {
        /// Its index.
        index: u32,
    },
}

/// Watches the interfaces of a namespace. Used by one thread.
#[derive(Debug)]
pub struct LinkMonitor {
    socket: Socket,
    /// For lists, in the same namespace.
    requests: Netlink,
    known: HashMap<u32, Link>,
    pending: VecDeque<LinkEvent>,
    buffer: Vec<u8>,
}

impl LinkMonitor {
    /// Watches the calling thread's network namespace from now on. Interfaces that exist are not announced.
    pub fn new() -> SysResult<Self> {
        let open = || -> io::Result<Socket> {
            let mut socket = Socket::new(NETLINK_ROUTE)?;
            socket.set_non_blocking(true)?;
            socket.bind(&SocketAddr::new(0, GROUPS))?;
            Ok(socket)
        };
        let socket = open().map_err(|error| SysError::new("watch interfaces", error))?;
        let mut requests = Netlink::new()?;
        // Listed after the subscription: what changes in between is seen twice rather than not at all.
        let known = requests.links()?.into_iter().map(|link| (link.index, link)).collect();
        Ok(LinkMonitor { socket, requests, known, pending: VecDeque::new(), buffer: vec![0; RECV_LEN] })
    }

    /// What to wait for (readable) before calling [`next`](Self::next).
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// The interfaces as known now, in no order.
    pub fn links(&self) -> impl Iterator<Item = &Link> {
        self.known.values()
    }

    /// The addresses of all interfaces as they are now; see [`Netlink::interface_addresses`].
    pub fn addresses(&mut self) -> SysResult<Vec<InterfaceAddress>> {
        self.requests.interface_addresses()
    }

    /// The next event; `None` if there is none now. Never blocks. Call it until it says `None`.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> SysResult<Option<LinkEvent>> {
        loop {
            if let Some(event) = self.pending.pop_front() {
                return Ok(Some(event));
            }
            let received = self.socket.recv(&mut &mut self.buffer[..], libc::MSG_TRUNC);
            match received.and_then(|length| self.take(length)) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => self.list_again()?,
                Err(error) => return Err(SysError::new("watch interfaces", error)),
            }
        }
    }

    fn take(&mut self, length: usize) -> io::Result<()> {
        for message in messages(&self.buffer, length)? {
            let payload = message.payload();
            match message.message_type() {
                RTM_NEWLINK => {
                    if let Some(link) = Link::parse(payload) {
                        note(&mut self.known, &mut self.pending, link);
                    }
                }
                RTM_DELLINK => {
                    if let Some(link) = Link::parse(payload) {
                        self.known.remove(&link.index);
                        self.pending.push_back(LinkEvent::Removed { index: link.index, name: link.name });
                    }
                }
                RTM_NEWADDR | RTM_DELADDR => {
                    if let Some(index) = number(payload, 4) {
                        self.pending.push_back(LinkEvent::AddressChanged { index });
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Notifications were lost: finds out what became of every interface.
    fn list_again(&mut self) -> SysResult<()> {
        // What is still queued is older than the list will be, and must not be told after it.
        loop {
            match self.socket.recv(&mut &mut self.buffer[..], libc::MSG_TRUNC) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if !matches!(error.raw_os_error(), Some(libc::ENOBUFS | libc::EINTR)) => {
                    return Err(SysError::new("watch interfaces", error));
                }
                _ => {}
            }
        }
        let now = self.requests.links()?;
        self.known.retain(|&index, link| {
            let there = now.iter().any(|link| link.index == index);
            if !there {
                self.pending.push_back(LinkEvent::Removed { index, name: link.name.clone() });
            }
            there
        });
        for link in now {
            let index = link.index;
            note(&mut self.known, &mut self.pending, link);
            self.pending.push_back(LinkEvent::AddressChanged { index });
        }
        Ok(())
    }
}

/// The kernel sends the same message for a new interface, a changed one, and one whose counters were looked at.
fn note(known: &mut HashMap<u32, Link>, pending: &mut VecDeque<LinkEvent>, link: Link) {
    match known.insert(link.index, link.clone()) {
        None => pending.push_back(LinkEvent::Appeared(link)),
        Some(before) if before != link => pending.push_back(LinkEvent::Changed(link)),
        Some(_) => {}
    }
}
