//! RFS: a flow's packets go to the worker that is near the thread which consumes them (the kernel's
//! `rps_sock_flow_table` and `rps_dev_flow_table`).
//!
//! * [`SockFlowTable`], one for a stack: sockets note which worker is near their thread. Any thread
//!   writes and reads it.
//! * [`FlowTable`], one for each RX queue, of the thread that polls that: which worker's backlog a
//!   flow's packets were put on, and how far that must have come before the flow may go elsewhere.
//!
//! Invariant (the switch rule): a packet goes to another worker than its predecessor only if
//! everything that was on the old one's backlog up to the predecessor has been processed. It holds
//! for all flows of an RX queue: also for those that had no entry so far, whose packets went where
//! RPS puts them, and for packets of one batch, none of which is on any backlog yet when the last
//! of them is looked at.
//!
//! A flow whose entry another flow has, with packets under way, goes where RPS puts it, as it did
//! before: it cannot take the entry, so flows that collide never move each other.

use crate::sync::{AtomicU32, Mutant, Ordering, mutated};

/// Batches of an RX queue after which a filter may be asked for again that was not set.
const ASK_AGAIN: u64 = 1 << 16;

/// Of flows that sockets without a peer would put in another flow's place, one in so many gets it.
pub const UNCONNECTED_SHARE: u32 = 64;

/// Which worker is near the thread that consumes a flow.
///
/// A word each: the high bits of the flow's hash, and the worker's number plus one.
pub struct SockFlowTable {
    flows: Box<[AtomicU32]>,
    worker_bits: u32,
    /// Flows of sockets without a peer that found another's entry.
    contested: AtomicU32,
}

impl SockFlowTable {
    /// The most flows.
    pub const MAX: u32 = 1 << 24;

    /// A table for so many flows, rounded up to a power of two (`rps_sock_flow_entries`), of a
    /// stack with `workers` workers. `None`: with 0, RFS is off.
    pub fn new(flows: u32, workers: usize) -> Option<Self> {
        let n = flows.min(Self::MAX).next_power_of_two();
        (flows > 0).then(|| SockFlowTable {
            flows: (0..n).map(|_| AtomicU32::new(0)).collect(),
            worker_bits: (workers as u32 + 1).next_power_of_two() - 1,
            contested: AtomicU32::new(0),
        })
    }

    fn entry(&self, hash: u32) -> &AtomicU32 {
        &self.flows[hash as usize & (self.flows.len() - 1)]
    }

    /// The worker that is near the consumer of the flow with hash `hash`, if that has been noted.
    #[inline]
    pub fn wanted(&self, hash: u32) -> Option<u16> {
        let entry = self.entry(hash).load(Ordering::Relaxed);
        let worker = (entry & self.worker_bits).checked_sub(1)?;
        ((entry ^ hash) & !self.worker_bits == 0).then_some(worker as u16)
    }

    /// Notes that the flow with hash `hash`, if it is not 0, is consumed near `worker`. Anyone can
    /// make up flows to a socket that has no peer, so one that is not `connected` takes another
    /// flow's entry one time in [`UNCONNECTED_SHARE`] only.
    #[inline]
    pub fn record(&self, hash: u32, worker: u16, connected: bool) {
        let entry = self.entry(hash);
        let noted = entry.load(Ordering::Relaxed);
        let new = hash & !self.worker_bits | (u32::from(worker) + 1);
        // Not written when nothing changes, so that threads that read it keep the line.
        if hash == 0 || noted == new {
            return;
        }
        let is_others = noted & self.worker_bits != 0 && (noted ^ hash) & !self.worker_bits != 0;
        if is_others && !connected {
            let nth = self.contested.fetch_add(1, Ordering::Relaxed);
            if nth % UNCONNECTED_SHARE != UNCONNECTED_SHARE - 1 {
                return;
            }
        }
        entry.store(new, Ordering::Relaxed);
    }
}

/// What an RX queue knows of a flow.
#[derive(Clone, Copy, Default)]
struct Entry {
    /// The flow's hash; 0: of none.
    hash: u32,
    /// Where its packets go.
    worker: u16,
    /// The batch of which packets went by it last.
    batch: u64,
    /// Its packets are on the worker's backlog in front of this.
    tail: u64,
    /// From this batch on a filter may be asked for that has it arrive at the worker's own queue.
    ask_at: u64,
}

