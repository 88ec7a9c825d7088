//! Generator, kernel forwarding and sink against each other: what was sent arrived, or the interfaces say where it
//! went.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use super::*;
use crate::net_allowed;
use softnet_dev::netlink::Netlink;

const NET: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 0);
const PORT: u16 = 4789;

fn drops(testbed: &Testbed) -> u64 {
    let of = |ns: &softnet_dev::netns::NetNs, name: &str| {
        let counters = ns.run(|| Netlink::new().unwrap().counters(name).unwrap()).unwrap();
        (counters.rx_dropped, counters.tx_dropped)
    };
    // Drops towards a veth's peer are counted by the sending end, those of its own NAPI by the receiving one. What the
    // sending end of the first wire drops, the generator was told about.
    let (rx_in, _) = of(&testbed.middle, &testbed.incoming.far);
    let (_, tx_out) = of(&testbed.middle, &testbed.outgoing.far);
    let (rx_sink, _) = of(&testbed.sink, &testbed.outgoing.near);
    rx_in + tx_out + rx_sink
}

/// Sends `count` frames or more through the kernel, and accounts for each.
fn conserved(napi: KernelNapi, rate: Option<u64>, count: u64) {
    let testbed = Testbed::new(1).unwrap();
    testbed.forward_by_kernel(NET, 15, napi).unwrap();
    let sink = testbed
        .sink
        .run(|| Sink::attach(testbed.outgoing.near_index, SinkFilter::UdpPort(PORT)).unwrap())
        .unwrap();
    let frames =
        (0..200u8).map(|host| testbed.frame(Ipv4Addr::new(198, 19, 7, host), PORT, 60)).collect::<Vec<_>>();
    let generator = Generator::start(
        &testbed.source,
        GeneratorConfig { interface: testbed.incoming.near.clone(), frames, rate, cpu: Some(0) },
    )
    .unwrap();
    // Only a guard against a test that never ends.
    let deadline = Instant::now() + Duration::from_secs(60);
    while generator.report().sent < count && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(1));
    }
    let report = generator.stop().unwrap();
    assert!(report.sent >= count, "{report:?}");
    while sink.count().unwrap() + drops(&testbed) < report.sent && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(1));
    }
    let (arrived, dropped) = (sink.count().unwrap(), drops(&testbed));
    assert_eq!(arrived + dropped, report.sent, "arrived {arrived}, dropped {dropped}, {report:?}");
    assert!(arrived > 0);
    println!("{napi:?}: arrived {arrived}, dropped {dropped}, {report:?}");
}

#[test]
fn what_the_kernel_forwards_in_softirq_is_accounted_for() {
    if net_allowed() {
        conserved(KernelNapi::Softirq, Some(100_000), 5_000);
    }
}

#[test]
fn what_the_kernel_forwards_in_threads_is_accounted_for_even_flat_out() {
    if net_allowed() {
        conserved(KernelNapi::Threaded { cpu: 0 }, None, 20_000);
    }
}

#[test]
fn a_paced_generator_sleeps_and_keeps_its_schedule() {
    if !net_allowed() {
        return;
    }
    let testbed = Testbed::new(1).unwrap();
    let sink =
        testbed.middle.run(|| Sink::attach(testbed.incoming.far_index, SinkFilter::All).unwrap()).unwrap();
    let config = GeneratorConfig {
        interface: testbed.incoming.near.clone(),
        frames: vec![testbed.frame(NET, PORT, 60)],
        rate: Some(2_000),
        cpu: None,
    };
    let generator = Generator::start(&testbed.source, config).unwrap();
    while generator.report().sent < 100 {
        std::thread::sleep(Duration::from_millis(1));
    }
    let report = generator.stop().unwrap();
    assert!(report.slept > Duration::ZERO && report.idle_share() <= 1.0, "{report:?}");
    // An open load never runs ahead of its schedule.
    assert!(
        report.sent + report.refused + report.skipped <= 2 * report.elapsed.as_millis() as u64 + 2,
        "{report:?}"
    );
    // The receiver's softirq may be late, on a busy machine.
    let deadline = Instant::now() + Duration::from_secs(60);
    while sink.count().unwrap() < report.sent && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(sink.count().unwrap(), report.sent);
}

#[test]
fn a_generator_tells_why_it_ended() {
    if !net_allowed() {
        return;
    }
    let testbed = Testbed::new(1).unwrap();
    let config = |interface: &str, frames| GeneratorConfig {
        interface: interface.to_owned(),
        frames,
        rate: Some(10_000),
        cpu: None,
    };
    let frame = testbed.frame(NET, PORT, 60);
    assert!(Generator::start(&testbed.source, config(&testbed.incoming.near, vec![])).is_err());
    assert!(Generator::start(&testbed.source, config("absent", vec![frame.clone()])).is_err());
    let generator = Generator::start(&testbed.source, config(&testbed.incoming.near, vec![frame])).unwrap();
    testbed.source.run(|| Netlink::new().unwrap().delete_link(&testbed.incoming.near).unwrap()).unwrap();
    while !generator.ended() {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(matches!(
        generator.stop().unwrap_err().raw_os_error(),
        Some(libc::ENETDOWN | libc::ENXIO | libc::ENODEV)
    ));
}
