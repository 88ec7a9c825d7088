//! [`TcpStream`]: a connection.

use std::fmt;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::{Shutdown, SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use softnet_core::SoftnetData;
use softnet_core::ip::v4::header::protocol;
use softnet_core::sock::key::socket_addr;
use softnet_core::sock::tcp::{CallError, ConnId, Effects, Env, Shard};
use softnet_core::sock::{Flow, Readiness, Slot, SlotRef};
use softnet_core::sync::{AtomicBool, AtomicU64, Ordering};
use softnet_tcp::conn;

use super::super::Handle;
use super::super::busy_poll::BusyPollOption;
use super::super::options::{errno, timeout};
use super::super::socket::{is_socket, unwatched, wait};
use super::{TcpBuilder, TcpInfo, of_call, of_error, on_shard, until};
use crate::stack::{StackInner, with};

/// A TCP connection. Clones ([`try_clone`](Self::try_clone)) are the same connection; any number of
/// threads may use it.
///
/// With its last clone the application lets go of it: what is queued is still sent, and the
/// connection ends in its own time; if something was not read, the peer gets a reset.
#[derive(Clone)]
pub struct TcpStream(pub(super) Arc<Inner>);

/// There may be a million: what is not needed by each call is elsewhere, as the ends of the connection
/// are, which its slot has.
pub(super) struct Inner {
    pub(super) shared: Arc<StackInner>,
    slot: SlotRef,
    pub(super) id: ConnId,
    pub(super) shard: u32,
    /// It sees addresses as IPv4 ones.
    v4: bool,
    pub(super) options: Options,
}

/// What only this end of a connection knows; any thread may set it.
#[derive(Default)]
pub(super) struct Options {
    pub(super) nonblocking: AtomicBool,
    pub(super) busy_poll: BusyPollOption,
    /// In ns; 0: no time-out.
    pub(super) read_timeout: AtomicU64,
    pub(super) write_timeout: AtomicU64,
}

const _: () = assert!(size_of::<Inner>() <= 72);

is_socket!(TcpStream, Inner);

impl TcpStream {
    /// Connection `id` of shard number `shard`, which is of `flow` and whose readiness is told in `slot`.
    pub(super) fn of(
        shared: &Arc<StackInner>,
        slot: SlotRef,
        flow: &Flow,
        (shard, id): (usize, ConnId),
        v4: bool,
    ) -> Self {
        slot.slot().set_flow(flow);
        let (shared, shard) = (shared.clone(), shard as u32);
        TcpStream(Arc::new(Inner { shared, slot, id, shard, v4, options: Options::default() }))
    }

    fn flow(&self) -> Flow {
        self.slot().flow(protocol::TCP)
    }

    /// Opens a connection to `addr`, the first of several that answers.
    ///
    /// # Errors
    /// As the kernel's: `ECONNREFUSED` if no program listens there, `ETIMEDOUT` if nothing answers,
    /// `ENETUNREACH` without a route.
    pub fn connect(on: &Handle, addr: impl ToSocketAddrs) -> io::Result<TcpStream> {
        TcpBuilder::new(on).connect(addr)
    }

    /// The same, of one address, and for no longer than `timeout`.
    ///
    /// # Errors
    /// [`TimedOut`](io::ErrorKind::TimedOut), and those of [`connect`](Self::connect).
    pub fn connect_timeout(on: &Handle, addr: &SocketAddr, timeout: Duration) -> io::Result<TcpStream> {
        TcpBuilder::new(on).connect_timeout(addr, timeout)
    }

    /// Our end.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        let flow = self.flow();
        Ok(socket_addr(flow.local, flow.lport, self.0.v4))
    }

    /// The peer's end.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        let flow = self.flow();
        Ok(socket_addr(flow.remote, flow.rport, self.0.v4))
    }

    /// Another handle on the same connection.
    pub fn try_clone(&self) -> io::Result<TcpStream> {
        Ok(self.clone())
    }

    pub(super) fn slot(&self) -> &Slot {
        self.0.slot.slot()
    }

    /// Runs `f` on the connection's shard.
    pub(super) fn call<R>(
        &self,
        f: impl FnOnce(&mut Shard, &mut SoftnetData, &Env<'_>, &mut Effects) -> R,
    ) -> io::Result<R> {
        if self.0.shared.sockets.is_stopped() {
            return Err(errno(Errno::NETDOWN));
        }
        Ok(on_shard(&self.0.shared, self.0.shard as usize, f))
    }

    fn wait(&self, until: Option<Instant>, ready: impl Fn(&Readiness) -> bool) -> io::Result<()> {
        wait(&self.0.shared, self.slot(), &self.0.options.busy_poll, until, ready)
    }

    /// Waits until the handshake is done, or has failed.
    pub(super) fn connected(&self, timeout: Option<Duration>) -> io::Result<()> {
        let until = until(timeout);
        loop {
            if let Some(done) = self.is_connected() {
                return done;
            }
            self.wait(until, |now| now.writable || now.error).map_err(|_| errno(Errno::TIMEDOUT))?;
        }
    }

    /// Whether the handshake is done, or why it failed; `None`: neither.
    pub(in crate::net) fn is_connected(&self) -> Option<io::Result<()>> {
        // An error comes before the readiness that tells of it.
        let writable = self.slot().readiness().writable;
        match self.take_error() {
            Err(error) | Ok(Some(error)) => Some(Err(error)),
            Ok(None) => writable.then_some(Ok(())),
        }
    }

    /// Makes the call `f` until it need not wait, if the connection blocks.
    fn blocking<R>(
        &self,
        limit: &softnet_core::sync::AtomicU64,
        ready: impl Fn(&Readiness) -> bool,
        mut f: impl FnMut(&mut Shard, &mut SoftnetData, &Env<'_>, &mut Effects) -> Result<R, CallError>,
    ) -> io::Result<R> {
        let mut deadline = None;
        loop {
            match self.call(&mut f)? {
                Err(CallError::WouldBlock) if !self.0.options.nonblocking.load(Ordering::Relaxed) => {
                    let until = *deadline.get_or_insert_with(|| until(timeout(limit)));
                    self.wait(until, &ready)?;
                }
                result => return result.map_err(of_call),
            }
        }
    }

    /// Makes the call `f`, which reads up to `len` bytes, when there is enough to be read (`SO_RCVLOWAT`); after
    /// the time-out, when there is anything.
    pub(super) fn receive(
        &self,
        len: usize,
        mut f: impl FnMut(&mut Shard, &mut SoftnetData, &Env<'_>, &mut Effects) -> Result<usize, CallError>,
    ) -> io::Result<usize> {
        let (limit, id) = (&self.0.options.read_timeout, self.0.id);
        let ready = |now: &Readiness| now.readable || now.error || now.hung_up;
        let waits = !self.0.options.nonblocking.load(Ordering::Relaxed);
        let read = self.blocking(limit, ready, |shard, ctx, env, out| {
            if waits {
                shard.may_read(ctx, env, id, len, out)?;
            }
            f(shard, ctx, env, out)
        });
        match read {
            Err(error) if waits && error.kind() == io::ErrorKind::WouldBlock => {
                self.call(&mut f)?.map_err(of_call)
            }
            read => read,
        }
    }

    /// Reads what has arrived into `buffer`; waits for the first byte, or for as many as
    /// [`set_recv_lowat`](Self::set_recv_lowat) says. 0 at the end of the stream.
    pub fn recv(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let id = self.0.id;
        self.receive(buffer.len(), |shard, ctx, env, out| shard.read(ctx, env, id, buffer, out))
    }

    /// The same, and leaves it to be read.
    pub fn peek(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let id = self.0.id;
        self.receive(buffer.len(), |shard, ctx, env, out| shard.peek(ctx, env, id, buffer, out))
    }

    /// Queues what there is room for of `data`; waits for room. Returns how many bytes.
    pub fn send(&self, data: &[u8]) -> io::Result<usize> {
        self.send_more(data, false)
    }

    /// The same; `more`: what follows may share a segment with it (`MSG_MORE`).
    pub fn send_more(&self, data: &[u8], more: bool) -> io::Result<usize> {
        let id = self.0.id;
        let ready = |now: &Readiness| now.writable || now.error || now.hung_up;
        self.blocking(&self.0.options.write_timeout, ready, |shard, ctx, env, out| {
            shard.write(ctx, env, id, (data, more), out)
        })
    }

    /// Ends one direction or both: of writing, the peer learns when it has read all that was written.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        let how = match how {
            Shutdown::Read => conn::Shutdown::Read,
            Shutdown::Write => conn::Shutdown::Write,
            Shutdown::Both => conn::Shutdown::Both,
        };
        let id = self.0.id;
        self.call(|shard, ctx, env, out| shard.shutdown(ctx, env, id, how, out))?.map_err(of_call)
    }

    /// The error that ended the connection, which is told once (`SO_ERROR`).
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        let id = self.0.id;
        let error = self.call(|shard, ctx, env, out| shard.take_error(ctx, env, id, out))?;
        Ok(error.map(|error| errno(of_error(error))))
    }

    /// What the connection knows of itself (`TCP_INFO`).
    pub fn info(&self) -> io::Result<TcpInfo> {
        let id = self.0.id;
        let info = self.call(|shard, _, env, _| shard.info(env, id))?;
        info.map(|info| info.info).ok_or_else(|| errno(Errno::BADF))
    }

    /// What may be done with it now without waiting.
    pub fn readiness(&self) -> Readiness {
        self.slot().readiness()
    }

    /// Id of the NAPI instance that its last packet came by (`SO_INCOMING_NAPI_ID`); 0 if none did.
    pub fn incoming_napi_id(&self) -> u32 {
        self.slot().napi_id()
    }

    fn recv_vectored(&self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let id = self.0.id;
        let len = buffers.iter().map(|buffer| buffer.len()).sum();
        self.receive(len, |shard, ctx, env, out| {
            let mut all = 0;
            for buffer in buffers.iter_mut().filter(|buffer| !buffer.is_empty()) {
                match shard.read(ctx, env, id, buffer, out) {
                    Ok(n) if n == buffer.len() => all += n,
                    Ok(n) => return Ok(all + n),
                    Err(_) if all > 0 => break,
                    Err(error) => return Err(error),
                }
            }
            Ok(all)
        })
    }

    fn send_vectored(&self, buffers: &[IoSlice<'_>]) -> io::Result<usize> {
        let id = self.0.id;
        let ready = |now: &Readiness| now.writable || now.error || now.hung_up;
        self.blocking(&self.0.options.write_timeout, ready, |shard, ctx, env, out| {
            let mut all = 0;
            for buffer in buffers.iter().filter(|buffer| !buffer.is_empty()) {
                match shard.write(ctx, env, id, (buffer, false), out) {
                    Ok(n) if n == buffer.len() => all += n,
                    Ok(n) => return Ok(all + n),
                    Err(_) if all > 0 => break,
                    Err(error) => return Err(error),
                }
            }
            Ok(all)
        })
    }
}

