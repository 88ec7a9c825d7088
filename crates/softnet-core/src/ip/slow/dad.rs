//! Duplicate address detection: whether another station has an address that softnet is given (RFC
//! 5227 section 2.1 for IPv4, RFC 4862 section 5.4 for IPv6).
//!
//! The address is used meanwhile, as the kernel does with IPv4, and with IPv6 where that is
//! optimistic (RFC 4429): a router that waits for seconds after each start is the greater evil.
//! Until then it announces nothing, so that neighbours which know the other station go on knowing
//! it, and its advertisements override nothing. One that would like to have an IPv4 address is answered, as it is
//! used already (RFC 5227 section 2.4). A duplicate is told to the owner of the configuration, which
//! takes the address away. Bounded: by the addresses that there are.

use std::net::{IpAddr, Ipv6Addr};

use super::{Call, Conflict, Effects, RouteSnapshot, SlowPath};
use crate::SoftnetData;
use crate::ip::MacAddr;
use crate::ip::v4::arp::{ArpPacket, BROADCAST};
use crate::ip::v6::addr::link_local;
use crate::ip::v6::nd;

/// How often an IPv4 address is asked for (RFC 5227's PROBE_NUM), and ns between two times (its PROBE_MIN).
const PROBES: u32 = 3;
const INTERVAL: u64 = 1_000_000_000;
/// ns after the last time until it is taken for unique: its ANNOUNCE_WAIT, and RFC 4861's RETRANS_TIMER.
const WAIT4: u64 = 2_000_000_000;
const WAIT6: u64 = 1_000_000_000;
/// ns that the first announcement of addresses waits that are asked for: stations answer within milliseconds.
pub(super) const HOLD4: u64 = 200_000_000;
/// Those of IPv6 wait for the end (RFC 4429 section 3.3).
pub(super) const HOLD6: u64 = WAIT6 + 100_000_000;

/// An address that is asked for.
struct Probe {
    dev: u16,
    ip: IpAddr,
    /// How often it is asked for yet.
    left: u32,
    /// When the next step is due.
    at: u64,
}

/// Addresses that are asked for, and those of which a duplicate was found.
#[derive(Default)]
pub(super) struct Probes {
    all: Vec<Probe>,
    found: Vec<Conflict>,
    /// One was found, and the slow path was not polled since: when.
    due: Option<u64>,
    pub(super) count: u64,
}

impl Probes {
    /// Whether anything is asked for on device `dev`.
    pub(super) fn any(&self, dev: u16) -> bool {
        self.all.iter().any(|probe| probe.dev == dev)
    }

    /// Whether `ip` may be another's still.
    pub(super) fn is_tentative(&self, dev: u16, ip: IpAddr) -> bool {
        self.all.iter().any(|probe| (probe.dev, probe.ip) == (dev, ip))
    }

    /// A station on device `dev` at `mac` says at `now` that it has `ip`, or would like to. Whether
    /// that is a duplicate of an address that is asked for.
    pub(super) fn claim(&mut self, now: u64, conflict: Conflict) -> bool {
        let asked = |probe: &Probe| (probe.dev, probe.ip) == (conflict.dev, conflict.ip);
        let Some(at) = self.all.iter().position(asked) else { return false };
        self.all.swap_remove(at);
        self.found.push(conflict);
        self.count += 1;
        self.due = Some(now);
        true
    }

    /// None of device `dev` any more, for it is gone.
    pub(super) fn forget(&mut self, dev: u16) {
        self.all.retain(|probe| probe.dev != dev);
    }

    pub(super) fn next_deadline(&self) -> Option<u64> {
        self.all.iter().map(|probe| probe.at).chain(self.due).min()
    }
}

impl SlowPath {
    /// Asks on the link of device `dev`, which has the addresses `ips` from now on, whether others
    /// have them. If it had none of IPv6 before, the link-local one that follows from its MAC address
    /// is asked for, too. To be called before they are [announced](Self::announce).
    pub fn detect_duplicates(
        &mut self,
        ctx: &mut SoftnetData,
        view: RouteSnapshot<'_>,
        (dev, ips): (u16, &[IpAddr]),
        out: &mut Effects,
    ) {
        let derived = view.iface(dev).and_then(|iface| {
            let derived = link_local(iface.mac);
            let mut others = iface.addresses6.iter().filter(|(own, _)| *own != derived).peekable();
            let first = others.peek().is_some() && others.all(|(own, _)| ips.contains(&(*own).into()));
            (first && iface.owns6(derived) && !ips.contains(&derived.into())).then_some(derived)
        });
        let ips = || ips.iter().copied().chain(derived.map(IpAddr::V6));
        self.probes.all.retain(|probe| probe.dev != dev || ips().all(|ip| ip != probe.ip));
        for ip in ips() {
            let left = if ip.is_ipv4() { PROBES } else { 1 };
            self.probes.all.push(Probe { dev, ip, left, at: view.now });
        }
        self.call(ctx, view, out, |call| call.probe_again());
    }

    /// Those that were found since the last call. To be called after [`poll`](Self::poll).
    pub fn take_duplicates(&mut self) -> Vec<Conflict> {
        std::mem::take(&mut self.probes.found)
    }
}

impl Call<'_> {
    /// Asks for addresses that are due.
    pub(super) fn probe_again(&mut self) {
        let now = self.view.now;
        let mut all = std::mem::take(&mut self.slow.probes.all);
        // One that was taken away meanwhile is not asked for any more; nor one whose time is over.
        all.retain(|probe| {
            let owned = self.view.iface(probe.dev).is_some_and(|iface| match probe.ip {
                IpAddr::V4(ip) => iface.owns(ip),
                IpAddr::V6(ip) => iface.owns6(ip),
            });
            owned && (probe.at > now || probe.left > 0)
        });
        for probe in all.iter_mut().filter(|probe| probe.at <= now) {
            self.probe(probe.dev, probe.ip);
            probe.left -= 1;
            probe.at = now.saturating_add(match (probe.left, probe.ip) {
                (0, IpAddr::V4(_)) => WAIT4,
                (0, IpAddr::V6(_)) => WAIT6,
                _ => INTERVAL,
            });
        }
        self.slow.probes.all = all;
        self.slow.probes.due = None;
    }

    fn probe(&mut self, dev: u16, ip: IpAddr) {
        let Some(iface) = self.view.iface(dev) else { return };
        let mac = iface.mac;
        self.send_made(dev, 0, |skb| match ip {
            IpAddr::V4(ip) => ArpPacket::probe(mac, ip).write_frame(skb, BROADCAST),
            IpAddr::V6(ip) => nd::write_solicitation(skb, mac, Ipv6Addr::UNSPECIFIED, ip, None),
        });
    }

    /// A station at `mac` on device `dev` speaks as the one that has `ip`, or (IPv6) asks whether it may.
    /// Whether softnet asked the same: then it does not have the address, and answers nothing.
    pub(super) fn is_duplicate(&mut self, dev: u16, ip: IpAddr, mac: MacAddr) -> bool {
        self.slow.probes.claim(self.view.now, Conflict { dev, ip, mac })
    }
}
