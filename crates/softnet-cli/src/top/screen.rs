//! What `softnet top` draws: a pure function of an interval and of what the user chose.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Clear, Paragraph, Row, Table, TableState, Wrap};
use softnet::internals::Phase;

use super::interval::{Instance, Interval, Thread};
use crate::show::napi::{a_poll, block, percent};
use crate::text::rate;

/// Cells of the bar that shows where the time went.
const BAR: usize = 10;

/// By what the instances are sorted; the most first, but by queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Sort {
    #[default]
    Queue,
    Packets,
    Polls,
    Awake,
}

impl Sort {
    /// The next one.
    pub(super) fn next(self) -> Sort {
        match self {
            Sort::Queue => Sort::Packets,
            Sort::Packets => Sort::Polls,
            Sort::Polls => Sort::Awake,
            Sort::Awake => Sort::Queue,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Sort::Queue => "queue",
            Sort::Packets => "packets",
            Sort::Polls => "polls",
            Sort::Awake => "time awake",
        }
    }
}

/// What the user chose.
#[derive(Default)]
pub(super) struct Ui {
    pub(super) paused: bool,
    pub(super) help: bool,
    pub(super) sort: Sort,
    /// Id of the instance that was chosen; the first one if that is gone.
    pub(super) chosen: Option<u32>,
}

impl Ui {
    /// The instances in order.
    fn sorted<'a>(&self, interval: &'a Interval) -> Vec<&'a Instance> {
        let mut all: Vec<&Instance> = interval.napi.iter().collect();
        let by = |key: fn(&Instance) -> f64| {
            move |a: &&Instance, b: &&Instance| key(b).total_cmp(&key(a)).then(a.row.id.cmp(&b.row.id))
        };
        match self.sort {
            Sort::Queue => {}
            Sort::Packets => all.sort_by(by(|n| n.interval.packets_per_s)),
            Sort::Polls => all.sort_by(by(|n| n.interval.polls_per_s)),
            Sort::Awake => all.sort_by(by(|n| n.interval.awake())),
        }
        all
    }

    /// Place of the chosen instance in `all`.
    fn place(&self, all: &[&Instance]) -> usize {
        all.iter().position(|n| Some(n.row.id) == self.chosen).unwrap_or(0)
    }

    /// Chooses the instance that is `by` places further down.
    pub(super) fn choose(&mut self, interval: &Interval, by: isize) {
        let all = self.sorted(interval);
        let place = self.place(&all).saturating_add_signed(by).min(all.len().saturating_sub(1));
        self.chosen = all.get(place).map(|n| n.row.id);
    }
}

/// Draws it all.
pub(super) fn draw(frame: &mut Frame<'_>, interval: Option<&Interval>, ui: &Ui) {
    let Some(interval) = interval else {
        let text = Paragraph::new("softnet top: the first figures come when the first interval is over");
        return frame.render_widget(text, frame.area());
    };
    let all = ui.sorted(interval);
    let place = ui.place(&all);
    let details =
        all.get(place).map_or_else(String::new, |n| block(&n.row, Some((n.then.as_ref(), interval.seconds))));
    // The queues come first; then what is chosen; then threads, of which there may be many.
    let height = usize::from(frame.area().height);
    let queues = all.len().min(height.saturating_sub(8).max(3)) + 1;
    let threads = interval.threads.len().min((height / 4).max(1)) + 1;
    let [head, threads, _, queues, _, below, keys] = Layout::vertical([
        Constraint::Length(2),
        Constraint::Length(threads as u16),
        Constraint::Length(1),
        Constraint::Length(queues as u16),
        Constraint::Length(1),
        Constraint::Fill(1),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let head_lines = vec![Line::styled(interval.title(), bold), Line::raw(interval.summary())];
    frame.render_widget(Paragraph::new(head_lines), head);
    frame.render_widget(thread_table(&interval.threads, usize::from(threads.height)), threads);
    let mut state = TableState::new().with_selected(Some(place));
    frame.render_stateful_widget(queue_table(&all, queues.width), queues, &mut state);
    frame.render_widget(Paragraph::new(details).wrap(Wrap { trim: false }), below);
    let paused = if ui.paused { "PAUSED  " } else { "" };
    let hint = format!("{paused}q quit  p pause  s sort (by {})  ↑↓ choose  ? help", ui.sort.name());
    frame.render_widget(Paragraph::new(Line::styled(hint, Style::new().add_modifier(Modifier::DIM))), keys);
    if ui.help {
        help(frame);
    }
}

/// Threads, those that use the most first; what there is no room for is counted.
fn thread_table(threads: &[Thread], height: usize) -> Table<'static> {
    let mut sorted: Vec<&Thread> = threads.iter().collect();
    sorted.sort_by(|a, b| b.cpu_percent.total_cmp(&a.cpu_percent));
    let room = height.saturating_sub(1);
    let shown = if sorted.len() > room { room.saturating_sub(1) } else { sorted.len() };
    let row = |t: &&Thread| {
        let pinned = t.cpu.map_or_else(String::new, |cpu| format!("CPU {cpu}"));
        Row::new([
            t.name.clone(),
            t.context.clone(),
            format!("{:>6}", t.tid),
            pinned,
            format!("{:>5.1} %", t.cpu_percent),
            cpu_bar(t.cpu_percent),
            format!("{:>8}", rate(t.sleeps_per_s)),
        ])
    };
    let mut rows: Vec<Row<'static>> = sorted[..shown].iter().map(row).collect();
    if shown < sorted.len() {
        let rest: f64 = sorted[shown..].iter().map(|t| t.cpu_percent).sum();
        let more = format!("{} more", sorted.len() - shown);
        rows.push(Row::new([more, "".into(), "".into(), "".into(), format!("{rest:>5.1} %")]));
    }
    let widths = [16, 11, 6, 7, 7, BAR as u16, 8].map(Constraint::Length);
    let header = ["THREAD", "CONTEXT", "   TID", "PINNED", "    CPU", "", "  SLEEPS"];
    Table::new(rows, widths).header(Row::new(header).style(Style::new().add_modifier(Modifier::UNDERLINED)))
}

fn cpu_bar(percent: f64) -> String {
    // Of one core: a thread can't use more.
    "|".repeat((percent / 100.0 * BAR as f64).round().clamp(0.0, BAR as f64) as usize)
}

/// Instances. What a terminal of 80 columns has no room for is said below of the chosen one.
fn queue_table(all: &[&Instance], width: u16) -> Table<'static> {
    let row = |n: &&Instance| {
        let r = &n.interval;
        Row::new(vec![
            Line::raw(n.row.name.clone()),
            Line::raw(n.row.context.name()),
            Line::raw(rate(r.packets_per_s)).right_aligned(),
            Line::raw(rate(r.polls_per_s)).right_aligned(),
            Line::raw(percent(r.empty)).right_aligned(),
            Line::raw(a_poll(r.packets_per_poll)).right_aligned(),
            Line::raw(rate(r.doorbells_per_s)).right_aligned(),
            time_bar(r.shares),
            Line::raw(n.row.why.clone()),
        ])
    };
    let name = all.iter().map(|n| n.row.name.chars().count()).max().unwrap_or(0).clamp(4, 20);
    let widths = [name as u16, 9, 8, 8, 5, 5, 8, BAR as u16].map(Constraint::Length);
    let why = Constraint::Min(if width < 100 { 6 } else { 20 });
    let right = |title: &'static str| Line::raw(title).right_aligned();
    let header = Row::new(vec![
        Line::raw("NAME"),
        Line::raw("CONTEXT"),
        right("PACKETS"),
        right("POLLS"),
        right("EMPTY"),
        right("/POLL"),
        right("BELLS"),
        Line::raw("TIME"),
        Line::raw("WHY"),
    ]);
    Table::new(all.iter().map(row), widths.into_iter().chain([why]))
        .header(header.style(Style::new().add_modifier(Modifier::UNDERLINED)))
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED))
}

