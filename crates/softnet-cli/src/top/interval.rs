//! Two answers of an instance, and what happened between them.

use std::collections::BTreeMap;
use std::time::Instant;

use serde::Serialize;
use serde::de::DeserializeOwned;
use softnet::control::show::{NapiRow, Stats, Table, WorkerRow};
use softnet::control::{Client, ClientError, Request};
use softnet::internals::Phase;

use crate::Failure;
use crate::show::napi::{Figures, PHASES, a_poll, percent};
use crate::show::rows::{Cell, cells_table, left, right};
use crate::text::{rate, seconds};

/// What an instance answered.
pub(super) struct Sample {
    pub(super) at: Instant,
    pub(super) stats: Stats,
    pub(super) napis: Vec<NapiRow>,
    pub(super) workers: Vec<WorkerRow>,
}

impl Sample {
    /// Asks.
    pub(super) fn take(client: &Client) -> Result<Sample, ClientError> {
        fn ask<T: DeserializeOwned>(client: &Client, table: Table) -> Result<T, ClientError> {
            client.ask(&Request::Show(table))
        }
        let napis = ask(client, Table::Napi)?;
        let at = Instant::now();
        let workers = ask(client, Table::Worker)?;
        Ok(Sample { at, napis, workers, stats: ask(client, Table::Stats)? })
    }

    /// Asks again.
    pub(super) fn next(&self, client: &Client) -> Result<Sample, Failure> {
        Sample::take(client).map_err(|error| {
            let Stats { name, pid, .. } = &self.stats;
            Failure::Run(format!("the instance {name:?} (pid {pid}) has stopped or does not answer: {error}"))
        })
    }
}

/// What happened between two answers: rates are per second, CPU use is in percent of one core.
#[derive(Serialize)]
pub(super) struct Interval {
    /// Name of the instance.
    pub(super) instance: String,
    pub(super) pid: u32,
    pub(super) uptime_s: f64,
    /// How long it was.
    pub(super) seconds: f64,
    /// Of all threads.
    pub(super) cpu_percent: f64,
    pub(super) received_per_s: f64,
    pub(super) transmitted_per_s: f64,
    pub(super) dropped_per_s: f64,
    pub(super) threads: Vec<Thread>,
    pub(super) napi: Vec<Instance>,
}

/// A thread that polls: one of softnet's, or an application's.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Thread {
    pub(super) name: String,
    /// A polling context, or `application`.
    pub(super) context: String,
    pub(super) tid: i32,
    /// The CPU it is pinned to.
    pub(super) cpu: Option<u32>,
    pub(super) cpu_percent: f64,
    pub(super) sleeps_per_s: f64,
}

/// A NAPI instance: its row now, and its figures.
#[derive(Serialize)]
pub(super) struct Instance {
    #[serde(flatten)]
    pub(super) row: NapiRow,
    /// Its row then, if it was there.
    #[serde(skip)]
    pub(super) then: Option<NapiRow>,
    pub(super) interval: Rates,
}

/// Figures of an instance.
#[derive(Serialize)]
pub(super) struct Rates {
    pub(super) packets_per_s: f64,
    pub(super) polls_per_s: f64,
    pub(super) doorbells_per_s: f64,
    pub(super) suspensions_per_s: f64,
    pub(super) packets_per_poll: Option<f64>,
    /// Share of polls that brought nothing, 0 to 1.
    pub(super) empty: Option<f64>,
    /// Share of time in each phase, 0 to 1, in the order of [`Phase::ALL`].
    #[serde(serialize_with = "by_name")]
    pub(super) shares: Option<[f64; Phase::ALL.len()]>,
}

fn by_name<S: serde::Serializer>(shares: &Option<[f64; Phase::ALL.len()]>, to: S) -> Result<S::Ok, S::Error> {
    shares
        .map(|shares| Phase::ALL.map(Phase::name).into_iter().zip(shares).collect::<BTreeMap<_, _>>())
        .serialize(to)
}

impl Rates {
    /// Share of time in which the instance was polled.
    pub(super) fn awake(&self) -> f64 {
        self.shares.map_or(0.0, |s| s[Phase::Polled as usize] + s[Phase::Application as usize])
    }
}

impl Interval {
    /// What happened from `then` to `now`; nothing can be said if these are of two processes.
    pub(super) fn between(then: &Sample, now: &Sample) -> Option<Interval> {
        let seconds = now.at.duration_since(then.at).as_secs_f64().max(1e-3);
        let per_s = |then: u64, now: u64| now.saturating_sub(then) as f64 / seconds;
        let (a, b) = (&then.stats, &now.stats);
        let napi = |row: &NapiRow| {
            let old = then.napis.iter().find(|old| old.id == row.id);
            let figures = Figures::new(row, Some((old, seconds)));
            // Of one that is new nothing is known.
            let grown = |field: fn(&NapiRow) -> u64| per_s(field(old.unwrap_or(row)), field(row));
            let interval = Rates {
                packets_per_s: grown(|n| n.packets),
                polls_per_s: grown(|n| n.polls),
                doorbells_per_s: grown(|n| n.doorbells),
                suspensions_per_s: grown(|n| n.suspensions),
                packets_per_poll: figures.packets_a_poll(),
                empty: figures.empty(),
                shares: figures.shares(),
            };
            Instance { row: row.clone(), then: old.cloned(), interval }
        };
        (a.pid == b.pid).then(|| Interval {
            instance: b.name.clone(),
            pid: b.pid,
            uptime_s: b.uptime_s,
            seconds,
            cpu_percent: per_s(a.cpu_ns, b.cpu_ns) / 1e7,
            received_per_s: per_s(a.received, b.received),
            transmitted_per_s: per_s(a.transmitted, b.transmitted),
            dropped_per_s: per_s(a.dropped, b.dropped),
            threads: threads(then, now, per_s),
            napi: now.napis.iter().map(napi).collect(),
        })
    }

