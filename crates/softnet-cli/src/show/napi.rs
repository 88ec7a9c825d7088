//! NAPI instances for people: which thread polls which queue, what that brings, and why it is awake or asleep now. For `show napi`,
//! `set` and `top`.

use softnet::control::show::{AppRow, GroRow, NapiRow};
use softnet::internals::Phase;

use super::rows::{Cell, Since, cells_table, counter, left, right};
use crate::text::{grouped, nanos};

/// What an instance did: since it exists, or since some seconds ago.
pub(crate) struct Figures {
    pub(crate) packets: u64,
    pub(crate) polls: u64,
    pub(crate) empty_polls: u64,
    /// ns in each phase, in the order of [`Phase::ALL`].
    time_ns: [u64; Phase::ALL.len()],
}

impl Figures {
    /// Of `now`. An instance that was not there before did nothing yet.
    pub(crate) fn new(now: &NapiRow, since: Since<'_, NapiRow>) -> Figures {
        let then = since.map(|(then, _)| then.unwrap_or(now));
        let grown = |field: &dyn Fn(&NapiRow) -> u64| field(now).saturating_sub(then.map_or(0, field));
        let time = |phase: Phase| grown(&|row| row.time_ns.get(phase.name()).copied().unwrap_or(0));
        Figures {
            packets: grown(&|row| row.packets),
            polls: grown(&|row| row.polls),
            empty_polls: grown(&|row| row.empty_polls),
            time_ns: Phase::ALL.map(time),
        }
    }

    /// Packets that a poll brought on average.
    pub(crate) fn packets_a_poll(&self) -> Option<f64> {
        ratio(self.packets, self.polls)
    }

    /// Share of polls that brought nothing.
    pub(crate) fn empty(&self) -> Option<f64> {
        ratio(self.empty_polls, self.polls)
    }

    /// Share of time in each phase, in the order of [`Phase::ALL`].
    pub(crate) fn shares(&self) -> Option<[f64; Phase::ALL.len()]> {
        let all: u64 = self.time_ns.iter().sum();
        (all > 0).then(|| self.time_ns.map(|ns| ns as f64 / all as f64))
    }
}

fn ratio(part: u64, all: u64) -> Option<f64> {
    (all > 0).then(|| part as f64 / all as f64)
}

/// A share for people. Neither nothing nor all is said of what is not.
pub(crate) fn percent(share: Option<f64>) -> String {
    match share {
        None => "-".into(),
        Some(share) if share > 0.0 && share < 0.005 => "<1 %".into(),
        Some(share) if share < 1.0 && share > 0.995 => ">99 %".into(),
        Some(share) => format!("{:.0} %", share * 100.0),
    }
}

/// Packets a poll for people.
pub(crate) fn a_poll(packets: Option<f64>) -> String {
    packets.map_or("-".into(), |packets| format!("{packets:.1}"))
}

/// Titles of the shares of time, in the order of [`Phase::ALL`].
pub(crate) const PHASES: [&str; Phase::ALL.len()] = ["irq", "defer", "susp", "poll", "app"];

/// All of `rows`, in three tables: which thread polls, what it brings, and why. At most about 110 columns wide.
pub(crate) fn tables(rows: &[NapiRow], before: Option<(&[NapiRow], f64)>) -> String {
    if rows.is_empty() {
        return "no NAPI instances: no device is open\n".into();
    }
    let then = |row: &NapiRow| {
        let (rows, seconds) = before?;
        Some((rows.iter().find(|old| old.id == row.id), seconds))
    };
    let what: Vec<Vec<Cell>> = rows.iter().map(|row| brings(row, then(row))).collect();
    format!("{}\n{}\n{}", pollers(rows), cells_table(what), why(rows))
}

/// Which thread polls.
pub(crate) fn pollers(rows: &[NapiRow]) -> String {
    let cells = |row: &NapiRow| {
        let timer = row.timer.as_ref().map(|timer| {
            format!("{} in {}", timer.knob.strip_suffix("_timeout").unwrap_or(&timer.knob), nanos(timer.left))
        });
        vec![
            right("id", row.id.to_string()),
            left("name", &row.name),
            left("context", row.context.name()),
            left("thread", &row.thread),
            right("tid", tid(row.tid)),
            left("owner", &row.owner),
            left("doorbell", &row.doorbell),
            left("timer", timer.unwrap_or_else(|| "-".into())),
            right("effective", if row.deferrals > 0 { nanos(row.effective_timeout) } else { "-".into() }),
        ]
    };
    cells_table(rows.iter().map(cells).collect())
}

fn tid(tid: i32) -> String {
    if tid == 0 { "-".into() } else { tid.to_string() }
}

/// What it brings, and what its time goes to.
fn brings(row: &NapiRow, since: Since<'_, NapiRow>) -> Vec<Cell> {
    let count = |field: fn(&NapiRow) -> u64| counter(row, since, field);
    let figures = Figures::new(row, since);
    let mut cells = vec![
        left("name", &row.name),
        right("packets", count(|n| n.packets)),
        right("polls", count(|n| n.polls)),
        right("empty", percent(figures.empty())),
        right("per poll", a_poll(figures.packets_a_poll())),
        right("doorbells", count(|n| n.doorbells)),
        right("suspends", count(|n| n.suspensions)),
    ];
    let shares = figures.shares();
    let of = |(at, title)| right(title, percent(shares.map(|shares: [f64; 5]| shares[at])));
    cells.extend(PHASES.into_iter().enumerate().map(of));
    cells
}

