//! `mirred`: the action that sends a packet, or a copy of it, to another device, to leave by it (egress) or as if it
//! had come in by it (ingress). Here is what it decides, and how it finds out that packets go in circles
//! (`net/sched/act_mirred.c`).
//!
//! The thread that runs actions calls [`Mirred::enter`]. If that says [`Go`](MirredOutcome::Go), it makes a
//! [copy](crate::skb::Store::copy) in order to mirror, [marks](Mirred::mark) what it sends, sends it, and
//! [leaves](Mirred::leave). Two things end a circle. Sending nests: a device that leads back to one that the thread
//! is redirecting to is found on the thread's [`MirredStack`]. A redirect to ingress is out of that nest, since the
//! packet is received later, or by another thread: so the packet itself says how often that happened.
//!
//! Invariant: on the stack are the devices to whose egress the thread has entered and which it did not leave yet,
//! none of them twice. So a packet makes at most [`MIRRED_NEST_LIMIT`] steps in a row by egress, and
//! [`MIRRED_DEFER_LIMIT`] to ingress in its life.

use crate::skb::{DropReason, Flags, Head};

/// Devices that a thread may be redirecting to at once.
pub const MIRRED_NEST_LIMIT: usize = 4;

/// Redirects to ingress that a packet may have been through.
pub const MIRRED_DEFER_LIMIT: u8 = 3;

/// What the action does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mirred {
    /// A copy is sent, and the packet goes on; otherwise the packet is sent (`redirect`).
    pub mirror: bool,
    /// To be received by the device; otherwise to leave by it.
    pub ingress: bool,
    /// Index of the device.
    pub dev: u16,
}

/// What becomes of a packet that the action is applied to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum MirredOutcome {
    /// It, or its copy, is to be sent.
    Go,
    /// It would come back to a device that it is being sent to: nothing is sent. Counts as overlimit of the action.
    Loop,
    /// It has been through too many redirects: nothing is sent.
    TooDeep,
}

/// The devices that a thread is redirecting to, outermost first. One in each thread context.
#[derive(Debug, Default)]
pub struct MirredStack {
    devs: [u16; MIRRED_NEST_LIMIT],
    len: usize,
}

impl MirredStack {
    /// The devices on it.
    #[inline]
    pub fn devs(&self) -> &[u16] {
        self.devs.get(..self.len).unwrap_or_default()
    }

    /// Puts `dev` on it; whether it had room.
    #[inline]
    pub fn push(&mut self, dev: u16) -> bool {
        let Some(place) = self.devs.get_mut(self.len) else { return false };
        *place = dev;
        self.len += 1;
        true
    }

    /// Takes off the newest.
    #[inline]
    pub fn pop(&mut self) {
        self.len = self.len.saturating_sub(1);
    }
}

impl Mirred {
    /// Decides about a packet with `head`. After [`Go`](MirredOutcome::Go), the caller [leaves](Self::leave) when the
    /// packet was sent, or could not be.
    #[inline]
    pub fn enter(&self, stack: &mut MirredStack, head: &Head) -> MirredOutcome {
        // Also for a redirect to ingress, as in the kernel: a chain is too long however it goes on.
        if stack.devs().len() >= MIRRED_NEST_LIMIT || head.tc_depth >= MIRRED_DEFER_LIMIT {
            return MirredOutcome::TooDeep;
        }
        if !self.ingress {
            if stack.devs().contains(&self.dev) {
                return MirredOutcome::Loop;
            }
            stack.push(self.dev);
        }
        MirredOutcome::Go
    }

    /// Marks what is to be sent: the packet, or the copy of it.
    #[inline]
    pub fn mark(&self, head: &mut Head) {
        if self.ingress {
            head.tc_depth = (head.tc_depth + 1).min(MIRRED_DEFER_LIMIT);
            // It is received: its flow leaves as that of the RX queue does.
            head.flags &= !(Flags::TX_QUEUE | Flags::HELD);
        }
    }

    /// Ends what [`enter`](Self::enter) began when it said [`Go`](MirredOutcome::Go).
    #[inline]
    pub fn leave(&self, stack: &mut MirredStack) {
        if !self.ingress {
            stack.pop();
        }
    }

    /// Why the packet is to be dropped (`TC_ACT_SHOT`), which the action caught as it came in (`at_ingress`) or was
    /// to leave. `None`: it was sent, or goes on, as one does that can't be mirrored without a loop.
    #[inline]
    pub fn shot(&self, outcome: MirredOutcome, at_ingress: bool) -> Option<DropReason> {
        let shot = match outcome {
            MirredOutcome::Go => false,
            MirredOutcome::Loop => !self.mirror,
            MirredOutcome::TooDeep => true,
        };
        shot.then_some(if at_ingress { DropReason::TcIngress } else { DropReason::TcEgress })
    }
}
