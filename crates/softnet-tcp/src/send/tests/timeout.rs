//! Time-outs: backoff, F-RTO, Eifel, reneging, SYNs, window probes.

use super::*;
use Kind::{Probe, Retransmit};

/// No SACK, hence no probes: time-outs alone.
fn plain() -> Begin {
    Begin { sack: false, ..Begin::default() }
}

#[test]
fn rto_doubles_up_to_its_bound() {
    let mut talk = Talk::new(plain());
    talk.write(1);
    talk.sent.clear();
    talk.until(700_000);
    let times: Vec<_> = talk.sent.iter().map(|sent| sent.at / 1000).collect();
    assert_eq!(
        times,
        [220, 660, 1540, 3300, 6820, 13_860, 27_940, 56_100, 112_420, 225_060, 345_060, 465_060, 585_060]
    );
    assert_eq!((talk.sender.retransmits(), talk.sender.cwnd()), (13, 1));
    assert_eq!(talk.sender.first_retransmit(), Some(Instant(1_220_000)));
    talk.ack(1, &[]);
    assert_eq!((talk.sender.retransmits(), talk.sender.first_retransmit()), (0, None));
    // The ACK of a retransmitted packet is no sample (Karn): the backoff stays.
    assert_eq!(talk.info().rto, Span(120_000_000));
    talk.write(1);
    talk.until(700_020);
    talk.ack(2, &[]);
    assert_eq!(talk.info().rto, Span(220_000));
}

/// Karn's rule does not bind where a timestamp tells which copy is acknowledged.
#[test]
fn a_timestamp_is_a_sample_of_a_retransmission() {
    let mut talk = Talk::new(plain());
    talk.write(1);
    talk.until(220);
    talk.until(250);
    let outcome = talk.ack_with(1, &[], Some(220), false);
    assert_eq!(outcome.rtt, Some(Span(30_000)));
    assert_eq!(talk.sender.backoff(), 0);
    // Echoes of no new data are none.
    talk.write(2);
    talk.until(300);
    assert_eq!(talk.ack_with(1, &[], Some(220), false).rtt, None);
}

/// smoltcp's issue 62: ACKs that do not advance may not push the timer on.
#[test]
fn acks_without_progress_leave_the_timer() {
    let mut talk = Talk::new(plain());
    talk.write(2);
    let base = AckInput { ack: talk.base, payload: true, ..QUIET };
    for ms in 1..22 {
        talk.until(ms * 10);
        if ms < 22 {
            talk.ack_input(&base);
        }
    }
    assert_eq!(talk.sender.deadline(), Instant(1_220_000));
    talk.until(220);
    assert_eq!(talk.state(), CaState::Loss);
    // And progress does: RTO from the ACK.
    let mut talk = Talk::new(plain());
    talk.write(2);
    talk.until(20);
    talk.ack(1, &[]);
    assert_eq!(talk.sender.deadline(), Instant(1_020_000 + 220_000));
}

#[test]
fn a_whole_flight_lost_is_sent_again_in_slow_start() {
    let mut talk = Talk::new(Begin::default());
    talk.write(10);
    talk.took();
    talk.until(262);
    // The probe at 42 ms, RTO 220 ms after it.
    assert_eq!(talk.took(), [(9, Probe), (0, Retransmit)]);
    let info = talk.info();
    assert_eq!((info.snd_cwnd, info.snd_ssthresh, info.lost, info.retrans), (1, 7, 10, 1));
    assert_eq!(info.rto, Span(440_000));
    talk.until(282);
    talk.ack(1, &[]);
    // F-RTO has no new data to tell by: the conventional recovery.
    assert_eq!(talk.took(), [(1, Retransmit), (2, Retransmit)]);
    talk.until(302);
    talk.ack(3, &[]);
    assert_eq!(talk.took(), [(3, Retransmit), (4, Retransmit), (5, Retransmit), (6, Retransmit)]);
    talk.until(322);
    talk.ack(7, &[]);
    assert_eq!(talk.took(), [(7, Retransmit), (8, Retransmit), (9, Retransmit)]);
    talk.until(342);
    talk.ack(10, &[]);
    assert_eq!((talk.state(), talk.sender.cwnd()), (CaState::Open, 7));
    assert_eq!((talk.counters.tcp_timeouts, talk.counters.tcp_slow_start_retrans), (1, 10));
}

