//! Runs of segments: where they end, what they carry, and what lets the last of them go.

use super::end::enter;
use super::talk::Talk;
use crate::conn::{Piece, SockOpt};

/// What left, as lengths and whether PSH was set.
fn taken(talk: &mut Talk) -> Vec<(u32, bool)> {
    let sent = talk.end.host.sent.drain(..);
    sent.map(|(_, emit)| (emit.len, emit.flags.any(crate::Flags::PSH))).collect()
}

/// At 10 ms, a window of ten is no millisecond's worth of two segments: those are the least.
#[test]
fn a_run_is_what_a_millisecond_sends() {
    let mut talk = Talk::accepted(|_| {});
    talk.end.write(5500, false);
    let pairs = [(2000, true), (2000, true), (1500, true)];
    assert_eq!(taken(&mut talk), pairs);
}

/// Whatever the rate, two runs are in flight; one segment alone is no run, and has no PSH.
#[test]
fn half_the_window_is_a_run() {
    let mut talk = Talk::accepted(|cfg| cfg.tcp_min_tso_segs = 40);
    talk.end.write(30_000, false);
    assert_eq!(taken(&mut talk), [(5000, true), (5000, true)]);
    let mut talk = Talk::accepted(|cfg| cfg.tcp_min_tso_segs = 3);
    talk.end.write(30_000, false);
    assert_eq!(taken(&mut talk), [(3000, true), (3000, true), (3000, true), (1000, false)]);
}

/// A record ends a segment, however short; the next begins one of its own, also the second time.
#[test]
fn a_record_is_not_joined_to_the_next() {
    let mut talk = Talk::accepted(|_| {});
    let una = talk.end.iss + 1;
    let ends = [400, 800, 2800];
    talk.end.host.pieces = ends.map(|end| Piece { end: una + end, psh: end != 400 }).to_vec();
    talk.end.write(2800, false);
    assert_eq!(taken(&mut talk), [(400, false), (400, true), (2000, true)]);
    talk.run(
        "+10 < . 1:1(0) ack 1 win 257 <sack 801:2801>
         +4.5 > . 1:401(400) ack 1",
    );
}

/// A tail with MSG_MORE waits for the flush of its own write only, and carries no PSH.
#[test]
fn more_to_come_holds_back_until_an_ack() {
    let mut talk = Talk::accepted(|_| {});
    talk.run(
        "nodelay on
         write-more 2100
         > P. 1:2001(2000) ack 1
         write-more 50
         +10 < . 1:1(0) ack 2001 win 257
         > . 2001:2151(150) ack 1
         +10 < . 1:1(0) ack 2151 win 257
         write-more 20
         write 20
         > P. 2151:2191(40) ack 1",
    );
}

/// TCP_NODELAY sends what a cork holds, once.
#[test]
fn nodelay_goes_round_a_cork() {
    let mut talk = Talk::accepted(|_| {});
    talk.run(
        "cork on
         write 40
         nodelay on
         > P. 1:41(40) ack 1
         write 40
         nothing",
    );
    assert_eq!(talk.end.conn().unsent(), 40);
}

/// The last FIN asks for no room in the congestion window; data before it does.
#[test]
fn a_last_fin_goes_beyond_the_window() {
    let mut talk = Talk::accepted(|_| {});
    talk.end.write(10_000, false);
    assert_eq!(talk.end.conn().info(&talk.end.cfg).send.unacked, 10);
    taken(&mut talk);
    talk.run("shutdown wr\n> F. 10001:10001(0) ack 1");
    let mut talk = Talk::accepted(|_| {});
    talk.end.write(13_000, false);
    taken(&mut talk);
    talk.run("shutdown wr\nnothing");
    assert!(talk.end.host.sent.is_empty(), "three segments wait before it");
}

/// Writers stop at the low-water mark, and pollers are woken below half of it; 0 is the stack's.
#[test]
fn unsent_data_has_a_low_water_mark() {
    let mut talk = Talk::accepted(|cfg| cfg.tcp_notsent_lowat = 9000);
    let writable = |talk: &Talk| talk.end.conn().is_writable(&talk.end.cfg);
    assert_eq!(talk.end.conn().notsent_lowat(&talk.end.cfg), 9000);
    talk.end.write(14_000, false);
    assert!(writable(&talk), "4,000 unsent");
    talk.end.write(1000, false);
    assert!(!writable(&talk), "5,000 unsent");
    for (lowat, is) in [(20_000, true), (0, false)] {
        enter!(&mut talk.end, conn, cx => conn.set_option(cx, SockOpt::NotsentLowat(lowat))).unwrap();
        assert_eq!(writable(&talk), is, "{lowat}");
    }
}

