//! What an RX queue does with a batch: which packets go to which worker's backlog.
//!
//! A [`Plan`] says what was set; [`Steering`] is that with what the queue remembers of its flows.
//! It belongs to the thread that polls the queue, which [sorts](Steering::sort) each batch into
//! [`Lists`], pushes them, says so, and receives by itself what is left in the batch.
//!
//! Invariant: packets of a flow go to one worker as long as the plan is the same, but for moves
//! under the switch rule of [`rfs`](super::rfs). A plan may be replaced once everything that the
//! old one put on backlogs has been processed.

use super::rfs::{Choice, FlowTable};
use super::{FlowKey, scale, skb_get_hashes};
use crate::skb::{Batch, Skb};

/// What an RX queue does with what it receives.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Plan {
    /// The thread that polls it goes on with it.
    #[default]
    None,
    /// All goes to this worker (`processing_cpu`): whole lists, so the queue's packets stay in
    /// order.
    HandOff(u16),
    /// Flows are spread over workers by their hash (`rps_cpus`). Packets that are of no flow stay.
    Rps {
        /// The workers.
        workers: Box<[u16]>,
        /// Entries of the queue's flow table (`rps_flow_cnt`), for flows that follow their
        /// consumers; 0: none does.
        flows: u32,
    },
}

impl Plan {
    /// The workers that it steers to; flows that follow their consumers may go to any.
    pub fn workers(&self) -> &[u16] {
        match self {
            Plan::None => &[],
            Plan::HandOff(worker) => std::slice::from_ref(worker),
            Plan::Rps { workers, .. } => workers,
        }
    }
}

/// What choosing a worker depends on.
pub trait Workers {
    /// Whether the backlog of `worker` has come to `tail`, and nothing of it is left to other
    /// threads.
    fn is_done(&self, worker: u16, tail: u64) -> bool;

    /// The worker that is near the consumer of the flow with hash `hash`, if that is known.
    fn wanted(&self, hash: u32) -> Option<u16>;
}

/// The most flows of a batch that filters are asked for.
const ASKS: usize = 8;

/// A flow whose consumer is near another worker than the one that polls its RX queue: a filter
/// should have it arrive at one of that worker's queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// The flow.
    pub key: FlowKey,
    /// Its hash.
    pub hash: u32,
    /// The worker near its consumer.
    pub worker: u16,
}

/// A [`Plan`], and what the RX queue knows of its flows.
pub struct Steering {
    plan: Plan,
    flows: Option<FlowTable>,
    /// For each worker what its backlog's tail was when the queue last put something there.
    tails: Box<[u64]>,
    asks: Vec<Ask>,
}

impl Steering {
    /// Of a queue that has put nothing on any backlog, in a stack with so many workers.
    pub fn new(plan: Plan, workers: usize) -> Self {
        let flows = match plan {
            Plan::Rps { flows, .. } if flows > 0 => Some(FlowTable::new(flows)),
            _ => None,
        };
        Steering { plan, flows, tails: vec![0; workers].into(), asks: Vec::new() }
    }

    /// The device takes filters of single flows, and the queue is polled by `worker`: from now on
    /// it says for which flows one is wanted ([`next_ask`](Self::next_ask)). Without effect on a plan whose
    /// flows do not follow their consumers.
    pub fn ask_for_filters(&mut self, worker: u16) {
        if let Some(flows) = &mut self.flows {
            flows.ask_for_filters(worker);
            self.asks.reserve_exact(ASKS);
        }
    }

    /// Whether its flows follow their consumers.
    pub fn follows(&self) -> bool {
        self.flows.is_some()
    }

    /// A flow that a filter is wanted for; most often none. One that no filter can be asked for now
    /// [may be](Self::may_ask) said again.
    #[inline]
    pub fn next_ask(&mut self) -> Option<Ask> {
        self.asks.pop()
    }

    /// A filter may be asked for the flow with hash `hash` again, with its next packet.
    pub fn may_ask(&mut self, hash: u32) {
        if let Some(flows) = &mut self.flows {
            flows.may_ask(hash);
        }
    }

    /// The number of the last batch that packets of the flow with hash `hash` were in, if it is
    /// followed: as long as that changes, the flow is not quiet.
    pub fn last_batch(&self, hash: u32) -> Option<u64> {
        self.flows.as_ref()?.last_batch(hash)
    }

    /// For each worker what its backlog has to have come to for all that the queue put there.
    pub fn tails(&self) -> &[u64] {
        &self.tails
    }

