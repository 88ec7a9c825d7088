//! Losses that SACK, duplicate ACKs or a probe show.

use super::*;
use Kind::{Probe, Retransmit};

/// `n` packets out at 0 ms with an RTT of 20 ms; time is 20 ms then.
fn flight(begin: Begin, n: u32) -> Talk {
    let mut talk = Talk::new(begin);
    talk.write(n);
    talk.took();
    talk.until(20);
    talk
}

#[test]
fn a_loss_in_the_middle_is_repaired_at_the_third_sacked_packet() {
    let mut talk = flight(Begin::default(), 10);
    talk.ack(3, &[]);
    assert_eq!(talk.sender.cwnd(), 13);
    talk.ack(3, &[(4, 5)]);
    talk.ack(3, &[(4, 6)]);
    assert_eq!((talk.state(), talk.took()), (CaState::Disorder, vec![]));
    talk.ack(3, &[(4, 7)]);
    assert_eq!((talk.state(), talk.took()), (CaState::Recovery, vec![(3, Retransmit)]));
    let info = talk.info();
    assert_eq!((info.unacked, info.sacked, info.lost, info.retrans), (7, 3, 1, 1));
    assert_eq!(info.snd_ssthresh, 9, "13 · 0.7");
    talk.ack(3, &[(4, 10)]);
    talk.until(40);
    talk.ack(10, &[]);
    assert_eq!((talk.state(), talk.sender.cwnd()), (CaState::Open, 9));
    assert_eq!(talk.sender.deadline(), Instant::NEVER);
    let info = talk.info();
    assert_eq!((info.total_retrans, info.bytes_retrans, info.bytes_sent), (1, 1000, 11_000));
    assert_eq!((talk.counters.tcp_fast_retrans, talk.counters.tcp_sack_recovery), (1, 1));
}

#[test]
fn the_first_and_two_at_once() {
    let mut talk = flight(Begin::default(), 10);
    for end in 3..=4 {
        talk.ack(0, &[(1, 2), (3, end)][..1 + usize::from(end == 4)]);
    }
    assert_eq!(talk.took(), []);
    talk.ack(0, &[(3, 5), (1, 2)]);
    // Below the highest SACKed packet all is lost: 0 and 2. One goes at once, one a delivery.
    assert_eq!(talk.info().lost, 2);
    assert_eq!(talk.took(), [(0, Retransmit)]);
    talk.ack(0, &[(3, 6), (1, 2)]);
    talk.ack(0, &[(3, 7), (1, 2)]);
    assert_eq!(talk.took(), [(2, Retransmit)]);
    talk.ack(0, &[(3, 10), (1, 2)]);
    talk.until(40);
    talk.ack(2, &[(3, 10)]);
    assert_eq!((talk.state(), talk.took()), (CaState::Recovery, vec![]));
    talk.ack(10, &[]);
    assert_eq!(talk.state(), CaState::Open);
    assert_eq!(talk.counters.tcp_sack_recovery, 1);
}

/// RFC 9937's credits: of 20 packets one is lost, and every one of the others is SACKed by itself.
#[test]
fn the_reduction_spreads_over_the_round_trip() {
    let mut talk = flight(Begin::default(), 10);
    talk.ack(10, &[]);
    assert_eq!(talk.sender.cwnd(), 20);
    talk.write(200);
    assert_eq!(talk.new_packets(), (10..30).collect::<Vec<_>>());
    talk.until(40);
    // Limited transmit: two packets for the first two SACKs (RFC 3042).
    talk.ack(10, &[(11, 12)]);
    talk.ack(10, &[(11, 13)]);
    assert_eq!(talk.new_packets(), [30, 31]);
    let mut sent = 0;
    let credits: Vec<_> = (14..24)
        .map(|end| {
            talk.ack(10, &[(11, end)]);
            let took = talk.took();
            if end == 14 {
                assert_eq!(took, [(10, Retransmit)]);
            }
            sent += took.len();
            sent
        })
        .collect();
    assert_eq!(credits, [1, 2, 3, 3, 4, 5, 5, 6, 7, 7]);
    assert_eq!(talk.info().snd_ssthresh, 14);
    for end in 24..=30 {
        talk.ack(10, &[(11, end)]);
    }
    assert_eq!(talk.info().snd_cwnd, 14);
    talk.until(60);
    talk.ack(32, &[]);
    assert_eq!((talk.state(), talk.sender.cwnd()), (CaState::Open, 14));
}

