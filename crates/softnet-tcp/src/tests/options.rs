//! What options change, as conversations: low-water marks, congestion controls; and urgent data, which
//! changes nothing.

use super::end::enter;
use super::talk::Talk;
use crate::config::CongestionControl;
use crate::conn::{ConnOptions, SockOpt};

fn set(talk: &mut Talk, option: SockOpt) {
    enter!(&mut talk.end, conn, cx => conn.set_option(cx, option)).unwrap();
    talk.end.after();
}

/// Readable from the mark on, or as soon as a reader that blocks has what it waits for; a FIN makes
/// whatever is there enough.
#[test]
fn a_reader_waits_for_the_low_water_mark() {
    let mut talk = Talk::accepted(|_| {});
    let readable = |talk: &Talk| talk.end.conn().is_readable();
    set(&mut talk, SockOpt::RcvLowat(1500));
    assert_eq!((talk.end.conn().read_target(9000), talk.end.conn().read_target(4)), (1500, 4));
    talk.run("< P. 1:1001(1000) ack 1 win 257\n> . 1:1(0) ack 1001");
    assert!(!readable(&talk));
    // One that blocks for less gets that, once.
    enter!(&mut talk.end, conn, cx => { let _ = cx; conn.reader_waits(1200) });
    assert!(!readable(&talk));
    talk.run("< P. 1001:1201(200) ack 1 win 257\n> . 1:1(0) ack 1201");
    assert!(readable(&talk));
    talk.run("read-some 1000");
    assert!(!readable(&talk), "200 are left, and nothing waits for less than 1500");
    talk.run("< P. 1201:2501(1300) ack 1 win 257\n> . 1:1(0) ack 2501");
    assert!(readable(&talk));
    talk.run("read 1500\n< F. 2501:2501(0) ack 1 win 257\n> . 1:1(0) ack 2502");
    assert!(readable(&talk), "the end");
}

/// The buffer grows to hold what is to wait (Linux `tcp_set_rcvlowat`), unless it was set; half of what it
/// may be is the most.
#[test]
fn a_buffer_holds_the_low_water_mark() {
    let buffer = |talk: &Talk| talk.end.conn().info(&talk.end.cfg).rmem.1;
    let mut talk = Talk::accepted(|_| {});
    let before = buffer(&talk);
    set(&mut talk, SockOpt::RcvLowat(1000));
    assert_eq!(buffer(&talk), before, "they fit");
    set(&mut talk, SockOpt::RcvLowat(1 << 20));
    assert!(buffer(&talk) >= 1 << 20, "{}", buffer(&talk));
    set(&mut talk, SockOpt::RcvLowat(u32::MAX));
    assert_eq!(talk.end.conn().read_target(u32::MAX), (15 << 20) / 2);
    // Not one that was set.
    let mut talk = Talk::accepted(|_| {});
    talk.run("rcvbuf 20000");
    set(&mut talk, SockOpt::RcvLowat(1 << 20));
    assert_eq!((buffer(&talk), talk.end.conn().read_target(u32::MAX)), (20_000, 10_000));
    // What a listener was told, its connections begin with.
    let mut options = ConnOptions::default();
    options.set(SockOpt::RcvLowat(1 << 20)).unwrap();
    let mut talk = Talk::listen_with(|_| {}, options, 16);
    talk.run(
        "< S 0:0(0) win 32792 <mss 1000,sackOK,nop,nop,nop,wscale 7>
         > S. 0:0(0) ack 1
         +10 < . 1:1(0) ack 1 win 257",
    );
    assert!(buffer(&talk) >= 1 << 20, "{}", buffer(&talk));
    assert_eq!(talk.end.conn().read_target(u32::MAX), 1 << 20);
}

/// A connection that has another congestion control from some time on goes on with its window.
#[test]
fn another_congestion_control_takes_over() {
    let mut talk = Talk::accepted(|_| {});
    let send = |talk: &Talk| talk.end.conn().info(&talk.end.cfg).send;
    assert_eq!(send(&talk).congestion, CongestionControl::Cubic);
    talk.end.write(10_000, false);
    talk.run("> P. 1:10001(10000) ack 1\n+10 < . 1:1(0) ack 10001 win 257");
    let before = send(&talk).snd_cwnd;
    assert_eq!(before, 20, "slow start");
    for control in [CongestionControl::Reno, CongestionControl::Dctcp, CongestionControl::Cubic] {
        set(&mut talk, SockOpt::Congestion(control));
        assert_eq!((send(&talk).congestion, send(&talk).snd_cwnd), (control, before));
    }
    // Half of the window at a loss is Reno's.
    set(&mut talk, SockOpt::Congestion(CongestionControl::Reno));
    talk.end.write(20_000, false);
    talk.run("> P. 10001:30001(20000) ack 1");
    talk.run(
        "+10 < . 1:1(0) ack 10001 win 257 <sack 11001:16001>
         > . 10001:11001(1000) ack 1",
    );
    assert_eq!(send(&talk).snd_ssthresh, 10);
}

