//! The row of a NAPI instance, and why it is awake or asleep.

use softnet_core::gro::{Flushed, GroConfig, GroStats};
use softnet_core::sync::Ordering::Relaxed;

use crate::config::Context;
use crate::control::show::{AppRow, GroRow, NapiRow, TimerRow};
use crate::napi::{Home, NapiInstance, Phase, Timeout};
use crate::util::thread_cpu_ns;

const GRO_FLUSH: &str = "gro_flush_timeout";
const IRQ_SUSPEND: &str = "irq_suspend_timeout";

/// The row of `instance`, which belongs to `dev` and is to be polled in the context `threaded`, at
/// `now`.
pub(super) fn row(dev: &str, threaded: Context, instance: &NapiInstance, now: u64) -> NapiRow {
    let (napi, counts, timer) = (&instance.napi, &instance.stats, &instance.timer);
    let (stats, knobs) = (&napi.stats, &napi.mitigation);
    let state = napi.state().to_string();
    let home = instance.home();
    let (thread, tid) = match &home {
        Some(Home::Worker(worker)) => (worker.thread.name.clone(), worker.thread.tid.load(Relaxed) as i32),
        Some(Home::Pool(_)) => ("napi-wq".into(), 0),
        // It is just being switched.
        None => ("-".into(), 0),
    };
    let (phase, since) = instance.residency.phase();
    let apps = instance.apps.list();
    let poller = instance.poller.load(Relaxed);
    let app = apps.iter().find(|app| app.tid.load(Relaxed) == poller);
    let app = app.map_or_else(|| "an application".into(), |app| format!("application {}", app.name));
    let owner = match (napi.state().is_scheduled(), phase) {
        (false, _) => "none".into(),
        (true, Phase::Application) => app.clone(),
        (true, _) => thread.clone(),
    };
    let context = home.map_or(threaded, |home| home.context());
    // An application that sleeps may poll before the timer is due, which then stands behind it.
    let polls_at = Some(instance.polls_at.load(Relaxed)).filter(|at| *at != 0);
    let armed = timer.armed().map(|(timeout, _, deadline)| TimerRow {
        knob: match timeout {
            Timeout::GroFlush => GRO_FLUSH,
            Timeout::IrqSuspend => IRQ_SUSPEND,
            Timeout::Refill => "refill",
        }
        .into(),
        left: polls_at.unwrap_or(deadline).saturating_sub(now),
    });
    let deferrals = timer.stats.deferrals.get();
    let app_row = |app: &std::sync::Arc<crate::napi::App>| AppRow {
        name: app.name.clone(),
        tid: app.tid.load(Relaxed) as i32,
        packets: app.packets.load(Relaxed),
        dropped: app.dropped.load(Relaxed),
        queued: app.queued() as u64,
        sleeps: app.sleeps.load(Relaxed),
        cpu_ns: thread_cpu_ns(app.tid.load(Relaxed) as i32),
    };
    let spent = instance.residency.totals(now);
    NapiRow {
        id: napi.id,
        name: napi.name.clone(),
        dev: dev.into(),
        queue: napi.queue,
        worker: instance.worker,
        context,
        why: match napi.state().is_disabled() {
            true => "asleep: disabled while it is switched to another context, or closed".into(),
            false => {
                let timed = if polls_at.is_some() { &app } else { &thread };
                why(phase, now.saturating_sub(since), context, armed.as_ref(), timed, &thread, &app)
            }
        },
        owner,
        thread,
        tid,
        state: state.split('|').filter(|bit| *bit != "idle").map(String::from).collect(),
        doorbell: if instance.armed.load(Relaxed) { "unmasked" } else { "masked" }.into(),
        napi_defer_hard_irqs: knobs.defer_hard_irqs(),
        gro_flush_timeout: knobs.gro_flush_timeout(),
        irq_suspend_timeout: knobs.irq_suspend_timeout(),
        warning: warning(instance, context).map(String::from),
        timer: armed,
        deferrals,
        effective_timeout: timer.stats.deferral_ns.get() / deferrals.max(1),
        rescues: timer.stats.rescues.get(),
        doorbells: counts.doorbells.load(Relaxed),
        busy_polls: counts.busy_polls.load(Relaxed),
        busy_poll_lost: counts.busy_poll_lost.load(Relaxed),
        suspensions: counts.suspensions.load(Relaxed),
        resumptions: counts.resumptions.load(Relaxed),
        applications: apps.iter().map(app_row).collect(),
        application_drops: instance.apps.dropped(),
        time_ns: Phase::ALL.iter().map(|phase| (phase.name().into(), spent[*phase as usize])).collect(),
        kernel_irq: instance.doorbell.kernel_irq().to_string(),
        gro: gro_row(&napi.gro, &stats.gro),
        polls: stats.polls.get(),
        empty_polls: stats.empty_polls.get(),
        full_polls: stats.full_polls.get(),
        packets: stats.packets.get(),
        schedules: stats.schedules.get(),
        missed: stats.missed.get(),
    }
}

fn gro_row(knob: &GroConfig, stats: &GroStats) -> GroRow {
    GroRow {
        mode: knob.mode().name().into(),
        held: stats.held() as u64,
        merged: stats.merged.get(),
        aggregates: stats.aggregates.get(),
        segments: stats.segments.get(),
        flushed: Flushed::ALL.iter().map(|why| (why.name().into(), stats.flushed(*why))).collect(),
    }
}

