//! What a device takes for softnet, and what it leaves to the kernel.
//!
//! Softnet takes, of frames without VLAN tag:
//! * IPv4 to the interface's MAC address, unless the destination address is the kernel's own on this interface;
//!   softnet's own addresses come first, so an address that both have is softnet's;
//! * ARP requests and replies for one of softnet's addresses, to the interface's MAC address or to all;
//! * on a device that has an IPv6 address, IPv6 to the interface's MAC address in the same way, and neighbour solicitations
//!   for one of softnet's addresses, to the group of those who might have it.
//!
//! Everything else is the kernel's: VLANs, multicast, other MACs, what is cut short; where softnet has no IPv6 address, all
//! of IPv6. So an interface can be taken without taking the machine. What is sent to all nodes is the kernel's too (router
//! advertisements, and what neighbours say unasked): softnet asks its neighbours itself.
//!
//! The rule is written twice, as a Rust function (which says what is meant) and as an XDP program (which the kernel
//! runs); a test holds them against each other over random frames.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use softnet_core::ip::Family;
use softnet_core::ip::v6::addr::link_local;

use crate::bpf::{Alu, Assembler, Cond, Label, Map, Program, Reg, Size, XdpAction, helper};
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
const ICMPV6: u8 = 58;
const SOLICITATION: u8 = 135;
const ARP: [u8; 2] = [0x08, 0x06];
/// ARP for IPv4 (0x0800) over Ethernet (1), RFC 826.
const ARP_IPV4: [u8; 4] = [0, 1, 0x08, 0x00];
const ARP_MAC_IPV4: [u8; 2] = [6, 4];
const REQUEST: [u8; 2] = [0, 1];
const REPLY: [u8; 2] = [0, 2];

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

    /// Whether `frame` is softnet's.
    #[cfg(test)]
    fn claims(&self, frame: &[u8]) -> bool {
        let field = |at: usize, len: usize| &frame[at..at + len];
        let address = |at| Ipv4Addr::from(<[u8; 4]>::try_from(field(at, 4)).unwrap());
        if frame.len() < IPV4_END {
            return false;
        }
        let dst = field(0, 6);
        match <[u8; 2]>::try_from(field(ETHERTYPE, 2)).unwrap() {
            IPV4 => {
                let to = address(IPV4_DST);
                dst == self.mac && self.v4.claims(to)
            }
            IPV6 => {
                let address = |at| Ipv6Addr::from(<[u8; 16]>::try_from(field(at, 16)).unwrap());
                if self.v6.ours.is_empty() || frame.len() < IPV6_END {
                    return false;
                }
                if dst == self.mac {
                    return self.v6.claims(address(IPV6_DST));
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

    /// Loads the rule as a program that leads to `sockets`, by RX queue.
    pub(super) fn load(&self, sockets: &Map) -> SysResult<Program> {
        self.assemble(sockets, XdpAction::Pass).load_xdp("softnet_claim", 0)
    }

    /// The program; `unbound` is what happens to softnet's frames on a queue without a socket.
    fn assemble(&self, sockets: &Map, unbound: XdpAction) -> Assembler {
        // Fields are compared as they lie in memory, so constants are read the same way.
        let word = |bytes: [u8; 4]| i32::from_ne_bytes(bytes);
        let half = |bytes: [u8; 2]| i32::from(u16::from_ne_bytes(bytes));
        let [a, b, c, d, e, f] = self.mac;
        let (mac_low, mac_high) = (word([a, b, c, d]), half([e, f]));
        let (frame, end, queue, value) = (Reg::R6, Reg::R7, Reg::R8, Reg::R3);

        let mut asm = Assembler::new();
        let [ipv4, ipv6, unicast, arp, target, claim, pass] = [(); 7].map(|()| asm.label());
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
        if !self.v6.ours.is_empty() {
            asm.jump_if(Cond::Eq, value, half(IPV6), ipv6);
        }
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

        if !self.v6.ours.is_empty() {
            asm.bind(ipv6);
            self.assemble_ipv6(&mut asm, (frame, end), claim, pass);
        }

        asm.bind(ipv4);
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

    /// The part of it for frames of IPv6: ends at `claim` or `pass`.
    fn assemble_ipv6(&self, asm: &mut Assembler, (frame, end): (Reg, Reg), claim: Label, pass: Label) {
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
        let [unicast, group] = [(); 2].map(|()| asm.label());

        within(asm, IPV6_END);
        asm.load(Size::U16, Reg::R3, frame, 0);
        asm.jump_if(Cond::Ne, Reg::R3, half(&SOLICITED_NODE, 0), unicast);
        asm.load(Size::U8, Reg::R3, frame, 2);
        asm.jump_if(Cond::Eq, Reg::R3, i32::from(SOLICITED_NODE[2]), group);

        asm.bind(unicast);
        asm.load(Size::U32, Reg::R3, frame, 0);
        asm.jump_if32(Cond::Ne, Reg::R3, word(&self.mac, 0), pass);
        asm.load(Size::U16, Reg::R3, frame, 4);
        asm.jump_if(Cond::Ne, Reg::R3, half(&self.mac, 4), pass);
        load(asm, IPV6_DST);
        one_of(asm, &self.v6.ours, claim);
        one_of(asm, &self.v6.kernel, pass);
        asm.jump(claim);

        asm.bind(group);
        within(asm, ND_END);
        asm.load(Size::U8, Reg::R3, frame, IPV6_NEXT as i16);
        asm.jump_if(Cond::Ne, Reg::R3, i32::from(ICMPV6), pass);
        asm.load(Size::U8, Reg::R3, frame, ND_TYPE as i16);
        asm.jump_if(Cond::Ne, Reg::R3, i32::from(SOLICITATION), pass);
        load(asm, ND_TARGET);
        one_of(asm, &self.v6.ours, claim);
        asm.jump(pass);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::test_runner::TestRunner;

    use super::*;
    use crate::testing::net_allowed;

    const MAC: [u8; 6] = [0x02, 0, 0, 0, 0xfe, 0x01];
    const OURS: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
    const KERNEL: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
    const BOTH: Ipv4Addr = Ipv4Addr::new(192, 168, 255, 255);
    const ELSEWHERE: Ipv4Addr = Ipv4Addr::new(8, 8, 8, 8);

    const OURS6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1);
    const KERNEL6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2);
    const BOTH6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 1, 0, 0, 0, 2);
    const ELSEWHERE6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
    const GROUP: [u8; 6] = [0x33, 0x33, 0xff, 0, 0, 1];

    fn filter() -> ClaimFilter {
        let ours = [OURS.into(), BOTH.into(), OURS6.into(), BOTH6.into()];
        let kernel = [BOTH.into(), KERNEL.into(), BOTH6.into(), KERNEL6.into()];
        ClaimFilter::new(MAC, &Claim { addresses: ours.to_vec() }, &kernel)
    }

    fn ipv4_only() -> ClaimFilter {
        ClaimFilter::new(MAC, &Claim { addresses: vec![OURS.into()] }, &[KERNEL.into(), KERNEL6.into()])
    }

    /// An IPv6 frame to `address`; to a group, the question for it.
    fn frame6(dst: [u8; 6], address: Ipv6Addr) -> Vec<u8> {
        let mut frame = vec![0; ND_END + 8];
        frame[..6].copy_from_slice(&dst);
        frame[ETHERTYPE..ETH_HLEN].copy_from_slice(&IPV6);
        frame[ETH_HLEN] = 0x60;
        frame[IPV6_NEXT] = ICMPV6;
        frame[ND_TYPE] = SOLICITATION;
        let at = if dst == MAC { IPV6_DST } else { ND_TARGET };
        frame[at..at + 16].copy_from_slice(&address.octets());
        frame
    }

    fn frame(dst: [u8; 6], ethertype: [u8; 2], address: Ipv4Addr) -> Vec<u8> {
        let mut frame = vec![0; 60];
        frame[..6].copy_from_slice(&dst);
        frame[ETHERTYPE..ETH_HLEN].copy_from_slice(&ethertype);
        if ethertype == ARP {
            frame[ARP_FORMAT..ARP_OPERATION + 2].copy_from_slice(&[0, 1, 8, 0, 6, 4, 0, 1]);
            frame[ARP_TARGET..ARP_END].copy_from_slice(&address.octets());
        } else {
            frame[ETH_HLEN] = 0x45;
            frame[IPV4_DST..IPV4_END].copy_from_slice(&address.octets());
        }
        frame
    }

    #[test]
    fn takes_what_is_softnets_and_leaves_the_rest() {
        let filter = filter();
        let claims = |dst, ethertype, address| filter.claims(&frame(dst, ethertype, address));
        assert!(claims(MAC, IPV4, OURS));
        assert!(claims(MAC, IPV4, BOTH), "softnet wins");
        assert!(claims(MAC, IPV4, ELSEWHERE), "to be forwarded");
        assert!(!claims(MAC, IPV4, KERNEL));
        assert!(!claims([0xff; 6], IPV4, OURS), "broadcast");
        assert!(!claims([1, 0, 0x5e, 0, 0, 1], IPV4, ELSEWHERE), "multicast");
        assert!(!claims([2, 9, 9, 9, 9, 9], IPV4, OURS), "another MAC");
        for dst in [MAC, [0xff; 6]] {
            assert!(claims(dst, ARP, OURS));
            assert!(claims(dst, ARP, BOTH));
            assert!(!claims(dst, ARP, KERNEL));
            assert!(!claims(dst, ARP, ELSEWHERE));
        }
        assert!(!claims([2, 9, 9, 9, 9, 9], ARP, OURS));
        assert!(!claims(MAC, [0x81, 0x00], OURS), "VLAN");

        let mut reply = frame(MAC, ARP, OURS);
        reply[ARP_OPERATION + 1] = 2;
        assert!(filter.claims(&reply), "the answer to our request");
        reply[ARP_OPERATION + 1] = 3;
        assert!(!filter.claims(&reply), "reverse ARP");
        assert!(!filter.claims(&frame(MAC, ARP, OURS)[..ARP_END - 1]));
        assert!(!filter.claims(&frame(MAC, IPV4, OURS)[..IPV4_END - 1]));
        assert!(!filter.claims(&[]));
    }

    #[test]
    fn takes_ipv6_in_the_same_way_where_it_has_an_address_of_it() {
        let filter = filter();
        let claims = |dst, address| filter.claims(&frame6(dst, address));
        let derived: Ipv6Addr = "fe80::ff:fe00:fe01".parse().unwrap();
        for (address, unicast, asked_for) in [
            (OURS6, true, true),
            (BOTH6, true, true),
            (derived, true, true),
            (KERNEL6, false, false),
            (ELSEWHERE6, true, false),
        ] {
            assert_eq!((claims(MAC, address), claims(GROUP, address)), (unicast, asked_for), "{address}");
            assert!(!claims([0x33, 0x33, 0, 0, 0, 1], address), "all nodes");
            assert!(!claims([2, 9, 9, 9, 9, 9], address), "another MAC");
            assert!(!ipv4_only().claims(&frame6(MAC, address)));
            assert!(!ipv4_only().claims(&frame6(GROUP, address)));
        }
        assert!(!filter.claims(&frame6(MAC, OURS6)[..IPV6_END - 1]));
        assert!(!filter.claims(&frame6(GROUP, OURS6)[..ND_END - 1]));
        for (at, value) in [(IPV6_NEXT, 17), (ND_TYPE, 136)] {
            let mut other = frame6(GROUP, OURS6);
            other[at] = value;
            assert!(!filter.claims(&other), "{at}");
        }
    }

    /// Frames that are near the rule's edges more often than chance would have them.
    fn frames() -> impl Strategy<Value = Vec<u8>> {
        let mac = prop_oneof![
            4 => Just(MAC),
            2 => Just([0xff; 6]),
            1 => Just([0xff, 0xff, 0xff, 0xff, 0xfe, 0x01]),
            1 => Just([MAC[0], MAC[1], MAC[2], MAC[3], 0xff, 0xff]),
            1 => any::<[u8; 6]>(),
        ];
        let ethertype = prop_oneof![4 => Just(IPV4), 4 => Just(ARP), 6 => Just(IPV6), 1 => any::<[u8; 2]>()];
        let group = prop_oneof![
            2 => Just(None),
            1 => Just(Some(GROUP)),
            1 => any::<[u8; 2]>().prop_map(|[a, b]| Some([0x33, 0x33, a, b, 0, 1])),
        ];
        // Like one of softnet's or the kernel's, or with a byte of it changed.
        let address6 = (
            prop::sample::select(vec![OURS6, KERNEL6, BOTH6, ELSEWHERE6, link_local(MAC)]),
            prop_oneof![2 => Just(None), 1 => (0usize..16, any::<u8>()).prop_map(Some)],
        );
        let address6 = address6.prop_map(|(address, change)| {
            let mut octets = address.octets();
            if let Some((at, value)) = change {
                octets[at] = value;
            }
            Ipv6Addr::from(octets)
        });
        let address =
            prop_oneof![Just(OURS), Just(KERNEL), Just(BOTH), any::<u32>().prop_map(Ipv4Addr::from)];
        let flaw = prop_oneof![3 => Just(None), 1 => (0usize..78, any::<u8>()).prop_map(Some)];
        (mac, ethertype, (address, address6, group), 0u8..4, 14usize..=86, any::<bool>(), flaw).prop_map(
            |(mac, ethertype, (address, address6, group), operation, len, whole, flaw)| {
                let mut frame = match ethertype {
                    IPV6 => frame6(group.unwrap_or(mac), address6),
                    _ => frame(mac, ethertype, address),
                };
                if ethertype == ARP {
                    frame[ARP_OPERATION + 1] = operation;
                }
                if let Some((byte, value)) = flaw.and_then(|(at, value)| Some((frame.get_mut(at)?, value))) {
                    *byte = value;
                }
                if !whole {
                    frame.truncate(len);
                }
                frame
            },
        )
    }

    #[test]
    fn the_program_does_what_the_model_says() {
        if !net_allowed() {
            return;
        }
        for filter in [filter(), ipv4_only(), ClaimFilter::new(MAC, &Claim::default(), &[])] {
            // No socket is bound here, so what is claimed shows by the fallback action.
            let sockets = Map::xsk(1).unwrap();
            let program = filter.assemble(&sockets, XdpAction::Drop).load_xdp("softnet_claim", 0).unwrap();
            let mut runner = TestRunner::new(ProptestConfig { cases: 2000, ..ProptestConfig::default() });
            runner
                .run(&frames(), |frame| {
                    let (action, _) = program.test_run(&frame).unwrap();
                    let want = if filter.claims(&frame) { XdpAction::Drop } else { XdpAction::Pass };
                    prop_assert_eq!(action, want as u32);
                    Ok(())
                })
                .unwrap();
        }
    }

    #[test]
    fn many_addresses_load() {
        if !net_allowed() {
            return;
        }
        let many = (0..1000u32).flat_map(|i| {
            let v6 = Ipv6Addr::from_bits(0xfd00 << 112 | u128::from(i) << 64 | u128::from(i));
            [IpAddr::V4(i.into()), v6.into()]
        });
        let addresses: Vec<IpAddr> = many.collect();
        let filter = ClaimFilter::new(MAC, &Claim { addresses: addresses.clone() }, &addresses);
        filter.load(&Map::xsk(64).unwrap()).unwrap();
    }
}
