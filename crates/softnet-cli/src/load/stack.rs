//! The load on softnet's sockets: a stack that the command runs itself, and what its threads wait by.
//!
//! Invariant: the stack outlives the threads, whose sockets are on it, and is ended in order whatever ends the command, but
//! SIGKILL: what it did to interfaces is undone.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use softnet::config::{Config, DeviceConfig};
use softnet::driver::Vlan;
use softnet::net::{EpollParams, Handle, RecvBatch};
use softnet_dev::process::Signals;
use softnet_testkit::datagrams::Stop;
use udp_kv::{SoftnetSockets, Waiting};

use super::LONGEST_WAIT;
use super::stream::{SoftnetNet, Streams};
use crate::Failure;
use crate::instance::{self, Instance, Running};

/// What is to be ended, unless it was ended already.
type Parts = Mutex<Option<Arc<Running>>>;

/// A stack from a configuration, which `softnet show` finds by its name. Dropping it ends it.
pub(super) struct OwnStack {
    handle: Handle,
    parts: Arc<Parts>,
}

impl OwnStack {
    /// Starts it. From now on signals that ask to end are blocked in the threads that are made, and end it and the program.
    /// Threads that do not `block` poll: it says which devices are not configured for that.
    pub(super) fn start(file: &Path, blocks: bool) -> Result<OwnStack, Failure> {
        let config = Config::load(file).map_err(|errors| Failure::Usage(errors.to_string()))?;
        if !blocks {
            let polled = config.devices.iter().filter(|device| device.driver.get::<Vlan>().is_none());
            polled.filter(|device| !defers(device)).for_each(|device| {
                eprintln!(
                    "softnet: {}: every response will wake a worker as well as the thread that polls; \
                     napi_defer_hard_irqs and gro_flush_timeout keep its doorbell masked",
                    device.name
                );
            });
        }
        let signals = Signals::new().map_err(|error| Failure::of("waiting for signals", error))?;
        let running = instance::start_shown(config)?;
        let handle = running.handle().ok_or_else(|| Failure::Run("softnet stopped at once".into()))?;
        let parts = Arc::new(Mutex::new(Some(running)));
        let stack = OwnStack { handle, parts: parts.clone() };
        let interrupted = move || {
            signals.wait(None);
            // First: threads whose sockets are gone have something to say as well.
            eprintln!("error: interrupted");
            end(&parts);
            std::process::exit(1);
        };
        std::thread::Builder::new()
            .name("signals".into())
            .spawn(interrupted)
            .map_err(|error| Failure::of("threads", error))?;
        Ok(stack)
    }

    /// The sockets of one thread, which sleeps while nothing comes, if it `blocks`; else it polls its NAPI instance itself.
    pub(super) fn sockets(
        &self,
        server: SocketAddr,
        count: usize,
        blocks: bool,
        stop: &Stop,
    ) -> io::Result<SoftnetSockets> {
        let waiting = Waiting { params: params(blocks), ..Waiting::default() };
        SoftnetSockets::connected(&self.handle, server, count, waiting, stop)
    }

    /// The same over TCP.
    pub(super) fn streams(
        &self,
        server: SocketAddr,
        count: usize,
        blocks: bool,
    ) -> io::Result<Streams<SoftnetNet>> {
        Streams::connected(SoftnetNet::new(&self.handle, params(blocks))?, server, count)
    }
}

/// How a thread waits.
fn params(blocks: bool) -> EpollParams {
    EpollParams {
        busy_poll_usecs: if blocks { 0 } else { LONGEST_WAIT.as_micros() as u32 },
        busy_poll_budget: RecvBatch::MAX as u16,
        // A thread that polls all the time must not leave the queue to its timer, as one that may sleep does.
        prefer_busy_poll: blocks,
    }
}

/// Whether its doorbells stay masked while a thread polls now and then.
fn defers(device: &DeviceConfig) -> bool {
    device.napi_defer_hard_irqs > 0 && device.gro_flush_timeout > 0
}

fn end(parts: &Parts) {
    if let Some(running) = parts.lock().unwrap_or_else(PoisonError::into_inner).take() {
        running.stop();
    }
}

impl Drop for OwnStack {
    fn drop(&mut self) {
        end(&self.parts);
    }
}
