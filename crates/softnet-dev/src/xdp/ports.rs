//! The ports of UDP and TCP that softnet's sockets have open, as the programs of a stack's devices
//! see them, and as the kernel does.
//!
//! Of an address that the kernel has as well, only what is sent to these is softnet's. So that none
//! of them is a port that the kernel has in use, or chooses later, they are
//! [reserved](super::reserve) there on addresses that devices say they [share](OpenPorts::share),
//! for as long as they are open. Any thread may call it, as it binds, connects and closes sockets,
//! and as the last connection of a TCP port ends; no packet's way comes here. Invariant: a port is
//! in the map exactly while sockets have it, and none is closed more often than it was opened (what
//! is said too often changes nothing, and fails an assertion in debug builds); and a reservation is
//! held only while its port is in the map and its address shared.

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

/// Bytes of a key: address, port, protocol, and a zero.
pub(super) const KEY_LEN: usize = 20;

type Key = [u8; KEY_LEN];

/// The address of no address in particular, of IPv4; that of IPv6 is [`ANY`].
pub(super) const ANY4: Addr = mapped(0);

/// A local end: protocol, address, as sockets have it, and port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalEnd {
    /// The protocol, by its number of IP: UDP's or TCP's.
    pub protocol: u8,
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

/// A port of a protocol on one address, or on [`ANY4`] or [`ANY`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Port {
    pub(super) protocol: u8,
    pub(super) addr: Addr,
    pub(super) number: u16,
}

impl Port {
    /// The same on another address.
    fn on(self, addr: Addr) -> Self {
        Port { addr, ..self }
    }

    /// What programs look it up by.
    pub(super) fn key(&self) -> Key {
        let mut key = [0; KEY_LEN];
        key[..16].copy_from_slice(&self.addr.to_be_bytes());
        key[16..18].copy_from_slice(&self.number.to_be_bytes());
        key[18] = self.protocol;
        key
    }
}

/// The ports that are open here, and their reservations with the kernel.
#[derive(Debug)]
pub struct OpenPorts {
    set: Set<KEY_LEN>,
    /// Locked while the map is changed, and the kernel asked.
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// How often each was opened and not closed, never 0.
    open: HashMap<Port, u64>,
    shares: BTreeMap<u64, Share>,
    /// What the next share is known by.
    next: u64,
}

/// What a device shares with the kernel.
#[derive(Debug)]
struct Share {
    place: Place,
    addresses: Vec<Addr>,
    held: HashMap<Port, OwnedFd>,
}

/// A device shares addresses with the kernel for as long as it has this.
pub(super) struct Sharing {
    ports: Arc<OpenPorts>,
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
        share
            .held
            .retain(|port, _| share.addresses.contains(&port.addr) && !(moved && is_link_local(port.addr)));
        for port in state.open.keys() {
            // What the kernel has it had first; sockets here have it as well.
            let _ = share.reserve(*port);
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

    /// Reserves `port` on each address of this share that its address stands for and where that is
    /// possible; an error if it is not on one of them.
    fn reserve(&mut self, port: Port) -> SysResult<()> {
        let all = self.of(port.addr).map(|own| port.on(own));
        let missing: Vec<_> = all.filter(|own| !self.held.contains_key(own)).collect();
        let mut result = Ok(());
        for own in missing {
            match reserve(&self.place, own) {
                Ok(Some(socket)) => drop(self.held.insert(own, socket)),
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
    fn is_open(&self, port: Port) -> bool {
        self.open.contains_key(&port)
    }

    /// Reserves `port` on what is shared of its address, all or nothing.
    fn reserve(&mut self, port: Port) -> SysResult<()> {
        // A socket of the kernel's that is bound to no address has the port here too: a reservation beside it adds nothing.
        if self.is_open(port.on(any_of(port.addr))) {
            return Ok(());
        }
        let reserved = self.shares.values_mut().try_for_each(|share| share.reserve(port));
        reserved.inspect_err(|_| self.release(port))
    }

    /// Gives up what is reserved of `port` on its address and no socket has.
    fn release(&mut self, port: Port) {
        let mut shares = std::mem::take(&mut self.shares);
        for share in shares.values_mut() {
            let unused: Vec<_> = share.of(port.addr).map(|own| port.on(own)).collect();
            for own in unused {
                if !self.is_open(own) && !self.is_open(own.on(any_of(own.addr))) {
                    share.held.remove(&own);
                }
            }
        }
        self.shares = shares;
    }
}

impl OpenPorts {
    /// No port is open.
    ///
    /// # Errors
    /// Needs CAP_BPF.
    pub fn new() -> SysResult<Self> {
        Ok(OpenPorts { set: Set::new("softnet_ports", MAX_PORTS)?, state: Mutex::default() })
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
    fn add(&self, port: Port) -> SysResult<()> {
        let state = &mut *self.state();
        if let Some(sockets) = state.open.get_mut(&port) {
            *sockets += 1;
            return Ok(());
        }
        state.reserve(port)?;
        if let Err(error) = self.set.insert(&port.key()) {
            state.release(port);
            return Err(error);
        }
        state.open.insert(port, 1);
        Ok(())
    }

    /// One socket less has it.
    fn take(&self, port: Port) {
        let mut guard = self.state();
        let state = &mut *guard;
        let sockets = state.open.get_mut(&port);
        let was_open = sockets.is_some();
        match sockets {
            Some(sockets) if *sockets > 1 => *sockets -= 1,
            Some(_) => {
                state.open.remove(&port);
                // What was put in can be taken out.
                let _ = self.set.remove(&port.key());
                state.release(port);
            }
            None => {}
        }
        drop(guard);
        debug_assert!(was_open, "a port is closed that is not open");
    }
}

impl Ports for OpenPorts {
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

/// The ports at which programs look for `end`.
fn places(end: &LocalEnd) -> impl Iterator<Item = Port> + use<> {
    let LocalEnd { protocol, addr, families: (v4, v6), port: number } = *end;
    let all = match addr {
        ANY => [v4.then_some(ANY4), v6.then_some(ANY)],
        addr => [Some(addr), None],
    };
    all.into_iter().flatten().map(move |addr| Port { protocol, addr, number })
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;
    use softnet_core::ip::v4::header::protocol;
    use softnet_testkit::net_allowed;

    #[test]
    fn a_port_is_open_as_long_as_a_socket_has_it() {
        if !net_allowed() {
            return;
        }
        let ports = OpenPorts::new().unwrap();
        let any = LocalEnd { protocol: protocol::UDP, addr: ANY, families: (true, true), port: 53 };
        let own = LocalEnd { addr: mapped(7), families: (true, false), ..any };
        // To take out fails where nothing is: a look that leaves nothing behind but what it found.
        let is_open_of = |protocol, addr| {
            let key = Port { protocol, addr, number: 53 }.key();
            ports.set.remove(&key).is_ok_and(|()| ports.set.insert(&key).is_ok())
        };
        let is_open = |addr| is_open_of(protocol::UDP, addr);
        ports.opened(&any).unwrap();
        ports.opened(&any).unwrap();
        ports.opened(&own).unwrap();
        assert!(is_open(ANY4) && is_open(ANY) && is_open(mapped(7)) && !is_open(mapped(8)));
        // Each protocol has ports of its own.
        let of_tcp = LocalEnd { protocol: protocol::TCP, ..any };
        assert!(!is_open_of(protocol::TCP, ANY4));
        ports.opened(&of_tcp).unwrap();
        assert!(is_open_of(protocol::TCP, ANY4));
        ports.closed(&of_tcp);
        assert!(!is_open_of(protocol::TCP, ANY4));
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
