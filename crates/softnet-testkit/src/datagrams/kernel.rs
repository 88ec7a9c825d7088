//! The kernel's UDP sockets.

use std::io;
use std::mem::MaybeUninit;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with, sockopt};

use super::busy_poll::{BusyPoll, set_busy_poll};
use super::mmsg::{Receiver, Sender, Sent, tell_local};
use super::queue::{incoming_napi_id, lead_by_queue};
use super::{DatagramSet, Local, Outbox, Stop};

/// What stands for the [`Stop`] in the epoll set.
const STOP: u64 = u64::MAX;
/// Most sockets that one wait tells of, whatever is asked for.
const MAX_EVENTS: usize = 64;
/// Longest wait for room in a socket's send buffer.
const FULL: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
/// Asked of the kernel for receive and send buffers; it gives as much of it as `net.core.[rw]mem_max` allow.
const BUFFER: usize = 4 << 20;

/// The kernel's UDP sockets of one thread: `epoll`, `recvmmsg`, `sendmmsg`.
pub struct KernelSockets {
    epoll: OwnedFd,
    sockets: Vec<UdpSocket>,
    max_events: usize,
    longest_wait: Option<Duration>,
    /// Whether each datagram names where it goes; else all sockets are connected.
    named: bool,
    receiver: Receiver,
    sender: Sender,
}

impl KernelSockets {
    /// Sockets bound to `addresses`, which those of other threads may be bound to as well (SO_REUSEPORT): the
    /// kernel then chooses one by the flow. `batch` is the most that one `recv` takes; `stop` ends a wait. In the
    /// network namespace of the calling thread.
    ///
    /// # Errors
    /// An address that is in use, or none of this host.
    pub fn bound(addresses: &[SocketAddr], batch: usize, stop: &Stop) -> io::Result<Self> {
        let open = |address: &SocketAddr| {
            let family = match address {
                SocketAddr::V4(_) => AddressFamily::INET,
                SocketAddr::V6(_) => AddressFamily::INET6,
            };
            let socket = socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
            sockopt::set_socket_reuseport(&socket, true)?;
            bind(&socket, address)?;
            if address.ip().is_unspecified() {
                tell_local(socket.as_fd(), address.is_ipv4())?;
            }
            Ok(UdpSocket::from(socket))
        };
        let sockets = addresses.iter().map(open).collect::<io::Result<_>>()?;
        Self::new(sockets, true, batch, stop)
    }

    /// `count` sockets, each with a port of its own, connected to `peer`. The rest as in [`bound`](Self::bound).
    ///
    /// # Errors
    /// No route to `peer`; no more ports.
    pub fn connected(peer: SocketAddr, count: usize, batch: usize, stop: &Stop) -> io::Result<Self> {
        let any = match peer {
            SocketAddr::V4(_) => "0.0.0.0:0",
            SocketAddr::V6(_) => "[::]:0",
        };
        let open = |_| {
            let socket = UdpSocket::bind(any)?;
            socket.connect(peer)?;
            Ok(socket)
        };
        let sockets = (0..count).map(open).collect::<io::Result<_>>()?;
        Self::new(sockets, false, batch, stop)
    }

