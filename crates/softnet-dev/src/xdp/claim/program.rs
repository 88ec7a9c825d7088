//! The rule as an XDP program; what is done about shared addresses is in `shared`.
//!
//! Fields are compared as they lie in memory, so constants are read the same way. `FRAME` is where the frame would begin if
//! it had no tag: four bytes behind `DATA` if it has one. Jumps go forward only.

mod shared;

use std::net::{Ipv4Addr, Ipv6Addr};

use softnet_core::ip::v6::addr::ALL_ROUTERS;

use super::ClaimFilter;
use super::layout::*;
use crate::bpf::{
    Alu, Assembler, Cond, F_XDP_HAS_FRAGS, KernelFn, Label, LruMap, Map, Program, Reg, Set, Size, XdpAction,
    helper,
};
use crate::sys_error::SysResult;
use crate::xdp::ports::KEY_LEN;

/// The maps that a device's program looks into.
#[derive(Clone, Copy)]
pub(in crate::xdp) struct Maps<'a> {
    /// Leads to sockets, by RX queue.
    pub(in crate::xdp) sockets: &'a Map,
    /// Groups that were joined, by [`group_key`](super::group_key).
    pub(in crate::xdp) groups: &'a Set,
    /// Ports that are open.
    pub(in crate::xdp) ports: &'a Set<KEY_LEN>,
    /// When the first fragment of softnet's datagrams came, by addresses and identification.
    pub(in crate::xdp) fragments: &'a LruMap<FRAGMENT_KEY_LEN>,
    /// Softnet's VLANs.
    pub(in crate::xdp) vlans: &'a VlanSet,
    /// Counts what is too long, at 0.
    pub(in crate::xdp) too_long: &'a Map,
}

/// VLANs: what frames have behind their MAC addresses, with nothing but the VLAN in the control
/// information.
pub(in crate::xdp) type VlanSet = Set<TAG_LEN>;

/// Kept across calls: where the frame begins without its tag, where it ends, its RX queue, and where it begins.
const FRAME: Reg = Reg::R6;
const END: Reg = Reg::R7;
const QUEUE: Reg = Reg::R8;
const DATA: Reg = Reg::R9;
/// For a field that is looked at.
const VALUE: Reg = Reg::R3;

/// On the stack: the program's argument, whether there is a tag, the key that is looked for in a
/// map, and a time that goes in there with it, or comes from there.
const CONTEXT: i16 = -8;
const TAGGED: i16 = -16;
const KEY: i16 = -56;
const TIME: i16 = -64;

/// Of the argument (`struct xdp_md`): its RX queue.
const RX_QUEUE: i16 = 16;

/// Bytes of a fragmented datagram's key: of IPv6 addresses and identification.
pub(in crate::xdp) const FRAGMENT_KEY_LEN: usize = 36;

fn word(bytes: [u8; 4]) -> i32 {
    i32::from_ne_bytes(bytes)
}

fn half(bytes: [u8; 2]) -> i32 {
    i32::from(u16::from_ne_bytes(bytes))
}

/// Half of the key of an address, as it lies in memory.
fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(std::array::from_fn(|i| bytes[at + i]))
}

/// A program in the making, and where it goes on in the end.
struct Claimer<'a> {
    asm: Assembler,
    filter: &'a ClaimFilter,
    maps: Maps<'a>,
    /// The frame is softnet's.
    claim: Label,
    /// It is the kernel's.
    pass: Label,
    /// It is softnet's if its group, whose key is on the stack, was joined.
    group: Label,
}

impl ClaimFilter {
    /// Loads the rule as a program.
    pub(in crate::xdp) fn load(&self, maps: Maps<'_>) -> SysResult<Program> {
        self.assemble(maps, XdpAction::Pass, None).load_xdp("softnet_claim", self.flags())
    }

    /// The same for the driver of the interface with index `ifindex` alone, which the program asks
    /// by `tag_of` for a tag that is beside the frame.
    pub(in crate::xdp) fn load_for(
        &self,
        maps: Maps<'_>,
        ifindex: u32,
        tag_of: KernelFn,
    ) -> SysResult<Program> {
        self.assemble(maps, XdpAction::Pass, Some(tag_of)).load_xdp_for(
            "softnet_claim",
            ifindex,
            self.flags(),
        )
    }

