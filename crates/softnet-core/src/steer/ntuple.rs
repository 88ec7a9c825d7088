//! Filters of a device, in the words of `ethtool -N`: which packets go to an RX queue, to an RSS
//! context, or nowhere, whatever the hash says.
//!
//! A filter is a value and a mask over what a frame says of itself, so that looking at one is six
//! comparisons, whatever it asks for. Control threads make them; an [`RxClass`](super::RxClass)
//! looks at them. Invariant: no part of a filter asks for what its flow type does not have; a
//! fragment has no ports, and is never one that a filter by port takes.

use std::fmt::{self, Write};
use std::net::IpAddr;
use std::str::FromStr;

use super::flow::Flow;
use super::words::{WordError, Words, wrong};
use crate::ip::v4::header::protocol;

/// Places for filters that a device has; the filter with the lowest that takes a packet decides.
pub const LOCATIONS: u32 = 1024;

/// Places behind those, for filters of single flows, which accelerated RFS sets.
pub const FLOW_LOCATIONS: u32 = 256;

/// What a frame says of itself, in one place: both addresses (each 16 bytes; of IPv4 the first 4),
/// ports, protocol, TOS or traffic class, VLAN tag, then whether it is IPv4 or IPv6, has ports, has
/// a tag.
const BYTES: usize = 48;
const SRC: usize = 0;
const DST: usize = 16;
const SRC_PORT: usize = 32;
const DST_PORT: usize = 34;
const PROTOCOL: usize = 36;
const TOS: usize = 37;
const VLAN: usize = 38;
const FAMILY: usize = 40;
const HAS_PORTS: usize = 41;
const HAS_VLAN: usize = 42;

/// A frame, to be compared with filters.
#[derive(Clone, Copy)]
pub(super) struct Fields([u64; BYTES / 8]);

fn pack(bytes: [u8; BYTES]) -> [u64; BYTES / 8] {
    std::array::from_fn(|i| bytes[i * 8..].first_chunk().map_or(0, |chunk| u64::from_ne_bytes(*chunk)))
}

impl Fields {
    pub(super) fn of(flow: &Flow<'_>) -> Self {
        let mut bytes = [0; BYTES];
        if let Some(ends) = bytes.first_chunk_mut() {
            bytes[FAMILY] = flow.ends.write(ends);
        }
        if let Some(ports) = flow.ports {
            bytes[SRC_PORT..PROTOCOL].copy_from_slice(ports);
            bytes[HAS_PORTS] = 1;
        }
        bytes[PROTOCOL] = flow.protocol;
        bytes[TOS] = flow.tos;
        if let Some(vlan) = flow.vlan {
            bytes[VLAN..FAMILY].copy_from_slice(&vlan.to_be_bytes());
            bytes[HAS_VLAN] = 1;
        }
        Fields(pack(bytes))
    }
}

/// What becomes of a packet that a filter takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleAction {
    /// It goes to this RX queue.
    Queue(u16),
    /// It goes to the queue that the table of this RSS context says.
    Context(u32),
    /// It is dropped.
    Drop,
}

/// The flow types that filters are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowType {
    /// IPv4, whatever the protocol.
    Ip4,
    /// TCP over IPv4.
    Tcp4,
    /// UDP over IPv4.
    Udp4,
    /// IPv6, whatever the protocol.
    Ip6,
    /// TCP over IPv6.
    Tcp6,
    /// UDP over IPv6.
    Udp6,
}

impl FlowType {
    /// All of them.
    pub const ALL: [FlowType; 6] =
        [FlowType::Ip4, FlowType::Tcp4, FlowType::Udp4, FlowType::Ip6, FlowType::Tcp6, FlowType::Udp6];

    /// Its name.
    pub const fn name(self) -> &'static str {
        ["ip4", "tcp4", "udp4", "ip6", "tcp6", "udp6"][self as usize]
    }

    /// Whether it is of IPv6.
    pub const fn is_v6(self) -> bool {
        self as usize >= 3
    }

    /// The protocol above IP, if that is said.
    pub const fn protocol(self) -> Option<u8> {
        match self {
            FlowType::Tcp4 | FlowType::Tcp6 => Some(protocol::TCP),
            FlowType::Udp4 | FlowType::Udp6 => Some(protocol::UDP),
            FlowType::Ip4 | FlowType::Ip6 => None,
        }
    }

    const fn address_len(self) -> usize {
        if self.is_v6() { 16 } else { 4 }
    }
}

/// A filter: `flow-type udp4 dst-port 53 action 2`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Rule {
    flow_type: FlowType,
    value: [u8; BYTES],
    /// Bits that count.
    mask: [u8; BYTES],
    /// What becomes of what it takes.
    pub action: RuleAction,
}

/// A part of a filter, in network order: its value, and which bits of it count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part<'a> {
    /// The value.
    pub value: &'a [u8],
    /// Bits that count; all 0 if the part was not given.
    pub mask: &'a [u8],
}