impl Read for &TcpStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.recv(buffer)
    }

    fn read_vectored(&mut self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        self.recv_vectored(buffers)
    }
}

impl Write for &TcpStream {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.send(data)
    }

    fn write_vectored(&mut self, buffers: &[IoSlice<'_>]) -> io::Result<usize> {
        self.send_vectored(buffers)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for TcpStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        (&*self).read(buffer)
    }

    fn read_vectored(&mut self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        (&*self).read_vectored(buffers)
    }
}

impl Write for TcpStream {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        (&*self).write(data)
    }

    fn write_vectored(&mut self, buffers: &[IoSlice<'_>]) -> io::Result<usize> {
        (&*self).write_vectored(buffers)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let (shared, id) = (&self.shared, self.id);
        // From then on the shard tells the slot nothing.
        on_shard(shared, self.shard as usize, |shard, ctx, env, out| shard.close(ctx, env, id, out));
        unwatched(shared, self.slot.index());
        shared.sockets.binder().release(self.slot.index());
        if shared.sockets.is_stopped() {
            with(shared, |thread| thread.drain());
        }
    }
}

impl fmt::Debug for TcpStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("TcpStream");
        debug.field("local", &self.local_addr().ok());
        debug.field("peer", &self.peer_addr().ok()).finish()
    }
}
