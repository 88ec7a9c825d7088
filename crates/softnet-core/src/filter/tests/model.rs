//! The compiled rules against a model that asks one rule after the other, and sets against a linear
//! scan.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use proptest::prelude::*;
use proptest::sample::select;

use super::super::facts::{Cut, Facts, L4};
use super::super::table::Table;
use super::super::{Action, Addresses, Chain, FlowState, MAX_RULES, Rule, Rules};
use crate::ip::{Address, IpPrefix, LongestMatch, Prefix};

/// A packet, as the model sees it.
#[derive(Clone, Debug)]
struct Packet {
    chain: Chain,
    input: Option<u16>,
    output: Option<u16>,
    src: IpAddr,
    dst: IpAddr,
    protocol: u8,
    l4: L4,
    state: FlowState,
}

fn has(list: &[Addresses], sets: &[Vec<IpPrefix>], addr: IpAddr) -> bool {
    let one = |addresses: &Addresses| match addresses {
        Addresses::Prefix(prefix) => prefix.contains(addr),
        Addresses::Set(at) => sets[*at].iter().any(|prefix| prefix.contains(addr)),
    };
    list.is_empty() || list.iter().any(one)
}

/// Whether a rule matches, condition by condition.
fn matches(rule: &Rule, sets: &[Vec<IpPrefix>], packet: &Packet) -> bool {
    let dev = |list: &[u16], dev: Option<u16>| list.is_empty() || dev.is_some_and(|dev| list.contains(&dev));
    let l4 = match packet.l4 {
        L4::Other => {
            rule.source_port.is_empty()
                && rule.destination_port.is_empty()
                && rule.icmp_type.is_empty()
                && !rule.tcp_syn
        }
        L4::Icmp(kind) => {
            rule.source_port.is_empty()
                && rule.destination_port.is_empty()
                && !rule.tcp_syn
                && (rule.icmp_type.is_empty() || rule.icmp_type.contains(&kind))
        }
        L4::Ports(src, dst, syn) => {
            let port = |list: &[std::ops::RangeInclusive<u16>], port: u16| {
                list.is_empty() || list.iter().any(|range| range.contains(&port))
            };
            rule.icmp_type.is_empty()
                && port(&rule.source_port, src)
                && port(&rule.destination_port, dst)
                && (syn || !rule.tcp_syn)
        }
    };
    rule.chains.contains(&packet.chain)
        && dev(&rule.input, packet.input)
        && dev(&rule.output, packet.output)
        && has(&rule.source, sets, packet.src)
        && has(&rule.destination, sets, packet.dst)
        && (rule.protocol.is_empty() || rule.protocol.contains(&packet.protocol))
        && (rule.state.is_empty() || rule.state.contains(&packet.state))
        && l4
}

/// The number that the model says.
fn expected(rules: &Rules, packet: &Packet) -> u16 {
    let first = rules.rules.iter().position(|rule| matches(rule, &rules.sets, packet));
    first.map_or(packet.chain.policy_number(), |at| at as u16)
}

/// The number that the compiled rules say.
fn compiled(table: &Table, packet: &Packet) -> u16 {
    let candidates = table.candidates(packet.chain, packet.input, packet.output);
    let class = |addr: IpAddr| match addr {
        IpAddr::V4(addr) => table.addresses.v4.as_ref().map_or(0, |fib| fib.longest_match(addr)),
        IpAddr::V6(addr) => table.addresses.v6.as_ref().map_or(0, |fib| fib.longest_match(addr)),
    };
    let classes = [packet.src, packet.dst].map(|addr| table.addresses.class(class(addr)));
    let facts = Facts { protocol: packet.protocol, l4: packet.l4 };
    let number = table.first(&candidates, facts, [classes[0][0], classes[1][1]], packet.state);
    if let Some(at_once) = candidates.at_once[packet.state as usize] {
        assert_eq!(at_once, number, "what is decided at once");
    }
    number
}

