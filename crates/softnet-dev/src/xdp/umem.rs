//! The region as AF_XDP knows it: registered once, shared by the sockets of all devices.
//!
//! Any thread may open devices on it; opening and closing are serialised here. The socket that registers the
//! memory is nothing special to us: a socket of another (device, queue) can be bound through any socket that is
//! alive, and when none is, the same memory is registered afresh. So devices may come and go in any order.
//!
//! Invariant: the list holds only sockets that were bound; those whose device vanished stay in it until
//! they are closed, and are skipped when the kernel says EBADF.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use rustix::net::sockopt;
use rustix::net::xdp::{
    SocketAddrXdp, SocketAddrXdpFlags, SocketAddrXdpWithSharedUmem, XdpUmemReg, XdpUmemRegFlags,
};
use softnet_core::skb::{FRAME_SIZE, Region};

use super::socket::{Sockets, Xsk};
use crate::patience::Patience;
use crate::sys_error::{SysError, SysResult};

/// How long a bind waits for the queue to become free. The kernel gives up a closed socket's queue only in a work item
/// after an RCU grace period (`xp_put_pool`), 7 to 44 ms later, so a device that is opened again at once would be refused.
const BIND: Patience = Patience { tries: 50, pause: Duration::from_millis(3) };

/// A region's registration with AF_XDP: made when the first device is opened, shared by the sockets of all, and made
/// afresh when none of them lives.
pub struct Umem {
    region: Arc<Region>,
    sockets: Mutex<Vec<Weak<Xsk>>>,
    /// An event descriptor that never becomes readable: what closed sockets' descriptors are turned into.
    quiet: OwnedFd,
    reclaimed: AtomicU64,
    lost: AtomicU64,
}

/// What a socket is bound to.
#[derive(Clone, Copy)]
pub(super) struct Binding {
    pub(super) ifindex: u32,
    pub(super) queue: u32,
    /// No zero-copy: packets come by the kernel's generic XDP, which has none.
    pub(super) copy: bool,
    /// Packets of several frames come and go, each with a descriptor of its own (Linux 6.6).
    pub(super) frags: bool,
}

impl Umem {
    /// For `region`; the kernel learns of it when the first device is opened.
    ///
    /// # Errors
    /// If no descriptor is left.
    pub fn new(region: Arc<Region>) -> std::io::Result<Arc<Self>> {
        let quiet = eventfd(0, EventfdFlags::CLOEXEC)?;
        let [reclaimed, lost] = [0; 2].map(AtomicU64::new);
        Ok(Arc::new(Umem { region, sockets: Mutex::default(), quiet, reclaimed, lost }))
    }

    /// The memory.
    pub fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// Frames that were in the rings of sockets when these were closed, and came home by our own books.
    pub fn reclaimed(&self) -> u64 {
        self.reclaimed.load(Ordering::Relaxed)
    }

    pub(super) fn count_reclaimed(&self, frames: u64) {
        self.reclaimed.fetch_add(frames, Ordering::Relaxed);
    }

    /// Frames that the kernel had not let go of when their sockets were closed: they stay out.
    pub(super) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    pub(super) fn count_lost(&self, frames: u64) {
        self.lost.fetch_add(frames, Ordering::Relaxed);
    }

