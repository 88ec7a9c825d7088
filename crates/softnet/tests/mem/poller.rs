//! One call of a poller, step by step: workers run only when the test says so, and no timer comes to its end unless it
//! wants that.

use std::num::NonZeroU64;
use std::time::Duration;

use softnet::config::{Context, Knobs};
use softnet::control::show::NapiRow;
use softnet::control::{SetKnobs, Target};
use softnet::internals::{Assembly, Timeout};
use softnet::net::MAX_BUSY_POLL_USECS;
use softnet::{Introspect, NapiPoller, PacketFilter, PollerError, PollerParams, Stack};
use softnet_core::skb::Batch;

use super::frames::{host, number_of, numbered, to_port};
use super::world::{Lane, Setup, World, of_port, until};

/// The port of [`numbered`] frames.
pub(crate) const PORT: u16 = 9;
const HOUR: u64 = 3_600_000_000_000;
const SOON: Option<Duration> = Some(Duration::from_micros(1));
/// Prefers to poll, one pass at a time.
pub(crate) const PREFER: PollerParams =
    PollerParams { busy_poll_usecs: 0, busy_poll_budget: 8, prefer_busy_poll: true, rx_queue_len: 4096 };

/// Sets N, T and S of `mem0`.
pub(crate) fn set_knobs(view: &Introspect, n: u64, t: u64, s: u64) {
    let knobs = Knobs::default().with(|knobs| {
        knobs.napi_defer_hard_irqs = Some(n);
        knobs.gro_flush_timeout = Some(t);
        knobs.irq_suspend_timeout = Some(s);
    });
    view.set_knobs(&SetKnobs { target: Target::Dev("mem0".into()), knobs }).unwrap();
}

/// The instance of `mem0`'s first queue.
pub(crate) fn mem0(view: &Introspect) -> NapiRow {
    view.napis().into_iter().find(|row| row.dev == "mem0" && row.queue == 0).expect("mem0")
}

/// Frees what `poller` was given, and returns the numbers in it.
pub(crate) fn numbers(poller: &mut NapiPoller, batch: &mut Batch) -> Vec<u32> {
    let ctx = poller.ctx();
    let number = |skb: softnet_core::skb::Skb| {
        let number = number_of(skb.data()).expect("nothing else is sent").1;
        ctx.free_skb(skb);
        number
    };
    batch.drain().map(number).collect()
}

/// One worker, which runs when told to; a queue from the host at port 0, and one to the host at port 1.
struct Still {
    assembly: Assembly,
    source: Lane,
    sink: Lane,
}

impl Still {
    fn new() -> Still {
        let (assembly, mut lanes) =
            Setup { ports: &[1, 1], workers: 1, known: true, ..Setup::default() }.assemble(Context::Softirq);
        let (sink, source) = (of_port(&mut lanes, 1).remove(0), lanes.remove(0));
        let mut still = Still { assembly, source, sink };
        still.work();
        assert_eq!(still.row().doorbell, "unmasked");
        still
    }

    fn poller(&self, filter: PacketFilter, params: PollerParams) -> Result<NapiPoller, PollerError> {
        NapiPoller::new(&self.assembly.handle(), self.row().id, "test", filter, params)
    }

    fn row(&self) -> NapiRow {
        mem0(&self.assembly.view)
    }

    /// The worker does what there is to do.
    fn work(&mut self) {
        while self.assembly.workers[0].round() {}
    }

    fn send(&mut self, number: u32) {
        assert_eq!(self.source.send(&[numbered(0, host(1), 0, number)]), 1);
    }

    fn forwarded(&mut self) -> Vec<u32> {
        let mut numbers = Vec::new();
        while self.sink.receive(|frame| numbers.push(number_of(frame).unwrap().1)) > 0 {}
        numbers
    }

    fn end(self) {
        World::of(Stack::run(self.assembly).unwrap()).end(vec![self.source, self.sink]);
    }
}

/// What a call did to the counters: polls, busy polls, suspensions, resumptions.
fn did(before: &NapiRow, after: &NapiRow) -> [u64; 4] {
    let of = |row: &NapiRow| [row.polls, row.busy_polls, row.suspensions, row.resumptions];
    std::array::from_fn(|i| of(after)[i] - of(before)[i])
}

