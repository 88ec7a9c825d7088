//! The drivers `tap` and `packet` between kernel endpoints.
//!
//! A TAP has the kernel of softnet's own namespace at its other end: a bridge leads from there to
//! the wire to a host. What a packet socket brings comes straight off that wire.

use std::net::UdpSocket;
use std::process::Command;
use std::time::Duration;

use softnet::config::{Config, Context, DeviceConfig, InterfaceAddr};
use softnet::control::{Set, Target};
use softnet::driver::{Packet, Tap};
use softnet_dev::ethtool::Ethtool;
use softnet_dev::netlink::Netlink;
use softnet_dev::netns::NetNs;

use super::hosts::{Icmp, ask, tcp};
use super::world::{World, host, host6, interface, softnet, softnet6, until};

fn tap(i: usize) -> String {
    format!("t{i}")
}

fn bridge(i: usize) -> String {
    format!("b{i}")
}

fn ip(ns: &NetNs, args: &str) {
    let run = || Command::new("ip").args(args.split(' ')).status().unwrap().success();
    assert!(ns.run(run).unwrap(), "ip {args}");
}

/// A world whose wires are ports of bridges, for TAPs to be the others.
fn bridged(hosts: usize) -> Option<World> {
    let world = World::dual(hosts)?;
    for i in 0..hosts {
        ip(&world.middle, &format!("addr flush dev {}", interface(i)));
        world.middle.run(|| Netlink::new().unwrap().add_bridge(&bridge(i), &interface(i)).unwrap()).unwrap();
    }
    Some(world)
}

/// Leads from the TAPs that softnet has open to the hosts.
fn connect(world: &World) {
    let join = |i| Netlink::new().unwrap().add_bridge_port(&bridge(i), &tap(i)).unwrap();
    (0..world.hosts.len()).for_each(|i| world.middle.run(|| join(i)).unwrap());
}

fn config(world: &World, driver: &Tap) -> Config {
    let mut config = world.config_dual();
    for (i, device) in config.devices.iter_mut().enumerate() {
        device.name = tap(i);
        device.driver = driver.clone().into();
    }
    config
}

/// Every kind of traffic, both ways and of both families.
fn assert_all_passes(world: &World, bytes: usize) {
    let _echoes = world.echoes();
    world.assert_connected();
    let (v4, v6) = (Icmp::new(&world.hosts[0]), Icmp::v6(&world.hosts[0]));
    for to in [softnet(0).into(), softnet(1).into(), host(1).into(), softnet6(0).into(), host6(1).into()] {
        let to: std::net::IpAddr = to;
        let (icmp, kind) = if to.is_ipv4() { (&v4, 0) } else { (&v6, 129) };
        until(&format!("a ping of {to}"), || {
            let reply = icmp.ping(to, 64, &[7; 1000]);
            let answered = icmp.receive(|message| message.from == to && message.kind == (kind, 0));
            answered.is_some_and(|message| message.bytes == reply)
        });
    }
    for len in [1, 1400, 1472, 8000] {
        until(&format!("an echo of {len} bytes"), || {
            world.hosts[0].run(|| ask(host(1), &vec![7; len]) && ask(host6(1), &vec![8; len])).unwrap()
        });
    }
    tcp(&world.hosts[0], &world.hosts[1], host(1), bytes);
    tcp(&world.hosts[1], &world.hosts[0], host6(0), bytes);
}

#[test]
fn everything_passes_between_taps() {
    let Some(mut world) = bridged(2) else { return };
    world.start_with(config(&world, &Tap::default()));
    connect(&world);
    assert_all_passes(&world, 3_000_000);
    for row in world.devs() {
        assert_eq!((&row.driver[..], &row.link[..], row.queues), ("tap", "up", 1));
        assert!(row.rx_packets > 1000 && row.tx_packets > 1000, "{row:?}");
    }
    world.end();
}

/// In each context: the doorbell is a descriptor like any other, and what defers it does so here.
#[test]
fn taps_are_polled_in_every_context() {
    let Some(mut world) = bridged(2) else { return };
    let contexts = [Context::Threaded, Context::Workqueue, Context::BusyPoll];
    let mut config = config(&world, &Tap::default());
    config.devices[0].napi_defer_hard_irqs = 2;
    config.devices[0].gro_flush_timeout = 50_000;
    world.start_with(config);
    connect(&world);
    let _echoes = world.echoes();
    world.assert_connected();
    for context in contexts {
        for i in 0..2 {
            world.view().set(Set { target: Target::Dev(tap(i)), threaded: context }).unwrap();
        }
        until("an echo", || world.hosts[0].run(|| ask(host(1), b"in every context")).unwrap());
        tcp(&world.hosts[0], &world.hosts[1], host(1), 300_000);
    }
    world.end();
}

