//! TCP segments to softnet, which does not serve TCP: which of them are answered by an ICMP error.
//!
//! For the slow path. A segment that is damaged may not be from where it says, and a reset has no
//! answer (RFC 9293 section 3.5.2): about these nothing is said.

use super::checksum;
use crate::skb::DropReason;

/// Bytes of a TCP header without options.
const TCP_LEN: usize = 20;
const RST: u8 = 1 << 2;

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
