//! What is in a set, and what of the set any thread may use: [`EpollCtl`] adds, changes and removes sockets and descriptors of
//! the kernel, also while the set's thread waits.
//!
//! Invariant: a set that watches a slot has an item for it.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use rustix::event::epoll;
use rustix::io::Errno;
use softnet_core::skb::{prefetch, prefetch_whole};
use softnet_core::sock::{MAX_ITEMS, ReadyList, SlotRef};
use softnet_core::sync::{AtomicUsize, Ordering};

use super::Interest;
use crate::net::options::errno;
use crate::net::socket::Socket;
use crate::net::socket::sealed::Shared;
use crate::notify::{Set, Watch};
use crate::stack::StackInner;
use crate::util::lock;

/// A socket that a set watches.
pub(super) struct Item {
    pub(super) slot: SlotRef,
    pub(super) socket: Weak<dyn Shared>,
    pub(super) interest: Interest,
    pub(super) token: u64,
    /// A one-shot one was told of.
    pub(super) spent: bool,
}

impl Item {
    /// What is to be told of it now.
    pub(super) fn bits(&self) -> u32 {
        if self.spent {
            return 0;
        }
        let now = self.slot.slot().readiness();
        let bit = |on: bool, bit: u32| if on { bit } else { 0 };
        let bits = bit(now.readable, Interest::IN.0) | bit(now.writable, Interest::OUT.0);
        let bits = bits | bit(now.peer_closed, Interest::RDHUP.0);
        bits & self.interest.0 | bit(now.error, Interest::ERROR) | bit(now.hung_up, Interest::HUP)
    }
}

#[derive(Default)]
pub(super) struct Items {
    /// By number.
    pub(super) table: Vec<Option<Item>>,
    free: Vec<u32>,
    pub(super) by_slot: HashMap<u32, u32>,
    /// The set is gone, and takes nothing more.
    pub(super) closed: bool,
}

impl Items {
    fn find(&mut self, socket: &Arc<dyn Shared>) -> Option<(u32, &mut Item)> {
        let index = *self.by_slot.get(&socket.slot().index())?;
        let item = self.table.get_mut(index as usize)?.as_mut()?;
        std::ptr::addr_eq(item.socket.as_ptr(), Arc::as_ptr(socket)).then_some((index, item))
    }

    /// Starts to load what is looked at of items that come a few after the first of `active`: of many
    /// sockets that are seldom ready nothing is in a cache.
    #[inline]
    pub(super) fn prefetch(&self, list: &ReadyList, active: &VecDeque<u32>) {
        const AHEAD: usize = 4;
        let item = |ahead: usize| active.get(ahead).and_then(|index| self.table.get(*index as usize));
        item(2 * AHEAD).into_iter().for_each(prefetch_whole);
        if let Some(Some(item)) = item(AHEAD) {
            prefetch_whole(item.slot.slot());
            // Its counts are before it.
            prefetch(item.socket.as_ptr().cast::<u8>().wrapping_sub(2 * size_of::<usize>()));
        }
        active.get(AHEAD).into_iter().for_each(|index| list.prefetch(*index));
    }

    pub(super) fn remove(&mut self, index: u32) {
        if let Some(item) = self.table.get_mut(index as usize).and_then(Option::take) {
            self.free.push(index);
            let slot = item.slot.index();
            if self.by_slot.get(&slot) == Some(&index) {
                self.by_slot.remove(&slot);
            }
        }
    }
}

/// What of an [`Epoll`](super::Epoll) any thread may use: adds sockets to it, also while its thread waits. It does not keep the set alive.
#[derive(Clone)]
pub struct EpollCtl {
    pub(super) shared: Arc<StackInner>,
    pub(super) set: Arc<Set>,
    pub(super) items: Arc<Mutex<Items>>,
    pub(super) fds: Arc<Fds>,
}

/// The kernel's descriptors of a set.
pub(super) struct Fds {
    pub(super) epoll: OwnedFd,
    /// How many there are beside the set's own.
    pub(super) count: AtomicUsize,
    pub(super) tokens: Mutex<Tokens>,
}

#[derive(Default)]
pub(super) struct Tokens {
    /// Of each descriptor, and the serial number of what was said of it last.
    pub(super) of: HashMap<RawFd, (u64, u32)>,
    serial: u32,
}

impl Tokens {
    /// What the kernel is to remember of a descriptor from now on, and its serial number. What it says with another one
    /// is about what was before.
    fn data(&mut self, fd: RawFd) -> (epoll::EventData, u32) {
        self.serial = self.serial.wrapping_add(1);
        (epoll::EventData::new_u64(u64::from(self.serial) << 32 | u64::from(fd as u32)), self.serial)
    }
}

/// An event of one of the kernel's descriptors.
pub(super) struct FdEvent {
    pub(super) fd: RawFd,
    pub(super) serial: u32,
    pub(super) bits: u32,
}

