use std::collections::BTreeMap;

use proptest::prelude::*;

use super::wheel::{CROWD, TICK};
use super::*;

const MS: u64 = 1_000_000;
const S: u64 = 1000 * MS;
const HOUR: u64 = 3600 * S;
const DAY: u64 = 24 * HOUR;

/// A wheel, and what it should do: each timer's deadline, by its number.
#[derive(Default)]
struct Bench {
    wheel: TimerWheel<u32>,
    timers: BTreeMap<u32, Timer>,
    model: BTreeMap<u32, u64>,
    now: u64,
}

impl Bench {
    fn add(&mut self, number: u32) {
        let wheel = &mut self.wheel;
        self.timers.entry(number).or_insert_with(|| wheel.add(number));
    }

    fn arm(&mut self, number: u32, at: u64) {
        self.add(number);
        self.wheel.arm(&self.timers[&number], self.now, at);
        self.model.insert(number, at);
    }

    fn cancel(&mut self, number: u32) {
        if let Some(timer) = self.timers.get(&number) {
            self.wheel.cancel(timer);
        }
        self.model.remove(&number);
    }

    fn remove(&mut self, number: u32) {
        if let Some(timer) = self.timers.remove(&number) {
            self.wheel.remove(timer);
        }
        self.model.remove(&number);
    }

    fn first(&self) -> Option<u64> {
        self.model.values().min().copied()
    }

    /// Takes out what is due, and checks that it is.
    fn expire(&mut self) -> Option<u32> {
        let number = self.wheel.expire(self.now)?;
        let deadline = self.model.remove(&number).expect("an armed timer");
        assert!(deadline <= self.now, "{} ns early", deadline - self.now);
        Some(number)
    }

    fn expire_all(&mut self) -> Vec<u32> {
        std::iter::from_fn(|| self.expire()).collect()
    }

    /// What holds after all that was due came out. `exact`: no slot was ever crowded.
    fn check(&self, exact: bool) {
        assert_eq!(self.wheel.armed(), self.model.len());
        for (number, timer) in &self.timers {
            assert_eq!(self.wheel.deadline(timer), self.model.get(number).copied());
        }
        let (next, first) = (self.wheel.next_deadline(), self.first());
        if exact {
            assert_eq!(next, first);
        }
        assert_eq!(next.is_some(), first.is_some());
        assert!(next.is_none_or(|at| at > self.now), "nothing is left that is due");
        assert!(next <= first.map(|at| at.saturating_add(TICK)), "at most a tick late");
        let quiet = self.wheel.quiet_until();
        assert!(quiet.is_some() == next.is_some() && quiet <= next, "{quiet:?} is no later than {next:?}");
    }
}

#[test]
fn timers_of_all_lengths_expire_at_their_deadlines() {
    let mut b = Bench::default();
    for start in [0, 5 * S + 1, 400 * DAY + 7] {
        b.now = start;
        let lengths = [1, MS, 40 * MS, 200 * MS, S, 63 * S, 600 * S, 2 * HOUR, 25 * HOUR, 400 * DAY];
        for (number, length) in lengths.into_iter().enumerate() {
            b.arm(number as u32, start + length);
        }
        for (number, length) in lengths.into_iter().enumerate() {
            b.check(true);
            b.now = start + length - 1;
            assert_eq!(b.expire_all(), [0; 0]);
            b.now = start + length;
            assert_eq!(b.expire_all(), [number as u32]);
        }
        b.check(true);
    }
}

#[test]
fn what_is_armed_for_never_is_still_a_timer() {
    let mut b = Bench::default();
    b.arm(1, u64::MAX);
    b.arm(2, u64::MAX - 1);
    b.check(true);
    b.now = u64::MAX - 1;
    assert_eq!(b.expire_all(), [2]);
    b.now = u64::MAX;
    assert_eq!(b.expire_all(), [1]);
    b.arm(3, 5);
    assert_eq!((b.wheel.next_deadline(), b.expire_all()), (Some(5), vec![3]));
}

