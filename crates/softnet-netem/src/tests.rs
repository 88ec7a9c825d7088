use super::*;

/// What becomes of `n` packets of 1000 bytes, one a microsecond, none of them held.
fn run(params: Params, n: u64) -> Vec<Decision> {
    let mut netem = Netem::new(params);
    (0..n).map(|i| netem.decide(i * 1000, 1000, 0)).collect()
}

fn share(params: Params, is: impl Fn(&Decision) -> bool) -> f64 {
    let n = 200_000;
    run(params, n).iter().filter(|decision| is(decision)).count() as f64 / n as f64
}

fn leaves(at: u64) -> Fate {
    Fate::Leaves { at, ahead: false, corrupt: None }
}

fn is_lost(decision: &Decision) -> bool {
    decision.packet == Fate::Lost
}

#[test]
fn by_default_all_leave_at_once() {
    for (i, decision) in run(Params::default(), 100).into_iter().enumerate() {
        assert_eq!(decision, Decision { packet: leaves(i as u64 * 1000), copy: None });
    }
}

#[test]
fn a_seed_gives_the_same_run_and_another_one_another() {
    let params = |seed| Params {
        loss: Loss::Random(Random::of(Chance::percent(10))),
        jitter: 5000,
        delay: 10_000,
        duplicate: Random::of(Chance::percent(5)),
        corrupt: Random { chance: Chance::percent(5), correlation: Chance::percent(50) },
        seed,
        ..Params::default()
    };
    assert_eq!(run(params(7), 1000), run(params(7), 1000));
    assert_ne!(run(params(7), 1000), run(params(8), 1000));
}

#[test]
fn chances_are_what_they_say() {
    for percent in [1, 25, 50, 100] {
        let one = Random::of(Chance::percent(percent));
        let want = f64::from(percent) / 100.0;
        let near = |got: f64| assert!((got - want).abs() < 0.005, "{percent}%: {got}");
        near(share(Params { loss: Loss::Random(one), ..Params::default() }, is_lost));
        near(share(Params { duplicate: one, ..Params::default() }, |d| d.copy.is_some()));
        near(share(Params { corrupt: one, ..Params::default() }, |d| {
            matches!(d.packet, Fate::Leaves { corrupt: Some(_), .. })
        }));
        near(share(Params { reorder: one, delay: 1, ..Params::default() }, |d| {
            matches!(d.packet, Fate::Leaves { ahead: true, .. })
        }));
    }
    assert_eq!(Chance(1).threshold(), 43, "a small chance is one");
}

#[test]
fn a_copy_lives_where_the_packet_is_lost() {
    let always = Random::of(Chance::ALWAYS);
    let params = Params { loss: Loss::Random(always), duplicate: always, ..Params::default() };
    assert_eq!(run(params, 1), [Decision { packet: leaves(0), copy: None }]);
}

#[test]
fn a_gilbert_elliott_network_loses_in_bursts() {
    let loss = Loss::Gemodel {
        p: Chance::percent(1),
        r: Chance::percent(20),
        lost_bad: Chance::ALWAYS,
        lost_good: Chance::NEVER,
    };
    let decisions = run(Params { loss, ..Params::default() }, 200_000);
    let lost = decisions.iter().filter(|decision| is_lost(decision)).count();
    let bursts = decisions.windows(2).filter(|two| !is_lost(&two[0]) && is_lost(&two[1])).count();
    // p / (p + r) of all are lost, in bursts of 1 / r.
    assert!((lost as f64 / 200_000.0 - 1.0 / 21.0).abs() < 0.005, "{lost}");
    assert!((lost as f64 / bursts as f64 - 5.0).abs() < 0.4, "{lost} in {bursts}");
}

