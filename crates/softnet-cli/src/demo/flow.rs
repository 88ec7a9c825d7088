//! What one kind of traffic has done so far: written by its threads, read by the display.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Values below this have a bucket each.
const EXACT: u64 = 32;
/// Buckets of each doubling above: a value is known to 1/16.
const PER_DOUBLING: usize = 16;
const BUCKETS: usize = EXACT as usize + 59 * PER_DOUBLING;

/// How often each duration was seen. Written by one thread, read by any.
pub(crate) struct Histogram(Box<[AtomicU64]>);

impl Histogram {
    fn new() -> Self {
        Histogram((0..BUCKETS).map(|_| AtomicU64::new(0)).collect())
    }

    fn bucket(ns: u64) -> usize {
        if ns < EXACT {
            return ns as usize;
        }
        let doubling = ns.ilog2() as usize;
        let part = (ns >> (doubling - 4)) as usize % PER_DOUBLING;
        EXACT as usize + (doubling - 5) * PER_DOUBLING + part
    }

    /// The middle of a bucket.
    fn value(bucket: usize) -> u64 {
        let Some(above) = bucket.checked_sub(EXACT as usize) else { return bucket as u64 };
        let (doubling, part) = (above / PER_DOUBLING + 5, (above % PER_DOUBLING) as u64);
        let width = 1 << (doubling - 4);
        (1 << doubling) + part * width + width / 2
    }

    pub(crate) fn record(&self, duration: Duration) {
        let ns = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        self.0[Self::bucket(ns)].fetch_add(1, Relaxed);
    }

    /// The duration in nanoseconds that a share of `q` of all do not exceed; `None` if there are none.
    pub(crate) fn quantile(&self, q: f64) -> Option<u64> {
        let counts: Vec<u64> = self.0.iter().map(|count| count.load(Relaxed)).collect();
        let rank = (counts.iter().sum::<u64>() as f64 * q).ceil().max(1.0) as u64;
        let mut seen = 0;
        let bucket = counts.iter().position(|count| {
            seen += count;
            seen >= rank
        });
        bucket.map(Self::value)
    }
}

/// One kind of traffic.
pub(crate) struct Flow {
    /// `ping`, `udp`, `tcp`, `kv`, `own`.
    pub(crate) name: &'static str,
    /// Payloads whose answer arrived and was right (TCP: streams that arrived whole).
    pub(crate) payloads: AtomicU64,
    /// Payload bytes that arrived and were right, both ways.
    pub(crate) bytes: AtomicU64,
    /// Payloads sent again because no answer came in time.
    pub(crate) retries: AtomicU64,
    /// From the first sending of a payload to its answer.
    pub(crate) latency: Histogram,
    errors: Mutex<Vec<String>>,
}

impl Flow {
    pub(crate) fn new(name: &'static str) -> Self {
        Flow {
            name,
            payloads: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            retries: AtomicU64::new(0),
            latency: Histogram::new(),
            errors: Mutex::new(Vec::new()),
        }
    }

    /// A payload of `bytes` both ways was answered after `latency`.
    pub(crate) fn verified(&self, bytes: usize, latency: Duration) {
        self.payloads.fetch_add(1, Relaxed);
        self.bytes.fetch_add(bytes as u64, Relaxed);
        self.latency.record(latency);
    }

    /// Something went wrong: the demo fails.
    pub(crate) fn failed(&self, error: String) {
        self.errors.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push(error);
    }

    /// What went wrong.
    pub(crate) fn errors(&self) -> Vec<String> {
        self.errors.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).clone()
    }
}

/// Which family a flow is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ip {
    V4,
    V6,
}

impl Ip {
    pub(crate) const BOTH: [Ip; 2] = [Ip::V4, Ip::V6];
}

/// One kind of traffic over IPv4, and over IPv6.
pub(crate) struct Both([Flow; 2]);

impl std::ops::Index<Ip> for Both {
    type Output = Flow;

    fn index(&self, ip: Ip) -> &Flow {
        &self.0[ip as usize]
    }
}

/// All traffic of a run.
pub(crate) struct Flows {
    pub(crate) ping: Both,
    pub(crate) udp: Both,
    pub(crate) tcp: Both,
    /// Requests to the router itself.
    pub(crate) kv: Both,
    /// TCP streams that end at the router itself.
    pub(crate) own: Both,
    /// Set when nothing new is to be sent; what is on the way is still waited for.
    pub(crate) stop: AtomicBool,
}

impl Flows {
    /// Kinds of traffic, of either family.
    pub(crate) const KINDS: usize = 5;

    pub(crate) fn new() -> Self {
        let names = [["ping", "ping6"], ["udp", "udp6"], ["tcp", "tcp6"], ["kv", "kv6"], ["own", "own6"]];
        let [ping, udp, tcp, kv, own] = names.map(|names| Both(names.map(Flow::new)));
        Flows { ping, udp, tcp, kv, own, stop: AtomicBool::new(false) }
    }

    /// Ping, UDP, TCP, requests and streams to the router over IPv4, then over IPv6.
    pub(crate) fn all(&self) -> [&Flow; 2 * Self::KINDS] {
        let of = |ip| [&self.ping[ip], &self.udp[ip], &self.tcp[ip], &self.kv[ip], &self.own[ip]];
        let [[a, b, c, d, e], [f, g, h, i, j]] = Ip::BOTH.map(of);
        [a, b, c, d, e, f, g, h, i, j]
    }

    pub(crate) fn stopping(&self) -> bool {
        self.stop.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_in_order_and_near_their_values() {
        let mut last = 0;
        for ns in (0..200_000).chain((0..44).map(|shift| 200_000 << shift)).chain([u64::MAX]) {
            let bucket = Histogram::bucket(ns);
            assert!(bucket >= last && bucket < BUCKETS, "{ns}");
            last = bucket;
            assert!(Histogram::value(bucket).abs_diff(ns) <= ns / 16, "{ns} {}", Histogram::value(bucket));
        }
    }

    #[test]
    fn quantiles() {
        let histogram = Histogram::new();
        assert_eq!(histogram.quantile(0.5), None);
        for ns in 1..=20 {
            histogram.record(Duration::from_nanos(ns));
        }
        assert_eq!([0.0, 0.5, 0.99, 1.0].map(|q| histogram.quantile(q)), [1, 10, 20, 20].map(Some));
    }
}