/// Put off again and again, it is moved only as its slot comes, and the wheel says all the time when it expires.
#[test]
fn a_timer_that_is_put_off_causes_no_wake_up() {
    let mut b = Bench::default();
    b.arm(1, 200 * MS);
    b.arm(2, HOUR);
    for n in 0..100_000 {
        b.now = n * MS / 10;
        b.arm(1, b.now + 200 * MS);
        b.check(true);
        assert_eq!(b.expire(), None);
        b.check(true);
    }
    b.cancel(1);
    assert_eq!(b.wheel.next_deadline(), Some(HOUR));
    b.cancel(2);
    assert_eq!(b.wheel.next_deadline(), None);
}

#[test]
fn callers_may_rearm_and_cancel_what_is_due() {
    let mut b = Bench::default();
    (0..4).for_each(|number| b.arm(number, 10 * MS + u64::from(number)));
    b.now = 11 * MS;
    assert_eq!(b.expire(), Some(0));
    // Due too: one that is cancelled, one that is put off, and the first one again, at once.
    b.cancel(1);
    b.arm(2, 20 * MS);
    b.arm(0, b.now);
    assert_eq!(b.expire_all(), [3, 0]);
    b.check(true);
    assert_eq!(b.wheel.next_deadline(), Some(20 * MS));
    b.arm(0, 3 * MS);
    assert_eq!(b.expire_all(), [0], "in the past");
    b.remove(2);
    b.check(true);
}

#[test]
fn a_clock_that_is_a_little_behind_another_one() {
    let mut b = Bench { now: 100 * TICK, ..Bench::default() };
    b.arm(1, 200 * TICK);
    b.now = 100 * TICK - 10;
    b.arm(2, 100 * TICK - 5);
    assert_eq!((b.wheel.next_deadline(), b.expire()), (Some(100 * TICK - 5), None));
    b.now = 100 * TICK - 5;
    assert_eq!(b.expire_all(), [2]);
    b.check(true);
}

/// A million timers in one tick cost a look at each of them, not one at each for each.
#[test]
fn a_crowd_expires_together_and_at_most_a_tick_late() {
    let mut b = Bench::default();
    let n = 20_000;
    // In one tick, an hour ahead.
    let begin = HOUR / TICK * TICK;
    for number in 0..n {
        b.arm(number, begin + u64::from(number) * 50);
    }
    let (mut wake_ups, mut in_vain) = (0, 0);
    while let Some(at) = b.wheel.next_deadline() {
        b.now = at;
        let expired = b.expire_all().len();
        wake_ups += 1;
        in_vain += u32::from(expired == 0);
        b.check(false);
    }
    assert!(b.now <= begin + TICK);
    // Once at most for each higher digit.
    assert!(wake_ups <= 9 && in_vain <= 7, "{wake_ups}, {in_vain} of them in vain");
    // Busy, it is looked at all the time, and is still not slow.
    for number in 0..n {
        b.arm(number, begin + HOUR + u64::from(number) * 50);
    }
    for ns in (0..3 * TICK).step_by(10) {
        b.now = begin + HOUR + ns;
        b.expire_all();
    }
    b.check(true);
    assert_eq!(b.model.len(), 0);
}

/// Timers of connections that live for long, each put off in turn: a crowded slot causes one wake-up in vain at the most.
#[test]
fn crowds_of_long_timers_cause_few_wake_ups_in_vain() {
    let mut b = Bench::default();
    let n = 1000u32;
    (0..n).for_each(|number| b.arm(number, 2 * HOUR + u64::from(number) * 100 * MS));
    let (mut wake_ups, mut expired) = (0, 0);
    let mut speaks = 0;
    // Each speaks once an hour, in turn, for ten hours; then they fall silent.
    while b.now < 20 * HOUR {
        let next_word = u64::from(speaks) * HOUR / u64::from(n);
        let next = b.wheel.next_deadline().unwrap_or(u64::MAX);
        if speaks < 10 * n && next_word <= next {
            b.now = b.now.max(next_word);
            b.arm(speaks % n, b.now + 2 * HOUR);
            speaks += 1;
        } else if next == u64::MAX {
            break;
        } else {
            b.now = next;
            wake_ups += 1;
            expired += b.expire_all().len();
        }
    }
    assert_eq!((expired, b.wheel.armed()), (1000, 0));
    assert!(wake_ups < 1000 + 100, "{wake_ups}");
}