/// An ACK below SND.UNA, and one that SACKs nothing new, give no credit.
#[test]
fn acks_that_deliver_nothing_change_nothing() {
    let mut talk = flight(Begin::default(), 10);
    talk.write(50);
    talk.ack(2, &[]);
    talk.took();
    talk.ack(2, &[(3, 8)]);
    assert_eq!(talk.took()[0], (2, Retransmit));
    let cwnd = talk.sender.cwnd();
    for _ in 0..5 {
        assert_eq!(talk.ack(2, &[(3, 8)]).delivered, 0);
        assert_eq!(talk.ack(1, &[(3, 8)]).delivered, 0);
    }
    assert_eq!((talk.sender.cwnd(), talk.took()), (cwnd, vec![]));
    // An old ACK with news: the news count, the window does not move by it.
    assert_eq!(talk.ack(1, &[(3, 9)]).delivered, 1);
    assert_eq!((talk.sender.cwnd(), talk.info().sacked), (cwnd, 6));
}

/// RACK finds the loss of a retransmission by what was sent after it.
#[test]
fn a_lost_retransmission_is_sent_again() {
    let mut talk = flight(Begin::default(), 10);
    talk.write(100);
    talk.ack(0, &[(1, 4)]);
    assert_eq!(talk.took()[0], (0, Retransmit));
    talk.ack(0, &[(1, 10)]);
    let new = talk.new_packets();
    assert_eq!(new[0], 10);
    // What was sent after the retransmission is SACKed a round trip later; 0 is not.
    talk.until(41);
    talk.ack(0, &[(1, 11)]);
    assert_eq!(talk.took()[0], (0, Retransmit));
    assert_eq!(talk.counters.tcp_lost_retransmit, 1);
    talk.until(61);
    talk.ack((talk.sender.nxt() - talk.base) / MSS, &[]);
    assert_eq!(talk.state(), CaState::Open);
    assert_eq!(talk.counters.tcp_timeouts, 0);
}

/// A SACKed retransmission makes nothing lost that was sent in the same instant but later.
#[test]
fn packets_of_one_burst_are_ordered_by_number() {
    let mut talk = flight(Begin::default(), 10);
    talk.ack(0, &[(7, 10)]);
    // 0…6 were sent before 9: lost, for the duplicate threshold was met. Three were delivered, so
    // three go.
    let three = vec![(0, Retransmit), (1, Retransmit), (2, Retransmit)];
    assert_eq!((talk.info().lost, talk.took()), (7, three));
    talk.until(40);
    // The copy of 1 arrives: that of 0, sent before it in the same instant, is lost; that of 2 is
    // not.
    talk.ack(0, &[(1, 2), (7, 10)]);
    assert_eq!(talk.counters.tcp_lost_retransmit, 1);
    assert_eq!((talk.info().lost, talk.took()), (6, vec![(0, Retransmit)]));
}

/// Two of five at the end are lost: the probe goes two round trips and 2 ms after the last ACK.
#[test]
fn a_probe_shows_a_lost_tail() {
    let mut talk = flight(Begin::default(), 5);
    talk.ack(3, &[]);
    talk.until(61);
    assert_eq!(talk.took(), []);
    talk.until(62);
    assert_eq!((talk.state(), talk.took()), (CaState::Open, vec![(4, Probe)]));
    talk.until(82);
    talk.ack(3, &[(4, 5)]);
    assert_eq!((talk.state(), talk.took()), (CaState::Recovery, vec![(3, Retransmit)]));
    talk.until(102);
    talk.ack(5, &[]);
    assert_eq!(talk.state(), CaState::Open);
    assert_eq!((talk.counters.tcp_loss_probes, talk.counters.tcp_timeouts), (1, 0));
}

