//! Marks of a loss, and what they say billions of bytes later.

use super::*;
use crate::wire::SackRange;
use Kind::Retransmit;

const BIG: u32 = 60_000;

fn ack_bytes(talk: &mut Talk, ack: Seq, sack: &[SackRange]) {
    talk.ack_input(&AckInput { ack, sack, ..QUIET });
}

/// Half the numbers, a little less and a little more: whatever was kept from the first loss is
/// ahead of the second one by then.
#[test]
fn a_loss_two_gigabytes_after_another_is_repaired_as_fast() {
    for past in [0x7000_0000u32, 0x8000_0000, 0x9000_0000, 0xfff0_0000] {
        let mut talk = Talk::new(Begin::default());
        talk.write(10);
        talk.took();
        talk.until(20);
        talk.ack(2, &[(3, 7)]);
        assert_eq!(talk.took(), [(2, Retransmit)]);
        talk.until(40);
        talk.ack(10, &[]);
        assert_eq!(talk.state(), CaState::Open);
        talk.sender.set_mss(BIG as u16);
        talk.max_len = BIG;
        for _ in 0..past / (6 * BIG) {
            talk.write_bytes(6 * BIG);
            talk.now += Span(20_000);
            let end = talk.write_seq;
            ack_bytes(&mut talk, end, &[]);
        }
        talk.took();
        let una = talk.una;
        assert_eq!((talk.sender.una(), talk.state()), (talk.write_seq, CaState::Open));
        // The same holes again, in packets of the same numbers.
        talk.write_bytes(6 * BIG);
        assert_eq!(talk.sent.len(), 6);
        talk.sent.clear();
        talk.now += Span(20_000);
        let block = SackRange { start: una + BIG, end: una + 5 * BIG };
        ack_bytes(&mut talk, una, &[block]);
        assert_eq!((talk.state(), talk.info().sacked), (CaState::Recovery, 4), "after {past:#x}");
        let again: Vec<_> = talk.sent.iter().map(|sent| (sent.transmit.seq, sent.transmit.kind)).collect();
        assert_eq!(again, [(una, Retransmit)], "after {past:#x}");
        assert_eq!(talk.counters.tcp_timeouts, 0);
    }
}

/// 2³² later the same numbers are SACKed again, and are news.
#[test]
fn a_block_of_an_earlier_life_of_the_numbers_is_forgotten() {
    let block = |start: u32, end: u32| SackRange { start: Seq(start), end: Seq(end) };
    let mut cache = scoreboard::SackCache::default();
    cache.remember(&[block(1000, 2000), block(3000, 4000)]);
    cache.forget_below(Seq(2000));
    assert_eq!(cache.news(block(1000, 2000)), Some(block(1000, 2000)));
    assert_eq!(cache.news(block(3000, 4500)), Some(block(4000, 4500)));
    cache.forget_below(Seq(4000));
    assert_eq!(cache.news(block(3000, 4500)), Some(block(3000, 4500)));
}
