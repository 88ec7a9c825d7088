//! How connections begin (RFC 9293 3.5, 3.10.7.2–3).

use super::talk::Talk;
use crate::Seq;

#[test]
fn active_open() {
    let mut talk = Talk::connect(|_| {});
    talk.run(
        "> S 0:0(0) win 64240 <mss 1460,nop,nop,sackOK,nop,wscale 8>
         +10 < S. 0:0(0) ack 1 win 32768 <mss 1000,nop,wscale 6,nop,nop,sackOK>
         > . 1:1(0) ack 1
         state Established
         write 1000
         > P. 1:1001(1000) ack 1
         +10 < . 1:1(0) ack 1001 win 257
         unacked 0",
    );
}

#[test]
fn passive_open_and_data_both_ways() {
    let mut talk = Talk::accepted(|_| {});
    talk.run(
        "state Established
         < P. 1:101(100) ack 1 win 257
         > . 1:1(0) ack 101
         unread 100
         read 100
         write 50
         > P. 1:51(50) ack 101
         +5 < . 101:101(0) ack 51 win 257",
    );
}

#[test]
fn options_of_a_syn_ack_are_those_that_were_offered() {
    for (offered, answered) in [
        ("mss 1000,sackOK,nop,nop,nop,wscale 7", "mss 1460,nop,nop,sackOK,nop,wscale 8"),
        ("mss 1000,nop,wscale 7", "mss 1460,nop,wscale 8"),
        ("mss 1000,sackOK", "mss 1460,nop,nop,sackOK"),
        ("mss 1000,sackOK,TS val 7 ecr 0", "mss 1460,sackOK,TS val 0 ecr 7"),
        ("TS val 7 ecr 0,nop,wscale 14", "mss 1460,nop,nop,TS val 0 ecr 7,nop,wscale 8"),
        ("", "mss 1460"),
    ] {
        let mut talk = Talk::listen(|cfg| cfg.tcp_timestamps = 1);
        talk.run(&format!("< S 0:0(0) win 1000 <{offered}>\n> S. 0:0(0) ack 1 <{answered}>"));
    }
}

#[test]
fn knobs_take_options_away() {
    let mut talk = Talk::connect(|cfg| {
        (cfg.tcp_sack, cfg.tcp_window_scaling, cfg.tcp_timestamps) = (false, false, 1);
    });
    talk.run(
        "> S 0:0(0) win 64240 <mss 1460,nop,nop,TS val 0 ecr 0>
         +10 < S. 0:0(0) ack 1 win 1000 <mss 1000,sackOK,TS val 5 ecr 1,nop,wscale 7>
         > . 1:1(0) ack 1 win 64240 <nop,nop,TS val 10 ecr 5>",
    );
}

#[test]
fn a_syn_that_is_lost_for_ever_ends_after_131_seconds() {
    let mut talk = Talk::connect(|_| {});
    talk.run(
        "> S 0:0(0)
         +1000 > S 0:0(0)
         +1000 > S 0:0(0)
         +1000 > S 0:0(0)
         +1000 > S 0:0(0)
         +1000 > S 0:0(0)
         +2000 > S 0:0(0)
         +4000 > S 0:0(0)
         +8000 > S 0:0(0)
         +16000 > S 0:0(0)
         +32000 > S 0:0(0)
         +63999 state SynSent
         +2 state Closed
         error TimedOut
         error None",
    );
}

#[test]
fn a_syn_that_was_lost_leaves_a_window_of_one_segment() {
    let mut talk = Talk::connect(|_| {});
    talk.run(
        "> S 0:0(0)
         +1000 > S 0:0(0)
         +1000 > S 0:0(0)
         +10 < S. 0:0(0) ack 1 win 32768 <mss 1000,nop,nop,sackOK>
         > . 1:1(0) ack 1
         write 5000
         > . 1:1001(1000) ack 1
         +10 < . 1:1(0) ack 1001 win 32768
         > . 1001:3001(2000) ack 1",
    );
}

