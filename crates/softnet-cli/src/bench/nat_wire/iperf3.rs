//! iperf3's streams instead of the bench's own.
//!
//! Invariant: the server serves one client and ends, and both end with the measurement that started them.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use softnet_dev::netns::NetNs;

use crate::bench::cpu::busy_ns;
use crate::bench::report::Sample;
use crate::bench::text;

/// How long the server may take to listen, and both to end.
const PATIENCE: Duration = Duration::from_secs(15);

/// A program that ends with this.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(ns: &NetNs, args: &[String]) -> Result<Running, String> {
    let mut iperf3 = Command::new("iperf3");
    iperf3.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let started = ns.run(|| iperf3.spawn()).map_err(text)?;
    started.map(Running).map_err(|error| format!("iperf3 (Debian: apt-get install iperf3): {error}"))
}

/// What `streams` from `client` to the server at `address` carry together in `time`, after `warm`.
pub(super) fn measure(
    [client, server]: [&NetNs; 2],
    address: &str,
    streams: usize,
    (warm, time): (Duration, Duration),
) -> Result<Sample, String> {
    let words = |line: String| line.split_whitespace().map(String::from).collect::<Vec<_>>();
    // It is refused until the server listens.
    let deadline = Instant::now() + PATIENCE;
    let mut serving = start(server, &words(format!("--server --one-off --bind {address}")))?;
    loop {
        let [seconds, omit] = [time, warm].map(|time| time.as_secs().max(1));
        let line = format!(
            "--client {address} --parallel {streams} --time {seconds} --omit {omit} --congestion cubic --json"
        );
        let (began, cpu) = (Instant::now(), busy_ns());
        let mut running = start(client, &words(line))?;
        let stdout = running.0.stdout.take().ok_or("iperf3 has no output")?;
        let said: Value = serde_json::from_reader(stdout).map_err(|error| format!("iperf3: {error}"))?;
        let cpu = busy_ns().saturating_sub(cpu) as f64 / 1e9 / began.elapsed().as_secs_f64();
        if let Some(error) = said["error"].as_str() {
            if Instant::now() > deadline || !error.contains("refused") {
                return Err(format!("iperf3: {error}"));
            }
            if serving.0.try_wait().map_err(text)?.is_some() {
                serving = start(server, &words(format!("--server --one-off --bind {address}")))?;
            }
            std::thread::sleep(Duration::from_millis(20));
            continue;
        }
        let end = &said["end"];
        let number = |value: &Value| value.as_f64().ok_or("iperf3 said no figure");
        let gbit_s = number(&end["sum_received"]["bits_per_second"])? / 1e9;
        let (again, bytes) = (number(&end["sum_sent"]["retransmits"])?, number(&end["sum_sent"]["bytes"])?);
        return Ok(vec![
            ("gbit_s", gbit_s),
            ("cpu_percent", 100.0 * cpu),
            ("gbit_s_per_cpu", gbit_s / cpu.max(0.01)),
            ("retransmits_percent", 100.0 * again / (bytes / 1448.0).max(1.0)),
        ]);
    }
}
