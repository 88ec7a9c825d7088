//! XPS: which TX queue a packet leaves by (`netdev_pick_tx`, `get_xps_queue` and `skb_tx_hash` of the kernel's
//! `net/core/dev.c`).
//!
//! A device has two maps, each from what it is named after to a list of TX queues: RX queues (`xps_rxqs`), so that a
//! flow leaves where it comes in, and CPUs (`xps_cpus`), so that senders do not contend. They are built once, when a
//! device is configured, and read by every sender. Invariant: [`pick_tx`] returns a queue that there is, even if the
//! device has fewer by now than when its maps were built.

use std::cell::LazyCell;

use super::scale;

/// CPUs have numbers below this, as many as the kernel can be built for.
pub const MAX_CPUS: u32 = 8192;

/// The maps of one device. The default has none: XPS is off.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct XpsMaps {
    cpus: Map,
    rxqs: Map,
}

/// What is wrong with masks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum XpsError {
    /// There are more masks than TX queues.
    #[error("{knob}: expected masks of at most {tx_queues} TX queues, got one of TX queue {queue}")]
    Queue {
        /// `xps_cpus` or `xps_rxqs`.
        knob: &'static str,
        /// The first queue that there is not.
        queue: usize,
        /// How many there are.
        tx_queues: u16,
    },
    /// There is no such CPU.
    #[error("xps_cpus of TX queue {queue}: expected CPUs from 0 to {}, got {cpu}", MAX_CPUS - 1)]
    Cpu {
        /// Whose mask it is.
        queue: usize,
        /// The CPU.
        cpu: u32,
    },
}

/// From an id to TX queues, ascending: those of `id` are `queues[starts[id]..starts[id + 1]]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Map {
    starts: Box<[u32]>,
    queues: Box<[u16]>,
}

impl Map {
    /// Turns the masks, one for each TX queue, inside out. There are no more of them than a queue has numbers.
    fn new<T: Copy + Into<u32>>(masks: &[impl AsRef<[T]>]) -> Self {
        let ids = masks.iter().zip(0u16..);
        let mut pairs: Vec<(u32, u16)> =
            ids.flat_map(|(mask, queue)| mask.as_ref().iter().map(move |id| ((*id).into(), queue))).collect();
        pairs.sort_unstable();
        pairs.dedup();
        let Some((highest, _)) = pairs.last() else { return Map::default() };
        let starts = (0..=highest + 1).map(|id| pairs.partition_point(|pair| pair.0 < id) as u32);
        Map { starts: starts.collect(), queues: pairs.iter().map(|pair| pair.1).collect() }
    }

    /// The TX queues of `id`; none if it is on no mask.
    #[inline]
    fn get(&self, id: u32) -> &[u16] {
        let [from, to] = [0, 1].map(|next| self.starts.get((id as usize).saturating_add(next)).copied());
        from.zip(to).and_then(|(from, to)| self.queues.get(from as usize..to as usize)).unwrap_or_default()
    }

    /// The queue for packets of `id`: of several the one that the flow hash says.
    #[inline]
    fn pick(&self, id: u32, tx_queues: u16, hash: impl FnOnce() -> u32) -> Option<u16> {
        let queue = match self.get(id) {
            [] => return None,
            [queue] => *queue,
            queues => *queues.get(scale(hash(), queues.len()))?,
        };
        (queue < tx_queues).then_some(queue)
    }
}

impl XpsMaps {
    /// From the form that the kernel has in `/sys/class/net/DEV/queues/tx-N/`: entry `n` of `cpu_masks` lists the
    /// CPUs (below [`MAX_CPUS`]) whose packets TX queue `n` may take, of `rxq_masks` the RX queues. Queues at the end
    /// may be left out; a map of which all masks are empty is off.
    pub fn new(
        tx_queues: u16,
        cpu_masks: &[impl AsRef<[u32]>],
        rxq_masks: &[impl AsRef<[u16]>],
    ) -> Result<Self, XpsError> {
        for (knob, len) in [("xps_cpus", cpu_masks.len()), ("xps_rxqs", rxq_masks.len())] {
            if len > usize::from(tx_queues) {
                return Err(XpsError::Queue { knob, queue: tx_queues.into(), tx_queues });
            }
        }
        for (queue, mask) in cpu_masks.iter().enumerate() {
            if let Some(&cpu) = mask.as_ref().iter().find(|cpu| **cpu >= MAX_CPUS) {
                return Err(XpsError::Cpu { queue, cpu });
            }
        }
        Ok(XpsMaps { cpus: Map::new(cpu_masks), rxqs: Map::new(rxq_masks) })
    }

