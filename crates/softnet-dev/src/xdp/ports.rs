//! The UDP ports that softnet's sockets have open, as the programs of a stack's devices see them, and as the kernel does.
//!
//! Of an address that the kernel has as well, only datagrams to these are softnet's. So that none of them is a port that the
//! kernel has in use, or chooses later, they are [reserved](super::reserve) there on addresses that devices say they
//! [share](UdpPorts::share), for as long as they are open. Any thread may call it, as it binds,
//! connects and closes sockets; no packet's way comes here. Invariant: a port is in the map exactly while
//! sockets have it, and none is closed more often than it was opened (what is said too often changes
//! nothing, and fails an assertion in debug builds); and a reservation is held only while its port
//! is in the map and its address shared.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use softnet_core::sock::key::{ANY, Addr, is_v4, mapped};
use softnet_core::sock::scope::is_link_local;

use super::reserve::{Place, reserve};
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

/// What is told of the ports that sockets have open.
pub trait Ports: Send + Sync {
    /// A socket has `end` from now on.
    ///
    /// # Errors
    /// E2BIG if there are as many as may be, EADDRINUSE if the kernel has the port on an address that is shared with it, and
    /// what else it says to a socket that is to be bound there; then nothing has changed.
    fn opened(&self, end: &LocalEnd) -> SysResult<()>;

    /// It has it no more; it had it.
    fn closed(&self, end: &LocalEnd);
}

pub(super) fn key(addr: Addr, port: u16) -> Key {
    let mut key = [0; KEY_LEN];
    key[..16].copy_from_slice(&addr.to_be_bytes());
    key[16..18].copy_from_slice(&port.to_be_bytes());
    key
}

/// The UDP ports of shared addresses that are open here, and their reservations with the kernel.
#[derive(Debug)]
pub struct UdpPorts {
    set: Set<KEY_LEN>,
    /// Locked while the map is changed, and the kernel asked.
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Sockets by address and port, never 0.
    open: HashMap<(Addr, u16), u64>,
    shares: BTreeMap<u64, Share>,
    /// What the next share is known by.
    next: u64,
}

/// What a device shares with the kernel.
#[derive(Debug)]
struct Share {
    place: Place,
    addresses: Vec<Addr>,
    held: HashMap<(Addr, u16), OwnedFd>,
}

/// A device shares addresses with the kernel for as long as it has this.
pub(super) struct Sharing {
    ports: Arc<UdpPorts>,
    id: u64,
}

impl Sharing {
    /// From now on these are the addresses, and the interfaces that may have those of their links. Ports
    /// of new ones that are open already are reserved where that is possible.
    pub(super) fn replace(&self, interfaces: &[u32], addresses: Vec<Addr>) {
        let state = &mut *self.ports.state();
        let Some(share) = state.shares.get_mut(&self.id) else { return };
        share.addresses = addresses;
        let moved = share.place.interfaces != interfaces;
        share.place.interfaces = interfaces.to_vec();
        // A reservation of a link-local address is the interface's that had it.
        share.held.retain(|(addr, _), _| share.addresses.contains(addr) && !(moved && is_link_local(*addr)));
        for &(addr, port) in state.open.keys() {
            // What the kernel has it had first; sockets here have it as well.
            let _ = share.reserve(addr, port);
        }
    }
}

impl Drop for Sharing {
    fn drop(&mut self) {
        self.ports.state().shares.remove(&self.id);
    }
}

impl Share {
    /// Its addresses on which a socket has a port that is bound to `addr`.
    fn of(&self, addr: Addr) -> impl Iterator<Item = Addr> {
        let all = self.addresses.iter().copied();
        all.filter(move |own| addr == *own || addr == any_of(*own))
    }

    /// Reserves `port` on each address of this share that `addr` stands for and where that is possible; an error if it is not on
    /// one of them.
    fn reserve(&mut self, addr: Addr, port: u16) -> SysResult<()> {
        let missing: Vec<_> = self.of(addr).filter(|own| !self.held.contains_key(&(*own, port))).collect();
        let mut result = Ok(());
        for own in missing {
            match reserve(&self.place, own, port) {
                Ok(Some(socket)) => drop(self.held.insert((own, port), socket)),
                Ok(None) => {}
                Err(error) => result = result.and(Err(error)),
            }
        }
        result
    }
}

/// No address in particular, of the family of `addr`.
fn any_of(addr: Addr) -> Addr {
    if is_v4(addr) { ANY4 } else { ANY }
}

impl State {
    fn is_open(&self, addr: Addr, port: u16) -> bool {
        self.open.contains_key(&(addr, port))
    }

