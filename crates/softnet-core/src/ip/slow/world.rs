//! The world of the slow path's tests: softnet between a client's and a server's link, run as the runtime runs it, in
//! virtual time; and the frames that pass there.
//!
//! After every step the books must balance (received + originated = sent + delivered + dropped + held), and in
//! the end all memory must be at home.

use std::sync::Arc;

use super::*;
use crate::fold::FoldKey;
use crate::ip::checksum;
use crate::ip::input::{Ingress, Outcome, ip_input};
use crate::ip::neigh::NeighState;
use crate::ip::v4::arp::{ArpPacket, BROADCAST};
use crate::ip::v4::fib::Fib;
use crate::skb::{Batch, CacheSizes, HEADROOM, HeapMemory, Region};

pub(super) const SECOND: u64 = 1_000_000_000;
/// Softnet's two devices: the client's link, and the server's, whose MTU is smaller.
pub(super) const MACS: [MacAddr; 2] = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 1, 1]];
pub(super) const MTUS: [u16; 2] = [1500, 600];
pub(super) const OWN: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 1, 0, 1)];
pub(super) const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 9);
pub(super) const CLIENT_MAC: MacAddr = [2, 0, 0, 0, 0, 9];
pub(super) const SERVER: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 9);
pub(super) const SERVER_MAC: MacAddr = [2, 0, 0, 0, 1, 9];
/// Leads to 10.9.0.0/16, on the server's link.
pub(super) const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 254);
pub(super) const FAR: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);
/// On the client's link: leads to 10.8.0.0/16.
pub(super) const ROUTER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 254);
/// On the server's link by a route of its own, outside the network of our address there.
pub(super) const STRANGER: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 9);
/// ICMP type.
pub(super) const ECHO_REQUEST: u8 = 8;

pub(super) type Sent = Vec<(u16, Vec<u8>)>;

pub(super) struct World {
    pub(super) ctx: SoftnetData,
    pub(super) slow: SlowPath,
    pub(super) tables: Tables,
    pub(super) ifaces: Vec<Option<Iface>>,
    pub(super) now: u64,
    pub(super) received: u64,
    pub(super) sent: u64,
    /// Errors for sockets.
    pub(super) errors: Vec<(Flow, SocketError)>,
}

impl World {
    pub(super) fn new() -> Self {
        Self::with_frames(512)
    }

    pub(super) fn with_frames(frames: u32) -> Self {
        let memory = Box::new(HeapMemory::new(Region::bytes(frames, frames)));
        let mut tables = Tables::new(FoldKey::new([1, 2]));
        let routes = [
            ("10.0.0.0/24", Adjacency::connected(0, MTUS[0])),
            ("10.1.0.0/24", Adjacency::connected(1, MTUS[1])),
            ("10.9.0.0/16", Adjacency::gateway(1, MTUS[1], GATEWAY)),
            ("10.8.0.0/16", Adjacency::gateway(0, MTUS[0], ROUTER)),
            ("203.0.113.0/24", Adjacency::connected(1, MTUS[1])),
            ("10.66.0.0/16", Adjacency::special(Kind::Blackhole)),
            ("10.67.0.0/16", Adjacency::special(Kind::Unreachable)),
            ("10.0.0.0/32", Adjacency::special(Kind::Broadcast)),
            ("10.0.0.255/32", Adjacency::special(Kind::Broadcast)),
            ("10.1.0.0/32", Adjacency::special(Kind::Broadcast)),
            ("10.1.0.255/32", Adjacency::special(Kind::Broadcast)),
            ("10.0.0.1/32", Adjacency::special(Kind::Local)),
            ("10.1.0.1/32", Adjacency::special(Kind::Local)),
        ];
        Arc::make_mut(&mut tables.v4).next_hops.extend(routes.iter().map(|(_, hop)| *hop));
        let fib: Vec<_> = routes.iter().zip(1..).map(|((p, _), i)| (p.parse().unwrap(), i)).collect();
        let routing = Arc::make_mut(&mut tables.v4);
        routing.fib = Arc::new(Fib::build(&fib).unwrap());
        let ifaces: Vec<_> = (0..2).map(|dev| Some(iface(dev))).collect();
        tables.ifaces = ifaces.clone().into();
        let mut slow = SlowPath::new(NeighParams::default(), [1, 2]);
        // The limit has tests of its own.
        slow.configure(unlimited(), OptionPolicy::default());
        World {
            ctx: SoftnetData::new(Region::new(memory, frames, frames).unwrap(), CacheSizes::default()),
            slow,
            tables,
            ifaces,
            now: 0,
            received: 0,
            sent: 0,
            errors: Vec::new(),
        }
    }

