//! What becomes of a received batch: packets to transmit, by device; packets for softnet itself, by protocol; and
//! exceptions, each with the reason, for the [slow path](crate::ip::slow).
//!
//! Written by [`ip_input`](super::ip_input), emptied by its caller before the next batch. Invariant: no batch of these is
//! smaller than an input batch, so none overflows.

use super::super::hooks::Made;
use super::super::redirect;
use crate::SoftnetData;
use crate::skb::{BATCH, Batch, DropReason, Skb};
use crate::sock::{LocalBatches, Transport};
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
    /// A packet to softnet itself that no socket is bound to.
    NoSocket,
    /// A hook [made](Made) it, and it is to be sent.
    Made,
    /// A hook wants it whole, and it is a piece of a datagram.
    Fragment,
    /// A hook refused it, and its sender is to be told.
    Rejected,
}

impl Exception {
    /// The one whose number is `kind`; of none: [`NextHop`](Self::NextHop), which the slow path looks at from the start.
    pub(crate) fn of(kind: u8) -> Exception {
        match kind {
            k if k == Exception::Arp as u8 => Exception::Arp,
            k if k == Exception::Unusual as u8 => Exception::Unusual,
            k if k == Exception::Ttl as u8 => Exception::Ttl,
            k if k == Exception::TooBig as u8 => Exception::TooBig,
            k if k == Exception::NoSocket as u8 => Exception::NoSocket,
            k if k == Exception::Made as u8 => Exception::Made,
            k if k == Exception::Fragment as u8 => Exception::Fragment,
            k if k == Exception::Rejected as u8 => Exception::Rejected,
            _ => Exception::NextHop,
        }
    }
}

/// Packets that need the slow path, each with the reason.
pub struct Exceptions {
    /// The packets.
    pub batch: Batch,
    kinds: [u8; BATCH],
    /// Packets that hooks made, refused or took; they come last.
    pub made: Made,
    /// A packet that goes back to the link it came from, for the slow path to tell its sender.
    pub redirect: redirect::Candidate,
}

impl Default for Exceptions {
    fn default() -> Self {
        let redirect = redirect::Candidate::default();
        Exceptions { batch: Batch::new(), kinds: [0; BATCH], made: Made::default(), redirect }
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

    /// How many packets there are.
    pub fn len(&self) -> usize {
        self.batch.len() + self.made.len()
    }

    /// Whether there are none.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.batch.is_empty() && self.made.is_empty()
    }

    /// Takes the packets out, each with its reason.
    pub fn drain(&mut self) -> impl Iterator<Item = (Skb, Exception)> {
        let kinds = self.kinds;
        let made = self.made.drain();
        self.batch.drain().zip(kinds).map(|(skb, kind)| (skb, Exception::of(kind))).chain(made)
    }
}

/// Packets to send: one batch per device, and which of them are in use.
pub struct TxBatches {
    /// Grows when a device is used that is not in there yet.
    batches: Vec<Batch>,
    /// The devices whose batches are in use, in the order of their first packets: no more than an input batch has packets.
    devices: [u16; BATCH],
    used: usize,
}

impl Default for TxBatches {
    fn default() -> Self {
        Self::new()
    }
}

impl TxBatches {
    /// No packets.
    pub fn new() -> Self {
        TxBatches { batches: Vec::new(), devices: [0; BATCH], used: 0 }
    }

    /// Appends `skb` to the batch of `dev`, or hands it back if that is full, too many are in use, or there can be no such
    /// device.
    #[inline(always)]
    pub fn push(&mut self, dev: u16, skb: Skb) -> Result<(), Skb> {
        let Some(batch) = self.batches.get_mut(usize::from(dev)) else { return self.push_first(dev, skb) };
        if batch.is_empty() {
            let Some(device) = self.devices.get_mut(self.used) else { return Err(skb) };
            *device = dev;
            self.used += 1;
        }
        batch.push(skb)
    }

    /// Appends all of `from` to the batch of `dev`, and says whether it did: not if it has no batch yet, or one without so
    /// much room.
    #[inline]
    pub(super) fn append(&mut self, dev: u16, from: &mut Batch) -> bool {
        let Some(batch) = self.batches.get_mut(usize::from(dev)) else { return false };
        if from.is_empty() || from.len() > batch.room() {
            return from.is_empty();
        }
        if batch.is_empty() {
            let Some(device) = self.devices.get_mut(self.used) else { return false };
            *device = dev;
            self.used += 1;
        }
        batch.append(from);
        true
    }

    /// As [`push`](Self::push), for a device that has no batch yet.
    #[cold]
    #[inline(never)]
    fn push_first(&mut self, dev: u16, skb: Skb) -> Result<(), Skb> {
        if usize::from(dev) >= MAX_DEVICES {
            return Err(skb);
        }
        self.batches.resize_with(usize::from(dev) + 1, Batch::new);
        self.push(dev, skb)
    }

