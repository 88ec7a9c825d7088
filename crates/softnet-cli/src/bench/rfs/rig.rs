//! A stack with one emulated NIC of one queue, two workers and a consumer on the CPU of each, and
//! the thread that offers datagrams.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use softnet::Stack;
use softnet::config::{Config, CpuList, DeviceConfig, PerQueue, SteeringMode};
use softnet::driver::OpenRequest;
use softnet::internals::Assembly;
use softnet_core::SoftnetData;
use softnet_core::skb::Region;
use softnet_dev::mem::{NicConfig, nic};

use super::consumer::Consumer;
use super::wire::{ADDRESS, CONSUMERS, FlowSource, MAC, NoSink};
use crate::bench::cpu::Used;
use crate::bench::latency::Latency;
use crate::bench::offer::{Offer, Pace, RING, Stamps};
use crate::bench::text;

/// How often consumers move.
const MOVE: Duration = Duration::from_millis(1);

/// See the [module](self).
pub(super) struct Rig {
    stack: Stack,
    offer: Offer,
    consumers: Vec<Consumer>,
    cpus: [u32; 2],
}

/// Counters at some moment.
struct Counts {
    offered: u64,
    refused: u64,
    received: u64,
    cpu_ns: u64,
    wakeups: u64,
    moves: u64,
    at: Instant,
}

/// What a measurement found.
pub(super) struct Trial {
    pub(super) seconds: f64,
    /// Datagrams that came, and those of them that found no place in the ring.
    pub(super) came: u64,
    pub(super) received: u64,
    pub(super) latency: Latency,
    /// Of workers and consumers.
    pub(super) cpu_ns: u64,
    /// Times that workers slept.
    pub(super) wakeups: u64,
    /// Flows that went after their consumers.
    pub(super) moves: u64,
    /// Times that consumers went to the other CPU.
    pub(super) migrations: u64,
}

