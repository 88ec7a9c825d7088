use std::collections::HashMap;

use proptest::prelude::*;

use super::*;
use crate::proto::Verb;

fn set<'a>(verb: Verb, key: &'a str, value: &'a [u8], expire: i32) -> Storage<'a> {
    Storage { verb, key: key.as_bytes(), flags: 3, expire: Expire(expire), value }
}

fn value(store: &Store, key: &str, now: u32) -> Option<Vec<u8>> {
    store.get(key.as_bytes(), now, |item| {
        assert_eq!(item.flags, 3);
        item.value.to_vec()
    })
}

fn cas(store: &Store, key: &str) -> u64 {
    store.get(key.as_bytes(), 0, |item| item.cas).unwrap()
}

#[test]
fn each_way_to_store_does_what_it_says() {
    let store = Store::new(0, 1);
    let put = |verb, value: &str| store.store(&set(verb, "k", value.as_bytes(), 0), 0);
    for verb in [Verb::Replace, Verb::Append, Verb::Prepend] {
        assert_eq!(put(verb, "x"), Stored::NotStored);
    }
    assert_eq!(put(Verb::Cas(1), "x"), Stored::NotFound);
    assert_eq!(value(&store, "k", 0), None);
    assert_eq!(put(Verb::Add, "b"), Stored::Stored);
    assert_eq!(put(Verb::Add, "x"), Stored::NotStored);
    assert_eq!(put(Verb::Append, "cd"), Stored::Stored);
    assert_eq!(put(Verb::Prepend, "a"), Stored::Stored);
    assert_eq!(value(&store, "k", 0).unwrap(), b"abcd");
    let before = cas(&store, "k");
    assert_eq!(put(Verb::Replace, "efgh"), Stored::Stored);
    assert_eq!(put(Verb::Cas(before), "x"), Stored::Exists);
    assert_eq!(put(Verb::Cas(cas(&store, "k")), "y"), Stored::Stored);
    assert_eq!(value(&store, "k", 0).unwrap(), b"y");
    assert!(store.delete(b"k", 0));
    assert!(!store.delete(b"k", 0));
    let counters = store.counters();
    assert_eq!((counters.curr_items, counters.bytes), (0, 0));
    assert_eq!((counters.delete_hits, counters.delete_misses), (1, 1));
}

#[test]
fn numbers_are_counted() {
    let store = Store::new(0, 1);
    let count = |delta, up| store.arith(&Arith { key: b"n", delta, up }, 0);
    assert_eq!(count(1, true), Counted::NotFound);
    store.store(&set(Verb::Set, "n", b"99", 0), 0);
    let before = cas(&store, "n");
    assert_eq!(count(1, true), Counted::Value(100));
    assert!(cas(&store, "n") > before);
    assert_eq!(value(&store, "n", 0).unwrap(), b"100");
    assert_eq!(count(95, false), Counted::Value(5));
    assert_eq!(value(&store, "n", 0).unwrap(), b"5  ", "its length stays, as in memcached");
    assert_eq!(count(6, false), Counted::Value(0));
    assert_eq!(count(u64::MAX, true), Counted::Value(u64::MAX));
    assert_eq!(count(2, true), Counted::Value(1));
    store.store(&set(Verb::Set, "n", b"1x", 0), 0);
    assert_eq!(count(2, true), Counted::NotNumeric);
}

#[test]
fn items_end_when_they_should() {
    let store = Store::new(0, 1);
    let now = 1000;
    for (key, expire) in [("never", 0), ("soon", 10), ("gone", -1), ("past", 1_000_000_000)] {
        assert_eq!(store.store(&set(Verb::Set, key, b"v", expire), now), Stored::Stored);
    }
    let unix = store.epoch.as_secs() as i32 + 1020;
    store.store(&set(Verb::Set, "unix", b"v", unix), now);
    let there = |now| ["never", "soon", "gone", "past", "unix"].map(|key| value(&store, key, now).is_some());
    assert_eq!(there(now), [true, true, false, false, true]);
    assert_eq!(there(now + 9), [true, true, false, false, true]);
    assert_eq!(there(now + 10), [true, false, false, false, true]);
    assert!(store.touch(b"unix", Expire(100), now + 19));
    assert_eq!(there(now + 20), [true, false, false, false, true], "touched");
    assert_eq!(there(now + 119), [true, false, false, false, false]);
    assert!(!store.touch(b"soon", Expire(100), now + 19));
    let counters = store.counters();
    assert_eq!((counters.curr_items, counters.reclaimed), (1, 4));
}