    /// One batch by device `dev`, as a worker processes it: fast path, then exceptions. What memory is left for is
    /// received. Returns the frames sent.
    pub(super) fn input(&mut self, dev: u16, frames: &[Vec<u8>]) -> Sent {
        let (mut batch, mut outcome) = (Batch::new(), Outcome::default());
        for bytes in frames {
            let Some(mut frame) = self.ctx.alloc_frame() else { continue };
            frame.bytes_mut()[HEADROOM..][..bytes.len()].copy_from_slice(bytes);
            match self.ctx.build_skb(frame, HEADROOM, bytes.len()) {
                Ok(mut skb) => {
                    skb.head_mut().dev = dev;
                    batch.push(skb).unwrap();
                    self.received += 1;
                }
                Err(frame) => self.ctx.free_frame(frame),
            }
        }
        let ingress =
            Ingress { dev, mac: MACS[usize::from(dev)], partial_csum: false, rp_filter: self.rp_filter(dev) };
        ip_input(&mut self.ctx, &self.tables, &ingress, &mut batch, &mut outcome);
        let mut out = Effects::default();
        outcome.tx.flush(|dev, batch| out.send.extend(batch.drain().map(|skb| (dev, skb))));
        let view = RouteSnapshot { now: self.now, tables: &self.tables, ifaces: &self.ifaces };
        for (skb, why) in outcome.slow.drain() {
            self.slow.handle(&mut self.ctx, view, skb, why, &mut out);
        }
        if let Some((dev, packet)) = outcome.slow.redirect.take() {
            self.slow.redirect(&mut self.ctx, view, (dev, packet), &mut out);
        }
        // There are no sockets.
        for skb in outcome.udp.drain().chain(std::mem::take(&mut out.local)) {
            self.slow.handle(&mut self.ctx, view, skb, Exception::NoSocket, &mut out);
        }
        self.carry_out(out)
    }

    pub(super) fn one(&mut self, dev: u16, frame: Vec<u8>) -> Sent {
        self.input(dev, &[frame])
    }

    /// Lets time pass, timers included.
    pub(super) fn pass(&mut self, ns: u64) -> Sent {
        let end = self.now + ns;
        let mut sent = Sent::new();
        while let Some(at) = self.slow.next_deadline().filter(|at| *at <= end) {
            self.now = self.now.max(at);
            let mut out = Effects::default();
            let view = RouteSnapshot { now: self.now, tables: &self.tables, ifaces: &self.ifaces };
            self.slow.poll(&mut self.ctx, view, &mut out);
            sent.extend(self.carry_out(out));
        }
        self.now = end;
        sent
    }

    /// The interface of device `dev` vanishes.
    pub(super) fn vanish(&mut self, dev: u16) {
        self.ifaces[usize::from(dev)] = None;
        let mut out = Effects::default();
        let view = RouteSnapshot { now: self.now, tables: &self.tables, ifaces: &self.ifaces };
        self.slow.remove_device(&mut self.ctx, view, dev, &mut out);
        self.carry_out(out);
    }

    pub(super) fn carry_out(&mut self, mut out: Effects) -> Sent {
        self.sent += out.send.len() as u64;
        self.errors.append(&mut out.errors);
        let mut sent = Sent::new();
        for (dev, skb) in out.send.drain(..) {
            sent.push((dev, skb.data().to_vec()));
            self.ctx.free_skb(skb);
        }
        for neighbour in out.publish {
            self.tables.set_neighbour(neighbour);
        }
        let stats = self.ctx.stats();
        assert_eq!(
            self.received + stats.originated.get(),
            self.sent + stats.delivered.get() + stats.dropped() + stats.merged.get() + self.held(),
            "received {} sent {} held {}",
            self.received,
            self.sent,
            self.held()
        );
        sent
    }

    fn rp_filter(&self, dev: u16) -> RpFilter {
        self.ifaces[usize::from(dev)].as_ref().map_or_else(Default::default, |iface| iface.rp_filter)
    }

    pub(super) fn held(&self) -> u64 {
        self.slow.held() as u64
    }

    pub(super) fn drops(&self, reason: DropReason) -> u64 {
        (0..2).map(|dev| self.ctx.stats().drops(dev, reason)).sum()
    }

