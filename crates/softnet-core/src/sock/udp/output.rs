//! Builds the packets that sockets send: UDP over IPv4 or IPv6 over Ethernet, written into a fresh
//! skb.
//!
//! Pure; called by sending threads, with the route that was found.

use std::net::{Ipv4Addr, Ipv6Addr};

use super::super::key::{Addr, Flow, is_v4, mapped, unmapped};
use super::super::scope::{device, scoped, unscoped};
pub use super::datagram::UDP_LEN;
use crate::ip::fragment::{Addresses, Datagram, MAX_PAYLOAD_V4, MAX_PAYLOAD_V6};
use crate::ip::pmtu::{IPV6_MIN_MTU, MIN_PMTU};
use crate::ip::v4::header::{Ipv4Header, MIN_LEN, protocol};
use crate::ip::v6::header::{Ipv6Header, LEN as IPV6_LEN};
use crate::ip::{ETH_LEN, checksum};
use crate::skb::{Flags, Skb, Store};
use crate::steer::flow_hash_of;

/// The headers of a datagram, of either family.
#[derive(Clone, Copy, Debug)]
pub struct UdpHead {
    /// Addresses of one family, with their scopes; if both are link-local, of one scope.
    pub src: Addr,
    /// See [`src`](Self::src).
    pub dst: Addr,
    /// Ports.
    pub sport: u16,
    /// See [`sport`](Self::sport).
    pub dport: u16,
    /// Time to live, or hop limit.
    pub ttl: u8,
    /// Type of service, or traffic class.
    pub tos: u8,
}

/// Destination of `skb`, into which a [`UdpHead`] was written.
pub fn destination(skb: &Skb) -> Option<Addr> {
    let packet = skb.data().get(usize::from(skb.head().l3)..)?;
    match packet.first()? >> 4 {
        4 => Some(mapped(Ipv4Header::new(packet)?.dst())),
        _ => Some(scoped(Ipv6Header::new(packet)?.dst().to_bits(), skb.head().dev)),
    }
}

/// Source and destination in their form on the wire.
enum Ends {
    V4(u32, u32),
    V6(Ipv6Addr, Ipv6Addr),
}

impl UdpHead {
    #[inline(always)]
    fn ends(&self) -> Ends {
        match unmapped(self.src).zip(unmapped(self.dst)) {
            Some((src, dst)) => Ends::V4(src, dst),
            None => {
                Ends::V6(Ipv6Addr::from_bits(unscoped(self.src)), Ipv6Addr::from_bits(unscoped(self.dst)))
            }
        }
    }

    /// The flow of the datagram, seen from the host that sends it.
    pub fn sent(&self) -> Flow {
        let UdpHead { src, dst, sport, dport, .. } = *self;
        Flow { local: src, remote: dst, lport: sport, rport: dport, protocol: protocol::UDP }
    }

    /// The same, seen from the host that receives it.
    pub fn received(&self) -> Flow {
        let UdpHead { src, dst, sport, dport, .. } = *self;
        Flow { local: dst, remote: src, lport: dport, rport: sport, protocol: protocol::UDP }
    }

    /// The device of the link, if either address is link-local.
    #[inline]
    fn device(&self) -> Option<u16> {
        device(self.dst).or(device(self.src))
    }

    /// Bytes of IP and UDP header.
    #[inline]
    pub fn header_len(&self) -> usize {
        UDP_LEN + if is_v4(self.dst) { MIN_LEN } else { IPV6_LEN }
    }

    /// Most bytes of payload.
    pub fn most(&self) -> usize {
        let most = if is_v4(self.dst) { MAX_PAYLOAD_V4 } else { MAX_PAYLOAD_V6 };
        most - UDP_LEN
    }

    /// Bytes from the IP header on that nearly every path carries in one piece, and every IPv6 path
    /// does. Errors about longer packets may be believed.
    #[inline(always)]
    pub fn least_mtu(&self) -> usize {
        usize::from(if is_v4(self.dst) { MIN_PMTU } else { IPV6_MIN_MTU })
    }

    /// A link header without addresses.
    pub fn no_link(&self) -> [u8; ETH_LEN] {
        let mut link = [0; ETH_LEN];
        link[12..].copy_from_slice(if is_v4(self.dst) { &[0x08, 0x00] } else { &[0x86, 0xdd] });
        link
    }

    /// Writes a datagram into `skb`, which is empty: link header `link`, the headers, `payload`.
    /// `None` (and an skb to be freed) if it does not fit. A datagram with a link-local address is
    /// marked with its device.
    #[inline]
    pub fn write(&self, skb: &mut Skb, link: &[u8; ETH_LEN], payload: &[u8]) -> Option<()> {
        self.begin(skb, link, payload, payload.len())
    }

