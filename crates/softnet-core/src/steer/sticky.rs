//! The TX queue that a sender keeps to: the choice is made once and kept, so that its packets stay in order (the
//! kernel's `sk_tx_queue_mapping`, `sk_tx_queue_get` and `sk_tx_queue_set`).
//!
//! One of them belongs to each sender (a socket) and is touched by it only. Invariant: as long as the sender has
//! packets in flight, its queue changes only if it is gone, or after `reselection_ns`.

/// A sender's choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TxSticky {
    /// The highest value is never a queue's: a device has fewer queues than this can count.
    queue: u16,
    chosen_at: u64,
}

impl Default for TxSticky {
    /// None chosen yet.
    fn default() -> Self {
        TxSticky { queue: u16::MAX, chosen_at: 0 }
    }
}

impl TxSticky {
    /// The TX queue, one of `tx_queues`, for a packet sent at `now`. It is chosen anew if there is none yet, or no
    /// such queue any more; if nothing of the sender is in flight that the packet could overtake (`ooo_okay`); or if
    /// the choice is older than `reselection_ns` (the kernel's `txq_reselection_ms`; 0 turns that off). Times are in
    /// ns of one monotonic clock.
    #[inline]
    pub fn pick(
        &mut self,
        now: u64,
        ooo_okay: bool,
        reselection_ns: u64,
        tx_queues: u16,
        choose: impl FnOnce() -> u16,
    ) -> u16 {
        let aged = reselection_ns != 0 && now.saturating_sub(self.chosen_at) > reselection_ns;
        if self.queue >= tx_queues || ooo_okay || aged {
            let queue = choose();
            // As the kernel's `netdev_cap_txqueue`: a choice that is none must not become an index.
            *self = TxSticky { queue: if queue < tx_queues { queue } else { 0 }, chosen_at: now };
        }
        self.queue
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use proptest::prelude::*;

    use super::super::{Hint, XpsMaps, pick_tx};
    use super::*;

    const MS: u64 = 1_000_000;

    fn unasked() -> u16 {
        panic!("chosen anew")
    }

    #[test]
    fn a_choice_is_kept_while_packets_are_in_flight() {
        let mut sticky = TxSticky::default();
        assert_eq!(sticky.pick(5, false, 0, 8, || 3), 3);
        for now in [5, 6, 1000 * MS, u64::MAX] {
            assert_eq!(sticky.pick(now, false, 0, 8, unasked), 3);
        }
    }

    #[test]
    fn it_moves_when_nothing_can_be_overtaken() {
        let mut sticky = TxSticky::default();
        assert_eq!(sticky.pick(0, true, 0, 8, || 3), 3);
        assert_eq!(sticky.pick(1, true, 0, 8, || 4), 4);
        assert_eq!(sticky.pick(2, false, 0, 8, unasked), 4);
    }

    #[test]
    fn it_moves_when_its_queue_is_gone() {
        let mut sticky = TxSticky::default();
        assert_eq!(sticky.pick(0, false, 0, 8, || 5), 5);
        assert_eq!(sticky.pick(1, false, 0, 6, unasked), 5);
        assert_eq!(sticky.pick(2, false, 0, 5, || 1), 1);
        assert_eq!(sticky.pick(3, false, 0, 8, unasked), 1, "and does not go back");
        assert_eq!(sticky.pick(4, false, 0, 1, || 7), 0, "a choice that there is not");
        assert_eq!(sticky.pick(5, true, 0, 0, || 0), 0, "a device without queues");
    }

    #[test]
    fn it_moves_when_the_choice_has_aged() {
        let mut sticky = TxSticky::default();
        assert_eq!(sticky.pick(10 * MS, false, 1000 * MS, 8, || 2), 2);
        assert_eq!(sticky.pick(1010 * MS, false, 1000 * MS, 8, unasked), 2);
        assert_eq!(sticky.pick(1010 * MS + 1, false, 1000 * MS, 8, || 2), 2, "asked, and stays");
        assert_eq!(sticky.pick(2010 * MS, false, 1000 * MS, 8, unasked), 2, "anew from there");
        assert_eq!(sticky.pick(2011 * MS, false, 1000 * MS, 8, || 6), 6);
        assert_eq!(sticky.pick(2010 * MS, false, 1000 * MS, 8, unasked), 6, "a clock that was read earlier");
        assert_eq!(sticky.pick(u64::MAX, false, 0, 8, unasked), 6, "off");
    }

    #[test]
    fn a_thread_that_changes_its_cpu_takes_its_flow_along_in_the_end() {
        let maps = XpsMaps::new(2, &[vec![0], vec![1]], &[[0u16; 0]; 0]).unwrap();
        let mut sticky = TxSticky::default();
        let mut send = |ms: u64, cpu| {
            let hint = Hint { rx_queue: None, cpu: Some(cpu), hash: || 0 };
            sticky.pick(ms * MS, false, 1000 * MS, 2, || pick_tx(&maps, 2, hint))
        };
        assert_eq!([send(0, 0), send(500, 1), send(1000, 1), send(1001, 1), send(1002, 0)], [0, 0, 0, 1, 1]);
    }

    proptest! {
        #[test]
        fn it_changes_for_a_reason_and_exists(
            steps in prop::collection::vec((0u64..50, any::<bool>(), 1u16..9, 0u16..9), 1..100),
            reselection in 0u64..200,
        ) {
            let (mut sticky, mut now, mut last, mut chosen_at) = (TxSticky::default(), 0, None, 0);
            for (passed, ooo_okay, tx_queues, choice) in steps {
                now += passed;
                let mut asked = false;
                let queue = sticky.pick(now, ooo_okay, reselection, tx_queues, || {
                    asked = true;
                    choice
                });
                prop_assert!(queue < tx_queues);
                let may = ooo_okay
                    || last.is_none_or(|last| last >= tx_queues)
                    || reselection > 0 && now > chosen_at + reselection;
                prop_assert_eq!(asked, may);
                if asked {
                    chosen_at = now;
                } else {
                    prop_assert_eq!(last, Some(queue));
                }
                last = Some(queue);
            }
        }
    }
}
