//! What an open device claims, and how that is changed.
//!
//! Any thread may call it. Invariant: the program says what the last change that succeeded said.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use softnet_core::sock::key::{Addr, addr_of};
use softnet_core::sock::scope::scoped;

use super::attach::Attachment;
use super::claim::{Claim, ClaimFilter};
use super::groups::Groups;
use super::ports::Sharing;
use super::theirs::{Conflict, Theirs};
use crate::netlink::Netlink;
use crate::sys_error::SysResult;

/// The means to change what an open device claims.
pub struct Claims {
    pub(super) mac: [u8; 6],
    pub(super) dev: u16,
    pub(super) ifindex: u32,
    pub(super) attachment: Arc<Attachment>,
    /// Gone, as `sharing` is, when the device is closed.
    pub(super) groups: Weak<Groups>,
    pub(super) sharing: Weak<Sharing>,
    /// What the program says now.
    pub(super) state: Mutex<(Netlink, ClaimFilter)>,
}

impl Claims {
    /// From now on the device claims `claim`, with regard to the addresses that the kernel has now.
    /// No packet is lost meanwhile. Without effect on a device that is closed. If anything changed
    /// by that, returns an address that both have then and do not share, if there is one: it is
    /// softnet's.
    ///
    /// # Errors
    /// What the kernel says; then the program is as it was.
    pub fn replace(&self, claim: &Claim) -> SysResult<Option<Conflict>> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (netlink, filter) = &mut *state;
        let theirs = Theirs::now(netlink, self.ifindex)?;
        let addresses = theirs.addresses();
        let now = ClaimFilter::new(self.mac, self.dev, claim, &addresses).with_longest(filter.longest());
        let shared = shared(claim, &now, self.dev, &addresses);
        if let Some(sharing) = self.sharing.upgrade() {
            sharing.replace(theirs.interfaces(), shared);
        }
        if let Some(groups) = self.groups.upgrade() {
            // Where the kernel has no IPv6 it can't, as the device's mode says.
            let _ = groups.solicit(&now.asked_for(claim));
        }
        if *filter == now {
            return Ok(None);
        }
        self.attachment.replace(&now)?;
        *filter = now;
        let conflict = theirs.conflict(self.mac, &claim.addresses, netlink);
        Ok(conflict.filter(|_| !claim.shared))
    }

    /// The first of `addresses` that the kernel has now, too. `None` also if the kernel can't be
    /// asked.
    pub fn conflict(&self, addresses: &[IpAddr]) -> Option<Conflict> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let netlink = &mut state.0;
        let theirs = Theirs::now(netlink, self.ifindex).ok()?;
        theirs.conflict(self.mac, addresses, netlink)
    }
}

/// The addresses on which ports of softnet's are not to be the kernel's as well. Not the link-local
/// one that both derive from the MAC address, unless it was said that addresses are shared.
pub(super) fn shared(claim: &Claim, filter: &ClaimFilter, dev: u16, kernel: &[IpAddr]) -> Vec<Addr> {
    if !claim.shared {
        return Vec::new();
    }
    let mut own: Vec<IpAddr> = filter.own_ipv6().into_iter().map(IpAddr::V6).collect();
    own.extend(claim.addresses.iter().filter(|addr| addr.is_ipv4()));
    own.iter().filter(|addr| kernel.contains(addr)).map(|addr| scoped(addr_of(*addr), dev)).collect()
}
