//! The AF_XDP sockets of one queue of one device, shared by that queue's two halves and its doorbell.
//!
//! The receiving half owns the fill and receive ring, the transmitting half the transmit and completion ring; what
//! is here may be called by any thread. The sockets end when both halves are closed: only then does the
//! kernel let go of the frames, so the half that goes first leaves its books here, and the one that goes last
//! brings all frames home.
//!
//! The transmit ring is that of a second socket, which shares the queue's fill and completion ring. For each packet
//! that was sent the kernel tells those that wait for the sending socket that there is room, and threads wait for
//! packets at the receiving one: were it the same, each packet sent would wait for the lock of the wait queue that
//! another CPU holds while it wakes a thread for a packet received.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use rustix::net::xdp::{
    SocketAddrXdp, SocketAddrXdpFlags, XDP_PGOFF_RX_RING, XDP_PGOFF_TX_RING, XDP_UMEM_PGOFF_COMPLETION_RING,
    XDP_UMEM_PGOFF_FILL_RING, XdpOptionsFlags, XdpUmemReg, XdpUmemRegFlags,
};
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use softnet_core::SoftnetData;
use softnet_core::napi::MitigationConfig;
use softnet_core::skb::{FRAME_SIZE, Frame};

use super::attach::Attachment;
use super::frames::FrameSet;
use super::kernel_irq::{KernelNapis, QueueIrq};
use super::ring::RingMemory;
use super::umem::{Binding, Umem};
use crate::device::{Doorbell, KernelIrq, QueueStats};
use crate::sys_error::{SysError, SysResult};

/// `XDP_MAX_TX_SKB_BUDGET`: packets that one transmit call sends in copy mode; 32 on kernels that do not know it.
const XDP_MAX_TX_SKB_BUDGET: i32 = 9;

/// How long the kernel may hold on to a zero-copy queue after its socket was closed.
const RELEASE_TRIES: u32 = 200;
const RELEASE_PAUSE: Duration = Duration::from_millis(3);

/// The sockets of one queue.
pub(super) struct Xsk {
    /// The one that receives.
    fd: OwnedFd,
    /// The one that sends, if the queue has a transmitting half.
    tx: Option<OwnedFd>,
    umem: Arc<Umem>,
    attachment: Arc<Attachment>,
    /// The receive ring, which the doorbell looks at.
    rx: Arc<RingMemory>,
    zero_copy: bool,
    binding: Binding,
    /// No frame is posted: no packet can come in and ring, so this queue is to be polled without.
    starved: AtomicBool,
    /// The kernel's interrupt of the queue.
    pub(super) irq: QueueIrq,
    /// Descriptors of the receive ring that could not be believed.
    pub(super) bad_descriptors: AtomicU64,
    rx_stats: Arc<QueueStats>,
    state: Mutex<State>,
}

struct State {
    /// Halves that are not closed.
    halves: u8,
    /// Books of those that are.
    held: Vec<FrameSet>,
    /// An unbound socket that can tell when the kernel has let go of the queue: where packets are
    /// not copied, and once another process has, or had, the socket too.
    spare: Option<OwnedFd>,
    /// Receive losses that `rx_stats` already has.
    losses: u64,
    /// A mapping could not be taken off, and keeps the kernel's socket alive.
    stuck: bool,
}

/// The bound sockets of a queue, and the rings of its halves.
pub(super) struct Bound {
    pub(super) xsk: Arc<Xsk>,
    pub(super) fill: RingMemory,
    pub(super) rx: Arc<RingMemory>,
    /// Transmit and completion ring.
    pub(super) tx: Option<(RingMemory, RingMemory)>,
}

/// The sockets of a queue: the one that receives, and the one that sends.
pub(super) struct Sockets {
    pub(super) rx: OwnedFd,
    pub(super) tx: Option<OwnedFd>,
}

/// The rings of a queue.
struct Rings {
    fill: RingMemory,
    rx: Arc<RingMemory>,
    tx: Option<(RingMemory, RingMemory)>,
}

impl Rings {
    /// Maps those of `sockets`, of `ring` slots each.
    fn map(sockets: &Sockets, ring: u32) -> SysResult<Self> {
        let fd = &sockets.rx;
        let at = sockopt::xdp_mmap_offsets(fd)
            .map_err(|errno| SysError::new("ask for the layout of AF_XDP rings", errno.into()))?;
        let mapped = |error| SysError::new("map an AF_XDP ring", error);
        let (fill_at, rx_at) = (XDP_UMEM_PGOFF_FILL_RING, XDP_PGOFF_RX_RING);
        let (tx_at, done_at) = (XDP_PGOFF_TX_RING, XDP_UMEM_PGOFF_COMPLETION_RING);
        let fill = RingMemory::map::<u64>(fd.as_fd(), fill_at, &at.fr, ring).map_err(mapped)?;
        let rx = RingMemory::map::<libc::xdp_desc>(fd.as_fd(), rx_at, &at.rx, ring).map_err(mapped)?;
        let rx = Arc::new(rx);
        let tx = if let Some(sender) = &sockets.tx {
            let tx =
                RingMemory::map::<libc::xdp_desc>(sender.as_fd(), tx_at, &at.tx, ring).map_err(mapped)?;
            Some((tx, RingMemory::map::<u64>(fd.as_fd(), done_at, &at.cr, ring).map_err(mapped)?))
        } else {
            None
        };
        Ok(Rings { fill, rx, tx })
    }

