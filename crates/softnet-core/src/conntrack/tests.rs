//! The table in virtual time, beside a model.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;
use crate::fold::FoldKey;
use crate::ip::v4::header::protocol;
use crate::skb::BATCH;

const KEY: FoldKey = FoldKey::new([0x243f_6a88_85a3_08d3, 0x1319_8a2e_0370_7344]);

fn table(capacity: u32) -> Conntrack {
    Conntrack::new(capacity, KEY, &Timeouts::default(), &crate::memory::Heap)
}

/// The tuple of connection `n`.
fn tuple(n: u32) -> Tuple {
    Tuple::new(protocol::UDP, (0x0a00_0000 + n / 50_000, (n % 50_000) as u16), (0x0808_0808, 53))
}

fn insert(table: &Conntrack, now: u32, n: u32) -> Result<Found, Refused> {
    table.insert(now, &New::plain(tuple(n), State::UdpNew))
}

#[test]
fn a_connection_is_found_from_both_sides() {
    let table = table(8);
    let made = insert(&table, 10, 1).unwrap();
    let there = table.find(11, &tuple(1), 0).unwrap();
    assert_eq!((there.id, there.direction()), (made.id, Direction::Original));
    assert_eq!(table.peer(there), Some(tuple(1).inverse()));
    let back = table.find(12, &tuple(1).inverse(), 0).unwrap();
    assert_eq!((back.id, back.direction()), (made.id + 1, Direction::Reply));
    assert_eq!(back.life.state(), State::Udp);
    assert_eq!(table.of_word(back.word()).map(|found| found.id), Some(back.id));
    assert!(table.find(12, &tuple(2), 0).is_none());
    let all: Vec<_> = table.connections(20).collect();
    assert_eq!((all.len(), all[0].tuples, all[0].age), (1, [tuple(1), tuple(1).inverse()], 10));
}

/// It expires when no packet came for so long, and not before; what a packet's head says of it ends
/// then, too.
#[test]
fn a_connection_expires_without_packets() {
    let table = table(1);
    let made = insert(&table, 0, 1).unwrap();
    let timeout = Timeouts::default().udp;
    let mut now = 0;
    for _ in 0..10 {
        now += timeout;
        table.sweep(now, 100);
        assert!(table.find(now, &tuple(1), 0).is_some(), "at {now}");
    }
    now += timeout + 10;
    assert!(table.find(now, &tuple(1), 0).is_none(), "expired, though its entry is not free yet");
    assert_eq!(table.connections(now).count(), 0);
    while table.sweep(now, 1) > 0 {}
    assert!(table.of_word(made.word()).is_none());
    let next = insert(&table, now, 2).unwrap();
    assert_eq!((next.id, next.life.generation()), (made.id, 1));
    assert!(table.find(now, &tuple(1), 0).is_none() && table.of_word(made.word()).is_none());
    let counts = table.counts();
    assert_eq!((counts.entries, counts.created, counts.expired, counts.full), (1, 2, 1, 0));
}

/// A full table ends the oldest of those that were never answered, and never one that was: that one
/// goes on, whatever comes.
#[test]
fn what_is_not_assured_makes_room() {
    let table = table(8);
    for n in 0..8 {
        insert(&table, n, n).unwrap();
    }
    for n in 0..4 {
        table.find(8, &tuple(n).inverse(), 0).unwrap();
    }
    let mut released = Vec::new();
    for n in 100..1100 {
        let holds = entry::Holds { mapping: n, host: n };
        let new = New { holds, ..New::plain(tuple(n), State::UdpNew) };
        let made = table.insert_with(n, &new, |holds| released.push(holds.mapping)).unwrap();
        assert_eq!(table.find(n, &tuple(n), 0).map(|found| found.id), Some(made.id));
        (0..4).for_each(|of| assert!(table.find(n, &tuple(of), 0).is_some()));
    }
    // The oldest first.
    assert!(released[..4].iter().all(|mapping| *mapping == entry::NIL));
    assert_eq!(released[4..], (100..1096).collect::<Vec<_>>());
    let counts = table.counts();
    assert_eq!((counts.entries, counts.early_drop, counts.expired, counts.full), (8, 1000, 0, 0));
    // All of them are assured: there is no room.
    (1096..1100).for_each(|n| assert!(table.find(1100, &tuple(n).inverse(), 0).is_some()));
    assert_eq!(insert(&table, 1100, 5), Err(Refused::Full));
    assert_eq!(table.counts().full, 1);
    // All expire once, though some came to their entries while those waited to be looked at.
    while table.sweep(10_000, 3) > 0 {}
    assert_eq!((table.counts().entries, table.counts().expired), (0, 8));
    (0..8).for_each(|n| assert!(insert(&table, 10_000, n).is_ok()));
}

