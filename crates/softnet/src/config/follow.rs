//! What a stack follows of the kernel's tables, or of zebra's: `stack.follow`.
//!
//! Plain types; how they are read is in `read`.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

/// The table that routes are in unless said otherwise.
pub(super) const MAIN: u32 = 254;
/// That of the kernel's own addresses, which are not softnet's.
pub(super) const LOCAL: u32 = 255;

/// What is followed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FollowConfig {
    /// The kernel's tables whose routes are softnet's too, by number. Of two routes with the same
    /// metric that of the earlier table is used.
    pub tables: Vec<u32>,
    /// Whether neighbours that are fixed by hand (`ip neigh add … nud permanent`) are fixed here too.
    pub neighbours: bool,
    /// Whether the kernel's addresses of an interface are those of its device, too, if that is `shared`.
    pub addresses: bool,
    /// Routes come from FRR's zebra by FPM. The kernel's are then only those that it made itself.
    pub fpm: Option<FpmConfig>,
}

impl Default for FollowConfig {
    /// What `follow = "kernel"` means.
    fn default() -> Self {
        FollowConfig { tables: vec![MAIN], neighbours: true, addresses: true, fpm: None }
    }
}

impl FollowConfig {
    /// What `follow = "fpm"` means.
    pub fn fpm() -> Self {
        FollowConfig { fpm: Some(FpmConfig::default()), ..FollowConfig::default() }
    }
}

/// How zebra tells its routes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FpmConfig {
    /// Where softnet listens for zebra, an address of loopback.
    pub listen: SocketAddr,
    /// How long those routes stay that a connection has not told, but one before it had, after it
    /// last told one of these anew.
    pub hold: Duration,
}

impl FpmConfig {
    /// Listens on `listen`, an address of loopback.
    pub fn new(listen: SocketAddr) -> Self {
        FpmConfig { listen, ..FpmConfig::default() }
    }

    /// Whether none but this machine can connect: what connects may set routes, since there is no
    /// authentication.
    pub(super) fn is_local(&self) -> bool {
        self.listen.ip().is_loopback() && self.listen.port() != 0
    }

    /// Sets how long routes stay that are not told anew.
    #[must_use]
    pub fn hold(self, hold: Duration) -> Self {
        FpmConfig { hold, ..self }
    }
}

impl Default for FpmConfig {
    /// The port that zebra connects to unless it is told another.
    fn default() -> Self {
        FpmConfig { listen: (Ipv4Addr::LOCALHOST, 2620).into(), hold: Duration::from_secs(60) }
    }
}

/// The number of a table, by its name in `/etc/iproute2/rt_tables` as that is everywhere.
pub(super) fn table(name: &str) -> Option<u32> {
    match name {
        "main" => Some(MAIN),
        "default" => Some(253),
        _ => None,
    }
}