/// The flows of an RX queue.
pub struct FlowTable {
    entries: Box<[Entry]>,
    batch: u64,
    /// Entries that packets of the batch at hand went by.
    chosen: Vec<u32>,
    /// Flows of the batch that went by none: a bit for each, which others may share.
    unheld: [u64; 4],
    /// Flows that went to another worker.
    pub(super) moves: u64,
    /// The worker that polls the queue, if flows may be sent to other queues by filters.
    polled_by: Option<u16>,
    /// The flow that was chosen for last is one to ask a filter for.
    ask: Option<u32>,
}

/// A flow's bit among 256.
#[inline(always)]
fn at_bit(hash: u32) -> u8 {
    (hash.wrapping_mul(0x9e37_79b1) >> 24) as u8
}

/// What the choice depends on beside the entry.
pub(super) struct Choice<'a, F> {
    /// Where RPS puts the flow.
    pub(super) rps: u16,
    /// The worker near its consumer.
    pub(super) wanted: Option<u16>,
    /// How far each worker's backlog must have come for all that this queue put there.
    pub(super) tails: &'a [u64],
    /// Whether a worker's backlog has come so far.
    pub(super) is_done: F,
}

impl FlowTable {
    /// The most entries.
    pub const MAX: u32 = 1 << 20;

    /// A table of so many entries, rounded up to a power of two (`rps_flow_cnt`).
    pub(super) fn new(entries: u32) -> Self {
        let n = entries.clamp(1, Self::MAX).next_power_of_two();
        FlowTable {
            entries: vec![Entry::default(); n as usize].into(),
            batch: 0,
            chosen: Vec::with_capacity(crate::skb::BATCH),
            unheld: [0; 4],
            moves: 0,
            polled_by: None,
            ask: None,
        }
    }

    /// From now on filters are [asked](Self::take_ask) for, for flows whose consumers are not near
    /// `worker`, which polls the queue.
    pub(super) fn ask_for_filters(&mut self, worker: u16) {
        self.polled_by = Some(worker);
    }

    /// The entry of the flow that was just chosen for, if a filter should have it arrive elsewhere:
    /// where it goes and its consumer is are one, and the queue's own worker is another.
    #[inline(always)]
    pub(super) fn take_ask(&mut self) -> Option<u32> {
        self.ask.take()
    }

    /// A filter was asked for, or there can be none.
    pub(super) fn asked(&mut self, at: u32) {
        self.entries[at as usize].ask_at = self.batch + ASK_AGAIN;
    }

    /// A filter may be asked for the flow again, with its next packet.
    pub(super) fn may_ask(&mut self, hash: u32) {
        let at = self.at(hash);
        if self.entries[at].hash == hash {
            self.entries[at].ask_at = 0;
        }
    }

    /// The last batch that packets of the flow were in; `None`: it has no entry (now).
    pub(super) fn last_batch(&self, hash: u32) -> Option<u64> {
        let entry = &self.entries[self.at(hash)];
        (entry.hash == hash).then_some(entry.batch)
    }

    #[inline(always)]
    fn at(&self, hash: u32) -> usize {
        let bits = self.entries.len().trailing_zeros();
        (u64::from(hash.wrapping_mul(0x61c8_8647)) << bits >> 32) as usize
    }

    /// A batch begins.
    pub(super) fn begin(&mut self) {
        self.batch += 1;
        self.chosen.clear();
        self.unheld = [0; 4];
    }

    /// Where the next packet of the flow with hash `hash`, which is not 0, goes.
    #[inline]
    pub(super) fn choose<F: Fn(u16, u64) -> bool>(&mut self, hash: u32, choice: &Choice<'_, F>) -> u16 {
        let at = self.at(hash) as u32;
        let entry = &mut self.entries[at as usize];
        let asks = self.polled_by;
        // Once for each batch: what went by the entry before it changed would be on no backlog yet.
        let is_new = entry.batch != self.batch || mutated(Mutant::BatchNotPinned);
        if entry.hash != hash {
            // The same of a flow that went where RPS puts it.
            let (word, bit) = (usize::from(at_bit(hash) / 64), 1 << (at_bit(hash) % 64));
            let free = is_new
                && choice.wanted.is_some_and(|wanted| wanted != choice.rps || asks.is_some())
                && self.unheld[word] & bit == 0
                && (entry.hash == 0 || (choice.is_done)(entry.worker, entry.tail));
            if !free {
                self.unheld[word] |= bit;
                return choice.rps;
            }
            // So far its packets went where RPS puts them.
            let tail = choice.tails.get(usize::from(choice.rps)).copied().unwrap_or(0);
            *entry = Entry { hash, worker: choice.rps, tail, ask_at: 0, ..*entry };
        }
        if is_new {
            entry.batch = self.batch;
            self.chosen.push(at);
            let wanted = choice.wanted.unwrap_or(choice.rps);
            if wanted != entry.worker && (choice.is_done)(entry.worker, entry.tail) {
                (entry.worker, entry.ask_at) = (wanted, 0);
                self.moves += 1;
            }
            if asks.is_some_and(|own| own != entry.worker)
                && choice.wanted == Some(entry.worker)
                && entry.ask_at <= self.batch
            {
                self.ask = Some(at);
            }
        }
        entry.worker
    }

