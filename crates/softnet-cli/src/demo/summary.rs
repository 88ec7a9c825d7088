//! How the demo went: a table for people, or one JSON object.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use serde::Serialize;

use super::Router;
use super::flow::{Flow, Flows, Ip};
use super::live::{flow_cells, flow_headers, router_lines};
use super::topology::Taken;
use super::traffic::TCP_STREAMS;
use crate::Failure;
use crate::text::{self, bit_rate, grouped};

/// How the demo went.
#[derive(Serialize)]
pub(super) struct Summary {
    /// Whether every payload arrived intact, in every flow.
    pub(super) ok: bool,
    /// How softnet took its interfaces.
    #[serde(rename = "driver")]
    pub(super) taken: Taken,
    /// How long was sent.
    duration_s: f64,
    flows: Vec<FlowSummary>,
    /// What softnet says of itself.
    router: Router,
    #[serde(skip)]
    table: String,
}

#[derive(Serialize)]
struct FlowSummary {
    flow: &'static str,
    payloads: u64,
    payloads_per_s: f64,
    bytes: u64,
    bits_per_s: f64,
    p50_us: Option<f64>,
    p99_us: Option<f64>,
    retries: u64,
    errors: Vec<String>,
}

impl FlowSummary {
    fn new(flow: &Flow, seconds: f64, least: u64) -> Self {
        let latency = |q| flow.latency.quantile(q).map(|ns| ns as f64 / 1e3);
        let (payloads, bytes) = (flow.payloads.load(Relaxed), flow.bytes.load(Relaxed));
        let mut errors = flow.errors();
        if payloads < least && errors.is_empty() {
            errors.push(format!("expected at least {least} payloads to arrive, {payloads} did"));
        }
        FlowSummary {
            flow: flow.name,
            payloads,
            payloads_per_s: payloads as f64 / seconds,
            bytes,
            bits_per_s: bytes as f64 * 8.0 / seconds,
            p50_us: latency(0.5),
            p99_us: latency(0.99),
            retries: flow.retries.load(Relaxed),
            errors,
        }
    }
}

impl Summary {
    pub(super) fn new(flows: &Flows, router: Router, sent_for: Duration) -> Self {
        let seconds = sent_for.as_secs_f64().max(1e-3);
        let all = flows.all();
        let streams = Ip::BOTH.map(|ip| [flows.tcp[ip].name, flows.own[ip].name]);
        let least = |flow: &Flow| if streams.as_flattened().contains(&flow.name) { TCP_STREAMS } else { 1 };
        let summaries = all.map(|flow| FlowSummary::new(flow, seconds, least(flow)));
        let cells = |(flow, found): (&&Flow, &FlowSummary)| {
            flow_cells(flow, found.payloads_per_s, found.bits_per_s / 8.0)
        };
        let rows: Vec<Vec<String>> = all.iter().zip(&summaries).map(cells).collect();
        Summary {
            ok: summaries.iter().all(|flow| flow.errors.is_empty()),
            taken: Taken::Xdp,
            duration_s: seconds,
            flows: summaries.into(),
            router,
            table: text::table(&flow_headers(), &rows),
        }
    }

    pub(super) fn json(&self) -> Result<String, Failure> {
        let json = serde_json::to_string_pretty(self).map_err(|error| Failure::of("writing JSON", error))?;
        Ok(json + "\n")
    }

    pub(super) fn text(&self) -> String {
        let mut text = format!(
            "\nin {:.1} s:\n\n{}\n{}\n",
            self.duration_s,
            self.table,
            router_lines(&self.router, None)
        );
        for flow in &self.flows {
            for error in &flow.errors {
                text += &format!("{}: {error}\n", flow.flow);
            }
        }
        let all: u64 = self.flows.iter().map(|flow| flow.payloads).sum();
        let rate = bit_rate(self.flows.iter().map(|flow| flow.bits_per_s / 8.0).sum());
        text + &match self.ok {
            true => format!("Every payload arrived intact: {} of them, {rate}.\n", grouped(all)),
            false => "NOT every payload arrived intact.\n".into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_and_verdict() {
        let flows = Flows::new();
        for ip in [Ip::V4, Ip::V6, Ip::V4, Ip::V6] {
            flows.ping[ip].verified(500_000, Duration::from_micros(80));
            flows.udp[ip].verified(0, Duration::from_micros(90));
            flows.tcp[ip].payloads.fetch_add(1, Relaxed);
            flows.kv[ip].verified(0, Duration::from_micros(50));
            flows.own[ip].payloads.fetch_add(1, Relaxed);
        }
        let summary = Summary::new(&flows, Router::default(), Duration::from_secs(2));
        assert!(summary.ok);
        assert_eq!([0, 5].map(|i| summary.flows[i].bits_per_s), [4e6; 2]);
        let text = summary.text();
        assert!(text.ends_with("\nEvery payload arrived intact: 20 of them, 8.00 Mbit/s.\n"), "{text}");

        flows.udp[Ip::V4].failed("request 3 differs at byte 9 of its payload".into());
        let text = Summary::new(&flows, Router::default(), Duration::from_secs(2)).text();
        let end = "\nudp: request 3 differs at byte 9 of its payload\nNOT every payload arrived intact.\n";
        assert!(text.ends_with(end), "{text}");
    }

    #[test]
    fn nothing_at_all_is_not_intact() {
        let summary = Summary::new(&Flows::new(), Router::default(), Duration::from_secs(1));
        assert!(!summary.ok);
        assert_eq!(summary.flows[2].errors, ["expected at least 2 payloads to arrive, 0 did"]);
    }
}
