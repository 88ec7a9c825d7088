//! Redirects (RFC 792, RFC 4861 section 8): a sender on a link is told of the better first hop there that its packet went
//! on to. What the fast path does for that, and how often a sender is told. (The
//! messages are their families'.)
//!
//! The fast path knows behind the forward slot whether anything leaves by the device that it came by. If so, one packet of
//! these is looked at, a different one of each batch, and noted in a [`Candidate`] if its sender can be told; the packets
//! themselves go on. The slow path decides whether a message is due and sends it, as it does for packets that it forwards
//! itself. So forwarding between two devices pays one test for a batch, and forwarding back two look-ups.
//!
//! Invariant: a sender is told of no first hop but the one that the packet took, and only if it is on the sender's own
//! network (RFC 1812 section 5.2.7.2; the kernel without `shared_media`).

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::adjacency::Kind;
use super::checksum::update16;
use super::iface::Iface;
use super::tables::{Routing, Tables};
use super::v4::header::Ipv4Header;
use super::v6::addr::is_link_local;
use super::v6::header::Ipv6Header;
use super::{ETH_LEN, Family, Prefix};
use crate::skb::{Flags, Head, Skb};

/// Bytes of a packet, from its IP header on, that a message of either family has room for.
const QUOTE: usize = 1280 - 40 - 40 - 8 - 8;

/// The way that a packet came: what a message about it goes back by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CameBy {
    /// The device.
    pub dev: u16,
    /// Its RX queue.
    pub queue: u16,
}

impl CameBy {
    /// That of a received packet.
    pub fn of(head: &Head) -> Self {
        CameBy { dev: head.dev, queue: head.queue }
    }
}

/// The beginning of a packet, from its IP header on: as much as a message has room for.
#[derive(Clone, Copy)]
pub(super) struct Quote {
    len: usize,
    bytes: [u8; QUOTE],
}

impl Quote {
    pub(super) fn of(packet: &[u8]) -> Self {
        let mut quote = Quote { len: packet.len().min(QUOTE), bytes: [0; QUOTE] };
        quote.bytes[..quote.len].copy_from_slice(&packet[..quote.len]);
        quote
    }

    pub(super) fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// A packet that its sender might be told about, as it came in: at most one of each batch.
pub struct Candidate {
    came_by: CameBy,
    len: usize,
    packet: Box<[u8; QUOTE]>,
    turn: usize,
}

impl Default for Candidate {
    fn default() -> Self {
        Candidate { came_by: CameBy { dev: 0, queue: 0 }, len: 0, packet: Box::new([0; QUOTE]), turn: 0 }
    }
}

impl Candidate {
    /// Whether there is one.
    #[inline(always)]
    pub fn is_some(&self) -> bool {
        self.len > 0
    }

    /// Takes it out: the way it came, and the packet from its IP header on, as much of it as a
    /// message has room for.
    pub fn take(&mut self) -> Option<(CameBy, &[u8])> {
        let len = std::mem::take(&mut self.len);
        (len > 0).then(|| (self.came_by, &self.packet[..len]))
    }

