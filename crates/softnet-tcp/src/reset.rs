//! The answer to a segment that belongs to no connection (RFC 9293 3.5.2, 3.10.7.1).

use crate::seq::Seq;
use crate::wire::{Emit, Flags, Segment};

/// "All data in the incoming segment is discarded. An incoming segment containing a RST is
/// discarded. An incoming segment not containing a RST causes a RST to be sent in response." The
/// host answers only unicast segments, within its budget for answers that are not asked for.
pub fn reset_for(segment: &Segment) -> Option<Emit> {
    if segment.flags.any(Flags::RST) {
        return None;
    }
    Some(if segment.flags.any(Flags::ACK) {
        // "<SEQ=SEG.ACK><CTL=RST>"
        Emit { seq: segment.ack, flags: Flags::RST, ..Emit::default() }
    } else {
        // "<SEQ=0><ACK=SEG.SEQ+SEG.LEN><CTL=RST,ACK>"
        Emit { seq: Seq(0), ack: segment.end(), flags: Flags::RST | Flags::ACK, ..Emit::default() }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reset_is_believed_by_the_sender_of_the_segment() {
        let segment = |flags, len| Segment { seq: Seq(10), ack: Seq(20), flags, len, ..Segment::default() };
        let ack = reset_for(&segment(Flags::ACK, 5)).unwrap();
        assert_eq!((ack.seq, ack.ack, ack.flags), (Seq(20), Seq(0), Flags::RST));
        let syn = reset_for(&segment(Flags::SYN, 0)).unwrap();
        assert_eq!((syn.seq, syn.ack, syn.flags), (Seq(0), Seq(11), Flags::RST | Flags::ACK));
        assert_eq!(reset_for(&segment(Flags::FIN, 5)).unwrap().ack, Seq(16));
        assert_eq!(reset_for(&segment(Flags::RST | Flags::ACK, 0)), None);
    }
}