/// Flows are spread over queues, and each keeps its order.
#[test]
fn four_queues_keep_the_order_of_flows() {
    let Some(mut world) = bridged(2) else { return };
    world.start_with(config(&world, &Tap::default().with(|tap| tap.queues = 4)));
    connect(&world);
    {
        let _echoes = world.echoes();
        world.assert_connected();
    }
    let (flows, rounds) = (16, 200u32);
    let server = world.hosts[1].run(|| UdpSocket::bind((host(1), 9)).unwrap()).unwrap();
    server.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
    let socket = || UdpSocket::bind((host(0), 0)).unwrap();
    let clients: Vec<_> = (0..flows).map(|_| world.hosts[0].run(socket).unwrap()).collect();
    let mut last = std::collections::HashMap::new();
    let mut came = 0;
    for round in 1..=rounds {
        for client in &clients {
            // What finds no room is lost; the others are still in order.
            let _ = client.send_to(&round.to_be_bytes(), (host(1), 9));
        }
        // Not more under way than the queues hold.
        let mut buffer = [0; 4];
        for _ in 0..if round % 8 == 0 { 8 * flows } else { 0 } {
            let Ok((4, from)) = server.recv_from(&mut buffer) else { break };
            let number = u32::from_be_bytes(buffer);
            let before = last.insert(from, number).unwrap_or(0);
            assert!(number > before, "{from}: {number} behind {before}");
            came += 1;
        }
    }
    assert!(last.len() == flows && came > flows * 100, "{came} of {} flows", last.len());
    let rows = world.view().napis();
    let busy = |dev: &str| rows.iter().filter(|row| row.dev == dev && row.packets > 0).count();
    assert_eq!(rows.iter().filter(|row| row.dev == tap(0)).count(), 4);
    assert!(busy(&tap(0)) > 1, "{:?}", rows.iter().map(|row| row.packets).collect::<Vec<_>>());
    world.end();
}

#[test]
fn a_large_mtu_needs_no_fragments() {
    let Some(mut world) = bridged(2) else { return };
    let set = |ns: &NetNs, name: &str| {
        ns.run(|| Netlink::new().unwrap().set_mtu(name, 9000).unwrap()).unwrap();
    };
    for i in 0..2 {
        set(&world.middle, &interface(i));
        set(&world.hosts[i], "eth0");
        set(&world.middle, &bridge(i));
    }
    world.start_with(config(&world, &Tap::default().with(|tap| tap.mtu = Some(9000))));
    connect(&world);
    let _echoes = world.echoes();
    world.assert_connected();
    for len in [1772, 1773, 4000, 8972] {
        until(&format!("an echo of {len} bytes"), || {
            world.hosts[0].run(|| ask(host(1), &vec![7; len]) && ask(host6(1), &vec![8; len - 20])).unwrap()
        });
    }
    tcp(&world.hosts[0], &world.hosts[1], host(1), 2_000_000);
    assert_eq!(world.devs().iter().map(|row| row.mtu).collect::<Vec<_>>(), [9000, 9000]);
    let fragments = world.view().stats().fragments;
    assert_eq!((fragments.cut, fragments.reassembled), (0, 0), "{fragments:?}");
    world.end();
}

/// An MTU that is changed has the device opened anew, on the same interface; softnet's end of it
/// leaves it there.
#[test]
fn an_interface_that_exists_stays_when_softnet_ends() {
    let Some(mut world) = bridged(2) else { return };
    for i in 0..2 {
        ip(&world.middle, &format!("tuntap add dev {} mode tap", tap(i)));
        ip(
            &world.middle,
            &format!("link set {} address 02:00:00:00:77:0{i} master {} up", tap(i), bridge(i)),
        );
    }
    world.start_with(config(&world, &Tap::default()));
    let _echoes = world.echoes();
    world.assert_connected();
    world.middle.run(|| Netlink::new().unwrap().set_mtu(&tap(0), 1400).unwrap()).unwrap();
    let view = world.view().clone();
    until("the device to be opened anew", || view.devs()[0].mtu == 1400);
    world.assert_connected();
    let rows = world.devs();
    assert_eq!((rows[0].reopened, &rows[0].mac[..]), (1, "02:00:00:00:77:01"), "{:?}", rows[0]);
    assert_eq!(&rows[1].mac[..], "02:00:00:00:77:00");
    let middle = world.middle.try_clone().unwrap();
    world.end();
    for i in 0..2 {
        let link = middle.run(|| Netlink::new().unwrap().existing_link(&tap(i)).unwrap()).unwrap();
        assert!(link.up && !link.carrier && link.mac[5] == i as u8, "{link:?}");
    }
}

