//! By which TX queue a packet leaves, as its head says it: so the choice stays with the packet wherever that waits.

use crate::skb::{Flags, Head};

/// By which TX queue packets leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TxChoice {
    /// By that which the device's maps have for packets of this RX queue; without maps, by the one of the same number.
    RxQueue(u16),
    /// By this one, which their sender chose.
    Queue(u16),
}

impl TxChoice {
    /// What a packet's head says.
    #[inline(always)]
    pub fn of(head: &Head) -> Self {
        match head.flags & Flags::TX_QUEUE {
            0 => TxChoice::RxQueue(head.queue),
            _ => TxChoice::Queue(head.queue),
        }
    }

    /// Notes the choice in a packet's head.
    #[inline(always)]
    pub fn mark(self, head: &mut Head) {
        (head.queue, head.flags) = match self {
            TxChoice::RxQueue(queue) => (queue, head.flags & !Flags::TX_QUEUE),
            TxChoice::Queue(queue) => (queue, head.flags | Flags::TX_QUEUE),
        };
    }

    /// The queue's number.
    #[inline(always)]
    pub fn number(self) -> u16 {
        match self {
            TxChoice::RxQueue(queue) | TxChoice::Queue(queue) => queue,
        }
    }
}
