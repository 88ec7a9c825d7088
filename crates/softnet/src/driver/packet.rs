//! `driver = "packet"`: any Ethernet interface by packet sockets, beside the kernel.

use std::any::Any;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use softnet_core::SoftnetData;
use softnet_core::skb::Region;
use softnet_dev::OpenDevice;
use softnet_dev::packet::{self, MAX_QUEUES, OwnAddresses, PacketConfig};
use softnet_dev::xdp::Conflict;

use super::link::set_interface;
use super::{DeviceDriver, DeviceError, Driver, Keys, Kind, LinkChange, OpenRequest, Opener};
use crate::util::{Limit, range, warn};

pub(super) const KIND: Kind = Kind { name: NAME, keys: &["queues", "ring", "offloads"], read };

const NAME: &str = "packet";
const QUEUES: Limit = range(1, MAX_QUEUES as u64);
const RING: Limit = range(64, 32768);

/// What the driver is told of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Packet {
    /// Queues that share the interface by flow.
    pub queues: u32,
    /// Frames that each queue's ring holds; fewer if they are large.
    pub ring: u32,
    /// Whether packets of many segments and with partial checksums come as they are.
    pub offloads: bool,
}

impl Default for Packet {
    fn default() -> Self {
        Packet { queues: 1, ring: 512, offloads: false }
    }
}

impl Packet {
    /// The same, changed by `change`.
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }
}

fn read(keys: &mut dyn Keys) -> DeviceDriver {
    let default = Packet::default();
    let (queues, ring) = (keys.integer("queues", &QUEUES), keys.integer("ring", &RING));
    let offloads = keys.boolean("offloads").unwrap_or(default.offloads);
    let (queues, ring) = (queues.unwrap_or(default.queues), ring.unwrap_or(default.ring));
    Packet { queues, ring, offloads }.into()
}

impl Driver for Packet {
    fn name(&self) -> &'static str {
        NAME
    }

    /// Frames lie in rings of the kernel's until they are received.
    fn frames(&self) -> u64 {
        0
    }

    fn check(&self, wrong: &mut dyn FnMut(&'static str, String)) {
        for (key, limit, value) in [("queues", &QUEUES, self.queues), ("ring", &RING, self.ring)] {
            if let Some(why) = limit.wrong(value.into()) {
                wrong(key, why);
            }
        }
    }

    fn look(&self, device: &OpenRequest<'_>) -> Result<(), DeviceError> {
        Ok(packet::look(&config(device, self))?)
    }

    fn opener(&self, _: &Arc<Region>, _: usize) -> Result<Box<dyn Opener>, DeviceError> {
        Ok(Box::new(PacketOpener::default()))
    }

    fn is_equal(&self, other: &dyn Any) -> bool {
        other.downcast_ref() == Some(self)
    }
}

/// softnet's addresses on a device, and on the VLANs over it.
fn addresses(device: &OpenRequest<'_>) -> Vec<IpAddr> {
    let of_vlans = device.vlans.iter().flat_map(|vlan| &vlan.addresses);
    device.addresses.iter().chain(of_vlans).copied().collect()
}

fn config(device: &OpenRequest<'_>, told: &Packet) -> PacketConfig {
    PacketConfig {
        interface: device.name.into(),
        queues: told.queues,
        ring: told.ring,
        offloads: told.offloads,
        force: device.force,
        addresses: addresses(device),
    }
}

#[derive(Default)]
struct PacketOpener {
    /// Of the devices that were opened, by index.
    own: BTreeMap<u16, OwnAddresses>,
}

impl Opener for PacketOpener {
    fn open(&mut self, device: &OpenRequest<'_>, _: &mut SoftnetData) -> Result<OpenDevice, DeviceError> {
        let told = device.driver.get::<Packet>().cloned().unwrap_or_default();
        let (open, own) = packet::open_with_addresses(&config(device, &told), device.dev)?;
        self.own.insert(device.dev, own);
        Ok(open)
    }

    fn forget(&mut self, dev: u16) {
        self.own.remove(&dev);
    }

    fn addresses_changed(&mut self, device: &OpenRequest<'_>) {
        if let Some(own) = self.own.get(&device.dev) {
            let conflict = own.replace(&addresses(device)).filter(|_| !device.force);
            if let Some(Conflict { address, holder }) = conflict {
                let name = device.name;
                warn(format_args!(
                    "{name}: the kernel has {address} now, too, on {holder}: both answer what is sent there by {name}"
                ));
            }
        }
    }

    fn conflict(&mut self, device: &OpenRequest<'_>) -> Option<(IpAddr, String)> {
        let addresses = if device.force { &[][..] } else { &device.addresses };
        let conflict = self.own.get(&device.dev)?.conflict(addresses)?;
        Some((conflict.address, conflict.holder))
    }

    fn set_link(&mut self, device: &OpenRequest<'_>, change: LinkChange) -> Result<(), DeviceError> {
        set_interface(device.name, change)
    }

    fn on_interface(&self, _: u16) -> bool {
        true
    }
}
