//! Packets that come late, not never.

use super::*;
use Kind::Retransmit;

fn flight(n: u32) -> Talk {
    let mut talk = Talk::new(Begin::default());
    talk.write(n);
    talk.took();
    talk.until(20);
    talk
}

#[test]
fn a_distance_of_one_or_two_retransmits_nothing() {
    for distance in 1..=2 {
        let mut talk = flight(10);
        talk.ack(3, &[]);
        for i in 1..=distance {
            talk.ack(3, &[(4, 4 + i)]);
        }
        talk.ack(4 + distance, &[]);
        assert_eq!((talk.took(), talk.state()), (vec![], CaState::Open), "{distance}");
        assert_eq!((talk.info().reord_seen, talk.counters.tcp_sack_reorder), (1, 1));
        talk.ack(10, &[]);
        assert_eq!(talk.counters.tcp_sack_recovery, 0);
    }
}

/// Three and more cost a retransmission, and DSACK undoes it.
#[test]
fn a_distance_of_three_is_undone_by_dsack() {
    for distance in [3, 6] {
        let mut talk = flight(10);
        talk.ack(3, &[]);
        talk.ack(3, &[(4, 4 + distance)]);
        assert_eq!((talk.took(), talk.state()), (vec![(3, Retransmit)], CaState::Recovery));
        talk.ack(4 + distance, &[]);
        talk.until(40);
        talk.ack(10, &[(3, 4)]);
        assert_eq!(talk.state(), CaState::Open);
        assert_eq!(talk.counters.tcp_dsack_undo + talk.counters.tcp_full_undo, 1, "{distance}");
        assert!(talk.sender.cwnd() >= 13, "{}", talk.sender.cwnd());
        assert_eq!(talk.info().snd_ssthresh, 0x7fff_ffff);
    }
}

/// Once reordering was seen, three packets after a hole are no loss: a quarter of the RTT has to
/// pass.
#[test]
fn known_reordering_ends_the_duplicate_threshold() {
    let mut talk = flight(10);
    talk.ack(0, &[(1, 2)]);
    talk.ack(10, &[]);
    assert_eq!(talk.info().reord_seen, 1);
    talk.write(10);
    talk.took();
    talk.until(40);
    talk.ack(10, &[(11, 17)]);
    assert_eq!((talk.took(), talk.state()), (vec![], CaState::Disorder));
    talk.ack(17, &[]);
    assert_eq!((talk.state(), talk.counters.tcp_sack_recovery), (CaState::Open, 0));
    assert_eq!(talk.info().reordering, 7, "in packets, for peers and rules that count");
}

/// A hole that stays: the reordering timer ends the wait.
#[test]
fn the_reordering_window_ends_by_itself() {
    let mut talk = flight(10);
    talk.ack(3, &[]);
    talk.ack(3, &[(4, 6)]);
    assert_eq!(talk.took(), []);
    // A quarter of 20 ms, and 2 ms.
    assert_eq!(talk.sender.deadline(), Instant(1_000_000 + 27_000));
    talk.until(26);
    assert_eq!(talk.took(), []);
    talk.until(27);
    assert_eq!((talk.took(), talk.state()), (vec![(3, Retransmit)], CaState::Recovery));
    // Then RTO is armed again.
    assert_eq!(talk.sender.deadline(), Instant(1_000_000 + 27_000 + 220_000));
}

/// DSACKs widen the window a quarter at a time, up to the smoothed RTT.
#[test]
fn dsacks_widen_the_window() {
    let mut talk = flight(10);
    talk.ack(10, &[]);
    let mut next = 10;
    let mut widths = vec![];
    for _ in 0..6 {
        talk.write(10);
        talk.took();
        talk.until(talk.ms() + 20);
        // 0 comes late by more than the window allows, and was sent again for nothing.
        talk.ack(next, &[(next + 1, next + 9)]);
        talk.until(talk.ms() + 19);
        talk.took();
        talk.ack(next + 9, &[]);
        talk.until(talk.ms() + 20);
        talk.ack(next + 10, &[(next, next + 1)]);
        next += 10;
        widths.push(talk.sender.reo_wnd(&talk.cfg).0);
    }
    assert!(widths[0] >= 5000, "{widths:?}");
    assert!(widths.windows(2).all(|pair| pair[1] >= pair[0]), "{widths:?}");
    let srtt = talk.info().rtt.0;
    assert!(*widths.last().unwrap() <= srtt, "{widths:?} {srtt}");
    assert!(*widths.last().unwrap() >= 15_000.min(srtt), "{widths:?} {srtt}");
}

