//! The ports that sockets have, where devices share addresses with the kernel and leave to it what
//! is sent to others.
//!
//! Called by threads that open, connect and close sockets, and by those that see the last
//! connection of a TCP port end; no lock that a packet's way takes is taken here.

use std::sync::Arc;

use rustix::io::Errno;
use softnet_dev::xdp::{LocalEnd, Ports};

/// See the module.
#[derive(Default)]
pub(crate) struct SharedPorts(Option<Arc<dyn Ports>>);

impl SharedPorts {
    /// Those that devices look up, if there are such devices.
    pub(crate) fn new(ports: Option<Arc<dyn Ports>>) -> Self {
        SharedPorts(ports)
    }

    /// Whether a device looks for them.
    pub(crate) fn matter(&self) -> bool {
        self.0.is_some()
    }

    /// A socket has `end` from now on: devices that share its address with the kernel bring what is
    /// sent there.
    ///
    /// # Errors
    /// `EADDRINUSE`: the kernel has the port on such an address. `ENOBUFS`: there are too many.
    pub(crate) fn opened(&self, end: &LocalEnd) -> Result<(), Errno> {
        let Some(ports) = &self.0 else { return Ok(()) };
        ports.opened(end).map_err(|error| match error.errno().map(Errno::from_raw_os_error) {
            Some(Errno::TOOBIG) | None => Errno::NOBUFS,
            Some(errno) => errno,
        })
    }

    /// It has it no more.
    pub(crate) fn closed(&self, end: &LocalEnd) {
        self.0.iter().for_each(|ports| ports.closed(end));
    }
}