    pub(super) fn state(&self, ip: Ipv4Addr) -> NeighState {
        self.slow
            .neighbours()
            .entries()
            .find(|e| e.ip == IpAddr::V4(ip))
            .map_or(NeighState::None, |e| e.state)
    }

    /// Client, server and gateway have answered.
    pub(super) fn acquainted() -> Self {
        let mut world = World::new();
        for (dev, ip, mac) in [(0, CLIENT, CLIENT_MAC), (1, SERVER, SERVER_MAC), (1, GATEWAY, SERVER_MAC)] {
            let from = if dev == 0 { SERVER } else { CLIENT };
            world.one(1 - dev, udp(1 - dev, from, ip, 9, 10));
            assert_eq!(world.one(dev, reply(dev, ip, mac)).len(), 1);
            assert_eq!(world.state(ip), NeighState::Reachable);
        }
        world
    }

    /// Sends `frame` in by the client's device, and expects it to be dropped for `reason` and answered by the ICMP
    /// message `answer` (type, code, last two bytes of the header), if any.
    pub(super) fn refused(&mut self, frame: Vec<u8>, reason: DropReason, answer: Option<(u8, u8, u16)>) {
        let before = self.drops(reason);
        let sent = self.one(0, frame.clone());
        assert_eq!(self.drops(reason), before + 1, "{reason:?}");
        let errors: Vec<_> = sent.iter().map(|s| error(s, &frame)).collect();
        assert_eq!(errors, Vec::from_iter(answer), "{reason:?}");
    }
}

pub(super) fn unlimited() -> IcmpParams {
    let most = u32::MAX;
    IcmpParams {
        icmp_ratelimit: 0,
        icmpv6_ratelimit: 0,
        icmp_msgs_per_sec: most,
        icmp_msgs_burst: most,
        ..IcmpParams::default()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.slow.shutdown(&mut self.ctx);
        self.ctx.drain();
        if !std::thread::panicking() {
            let region = self.ctx.region();
            assert_eq!(region.frames_free(), u64::from(region.frame_count()));
            assert_eq!(region.heads_free(), u64::from(region.head_count()));
        }
    }
}

pub(super) fn iface(dev: usize) -> Iface {
    let net = Prefix::containing(OWN[dev], 24).unwrap();
    Iface {
        mac: MACS[dev],
        mtu: MTUS[dev],
        addresses: vec![(OWN[dev], net)],
        addresses6: vec![],
        send_redirects: true,
        rp_filter: RpFilter::Off,
    }
}

pub(super) fn eth(to: MacAddr, from: MacAddr, ethertype: u16) -> Vec<u8> {
    [&to[..], &from, &ethertype.to_be_bytes()].concat()
}

/// A frame to softnet's device `dev`, as the host (or router) there sends it.
pub(super) fn ip(dev: u16, src: Ipv4Addr, dst: Ipv4Addr, ttl: u8, proto: u8, payload: &[u8]) -> Vec<u8> {
    let from = if dev == 0 { CLIENT_MAC } else { SERVER_MAC };
    let mut frame = eth(MACS[usize::from(dev)], from, 0x0800);
    frame.resize(ETH_LEN + 20, 0);
    let total = 20 + payload.len() as u16;
    Ipv4Header::new_mut(&mut frame[ETH_LEN..]).unwrap().fill(total, 7, ttl, proto, src.into(), dst.into());
    frame.extend(payload);
    frame
}

/// UDP with a payload of `len` bytes.
pub(super) fn udp(dev: u16, src: Ipv4Addr, dst: Ipv4Addr, ttl: u8, len: usize) -> Vec<u8> {
    let mut payload = vec![0x5a; 8 + len];
    payload[..4].copy_from_slice(&[0x12, 0x34, 0, 7]);
    payload[4..6].copy_from_slice(&(8 + len as u16).to_be_bytes());
    payload[6..8].fill(0);
    ip(dev, src, dst, ttl, protocol::UDP, &payload)
}

/// UDP from the client to `dst` with these options, padded to a multiple of 4 bytes.
pub(super) fn with_options(dst: Ipv4Addr, ttl: u8, options: &[u8]) -> Vec<u8> {
    let mut frame = udp(0, CLIENT, dst, ttl, 10);
    let mut padded = options.to_vec();
    padded.resize(options.len().next_multiple_of(4), 0);
    let at = ETH_LEN + 20;
    frame.splice(at..at, padded.iter().copied());
    frame[ETH_LEN] += padded.len() as u8 / 4;
    let total = (frame.len() - ETH_LEN) as u16;
    frame[ETH_LEN + 2..][..2].copy_from_slice(&total.to_be_bytes());
    mend(frame)
}

