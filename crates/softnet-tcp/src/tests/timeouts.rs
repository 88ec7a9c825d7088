//! Time: keepalive, the user's time-out, giving up.

use super::talk::Talk;

#[test]
fn keepalive_finds_a_dead_peer() {
    let mut talk = Talk::accepted(|_| {});
    talk.run(
        "keepidle 10
         keepintvl 5
         keepcnt 3
         keepalive on
         +10000 > . 0:0(0) ack 1
         +5000 > . 0:0(0) ack 1
         +5000 > . 0:0(0) ack 1
         +5000 > R. 1:1(0) ack 1
         state Closed
         error TimedOut",
    );
    assert_eq!(talk.end.counters.keep_alive, 3);
}

#[test]
fn keepalive_is_content_with_an_answer() {
    let mut talk = Talk::accepted(|_| {});
    talk.run(
        "keepidle 10
         keepintvl 5
         keepalive on
         +10000 > . 0:0(0) ack 1
         +1000 < . 1:1(0) ack 1 win 257
         +10000 > . 0:0(0) ack 1
         +5 < R 1:1(0) win 0
         state Closed
         error ConnectionReset",
    );
}

#[test]
fn keepalive_waits_while_data_is_out() {
    let mut talk = Talk::accepted(|_| {});
    talk.run(
        "keepidle 1
         keepalive on
         +500 write 100
         > P. 1:101(100) ack 1
         +210 > P. 1:101(100) ack 1
         +10 < . 1:1(0) ack 101 win 257
         +1000 > . 100:100(0) ack 1
         < . 1:1(0) ack 101 win 257",
    );
}

#[test]
fn a_probe_of_the_peer_is_answered() {
    let mut talk = Talk::accepted(|_| {});
    talk.run(
        "+1000 < . 0:0(0) ack 1 win 257
         > . 1:1(0) ack 1
         +100 < . 0:0(0) ack 1 win 257
         +500 < . 0:0(0) ack 1 win 257
         > . 1:1(0) ack 1
         // With the byte that some send, it is answered always.
         +1 < . 0:1(1) ack 1 win 257
         > . 1:1(0) ack 1 <nop,nop,sack 0:1>",
    );
    assert_eq!(talk.end.counters.ack_skipped_seq, 1);
}

#[test]
fn the_users_timeout_ends_unacknowledged_data() {
    let mut talk = Talk::accepted(|_| {});
    talk.run(
        "user-timeout 3000
         write 100
         > P. 1:101(100) ack 1
         // The probe, then time-outs.
         +210 > P. 1:101(100) ack 1
         +210 > P. 1:101(100) ack 1
         +420 > P. 1:101(100) ack 1
         +840 > P. 1:101(100) ack 1",
    );
    for _ in 0..20 {
        let due = talk.end.deadline();
        if due.is_armed() {
            talk.end.time(due);
        }
    }
    talk.end.host.sent.clear();
    let took = (talk.end.now.0 - 1_000_000_000 - 10_000 - 420_000) / 1000;
    talk.run("state Closed\nerror TimedOut");
    assert!((3000..3010).contains(&took), "{took} ms after the first retransmission");
}

#[test]
fn unacknowledged_data_ends_after_924_seconds() {
    let mut talk = Talk::accepted(|_| {});
    talk.run("write 100\n> P. 1:101(100) ack 1");
    for _ in 0..40 {
        let due = talk.end.deadline();
        if due.is_armed() {
            talk.end.time(due);
        }
    }
    let took = (talk.end.now.0 - 1_000_000_000) / 1_000_000;
    talk.end.host.sent.clear();
    talk.run("state Closed\nerror TimedOut");
    assert!((924..1060).contains(&took), "{took} s");
}

#[test]
fn the_users_timeout_ends_unanswered_probes() {
    let mut talk = Talk::accepted(|_| {});
    talk.run(
        "user-timeout 2000
         +10 < . 1:1(0) ack 1 win 0
         write 100
         +210 > . 0:0(0) ack 1
         +420 > . 0:0(0) ack 1
         +840 > . 0:0(0) ack 1",
    );
    for _ in 0..10 {
        let due = talk.end.deadline();
        if due.is_armed() {
            talk.end.time(due);
        }
    }
    talk.end.host.sent.clear();
    talk.run("state Closed\nerror TimedOut");
}

#[test]
fn a_soft_error_is_told_when_the_connection_times_out() {
    let mut talk = Talk::accepted(|_| {});
    talk.run("user-timeout 1000\nwrite 100\n> P. 1:101(100) ack 1");
    let quoted = talk.end.iss + 1;
    super::end::enter!(&mut talk.end, conn, cx => {
        conn.icmp_error(cx, quoted + 5000, crate::conn::Error::HostUnreachable);
        assert_eq!(conn.take_error(), None, "of no segment in flight");
        conn.icmp_error(cx, quoted, crate::conn::Error::HostUnreachable);
    });
    for _ in 0..20 {
        let due = talk.end.deadline();
        if due.is_armed() {
            talk.end.time(due);
        }
    }
    talk.end.host.sent.clear();
    talk.run("state Closed\nerror HostUnreachable");
}

