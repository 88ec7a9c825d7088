//! Memory of all connections together becomes scarce, and runs out.

use super::talk::Talk;
use crate::DropReason;
use crate::conn::Memory;

/// Beyond a hole no more is held than four segments take, from the lowest on; what is dropped is not
/// reported any more, and comes again.
#[test]
fn what_lies_beyond_holes_gives_way_to_pressure() {
    let mut talk = Talk::accepted(|_| {});
    talk.run(
        "< . 2001:3001(1000) ack 1 win 257
         > . 1:1(0) ack 1 <sack 2001:3001>",
    );
    for at in 4..20 {
        talk.play(&format!("< . {0}001:{1}001(1000) ack 1 win 257", 2 * at, 2 * at + 1));
        talk.end.host.sent.clear();
    }
    let held = |talk: &Talk| (talk.end.counters.ofo_pruned, talk.end.counters.ofo_drop);
    assert_eq!(held(&talk), (0, 0), "there is enough");
    // While it is scarce all stays that fits.
    talk.end.host.memory = Memory::Scarce;
    talk.play("< . 4001:5001(1000) ack 1 win 257");
    talk.end.host.sent.clear();
    assert_eq!(held(&talk), (0, 0));
    talk.end.host.memory = Memory::Exhausted;
    // A segment before them: what is furthest goes for it.
    talk.play("< . 6001:7001(1000) ack 1 win 257");
    let (pruned, dropped) = held(&talk);
    assert!(pruned >= 8 && dropped == 0, "{pruned} of 18, {dropped}");
    assert_eq!(talk.end.counters.prune_called, 1);
    talk.end.host.sent.clear();
    talk.end.host.memory = Memory::Exhausted;
    // One behind them has no room, and is dropped for a reason that is counted.
    talk.play("< . 60001:61001(1000) ack 1 win 257");
    talk.end.host.sent.clear();
    assert_eq!((held(&talk), talk.end.host.drops.last()), ((pruned, 1), Some(&DropReason::ProtoMem)));
    // There is some again: what is next in order is taken, and all of it comes again.
    talk.end.host.memory = Memory::Scarce;
    for at in 0..40 {
        talk.play(&format!("+1 < . {}:{}(1000) ack 1 win 257", at * 1000 + 1, at * 1000 + 1001));
        let unread = talk.end.conn().unread();
        talk.end.read(unread);
        talk.end.host.sent.clear();
    }
    assert_eq!(talk.end.host.delivered, 40_000);
    assert_eq!(talk.end.counters.rcv_q_drop, 0);
}

/// No memory is left: the segment is dropped and counted, the peer hears of a window of zero at once, and
/// what the segment acknowledged has been acknowledged; sent again later it is taken.
#[test]
fn what_finds_no_memory_is_dropped_and_counted() {
    let mut talk = Talk::accepted(|_| {});
    talk.run("write 1000\n> P. 1:1001(1000) ack 1");
    talk.end.host.memory = Memory::Exhausted;
    talk.run(
        "+10 < P. 1:1001(1000) ack 1001 win 257
         > . 1001:1001(0) ack 1 win 0
         drop ProtoMem",
    );
    assert_eq!((talk.end.conn().unacked(), talk.end.counters.rcv_q_drop), (0, 1));
    // What waits beyond a hole gives its memory to what closes the hole.
    talk.end.host.memory = Memory::Ample;
    talk.play("+10 < P. 2001:3001(1000) ack 1001 win 257");
    talk.end.host.sent.clear();
    talk.end.host.memory = Memory::Exhausted;
    talk.play("+10 < P. 1:1001(1000) ack 1001 win 257");
    talk.end.host.sent.clear();
    assert_eq!((talk.end.counters.ofo_pruned, talk.end.host.delivered), (1, 1000));
    talk.end.host.memory = Memory::Ample;
    talk.play("+10 < P. 1001:3001(2000) ack 1001 win 257");
    assert_eq!(talk.end.host.delivered, 3000);
    talk.end.host.sent.clear();
}
