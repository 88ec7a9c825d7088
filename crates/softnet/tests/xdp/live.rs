//! Changes while it runs, over real interfaces: what the kernel and the user say of the same things, and
//! devices that go with all that is on them, and come back.

use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use softnet::config::{NatConfig, NatSourceConfig, NeighbourConfig};
use softnet::control::{LiveAction, SetAddr, SetNeigh};
use softnet::driver::Packet;

use super::follow::{follows, ip};
use super::hosts::{Echo, ask};
use super::vlan::{self, Vlans};
use super::world::{World, host, host6, interface, softnet, softnet6, until};

/// What the kernel had fixed, and has no more, stays if it was not for the kernel's word that it is fixed.
#[test]
fn the_kernel_lets_go_of_its_own_neighbours_only() {
    let Some(mut world) = World::new(2) else { return };
    let [configured, by_hand, kernels] = [70, 71, 72].map(|n| Ipv4Addr::new(10, 1, 0, n));
    let mac = |n: u8| format!("02:00:00:00:00:{n:02x}");
    let fixed = NeighbourConfig::new(interface(1), configured, [2, 0, 0, 0, 0, 0x70]);
    let with = follows(world.config()).with(|config| config.neighbours.push(fixed));
    world.start_with(with);
    let known = |world: &World, of: Ipv4Addr| {
        let row = world.view().neighbours().into_iter().find(|row| row.ip == IpAddr::from(of));
        row.filter(|row| row.state == "permanent").and_then(|row| row.mac)
    };
    let dev = interface(1);
    let told = |world: &World, n: u8| {
        for (addr, n) in [(configured, n), (by_hand, n + 1), (kernels, n + 2)] {
            ip(&world.middle, &format!("neigh replace {addr} lladdr {} dev {dev} nud permanent", mac(n)));
        }
        until("the kernel's word", || known(world, kernels) == Some(mac(n + 2)));
    };
    told(&world, 0x10);
    assert_eq!(known(&world, configured), Some(mac(0x70)));
    let set = SetNeigh {
        action: LiveAction::Replace,
        dev: dev.clone(),
        to: Some(by_hand.into()),
        lladdr: Some(mac(0x71)),
    };
    world.view().set_neigh(set).unwrap();
    for addr in [configured, by_hand, kernels] {
        ip(&world.middle, &format!("neigh del {addr} dev {dev}"));
    }
    until("the kernel's goes", || known(&world, kernels).is_none());
    assert_eq!((known(&world, configured), known(&world, by_hand)), (Some(mac(0x70)), Some(mac(0x71))));
    // What the configuration fixes no more the kernel may.
    told(&world, 0x20);
    assert_eq!(known(&world, configured), Some(mac(0x70)));
    world.view().apply(follows(world.config())).unwrap();
    until("the kernel's word is listed again", || known(&world, configured) == Some(mac(0x20)));
    // And a network that comes back brings back what the kernel has there.
    let set = |action| SetAddr { action, dev: dev.clone(), addr: Some("10.1.0.1/24".into()) };
    world.view().set_addr(set(LiveAction::Del)).unwrap();
    world.view().set_addr(set(LiveAction::Add)).unwrap();
    until("it is listed again", || known(&world, kernels) == Some(mac(0x22)));
    world.end();
}

/// Ends a flow when it is dropped.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A device goes with its VLANs, of both families, and is as it was when it comes back; and what passes
/// between others, by a discipline, does not notice.
#[test]
fn a_device_comes_back_with_all_that_was_on_it() {
    let Some(mut world) = World::dual(3) else { return };
    let Some(vlans) = Vlans::new(&world) else { return };
    let config = vlan::over(world.config_dual()).with(|config| {
        for device in &mut config.devices[..2] {
            device.qdisc = Some("pfifo limit 200".parse().unwrap());
        }
    });
    world.start_with(config.clone());
    let echoes = world.echoes();
    let reached = |world: &World| {
        for to in [IpAddr::from(host(0)), host6(0).into()] {
            until(&format!("an echo of {to}"), || world.hosts[1].run(|| ask(to, b"there?")).unwrap());
        }
        vlan::assert_reached(&vlans, host(1).into());
    };
    reached(&world);
    let disciplines = |world: &World| {
        let rows = world.view().qdiscs().into_iter().filter(|row| row.dev == interface(0));
        rows.filter(|row| row.kind == "pfifo").count()
    };
    assert_ne!(disciplines(&world), 0);
    let mut without = config.clone();
    without.devices.retain(|device| [interface(1), interface(2)].contains(&device.name));
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let flow = scope.spawn(|| {
            let socket = world.hosts[2].run(|| UdpSocket::bind("0.0.0.0:0").unwrap()).unwrap();
            socket.connect((host(1), 7)).unwrap();
            socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            let (mut asked, mut answered) = (0u32, 0);
            while !done.load(Ordering::Relaxed) {
                socket.send(&asked.to_ne_bytes()).unwrap();
                let mut buffer = [0; 8];
                // What is lost is not asked for again.
                answered +=
                    u32::from(socket.recv(&mut buffer).is_ok_and(|n| buffer[..n] == asked.to_ne_bytes()));
                asked += 1;
            }
            (asked, answered)
        });
        // Also if an assertion fails: the flow is waited for.
        let end = End(&done);
        for _ in 0..3 {
            let changes = world.view().apply(without.clone()).unwrap().changes;
            assert!(changes.contains(&format!("{}: removed", interface(0))), "{changes:?}");
            assert!(!world.hosts[1].run(|| ask(host(0), b"gone?")).unwrap());
            assert_eq!(disciplines(&world), 0);
            let changes = world.view().apply(config.clone()).unwrap().changes;
            assert!(changes.contains(&format!("{}: is back", interface(0))), "{changes:?}");
            reached(&world);
            assert_ne!(disciplines(&world), 0);
        }
        drop(end);
        let (asked, answered) = flow.join().unwrap();
        assert_eq!(asked, answered, "{:?}", world.view().drops());
    });
    drop(echoes);
    world.end();
}

