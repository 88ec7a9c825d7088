//! Any Linux interface as a device, by AF_XDP (Documentation/networking/af_xdp.rst).
//!
//! [`open`] attaches a small XDP program to the interface, which takes what is addressed to softnet and leaves
//! everything else to the kernel ([`Claim`]), and binds one socket to each RX queue, all on the memory of one
//! [`Umem`]: so a packet that is forwarded from one interface to another stays where it is, and only its frame's
//! number moves.
//!
//! * **Callers.** [`open`], [`Umem`], [`Claims`] and the [`Device`] part: any thread. The queues: their owners,
//!   as [`RxQueue`] and [`TxQueue`] say.
//! * **Invariant.** Every frame is at home, in a packet, or named in exactly one queue's books; so when a device is
//!   closed or its interface vanishes, all its frames come home, and those the kernel still had are counted
//!   ([`Umem::reclaimed`]).
//! * **Modes.** Native: in the driver, before the kernel makes an skb. Where the driver refuses, SKB mode: it works
//!   everywhere, is slower, delivers on the queues that the kernel recorded (a veth: all on queue 0), and cannot take
//!   segments that the sender left larger than the MTU (TSO): the program drops them, and [`Device::losses`] counts them.
//!   What merges segments on the interface itself, or its ports, is switched off meanwhile (`offload`), and in either mode
//!   what takes VLAN tags out of frames. A veth in native mode has its peer stop making them.
//! * **The interface keeps its interrupts**, unless its queues tell of them: then the kernel defers them as the queue's
//!   instance does (`kernel_irq`). Otherwise a sleeping owner does not keep the kernel from receiving into the ring; it is
//!   only not woken more often than it polls.
//! * **Life.** Program and sockets belong to this process and vanish with it, however it ends. An interface whose number
//!   of queues or MAC address is changed has to be opened again: what arrives on queues that were added, or for the new
//!   address, is the kernel's until then.

mod aggregates;
mod attach;
mod claim;
pub(crate) mod control;
mod error;
mod frames;
pub(crate) mod groups;
mod kernel_irq;
pub(crate) mod offload;
mod ports;
mod refusal;
mod reserve;
mod ring;
mod rx;
mod socket;
#[cfg(test)]
mod tests;
pub(crate) mod theirs;
mod tx;
mod umem;

use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use softnet_core::SoftnetData;
use softnet_core::skb::{DropReason, FRAME_SIZE, HEADROOM};
use softnet_core::sock::key::{Addr, addr_of};
use softnet_core::sock::scope::scoped;
use softnet_core::steer::FlowKey;

pub use claim::{Claim, ClaimedVlan};
pub use error::XdpError;
pub use ports::{LocalEnd, OpenPorts, Ports};
pub use theirs::Conflict;
pub use umem::Umem;

use aggregates::Aggregates;
use attach::Attachment;
use claim::ClaimFilter;
use control::Control;
use groups::Groups;
use kernel_irq::KernelNapis;
use offload::{Offloads, Untagging};
use ports::Sharing;
use reserve::Place;
use rx::{MIN_RING, XdpRx};
use socket::Xsk;
use theirs::Theirs;
use tx::XdpTx;
use umem::Binding;

use crate::bpf::XdpMode;
use crate::device::{Device, DeviceInfo, Features, LinkState, OpenDevice, RxQueue, TxQueue};
use crate::ethtool::Ethtool;
use crate::ethtool_rx::KernelRxClass;
use crate::netlink::{Link, Netlink};
use crate::netns::NetNs;
use crate::rx_class::{RssChange, RssView, RuleOrder, RuleView, RxClassError};
use crate::snoop::Snoop;
use crate::sys_error::{SysError, SysResult};

/// Largest MTU.
pub const MAX_MTU: u32 = 9000;

/// Largest MTU whose packets each fit a frame: what that has behind the kernel's headroom, less the Ethernet header.
pub const MAX_MTU_OF_FRAME: u32 = (FRAME_SIZE - HEADROOM - 14) as u32;

/// What a frame may have beside its packet: an Ethernet header, and a VLAN tag.
const LINK_HEADERS: u32 = 14 + 4;

/// Most slots of a ring.
const MAX_RING: u32 = 32768;