fn knob(row: &NapiRow) -> Option<&str> {
    row.timer.as_ref().map(|timer| &timer.knob[..])
}

#[test]
fn a_call_does_one_thing_after_the_other() {
    let mut still = Still::new();
    set_knobs(&still.assembly.view, 100, HOUR, 2 * HOUR);
    let mut poller = still.poller(PacketFilter::UdpPort(PORT), PREFER).unwrap();
    let mut batch = Batch::new();
    let mut call = |still: &Still, timeout| {
        let before = still.row();
        let n = poller.wait(&mut batch, timeout).unwrap();
        let numbers = numbers(&mut poller, &mut batch);
        assert_eq!(n, numbers.len());
        (numbers, did(&before, &still.row()))
    };
    still.send(1);
    assert_eq!(call(&still, Some(Duration::ZERO)), (vec![], [0; 4]), "without time no thread polls");
    assert_eq!(call(&still, None), (vec![1], [1, 1, 1, 0]), "one pass, whose packet suspends");
    assert_eq!((still.row().doorbell.as_str(), knob(&still.row())), ("masked", Some("irq_suspend_timeout")));
    let rung = still.row().doorbells;
    for number in 2..10 {
        still.send(number);
        assert!(!still.assembly.workers[0].round(), "suspended");
        assert_eq!(call(&still, None), (vec![number], [1, 1, 1, 0]));
    }

    // Another thread polls meanwhile, as after another's sleep.
    still.send(10);
    let napi = still.assembly.shared.napis()[0].napi.schedule_prep();
    napi.into_iter().for_each(|napi| still.assembly.shared.workers[0].schedule(napi));
    still.work();
    assert_eq!((still.row().doorbell.as_str(), knob(&still.row())), ("masked", Some("gro_flush_timeout")));
    assert_eq!(call(&still, None), (vec![10], [0, 0, 1, 0]), "what is ready suspends, and no thread polls");
    assert_eq!(knob(&still.row()), Some("irq_suspend_timeout"));

    // Dry: one pass, then given back and polled once more, before it sleeps.
    assert_eq!(call(&still, SOON), (vec![], [2, 1, 0, 1]));
    let row = still.row();
    assert_eq!(
        (row.doorbell.as_str(), knob(&row), row.doorbells),
        ("masked", Some("gro_flush_timeout"), rung)
    );
    assert_eq!(call(&still, Some(Duration::ZERO)), (vec![], [0; 4]));
    drop(poller);
    still.end();
}

/// While an application suspends, packets that it does not want wait for it, and are routed by its thread.
#[test]
fn what_a_filter_does_not_want_is_forwarded() {
    let mut still = Still::new();
    set_knobs(&still.assembly.view, 100, HOUR, HOUR);
    let mut first = still.poller(PacketFilter::UdpPort(PORT), PREFER).unwrap();
    let mut second = still.poller(PacketFilter::UdpPort(PORT + 1), PollerParams::default()).unwrap();
    let frame = |number: u32| to_port(numbered(0, host(1), 0, number), PORT + (number % 3) as u16);
    let frames: Vec<_> = (0..9).map(frame).collect();
    assert_eq!(still.source.send(&frames), 9);
    let mut batch = Batch::new();
    assert_eq!(first.wait(&mut batch, None).unwrap(), 3);
    assert_eq!(numbers(&mut first, &mut batch), [0, 3, 6]);
    assert_eq!(second.wait(&mut batch, None).unwrap(), 3);
    assert_eq!(numbers(&mut second, &mut batch), [1, 4, 7]);
    assert_eq!(still.forwarded(), [2, 5], "as much as its budget allows");
    let (given, queued) = (still.row().applications[1].packets, still.row().applications[1].queued);
    assert_eq!((given, queued), (3, 0));
    // The one that went away gets nothing, and what waits for it is freed.
    assert_eq!(still.source.send(&frames[..2]), 2);
    still.work();
    drop(second);
    assert_eq!(first.wait(&mut batch, None).unwrap(), 1);
    numbers(&mut first, &mut batch);
    assert_eq!(still.source.send(&frames[..3]), 3);
    assert_eq!(first.wait(&mut batch, None).unwrap(), 1);
    numbers(&mut first, &mut batch);
    assert!(still.forwarded().ends_with(&[1, 2]));
    drop(first);
    still.end();
}

