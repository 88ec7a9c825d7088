//! Sockets of a second protocol: sets, descriptors and what is shown take them as they take UDP's.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use softnet_core::skb::Skb;
use softnet_core::sock::key::{ANY, mapped};
use softnet_core::sock::{Bind, Flow, Found, Inbox, Message, SlotRef};

use super::super::socket::closed;
use super::super::socket::sealed::{Sealed, Shared};
use super::*;
use crate::net::{Epoll, Interest, ReadyFd, UdpSocket};
use crate::util::lock;

/// A packet of a byte, of a protocol for experiments (RFC 3692).
struct Note(Skb);

const NOTE: u8 = 253;
const FLOW: Flow =
    Flow { local: mapped(0x0a00_0001), remote: mapped(0x0a00_0002), lport: 7, rport: 9, protocol: NOTE };

impl Message for Note {
    const PROTOCOL: u8 = NOTE;

    fn read(skb: Skb) -> Result<Self, Skb> {
        Ok(Note(skb))
    }

    fn flow(&self) -> &Flow {
        &FLOW
    }

    fn into_skb(self) -> Skb {
        self.0
    }
}

struct Inner {
    shared: Arc<StackInner>,
    slot: SlotRef,
    rx: Mutex<Option<Inbox<Note>>>,
    nonblocking: AtomicBool,
}

struct Notes(Arc<Inner>);

impl Shared for Inner {
    fn stack(&self) -> &Arc<StackInner> {
        &self.shared
    }

    fn slot(&self) -> &SlotRef {
        &self.slot
    }

    fn set_nonblocking(&self, nonblocking: bool) {
        self.nonblocking.store(nonblocking, Ordering::Relaxed);
    }
}

impl Sealed for Notes {
    fn shared(&self) -> Arc<dyn Shared> {
        self.0.clone()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let joined = self.shared.sockets.binder().close(self.slot.index());
        closed(&self.shared, self.slot.index(), &joined, lock(&self.rx).take());
    }
}

impl Notes {
    fn bind(shared: &Arc<StackInner>, port: u16) -> Notes {
        let bind = Bind { local: ANY, port, v4: true, v6: true, dev: None, reuseport: false, limit: 8 };
        let inbox: Inbox<Note> = shared.sockets.binder().open(&bind).unwrap();
        let (slot, rx) = (inbox.slot().clone(), Mutex::new(Some(inbox)));
        Notes(Arc::new(Inner { shared: shared.clone(), slot, rx, nonblocking: AtomicBool::new(false) }))
    }

    fn read(&self, ctx: &mut SoftnetData) -> Option<u8> {
        let note = lock(&self.0.rx).as_mut().unwrap().next(ctx)?;
        let byte = note.0.data()[0];
        ctx.free_skb(note.into_skb());
        Some(byte)
    }
}

/// A note came: it is handed over as the input of its protocol would do.
fn arrive(shared: &StackInner, ctx: &mut SoftnetData, byte: u8) {
    let sockets = &shared.sockets;
    let mut skb = ctx.alloc_skb().unwrap();
    ctx.originate();
    skb.put(1).unwrap()[0] = byte;
    let Found::Socket(hit) = sockets.sockets.lookup(&FLOW, 0) else { panic!("no socket has it") };
    let mut ready = Vec::new();
    sockets.hand_over(0, 1, &mut ready, |to| to.hand_over(ctx, hit, &mut Batch::from(skb)));
    ready.into_iter().for_each(|slot| sockets.arrived(slot));
}

#[test]
fn sets_and_descriptors_take_sockets_of_any_protocol() {
    let (assembly, remains) = assemble();
    let mut ctx = remains.shared.context();
    let notes = Notes::bind(&remains.shared, 7);
    let datagrams = UdpSocket::bind(&remains.handle, "0.0.0.0:7").unwrap();
    let mut epoll = Epoll::new(&remains.handle).unwrap();
    epoll.ctl().add(&notes, Interest::IN, 1).unwrap();
    epoll.ctl().add(&datagrams, Interest::IN, 2).unwrap();
    assert!(epoll.ctl().add(&notes, Interest::IN, 3).is_err(), "twice");
    let mut tokens = || {
        let mut events = Vec::new();
        epoll.wait(&mut events, 8, Some(Duration::ZERO)).unwrap();
        events.iter().map(|event| event.token).collect::<Vec<_>>()
    };
    assert_eq!(tokens(), [0; 0]);
    arrive(&remains.shared, &mut ctx, 5);
    assert_eq!(tokens(), [1]);
    datagrams.send_to(b"x", "10.0.0.1:7").unwrap();
    assert_eq!(tokens(), [1, 2]);
    let mut rows = remains.view.sockets();
    rows.sort_by_key(|row| row.protocol.len());
    let shown: Vec<_> = rows.iter().map(|row| (&row.protocol[..], &row.local[..], row.queued)).collect();
    assert_eq!(shown, [("253", "[::]:7", 1), ("udp", "0.0.0.0:7", 1)]);
    assert_eq!((notes.read(&mut ctx), notes.read(&mut ctx)), (Some(5), None));
    assert_eq!(datagrams.recv(&mut [0; 8]).unwrap(), 1);
    assert_eq!(tokens(), [0; 0]);
    epoll.ctl().delete(&notes).unwrap();
    assert!(epoll.ctl().modify(&notes, Interest::IN, 1).is_err());
    // By a descriptor, which is readable at first.
    let fd = ReadyFd::new(notes).unwrap();
    assert!(fd.socket().0.nonblocking.load(Ordering::Relaxed));
    let readable = || {
        let fds = &mut [PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN)];
        poll(fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() == 1
    };
    assert!(readable());
    fd.clear();
    assert!(!readable());
    arrive(&remains.shared, &mut ctx, 6);
    assert!(readable());
    epoll.ctl().add(fd.socket(), Interest::IN, 4).unwrap();
    let mut events = Vec::new();
    epoll.wait(&mut events, 8, Some(Duration::ZERO)).unwrap();
    assert_eq!(events[0].token, 4);
    // With its last handle the socket is closed, and the set has it no more.
    drop(fd);
    epoll.wait(&mut events, 8, Some(Duration::ZERO)).unwrap();
    assert!(events.is_empty());
    ctx.drain();
    drop((epoll, datagrams, ctx, assembly));
    remains.check(1);
}
