//! Any blocks of SACK, on both sides: those that arrive, and those that are made of what arrived.

use super::{Script, advance, numbers, sent};
use crate::conn::Writable;
use crate::testing::end::End;
use crate::wire::{SackRange, Timestamps};
use crate::{Config, DropReason, Flags, Instant, Options, Segment, Seq};

const MSS: u32 = 1000;
const ISN: Seq = Seq(u32::MAX - 20_000);
const ISS: Seq = Seq(u32::MAX - 10_000);

/// An established connection of MSS 1000 with a window of 64 KiB.
fn established(timestamps: bool) -> End {
    let cfg = Config { tcp_timestamps: u8::from(timestamps) * 2, ..Config::default() };
    let mut end = End::new(cfg, ISS);
    end.listen(1);
    let ts = timestamps.then_some(Timestamps { val: 1, ecr: 0 });
    let options = Options {
        timestamps: ts,
        mss: Some(MSS as u16),
        window_scale: Some(4),
        sack_permitted: true,
        ..Options::default()
    };
    end.segment(&Segment {
        seq: ISN,
        flags: Flags::SYN,
        window: 4096,
        segs: 1,
        options,
        ..Segment::default()
    });
    let mut ack = peer(&end);
    ack.ack = ISS + 1;
    ack.seq = ISN + 1;
    end.segment(&ack);
    assert!(end.conn.is_some());
    end
}

/// An ACK of the peer that says nothing new.
fn peer(end: &End) -> Segment {
    let (seq, ack) = numbers(end);
    let mut segment = Segment { seq, ack, flags: Flags::ACK, window: 4096, segs: 1, ..Segment::default() };
    if end.cfg.tcp_timestamps != 0 {
        let val = (end.now.0 / 1000) as u32;
        segment.options.timestamps = Some(Timestamps { val, ecr: val });
    }
    segment
}

/// Plays a script, its first byte says on which side.
pub fn sack(data: &[u8]) {
    let script = &mut Script(data);
    let how = script.byte();
    let end = established(how & 2 != 0);
    if how & 1 == 0 { sends(end, script) } else { receives(end, script) }
}

/// A number near a border of segments.
fn border(script: &mut Script<'_>, una: Seq) -> Seq {
    let byte = script.byte();
    let odd = if byte & 0xc0 == 0xc0 { script.distance() } else { 0 };
    una + (u32::from(byte & 63)).wrapping_sub(8).wrapping_mul(MSS) + odd
}

/// The connection sends, and the peer reports whatever blocks. In the end it acknowledges all, and
/// nothing of what the blocks said is left.
fn sends(mut end: End, script: &mut Script<'_>) {
    while let Some(step) = script.step() {
        let (_, una) = numbers(&end);
        match step % 8 {
            0 | 1 => {
                if let Writable::Room(room) = end.conn().writable() {
                    let bytes = (u32::from(step >> 3) + 1) * MSS;
                    end.write(bytes.min(room.max(1)), false);
                }
            }
            2..=5 => {
                let mut ack = peer(&end);
                if step & 64 != 0 {
                    ack.ack = border(script, una);
                }
                for _ in 0..=step >> 3 & 3 {
                    let (start, end) = (border(script, una), border(script, una));
                    ack.options.sack.push(SackRange { start, end });
                }
                if step & 128 != 0 {
                    ack.window = script.half();
                }
                end.segment(&ack);
            }
            6 => {
                let due = end.deadline();
                if due.is_armed() {
                    advance(&mut end, due);
                }
            }
            _ => {
                let at = Instant(end.now.0 + (u64::from(script.byte()) << (step >> 3 & 15)));
                advance(&mut end, at);
            }
        }
        sent(&mut end);
    }
    finish(&mut end);
}

/// The peer acknowledges what is sent until all is, or the connection has timed out.
fn finish(end: &mut End) {
    let mut rounds = 0;
    while end.state() != Some(crate::State::Closed) && end.conn().unacked() > 0 {
        let send = end.conn().info(&end.cfg).send;
        let flight = end.conn().unacked() - end.conn().unsent();
        let mut ack = peer(end);
        ack.ack += flight;
        end.segment(&ack);
        let after = end.conn().info(&end.cfg).send;
        assert!(flight == 0 || after.bytes_acked > send.bytes_acked, "{send:?} {after:?}");
        if flight == 0 {
            // What keeps it from sending is the window, or pacing: a timer runs.
            let due = end.deadline();
            assert!(due.is_armed(), "data waits, and no timer runs: {after:?}");
            advance(end, due);
        }
        sent(end);
        rounds += 1;
        assert!(rounds < 20_000, "no end: {after:?}");
    }
}

/// Which of the peer's bytes have arrived.
struct Arrived(Vec<bool>);

impl Arrived {
    fn add(&mut self, at: usize, len: usize) {
        let end = (at + len).min(self.0.len());
        self.0[at.min(end)..end].fill(true);
    }

    fn prefix(&self) -> usize {
        self.0.iter().position(|there| !there).unwrap_or(self.0.len())
    }

    fn all(&self, start: usize, end: usize) -> bool {
        start < end && self.0.get(start..end).is_some_and(|bytes| bytes.iter().all(|there| *there))
    }
}

/// The peer sends pieces in any order. No ACK covers what has not arrived, no block reports it, and
/// what is delivered is all that is in order, but for what was dropped.
fn receives(mut end: End, script: &mut Script<'_>) {
    let mut arrived = Arrived(vec![false; 1 << 17]);
    let (first, mut whole) = (ISN + 1, true);
    while let Some(step) = script.step() {
        match step % 4 {
            0..=2 => {
                let at = u32::from(script.byte()) * 256 + u32::from(step >> 6) * 50;
                let len = 1 + u32::from(script.byte()) * if step & 4 != 0 { 5 } else { 16 };
                let mut segment = peer(&end);
                (segment.seq, segment.len) = (first + at, len);
                arrived.add(at as usize, len as usize);
                end.segment(&segment);
                // Duplicates apart, what is dropped comes again or never.
                let again =
                    |why: &DropReason| matches!(why, DropReason::TcpOldData | DropReason::TcpOfoMerge);
                whole &= end.host.drops.drain(..).all(|why| again(&why));
                // Beyond the window data is cut off.
                whole &= end.edge().is_some_and(|edge| (segment.seq + len).at_or_before(edge));
            }
            _ if step & 4 != 0 => {
                end.read(u32::from(script.half()));
            }
            _ => {
                let at = Instant(end.now.0 + u64::from(script.half()));
                advance(&mut end, at);
            }
        }
        let prefix = arrived.prefix();
        let delivered = end.host.delivered as usize;
        assert!(delivered == prefix || !whole && delivered < prefix, "{delivered} of {prefix} delivered");
        for emit in sent(&mut end) {
            let acked = (emit.ack - first) as usize;
            assert!(acked <= prefix, "{emit:?} acknowledges what has not come");
            for (i, range) in emit.options.sack.iter().enumerate() {
                let (start, end) = ((range.start - first) as usize, (range.end - first) as usize);
                assert!(arrived.all(start, end), "{emit:?} reports what has not come");
                // The first may be a duplicate (RFC 2883 4).
                assert!(i == 0 || start > acked, "{emit:?} reports what it acknowledges");
            }
        }
    }
}
