//! What the path and the application do: MTU, idle time, Nagle's tails, super-segments, rates.

use super::*;
use Kind::{New, Retransmit};

/// RFC 1191: packets that no longer fit are cut up and sent again; the window does not shrink.
#[test]
fn a_smaller_mtu_cuts_what_is_in_flight() {
    let mut talk = Talk::new(Begin::default());
    talk.write(4);
    talk.write_bytes(300);
    talk.took();
    talk.until(20);
    talk.ack(1, &[(2, 3)]);
    let cwnd = talk.sender.cwnd();
    talk.sender.set_mss(400);
    talk.sender.check();
    talk.max_len = 400;
    // 1 → 3, 2 → 3 (SACKed), 3 → 3, the tail fits.
    let info = talk.info();
    assert_eq!((info.unacked, info.sacked, info.lost), (10, 3, 6));
    assert_eq!((info.snd_cwnd, talk.state()), (cwnd, CaState::Loss));
    talk.output();
    let again: Vec<_> =
        talk.sent.iter().map(|sent| (sent.transmit.seq - talk.base, sent.transmit.len)).collect();
    assert_eq!(again, [(1000, 400), (1400, 400), (1800, 200), (3000, 400), (3400, 400), (3800, 200)]);
    talk.until(40);
    let end = talk.write_seq;
    let input = AckInput { ack: end, ..QUIET };
    talk.ack_input(&input);
    assert_eq!((talk.state(), talk.counters.tcp_timeouts), (CaState::Open, 0));
    assert!(talk.sender.cwnd() >= cwnd);
    // A larger MTU changes nothing in flight.
    talk.sender.set_mss(1000);
    talk.sender.check();
}

#[test]
fn a_cut_of_retransmitted_packets_keeps_the_books() {
    let mut talk = Talk::new(Begin::default());
    talk.write(10);
    talk.close();
    talk.until(20);
    talk.ack(0, &[(1, 5)]);
    talk.until(25);
    talk.sender.set_mss(300);
    talk.sender.check();
    talk.max_len = 300;
    talk.output();
    talk.until(2000);
    assert!(talk.sent.iter().any(|sent| sent.transmit.fin));
    talk.sender.check();
}

#[test]
fn a_tail_waits_where_nagle_says_so_but_not_for_frto_or_fin() {
    let mut talk = Talk::new(Begin::default());
    talk.partial_ok = false;
    talk.write_bytes(2500);
    assert_eq!(talk.new_packets(), [0, 1]);
    talk.partial_ok = true;
    talk.output();
    assert_eq!(talk.sent[0].transmit.len, 500);
}

#[test]
fn a_super_segment_is_bounded_by_every_window() {
    let mut talk = Talk::new(Begin::default());
    talk.max_len = 4500;
    talk.wnd = 8700;
    talk.write_bytes(20_300);
    let lens: Vec<_> = talk.sent.iter().map(|sent| sent.transmit.len).collect();
    assert_eq!(lens, [4000, 4000], "whole segments within the peer's window");
    assert_eq!(talk.info().unacked, 8);
    talk.wnd = 1 << 20;
    talk.output();
    let lens: Vec<_> = talk.sent.iter().map(|sent| sent.transmit.len).collect();
    assert_eq!(lens, [4000, 4000, 2000], "and within the congestion window");
    // The tail joins where it fits.
    talk.sent.clear();
    talk.until(20);
    talk.ack(10, &[]);
    let lens: Vec<_> = talk.sent.iter().map(|sent| sent.transmit.len).collect();
    assert_eq!(lens, [4000, 4000, 2300]);
}

/// No growth by what was not used, none at all in a window that was not full.
#[test]
fn an_application_that_sends_little_grows_no_window() {
    let mut talk = Talk::new(Begin::default());
    for i in 1..=50 {
        talk.write(1);
        talk.until(i * 20);
        talk.ack(i as u32, &[]);
    }
    assert_eq!(talk.sender.cwnd(), 10);
    for i in 1..=10 {
        talk.write(8);
        talk.until(1000 + i * 20);
        talk.ack(50 + i as u32 * 8, &[]);
    }
    // Slow start: 8 in flight permit 16 and no more.
    assert!((16..=18).contains(&talk.sender.cwnd()), "{}", talk.sender.cwnd());
}

