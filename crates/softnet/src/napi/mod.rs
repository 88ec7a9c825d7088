//! NAPI instances as the runtime has them: what an instance polls, its timer, its statistics, and what other threads may
//! see of the threads that poll it.
//!
//! An instance may steer what it brings to workers' [backlogs](Backlogs), each of which is an
//! instance of its own: the [`QueueSteering`] step stands in the receive path behind the ingress
//! filter and the applications that poll.
//!
//! Shared by the polling threads, the applications that poll, and the housekeeper; which of them may do what is said at
//! each type.

mod apps;
mod backlog;
mod backlogs;
mod flow_requests;
mod instance;
mod left;
mod pool;
mod residency;
mod samples;
mod steering;
mod thread;
mod timer;
mod worker;

pub use apps::PacketFilter;
pub(crate) use apps::{App, Apps};
pub use backlog::{Input, MAX_BACKLOG};
pub(crate) use backlogs::Backlogs;
pub(crate) use flow_requests::{FlowFilterCounts, FlowRequest, FlowRequests, FlowSource};
pub(crate) use instance::{Home, PAUSE, Rx, ring, ring_shared};
pub use instance::{NapiInstance, RxHandler};
pub(crate) use left::LeftOf;
pub(crate) use pool::{Instances, Pool};
pub use residency::Phase;
pub(crate) use residency::Residency;
pub(crate) use samples::{AutoWatch, Chosen, EVERY, Samples};
pub(crate) use steering::{QueueSteering, SteerCounts, Steerer};
pub(crate) use thread::PollThread;
pub use timer::{NapiTimer, Timeout};
pub(crate) use worker::{TIMER, WAKE, WorkerShared};