/// A TAP that softnet made keeps its name, its addresses and its ports through a change of its MTU.
#[test]
fn an_interface_that_was_made_lives_as_long_as_softnet() {
    let Some(mut world) = bridged(2) else { return };
    world.start_with(config(&world, &Tap::default()));
    connect(&world);
    let _echoes = world.echoes();
    world.assert_connected();
    let index = |world: &World| {
        world.middle.run(|| Netlink::new().unwrap().existing_link(&tap(0)).unwrap().index).unwrap()
    };
    let before = index(&world);
    world.middle.run(|| Netlink::new().unwrap().set_mtu(&tap(0), 1400).unwrap()).unwrap();
    let view = world.view().clone();
    until("the device to be opened anew", || view.devs()[0].mtu == 1400 && view.devs()[0].link == "up");
    world.assert_connected();
    assert_eq!(index(&world), before);
    let middle = world.middle.try_clone().unwrap();
    world.end();
    assert_eq!(middle.run(|| Netlink::new().unwrap().link(&tap(0)).unwrap()).unwrap(), None);
}

/// A datagram to a socket of softnet's own at host `i`'s wire arrives, with the checksum that the host's kernel left.
fn assert_delivered(world: &World, i: usize) {
    let ours = softnet::net::UdpSocket::bind(&world.handle(), (softnet(i), 77)).unwrap();
    ours.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    let theirs = world.hosts[i].run(|| UdpSocket::bind((host(i), 0)).unwrap()).unwrap();
    let mut buffer = [0; 100];
    until("a datagram to softnet", || {
        theirs.send_to(b"with a checksum", (softnet(i), 77)).unwrap();
        ours.recv_from(&mut buffer).is_ok()
    });
    assert_eq!(&buffer[..15], b"with a checksum");
    let drops = world.view().drops();
    assert!(drops.iter().all(|row| row.reason != "udp_csum"), "{drops:?}");
}

/// Bytes of the longest frame within the MTU. A mean above it shows that longer ones passed whole; by how much it is
/// above depends on how busy the machine is, for acknowledgements are counted, too.
const LONGEST: u64 = 1514;

/// Bytes in a received packet on average.
fn mean_len(world: &mut World, i: usize) -> u64 {
    let rows = world.devs();
    rows[i].rx_bytes / rows[i].rx_packets
}

#[test]
fn segments_pass_whole_between_taps() {
    for queues in [1, 2] {
        let Some(mut world) = bridged(2) else { return };
        let driver = Tap::default().with(|tap| (tap.offloads, tap.queues) = (true, queues));
        world.start_with(config(&world, &driver));
        connect(&world);
        assert_all_passes(&world, 1_000_000);
        assert_delivered(&world, 0);
        tcp(&world.hosts[0], &world.hosts[1], host(1), 30_000_000);
        tcp(&world.hosts[1], &world.hosts[0], host6(0), 30_000_000);
        let lens = [mean_len(&mut world, 0), mean_len(&mut world, 1)];
        assert!(lens.iter().all(|len| *len > LONGEST), "{lens:?}");
        let sent = world.devs();
        assert!(sent.iter().all(|row| row.tx_bytes / row.tx_packets > LONGEST), "{sent:?}");
        world.end();
    }
}

#[test]
fn segments_pass_whole_between_packet_sockets() {
    let Some(mut world) = World::dual(2) else { return };
    let driver = Packet::default().with(|packet| packet.offloads = true);
    let mut config = world.config_dual();
    config.devices = (0..2).map(|i| packet_device(i, &driver)).collect();
    (0..2).for_each(|i| ip(&world.middle, &format!("addr flush dev {}", interface(i))));
    world.start_with(config);
    assert_all_passes(&world, 10_000_000);
    assert_delivered(&world, 1);
    let lens = [mean_len(&mut world, 0), mean_len(&mut world, 1)];
    assert!(lens.iter().all(|len| *len > LONGEST), "{lens:?}");
    world.end();
}

