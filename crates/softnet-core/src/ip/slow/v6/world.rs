//! The world of these tests: softnet between a client's and a server's link, run as the runtime runs it, in virtual time.
//! After every step the books must balance, and in the end all memory must be at home.

use std::net::IpAddr;
use std::sync::Arc;

use super::*;
use crate::fold::FoldKey;
use crate::ip::Prefix6;
use crate::ip::adjacency::{Adjacency, Kind};
use crate::ip::icmp_limit::IcmpParams;
use crate::ip::input::{Exception, Ingress, Outcome, ip_input};
use crate::ip::neigh::{NeighParams, NeighState};
use crate::ip::source::RpFilter;
use crate::ip::tables::Tables;
use crate::ip::v4::options::OptionPolicy;
use crate::ip::v6::addr::{link_local, multicast_mac};
use crate::ip::v6::fib::Fib6;
use crate::ip::v6::icmp::finish;
use crate::skb::{Batch, CacheSizes, HEADROOM, HeapMemory, Region};
use crate::sock::output::UdpHead;
use crate::sock::{Flow, SocketError};

pub(super) const SECOND: u64 = 1_000_000_000;
/// Softnet's two devices: the client's link, and the server's, whose MTU is smaller.
pub(super) const MACS: [MacAddr; 2] = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 1, 1]];
pub(super) const MTUS: [u16; 2] = [1500, 1280];
pub(super) const OWN: [Ipv6Addr; 2] = [net(0, 1), net(1, 1)];
pub(super) const CLIENT: Ipv6Addr = net(0, 9);
pub(super) const CLIENT_MAC: MacAddr = [2, 0, 0, 0, 0, 9];
pub(super) const SERVER: Ipv6Addr = net(1, 9);
pub(super) const SERVER_MAC: MacAddr = [2, 0, 0, 0, 1, 9];
/// Leads to [`FAR`], on the server's link.
pub(super) const GATEWAY: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0xfe);
/// On the client's link: leads to 2001:db8:8::/48. (Another one there has a global address, and leads to 2001:db8:7::/48.)
pub(super) const ROUTER: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0xfd);
pub(super) const FAR: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 9, 0, 0, 0, 0, 1);

pub(super) const fn net(dev: u16, host: u16) -> Ipv6Addr {
    Ipv6Addr::new(0x2001, 0xdb8, 0, dev, 0, 0, 0, host)
}

pub(super) type Sent = Vec<(u16, Vec<u8>)>;

pub(super) struct World {
    pub(super) ctx: SoftnetData,
    pub(super) slow: SlowPath,
    pub(super) tables: Tables,
    pub(super) ifaces: Vec<Option<Iface>>,
    pub(super) now: u64,
    /// What sockets were to be told.
    pub(super) errors: Vec<(Flow, SocketError)>,
    received: u64,
    sent: u64,
}

impl World {
    pub(super) fn new() -> Self {
        Self::with_frames(512)
    }