impl Part<'_> {
    /// Whether it was given.
    pub fn is_given(&self) -> bool {
        self.mask.iter().any(|byte| *byte != 0)
    }
}

/// A part in words: its name, where it is, how long, and how it is written.
struct Word {
    name: &'static str,
    at: usize,
    len: usize,
    is_address: bool,
}

impl FlowType {
    fn words(self) -> [Word; 7] {
        let address = |name, at| Word { name, at, len: self.address_len(), is_address: true };
        let number = |name, at, len| Word { name, at, len, is_address: false };
        [
            address("src-ip", SRC),
            address("dst-ip", DST),
            number(if self.is_v6() { "tclass" } else { "tos" }, TOS, 1),
            number("l4proto", PROTOCOL, 1),
            number("src-port", SRC_PORT, 2),
            number("dst-port", DST_PORT, 2),
            number("vlan", VLAN, 2),
        ]
    }
}

impl Rule {
    /// One that takes all of a flow type.
    pub fn new(flow_type: FlowType, action: RuleAction) -> Self {
        let (mut value, mut mask) = ([0; BYTES], [0; BYTES]);
        (value[FAMILY], mask[FAMILY]) = (if flow_type.is_v6() { 6 } else { 4 }, 0xff);
        if let Some(protocol) = flow_type.protocol() {
            (value[PROTOCOL], mask[PROTOCOL]) = (protocol, 0xff);
        }
        Rule { flow_type, value, mask, action }
    }

    /// Which packets it is for.
    pub fn flow_type(&self) -> FlowType {
        self.flow_type
    }

    fn part(&self, at: usize, len: usize) -> Part<'_> {
        Part { value: &self.value[at..at + len], mask: &self.mask[at..at + len] }
    }

    /// The source address.
    pub fn src(&self) -> Part<'_> {
        self.part(SRC, self.flow_type.address_len())
    }

    /// The destination address.
    pub fn dst(&self) -> Part<'_> {
        self.part(DST, self.flow_type.address_len())
    }

    /// Source and destination port.
    pub fn ports(&self) -> Part<'_> {
        self.part(SRC_PORT, 4)
    }

    /// TOS, or traffic class.
    pub fn tos(&self) -> Part<'_> {
        self.part(TOS, 1)
    }

    /// The protocol above IP.
    pub fn protocol(&self) -> Part<'_> {
        self.part(PROTOCOL, 1)
    }

    /// The outermost VLAN tag.
    pub fn vlan(&self) -> Part<'_> {
        self.part(VLAN, 2)
    }

    /// The same with the part at `at` given.
    fn set(&mut self, at: usize, value: &[u8], mask: &[u8]) {
        for (i, (value, mask)) in value.iter().zip(mask).enumerate() {
            (self.value[at + i], self.mask[at + i]) = (value & mask, *mask);
        }
        let with = [(SRC_PORT..PROTOCOL, HAS_PORTS), (VLAN..FAMILY, HAS_VLAN)];
        for (parts, has) in with {
            if self.mask[parts].iter().any(|byte| *byte != 0) {
                (self.value[has], self.mask[has]) = (1, 0xff);
            }
        }
    }

    /// The same from parts as a driver has them: source, destination, ports, TOS, protocol, VLAN
    /// tag, each with the bits that count; what is of no length is not given.
    pub fn with_parts(mut self, parts: [(&[u8], &[u8]); 6]) -> Self {
        let at = [SRC, DST, SRC_PORT, TOS, PROTOCOL, VLAN];
        let len = [self.flow_type.address_len(), self.flow_type.address_len(), 4, 1, 1, 2];
        for ((at, len), (value, mask)) in at.into_iter().zip(len).zip(parts) {
            if value.len() == len && mask.len() == len {
                self.set(at, value, mask);
            }
        }
        self
    }
}

/// A filter as packets are compared with it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Matcher {
    value: [u64; BYTES / 8],
    mask: [u64; BYTES / 8],
}

impl From<&Rule> for Matcher {
    fn from(rule: &Rule) -> Self {
        Matcher { value: pack(rule.value), mask: pack(rule.mask) }
    }
}

impl Matcher {
    #[inline]
    pub(super) fn takes(&self, fields: &Fields) -> bool {
        let parts = fields.0.iter().zip(&self.value).zip(&self.mask);
        parts.fold(0, |differs, ((field, value), mask)| differs | (field ^ value) & mask) == 0
    }
}

/// What is wanted of a device's filters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RuleOrder {
    /// A filter is to be added.
    Insert {
        /// The filter.
        rule: Rule,
        /// Where; without it, at the last place that is free.
        location: Option<u32>,
    },
    /// The filter at a place is to be deleted.
    Delete(u32),
}

const EXPECTED: &str = "flow-type or delete";

impl FromStr for RuleOrder {
    type Err = WordError;

    fn from_str(text: &str) -> Result<Self, WordError> {
        let mut words = Words::new(text);
        let order = match words.next() {
            Some("delete") => RuleOrder::Delete(words.parsed("delete", "the location of a filter")?),
            Some("flow-type") => insert(&mut words)?,
            found => return Err(wrong("", EXPECTED, found)),
        };
        match words.next() {
            Some(word) => Err(wrong("", "nothing more", Some(word))),
            None => Ok(order),
        }
    }
}

