//! [`TcpListener`]: a socket that accepts connections.

use std::fmt;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::io::Errno;
use softnet_core::sock::key::socket_addr;
use softnet_core::sock::tcp::{Child, TcpInbox};
use softnet_core::sock::{Readiness, SlotRef};
use softnet_core::sync::Ordering;
use softnet_dev::xdp::LocalEnd;

use super::super::Handle;
use super::super::options::{Options, errno, of_bind, set_timeout, timeout};
use super::super::socket::{closed, is_socket, wait};
use super::super::{EpollParams, OutOfRange};
use super::stream::TcpStream;
use super::{TcpBuilder, leave_end, on_shard, until};
use crate::stack::StackInner;
use crate::stack::tcp::Listening;
use crate::util::lock;

/// A TCP socket that listens. Clones ([`try_clone`](Self::try_clone)) are the same socket; any
/// number of threads may accept.
///
/// With its last clone it is closed: connections that were not accepted are reset.
#[derive(Clone)]
pub struct TcpListener(pub(super) Arc<Inner>);

pub(super) struct Inner {
    pub(super) shared: Arc<StackInner>,
    pub(super) slot: SlotRef,
    pub(super) v4: bool,
    pub(super) listening: Arc<Listening>,
    pub(super) options: Options,
    pub(super) inbox: Mutex<Option<TcpInbox>>,
    /// What it has open with devices that share addresses with the kernel.
    pub(super) open_port: Option<LocalEnd>,
}

is_socket!(TcpListener, Inner);

impl TcpListener {
    /// A listener on a stack, bound to `addr`: one of the stack's own addresses, `0.0.0.0`, or `::`
    /// (both families). Port 0 stands for any that is free.
    ///
    /// # Errors
    /// As the kernel's. `EADDRINUSE`: another socket has address and port; `EADDRNOTAVAIL`: not an
    /// address of the stack.
    ///
    /// On addresses that a device shares with the kernel the port is the kernel's no more, as long as the
    /// listener has it, and connections that it accepted. That waits for the kernel, and costs a
    /// descriptor; `EADDRINUSE` also says that the kernel has the port there.
    pub fn bind(on: &Handle, addr: impl ToSocketAddrs) -> io::Result<TcpListener> {
        TcpBuilder::new(on).listen(addr)
    }

    /// Waits for a connection, no longer than [`set_read_timeout`](Self::set_read_timeout) says, and returns it with
    /// its peer's address.
    pub fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        let Inner { shared, slot, options, .. } = &*self.0;
        let mut deadline = None;
        loop {
            if shared.sockets.is_stopped() {
                return Err(errno(Errno::NETDOWN));
            }
            if slot.slot().readiness().readable {
                // First, so that a connection for which there is no place stays in the queue.
                let place = shared.sockets.binder().open_unlisted().map_err(of_bind)?;
                let child =
                    self.0.listening.with(&shared.sockets.sockets, |state| (state.pop(), state.len()));
                let Some((Some(child), left)) = child else {
                    // Another thread took it.
                    shared.sockets.binder().release(place.index());
                    continue;
                };
                if deadline.is_some() && left > 0 {
                    // It may have been woken for more than it took.
                    shared.sockets.arrived(slot.index());
                }
                let stream = self.attach(&child, place);
                stream.set_read_timeout(timeout(&options.read_timeout))?;
                stream.0.options.busy_poll.inherit(&options.busy_poll);
                let peer = stream.peer_addr()?;
                return Ok((stream, peer));
            }
            if options.nonblocking.load(Ordering::Relaxed) {
                return Err(errno(Errno::AGAIN));
            }
            let until = *deadline.get_or_insert_with(|| until(timeout(&options.read_timeout)));
            wait(shared, slot.slot(), &options.busy_poll, until, |now| now.readable)?;
        }
    }

    /// Makes a socket of an accepted connection.
    fn attach(&self, child: &Child, place: SlotRef) -> TcpStream {
        let shared = &self.0.shared;
        let shard = shared.sockets.tcp.shard_of(&child.flow);
        on_shard(shared, shard, |shard, _, _, _| shard.attach(child.id, place.index()));
        TcpStream::of(shared, place, &child.flow, (shard, child.id), self.0.v4)
    }

    /// The connections that come, one after the other.
    pub fn incoming(&self) -> Incoming<'_> {
        Incoming(self)
    }

    /// The address that it is bound to.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        let (key, _) = self.0.slot.slot().key().ok_or_else(|| errno(Errno::BADF))?;
        Ok(socket_addr(key.flow.local, key.flow.lport, self.0.v4))
    }

    /// Another handle on the same listener.
    pub fn try_clone(&self) -> io::Result<TcpListener> {
        Ok(self.clone())
    }

    /// Whether [`accept`](Self::accept) fails with [`WouldBlock`](io::ErrorKind::WouldBlock)
    /// instead of waiting. Streams that it returns block in any case.
    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        self.0.options.nonblocking.store(nonblocking, Ordering::Relaxed);
        Ok(())
    }

    /// How [`accept`](Self::accept) polls before it blocks, once a connection has come, and calls of the streams that it
    /// returns: [`TcpStream::set_busy_poll`].
    pub fn set_busy_poll(&self, params: EpollParams) -> Result<(), OutOfRange> {
        self.0.options.busy_poll.set(&params)
    }

    /// See [`set_busy_poll`](Self::set_busy_poll).
    pub fn busy_poll(&self) -> EpollParams {
        self.0.options.busy_poll.get()
    }

    /// Time-out of [`accept`](Self::accept), which fails with [`WouldBlock`](io::ErrorKind::WouldBlock) then
    /// (`SO_RCVTIMEO`); `None`: none. A time-out of 0 is an error. Streams that it returns begin with it, as on Linux.
    pub fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        set_timeout(&self.0.options.read_timeout, timeout)
    }

    /// See [`set_read_timeout`](Self::set_read_timeout).
    pub fn read_timeout(&self) -> io::Result<Option<Duration>> {
        Ok(timeout(&self.0.options.read_timeout))
    }

    /// What may be done with it now without waiting.
    pub fn readiness(&self) -> Readiness {
        self.0.slot.slot().readiness()
    }

    /// In its reuseport group, it gets what comes by NAPI instance `napi_id`, whatever its flow;
    /// `None`: its share by flow.
    pub fn set_reuse_port_napi(&self, napi_id: Option<u32>) {
        self.0.shared.sockets.binder().set_napi(self.0.slot.index(), napi_id.unwrap_or(0));
    }
}

/// The connections of a listener, see [`TcpListener::incoming`].
#[derive(Debug)]
pub struct Incoming<'a>(&'a TcpListener);

impl Iterator for Incoming<'_> {
    type Item = io::Result<TcpStream>;

    fn next(&mut self) -> Option<io::Result<TcpStream>> {
        Some(self.0.accept().map(|(stream, _)| stream))
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let (shared, index) = (&self.shared, self.slot.index());
        // First: no look-up finds it any more.
        let joined = shared.sockets.binder().close(index);
        for child in shared.sockets.tcp.listeners().remove(&self.listening) {
            let shard = shared.sockets.tcp.shard_of(&child.flow);
            on_shard(shared, shard, |shard, ctx, env, out| shard.reject(ctx, env, &child, out));
        }
        closed(shared, index, &joined, lock(&self.inbox).take());
        self.open_port.iter().for_each(|end| leave_end(shared, end));
    }
}

impl fmt::Debug for TcpListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TcpListener").field("local", &self.local_addr().ok()).finish()
    }
}
