//! What a device takes for softnet, and what it leaves to the kernel.
//!
//! Softnet takes, of frames without VLAN tag:
//! * IPv4 to the interface's MAC address, unless the destination address is the kernel's own on this interface;
//!   softnet's own addresses come first, so an address that both have is softnet's;
//! * ARP requests and replies for one of softnet's addresses, to the interface's MAC address or to all;
//! * on a device that has an IPv6 address, IPv6 to the interface's MAC address in the same way, and neighbour solicitations
//!   for one of softnet's addresses, to the group of those who might have it;
//! * UDP, and what may be fragments of it, in multicast frames to a group that softnet has [joined](super::groups).
//!
//! Everything else is the kernel's: VLANs, other multicast, other MACs, what is cut short; where softnet has no IPv6
//! address, all of IPv6 but its groups. So an interface can be taken without taking the machine. What is sent to all
//! nodes is the kernel's too (router advertisements, and what neighbours say unasked, of which softnet gets
//! [copies](crate::snoop)). So are IGMP and MLD, those to groups of softnet's included, for it is the kernel that answers them. A
//! datagram is softnet's or the kernel's: of a group that softnet has joined, the kernel's own members get nothing by
//! this interface.
//!
//! Groups come and go without another program: they are in a map that the program looks into.
//!
//! The rule is written twice, as a Rust function (which says what is meant) and as an XDP program (which the kernel
//! runs); a test holds them against each other over random frames.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use softnet_core::ip::Family;
use softnet_core::ip::v6::addr::link_local;
use softnet_core::sock::key::addr_of;

use crate::bpf::{Alu, Assembler, Cond, Label, Map, Program, Reg, Set, Size, XdpAction, helper};
use crate::sys_error::SysResult;

/// What of a device's traffic is softnet's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Claim {
    /// Softnet's own addresses on the device. If one is of IPv6, the link-local one that follows from the MAC address is
    /// too.
    pub addresses: Vec<IpAddr>,
}

/// The rule for one device, complete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ClaimFilter {
    mac: [u8; 6],
    v4: Addresses<Ipv4Addr>,
    /// No IPv6 is taken if softnet has no address of it.
    v6: Addresses<Ipv6Addr>,
}

/// Whose the addresses of one family are.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Addresses<A> {
    /// Softnet's.
    ours: Vec<A>,
    /// The kernel's on the interface.
    kernel: Vec<A>,
}

impl<A: Family> Addresses<A> {
    fn new(ours: &[IpAddr], kernel: &[IpAddr]) -> Self {
        let of = |all: &[IpAddr]| all.iter().filter_map(|addr| A::of(*addr)).collect();
        Addresses { ours: of(ours), kernel: of(kernel) }
    }

    /// Whether what is addressed to `addr` is softnet's.
    #[cfg(test)]
    fn claims(&self, addr: A) -> bool {
        self.ours.contains(&addr) || !self.kernel.contains(&addr)
    }
}

const ETH_HLEN: usize = 14;
const IPV4_END: usize = ETH_HLEN + 20;
const ARP_END: usize = ETH_HLEN + 28;
const ETHERTYPE: usize = 12;
const ARP_FORMAT: usize = ETH_HLEN;
const ARP_LENGTHS: usize = ETH_HLEN + 4;
const ARP_OPERATION: usize = ETH_HLEN + 6;
const ARP_TARGET: usize = ETH_HLEN + 24;
const IPV4_PROTOCOL: usize = ETH_HLEN + 9;
const IPV4_DST: usize = ETH_HLEN + 16;

const IPV6_END: usize = ETH_HLEN + 40;
const IPV6_NEXT: usize = ETH_HLEN + 6;
const IPV6_DST: usize = ETH_HLEN + 24;
const ND_TYPE: usize = IPV6_END;
const ND_TARGET: usize = IPV6_END + 8;
const ND_END: usize = ND_TARGET + 16;