    /// What was set.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Flows that went to another worker, to follow their consumers.
    pub fn moves(&self) -> u64 {
        self.flows.as_ref().map_or(0, |flows| flows.moves)
    }

    /// Whether everything that the queue put on backlogs has been processed.
    pub fn is_done(&self, workers: &impl Workers) -> bool {
        (0u16..).zip(&self.tails).all(|(worker, tail)| *tail == 0 || workers.is_done(worker, *tail))
    }

    /// Takes the packets of `batch` that go to workers into `lists`, which are empty; the others
    /// stay. The lists are to be pushed, each that was is to be [told](Self::pushed), and then the
    /// [end](Self::end).
    #[inline]
    pub fn sort(&mut self, batch: &mut Batch, lists: &mut Lists, workers: &impl Workers) {
        match &self.plan {
            Plan::None => {}
            Plan::HandOff(worker) => lists.append(*worker, batch),
            Plan::Rps { workers: to, .. } => {
                let mut stays = Batch::new();
                if let Some(flows) = &mut self.flows {
                    flows.begin();
                }
                skb_get_hashes(batch);
                for skb in batch.drain() {
                    let hash = skb.head().hash;
                    let Some(&rps) = to.get(scale(hash, to.len())).filter(|_| hash != 0) else {
                        // No more than came.
                        let _ = stays.push(skb);
                        continue;
                    };
                    let worker = match &mut self.flows {
                        None => rps,
                        Some(flows) => {
                            let is_done = |worker, tail| workers.is_done(worker, tail);
                            let wanted = workers.wanted(hash);
                            let choice = Choice { rps, wanted, tails: &self.tails, is_done };
                            let worker = flows.choose(hash, &choice);
                            if let Some(at) = flows.take_ask() {
                                ask(&mut self.asks, flows, at, (&skb, hash, worker));
                            }
                            worker
                        }
                    };
                    lists.push(worker, skb);
                }
                batch.append(&mut stays);
            }
        }
    }

    /// A list is on the backlog of `worker`, in front of `tail`.
    #[inline]
    pub fn pushed(&mut self, worker: u16, tail: u64) {
        if let Some(of) = self.tails.get_mut(usize::from(worker)) {
            *of = tail;
        }
    }

    /// All lists of the batch were pushed, or dropped.
    #[inline]
    pub fn end(&mut self) {
        if let Some(flows) = &mut self.flows {
            flows.end(&self.tails);
        }
    }
}

/// Takes note that a filter should have the flow of `skb` arrive near `worker`.
#[cold]
fn ask(asks: &mut Vec<Ask>, flows: &mut FlowTable, at: u32, (skb, hash, worker): (&Skb, u32, u16)) {
    let Some(key) = FlowKey::of(skb.data()) else { return flows.asked(at) };
    // If there are too many, with one of its next packets.
    if asks.len() < ASKS {
        asks.push(Ask { key, hash, worker });
        flows.asked(at);
    }
}

/// Lists of packets on their way to workers, of one thread.
pub struct Lists {
    of: Box<[Batch]>,
    /// Those that are not empty.
    used: Vec<u16>,
}

impl Lists {
    /// Empty ones, for so many workers.
    pub fn new(workers: usize) -> Self {
        Lists { of: (0..workers).map(|_| Batch::new()).collect(), used: Vec::with_capacity(workers) }
    }

    #[inline]
    fn list(&mut self, worker: u16) -> &mut Batch {
        let list = &mut self.of[usize::from(worker)];
        if list.is_empty() {
            self.used.push(worker);
        }
        list
    }

    /// All of `batch` is for one worker.
    #[inline]
    fn append(&mut self, worker: u16, batch: &mut Batch) {
        if !batch.is_empty() {
            self.list(worker).append(batch);
        }
    }

    #[inline]
    fn push(&mut self, worker: u16, skb: Skb) {
        // There is room for all that one batch holds.
        if let Err(skb) = self.list(worker).push(skb) {
            drop(skb);
        }
    }

