//! The options of a socket, and how errors are reported.

use std::io;
use std::time::Duration;

use rustix::io::Errno;
use softnet_core::skb::FRAME_SIZE;
use softnet_core::sock::route::RouteError;
use softnet_core::sock::{BindError, SocketError};
use softnet_core::sync::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use super::busy_poll::BusyPollOption;
use super::udp::UdpSocket;
use super::{EpollParams, OutOfRange};

/// Bytes of packet memory that a datagram of one packet takes: a frame and its head.
pub(super) const TRUESIZE: usize = FRAME_SIZE + 128;

/// Bytes of a receive buffer by default.
const DEFAULT_BUFFER: u32 = 1 << 20;

/// Options of one socket; any thread may set them.
pub(super) struct Options {
    pub(super) nonblocking: AtomicBool,
    pub(super) busy_poll: BusyPollOption,
    pub(super) broadcast: AtomicBool,
    pub(super) multicast_loop: AtomicBool,
    pub(super) multicast_loop6: AtomicBool,
    pub(super) ttl: AtomicU32,
    pub(super) tos: AtomicU32,
    /// A [`MtuDiscover`].
    mtu_discover: AtomicU32,
    pub(super) multicast_ttl: AtomicU32,
    pub(super) multicast_hops: AtomicU32,
    /// In ns; 0: no time-out.
    pub(super) read_timeout: AtomicU64,
    pub(super) write_timeout: AtomicU64,
    /// Bytes, as requested.
    pub(super) recv_buffer: AtomicU32,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            nonblocking: AtomicBool::new(false),
            busy_poll: BusyPollOption::default(),
            broadcast: AtomicBool::new(false),
            multicast_loop: AtomicBool::new(true),
            multicast_loop6: AtomicBool::new(true),
            ttl: AtomicU32::new(64),
            tos: AtomicU32::new(0),
            mtu_discover: AtomicU32::new(MtuDiscover::Want as u32),
            multicast_ttl: AtomicU32::new(1),
            multicast_hops: AtomicU32::new(1),
            read_timeout: AtomicU64::new(0),
            write_timeout: AtomicU64::new(0),
            recv_buffer: AtomicU32::new(DEFAULT_BUFFER),
        }
    }
}

impl Options {
    pub(super) fn mtu_discover(&self) -> MtuDiscover {
        let set = self.mtu_discover.load(Ordering::Relaxed);
        [MtuDiscover::Do, MtuDiscover::Probe]
            .into_iter()
            .find(|mode| *mode as u32 == set)
            .unwrap_or(MtuDiscover::Want)
    }
}

/// What a socket does with datagrams that are longer than the MTU of their path (`IP_MTU_DISCOVER`,
/// `IPV6_MTU_DISCOVER`). The kernel's numbers; its `DONT`, `INTERFACE` and `OMIT` there are not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MtuDiscover {
    /// They leave in fragments. The default.
    #[default]
    Want = 1,
    /// They are refused (`EMSGSIZE`).
    Do = 2,
    /// They leave whole if the device's MTU allows it, and are refused if not: what was learnt of
    /// paths does not matter, since the program finds out by itself, as QUIC does (RFC 8899).
    Probe = 3,
}

/// Number of packets that a buffer of `bytes` holds: at least one.
pub(super) fn packets(bytes: usize) -> u32 {
    (bytes / TRUESIZE).clamp(1, u32::MAX as usize / 2) as u32
}

/// Sets a time-out; 0 is refused, as by `std`.
pub(super) fn set_timeout(to: &AtomicU64, timeout: Option<Duration>) -> io::Result<()> {
    if timeout == Some(Duration::ZERO) {
        return Err(errno(Errno::INVAL));
    }
    let ns = timeout.map_or(0, |timeout| u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX));
    to.store(ns, Ordering::Relaxed);
    Ok(())
}

/// The time-out that was set.
pub(super) fn timeout(of: &AtomicU64) -> Option<Duration> {
    match of.load(Ordering::Relaxed) {
        0 => None,
        ns => Some(Duration::from_nanos(ns)),
    }
}

/// The error of a route that there is none, as the kernel's sockets return it.
#[cold]
pub(super) fn route_errno(error: RouteError) -> Errno {
    match error {
        RouteError::NetUnreachable => Errno::NETUNREACH,
        RouteError::HostUnreachable => Errno::HOSTUNREACH,
        RouteError::NetDown => Errno::NETDOWN,
        RouteError::AddrNotAvailable => Errno::ADDRNOTAVAIL,
        RouteError::Access => Errno::ACCESS,
        RouteError::Invalid => Errno::INVAL,
    }
}

/// An error in the form that the kernel's sockets return it.
pub(in crate::net) fn errno(errno: Errno) -> io::Error {
    errno.into()
}

pub(super) fn of_bind(error: BindError) -> io::Error {
    errno(match error {
        BindError::InUse | BindError::NoPort | BindError::Joined => Errno::ADDRINUSE,
        BindError::TooMany => Errno::NFILE,
        BindError::GroupFull | BindError::TooManyGroups => Errno::NOBUFS,
        BindError::NotJoined => Errno::ADDRNOTAVAIL,
    })
}

