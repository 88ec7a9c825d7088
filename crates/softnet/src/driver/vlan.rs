//! `driver = "vlan"`: a VLAN (IEEE 802.1Q) over another device of the stack, its link. It is opened and closed with that, by
//! the housekeeper, and has no queues: see [`device::vlan`](crate::device).

use std::any::Any;
use std::sync::Arc;

use softnet_core::SoftnetData;
use softnet_core::skb::{Region, VlanProto};

use super::{DeviceDriver, DeviceError, Driver, Keys, Kind, OpenDevice, OpenRequest, Opener};
use crate::util::{Limit, range};

pub(super) const KIND: Kind = Kind { name: NAME, keys: &["link", "id", "protocol", "mtu"], read };

const NAME: &str = "vlan";
/// 0 is no VLAN, and 4095 is reserved (IEEE 802.1Q table 9-2).
const ID: Limit = range(1, 4094);
const MTU: Limit = range(68, 65535);
const PROTOCOLS: [(&str, VlanProtocol); 2] =
    [("802.1Q", VlanProtocol::Dot1q), ("802.1ad", VlanProtocol::Dot1ad)];

/// What a VLAN is told.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Vlan {
    /// The device that its frames come and leave by, with a tag: any other of the stack, also a VLAN.
    pub link: String,
    /// Its number, 1 to 4094.
    pub id: u16,
    /// The kind of its tags.
    pub protocol: VlanProtocol,
    /// Largest L3 packet in bytes, at most the link's, which it is without.
    pub mtu: Option<u16>,
}

impl Vlan {
    /// VLAN `id` of 802.1Q over the device called `link`.
    pub fn new(link: impl Into<String>, id: u16) -> Self {
        Vlan { link: link.into(), id, protocol: VlanProtocol::Dot1q, mtu: None }
    }

    /// The same, changed by `change`.
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }
}

/// The kind of a VLAN's tags.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum VlanProtocol {
    /// Of customers: EtherType 0x8100.
    Dot1q,
    /// Of providers: EtherType 0x88a8.
    Dot1ad,
}

impl VlanProtocol {
    /// As a configuration has it.
    pub fn name(self) -> &'static str {
        match self {
            VlanProtocol::Dot1q => PROTOCOLS[0].0,
            VlanProtocol::Dot1ad => PROTOCOLS[1].0,
        }
    }
}

impl From<VlanProtocol> for VlanProto {
    fn from(protocol: VlanProtocol) -> Self {
        match protocol {
            VlanProtocol::Dot1q => VlanProto::Dot1q,
            VlanProtocol::Dot1ad => VlanProto::Dot1ad,
        }
    }
}

fn read(keys: &mut dyn Keys) -> DeviceDriver {
    let link = keys.text("link").unwrap_or_default();
    let id = keys.integer("id", &ID).map_or(0, |id| u16::try_from(id).unwrap_or(u16::MAX));
    let protocol = keys.choice("protocol", &PROTOCOLS.map(|(name, _)| name)).map(|at| PROTOCOLS[at].1);
    let mtu = keys.integer("mtu", &MTU).map(|mtu| u16::try_from(mtu).unwrap_or(0));
    Vlan { link, id, protocol: protocol.unwrap_or(VlanProtocol::Dot1q), mtu }.into()
}

impl Driver for Vlan {
    fn name(&self) -> &'static str {
        NAME
    }

    fn frames(&self) -> u64 {
        0
    }

    fn check(&self, wrong: &mut dyn FnMut(&'static str, String)) {
        if let Some(why) = ID.wrong(self.id.into()) {
            wrong("id", why);
        }
        if let Some(why) = self.mtu.and_then(|mtu| MTU.wrong(mtu.into())) {
            wrong("mtu", why);
        }
    }

    fn opener(&self, _: &Arc<Region>, _: usize) -> Result<Box<dyn Opener>, DeviceError> {
        let refuse = |device: &OpenRequest<'_>, _: &mut SoftnetData| -> Result<OpenDevice, DeviceError> {
            Err(format!("{}: a VLAN is opened with its link", device.name).into())
        };
        Ok(Box::new(refuse))
    }

    fn is_equal(&self, other: &dyn Any) -> bool {
        other.downcast_ref() == Some(self)
    }
}
