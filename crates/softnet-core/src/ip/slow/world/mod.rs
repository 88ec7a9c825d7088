//! The world of the slow path's tests and fuzzing: softnet between a client's and a server's link, which speak one of the
//! families, in virtual time; and the frames that pass there.
//!
//! After every step the books must balance (received + originated = sent + delivered + dropped + merged + held), and in
//! the end all memory must be at home. What the composition asks of its host is in `glue`; what a family's packets and
//! addresses are, in [`TestFamily`].

/// The family's parts of the world, by their names alone.
macro_rules! names {
    ($family:ty: $($name:ident),*) => {
        $(pub(crate) const $name: $family = <$family as $crate::ip::slow::world::TestFamily>::$name;)*
        pub(crate) const OWN: [$family; 2] = <$family as $crate::ip::slow::world::TestFamily>::OWN;
        pub(crate) const MTUS: [u16; 2] = <$family as $crate::ip::slow::world::TestFamily>::MTUS;
    };
}

mod family;
mod glue;
pub(crate) mod v4;
pub(crate) mod v6;

pub(crate) use family::{Answer, Header, TestFamily};

pub(crate) use glue::{NoSockets, QUEUE};
use std::marker::PhantomData;
use std::net::IpAddr;
use std::sync::Arc;

use super::{IcmpParams, Iface, NeighParams, OptionPolicy, SlowPath};
use crate::SoftnetData;
use crate::fold::FoldKey;
use crate::ip::neigh::NeighState;
use crate::ip::tables::Tables;
use crate::ip::v4::header::protocol;
use crate::ip::{ETH_LEN, LongestMatch, MacAddr};
use crate::skb::{CacheSizes, DropReason, HeapMemory, Region};
use crate::sock::udp::output::UdpHead;
use crate::sock::{Flow, SocketError};
use crate::stack::slow::SlowPathState;
use crate::steer::TxChoice;

pub(crate) const SECOND: u64 = 1_000_000_000;
/// Of softnet's two devices: the client's link, and the server's, whose MTU is smaller.
pub(crate) const MACS: [MacAddr; 2] = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 1, 1]];
pub(crate) const CLIENT_MAC: MacAddr = [2, 0, 0, 0, 0, 9];
pub(crate) const SERVER_MAC: MacAddr = [2, 0, 0, 0, 1, 9];

/// A frame that was sent, and the device that it left by.
pub(crate) type Frame = (u16, Vec<u8>);
pub(crate) type Sent = Vec<Frame>;

pub(crate) struct World<F: TestFamily> {
    pub(crate) ctx: SoftnetData,
    pub(crate) control: SlowPathState,
    pub(crate) tables: Tables,
    pub(crate) now: u64,
    /// What sockets were to be told.
    pub(crate) errors: Vec<(Flow, SocketError)>,
    /// How the frames of the last step left.
    pub(crate) choices: Vec<TxChoice>,
    /// Whether a hook says of packets which connection they are of.
    pub(crate) tracked: bool,
    sockets: NoSockets,
    received: u64,
    sent: u64,
    /// Packets that GRO let go, of batches that are still to come.
    waiting: u64,
    family: PhantomData<F>,
}

impl<F: TestFamily> World<F> {
    pub(crate) fn new() -> Self {
        Self::with_frames(512)
    }

    pub(crate) fn with_frames(frames: u32) -> Self {
        let memory = Box::new(HeapMemory::new(Region::bytes(frames, frames)));
        let mut tables = Tables::new(FoldKey::new([1, 2]));
        let routes = F::routes();
        let routing = F::routing_mut(&mut tables);
        routing.next_hops.extend(routes.iter().map(|(_, hop)| *hop));
        let fib: Vec<_> = routes.iter().zip(1..).map(|((p, _), i)| (p.parse().unwrap(), i)).collect();
        routing.fib = Arc::new(F::Fib::build_in(&fib, &crate::memory::Heap).unwrap());
        let mut slow = SlowPath::new(NeighParams::default(), [1, 2]);
        // The limit has tests of its own.
        slow.configure(unlimited(), OptionPolicy::default());
        let region = Region::new(memory, frames, frames).unwrap();
        let mut world = World {
            sockets: NoSockets::new(&region),
            ctx: SoftnetData::new(region, CacheSizes::default()),
            control: SlowPathState::new(slow),
            tables,
            now: 0,
            errors: Vec::new(),
            choices: Vec::new(),
            tracked: false,
            received: 0,
            sent: 0,
            waiting: 0,
            family: PhantomData,
        };
        world.appear(0);
        world.appear(1);
        world
    }

    /// Client, server and gateway have answered.
    pub(crate) fn acquainted() -> Self {
        let mut world = World::new();
        for (dev, neighbour, mac, from, to) in [
            (0, F::CLIENT, CLIENT_MAC, F::SERVER, F::CLIENT),
            (1, F::SERVER, SERVER_MAC, F::CLIENT, F::SERVER),
            (1, F::GATEWAY, SERVER_MAC, F::CLIENT, F::FAR),
        ] {
            world.one(1 - dev, udp(1 - dev, from, to, 9, 10));
            assert_eq!(world.one(dev, F::answer(dev, neighbour, mac)).len(), 1);
            assert_eq!(world.state(neighbour), NeighState::Reachable);
        }
        world
    }

    pub(crate) fn one(&mut self, dev: u16, frame: Vec<u8>) -> Sent {
        self.input(dev, &[frame])
    }

    /// A datagram that a socket sends, whose neighbour is not known.
    pub(crate) fn send(&mut self, head: &UdpHead, payload: &[u8]) -> Sent {
        let mut skb = self.ctx.alloc_skb().unwrap();
        head.write(&mut skb, &head.no_link(), payload).unwrap();
        self.ctx.originate();
        self.call(|slow, ctx, view, out| slow.send(ctx, view, skb, out)).0
    }