    /// The packets of the batch are on the backlogs, which `tails` counts.
    pub(super) fn end(&mut self, tails: &[u64]) {
        for at in self.chosen.drain(..) {
            let entry = &mut self.entries[at as usize];
            entry.tail = tails.get(usize::from(entry.worker)).copied().unwrap_or(entry.tail);
        }
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn sockets_note_where_flows_are_consumed() {
        assert!(SockFlowTable::new(0, 4).is_none());
        let table = SockFlowTable::new(1000, 4).unwrap();
        assert_eq!((table.flows.len(), table.worker_bits), (1024, 7));
        assert_eq!(table.wanted(0x1234_5678), None);
        for worker in [0, 3] {
            table.record(0x1234_5678, worker, true);
            assert_eq!(table.wanted(0x1234_5678), Some(worker));
            assert_eq!(table.wanted(0x9234_5678), None, "another flow of the same entry");
        }
        table.record(0x9234_5678, 1, true);
        assert_eq!((table.wanted(0x1234_5678), table.wanted(0x9234_5678)), (None, Some(1)));
        table.record(0, 2, true);
        assert_eq!(table.wanted(0), None);
    }

    /// Of established flows, one at the most for each 64 packets of a flood to a socket without a
    /// peer.
    #[test]
    fn a_flood_of_sources_does_not_evict_established_flows_at_once() {
        const FLOWS: u32 = 1024;
        let table = SockFlowTable::new(FLOWS, 2).unwrap();
        let flow = |i: u32| 0xabc0_0000 | i;
        (0..FLOWS).for_each(|i| table.record(flow(i), 0, true));
        let left = || (0..FLOWS).filter(|i| table.wanted(flow(*i)) == Some(0)).count() as u32;
        let mut random = 1u32;
        for packets in 1..=20_000u32 {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            table.record(random.rotate_left(16), 1, false);
            if packets % 1000 == 0 {
                assert!(left() >= FLOWS.saturating_sub(packets / UNCONNECTED_SHARE), "{packets}: {}", left());
            }
        }
        assert!(left() < FLOWS, "some do get in");
        // Those that are there still come back with their next packet.
        (0..FLOWS).for_each(|i| table.record(flow(i), 0, true));
        assert_eq!(left(), FLOWS);
    }

    /// Backlogs of workers: head and tail of each.
    struct Backlogs {
        heads: [u64; 8],
        tails: [u64; 8],
    }

    fn choose(table: &mut FlowTable, backlogs: &Backlogs, hash: u32, rps: u16, wanted: Option<u16>) -> u16 {
        let is_done =
            |worker: u16, tail: u64| backlogs.heads[usize::from(worker)].wrapping_sub(tail) as i64 >= 0;
        table.choose(hash, &Choice { rps, wanted, tails: &backlogs.tails, is_done })
    }

    /// A batch of one packet.
    fn send(table: &mut FlowTable, backlogs: &mut Backlogs, rps: u16, wanted: Option<u16>) -> u16 {
        table.begin();
        let worker = choose(table, backlogs, 77, rps, wanted);
        backlogs.tails[usize::from(worker)] += 1;
        table.end(&backlogs.tails);
        worker
    }

    /// E9: head 100, tail 110, the flow's last packet at 107; its consumer goes from worker 3 to
    /// worker 5.
    #[test]
    fn a_flow_moves_when_its_packets_have_been_processed() {
        let (mut table, mut backlogs) = (FlowTable::new(8), Backlogs { heads: [0; 8], tails: [0; 8] });
        (backlogs.heads[3], backlogs.tails[3], backlogs.tails[5]) = (100, 106, 40);
        // Its first entry: RPS puts it elsewhere, and nothing of it is there.
        assert_eq!(send(&mut table, &mut backlogs, 1, Some(3)), 3);
        assert_eq!(backlogs.tails[3], 107);
        backlogs.tails[3] = 110;
        assert_eq!(send(&mut table, &mut backlogs, 1, Some(5)), 3, "seven are before it");
        assert_eq!(backlogs.tails[3], 111);
        backlogs.heads[3] = 110;
        assert_eq!(send(&mut table, &mut backlogs, 1, Some(5)), 3, "one is");
        backlogs.heads[3] = 112;
        assert_eq!(send(&mut table, &mut backlogs, 1, Some(5)), 5);
        assert_eq!((backlogs.tails[5], table.moves), (41, 2));
        assert_eq!(send(&mut table, &mut backlogs, 1, None), 5, "back to RPS by the same rule");
        backlogs.heads[5] = 42;
        assert_eq!(send(&mut table, &mut backlogs, 1, None), 1);
    }

    #[test]
    fn a_flow_without_an_entry_waits_for_what_rps_put_elsewhere() {
        let (mut table, mut backlogs) = (FlowTable::new(8), Backlogs { heads: [0; 8], tails: [0; 8] });
        assert_eq!(send(&mut table, &mut backlogs, 1, None), 1);
        assert_eq!(send(&mut table, &mut backlogs, 1, Some(2)), 1, "the first is not processed yet");
        backlogs.heads[1] = 2;
        assert_eq!(send(&mut table, &mut backlogs, 1, Some(2)), 2);
    }

    #[test]
    fn packets_of_one_batch_stay_together() {
        let (mut table, mut backlogs) = (FlowTable::new(8), Backlogs { heads: [0; 8], tails: [0; 8] });
        assert_eq!(send(&mut table, &mut backlogs, 1, Some(2)), 2);
        table.begin();
        assert_eq!(choose(&mut table, &backlogs, 77, 1, Some(3)), 2);
        // The worker has come to the end of its backlog, but the first packet is not even there
        // yet.
        backlogs.heads[2] = 1;
        assert_eq!(choose(&mut table, &backlogs, 77, 1, Some(3)), 2);
        backlogs.tails[2] += 2;
        table.end(&backlogs.tails);
        backlogs.heads[2] = 3;
        assert_eq!(send(&mut table, &mut backlogs, 1, Some(3)), 3);
    }

    #[test]
    fn flows_that_collide_do_not_move_each_other() {
        let (mut table, mut backlogs) = (FlowTable::new(1), Backlogs { heads: [0; 8], tails: [0; 8] });
        table.begin();
        assert_eq!(choose(&mut table, &backlogs, 77, 1, Some(2)), 2);
        assert_eq!(choose(&mut table, &backlogs, 78, 1, Some(3)), 1, "the entry is taken");
        (backlogs.tails[2], backlogs.tails[1]) = (1, 1);
        table.end(&backlogs.tails);
        // The first has been processed, so that the entry may be the second's; whose own packet has
        // not.
        backlogs.heads[2] = 1;
        table.begin();
        assert_eq!(choose(&mut table, &backlogs, 78, 1, Some(3)), 1);
        backlogs.tails[1] = 2;
        table.end(&backlogs.tails);
        backlogs.heads[1] = 2;
        table.begin();
        assert_eq!(choose(&mut table, &backlogs, 78, 1, Some(3)), 3);
        assert_eq!(choose(&mut table, &backlogs, 77, 1, Some(2)), 1, "not in the middle of a batch");
    }

    #[test]
    fn a_filter_is_asked_for_when_the_flow_is_where_its_consumer_is() {
        let (mut table, mut backlogs) = (FlowTable::new(8), Backlogs { heads: [0; 8], tails: [0; 8] });
        let mut asks = |table: &mut FlowTable, wanted| {
            let worker = send(table, &mut backlogs, 1, wanted);
            backlogs.heads[..].copy_from_slice(&backlogs.tails);
            (worker, table.take_ask())
        };
        assert_eq!(asks(&mut table, Some(2)), (2, None), "there are no filters");
        table.ask_for_filters(3);
        let (worker, Some(at)) = asks(&mut table, Some(2)) else { panic!("not asked for") };
        assert_eq!((worker, asks(&mut table, Some(2))), (2, (2, Some(at))), "until it has been");
        table.asked(at);
        assert_eq!(asks(&mut table, Some(2)), (2, None));
        assert_eq!(asks(&mut table, Some(3)), (3, None), "where it arrives");
        assert_eq!(asks(&mut table, None), (1, None), "not known to be consumed anywhere");
        assert_eq!(asks(&mut table, Some(1)), (1, Some(at)), "as RPS has it, and yet another queue's");
        table.asked(at);
        table.may_ask(78);
        assert_eq!(asks(&mut table, Some(1)), (1, None));
        table.may_ask(77);
        assert_eq!(asks(&mut table, Some(1)), (1, Some(at)));
        table.asked(at);
        table.batch += ASK_AGAIN;
        assert_eq!(asks(&mut table, Some(1)), (1, Some(at)), "again, after a while");
        assert_eq!((table.last_batch(77), table.last_batch(78)), (Some(table.batch), None));
        // One without an entry gets one, though it goes where RPS puts it.
        let mut table = FlowTable::new(8);
        table.ask_for_filters(3);
        assert!(matches!(asks(&mut table, Some(1)), (1, Some(_))));
    }

    const WORKERS: usize = 3;
    const FLOWS: usize = 6;

    /// What happens between two packets, or two batches.
    #[derive(Clone, Debug)]
    enum Step {
        /// The next packet of a flow is in the batch.
        Packet(usize),
        /// The batch is pushed, behind a packet of another queue if so.
        Push(bool),
        /// A worker processes so many.
        Work(usize, usize),
        /// A flow is consumed elsewhere, or it is not known where.
        Wanted(usize, Option<u16>),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (0..FLOWS).prop_map(Step::Packet),
            2 => any::<bool>().prop_map(Step::Push),
            2 => (0..WORKERS, 1..5usize).prop_map(|(worker, n)| Step::Work(worker, n)),
            2 => (0..FLOWS, prop::option::of(0..WORKERS as u16)).prop_map(|(flow, to)| Step::Wanted(flow, to)),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        /// Whatever the steps, each flow's packets are processed in order.
        #[test]
        fn no_flow_overtakes_itself(entries in 1..8u32, filters: bool, steps in prop::collection::vec(step(), 0..120)) {
            let mut table = FlowTable::new(entries);
            if filters {
                table.ask_for_filters(0);
            }
            let mut wanted = [None; FLOWS];
            let (mut sent, mut processed) = ([0u32; FLOWS], [0u32; FLOWS]);
            // Of each worker, with packets of other queues as `None`; and those that it has
            // processed.
            let mut backlogs: [VecDeque<Option<(usize, u32)>>; WORKERS] = Default::default();
            let (mut heads, mut pushed, mut tails) = ([0u64; WORKERS], [0u64; WORKERS], [0u64; WORKERS]);
            let mut batch: Vec<(usize, (usize, u32))> = Vec::new();
            table.begin();
            for step in steps.into_iter().chain([Step::Push(false)]) {
                match step {
                    Step::Packet(flow) => {
                        let is_done = |worker: u16, tail: u64| heads[usize::from(worker)] >= tail;
                        let rps = (flow % WORKERS) as u16;
                        let hash = 1 + (flow as u32).wrapping_mul(0x3c6e_f35f);
                        let choice = Choice { rps, wanted: wanted[flow], tails: &tails, is_done };
                        let worker = table.choose(hash, &choice);
                        batch.push((worker.into(), (flow, sent[flow])));
                        sent[flow] += 1;
                    }
                    Step::Push(behind) => {
                        for (worker, packet) in batch.drain(..) {
                            if behind {
                                backlogs[worker].push_back(None);
                                pushed[worker] += 1;
                            }
                            backlogs[worker].push_back(Some(packet));
                            pushed[worker] += 1;
                            tails[worker] = pushed[worker];
                        }
                        table.end(&tails);
                        table.begin();
                    }
                    Step::Work(worker, n) => {
                        for _ in 0..n {
                            let Some(packet) = backlogs[worker].pop_front() else { break };
                            heads[worker] += 1;
                            let Some((flow, number)) = packet else { continue };
                            prop_assert_eq!(number, processed[flow], "flow {}", flow);
                            processed[flow] += 1;
                        }
                    }
                    Step::Wanted(flow, to) => wanted[flow] = to,
                }
            }
            for (flow, number) in backlogs.into_iter().flatten().flatten() {
                prop_assert!(number >= processed[flow]);
            }
        }
    }
}
