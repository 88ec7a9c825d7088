//! Every request is answered or lost, in every way an application may wait.

use softnet::PollerParams;
use softnet::config::Knobs;
use softnet::control::{SetKnobs, Target};

use super::client::Outcome;
use super::responder::Answered;
use super::*;

const SHORT: Duration = Duration::from_millis(5);
const MEASURE: Duration = Duration::from_millis(50);

/// Any CPU will do here, also for all.
fn setup() -> Setup {
    Setup {
        cpu: crate::bench::cpus()[0],
        policy: None,
        payload: 64,
        context: Context::Softirq,
        coalesce: Coalesce::default(),
    }
}

fn run(bed: &mut Bed, params: PollerParams, load: Load) -> (Outcome, Answered, usize) {
    let work = Duration::from_micros(1);
    // However long the machine keeps a thread waiting.
    bed.client.silence = Duration::from_secs(60);
    let responder = Responder::start(&bed.stack, bed.napi, params, work, None, None).unwrap();
    assert!(responder.tid() > 0 && !bed.threads().contains(&responder.tid()));
    let mut edges = 0;
    let outcome = bed.client.run(&load, SHORT, MEASURE, &mut || edges += 1).unwrap();
    (outcome, responder.stop().unwrap(), edges)
}

fn suspend(budget: u16) -> PollerParams {
    PollerParams { prefer_busy_poll: true, busy_poll_budget: budget, ..PollerParams::default() }
}

#[test]
fn every_request_is_answered_closed_and_open_loop() {
    let mut bed = Bed::mem(&setup()).unwrap();
    let knobs = Knobs::default().with(|knobs| {
        knobs.napi_defer_hard_irqs = Some(100);
        knobs.gro_flush_timeout = Some(20_000);
        knobs.irq_suspend_timeout = Some(20_000_000);
    });
    for params in [PollerParams::default(), suspend(64)] {
        for load in [Load::Closed { flows: 1 }, Load::Closed { flows: 500 }, Load::Open { rate: 5_000.0 }] {
            let drops = bed.lost_on_the_wire().unwrap();
            let (outcome, answered, edges) = run(&mut bed, params, load);
            // With an open load the ring may overflow while the worker waits for its CPU.
            let drops = bed.lost_on_the_wire().unwrap() - drops;
            assert!(outcome.lost <= drops && (drops == 0 || matches!(load, Load::Open { .. })), "{load:?}");
            assert_eq!((outcome.sent, edges), (outcome.received + outcome.lost, 2), "{load:?}");
            assert!(answered.requests >= outcome.received && answered.requests > 0 && answered.waits > 0);
        }
        let target = Target::Napi(bed.napi);
        bed.stack.view().set_knobs(&SetKnobs { target, knobs }).unwrap();
    }
    assert!(bed.stack.view().napis()[0].suspensions > 0);
    let stats = bed.stack.view().stats();
    assert_eq!((stats.dropped, stats.leaked), (0, 0));
    assert_eq!(stats.received, stats.transmitted);
}

/// An application that is slower than the requests come: what is lost is what the stack and the NIC say they dropped.
#[test]
fn what_is_lost_is_what_was_dropped() {
    let mut bed = Bed::mem(&setup()).unwrap();
    let params = PollerParams { rx_queue_len: 64, ..PollerParams::default() };
    let work = Duration::from_micros(100);
    bed.client.silence = Duration::from_secs(5);
    let responder = Responder::start(&bed.stack, bed.napi, params, work, None, None).unwrap();
    let outcome = bed.client.run(&Load::Open { rate: 200_000.0 }, SHORT, MEASURE, &mut || ()).unwrap();
    let answered = responder.stop().unwrap();
    assert!(outcome.lost > 0, "{} of {} lost", outcome.lost, outcome.sent);
    assert_eq!(outcome.sent, outcome.received + outcome.lost);
    assert!(answered.requests >= outcome.received);
    let stats = bed.stack.view().stats();
    let drops = bed.lost_on_the_wire().unwrap() + stats.dropped;
    // Of the warm-up too.
    assert!(drops >= outcome.lost, "{drops} dropped, {} lost", outcome.lost);
    assert_eq!(stats.received, stats.transmitted + stats.dropped);
}

#[test]
fn a_veth_pair_carries_requests_as_an_emulated_nic_does() {
    if !softnet_testkit::net_allowed() {
        return;
    }
    let mut bed = Bed::xdp(&setup()).unwrap();
    for params in [PollerParams::default(), suspend(64)] {
        for load in [Load::Closed { flows: 1 }, Load::Closed { flows: 64 }, Load::Open { rate: 2_000.0 }] {
            let lost = bed.lost_on_the_wire().unwrap();
            let (outcome, answered, _) = run(&mut bed, params, load);
            let lost = bed.lost_on_the_wire().unwrap() - lost;
            assert!(answered.requests > 0 && outcome.lost <= lost, "{load:?}: {} lost, {lost}", outcome.lost);
        }
    }
    let stats = bed.stack.view().stats();
    assert_eq!((stats.received, stats.leaked), (stats.transmitted + stats.dropped, 0));
}

#[test]
fn a_coalescing_nic_lets_no_request_wait_for_ever() {
    let coalesce = Coalesce { rx_usecs: 50, rx_frames: 16, adaptive: false };
    let mut bed = Bed::mem(&Setup { coalesce, ..setup() }).unwrap();
    let (outcome, answered, _) = run(&mut bed, PollerParams::default(), Load::Closed { flows: 3 });
    assert_eq!(outcome.lost, 0);
    assert!(answered.requests > 0);
}

#[test]
fn an_application_on_no_cpu_or_no_instance_is_refused() {
    let bed = Bed::mem(&setup()).unwrap();
    let start = |napi, cpu| {
        Responder::start(&bed.stack, napi, PollerParams::default(), Duration::ZERO, None, cpu).map(|_| ())
    };
    assert!(start(1, None).unwrap_err().contains("no NAPI instance"));
    assert!(start(bed.napi, Some(1 << 20)).unwrap_err().contains("CPU"));
}
