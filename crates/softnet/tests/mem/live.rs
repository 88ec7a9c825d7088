//! Routes, addresses and neighbours that change, and a configuration that is exchanged, while a flow
//! passes that none of it concerns.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicBool, Ordering};

use softnet::config::{Action, Config, IpPrefix, RouteConfig, RouteTarget};
use softnet::control::{LiveAction, NextHop, RouteType, SetAddr, SetNeigh, SetRoute};

use super::frames::{host, host_mac, number_of, numbered, own};
use super::world::{Lane, Setup, World, of_port, until};

/// Frames that are on their way at a time.
const WINDOW: u32 = 64;

fn route(action: LiveAction, to: &str, via: &[Ipv4Addr]) -> SetRoute {
    let hop = |via: &Ipv4Addr| NextHop { via: Some((*via).into()), dev: None, weight: 1 };
    let nexthops = via.iter().map(hop).collect();
    SetRoute { action, to: Some(to.into()), kind: RouteType::Unicast, nexthops, metric: None }
}

/// Sends frame `number` of flow 0 from port 0 to `dst`.
fn send(lane: &mut Lane, dst: Ipv4Addr, number: u32) {
    assert_eq!(lane.send(&[numbered(0, dst, 0, number)]), 1);
}

/// Waits for frame `number` at `lane`.
fn arrives(lane: &mut Lane, number: u32) {
    let mut got = None;
    until("one packet", || {
        lane.receive(|frame| got = got.or(number_of(frame)));
        got.is_some()
    });
    assert_eq!(got, Some((0, number)));
}

fn drops(world: &World, reason: &str) -> u64 {
    world.view.drops().iter().filter(|row| row.reason == reason).map(|row| row.packets).sum()
}

/// Ends the flow when it is dropped.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs `work` while packets pass from port 0 to port 1, each of which arrives, in order.
fn while_packets_pass(lanes: Vec<Lane>, work: impl FnOnce()) -> Vec<Lane> {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let flow = scope.spawn(|| {
            let mut lanes = lanes;
            let (mut from, mut to) = (of_port(&mut lanes, 0), of_port(&mut lanes, 1));
            let mut next = 0;
            while !done.load(Ordering::Relaxed) || next == 0 {
                let frames: Vec<_> =
                    (next..next + WINDOW).map(|number| numbered(0, host(1), 7, number)).collect();
                assert_eq!(from[0].send(&frames), WINDOW as usize);
                let end = next + WINDOW;
                until("every packet of the flow", || {
                    to[0].receive(|frame| {
                        if let Some((7, number)) = number_of(frame) {
                            assert_eq!(number, next, "one is lost, or passed by another");
                            next += 1;
                        }
                    });
                    next == end
                });
            }
            lanes.extend(from.drain(..).chain(to.drain(..)));
            lanes
        });
        {
            // Also if an assertion fails: the flow is waited for.
            let _end = End(&done);
            work();
        }
        flow.join().unwrap()
    })
}

