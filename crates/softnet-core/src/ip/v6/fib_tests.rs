use prefix_trie::PrefixMap;
use proptest::prelude::*;

use super::super::super::family::NO_ROUTE;
use super::super::super::fib_model::{Step, agrees, run};
use super::*;
use crate::memory::Asked;

fn prefix(addr: u128, len: u8) -> Prefix6 {
    Prefix6::containing(Ipv6Addr::from_bits(addr), len).unwrap()
}

/// Routes that nest and collide: few distinct bits in the addresses, all lengths.
fn routes() -> impl Strategy<Value = Vec<(Prefix6, u32)>> {
    let byte = prop::sample::select(vec![0u8, 1, 63, 64, 127, 128, 191, 192, 255]);
    let addr = prop_oneof![any::<u128>(), prop::array::uniform16(byte).prop_map(u128::from_be_bytes)];
    let stems = prop::collection::vec(addr, 1..4);
    stems.prop_flat_map(|stems| {
        // Most share a part of their addresses, and differ behind it.
        let addr = (prop::sample::select(stems), any::<u128>(), 0u32..=128)
            .prop_map(|(stem, other, at)| stem ^ other.checked_shr(at).unwrap_or(0));
        let len = prop_oneof![
            2 => 0u8..=128,
            2 => prop::sample::select(vec![0, 15, 16, 17, 23, 24, 25, 29, 32, 40, 48, 64, 120, 127, 128]),
        ];
        prop::collection::vec((addr, len, 0u32..50).prop_map(|(a, l, n)| (prefix(a, l), n)), 0..60)
    })
}

proptest! {
    #[test]
    fn agrees_with_the_model(routes in routes(), random in prop::collection::vec(any::<Ipv6Addr>(), 0..20)) {
        let fib = Fib6::build(&routes).unwrap();
        agrees::<Ipv6Addr>(&fib, &routes, &random)?;
    }

    /// Changed route by route it is what it would be if it were built of what is left; and what is
    /// empty again takes no room.
    #[test]
    fn follows_changes(
        built in routes(),
        steps in prop::collection::vec((routes(), any::<bool>()), 0..4),
        random in prop::collection::vec(any::<Ipv6Addr>(), 0..20),
    ) {
        let mut fib = Fib6::build(&built).unwrap();
        let steps = steps.into_iter().flat_map(|(routes, add)| {
            routes.into_iter().map(move |(prefix, hop)| if add { Step::Add(prefix, hop) } else { Step::Remove(prefix) })
        });
        let left = run::<Ipv6Addr>(&mut fib, &built, steps)?;
        agrees::<Ipv6Addr>(&fib, &left, &random)?;
        let all = left.iter().map(|(prefix, _)| Step::Remove(*prefix));
        run::<Ipv6Addr>(&mut fib, &left, all.collect::<Vec<_>>().into_iter())?;
        prop_assert!(fib.root.iter().all(|entry| *entry == Leaf::NONE));
        let free = fib.free.iter().enumerate().map(|(lines, at)| lines * at.len()).sum::<usize>();
        prop_assert_eq!(free, fib.nodes.len());
    }
}

#[test]
fn every_length_over_the_same_address() {
    const ADDR: u128 = 0x2001_0db8_1234_5678_9abc_def0_0fed_cba9;
    let routes: Vec<_> = (0..=128).rev().map(|len| (prefix(ADDR, len), u32::from(len) + 1)).collect();
    let fib = Fib6::build(&routes).unwrap();
    for len in 0..=128u32 {
        // Differs from the address in the bit right behind the prefix.
        let addr = ADDR ^ 1u128.checked_shl(127u32.wrapping_sub(len)).unwrap_or(0);
        assert_eq!(fib.lookup(addr), len + 1);
    }
    // The root and a node for each of 14 levels; eight runs and the deeper one between them are two lines.
    assert_eq!(fib.bytes(), 4 * ROOT + 13 * 128 + 128);
}

#[test]
fn empty_and_default() {
    let fib = Fib6::default();
    assert_eq!((fib.lookup(0), fib.lookup(u128::MAX), fib.bytes()), (NO_ROUTE, NO_ROUTE, 4 * ROOT));
    let fib = Fib6::build(&[(Prefix6::DEFAULT, 9), (Prefix6::DEFAULT, 7)]).unwrap();
    assert_eq!((fib.lookup(0), fib.lookup(u128::MAX), fib.bytes()), (7, 7, 4 * ROOT));
}