const IPV4: [u8; 2] = [0x08, 0x00];
const IPV6: [u8; 2] = [0x86, 0xdd];
/// What MAC addresses of solicited-node groups begin with (RFC 2464 section 7, RFC 4291 section 2.7.1).
const SOLICITED_NODE: [u8; 3] = [0x33, 0x33, 0xff];
/// The bit that is set in the first byte of MAC addresses of many (IEEE 802.3).
const TO_MANY: u8 = 1;
const UDP: u8 = 17;
const FRAGMENT: u8 = 44;
/// What IPv6 addresses of groups begin with (RFC 4291 section 2.7).
const GROUP: u8 = 0xff;
const ICMPV6: u8 = 58;
const SOLICITATION: u8 = 135;
const ARP: [u8; 2] = [0x08, 0x06];
/// ARP for IPv4 (0x0800) over Ethernet (1), RFC 826.
const ARP_IPV4: [u8; 4] = [0, 1, 0x08, 0x00];
const ARP_MAC_IPV4: [u8; 2] = [6, 4];
/// Where on its stack the program has the key that it looks for among the groups.
const KEY: i16 = -16;
const REQUEST: [u8; 2] = [0, 1];
const REPLY: [u8; 2] = [0, 2];

/// What a group is known by among the groups: its address, of IPv4 as IPv6 has it.
pub(super) fn group_key(group: IpAddr) -> [u8; 16] {
    addr_of(group).to_be_bytes()
}

impl ClaimFilter {
    /// For an interface with this MAC address, on which the kernel has the addresses `kernel`.
    pub(super) fn new(mac: [u8; 6], claim: &Claim, kernel: &[IpAddr]) -> Self {
        let v4 = Addresses::new(&claim.addresses, kernel);
        let mut v6 = Addresses::new(&claim.addresses, kernel);
        if !v6.ours.is_empty() {
            v6.ours.push(link_local(mac));
        }
        ClaimFilter { mac, v4, v6 }
    }

    /// Softnet's IPv6 addresses.
    pub(super) fn own_ipv6(&self) -> &[Ipv6Addr] {
        &self.v6.ours
    }

    /// Whether `frame` is softnet's, if it has joined `groups`.
    #[cfg(test)]
    fn claims(&self, frame: &[u8], groups: &[IpAddr]) -> bool {
        let field = |at: usize, len: usize| &frame[at..at + len];
        let address = |at| Ipv4Addr::from(<[u8; 4]>::try_from(field(at, 4)).unwrap());
        if frame.len() < IPV4_END {
            return false;
        }
        let dst = field(0, 6);
        match <[u8; 2]>::try_from(field(ETHERTYPE, 2)).unwrap() {
            IPV4 => {
                let to = address(IPV4_DST);
                match dst[0] & TO_MANY {
                    0 => dst == self.mac && self.v4.claims(to),
                    _ => frame[IPV4_PROTOCOL] == UDP && groups.contains(&to.into()),
                }
            }
            IPV6 => {
                let address = |at| Ipv6Addr::from(<[u8; 16]>::try_from(field(at, 16)).unwrap());
                if frame.len() < IPV6_END {
                    return false;
                }
                let to = address(IPV6_DST);
                if dst[0] & TO_MANY != 0 && [UDP, FRAGMENT].contains(&frame[IPV6_NEXT]) {
                    return groups.contains(&to.into());
                }
                if dst == self.mac {
                    return !self.v6.ours.is_empty() && self.v6.claims(to);
                }
                dst[..3] == SOLICITED_NODE
                    && frame.len() >= ND_END
                    && frame[IPV6_NEXT] == ICMPV6
                    && frame[ND_TYPE] == SOLICITATION
                    && self.v6.ours.contains(&address(ND_TARGET))
            }
            ARP => {
                frame.len() >= ARP_END
                    && (dst == self.mac || dst == [0xff; 6])
                    && field(ARP_FORMAT, 4) == ARP_IPV4
                    && field(ARP_LENGTHS, 2) == ARP_MAC_IPV4
                    && [REQUEST, REPLY].iter().any(|operation| field(ARP_OPERATION, 2) == operation)
                    && self.v4.ours.contains(&address(ARP_TARGET))
            }
            _ => false,
        }
    }

    /// Loads the rule as a program that leads to `sockets`, by RX queue, and looks into `groups` by [`group_key`].
    pub(super) fn load(&self, sockets: &Map, groups: &Set) -> SysResult<Program> {
        self.assemble(sockets, groups, XdpAction::Pass).load_xdp("softnet_claim", 0)
    }

