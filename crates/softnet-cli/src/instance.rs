//! A running stack, as this program needs it: something to ask and to stop.

use std::sync::Arc;

use serde::de::DeserializeOwned;
use softnet::config::Config;
use softnet::control::{Handler, Request};
use softnet::show::Table;

/// A running stack.
pub(crate) trait Instance: Handler {
    /// Ends its threads and gives its interfaces back. Returns when that is done.
    fn stop(&self);
}

/// Starts a stack on the interfaces of the calling thread's network namespace.
pub(crate) fn start(config: Config) -> Result<Arc<dyn Instance>, String> {
    Err(format!("{}: this build of softnet has no runtime yet", config.stack.name))
}

/// Asks an instance of this process for a table.
pub(crate) fn ask<T: DeserializeOwned>(instance: &dyn Instance, table: Table) -> Result<T, String> {
    let value = instance.request(Request::Show(table))?;
    serde_json::from_value(value).map_err(|error| error.to_string())
}
