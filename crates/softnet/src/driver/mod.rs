//! Drivers: what opens devices. Each has a file here: its own keys of `[[device]]`, what these may be, and how its devices
//! are opened. Those that a configuration can name are in `KINDS`, and nothing else lists them.
//!
//! The configuration has a driver's keys read and checked here without knowing them, and the stack makes one [`Opener`] for
//! all of its devices that are of a driver. A program that embeds the stack brings openers of its own.
//!
//! Invariant: a device takes the keys of its own driver, beside those that all devices have, and no other driver's.

mod error;
mod link;
pub(crate) mod packet;
pub(crate) mod tap;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod vlan;
pub(crate) mod xdp;

use std::any::{Any, TypeId};
use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use softnet_core::SoftnetData;

pub use error::DeviceError;
pub use link::LinkChange;
pub use packet::Packet;
pub use softnet_core::napi::MitigationConfig;
pub use softnet_core::skb::{DropReason, Region, RegionError};
pub use softnet_core::steer::XpsError;
pub use softnet_dev::hand_over::DeviceHandOver;
pub use softnet_dev::packet::PacketError;
pub use softnet_dev::snoop::Snoop;
pub use softnet_dev::tap::TapError;
pub use softnet_dev::xdp::{LocalEnd, Ports, XdpError};
pub use softnet_dev::{
    Device, DeviceInfo, Doorbell, Features, KernelIrq, LinkState, OpenDevice, QueueStats, Reaped, RxQueue,
    SysError, SysResult, TxQueue,
};
pub use tap::Tap;
pub use vlan::{Vlan, VlanProtocol};
pub use xdp::{Xdp, XdpMode};

use crate::util::Limit;

/// The drivers that a configuration can name; the first is that of a device that names none.
pub(crate) const KINDS: &[Kind] = &[
    xdp::KIND,
    vlan::KIND,
    tap::KIND,
    packet::KIND,
    #[cfg(test)]
    testing::KIND,
];

/// A driver as a configuration sees it.
#[derive(Clone, Copy)]
pub(crate) struct Kind {
    /// What `driver = "…"` calls it.
    pub(crate) name: &'static str,
    /// Its own keys of `[[device]]`.
    pub(crate) keys: &'static [&'static str],
    /// Reads them. What can't be read is told, and its default stands in.
    pub(crate) read: fn(&mut dyn Keys) -> DeviceDriver,
}

