//! Sending: Nagle, Minshall, cork, the peer's window, probes.

use super::talk::Talk;

#[test]
fn a_small_segment_waits_only_for_a_small_one() {
    let mut talk = Talk::accepted(|_| {});
    talk.run(
        "write 100
         > P. 1:101(100) ack 1
         write 100
         write 100
         +10 < . 1:1(0) ack 101 win 257
         > P. 101:301(200) ack 1
         +10 < . 1:1(0) ack 301 win 257
         // Minshall: behind a full segment, a small one goes.
         write 1000
         > P. 301:1301(1000) ack 1
         write 100
         > P. 1301:1401(100) ack 1
         write 100
         +10 < . 1:1(0) ack 1301 win 257
         +10 < . 1:1(0) ack 1401 win 257
         > P. 1401:1501(100) ack 1",
    );
}

#[test]
fn the_tail_of_a_write_goes_with_its_segments() {
    let mut talk = Talk::accepted(|_| {});
    talk.run("write 2500\n> P. 1:2501(2500) ack 1\n+10 < . 1:1(0) ack 2501 win 257");
}

#[test]
fn without_nagle_all_goes_at_once() {
    let mut talk = Talk::accepted(|_| {});
    talk.run(
        "nodelay on
         write 100
         > P. 1:101(100) ack 1
         write 100
         > P. 101:201(100) ack 1
         nodelay off
         write 100
         nodelay on
         > P. 201:301(100) ack 1",
    );
}

#[test]
fn a_cork_holds_a_partial_segment_for_200_ms() {
    let mut talk = Talk::accepted(|_| {});
    talk.run(
        "cork on
         write 100
         write 1000
         > . 1:1001(1000) ack 1
         +10 < . 1:1(0) ack 1001 win 257
         +210 > P. 1001:1101(100) ack 1
         +10 < . 1:1(0) ack 1101 win 257
         write 100
         +5 cork off
         > P. 1101:1201(100) ack 1",
    );
}

#[test]
fn msg_more_is_a_cork_for_one_write() {
    let mut talk = Talk::accepted(|_| {});
    talk.run(
        "write-more 100
         +5 write 100
         > P. 1:201(200) ack 1",
    );
}

#[test]
fn a_fin_pushes_everything() {
    let mut talk = Talk::accepted(|_| {});
    talk.run(
        "cork on
         write 100
         shutdown wr
         > FP. 1:101(100) ack 1",
    );
}

#[test]
fn the_first_window_is_ten_segments() {
    let mut talk = Talk::accepted(|_| {});
    talk.run("< . 1:1(0) ack 1 win 1000");
    let burst = "> P. 1:10001(10000) ack 1";
    talk.run(&format!(
        "write 20000\n{burst}\n+10 < . 1:1(0) ack 10001 win 1000\n> P. 10001:20001(10000) ack 1"
    ));
}

#[test]
fn nothing_goes_beyond_the_window() {
    let mut talk = Talk::listen(|_| {});
    talk.run(
        "< S 0:0(0) win 3500 <mss 1000,sackOK>
         > S. 0:0(0) ack 1
         +10 < . 1:1(0) ack 1 win 3500
         write 10000
         > . 1:3001(3000) ack 1
         +10 < . 1:1(0) ack 2001 win 2500
         > P. 3001:4001(1000) ack 1
         unsent 6000",
    );
}

#[test]
fn a_zero_window_is_probed_less_and_less_often() {
    let mut talk = Talk::accepted(|_| {});
    talk.run(
        "+10 < . 1:1(0) ack 1 win 0
         write 500
         +210 > . 0:0(0) ack 1
         < . 1:1(0) ack 1 win 0
         +420 > . 0:0(0) ack 1
         < . 1:1(0) ack 1 win 0
         +840 > . 0:0(0) ack 1
         < . 1:1(0) ack 1 win 0
         +1680 > . 0:0(0) ack 1
         < . 1:1(0) ack 1 win 0
         +3360 > . 0:0(0) ack 1
         < . 1:1(0) ack 1 win 0
         +6720 > . 0:0(0) ack 1
         +10 < . 1:1(0) ack 1 win 257
         > P. 1:501(500) ack 1",
    );
    assert_eq!(talk.end.counters.win_probe, 6);
}

