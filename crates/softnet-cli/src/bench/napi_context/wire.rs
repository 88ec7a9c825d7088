//! The other machines of `bench napi-context`: flows that send their next request as soon as they have the response to the
//! last (closed loop), inside the emulated NIC's own calls. So they take no CPU from what is measured but some ns a request.
//!
//! One [`Lane`] for each queue. [`Requests`] are written by the thread that polls the queue, [`Responses`] are read by
//! the one that sends by it, the queue's one application. Responses are gathered up to [`TOGETHER`], or until no
//! flow has a request outstanding; then the next requests of all these flows arrive, with one interrupt. So the NIC
//! moderates its interrupts by frames, and needs no clock for it.
//!
//! Invariant: each flow has exactly one request or response, on its way or gathered here. A response that is not what its
//! flow waits for is counted as strange; a packet that gets lost takes its flow out of the run.

use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use softnet_core::ip::checksum;
use softnet_dev::mem::{NicPort, Sink, Source};

use crate::bench::echo::PORT;
use crate::bench::latency::Latency;

/// Ethernet, IPv4 and UDP headers.
pub(super) const HEADERS: usize = 14 + 20 + 8;
/// Requests that arrive with one interrupt.
const TOGETHER: usize = 64;
/// A flow's UDP port, less its number.
const FIRST_PORT: u16 = 1024;
/// The server, and the client.
const MACS: [[u8; 6]; 2] = [[2, 0, 0, 0, 1, 0], [2, 0, 0, 0, 9, 0]];
const ADDRESSES: [[u8; 4]; 2] = [[198, 18, 0, 1], [198, 18, 0, 2]];

/// The flows of one queue.
pub(super) struct Lane {
    flows: Box<[Flow]>,
    /// Flows in the order in which their next requests are sent.
    ring: Box<[AtomicU32]>,
    /// Bytes of each payload.
    size: usize,
    epoch: Instant,
    port: Mutex<Option<NicPort>>,
    latency: Mutex<Latency>,
    strange: AtomicU64,
}

/// What a flow waits for. Written by one end at a time, and handed over with the packet.
struct Flow {
    /// When its request arrived, in ns since the lane's epoch.
    since: AtomicU64,
    /// Number of its last request.
    number: AtomicU16,
}

/// What the NIC receives.
pub(super) struct Requests {
    lane: Arc<Lane>,
    /// Place in the ring of the next.
    next: usize,
}

/// What the NIC sends.
pub(super) struct Responses {
    lane: Arc<Lane>,
    /// Flows whose responses came, and their latencies.
    gathered: Vec<(u32, u64)>,
    /// Place in the ring of the first of them.
    next: usize,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What the payload of a request consists of.
fn pattern(flow: usize, number: u16) -> u8 {
    (flow as u8).wrapping_mul(31) ^ (number as u8)
}

impl Lane {
    /// `flows` flows with payloads of `size` bytes, which have not yet begun; and both ends of their wire.
    pub(super) fn new(flows: usize, size: usize) -> (Arc<Lane>, (Requests, Responses)) {
        let flow = |_| Flow { since: AtomicU64::new(0), number: AtomicU16::new(0) };
        let lane = Arc::new(Lane {
            flows: (0..flows).map(flow).collect(),
            ring: (0..flows.next_power_of_two()).map(|flow| AtomicU32::new(flow as u32)).collect(),
            size,
            epoch: Instant::now(),
            port: Mutex::default(),
            latency: Mutex::new(Latency::new()),
            strange: AtomicU64::new(0),
        });
        let requests = Requests { lane: lane.clone(), next: 0 };
        let responses = Responses { lane: lane.clone(), gathered: Vec::with_capacity(flows), next: flows };
        (lane, (requests, responses))
    }

    /// The first requests of all flows arrive, by `port`. `false`: there was no room for all of them.
    pub(super) fn start(&self, mut port: NicPort) -> bool {
        let now = self.now();
        self.flows.iter().for_each(|flow| flow.since.store(now, Ordering::Relaxed));
        let mut place = lock(&self.port);
        let all = port.offer(self.flows.len() as u64) == self.flows.len() as u64;
        *place = Some(port);
        all
    }

    fn now(&self) -> u64 {
        self.epoch.elapsed().as_nanos() as u64
    }