#[test]
fn a_syn_ack_that_is_lost_goes_again_until_the_request_is_forgotten() {
    let mut talk = Talk::listen(|_| {});
    talk.run(
        "< S 0:0(0) win 32792 <mss 1000,sackOK>
         > S. 0:0(0) ack 1
         +1000 > S. 0:0(0) ack 1
         +2000 > S. 0:0(0) ack 1
         +4000 > S. 0:0(0) ack 1
         +8000 > S. 0:0(0) ack 1
         +16000 > S. 0:0(0) ack 1
         +32001 nothing",
    );
    assert!(talk.end.request.is_none());
    assert_eq!(talk.end.listener.as_ref().unwrap().requests(), 0);
}

#[test]
fn a_syn_that_comes_again_is_answered_again_but_not_at_once() {
    let mut talk = Talk::listen(|_| {});
    talk.run(
        "< S 0:0(0) win 32792 <mss 1000,sackOK>
         > S. 0:0(0) ack 1
         +100 < S 0:0(0) win 32792 <mss 1000,sackOK>
         > S. 0:0(0) ack 1
         +100 < S 0:0(0) win 32792 <mss 1000,sackOK>
         +10 < . 1:1(0) ack 1 win 257
         state Established",
    );
    assert_eq!(talk.end.counters.ack_skipped_syn_recv, 1);
}

#[test]
fn a_third_ack_that_is_lost_is_made_good_by_data() {
    let mut talk = Talk::listen(|_| {});
    talk.run(
        "< S 0:0(0) win 32792 <mss 1000,sackOK>
         > S. 0:0(0) ack 1
         +30 < P. 1:501(500) ack 1 win 32792
         > . 1:1(0) ack 501
         state Established
         unread 500",
    );
}

#[test]
fn a_third_ack_with_another_number_is_refused() {
    let mut talk = Talk::listen(|_| {});
    talk.run(
        "< S 0:0(0) win 32792 <mss 1000,sackOK>
         > S. 0:0(0) ack 1
         < . 1:1(0) ack 2 win 257
         > R 2:2(0)
         < . 1:1(0) ack 0 win 257
         > R 0:0(0)
         state None
         < . 1:1(0) ack 1 win 257
         state Established",
    );
}

#[test]
fn a_reset_forgets_a_request_and_one_out_of_window_does_not() {
    let mut talk = Talk::listen(|_| {});
    talk.run(
        "< S 0:0(0) win 32792 <mss 1000,sackOK>
         > S. 0:0(0) ack 1
         < R 100000:100000(0) win 0
         < R. 1:1(0) ack 5 win 0",
    );
    talk.end.host.sent.clear();
    assert!(talk.end.request.is_some());
    talk.run("< R 1:1(0) win 0");
    assert!(talk.end.request.is_none());
    talk.run("< . 1:1(0) ack 1 win 257\n> R 1:1(0)");
}

#[test]
fn a_refused_connection_says_so() {
    let mut talk = Talk::connect(|_| {});
    talk.run(
        "> S 0:0(0)
         +10 < R. 0:0(0) ack 1 win 0
         state Closed
         error ConnectionRefused
         error None",
    );
}

#[test]
fn a_reset_without_a_good_ack_does_not_refuse() {
    let mut talk = Talk::connect(|_| {});
    talk.run(
        "> S 0:0(0)
         < R 0:0(0) win 0
         < R. 0:0(0) ack 7 win 0
         < . 0:0(0) ack 1 win 500
         < F. 0:0(0) ack 1 win 500
         state SynSent
         +2 > S 0:0(0)
         < S. 0:0(0) ack 1 win 500
         > . 1:1(0) ack 1
         state Established",
    );
}

