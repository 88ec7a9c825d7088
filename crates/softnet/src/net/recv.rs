//! Receiving: datagrams from a socket's inbox, one at a time into the caller's buffer, or many at
//! once in packet memory.

use std::net::SocketAddr;
use std::sync::Arc;

use softnet_core::sock::key::socket_addr;
use softnet_core::sock::udp::Datagram;

use super::msg::{MsgHdr, PktInfo};
use crate::stack::{StackInner, with};

/// Datagrams that were received in one call, in packet memory: nothing is copied. The batch gives
/// its datagrams back when it is filled again, [cleared](Self::clear) or dropped.
#[derive(Default)]
pub struct RecvBatch {
    datagrams: Vec<Datagram>,
    /// The stack whose memory they are in, and whether the socket sees addresses as IPv4 ones.
    of: Option<(Arc<StackInner>, bool)>,
}

/// A datagram that was received.
pub struct Received<'a> {
    datagram: &'a Datagram,
    /// The sender's address.
    pub from: SocketAddr,
    /// Whether the socket sees addresses as IPv4 ones.
    v4: bool,
}

impl<'a> Received<'a> {
    /// Bytes of its payload.
    pub fn len(&self) -> usize {
        self.datagram.len()
    }

    /// Whether it has no payload.
    pub fn is_empty(&self) -> bool {
        self.datagram.is_empty()
    }

    /// Which of our addresses the datagram was sent to, and the device that it came by.
    #[inline]
    pub fn info(&self) -> PktInfo {
        PktInfo::of(self.datagram, self.v4)
    }

    /// Type of service or traffic class that it came with (`IP_TOS`, `IPV6_TCLASS`): DSCP in the upper
    /// six bits, ECN in the lower two.
    #[inline]
    pub fn tos(&self) -> u8 {
        self.datagram.tos()
    }

    /// Time to live or hop limit that it came with (`IP_TTL`, `IPV6_HOPLIMIT`).
    #[inline]
    pub fn ttl(&self) -> u8 {
        self.datagram.ttl()
    }

    /// Destination and source of an answer to it: the source is the address that was asked.
    #[inline]
    pub fn reply(&self) -> MsgHdr {
        (self.from, self.info()).into()
    }

    /// Its payload in one piece; `None` if it came in fragments, or was sent on this stack and is
    /// longer than a frame.
    pub fn data(&self) -> Option<&'a [u8]> {
        let mut parts = self.datagram.parts();
        let first = parts.next()?;
        (first.len() == self.len()).then_some(first)
    }

    /// Its payload, piece by piece.
    pub fn parts(&self) -> impl Iterator<Item = &[u8]> {
        self.datagram.parts()
    }

    /// Copies as much of its payload as fits. Returns the number of bytes copied.
    pub fn copy_to(&self, buffer: &mut [u8]) -> usize {
        self.datagram.copy_to(buffer)
    }
}

impl RecvBatch {
    /// The most datagrams that it holds.
    pub const MAX: usize = softnet_core::skb::BATCH;

    /// An empty one.
    pub fn new() -> Self {
        Self::default()
    }

    /// How many datagrams it holds.
    pub fn len(&self) -> usize {
        self.datagrams.len()
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.datagrams.is_empty()
    }

    /// The datagrams, in the order in which they were received.
    pub fn iter(&self) -> impl Iterator<Item = Received<'_>> {
        self.datagrams.iter().map(|datagram| self.received(datagram))
    }

    /// Number `i` of them.
    pub fn get(&self, i: usize) -> Option<Received<'_>> {
        self.datagrams.get(i).map(|datagram| self.received(datagram))
    }

    fn received<'a>(&self, datagram: &'a Datagram) -> Received<'a> {
        let v4 = self.of.as_ref().is_some_and(|(_, v4)| *v4);
        let flow = datagram.flow();
        Received { datagram, from: socket_addr(flow.remote, flow.rport, v4), v4 }
    }

    /// Gives its datagrams back.
    pub fn clear(&mut self) {
        if let Some((shared, _)) = &self.of
            && !self.datagrams.is_empty()
        {
            with(shared, |thread| {
                self.datagrams.drain(..).for_each(|datagram| datagram.free(&mut thread.ctx))
            });
        }
    }

    /// Prepares the batch for datagrams of a stack, for a socket that sees addresses as IPv4 ones
    /// or not.
    pub(super) fn prepare(&mut self, shared: &Arc<StackInner>, v4: bool) {
        self.clear();
        match &mut self.of {
            Some((of, sees)) if Arc::ptr_eq(of, shared) => *sees = v4,
            of => *of = Some((shared.clone(), v4)),
        }
    }

    pub(super) fn push(&mut self, datagram: Datagram) {
        self.datagrams.push(datagram);
    }
}

impl Drop for RecvBatch {
    fn drop(&mut self) {
        self.clear();
    }
}