/// Addresses that collide, of either family.
fn addr() -> impl Strategy<Value = IpAddr> {
    let byte = || select(vec![0u8, 1, 10, 127, 128, 255]);
    let v4 = prop::collection::vec(byte(), 4).prop_map(|b| Ipv4Addr::new(b[0], b[1], b[2], b[3]).into());
    let v6 = prop::collection::vec(byte(), 16)
        .prop_map(|b| Ipv6Addr::from(<[u8; 16]>::try_from(b).unwrap()).into());
    prop_oneof![v4, v6]
}

fn prefix() -> impl Strategy<Value = IpPrefix> {
    (addr(), any::<u8>()).prop_map(|(addr, len)| {
        // Short ones, too, or most are of one address.
        let len = if len % 2 == 0 { len % 17 } else { len % (addr.width() + 1) };
        Prefix::containing(addr, len).unwrap()
    })
}

fn range() -> impl Strategy<Value = std::ops::RangeInclusive<u16>> {
    let port = || select(vec![0u16, 1, 22, 53, 80, 443, 1023, 1024, 8080, 65534, 65535]);
    (port(), port()).prop_map(|(a, b)| a.min(b)..=a.max(b))
}

fn few<T: std::fmt::Debug + Clone + 'static>(
    one: impl Strategy<Value = T> + 'static,
) -> impl Strategy<Value = Vec<T>> {
    prop_oneof![2 => Just(Vec::new()), 1 => prop::collection::vec(one, 1..4)]
}

const PROTOCOLS: [u8; 6] = [1, 6, 17, 47, 58, 132];
const DEVICES: [u16; 4] = [0, 1, 5, 900];
const STATES: [FlowState; 5] =
    [FlowState::New, FlowState::Established, FlowState::Related, FlowState::Invalid, FlowState::Untracked];

fn rule(sets: usize) -> impl Strategy<Value = Rule> {
    let addresses = move || {
        few(prop_oneof![
            2 => prefix().prop_map(Addresses::Prefix),
            1 => (0..sets).prop_map(Addresses::Set),
        ])
    };
    let device = || few(select(DEVICES.to_vec()));
    let places = (prop::collection::vec(select(Chain::ALL.to_vec()), 0..4), device(), device());
    let l4 = (few(range()), few(range()), few(select(vec![0u8, 3, 8, 128])), prop::bool::weighted(0.1));
    let rest = (few(select(FlowState::ASKED.to_vec())), select(Action::ALL.to_vec()));
    let all = (places, (addresses(), addresses()), few(select(PROTOCOLS.to_vec())), l4, rest);
    all.prop_map(|((chains, input, output), (source, destination), protocol, l4, (state, action))| {
        let (source_port, destination_port, icmp_type, tcp_syn) = l4;
        Rule {
            chains,
            input,
            output,
            source,
            destination,
            protocol,
            source_port,
            destination_port,
            icmp_type,
            tcp_syn,
            state,
            action,
        }
    })
}

fn rules(most: usize) -> impl Strategy<Value = Rules> {
    let sets = prop::collection::vec(prop::collection::vec(prefix(), 0..20), 3);
    (prop::collection::vec(rule(3), 0..most), sets).prop_map(|(rules, sets)| Rules {
        rules,
        sets,
        policies: [Action::Drop, Action::Allow, Action::Reject],
    })
}