/// DCTCP asks for what it lives by, whatever `tcp_ecn` says (Linux `tcp_ca_needs_ecn`).
#[test]
fn dctcp_asks_for_ecn() {
    for (control, syn) in [(CongestionControl::Dctcp, "SEW"), (CongestionControl::Reno, "S")] {
        let mut options = ConnOptions::default();
        options.set(SockOpt::Congestion(control)).unwrap();
        let mut talk = Talk::connect_with(|cfg| cfg.tcp_ecn = 2, options);
        talk.run(&format!("> {syn} 0:0(0)"));
        assert_eq!(talk.end.conn().info(&talk.end.cfg).send.congestion, control);
    }
}

/// And agrees to it.
#[test]
fn dctcp_agrees_to_ecn() {
    for (control, answer) in [(CongestionControl::Dctcp, "SE."), (CongestionControl::Reno, "S.")] {
        let mut talk = Talk::listen(|cfg| (cfg.tcp_ecn, cfg.tcp_congestion_control) = (0, control));
        talk.run(&format!(
            "< SEW 0:0(0) win 32792 <mss 1000,sackOK,nop,nop,nop,wscale 7>
             > {answer} 0:0(0) ack 1"
        ));
    }
}

/// Its SYNs may be marked on their way, and ask all the same (RFC 8257 section 3.1); to others a mark on a SYN
/// is no answer that ECN works (RFC 3168 section 6.1.1).
#[test]
fn a_marked_syn_asks_dctcp_for_ecn_and_no_other() {
    for (control, tcp_ecn, answer) in [
        (CongestionControl::Dctcp, 0, "SE."),
        (CongestionControl::Dctcp, 1, "SE."),
        (CongestionControl::Reno, 1, "S."),
    ] {
        let mut talk = Talk::listen(|cfg| (cfg.tcp_ecn, cfg.tcp_congestion_control) = (tcp_ecn, control));
        talk.run(&format!(
            "< SEW 0:0(0) win 32792 ce <mss 1000,sackOK,nop,nop,nop,wscale 7>
             > {answer} 0:0(0) ack 1
             +10 < . 1:1(0) ack 1 win 257"
        ));
        // The mark was the SYN's, and is no mark of data; that of data is echoed while it lasts.
        let (marked, plain) = if answer == "SE." { ("E.", ".") } else { (".", ".") };
        talk.run(&format!(
            "< P. 1:1001(1000) ack 1 win 257
             > {plain} 1:1(0) ack 1001
             < P. 1001:2001(1000) ack 1 win 257 ce
             > {marked} 1:1(0) ack 2001
             < P. 2001:3001(1000) ack 1 win 257
             > {plain} 1:1(0) ack 3001"
        ));
    }
}

/// Urgent bytes are bytes of the stream, where they stand in it (`SO_OOBINLINE`), whatever the pointer
/// says; a retransmission of them, one beyond a hole, and one with a FIN are as any other.
#[test]
fn urgent_data_is_data() {
    let mut talk = Talk::accepted(|_| {});
    talk.run(
        "< U. 1:11(10) ack 1 win 257
         > . 1:1(0) ack 11
         < U. 1:11(10) ack 1 win 257
         > . 1:1(0) ack 11 <nop,nop,sack 1:11>
         +100 < U. 21:31(10) ack 1 win 257
         > . 1:1(0) ack 11 <nop,nop,sack 21:31>
         < U. 11:21(10) ack 1 win 257
         > . 1:1(0) ack 31
         read 30
         +50 < UF. 31:32(1) ack 1 win 257
         > . 1:1(0) ack 33
         read 1
         state CloseWait",
    );
    // Without data it announces what is to come: nothing to do.
    let mut talk = Talk::accepted(|_| {});
    talk.run("< U. 1:1(0) ack 1 win 257\nunread 0\nstate Established");
}

/// A connection that succeeds one in TIME-WAIT echoes the last timestamp from there (RFC 6191).
#[test]
fn a_successor_echoes_the_last_timestamp() {
    let mut talk = Talk::connect(|cfg| cfg.tcp_timestamps = 1);
    enter!(&mut talk.end, conn, cx => conn.succeed(cx.now, 777));
    // The first SYN has left; it is sent again after a second.
    talk.run("> S 0:0(0)\n+1000 > S 0:0(0) <mss 1460,sackOK,TS val 1000 ecr 777,nop,wscale 8>");
    talk.run(
        "< S. 0:0(0) ack 1 win 32792 <mss 1000,sackOK,TS val 900 ecr 1000,nop,wscale 7>
         > . 1:1(0) ack 1 <nop,nop,TS val 1000 ecr 900>
         state Established",
    );
}
