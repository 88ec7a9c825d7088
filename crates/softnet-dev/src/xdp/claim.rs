//! What a device takes for softnet, and what it leaves to the kernel.
//!
//! Softnet takes, of frames without VLAN tag (in them or, as far as a veth's driver tells, [beside
//! them](super::attach)), or with one that has only a priority (VLAN 0, IEEE 802.1Q section 6.9),
//! which it gets without:
//! * IPv4 to the interface's MAC address, unless the destination address is the kernel's own, on [whatever interface](super::theirs); and what is
//!   the kernel's all the same: broadcasts, and answers of DHCP to the interface, for the address that they bring is not the
//!   kernel's yet (RFC 2131 section 4.1);
//! * ARP requests and replies for one of softnet's addresses, to the interface's MAC address or to all;
//! * on a device that has an IPv6 address, IPv6 to the interface's MAC address in the same way, and neighbour solicitations
//!   for one of softnet's addresses, to the group of those that might have it, and echo requests to the groups of all
//!   routers. Link-local destinations that are not softnet's are the kernel's, which may be about to take one;
//! * UDP, and what may be fragments of it, to a group that softnet has [joined](super::groups), in multicast frames, or in
//!   frames to the interface's MAC address (RFC 6085).
//!
//! An address that both have is **shared** if the claim says so, and so is the link-local one that both derive from the MAC
//! address; else it is softnet's. Of a shared address softnet takes
//! * UDP and TCP to ports that its sockets [have open](super::ports), there or on no address in
//!   particular; UDP also in fragments, if the first of them, which has the ports, comes before the
//!   others;
//! * ICMP errors that quote such a datagram or segment, by its source port;
//! * ARP requests and neighbour solicitations, which it answers as the kernel would.
//!
//! All else that is sent there is the kernel's: other ports, fragments of TCP, pings, packets with
//! options or extension headers. Answers of neighbours are, too, for both ask from there; softnet
//! gets [copies](crate::snoop).
//!
//! Of a VLAN that is [softnet's](ClaimedVlan) it takes all frames, which it gets with their tag in them, wherever that was.
//! Where it has VLANs and no address, it leaves all else to the kernel.
//!
//! Everything else is the kernel's: other VLANs, other multicast, other MACs, what is cut short; where softnet has no IPv6
//! address, all of IPv6 but its groups. So an interface can be taken without taking the machine. What is sent to all
//! nodes is the kernel's too (router advertisements, in whatever frames, and what neighbours say unasked, of which softnet
//! gets copies). So are IGMP and MLD, those to groups of softnet's included, for it is the kernel that answers them. A
//! datagram is softnet's or the kernel's: of a group that softnet has joined, the kernel's own members get nothing by
//! this interface.
//!
//! What is softnet's and longer than a frame is dropped here, and counted: several segments that were merged, or a
//! sender has not cut.
//!
//! Groups and ports come and go without another program: they are in maps that the program looks into.
//!
//! The rule is written twice, as a Rust function (`model`, which says what is meant) and as an XDP program (`program`,
//! which the kernel runs); a test holds them against each other over random frames.

mod layout;
mod program;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use softnet_core::ip::Family;
use softnet_core::ip::v6::addr::link_local;
use softnet_core::skb::VlanProto;
use softnet_core::sock::key::addr_of;
use softnet_core::sock::scope::index_of;

use layout::{TAG_LEN, TAGS, VID};
pub(super) use program::{FRAGMENT_KEY_LEN, Maps, VlanSet};

/// What of a device's traffic is softnet's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Claim {
    /// Softnet's own addresses on the device. If one is of IPv6, the link-local one that follows from the MAC address is
    /// too.
    pub addresses: Vec<IpAddr>,
    /// Those that the kernel has, too, are shared with it.
    pub shared: bool,
    /// The VLANs that are softnet's. They stay as they are while a device is open.
    pub vlans: Vec<ClaimedVlan>,
}

/// A VLAN whose frames are softnet's alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimedVlan {
    /// The kind of its tags.
    pub proto: VlanProto,
    /// Its number.
    pub id: u16,
    /// Softnet's addresses in it.
    pub addresses: Vec<IpAddr>,
}

impl ClaimedVlan {
    /// What its frames have behind their MAC addresses, the priority aside.
    fn key(&self) -> [u8; TAG_LEN] {
        let kind = match self.proto {
            VlanProto::Dot1ad => TAGS[1],
            VlanProto::None | VlanProto::Dot1q => TAGS[0],
        };
        let [a, b] = (self.id & u16::from_be_bytes(VID)).to_be_bytes();
        [kind[0], kind[1], a, b]
    }
}

