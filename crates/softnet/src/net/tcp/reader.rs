//! [`TcpReader`]: reads a connection where its bytes lie.
//!
//! Invariant: packet memory that a reader has is charged to its connection until it is given back, and
//! the connection lives as long.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::fmt;
use std::io::{self, BufRead, Read};

use softnet_core::sock::tcp::Piece;

use super::TcpStream;
use super::on_shard;
use crate::stack::with;

/// Reads a [`TcpStream`] without copying: it borrows received bytes where they lie, in packet memory.
///
/// As a [`BufRead`] it does for any parser; [`parts`](Self::parts) and [`get`](Self::get) show what lies
/// in several packets. What is [consumed](Self::consume) is given back with the next [`fill`](Self::fill),
/// in one call.
///
/// What is borrowed takes room in the connection's receive buffer, so that the peer's window opens
/// only as it is given back. A message that does not fit the buffer is to be copied out and consumed piece by
/// piece: waiting for the whole of it would never end.
///
/// Clones of the stream read what the reader has not borrowed. Bytes that a reader had borrowed are lost
/// when it is dropped, as those of a [`BufReader`](io::BufReader).
///
/// ```no_run
/// use softnet::net::{TcpReader, TcpStream};
///
/// /// Answers each line with its length.
/// fn serve(stream: TcpStream) -> std::io::Result<()> {
///     let mut reader = TcpReader::new(stream);
///     let mut answers = Vec::new();
///     while reader.fill()? > 0 {
///         while let Some(end) = reader.find(b'\n') {
///             if let Some(line) = reader.get(end) {
///                 answers.extend_from_slice(format!("{}\n", line.len()).as_bytes());
///             }
///             reader.consume(end + 1);
///         }
///         reader.get_ref().send(&answers)?;
///         answers.clear();
///     }
///     Ok(())
/// }
/// ```
pub struct TcpReader {
    stream: TcpStream,
    /// None of them is empty.
    pieces: VecDeque<Piece>,
    len: usize,
    /// To be given back.
    spent: Vec<Piece>,
}

impl TcpReader {
    /// Of a connection; it blocks or not as the stream does.
    pub fn new(stream: TcpStream) -> Self {
        TcpReader { stream, pieces: VecDeque::new(), len: 0, spent: Vec::new() }
    }

    /// The connection.
    pub fn get_ref(&self) -> &TcpStream {
        &self.stream
    }

    /// Bytes that are borrowed and not consumed.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Gives back what was consumed, and borrows all that has arrived beyond what is borrowed; waits
    /// for the first byte. Returns how many bytes these are; 0 at the end of the stream.
    ///
    /// # Errors
    /// As [`TcpStream::recv`]'s.
    pub fn fill(&mut self) -> io::Result<usize> {
        let TcpReader { stream, pieces, spent, .. } = self;
        let id = stream.0.id;
        let n = stream.receive(usize::MAX, |shard, ctx, env, out| {
            shard.give_back(ctx, env, id, spent.drain(..), out);
            shard.lend(ctx, env, id, pieces, out)
        })?;
        self.len += n;
        Ok(n)
    }

    /// The borrowed bytes, piece by piece; none is empty.
    pub fn parts(&self) -> impl Iterator<Item = &[u8]> {
        self.pieces.iter().flat_map(Piece::parts)
    }

    /// The first of the borrowed bytes, as far as they lie together.
    pub fn data(&self) -> &[u8] {
        self.parts().next().unwrap_or_default()
    }

    /// The first `n` of the borrowed bytes, copied only if they do not lie together; `None` if there
    /// are fewer.
    pub fn get(&self, n: usize) -> Option<Cow<'_, [u8]>> {
        if let Some(data) = self.data().get(..n) {
            return Some(Cow::Borrowed(data));
        }
        if n > self.len {
            return None;
        }
        let mut all = Vec::with_capacity(n);
        for part in self.parts() {
            all.extend_from_slice(&part[..part.len().min(n - all.len())]);
            if all.len() == n {
                break;
            }
        }
        Some(Cow::Owned(all))
    }

    /// The place of the first `byte` among those that are borrowed.
    pub fn find(&self, byte: u8) -> Option<usize> {
        let mut before = 0;
        for part in self.parts() {
            if let Some(at) = part.iter().position(|other| *other == byte) {
                return Some(before + at);
            }
            before += part.len();
        }
        None
    }

    /// The first `n` of the borrowed bytes, or all if they are fewer, were read.
    pub fn consume(&mut self, n: usize) {
        let mut n = n.min(self.len);
        self.len -= n;
        while n > 0
            && let Some(first) = self.pieces.front_mut()
        {
            let of_first = n.min(first.len());
            first.advance(of_first);
            n -= of_first;
            if first.is_empty() {
                self.spent.extend(self.pieces.pop_front());
            }
        }
    }
}

impl BufRead for TcpReader {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.is_empty() {
            self.fill()?;
        }
        Ok(self.data())
    }

    fn consume(&mut self, n: usize) {
        TcpReader::consume(self, n);
    }
}

impl Read for TcpReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        let n = self.fill_buf()?.read(buffer)?;
        TcpReader::consume(self, n);
        Ok(n)
    }
}

impl Drop for TcpReader {
    fn drop(&mut self) {
        let TcpReader { stream, pieces, spent, .. } = self;
        if pieces.is_empty() && spent.is_empty() {
            return;
        }
        let (id, shared) = (stream.0.id, &stream.0.shared);
        // Also after the stack has stopped: the memory is its region's.
        on_shard(shared, stream.0.shard as usize, |shard, ctx, env, out| {
            shard.give_back(ctx, env, id, spent.drain(..).chain(pieces.drain(..)), out);
        });
        if shared.sockets.is_stopped() {
            with(shared, |thread| thread.drain());
        }
    }
}

impl fmt::Debug for TcpReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TcpReader").field("stream", &self.stream).field("len", &self.len).finish()
    }
}
