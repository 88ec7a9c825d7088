//! Why a device can't be opened.

use std::error::Error;
use std::io;

use softnet_core::qdisc::SpecError;
use softnet_core::steer::XpsError;
use softnet_dev::packet::PacketError;
use softnet_dev::sys_error::files_hint;
use softnet_dev::tap::TapError;
use softnet_dev::xdp::XdpError;

/// Why a device can't be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// Its driver refused.
    #[error(transparent)]
    Driver(#[from] Box<dyn Error + Send + Sync>),
    /// Its MTU is too small for IPv6 (RFC 8200 section 5).
    #[error("{name}: expected an MTU of at least 1280 for IPv6, found {mtu}")]
    Mtu {
        /// The device.
        name: String,
        /// Its MTU.
        mtu: u16,
    },
    /// Its disciplines don't fit it.
    #[error("{name}: qdisc: {source}")]
    Qdisc {
        /// The device.
        name: String,
        /// Why.
        source: SpecError,
    },
    /// Its maps of TX queues don't fit it.
    #[error("{name}: {source}")]
    Xps {
        /// The device.
        name: String,
        /// Why.
        source: XpsError,
    },
    /// The operating system refused timers for its queues.
    #[error("{name}: timers: {source}{}", files_hint(.source))]
    Timers {
        /// The device.
        name: String,
        /// Why.
        source: io::Error,
    },
}

impl From<XdpError> for DeviceError {
    fn from(error: XdpError) -> Self {
        DeviceError::Driver(error.into())
    }
}

impl From<TapError> for DeviceError {
    fn from(error: TapError) -> Self {
        DeviceError::Driver(error.into())
    }
}

impl From<PacketError> for DeviceError {
    fn from(error: PacketError) -> Self {
        DeviceError::Driver(error.into())
    }
}

impl From<io::Error> for DeviceError {
    fn from(error: io::Error) -> Self {
        let hint = files_hint(&error);
        DeviceError::Driver(if hint.is_empty() { error.into() } else { format!("{error}{hint}").into() })
    }
}

impl From<String> for DeviceError {
    fn from(error: String) -> Self {
        DeviceError::Driver(error.into())
    }
}

impl From<&str> for DeviceError {
    fn from(error: &str) -> Self {
        DeviceError::Driver(error.into())
    }
}
