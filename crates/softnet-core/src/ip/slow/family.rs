//! What differs between the families in the slow path.
//!
//! [`SlowFamily`] is what the code for both asks of one; `v4` and `v6` implement it. A method that gets a [`Call`] does work of
//! its own, the others only look.

use super::{Call, Refused, RouteSnapshot, SlowPath};
use crate::SoftnetData;
use crate::ip::adjacency::{Adjacency, Kind};
use crate::ip::fragment::Addresses;
use crate::ip::iface::Iface;
use crate::ip::reassembly::Reassembly;
use crate::ip::{Family, MacAddr};
use crate::skb::{DropReason, Skb, SkbList, Store};

/// What the header of a received packet says.
#[derive(Clone, Copy)]
pub(super) struct Received<F> {
    pub(super) src: F,
    pub(super) dst: F,
    /// Time to live, or hop limit.
    pub(super) ttl: u8,
    /// Bytes from the IP header on.
    pub(super) total: usize,
    /// Bytes of the longest packet that it leaves as, if no router cuts it.
    pub(super) longest: usize,
    /// Whether routers may cut it.
    pub(super) may_fragment: bool,
    /// Whether it is to a group, or to all on a link.
    pub(super) to_many: bool,
}

/// What is behind the IP header and those that extend it.
#[derive(Clone, Copy)]
pub(super) struct Payload {
    /// IANA's number of its protocol.
    pub(super) protocol: u8,
    /// Where it begins, from the first byte of the packet.
    pub(super) at: usize,
    /// Where the byte is that says so.
    pub(super) said_at: usize,
    /// Whether it is only a piece of one.
    pub(super) is_fragment: bool,
}

/// Why a packet is not taken, and what its sender is told.
pub(super) struct Refusal<F: SlowFamily> {
    pub(super) reason: DropReason,
    pub(super) error: Option<F::Error>,
}

impl<F: SlowFamily> From<DropReason> for Refusal<F> {
    fn from(reason: DropReason) -> Self {
        Refusal { reason, error: None }
    }
}