#[test]
fn routes_are_added_replaced_and_removed_while_it_runs() {
    let (world, mut lanes) = Setup { ports: &[1, 1, 1], workers: 2, known: true, ..Setup::default() }.start();
    lanes.sort_by_key(|lane| lane.port);
    let dst = Ipv4Addr::new(10, 9, 1, 1);
    let view = &world.view;
    assert_eq!(view.lookup(dst.into()).routes, []);
    // Each is in force when the call returns.
    assert_eq!(view.set_route(route(LiveAction::Add, "10.9.0.0/16", &[host(1)])).unwrap().changed, 1);
    send(&mut lanes[0], dst, 1);
    arrives(&mut lanes[1], 1);
    let found = view.lookup(dst.into());
    let (row, hop) = (&found.routes[0], &found.hops[0]);
    assert_eq!(
        (&*row.prefix, row.via, &*row.source, row.used),
        ("10.9.0.0/16", Some(host(1).into()), "manual", true)
    );
    assert_eq!((hop.neighbour, &*hop.dev, &*hop.state), (IpAddr::from(host(1)), "mem1", "permanent"));
    let error = |set: SetRoute| view.set_route(set).unwrap_err().to_string();
    let exists = "10.9.0.0/16 exists already: `replace` it, or give it another metric";
    assert_eq!(error(route(LiveAction::Add, "10.9.0.0/16", &[host(2)])), exists);
    view.set_route(route(LiveAction::Replace, "10.9.0.0/16", &[host(2)])).unwrap();
    send(&mut lanes[0], dst, 2);
    arrives(&mut lanes[2], 2);
    // A longer prefix, of one address, to a network of two hops.
    view.set_route(route(LiveAction::Add, "10.9.1.1", &[host(1), host(2)])).unwrap();
    assert_eq!(view.lookup(dst.into()).hops.len(), 2);
    view.set_route(SetRoute { nexthops: vec![], ..route(LiveAction::Del, "10.9.1.1/32", &[]) }).unwrap();
    // What is wrong is told, and changes nothing.
    let wrong = "via: expected a host on a connected network (10.0.0.0/24, 10.1.0.0/24, 10.2.0.0/24), found 172.16.0.1";
    assert_eq!(error(route(LiveAction::Replace, "10.9.0.0/16", &[Ipv4Addr::new(172, 16, 0, 1)])), wrong);
    let own_via = "via: expected another host, but 10.1.0.1 is softnet's own address";
    assert_eq!(error(route(LiveAction::Add, "10.8.0.0/16", &[own(1)])), own_via);
    let connected = error(route(LiveAction::Add, "10.1.0.0/24", &[host(2)]));
    assert!(connected.starts_with("10.1.0.0/24 is the network of an own address"), "{connected}");
    let own_gone = error(route(LiveAction::Del, "10.1.0.0/24", &[]));
    assert!(own_gone.starts_with("the route to 10.1.0.0/24 is that of an own address"), "{own_gone}");
    assert!(
        error(route(LiveAction::Del, "10.9.0.0/16", &[host(1)])).starts_with("no such route to 10.9.0.0/16")
    );
    send(&mut lanes[0], dst, 3);
    arrives(&mut lanes[2], 3);
    // Gone, packets are dropped, and counted.
    let flush =
        SetRoute { action: LiveAction::Flush, to: None, nexthops: vec![], ..route(LiveAction::Del, "", &[]) };
    assert_eq!(view.set_route(flush.clone()).unwrap().changed, 1);
    assert_eq!(view.set_route(flush).unwrap().changed, 0);
    send(&mut lanes[0], dst, 4);
    until("the drop", || drops(&world, "ip_outnoroutes") == 1);
    // One of the configuration can be removed, too.
    view.set_route(route(LiveAction::Del, "10.101.0.0/16", &[])).unwrap();
    assert_eq!(view.lookup(IpAddr::from([10, 101, 0, 1])).routes, []);
    world.end(lanes);
}

/// As `ip` has it: of IPv4 a route goes whole, and only if all of its next hops are named, if any is; of
/// IPv6 each of them is a route of its own.
#[test]
fn a_next_hop_of_several_goes_alone_or_not_at_all() {
    let (world, lanes) = Setup { ports: &[1, 1, 1], workers: 1, known: true, ..Setup::default() }.start();
    let view = &world.view;
    let hops = |to: &str| {
        let found = view.lookup(to.parse().unwrap());
        found.hops.iter().map(|hop| hop.neighbour.to_string()).collect::<Vec<_>>()
    };
    let change = |action, to: &str, via: &[&str]| {
        let hop = |via: &&str| NextHop { via: Some(via.parse().unwrap()), dev: None, weight: 1 };
        let nexthops = via.iter().map(hop).collect();
        let kind = RouteType::Unicast;
        let set = SetRoute { action, to: Some(to.into()), kind, nexthops, metric: None };
        view.set_route(set).map(|answer| answer.changed).map_err(|error| error.to_string())
    };
    use LiveAction::{Add, Del};
    let none =
        |to: &str| Err(format!("no such route to {to}; `softnet show route` shows those that there are"));
    let to = "10.9.0.0/16";
    change(Add, to, &["10.1.0.2", "10.2.0.2"]).unwrap();
    for via in [&["10.2.0.2"][..], &["10.1.0.2"], &["10.1.0.2", "10.2.0.3"]] {
        assert_eq!(change(Del, to, via), none(to), "{via:?}");
    }
    assert_eq!(hops("10.9.0.1"), ["10.1.0.2", "10.2.0.2"]);
    // In whichever order.
    assert_eq!(change(Del, to, &["10.2.0.2", "10.1.0.2"]), Ok(1));
    assert_eq!(hops("10.9.0.1"), [""; 0]);
    change(Add, to, &["10.1.0.2", "10.2.0.2"]).unwrap();
    assert_eq!(change(Del, to, &[]), Ok(1));
    // A next hop alone must be the one that is named.
    change(Add, to, &["10.1.0.2"]).unwrap();
    assert_eq!(change(Del, to, &["10.1.0.2", "10.2.0.2"]), none(to));
    assert_eq!(change(Del, to, &["10.1.0.2"]), Ok(1));

    for dev in 1..3 {
        let addr = Some(format!("fd00:{dev}::1/64"));
        view.set_addr(SetAddr { action: Add, dev: format!("mem{dev}"), addr }).unwrap();
    }
    let to = "fd09::/32";
    change(Add, to, &["fd00:1::2", "fd00:2::2", "fd00:2::3"]).unwrap();
    assert_eq!(change(Del, to, &["fd00:2::2"]), Ok(1));
    assert_eq!(hops("fd09::1"), ["fd00:1::2", "fd00:2::3"]);
    assert_eq!(change(Del, to, &["fd00:2::2"]), none(to));
    assert_eq!(change(Del, to, &["fd00:1::2"]), Ok(1));
    assert_eq!(hops("fd09::1"), ["fd00:2::3"]);
    assert_eq!(change(Del, to, &["fd00:2::3"]), Ok(1));
    assert_eq!(hops("fd09::1"), [""; 0]);
    world.end(lanes);
}