/// What waits before the device holds a connection back that has something in flight, and no other (Linux
/// `tcp_small_queue_check`); a retransmission may find twice as much there.
#[test]
fn a_connection_does_not_add_to_a_long_queue() {
    let mut talk = Talk::accepted(|cfg| cfg.tcp_limit_output_bytes = 5000);
    talk.end.host.backlog = 1 << 30;
    talk.end.write(20_000, false);
    // Of what waits there no more than what is in flight is its own.
    assert_eq!((taken(&mut talk), talk.end.host.throttled), (vec![(2000, true); 3], 1));
    // Fewer wait: it goes on when it is asked, and stops as soon as there are as many again.
    talk.end.host.backlog = 3999;
    talk.end.after();
    let n = taken(&mut talk).iter().map(|(len, _)| len).sum::<u32>();
    assert_eq!((n, talk.end.host.throttled), (4000, 1), "as far as the congestion window goes");
    talk.end.host.backlog = 5000;
    talk.run("+10 < . 1:1(0) ack 2001 win 257");
    assert_eq!((taken(&mut talk), talk.end.host.throttled), (vec![], 2));
    // What was lost goes all the same.
    talk.run("+1 < . 1:1(0) ack 2001 win 257 <sack 4001:10001>\n> P. 2001:4001(2000) ack 1");
}

/// However much others have waiting there: a first window leaves whole, on a long path too, later ones as
/// far as that; and what a time-out has sent again leaves in any case.
#[test]
fn a_queue_of_others_starves_no_connection() {
    let mut talk = Talk::accepted(|_| {});
    talk.end.host.backlog = 1 << 30;
    talk.end.write(60_000, false);
    let sum = |talk: &mut Talk| taken(talk).iter().map(|(len, _)| len).sum::<u32>();
    assert_eq!((sum(&mut talk), talk.end.host.throttled), (10_000, 0));
    talk.play("+50 < . 1:1(0) ack 10001 win 257");
    assert_eq!((sum(&mut talk), talk.end.host.throttled > 0), (10_000, true));
    let before = talk.end.counters.send.retrans_segs;
    talk.advance(talk.end.now + crate::Span::from_millis(2000));
    let send = talk.end.counters.send;
    assert!(send.tcp_timeouts > 1 && send.retrans_segs - before >= send.tcp_timeouts, "{send:?}");
}

/// What this host dropped before it left goes again without an ACK that tells of it, and the window is
/// reduced once (Linux `tcp_transmit_skb`, NET_XMIT_DROP); but not at once, into what is full.
#[test]
fn what_never_left_is_sent_again() {
    let mut talk = Talk::accepted(|_| {});
    talk.end.write(10_000, false);
    assert_eq!(taken(&mut talk).len(), 5);
    let first = talk.end.iss + 1;
    let dropped = |talk: &mut Talk, at: u32, len: u32| {
        enter!(&mut talk.end, conn, cx => conn.local_drop(cx, first + at, len));
        talk.end.after();
    };
    // What is not in flight is nothing to be told of.
    dropped(&mut talk, 10_000, 2000);
    assert_eq!((talk.end.conn().info(&talk.end.cfg).send.lost, talk.end.host.throttled), (0, 0));
    dropped(&mut talk, 6000, 4000);
    assert_eq!((taken(&mut talk), talk.end.host.throttled), (vec![], 1), "the host is to ask again");
    let send = talk.end.conn().info(&talk.end.cfg).send;
    assert_eq!((send.lost, send.snd_ssthresh), (4, 7));
    talk.end.after();
    assert_eq!(taken(&mut talk), [(1000, false)], "the first of them, by PRR");
    // The same again: no further reduction.
    dropped(&mut talk, 6000, 1000);
    assert_eq!(talk.end.conn().info(&talk.end.cfg).send.snd_ssthresh, 7);
    talk.play("+10 < . 1:1(0) ack 6001 win 257");
    let again: u32 = taken(&mut talk).iter().map(|(len, _)| len).sum();
    assert_eq!(again, 4000, "without a block that says so");
    talk.run("+10 < . 1:1(0) ack 10001 win 257");
    let send = talk.end.conn().info(&talk.end.cfg).send;
    assert_eq!((send.unacked, send.lost, send.total_retrans), (0, 0, 5));
    assert_eq!(talk.end.counters.send.tcp_timeouts, 0);
}

/// What finds no room ever again times out in the end, however often it is sent.
#[test]
fn what_never_leaves_times_out() {
    let mut talk = Talk::accepted(|_| {});
    talk.end.write(1000, false);
    let first = talk.end.iss + 1;
    for _ in 0..300 {
        taken(&mut talk);
        enter!(&mut talk.end, conn, cx => conn.local_drop(cx, first, 1000));
        talk.end.after();
        talk.advance(talk.end.now + crate::Span::from_millis(10));
        talk.end.after();
    }
    let send = talk.end.counters.send;
    assert!(send.tcp_timeouts > 2, "{send:?}");
}

