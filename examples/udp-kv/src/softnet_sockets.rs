//! softnet's UDP sockets as a [`DatagramSet`]: what the server is written against, on a stack of this process.
//!
//! A set is used by one thread at a time: the one that waits polls the NAPI instance that its sockets receive by, if
//! [`Waiting::params`] say so. Invariant: packet memory that was received is given back before the thread waits again.

#[cfg(test)]
mod tests;

use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::Range;
use std::time::Duration;

use softnet::net::{
    Epoll, EpollParams, Event, Handle, Interest, MsgHdr, PktInfo, RecvBatch, SendBatch, UdpSocket,
};
use softnet_testkit::datagrams::{DatagramSet, Local, Outbox, Stop};

/// What stands for the [`Stop`] in the epoll set.
const STOP: u64 = u64::MAX;
/// Longest wait for room before the TX queue.
const FULL: Duration = Duration::from_millis(100);
/// Bytes of packet memory that may wait at each socket; all of a stack's have half of its frames.
const BUFFER: usize = 4 << 20;

/// How a set waits, and how much it takes at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// Whether and how the thread polls while it waits.
    pub params: EpollParams,
    /// Most sockets that one wait tells of (`maxevents`); at least one.
    pub max_events: usize,
    /// Most datagrams that are taken from a socket at a time, at most [`RecvBatch::MAX`].
    pub batch: usize,
    /// A wait ends after so long, whatever was asked for: a thread that always polls never sleeps.
    pub longest: Option<Duration>,
}

impl Default for Waiting {
    /// Is woken, and takes as much as it can.
    fn default() -> Self {
        Waiting { params: EpollParams::default(), max_events: 64, batch: RecvBatch::MAX, longest: None }
    }
}

/// The sockets of one thread on a softnet stack.
pub struct SoftnetSockets {
    epoll: Epoll,
    events: Vec<Event>,
    sockets: Vec<UdpSocket>,
    /// Whether each datagram names where it goes; else all sockets are connected.
    named: bool,
    /// Which of them are bound to no address, so that a datagram says at which it was asked.
    wild: Vec<bool>,
    /// Whether what was received last is of one of these.
    wildly: bool,
    waiting: Waiting,
    received: RecvBatch,
    /// Datagrams of `received` that came in fragments, put together.
    whole: Vec<u8>,
    /// Their numbers, and where they are there.
    spans: Vec<(usize, Range<usize>)>,
    /// What all sockets send until the next wait.
    out: SendBatch,
    /// That was held back for as long as it may, and still is.
    stuck: bool,
}

impl SoftnetSockets {
    /// Sockets bound to `addresses`, which those of other threads may be bound to as well (`SO_REUSEPORT`): which one gets a
    /// packet depends on its flow, or on [`lead_napi`](Self::lead_napi). `stop` ends a wait.
    ///
    /// # Errors
    /// An address that is in use, or none of the stack; parameters out of range.
    pub fn bound(on: &Handle, addresses: &[SocketAddr], waiting: Waiting, stop: &Stop) -> io::Result<Self> {
        let builder = UdpSocket::builder(on).reuse_port(true).recv_buffer_size(BUFFER);
        let sockets = addresses.iter().map(|address| builder.bind(address)).collect::<io::Result<_>>()?;
        Self::new(on, sockets, true, waiting, stop)
    }

