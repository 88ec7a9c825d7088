//! What is asked of the interface itself while a device is open: two ioctls on a socket that stays in the
//! interface's network namespace, wherever the asking thread is.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::netdevice::index_to_name_inlined;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use crate::device::LinkState;
use crate::sys_error::{SysError, SysResult};

const ETHTOOL_GCHANNELS: u32 = 0x3c;

/// `struct ethtool_channels`.
#[repr(C)]
#[derive(Default)]
struct Channels {
    command: u32,
    max: [u32; 4],
    rx: u32,
    tx: u32,
    other: u32,
    combined: u32,
}

/// A way to ask about one interface of the namespace it was made in. Any thread may use it.
pub(crate) struct Control {
    socket: OwnedFd,
    ifindex: u32,
}

impl Control {
    pub(crate) fn new(ifindex: u32) -> SysResult<Self> {
        let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
            .map_err(|errno| SysError::new("open a socket to ask about interfaces", errno.into()))?;
        Ok(Control { socket, ifindex })
    }

    /// Whether there is no such interface any more.
    pub(crate) fn is_gone(&self) -> bool {
        index_to_name_inlined(&self.socket, self.ifindex).is_err()
    }

    /// A request about the interface, whatever its name is by now.
    fn request(&self) -> rustix::io::Result<libc::ifreq> {
        let name = index_to_name_inlined(&self.socket, self.ifindex)?;
        let mut request = libc::ifreq {
            ifr_name: [0; libc::IFNAMSIZ],
            ifr_ifru: libc::__c_anonymous_ifr_ifru { ifru_flags: 0 },
        };
        for (to, from) in request.ifr_name.iter_mut().zip(name.as_bytes().iter().take(libc::IFNAMSIZ - 1)) {
            *to = *from as libc::c_char;
        }
        Ok(request)
    }

    fn ioctl(&self, number: libc::c_ulong, request: &mut libc::ifreq) -> io::Result<()> {
        // SAFETY: a live `ifreq`, which is what both requests made here read and write.
        let result =
            unsafe { libc::ioctl(self.socket.as_raw_fd(), number as _, std::ptr::from_mut(request)) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Whether packets can pass. Two system calls.
    pub(crate) fn link(&self) -> LinkState {
        let mut request = match self.request() {
            Ok(request) => request,
            Err(Errno::NODEV | Errno::NXIO) => return LinkState::Gone,
            Err(_) => return LinkState::Down,
        };
        if let Err(error) = self.ioctl(libc::SIOCGIFFLAGS as _, &mut request) {
            return if error.raw_os_error() == Some(libc::ENODEV) {
                LinkState::Gone
            } else {
                LinkState::Down
            };
        }
        // SAFETY: a successful SIOCGIFFLAGS wrote this field.
        let flags = i32::from(unsafe { request.ifr_ifru.ifru_flags });
        let running = libc::IFF_UP | libc::IFF_RUNNING;
        if flags & running == running { LinkState::Up } else { LinkState::Down }
    }

    /// An ethtool request: `words` begin with the command, and are as long as that says they are.
    pub(crate) fn ethtool(&self, words: &mut [u32]) -> io::Result<()> {
        let mut request = self.request()?;
        request.ifr_ifru.ifru_data = words.as_mut_ptr().cast();
        self.ioctl(libc::SIOCETHTOOL as _, &mut request)
    }

    /// How many (RX, TX) queues are in use (`ethtool -l`); `None` if the driver does not tell.
    pub(super) fn channels(&self) -> Option<(u32, u32)> {
        let mut channels = Channels { command: ETHTOOL_GCHANNELS, ..Channels::default() };
        let mut request = self.request().ok()?;
        request.ifr_ifru.ifru_data = std::ptr::from_mut(&mut channels).cast();
        self.ioctl(libc::SIOCETHTOOL as _, &mut request).ok()?;
        let (rx, tx) = (channels.rx + channels.combined, channels.tx + channels.combined);
        (rx > 0).then_some((rx, tx))
    }
}
