//! Rows of `show rule`.

use serde::{Deserialize, Serialize};

/// A filter rule, or the policy of a hook.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RuleRow {
    /// Its place in the configuration, from 1; `None`: a policy.
    pub number: Option<usize>,
    /// Its name, if it has one.
    pub name: Option<String>,
    /// The hooks that it is asked at: `input`, `forward`, `output`.
    pub hooks: Vec<String>,
    /// Its conditions, as the configuration has them; `policy`: what no rule matched.
    pub rule: String,
    /// `allow`, `drop`, `reject`.
    pub action: String,
    /// Packets that it decided.
    pub packets: u64,
    /// Their bytes, from the IP header on.
    pub bytes: u64,
}