/// Letter and colour of each phase, in the order of [`Phase::ALL`].
const LOOKS: [(char, Color); Phase::ALL.len()] = [
    ('.', Color::DarkGray),
    ('d', Color::Yellow),
    ('s', Color::Cyan),
    ('p', Color::Red),
    ('a', Color::Green),
];

/// How many of `BAR` cells each phase gets: what is left over by rounding down goes to those that lost most by it.
fn cells(shares: [f64; Phase::ALL.len()]) -> [usize; Phase::ALL.len()] {
    let exact = shares.map(|share| share * BAR as f64);
    let mut cells = exact.map(|cells| cells as usize);
    let mut order: Vec<usize> = (0..cells.len()).collect();
    order.sort_by(|&a, &b| exact[b].fract().total_cmp(&exact[a].fract()));
    let left = BAR.saturating_sub(cells.iter().sum());
    order.into_iter().take(left).for_each(|at| cells[at] += 1);
    cells
}

/// Where the time went: pollers first, the doorbell last.
fn time_bar(shares: Option<[f64; Phase::ALL.len()]>) -> Line<'static> {
    let Some(shares) = shares else { return Line::raw("-") };
    let cells = cells(shares);
    let span = |at: usize| {
        let (letter, colour) = LOOKS[at];
        Span::styled(letter.to_string().repeat(cells[at]), Style::new().fg(colour))
    };
    Line::from((0..cells.len()).rev().map(span).collect::<Vec<_>>())
}

fn help(frame: &mut Frame<'_>) {
    let text = "\
q, Ctrl-C   quit
p, space    pause, and go on
s           sort by queue, packets, polls, time awake
up, down    choose a queue (also k, j)
?           this; another key closes it

TIME: where the interval went
 a  polled by an application
 p  polled by its context
 s  suspended: an application polls next
 d  doorbell masked, the timer polls next
 .  waits for the doorbell
EMPTY: share of polls without a packet; /POLL: packets a poll;
BELLS: doorbells that led to a poll; CPU is of one core";
    let lines = text.lines().count() as u16 + 2;
    let wide = text.lines().map(|line| line.chars().count()).max().unwrap_or(0) as u16 + 2;
    let all = frame.area();
    let (width, height) = (wide.min(all.width), lines.min(all.height));
    let area = Rect::new((all.width - width) / 2, (all.height - height) / 2, width, height);
    frame.render_widget(Clear, area);
    frame.render_widget(Paragraph::new(text).block(Block::bordered().title("softnet top")), area);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_is_always_full() {
        assert_eq!(cells([1.0, 0.0, 0.0, 0.0, 0.0]), [10, 0, 0, 0, 0]);
        assert_eq!(cells([0.5, 0.04, 0.0, 0.46, 0.0]), [5, 0, 0, 5, 0]);
        assert_eq!(cells([0.2; 5]), [2; 5]);
        assert_eq!(cells([0.33, 0.33, 0.34, 0.0, 0.0]), [3, 3, 4, 0, 0]);
        assert_eq!(cells([1.0 / 3.0, 1.0 / 3.0, 0.0, 1.0 / 3.0, 0.0]).iter().sum::<usize>(), BAR);
    }
}