    fn bound(self, xsk: Arc<Xsk>) -> Bound {
        let Rings { fill, rx, tx } = self;
        Bound { xsk, fill, rx, tx }
    }
}

pub(super) fn socket() -> SysResult<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::XDP, SocketType::RAW, flags, None).map_err(|errno| {
        let error = SysError::new("open an AF_XDP socket", errno.into());
        match errno {
            Errno::AFNOSUPPORT => error.detail("this kernel is built without CONFIG_XDP_SOCKETS"),
            _ => error.needs("CAP_NET_RAW"),
        }
    })
}

impl Xsk {
    /// Opens the sockets of the queue `to`, with rings of `ring` slots each.
    pub(super) fn open(
        umem: &Arc<Umem>,
        attachment: &Arc<Attachment>,
        napis: &Arc<KernelNapis>,
        to: Binding,
        ring: u32,
        transmit: bool,
    ) -> SysResult<Bound> {
        let fd = socket()?;
        let sized = |result: rustix::io::Result<()>| {
            result.map_err(|errno| SysError::new(format!("make AF_XDP rings of {ring} slots"), errno.into()))
        };
        sized(sockopt::set_xdp_umem_fill_ring_size(&fd, ring))?;
        sized(sockopt::set_xdp_umem_completion_ring_size(&fd, ring))?;
        sized(sockopt::set_xdp_rx_ring_size(&fd, ring))?;
        let tx = transmit.then(socket).transpose()?;
        if let Some(sender) = &tx {
            sized(sockopt::set_xdp_tx_ring_size(sender, ring))?;
            widen_transmit(sender, ring);
        }
        let sockets = Sockets { rx: fd, tx };
        let rings = Rings::map(&sockets, ring)?;
        let on = |sockets| Self::on(umem, (attachment, napis), to, sockets, &rings);
        let xsk = umem.bind(sockets, to, on)?;
        Ok(rings.bound(xsk))
    }

    /// The `sockets` of the queue `to`, which another process opened and bound, with rings of
    /// `ring` slots each. The rings are mapped, and left as they are.
    pub(super) fn handed_over(
        umem: &Arc<Umem>,
        parts: (&Arc<Attachment>, &Arc<KernelNapis>),
        to: Binding,
        sockets: Sockets,
        ring: u32,
    ) -> SysResult<Bound> {
        // Whatever else one were, what follows would be about something else.
        let is_xdp = |fd| sockopt::socket_domain(fd).is_ok_and(|family| family == AddressFamily::XDP);
        if !is_xdp(&sockets.rx) || !sockets.tx.as_ref().is_none_or(is_xdp) {
            let other = io::Error::new(io::ErrorKind::InvalidData, "not an AF_XDP socket");
            return Err(SysError::new("take over an AF_XDP socket", other));
        }
        let rings = Rings::map(&sockets, ring)?;
        let xsk = Self::on(umem, parts, to, sockets, &rings)?;
        // The other may live longer than the device here.
        xsk.share()?;
        // What was lost before is not this process's to count.
        xsk.state().losses = xsk.kernel_losses().unwrap_or(0);
        umem.add(&xsk);
        Ok(rings.bound(xsk))
    }

    fn on(
        umem: &Arc<Umem>,
        (attachment, napis): (&Arc<Attachment>, &Arc<KernelNapis>),
        to: Binding,
        Sockets { rx: fd, tx }: Sockets,
        rings: &Rings,
    ) -> SysResult<Arc<Self>> {
        let zero_copy = sockopt::xdp_options(&fd)
            .is_ok_and(|options| options.contains(XdpOptionsFlags::XDP_OPTIONS_ZEROCOPY));
        let spare = if zero_copy { Some(socket()?) } else { None };
        attachment.socket_opened();
        let (halves, held) = (1 + u8::from(tx.is_some()), vec![]);
        Ok(Arc::new(Xsk {
            fd,
            tx,
            umem: umem.clone(),
            attachment: attachment.clone(),
            rx: rings.rx.clone(),
            zero_copy,
            binding: to,
            starved: AtomicBool::new(false),
            irq: QueueIrq::new(napis.clone(), to.queue),
            bad_descriptors: AtomicU64::new(0),
            rx_stats: Arc::default(),
            state: Mutex::new(State { halves, held, spare, losses: 0, stuck: false }),
        }))
    }