/// How the XDP program is attached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Native if the driver can, else SKB mode; [`DeviceInfo::mode`] says which, and why.
    #[default]
    Auto,
    /// Native or not at all.
    Native,
    /// SKB mode, whatever the driver can.
    Skb,
}

/// What to open.
#[derive(Clone, Debug)]
pub struct XdpConfig {
    /// Name of the interface, in the calling thread's network namespace.
    pub interface: String,
    /// See [`Mode`].
    pub mode: Mode,
    /// Slots of each of a queue's four rings: a power of two from 128 to 32768. An RX queue holds as many frames, a TX
    /// queue up to as many.
    pub ring: u32,
    /// Frames that all RX queues together may keep posted: with more queues than that allows, rings are made smaller, down
    /// to 128 slots.
    pub max_posted: usize,
    /// Have the kernel cut runs of TCP segments, where it copies what is sent (no zero-copy): they
    /// leave by a packet socket.
    pub tso: bool,
    /// Take the interface even if it carries a default route or hides VLAN tags, and addresses even
    /// if the kernel has them.
    pub force: bool,
    /// What is softnet's.
    pub claim: Claim,
    /// The ports that its sockets have open, of addresses that it shares with the kernel. `None`: none ever.
    pub ports: Option<Arc<OpenPorts>>,
}

impl XdpConfig {
    /// `interface` with 2048 slots a ring, in the best mode, claiming only what is to be forwarded.
    pub fn new(interface: impl Into<String>) -> Self {
        XdpConfig {
            interface: interface.into(),
            mode: Mode::Auto,
            ring: 2048,
            max_posted: usize::MAX,
            tso: false,
            force: false,
            claim: Claim::default(),
            ports: None,
        }
    }
}

/// Opens the interface as device number `dev` on the memory of `umem`, whose region `ctx` must be of: RX rings are filled
/// from it. Works in the calling thread's network namespace; the device may be used from any.
///
/// A queue whose former socket the kernel has not yet given up is waited for (some tens of milliseconds).
///
/// # Errors
/// See [`XdpError`]. Nothing stays behind.
pub fn open(
    cfg: &XdpConfig,
    umem: &Arc<Umem>,
    dev: u16,
    ctx: &mut SoftnetData,
) -> Result<OpenDevice, XdpError> {
    open_with_claims(cfg, umem, dev, ctx).map(|(device, _)| device)
}