/// All of a flight was dropped: nothing comes that could tell.
#[test]
fn a_flight_that_never_left_does_not_wait_for_a_timeout() {
    let mut talk = Talk::accepted(|_| {});
    talk.end.write(3000, false);
    talk.end.shutdown(crate::conn::Shutdown::Write);
    taken(&mut talk);
    let first = talk.end.iss + 1;
    enter!(&mut talk.end, conn, cx => conn.local_drop(cx, first, 3001));
    talk.end.after();
    assert_eq!(taken(&mut talk), []);
    talk.end.after();
    assert_eq!(taken(&mut talk).len(), 1);
    talk.play("+10 < . 1:1(0) ack 1001 win 257");
    assert_eq!(taken(&mut talk).iter().map(|(len, _)| len).sum::<u32>(), 2000);
    talk.play("+10 < . 1:1(0) ack 3001 win 257");
    let last = talk.end.host.sent.pop_back().unwrap().1;
    assert!(last.flags.any(crate::Flags::FIN), "{last:?}");
    talk.run("+10 < . 1:1(0) ack 3002 win 257");
    assert_eq!(talk.end.counters.send.tcp_timeouts, 0);
}

/// The send buffer grows for a writer that waits while the window has room, and for no other.
#[test]
fn a_buffer_grows_for_those_that_wait() {
    for (waits, grows) in [(true, true), (false, false)] {
        let mut talk = Talk::accepted(|_| {});
        let sndbuf = |talk: &Talk| talk.end.conn().info(&talk.end.cfg).wmem.1;
        let before = sndbuf(&talk);
        talk.end.write(10_000, false);
        taken(&mut talk);
        enter!(&mut talk.end, conn, cx => { let _ = cx; conn.waits_for_room(waits) });
        talk.run("+10 < . 1:1(0) ack 10001 win 257");
        assert_eq!(sndbuf(&talk) > before, grows);
    }
}

/// Flights of a writer that waits for room, each acknowledged `ms` later with the window field `window`.
/// Returns the size of the send buffer.
fn flights(talk: &mut Talk, bytes: u32, (ms, window): (u32, u32), n: usize) -> u32 {
    for _ in 0..n {
        talk.end.write(bytes, false);
        taken(talk);
        enter!(&mut talk.end, conn, cx => { let _ = cx; conn.waits_for_room(true) });
        while talk.end.host.sent.pop_front().is_some() {}
        let send = talk.end.conn().info(&talk.end.cfg).send;
        let acked = 1 + send.bytes_acked as u32 + send.unacked * 1000;
        talk.play(&format!("+{ms} < . 1:1(0) ack {acked} win {window}"));
    }
    talk.end.conn().info(&talk.end.cfg).wmem.1
}

/// A large send buffer does not grow beyond two of the peer's windows, however large the congestion
/// window gets, and grows when the peer's window does.
#[test]
fn a_buffer_holds_two_of_the_peers_windows() {
    let mut talk = Talk::accepted(|_| {});
    let two = 2 * 33 * (2048 + 256);
    assert!(flights(&mut talk, 600_000, (10, 257), 60) > two, "a small one is not bounded by it");
    let small = flights(&mut talk, 600_000, (10, 1200), 60);
    let info = talk.end.conn().info(&talk.end.cfg);
    assert!(info.send.snd_cwnd * 1000 > info.snd_wnd, "{} {}", info.send.snd_cwnd, info.snd_wnd);
    assert_eq!(small, 2 * info.snd_wnd.div_ceil(1000) * (2048 + 256), "segments, and what describes them");
    assert!(flights(&mut talk, 600_000, (10, 2400), 60) > small);
}

/// On a path of a short round trip the send buffer grows less, in proportion to it: here one of 10 ms,
/// where that is short.
#[test]
fn a_buffer_stays_small_on_a_short_path() {
    for (low_ms, most) in [(0, 4 << 20), (10, 4 << 20), (20, 2 << 20), (1000, 512 << 10)] {
        let mut talk = Talk::accepted(|cfg| cfg.tcp_rcvbuf_low_rtt_us = low_ms * 1000);
        let sndbuf = flights(&mut talk, 2_000_000, (10, 60_000), 30);
        assert_eq!(sndbuf, most, "short is below {low_ms} ms");
    }
}

/// A handshake that a proxy nearby answers, or a path that was short once, bounds nothing.
#[test]
fn a_path_that_is_no_longer_short_has_the_whole_buffer() {
    let mut talk = Talk::accepted(|cfg| cfg.tcp_rcvbuf_low_rtt_us = 20_000);
    let sndbuf = flights(&mut talk, 2_000_000, (300, 60_000), 30);
    let least = talk.end.conn().info(&talk.end.cfg).send.min_rtt;
    assert_eq!((sndbuf, least.0), (4 << 20, 10_000));
}

/// What bounds a connection is told in time: here, the peer's window.
#[test]
fn a_closed_window_is_timed() {
    let mut talk = Talk::accepted(|_| {});
    talk.run(
        "+10 < . 1:1(0) ack 1 win 0
         write 1000
         +100 < . 1:1(0) ack 1 win 100
         > P. 1:1001(1000) ack 1
         +30 < . 1:1(0) ack 1001 win 100",
    );
    let info = talk.end.conn().info_at(&talk.end.cfg, talk.end.now);
    assert_eq!(info.chrono.times(), (130_000, 100_000, 0));
}
