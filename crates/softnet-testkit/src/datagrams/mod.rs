//! Datagram sockets as servers and load generators use them that care how fast they are: a set of them for each
//! thread, one wait for all, and batches in and out.
//!
//! [`DatagramSet`] is what a program is written against, so that the same program can be run on sockets of
//! different stacks and compared; [`KernelSockets`] are the kernel's, by epoll, `recvmmsg` and `sendmmsg`. A set
//! belongs to one thread at a time. Datagrams that are to be sent are collected in an [`Outbox`]; nothing is
//! allocated for a datagram once the buffers have grown.

mod busy_poll;
mod kernel;
mod mmsg;
mod pktinfo;
mod queue;
mod stop;
#[cfg(test)]
mod tests;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

pub use busy_poll::BusyPoll;
pub use kernel::KernelSockets;
pub(super) use queue::incoming_napi_id;
pub use stop::Stop;

/// Bytes that a UDP datagram over IPv4 can hold (RFC 768: 65,535 with its header, and IP's before that).
pub const MAX_DATAGRAM: usize = 65_507;

/// The datagram sockets of one thread, numbered from 0 in the order in which they were given.
pub trait DatagramSet {
    /// Waits until a socket can be read or `timeout` has passed (none: for ever), and sets `ready` to sockets that
    /// can be read, perhaps not all of them at once. Returns with none when interrupted, or told to stop.
    fn wait(&mut self, timeout: Option<Duration>, ready: &mut Vec<usize>) -> io::Result<()>;

    /// Takes datagrams that wait at `socket`, as many as a batch holds, and returns how many that were; never waits.
    ///
    /// # Errors
    /// What the socket says, such as `ConnectionRefused` where no socket was bound to the port of an earlier datagram.
    fn recv(&mut self, socket: usize) -> io::Result<usize>;

    /// Number `i` of those that the last `recv` took, and where it came from.
    ///
    /// # Panics
    /// If there were not so many.
    fn datagram(&self, i: usize) -> (SocketAddr, &[u8]);

    /// Which of our addresses it was sent to, if its socket is bound to none: that an answer has to come from.
    ///
    /// # Panics
    /// As [`datagram`](Self::datagram).
    fn local(&self, i: usize) -> Option<Local> {
        let _ = i;
        None
    }

    /// Sends all of `outbox` by `socket`, in order; it leaves with the next [`wait`](Self::wait) at the latest. Returns
    /// how many datagrams were not taken: for want of room for longer than the set is willing to wait, or since they
    /// can't be sent to where they were to go.
    ///
    /// # Errors
    /// If the socket can't send at all.
    fn send(&mut self, socket: usize, outbox: &Outbox) -> io::Result<usize>;

    /// Id of the NAPI instance that the last packet for `socket` came by; 0 if that is not known.
    fn napi_id(&self, socket: usize) -> u32;
}

/// An address of ours, and the index of the device that a datagram for it came by, in the numbers of its socket's stack (the
/// kernel's `in6_pktinfo`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Local {
    /// See [`Local`].
    pub addr: IpAddr,
    /// See [`Local`].
    pub if_index: u32,
}

/// Where a datagram goes, and where it comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoints {
    /// The other end.
    pub peer: SocketAddr,
    /// Ours; `None`: what the socket is bound to, or routing chooses.
    pub local: Option<Local>,
}

impl From<SocketAddr> for Endpoints {
    fn from(peer: SocketAddr) -> Self {
        Endpoints { peer, local: None }
    }
}

/// Datagrams to send, in order. Keeps its memory when cleared.
#[derive(Debug, Default)]
pub struct Outbox {
    bytes: Vec<u8>,
    datagrams: Vec<(Endpoints, usize)>,
}

impl Outbox {
    /// Begins a datagram to `to`; what was written before belongs to those before. A connected socket sends it to its
    /// peer, whatever `to` is.
    pub fn begin(&mut self, to: impl Into<Endpoints>) {
        self.datagrams.push((to.into(), self.bytes.len()));
    }

    /// Appends to the datagram that was begun last.
    pub fn put(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Bytes of the datagram that was begun last.
    pub fn last_len(&self) -> usize {
        self.datagrams.last().map_or(0, |(_, start)| self.bytes.len() - start)
    }

    /// Datagram number `i`.
    ///
    /// # Panics
    /// If there are not so many.
    pub fn get(&self, i: usize) -> (SocketAddr, &[u8]) {
        let (Endpoints { peer, .. }, start) = self.datagrams[i];
        (peer, &self.bytes[start..self.end(i)])
    }

    /// Which of our addresses it is to come from.
    ///
    /// # Panics
    /// If there are not so many.
    pub fn local(&self, i: usize) -> Option<Local> {
        self.datagrams[i].0.local
    }

    /// The bytes of datagram number `i`, to be changed in place.
    ///
    /// # Panics
    /// If there are not so many.
    pub fn get_mut(&mut self, i: usize) -> &mut [u8] {
        let range = self.datagrams[i].1..self.end(i);
        &mut self.bytes[range]
    }

    fn end(&self, i: usize) -> usize {
        self.datagrams.get(i + 1).map_or(self.bytes.len(), |(_, start)| *start)
    }

    /// How many datagrams there are.
    pub fn len(&self) -> usize {
        self.datagrams.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.datagrams.is_empty()
    }

    /// Takes back all but the first `n`.
    pub fn truncate(&mut self, n: usize) {
        if let Some((_, start)) = self.datagrams.get(n) {
            self.bytes.truncate(*start);
            self.datagrams.truncate(n);
        }
    }

    /// Takes back all.
    pub fn clear(&mut self) {
        self.truncate(0);
    }
}