/// As [`open`], and hands out the means to change what the device claims while it is open.
///
/// # Errors
/// As [`open`].
pub fn open_with_claims(
    cfg: &XdpConfig,
    umem: &Arc<Umem>,
    dev: u16,
    ctx: &mut SoftnetData,
) -> Result<(OpenDevice, Claims), XdpError> {
    if !cfg.ring.is_power_of_two() || !(MIN_RING..=MAX_RING).contains(&cfg.ring) {
        return Err(XdpError::RingSize(cfg.ring));
    }
    let (ctx_region, umem_region) = (ctx.region().id(), umem.region().id());
    if ctx_region != umem_region {
        return Err(XdpError::Region { ctx: ctx_region, umem: umem_region });
    }
    let name = &cfg.interface;
    let kernel = |source| XdpError::Kernel { name: name.clone(), source };
    let mut netlink = Netlink::new().map_err(kernel)?;
    let (link, theirs) = usable_link(cfg, &mut netlink)?;
    let ports = cfg.ports.clone().map_or_else(|| OpenPorts::new().map(Arc::new), Ok).map_err(kernel)?;
    let frags = link.mtu > MAX_MTU_OF_FRAME;
    let longest = if frags { link.mtu + LINK_HEADERS } else { 0 };
    let filter = ClaimFilter::new(link.mac, dev, &cfg.claim, &theirs.addresses());
    let filter = filter.with_longest(longest as usize);
    let control = Control::new(link.index).map_err(kernel)?;
    // A driver that does not tell has some of these in use, but at least one; on a TX queue that is not in use the
    // kernel would let packets lie without a word.
    let (rx_queues, tx_queues) = control.channels().unwrap_or((link.rx_queues, 1));

    let mut ring = cfg.ring;
    while rx_queues as usize * ring as usize > cfg.max_posted && ring > MIN_RING {
        ring /= 2;
    }
    let driver = Ethtool::new(link.index).and_then(|ethtool| ethtool.driver()).unwrap_or_default();
    // Before the kernel switches some off.
    let mut offloads = Offloads::of(&link, &mut netlink);
    let (attachment, mode, mut text) = attach(cfg.mode, (&filter, &ports), &link, rx_queues.max(1))
        .map_err(|source| refusal::of(name, source))?;
    text += &offloads.switch_off(mode);
    if let Some(Untagging { interface, command }) = offloads.untagging() {
        if !cfg.force {
            return Err(XdpError::VlanOffload { name: name.clone(), command });
        }
        text += &format!("; {interface} takes VLAN tags out of frames, and {command} was without effect");
    }
    let attachment = Arc::new(attachment);
    let groups = Arc::new(Groups::new(link.index, Some(attachment.clone())));
    // Where the kernel has no IPv6 it can't; much comes through all the same.
    if let Err(error) = groups.solicit(&filter.asked_for(&cfg.claim)) {
        text += &format!(", {error}");
    }
    let napis = Arc::new(KernelNapis::new(&link));
    let mut parts = Parts::default();
    let bind = |queue| Binding { ifindex: link.index, queue, copy: mode == XdpMode::Skb, frags };
    for queue in 0..rx_queues.max(1) {
        let half = (queue < tx_queues).then_some(Transmit { tso: cfg.tso });
        match parts.add_queue(umem, (&attachment, &napis), bind(queue), ring, half, dev, ctx) {
            Ok(posted) if posted >= MIN_RING as usize / 2 => {}
            Ok(posted) => {
                parts.close(ctx);
                return Err(XdpError::NoFrames { name: name.clone(), queue, posted, ring });
            }
            // An older kernel.
            Err(error) if frags && queue == 0 && error.errno() == Some(libc::EINVAL) => {
                parts.close(ctx);
                return Err(XdpError::Mtu { name: name.clone(), mtu: link.mtu, max: MAX_MTU_OF_FRAME });
            }
            // The interface was made with this many queues, but has fewer in use.
            Err(error) if queue > 0 && error.errno() == Some(libc::EINVAL) => break,
            Err(error) => {
                parts.close(ctx);
                return Err(kernel(error));
            }
        }
    }
    if ring != cfg.ring {
        text +=
            &format!(", rings of {ring} instead of {}: {rx_queues} queues share the packet memory", cfg.ring);
    }
    let zero_copy = parts.sockets.iter().all(|socket| socket.zero_copy());
    let partial_csum = hands_over_partial_checksums(link.kind.as_deref(), &driver, mode);
    let info = DeviceInfo {
        name: link.name.clone(),
        driver: "xdp",
        mode: if zero_copy { format!("{text}, zero-copy") } else { text },
        ifindex: link.index,
        mac: link.mac,
        kernel_mac: None,
        mtu: link.mtu as u16,
        features: Features { partial_csum, zero_copy },
    };
    let snoop = match Snoop::open(link.index) {
        Ok(snoop) => snoop,
        Err(error) => {
            parts.close(ctx);
            return Err(kernel(error));
        }
    };
    let here = match NetNs::current() {
        Ok(here) => here,
        Err(error) => {
            parts.close(ctx);
            return Err(kernel(SysError::new("find the network namespace", error)));
        }
    };
    let place = Place { netns: here, interfaces: theirs.interfaces().to_vec() };
    let shared = shared(&cfg.claim, &filter, dev, &theirs.addresses());
    let sharing = Arc::new(ports.share(place, shared));
    let Parts { rx, tx, sockets } = parts;
    let device = Arc::new(XdpDevice {
        info,
        control,
        sockets,
        attachment: attachment.clone(),
        groups: groups.clone(),
        class: KernelRxClass::default(),
        _sharing: sharing.clone(),
        snoop,
        _offloads: offloads,
    });
    let sharing = Arc::downgrade(&sharing);
    let state = Mutex::new((netlink, filter));
    let (ifindex, groups) = (link.index, Arc::downgrade(&groups));
    let claims = Claims { mac: link.mac, dev, ifindex, attachment, groups, sharing, state };
    Ok((OpenDevice { device, rx, tx }, claims))
}

