//! [`Handle`]: how programs name a running stack.

use std::sync::Arc;

use super::StackInner;

/// A handle to a running stack, for any thread: sockets, epoll sets and pollers are made on it. It does not keep the stack
/// running: when that has stopped, calls fail with `ENETDOWN`.
#[derive(Clone)]
pub struct Handle(Arc<StackInner>);

impl Handle {
    pub(crate) fn new(shared: &Arc<StackInner>) -> Self {
        Handle(shared.clone())
    }

    pub(crate) fn shared(&self) -> &Arc<StackInner> {
        &self.0
    }
}

impl std::fmt::Debug for Handle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Handle").finish_non_exhaustive()
    }
}