#[test]
fn neighbours_are_fixed_and_forgotten_while_it_runs() {
    let (world, mut lanes) = Setup { ports: &[1, 1], workers: 1, ..Setup::default() }.start();
    lanes.sort_by_key(|lane| lane.port);
    let set = |action, lladdr: Option<&str>| {
        let set =
            SetNeigh { action, dev: "mem1".into(), to: Some(host(1).into()), lladdr: lladdr.map(Into::into) };
        world.view.set_neigh(set).map(|answer| answer.changed).map_err(|error| error.to_string())
    };
    let mac = host_mac(1).map(|byte| format!("{byte:02x}")).join(":");
    assert_eq!(set(LiveAction::Del, None), Err("no neighbour 10.1.0.2 on mem1".into()));
    assert!(
        set(LiveAction::Add, Some("ff:ff:ff:ff:ff:ff"))
            .unwrap_err()
            .starts_with("expected the MAC address of one host")
    );
    assert_eq!(set(LiveAction::Add, Some(&mac)), Ok(1));
    send(&mut lanes[0], host(1), 1);
    arrives(&mut lanes[1], 1);
    assert_eq!(
        set(LiveAction::Add, Some(&mac)),
        Err("10.1.0.2 is permanent already: `replace` it, or `del` it first".into())
    );
    assert_eq!(set(LiveAction::Replace, Some(&mac)), Ok(1));
    assert_eq!(set(LiveAction::Del, None), Ok(1));
    assert!(!world.view.neighbours().iter().any(|row| row.ip == IpAddr::from(host(1))));
    world.end(lanes);
}

fn prefix(text: &str) -> IpPrefix {
    text.parse().unwrap()
}

