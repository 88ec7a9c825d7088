//! What a run found, as a table and as JSON. The JSON is that of a bench with one row and one round.

use serde_json::json;

use super::tally::LATE;
use super::{Config, Load, Tally, Transport};
use crate::bench::latency::Latency;
use crate::bench::report::{Report, Row};
use crate::text::{Align, grouped, nanos, rate, table};

/// A generator that sent a larger share of its requests late was the limit.
const LATE_SHARE: f64 = 0.01;

/// All that was found, with fixed keys.
pub(super) fn report(config: &Config, tally: &Tally) -> Report {
    let (case, load) = match &config.load {
        Load::Closed { .. } => ("closed", json!("MAX")),
        Load::Open { rate, .. } => ("open", json!(rate)),
    };
    let mut params = vec![
        ("server", json!(config.server.to_string())),
        ("transport", json!(if config.transport == Transport::Tcp { "tcp" } else { "udp" })),
        ("rate", load),
        ("threads", json!(config.threads)),
        ("connections", json!(config.connections)),
    ];
    match &config.load {
        Load::Closed { in_flight } => params.push(("in_flight", json!(in_flight))),
        Load::Open { gaps, .. } => params.push(("iadist", json!(gaps.to_string()))),
    }
    params.extend([
        ("records", json!(config.records.count)),
        ("keysize", json!(config.records.key_size.to_string())),
        ("valuesize", json!(config.records.value_size.to_string())),
        ("update", json!(config.update)),
        ("seconds", json!(config.measure.as_secs_f64())),
    ]);
    let mut row = Row::new(case, params);
    let mut figures = vec![("qps", qps(config, tally))];
    figures.extend(all(tally).figures());
    let percent = |part: u64| part as f64 * 100.0 / tally.sent.max(1) as f64;
    figures.extend([
        ("requests", tally.sent as f64),
        ("lost", tally.lost as f64),
        ("late", tally.late as f64),
        ("misses", tally.misses as f64),
        ("wrong", tally.wrong as f64),
        ("not_sent", tally.not_sent as f64),
        ("sent_late_percent", percent(tally.sent_late)),
    ]);
    row.push(figures);
    row.notes.extend(limit(tally));
    Report::new("load", vec![row], None)
}

/// The same for people.
pub(super) fn text(config: &Config, tally: &Tally) -> String {
    let seconds = config.measure.as_secs_f64();
    let many = |n: usize, what: &str| format!("{n} {what}{}", if n == 1 { "" } else { "s" });
    let how = match &config.load {
        Load::Closed { in_flight } => {
            format!(
                "closed loop, {} in flight on each of {}",
                in_flight,
                many(config.connections, "connection")
            )
        }
        Load::Open { rate: per_second, gaps } => {
            let connections = many(config.connections, "connection");
            format!("open loop, {} ({gaps}) on {connections}", rate(*per_second))
        }
    };
    let records = &config.records;
    let mut text = format!(
        "{}{}: {how} of {}, for {seconds} s\n{} records, keys {}, values {} (up to {} bytes), {} % updates\n\n",
        config.server,
        if config.transport == Transport::Tcp { " by TCP" } else { "" },
        many(config.threads, "thread"),
        grouped(records.count.into()),
        records.key_size,
        records.value_size,
        records.max_value,
        config.update * 100.0,
    );
    let mut headers = vec![("".to_string(), Align::Left)];
    let titles = ["requests", "rate", "avg", "p50", "p90", "p95", "p99", "p99.9", "max"];
    headers.extend(titles.map(|title| (title.to_string(), Align::Right)));
    let line = |name: &str, latency: &Latency| {
        let figures = latency.figures();
        let times = figures.iter().map(|(_, us)| nanos((us * 1000.0) as u64));
        let counts = [name.into(), grouped(latency.count()), rate(latency.count() as f64 / seconds)];
        counts.into_iter().chain(times).collect::<Vec<String>>()
    };
    let mut rows = Vec::new();
    if tally.updates.count() > 0 {
        rows.extend([line("read", &tally.reads), line("update", &tally.updates)]);
    }
    rows.push(line("all", &all(tally)));
    text += &table(&headers, &rows);
    let share = tally.lost as f64 * 100.0 / tally.sent.max(1) as f64;
    text += &format!(
        "\nresponses {}; lost {} of {} ({share:.2} %), late {}, misses {}, wrong {}\n",
        rate(qps(config, tally)),
        grouped(tally.lost),
        grouped(tally.sent),
        grouped(tally.late),
        grouped(tally.misses),
        grouped(tally.wrong),
    );
    for (count, what) in [
        (tally.refused, "requests were not taken by the socket"),
        (tally.strange, "datagrams were no responses"),
    ] {
        if count > 0 {
            text += &format!("{} {what}\n", grouped(count));
        }
    }
    if let Some(limit) = limit(tally) {
        text += &format!("note: {limit}\n");
    }
    text
}

/// Responses a second while it measured.
fn qps(config: &Config, tally: &Tally) -> f64 {
    tally.in_time as f64 / config.measure.as_secs_f64()
}

fn all(tally: &Tally) -> Latency {
    let mut all = Latency::new();
    all.add(&tally.reads);
    all.add(&tally.updates);
    all
}

/// How the generator was the limit, if it was.
fn limit(tally: &Tally) -> Option<String> {
    let due = tally.sent + tally.not_sent;
    let share = |part: u64| part as f64 / due.max(1) as f64;
    if tally.not_sent > 0 {
        let (n, percent) = (grouped(tally.not_sent), share(tally.not_sent) * 100.0);
        return Some(format!(
            "limited by its generator: {n} requests ({percent:.1} %) were not sent, since too many were outstanding"
        ));
    }
    let late = share(tally.sent_late);
    (late > LATE_SHARE).then(|| {
        let (percent, us) = (late * 100.0, LATE / 1000);
        format!("limited by its generator: {percent:.1} % of the requests left more than {us} µs after they were due")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_generator_that_cannot_keep_up_says_so() {
        let mut tally = Tally::new();
        assert_eq!(limit(&tally), None);
        (0..1000).for_each(|i| tally.sent(if i < 10 { LATE + 1 } else { LATE }));
        assert_eq!(limit(&tally), None);
        tally.sent(LATE + 1);
        assert!(limit(&tally).unwrap().contains("1.1 % of the requests left more than 100 µs"));
        tally.not_sent = 1001;
        assert!(limit(&tally).unwrap().contains("1,001 requests (50.0 %) were not sent"));
    }
}
