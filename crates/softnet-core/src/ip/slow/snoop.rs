//! Neighbour messages that were not for softnet, heard beside their receiver: how a neighbour that moved is noticed when a
//! device brings only part of what passes its wire.
//!
//! The other entry of the slow path's owner into neighbour discovery, beside [`SlowPath::handle`]. What is heard here is a
//! copy: nothing is answered, forwarded or delivered, and entries are changed by the rules of the neighbour table alone
//! (RFC 826 "packet reception", RFC 5227 section 3, RFC 4861 section 7.2.5): no message makes one.

use std::net::{IpAddr, Ipv6Addr};

use super::{Conflict, Effects, Iface, RouteSnapshot, SlowPath};
use crate::SoftnetData;
use crate::ip::neigh::Heard;
use crate::ip::v4::arp::{self, ArpPacket};
use crate::ip::v6::addr::ALL_NODES;
use crate::ip::v6::header::{Ipv6Header, LEN, next, validate};
use crate::ip::v6::icmp::message_sum;
use crate::ip::v6::nd::{self, Message};
use crate::ip::{ETH_LEN, Family, MacAddr};
use crate::skb::DropReason;

const ARP: [u8; 2] = arp::ETHERTYPE.to_be_bytes();
const IPV6: [u8; 2] = Ipv6Addr::ETHERTYPE.to_be_bytes();

/// What a message says.
enum Said {
    /// A neighbour's address is where. `None`: the MAC address is the one that is known.
    Neighbour(IpAddr, Option<MacAddr>, Heard),
    /// Another host has an address of ours.
    Ours(IpAddr, MacAddr),
}

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
        match said {
            Some(Said::Neighbour(ip, mac, heard)) => {
                if let Some(mac) = mac.or_else(|| self.neigh.mac(dev, ip)) {
                    self.call(ctx, view, out, |call| call.hear(dev, ip, mac, heard));
                }
            }
            Some(Said::Ours(ip, mac)) => {
                let conflict = Conflict { dev, ip, mac };
                if !self.probes.claim(view.now, conflict) {
                    self.conflicts.claim(view.now, conflict);
                }
            }
            None => {}
        }
        Ok(())
    }
}

fn said_by_arp(iface: &Iface, packet: &[u8], to_us: bool) -> Result<Option<Said>, DropReason> {
    let packet = ArpPacket::parse(packet)?;
    let sender = packet.sender_ip;
    if iface.owns(sender) {
        let other = packet.sender_mac != iface.mac;
        return Ok(other.then_some(Said::Ours(sender.into(), packet.sender_mac)));
    }
    let heard = match Heard::from_arp(&packet, iface.owns(packet.target_ip), to_us) {
        // Only the receiver of a question is about to be talked to.
        Some(Heard::Request) => Some(Heard::Other),
        heard => heard,
    };
    let on_link = iface.on_link(sender);
    Ok(heard
        .filter(|heard| on_link || *heard == Heard::Reply)
        .map(|heard| Said::Neighbour(sender.into(), Some(packet.sender_mac), heard)))
}

/// Advertisements to all nodes, and to an address of ours, where both softnet and the kernel asked from.
fn said_by_advertisement(iface: &Iface, packet: &[u8]) -> Result<Option<Said>, DropReason> {
    let total = validate(packet)?;
    let Some(header) = Ipv6Header::new(packet) else { return Ok(None) };
    let (src, dst) = (header.src(), header.dst());
    let message = packet.get(LEN..total).unwrap_or_default();
    let advertised = header.next_header() == next::ICMPV6 && message.first() == Some(&nd::ADVERTISEMENT);
    if !advertised || !(dst == ALL_NODES || iface.owns6(dst)) {
        return Ok(None);
    }
    if message_sum(message, src, dst) != 0xffff {
        return Err(DropReason::IcmpCsum);
    }
    match nd::parse(message, header.hop_limit(), src, dst)? {
        Message::Advertisement { target, mac, .. } if iface.owns6(target) => {
            let other = mac.filter(|mac| *mac != iface.mac);
            Ok(other.map(|mac| Said::Ours(target.into(), mac)))
        }
        Message::Advertisement { target, mac, solicited, overrides } if !iface.owns6(src) => {
            Ok(Some(Said::Neighbour(target.into(), mac, Heard::Advert { solicited, overrides })))
        }
        _ => Ok(None),
    }
}
