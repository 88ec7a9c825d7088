//! What C hands over as pointers, as slices and names.

use std::ffi::{c_int, c_void};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::{ptr, slice};

use libc::{AF_INET, AF_INET6, iovec, sockaddr, sockaddr_in, sockaddr_in6, socklen_t};

/// A name in C's form.
pub(crate) unsafe fn name_of(addr: *const sockaddr, len: socklen_t) -> Result<SocketAddr, i32> {
    if addr.is_null() {
        return Err(libc::EFAULT);
    }
    if (len as usize) < size_of::<libc::sa_family_t>() {
        return Err(libc::EINVAL);
    }
    // SAFETY: `addr` points to `len` bytes, enough for each type that is read.
    unsafe {
        match c_int::from((*addr).sa_family) {
            AF_INET if len as usize >= size_of::<sockaddr_in>() => {
                let name = addr.cast::<sockaddr_in>().read_unaligned();
                let ip = Ipv4Addr::from(u32::from_be(name.sin_addr.s_addr));
                Ok(SocketAddr::new(ip.into(), u16::from_be(name.sin_port)))
            }
            AF_INET6 if len as usize >= size_of::<sockaddr_in6>() => {
                let name = addr.cast::<sockaddr_in6>().read_unaligned();
                let ip = Ipv6Addr::from(name.sin6_addr.s6_addr).to_canonical();
                Ok(SocketAddr::new(ip, u16::from_be(name.sin6_port)))
            }
            AF_INET | AF_INET6 => Err(libc::EINVAL),
            _ => Err(libc::EAFNOSUPPORT),
        }
    }
}

/// Writes a name in the form that a socket of the family wants.
pub(crate) unsafe fn put_name(name: SocketAddr, v6: bool, addr: *mut sockaddr, len: *mut socklen_t) {
    if addr.is_null() || len.is_null() {
        return;
    }
    let (port, mut bytes) = (name.port().to_be_bytes(), Vec::with_capacity(28));
    if v6 {
        let ip = match name.ip() {
            IpAddr::V4(v4) => v4.to_ipv6_mapped(),
            IpAddr::V6(v6) => v6,
        };
        bytes.extend((AF_INET6 as u16).to_ne_bytes());
        bytes.extend(port);
        bytes.extend([0; 4]);
        bytes.extend(ip.octets());
        bytes.extend([0; 4]);
    } else if let IpAddr::V4(ip) = name.ip() {
        bytes.extend((AF_INET as u16).to_ne_bytes());
        bytes.extend(port);
        bytes.extend(ip.octets());
        bytes.extend([0; 8]);
    }
    // SAFETY: `addr` points to `*len` bytes, and no more are written.
    unsafe {
        let room = (*len as usize).min(bytes.len());
        ptr::copy_nonoverlapping(bytes.as_ptr(), addr.cast(), room);
        *len = bytes.len() as socklen_t;
    }
}

pub(crate) unsafe fn bytes<'a>(buf: *const c_void, len: usize) -> Result<&'a [u8], i32> {
    match (buf.is_null(), len) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(libc::EFAULT),
        // SAFETY: the caller has `len` bytes there.
        (false, len) => Ok(unsafe { slice::from_raw_parts(buf.cast(), len) }),
    }
}

pub(crate) unsafe fn bytes_mut<'a>(buf: *mut c_void, len: usize) -> Result<&'a mut [u8], i32> {
    match (buf.is_null(), len) {
        (_, 0) => Ok(&mut []),
        (true, _) => Err(libc::EFAULT),
        // SAFETY: the caller has `len` bytes there, and uses them for nothing else meanwhile.
        (false, len) => Ok(unsafe { slice::from_raw_parts_mut(buf.cast(), len) }),
    }
}

/// What a vector of buffers holds, in one piece.
pub(crate) unsafe fn gather(iov: *const iovec, n: usize) -> Result<Vec<u8>, i32> {
    let mut all = Vec::new();
    for i in 0..n {
        // SAFETY: the vector has `n` entries, each a buffer of its length.
        all.extend_from_slice(unsafe { bytes((*iov.add(i)).iov_base, (*iov.add(i)).iov_len) }?);
    }
    Ok(all)
}

pub(crate) unsafe fn vector_len(iov: *const iovec, n: usize) -> usize {
    // SAFETY: the vector has `n` entries.
    (0..n).map(|i| unsafe { (*iov.add(i)).iov_len }).sum()
}

pub(crate) unsafe fn scatter(iov: *const iovec, n: usize, mut from: &[u8]) {
    for i in 0..n {
        // SAFETY: the vector has `n` entries, each a buffer of its length.
        let Ok(into) = (unsafe { bytes_mut((*iov.add(i)).iov_base, (*iov.add(i)).iov_len) }) else { return };
        let take = into.len().min(from.len());
        into[..take].copy_from_slice(&from[..take]);
        from = &from[take..];
    }
}