/// A timestamp shows that the hole was filled by the original.
#[test]
fn a_partial_ack_with_an_old_echo_undoes() {
    let mut talk = flight(10);
    talk.ack(3, &[]);
    talk.until(21);
    talk.ack_with(3, &[(4, 7)], Some(1), false);
    assert_eq!((talk.took(), talk.state()), (vec![(3, Retransmit)], CaState::Recovery));
    talk.until(25);
    // 3 arrived in its first copy: the ACK that passes it echoes that.
    talk.ack_with(7, &[], Some(1), false);
    assert_eq!((talk.state(), talk.counters.tcp_partial_undo), (CaState::Open, 1));
    assert_eq!(talk.counters.tcp_ts_reorder + talk.counters.tcp_sack_reorder, 1);
    assert!(talk.sender.cwnd() >= 13);
}

/// A liar's DSACKs restore nothing: more than was retransmitted, or of what was not.
#[test]
fn dsacks_are_believed_for_own_retransmissions_alone() {
    let mut talk = flight(10);
    talk.ack(3, &[]);
    for _ in 0..10 {
        talk.ack(3, &[(0, 1)]);
    }
    assert_eq!(talk.counters.tcp_dsack_ignored_dubious, 10);
    assert_eq!((talk.info().dsack_dups, talk.state()), (0, CaState::Open));
    talk.ack(3, &[(5, 8)]);
    assert_eq!(talk.state(), CaState::Recovery);
    let cwnd = talk.sender.cwnd();
    // Two were sent again; a DSACK of ten is dubious.
    talk.ack(3, &[(0, 3), (5, 8)]);
    assert_eq!((talk.sender.cwnd(), talk.counters.tcp_dsack_undo), (cwnd, 0));
}

/// Duplicates of one recovery restore its window once.
#[test]
fn an_undo_happens_once() {
    let mut talk = flight(10);
    talk.write(40);
    talk.ack(3, &[]);
    talk.ack(3, &[(4, 7)]);
    talk.until(40);
    talk.ack(10, &[(3, 4)]);
    assert_eq!(talk.counters.tcp_dsack_undo, 1);
    let cwnd = talk.sender.cwnd();
    assert!(cwnd >= 13, "{cwnd}");
    for _ in 0..5 {
        talk.ack(10, &[(3, 4)]);
    }
    assert_eq!((talk.counters.tcp_dsack_undo, talk.sender.cwnd()), (1, cwnd));
}

/// With a coarse clock or an RTT of nothing, what is merely in flight is not lost.
#[test]
fn a_tiny_rtt_loses_nothing_that_was_sent_later() {
    let mut talk = Talk::with(Begin::default(), Config::default(), Some(1));
    talk.write(10);
    talk.took();
    talk.ack(1, &[]);
    talk.write(5);
    talk.ack(1, &[(2, 3)]);
    assert!(talk.info().lost <= 1, "{:?}", talk.info());
    talk.ack(10, &[]);
    assert_eq!(talk.info().lost, 0);
}

/// Without SACK, more duplicates than packets raise the threshold.
#[test]
fn reno_learns_the_degree() {
    let mut talk = Talk::new(Begin { sack: false, ..Begin::default() });
    talk.write(10);
    talk.until(20);
    talk.ack(4, &[]);
    talk.ack(4, &[]);
    talk.ack(4, &[]);
    let before = talk.info().reordering;
    // One packet passes SND.UNA, and more duplicates come than can be.
    for _ in 0..20 {
        talk.ack(4, &[]);
    }
    assert!(talk.info().reordering > before);
    assert!(talk.info().reordering <= 300);
}