/// The rule for one device, complete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ClaimFilter {
    mac: [u8; 6],
    /// What link-local addresses have for their scope in the map of ports.
    scope: u16,
    v4: Addresses<Ipv4Addr>,
    /// No IPv6 is taken if softnet has no address of it.
    v6: Addresses<Ipv6Addr>,
    /// Softnet's VLANs, by what their frames begin with behind the MAC addresses.
    vlans: Vec<[u8; TAG_LEN]>,
    /// Whether anything without a tag may be softnet's.
    untagged: bool,
    /// The longest frame that there is room for.
    longest: usize,
}

/// Whose the addresses of one family are; each is in one list at the most.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Addresses<A> {
    /// Softnet's alone.
    ours: Vec<A>,
    /// Softnet's and the kernel's.
    shared: Vec<A>,
    /// The kernel's alone.
    kernel: Vec<A>,
}

impl<A: Family> Addresses<A> {
    /// `own` are softnet's, `kernel` the kernel's; `is_shared` says of one that both have whether they share it.
    fn new(own: Vec<A>, kernel: &[IpAddr], is_shared: impl Fn(&A) -> bool) -> Self {
        let kernel: Vec<A> = kernel.iter().filter_map(|addr| A::of(*addr)).collect();
        let (shared, ours) = own.iter().partition(|own| kernel.contains(own) && is_shared(own));
        Addresses { ours, shared, kernel: kernel.into_iter().filter(|addr| !own.contains(addr)).collect() }
    }

    /// Softnet's, shared or not.
    fn own(&self) -> impl Iterator<Item = &A> {
        self.ours.iter().chain(&self.shared)
    }
}

/// What a group is known by among the groups: its address, of IPv4 as IPv6 has it.
pub(super) fn group_key(group: IpAddr) -> [u8; 16] {
    addr_of(group).to_be_bytes()
}

impl ClaimFilter {
    /// For device `dev` on an interface with this MAC address, beside a kernel that has the
    /// addresses `kernel`.
    pub(super) fn new(mac: [u8; 6], dev: u16, claim: &Claim, kernel: &[IpAddr]) -> Self {
        let own4 = claim.addresses.iter().filter_map(|addr| Ipv4Addr::of(*addr)).collect();
        let mut own6: Vec<_> = claim.addresses.iter().filter_map(|addr| Ipv6Addr::of(*addr)).collect();
        let derived = link_local(mac);
        if !own6.is_empty() && !own6.contains(&derived) {
            own6.push(derived);
        }
        ClaimFilter {
            mac,
            scope: index_of(dev),
            v4: Addresses::new(own4, kernel, |_| claim.shared),
            v6: Addresses::new(own6, kernel, |addr| claim.shared || *addr == derived),
            vlans: claim.vlans.iter().map(ClaimedVlan::key).collect(),
            untagged: !claim.addresses.is_empty() || claim.vlans.is_empty(),
            longest: layout::MAX_LEN,
        }
    }

    /// The same for frames of up to `longest` bytes: more than one piece has room for means that they come in several.
    pub(super) fn with_longest(self, longest: usize) -> Self {
        ClaimFilter { longest: longest.max(layout::MAX_LEN), ..self }
    }

    /// See [`with_longest`](Self::with_longest).
    pub(super) fn longest(&self) -> usize {
        self.longest
    }

    /// Whether frames come in several pieces.
    fn has_frags(&self) -> bool {
        self.longest > layout::MAX_LEN
    }

    /// Softnet's IPv6 addresses.
    pub(super) fn own_ipv6(&self) -> Vec<Ipv6Addr> {
        self.v6.own().copied().collect()
    }

    /// The IPv6 addresses that neighbours ask for, in VLANs too.
    pub(super) fn asked_for(&self, claim: &Claim) -> Vec<Ipv6Addr> {
        let in_vlans = claim.vlans.iter().flat_map(|vlan| &vlan.addresses);
        let mut all: Vec<_> = in_vlans.filter_map(|addr| Ipv6Addr::of(*addr)).collect();
        if !all.is_empty() {
            all.push(link_local(self.mac));
        }
        all.extend(self.own_ipv6());
        all
    }

    /// Its VLANs, as the program looks them up.
    pub(super) fn vlans(&self) -> &[[u8; TAG_LEN]] {
        &self.vlans
    }

    /// Whether the program has to know what is an address of IPv6 that is softnet's.
    fn speaks_ipv6(&self) -> bool {
        self.v6.own().next().is_some()
    }
}

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;
