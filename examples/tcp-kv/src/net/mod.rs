//! Sockets as the server needs them: listeners and connections of one thread, and one wait for all.

mod kernel;
mod stack;

use std::io::{self, Read, Write};

pub use kernel::KernelNet;
pub use stack::SoftnetNet;

/// Listeners and connections of one thread, whose sockets never block.
pub trait Net {
    /// A connection.
    type Stream: Read + Write;

    /// Waits until something is ready, or the thread is told to stop, and sets `ready`. Listeners
    /// and connections are told of for as long as they are ready.
    ///
    /// # Errors
    /// The sockets are gone.
    fn wait(&mut self, ready: &mut Vec<Ready>) -> io::Result<()>;

    /// Listeners: their tokens are the numbers below this.
    fn listeners(&self) -> usize;

    /// Takes a connection that waits at a listener.
    ///
    /// # Errors
    /// `WouldBlock`: none does.
    fn accept(&mut self, listener: usize) -> io::Result<Self::Stream>;

    /// Watches a connection for something to read.
    ///
    /// # Errors
    /// No room.
    fn add(&mut self, stream: &Self::Stream, token: u64) -> io::Result<()>;

    /// Watches it for room to write instead, or again for something to read.
    ///
    /// # Errors
    /// It is not watched.
    fn watch(&mut self, stream: &Self::Stream, token: u64, write: bool) -> io::Result<()>;

    /// Watches it no more.
    fn remove(&mut self, stream: &Self::Stream);
}

/// What is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ready {
    /// The number of the listener, or what the connection was added with.
    pub token: u64,
}
