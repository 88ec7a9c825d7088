//! What is told of filter rules.

use softnet_core::filter::Chain;

use super::Introspect;
use crate::control::show::RuleRow;

impl Introspect {
    /// The filter rules, in order, then the policies of hooks; nothing, if nothing is filtered.
    pub fn rules(&self) -> Vec<RuleRow> {
        let config = self.config.load();
        let filter = &config.filter;
        if filter.is_empty() {
            return Vec::new();
        }
        let contexts = self.shared.contexts();
        let counts = |number: usize| {
            let all = contexts.iter().map(|context| context.rule(number));
            all.fold([0; 2], |[packets, bytes], [p, b]| [packets + p, bytes + b])
        };
        let rules = filter.rules.iter().enumerate().map(|(at, rule)| {
            let [packets, bytes] = counts(at);
            RuleRow {
                number: Some(at + 1),
                name: rule.name.clone(),
                hooks: rule.hook.iter().map(|chain| chain.name().into()).collect(),
                rule: rule.to_string(),
                action: rule.action.name().into(),
                packets,
                bytes,
            }
        });
        let policies = Chain::ALL.into_iter().map(|chain| {
            let [packets, bytes] = counts(chain.policy_number().into());
            RuleRow {
                number: None,
                name: None,
                hooks: vec![chain.name().into()],
                rule: "policy".into(),
                action: filter.policies[chain as usize].name().into(),
                packets,
                bytes,
            }
        });
        rules.chain(policies).collect()
    }
}
