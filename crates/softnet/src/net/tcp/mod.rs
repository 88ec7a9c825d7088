//! TCP sockets, in the manner of `std::net`.
//!
//! ```no_run
//! use std::io::{Read, Write};
//! use softnet::net::{TcpListener, TcpStream};
//!
//! # fn main() -> std::io::Result<()> {
//! # let stack: softnet::Handle = unimplemented!();
//! let listener = TcpListener::bind(&stack, "10.0.0.1:7")?;
//! let (mut client, from) = listener.accept()?;
//! let mut buffer = [0; 2048];
//! let n = client.read(&mut buffer)?;
//! client.write_all(&buffer[..n])?;
//! # Ok(())
//! # }
//! ```
//!
//! A call waits for its connection's [shard](crate::stack::tcp), runs the engine, and sends what comes of
//! it, by the calling thread. Errors are those of the kernel's sockets.

mod builder;
mod listener;
mod options;
mod reader;
mod stream;

pub use builder::TcpBuilder;
pub use listener::{Incoming, TcpListener};
pub use reader::TcpReader;
pub use softnet_tcp::conn::TcpInfo;
pub use stream::TcpStream;

use std::io;
use std::time::Instant;

use rustix::io::Errno;
use softnet_core::SoftnetData;
use softnet_core::sock::key::ANY;
use softnet_core::sock::tcp::{CallError, Effects, End, Env, Shard};
use softnet_dev::xdp::LocalEnd;
use softnet_tcp::conn::Error;

use super::options::errno;
use crate::stack::tcp::{Caller, local_end};
use crate::stack::{StackInner, with};
use std::sync::Arc;

/// The kernel's number of a connection's error.
fn of_error(error: Error) -> Errno {
    match error {
        Error::ConnectionRefused => Errno::CONNREFUSED,
        Error::ConnectionReset => Errno::CONNRESET,
        Error::ConnectionAborted => Errno::CONNABORTED,
        Error::BrokenPipe => Errno::PIPE,
        Error::TimedOut => Errno::TIMEDOUT,
        Error::HostUnreachable => Errno::HOSTUNREACH,
        Error::NetworkUnreachable => Errno::NETUNREACH,
        Error::Protocol => Errno::PROTO,
    }
}

fn of_call(error: CallError) -> io::Error {
    errno(match error {
        CallError::WouldBlock => Errno::AGAIN,
        CallError::NotConnected => Errno::NOTCONN,
        CallError::Shut => Errno::PIPE,
        CallError::Ended(error) => of_error(error),
        CallError::Gone => Errno::BADF,
    })
}

/// Runs `f` on shard `number`, with the calling thread's context.
fn on_shard<R>(
    shared: &Arc<StackInner>,
    number: usize,
    f: impl FnOnce(&mut Shard, &mut SoftnetData, &Env<'_>, &mut Effects) -> R,
) -> R {
    with(shared, |thread| {
        let tables = thread.tables.load();
        let caller = Caller { shared, tables, now: shared.clock.now(), napi_id: 0 };
        shared.sockets.tcp.call(&mut thread.ctx, &caller, number, f)
    })
}

/// A listener leaves its port, which `end` is, to the connections that it accepted: shards hold it for
/// theirs.
fn leave_end(shared: &Arc<StackInner>, end: &LocalEnd) {
    let ports = shared.sockets.ports();
    for number in 0..shared.sockets.tcp.shards() {
        let is_it = |own: &End| own.1 == end.port && [ANY, own.0].contains(&end.addr);
        let left: Vec<End> =
            on_shard(shared, number, |shard, _, _, _| shard.ends_not_held().filter(is_it).collect());
        // A claim is a system call, and pollers wait for no shard that long. Meanwhile the port is the
        // listener's still.
        for own in left {
            // If there is no room for one more, its connections are the kernel's to refuse.
            let claimed = ports.opened(&local_end(own)).is_ok();
            // None may have it any more, or one that has come meanwhile may hold it.
            if claimed && !on_shard(shared, number, |shard, _, _, _| shard.hold_end(own)) {
                ports.closed(&local_end(own));
            }
        }
    }
    ports.closed(end);
}

/// When a call that waits gives up.
fn until(timeout: Option<std::time::Duration>) -> Option<Instant> {
    timeout.and_then(|timeout| Instant::now().checked_add(timeout))
}
