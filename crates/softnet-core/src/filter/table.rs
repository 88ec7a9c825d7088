//! The rules compiled: for each value of each field the set of rules that do not object to it, and
//! the match of packets by the intersection of such sets.
//!
//! A set has a bit for each rule, in their order. Immutable; any number of threads may match.

use std::collections::HashMap;

use super::addresses::{AddressClasses, Class};
use super::facts::{Facts, L4};
use super::rule::{Action, Chain, FlowState, Rule, Rules};
use super::{MAX_RULES, NUMBERS};
use crate::ip::FibError;

/// Words of a set at the most.
const MAX_WORDS: usize = MAX_RULES / 64;

/// Sets of rules while they are compiled, each kept once.
pub(super) struct Interner {
    rules: Vec<Rule>,
    words: usize,
    sets: Vec<u64>,
    known: HashMap<Box<[u64]>, u32>,
}

impl Interner {
    /// The rules that `wants` says.
    pub(super) fn bits(&self, wants: impl Fn(&Rule) -> bool) -> Vec<u64> {
        let mut bits = vec![0; self.words];
        for (at, _) in self.rules.iter().enumerate().filter(|(_, rule)| wants(rule)) {
            bits[at / 64] |= 1 << (at % 64);
        }
        bits
    }

    /// The number of the set with these bits.
    pub(super) fn intern(&mut self, bits: &[u64]) -> u32 {
        if let Some(number) = self.known.get(bits) {
            return *number;
        }
        let number = self.known.len() as u32;
        self.sets.extend_from_slice(bits);
        self.known.insert(bits.into(), number);
        number
    }

    fn set(&mut self, wants: impl Fn(&Rule) -> bool) -> u32 {
        let bits = self.bits(wants);
        self.intern(&bits)
    }

    /// The sets of ports, by the lowest port of each range that is alike.
    fn ports(&mut self, of: fn(&Rule) -> &[std::ops::RangeInclusive<u16>]) -> Ports {
        let ranges = self.rules.iter().flat_map(of);
        let ends = ranges.flat_map(|range| [Some(*range.start()), range.end().checked_add(1)]);
        let mut first: Vec<u16> = ends.flatten().chain([0]).collect();
        first.sort_unstable();
        first.dedup();
        let has = |rule: &Rule, port: u16| {
            let named = of(rule).is_empty() || of(rule).iter().any(|range| range.contains(&port));
            named && rule.icmp_type.is_empty()
        };
        let sets = first.iter().map(|port| self.set(|rule| has(rule, *port))).collect();
        Ports { first, sets }
    }
}

/// Sets of rules by ports.
struct Ports {
    first: Vec<u16>,
    sets: Vec<u32>,
}

impl Ports {
    #[inline(always)]
    fn set(&self, port: u16) -> u32 {
        let at = self.first.partition_point(|first| *first <= port);
        self.sets.get(at.wrapping_sub(1)).copied().unwrap_or_default()
    }
}

/// Sets of rules by devices: those of each, and of no device.
struct Devices {
    sets: Vec<u32>,
    none: u32,
}

impl Devices {
    fn new(interner: &mut Interner, of: fn(&Rule) -> &[u16]) -> Self {
        let last = interner.rules.iter().flat_map(of).max().copied();
        let numbers = 0..last.map_or(0, |last| last + 1);
        let has = |rule: &Rule, dev: u16| of(rule).is_empty() || of(rule).contains(&dev);
        Devices {
            sets: numbers.map(|dev| interner.set(|rule| has(rule, dev))).collect(),
            none: interner.set(|rule| of(rule).is_empty()),
        }
    }

    fn set(&self, dev: Option<u16>) -> u32 {
        dev.and_then(|dev| self.sets.get(usize::from(dev)).copied()).unwrap_or(self.none)
    }
}

/// The rules, compiled.
pub(super) struct Table {
    words: usize,
    sets: Vec<u64>,
    pub(super) addresses: AddressClasses,
    chains: [u32; 3],
    input: Devices,
    output: Devices,
    protocols: [u32; 256],
    source_ports: Ports,
    destination_ports: Ports,
    icmp_types: [u32; 256],
    /// All but those that want TCP that opens a connection.
    not_syn: u32,
    /// Those that ask for nothing of the L4 header.
    no_l4: u32,
    all: u32,
    states: [u32; FlowState::COUNT],
    /// Those that ask for nothing but hooks, devices and states.
    plain: u32,
    /// By number: of rules, and policies.
    actions: Box<[Action; NUMBERS]>,
}

/// What is known of all packets of a batch at a hook.
pub(super) struct Candidates {
    bits: [u64; MAX_WORDS],
    /// The policy's number.
    policy: u16,
    /// By state: the number that decides, if nothing else need be looked at.
    pub(super) at_once: [Option<u16>; FlowState::COUNT],
}

