//! Which disciplines the TX queues of a device have: what was set, what follows from that for each queue, and how it is
//! changed while packets pass.
//!
//! A device with one TX queue has its root discipline there. One with several has `mq`, which is a discipline for each;
//! or another root, and then all packets pass through TX queue 0, since one discipline can only be led by one thread
//! at a time anyway. Called by the housekeeper alone, but for what is shown.
//!
//! Invariant: a change is checked whole before any of it is made.

use std::collections::BTreeMap;
use std::sync::Arc;

use softnet_core::SoftnetData;
use softnet_core::qdisc::{DevParams, Qdisc, QdiscStats, QdiscTotals, Spec, SpecError};

use crate::tx_queue::NetdevQueue;

/// What was set for a device; outlives its TX queues.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// The root; `None`: as by default.
    pub root: Option<Spec>,
    /// Disciplines of TX queues under `mq` that differ from the default.
    pub children: BTreeMap<u16, Spec>,
}

/// What to do to a discipline, in `tc`'s words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    /// Set it where none is set yet.
    Add,
    /// Set it; one of the same kind keeps its packets.
    Replace,
    /// Go back to the default.
    Del,
}

impl Settings {
    /// What is set afterwards, if that can be asked for. `parent`: a TX queue under `mq`, else the root.
    pub fn apply(
        &self,
        action: Action,
        parent: Option<u16>,
        spec: Option<Spec>,
        queues: usize,
    ) -> Result<Settings, String> {
        let mut next = self.clone();
        let place = match parent {
            Some(queue) if usize::from(queue) >= queues => {
                return Err(format!(
                    "no TX queue {queue}: there are {queues}, 0 to {}",
                    queues.saturating_sub(1)
                ));
            }
            Some(_) if !self.is_mq(queues) => {
                return Err("the root is not mq, so TX queues have no discipline of their own; \
                            `softnet qdisc replace dev DEV root mq` makes it so"
                    .into());
            }
            Some(queue) => format!("TX queue {queue}"),
            None => "the root".into(),
        };
        let old = match parent {
            Some(queue) => self.children.get(&queue),
            None => self.root.as_ref(),
        };
        match (action, old) {
            (Action::Add, Some(old)) => {
                return Err(format!("{place} already has {old}: `replace` it, or `del` it first"));
            }
            (Action::Del, None) => {
                return Err(format!("{place} has its default discipline, which can't be deleted"));
            }
            _ => {}
        }
        let spec = match action {
            Action::Del => None,
            _ => {
                Some(spec.ok_or("expected a discipline, such as `tbf rate 10mbit burst 15kb latency 50ms`")?)
            }
        };
        match (parent, spec) {
            (Some(_), Some(Spec::Mq)) => return Err(SpecError::NotForQueue.to_string()),
            (Some(queue), Some(spec)) => _ = next.children.insert(queue, spec),
            (Some(queue), None) => _ = next.children.remove(&queue),
            (None, root) => next = Settings { root, children: BTreeMap::new() },
        }
        Ok(next)
    }

    fn is_mq(&self, queues: usize) -> bool {
        match &self.root {
            Some(root) => *root == Spec::Mq,
            None => queues > 1,
        }
    }

    /// The root, and the discipline of each of `queues` TX queues.
    fn plan(&self, queues: usize, default_qdisc: &Spec) -> (Spec, Vec<Spec>) {
        if self.is_mq(queues) {
            let of = |queue| self.children.get(&(queue as u16)).unwrap_or(default_qdisc).clone();
            return (Spec::Mq, (0..queues).map(of).collect());
        }
        let root = self.root.as_ref().unwrap_or(default_qdisc);
        let of = |queue| if queue == 0 { root.clone() } else { Spec::Noqueue };
        (root.clone(), (0..queues).map(of).collect())
    }
}

/// What one TX queue has.
#[derive(Clone)]
pub struct Child {
    /// Which discipline.
    pub spec: Spec,
    /// Its counters; those of a queue without a discipline stay 0.
    pub stats: Arc<QdiscStats>,
}

/// The disciplines of an open device.
pub struct Layout {
    /// The root.
    pub root: Spec,
    /// That of each TX queue.
    pub children: Vec<Child>,
}

/// A layout, and the disciplines to be put in place.
pub type Built = (Layout, Vec<Option<Box<dyn Qdisc>>>);

impl Layout {
    /// By `settings`, for a device with `queues` TX queues.
    pub fn build(
        settings: &Settings,
        queues: usize,
        default_qdisc: &Spec,
        dev: &DevParams,
    ) -> Result<Built, SpecError> {
        let (root, specs) = settings.plan(queues, default_qdisc);
        let made = specs.into_iter().map(|spec| make(spec, dev)).collect::<Result<Vec<_>, _>>()?;
        let (children, qdiscs) = made.into_iter().unzip();
        Ok((Layout { root, children }, qdiscs))
    }

    /// Whether all packets pass through TX queue 0.
    pub fn is_single(&self) -> bool {
        self.children.len() > 1 && !matches!(self.root, Spec::Mq | Spec::Noqueue)
    }

    /// Brings `queues` from this layout to what `settings` say now; nothing is changed if that can't be. A discipline of
    /// the same kind is changed and keeps its packets; any other is replaced, and what it held dropped.
    #[allow(clippy::too_many_arguments)]
    pub fn change(
        &mut self,
        settings: &Settings,
        queues: &[Arc<NetdevQueue>],
        default_qdisc: &Spec,
        dev: &DevParams,
        ctx: &mut SoftnetData,
        now: u64,
    ) -> Result<(), SpecError> {
        let (mut next, qdiscs) = Layout::build(settings, queues.len(), default_qdisc, dev)?;
        for (((old, new), qdisc), queue) in
            self.children.iter().zip(&mut next.children).zip(qdiscs).zip(queues)
        {
            if old.spec == new.spec {
                new.stats = old.stats.clone();
            } else if qdisc.is_some() && old.spec.kind() == new.spec.kind() {
                // Cannot fail: the parameters were good enough to build it.
                let _ = queue.change(ctx, now, |qdisc| qdisc.change(&new.spec, dev));
                new.stats = old.stats.clone();
            } else {
                queue.graft(ctx, now, qdisc);
            }
        }
        *self = next;
        Ok(())
    }

    /// What `tc -s` shows of the root: the sums.
    pub fn totals(&self) -> QdiscTotals {
        let mut totals = QdiscTotals::default();
        self.children.iter().for_each(|child| totals += child.stats.totals());
        totals
    }
}

fn make(spec: Spec, dev: &DevParams) -> Result<(Child, Option<Box<dyn Qdisc>>), SpecError> {
    let qdisc = spec.build(dev)?;
    let stats = qdisc.as_ref().map_or_else(Arc::default, |qdisc| qdisc.stats().clone());
    Ok((Child { spec, stats }, qdisc))
}
