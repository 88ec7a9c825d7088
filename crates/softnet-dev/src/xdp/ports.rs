//! The UDP ports that softnet's sockets have open, as the programs of a stack's devices see them.
//!
//! Of an address that the kernel has as well, only datagrams to these are softnet's. Any thread may call it, as it binds,
//! connects and closes sockets; no packet's way comes here. Invariant: a port is in the map exactly while more sockets were
//! opened than closed there, in whatever order threads say so.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use softnet_core::sock::key::{ANY, Addr, mapped};

use crate::bpf::Set;
use crate::sys_error::SysResult;

/// Ports that may be open on addresses; a socket of both families and no address has two.
const MAX_PORTS: u32 = 1 << 18;

/// Bytes of a key: address, port, and zeros.
pub(super) const KEY_LEN: usize = 20;

type Key = [u8; KEY_LEN];

/// The address of no address in particular, of IPv4; that of IPv6 is [`ANY`].
pub(super) const ANY4: Addr = mapped(0);

/// A local end: address, as sockets have it, and port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalEnd {
    /// The address, with its scope if it is link-local.
    pub addr: Addr,
    /// Of no address in particular: whether it is for IPv4, and for IPv6.
    pub families: (bool, bool),
    /// The port.
    pub port: u16,
}

pub(super) fn key(addr: Addr, port: u16) -> Key {
    let mut key = [0; KEY_LEN];
    key[..16].copy_from_slice(&addr.to_be_bytes());
    key[16..18].copy_from_slice(&port.to_be_bytes());
    key
}

/// See the [module](self).
#[derive(Debug)]
pub struct UdpPorts {
    set: Set<KEY_LEN>,
    /// Sockets by key. Locked while the map is changed.
    open: Mutex<HashMap<Key, i64>>,
}

impl UdpPorts {
    /// No port is open.
    ///
    /// # Errors
    /// Needs CAP_BPF.
    pub fn new() -> SysResult<Self> {
        Ok(UdpPorts { set: Set::new("softnet_ports", MAX_PORTS)?, open: Mutex::default() })
    }

    pub(super) fn set(&self) -> &Set<KEY_LEN> {
        &self.set
    }

    /// A socket has `end` from now on.
    ///
    /// # Errors
    /// E2BIG if there are as many as may be; then nothing has changed.
    pub fn opened(&self, end: &LocalEnd) -> SysResult<()> {
        for (done, key) in keys(end).enumerate() {
            if let Err(error) = self.count(key, 1) {
                keys(end).take(done).for_each(|key| _ = self.count(key, -1));
                return Err(error);
            }
        }
        Ok(())
    }

    /// It has it no more.
    pub fn closed(&self, end: &LocalEnd) {
        // What was put in can be taken out.
        keys(end).for_each(|key| _ = self.count(key, -1));
    }

    fn count(&self, key: Key, change: i64) -> SysResult<()> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let sockets = open.entry(key).or_default();
        *sockets += change;
        let changed = match (*sockets, change) {
            (1, 1) => self.set.insert(&key).inspect_err(|_| *sockets = 0),
            (0, -1) => self.set.remove(&key),
            _ => Ok(()),
        };
        if *sockets == 0 {
            open.remove(&key);
        }
        changed
    }
}

/// The keys by which programs find `end`.
fn keys(end: &LocalEnd) -> impl Iterator<Item = Key> + use<> {
    let LocalEnd { addr, families: (v4, v6), port } = *end;
    let all = match addr {
        ANY => [v4.then_some(ANY4), v6.then_some(ANY)],
        addr => [Some(addr), None],
    };
    all.into_iter().flatten().map(move |addr| key(addr, port))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::net_allowed;

    #[test]
    fn a_port_is_open_as_long_as_a_socket_has_it() {
        if !net_allowed() {
            return;
        }
        let ports = UdpPorts::new().unwrap();
        let any = LocalEnd { addr: ANY, families: (true, true), port: 53 };
        let own = LocalEnd { addr: mapped(7), families: (true, false), port: 53 };
        // To take out fails where nothing is: a look that leaves nothing behind but what it found.
        let is_open = |addr| match ports.set.remove(&key(addr, 53)) {
            Ok(()) => ports.set.insert(&key(addr, 53)).is_ok(),
            Err(_) => false,
        };
        ports.opened(&any).unwrap();
        ports.opened(&any).unwrap();
        ports.opened(&own).unwrap();
        assert!(is_open(ANY4) && is_open(ANY) && is_open(mapped(7)) && !is_open(mapped(8)));
        ports.closed(&any);
        ports.closed(&own);
        assert!(is_open(ANY4) && is_open(ANY) && !is_open(mapped(7)));
        ports.closed(&any);
        assert!(!is_open(ANY4) && !is_open(ANY));
        // A close that overtakes its open.
        ports.closed(&own);
        ports.opened(&own).unwrap();
        assert!(!is_open(mapped(7)) && ports.open.lock().unwrap().is_empty());
    }
}
