//! Packet sockets (AF_PACKET, packet(7)): frames of one interface as the kernel's own receive path
//! has them; and, on these, a device on any Ethernet interface ([`open`]).
//!
//! Any thread may use one. Invariant: a [`PacketSocket`] never brings what this host sends, and receives nothing before its
//! filter is in place.

mod device;
mod error;
mod messages;
mod ring;
mod rx;
#[cfg(test)]
mod tests;
mod tx;

pub use device::{MAX_MTU, MAX_QUEUES, OwnAddresses, PacketConfig, look, open, open_with_addresses};
pub use error::PacketError;
pub(crate) use messages::{Messages, Outlet, Stop};

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

use crate::sys_error::{SysError, SysResult};

/// One instruction of classic BPF (`struct sock_filter`): code, jump if true, jump if false, operand.
pub type FilterInsn = (u16, u8, u8, u32);

/// Receive buffer in bytes, as the kernel accounts frames (their memory, not their length).
const RECV_BUFFER: i32 = 1 << 20;

/// A packet socket of one interface.
#[derive(Debug)]
pub struct PacketSocket {
    fd: OwnedFd,
}

/// `struct tpacket_stats`.
#[repr(C)]
#[derive(Default)]
struct Stats {
    packets: u32,
    drops: u32,
}

impl PacketSocket {
    /// A socket that receives the frames of the interface with index `ifindex`, of the calling thread's network namespace,
    /// that `filter` accepts (all, if it has no instruction). Reading does not wait.
    ///
    /// # Errors
    /// Needs CAP_NET_RAW; ENXIO or ENODEV where there is no such interface.
    pub fn open(ifindex: u32, filter: &[FilterInsn]) -> SysResult<Self> {
        let socket = Self::unbound(filter)?;
        // What the kernel allows will do, too.
        let set = |option| socket.set_option(libc::SOL_SOCKET, option, &RECV_BUFFER);
        let _ = set(libc::SO_RCVBUFFORCE).or_else(|_| set(libc::SO_RCVBUF));
        socket.bind(ifindex)?;
        Ok(socket)
    }

    /// A socket that only sends by the interface with index `ifindex`, of the calling thread's network
    /// namespace: packets behind headers of `vnet`, of which `send_buffer` bytes may be under way.
    pub(crate) fn sender(ifindex: u32, send_buffer: i32) -> SysResult<Self> {
        let socket = Self::unbound(&[])?;
        let failed = |error| SysError::new("have a packet socket take segments", error);
        socket.set_option(libc::SOL_PACKET, libc::PACKET_VNET_HDR, &1i32).map_err(failed)?;
        socket.set_send_buffer(send_buffer);
        socket.bind_to(ifindex, 0)?;
        Ok(socket)
    }

    /// So many bytes of packets may be under way, or as many as the kernel allows.
    fn set_send_buffer(&self, bytes: i32) {
        let set = |option| self.set_option(libc::SOL_SOCKET, option, &bytes);
        let _ = set(libc::SO_SNDBUFFORCE).or_else(|_| set(libc::SO_SNDBUF));
    }

    /// A socket that receives nothing yet.
    fn unbound(filter: &[FilterInsn]) -> SysResult<Self> {
        let flags = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: plain numbers; returns a descriptor or -1. Protocol 0: nothing is received before it is bound.
        let fd = unsafe { libc::socket(libc::AF_PACKET, flags, 0) };
        if fd < 0 {
            return Err(SysError::last("open a packet socket").needs("CAP_NET_RAW"));
        }
        // SAFETY: the kernel just made this descriptor for us.
        let socket = PacketSocket { fd: unsafe { OwnedFd::from_raw_fd(fd) } };
        if !filter.is_empty() {
            socket.attach(filter).map_err(|error| SysError::new("filter a packet socket", error))?;
        }
        socket
            .set_option(libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, &1i32)
            .map_err(|error| SysError::new("ignore outgoing frames on a packet socket", error))?;
        Ok(socket)
    }

    /// From now on it receives the frames of the interface with index `ifindex`.
    fn bind(&self, ifindex: u32) -> SysResult<()> {
        self.bind_to(ifindex, libc::ETH_P_ALL as u16)
    }

    /// The same for frames of one EtherType; with 0 it receives none.
    fn bind_to(&self, ifindex: u32, protocol: u16) -> SysResult<()> {
        // SAFETY: plain numbers, for which zero is a value.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = protocol.to_be();
        address.sll_ifindex = ifindex as i32;
        // SAFETY: a live address of the stated length.
        let bound = unsafe {
            libc::bind(
                self.fd.as_raw_fd(),
                (&raw const address).cast(),
                size_of::<libc::sockaddr_ll>() as libc::socklen_t,
            )
        };
        match bound {
            0 => Ok(()),
            _ => Err(SysError::last(format!("bind a packet socket to interface {ifindex}"))),
        }
    }

    fn attach(&self, filter: &[FilterInsn]) -> io::Result<()> {
        let mut insns: Vec<libc::sock_filter> =
            filter.iter().map(|&(code, jt, jf, k)| libc::sock_filter { code, jt, jf, k }).collect();
        let program = libc::sock_fprog { len: insns.len() as u16, filter: insns.as_mut_ptr() };
        // The kernel copies the instructions, which live until it has.
        self.set_option(libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)
    }

    fn set_option<T>(&self, level: i32, option: i32, value: &T) -> io::Result<()> {
        // SAFETY: a live value of the stated length; what it may point to is as the option wants it.
        let result = unsafe {
            libc::setsockopt(
                self.fd.as_raw_fd(),
                level,
                option,
                std::ptr::from_ref(value).cast(),
                size_of::<T>() as libc::socklen_t,
            )
        };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Has the interface receive frames to the multicast address `mac`, as long as the socket lives.
    pub fn join(&self, ifindex: u32, mac: [u8; 6]) -> SysResult<()> {
        let mut mr_address = [0; 8];
        mr_address[..6].copy_from_slice(&mac);
        let request = libc::packet_mreq {
            mr_ifindex: ifindex as i32,
            mr_type: libc::PACKET_MR_MULTICAST as u16,
            mr_alen: 6,
            mr_address,
        };
        self.set_option(libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &request)
            .map_err(|error| SysError::new("receive a multicast MAC address", error))
    }

    /// Receives a frame into `buffer`; `None` if none waits. How long it is: more than there is room for, if it was cut.
    ///
    /// # Errors
    /// ENETDOWN, once, when the interface was set down or deleted.
    pub fn recv(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        match rustix::net::recv(&self.fd, buffer, RecvFlags::DONTWAIT | RecvFlags::TRUNC) {
            Ok((_, len)) => Ok(Some(len)),
            Err(Errno::AGAIN | Errno::INTR) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Sends a frame as it is.
    pub fn send(&self, frame: &[u8]) -> io::Result<()> {
        rustix::net::send(&self.fd, frame, SendFlags::empty()).map(drop).map_err(io::Error::from)
    }

    /// Frames that were lost for want of room since this was asked last.
    pub fn lost(&self) -> u64 {
        let mut stats = Stats::default();
        let mut len = size_of::<Stats>() as libc::socklen_t;
        // SAFETY: a live buffer of the stated length, which the kernel fills.
        let result = unsafe {
            libc::getsockopt(
                self.fd.as_raw_fd(),
                libc::SOL_PACKET,
                libc::PACKET_STATISTICS,
                (&raw mut stats).cast(),
                &raw mut len,
            )
        };
        if result < 0 { 0 } else { stats.drops.into() }
    }
}

impl AsFd for PacketSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