    /// Lets time pass, timers included.
    pub(crate) fn pass(&mut self, ns: u64) -> Sent {
        let end = self.now + ns;
        let mut sent = Sent::new();
        while let Some(at) = self.control.slow.next_deadline().filter(|at| *at <= end) {
            self.now = self.now.max(at);
            sent.extend(self.call(|slow, ctx, view, out| slow.poll(ctx, view, out)).0);
        }
        self.now = end;
        sent
    }

    /// The interface of device `dev`, if it is there.
    pub(crate) fn iface(&self, dev: u16) -> Option<&Iface> {
        self.tables.ifaces[usize::from(dev)].as_ref()
    }

    /// The interface of device `dev` vanishes.
    pub(crate) fn vanish(&mut self, dev: u16) {
        self.set_iface(dev, None);
        self.call(|slow, ctx, view, out| slow.remove_device(ctx, view, dev, out));
    }

    /// It is back.
    pub(crate) fn appear(&mut self, dev: u16) {
        self.set_iface(dev, Some(F::iface(dev)));
    }

    /// It is configured anew.
    pub(crate) fn reconfigure(&mut self, dev: u16, change: impl FnOnce(&mut Iface)) {
        let mut iface = self.iface(dev).unwrap().clone();
        change(&mut iface);
        self.set_iface(dev, Some(iface));
    }

    fn set_iface(&mut self, dev: u16, iface: Option<Iface>) {
        self.step(|_, control, host| {
            control.replace_tables(host, |tables| tables.set_iface(dev, iface));
        });
    }

    pub(crate) fn held(&self) -> u64 {
        self.control.slow.held() as u64
    }

    pub(crate) fn drops(&self, reason: DropReason) -> u64 {
        (0..2).map(|dev| self.ctx.stats().drops(dev, reason)).sum()
    }

    pub(crate) fn state(&self, ip: F) -> NeighState {
        let ip: IpAddr = ip.into();
        self.control.slow.neighbours().entries().find(|e| e.ip == ip).map_or(NeighState::None, |e| e.state)
    }

    /// Sends `frame` in by the client's device, and expects it to be dropped for `reason` and answered by the ICMP error
    /// `answer`, if any.
    pub(crate) fn refused(&mut self, frame: Vec<u8>, reason: DropReason, answer: Option<Answer>) {
        let before = self.drops(reason);
        let sent = self.one(0, frame.clone());
        assert_eq!(self.drops(reason), before + 1, "{reason:?}: {frame:x?}");
        let errors: Vec<_> = sent.iter().map(|sent| F::error(sent, &frame)).collect();
        assert_eq!(errors, Vec::from_iter(answer), "{reason:?}");
    }
}

impl<F: TestFamily> Drop for World<F> {
    fn drop(&mut self) {
        self.control.slow.shutdown(&mut self.ctx);
        self.ctx.drain();
        if !std::thread::panicking() {
            let region = self.ctx.region();
            assert_eq!(region.frames_free(), u64::from(region.frame_count()));
            assert_eq!(region.heads_free(), u64::from(region.head_count()));
        }
    }
}

pub(crate) fn unlimited() -> IcmpParams {
    let most = u32::MAX;
    IcmpParams {
        icmp_ratelimit: 0,
        icmpv6_ratelimit: 0,
        icmp_msgs_per_sec: most,
        icmp_msgs_burst: most,
        ..IcmpParams::default()
    }
}

pub(crate) fn eth(to: MacAddr, from: MacAddr, ethertype: u16) -> Vec<u8> {
    [&to[..], &from, &ethertype.to_be_bytes()].concat()
}

/// UDP with a payload of `len` bytes, see [`TestFamily::ip`].
pub(crate) fn udp<F: TestFamily>(dev: u16, src: F, dst: F, ttl: u8, len: usize) -> Vec<u8> {
    let mut payload = vec![0x5a; 8 + len];
    payload[..4].copy_from_slice(&[0x12, 0x34, 0, 7]);
    payload[4..6].copy_from_slice(&(8 + len as u16).to_be_bytes());
    payload[6..8].fill(0);
    F::ip(dev, src, dst, ttl, protocol::UDP, &payload)
}

/// An ICMP message with its checksum.
pub(crate) fn icmp<F: TestFamily>(dev: u16, src: F, dst: F, ttl: u8, message: &[u8]) -> Vec<u8> {
    let mut message = message.to_vec();
    if let Some(check) = message.get_mut(2..4) {
        check.fill(0);
        let sum = F::sum(F::ICMP, src, dst, &message);
        message[2..4].copy_from_slice(&(!sum).to_be_bytes());
    }
    F::ip(dev, src, dst, ttl, F::ICMP, &message)
}

/// An echo request of the client to `dst`.
pub(crate) fn echo<F: TestFamily>(dst: F, ttl: u8) -> Vec<u8> {
    echo_like(F::ECHO_REQUEST, dst, ttl)
}

/// The same of another type.
pub(crate) fn echo_like<F: TestFamily>(kind: u8, dst: F, ttl: u8) -> Vec<u8> {
    let message = [&[kind, 0, 0, 0, 0x77, 0x77, 0, 1][..], b"are you there?"].concat();
    icmp(0, F::CLIENT, dst, ttl, &message)
}

/// `frame` with `bytes` at `at`.
pub(crate) fn set(mut frame: Vec<u8>, at: usize, bytes: &[u8]) -> Vec<u8> {
    frame[at..at + bytes.len()].copy_from_slice(bytes);
    frame
}

/// The IP packet in a frame.
pub(crate) fn packet(frame: &[u8]) -> &[u8] {
    &frame[ETH_LEN..]
}