fn packet() -> impl Strategy<Value = Packet> {
    let port = || select(vec![0u16, 1, 2, 22, 53, 80, 443, 1023, 1024, 9000, 65535]);
    let l4 = (port(), port(), any::<bool>(), select(vec![0u8, 3, 8, 11, 128]), any::<bool>());
    let device = || prop::option::of(select(vec![0u16, 1, 2, 5, 900, 901]));
    let place = (select(Chain::ALL.to_vec()), device(), device(), select(STATES.to_vec()));
    let ends = (addr(), addr()).prop_filter("one family", |(src, dst)| src.is_ipv4() == dst.is_ipv4());
    (place, ends, select(PROTOCOLS.to_vec()), l4).prop_map(|(place, (src, dst), protocol, l4)| {
        let ((chain, input, output, state), (sport, dport, syn, kind, fragment)) = (place, l4);
        let l4 = match protocol {
            _ if fragment => L4::Other,
            6 => L4::Ports(sport, dport, syn),
            17 | 132 => L4::Ports(sport, dport, false),
            1 | 58 => L4::Icmp(kind),
            _ => L4::Other,
        };
        Packet { chain, input, output, src, dst, protocol, l4, state }
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]
    #[test]
    fn the_compiled_rules_say_what_each_rule_says(
        rules in rules(12),
        packets in prop::collection::vec(packet(), 40),
    ) {
        let table = Table::new(&rules).unwrap();
        for packet in packets {
            prop_assert_eq!(compiled(&table, &packet), expected(&rules, &packet), "{:?}", packet);
        }
    }

    /// Several words of rules.
    #[test]
    fn many_rules(rules in rules(200), packets in prop::collection::vec(packet(), 20)) {
        let table = Table::new(&rules).unwrap();
        for packet in packets {
            prop_assert_eq!(compiled(&table, &packet), expected(&rules, &packet), "{:?}", packet);
        }
    }

    #[test]
    fn sets_have_what_a_scan_finds(
        prefixes in prop::collection::vec(prefix(), 0..200),
        addrs in prop::collection::vec(addr(), 50),
    ) {
        let source = vec![Addresses::Set(0)];
        let rule = Rule { chains: Chain::ALL.into(), source, action: Action::Drop, ..Rule::default() };
        let rules = Rules { rules: vec![rule], sets: vec![prefixes], ..Rules::default() };
        let table = Table::new(&rules).unwrap();
        let near = rules.sets[0].iter().flat_map(|prefix| [prefix.addr(), prefix.last()]);
        for src in addrs.into_iter().chain(near) {
            let packet = Packet {
                chain: Chain::Input,
                input: None,
                output: None,
                src,
                dst: src,
                protocol: 17,
                l4: L4::Other,
                state: FlowState::New,
            };
            let within = rules.sets[0].iter().any(|prefix| prefix.contains(src));
            prop_assert_eq!(compiled(&table, &packet) == 0, within, "{}", src);
        }
    }

    #[test]
    fn any_bytes_are_read(mut bytes in prop::collection::vec(any::<u8>(), 0..120), first in select(vec![0x45u8, 0x46, 0x60, 0])) {
        if let Some(byte) = bytes.first_mut() {
            *byte = first;
        }
        super::super::fuzz(&bytes);
    }
}

#[test]
fn a_hundred_thousand_prefixes_of_each_family() {
    let v4 =
        (0..100_000u32).map(|n| Prefix::containing(IpAddr::V4((n * 37_991 + 1).into()), 24 + (n % 9) as u8));
    let v6 = (0..100_000u128)
        .map(|n| Prefix::containing(IpAddr::V6((0x2001 << 112 | (n * 0x1_0000_0000_0001) << 40).into()), 64));
    let set: Vec<IpPrefix> = v4.chain(v6).map(Result::unwrap).collect();
    let source = vec![Addresses::Set(0)];
    let rule = Rule { chains: Chain::ALL.into(), source, action: Action::Drop, ..Rule::default() };
    let rules = Rules { rules: vec![rule], sets: vec![set.clone()], ..Rules::default() };
    let table = Table::new(&rules).unwrap();
    let of = |src: IpAddr| {
        let (chain, state) = (Chain::Forward, FlowState::Untracked);
        let packet =
            Packet { chain, input: None, output: None, src, dst: src, protocol: 17, l4: L4::Other, state };
        compiled(&table, &packet) == 0
    };
    assert!(set.iter().all(|prefix| of(prefix.addr()) && of(prefix.last())));
    assert!(!of("8.8.8.8".parse().unwrap()) || set.iter().any(|p| p.contains("8.8.8.8".parse().unwrap())));
    assert!(!of("2002::1".parse().unwrap()));
    // Two classes: in it, and not.
    assert!(table.bytes() < 256 << 20, "{}", table.bytes());
}

#[test]
fn there_are_no_more_rules_than_there_may_be() {
    let rule = |action| Rule { chains: Chain::ALL.into(), protocol: vec![6], action, ..Rule::default() };
    let mut rules = Rules { rules: vec![rule(Action::Drop); MAX_RULES - 1], ..Rules::default() };
    rules.rules.iter_mut().for_each(|rule| rule.protocol = vec![17]);
    rules.rules.extend([rule(Action::Reject), rule(Action::Drop)]);
    let table = Table::new(&rules).unwrap();
    let src = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let (chain, state, l4) = (Chain::Forward, FlowState::New, L4::Ports(1, 2, true));
    let packet = Packet { chain, input: None, output: None, src, dst: src, protocol: 6, l4, state };
    assert_eq!(compiled(&table, &packet), MAX_RULES as u16 - 1);
    assert_eq!(table.action(MAX_RULES as u16 - 1), Action::Reject);
}

fn v4(protocol: u8, fragment: u16, payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x45, 0, 0, 0, 0, 0, 0, 0, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
    packet[6..8].copy_from_slice(&fragment.to_be_bytes());
    packet.extend(payload);
    packet
}

fn v6(next: u8, payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x60, 0, 0, 0, 0, payload.len() as u8, next, 64];
    packet.extend([0xfd; 32]);
    packet.extend(payload);
    packet
}

