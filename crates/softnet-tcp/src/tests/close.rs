//! How connections end (RFC 9293 3.6, 3.10.4, 3.10.5, 3.10.7.4).

use super::talk::Talk;

#[test]
fn this_end_closes_first() {
    let mut talk = Talk::accepted(|_| {});
    talk.run(
        "write 1000
         > P. 1:1001(1000) ack 1
         +10 < . 1:1(0) ack 1001 win 257
         close
         > F. 1001:1001(0) ack 1
         state FinWait1
         +10 < . 1:1(0) ack 1002 win 257
         time-wait on
         +10 < F. 1:1(0) ack 1002 win 257
         > . 1002:1002(0) ack 2
         +59999 time-wait on
         +2 time-wait off",
    );
}

#[test]
fn this_end_shuts_down_and_the_peer_goes_on_for_a_megabyte() {
    let mut talk = Talk::accepted(|_| {});
    talk.run("shutdown wr\n> F. 1:1(0) ack 1\n+10 < . 1:1(0) ack 2 win 257\nstate FinWait2");
    for i in 0..1024u32 {
        let (a, b) = (1 + i * 1024, 1 + (i + 1) * 1024);
        let segment = talk.parse(&format!(". {a}:{b}(1024) ack 2 win 257"));
        talk.end.segment(&segment);
        assert_eq!(talk.end.read(u32::MAX), 1024);
        talk.advance(crate::Instant(talk.end.now.0 + 60_000_000));
        talk.end.host.sent.clear();
    }
    talk.run(
        "+100000000 < F. 1048577:1048577(0) ack 2 win 257
         > . 2:2(0) ack 1048578
         time-wait on
         state Closed
         error None",
    );
}

#[test]
fn the_peer_closes_first() {
    let mut talk = Talk::accepted(|_| {});
    talk.run(
        "+10 < F. 1:1(0) ack 1 win 257
         > . 1:1(0) ack 2
         state CloseWait
         write 10
         > P. 1:11(10) ack 2
         +10 < . 2:2(0) ack 11 win 257
         close
         > F. 11:11(0) ack 2
         state LastAck
         +10 < . 2:2(0) ack 12 win 257
         state Closed
         time-wait off
         < . 2:2(0) ack 12 win 257
         > R 12:12(0)",
    );
}

#[test]
fn both_close_at_once() {
    let mut talk = Talk::accepted(|_| {});
    talk.run(
        "close
         > F. 1:1(0) ack 1
         +5 < F. 1:1(0) ack 1 win 257
         > . 2:2(0) ack 2
         state Closing
         +5 < . 2:2(0) ack 2 win 257
         state Closed
         time-wait on",
    );
}

#[test]
fn a_fin_in_closing_goes_again() {
    let mut talk = Talk::accepted(|_| {});
    talk.run(
        "close
         > F. 1:1(0) ack 1
         +5 < F. 1:1(0) ack 1 win 257
         > . 2:2(0) ack 2
         +205 > F. 1:1(0) ack 2
         state Closing
         +5 < . 2:2(0) ack 2 win 257
         time-wait on",
    );
}

#[test]
fn a_fin_that_acknowledges_the_fin_ends_at_once() {
    let mut talk = Talk::accepted(|_| {});
    talk.run(
        "shutdown wr
         > F. 1:1(0) ack 1
         +5 < F. 1:1(0) ack 2 win 257
         > . 2:2(0) ack 2
         state Closed
         time-wait on",
    );
}

#[test]
fn an_orphans_peer_may_close_with_its_ack() {
    let mut talk = Talk::accepted(|_| {});
    talk.run(
        "close
         > F. 1:1(0) ack 1
         +5 < F. 1:1(0) ack 2 win 257
         > . 2:2(0) ack 2
         state Closed
         time-wait on",
    );
}