#[test]
fn a_route_to_nothing_hides_a_shorter_one() {
    let net = 0x2001_0db8u128 << 96;
    let fib = Fib6::build(&[(prefix(net, 32), 3), (prefix(net | 1 << 80, 48), NO_ROUTE)]).unwrap();
    assert_eq!((fib.lookup(net | 1 << 80 | 1), fib.lookup(net | 2 << 80)), (NO_ROUTE, 3));
}

/// A node has up to 256 runs, and each is found.
#[test]
fn a_node_full_of_routes() {
    let net = 0xfd00u128 << 112;
    let routes: Vec<_> = (0..256).map(|i| (prefix(net | i << 104, 24), i as u32 % 255 + 1)).collect();
    let fib = Fib6::build(&routes).unwrap();
    for i in 0..256 {
        assert_eq!(fib.lookup(net | i << 104 | 77), i as u32 % 255 + 1);
    }
    assert_eq!(fib.bytes(), 4 * (ROOT + (HEADER + 256usize).next_multiple_of(LINE)));
}

#[test]
fn batches_of_any_shape() {
    let fib = Fib6::build(&[(prefix(0xfd00 << 112, 8), 3)]).unwrap();
    let mut out = [9; 2];
    fib.lookup_batch(&[0xfd01 << 112; 5], &mut out);
    assert_eq!(out, [3, 3]);
    fib.lookup_batch(&[1], &mut out);
    assert_eq!(out, [0, 3]);
    fib.lookup_batch(&[], &mut []);
    let mut out = [9; BATCH + 1];
    fib.lookup_batch(&[0xfd01 << 112; BATCH + 1], &mut out);
    assert_eq!((out[BATCH - 1], out[BATCH]), (3, 9));
}

#[test]
fn refuses_what_does_not_fit() {
    let route = (prefix(0, 8), MAX_NEXT_HOPS);
    let error = FibError::NextHop { prefix: route.0.any(), nexthop: MAX_NEXT_HOPS };
    assert_eq!(Fib6::build(&[route]).err(), Some(error.clone()));
    let mut fib = Fib6::build(&[(prefix(0, 8), MAX_NEXT_HOPS - 1)]).unwrap();
    assert_eq!(fib.lookup(5), MAX_NEXT_HOPS - 1);
    assert_eq!(fib.put(route.0, 8, MAX_NEXT_HOPS, &Heap), Err(error));

    let routes = sorted(&[(prefix(0, 128), 1), (prefix(1 << 127, 24), 1)]).unwrap();
    for (max_lines, fits) in [(15, true), (14, false)] {
        let mut builder = Builder { nodes: vec![], max_lines };
        let laid = builder.lay(&routes, 0, &mut vec![LEAF; ROOT]);
        assert_eq!(laid, if fits { Ok(()) } else { Err(FibError::TooLarge6) });
    }
}

#[test]
fn memory_is_asked_for_once_and_fits_exactly() {
    let routes = [(prefix(0xfd00 << 112, 24), 1), (prefix(0xfd00 << 112, 40), 2)];
    let memory = Asked::default();
    let fib = Fib6::build_in(&routes, &memory).unwrap();
    assert_eq!(*memory.0.borrow(), [3]);
    assert_eq!(fib.nodes.capacity(), 3);
    assert_eq!(fib.nodes.as_ptr().addr() % 64, 0);
}

#[test]
fn a_large_table_agrees_with_a_trie() {
    let mut seed = 1u64;
    let mut next = || {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        seed >> 32
    };
    let lens = [29u8, 32, 32, 32, 36, 40, 44, 46, 47, 48, 48, 48, 48, 48, 56, 64, 128];
    // Some hundred blocks, so that prefixes are within others.
    let routes: Vec<_> = (1..=20_000u32)
        .map(|n| {
            let block = (0x2a00 + u128::from(next() % 8)) << 16 | u128::from(next() % 64) << 5;
            let rest = u128::from(next()) << 64 | u128::from(next());
            (prefix(block << 96 | rest, lens[next() as usize % lens.len()]), n)
        })
        .collect();
    let fib = Fib6::build(&routes).unwrap();
    let mut trie: PrefixMap<(u128, u8), u32> = PrefixMap::new();
    for (p, n) in &routes {
        trie.insert((p.addr().to_bits(), p.len()), *n);
    }
    for _ in 0..20_000 {
        let near = routes[next() as usize % routes.len()].0.addr().to_bits();
        let addr = near ^ u128::from(next()).wrapping_shl(next() as u32 % 128);
        let want = trie.get_lpm(&(addr, 128)).map_or(NO_ROUTE, |(_, n)| *n);
        assert_eq!(fib.lookup(addr), want, "{addr:#x}");
    }
}