#[test]
fn a_full_queue_drops_and_counts() {
    let mut still = Still::new();
    let params = PollerParams { rx_queue_len: 4, ..PollerParams::default() };
    let mut poller = still.poller(PacketFilter::All, params).unwrap();
    (0..10).for_each(|number| still.send(number));
    still.work();
    let row = still.row();
    assert_eq!((row.applications[0].queued, row.applications[0].dropped), (4, 6));
    let drops = still.assembly.view.drops();
    assert_eq!((drops.len(), drops[0].reason.as_str(), drops[0].packets), (1, "socket_rcvbuff", 6));
    let mut batch = Batch::new();
    assert_eq!(poller.wait(&mut batch, None).unwrap(), 4);
    assert_eq!(numbers(&mut poller, &mut batch), [0, 1, 2, 3]);
    still.send(10);
    still.work();
    assert_eq!(poller.wait(&mut batch, None).unwrap(), 1);
    numbers(&mut poller, &mut batch);
    still.send(11);
    still.work();
    drop(poller);
    // What is counted stays counted.
    let row = still.row();
    assert_eq!((row.applications.len(), row.application_drops), (0, 6));
    still.end();
}

/// A batch with little room is filled, and the rest is there at the next call, in order, without a poll.
#[test]
fn what_does_not_fit_waits() {
    let mut still = Still::new();
    let params = PollerParams { busy_poll_budget: 64, ..PREFER };
    let mut poller = still.poller(PacketFilter::All, params).unwrap();
    let frames: Vec<_> = (0..100).map(|number| numbered(0, host(1), 0, number)).collect();
    assert_eq!(still.source.send(&frames), 100);
    let mut batch = Batch::new();
    assert_eq!(poller.wait(&mut batch, None).unwrap(), 64);
    assert_eq!(poller.wait(&mut batch, None).unwrap(), 0, "no room");
    let mut all: Vec<_> = batch.drain().collect();
    let kept = all.split_off(60);
    all.into_iter().for_each(|skb| poller.ctx().free_skb(skb));
    kept.into_iter().for_each(|skb| batch.push(skb).unwrap());
    assert_eq!(poller.wait(&mut batch, None).unwrap(), 36);
    assert_eq!(numbers(&mut poller, &mut batch), (60..100).collect::<Vec<_>>());
    drop(poller);
    still.end();
}

#[test]
fn a_poller_that_goes_away_gives_back_what_it_suspended() {
    let mut still = Still::new();
    for s in [HOUR, 0] {
        set_knobs(&still.assembly.view, 1, HOUR, HOUR);
        let mut poller = still.poller(PacketFilter::UdpPort(PORT), PREFER).unwrap();
        let mut batch = Batch::new();
        for number in 0..2 {
            still.send(number);
            still.work();
            assert_eq!(poller.wait(&mut batch, None).unwrap(), 1);
            numbers(&mut poller, &mut batch);
        }
        assert_eq!(
            (still.row().doorbell.as_str(), knob(&still.row())),
            ("masked", Some("irq_suspend_timeout"))
        );
        // With S 0 a call does not give it back; its end does.
        set_knobs(&still.assembly.view, 0, 0, s);
        drop(poller);
        still.send(7);
        still.work();
        assert_eq!((still.row().doorbell.as_str(), knob(&still.row())), ("unmasked", None));
        assert_eq!(still.forwarded(), [7]);
    }
    still.end();
}

/// `irq_suspend_timeout` 0: no suspension and nothing to give back, but a timer that is armed stays.
#[test]
fn a_suspend_timeout_that_is_set_to_0_leaves_the_armed_timer() {
    let mut still = Still::new();
    set_knobs(&still.assembly.view, 1, HOUR, HOUR);
    let mut poller = still.poller(PacketFilter::All, PREFER).unwrap();
    let mut batch = Batch::new();
    for number in 0..2 {
        still.send(number);
        still.work();
        assert_eq!(poller.wait(&mut batch, None).unwrap(), 1);
        numbers(&mut poller, &mut batch);
    }
    set_knobs(&still.assembly.view, 0, 0, 0);
    assert_eq!(knob(&still.row()), Some("irq_suspend_timeout"));
    still.send(2);
    still.work();
    assert_eq!(still.row().doorbell, "masked");
    // No deferral any more either, so that a pass ends with the doorbell unmasked.
    assert_eq!(poller.wait(&mut batch, None).unwrap(), 1);
    numbers(&mut poller, &mut batch);
    let row = still.row();
    assert_eq!(
        (row.doorbell.as_str(), knob(&row)),
        ("unmasked", Some("irq_suspend_timeout")),
        "it polls for nothing"
    );
    drop(poller);
    still.end();
}

