//! The simulator: two ends through a bad network in virtual time, of which a seed says everything.
//!
//! Options of both ends, MSS, path, what the applications write and read and how they end come
//! from the seed ([`plan`]); [`world`] runs it, and says what has to hold. A seed that fails is
//! run again, with every segment written down, by
//! `SOFTNET_SIM_SEED=N cargo test -p softnet-tcp sim::replay -- --ignored --nocapture`.
//! A million of them: `SOFTNET_SIM_SEEDS=1000000 cargo test --release -p softnet-tcp sim::many --
//! --ignored --nocapture`, from `SOFTNET_SIM_SEED` on if that is set.

mod goodput;
mod plan;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant as Clock;

use plan::Plan;
use world::World;

/// Runs seeds one after the other, and returns how many failed; each says how it is run again.
fn seeds(seeds: impl Iterator<Item = u64>) -> u64 {
    let fails = |seed: &u64| catch_unwind(AssertUnwindSafe(|| World::new(&Plan::of(*seed)).run())).is_err();
    let failed = seeds.filter(fails).inspect(|seed| {
        eprintln!(
            "seed {seed} failed; SOFTNET_SIM_SEED={seed} cargo test -p softnet-tcp sim::replay -- --ignored \
             --nocapture"
        );
    });
    failed.count() as u64
}

fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).map_or(otherwise, |text| text.parse().unwrap_or_else(|_| panic!("{name}={text}")))
}

#[test]
fn some_hundred_seeds() {
    assert_eq!(seeds(0..400), 0, "seeds that failed");
}

#[test]
#[ignore = "runs as many seeds as SOFTNET_SIM_SEEDS says"]
fn many() {
    let (first, count) = (number("SOFTNET_SIM_SEED", 0), number("SOFTNET_SIM_SEEDS", 10_000));
    let (began, mut failed) = (Clock::now(), 0);
    for done in (0..count).step_by(10_000) {
        let next = count.min(done + 10_000);
        failed += seeds(first + done..first + next);
        let rate = next as f64 / began.elapsed().as_secs_f64();
        eprintln!("{next} of {count} seeds, {failed} failed, {rate:.0} a second");
    }
    assert_eq!(failed, 0, "seeds that failed");
}

#[test]
#[ignore = "runs the seed that SOFTNET_SIM_SEED says, and writes down every segment"]
fn replay() {
    let plan = Plan::of(number("SOFTNET_SIM_SEED", 0));
    eprintln!("{plan:#?}");
    let mut world = World::new(&plan);
    world.trace = true;
    eprintln!("{:?}", world.run());
}