#[test]
fn idle_time_decays_the_window_unless_the_knob_says_no() {
    for after_idle in [true, false] {
        let cfg = Config { tcp_slow_start_after_idle: after_idle, ..Config::default() };
        let mut talk = Talk::with(Begin::default(), cfg, Some(20_000));
        let mut n = 0;
        while talk.sender.cwnd() < 80 {
            let burst = talk.sender.cwnd();
            talk.write(burst);
            n += burst;
            talk.until(talk.ms() + 20);
            talk.ack(n, &[]);
        }
        assert_eq!(talk.sender.cwnd(), 80);
        talk.until(talk.ms() + 250);
        talk.took();
        talk.write(100);
        let sent = talk.new_packets().len();
        assert_eq!(sent, if after_idle { 40 } else { 80 });
        // Asking again, with nothing sent, does not decay again.
        talk.until(talk.ms() + 20);
        talk.ack(n + sent as u32, &[]);
        assert!(talk.sender.cwnd() >= sent as u32);
    }
}

/// Nagle may hold a tail while the window has decayed: it decays once for one pause.
#[test]
fn one_pause_decays_once() {
    let mut talk = Talk::new(Begin::default());
    talk.write(10);
    talk.until(20);
    talk.ack(10, &[]);
    talk.write(20);
    talk.until(40);
    talk.ack(30, &[]);
    assert_eq!(talk.sender.cwnd(), 40);
    talk.until(300);
    talk.partial_ok = false;
    talk.write_bytes(10);
    for _ in 0..5 {
        talk.output();
    }
    assert_eq!((talk.sender.cwnd(), talk.sender.packets_out()), (20, 0));
}

#[test]
fn the_rate_is_that_of_delivery() {
    let mut talk = Talk::new(Begin::default());
    talk.write(400);
    let mut n = 0;
    // A bottleneck of one packet a millisecond.
    talk.until(20);
    for ms in 20..220 {
        talk.until(ms);
        n += 1;
        talk.ack(n, &[]);
    }
    let info = talk.info();
    assert!((950_000..=1_050_000).contains(&info.delivery_rate), "{}", info.delivery_rate);
    assert!(!info.delivery_rate_app_limited);
    assert!(info.pacing_rate > info.delivery_rate);
    assert_eq!(info.delivered, 200);
}

#[test]
fn the_pacing_rate_is_windows_a_round_trip() {
    let talk = Talk::new(Begin::default());
    // 10 · 1000 B / 20 ms · 200 %.
    assert_eq!(talk.info().pacing_rate, 1_000_000);
    let fresh = Talk::with(Begin::default(), Config::default(), None);
    assert_eq!(fresh.info().pacing_rate, u64::MAX);
    let mut talk = Talk::new(Begin::default());
    talk.write(10);
    talk.until(20);
    talk.ack(2, &[(3, 6)]);
    assert_eq!(talk.state(), CaState::Recovery);
    let info = talk.info();
    let most = u64::from(info.snd_cwnd.max(info.unacked)) * 50_000 * 12 / 10;
    assert!(info.pacing_rate <= most, "{} {most}", info.pacing_rate);
}

/// The connection's own segment, such as a probe of a small window, is recorded like others.
#[test]
fn a_segment_that_the_connection_cut_itself() {
    let mut talk = Talk::new(Begin::default());
    talk.wnd = 400;
    talk.write(3);
    assert_eq!(talk.sent, []);
    let now = talk.now;
    let seq = talk.sender.nxt();
    let Talk { sender, cfg, counters, .. } = &mut talk;
    let mut cx = Cx { now, cfg, counters };
    let part =
        Transmit { seq, len: 400, kind: New, syn: false, fin: false, ect: false, cwr: false, psh: true };
    sender.on_sent(&mut cx, &part);
    sender.check();
    assert_eq!(talk.info().unacked, 1);
    assert!(talk.sender.deadline().is_armed());
    talk.until(2000);
    assert_eq!(talk.sent[0].transmit.len, 400);
    assert!(talk.sent.iter().any(|sent| sent.transmit.kind == Retransmit));
}

/// A window that shrank over a lost packet does not have it cut: it goes once it is the head, or
/// fits.
#[test]
fn a_shrunken_window_cuts_no_packet() {
    let mut talk = Talk::new(Begin::default());
    talk.write(10);
    talk.took();
    talk.until(20);
    talk.wnd = 2500;
    talk.ack(0, &[(1, 2), (3, 8)]);
    assert_eq!(talk.info().lost, 2);
    talk.ack(0, &[(1, 2), (3, 10)]);
    let lens: Vec<_> = talk.sent.drain(..).map(|sent| sent.transmit.len).collect();
    assert_eq!((lens, talk.info().unacked), (vec![1000], 10), "the head alone, and nothing was cut");
    talk.wnd = 500;
    talk.until(40);
    talk.ack(2, &[(3, 10)]);
    assert_eq!(talk.took(), [(2, Retransmit)], "the head goes whole, whatever the window");
    talk.until(60);
    talk.ack(10, &[]);
    assert_eq!((talk.state(), talk.counters.tcp_timeouts), (CaState::Open, 0));
}
