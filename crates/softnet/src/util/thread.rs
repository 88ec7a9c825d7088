//! How threads are started, and what a panic of one must not leave behind.

use std::io;
use std::thread::JoinHandle;

use super::log::note;

/// The id of the calling thread.
pub(crate) fn current_tid() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get() as u32
}

/// What a thread runs.
pub type Body = Box<dyn FnOnce() + Send>;

/// How threads are started: by name.
pub type Spawn<'a> = &'a mut dyn FnMut(&str, Body) -> io::Result<JoinHandle<()>>;

/// Starts a thread of a stack. If it panics, the process ends: queues that nobody polls would look well.
pub fn spawn(name: &str, body: Body) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name(name.into()).spawn(move || {
        let _guard = AbortOnPanic::new();
        body();
    })
}

/// Stands for what a panic must not leave behind: a thread of the stack, or ownership of an instance or a TX queue, by
/// whatever thread. What is half done there can't be told from what is whole, and without an owner that releases it the queue
/// would stay silent, and closing it would wait for ever. No code of an application runs under it, but destructors of an
/// application that panicked may run what it guards: only a panic since it was made is one under it.
pub(crate) struct AbortOnPanic {
    panicked_before: bool,
}

impl AbortOnPanic {
    #[inline(always)]
    pub(crate) fn new() -> Self {
        AbortOnPanic { panicked_before: std::thread::panicking() }
    }
}

impl Drop for AbortOnPanic {
    #[inline(always)]
    fn drop(&mut self) {
        if std::thread::panicking() && !self.panicked_before {
            abort();
        }
    }
}

#[cold]
fn abort() -> ! {
    let name = std::thread::current().name().unwrap_or("a thread").to_owned();
    note(format_args!("{name} panicked, which is a bug in softnet; ending the process"));
    std::process::abort();
}
