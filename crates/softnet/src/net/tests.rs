//! Ends: whatever is opened, filled, half read, closed, dropped and stopped, in whatever order and by whichever thread, nothing
//! is left of it. Every packet is in the books, all memory is home, no socket is watched and nothing is held.

mod groups;
mod ports;
mod protocols;
mod steps;
mod threads;

use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex};

use softnet_core::SoftnetData;
use softnet_core::skb::{Batch, CacheSizes, Region};
use softnet_core::sock::key::addr_of;
use softnet_core::sock::udp::output::UdpHead;
use softnet_dev::mem::{PairConfig, pair};
use softnet_dev::xdp::Ports;
use softnet_dev::{Device, OpenDevice, RxQueue, TxQueue};

use super::Handle;
use crate::Stack;
use crate::assembly::Assembly;
use crate::assembly::Introspect;
use crate::config::{Config, DeviceConfig, NeighbourConfig, StackConfig, available_cpus};
use crate::driver::{DeviceError, OpenRequest, Opener, Own};
use crate::stack::StackInner;

const OWN: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const HOST: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const MACS: [[u8; 6]; 2] = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]];
const RING: usize = 256;
/// Ports that sockets are bound to, and those that the host sends from.
const PORTS: u16 = 4;
const FIRST: u16 = 7;

/// The far end of the stack's device.
struct Far {
    rx: Box<dyn RxQueue>,
    tx: Box<dyn TxQueue>,
    ctx: SoftnetData,
    _device: Arc<dyn Device>,
}

impl Far {
    fn new(region: &Arc<Region>, OpenDevice { device, mut rx, mut tx, .. }: OpenDevice) -> Self {
        let ctx = SoftnetData::new(region.clone(), CacheSizes::default());
        Far { rx: rx.remove(0), tx: tx.remove(0), ctx, _device: device }
    }

    /// Sends `n` datagrams to port `dport` of the stack.
    fn send(&mut self, dport: u16, sport: u16, n: usize) {
        let [src, dst] = [HOST, OWN].map(|addr| addr_of(IpAddr::V4(addr)));
        let head = UdpHead { src, dst, sport, dport, ttl: 64, tos: 0 };
        let link = [&MACS[0][..], &MACS[1], &[8, 0]].concat();
        let mut batch = Batch::new();
        for _ in 0..n {
            let Some(mut skb) = self.ctx.alloc_skb() else { break };
            head.write(&mut skb, link[..].try_into().unwrap(), b"to be or not").unwrap();
            batch.push(skb).unwrap();
        }
        self.tx.tx_burst(&mut self.ctx, &mut batch);
        self.tx.kick(&mut self.ctx);
        batch.drain().for_each(|skb| self.ctx.free_skb(skb));
        self.tx.reap(&mut self.ctx);
    }

    /// Takes what the stack sent.
    fn take(&mut self) {
        let mut batch = Batch::new();
        while self.rx.rx_burst(&mut self.ctx, &mut batch, 64) > 0 {
            batch.drain().for_each(|skb| self.ctx.free_skb(skb));
        }
    }
}

/// What is to be seen of a stack when it has stopped.
struct Remains {
    shared: Arc<StackInner>,
    view: Arc<Introspect>,
    far: Far,
    /// Contexts that the caller's thread has on the stack.
    handle: Handle,
}

/// A stack with one device, and its remains.
fn assemble() -> (Assembly, Remains) {
    assemble_on(|device| device)
}

/// Opens a device by a function, and has `ports` told of those that are open.
struct Telling<F> {
    open: F,
    ports: Option<Arc<dyn Ports>>,
}

impl<F: Opener> Opener for Telling<F> {
    fn open(&mut self, device: &OpenRequest<'_>, ctx: &mut SoftnetData) -> Result<OpenDevice, DeviceError> {
        self.open.open(device, ctx)
    }

    fn ports(&self) -> Option<Arc<dyn Ports>> {
        self.ports.clone()
    }
}