/// RFC 5682: a delay of a second is found out by two packets of new data.
#[test]
fn a_spurious_timeout_is_undone() {
    let mut talk = Talk::new(Begin::default());
    talk.write(40);
    talk.took();
    talk.until(262);
    assert_eq!(talk.took(), [(10, Probe), (0, Retransmit)]);
    assert_eq!((talk.sender.cwnd(), talk.state()), (1, CaState::Loss));
    // The originals come through.
    talk.until(1000);
    talk.took();
    let before = talk.counters.tcp_timeouts;
    assert!(before >= 1);
    talk.ack(1, &[]);
    assert_eq!(talk.new_packets(), [11, 12], "step 2b: new data, no retransmission");
    talk.ack(2, &[]);
    assert_eq!((talk.state(), talk.counters.tcp_spurious_rtos), (CaState::Open, 1));
    let info = talk.info();
    assert_eq!((info.lost, info.snd_ssthresh), (0, 0x7fff_ffff));
    assert!(info.snd_cwnd >= 10, "{}", info.snd_cwnd);
    assert_eq!(talk.counters.tcp_loss_undo, 1);
    assert!(talk.new_packets().iter().all(|&i| i > 12));
}

/// The loss was real: the second ACK shows only what was sent anew.
#[test]
fn a_real_timeout_is_not_undone() {
    let mut talk = Talk::new(Begin::default());
    talk.write(40);
    talk.until(262);
    talk.took();
    talk.until(282);
    talk.ack(1, &[]);
    assert_eq!(talk.new_packets(), [11, 12]);
    talk.until(302);
    talk.ack(1, &[(11, 12)]);
    let took = talk.took();
    assert_eq!(took[0], (1, Retransmit));
    assert_eq!((talk.state(), talk.counters.tcp_spurious_rtos), (CaState::Loss, 0));
    // SND.UNA jumps over all: recovery ends.
    talk.until(322);
    talk.ack(13, &[]);
    assert_eq!(talk.state(), CaState::Open);
}

/// RFC 3522: the echo is older than the retransmission.
#[test]
fn eifel_undoes_a_timeout_at_the_first_ack() {
    for (echo, undone) in [(0, true), (262, false)] {
        let mut talk = Talk::new(Begin::default());
        talk.write(10);
        talk.until(262);
        talk.took();
        talk.until(400);
        talk.ack_with(1, &[], Some(echo + u64::from(echo == 0)), false);
        assert_eq!(talk.counters.tcp_loss_undo, u64::from(undone), "{echo}");
        assert_eq!(talk.state() == CaState::Open || talk.state() == CaState::Disorder, undone);
        if undone {
            assert_eq!((talk.info().lost, talk.info().snd_ssthresh), (0, 0x7fff_ffff));
            assert_eq!(talk.took(), []);
        }
    }
}

/// After an undone time-out RACK still sees every packet.
#[test]
fn undone_packets_are_still_watched() {
    let mut talk = Talk::new(Begin::default());
    talk.write(40);
    talk.until(262);
    talk.until(600);
    talk.took();
    talk.ack(1, &[]);
    talk.ack(2, &[]);
    assert_eq!(talk.counters.tcp_spurious_rtos, 1);
    let new = talk.new_packets();
    // 2 is lost after all; what was sent later arrives.
    let last = *new.last().unwrap();
    talk.until(622);
    talk.ack(2, &[(3, last + 1)]);
    assert!(talk.took().contains(&(2, Retransmit)));
}

#[test]
fn a_timeout_again_reduces_once() {
    let mut talk = Talk::new(plain());
    talk.write(10);
    talk.until(20);
    talk.ack(10, &[]);
    talk.write(20);
    talk.until(300);
    assert_eq!((talk.info().snd_ssthresh, talk.sender.cwnd()), (14, 1));
    talk.until(3000);
    assert!(talk.sender.retransmits() >= 3);
    assert_eq!(talk.info().snd_ssthresh, 14, "once a window");
}

/// A peer that drops what it SACKed gets half a round trip, then everything.
#[test]
fn reneging_is_believed_after_a_while() {
    let mut talk = Talk::new(Begin::default());
    talk.write(10);
    talk.took();
    talk.until(20);
    talk.ack(0, &[(1, 10)]);
    assert_eq!(talk.took(), [(0, Retransmit)]);
    talk.until(40);
    talk.ack(1, &[]);
    assert_eq!(talk.sender.deadline(), Instant(1_040_000 + 10_000));
    // In time: no harm done.
    talk.until(45);
    talk.ack(10, &[]);
    assert_eq!((talk.counters.tcp_sack_reneging, talk.took()), (0, vec![]));

    let mut talk = Talk::new(Begin::default());
    talk.write(10);
    talk.until(20);
    talk.ack(0, &[(1, 9)]);
    talk.until(40);
    talk.took();
    talk.ack(1, &[]);
    talk.until(50);
    assert_eq!((talk.counters.tcp_sack_reneging, talk.took()), (1, vec![(1, Retransmit)]));
    let info = talk.info();
    assert_eq!((info.sacked, info.lost, info.unacked), (0, 9, 9));
    for n in [2, 4, 8, 10] {
        talk.until(talk.ms() + 20);
        talk.ack(n, &[]);
    }
    assert_eq!((talk.state(), talk.info().unacked), (CaState::Open, 0));
}