#[test]
fn flush_all_forgets_everything_now_or_later() {
    let store = Store::new(0, 4);
    let fill = || {
        for i in 0..100 {
            store.store(&set(Verb::Set, &i.to_string(), b"v", 0), 50);
        }
        store.counters().curr_items
    };
    assert_eq!(fill(), 100);
    store.flush_all(Expire(0), 50);
    let counters = store.counters();
    assert_eq!((counters.curr_items, counters.bytes), (0, 0));
    assert_eq!(fill(), 100);
    store.flush_all(Expire(10), 50);
    store.advance(59);
    assert_eq!(store.counters().curr_items, 100);
    store.advance(60);
    assert_eq!(store.counters().curr_items, 0);
    assert_eq!(fill(), 100, "and goes on");
    store.advance(1000);
    assert_eq!((store.counters().curr_items, store.flushes()), (100, 2));
}

#[test]
fn memory_is_bounded_and_what_is_asked_for_stays() {
    let store = Store::new(1 << 20, 1);
    let value = [7; 1000];
    let put = |i: usize| store.store(&set(Verb::Set, &format!("key{i}"), &value, 0), 0);
    let popular: Vec<String> = (0..20).map(|i| format!("key{i}")).collect();
    for i in 0..10_000 {
        assert_eq!(put(i), Stored::Stored);
        assert!(store.counters().bytes <= store.limit() as u64);
        if i > 20 {
            for key in &popular {
                assert_eq!(
                    store.get(key.as_bytes(), 0, |item| item.value == value),
                    Some(true),
                    "{key} after {i}"
                );
            }
        }
    }
    let counters = store.counters();
    assert_eq!(counters.curr_items + counters.evictions, 10_000);
    assert!(counters.evictions > 8_000, "{counters:?}");
    let large = vec![0; MAX_VALUE];
    assert_eq!(store.store(&set(Verb::Set, "key1", &large, 0), 0), Stored::TooLarge);
    assert_eq!(self::value(&store, "key1", 0), None, "an older value would be worse than none");
    assert_eq!(store.store(&set(Verb::Set, "", b"x", 0), 0), Stored::TooLarge);
}

#[test]
fn expired_items_go_first_when_the_hand_finds_them() {
    let store = Store::new(1 << 20, 1);
    for i in 0..1000 {
        store.store(&set(Verb::Set, &format!("key{i}"), &[7; 900], 1), 0);
    }
    let before = store.counters();
    for i in 0..before.curr_items {
        store.store(&set(Verb::Set, &format!("new{i}"), &[7; 900], 0), 5);
    }
    let after = store.counters();
    assert_eq!((before.evictions, before.reclaimed, after.evictions), (0, 0, 0));
    assert!(after.reclaimed > 900, "{after:?}");
}

/// What may be done to a store, for comparison with a map.
#[derive(Clone, Debug)]
enum Op {
    Store(u8, u8, usize, i32),
    Delete(u8),
    Get(u8),
    Touch(u8, i32),
    Count(u8, bool, u64),
    Wait(u32),
    Flush(i32),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let key = 0u8..12;
    let expire = prop_oneof![3 => Just(0), 1 => -1..4];
    let op = prop_oneof![
        8 => (key.clone(), 0u8..5, 0usize..40, expire.clone()).prop_map(|(k, verb, len, e)| Op::Store(k, verb, len, e)),
        2 => key.clone().prop_map(Op::Delete),
        6 => key.clone().prop_map(Op::Get),
        1 => (key.clone(), expire).prop_map(|(k, e)| Op::Touch(k, e)),
        2 => (key, any::<bool>(), 0u64..2000).prop_map(|(k, up, d)| Op::Count(k, up, d)),
        1 => (0u32..3).prop_map(Op::Wait),
        1 => (-1i32..3).prop_map(Op::Flush),
    ];
    prop::collection::vec(op, 0..120)
}

