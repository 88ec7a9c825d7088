//! The windows' last crumbs wait for an ACK that is due (`tcp_tso_should_defer`).

use super::*;

/// Twenty packets out in runs of ten, ten of them acknowledged, and much more queued.
fn clocked() -> Talk {
    let mut talk = Talk::new(Begin::default());
    talk.max_len = 10 * MSS;
    talk.write(200);
    talk.until(20);
    talk.ack(10, &[]);
    assert_eq!((talk.new_packets().len(), talk.sender.in_flight()), (30, 20));
    talk
}

#[test]
fn what_is_less_than_a_run_waits_for_the_next_ack() {
    let mut talk = clocked();
    talk.until(40);
    talk.ack(17, &[]);
    // The window has room for 14: a run of ten goes, and four are less than a third of it.
    assert_eq!((talk.sender.cwnd(), talk.new_packets()), (27, (30..40).collect()));
    assert_eq!(talk.sender.in_flight(), 23);
    assert!(talk.sender.deadline().is_armed());
    talk.ack(20, &[]);
    assert_eq!(talk.sender.cwnd(), 30, "the window was full all the same");
    assert_eq!(talk.new_packets(), (40..50).collect::<Vec<_>>());
}

/// Without an ACK in sight, after a pause, or if it is all there is, nothing waits.
#[test]
fn nothing_waits_in_vain() {
    // The next ACK is a round trip away.
    let mut talk = clocked();
    talk.until(21);
    talk.ack(13, &[]);
    assert_eq!((talk.sender.cwnd(), talk.sender.in_flight()), (23, 23));
    // The last run left long ago.
    let mut talk = clocked();
    talk.until(40);
    talk.ack(12, &[]);
    assert_eq!((talk.sender.cwnd(), talk.sender.in_flight()), (22, 22));
    // All that is queued fits.
    let mut talk = Talk::new(Begin::default());
    talk.max_len = 10 * MSS;
    talk.write(10 + 20 + 12);
    talk.until(20);
    talk.ack(10, &[]);
    talk.until(40);
    talk.ack(17, &[]);
    assert_eq!((talk.sender.nxt(), talk.sender.in_flight()), (talk.write_seq, 25));
}