/// Neighbours find an IPv6 address that came while the device was open, on `xdp` and `packet`.
#[test]
fn addresses_that_come_are_found_by_neighbours() {
    let Some(mut world) = World::dual(2) else { return };
    let config = world.config().with(|config| {
        config.devices[1].driver = Packet::default().into();
        config.devices[1].force = true;
    });
    world.start_with(config);
    let group = "inet6 ff02::1:ff00:1";
    let joined = |world: &World, i: usize| {
        ip(&world.middle, &format!("maddr show dev {}", interface(i))).contains(group)
    };
    for i in 0..2 {
        assert!(!joined(&world, i), "{group}");
        let set =
            SetAddr { action: LiveAction::Add, dev: interface(i), addr: Some(format!("{}/64", softnet6(i))) };
        world.view().set_addr(set).unwrap();
        assert!(joined(&world, i), "{group} on {}", interface(i));
    }
    let _echo = Echo::start(&world.hosts[1]);
    until("an echo by way of both", || world.hosts[0].run(|| ask(host6(1), b"by both?")).unwrap());
    // One that the kernel has is refused, whichever driver it is.
    for i in 0..2 {
        ip(&world.middle, &format!("addr add 10.77.{i}.1/24 dev {}", interface(i)));
        let addr = Some(format!("10.77.{i}.1/24"));
        let refused = world.view().set_addr(SetAddr { action: LiveAction::Add, dev: interface(i), addr });
        match (i, refused) {
            (0, Err(error)) => {
                let told = format!("{}: the kernel has 10.77.0.1, too, on {0}", interface(0));
                assert!(error.to_string().starts_with(&told), "{error}");
            }
            // It was forced.
            (1, Ok(_)) => {}
            (_, other) => panic!("{other:?}"),
        }
    }
    for i in 0..2 {
        let set = SetAddr { action: LiveAction::Del, dev: interface(i), addr: Some(softnet6(i).to_string()) };
        world.view().set_addr(set).unwrap();
        assert!(!joined(&world, i), "{group} on {}", interface(i));
    }
    world.end();
}

/// New rules of NAT are in force when the reload returns, and what they do not allow has ended; a device that
/// comes back has them.
#[test]
fn rules_of_nat_are_exchanged_and_stay_with_a_device() {
    let Some(mut world) = World::new(3) else { return };
    let hidden = |devs: &[usize]| {
        let source = devs.iter().map(|i| NatSourceConfig::new(interface(*i)));
        let mut nat = NatConfig::default();
        nat.source = source.collect();
        world.config().with(|config| config.nat = Some(nat))
    };
    let (both, one) = (hidden(&[1, 2]), hidden(&[1]));
    let socket = |i: usize| {
        let socket = world.hosts[i].run(|| UdpSocket::bind((host(i), 9)).unwrap()).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        socket
    };
    let sockets = [0, 1, 2].map(socket);
    // From where host `i` sees what host 0 sends; what came before is not of interest.
    let seen = |i: usize, word: &[u8]| {
        let mut from = None;
        until("a datagram", || {
            sockets[0].send_to(word, (host(i), 9)).unwrap();
            let mut buffer = [0; 16];
            let got = sockets[i].recv_from(&mut buffer).ok().filter(|(n, _)| buffer[..*n] == *word);
            from = got.map(|(_, from)| from.ip());
            from.is_some()
        });
        from
    };
    world.start_with(both.clone());
    assert_eq!((seen(1, b"1"), seen(2, b"1")), (Some(softnet(1).into()), Some(softnet(2).into())));
    let changes = world.view().apply(one).unwrap().changes;
    assert_eq!(changes, ["nat: its rules (1 connections ended that they do not allow)"]);
    assert_eq!((seen(1, b"2"), seen(2, b"2")), (Some(softnet(1).into()), Some(host(0).into())));
    // Host 2's device goes, and comes back with the rules of before.
    let mut without = both.clone();
    without.devices.pop();
    without.nat.iter_mut().for_each(|nat| drop(nat.source.pop()));
    world.view().apply(without).unwrap();
    world.view().apply(both).unwrap();
    assert_eq!((seen(1, b"3"), seen(2, b"3")), (Some(softnet(1).into()), Some(softnet(2).into())));
    world.end();
}