#[test]
fn an_old_connection_that_answers_is_reset_and_the_syn_goes_again() {
    let mut talk = Talk::connect(|_| {});
    talk.run(
        "> S 0:0(0)
         +10 < . 77:77(0) ack 1000 win 500
         > R 1000:1000(0)
         +2 > S 0:0(0)
         +10 < S. 0:0(0) ack 1 win 500
         > . 1:1(0) ack 1",
    );
}

#[test]
fn an_echo_that_is_not_ours_is_reset() {
    let mut talk = Talk::connect(|cfg| cfg.tcp_timestamps = 1);
    talk.run(
        "> S 0:0(0)
         +10 < S. 0:0(0) ack 1 win 500 <mss 1000,TS val 9 ecr 4000>
         > R 1:1(0) <>
         state SynSent
         < S. 0:0(0) ack 1 win 500 <mss 1000,TS val 9 ecr 1>
         > . 1:1(0) ack 1 <nop,nop,TS val 10 ecr 9>",
    );
}

#[test]
fn crossed_syns_open_one_connection() {
    let mut talk = Talk::connect(|_| {});
    talk.run(
        "> S 0:0(0) <mss 1460,nop,nop,sackOK,nop,wscale 8>
         +10 < S 0:0(0) win 32768 <mss 1000,sackOK,nop,nop,nop,wscale 5>
         > S. 0:0(0) ack 1 <mss 1460,nop,nop,sackOK,nop,wscale 8>
         state SynReceived
         +10 < S. 0:0(0) ack 1 win 32768 <mss 1000,sackOK,nop,nop,nop,wscale 5>
         state Established
         write 100
         > P. 1:101(100) ack 1",
    );
}

#[test]
fn crossed_syns_may_also_be_acknowledged_bare() {
    let mut talk = Talk::connect(|_| {});
    talk.run(
        "> S 0:0(0)
         < S 0:0(0) win 32768 <mss 1000>
         > S. 0:0(0) ack 1
         +1000 > S. 0:0(0) ack 1
         < . 1:1(0) ack 1 win 1000
         state Established
         < P. 1:11(10) ack 1 win 1000
         > . 1:1(0) ack 11",
    );
}

#[test]
fn crossed_syns_with_a_bad_ack_are_reset() {
    let mut talk = Talk::connect(|_| {});
    talk.run(
        "> S 0:0(0)
         < S 0:0(0) win 32768 <mss 1000>
         > S. 0:0(0) ack 1
         < . 1:1(0) ack 5 win 1000
         > R 5:5(0)
         state SynReceived
         < R. 1:1(0) ack 1 win 0
         state Closed
         error ConnectionReset",
    );
}

#[test]
fn data_queued_before_the_handshake_carries_its_ack() {
    let mut talk = Talk::connect(|_| {});
    talk.run(
        "> S 0:0(0)
         write 700
         +10 < S. 0:0(0) ack 1 win 1000 <mss 1000,nop,wscale 7>
         > P. 1:701(700) ack 1
         +10 < . 1:1(0) ack 701 win 500",
    );
}

#[test]
fn closing_before_the_answer_sends_nothing() {
    let mut talk = Talk::connect(|_| {});
    talk.run(
        "> S 0:0(0)
         close
         state Closed
         +10 < S. 0:0(0) ack 1 win 500
         > R 1:1(0)",
    );
}

#[test]
fn shutting_down_before_the_answer_ends_it_too() {
    let mut talk = Talk::connect(|_| {});
    talk.run(
        "> S 0:0(0)
         shutdown wr
         state Closed
         error None",
    );
}

#[test]
fn without_an_mss_option_segments_hold_536_bytes() {
    let mut talk = Talk::listen(|_| {});
    talk.run(
        "< S 0:0(0) win 32792
         > S. 0:0(0) ack 1
         +10 < . 1:1(0) ack 1 win 32792
         write 1000
         > P. 1:1001(1000) ack 1",
    );
    assert_eq!(talk.end.conn().info(&talk.end.cfg).send.snd_mss, 536);
}

