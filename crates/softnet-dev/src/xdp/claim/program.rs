//! The rule as an XDP program.
//!
//! Fields are compared as they lie in memory, so constants are read the same way. `FRAME` is where the frame would begin if
//! it had no tag: four bytes behind `DATA` if it has one. Jumps go forward only.

use std::net::{Ipv4Addr, Ipv6Addr};

use softnet_core::ip::v6::addr::ALL_ROUTERS;
use softnet_core::skb::{FRAME_SIZE, HEADROOM};

use super::ClaimFilter;
use crate::bpf::{Alu, Assembler, Cond, Label, Map, Program, Reg, Set, Size, XdpAction, helper};
use crate::sys_error::SysResult;
use crate::xdp::ports::{ANY4, KEY_LEN, key};

/// Longest frame that there is room for behind the kernel's headroom.
pub(super) const MAX_LEN: usize = FRAME_SIZE - HEADROOM;

/// Bytes of a VLAN tag.
pub(super) const TAG_LEN: usize = 4;
pub(super) const ETH_LEN: usize = 14;
pub(super) const ETHERTYPE: usize = 12;

pub(super) const ARP_FORMAT: usize = ETH_LEN;
pub(super) const ARP_LENGTHS: usize = ETH_LEN + 4;
pub(super) const ARP_OPERATION: usize = ETH_LEN + 6;
pub(super) const ARP_TARGET: usize = ETH_LEN + 24;
pub(super) const ARP_END: usize = ETH_LEN + 28;

/// Version and header length.
pub(super) const IPV4_VIHL: usize = ETH_LEN;
pub(super) const IPV4_ID: usize = ETH_LEN + 4;
pub(super) const IPV4_FRAGMENT: usize = ETH_LEN + 6;
pub(super) const IPV4_PROTOCOL: usize = ETH_LEN + 9;
pub(super) const IPV4_SRC: usize = ETH_LEN + 12;
pub(super) const IPV4_DST: usize = ETH_LEN + 16;
/// Of a header without options.
pub(super) const IPV4_END: usize = ETH_LEN + 20;

pub(super) const IPV6_NEXT: usize = ETH_LEN + 6;
pub(super) const IPV6_SRC: usize = ETH_LEN + 8;
pub(super) const IPV6_DST: usize = ETH_LEN + 24;
pub(super) const IPV6_END: usize = ETH_LEN + 40;
/// Of a fragment header behind that: offset and flags, identification, and what follows.
pub(super) const IPV6_FRAGMENT: usize = IPV6_END + 2;
pub(super) const IPV6_ID: usize = IPV6_END + 4;
pub(super) const FRAGMENT_END: usize = IPV6_END + 8;
pub(super) const ND_TYPE: usize = IPV6_END;
pub(super) const ND_TARGET: usize = IPV6_END + 8;
pub(super) const ND_END: usize = ND_TARGET + 16;

/// Of a UDP header, from its beginning on.
pub(super) const UDP_DST: usize = 2;
pub(super) const UDP_LEN: usize = 8;
/// Of an ICMP or ICMPv6 message, what an error quotes.
pub(super) const QUOTE: usize = 8;

/// Of a BOOTP message: what it is, the client's MAC address.
pub(super) const BOOTP: usize = IPV4_END + UDP_LEN;
pub(super) const BOOTP_CHADDR: usize = BOOTP + 28;
pub(super) const BOOTP_END: usize = BOOTP_CHADDR + 6;
pub(super) const BOOTREPLY: u8 = 2;
/// From a DHCP server to a client, as the two ports lie in the header.
pub(super) const DHCP_PORTS: [u8; 4] = [0, 67, 0, 68];