pub(super) fn of_socket(error: SocketError) -> io::Error {
    errno(match error {
        SocketError::ConnectionRefused => Errno::CONNREFUSED,
        SocketError::HostUnreachable => Errno::HOSTUNREACH,
        SocketError::NetUnreachable => Errno::NETUNREACH,
        SocketError::MessageSize => Errno::MSGSIZE,
    })
}

impl UdpSocket {
    /// Whether calls fail with [`WouldBlock`](io::ErrorKind::WouldBlock) instead of waiting.
    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        self.inner().options.nonblocking.store(nonblocking, Ordering::Relaxed);
        Ok(())
    }

    /// How calls that wait for a datagram poll before they block (`SO_BUSY_POLL`, `SO_PREFER_BUSY_POLL` and
    /// `SO_BUSY_POLL_BUDGET`): the thread polls the NAPI instance that the socket's last one came by, rather than be
    /// woken by the thread that would. At most 33 s; the default does not poll, nor do calls that do not block. With
    /// `prefer_busy_poll` what comes for others may wait for `gro_flush_timeout`.
    pub fn set_busy_poll(&self, params: EpollParams) -> Result<(), OutOfRange> {
        self.inner().options.busy_poll.set(&params)
    }

    /// See [`set_busy_poll`](Self::set_busy_poll).
    pub fn busy_poll(&self) -> EpollParams {
        self.inner().options.busy_poll.get()
    }

    /// Time-out of receiving; `None`: none. A time-out of 0 is an error.
    pub fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        set_timeout(&self.inner().options.read_timeout, timeout)
    }

    /// See [`set_read_timeout`](Self::set_read_timeout).
    pub fn read_timeout(&self) -> io::Result<Option<Duration>> {
        Ok(timeout(&self.inner().options.read_timeout))
    }

    /// Time-out of sending while the socket is held back, since too many packets are pending before
    /// the TX queue; `None`: none. A time-out of 0 is an error.
    pub fn set_write_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        set_timeout(&self.inner().options.write_timeout, timeout)
    }

    /// See [`set_write_timeout`](Self::set_write_timeout).
    pub fn write_timeout(&self) -> io::Result<Option<Duration>> {
        Ok(timeout(&self.inner().options.write_timeout))
    }

    /// Sets how many bytes of packet memory may wait (`SO_RCVBUF`): each packet counts as a frame
    /// and a head, 2176 bytes, whatever its length. At least one packet may wait. The default is 1
    /// MiB.
    pub fn set_recv_buffer_size(&self, bytes: usize) -> io::Result<()> {
        self.inner().slot.slot().set_limit(packets(bytes));
        self.inner().options.recv_buffer.store(u32::try_from(bytes).unwrap_or(u32::MAX), Ordering::Relaxed);
        Ok(())
    }

    /// See [`set_recv_buffer_size`](Self::set_recv_buffer_size).
    pub fn recv_buffer_size(&self) -> io::Result<usize> {
        Ok(self.inner().options.recv_buffer.load(Ordering::Relaxed) as usize)
    }

    /// Sets the time to live of datagrams that the socket sends, 1 to 255.
    pub fn set_ttl(&self, ttl: u32) -> io::Result<()> {
        if !(1..=255).contains(&ttl) {
            return Err(errno(Errno::INVAL));
        }
        self.inner().options.ttl.store(ttl, Ordering::Relaxed);
        Ok(())
    }

    /// See [`set_ttl`](Self::set_ttl).
    pub fn ttl(&self) -> io::Result<u32> {
        Ok(self.inner().options.ttl.load(Ordering::Relaxed))
    }

    /// Sets the type of service of datagrams that the socket sends: DSCP and ECN.
    pub fn set_tos(&self, tos: u8) -> io::Result<()> {
        self.inner().options.tos.store(tos.into(), Ordering::Relaxed);
        Ok(())
    }

    /// See [`set_tos`](Self::set_tos).
    pub fn tos(&self) -> io::Result<u8> {
        Ok(self.inner().options.tos.load(Ordering::Relaxed) as u8)
    }

    /// What the socket does with datagrams that are longer than the MTU of their path.
    pub fn set_mtu_discover(&self, mode: MtuDiscover) -> io::Result<()> {
        self.inner().options.mtu_discover.store(mode as u32, Ordering::Relaxed);
        Ok(())
    }

    /// See [`set_mtu_discover`](Self::set_mtu_discover).
    pub fn mtu_discover(&self) -> io::Result<MtuDiscover> {
        Ok(self.inner().options.mtu_discover())
    }

    /// Whether the socket may send to broadcast addresses.
    pub fn set_broadcast(&self, broadcast: bool) -> io::Result<()> {
        self.inner().options.broadcast.store(broadcast, Ordering::Relaxed);
        Ok(())
    }

    /// See [`set_broadcast`](Self::set_broadcast).
    pub fn broadcast(&self) -> io::Result<bool> {
        Ok(self.inner().options.broadcast.load(Ordering::Relaxed))
    }
}
