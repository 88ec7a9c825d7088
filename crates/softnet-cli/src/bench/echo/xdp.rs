//! Client and server at the two ends of a veth pair, each in a namespace made for it, both by AF_XDP.
//!
//! On veth the sender's CPU runs the receiver's softirq. So the client's CPU, which sends requests, does what a NIC and the
//! kernel's driver would do for the server: the XDP program and the copy into packet memory. At its own end the client's
//! thread polls the kernel's instance itself, inside its own calls ([`InlineNapi`]): sending responses costs the
//! server neither a softirq of the client's nor a wake-up.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use softnet::config::DeviceConfig;
use softnet::driver::Xdp;
use softnet::internals::{Assembly, XdpOpener};
use softnet::{DeviceError, Stack};
use softnet_core::SoftnetData;
use softnet_core::skb::{BATCH, Batch, CacheSizes, HEADROOM, Region};
use softnet_dev::memfd::MemfdMemory;
use softnet_dev::netlink::Netlink;
use softnet_dev::netns::NetNs;
use softnet_dev::xdp::{self, Umem, XdpConfig};
use softnet_dev::{Device, RxQueue, TxQueue};
use softnet_testkit::InlineNapi;

use super::client::{Client, Sent, Wire};
use super::packet::{End, Format};
use super::{Bed, Setup};
use crate::bench::text;

pub(in crate::bench) const SERVER: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
pub(in crate::bench) const CLIENT: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 2);
/// Slots of each ring, of both ends.
pub(in crate::bench) const RING: u32 = 1024;
/// Frames of the client's packet memory: two rings and what is on its way between them.
const FRAMES: u32 = 4096;
/// How long a client that polls its end may be away before the kernel's timer polls it instead.
const INLINE_TIMEOUT: Duration = Duration::from_millis(20);
const ARP: [u8; 2] = [0x08, 0x06];

/// Interface names are unique in the machine.
static SERIAL: AtomicU32 = AtomicU32::new(0);

/// The namespaces, and the ends of the pair in them.
pub(in crate::bench) struct Veth {
    pub(in crate::bench) server: (NetNs, String),
    pub(in crate::bench) client: (NetNs, String),
}

impl Veth {
    pub(in crate::bench) fn new() -> Result<Self, String> {
        let (server, client) = (NetNs::new().map_err(text)?, NetNs::new().map_err(text)?);
        for ns in [&server, &client] {
            // So that nothing speaks unasked; a kernel without IPv6 has no such knob, and no need of it.
            let quiet = || {
                for of in ["all", "default"] {
                    let _ = std::fs::write(format!("/proc/sys/net/ipv6/conf/{of}/disable_ipv6"), "1");
                }
            };
            ns.run(quiet).map_err(text)?;
        }
        let id = format!("{}e{}", std::process::id(), SERIAL.fetch_add(1, Ordering::Relaxed));
        let names = [format!("s{id}"), format!("c{id}")];
        let add = || Netlink::new()?.add_veth(&names[0], &names[1], (1, 1), Some(&client));
        server.run(add).map_err(text)?.map_err(text)?;
        let [near, far] = names;
        let veth = Veth { server: (server, near), client: (client, far) };
        for (ns, name) in [&veth.server, &veth.client] {
            ns.run(|| Netlink::new()?.set_up(name)).map_err(text)?.map_err(text)?;
        }
        for (ns, name) in [&veth.server, &veth.client] {
            ns.run(|| Netlink::new()?.wait_running(name)).map_err(text)?.map_err(text)?;
        }
        Ok(veth)
    }

    pub(in crate::bench) fn mac((ns, name): &(NetNs, String)) -> Result<[u8; 6], String> {
        let link = ns.run(|| Netlink::new()?.existing_link(name)).map_err(text)?.map_err(text)?;
        Ok(link.mac)
    }

    /// Packets that the kernel dropped on the way, in either direction.
    pub(in crate::bench) fn drops(&self) -> Result<u64, String> {
        let mut all = 0;
        for (ns, name) in [&self.server, &self.client] {
            let counters = ns.run(|| Netlink::new()?.counters(name)).map_err(text)?.map_err(text)?;
            all += counters.rx_dropped + counters.tx_dropped;
        }
        Ok(all)
    }
}

/// The client's end: a device of its own, with a memory of its own.
pub(in crate::bench) struct ClientEnd {
    rx: Option<Box<dyn RxQueue>>,
    tx: Option<Box<dyn TxQueue>>,
    ctx: SoftnetData,
    batch: Batch,
    /// The kernel's instance that fills the ring, if the client's thread polls it.
    napi: Option<InlineNapi>,
    _device: Arc<dyn Device>,
}

impl ClientEnd {
    pub(in crate::bench) fn open(veth: &Veth) -> Result<Self, String> {
        let memory = MemfdMemory::new(Region::bytes(FRAMES, FRAMES)).map_err(text)?;
        let region = Region::new(Box::new(memory), FRAMES, FRAMES).map_err(text)?;
        let umem = Umem::new(region.clone()).map_err(text)?;
        let mut ctx = SoftnetData::new(region, CacheSizes::default());
        let (ns, name) = &veth.client;
        let config = XdpConfig { ring: RING, ..XdpConfig::new(name) };
        let open = ns.run(|| xdp::open(&config, &umem, 0, &mut ctx)).map_err(text)?.map_err(text)?;
        let (rx, tx) = (open.rx.into_iter().next(), open.tx.into_iter().next());
        Ok(ClientEnd { rx, tx, ctx, batch: Batch::new(), napi: None, _device: open.device })
    }