/// RFC 9293 3.7.1 (MUST-15), over IPv6.
#[test]
fn without_an_mss_option_over_ipv6_segments_hold_1220_bytes() {
    let mut talk = Talk::connect_with(|_| {}, crate::ConnOptions { ipv6: true, ..Default::default() });
    talk.run(
        "> S 0:0(0)
         +10 < S. 0:0(0) ack 1 win 32792
         > . 1:1(0) ack 1",
    );
    assert_eq!(talk.end.conn().info(&talk.end.cfg).send.snd_mss, 1220);
}

#[test]
fn a_tiny_mss_is_not_believed() {
    let mut talk = Talk::listen(|_| {});
    talk.run("< S 0:0(0) win 32792 <mss 8>\n> S. 0:0(0) ack 1\n+10 < . 1:1(0) ack 1 win 32792");
    assert_eq!(talk.end.conn().info(&talk.end.cfg).send.snd_mss, 48);
}

#[test]
fn ecn_is_asked_for_and_agreed_on() {
    let mut talk = Talk::connect(|cfg| cfg.tcp_ecn = 1);
    talk.run(
        "> SEW 0:0(0)
         +1000 > S 0:0(0)
         < SE. 0:0(0) ack 1 win 500 <mss 1000>
         > . 1:1(0) ack 1",
    );
    assert_eq!(talk.end.conn().info(&talk.end.cfg).options & 8, 0, "the last SYN did not ask");
    let mut talk = Talk::connect(|cfg| cfg.tcp_ecn = 1);
    talk.run("> SEW 0:0(0)\n< SE. 0:0(0) ack 1 win 500 <mss 1000>\n> . 1:1(0) ack 1");
    assert_eq!(talk.end.conn().info(&talk.end.cfg).options & 8, 8);
    let mut talk = Talk::connect(|cfg| cfg.tcp_ecn = 1);
    talk.run("> SEW 0:0(0)\n< SEW. 0:0(0) ack 1 win 500 <mss 1000>\n> . 1:1(0) ack 1");
    assert_eq!(talk.end.conn().info(&talk.end.cfg).options & 8, 0, "a reflection is no answer");
    let mut talk = Talk::listen(|_| {});
    talk.run("< SEW 0:0(0) win 500 <mss 1000>\n> SE. 0:0(0) ack 1\n< . 1:1(0) ack 1 win 500");
    assert_eq!(talk.end.conn().info(&talk.end.cfg).options & 8, 8);
}

#[test]
fn numbers_may_wrap() {
    for back in [0, 1, 2, 500, 1500] {
        let mut talk = Talk::accepted_at(Seq(u32::MAX - back), Seq(0u32.wrapping_sub(back)));
        talk.run(
            "write 2000
             > P. 1:2001(2000) ack 1
             +10 < P. 1:1001(1000) ack 1001 win 257
             > . 2001:2001(0) ack 1001
             +1 < P. 2001:3001(1000) ack 2001 win 257
             > . 2001:2001(0) ack 1001 <nop,nop,sack 2001:3001>
             +1 < P. 1001:2001(1000) ack 2001 win 257
             > . 2001:2001(0) ack 3001
             read 3000",
        );
    }
}

/// RFC 9293 3.10.4: a CLOSE in SYN-RECEIVED waits for the connection to be established.
#[test]
fn a_close_between_crossed_syns_waits_for_the_ack() {
    let mut talk = Talk::connect(|_| {});
    talk.run(
        "> S 0:0(0)
         +10 < S 0:0(0) win 32792 <mss 1000>
         > S. 0:0(0) ack 1
         shutdown wr
         state SynReceived
         +10 < . 1:1(0) ack 1 win 32792
         > F. 1:1(0) ack 1
         state FinWait1
         +10 < . 1:1(0) ack 2 win 32792
         state FinWait2",
    );
}
