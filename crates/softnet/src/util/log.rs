//! Messages to whoever runs the stack: on standard error, which may be a pipe that nobody reads any more.

use std::io::Write;

/// Writes one line; that nobody reads it is no reason to stop.
pub fn note(message: std::fmt::Arguments<'_>) {
    let _ = writeln!(std::io::stderr(), "softnet: {message}");
}
