//! The device trait: what the runtime asks of a driver.
//!
//! A driver opens a device into three kinds of parts, so that exclusive access is a matter of ownership and not
//! of discipline:
//!
//! * one shared [`Device`]: description, link state, counters; any thread may call it;
//! * one [`RxQueue`] per RX queue, held by the NAPI instance and called only by the owner of that;
//! * one [`TxQueue`] per TX queue, held under the TX queue's lock.
//!
//! Each RX queue also has a shared [`Doorbell`], which is how a sleeper learns of packets.

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use softnet_core::SoftnetData;
use softnet_core::napi::MitigationConfig;
use softnet_core::skb::{Batch, DropReason, Frame, FrameBatch};
pub use softnet_core::stack::device::{QueueStats, Reaped, TxQueue};
use softnet_core::steer::FlowKey;

use crate::hand_over::{DeviceHandOver, HeldFrames};
use crate::rx_class::{RssChange, RssView, RuleOrder, RuleView, RxClassError};
use crate::snoop::Snoop;
use crate::sys_error::SysResult;

/// What a device can do.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features {
    /// Frames may arrive with only the pseudo-header sum in the L4 checksum field (veth, TAP).
    pub partial_csum: bool,
    /// The kernel does not copy packets between its memory and ours.
    pub zero_copy: bool,
}

/// Whether packets can pass.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkState {
    /// Carrier and administratively up.
    Up,
    /// No carrier, or administratively down.
    Down,
    /// The interface does not exist any more.
    Gone,
}

/// Description of an open device; fixed while it is open.
#[non_exhaustive]
#[derive(Clone, Debug)]
pub struct DeviceInfo {
    /// Interface name.
    pub name: String,
    /// Driver: `mem`, `xdp`, `tap`, `packet`.
    pub driver: &'static str,
    /// How the driver got at the device (`native`, `skb mode: …why`), empty if there is only one way.
    pub mode: String,
    /// Kernel interface index, 0 if the kernel does not know the device.
    pub ifindex: u32,
    /// Its MAC address.
    pub mac: [u8; 6],
    /// That of the kernel's interface, if the device is at the other end of that (TAP). `None`: they have the same.
    pub kernel_mac: Option<[u8; 6]>,
    /// Largest L3 packet in bytes.
    pub mtu: u16,
    /// See [`Features`].
    pub features: Features,
}

impl DeviceInfo {
    /// Of a device that is on no interface of the kernel: without an address, and for packets of up
    /// to 1500 bytes.
    pub fn new(name: impl Into<String>, driver: &'static str) -> Self {
        DeviceInfo {
            name: name.into(),
            driver,
            mode: String::new(),
            ifindex: 0,
            mac: [0; 6],
            kernel_mac: None,
            mtu: 1500,
            features: Features::default(),
        }
    }

    /// The MAC address of the kernel's interface.
    pub fn interface_mac(&self) -> [u8; 6] {
        self.kernel_mac.unwrap_or(self.mac)
    }
}

/// The shared part of an open device.
pub trait Device: Send + Sync {
    /// Its description.
    fn info(&self) -> &DeviceInfo;
    /// Whether packets can pass now.
    fn link(&self) -> LinkState;
    /// Softnet has its first member of this multicast group on the device: from now on the group's datagrams are to
    /// be received. Once for each group, until it is [left](Self::leave_group). Control path: may make system calls,
    /// and wait for them. By default there is nothing to do: the device brings whatever is on its wire.
    ///
    /// # Errors
    /// What the kernel says; then nothing has changed.
    fn join_group(&self, _group: IpAddr) -> io::Result<()> {
        Ok(())
    }
    /// The last member of a group that was joined is gone. Control path.
    fn leave_group(&self, _group: IpAddr) {}
    /// What neighbours say to all, if the queues do not bring it. Read by one thread.
    fn snoop(&self) -> Option<&Snoop> {
        None
    }
    /// It is about to be closed, and what neighbours say is not asked for any more: what takes time can be done
    /// while other threads close its queues.
    fn closing(&self) {}
    /// Packets that were lost before any queue counted them, by reason. Control path: may make system calls.
    fn losses(&self) -> Vec<(DropReason, u64)> {
        Vec::new()
    }
    /// What another process needs to go on with it. The device stays as it is; control path.
    /// `None`: that can't be done with it.
    fn hand_over(&self) -> Option<SysResult<DeviceHandOver>> {
        None
    }
    /// It was opened to be taken over from another process, and is this one's alone from now on.
    /// Its queues go on already. Control path.
    ///
    /// # Errors
    /// What the kernel says: then some of what this process was configured for is as the other had
    /// it.
    fn taken_over(&self) -> SysResult<()> {
        Ok(())
    }
    /// How it spreads flows over its RX queues. Control path, as all that follow: may make system
    /// calls.
    ///
    /// # Errors
    /// It has no RSS, or does not tell.
    fn rss(&self) -> Result<RssView, RxClassError> {
        Err(RxClassError::unsupported())
    }
    /// Changes that. Returns the context that was made, if one was.
    ///
    /// # Errors
    /// What is wrong with the change, or why it was not made; then nothing was changed, except that the kernel may
    /// have taken what is hashed (`rx-flow-hash`) and refused what else was asked for.
    fn set_rss(&self, _change: &RssChange) -> Result<Option<u32>, RxClassError> {
        Err(RxClassError::unsupported())
    }
    /// Its filters, which come before RSS, by location.
    ///
    /// # Errors
    /// It has none, or does not tell.
    fn rules(&self) -> Result<Vec<RuleView>, RxClassError> {
        Err(RxClassError::unsupported())
    }
    /// Adds or deletes a filter. Returns its location.
    ///
    /// # Errors
    /// What is wrong with it, or why it was not added or deleted.
    fn set_rule(&self, _order: &RuleOrder) -> Result<u32, RxClassError> {
        Err(RxClassError::unsupported())
    }
    /// Places for filters of single flows beside those, which accelerated RFS sets
    /// (`ndo_rx_flow_steer` of the kernel's drivers); 0: it takes none.
    fn flow_filters(&self) -> u32 {
        0
    }
    /// Has filter number `at` of those send a flow to a queue, whatever it did before, or deletes
    /// it. No two of them are of one flow.
    ///
    /// # Errors
    /// Why it was not set or deleted; then nothing was changed.
    fn set_flow_filter(&self, _at: u32, _to: Option<(&FlowKey, u16)>) -> Result<(), RxClassError> {
        Err(RxClassError::unsupported())
    }
    /// Whether every packet that went by older filters than those of now can be received already. A
    /// device that can't know says so when it should long be so.
    fn filters_settled(&self) -> bool {
        true
    }
}

