//! What is translated: the rules, as they are configured and as the hooks ask for them.
//!
//! Plain values, part of one version of the hooks; state that outlives a change of rules is in
//! [`NatState`](super::NatState).

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddrV4};

use super::blocks::Blocks;
use super::mapping::{Endpoint, Number, Pool};
use super::nat64::{Pool6, is_stand_in};
use super::nptv6::{Pair, PrefixNat};
use super::state::Reserved;
use crate::conntrack::Tuple;
use crate::conntrack::entry::{DNAT, SNAT};
use crate::ip::Prefix6;

/// Sources of what leaves by a device are hidden behind addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceNat {
    /// The device.
    pub dev: u16,
    /// The external addresses: that of the device (masquerading), or a pool that is routed to it.
    pub addresses: Vec<Ipv4Addr>,
    /// Only of these sources, each with ports of its own that its address tells (RFC 7422); `None`: of
    /// all, with random ports. What others forward is dropped then, and what softnet sends stays as it
    /// is.
    pub deterministic: Option<Blocks>,
}

impl SourceNat {
    /// Of all that leaves by `dev`, with random ports.
    pub fn new(dev: u16, addresses: Vec<Ipv4Addr>) -> Self {
        SourceNat { dev, addresses, deterministic: None }
    }
}

/// What comes to an external endpoint goes to an internal one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortForward {
    /// Of this protocol: TCP or UDP.
    pub protocol: u8,
    /// Where it comes to.
    pub external: SocketAddrV4,
    /// Where it goes.
    pub internal: SocketAddrV4,
}

/// One external address stands for one internal address, ports and all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OneToOne {
    /// The device that the external address is behind.
    pub dev: u16,
    /// The external address.
    pub external: Ipv4Addr,
    /// The internal one.
    pub internal: Ipv4Addr,
}

/// Which packets from outside a mapping lets in (RFC 4787 section 5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Filtering {
    /// Those of connections that were opened from inside, as Linux does.
    #[default]
    AddressAndPortDependent,
    /// All: for peers that find each other by a third.
    EndpointIndependent,
}

/// All rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NatRules {
    /// By device, no device twice.
    pub source: Vec<SourceNat>,
    /// By external endpoint; the first one for it counts.
    pub forward: Vec<PortForward>,
    /// By addresses; the first one for either counts.
    pub one_to_one: Vec<OneToOne>,
    /// What mappings let in.
    pub filtering: Filtering,
    /// Connections that one inside host may have; `None`: as many as there is room for.
    pub connlimit: Option<u32>,
    /// Prefixes of IPv6 that stand for one another; the first one for an address counts.
    pub prefix: Vec<PrefixNat>,
    /// The prefix under which hosts of IPv6 reach those of IPv4 (RFC 6052), of one of the lengths of
    /// [`POOL6_LENGTHS`](super::POOL6_LENGTHS); `None`: they do not.
    pub pool6: Option<Prefix6>,
}

/// Why rules can't be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "too many external addresses: expected no more than {}, and as many of earlier rules whose connections go on",
    super::MAX_ADDRESSES
)]
pub struct TooManyAddresses;

/// The rules as the hooks ask for them.
#[derive(Default)]
pub(super) struct Compiled {
    /// By device: the external addresses.
    source: Vec<Option<Pool>>,
    /// Addresses that sources are hidden behind, and which of a pool with blocks of ports each is.
    hidden: HashMap<u32, Option<(usize, Blocks)>>,
    /// External addresses, and the device that each is behind.
    external: HashMap<u32, Option<u16>>,
    forward: HashMap<(u8, u32, u16), Endpoint>,
    /// From external to internal addresses.
    inward: HashMap<u32, u32>,
    /// By device and internal address: the external one.
    outward: HashMap<(u16, u32), u32>,
    pub(super) endpoint_independent: bool,
    pub(super) connlimit: Option<u32>,
    pub(super) pairs: Vec<Pair>,
    pub(super) pool6: Option<Pool6>,
    /// Ports that are forwarded, which no mapping may have.
    pub(super) reserved: Vec<Reserved>,
}

