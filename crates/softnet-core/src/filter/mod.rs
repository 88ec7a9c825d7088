//! Filter rules: which packets pass the slots `input`, `forward` and `output`, and which are dropped
//! or rejected.
//!
//! [`Rules`] are what is configured: a list, of which the first rule that matches decides, and a
//! policy for each of the three hooks. A [`Filter`] is the hook that goes by them. What a rule asks
//! of a packet is compiled into sets of rules: for each value of a field (a device, a protocol, a
//! class of addresses or ports, a state) one bit for each rule that does not object to it. A packet
//! is matched by all rules at once, by the intersection of its fields' sets, the lowest bit of which
//! is the rule; so what a packet costs grows with the words of a set, 64 rules in each, and not with
//! the prefixes of address sets, which lie in the structures that routes are found by.
//!
//! **States** are those of [`conntrack`](crate::conntrack). Where rules ask for them, the filter
//! stands in `prerouting`, too, behind [`nat`](crate::nat): there it looks up what that left. What
//! passes the rules opens a connection; of IPv4 behind NAT in `postrouting`, if NAT has opened none.
//! An IPv6 packet that NAT64 made has the connection that it had as IPv4. What NAT looked up, its
//! state costs a load. If the first rule that may match a state asks for nothing but that, and
//! devices, packets of the state are not looked at any further.
//!
//! **Fragments** of what came are [gathered](crate::ip::hooks::HookContext::gather) where rules ask
//! for states, so that these see datagrams. Elsewhere, and in `output`, all but the first have no
//! ports, ICMP type or TCP flags: rules that ask for one do not match them (as with nftables where
//! nothing reassembles), and neither do rules that ask for a state. A packet whose L4 header is cut
//! off, or might be overwritten by a later fragment (RFC 1858, RFC 3128), is dropped at every hook
//! with rules. `input` sees whole datagrams in any case.
//!
//! Neighbour discovery to softnet passes `input` whatever the rules say: it keeps the link going, as
//! what softnet sends of it does, which passes no hook.
//!
//! Called by any thread with a context. Invariant: a packet is counted for one rule, or one policy,
//! at each hook that it passes.

mod addresses;
mod facts;
mod hook;
mod rule;
mod table;
#[cfg(all(test, not(feature = "loom")))]
mod tests;
mod track;

#[cfg(any(test, fuzzing))]
pub use facts::fuzz;
pub use hook::Filter;
pub use rule::{Action, Addresses, Chain, FlowState, Rule, Rules};

/// Rules that there can be.
pub const MAX_RULES: usize = 1024;

/// Numbers that are counted under: those of rules, then one for each policy.
pub const NUMBERS: usize = MAX_RULES + Chain::ALL.len();
