//! Announcements: that softnet's addresses are at a device's MAC address, by gratuitous ARP (RFC 5227 section 2.3) and by
//! unsolicited neighbour advertisements (RFC 4861 section 7.2.6), for neighbours and switches that remember another one.

use super::*;
use crate::ip::v4::arp::{ArpPacket, BROADCAST};
use crate::ip::v6::nd;

/// How often each address is announced (RFC 5227's ANNOUNCE_NUM; RFC 4861 allows three): what is sent as an interface comes
/// up may be lost.
const TIMES: u32 = 2;
/// ns between two times (its ANNOUNCE_INTERVAL).
const INTERVAL: u64 = 2_000_000_000;

/// What is to be announced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Announce {
    /// IPv4 addresses.
    pub arp: bool,
    /// IPv6 addresses.
    pub nd: bool,
}

/// Announcements that are still to be made: when, of which device, what, and how often.
#[derive(Default)]
pub(super) struct Announcements(Vec<(u64, u16, Announce, u32)>);

impl Announcements {
    pub(super) fn next_deadline(&self) -> Option<u64> {
        self.0.iter().map(|(at, ..)| *at).min()
    }

    /// None of device `dev`, for it is gone.
    pub(super) fn forget(&mut self, dev: u16) {
        self.0.retain(|(_, of, ..)| *of != dev);
    }
}

impl SlowPath {
    /// Announces the addresses of device `dev`, now and once more: it was opened, maybe with another MAC address than before.
    pub fn announce(
        &mut self,
        ctx: &mut SoftnetData,
        view: RouteSnapshot<'_>,
        dev: u16,
        what: Announce,
        out: &mut Effects,
    ) {
        self.announcements.forget(dev);
        if what.arp || what.nd {
            self.announcements.0.push((view.now, dev, what, TIMES));
            self.announce_again(ctx, view, out);
        }
    }

    /// Makes the announcements that are due.
    pub(super) fn announce_again(
        &mut self,
        ctx: &mut SoftnetData,
        view: RouteSnapshot<'_>,
        out: &mut Effects,
    ) {
        for (at, dev, what, left) in &mut self.announcements.0 {
            if *at <= view.now {
                send(ctx, view, *dev, *what, out);
                (*at, *left) = (view.now.saturating_add(INTERVAL), *left - 1);
            }
        }
        self.announcements.0.retain(|(.., left)| *left > 0);
    }
}

fn send(ctx: &mut SoftnetData, view: RouteSnapshot<'_>, dev: u16, what: Announce, out: &mut Effects) {
    let Some(iface) = view.iface(dev) else { return };
    let v4 = iface.addresses.iter().filter(|_| what.arp).map(|(own, _)| IpAddr::V4(*own));
    let v6 = iface.addresses6.iter().filter(|_| what.nd).map(|(own, _)| IpAddr::V6(*own));
    for own in v4.chain(v6) {
        ctx.originate();
        let Some(mut skb) = ctx.alloc_skb() else {
            ctx.count_drops(dev, DropReason::NoFrame, 1);
            continue;
        };
        let written = match own {
            IpAddr::V4(own) => ArpPacket::announcement(iface.mac, own).write_frame(&mut skb, BROADCAST),
            IpAddr::V6(own) => nd::write_announcement(&mut skb, iface.mac, own),
        };
        if written.is_none() {
            ctx.free_at(skb, dev, DropReason::PktTooSmall);
            continue;
        }
        let head = skb.head_mut();
        (head.dev, head.flags) = (dev, Flags::ORIGINATED);
        out.send.push((dev, skb));
    }
}