/// Whether the interface is one that may and can be taken, as it is now. It is not touched; whether its driver does what
/// is asked is not known by that.
///
/// # Errors
/// See [`XdpError`].
pub fn look(cfg: &XdpConfig) -> Result<(), XdpError> {
    let kernel = |source| XdpError::Kernel { name: cfg.interface.clone(), source };
    usable_link(cfg, &mut Netlink::new().map_err(kernel)?).map(drop)
}

/// The interface, if it is one that may and can be taken, and the kernel's addresses that matter to it.
fn usable_link(cfg: &XdpConfig, netlink: &mut Netlink) -> Result<(Link, Theirs), XdpError> {
    let name = cfg.interface.clone();
    let kernel = |source| XdpError::Kernel { name: name.clone(), source };
    let Some(link) = netlink.link(&name).map_err(kernel)? else {
        let links = netlink.links().map_err(kernel)?;
        let exist = links.into_iter().map(|link| link.name).collect::<Vec<_>>().join(", ");
        return Err(XdpError::NoInterface { name, exist });
    };
    if link.mac == [0; 6] {
        return Err(XdpError::NotEthernet { name });
    }
    let default = if cfg.force { Vec::new() } else { netlink.default_route_links().map_err(kernel)? };
    // A bridge's port carries what the bridge sends.
    let owners = netlink.with_masters(link.index).map_err(kernel)?;
    if owners.iter().any(|index| default.contains(index)) {
        return Err(XdpError::DefaultRoute { name });
    }
    if link.mtu > MAX_MTU {
        return Err(XdpError::Mtu { name, mtu: link.mtu, max: MAX_MTU });
    }
    let theirs = Theirs::now(netlink, link.index).map_err(kernel)?;
    let conflict = theirs.conflict(link.mac, &cfg.claim.addresses, netlink);
    match conflict.filter(|_| !cfg.force && !cfg.claim.shared) {
        Some(Conflict { address, holder }) => Err(XdpError::KernelAddress { name, address, holder }),
        None => Ok((link, theirs)),
    }
}

/// Attaches the program in the mode asked for. Returns the mode it became, also in words.
fn attach(
    mode: Mode,
    (filter, ports): (&ClaimFilter, &Arc<OpenPorts>),
    link: &Link,
    queues: u32,
) -> SysResult<(Attachment, XdpMode, String)> {
    let skb = || Attachment::new(filter, ports, link, queues, XdpMode::Skb);
    let tags = tags_beside_frames(link);
    let limit = format!("{}{tags}", uncut_segments(link));
    if mode == Mode::Skb {
        return Ok((skb()?, XdpMode::Skb, format!("skb mode: as configured; {limit}")));
    }
    match Attachment::new(filter, ports, link, queues, XdpMode::Native) {
        Ok(attachment) => {
            // Other drivers leave tags in frames as soon as they are told to.
            let blind = link.kind.as_deref() == Some("veth") && !attachment.knows_tags();
            let limit = if blind { tags } else { "" };
            Ok((attachment, XdpMode::Native, format!("native{limit}")))
        }
        Err(error) if mode == Mode::Auto && !refusal::is_final(&error) => {
            let why = error.errno().map_or_else(
                || error.to_string(),
                |errno| format!("{}{}", std::io::Error::from_raw_os_error(errno), refusal::hint(errno)),
            );
            Ok((skb()?, XdpMode::Skb, format!("skb mode: native refused: {why}; {limit}")))
        }
        Err(error) => Err(error),
    }
}

/// What SKB mode does not take, and what mends it.
fn uncut_segments(link: &Link) -> String {
    let sender = match link.kind.as_deref() {
        Some("veth") => "its veth peer",
        Some("tun") => "what writes to it",
        Some(_) => "a local sender behind it",
        None => "the host of a virtual machine",
    };
    format!(
        "segments that {sender} leaves larger than the MTU are lost, as rx_too_long (there: `ethtool -K INTERFACE tso off tx-udp-segmentation off`)"
    )
}