    /// Reserves `port` on what is shared of `addr`, all or nothing.
    fn reserve(&mut self, addr: Addr, port: u16) -> SysResult<()> {
        // A socket of the kernel's that is bound to no address has the port here too: a reservation beside it adds nothing.
        if self.is_open(any_of(addr), port) {
            return Ok(());
        }
        let reserved = self.shares.values_mut().try_for_each(|share| share.reserve(addr, port));
        reserved.inspect_err(|_| self.release(addr, port))
    }

    /// Gives up what is reserved of `port` on `addr` and no socket has.
    fn release(&mut self, addr: Addr, port: u16) {
        let mut shares = std::mem::take(&mut self.shares);
        for share in shares.values_mut() {
            let unused: Vec<_> = share.of(addr).collect();
            for own in unused {
                if !self.is_open(own, port) && !self.is_open(any_of(own), port) {
                    share.held.remove(&(own, port));
                }
            }
        }
        self.shares = shares;
    }
}

impl UdpPorts {
    /// No port is open.
    ///
    /// # Errors
    /// Needs CAP_BPF.
    pub fn new() -> SysResult<Self> {
        Ok(UdpPorts { set: Set::new("softnet_ports", MAX_PORTS)?, state: Mutex::default() })
    }

    pub(super) fn set(&self) -> &Set<KEY_LEN> {
        &self.set
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A device shares `addresses` with the kernel at `place`.
    pub(super) fn share(self: &Arc<Self>, place: Place, addresses: Vec<Addr>) -> Sharing {
        let mut state = self.state();
        let id = state.next;
        state.next += 1;
        let interfaces = place.interfaces.clone();
        state.shares.insert(id, Share { place, addresses: Vec::new(), held: HashMap::new() });
        drop(state);
        let sharing = Sharing { ports: self.clone(), id };
        sharing.replace(&interfaces, addresses);
        sharing
    }

    /// One socket more has the port on the address.
    fn add(&self, (addr, port): (Addr, u16)) -> SysResult<()> {
        let state = &mut *self.state();
        if let Some(sockets) = state.open.get_mut(&(addr, port)) {
            *sockets += 1;
            return Ok(());
        }
        state.reserve(addr, port)?;
        if let Err(error) = self.set.insert(&key(addr, port)) {
            state.release(addr, port);
            return Err(error);
        }
        state.open.insert((addr, port), 1);
        Ok(())
    }

    /// One socket less has it.
    fn take(&self, (addr, port): (Addr, u16)) {
        let mut guard = self.state();
        let state = &mut *guard;
        let sockets = state.open.get_mut(&(addr, port));
        let was_open = sockets.is_some();
        match sockets {
            Some(sockets) if *sockets > 1 => *sockets -= 1,
            Some(_) => {
                state.open.remove(&(addr, port));
                // What was put in can be taken out.
                let _ = self.set.remove(&key(addr, port));
                state.release(addr, port);
            }
            None => {}
        }
        drop(guard);
        debug_assert!(was_open, "a port is closed that is not open");
    }
}

impl Ports for UdpPorts {
    fn opened(&self, end: &LocalEnd) -> SysResult<()> {
        for (done, at) in places(end).enumerate() {
            if let Err(error) = self.add(at) {
                places(end).take(done).for_each(|at| self.take(at));
                return Err(error);
            }
        }
        Ok(())
    }

    fn closed(&self, end: &LocalEnd) {
        places(end).for_each(|at| self.take(at));
    }
}

/// The addresses, with the port, at which programs look for `end`.
fn places(end: &LocalEnd) -> impl Iterator<Item = (Addr, u16)> + use<> {
    let LocalEnd { addr, families: (v4, v6), port } = *end;
    let all = match addr {
        ANY => [v4.then_some(ANY4), v6.then_some(ANY)],
        addr => [Some(addr), None],
    };
    all.into_iter().flatten().map(move |addr| (addr, port))
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;
    use softnet_testkit::net_allowed;

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
        // What is closed twice is none the less open when it is opened again, and until that is closed.
        let twice = catch_unwind(AssertUnwindSafe(|| ports.closed(&own)));
        assert_eq!(twice.is_err(), cfg!(debug_assertions));
        ports.opened(&own).unwrap();
        assert!(is_open(mapped(7)));
        ports.opened(&own).unwrap();
        ports.closed(&own);
        assert!(is_open(mapped(7)));
        ports.closed(&own);
        assert!(!is_open(mapped(7)) && ports.state().open.is_empty());
    }
}
