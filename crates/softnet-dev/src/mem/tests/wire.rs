//! The wire's end of an emulated NIC: overflow and coalescing, in virtual time and between two threads.

use std::collections::VecDeque;
use std::sync::atomic::AtomicBool;

use proptest::prelude::*;

use super::*;

fn coalesce(rx_usecs: u32, rx_frames: u32) -> Coalesce {
    Coalesce { rx_usecs, rx_frames, adaptive: false }
}

const ADAPTIVE: Coalesce = Coalesce { rx_usecs: 0, rx_frames: 0, adaptive: true };

/// A NIC of one queue, with `rx_ring` places.
fn one_queue(rx_ring: usize, coalesce: Coalesce) -> (OpenDevice, NicPort) {
    let config = NicConfig { rx_ring, coalesce, ..NicConfig::default() };
    let Nic { open, mut ports } = nic(0, &config, vec![(Count(0), Sum(Arc::default()))]).unwrap();
    (open, ports.remove(0))
}

/// Receives up to `budget` packets; returns the numbers that the source gave them.
fn receive(nic: &mut OpenDevice, ctx: &mut SoftnetData, budget: usize) -> Vec<u8> {
    let mut batch = Batch::new();
    nic.rx[0].rx_burst(ctx, &mut batch, budget);
    batch
        .drain()
        .map(|skb| {
            let number = skb.data()[0];
            ctx.free_skb(skb);
            number
        })
        .collect()
}

#[test]
fn what_finds_no_place_is_lost_and_counted() {
    let mut ctx = context();
    let (mut nic, mut port) = one_queue(16, Coalesce::default());
    let stats = nic.rx[0].stats();
    assert_eq!((port.offer(10), port.room()), (10, 6));
    assert_eq!((port.offer(10), port.room()), (6, 0));
    assert_eq!((port.offer_at(3, 0), port.waiting()), (0, 16));
    assert_eq!(receive(&mut nic, &mut ctx, 5), [0, 1, 2, 3, 4]);
    assert_eq!(stats.ring_drops.get(), 7);
    assert_eq!(port.offer(9), 5);
    assert_eq!(
        receive(&mut nic, &mut ctx, 64),
        (5..21).collect::<Vec<_>>(),
        "the source saw accepted ones only"
    );
    assert_eq!((stats.ring_drops.get(), stats.packets.get()), (11, 21));
    assert_eq!(port.offer(17), 16);
    close(nic, &mut ctx);
    assert_eq!(stats.ring_drops.get(), 12, "also when no burst follows");
    all_home(ctx);
}

#[test]
fn without_coalescing_each_arrival_at_an_unmasked_doorbell_rings() {
    let mut ctx = context();
    let (mut nic, mut port) = one_queue(128, Coalesce::default());
    let bell = nic.rx[0].doorbell();
    port.offer_at(1, 5);
    assert!(!rings(&*bell) && port.next_due().is_none(), "masked");
    for round in 1..=3 {
        bell.mask();
        receive(&mut nic, &mut ctx, 64);
        bell.unmask();
        assert!(!bell.pending() && port.next_due().is_none());
        port.offer_at(2, 0);
        assert!(rings(&*bell));
        port.offer_at(2, 10);
        assert_eq!(port.interrupts(), round);
    }
    close(nic, &mut ctx);
    all_home(ctx);
}

#[test]
fn coalescing_rings_by_time_or_by_count() {
    let mut ctx = context();
    let (mut nic, mut port) = one_queue(128, coalesce(10, 4));
    let bell = nic.rx[0].doorbell();
    bell.unmask();
    port.offer_at(1, 1_000);
    port.offer_at(1, 5_000);
    assert!(bell.pending() && !rings(&*bell), "a look sees them at once");
    assert_eq!(port.next_due(), Some(11_000));
    port.tick(10_999);
    assert!(!rings(&*bell));
    port.tick(11_000);
    assert!(rings(&*bell));
    assert_eq!((port.interrupts(), port.next_due()), (1, None));
    bell.mask();
    // They came while the driver polled, which took them all.
    port.offer_at(5, 12_000);
    assert_eq!(receive(&mut nic, &mut ctx, 64).len(), 7);
    bell.unmask();
    assert!(!bell.pending());
    port.tick(1_000_000);
    port.offer_at(3, 1_000_000);
    assert!(!rings(&*bell), "coalesced afresh");
    port.offer_at(1, 1_000_001);
    assert!(rings(&*bell), "by count");
    bell.mask();
    receive(&mut nic, &mut ctx, 64);
    bell.unmask();
    port.offer(1);
    assert!(rings(&*bell), "without a time: at once");
    assert_eq!(port.interrupts(), 3);
    close(nic, &mut ctx);
    all_home(ctx);
}

/// The driver unmasks and does not look: the NIC rings all the same, as a level would.
#[test]
fn what_waits_at_the_unmasking_rings_when_it_is_due() {
    let (nic, mut port) = one_queue(128, coalesce(10, 0));
    let bell = nic.rx[0].doorbell();
    port.offer_at(100, 1_000);
    port.tick(50_000);
    assert_eq!((rings(&*bell), port.next_due()), (false, None));
    bell.unmask();
    assert_eq!((rings(&*bell), port.next_due()), (false, Some(11_000)));
    port.tick(50_001);
    assert!(rings(&*bell));
    let mut ctx = context();
    close(nic, &mut ctx);
}

