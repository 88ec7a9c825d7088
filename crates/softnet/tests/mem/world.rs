//! A running stack between in-process wires, and the far ends of these.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use softnet::config::{
    Config, Context, DeviceConfig, InterfaceAddr, NeighbourConfig, RouteConfig, RouteTarget, available_cpus,
};
use softnet::control::show::NapiRow;
use softnet::control::{Set, Target};
use softnet::driver::OpenRequest;
use softnet::internals::{Assembly, StackInner};
use softnet::net::Handle;
use softnet::{Introspect, Stack};
use softnet_core::SoftnetData;
use softnet_core::ip::Prefix;
use softnet_core::skb::{Batch, CacheSizes, HEADROOM, Region};
use softnet_core::steer::{PUBLISHED_HKEY, set_flow_hkey};
use softnet_dev::mem::{PairConfig, pair};
use softnet_dev::{Device, Doorbell, OpenDevice, QueueStats, RxQueue, TxQueue};

use super::frames::{host, host_mac, number_of, numbered, own, own_mac};

const PATIENCE: Duration = Duration::from_secs(60);

/// Waits for something that happens unless softnet is broken.
pub(crate) fn until(what: &str, mut done: impl FnMut() -> bool) {
    let give_up = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < give_up, "waited in vain: {what}");
        std::thread::yield_now();
    }
}

/// One queue of the far end of a wire, for one thread.
pub(crate) struct Lane {
    pub(crate) port: usize,
    pub(crate) queue: usize,
    rx: Box<dyn RxQueue>,
    tx: Box<dyn TxQueue>,
    ctx: SoftnetData,
    _device: Arc<dyn Device>,
}

impl Lane {
    /// Puts frames on the wire. Returns how many there was room for.
    pub(crate) fn send(&mut self, frames: &[Vec<u8>]) -> usize {
        let mut sent = 0;
        for some in frames.chunks(64) {
            let mut batch = Batch::new();
            for bytes in some {
                let Some(mut frame) = self.ctx.alloc_frame() else { break };
                frame.bytes_mut()[HEADROOM..][..bytes.len()].copy_from_slice(bytes);
                match self.ctx.build_skb(frame, HEADROOM, bytes.len()) {
                    Ok(skb) => batch.push(skb).unwrap(),
                    Err(frame) => self.ctx.free_frame(frame),
                }
            }
            let took = self.tx.tx_burst(&mut self.ctx, &mut batch);
            self.tx.kick(&mut self.ctx);
            batch.drain().for_each(|skb| self.ctx.free_skb(skb));
            sent += took;
            if took < some.len() {
                break;
            }
        }
        sent
    }

    /// Takes what is on the wire. Returns how many frames that was.
    pub(crate) fn receive(&mut self, mut each: impl FnMut(&[u8])) -> usize {
        let mut batch = Batch::new();
        let n = self.rx.rx_burst(&mut self.ctx, &mut batch, 64);
        for skb in batch.drain() {
            each(skb.data());
            self.ctx.free_skb(skb);
        }
        n
    }

    /// Frames put on the wire, and frames taken from it.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.tx.stats().packets.get(), self.rx.stats().packets.get())
    }

    /// Returns how many frames were still to be taken.
    pub(crate) fn close(mut self) -> usize {
        let left = self.rx.held();
        self.rx.close(&mut self.ctx);
        self.tx.close(&mut self.ctx);
        self.ctx.drain();
        left
    }
}

/// A stack, and what can be seen of it even after it stopped.
pub(crate) struct World {
    stack: Option<Stack>,
    pub(crate) shared: Arc<StackInner>,
    pub(crate) view: Arc<Introspect>,
}

/// A TX queue of some driver.
pub(crate) type AnyTx = Box<dyn TxQueue>;

/// What to run.
#[derive(Default)]
pub(crate) struct Setup<'a> {
    /// Queues of each port.
    pub(crate) ports: &'a [usize],
    pub(crate) workers: usize,
    /// The hosts' MAC addresses are configured.
    pub(crate) known: bool,
    /// XPS maps of the last port: by CPU and by RX queue.
    pub(crate) xps: [&'a [&'a str]; 2],
    /// The first port has RSS.
    pub(crate) rss: bool,
    /// What is put before every TX queue.
    pub(crate) tx: Option<fn(AnyTx) -> AnyTx>,
}

/// An RX queue that sees to it that one thread polls it at a time.
struct Exclusive(Box<dyn RxQueue>, Arc<AtomicBool>);

