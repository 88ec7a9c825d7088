//! What is known of an interface before it is touched, and what an open device is made of.
//!
//! Called by the thread that opens a device, in its network namespace.

use std::sync::{Arc, Mutex};

use softnet_core::SoftnetData;

use super::attach::Attachment;
use super::claim::ClaimFilter;
use super::claims::{Claims, shared};
use super::control::Control;
use super::device::XdpDevice;
use super::groups::Groups;
use super::kernel_irq::KernelNapis;
use super::offload::Offloads;
use super::parts::Parts;
use super::ports::OpenPorts;
use super::reserve::Place;
use super::rx::MIN_RING;
use super::theirs::Theirs;
use super::umem::Umem;
use super::{
    LINK_HEADERS, MAX_MTU_OF_FRAME, MAX_RING, XdpConfig, XdpError, hands_over_partial_checksums, usable_link,
};
use crate::bpf::XdpMode;
use crate::device::{DeviceInfo, Features, OpenDevice};
use crate::ethtool::Ethtool;
use crate::ethtool_rx::KernelRxClass;
use crate::hand_over::QueueFacts;
use crate::netlink::{Link, Netlink};
use crate::netns::NetNs;
use crate::snoop::Snoop;
use crate::sys_error::SysError;

/// An interface that may be taken, and what softnet would have of it.
pub(super) struct Prepared {
    pub(super) netlink: Netlink,
    pub(super) link: Link,
    theirs: Theirs,
    pub(super) ports: Arc<OpenPorts>,
    pub(super) filter: ClaimFilter,
    control: Control,
    /// Whether packets come in several frames.
    pub(super) frags: bool,
    pub(super) rx_queues: u32,
    pub(super) tx_queues: u32,
    /// Slots of each ring.
    pub(super) ring: u32,
    driver: String,
}

/// What the device is made of.
pub(super) struct Made {
    pub(super) attachment: Arc<Attachment>,
    pub(super) groups: Arc<Groups>,
    pub(super) napis: Arc<KernelNapis>,
    pub(super) parts: Parts,
    pub(super) offloads: Offloads,
    pub(super) mode: XdpMode,
    /// The mode in words.
    pub(super) text: String,
    /// What another process told of the queues.
    pub(super) handed: Vec<QueueFacts>,
}

/// Looks at what `cfg` names.
pub(super) fn prepare(
    cfg: &XdpConfig,
    umem: &Umem,
    dev: u16,
    ctx: &SoftnetData,
) -> Result<Prepared, XdpError> {
    if !cfg.ring.is_power_of_two() || !(MIN_RING..=MAX_RING).contains(&cfg.ring) {
        return Err(XdpError::RingSize(cfg.ring));
    }
    let (ctx_region, umem_region) = (ctx.region().id(), umem.region().id());
    if ctx_region != umem_region {
        return Err(XdpError::Region { ctx: ctx_region, umem: umem_region });
    }
    let kernel = |source| XdpError::Kernel { name: cfg.interface.clone(), source };
    let mut netlink = Netlink::new().map_err(kernel)?;
    let (link, theirs) = usable_link(cfg, &mut netlink)?;
    let ports = cfg.ports.clone().map_or_else(|| OpenPorts::new().map(Arc::new), Ok).map_err(kernel)?;
    let frags = link.mtu > MAX_MTU_OF_FRAME;
    let longest = if frags { link.mtu + LINK_HEADERS } else { 0 };
    let filter = ClaimFilter::new(link.mac, dev, &cfg.claim, &theirs.addresses());
    let filter = filter.with_longest(longest as usize);
    let control = Control::new(link.index).map_err(kernel)?;
    // A driver that does not tell has some of these in use, but at least one; on a TX queue that is
    // not in use the kernel would let packets lie without a word.
    let (rx_queues, tx_queues) = control.channels().unwrap_or((link.rx_queues, 1));
    let ring = cfg.fitting_ring(rx_queues as usize);
    let driver = Ethtool::new(link.index).and_then(|ethtool| ethtool.driver()).unwrap_or_default();
    Ok(Prepared {
        netlink,
        link,
        theirs,
        ports,
        filter,
        control,
        frags,
        rx_queues: rx_queues.max(1),
        tx_queues,
        ring,
        driver,
    })
}

impl Prepared {
    /// The open device, and the means to change what it claims.
    pub(super) fn finish(
        self,
        cfg: &XdpConfig,
        dev: u16,
        ctx: &mut SoftnetData,
        made: Made,
    ) -> Result<(OpenDevice, Claims), XdpError> {
        let Prepared { netlink, link, theirs, ports, filter, control, ring, driver, .. } = self;
        let Made { attachment, groups, napis, parts, offloads, mode, text, handed } = made;
        let zero_copy = parts.sockets.iter().all(|socket| socket.zero_copy());
        let partial_csum = hands_over_partial_checksums(link.kind.as_deref(), &driver, mode);
        let info = DeviceInfo {
            name: link.name.clone(),
            driver: "xdp",
            mode: if zero_copy { format!("{text}{ZERO_COPY}") } else { text },
            ifindex: link.index,
            mac: link.mac,
            kernel_mac: None,
            mtu: link.mtu as u16,
            features: Features { partial_csum, zero_copy },
        };
        let here = || NetNs::current().map_err(|error| SysError::new("find the network namespace", error));
        let (snoop, netns) =
            match Snoop::open(link.index).and_then(|snoop| here().map(|netns| (snoop, netns))) {
                Ok(both) => both,
                Err(source) => {
                    parts.close(ctx);
                    return Err(XdpError::Kernel { name: link.name, source });
                }
            };
        let place = Place { netns, interfaces: theirs.interfaces().to_vec() };
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
            napis,
            ring,
            native: mode == XdpMode::Native,
            handed: Mutex::new(handed),
            _sharing: sharing.clone(),
            snoop,
            offloads,
        });
        let sharing = Arc::downgrade(&sharing);
        let state = Mutex::new((netlink, filter));
        let (ifindex, groups) = (link.index, Arc::downgrade(&groups));
        let claims = Claims { mac: link.mac, dev, ifindex, attachment, groups, sharing, state };
        Ok((OpenDevice { device, rx, tx }, claims))
    }
}

/// What the mode of a device ends with whose packets the kernel does not copy.
pub(super) const ZERO_COPY: &str = ", zero-copy";
