//! Packets addressed to softnet: fragments become datagrams, and each datagram goes to what serves its protocol.

use std::net::{Ipv4Addr, Ipv6Addr};

use softnet_tcp::Seq;
use softnet_tcp::conn::Error;

use super::family::{Received, Refusal, SlowFamily};
use super::{Call, Refused, RouteSnapshot, SlowPath, TooBig, packet};
use crate::ip::adjacency::Kind;
use crate::ip::echo::EchoReply;
use crate::ip::hooks::Slot;
use crate::ip::icmp_error::{Problem, Quote};
use crate::ip::input::Exception;
use crate::ip::reassembly::Expired;
use crate::ip::v4::header::protocol;
use crate::skb::{DropReason, Skb};
use crate::sock::key::{ANY, addr_of, unmapped};
use crate::sock::scope::{device, scope_id, scoped};
use crate::sock::tcp::{News, Told};
use crate::sock::{Flow, SocketError, Transport};
use crate::steer::TxChoice;

impl Call<'_> {
    /// A packet addressed to softnet, or to many of which it is one; its header is sound.
    pub(super) fn local<F: SlowFamily>(&mut self, skb: Skb, received: Received<F>) -> Result<(), Refused> {
        if F::is_from_us(self.view, skb.head().dev, received.src) {
            return Err((skb, DropReason::IpInvalidSource));
        }
        let payload = match F::payload(packet(&skb)) {
            Ok(payload) => payload,
            Err(refusal) => return Err(self.refuse(skb, refusal)),
        };
        if payload.is_fragment {
            return self.fragment(skb, received);
        }
        let Some(skb) = self.received(Slot::Input, skb) else { return Ok(()) };
        if payload.protocol == F::ICMP {
            return F::icmp(self, skb, received, payload.at);
        }
        match Transport::of(payload.protocol) {
            Some(transport) => {
                self.out.deliver(skb, transport, payload.at);
                Ok(())
            }
            None => Err(self.unserved::<F>(skb, payload)),
        }
    }

    /// A fragment of a datagram that a hook wants whole, and what it completes.
    pub(super) fn gather<F: SlowFamily>(&mut self, skb: Skb) -> Result<(), Refused> {
        match self.collect::<F>(skb)? {
            Some(whole) => self.receive::<F>(whole, Exception::Unusual),
            None => Ok(()),
        }
    }

    /// A fragment of a datagram to softnet, and what it completes.
    pub(super) fn fragment<F: SlowFamily>(&mut self, skb: Skb, received: Received<F>) -> Result<(), Refused> {
        let Some(whole) = self.collect::<F>(skb)? else { return Ok(()) };
        match received.to_many {
            true => F::group(self, whole, received),
            false => self.local(whole, received),
        }
    }

    /// Has a fragment wait for the others. Returns the datagram that it completes.
    fn collect<F: SlowFamily>(&mut self, skb: Skb) -> Result<Option<Skb>, Refused> {
        let whole = match F::reassemble(&mut self.slow.frags, self.ctx, self.view.now, skb) {
            Ok(None) => return Ok(None),
            Ok(Some(whole)) => whole,
            Err((skb, reason)) => {
                // Of a packet that is not in one frame, not all was looked at.
                let looked_at = reason != DropReason::Nonlinear;
                let error = looked_at.then(|| F::fragment_error(packet(&skb))).flatten();
                return Err(self.refuse::<F>(skb, Refusal { reason, error }));
            }
        };
        if F::must_be_whole(packet(&whole)) {
            return Err((whole, DropReason::Ipv6NdiscFrag));
        }
        Ok(Some(whole))
    }

    /// Gives up datagrams whose fragments did not come in time, with an error about those to
    /// softnet whose first did (RFC 792, RFC 4443).
    pub(super) fn expire_fragments(&mut self) {
        while let Some(Expired { first, rest }) = self.slow.frags.expire(self.view.now) {
            if let Some(first) = first {
                match packet(&first).first().map(|first| first >> 4) {
                    Some(6) => self.not_whole::<Ipv6Addr>(&first),
                    _ => self.not_whole::<Ipv4Addr>(&first),
                }
                self.ctx.free(first, DropReason::FragReasmTimeout);
            }
            self.ctx.free_list(rest, DropReason::FragReasmTimeout);
        }
    }

    /// Tells the sender of `first` that the others did not come, unless it was gathered on its way to others.
    fn not_whole<F: SlowFamily>(&mut self, first: &Skb) {
        let dst = F::ends(packet(first)).map_or(F::UNSPECIFIED, |(_, dst)| dst);
        if F::route(self.view, first.head().dev, dst, 0).kind == Kind::Local {
            self.error::<F>(first, F::REASSEMBLY_TIME_EXCEEDED);
        }
    }

    /// Sends a packet that became the answer to itself.
    pub(super) fn turn_around<F: SlowFamily>(&mut self, skb: Skb) -> Result<(), Refused> {
        self.ctx.turn_around();
        self.output_own::<F>(skb);
        Ok(())
    }

    /// An echo request that came in fragments is answered in fragments, of what fits the way back.
    pub(super) fn echo_in_fragments(
        &mut self,
        skb: Skb,
        reply: Result<EchoReply, DropReason>,
    ) -> Result<(), Refused> {
        let sent = reply.and_then(|reply| {
            let (choice, pieces) = (TxChoice::RxQueue(skb.head().queue), (reply.len, reply.pieces(&skb)));
            self.send_datagram(reply.datagram, choice, pieces)
        });
        match sent {
            Ok(()) => {
                self.ctx.deliver(skb);
                Ok(())
            }
            Err(reason) => Err((skb, reason)),
        }
    }

    /// An ICMP error for softnet, which `skb` is: if it may be for a socket, that is told.
    pub(super) fn reported(&mut self, skb: Skb, (problem, quote): (Problem, Quote)) -> Result<(), Refused> {
        match self.note(problem, quote, skb.head().dev) {
            true => {
                self.ctx.deliver(skb);
                Ok(())
            }
            false => Err((skb, DropReason::IcmpIgnored)),
        }
    }

    /// Notes an ICMP error that came by device `dev`, about a packet that was sent from here, or is
    /// said to have been: if it was of a protocol with sockets, its socket is told. An attacker
    /// that guesses addresses and ports can make one up, so all it does is to leave an error with a
    /// *connected* socket, as the kernel does, and a path's MTU. Returns whether it may be for a
    /// socket.
    fn note(&mut self, problem: Problem, quote: Quote, dev: u16) -> bool {
        let Some((lport, rport)) = quote.ports().filter(|_| Transport::of(quote.protocol).is_some()) else {
            return false;
        };
        let ends = [quote.src, quote.dst].map(addr_of);
        if ends.iter().any(|addr| scope_id(*addr) != 0) {
            return false;
        }
        // What is on a link only, its error comes from there.
        let [local, remote] = ends.map(|addr| scoped(addr, dev));
        let flow = Flow { local, remote, lport, rport, protocol: quote.protocol };
        // Nothing is sent to no address or to no port.
        if rport == 0 || remote == ANY {
            return false;
        }
        if quote.protocol == protocol::TCP {
            return self.note_segment(problem, &quote, flow);
        }
        let error = match problem {
            Problem::NetUnreachable => SocketError::NetUnreachable,
            Problem::HostUnreachable | Problem::Prohibited => SocketError::HostUnreachable,
            Problem::PortUnreachable | Problem::ProtocolUnreachable => SocketError::ConnectionRefused,
            Problem::PacketTooBig { mtu } => {
                self.out.too_big.push(TooBig { flow, len: quote.len, mtu });
                return true;
            }
            // Routes change, and it may have been an accident of one packet (RFC 1122 section 4.1.3.3).
            Problem::TimeExceeded | Problem::ReassemblyTimeExceeded | Problem::ParameterProblem => {
                return true;
            }
        };
        self.out.errors.push((flow, error));
        true
    }

    /// The same of a TCP segment, whose sequence number says whether it is to be believed.
    fn note_segment(&mut self, problem: Problem, quote: &Quote, flow: Flow) -> bool {
        let Some([_, _, _, _, seq @ ..]) = quote.transport else { return false };
        let seq = Seq(u32::from_be_bytes(seq));
        let what = match problem {
            Problem::NetUnreachable => News::Error(Error::NetworkUnreachable),
            Problem::HostUnreachable | Problem::Prohibited => News::Error(Error::HostUnreachable),
            Problem::PortUnreachable => News::Error(Error::ConnectionRefused),
            Problem::ProtocolUnreachable | Problem::ParameterProblem => News::Error(Error::Protocol),
            Problem::TimeExceeded | Problem::ReassemblyTimeExceeded => News::Error(Error::HostUnreachable),
            Problem::PacketTooBig { mtu } => News::TooBig { mtu, len: quote.len },
        };
        self.out.told.push(Told { flow, seq, what });
        true
    }
}

impl SlowPath {
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
}