impl RxQueue for Exclusive {
    fn rx_burst(&mut self, ctx: &mut SoftnetData, batch: &mut Batch, budget: usize) -> usize {
        assert!(!self.1.swap(true, Ordering::Relaxed), "two threads poll a queue");
        let n = self.0.rx_burst(ctx, batch, budget);
        assert!(self.1.swap(false, Ordering::Relaxed), "two threads poll a queue");
        n
    }
    fn doorbell(&self) -> Arc<dyn Doorbell> {
        self.0.doorbell()
    }
    fn stats(&self) -> Arc<QueueStats> {
        self.0.stats()
    }
    fn held(&self) -> usize {
        self.0.held()
    }
    fn close(self: Box<Self>, ctx: &mut SoftnetData) {
        self.0.close(ctx);
    }
}

impl Setup<'_> {
    fn config(&self) -> Config {
        let net = |port: usize| Prefix::new(Ipv4Addr::from([10, (100 + port) as u8, 0, 0]), 16).unwrap();
        let name = |port: usize| format!("mem{port}");
        let lists = |lists: &[&str]| lists.iter().map(|list| list.parse().unwrap()).collect();
        let xps = |port: usize| if port + 1 == self.ports.len() { self.xps } else { [&[][..]; 2] };
        let device = |port: usize| {
            DeviceConfig::new(name(port)).with(|device| {
                device.addresses = vec![InterfaceAddr::new(own(port), 24).unwrap()];
                device.xps_cpus = lists(xps(port)[0]);
                device.xps_rxqs = lists(xps(port)[1]);
            })
        };
        let route = |port| RouteConfig::new(net(port).any(), RouteTarget::Via(host(port).into()));
        let neighbour = |port| NeighbourConfig::new(name(port), host(port), host_mac(port));
        let ports = 0..self.ports.len();
        Config::default().with(|config| {
            // Two workers on one CPU are no good idea, but must work.
            config.stack.workers = available_cpus().into_iter().cycle().take(self.workers).collect();
            config.stack.frames = 16384.max(4096 * self.ports.len().next_power_of_two() as u32);
            config.devices = ports.clone().map(device).collect();
            config.routes = ports.clone().map(route).collect();
            config.neighbours = ports.filter(|_| self.known).map(neighbour).collect();
        })
    }

    /// Runs it. Lanes come port by port, queue by queue.
    pub(crate) fn start(self) -> (World, Vec<Lane>) {
        let (assembly, lanes) = self.assemble(Context::Softirq);
        (World::of(Stack::run(assembly).unwrap()), lanes)
    }

    /// The same, configured further by `more`.
    pub(crate) fn start_with(self, more: impl FnOnce(&mut Config)) -> (World, Vec<Lane>) {
        let (assembly, lanes) = self.assemble_with(more);
        (World::of(Stack::run(assembly).unwrap()), lanes)
    }

    /// Everything but the workers' threads, all devices to be polled in the context `threaded`.
    pub(crate) fn assemble(self, threaded: Context) -> (Assembly, Vec<Lane>) {
        self.assemble_with(|config| config.devices.iter_mut().for_each(|device| device.threaded = threaded))
    }

    pub(crate) fn assemble_with(self, more: impl FnOnce(&mut Config)) -> (Assembly, Vec<Lane>) {
        // Tests count on flows being spread as they were.
        assert!(set_flow_hkey(&PUBLISHED_HKEY).unwrap());
        let mut config = self.config();
        more(&mut config);
        let lanes = Arc::new(Mutex::new(Vec::new()));
        let (queues, before, rss) = (self.ports.to_vec(), self.tx, self.rss);
        let assembly = Assembly::new(config, Vec::new(), |region| {
            let (region, lanes) = (region.clone(), lanes.clone());
            Ok(move |&OpenRequest { dev, .. }: &OpenRequest<'_>, _: &mut SoftnetData| {
                let (mut near, far) = wire_with(&region, dev, queues[usize::from(dev)], rss && dev == 0);
                let exclusive = |rx| Box::new(Exclusive(rx, Arc::default())) as Box<dyn RxQueue>;
                near.rx = near.rx.into_iter().map(exclusive).collect();
                if let Some(before) = before {
                    near.tx = near.tx.into_iter().map(before).collect();
                }
                lanes.lock().unwrap().extend(far);
                Ok::<_, String>(near)
            })
        });
        let lanes = std::mem::take(&mut *lanes.lock().unwrap());
        (assembly.unwrap(), lanes)
    }
}

/// A wire with `queues` queues to softnet's device `dev`: softnet's end, and the test's.
pub(crate) fn wire(region: &Arc<Region>, dev: u16, queues: usize) -> (OpenDevice, Vec<Lane>) {
    wire_with(region, dev, queues, false)
}

