//! One measurement of `bench napi-context`: a stack with one emulated NIC, a responder for each of its queues, and the
//! threads that compete with them. Each run makes all of it afresh, so that none inherits where the scheduler had put
//! its threads.
//!
//! Packets are verified by the wire as they leave; a run with a wrong or lost one, or after which packet memory is
//! missing, is an error and no figure.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, Pid, sched_setaffinity};
use softnet::config::{Config, Context, DeviceConfig};
use softnet::driver::OpenRequest;
use softnet::internals::Assembly;
use softnet::{PollerParams, Stack};
use softnet_core::SoftnetData;
use softnet_core::skb::Region;
use softnet_dev::mem::{NicConfig, nic};
use softnet_dev::sched::{Policy, policy};

use super::hungry::Hungry;
use super::wire::Lane;
use crate::bench::echo::{Responder, Usage};
use crate::bench::latency::Latency;
use crate::bench::others::Others;
use crate::bench::report::Sample;
use crate::bench::text;

/// How long threads may take to start, and the first responses to come.
const PATIENCE: Duration = Duration::from_secs(10);
/// What gives a worker its place before all other threads.
pub(super) const PREEMPTS: Policy = Policy::Fifo(1);

/// CPUs of the poller and of the responder of one queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pin {
    pub(super) poller: usize,
    pub(super) responder: usize,
}

/// What is measured.
#[derive(Clone, Debug)]
pub(super) struct Load {
    pub(super) context: Context,
    /// That of the workers.
    pub(super) policy: Policy,
    /// CPU of the worker of each queue.
    pub(super) workers: Vec<u32>,
    /// Where pollers and responders run; without, the scheduler decides.
    pub(super) pins: Option<Vec<Pin>>,
    /// Threads that compete.
    pub(super) hungry: usize,
    /// The CPU that these are bound to, if they are.
    pub(super) hungry_cpu: Option<usize>,
    /// Flows of all queues together.
    pub(super) flows: usize,
    /// What a request costs the application.
    pub(super) work: Duration,
    /// Bytes of each payload.
    pub(super) size: usize,
}

/// Of the latencies, those that are shown.
const FIGURES: [&str; 4] = ["p50_us", "p90_us", "p99_us", "p999_us"];

/// A stack under load. Its fields end in this order: no thread competes while the rest is ended, and the wire outlives the
/// stack.
struct Rig {
    hungry: Hungry,
    responders: Vec<Responder>,
    stack: Stack,
    lanes: Vec<Arc<Lane>>,
}

fn pin_thread(tid: i32, cpu: usize) -> Result<(), String> {
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(Pid::from_raw(tid), &set).map_err(|e| format!("pinning thread {tid} to CPU {cpu}: {e}"))
}

/// Time that threads wanted to run and could not, in ns.
fn waited_ns(tids: &[i32]) -> u64 {
    let of = |tid: &i32| {
        let text = std::fs::read_to_string(format!("/proc/self/task/{tid}/schedstat")).ok()?;
        text.split_whitespace().nth(1)?.parse::<u64>().ok()
    };
    tids.iter().filter_map(of).sum()
}

/// What threads used and waited for.
#[derive(Clone, Copy)]
struct Spent {
    usage: Usage,
    waited: u64,
}

impl Spent {
    fn of(tids: &[i32]) -> Self {
        Spent { usage: Usage::of(tids), waited: waited_ns(tids) }
    }

    fn since(self, before: Spent) -> Self {
        Spent { usage: self.usage - before.usage, waited: self.waited.saturating_sub(before.waited) }
    }
}

impl Load {
    fn config(&self) -> Result<Config, String> {
        let mut config = Config::default();
        config.stack.workers = self.workers.clone();
        config.stack.workers.dedup();
        config.stack.worker_policy = (self.policy != Policy::Other).then_some(self.policy);
        let addresses = vec!["198.18.0.1/24".parse().map_err(text)?];
        config.devices = vec![DeviceConfig::new("nic0").with(|device| {
            device.addresses = addresses;
            device.threaded = self.context;
        })];
        Ok(config)
    }

