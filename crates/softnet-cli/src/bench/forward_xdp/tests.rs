//! Every forwarder of the bench, without a clock: what it forwards is right, and what was sent is accounted for.

use softnet_testkit::net_allowed;

use super::*;

/// Any CPU will do here, also the same twice.
fn cpu() -> usize {
    crate::bench::cpus()[0]
}

fn forwards(way: Way) {
    if !net_allowed() {
        return;
    }
    let rig = Rig::new(way, cpu(), cpu()).unwrap();
    check::check(&rig).unwrap();
    // That it returns says that each packet arrived or was counted as lost.
    let trial = rig.measure(Some(20_000), Duration::ZERO, Duration::from_millis(50)).unwrap();
    assert!((0.0..=1.0).contains(&trial.loss) && (0.0..=1.0).contains(&trial.idle), "{trial:?}");
    rig.measure(None, Duration::ZERO, Duration::from_millis(20)).unwrap();
}

#[test]
fn softnet_routes_and_accounts_for_each_packet() {
    forwards(Way::Routed);
}

#[test]
fn the_cross_connect_accounts_for_each_packet() {
    forwards(Way::Plain);
}

#[test]
fn the_kernel_in_softirq_accounts_for_each_packet() {
    forwards(Way::Kernel(KernelNapi::Softirq));
}

#[test]
fn the_kernel_in_a_thread_accounts_for_each_packet() {
    forwards(Way::Kernel(KernelNapi::Threaded { cpu: cpu() }));
}

#[test]
fn a_forwarder_that_does_not_route_is_found_out() {
    if !net_allowed() {
        return;
    }
    let mut rig = Rig::new(Way::Plain, cpu(), cpu()).unwrap();
    rig.way = Way::Routed;
    let error = check::check(&rig).unwrap_err();
    assert!(error.contains("came out instead of"), "{error}");
}

#[test]
fn a_row_says_what_limited_or_disturbed_it() {
    let trial =
        Trial { rate: 5e5, offered: 1e6, loss: 0.5, idle: 0.1, worker: 0.25, softirq: 0.2, waited: 0.06 };
    let sample = sample(&trial);
    let figure = |name| sample.iter().find(|(figure, _)| *figure == name).map(|(_, value)| *value);
    assert_eq!(figure("mpps"), Some(0.5));
    assert_eq!(figure("cpu_ns_per_packet"), Some(900.0));
    assert_eq!(figure("worker_ns_per_packet"), Some(500.0));
    let case = |name: &str, trial: Trial| Case {
        row: Row::new(name, vec![]),
        measure: Box::new(move || Ok(super::sample(&trial))),
    };
    let cases = vec![case("softnet", trial), case("plain", Trial { idle: 0.2, waited: 0.05, ..trial })];
    let mut report = alternate("forward", Some(cpu()), 1, cases).unwrap();
    // What other programs did meanwhile is none of this test's.
    report.rows.iter_mut().for_each(|row| row.notes.clear());
    annotate(&mut report);
    assert_eq!(report.rows[0].notes, ["generator-bound", "disturbed by other programs"]);
    assert!(report.rows[1].notes.is_empty());
    state_bounds(&mut report);
    assert!(report.holds());
}
