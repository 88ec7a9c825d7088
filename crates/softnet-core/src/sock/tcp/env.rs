//! What surrounds a shard for the time of one entry.

use softnet_tcp::{Config, Instant};

use super::super::key::Flow;
use super::super::memory::{Room, SendRoom};
use super::super::table::Sockets;
use super::output::mss_of;
use crate::ip::pmtu::PathMtus;
use crate::ip::tables::Tables;
use crate::siphash::SipKey;

/// What surrounds a shard for the time of one entry.
pub struct Env<'a> {
    /// ns of the stack's clock.
    pub now: u64,
    /// Knobs.
    pub cfg: &'a Config,
    /// Routes.
    pub tables: &'a Tables,
    /// The secret of initial numbers and cookies.
    pub key: &'a SipKey,
    /// Paths that take less than their first link.
    pub paths: &'a PathMtus,
    /// All sockets: listeners are found there, and readiness is written there.
    pub sockets: &'a Sockets,
    /// The NAPI instance that packets came by; 0: none.
    pub napi_id: u32,
    /// What sockets may hold beside what they hold.
    pub room: Room,
    /// What streams may queue to be sent, as far as there is `room`.
    pub send_room: SendRoom,
    /// Memory is scarce for all sockets together.
    pub pressed: bool,
    /// Bytes of this stack that wait before the device with this index.
    pub backlog: &'a dyn Fn(u16) -> u64,
    /// So many bytes are about to wait there: whether they are in `backlog` from now on, as long as they are in
    /// [`Effects::reserved`](super::Effects::reserved).
    pub reserve: &'a dyn Fn(u16, u64) -> bool,
    /// The shard's part of `tcp_max_tw_buckets`.
    pub max_time_waits: usize,
    /// The shard's part of `tcp_max_orphans`.
    pub max_orphans: usize,
}

impl Env<'_> {
    /// The engine's clock.
    pub(super) fn instant(&self) -> Instant {
        Instant(self.now / 1000)
    }

    /// The MSS on the way to the far end of `flow`, whose first link takes `mtu` bytes.
    pub(super) fn mss(&self, mtu: u16, flow: &Flow) -> u16 {
        mss_of(self.paths.limit(flow.remote).map_or(mtu, |path| path.min(mtu)), flow.remote)
    }

    pub(super) fn hash(&self) -> impl Fn(&[u64]) -> u64 {
        |words| self.key.hash(words)
    }
}
