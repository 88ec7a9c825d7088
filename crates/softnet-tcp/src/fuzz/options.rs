//! Any bytes as the options of a segment.

use crate::wire::MAX_HEADER;
use crate::{Emit, Flags, Options, Segment};

/// Options of a SYN or of another segment, as the first byte says. They are the same behind a NOP,
/// what they say is in range, and what this end writes of them is read as it was.
pub fn options(data: &[u8]) {
    let Some((first, rest)) = data.split_first() else { return };
    let (syn, bytes) = (first & 1 != 0, &rest[..rest.len().min(40)]);
    let options = Options::parse(bytes, syn);
    let behind_nop: Vec<u8> = std::iter::once(1).chain(bytes.iter().copied()).collect();
    assert_eq!(Options::parse(&behind_nop, syn), options, "the short way and the long one");
    assert!(options.window_scale.is_none_or(|shift| shift <= 14));
    assert!(options.mss != Some(0));
    if !syn {
        assert_eq!((options.mss, options.window_scale, options.sack_permitted), (None, None, false));
    }
    // Only a SYN offers SACK, and only others report blocks.
    let written = Options { sack: if syn { Default::default() } else { options.sack }, ..options };
    let flags = if syn { Flags::SYN } else { Flags::ACK };
    let emit = Emit { flags, options: written, mss: 1460, ..Emit::default() };
    let mut header = [0; MAX_HEADER];
    let len = emit.write_header((1, 2), &mut header);
    let mut read = Segment::parse(&header[..len]).expect("a header").options;
    if written.timestamps.is_some() && written.sack.len() == 4 {
        // Three blocks fit beside timestamps.
        assert_eq!(read.sack[..], written.sack[..3]);
        read.sack = written.sack;
    }
    assert_eq!(read, written);
    // The same bytes as a header of their own, whatever they say of its length.
    if let Ok(segment) = Segment::parse(rest) {
        let header = Segment::header_len(rest).expect("it was parsed");
        assert_eq!(header + segment.len as usize, rest.len());
    }
}