/// One of the two families.
pub(super) trait SlowFamily: Family {
    /// What an ICMP error says.
    type Error: Copy;
    /// Protocol number of its ICMP.
    const ICMP: u8;
    const TIME_EXCEEDED: Self::Error;
    const REASSEMBLY_TIME_EXCEEDED: Self::Error;
    const NET_UNREACHABLE: Self::Error;
    const HOST_UNREACHABLE: Self::Error;
    const PROHIBITED: Self::Error;
    /// That a packet is too long for a link with this MTU.
    fn too_big(mtu: u16) -> Self::Error;
    /// That no socket, or protocol, takes a packet; some are not worth a word.
    fn unserved(payload: Payload) -> Option<Self::Error>;
    /// The addresses of an answer to what came from `from` to `to` by `dev`; `None` if these are not one host's each.
    fn answer(view: RouteSnapshot<'_>, from: Self, to: Self, dev: u16) -> Option<Addresses>;
    /// Whether a message as good as this error may be sent to `to`; if so, it is paid for.
    fn allow(call: &mut Call<'_>, to: Self) -> bool;
    /// Builds the message about `packet` from our address `source`, see [`build_error`](crate::ip::v4::icmp::build_error).
    fn build_error(call: &mut Call<'_>, packet: &Skb, error: Self::Error, source: Self) -> Option<Skb>;

    /// Checks what the fast path did not check of a received packet. `unusual`: it is not plain, and nothing was checked.
    fn check(
        slow: &SlowPath,
        view: RouteSnapshot<'_>,
        skb: &Skb,
        unusual: bool,
    ) -> Result<Received<Self>, Refusal<Self>>;
    /// Reads what is behind the header of a packet for softnet, whose header is sound.
    fn payload(packet: &[u8]) -> Result<Payload, Refusal<Self>>;
    /// Sum of the pseudo-header of `len` bytes of `protocol`.
    fn pseudo_header_sum(src: Self, dst: Self, protocol: u8, len: u16) -> u16;

    /// What is done with a packet of the flow with this hash that device `dev` received for `dst`,
    /// which is no group.
    fn route(view: RouteSnapshot<'_>, dev: u16, dst: Self, hash: u32) -> Adjacency<Self>;
    /// The next hop of a packet made here to `dst`, which is on the link of `dev` if it is link-local.
    fn next_hop(view: RouteSnapshot<'_>, dev: u16, dst: Self) -> Adjacency<Self>;
    /// `dst` on the link of `dev`, as sockets name it.
    fn scoped(dst: Self, dev: u16) -> Self;
    /// Whether a packet that device `dev` received can't be from `src`, which is an address of ours, or of all on a link.
    fn is_from_us(view: RouteSnapshot<'_>, dev: u16, src: Self) -> bool;
    /// Whether `addr` is an address of ours, on device `dev` if it is link-local.
    fn is_own(view: RouteSnapshot<'_>, dev: u16, addr: Self) -> bool;
    /// Our address on `iface` to speak to `peer` from.
    fn source_for(iface: &Iface, peer: Self) -> Option<Self>;
    /// Our address that an error to `peer`, which leaves by `iface` by way of `first_hop`, is from.
    fn error_source(view: RouteSnapshot<'_>, iface: &Iface, peer: Self, first_hop: Self) -> Option<Self>;

    /// Whether a packet that is not for softnet may go on at all, whatever way of this kind there is.
    fn may_forward(
        view: RouteSnapshot<'_>,
        skb: &Skb,
        received: &Received<Self>,
        kind: Kind,
    ) -> Result<(), Refusal<Self>>;
    /// Makes of a received packet what leaves by `iface` towards `first_hop`: one hop less, and what its options ask for.
    fn hop(slow: &SlowPath, view: RouteSnapshot<'_>, skb: &mut Skb, iface: &Iface, first_hop: Self);
    /// Whether the packet in `skb` has to be cut to leave by a link with this MTU.
    fn is_too_long(skb: &Skb, mtu: u16) -> bool;
    /// The packets that such a packet is cut into.
    fn cut(store: &mut Store, skb: Skb, mtu: u16) -> Result<SkbList, Refused>;

    /// A packet to a group, or to all on a link.
    fn group(call: &mut Call<'_>, skb: Skb, received: Received<Self>) -> Result<(), Refused>;
    /// An ICMP message for softnet, which begins at `at` of its packet.
    fn icmp(call: &mut Call<'_>, skb: Skb, received: Received<Self>, at: usize) -> Result<(), Refused>;
    /// Adds a fragment to those that wait. Returns the datagram that it completes.
    fn reassemble(
        frags: &mut Reassembly,
        ctx: &mut SoftnetData,
        now: u64,
        skb: Skb,
    ) -> Result<Option<Skb>, Refused>;
    /// What is wrong with a fragment that was refused, if its sender is to be told.
    fn fragment_error(packet: &[u8]) -> Option<Self::Error>;
    /// Whether a packet that came in fragments must not.
    fn must_be_whole(packet: &[u8]) -> bool;

    /// Our address on `iface` from which the sender of `packet`, which came from there, is told of `first_hop`; `None` if it
    /// is not.
    fn redirect_source(
        view: RouteSnapshot<'_>,
        iface: &Iface,
        packet: &[u8],
        first_hop: Self,
    ) -> Option<Self>;
    /// The message for that; `mac` is that of the first hop, if it is known.
    fn build_redirect(
        ctx: &mut SoftnetData,
        packet: &[u8],
        source: Self,
        first_hop: (Self, Option<MacAddr>),
    ) -> Option<Skb>;

    /// Writes the question for the neighbour `target` from our address at a MAC address: to all, or only to the MAC address
    /// `to`. `None` if there is no room.
    fn write_question(skb: &mut Skb, from: (MacAddr, Self), target: Self, to: Option<MacAddr>) -> Option<()>;
    /// The same for what tells all on the link that our address `own` is at `mac`.
    fn write_announcement(skb: &mut Skb, mac: MacAddr, own: Self) -> Option<()>;
}