    pub(super) fn quiet(&self) -> BorrowedFd<'_> {
        self.quiet.as_fd()
    }

    pub(super) fn sockets(&self) -> MutexGuard<'_, Vec<Weak<Xsk>>> {
        self.sockets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Binds the `new` sockets on this memory, and has `finish` make an [`Xsk`] of them.
    pub(super) fn bind(
        &self,
        new: Sockets,
        to: Binding,
        finish: impl FnOnce(Sockets) -> SysResult<Arc<Xsk>>,
    ) -> SysResult<Arc<Xsk>> {
        let fd = new.rx.as_fd();
        let mut sockets = self.sockets();
        sockets.retain(|socket| socket.strong_count() > 0);
        if !self.bind_shared(fd, to, &sockets)? {
            self.register(fd)?;
            // Without a word on copying, the kernel tries zero-copy and falls back by itself.
            let mut flags = SocketAddrXdpFlags::XDP_USE_NEED_WAKEUP;
            flags.set(SocketAddrXdpFlags::XDP_COPY, to.copy);
            flags.set(SocketAddrXdpFlags::XDP_USE_SG, to.frags);
            let address = SocketAddrXdp::new(flags, to.ifindex, to.queue);
            patiently(|| rustix::net::bind(fd, &address)).map_err(|errno| bind_error(to, errno))?;
        }
        if let Some(sender) = &new.tx {
            bind_through(sender.as_fd(), fd, to).map_err(|errno| bind_error(to, errno))?;
        }
        let xsk = finish(new)?;
        sockets.push(Arc::downgrade(&xsk));
        Ok(xsk)
    }

    /// A socket that another process bound on the same memory.
    pub(super) fn add(&self, xsk: &Arc<Xsk>) {
        self.sockets().push(Arc::downgrade(xsk));
    }

    /// Tries to bind through a socket that lives. False if there is none through which it can be done.
    fn bind_shared(&self, fd: BorrowedFd<'_>, to: Binding, sockets: &[Weak<Xsk>]) -> SysResult<bool> {
        for live in sockets.iter().filter_map(Weak::upgrade) {
            // The later socket inherits copy or zero-copy from the earlier one, and whether packets have
            // several frames.
            if to.copy && live.zero_copy() || to.frags && !live.has_frags() {
                continue;
            }
            match patiently(|| bind_through(fd, live.fd(), to)) {
                Ok(()) => return Ok(true),
                // Its device is gone; it was closed; or this device can't do the zero-copy that it does.
                Err(Errno::BADF | Errno::NOTSOCK | Errno::NOPROTOOPT | Errno::OPNOTSUPP) => {}
                Err(errno) => return Err(bind_error(to, errno)),
            }
        }
        Ok(false)
    }

    fn register(&self, fd: BorrowedFd<'_>) -> SysResult<()> {
        let memory = XdpUmemReg {
            addr: self.region.base() as u64,
            len: self.region.frame_bytes() as u64,
            chunk_size: FRAME_SIZE as u32,
            headroom: 0,
            flags: XdpUmemRegFlags::empty(),
            tx_metadata_len: 0,
        };
        sockopt::set_xdp_umem_reg(fd, memory).map_err(|errno| {
            let error = SysError::new("register packet memory with AF_XDP", errno.into());
            if errno == Errno::NOBUFS {
                let bytes = self.region.frame_bytes();
                return error.detail(format!(
                    "{bytes} bytes are above the limit of locked memory (ulimit -l): run as root, or grant CAP_IPC_LOCK \
                     with `sudo setcap cap_net_admin,cap_bpf,cap_net_raw,cap_ipc_lock+ep {}`",
                    program()
                ));
            }
            error.needs("CAP_IPC_LOCK")
        })
    }
}

/// Binds `fd` on the memory of `live`, an earlier socket.
fn bind_through(fd: BorrowedFd<'_>, live: BorrowedFd<'_>, to: Binding) -> rustix::io::Result<()> {
    let address = SocketAddrXdpWithSharedUmem {
        // This flag alone: the kernel takes need-wakeup from the earlier socket, and refuses it here.
        addr: SocketAddrXdp::new(SocketAddrXdpFlags::XDP_SHARED_UMEM, to.ifindex, to.queue),
        shared_umem_fd: live,
    };
    rustix::net::bind(fd, &address)
}

/// The path of this program, for messages.
pub(super) fn program() -> String {
    std::env::current_exe().map_or_else(|_| "<program>".into(), |path| path.display().to_string())
}

/// Repeats while the queue is busy.
fn patiently(bind: impl FnMut() -> rustix::io::Result<()>) -> rustix::io::Result<()> {
    BIND.exert(|errno| *errno == Errno::BUSY, bind)
}

fn bind_error(to: Binding, errno: Errno) -> SysError {
    let what = format!("bind an AF_XDP socket to queue {} of interface {}", to.queue, to.ifindex);
    let error = SysError::new(what, errno.into());
    match errno {
        Errno::BUSY => error.detail("another AF_XDP socket has this queue"),
        _ => error.needs("CAP_NET_RAW"),
    }
}
