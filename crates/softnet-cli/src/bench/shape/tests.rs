//! Both routers of the bench, without a clock: what they let pass is right, and what was sent is accounted for.

use softnet_testkit::net_allowed;

use super::*;

/// Any CPU will do here, also the same twice.
fn cpu() -> usize {
    cpus()[0]
}

/// That `measure` returns says that each packet arrived or was counted as dropped.
fn shapes(rig: &Rig) -> Trial {
    rig.check(&ALL[0]).unwrap();
    rig.measure(&ALL[1], Duration::ZERO, Duration::from_millis(50)).unwrap();
    rig.measure(&ALL[0], Duration::ZERO, Duration::from_millis(50)).unwrap()
}

#[test]
fn softnet_shapes_and_accounts_for_each_packet() {
    if net_allowed() {
        assert!(shapes(&Rig::softnet(cpu(), cpu()).unwrap()).waited.is_some());
    }
}

#[test]
fn the_kernel_shapes_and_accounts_for_each_packet() {
    if !net_allowed() {
        return;
    }
    let rig = Rig::kernel(cpu()).unwrap();
    match rig.shape(&ALL[0]) {
        Ok(()) => assert!(shapes(&rig).waited.is_none()),
        Err(error) => println!("skipped: {error}"),
    }
}

fn report(rows: &[(&str, u64, Sample)]) -> Report {
    let rows = rows.iter().map(|(case, mbit, sample)| {
        let mut row = row(case, &Shaping { mbit: *mbit, ..ALL[0] });
        row.push(sample.clone());
        row
    });
    Report::new("shape", rows.collect(), None)
}

#[test]
fn every_row_must_keep_to_its_rate() {
    let ratio = |x| vec![("ratio", x)];
    for (first, second, holds) in
        [(0.981, 1.019, true), (0.979, 1.0, false), (1.0, 0.979, false), (1.0, 1.021, false)]
    {
        let mut report = report(&[("tbf", 10, ratio(first)), ("tbf", 100, ratio(second))]);
        state_bounds(&mut report);
        assert_eq!(report.holds(), holds, "{first}, {second}");
    }
}

#[test]
fn it_uses_no_more_than_twice_what_the_kernel_does() {
    let used = |cpu, wakeups, timers| {
        vec![
            ("ratio", 1.0),
            ("cpu_percent", cpu),
            ("wakeups_per_s", wakeups),
            ("timer_wakeups_per_s", timers),
        ]
    };
    for (mbit, ours, holds) in [
        (1000, used(40.0, 200.0, 20.0), true),
        (1000, used(41.0, 1.0, 1.0), false),
        (10, used(41.0, 1.0, 1.0), true),
        (10, used(1.0, 201.0, 1.0), false),
        (1000, used(1.0, 1.0, 21.0), false),
    ] {
        let mut report = report(&[("tbf", mbit, ours), ("kernel-tbf", mbit, used(20.0, 100.0, 10.0))]);
        state_bounds(&mut report);
        assert_eq!(report.holds(), holds);
    }
}

#[test]
fn a_row_says_what_limited_or_disturbed_it() {
    let mut report = report(&[
        ("tbf", 10, vec![("offered_ratio", 1.0), ("waited_percent", 6.0)]),
        ("kernel-tbf", 10, vec![("offered_ratio", 1.5)]),
    ]);
    annotate(&mut report);
    assert_eq!(report.rows[0].notes, ["generator-bound", "disturbed by other programs"]);
    assert!(report.rows[1].notes.is_empty());
}
