//! Metrics of a running stack, scraped as a monitor does, beside what it shows.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex};

use softnet::Stack;
use softnet::config::{Config, DeviceConfig, MetricsConfig, MetricsListen, NeighbourConfig, available_cpus};

use super::frames::{host, host_mac, numbered};
use super::world::{Lane, World, until, wire};

fn scrape(address: SocketAddr) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: softnet\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    body.to_owned()
}

/// The sample's value.
fn value(text: &str, sample: &str) -> u64 {
    let found = text.lines().find_map(|line| line.strip_prefix(sample)?.strip_prefix(' '));
    found.unwrap_or_else(|| panic!("no {sample} in\n{text}")).parse().unwrap()
}

fn builder(listen: MetricsListen) -> softnet::StackBuilder {
    Stack::builder().config(Config::default().with(|config| {
        config.stack.workers = available_cpus()[..1].to_vec();
        config.metrics = Some(MetricsConfig::new(listen));
    }))
}

#[test]
fn a_scrape_tells_what_passed_and_what_was_dropped() {
    softnet_testkit::raise_loopback();
    let far: Arc<Mutex<Vec<Lane>>> = Arc::default();
    let mut builder = builder(MetricsListen::Tcp(([127, 0, 0, 1], 0).into()));
    for port in 0..2 {
        let far = far.clone();
        let device =
            DeviceConfig::new(format!("mem{port}")).address(format!("10.{port}.0.1/24").parse().unwrap());
        builder = builder.device_with(device, move |device, ctx| {
            let (near, lanes) = wire(ctx.region(), device.dev, 1);
            far.lock().unwrap().extend(lanes);
            Ok::<_, softnet::DeviceError>(near)
        });
    }
    let stack = builder.neighbour(NeighbourConfig::new("mem1", host(1), host_mac(1))).start().unwrap();
    let address = stack.metrics_address().unwrap();
    let world = World::watching(&stack);
    let mut lanes = std::mem::take(&mut *far.lock().unwrap());
    let frames: Vec<_> = (0..50).map(|n| numbered(0, host(1), 0, n)).collect();
    // To a network that no device is in.
    let lost = numbered(0, [172, 16, 0, 1].into(), 0, 0);
    assert_eq!(lanes[0].send(&frames) + lanes[0].send(&[lost]), 51);
    let mut came = 0;
    until("all came", || {
        came += lanes[1].receive(|_| {});
        came == 50
    });
    until("the last has ended, too", || world.view.stats().dropped == 1);
    let text = scrape(address);
    assert_eq!(value(&text, "softnet_device_receive_packets_total{device=\"mem0\"}"), 51);
    let bytes = value(&text, "softnet_device_receive_bytes_total{device=\"mem0\"}");
    assert_eq!(bytes, stack.view().devs()[0].rx_bytes);
    assert_eq!(value(&text, "softnet_drops_total{device=\"mem0\",reason=\"ip_outnoroutes\"}"), 1);
    assert_eq!(value(&text, "softnet_napi_packets_total{device=\"mem0\",napi=\"mem0-0\"}"), 51);
    let dropped = value(&text, "softnet_dropped_packets_total");
    assert_eq!(dropped, stack.view().stats().dropped);
    // It goes with the stack.
    drop(stack);
    assert!(TcpStream::connect(address).is_err());
    world.end(lanes);
}

/// What is configured is told, or the stack does not start.
#[test]
fn an_address_that_is_taken_keeps_the_stack_from_starting() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let device = DeviceConfig::new("mem0").address("10.0.0.1/24".parse().unwrap());
    let opened = Arc::new(Mutex::new(0));
    let count = opened.clone();
    let builder = builder(MetricsListen::Tcp(address)).device_with(device, move |device, ctx| {
        *count.lock().unwrap() += 1;
        Ok::<_, softnet::DeviceError>(wire(ctx.region(), device.dev, 1).0)
    });
    let error = builder.start().unwrap_err();
    assert!(error.to_string().starts_with(&format!("metrics on {address}: ")), "{error}");
    assert_eq!(*opened.lock().unwrap(), 0, "no device was touched");
}
