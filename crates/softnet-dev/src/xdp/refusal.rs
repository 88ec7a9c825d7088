//! What the kernel means by refusing an XDP program.

use super::error::XdpError;
use crate::sys_error::SysError;

/// Whether another program is attached (EEXIST: in the other mode).
pub(super) fn is_occupied(error: &SysError) -> bool {
    matches!(error.errno(), Some(libc::EBUSY | libc::EEXIST))
}

/// Whether SKB mode would be refused for the same reason.
pub(super) fn is_final(error: &SysError) -> bool {
    error.is_permission() || is_occupied(error) || error.errno() == Some(libc::ENODEV)
}

/// What drivers mean by the error numbers they refuse XDP with.
pub(super) fn hint(errno: i32) -> &'static str {
    match errno {
        libc::EOPNOTSUPP => " (the driver has no XDP)",
        libc::ENOSPC => " (a veth needs as many RX queues as its peer has TX queues)",
        libc::ERANGE => " (the peer's MTU is too large)",
        _ => "",
    }
}

/// As an error of opening interface `name`.
pub(super) fn of(name: &str, source: SysError) -> XdpError {
    let name = name.to_owned();
    match is_occupied(&source) {
        true => XdpError::Occupied { name, source },
        false => XdpError::Kernel { name, source },
    }
}
