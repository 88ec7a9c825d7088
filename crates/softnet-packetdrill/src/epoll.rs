//! Readiness: `poll`, `epoll`, and what wakes them (Linux `tcp_poll`, `sk_stream_write_space`,
//! `ep_poll_callback`).

use std::collections::BTreeMap;

use libc::{
    EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, EPOLLERR, EPOLLET, EPOLLHUP, EPOLLIN, EPOLLONESHOT,
    EPOLLOUT, EPOLLPRI, EPOLLRDHUP, EPOLLRDNORM, EPOLLWRNORM,
};
use softnet_tcp::State;
use softnet_tcp::conn::Events;

use crate::sock::{Body, SockId};
use crate::stack::{File, Stack};

const IN: u32 = (EPOLLIN | EPOLLRDNORM) as u32;
const OUT: u32 = (EPOLLOUT | EPOLLWRNORM) as u32;
const ERR: u32 = EPOLLERR as u32;
const HUP: u32 = EPOLLHUP as u32;
const RDHUP: u32 = EPOLLRDHUP as u32;

/// A descriptor that is watched.
#[derive(Debug)]
struct Item {
    events: u32,
    data: u64,
    /// In the list of what may be ready.
    queued: bool,
}

/// An epoll instance.
#[derive(Debug, Default)]
pub(crate) struct Epoll {
    items: BTreeMap<i32, Item>,
    /// Descriptors in the order in which they became ready.
    ready: Vec<i32>,
}

impl Epoll {
    fn wake(&mut self, fd: i32, mask: u32) {
        if let Some(item) = self.items.get_mut(&fd)
            && !item.queued
            && (mask == 0 || mask & (item.events | ERR | HUP) != 0)
        {
            item.queued = true;
            self.ready.push(fd);
        }
    }

    pub(crate) fn forget(&mut self, fd: i32) {
        self.items.remove(&fd);
        self.ready.retain(|ready| *ready != fd);
    }
}

impl Stack {
    /// What a poller is told of a socket (Linux `tcp_poll`). A socket without room notes that it is
    /// asked about it.
    pub(crate) fn readiness(&mut self, id: SockId) -> u32 {
        let room = self.has_room(id);
        let Some(sock) = self.socks.get_mut(&id) else { return ERR };
        let live = match &sock.body {
            Body::Fresh => return OUT | HUP,
            Body::Listener(_, queue) => return if queue.is_empty() { 0 } else { IN },
            Body::Live(live) => live,
        };
        let (conn, state) = (&live.conn, live.conn.state());
        let (mut mask, mut waits) = (0, false);
        let ended = (conn.receive_ended(), conn.send_ended());
        if ended == (true, true) || state == State::Closed {
            mask |= HUP;
        }
        if ended.0 {
            mask |= IN | RDHUP;
        }
        if !matches!(state, State::SynSent | State::SynReceived) {
            if conn.is_readable() && conn.unread() > 0 {
                mask |= IN;
            }
            if ended.1 || room {
                mask |= OUT;
            } else {
                sock.no_space = true;
                waits = true;
            }
        }
        if conn.error().is_some() {
            mask |= ERR;
        }
        if waits {
            self.enter(id, |conn, _| conn.waits_for_room(true));
        }
        mask
    }

    /// Events of a socket wake those that watch it.
    pub(crate) fn wake(&mut self, id: SockId, events: Events) {
        let mut masks = Vec::new();
        if events.any(Events(Events::CONNECTED.0 | Events::PEER_FIN.0 | Events::CLOSED.0)) {
            // A change of state wakes all, whatever they wait for.
            masks.push(0);
        }
        if events.any(Events::READABLE) {
            masks.push(IN);
        }
        if events.any(Events::ERROR) {
            masks.push(ERR);
        }
        let room = self.has_room(id);
        if let Some(sock) = self.socks.get_mut(&id)
            && events.any(Events::WRITABLE)
            && sock.no_space
            && room
        {
            sock.no_space = false;
            if let Some(live) = sock.live_mut() {
                live.conn.waits_for_room(false);
            }
            masks.push(OUT);
        }
        if masks.is_empty() {
            return;
        }
        let is_it = |file: &File| matches!(file, File::Sock { id: of, .. } if *of == id);
        let fds: Vec<i32> = self.files.iter().filter(|(_, file)| is_it(file)).map(|(fd, _)| *fd).collect();
        for file in self.files.values_mut() {
            let File::Epoll(epoll) = file else { continue };
            for mask in &masks {
                fds.iter().for_each(|fd| epoll.wake(*fd, *mask));
            }
        }
    }

    pub(crate) fn epoll_ctl(
        &mut self,
        epfd: i32,
        op: i32,
        fd: i32,
        events: u32,
        data: u64,
    ) -> Result<(), i32> {
        let id = self.sock_id(fd)?;
        let mask = self.readiness(id);
        let Some(File::Epoll(epoll)) = self.files.get_mut(&epfd) else { return Err(libc::EINVAL) };
        match (op, epoll.items.contains_key(&fd)) {
            (EPOLL_CTL_ADD, true) => return Err(libc::EEXIST),
            (EPOLL_CTL_ADD, false) => {
                epoll.items.insert(fd, Item { events, data, queued: false });
            }
            (EPOLL_CTL_MOD | EPOLL_CTL_DEL, false) => return Err(libc::ENOENT),
            (EPOLL_CTL_MOD, true) => {
                if let Some(item) = epoll.items.get_mut(&fd) {
                    (item.events, item.data) = (events, data);
                }
            }
            (EPOLL_CTL_DEL, true) => {
                epoll.forget(fd);
                return Ok(());
            }
            _ => return Err(libc::EINVAL),
        }
        if mask & (events | ERR | HUP) != 0 {
            epoll.wake(fd, 0);
        }
        Ok(())
    }

    /// What is ready, at most `most`: events and data.
    pub(crate) fn epoll_ready(&mut self, epfd: i32, most: usize) -> Result<Vec<(u32, u64)>, i32> {
        let Some(File::Epoll(epoll)) = self.files.get_mut(&epfd) else { return Err(libc::EINVAL) };
        let ready = std::mem::take(&mut epoll.ready);
        let (mut told, mut stay) = (Vec::new(), Vec::new());
        for fd in ready {
            if told.len() == most {
                stay.push(fd);
                continue;
            }
            let mask = self.sock_id(fd).map(|id| self.readiness(id));
            let Some(File::Epoll(epoll)) = self.files.get_mut(&epfd) else { break };
            let Some(item) = epoll.items.get_mut(&fd) else { continue };
            item.queued = false;
            let mask = mask.unwrap_or(0) & (item.events | ERR | HUP);
            if mask == 0 {
                continue;
            }
            told.push((mask, item.data));
            if item.events & EPOLLONESHOT as u32 != 0 {
                item.events &= EPOLLET as u32 | EPOLLONESHOT as u32;
            } else if item.events & EPOLLET as u32 == 0 {
                item.queued = true;
                stay.push(fd);
            }
        }
        if let Some(File::Epoll(epoll)) = self.files.get_mut(&epfd) {
            epoll.ready.splice(0..0, stay);
        }
        Ok(told)
    }

    /// `poll` of one descriptor.
    pub(crate) fn poll_one(&mut self, fd: i32, events: i16) -> i16 {
        match self.sock_id(fd) {
            Err(_) => libc::POLLNVAL,
            Ok(id) => {
                let always = ERR | HUP;
                (self.readiness(id) & (u32::from(events as u16) | always) & !(EPOLLPRI as u32)) as i16
            }
        }
    }
}
