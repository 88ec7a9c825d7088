//! What a panic must not leave behind: ownership that no thread will release.

use std::io::Write;

/// Ends the process if it is dropped by a panic that began while it existed.
///
/// A thread of the stack holds one for its whole life, and every owner of an instance or a TX queue while it owns it,
/// application threads included. State that a panic left half changed can't be told from whole state, and without an owner
/// that releases it the queue would stay silent, and closing it would wait for ever. No code of an application runs under
/// this guard, but destructors of an application that panicked may run what it guards: that earlier panic does not count.
pub struct AbortOnPanic {
    panicked_before: bool,
}

impl AbortOnPanic {
    /// From now on.
    #[inline(always)]
    #[expect(clippy::new_without_default, reason = "it guards what follows, so where it is made matters")]
    pub fn new() -> Self {
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
    let thread = std::thread::current();
    let name = thread.name().unwrap_or("a thread");
    let mut to = std::io::stderr();
    // That standard error is closed must not be another panic.
    let _ = writeln!(to, "softnet: {name} panicked, which is a bug in softnet; ending the process");
    std::process::abort();
}
