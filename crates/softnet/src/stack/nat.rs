//! NAT of a stack that starts: the hooks by its configuration, and what outlives them.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use softnet_core::ip::tables::Tables;
use softnet_core::nat::{Nat, NatState, TooManyAddresses};
use softnet_dev::hugepage::HugePages;

use crate::config::Config;

/// Puts NAT into the hook slots of `tables`, if `config` has any. Returns its connections.
pub(crate) fn start(config: &Config, tables: &mut Tables) -> Result<Option<Arc<NatState>>, TooManyAddresses> {
    let Some(nat) = &config.nat else { return Ok(None) };
    let secret = std::array::from_fn(|_| RandomState::new().hash_one(std::process::id()));
    let state = Arc::new(NatState::new(nat.connections, secret, &nat.timeouts, &HugePages));
    Arc::new(Nat::new(state.clone(), &nat.rules(config))?).install(tables, 0);
    Ok(Some(state))
}
