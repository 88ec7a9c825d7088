//! Any Linux interface as a device, by AF_XDP (Documentation/networking/af_xdp.rst).
//!
//! [`open`] attaches a small XDP program to the interface, which takes what is addressed to softnet and leaves
//! everything else to the kernel ([`Claim`]), and binds one socket to each RX queue, all on the memory of one
//! [`Umem`]: so a packet that is forwarded from one interface to another stays where it is, and only its frame's
//! number moves.
//!
//! * **Callers.** [`open`], [`Umem`], [`Claims`] and the [`Device`](crate::Device) part: any thread. The queues: their owners,
//!   as [`RxQueue`](crate::RxQueue) and [`TxQueue`](crate::TxQueue) say.
//! * **Invariant.** Every frame is at home, in a packet, or named in exactly one queue's books; so when a device is
//!   closed or its interface vanishes, all its frames come home, and those the kernel still had are counted
//!   ([`Umem::reclaimed`]).
//! * **Modes.** Native: in the driver, before the kernel makes an skb. Where the driver refuses, SKB mode: it works
//!   everywhere, is slower, delivers on the queues that the kernel recorded (a veth: all on queue 0), and cannot take
//!   segments that the sender left larger than the MTU (TSO): the program drops them, and [`Device::losses`](crate::Device::losses) counts them.
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
mod claims;
pub(crate) mod control;
mod device;
mod error;
mod frames;
pub(crate) mod groups;
mod kernel_irq;
pub(crate) mod offload;
mod parts;
mod ports;
mod prepared;
mod refusal;
mod reserve;
mod ring;
mod rx;
mod socket;
mod take;
#[cfg(test)]
mod tests;
pub(crate) mod theirs;
mod tx;
mod umem;

use std::sync::Arc;

use softnet_core::SoftnetData;
use softnet_core::skb::{FRAME_SIZE, HEADROOM};

pub use claim::{Claim, ClaimedVlan};
pub use claims::Claims;
pub use error::XdpError;
pub use ports::{LocalEnd, OpenPorts, Ports};
pub use take::take_with_claims;
pub use theirs::Conflict;
pub use umem::Umem;

use attach::Attachment;
use claim::ClaimFilter;
use groups::Groups;
use kernel_irq::KernelNapis;
use offload::{Offloads, Untagging};
use parts::{Parts, Transmit};
use prepared::{Made, Prepared, prepare};
use rx::MIN_RING;
use theirs::Theirs;
use umem::Binding;

use crate::bpf::XdpMode;
use crate::device::OpenDevice;
use crate::netlink::{Link, Netlink};
use crate::sys_error::SysResult;

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
    /// Native if the driver can, else SKB mode; [`DeviceInfo::mode`](crate::DeviceInfo::mode) says which, and why.
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
    /// The slots of each ring, if there are so many RX queues: see [`max_posted`](Self::max_posted).
    pub fn fitting_ring(&self, rx_queues: usize) -> u32 {
        let mut ring = self.ring;
        while rx_queues * ring as usize > self.max_posted && ring > MIN_RING {
            ring /= 2;
        }
        ring
    }

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
    let mut prepared = prepare(cfg, umem, dev, ctx)?;
    // Before the kernel switches some off.
    let mut offloads = Offloads::of(&prepared.link, &mut prepared.netlink);
    let Prepared { link, ports, filter, frags, rx_queues, tx_queues, ring, .. } = &prepared;
    let (frags, rx_queues, tx_queues, ring) = (*frags, *rx_queues, *tx_queues, *ring);
    let (name, kernel) = (&cfg.interface, |source| XdpError::Kernel { name: cfg.interface.clone(), source });
    let (attachment, mode, mut text) =
        attach(cfg.mode, (filter, ports), link, rx_queues).map_err(|source| refusal::of(name, source))?;
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
    let napis = Arc::new(KernelNapis::new(link));
    let mut parts = Parts::default();
    let ifindex = link.index;
    let mtu = link.mtu;
    let bind = |queue| Binding { ifindex, queue, copy: mode == XdpMode::Skb, frags };
    for queue in 0..rx_queues {
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
                return Err(XdpError::Mtu { name: name.clone(), mtu, max: MAX_MTU_OF_FRAME });
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
    let made = Made { attachment, groups, napis, parts, offloads, mode, text, handed: Vec::new() };
    prepared.finish(cfg, dev, ctx, made)
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
