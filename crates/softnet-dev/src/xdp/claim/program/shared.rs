//! What of an address that the kernel has, too, is softnet's: datagrams and segments to open ports,
//! fragments of datagrams, errors about them.
//!
//! A first fragment has the ports and decides for those that follow, as long as a receiver would
//! wait for them: so the identification of a datagram that is long over says nothing of one that
//! has it anew.

use super::super::layout::*;
use super::{Claimer, FRAME, KEY, TIME, VALUE, half, long};
use crate::bpf::{Alu, Assembler, Cond, Label, Reg, Size, helper};
use crate::xdp::ports::ANY4;

/// The address of no address in particular, as it lies in a key.
const ANY4_KEY: [u8; 16] = ANY4.to_be_bytes();
const ANY6_KEY: [u8; 16] = [0; 16];

impl Claimer<'_> {
    /// A packet to an address that the kernel has, too.
    pub(super) fn shared4(&mut self) {
        let [to_port, error, fragment, ports] = [(); 4].map(|()| self.asm.label());
        self.byte(IPV4_VIHL, PLAIN, self.pass);
        self.masked(IPV4_FRAGMENT, FRAGMENTED, [0, 0], fragment);
        self.asm.load(Size::U8, VALUE, FRAME, IPV4_PROTOCOL as i16);
        for protocol in [UDP, TCP] {
            self.asm.jump_if(Cond::Eq, VALUE, i32::from(protocol), to_port);
        }
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
        // Of a first fragment ports are known.
        self.masked(quoted + IPV4_FRAGMENT - ETH_LEN, OFFSET, [0, 0], self.pass);
        let of = quoted + IPV4_PROTOCOL - ETH_LEN;
        self.has_ports(of, ports);
        self.asm.bind(ports);
        self.port((of, quoted + 20), Self::key4, &ANY4_KEY, [self.claim, self.pass]);
        self.asm.bind(fragment);
        self.byte(IPV4_PROTOCOL, UDP, self.pass);
        let later = self.asm.label();
        self.masked(IPV4_FRAGMENT, OFFSET, [0, 0], later);
        self.within(IPV4_END + UDP_LEN, self.pass);
        let port = (IPV4_PROTOCOL, IPV4_END + PORT_DST);
        self.fragments(port, Self::key4, &ANY4_KEY, (Self::fragment_key4, later, LIFETIME4));
        self.asm.bind(to_port);
        self.within(IPV4_END + UDP_LEN, self.pass);
        self.port(port, Self::key4, &ANY4_KEY, [self.claim, self.pass]);
    }

    /// Goes to `then` if the protocol whose number is at `at` has ports, and else passes the frame.
    fn has_ports(&mut self, at: usize, then: Label) {
        self.asm.load(Size::U8, VALUE, FRAME, at as i16);
        self.asm.jump_if(Cond::Eq, VALUE, i32::from(UDP), then);
        self.asm.jump_if(Cond::Ne, VALUE, i32::from(TCP), self.pass);
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

    /// A first fragment of a datagram to the port at `at`, which decides of all; and at `later` the
    /// others. Ends.
    fn fragments(
        &mut self,
        at: (usize, usize),
        address: fn(&mut Self),
        any: &[u8; 16],
        (datagram, later, lifetime): (fn(&mut Self), Label, u64),
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
        self.asm.call(helper::KTIME_GET_NS);
        self.asm.store(Size::U64, Reg::R10, TIME, Reg::R0);
        point_to_key(&mut self.asm);
        self.asm.mov(Reg::R3, Reg::R10);
        self.asm.alu(Alu::Add, Reg::R3, i32::from(TIME));
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
        // Read before the clock is, so that it is not the later of the two.
        self.asm.load(Size::U64, Reg::R1, Reg::R0, 0);
        self.asm.store(Size::U64, Reg::R10, TIME, Reg::R1);
        self.asm.call(helper::KTIME_GET_NS);
        self.asm.load(Size::U64, Reg::R1, Reg::R10, TIME);
        self.asm.alu(Alu::Sub, Reg::R0, Reg::R1);
        self.asm.mov64(Reg::R1, lifetime);
        self.asm.jump_if(Cond::Gt, Reg::R0, Reg::R1, self.pass);
        self.asm.jump(self.claim);
    }

    /// Ends: goes to `open` if the port at `at`, of the protocol whose number is at `of`, is open on the
    /// address that `address` puts on the stack, or on `any`, and else to `closed`.
    fn port(
        &mut self,
        (of, at): (usize, usize),
        address: fn(&mut Self),
        any: &[u8; 16],
        [open, closed]: [Label; 2],
    ) {
        let elsewhere = self.asm.label();
        address(self);
        for (size, from, to) in [(Size::U16, at, 16), (Size::U8, of, 18)] {
            self.asm.load(size, VALUE, FRAME, from as i16);
            self.asm.store(size, Reg::R10, KEY + to, VALUE);
        }
        self.asm.store(Size::U8, Reg::R10, KEY + 19, 0);
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

    /// The same with a scope, if the address is link-local.
    fn scoped_key6(&mut self) {
        let global = self.asm.label();
        self.key6();
        self.masked(IPV6_DST, LINK_LOCAL_MASK, LINK_LOCAL, global);
        self.asm.store(Size::U16, Reg::R10, KEY + 2, half(self.filter.scope.to_be_bytes()));
        self.asm.bind(global);
    }

    /// A packet to an address that the kernel has, too; at `discovery` goes on what asks for one.
    pub(super) fn shared6(&mut self, discovery: Label) {
        let [to_port, fragment, later, ports] = [(); 4].map(|()| self.asm.label());
        self.asm.load(Size::U8, VALUE, FRAME, IPV6_NEXT as i16);
        for protocol in [UDP, TCP] {
            self.asm.jump_if(Cond::Eq, VALUE, i32::from(protocol), to_port);
        }
        self.asm.jump_if(Cond::Eq, VALUE, i32::from(FRAGMENT), fragment);
        self.asm.jump_if(Cond::Ne, VALUE, i32::from(ICMPV6), self.pass);
        let quoted = IPV6_END + QUOTE;
        self.within(IPV6_END + 1, self.pass);
        self.asm.load(Size::U8, VALUE, FRAME, ND_TYPE as i16);
        self.asm.jump_if(Cond::Eq, VALUE, i32::from(SOLICITATION), discovery);
        self.asm.jump_if(Cond::Eq, VALUE, 0, self.pass);
        self.asm.jump_if(Cond::Gt, VALUE, i32::from(LAST_ICMPV6_ERROR), self.pass);
        self.within(quoted + 40 + 2, self.pass);
        let of = quoted + IPV6_NEXT - ETH_LEN;
        self.has_ports(of, ports);
        self.asm.bind(ports);
        self.port((of, quoted + 40), Self::scoped_key6, &ANY6_KEY, [self.claim, self.pass]);
        self.asm.bind(fragment);
        self.within(FRAGMENT_END, self.pass);
        self.byte(IPV6_END, UDP, self.pass);
        self.masked(IPV6_FRAGMENT, OFFSET6, [0, 0], later);
        self.within(FRAGMENT_END + UDP_LEN, self.pass);
        let datagram_key = (Self::fragment_key6 as fn(&mut Self), later, LIFETIME6);
        let port = (IPV6_END, FRAGMENT_END + PORT_DST);
        self.fragments(port, Self::scoped_key6, &ANY6_KEY, datagram_key);
        self.asm.bind(to_port);
        self.within(IPV6_END + UDP_LEN, self.pass);
        self.port((IPV6_NEXT, IPV6_END + PORT_DST), Self::scoped_key6, &ANY6_KEY, [self.claim, self.pass]);
    }
}