/// Puts the right header checksum in.
pub(super) fn mend(mut frame: Vec<u8>) -> Vec<u8> {
    let len = usize::from(frame[ETH_LEN] & 15) * 4;
    frame[ETH_LEN + 10..][..2].fill(0);
    let check = checksum::checksum(&frame[ETH_LEN..][..len]);
    frame[ETH_LEN + 10..][..2].copy_from_slice(&check.to_be_bytes());
    frame
}

pub(super) fn set(mut frame: Vec<u8>, at: usize, bytes: &[u8]) -> Vec<u8> {
    frame[at..at + bytes.len()].copy_from_slice(bytes);
    frame
}

pub(super) fn arp(to: MacAddr, packet: ArpPacket) -> Vec<u8> {
    let mut frame = eth(to, packet.sender_mac, 0x0806);
    frame.resize(ETH_LEN + 28, 0);
    packet.write(frame[ETH_LEN..].first_chunk_mut().unwrap());
    frame.resize(60, 0);
    frame
}

/// `ip` at `mac` asks for softnet's address on `dev`.
pub(super) fn request(dev: u16, ip: Ipv4Addr, mac: MacAddr) -> Vec<u8> {
    arp(BROADCAST, ArpPacket::request(mac, ip, OWN[usize::from(dev)]))
}

/// `ip` at `mac` answers softnet's request on `dev`.
pub(super) fn reply(dev: u16, ip: Ipv4Addr, mac: MacAddr) -> Vec<u8> {
    let dev = usize::from(dev);
    arp(MACS[dev], ArpPacket::request(MACS[dev], OWN[dev], ip).reply(mac))
}

pub(super) fn echo(dst: Ipv4Addr, ttl: u8, kind: u8) -> Vec<u8> {
    let mut message = [&[kind, 0, 0, 0, 0x77, 0x77, 0, 1][..], b"are you there?"].concat();
    let check = checksum::checksum(&message);
    message[2..4].copy_from_slice(&check.to_be_bytes());
    ip(0, CLIENT, dst, ttl, protocol::ICMP, &message)
}

/// The ARP packet that was sent, and its device and destination MAC address.
pub(super) fn heard((dev, frame): &(u16, Vec<u8>)) -> (u16, MacAddr, ArpPacket) {
    assert_eq!(frame[12..14], [8, 6]);
    (*dev, *frame.first_chunk().unwrap(), ArpPacket::parse(&frame[ETH_LEN..]).unwrap())
}

/// Checks that `sent` is `original`, forwarded by device `dev` to the host at `mac`.
pub(super) fn assert_forwarded((by, frame): &(u16, Vec<u8>), original: &[u8], dev: u16, mac: MacAddr) {
    let mut expected = eth(mac, MACS[usize::from(dev)], 0x0800);
    expected.extend(&original[ETH_LEN..]);
    expected[ETH_LEN + 8] -= 1;
    assert_eq!((*by, frame), (dev, &mend(expected)));
}

/// Checks that `sent` is an ICMP error about `original` from softnet to the client. Returns type, code and the last two
/// bytes of its header.
pub(super) fn error((dev, frame): &(u16, Vec<u8>), original: &[u8]) -> (u8, u8, u16) {
    assert_eq!((*dev, &frame[..ETH_LEN]), (0, &eth(CLIENT_MAC, MACS[0], 0x0800)[..]));
    let packet = &frame[ETH_LEN..];
    let lengths = validate(packet).unwrap();
    assert_eq!((lengths.header, lengths.total), (20, packet.len()));
    let header = Ipv4Header::new(packet).unwrap();
    // From the address that the packet was to, or else from that of the link that the error leaves
    // by.
    let dst = Ipv4Header::new(&original[ETH_LEN..]).unwrap().dst().into();
    let own = if OWN.contains(&dst) { dst } else { OWN[0] };
    assert_eq!((header.src(), header.dst()), (own.into(), CLIENT.into()));
    assert_eq!((header.protocol(), header.ttl()), (protocol::ICMP, 64));
    let message = &packet[20..];
    assert_eq!(checksum::sum(message), 0xffff);
    // Quoted as it came, and as much as 576 bytes have room for.
    let quoted = &original[ETH_LEN..];
    assert_eq!(message[8..], quoted[..quoted.len().min(576 - 28)]);
    let rest = u16::from_be_bytes([message[6], message[7]]);
    // A pointer is where nothing else is.
    (message[0], message[1], rest | u16::from(message[4]))
}
