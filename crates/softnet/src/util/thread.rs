//! How threads are started.

use std::io;
use std::thread::JoinHandle;

use softnet_core::sync::AbortOnPanic;

/// The id of the calling thread.
pub(crate) fn current_tid() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get() as u32
}

/// CPU time of a thread of this process in ns; 0 if it does not run.
pub fn thread_cpu_ns(tid: i32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/self/task/{tid}/schedstat")).unwrap_or_default();
    text.split_whitespace().next().and_then(|ns| ns.parse().ok()).unwrap_or(0)
}

/// What a thread runs.
pub type Body = Box<dyn FnOnce() + Send>;

/// How threads are started: by name.
pub(crate) type Spawn<'a> = &'a mut dyn FnMut(&str, Body) -> io::Result<JoinHandle<()>>;

/// Starts a thread of a stack. If it panics, the process ends: its queues would look well, and not be polled.
pub fn spawn(name: &str, body: Body) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name(name.into()).spawn(move || {
        let _guard = AbortOnPanic::new();
        body();
    })
}