#[test]
fn correlated_losses_come_together() {
    let loss = |correlation| Loss::Random(Random { chance: Chance::percent(30), correlation });
    let pairs = |loss| {
        let decisions = run(Params { loss, ..Params::default() }, 100_000);
        let lost = decisions.iter().filter(|decision| is_lost(decision)).count();
        let both = decisions.windows(2).filter(|two| two.iter().all(is_lost)).count();
        both as f64 / lost as f64
    };
    let (apart, together) = (pairs(loss(Chance::NEVER)), pairs(loss(Chance::percent(60))));
    // The kernel's mixture draws numbers to their middle: fewer are lost than was asked for.
    assert!((apart - 0.3).abs() < 0.02 && together > 0.36, "{apart} {together}");
}

#[test]
fn jitter_stays_within_its_bounds_and_reaches_them() {
    let params = Params { delay: 1000, jitter: 400, ..Params::default() };
    let mut netem = Netem::new(params);
    let mut delays: Vec<u64> = (0..20_000)
        .map(|_| match netem.decide(0, 100, 0).packet {
            Fate::Leaves { at, .. } => at,
            other => panic!("{other:?}"),
        })
        .collect();
    delays.sort_unstable();
    assert_eq!((delays[0], delays[19_999]), (600, 1400));
    let mean = delays.iter().sum::<u64>() / 20_000;
    assert!(mean.abs_diff(1000) < 10, "{mean}");
    // A delay below zero is none, and nothing overflows.
    let mut early = Netem::new(Params { delay: 0, jitter: u64::MAX, ..Params::default() });
    let mut late = Netem::new(Params { delay: u64::MAX, jitter: u64::MAX, ..Params::default() });
    for _ in 0..100 {
        assert!(matches!(early.decide(5, 1, 0).packet, Fate::Leaves { at: 5.., .. }));
        assert!(matches!(late.decide(u64::MAX, 1, 0).packet, Fate::Leaves { at: u64::MAX, .. }));
    }
}

#[test]
fn a_rate_spaces_packets_and_idle_time_earns_nothing() {
    let mut netem = Netem::new(Params { rate: 1_000_000, delay: 500, ..Params::default() });
    let mut at = |now| netem.decide(now, 1000, 0).packet;
    assert_eq!([at(0), at(0)], [leaves(1_000_500), leaves(2_000_500)]);
    assert_eq!([at(9_000_000), at(9_000_000)], [leaves(10_000_500), leaves(11_000_500)]);
}

#[test]
fn a_full_queue_takes_nothing_and_a_copy_counts() {
    let twice = Random::of(Chance::ALWAYS);
    let mut netem = Netem::new(Params { limit: 2, duplicate: twice, ..Params::default() });
    assert_eq!(netem.decide(0, 1, 2).packet, Fate::Overlimit);
    let one = netem.decide(0, 1, 1);
    assert_eq!(one, Decision { packet: leaves(0), copy: Some(Fate::Overlimit) });
}

#[test]
fn one_of_gap_packets_is_ahead() {
    let always = Random::of(Chance::ALWAYS);
    let params = Params { delay: 10, reorder: always, gap: 5, ..Params::default() };
    let ahead: Vec<bool> = run(params, 10)
        .iter()
        .map(|decision| matches!(decision.packet, Fate::Leaves { ahead: true, .. }))
        .collect();
    assert_eq!(ahead, [false, false, false, false, true, false, false, false, false, true]);
}

#[test]
fn other_parameters_keep_what_the_rate_owes() {
    let mut netem = Netem::new(Params { rate: 1_000_000, ..Params::default() });
    netem.decide(0, 10_000, 0);
    netem.change(Params { rate: 2_000_000, ..Params::default() });
    assert_eq!(netem.decide(0, 1000, 0).packet, leaves(10_500_000));
    assert_eq!(netem.params().rate, 2_000_000);
}

#[test]
fn chances_are_written_as_tc_does() {
    let texts = [0, 1_000_000, 100_000_000, 1_500_000, 1].map(|n| Chance(n).to_string());
    assert_eq!(texts, ["0%", "1%", "100%", "1.5%", "0.000001%"]);
}