#[test]
fn a_coalescing_that_strands_packets_is_refused() {
    let config = NicConfig { coalesce: coalesce(0, 8), ..NicConfig::default() };
    let Err(error) = nic(0, &config, vec![(Count(0), Sum(Arc::default()))]) else { panic!("accepted") };
    assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
    assert!(error.to_string().contains("rx_frames 8 with rx_usecs 0"), "{error}");
}

/// A driver that takes everything at each interrupt, under `rate` packets in a millisecond for 20 of them.
fn adapted(
    port: &mut NicPort,
    nic: &mut OpenDevice,
    ctx: &mut SoftnetData,
    now: &mut u64,
    rate: u64,
) -> Coalesce {
    let bell = nic.rx[0].doorbell();
    bell.unmask();
    for _ in 0..20 * rate {
        *now += 1_000_000 / rate;
        port.offer_at(1, *now);
        if rings(&*bell) {
            bell.mask();
            while !receive(nic, ctx, 64).is_empty() {}
            bell.unmask();
        }
    }
    port.coalesce()
}

#[test]
fn adaptive_coalescing_follows_the_load() {
    let mut ctx = context();
    let (mut nic, mut port) = one_queue(256, ADAPTIVE);
    let mut now = 1;
    for (rate, usecs) in [(10, 0), (100, 64), (2000, 128), (400, 64), (10, 0)] {
        let values = adapted(&mut port, &mut nic, &mut ctx, &mut now, rate);
        assert_eq!((values.rx_usecs, values.adaptive), (usecs, true), "at {rate} packets in a millisecond");
    }
    close(nic, &mut ctx);
    all_home(ctx);
}

#[derive(Clone, Debug)]
enum Event {
    Offer(u64),
    /// So many nanoseconds pass, then a tick.
    Tick(u64),
    Mask,
    Unmask,
    Receive(usize),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        3 => (0u64..24).prop_map(Event::Offer),
        3 => (0u64..40_000).prop_map(Event::Tick),
        1 => Just(Event::Mask),
        2 => Just(Event::Unmask),
        2 => (1usize..20).prop_map(Event::Receive),
    ]
}

fn any_coalesce() -> impl Strategy<Value = Coalesce> {
    prop_oneof![
        Just(Coalesce::default()),
        Just(ADAPTIVE),
        (1u32..40, 0u32..40).prop_map(|(usecs, frames)| coalesce(usecs, frames)),
    ]
}

/// The same as a NIC, told naively: each waiting packet by its arrival time.
#[derive(Default)]
struct Naive {
    waiting: VecDeque<u64>,
    lost: u64,
    armed: bool,
    rung: bool,
    interrupts: u64,
}

impl Naive {
    fn look(&mut self, now: u64, values: Coalesce) {
        let Some(oldest) = self.waiting.front() else { return };
        let count = values.rx_frames > 0 && self.waiting.len() >= values.rx_frames as usize;
        if self.armed && (count || oldest + u64::from(values.rx_usecs) * 1000 <= now) {
            (self.armed, self.rung) = (false, true);
            self.interrupts += 1;
        }
    }
}

/// Runs `events`, then has a thread wait at the doorbell that does not look, and the wire tick at `next_due`.
fn run(
    (nic, port): (&mut OpenDevice, &mut NicPort),
    ctx: &mut SoftnetData,
    adaptive: bool,
    events: Vec<Event>,
) -> Result<(), TestCaseError> {
    let bell = nic.rx[0].doorbell();
    let mut naive = Naive::default();
    let mut now = 1_000_000;
    for event in events.into_iter().chain([Event::Unmask]) {
        match event {
            Event::Offer(n) => {
                let accepted = port.offer_at(n, now);
                prop_assert_eq!(accepted, n.min(32 - naive.waiting.len() as u64));
                naive.lost += n - accepted;
                naive.waiting.extend((0..accepted).map(|_| now));
                naive.look(now, port.coalesce());
            }
            Event::Tick(ns) => {
                now += ns;
                port.tick(now);
                naive.look(now, port.coalesce());
            }
            Event::Mask => {
                bell.mask();
                (naive.armed, naive.rung) = (false, false);
            }
            // As the contract has it: once after each mask.
            Event::Unmask if naive.armed || naive.rung => {}
            Event::Unmask => {
                bell.unmask();
                naive.armed = true;
            }
            Event::Receive(n) => {
                let got = receive(nic, ctx, n).len();
                prop_assert_eq!(got, n.min(naive.waiting.len()));
                naive.waiting.drain(..got);
                prop_assert_eq!(nic.rx[0].stats().ring_drops.get(), naive.lost);
            }
        }
        prop_assert_eq!(port.waiting(), naive.waiting.len() as u64);
        prop_assert_eq!(port.interrupts(), naive.interrupts);
        prop_assert_eq!(rings(&*bell), naive.rung);
        prop_assert_eq!(port.next_due().is_some(), naive.armed && !naive.waiting.is_empty());
    }
    // More than once only where adapting lengthens the time.
    for _ in 0..6 {
        let Some(due) = port.next_due() else { break };
        prop_assert!(due <= naive.waiting[0] + u64::from(port.coalesce().rx_usecs) * 1000);
        if due > now && !adaptive {
            port.tick(due - 1);
            prop_assert_eq!(port.interrupts(), naive.interrupts, "early");
        }
        now = now.max(due);
        port.tick(now);
    }
    prop_assert_eq!(port.next_due(), None);
    let rang = naive.armed && !naive.waiting.is_empty();
    prop_assert_eq!(port.interrupts() - naive.interrupts, u64::from(rang));
    prop_assert_eq!(rings(&*bell), naive.rung || rang);
    Ok(())
}

