//! The kernel's routes and fixed neighbours: all of them, and what becomes of them, as it happens.
//!
//! [`FibMonitor`] subscribes first and lists then, so that nothing is missed in between: what
//! changes while a list is read is told afterwards, once more if the list has it already. A reader
//! for which the kernel had to drop notifications (ENOBUFS), or that hears of a change which the
//! kernel does not tell route by route (a link that goes down takes IPv4 routes with it), is told
//! to [list again](FibEvent::ListAgain), and finds what is left by comparing.
//!
//! Used by one thread. Messages are read attribute by attribute, without a copy: there may be a million.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, BorrowedFd};

use libc::{
    NDA_DST, NDA_LLADDR, NUD_PERMANENT, RTA_DST, RTA_ENCAP_TYPE, RTA_GATEWAY, RTA_MULTIPATH, RTA_OIF,
    RTA_PRIORITY, RTA_TABLE, RTA_VIA, RTM_DELADDR, RTM_DELLINK, RTM_DELNEIGH, RTM_DELROUTE, RTM_F_CLONED,
    RTM_GETNEIGH, RTM_GETROUTE, RTM_NEWLINK, RTM_NEWNEIGH, RTM_NEWROUTE, RTN_BLACKHOLE, RTN_PROHIBIT,
    RTN_THROW, RTN_UNICAST, RTN_UNREACHABLE, RTN_UNSPEC,
};
use netlink_packet_core::{
    NLM_F_APPEND, NLM_F_DUMP, NLM_F_REPLACE, NLM_F_REQUEST, NLMSG_DONE, NLMSG_ERROR, NlasIterator,
};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};
use rustix::net::sockopt::{set_socket_recv_buffer_size, set_socket_recv_buffer_size_force};

use super::socket::{DUMP_INTERRUPTED, RECV_LEN, messages, number};
use crate::sys_error::{SysError, SysResult};

// What libc lacks.
pub(super) const RTM_NEWNEXTHOP: u16 = 104;
pub(super) const RTM_DELNEXTHOP: u16 = 105;
const RTM_GETNEXTHOP: u16 = 106;
const RTA_NH_ID: u16 = 30;
pub(super) const RTPROT_KERNEL: u8 = 2;
const RTPROT_RA: u8 = 9;
const RTNH_F_DEAD: u8 = 1;
const NHA_ID: u16 = 1;
const NHA_GROUP: u16 = 2;
const NHA_BLACKHOLE: u16 = 4;
const NHA_OIF: u16 = 5;
const NHA_GATEWAY: u16 = 6;
const NHA_ENCAP_TYPE: u16 = 7;

const GROUPS: [u32; 6] = [
    libc::RTNLGRP_LINK,
    libc::RTNLGRP_NEIGH,
    libc::RTNLGRP_IPV4_IFADDR,
    libc::RTNLGRP_IPV6_IFADDR,
    libc::RTNLGRP_IPV4_ROUTE,
    libc::RTNLGRP_IPV6_ROUTE,
];

/// Bytes of notifications that may wait: those of some ten thousand routes.
const BUFFER: usize = 16 << 20;

/// What the kernel does with packets to a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouteKind {
    /// Sends them on.
    Unicast,
    /// Drops them in silence.
    Blackhole,
    /// Answers that the host can't be reached.
    Unreachable,
    /// Answers that it is prohibited.
    Prohibit,
}

/// One way that a route goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelHop {
    /// The interface.
    pub ifindex: u32,
    /// The router; none if destinations are on the link.
    pub gateway: Option<IpAddr>,
    /// Its share.
    pub weight: u16,
}

