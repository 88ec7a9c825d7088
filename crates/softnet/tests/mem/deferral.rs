//! Interrupt deferral on real threads: doorbells stay masked while timers poll, and no packet waits for ever.

use softnet::config::{Context, Knobs};
use softnet::control::show::NapiRow;
use softnet::control::{SetKnobs, Target};

use super::frames::{host, number_of, numbered};
use super::world::{Setup, World, of_port, ping, until};

fn set(world: &World, n: u64, t: u64) -> Result<Vec<NapiRow>, String> {
    let target = Target::Dev("mem0".into());
    let knobs = Knobs::default().with(|knobs| {
        knobs.napi_defer_hard_irqs = Some(n);
        knobs.gro_flush_timeout = Some(t);
    });
    world.view.set_knobs(&SetKnobs { target, knobs }).map_err(|error| error.to_string())
}

fn doorbell(world: &World) -> String {
    let rows = world.view.napis();
    rows.into_iter().find(|row| row.dev == "mem0").expect("mem0").doorbell
}

fn timer_wake_ups(world: &World) -> u64 {
    world.view.workers().iter().map(|row| row.wakeups["timer"]).sum()
}

#[test]
fn a_deferred_queue_is_polled_by_its_timer_and_unmasked_when_it_runs_dry() {
    let (world, mut lanes) = Setup { ports: &[1, 1], workers: 1, known: true, ..Setup::default() }.start();
    let mut sinks = of_port(&mut lanes, 1);
    for context in [Context::Softirq, Context::Threaded, Context::Workqueue] {
        world.set(0, context);
        let rows = set(&world, 5, 100_000).unwrap();
        assert_eq!((rows[0].napi_defer_hard_irqs, rows[0].gro_flush_timeout), (5, 100_000));
        let before = timer_wake_ups(&world);
        for number in 0..200 {
            ping(&mut lanes[0], &mut sinks, number);
        }
        until("unmasked", || doorbell(&world) == "unmasked");
        assert!(timer_wake_ups(&world) > before, "{context}: timers polled");
        // With time-outs that never come to their end here, the doorbell stays masked, and only a switch (which polls) or
        // the timer finds what came.
        set(&world, 1_000_000, 3_600_000_000_000).unwrap();
        ping(&mut lanes[0], &mut sinks, 200);
        until("masked", || doorbell(&world) == "masked");
        assert_eq!(lanes[0].send(&[numbered(0, host(1), 0, 201)]), 1);
        set(&world, 0, 0).unwrap();
        world.set(0, if context == Context::Workqueue { Context::Threaded } else { Context::Workqueue });
        let mut got = None;
        until("the packet that waited", || {
            sinks.iter_mut().for_each(|sink| _ = sink.receive(|frame| got = number_of(frame)));
            got == Some((0, 201))
        });
        until("unmasked again", || doorbell(&world) == "unmasked");
    }
    lanes.append(&mut sinks);
    world.end(lanes);
}

#[test]
fn knobs_out_of_range_are_refused_and_useless_ones_warned_of() {
    let (world, lanes) = Setup { ports: &[1, 1], workers: 1, known: true, ..Setup::default() }.start();
    let error = set(&world, 1 << 31, 5).unwrap_err();
    assert_eq!(error, "napi_defer_hard_irqs: 2147483648 is out of range, 0 to 2147483647 expected");
    assert_eq!(world.view.napis()[0].gro_flush_timeout, 0, "nothing changed");
    let rows = set(&world, 3, 0).unwrap();
    assert_eq!(
        rows[0].warning.as_deref(),
        Some("napi_defer_hard_irqs has no effect without gro_flush_timeout")
    );
    let knobs = Knobs::default().with(|knobs| knobs.napi_defer_hard_irqs = Some(1));
    let unknown = SetKnobs { target: Target::Napi(1), knobs };
    let error = world.view.set_knobs(&unknown).unwrap_err().to_string();
    assert!(error.contains("(mem0-0)"), "{error}");
    world.end(lanes);
}
