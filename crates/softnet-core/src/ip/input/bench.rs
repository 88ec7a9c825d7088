//! What the tests of both families need: the fast path with tables, and the books of what became of a batch.

use super::*;
use crate::fold::FoldKey;
use crate::skb::{CacheSizes, HEADROOM, HeapMemory, Region};

pub(super) const MAC: MacAddr = [2, 0, 0, 0, 0, 1];
pub(super) const NEXT: MacAddr = [2, 0, 0, 0, 0, 9];
pub(super) const OUT: MacAddr = [2, 0, 0, 0, 1, 1];

pub(super) struct Bench {
    pub(super) ctx: SoftnetData,
    pub(super) tables: Tables,
    out: Outcome,
    /// Datagrams for sockets so far.
    pub(super) local: usize,
    /// Packets come with partial checksums.
    pub(super) partial_csum: bool,
}

impl Bench {
    /// Without a route.
    pub(super) fn new() -> Self {
        let region = Region::new(Box::new(HeapMemory::new(Region::bytes(256, 256))), 256, 256).unwrap();
        Bench {
            ctx: SoftnetData::new(region, CacheSizes::default()),
            tables: Tables::new(FoldKey::new([1, 2])),
            out: Outcome::default(),
            local: 0,
            partial_csum: false,
        }
    }

    fn skb(&mut self, bytes: &[u8]) -> Skb {
        let mut frame = self.ctx.alloc_frame().unwrap();
        frame.bytes_mut()[HEADROOM..][..bytes.len()].copy_from_slice(bytes);
        self.ctx.build_skb(frame, HEADROOM, bytes.len()).unwrap()
    }

    /// Runs one batch. Returns the packets sent (device, bytes) and the exceptions, and checks conservation.
    pub(super) fn run(&mut self, packets: &[Vec<u8>]) -> (Vec<(u16, Vec<u8>)>, Vec<Exception>) {
        let mut batch = Batch::new();
        for bytes in packets {
            let skb = self.skb(bytes);
            batch.push(skb).unwrap();
        }
        let dropped = self.ctx.stats().dropped();
        let partial_csum = self.partial_csum;
        let ingress = Ingress { dev: 0, mac: MAC, partial_csum, rp_filter: RpFilter::Off };
        ip_input(&mut self.ctx, &self.tables, (&ingress, 0), &mut batch, &mut self.out);
        assert!(batch.is_empty());
        let mut sent = vec![];
        let ctx = &mut self.ctx;
        self.out.tx.flush(|dev, batch| {
            for skb in batch.drain() {
                sent.push((dev, skb.data().to_vec()));
                ctx.free_skb(skb);
            }
        });
        let mut odd = vec![];
        for (skb, why) in self.out.slow.drain() {
            odd.push(why);
            self.ctx.free_skb(skb);
        }
        let mut local = 0;
        for transport in Transport::ALL {
            for skb in self.out.local[transport].drain() {
                let protocol = if skb.data()[14] >> 4 == 4 { skb.data()[23] } else { skb.data()[20] };
                assert_eq!((skb.head().l3, protocol), (14, transport.number()));
                self.ctx.free_skb(skb);
                local += 1;
            }
        }
        self.local += local;
        let dropped = self.ctx.stats().dropped() - dropped;
        assert_eq!(packets.len() as u64, (sent.len() + odd.len() + local) as u64 + dropped);
        (sent, odd)
    }

    pub(super) fn only_drop(&mut self, packet: Vec<u8>) -> DropReason {
        let count =
            |b: &Bench| DropReason::ALL.iter().map(|r| b.ctx.stats().drops(0, *r)).collect::<Vec<_>>();
        let before = count(self);
        assert_eq!(self.run(&[packet]), (vec![], vec![]));
        let after = count(self);
        DropReason::ALL[(0..after.len()).find(|&i| after[i] != before[i]).expect("a drop")]
    }
}
