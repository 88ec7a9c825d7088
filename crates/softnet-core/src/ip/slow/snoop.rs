//! Neighbour messages that were not for softnet, heard beside their receiver: how a neighbour that moved is noticed when a
//! device brings only part of what passes its wire.
//!
//! The other entry of the slow path's owner into neighbour discovery, beside [`SlowPath::handle`]. What is heard here is a
//! copy: nothing is answered, forwarded or delivered, and entries are changed by the rules of the neighbour table alone
//! (RFC 826 "packet reception", RFC 5227 section 3, RFC 4861 section 7.2.5): no message makes one.

use std::net::IpAddr;

use super::super::neigh::Heard;
use super::super::v4::arp::{self, ArpPacket};
use super::super::v6::addr::ALL_NODES;
use super::super::v6::header::{Ipv6Header, next, validate};
use super::super::v6::icmp::message_sum;
use super::super::v6::nd::{self, Message};
use super::super::{ETH_LEN, MacAddr};
use super::{Effects, Iface, RouteSnapshot, SlowPath};
use crate::SoftnetData;
use crate::skb::DropReason;

const ARP: [u8; 2] = arp::ETHERTYPE.to_be_bytes();
const IPV6: [u8; 2] = [0x86, 0xdd];
/// Bytes of an IPv6 header.
const IPV6_LEN: usize = 40;

/// What a message says: whose address is where. `None`: the MAC address is the one that is known.
type Said = (IpAddr, Option<MacAddr>, Heard);

impl SlowPath {
    /// Takes note of the neighbour message in `frame`, a copy of one that passed by on device `dev`. A frame that is none says
    /// nothing.
    ///
    /// # Errors
    /// The message is malformed.
    pub fn overhear(
        &mut self,
        ctx: &mut SoftnetData,
        view: RouteSnapshot<'_>,
        (dev, frame): (u16, &[u8]),
        out: &mut Effects,
    ) -> Result<(), DropReason> {
        let (Some(iface), Some((header, packet))) = (view.iface(dev), frame.split_first_chunk::<ETH_LEN>())
        else {
            return Ok(());
        };
        let said = match [header[12], header[13]] {
            ARP => said_by_arp(iface, packet, header.starts_with(&iface.mac))?,
            IPV6 => said_by_advertisement(iface, packet)?,
            _ => None,
        };
        if let Some((ip, mac, heard)) = said
            && let Some(mac) = mac.or_else(|| self.neigh.mac(dev, ip))
        {
            self.neigh.input(view.now, dev, ip, mac, heard, &mut self.actions);
            self.act(ctx, view, out);
        }
        Ok(())
    }
}

fn said_by_arp(iface: &Iface, packet: &[u8], to_us: bool) -> Result<Option<Said>, DropReason> {
    let packet = ArpPacket::parse(packet)?;
    let sender = packet.sender_ip;
    let heard = match Heard::from_arp(&packet, iface.owns(packet.target_ip), to_us) {
        // Only the receiver of a question is about to be talked to.
        Some(Heard::Request) => Some(Heard::Other),
        heard => heard,
    };
    let on_link = iface.addresses.iter().any(|(_, net)| net.contains(sender));
    Ok(heard
        .filter(|heard| !iface.owns(sender) && (on_link || *heard == Heard::Reply))
        .map(|heard| (sender.into(), Some(packet.sender_mac), heard)))
}

/// Advertisements to all nodes, and to an address of ours, where both softnet and the kernel asked from.
fn said_by_advertisement(iface: &Iface, packet: &[u8]) -> Result<Option<Said>, DropReason> {
    let total = validate(packet)?;
    let Some(header) = Ipv6Header::new(packet) else { return Ok(None) };
    let (src, dst) = (header.src(), header.dst());
    let message = packet.get(IPV6_LEN..total).unwrap_or_default();
    let advertised = header.next_header() == next::ICMPV6 && message.first() == Some(&nd::ADVERTISEMENT);
    if !advertised || !(dst == ALL_NODES || iface.owns6(dst)) || iface.owns6(src) {
        return Ok(None);
    }
    if message_sum(message, src, dst) != 0xffff {
        return Err(DropReason::IcmpCsum);
    }
    match nd::parse(message, header.hop_limit(), src, dst)? {
        Message::Advertisement { target, mac, solicited, overrides } if !iface.owns6(target) => {
            Ok(Some((target.into(), mac, Heard::Advert { solicited, overrides })))
        }
        _ => Ok(None),
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use proptest::prelude::*;

    use super::super::super::neigh::NeighState;
    use super::super::super::v4::arp::BROADCAST;
    use super::super::world::*;
    use super::*;

    const MOVED: MacAddr = [2, 0, 0, 0, 0, 0x77];

    impl World {
        fn overhear(&mut self, dev: u16, frame: &[u8]) -> (Sent, Result<(), DropReason>) {
            let mut out = Effects::default();
            let view = RouteSnapshot { now: self.now, tables: &self.tables, ifaces: &self.ifaces };
            let result = self.slow.overhear(&mut self.ctx, view, (dev, frame), &mut out);
            (self.carry_out(out), result)
        }
    }

    #[test]
    fn a_neighbour_that_moved_is_where_it_says() {
        let gratuitous = ArpPacket::announcement(MOVED, CLIENT);
        // Between strangers it says so, too.
        let other = ArpPacket::request(MOVED, CLIENT, "10.0.0.77".parse().unwrap());
        for said in [gratuitous, gratuitous.reply(MOVED), other] {
            let mut world = World::acquainted();
            world.pass(2 * SECOND);
            assert_eq!(world.overhear(0, &arp(BROADCAST, said)), (vec![], Ok(())));
            assert_eq!(world.state(CLIENT), NeighState::Stale);
            let to_it = udp(1, SERVER, CLIENT, 9, 10);
            let sent = world.one(1, to_it.clone());
            assert_eq!(sent.len(), 1);
            assert_forwarded(&sent[0], &to_it, 0, MOVED);
        }
    }

    #[test]
    fn what_is_overheard_makes_no_entry_and_no_answer() {
        let mut world = World::acquainted();
        let unknown = "10.0.0.78".parse().unwrap();
        let mine = ArpPacket::announcement(MOVED, OWN[0]);
        let asked = ArpPacket::request(MOVED, unknown, OWN[0]);
        for said in [ArpPacket::announcement(MOVED, unknown), mine, asked] {
            assert_eq!(world.overhear(0, &arp(BROADCAST, said)), (vec![], Ok(())));
        }
        assert_eq!((world.state(unknown), world.state(OWN[0])), (NeighState::None, NeighState::None));
        // On the other link nobody has this address.
        let moved = arp(BROADCAST, ArpPacket::announcement(MOVED, CLIENT));
        assert_eq!(world.overhear(1, &moved), (vec![], Ok(())));
        assert_eq!(world.state(CLIENT), NeighState::Reachable);
        let malformed = set(moved, ETH_LEN + 8, &[1]);
        assert_eq!(world.overhear(0, &malformed).1, Err(DropReason::ArpMalformed));
    }

    proptest! {
        #[test]
        fn survives_anything(mut frame in prop::collection::vec(any::<u8>(), 0..120), family in 0u8..3) {
            if frame.len() > 14 && family < 2 {
                frame[12..14].copy_from_slice(&[ARP, IPV6][usize::from(family)]);
            }
            let mut world = World::new();
            prop_assert!(world.overhear(0, &frame).0.is_empty());
        }
    }
}
