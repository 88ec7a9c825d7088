//! Neighbours that claim an address of softnet's own (RFC 5227 section 2.4): they are counted, and told once.
//!
//! softnet keeps its address, as the kernel does: it goes on answering for it. Bounded: anything on the link
//! may claim anything.

use std::net::IpAddr;

use super::SlowPath;
use crate::ip::MacAddr;

/// Addresses whose claims are remembered.
const MAX: usize = 64;
/// ns without a claim after which the next one is told again.
const QUIET: u64 = 60_000_000_000;
/// ns between two that are told of one address, by whatever neighbours.
const PAUSE: u64 = 10_000_000_000;

/// A neighbour on device `dev` says that it has `ip`, which is softnet's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// The device.
    pub dev: u16,
    /// The address.
    pub ip: IpAddr,
    /// The neighbour's MAC address.
    pub mac: MacAddr,
}

/// A claim that is remembered: when it was made last, and when it was told.
struct Claim {
    conflict: Conflict,
    last: u64,
    told: u64,
}

/// What was claimed.
#[derive(Default)]
pub(super) struct Conflicts {
    claims: Vec<Claim>,
    untold: Vec<Conflict>,
    /// One is to be told, and the slow path was not polled since: when it was found.
    found: Option<u64>,
    count: u64,
}

impl Conflicts {
    /// Takes note of a claim at `now`.
    pub(super) fn claim(&mut self, now: u64, conflict: Conflict) {
        self.count += 1;
        let same =
            |claim: &&mut Claim| (claim.conflict.dev, claim.conflict.ip) == (conflict.dev, conflict.ip);
        match self.claims.iter_mut().find(same) {
            Some(claim) => {
                let known = claim.conflict.mac == conflict.mac && now - claim.last < QUIET;
                claim.last = now;
                if known || now - claim.told < PAUSE {
                    return;
                }
                (claim.conflict, claim.told) = (conflict, now);
            }
            None => {
                if self.claims.len() == MAX {
                    let oldest = self.claims.iter().enumerate().min_by_key(|(_, claim)| claim.last);
                    let oldest = oldest.map_or(0, |(at, _)| at);
                    self.claims.swap_remove(oldest);
                }
                self.claims.push(Claim { conflict, last: now, told: now });
            }
        }
        if self.untold.len() < MAX {
            self.untold.push(conflict);
            self.found = Some(now);
        }
    }

    /// When the slow path is to be polled, for the one that tells.
    pub(super) fn next_deadline(&self) -> Option<u64> {
        self.found
    }

    /// It was polled.
    pub(super) fn polled(&mut self) {
        self.found = None;
    }
}

impl SlowPath {
    /// Times that a neighbour claimed an address of softnet's own, duplicates included.
    pub fn address_conflicts(&self) -> u64 {
        self.conflicts.count + self.probes.count
    }

    /// The conflicts that were found since the last call, each once. To be called after
    /// [`poll`](Self::poll).
    pub fn take_conflicts(&mut self) -> Vec<Conflict> {
        std::mem::take(&mut self.conflicts.untold)
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn conflict(host: u8, mac: u8) -> Conflict {
        Conflict { dev: 0, ip: Ipv4Addr::new(10, 0, 0, host).into(), mac: [2, 0, 0, 0, 0, mac] }
    }

    #[test]
    fn each_is_told_once() {
        let mut conflicts = Conflicts::default();
        let mut told = |now: u64, conflict| {
            conflicts.claim(now * SECOND, conflict);
            std::mem::take(&mut conflicts.untold).len()
        };
        assert_eq!([told(0, conflict(1, 1)), told(1, conflict(1, 1)), told(50, conflict(1, 1))], [1, 0, 0]);
        // Another neighbour is news, but two that take turns are not each time.
        assert_eq!([told(51, conflict(1, 2)), told(52, conflict(1, 1)), told(53, conflict(1, 2))], [1, 0, 0]);
        assert_eq!([told(100, conflict(1, 2)), told(161, conflict(1, 2))], [0, 1]);
        // However many are claimed, not all are remembered.
        for host in 0..=255 {
            told(200, conflict(host, 1));
        }
        assert_eq!((conflicts.claims.len(), conflicts.count), (MAX, 8 + 256));
    }
}
