//! ARP: what neighbours say and ask.

use super::{Call, Conflict, Refused, packet};
use crate::ip::neigh::Heard;
use crate::ip::v4::arp::{ArpPacket, Operation};
use crate::skb::{DropReason, Skb};

impl Call<'_> {
    /// An ARP packet.
    pub(super) fn arp(&mut self, mut skb: Skb) -> Result<(), Refused> {
        let dev = skb.head().dev;
        let Some(iface) = self.view.iface(dev) else { return Err((skb, DropReason::DevReady)) };
        let to_us = skb.data().starts_with(&iface.mac);
        let packet = match ArpPacket::parse(packet(&skb)) {
            Ok(packet) => packet,
            Err(reason) => return Err((skb, reason)),
        };
        let other = packet.sender_mac != iface.mac;
        if other && self.is_duplicate(dev, packet.sender_ip.into(), packet.sender_mac) {
            self.ctx.deliver(skb);
            return Ok(());
        }
        let ours = iface.owns(packet.target_ip);
        if iface.owns(packet.sender_ip) && packet.sender_mac != iface.mac {
            let conflict = Conflict { dev, ip: packet.sender_ip.into(), mac: packet.sender_mac };
            self.slow.conflicts.claim(self.view.now, conflict);
        }
        if let Some(heard) = Heard::from_arp(&packet, ours, to_us)
            && !iface.owns(packet.sender_ip)
            // A stranger may answer what we asked, for a route may lead straight out of a device; no more than that.
            && (iface.on_link(packet.sender_ip) || heard == Heard::Reply)
        {
            self.hear(dev, packet.sender_ip.into(), packet.sender_mac, heard);
        } else if !ours {
            return Err((skb, DropReason::ArpIgnored));
        }
        if ours && packet.operation == Operation::Request {
            if packet.reply(iface.mac).write_frame(&mut skb, packet.sender_mac).is_none() {
                return Err((skb, DropReason::PktTooSmall));
            }
            skb.head_mut().turn_around();
            self.ctx.turn_around();
            self.out.send.push((dev, skb));
        } else {
            self.ctx.deliver(skb);
        }
        Ok(())
    }
}