/// The same, with `wrap` around the shared part of the device.
fn assemble_on(wrap: impl Fn(Arc<dyn Device>) -> Arc<dyn Device> + Send + 'static) -> (Assembly, Remains) {
    assemble_with(wrap, None)
}

/// The same, with `ports` told of those that are open.
fn assemble_with(
    wrap: impl Fn(Arc<dyn Device>) -> Arc<dyn Device> + Send + 'static,
    ports: Option<Arc<dyn Ports>>,
) -> (Assembly, Remains) {
    let device = DeviceConfig {
        addresses: vec![format!("{OWN}/24").parse().unwrap()],
        driver: Own.into(),
        ..DeviceConfig::new("mem0")
    };
    let workers = available_cpus().into_iter().take(1).collect();
    let stack = StackConfig { workers, frames: 2048, max_sockets: 64, ..StackConfig::default() };
    let neighbour = NeighbourConfig { dev: "mem0".into(), address: HOST.into(), mac: MACS[1] };
    let config = Config { stack, devices: vec![device], neighbours: vec![neighbour], ..Config::default() };
    let far = Arc::new(Mutex::new(None));
    let assembly = Assembly::new(config, Vec::new(), |_| {
        let far = far.clone();
        let open = move |_: &OpenRequest<'_>, ctx: &mut SoftnetData| {
            let config = PairConfig { ring: RING, macs: MACS, ..PairConfig::default() };
            let [near, other] = pair(ctx.region(), [0, 9], &config).map_err(|e| e.to_string())?;
            *far.lock().unwrap() = Some(Far::new(ctx.region(), other));
            Ok::<_, String>(OpenDevice::new(wrap(near.device), near.rx, near.tx))
        };
        Ok(Telling { open, ports })
    })
    .unwrap();
    let far = far.lock().unwrap().take().unwrap();
    let (shared, view, handle) = (assembly.shared.clone(), assembly.view.clone(), assembly.handle());
    (assembly, Remains { shared, view, far, handle })
}

impl Remains {
    /// Nothing is held: not by sockets, for none is open, not by sets, nor by other watchers.
    fn check_nothing_is_open(&self) {
        let [held, sets, watchers, _] = self.shared.sockets.tally();
        assert_eq!((held, sets, watchers, self.shared.sockets.len()), (0, 0, 0, 0));
        for (index, slot) in self.shared.sockets.sockets.slots() {
            assert_eq!(
                (slot.queued(), slot.key(), slot.readiness().readable),
                (0, None, false),
                "slot {index}"
            );
        }
        assert_eq!(self.view.stats().held, 0);
    }

    /// The stack has stopped as well: of all there was, there are only the counters. At most `threads` threads that used it live.
    fn check(self, threads: usize) {
        self.check_nothing_is_open();
        let Remains { shared, view, mut far, .. } = self;
        let [.., contexts] = shared.sockets.tally();
        assert!(contexts <= threads, "{contexts} contexts of threads");
        far.take();
        far.rx.close(&mut far.ctx);
        far.tx.close(&mut far.ctx);
        far.ctx.drain();
        let stats = view.stats();
        let ends = stats.transmitted + stats.delivered + stats.dropped + stats.merged;
        assert_eq!(stats.received + stats.originated, ends, "{stats:?}");
        assert_eq!((stats.frames_free, stats.heads_free), (stats.frames, stats.heads), "{stats:?}");
    }
}

/// Whether `result` is one, or an error that may be while others close and stop.
fn fine<T>(result: std::io::Result<T>) -> Option<T> {
    use std::io::ErrorKind::*;
    let expected = [WouldBlock, NetworkDown, AddrInUse, AlreadyExists, NotFound, ConnectionRefused];
    result
        .inspect_err(|error| {
            assert!(expected.contains(&error.kind()) || error.raw_os_error() == Some(105), "{error}");
        })
        .ok()
}
