//! What an application does with a connection: the calls that need no network.
//!
//! Called by the holder of the connection's shard, who calls [`finish`](Shard::finish) afterwards.

use std::collections::VecDeque;

use softnet_tcp::conn::{Conn, Error, InvalidOption, OpenError, Shutdown, SockOpt, TcpInfo, Writable};
use softnet_tcp::{ConnOptions, Seq, State, isn};

use super::super::key::Flow;
use super::super::route::NextHop;
use super::env::Env;
use super::listen::{Child, tuple};
use super::output::{Effects, Marks, route};
use super::queue::{Piece, TRUESIZE, free_lent};
use super::shard::{ConnId, Object, Shard};
use crate::SoftnetData;

/// Bytes that a write may put beyond `TCP_NOTSENT_LOWAT`.
const RUN: usize = 64 << 10;

/// Why nothing was read or written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallError {
    /// Nothing is there, or there is no room, or no memory (`EAGAIN`).
    WouldBlock,
    /// The handshake is not done (`ENOTCONN`).
    NotConnected,
    /// This end has said that it sends no more (`EPIPE`).
    Shut,
    /// The connection ended by this.
    Ended(Error),
    /// There is no such connection (`EBADF`).
    Gone,
}

/// What a connection that is opened from here begins with.
#[derive(Clone, Copy, Debug)]
pub struct Open<'a> {
    /// Its ends.
    pub flow: Flow,
    /// How its packets are marked.
    pub marks: Marks,
    /// Its options.
    pub options: &'a ConnOptions,
    /// The MSS that the path carries.
    pub path_mss: u16,
    /// Where its readiness is told.
    pub slot: u32,
}

impl Shard {
    /// Whether a connection from here may be of `flow`: nothing is, or one in TIME-WAIT that ends for
    /// it (`tcp_tw_reuse`; RFC 6191). `asked`: the program asked for the port.
    pub fn is_free(&self, env: &Env<'_>, flow: &Flow, asked: bool) -> bool {
        let Some(object) = self.find(flow) else { return true };
        let Object::TimeWait(index) = object else { return false };
        self.time_waits.get(index as usize).is_some_and(|waiting| {
            let own = || route(env.tables, flow).is_ok_and(|way| way.next == NextHop::Local);
            asked && waiting.time_wait.reusable_by_port().is_some()
                || waiting.time_wait.reusable(env.instant(), env.cfg, own()).is_some()
        })
    }

    /// Ends what is remembered of `flow`, for a connection that succeeds it: the number that this begins
    /// with, and the last timestamp that came.
    fn take_time_wait(&mut self, flow: &Flow) -> Option<(Seq, u32)> {
        let Some(Object::TimeWait(index)) = self.find(flow) else { return None };
        let before =
            self.time_waits.get(index as usize).and_then(|waiting| waiting.time_wait.reusable_by_port());
        self.forget_time_wait(index);
        self.counters.tw_recycled += 1;
        before
    }

    /// Begins a connection. [`finish`](Shard::finish) sends its SYN.
    ///
    /// # Errors
    /// The path carries nothing. A flow that is not [free](Self::is_free) is for the caller to
    /// exclude.
    pub fn connect(
        &mut self,
        ctx: &mut SoftnetData,
        env: &Env<'_>,
        open: &Open<'_>,
        out: &mut Effects,
    ) -> Result<ConnId, OpenError> {
        let Open { flow, marks, options, path_mss, slot } = *open;
        let random = env.cfg.tcp_timestamps == 1;
        let mut initial = isn::initial(&env.hash(), &tuple(&flow), env.instant(), random);
        if path_mss < 88 {
            return Err(OpenError::PathMtu);
        }
        let before = self.take_time_wait(&flow);
        if let Some((iss, _)) = before {
            initial.seq = iss;
        }
        let first: Seq = initial.seq + 1;
        let id = self.insert(ctx, env, flow, first, marks, out, |cx| {
            let mut conn = Conn::connect(cx, options, initial, path_mss)
                .unwrap_or_else(|_| unreachable!("a path of 88 bytes carries a segment"));
            before.iter().for_each(|(_, ts_recent)| conn.succeed(cx.now, *ts_recent));
            conn
        });
        self.attach(id, slot);
        Ok(id)
    }

