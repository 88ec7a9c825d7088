//! A device of the program's own beside interfaces of the kernel.

use std::net::Ipv4Addr;

use softnet::Stack;
use softnet::config::DeviceConfig;
use softnet::mem::{PairConfig, pair};
use softnet::net::UdpSocket;

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