    fn flags(&self) -> u32 {
        if self.has_frags() { F_XDP_HAS_FRAGS } else { 0 }
    }

    /// The program; `unbound` is what happens to softnet's frames on a queue without a socket.
    pub(super) fn assemble(&self, maps: Maps<'_>, unbound: XdpAction, tag_of: Option<KernelFn>) -> Assembler {
        let mut asm = Assembler::new();
        let [claim, pass, group] = [(); 3].map(|()| asm.label());
        let mut claimer = Claimer { asm, filter: self, maps, claim, pass, group };
        claimer.asm.store(Size::U64, Reg::R10, CONTEXT, Reg::R1);
        if let Some(tag_of) = tag_of {
            claimer.beside(tag_of);
        }
        if let Some([ipv4, ipv6]) = claimer.begin() {
            claimer.arp();
            claimer.asm.bind(ipv6);
            claimer.ipv6();
            claimer.asm.bind(ipv4);
            claimer.ipv4();
        }
        claimer.end(unbound);
        claimer.asm
    }
}

impl Claimer<'_> {
    /// Goes to `or` unless the frame has `len` bytes.
    fn within(&mut self, len: usize, or: Label) {
        self.asm.mov(Reg::R2, FRAME);
        self.asm.alu(Alu::Add, Reg::R2, len as i32);
        self.asm.jump_if(Cond::Gt, Reg::R2, END, or);
    }

    /// Goes to `or` unless the byte at `at` is `value`.
    fn byte(&mut self, at: usize, value: u8, or: Label) {
        self.asm.load(Size::U8, VALUE, FRAME, at as i16);
        self.asm.jump_if(Cond::Ne, VALUE, i32::from(value), or);
    }

    /// Goes to `or` unless, under `mask`, the two bytes at `at` are `value`.
    fn masked(&mut self, at: usize, mask: [u8; 2], value: [u8; 2], or: Label) {
        self.asm.load(Size::U16, VALUE, FRAME, at as i16);
        if mask != [0xff; 2] {
            self.asm.alu(Alu::And, VALUE, half(mask));
        }
        self.asm.jump_if(Cond::Ne, VALUE, half(value), or);
    }

    /// Goes to `or` unless the MAC address at `at` of `base` is the interface's.
    fn mac(&mut self, base: Reg, at: usize, or: Label) {
        let [a, b, c, d, e, f] = self.filter.mac;
        self.asm.load(Size::U32, VALUE, base, at as i16);
        self.asm.jump_if32(Cond::Ne, VALUE, word([a, b, c, d]), or);
        self.asm.load(Size::U16, VALUE, base, (at + 4) as i16);
        self.asm.jump_if(Cond::Ne, VALUE, half([e, f]), or);
    }

    /// Goes to `then` if [`VALUE`] is one of `addresses`.
    fn one_of4<'a>(&mut self, addresses: impl IntoIterator<Item = &'a Ipv4Addr>, then: Label) {
        for address in addresses {
            self.asm.jump_if32(Cond::Eq, VALUE, word(address.octets()), then);
        }
    }

    /// Loads the IPv6 address at `at`: its halves into R2 and R3.
    fn load6(&mut self, at: usize) {
        self.asm.load(Size::U64, Reg::R2, FRAME, at as i16);
        self.asm.load(Size::U64, Reg::R3, FRAME, (at + 8) as i16);
    }

    /// Goes to `then` if that is one of `addresses`: with one branch for each, for of several in a row the verifier would
    /// look at every way through all of them.
    fn one_of6<'a>(&mut self, addresses: impl IntoIterator<Item = &'a Ipv6Addr>, then: Label) {
        let asm = &mut self.asm;
        for address in addresses {
            let octets = address.octets();
            for (to, of, at) in [(Reg::R4, Reg::R2, 0), (Reg::R5, Reg::R3, 8)] {
                asm.mov64(to, long(&octets, at));
                asm.alu(Alu::Xor, to, of);
            }
            asm.alu(Alu::Or, Reg::R4, Reg::R5);
            asm.jump_if(Cond::Eq, Reg::R4, 0, then);
        }
    }

    /// Goes to `or` unless the key on the stack is in `map`.
    fn look_up(&mut self, map: &impl std::os::fd::AsFd, or: Label) {
        self.asm.look_up(map, KEY, or);
    }

    /// Of frames of a VLAN whose tag is beside them: claims them if that is one of softnet's, with the tag put into them,
    /// for it would be lost; else passes them.
    fn beside(&mut self, tag_of: KernelFn) {
        const PROTOCOL: i16 = KEY;
        const TCI: i16 = KEY + 8;
        const TAG: i16 = KEY + 16;
        let none = self.asm.label();
        let asm = &mut self.asm;
        for (to, at) in [(Reg::R2, PROTOCOL), (Reg::R3, TCI)] {
            asm.store(Size::U64, Reg::R10, at, 0);
            asm.mov(to, Reg::R10);
            asm.alu(Alu::Add, to, i32::from(at));
        }
        asm.call_kernel(tag_of);
        asm.jump_if32(Cond::Ne, Reg::R0, 0, none);
        // In the machine's byte order.
        asm.load(Size::U16, VALUE, Reg::R10, TCI);
        let vid = i32::from(u16::from_be_bytes(VID));
        if self.filter.vlans.is_empty() {
            asm.jump_if(Cond::Set, VALUE, vid, self.pass);
        } else {
            let (drop, moved) = (asm.label(), asm.label());
            asm.mov(Reg::R2, VALUE);
            asm.alu(Alu::And, Reg::R2, vid);
            asm.jump_if(Cond::Eq, Reg::R2, 0, none);
            // The key, and the tag as it is to be in the frame.
            for (at, tci) in [(KEY, Reg::R2), (TAG, VALUE)] {
                asm.load(Size::U16, Reg::R4, Reg::R10, PROTOCOL);
                asm.store(Size::U16, Reg::R10, at, Reg::R4);
                asm.to_be(tci, 16);
                asm.store(Size::U16, Reg::R10, at + 2, tci);
            }
            self.look_up(self.maps.vlans, self.pass);
            // Without a socket it is the kernel's as it is.
            self.asm.load(Size::U64, Reg::R1, Reg::R10, CONTEXT);
            self.asm.load(Size::U32, QUEUE, Reg::R1, RX_QUEUE);
            self.asm.store(Size::U32, Reg::R10, KEY, QUEUE);
            self.look_up(self.maps.sockets, self.pass);
            let asm = &mut self.asm;
            asm.load(Size::U64, Reg::R1, Reg::R10, CONTEXT);
            asm.mov(Reg::R2, -(TAG_LEN as i32));
            asm.call(helper::XDP_ADJUST_HEAD);
            asm.jump_if(Cond::Ne, Reg::R0, 0, drop);
            asm.load(Size::U64, Reg::R1, Reg::R10, CONTEXT);
            asm.load(Size::U32, DATA, Reg::R1, 0);
            asm.load(Size::U32, END, Reg::R1, 4);
            asm.mov(Reg::R2, DATA);
            asm.alu(Alu::Add, Reg::R2, (ETH_LEN + TAG_LEN) as i32);
            asm.jump_if(Cond::Le, Reg::R2, END, moved);
            asm.bind(drop);
            asm.mov(Reg::R0, XdpAction::Drop as i32);
            asm.exit();
            asm.bind(moved);
            // The two addresses, first to last, since they overlap; then the tag.
            for at in [0, 4, 8] {
                asm.load(Size::U32, VALUE, DATA, at + TAG_LEN as i16);
                asm.store(Size::U32, DATA, at, VALUE);
            }
            asm.load(Size::U32, VALUE, Reg::R10, TAG);
            asm.store(Size::U32, DATA, ETHERTYPE as i16, VALUE);
            asm.mov(FRAME, DATA);
            asm.store(Size::U64, Reg::R10, TAGGED, 0);
            asm.jump(self.claim);
        }
        let asm = &mut self.asm;
        asm.bind(none);
        asm.load(Size::U64, Reg::R1, Reg::R10, CONTEXT);
    }

    /// Takes note of where the frame is and whether it has a tag. Goes to the labels that it returns, for IPv4 and IPv6, and
    /// on for ARP; returns none if none of that is softnet's.
    fn begin(&mut self) -> Option<[Label; 2]> {
        let [tagged, untagged, ipv4, ipv6] = [(); 4].map(|()| self.asm.label());
        let priority = self.asm.label();
        let asm = &mut self.asm;
        // struct xdp_md: data, data_end, data_meta, ingress_ifindex, rx_queue_index.
        asm.load(Size::U32, DATA, Reg::R1, 0);
        asm.load(Size::U32, END, Reg::R1, 4);
        asm.load(Size::U32, QUEUE, Reg::R1, RX_QUEUE);
        asm.mov(FRAME, DATA);
        asm.store(Size::U64, Reg::R10, TAGGED, 0);
        self.within(IPV4_END, self.pass);
        self.asm.load(Size::U16, VALUE, FRAME, ETHERTYPE as i16);
        for tag in TAGS {
            self.asm.jump_if(Cond::Eq, VALUE, half(tag), tagged);
        }
        self.asm.jump(untagged);

        self.asm.bind(tagged);
        if self.filter.vlans.is_empty() {
            self.masked(ETH_LEN, VID, [0, 0], self.pass);
        } else {
            self.asm.load(Size::U16, VALUE, FRAME, ETH_LEN as i16);
            self.asm.alu(Alu::And, VALUE, half(VID));
            self.asm.jump_if(Cond::Eq, VALUE, 0, priority);
            self.asm.load(Size::U16, Reg::R2, FRAME, ETHERTYPE as i16);
            self.asm.store(Size::U16, Reg::R10, KEY, Reg::R2);
            self.asm.store(Size::U16, Reg::R10, KEY + 2, VALUE);
            self.look_up(self.maps.vlans, self.pass);
            self.asm.jump(self.claim);
        }

        self.asm.bind(priority);
        self.asm.store(Size::U64, Reg::R10, TAGGED, 1);
        self.asm.alu(Alu::Add, FRAME, TAG_LEN as i32);
        self.within(IPV4_END, self.pass);
        self.asm.load(Size::U16, VALUE, FRAME, ETHERTYPE as i16);

        self.asm.bind(untagged);
        if !self.filter.untagged {
            self.asm.jump(self.pass);
            return None;
        }
        self.asm.jump_if(Cond::Eq, VALUE, half(IPV4), ipv4);
        self.asm.jump_if(Cond::Eq, VALUE, half(IPV6), ipv6);
        self.asm.jump_if(Cond::Ne, VALUE, half(ARP), self.pass);
        Some([ipv4, ipv6])
    }

    fn arp(&mut self) {
        let [unicast, arp, request] = [(); 3].map(|()| self.asm.label());
        self.within(ARP_END, self.pass);
        self.asm.load(Size::U32, VALUE, DATA, 0);
        self.asm.jump_if32(Cond::Ne, VALUE, -1, unicast);
        self.asm.load(Size::U16, VALUE, DATA, 4);
        self.asm.jump_if(Cond::Eq, VALUE, 0xffff, arp);
        self.asm.bind(unicast);
        self.mac(DATA, 0, self.pass);
        self.asm.bind(arp);
        self.asm.load(Size::U32, VALUE, FRAME, ARP_FORMAT as i16);
        self.asm.jump_if32(Cond::Ne, VALUE, word(ARP_IPV4), self.pass);
        self.masked(ARP_LENGTHS, [0xff; 2], ARP_MAC_IPV4, self.pass);
        self.asm.load(Size::U16, VALUE, FRAME, ARP_OPERATION as i16);
        self.asm.jump_if(Cond::Eq, VALUE, half(REQUEST), request);
        self.asm.jump_if(Cond::Ne, VALUE, half(REPLY), self.pass);
        let v4 = &self.filter.v4;
        self.asm.load(Size::U32, VALUE, FRAME, ARP_TARGET as i16);
        self.one_of4(&v4.ours, self.claim);
        self.asm.jump(self.pass);
        self.asm.bind(request);
        self.asm.load(Size::U32, VALUE, FRAME, ARP_TARGET as i16);
        self.one_of4(v4.own(), self.claim);
        self.asm.jump(self.pass);
    }

    /// Ends at one of the labels, or goes on at `claim`.
    fn ipv4(&mut self) {
        let [to_many, shared] = [(); 2].map(|()| self.asm.label());
        let v4 = &self.filter.v4;
        self.asm.load(Size::U8, VALUE, DATA, 0);
        self.asm.jump_if(Cond::Set, VALUE, i32::from(TO_MANY), to_many);
        self.mac(DATA, 0, self.pass);
        self.asm.load(Size::U32, VALUE, FRAME, IPV4_DST as i16);
        self.one_of4(&v4.ours, self.claim);
        self.one_of4(&v4.kernel, self.pass);
        self.one_of4(&v4.shared, shared);
        self.asm.load(Size::U8, VALUE, FRAME, IPV4_DST as i16);
        self.asm.jump_if(Cond::Ge, VALUE, i32::from(FIRST_GROUP4), to_many);
        // An answer of DHCP to the interface, which has no address of its own before it got this.
        self.byte(IPV4_PROTOCOL, UDP, self.claim);
        self.within(BOOTP_END, self.claim);
        self.asm.load(Size::U32, VALUE, FRAME, IPV4_END as i16);
        self.asm.jump_if32(Cond::Ne, VALUE, word(DHCP_PORTS), self.claim);
        self.byte(IPV4_VIHL, PLAIN, self.claim);
        self.masked(IPV4_FRAGMENT, FRAGMENTED, [0, 0], self.claim);
        self.byte(BOOTP, BOOTREPLY, self.claim);
        self.mac(FRAME, BOOTP_CHADDR, self.claim);
        self.asm.jump(self.pass);

        if !v4.shared.is_empty() {
            self.asm.bind(shared);
            self.shared4();
        }

        self.asm.bind(to_many);
        self.byte(IPV4_PROTOCOL, UDP, self.pass);
        self.key4();
        self.asm.bind(self.group);
        self.look_up(self.maps.groups, self.pass);
    }

    /// Puts the destination on the stack, as sockets know it.
    fn key4(&mut self) {
        self.asm.load(Size::U32, VALUE, FRAME, IPV4_DST as i16);
        self.asm.store(Size::U64, Reg::R10, KEY, 0);
        self.asm.store(Size::U32, Reg::R10, KEY + 8, word([0, 0, 0xff, 0xff]));
        self.asm.store(Size::U32, Reg::R10, KEY + 12, VALUE);
    }

    /// Ends at one of the labels.
    fn ipv6(&mut self) {
        let [unicast, datagram, to_group, discovery, shared] = [(); 5].map(|()| self.asm.label());
        let v6 = &self.filter.v6;
        self.within(IPV6_END, self.pass);
        self.asm.load(Size::U8, VALUE, DATA, 0);
        self.asm.alu(Alu::And, VALUE, i32::from(TO_MANY));
        self.asm.jump_if(Cond::Eq, VALUE, 0, unicast);
        self.asm.load(Size::U8, VALUE, FRAME, IPV6_NEXT as i16);
        for next in [UDP, FRAGMENT] {
            self.asm.jump_if(Cond::Eq, VALUE, i32::from(next), datagram);
        }
        if self.filter.speaks_ipv6() {
            let [a, b, c] = SOLICITED_NODE;
            self.asm.jump_if(Cond::Ne, VALUE, i32::from(ICMPV6), self.pass);
            self.asm.load(Size::U16, VALUE, DATA, 0);
            self.asm.jump_if(Cond::Ne, VALUE, half([a, b]), self.pass);
            self.asm.load(Size::U8, VALUE, DATA, 2);
            self.asm.jump_if(Cond::Eq, VALUE, i32::from(c), discovery);
            self.within(ND_TYPE + 1, self.pass);
            self.byte(ND_TYPE, ECHO_REQUEST, self.pass);
            self.load6(IPV6_DST);
            self.one_of6(&ALL_ROUTERS, self.claim);
        }
        self.asm.jump(self.pass);

        self.asm.bind(unicast);
        if self.filter.speaks_ipv6() {
            self.mac(DATA, 0, self.pass);
            self.asm.load(Size::U8, VALUE, FRAME, IPV6_DST as i16);
            self.asm.jump_if(Cond::Eq, VALUE, i32::from(GROUP6), to_group);
            self.load6(IPV6_DST);
            self.one_of6(&v6.ours, self.claim);
            self.one_of6(&v6.kernel, self.pass);
            self.one_of6(&v6.shared, shared);
            self.masked(IPV6_DST, LINK_LOCAL_MASK, LINK_LOCAL, self.claim);
        }
        self.asm.jump(self.pass);

        if !v6.shared.is_empty() {
            self.asm.bind(shared);
            self.shared6(discovery);
        }

        if self.filter.speaks_ipv6() {
            self.asm.bind(to_group);
            self.asm.load(Size::U8, VALUE, FRAME, IPV6_NEXT as i16);
            for next in [UDP, FRAGMENT] {
                self.asm.jump_if(Cond::Eq, VALUE, i32::from(next), datagram);
            }
            self.asm.jump_if(Cond::Ne, VALUE, i32::from(ICMPV6), self.pass);
            self.asm.bind(discovery);
            self.within(ND_END, self.pass);
            self.byte(ND_TYPE, SOLICITATION, self.pass);
            self.load6(ND_TARGET);
            self.one_of6(v6.own(), self.claim);
            self.asm.jump(self.pass);
        }

        self.asm.bind(datagram);
        // What IPv6 has for addresses of IPv4 is no group of IPv4's.
        self.byte(IPV6_DST, GROUP6, self.pass);
        self.key6();
        self.asm.jump(self.group);
    }

    /// Puts the destination on the stack.
    fn key6(&mut self) {
        self.load6(IPV6_DST);
        self.asm.store(Size::U64, Reg::R10, KEY, Reg::R2);
        self.asm.store(Size::U64, Reg::R10, KEY + 8, Reg::R3);
    }

    /// What becomes of the frame.
    fn end(&mut self, unbound: XdpAction) {
        let [fits, redirect] = [(); 2].map(|()| self.asm.label());
        let (claim, pass) = (self.claim, self.pass);
        let asm = &mut self.asm;
        asm.bind(claim);
        let counted = asm.label();
        if self.filter.has_frags() {
            // What is between the frame's beginning and its end is its first piece.
            let too_long = asm.label();
            asm.load(Size::U64, Reg::R1, Reg::R10, CONTEXT);
            asm.call(helper::XDP_GET_BUFF_LEN);
            asm.jump_if(Cond::Gt, Reg::R0, self.filter.longest as i32, too_long);
            asm.jump(fits);
            asm.bind(too_long);
        } else {
            asm.mov(Reg::R2, DATA);
            asm.alu(Alu::Add, Reg::R2, MAX_LEN as i32 + 1);
            asm.jump_if(Cond::Gt, Reg::R2, END, fits);
        }
        asm.store(Size::U32, Reg::R10, KEY, 0);
        self.look_up(self.maps.too_long, counted);
        // Each CPU has its own counter, and is the only one to write it.
        let asm = &mut self.asm;
        asm.load(Size::U64, Reg::R1, Reg::R0, 0);
        asm.alu(Alu::Add, Reg::R1, 1);
        asm.store(Size::U64, Reg::R0, 0, Reg::R1);
        asm.bind(counted);
        asm.mov(Reg::R0, XdpAction::Drop as i32);
        asm.exit();

        asm.bind(fits);
        asm.load(Size::U64, VALUE, Reg::R10, TAGGED);
        asm.jump_if(Cond::Eq, VALUE, 0, redirect);
        // The two addresses take the tag's place, last to first, since they overlap.
        for at in [8, 4, 0] {
            asm.load(Size::U32, VALUE, DATA, at);
            asm.store(Size::U32, DATA, at + TAG_LEN as i16, VALUE);
        }
        asm.load(Size::U64, Reg::R1, Reg::R10, CONTEXT);
        asm.mov(Reg::R2, TAG_LEN as i32);
        asm.call(helper::XDP_ADJUST_HEAD);
        // It can't fail: there is more than that.
        asm.bind(redirect);
        asm.load_map(Reg::R1, self.maps.sockets);
        asm.mov(Reg::R2, QUEUE);
        asm.mov(Reg::R3, unbound as i32);
        asm.call(helper::REDIRECT_MAP);
        asm.exit();
        asm.bind(pass);
        asm.mov(Reg::R0, XdpAction::Pass as i32);
        asm.exit();
    }
}
