//! Conversations: what a sender does, packet by packet, in virtual time.

mod defer;
mod loss;
mod marks;
mod net;
mod path;
mod random;
mod reordering;
mod timeout;
mod wrap;

use super::sim::{Begin, MSS, QUIET, Talk};
use super::*;

/// A sender does not grow a connection's memory before it has something to recover from.
#[test]
fn an_idle_sender_is_small() {
    let talk = Talk::new(Begin::default());
    assert_eq!(talk.sender.memory(), 0);
    assert!(size_of::<Sender>() <= 224, "{}", size_of::<Sender>());
    assert!(size_of::<cold::Cold>() <= 200, "{}", size_of::<cold::Cold>());
    const { assert!(cc::LARGEST <= 200) };
}

/// A request and its response cost one small ring, which idling returns.
#[test]
fn a_short_exchange_holds_eight_records() {
    let mut talk = Talk::new(Begin::default());
    talk.write(4);
    talk.until(20);
    talk.ack(4, &[]);
    assert_eq!(talk.sender.memory(), 8 * 32);
    // A TSO segment's packets are no reason to allocate again and again; more are.
    talk.write(44);
    talk.until(40);
    while talk.sender.packets_out() > 0 {
        let sent = talk.sender.nxt() - talk.base;
        talk.ack(sent / MSS, &[]);
    }
    let kept = talk.sender.ring.memory();
    assert!((16 * 32..=64 * 32).contains(&kept), "{kept}");
    talk.sender.release_memory();
    assert_eq!(talk.sender.ring.memory(), 0);
    assert_eq!(talk.sender.deadline(), Instant::NEVER);
}
