//! Connections and NAT of a stack that starts: the hooks by its configuration, and what outlives them.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use softnet_core::conntrack::Conntrack;
use softnet_core::fold::FoldKey;
use softnet_core::ip::tables::Tables;
use softnet_core::nat::{Nat, NatState, TooManyAddresses};
use softnet_dev::hugepage::HugePages;

use crate::config::Config;

fn secret<const N: usize>() -> [u64; N] {
    std::array::from_fn(|_| RandomState::new().hash_one(std::process::id()))
}

/// The table of connections, if `config` has them tracked: for NAT, and for rules that ask for
/// states, for which those of IPv6 are tracked, too.
pub(crate) fn conntrack(config: &Config) -> Option<Arc<Conntrack>> {
    let (connections, timeouts) = config.tracked()?;
    let table = Conntrack::new(connections, FoldKey::new(secret()), &timeouts, &HugePages);
    let both = config.filter.asks_for_states();
    Some(Arc::new(if both { table.with_ipv6() } else { table }))
}

/// Puts NAT into the hook slots of `tables`, if `config` has any. Its connections are in `conntrack`.
pub(crate) fn start(
    config: &Config,
    conntrack: Option<&Arc<Conntrack>>,
    tables: &mut Tables,
) -> Result<Option<Arc<NatState>>, TooManyAddresses> {
    let (Some(nat), Some(conntrack)) = (&config.nat, conntrack) else { return Ok(None) };
    let state = Arc::new(NatState::on(conntrack.clone(), secret(), &HugePages));
    Arc::new(Nat::new(state.clone(), &nat.rules(config))?).install(tables);
    Ok(Some(state))
}
