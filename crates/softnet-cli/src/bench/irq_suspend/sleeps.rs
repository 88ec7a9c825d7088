//! The control of suspend20's CPU use: a thread that sleeps 20 µs over and over, and does nothing else. What that takes, a
//! server that sleeps as often takes too, whatever it does in between.

use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;

use super::figures::share;
use super::load::load_value;
use super::measure::Times;
use crate::bench::echo::Usage;
use crate::bench::pin;
use crate::bench::report::{Row, Sample};

const SLEEP: Duration = Duration::from_micros(20);

pub(super) fn row() -> Row {
    let params = vec![("app", json!("none")), ("device", json!("none")), ("load", load_value(Some(0)))];
    let mut row = Row::new("sleep20", params);
    row.notes.push("control: a thread that does nothing but sleep 20 µs".into());
    row
}

/// Lets a thread sleep so on CPU `cpu`.
pub(super) fn measure(cpu: usize, times: Times) -> Result<Sample, String> {
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let (ready, tid) = mpsc::channel();
        let sleeper = scope.spawn({
            let over = &over;
            move || -> Result<(), String> {
                pin(cpu)?;
                // As polling threads have it.
                rustix::thread::set_current_timer_slack(Some(NonZeroU64::MIN)).map_err(|e| e.to_string())?;
                let _ = ready.send(rustix::thread::gettid().as_raw_nonzero().get());
                while !over.load(Ordering::Relaxed) {
                    thread::sleep(SLEEP);
                }
                Ok(())
            }
        });
        // None comes from a thread that failed.
        let figures = tid.recv().ok().map(|tid| {
            let (begin, at) = (Usage::of(&[tid]), Instant::now());
            thread::sleep(times.measure);
            let (used, seconds) = (Usage::of(&[tid]) - begin, at.elapsed().as_secs_f64());
            vec![
                ("cpu_percent", used.cpu_ns as f64 / 1e7 / seconds),
                ("app_wakeups_per_s", used.blocked as f64 / seconds),
                ("cpu_ns_per_sleep", share(used.cpu_ns as f64, used.blocked as f64)),
            ]
        });
        over.store(true, Ordering::Relaxed);
        sleeper.join().map_err(|_| "the thread that sleeps ended")??;
        figures.ok_or_else(|| "nothing was measured".into())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_sleeps_blocks_each_time() {
        let times = Times { warm_up: Duration::ZERO, measure: Duration::from_millis(50) };
        let sample = measure(0, times).unwrap();
        let of = |name| sample.iter().find(|(figure, _)| *figure == name).unwrap().1;
        assert!(of("app_wakeups_per_s") > 0.0 && of("cpu_ns_per_sleep") > 0.0, "{sample:?}");
    }
}
