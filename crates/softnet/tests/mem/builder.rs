//! Stacks that a program puts together itself: devices of its own, a control socket, errors with their causes.

use std::error::Error;
use std::path::Path;
use std::sync::{Arc, Mutex};

use softnet::config::{Config, DeviceConfig, NeighbourConfig, available_cpus};
use softnet::control::show::{DevRow, Table};
use softnet::control::{Client, Request};
use softnet::driver::{OpenDevice, OpenRequest};
use softnet::net::UdpSocket;
use softnet::{DeviceError, SoftnetData, Stack, StackBuilder, StartError};

use super::frames::{host, host_mac, number_of, numbered, own};
use super::world::{Lane, World, until, wire};

#[allow(dead_code, unreachable_pub)]
#[path = "../../examples/router.rs"]
mod router;

/// A builder for one worker, with control socket `path`.
fn builder(path: Option<&Path>) -> StackBuilder {
    Stack::builder().config(Config::default().with(|config| {
        config.stack.workers = available_cpus()[..1].to_vec();
        config.stack.control = path.map(Path::to_owned);
    }))
}

/// Wires whose far ends come to the test.
type Far = Arc<Mutex<Vec<Lane>>>;

fn own_wire(
    far: &Far,
) -> impl FnMut(&OpenRequest<'_>, &mut SoftnetData) -> Result<OpenDevice, DeviceError> + Send + 'static {
    let far = far.clone();
    move |device, ctx| {
        let (near, lanes) = wire(ctx.region(), device.dev, 1);
        far.lock().unwrap().extend(lanes);
        Ok(near)
    }
}

#[test]
fn a_router_of_the_programs_own_devices_routes_and_reports() {
    let far = Far::default();
    let device =
        |port: usize| router::device(&format!("mem{port}=10.{port}.0.1/24,fd00:0:0:{port}::1/64")).unwrap();
    let stack = builder(None)
        .device_with(device(0), own_wire(&far))
        .device_with(device(1), own_wire(&far))
        .neighbour(NeighbourConfig::new("mem1", host(1), host_mac(1)))
        .start()
        .unwrap();
    let world = World::watching(&stack);
    let mut lanes = std::mem::take(&mut *far.lock().unwrap());
    let frames: Vec<_> = (0..50).map(|n| numbered(0, host(1), 0, n)).collect();
    // To a network that no device is in.
    let lost = numbered(0, [172, 16, 0, 1].into(), 0, 0);
    assert_eq!(lanes[0].send(&frames) + lanes[0].send(&[lost]), 51);
    let mut next = 0;
    until("all are forwarded", || {
        lanes[1].receive(|frame| {
            assert_eq!(number_of(frame), Some((0, next)));
            next += 1;
        });
        next == 50
    });
    until("the last has ended, too", || world.view.stats().dropped == 1);
    let report = router::report(&stack);
    let lines: Vec<&str> = report.lines().collect();
    assert!(
        lines[0].starts_with("mem0: 51 packets in, ") && lines[1].contains("packets in, 50 out"),
        "{report}"
    );
    assert_eq!(lines[2..], ["mem0: 1 dropped: ip_outnoroutes"], "{report}");
    drop(stack);
    world.end(lanes);
}

#[test]
fn the_control_socket_is_the_stacks_own() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.sock");
    let far = Far::default();
    let start = || {
        let device = DeviceConfig::new("mem0").address("10.0.0.1/24".parse().unwrap());
        builder(Some(&path)).device_with(device, own_wire(&far)).control_socket().start()
    };
    let stack = start().unwrap();
    let client = Client::new(path.to_str()).unwrap();
    let devs: Vec<DevRow> = client.ask(&Request::Show(Table::Dev)).unwrap();
    assert_eq!(devs.iter().map(|row| &*row.name).collect::<Vec<_>>(), ["mem0"]);
    // Refused before it opens a device.
    assert!(matches!(start(), Err(StartError::Control(_))));
    assert_eq!(far.lock().unwrap().len(), 1);
    let world = World::watching(&stack);
    drop(stack);
    assert!(client.ask::<Vec<DevRow>>(&Request::Show(Table::Dev)).is_err() && !path.exists());
    world.end(std::mem::take(&mut *far.lock().unwrap()));
}

#[test]
fn what_a_factory_says_is_the_cause() {
    #[derive(Debug, PartialEq, thiserror::Error)]
    #[error("no wire today")]
    struct NoWire;
    let device = DeviceConfig::new("mem0").address("10.0.0.1/24".parse().unwrap());
    let refused = |_: &OpenRequest<'_>,
                   _: &mut SoftnetData|
     -> Result<OpenDevice, Box<dyn Error + Send + Sync>> { Err(NoWire.into()) };
    let error = builder(None).device_with(device, refused).start().err().unwrap();
    assert_eq!(error.to_string(), "no wire today");
    let StartError::Device(DeviceError::Driver(cause)) = error else { panic!("{error:?}") };
    assert_eq!(cause.downcast_ref(), Some(&NoWire));
    // What is wrong with the configuration is found first.
    let error = builder(None).device_with(DeviceConfig::new("mem0"), refused).start().err().unwrap();
    assert!(matches!(error, StartError::Config(_)), "{error}");
}

#[test]
fn a_stack_without_interfaces_talks_to_itself() {
    let far = Far::default();
    let device = DeviceConfig::new("mem0").address(format!("{}/24", own(0)).parse().unwrap());
    let stack = builder(None).device_with(device, own_wire(&far)).start().unwrap();
    let world = World::watching(&stack);
    let socket = UdpSocket::bind(&stack.handle(), (own(0), 7)).unwrap();
    socket.send_to(b"to itself", (own(0), 7)).unwrap();
    let mut buffer = [0; 16];
    assert_eq!(socket.recv(&mut buffer).unwrap(), 9);
    drop((socket, stack));
    world.end(std::mem::take(&mut *far.lock().unwrap()));
}

#[test]
fn the_router_reads_its_devices() {
    let device = router::device("eth1=10.0.0.1/24,2001:db8::1/64").unwrap();
    let addresses: Vec<String> = device.addresses.iter().map(|address| address.to_string()).collect();
    assert_eq!(
        (&*device.name, &addresses[..]),
        ("eth1", &["10.0.0.1/24".into(), "2001:db8::1/64".into()][..])
    );
    for (wrong, why) in [
        ("eth1", "usage: router NAME=ADDRESS/LENGTH[,…]…"),
        ("eth1=10.0.0.1", "expected an address with its prefix length, such as"),
    ] {
        let error = router::device(wrong).unwrap_err().to_string();
        assert!(error.starts_with(why), "{error}");
    }
}