pub(super) const IPV4: [u8; 2] = [0x08, 0x00];
pub(super) const ARP: [u8; 2] = [0x08, 0x06];
pub(super) const IPV6: [u8; 2] = [0x86, 0xdd];
/// EtherTypes of tags: of customers and of providers.
pub(super) const TAGS: [[u8; 2]; 2] = [[0x81, 0x00], [0x88, 0xa8]];
/// The VLAN in a tag.
pub(super) const VID: [u8; 2] = [0x0f, 0xff];
/// What MAC addresses of solicited-node groups begin with (RFC 2464 section 7, RFC 4291 section 2.7.1).
pub(super) const SOLICITED_NODE: [u8; 3] = [0x33, 0x33, 0xff];
/// The bit that is set in the first byte of MAC addresses of many (IEEE 802.3).
pub(super) const TO_MANY: u8 = 1;
/// ARP for IPv4 (0x0800) over Ethernet (1), RFC 826.
pub(super) const ARP_IPV4: [u8; 4] = [0, 1, 0x08, 0x00];
pub(super) const ARP_MAC_IPV4: [u8; 2] = [6, 4];
pub(super) const REQUEST: [u8; 2] = [0, 1];
pub(super) const REPLY: [u8; 2] = [0, 2];

/// IPv4 without options.
pub(super) const PLAIN: u8 = 0x45;
/// Of flags and fragment offset: more fragments, and the offset.
pub(super) const FRAGMENTED: [u8; 2] = [0x3f, 0xff];
/// The offset alone; that of IPv6.
pub(super) const OFFSET: [u8; 2] = [0x1f, 0xff];
pub(super) const OFFSET6: [u8; 2] = [0xff, 0xf8];
/// First octet of addresses that nobody alone has: groups, and all (RFC 1112 section 4, RFC 919).
pub(super) const FIRST_GROUP4: u8 = 224;
/// What IPv6 addresses of groups begin with (RFC 4291 section 2.7).
pub(super) const GROUP6: u8 = 0xff;
/// What link-local addresses begin with, in ten bits.
pub(super) const LINK_LOCAL: [u8; 2] = [0xfe, 0x80];
pub(super) const LINK_LOCAL_MASK: [u8; 2] = [0xff, 0xc0];

pub(super) const ICMP: u8 = 1;
pub(super) const UDP: u8 = 17;
pub(super) const FRAGMENT: u8 = 44;
pub(super) const ICMPV6: u8 = 58;
pub(super) const ECHO_REQUEST: u8 = 128;
pub(super) const SOLICITATION: u8 = 135;
/// ICMP errors: destination unreachable, time exceeded, parameter problem.
pub(super) const ICMP_ERRORS: [u8; 3] = [3, 11, 12];
/// ICMPv6 errors: from 1 on; also packet too big.
pub(super) const LAST_ICMPV6_ERROR: u8 = 4;

/// The maps that a device's program looks into.
#[derive(Clone, Copy)]
pub(in crate::xdp) struct Maps<'a> {
    /// Leads to sockets, by RX queue.
    pub(in crate::xdp) sockets: &'a Map,
    /// Groups that were joined, by [`group_key`](super::group_key).
    pub(in crate::xdp) groups: &'a Set,
    /// Ports that are open.
    pub(in crate::xdp) ports: &'a Set<KEY_LEN>,
    /// Datagrams whose first fragment was softnet's, by addresses and identification.
    pub(in crate::xdp) fragments: &'a Set<FRAGMENT_KEY_LEN>,
    /// Counts what is too long, at 0.
    pub(in crate::xdp) too_long: &'a Map,
}

/// Kept across calls: where the frame begins without its tag, where it ends, its RX queue, and where it begins.
const FRAME: Reg = Reg::R6;
const END: Reg = Reg::R7;
const QUEUE: Reg = Reg::R8;
const DATA: Reg = Reg::R9;
/// For a field that is looked at.
const VALUE: Reg = Reg::R3;