    /// The program; `unbound` is what happens to softnet's frames on a queue without a socket.
    fn assemble(&self, sockets: &Map, groups: &Set, unbound: XdpAction) -> Assembler {
        // Fields are compared as they lie in memory, so constants are read the same way.
        let word = |bytes: [u8; 4]| i32::from_ne_bytes(bytes);
        let half = |bytes: [u8; 2]| i32::from(u16::from_ne_bytes(bytes));
        let [a, b, c, d, e, f] = self.mac;
        let (mac_low, mac_high) = (word([a, b, c, d]), half([e, f]));
        let (frame, end, queue, value) = (Reg::R6, Reg::R7, Reg::R8, Reg::R3);

        let mut asm = Assembler::new();
        let [ipv4, ipv6, unicast, arp, target, to_many, group, claim, pass] = [(); 9].map(|()| asm.label());
        let within = |asm: &mut Assembler, len: usize| {
            asm.mov(Reg::R2, frame);
            asm.alu(Alu::Add, Reg::R2, len as i32);
            asm.jump_if(Cond::Gt, Reg::R2, end, pass);
        };
        let to_mac = |asm: &mut Assembler| {
            asm.load(Size::U32, value, frame, 0);
            asm.jump_if32(Cond::Ne, value, mac_low, pass);
            asm.load(Size::U16, value, frame, 4);
            asm.jump_if(Cond::Ne, value, mac_high, pass);
        };
        let one_of = |asm: &mut Assembler, addresses: &[Ipv4Addr], then| {
            for address in addresses {
                asm.jump_if32(Cond::Eq, value, word(address.octets()), then);
            }
        };

        // struct xdp_md: data, data_end, data_meta, ingress_ifindex, rx_queue_index.
        asm.load(Size::U32, frame, Reg::R1, 0);
        asm.load(Size::U32, end, Reg::R1, 4);
        asm.load(Size::U32, queue, Reg::R1, 16);
        within(&mut asm, IPV4_END);
        asm.load(Size::U16, value, frame, ETHERTYPE as i16);
        asm.jump_if(Cond::Eq, value, half(IPV4), ipv4);
        asm.jump_if(Cond::Eq, value, half(IPV6), ipv6);
        asm.jump_if(Cond::Ne, value, half(ARP), pass);

        within(&mut asm, ARP_END);
        asm.load(Size::U32, value, frame, 0);
        asm.jump_if32(Cond::Ne, value, -1, unicast);
        asm.load(Size::U16, value, frame, 4);
        asm.jump_if(Cond::Eq, value, 0xffff, arp);
        asm.bind(unicast);
        to_mac(&mut asm);
        asm.bind(arp);
        asm.load(Size::U32, value, frame, ARP_FORMAT as i16);
        asm.jump_if32(Cond::Ne, value, word(ARP_IPV4), pass);
        asm.load(Size::U16, value, frame, ARP_LENGTHS as i16);
        asm.jump_if(Cond::Ne, value, half(ARP_MAC_IPV4), pass);
        asm.load(Size::U16, value, frame, ARP_OPERATION as i16);
        asm.jump_if(Cond::Eq, value, half(REQUEST), target);
        asm.jump_if(Cond::Ne, value, half(REPLY), pass);
        asm.bind(target);
        asm.load(Size::U32, value, frame, ARP_TARGET as i16);
        one_of(&mut asm, &self.v4.ours, claim);
        asm.jump(pass);

        asm.bind(ipv6);
        self.assemble_ipv6(&mut asm, (frame, end), [group, claim, pass]);

        asm.bind(to_many);
        asm.load(Size::U8, value, frame, IPV4_PROTOCOL as i16);
        asm.jump_if(Cond::Ne, value, i32::from(UDP), pass);
        asm.load(Size::U32, value, frame, IPV4_DST as i16);
        asm.store(Size::U64, Reg::R10, KEY, 0);
        asm.store(Size::U32, Reg::R10, KEY + 8, word([0, 0, 0xff, 0xff]));
        asm.store(Size::U32, Reg::R10, KEY + 12, value);
        asm.bind(group);
        asm.load_map(Reg::R1, groups);
        asm.mov(Reg::R2, Reg::R10);
        asm.alu(Alu::Add, Reg::R2, i32::from(KEY));
        asm.call(helper::MAP_LOOKUP_ELEM);
        asm.jump_if(Cond::Eq, Reg::R0, 0, pass);
        asm.jump(claim);

        asm.bind(ipv4);
        asm.load(Size::U8, value, frame, 0);
        asm.jump_if(Cond::Set, value, i32::from(TO_MANY), to_many);
        to_mac(&mut asm);
        asm.load(Size::U32, value, frame, IPV4_DST as i16);
        one_of(&mut asm, &self.v4.ours, claim);
        one_of(&mut asm, &self.v4.kernel, pass);

        asm.bind(claim);
        asm.load_map(Reg::R1, sockets);
        asm.mov(Reg::R2, queue);
        asm.mov(Reg::R3, unbound as i32);
        asm.call(helper::REDIRECT_MAP);
        asm.exit();
        asm.bind(pass);
        asm.mov(Reg::R0, XdpAction::Pass as i32);
        asm.exit();
        asm
    }

