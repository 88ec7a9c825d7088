//! `recvmmsg` and `sendmmsg`: many datagrams by one system call.
//!
//! Message headers are kept from call to call, since to write them costs as much as a short batch. Invariant: between
//! calls the pointers in them are not followed; each call that hands them to the kernel has made them point to live
//! memory first.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsRawFd, BorrowedFd};

use super::pktinfo::Control;
pub(super) use super::pktinfo::tell_local;
use super::{Local, Outbox};

/// Room for a datagram of any length. Not a multiple of a page, so that the first lines of all slots do not compete
/// for the same places in the cache; a page that no datagram reached is never touched.
const SLOT: usize = 65_536 + 192;
/// Longest list that `sendmmsg` takes (UIO_MAXIOV).
const MAX_MESSAGES: usize = 1024;

/// A socket address as the kernel has it, of the families that UDP is used with.
#[derive(Clone, Copy)]
#[repr(C)]
union Name {
    v4: libc::sockaddr_in,
    v6: libc::sockaddr_in6,
}

impl Name {
    const SIZE: libc::socklen_t = size_of::<Name>() as libc::socklen_t;

    fn zero() -> Name {
        // SAFETY: both are plain numbers, for which zero is a value.
        unsafe { std::mem::zeroed() }
    }

    fn of(addr: SocketAddr) -> (Name, libc::socklen_t) {
        let mut name = Name::zero();
        match addr {
            SocketAddr::V4(addr) => {
                name.v4 = libc::sockaddr_in {
                    sin_family: libc::AF_INET as libc::sa_family_t,
                    sin_port: addr.port().to_be(),
                    sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(addr.ip().octets()) },
                    sin_zero: [0; 8],
                };
                (name, size_of::<libc::sockaddr_in>() as libc::socklen_t)
            }
            SocketAddr::V6(addr) => {
                name.v6 = libc::sockaddr_in6 {
                    sin6_family: libc::AF_INET6 as libc::sa_family_t,
                    sin6_port: addr.port().to_be(),
                    sin6_flowinfo: addr.flowinfo(),
                    sin6_addr: libc::in6_addr { s6_addr: addr.ip().octets() },
                    sin6_scope_id: addr.scope_id(),
                };
                (name, Name::SIZE)
            }
        }
    }

    /// The address; `UNSPECIFIED` for a family that UDP has none of.
    fn addr(&self) -> SocketAddr {
        // SAFETY: the family stands at the same place in both, and every byte of the union is initialised.
        let family = unsafe { self.v4.sin_family };
        match i32::from(family) {
            libc::AF_INET => {
                // SAFETY: the kernel wrote this variant, and plain numbers are valid whatever they are.
                let v4 = unsafe { self.v4 };
                let ip = Ipv4Addr::from(v4.sin_addr.s_addr.to_ne_bytes());
                SocketAddr::V4(SocketAddrV4::new(ip, u16::from_be(v4.sin_port)))
            }
            libc::AF_INET6 => {
                // SAFETY: as above.
                let v6 = unsafe { self.v6 };
                let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
                let (port, flow, scope) = (u16::from_be(v6.sin6_port), v6.sin6_flowinfo, v6.sin6_scope_id);
                SocketAddr::V6(SocketAddrV6::new(ip, port, flow, scope))
            }
            _ => SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0)),
        }
    }
}

fn zero_message() -> libc::mmsghdr {
    // SAFETY: plain numbers and pointers, for which zero is a value.
    unsafe { std::mem::zeroed() }
}

/// Memory for a batch of received datagrams, and the headers that point to it.
pub(super) struct Receiver {
    messages: Box<[libc::mmsghdr]>,
    names: Box<[Name]>,
    controls: Box<[Control]>,
    /// What the messages point into; neither is ever moved or replaced.
    _vectors: Box<[libc::iovec]>,
    slots: Box<[u8]>,
    received: usize,
}

// SAFETY: the pointers lead to memory that the same value owns, and that no other code has.
unsafe impl Send for Receiver {}

impl Receiver {
    /// Of at most `batch` datagrams.
    pub(super) fn new(batch: usize) -> Self {
        let mut slots = vec![0; batch * SLOT].into_boxed_slice();
        let mut names = vec![Name::zero(); batch].into_boxed_slice();
        let mut controls = vec![Control::EMPTY; batch].into_boxed_slice();
        let base: *mut u8 = slots.as_mut_ptr();
        let vector = |i| libc::iovec { iov_base: base.wrapping_add(i * SLOT).cast(), iov_len: SLOT };
        let mut vectors: Box<[libc::iovec]> = (0..batch).map(vector).collect();
        let (first_name, first_vector) = (names.as_mut_ptr(), vectors.as_mut_ptr());
        let first_control = controls.as_mut_ptr();
        let message = |i| {
            let mut message = zero_message();
            message.msg_hdr.msg_name = first_name.wrapping_add(i).cast();
            message.msg_hdr.msg_namelen = Name::SIZE;
            message.msg_hdr.msg_iov = first_vector.wrapping_add(i);
            message.msg_hdr.msg_iovlen = 1;
            message.msg_hdr.msg_control = first_control.wrapping_add(i).cast();
            message.msg_hdr.msg_controllen = size_of::<Control>() as _;
            message
        };
        let messages = (0..batch).map(message).collect();
        Receiver { messages, names, controls, _vectors: vectors, slots, received: 0 }
    }

