//! Opens a device that another process has open, and is about to hand over ([`crate::hand_over`]).
//!
//! Everything is made ready, and nothing of the other's is touched: rings are mapped, a program of
//! this process's own is loaded, which takes the place of the other's when the device is
//! [taken over](crate::Device::taken_over). A device that is closed before its queues went on is
//! left to the other process as it is.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use softnet_core::SoftnetData;

use super::attach::Attachment;
use super::claims::Claims;
use super::groups::Groups;
use super::kernel_irq::KernelNapis;
use super::offload::Offloads;
use super::parts::{Parts, Transmit};
use super::prepared::{Made, Prepared, ZERO_COPY, prepare};
use super::socket::{Sockets, Xsk};
use super::umem::{Binding, Umem};
use super::{Mode, XdpConfig, XdpError};
use crate::bpf::{XdpLink, XdpMode};
use crate::device::OpenDevice;
use crate::hand_over::{DeviceFacts, DeviceHandOver};

/// As [`open_with_claims`](super::open_with_claims), of a device that another process has open,
/// which told `handed` of it. The region of `umem` has the other's frames.
///
/// # Errors
/// As there; and [`XdpError::HandOver`] if the device is not as `cfg` has it, and can't become so
/// while it is open. The other process's is untouched.
pub fn take_with_claims(
    cfg: &XdpConfig,
    umem: &Arc<Umem>,
    dev: u16,
    ctx: &mut SoftnetData,
    handed: DeviceHandOver,
) -> Result<(OpenDevice, Claims), XdpError> {
    let mut prepared = prepare(cfg, umem, dev, ctx)?;
    let name = &cfg.interface;
    let kernel = |source| XdpError::Kernel { name: name.clone(), source };
    let refuse = |why: String| XdpError::HandOver { name: name.clone(), why };
    let DeviceHandOver { facts, fds } = handed;
    if let Some(why) = difference(cfg, &prepared, &facts) {
        return Err(refuse(why));
    }
    let mut fds = fds.into_iter();
    let mut next = || -> Result<OwnedFd, XdpError> {
        fds.next().ok_or_else(|| refuse("descriptors are missing in what the running instance sent".into()))
    };
    let mode = if facts.native { XdpMode::Native } else { XdpMode::Skb };
    let link = XdpLink::handed_over(next()?, facts.ifindex).map_err(kernel)?;
    let queues = facts.queues.len() as u32;
    let Prepared { filter, ports, link: interface, .. } = &prepared;
    let attachment = Attachment::handed_over(filter, ports, (interface, link), queues, mode);
    let attachment = Arc::new(attachment.map_err(kernel)?);
    let groups = Arc::new(Groups::new(facts.ifindex, Some(attachment.clone())));
    // Where the kernel has no IPv6 it can't, which the other process has told its user.
    let _ = groups.solicit(&filter.asked_for(&cfg.claim));
    let napis = Arc::new(KernelNapis::new(interface));
    let mut parts = Parts::default();
    for (queue, told) in (0..).zip(&facts.queues) {
        let to = Binding { ifindex: facts.ifindex, queue, copy: !facts.native, frags: facts.frags };
        let transmit = told.sends.then_some(Transmit { tso: cfg.tso });
        let sockets = Sockets { rx: next()?, tx: told.sends.then(&mut next).transpose()? };
        let bound = Xsk::handed_over(umem, (&attachment, &napis), to, sockets, facts.ring).map_err(kernel)?;
        parts.add_handed((&attachment, bound), to, transmit, dev).map_err(kernel)?;
    }
    let offloads = Offloads::handed_over(&prepared.link, &mut prepared.netlink, &facts.offloads);
    let text = facts.mode.strip_suffix(ZERO_COPY).unwrap_or(&facts.mode).to_owned();
    prepared.ring = facts.ring;
    let made = Made { attachment, groups, napis, parts, offloads, mode, text, handed: facts.queues };
    prepared.finish(cfg, dev, ctx, made)
}

/// What of the open device is not as `cfg` has it.
fn difference(cfg: &XdpConfig, now: &Prepared, facts: &DeviceFacts) -> Option<String> {
    let (native, skb) = (cfg.mode == Mode::Native, cfg.mode == Mode::Skb);
    let unlike = |what: &str, has: &dyn std::fmt::Display, wanted: &dyn std::fmt::Display| {
        Some(format!("the running instance has it with {what} {has}, this configuration would have {wanted}"))
    };
    let mode = |native| if native { "native" } else { "skb" };
    match facts {
        facts if facts.ifindex != now.link.index => {
            Some("the running instance has another interface of that name".into())
        }
        facts if facts.mac != now.link.mac || facts.mtu != now.link.mtu || facts.frags != now.frags => {
            Some("its MAC address or MTU has just changed; try again".into())
        }
        facts if facts.native && skb || !facts.native && native => {
            unlike("mode", &mode(facts.native), &mode(native))
        }
        // Rings are shorter where devices share few frames; how many they were when it was opened is the other's to know.
        facts if facts.ring != now.ring && facts.ring != cfg.ring => unlike("ring", &facts.ring, &now.ring),
        facts if facts.queues.is_empty() || facts.queues.len() as u32 > now.rx_queues => {
            unlike("RX queues", &facts.queues.len(), &now.rx_queues)
        }
        _ => None,
    }
}