/// Whole by the one, and cut for the other.
#[test]
fn segments_are_cut_for_devices_that_do_not() {
    let Some(mut world) = bridged(2) else { return };
    let mut config = world.config_dual();
    config.devices[0].name = tap(0);
    config.devices[0].driver = Tap::default().with(|tap| tap.offloads = true).into();
    ip(&world.middle, &format!("link set {} nomaster", interface(1)));
    world.start_with(config);
    world.middle.run(|| Netlink::new().unwrap().add_bridge_port(&bridge(0), &tap(0)).unwrap()).unwrap();
    assert_all_passes(&world, 5_000_000);
    assert!(mean_len(&mut world, 0) > LONGEST);
    assert!(world.devs()[1].tx_bytes / world.devs()[1].tx_packets <= 1514);
    world.end();
}

/// A world in which the kernel of softnet's namespace has no address on the wires, and hosts cut their segments.
fn silent(hosts: usize) -> Option<World> {
    let world = World::dual(hosts)?;
    for i in 0..hosts {
        ip(&world.middle, &format!("addr flush dev {}", interface(i)));
        let offloads = ["tx-tcp-segmentation", "tx-tcp6-segmentation", "tx-tcp-mangleid-segmentation"];
        world.hosts[i]
            .run(|| {
                let index = Netlink::new().unwrap().existing_link("eth0").unwrap().index;
                let ethtool = Ethtool::new(index).unwrap();
                ethtool.set(&offloads, false).unwrap();
                ethtool.set(&["tx-tcp-ecn-segmentation", "tx-udp-segmentation"], false).unwrap();
            })
            .unwrap();
    }
    Some(world)
}

fn packet_device(i: usize, driver: &Packet) -> DeviceConfig {
    DeviceConfig::new(interface(i)).with(|device| {
        device.driver = driver.clone().into();
        device.addresses = vec![InterfaceAddr::new(softnet(i), 24).unwrap()];
        device.addresses.push(InterfaceAddr::new(softnet6(i), 64).unwrap());
    })
}

#[test]
fn everything_passes_between_packet_sockets() {
    for queues in [1, 3] {
        let Some(mut world) = silent(2) else { return };
        let driver = Packet::default().with(|packet| packet.queues = queues);
        let mut config = world.config_dual();
        config.devices = (0..2).map(|i| packet_device(i, &driver)).collect();
        world.start_with(config);
        assert_all_passes(&world, 3_000_000);
        for row in world.devs() {
            assert_eq!((&row.driver[..], &row.link[..], u32::from(row.queues)), ("packet", "up", queues));
        }
        assert!(
            world.view().napis().iter().all(|row| row.kernel_irq.starts_with("not masked: ")),
            "{:?}",
            world.view().napis()
        );
        world.end();
    }
}

/// All drivers in one stack: a packet goes from one to the other.
#[test]
fn everything_passes_between_drivers() {
    let Some(mut world) = silent(3) else { return };
    world.middle.run(|| Netlink::new().unwrap().add_bridge(&bridge(2), &interface(2)).unwrap()).unwrap();
    let mut config = world.config_dual();
    config.devices[1] = packet_device(1, &Packet::default());
    config.devices[2].name = tap(2);
    config.devices[2].driver = Tap::default().into();
    world.start_with(config);
    world.middle.run(|| Netlink::new().unwrap().add_bridge_port(&bridge(2), &tap(2)).unwrap()).unwrap();
    let _echoes = world.echoes();
    world.assert_connected();
    for (from, to) in [(0, 1), (1, 2), (2, 0)] {
        tcp(&world.hosts[from], &world.hosts[to], host(to), 500_000);
        tcp(&world.hosts[from], &world.hosts[to], host6(to), 500_000);
    }
    let drivers: Vec<_> = world.devs().into_iter().map(|row| row.driver).collect();
    assert_eq!(drivers, ["xdp", "packet", "tap"]);
    world.end();
}

/// An interface that goes and comes back is taken again, by every driver.
#[test]
fn interfaces_of_packet_sockets_vanish_and_return() {
    let Some(mut world) = silent(2) else { return };
    let mut config = world.config_dual();
    config.devices = (0..2).map(|i| packet_device(i, &Packet::default())).collect();
    config.devices.iter_mut().for_each(|device| device.force = true);
    world.start_with(config);
    let _echoes = world.echoes();
    world.assert_connected();
    world.unplug(1);
    let view = world.view().clone();
    until("softnet to notice", || view.devs()[1].link == "gone");
    world.plug(1);
    ip(&world.middle, &format!("addr flush dev {}", interface(1)));
    world.assert_connected();
    world.end();
}