/// The probe was the repair: no DSACK comes, so one reduction is due.
#[test]
fn a_probe_that_repairs_costs_one_reduction() {
    let mut talk = flight(Begin::default(), 10);
    talk.ack(8, &[]);
    assert_eq!(talk.sender.cwnd(), 18);
    talk.until(62);
    assert_eq!(talk.took(), [(9, Probe)]);
    // 8 was late, not lost; 9 arrived by the probe alone.
    talk.until(70);
    talk.ack(9, &[]);
    talk.until(82);
    talk.write(1);
    talk.ack(10, &[]);
    assert_eq!(talk.counters.tcp_loss_probe_recovery, 0, "ACK at the end of the episode");
    talk.until(102);
    assert_eq!(talk.sender.cwnd(), 20);
    talk.ack(11, &[]);
    assert_eq!(talk.counters.tcp_loss_probe_recovery, 1);
    assert_eq!((talk.state(), talk.sender.cwnd()), (CaState::Open, 14));
}

#[test]
fn a_probe_that_was_needless_costs_nothing() {
    for dsack in [true, false] {
        let mut talk = flight(Begin::default(), 10);
        talk.ack(8, &[]);
        talk.until(62);
        assert_eq!(talk.took(), [(9, Probe)]);
        talk.ack(10, &[]);
        talk.until(82);
        // The copy's ACK: with a DSACK, or as a pure duplicate.
        if dsack {
            talk.ack(10, &[(9, 10)]);
        } else {
            talk.ack(10, &[]);
        }
        talk.write(1);
        talk.until(102);
        talk.ack(11, &[]);
        assert_eq!(talk.counters.tcp_loss_probe_recovery, 0, "{dsack}");
        assert_eq!(talk.state(), CaState::Open);
        assert!(talk.sender.cwnd() >= 18);
    }
}

/// New data is the better probe, even beyond the congestion window, but not beyond the peer's.
#[test]
fn a_probe_is_new_data_where_there_is_some() {
    let mut talk = Talk::new(Begin::default());
    talk.write(20);
    talk.took();
    talk.until(42);
    assert_eq!(talk.took(), [(10, Probe)]);
    assert_eq!(talk.info().unacked, 11);
    // One probe an episode: then RTO, from the probe.
    talk.until(261);
    assert_eq!(talk.took(), []);
    talk.until(262);
    assert_eq!(talk.took(), [(0, Retransmit)]);

    let mut talk = Talk::new(Begin::default());
    talk.wnd = 10 * MSS;
    talk.write(20);
    talk.took();
    talk.until(42);
    assert_eq!(talk.took(), [(9, Probe)]);
}

/// One packet in flight: the probe waits for a delayed ACK, and RTO comes first.
#[test]
fn a_single_packet_is_probed_at_rto() {
    let mut talk = Talk::new(Begin::default());
    talk.write(1);
    talk.took();
    talk.until(219);
    assert_eq!(talk.took(), []);
    talk.until(220);
    assert_eq!(talk.took(), [(0, Probe)]);
    assert_eq!((talk.state(), talk.counters.tcp_timeouts), (CaState::Open, 0));
    talk.until(440);
    assert_eq!((talk.state(), talk.took()), (CaState::Loss, vec![(0, Retransmit)]));
}

#[test]
fn without_sack_three_duplicates_and_partial_acks() {
    let mut talk = flight(Begin { sack: false, ..Begin::default() }, 10);
    talk.write(50);
    talk.took();
    talk.ack(2, &[]);
    assert_eq!(talk.new_packets(), [10, 11, 12, 13]);
    // 2 and 5 are lost; 3, 4, 6 … 13 arrive.
    talk.ack(2, &[]);
    talk.ack(2, &[]);
    assert_eq!(talk.state(), CaState::Disorder);
    assert_eq!(talk.new_packets(), [14, 15], "limited transmit");
    talk.ack(2, &[]);
    assert_eq!(talk.state(), CaState::Recovery);
    assert_eq!(talk.took()[0], (2, Retransmit));
    assert_eq!(talk.info().snd_ssthresh, 8, "12 · 0.7");
    for _ in 0..7 {
        talk.ack(2, &[]);
    }
    talk.took();
    talk.until(40);
    talk.ack(5, &[]);
    assert_eq!(talk.took()[0], (5, Retransmit));
    assert_eq!(talk.state(), CaState::Recovery);
    // At the recovery point the state is held: old duplicates must not start another.
    talk.until(60);
    let point = (talk.sender.high_seq - talk.base) / MSS;
    talk.ack(point, &[]);
    assert_eq!(talk.state(), CaState::Recovery);
    talk.ack(point + 1, &[]);
    assert_eq!(talk.state(), CaState::Open);
    assert_eq!((talk.counters.tcp_reno_recovery, talk.counters.tcp_timeouts), (1, 0));
}

