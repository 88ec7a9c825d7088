//! By which TX queue packets leave.

use std::sync::{Arc, Mutex};

use super::*;
use crate::ip::testing::context;
use crate::qdisc::{DevParams, Origin, Spec};
use crate::skb::{BATCH, VlanProto};
use crate::stack::dev_tx::DevTx;
use crate::stack::device::{QueueStats, Reaped, TxQueue};
use crate::stack::tx_queue::{NetdevQueue, TxWake};
use crate::steer::{TxChoice, XpsMaps};
use crate::sync::AtomicBool;

/// Queue and id of each packet that was sent.
type Sent = Arc<Mutex<Vec<(u16, u8)>>>;

/// A TX queue that takes everything, and notes it.
struct Noting(u16, Sent, Arc<Mutex<Vec<Vec<u8>>>>);

impl TxQueue for Noting {
    fn reap(&mut self, _: &mut SoftnetData) -> Reaped {
        Reaped { freed: 0, held: 0, room: BATCH }
    }

    fn tx_burst(&mut self, ctx: &mut SoftnetData, batch: &mut Batch) -> usize {
        self.2.lock().unwrap().extend(batch.as_slice().iter().map(|skb| skb.data().to_vec()));
        let sent = ids(ctx, batch);
        self.1.lock().unwrap().extend(sent.iter().map(|id| (self.0, *id)));
        sent.len()
    }

    fn kick(&mut self, _: &mut SoftnetData) -> bool {
        false
    }

    fn stats(&self) -> Arc<QueueStats> {
        Arc::default()
    }

    fn held(&self) -> usize {
        0
    }

    fn close(self: Box<Self>, _: &mut SoftnetData) {}
}

/// No thread waits.
struct Nothing;

impl TxWake for Nothing {
    fn run_at(&self, _: u64) {}
    fn made_room(&self) {}
}

const QUEUES: u16 = 4;

