//! A running stack, as this program needs it: something to ask and to stop.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::de::DeserializeOwned;
use softnet::config::Config;
use softnet::control::Request;
use softnet::control::show::Table;
use softnet::internals::Handler;
use softnet::net::Handle;
use softnet::{Introspect, Stack};

use crate::Failure;

/// A running stack.
pub(crate) trait Instance: Handler {
    /// Ends its threads and gives its interfaces back. Returns when that is done.
    fn stop(&self);
}

/// The real thing.
pub(crate) struct Running {
    view: Arc<Introspect>,
    stack: Mutex<Option<Stack>>,
}

impl Running {
    /// What it can tell of itself, and how it is changed.
    pub(crate) fn view(&self) -> &Introspect {
        &self.view
    }

    /// The process whose place it has taken, and how long no packet was forwarded.
    pub(crate) fn predecessor(&self) -> Option<(u32, Duration)> {
        self.stack.lock().unwrap_or_else(PoisonError::into_inner).as_ref()?.predecessor()
    }

    /// Has that process end.
    pub(crate) fn end_predecessor(&self) -> Result<(), String> {
        let mut stack = self.stack.lock().unwrap_or_else(PoisonError::into_inner);
        stack.as_mut().map_or(Ok(()), Stack::end_predecessor).map_err(|error| error.to_string())
    }

    /// Leads to it, for code that opens sockets. `None` once it was stopped.
    pub(crate) fn handle(&self) -> Option<Handle> {
        self.stack.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(Stack::handle)
    }
}

impl Handler for Running {
    fn request(&self, request: Request) -> Result<serde_json::Value, String> {
        self.view.request(request)
    }
}

impl Instance for Running {
    fn stop(&self) {
        let stack = self.stack.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(stack);
    }
}

/// Starts a stack on the interfaces of the calling thread's network namespace.
pub(crate) fn start(config: Config) -> Result<Arc<Running>, String> {
    Stack::start(config).map(running).map_err(|error| error.to_string())
}

/// Starts a stack as [`start`] does, which `softnet show` finds.
pub(crate) fn start_shown(config: Config) -> Result<Arc<Running>, Failure> {
    let started = Stack::builder().config(config).control_socket().start();
    started.map(running).map_err(|error| Failure::Run(error.to_string()))
}

/// The same in the place of the instance that runs under its name.
pub(crate) fn take_over(config: Config) -> Result<Arc<Running>, Failure> {
    let started = Stack::builder().config(config).take_over().start();
    started.map(running).map_err(|error| Failure::Run(error.to_string()))
}

fn running(stack: Stack) -> Arc<Running> {
    Arc::new(Running { view: stack.view().clone(), stack: Mutex::new(Some(stack)) })
}

/// Asks an instance of this process for a table.
pub(crate) fn ask<T: DeserializeOwned>(instance: &dyn Instance, table: Table) -> Result<T, String> {
    let value = instance.request(Request::Show(table))?;
    serde_json::from_value(value).map_err(|error| error.to_string())
}
