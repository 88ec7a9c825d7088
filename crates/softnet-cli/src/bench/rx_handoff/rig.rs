//! A router between two emulated NICs, its threads running, and the thread that offers packets to it.

use std::net::Ipv4Addr;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use softnet::Stack;
use softnet::config::{Config, CpuList, DeviceConfig, NeighbourConfig, PerQueue, SteeringMode};
use softnet::driver::OpenRequest;
use softnet::internals::Assembly;
use softnet_core::SoftnetData;
use softnet_core::ip::hooks::Slot;
use softnet_core::skb::Region;
use softnet_dev::mem::{NicConfig, nic};
use softnet_testkit::UdpFrame;

use super::service::Service;
use super::wire::{FlowSink, FlowSource, Shared};
use crate::bench::latency::Latency;
use crate::bench::offer::{Offer, Pace, RING};
use crate::bench::text;

/// How often a ring is filled that is to stay full: it lasts several times as long, and the thread that fills it
/// leaves both CPUs to the workers.
pub(super) const FILL: Duration = Duration::from_micros(200);

const MACS: [[u8; 6]; 2] = [[2, 0, 0, 0, 1, 0], [2, 0, 0, 0, 2, 0]];
const HOST: [u8; 6] = [2, 0, 0, 0, 3, 1];

/// How the one queue is steered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Single,
    HandOff,
    Rps,
    Auto,
}

impl Way {
    pub(super) const ALL: [Way; 4] = [Way::Single, Way::HandOff, Way::Rps, Way::Auto];

    pub(super) fn name(self) -> &'static str {
        match self {
            Way::Single => "single",
            Way::HandOff => "handoff",
            Way::Rps => "rps",
            Way::Auto => "auto",
        }
    }
}

/// See the [module](self).
pub(super) struct Rig {
    stack: Stack,
    offer: Offer,
    shared: Arc<Shared>,
    latencies: Receiver<Latency>,
}

/// What a measurement found.
pub(super) struct Trial {
    pub(super) seconds: f64,
    pub(super) offered: u64,
    /// Packets that found no place in the ring.
    pub(super) refused: u64,
    pub(super) out: u64,
    pub(super) latency: Latency,
    /// CPU time of each worker, in ns.
    pub(super) cpu_ns: Vec<u64>,
    pub(super) wakeups: u64,
    /// Packets that went to a worker's backlog.
    pub(super) steered: u64,
}