    /// Looks at one of `packets`, which came by device `dev` and leave by it, headers rewritten.
    #[cold]
    #[inline(never)]
    pub(super) fn look(&mut self, tables: &Tables, dev: u16, packets: &[Skb]) {
        let iface = tables.ifaces.get(usize::from(dev)).and_then(Option::as_ref);
        let Some(iface) = iface.filter(|iface| iface.send_redirects) else { return };
        self.turn = self.turn.wrapping_add(1);
        let Some(skb) = packets.get(self.turn % packets.len().max(1)) else { return };
        if skb.head().flags & Flags::TRANSLATED != 0 {
            // For its sender, softnet is where it goes.
            return;
        }
        let Some(packet) = skb.data().get(ETH_LEN..) else { return };
        let total = match packet.first().map(|first| first >> 4) {
            Some(4) => tellable::<Ipv4Addr>(tables, (dev, iface), packet),
            Some(6) => tellable::<Ipv6Addr>(tables, (dev, iface), packet),
            _ => None,
        };
        let Some(total) = total else { return };
        let packet = &packet[..total.min(QUOTE).min(packet.len())];
        let quote = &mut self.packet[..packet.len()];
        quote.copy_from_slice(packet);
        take_back(quote);
        (self.came_by, self.len) = (CameBy::of(skb.head()), packet.len());
    }
}

/// The next hop of what leaves to `dst` by device `dev`: a gateway, or the destination itself.
fn first_hop<A: Family>(routing: &Routing<A>, dev: u16, dst: A) -> Option<A> {
    let hop = routing.route(dst);
    let sent = matches!(hop.kind, Kind::Rewrite | Kind::Resolve);
    (sent && hop.dev == dev).then_some(hop.gateway)
}

/// The length of `packet`, from its IP header on, if its sender on device `dev` can be told where it goes.
fn tellable<F: Redirect>(tables: &Tables, (dev, iface): (u16, &Iface), packet: &[u8]) -> Option<usize> {
    let (src, dst) = F::ends(packet)?;
    let first_hop = first_hop(F::routing(tables), dev, dst)?;
    F::total_len(packet).filter(|_| F::may_redirect(iface, src, dst, first_hop))
}

/// Makes of a packet that is sent on the one that came in: its time to live was one more.
fn take_back(packet: &mut [u8]) {
    if packet.first().is_some_and(|first| first >> 4 == 6) {
        return Ipv6Header::new_mut(packet).into_iter().for_each(|mut header| header.increase_hop_limit());
    }
    let Some(mut header) = Ipv4Header::new_mut(packet) else { return };
    let (old, new) = (header.ttl(), header.ttl().saturating_add(1));
    let word = |ttl: u8| u16::from_be_bytes([ttl, header.protocol()]);
    let check = update16(header.check(), word(old), word(new));
    header.set_ttl(new);
    header.set_check(check);
}

/// Which hosts may be told of what.
pub(super) trait Redirect: Family {
    /// Whether a host at `src` may be told to send what is for `dst` to `first_hop`, which is on the link of `iface`.
    fn may_redirect(iface: &Iface, src: Self, dst: Self, first_hop: Self) -> bool;
}

impl Redirect for Ipv4Addr {
    /// To a host on the same network.
    fn may_redirect(iface: &Iface, src: Self, _: Self, first_hop: Self) -> bool {
        let shared = |net: &Prefix| net.contains(src) && net.contains(first_hop);
        src != first_hop && !iface.owns(src) && iface.addresses.iter().any(|(_, net)| shared(net))
    }
}

impl Redirect for Ipv6Addr {
    /// It is there, too, and that is the destination itself or a router's link-local address (RFC 4861 section 8.2).
    fn may_redirect(iface: &Iface, src: Self, dst: Self, first_hop: Self) -> bool {
        let sender = iface.on_link6(src) && !iface.owns6(src) && src != first_hop;
        sender && (first_hop == dst || is_link_local(first_hop))
    }
}

/// The kernel's `redirect_load`: twice this (ns) is between the first two messages to a sender, and twice as much between the
/// next two each time.
const LOAD: u64 = 20_000_000;
/// Its `redirect_number`: a sender that does not listen after so many is told no more …
const NUMBER: u32 = 9;
/// … until it was silent, or listened, for so long (its `redirect_silence`).
const SILENCE: u64 = LOAD << (NUMBER + 1);
/// Senders that are remembered. One more takes the place of the one that was heard of longest ago, since sources can be
/// forged: whatever fills the table must not keep the next sender from being told.
const SENDERS: usize = 1024;

struct Sender {
    messages: u32,
    last: u64,
}

/// How often each sender is told (the kernel's `ip_rt_send_redirect`).
#[derive(Default)]
pub(super) struct RedirectLimit {
    senders: BTreeMap<IpAddr, Sender>,
    /// The same, by `last`.
    by_age: BTreeSet<(u64, IpAddr)>,
}

impl RedirectLimit {
    /// Whether `sender`, whose packet came at `now` (ns), is to be told.
    pub(super) fn allow(&mut self, now: u64, sender: IpAddr) -> bool {
        if self.senders.len() >= SENDERS
            && !self.senders.contains_key(&sender)
            && let Some((_, oldest)) = self.by_age.pop_first()
        {
            self.senders.remove(&oldest);
        }
        let known = self.senders.entry(sender).or_insert(Sender { messages: 0, last: now });
        if now.saturating_sub(known.last) > SILENCE {
            known.messages = 0;
        }
        let (messages, last) = (known.messages, known.last);
        let ignores = messages >= NUMBER;
        let due = !ignores && (messages == 0 || now.saturating_sub(last) > LOAD << messages);
        if due || ignores {
            known.messages += u32::from(due);
            known.last = now;
            self.by_age.remove(&(last, sender));
            self.by_age.insert((now, sender));
        }
        due
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const HOST: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 9));

    #[test]
    fn a_sender_is_told_ever_more_rarely() {
        let mut limit = RedirectLimit::default();
        let told: Vec<u64> = (0..20_000).filter(|ms| limit.allow(ms * MS, HOST)).collect();
        // Each gap is twice the one before, as the kernel's.
        assert_eq!(told, [0, 41, 122, 283, 604, 1245, 2526, 5087, 10208]);
        // It goes on not listening, so it hears nothing; then it was silent.
        assert!(!limit.allow(30_000 * MS, HOST) && !limit.allow(50_480 * MS, HOST));
        assert!(limit.allow(70_961 * MS, HOST));
        // Others have nothing to do with that.
        assert!(limit.allow(70_961 * MS, "fd00::9".parse().unwrap()));
    }

    /// As many senders as can be remembered, each at its own time, then more: the newest are told and the oldest forgotten.
    #[test]
    fn forged_senders_do_not_keep_others_from_being_told() {
        let mut limit = RedirectLimit::default();
        let host = |n: u32| IpAddr::V4(Ipv4Addr::from_bits(0x0a00_0000 + n));
        for n in 0..SENDERS as u32 {
            assert!(limit.allow(u64::from(n) * MS, host(n)));
        }
        // Heard of again, so no longer the oldest.
        assert!(limit.allow(1025 * MS, host(0)));
        for n in 5000..7000 {
            assert!(limit.allow(1026 * MS + u64::from(n), host(n)), "{n}");
            assert!(!limit.allow(1026 * MS + u64::from(n), host(n)));
            assert_eq!((limit.senders.len(), limit.by_age.len()), (SENDERS, SENDERS));
            if n == 5000 {
                assert!(!limit.allow(1026 * MS, host(0)) && !limit.senders.contains_key(&host(1)));
            }
        }
    }
}
