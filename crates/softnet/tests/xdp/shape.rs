//! Shaping over real interfaces: what `tbf` delays arrives at a kernel socket, all of it and in order.

use std::net::{Ipv4Addr, UdpSocket};
use std::time::Duration;

use rustix::net::sockopt::set_socket_recv_buffer_size_force;
use softnet::control::show::QdiscRow;

use super::hosts::{Echo, ask};
use super::world::{World, host, interface, until};

const PORT: u16 = 4000;
/// Datagrams offered at once, and bytes of each: 20 times the burst, less than the limit and the rings.
const COUNT: u32 = 400;
const SIZE: usize = 1000;
const TBF: &str = "tbf rate 40mbit burst 20000 limit 1000000";

fn tbf(world: &World, dev: usize) -> QdiscRow {
    let rows = world.view().qdiscs();
    rows.into_iter().find(|row| row.dev == interface(dev) && row.queue.is_none()).unwrap()
}

#[test]
fn what_tbf_delays_arrives_whole_and_in_order() {
    let Some(mut world) = World::new(2) else { return };
    let mut config = world.config();
    config.devices[1].qdisc = Some(TBF.parse().unwrap());
    world.start_with(config);
    let _echo = Echo::start(&world.hosts[1]);
    // Neighbours are known afterwards: none of what follows waits for one.
    until("an echo", || world.hosts[0].run(|| ask(host(1), b"anybody there?")).unwrap());

    let receiver = world.hosts[1].run(|| UdpSocket::bind((host(1), PORT)).unwrap()).unwrap();
    set_socket_recv_buffer_size_force(&receiver, 4 << 20).unwrap();
    receiver.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let sender = world.hosts[0].run(|| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap()).unwrap();
    let before = tbf(&world, 1);
    for number in 0..COUNT {
        let mut payload = [number as u8; SIZE];
        payload[..4].copy_from_slice(&number.to_be_bytes());
        assert_eq!(sender.send_to(&payload, (host(1), PORT)).unwrap(), SIZE);
    }
    let mut buffer = [0; 2048];
    for number in 0..COUNT {
        let len = receiver.recv(&mut buffer).unwrap_or_else(|error| {
            panic!(
                "{number}: {error}; {:?}, {:?}, {:?}",
                tbf(&world, 1),
                world.view().devs(),
                world.view().drops()
            )
        });
        assert_eq!((len, &buffer[..4]), (SIZE, &number.to_be_bytes()[..]), "in order");
        assert!(buffer[4..len].iter().all(|byte| *byte == number as u8), "{number} intact");
    }
    until("the books of the discipline", || {
        let row = tbf(&world, 1);
        (row.qlen, row.backlog) == (0, 0) && row.packets >= before.packets + u64::from(COUNT)
    });
    let after = tbf(&world, 1);
    // Ethernet, IPv4 and UDP headers count, as they do for `tc`.
    let bytes = u64::from(COUNT) * (SIZE as u64 + 42);
    assert!(after.bytes - before.bytes >= bytes, "{before:?} {after:?}");
    assert!(after.overlimits > before.overlimits, "nothing waited: {before:?} {after:?}");
    assert_eq!((after.drops, after.requeues), (0, 0), "{after:?}");
    world.end();
}

/// The discipline has no room for all: what it drops is counted, and what it takes arrives in order.
#[test]
fn what_exceeds_the_limit_is_dropped_and_counted() {
    let Some(mut world) = World::new(2) else { return };
    let mut config = world.config();
    // Ten may leave and ten wait, at a rate that would take half a minute for all of them.
    config.devices[1].qdisc = Some("tbf rate 200kbit burst 10420 limit 10420".parse().unwrap());
    world.start_with(config);
    let _echo = Echo::start(&world.hosts[1]);
    until("an echo", || world.hosts[0].run(|| ask(host(1), b"anybody there?")).unwrap());
    let receiver = world.hosts[1].run(|| UdpSocket::bind((host(1), PORT)).unwrap()).unwrap();
    receiver.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let sender = world.hosts[0].run(|| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap()).unwrap();
    let before = tbf(&world, 1);
    for number in 0..COUNT {
        let mut payload = [0; SIZE];
        payload[..4].copy_from_slice(&number.to_be_bytes());
        assert_eq!(sender.send_to(&payload, (host(1), PORT)).unwrap(), SIZE);
    }
    let count = |row: &QdiscRow| (row.packets - before.packets) + (row.drops - before.drops);
    until("all of them to be sent or dropped", || {
        let row = tbf(&world, 1);
        row.qlen == 0 && count(&row) >= u64::from(COUNT)
    });
    let after = tbf(&world, 1);
    let dropped = after.drops - before.drops;
    assert!(dropped > 0, "{after:?}");
    assert_eq!(after.drops_by_reason.get("qdisc_overlimit"), Some(&after.drops), "{after:?}");
    let mut buffer = [0; 2048];
    let mut last = None;
    for _ in 0..u64::from(COUNT) - dropped {
        receiver.recv(&mut buffer).unwrap();
        let number = u32::from_be_bytes(buffer[..4].try_into().unwrap());
        assert!(last < Some(number), "{last:?}, then {number}");
        last = Some(number);
    }
    let rows = world.view().drops();
    let of_dev = rows.iter().find(|row| row.dev == interface(1) && row.reason == "qdisc_overlimit");
    assert_eq!(of_dev.map(|row| row.packets), Some(after.drops), "{rows:?}");
    world.end();
}
