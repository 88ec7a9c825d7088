//! The XDP program of one device: loaded, attached, led to the sockets, exchanged, and taken off.
//!
//! Any thread may call it. The program stays attached as long as one socket of the device is open, and goes with the
//! last one. What it claims for a queue without a socket it passes to the kernel, so that no packet is lost meanwhile.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::claim::{ClaimFilter, FRAGMENT_KEY_LEN, Maps, VlanSet};
use super::control::Control;
use super::ports::OpenPorts;
use super::refusal;
use crate::bpf::{KernelFn, LruMap, Map, Program, Set, XdpLink, XdpMode};
use crate::netlink::Link;
use crate::netns::NetNs;
use crate::patience::Patience;
use crate::sys_error::{SysError, SysResult};

/// Multicast groups that may be joined on a device.
const MAX_GROUPS: u32 = 4096;
/// VLANs that may be added while a device is open.
const MORE_VLANS: u32 = 1024;

/// Fragmented datagrams on their way to shared addresses that are remembered.
const MAX_FRAGMENTED: u32 = 1024;

/// How long another program that is attached is waited for.
const ATTACH: Patience = Patience { tries: 100, pause: Duration::from_millis(2) };

/// A device's program and the map that leads it to the sockets.
pub(crate) struct Attachment {
    sockets: Map,
    /// Multicast groups that are softnet's, by [`group_key`](super::claim::group_key).
    groups: Set,
    ports: Arc<OpenPorts>,
    /// Fragmented datagrams to shared addresses that are softnet's, kept by the program.
    fragments: LruMap<FRAGMENT_KEY_LEN>,
    /// The VLANs that are softnet's.
    vlans: VlanSet,
    /// Counts softnet's frames that are too long for it.
    too_long: Map,
    /// The driver that the program asks for tags beside frames.
    driver: Option<Driver>,
    link: Mutex<Option<XdpLink>>,
    /// Of an attachment that another process made: the program that is to take the place of its
    /// own.
    ready: Mutex<Option<Program>>,
    open: AtomicUsize,
}

/// A driver that knows the VLAN tags beside frames. A veth's peer leaves them there
/// (`tx-vlan-offload`), and no switch of the veth's own puts them back.
struct Driver {
    /// The interface, for which a program has to be loaded, and where that is.
    ifindex: u32,
    netns: NetNs,
    tag_of: KernelFn,
}

impl Driver {
    fn of(link: &Link, mode: XdpMode) -> Option<Self> {
        let knows = mode == XdpMode::Native && link.kind.as_deref() == Some("veth");
        let tag_of = knows.then(KernelFn::xdp_vlan_tag)??;
        Some(Driver { ifindex: link.index, netns: NetNs::current().ok()?, tag_of })
    }

    /// Loads the program that asks it; `None` if the interface is gone.
    fn load(&self, filter: &ClaimFilter, maps: Maps<'_>) -> SysResult<Option<Program>> {
        let load = || match filter.load_for(maps, self.ifindex, self.tag_of) {
            Err(_) if Control::new(self.ifindex).is_ok_and(|control| control.is_gone()) => Ok(None),
            loaded => loaded.map(Some),
        };
        let elsewhere = |error| SysError::new("load a program for an interface elsewhere", error);
        match self.netns.is_current().map_err(elsewhere)? {
            true => load(),
            false => self.netns.run(load).map_err(elsewhere)?,
        }
    }
}

/// Attaches it, and waits while another is: that of an instance that was killed goes a moment after its process
/// ([`crate::closer`]).
fn attach(program: &Program, ifindex: u32, mode: XdpMode) -> SysResult<XdpLink> {
    ATTACH.exert(refusal::is_occupied, || XdpLink::attach(program, ifindex, mode))
}

impl Attachment {
    /// Attaches a program that claims what `filter` says; as long as no socket is [led to](Self::lead), it passes all.
    pub(super) fn new(
        filter: &ClaimFilter,
        ports: &Arc<OpenPorts>,
        interface: &Link,
        queues: u32,
        mode: XdpMode,
    ) -> SysResult<Self> {
        let mut attachment = Self::detached(filter, ports, interface, queues, mode)?;
        let ifindex = interface.index;
        if let Some(driver) = &attachment.driver
            && let Ok(Some(program)) = driver.load(filter, attachment.maps())
        {
            match attach(&program, ifindex, mode) {
                Ok(link) => {
                    *attachment.link() = Some(link);
                    return Ok(attachment);
                }
                Err(error) if refusal::is_occupied(&error) => return Err(error),
                Err(_) => {}
            }
        }
        attachment.driver = None;
        let link = attach(&filter.load(attachment.maps())?, ifindex, mode)?;
        *attachment.link() = Some(link);
        Ok(attachment)
    }