    fn place(&self, at: usize) -> &AtomicU32 {
        &self.ring[at & (self.ring.len() - 1)]
    }

    /// Latencies since the last call: from a request's arrival until its response left.
    pub(super) fn take_latency(&self) -> Latency {
        let empty = Latency::new();
        std::mem::replace(&mut *lock(&self.latency), empty)
    }

    /// Packets that came out and that no flow waited for.
    pub(super) fn strange(&self) -> u64 {
        self.strange.load(Ordering::Relaxed)
    }

    /// The flow that `packet` is the response to: its request with the ends exchanged, to the last byte.
    fn flow_of(&self, packet: &[u8]) -> Option<usize> {
        let be16 = |at: usize| Some(u16::from_be_bytes([*packet.get(at)?, *packet.get(at + 1)?]));
        let index = usize::from(be16(36)?.checked_sub(FIRST_PORT)?);
        let number = self.flows.get(index)?.number.load(Ordering::Relaxed);
        let byte = pattern(index, number);
        let right = packet[..6] == MACS[1]
            && packet[6..12] == MACS[0]
            && be16(18)? == number
            && packet[26..30] == ADDRESSES[0]
            && packet[30..34] == ADDRESSES[1]
            && be16(34)? == PORT
            && packet.len() == HEADERS + self.size
            && packet[HEADERS..].iter().fold(0, |differ, b| differ | (b ^ byte)) == 0;
        right.then_some(index)
    }
}

impl Source for Requests {
    fn write(&mut self, buf: &mut [u8]) -> usize {
        let lane = &self.lane;
        let index = lane.place(self.next).load(Ordering::Relaxed) as usize;
        self.next += 1;
        let flow = &lane.flows[index];
        let number = flow.number.load(Ordering::Relaxed).wrapping_add(1);
        flow.number.store(number, Ordering::Relaxed);
        let packet = &mut buf[..HEADERS + lane.size];
        packet[..6].copy_from_slice(&MACS[0]);
        packet[6..12].copy_from_slice(&MACS[1]);
        packet[12..16].copy_from_slice(&[8, 0, 0x45, 0]);
        packet[16..18].copy_from_slice(&((HEADERS - 14 + lane.size) as u16).to_be_bytes());
        packet[18..20].copy_from_slice(&number.to_be_bytes());
        // Not to be fragmented, TTL 64, UDP.
        packet[20..26].copy_from_slice(&[0x40, 0, 64, 17, 0, 0]);
        packet[26..30].copy_from_slice(&ADDRESSES[1]);
        packet[30..34].copy_from_slice(&ADDRESSES[0]);
        let check = checksum::checksum(&packet[14..34]);
        packet[24..26].copy_from_slice(&check.to_be_bytes());
        packet[34..36].copy_from_slice(&(FIRST_PORT + index as u16).to_be_bytes());
        packet[36..38].copy_from_slice(&PORT.to_be_bytes());
        packet[38..40].copy_from_slice(&((8 + lane.size) as u16).to_be_bytes());
        // No UDP checksum.
        packet[40..42].copy_from_slice(&[0, 0]);
        packet[HEADERS..].fill(pattern(index, number));
        packet.len()
    }

    fn next_len(&self) -> usize {
        HEADERS + self.lane.size
    }
}

impl Sink for Responses {
    fn read(&mut self, packet: &[u8]) {
        let lane = &self.lane;
        let Some(flow) = lane.flow_of(packet) else {
            lane.strange.fetch_add(1, Ordering::Relaxed);
            return;
        };
        let now = lane.now();
        self.gathered.push((flow as u32, now.saturating_sub(lane.flows[flow].since.load(Ordering::Relaxed))));
        if self.gathered.len() < TOGETHER.min(lane.flows.len()) {
            return;
        }
        let mut latency = lock(&lane.latency);
        self.gathered.iter().for_each(|(_, ns)| latency.record(*ns));
        drop(latency);
        let n = self.gathered.len() as u64;
        for (flow, _) in self.gathered.drain(..) {
            lane.flows[flow as usize].since.store(now, Ordering::Relaxed);
            lane.place(self.next).store(flow, Ordering::Relaxed);
            self.next += 1;
        }
        if let Some(port) = &mut *lock(&lane.port) {
            port.offer(n);
        }
    }
}
