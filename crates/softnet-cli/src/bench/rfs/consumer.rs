//! The consumers of `bench rfs`: threads that each receive by a socket of their own, on a CPU that
//! others may change.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::thread::{CpuSet, Pid, gettid, sched_setaffinity};
use softnet::net::{Handle, RecvBatch, UdpSocket};

use super::wire::{ADDRESS, FIRST_PORT, FLOWS, parse};
use crate::bench::latency::Latency;
use crate::bench::offer::Stamps;
use crate::bench::text;

/// One datagram of so many has its latency taken.
const TIMED: u64 = 8;
/// How long a consumer waits before it looks whether it is to stop.
const PATIENCE: Duration = Duration::from_millis(50);

/// What a consumer tells of itself.
pub(super) struct Consumed {
    pub(super) received: AtomicU64,
    /// Datagrams that came behind a later one of their flow.
    pub(super) reordered: AtomicU64,
    /// Latencies, while they count.
    latency: Mutex<Option<Latency>>,
    stop: AtomicBool,
}

/// A consumer, running.
pub(super) struct Consumer {
    pub(super) consumed: Arc<Consumed>,
    pub(super) tid: Pid,
    thread: JoinHandle<Result<(), String>>,
}

impl Consumer {
    /// Receives at port number `n`.
    pub(super) fn start(handle: &Handle, n: u16, cpu: u32, stamps: Arc<Stamps>) -> Result<Self, String> {
        let socket = UdpSocket::builder(handle)
            .recv_buffer_size(4 << 20)
            .bind((ADDRESS, FIRST_PORT + n))
            .map_err(text)?;
        socket.set_read_timeout(Some(PATIENCE)).map_err(text)?;
        let consumed = Arc::new(Consumed {
            received: AtomicU64::new(0),
            reordered: AtomicU64::new(0),
            latency: Mutex::new(None),
            stop: AtomicBool::new(false),
        });
        let (tell, tid) = std::sync::mpsc::channel();
        let mine = consumed.clone();
        let thread = std::thread::Builder::new()
            .name(format!("consumer/{n}"))
            .spawn(move || consume(&socket, &mine, &stamps, &tell))
            .map_err(text)?;
        let tid = tid.recv().map_err(text)?;
        let consumer = Consumer { consumed, tid, thread };
        consumer.pin(cpu)?;
        Ok(consumer)
    }

    /// From now on it runs on `cpu`.
    pub(super) fn pin(&self, cpu: u32) -> Result<(), String> {
        let mut set = CpuSet::new();
        set.set(cpu as usize);
        sched_setaffinity(Some(self.tid), &set).map_err(text)
    }

    /// From now on latencies count.
    pub(super) fn time(&self) {
        *self.latency() = Some(Latency::new());
    }

    /// Latencies since, which count no more.
    pub(super) fn timed(&self) -> Option<Latency> {
        self.latency().take()
    }

    fn latency(&self) -> std::sync::MutexGuard<'_, Option<Latency>> {
        self.consumed.latency.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends it.
    pub(super) fn stop(self) -> Result<(), String> {
        self.consumed.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

fn consume(
    socket: &UdpSocket,
    consumed: &Consumed,
    stamps: &Stamps,
    tell: &Sender<Pid>,
) -> Result<(), String> {
    let _ = tell.send(gettid());
    // Of each flow the number that comes next, at the least.
    let mut next = vec![0; FLOWS as usize];
    let mut batch = RecvBatch::new();
    while !consumed.stop.load(Ordering::Relaxed) {
        // Nothing came for a while.
        let Ok(n) = socket.recv_batch(&mut batch, RecvBatch::MAX) else { continue };
        let before = consumed.received.load(Ordering::Relaxed);
        let mut latency = consumed.latency.lock().unwrap_or_else(PoisonError::into_inner);
        let now = if latency.is_some() { stamps.now() } else { 0 };
        let mut reordered = 0;
        for (i, datagram) in (before..).zip(batch.iter()) {
            let Some((number, stamp)) = datagram.data().and_then(parse) else {
                return Err("a datagram came that was not sent".into());
            };
            let next = &mut next[(number % FLOWS) as usize];
            reordered += u64::from(number < *next);
            *next = number + 1;
            if let Some(latency) = latency.as_mut().filter(|_| i.is_multiple_of(TIMED)) {
                latency.record(now.saturating_sub(stamp));
            }
        }
        drop(latency);
        consumed.reordered.store(consumed.reordered.load(Ordering::Relaxed) + reordered, Ordering::Relaxed);
        consumed.received.store(before + n as u64, Ordering::Relaxed);
    }
    Ok(())
}
