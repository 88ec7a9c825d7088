//! Neighbours by way of which routes lead: they count towards no limit, and no scan evicts them.

use std::net::IpAddr;

use super::{Key, NeighTable};

impl NeighTable {
    /// Routes lead by way of `gateways`, each known by device and address: their entries, which are still to come, count
    /// towards no limit, and stay.
    pub fn set_gateways(&mut self, gateways: impl IntoIterator<Item = (u16, IpAddr)>) {
        debug_assert!(self.entries.is_empty());
        self.gateways = gateways.into_iter().collect();
    }

    /// Routes lead by way of these, too: the entries that there are count no more, and stay.
    pub fn add_gateways(&mut self, gateways: impl IntoIterator<Item = (u16, IpAddr)>) {
        for key in gateways {
            self.gateways.insert(key);
            self.mark_gateway(key, true);
        }
    }

    fn mark_gateway(&mut self, key: Key, gateway: bool) {
        let Some(entry) = self.entries.get_mut(&key).filter(|entry| entry.gateway != gateway) else { return };
        let before = entry.counts_as();
        entry.gateway = gateway;
        self.timers.gc.change(key, before, entry.counts_as());
    }

    /// No route leads by way of these any more: their entries count as any others, and
    /// go as those do when others are to come.
    pub fn remove_gateways(&mut self, gateways: &[(u16, IpAddr)]) {
        for key in gateways {
            self.gateways.remove(key);
            self.mark_gateway(*key, false);
        }
    }
}