    fn start(&self) -> Result<Rig, String> {
        let queues = self.workers.len();
        let flows = self.flows / queues;
        let (lanes, wires): (Vec<_>, Vec<_>) = (0..queues).map(|_| Lane::new(flows, self.size)).unzip();
        let ports = Arc::new(Mutex::new(Vec::new()));
        let (mut wires, opened) = (Some(wires), ports.clone());
        let opener = move |_: &Arc<Region>| {
            Ok(move |&OpenRequest { dev, name, .. }: &OpenRequest<'_>, _: &mut SoftnetData| {
                // Room for a request of each flow.
                let rx_ring = flows.next_power_of_two();
                let config = NicConfig { name: name.into(), rx_ring, ..NicConfig::default() };
                let wires = wires.take().ok_or("opened twice")?;
                let nic = nic(dev, &config, wires).map_err(|e| e.to_string())?;
                *opened.lock().unwrap_or_else(PoisonError::into_inner) = nic.ports;
                Ok::<_, String>(nic.open)
            })
        };
        let assembly = Assembly::new(self.config()?, vec![], opener).map_err(|e| e.to_string())?;
        let stack = Stack::run(assembly).map_err(|e| e.to_string())?;
        let hungry = Hungry::start(self.hungry, self.hungry_cpu)?;
        let mut rig = Rig { hungry, responders: Vec::new(), stack, lanes };
        rig.wait_for_threads()?;
        self.place(&rig)?;
        let ports = std::mem::take(&mut *ports.lock().unwrap_or_else(PoisonError::into_inner));
        let napis = rig.stack.view().napis();
        for (queue, (napi, port)) in napis.iter().zip(ports).enumerate() {
            let cpu = self.pins.as_ref().and_then(|pins| Some(pins.get(queue)?.responder));
            let params = PollerParams::default();
            rig.responders.push(Responder::start(&rig.stack, napi.id, params, self.work, None, cpu)?);
            if !rig.lanes[queue].start(port) {
                return Err("the RX ring has no room for a request of each flow".into());
            }
        }
        Ok(rig)
    }

    /// Pins what is to be pinned, and looks whether the workers have their policy.
    fn place(&self, rig: &Rig) -> Result<(), String> {
        let workers = rig.stack.view().workers();
        let (softirq, others): (Vec<_>, Vec<_>) =
            workers.iter().partition(|worker| worker.context == Context::Softirq);
        for (thread, pin) in others.iter().zip(self.pins.iter().flatten().cycle()) {
            pin_thread(thread.tid, pin.poller)?;
        }
        for worker in softirq {
            let policy = policy(worker.tid.cast_unsigned()).map_err(|e| e.to_string())?;
            if policy != self.policy {
                return Err(format!("{} has the policy {policy} instead of {}", worker.name, self.policy));
            }
        }
        Ok(())
    }

    /// Measures as often as `runs` says, for `measure` after `warm_up`, each time with new threads. The figures are of all
    /// runs together: where the scheduler happens to put the threads is part of what a tail comes from.
    pub(super) fn measure(
        &self,
        runs: usize,
        warm_up: Duration,
        measure: Duration,
    ) -> Result<Sample, String> {
        let mut sum = self.run(warm_up, measure)?;
        for _ in 1..runs {
            sum.add(self.run(warm_up, measure)?);
        }
        Ok(sum.figures())
    }

    fn run(&self, warm_up: Duration, measure: Duration) -> Result<Found, String> {
        let rig = self.start()?;
        std::thread::sleep(warm_up);
        let view = rig.stack.view().clone();
        let pollers = rig.pollers();
        let apps: Vec<_> = rig.responders.iter().map(Responder::tid).collect();
        let look = || [&pollers, &apps].map(|tids| Spent::of(tids));
        rig.lanes.iter().for_each(|lane| _ = lane.take_latency());
        let (others, before, start) = (Others::now(), look(), Instant::now());
        let mut latency = Latency::new();
        while latency.count() == 0 {
            if start.elapsed() > PATIENCE {
                return Err("no request was answered".into());
            }
            std::thread::sleep(measure);
            rig.lanes.iter().for_each(|lane| latency.add(&lane.take_latency()));
        }
        let (elapsed, after, others) = (start.elapsed(), look(), Others::now().since(others));
        let threads = view.workers().iter().filter(|worker| worker.context == self.context).count();
        let (drops, strange) = (view.drops(), rig.lanes.iter().map(|lane| lane.strange()).sum::<u64>());
        if !drops.is_empty() || strange > 0 {
            return Err(format!(
                "dropped: {drops:?}; {strange} packets that are no response to their request"
            ));
        }
        rig.stop()?;
        let [pollers, apps] = [0, 1].map(|i| after[i].since(before[i]));
        Ok(Found { latency, elapsed, pollers, apps, others, threads })
    }
}

/// What a run found, or several.
struct Found {
    latency: Latency,
    elapsed: Duration,
    pollers: Spent,
    apps: Spent,
    /// CPU time of other programs, in ns.
    others: u64,
    /// Those that polled.
    threads: usize,
}

impl Found {
    fn add(&mut self, other: Found) {
        self.latency.add(&other.latency);
        self.elapsed += other.elapsed;
        for (sum, spent) in [(&mut self.pollers, other.pollers), (&mut self.apps, other.apps)] {
            sum.usage = sum.usage + spent.usage;
            sum.waited += spent.waited;
        }
        self.others += other.others;
    }

    fn figures(&self) -> Sample {
        let seconds = self.elapsed.as_secs_f64();
        let percent = |ns: u64| 100.0 * ns as f64 / self.elapsed.as_nanos() as f64;
        let used = self.pollers.usage + self.apps.usage;
        let mut sample = vec![("qps", self.latency.count() as f64 / seconds)];
        sample.extend(self.latency.figures().into_iter().filter(|(name, _)| FIGURES.contains(name)));
        sample.extend([
            ("poller_cpu_percent", percent(self.pollers.usage.cpu_ns)),
            ("app_cpu_percent", percent(self.apps.usage.cpu_ns)),
            ("poller_wait_percent", percent(self.pollers.waited)),
            ("app_wait_percent", percent(self.apps.waited)),
            ("switches_per_s", (used.blocked + used.preempted) as f64 / seconds),
            ("threads", self.threads as f64),
            ("others_cpu_percent", percent(self.others)),
        ]);
        sample
    }
}

impl Rig {
    /// Ids of the threads that poll, workers that have nothing to poll included.
    fn pollers(&self) -> Vec<i32> {
        self.stack.view().workers().iter().map(|worker| worker.tid).collect()
    }

    fn wait_for_threads(&self) -> Result<(), String> {
        let patience = Instant::now() + PATIENCE;
        while self.pollers().contains(&0) {
            if Instant::now() > patience {
                return Err("a polling thread does not start".into());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Ends it, and checks the books: every packet ended somewhere, and all packet memory is there.
    fn stop(self) -> Result<(), String> {
        let Rig { hungry, responders, stack, lanes } = self;
        let view = stack.view().clone();
        drop(hungry);
        for responder in responders {
            responder.stop()?;
        }
        drop((stack, lanes));
        let s = view.stats();
        let ended = s.transmitted + s.delivered + s.dropped + s.merged + s.held;
        if s.received + s.originated != ended || s.leaked > 0 || s.frames_free != s.frames {
            return Err(format!("packets are missing: {s:?}"));
        }
        Ok(())
    }
}
