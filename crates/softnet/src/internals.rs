//! What the `softnet` program, the benches and the tests need beyond the public interface. It is no part of that: anything here
//! may change with any release.

pub use crate::assembly::{Assembly, Housekeeper, process_cpu_ns, thread_cpu_ns};
pub use crate::control::{Handler, Listener, Server};
pub use crate::device::{Netdev, OpenParts, StackDevice, TxHint, dev_queue_xmit};
pub use crate::driver::{Openers, XdpOpener};
pub use crate::napi::{
    Backlog, Home, Input, MAX_BACKLOG, NapiInstance, NapiTimer, Phase, PollThread, Residency, RxHandler,
    Timeout, WorkerShared,
};
pub use crate::poll::Worker;
pub use crate::stack::{SocketTable, StackInner};
pub use crate::tx::NetdevQueue;
pub use crate::util::{Body, Clock, Spawn, Waker, spawn};
