//! The row of a NAPI instance, and why it is awake or asleep.

use softnet_core::sync::Ordering::Relaxed;

use crate::context::Context;
use crate::instance::{Home, NapiInstance};
use crate::netdev::Netdev;
use crate::residency::Phase;
use crate::show::{AppRow, NapiRow, TimerRow};
use crate::timer::Timeout;

/// The row of `instance`, which belongs to `dev`, at `now`.
pub(super) fn row(dev: &Netdev, instance: &NapiInstance, now: u64) -> NapiRow {
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
    let app = apps.first().map_or("", |app| &app.name);
    let owner = match (napi.state().is_scheduled(), phase) {
        (false, _) => "nobody".into(),
        (true, Phase::Application) => format!("application {app}"),
        (true, _) => thread.clone(),
    };
    let context = home.map_or_else(|| dev.threaded(napi.queue), |home| home.context());
    let armed = timer.armed().map(|(timeout, _, deadline)| TimerRow {
        knob: match timeout {
            Timeout::GroFlush => "gro_flush_timeout",
            Timeout::IrqSuspend => "irq_suspend_timeout",
        }
        .into(),
        left: deadline.saturating_sub(now),
    });
    let deferrals = timer.stats.deferrals.get();
    let app_row = |app: &std::sync::Arc<crate::app::App>| AppRow {
        name: app.name.clone(),
        tid: app.tid.load(Relaxed) as i32,
        packets: app.packets.load(Relaxed),
        dropped: app.dropped.load(Relaxed),
        queued: app.queued() as u64,
        sleeps: app.sleeps.load(Relaxed),
    };
    let spent = instance.residency.totals(now);
    NapiRow {
        id: napi.id,
        name: napi.name.clone(),
        dev: dev.name.clone(),
        queue: napi.queue,
        worker: instance.worker,
        context,
        why: why(phase, now.saturating_sub(since), context, armed.as_ref(), &owner, app),
        owner,
        thread,
        tid,
        state: state.split('|').filter(|bit| *bit != "idle").map(String::from).collect(),
        doorbell: if instance.armed.load(Relaxed) { "unmasked" } else { "masked" }.into(),
        napi_defer_hard_irqs: knobs.defer_hard_irqs(),
        gro_flush_timeout: knobs.gro_flush_timeout(),
        irq_suspend_timeout: knobs.irq_suspend_timeout(),
        warning: knobs.warning().map(String::from),
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
        time_ns: Phase::ALL.iter().map(|phase| (phase.name().into(), spent[*phase as usize])).collect(),
        kernel_irq: instance.doorbell.kernel_irq().to_string(),
        polls: stats.polls.get(),
        empty_polls: stats.empty_polls.get(),
        full_polls: stats.full_polls.get(),
        packets: stats.packets.get(),
        schedules: stats.schedules.get(),
        missed: stats.missed.get(),
    }
}

/// Why an instance is awake or asleep, having been in `phase` for `ns`.
fn why(phase: Phase, ns: u64, context: Context, timer: Option<&TimerRow>, owner: &str, app: &str) -> String {
    let left = timer.map_or_else(|| "soon".into(), |timer| format!("in {}", time(timer.left)));
    match phase {
        Phase::Irq => format!("asleep: nothing came for {}; its doorbell will wake it", time(ns)),
        Phase::Deferred => format!("asleep: its doorbell is masked; its timer polls {left}"),
        Phase::Suspended => {
            format!(
                "asleep: application {app} is busy and polls when it is done; if not, its timer does {left}"
            )
        }
        Phase::Polled if context == Context::BusyPoll => "awake: busy-poll never sleeps".into(),
        Phase::Polled => format!("awake: {owner} polls since {}, packets keep coming", time(ns)),
        Phase::Application => format!("awake: application {app} polls it"),
    }
}

/// A time for people: three digits at the most.
fn time(ns: u64) -> String {
    match ns {
        0..10_000 => format!("{ns} ns"),
        10_000..10_000_000 => format!("{} µs", ns / 1000),
        10_000_000..10_000_000_000 => format!("{} ms", ns / 1_000_000),
        _ => format!("{} s", ns / 1_000_000_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_why() {
        let timer = TimerRow { knob: "irq_suspend_timeout".into(), left: 19_200_000 };
        let say = |phase| why(phase, 3_200_000_000, Context::Softirq, Some(&timer), "softnet/0", "echo");
        assert_eq!(say(Phase::Irq), "asleep: nothing came for 3200 ms; its doorbell will wake it");
        assert_eq!(say(Phase::Deferred), "asleep: its doorbell is masked; its timer polls in 19 ms");
        assert_eq!(
            say(Phase::Suspended),
            "asleep: application echo is busy and polls when it is done; if not, its timer does in 19 ms"
        );
        assert_eq!(say(Phase::Polled), "awake: softnet/0 polls since 3200 ms, packets keep coming");
        assert_eq!(say(Phase::Application), "awake: application echo polls it");
    }
}
