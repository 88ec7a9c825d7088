//! The one writer of the socket table: opens, connects and closes sockets, chooses ports, and keeps
//! multicast memberships.
//!
//! The runtime keeps it behind a lock, which no poller takes for a datagram to one socket.
//! Invariant: no two sockets of the table are bound to the same protocol, address, port and family,
//! unless both are in one reuseport group, or one was accepted by the other or is known by its peer
//! alone; and a slot is reused only after its last receiver has released it.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use super::group::MAX_GROUPS;
use super::inbox::{Inbox, Message, SlotRef};
use super::key::{ANY, Addr, Flow, Key, is_v4};
use super::ports::{Bound, Ports};
use super::slot::{BindFlags, Slot};
use super::table::Sockets;
use crate::ip::v6::addr::ALL_NODES;
use crate::skb::Region;

/// Ports for sockets that bind to port 0 (the kernel's `ip_local_port_range`).
pub const EPHEMERAL: std::ops::RangeInclusive<u16> = 32768..=60999;

/// Most groups that one socket may be a member of (the kernel's `igmp_max_memberships`).
pub const MAX_MEMBERSHIPS: usize = 20;

/// The address that a socket is to be bound to, and how.
#[derive(Clone, Copy, Debug)]
pub struct Bind {
    /// One of our addresses, or [`ANY`].
    pub local: Addr,
    /// Port; 0: any free one.
    pub port: u16,
    /// For [`ANY`]: whether the socket receives IPv4.
    pub v4: bool,
    /// For [`ANY`]: whether the socket receives IPv6.
    pub v6: bool,
    /// For a group: its device; `None`: any.
    pub dev: Option<u16>,
    /// Whether to share address and port with sockets that also ask for it.
    pub reuseport: bool,
    /// Limit on queued packets.
    pub limit: u32,
}

/// Why a socket was not opened or changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BindError {
    /// Another socket has the address and port (`EADDRINUSE`).
    #[error("the address is in use")]
    InUse,
    /// No port is free (`EADDRINUSE`).
    #[error("no port is free")]
    NoPort,
    /// The limit on sockets is reached (`ENFILE`).
    #[error("there are as many sockets as stack.max_sockets allows")]
    TooMany,
    /// The limit on members of a reuseport group, or on groups, is reached (`ENOBUFS`).
    #[error("too many sockets share the port")]
    GroupFull,
    /// The limit on memberships of one socket is reached (`ENOBUFS`).
    #[error("the socket has joined as many groups as it may")]
    TooManyGroups,
    /// The socket is a member already (`EADDRINUSE`).
    #[error("the socket is a member of that group")]
    Joined,
    /// The socket is no member (`EADDRNOTAVAIL`).
    #[error("the socket is no member of that group")]
    NotJoined,
}

struct Entry {
    key: Key,
    flags: BindFlags,
    /// See [`Bind::dev`].
    dev: Option<u16>,
    /// The address and families that it was bound to before it was connected.
    bound: (Addr, BindFlags),
    reuseport: bool,
    /// Whether it was [accepted](Binder::open_accepted).
    accepted: bool,
    /// The multicast groups that it joined, each on a device.
    joined: Vec<(Addr, u16)>,
}

impl Entry {
    fn place(&self) -> Bound {
        let Entry { key: Key { flow, .. }, flags, dev, reuseport, accepted, .. } = *self;
        Bound { local: flow.local, port: flow.lport, flags: flags.in_group(None), dev, reuseport, accepted }
    }
}

/// The one writer of the socket table.
pub struct Binder {
    sockets: Arc<Sockets>,
    region: Arc<Region>,
    entries: HashMap<u32, Entry>,
    ports: Ports,
    /// Reuseport groups with members, by the key that these are bound to.
    groups: HashMap<Bound, u32>,
    /// Free slots that were used before.
    free: Vec<u32>,
    /// Slots from here on were never used.
    fresh: u32,
    free_groups: Vec<u32>,
    fresh_group: u32,
    /// Members of multicast groups: by group, device and slot.
    members: HashMap<Addr, Vec<(u16, u32)>>,
    random: u64,
}

