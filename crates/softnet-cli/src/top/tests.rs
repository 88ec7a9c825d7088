//! Two answers, and what is drawn of them.

use std::time::{Duration, Instant};

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use serde_json::json;
use softnet::control::show::{NapiRow, Stats, WorkerRow};

use super::interval::{Interval, Sample};
use super::screen::{Sort, Ui, draw};

fn napi(id: u32, name: &str, polls: u64, irq: u64, why: &str) -> NapiRow {
    let row = json!({
        "id": id, "name": name, "dev": "eth1", "queue": id - 1, "worker": 0, "context": "softirq",
        "thread": "softnet/0", "tid": 4711, "state": [], "doorbell": "unmasked", "napi_defer_hard_irqs": 2,
        "gro_flush_timeout": 20000, "irq_suspend_timeout": 0, "warning": null, "owner": "none", "why": why,
        "timer": {"knob": "gro_flush_timeout", "left": 12000}, "deferrals": 7, "effective_timeout": 65000,
        "rescues": 0, "doorbells": polls / 10, "busy_polls": 0, "busy_poll_lost": 0, "suspensions": 3,
        "resumptions": 2,
        "applications": [{"name": "echo", "tid": 5000, "packets": 10, "dropped": 0, "queued": 1, "sleeps": 4,
                          "cpu_ns": polls * 100_000}],
        "time_ns": {"irq": irq, "deferred": 0, "suspended": 0, "polled": polls * 1_000_000, "application": 0},
        "kernel_irq": "not masked", "polls": polls, "empty_polls": polls / 4, "full_polls": 0,
        "packets": polls * 3, "schedules": polls, "missed": 0
    });
    serde_json::from_value(row).unwrap()
}

fn worker(cpu_ns: u64) -> WorkerRow {
    let row = json!({
        "name": "softnet/0", "context": "softirq", "cpu": 1, "policy": "other", "tid": 4711, "state": "sleeping", "cpu_ns": cpu_ns,
        "cpu_percent": 1.0, "rounds": 0, "sleeps": 10, "wakeups": {"doorbell": 1}, "time_squeeze": 0, "packets": 0,
        "cached_heads": 0, "cached_frames": 0
    });
    serde_json::from_value(row).unwrap()
}

fn sample(start: Instant, seconds: u64, napis: Vec<NapiRow>, cpu_ns: u64) -> Sample {
    let mut stats = Stats::default();
    (stats.name, stats.pid, stats.uptime_s) = ("edge".into(), 77, 100.0 + seconds as f64);
    (stats.received, stats.cpu_ns) = (seconds * 5000, cpu_ns);
    Sample { at: start + Duration::from_secs(seconds), stats, napis, workers: vec![worker(cpu_ns)] }
}

/// Two seconds: the first queue polled half of the time, the second did nothing.
fn interval() -> Interval {
    let start = Instant::now();
    let quiet = "asleep: nothing came for 3.20 s; its doorbell will wake softnet/0";
    let busy = "awake: packets keep coming; softnet/0 has polled for 1.00 s";
    let then = vec![napi(1, "eth1-0", 1000, 0, busy), napi(2, "eth1-1", 400, 0, quiet)];
    let now =
        vec![napi(1, "eth1-0", 2000, 1_000_000_000, busy), napi(2, "eth1-1", 400, 2_000_000_000, quiet)];
    let (then, now) = (sample(start, 0, then, 0), sample(start, 2, now, 500_000_000));
    Interval::between(&then, &now).unwrap()
}

/// The screen as lines.
fn drawn(width: u16, height: u16, interval: Option<&Interval>, ui: &Ui) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, interval, ui)).unwrap();
    let buffer = terminal.backend().buffer().clone();
    let line = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned();
    (0..height).map(line).collect()
}

#[test]
fn figures_are_differences() {
    let shown = serde_json::to_value(interval()).unwrap();
    assert_eq!((&shown["instance"], &shown["seconds"]), (&"edge".into(), &2.0.into()));
    assert_eq!((&shown["cpu_percent"], &shown["received_per_s"]), (&25.0.into(), &5000.0.into()));
    let napi = &shown["napi"][0];
    assert_eq!((&napi["name"], &napi["polls"]), (&"eth1-0".into(), &2000.into()), "the row is complete");
    let expected = json!({
        "packets_per_s": 1500.0, "polls_per_s": 500.0, "doorbells_per_s": 50.0, "suspensions_per_s": 0.0,
        "packets_per_poll": 3.0, "empty": 0.25,
        "shares": {"irq": 0.5, "deferred": 0.0, "suspended": 0.0, "polled": 0.5, "application": 0.0}
    });
    assert_eq!(napi["interval"], expected);
    let threads: Vec<_> =
        shown["threads"].as_array().unwrap().iter().map(|t| (&t["name"], &t["cpu_percent"])).collect();
    assert_eq!(threads[0], (&"softnet/0".into(), &25.0.into()));
    assert_eq!(threads.len(), 2, "an application that takes packets of two instances is one thread");
    assert_eq!(threads[1].0, "echo");
}

