//! The XDP program of one device: loaded, attached, led to the sockets, exchanged, and taken off.
//!
//! Any thread may call it. The program stays attached as long as one socket of the device is open, and goes before
//! the last one does, so that packets then reach the kernel instead of nobody.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::claim::{ClaimFilter, FRAGMENT_KEY_LEN, Maps};
use super::ports::UdpPorts;
use crate::bpf::{Map, Set, XdpLink, XdpMode};
use crate::sys_error::SysResult;

/// Multicast groups that may be joined on a device.
const MAX_GROUPS: u32 = 4096;

/// Fragmented datagrams on their way to shared addresses that are remembered.
const MAX_FRAGMENTED: u32 = 1024;

/// A device's program and the map that leads it to the sockets.
pub(super) struct Attachment {
    sockets: Map,
    /// Multicast groups that are softnet's, by [`group_key`](super::claim::group_key).
    groups: Set,
    ports: Arc<UdpPorts>,
    /// Fragmented datagrams to shared addresses that are softnet's, kept by the program.
    fragments: Set<FRAGMENT_KEY_LEN>,
    /// Counts softnet's frames that are too long for it.
    too_long: Map,
    link: Mutex<Option<XdpLink>>,
    open: AtomicUsize,
}

impl Attachment {
    /// Attaches a program that claims what `filter` says; as long as no socket is [led to](Self::lead), it passes all.
    pub(super) fn new(
        filter: &ClaimFilter,
        ports: &Arc<UdpPorts>,
        ifindex: u32,
        queues: u32,
        mode: XdpMode,
    ) -> SysResult<Self> {
        let attachment = Attachment {
            sockets: Map::xsk(queues)?,
            groups: Set::new("softnet_groups", MAX_GROUPS)?,
            ports: ports.clone(),
            fragments: Set::lru("softnet_frags", MAX_FRAGMENTED)?,
            too_long: Map::percpu_counters("softnet_long", 1)?,
            link: Mutex::default(),
            open: AtomicUsize::new(0),
        };
        let link = XdpLink::attach(&filter.load(attachment.maps())?, ifindex, mode)?;
        *attachment.link() = Some(link);
        Ok(attachment)
    }

    fn maps(&self) -> Maps<'_> {
        let Attachment { sockets, groups, ports, fragments, too_long, .. } = self;
        Maps { sockets, groups, ports: ports.set(), fragments, too_long }
    }

    /// Frames that were softnet's and too long for it.
    pub(super) fn too_long(&self) -> u64 {
        // A map of ours that is there can be read.
        self.too_long.sum(0).unwrap_or(0)
    }

    fn link(&self) -> MutexGuard<'_, Option<XdpLink>> {
        self.link.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on packets of RX queue `queue` go to `socket`.
    pub(super) fn lead(&self, queue: u32, socket: std::os::fd::BorrowedFd<'_>) -> SysResult<()> {
        self.sockets.update_fd(queue, socket)
    }

    /// The multicast groups that the program claims.
    pub(super) fn groups(&self) -> &Set {
        &self.groups
    }

    /// Exchanges the program for one that claims what `filter` says, between two packets. Without effect once the
    /// device is closed, or its interface is gone (whose addresses go first).
    pub(super) fn replace(&self, filter: &ClaimFilter) -> SysResult<()> {
        let replaced = match &*self.link() {
            Some(link) => link.update(&filter.load(self.maps())?),
            None => Ok(()),
        };
        replaced.or_else(|error| if error.errno() == Some(libc::ENOLINK) { Ok(()) } else { Err(error) })
    }

    pub(super) fn socket_opened(&self) {
        self.open.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn socket_closed(&self) {
        if self.open.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.link().take();
        }
    }
}