    /// The same of an interface with `link`, which another process made: its program stays until
    /// the device is [taken over](Self::taken_over).
    pub(super) fn handed_over(
        filter: &ClaimFilter,
        ports: &Arc<OpenPorts>,
        (interface, link): (&Link, XdpLink),
        queues: u32,
        mode: XdpMode,
    ) -> SysResult<Self> {
        let mut attachment = Self::detached(filter, ports, interface, queues, mode)?;
        let for_driver = attachment.driver.as_ref().map(|driver| driver.load(filter, attachment.maps()));
        let program = match for_driver {
            Some(Ok(Some(program))) => program,
            _ => {
                attachment.driver = None;
                filter.load(attachment.maps())?
            }
        };
        (*attachment.link(), attachment.ready) = (Some(link), Mutex::new(Some(program)));
        Ok(attachment)
    }

    /// Maps, and no program.
    fn detached(
        filter: &ClaimFilter,
        ports: &Arc<OpenPorts>,
        interface: &Link,
        queues: u32,
        mode: XdpMode,
    ) -> SysResult<Self> {
        let vlans = VlanSet::new("softnet_vlans", filter.vlans().len() as u32 + MORE_VLANS)?;
        filter.vlans().iter().try_for_each(|vlan| vlans.insert(vlan))?;
        Ok(Attachment {
            sockets: Map::xsk(queues)?,
            groups: Set::new("softnet_groups", MAX_GROUPS)?,
            ports: ports.clone(),
            fragments: LruMap::new("softnet_frags", MAX_FRAGMENTED)?,
            vlans,
            too_long: Map::percpu_counters("softnet_long", 1)?,
            driver: Driver::of(interface, mode),
            link: Mutex::default(),
            ready: Mutex::default(),
            open: AtomicUsize::new(0),
        })
    }

    /// The device is this process's: its own program takes the place of the other's, between two
    /// packets.
    pub(super) fn taken_over(&self) -> SysResult<()> {
        let ready = self.ready.lock().unwrap_or_else(PoisonError::into_inner).take();
        let (Some(program), Some(link)) = (ready, &*self.link()) else { return Ok(()) };
        exchange(link, &program)
    }

    /// A descriptor of the attachment, by which another process takes it over.
    pub(super) fn link_fd(&self) -> SysResult<OwnedFd> {
        let dup = |link: &XdpLink| link.as_fd().try_clone_to_owned();
        let fd = self.link().as_ref().map_or_else(|| Err(io::ErrorKind::NotConnected.into()), dup);
        fd.map_err(|error| SysError::new("hand an XDP program over", error))
    }

    /// Whether it is told of VLAN tags that are beside frames.
    pub(super) fn knows_tags(&self) -> bool {
        self.driver.is_some()
    }

    fn maps(&self) -> Maps<'_> {
        let Attachment { sockets, groups, ports, fragments, vlans, too_long, .. } = self;
        Maps { sockets, groups, ports: ports.set(), fragments, vlans, too_long }
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
        let link = self.link();
        let Some(link) = &*link else { return Ok(()) };
        // Before the program looks for them. Those that were there stay.
        filter.vlans().iter().try_for_each(|vlan| self.vlans.insert(vlan))?;
        let program = match &self.driver {
            Some(driver) => match driver.load(filter, self.maps()) {
                Ok(Some(program)) => program,
                Ok(None) => return Ok(()),
                // `bpf_jit_harden` was set meanwhile.
                Err(error) if error.is_unsupported() => filter.load(self.maps())?,
                Err(error) => return Err(error),
            },
            None => filter.load(self.maps())?,
        };
        exchange(link, &program)
    }

    pub(super) fn socket_opened(&self) {
        self.open.fetch_add(1, Ordering::Relaxed);
    }

    /// With the last socket the program comes off: when what is returned is dropped.
    #[must_use]
    pub(super) fn socket_closed(&self) -> Option<XdpLink> {
        let last = self.open.fetch_sub(1, Ordering::Relaxed) == 1;
        last.then(|| self.link().take()).flatten()
    }
}

/// Puts `program` in the place of the one at `link`; if the interface is just gone it needs none.
fn exchange(link: &XdpLink, program: &Program) -> SysResult<()> {
    let replaced = link.update(program);
    replaced.or_else(|error| if error.errno() == Some(libc::ENOLINK) { Ok(()) } else { Err(error) })
}