impl Rig {
    /// With RFS if `rfs`, else with RPS alone; workers and consumers on `cpus`.
    pub(super) fn start(rfs: bool, cpus: [u32; 2]) -> Result<Rig, String> {
        let mut config = Config::default();
        config.stack.workers = cpus.to_vec();
        config.stack.frames = 32768;
        config.stack.rps_sock_flow_entries = if rfs { 4096 } else { 0 };
        let address = format!("{ADDRESS}/24").parse().map_err(text)?;
        config.devices = vec![DeviceConfig::new("nic0").with(|device| {
            device.addresses = vec![address];
            device.workers = vec![0];
            device.steering = SteeringMode::Off;
            device.rps_cpus = PerQueue::All(CpuList(cpus.to_vec()));
            device.rps_flow_cnt = PerQueue::All(if rfs { 4096 } else { 0 });
        })];
        let (stamps, port) = (Stamps::new(), Arc::new(Mutex::new(None)));
        let opener = {
            let (stamps, port) = (stamps.clone(), port.clone());
            move |_: &Arc<Region>| {
                Ok(move |&OpenRequest { dev, name, .. }: &OpenRequest<'_>, _: &mut SoftnetData| {
                    let config =
                        NicConfig { name: name.into(), mac: MAC, rx_ring: RING, ..NicConfig::default() };
                    let nic = nic(dev, &config, vec![(FlowSource::new(stamps.clone()), NoSink)])?;
                    *port.lock().unwrap_or_else(PoisonError::into_inner) = nic.ports.into_iter().next();
                    Ok::<_, std::io::Error>(nic.open)
                })
            }
        };
        let assembly = Assembly::new(config, vec![], opener).map_err(text)?;
        let stack = Stack::run(assembly).map_err(text)?;
        let port = port.lock().unwrap_or_else(PoisonError::into_inner).take().ok_or("no NIC was opened")?;
        let consumer = |n: u16| {
            let cpu = cpus[usize::from(n) % cpus.len()];
            Consumer::start(&stack.handle(), n, cpu, stamps.clone())
        };
        let consumers = (0..CONSUMERS as u16).map(consumer).collect::<Result<_, _>>()?;
        Ok(Rig { stack, offer: Offer::new(port, stamps), consumers, cpus })
    }

    fn received(&self) -> u64 {
        self.consumers.iter().map(|consumer| consumer.consumed.received.load(Ordering::Relaxed)).sum()
    }

    /// Datagrams that came behind later ones of their flows, since the start.
    pub(super) fn reordered(&self) -> u64 {
        self.consumers.iter().map(|consumer| consumer.consumed.reordered.load(Ordering::Relaxed)).sum()
    }

    fn counts(&self) -> Counts {
        let tids: Vec<u32> =
            self.consumers.iter().map(|consumer| consumer.tid.as_raw_nonzero().get() as u32).collect();
        let (view, workers) = (self.stack.view(), self.stack.view().workers());
        Counts {
            offered: self.offer.offered,
            refused: self.offer.refused,
            received: self.received(),
            cpu_ns: workers.iter().map(|row| row.cpu_ns).sum::<u64>() + Used::of(&tids).cpu_ns,
            wakeups: workers.iter().map(|row| row.sleeps).sum(),
            moves: view.steering().iter().map(|row| row.moves).sum(),
            at: Instant::now(),
        }
    }

    /// Offers datagrams at this pace: for `warm`, and then for `time`, which counts. With `migrate`, the consumers change places every millisecond.
    pub(super) fn measure(
        &mut self,
        pace: Pace,
        [warm, time]: [Duration; 2],
        migrate: bool,
    ) -> Result<Trial, String> {
        self.offer.offer(pace, warm);
        let before = self.counts();
        self.consumers.iter().for_each(Consumer::time);
        let mut migrations = 0;
        if migrate {
            let start = Instant::now();
            while start.elapsed() < time {
                self.offer.offer(pace, MOVE);
                migrations += 1;
                for (n, consumer) in self.consumers.iter().enumerate() {
                    consumer.pin(self.cpus[(n + migrations as usize) % self.cpus.len()])?;
                }
            }
        } else {
            self.offer.offer(pace, time);
        }
        let after = self.counts();
        let mut latency = Latency::new();
        let timed = self.consumers.iter().filter_map(Consumer::timed);
        timed.for_each(|of| latency.add(&of));
        if migrate {
            for (n, consumer) in self.consumers.iter().enumerate() {
                consumer.pin(self.cpus[n % self.cpus.len()])?;
            }
        }
        // What is on its way is not the next measurement's.
        self.settle()?;
        Ok(Trial {
            seconds: (after.at - before.at).as_secs_f64(),
            came: after.offered + after.refused - before.offered - before.refused,
            received: after.received - before.received,
            latency,
            cpu_ns: after.cpu_ns.saturating_sub(before.cpu_ns),
            wakeups: after.wakeups.saturating_sub(before.wakeups),
            moves: after.moves - before.moves,
            migrations,
        })
    }

    /// Waits until all that was offered was received, or dropped and counted. Returns what was
    /// neither.
    pub(super) fn settle(&self) -> Result<u64, String> {
        let start = Instant::now();
        loop {
            let ended = self.received() + self.stack.view().stats().dropped;
            if ended == self.offer.offered || start.elapsed() > Duration::from_secs(5) {
                return self.offer.offered.checked_sub(ended).ok_or_else(|| "more came than was sent".into());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Ends it, and checks that every datagram is accounted for.
    pub(super) fn end(self) -> Result<(), String> {
        let lost = self.settle()?;
        let Rig { stack, offer: Offer { port, offered, .. }, consumers, .. } = self;
        consumers.into_iter().try_for_each(Consumer::stop)?;
        let view = stack.view().clone();
        drop((stack, port));
        let stats = view.stats();
        if lost > 0 || stats.received != offered || stats.leaked > 0 {
            return Err(format!("offered {offered} datagrams, {lost} of them lost: {stats:?}"));
        }
        Ok(())
    }
}
