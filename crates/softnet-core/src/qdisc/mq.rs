//! `mq`: the root of a device with many TX queues. It queues nothing; it is the table of what each queue has
//! (`net/sched/sch_mq.c`).

use std::sync::Arc;

use super::{DevParams, Qdisc, QdiscStats, QdiscTotals, Spec, SpecError};

/// What one TX queue has.
#[derive(Clone)]
pub struct Child {
    /// Which discipline.
    pub spec: Spec,
    /// Its counters; those of a queue without a discipline stay 0.
    pub stats: Arc<QdiscStats>,
}

/// The table: one [`Child`] for each TX queue.
pub struct Mq {
    children: Box<[Child]>,
}

impl Mq {
    /// A table for `queues` TX queues, each with a discipline by `default_qdisc`; and the disciplines, to be put in
    /// place.
    #[allow(clippy::type_complexity)]
    pub fn new(
        queues: usize,
        default_qdisc: &Spec,
        dev: &DevParams,
    ) -> Result<(Self, Vec<Option<Box<dyn Qdisc>>>), SpecError> {
        let made = (0..queues).map(|_| make(default_qdisc, dev)).collect::<Result<Vec<_>, _>>()?;
        let (children, qdiscs): (Vec<_>, Vec<_>) = made.into_iter().unzip();
        Ok((Mq { children: children.into() }, qdiscs))
    }

    /// Enters another discipline for `queue` and returns it, to be put in place. `None`: there is no such queue, or
    /// `spec` is `noqueue`.
    pub fn graft(
        &mut self,
        queue: usize,
        spec: &Spec,
        dev: &DevParams,
    ) -> Result<Option<Box<dyn Qdisc>>, SpecError> {
        let (child, qdisc) = make(spec, dev)?;
        let Some(place) = self.children.get_mut(queue) else { return Ok(None) };
        *place = child;
        Ok(qdisc)
    }

    /// What the queues have, by their numbers.
    pub fn children(&self) -> &[Child] {
        &self.children
    }

    /// What `tc -s` shows of the root: the sums.
    pub fn totals(&self) -> QdiscTotals {
        let mut totals = QdiscTotals::default();
        self.children.iter().for_each(|child| totals += child.stats.totals());
        totals
    }
}

fn make(spec: &Spec, dev: &DevParams) -> Result<(Child, Option<Box<dyn Qdisc>>), SpecError> {
    let qdisc = spec.build(dev)?;
    let stats = qdisc.as_ref().map_or_else(Arc::default, |qdisc| qdisc.stats().clone());
    Ok((Child { spec: spec.clone(), stats }, qdisc))
}
