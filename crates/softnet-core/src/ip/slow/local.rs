//! Datagrams addressed to softnet: fragments become datagrams, and each datagram goes to what serves its protocol.

use super::*;
use crate::ip::echo::echo_reply_in_fragments;
use crate::ip::fragment::{Addresses, Datagram, emit, split};
use crate::ip::icmp_error::{Problem, Quote, icmp_error};
use crate::ip::reassembly::Expired;
use crate::ip::v4::icmp::ECHO_REPLY;
use crate::sock::key::{addr_of, unmapped};
use crate::sock::scope::{device, scope_id, scoped};
use crate::steer::TxChoice;

impl SlowPath {
    /// An IPv4 packet addressed to softnet, whose header is sound: a datagram or a fragment of one.
    pub(super) fn local(
        &mut self,
        ctx: &mut SoftnetData,
        view: RouteSnapshot<'_>,
        skb: Skb,
        out: &mut Effects,
    ) -> Result<(), (Skb, DropReason)> {
        let header = Ipv4Header::new(skb.data().get(ETH_LEN..).unwrap_or_default());
        if header.is_some_and(|header| header.is_fragment()) {
            match self.frags.ipv4(ctx, view.now, skb)? {
                Some(whole) => self.local_datagram(ctx, view, whole, out),
                None => Ok(()),
            }
        } else {
            self.local_datagram(ctx, view, skb, out)
        }
    }

    /// A whole IPv4 datagram for softnet: each protocol's way in.
    fn local_datagram(
        &mut self,
        ctx: &mut SoftnetData,
        view: RouteSnapshot<'_>,
        skb: Skb,
        out: &mut Effects,
    ) -> Result<(), (Skb, DropReason)> {
        let Some(skb) = view.input(ctx, skb) else { return Ok(()) };
        let header = Ipv4Header::new(skb.data().get(ETH_LEN..).unwrap_or_default());
        match header.map_or(0, |header| header.protocol()) {
            protocol::ICMP => self.icmp(ctx, view, skb, out),
            protocol::UDP => {
                out.local.push(skb);
                Ok(())
            }
            _ => Err(self.unserved_protocol(ctx, view, skb, out)),
        }
    }

    /// An ICMP message for softnet.
    fn icmp(
        &mut self,
        ctx: &mut SoftnetData,
        view: RouteSnapshot<'_>,
        mut skb: Skb,
        out: &mut Effects,
    ) -> Result<(), (Skb, DropReason)> {
        if skb.is_chained() {
            return self.echo_in_fragments(ctx, view, skb, out);
        }
        let error = Ipv4Header::new(skb.data().get(ETH_LEN..).unwrap_or_default()).and_then(|header| {
            icmp_error(
                skb.data().get(ETH_LEN + header.header_len()..ETH_LEN + usize::from(header.total_len()))?,
            )
        });
        if let Some((problem, quote)) = error {
            return match self.reported(problem, (quote, skb.head().dev), out) {
                true => {
                    ctx.deliver(skb);
                    Ok(())
                }
                false => Err((skb, DropReason::IcmpIgnored)),
            };
        }
        let header = Ipv4Header::new(skb.data().get(ETH_LEN..).unwrap_or_default());
        let ends = header.map(|header| (Ipv4Addr::from(header.src()), Ipv4Addr::from(header.dst())));
        let (peer, own) = ends.unwrap_or((Ipv4Addr::UNSPECIFIED, Ipv4Addr::UNSPECIFIED));
        let options = self.echo_options(view, &mut skb, own);
        let ident = || self.idents.next(own.into(), peer.into(), protocol::ICMP, view.now) as u16;
        match echo_reply(&mut skb, &options, |addr| view.is_broadcast(addr), ident) {
            // Only if the mask says so.
            Ok(()) if !self.limit.allow(view.now, (ECHO_REPLY, 0), peer) => {
                Err((skb, DropReason::IcmpIgnored))
            }
            Ok(()) => {
                ctx.turn_around();
                self.output_own(ctx, view, skb, out);
                Ok(())
            }
            Err(reason) => Err((skb, reason)),
        }
    }

