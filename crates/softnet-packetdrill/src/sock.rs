//! A socket: what it is, its payload, and the host that the engine sees.

use std::collections::{BTreeMap, VecDeque};

use softnet_tcp::conn::{Conn, ConnOptions, Error, Output, Piece};
use softnet_tcp::isn::Tuple;
use softnet_tcp::listen::Listener;
use softnet_tcp::timewait::TimeWait;
use softnet_tcp::{DropReason, Emit, Seq};

use crate::pace::Pace;
use crate::skbs::Skbs;
use crate::stack::Net;

/// A number of a socket, never used again.
pub(crate) type SockId = u32;

/// Received payload.
pub(crate) struct Payload {
    pub(crate) bytes: Vec<u8>,
    /// The memory that it takes.
    pub(crate) charge: u32,
}

/// Payload that is delivered and not read.
struct Chunk {
    payload: Payload,
    at: usize,
    end: usize,
}

/// The bytes of a connection.
pub(crate) struct Data {
    /// Queued for sending, from `base` on.
    send: VecDeque<u8>,
    base: Seq,
    pub(crate) skbs: Skbs,
    pace: Pace,
    recv: VecDeque<Chunk>,
    pub(crate) time_wait: Option<TimeWait>,
}

impl Data {
    pub(crate) fn new(iss: Seq) -> Data {
        let base = iss + 1;
        Data {
            send: VecDeque::new(),
            base,
            skbs: Skbs::new(base),
            pace: Pace::default(),
            recv: VecDeque::new(),
            time_wait: None,
        }
    }

    /// Queues `bytes`.
    pub(crate) fn queue(&mut self, bytes: &[u8]) {
        self.send.extend(bytes);
    }

    /// Bytes that wait to be read.
    pub(crate) fn readable(&self) -> usize {
        self.recv.iter().map(|chunk| chunk.end - chunk.at).sum()
    }

    /// Copies what fits into `buf`, and leaves it there if `peek`. Returns bytes, and the memory
    /// that comes back.
    pub(crate) fn read(&mut self, buf: &mut [u8], peek: bool) -> (usize, u32) {
        let (mut read, mut memory) = (0, 0);
        for chunk in &mut self.recv {
            let take = (chunk.end - chunk.at).min(buf.len() - read);
            buf[read..read + take].copy_from_slice(&chunk.payload.bytes[chunk.at..chunk.at + take]);
            read += take;
            if peek {
                continue;
            }
            chunk.at += take;
            if chunk.at == chunk.end {
                memory += chunk.payload.charge;
            }
        }
        if !peek {
            self.recv.retain(|chunk| chunk.at < chunk.end);
        }
        (read, memory)
    }

    /// Throws away what waits to be read, up to `len` bytes.
    pub(crate) fn skip(&mut self, len: usize) -> (usize, u32) {
        let mut scratch = vec![0; len.min(self.readable())];
        self.read(&mut scratch, false)
    }
}

/// What the engine is given of a socket.
pub(crate) struct Host<'a> {
    pub(crate) net: &'a mut Net,
    pub(crate) data: &'a mut Data,
    pub(crate) tuple: Tuple,
    pub(crate) tos: u8,
    /// The rate at which the connection sends, bytes a second, if the device's queue keeps to it.
    pub(crate) rate: Option<u64>,
}