impl Binder {
    /// An empty table for up to `max` sockets, whose packets are of `region`, and its writer.
    /// `seed` varies hashes and ports; it should be unpredictable.
    pub fn new(region: Arc<Region>, max: u32, seed: u64) -> Self {
        Binder {
            sockets: Arc::new(Sockets::new(max, seed)),
            region,
            entries: HashMap::new(),
            ports: Ports::default(),
            groups: HashMap::new(),
            free: Vec::new(),
            fresh: 0,
            free_groups: Vec::new(),
            fresh_group: 0,
            members: HashMap::new(),
            random: seed.rotate_left(32) ^ 0x9e37_79b9_7f4a_7c15,
        }
    }

    /// The table that it writes.
    pub fn sockets(&self) -> &Arc<Sockets> {
        &self.sockets
    }

    /// Sockets that are open.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether no socket is open.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// splitmix64.
    fn random(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.random ^ self.random >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// A random port that is free and not `taken`: all are tried, from a random one on (RFC 6056
    /// section 3.3.1).
    fn ephemeral(&mut self, bind: &Bind, flags: BindFlags, taken: &BTreeSet<u16>) -> Option<u16> {
        let ports = u64::from(EPHEMERAL.end() - EPHEMERAL.start()) + 1;
        let first = self.random() % ports;
        (0..ports).map(|i| EPHEMERAL.start() + ((first + i) % ports) as u16).find(|port| {
            // Never a shared port, even if the socket would share: it did not ask for this one.
            let (local, port, dev) = (bind.local, *port, bind.dev);
            let place = Bound { local, port, flags, dev, reuseport: false, accepted: false };
            !taken.contains(&port) && !self.ports.conflicts(&place) && !self.ports.has_accepted(&place)
        })
    }

    /// Opens a socket of `M`'s protocol, unless another one has its address. To close it, [close](Inbox::close) its
    /// receiver, then give its slot back by [`release`](Self::release).
    pub fn open<M: Message>(&mut self, bind: &Bind) -> Result<Inbox<M>, BindError> {
        self.open_beside(bind, &BTreeSet::new())
    }

    /// The same; for port 0, the choice is none of `taken`: ports that are in use elsewhere.
    pub fn open_beside<M: Message>(
        &mut self,
        bind: &Bind,
        taken: &BTreeSet<u16>,
    ) -> Result<Inbox<M>, BindError> {
        let flags = match bind.local {
            ANY => BindFlags::new(M::PROTOCOL, bind.v4, bind.v6),
            local => BindFlags::new(M::PROTOCOL, is_v4(local), !is_v4(local)),
        };
        let port = match bind.port {
            0 => self.ephemeral(bind, flags, taken).ok_or(BindError::NoPort)?,
            port => port,
        };
        let Bind { local, dev, reuseport, .. } = *bind;
        let place = Bound { local, port, flags, dev, reuseport, accepted: false };
        if self.ports.conflicts(&place) {
            return Err(BindError::InUse);
        }
        self.add(Key::bound(M::PROTOCOL, local, port), place, bind.limit)
    }

    /// Opens a socket of `M`'s protocol that is connected by `flow` from the start: one that a
    /// listener accepted. It has the listener's port beside it, and after it; no other socket may
    /// be connected by the same flow ([`InUse`](BindError::InUse)). It can't be
    /// [disconnected](Self::disconnect).
    pub fn open_accepted<M: Message>(&mut self, flow: &Flow, limit: u32) -> Result<Inbox<M>, BindError> {
        let flow = Flow { protocol: M::PROTOCOL, ..*flow };
        let key = Key::connected(flow);
        if self.sockets.find_exact(&key).is_some() {
            return Err(BindError::InUse);
        }
        let flags = BindFlags::connected(M::PROTOCOL, flow.local);
        let (local, port) = (flow.local, flow.lport);
        let place = Bound { local, port, flags, dev: None, reuseport: false, accepted: true };
        self.add(key, place, limit)
    }

    /// A slot for a socket that no look-up finds: that of a connection, which has a table of its own, and
    /// gets nothing by the slot's inbox, which stays closed. To be given back by
    /// [`release`](Self::release).
    pub fn open_unlisted(&mut self) -> Result<SlotRef, BindError> {
        let index = self.free.pop().unwrap_or(self.fresh);
        let slot = self.sockets.make(index, &self.region).and_then(|slot| {
            slot.reset(0);
            SlotRef::new(self.sockets.clone(), index)
        });
        self.fresh = self.fresh.max(index + u32::from(slot.is_some()));
        slot.ok_or(BindError::TooMany)
    }

    /// Adds a socket with this key, which is bound like `place`, and conflicts with none.
    fn add<M: Message>(&mut self, key: Key, place: Bound, limit: u32) -> Result<Inbox<M>, BindError> {
        let Bound { local, flags, dev, reuseport, accepted, .. } = place;
        let index = self.free.pop().unwrap_or(self.fresh);
        let inbox = self.sockets.make(index, &self.region).and_then(|slot| {
            slot.reset(limit);
            Inbox::open(SlotRef::new(self.sockets.clone(), index)?)
        });
        let Some(mut inbox) = inbox else { return Err(BindError::TooMany) };
        self.fresh = self.fresh.max(index + 1);
        let group = match self.enter_group(index, &place) {
            Ok(group) => group,
            Err(error) => {
                self.free.push(index);
                inbox.abandon();
                return Err(error);
            }
        };
        let bound = (local, flags);
        let flags = flags.in_group(group);
        let generation = self.sockets.change(|| self.put_in(index, &key, flags));
        inbox.opened(generation);
        let entry = Entry { key, flags, dev, bound, reuseport, accepted, joined: Vec::new() };
        self.ports.add(index, &place);
        self.entries.insert(index, entry);
        Ok(inbox)
    }

    /// Makes slot `index` a member of the reuseport group of its key, if it shares. A single socket
    /// is in a group as well, for later members.
    fn enter_group(&mut self, index: u32, place: &Bound) -> Result<Option<u32>, BindError> {
        if !place.reuseport {
            return Ok(None);
        }
        let group = self.group_of(place).ok_or(BindError::GroupFull)?;
        match self.sockets.group(group) {
            Some(members) if !members.add(index) => Err(BindError::GroupFull),
            _ => Ok(Some(group)),
        }
    }

    /// Gives slot `index`, which is in no chain, a key, and puts it in that key's chain, unless
    /// another member of its group is there. Returns its new generation.
    fn put_in(&self, index: u32, key: &Key, flags: BindFlags) -> u32 {
        let sockets = &self.sockets;
        let generation = sockets.slot(index).map_or(0, |slot| slot.set_key(key, flags));
        if flags.group().and_then(|group| sockets.group(group)).is_none_or(|members| members.len() == 1) {
            sockets.link(index, key);
        }
        generation
    }

    /// The reuseport group of this key, made if there is none. `None`: the limit on groups is
    /// reached.
    fn group_of(&mut self, place: &Bound) -> Option<u32> {
        if let Some(group) = self.groups.get(place) {
            return Some(*group);
        }
        let group = match self.free_groups.pop() {
            Some(group) => group,
            None if (self.fresh_group as usize) < MAX_GROUPS => {
                self.fresh_group += 1;
                self.fresh_group - 1
            }
            None => return None,
        };
        self.sockets.make_group(group)?;
        self.groups.insert(*place, group);
        Some(group)
    }

    /// Takes slot `index` out of its chain and its group; another member of the group takes its
    /// place in the chain.
    fn take_out(&mut self, index: u32) {
        let Some(entry) = self.entries.get(&index) else { return };
        let sockets = &self.sockets;
        let group = entry.flags.group();
        let members = group.and_then(|group| sockets.group(group));
        let linked = sockets.is_linked(index, &entry.key);
        sockets.unlink(index, &entry.key);
        let Some(members) = members else { return };
        members.remove(index);
        if linked && let Some(next) = members.members().next() {
            sockets.link(next, &entry.key);
        }
        if members.len() == 0 {
            self.groups.remove(&entry.place());
            self.free_groups.extend(group);
        }
    }

    /// Connects a socket: from now on it receives only packets from `remote` to `local`. It leaves
    /// its reuseport group. Returns the slot's new generation.
    pub fn connect(&mut self, index: u32, local: Addr, remote: Addr, rport: u16) -> u32 {
        let Some(Entry { key: bound, .. }) = self.entries.get(&index) else { return 0 };
        let key = Key::connected(Flow { local, remote, rport, ..bound.flow });
        let flags = BindFlags::connected(key.flow.protocol, local);
        self.replace(index, key, flags)
    }

    /// The same of a protocol whose connections are known by their ends: unless another socket is
    /// connected by that flow ([`InUse`](BindError::InUse)).
    pub fn connect_alone(
        &mut self,
        index: u32,
        local: Addr,
        remote: Addr,
        rport: u16,
    ) -> Result<u32, BindError> {
        let Some(Entry { key: bound, .. }) = self.entries.get(&index) else { return Ok(0) };
        let key = Key::connected(Flow { local, remote, rport, ..bound.flow });
        match self.sockets.find_exact(&key) {
            Some(other) if other.slot != index => Err(BindError::InUse),
            _ => Ok(self.connect(index, local, remote, rport)),
        }
    }

    /// The address that the socket in slot `index` was bound to, which it has again once it is [disconnected](Self::disconnect).
    pub fn bound(&self, index: u32) -> Addr {
        self.entries.get(&index).map_or(ANY, |entry| entry.bound.0)
    }

    /// Disconnects a socket: it receives packets from any host to the address that it was bound to,
    /// as the newest member of its group. Returns the slot's new generation, and the address. It
    /// stays connected if another socket has the address by now, or the group is full; a socket
    /// that is not connected is left as it is.
    pub fn disconnect(&mut self, index: u32) -> Result<(u32, Addr), BindError> {
        let Some(entry) = self.entries.get(&index) else { return Ok((0, ANY)) };
        let (now, &Entry { key, bound: (local, flags), dev, reuseport, accepted, .. }) =
            (entry.place(), entry);
        if !key.is_connected() {
            return Ok((self.sockets.slot(index).map_or(0, Slot::generation), local));
        }
        if accepted {
            // Its listener has what it would be bound to.
            return Err(BindError::InUse);
        }
        let key = Key::bound(key.flow.protocol, local, key.flow.lport);
        // The socket does not conflict with itself.
        self.ports.remove(index, &now);
        let place = Bound { local, port: key.flow.lport, flags, dev, reuseport, accepted };
        let conflicts = self.ports.conflicts(&place);
        self.ports.add(index, &now);
        if conflicts {
            return Err(BindError::InUse);
        }
        let flags = flags.in_group(self.enter_group(index, &place)?);
        Ok((self.replace(index, key, flags), local))
    }

    /// Gives slot `index`, which is in use, a new key. Returns its new generation.
    fn replace(&mut self, index: u32, key: Key, flags: BindFlags) -> u32 {
        let sockets = self.sockets.clone();
        let generation = sockets.change(|| {
            self.take_out(index);
            self.put_in(index, &key, flags)
        });
        if let Some(entry) = self.entries.get_mut(&index) {
            self.ports.remove(index, &entry.place());
            (entry.key, entry.flags) = (key, flags);
            self.ports.add(index, &entry.place());
        }
        generation
    }

    /// Removes the socket in slot `index` from the table: no look-up finds it any more. Packets may
    /// still be pushed to it until its inbox is closed. Returns the memberships that ended, each a
    /// group and a device.
    pub fn close(&mut self, index: u32) -> Vec<(Addr, u16)> {
        let sockets = self.sockets.clone();
        sockets.change(|| {
            self.take_out(index);
            if let Some(slot) = sockets.slot(index) {
                slot.set_key(&Key::bound(0, ANY, 0), BindFlags::default());
            }
        });
        let Some(entry) = self.entries.remove(&index) else { return Vec::new() };
        self.ports.remove(index, &entry.place());
        for &(group, dev) in &entry.joined {
            self.forget(group, dev, index);
        }
        entry.joined
    }

    /// Frees slot `index`, which is closed together with its inbox, for reuse.
    pub fn release(&mut self, index: u32) {
        if let Some(slot) = self.sockets.slot(index) {
            slot.reset(0);
        }
        self.free.push(index);
    }

    /// The socket in slot `index` receives the packets to its reuseport group that come by NAPI
    /// instance `napi_id`; 0: its share of all.
    pub fn set_napi(&mut self, index: u32, napi_id: u32) {
        let group = self.entries.get(&index).and_then(|entry| self.sockets.group(entry.flags.group()?));
        if let Some(group) = group {
            group.set_napi(index, napi_id);
        }
    }

    /// Makes the socket in slot `index` a member of the multicast group on device `dev`.
    pub fn join(&mut self, index: u32, group: Addr, dev: u16) -> Result<(), BindError> {
        let Some(entry) = self.entries.get_mut(&index) else { return Err(BindError::NotJoined) };
        if entry.joined.contains(&(group, dev)) {
            return Err(BindError::Joined);
        }
        if entry.joined.len() >= MAX_MEMBERSHIPS {
            return Err(BindError::TooManyGroups);
        }
        entry.joined.push((group, dev));
        self.members.entry(group).or_default().push((dev, index));
        Ok(())
    }

    /// Ends a membership.
    pub fn leave(&mut self, index: u32, group: Addr, dev: u16) -> Result<(), BindError> {
        let Some(entry) = self.entries.get_mut(&index) else { return Err(BindError::NotJoined) };
        let at = entry.joined.iter().position(|joined| *joined == (group, dev));
        entry.joined.swap_remove(at.ok_or(BindError::NotJoined)?);
        self.forget(group, dev, index);
        Ok(())
    }

    /// A device on which the socket in slot `index` is a member of `group`.
    pub fn joined(&self, index: u32, group: Addr) -> Option<u16> {
        let joined = &self.entries.get(&index)?.joined;
        joined.iter().find_map(|(of, dev)| (*of == group).then_some(*dev))
    }

    fn forget(&mut self, group: Addr, dev: u16, index: u32) {
        if let Some(members) = self.members.get_mut(&group) {
            members.retain(|member| *member != (dev, index));
            if members.is_empty() {
                self.members.remove(&group);
            }
        }
    }

    /// Members on device `dev` of the multicast group that `flow` leads to, if they want its
    /// datagrams. All sockets are members of the group of all nodes.
    pub fn members(&self, flow: &Flow, dev: u16) -> impl Iterator<Item = super::Hit> {
        let flow = *flow;
        let all = flow.local == ALL_NODES.to_bits();
        let joined = self.members.get(&flow.local).filter(|_| !all).into_iter().flatten();
        let joined = joined.filter(move |(on, _)| *on == dev).map(|(_, slot)| *slot);
        let bound = all.then(|| self.ports.of(flow.protocol, flow.lport)).into_iter().flatten();
        let here = move |slot: &u32| {
            self.entries.get(slot).is_some_and(|entry| entry.dev.is_none_or(|bound| bound == dev))
        };
        let members = joined.chain(bound).filter(here);
        members.filter_map(move |slot| self.wanted_by(slot, &flow))
    }

    /// The sockets that want a broadcast datagram of `flow` (RFC 1122 section 4.1.3.1).
    pub fn listeners(&self, flow: &Flow) -> impl Iterator<Item = super::Hit> {
        let flow = *flow;
        self.ports.of(flow.protocol, flow.lport).filter_map(move |slot| self.wanted_by(slot, &flow))
    }

    /// Whether the socket in `slot` wants a multicast or broadcast datagram.
    fn wanted_by(&self, slot: u32, flow: &Flow) -> Option<super::Hit> {
        let Entry { key, flags, .. } = self.entries.get(&slot)?;
        let of = &key.flow;
        let v4 = is_v4(flow.local);
        let to_it = of.lport == flow.lport
            && (of.local == ANY || of.local == flow.local)
            && flags.overlaps(BindFlags::new(flow.protocol, v4, !v4));
        let from_peer = !key.is_connected() || (of.remote, of.rport) == (flow.remote, flow.rport);
        let generation = self.sockets.slot(slot)?.generation();
        (to_it && from_peer).then_some(super::Hit { slot, generation })
    }

    /// Whether `group` has members on device `dev`.
    pub fn has_members(&self, group: Addr, dev: u16) -> bool {
        self.members.get(&group).into_iter().flatten().any(|(on, _)| *on == dev)
    }

    /// The groups that have members on device `dev`, and how many.
    pub fn groups(&self, dev: u16) -> impl Iterator<Item = (Addr, usize)> {
        let on_it = move |(group, members): (&Addr, &Vec<(u16, u32)>)| {
            let count = members.iter().filter(|(on, _)| *on == dev).count();
            (count > 0).then_some((*group, count))
        };
        self.members.iter().filter_map(on_it)
    }
}
