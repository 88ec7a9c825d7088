//! Receiving: order, acknowledgements, windows.

use super::talk::Talk;

#[test]
fn a_hole_is_told_and_closed() {
    let mut talk = Talk::accepted(|_| {});
    talk.run(
        "+10 < . 1001:2001(1000) ack 1 win 257
         > . 1:1(0) ack 1 <nop,nop,sack 1001:2001>
         +1 < . 3001:4001(1000) ack 1 win 257
         > . 1:1(0) ack 1 <nop,nop,sack 3001:4001 1001:2001>
         +1 < . 2001:3001(1000) ack 1 win 257
         > . 1:1(0) ack 1 <nop,nop,sack 1001:4001>
         unread 0
         +1 < . 1:1001(1000) ack 1 win 257
         > . 1:1(0) ack 4001
         read 4000",
    );
    assert_eq!(talk.end.counters.ofo_queue, 3);
}

#[test]
fn with_timestamps_three_blocks_fit() {
    let mut talk = Talk::listen(|cfg| cfg.tcp_timestamps = 1);
    talk.run(
        "< S 0:0(0) win 32792 <mss 1000,sackOK,TS val 1 ecr 0,nop,wscale 7>
         > S. 0:0(0) ack 1
         < . 1:1(0) ack 1 win 257 <TS val 1 ecr 0>
         < . 1001:2001(1000) ack 1 win 257 <TS val 2 ecr 0>
         > . 1:1(0) ack 1 <nop,nop,TS val 0 ecr 1,sack 1001:2001>
         < . 3001:4001(1000) ack 1 win 257 <TS val 2 ecr 0>
         > . 1:1(0) ack 1 <nop,nop,TS val 0 ecr 1,sack 3001:4001 1001:2001>
         < . 5001:6001(1000) ack 1 win 257 <TS val 2 ecr 0>
         > . 1:1(0) ack 1 <nop,nop,TS val 0 ecr 1,sack 5001:6001 3001:4001 1001:2001>",
    );
    let segment = talk.parse(". 7001:8001(1000) ack 1 win 257 <TS val 2 ecr 0>");
    talk.end.segment(&segment);
    talk.run("+1 > . 1:1(0) ack 1 <nop,nop,TS val 0 ecr 1,sack 7001:8001 5001:6001 3001:4001>");
}

#[test]
fn a_duplicate_is_reported() {
    let mut talk = Talk::accepted(|_| {});
    talk.run(
        "+10 < . 1:1001(1000) ack 1 win 257
         > . 1:1(0) ack 1001
         +10 < . 1:1001(1000) ack 1 win 257
         > . 1:1(0) ack 1001 <nop,nop,sack 1:1001>
         +10 < . 501:1501(1000) ack 1 win 257
         > . 1:1(0) ack 1501 <nop,nop,sack 501:1001>
         read 1500
         +10 < . 2001:3001(1000) ack 1 win 257
         > . 1:1(0) ack 1501 <nop,nop,sack 2001:3001>
         +10 < . 2001:3001(1000) ack 1 win 257
         > . 1:1(0) ack 1501 <nop,nop,sack 2001:3001 2001:3001>
         +10 < . 2501:3501(1000) ack 1 win 257
         > . 1:1(0) ack 1501 <nop,nop,sack 2501:3001 2001:3501>",
    );
    assert_eq!((talk.end.counters.dsack_old_sent, talk.end.counters.dsack_ofo_sent), (2, 2));
}

#[test]
fn a_peer_without_sack_gets_bare_duplicate_acks() {
    let mut talk = Talk::listen(|_| {});
    talk.run(
        "< S 0:0(0) win 32792 <mss 1000>
         > S. 0:0(0) ack 1
         +10 < . 1:1(0) ack 1 win 257
         < . 1001:2001(1000) ack 1 win 257
         > . 1:1(0) ack 1
         < . 2001:3001(1000) ack 1 win 257
         > . 1:1(0) ack 1
         < . 3001:4001(1000) ack 1 win 257
         > . 1:1(0) ack 1
         < . 1001:2001(1000) ack 1 win 257
         > . 1:1(0) ack 1
         < . 1:1001(1000) ack 1 win 257
         > . 1:1(0) ack 4001",
    );
}