/// What keeps a knob that is set from acting: other knobs, the context, or that no application makes use of it.
fn warning(instance: &NapiInstance, context: Context) -> Option<&'static str> {
    let knobs = &instance.napi.mitigation;
    let (defers, suspends) = (knobs.defer_hard_irqs() > 0, knobs.irq_suspend_timeout() > 0);
    if let Some(warning) = knobs.warning() {
        return Some(warning);
    }
    // An epoll set is in no list of the instance: what it did tells of it.
    let was_suspended = instance.stats.suspensions.load(Relaxed) > 0;
    if suspends && !was_suspended && !instance.apps.any() {
        return Some(
            "irq_suspend_timeout has no effect without an application that polls with prefer_busy_poll; none did so far",
        );
    }
    (defers && context == Context::BusyPoll)
        .then_some("napi_defer_hard_irqs has no effect in busy-poll, which never unmasks the doorbell")
}

/// Why an instance is awake or asleep that has been in `phase` for `ns`, and whose context polls by `thread`; `timed` polls
/// when a deferral is over.
fn why(
    phase: Phase,
    ns: u64,
    context: Context,
    timer: Option<&TimerRow>,
    timed: &str,
    thread: &str,
    app: &str,
) -> String {
    let next = match timer.map_or(0, |timer| timer.left) {
        0 => "now".into(),
        left => format!("in {}", time(left)),
    };
    // The timer and the phase change one after the other, and are read without a lock: the timer says which is to poll next.
    let phase = match (phase, timer.map(|timer| &timer.knob[..])) {
        (Phase::Deferred | Phase::Suspended, Some(GRO_FLUSH)) => Phase::Deferred,
        (Phase::Deferred | Phase::Suspended, Some(IRQ_SUSPEND)) => Phase::Suspended,
        _ => phase,
    };
    match phase {
        Phase::Irq => format!("asleep: nothing came for {}; its doorbell will wake {thread}", time(ns)),
        Phase::Deferred => {
            format!("asleep: doorbell masked after a poll; {timed} polls again {next} (gro_flush_timeout)")
        }
        Phase::Suspended => {
            format!("asleep: {app} is at work and polls next; if it hangs, {thread} polls {next}")
        }
        Phase::Polled if context == Context::BusyPoll => {
            format!("awake: busy-poll never sleeps; {thread} polls")
        }
        Phase::Polled => format!("awake: packets keep coming; {thread} has polled for {}", time(ns)),
        Phase::Application => format!("awake: {app} has polled for {}", time(ns)),
    }
}

/// A time for people: three digits.
fn time(ns: u64) -> String {
    let (value, unit) = match ns {
        0..1_000 => return format!("{ns} ns"),
        1_000..1_000_000 => (ns as f64 / 1e3, "µs"),
        1_000_000..1_000_000_000 => (ns as f64 / 1e6, "ms"),
        1_000_000_000..120_000_000_000 => (ns as f64 / 1e9, "s"),
        120_000_000_000..7_200_000_000_000 => return format!("{} min", ns / 60_000_000_000),
        _ => return format!("{} h", ns / 3_600_000_000_000),
    };
    // Cut, not rounded: 999.9 µs are no 1000 µs.
    let decimals = if value < 10.0 { 2 } else { usize::from(value < 100.0) };
    let scale = 10f64.powi(decimals as i32);
    format!("{:.decimals$} {unit}", (value * scale).floor() / scale)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_why() {
        let say = |phase, context, knob: Option<&str>| {
            let timer = knob.map(|knob| TimerRow { knob: knob.into(), left: 19_200_000 });
            why(phase, 3_200_000_000, context, timer.as_ref(), "softnet/0", "softnet/0", "application echo")
        };
        for (phase, knob, expected) in [
            (Phase::Irq, GRO_FLUSH, "asleep: nothing came for 3.20 s; its doorbell will wake softnet/0"),
            (
                Phase::Deferred,
                GRO_FLUSH,
                "asleep: doorbell masked after a poll; softnet/0 polls again in 19.2 ms (gro_flush_timeout)",
            ),
            (
                // The application suspends it in this moment.
                Phase::Deferred,
                IRQ_SUSPEND,
                "asleep: application echo is at work and polls next; if it hangs, softnet/0 polls in 19.2 ms",
            ),
            (Phase::Polled, GRO_FLUSH, "awake: packets keep coming; softnet/0 has polled for 3.20 s"),
            (Phase::Application, GRO_FLUSH, "awake: application echo has polled for 3.20 s"),
        ] {
            assert_eq!(say(phase, Context::Softirq, Some(knob)), expected);
        }
        let never = say(Phase::Polled, Context::BusyPoll, None);
        assert_eq!(never, "awake: busy-poll never sleeps; softnet/0 polls");
        let due = say(Phase::Deferred, Context::Softirq, None);
        assert!(due.contains("softnet/0 polls again now"), "{due}");
    }

    #[test]
    fn times_have_three_digits() {
        let shown =
            [0, 999, 1_000, 12_345, 999_999, 1_000_000, 59_990_000_000, 180_000_000_000, 7_200_000_000_000]
                .map(time);
        let expected =
            ["0 ns", "999 ns", "1.00 µs", "12.3 µs", "999 µs", "1.00 ms", "59.9 s", "3 min", "2 h"];
        assert_eq!(shown, expected);
    }
}
