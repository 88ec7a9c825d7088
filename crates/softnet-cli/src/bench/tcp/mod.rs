//! `softnet bench tcp-*`: softnet's TCP sockets, beside the kernel's.
//!
//! ```text
//!   client (spins on a CPU of its own)      server (another CPU)
//!   sockets ──► stack ──► wire ──► stack ──► sockets ──► epoll
//! ```
//!
//! Servers and clients are written once, for a [`Host`](host::Host), and run on softnet's sockets
//! and on the kernel's. What is at the two ends is a [`Rig`](rig::Rig). Invariant: what is compared
//! is measured in one run, in turns.

mod ceiling;
mod churn;
mod client;
pub(super) mod conn;
mod flood;
mod host;
pub(super) mod idle;
pub(super) mod loss;
mod paced;
mod parked;
mod path;
pub(super) mod rig;
pub(super) mod rr;
mod server;
pub(super) mod storage;
pub(super) mod stream;
#[cfg(test)]
mod tests;
pub(super) mod ways;
pub(super) mod wire;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use softnet::Stack;

use super::cpus;

/// Descriptors that the kernel's sockets at both ends need at most.
const FILES: u64 = 1 << 20;

/// What TCP's timer threads are called.
const TIMER: &str = "softnet-tcp";

/// The CPUs of server and client.
#[derive(Clone, Copy)]
pub(super) struct Cpus {
    pub(super) server: usize,
    pub(super) client: usize,
}

impl Cpus {
    pub(super) fn new(server: usize) -> Result<Self, String> {
        let all = cpus();
        if !all.contains(&server) {
            return Err(format!("--cpu {server}: CPUs here: {all:?}"));
        }
        let client = all.into_iter().find(|other| *other != server);
        let client = client.ok_or("it needs two CPUs: one for the server, one for the client")?;
        Ok(Cpus { server, client })
    }
}

/// Lets this process have as many sockets of the kernel's as a run needs, or without the privilege as
/// many as it may. Returns how many files it may have open.
pub(super) fn raise_file_limit() -> u64 {
    if setrlimit(Resource::Nofile, Rlimit { current: Some(FILES), maximum: Some(FILES) }).is_err() {
        let maximum = getrlimit(Resource::Nofile).maximum;
        let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    }
    getrlimit(Resource::Nofile).current.unwrap_or(FILES)
}

/// Ids of a stack's threads: its workers, and TCP's timer threads (of all stacks here; those of
/// others have nothing to do).
fn stack_threads(stack: Option<&Stack>) -> Vec<i32> {
    let Some(stack) = stack else { return Vec::new() };
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let is_timer = |tid: &i32| {
        std::fs::read_to_string(format!("/proc/self/task/{tid}/comm"))
            .is_ok_and(|comm| comm.trim_end() == TIMER)
    };
    let timers = tasks.filter_map(|task| task.file_name().to_str()?.parse().ok()).filter(is_timer);
    stack.view().workers().iter().map(|worker| worker.tid).chain(timers).collect()
}

/// Ids of the threads that serve: the application, and a stack's.
fn server_threads(stack: Option<&Stack>, application: i32) -> Vec<i32> {
    std::iter::once(application).chain(stack_threads(stack)).collect()
}
