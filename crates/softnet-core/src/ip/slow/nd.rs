//! Neighbour discovery (RFC 4861): what neighbours say and ask.

use std::net::{IpAddr, Ipv6Addr};

use super::{Call, Conflict, Refused};
use crate::ip::neigh::Heard;
use crate::ip::v6::nd::{self, Message};
use crate::ip::{MacAddr, is_group};
use crate::skb::{DropReason, Skb};

impl Call<'_> {
    /// A message of neighbour discovery from `src`, which is sound.
    pub(super) fn neighbour_discovery(
        &mut self,
        mut skb: Skb,
        message: Message,
        src: Ipv6Addr,
    ) -> Result<(), Refused> {
        let dev = skb.head().dev;
        let Some(iface) = self.view.iface(dev) else { return Err((skb, DropReason::DevReady)) };
        let ignored = DropReason::NdiscIgnored;
        // The frame says where it is from, too.
        let from: MacAddr = std::array::from_fn(|i| skb.data().get(6 + i).copied().unwrap_or(0));
        let claimed = match message {
            Message::Advertisement { target, mac, .. } => Some((target, mac.unwrap_or(from))),
            // It asks whether it may have the address.
            Message::Solicitation { target, .. } => src.is_unspecified().then_some((target, from)),
        };
        if let Some((target, mac)) = claimed.filter(|(_, mac)| *mac != iface.mac)
            && self.is_duplicate(dev, target.into(), mac)
        {
            self.ctx.deliver(skb);
            return Ok(());
        }
        match message {
            Message::Advertisement { target, mac, solicited, overrides } => {
                if let Some(mac) = mac.filter(|mac| iface.owns6(target) && *mac != iface.mac) {
                    let conflict = Conflict { dev, ip: target.into(), mac };
                    self.slow.conflicts.claim(self.view.now, conflict);
                }
                // Without an address it confirms the one that is known (RFC 4861 section 7.2.5).
                let Some(mac) = mac.or_else(|| self.slow.neigh.mac(dev, target.into())) else {
                    return Err((skb, ignored));
                };
                if iface.owns6(target) {
                    return Err((skb, ignored));
                }
                self.hear(dev, target.into(), mac, Heard::Advert { solicited, overrides });
                self.ctx.deliver(skb);
            }
            Message::Solicitation { target, mac } => {
                let source = match iface.owns6(target) {
                    true => Some(target),
                    false => iface.source_for6(src).filter(|_| iface.is_anycast6(target)),
                };
                let Some(source) = source else { return Err((skb, ignored)) };
                if let Some(mac) = mac.filter(|_| iface.on_link6(src)) {
                    self.hear(dev, src.into(), mac, Heard::Request);
                }
                // The answer must not wait for a question.
                let to = mac.unwrap_or(from);
                // While it may be another's the answer overrides nothing (RFC 4429 section 3.3),
                // nor does that of one that others have, too (section 7.2.7).
                let overrides = source == target && !self.slow.probes.is_tentative(dev, target.into());
                let says = (source, target, overrides);
                if is_group(&to) || nd::write_advertisement(&mut skb, iface.mac, says, (src, to)).is_none() {
                    return Err((skb, ignored));
                }
                skb.head_mut().turn_around();
                self.ctx.turn_around();
                self.out.send.push((dev, skb));
            }
        }
        Ok(())
    }

    /// Tells the neighbour table what a neighbour said of itself.
    pub(super) fn hear(&mut self, dev: u16, ip: IpAddr, mac: MacAddr, heard: Heard) {
        self.slow.neigh.input(self.view.now, dev, ip, mac, heard, &mut self.slow.actions);
    }
}
