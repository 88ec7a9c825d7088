//! `softnet bench flow-hash`: what it costs to find out which flow a packet is of, 64 at a time.

use std::hint::black_box;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Instant;

use clap::Args;
use serde_json::json;
use softnet_core::SoftnetData;
use softnet_core::skb::{BATCH, Batch, CacheSizes, Region};
use softnet_core::steer::{flow_hash_of, skb_get_hashes};
use softnet_dev::memfd::MemfdMemory;

use super::harness::{Case, alternate};
use super::report::{Bound, REFERENCE, Report, Row};
use super::{Common, pin};

pub(super) const HELP: &str = "\
Nanoseconds for each packet's flow hash (Toeplitz, over addresses and ports), of batches of 64 packets in the cache. \
Its fields are looked for within that time, and it is written to the packet's head. What it takes to clear the hashes \
of the round before is taken off.

  ipv4         UDP over IPv4
  ipv6         UDP over IPv6
  mixed        of both, in an order that no branch predictor knows
  vlan         UDP over IPv4, behind a VLAN tag";

#[derive(Args, Debug)]
pub(crate) struct FlowHash {
    #[command(flatten)]
    pub(super) common: Common,
}

/// UDP of flow `flow`, and its flow hash.
fn frame(flow: u16, v6: bool, vlan: bool) -> (Vec<u8>, u32) {
    let mut frame = vec![2; 12];
    if vlan {
        frame.extend([0x81, 0, 0, 7]);
    }
    let ports = [flow.to_be_bytes(), 53u16.to_be_bytes()];
    let [high, low] = flow.to_be_bytes();
    let ends = match v6 {
        true => {
            frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 26, 17, 64]);
            let of = |host| Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, flow, host);
            let (src, dst) = (of(1), of(2));
            frame.extend([src.octets(), dst.octets()].concat());
            (src.into(), dst.into())
        }
        false => {
            frame.extend([8, 0, 0x45, 0, 0, 46, 0, 0, 0x40, 0, 64, 17, 0, 0]);
            let of = |net| Ipv4Addr::new(10, net, high, low);
            let (src, dst) = (of(1), of(2));
            frame.extend([src.octets(), dst.octets()].concat());
            (src.into(), dst.into())
        }
    };
    frame.extend(ports.concat());
    frame.resize(frame.len() + 22, 0);
    let ports = [ports[0][0], ports[0][1], ports[1][0], ports[1][1]];
    (frame, flow_hash_of(ends.0, ends.1, ports))
}

impl FlowHash {
    pub(crate) fn run(&self) -> Result<Report, String> {
        let cpu = pin(self.common.cpu)?;
        let memory =
            MemfdMemory::new(Region::bytes(1024, 1024)).map_err(|e| format!("packet memory: {e}"))?;
        let region = Region::new(Box::new(memory), 1024, 1024).map_err(|e| e.to_string())?;
        let mut ctx = SoftnetData::new(region.clone(), CacheSizes::default());
        // A turn of xorshift for each packet says of which family it is.
        let mut state = 0x9e37_79b9u32;
        let mut coin = move || {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            state & 0x100 != 0
        };
        let rounds = if self.common.quick { 20_000 } else { 100_000 };
        let mut cases = Vec::new();
        for name in ["ipv4", "ipv6", "mixed", "vlan"] {
            let mut batch = Batch::new();
            let mut hashes = Vec::with_capacity(BATCH);
            for flow in 0..BATCH as u16 {
                let v6 = name == "ipv6" || name == "mixed" && coin();
                let (bytes, hash) = frame(flow * 257, v6, name == "vlan");
                let mut skb = ctx.alloc_skb().ok_or("packet memory is full")?;
                skb.put(bytes.len()).ok_or("a frame is too small")?.copy_from_slice(&bytes);
                // There is room: it was empty.
                let _ = batch.push(skb);
                hashes.push(hash);
            }
            let mut owner = Owner { ctx: SoftnetData::new(region.clone(), CacheSizes::default()), batch };
            let measure = move || {
                let batch = &mut owner.batch;
                let mut time = |of: fn(&mut Batch)| {
                    let start = Instant::now();
                    (0..rounds).for_each(|_| of(black_box(&mut *batch)));
                    start.elapsed().as_nanos() as f64 / (rounds * BATCH) as f64
                };
                let forgetting = time(forget);
                let ns = time(|batch| {
                    forget(batch);
                    skb_get_hashes(batch);
                }) - forgetting;
                if batch.as_slice().iter().zip(&hashes).any(|(skb, hash)| skb.head().hash != *hash) {
                    return Err(format!("{name}: a hash is wrong"));
                }
                Ok(vec![("ns_per_packet", ns)])
            };
            let row = Row::new(name, vec![("batch", json!(BATCH))]);
            cases.push(Case { row, measure: Box::new(measure) });
        }
        let mut report = alternate("flow-hash", Some(cpu), self.common.rounds(), cases)?;
        for case in ["ipv4", "ipv6"] {
            report
                .bound(case, "ns_per_packet", Bound::AtMost(5.0))
                .on(&REFERENCE)
                .meaning("The flow hash of a packet takes less than this.");
        }
        Ok(report)
    }
}

/// Hashes that are known are not computed.
fn forget(batch: &mut Batch) {
    batch.as_mut_slice().iter_mut().for_each(|skb| skb.head_mut().hash = 0);
}

/// A batch, freed at the end.
struct Owner {
    ctx: SoftnetData,
    batch: Batch,
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.batch.drain().for_each(|skb| self.ctx.free_skb(skb));
    }
}