    /// An echo request that came in fragments is answered in fragments, of what fits the way back.
    fn echo_in_fragments(
        &mut self,
        ctx: &mut SoftnetData,
        view: RouteSnapshot<'_>,
        skb: Skb,
        out: &mut Effects,
    ) -> Result<(), (Skb, DropReason)> {
        let reply = match echo_reply_in_fragments(&skb, |addr| view.is_broadcast(addr)) {
            Ok(reply) => reply,
            Err(reason) => return Err((skb, reason)),
        };
        let (choice, pieces) = (TxChoice::RxQueue(skb.head().queue), (reply.len, reply.pieces(&skb)));
        match self.send_datagram(ctx, view, reply.datagram, choice, pieces, out) {
            Ok(()) => {
                ctx.deliver(skb);
                Ok(())
            }
            Err(reason) => Err((skb, reason)),
        }
    }

    /// An ICMP error that came by device `dev`, about a packet that was sent from here, or is said to have been: if it was UDP, its
    /// socket is told. Whoever
    /// guesses addresses and ports can make one up, so all it does is to leave an error with a *connected* socket, as the
    /// kernel does, and a path's MTU. Returns whether it may be for a socket.
    pub(in crate::ip) fn reported(
        &mut self,
        problem: Problem,
        (quote, dev): (Quote, u16),
        out: &mut Effects,
    ) -> bool {
        let (Some((lport, rport)), protocol::UDP) = (quote.ports(), quote.protocol) else { return false };
        let ends = [quote.src, quote.dst].map(addr_of);
        if ends.iter().any(|addr| scope_id(*addr) != 0) {
            return false;
        }
        // What is on a link only, its error comes from there.
        let [local, remote] = ends.map(|addr| scoped(addr, dev));
        let flow = Flow { local, remote, lport, rport };
        let error = match problem {
            Problem::NetUnreachable => SocketError::NetUnreachable,
            Problem::HostUnreachable | Problem::Prohibited => SocketError::HostUnreachable,
            Problem::PortUnreachable | Problem::ProtocolUnreachable => SocketError::ConnectionRefused,
            Problem::PacketTooBig { mtu } => {
                out.too_big.push(TooBig { flow, len: quote.len, mtu });
                return true;
            }
            // Routes change, and it may have been an accident of one packet (RFC 1122 section 4.1.3.3).
            Problem::TimeExceeded | Problem::ReassemblyTimeExceeded | Problem::ParameterProblem => {
                return true;
            }
        };
        out.errors.push((flow, error));
        true
    }

    /// What an error said of a datagram that a socket may well have sent: later ones to its destination are cut, or made
    /// shorter. Whether that was news.
    pub fn too_big(&mut self, view: RouteSnapshot<'_>, report: &TooBig) -> bool {
        let dst = report.flow.remote;
        let dev = match unmapped(dst) {
            Some(dst) => view.tables.v4.route(dst.into()).dev,
            None => device(dst).unwrap_or_else(|| view.tables.v6.route(Ipv6Addr::from_bits(dst)).dev),
        };
        let Some(iface) = view.iface(dev) else { return false };
        self.pmtu.update(view.now, dst, (report.len, iface.mtu), report.mtu)
    }