/// A route of the kernel's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelRoute {
    /// Destination and length of the prefix.
    pub to: (IpAddr, u8),
    /// The table that it is in.
    pub table: u32,
    /// Its metric.
    pub metric: u32,
    /// What made it (`rtm_protocol`).
    pub protocol: u8,
    /// What is done.
    pub kind: RouteKind,
    /// Where packets go; several if the route is multipath.
    pub hops: Vec<KernelHop>,
    /// IPv6: routes like this one of a prefix, table and metric are next hops of one route, and all
    /// of them are told whenever one comes. Those are that have a gateway and were made neither by
    /// a router's advertisement nor with a next-hop object (`rt6_qualify_for_ecmp`).
    pub siblings: bool,
    /// It has something that is not followed: a tunnel's header, a gateway of the other family, a
    /// type of service, a source; or it sends look-ups to the next table (`throw`).
    pub unsupported: bool,
}

/// A neighbour that was fixed by hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelNeighbour {
    /// The interface.
    pub ifindex: u32,
    /// Its address.
    pub ip: IpAddr,
    /// Its MAC address; `None`: it is not fixed any more.
    pub mac: Option<[u8; 6]>,
}

/// How a new route stands to others of its prefix, table and metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoutePlace {
    /// In the place of the first.
    Replace,
    /// Before them.
    First,
    /// Behind them.
    Last,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FibEvent {
    /// A route is there, or is as follows.
    Route(KernelRoute, RoutePlace),
    /// A route is gone.
    RouteGone(KernelRoute),
    /// A neighbour was fixed, or is not any more.
    Neighbour(KernelNeighbour),
    /// More may have happened than was told.
    ListAgain,
}

/// Watches routes and neighbours of a namespace. Used by one thread.
#[derive(Debug)]
pub struct FibMonitor {
    socket: Socket,
    requests: Socket,
    sequence: u32,
    /// Next-hop objects, for routes that say nothing but an object's number.
    objects: HashMap<u32, Object>,
    buffer: Vec<u8>,
    overruns: u64,
    /// Routes of this protocol alone (`rtm_protocol`).
    only: Option<u8>,
}

/// A next-hop object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Object {
    Hop(KernelHop),
    /// Others by their numbers, with their shares.
    Group(Vec<(u32, u16)>),
    Blackhole,
    /// One with a tunnel's header.
    Unsupported,
}

impl FibMonitor {
    /// Watches the calling thread's network namespace from now on.
    pub fn new() -> SysResult<Self> {
        Self::watch(None)
    }

    /// The same, but of the routes those alone that the kernel made itself, such as for networks of
    /// its addresses (`RTPROT_KERNEL`), and which name no next-hop objects.
    pub fn of_kernel() -> SysResult<Self> {
        Self::watch(Some(RTPROT_KERNEL))
    }

    fn watch(only: Option<u8>) -> SysResult<Self> {
        let open = || -> io::Result<(Socket, Socket)> {
            let mut socket = Socket::new(NETLINK_ROUTE)?;
            socket.set_non_blocking(true)?;
            if set_socket_recv_buffer_size_force(&socket, BUFFER).is_err() {
                // Without CAP_NET_ADMIN as much as the system allows.
                let _ = set_socket_recv_buffer_size(&socket, BUFFER);
            }
            socket.bind(&SocketAddr::new(0, 0))?;
            GROUPS.iter().try_for_each(|group| socket.add_membership(*group))?;
            if only.is_none() {
                socket.add_membership(libc::RTNLGRP_NEXTHOP)?;
            }
            let mut requests = Socket::new(NETLINK_ROUTE)?;
            requests.bind_auto()?;
            requests.connect(&SocketAddr::new(0, 0))?;
            if only.is_some() {
                // The kernel leaves out the others. One before 4.20 lists all, and they are left
                // out here.
                let _ = requests.set_netlink_get_strict_chk(true);
            }
            Ok((socket, requests))
        };
        let (socket, requests) = open().map_err(|error| SysError::new("watch routes", error))?;
        let (objects, buffer) = (HashMap::new(), vec![0; RECV_LEN]);
        Ok(FibMonitor { socket, requests, sequence: 0, objects, buffer, overruns: 0, only })
    }

