//! Each bench once over two stacks in this process: that it finds its own results right. Figures
//! mean nothing here.

use std::time::Duration;

use super::churn::Churn;
use super::rig::{Ends, Rig, addresses};
use super::ways::{BASE, BUSY, FULLBUSY, SUSPEND20, THREADED, WORKQUEUE};
use super::wire::RING;
use super::{Cpus, conn, idle, rr, stream};
use crate::bench::cpus;
use crate::bench::report::Sample;

const TIMES: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(100));

fn some_cpus() -> Cpus {
    let all = cpus();
    Cpus { server: all[0], client: all[all.len() - 1] }
}

fn rig() -> Rig {
    let Cpus { server, client } = some_cpus();
    Rig::mem(server, client, true, RING).unwrap()
}

fn figure(sample: &Sample, name: &str) -> f64 {
    sample.iter().find(|(figure, _)| *figure == name).unwrap().1
}

#[test]
fn requests_are_answered_whatever_their_size_and_number() {
    let mut bed = rr::Bed::new(rig(), some_cpus(), &BASE).unwrap();
    for (way, connections, size) in [
        (&BASE, 1, 1),
        (&SUSPEND20, 100, 64),
        (&FULLBUSY, 10_000, 64),
        (&BASE, 3, 1 << 20),
        (&FULLBUSY, 1, 5 << 10),
    ] {
        // On a busy machine no response may fall into a short time.
        let (warm_up, mut time) = TIMES;
        let sample = loop {
            let sample = bed.measure(way, rr::Load { connections, size, rate: None }, (warm_up, time));
            let sample = sample.unwrap_or_else(|e| panic!("{} of {connections} × {size}: {e}", way.name));
            if figure(&sample, "qps") > 0.0 {
                break sample;
            }
            time *= 4;
        };
        assert!(figure(&sample, "p50_us") > 0.0, "{sample:?}");
    }
}

/// Requests by the clock, in every context; what is asked for is answered.
#[test]
fn blocks_are_asked_for_at_a_rate() {
    let mut bed = rr::Bed::new(rig(), some_cpus(), &BASE).unwrap();
    for way in [&THREADED, &WORKQUEUE, &BASE] {
        for size in [4 << 10, 1 << 20] {
            let load = rr::Load { connections: 8, size, rate: Some(100.0) };
            let sample = bed
                .measure(way, load, (TIMES.0, TIMES.1 * 3))
                .unwrap_or_else(|e| panic!("{}: {e}", way.name));
            assert!(figure(&sample, "p50_us") > 0.0, "{}: {sample:?}", way.name);
        }
    }
}

#[test]
fn streams_flow_both_ways() {
    let rig = rig();
    for direction in [stream::Direction::Send, stream::Direction::Recv] {
        for (n, way) in [(1, &BASE), (4, &BASE), (1, &BUSY), (4, &BUSY)] {
            let sample = stream::measure(&rig, direction, n, way, some_cpus(), TIMES).unwrap();
            assert!(figure(&sample, "gbit_s") > 0.0, "{}: {sample:?}", way.name);
        }
    }
}

#[test]
fn connections_come_and_go() {
    let rig = rig();
    let Ends::Mem { server, client } = &rig.ends else { unreachable!("two stacks") };
    let at = addresses();
    let serving = super::server::Server::start(server, &at, &BASE, some_cpus().server).unwrap();
    serving.orders.size.store(64, std::sync::atomic::Ordering::Relaxed);
    serving.orders.closes.store(true, std::sync::atomic::Ordering::Relaxed);
    let mut looked = 0;
    let outcome = Churn::new(client, &at, 64)
        .unwrap()
        .run((16, 0), TIMES, &mut || looked += 1, &mut |_| Ok(()))
        .unwrap();
    assert!(outcome.answered > 0);
    assert_eq!(looked, 2);
}

#[test]
fn connections_come_and_go_beside_a_flood() {
    let mut bed = conn::Bed::new(rig(), some_cpus(), &BASE).unwrap();
    let sample = bed.measure(&BASE, conn::Load { syns: 2000, pace: 200 }, TIMES).unwrap();
    for what in ["conns_per_s", "syns_per_s", "requests"] {
        assert!(figure(&sample, what) > 0.0, "{what}: {sample:?}");
    }
}

#[test]
fn idle_connections_are_made_and_counted() {
    let sample = idle::measure(some_cpus().server, 2000).unwrap();
    assert!(figure(&sample, "opened_per_s") > 0.0, "{sample:?}");
}