#[test]
fn only_the_first_duplicate_acks_go_at_once() {
    let mut talk = Talk::accepted(|_| {});
    talk.run("write 10\n> P. 1:11(10) ack 1\n+10 < . 1:1(0) ack 11 win 257");
    for i in 1..=3u32 {
        let (a, b) = (1 + i * 1000, 1001 + i * 1000);
        talk.run(&format!("< . {a}:{b}(1000) ack 11 win 257\n> . 11:11(0) ack 1 <sack 1001:{b}>"));
    }
    talk.run(
        "< . 4001:5001(1000) ack 11 win 257
         < . 5001:6001(1000) ack 11 win 257
         +1 > . 11:11(0) ack 1 <sack 1001:6001>",
    );
    assert_eq!(talk.end.counters.ack_compressed, 2);
}

#[test]
fn a_delayed_ack_waits_forty_milliseconds_outside_quick_mode() {
    let mut talk = Talk::accepted(|_| {});
    talk.run("quickack off");
    talk.run(
        "+10 < P. 1:101(100) ack 1 win 257
         +40 > . 1:1(0) ack 101
         read 100",
    );
    assert_eq!(talk.end.counters.delayed_acks, 1);
}

#[test]
fn an_answer_carries_the_ack() {
    let mut talk = Talk::accepted(|_| {});
    talk.run(
        "quickack off
         +10 < P. 1:101(100) ack 1 win 257
         read 100
         +5 write 200
         > P. 1:201(200) ack 101
         +100 < P. 101:201(100) ack 201 win 257
         read 100
         write 200
         > P. 201:401(200) ack 201",
    );
}

#[test]
fn every_second_full_segment_is_acknowledged() {
    let mut talk = Talk::accepted(|_| {});
    talk.run(
        "quickack off
         +1 < . 1:1001(1000) ack 1 win 257
         read 1000
         < . 1001:2001(1000) ack 1 win 257
         > . 1:1(0) ack 2001
         read 1000
         < . 2001:3001(1000) ack 1 win 257
         +1 read 1000
         +39 > . 1:1(0) ack 3001",
    );
}

#[test]
fn quickack_sends_what_is_owed() {
    let mut talk = Talk::accepted(|_| {});
    talk.run(
        "quickack off
         +1 < . 1:1001(1000) ack 1 win 257
         +5 quickack on
         > . 1:1(0) ack 1001",
    );
}

#[test]
fn a_window_that_opens_again_is_told_at_once() {
    let mut talk = Talk::accepted(|_| {});
    talk.run("rcvbuf 8192");
    let mut at = 1u32;
    for _ in 0..3 {
        let segment = talk.parse(&format!(". {at}:{}(1000) ack 1 win 257", at + 1000));
        talk.end.segment(&segment);
        at += 1000;
    }
    talk.end.host.sent.clear();
    let before = talk.end.conn().info(&talk.end.cfg).rcv_wnd;
    assert_eq!(talk.end.read(u32::MAX), 3000);
    let after = talk.end.conn().info(&talk.end.cfg).rcv_wnd;
    assert!(after >= before, "{before} then {after}");
}

#[test]
fn a_closed_window_drops_answers_and_opens() {
    let mut talk = Talk::accepted(|_| {});
    talk.run("rcvbuf 4096");
    let mut at = 1u32;
    let told = loop {
        let len = 500;
        let segment = talk.parse(&format!(". {at}:{}({len}) ack 1 win 257", at + len));
        talk.end.segment(&segment);
        let acked = talk.end.host.sent.pop_back().map(|(_, emit)| emit);
        talk.end.host.sent.clear();
        let Some(emit) = acked else { continue };
        if emit.window == 0 {
            break emit.ack - talk.end.irs.unwrap();
        }
        at = emit.ack - talk.end.irs.unwrap();
        assert!(at < 200_000, "the window never closes");
    };
    let unread = talk.end.conn().unread();
    // A probe with a byte, one without, and a segment before the window.
    for probe in [
        format!("+600 < . {told}:{}(1) ack 1 win 257", told + 1),
        format!("+600 < . {}:{}(0) ack 1 win 257", told - 1, told - 1),
    ] {
        talk.run(&format!("{probe}\n> . 1:1(0) ack {told} win 0"));
        assert_eq!(talk.end.conn().unread(), unread);
    }
    assert_eq!(talk.end.read(u32::MAX), unread);
    let (_, emit) = talk.end.host.sent.pop_front().expect("a window update");
    assert!(emit.window > 0);
    assert!(talk.end.counters.to_zero_window_adv > 0 && talk.end.counters.from_zero_window_adv > 0);
}