    /// The socket that receives: the one whose descriptor is readable while packets wait.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// The socket that sends, if the queue has a transmitting half.
    pub(super) fn tx_fd(&self) -> Option<BorrowedFd<'_>> {
        self.tx.as_ref().map(OwnedFd::as_fd)
    }

    /// Those on which calls may poll the kernel's NAPI instance. Where packets are copied, sending
    /// has nothing to do with it.
    pub(super) fn pollable(&self) -> impl Iterator<Item = BorrowedFd<'_>> + Clone {
        let sender = self.tx_fd().filter(|_| self.zero_copy);
        std::iter::once(self.fd()).chain(sender)
    }

    pub(super) fn zero_copy(&self) -> bool {
        self.zero_copy
    }

    /// Another process has the socket, too, or is about to: that it is closed here does not mean
    /// any more that the kernel lets go of it. Called in the network namespace of the device.
    pub(super) fn share(&self) -> SysResult<()> {
        let mut state = self.state();
        if state.spare.is_none() {
            state.spare = Some(socket()?);
        }
        Ok(())
    }

    /// Whether packets of several frames come and go.
    pub(super) fn has_frags(&self) -> bool {
        self.binding.frags
    }

    pub(super) fn umem(&self) -> &Arc<Umem> {
        &self.umem
    }

    pub(super) fn rx_stats(&self) -> &Arc<QueueStats> {
        &self.rx_stats
    }

    /// Notes whether frames are posted. Called by the receiving half only, so a load spares most stores.
    #[inline(always)]
    pub(super) fn set_starved(&self, starved: bool) {
        if self.starved.load(Ordering::Relaxed) != starved {
            self.starved.store(starved, Ordering::Relaxed);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Brings the kernel's counts of lost packets into the queue's statistics. Any thread may call it.
    pub(super) fn refresh(&self) {
        let mut state = self.state();
        // Fails once the socket is closed; the last figures stand then.
        if let Some(kernel) = self.kernel_losses() {
            let losses = kernel + self.bad_descriptors.load(Ordering::Relaxed);
            // The lock makes this thread the counter's only writer.
            self.rx_stats.ring_drops.add(losses.saturating_sub(state.losses));
            state.losses = state.losses.max(losses);
        }
    }

    /// Packets that the kernel lost on the way to the receive ring.
    fn kernel_losses(&self) -> Option<u64> {
        let kernel = sockopt::xdp_statistics(&self.fd).ok()?;
        Some(kernel.rx_dropped + kernel.rx_ring_full.unwrap_or(0) + kernel.rx_invalid_descs)
    }

    /// A descriptor on which nothing ever happens.
    pub(super) fn quiet(&self) -> BorrowedFd<'_> {
        self.umem.quiet()
    }

    /// Transmit descriptors that the kernel refused, and whose frames it therefore never completes.
    pub(super) fn refused(&self) -> u64 {
        let kernel = self.tx.as_ref().and_then(|sender| sockopt::xdp_statistics(sender).ok());
        kernel.map_or(0, |kernel| kernel.tx_invalid_descs)
    }

    /// A half is closed, its mappings are gone (or, `stuck`, could not be taken off), and `held` is what the kernel still
    /// had of it. With the last half the sockets are closed, and all frames come home to `ctx`.
    pub(super) fn half_closed(&self, ctx: &mut SoftnetData, held: FrameSet, stuck: bool) {
        self.refresh();
        let mut state = self.state();
        state.held.push(held);
        state.stuck |= stuck;
        state.halves = state.halves.saturating_sub(1);
        if state.halves > 0 {
            return;
        }
        // It is closed here, so that its queue is free for the next.
        let spare = state.spare.take();
        let link = self.attachment.socket_closed();
        // All wait until no CPU uses them any more: at the same time. What finds no thread goes here.
        let released = std::thread::scope(|scope| {
            if link.is_some() {
                let _ = std::thread::Builder::new().spawn_scoped(scope, move || drop(link));
            }
            let sender = || self.tx_fd().is_none_or(|fd| self.shut(fd));
            let elsewhere = std::thread::Builder::new().spawn_scoped(scope, sender);
            let closed = self.shut(self.fd());
            let sender_closed =
                elsewhere.map_or_else(|_| sender(), |thread| thread.join().is_ok_and(|done| done));
            closed && sender_closed && spare.is_none_or(|spare| wait_released(spare.as_fd(), self.binding))
        });
        if !released || state.stuck {
            // The kernel may still write to the frames. They stay out, and with them the region's memory stays in place.
            let out: usize = state.held.iter().map(FrameSet::len).sum();
            self.umem.count_lost(out as u64);
            return;
        }
        let mut count = 0;
        for set in &mut state.held {
            set.drain(|index| {
                // SAFETY: the set holds numbers of frames of this region that a half gave up with `into_raw` and that
                // the kernel did not return; the socket is gone, so this is their only way back.
                ctx.free_frame(unsafe { Frame::from_raw(self.umem.region(), index) });
                count += 1;
            });
        }
        self.umem.count_reclaimed(count);
    }

    /// Closes the socket `fd` while the descriptor's number stays ours: a doorbell may outlive the queue, and must
    /// never wait on a stranger's descriptor. Whether it could be done.
    fn shut(&self, fd: BorrowedFd<'_>) -> bool {
        // SAFETY: both descriptors are open and ours; the target's old file is closed, its number stays owned by
        // `self`. Mappings are gone, so this was the last reference, unless another process has one: then,
        // and without copies, the spare socket tells. Otherwise the kernel stops using the socket before it returns.
        unsafe { libc::dup3(self.umem.quiet().as_raw_fd(), fd.as_raw_fd(), libc::O_CLOEXEC) >= 0 }
    }
}

