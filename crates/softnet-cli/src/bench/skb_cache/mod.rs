//! `softnet bench skb-cache`: what an allocation and a free cost, in bulks of 32, beside the system
//! allocator and mimalloc; and with `--app nat`, what the caches are worth to a router.

mod nat;
mod published;
mod remote;
mod streams;

use std::alloc::{GlobalAlloc, System};
use std::hint::black_box;
use std::time::Instant;

use clap::{Args, ValueEnum};
use mimalloc::MiMalloc;
use serde_json::json;
use softnet_core::SoftnetData;
use softnet_core::skb::{Batch, CacheSizes, DropReason, HEADROOM, HeadBulk, Region};
use softnet_dev::memfd::MemfdMemory;
use softnet_testkit::Block;

use super::harness::{Case, alternate};
use super::report::{Bound, REFERENCE, Report, Row};
use super::{Common, cpus, pin};

/// Allocations in a bulk, and the size of what the allocators are asked for: a head (128 bytes)
/// doubled, as in other stacks' figures for a packet's metadata.
const BULK: usize = HeadBulk::SIZE;
const SIZE: usize = 256;

pub(super) const HELP: &str = "\
Nanoseconds for each pair of an allocation and a free, 32 at a time.

  raw          a buffer head, not initialised
  skb          a head initialised, a frame attached; both freed, with a reason that is counted
  system       256 bytes from the system allocator
  mimalloc     256 bytes from mimalloc
  remote       as skb, but another thread frees, on another CPU, one by one: with skb_defer_max 0 it keeps what it freed,
               and the pool gives it back by chunks; with 128 it goes home (the time is that of both threads side by side)

--app nat: what caches of heads are worth where they were proposed. One worker on one core forwards full-sized packets of \
eight flows from one VLAN to another and hides their sources, between emulated NICs that verify checksums and cut TCP. \
What comes out is verified. What the senders, the cards and the far end take is measured apart (wire_ns_per_packet) and is not in the other figures, as machines and cards of their own would not be.

  none         each head comes from the pool of all threads, and goes back there, by itself
  separate     two arrays of 64, one to allocate from and one to free to, as first posted
  unified-64   one array of 64, refilled by 16, flushed by 32, as merged in 2021
  unified-128  one array of 128, refilled and flushed by 32, as today

  raw          without a router, from one card to the other: what each packet costs the drivers' halves at the least

  gro          off; frags (one packet with the payload of up to 45; UDP is cut in software); list (of whole packets)
  tso          the NIC cuts TCP; else the stack does
  rx_csum      the NIC has verified checksums; else GRO does
  frames       the cache of frames; none: each comes from the pool by itself, as from a queue's pool without recycling
  burst        packets that arrive at a time; 1: the next when the last is out, ns_per_packet is its latency, \
the wire's part included";

#[derive(Args, Debug)]
pub(crate) struct SkbCache {
    #[command(flatten)]
    pub(super) common: Common,
    /// Measure caches where they are used: in a router that translates addresses
    #[arg(long, value_enum)]
    app: Option<App>,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq)]
enum App {
    /// NAT between VLANs, with GRO and GSO
    Nat,
}

/// ns per allocate-and-free pair of `bulk`, which does [`BULK`] of them.
fn per_pair(bulks: usize, mut bulk: impl FnMut()) -> f64 {
    let start = Instant::now();
    for _ in 0..bulks {
        bulk();
    }
    start.elapsed().as_nanos() as f64 / (bulks * BULK) as f64
}

/// [`BULK`] blocks from `allocator`, one byte of each written, and back.
fn blocks(allocator: &impl GlobalAlloc) {
    let mut held: [Option<Block<_>>; BULK] = [const { None }; BULK];
    for slot in &mut held {
        *slot = Block::new(allocator, SIZE);
    }
    drop(black_box(held));
}

impl SkbCache {
    pub(crate) fn run(&self) -> Result<Report, String> {
        match self.app {
            None => self.run_alone(),
            Some(App::Nat) => nat::run(&self.common),
        }
    }

    fn run_alone(&self) -> Result<Report, String> {
        let cpu = pin(self.common.cpu)?;
        let memory =
            MemfdMemory::new(Region::bytes(1024, 1024)).map_err(|e| format!("packet memory: {e}"))?;
        let region = Region::new(Box::new(memory), 1024, 1024).map_err(|e| e.to_string())?;
        let context = || SoftnetData::new(region.clone(), CacheSizes::default());
        let bulks = if self.common.quick { 20_000 } else { 200_000 };

        let mut raw = context();
        let raw_pair = move || {
            let mut heads = raw.alloc_heads();
            // As of the allocators' blocks, one byte of each.
            heads.write(0);
            raw.free_heads(black_box(heads));
        };
        let mut full = context();
        let mut batch = Batch::new();
        let skb_pair = move || {
            let frames = full.alloc_frame_bulk(BULK).map(|frame| (frame, HEADROOM, 64));
            full.build_skbs(BULK, frames, &mut batch, |head| head.dev = 1);
            full.free_batch(black_box(&mut batch), DropReason::IpTtl);
        };
        let case = |name: &str, size: usize, mut pair: Box<dyn FnMut()>| Case {
            row: Row::new(name, vec![("bulk", json!(BULK)), ("bytes", json!(size))]),
            measure: Box::new(move || Ok(vec![("ns_per_pair", per_pair(bulks, &mut pair))])),
        };
        let mut cases = vec![
            case("raw", Region::bytes(0, 1), Box::new(raw_pair)),
            case("skb", Region::bytes(0, 1), Box::new(skb_pair)),
            case("system", SIZE, Box::new(|| blocks(&System))),
            case("mimalloc", SIZE, Box::new(|| blocks(&MiMalloc))),
        ];
        // Both of its threads spin: with one CPU it would measure the scheduler.
        if let Some(other) = cpus().into_iter().find(|other| *other != cpu) {
            cases.extend(remote::cases(bulks / 10, other));
        }
        let mut report = alternate("skb-cache", Some(cpu), self.common.rounds(), cases)?;
        // A byte of each head is written, as of each block.
        report
            .bound("raw", "ns_per_pair", Bound::AtMost(2.5))
            .on(&REFERENCE)
            .meaning("A buffer head is taken and given back in this time.");
        report
            .bound("skb", "ns_per_pair", Bound::AtMost(5.6))
            .on(&REFERENCE)
            .meaning("The same of a whole buffer: head, frame, and the count of its reason.");
        Ok(report)
    }
}