    /// What to wait for (readable) before calling [`next`](Self::next).
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Times that notifications were lost.
    pub fn overruns(&self) -> u64 {
        self.overruns
    }

    /// Reads what has happened, a datagram of it, and hands it over. Whether there was any. Never blocks.
    pub fn next(&mut self, mut told: impl FnMut(FibEvent)) -> SysResult<bool> {
        match self.socket.recv(&mut &mut self.buffer[..], libc::MSG_TRUNC) {
            Ok(length) => {
                let FibMonitor { buffer, objects, only, .. } = self;
                let all = messages(buffer, length).map_err(|error| SysError::new("watch routes", error))?;
                for message in all {
                    let (kind, flags, payload) = (message.message_type(), message.flags(), message.payload());
                    if kind == RTM_NEWNEXTHOP {
                        let Some((id, object)) = object(payload) else { continue };
                        // One that is new has no routes yet.
                        if objects.insert(id, object.clone()).is_some_and(|before| before != object) {
                            told(FibEvent::ListAgain);
                        }
                        continue;
                    }
                    let event = event(kind, flags, payload, objects);
                    event.into_iter().filter(|event| is_of(event, *only)).for_each(&mut told);
                }
                Ok(true)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(true),
            Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {
                self.overruns += 1;
                // What still waits is from before or after the loss; a list has all of it.
                told(FibEvent::ListAgain);
                Ok(true)
            }
            Err(error) => Err(SysError::new("watch routes", error)),
        }
    }

    /// Hands over all routes and fixed neighbours there are, as events. What has been told until
    /// now is forgotten first: the list is newer. `false`: it changed while it was read, and is to
    /// be read once more.
    pub fn list(&mut self, mut each: impl FnMut(FibEvent)) -> SysResult<bool> {
        while self.next(drop)? {}
        let only = self.only;
        let mut whole = true;
        if only.is_none() {
            let mut objects = HashMap::new();
            whole = self.dump(RTM_GETNEXTHOP, 0, 8, |kind, payload, _| {
                if kind == RTM_NEWNEXTHOP {
                    objects.extend(object(payload));
                }
            })?;
            self.objects = objects;
        }
        for family in [libc::AF_INET, libc::AF_INET6] {
            let read = |kind: u16, payload: &[u8], objects: &HashMap<u32, Object>| {
                // In the order in which they are used.
                let event = event(kind, NLM_F_APPEND, payload, objects);
                event.into_iter().filter(|event| is_of(event, only)).for_each(&mut each);
            };
            whole &= self.dump(RTM_GETROUTE, family as u8, 12, read)?;
        }
        whole &= self.dump(RTM_GETNEIGH, 0, 12, |kind, payload, objects| {
            event(kind, 0, payload, objects).into_iter().for_each(&mut each);
        })?;
        Ok(whole)
    }

    /// Lists what `request` asks for, whose header has `len` bytes and begins with `family`.
    /// Whether the list is whole.
    fn dump(
        &mut self,
        request: u16,
        family: u8,
        len: usize,
        mut each: impl FnMut(u16, &[u8], &HashMap<u32, Object>),
    ) -> SysResult<bool> {
        let what = "list routes";
        let failed = |error: io::Error| SysError::new(what, error);
        self.sequence = self.sequence.wrapping_add(1);
        let mut bytes = Vec::with_capacity(16 + len);
        bytes.extend((16 + len as u32).to_ne_bytes());
        bytes.extend(request.to_ne_bytes());
        bytes.extend((NLM_F_REQUEST | NLM_F_DUMP).to_ne_bytes());
        bytes.extend(self.sequence.to_ne_bytes());
        bytes.extend([0; 4]);
        bytes.push(family);
        bytes.resize(16 + len, 0);
        if let (RTM_GETROUTE, Some(protocol)) = (request, self.only) {
            bytes[16 + 5] = protocol;
        }
        self.requests.send(&bytes, 0).map_err(failed)?;
        let mut whole = true;
        loop {
            let length = match self.requests.recv(&mut &mut self.buffer[..], libc::MSG_TRUNC) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                result => result.map_err(failed)?,
            };
            for message in messages(&self.buffer, length).map_err(failed)? {
                if message.sequence_number() != self.sequence {
                    continue;
                }
                whole &= message.flags() & DUMP_INTERRUPTED == 0;
                match message.message_type() {
                    NLMSG_DONE | NLMSG_ERROR => {
                        let code = number(message.payload(), 0).map_or(0, u32::cast_signed);
                        return match code {
                            0 => Ok(whole),
                            // A kernel before 5.3 has no next-hop objects.
                            _ if request == RTM_GETNEXTHOP => Ok(whole),
                            _ => Err(failed(io::Error::from_raw_os_error(code.wrapping_neg()))),
                        };
                    }
                    kind => each(kind, message.payload(), &self.objects),
                }
            }
        }
    }
}