proptest! {
    /// Rings when it should, not before, and strands no packet: after whatever happened, ticking at `next_due` rings.
    #[test]
    fn no_packet_is_stranded(config in any_coalesce(), events in prop::collection::vec(event(), 0..120)) {
        let mut ctx = context();
        let (mut nic, mut port) = one_queue(32, config);
        let result = run((&mut nic, &mut port), &mut ctx, config.adaptive, events);
        close(nic, &mut ctx);
        all_home(ctx);
        result?;
    }
}

/// Tells the wire that the consumer has ended, also by a panic.
struct Done<'a>(&'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// How the wire spends the time between arrivals.
#[derive(Clone, Copy, Debug)]
enum Between {
    /// Ticks, and time passes a little with each.
    Spin,
    /// Goes to the time that the NIC named, if it named one.
    Jump,
}

impl Between {
    fn pass(self, port: &mut NicPort, now: &mut u64) {
        match (self, port.next_due()) {
            (Between::Spin, _) => {
                *now += 500;
                port.tick(*now);
            }
            (Between::Jump, Some(due)) => {
                *now = due.max(*now);
                port.tick(*now);
            }
            (Between::Jump, None) => {}
        }
        std::thread::yield_now();
    }
}

/// A wire on a thread of its own, and a driver that sleeps on the doorbell.
fn stress(config: Coalesce, between: Between) {
    const PACKETS: u64 = 30_000;
    let mut ctx = context();
    let (mut nic, mut port) = one_queue(64, config);
    let (bell, stats) = (nic.rx[0].doorbell(), nic.rx[0].stats());
    let done = AtomicBool::new(false);
    let (offered, accepted, interrupts) = std::thread::scope(|scope| {
        let wire = scope.spawn(|| {
            let (mut now, mut offered, mut accepted, mut random) = (0, 0, 0, 1u32);
            while !done.load(Ordering::Relaxed) {
                random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                if accepted < PACKETS {
                    // Now and then more than there is room for, but in the end as many as the driver expects.
                    let n = u64::from(random >> 24).min(100).min(PACKETS - accepted);
                    offered += n;
                    accepted += port.offer_at(n, now);
                }
                for _ in 0..random >> 16 & 7 {
                    between.pass(&mut port, &mut now);
                }
                // Until the driver has nothing to do, every other time, so that it sleeps.
                while random >> 20 & 1 > 0 && port.waiting() > 0 && !done.load(Ordering::Relaxed) {
                    between.pass(&mut port, &mut now);
                }
                between.pass(&mut port, &mut now);
            }
            (offered, accepted, port.interrupts())
        });
        let ended = Done(&done);
        let sleep = || {
            // A bound for the test only: a doorbell that does not ring is a failure and not a hang.
            let bound = Timespec { tv_sec: 60, tv_nsec: 0 };
            let mut fds = [PollFd::from_borrowed_fd(bell.fd(), PollFlags::IN)];
            assert!(poll(&mut fds, Some(&bound)).unwrap() > 0, "never rang: {config:?} {between:?}");
            bell.mask();
        };
        // Once without a look: a wire that is the faster one may leave the driver no other reason to sleep.
        bell.unmask();
        sleep();
        let mut received = 0;
        while received < PACKETS {
            match receive(&mut nic, &mut ctx, 64).len() as u64 {
                0 => {
                    bell.unmask();
                    if bell.pending() {
                        bell.mask();
                    } else {
                        sleep();
                    }
                }
                n => received += n,
            }
        }
        drop(ended);
        wire.join().unwrap()
    });
    receive(&mut nic, &mut ctx, 64);
    assert_eq!((accepted, stats.packets.get()), (PACKETS, PACKETS));
    assert_eq!(stats.ring_drops.get(), offered - PACKETS);
    assert!((1..=PACKETS).contains(&interrupts));
    close(nic, &mut ctx);
    all_home(ctx);
}

#[test]
fn a_sleeping_driver_gets_every_packet() {
    for config in [Coalesce::default(), coalesce(16, 32), coalesce(64, 0), ADAPTIVE] {
        for between in [Between::Spin, Between::Jump] {
            stress(config, between);
        }
    }
}