#[test]
fn old_timestamps_are_dropped_and_answered() {
    let mut talk = Talk::listen(|cfg| cfg.tcp_timestamps = 1);
    talk.run(
        "< S 0:0(0) win 32792 <mss 1000,sackOK,TS val 5000 ecr 0,nop,wscale 7>
         > S. 0:0(0) ack 1
         < . 1:1(0) ack 1 win 257 <TS val 5000 ecr 0>
         < P. 1:101(100) ack 1 win 257 <TS val 5010 ecr 0>
         > . 1:1(0) ack 101 <TS val 0 ecr 5010>
         < P. 101:201(100) ack 1 win 257 <TS val 4000 ecr 0>
         > . 1:1(0) ack 101 <TS val 0 ecr 5010>
         drop TcpRfc7323Paws
         unread 100
         < P. 101:201(100) ack 1 win 257
         > . 1:1(0) ack 201 <TS val 0 ecr 5010>
         < R. 201:201(0) ack 1 win 0 <TS val 1 ecr 0>
         state Closed",
    );
    assert_eq!(talk.end.counters.paws_estab, 1);
}

#[test]
fn timestamps_may_wrap() {
    let mut talk = Talk::listen(|cfg| cfg.tcp_timestamps = 1);
    talk.run(
        "< S 0:0(0) win 32792 <mss 1000,sackOK,TS val 4294967290 ecr 0>
         > S. 0:0(0) ack 1
         < . 1:1(0) ack 1 win 257 <TS val 4294967295 ecr 0>
         < P. 1:101(100) ack 1 win 257 <TS val 4 ecr 0>
         > . 1:1(0) ack 101 <TS val 0 ecr 4>
         < P. 101:201(100) ack 1 win 257 <TS val 4294967295 ecr 0>
         > . 1:1(0) ack 101 <TS val 0 ecr 4>
         +2073600001 < P. 101:201(100) ack 1 win 257 <TS val 4294967295 ecr 0>
         > . 1:1(0) ack 201 <TS val 2073600001 ecr 4294967295>",
    );
}

#[test]
fn the_echoed_timestamp_is_of_the_segment_that_is_acknowledged() {
    let mut talk = Talk::listen(|cfg| cfg.tcp_timestamps = 1);
    talk.run(
        "< S 0:0(0) win 32792 <mss 1000,sackOK,TS val 100 ecr 0>
         > S. 0:0(0) ack 1
         < . 1:1(0) ack 1 win 257 <TS val 100 ecr 0>
         quickack off
         +1 < . 1:501(500) ack 1 win 257 <TS val 110 ecr 0>
         +1 < . 501:1001(500) ack 1 win 257 <TS val 120 ecr 0>
         +39 > . 1:1(0) ack 1001 <TS val 41 ecr 110>
         < . 2001:3001(1000) ack 1 win 257 <TS val 130 ecr 0>
         > . 1:1(0) ack 1001 <TS val 41 ecr 110,sack 2001:3001>
         < . 1001:2001(1000) ack 1 win 257 <TS val 140 ecr 0>
         > . 1:1(0) ack 3001 <TS val 41 ecr 140>",
    );
}

#[test]
fn ecn_is_echoed_until_cwr() {
    let mut talk = Talk::listen(|_| {});
    talk.run(
        "< SEW 0:0(0) win 32792 <mss 1000,sackOK>
         > SE. 0:0(0) ack 1
         < . 1:1(0) ack 1 win 32792
         < . 1:1001(1000) ack 1 win 32792 ce
         > E. 1:1(0) ack 1001
         < . 1001:2001(1000) ack 1 win 32792
         > E. 1:1(0) ack 2001
         < W. 2001:3001(1000) ack 1 win 32792
         > . 1:1(0) ack 3001",
    );
}