/// What a message says, if it is about what is followed.
fn event(kind: u16, flags: u16, payload: &[u8], objects: &HashMap<u32, Object>) -> Option<FibEvent> {
    match kind {
        RTM_NEWROUTE => {
            let place = match flags {
                flags if flags & NLM_F_REPLACE != 0 => RoutePlace::Replace,
                flags if flags & NLM_F_APPEND != 0 => RoutePlace::Last,
                _ => RoutePlace::First,
            };
            route(payload, objects).map(|route| FibEvent::Route(route, place))
        }
        RTM_DELROUTE => route(payload, objects).map(FibEvent::RouteGone),
        RTM_NEWNEIGH => neighbour(payload).map(FibEvent::Neighbour),
        RTM_DELNEIGH => {
            neighbour(payload).map(|gone| FibEvent::Neighbour(KernelNeighbour { mac: None, ..gone }))
        }
        // What goes, or comes back, with these the kernel does not tell of each route.
        RTM_NEWLINK => {
            let (flags, changed) = (number(payload, 8)?, number(payload, 12)?);
            let up = libc::IFF_UP as u32;
            (flags & up == 0 || changed & up != 0).then_some(FibEvent::ListAgain)
        }
        RTM_DELLINK | RTM_DELADDR | RTM_DELNEXTHOP => Some(FibEvent::ListAgain),
        _ => None,
    }
}

/// Whether it is not a route of another protocol than `only`.
fn is_of(event: &FibEvent, only: Option<u8>) -> bool {
    match (event, only) {
        (FibEvent::Route(route, _) | FibEvent::RouteGone(route), Some(only)) => route.protocol == only,
        _ => true,
    }
}

/// Kind and value of each attribute; ends at the first malformed one.
fn attributes(bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    NlasIterator::new(bytes).map_while(Result::ok).map(|attribute| {
        let value = attribute.value_length();
        let inner = attribute.into_inner();
        (u16::from_ne_bytes([inner[2], inner[3]]) & 0x3fff, &inner[4..4 + value])
    })
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    let v4 = || <[u8; 4]>::try_from(bytes).map(IpAddr::from).ok();
    v4().or_else(|| <[u8; 16]>::try_from(bytes).map(IpAddr::from).ok())
}

fn short(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..at + 2).and_then(|two| two.try_into().ok()).map(u16::from_ne_bytes)
}

/// Reads an `RTM_NEWROUTE` or `RTM_DELROUTE`; `None` if no packet follows it: a cached one, one of
/// a kind that is none of [`RouteKind`].
fn route(payload: &[u8], objects: &HashMap<u32, Object>) -> Option<KernelRoute> {
    route_and_object(payload, objects).map(|(route, _)| route)
}