/// What is armed after a long time without anything due is filed by the time that it is.
#[test]
fn an_idle_wheel_keeps_up_with_the_time() {
    let mut b = Bench::default();
    b.arm(0, 20 * HOUR);
    for start in [HOUR, 3 * HOUR, 19 * HOUR] {
        b.now = start;
        (1..100).for_each(|number| b.arm(number, start + 200 * MS + u64::from(number) * 3 * TICK));
        assert_eq!(b.wheel.next_deadline(), b.first());
        (1..100).for_each(|number| b.cancel(number));
        assert_eq!(b.wheel.next_deadline(), Some(20 * HOUR));
    }
}

#[test]
fn places_are_used_again() {
    let mut b = Bench::default();
    for round in 0..10 {
        (0..100).for_each(|number| b.arm(number, S * u64::from(number + round)));
        (0..100).for_each(|number| b.remove(number));
        b.check(true);
    }
    let of_100 = b.wheel.add(0);
    assert!(format!("{of_100:?}").len() <= "Timer(99)".len(), "{of_100:?}");
}

#[derive(Clone, Debug)]
enum Op {
    Arm(u32, u64),
    Cancel(u32),
    Remove(u32),
    /// The time goes on; this many of those that are due are taken, and of these some are armed again, and the
    /// next ones cancelled.
    Expire(u64, usize, Option<u64>, bool),
    /// The time goes on to the next deadline.
    Sleep,
}

/// From nothing to years, with all that is near the edges of ticks.
fn span() -> impl Strategy<Value = u64> {
    prop_oneof![
        Just(0),
        1..2 * TICK,
        (0..200u64).prop_map(|n| n * TICK),
        (0..200u64, 0..3u64).prop_map(|(n, d)| (n << 26) + d),
        0..10 * S,
        0..3 * HOUR,
        0..30 * DAY,
        (0..64u32).prop_map(|bit| (1u64 << bit) - 1),
    ]
}

fn op(timers: u32) -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (0..timers, span()).prop_map(|(n, after)| Op::Arm(n, after)),
        2 => (0..timers).prop_map(Op::Cancel),
        1 => (0..timers).prop_map(Op::Remove),
        3 => (span(), 0..9usize, prop::option::of(span()), any::<bool>())
            .prop_map(|(after, n, again, cancel)| Op::Expire(after, n, again, cancel)),
        3 => Just(Op::Sleep),
    ]
}

fn like_the_model(start: u64, timers: u32, ops: Vec<Op>) {
    // As many timers as are looked at: every answer is exact.
    let exact = timers as usize <= CROWD;
    let mut b = Bench { now: start, ..Bench::default() };
    for op in ops {
        match op {
            Op::Arm(number, after) => b.arm(number, b.now.saturating_add(after)),
            Op::Cancel(number) => b.cancel(number),
            Op::Remove(number) => b.remove(number),
            Op::Expire(after, most, again, cancel) => {
                b.now = b.now.saturating_add(after);
                for _ in 0..most {
                    let Some(number) = b.expire() else { break };
                    if let Some(again) = again {
                        b.arm(number, b.now.saturating_add(again));
                    }
                    if cancel {
                        b.cancel(number + 1);
                    }
                }
                // Others that are due are not slept over.
                assert!(b.first().is_none_or(|at| at > b.now || b.wheel.next_deadline() <= Some(b.now)));
                b.expire_all();
                b.check(exact);
            }
            Op::Sleep => {
                let Some(at) = b.wheel.next_deadline() else { continue };
                assert!(at <= b.first().unwrap().max(b.now).saturating_add(TICK));
                b.now = b.now.max(at);
                let expired = b.expire_all();
                assert!(!exact || !expired.is_empty(), "a wake-up in vain");
                b.check(exact);
            }
        }
        if exact {
            assert_eq!(b.wheel.next_deadline(), b.first());
        }
    }
}

proptest! {
    #[test]
    fn few_timers_are_exact(start in span(), ops in prop::collection::vec(op(CROWD as u32), 0..100)) {
        like_the_model(start, CROWD as u32, ops);
    }

    #[test]
    fn many_timers_are_a_tick_late_at_most(start in span(), ops in prop::collection::vec(op(200), 0..400)) {
        like_the_model(start, 200, ops);
    }
}
