//! What fuzzing runs, here as ordinary functions: whatever bytes they are given, no panic, and the
//! invariants of a connection hold after every step. The tests run them on `fuzz/corpus`.

mod connection;
mod options;
mod sack;

pub use connection::connection;
pub use options::options;
pub use sack::sack;

use crate::testing::end::End;
use crate::wire::Emit;
use crate::wire::MAX_HEADER;
use crate::{Instant, Segment, Seq};

/// Bytes that say what to do, one step after the other; zeros behind their end.
struct Script<'a>(&'a [u8]);

impl<'a> Script<'a> {
    /// The next byte; `None` at the end.
    fn step(&mut self) -> Option<u8> {
        let (byte, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*byte)
    }

    fn byte(&mut self) -> u8 {
        self.step().unwrap_or(0)
    }

    fn half(&mut self) -> u16 {
        u16::from_be_bytes([self.byte(), self.byte()])
    }

    fn word(&mut self) -> u32 {
        u32::from(self.half()) << 16 | u32::from(self.half())
    }

    fn bytes(&mut self, most: usize) -> &'a [u8] {
        let len = usize::from(self.byte()).min(most).min(self.0.len());
        let (bytes, rest) = self.0.split_at(len);
        self.0 = rest;
        bytes
    }

    /// A distance in sequence space: mostly none, or near 0, segments away, near a window, any.
    fn distance(&mut self) -> u32 {
        match self.byte() {
            0..=95 => 0,
            byte @ 96..=159 => (u32::from(byte)).wrapping_sub(128),
            byte @ 160..=207 => (u32::from(byte)).wrapping_sub(168).wrapping_mul(1000),
            208..=239 => u32::from(self.half()),
            240..=247 => u32::from(self.half()).wrapping_mul(64).wrapping_sub(1 << 16),
            _ => self.word(),
        }
    }
}

/// Where the peer's numbers and this end's stand: RCV.NXT and SND.UNA.
fn numbers(end: &End) -> (Seq, Seq) {
    match &end.conn {
        Some(conn) => {
            let next = end.irs.unwrap_or(Seq(0)) + 1 + conn.info(&end.cfg).bytes_received as u32;
            (next, end.iss + 1 + end.host.acked as u32)
        }
        None => (end.irs.map_or(Seq(0), |irs| irs + 1), end.iss + 1),
    }
}

/// Lets time pass; what is due happens when it is.
fn advance(end: &mut End, at: Instant) {
    while end.deadline() <= at {
        let due = end.deadline().max(end.now);
        end.time(due);
        assert!(end.deadline() > due, "a timer that is due stays due");
    }
    end.now = end.now.max(at);
}

/// Takes what was sent; each header is read as it was written.
fn sent(end: &mut End) -> Vec<Emit> {
    let sent: Vec<Emit> = end.host.sent.drain(..).map(|(_, emit)| emit).collect();
    for emit in &sent {
        let mut header = [0; MAX_HEADER];
        let len = emit.write_header((8080, 40_000), &mut header);
        assert_eq!(len, emit.header_len());
        let read = Segment::parse(&header[..len]).expect("a header");
        assert_eq!((read.seq, read.ack), (emit.seq, emit.ack));
        assert_eq!((read.flags, read.window), (emit.flags, emit.window));
        assert_eq!(read.options.timestamps, emit.options.timestamps);
        assert!(emit.options.sack.starts_with(&read.options.sack), "{read:?} of {emit:?}");
    }
    sent
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replay(name: &str, target: fn(&[u8])) {
        let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/");
        let files: Vec<_> = std::fs::read_dir(format!("{corpus}{name}")).unwrap().collect();
        assert!(!files.is_empty(), "{name}");
        for file in files {
            target(&std::fs::read(file.unwrap().path()).unwrap());
        }
    }

    #[test]
    fn the_corpus_is_replayed() {
        replay("tcp_connection", connection);
        replay("tcp_sack", sack);
        replay("tcp_options", options);
    }

    proptest::proptest! {
        #[test]
        fn whatever_comes_is_borne(data in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..600)) {
            connection(&data);
            sack(&data);
            options(&data);
        }
    }
}
