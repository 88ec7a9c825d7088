//! The load over TCP: the connections of one thread as a [`DatagramSet`], which the client is written for.
//!
//! What the client makes are messages with the header that memcached has over UDP, whose first two
//! bytes say which request it is. A stream has none: a server answers in order. So the header is
//! taken off here, its id kept in the connection's queue, and put before the response that comes in
//! that turn. Invariant: a connection has as many ids queued as requests that were given to it and
//! are not answered; where a response ends is said by itself ([`frame`]).

mod frame;
mod net;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::ops::Range;
use std::time::{Duration, Instant};

use softnet_testkit::datagrams::{DatagramSet, Outbox};

use super::CONNECTING;
use super::wire::HEADER;
pub(super) use net::{KernelNet, Net, SoftnetNet};

/// Connections that are begun at once: a listener has room for more.
const AT_ONCE: usize = 128;
/// A look at whether connections are made.
const LOOK: Duration = Duration::from_millis(10);
/// Bytes that are read at a time, and bytes of one connection before the others have their turn.
const CHUNK: usize = 64 << 10;
const TURN: usize = 256 << 10;
/// What memcached says before it closes a connection that is one too many.
const TOO_MANY: &[u8] = b"ERROR Too many open connections";

/// See the module.
pub(super) struct Streams<N: Net> {
    net: N,
    conns: Vec<Conn<N::Stream>>,
    server: SocketAddr,
    tokens: Vec<u64>,
    chunk: Vec<u8>,
    /// Responses that were taken last, each with a header.
    taken: Vec<u8>,
    spans: Vec<Range<usize>>,
}

struct Conn<S> {
    stream: S,
    /// Of the requests that are not answered, in their order.
    ids: VecDeque<[u8; 2]>,
    /// What is to be sent, and how much of it was.
    out: Vec<u8>,
    sent: usize,
    /// Whether it is watched for room to send.
    waits: bool,
    /// The beginning of a response.
    got: Vec<u8>,
}

impl<N: Net> Streams<N> {
    /// `count` connections to `server`.
    ///
    /// # Errors
    /// One of them can't be made, or is not within [`CONNECTING`].
    pub(super) fn connected(net: N, server: SocketAddr, count: usize) -> io::Result<Self> {
        let mut all = Streams {
            net,
            conns: Vec::new(),
            server,
            tokens: Vec::new(),
            chunk: vec![0; CHUNK],
            taken: Vec::new(),
            spans: Vec::new(),
        };
        while all.conns.len() < count {
            let first = all.conns.len();
            for token in first..count.min(first + AT_ONCE) {
                let stream = all.net.begin_connect(server)?;
                all.net.add(&stream, token as u64)?;
                all.conns.push(Conn {
                    stream,
                    ids: VecDeque::new(),
                    out: Vec::new(),
                    sent: 0,
                    waits: true,
                    got: Vec::new(),
                });
            }
            all.connect(first)?;
        }
        Ok(all)
    }

    /// Waits until the connections from number `first` on are made.
    fn connect(&mut self, first: usize) -> io::Result<()> {
        let mut missing = self.conns.len() - first;
        let give_up = Instant::now() + CONNECTING;
        while missing > 0 {
            if Instant::now() > give_up {
                return Err(ErrorKind::TimedOut.into());
            }
            self.net.wait(LOOK, &mut self.tokens)?;
            for token in &self.tokens {
                let conn = &mut self.conns[*token as usize];
                if conn.waits && N::is_connected(&conn.stream)? {
                    conn.waits = false;
                    self.net.watch(&conn.stream, *token, false)?;
                    missing -= 1;
                }
            }
        }
        Ok(())
    }

    /// Sends what there is room for.
    fn flush(&mut self, at: usize) -> io::Result<()> {
        let conn = &mut self.conns[at];
        while conn.sent < conn.out.len() {
            match conn.stream.write(&conn.out[conn.sent..]) {
                Ok(n) => conn.sent += n,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                // Reading says why it ended.
                Err(_) => conn.sent = conn.out.len(),
            }
        }
        let waits = conn.sent < conn.out.len();
        if !waits {
            conn.out.clear();
            conn.sent = 0;
        }
        if waits != conn.waits {
            conn.waits = waits;
            self.net.watch(&conn.stream, at as u64, waits)?;
        }
        Ok(())
    }

