//! Frames of FPM: four bytes of header (version, type, length of the whole as a big-endian number)
//! before messages of rtnetlink. Put together from a stream that may be cut anywhere.
//!
//! Invariant: less than one frame is kept between calls, whatever was sent.

use std::fmt;

/// The only version there is.
const VERSION: u8 = 1;
/// Messages of rtnetlink, not protocol buffers.
const NETLINK: u8 = 1;
const HEADER: usize = 4;

/// Why a stream is not FPM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// A header with another version.
    Version(u8),
    /// A header with another type.
    Type(u8),
    /// A length that is less than the header's own.
    Length(u16),
    /// What a frame holds is no sequence of messages.
    Message(String),
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Malformed::Version(version) => write!(f, "expected version {VERSION} of FPM, found {version}"),
            Malformed::Type(kind) => write!(f, "expected frames of type {NETLINK} (netlink), found {kind}"),
            Malformed::Length(length) => write!(f, "expected a length of at least {HEADER}, found {length}"),
            Malformed::Message(why) => f.write_str(why),
        }
    }
}

/// What has come of a frame that is not complete.
#[derive(Debug, Default)]
pub(super) struct Frames {
    held: Vec<u8>,
}

impl Frames {
    /// Takes what came next, and hands over the content of each frame that it completes. After an
    /// error the stream makes no sense any more.
    pub(super) fn push(
        &mut self,
        bytes: &[u8],
        mut each: impl FnMut(&[u8]) -> Result<(), Malformed>,
    ) -> Result<(), Malformed> {
        self.held.extend_from_slice(bytes);
        let mut rest = &self.held[..];
        while let [version, kind, high, low, ..] = *rest {
            let length = u16::from_be_bytes([high, low]);
            if version != VERSION {
                return Err(Malformed::Version(version));
            }
            if kind != NETLINK {
                return Err(Malformed::Type(kind));
            }
            if usize::from(length) < HEADER {
                return Err(Malformed::Length(length));
            }
            let Some((frame, behind)) = rest.split_at_checked(length.into()) else { break };
            each(&frame[HEADER..])?;
            rest = behind;
        }
        let done = self.held.len() - rest.len();
        self.held.drain(..done);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn frame(content: &[u8]) -> Vec<u8> {
        let length = (HEADER + content.len()) as u16;
        [&[VERSION, NETLINK], &length.to_be_bytes()[..], content].concat()
    }

    /// The contents of the frames in `pieces` of one stream, and how it ended.
    fn read<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> (Vec<Vec<u8>>, Result<(), Malformed>) {
        let (mut frames, mut found) = (Frames::default(), Vec::new());
        for piece in pieces {
            let result = frames.push(piece, |content| {
                found.push(content.to_vec());
                Ok(())
            });
            assert!(frames.held.len() <= usize::from(u16::MAX) + piece.len());
            if result.is_err() {
                return (found, result);
            }
            assert!(frames.held.len() < usize::from(u16::MAX));
        }
        (found, Ok(()))
    }

    /// `stream`, cut at `cuts`.
    fn cut(stream: &[u8], cuts: &[prop::sample::Index]) -> Vec<Vec<u8>> {
        let mut at: Vec<usize> = cuts.iter().map(|cut| cut.index(stream.len() + 1)).collect();
        at.extend([0, stream.len()]);
        at.sort_unstable();
        at.windows(2).map(|pair| stream[pair[0]..pair[1]].to_vec()).collect()
    }

    proptest! {
        #[test]
        fn any_cut_gives_the_same_frames(
            contents in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 0..10),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..20),
        ) {
            let stream: Vec<u8> = contents.iter().flat_map(|content| frame(content)).collect();
            let pieces = cut(&stream, &cuts);
            prop_assert_eq!(read(pieces.iter().map(Vec::as_slice)), (contents.clone(), Ok(())));
            prop_assert_eq!(read(stream.chunks(1)), (contents, Ok(())));
        }

        #[test]
        fn garbage_is_refused_alike_however_it_is_cut(
            stream in prop::collection::vec(prop_oneof![Just(0u8), Just(1), Just(4), any::<u8>()], 0..400),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..20),
        ) {
            let pieces = cut(&stream, &cuts);
            prop_assert_eq!(read(pieces.iter().map(Vec::as_slice)), read(std::iter::once(&stream[..])));
        }
    }

    #[test]
    fn the_longest_frame_and_headers_that_are_not_fpm() {
        let longest = vec![7; usize::from(u16::MAX) - HEADER];
        assert_eq!(read(frame(&longest).chunks(1000)), (vec![longest], Ok(())));
        for (stream, why) in [
            (&b"GET / HTTP/1.1"[..], "expected version 1 of FPM, found 71"),
            (&[1, 2, 0, 8], "expected frames of type 1 (netlink), found 2"),
            (&[1, 1, 0, 3], "expected a length of at least 4, found 3"),
        ] {
            assert_eq!(read(stream.chunks(3)).1.unwrap_err().to_string(), why);
        }
    }
}