#[test]
fn a_peer_that_answers_probes_is_not_given_up() {
    let mut talk = Talk::accepted(|_| {});
    talk.run("+10 < . 1:1(0) ack 1 win 0\nwrite 500");
    for _ in 0..40 {
        let due = talk.end.deadline();
        talk.end.time(due);
        assert!(talk.end.host.sent.pop_front().is_some());
        let answer = talk.parse(". 1:1(0) ack 1 win 0");
        talk.end.segment(&answer);
    }
    let took = (talk.end.now.0 - 1_000_000_000) / 1_000_000;
    assert!(took > 3000, "{took} s");
    talk.run("state Established");
}

#[test]
fn a_peer_that_answers_no_probe_is_given_up() {
    let mut talk = Talk::accepted(|_| {});
    talk.run("+10 < . 1:1(0) ack 1 win 0\nwrite 500");
    for _ in 0..40 {
        let due = talk.end.deadline();
        if !due.is_armed() {
            break;
        }
        talk.end.time(due);
    }
    talk.end.host.sent.clear();
    talk.run("state Closed\nerror TimedOut");
}

#[test]
fn a_window_that_shrank_below_a_segment_gets_what_fits_after_a_while() {
    let mut talk = Talk::accepted(|_| {});
    talk.run(
        "write 100
         > P. 1:101(100) ack 1
         +10 < . 1:1(0) ack 101 win 2
         write 1500
         +210 > P. 101:357(256) ack 1
         +10 < . 1:1(0) ack 357 win 257
         > P. 357:1601(1244) ack 1",
    );
}

#[test]
fn a_window_update_makes_data_go() {
    let mut talk = Talk::accepted(|_| {});
    talk.run(
        "write 1000
         > P. 1:1001(1000) ack 1
         +10 < . 1:1(0) ack 1001 win 0
         write 1000
         +50 < . 1:1(0) ack 1001 win 100
         > P. 1001:2001(1000) ack 1",
    );
}

#[test]
fn an_old_segment_does_not_change_the_window() {
    let mut talk = Talk::accepted(|_| {});
    talk.run(
        "+10 < P. 1:11(10) ack 1 win 257
         > . 1:1(0) ack 11
         +10 < . 1:1(0) ack 1 win 1
         > . 1:1(0) ack 11
         write 3000
         > P. 1:3001(3000) ack 11",
    );
}

#[test]
fn a_shrunken_window_is_no_error() {
    let mut talk = Talk::accepted(|_| {});
    talk.run(
        "write 5000
         > P. 1:5001(5000) ack 1
         +10 < . 1:1(0) ack 1001 win 8
         +10 < P. 1:11(10) ack 1001 win 8
         > . 2025:2025(0) ack 11
         +10 < . 11:11(0) ack 5001 win 257
         write 100
         > P. 5001:5101(100) ack 11",
    );
}

#[test]
fn refused_segments_are_sent_later() {
    let mut talk = Talk::accepted(|_| {});
    talk.run(
        "refuse on
         write 100
         refuse off
         unsent 100
         flush
         > P. 1:101(100) ack 1",
    );
}

#[test]
fn a_smaller_path_cuts_what_is_sent_again() {
    let mut talk = Talk::accepted(|_| {});
    talk.run(
        "write 2000
         > P. 1:2001(2000) ack 1
         +10 path-mss 800
         > P. 1:1001(1000) ack 1
         > P. 1001:2001(1000) ack 1",
    );
    assert_eq!(talk.end.conn().info(&talk.end.cfg).send.snd_mss, 800);
}

/// RFC 9293 3.8.6.2.1 (3): half the largest window goes at once, though no full segment fits.
#[test]
fn a_window_below_a_segment_is_not_served_by_probes() {
    let mut talk = Talk::listen(|_| {});
    talk.run(
        "< S 0:0(0) win 800 <mss 1000,sackOK>
         > S. 0:0(0) ack 1
         +10 < . 1:1(0) ack 1 win 800
         write 2000
         > P. 1:801(800) ack 1
         +10 < . 1:1(0) ack 801 win 800
         > P. 801:1601(800) ack 1
         +10 < . 1:1(0) ack 1601 win 800
         > P. 1601:2001(400) ack 1
         +10 < . 1:1(0) ack 2001 win 800",
    );
    assert_eq!(talk.end.conn().info(&talk.end.cfg).send.snd_mss, 400);
    // A window that grows makes whole segments possible.
    talk.run(
        "+10 < P. 1:2(1) ack 2001 win 5000
         > . 2001:2001(0) ack 2
         write 1500
         > P. 2001:3501(1500) ack 2",
    );
    assert_eq!(talk.end.conn().info(&talk.end.cfg).send.snd_mss, 1000);
}

