//! The demo while it runs: a table drawn in place on a terminal, else a line each second.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use super::flow::{Flow, Flows};
use super::kv::KvRow;
use super::{Progress, Router};
use crate::Failure;
use crate::text::{self, Align, bit_rate, bytes, grouped, nanos, print, rate};

/// What was true when it was told last.
#[derive(Default)]
struct Before {
    at: Duration,
    /// Payloads and bytes of each flow.
    flows: [(u64, u64); 2 * Flows::KINDS],
    router: Router,
}

pub(super) struct Live {
    progress: Progress,
    duration: Duration,
    before: Before,
    /// Lines of the table that is on the terminal now.
    drawn: usize,
}

impl Live {
    pub(super) fn new(progress: Progress, duration: Duration) -> Self {
        Live { progress, duration, before: Before::default(), drawn: 0 }
    }

    /// Tells how things are, `at` after the start.
    pub(super) fn tell(&mut self, flows: &Flows, router: &Router, at: Duration) -> Result<(), Failure> {
        let text = match self.progress {
            Progress::Quiet => return Ok(()),
            Progress::Lines => self.line(flows, router, at),
            Progress::Table => {
                let table = self.table(flows, router, at);
                let up = if self.drawn > 0 { format!("\x1b[{}A\x1b[J", self.drawn) } else { String::new() };
                self.drawn = table.lines().count();
                up + &table
            }
        };
        let figures = flows.all().map(|flow| (flow.payloads.load(Relaxed), flow.bytes.load(Relaxed)));
        self.before = Before { at, flows: figures, router: router.clone() };
        print(&text)
    }

    fn seconds(&self, at: Duration) -> f64 {
        (at - self.before.at).as_secs_f64().max(1e-3)
    }

    fn line(&self, flows: &Flows, router: &Router, at: Duration) -> String {
        let seconds = self.seconds(at);
        let [ping, udp, tcp, kv, own]: [(f64, f64); Flows::KINDS] = [0, 1, 2, 3, 4].map(|i| {
            // Both families together.
            let all = [i, i + Flows::KINDS].map(|i| (flows.all()[i], self.before.flows[i]));
            let grown = |now: u64, before: u64| now.saturating_sub(before) as f64 / seconds;
            let payloads = all.map(|(flow, (payloads, _))| grown(flow.payloads.load(Relaxed), payloads));
            let bytes = all.map(|(flow, (_, bytes))| grown(flow.bytes.load(Relaxed), bytes));
            (payloads.iter().sum(), bytes.iter().sum())
        });
        let retries: u64 = flows.all().iter().map(|flow| flow.retries.load(Relaxed)).sum();
        let errors: usize = flows.all().iter().map(|flow| flow.errors().len()).sum();
        let mut text = format!(
            "{:>5.1} s  ping {}  udp {}  tcp {}  kv {}  own {}\n",
            at.as_secs_f64(),
            rate(ping.0),
            rate(udp.0),
            bits(tcp.1),
            rate(kv.0),
            bits(own.1),
        );
        let dropped = router.stats.dropped;
        if retries > 0 || errors > 0 || dropped > self.before.router.stats.dropped {
            text += &format!("         retries {retries}  errors {errors}  dropped {dropped}\n");
        }
        text
    }

    fn table(&self, flows: &Flows, router: &Router, at: Duration) -> String {
        let seconds = self.seconds(at);
        let rows: Vec<Vec<String>> = flows
            .all()
            .iter()
            .zip(self.before.flows)
            .map(|(flow, (payloads, bytes))| {
                let grown = |now: u64, before: u64| now.saturating_sub(before) as f64 / seconds;
                let payloads = grown(flow.payloads.load(Relaxed), payloads);
                flow_cells(flow, payloads, grown(flow.bytes.load(Relaxed), bytes))
            })
            .collect();
        format!(
            "client ──── softnet (udp-kv, TCP) ──── server      {:.1} of {:.1} s\n\n{}\n{}",
            at.as_secs_f64(),
            self.duration.as_secs_f64(),
            text::table(&flow_headers(), &rows),
            router_lines(router, Some((&self.before.router, seconds)))
        )
    }
}

/// A bit rate in few columns: `1.32 Gb/s`.
fn bits(bytes_per_second: f64) -> String {
    bit_rate(bytes_per_second).replace("bit/s", "b/s")
}

/// Headers of [`flow_cells`].
pub(super) fn flow_headers() -> Vec<(String, Align)> {
    let mut headers = vec![("flow".to_owned(), Align::Left)];
    headers.extend(
        ["rate", "goodput", "payloads", "bytes", "p50", "p99", "retry", "errors"]
            .map(|title| (title.into(), Align::Right)),
    );
    headers
}

/// A flow so far, and its payloads and bytes a second.
pub(super) fn flow_cells(flow: &Flow, payloads: f64, throughput: f64) -> Vec<String> {
    let latency = |q| flow.latency.quantile(q);
    // Streams are not asked for one after the other: they have neither.
    let rate = latency(0.5).map_or("-".into(), |_| rate(payloads));
    let latency = |q| latency(q).map_or("-".into(), nanos);
    vec![
        flow.name.into(),
        rate,
        bits(throughput),
        grouped(flow.payloads.load(Relaxed)),
        bytes(flow.bytes.load(Relaxed)),
        latency(0.5),
        latency(0.99),
        grouped(flow.retries.load(Relaxed)),
        grouped(flow.errors().len() as u64),
    ]
}

/// What softnet did: all in all, or since some seconds ago.
pub(super) fn router_lines(router: &Router, before: Option<(&Router, f64)>) -> String {
    let stats = &router.stats;
    let mut text = format!(
        "softnet   received {}, transmitted {},\n          delivered {}, dropped {}\n",
        grouped(stats.received),
        grouped(stats.transmitted),
        grouped(stats.delivered),
        grouped(stats.dropped)
    );
    for worker in &router.workers {
        let then = before.and_then(|(then, s)| {
            let old = then.workers.iter().find(|old| old.tid == worker.tid)?;
            Some(worker.cpu_ns.saturating_sub(old.cpu_ns) as f64 / 1e7 / s)
        });
        let cpu = then.unwrap_or(worker.cpu_percent);
        text += &format!(
            "{:<9} CPU {}, {}, {cpu:.0} % of it, {} packets, {} sleeps\n",
            worker.name,
            worker.cpu.map_or("any".into(), |cpu| cpu.to_string()),
            worker.state,
            grouped(worker.packets),
            grouped(worker.sleeps)
        );
    }
    text += &kv_line(&router.kv, before.map(|(then, seconds)| (&then.kv, seconds)));
    for drop in &router.drops {
        text += &format!(
            "dropped   {} from {}: {}\n          ({})\n",
            grouped(drop.packets),
            drop.dev,
            drop.reason,
            drop.help
        );
    }
    text
}

/// What the router's server did, and what woke it: the thread that polls its packets' queue.
fn kv_line(kv: &KvRow, before: Option<(&KvRow, f64)>) -> String {
    let cpu = match before {
        Some((then, seconds)) => kv.cpu_ns.saturating_sub(then.cpu_ns) as f64 / 1e7 / seconds,
        None => kv.cpu_percent,
    };
    let by = kv.polled_by.as_ref().map(|thread| format!(" by {thread}")).unwrap_or_default();
    format!(
        "{:<9} {cpu:.0} % of a core, {} requests, woken {} times{by}\n",
        kv.thread,
        grouped(kv.requests),
        grouped(kv.sleeps)
    )
}
