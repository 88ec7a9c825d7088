//! How disciplines look to people: as `tc` writes them, and below what only softnet has.

use softnet::control::show::{QdiscRow, TxRow};

use crate::show::rows::{Since, growth};
use crate::text::{bit_rate, grouped, nanos, rate};

/// Where it is, in `tc`'s words: the root, or a class of `mq`, whose number is that of the TX queue plus one, in hex.
pub(crate) fn parent(row: &QdiscRow) -> String {
    row.queue.map_or("root".into(), |queue| format!(":{:x}", u32::from(queue) + 1))
}

/// Its kind and parameters.
pub(crate) fn spec(row: &QdiscRow) -> String {
    format!("{} {}", row.kind, row.options).trim_end().into()
}

/// A line each; with their statistics some more. What they were some seconds ago gives a rate.
pub(crate) fn lines(rows: &[QdiscRow], statistics: bool, before: Option<(&[QdiscRow], f64)>) -> String {
    let line = |row: &QdiscRow| {
        let place = if row.queue.is_some() { "parent " } else { "" };
        let line = format!("qdisc {} dev {} {place}{} {}", row.kind, row.dev, parent(row), row.options)
            .trim_end()
            .to_owned();
        let same = |old: &&QdiscRow| (&old.dev, old.queue, &old.kind) == (&row.dev, row.queue, &row.kind);
        let since = before.map(|(rows, seconds)| (rows.iter().find(same), seconds));
        let more = if statistics { stats(row, since) } else { String::new() };
        format!("{line}\n{more}")
    };
    match rows.is_empty() {
        true => "no device is open\n".into(),
        false => rows.iter().map(line).collect(),
    }
}

fn stats(row: &QdiscRow, since: Since<'_, QdiscRow>) -> String {
    let rates = since.and_then(|since| {
        let bits = growth(row, since, |row| row.bytes).map(bit_rate)?;
        Some(format!("rate {bits} {} ", growth(row, since, |row| row.packets).map(rate)?))
    });
    let mut text = format!(
        " Sent {} bytes {} pkt (dropped {}, overlimits {} requeues {})\n {}backlog {}b {}p requeues {}\n",
        row.bytes,
        row.packets,
        row.drops,
        row.overlimits,
        row.requeues,
        rates.unwrap_or_default(),
        row.backlog,
        row.qlen,
        row.requeues,
    );
    if !row.drops_by_reason.is_empty() {
        let reasons =
            row.drops_by_reason.iter().map(|(reason, packets)| format!("{reason} {}", grouped(*packets)));
        text += &format!(" drops: {}\n", reasons.collect::<Vec<_>>().join(", "));
    }
    row.tx.as_ref().map(tx_queue).into_iter().for_each(|line| text += &line);
    text
}

fn tx_queue(tx: &TxRow) -> String {
    let held_back = match tx.held_back {
        0 => "no sender held back".into(),
        n => format!(
            "held back senders {} times, {} in all, longest {}",
            grouped(n),
            nanos(tx.held_back_ns),
            nanos(tx.held_back_longest_ns)
        ),
    };
    format!(
        " tx queue: owned {} times, {} packets handed over, parked {}; {held_back}; ring {} of {} bytes\n",
        grouped(tx.owned),
        grouped(tx.handed_over),
        grouped(tx.parked),
        tx.inflight,
        tx.limit
    )
}