/// One original came late, but a copy of another is out: its fate decides, not the echo.
#[test]
fn copies_that_are_out_forbid_a_partial_undo() {
    let mut talk = flight(10);
    talk.until(21);
    talk.ack_with(0, &[(2, 5)], Some(1), false);
    assert_eq!(talk.took(), [(0, Retransmit), (1, Retransmit)]);
    talk.until(25);
    talk.ack_with(1, &[(2, 5)], Some(1), false);
    assert_eq!((talk.counters.tcp_partial_undo, talk.state()), (0, CaState::Recovery));
}

/// A packet that is acknowledged in pieces is late in Linux's eyes: three packets after a hole are
/// no loss from then on, until a quarter of the RTT and 2 ms have passed.
#[test]
fn an_ack_within_a_packet_tells_of_reordering() {
    let mut talk = flight(10);
    let half = talk.seq(0) + MSS / 2;
    talk.ack_input(&AckInput { ack: half, ..QUIET });
    assert_eq!(talk.info().reord_seen, 0, "the rest may come yet");
    talk.ack(1, &[]);
    assert_eq!((talk.info().reord_seen, talk.counters.tcp_sack_reorder), (1, 1));
    talk.ack(1, &[(2, 5)]);
    assert_eq!((talk.took(), talk.state()), (vec![], CaState::Disorder));
    talk.until(27);
    assert_eq!((talk.took(), talk.state()), (vec![(1, Retransmit)], CaState::Recovery));
}

/// Within a run, the next packet's beginning goes with the end of the one before, as in Linux, that
/// cuts super-segments at SND.UNA.
#[test]
fn an_ack_within_a_run_does_not() {
    let mut talk = Talk::new(Begin::default());
    talk.max_len = 10 * MSS;
    talk.write(10);
    talk.took();
    talk.until(20);
    talk.ack_input(&AckInput { ack: talk.seq(0) + MSS / 2, ..QUIET });
    talk.ack(1, &[]);
    assert_eq!(talk.info().reord_seen, 0);
    talk.ack(1, &[(2, 5)]);
    assert_eq!((talk.took(), talk.state()), (vec![(1, Retransmit)], CaState::Recovery));
}

/// Four holes of which three were sent again, when the first proves to be late: `talk` is at 25 ms.
fn late_with_copies_out() -> Talk {
    let mut talk = flight(10);
    talk.until(21);
    talk.ack_with(0, &[(4, 7)], Some(0), false);
    assert_eq!(talk.took(), [(0, Retransmit), (1, Retransmit), (2, Retransmit)]);
    assert_eq!((talk.info().lost, talk.info().retrans), (4, 3));
    talk.until(25);
    talk.ack_with(1, &[(4, 7)], Some(0), false);
    talk
}

/// What was marked and not sent again is not lost any more, what was sent again stays.
#[test]
fn a_late_original_unmarks_what_was_not_sent_again() {
    let mut talk = late_with_copies_out();
    assert_eq!((talk.took(), talk.state()), (vec![], CaState::Recovery));
    assert_eq!((talk.info().lost, talk.info().retrans), (2, 2));
    assert_eq!(talk.counters.tcp_partial_undo, 0);
    // The originals of all come after all: nothing more was sent.
    talk.until(26);
    talk.ack_with(10, &[], Some(0), false);
    assert_eq!((talk.took(), talk.state(), talk.info().lost), (vec![], CaState::Open, 0));
}

/// A fast packet that was sent later does not make lost what may take as long as the late one did.
#[test]
fn what_was_late_once_gives_others_as_long() {
    let mut talk = late_with_copies_out();
    talk.write(1);
    assert_eq!(talk.took(), [(10, Kind::New)]);
    talk.until(26);
    // Its RTT of 1 ms is over for all that was sent before it.
    talk.ack_with(1, &[(4, 7), (10, 11)], Some(25), false);
    assert_eq!((talk.took(), talk.counters.tcp_lost_retransmit, talk.info().lost), (vec![], 0, 2));
    // The late one took 26 ms, by the clock of timestamps. Copies that left at 21 ms have as long.
    talk.until(46);
    assert_eq!(talk.counters.tcp_lost_retransmit, 0);
    talk.until(60);
    assert_eq!(talk.counters.tcp_lost_retransmit, 2);
}