/// The values of one `[[device]]`, for its driver to read. What can't be read is told with its place.
pub(crate) trait Keys {
    /// `true` or `false`.
    fn boolean(&mut self, key: &'static str) -> Option<bool>;
    /// Text; told if it is missing.
    fn text(&mut self, key: &'static str) -> Option<String>;
    /// A number that a `u32` can hold; whether it is within `limit` is for [`Driver::check`].
    fn integer(&mut self, key: &'static str, limit: &Limit) -> Option<u32>;
    /// A MAC address.
    fn mac(&mut self, key: &'static str) -> Option<[u8; 6]>;
    /// Which of `names` it is.
    fn choice(&mut self, key: &'static str, names: &[&str]) -> Option<usize>;
}

/// A driver, with what it is told of one device.
pub trait Driver: Any + fmt::Debug + Send + Sync {
    /// What `driver = "…"` calls it. The devices of a stack whose drivers are of one type are
    /// opened by one [`Opener`].
    fn name(&self) -> &'static str;
    /// Frames that a queue of the device takes: posted for receiving, and in sending.
    fn frames(&self) -> u64;
    /// Tells what is wrong with its values: the key, and why.
    fn check(&self, wrong: &mut dyn FnMut(&'static str, String));
    /// What speaks against taking the interface of `device`, in the calling thread's network
    /// namespace, as it is now. It is not touched; what becomes known only by opening it is not
    /// found.
    fn look(&self, _device: &OpenRequest<'_>) -> Result<(), DeviceError> {
        Ok(())
    }
    /// What opens its devices, so many, on `region`.
    fn opener(&self, region: &Arc<Region>, devices: usize) -> Result<Box<dyn Opener>, DeviceError>;
    /// Whether `other` says the same.
    fn is_equal(&self, other: &dyn Any) -> bool;
}

/// The driver of a device.
#[derive(Clone, Debug)]
pub struct DeviceDriver(Arc<dyn Driver>);

impl DeviceDriver {
    /// What it is told, if it is of driver `D`.
    pub fn get<D: Driver>(&self) -> Option<&D> {
        let driver: &dyn Any = &*self.0;
        driver.downcast_ref()
    }

    /// The type of the driver.
    pub(crate) fn kind(&self) -> TypeId {
        let driver: &dyn Any = &*self.0;
        driver.type_id()
    }

    /// The same, to be changed. Copies of this do not change.
    pub fn get_mut<D: Driver + Clone>(&mut self) -> Option<&mut D> {
        *self = self.get::<D>()?.clone().into();
        let driver: &mut dyn Any = Arc::get_mut(&mut self.0)?;
        driver.downcast_mut()
    }
}

impl std::ops::Deref for DeviceDriver {
    type Target = dyn Driver;

    fn deref(&self) -> &Self::Target {
        &*self.0
    }
}

impl<D: Driver> From<D> for DeviceDriver {
    fn from(driver: D) -> Self {
        DeviceDriver(Arc::new(driver))
    }
}

impl PartialEq for DeviceDriver {
    fn eq(&self, other: &Self) -> bool {
        self.0.is_equal(&*other.0)
    }
}

/// The driver of a device that the program opens itself: see [`StackBuilder::device_with`](crate::StackBuilder::device_with).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Own;

impl Driver for Own {
    fn name(&self) -> &'static str {
        "own"
    }

    fn frames(&self) -> u64 {
        0
    }

    fn check(&self, _: &mut dyn FnMut(&'static str, String)) {}

    fn opener(&self, _: &Arc<Region>, _: usize) -> Result<Box<dyn Opener>, DeviceError> {
        let refuse = |device: &OpenRequest<'_>, _: &mut SoftnetData| -> Result<_, DeviceError> {
            Err(format!("{}: expected an opener of the program's own", device.name).into())
        };
        Ok(Box::new(refuse))
    }

    fn is_equal(&self, other: &dyn Any) -> bool {
        other.is::<Own>()
    }
}

/// A device that is to be opened.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct OpenRequest<'a> {
    /// Its index in the stack.
    pub dev: u16,
    /// Its name.
    pub name: &'a str,
    /// softnet's addresses on it, of either family, anycast ones too.
    pub addresses: Vec<IpAddr>,
    /// Whether it is to be taken although something speaks against that.
    pub force: bool,
    /// Its driver, with what that is told of it.
    pub driver: &'a DeviceDriver,
    /// The VLANs that are over it at once, whose frames are softnet's whatever else they are.
    pub vlans: Vec<VlanRequest>,
}

/// A VLAN over a device that is to be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct VlanRequest {
    /// The kind of its tags.
    pub protocol: VlanProtocol,
    /// Its number.
    pub id: u16,
    /// softnet's addresses on it, and on VLANs over it.
    pub addresses: Vec<IpAddr>,
}

/// Opens devices. Called by one thread at a time: at start, and whenever an interface comes back.
pub trait Opener: Send {
    /// Opens a device on the region of `ctx`.
    fn open(&mut self, device: &OpenRequest<'_>, ctx: &mut SoftnetData) -> Result<OpenDevice, DeviceError>;

    /// As [`open`](Self::open), of a device that another process has open, and is about to hand
    /// over.
    fn take(
        &mut self,
        device: &OpenRequest<'_>,
        _ctx: &mut SoftnetData,
        _handed: DeviceHandOver,
    ) -> Result<OpenDevice, DeviceError> {
        let (name, driver) = (device.name, device.driver.name());
        Err(format!("{name}: a device of driver {driver:?} can't be taken over").into())
    }

    /// The addresses that the kernel has changed, or what a device's interface is a port of; or may
    /// have.
    fn addresses_changed(&mut self, _device: &OpenRequest<'_>) {}

    /// An address of `device` that the kernel has, too, and which is not to be shared with it, if
    /// there is one: with the name of the interface that has it.
    fn conflict(&mut self, _device: &OpenRequest<'_>) -> Option<(IpAddr, String)> {
        None
    }

    /// Changes the link of `device`: what its peers see of it, and what packets it takes. The
    /// stack opens and closes the device itself, and opens it anew by another MTU.
    ///
    /// By default there is nothing to be done for one that is used, or not used any more, and the
    /// MTU can't be changed.
    ///
    /// # Errors
    /// Why it can't be done; then nothing has changed.
    fn set_link(&mut self, device: &OpenRequest<'_>, change: LinkChange) -> Result<(), DeviceError> {
        match change {
            LinkChange::Up | LinkChange::Down => Ok(()),
            LinkChange::Mtu(_) => {
                let (name, driver) = (device.name, device.driver.name());
                Err(format!("{name}: the MTU of a device of driver {driver:?} can't be set").into())
            }
        }
    }

    /// Gets ready for `devices` devices of `driver`, which may be of another kind than those that it opens.
    /// What opens any device that it is asked for is ready for all.
    ///
    /// # Errors
    /// Why it can't open such devices.
    fn prepare(&mut self, _driver: &DeviceDriver, _devices: usize) -> Result<(), DeviceError> {
        Ok(())
    }

    /// Device `dev` is of `driver` from now on, which it was [prepared](Self::prepare) for: the
    /// device is new, or not open.
    fn assign(&mut self, _dev: u16, _driver: &DeviceDriver) {}

    /// Device `dev` is closed, and not to be opened again before it is configured again.
    fn forget(&mut self, _dev: u16) {}

    /// Where its devices look up the ports that sockets have open, if they do.
    fn ports(&self) -> Option<Arc<dyn Ports>> {
        None
    }

    /// Whether the device with index `dev` is an interface of the kernel, which comes and goes.
    fn on_interface(&self, _dev: u16) -> bool {
        false
    }
}

impl<F, E> Opener for F
where
    F: FnMut(&OpenRequest<'_>, &mut SoftnetData) -> Result<OpenDevice, E> + Send,
    E: Into<DeviceError>,
{
    fn open(&mut self, device: &OpenRequest<'_>, ctx: &mut SoftnetData) -> Result<OpenDevice, DeviceError> {
        self(device, ctx).map_err(Into::into)
    }
}

/// What opens the devices of a stack, each by its driver.
pub(crate) struct Openers {
    region: Arc<Region>,
    all: Vec<Box<dyn Opener>>,
    /// Which of them is for the drivers of a type: an opener knows the values of its own driver
    /// only, and a name may be taken twice.
    of_type: BTreeMap<TypeId, usize>,
    /// For each device which of them opens it.
    of: Vec<usize>,
}

impl Openers {
    /// For devices on `region` with `drivers`, in the order of their indices.
    pub(crate) fn new(region: &Arc<Region>, drivers: &[&DeviceDriver]) -> Result<Self, DeviceError> {
        let (all, of_type, of) = Default::default();
        let mut openers = Openers { region: region.clone(), all, of_type, of };
        for driver in drivers {
            let devices = drivers.iter().filter(|other| other.kind() == driver.kind()).count();
            let at = openers.of_kind(driver, devices)?;
            openers.of.push(at);
        }
        Ok(openers)
    }

    /// Which of them is for `driver`, made for so many devices if there is none yet.
    fn of_kind(&mut self, driver: &DeviceDriver, devices: usize) -> Result<usize, DeviceError> {
        if let Some(at) = self.of_type.get(&driver.kind()) {
            return Ok(*at);
        }
        self.all.push(driver.opener(&self.region, devices)?);
        let at = self.all.len() - 1;
        self.of_type.insert(driver.kind(), at);
        Ok(at)
    }

    /// Has device `dev` opened by `opener`, whatever its driver is.
    pub(crate) fn with(mut self, dev: u16, opener: Box<dyn Opener>) -> Self {
        if let Some(of) = self.of.get_mut(usize::from(dev)) {
            *of = self.all.len();
            self.all.push(opener);
        }
        self
    }

    fn at(&self, dev: u16) -> Option<usize> {
        self.of.get(usize::from(dev)).copied()
    }
}

impl Opener for Openers {
    fn open(&mut self, device: &OpenRequest<'_>, ctx: &mut SoftnetData) -> Result<OpenDevice, DeviceError> {
        match self.at(device.dev) {
            Some(at) => self.all[at].open(device, ctx),
            None => Err(format!("{}: no driver is known for it", device.name).into()),
        }
    }

    fn take(
        &mut self,
        device: &OpenRequest<'_>,
        ctx: &mut SoftnetData,
        handed: DeviceHandOver,
    ) -> Result<OpenDevice, DeviceError> {
        match self.at(device.dev) {
            Some(at) => self.all[at].take(device, ctx, handed),
            None => Err(format!("{}: no driver is known for it", device.name).into()),
        }
    }

    fn addresses_changed(&mut self, device: &OpenRequest<'_>) {
        if let Some(at) = self.at(device.dev) {
            self.all[at].addresses_changed(device);
        }
    }

    fn conflict(&mut self, device: &OpenRequest<'_>) -> Option<(IpAddr, String)> {
        let at = self.at(device.dev)?;
        self.all[at].conflict(device)
    }

    fn set_link(&mut self, device: &OpenRequest<'_>, change: LinkChange) -> Result<(), DeviceError> {
        match self.at(device.dev) {
            Some(at) => self.all[at].set_link(device, change),
            None => Err(format!("{}: no driver is known for it", device.name).into()),
        }
    }

    fn prepare(&mut self, driver: &DeviceDriver, devices: usize) -> Result<(), DeviceError> {
        self.of_kind(driver, devices).map(|_| ())
    }

    fn assign(&mut self, dev: u16, driver: &DeviceDriver) {
        self.forget(dev);
        let Some(&at) = self.of_type.get(&driver.kind()) else { return };
        let slot = usize::from(dev);
        if self.of.len() <= slot {
            // None of those between is opened before it is assigned, too.
            self.of.resize(slot + 1, at);
        }
        self.of[slot] = at;
    }

    fn forget(&mut self, dev: u16) {
        if let Some(at) = self.at(dev) {
            self.all[at].forget(dev);
        }
    }

    /// Of the first that has any: one set of ports serves all devices of a driver, and there is one such driver.
    fn ports(&self) -> Option<Arc<dyn Ports>> {
        self.all.iter().find_map(|opener| opener.ports())
    }

    fn on_interface(&self, dev: u16) -> bool {
        self.at(dev).is_some_and(|at| self.all[at].on_interface(dev))
    }
}
