//! One measurement: queues, wires, senders and worker, made afresh; and what must be true of it afterwards.
//!
//! A run in which a frame was damaged, out of order or lost, or after which packet memory is missing, is an error and no
//! figure.

use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread::{Builder, ScopedJoinHandle};
use std::time::{Duration, Instant};

use softnet_core::SoftnetData;
use softnet_core::qdisc::{DevParams, NextRun, Spec, ToFree};
use softnet_core::skb::{CacheSizes, Region};
use softnet_dev::memfd::MemfdMemory;

use super::queue::{TxQueue, Way};
use super::sender::{Done, MEASURE, STOP, Shared, WARM_UP};
use super::wire::{Accounts, COMPARED, WINDOW, Wire};
use super::worker::Worker;
use crate::bench::echo::Usage;
use crate::bench::latency::Latency;
use crate::bench::others::{Others, process_cpu_ns};
use crate::bench::report::Sample;
use crate::bench::{cpus, pin};

const DEV: DevParams = DevParams { mtu: 1500, tx_queue_len: 1000 };
/// Of the latencies, those that are shown.
pub(super) const LATENCIES: [&str; 4] = ["p50_us", "p99_us", "p999_us", "max_us"];

/// CPU time of other programs, of one CPU.
pub(super) const OTHERS: &str = "others_cpu_percent";

/// What is measured.
#[derive(Clone, Debug)]
pub(super) struct Load {
    pub(super) way: Way,
    /// Of each queue.
    pub(super) qdisc: Spec,
    pub(super) queues: usize,
    pub(super) senders: usize,
    /// Senders on all CPUs in turn; otherwise the scheduler decides.
    pub(super) pinned: bool,
}

/// How long it is measured.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    pub(super) warm_up: Duration,
    pub(super) measure: Duration,
}

/// Packet memory for up to so many senders.
pub(super) fn region(senders: usize) -> Result<Arc<Region>, String> {
    // Their windows, and the caches of all threads.
    let packets = (senders * WINDOW as usize + (senders + 2) * CacheSizes::default().size) as u32;
    let memory =
        MemfdMemory::new(Region::bytes(packets, packets)).map_err(|e| format!("packet memory: {e}"))?;
    Region::new(Box::new(memory), packets, packets).map_err(|e| e.to_string())
}

/// Counts of one instant.
#[derive(Clone, Copy)]
struct Counts {
    at: Instant,
    seen: u64,
    cpu_ns: u64,
    others: Others,
}

impl Counts {
    fn now(accounts: &Accounts) -> Self {
        Counts { at: Instant::now(), seen: accounts.seen(), cpu_ns: process_cpu_ns(), others: Others::now() }
    }
}

impl Load {
    /// Measures it, with threads of its own.
    pub(super) fn measure(&self, region: &Arc<Region>, times: Times) -> Result<Sample, String> {
        self.run(region, Some(times), u64::MAX)
    }

    /// Has every sender send `packets`, without measuring.
    #[cfg(test)]
    pub(super) fn send(&self, region: &Arc<Region>, packets: u64) -> Result<Sample, String> {
        self.run(region, None, packets)
    }

