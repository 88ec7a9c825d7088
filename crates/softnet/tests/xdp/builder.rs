//! A device of the program's own beside interfaces of the kernel.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use softnet::Stack;
use softnet::config::DeviceConfig;
use softnet::driver::{Device, DeviceInfo, LinkState};
use softnet::mem::{PairConfig, pair};
use softnet::net::UdpSocket;
use softnet_dev::netlink::Netlink;

use super::hosts::ask;
use super::world::{World, interface, until};

#[test]
fn a_host_reaches_an_address_on_the_programs_own_device() {
    let Some(mut world) = World::new(1) else { return };
    let wire = DeviceConfig::new("wire0").address("10.99.0.1/24".parse().unwrap());
    let builder = Stack::builder().config(world.config()).device_with(wire, |device, ctx| {
        assert_eq!((device.dev, device.name), (1, "wire0"));
        pair(ctx.region(), [1, 2], &PairConfig::default()).map(|[near, _]| near)
    });
    world.start_by(builder);
    let names: Vec<String> = world.view().devs().into_iter().map(|row| row.name).collect();
    assert_eq!(names, [interface(0), "wire0".into()]);
    let own = Ipv4Addr::new(10, 99, 0, 1);
    let socket = UdpSocket::bind(&world.handle(), (own, 7)).unwrap();
    let echo = std::thread::spawn(move || {
        let mut buffer = [0; 64];
        while let Ok((n, from)) = socket.recv_from(&mut buffer) {
            let _ = socket.send_to(&buffer[..n], from);
        }
    });
    until("an answer from the other device's address", || {
        world.hosts[0].run(|| ask(own, b"anybody there?")).unwrap()
    });
    world.end();
    echo.join().unwrap();
}

/// A device that says it is on an interface.
struct OnInterface(DeviceInfo);

impl Device for OnInterface {
    fn info(&self) -> &DeviceInfo {
        &self.0
    }

    fn link(&self) -> LinkState {
        LinkState::Up
    }
}

/// Although no driver of the stack's is on an interface.
#[test]
fn a_device_of_the_programs_own_is_opened_again_when_its_interface_is_back() {
    let Some(mut world) = World::new(1) else { return };
    let mut config = world.config();
    let device = config.devices.remove(0);
    let opened = Arc::new(AtomicUsize::new(0));
    let count = opened.clone();
    world.start_by(Stack::builder().config(config).device_with(device, move |device, ctx| {
        count.fetch_add(1, Ordering::Relaxed);
        let link = Netlink::new()?.existing_link(device.name)?;
        let [mut near, _] = pair(ctx.region(), [0, 1], &PairConfig::default())?;
        let mut info = near.device.info().clone();
        (info.ifindex, info.name, info.mac) = (link.index, link.name, link.mac);
        near.device = Arc::new(OnInterface(info));
        Ok::<_, std::io::Error>(near)
    }));
    for n in 1..4 {
        assert_eq!(opened.load(Ordering::Relaxed), n);
        world.unplug(0);
        let view = world.view().clone();
        until("softnet to notice", || view.devs()[0].link == "gone");
        world.plug(0);
        until("it is opened again", || view.devs()[0].link == "up");
    }
    world.end();
}
