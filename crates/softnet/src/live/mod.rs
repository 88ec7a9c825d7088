//! Changes of a running stack that its configuration would have had otherwise: routes, neighbours,
//! addresses; and another configuration in place of the one that it was started with.
//!
//! Called by the housekeeper, the only thread that makes them, so that one is complete before the
//! next begins. Invariant: what is refused changed nothing.

mod addr;
mod error;
mod neigh;
mod reload;
mod route;
mod told;

pub(crate) use addr::changed as changed_addresses;
pub use error::LiveError;
pub(crate) use neigh::change as change_neigh;
pub(crate) use reload::{Merged, merge};
pub(crate) use route::change as change_route;
pub(crate) use told::{Told, print_of};

use crate::config::{Config, DeviceConfig};

/// The device `name` and its index.
pub(crate) fn device<'a>(config: &'a Config, name: &str) -> Result<(u16, &'a DeviceConfig), LiveError> {
    let all = config.devices.iter().enumerate();
    all.map(|(dev, device)| (dev as u16, device)).find(|(_, device)| device.name == name).ok_or_else(|| {
        let exist = config.devices.iter().map(|device| device.name.clone()).collect();
        LiveError::NoDevice { name: name.into(), exist }
    })
}

/// The networks of `devices` of the family that `v4` says, for errors.
fn networks<'a>(devices: impl Iterator<Item = &'a DeviceConfig>, v4: bool) -> String {
    let own = devices.flat_map(|device| &device.addresses).filter(|own| own.addr().is_ipv4() == v4);
    let all: Vec<String> = own.map(|own| own.network().to_string()).collect();
    if all.is_empty() { "there is none".into() } else { all.join(", ") }
}
