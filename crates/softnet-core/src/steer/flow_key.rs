//! A flow by its 5-tuple, and the filter that takes it and nothing else: what accelerated RFS asks
//! a device for.
//!
//! Any thread makes one from a frame that it has. Invariant: frames of one key have one flow hash;
//! fragments, and what has no ports, have no key, so no filter moves a part of their datagrams.

use super::flow::{Flow, dissect};
use super::ntuple::{FlowType, Rule, RuleAction};
use crate::ip::v4::header::protocol;

const BYTES: usize = 40;
const SRC: usize = 0;
const DST: usize = 16;
const PORTS: usize = 32;
const PROTOCOL: usize = 36;
const FAMILY: usize = 37;

/// Addresses (of IPv4 the first 4 bytes of each 16), ports, protocol and family of a flow of TCP or
/// UDP, in network order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowKey([u8; BYTES]);

impl FlowKey {
    /// That of an Ethernet frame; `None` if it is of no flow of TCP or UDP, or a fragment.
    pub fn of(frame: &[u8]) -> Option<Self> {
        Self::of_flow(&dissect(frame)?)
    }

    #[inline]
    pub(super) fn of_flow(flow: &Flow<'_>) -> Option<Self> {
        let mut bytes = [0; BYTES];
        bytes[PORTS..PORTS + 4].copy_from_slice(flow.ports?);
        bytes[PROTOCOL] = flow.protocol;
        if let Some(ends) = bytes.first_chunk_mut() {
            bytes[FAMILY] = flow.ends.write(ends);
        }
        Some(FlowKey(bytes))
    }

    /// The filter that sends the flow to RX queue `queue`, whatever its VLAN.
    pub fn rule(&self, queue: u16) -> Rule {
        let is_tcp = self.0[PROTOCOL] == protocol::TCP;
        let (flow_type, len) = match (self.0[FAMILY], is_tcp) {
            (4, true) => (FlowType::Tcp4, 4),
            (4, false) => (FlowType::Udp4, 4),
            (_, true) => (FlowType::Tcp6, 16),
            (_, false) => (FlowType::Udp6, 16),
        };
        let all = [0xff; 16];
        let part = |at: usize, len: usize| (&self.0[at..at + len], &all[..len]);
        let none = (&[][..], &[][..]);
        let parts = [part(SRC, len), part(DST, len), part(PORTS, 4), none, none, none];
        Rule::new(flow_type, RuleAction::Queue(queue)).with_parts(parts)
    }
}

impl std::fmt::Debug for FlowKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "FlowKey({})", self.rule(0))
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use proptest::prelude::*;

    use super::super::ntuple::{Fields, Matcher};
    use super::*;

    /// An Ethernet frame of UDP or TCP, behind a VLAN tag if so.
    pub(crate) fn frame(v6: bool, tcp: bool, hosts: [u8; 2], ports: [u16; 2], tag: bool) -> Vec<u8> {
        let protocol = if tcp { 6 } else { 17 };
        let mut frame = vec![2; 12];
        if tag {
            frame.extend([0x81, 0, 0, 7]);
        }
        if v6 {
            frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 20, protocol, 64]);
            hosts.iter().for_each(|host| frame.extend([&[0xfd; 15][..], &[*host]].concat()));
        } else {
            frame.extend([8, 0, 0x45, 0, 0, 40, 0, 0, 0, 0, 64, protocol, 0, 0]);
            hosts.iter().for_each(|host| frame.extend([10, 0, 0, *host]));
        }
        ports.iter().for_each(|port| frame.extend(port.to_be_bytes()));
        frame.resize(frame.len() + 16, 0);
        frame
    }

    #[test]
    fn a_flow_in_words() {
        let rule = |v6, tcp| FlowKey::of(&frame(v6, tcp, [1, 2], [5, 53], true)).unwrap().rule(3).to_string();
        let ip4 = "src-ip 10.0.0.1 dst-ip 10.0.0.2 src-port 5 dst-port 53 action 3";
        assert_eq!(rule(false, false), format!("flow-type udp4 {ip4}"));
        assert_eq!(rule(false, true), format!("flow-type tcp4 {ip4}"));
        let [src, dst] = [1, 2].map(|host: u16| format!("{}fd{host:02x}", "fdfd:".repeat(7)));
        let ip6 = format!("src-ip {src} dst-ip {dst} src-port 5 dst-port 53 action 3");
        assert_eq!(rule(true, false), format!("flow-type udp6 {ip6}"));
        assert_eq!(rule(true, true), format!("flow-type tcp6 {ip6}"));
    }

    #[test]
    fn what_has_no_ports_has_no_key() {
        let mut fragment = frame(false, false, [1, 2], [5, 53], false);
        assert!(FlowKey::of(&fragment).is_some());
        fragment[20] = 0x20;
        assert_eq!(FlowKey::of(&fragment), None, "more fragments follow");
        let mut icmp = frame(false, false, [1, 2], [5, 53], false);
        icmp[23] = 1;
        assert_eq!((FlowKey::of(&icmp), FlowKey::of(&[]), FlowKey::of(&[0; 60])), (None, None, None));
    }

    proptest! {
        /// The filter takes the flow's frames and no others, and a key has one hash.
        #[test]
        fn a_filter_takes_its_flow_alone(
            one in (any::<bool>(), any::<bool>(), [0..2u8, 0..2u8], [0..2u16, 0..2u16], any::<bool>()),
            other in (any::<bool>(), any::<bool>(), [0..2u8, 0..2u8], [0..2u16, 0..2u16], any::<bool>()),
        ) {
            let frame = |(v6, tcp, hosts, ports, tag)| frame(v6, tcp, hosts, ports, tag);
            let (one, other) = (frame(one), frame(other));
            let [key, other_key] = [&one, &other].map(|frame| FlowKey::of(frame).unwrap());
            let matcher = Matcher::from(&key.rule(1));
            let takes = |frame: &[u8]| matcher.takes(&Fields::of(&dissect(frame).unwrap()));
            prop_assert!(takes(&one));
            prop_assert_eq!(takes(&other), key == other_key);
            if key == other_key {
                prop_assert_eq!(super::super::flow_hash(&one), super::super::flow_hash(&other));
            }
        }
    }
}
