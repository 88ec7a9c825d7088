//! The wire by itself, and every context once, over a stack.

use std::time::{Duration, Instant};

use softnet::config::Context;
use softnet_dev::mem::{Sink, Source};
use softnet_dev::sched::Policy;

use super::hungry::Hungry;
use super::rig::Load;
use super::setup::Setup;
use super::wire::{HEADERS, Lane, Requests, Responses};
use crate::bench::cpus;

/// Exchanges the ends of a packet, as the application does.
fn answer(packet: &mut [u8]) {
    for (a, b, n) in [(0, 6, 6), (26, 30, 4), (34, 36, 2)] {
        (0..n).for_each(|i| packet.swap(a + i, b + i));
    }
}

/// Takes the next request and answers it.
fn serve(requests: &mut Requests, responses: &mut Responses) -> Vec<u8> {
    let mut packet = vec![0; 2048];
    let len = requests.write(&mut packet);
    packet.truncate(len);
    answer(&mut packet);
    responses.read(&packet);
    packet
}

#[test]
fn each_response_brings_its_flows_next_request() {
    for (flows, size) in [(100, 1), (1, 1400), (64, 1), (500, 18)] {
        let (lane, (mut requests, mut responses)) = Lane::new(flows, size);
        let ports: Vec<Vec<u8>> =
            (0..3 * flows).map(|_| serve(&mut requests, &mut responses)[36..38].to_vec()).collect();
        assert_eq!(requests.next_len(), HEADERS + size);
        assert_eq!(lane.strange(), 0);
        // Answered in order, so that the flows stay in it.
        assert!(ports.chunks(flows).all(|round| *round == ports[..flows]), "{flows} flows");
        let together = flows.min(64);
        assert_eq!(lane.take_latency().count() as usize, 3 * flows / together * together);
        assert_eq!(lane.take_latency().count(), 0, "it was taken");
    }
}

#[test]
fn what_no_flow_waits_for_is_strange() {
    let (lane, (mut requests, mut responses)) = Lane::new(2, 8);
    let mut request = vec![0; HEADERS + 8];
    assert_eq!(requests.write(&mut request), request.len());
    responses.read(&request);
    assert_eq!(lane.strange(), 1, "a request is no response");
    let mut response = request.clone();
    answer(&mut response);
    // Ends, number, ports and payload; not TTL, checksums and the like, which are the application's.
    for at in (0..12).chain([18, 19, 26, 33, 34, 35]).chain(HEADERS..HEADERS + 8) {
        let mut other = response.clone();
        other[at] ^= 1;
        responses.read(&other);
    }
    for cut in 0..response.len() {
        responses.read(&response[..cut]);
    }
    let wrong = 1 + 12 + 6 + 8 + response.len() as u64;
    assert_eq!(lane.strange(), wrong);
    responses.read(&response);
    assert_eq!(lane.strange(), wrong);
}

/// CPUs that each hungry thread of this process may use, as the kernel writes them.
fn places() -> Vec<String> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path());
    let read = |task: &std::path::Path, file| std::fs::read_to_string(task.join(file)).unwrap_or_default();
    let allowed = |status: String| {
        status.lines().find_map(|line| Some(line.strip_prefix("Cpus_allowed_list:")?.trim().to_owned()))
    };
    tasks
        .filter(|task| read(task, "comm") == "hungry\n")
        .filter_map(|task| allowed(read(&task, "status")))
        .collect()
}

#[test]
fn hogs_stay_on_the_workers_cpu() {
    let cpu = *cpus().last().unwrap();
    assert_eq!(Setup::Hog.workers(cpu), [cpu as u32]);
    assert_eq!(Setup::Hog.hungry_cpu(cpu), Some(cpu));
    assert_eq!(Setup::Contended.hungry_cpu(cpu), None);
    let hungry = Hungry::start(2, Some(cpu)).unwrap();
    // A new thread has its name, and so is found, a little later.
    let there = || places().iter().filter(|place| **place == cpu.to_string()).count() >= 2;
    let patience = Instant::now() + Duration::from_secs(10);
    while !there() {
        assert!(Instant::now() < patience, "{:?}", places());
        std::thread::sleep(Duration::from_millis(1));
    }
    drop(hungry);
    assert!(Hungry::start(1, Some(1 << 20)).is_err(), "there is no such CPU");
}

#[test]
fn every_context_answers() {
    for context in Context::ALL {
        let load = Load {
            context,
            policy: Policy::Other,
            workers: vec![0, 0],
            pins: None,
            hungry: 1,
            hungry_cpu: None,
            flows: 100,
            work: Duration::from_micros(1),
            size: 64,
        };
        let sample = load.measure(2, Duration::ZERO, Duration::from_millis(20)).unwrap();
        let figure = |name| sample.iter().find(|(figure, _)| *figure == name).unwrap().1;
        assert!(figure("qps") > 0.0, "{context}");
        assert!(figure("p50_us") <= figure("p90_us") && figure("p99_us") <= figure("p999_us"), "{context}");
        let threads = [("softirq", 1.0), ("threaded", 2.0), ("busy-poll", 2.0)];
        if let Some((_, expected)) = threads.iter().find(|(name, _)| *name == context.name()) {
            assert_eq!(figure("threads"), *expected, "{context}");
        }
    }
}
