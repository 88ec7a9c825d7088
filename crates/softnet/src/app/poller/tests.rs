//! What can happen between two steps of one call. Nothing runs but the test.

use std::num::NonZeroU64;

use super::*;
use crate::napi::Timeout;
use crate::testing::World;

const HOUR: u64 = 3_600_000_000_000;

/// A device with a packet in its ring.
fn one_packet() -> World {
    let mut world = World::new(1);
    world.arrive(0, &[0; 60]);
    world
}

/// A poller of the first device, which wants its packets.
fn poller(world: &World, params: PollerParams) -> NapiPoller {
    let napi = world.instance(0).napi.id;
    NapiPoller::new(&world.assembly.handle(), napi, "t", PacketFilter::All, params).unwrap()
}

fn close(world: World, mut poller: NapiPoller) {
    let mut batch = Batch::new();
    poller.inbox.take(&mut poller.busy.env.ctx, &mut batch);
    batch.drain().for_each(|skb| poller.ctx().free_skb(skb));
    drop(poller);
    world.close();
}

const PREFER: PollerParams =
    PollerParams { busy_poll_usecs: 0, busy_poll_budget: 8, prefer_busy_poll: true, rx_queue_len: 1024 };

/// An application's side of waiting that does something of its own at each step.
struct Steps<'a> {
    world: &'a mut World,
    /// Called while the poller owns the instance.
    is_ready: fn(&mut World, &mut u32) -> bool,
    /// Called while it does not.
    offer_cpu: fn(&mut World, &mut u32),
    step: u32,
}

impl Waits for Steps<'_> {
    fn is_ready(&mut self) -> bool {
        (self.is_ready)(self.world, &mut self.step)
    }

    fn offer_cpu(&mut self) {
        (self.offer_cpu)(self.world, &mut self.step);
    }

    fn wait(&mut self, _: Option<Duration>) -> bool {
        unreachable!("it does not sleep");
    }
}

fn defer(instance: &NapiInstance, t: u64, s: u64) {
    instance.napi.mitigation.set_defer_hard_irqs(9).unwrap();
    instance.napi.mitigation.set_gro_flush_timeout(t);
    instance.napi.mitigation.set_irq_suspend_timeout(s);
}

fn armed(instance: &NapiInstance) -> Option<Timeout> {
    instance.timer.armed().map(|(timeout, ..)| timeout)
}

/// A stop whose application does not go on leaves a timer behind, and a suspension that then does not come about as well.
#[test]
fn a_stop_arms_the_timer_whatever_follows() {
    for (s, expected) in [(0, Timeout::GroFlush), (2 * HOUR, Timeout::IrqSuspend)] {
        let world = one_packet();
        let instance = world.instance(0);
        defer(&instance, HOUR, 2 * HOUR);
        let mut poller = poller(&world, PREFER);
        poller.busy.busy_loop(&mut poller.inbox, None);
        assert!(poller.inbox.is_ready());
        assert_eq!(armed(&instance), Some(Timeout::IrqSuspend), "it is to be handed a packet");
        instance.napi.mitigation.set_irq_suspend_timeout(s);
        let mut batch = Batch::new();
        let n = poller.inbox.take(&mut poller.busy.env.ctx, &mut batch);
        poller.busy.suspend(n);
        assert_eq!((n, armed(&instance)), (1, Some(expected)));
        batch.drain().for_each(|skb| poller.ctx().free_skb(skb));
        // Once more, with nothing to be handed.
        instance.timer.disarm();
        poller.busy.busy_loop(&mut poller.inbox, None);
        assert!(!poller.inbox.is_ready());
        assert_eq!(armed(&instance), Some(Timeout::GroFlush), "it is to sleep");
        close(world, poller);
    }
}

/// A poller that polls on and on, for packets that do not come, owns its instance for a while only. Whenever it offers its
/// CPU the instance is free, its timer is armed, and a worker that this wakes polls.
#[test]
fn a_thread_that_offers_its_cpu_owns_nothing() {
    let mut world = one_packet();
    let instance = world.instance(0);
    defer(&instance, 1, 0);
    let mut poller = poller(&world, PollerParams { busy_poll_usecs: 100_000_000, ..PREFER });
    let mut steps = Steps {
        world: &mut world,
        is_ready: |_, offers| *offers > 0,
        offer_cpu: |world, offers| {
            let instance = world.instance(0);
            assert!(!instance.napi.state().is_scheduled() && instance.timer.is_armed());
            *offers += 1;
            world.arrive(0, &[0; 60]);
            let mut fds = [PollFd::from_borrowed_fd(instance.timer.fd(), PollFlags::IN)];
            assert_eq!(poll(&mut fds, None).unwrap(), 1);
            instance.timer.fired();
            world.work();
        },
        step: 0,
    };
    poller.busy.busy_loop(&mut steps, None);
    assert_eq!(steps.step, 1);
    assert_eq!(world.received(0), 2, "one by each");
    close(world, poller);
}

/// A poller that loses its CPU while it owns the instance: what comes there waits for it, since ownership can't be taken
/// away, and nothing else does. The worker neither waits nor spins, and the timer that fires meanwhile is not forgotten.
#[test]
fn a_poller_that_is_held_up_holds_up_its_own_queue_only() {
    let mut world = World::new(2);
    (0..2).for_each(|device| world.arrive(device, &[0; 60]));
    let instance = world.instance(0);
    defer(&instance, 1, 0);
    let mut poller = poller(&world, PollerParams { busy_poll_usecs: 100_000_000, ..PREFER });
    let mut steps = Steps {
        world: &mut world,
        is_ready: |world, calls| {
            *calls += 1;
            if *calls == 1 {
                let instance = world.instance(0);
                assert!(instance.napi.state().is_busy_polling());
                (0..5).for_each(|n| world.arrive(n % 2, &[0; 60]));
                instance.timer.arm(0, NonZeroU64::MIN, Timeout::GroFlush);
                world.work();
                assert_eq!((world.received(0), world.received(1)), (1, 3));
                assert!(instance.napi.state().is_busy_polling());
            }
            true
        },
        offer_cpu: |_, _| unreachable!("it goes on to sleep"),
        step: 0,
    };
    poller.busy.busy_loop(&mut steps, None);
    assert!(steps.step > 0 && instance.timer.is_armed(), "it arms the timer again");
    let mut batch = Batch::new();
    poller.busy.resume();
    for _ in 0..1000 {
        std::thread::sleep(Duration::from_millis(1));
        world.work();
        if world.received(0) == 4 {
            break;
        }
    }
    assert_eq!(world.received(0), 4);
    let n = poller.inbox.take(&mut poller.busy.env.ctx, &mut batch);
    assert_eq!(n, 4);
    batch.drain().for_each(|skb| poller.ctx().free_skb(skb));
    close(world, poller);
}
