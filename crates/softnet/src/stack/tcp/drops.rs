//! Segments that were dropped before they left, and the connections that are told of it.
//!
//! A thread that releases a TX queue may hold a shard, of these connections or of others; so what it
//! dropped is left here, and the timer thread has the connections take note. Bounded: of what there is
//! no room for a connection learns as of any other loss, by ACKs.

use std::sync::Mutex;

use softnet_core::skb::{DropReason, Skb};
use softnet_core::sock::tcp::Told;

use super::ROOM;
use super::timer::Alarm;
use crate::util::lock;

/// See the module.
pub(crate) struct LocalDrops {
    told: Mutex<Vec<Told>>,
    alarm: Alarm,
}

impl LocalDrops {
    pub(super) fn new(alarm: Alarm) -> Self {
        LocalDrops { told: Mutex::default(), alarm }
    }

    /// A packet was dropped, for `reason`: if it is of a connection of this stack, that is told.
    #[cold]
    pub(crate) fn dropped(&self, skb: &Skb, reason: DropReason) {
        let Some(told) = Told::dropped(skb, reason) else { return };
        let mut all = lock(&self.told);
        if all.last_mut().is_some_and(|last| last.extend(&told)) || all.len() >= ROOM as usize {
            return;
        }
        all.push(told);
        drop(all);
        self.alarm.wake();
    }

    pub(super) fn take(&self) -> Vec<Told> {
        std::mem::take(&mut *lock(&self.told))
    }
}