#[test]
fn a_new_process_is_not_compared_with_the_old_one() {
    let start = Instant::now();
    let then = sample(start, 0, Vec::new(), 9);
    let mut now = sample(start, 1, Vec::new(), 1);
    now.stats.pid += 1;
    assert!(Interval::between(&then, &now).is_none());
}

#[test]
fn a_new_queue_has_done_nothing_yet() {
    let start = Instant::now();
    let now = sample(start, 1, vec![napi(3, "eth1-2", 50, 10, "asleep")], 0);
    let interval = Interval::between(&sample(start, 0, Vec::new(), 0), &now).unwrap();
    assert_eq!(interval.napi[0].interval.polls_per_s, 0.0);
    assert!(interval.napi[0].interval.shares.is_none());
    assert!(drawn(80, 24, Some(&interval), &Ui::default()).iter().any(|line| line.starts_with("eth1-2")));
}

#[test]
fn a_table_of_eighty_columns_shows_what_is_awake() {
    let lines = drawn(80, 32, Some(&interval()), &Ui::default());
    let text = lines.join("\n");
    assert_eq!(lines[0], "softnet \"edge\", pid 77, up 1 min 42 s; the last 2.0 s");
    assert_eq!(lines[1], "cpu 25.0 %, received 5.00 k/s, transmitted 0/s, dropped 0/s");
    assert_eq!(lines[3], "softnet/0        softirq       4711 CPU 1    25.0 % |||             0/s");
    let row = lines.iter().find(|line| line.starts_with("eth1-0")).unwrap();
    assert_eq!(row, "eth1-0 softirq   1.50 k/s    500/s  25 %   3.0     50/s ppppp..... awake: packet");
    let row = lines.iter().find(|line| line.starts_with("eth1-1")).unwrap();
    assert_eq!(row, "eth1-1 softirq        0/s      0/s     -     -      0/s .......... asleep: nothi");
    assert!(text.contains("eth1-0, id 1: RX queue 0 of eth1\n  awake: packets keep coming"), "{text}");
    assert!(
        text.contains("napi_defer_hard_irqs 2, gro_flush_timeout 20.0 µs,\nirq_suspend_timeout 0 ns\n"),
        "{text}"
    );
    assert!(lines.last().unwrap().starts_with("q quit  p pause  s sort (by queue)"), "{text}");
}

/// What a pipe gets fits a page, but for why: that is a sentence.
#[test]
fn text_fits_eighty_columns() {
    let mut interval = interval();
    for instance in &mut interval.napi {
        (instance.row.name, instance.row.why) = ("to-client-0".into(), "awake".into());
        let rates = &mut instance.interval;
        (rates.packets_per_s, rates.polls_per_s) = (11.2e6, 999e3);
        (rates.doorbells_per_s, rates.suspensions_per_s) = (12.3e3, 45.6e3);
    }
    let text = interval.text();
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    assert!(text.contains("IRQ  DEFER  SUSP  POLL  APP\n"), "{text}");
}

#[test]
fn choice_sort_pause_and_help_are_shown() {
    let interval = interval();
    let mut ui = Ui { paused: true, sort: Sort::Awake, ..Ui::default() };
    ui.choose(&interval, 1);
    assert_eq!(ui.chosen, Some(2));
    ui.choose(&interval, 9);
    assert_eq!(ui.chosen, Some(2), "the last one");
    let text = drawn(120, 32, Some(&interval), &ui).join("\n");
    assert!(text.contains("eth1-1, id 2: RX queue 1") && text.contains("PAUSED  q quit"), "{text}");
    assert!(text.contains("awake: packets keep coming; softnet/0 has polled"), "{text}");
    assert!(text.contains("s sort (by time awake)"), "{text}");
    ui.help = true;
    let text = drawn(80, 24, Some(&interval), &ui).join("\n");
    assert!(text.contains("p  polled by its context"), "{text}");
}

/// Whatever the size, nothing panics; and if there is any room, there is something to see.
#[test]
fn any_terminal_will_do() {
    let interval = interval();
    for (width, height) in [(1, 1), (10, 3), (40, 8), (80, 24), (300, 100)] {
        for shown in [Some(&interval), None] {
            for help in [false, true] {
                let lines = drawn(width, height, shown, &Ui { help, ..Ui::default() });
                assert!(height < 3 || lines.iter().any(|line| !line.is_empty()), "{width}x{height}");
            }
        }
    }
}