/// Where VLAN tags are beside frames whatever the interface's own switches say, so that a program
/// that does not ask the driver takes frames of VLANs for frames without; and what mends it.
fn tags_beside_frames(link: &Link) -> &'static str {
    match link.kind.as_deref() {
        Some("veth") => {
            "; frames of VLANs whose tags its peer leaves to hardware pass for untagged (there: `ethtool -K INTERFACE txvlan off`)"
        }
        // The kernel takes them out when a port receives them.
        Some("bridge" | "bond" | "team" | "macvlan" | "macvtap" | "ipvlan" | "ipvtap") => {
            "; frames of VLANs pass for untagged (where there are VLANs, take the interfaces beneath it)"
        }
        _ => "",
    }
}

/// Whether frames come straight from a local sender, which leaves L4 checksums to "hardware" that is not there: from the
/// other end of a virtual interface, or past it from one of its ports; and in SKB mode from the host of a virtual machine,
/// where native mode excludes it.
fn hands_over_partial_checksums(kind: Option<&str>, driver: &str, mode: XdpMode) -> bool {
    const KINDS: [&str; 10] =
        ["veth", "netkit", "tun", "bridge", "macvlan", "macvtap", "ipvlan", "ipvtap", "bond", "team"];
    kind.is_some_and(|kind| KINDS.contains(&kind))
        || mode == XdpMode::Skb && matches!(driver, "virtio_net" | "vif")
}

/// How a queue sends.
#[derive(Clone, Copy)]
struct Transmit {
    /// See [`XdpConfig::tso`].
    tso: bool,
}

/// The queues of a device in the making.
#[derive(Default)]
struct Parts {
    rx: Vec<Box<dyn RxQueue>>,
    tx: Vec<Box<dyn TxQueue>>,
    sockets: Vec<Arc<Xsk>>,
}

impl Parts {
    /// Opens a queue, fills its ring, and leads the program to it. Returns how many frames were posted.
    #[allow(clippy::too_many_arguments)]
    fn add_queue(
        &mut self,
        umem: &Arc<Umem>,
        (attachment, napis): (&Arc<Attachment>, &Arc<KernelNapis>),
        to: Binding,
        ring: u32,
        transmit: Option<Transmit>,
        dev: u16,
        ctx: &mut SoftnetData,
    ) -> SysResult<usize> {
        let socket::Bound { xsk, fill, rx, tx } =
            Xsk::open(umem, attachment, napis, to, ring, transmit.is_some())?;
        let mut half = XdpRx::new(xsk.clone(), fill, rx, dev, to.queue as u16);
        half.refill(ctx);
        let posted = half.held();
        self.rx.push(Box::new(half));
        if let Some((tx, done)) = tx {
            let tso = transmit.is_some_and(|half| half.tso) && !xsk.zero_copy();
            let aggregates = if tso { Some(Aggregates::new(to.ifindex, dev)?) } else { None };
            self.tx.push(Box::new(XdpTx::new(xsk.clone(), dev, (tx, done), aggregates)));
        }
        attachment.lead(to.queue, xsk.fd())?;
        self.sockets.push(xsk);
        Ok(posted)
    }

    fn close(self, ctx: &mut SoftnetData) {
        self.tx.into_iter().for_each(|half| half.close(ctx));
        self.rx.into_iter().for_each(|half| half.close(ctx));
    }
}

/// The shared part of an open device.
struct XdpDevice {
    info: DeviceInfo,
    control: Control,
    sockets: Vec<Arc<Xsk>>,
    attachment: Arc<Attachment>,
    groups: Arc<Groups>,
    class: KernelRxClass,
    /// Has ports of shared addresses reserved.
    _sharing: Arc<Sharing>,
    /// Copies of what the program leaves to the kernel, and neighbours mean for all.
    snoop: Snoop,
    /// Puts back what was switched off.
    _offloads: Offloads,
}