    /// The packets for `dev` so far.
    #[inline(always)]
    pub(super) fn of(&self, dev: u16) -> &[Skb] {
        self.batches.get(usize::from(dev)).map_or(&[], Batch::as_slice)
    }

    /// Shows every batch that is in use to `look`, which may take packets out.
    pub(super) fn each(&mut self, mut look: impl FnMut(u16, &mut Batch)) {
        for dev in self.devices.iter().take(self.used) {
            if let Some(batch) = self.batches.get_mut(usize::from(*dev)) {
                look(*dev, batch);
            }
        }
    }

    /// Hands every batch that is in use to `send`, in the order of their first packets, and expects it empty afterwards.
    #[inline]
    pub fn flush(&mut self, send: impl FnMut(u16, &mut Batch)) {
        self.each(send);
        self.used = 0;
    }
}

/// What became of a batch.
#[derive(Default)]
pub struct Outcome {
    /// To transmit.
    pub tx: TxBatches,
    /// For softnet itself, whole and of a [`Transport`]; their heads say where the headers are.
    pub local: LocalBatches,
    /// For the slow path.
    pub slow: Exceptions,
}

impl Outcome {
    /// Adds a packet for softnet itself that `transport` takes.
    #[inline(always)]
    pub(super) fn deliver(&mut self, ctx: &mut SoftnetData, skb: Skb, transport: Transport) {
        if let Err(skb) = self.local[transport].push(skb) {
            self.slow.push(ctx, skb, Exception::NextHop);
        }
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;
    use crate::ip::testing::context;

    /// As many devices as packets, of any numbers, and the same ones again.
    #[test]
    fn every_device_has_a_batch_of_its_own() {
        let mut ctx = context();
        let mut tx = TxBatches::new();
        let few = |i: usize| [3, 150, 0, 4095, 64, 63][i % 6];
        let many = |i: usize| (i * 1000 % 4093) as u16;
        for round in 0..3 {
            for i in 0..BATCH {
                let skb = ctx.alloc_skb().unwrap();
                assert!(tx.push(if round == 1 { few(i) } else { many(i) }, skb).is_ok());
            }
            assert_eq!(tx.of(0).len(), if round == 1 { 11 } else { 1 });
            assert!(tx.of(17).is_empty());
            let mut sent = vec![];
            tx.flush(|dev, batch| {
                sent.push((dev, batch.len()));
                batch.drain().for_each(|skb| ctx.free_skb(skb));
            });
            let expected: Vec<(u16, usize)> = match round {
                1 => (0..6).map(|i| (few(i), if i < 4 { 11 } else { 10 })).collect(),
                _ => (0..BATCH).map(|i| (many(i), 1)).collect(),
            };
            assert_eq!(sent, expected, "in the order of their first packets");
            assert!(tx.of(0).is_empty());
        }
    }

    #[test]
    fn a_whole_batch_is_appended_if_it_fits() {
        let mut ctx = context();
        let mut tx = TxBatches::new();
        let mut batch = |n| {
            let mut batch = Batch::new();
            (0..n).for_each(|_| batch.push(ctx.alloc_skb().unwrap()).unwrap_or_default());
            batch
        };
        let mut none = batch(0);
        assert!(!tx.append(3, &mut none), "it has no batch yet");
        let (mut first, mut second) = (batch(40), batch(40));
        assert!(tx.push(3, first.pop().unwrap()).is_ok());
        assert!(tx.append(3, &mut none) && tx.append(2, &mut none));
        assert!(tx.append(3, &mut first) && first.is_empty());
        assert!(!tx.append(3, &mut second), "no room");
        assert!(tx.append(2, &mut second) && second.is_empty());
        let mut sent = vec![];
        tx.flush(|dev, batch| {
            sent.push((dev, batch.len()));
            batch.drain().for_each(|skb| ctx.free_skb(skb));
        });
        assert_eq!(sent, [(3, 40), (2, 40)]);
    }

    #[test]
    fn a_packet_that_there_is_no_batch_for_comes_back() {
        let mut ctx = context();
        let mut tx = TxBatches::new();
        let push = |ctx: &mut SoftnetData, tx: &mut TxBatches, dev| {
            let skb = ctx.alloc_skb().unwrap();
            tx.push(dev, skb).map_err(|skb| ctx.free_skb(skb)).is_ok()
        };
        assert!(!push(&mut ctx, &mut tx, MAX_DEVICES as u16) && !push(&mut ctx, &mut tx, u16::MAX));
        assert!((0..BATCH as u16).all(|dev| push(&mut ctx, &mut tx, dev)));
        assert!(push(&mut ctx, &mut tx, 7) && !push(&mut ctx, &mut tx, BATCH as u16));
        tx.flush(|_, batch| batch.drain().for_each(|skb| ctx.free_skb(skb)));
        assert!(push(&mut ctx, &mut tx, BATCH as u16));
        tx.flush(|_, batch| batch.drain().for_each(|skb| ctx.free_skb(skb)));
    }
}
