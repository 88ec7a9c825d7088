//! Loom models of an entry: a packet that keeps a connection alive while it expires, or while it is
//! dropped early; one that finds an entry while that is used again; and an early drop of what
//! expires.

use loom::thread;

use super::entry::Holds;
use super::*;
use crate::fold::FoldKey;
use crate::sync::{Arc, Mutant, check, must_fail};

fn table() -> Conntrack {
    Conntrack::new(
        1,
        FoldKey::new([0x243f_6a88_85a3_08d3, 0x1319_8a2e_0370_7344]),
        &Timeouts::default(),
        &crate::memory::Heap,
    )
}

const A: (u32, u16) = (0x0a00_0001, 1000);
const B: (u32, u16) = (0x0a00_0002, 53);
const C: (u32, u16) = (0x0a00_0003, 4000);

fn new(reply_to: (u32, u16)) -> New {
    let tuples = [Tuple::new(17, A, B), Tuple::new(17, B, reply_to)];
    New { tuples, ..New::plain(tuples[0], State::UdpNew) }
}

/// A packet comes just before its connection expires, as another thread has it that it has: the
/// packet finds none, or the connection goes on.
fn used_while_it_expires() {
    let table = Arc::new(table());
    let tuple = new(A).tuples[0];
    let expires = table.insert(0, &new(A)).unwrap().life.expires();
    let packet = thread::spawn({
        let table = table.clone();
        move || table.find(expires, &tuple, 0).is_some()
    });
    // By the thread that owns the wheel. The entry is looked at after its second.
    let mut swept = 0;
    for _ in 0..2 {
        swept += table.sweep(expires + 1, 1);
    }
    assert!(swept > 0);
    let kept = packet.join().unwrap();
    assert_eq!(table.find(expires + 2, &tuple, 0).is_some(), kept);
    assert_eq!(
        table.free.pop(|_| &table.entries[0].next).is_some(),
        !kept,
        "the entry is free, or it is not"
    );
}

/// A connection of an assured state, which is not dropped early for another.
fn assured(reply_to: (u32, u16)) -> New {
    New { state: State::Udp, ..new(reply_to) }
}

/// An answer comes as another connection needs the entry: the answer finds none, or its connection
/// is assured and stays.
fn answered_while_it_is_dropped_early() {
    let table = Arc::new(table());
    let reply = new(A).tuples[1];
    table.insert(0, &new(A)).unwrap();
    let packet = thread::spawn({
        let table = table.clone();
        move || table.find(1, &reply, 0).is_some()
    });
    let dropped = table.insert(1, &assured(C)).is_ok();
    let kept = packet.join().unwrap();
    assert_eq!(kept, !dropped);
    assert_eq!(table.find(2, &reply, 0).is_some(), kept);
}

/// A connection expires as another needs its entry: what it held is let go of once, and the entry
/// is one connection's.
fn dropped_early_while_it_expires() {
    let table = Arc::new(table());
    let held = Holds { mapping: 7, host: 8 };
    let expires = table.insert(0, &New { holds: held, ..new(A) }).unwrap().life.expires();
    let other = thread::spawn({
        let table = table.clone();
        move || {
            let mut released = 0;
            let made = table.insert_with(expires + 1, &assured(C), |holds| {
                assert_eq!(holds, held);
                released += 1;
            });
            (made.is_ok(), released)
        }
    });
    let mut swept = 0;
    for _ in 0..2 {
        table.sweep_with(expires + 1, 1, |holds| {
            assert_eq!(holds, held);
            swept += 1;
        });
    }
    let (made, released) = other.join().unwrap();
    assert!(released + swept <= 1);
    assert_eq!(table.find(expires + 2, &new(C).tuples[1], 0).is_some(), made);
    let free = table.free.pop(|_| &table.entries[0].next).is_some();
    assert!(!(free && made), "the entry is free and a connection's");
}

/// A packet finds an entry that is being used again, for a connection that only differs in the
/// other direction: it gets the one or the other, whole.
fn found_while_it_is_used_again() {
    let table = Arc::new(table());
    let tuple = new(A).tuples[0];
    let expires = table.insert(0, &new(A)).unwrap().life.expires();
    let packet = thread::spawn({
        let table = table.clone();
        move || {
            let Some(found) = table.peek(1, &tuple) else { return };
            let expected = if found.life.generation() == 0 { A } else { C };
            if let Some(peer) = table.peer(found) {
                assert_eq!(peer.dst(), expected);
            }
        }
    });
    while table.counts().expired == 0 {
        table.sweep(expires + 1, 1);
    }
    table.insert(0, &new(C)).unwrap();
    packet.join().unwrap();
}

/// What the index has is alive.
fn found_while_it_is_made() {
    let table = Arc::new(table());
    let tuple = new(A).tuples[0];
    let packet = thread::spawn({
        let table = table.clone();
        move || {
            let seen = table.index().find(table.hash(&tuple), |id| {
                assert!(table.is_live(id));
                table.peek(1, &tuple).is_some()
            });
            if seen.is_some() {
                assert_eq!(table.peer(table.peek(1, &tuple).unwrap()).unwrap().dst(), A);
            }
        }
    });
    table.insert(0, &new(A)).unwrap();
    packet.join().unwrap();
}

#[test]
fn what_is_used_does_not_expire() {
    check(3, used_while_it_expires);
    must_fail(Mutant::LifeNotExchanged, 3, used_while_it_expires);
}

#[test]
fn what_is_answered_is_not_dropped_early() {
    check(3, answered_while_it_is_dropped_early);
    must_fail(Mutant::LifeNotExchanged, 3, answered_while_it_is_dropped_early);
}

#[test]
fn what_is_dropped_early_does_not_expire() {
    check(3, dropped_early_while_it_expires);
    for m in [Mutant::DeadExpires, Mutant::LifeNotExchanged] {
        must_fail(m, 3, dropped_early_while_it_expires);
    }
}

#[test]
fn what_is_found_is_of_one_connection() {
    check(3, found_while_it_is_used_again);
    for m in [Mutant::EntryNotRechecked, Mutant::EntryNotFenced, Mutant::EntryRelaxed] {
        must_fail(m, 3, found_while_it_is_used_again);
    }
}

#[test]
fn what_is_found_is_whole() {
    check(3, found_while_it_is_made);
    must_fail(Mutant::SlotRelaxed, 3, found_while_it_is_made);
}
