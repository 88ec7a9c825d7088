//! The wire of `bench rx-handoff`: packets of many flows that say when they came, and the end that checks their order.
//!
//! One thread [offers](crate::bench::offer) packets; the stack's threads write and read them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender};

use softnet_dev::mem::{Sink, Source};

use super::service::Service;
use crate::bench::latency::Latency;
use crate::bench::offer::Stamps;

/// Flows: told apart by their source ports.
pub(super) const FLOWS: u64 = 256;
/// Bytes of a packet.
pub(super) const SIZE: usize = 64;
/// One packet of so many has its latency taken.
const TIMED: u64 = 8;

/// Where the UDP source port, and number and stamp within the payload stand.
const SRC_PORT: usize = 34;
const NUMBER: usize = 42;
const STAMP: usize = 50;

/// What the ends share.
pub(super) struct Shared {
    pub(super) stamps: Arc<Stamps>,
    /// Packets that came out.
    pub(super) out: AtomicU64,
    /// Packets of a flow that came out behind a later one of it.
    pub(super) reordered: AtomicU64,
    /// Whether latencies count now.
    pub(super) timing: AtomicBool,
}

impl Shared {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Shared {
            stamps: Stamps::new(),
            out: AtomicU64::new(0),
            reordered: AtomicU64::new(0),
            timing: AtomicBool::new(false),
        })
    }
}

/// Where the packets come from.
pub(super) struct FlowSource {
    shared: Arc<Shared>,
    /// What the driver of a real device would do for each packet.
    driver: Service,
    template: [u8; SIZE],
    number: u64,
}

impl FlowSource {
    /// Packets like `frame`, each of which costs the thread that collects it what `driver` does.
    pub(super) fn new(shared: Arc<Shared>, driver: Service, frame: &[u8]) -> Self {
        let mut template = [0; SIZE];
        template[..frame.len().min(SIZE)].copy_from_slice(&frame[..frame.len().min(SIZE)]);
        FlowSource { shared, driver, template, number: 0 }
    }
}

impl Source for FlowSource {
    fn write(&mut self, buf: &mut [u8]) -> usize {
        let Some(buf) = buf.first_chunk_mut::<SIZE>() else { return 0 };
        self.driver.serve();
        *buf = self.template;
        let number = self.number;
        self.number += 1;
        let stamp = self.shared.stamps.of(number);
        buf[SRC_PORT..SRC_PORT + 2].copy_from_slice(&((number % FLOWS) as u16 + 1024).to_be_bytes());
        buf[NUMBER..NUMBER + 8].copy_from_slice(&number.to_le_bytes());
        buf[STAMP..STAMP + 8].copy_from_slice(&stamp.to_le_bytes());
        SIZE
    }

    fn next_len(&self) -> usize {
        SIZE
    }
}

/// Where they go.
pub(super) struct FlowSink {
    shared: Arc<Shared>,
    /// Of each flow the number that comes next, at the least.
    next: Box<[u64]>,
    latency: Latency,
    timing: bool,
    done: Sender<Latency>,
}

impl FlowSink {
    /// The sink, and where the latencies of each measurement come out.
    pub(super) fn new(shared: Arc<Shared>) -> (Self, Receiver<Latency>) {
        let (done, latencies) = std::sync::mpsc::channel();
        let next = vec![0; FLOWS as usize].into();
        (FlowSink { shared, next, latency: Latency::new(), timing: false, done }, latencies)
    }
}

impl Sink for FlowSink {
    fn read(&mut self, packet: &[u8]) {
        let word = |at: usize| {
            packet.get(at..at + 8).and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_le_bytes)
        };
        let number = word(NUMBER);
        let next = &mut self.next[(number % FLOWS) as usize];
        if number < *next {
            self.shared.reordered.fetch_add(1, Ordering::Relaxed);
        }
        *next = number + 1;
        let out = self.shared.out.load(Ordering::Relaxed);
        // One thread at a time sends by a queue.
        self.shared.out.store(out + 1, Ordering::Relaxed);
        if out.is_multiple_of(TIMED) {
            let timing = self.shared.timing.load(Ordering::Relaxed);
            if timing {
                self.latency.record(self.shared.stamps.now().saturating_sub(word(STAMP)));
            } else if self.timing {
                let _ = self.done.send(std::mem::replace(&mut self.latency, Latency::new()));
            }
            self.timing = timing;
        }
    }
}
