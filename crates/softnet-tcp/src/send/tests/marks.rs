//! ECN (RFC 3168 6.1.2, RFC 8257).

use super::*;

fn talk(congestion: CongestionControl) -> Talk {
    let mut talk = Talk::new(Begin { ecn: true, congestion, ..Begin::default() });
    talk.write(200);
    talk.took();
    talk.until(20);
    talk
}

#[test]
fn one_reduction_a_round_trip_and_cwr_on_new_data() {
    let mut talk = talk(CongestionControl::Cubic);
    talk.ack(2, &[]);
    assert!(talk.sent.iter().all(|sent| sent.transmit.ect && !sent.transmit.cwr));
    assert_eq!(talk.new_packets(), [10, 11, 12, 13]);
    talk.ack_with(3, &[], None, true);
    assert_eq!((talk.state(), talk.info().snd_ssthresh), (CaState::Cwr, 8));
    let mut marked = talk.sent.drain(..).filter(|sent| sent.transmit.cwr).count();
    for n in 4..=14 {
        talk.ack_with(n, &[], None, true);
        marked += talk.sent.iter().filter(|sent| sent.transmit.cwr).count();
        talk.sent.clear();
    }
    assert_eq!(marked, 1, "CWR once");
    assert_eq!((talk.state(), talk.sender.cwnd()), (CaState::Cwr, 8));
    assert_eq!(talk.info().snd_ssthresh, 8, "one reduction");
    talk.until(40);
    talk.ack(16, &[]);
    assert_eq!(talk.state(), CaState::Open);
    assert_eq!(talk.info().delivered_ce, 12);
    // The next round trip: another one.
    talk.ack_with(17, &[], None, true);
    assert_eq!((talk.state(), talk.info().snd_ssthresh), (CaState::Cwr, 5));
}

#[test]
fn retransmissions_are_not_ect_and_a_mark_forbids_undo() {
    let mut talk = talk(CongestionControl::Cubic);
    talk.ack(2, &[]);
    talk.took();
    talk.ack_with(2, &[(3, 6)], None, true);
    assert_eq!(talk.state(), CaState::Recovery);
    let first = talk.sent[0].transmit;
    assert_eq!((first.kind, first.ect, first.cwr), (Kind::Retransmit, false, false));
    talk.until(40);
    talk.ack(6, &[(2, 3)]);
    assert!(talk.info().snd_ssthresh <= 8, "the window stays reduced");
    assert!(talk.sender.cwnd() <= 9);
}

#[test]
fn dctcp_cuts_by_the_share_of_marks() {
    let mut talk = talk(CongestionControl::Dctcp);
    // Round trips without a mark: α falls.
    let mut n = 0;
    for _ in 0..60 {
        let end = (talk.sender.nxt() - talk.base) / MSS;
        talk.until(talk.ms() + 20);
        while n < end.min(n + 10) {
            n += 1;
            talk.ack(n, &[]);
        }
        talk.write(30);
    }
    let cwnd = talk.sender.cwnd();
    assert!(cwnd > 30, "{cwnd}");
    talk.ack_with(n + 1, &[], None, true);
    let cut = talk.info().snd_ssthresh;
    assert!(cut > cwnd * 8 / 10 && cut <= cwnd, "{cut} of {cwnd}");
    // A loss halves.
    let cwnd = talk.sender.cwnd();
    talk.ack(n + 1, &[(n + 3, n + 7)]);
    assert_eq!(talk.state(), CaState::Recovery);
    let _ = cwnd;
}

/// A mark during a recovery forbids its undo.
#[test]
fn a_mark_in_recovery_forbids_undo() {
    for ece in [false, true] {
        let mut talk = talk(CongestionControl::Cubic);
        talk.ack(2, &[(3, 6)]);
        assert_eq!(talk.state(), CaState::Recovery);
        talk.ack_with(2, &[(3, 7)], None, ece);
        talk.until(40);
        talk.ack(10, &[(2, 3)]);
        assert_eq!(talk.info().snd_ssthresh < 100, ece);
    }
}