    /// Whether no map says anything: packets leave by the number of their RX queue, or by their flow hash.
    #[inline(always)]
    pub fn is_off(&self) -> bool {
        !self.by_cpu() && self.rxqs.queues.is_empty()
    }

    /// Whether the sender's CPU matters.
    #[inline(always)]
    pub fn by_cpu(&self) -> bool {
        !self.cpus.queues.is_empty()
    }
}

/// What the choice of a TX queue may go by.
#[derive(Clone, Copy, Debug)]
pub struct Hint<F> {
    /// The RX queue that the packet, or its flow in the other direction, came in by.
    pub rx_queue: Option<u16>,
    /// The CPU that sends.
    pub cpu: Option<u32>,
    /// The flow hash; called once at the most, and only if it decides.
    pub hash: F,
}

/// The TX queue, one of `tx_queues`, for a packet of which nothing is known but `hint`: by the map of RX queues, else
/// by that of CPUs, else the number of its RX queue modulo `tx_queues`, else by the flow hash. With a single queue
/// nothing is looked at.
#[inline]
pub fn pick_tx<F: FnOnce() -> u32>(maps: &XpsMaps, tx_queues: u16, hint: Hint<F>) -> u16 {
    if tx_queues <= 1 {
        return 0;
    }
    let hash = LazyCell::new(hint.hash);
    let by_rxq = hint.rx_queue.and_then(|queue| maps.rxqs.pick(queue.into(), tx_queues, || *hash));
    let by_map = by_rxq.or_else(|| maps.cpus.pick(hint.cpu?, tx_queues, || *hash));
    by_map.unwrap_or_else(|| match hint.rx_queue {
        Some(queue) => queue % tx_queues,
        None => scale(*hash, tx_queues.into()) as u16,
    })
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use std::cell::Cell;

    use proptest::prelude::*;

    use super::*;

    const NO_CPUS: [[u32; 0]; 0] = [];
    const NO_RXQS: [[u16; 0]; 0] = [];

    /// A hash that scales to the last of two queues, and to queue 6 of 8.
    const HASH: u32 = 0xc000_0000;

    fn pick(maps: &XpsMaps, tx_queues: u16, rx_queue: Option<u16>, cpu: Option<u32>) -> (u16, u32) {
        let hashed = Cell::new(0);
        let hash = || {
            hashed.set(hashed.get() + 1);
            HASH
        };
        (pick_tx(maps, tx_queues, Hint { rx_queue, cpu, hash }), hashed.get())
    }

    #[test]
    fn one_queue_needs_no_choice() {
        let maps = XpsMaps::new(4, &[vec![], vec![0, 1]], &[vec![], vec![0]]).unwrap();
        for tx_queues in [0, 1] {
            assert_eq!(pick(&maps, tx_queues, None, None), (0, 0));
            assert_eq!(pick(&maps, tx_queues, Some(3), Some(0)), (0, 0));
        }
    }

    #[test]
    fn without_maps_it_is_the_rx_queue_and_else_the_hash() {
        let maps = XpsMaps::default();
        assert_eq!(pick(&maps, 8, Some(5), Some(1)), (5, 0));
        assert_eq!(pick(&maps, 4, Some(5), Some(1)), (1, 0));
        assert_eq!(pick(&maps, 8, None, Some(1)), (6, 1));
        assert_eq!(XpsMaps::new(8, &NO_CPUS, &NO_RXQS), Ok(XpsMaps::default()));
        assert_eq!(XpsMaps::new(2, &[[0; 0]; 2], &[[0; 0]; 2]), Ok(XpsMaps::default()));
    }

    #[test]
    fn the_map_of_rx_queues_goes_before_that_of_cpus() {
        // CPU 0: queue 0, CPU 1: queues 1 and 2, CPU 2: none, CPU 3: queue 2. RX queue 0: queue 3, 1: queues 0 and 3.
        let cpus = [vec![0], vec![1], vec![3, 1, 1], vec![]];
        let maps = XpsMaps::new(8, &cpus, &[vec![1], vec![], vec![], vec![0, 1]]).unwrap();
        assert_eq!(pick(&maps, 8, None, Some(0)), (0, 0));
        assert_eq!(pick(&maps, 8, None, Some(1)), (2, 1), "of several by hash");
        assert_eq!(pick(&maps, 8, None, Some(3)), (2, 0));
        assert_eq!(pick(&maps, 8, Some(0), Some(1)), (3, 0), "by RX queue first");
        assert_eq!(pick(&maps, 8, Some(1), Some(0)), (3, 1));
        assert_eq!(pick(&maps, 8, Some(7), Some(0)), (0, 0), "an RX queue on no mask");
        for cpu in [Some(2), Some(4), Some(u32::MAX), None] {
            assert_eq!(pick(&maps, 8, Some(7), cpu), (7, 0), "{cpu:?} on no mask");
            assert_eq!(pick(&maps, 8, None, cpu), (6, 1), "{cpu:?} on no mask");
        }
    }

    #[test]
    fn a_map_to_queues_that_are_gone_does_not_count() {
        let maps =
            XpsMaps::new(8, &[vec![], vec![0], vec![], vec![1]], &[vec![], vec![], vec![], vec![0]]).unwrap();
        assert_eq!(pick(&maps, 8, Some(0), Some(0)), (3, 0));
        assert_eq!(pick(&maps, 3, Some(0), Some(0)), (1, 0), "to the CPU's");
        assert_eq!(pick(&maps, 3, Some(0), Some(1)), (0, 0), "to the RX queue itself");
        assert_eq!(pick(&maps, 3, None, Some(1)), (2, 1), "to the hash");
        let several = XpsMaps::new(8, &[vec![], vec![0], vec![], vec![], vec![0]], &NO_RXQS).unwrap();
        assert_eq!(pick(&several, 4, None, Some(0)), (3, 1), "hashed once");
    }

    #[test]
    fn errors_name_the_entry_and_the_range() {
        let error =
            |cpus: &[Vec<u32>], rxqs: &[Vec<u16>]| XpsMaps::new(2, cpus, rxqs).unwrap_err().to_string();
        let three = "expected masks of at most 2 TX queues, got one of TX queue 2";
        assert_eq!(error(&[vec![], vec![], vec![1]], &[]), format!("xps_cpus: {three}"));
        assert_eq!(error(&[], &[vec![], vec![], vec![1]]), format!("xps_rxqs: {three}"));
        let cpu = "xps_cpus of TX queue 1: expected CPUs from 0 to 8191, got 8192";
        assert_eq!(error(&[vec![8191], vec![0, 8192]], &[]), cpu);
        assert!(XpsMaps::new(0, &NO_CPUS, &NO_RXQS).is_ok());
    }

    proptest! {
        #[test]
        fn picks_a_queue_that_there_is_and_whose_mask_has_the_id(
            cpus in prop::collection::vec(prop::collection::vec(0u32..12, 0..6), 0..8),
            rxqs in prop::collection::vec(prop::collection::vec(0u16..12, 0..6), 0..8),
            now in 2u16..10,
            rx_queue in prop::option::of(0u16..14),
            cpu in prop::option::of(0u32..14),
            hash: u32,
        ) {
            let maps = XpsMaps::new(8, &cpus, &rxqs).unwrap();
            let queue = pick_tx(&maps, now, Hint { rx_queue, cpu, hash: || hash });
            prop_assert!(queue < now);
            // All that a map may name is there: a map that names any decides.
            if now >= 8 {
                let rxq = |mask: &Vec<u16>| rx_queue.is_some_and(|queue| mask.contains(&queue));
                let sender = |mask: &Vec<u32>| cpu.is_some_and(|cpu| mask.contains(&cpu));
                if rxqs.iter().any(rxq) {
                    prop_assert!(rxq(&rxqs[usize::from(queue)]));
                } else if cpus.iter().any(sender) {
                    prop_assert!(sender(&cpus[usize::from(queue)]));
                }
            }
        }
    }
}
