//! Rows of `show qdisc`.

use softnet_core::qdisc::{QdiscStats, QdiscTotals, Spec};
use softnet_core::skb::DropReason;
use softnet_core::sync::Ordering;

use crate::control::show::{QdiscRow, TxRow};
use crate::device::{OpenParts, StackDevice};
use crate::tx::NetdevQueue;
use crate::tx::qdisc::{Child, Layout};
use crate::util::lock;

/// The disciplines of a device: its root, and under `mq` those of its TX queues.
pub(super) fn rows(dev: &StackDevice, live: &OpenParts) -> Vec<QdiscRow> {
    let layout = lock(&live.layout);
    let mut rows = vec![root(dev, live, &layout)];
    if layout.root == Spec::Mq {
        let queues = layout.children.iter().zip(&live.tx.queues).enumerate();
        rows.extend(
            queues.map(|(number, (child, queue))| of_queue(dev, live, Some(number as u16), child, queue)),
        );
    }
    rows
}

fn root(dev: &StackDevice, live: &OpenParts, layout: &Layout) -> QdiscRow {
    match (&layout.children[..], &live.tx.queues[..]) {
        ([child, ..], [queue, ..]) if layout.root != Spec::Mq => of_queue(dev, live, None, child, queue),
        (children, _) => {
            let stats: Vec<&QdiscStats> = children.iter().map(|child| &*child.stats).collect();
            row(dev, None, &layout.root, layout.totals(), &stats)
        }
    }
}

fn of_queue(
    dev: &StackDevice,
    live: &OpenParts,
    number: Option<u16>,
    child: &Child,
    queue: &NetdevQueue,
) -> QdiscRow {
    let (lock, held, ring) = (queue.lock_stats(), &queue.wake().held_back, queue.ring());
    let tx = TxRow {
        owned: lock.owned.get(),
        handed_over: lock.handed_over.get(),
        parked: lock.parked.get(),
        held_back: held.count.load(Ordering::Relaxed),
        held_back_ns: held.total.load(Ordering::Relaxed),
        held_back_longest_ns: held.longest.load(Ordering::Relaxed),
        limit: ring.limit.load(Ordering::Relaxed),
        inflight: ring.inflight.load(Ordering::Relaxed),
    };
    let spec = child.spec.resolved(&live.params);
    let warning = spec.warning(&live.params);
    QdiscRow { tx: Some(tx), warning, ..row(dev, number, &spec, child.stats.totals(), &[&child.stats]) }
}

fn row(
    dev: &StackDevice,
    queue: Option<u16>,
    spec: &Spec,
    totals: QdiscTotals,
    stats: &[&QdiscStats],
) -> QdiscRow {
    let kind = spec.kind();
    let dropped = |reason: &DropReason| stats.iter().map(|stats| stats.drops(*reason)).sum::<u64>();
    let by_reason = DropReason::ALL.iter().map(|reason| (reason.name().to_owned(), dropped(reason)));
    QdiscRow {
        dev: dev.name.clone(),
        queue,
        kind: kind.into(),
        options: spec.to_string().trim_start_matches(kind).trim_start().into(),
        bytes: totals.bytes,
        packets: totals.packets,
        drops: totals.drops,
        overlimits: totals.overlimits,
        requeues: totals.requeues,
        qlen: totals.qlen,
        backlog: totals.backlog,
        drops_by_reason: by_reason.filter(|(_, packets)| *packets > 0).collect(),
        tx: None,
        warning: None,
    }
}