/// The same, and the number of the next-hop object that it names.
pub(super) fn route_and_object(
    payload: &[u8],
    objects: &HashMap<u32, Object>,
) -> Option<(KernelRoute, Option<u32>)> {
    let (header, rest) = payload.split_at_checked(12)?;
    let none: IpAddr = match i32::from(header[0]) {
        libc::AF_INET => Ipv4Addr::UNSPECIFIED.into(),
        libc::AF_INET6 => Ipv6Addr::UNSPECIFIED.into(),
        _ => return None,
    };
    let kind = match header[7] {
        RTN_UNICAST => RouteKind::Unicast,
        RTN_BLACKHOLE => RouteKind::Blackhole,
        RTN_UNREACHABLE => RouteKind::Unreachable,
        RTN_PROHIBIT => RouteKind::Prohibit,
        // It may be in the place of one that is followed.
        RTN_THROW => RouteKind::Unicast,
        // What a daemon deletes, of whichever kind it is.
        RTN_UNSPEC => RouteKind::Unicast,
        _ => return None,
    };
    if number(header, 8)? & RTM_F_CLONED != 0 {
        return None;
    }
    let mut route = KernelRoute {
        to: (none, header[1]),
        table: header[4].into(),
        metric: 0,
        protocol: header[5],
        kind,
        hops: Vec::new(),
        siblings: false,
        unsupported: header[2] != 0 || header[3] != 0 || header[7] == RTN_THROW,
    };
    let (mut ifindex, mut gateway, mut object) = (None, None, None);
    for (kind, value) in attributes(rest) {
        match kind {
            RTA_DST => route.to.0 = address(value)?,
            RTA_OIF => ifindex = number(value, 0),
            RTA_GATEWAY => gateway = Some(address(value)?),
            RTA_PRIORITY => route.metric = number(value, 0)?,
            RTA_TABLE => route.table = number(value, 0)?,
            RTA_MULTIPATH => multipath(value, &mut route),
            RTA_NH_ID => object = number(value, 0),
            RTA_VIA | RTA_ENCAP_TYPE => route.unsupported = true,
            _ => {}
        }
    }
    if kind == RouteKind::Unicast {
        match (ifindex, object) {
            _ if !route.hops.is_empty() => {}
            (Some(ifindex), _) => route.hops.push(KernelHop { ifindex, gateway, weight: 1 }),
            // With `nexthop_compat_mode` off.
            (None, Some(object)) => {
                let ways = by_object(object, objects);
                (route.kind, route.hops) = (ways.kind, ways.hops);
                route.unsupported |= ways.unsupported;
            }
            (None, None) => {}
        }
    }
    // Not of one family.
    let odd = |hop: &KernelHop| hop.gateway.is_some_and(|gateway| gateway.is_ipv4() != none.is_ipv4());
    route.unsupported |= route.hops.iter().any(odd);
    // What a daemon calls an advertisement's is joined nevertheless, as is seen once there are two.
    let joined = header[5] != RTPROT_RA || route.hops.len() > 1;
    let routed = !route.hops.is_empty() && route.hops.iter().all(|hop| hop.gateway.is_some());
    route.siblings = none.is_ipv6() && object.is_none() && joined && routed;
    Some((route, object))
}

/// The next hops of a list of `struct rtnexthop`.
fn multipath(mut list: &[u8], route: &mut KernelRoute) {
    while let (Some(len), Some(ifindex)) = (short(list, 0), number(list, 4)) {
        let len = usize::from(len);
        let Some(rest) = list.get(8..len) else { return };
        let mut hop = KernelHop { ifindex, gateway: None, weight: u16::from(list[3]) + 1 };
        for (kind, value) in attributes(rest) {
            match kind {
                RTA_GATEWAY => hop.gateway = address(value),
                RTA_VIA | RTA_ENCAP_TYPE => route.unsupported = true,
                _ => {}
            }
        }
        if list[2] & RTNH_F_DEAD == 0 {
            route.hops.push(hop);
        }
        list = list.get(len.next_multiple_of(4)..).unwrap_or(&[]);
    }
}

/// Where a next-hop object leads.
pub(super) struct ObjectWays {
    pub(super) kind: RouteKind,
    pub(super) hops: Vec<KernelHop>,
    pub(super) unsupported: bool,
}