    /// `count` sockets, each with a port of its own, connected to `peer`. The rest as in [`bound`](Self::bound).
    ///
    /// # Errors
    /// No route to `peer`; no more ports or sockets; parameters out of range.
    pub fn connected(
        on: &Handle,
        peer: SocketAddr,
        count: usize,
        waiting: Waiting,
        stop: &Stop,
    ) -> io::Result<Self> {
        let any: IpAddr = match peer {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let open = |_| {
            let socket = UdpSocket::builder(on).recv_buffer_size(BUFFER).bind((any, 0))?;
            socket.connect(peer)?;
            Ok(socket)
        };
        Self::new(on, (0..count).map(open).collect::<io::Result<_>>()?, false, waiting, stop)
    }

    fn new(
        on: &Handle,
        sockets: Vec<UdpSocket>,
        named: bool,
        waiting: Waiting,
        stop: &Stop,
    ) -> io::Result<Self> {
        let mut epoll = Epoll::new(on)?;
        epoll.set_params(waiting.params).map_err(|error| io::Error::new(ErrorKind::InvalidInput, error))?;
        epoll.ctl().add_fd(stop, Interest::IN, STOP)?;
        for (token, socket) in sockets.iter().enumerate() {
            socket.set_nonblocking(true)?;
            epoll.ctl().add(socket, Interest::IN, token as u64)?;
        }
        let is_wild = |socket: &UdpSocket| Ok(socket.local_addr()?.ip().is_unspecified());
        let wild = sockets.iter().map(is_wild).collect::<io::Result<_>>()?;
        Ok(SoftnetSockets {
            epoll,
            events: Vec::new(),
            sockets,
            named,
            wild,
            wildly: false,
            waiting,
            received: RecvBatch::new(),
            whole: Vec::new(),
            spans: Vec::new(),
            out: SendBatch::new(on),
            stuck: false,
        })
    }

    /// Of the sets that are bound to these addresses, this one gets what comes by NAPI instance `napi_id`, whatever its flow.
    pub fn lead_napi(&self, napi_id: u32) {
        self.sockets.iter().for_each(|socket| socket.set_reuse_port_napi(Some(napi_id)));
    }

    /// Where each socket is.
    ///
    /// # Errors
    /// None that is known.
    pub fn local_addrs(&self) -> io::Result<Vec<SocketAddr>> {
        self.sockets.iter().map(UdpSocket::local_addr).collect()
    }

    /// Has what is gathered leave. Waits until it may, but once only for a device that stands still.
    fn flush(&mut self) -> bool {
        self.stuck = self.out.flush(if self.stuck { Duration::ZERO } else { FULL }).is_err();
        !self.stuck
    }

    /// Puts together what came in fragments.
    fn join(&mut self) {
        self.whole.clear();
        self.spans.clear();
        for (i, datagram) in self.received.iter().enumerate() {
            if datagram.data().is_none() {
                let start = self.whole.len();
                datagram.parts().for_each(|part| self.whole.extend_from_slice(part));
                self.spans.push((i, start..self.whole.len()));
            }
        }
    }
}

impl Drop for SoftnetSockets {
    /// What was sent leaves, even if it is held back for a while.
    fn drop(&mut self) {
        self.flush();
    }
}

impl DatagramSet for SoftnetSockets {
    fn wait(&mut self, timeout: Option<Duration>, ready: &mut Vec<usize>) -> io::Result<()> {
        ready.clear();
        self.received.clear();
        // What is held back for longer is tried again after a while.
        let again = (!self.flush()).then_some(FULL);
        let timeout = [timeout, self.waiting.longest, again].into_iter().flatten().min();
        self.epoll.wait(&mut self.events, self.waiting.max_events, timeout)?;
        let tokens = self.events.iter().map(|event| event.token);
        ready.extend(tokens.filter(|token| *token != STOP).map(|token| token as usize));
        Ok(())
    }

    fn recv(&mut self, socket: usize) -> io::Result<usize> {
        let taken = match self.sockets[socket].recv_batch(&mut self.received, self.waiting.batch) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => 0,
            taken => taken?,
        };
        self.join();
        self.wildly = self.wild[socket];
        Ok(taken)
    }

    fn datagram(&self, i: usize) -> (SocketAddr, &[u8]) {
        let datagram = self.received.get(i).expect("so many were received");
        let joined = || {
            let span = self.spans.iter().find(|(number, _)| *number == i).map(|(_, span)| span.clone());
            &self.whole[span.unwrap_or_default()]
        };
        (datagram.from, datagram.data().unwrap_or_else(joined))
    }

    fn local(&self, i: usize) -> Option<Local> {
        let PktInfo { addr, if_index } = self.received.get(i).filter(|_| self.wildly)?.info();
        Some(Local { addr, if_index })
    }

    fn send(&mut self, socket: usize, outbox: &Outbox) -> io::Result<usize> {
        let mut refused = 0;
        for i in 0..outbox.len() {
            let (to, bytes) = outbox.get(i);
            let info = outbox.local(i).map(|Local { addr, if_index }| PktInfo { addr, if_index });
            let to = MsgHdr::new(self.named.then_some(to), info);
            let mut pushed = self.out.push(&self.sockets[socket], bytes, to);
            if pushed.as_ref().is_err_and(|error| error.kind() == ErrorKind::WouldBlock) && self.flush() {
                pushed = self.out.push(&self.sockets[socket], bytes, to);
            }
            match pushed {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::NetworkDown => return Err(error),
                // It can't be sent to where it was to go, or for too long.
                Err(_) => refused += 1,
            }
        }
        Ok(refused)
    }

    fn napi_id(&self, socket: usize) -> u32 {
        self.sockets[socket].incoming_napi_id()
    }
}
