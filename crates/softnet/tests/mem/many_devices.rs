//! As many devices as a router with a VLAN for each customer has.

use softnet::driver::Own;

use super::frames::{host, ip, number_of, numbered};
use super::world::{Lane, Setup, of_port, until};

const DEVICES: usize = 200;

#[test]
fn packets_pass_between_any_two_of_two_hundred_devices() {
    let ports = [1; DEVICES];
    let setup = Setup { ports: &ports, workers: 2, known: true, ..Setup::default() };
    let (world, mut lanes) = setup.start_with(|config| {
        config.stack.frames = 1 << 17;
        config.devices.iter_mut().for_each(|device| device.driver = Own.into());
    });
    let mut sent = 0;
    for (from, to) in [(3, 150), (150, 3), (199, 0), (63, 64)] {
        let mut ends: Vec<Lane> = [from, to].into_iter().flat_map(|port| of_port(&mut lanes, port)).collect();
        let frames: Vec<_> = (0..40).map(|number| numbered(from, host(to), 7, number)).collect();
        assert_eq!(ends[0].send(&frames), 40);
        let mut got = vec![];
        until("all packets", || {
            ends[1].receive(|frame| got.extend(number_of(frame)));
            got.len() == 40
        });
        assert_eq!(got, (0..40).map(|number| (7, number)).collect::<Vec<_>>(), "from {from} to {to}");
        // No route to there.
        assert_eq!(ends[0].send(&[ip(from, [192, 0, 2, 1].into(), 64, 17, &[0; 8])]), 1);
        sent += 41;
        lanes.extend(ends);
    }
    // One batch to 64 of them.
    let (mut from, many) = (of_port(&mut lanes, 100), 120..184);
    let frames: Vec<_> = many.clone().map(|to| numbered(100, host(to), 8, to as u32)).collect();
    assert_eq!(from[0].send(&frames), many.len());
    for to in many {
        let lane = lanes.iter_mut().find(|lane| lane.port == to).unwrap();
        let mut got = vec![];
        until("a packet of each", || {
            lane.receive(|frame| got.extend(number_of(frame)));
            !got.is_empty()
        });
        assert_eq!(got, [(8, to as u32)]);
        sent += 1;
    }
    lanes.extend(from);
    world.settle(sent);
    let drops = world.view.drops();
    for dev in ["mem3", "mem150", "mem199", "mem63"] {
        let of: Vec<_> = drops.iter().filter(|row| row.dev == dev).collect();
        assert_eq!(of.len(), 1, "{of:?}");
        assert_eq!((&of[0].reason[..], of[0].packets), ("ip_outnoroutes", 1), "{dev}");
    }
    world.end(lanes);
}