    /// From now on the client's thread polls the kernel's NAPI instance of its end whenever it finds no packet, as the
    /// queue of a NIC whose interrupt is masked: what sends to it wakes nothing.
    pub(in crate::bench) fn poll_inline(&mut self, veth: &Veth) -> Result<(), String> {
        let ((server, peer), (client, _)) = (&veth.server, &veth.client);
        self.napi = Some(InlineNapi::new(client, (server, peer), INLINE_TIMEOUT).map_err(text)?);
        Ok(())
    }

    /// Sends up to `n` packets, each of which `write` writes to the start of a buffer and tells the length of; a batch at
    /// the most. Returns how many left: the first ones.
    pub(in crate::bench) fn send(
        &mut self,
        n: u64,
        mut write: impl FnMut(u64, &mut [u8]) -> usize,
    ) -> Result<u64, String> {
        let ClientEnd { tx: Some(tx), ctx, batch, .. } = self else { return Err("closed".into()) };
        tx.reap(ctx);
        for i in 0..n.min(BATCH as u64) {
            let Some(mut frame) = ctx.alloc_frame() else { break };
            let len = write(i, &mut frame.bytes_mut()[HEADROOM..]);
            match ctx.build_skb(frame, HEADROOM, len) {
                Ok(skb) => batch.push(skb).unwrap_or_else(|skb| ctx.free_skb(skb)),
                Err(frame) => {
                    ctx.free_frame(frame);
                    break;
                }
            }
        }
        let left = tx.tx_burst(ctx, batch) as u64;
        tx.kick(ctx);
        // Those that found no room try again.
        batch.drain().for_each(|skb| ctx.free_skb(skb));
        Ok(left)
    }

    /// Gives `read` the packets that came, but for ARP. Its first error is returned.
    pub(in crate::bench) fn receive(
        &mut self,
        mut read: impl FnMut(&[u8]) -> Result<(), String>,
    ) -> Result<(), String> {
        let ClientEnd { rx: Some(rx), ctx, batch, napi, .. } = self else { return Err("closed".into()) };
        if rx.rx_burst(ctx, batch, BATCH) == 0
            && let Some(napi) = napi
        {
            napi.poll();
            rx.rx_burst(ctx, batch, BATCH);
        }
        let mut result = Ok(());
        for skb in batch.drain() {
            if skb.data().get(12..14) != Some(&ARP) {
                result = result.and(read(skb.data()));
            }
            ctx.free_skb(skb);
        }
        result
    }
}

impl Drop for ClientEnd {
    fn drop(&mut self) {
        if let Some(rx) = self.rx.take() {
            rx.close(&mut self.ctx);
        }
        if let Some(tx) = self.tx.take() {
            tx.close(&mut self.ctx);
        }
        self.ctx.drain();
    }
}

struct XdpWire {
    end: ClientEnd,
    format: Format,
}

impl Wire for XdpWire {
    fn send(&mut self, first: u64, n: u64, _: u64) -> Result<Sent, String> {
        let XdpWire { end, format } = self;
        let left = end.send(n, |i, buf| format.write(first + i, buf))?;
        Ok(Sent { left, lost: 0 })
    }

    fn receive(&mut self, _: u64, answered: &mut Vec<u64>) -> Result<(), String> {
        let XdpWire { end, format } = self;
        end.receive(|packet| match format.answered(packet) {
            Some(number) => {
                answered.push(number);
                Ok(())
            }
            None => Err(format!("{packet:02x?} came, which is no response to any request")),
        })
    }
}

pub(super) fn bed(setup: &Setup) -> Result<Bed, String> {
    let veth = Veth::new()?;
    let client = End { mac: Veth::mac(&veth.client)?, address: CLIENT };
    let server = End { mac: Veth::mac(&veth.server)?, address: SERVER };
    let mut config = setup.config();
    let address = format!("{SERVER}/24").parse().map_err(|e| format!("{e:?}"))?;
    config.devices = vec![DeviceConfig::new(&veth.server.1).with(|device| {
        device.addresses = vec![address];
        device.driver = Xdp::default().with(|xdp| xdp.ring = RING).into();
        device.threaded = setup.context;
        device.arp_notify = false;
        device.dad = false;
    })];
    let run = || {
        let opener = |region: &_| XdpOpener::new(region, 1).map_err(DeviceError::from);
        Stack::run(Assembly::new(config, vec![], opener).map_err(text)?).map_err(text)
    };
    let stack = veth.server.0.run(run).map_err(text)??;
    let mut end = ClientEnd::open(&veth)?;
    end.poll_inline(&veth)?;
    let wire = XdpWire { end, format: Format::new(client, server, setup.payload) };
    Bed::new(stack, Client::new(Box::new(wire)), Some(veth))
}
