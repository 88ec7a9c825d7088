//! What the `softnet` program, the benches and the tests need beyond the public interface. It is no part of that: anything here
//! may change with any release.

pub use crate::assembly::Assembly;
pub use crate::control::listener::Listener;
pub use crate::control::server::{Handler, Server};
pub use crate::device::{TxHint, dev_queue_xmit};
pub use crate::driver::xdp::XdpOpener;
pub use crate::napi::{Input, MAX_BACKLOG, NapiInstance, NapiTimer, Phase, RxHandler, Timeout};
pub use crate::poll::Worker;
pub use crate::stack::StackInner;
pub use crate::util::thread_cpu_ns;
pub use crate::util::{Body, spawn};
