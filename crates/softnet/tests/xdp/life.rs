//! Interfaces that come, go and change while softnet runs.

use std::sync::atomic::{AtomicBool, Ordering};

use softnet::config::{Context, Knobs};
use softnet::control::show::NapiRow;
use softnet::control::{Action, Set, SetKnobs, SetQdisc, Target};
use softnet::{PacketFilter, PollerError, PollerParams};
use softnet_core::skb::Batch;
use softnet_dev::netlink::Netlink;
use softnet_testkit::kernel_has;

use super::hosts::ask;
use super::world::{World, host, interface, softnet, until};

#[test]
fn interfaces_vanish_and_return() {
    let Some(mut world) = World::new(3) else { return };
    world.start();
    let _echoes = world.echoes();
    world.assert_connected();
    world.devs();
    let mut reopened = [0; 3];
    // The first, the last, the one in the middle, two, all.
    let orders: [&[usize]; 6] = [&[0], &[2], &[1], &[2, 0], &[0, 1, 2], &[2, 1, 0]];
    for gone in orders {
        gone.iter().for_each(|&i| world.unplug(i));
        let view = world.view().clone();
        until("softnet to notice", || gone.iter().all(|&i| view.devs()[i].link == "gone"));
        world.devs();
        let left: Vec<_> = (0..3).filter(|i| !gone.contains(i)).collect();
        if let [from, to] = left[..] {
            until("the others to go on", || {
                world.hosts[from].run(|| ask(host(to), b"still there?")).unwrap()
            });
        }
        gone.iter().for_each(|&i| world.plug(i));
        world.assert_connected();
        gone.iter().for_each(|&i| reopened[i] += 1);
        assert_eq!(world.devs().iter().map(|row| row.reopened).collect::<Vec<_>>(), reopened);
    }
    world.end();
}

/// The same in a hurry, with traffic on all wires: the test does not wait for softnet to notice.
#[test]
fn interfaces_vanish_and_return_under_traffic() {
    let Some(mut world) = World::new(2) else { return };
    world.start();
    let _echoes = world.echoes();
    world.assert_connected();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for (from, to) in [(0, 1), (1, 0)] {
            let (ns, over) = (&world.hosts[from], &over);
            scope.spawn(move || {
                ns.run(|| {
                    let socket = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
                    while !over.load(Ordering::Relaxed) {
                        // To no socket in particular; while the interface is away there is no way.
                        if socket.send_to(&[0; 100], (host(to), 9)).is_err() {
                            std::thread::yield_now();
                        }
                    }
                })
                .unwrap();
            });
        }
        for round in 0..6 {
            world.unplug(round % 2);
            world.plug(round % 2);
        }
        over.store(true, Ordering::Relaxed);
    });
    world.assert_connected();
    world.devs();
    world.end();
}

/// What was set for its disciplines too, for a TX queue and for the root.
#[test]
fn disciplines_outlive_interfaces() {
    let Some(mut world) = World::new(2) else { return };
    world.start();
    let _echoes = world.echoes();
    let view = world.view().clone();
    let shown = || -> Vec<_> {
        let own = view.qdiscs().into_iter().filter(|row| row.dev == interface(0));
        own.map(|row| format!("{:?} {} {}", row.queue, row.kind, row.options)).collect()
    };
    for (queue, qdisc, expected) in [
        (
            Some(1),
            "tbf rate 1gbit burst 32kb latency 50ms",
            &["None mq ", "Some(0) pfifo_fast ", "Some(1) tbf rate 1Gbit burst 32Kb lat 50ms"][..],
        ),
        (None, "bfifo limit 1mb", &["None bfifo limit 1Mb"]),
    ] {
        world.assert_connected();
        let (dev, qdisc) = (interface(0), Some(qdisc.into()));
        view.set_qdisc(SetQdisc { dev, queue, action: Action::Replace, qdisc }).unwrap();
        assert_eq!(shown(), expected);
        world.unplug(0);
        // That the interface is gone shows before the device is closed.
        until("softnet to notice", || view.devs()[0].link == "gone");
        until("the device to be closed", || shown().is_empty());
        world.plug(0);
        world.assert_connected();
        assert_eq!(shown(), expected);
    }
    world.end();
}

/// In which context a queue is polled is remembered while its interface is away.
#[test]
fn contexts_outlive_interfaces() {
    let Some(mut world) = World::new(2) else { return };
    world.start();
    let _echoes = world.echoes();
    world.assert_connected();
    let view = world.view().clone();
    let set = |target, threaded| view.set(Set { target, threaded }).unwrap();
    let contexts = || {
        let of = |row: &NapiRow| row.dev == interface(0);
        view.napis().into_iter().filter(of).map(|row| row.context).collect::<Vec<_>>()
    };
    let queue = set(Target::Dev(interface(0)), Context::Threaded)[1].id;
    set(Target::Napi(queue), Context::Workqueue);
    let expected = [Context::Threaded, Context::Workqueue];
    assert_eq!(contexts(), expected);
    world.assert_connected();
    world.unplug(0);
    until("softnet to notice", || view.devs()[0].link == "gone");
    until("the threads to end", || view.workers().iter().all(|row| row.context == Context::Softirq));
    world.plug(0);
    world.assert_connected();
    assert_eq!(contexts(), expected);
    // Set while it is away.
    world.unplug(0);
    // That the interface is gone shows before the device is closed.
    until("softnet to notice", || contexts().is_empty());
    assert_eq!(set(Target::Dev(interface(0)), Context::BusyPoll), []);
    world.plug(0);
    world.assert_connected();
    assert_eq!(contexts(), [Context::BusyPoll; 2]);
    world.end();
}