/// Addresses, routes, a discipline, rules, neighbours and one device change while a flow between two
/// other devices loses nothing.
#[test]
fn a_new_configuration_loses_nothing_that_it_does_not_concern() {
    let mut old = Config::default();
    let setup = Setup { ports: &[1, 1, 1, 1], workers: 2, known: true, ..Setup::default() };
    let (world, lanes) = setup.start_with(|config| old = config.clone());
    let view = world.view.clone();
    let by_hand = route(LiveAction::Add, "10.77.0.0/16", &[host(1)]);
    view.set_route(by_hand).unwrap();
    let set = SetAddr { action: LiveAction::Add, dev: "mem1".into(), addr: Some("10.66.0.1/24".into()) };
    view.set_addr(set).unwrap();
    let sources = |text: &str| {
        let rows = view.routes().into_iter().filter(|row| row.prefix == text);
        rows.map(|row| row.source).collect::<Vec<_>>()
    };
    let lanes = while_packets_pass(lanes, || {
        let mut new = old.clone();
        new.devices[2].addresses = vec!["10.22.0.1/24".parse().unwrap()];
        new.devices[2].qdisc = Some("pfifo limit 10".parse().unwrap());
        new.devices.remove(3);
        new.routes.retain(|route| ![prefix("10.102.0.0/16"), prefix("10.103.0.0/16")].contains(&route.to));
        let gateway = Ipv4Addr::new(10, 22, 0, 2);
        new.routes.push(RouteConfig::new(prefix("10.23.0.0/16"), RouteTarget::Via(gateway.into())));
        new.neighbours.retain(|neighbour| !["mem2", "mem3"].contains(&&*neighbour.dev));
        new.filter.policies[0] = Action::Drop;
        for round in 0..20 {
            let done = view.apply(new.clone()).unwrap().changes;
            let expected = [
                "mem3: removed",
                "mem2: without 10.2.0.1/24",
                "mem2: with 10.22.0.1/24",
                "mem3: without 10.3.0.1/24",
                "routes: 1 added or changed, 2 removed",
                "neighbours: 0 added or changed, 2 removed",
                "filter: its rules",
                "mem2: qdisc",
            ];
            if round == 0 {
                assert_eq!(done, expected);
            }
            assert_eq!(view.apply(new.clone()).unwrap().changes, [""; 0], "once more");
            assert_eq!((sources("10.22.0.0/24"), sources("10.2.0.0/24")), (vec!["own".to_string()], vec![]));
            assert_eq!(
                (sources("10.23.0.0/16"), sources("10.102.0.0/16")),
                (vec!["static".to_string()], vec![])
            );
            assert_eq!(
                view.qdiscs().iter().filter(|row| row.dev == "mem2" && row.kind == "pfifo").count(),
                1
            );
            // Without the device, which a wire is to come back by only once.
            let mut back = old.clone();
            back.devices.remove(3);
            back.routes.retain(|route| route.to != prefix("10.103.0.0/16"));
            back.neighbours.retain(|neighbour| neighbour.dev != "mem3");
            view.apply(back).unwrap();
            assert_eq!((sources("10.22.0.0/24"), sources("10.2.0.0/24")), (vec![], vec!["own".to_string()]));
        }
        // What was done by hand is there all the time.
        assert_eq!(
            (sources("10.77.0.0/16"), sources("10.66.0.0/24")),
            (vec!["manual".to_string()], vec!["own".to_string()])
        );
        // What can't be changed is named, and nothing is changed then.
        let mut wrong = old.clone();
        wrong.devices.remove(3);
        wrong.routes.pop();
        wrong.neighbours.pop();
        wrong.devices[2].addresses = vec!["10.22.0.1/24".parse().unwrap()];
        wrong.routes.retain(|route| route.to != prefix("10.102.0.0/16"));
        wrong.neighbours.retain(|neighbour| neighbour.dev != "mem2");
        wrong.stack.max_sockets = 77;
        let error = view.apply(wrong).unwrap_err().to_string();
        assert_eq!(
            error,
            "nothing was changed: stack.max_sockets can't be changed while it runs; restart for that"
        );
        assert_eq!(sources("10.2.0.0/24"), ["own"]);
    });
    let dev = |name: &str| view.devs().into_iter().find(|row| row.name == name).unwrap();
    assert_eq!((&*dev("mem3").link, dev("mem3").addresses), ("gone", vec![]));
    // None of the flow is among the drops.
    assert_eq!(world.view.drops(), []);
    world.end(lanes);
}