/// Data, window updates and SYNs are no duplicate ACKs; a count beyond 255 overflows nothing.
#[test]
fn only_true_duplicates_count() {
    let mut talk = flight(Begin { sack: false, ..Begin::default() }, 10);
    let base = AckInput { ack: talk.base, ..QUIET };
    for _ in 0..10 {
        talk.ack_input(&AckInput { payload: true, ..base });
        talk.ack_input(&AckInput { window_changed: true, ..base });
    }
    assert_eq!((talk.state(), talk.info().sacked), (CaState::Open, 0));
    for _ in 0..1000 {
        talk.ack_input(&base);
    }
    assert_eq!(talk.info().sacked, 9, "all but the hole");
    assert_eq!(talk.state(), CaState::Recovery);
    for _ in 0..1000 {
        talk.ack_input(&AckInput { segs: u16::MAX, ..base });
    }
    assert_eq!(talk.info().sacked, 9);
}

/// Blocks that make no sense, in part, or of one byte, tag nothing and cost nothing.
#[test]
fn blocks_that_are_wrong_are_counted_and_dropped() {
    let mut talk = flight(Begin::default(), 10);
    talk.ack(2, &[]);
    for block in [(12, 14), (9, 12), (5, 5), (6, 3), (0x7fff_ff00 / MSS, 3)] {
        talk.ack(2, &[block]);
    }
    assert_eq!(talk.info().sacked, 0);
    assert!(talk.counters.tcp_sack_discard >= 4, "{}", talk.counters.tcp_sack_discard);
    let start = talk.seq(4) + 1;
    let byte = crate::wire::SackRange { start, end: start + 1 };
    talk.ack_input(&AckInput { ack: talk.seq(2), sack: &[byte; 4], ..QUIET });
    assert_eq!(talk.info().sacked, 0);
    // Beyond SND.NXT nothing is acknowledged.
    assert!(talk.ack(11, &[]).invalid);
    assert_eq!(talk.info().unacked, 8);
}

/// FIN takes a number, is SACKed, lost and retransmitted like data.
#[test]
fn a_lost_fin_is_sent_again() {
    let mut talk = Talk::new(Begin::default());
    talk.write(2);
    talk.write_bytes(300);
    talk.close();
    let last = talk.sent.last().unwrap().transmit;
    assert_eq!((last.len, last.fin, last.payload()), (1, true, 0));
    talk.took();
    talk.until(20);
    talk.ack(2, &[]);
    talk.until(62);
    let probe = talk.sent.last().unwrap().transmit;
    assert_eq!((probe.kind, probe.fin, probe.len), (Probe, true, 1));
    talk.sent.clear();
    talk.until(300);
    let again: Vec<_> = talk.sent.iter().map(|sent| sent.transmit).collect();
    assert_eq!((again[0].kind, again[0].len, again[0].fin), (Retransmit, 300, false));
    let input = AckInput { ack: talk.write_seq, ..QUIET };
    assert_eq!(talk.ack_input(&input).acked, 301);
    assert_eq!(talk.sender.deadline(), Instant::NEVER);
}

