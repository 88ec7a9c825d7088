//! Receive steering: which worker goes on with what an RX queue brings. All of the queue's packets handed off to one worker,
//! its flows spread over several (RPS), or sent after the threads that consume them (RFS).
//!
//! * [`QueueSteering`] stands in the receive path of an instance, behind its ingress filter and the applications that poll.
//! * [`Backlogs`] are where steered packets wait: one NAPI instance for each worker, which that polls within the same
//!   budget as its others.
//! * [`Steerer`] is what a thread that polls keeps for it: the lists at hand, and which workers are to be told, once for all
//!   lists, when its softirq run ends.
//! * [`SockRps`] is what sockets do, so that their flows follow the threads that consume them (RFS).
//! * [`QueueKnobs`] are what is set for an RX queue, by the kernel's names; the housekeeper makes plans of them.
//!
//! Any thread that polls may steer: workers, threads of an instance's own, the pool's, applications.
//!
//! Invariant: packets of a flow that come by one RX queue are processed in order. An instance's plan is changed only
//! while that is disabled, and all that it put on backlogs has been processed.

mod backlogs;
mod knobs;
mod queue;
mod set;
mod sock;
mod switch;
#[cfg(test)]
mod tests;

pub(crate) use backlogs::Backlogs;
pub use knobs::KnobError;
pub(crate) use knobs::{QueueKnobs, SteeringSettings};
pub(crate) use queue::{QueueSteering, SteerCounts, Steerer};
pub(crate) use sock::SockRps;
