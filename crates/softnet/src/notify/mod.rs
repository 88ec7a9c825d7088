//! Readiness: how a change of a socket's readiness reaches the threads, epoll sets and descriptors that wait for it.
//!
//! Called by threads that poll or send, and by sockets and epoll sets that register themselves.

mod watch;

pub(crate) use watch::{ReadinessNotifier, Set, Watch, wake_blocked};
