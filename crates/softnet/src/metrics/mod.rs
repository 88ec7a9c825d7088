//! Metrics: what `softnet show` tells, as OpenMetrics text over HTTP.
//!
//! `assembly` binds it before any interface is touched, and serves while the stack runs. All of it
//! is on one thread of its own, which sleeps while it is not asked; it reads what the control
//! socket's thread reads, and no lock that a worker waits for is held while it writes text.

mod exposition;
mod families;
mod http;
#[cfg(test)]
mod tests;

pub(crate) use http::{Bound, Server};

use crate::assembly::Introspect;

/// The answer.
pub(crate) fn text(view: &Introspect) -> String {
    families::Snapshot::of(view).text()
}