impl Device for XdpDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// Also brings the kernel's counts of lost packets into the RX queues' statistics: they are worth a system
    /// call when it is asked for, not on the packets' way.
    fn link(&self) -> LinkState {
        self.sockets.iter().for_each(|socket| socket.refresh());
        self.control.link()
    }

    fn join_group(&self, group: IpAddr) -> io::Result<()> {
        self.groups.join(group).map_err(io::Error::from)
    }

    fn leave_group(&self, group: IpAddr) {
        self.groups.leave(group);
    }

    fn snoop(&self) -> Option<&Snoop> {
        Some(&self.snoop)
    }

    fn losses(&self) -> Vec<(DropReason, u64)> {
        let too_long = self.attachment.too_long();
        vec![(DropReason::RxTooLong, too_long), (DropReason::SnoopOverflow, self.snoop.lost())]
    }

    fn rss(&self) -> Result<RssView, RxClassError> {
        self.class.rss(&self.control)
    }

    fn set_rss(&self, change: &RssChange) -> Result<Option<u32>, RxClassError> {
        self.class.set_rss(&self.control, change)
    }

    fn rules(&self) -> Result<Vec<RuleView>, RxClassError> {
        self.class.rules(&self.control)
    }

    fn set_rule(&self, order: &RuleOrder) -> Result<u32, RxClassError> {
        self.class.set_rule(&self.control, order)
    }

    fn flow_filters(&self) -> u32 {
        self.class.flow_filters(&self.control)
    }

    fn set_flow_filter(&self, at: u32, to: Option<(&FlowKey, u16)>) -> Result<(), RxClassError> {
        self.class.set_flow_filter(&self.control, at, to)
    }

    fn filters_settled(&self) -> bool {
        self.class.filters_settled()
    }
}

/// The means to change what an open device claims.
pub struct Claims {
    mac: [u8; 6],
    dev: u16,
    ifindex: u32,
    attachment: Arc<Attachment>,
    /// Gone, as `sharing` is, when the device is closed.
    groups: Weak<Groups>,
    sharing: Weak<Sharing>,
    /// What the program says now.
    state: Mutex<(Netlink, ClaimFilter)>,
}

impl Claims {
    /// From now on the device claims `claim`, with regard to the addresses that the kernel has now.
    /// No packet is lost meanwhile. Without effect on a device that is closed. If anything changed
    /// by that, returns an address that both have then and do not share, if there is one: it is
    /// softnet's.
    ///
    /// # Errors
    /// What the kernel says; then the program is as it was.
    pub fn replace(&self, claim: &Claim) -> SysResult<Option<Conflict>> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (netlink, filter) = &mut *state;
        let theirs = Theirs::now(netlink, self.ifindex)?;
        let addresses = theirs.addresses();
        let now = ClaimFilter::new(self.mac, self.dev, claim, &addresses).with_longest(filter.longest());
        let shared = shared(claim, &now, self.dev, &addresses);
        if let Some(sharing) = self.sharing.upgrade() {
            sharing.replace(theirs.interfaces(), shared);
        }
        if let Some(groups) = self.groups.upgrade() {
            // Where the kernel has no IPv6 it can't, as the device's mode says.
            let _ = groups.solicit(&now.asked_for(claim));
        }
        if *filter == now {
            return Ok(None);
        }
        self.attachment.replace(&now)?;
        *filter = now;
        let conflict = theirs.conflict(self.mac, &claim.addresses, netlink);
        Ok(conflict.filter(|_| !claim.shared))
    }

    /// The first of `addresses` that the kernel has now, too. `None` also if the kernel can't be asked.
    pub fn conflict(&self, addresses: &[IpAddr]) -> Option<Conflict> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let netlink = &mut state.0;
        let theirs = Theirs::now(netlink, self.ifindex).ok()?;
        theirs.conflict(self.mac, addresses, netlink)
    }
}

/// The addresses on which ports of softnet's are not to be the kernel's as well. Not the link-local one that both derive from
/// the MAC address, unless it was said that addresses are shared.
fn shared(claim: &Claim, filter: &ClaimFilter, dev: u16, kernel: &[IpAddr]) -> Vec<Addr> {
    if !claim.shared {
        return Vec::new();
    }
    let mut own: Vec<IpAddr> = filter.own_ipv6().into_iter().map(IpAddr::V6).collect();
    own.extend(claim.addresses.iter().filter(|addr| addr.is_ipv4()));
    own.iter().filter(|addr| kernel.contains(addr)).map(|addr| scoped(addr_of(*addr), dev)).collect()
}