fn insert(words: &mut Words<'_>) -> Result<RuleOrder, WordError> {
    let named = |name: &str| FlowType::ALL.into_iter().find(|flow_type| flow_type.name() == name);
    let flow_type = words.value("flow-type", "ip4, tcp4, udp4, ip6, tcp6 or udp6", named)?;
    let mut rule = Rule::new(flow_type, RuleAction::Drop);
    let (mut action, mut location) = (None, None);
    while let Some(word) = words.next() {
        match word {
            "action" => {
                action = Some(words.value(
                    word,
                    "the number of an RX queue, or -1 to drop",
                    |word| match word {
                        "-1" => Some(RuleAction::Drop),
                        queue => queue.parse().ok().map(RuleAction::Queue),
                    },
                )?);
            }
            "context" => {
                action = Some(RuleAction::Context(words.parsed(word, "the number of an RSS context")?));
            }
            "loc" => location = Some(words.parsed(word, "a location")?),
            _ => part(&mut rule, word, words)?,
        }
    }
    let Some(action) = action else {
        return Err(wrong("", "action or context at the end", None));
    };
    rule.action = action;
    Ok(RuleOrder::Insert { rule, location })
}

/// Reads a part: its value, and its mask if there is one.
fn part(rule: &mut Rule, word: &str, words: &mut Words<'_>) -> Result<(), WordError> {
    let flow_type = rule.flow_type;
    let all = flow_type.words();
    let fixed = |known: &&Word| known.at != PROTOCOL || flow_type.protocol().is_none();
    let Some(known) = all.iter().filter(fixed).find(|known| known.name == word) else {
        let names: Vec<&str> = all.iter().filter(fixed).map(|known| known.name).collect();
        return Err(wrong("", &format!("{}, action, context or loc", names.join(", ")), Some(word)));
    };
    let value = bytes(known, flow_type, words)?;
    // As `ethtool` has it: bits that are set in what is behind `m` do not count.
    let ignored = if words.takes("m") { bytes(known, flow_type, words)? } else { vec![0; known.len] };
    let counts: Vec<u8> = ignored.iter().map(|byte| !byte).collect();
    rule.set(known.at, &value, &counts);
    Ok(())
}

/// A value of a part, or the mask of one, in network order.
fn bytes(part: &Word, flow_type: FlowType, words: &mut Words<'_>) -> Result<Vec<u8>, WordError> {
    if !part.is_address {
        let number = words.number(part.name, if part.len == 1 { 0xff } else { 0xffff })?;
        return Ok(number.to_be_bytes()[4 - part.len..].to_vec());
    }
    let expected = if flow_type.is_v6() { "an IPv6 address" } else { "an IPv4 address" };
    words.value(part.name, expected, |word| match (word.parse().ok()?, flow_type.is_v6()) {
        (IpAddr::V4(addr), false) => Some(addr.octets().to_vec()),
        (IpAddr::V6(addr), true) => Some(addr.octets().to_vec()),
        _ => None,
    })
}

impl fmt::Display for Rule {
    /// In the words that make it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "flow-type {}", self.flow_type.name())?;
        for word in self.flow_type.words() {
            let Part { value, mask } = self.part(word.at, word.len);
            let is_fixed = word.at == PROTOCOL && self.flow_type.protocol().is_some();
            if is_fixed || mask.iter().all(|byte| *byte == 0) {
                continue;
            }
            write!(f, " {} ", word.name)?;
            write_value(f, &word, value, false)?;
            if mask.iter().any(|byte| *byte != 0xff) {
                let ignored: Vec<u8> = mask.iter().map(|byte| !byte).collect();
                f.write_str(" m ")?;
                write_value(f, &word, &ignored, true)?;
            }
        }
        match self.action {
            RuleAction::Queue(queue) => write!(f, " action {queue}"),
            RuleAction::Context(context) => write!(f, " context {context}"),
            RuleAction::Drop => f.write_str(" action -1"),
        }
    }
}

impl fmt::Debug for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_char('"')?;
        fmt::Display::fmt(self, f)?;
        f.write_char('"')
    }
}

fn write_value(f: &mut fmt::Formatter<'_>, word: &Word, bytes: &[u8], is_mask: bool) -> fmt::Result {
    if word.is_address {
        let addr = match (<[u8; 4]>::try_from(bytes), <[u8; 16]>::try_from(bytes)) {
            (Ok(octets), _) => IpAddr::from(octets),
            (_, Ok(octets)) => IpAddr::from(octets),
            _ => return Err(fmt::Error),
        };
        return write!(f, "{addr}");
    }
    let number = bytes.iter().fold(0u32, |number, byte| number << 8 | u32::from(*byte));
    if is_mask { write!(f, "{number:#x}") } else { write!(f, "{number}") }
}