    fn run(&self, region: &Arc<Region>, times: Option<Times>, packets: u64) -> Result<Sample, String> {
        let accounts = Accounts::new(self.senders);
        let queues = (0..self.queues).map(|_| self.queue(region, &accounts));
        let queues = queues.collect::<Result<Vec<_>, _>>()?;
        let (worker, phase) = (Worker::new(self.queues), AtomicU8::new(WARM_UP));
        let epoch = Instant::now();
        let shared =
            Shared { queues: &queues, worker: &worker, accounts: &accounts, phase: &phase, epoch, packets };
        let context = || SoftnetData::new(region.clone(), CacheSizes::default());
        let (done, helper, counts) = std::thread::scope(|scope| {
            let work = || {
                worker.run(&queues, &mut context(), &accounts, epoch);
                Usage::of(&[rustix::thread::gettid().as_raw_pid()])
            };
            let failed = |e: std::io::Error| format!("a thread: {e}");
            let helper = Builder::new().name("net-tx".into()).spawn_scoped(scope, work).map_err(failed)?;
            worker.sign(helper.thread().clone());
            let send = |sender| {
                let shared = &shared;
                let name = format!("{}/{sender}", self.way.name());
                let work = move || self.place(sender).map(|()| shared.send(sender, context()));
                Builder::new().name(name).spawn_scoped(scope, work).map_err(failed)
            };
            let senders: Result<Vec<_>, _> = (0..self.senders).map(send).collect();
            let counts = times.filter(|_| senders.is_ok()).map(|times| {
                std::thread::sleep(times.warm_up);
                phase.store(MEASURE, Ordering::Relaxed);
                let from = Counts::now(&accounts);
                std::thread::sleep(times.measure);
                (from, Counts::now(&accounts))
            });
            // Without times each sender ends by itself.
            if times.is_some() || senders.is_err() {
                phase.store(STOP, Ordering::Relaxed);
            }
            let join = |thread: ScopedJoinHandle<'_, Result<Done, String>>| {
                thread.join().unwrap_or_else(|panic| resume_unwind(panic))
            };
            let done = senders.map(|senders| senders.into_iter().map(join).collect::<Vec<_>>());
            Self::drain(&queues, &mut context(), &accounts, epoch);
            worker.stop();
            let helper = helper.join().unwrap_or_else(|panic| resume_unwind(panic));
            Ok::<_, String>((done?.into_iter().collect::<Result<Vec<_>, _>>()?, helper, counts))
        })?;
        drop(queues);
        Self::check(region, &accounts, &done)?;
        Ok(Found { accounts: &accounts, done: &done, helper, lived: epoch.elapsed() }.figures(counts))
    }

    /// Pins the calling thread, if that is asked for.
    fn place(&self, sender: usize) -> Result<(), String> {
        let cpus = cpus();
        if self.pinned {
            pin(cpus[sender % cpus.len()])?;
        }
        Ok(())
    }

    /// Sends what is left, then closes the queues. No other thread sends any more.
    fn drain(queues: &[Box<dyn TxQueue>], ctx: &mut SoftnetData, accounts: &Accounts, epoch: Instant) {
        let mut to_free = ToFree::new();
        for queue in queues {
            while queue.run(ctx, epoch.elapsed().as_nanos() as u64, &mut to_free) != Some(NextRun::Idle) {
                std::thread::yield_now();
            }
            queue.close(ctx, &mut to_free);
        }
        accounts.free(ctx, &mut to_free);
    }

    fn queue(&self, region: &Region, accounts: &Arc<Accounts>) -> Result<Box<dyn TxQueue>, String> {
        let qdisc = self.qdisc.build(&DEV).map_err(|e| e.to_string())?.ok_or("a discipline is needed")?;
        Ok(self.way.queue(region, qdisc, Wire::new(accounts.clone(), COMPARED)))
    }

    /// Every packet arrived, intact and in order, or was dropped and counted; all memory is back.
    fn check(region: &Region, accounts: &Accounts, done: &[Done]) -> Result<(), String> {
        let sent: u64 = done.iter().map(|done| done.sent).sum();
        let (seen, dropped, wrong) = (accounts.seen(), accounts.dropped(), accounts.wrong());
        if sent != seen + dropped || wrong > 0 {
            return Err(format!(
                "sent {sent}, arrived {seen}, dropped {dropped}, damaged or out of order {wrong}"
            ));
        }
        let free = (region.frames_free(), region.heads_free());
        let all = (u64::from(region.frame_count()), u64::from(region.head_count()));
        if free != all { Err(format!("packet memory is missing: {free:?} of {all:?}")) } else { Ok(()) }
    }
}

/// What a run found.
struct Found<'a> {
    accounts: &'a Accounts,
    done: &'a [Done],
    /// What the worker used.
    helper: Usage,
    /// How long the threads lived.
    lived: Duration,
}

impl Found<'_> {
    /// The figures of the time between `counts`, if there was one.
    fn figures(&self, counts: Option<(Counts, Counts)>) -> Sample {
        let sum = |of: fn(&Done) -> u64| self.done.iter().map(of).sum::<u64>() as f64;
        let per = |n: f64, of: f64| if of > 0.0 { n / of } else { 0.0 };
        let (sent, lived) = (sum(|done| done.sent), self.lived.as_secs_f64());
        let (seen, cpu_ns, others, elapsed) = counts.map_or((0.0, 0.0, 0.0, 0.0), |(from, to)| {
            let elapsed = to.at.duration_since(from.at).as_nanos() as f64;
            let others = to.others.since(from.others) as f64;
            ((to.seen - from.seen) as f64, (to.cpu_ns - from.cpu_ns) as f64, others, elapsed)
        });
        let mut latency = Latency::new();
        self.done.iter().for_each(|done| latency.add(&done.latency));
        let used = self.done.iter().fold(self.helper, |sum, done| sum + done.usage);
        let mut sample = vec![("mpps", 1e3 * per(seen, elapsed)), ("cpu_ns_per_packet", per(cpu_ns, seen))];
        sample.extend(latency.figures().into_iter().filter(|(name, _)| LATENCIES.contains(name)));
        sample.extend([
            ("switches_per_s", per((used.blocked + used.preempted) as f64, lived)),
            ("drops_percent", 100.0 * per(self.accounts.dropped() as f64, sent)),
            ("held_back_percent", 100.0 * per(sum(|done| done.held_back), sent)),
            ("worker_cpu_percent", 100.0 * per(self.helper.cpu_ns as f64, 1e9 * lived)),
            (OTHERS, 100.0 * per(others, elapsed)),
        ]);
        sample
    }
}
