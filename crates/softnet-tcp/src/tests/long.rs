//! Streams longer than the space of sequence numbers: whatever a connection keeps from its beginning
//! lies ahead of the numbers in use after 2³¹ bytes, and among them after 2³².

use super::talk::Talk;
use crate::wire::Flags;
use crate::{Instant, Seq};

const STEP: u32 = 60_000;
/// More than 2³² bytes.
const STEPS: u32 = 72_000;

fn talks() -> [Talk; 2] {
    let mut connected = Talk::connect_at(|_| {}, Seq(1_000_000), Seq(5_000_000));
    connected.run(
        "> S 0:0(0)
         +10 < S. 0:0(0) ack 1 win 32792 <mss 1000,sackOK,nop,nop,nop,wscale 7>
         > . 1:1(0) ack 1",
    );
    [Talk::accepted(|_| {}), connected]
}

#[test]
fn what_was_sent_is_freed_whatever_its_number() {
    for mut talk in talks() {
        let acknowledgement = talk.parse(". 1:1(0) ack 1 win 4096");
        let mut ack = acknowledgement.ack;
        for i in 1..=STEPS {
            talk.end.write(STEP, false);
            ack += STEP;
            while talk.end.conn().unacked() > 0 {
                let una = talk.end.host.sent.drain(..).map(|(_, emit)| emit.seq + emit.len).next_back();
                talk.advance(Instant(talk.end.now.0 + 100));
                talk.end.segment(&crate::Segment { ack: una.expect("something leaves"), ..acknowledgement });
            }
            let conn = talk.end.conn();
            assert_eq!((talk.end.host.acked, conn.unsent()), (u64::from(i) * u64::from(STEP), 0));
            assert!(conn.is_writable(&talk.end.cfg));
        }
        assert_eq!(talk.end.queued, talk.end.host.acked);
        assert_eq!(talk.end.counters.send.retrans_segs, 0);
    }
}

#[test]
fn what_arrives_is_read_whatever_its_number() {
    for mut talk in talks() {
        let first = talk.parse("P. 1:1001(1000) ack 1 win 257");
        let mut seq = first.seq;
        for _ in 0..STEPS {
            talk.advance(Instant(talk.end.now.0 + 100));
            talk.end.segment(&crate::Segment { seq, len: STEP, segs: 60, ..first });
            seq += STEP;
            assert_eq!(talk.end.read(u32::MAX), STEP);
            let sent = talk.end.host.sent.drain(..).next_back();
            assert!(sent.is_none_or(|(_, emit)| emit.ack == seq && emit.flags == Flags::ACK));
        }
        let all = u64::from(STEPS) * u64::from(STEP);
        assert_eq!((talk.end.host.delivered, talk.end.conn().unread()), (all, 0));
    }
}