/// Between two polls the thread of the context `busy-poll` lets go of the instance. No other thread may take it
/// then: the thread would go to sleep.
#[test]
fn no_thread_takes_an_instance_from_busy_poll() {
    let (world, mut lanes) = Setup { ports: &[1, 1], workers: 1, known: true, ..Setup::default() }.start();
    let sinks = of_port(&mut lanes, 1);
    world.set(0, Context::BusyPoll);
    let mut poller =
        NapiPoller::new(&world.handle(), mem0(&world.view).id, "test", PacketFilter::All, PREFER).unwrap();
    let mut batch = Batch::new();
    for number in 0..2000 {
        assert_eq!(lanes[0].send(&[numbered(0, host(1), 0, number)]), 1);
        assert_eq!(poller.wait(&mut batch, None).unwrap(), 1);
        assert_eq!(numbers(&mut poller, &mut batch), [number]);
        assert_eq!(poller.wait(&mut batch, SOON).unwrap(), 0);
    }
    let row = mem0(&world.view);
    assert_eq!((row.busy_polls, row.doorbell.as_str()), (0, "masked"));
    assert!(row.busy_poll_lost > 0);
    drop(poller);
    lanes.extend(sinks);
    world.end(lanes);
}

#[test]
fn what_is_out_of_range_or_not_there_is_told_with_what_is() {
    let still = Still::new();
    let refused = |params| still.poller(PacketFilter::All, params).expect_err("refused").to_string();
    let error = refused(PollerParams { busy_poll_usecs: MAX_BUSY_POLL_USECS + 1, ..PREFER });
    assert_eq!(error, "busy_poll_usecs: 2147483648 is out of range, 0 to 2147483647 expected");
    for budget in [0, 65] {
        let error = refused(PollerParams { busy_poll_budget: budget, ..PREFER });
        assert_eq!(error, format!("busy_poll_budget: {budget} is out of range, 1 to 64 expected"));
    }
    for len in [0, (1 << 20) + 1] {
        let error = refused(PollerParams { rx_queue_len: len, ..PREFER });
        assert_eq!(error, format!("rx_queue_len: {len} is out of range, 1 to 1048576 expected"));
    }
    let mut poller = still.poller(PacketFilter::All, PREFER).unwrap();
    assert!(poller.set_params(PollerParams { busy_poll_budget: 65, ..PREFER }).is_err());
    drop(poller);
    let unknown = NapiPoller::new(&still.assembly.handle(), 7, "test", PacketFilter::All, PREFER);
    let ids: Vec<u32> = still.assembly.view.napis().iter().map(|row| row.id).collect();
    let expected = format!("no NAPI instance 7; there are: {} (mem0-0), {} (mem1-0)", ids[0], ids[1]);
    assert_eq!(unknown.expect_err("unknown").to_string(), expected);
    assert!(still.row().applications.is_empty());
    still.end();
}

/// The timer of an instance that is being switched has no owner until it is enabled again: armed then, it is harmless.
#[test]
fn a_timer_armed_during_a_switch_polls_once_for_nothing() {
    let (world, lanes) = Setup { ports: &[1, 1], workers: 1, known: true, ..Setup::default() }.start();
    let instance = world.shared.napis().into_iter().find(|i| i.napi.name == "mem0-0").unwrap();
    for context in [Context::Threaded, Context::Workqueue, Context::Softirq] {
        let now = world.shared.clock.now();
        instance.timer.arm(now, NonZeroU64::new(1_000_000).unwrap(), Timeout::IrqSuspend);
        world.set(0, context);
        instance.timer.arm(now, NonZeroU64::new(1).unwrap(), Timeout::IrqSuspend);
        until("it fired", || !instance.timer.is_armed());
        until("unmasked", || mem0(&world.view).doorbell == "unmasked");
    }
    world.end(lanes);
}
