//! What the housekeeper changes while the stack runs, beside its devices.

use super::Housekeeper;
use crate::control::commands::Change;
use crate::live::{LiveError, change_neigh, change_route};

impl Housekeeper {
    /// Makes a change of routes or neighbours. Returns how many there were.
    pub(super) fn change_live(&mut self, change: &Change) -> Result<u64, LiveError> {
        let config = self.config.clone();
        match change {
            Change::Route(set) => change_route(&self.shared, &config, set),
            Change::Neigh(set) => change_neigh(&self.shared, &mut self.ctx, &config, set),
            _ => Ok(0),
        }
    }
}
