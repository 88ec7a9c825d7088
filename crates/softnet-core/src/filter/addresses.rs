//! Classes of addresses: which rules an address meets as a source, and which as a destination, found
//! by one longest match.
//!
//! All prefixes that rules name, by themselves or in sets, lie in one FIB for each family. The class
//! of a prefix has the rules of all prefixes that it is in, so the longest match says it all; classes
//! that are alike are one. Immutable.

use std::collections::HashMap;
use std::net::{Ipv4Addr, Ipv6Addr};

use super::rule::{Addresses, Rule, Rules};
use super::table::Interner;
use crate::ip::v4::fib::Fib;
use crate::ip::v6::fib::Fib6;
use crate::ip::{Address, Family, FibError, IpPrefix, LongestMatch, Prefix};
use crate::memory::Heap;

/// The sets of rules that a class stands for: by sources, by destinations.
pub(super) type Class = [u32; 2];

/// See the [module](self).
pub(super) struct AddressClasses {
    pub(super) v4: Option<Fib>,
    pub(super) v6: Option<Fib6>,
    /// The first is that of addresses that no rule names.
    classes: Vec<Class>,
}

/// Rules by what names them: for each list of prefixes, the bits of rules that want it as source, and
/// as destination.
struct Named<'a> {
    prefixes: &'a [IpPrefix],
    bits: [Vec<u64>; 2],
}

/// Makes classes, each once.
struct Classes<'a> {
    interner: &'a mut Interner,
    known: HashMap<Class, u32>,
    all: Vec<Class>,
}

impl Classes<'_> {
    fn of(&mut self, bits: [&[u64]; 2]) -> u32 {
        let class = bits.map(|bits| self.interner.intern(bits));
        *self.known.entry(class).or_insert_with(|| {
            self.all.push(class);
            self.all.len() as u32 - 1
        })
    }
}

impl AddressClasses {
    /// Of `rules`; the sets that its classes stand for go to `interner`.
    pub(super) fn new(rules: &Rules, interner: &mut Interner) -> Result<Self, FibError> {
        let sides: [fn(&Rule) -> &[Addresses]; 2] = [|rule| &rule.source, |rule| &rule.destination];
        let none = sides.map(|side| interner.bits(|rule| side(rule).is_empty()));
        let mut lists: Vec<Named<'_>> = Vec::new();
        for (at, set) in rules.sets.iter().enumerate() {
            let wants =
                |rule: &Rule, side: fn(&Rule) -> &[Addresses]| side(rule).contains(&Addresses::Set(at));
            let bits = sides.map(|side| interner.bits(|rule| wants(rule, side)));
            // One that no rule names takes no room.
            if bits.iter().flatten().any(|word| *word != 0) {
                lists.push(Named { prefixes: set, bits });
            }
        }
        let inline = rules.rules.iter().flat_map(|rule| sides.map(|side| side(rule))).flatten();
        let mut inline: Vec<IpPrefix> = inline
            .filter_map(|addresses| match addresses {
                Addresses::Prefix(prefix) => Some(*prefix),
                Addresses::Set(_) => None,
            })
            .collect();
        inline.sort_unstable();
        inline.dedup();
        for prefix in inline.chunks(1) {
            let wants = |rule: &Rule, side: fn(&Rule) -> &[Addresses]| {
                side(rule).contains(&Addresses::Prefix(prefix[0]))
            };
            let bits = sides.map(|side| interner.bits(|rule| wants(rule, side)));
            lists.push(Named { prefixes: prefix, bits });
        }
        let mut classes = Classes { interner, known: HashMap::new(), all: Vec::new() };
        classes.of(none.each_ref().map(|bits| &bits[..]));
        let v4 = build::<Ipv4Addr>(&lists, &none, &mut classes)?;
        let v6 = build::<Ipv6Addr>(&lists, &none, &mut classes)?;
        Ok(AddressClasses { v4, v6, classes: classes.all })
    }

    /// The sets of class `number`.
    #[inline(always)]
    pub(super) fn class(&self, number: u32) -> Class {
        self.classes.get(number as usize).copied().unwrap_or_default()
    }

    /// Bytes that it takes.
    pub(super) fn bytes(&self) -> usize {
        let v4 = self.v4.as_ref().map_or(0, LongestMatch::<Ipv4Addr>::bytes);
        let v6 = self.v6.as_ref().map_or(0, LongestMatch::<Ipv6Addr>::bytes);
        v4 + v6 + size_of_val(&*self.classes)
    }
}

/// The FIB of one family, whose next hops are classes; `None` if no rule names one of its addresses.
fn build<F: Family>(
    lists: &[Named<'_>],
    none: &[Vec<u64>; 2],
    classes: &mut Classes<'_>,
) -> Result<Option<F::Fib>, FibError> {
    let mut named: Vec<(Prefix<F>, &Named<'_>)> = Vec::new();
    for list in lists {
        named.extend(list.prefixes.iter().filter_map(|prefix| Some((prefix.of()?, list))));
    }
    if named.is_empty() {
        return Ok(None);
    }
    // Each prefix directly behind those that it is in.
    named.sort_unstable_by_key(|(prefix, _)| (prefix.addr(), prefix.len()));
    let mut routes: Vec<(Prefix<F>, u32)> = Vec::new();
    // The prefixes that the one at hand is in, each with its class and the bits of that.
    let mut around: Vec<(Prefix<F>, u32, [Vec<u64>; 2])> = Vec::new();
    for same in named.chunk_by(|(a, _), (b, _)| a == b) {
        let prefix = same[0].0;
        while around.last().is_some_and(|(outer, ..)| !outer.contains(prefix.addr())) {
            around.pop();
        }
        let (outer, mut bits) = match around.last() {
            Some((_, class, bits)) => (*class, bits.clone()),
            None => (0, none.clone()),
        };
        for (_, list) in same {
            for (bits, more) in bits.iter_mut().zip(&list.bits) {
                bits.iter_mut().zip(more).for_each(|(word, more)| *word |= more);
            }
        }
        let class = classes.of(bits.each_ref().map(|bits| &bits[..]));
        // What is like the prefix around it adds nothing.
        if class != outer {
            routes.push((prefix, class));
            around.push((prefix, class, bits));
        }
    }
    F::Fib::build_in(&routes, &Heap).map(Some)
}

/// The addresses of a packet of IPv4, as numbers.
#[inline(always)]
pub(super) fn ends4(packet: &[u8]) -> Option<[u32; 2]> {
    let header: &[u8; 20] = packet.first_chunk()?;
    let [.., a, b, c, d, e, f, g, h] = *header;
    Some([u32::from_be_bytes([a, b, c, d]), u32::from_be_bytes([e, f, g, h])])
}

/// The same of IPv6.
#[inline(always)]
pub(super) fn ends6(packet: &[u8]) -> Option<[u128; 2]> {
    let (src, dst) = Ipv6Addr::ends(packet)?;
    Some([src.bits(), dst.bits()])
}