    pub(super) fn with_frames(frames: u32) -> Self {
        let memory = Box::new(HeapMemory::new(Region::bytes(frames, frames)));
        let mut tables = Tables::new(FoldKey::new([1, 2]));
        let routes = [
            ("2001:db8::/64", Adjacency::connected(0, MTUS[0])),
            ("2001:db8:0:1::/64", Adjacency::connected(1, MTUS[1])),
            ("2001:db8:9::/48", Adjacency::gateway(1, MTUS[1], GATEWAY)),
            ("2001:db8:66::/48", Adjacency::special(Kind::Blackhole)),
            ("2001:db8:67::/48", Adjacency::special(Kind::Unreachable)),
            ("2001:db8::/128", Adjacency::special(Kind::Local)),
            ("2001:db8:0:1::/128", Adjacency::special(Kind::Local)),
            ("2001:db8:8::/48", Adjacency::gateway(0, MTUS[0], ROUTER)),
            ("2001:db8:7::/48", Adjacency::gateway(0, MTUS[0], net(0, 0xfe))),
            ("2001:db8::1/128", Adjacency::special(Kind::Local)),
            ("2001:db8:0:1::1/128", Adjacency::special(Kind::Local)),
        ];
        Arc::make_mut(&mut tables.v6).next_hops.extend(routes.iter().map(|(_, hop)| *hop));
        let fib: Vec<(Prefix6, u32)> =
            routes.iter().zip(1..).map(|((p, _), i)| (p.parse().unwrap(), i)).collect();
        let routing = Arc::make_mut(&mut tables.v6);
        routing.fib = Arc::new(Fib6::build(&fib).unwrap());
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
            errors: Vec::new(),
            received: 0,
            sent: 0,
        }
    }

    /// One batch by device `dev`: fast path, then exceptions. What memory is left for is received. Returns what was sent.
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

    /// A datagram that a socket sends, whose neighbour is not known.
    pub(super) fn send(&mut self, head: &UdpHead, payload: &[u8]) -> Sent {
        let mut skb = self.ctx.alloc_skb().unwrap();
        head.write(&mut skb, &head.no_link(), payload).unwrap();
        self.ctx.originated(1);
        let mut out = Effects::default();
        let view = RouteSnapshot { now: self.now, tables: &self.tables, ifaces: &self.ifaces };
        self.slow.send(&mut self.ctx, view, skb, &mut out);
        self.carry_out(out)
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
        let mut sent = Sent::new();
        for (dev, skb) in out.send.drain(..) {
            sent.push((dev, skb.data().to_vec()));
            self.ctx.free_skb(skb);
        }
        self.errors.append(&mut out.errors);
        for neighbour in out.publish {
            self.tables.set_neighbour(neighbour);
        }
        let stats = self.ctx.stats();
        assert_eq!(
            self.received + stats.originated.get(),
            self.sent + stats.delivered.get() + stats.dropped() + stats.merged.get() + self.held(),
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

    pub(super) fn state(&self, ip: Ipv6Addr) -> NeighState {
        let is = |e: &crate::ip::neigh::NeighEntry| e.ip == IpAddr::V6(ip);
        self.slow.neighbours().entries().find(is).map_or(NeighState::None, |e| e.state)
    }

    /// Client, server and gateway have answered.
    pub(super) fn acquainted() -> Self {
        let mut world = World::new();
        let all = [
            (0, CLIENT, CLIENT_MAC, SERVER),
            (1, SERVER, SERVER_MAC, CLIENT),
            (1, GATEWAY, SERVER_MAC, CLIENT),
        ];
        for (dev, ip, mac, from) in all {
            let dst = if ip == GATEWAY { FAR } else { ip };
            world.one(1 - dev, udp(1 - dev, from, dst, 9, 10));
            assert_eq!(world.one(dev, advert(dev, ip, mac, 0x60)).len(), 1);
            assert_eq!(world.state(ip), NeighState::Reachable);
        }
        world
    }

    /// Sends `frame` in by the client's device, and expects it to be dropped for `reason` and answered by the error
    /// `answer` (type, code, the four bytes after the checksum), if any.
    pub(super) fn refused(&mut self, frame: Vec<u8>, reason: DropReason, answer: Option<(u8, u8, u32)>) {
        let before = self.drops(reason);
        let sent = self.one(0, frame.clone());
        assert_eq!(self.drops(reason), before + 1, "{reason:?}: {frame:x?}");
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
    let addresses6 =
        [OWN[dev], link_local(MACS[dev])].map(|own| (own, Prefix6::containing(own, 64).unwrap()));
    Iface {
        mac: MACS[dev],
        mtu: MTUS[dev],
        addresses: vec![],
        addresses6: addresses6.to_vec(),
        send_redirects: true,
        rp_filter: RpFilter::Off,
    }
}

/// A frame to softnet's device `dev`, or the group that `dst` is, as a host there sends it.
pub(super) fn ip(dev: u16, src: Ipv6Addr, dst: Ipv6Addr, hop_limit: u8, next: u8, payload: &[u8]) -> Vec<u8> {
    let from = if dev == 0 { CLIENT_MAC } else { SERVER_MAC };
    let to = if dst.is_multicast() { multicast_mac(dst) } else { MACS[usize::from(dev)] };
    let mut frame = [&to[..], &from, &[0x86, 0xdd]].concat();
    frame.resize(ETH_LEN + 40, 0);
    let len = payload.len() as u16;
    Ipv6Header::new_mut(&mut frame[ETH_LEN..]).unwrap().fill(len, next, hop_limit, src, dst);
    frame.extend(payload);
    frame
}

/// UDP with a payload of `len` bytes.
pub(super) fn udp(dev: u16, src: Ipv6Addr, dst: Ipv6Addr, hop_limit: u8, len: usize) -> Vec<u8> {
    let mut payload = vec![0x5a; 8 + len];
    payload[..4].copy_from_slice(&[0x12, 0x34, 0, 7]);
    payload[4..6].copy_from_slice(&(8 + len as u16).to_be_bytes());
    ip(dev, src, dst, hop_limit, next::UDP, &payload)
}

/// An ICMPv6 message with its checksum.
pub(super) fn icmp(dev: u16, src: Ipv6Addr, dst: Ipv6Addr, hop_limit: u8, message: &[u8]) -> Vec<u8> {
    let mut message = message.to_vec();
    finish(&mut message, src, dst);
    ip(dev, src, dst, hop_limit, next::ICMPV6, &message)
}

pub(super) fn echo(dst: Ipv6Addr, hop_limit: u8) -> Vec<u8> {
    let message = [&[128, 0, 0, 0, 0x77, 0x77, 0, 1][..], b"are you there?"].concat();
    icmp(0, CLIENT, dst, hop_limit, &message)
}

fn nd(kind: u8, flags: u8, target: Ipv6Addr, option: Option<(u8, MacAddr)>) -> Vec<u8> {
    let mut message = [&[kind, 0, 0, 0, flags, 0, 0, 0][..], &target.octets()].concat();
    if let Some((kind, mac)) = option {
        message.extend([kind, 1]);
        message.extend(mac);
    }
    message
}

/// `src` at `mac` asks who has `target`, on the link of `dev`.
pub(super) fn solicitation(dev: u16, src: Ipv6Addr, mac: Option<MacAddr>, target: Ipv6Addr) -> Vec<u8> {
    icmp(dev, src, solicited_node(target), 255, &nd(135, 0, target, mac.map(|mac| (1, mac))))
}

/// `target` at `mac` answers softnet's question on `dev`.
pub(super) fn advert(dev: u16, target: Ipv6Addr, mac: MacAddr, flags: u8) -> Vec<u8> {
    icmp(dev, target, OWN[usize::from(dev)], 255, &nd(136, flags, target, Some((2, mac))))
}

/// The solicitation or advertisement that was sent: device, destination MAC, addresses, flags, and what it says.
pub(super) fn heard((dev, frame): &(u16, Vec<u8>)) -> (u16, MacAddr, Ipv6Addr, Ipv6Addr, u8, Message) {
    let packet = &frame[ETH_LEN..];
    assert_eq!(validate(packet), Ok(packet.len()));
    let header = Ipv6Header::new(packet).unwrap();
    let (src, dst) = (header.src(), header.dst());
    assert_eq!(
        (&frame[6..14], header.next_header()),
        (&[&MACS[usize::from(*dev)][..], &[0x86, 0xdd]].concat()[..], 58)
    );
    let message = &packet[40..];
    assert_eq!(message_sum(message, src, dst), 0xffff);
    let said = nd::parse(message, header.hop_limit(), src, dst).unwrap();
    (*dev, *frame.first_chunk().unwrap(), src, dst, message[4], said)
}

/// Checks that `sent` is `original`, forwarded by device `dev` to the host at `mac`.
pub(super) fn assert_forwarded((by, frame): &(u16, Vec<u8>), original: &[u8], dev: u16, mac: MacAddr) {
    let mut expected = [&mac[..], &MACS[usize::from(dev)], &original[12..]].concat();
    expected[ETH_LEN + 7] -= 1;
    assert_eq!((*by, frame), (dev, &expected));
}

/// Checks that `sent` is an ICMPv6 error about `original` from softnet to its sender. Returns type, code, and the four
/// bytes after the checksum.
pub(super) fn error((dev, frame): &(u16, Vec<u8>), original: &[u8]) -> (u8, u8, u32) {
    assert_eq!((*dev, &frame[..ETH_LEN]), (0, &[&CLIENT_MAC[..], &MACS[0], &[0x86, 0xdd]].concat()[..]));
    let packet = &frame[ETH_LEN..];
    assert_eq!(validate(packet), Ok(packet.len()));
    let (header, of) = (Ipv6Header::new(packet).unwrap(), Ipv6Header::new(&original[ETH_LEN..]).unwrap());
    // From the address that the packet was to, or else from one of the link that the error leaves
    // by.
    let own = match of.dst() {
        own if OWN.contains(&own) || own == link_local(MACS[0]) => own,
        _ if is_link_local(of.src()) => link_local(MACS[0]),
        _ => OWN[0],
    };
    assert_eq!((header.src(), header.dst()), (own, of.src()));
    assert_eq!((header.next_header(), header.hop_limit()), (next::ICMPV6, 64));
    let message = &packet[40..];
    assert_eq!(message_sum(message, header.src(), header.dst()), 0xffff);
    // Quoted as it came, and as much as 1280 bytes have room for.
    let quoted = &original[ETH_LEN..];
    assert_eq!(message[8..], quoted[..quoted.len().min(1280 - 48)]);
    (message[0], message[1], u32::from_be_bytes(message[4..8].try_into().unwrap()))
}
