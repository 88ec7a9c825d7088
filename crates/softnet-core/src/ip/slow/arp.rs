//! ARP: what neighbours say and ask, and what is asked of them.

use super::*;
use crate::ip::v4::arp::{ArpPacket, BROADCAST, Operation};

impl SlowPath {
    /// An ARP packet.
    pub(super) fn arp(
        &mut self,
        ctx: &mut SoftnetData,
        view: RouteSnapshot<'_>,
        mut skb: Skb,
        out: &mut Effects,
    ) -> Result<(), (Skb, DropReason)> {
        let dev = skb.head().dev;
        let Some(iface) = view.iface(dev) else { return Err((skb, DropReason::DevReady)) };
        let to_us = skb.data().starts_with(&iface.mac);
        let packet = match ArpPacket::parse(skb.data().get(ETH_LEN..).unwrap_or_default()) {
            Ok(packet) => packet,
            Err(reason) => return Err((skb, reason)),
        };
        let ours = iface.owns(packet.target_ip);
        let on_link = iface.addresses.iter().any(|(_, net)| net.contains(packet.sender_ip));
        if let Some(heard) = Heard::from_arp(&packet, ours, to_us)
            && !iface.owns(packet.sender_ip)
            // A stranger may answer what we asked, for a route may lead straight out of a device; no more than that.
            && (on_link || heard == Heard::Reply)
        {
            let (ip, mac) = (packet.sender_ip, packet.sender_mac);
            self.neigh.input(view.now, dev, ip.into(), mac, heard, &mut self.actions);
        } else if !ours {
            return Err((skb, DropReason::ArpIgnored));
        }
        if ours && packet.operation == Operation::Request {
            if packet.reply(iface.mac).write_frame(&mut skb, packet.sender_mac).is_none() {
                return Err((skb, DropReason::PktTooSmall));
            }
            let head = skb.head_mut();
            (head.flags, head.tc_depth) = (Flags::ORIGINATED, 0);
            ctx.turn_around();
            out.send.push((dev, skb));
        } else {
            ctx.deliver(skb);
        }
        Ok(())
    }
}

/// Asks for `target`, see [`Action::Solicit`].
pub(super) fn send_arp(
    ctx: &mut SoftnetData,
    view: RouteSnapshot<'_>,
    dev: u16,
    target: Ipv4Addr,
    unicast_to: Option<MacAddr>,
    out: &mut Effects,
) {
    let Some((iface, source)) = view.iface(dev).and_then(|i| Some((i, i.source_for(target)?))) else {
        return;
    };
    ctx.originate();
    let Some(mut skb) = ctx.alloc_skb() else {
        return ctx.count_drops(dev, DropReason::NoFrame, 1);
    };
    let request = ArpPacket::request(iface.mac, source, target);
    if request.write_frame(&mut skb, unicast_to.unwrap_or(BROADCAST)).is_none() {
        return ctx.free_at(skb, dev, DropReason::PktTooSmall);
    }
    let head = skb.head_mut();
    head.dev = dev;
    head.flags = Flags::ORIGINATED | Flags::HELD;
    out.send.push((dev, skb));
}