    /// The same, but of the payload only the first `n` bytes.
    #[inline(always)]
    fn begin(&self, skb: &mut Skb, link: &[u8; ETH_LEN], payload: &[u8], n: usize) -> Option<()> {
        let headers = self.header_len();
        let (packet, udp) = (headers + payload.len(), self.header(payload));
        let data = skb.put(ETH_LEN + headers + n)?;
        let (head, body) = data.split_at_mut_checked(ETH_LEN + headers)?;
        body.copy_from_slice(payload.get(..n)?);
        head[..ETH_LEN].copy_from_slice(link);
        let (head, to_udp) = head[ETH_LEN..].split_at_mut(headers - UDP_LEN);
        to_udp.copy_from_slice(&udp);
        match self.ends() {
            Ends::V4(src, dst) => {
                let mut ip = Ipv4Header::new_mut(head)?;
                // Never fragmented on the way, so the identification need not be unique (RFC 6864
                // section 4.1).
                ip.fill(u16::try_from(packet).ok()?, 0, self.ttl, protocol::UDP, src, dst);
                ip.set_dont_fragment(true);
                ip.set_tos(self.tos);
                ip.renew_check();
            }
            Ends::V6(src, dst) => {
                let mut ip = Ipv6Header::new_mut(head)?;
                ip.fill(u16::try_from(packet - IPV6_LEN).ok()?, protocol::UDP, self.ttl, src, dst);
                // Between version and flow label (RFC 8200 section 3).
                head[0] = 0x60 | self.tos >> 4;
                head[1] = self.tos << 4;
            }
        }
        let head = skb.head_mut();
        (head.l3, head.l4) = (ETH_LEN as u16, (ETH_LEN + headers - UDP_LEN) as u16);
        head.protocol = protocol::UDP;
        head.flags = Flags::ORIGINATED;
        if let Some(dev) = self.device() {
            head.dev = dev;
        }
        Some(())
    }

    /// The datagram in a form that may be fragmented, and its UDP header. `payload` is at most
    /// [`most`](Self::most) bytes long.
    pub fn datagram(&self, payload: &[u8]) -> (Datagram, [u8; UDP_LEN]) {
        let addresses = match self.ends() {
            Ends::V4(src, dst) => Addresses::V4 { src: src.into(), dst: dst.into() },
            Ends::V6(src, dst) => Addresses::V6 { src, dst, dev: self.device().unwrap_or(0) },
        };
        let UdpHead { ttl, tos, .. } = *self;
        let datagram = Datagram { addresses, protocol: protocol::UDP, ttl, tos, id: 0, dont_fragment: false };
        (datagram, self.header(payload))
    }

    /// The [flow hash](crate::steer::flow_hash) of its packets, before there are any.
    pub fn flow_hash(&self) -> u32 {
        let [a, b] = self.sport.to_be_bytes();
        let [c, d] = self.dport.to_be_bytes();
        let (src, dst) = match self.ends() {
            Ends::V4(src, dst) => (Ipv4Addr::from(src).into(), Ipv4Addr::from(dst).into()),
            Ends::V6(src, dst) => (src.into(), dst.into()),
        };
        flow_hash_of(src, dst, [a, b, c, d])
    }

    /// The UDP header of `payload`, with its checksum.
    #[inline]
    fn header(&self, payload: &[u8]) -> [u8; UDP_LEN] {
        let UdpHead { sport, dport, .. } = *self;
        let len = (UDP_LEN + payload.len()) as u16;
        let pseudo = match self.ends() {
            Ends::V4(src, dst) => checksum::pseudo_header_sum(src, dst, protocol::UDP, len),
            Ends::V6(src, dst) => checksum::pseudo_header_sum6(src, dst, protocol::UDP, len),
        };
        let header = checksum::add(checksum::add(sport, dport), len);
        let check = match !checksum::add(checksum::add(pseudo, header), checksum::sum(payload)) {
            // 0 means no checksum (RFC 768).
            0 => 0xffff,
            check => check,
        };
        let mut udp = [0; UDP_LEN];
        for (at, word) in [sport, dport, len, check].into_iter().enumerate() {
            udp[2 * at..2 * at + 2].copy_from_slice(&word.to_be_bytes());
        }
        udp
    }

    /// A datagram for sockets of this stack, in as many frames as it takes. `payload` is at most
    /// [`most`](Self::most) bytes long. `None` if memory ran out.
    pub fn write_chain(&self, store: &mut Store, payload: &[u8]) -> Option<Skb> {
        let mut skb = store.alloc_skb()?;
        let n = skb.tailroom().saturating_sub(ETH_LEN + self.header_len()).min(payload.len());
        let done = self.begin(&mut skb, &self.no_link(), payload, n);
        let done = done.and_then(|()| append(store, &mut skb, payload.get(n..)?));
        if done.is_none() {
            store.free_skb(skb);
            return None;
        }
        Some(skb)
    }
}

/// Appends `data` to a packet, in fresh frames. `None` (and a packet to be freed) if memory ran out.
fn append(store: &mut Store, skb: &mut Skb, data: &[u8]) -> Option<()> {
    let mut data = data;
    while !data.is_empty() {
        let mut more = store.alloc_skb()?;
        let (now, later) = data.split_at(more.tailroom().min(data.len()));
        if let Some(to) = more.put(now.len()) {
            to.copy_from_slice(now);
        }
        if let Err(more) = skb.append(more) {
            store.free_skb(more);
            return None;
        }
        data = later;
    }
    Some(())
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::ip::testing::context;
    use crate::steer::skb_get_hash;

    proptest! {
        /// A socket's first datagram may leave by the slow path, whole or in fragments: its TX queue is chosen as by the fast one.
        #[test]
        fn a_flow_is_hashed_as_its_datagrams_are(
            (src, dst) in any::<(u128, u128)>(),
            v4: bool,
            (sport, dport) in any::<(u16, u16)>(),
            payload in prop::collection::vec(any::<u8>(), 0..40),
        ) {
            let mut ctx = context();
            let [src, dst] = [src, dst].map(|addr| if v4 { mapped(addr as u32) } else { addr | 1 << 125 });
            let head = UdpHead { src, dst, sport, dport, ttl: 64, tos: 0 };
            let mut skb = ctx.alloc_skb().unwrap();
            head.write(&mut skb, &head.no_link(), &payload).unwrap();
            let hash = skb_get_hash(&mut skb);
            ctx.free_skb(skb);
            ctx.drain();
            prop_assert_eq!(head.flow_hash(), hash);
        }
    }
}