#[test]
fn memory_for_what_waits_beyond_a_hole_is_bounded() {
    let mut talk = Talk::accepted(|_| {});
    talk.run("rcvbuf 16384");
    for i in (0..60u32).rev() {
        let a = 1001 + i * 20;
        let segment = talk.parse(&format!(". {a}:{}(10) ack 1 win 257", a + 10));
        talk.end.segment(&segment);
    }
    talk.end.host.sent.clear();
    let (held, buf) = talk.end.conn().info(&talk.end.cfg).rmem;
    assert!(held <= buf, "{held} of {buf}");
    assert!(talk.end.counters.ofo_pruned > 0 || talk.end.counters.ofo_drop > 0);
    // What is in order is taken all the same.
    let segment = talk.parse(". 1:1001(1000) ack 1 win 257");
    talk.end.segment(&segment);
    assert!(talk.end.conn().unread() >= 1000);
}

#[test]
fn a_batch_of_segments_is_acknowledged_once() {
    let mut talk = Talk::accepted(|_| {});
    for i in 0..8u32 {
        let segment = talk.parse(&format!(". {}:{}(1000) ack 1 win 257", 1 + i * 1000, 1001 + i * 1000));
        talk.end.segment_in_batch(&segment);
    }
    talk.run("flush\n> . 1:1(0) ack 8001\nread 8000");
}

#[test]
fn a_merged_segment_counts_as_its_packets() {
    let mut talk = Talk::accepted(|_| {});
    talk.run(
        "quickack off
         +1 < . 1:8001(8000) ack 1 win 257 segs 8
         > . 1:1(0) ack 8001",
    );
    let info = talk.end.conn().info(&talk.end.cfg);
    assert_eq!((info.rcv_mss, info.data_segs_in), (1000, 8));
}

/// A segment with blocks is no longer than a full one: 12 bytes for a block, 20 for two.
#[test]
fn blocks_ride_on_data_only_where_they_fit() {
    let both = "sack 3001:4001 1001:2001";
    for (len, sack) in [(989, ""), (988, "sack 3001:4001"), (981, "sack 3001:4001"), (980, both)] {
        let mut talk = Talk::accepted(|_| {});
        talk.run(&format!(
            "nodelay on
             +10 < . 1001:2001(1000) ack 1 win 257
             > . 1:1(0) ack 1 <sack 1001:2001>
             < . 3001:4001(1000) ack 1 win 257
             > . 1:1(0) ack 1 <{both}>
             write {len}
             > P. 1:{end}({len}) ack 1 <{sack}>",
            end = len + 1,
        ));
    }
}

/// Data that has no room for blocks does not stand for the ACK that would carry them.
#[test]
fn an_ack_with_blocks_follows_data_without() {
    for (len, blocks) in [(1000, ""), (980, "<sack 1001:5001>")] {
        let mut talk = Talk::accepted(|_| {});
        talk.run("nodelay on\nwrite 10\n> P. 1:11(10) ack 1\n+10 < . 1:1(0) ack 11 win 257");
        for i in 1..=3u32 {
            let (a, b) = (1 + i * 1000, 1001 + i * 1000);
            talk.run(&format!("< . {a}:{b}(1000) ack 11 win 257\n> . 11:11(0) ack 1 <sack 1001:{b}>"));
        }
        let end = 11 + len;
        talk.run(&format!(
            "< . 4001:5001(1000) ack 11 win 257
             write {len}
             > P. 11:{end}({len}) ack 1 {blocks}"
        ));
        if len == 1000 {
            talk.run("+1 > . 1011:1011(0) ack 1 <sack 1001:5001>");
        } else {
            talk.run("+5 nothing");
        }
    }
}

/// RFC 2883 4: the block that holds the duplicate follows its report.
#[test]
fn a_duplicate_brings_its_block_to_the_front() {
    let mut talk = Talk::accepted(|_| {});
    talk.run(
        "+10 < . 1001:2001(1000) ack 1 win 257
         > . 1:1(0) ack 1 <sack 1001:2001>
         +1 < . 3001:4001(1000) ack 1 win 257
         > . 1:1(0) ack 1 <sack 3001:4001 1001:2001>
         +1 < . 1001:2001(1000) ack 1 win 257
         > . 1:1(0) ack 1 <sack 1001:2001 1001:2001 3001:4001>",
    );
}

