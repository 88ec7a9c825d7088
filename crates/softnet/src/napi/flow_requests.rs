//! How pollers ask the housekeeper for filters that have flows arrive near their consumers
//! (accelerated RFS).
//!
//! The owner of an instance pushes to a mailbox that is bounded; nothing is allocated or locked. The
//! housekeeper, which is woken for the first request alone, takes them all. Invariant: a flow whose
//! request found no room is asked for again with a later packet.

use std::sync::{Mutex, PoisonError};

use softnet_core::softnet_data::Counter;
use softnet_core::steer::{Ask, Steering};
use softnet_core::sync::{AtomicU64, Mailbox, PushError, Receiver, mailbox};

/// Requests that may wait.
const MOST: u32 = 256;

/// Where a flow arrives.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FlowSource {
    /// Index of the device, which takes filters.
    pub(crate) dev: u16,
    /// The RX queue.
    pub(crate) queue: u16,
    /// The worker that polls it in the context `softirq`.
    pub(crate) worker: u16,
}

/// A flow that arrives at a queue of a worker which its consumer is not near to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FlowRequest {
    /// Where it arrives.
    pub(crate) source: FlowSource,
    /// The flow, and where it should.
    pub(crate) ask: Ask,
}

/// See the [module](self).
pub(crate) struct FlowRequests {
    mailbox: Mailbox<FlowRequest>,
    receiver: Mutex<Option<Receiver<FlowRequest>>>,
}

impl FlowRequests {
    pub(super) fn new() -> Self {
        let (mailbox, receiver) = mailbox(MOST);
        FlowRequests { mailbox, receiver: Mutex::new(Some(receiver)) }
    }

    /// The side of the one that serves them, once.
    pub(crate) fn receiver(&self) -> Option<Receiver<FlowRequest>> {
        self.receiver.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl FlowSource {
    /// Asks for filters for all flows that `steering`, which is of its queue, wants one for. Whether
    /// the housekeeper is to be woken.
    #[inline]
    pub(super) fn ask(&self, requests: &FlowRequests, steering: &mut Steering) -> bool {
        let mut first = false;
        while let Some(ask) = steering.next_ask() {
            match requests.mailbox.push(FlowRequest { source: *self, ask }) {
                Ok(is_first) => first |= is_first,
                Err(PushError::Full(_) | PushError::Closed(_)) => steering.may_ask(ask.hash),
            }
        }
        first
    }
}

/// What became of filters for flows of an RX queue. Written by the housekeeper.
#[derive(Default)]
pub(crate) struct FlowFilterCounts {
    /// Flows that a filter sends to the queue now.
    pub(crate) now: AtomicU64,
    /// Flows that one was set for, to send them to the queue.
    pub(crate) set: Counter,
    /// Of these, flows that were quiet until it was deleted.
    pub(crate) expired: Counter,
    /// Flows that arrive at the queue and got none that sends them elsewhere: there was no place,
    /// or the device refused.
    pub(crate) refused: Counter,
    /// Times that flows went to the queue or away from it, and packets of theirs in the old one may
    /// not have been processed before: they were waited for in vain.
    pub(crate) late: Counter,
}
