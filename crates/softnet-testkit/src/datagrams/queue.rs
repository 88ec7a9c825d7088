//! Which RX queue, and so which NAPI instance, a socket has to do with.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// From now on, which of the `members` sockets that share an address with `socket` (SO_REUSEPORT) gets a packet
/// depends on the RX queue that it came by alone: neighbouring queues have neighbouring members, around and around.
/// (Drivers of NICs note the queue's number plus one, a veth without.)
pub(super) fn lead_by_queue(socket: BorrowedFd<'_>, members: u32) -> io::Result<()> {
    const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const MODULO: u16 = (libc::BPF_ALU | libc::BPF_MOD | libc::BPF_K) as u16;
    /// `BPF_RET | BPF_A`.
    const RETURN: u16 = 0x16;
    let op = |code, k| libc::sock_filter { code, jt: 0, jf: 0, k };
    let mut program = [
        op(LOAD, (libc::SKF_AD_OFF + libc::SKF_AD_QUEUE).cast_unsigned()),
        op(MODULO, members.max(1)),
        op(RETURN, 0),
    ];
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: `program` and the instructions that it points to are live, and of the length that it says; the kernel
    // copies them.
    let error = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_REUSEPORT_CBPF,
            (&raw const program).cast(),
            size_of::<libc::sock_fprog>() as libc::socklen_t,
        )
    };
    if error == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Id of the NAPI instance that the last packet for `socket` came by; 0 if it came by none, or there was none yet.
pub(crate) fn incoming_napi_id(socket: BorrowedFd<'_>) -> u32 {
    let mut id = 0u32;
    let mut len = size_of::<u32>() as libc::socklen_t;
    // SAFETY: `id` and `len` are live, and `len` says how large `id` is.
    let error = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_INCOMING_NAPI_ID,
            (&raw mut id).cast(),
            &mut len,
        )
    };
    if error == 0 { id } else { 0 }
}
