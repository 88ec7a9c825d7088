//! Random sequences of events, with the invariant asserted after each.

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Event {
    Arrive(usize),
    Fire,
    Worker,
    Take(bool),
    Poll(usize),
    Stop(bool),
    HandOver,
    Leave,
    Knobs(u64, u64, u64),
    Disable,
    Enable,
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let knob = |value| prop_oneof![Just(0), Just(value)];
    let event = prop_oneof![
        3 => prop_oneof![Just(1usize), Just(5), Just(100)].prop_map(Event::Arrive),
        3 => Just(Event::Fire),
        3 => Just(Event::Worker),
        2 => any::<bool>().prop_map(Event::Take),
        2 => (1usize..=64).prop_map(Event::Poll),
        2 => any::<bool>().prop_map(Event::Stop),
        2 => Just(Event::HandOver),
        1 => Just(Event::Leave),
        1 => (0u64..4, knob(20 * US), knob(20 * MS)).prop_map(|(n, t, s)| Event::Knobs(n, t, s)),
        1 => Just(Event::Disable),
        1 => Just(Event::Enable),
    ];
    prop::collection::vec(event, 0..80)
}

impl World {
    fn step(&mut self, event: Event) {
        match event {
            Event::Arrive(packets) => self.arrive(packets),
            Event::Fire => self.fire(),
            Event::Worker => {
                self.rx.run(self.env.now, &mut self.env);
            }
            Event::Take(prefer) => {
                let owned = self.napi.state().is_scheduled();
                let poller = self.napi.busy_poll(prefer);
                assert!(!(owned && poller.is_some()), "two owners");
                self.poller = self.poller.take().or(poller);
            }
            Event::Poll(budget) => {
                if self.poller.is_some() {
                    self.env.receive(budget);
                }
            }
            Event::Stop(prefer) => {
                if let Some(poller) = self.poller.take() {
                    self.stop(poller, prefer);
                }
            }
            Event::HandOver => {
                self.hand_over();
            }
            Event::Leave => {
                let napi = self.napi.resume();
                self.schedule(napi);
            }
            Event::Knobs(n, t, s) => self.knobs(n, t, s),
            Event::Disable => {
                if self.disabled.is_none() {
                    self.try_disable();
                }
            }
            Event::Enable => {
                if let Some(disabled) = self.disabled.take() {
                    self.rx.schedule(disabled.enable());
                }
            }
        }
    }

    /// The applications are gone, and a pending disable comes to its end.
    fn wind_up(&mut self) {
        self.step(Event::Stop(true));
        self.softirq();
        if self.napi.state().is_disable_pending() {
            assert!(self.try_disable(), "no thread owns it");
        }
        self.step(Event::Enable);
        self.softirq();
    }
}

proptest! {
    /// Whatever happens, in whatever order: no arrival is forgotten, and after the last event everything is received
    /// and the doorbell unmasked within S and N × T.
    #[test]
    fn no_wake_up_is_lost(knobs in (0u64..4, 0u64..2, 0u64..2), events in events()) {
        let mut world = World::new(knobs.0, knobs.1 * 20 * US, knobs.2 * 20 * MS);
        for event in events {
            world.step(event);
            world.check();
        }
        world.wind_up();
        world.check();
        let end = world.env.now + 20 * MS + 5 * 20 * US;
        world.run_to(end);
        world.check();
        prop_assert_eq!((world.env.ring, world.state()), (0, (true, None)));
    }
}