impl Table {
    pub(super) fn new(rules: &Rules) -> Result<Self, FibError> {
        let list: Vec<Rule> = rules.rules.iter().take(MAX_RULES).cloned().collect();
        let mut actions = Box::new([Action::Allow; NUMBERS]);
        for (action, rule) in actions.iter_mut().zip(&list) {
            *action = rule.action;
        }
        for chain in Chain::ALL {
            actions[usize::from(chain.policy_number())] = rules.policies[chain as usize];
        }
        let words = list.len().div_ceil(64).max(1);
        let mut interner = Interner { rules: list, words, sets: Vec::new(), known: HashMap::new() };
        let addresses = AddressClasses::new(rules, &mut interner)?;
        let no_l4 = |rule: &Rule| {
            let ports = rule.source_port.is_empty() && rule.destination_port.is_empty();
            ports && rule.icmp_type.is_empty() && !rule.tcp_syn
        };
        let plain = |rule: &Rule| {
            let addresses = rule.source.is_empty() && rule.destination.is_empty();
            addresses && rule.protocol.is_empty() && no_l4(rule)
        };
        let no_ports =
            |rule: &Rule| rule.source_port.is_empty() && rule.destination_port.is_empty() && !rule.tcp_syn;
        let icmp = |rule: &Rule, kind: u8| {
            no_ports(rule) && (rule.icmp_type.is_empty() || rule.icmp_type.contains(&kind))
        };
        let protocol = |rule: &Rule, number: u8| rule.protocol.is_empty() || rule.protocol.contains(&number);
        let asked = |rule: &Rule, state: usize| {
            rule.state.is_empty() || rule.state.iter().any(|asked| *asked as usize == state)
        };
        let by_number = |interner: &mut Interner, wants: &dyn Fn(&Rule, u8) -> bool| {
            std::array::from_fn(|number| interner.set(|rule| wants(rule, number as u8)))
        };
        Ok(Table {
            words,
            addresses,
            chains: Chain::ALL.map(|chain| interner.set(|rule| rule.chains.contains(&chain))),
            input: Devices::new(&mut interner, |rule| &rule.input),
            output: Devices::new(&mut interner, |rule| &rule.output),
            protocols: by_number(&mut interner, &protocol),
            source_ports: interner.ports(|rule| &rule.source_port),
            destination_ports: interner.ports(|rule| &rule.destination_port),
            icmp_types: by_number(&mut interner, &icmp),
            not_syn: interner.set(|rule| !rule.tcp_syn),
            no_l4: interner.set(no_l4),
            all: interner.set(|_| true),
            states: std::array::from_fn(|state| interner.set(|rule| asked(rule, state))),
            plain: interner.set(plain),
            sets: interner.sets,
            actions,
        })
    }

    /// Bytes that it takes.
    pub(super) fn bytes(&self) -> usize {
        size_of::<Self>() + size_of_val(&*self.sets) + self.addresses.bytes()
    }

    #[inline(always)]
    fn set(&self, number: u32) -> &[u64] {
        let at = number as usize * self.words;
        self.sets.get(at..at + self.words).unwrap_or_default()
    }

    /// What a rule, or policy, does.
    #[inline(always)]
    pub(super) fn action(&self, number: u16) -> Action {
        self.actions.get(usize::from(number)).copied().unwrap_or_default()
    }

    /// The rules for packets that are at `chain`, came by `input` and leave by `output`.
    pub(super) fn candidates(&self, chain: Chain, input: Option<u16>, output: Option<u16>) -> Candidates {
        let mut bits = [0; MAX_WORDS];
        let sets = [self.chains[chain as usize], self.input.set(input), self.output.set(output)];
        let [chain_set, input, output] = sets.map(|set| self.set(set));
        for (bits, ((a, b), c)) in bits.iter_mut().zip(chain_set.iter().zip(input).zip(output)) {
            *bits = a & b & c;
        }
        let policy = chain.policy_number();
        let plain = self.set(self.plain);
        let at_once = self.states.map(|state| {
            let may = bits.iter().zip(self.set(state)).map(|(bits, state)| bits & state);
            let first = may.enumerate().find(|(_, word)| *word != 0);
            let Some((at, word)) = first else { return Some(policy) };
            let bit = word.trailing_zeros();
            let is_plain = plain.get(at).is_some_and(|plain| plain >> bit & 1 != 0);
            is_plain.then_some(at as u16 * 64 + bit as u16)
        });
        Candidates { bits, policy, at_once }
    }

    /// The number of the first rule that matches a packet, or of the policy. `class` is that of its
    /// addresses: of its source as a source, of its destination as a destination.
    #[inline(always)]
    pub(super) fn first(
        &self,
        candidates: &Candidates,
        facts: Facts,
        [source, destination]: Class,
        state: FlowState,
    ) -> u16 {
        let l4 = match facts.l4 {
            L4::Other => [self.no_l4, self.all, self.all],
            L4::Icmp(kind) => [self.icmp_types[usize::from(kind)], self.all, self.all],
            L4::Ports(src, dst, syn) => {
                let syn = if syn { self.all } else { self.not_syn };
                [self.source_ports.set(src), self.destination_ports.set(dst), syn]
            }
        };
        let protocol = self.protocols[usize::from(facts.protocol)];
        let sets = [source, destination, protocol, l4[0], l4[1], l4[2], self.states[state as usize]];
        let sets = sets.map(|set| self.set(set));
        for (at, candidates) in candidates.bits.iter().take(self.words).enumerate() {
            let word = sets.iter().fold(*candidates, |word, set| word & set.get(at).copied().unwrap_or(0));
            if word != 0 {
                return at as u16 * 64 + word.trailing_zeros() as u16;
            }
        }
        candidates.policy
    }
}