/// Why each is awake or asleep, and what keeps a knob from acting.
fn why(rows: &[NapiRow]) -> String {
    let line = |row: &NapiRow, text: &str| vec![left("name", &row.name), left("why", text)];
    let of = |row: &NapiRow| {
        let mut lines = vec![line(row, &row.why)];
        lines.extend(row.warning.as_ref().map(|warning| line(row, &format!("warning: {warning}"))));
        lines
    };
    cells_table(rows.iter().flat_map(of).collect())
}

/// One instance with everything there is to say of it.
pub(crate) fn block(row: &NapiRow, since: Since<'_, NapiRow>) -> String {
    let count = |field: fn(&NapiRow) -> u64| counter(row, since, field);
    let figures = Figures::new(row, since);
    let mut text =
        format!("{}, id {}: RX queue {} of {}\n  {}\n", row.name, row.id, row.queue, row.dev, row.why);
    if let Some(warning) = &row.warning {
        text += &format!("  warning: {warning}\n");
    }
    let polled_by = match row.tid {
        0 => format!("{}, context {}; owner now: {}", row.thread, row.context, row.owner),
        tid => format!("{} (tid {tid}), context {}; owner now: {}", row.thread, row.context, row.owner),
    };
    let timer = row.timer.as_ref().map_or_else(
        || "not armed".into(),
        |timer| format!("armed with {}, due in {}", timer.knob, nanos(timer.left)),
    );
    let deferral = match row.deferrals {
        0 => "the timer never polled".into(),
        _ => format!(
            "the timer polled: {}; on average {} after it was armed",
            count(|n| n.deferrals),
            nanos(row.effective_timeout)
        ),
    };
    let shares = figures.shares().unwrap_or_default();
    let time: Vec<String> =
        Phase::ALL.iter().map(|p| format!("{} {}", p.name(), percent(Some(shares[*p as usize])))).collect();
    let mut lines = vec![
        ("polled by", polled_by),
        (
            "doorbell",
            format!(
                "{}; rang: {}; the kernel's own interrupt: {}",
                row.doorbell,
                count(|n| n.doorbells),
                row.kernel_irq
            ),
        ),
        ("timer", timer),
        (
            "knobs",
            format!(
                "napi_defer_hard_irqs {}, gro_flush_timeout {}, irq_suspend_timeout {}",
                row.napi_defer_hard_irqs,
                nanos(row.gro_flush_timeout),
                nanos(row.irq_suspend_timeout)
            ),
        ),
        ("deferral", deferral),
        (
            "suspension",
            format!(
                "suspended: {}; resumed: {}; irq_suspend_timeout ran out: {}",
                count(|n| n.suspensions),
                count(|n| n.resumptions),
                count(|n| n.rescues)
            ),
        ),
        (
            "polls",
            format!(
                "{}, of them {} empty and {} full; packets: {}, {} a poll",
                count(|n| n.polls),
                percent(figures.empty()),
                count(|n| n.full_polls),
                count(|n| n.packets),
                a_poll(figures.packets_a_poll())
            ),
        ),
        (
            "busy polls",
            format!(
                "by applications: {}; found it taken: {}",
                count(|n| n.busy_polls),
                count(|n| n.busy_poll_lost)
            ),
        ),
        ("gro", gro(&row.gro)),
        ("time", time.join(", ")),
    ];
    lines.extend(row.applications.iter().map(|app| ("application", application(app))));
    text += &lines.iter().map(|(title, value)| format!("  {title:<12} {value}\n")).collect::<String>();
    text
}

fn gro(row: &GroRow) -> String {
    let why: Vec<String> = row
        .flushed
        .iter()
        .filter(|(_, n)| **n > 0)
        .map(|(why, n)| format!("{} {}", why.replace('_', " "), grouped(*n)))
        .collect();
    let numbers = [row.aggregates, row.segments, row.held].map(grouped);
    let mut text =
        format!("{}; {} packets of {} segments; held: {}", row.mode, numbers[0], numbers[1], numbers[2]);
    if !why.is_empty() {
        text += &format!("; given up: {}", why.join(", "));
    }
    text
}

fn application(app: &AppRow) -> String {
    let name = match app.tid {
        0 => format!("{} (did not wait yet)", app.name),
        tid => format!("{} (tid {tid})", app.name),
    };
    format!(
        "{name}: {} packets, {} dropped for want of room, {} wait; slept {} times",
        grouped(app.packets),
        grouped(app.dropped),
        grouped(app.queued),
        grouped(app.sleeps)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_not_rounded_to_nothing_or_all() {
        let shown = [None, Some(0.0), Some(0.001), Some(0.07), Some(0.999), Some(1.0)].map(percent);
        assert_eq!(shown, ["-", "0 %", "<1 %", "7 %", ">99 %", "100 %"]);
    }
}
