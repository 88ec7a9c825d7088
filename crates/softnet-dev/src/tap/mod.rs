//! A TAP as a device: a wire to the kernel of this machine, whose other end is an interface of the
//! kernel (Documentation/networking/tuntap.rst).
//!
//! [`open`] makes the interface, or opens one of that name that exists. What the kernel sends by it
//! arrives here, and what is sent here the kernel receives: by addresses and routes of its own, as
//! any interface has them. Softnet's end has a MAC address of its own.
//!
//! * **Callers.** [`open`], [`TapQueues`] and the [`Device`] part: any thread. The queues: their
//!   owners, as [`RxQueue`] and [`TxQueue`] say.
//! * **Cost.** The kernel copies each packet, and it takes a system call: a TAP has no ring. So a
//!   poll makes as many calls as its budget allows, and one that finds nothing.
//! * **Offloads.** Each packet has a header (`vnet`), so segments and partial checksums are sent as
//!   they are in any case. Those of the kernel come only if they are asked for: else it cuts and
//!   completes before it hands over.
//! * **Invariant.** Packets are received into skbs that the queue holds ready. Without packet
//!   memory for a whole packet none is read: it waits in the kernel, and so does, in the end, its
//!   sender.
//! * **Life.** [`TapQueues`] outlive the device: a device that is closed and opened again is on the
//!   same interface, which has no carrier meanwhile. An interface that was made here vanishes with
//!   them.

mod error;
mod interface;
mod rx;
#[cfg(test)]
mod tests;
mod tx;

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use softnet_core::SoftnetData;

pub use error::TapError;
pub use interface::TapQueues;

use rx::TapRx;
use tx::TapTx;

use crate::device::{Device, DeviceInfo, Features, LinkState, OpenDevice, QueueStats, RxQueue, TxQueue};
use crate::netlink::Netlink;
use crate::rx_frames::{LONGEST_OF_SEGMENTS, longest};
use crate::xdp::control::Control;

/// Largest MTU: the kernel's.
pub const MAX_MTU: u32 = 65521;

/// Queues at the most.
pub const MAX_QUEUES: u32 = 64;

/// What to open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TapConfig {
    /// Name of the interface, in the calling thread's network namespace.
    pub interface: String,
    /// Queues, each an RX and a TX queue, from 1 to [`MAX_QUEUES`].
    pub queues: u32,
    /// MAC address of softnet's end. `None`: that of the kernel's end with one bit changed.
    pub mac: Option<[u8; 6]>,
    /// MTU of the interface, if it is to be made; of one that exists only what it has. `None`:
    /// 1500.
    pub mtu: Option<u32>,
    /// Have the kernel leave segments and checksums to softnet.
    pub offloads: bool,
}

impl TapConfig {
    /// `interface` with one queue and without offloads.
    pub fn new(interface: impl Into<String>) -> Self {
        TapConfig { interface: interface.into(), queues: 1, mac: None, mtu: None, offloads: false }
    }
}

/// Frames that each queue of a TAP with this MTU keeps ready.
pub fn frames_ready(mtu: u16, offloads: bool) -> usize {
    rx::slots_for(if offloads { LONGEST_OF_SEGMENTS } else { longest(mtu) })
}

