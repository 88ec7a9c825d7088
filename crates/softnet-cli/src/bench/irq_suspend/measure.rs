//! One measurement: an application in one case, under one load.

use std::time::{Duration, Instant};

use softnet::Stack;
use softnet::control::show::{NapiRow, Stats};
use softnet::control::{SetKnobs, Target};

use super::cases::Case;
use super::figures::{self, Polled, share};
use crate::bench::echo::{Bed, Load, Responder, Usage};
use crate::bench::report::Sample;
use crate::bench::text;

/// How long measurements take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    pub(super) warm_up: Duration,
    pub(super) measure: Duration,
}

/// What the application is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Application {
    /// Computing on each request.
    pub(super) work: Duration,
    /// The CPU it shares with the worker.
    pub(super) cpu: usize,
}

/// Counters at some moment.
struct Snapshot {
    at: Instant,
    napi: NapiRow,
    /// ns that the instance's deferrals took: exact, where the row has their mean.
    deferral_ns: u64,
    worker: Usage,
    application: Usage,
}

impl Snapshot {
    fn take(stack: &Stack, worker: &[i32], application: i32) -> Option<Self> {
        let (worker, application) = (Usage::of(worker), Usage::of(&[application]));
        let instance = stack.shared().napis().into_iter().next()?;
        Some(Snapshot {
            at: Instant::now(),
            napi: stack.view().napis().into_iter().next()?,
            deferral_ns: instance.timer.stats.deferral_ns.get(),
            worker,
            application,
        })
    }
}

/// Runs the application on `bed` as `case` says, applies `load`, and returns the figures.
pub(super) fn measure(
    bed: &mut Bed,
    case: &Case,
    application: Application,
    load: Load,
    times: Times,
) -> Result<Sample, String> {
    let target = Target::Napi(bed.napi);
    let view = bed.stack.view().clone();
    view.set_knobs(&SetKnobs { target, knobs: case.knobs() }).map_err(text)?;
    let (totals, ring_drops) = (view.stats(), bed.lost_on_the_wire()?);
    let Application { work, cpu } = application;
    let responder = Responder::start(&bed.stack, bed.napi, case.poller(), work, case.wait, Some(cpu))?;
    let (worker, app) = (bed.threads(), responder.tid());
    let mut snapshots = Vec::with_capacity(2);
    let mut look = || snapshots.extend(Snapshot::take(&bed.stack, &worker, app));
    let outcome = bed.client.run(&load, times.warm_up, times.measure, &mut look)?;
    let answered = responder.stop()?;
    let [begin, end] = &snapshots[..] else { return Err("the device is gone".into()) };
    let drops = bed.lost_on_the_wire()? - ring_drops;
    balance(&totals, &view.stats(), outcome.lost, drops)?;

    let seconds = (end.at - begin.at).as_secs_f64();
    let polled = Polled { begin: &begin.napi, end: &end.napi, seconds };
    let (worker, app) = (end.worker - begin.worker, end.application - begin.application);
    let deferral_ns = end.deferral_ns.saturating_sub(begin.deferral_ns) as f64 / seconds;
    let deferrals = polled.rate(|n| n.deferrals);
    let mut sample = figures::answered(&load, &outcome);
    sample.extend(figures::cpu((worker.cpu_ns + app.cpu_ns, worker.cpu_ns), seconds, outcome.answered));
    sample.extend(polled.polls());
    sample.extend([
        ("requests_per_wait", share(answered.requests as f64, answered.waits as f64)),
        ("worker_wakeups_per_s", worker.blocked as f64 / seconds),
        ("app_wakeups_per_s", app.blocked as f64 / seconds),
        ("app_preempted_per_s", app.preempted as f64 / seconds),
    ]);
    sample.extend(polled.waits());
    sample.extend([
        ("deferrals_per_s", deferrals),
        ("effective_timeout_us", share(deferral_ns, deferrals) / 1000.0),
    ]);
    sample.extend(figures::missed(&outcome));
    Ok(sample)
}

/// Checks that every request that the stack received since `before` was answered or dropped by it, and that `lost` ones
/// were dropped, by it or, `ring_drops` of them, by the device.
fn balance(before: &Stats, after: &Stats, lost: u64, ring_drops: u64) -> Result<(), String> {
    let since = |of: fn(&Stats) -> u64| of(after) - of(before);
    let (received, transmitted, dropped) =
        (since(|s| s.received), since(|s| s.transmitted), since(|s| s.dropped));
    // Drops of the warm-up are none of the lost that were measured.
    if received != transmitted + dropped || lost > dropped + ring_drops || after.leaked > 0 {
        return Err(format!(
            "{received} requests were received, {transmitted} responses sent, {dropped} dropped, {ring_drops} by the \
             device, {} leaked; the client missed {lost}",
            after.leaked
        ));
    }
    Ok(())
}
