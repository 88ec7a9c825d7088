//! RSS and filters of a device as they are shown, and why they can't be changed.
//!
//! What may be asked for is in `softnet_core::steer` ([`RssChange`], [`RuleOrder`]); devices answer
//! by their [`Device`](crate::Device) methods. Plain data; any thread may have it.

use std::fmt;

use softnet_core::steer::{FlowKind, RssError, RuleError, RxClass, format_key};
pub use softnet_core::steer::{RssChange, RuleOrder};

use crate::sys_error::SysError;

/// How a device spreads flows over its RX queues.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RssView {
    /// RX queues.
    pub queues: u32,
    /// The indirection tables, by context; 0 is the main one.
    pub contexts: Vec<(u32, Vec<u32>)>,
    /// `6d:5a:…`; empty if the device does not tell.
    pub key: String,
    /// The function: `toeplitz`.
    pub hfunc: String,
    /// `none`, `symmetric-xor`, `symmetric-or-xor`.
    pub xfrm: String,
    /// What is hashed, by kind of flow: `sd` or `sdfn`; empty if the device does not tell.
    pub fields: Vec<(FlowKind, String)>,
}

impl From<&RxClass> for RssView {
    fn from(class: &RxClass) -> Self {
        let rss = class.rss();
        let table = |(id, table): (u32, &[u16])| (id, table.iter().map(|queue| u32::from(*queue)).collect());
        let fields = |kind| (kind, if rss.hashes_ports(kind) { "sdfn" } else { "sd" }.to_owned());
        RssView {
            queues: rss.queues().into(),
            contexts: rss.contexts().map(table).collect(),
            key: format_key(rss.hash().key()),
            hfunc: "toeplitz".into(),
            xfrm: rss.hash().xfrm().name().into(),
            fields: FlowKind::ALL.map(fields).into(),
        }
    }
}

/// A filter of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleView {
    /// Where it is; the filter with the lowest location that takes a packet decides.
    pub location: u32,
    /// The filter, in the words that make it.
    pub rule: String,
    /// Packets that it took, if the device counts them.
    pub packets: Option<u64>,
    /// Accelerated RFS set it, for one flow.
    pub rfs: bool,
}

/// Why RSS or filters of a device were not told or changed.
#[derive(Debug)]
#[non_exhaustive]
pub enum RxClassError {
    /// The device has none: why.
    NotSupported(String),
    /// The change can't be.
    Rss(RssError),
    /// The filter can't be.
    Rule(RuleError),
    /// The kernel refused.
    Kernel(SysError),
}

impl RxClassError {
    pub(crate) fn unsupported() -> Self {
        RxClassError::NotSupported("its driver has no way to set RSS or filters".into())
    }
}

impl fmt::Display for RxClassError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RxClassError::NotSupported(why) => write!(f, "not supported: {why}"),
            RxClassError::Rss(error) => error.fmt(f),
            RxClassError::Rule(error) => error.fmt(f),
            RxClassError::Kernel(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for RxClassError {}

impl From<RssError> for RxClassError {
    fn from(error: RssError) -> Self {
        RxClassError::Rss(error)
    }
}

impl From<RuleError> for RxClassError {
    fn from(error: RuleError) -> Self {
        RxClassError::Rule(error)
    }
}

impl From<SysError> for RxClassError {
    fn from(error: SysError) -> Self {
        RxClassError::Kernel(error)
    }
}
