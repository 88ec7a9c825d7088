//! TCP segments of which no connection is known here: those to softnet, which does not serve TCP, and
//! those that a filter rejects. Which of them are answered, and how a reset is made.
//!
//! For the slow path. A segment that is damaged may not be from where it says, and a reset has no
//! answer (RFC 9293 section 3.5.2): about these nothing is said.

use super::checksum;
use crate::skb::DropReason;

/// Bytes of a TCP header without options.
pub(super) const TCP_LEN: usize = 20;
const FIN: u8 = 1 << 0;
const SYN: u8 = 1 << 1;
const RST: u8 = 1 << 2;
const ACK: u8 = 1 << 4;

/// The reset that a segment is answered by, of which no connection is known (RFC 9293 section
/// 3.10.7.1), its checksum still 0; `None` if the segment is a reset itself. The segment is `header`
/// and what follows, `len` bytes in all.
pub(super) fn reset(header: &[u8; TCP_LEN], len: usize) -> Option<[u8; TCP_LEN]> {
    let [s0, s1, d0, d1, seq0, seq1, seq2, seq3, ack0, ack1, ack2, ack3, offset, flags, ..] = *header;
    let (seq, ack) = ([seq0, seq1, seq2, seq3], [ack0, ack1, ack2, ack3]);
    let data = len.saturating_sub(usize::from(offset >> 4) * 4) as u32;
    // SYN and FIN take a place in the sequence each.
    let taken = data + u32::from(flags & SYN != 0) + u32::from(flags & FIN != 0);
    let (seq, ack, flags) = match flags {
        _ if flags & RST != 0 => return None,
        _ if flags & ACK != 0 => (ack, [0; 4], RST),
        _ => ([0; 4], u32::from_be_bytes(seq).wrapping_add(taken).to_be_bytes(), RST | ACK),
    };
    let mut reset = [0; TCP_LEN];
    reset[..4].copy_from_slice(&[d0, d1, s0, s1]);
    reset[4..8].copy_from_slice(&seq);
    reset[8..12].copy_from_slice(&ack);
    (reset[12], reset[13]) = ((TCP_LEN as u8 / 4) << 4, flags);
    Some(reset)
}

/// Whether the sender of a segment is to be told that TCP is not served. The segment is `pieces`, the first of which has
/// its header; `pseudo` is the sum of its pseudo-header. `Err` says what is wrong with it.
pub(super) fn tells_of_tcp<'a>(
    pseudo: u16,
    pieces: impl Iterator<Item = &'a [u8]>,
) -> Result<bool, DropReason> {
    let mut pieces = pieces.peekable();
    let header =
        *pieces.peek().and_then(|first| first.first_chunk::<TCP_LEN>()).ok_or(DropReason::PktTooSmall)?;
    let (len, sum) = checksum::sum_pieces(pieces);
    let header_len = usize::from(header[12] >> 4) * 4;
    if header_len < TCP_LEN || header_len > len {
        return Err(DropReason::PktTooSmall);
    }
    match checksum::add(pseudo, sum) {
        0xffff => Ok(header[13] & RST == 0),
        _ => Err(DropReason::TcpCsum),
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    fn segment(flags: u8, words: u8, len: usize) -> Vec<u8> {
        let mut segment = vec![7; len];
        if let Some(header) = segment.first_chunk_mut::<TCP_LEN>() {
            (header[12], header[13]) = (words << 4, flags);
            header[16..18].fill(0);
            let check = checksum::checksum(&segment);
            segment[16..18].copy_from_slice(&check.to_be_bytes());
        }
        segment
    }

    /// The three cases of RFC 9293 section 3.10.7.1.
    #[test]
    fn a_segment_is_reset_by_rule() {
        let of = |flags: u8, words: u8, len: usize| {
            let mut header = [0; TCP_LEN];
            header[..4].copy_from_slice(&[0, 80, 0x12, 0x34]);
            header[4..8].copy_from_slice(&0xffff_fff0_u32.to_be_bytes());
            header[8..12].copy_from_slice(&77_u32.to_be_bytes());
            (header[12], header[13]) = (words << 4, flags);
            reset(&header, len).map(|reset| {
                assert_eq!(
                    (&reset[..4], reset[12], &reset[14..]),
                    (&[0x12, 0x34, 0, 80][..], 0x50, &[0; 6][..])
                );
                let word = |at: usize| u32::from_be_bytes(*reset[at..].first_chunk().unwrap());
                (word(4), word(8), reset[13])
            })
        };
        // Without ACK: from 0, and all that it takes is acknowledged.
        assert_eq!(of(SYN, 6, 24), Some((0, 0xffff_fff1, RST | ACK)));
        assert_eq!(of(SYN | FIN, 5, 20 + 20), Some((0, 6, RST | ACK)));
        assert_eq!(of(0, 5, 20), Some((0, 0xffff_fff0, RST | ACK)));
        // With it: from where the other side waits.
        assert_eq!(of(ACK, 5, 120), Some((77, 0, RST)));
        assert_eq!(of(SYN | ACK, 5, 20), Some((77, 0, RST)));
        assert_eq!((of(RST, 5, 20), of(RST | ACK, 5, 20)), (None, None));
    }

    #[test]
    fn resets_and_damaged_segments_are_told_nothing() {
        let verdict = |segment: &[u8]| tells_of_tcp(0, [segment].into_iter());
        for (flags, told) in [(2, true), (0x12, true), (0x10, true), (4, false), (0x14, false)] {
            assert_eq!(verdict(&segment(flags, 5, 27)), Ok(told), "{flags}");
        }
        assert_eq!(verdict(&segment(2, 6, 24)), Ok(true));
        for (words, len) in [(4, 30), (6, 23), (15, 59), (5, 19), (0, 0)] {
            assert_eq!(verdict(&segment(2, words, len)), Err(DropReason::PktTooSmall), "{words} {len}");
        }
        let mut damaged = segment(2, 5, 27);
        damaged[26] ^= 1;
        assert_eq!(verdict(&damaged), Err(DropReason::TcpCsum));
        assert_eq!(tells_of_tcp(1, [&segment(2, 5, 20)[..]].into_iter()), Err(DropReason::TcpCsum));
        // In pieces.
        let whole = segment(2, 5, 101);
        assert_eq!(tells_of_tcp(0, [&whole[..24], &whole[24..64], &whole[64..]].into_iter()), Ok(true));
        assert_eq!(tells_of_tcp(0, [&whole[..23], &whole[23..64], &whole[64..]].into_iter()), Ok(true));
        assert_eq!(tells_of_tcp(0, [&whole[..16], &whole[16..]].into_iter()), Err(DropReason::PktTooSmall));
        assert_eq!(tells_of_tcp(0, [].into_iter()), Err(DropReason::PktTooSmall));
    }
}