    fn new(sockets: Vec<UdpSocket>, named: bool, batch: usize, stop: &Stop) -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, stop, EventData::new_u64(STOP), EventFlags::IN)?;
        for (i, socket) in sockets.iter().enumerate() {
            // More than the default of a few hundred datagrams, so that a burst is not lost while others are served.
            sockopt::set_socket_recv_buffer_size(socket, BUFFER)?;
            sockopt::set_socket_send_buffer_size(socket, BUFFER)?;
            socket.set_nonblocking(true)?;
            epoll::add(&epoll, socket, EventData::new_u64(i as u64), EventFlags::IN)?;
        }
        let (receiver, sender) = (Receiver::new(batch), Sender::new());
        Ok(KernelSockets {
            epoll,
            sockets,
            max_events: MAX_EVENTS,
            longest_wait: None,
            named,
            receiver,
            sender,
        })
    }

    /// One wait tells of so many sockets at the most (`maxevents`), 1 to 64, or the nearest of these.
    pub fn set_max_events(&mut self, max: usize) {
        self.max_events = max.clamp(1, MAX_EVENTS);
    }

    /// A wait returns after this time at the latest, though nothing came.
    pub fn set_longest_wait(&mut self, longest: Option<Duration>) {
        self.longest_wait = longest;
    }

    /// How a wait busy polls the NAPI instance that packets come by (`EPIOCSPARAMS`; Linux 6.9).
    ///
    /// # Errors
    /// A budget above 64 without CAP_NET_ADMIN; ENOTTY on an older kernel.
    pub fn set_busy_poll(&mut self, params: BusyPoll) -> io::Result<()> {
        set_busy_poll(self.epoll.as_fd(), params)
    }

    /// From now on which of the `members` sets that are bound to these addresses gets a packet depends on the RX
    /// queue that it came by, and so on the NAPI instance, and not on its flow: with as many sets as queues, each
    /// has one of its own. What comes by no queue, as on the loopback interface, all goes to one set.
    ///
    /// # Errors
    /// The sockets are not [`bound`](Self::bound).
    pub fn lead_by_queue(&self, members: u32) -> io::Result<()> {
        self.sockets.iter().try_for_each(|socket| lead_by_queue(socket.as_fd(), members))
    }

    /// Where each socket is.
    pub fn local_addrs(&self) -> io::Result<Vec<SocketAddr>> {
        self.sockets.iter().map(UdpSocket::local_addr).collect()
    }
}

impl DatagramSet for KernelSockets {
    fn wait(&mut self, timeout: Option<Duration>, ready: &mut Vec<usize>) -> io::Result<()> {
        ready.clear();
        let timeout = [timeout, self.longest_wait].into_iter().flatten().min();
        let timeout = timeout.map(|timeout| Timespec {
            tv_sec: timeout.as_secs().try_into().unwrap_or(i64::MAX),
            tv_nsec: timeout.subsec_nanos().into(),
        });
        let mut events = [MaybeUninit::uninit(); MAX_EVENTS];
        let events = match epoll::wait(&self.epoll, &mut events[..self.max_events], timeout.as_ref()) {
            Ok((events, _)) => events,
            Err(Errno::INTR) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let sockets = events.iter().map(|event| event.data.u64()).filter(|data| *data != STOP);
        ready.extend(sockets.map(|data| data as usize));
        Ok(())
    }

    fn recv(&mut self, socket: usize) -> io::Result<usize> {
        self.receiver.recv(self.sockets[socket].as_fd())
    }

    fn datagram(&self, i: usize) -> (SocketAddr, &[u8]) {
        self.receiver.datagram(i)
    }

    fn local(&self, i: usize) -> Option<Local> {
        self.receiver.local(i)
    }

    fn send(&mut self, socket: usize, outbox: &Outbox) -> io::Result<usize> {
        let socket = self.sockets[socket].as_fd();
        let (mut done, mut refused) = (0, 0);
        while done < outbox.len() {
            match self.sender.send(socket, outbox, done, self.named)? {
                Sent::Some(sent) => done += sent,
                Sent::Refused => {
                    refused += 1;
                    done += 1;
                }
                Sent::Full => {
                    let mut room = [PollFd::new(&socket, PollFlags::OUT)];
                    match poll(&mut room, Some(&FULL)) {
                        Ok(0) => return Ok(refused + outbox.len() - done),
                        Ok(_) | Err(Errno::INTR) => {}
                        Err(error) => return Err(error.into()),
                    }
                }
            }
        }
        Ok(refused)
    }

    fn napi_id(&self, socket: usize) -> u32 {
        incoming_napi_id(self.sockets[socket].as_fd())
    }
}