/// An application that waits for an instance is told that this is gone with its interface. When that is back there is another.
#[test]
fn applications_are_told_of_interfaces_that_vanish() {
    let Some(mut world) = World::new(2) else { return };
    world.start();
    let view = world.view().clone();
    let napi = || view.napis().into_iter().find(|row| row.dev == interface(1)).map(|row| row.id);
    for params in
        [PollerParams::default(), PollerParams { prefer_busy_poll: true, ..PollerParams::default() }]
    {
        let id = napi().expect("there");
        let mut poller = world.poller(id, PacketFilter::UdpPort(9), params);
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| poller.wait(&mut Batch::new(), None));
            let asleep = || view.napis().iter().any(|row| row.applications.iter().any(|app| app.sleeps > 0));
            until("it sleeps", asleep);
            world.unplug(1);
            let error = waits.join().unwrap().unwrap_err();
            assert!(matches!(&error, PollerError::Closed(name) if *name == format!("{}-0", interface(1))));
        });
        assert!(matches!(poller.wait(&mut Batch::new(), None), Err(PollerError::Closed(_))));
        drop(poller);
        world.plug(1);
        until("softnet to have it again", || napi().is_some_and(|new| new != id));
    }
    world.end();
}

/// An interface that changes under softnet's hands is opened anew; one that goes down and up needs not be.
#[test]
fn interfaces_change() {
    let Some(mut world) = World::new(2) else { return };
    world.start();
    let _echoes = world.echoes();
    world.assert_connected();
    world.devs();
    let name = interface(0);
    let change = |world: &World, change: &(dyn Fn(&mut Netlink) + Sync)| {
        world.middle.run(|| change(&mut Netlink::new().unwrap())).unwrap();
    };
    let view = world.view().clone();
    let row = || view.devs().swap_remove(0);
    change(&world, &|netlink| netlink.set_down(&name).unwrap());
    until("link down", || row().link == "down");
    // More bytes than the ring ever held lie there now, since that was not found out before.
    let sent = row().tx_packets;
    until("packets to be sent to no receiver", || {
        assert!(!world.hosts[1].run(|| ask(host(0), &[0; 1400])).unwrap());
        row().tx_packets > sent
    });
    change(&world, &|netlink| netlink.set_up(&name).unwrap());
    // Nothing comes in by the interface that would make a thread look at it.
    until("an answer", || world.hosts[1].run(|| ask(host(0), b"up again?")).unwrap());
    world.assert_connected();
    assert_eq!(world.devs()[0].reopened, 0);
    change(&world, &|netlink| netlink.set_mtu(&name, 1300).unwrap());
    until("the new MTU", || row().mtu == 1300);
    world.assert_connected();
    let mac = [2, 0, 0, 0, 9, 9];
    change(&world, &|netlink| netlink.set_mac(&name, mac).unwrap());
    until("the new address", || row().mac == "02:00:00:00:09:09");
    // The host would go by what it remembers for half a minute: a changed address is not announced.
    world.hosts[0].run(|| Netlink::new().unwrap().add_neighbour("eth0", softnet(0), mac).unwrap()).unwrap();
    world.assert_connected();
    assert_eq!(world.devs()[0].reopened, 2);
    world.end();
}

/// What can't be opened leaves nothing behind, and another attempt succeeds.
#[test]
fn a_start_that_fails_takes_nothing() {
    let Some(mut world) = World::new(2) else { return };
    let mut config = world.config();
    config.devices[1].name = "nosuchif0".into();
    let error = world.try_start(config).expect_err("there is no such interface").to_string();
    assert!(error.contains("nosuchif0") && error.contains(&interface(0)), "{error}");
    world.start();
    // No other stack may have it now.
    let error = world.try_start(world.config()).expect_err("taken").to_string();
    assert!(error.contains("another XDP program"), "{error}");
    let _echoes = world.echoes();
    world.assert_connected();
    world.end();
}

/// softnet defers its doorbell; the kernel's instances of a veth, which have no interrupt that could be masked, are left
/// alone, and go on receiving.
#[test]
fn deferral_leaves_the_kernel_of_a_veth_alone() {
    let Some(mut world) = World::new(2) else { return };
    world.start();
    let _echoes = world.echoes();
    let view = world.view().clone();
    let knows = kernel_has("netlink family netdev", (6, 3));
    let left_alone = || {
        let rows = view.napis();
        let is = |row: &NapiRow| match knows {
            true => row.kernel_irq == "not masked: veth has no interrupt",
            false => row.kernel_irq.starts_with("not masked: this kernel has no netlink family netdev"),
        };
        rows.iter().all(is) && rows.len() == 3
    };
    assert!(left_alone(), "{:?}", view.napis());
    let target = Target::Dev(interface(0));
    let knobs = Knobs::default().with(|knobs| {
        knobs.napi_defer_hard_irqs = Some(2);
        knobs.gro_flush_timeout = Some(50_000);
    });
    let knobs = SetKnobs { target, knobs };
    let rows = view.set_knobs(&knobs).unwrap();
    assert_eq!((rows[0].napi_defer_hard_irqs, rows[0].gro_flush_timeout), (2, 50_000));
    assert!(left_alone(), "{:?}", view.napis());
    world.assert_connected();
    // The kernel makes instances anew.
    world.middle.run(|| Netlink::new().unwrap().set_down(&interface(0)).unwrap()).unwrap();
    until("link down", || view.devs()[0].link == "down");
    world.middle.run(|| Netlink::new().unwrap().set_up(&interface(0)).unwrap()).unwrap();
    world.assert_connected();
    until("the new instances to be looked at", left_alone);
    world.end();
}
