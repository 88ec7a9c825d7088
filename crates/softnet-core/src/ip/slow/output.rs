//! What the slow path sends: by a next hop, as soon as its neighbour is known.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::family::SlowFamily;
use super::{Call, Effects, Refused, RouteSnapshot, SlowPath, is_ipv6, packet};
use crate::SoftnetData;
use crate::ip::adjacency::{Adjacency, Kind};
use crate::ip::fragment::{Addresses, Datagram, emit};
use crate::ip::iface::Iface;
use crate::ip::{ETH_LEN, Family, MacAddr};
use crate::skb::{DropReason, Flags, Skb};
use crate::sock::key::addr_of;
use crate::steer::TxChoice;
use crate::tap::trace::Step;

impl SlowPath {
    /// Sends a packet that a socket made, headers and all, to its destination: its neighbour is not known yet.
    pub fn send(&mut self, ctx: &mut SoftnetData, view: RouteSnapshot<'_>, mut skb: Skb, out: &mut Effects) {
        let head = skb.head_mut();
        (head.l3, head.flags) = (ETH_LEN as u16, head.flags | Flags::ORIGINATED);
        self.call(ctx, view, out, |call| call.output_made(skb));
    }

    /// Sends a datagram of a sender here, whose payload are the next `len` bytes of `pieces`, in fragments if it does not
    /// fit the path, each by the TX queue of `choice`. Its identification is chosen here. The reason, if it can't be
    /// sent, is [`IpNoRoute`](DropReason::IpNoRoute), or one of [`emit`]'s; then nothing was sent.
    pub fn send_datagram<'a>(
        &mut self,
        ctx: &mut SoftnetData,
        view: RouteSnapshot<'_>,
        datagram: Datagram,
        choice: TxChoice,
        pieces: (usize, impl IntoIterator<Item = &'a [u8]>),
        out: &mut Effects,
    ) -> Result<(), DropReason> {
        self.call(ctx, view, out, |call| call.send_datagram(datagram, choice, pieces))
    }

    /// The same of a datagram to all on the link of `dev`, or to a group there, in frames to the MAC address `to`. The reason may
    /// also be [`DevReady`](DropReason::DevReady).
    pub fn send_datagram_to_many<'a>(
        &mut self,
        ctx: &mut SoftnetData,
        view: RouteSnapshot<'_>,
        mut datagram: Datagram,
        (choice, dev, to): (TxChoice, u16, MacAddr),
        (len, pieces): (usize, impl IntoIterator<Item = &'a [u8]>),
        out: &mut Effects,
    ) -> Result<(), DropReason> {
        let iface = view.iface(dev).ok_or(DropReason::DevReady)?;
        let (src, dst): (IpAddr, IpAddr) = match datagram.addresses {
            Addresses::V4 { src, dst } => (src.into(), dst.into()),
            Addresses::V6 { src, dst, .. } => (src.into(), dst.into()),
        };
        datagram.id = self.idents.next(src, dst, datagram.protocol, view.now);
        let mut skbs = emit(ctx, &datagram, iface.mtu.into(), len, pieces)?;
        self.call(ctx, view, out, |call| {
            while let Some(mut skb) = skbs.pop_front() {
                call.ctx.originate();
                skb.head_mut().dev = dev;
                choice.mark(skb.head_mut());
                if let Some(skb) = call.leaving(dev, skb) {
                    call.transmit(skb, dev, iface.mac, to);
                }
            }
        });
        Ok(())
    }
}

