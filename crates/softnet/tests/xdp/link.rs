//! `link set` over real interfaces: the kernel's interface follows, and the device comes back.

use softnet::control::{LinkChange, SetLink};
use softnet::driver::Packet;
use softnet_dev::netlink::Netlink;

use super::hosts::ask;
use super::world::{World, host, interface, until};

fn set(world: &World, i: usize, change: LinkChange) -> Result<u64, String> {
    let answer = world.view().set_link(SetLink { dev: interface(i), change });
    answer.map(|answer| answer.changed).map_err(|error| error.to_string())
}

/// Whether the kernel's interface is up, and its MTU.
fn kernels(world: &World, i: usize) -> (bool, u32) {
    let link = world.middle.run(|| Netlink::new().unwrap().existing_link(&interface(i)).unwrap()).unwrap();
    (link.up, link.mtu)
}

fn reaches(world: &World, from: usize, to: usize) -> bool {
    world.hosts[from].run(|| ask(host(to), b"there?")).unwrap()
}

#[test]
fn devices_are_set_down_and_up_while_it_runs() {
    let Some(mut world) = World::new(3) else { return };
    let config = world.config().with(|config| {
        config.devices[2].driver = Packet::default().into();
        config.devices[2].force = true;
    });
    world.start_with(config);
    let _echoes = world.echoes();
    world.assert_connected();
    for i in 1..3 {
        let left = 3 - i;
        assert_eq!(set(&world, i, LinkChange::Down), Ok(1));
        assert_eq!((kernels(&world, i).0, &*world.devs()[i].link), (false, "down"));
        assert!(!reaches(&world, 0, i));
        until("the others to go on", || reaches(&world, 0, left));
        assert_eq!(set(&world, i, LinkChange::Down), Ok(0));
        // What others do to its interface does not open it.
        world.middle.run(|| Netlink::new().unwrap().set_up(&interface(i)).unwrap()).unwrap();
        assert!(!reaches(&world, 0, i));
        assert_eq!(world.devs()[i].link, "down");
        // Nor that it is another.
        world.unplug(i);
        let gone = set(&world, i, LinkChange::Up).unwrap_err();
        assert!(gone.starts_with(&format!("nothing was changed: {}: ", interface(i))), "{gone}");
        world.plug(i);
        assert_eq!((set(&world, i, LinkChange::Down), world.devs()[i].queues), (Ok(0), 0));
        assert_eq!(set(&world, i, LinkChange::Up), Ok(1));
        assert!(kernels(&world, i).0 && world.devs()[i].queues > 0);
        assert_eq!(set(&world, i, LinkChange::Up), Ok(0));
        until("it is back", || world.devs()[i].link == "up");
        world.assert_connected();
    }
    world.end();
}

#[test]
fn the_mtu_is_set_while_it_runs() {
    let Some(mut world) = World::dual(3) else { return };
    let config = world.config_dual().with(|config| {
        config.devices[2].driver = Packet::default().into();
        config.devices[2].force = true;
    });
    world.start_with(config);
    let _echoes = world.echoes();
    world.assert_connected();
    for i in 1..3 {
        assert_eq!(set(&world, i, LinkChange::Mtu(1400)), Ok(1));
        assert_eq!((world.devs()[i].mtu, kernels(&world, i)), (1400, (true, 1400)));
        assert_eq!(set(&world, i, LinkChange::Mtu(1400)), Ok(0));
        world.assert_connected();
        // IPv6 takes more, the kernel does not do that, and the driver not this: it is as it was.
        for wrong in [1279, 70_000, 65_535] {
            let refused = set(&world, i, LinkChange::Mtu(wrong)).unwrap_err();
            assert!(refused.starts_with(&format!("nothing was changed: {}", interface(i))), "{refused}");
            assert_eq!((world.devs()[i].mtu, kernels(&world, i)), (1400, (true, 1400)), "{refused}");
            world.assert_connected();
        }
        // Of one that is down it is the interface's, by which it is opened.
        assert_eq!(set(&world, i, LinkChange::Down), Ok(1));
        assert_eq!(set(&world, i, LinkChange::Mtu(1500)), Ok(1));
        assert_eq!((world.devs()[i].queues, kernels(&world, i)), (0, (false, 1500)));
        assert_eq!(set(&world, i, LinkChange::Up), Ok(1));
        assert_eq!(world.devs()[i].mtu, 1500);
        world.assert_connected();
    }
    world.end();
}