proptest! {
    /// A store with room enough is a map with expiry.
    #[test]
    fn it_does_what_a_map_does(ops in ops(), shards in 1usize..5) {
        let store = Store::new(0, shards);
        let mut map: HashMap<u8, (Vec<u8>, Option<u32>)> = HashMap::new();
        let (mut now, mut flush) = (100, None);
        let ends = |e: i32, now: u32| match e { 0 => None, ..0 => Some(0), e => Some(now + e as u32) };
        for op in ops {
            if flush.is_some_and(|at| at <= now) {
                map.clear();
                flush = None;
            }
            store.advance(now);
            map.retain(|_, (_, end)| end.is_none_or(|end| end > now));
            let name = |k: u8| format!("key{k}");
            match op {
                Op::Store(k, verb, len, e) => {
                    // Digits, so that some can be counted.
                    let value: Vec<u8> = (0..len).map(|i| b'1' + (i % 9) as u8).collect();
                    let verbs = [Verb::Set, Verb::Add, Verb::Replace, Verb::Append, Verb::Prepend];
                    let verb = verbs[usize::from(verb)];
                    let stored = store.store(&set(verb, &name(k), &value, e), now);
                    let fits = matches!(verb, Verb::Set) || map.contains_key(&k) != matches!(verb, Verb::Add);
                    prop_assert_eq!(stored, if fits { Stored::Stored } else { Stored::NotStored });
                    if fits {
                        match (verb, map.get_mut(&k)) {
                            (Verb::Append, Some((old, _))) => old.extend(value),
                            (Verb::Prepend, Some((old, _))) => *old = [&value[..], old].concat(),
                            _ => { map.insert(k, (value, ends(e, now))); }
                        }
                    }
                }
                Op::Delete(k) => prop_assert_eq!(store.delete(name(k).as_bytes(), now), map.remove(&k).is_some()),
                Op::Get(k) => {
                    // What was stored with an end that has passed stays in the map until the next step.
                    let there = map.get(&k).filter(|(_, end)| end.is_none_or(|end| end > now));
                    prop_assert_eq!(value(&store, &name(k), now), there.map(|(v, _)| v.clone()));
                }
                Op::Touch(k, e) => {
                    prop_assert_eq!(store.touch(name(k).as_bytes(), Expire(e), now), map.contains_key(&k));
                    if let Some((_, end)) = map.get_mut(&k) { *end = ends(e, now); }
                }
                Op::Count(k, up, delta) => {
                    let counted = store.arith(&Arith { key: name(k).as_bytes(), delta, up }, now);
                    let Some((old, _)) = map.get_mut(&k) else {
                        prop_assert_eq!(counted, Counted::NotFound);
                        continue;
                    };
                    let Ok(number) = std::str::from_utf8(old).unwrap().trim_end().parse::<u64>() else {
                        prop_assert_eq!(counted, Counted::NotNumeric);
                        continue;
                    };
                    let new = if up { number.wrapping_add(delta) } else { number.saturating_sub(delta) };
                    prop_assert_eq!(counted, Counted::Value(new));
                    *old = format!("{new:<width$}", width = old.len()).into_bytes();
                }
                Op::Wait(seconds) => now += seconds,
                Op::Flush(e) => {
                    store.flush_all(Expire(e), now);
                    flush = Some(now + e.max(0) as u32);
                    if flush == Some(now) { map.clear(); flush = None; }
                }
            }
            let counters = store.counters();
            prop_assert!(counters.curr_items >= map.len() as u64);
            prop_assert_eq!(counters.evictions, 0);
        }
    }
}
