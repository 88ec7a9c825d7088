//! Which disciplines the TX queues of a device have: what was set, what follows from that for each queue, and how it is
//! changed while packets pass.
//!
//! A device with one TX queue has its root discipline there. One with several has `mq`, which is a discipline for each;
//! or another root, and then all packets pass through TX queue 0, since one discipline can only be led by one thread
//! at a time anyway. Called by the housekeeper alone, but for what is shown.
//!
//! Invariant: a change is checked whole before any of it is made.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use softnet_core::SoftnetData;
use softnet_core::qdisc::{DevParams, Qdisc, QdiscStats, QdiscTotals, Spec, SpecError};

use super::NetdevQueue;
use crate::control::{Action, ControlError};

/// What was set for a device; outlives its TX queues.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// The root; `None`: as by default.
    pub root: Option<Spec>,
    /// Disciplines of TX queues under `mq` that differ from the default.
    pub children: BTreeMap<u16, Spec>,
}

impl Settings {
    /// What is set afterwards, if that can be asked for. `parent`: a TX queue under `mq`, else the root.
    pub fn apply(
        &self,
        action: Action,
        parent: Option<u16>,
        spec: Option<Spec>,
        queues: usize,
    ) -> Result<Settings, ControlError> {
        let mut next = self.clone();
        let place = match parent {
            Some(queue) if usize::from(queue) >= queues => {
                return Err(ControlError::NoTxQueue { queue, queues });
            }
            Some(_) if !self.is_mq(queues) => return Err(ControlError::NotMq),
            Some(queue) => format!("TX queue {queue} (parent :{:x})", u32::from(queue) + 1),
            None => "the root".into(),
        };
        let old = match parent {
            Some(queue) => self.children.get(&queue),
            None => self.root.as_ref(),
        };
        match (action, old) {
            (Action::Add, Some(old)) => {
                return Err(ControlError::QdiscExists { place, qdisc: old.clone() });
            }
            (Action::Del, None) => return Err(ControlError::DefaultQdisc(place)),
            _ => {}
        }
        let spec = match action {
            Action::Del => None,
            _ => {
                let example = "a discipline, such as `tbf rate 10mbit burst 15kb latency 50ms`";
                Some(spec.ok_or(ControlError::Missing(example))?)
            }
        };
        match (parent, spec) {
            (Some(_), Some(Spec::Mq)) => return Err(SpecError::NotForQueue.into()),
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

impl fmt::Debug for Child {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Child").field("spec", &self.spec).finish_non_exhaustive()
    }
}

/// The disciplines of an open device.
#[derive(Debug)]
pub struct Layout {
    /// The root.
    pub root: Spec,
    /// That of each TX queue.
    pub children: Vec<Child>,
}

/// A layout, and the disciplines to be put in place.
pub(crate) type Built = (Layout, Vec<Option<Box<dyn Qdisc>>>);

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

    /// What one of them does that is hardly meant, see [`Spec::warning`].
    pub fn warning(&self, dev: &DevParams) -> Option<String> {
        self.children.iter().find_map(|child| child.spec.warning(dev))
    }

    /// Whether all packets pass through TX queue 0.
    pub fn is_single(&self) -> bool {
        self.children.len() > 1 && !matches!(self.root, Spec::Mq | Spec::Noqueue)
    }

    /// Whether a discipline lets packets wait that the ring would take.
    pub fn is_shaped(&self) -> bool {
        self.children.iter().any(|child| matches!(child.spec, Spec::Tbf(..) | Spec::Netem(..)))
    }

    /// Brings `queues` from this layout to another, which was built for `dev` and as many. A discipline of the same kind is
    /// changed and keeps its packets; any other is replaced, and what it held dropped.
    pub fn change(
        &mut self,
        (mut next, qdiscs): Built,
        queues: &[Arc<NetdevQueue>],
        dev: &DevParams,
        ctx: &mut SoftnetData,
        now: u64,
    ) {
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

#[cfg(test)]
mod tests {
    use super::*;

    const DEV: DevParams = DevParams { mtu: 1500, tx_queue_len: 1000 };
    const TBF: &str = "tbf rate 10mbit burst 15kb latency 50ms";

    fn spec(text: &str) -> Spec {
        text.parse().unwrap()
    }

    /// What is set after `changes`, each of which must be possible: what to do, where, and the discipline.
    fn set(queues: usize, changes: &[(Action, Option<u16>, &str)]) -> Settings {
        changes.iter().fold(Settings::default(), |settings, (action, parent, text)| {
            settings.apply(*action, *parent, (!text.is_empty()).then(|| spec(text)), queues).unwrap()
        })
    }

    fn kinds(settings: &Settings, queues: usize) -> (&'static str, Vec<&'static str>, bool) {
        let (layout, qdiscs) = Layout::build(settings, queues, &Spec::PfifoFast, &DEV).unwrap();
        let kinds: Vec<_> = layout.children.iter().map(|child| child.spec.kind()).collect();
        let built: Vec<bool> = qdiscs.iter().map(Option::is_some).collect();
        assert_eq!(built, kinds.iter().map(|kind| *kind != "noqueue").collect::<Vec<_>>());
        (layout.root.kind(), kinds, layout.is_single())
    }

    #[test]
    fn by_default_every_tx_queue_has_the_default_discipline() {
        let settings = Settings::default();
        assert_eq!(kinds(&settings, 1), ("pfifo_fast", vec!["pfifo_fast"], false));
        assert_eq!(kinds(&settings, 3), ("mq", vec!["pfifo_fast"; 3], false));
    }

    #[test]
    fn one_root_leads_all_packets_through_the_first_queue() {
        let settings = set(3, &[(Action::Add, None, TBF)]);
        assert_eq!(kinds(&settings, 1), ("tbf", vec!["tbf"], false));
        assert_eq!(kinds(&settings, 3), ("tbf", vec!["tbf", "noqueue", "noqueue"], true));
        let settings = set(3, &[(Action::Replace, None, "noqueue")]);
        assert_eq!(kinds(&settings, 3), ("noqueue", vec!["noqueue"; 3], false));
        assert_eq!(set(3, &[(Action::Replace, None, TBF), (Action::Del, None, "")]), Settings::default());
    }

    #[test]
    fn tx_queues_under_mq_have_their_own_until_the_root_is_set() {
        let both = [(Action::Add, Some(1), "pfifo"), (Action::Replace, Some(2), TBF)];
        assert_eq!(kinds(&set(3, &both), 3), ("mq", vec!["pfifo_fast", "pfifo", "tbf"], false));
        let del = [&both[..], &[(Action::Del, Some(1), "")]].concat();
        assert_eq!(kinds(&set(3, &del), 3), ("mq", vec!["pfifo_fast", "pfifo_fast", "tbf"], false));
        // A device that comes back with fewer queues, and then with more.
        assert_eq!(kinds(&set(3, &del), 2), ("mq", vec!["pfifo_fast"; 2], false));
        assert_eq!(kinds(&set(3, &del), 1), ("pfifo_fast", vec!["pfifo_fast"], false));
        assert_eq!(kinds(&set(3, &del), 4).1[2], "tbf");
        let root = [&both[..], &[(Action::Replace, None, "mq")]].concat();
        assert_eq!(kinds(&set(3, &root), 3), ("mq", vec!["pfifo_fast"; 3], false));
        // mq on one queue.
        let one = [(Action::Add, None, "mq"), (Action::Add, Some(0), "bfifo")];
        assert_eq!(kinds(&set(1, &one), 1), ("mq", vec!["bfifo"], false));
    }

    #[test]
    fn what_makes_no_sense_is_refused_and_changes_nothing() {
        let none = Settings::default();
        let tbf = set(2, &[(Action::Add, None, TBF)]);
        let child = set(17, &[(Action::Add, Some(9), "pfifo limit 5")]);
        let not_mq = "parent: the root is not mq, so TX queues have no discipline of their own; \
                      `softnet qdisc replace dev DEV root mq` makes it so";
        for (before, queues, action, parent, text, why) in [
            (&none, 1, Action::Add, Some(0), "pfifo", not_mq),
            (&tbf, 2, Action::Replace, Some(1), "pfifo", not_mq),
            (&tbf, 2, Action::Del, Some(1), "", not_mq),
            (
                &none,
                17,
                Action::Add,
                Some(17),
                "pfifo",
                "parent: no TX queue 17 (:12); there are 17, expected :1 to :11",
            ),
            (&none, 2, Action::Replace, Some(1), "mq", "mq is for devices, not for one of their TX queues"),
            (
                &tbf,
                2,
                Action::Add,
                None,
                "pfifo",
                "the root already has tbf rate 10Mbit burst 15Kb lat 50ms: `replace` it, or `del` it first",
            ),
            (
                &child,
                17,
                Action::Add,
                Some(9),
                "bfifo",
                "TX queue 9 (parent :a) already has pfifo limit 5p: `replace` it, or `del` it first",
            ),
            (&none, 2, Action::Del, None, "", "the root has its default discipline, which can't be deleted"),
            (
                &child,
                17,
                Action::Del,
                Some(0),
                "",
                "TX queue 0 (parent :1) has its default discipline, which can't be deleted",
            ),
            (
                &none,
                2,
                Action::Replace,
                None,
                "",
                "expected a discipline, such as `tbf rate 10mbit burst 15kb latency 50ms`",
            ),
        ] {
            let given = (!text.is_empty()).then(|| spec(text));
            let refused = before.apply(action, parent, given, queues).map_err(|error| error.to_string());
            assert_eq!(refused, Err(why.to_owned()));
        }
    }
}
