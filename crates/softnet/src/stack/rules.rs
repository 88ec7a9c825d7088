//! Filter rules of a stack that starts: the hook by its configuration, behind NAT's.

use std::sync::Arc;

use softnet_core::conntrack::Conntrack;
use softnet_core::filter::Filter;
use softnet_core::ip::FibError;
use softnet_core::ip::tables::Tables;
use softnet_core::nat::NatState;

use crate::config::Config;

/// Puts the rules of `config`, if it has any, into the hook slots of `tables`, behind what stands
/// there. States are those of `conntrack`.
pub(crate) fn start(
    config: &Config,
    conntrack: Option<&Arc<Conntrack>>,
    nat: Option<&Arc<NatState>>,
    tables: &mut Tables,
) -> Result<(), FibError> {
    if config.filter.is_empty() {
        return Ok(());
    }
    let rules = config.filter.rules(config);
    let tracked = conntrack.filter(|_| rules.ask_for_states()).cloned();
    let filter = Filter::new(&rules, tracked.map(|conntrack| (conntrack, nat.cloned())))?;
    filter.stand(&rules, &mut tables.hooks);
    Ok(())
}