impl Compiled {
    /// `number` says which number an external address has, if it can have one.
    pub(super) fn new(
        rules: &NatRules,
        mut number: impl FnMut(u32) -> Option<Number>,
    ) -> Result<Self, TooManyAddresses> {
        let mut compiled = Compiled {
            endpoint_independent: rules.filtering == Filtering::EndpointIndependent,
            connlimit: rules.connlimit,
            pairs: rules.prefix.iter().map(Pair::new).collect(),
            pool6: rules.pool6.and_then(Pool6::new),
            ..Compiled::default()
        };
        for rule in &rules.source {
            let mut numbers = Vec::new();
            for (nth, addr) in rule.addresses.iter().map(|addr| addr.to_bits()).enumerate() {
                numbers.push(number(addr).ok_or(TooManyAddresses)?);
                compiled.external.insert(addr, Some(rule.dev));
                compiled.hidden.insert(addr, rule.deterministic.map(|blocks| (nth, blocks)));
            }
            let dev = usize::from(rule.dev);
            compiled.source.resize_with(compiled.source.len().max(dev + 1), || None);
            compiled.source[dev] = Some(Pool { numbers: numbers.into(), blocks: rule.deterministic });
        }
        for rule in &rules.one_to_one {
            let [external, internal] = [rule.external, rule.internal].map(Ipv4Addr::to_bits);
            compiled.external.entry(external).or_insert(Some(rule.dev));
            compiled.inward.entry(external).or_insert(internal);
            compiled.outward.entry((rule.dev, internal)).or_insert(external);
        }
        for rule in &rules.forward {
            let [external, internal] =
                [rule.external, rule.internal].map(|addr| (addr.ip().to_bits(), addr.port()));
            if compiled.external.entry(external.0).or_insert(None).is_some() {
                let number = number(external.0).ok_or(TooManyAddresses)?;
                compiled.reserved.push((number, rule.protocol, external.1));
            }
            compiled.forward.entry((rule.protocol, external.0, external.1)).or_insert(internal);
        }
        Ok(compiled)
    }

    /// Whether a connection with these tuples and [`SNAT`], [`DNAT`] is one that these rules make.
    /// `mapped` says which internal endpoint an external one is mapped to.
    pub(super) fn allows(
        &self,
        [original, reply]: &[Tuple; 2],
        flags: u8,
        mapped: impl Fn(u8, Endpoint) -> Option<Endpoint>,
    ) -> bool {
        let internal = original.src().0;
        let hidden = |addr: u32| self.hidden.contains_key(&addr);
        // By a port of its block, where there are blocks.
        let hides = |(addr, port): Endpoint| {
            let of_block = |(nth, blocks): &(usize, Blocks)| blocks.is_of(*nth, port, internal);
            self.hidden.get(&addr).is_some_and(|blocks| blocks.as_ref().is_none_or(of_block))
        };
        let source = |to: Endpoint| {
            hides(to) || self.outward.iter().any(|(from, by)| from.1 == internal && *by == to.0)
        };
        let (outside, inside) = (original.dst(), reply.src());
        // A mapping that lets in what comes has no rule of its own.
        let destination = || match self.inward(original.protocol(), outside) {
            Some(target) => target == inside,
            None => hidden(outside.0) && mapped(original.protocol(), outside) == Some(inside),
        };
        let stands_in = is_stand_in(original.src().0) || is_stand_in(inside.0);
        (flags & SNAT == 0 || source(reply.dst()))
            && (flags & DNAT == 0 || destination())
            && (!stands_in || self.pool6.is_some())
    }

    /// The addresses behind which sources of what leaves by `dev` are hidden.
    #[inline]
    pub(super) fn source(&self, dev: Option<u16>) -> Option<&Pool> {
        self.source.get(usize::from(dev?))?.as_ref()
    }

    /// The device that an external address is behind, if it is known.
    pub(super) fn external(&self, addr: u32) -> Option<Option<u16>> {
        self.external.get(&addr).copied()
    }

    /// Where a rule has packets to this external endpoint go.
    pub(super) fn inward(&self, protocol: u8, (addr, port): Endpoint) -> Option<Endpoint> {
        let forward = self.forward.get(&(protocol, addr, port)).copied();
        forward.or_else(|| self.inward.get(&addr).map(|internal| (*internal, port)))
    }

    /// The external address that stands for `internal` alone on what leaves by `dev`.
    pub(super) fn outward(&self, dev: u16, internal: u32) -> Option<u32> {
        self.outward.get(&(dev, internal)).copied()
    }
}