/// The same, with RSS if `rss` says so.
fn wire_with(region: &Arc<Region>, dev: u16, queues: usize, rss: bool) -> (OpenDevice, Vec<Lane>) {
    let port = usize::from(dev);
    let config = PairConfig {
        queues,
        ring: 512,
        macs: [own_mac(port), host_mac(port)],
        names: [format!("mem{port}"), format!("host{port}")],
        mtu: 1500,
        rss,
    };
    let [near, far] = pair(region, [dev, dev + 32], &config).unwrap();
    let OpenDevice { device, rx, tx, .. } = far;
    let lane = |(queue, (rx, tx))| Lane {
        port,
        queue,
        rx,
        tx,
        ctx: SoftnetData::new(region.clone(), CacheSizes::default()),
        _device: device.clone(),
    };
    (near, rx.into_iter().zip(tx).enumerate().map(lane).collect())
}

impl World {
    pub(crate) fn of(stack: Stack) -> World {
        let (shared, view) = (stack.shared().clone(), stack.view().clone());
        World { stack: Some(stack), shared, view }
    }

    /// Of a stack that the test itself has.
    pub(crate) fn watching(stack: &Stack) -> World {
        World { stack: None, shared: stack.shared().clone(), view: stack.view().clone() }
    }

    /// Leads to the stack.
    pub(crate) fn handle(&self) -> Handle {
        self.stack.as_ref().expect("was not stopped").handle()
    }

    /// Has device `port` polled in `threaded`.
    pub(crate) fn set(&self, port: usize, threaded: Context) -> Vec<NapiRow> {
        self.view.set(Set { target: Target::Dev(format!("mem{port}")), threaded }).unwrap()
    }

    /// Waits until softnet has received `received` frames and done with them.
    pub(crate) fn settle(&self, received: u64) {
        let view = &self.view;
        until("all frames are received", || view.stats().received == received);
        let (mut ins, mut outs) = (0, 0);
        until("all packets have ended somewhere", || {
            let s = view.stats();
            (ins, outs) =
                (s.received + s.originated, s.transmitted + s.delivered + s.dropped + s.merged + s.held);
            ins == outs
        });
    }

    /// Stops the stack, whatever it is at.
    pub(crate) fn stop(&mut self) {
        self.stack = None;
    }

    /// Stops the stack if it still runs, and checks that nothing is left: every packet in the books, all memory home.
    pub(crate) fn end(mut self, lanes: Vec<Lane>) {
        self.stop();
        let s = self.view.stats();
        assert_eq!(s.received + s.originated, s.transmitted + s.delivered + s.dropped + s.merged, "{s:?}");
        let (sent, _) = lanes.iter().map(Lane::counts).fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1));
        // What was sent in the instant in which softnet closed its end is lost on the wire, as on any.
        assert!(s.received <= sent, "{sent} sent, {s:?}");
        assert_eq!((s.held, s.leaked), (0, 0), "{s:?}");
        let left: usize = lanes.into_iter().map(Lane::close).sum();
        let s = self.view.stats();
        assert_eq!((s.frames_free, s.heads_free), (s.frames, s.heads), "{left} frames were on the wires");
        self.shared.workers.iter().for_each(|worker| assert!(!worker.is_sleeping()));
    }
}

/// Runs `work` on every lane, each on a thread of its own, and gives the lanes back.
pub(crate) fn on_all(lanes: Vec<Lane>, work: impl Fn(&mut Lane) + Sync) -> Vec<Lane> {
    std::thread::scope(|scope| {
        let run = |mut lane: Lane| {
            let work = &work;
            scope.spawn(move || {
                work(&mut lane);
                lane
            })
        };
        let threads: Vec<_> = lanes.into_iter().map(run).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// Takes the lanes of `port` out of `lanes`.
pub(crate) fn of_port(lanes: &mut Vec<Lane>, port: usize) -> Vec<Lane> {
    lanes.extract_if(.., |lane| lane.port == port).collect()
}

/// Sends one numbered frame from port 0 by `lane`, and waits until one of `sinks`, at port 1, has it.
pub(crate) fn ping(lane: &mut Lane, sinks: &mut [Lane], number: u32) {
    assert_eq!(lane.send(&[numbered(0, host(1), 0, number)]), 1);
    let mut got = None;
    until("one packet", || {
        sinks.iter_mut().for_each(|sink| _ = sink.receive(|frame| got = number_of(frame)));
        got.is_some()
    });
    assert_eq!(got, Some((0, number)));
}