    /// Sends a datagram of a sender here, whose payload are the next `len` bytes of `pieces`, in fragments if it does not
    /// fit the path, each by the TX queue of `choice`. Its identification is chosen here. The reason, if it can't be
    /// sent, is [`IpNoRoute`](DropReason::IpNoRoute), or one of [`emit`]'s; then nothing was sent.
    pub fn send_datagram<'a>(
        &mut self,
        ctx: &mut SoftnetData,
        view: RouteSnapshot<'_>,
        mut datagram: Datagram,
        choice: TxChoice,
        (len, pieces): (usize, impl IntoIterator<Item = &'a [u8]>),
        out: &mut Effects,
    ) -> Result<(), DropReason> {
        let (src, dst, dev, reachable): (IpAddr, IpAddr, _, _) = match datagram.addresses {
            Addresses::V4 { src, dst } => {
                let hop = view.tables.v4.route(dst);
                (src.into(), dst.into(), hop.dev, hop.is_reachable())
            }
            Addresses::V6 { src, dst, dev } => {
                let hop = v6::route6(view, dev, dst);
                // On another link the same address is another's.
                let dst = Ipv6Addr::from_bits(scoped(dst.to_bits(), hop.dev));
                (src.into(), dst.into(), hop.dev, hop.is_reachable())
            }
        };
        let link = view.iface(dev).filter(|_| reachable).ok_or(DropReason::IpNoRoute)?;
        let mtu = self.pmtu.mtu(addr_of(dst), link.mtu);
        datagram.id = self.idents.next(src, dst, datagram.protocol, view.now);
        let mut skbs = emit(ctx, &datagram, mtu.into(), len, pieces)?;
        while let Some(mut skb) = skbs.pop_front() {
            ctx.originate();
            skb.head_mut().dev = dev;
            choice.mark(skb.head_mut());
            match dst {
                IpAddr::V4(_) => self.output_own(ctx, view, skb, out),
                IpAddr::V6(_) => self.output_own6(ctx, view, skb, out),
            }
        }
        self.act(ctx, view, out);
        Ok(())
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
        while let Some(mut skb) = skbs.pop_front() {
            ctx.originate();
            skb.head_mut().dev = dev;
            choice.mark(skb.head_mut());
            if let Some(skb) = view.leaving(ctx, Slot::Output, dev, skb) {
                transmit(ctx, skb, dev, iface.mac, to, out);
            }
        }
        Ok(())
    }

    /// Sends a packet by `hop` to a device with this MTU and MAC address, in fragments if it is too long for it.
    pub(super) fn output_cut(
        &mut self,
        ctx: &mut SoftnetData,
        view: RouteSnapshot<'_>,
        skb: Skb,
        hop: Adjacency,
        (mtu, from): (u16, MacAddr),
        out: &mut Effects,
    ) -> Result<(), (Skb, DropReason)> {
        let total = Ipv4Header::new(skb.data().get(ETH_LEN..).unwrap_or_default()).map(|h| h.total_len());
        if total.is_none_or(|total| total <= mtu) {
            self.output(ctx, view, skb, hop, from, out);
            return Ok(());
        }
        let mut skbs = split(ctx, skb, mtu.into())?;
        self.cut += 1;
        // One of them is the packet that was counted already.
        ctx.originated(skbs.len() as u64 - 1);
        while let Some(skb) = skbs.pop_front() {
            self.output(ctx, view, skb, hop, from, out);
        }
        Ok(())
    }

    /// Gives up datagrams whose fragments did not come in time, with an error about those whose first did (RFC 792, RFC 4443).
    pub(super) fn expire_fragments(
        &mut self,
        ctx: &mut SoftnetData,
        view: RouteSnapshot<'_>,
        out: &mut Effects,
    ) {
        while let Some(Expired { first, rest }) = self.frags.expire(view.now) {
            if let Some(first) = first {
                match first.data().get(ETH_LEN).map(|first| first >> 4) {
                    Some(6) => self.error6(ctx, view, &first, Icmp6Error::ReassemblyTimeExceeded, out),
                    _ => self.error(ctx, view, &first, IcmpError::ReassemblyTimeExceeded, out),
                }
                ctx.free(first, DropReason::FragReasmTimeout);
            }
            ctx.free_list(rest, DropReason::FragReasmTimeout);
        }
    }
}
