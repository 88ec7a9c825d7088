//! What the router serves itself while it routes: `udp-kv`, a thread and a socket for each of the addresses that it has on
//! the client's network.
//!
//! On softnet's sockets in the demo; on the kernel's in tests of the endpoints. It ends before the stack that its sockets
//! are on.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use serde::Serialize;
use softnet::control::show::{NapiRow, SocketRow, Table};
use softnet::internals::thread_cpu_ns;
use softnet_testkit::datagrams::{DatagramSet, Stop};
use udp_kv::Server;
use udp_kv::store::Store;

use super::flow::Ip;
use super::topology;
use crate::Failure;
use crate::bench::echo::Usage;
use crate::instance::{self, Instance};

/// memcached's port.
const PORT: u16 = 11211;
/// Memory for items, in bytes: many times what the clients store.
const MEMORY: usize = 16 << 20;
/// What the library calls its first thread.
const THREAD: &str = "udp-kv/0";

/// Where it is asked.
pub(super) fn address(ip: Ip) -> SocketAddr {
    SocketAddr::new(topology::router(ip), PORT)
}

/// The running server. Dropping it stops it.
pub(super) struct Kv {
    server: Server,
    stop: Arc<Stop>,
    started: Instant,
}

/// What it did so far.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct KvRow {
    /// The thread that serves.
    pub(super) thread: &'static str,
    /// CPU time of that thread in ns.
    pub(super) cpu_ns: u64,
    /// Share of a core that it used since it started, in percent.
    pub(super) cpu_percent: f64,
    /// Requests that it read.
    pub(super) requests: u64,
    /// Times that it slept until packets were there for it.
    pub(super) sleeps: u64,
    /// The NAPI instance that its packets come by, once some did.
    napi: Option<String>,
    /// The thread that polls that, and wakes it.
    pub(super) polled_by: Option<String>,
    /// Datagrams that found no room at its sockets.
    drops: u64,
}

impl Kv {
    /// Starts it on the sockets that `open` makes of where it is asked.
    pub(super) fn start<S>(
        open: impl FnOnce(&[SocketAddr], &Stop) -> std::io::Result<S>,
    ) -> Result<Kv, Failure>
    where
        S: DatagramSet + Send + 'static,
    {
        let failed = |error| Failure::of("starting the router's server", error);
        let stop = Arc::new(Stop::new().map_err(failed)?);
        let set = open(&Ip::BOTH.map(address), &stop).map_err(failed)?;
        let server = Server::start(vec![set], &Arc::new(Store::new(MEMORY, 1)), &stop).map_err(failed)?;
        Ok(Kv { server, stop, started: Instant::now() })
    }

    /// What it did so far, with what `router` knows of its sockets. Only while it runs.
    pub(super) fn observe(&self, router: &dyn Instance) -> Result<KvRow, String> {
        let tids: Vec<i32> = self.server.threads().into_iter().map(u32::cast_signed).collect();
        let cpu_ns = tids.iter().map(|tid| thread_cpu_ns(*tid)).sum();
        let sockets: Vec<SocketRow> = instance::ask(router, Table::Socket)?;
        let addresses = Ip::BOTH.map(|ip| address(ip).to_string());
        let own: Vec<SocketRow> =
            sockets.into_iter().filter(|socket| addresses.contains(&socket.local)).collect();
        let napi = own.iter().find_map(|socket| socket.napi.clone());
        let napis: Vec<NapiRow> = instance::ask(router, Table::Napi)?;
        let polled_by = napis.into_iter().find(|row| Some(&row.name) == napi.as_ref()).map(|row| row.thread);
        Ok(KvRow {
            thread: THREAD,
            cpu_ns,
            cpu_percent: cpu_ns as f64 / 10_f64.powi(7) / self.started.elapsed().as_secs_f64().max(1e-3),
            requests: self.server.counters().iter().map(|thread| thread.requests.get()).sum(),
            sleeps: Usage::of(&tids).blocked,
            napi,
            polled_by,
            drops: own.iter().map(|socket| socket.drops).sum(),
        })
    }

    /// Ends it.
    pub(super) fn stop(mut self) -> Result<(), Failure> {
        self.stop.stop();
        self.server.join().map_err(|error| Failure::of("the router's server", error))
    }
}