/// On the stack: the program's argument, whether there is a tag, the key that is looked for in a map, and what goes in there
/// with it.
const CONTEXT: i16 = -8;
const TAGGED: i16 = -16;
const KEY: i16 = -56;
const SET_VALUE: i16 = -20;

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
        self.assemble(maps, XdpAction::Pass).load_xdp("softnet_claim", 0)
    }

    /// The program; `unbound` is what happens to softnet's frames on a queue without a socket.
    pub(super) fn assemble(&self, maps: Maps<'_>, unbound: XdpAction) -> Assembler {
        let mut asm = Assembler::new();
        let [claim, pass, group] = [(); 3].map(|()| asm.label());
        let mut claimer = Claimer { asm, filter: self, maps, claim, pass, group };
        let [ipv4, ipv6] = claimer.begin();
        claimer.arp();
        claimer.asm.bind(ipv6);
        claimer.ipv6();
        claimer.asm.bind(ipv4);
        claimer.ipv4();
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
        self.asm.load_map(Reg::R1, map);
        self.asm.mov(Reg::R2, Reg::R10);
        self.asm.alu(Alu::Add, Reg::R2, i32::from(KEY));
        self.asm.call(helper::MAP_LOOKUP_ELEM);
        self.asm.jump_if(Cond::Eq, Reg::R0, 0, or);
    }

    /// Takes note of where the frame is and whether it has a tag. Goes to the labels that it returns, for IPv4 and IPv6, and
    /// on for ARP.
    fn begin(&mut self) -> [Label; 2] {
        let [tagged, untagged, ipv4, ipv6] = [(); 4].map(|()| self.asm.label());
        let asm = &mut self.asm;
        // struct xdp_md: data, data_end, data_meta, ingress_ifindex, rx_queue_index.
        asm.store(Size::U64, Reg::R10, CONTEXT, Reg::R1);
        asm.load(Size::U32, DATA, Reg::R1, 0);
        asm.load(Size::U32, END, Reg::R1, 4);
        asm.load(Size::U32, QUEUE, Reg::R1, 16);
        asm.mov(FRAME, DATA);
        asm.store(Size::U64, Reg::R10, TAGGED, 0);
        self.within(IPV4_END, self.pass);
        self.asm.load(Size::U16, VALUE, FRAME, ETHERTYPE as i16);
        for tag in TAGS {
            self.asm.jump_if(Cond::Eq, VALUE, half(tag), tagged);
        }
        self.asm.jump(untagged);

        self.asm.bind(tagged);
        self.masked(ETH_LEN, VID, [0, 0], self.pass);
        self.asm.store(Size::U64, Reg::R10, TAGGED, 1);
        self.asm.alu(Alu::Add, FRAME, TAG_LEN as i32);
        self.within(IPV4_END, self.pass);
        self.asm.load(Size::U16, VALUE, FRAME, ETHERTYPE as i16);

        self.asm.bind(untagged);
        self.asm.jump_if(Cond::Eq, VALUE, half(IPV4), ipv4);
        self.asm.jump_if(Cond::Eq, VALUE, half(IPV6), ipv6);
        self.asm.jump_if(Cond::Ne, VALUE, half(ARP), self.pass);
        [ipv4, ipv6]
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

    /// A packet to an address that the kernel has, too.
    fn shared4(&mut self) {
        let [datagram, error, fragment] = [(); 3].map(|()| self.asm.label());
        self.byte(IPV4_VIHL, PLAIN, self.pass);
        self.masked(IPV4_FRAGMENT, FRAGMENTED, [0, 0], fragment);
        self.asm.load(Size::U8, VALUE, FRAME, IPV4_PROTOCOL as i16);
        self.asm.jump_if(Cond::Eq, VALUE, i32::from(UDP), datagram);
        self.asm.jump_if(Cond::Ne, VALUE, i32::from(ICMP), self.pass);
        // An error quotes at least eight bytes behind the header that it is about (RFC 792).
        let quoted = IPV4_END + QUOTE;
        self.within(quoted + 20 + UDP_LEN, self.pass);
        self.asm.load(Size::U8, VALUE, FRAME, IPV4_END as i16);
        for kind in ICMP_ERRORS {
            self.asm.jump_if(Cond::Eq, VALUE, i32::from(kind), error);
        }
        self.asm.jump(self.pass);
        self.asm.bind(error);
        self.byte(quoted, PLAIN, self.pass);
        self.byte(quoted + IPV4_PROTOCOL - ETH_LEN, UDP, self.pass);
        // Of a first fragment ports are known.
        self.masked(quoted + IPV4_FRAGMENT - ETH_LEN, OFFSET, [0, 0], self.pass);
        self.port(quoted + 20, Self::key4, &key(ANY4, 0), [self.claim, self.pass]);
        self.asm.bind(fragment);
        self.byte(IPV4_PROTOCOL, UDP, self.pass);
        let later = self.asm.label();
        self.masked(IPV4_FRAGMENT, OFFSET, [0, 0], later);
        self.within(IPV4_END + UDP_LEN, self.pass);
        self.fragments(IPV4_END + UDP_DST, Self::key4, &key(ANY4, 0), (Self::fragment_key4, later));
        self.asm.bind(datagram);
        self.within(IPV4_END + UDP_LEN, self.pass);
        self.port(IPV4_END + UDP_DST, Self::key4, &key(ANY4, 0), [self.claim, self.pass]);
    }

    /// Puts on the stack what fragments of one datagram have in common.
    fn fragment_key4(&mut self) {
        for at in [8, 16, 24] {
            self.asm.store(Size::U64, Reg::R10, KEY + at, 0);
        }
        self.asm.store(Size::U32, Reg::R10, KEY + 32, 0);
        for (size, from, at) in [(Size::U32, IPV4_SRC, 0), (Size::U32, IPV4_DST, 4), (Size::U16, IPV4_ID, 8)]
        {
            self.asm.load(size, VALUE, FRAME, from as i16);
            self.asm.store(size, Reg::R10, KEY + at, VALUE);
        }
    }

    fn fragment_key6(&mut self) {
        for (from, at) in [(IPV6_SRC, 0), (IPV6_SRC + 8, 8), (IPV6_DST, 16), (IPV6_DST + 8, 24)] {
            self.asm.load(Size::U64, VALUE, FRAME, from as i16);
            self.asm.store(Size::U64, Reg::R10, KEY + at, VALUE);
        }
        self.asm.load(Size::U32, VALUE, FRAME, IPV6_ID as i16);
        self.asm.store(Size::U32, Reg::R10, KEY + 32, VALUE);
    }

    /// A first fragment of a datagram to the port at `at`, which decides of all; and at `later` the others. Ends.
    fn fragments(
        &mut self,
        at: usize,
        address: fn(&mut Self),
        any: &[u8; KEY_LEN],
        (datagram, later): (fn(&mut Self), Label),
    ) {
        let [ours, theirs] = [(); 2].map(|()| self.asm.label());
        self.port(at, address, any, [ours, theirs]);
        let fragments = self.maps.fragments;
        let point_to_key = |asm: &mut Assembler| {
            asm.load_map(Reg::R1, fragments);
            asm.mov(Reg::R2, Reg::R10);
            asm.alu(Alu::Add, Reg::R2, i32::from(KEY));
        };
        self.asm.bind(ours);
        datagram(self);
        self.asm.store(Size::U32, Reg::R10, SET_VALUE, 1);
        point_to_key(&mut self.asm);
        self.asm.mov(Reg::R3, Reg::R10);
        self.asm.alu(Alu::Add, Reg::R3, i32::from(SET_VALUE));
        self.asm.mov(Reg::R4, 0);
        self.asm.call(helper::MAP_UPDATE_ELEM);
        self.asm.jump(self.claim);
        self.asm.bind(theirs);
        // One of softnet's may have had the same identification.
        datagram(self);
        point_to_key(&mut self.asm);
        self.asm.call(helper::MAP_DELETE_ELEM);
        self.asm.jump(self.pass);
        self.asm.bind(later);
        datagram(self);
        self.look_up(fragments, self.pass);
        self.asm.jump(self.claim);
    }

    /// Ends: goes to `open` if the port at `at` is open on the address that `address` puts on the stack, or on `any`, and
    /// else to `closed`.
    fn port(&mut self, at: usize, address: fn(&mut Self), any: &[u8; KEY_LEN], [open, closed]: [Label; 2]) {
        let elsewhere = self.asm.label();
        address(self);
        self.asm.load(Size::U16, VALUE, FRAME, at as i16);
        self.asm.store(Size::U16, Reg::R10, KEY + 16, VALUE);
        self.asm.store(Size::U16, Reg::R10, KEY + 18, 0);
        self.look_up(self.maps.ports, elsewhere);
        self.asm.jump(open);
        self.asm.bind(elsewhere);
        for (offset, half) in [(0, 0), (8, 8)] {
            self.asm.mov64(VALUE, long(any, half));
            self.asm.store(Size::U64, Reg::R10, KEY + offset, VALUE);
        }
        self.look_up(self.maps.ports, closed);
        self.asm.jump(open);
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

    /// The same with a scope, if the address is link-local.
    fn scoped_key6(&mut self) {
        let global = self.asm.label();
        self.key6();
        self.masked(IPV6_DST, LINK_LOCAL_MASK, LINK_LOCAL, global);
        self.asm.store(Size::U16, Reg::R10, KEY + 2, half(self.filter.scope.to_be_bytes()));
        self.asm.bind(global);
    }

    /// A packet to an address that the kernel has, too; at `discovery` goes on what asks for one.
    fn shared6(&mut self, discovery: Label) {
        let [datagram, fragment, later] = [(); 3].map(|()| self.asm.label());
        self.asm.load(Size::U8, VALUE, FRAME, IPV6_NEXT as i16);
        self.asm.jump_if(Cond::Eq, VALUE, i32::from(UDP), datagram);
        self.asm.jump_if(Cond::Eq, VALUE, i32::from(FRAGMENT), fragment);
        self.asm.jump_if(Cond::Ne, VALUE, i32::from(ICMPV6), self.pass);
        let quoted = IPV6_END + QUOTE;
        self.within(IPV6_END + 1, self.pass);
        self.asm.load(Size::U8, VALUE, FRAME, ND_TYPE as i16);
        self.asm.jump_if(Cond::Eq, VALUE, i32::from(SOLICITATION), discovery);
        self.asm.jump_if(Cond::Eq, VALUE, 0, self.pass);
        self.asm.jump_if(Cond::Gt, VALUE, i32::from(LAST_ICMPV6_ERROR), self.pass);
        self.within(quoted + 40 + 2, self.pass);
        self.byte(quoted + IPV6_NEXT - ETH_LEN, UDP, self.pass);
        self.port(quoted + 40, Self::scoped_key6, &[0; KEY_LEN], [self.claim, self.pass]);
        self.asm.bind(fragment);
        self.within(FRAGMENT_END, self.pass);
        self.byte(IPV6_END, UDP, self.pass);
        self.masked(IPV6_FRAGMENT, OFFSET6, [0, 0], later);
        self.within(FRAGMENT_END + UDP_LEN, self.pass);
        let datagram_key = (Self::fragment_key6 as fn(&mut Self), later);
        self.fragments(FRAGMENT_END + UDP_DST, Self::scoped_key6, &[0; KEY_LEN], datagram_key);
        self.asm.bind(datagram);
        self.within(IPV6_END + UDP_LEN, self.pass);
        self.port(IPV6_END + UDP_DST, Self::scoped_key6, &[0; KEY_LEN], [self.claim, self.pass]);
    }

    /// What becomes of the frame.
    fn end(&mut self, unbound: XdpAction) {
        let [fits, redirect] = [(); 2].map(|()| self.asm.label());
        let (claim, pass) = (self.claim, self.pass);
        let asm = &mut self.asm;
        asm.bind(claim);
        asm.mov(Reg::R2, DATA);
        asm.alu(Alu::Add, Reg::R2, MAX_LEN as i32 + 1);
        asm.jump_if(Cond::Gt, Reg::R2, END, fits);
        let counted = asm.label();
        asm.store(Size::U32, Reg::R10, KEY, 0);
        self.look_up(self.maps.too_long, counted);
        // Its CPU's own counter: nobody else writes it.
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