/// A device with four TX queues.
struct Bench {
    ctx: SoftnetData,
    tx: DevTx<Nothing>,
    sent: Sent,
    /// The frames of these.
    frames: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl Bench {
    fn new(cpus: &[Vec<u32>], rxqs: &[Vec<u16>], single: bool) -> Self {
        let (ctx, sent) = (context(), Sent::default());
        let frames = Arc::<Mutex<Vec<Vec<u8>>>>::default();
        let queue = |number: u16| {
            let noting = Box::new(Noting(number, sent.clone(), frames.clone()));
            Arc::new(NetdevQueue::new(ctx.region(), 0, None, noting, 1000, Nothing))
        };
        let queues = (0..QUEUES).map(queue).collect();
        let xps = XpsMaps::new(QUEUES, cpus, rxqs).unwrap();
        Bench {
            tx: DevTx { queues, single: AtomicBool::new(single), shaped: AtomicBool::new(false), xps },
            ctx,
            sent,
            frames,
        }
    }

    /// Sends packets `ids` on CPU 1: by which queue each left.
    fn send(&mut self, choice: TxChoice, ids: std::ops::Range<u8>) -> Vec<(u16, u8)> {
        let mut batch = batch(&mut self.ctx, ids);
        self.xmit(choice, &mut batch)
    }

    fn xmit(&mut self, choice: TxChoice, batch: &mut Batch) -> Vec<(u16, u8)> {
        self.tx.xmit(&mut self.ctx, 0, choice, Origin::Forwarded, || 1, batch);
        assert!(batch.is_empty());
        std::mem::take(&mut *self.sent.lock().unwrap())
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.tx.queues.iter().for_each(|queue| queue.close(&mut self.ctx));
        self.ctx.drain();
    }
}

#[test]
fn without_maps_it_is_the_number_of_the_rx_queue_or_the_choice() {
    let mut bench = Bench::new(&[], &[], false);
    for queue in [0, 1, 3, 4, 7, 9, u16::MAX] {
        for choice in [TxChoice::RxQueue(queue), TxChoice::Queue(queue)] {
            assert_eq!(bench.send(choice, 0..2), [(queue % QUEUES, 0), (queue % QUEUES, 1)], "{choice:?}");
        }
    }
    assert_eq!(
        bench.tx.pick(Some(6), || unreachable!("no map asks for it"), || unreachable!("nor for it")),
        2
    );
    assert_eq!(bench.tx.pick(None, || unreachable!("no map asks for it"), || u32::MAX), 3);
}

#[test]
fn under_a_root_discipline_all_leave_by_queue_0() {
    let mut bench = Bench::new(&[vec![], vec![1]], &[vec![], vec![], vec![0, 1, 2, 3]], true);
    for queue in 0..6 {
        for choice in [TxChoice::RxQueue(queue), TxChoice::Queue(queue)] {
            assert_eq!(bench.send(choice, 0..1), [(0, 0)], "{choice:?}");
        }
        assert_eq!(bench.tx.pick(Some(queue), || 1, || u32::MAX), 0);
    }
}

#[test]
fn maps_lead_what_was_received_and_leave_what_a_sender_chose() {
    // RX queue 0: TX queue 2; others by the CPU, which is 1: TX queue 3.
    let mut bench = Bench::new(&[vec![], vec![], vec![], vec![1]], &[vec![], vec![], vec![0]], false);
    assert_eq!(bench.send(TxChoice::RxQueue(0), 0..2), [(2, 0), (2, 1)]);
    assert_eq!(bench.send(TxChoice::RxQueue(1), 0..2), [(3, 0), (3, 1)]);
    assert_eq!(bench.send(TxChoice::Queue(1), 0..2), [(1, 0), (1, 1)]);
}

/// Several TX queues for one RX queue: each packet goes by its flow hash, and those of a flow stay in order.
#[test]
fn of_several_queues_in_a_map_the_flow_hash_says_which() {
    let all = || vec![0];
    let mut bench = Bench::new(&[], &[all(), all(), all(), all()], false);
    let mut batch = batch(&mut bench.ctx, 0..64);
    // Flow n is that of the packets with n modulo 5.
    batch.as_mut_slice().iter_mut().zip(0u32..).for_each(|(skb, id)| {
        skb.head_mut().hash = (id % 5 + 1) * 0x2fff_ffff;
    });
    let sent = bench.xmit(TxChoice::RxQueue(0), &mut batch);
    assert_eq!(sent.len(), 64);
    let mut used = [false; QUEUES as usize];
    for flow in 0..5 {
        let of_flow: Vec<_> = sent.iter().filter(|(_, id)| id % 5 == flow).collect();
        let queue = of_flow[0].0;
        assert!(of_flow.is_sorted_by_key(|(_, id)| id) && of_flow.iter().all(|(by, _)| *by == queue));
        used[usize::from(queue)] = true;
    }
    assert_eq!(used, [true; QUEUES as usize]);
}

/// Whatever the way to the ring, a tag that the head has is in the frame there.
#[test]
fn tags_of_heads_leave_in_frames() {
    for spec in ["noqueue", "pfifo", "pfifo_fast"] {
        let mut bench = Bench::new(&[], &[], false);
        let qdisc = spec.parse::<Spec>().unwrap().build(&DevParams { mtu: 1500, tx_queue_len: 100 }).unwrap();
        bench.tx.queues[1].graft(&mut bench.ctx, 0, qdisc);
        let mut batch = batch(&mut bench.ctx, 0..4);
        for skb in batch.as_mut_slice().iter_mut().skip(2) {
            crate::vlan::set(skb.head_mut(), VlanProto::Dot1q, 0x2007);
        }
        assert_eq!(bench.xmit(TxChoice::Queue(1), &mut batch), [(1, 0), (1, 1), (1, 2), (1, 3)]);
        let frames = std::mem::take(&mut *bench.frames.lock().unwrap());
        let tags: Vec<_> = frames.iter().map(|frame| (frame.len(), frame[12..16].to_vec())).collect();
        let (untagged, tagged) = ((60, vec![0; 4]), (64, vec![0x81, 0, 0x20, 7]));
        assert_eq!(tags, [untagged.clone(), untagged, tagged.clone(), tagged]);
    }
}
