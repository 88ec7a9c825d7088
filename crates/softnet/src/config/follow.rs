//! What a stack follows of the kernel's tables: `stack.follow`.
//!
//! Plain types; how they are read is in `read`.

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
}

impl Default for FollowConfig {
    /// What `follow = "kernel"` means.
    fn default() -> Self {
        FollowConfig { tables: vec![MAIN], neighbours: true, addresses: true }
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
