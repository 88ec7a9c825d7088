//! What a stack was configured to be last, as far as changes by hand make it otherwise.
//!
//! Kept by the housekeeper. A new configuration is compared with it, so that what was changed by
//! hand stays where that configuration says what the last one said.

use std::fmt::{self, Write};
use std::hash::{DefaultHasher, Hasher};

use crate::config::{Config, FilterConfig, InterfaceAddr};

/// See the module.
pub(crate) struct Told {
    /// The addresses of each device.
    pub(crate) addresses: Vec<Vec<InterfaceAddr>>,
    /// The filter's [print](print_of).
    pub(crate) filter: u64,
}

impl Told {
    /// What `config` says, with that print of its filter.
    pub(crate) fn new(config: &Config, filter: u64) -> Self {
        let addresses = config.devices.iter().map(|device| device.addresses.clone()).collect();
        Told { addresses, filter }
    }
}

/// A number that another filter hardly has: its sets, which may be large, are not kept beside the
/// table that was made of them.
pub(crate) fn print_of(filter: &FilterConfig) -> u64 {
    struct Into(DefaultHasher);
    impl Write for Into {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            self.0.write(text.as_bytes());
            Ok(())
        }
    }
    let mut hasher = Into(DefaultHasher::new());
    // It never fails.
    let _ = write!(hasher, "{filter:?}");
    hasher.0.finish()
}