    /// Reads what there is, and returns how the connection ended, if it did.
    fn read(&mut self, at: usize) -> Option<io::Error> {
        let conn = &mut self.conns[at];
        let most = conn.got.len() + TURN;
        while conn.got.len() < most {
            match conn.stream.read(&mut self.chunk) {
                Ok(0) => return Some(ErrorKind::UnexpectedEof.into()),
                Ok(n) => conn.got.extend_from_slice(&self.chunk[..n]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Some(error),
            }
        }
        None
    }

    /// Takes the responses that are there in whole.
    ///
    /// # Errors
    /// In words: what came was not asked for, or is no response.
    fn frame(&mut self, at: usize) -> Result<(), String> {
        let conn = &mut self.conns[at];
        let mut begin = 0;
        self.taken.clear();
        self.spans.clear();
        while let Some(len) = frame::response(&conn.got[begin..])? {
            let response = &conn.got[begin..begin + len];
            if response.starts_with(TOO_MANY) {
                return Err("the server takes no more; ask by fewer (--connections), or raise its limit (memcached: --conn-limit)".into());
            }
            let Some([high, low]) = conn.ids.pop_front() else {
                return Err(format!("the server said {} without a request", shown(response)));
            };
            begin += len;
            // It was given up long ago, and its identifier is another request's by now, which is answered later.
            if conn.ids.contains(&[high, low]) {
                continue;
            }
            let from = self.taken.len();
            self.taken.extend_from_slice(&[high, low, 0, 0, 0, 1, 0, 0]);
            self.taken.extend_from_slice(response);
            self.spans.push(from..self.taken.len());
        }
        conn.got.drain(..begin);
        Ok(())
    }

    /// How connection `at` ended, for the user.
    fn ended(&self, at: usize, error: &io::Error) -> io::Error {
        let (number, all) = (at + 1, self.conns.len());
        io::Error::other(match error.kind() {
            ErrorKind::UnexpectedEof => format!(
                "the server closed connection {number} of {all}; does it allow so many (memcached: --conn-limit), and \
                 does it speak memcached's text protocol?"
            ),
            ErrorKind::ConnectionReset => {
                format!("the server reset connection {number} of {all}; did it end?")
            }
            _ => format!("connection {number} of {all}: {error}"),
        })
    }
}

/// The beginning of what a server said.
fn shown(response: &[u8]) -> String {
    format!("{:?}", String::from_utf8_lossy(&response[..response.len().min(80)]).trim_end())
}

impl<N: Net> DatagramSet for Streams<N> {
    fn wait(&mut self, timeout: Option<Duration>, ready: &mut Vec<usize>) -> io::Result<()> {
        ready.clear();
        let mut tokens = std::mem::take(&mut self.tokens);
        self.net.wait(timeout.unwrap_or(LOOK), &mut tokens)?;
        for token in &tokens {
            let at = *token as usize;
            if self.conns[at].waits {
                self.flush(at)?;
            }
            ready.push(at);
        }
        self.tokens = tokens;
        Ok(())
    }

    fn recv(&mut self, socket: usize) -> io::Result<usize> {
        let end = self.read(socket);
        self.frame(socket).map_err(|error| {
            io::Error::other(format!("connection {} of {}: {error}", socket + 1, self.conns.len()))
        })?;
        match end {
            // What came before the end is taken first; the end is told again.
            Some(error) if self.spans.is_empty() => Err(self.ended(socket, &error)),
            _ => Ok(self.spans.len()),
        }
    }

    fn datagram(&self, i: usize) -> (SocketAddr, &[u8]) {
        (self.server, &self.taken[self.spans[i].clone()])
    }

    fn send(&mut self, socket: usize, outbox: &Outbox) -> io::Result<usize> {
        let conn = &mut self.conns[socket];
        for (_, message) in (0..outbox.len()).map(|i| outbox.get(i)) {
            // Without one it is no message.
            let Some((header, request)) = message.split_first_chunk::<HEADER>() else { continue };
            conn.ids.push_back([header[0], header[1]]);
            conn.out.extend_from_slice(request);
        }
        // A connection that waits for room is flushed when there is some.
        if !conn.waits {
            self.flush(socket)?;
        }
        Ok(0)
    }

    fn napi_id(&self, socket: usize) -> u32 {
        N::napi_id(&self.conns[socket].stream)
    }
}