    /// Takes what waits, without waiting, and returns how many datagrams that were.
    pub(super) fn recv(&mut self, socket: BorrowedFd<'_>) -> io::Result<usize> {
        for message in &mut self.messages[..self.received] {
            message.msg_hdr.msg_namelen = Name::SIZE;
            message.msg_hdr.msg_controllen = size_of::<Control>() as _;
        }
        self.received = 0;
        // SAFETY: the messages point to a name, a control buffer, a vector and through it to a slot of their own each, all of which
        // live in `self`, are not borrowed elsewhere while it is borrowed exclusively, and have the sizes that
        // they say.
        let taken = unsafe {
            libc::recvmmsg(
                socket.as_raw_fd(),
                self.messages.as_mut_ptr(),
                self.messages.len() as libc::c_uint,
                libc::MSG_DONTWAIT as _,
                std::ptr::null_mut(),
            )
        };
        match usize::try_from(taken) {
            Ok(taken) => {
                self.received = taken;
                Ok(taken)
            }
            Err(_) => match io::Error::last_os_error() {
                error if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EINTR)) => Ok(0),
                error => Err(error),
            },
        }
    }

    /// Number `i` of those taken last.
    pub(super) fn datagram(&self, i: usize) -> (SocketAddr, &[u8]) {
        assert!(i < self.received, "there is no datagram {i}");
        let len = (self.messages[i].msg_len as usize).min(SLOT);
        (self.names[i].addr(), &self.slots[i * SLOT..][..len])
    }

    /// Which of our addresses it was sent to, if its socket is to [tell](tell_local).
    pub(super) fn local(&self, i: usize) -> Option<Local> {
        assert!(i < self.received, "there is no datagram {i}");
        self.controls[i].local(self.messages[i].msg_hdr.msg_controllen)
    }
}

/// Headers for datagrams to be sent.
pub(super) struct Sender {
    messages: Vec<libc::mmsghdr>,
    vectors: Vec<libc::iovec>,
    names: Vec<(Name, libc::socklen_t)>,
    controls: Vec<Option<(Control, usize)>>,
}

// SAFETY: the pointers are followed only within `send`, which sets them before.
unsafe impl Send for Sender {}

/// What became of datagrams that were to be sent.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Sent {
    /// The first so many were taken.
    Some(usize),
    /// There is no room now.
    Full,
    /// The first one can't be sent; others may.
    Refused,
}

impl Sender {
    pub(super) fn new() -> Self {
        Sender { messages: Vec::new(), vectors: Vec::new(), names: Vec::new(), controls: Vec::new() }
    }

    /// Sends datagrams of `outbox` from number `first` on, or some of them, each to the peer that it names
    /// (`named`), or to that which the socket is connected to.
    pub(super) fn send(
        &mut self,
        socket: BorrowedFd<'_>,
        outbox: &Outbox,
        first: usize,
        named: bool,
    ) -> io::Result<Sent> {
        let count = (outbox.len() - first).min(MAX_MESSAGES);
        self.vectors.clear();
        self.names.clear();
        self.controls.clear();
        self.messages.clear();
        self.messages.resize(count, zero_message());
        for i in first..first + count {
            let (to, bytes) = outbox.get(i);
            self.vectors
                .push(libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() });
            if named {
                self.names.push(Name::of(to));
            }
            self.controls.push(outbox.local(i).map(Control::of));
        }
        // All lists are complete: they stay where they are from here on.
        let vectors = self.vectors.as_mut_ptr();
        for (i, message) in self.messages.iter_mut().enumerate() {
            message.msg_hdr.msg_iov = vectors.wrapping_add(i);
            message.msg_hdr.msg_iovlen = 1;
            if let Some((name, len)) = self.names.get_mut(i) {
                message.msg_hdr.msg_name = std::ptr::from_mut(name).cast();
                message.msg_hdr.msg_namelen = *len;
            }
            if let Some(Some((control, len))) = self.controls.get_mut(i) {
                message.msg_hdr.msg_control = std::ptr::from_mut(control).cast();
                message.msg_hdr.msg_controllen = *len as _;
            }
        }
        // SAFETY: `count` messages within a live list, each pointing to a live vector, that to live bytes of
        // `outbox`, and to a live name and control message or none. Sending reads them only, but for the lengths in the messages.
        let sent = unsafe {
            libc::sendmmsg(socket.as_raw_fd(), self.messages.as_mut_ptr(), count as libc::c_uint, 0)
        };
        match usize::try_from(sent) {
            Ok(sent) => Ok(Sent::Some(sent)),
            Err(_) => {
                let error = io::Error::last_os_error();
                match error.raw_os_error() {
                    Some(libc::EINTR) => Ok(Sent::Some(0)),
                    Some(libc::EAGAIN | libc::ENOBUFS) => Ok(Sent::Full),
                    // About one destination or datagram, not about the socket; ECONNREFUSED is about an earlier
                    // one, and the kernel has not tried this one.
                    Some(
                        libc::EINVAL
                        | libc::EMSGSIZE
                        | libc::EACCES
                        | libc::EPERM
                        | libc::ENETUNREACH
                        | libc::EHOSTUNREACH
                        | libc::EAFNOSUPPORT
                        | libc::ECONNREFUSED
                        | libc::ENETDOWN,
                    ) => Ok(Sent::Refused),
                    _ => Err(error),
                }
            }
        }
    }
}