    /// As text, for a pipe.
    pub(super) fn text(&self) -> String {
        let thread = |t: &Thread| {
            vec![
                left("thread", &t.name),
                left("context", &t.context),
                right("tid", t.tid.to_string()),
                right("pinned", t.cpu.map_or("-".into(), |cpu| cpu.to_string())),
                right("cpu", format!("{:.1} %", t.cpu_percent)),
                right("sleeps", rate(t.sleeps_per_s)),
            ]
        };
        let threads = cells_table(self.threads.iter().map(thread).collect());
        let napis = cells_table(self.napi.iter().map(Instance::cells).collect());
        let times = cells_table(self.napi.iter().map(Instance::times).collect());
        let why = |n: &Instance| vec![left("name", &n.row.name), left("why", &n.row.why)];
        let why = cells_table(self.napi.iter().map(why).collect());
        format!("{}\n{}\n\n{threads}\n{napis}\n{times}\n{why}", self.title(), self.summary())
    }

    /// Which instance, and for how long.
    pub(super) fn title(&self) -> String {
        format!(
            "softnet {:?}, pid {}, up {}; the last {:.1} s",
            self.instance,
            self.pid,
            seconds(self.uptime_s),
            self.seconds
        )
    }

    /// The whole of it in a line.
    pub(super) fn summary(&self) -> String {
        format!(
            "cpu {:.1} %, received {}, transmitted {}, dropped {}",
            self.cpu_percent,
            rate(self.received_per_s),
            rate(self.transmitted_per_s),
            rate(self.dropped_per_s)
        )
    }
}

impl Instance {
    /// Its cells as text: what it brought.
    fn cells(&self) -> Vec<Cell> {
        let r = &self.interval;
        vec![
            left("name", &self.row.name),
            left("context", self.row.context.name()),
            right("packets", rate(r.packets_per_s)),
            right("polls", rate(r.polls_per_s)),
            right("empty", percent(r.empty)),
            right("/poll", a_poll(r.packets_per_poll)),
            right("bells", rate(r.doorbells_per_s)),
            right("suspends", rate(r.suspensions_per_s)),
        ]
    }

    /// Where its time went, as text.
    fn times(&self) -> Vec<Cell> {
        let share = |at: usize| percent(self.interval.shares.map(|shares| shares[at]));
        let mut cells = vec![left("name", &self.row.name)];
        cells.extend(PHASES.into_iter().enumerate().map(|(at, title)| right(title, share(at))));
        cells
    }
}

/// The threads, those of softnet first. One that is new, and so has used all its time meanwhile, counts from 0.
fn threads(then: &Sample, now: &Sample, per_s: impl Fn(u64, u64) -> f64) -> Vec<Thread> {
    let worker = |w: &WorkerRow| {
        let old = then.workers.iter().find(|old| old.tid == w.tid);
        Thread {
            name: w.name.clone(),
            context: w.context.name().into(),
            tid: w.tid,
            cpu: w.cpu,
            cpu_percent: per_s(old.map_or(0, |old| old.cpu_ns), w.cpu_ns) / 1e7,
            sleeps_per_s: per_s(old.map_or(0, |old| old.sleeps), w.sleeps),
        }
    };
    let mut threads: Vec<Thread> = now.workers.iter().map(worker).collect();
    // By thread: one application may use several instances.
    let before = |tid: i32| {
        let apps = then.napis.iter().flat_map(|n| &n.applications).filter(move |app| app.tid == tid);
        // An application that had not given its thread then has used its thread's time before.
        apps.fold(None, |all: Option<(u64, u64)>, app| {
            Some((app.cpu_ns, all.map_or(0, |(_, sleeps)| sleeps) + app.sleeps))
        })
    };
    let mut apps: BTreeMap<i32, (Vec<&str>, u64, u64)> = BTreeMap::new();
    for app in now.napis.iter().flat_map(|n| &n.applications).filter(|app| app.tid != 0) {
        let (names, cpu_ns, sleeps) = apps.entry(app.tid).or_default();
        if !names.contains(&&app.name[..]) {
            names.push(&app.name);
        }
        (*cpu_ns, *sleeps) = (app.cpu_ns, *sleeps + app.sleeps);
    }
    threads.extend(apps.into_iter().map(|(tid, (names, cpu_ns, sleeps))| {
        let (cpu_then, sleeps_then) = before(tid).unwrap_or((cpu_ns, sleeps));
        Thread {
            name: names.join(","),
            context: "application".into(),
            tid,
            cpu: None,
            cpu_percent: per_s(cpu_then, cpu_ns) / 1e7,
            sleeps_per_s: per_s(sleeps_then, sleeps),
        }
    }));
    threads
}