/// Finds out where an object leads.
pub(super) fn by_object(id: u32, objects: &HashMap<u32, Object>) -> ObjectWays {
    let mut ways = ObjectWays { kind: RouteKind::Unicast, hops: Vec::new(), unsupported: false };
    match objects.get(&id) {
        Some(Object::Hop(hop)) => ways.hops.push(*hop),
        Some(Object::Blackhole) => ways.kind = RouteKind::Blackhole,
        Some(Object::Group(members)) => {
            for (id, weight) in members {
                match objects.get(id) {
                    Some(Object::Hop(hop)) => ways.hops.push(KernelHop { weight: *weight, ..*hop }),
                    Some(Object::Unsupported) => ways.unsupported = true,
                    _ => {}
                }
            }
        }
        Some(Object::Unsupported) | None => ways.unsupported = true,
    }
    ways
}

/// The number of an `RTM_NEWNEXTHOP` or `RTM_DELNEXTHOP`.
pub(super) fn object_id(payload: &[u8]) -> Option<u32> {
    let id = attributes(payload.get(8..)?).find(|(kind, _)| *kind == NHA_ID);
    id.and_then(|(_, value)| number(value, 0))
}

/// Reads an `RTM_NEWNEXTHOP`.
pub(super) fn object(payload: &[u8]) -> Option<(u32, Object)> {
    let (mut id, mut ifindex, mut gateway, mut group) = (None, None, None, None);
    let (mut blackhole, mut encap) = (false, false);
    for (kind, value) in attributes(payload.get(8..)?) {
        match kind {
            NHA_ID => id = number(value, 0),
            NHA_OIF => ifindex = number(value, 0),
            NHA_GATEWAY => gateway = Some(address(value)?),
            NHA_BLACKHOLE => blackhole = true,
            NHA_ENCAP_TYPE => encap = true,
            NHA_GROUP => {
                let member = |entry: &[u8; 8]| Some((number(entry, 0)?, u16::from(entry[4]) + 1));
                group = Some(value.as_chunks().0.iter().filter_map(member).collect());
            }
            _ => {}
        }
    }
    let object = match (group, blackhole) {
        (Some(group), _) => Object::Group(group),
        (None, true) => Object::Blackhole,
        (None, false) if encap => Object::Unsupported,
        (None, false) => Object::Hop(KernelHop { ifindex: ifindex?, gateway, weight: 1 }),
    };
    Some((id?, object))
}

/// Reads an `RTM_NEWNEIGH` or `RTM_DELNEIGH` of IPv4 or IPv6.
fn neighbour(payload: &[u8]) -> Option<KernelNeighbour> {
    let (header, rest) = payload.split_at_checked(12)?;
    if ![libc::AF_INET, libc::AF_INET6].contains(&i32::from(header[0])) {
        return None;
    }
    let mut neighbour =
        KernelNeighbour { ifindex: number(header, 4)?, ip: Ipv4Addr::UNSPECIFIED.into(), mac: None };
    for (kind, value) in attributes(rest) {
        match kind {
            NDA_DST => neighbour.ip = address(value)?,
            NDA_LLADDR if short(header, 8)? & NUD_PERMANENT != 0 => neighbour.mac = value.try_into().ok(),
            _ => {}
        }
    }
    (!neighbour.ip.is_unspecified()).then_some(neighbour)
}

/// What fuzzing runs.
#[cfg(any(test, fuzzing))]
pub(super) fn fuzz(kind: u16, flags: u16, payload: &[u8]) {
    let mut objects = HashMap::new();
    objects.extend(object(payload));
    for kind in [kind, RTM_NEWROUTE, RTM_DELROUTE, RTM_NEWNEIGH] {
        if let Some(FibEvent::Route(route, _)) = event(kind, flags, payload, &objects) {
            assert!(route.hops.len() <= payload.len());
        }
    }
}
