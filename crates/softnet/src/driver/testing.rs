//! A second driver, for tests: it has keys of its own, and opens nothing.

use std::any::Any;
use std::sync::Arc;

use softnet_core::skb::Region;

use super::{DeviceDriver, DeviceError, Driver, Keys, Kind, Opener, Own};
use crate::util::{Limit, range};

pub(super) const KIND: Kind = Kind { name: "test", keys: &["lanes", "loops"], read };

const LANES: Limit = range(1, 4);

/// What the driver is told of a device.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Test {
    pub(crate) lanes: u32,
    pub(crate) loops: bool,
}

fn read(keys: &mut dyn Keys) -> DeviceDriver {
    let (lanes, loops) = (keys.integer("lanes", &LANES), keys.boolean("loops"));
    Test { lanes: lanes.unwrap_or(1), loops: loops.unwrap_or(false) }.into()
}

impl Driver for Test {
    fn name(&self) -> &'static str {
        KIND.name
    }

    fn frames(&self) -> u64 {
        100 * u64::from(self.lanes)
    }

    fn check(&self, wrong: &mut dyn FnMut(&'static str, String)) {
        if let Some(why) = LANES.wrong(self.lanes.into()) {
            wrong("lanes", why);
        }
    }

    fn opener(&self, region: &Arc<Region>, devices: usize) -> Result<Box<dyn Opener>, DeviceError> {
        Own.opener(region, devices)
    }

    fn is_equal(&self, other: &dyn Any) -> bool {
        other.downcast_ref() == Some(self)
    }
}
