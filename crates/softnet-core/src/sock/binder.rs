//! The one writer of the socket table: opens, connects and closes sockets, chooses ports, and keeps multicast memberships.
//!
//! The runtime has it behind a lock, which no poller takes for a datagram to one socket. Invariant: no two sockets of the
//! table are bound to an address, port and family that both would take, unless both are of one reuseport group; and a slot is used anew only
//! after its last receiver has let go of it.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use super::group::MAX_GROUPS;
use super::inbox::{Inbox, SlotRef};
use super::key::{ANY, Addr, Flow, is_v4};
use super::ports::{Bound, Ports};
use super::slot::{How, Slot};
use super::table::Sockets;
use crate::ip::v6::addr::ALL_NODES;
use crate::skb::Region;

/// Ports for who asks for none in particular (the kernel's `ip_local_port_range`).
pub const EPHEMERAL: std::ops::RangeInclusive<u16> = 32768..=60999;

/// Groups that one socket may be a member of (the kernel's `igmp_max_memberships`).
pub const MAX_MEMBERSHIPS: usize = 20;

/// What a socket is to be bound to.
#[derive(Clone, Copy, Debug)]
pub struct Bind {
    /// Own address, or [`ANY`].
    pub local: Addr,
    /// Port; 0: any that is free.
    pub port: u16,
    /// Of an address [`ANY`]: whether IPv4 packets are for it.
    pub v4: bool,
    /// Of an address [`ANY`]: whether IPv6 packets are for it.
    pub v6: bool,
    /// Of a group: the device on which it is meant; on any, if none is said.
    pub dev: Option<u16>,
    /// Whether to share address and port with others that say so.
    pub reuseport: bool,
    /// Packets that may wait.
    pub limit: u32,
}

/// Why a socket was not opened or changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BindError {
    /// Somebody has address and port (`EADDRINUSE`).
    #[error("the address is in use")]
    InUse,
    /// No port is free (`EADDRINUSE`).
    #[error("no port is free")]
    NoPort,
    /// There are as many sockets as may be (`ENFILE`).
    #[error("there are as many sockets as stack.max_sockets allows")]
    TooMany,
    /// As many share the port, or as many groups exist, as may (`ENOBUFS`).
    #[error("too many sockets share the port")]
    GroupFull,
    /// As many memberships as one socket may have (`ENOBUFS`).
    #[error("the socket has joined as many groups as it may")]
    TooManyGroups,
    /// It is a member already (`EADDRINUSE`).
    #[error("the socket is a member of that group")]
    Joined,
    /// It is no member (`EADDRNOTAVAIL`).
    #[error("the socket is no member of that group")]
    NotJoined,
}

struct Entry {
    key: Flow,
    how: How,
    /// See [`Bind::dev`].
    dev: Option<u16>,
    /// What it was bound to, and for which families, before it was connected.
    bound: (Addr, How),
    reuseport: bool,
    /// Multicast groups that it joined, each on a device.
    joined: Vec<(Addr, u16)>,
}

impl Entry {
    fn place(&self) -> Bound {
        let Entry { key, how, dev, reuseport, .. } = *self;
        Bound { local: key.local, port: key.lport, how: how.in_group(None), dev, reuseport }
    }
}

/// The one writer of the socket table.
pub struct Binder {
    sockets: Arc<Sockets>,
    region: Arc<Region>,
    entries: HashMap<u32, Entry>,
    ports: Ports,
    /// Reuseport groups that have members, by what these are bound to.
    groups: HashMap<Bound, u32>,
    /// Slots that were used and are free.
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
    /// An empty table for up to `max` sockets, whose packets are of `region`, and its writer. `seed` varies hashes and
    /// ports; it should not be guessed.
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

    /// Whether none is.
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

    /// A random port that is free and not `taken`, by trying all from a random one on (RFC 6056 section 3.3.1).
    fn ephemeral(&mut self, bind: &Bind, how: How, taken: &BTreeSet<u16>) -> Option<u16> {
        let ports = u64::from(EPHEMERAL.end() - EPHEMERAL.start()) + 1;
        let first = self.random() % ports;
        (0..ports).map(|i| EPHEMERAL.start() + ((first + i) % ports) as u16).find(|port| {
            // Not even to share with others: they did not ask for this port either.
            let place = Bound { local: bind.local, port: *port, how, dev: bind.dev, reuseport: false };
            !taken.contains(port) && !self.ports.conflicts(&place)
        })
    }