impl EpollCtl {
    /// Watches `socket`; events carry `token`. An error if it is watched already, or of another stack, or if the set is gone
    /// (`EBADF`). A socket that is closed is removed by itself.
    pub fn add(&self, socket: &impl Socket, interest: Interest, token: u64) -> io::Result<()> {
        let socket = socket.shared();
        if !Arc::ptr_eq(socket.stack(), &self.shared) {
            return Err(errno(Errno::INVAL));
        }
        let slot = socket.slot().clone();
        let mut items = self.items()?;
        if items.find(&socket).is_some() {
            return Err(errno(Errno::EXIST));
        }
        if let Some(closed) = items.by_slot.get(&slot.index()).copied() {
            items.remove(closed);
        }
        let index = items.free.pop().unwrap_or(items.table.len() as u32);
        if index >= MAX_ITEMS {
            return Err(errno(Errno::NOSPC));
        }
        if index as usize == items.table.len() {
            items.table.push(None);
        }
        self.set.list.reserve(index);
        items.by_slot.insert(slot.index(), index);
        self.watch(slot.index(), index, interest);
        items.table[index as usize] =
            Some(Item { slot, socket: Arc::downgrade(&socket), interest, token, spent: false });
        drop(items);
        // It may be ready already.
        self.set.wake(index);
        Ok(())
    }

    /// Changes what is waited for, and has a one-shot socket told of again.
    pub fn modify(&self, socket: &impl Socket, interest: Interest, token: u64) -> io::Result<()> {
        let mut items = self.items()?;
        let (index, item) = items.find(&socket.shared()).ok_or_else(|| errno(Errno::NOENT))?;
        if interest.is_exclusive() != item.interest.is_exclusive() {
            self.watch(item.slot.index(), index, interest);
        }
        (item.interest, item.token, item.spent) = (interest, token, false);
        drop(items);
        self.set.wake(index);
        Ok(())
    }

    /// Watches `socket` no more.
    pub fn delete(&self, socket: &impl Socket) -> io::Result<()> {
        let socket = socket.shared();
        let mut items = self.items()?;
        let (index, _) = items.find(&socket).ok_or_else(|| errno(Errno::NOENT))?;
        items.remove(index);
        // Under the lock: if it is added once more, that must not be undone.
        self.unwatch(socket.slot().index());
        Ok(())
    }

    /// The items, while the set is there.
    fn items(&self) -> io::Result<MutexGuard<'_, Items>> {
        let items = lock(&self.items);
        if items.closed { Err(errno(Errno::BADF)) } else { Ok(items) }
    }

    /// Under the items' lock, so that a set watches exactly what it has items for, whatever other threads add and delete meanwhile.
    fn watch(&self, slot: u32, index: u32, interest: Interest) {
        let (notifier, exclusive) = (&self.shared.sockets.notifier, interest.is_exclusive());
        if exclusive && let Some(slot) = notifier.sockets.slot(slot) {
            slot.watch_exclusively();
        }
        notifier.watchers.add(slot, Watch::Set { set: self.set.clone(), index, exclusive });
    }

    pub(super) fn unwatch(&self, slot: u32) {
        let watch = Watch::Set { set: self.set.clone(), index: 0, exclusive: false };
        self.shared.sockets.notifier.watchers.remove(slot, &watch);
    }

    /// Watches a descriptor of the kernel, which must stay open as long. Interests mean what they do there.
    pub fn add_fd(&self, fd: impl AsFd, interest: Interest, token: u64) -> io::Result<()> {
        let fd = fd.as_fd();
        drop(self.items()?);
        let mut tokens = lock(&self.fds.tokens);
        let (data, serial) = tokens.data(fd.as_raw_fd());
        epoll::add(&self.fds.epoll, fd, data, flags(interest))?;
        if tokens.of.insert(fd.as_raw_fd(), (token, serial)).is_none() {
            self.fds.count.fetch_add(1, Ordering::Release);
        }
        drop(tokens);
        // A thread that polls looks at descriptors only if there are any.
        self.set.waker.wake();
        Ok(())
    }

    /// Changes what is waited for of a descriptor of the kernel.
    pub fn modify_fd(&self, fd: impl AsFd, interest: Interest, token: u64) -> io::Result<()> {
        let fd = fd.as_fd();
        let mut tokens = lock(&self.fds.tokens);
        let (data, serial) = tokens.data(fd.as_raw_fd());
        epoll::modify(&self.fds.epoll, fd, data, flags(interest))?;
        tokens.of.insert(fd.as_raw_fd(), (token, serial));
        Ok(())
    }

    /// Watches a descriptor of the kernel no more.
    pub fn delete_fd(&self, fd: impl AsFd) -> io::Result<()> {
        let fd = fd.as_fd();
        let mut tokens = lock(&self.fds.tokens);
        epoll::delete(&self.fds.epoll, fd)?;
        if tokens.of.remove(&fd.as_raw_fd()).is_some() {
            self.fds.count.fetch_sub(1, Ordering::Release);
        }
        Ok(())
    }
}

fn flags(interest: Interest) -> epoll::EventFlags {
    epoll::EventFlags::from_bits_truncate(interest.0)
}
