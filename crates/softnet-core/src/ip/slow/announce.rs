//! Announcements: that softnet's addresses are at a device's MAC address, by gratuitous ARP (RFC 5227 section 2.3) and by
//! unsolicited neighbour advertisements (RFC 4861 section 7.2.6), for neighbours and switches that remember another one.

use std::net::{Ipv4Addr, Ipv6Addr};

use super::dad::{HOLD4, HOLD6};
use super::family::SlowFamily;
use super::{Call, Effects, RouteSnapshot, SlowPath};
use crate::SoftnetData;

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
    /// Announces the addresses of device `dev`, now and once more: it was opened, maybe with
    /// another MAC address than before. Those of addresses whose
    /// [duplicates](Self::detect_duplicates) are looked for wait for objections.
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
            // Of addresses that are asked for, see `dad`, others are not told before they could object.
            let hold = self.probes.any(dev);
            let holds = if hold { [HOLD4, HOLD6] } else { [0, 0] };
            for (kinds, hold) in
                [Announce { nd: false, ..what }, Announce { arp: false, ..what }].into_iter().zip(holds)
            {
                if kinds.arp || kinds.nd {
                    self.announcements.0.push((view.now.saturating_add(hold), dev, kinds, TIMES));
                }
            }
            self.call(ctx, view, out, |call| call.announce_again());
        }
    }
}

impl Call<'_> {
    /// Makes the announcements that are due.
    pub(super) fn announce_again(&mut self) {
        let mut all = std::mem::take(&mut self.slow.announcements.0);
        for (at, dev, what, left) in &mut all {
            if *at <= self.view.now {
                if what.arp {
                    self.announce::<Ipv4Addr>(*dev);
                }
                if what.nd {
                    self.announce::<Ipv6Addr>(*dev);
                }
                (*at, *left) = (self.view.now.saturating_add(INTERVAL), *left - 1);
            }
        }
        all.retain(|(.., left)| *left > 0);
        self.slow.announcements.0 = all;
    }

    fn announce<F: SlowFamily>(&mut self, dev: u16) {
        let Some(iface) = self.view.iface(dev) else { return };
        for (own, _) in F::addresses(iface) {
            self.send_made(dev, 0, |skb| F::write_announcement(skb, iface.mac, *own));
        }
    }
}