    /// Gives each list that is not empty to `each`, which must leave it empty.
    #[inline]
    pub fn drain(&mut self, mut each: impl FnMut(u16, &mut Batch)) {
        for worker in self.used.drain(..) {
            each(worker, &mut self.of[usize::from(worker)]);
        }
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;
    use crate::SoftnetData;
    use crate::ip::testing::context;

    struct Idle;

    impl Workers for Idle {
        fn is_done(&self, _: u16, _: u64) -> bool {
            true
        }
        fn wanted(&self, hash: u32) -> Option<u16> {
            (hash == 0xffff_0000).then_some(2)
        }
    }

    fn batch(ctx: &mut SoftnetData, hashes: &[u32]) -> Batch {
        let mut batch = Batch::new();
        for hash in hashes {
            let mut skb = ctx.alloc_skb().unwrap();
            skb.head_mut().hash = *hash;
            batch.push(skb).unwrap();
        }
        batch
    }

    /// What `plan` does with a batch of these hashes: the workers' lists, and what stays.
    fn sorted(plan: Plan, hashes: &[u32]) -> (Vec<(u16, Vec<u32>)>, Vec<u32>) {
        let mut ctx = context();
        let (mut steering, mut lists) = (Steering::new(plan, 4), Lists::new(4));
        let mut batch = batch(&mut ctx, hashes);
        steering.sort(&mut batch, &mut lists, &Idle);
        let mut free = |batch: &mut Batch| {
            let hashes = batch.as_slice().iter().map(|skb| skb.head().hash).collect();
            batch.drain().for_each(|skb| ctx.free_skb(skb));
            hashes
        };
        let mut to = Vec::new();
        lists.drain(|worker, list| to.push((worker, free(list))));
        (to, free(&mut batch))
    }

    #[test]
    fn hand_off_takes_all_and_none_takes_nothing() {
        assert_eq!(sorted(Plan::HandOff(3), &[0, 5, 0, 9]), (vec![(3, vec![0, 5, 0, 9])], vec![]));
        assert_eq!(sorted(Plan::HandOff(3), &[]), (vec![], vec![]));
        assert_eq!(sorted(Plan::None, &[1, 2]), (vec![], vec![1, 2]));
    }

    #[test]
    fn rps_spreads_flows_by_the_high_bits_and_keeps_what_is_of_none() {
        let plan = |flows| Plan::Rps { workers: [3, 1].into(), flows };
        let hashes = [1, 0xffff_0000, 0, 0x7fff_ffff, 0x8000_0000, 0];
        let lists = vec![(3, vec![1, 0x7fff_ffff]), (1, vec![0xffff_0000, 0x8000_0000])];
        assert_eq!(sorted(plan(0), &hashes), (lists, vec![0, 0]));
        let lists = vec![(3, vec![1, 0x7fff_ffff]), (2, vec![0xffff_0000]), (1, vec![0x8000_0000])];
        assert_eq!(sorted(plan(8), &hashes), (lists, vec![0, 0]), "one follows its consumer");
        let none = Plan::Rps { workers: [].into(), flows: 0 };
        assert_eq!(sorted(none, &[7]), (vec![], vec![7]));
    }

    /// Frames of UDP whose hash is `0xffff_0000`, from as many ports, and one that is no flow's.
    #[test]
    fn filters_are_asked_for_flows_with_ports() {
        let mut ctx = context();
        let (mut steering, mut lists) =
            (Steering::new(Plan::Rps { workers: [3, 1].into(), flows: 8 }, 4), Lists::new(4));
        let mut sort = |steering: &mut Steering, frame: &[u8]| {
            let mut skb = ctx.alloc_skb().unwrap();
            skb.put(frame.len()).unwrap().copy_from_slice(frame);
            skb.head_mut().hash = 0xffff_0000;
            let mut batch = Batch::from(skb);
            steering.sort(&mut batch, &mut lists, &Idle);
            lists.drain(|_, list| list.drain().for_each(|skb| ctx.free_skb(skb)));
            steering.end();
            std::iter::from_fn(|| steering.next_ask()).collect::<Vec<_>>()
        };
        let mut udp = vec![2; 12];
        udp.extend([8, 0, 0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 0, 5, 0, 53]);
        assert_eq!(sort(&mut steering, &udp), [], "the device takes none");
        steering.ask_for_filters(1);
        let ask = Ask { key: FlowKey::of(&udp).unwrap(), hash: 0xffff_0000, worker: 2 };
        assert_eq!(sort(&mut steering, &udp), [ask]);
        assert_eq!(sort(&mut steering, &udp), [], "it was");
        steering.may_ask(0xffff_0000);
        udp[23] = 1;
        assert_eq!(sort(&mut steering, &udp), [], "there can be none");
        udp[23] = 17;
        assert_eq!(sort(&mut steering, &udp), [], "and it is not looked at again");
        assert_eq!((steering.last_batch(0xffff_0000), steering.follows()), (Some(5), true));
        let mut hands_off = Steering::new(Plan::HandOff(2), 4);
        hands_off.ask_for_filters(1);
        assert_eq!((sort(&mut hands_off, &udp), hands_off.follows()), (vec![], false));
    }
}