/// FIN rides on the last segment, full or not.
#[test]
fn a_fin_rides_on_data() {
    for bytes in [300, 1000, 2000, 2300] {
        let mut talk = Talk::new(Begin::default());
        talk.max_len = 64_000;
        talk.write_seq += bytes + 1;
        talk.fin = true;
        talk.output();
        assert_eq!(talk.sent.len(), 1, "{bytes}");
        let only = talk.sent[0].transmit;
        assert_eq!((only.len, only.fin, only.payload()), (bytes + 1, true, bytes));
        assert_eq!(talk.info().unacked, bytes.div_ceil(1000));
    }
}

/// A stretch ACK of twenty packets, and one that covers part of a packet.
#[test]
fn stretch_and_partial_acks() {
    let mut talk = Talk::new(Begin::default());
    talk.max_len = 64_000;
    talk.write(200);
    let runs: Vec<u32> = talk.sent.iter().map(|sent| sent.transmit.len).collect();
    assert_eq!(runs, [5000, 5000], "two super-segments, so that ACKs clock the third");
    talk.took();
    talk.until(20);
    let outcome = talk.ack(10, &[]);
    assert_eq!((outcome.acked, outcome.delivered, outcome.rtt), (10_000, 10, Some(Span(20_000))));
    assert_eq!(talk.new_packets().len(), 20);
    talk.until(40);
    assert_eq!(talk.ack(30, &[]).delivered, 20);
    assert_eq!(talk.new_packets().len(), 40);
    let half = AckInput { ack: talk.seq(31) + 500, ..QUIET };
    assert_eq!(talk.ack_input(&half).delivered, 1);
    assert_eq!((talk.info().unacked, talk.info().bytes_acked), (41, 31_500));
    assert_eq!(talk.sender.una(), talk.seq(31) + 500);
}

/// Retransmissions of neighbours leave as one super-segment, if they did so first.
#[test]
fn lost_neighbours_leave_together() {
    let mut talk = flight(Begin::default(), 10);
    talk.ack(10, &[]);
    talk.max_len = 64_000;
    talk.write(20);
    talk.took();
    talk.until(60);
    talk.took();
    // 10 … 15 are lost, the rest is SACKed at once: the window is free for all six.
    talk.ack(10, &[(16, 30)]);
    let first = talk.sent[0].transmit;
    assert_eq!((first.kind, first.seq, first.len), (Retransmit, talk.seq(10), 6000));
    assert_eq!(talk.info().retrans, 6);
}

/// A DSACK for the probe with an ACK that advances: no loss, no reduction.
#[test]
fn a_dsack_ends_the_episode_even_with_progress() {
    let mut talk = flight(Begin::default(), 10);
    talk.ack(8, &[]);
    talk.until(62);
    talk.write(1);
    talk.until(82);
    talk.ack(11, &[(9, 10)]);
    assert_eq!(talk.counters.tcp_loss_probe_recovery, 0);
    assert!(talk.sender.cwnd() >= 18);
}

/// While a probe is out, an ACK below it arms the timer, which sends no second one.
#[test]
fn one_probe_an_episode() {
    let mut talk = Talk::new(Begin::default());
    talk.write(10);
    talk.until(42);
    talk.until(50);
    talk.ack(1, &[]);
    talk.until(200);
    assert_eq!((talk.counters.tcp_loss_probes, talk.counters.tcp_timeouts), (1, 0));
    talk.until(1000);
    assert_eq!(talk.state(), CaState::Loss);
    assert!(!talk.sender.tlp_out, "a time-out ends the episode");
}

/// The timer of a probe that may not go, since one is out, leaves RTO where the head put it.
#[test]
fn a_probe_timer_behind_a_probe_does_not_put_off_the_time_out() {
    let mut talk = Talk::new(Begin::default());
    talk.write(10);
    talk.until(50);
    talk.ack(1, &[]);
    let probe_at = talk.sender.deadline();
    talk.until((probe_at.0 - 1_000_000) / 1000 + 1);
    assert!(talk.sender.deadline() > probe_at, "it fired");
    assert_eq!(talk.counters.tcp_loss_probes, 1);
    let head = talk.sender.head_sent().unwrap();
    assert_eq!(talk.sender.deadline(), head + talk.sender.rto(&talk.cfg));
}