/// Of two flows one is concerned by a reload, and loses no packet that is not counted; the other loses none.
#[test]
fn what_a_reload_takes_away_is_counted() {
    let mut old = Config::default();
    let setup = Setup { ports: &[1, 1, 1, 1], workers: 2, known: true, ..Setup::default() };
    let (world, mut lanes) = setup.start_with(|config| old = config.clone());
    let view = world.view.clone();
    let dropped = || view.drops().iter().map(|row| row.packets).sum::<u64>();
    let mut without = old.clone();
    without.devices[3].addresses = vec!["10.33.0.1/24".parse().unwrap()];
    without.routes.retain(|route| route.to != prefix("10.103.0.0/16"));
    without.neighbours.retain(|neighbour| neighbour.dev != "mem3");
    let done = AtomicBool::new(false);
    let (mut from, mut to) = (of_port(&mut lanes, 2), of_port(&mut lanes, 3));
    let (lanes, sent) = std::thread::scope(|scope| {
        let concerned = scope.spawn(|| {
            let (mut sent, mut came, mut lost) = (0u64, 0u64, 0);
            let frames: Vec<_> = (0..WINDOW).map(|number| numbered(2, host(3), 9, number)).collect();
            while !done.load(Ordering::Relaxed) {
                // The other flow has to find frames, too.
                match sent.saturating_sub(came + lost) < 8 * u64::from(WINDOW) {
                    true => sent += from[0].send(&frames) as u64,
                    false => lost = dropped(),
                }
                to[0].receive(|frame| came += u64::from(number_of(frame).is_some()));
            }
            until("every packet of both ways", || {
                to[0].receive(|frame| came += u64::from(number_of(frame).is_some()));
                sent == came + dropped()
            });
            (sent, came)
        });
        let lanes = {
            let _end = End(&done);
            let began = std::time::Instant::now();
            let mut passed = 0;
            let lanes = while_packets_pass(lanes, || {
                for _ in 0..50 {
                    assert_ne!(view.apply(without.clone()).unwrap().changes, [""; 0]);
                    assert_ne!(view.apply(old.clone()).unwrap().changes, [""; 0]);
                }
                passed = view.devs().iter().map(|row| row.rx_packets).sum::<u64>();
            });
            eprintln!("{:.0} kpps", passed as f64 / began.elapsed().as_secs_f64() / 1e3);
            lanes
        };
        (lanes, concerned.join().unwrap())
    });
    let (sent, came) = sent;
    assert!(came > 0 && sent >= came, "{sent} {came}");
    let mut lanes = lanes;
    lanes.extend(from.into_iter().chain(to));
    world.end(lanes);
}

/// A packet to an address is the host's business: from when it comes, until it goes.
#[test]
fn an_address_comes_and_goes_with_what_follows_from_it() {
    let (world, mut lanes) = Setup { ports: &[1, 1], workers: 1, known: true, ..Setup::default() }.start();
    lanes.sort_by_key(|lane| lane.port);
    let change = |action, dev: &str, addr: &str| {
        let set = SetAddr { action, dev: dev.into(), addr: Some(addr.into()) };
        world.view.set_addr(set).map(|answer| answer.changed).map_err(|error| error.to_string())
    };
    let far = Ipv4Addr::new(10, 50, 0, 9);
    assert_eq!(change(LiveAction::Add, "mem1", "10.50.0.1/24"), Ok(1));
    let neigh = |action| SetNeigh {
        action,
        dev: "mem1".into(),
        to: Some(far.into()),
        lladdr: (action == LiveAction::Add).then(|| "02:00:00:00:01:02".into()),
    };
    world.view.set_neigh(neigh(LiveAction::Add)).unwrap();
    send(&mut lanes[0], far, 1);
    arrives(&mut lanes[1], 1);
    let kinds = |addr: [u8; 4]| {
        world.view.lookup(addr.into()).routes.into_iter().map(|row| row.kind).collect::<Vec<_>>()
    };
    assert_eq!(
        (kinds([10, 50, 0, 1]), kinds([10, 50, 0, 255])),
        (vec!["local".to_string()], vec!["broadcast".to_string()])
    );
    assert_eq!(change(LiveAction::Add, "mem0", "10.50.0.1/24"), Err("mem1 has 10.50.0.1 already".into()));
    let wrong = change(LiveAction::Add, "mem0", "127.0.0.1/8").unwrap_err();
    assert!(wrong.contains("is a loopback address"), "{wrong}");
    let none = change(LiveAction::Del, "mem0", "10.50.0.1").unwrap_err();
    assert_eq!(none, "mem0 does not have 10.50.0.1; it has 10.0.0.1/24");
    // A second address of the same network keeps what both mean.
    assert_eq!(change(LiveAction::Add, "mem1", "10.50.0.2/24"), Ok(1));
    assert_eq!(change(LiveAction::Del, "mem1", "10.50.0.1"), Ok(1));
    assert_eq!(
        (kinds([10, 50, 0, 1]), kinds([10, 50, 0, 2])),
        (vec!["connected".to_string()], vec!["local".to_string()])
    );
    send(&mut lanes[0], far, 2);
    arrives(&mut lanes[1], 2);
    assert_eq!(change(LiveAction::Del, "mem1", "10.50.0.2/24"), Ok(1));
    assert_eq!(world.view.lookup(far.into()).routes, []);
    assert!(!world.view.neighbours().iter().any(|row| row.ip == IpAddr::from(far)), "its network is gone");
    send(&mut lanes[0], far, 3);
    until("the drop", || drops(&world, "ip_outnoroutes") == 1);
    world.end(lanes);
}