/// In copy mode a transmit call sends 32 packets and stops, and stops too when the packets under way exceed
/// the send buffer; both limits are raised to what the ring holds. An older kernel keeps its limits, and the
/// transmitting half calls more often.
fn widen_transmit(fd: &OwnedFd, ring: u32) {
    // What the kernel charges for an skb with a full frame: the data's allocation and the skb itself.
    let bytes = ring as usize * 2 * FRAME_SIZE;
    if sockopt::set_socket_send_buffer_size_force(fd, bytes).is_err() {
        let _ = sockopt::set_socket_send_buffer_size(fd, bytes);
    }
    // SAFETY: the option's value is a live u32 of the stated length.
    unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_XDP,
            XDP_MAX_TX_SKB_BUDGET,
            std::ptr::from_ref(&ring).cast(),
            size_of::<u32>() as u32,
        );
    }
}

/// Waits until the kernel has let go of a queue whose sockets were closed; false if it does not.
/// In zero-copy mode the device may write to posted frames until then, and the kernel stops it in a
/// work item without telling; in either mode it goes on as long as another process has the socket.
/// But a socket that asks for the queue is refused as long as that lasts. `spare` has no frames
/// posted and no program leads to it.
pub(super) fn wait_released(spare: BorrowedFd<'_>, binding: Binding) -> bool {
    const PAGE: usize = 4096;
    // SAFETY: a fresh mapping at an address the kernel chooses.
    let Ok(page) = (unsafe {
        mmap_anonymous(std::ptr::null_mut(), PAGE, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
    }) else {
        return false;
    };
    let memory = XdpUmemReg {
        addr: page as u64,
        len: PAGE as u64,
        chunk_size: FRAME_SIZE as u32,
        headroom: 0,
        flags: XdpUmemRegFlags::empty(),
        tx_metadata_len: 0,
    };
    let ready = sockopt::set_xdp_umem_reg(spare, memory)
        .and_then(|()| sockopt::set_xdp_umem_fill_ring_size(spare, 2))
        .and_then(|()| sockopt::set_xdp_umem_completion_ring_size(spare, 2))
        .and_then(|()| sockopt::set_xdp_rx_ring_size(spare, 2));
    let address = SocketAddrXdp::new(SocketAddrXdpFlags::XDP_COPY, binding.ifindex, binding.queue);
    let released = ready.is_ok()
        && (0..RELEASE_TRIES).any(|_| match rustix::net::bind(spare, &address) {
            Err(Errno::BUSY) => {
                std::thread::sleep(RELEASE_PAUSE);
                false
            }
            // It is ours, or the interface or the queue is gone.
            _ => true,
        });
    // SAFETY: mapped above; the kernel holds the page by its own reference as long as the spare socket lives.
    let _ = unsafe { munmap(page, PAGE) };
    released
}

/// The doorbell is the socket that receives. Its descriptor is readable exactly while the receive ring holds packets
/// (`xsk_poll`), so there is nothing to mask: a packet that arrives between the last look and the sleep leaves the
/// descriptor readable, and the sleep does not begin (race R2 can't be lost); one that was polled away meanwhile no
/// longer rings.
impl Doorbell for Xsk {
    #[inline(always)]
    fn pending(&self) -> bool {
        !self.rx.is_empty()
    }

    #[inline(always)]
    fn starved(&self) -> bool {
        self.starved.load(Ordering::Relaxed)
    }

    fn mask(&self) {}

    fn unmask(&self) {}

    fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    fn mitigation_changed(&self, knobs: &MitigationConfig) {
        self.irq.changed(self.pollable(), knobs);
    }

    fn kernel_irq(&self) -> KernelIrq {
        self.irq.state()
    }
}