/// SYNs: four linear time-outs, then doubling: copies at 1, 2, 3, 4, 5, 7, 11, 19, 35, 67 s.
#[test]
fn syns_are_sent_at_linux_times() {
    let mut talk = Talk::with(plain(), Config::default(), None);
    let (now, iss) = (talk.now, talk.base);
    let Talk { sender, cfg, counters, .. } = &mut talk;
    sender.on_sent(&mut Cx { now, cfg, counters }, &Transmit::syn(iss));
    talk.write_seq = iss + 1;
    talk.until(70_000);
    let times: Vec<_> = talk.sent.iter().map(|sent| sent.at / 1_000_000).collect();
    assert_eq!(times, [1, 2, 3, 4, 5, 7, 11, 19, 35, 67]);
    assert!(talk.sent.iter().all(|sent| sent.transmit.syn && sent.transmit.payload() == 0));
    assert_eq!(talk.sender.deadline(), Instant(1_000_000 + 131_000_000));
    let input = AckInput { ack: iss + 1, payload: true, ..QUIET };
    assert!(talk.ack_input(&input).syn_acked);
    talk.sender.on_established(MSS as u16, true, false, true);
    assert_eq!(talk.sender.cwnd(), 1);
}

#[test]
fn the_syn_is_an_rtt_sample() {
    let mut talk = Talk::with(plain(), Config::default(), None);
    let (now, iss) = (talk.now, talk.base);
    let Talk { sender, cfg, counters, .. } = &mut talk;
    sender.on_sent(&mut Cx { now, cfg, counters }, &Transmit::syn(iss));
    talk.write_seq = iss + 1;
    talk.until(30);
    let outcome = talk.ack_input(&AckInput { ack: iss + 1, payload: true, ..QUIET });
    assert_eq!((outcome.rtt, outcome.syn_acked), (Some(Span(30_000)), true));
    assert_eq!(talk.info().rto, Span(230_000));
}

/// Window probes double, and ACKs do not stop them but reset their count.
#[test]
fn window_probes_back_off() {
    let mut talk = Talk::new(plain());
    talk.wnd = 0;
    talk.write(1);
    assert_eq!(talk.sent, []);
    let (now, mut at) = (talk.now, Vec::new());
    let Talk { sender, cfg, counters, .. } = &mut talk;
    sender.arm_persist(&Cx { now, cfg, counters });
    for _ in 0..12 {
        talk.now = talk.sender.deadline();
        at.push(talk.ms());
        assert_eq!(talk.fire(), Fired::Persist);
    }
    let gaps: Vec<_> = at.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert_eq!(at[0], 220);
    assert_eq!(gaps, [440, 880, 1760, 3520, 7040, 14_080, 28_160, 56_320, 112_640, 120_000, 120_000]);
    assert_eq!(talk.info().probes, 12);
    talk.ack(0, &[]);
    assert_eq!(talk.info().probes, 0);
    talk.wnd = 1 << 20;
    talk.sender.cancel_persist();
    assert_eq!((talk.sender.deadline(), talk.sender.backoff()), (Instant::NEVER, 0));
    talk.output();
    assert_eq!(talk.new_packets(), [0]);
}

/// The peer shrank its window over what is in flight: only the head is sent again.
#[test]
fn a_shrunken_window_lets_the_head_through() {
    let mut talk = Talk::new(plain());
    talk.write(5);
    talk.took();
    talk.wnd = 0;
    talk.until(700);
    assert_eq!(talk.took(), [(0, Retransmit), (0, Retransmit)]);
    assert_eq!(talk.sender.retransmits(), 0, "they are probes, and do not count");
    // One packet and a half: the second goes in part.
    talk.wnd = 1500;
    talk.ack(1, &[]);
    talk.sent.clear();
    talk.wnd = 500 + MSS;
    talk.until(5000);
    assert!(talk.sent.iter().all(|sent| {
        let end = sent.transmit.seq + sent.transmit.len;
        end.at_or_before(talk.una + talk.wnd) || sent.transmit.seq == talk.una
    }));
}