#[test]
fn a_message_about_the_path_is_believed_as_far_as_it_can_be_true() {
    use crate::conn::PathFloor::{Ipv4, Ipv6};
    let mut talk = Talk::accepted(|_| {});
    talk.run("write 2000\n> P. 1:2001(2000) ack 1");
    let una = talk.end.iss + 1;
    let mss = |talk: &Talk| talk.end.conn().info(&talk.end.cfg).send.snd_mss;
    for (quoted, told) in [(una - 1, 600), (una + 2001, 600), (una, 2000), (una, 1460)] {
        talk.path_mss(quoted, told, Ipv4);
        talk.run("nothing");
        assert_eq!(mss(&talk), 1000, "{told} at {}", quoted - una);
    }
    talk.path_mss(una, 500, Ipv6);
    talk.run("nothing");
    assert_eq!((mss(&talk), talk.end.conn().info(&talk.end.cfg).path_mss), (1000, 1220));
    talk.path_mss(una + 2000, 100, Ipv4);
    assert_eq!(mss(&talk), 512);
    talk.end.host.sent.clear();
    talk.path_mss(una, 900, Ipv4);
    assert_eq!(mss(&talk), 512, "never more");
}

#[test]
fn what_was_refused_is_tried_again_in_half_a_second() {
    let mut talk = Talk::accepted(|_| {});
    // The first time as a probe is, after an RTO; it counts as one, though it does not back off.
    talk.run(
        "refuse on
         +10 write 1500
         +400 nothing",
    );
    let info = talk.end.conn().info(&talk.end.cfg).send;
    assert_eq!((info.backoff, info.probes), (0, 1));
    talk.run(
        "+200 refuse off
         +110 > P. 1:1001(1000) ack 1
         > P. 1001:1501(500) ack 1",
    );
    let info = talk.end.conn().info(&talk.end.cfg).send;
    assert_eq!((info.backoff, info.probes), (0, 0));
    // The SYN too.
    let mut talk = Talk::listen(|_| {});
    talk.end.listener = None;
    talk.end.host.refuse = true;
    talk.end.connect();
    talk.run("+10 refuse off\n+490 > S 0:0(0)");
}

/// What a window below a segment lets out is data in flight: its time-outs start with the RTO.
#[test]
fn a_probe_that_is_data_ends_the_backoff() {
    let mut talk = Talk::accepted(|_| {});
    talk.run(
        "write 100
         > P. 1:101(100) ack 1
         +10 < . 1:1(0) ack 101 win 0
         write 1500
         +210 > . 100:100(0) ack 1
         +420 > . 100:100(0) ack 1
         +840 > . 100:100(0) ack 1
         +10 < . 1:1(0) ack 101 win 2
         +1670 > P. 101:357(256) ack 1",
    );
    let info = talk.end.conn().info(&talk.end.cfg).send;
    assert_eq!((info.backoff, info.probes), (0, 0));
    let due = talk.end.deadline().0 - talk.end.now.0;
    assert!(due <= 420_000, "{due} µs");
    talk.end.host.sent.clear();
}

/// The simulator's seed 280550: each refused retransmission doubled the time-out.
#[test]
fn a_refused_probe_of_a_window_that_was_taken_back_does_not_back_off() {
    let mut talk = Talk::accepted(|_| {});
    talk.run(
        "write 1000
         > P. 1:1001(1000) ack 1
         +10 < . 1:1(0) ack 1 win 0
         refuse on
         +5000 nothing
         refuse off",
    );
    let due = talk.end.deadline();
    assert!(due.since(talk.end.now) <= crate::Span(500_000), "{due:?}");
}