/// A compressed ACK that was refused goes later, and its timer does not stay due.
#[test]
fn a_refused_compressed_ack_is_sent_later() {
    let mut talk = Talk::accepted(|_| {});
    talk.run("write 10\n> P. 1:11(10) ack 1\n+10 < . 1:1(0) ack 11 win 257");
    for i in 1..=3u32 {
        let (a, b) = (1 + i * 1000, 1001 + i * 1000);
        talk.run(&format!("< . {a}:{b}(1000) ack 11 win 257\n> . 11:11(0) ack 1 <sack 1001:{b}>"));
    }
    talk.run(
        "< . 4001:5001(1000) ack 11 win 257
         refuse on
         +10 nothing
         refuse off
         +191 > . 11:11(0) ack 1 <sack 1001:5001>",
    );
}

/// What a refused ACK would have acknowledged may come again: the peer has not seen the window.
#[test]
fn a_refused_ack_tells_no_window() {
    let mut talk = Talk::accepted(|_| {});
    talk.run(
        "+10 < . 1:1001(1000) ack 1 win 257
         > . 1:1(0) ack 1001
         read 1000
         refuse on
         +10 < . 1001:3001(2000) ack 1 win 257
         read 2000
         refuse off
         +10 < . 1001:2001(1000) ack 1 win 257
         > . 1:1(0) ack 3001 <sack 1001:2001>
         drop TcpOldData",
    );
}

/// The simulator's seed 143005 (of its first plan): an end whose memory a hole had taken was
/// deaf for ever.
#[test]
fn what_waits_beyond_a_hole_gives_way_to_what_fills_it() {
    let mut talk = Talk::accepted(|_| {});
    talk.run(
        "rcvbuf 2304
         < . 1:1001(1000) ack 1 win 257
         > . 1:1(0) ack 1001
         < . 1001:2001(1000) ack 1 win 257
         +40 > . 1:1(0) ack 2001
         < . 2001:2051(50) ack 1 win 257
         > . 1:1(0) ack 2001 win 0
         drop ProtoMem
         read-some 1000
         < . 2101:3101(1000) ack 1 win 257
         > . 1:1(0) ack 2001 win 0 <sack 2101:3101>
         read-some 1000
         < P. 2001:2101(100) ack 1 win 257
         > . 1:1(0) ack 3101
         read 1100
         > . 1:1(0) ack 3101",
    );
}

/// The simulator's seed 50671: memory for one and a half of the two segments that were promised.
#[test]
fn two_segments_that_were_promised_are_both_taken() {
    let mut talk = Talk::accepted(|_| {});
    talk.run(
        "rcvbuf 2304
         < . 1:578(577) ack 1 win 257
         > . 1:1(0) ack 578
         < . 578:1155(577) ack 1 win 257
         +40 > . 1:1(0) ack 1155
         read 1154",
    );
}

/// A run is measured by all of its payload beside all of its memory: the window that its segments
/// would open, one by one, is what it opens.
#[test]
fn a_run_opens_the_window_as_its_segments_do() {
    let mut windows = [1, 60].map(|segs| {
        let mut talk = Talk::accepted(|cfg| cfg.tcp_rmem[1] = 8 << 20);
        let first = talk.parse("P. 1:1001(1000) ack 1 win 257");
        let len = 1000 * u32::from(segs);
        for i in 0..3000 / u32::from(segs) {
            talk.advance(crate::Instant(talk.end.now.0 + 100));
            talk.end.segment(&crate::Segment { seq: first.seq + i * len, len, segs, ..first });
            assert_eq!(talk.end.read(u32::MAX), len);
        }
        talk.end.conn().info(&talk.end.cfg).rcv_ssthresh
    });
    windows.sort_unstable();
    assert!(windows[0] > 2_000_000 && windows[1] - windows[0] < windows[0] / 4, "{windows:?}");
}
