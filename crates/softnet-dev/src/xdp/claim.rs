//! What a device takes for softnet, and what it leaves to the kernel.
//!
//! Softnet takes, of frames without VLAN tag:
//! * IPv4 to the interface's MAC address, unless the destination address is the kernel's own on this interface;
//!   softnet's own addresses come first, so an address that both have is softnet's;
//! * ARP requests and replies for one of softnet's addresses, to the interface's MAC address or to all.
//!
//! Everything else is the kernel's: IPv6, VLANs, multicast, other MACs, what is cut short. So an interface can be
//! taken without taking the machine.
//!
//! The rule is written twice, as a Rust function (which says what is meant) and as an XDP program (which the kernel
//! runs); a test holds them against each other over random frames.

use std::net::Ipv4Addr;

use crate::bpf::{Alu, Assembler, Cond, Map, Program, Reg, Size, XdpAction, helper};
use crate::sys_error::SysResult;

/// What of a device's traffic is softnet's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Claim {
    /// Softnet's own addresses on the device.
    pub addresses: Vec<Ipv4Addr>,
}

/// The rule for one device, complete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ClaimFilter {
    pub(super) mac: [u8; 6],
    /// Softnet's addresses.
    pub(super) ours: Vec<Ipv4Addr>,
    /// The kernel's addresses on the interface.
    pub(super) kernel: Vec<Ipv4Addr>,
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

const IPV4: [u8; 2] = [0x08, 0x00];
const ARP: [u8; 2] = [0x08, 0x06];
/// ARP for IPv4 (0x0800) over Ethernet (1), RFC 826.
const ARP_IPV4: [u8; 4] = [0, 1, 0x08, 0x00];
const ARP_MAC_IPV4: [u8; 2] = [6, 4];
const REQUEST: [u8; 2] = [0, 1];
const REPLY: [u8; 2] = [0, 2];

impl ClaimFilter {
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
                dst == self.mac && (self.ours.contains(&to) || !self.kernel.contains(&to))
            }
            ARP => {
                frame.len() >= ARP_END
                    && (dst == self.mac || dst == [0xff; 6])
                    && field(ARP_FORMAT, 4) == ARP_IPV4
                    && field(ARP_LENGTHS, 2) == ARP_MAC_IPV4
                    && [REQUEST, REPLY].iter().any(|operation| field(ARP_OPERATION, 2) == operation)
                    && self.ours.contains(&address(ARP_TARGET))
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
        let [ipv4, unicast, arp, target, claim, pass] = [(); 6].map(|()| asm.label());
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
        one_of(&mut asm, &self.ours, claim);
        asm.jump(pass);

        asm.bind(ipv4);
        to_mac(&mut asm);
        asm.load(Size::U32, value, frame, IPV4_DST as i16);
        one_of(&mut asm, &self.ours, claim);
        one_of(&mut asm, &self.kernel, pass);

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

    fn filter() -> ClaimFilter {
        ClaimFilter { mac: MAC, ours: vec![OURS, BOTH], kernel: vec![BOTH, KERNEL] }
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
        assert!(!claims(MAC, [0x86, 0xdd], OURS), "IPv6");
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

    /// Frames that are near the rule's edges more often than chance would have them.
    fn frames() -> impl Strategy<Value = Vec<u8>> {
        let mac = prop_oneof![
            4 => Just(MAC),
            2 => Just([0xff; 6]),
            1 => Just([0xff, 0xff, 0xff, 0xff, 0xfe, 0x01]),
            1 => Just([MAC[0], MAC[1], MAC[2], MAC[3], 0xff, 0xff]),
            1 => any::<[u8; 6]>(),
        ];
        let ethertype = prop_oneof![4 => Just(IPV4), 4 => Just(ARP), 1 => any::<[u8; 2]>()];
        let address =
            prop_oneof![Just(OURS), Just(KERNEL), Just(BOTH), any::<u32>().prop_map(Ipv4Addr::from)];
        let flaw = prop_oneof![3 => Just(None), 1 => (0usize..42, any::<u8>()).prop_map(Some)];
        (mac, ethertype, address, 0u8..4, 14usize..=60, any::<bool>(), flaw).prop_map(
            |(mac, ethertype, address, operation, len, whole, flaw)| {
                let mut frame = frame(mac, ethertype, address);
                if ethertype == ARP {
                    frame[ARP_OPERATION + 1] = operation;
                }
                if let Some((at, value)) = flaw {
                    frame[at] = value;
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
        for filter in [filter(), ClaimFilter { mac: MAC, ours: vec![], kernel: vec![] }] {
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
        let many = (0..1000u32).map(Ipv4Addr::from).collect::<Vec<_>>();
        let filter = ClaimFilter { mac: MAC, ours: many.clone(), kernel: many };
        filter.load(&Map::xsk(64).unwrap()).unwrap();
    }
}
