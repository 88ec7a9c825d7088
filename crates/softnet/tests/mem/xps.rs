//! Which TX queue packets leave by: the maps of a device, over forwarded packets and local senders.

use super::frames::{batch_of, host, number_of, numbered};
use super::world::{Lane, Setup, of_port, until};

/// Queues of the lanes that `n` frames come by, each flow's.
fn queues(sinks: &mut [Lane], flows: usize) -> Vec<usize> {
    let mut by = vec![None; flows];
    until("a packet of each flow", || {
        for sink in sinks.iter_mut() {
            let queue = sink.queue;
            sink.receive(|frame| {
                let (flow, _) = number_of(frame).expect("nothing else is sent");
                by[flow as usize] = Some(queue);
            });
        }
        by.iter().all(Option::is_some)
    });
    by.into_iter().flatten().collect()
}

fn forwarded(xps: [&[&str]; 2]) -> Vec<usize> {
    let setup = Setup { ports: &[4, 4], workers: 2, known: true, xps, ..Setup::default() };
    let (world, mut lanes) = setup.start();
    let mut sinks = of_port(&mut lanes, 1);
    for lane in &mut lanes {
        assert_eq!(lane.send(&[numbered(0, host(1), lane.queue as u32, 0)]), 1);
    }
    let by = queues(&mut sinks, 4);
    lanes.extend(sinks);
    world.end(lanes);
    by
}

#[test]
fn forwarded_packets_leave_by_the_number_of_their_rx_queue_unless_a_map_says_otherwise() {
    assert_eq!(forwarded([&[], &[]]), [0, 1, 2, 3]);
    assert_eq!(forwarded([&[], &["3", "2", "1", "0"]]), [3, 2, 1, 0]);
    // RX queues without a TX queue of their own go by the CPU, and if that has none either, by their number.
    assert_eq!(forwarded([&["8191"], &["2-3", "0"]]), [1, 1, 0, 0]);
    assert_eq!(forwarded([&["", "", "0-63"], &["3", "0"]]), [1, 2, 2, 0]);
}

#[test]
fn a_local_sender_leaves_by_the_queue_of_its_cpu() {
    for (map, queue) in [(&["", "0-63"][..], 1), (&["", "", "", "0-63"], 3)] {
        let setup = Setup { ports: &[1, 4], workers: 1, known: true, xps: [map, &[]], ..Setup::default() };
        let (world, mut lanes) = setup.start();
        let mut sender = softnet::RawSender::new(&world.handle(), "mem1").unwrap();
        for flow in 0..8 {
            let frame = numbered(1, host(1), flow, 0);
            let mut batch = batch_of(sender.ctx(), &frame, 1);
            sender.send(&mut batch);
        }
        drop(sender);
        let mut sinks = of_port(&mut lanes, 1);
        assert_eq!(queues(&mut sinks, 8), [queue; 8]);
        lanes.extend(sinks);
        world.end(lanes);
    }
}

/// Without maps the flow hash of its first packet decides, and it stays there.
#[test]
fn a_local_sender_keeps_its_queue() {
    let (world, mut lanes) = Setup { ports: &[1, 4], workers: 1, known: true, ..Setup::default() }.start();
    let mut sinks = of_port(&mut lanes, 1);
    let mut used = [false; 4];
    for first in 0..16 {
        let mut sender = softnet::RawSender::new(&world.handle(), "mem1").unwrap();
        for flow in 0..4 {
            let frame = numbered(first, host(1), flow, 0);
            let mut batch = batch_of(sender.ctx(), &frame, 1);
            sender.send(&mut batch);
        }
        let by = queues(&mut sinks, 4);
        assert_eq!(by, [by[0]; 4]);
        used[by[0]] = true;
    }
    assert!(used.iter().filter(|used| **used).count() > 1, "all senders by one queue");
    lanes.extend(sinks);
    world.end(lanes);
}