    /// The part of it for frames of IPv6: ends at `claim` or `pass`, or, with a group's address on the stack, at `group`.
    fn assemble_ipv6(&self, asm: &mut Assembler, (frame, end): (Reg, Reg), [group, claim, pass]: [Label; 3]) {
        // Halves of an address, and room for another's.
        let (high, low, other) = (Reg::R2, Reg::R3, [Reg::R4, Reg::R5]);
        let within = |asm: &mut Assembler, len: usize| {
            asm.mov(Reg::R2, frame);
            asm.alu(Alu::Add, Reg::R2, len as i32);
            asm.jump_if(Cond::Gt, Reg::R2, end, pass);
        };
        let word = |bytes: &[u8], at: usize| i32::from_ne_bytes(std::array::from_fn(|i| bytes[at + i]));
        let half = |bytes: &[u8], at: usize| i32::from(u16::from_ne_bytes([bytes[at], bytes[at + 1]]));
        let load = |asm: &mut Assembler, at: usize| {
            asm.load(Size::U64, high, frame, at as i16);
            asm.load(Size::U64, low, frame, (at + 8) as i16);
        };
        // One branch for each address: of several in a row the verifier would look at every way through all of them.
        let one_of = |asm: &mut Assembler, addresses: &[Ipv6Addr], then| {
            for address in addresses {
                let octets = address.octets();
                for ((to, half), at) in other.into_iter().zip([high, low]).zip([0, 8]) {
                    asm.mov64(to, u64::from_ne_bytes(std::array::from_fn(|i| octets[at + i])));
                    asm.alu(Alu::Xor, to, half);
                }
                asm.alu(Alu::Or, other[0], other[1]);
                asm.jump_if(Cond::Eq, other[0], 0, then);
            }
        };
        let [unicast, datagram] = [(); 2].map(|()| asm.label());

        within(asm, IPV6_END);
        asm.load(Size::U8, Reg::R3, frame, 0);
        asm.alu(Alu::And, Reg::R3, i32::from(TO_MANY));
        asm.jump_if(Cond::Eq, Reg::R3, 0, unicast);
        asm.load(Size::U8, Reg::R3, frame, IPV6_NEXT as i16);
        for next in [UDP, FRAGMENT] {
            asm.jump_if(Cond::Eq, Reg::R3, i32::from(next), datagram);
        }
        if !self.v6.ours.is_empty() {
            asm.jump_if(Cond::Ne, Reg::R3, i32::from(ICMPV6), pass);
            asm.load(Size::U16, Reg::R3, frame, 0);
            asm.jump_if(Cond::Ne, Reg::R3, half(&SOLICITED_NODE, 0), pass);
            asm.load(Size::U8, Reg::R3, frame, 2);
            asm.jump_if(Cond::Ne, Reg::R3, i32::from(SOLICITED_NODE[2]), pass);
            within(asm, ND_END);
            asm.load(Size::U8, Reg::R3, frame, ND_TYPE as i16);
            asm.jump_if(Cond::Ne, Reg::R3, i32::from(SOLICITATION), pass);
            load(asm, ND_TARGET);
            one_of(asm, &self.v6.ours, claim);
        }
        asm.jump(pass);

        asm.bind(datagram);
        // What IPv6 has for addresses of IPv4 is no group of IPv4's.
        asm.load(Size::U8, Reg::R3, frame, IPV6_DST as i16);
        asm.jump_if(Cond::Ne, Reg::R3, i32::from(GROUP), pass);
        load(asm, IPV6_DST);
        asm.store(Size::U64, Reg::R10, KEY, high);
        asm.store(Size::U64, Reg::R10, KEY + 8, low);
        asm.jump(group);

        asm.bind(unicast);
        if self.v6.ours.is_empty() {
            return asm.jump(pass);
        }
        asm.load(Size::U32, Reg::R3, frame, 0);
        asm.jump_if32(Cond::Ne, Reg::R3, word(&self.mac, 0), pass);
        asm.load(Size::U16, Reg::R3, frame, 4);
        asm.jump_if(Cond::Ne, Reg::R3, half(&self.mac, 4), pass);
        load(asm, IPV6_DST);
        one_of(asm, &self.v6.ours, claim);
        one_of(asm, &self.v6.kernel, pass);
        asm.jump(claim);
    }
}

#[cfg(test)]
mod tests;
