//! Our address of a datagram, as the kernel's control messages have it: `IP_PKTINFO` and
//! `IPV6_PKTINFO`.
//!
//! One control message is read and written, by its bytes: a header of length, level and type, and
//! the structure behind it, as `cmsg(3)` lays them out. What else the kernel might say is left
//! alone.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, BorrowedFd};

use super::Local;

/// Bytes of a `cmsghdr`; a multiple of its alignment, so that its data begins there.
const HEADER: usize = size_of::<libc::cmsghdr>();
const _: () = assert!(HEADER.is_multiple_of(align_of::<libc::cmsghdr>()));
/// Room for one with the longer of the two structures.
const ROOM: usize = (HEADER + size_of::<libc::in6_pktinfo>()).next_multiple_of(align_of::<libc::cmsghdr>());

/// Memory for a control message.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
pub(super) struct Control([u8; ROOM]);

impl Control {
    /// Without a message.
    pub(super) const EMPTY: Control = Control([0; ROOM]);

    /// The message that has a datagram come from `local`, and how long it is. The device says
    /// nothing but which link-local address is meant: else answers would leave by it, whatever the
    /// routes are.
    pub(super) fn of(local: Local) -> (Self, usize) {
        let mut control = Control::EMPTY;
        let (level, kind, data) = match local.addr {
            IpAddr::V4(addr) => {
                let mut data = [0; size_of::<libc::in6_pktinfo>()];
                // The device, `ipi_spec_dst`, `ipi_addr`.
                data[4..8].copy_from_slice(&addr.octets());
                (libc::IPPROTO_IP, libc::IP_PKTINFO, (data, size_of::<libc::in_pktinfo>()))
            }
            IpAddr::V6(addr) => {
                let mut data = [0; size_of::<libc::in6_pktinfo>()];
                data[..16].copy_from_slice(&addr.octets());
                let on_link = if addr.is_unicast_link_local() { local.if_index } else { 0 };
                data[16..20].copy_from_slice(&on_link.to_ne_bytes());
                (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, (data, size_of::<libc::in6_pktinfo>()))
            }
        };
        let (data, len) = data;
        let len = HEADER + len;
        // The length is a word, and level and type are the header's last two.
        control.0[..size_of::<usize>()].copy_from_slice(&len.to_ne_bytes());
        control.0[HEADER - 8..HEADER - 4].copy_from_slice(&level.to_ne_bytes());
        control.0[HEADER - 4..HEADER].copy_from_slice(&kind.to_ne_bytes());
        control.0[HEADER..len].copy_from_slice(&data[..len - HEADER]);
        (control, len.next_multiple_of(align_of::<libc::cmsghdr>()))
    }

    /// What the kernel wrote, `len` bytes, says.
    pub(super) fn local(&self, len: usize) -> Option<Local> {
        let control = self.0.get(..len)?;
        let number = |at: usize| Some(i32::from_ne_bytes(*control.get(at..)?.first_chunk()?));
        let data = control.get(HEADER..)?;
        match (number(HEADER - 8)?, number(HEADER - 4)?) {
            (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
                // `ipi_spec_dst`: of one to many, the address that the kernel would answer from.
                let addr: [u8; 4] = *data.get(4..)?.first_chunk()?;
                let addr = Ipv4Addr::from(addr).into();
                Some(Local { addr, if_index: number(HEADER)?.cast_unsigned() })
            }
            (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                let addr: [u8; 16] = *data.first_chunk()?;
                let addr = Ipv6Addr::from(addr);
                if addr.to_canonical().is_multicast() {
                    return None;
                }
                Some(Local { addr: addr.into(), if_index: number(HEADER + 16)?.cast_unsigned() })
            }
            _ => None,
        }
    }
}

/// From now on what the socket, of IPv4 or IPv6, receives says which address it was sent to.
pub(super) fn tell_local(socket: BorrowedFd<'_>, v4: bool) -> io::Result<()> {
    let (level, name) = match v4 {
        true => (libc::IPPROTO_IP, libc::IP_PKTINFO),
        false => (libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO),
    };
    let on: libc::c_int = 1;
    // SAFETY: the option is a number of this size, which lives until the call returns.
    let done = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            name,
            (&raw const on).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