#[test]
fn a_fin_waits_for_the_window_but_the_state_does_not() {
    let mut talk = Talk::accepted(|_| {});
    talk.run(
        "+10 < . 1:1(0) ack 1 win 0
         write 500
         close
         state FinWait1
         +10 < . 1:1(0) ack 1 win 257
         > FP. 1:501(500) ack 1
         +10 < . 1:1(0) ack 502 win 257
         time-wait on",
    );
}

#[test]
fn closing_with_unread_data_resets() {
    let mut talk = Talk::accepted(|_| {});
    talk.run(
        "+10 < P. 1:101(100) ack 1 win 257
         > . 1:1(0) ack 101
         close
         > R. 1:1(0) ack 101
         state Closed
         < . 101:101(0) ack 1 win 257
         > R 1:1(0)",
    );
    assert_eq!(talk.end.counters.abort_on_close, 1);
}

#[test]
fn lingering_for_no_time_resets() {
    let mut talk = Talk::accepted(|_| {});
    talk.run(
        "write 100
         > P. 1:101(100) ack 1
         linger-zero on
         close
         > R. 101:101(0) ack 1
         state Closed",
    );
}

#[test]
fn data_after_close_resets() {
    let mut talk = Talk::accepted(|_| {});
    talk.run(
        "close
         > F. 1:1(0) ack 1
         +10 < P. 1:101(100) ack 1 win 257
         > R 1:1(0)
         state Closed",
    );
    assert_eq!(talk.end.counters.abort_on_data, 1);
    let mut talk = Talk::accepted(|_| {});
    talk.run(
        "close
         > F. 1:1(0) ack 1
         +10 < . 1:1(0) ack 2 win 257
         time-wait on
         +10 < P. 1:101(100) ack 2 win 257
         > R 2:2(0)
         time-wait off",
    );
}

#[test]
fn ending_reading_alone_goes_on_receiving() {
    let mut talk = Talk::accepted(|_| {});
    talk.run(
        "shutdown rd
         +10 < P. 1:101(100) ack 1 win 257
         > . 1:1(0) ack 101
         read 100
         state Established
         write 10
         > P. 1:11(10) ack 101",
    );
}

#[test]
fn data_after_both_directions_were_shut_resets() {
    let mut talk = Talk::accepted(|_| {});
    talk.run(
        "shutdown rdwr
         > F. 1:1(0) ack 1
         +10 < . 1:1(0) ack 2 win 257
         +10 < P. 1:2(1) ack 2 win 257
         > R 2:2(0)
         state Closed
         error ConnectionReset",
    );
}

#[test]
fn a_fin_beyond_a_hole_waits_for_the_data() {
    let mut talk = Talk::accepted(|_| {});
    talk.run(
        "+10 < FP. 1001:1501(500) ack 1 win 257
         > . 1:1(0) ack 1 <nop,nop,sack 1001:1502>
         state Established
         unread 0
         +10 < . 1:1001(1000) ack 1 win 257
         > . 1:1(0) ack 1502
         state CloseWait
         unread 1500
         read 1500",
    );
}

#[test]
fn a_bare_fin_beyond_a_hole_waits_too() {
    let mut talk = Talk::accepted(|_| {});
    talk.run(
        "+10 < F. 501:501(0) ack 1 win 257
         > . 1:1(0) ack 1 <nop,nop,sack 501:502>
         < . 1:501(500) ack 1 win 257
         > . 1:1(0) ack 502
         state CloseWait",
    );
}

#[test]
fn nothing_is_taken_behind_a_fin() {
    let mut talk = Talk::accepted(|_| {});
    talk.run(
        "+10 < F. 1:1(0) ack 1 win 257
         > . 1:1(0) ack 2
         +10 < P. 2:102(100) ack 1 win 257
         state CloseWait
         unread 0
         drop TcpOverwindow",
    );
}

#[test]
fn a_fin_that_comes_again_is_acknowledged_again() {
    let mut talk = Talk::accepted(|_| {});
    talk.run(
        "+10 < F. 1:1(0) ack 1 win 257
         > . 1:1(0) ack 2
         +300 < F. 1:1(0) ack 1 win 257
         > . 1:1(0) ack 2 <nop,nop,sack 1:2>
         close
         > F. 1:1(0) ack 2
         +10 < F. 1:1(0) ack 1 win 257
         > . 2:2(0) ack 2 <nop,nop,sack 1:2>
         state LastAck",
    );
}

