//! NAPI instances as the runtime has them: what an instance polls, its timer, its statistics, and what other threads may
//! see of the threads that poll it.
//!
//! Shared by the polling threads, the applications that poll, and the housekeeper; which of them may do what is said at
//! each type.

mod apps;
mod backlog;
mod instance;
mod left;
mod pool;
mod residency;
mod thread;
mod timer;
mod worker;

pub use apps::{App, Apps, Filter};
pub use backlog::{Backlog, Input, MAX_BACKLOG};
pub use instance::{Home, InstanceStats, NapiInstance, PAUSE, Rx, RxHandler};
pub(crate) use instance::{ring, ring_shared};
pub(crate) use left::LeftOf;
pub(crate) use pool::Instances;
pub use pool::{Pool, Removed};
pub use residency::{Phase, Residency};
pub use thread::{PollStats, PollThread};
pub use timer::{NapiTimer, Timeout, TimerStats};
pub use worker::WorkerShared;
pub(crate) use worker::{TIMER, WAKE};
