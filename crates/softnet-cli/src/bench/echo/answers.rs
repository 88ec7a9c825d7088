//! Numbers of responses on their way from an emulated NIC, on the server's CPU, to the client.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use softnet_dev::mem::Sink;

/// Numbers that the client may be behind; more than requests are ever outstanding, so it can't be too far.
const SLOTS: usize = 1 << 16;

/// See the [module](self). A slot holds the round in which it was written, counted
/// from 1, above the lower half of the number; so one store hands it over, and no thread need say how far it is.
pub(in crate::bench) struct Answers {
    slots: Box<[AtomicU64]>,
    /// Packets that were no responses.
    strange: AtomicU64,
}

fn round(position: u64) -> u64 {
    (position / SLOTS as u64 + 1) << 32
}

impl Answers {
    pub(in crate::bench) fn new() -> Arc<Self> {
        let slots = (0..SLOTS).map(|_| AtomicU64::new(0)).collect();
        Arc::new(Answers { slots, strange: AtomicU64::new(0) })
    }

    pub(in crate::bench) fn put(&self, position: u64, number: u64) {
        let slot = &self.slots[position as usize & (SLOTS - 1)];
        slot.store(round(position) | number & 0xffff_ffff, Ordering::Release);
    }

    /// The lower half of the number at `position`, if it is there.
    pub(in crate::bench) fn get(&self, position: u64) -> Option<u32> {
        let slot = self.slots[position as usize & (SLOTS - 1)].load(Ordering::Acquire);
        (slot & !0xffff_ffff == round(position)).then_some(slot as u32)
    }

    /// A packet was no response.
    pub(in crate::bench) fn strange(&self) {
        self.strange.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether any was none.
    pub(in crate::bench) fn has_strange(&self) -> bool {
        self.strange.load(Ordering::Relaxed) > 0
    }
}

/// What takes packets out of the NIC, and hands over the numbers of the responses. `number` tells that of a packet, if it is one.
pub(in crate::bench) struct Responses<F> {
    pub(in crate::bench) answers: Arc<Answers>,
    pub(in crate::bench) position: u64,
    pub(in crate::bench) number: F,
}

impl<F: FnMut(&[u8]) -> Option<u64> + Send> Sink for Responses<F> {
    fn read(&mut self, packet: &[u8]) {
        match (self.number)(packet) {
            Some(number) => {
                self.answers.put(self.position, number);
                self.position += 1;
            }
            None => self.answers.strange(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_handed_over_round_after_round() {
        let answers = Answers::new();
        let n = SLOTS as u64;
        assert_eq!(answers.get(0), None);
        for position in [0, 1, n - 1, n, 5 * n + 3] {
            assert_eq!(answers.get(position), None);
            answers.put(position, (7 << 32) + position);
            assert_eq!(answers.get(position), Some(position as u32));
            assert_eq!(answers.get(position + n), None, "of the next round there is nothing yet");
        }
    }
}