#[test]
fn a_reset_just_before_a_fin_is_believed() {
    let mut talk = Talk::accepted(|_| {});
    talk.run(
        "+10 < F. 1:1(0) ack 1 win 257
         > . 1:1(0) ack 2
         < R 1:1(0) win 0
         state Closed
         error BrokenPipe",
    );
}

#[test]
fn an_orphan_gives_its_unsent_data_eight_tries() {
    let mut talk = Talk::accepted(|_| {});
    talk.run("write 100\n> P. 1:101(100) ack 1\nclose\n> F. 101:101(0) ack 1");
    let closed = (0..200).find(|_| {
        let due = talk.end.deadline();
        talk.end.time(due);
        talk.end.state() == Some(crate::State::Closed)
    });
    assert!(closed.is_some());
    let took = (talk.end.now.0 - 1_000_000_000) / 1_000_000;
    assert!((50..160).contains(&took), "{took} s");
    assert_eq!(talk.end.counters.abort_on_timeout, 1);
}

#[test]
fn fin_wait_2_of_an_orphan_is_a_small_object_and_ends() {
    let mut talk = Talk::accepted(|_| {});
    talk.run(
        "close
         > F. 1:1(0) ack 1
         +10 < . 1:1(0) ack 2 win 257
         state Closed
         time-wait on
         +60001 time-wait off
         < F. 1:1(0) ack 2 win 257
         > R 2:2(0)",
    );
}

#[test]
fn linger2_shortens_or_forbids_the_wait() {
    let mut talk = Talk::accepted(|_| {});
    talk.run(
        "linger2 5
         close
         > F. 1:1(0) ack 1
         +10 < . 1:1(0) ack 2 win 257
         +5001 time-wait off",
    );
    let mut talk = Talk::accepted(|_| {});
    talk.run(
        "linger2 -1
         shutdown wr
         > F. 1:1(0) ack 1
         +10 < . 1:1(0) ack 2 win 257
         close
         > R. 2:2(0) ack 1
         time-wait off",
    );
    let mut talk = Talk::accepted(|_| {});
    talk.run(
        "linger2 90
         close
         > F. 1:1(0) ack 1
         +10 < . 1:1(0) ack 2 win 257
         state FinWait2
         time-wait off
         +30001 time-wait on
         state Closed
         +60001 time-wait off",
    );
}

#[test]
fn a_new_syn_takes_over_a_time_wait() {
    let mut talk = Talk::accepted(|_| {});
    talk.run(
        "close
         > F. 1:1(0) ack 1
         +10 < F. 1:1(0) ack 2 win 257
         > . 2:2(0) ack 2
         +1000 < S 5000:5000(0) win 32792 <mss 1000,sackOK>
         > S. 0:0(0) ack 5001",
    );
    assert_eq!(talk.end.iss, crate::Seq(1_000_002 + 65_537));
    talk.run("< . 5001:5001(0) ack 1 win 257\nstate Established");
}

#[test]
fn what_arrived_before_a_reset_is_still_read() {
    let mut talk = Talk::accepted(|_| {});
    talk.run(
        "+10 < P. 1:101(100) ack 1 win 257
         > . 1:1(0) ack 101
         < R. 101:101(0) ack 1 win 0
         state Closed
         unread 100
         read 100
         error ConnectionReset",
    );
}

#[test]
fn data_behind_a_fin_that_waits_is_handed_back() {
    let mut talk = Talk::accepted(|_| {});
    talk.run(
        "+10 < F. 501:501(0) ack 1 win 257
         > . 1:1(0) ack 1 <nop,nop,sack 501:502>
         < P. 501:601(100) ack 1 win 257
         > . 1:1(0) ack 1 <nop,nop,sack 501:502>
         drop TcpOverwindow",
    );
}
