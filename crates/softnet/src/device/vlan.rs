//! VLANs over devices: netdevs without queues of their own, which send by their link's and get what comes there with their tag.
//!
//! The housekeeper opens and closes them with their links. Threads that receive hand packets up ([`Netdev::vlans`]), threads
//! that send hand them down ([`Netdev::to_link`]); tags are put into frames when these go to the ring.
//!
//! Invariant: a VLAN has its link's MAC address, is up if its link is, and is open only while its link is.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use softnet_core::SoftnetData;
use softnet_core::ip::input::Ingress;
use softnet_core::ip::source::RpFilter;
use softnet_core::skb::{Batch, VlanProto};
use softnet_core::sync::{AtomicU64, Ordering};
use softnet_core::vlan;
use softnet_dev::{Device, DeviceInfo, LinkState, OpenDevice};

use super::stack_device::Totals;
use super::{Netdev, StackDevice};
use crate::config::{Config, PartialCsum};
use crate::control::Direction;
use crate::driver::Vlan;

/// What a configuration says of a VLAN.
#[derive(Clone, Copy, Debug)]
pub(crate) struct VlanParams {
    /// Index of its link.
    pub(crate) link: u16,
    proto: VlanProto,
    id: u16,
    mtu: Option<u16>,
    partial_csum: PartialCsum,
    rp_filter: RpFilter,
}

impl VlanParams {
    /// Of the device with index `dev`, if that is a VLAN.
    pub(crate) fn of(config: &Config, dev: u16) -> Option<Self> {
        let device = config.devices.get(usize::from(dev))?;
        let Vlan { link, id, protocol, mtu } = device.driver.get()?;
        let link = config.devices.iter().position(|other| other.name == *link)? as u16;
        let (partial_csum, rp_filter) = (device.partial_csum, device.rp_filter);
        Some(VlanParams { link, proto: (*protocol).into(), id: *id, mtu: *mtu, partial_csum, rp_filter })
    }

    /// What is received by it, if `link` is by its link.
    pub(crate) fn ingress(&self, dev: u16, link: &Ingress) -> Ingress {
        let partial_csum = match self.partial_csum {
            PartialCsum::Auto => link.partial_csum,
            PartialCsum::On => true,
            PartialCsum::Off => false,
        };
        Ingress { dev, mac: link.mac, partial_csum, rp_filter: self.rp_filter }
    }
}

/// A VLAN's part of its netdev.
pub(crate) struct VlanNetdev {
    pub(crate) params: VlanParams,
    pub(crate) link: Arc<Netdev>,
    /// Of all its lives.
    pub(crate) stats: VlanStats,
}

/// Counters of a VLAN, which any thread writes, once for a batch. Bytes are without the tag.
#[derive(Debug, Default)]
pub(crate) struct VlanStats {
    pub(crate) rx_packets: AtomicU64,
    pub(crate) rx_bytes: AtomicU64,
    pub(crate) tx_packets: AtomicU64,
    pub(crate) tx_bytes: AtomicU64,
}

impl VlanStats {
    /// Adds them to a device's.
    pub(crate) fn add_to(&self, totals: &mut Totals) {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        totals.rx.packets += get(&self.rx_packets);
        totals.rx.bytes += get(&self.rx_bytes);
        totals.tx.packets += get(&self.tx_packets);
        totals.tx.bytes += get(&self.tx_bytes);
    }

    pub(crate) fn received(&self, batch: &Batch) {
        count(&self.rx_packets, &self.rx_bytes, batch);
    }
}

fn count(packets: &AtomicU64, bytes: &AtomicU64, batch: &Batch) {
    let sum = batch.as_slice().iter().map(|skb| skb.len() as u64).sum();
    packets.fetch_add(batch.len() as u64, Ordering::Relaxed);
    bytes.fetch_add(sum, Ordering::Relaxed);
}

/// The netdevs of `devices`, which come after those that have the netdevs `before`, in their order:
/// each has one, that of a VLAN is on the device at the bottom. From now on links lead what has the
/// tag of a VLAN to it, which is not there before its netdev is appended: that is dropped.
pub(crate) fn netdevs(before: &[Arc<Netdev>], devices: &[Arc<StackDevice>]) -> Vec<Arc<Netdev>> {
    let mut made: Vec<Option<Arc<Netdev>>> = before.iter().cloned().map(Some).collect();
    made.resize(before.len() + devices.len(), None);
    // Links come first: a round for each tag that a packet may have at once. (Of a checked
    // configuration none is left.)
    while made.iter().any(Option::is_none) {
        let done = made.iter().flatten().count();
        for (at, dev) in (before.len()..).zip(devices) {
            let vlan = match dev.vlan {
                _ if made[at].is_some() => continue,
                None => None,
                Some(params) => match made.get(usize::from(params.link)).cloned().flatten() {
                    Some(link) => Some(VlanNetdev { params, link, stats: VlanStats::default() }),
                    None => continue,
                },
            };
            if let Some(VlanNetdev { params, link, .. }) = &vlan {
                link.vlans.insert(params.proto, params.id, dev.index);
            }
            let on = vlan.as_ref().map_or(dev, |vlan| &vlan.link.device).clone();
            let netdev = Netdev::new(dev.index, dev.name.clone(), on);
            made[at] = Some(Arc::new(Netdev { vlan, ..netdev }));
        }
        if made.iter().flatten().count() == done {
            break;
        }
    }
    made.into_iter().skip(before.len()).flatten().collect()
}

impl Netdev {
    /// Has `batch`, which this netdev sends by TX queue `queue`, pass its egress; and if it is a
    /// VLAN, gives the packets its tag and has them pass that of its link. What is left in `batch`
    /// is for the device's queue.
    #[inline(never)]
    pub(crate) fn to_link(&self, ctx: &mut SoftnetData, now: u64, queue: usize, batch: &mut Batch) {
        let mut dev = self;
        loop {
            if dev.egress.is_set() {
                dev.egress.act(ctx, dev.index, Direction::Egress, now, queue, batch);
            }
            let Some(VlanNetdev { params, link, stats }) = &dev.vlan else { return };
            if batch.is_empty() {
                return;
            }
            count(&stats.tx_packets, &stats.tx_bytes, batch);
            ctx.tap_to_link(now, dev.index, queue as u16, batch);
            vlan::push(ctx, dev.index, (params.proto, params.id), batch);
            dev = link;
        }
    }
}

/// The shared part of an open VLAN.
struct VlanDevice {
    info: DeviceInfo,
    link: Arc<dyn Device>,
}

/// A VLAN called `name`, over a link that is open. `partial_csum`: whether partial checksums arrive there.
pub(crate) fn open(
    name: &str,
    vlan: &Vlan,
    params: &VlanParams,
    link: Arc<dyn Device>,
    partial_csum: bool,
) -> OpenDevice {
    let of = link.info();
    let mut info = DeviceInfo::new(name, "vlan");
    info.mode = format!("{} id {} over {}", vlan.protocol.name(), vlan.id, vlan.link);
    (info.mac, info.mtu) = (of.mac, params.mtu.unwrap_or(of.mtu).min(of.mtu));
    info.features.partial_csum = partial_csum;
    OpenDevice::new(Arc::new(VlanDevice { info, link }), Vec::new(), Vec::new())
}

impl Device for VlanDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn link(&self) -> LinkState {
        self.link.link()
    }

    fn join_group(&self, group: IpAddr) -> io::Result<()> {
        self.link.join_group(group)
    }

    fn leave_group(&self, group: IpAddr) {
        self.link.leave_group(group);
    }
}