/// One RX queue. Called only by the owner of its NAPI instance.
pub trait RxQueue: Send {
    /// Appends up to `budget` received packets (and no more than fit) to `batch` with their first line
    /// filled in (device, queue), and posts fresh frames to the ring. Returns how many it appended.
    fn rx_burst(&mut self, ctx: &mut SoftnetData, batch: &mut Batch, budget: usize) -> usize;
    /// The same for an instance whose receive offload makes one packet of many: appends the frames
    /// of up to `budget` packets to `frames`, without heads. `None`, and nothing has happened, if the
    /// queue can't, or if one comes next that consists of several frames:
    /// [`rx_burst`](Self::rx_burst) is to be called then.
    fn rx_frames(
        &mut self,
        _ctx: &mut SoftnetData,
        _frames: &mut FrameBatch,
        _budget: usize,
    ) -> Option<usize> {
        None
    }
    /// The queue's doorbell.
    fn doorbell(&self) -> Arc<dyn Doorbell>;
    /// Its counters.
    fn stats(&self) -> Arc<QueueStats>;
    /// Frames it holds now (posted or received but not yet handed out).
    fn held(&self) -> usize;
    /// Which these are, for another process that is to go on with the queue. `None`: it can't be
    /// handed over.
    fn held_frames(&self) -> Option<HeldFrames> {
        None
    }
    /// Goes on where another process stopped, which held `frames`: before anything else is done
    /// with a queue that was opened for that. `is_amid`: see [`HeldFrames::is_amid`]. Returns the
    /// frames that it has no use for.
    fn take_over(&mut self, frames: Vec<Frame>, _is_amid: bool) -> Vec<Frame> {
        frames
    }
    /// Gives every frame back and closes the queue.
    fn close(self: Box<Self>, ctx: &mut SoftnetData);
}

/// Whether the kernel's own interrupt of an RX queue stays quiet while softnet's doorbell does.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KernelIrq {
    /// The kernel has no such queue.
    None,
    /// The kernel defers it by the knobs that the instance has.
    Deferred,
    /// It does not, for this reason.
    NotMasked(String),
}

impl fmt::Display for KernelIrq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KernelIrq::None => f.write_str("none"),
            KernelIrq::Deferred => f.write_str("masked while deferred"),
            KernelIrq::NotMasked(why) => write!(f, "not masked: {why}"),
        }
    }
}

/// How a sleeper learns that an RX queue has packets. Shared; any thread may call it.
///
/// Protocol (race R2): a would-be sleeper calls `unmask`, then `pending`; if that says no, it may block on
/// `fd`. A packet that arrives after `unmask` makes `fd` readable. When `fd` was readable, the thread that woke calls
/// `mask` before it schedules the instance.
pub trait Doorbell: Send + Sync {
    /// Whether a packet waits: a look at shared memory, no system call. Costs nothing worth saving.
    fn pending(&self) -> bool;
    /// Whether the queue has no frame posted, for want of packet memory: no packet can come, so none can ring, and it has to
    /// be polled again, after a while, to look for memory. Such a queue is not [`pending`](Self::pending): polling it at once
    /// would bring nothing either.
    fn starved(&self) -> bool {
        false
    }
    /// From now on `fd` need not ring. Also takes back a ring that was not seen yet.
    fn mask(&self);
    /// From now on a packet makes `fd` readable.
    fn unmask(&self);
    /// What to wait for (readable).
    fn fd(&self) -> BorrowedFd<'_>;
    /// The knobs of the queue's instance were set, for the first time or anew: a driver over an interrupt of the kernel's
    /// has the kernel defer that in the same way, where it can. Control path: may make system calls.
    fn mitigation_changed(&self, _knobs: &MitigationConfig) {}
    /// What became of that.
    fn kernel_irq(&self) -> KernelIrq {
        KernelIrq::None
    }
}

/// An open device, in its parts.
#[non_exhaustive]
pub struct OpenDevice {
    /// The shared part.
    pub device: Arc<dyn Device>,
    /// One per RX queue, in order.
    pub rx: Vec<Box<dyn RxQueue>>,
    /// One per TX queue, in order.
    pub tx: Vec<Box<dyn TxQueue>>,
}

impl OpenDevice {
    /// Of these parts.
    pub fn new(device: Arc<dyn Device>, rx: Vec<Box<dyn RxQueue>>, tx: Vec<Box<dyn TxQueue>>) -> Self {
        OpenDevice { device, rx, tx }
    }
}

impl fmt::Debug for OpenDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let OpenDevice { device, rx, tx } = self;
        let queues = [rx.len(), tx.len()];
        f.debug_struct("OpenDevice").field("info", device.info()).field("queues", &queues).finish()
    }
}