#[test]
fn fragments_have_ports_only_if_they_have() {
    let tcp = [0, 22, 0, 80, 0, 0, 0, 0, 0, 0, 0, 0, 0x50, 2, 0, 0, 0, 0, 0, 0];
    let udp = [0, 53, 0, 99, 0, 8, 0, 0];
    let ports = |protocol, src, dst, syn| Ok(Facts { protocol, l4: L4::Ports(src, dst, syn) });
    let none = |protocol| Ok(Facts { protocol, l4: L4::Other });
    for (packet, facts) in [
        (v4(6, 0, &tcp), ports(6, 22, 80, true)),
        (v4(17, 0, &udp), ports(17, 53, 99, false)),
        (v4(1, 0, &[8, 0, 0, 0, 0, 0, 0, 0]), Ok(Facts { protocol: 1, l4: L4::Icmp(8) })),
        // The first one, and later ones.
        (v4(6, 0x2000, &tcp), ports(6, 22, 80, true)),
        (v4(6, 0x2003, &tcp), none(6)),
        (v4(17, 0x0001, &udp), none(17)),
        (v4(1, 0x0001, &udp), none(1)),
        // Too short to be judged (RFC 1858), and what could overwrite the flags (RFC 3128).
        (v4(6, 0x2000, &tcp[..16]), Err(Cut)),
        (v4(6, 0x0001, &tcp), Err(Cut)),
        (v4(6, 0, &tcp[..19]), Err(Cut)),
        (v4(17, 0x2000, &udp[..7]), Err(Cut)),
        (v4(17, 0, &[]), Err(Cut)),
        (v4(47, 0, &[]), none(47)),
        (v6(6, &tcp), ports(6, 22, 80, true)),
        (v6(44, &[&[6, 0, 0, 1, 0, 0, 0, 0][..], &tcp].concat()), ports(6, 22, 80, true)),
        (v6(44, &[&[6, 0, 0, 17, 0, 0, 0, 0][..], &tcp].concat()), none(6)),
        (v6(44, &[&[6, 0, 0, 8, 0, 0, 0, 0][..], &tcp].concat()), Err(Cut)),
        (v6(44, &[&[6, 0, 0, 1, 0, 0, 0, 0][..], &tcp[..12]].concat()), Err(Cut)),
        // Behind options, in a fragment and not.
        (v6(60, &[&[17, 0, 1, 4, 0, 0, 0, 0][..], &udp].concat()), ports(17, 53, 99, false)),
        (
            v6(44, &[&[60, 0, 0, 1, 0, 0, 0, 0][..], &[17, 0, 1, 4, 0, 0, 0, 0], &udp].concat()),
            ports(17, 53, 99, false),
        ),
        (v6(44, &[&[60, 0, 0, 1, 0, 0, 0, 0][..], &[17, 9, 1, 4, 0, 0, 0, 0], &udp].concat()), Err(Cut)),
        (v6(58, &[128, 0, 0, 0, 0, 0, 0, 0]), Ok(Facts { protocol: 58, l4: L4::Icmp(128) })),
        (v6(59, &[]), none(59)),
        (vec![], Err(Cut)),
    ] {
        assert_eq!(Facts::of_packet(&packet), facts, "{packet:x?}");
        super::super::fuzz(&packet);
    }
}