    /// Opens a socket, unless somebody has its address. Its receiver is to be [closed](Inbox::close), and its slot then given back by
    /// [`release`](Self::release).
    pub fn open(&mut self, bind: &Bind) -> Result<Inbox, BindError> {
        self.open_beside(bind, &BTreeSet::new())
    }

    /// The same; if any port will do, one that is not among `taken`: those that somebody else has.
    pub fn open_beside(&mut self, bind: &Bind, taken: &BTreeSet<u16>) -> Result<Inbox, BindError> {
        let how = match bind.local {
            ANY => How::new(bind.v4, bind.v6),
            local => How::new(is_v4(local), !is_v4(local)),
        };
        let port = match bind.port {
            0 => self.ephemeral(bind, how, taken).ok_or(BindError::NoPort)?,
            port => port,
        };
        let Bind { local, dev, reuseport, .. } = *bind;
        let place = Bound { local, port, how, dev, reuseport };
        if self.ports.conflicts(&place) {
            return Err(BindError::InUse);
        }
        let key = Flow::bound(local, port);
        let index = self.free.pop().unwrap_or(self.fresh);
        let inbox = self.sockets.make(index, &self.region).and_then(|slot| {
            slot.reset(bind.limit);
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
        let bound = (local, how);
        let how = how.in_group(group);
        let generation = self.sockets.change(|| self.put_in(index, &key, how));
        inbox.opened(generation);
        let entry = Entry { key, how, dev, bound, reuseport, joined: Vec::new() };
        self.ports.add(index, &place);
        self.entries.insert(index, entry);
        Ok(inbox)
    }

    /// Makes slot `index` a member of the reuseport group of those that are bound so, if it shares. One that is alone is in a
    /// group as well, for those who come.
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

    /// Gives slot `index`, which is in no chain, a key, and puts it in the chain of that, unless another of its group is there. Returns
    /// its new generation.
    fn put_in(&self, index: u32, key: &Flow, how: How) -> u32 {
        let sockets = &self.sockets;
        let generation = sockets.slot(index).map_or(0, |slot| slot.set_key(key, how));
        if how.group().and_then(|group| sockets.group(group)).is_none_or(|members| members.len() == 1) {
            sockets.link(index, key);
        }
        generation
    }

    /// The reuseport group of those that are bound so, made if there is none. `None`: there can be no more.
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

    /// Takes slot `index` out of its chain, and out of its group, of which another member is put in the chain.
    fn take_out(&mut self, index: u32) {
        let Some(entry) = self.entries.get(&index) else { return };
        let sockets = &self.sockets;
        let group = entry.how.group();
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

    /// Connects a socket: from now on only packets from `remote` to `local` are for it. It leaves its reuseport group.
    /// Returns the slot's new generation.
    pub fn connect(&mut self, index: u32, local: Addr, remote: Addr, rport: u16) -> u32 {
        let Some(lport) = self.entries.get(&index).map(|entry| entry.key.lport) else { return 0 };
        let key = Flow { local, remote, lport, rport };
        let how = How::new(is_v4(local), !is_v4(local));
        self.replace(index, key, how)
    }

    /// The address that the socket in slot `index` was bound to, which it has again once it is [disconnected](Self::disconnect).
    pub fn bound(&self, index: u32) -> Addr {
        self.entries.get(&index).map_or(ANY, |entry| entry.bound.0)
    }

    /// Undoes that: packets from anybody are for it, to what it was bound to, in its group as one that has just come. Returns
    /// the slot's new generation, and the address. It stays connected if others have that by now, or the group is full; one that is not connected stays as it is.
    pub fn disconnect(&mut self, index: u32) -> Result<(u32, Addr), BindError> {
        let Some(entry) = self.entries.get(&index) else { return Ok((0, ANY)) };
        let (now, &Entry { key, bound: (local, how), dev, reuseport, .. }) = (entry.place(), entry);
        if !key.is_connected() {
            return Ok((self.sockets.slot(index).map_or(0, Slot::generation), local));
        }
        let key = Flow::bound(local, key.lport);
        // It is not in its own way.
        self.ports.remove(index, &now);
        let place = Bound { local, port: key.lport, how, dev, reuseport };
        let conflicts = self.ports.conflicts(&place);
        self.ports.add(index, &now);
        if conflicts {
            return Err(BindError::InUse);
        }
        let how = how.in_group(self.enter_group(index, &place)?);
        Ok((self.replace(index, key, how), local))
    }

    /// Gives slot `index`, which is in use, another key. Returns its new generation.
    fn replace(&mut self, index: u32, key: Flow, how: How) -> u32 {
        let sockets = self.sockets.clone();
        let generation = sockets.change(|| {
            self.take_out(index);
            self.put_in(index, &key, how)
        });
        if let Some(entry) = self.entries.get_mut(&index) {
            self.ports.remove(index, &entry.place());
            (entry.key, entry.how) = (key, how);
            self.ports.add(index, &entry.place());
        }
        generation
    }

    /// Nobody finds the socket in slot `index` any more. Packets may still be pushed to it until its inbox is closed.
    /// Returns the memberships that ended, each a group and a device.
    pub fn close(&mut self, index: u32) -> Vec<(Addr, u16)> {
        let sockets = self.sockets.clone();
        sockets.change(|| {
            self.take_out(index);
            if let Some(slot) = sockets.slot(index) {
                slot.set_key(&Flow::bound(ANY, 0), How::default());
            }
        });
        let Some(entry) = self.entries.remove(&index) else { return Vec::new() };
        self.ports.remove(index, &entry.place());
        for &(group, dev) in &entry.joined {
            self.forget(group, dev, index);
        }
        entry.joined
    }

    /// Slot `index`, which is closed, and whose inbox is, may be used anew.
    pub fn release(&mut self, index: u32) {
        if let Some(slot) = self.sockets.slot(index) {
            slot.reset(0);
        }
        self.free.push(index);
    }

    /// The socket in slot `index` takes what comes by NAPI instance `napi_id` to its reuseport group; 0: its share.
    pub fn set_napi(&mut self, index: u32, napi_id: u32) {
        let group = self.entries.get(&index).and_then(|entry| self.sockets.group(entry.how.group()?));
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

    /// Ends that.
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

    /// Members on device `dev` of the multicast group that `flow` leads to, which want a datagram of it. All nodes are
    /// members of the group of all nodes.
    pub fn members(&self, flow: &Flow, dev: u16) -> impl Iterator<Item = super::Hit> {
        let flow = *flow;
        let all = flow.local == ALL_NODES.to_bits();
        let joined = self.members.get(&flow.local).filter(|_| !all).into_iter().flatten();
        let joined = joined.filter(move |(on, _)| *on == dev).map(|(_, slot)| *slot);
        let bound = all.then(|| self.ports.of(flow.lport)).into_iter().flatten();
        let here = move |slot: &u32| {
            self.entries.get(slot).is_some_and(|entry| entry.dev.is_none_or(|bound| bound == dev))
        };
        let members = joined.chain(bound).filter(here);
        members.filter_map(move |slot| self.wanted_by(slot, &flow))
    }

    /// The sockets that want a datagram of `flow` to all on a link (RFC 1122 section 4.1.3.1).
    pub fn listeners(&self, flow: &Flow) -> impl Iterator<Item = super::Hit> {
        let flow = *flow;
        self.ports.of(flow.lport).filter_map(move |slot| self.wanted_by(slot, &flow))
    }

    /// Whether the socket in `slot` wants a datagram to many.
    fn wanted_by(&self, slot: u32, flow: &Flow) -> Option<super::Hit> {
        let Entry { key, how, .. } = self.entries.get(&slot)?;
        let v4 = is_v4(flow.local);
        let to_it = key.lport == flow.lport
            && (key.local == ANY || key.local == flow.local)
            && how.overlaps(How::new(v4, !v4));
        let from_peer = !key.is_connected() || (key.remote, key.rport) == (flow.remote, flow.rport);
        let generation = self.sockets.slot(slot)?.generation();
        (to_it && from_peer).then_some(super::Hit { slot, generation })
    }

    /// Whether anybody is a member of `group` on device `dev`.
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
