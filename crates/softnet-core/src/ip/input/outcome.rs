//! What becomes of a received batch: packets to transmit, by device; packets for softnet itself, by protocol; and
//! exceptions, each with the reason, for the [slow path](crate::ip::slow).
//!
//! Written by [`ip_input`](super::ip_input), emptied by its caller before the next batch. Invariant: no batch of these is
//! smaller than an input batch, so none overflows.

use super::super::redirect;
use crate::SoftnetData;
use crate::ip::v4::header::protocol;
use crate::skb::{BATCH, Batch, DropReason, Skb};
use crate::softnet_data::MAX_DEVICES;

/// Why a packet needs more than the fast path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exception {
    /// An ARP packet.
    Arp,
    /// A broadcast or multicast, an IPv4 header with options, an IPv6 packet with hop-by-hop options or an address that is
    /// not plainly global: validate step by step.
    Unusual,
    /// TTL, or hop limit, ran out.
    Ttl,
    /// The look-up's result is not a plain rewrite: unresolved, no route, …; or it is for softnet itself, and its protocol is
    /// in no [`Transport`].
    NextHop,
    /// Larger than the outgoing MTU.
    TooBig,
    /// A datagram to softnet itself that no socket is bound to.
    NoSocket,
}

/// The protocols whose packets to softnet itself leave the fast path by protocol: the receive table (the kernel's
/// `inet_protos`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// UDP, whole datagrams.
    Udp,
}

impl Transport {
    /// Which takes packets of IANA's protocol number `protocol`; IPv6's numbers of these are the same.
    #[inline(always)]
    pub const fn of(protocol: u8) -> Option<Transport> {
        match protocol {
            protocol::UDP => Some(Transport::Udp),
            _ => None,
        }
    }
}

/// Packets that need the slow path, each with the reason.
pub struct Exceptions {
    /// The packets.
    pub batch: Batch,
    kinds: [u8; BATCH],
    /// A packet that goes back to the link it came from, for the slow path to tell its sender.
    pub redirect: redirect::Candidate,
}

impl Default for Exceptions {
    fn default() -> Self {
        Exceptions { batch: Batch::new(), kinds: [0; BATCH], redirect: redirect::Candidate::default() }
    }
}

impl Exceptions {
    /// Adds a packet.
    pub fn push(&mut self, ctx: &mut SoftnetData, skb: Skb, kind: Exception) {
        if let Some(slot) = self.kinds.get_mut(self.batch.len()) {
            *slot = kind as u8;
        }
        // An input batch has no more packets than an exception batch has places.
        if let Err(skb) = self.batch.push(skb) {
            ctx.free(skb, DropReason::Shutdown);
        }
    }

    /// Takes the packets out, each with its reason.
    pub fn drain(&mut self) -> impl Iterator<Item = (Skb, Exception)> {
        let kinds = self.kinds;
        self.batch.drain().zip(kinds).map(|(skb, kind)| {
            let kind = match kind {
                k if k == Exception::Arp as u8 => Exception::Arp,
                k if k == Exception::Unusual as u8 => Exception::Unusual,
                k if k == Exception::Ttl as u8 => Exception::Ttl,
                k if k == Exception::TooBig as u8 => Exception::TooBig,
                k if k == Exception::NoSocket as u8 => Exception::NoSocket,
                _ => Exception::NextHop,
            };
            (skb, kind)
        })
    }
}

/// Packets to send: one batch per device, and which of them are not empty.
pub struct TxBatches {
    batches: Box<[Batch]>,
    used: u64,
}

impl Default for TxBatches {
    fn default() -> Self {
        Self::new()
    }
}

impl TxBatches {
    /// Empty batches for every possible device.
    pub fn new() -> Self {
        TxBatches { batches: (0..MAX_DEVICES).map(|_| Batch::new()).collect(), used: 0 }
    }

    /// Appends `skb` to the batch of `dev`, or hands it back if that is full or there is no such device.
    #[inline(always)]
    pub fn push(&mut self, dev: u16, skb: Skb) -> Result<(), Skb> {
        match self.batches.get_mut(usize::from(dev)) {
            Some(batch) => {
                self.used |= 1 << (dev % 64);
                batch.push(skb)
            }
            None => Err(skb),
        }
    }

    /// The packets for `dev` so far.
    #[inline(always)]
    pub(super) fn of(&self, dev: u16) -> &[Skb] {
        match self.used & 1 << (dev % 64) {
            0 => &[],
            _ => self.batches.get(usize::from(dev)).map_or(&[], |batch| batch.as_slice()),
        }
    }

    /// Shows every batch that is not empty to `look`, which may take packets out.
    pub(super) fn each(&mut self, mut look: impl FnMut(u16, &mut Batch)) {
        let mut used = self.used;
        while used != 0 {
            let dev = used.trailing_zeros() as u16;
            used &= used - 1;
            look(dev, &mut self.batches[usize::from(dev)]);
        }
    }

    /// Hands every batch that is not empty to `send`, and expects it empty afterwards.
    #[inline]
    pub fn flush(&mut self, mut send: impl FnMut(u16, &mut Batch)) {
        while self.used != 0 {
            let dev = self.used.trailing_zeros() as u16;
            self.used &= self.used - 1;
            send(dev, &mut self.batches[usize::from(dev)]);
        }
    }
}

const _: () = assert!(MAX_DEVICES <= 64);

/// What became of a batch.
#[derive(Default)]
pub struct Outcome {
    /// To transmit.
    pub tx: TxBatches,
    /// For softnet itself, of [`Transport::Udp`]: each skb begins or continues a datagram, and says where its IP header is.
    pub udp: Batch,
    /// For the slow path.
    pub slow: Exceptions,
}

impl Outcome {
    /// Adds a packet for softnet itself that `transport` takes.
    #[inline(always)]
    pub(super) fn deliver(&mut self, ctx: &mut SoftnetData, skb: Skb, transport: Transport) {
        let to = match transport {
            Transport::Udp => &mut self.udp,
        };
        if let Err(skb) = to.push(skb) {
            self.slow.push(ctx, skb, Exception::NextHop);
        }
    }
}
