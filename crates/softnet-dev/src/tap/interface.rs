//! The queues of a TAP, open: ioctls on `/dev/net/tun` (Documentation/networking/tuntap.rst).
//!
//! Any thread may call it. Invariant: a TAP that was made here lives as long as one of its queues
//! is open, and no longer; one that was there before keeps its MTU, its addresses and its state.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{Mode, OFlags};

use super::TapConfig;
use super::error::TapError;
use crate::netlink::{Link, Netlink};
use crate::patience::Patience;
use crate::sys_error::{SysError, SysResult};
use crate::vnet;

/// How long a TAP is asked for that is open still: a program that had it may have just ended.
const BUSY: Patience = Patience { tries: 39, pause: Duration::from_millis(5) };

/// Packets that may wait for softnet in each queue. With the kernel's 1000 a thousand TCP
/// connections lose packets.
const TX_QUEUE_LEN: u32 = 10_000;

/// What the kernel may leave to softnet: segments, and checksums; without those of UDP on kernels
/// that have none (6.2).
const OFFLOADS: libc::c_uint = libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6 | libc::TUN_F_TSO_ECN;
const UDP_OFFLOADS: libc::c_uint = libc::TUN_F_USO4 | libc::TUN_F_USO6;

/// The open queues of a TAP. The TAP is gone with them, unless it is persistent.
pub struct TapQueues {
    name: String,
    index: u32,
    /// It was made here.
    made: bool,
    fds: Vec<Arc<OwnedFd>>,
    /// Whether the kernel knows segments of UDP.
    uso: bool,
}

impl TapQueues {
    /// Opens the queues of the TAP that `config` says, and makes it if there is none of that name.
    pub(super) fn open(config: &TapConfig, netlink: &mut Netlink) -> Result<Self, TapError> {
        let name = &config.interface;
        let kernel = |source| TapError::Kernel { name: name.clone(), source };
        let before = netlink.link(name).map_err(kernel)?;
        if let Some(link) = &before {
            check_existing(config, link)?;
        }
        let mut queues =
            TapQueues { name: name.clone(), index: 0, made: before.is_none(), fds: Vec::new(), uso: false };
        // Whether it has several queues is not to be asked for: one that has answers EINVAL if it
        // is opened as one that has not, and the other way round.
        let mut flag = if config.queues > 1 { libc::IFF_MULTI_QUEUE } else { 0 };
        for _ in 0..config.queues {
            let fd = tun(name)?;
            let mut attached = attach(&fd, name, flag);
            let refused = attached.as_ref().err().and_then(SysError::errno) == Some(libc::EINVAL);
            if refused && config.queues == 1 && before.is_some() {
                flag = libc::IFF_MULTI_QUEUE;
                attached = attach(&fd, name, flag);
            }
            attached.map_err(|source| match source.errno() {
                Some(libc::EBUSY) => TapError::Busy { name: name.clone() },
                Some(libc::EINVAL) if before.is_some() && config.queues > 1 => {
                    TapError::OneQueue { name: name.clone(), queues: config.queues }
                }
                _ => kernel(source),
            })?;
            let mut len = vnet::LEN as libc::c_int;
            pointer(&fd, libc::TUNSETVNETHDRSZ, &mut len, "set the length of a TAP's headers")
                .map_err(kernel)?;
            queues.fds.push(Arc::new(fd));
        }
        if queues.made {
            queues.set_up(config, netlink).map_err(kernel)?;
        }
        queues.index = netlink.existing_link(name).map_err(kernel)?.index;
        // Found out by asking for it, which does no harm.
        queues.uso = queues.ask_for(OFFLOADS | UDP_OFFLOADS).is_ok();
        queues.set_offloads(config.offloads).map_err(kernel)?;
        Ok(queues)
    }

    /// A TAP that was just made: its MTU, room for packets, and up.
    fn set_up(&self, config: &TapConfig, netlink: &mut Netlink) -> SysResult<()> {
        if let Some(mtu) = config.mtu {
            netlink.set_mtu(&self.name, mtu)?;
        }
        netlink.set_tx_queue_len(&self.name, TX_QUEUE_LEN)?;
        netlink.set_up(&self.name)
    }

    /// Whether these queues are those that `config` asks for, still.
    pub(super) fn serves(&self, config: &TapConfig, netlink: &mut Netlink) -> bool {
        let there = netlink.link(&config.interface).ok().flatten();
        self.fds.len() == config.queues as usize
            && there.is_some_and(|link| link.index == self.index && link.kind.as_deref() == Some("tun"))
    }