impl Rig {
    /// A router whose workers are on `cpus`: of [`Way::Single`] on the first. A packet costs `driver` to
    /// collect, and `service` on its way.
    pub(super) fn start(way: Way, cpus: [u32; 2], [driver, service]: [Service; 2]) -> Result<Rig, String> {
        let mut config = Config::default();
        config.stack.workers = if way == Way::Single { vec![cpus[0]] } else { cpus.to_vec() };
        config.stack.frames = 32768;
        let device = |name: &str, address: &str| -> Result<DeviceConfig, String> {
            let addresses = vec![address.parse().map_err(text)?];
            Ok(DeviceConfig::new(name).with(|device| {
                device.addresses = addresses;
                // Its one queue is polled by the first worker.
                device.workers = vec![0];
                device.steering = SteeringMode::Off;
            }))
        };
        let mut near = device("nic0", "198.18.0.254/24")?;
        match way {
            Way::Single => {}
            Way::HandOff => near.processing_cpu = PerQueue::All(cpus[1]),
            Way::Rps => near.rps_cpus = PerQueue::All(CpuList(cpus.to_vec())),
            Way::Auto => near.steering = SteeringMode::Auto,
        }
        config.devices = vec![near, device("nic1", "198.19.0.1/24")?];
        let host = Ipv4Addr::new(198, 19, 0, 2);
        config.neighbours = vec![NeighbourConfig::new("nic1", host, HOST)];
        let shared = Shared::new();
        let (sink, latencies) = FlowSink::new(shared.clone());
        let (idle_sink, _) = FlowSink::new(shared.clone());
        let frame = UdpFrame {
            src_mac: [2, 0, 0, 0, 3, 0],
            dst_mac: MACS[0],
            src: Ipv4Addr::new(198, 18, 0, 1),
            dst: host,
            src_port: 1024,
            dst_port: 9,
            len: 50,
        };
        let frame = frame.build();
        let ports = Arc::new(Mutex::new(Vec::new()));
        let opened = ports.clone();
        let mut sinks = vec![sink, idle_sink];
        let source = shared.clone();
        let opener = move |_: &Arc<Region>| {
            Ok(move |&OpenRequest { dev, name, .. }: &OpenRequest<'_>, _: &mut SoftnetData| {
                let config = NicConfig {
                    name: name.into(),
                    mac: MACS[usize::from(dev)],
                    rx_ring: RING,
                    tx_ring: 1024,
                    ..NicConfig::default()
                };
                let sink = sinks.pop().ok_or_else(|| std::io::Error::other("opened twice"))?;
                let nic = nic(dev, &config, vec![(FlowSource::new(source.clone(), driver, &frame), sink)])?;
                opened.lock().unwrap_or_else(PoisonError::into_inner).extend(nic.ports);
                Ok::<_, std::io::Error>(nic.open)
            })
        };
        let assembly = Assembly::new(config, vec![], opener).map_err(|e| e.to_string())?;
        let stack = Stack::run(assembly).map_err(|e| e.to_string())?;
        stack.shared().control().replace_tables(&**stack.shared(), |tables| {
            tables.hooks.set(Slot::Forward, Some(Arc::new(service)));
        });
        let mut ports = ports.lock().unwrap_or_else(PoisonError::into_inner);
        let port = if ports.is_empty() { return Err("no NIC was opened".into()) } else { ports.remove(0) };
        let offer = Offer::new(port, shared.stamps.clone());
        Ok(Rig { stack, offer, shared, latencies })
    }

    fn steered(&self) -> u64 {
        let rows = self.stack.view().steering();
        rows.iter().flat_map(|row| &row.workers).map(|worker| worker.packets + worker.dropped).sum()
    }

    /// Offers packets at this pace: for `warm`, and then for `time`, which counts.
    pub(super) fn measure(&mut self, pace: Pace, warm: Duration, time: Duration) -> Result<Trial, String> {
        self.offer.offer(pace, warm);
        let workers = || self.stack.view().workers();
        let before = workers();
        let (out, offered, refused) =
            (self.shared.out.load(Ordering::Relaxed), self.offer.offered, self.offer.refused);
        let (start, steered) = (Instant::now(), self.steered());
        while self.latencies.try_recv().is_ok() {}
        self.shared.timing.store(true, Ordering::Relaxed);
        self.offer.offer(pace, time);
        self.shared.timing.store(false, Ordering::Relaxed);
        let (came, seconds) = (self.shared.out.load(Ordering::Relaxed) - out, start.elapsed().as_secs_f64());
        let after = self.stack.view().workers();
        let (offered, refused) = (self.offer.offered - offered, self.offer.refused - refused);
        let steered = self.steered() - steered;
        // A few more, for the sink to see that the time is over.
        self.offer.offer(Pace::Pps(100_000.0), Duration::from_millis(20));
        let latency = self.latencies.recv_timeout(Duration::from_secs(5)).map_err(|_| "nothing came out")?;
        Ok(Trial {
            seconds,
            offered,
            refused,
            out: came,
            latency,
            cpu_ns: after.iter().zip(&before).map(|(a, b)| a.cpu_ns.saturating_sub(b.cpu_ns)).collect(),
            wakeups: after.iter().zip(&before).map(|(a, b)| a.sleeps.saturating_sub(b.sleeps)).sum(),
            steered,
        })
    }

    /// Ends it, and checks that every packet is accounted for and none came out behind a later one of its flow.
    pub(super) fn end(self) -> Result<(), String> {
        let Rig { stack, offer: Offer { port, offered, .. }, shared, .. } = self;
        let start = Instant::now();
        while port.waiting() > 0 && start.elapsed() < Duration::from_secs(5) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let view = stack.view().clone();
        drop((stack, port));
        let stats = view.stats();
        let ended = stats.transmitted + stats.delivered + stats.dropped;
        if stats.received != offered || ended != offered || stats.leaked > 0 {
            return Err(format!("offered {offered} packets, but {stats:?}"));
        }
        match shared.reordered.load(Ordering::Relaxed) {
            0 => Ok(()),
            n => Err(format!("{n} packets came out behind later ones of their flows")),
        }
    }
}
