//! `driver = "tap"`: a wire to the kernel of this machine, by a TAP that is made or exists.

use std::any::Any;
use std::sync::Arc;

use softnet_core::SoftnetData;
use softnet_core::skb::Region;
use softnet_dev::OpenDevice;
use softnet_dev::tap::{self, MAX_MTU, MAX_QUEUES, TapConfig, TapQueues};

use super::link::set_interface;
use super::{DeviceError, Driver, Keys, Kind, LinkChange, OpenRequest, Opener};
use crate::driver::DeviceDriver;
use crate::util::{Limit, range};

pub(super) const KIND: Kind = Kind { name: NAME, keys: &["queues", "mac", "mtu", "offloads"], read };

const NAME: &str = "tap";
pub(super) const QUEUES: Limit = range(1, MAX_QUEUES as u64);
const MTU: Limit = range(68, MAX_MTU as u64);
/// An MTU of an interface that is not open yet, and for which none was given.
const USUAL_MTU: u16 = 1500;

/// What the driver is told of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tap {
    /// Queues, each an RX and a TX queue.
    pub queues: u32,
    /// MAC address of softnet's end. `None`: that of the kernel's end with one bit changed.
    pub mac: Option<[u8; 6]>,
    /// MTU of the interface, if softnet makes it. `None`: 1500.
    pub mtu: Option<u32>,
    /// Whether the kernel leaves segments and checksums to softnet.
    pub offloads: bool,
}

impl Default for Tap {
    fn default() -> Self {
        Tap { queues: 1, mac: None, mtu: None, offloads: false }
    }
}

impl Tap {
    /// The same, changed by `change`.
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }
}

fn read(keys: &mut dyn Keys) -> DeviceDriver {
    let (queues, mac) = (keys.integer("queues", &QUEUES), keys.mac("mac"));
    let (mtu, offloads) = (keys.integer("mtu", &MTU), keys.boolean("offloads"));
    Tap { queues: queues.unwrap_or(1), mac, mtu, offloads: offloads.unwrap_or(false) }.into()
}

impl Driver for Tap {
    fn name(&self) -> &'static str {
        NAME
    }

    /// What a queue keeps ready for its next packet.
    fn frames(&self) -> u64 {
        let mtu = self.mtu.and_then(|mtu| u16::try_from(mtu).ok()).unwrap_or(USUAL_MTU);
        u64::from(self.queues) * tap::frames_ready(mtu, self.offloads) as u64
    }

    fn check(&self, wrong: &mut dyn FnMut(&'static str, String)) {
        let numbers = [("queues", &QUEUES, Some(self.queues)), ("mtu", &MTU, self.mtu)];
        for (key, limit, value) in numbers {
            if let Some(why) = value.and_then(|value| limit.wrong(value.into())) {
                wrong(key, why);
            }
        }
        if let Some([first, ..]) = self.mac
            && (first & 1 != 0 || self.mac == Some([0; 6]))
        {
            wrong("mac", "expected the MAC address of a host: no group's, and not zero".into());
        }
    }

    fn opener(&self, _: &Arc<Region>, _: usize) -> Result<Box<dyn Opener>, DeviceError> {
        Ok(Box::new(TapOpener::default()))
    }

    fn is_equal(&self, other: &dyn Any) -> bool {
        other.downcast_ref() == Some(self)
    }
}

/// Opens TAPs, and keeps those that it made as long as it lives.
#[derive(Default)]
struct TapOpener {
    /// By the device's index.
    kept: Vec<Option<Arc<TapQueues>>>,
}

impl Opener for TapOpener {
    fn open(&mut self, device: &OpenRequest<'_>, ctx: &mut SoftnetData) -> Result<OpenDevice, DeviceError> {
        let told = device.driver.get::<Tap>().cloned().unwrap_or_default();
        let config = TapConfig {
            interface: device.name.into(),
            queues: told.queues,
            mac: told.mac,
            mtu: told.mtu,
            offloads: told.offloads,
        };
        let slot = usize::from(device.dev);
        if self.kept.len() <= slot {
            self.kept.resize_with(slot + 1, || None);
        }
        Ok(tap::open(&config, &mut self.kept[slot], device.dev, ctx)?)
    }

    fn forget(&mut self, dev: u16) {
        if let Some(kept) = self.kept.get_mut(usize::from(dev)) {
            *kept = None;
        }
    }

    /// A TAP that softnet does not use has no carrier, and so needs not be set down for the kernel.
    fn set_link(&mut self, device: &OpenRequest<'_>, change: LinkChange) -> Result<(), DeviceError> {
        match change {
            LinkChange::Mtu(_) => set_interface(device.name, change),
            _ => Ok(()),
        }
    }

    fn on_interface(&self, _: u16) -> bool {
        true
    }
}
