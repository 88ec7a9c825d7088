//! Whole frames by AF_PACKET: what tests and tools send and capture on an interface, past the kernel's own IP.
//!
//! Any thread may use a socket, and it stays in the namespace in which it was made. Frames that leave by the interface
//! are not captured, so what is received is what the other end of the wire sent. Nothing is filtered: frames to other
//! MAC addresses come too. VLAN tags that the kernel took out of a frame are not put back.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::net::{RecvFlags, SendFlags};

use softnet_dev::netlink::Netlink;
use softnet_dev::sys_error::{SysError, SysResult};

/// Room for frames on their way; the kernel counts some 2 KiB for each.
const BUFFER: i32 = 16 << 20;
const ETH_P_ALL: u16 = 0x0003;

/// A packet socket on one interface.
#[derive(Debug)]
pub struct PacketSocket {
    fd: OwnedFd,
}

impl PacketSocket {
    /// Sends by, and captures on, the interface called `name` of the calling thread's namespace. It never blocks.
    ///
    /// # Errors
    /// ENODEV if there is no such interface. Needs CAP_NET_RAW.
    pub fn open(name: &str) -> SysResult<Self> {
        let index = Netlink::new()?.existing_link(name)?.index;
        let fd = socket(libc::SOCK_NONBLOCK)?;
        set_option(fd.as_fd(), libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, 1)
            .map_err(|error| SysError::new("ignore what a packet socket sends", error))?;
        force_buffer(&fd, libc::SO_RCVBUFFORCE, libc::SO_RCVBUF)?;
        bind(&fd, index, ETH_P_ALL)?;
        Ok(PacketSocket { fd })
    }

    /// Sends `frame`, from the Ethernet header on.
    ///
    /// # Errors
    /// EMSGSIZE if it exceeds the MTU; ENETDOWN, ENXIO if the interface is down or gone.
    pub fn send(&self, frame: &[u8]) -> io::Result<()> {
        rustix::net::send(&self.fd, frame, SendFlags::empty())?;
        Ok(())
    }

    /// Takes the oldest frame that was captured into `buffer`, cut to fit; its length there. `None` if there is none.
    ///
    /// # Errors
    /// ENETDOWN if the interface went down.
    pub fn recv(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        match rustix::net::recv(&self.fd, buffer, RecvFlags::empty()) {
            Ok((len, _)) => Ok(Some(len)),
            Err(rustix::io::Errno::AGAIN) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }
}

impl AsFd for PacketSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// A packet socket that is bound to nothing and receives nothing.
pub(super) fn socket(flags: i32) -> SysResult<OwnedFd> {
    // SAFETY: plain numbers; returns a descriptor or -1. Protocol 0: no frame is received.
    let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC | flags, 0) };
    if fd < 0 {
        return Err(SysError::last("open a packet socket").needs("CAP_NET_RAW"));
    }
    // SAFETY: the kernel just made this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Gives `socket` a large buffer; beyond the machine's limit if that is permitted.
pub(super) fn force_buffer(socket: &OwnedFd, force: i32, ask: i32) -> SysResult<()> {
    set_option(socket.as_fd(), libc::SOL_SOCKET, force, BUFFER)
        .or_else(|_| set_option(socket.as_fd(), libc::SOL_SOCKET, ask, BUFFER))
        .map_err(|error| SysError::new("size the buffer of a packet socket", error))
}

/// Binds `socket` to the interface with this index, to receive frames of `protocol`; 0: none.
pub(super) fn bind(socket: &OwnedFd, index: u32, protocol: u16) -> SysResult<()> {
    // SAFETY: plain numbers, for which zero is a value.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = protocol.to_be();
    address.sll_ifindex = index as i32;
    // SAFETY: a live address of the stated length.
    let bound = unsafe {
        libc::bind(
            socket.as_raw_fd(),
            (&raw const address).cast(),
            size_of::<libc::sockaddr_ll>() as libc::socklen_t,
        )
    };
    if bound < 0 {
        return Err(SysError::last(format!("bind a packet socket to interface {index}")));
    }
    Ok(())
}

pub(super) fn set_option(socket: BorrowedFd<'_>, level: i32, option: i32, value: i32) -> io::Result<()> {
    // SAFETY: a live value of the stated length.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            option,
            (&raw const value).cast(),
            size_of::<i32>() as libc::socklen_t,
        )
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net_allowed;
    use softnet_dev::netns::NetNs;

    #[test]
    fn frames_cross_a_wire_as_they_are() {
        if !net_allowed() {
            return;
        }
        let ns = NetNs::new().unwrap();
        let [left, right] = ns
            .run(|| {
                let mut netlink = Netlink::new().unwrap();
                netlink.add_veth("left", "right", (1, 1), None).unwrap();
                ["left", "right"].iter().for_each(|end| netlink.set_up(end).unwrap());
                ["left", "right"].iter().for_each(|end| netlink.wait_running(end).unwrap());
                ["left", "right"].map(|end| PacketSocket::open(end).unwrap())
            })
            .unwrap();
        // An ethertype that is free for private use, to a MAC address that neither end has.
        let frame = [&[2, 0, 0, 0, 9, 9, 2, 0, 0, 0, 9, 8, 0x88, 0xb5][..], &[7; 30]].concat();
        left.send(&frame).unwrap();
        // The kernel's own frames (IPv6) come too; what was sent here does not come back.
        let next = |socket: &PacketSocket| {
            let mut buffer = [0; 2048];
            socket.recv(&mut buffer).unwrap().map(|len| buffer[..len].to_vec())
        };
        let ours = |socket| std::iter::from_fn(|| next(socket)).any(|seen| seen == frame);
        let give_up = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while !ours(&right) {
            assert!(std::time::Instant::now() < give_up);
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        assert!(!ours(&left));
    }
}