    /// Whether the kernel leaves segments and checksums to softnet.
    pub(super) fn set_offloads(&self, on: bool) -> SysResult<()> {
        let udp = if self.uso { UDP_OFFLOADS } else { 0 };
        self.ask_for(if on { OFFLOADS | udp } else { 0 })
    }

    fn ask_for(&self, offloads: libc::c_uint) -> SysResult<()> {
        let Some(fd) = self.fds.first() else { return Ok(()) };
        value(fd, libc::TUNSETOFFLOAD, offloads, "set the offloads of a TAP")
    }

    /// Whether the kernel cuts UDP into segments.
    pub(super) fn knows_uso(&self) -> bool {
        self.uso
    }

    /// Whether the kernel sees a cable at its end.
    pub(super) fn set_carrier(&self, on: bool) {
        let mut on = libc::c_int::from(on);
        if let Some(fd) = self.fds.first() {
            // Linux 5.0; before that there is one as long as a queue is open. Fails when the TAP is
            // gone.
            let _ = pointer(fd, libc::TUNSETCARRIER, &mut on, "set the carrier of a TAP");
        }
    }

    pub(super) fn fds(&self) -> &[Arc<OwnedFd>] {
        &self.fds
    }

    /// Whether it was made for softnet, and goes with it.
    pub(super) fn is_made(&self) -> bool {
        self.made
    }
}

impl std::fmt::Debug for TapQueues {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let TapQueues { name, index, made, fds, uso: _ } = self;
        f.debug_struct("TapQueues").field("of", &(name, index, made)).field("queues", &fds.len()).finish()
    }
}

/// Whether an interface that is there can be it.
fn check_existing(config: &TapConfig, link: &Link) -> Result<(), TapError> {
    let name = config.interface.clone();
    let what = match link.kind.as_deref() {
        Some("tun") if link.mac != [0; 6] => None,
        Some("tun") => Some("a TUN, which has no Ethernet".to_owned()),
        Some(kind) => Some(format!("of kind {kind}")),
        None => Some("hardware or loopback".to_owned()),
    };
    if let Some(what) = what {
        return Err(TapError::NameTaken { name, what });
    }
    match config.mtu {
        Some(wanted) if wanted != link.mtu => Err(TapError::Mtu { name, found: link.mtu, wanted }),
        _ => Ok(()),
    }
}

/// A descriptor that is no TAP's yet.
fn tun(name: &str) -> Result<OwnedFd, TapError> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
    rustix::fs::open("/dev/net/tun", flags, Mode::empty()).map_err(|errno| match errno {
        rustix::io::Errno::NOENT | rustix::io::Errno::NXIO | rustix::io::Errno::NODEV => {
            TapError::NoTun { name: name.into() }
        }
        _ => {
            let source = SysError::new("open /dev/net/tun", errno.into()).needs("CAP_NET_ADMIN");
            TapError::Kernel { name: name.into(), source }
        }
    })
}

/// Makes `fd` a queue of the TAP `name`, which is made if there is none.
fn attach(fd: &OwnedFd, name: &str, flag: libc::c_int) -> SysResult<()> {
    let mut request = libc::ifreq {
        ifr_name: [0; libc::IFNAMSIZ],
        ifr_ifru: libc::__c_anonymous_ifr_ifru {
            ifru_flags: (libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR | flag) as libc::c_short,
        },
    };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes().take(libc::IFNAMSIZ - 1)) {
        *to = from as libc::c_char;
    }
    let what = "open a queue of a TAP";
    let is_busy = |error: &SysError| error.errno() == Some(libc::EBUSY);
    let opened = BUSY.exert(is_busy, || pointer(fd, libc::TUNSETIFF, &mut request, what));
    opened.map_err(|error| error.needs("CAP_NET_ADMIN"))
}

/// An ioctl whose argument is a pointer to `value`, of the type that it wants.
fn pointer<T>(fd: &OwnedFd, number: libc::Ioctl, value: &mut T, what: &str) -> SysResult<()> {
    // SAFETY: a live value of the type that this request reads, and may write.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), number as _, std::ptr::from_mut(value)) };
    answer(result, what)
}

/// An ioctl whose argument is a number.
fn value(fd: &OwnedFd, number: libc::Ioctl, value: libc::c_uint, what: &str) -> SysResult<()> {
    // SAFETY: the request takes a plain number.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), number as _, libc::c_ulong::from(value)) };
    answer(result, what)
}

fn answer(result: libc::c_int, what: &str) -> SysResult<()> {
    if result < 0 { Err(SysError::new(what, io::Error::last_os_error())) } else { Ok(()) }
}