impl Call<'_> {
    /// See [`SlowPath::send_datagram`].
    pub(super) fn send_datagram<'a>(
        &mut self,
        datagram: Datagram,
        choice: TxChoice,
        pieces: (usize, impl IntoIterator<Item = &'a [u8]>),
    ) -> Result<(), DropReason> {
        match datagram.addresses {
            Addresses::V4 { src, dst } => self.send_datagram_of(datagram, (src, dst, 0), choice, pieces),
            Addresses::V6 { src, dst, dev } => {
                self.send_datagram_of(datagram, (src, dst, dev), choice, pieces)
            }
        }
    }

    /// The same of one family, to `dst`, on the link of `dev` if it is link-local.
    fn send_datagram_of<'a, F: SlowFamily>(
        &mut self,
        mut datagram: Datagram,
        (src, dst, dev): (F, F, u16),
        choice: TxChoice,
        (len, pieces): (usize, impl IntoIterator<Item = &'a [u8]>),
    ) -> Result<(), DropReason> {
        let hop = F::next_hop(self.view, dev, dst);
        let link = self.view.iface(hop.dev).filter(|_| hop.is_reachable()).ok_or(DropReason::IpNoRoute)?;
        // On another link the same address is another's.
        let dst = F::scoped(dst, hop.dev).into();
        let mtu = self.slow.pmtu.mtu(addr_of(dst), link.mtu);
        datagram.id = self.slow.idents.next(src.into(), dst, datagram.protocol, self.view.now);
        let mut skbs = emit(self.ctx, &datagram, mtu.into(), len, pieces)?;
        while let Some(mut skb) = skbs.pop_front() {
            self.ctx.originate();
            skb.head_mut().dev = hop.dev;
            choice.mark(skb.head_mut());
            self.output_own::<F>(skb);
        }
        Ok(())
    }

    /// Sends a packet made here, of either family, to its destination.
    pub(super) fn output_made(&mut self, skb: Skb) {
        match is_ipv6(&skb) {
            true => self.output_own::<Ipv6Addr>(skb),
            false => self.output_own::<Ipv4Addr>(skb),
        }
    }

    /// Sends a packet made here to its destination; to one that is link-local, on the device that its head names.
    pub(super) fn output_own<F: SlowFamily>(&mut self, mut skb: Skb) {
        let dst = F::ends(packet(&skb)).map_or(F::UNSPECIFIED, |(_, dst)| dst);
        let hop = F::next_hop(self.view, skb.head().dev, dst);
        self.trace_route(&skb, dst, &hop);
        match self.view.iface(hop.dev) {
            Some(iface) if hop.is_reachable() => {
                skb.head_mut().dev = hop.dev;
                let Some(skb) = self.leaving(hop.dev, skb) else { return };
                if let Err((skb, reason)) = self.output_cut(skb, hop, iface) {
                    self.ctx.free(skb, reason);
                }
            }
            _ => self.ctx.free(skb, DropReason::IpNoRoute),
        }
    }

    /// Sends a packet by `hop`, which is one of `iface`, in fragments if it is too long for that.
    pub(super) fn output_cut<F: SlowFamily>(
        &mut self,
        skb: Skb,
        hop: Adjacency<F>,
        iface: &Iface,
    ) -> Result<(), Refused> {
        if !F::is_too_long(&skb, iface.mtu) {
            self.output(skb, hop, iface.mac);
            return Ok(());
        }
        let mut skbs = F::cut(self.ctx, skb, iface.mtu)?;
        self.slow.cut += 1;
        // One of them is the packet that was counted already.
        self.ctx.originated(skbs.len() as u64 - 1);
        while let Some(skb) = skbs.pop_front() {
            self.output(skb, hop, iface.mac);
        }
        Ok(())
    }

    /// Sends a finished packet by `hop`, as soon as the neighbour is known.
    fn output<F: Family>(&mut self, skb: Skb, hop: Adjacency<F>, from: MacAddr) {
        if hop.kind == Kind::Rewrite {
            let to = hop.rewrite.first_chunk().copied().unwrap_or_default();
            return self.transmit(skb, hop.dev, from, to);
        }
        self.trace(&skb, Some(hop.dev), Step::Waits(hop.gateway.into()));
        let SlowPath { neigh, actions, .. } = &mut *self.slow;
        neigh.resolve(self.view.now, hop.dev, hop.gateway.into(), skb, actions);
    }

    /// Puts the link header in front and hands the packet over for sending.
    pub(super) fn transmit(&mut self, mut skb: Skb, dev: u16, from: MacAddr, to: MacAddr) {
        let Some((eth, packet)) = skb.data_mut().split_first_chunk_mut::<ETH_LEN>() else {
            return self.ctx.free_at(skb, dev, DropReason::PktTooSmall);
        };
        eth[..6].copy_from_slice(&to);
        eth[6..12].copy_from_slice(&from);
        let ethertype = match packet.first() {
            Some(first) if first >> 4 == 6 => Ipv6Addr::ETHERTYPE,
            _ => Ipv4Addr::ETHERTYPE,
        };
        eth[12..].copy_from_slice(&ethertype.to_be_bytes());
        self.out.send.push((dev, skb));
    }

    /// Sends a frame with these flags by device `dev` that `write` writes; it keeps the link going, and passes no hook.
    pub(super) fn send_made(&mut self, dev: u16, flags: u16, write: impl FnOnce(&mut Skb) -> Option<()>) {
        self.ctx.originate();
        let Some(mut skb) = self.ctx.alloc_skb() else {
            return self.ctx.count_drops(dev, DropReason::NoFrame, 1);
        };
        if write(&mut skb).is_none() {
            return self.ctx.free_at(skb, dev, DropReason::PktTooSmall);
        }
        let head = skb.head_mut();
        (head.dev, head.flags) = (dev, Flags::ORIGINATED | flags);
        self.out.send.push((dev, skb));
    }

    /// Asks for the neighbour `target`, see [`Action::Solicit`](crate::ip::neigh::Action::Solicit).
    pub(super) fn solicit<F: SlowFamily>(&mut self, dev: u16, target: F, unicast_to: Option<MacAddr>) {
        if let Some(iface) = self.view.iface(dev)
            && let Some(source) = F::source_for(iface, target)
        {
            self.send_made(dev, Flags::HELD, |skb| {
                F::write_question(skb, (iface.mac, source), target, unicast_to)
            });
        }
    }
}