    /// Writes as much of `data` as there is room for. `more`: what follows may share a segment.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn write(
        &mut self,
        ctx: &mut SoftnetData,
        env: &Env<'_>,
        id: ConnId,
        (data, more): (&[u8], bool),
        out: &mut Effects,
    ) -> Result<usize, CallError> {
        self.sock(id).ok_or(CallError::Gone)?;
        if let Some(error) = self.take_end(ctx, env, id, out) {
            return Err(CallError::Ended(error));
        }
        let Some(conn) = self.sock(id).map(|sock| &sock.conn) else { return Err(CallError::Shut) };
        let sock_room = match conn.writable() {
            Writable::Room(room) => room as usize,
            Writable::NotYet => return Err(CallError::WouldBlock),
            Writable::Shut => return Err(CallError::Shut),
        };
        // Beyond the low-water mark a writer waits; a write that begins below it may be a run longer
        // (Linux's `skb`).
        let below = match conn.notsent_lowat(env.cfg).saturating_sub(conn.unsent()) {
            0 => 0,
            below => (below as usize).max(RUN),
        };
        let n = data.len().min(sock_room).min(below);
        if n == 0 && !data.is_empty() {
            return Err(CallError::WouldBlock);
        }
        let written = self.queue(ctx, env, id.index, &data[..n]);
        if written == 0 && n > 0 {
            // Settles the readiness.
            self.enter(ctx, env, out, id.index, |_, _| ());
            return Err(CallError::WouldBlock);
        }
        self.enter(ctx, env, out, id.index, |conn, _| conn.write(written as u32, more));
        Ok(written)
    }

    /// Whether a read of `len` bytes that may block has as much to return as it waits for: `SO_RCVLOWAT`
    /// bytes, or `len`; or the end, or all that there is room for.
    ///
    /// # Errors
    /// [`CallError::WouldBlock`]: not yet; the socket becomes readable when it has.
    pub fn may_read(
        &mut self,
        ctx: &mut SoftnetData,
        env: &Env<'_>,
        id: ConnId,
        len: usize,
        out: &mut Effects,
    ) -> Result<(), CallError> {
        let conn = &self.sock(id).ok_or(CallError::Gone)?.conn;
        let target = conn.read_target(len.min(u32::MAX as usize) as u32);
        let ended = conn.error().is_some() || conn.state() == State::Closed;
        if target <= 1 || ended || conn.unread() >= target || conn.is_readable() {
            return Ok(());
        }
        self.enter(ctx, env, out, id.index, |conn, _| conn.reader_waits(target));
        Err(CallError::WouldBlock)
    }

    /// Reads what has arrived into `to`; 0 at the end of the stream.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn read(
        &mut self,
        ctx: &mut SoftnetData,
        env: &Env<'_>,
        id: ConnId,
        to: &mut [u8],
        out: &mut Effects,
    ) -> Result<usize, CallError> {
        self.readable(ctx, env, id, to.len(), out)?;
        let (n, memory) = self.take(ctx, id.index, to);
        if n > 0 {
            self.enter(ctx, env, out, id.index, |conn, cx| conn.read(cx, n as u32, memory));
        }
        Ok(n)
    }

    /// Copies what has arrived to `to`, and leaves it to be read.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn peek(
        &mut self,
        ctx: &mut SoftnetData,
        env: &Env<'_>,
        id: ConnId,
        to: &mut [u8],
        out: &mut Effects,
    ) -> Result<usize, CallError> {
        self.readable(ctx, env, id, to.len(), out)?;
        Ok(self.sock(id).map_or(0, |sock| sock.rx.peek(to)))
    }

    /// Lends all that has arrived: moves it to `to`, where it may stay until it is given
    /// [back](Self::give_back). For the peer it has been read; its memory stays charged to the
    /// connection, so that the window opens only when it comes back. Returns how many bytes; 0 at
    /// the end of the stream.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn lend(
        &mut self,
        ctx: &mut SoftnetData,
        env: &Env<'_>,
        id: ConnId,
        to: &mut VecDeque<Piece>,
        out: &mut Effects,
    ) -> Result<usize, CallError> {
        self.readable(ctx, env, id, 1, out)?;
        let n = self.sock_mut(id).map_or(0, |sock| {
            let (bytes, frames) = sock.rx.lend(to);
            sock.lent += frames as u32;
            bytes
        });
        if n > 0 {
            self.enter(ctx, env, out, id.index, |conn, cx| conn.read(cx, n as u32, 0));
        }
        Ok(n)
    }

    /// Takes back what was lent.
    pub fn give_back(
        &mut self,
        ctx: &mut SoftnetData,
        env: &Env<'_>,
        id: ConnId,
        pieces: impl Iterator<Item = Piece>,
        out: &mut Effects,
    ) {
        let frames = free_lent(ctx, pieces);
        if let Some(sock) = self.sock_mut(id).filter(|_| frames > 0) {
            sock.lent -= frames as u32;
            let memory = frames as u32 * TRUESIZE;
            self.enter(ctx, env, out, id.index, |conn, cx| conn.read(cx, 0, memory));
        }
    }

    /// Whether a read of `len` bytes has something to return, be it the end.
    fn readable(
        &mut self,
        ctx: &mut SoftnetData,
        env: &Env<'_>,
        id: ConnId,
        len: usize,
        out: &mut Effects,
    ) -> Result<(), CallError> {
        let sock = self.sock(id).ok_or(CallError::Gone)?;
        if !sock.rx.is_empty() || len == 0 {
            return Ok(());
        }
        let (ended, state) = (sock.conn.receive_ended(), sock.conn.state());
        if let Some(error) = self.take_end(ctx, env, id, out) {
            return Err(CallError::Ended(error));
        }
        match state {
            _ if ended => Ok(()),
            // It never came to be.
            State::Closed => Err(CallError::NotConnected),
            _ => Err(CallError::WouldBlock),
        }
    }

    /// Ends one direction, or both; in SYN-SENT, the attempt to connect.
    ///
    /// # Errors
    /// There is no connection (any more).
    pub fn shutdown(
        &mut self,
        ctx: &mut SoftnetData,
        env: &Env<'_>,
        id: ConnId,
        how: Shutdown,
        out: &mut Effects,
    ) -> Result<(), CallError> {
        let sock = self.sock(id).ok_or(CallError::Gone)?;
        if sock.conn.state() == State::Closed {
            return Err(CallError::NotConnected);
        }
        self.enter(ctx, env, out, id.index, |conn, cx| conn.shutdown(cx, how));
        Ok(())
    }

    /// The application has closed its last handle: the connection ends in its own time, and what was
    /// not read makes it a reset, as too many of its kind do (`tcp_max_orphans`).
    pub fn close(&mut self, ctx: &mut SoftnetData, env: &Env<'_>, id: ConnId, out: &mut Effects) {
        if self.sock(id).is_some() {
            let too_many = self.orphans >= env.max_orphans;
            self.enter(ctx, env, out, id.index, |conn, cx| {
                conn.close(cx);
                if too_many && conn.state() != State::Closed {
                    conn.kill(cx);
                }
            });
            self.let_go(ctx, id.index);
        }
    }

    /// A connection that no application will accept.
    pub fn reject(&mut self, ctx: &mut SoftnetData, env: &Env<'_>, child: &Child, out: &mut Effects) {
        if self.sock(child.id).is_some() {
            self.enter(ctx, env, out, child.id.index, |conn, cx| conn.abort(cx, None));
            self.let_go(ctx, child.id.index);
        }
    }

    /// Sets an option.
    ///
    /// # Errors
    /// Its value is out of range.
    pub fn set_option(
        &mut self,
        ctx: &mut SoftnetData,
        env: &Env<'_>,
        id: ConnId,
        option: SockOpt,
        out: &mut Effects,
    ) -> Result<(), InvalidOption> {
        self.sock(id).ok_or(InvalidOption)?;
        self.enter(ctx, env, out, id.index, |conn, cx| conn.set_option(cx, option))
            .unwrap_or(Err(InvalidOption))
    }

    /// The error that ended the connection, which is told once.
    fn take_end(
        &mut self,
        ctx: &mut SoftnetData,
        env: &Env<'_>,
        id: ConnId,
        out: &mut Effects,
    ) -> Option<Error> {
        self.sock(id)?.conn.error()?;
        self.take_error(ctx, env, id, out)
    }

    /// The connection's error, which is told once; without one, what ICMP told of its way.
    pub fn take_error(
        &mut self,
        ctx: &mut SoftnetData,
        env: &Env<'_>,
        id: ConnId,
        out: &mut Effects,
    ) -> Option<Error> {
        self.sock(id)?;
        self.enter(ctx, env, out, id.index, |conn, _| conn.take_error())?
    }

    /// What is known of a connection.
    pub fn info(&self, env: &Env<'_>, id: ConnId) -> Option<ConnInfo> {
        self.sock(id).map(|sock| sock.info(env))
    }

    /// What is known of all connections.
    pub fn infos(&self, env: &Env<'_>) -> impl Iterator<Item = ConnInfo> {
        self.socks().map(|sock| sock.info(env))
    }
}

/// A connection, for display.
#[derive(Clone, Debug)]
pub struct ConnInfo {
    /// Its ends.
    pub flow: Flow,
    /// Its state.
    pub state: State,
    /// Bytes that arrived and were not read.
    pub recv_q: u32,
    /// Bytes that were queued and not acknowledged.
    pub send_q: u32,
    /// The engine's view.
    pub info: TcpInfo,
    /// Slot of its socket; [`None`] if no application has it.
    pub slot: Option<u32>,
    /// The NAPI instance that its last packet came by; 0: none.
    pub napi_id: u32,
}
