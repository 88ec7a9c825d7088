//! The load over in-process wires: four queues in, two out.

use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, PoisonError};

use softnet::config::{Config, DeviceConfig, NeighbourConfig, available_cpus};
use softnet::driver::OpenRequest;
use softnet::internals::Assembly;
use softnet::{Introspect, Stack};
use softnet_core::SoftnetData;
use softnet_core::skb::{Batch, CacheSizes, HEADROOM, Region};
use softnet_dev::mem::{PairConfig, pair};
use softnet_dev::{OpenDevice, RxQueue, TxQueue};
use softnet_testkit::UdpFrame;

use super::load::{FLOWS, Packet, Sink, Source, Wires};
use crate::bench::text;

const DEVICES: [&str; 2] = ["mem0", "mem1"];
/// Queues of each.
const QUEUES: [usize; 2] = [4, 2];
/// Where the payload begins.
const PAYLOAD: usize = 42;
/// MAC addresses of softnet's end and of the far end of each wire.
const MACS: [[[u8; 6]; 2]; 2] =
    [[[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]], [[2, 0, 0, 0, 1, 1], [2, 0, 0, 0, 1, 2]]];

fn host(port: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, port, 0, 2)
}

/// See the [module](self).
pub(super) struct Mem {
    stack: Stack,
    ends: Option<(Lanes, Lanes)>,
}

/// The far end of a wire.
pub(super) struct Lanes {
    rx: Vec<Box<dyn RxQueue>>,
    tx: Vec<Box<dyn TxQueue>>,
    ctx: SoftnetData,
    frame: Vec<u8>,
}

impl Mem {
    pub(super) fn start() -> Result<Mem, String> {
        let mut config = Config::default();
        config.stack.workers = available_cpus().into_iter().cycle().take(2).collect();
        config.stack.frames = 16384;
        for (port, name) in DEVICES.into_iter().enumerate() {
            let addresses = vec![format!("10.{port}.0.1/24").parse().map_err(text)?];
            config.devices.push(DeviceConfig::new(name).with(|device| device.addresses = addresses));
        }
        config.neighbours = vec![NeighbourConfig::new(DEVICES[1], host(1), MACS[1][1])];
        let far = Arc::new(Mutex::new(Vec::new()));
        let assembly = Assembly::new(config, vec![], |region: &Arc<Region>| {
            let (region, far) = (region.clone(), far.clone());
            Ok(move |&OpenRequest { dev, name, .. }: &OpenRequest<'_>, _: &mut SoftnetData| {
                let config = PairConfig {
                    queues: QUEUES[usize::from(dev)],
                    macs: MACS[usize::from(dev)],
                    names: [name.into(), format!("host{dev}")],
                    ..PairConfig::default()
                };
                let [near, end] = pair(&region, [dev, dev + 32], &config).map_err(|e| e.to_string())?;
                far.lock().unwrap_or_else(PoisonError::into_inner).push(end);
                Ok::<_, String>(near)
            })
        });
        let stack = Stack::run(assembly.map_err(|e| e.to_string())?).map_err(|e| e.to_string())?;
        let frame = UdpFrame {
            src_mac: MACS[0][1],
            dst_mac: MACS[0][0],
            src: host(0),
            dst: host(1),
            src_port: 40_000,
            dst_port: 9,
            len: 60,
        };
        let lanes = |end: OpenDevice| Lanes {
            rx: end.rx,
            tx: end.tx,
            ctx: SoftnetData::new(stack.shared().region.clone(), CacheSizes::default()),
            frame: frame.build(),
        };
        let mut far =
            far.lock().unwrap_or_else(PoisonError::into_inner).drain(..).map(lanes).collect::<Vec<_>>();
        let (sink, source) = (far.pop(), far.pop());
        Ok(Mem { ends: source.zip(sink), stack })
    }
}

impl Wires for Mem {
    type Source = Lanes;
    type Sink = Lanes;

    fn view(&self) -> &Introspect {
        self.stack.view()
    }

    fn devices(&self) -> [&'static str; 2] {
        DEVICES
    }

    /// Full rings towards the sink are softnet's to count; towards softnet the source is refused.
    fn lost(&self) -> Result<u64, String> {
        let rings: u64 = self.view().devs().iter().map(|dev| dev.rx_ring_drops + dev.tx_ring_drops).sum();
        // The second where the owner of a TX queue was kept from its CPU.
        let reasons = ["qdisc_overlimit", "qdisc_burst_drop"];
        let full = self.view().drops().into_iter().filter(|drop| reasons.contains(&drop.reason.as_ref()));
        Ok(rings + full.map(|drop| drop.packets).sum::<u64>())
    }

    fn ends(&mut self) -> Result<(Lanes, Lanes), String> {
        self.ends.take().ok_or_else(|| "the wires have two ends".into())
    }

    fn end(self, source: Lanes, sink: Lanes) -> Result<(), String> {
        let view = self.stack.view().clone();
        drop(self.stack);
        source.close();
        sink.close();
        books(&view)
    }
}

/// Whether every packet of a stack that has ended is somewhere, and all memory home.
pub(super) fn books(view: &Introspect) -> Result<(), String> {
    let s = view.stats();
    let (came, went) = (s.received + s.originated, s.transmitted + s.delivered + s.dropped + s.merged);
    if came != went || s.leaked > 0 || (s.frames_free, s.heads_free) != (s.frames, s.heads) {
        return Err(format!("the books do not balance: {s:?}"));
    }
    Ok(())
}

impl Lanes {
    fn close(mut self) {
        self.rx.into_iter().for_each(|queue| queue.close(&mut self.ctx));
        self.tx.into_iter().for_each(|queue| queue.close(&mut self.ctx));
        self.ctx.drain();
    }
}

impl Source for Lanes {
    fn send(&mut self, packets: &[Packet; FLOWS]) -> Result<usize, String> {
        let Lanes { tx, ctx, frame, .. } = self;
        let (queues, mut sent) = (tx.len(), 0);
        for (n, queue) in tx.iter_mut().enumerate() {
            let mut batch = Batch::new();
            for packet in packets.iter().skip(n).step_by(queues) {
                frame[PAYLOAD..PAYLOAD + Packet::LEN].copy_from_slice(&packet.to_bytes());
                let Some(mut memory) = ctx.alloc_frame() else { break };
                memory.bytes_mut()[HEADROOM..][..frame.len()].copy_from_slice(frame);
                match ctx.build_skb(memory, HEADROOM, frame.len()) {
                    Ok(skb) => batch.push(skb).unwrap_or_else(|skb| ctx.free_skb(skb)),
                    Err(memory) => ctx.free_frame(memory),
                }
            }
            sent += queue.tx_burst(ctx, &mut batch);
            queue.kick(ctx);
            batch.drain().for_each(|skb| ctx.free_skb(skb));
        }
        Ok(sent)
    }
}

impl Sink for Lanes {
    fn receive(&mut self, each: &mut dyn FnMut(Packet)) -> Result<usize, String> {
        let mut n = 0;
        for queue in &mut self.rx {
            let mut batch = Batch::new();
            n += queue.rx_burst(&mut self.ctx, &mut batch, 64);
            for skb in batch.drain() {
                let packet = skb.data().get(PAYLOAD..).and_then(Packet::from_bytes);
                self.ctx.free_skb(skb);
                each(packet.ok_or("something else came out")?);
            }
        }
        Ok(n)
    }
}