/// What is over, but was not swept yet, goes first, though both sides used it; it counts as expired.
#[test]
fn what_is_over_makes_room_first() {
    let table = table(8);
    for n in 0..8 {
        insert(&table, 0, n).unwrap();
        table.find(0, &tuple(n).inverse(), 0).unwrap();
    }
    let later = Timeouts::default().udp_stream;
    (0..4).for_each(|n| assert!(table.find(later, &tuple(n), 0).is_some()));
    assert_eq!(insert(&table, later, 100), Err(Refused::Full), "none is over yet");
    let over = later + 10;
    (100..104).for_each(|n| assert!(insert(&table, over, n).is_ok()));
    (0..4).for_each(|n| assert!(table.find(over, &tuple(n), 0).is_some(), "it goes on"));
    let counts = table.counts();
    assert_eq!((counts.entries, counts.early_drop, counts.expired, counts.full), (8, 0, 4, 1));
    // One that was ended is over, too.
    let found = table.find(over, &tuple(0), 0).unwrap();
    (100..104).for_each(|n| assert!(table.find(over, &tuple(n).inverse(), 0).is_some()));
    table.end(over, found);
    assert!(table.find(over, &tuple(0), 0).is_none() && insert(&table, over, 200).is_ok());
    assert_eq!((table.counts().ended, table.counts().expired), (1, 5));
}

/// Its time is longer than the wheel's round.
#[test]
fn long_connections() {
    let table = table(8);
    let tuple = Tuple::new(protocol::TCP, (1, 1), (2, 80));
    table.insert(0, &New::plain(tuple, State::Established)).unwrap();
    let timeout = Timeouts::default().tcp_established;
    for now in 0..timeout {
        table.sweep(now, 100);
    }
    assert!(table.find(timeout, &tuple, 0).is_some());
    for now in timeout..2 * timeout + 300 {
        table.sweep(now, 100);
    }
    assert_eq!(table.counts().expired, 1);
}

/// A stack that slept for long finds all that expired meanwhile, a few at a time.
#[test]
fn a_long_pause_is_made_up_for() {
    let table = table(1000);
    (0..1000).for_each(|n| assert!(insert(&table, n % 100, n).is_ok()));
    let mut looked = 0;
    while let n @ 1.. = table.sweep(1_000_000, 64) {
        assert!(n <= 64);
        looked += n;
    }
    assert_eq!((looked, table.counts().expired), (1000, 1000));
    (0..1000).for_each(|n| assert!(insert(&table, 1_000_001, n).is_ok()));
}

#[test]
fn a_full_table_finds_all() {
    let n = 1 << 16;
    let table = table(n);
    let refused = (0..n).filter(|i| insert(&table, 0, *i).is_err()).count();
    assert_eq!(refused, 0);
    let per_connection = table.bytes() / n as usize;
    assert!(per_connection <= 81, "{per_connection} bytes");
    let mut lost = 0;
    for first in (0..n).step_by(BATCH) {
        let packets: Vec<_> = (first..first + BATCH as u32).map(|i| (tuple(i), 0)).collect();
        let mut found = [None; BATCH];
        table.find_batch(1, &packets, &mut found);
        lost += found.iter().filter(|found| found.is_none()).count();
    }
    assert_eq!(lost, refused);
}

proptest! {
    /// Beside a map from tuples to deadlines: the same is found, whatever expires and comes again.
    #[test]
    fn finds_what_a_map_has(steps in prop::collection::vec((0u32..6, 0u32..12, any::<bool>()), 1..300)) {
        let table = table(12);
        let mut model: HashMap<u32, u32> = HashMap::new();
        let mut now = 0;
        for (kind, n, reply) in steps {
            let tuple = if reply { tuple(n).inverse() } else { tuple(n) };
            match kind {
                0 => now += n,
                1 => now += 40 * n,
                2 => { table.sweep(now, n as usize); }
                _ => {
                    let found = table.find(now, &tuple, 0);
                    let deadline = model.get(&n).copied();
                    // The slack is on the connection's side.
                    match deadline {
                        Some(at) if now <= at => prop_assert!(found.is_some(), "{} at {}, until {}", n, now, at),
                        Some(at) if now > at + 8 => prop_assert!(found.is_none()),
                        Some(_) => {}
                        None => prop_assert!(found.is_none()),
                    }
                    match found {
                        Some(found) => {
                            let timeout = if found.life.state() == State::Udp { 300 } else { 120 };
                            model.insert(n, now + timeout);
                        }
                        None => {
                            model.remove(&n);
                            while table.sweep(now, 8) > 0 {}
                            if insert(&table, now, n).is_ok() {
                                model.insert(n, now + 120);
                            }
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn tuples_are_what_they_were_made_of(protocol: u8, src: (u32, u16), dst: (u32, u16)) {
        let tuple = Tuple::new(protocol, src, dst);
        prop_assert_eq!((tuple.protocol(), tuple.src(), tuple.dst()), (protocol, src, dst));
        prop_assert_eq!(tuple.inverse(), Tuple::new(protocol, dst, src));
        prop_assert_eq!(tuple.inverse().inverse(), tuple);
    }
}