impl Output for Host<'_> {
    type Handle = Payload;

    fn piece(&self, seq: Seq) -> Option<Piece> {
        self.data.skbs.piece(seq)
    }

    fn send(&mut self, emit: &Emit) -> bool {
        let from = (emit.seq + u32::from(emit.flags.any(softnet_tcp::Flags::SYN))) - self.data.base;
        let data = &self.data.send;
        let pace = &mut self.data.pace;
        let depart = |now| match self.rate {
            Some(rate) if emit.len > 0 => pace.departure(now, rate, emit.len, emit.segs()),
            _ => now,
        };
        let sent = self.net.transmit(&self.tuple, emit, self.tos, depart, |range| {
            if range.is_empty() {
                // Its number may lie behind a FIN.
                return Vec::new();
            }
            let from = from as usize + range.start as usize;
            data.range(from..from + range.len()).copied().collect()
        });
        if sent && emit.len > 0 {
            self.data.skbs.sent(emit.seq + emit.len);
        }
        sent
    }

    fn deliver(&mut self, payload: Payload, front: u32, len: u32) {
        let (at, end) = (front as usize, (front + len) as usize);
        self.data.recv.push_back(Chunk { payload, at, end });
    }

    fn discard(&mut self, _: Payload, _: DropReason) {}

    fn acked(&mut self, bytes: u32) {
        self.data.send.drain(..bytes as usize);
        self.data.base += bytes;
        self.data.skbs.acked(self.data.base);
    }

    fn time_wait(&mut self, time_wait: TimeWait) {
        self.data.time_wait = Some(time_wait);
    }
}

/// A connection, and what surrounds it.
pub(crate) struct Live {
    pub(crate) conn: Conn<Payload>,
    pub(crate) data: Data,
    pub(crate) tuple: Tuple,
    /// The handshake was done.
    pub(crate) connected: bool,
    /// `connect` has told so.
    pub(crate) told: bool,
    /// The peer's FIN was read (Linux `SOCK_DONE`).
    pub(crate) done: bool,
}

/// What a socket is.
pub(crate) enum Body {
    /// Neither connected nor listening.
    Fresh,
    Listener(Listener, VecDeque<SockId>),
    Live(Box<Live>),
}

/// An address and a port; the address may be that of any.
pub(crate) type Name = std::net::SocketAddr;

/// A socket.
pub(crate) struct Sock {
    /// `AF_INET6`.
    pub(crate) v6: bool,
    pub(crate) local: Option<Name>,
    pub(crate) remote: Option<Name>,
    pub(crate) options: ConnOptions,
    /// Values of options as `getsockopt` tells them, by level and name.
    pub(crate) values: BTreeMap<(i32, i32), i32>,
    pub(crate) body: Body,
    /// A descriptor or an accept queue holds it.
    pub(crate) held: bool,
    /// A writer or poller waits for room (Linux `SOCK_NOSPACE`).
    pub(crate) no_space: bool,
}

impl Sock {
    pub(crate) fn new(v6: bool) -> Sock {
        Sock {
            v6,
            local: None,
            remote: None,
            options: ConnOptions::default(),
            values: BTreeMap::new(),
            body: Body::Fresh,
            held: true,
            no_space: false,
        }
    }

    pub(crate) fn live(&self) -> Option<&Live> {
        match &self.body {
            Body::Live(live) => Some(live),
            _ => None,
        }
    }

    pub(crate) fn live_mut(&mut self) -> Option<&mut Live> {
        match &mut self.body {
            Body::Live(live) => Some(live),
            _ => None,
        }
    }

    /// The value of an option that was set, or `default`.
    pub(crate) fn value(&self, level: i32, name: i32, default: i32) -> i32 {
        self.values.get(&(level, name)).copied().unwrap_or(default)
    }

    pub(crate) fn tos(&self) -> u8 {
        let v4 = self.value(libc::IPPROTO_IP, libc::IP_TOS, 0);
        self.value(libc::IPPROTO_IPV6, libc::IPV6_TCLASS, v4) as u8
    }
}

/// The `errno` of an error.
pub(crate) fn errno(error: Error) -> i32 {
    match error {
        Error::ConnectionRefused => libc::ECONNREFUSED,
        Error::ConnectionReset => libc::ECONNRESET,
        Error::ConnectionAborted => libc::ECONNABORTED,
        Error::BrokenPipe => libc::EPIPE,
        Error::TimedOut => libc::ETIMEDOUT,
        Error::HostUnreachable => libc::EHOSTUNREACH,
        Error::NetworkUnreachable => libc::ENETUNREACH,
        Error::Protocol => libc::EPROTO,
    }
}
