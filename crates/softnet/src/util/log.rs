//! Messages to the person that runs the stack: on standard error, which may be a pipe that is not read any more.

use std::io::Write;

/// Writes one line. A failure to do so is no reason to stop.
pub(crate) fn note(message: std::fmt::Arguments<'_>) {
    let _ = writeln!(std::io::stderr(), "softnet: {message}");
}