#[test]
fn a_refused_retransmission_is_tried_again_without_backoff() {
    let mut talk = Talk::new(plain());
    talk.write(1);
    talk.now = Instant(1_220_000);
    let Talk { sender, cfg, counters, now, .. } = &mut talk;
    let mut cx = Cx { now: *now, cfg, counters };
    assert_eq!(sender.due(Instant(1_219_999)), Fired::Nothing);
    assert_eq!(sender.on_time(&mut cx, false), Fired::Rto);
    assert_eq!(sender.backoff(), 1);
    sender.on_tx_refused(&cx);
    assert_eq!((sender.backoff(), sender.deadline()), (0, Instant(1_440_000)));
    sender.check();
}

/// A timer that fires early, or for what is gone, does nothing.
#[test]
fn stale_firings_do_nothing() {
    let mut talk = Talk::new(Begin::default());
    assert_eq!(talk.fire(), Fired::Nothing);
    talk.write(2);
    talk.took();
    talk.until(10);
    assert_eq!(talk.fire(), Fired::Nothing);
    talk.ack(2, &[]);
    talk.now = Instant(9_000_000);
    assert_eq!(talk.fire(), Fired::Nothing);
    assert_eq!((talk.took(), talk.counters.tcp_timeouts), (vec![], 0));
}

/// RFC 6069: unreachable while backed off takes one doubling back.
#[test]
fn unreachable_reverts_a_backoff() {
    let mut talk = Talk::new(plain());
    talk.write(1);
    talk.until(1540);
    assert_eq!(talk.sender.backoff(), 3);
    talk.until(1600);
    let now = talk.now;
    let Talk { sender, cfg, counters, .. } = &mut talk;
    sender.on_unreachable(&Cx { now, cfg, counters });
    assert_eq!(talk.sender.backoff(), 2);
    assert_eq!(talk.sender.deadline(), Instant(1_000_000 + (1540 + 880) * 1000));
}

/// Karn's rule: an ACK that covers a retransmitted packet measures nothing, not even by others.
#[test]
fn an_ack_over_a_retransmission_is_no_sample() {
    let mut talk = Talk::new(plain());
    talk.write(2);
    talk.until(240);
    assert_eq!(talk.ack(2, &[]).rtt, None);
    assert_eq!((talk.sender.backoff(), talk.info().rtt), (1, Span(20_000)));
}

/// Once F-RTO has found the loss real, later originals do not undo it.
#[test]
fn frto_decides_once() {
    let mut talk = Talk::new(Begin::default());
    talk.write(40);
    talk.until(282);
    talk.ack(1, &[]);
    talk.until(302);
    talk.ack(1, &[(11, 12)]);
    talk.ack(1, &[(11, 12), (7, 8)]);
    assert_eq!((talk.counters.tcp_spurious_rtos, talk.state()), (0, CaState::Loss));
}

/// Eifel compares with the first retransmission: the echo of that one proves nothing.
#[test]
fn the_echo_of_a_retransmission_undoes_nothing() {
    let mut talk = Talk::new(plain());
    talk.write(1);
    talk.until(700);
    assert_eq!(talk.sender.retransmits(), 2);
    talk.ack_with(1, &[], Some(221), false);
    assert_eq!((talk.counters.tcp_loss_undo, talk.counters.tcp_full_undo), (0, 0));
}

/// What a reneging peer SACKs again counts again, and a short RTT leaves it 10 ms.
#[test]
fn reneged_blocks_are_news_again() {
    let mut talk = Talk::with(Begin::default(), Config::default(), Some(2000));
    talk.write(10);
    talk.until(2);
    talk.ack(0, &[(1, 9)]);
    talk.until(4);
    talk.ack(1, &[]);
    assert_eq!(talk.sender.deadline(), Instant(1_014_000));
    talk.until(14);
    assert_eq!((talk.counters.tcp_sack_reneging, talk.info().sacked), (1, 0));
    talk.ack(1, &[(3, 9)]);
    assert_eq!(talk.info().sacked, 6);
}

/// RFC 8985 6.3: the first time-out of a connection, too, spares what was sent a moment ago.
#[test]
fn the_first_time_out_spares_what_has_just_been_sent() {
    let cfg = Config { tcp_early_retrans: 0, ..Config::default() };
    let mut talk = Talk::with(Begin::default(), cfg, Some(20_000));
    talk.write(3);
    talk.until(100);
    let due = (talk.sender.deadline().0 - 1_000_000) / 1000;
    talk.until(due - 5);
    talk.write(1);
    talk.until(due + 1);
    assert_eq!((talk.counters.tcp_timeouts, talk.info().unacked, talk.info().lost), (1, 4, 3));
}
