//! Steering: which flow a packet is of, and what follows from that.
//!
//! * [`flow_hash`] is the hash of a frame's flow, [`skb_get_hash`] the same of an skb, computed once for each packet,
//!   and [`skb_get_hashes`] that of a batch's; [`scale`] turns it into one of `n` choices. Its key is
//!   the runtime's secret ([`set_flow_hkey`]).
//! * [`pick_tx`] chooses the TX queue that a packet leaves by, with the maps of its device ([`XpsMaps`]); a sender
//!   keeps to its choice by a [`TxSticky`], and the packet says it by a [`TxChoice`].
//! * A [`Backlog`] is where a worker's steered packets wait; [`FlowLimit`] says which of them it would rather not have.
//! * [`Steering`] is what an RX queue does with a batch, by its [`Plan`]: whole lists to one
//!   worker, flows spread over several (RPS), or flows after their consumers (RFS), by the
//!   [`SockFlowTable`], which [`nearest`] makes workers known to. Where filters of a device can
//!   do the same, it says for which flows ([`Ask`]).
//! * A [`Policy`](policy::Policy) chooses the plan, where none was set.
//! * An [`RxClass`] is which RX queue a frame goes to that arrives at a device with software behind
//!   it: by filters ([`Rule`], or of one flow by its [`FlowKey`]), else by RSS ([`Rss`]), in the words
//!   of `ethtool`. A [`Revision`] says when no sender goes by what was set before.
//!
//! Any thread may call them, on data that does not change or is its own. Invariant: the packets of a flow have one
//! hash, and so have the fragments of a datagram: what is chosen by it keeps them in order.

mod backlog;
mod choice;
mod class;
mod flow;
mod flow_key;
mod flow_limit;
#[cfg(all(test, feature = "loom"))]
mod hold_models;
mod key;
#[cfg(all(test, feature = "loom"))]
mod models;
mod nearest;
mod ntuple;
pub mod policy;
mod revision;
pub mod rfs;
mod rss;
mod steering;
mod sticky;
mod toeplitz;
mod words;
mod xps;

pub use backlog::{Backlog, BacklogQueue, Gone, Pushed};
pub use choice::TxChoice;
pub use class::{RuleError, RxClass, Verdict};
pub use flow::{flow_hash, flow_hash_of, skb_get_hash, skb_get_hashes};
pub use flow_key::FlowKey;
pub use flow_limit::{FlowLimit, HISTORY};
pub use key::{KeyError, RssHash, Xfrm};
pub use nearest::nearest;
pub use ntuple::{FLOW_LOCATIONS, FlowType, LOCATIONS, Part, Rule, RuleAction, RuleOrder};
pub use revision::{Follower, Revision};
pub use rfs::SockFlowTable;
pub use rss::{ContextChoice, FlowKind, Rss, RssChange, RssError, Spread, format_key};
pub use steering::{Ask, Lists, Plan, Steering, Workers};
pub use sticky::TxSticky;
pub use toeplitz::{KEY_LEN, PUBLISHED_HKEY, flow_hkey, set_flow_hkey};
pub use words::WordError;
pub use xps::{Hint, MAX_CPUS, XpsError, XpsMaps, pick_tx};

/// One of `n` choices, `0..n`, by `hash`: equal shares by its high bits (the kernel's `reciprocal_scale`). 0 if `n`
/// is.
#[inline(always)]
pub fn scale(hash: u32, n: usize) -> usize {
    ((u128::from(hash) * n as u128) >> 32) as usize
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn scale_takes_the_high_bits() {
        assert_eq!(
            [0, 0x3fff_ffff, 0x4000_0000, 0x8000_0000, u32::MAX].map(|h| scale(h, 4)),
            [0, 0, 1, 2, 3]
        );
        assert_eq!((scale(u32::MAX, 0), scale(u32::MAX, 1)), (0, 0));
    }

    proptest! {
        #[test]
        fn scale_stays_in_range(hash: u32, n in 1..=usize::MAX) {
            prop_assert!(scale(hash, n) < n);
        }
    }
}