/// RFC 6069: a router that has no way on for the retransmission takes one doubling back; what it
/// says of another segment does not.
#[test]
fn unreachable_takes_a_doubling_back() {
    let mut talk = Talk::accepted(|_| {});
    talk.run(
        "write 2000
         > P. 1:2001(2000) ack 1
         +22 > P. 1001:2001(1000) ack 1
         +210 > . 1:1001(1000) ack 1
         +420 > . 1:1001(1000) ack 1",
    );
    let quoted = talk.end.iss + 1;
    let before = talk.end.deadline();
    super::end::enter!(&mut talk.end, conn, cx => {
        conn.icmp_error(cx, quoted + 1000, crate::conn::Error::HostUnreachable);
        assert_eq!(conn.next_deadline(), before, "the quoted segment is not the head");
        conn.icmp_error(cx, quoted, crate::conn::Error::Protocol);
        assert_eq!(conn.next_deadline(), before, "another kind of error");
        conn.icmp_error(cx, quoted, crate::conn::Error::NetworkUnreachable);
        assert!(conn.next_deadline() < before);
    });
}

#[test]
fn an_error_ends_a_connection_that_is_being_opened() {
    let mut talk = Talk::connect(|_| {});
    talk.run("> S 0:0(0)");
    let iss = talk.end.iss;
    super::end::enter!(&mut talk.end, conn, cx => conn.icmp_error(cx, iss, crate::conn::Error::HostUnreachable));
    talk.run("state Closed\nerror HostUnreachable");
}

#[test]
fn a_firing_before_the_deadline_does_nothing() {
    let mut talk = Talk::accepted(|_| {});
    talk.run("quickack off\n< . 1:1001(1000) ack 1 win 257\nread 1000");
    let due = talk.end.deadline();
    for early in [0, 1, 1000, 39_999] {
        talk.end.time(crate::Instant(due.0 - 40_000 + early));
    }
    assert_eq!(talk.end.deadline(), due);
    talk.run("+40 > . 1:1(0) ack 1001");
}

/// Lets a peer whose window stays closed answer every probe, and returns the seconds until the
/// connection has ended; `None` if it has not within an hour.
fn probe_until_the_end(talk: &mut Talk, ack: u32) -> Option<u64> {
    let start = talk.end.now;
    while talk.end.now.0 < start.0 + 3_600_000_000 {
        let due = talk.end.deadline();
        if !due.is_armed() {
            break;
        }
        talk.end.time(due);
        if talk.end.host.sent.drain(..).any(|(_, emit)| emit.len == 0) {
            let answer = talk.parse(&format!(". 1:1(0) ack {ack} win 0"));
            talk.end.segment(&answer);
        }
    }
    let ended = talk.end.state() == Some(crate::conn::State::Closed);
    ended.then(|| (talk.end.now.0 - start.0) / 1_000_000)
}

#[test]
fn a_window_that_stays_closed_ends_an_orphan() {
    // Probes come after 0.2, 0.4, … s, and none a second time after two minutes.
    let closed = "+10 < . 1:1(0) ack 1 win 0\nwrite 100\nclose";
    let mut talk = Talk::accepted(|_| {});
    talk.run(closed);
    let took = probe_until_the_end(&mut talk, 1).expect("it ends");
    assert!((200..350).contains(&took), "{took} s");
    talk.run("state Closed\nerror TimedOut");
    // A connection that an application holds goes on as long as the peer answers (RFC 9293
    // 3.8.6.1).
    let mut talk = Talk::accepted(|_| {});
    talk.run("+10 < . 1:1(0) ack 1 win 0\nwrite 100");
    assert_eq!(probe_until_the_end(&mut talk, 1), None);
    talk.run("state Established");
}

#[test]
fn the_users_timeout_ends_a_window_that_stays_closed_though_the_peer_answers() {
    let mut talk = Talk::accepted(|_| {});
    talk.run("user-timeout 5000\n+10 < . 1:1(0) ack 1 win 0\nwrite 100");
    let took = probe_until_the_end(&mut talk, 1).expect("it ends");
    assert!((5..8).contains(&took), "{took} s");
    talk.run("state Closed\nerror TimedOut");
}

/// A window that opens ends the probing: the next closed one has its own time.
#[test]
fn a_window_that_opens_gives_the_users_timeout_anew() {
    let mut talk = Talk::accepted(|_| {});
    talk.run(
        "user-timeout 2000
         +10 < . 1:1(0) ack 1 win 0
         write 100
         +210 > . 0:0(0) ack 1
         +420 > . 0:0(0) ack 1
         +840 > . 0:0(0) ack 1
         +10 < . 1:1(0) ack 1 win 257
         > P. 1:101(100) ack 1
         +10 < . 1:1(0) ack 101 win 0
         write 100
         +210 > . 100:100(0) ack 1
         +420 > . 100:100(0) ack 1
         +840 > . 100:100(0) ack 1
         +10 < . 1:1(0) ack 101 win 257
         > P. 101:201(100) ack 1
         state Established",
    );
}