/// Opens the TAP as device number `dev` on the region of `ctx`, by the queues that `kept` has, if
/// these serve still; else by new ones, which are left there. Works in the calling thread's network
/// namespace; the device may be used from any.
///
/// # Errors
/// See [`TapError`].
pub fn open(
    config: &TapConfig,
    kept: &mut Option<Arc<TapQueues>>,
    dev: u16,
    ctx: &mut SoftnetData,
) -> Result<OpenDevice, TapError> {
    let name = &config.interface;
    let kernel = |source| TapError::Kernel { name: name.clone(), source };
    let mut netlink = Netlink::new().map_err(kernel)?;
    let queues = match kept.take().filter(|queues| queues.serves(config, &mut netlink)) {
        Some(queues) => queues,
        None => Arc::new(TapQueues::open(config, &mut netlink)?),
    };
    *kept = Some(queues.clone());
    queues.set_offloads(config.offloads).map_err(kernel)?;
    queues.set_carrier(true);
    let link = netlink.existing_link(name).map_err(kernel)?;
    let mac = config.mac.unwrap_or_else(|| other_end(link.mac));
    if mac == link.mac {
        return Err(TapError::SameMac { name: name.clone(), mac });
    }
    let mtu = link.mtu.min(u16::MAX.into()) as u16;
    let most = if config.offloads { LONGEST_OF_SEGMENTS } else { longest(mtu) };
    let mut rx: Vec<Box<dyn RxQueue>> = Vec::new();
    let mut tx: Vec<Box<dyn TxQueue>> = Vec::new();
    let mut failed = None;
    for (queue, fd) in (0..).zip(queues.fds()) {
        let mut half = match TapRx::new(fd, &queues, (dev, queue), most, config.offloads) {
            Ok(half) => Box::new(half),
            Err(source) => {
                failed = Some(kernel(source));
                break;
            }
        };
        let is_full = half.refill(ctx);
        rx.push(half);
        if !is_full {
            failed = Some(TapError::NoFrames { name: name.clone(), queue: queue.into() });
            break;
        }
        tx.push(Box::new(TapTx::new(fd.clone(), dev, queues.knows_uso())));
    }
    let control = Control::new(link.index).map_err(kernel);
    let counted = netlink.counters(name).map_or(0, |counters| counters.tx_dropped);
    let control = match (failed, control) {
        (None, Ok(control)) => control,
        (Some(error), _) | (None, Err(error)) => {
            rx.into_iter().for_each(|half| half.close(ctx));
            tx.into_iter().for_each(|half| half.close(ctx));
            return Err(error);
        }
    };
    let made = if queues.is_made() { "made by softnet" } else { "existed" };
    let info = DeviceInfo {
        driver: "tap",
        mode: format!("{made}, {}", if config.offloads { "offloads on" } else { "offloads off" }),
        ifindex: link.index,
        mac,
        kernel_mac: Some(link.mac),
        mtu,
        features: Features { partial_csum: false, zero_copy: false },
        ..DeviceInfo::new(link.name, "tap")
    };
    let losses = Mutex::new((netlink, counted));
    let stats = rx.first().map(|queue| queue.stats()).unwrap_or_default();
    let device = Arc::new(TapDevice { info, control, losses, stats, _queues: queues });
    Ok(OpenDevice { device, rx, tx })
}

/// The MAC address of the other end of a wire whose one end has `mac`: administered locally, and as
/// stable.
fn other_end(mut mac: [u8; 6]) -> [u8; 6] {
    mac[0] = mac[0] & !1 | 2;
    mac[5] ^= 1;
    mac
}

/// The shared part of an open TAP.
struct TapDevice {
    info: DeviceInfo,
    control: Control,
    /// The way to the interface's counters, and how many packets it had lost when they were last
    /// read.
    losses: Mutex<(Netlink, u64)>,
    /// Of the first RX queue: the kernel does not say which queue it lost them at.
    stats: Arc<QueueStats>,
    _queues: Arc<TapQueues>,
}

impl Device for TapDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// Also brings the kernel's count of packets for which a queue had no room into the RX queues'
    /// statistics.
    fn link(&self) -> LinkState {
        let mut losses = self.losses.lock().unwrap_or_else(PoisonError::into_inner);
        let (netlink, counted) = &mut *losses;
        if let Ok(counters) = netlink.counters(&self.info.name) {
            // The lock makes this thread the counter's only writer.
            self.stats.ring_drops.add(counters.tx_dropped.saturating_sub(*counted));
            *counted = counters.tx_dropped;
        }
        drop(losses);
        self.control.link()
    }
}

/// What a read or a write says of a TAP that is gone, or down.
fn is_gone(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EBADFD | libc::EIO | libc::ENODEV | libc::ENETDOWN))
}
