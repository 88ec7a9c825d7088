//! Receive steering: which worker goes on with what an RX queue brings. All of the queue's packets
//! handed off to one worker, its flows spread over several (RPS), or sent after the threads that
//! consume them (RFS).
//!
//! The steering step itself, and where steered packets wait, are with the [instances](crate::napi).
//! Here is what sets it: the housekeeper changes plans
//! ([`SetSteering`](crate::control::SetSteering)) and flushes what a closed device left on
//! backlogs; sockets note where their flows are consumed ([`SockRps`]). For queues that nothing is
//! set for, [`Auto`] chooses plans. Where flows follow their consumers and the device takes
//! filters, [`Arfs`] has it deliver them by the right queue at once.
//!
//! Invariant: packets of a flow that come by one RX queue are processed in order. An instance's
//! plan is changed only while that is disabled, and all that it put on backlogs has been processed.

mod arfs;
mod auto;
mod set;
mod sock;
mod switch;
#[cfg(test)]
mod tests;
mod wake_cost;

pub(crate) use arfs::Arfs;
pub(crate) use auto::Auto;
pub(crate) use sock::SockRps;
