//! QUIC between softnet and the kernel's sockets, over AF_XDP on a veth pair in network namespaces, by the example's server and client.
//! Where that is not permitted the test is skipped; under `SOFTNET_REQUIRE_NET=1` that is a failure.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::mpsc::channel;

use softnet::prelude::*;
use softnet_dev::netlink::Netlink;
use softnet_dev::netns::NetNs;
use softnet_testkit::net_allowed;
use tokio::runtime::{Builder, Runtime};

#[allow(dead_code, unreachable_pub)]
#[path = "../examples/quic.rs"]
mod quic;

const OWN: Ipv4Addr = Ipv4Addr::new(10, 7, 0, 1);
const OTHER: Ipv4Addr = Ipv4Addr::new(10, 7, 0, 9);
const OWN6: Ipv6Addr = Ipv6Addr::new(0xfd00, 7, 0, 0, 0, 0, 0, 1);
const HOST: Ipv4Addr = Ipv4Addr::new(10, 7, 0, 2);
const HOST6: Ipv6Addr = Ipv6Addr::new(0xfd00, 7, 0, 0, 0, 0, 0, 2);
const BYTES: u64 = 20_000_000;

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// Everything comes back as it was sent, at each of the server's addresses, in both directions.
#[test]
fn streams_come_back_as_they_were_sent() {
    if !net_allowed() {
        return;
    }
    let [middle, host] = [(); 2].map(|()| NetNs::new().unwrap());
    middle
        .run(|| {
            let mut netlink = Netlink::new().unwrap();
            netlink.add_veth("port0", "eth0", (1, 1), Some(&host)).unwrap();
            netlink.set_up("port0").unwrap();
        })
        .unwrap();
    host.run(|| {
        let mut netlink = Netlink::new().unwrap();
        netlink.add_address("eth0", HOST, 24).unwrap();
        netlink.add_address("eth0", HOST6, 64).unwrap();
        netlink.set_up("eth0").unwrap();
    })
    .unwrap();
    let device = DeviceConfig::new("port0");
    let addresses = [(IpAddr::from(OWN), 24), (OTHER.into(), 24), (OWN6.into(), 64)];
    let device = addresses
        .into_iter()
        .fold(device, |device, (address, len)| device.address(format!("{address}/{len}").parse().unwrap()));
    let stack = middle.run(|| Stack::builder().device(device).start().unwrap()).unwrap();
    // softnet serves, at several addresses of one socket.
    let (server, certificate) = quic::server_config().unwrap();
    let stack = &stack;
    std::thread::scope(|scope| {
        let (tell, told) = channel();
        let serves = scope.spawn(move || {
            runtime().block_on(async {
                let endpoint =
                    quic::endpoint(Some(stack), "[::]:4433".parse().unwrap(), Some(server)).unwrap();
                tell.send(endpoint.clone()).unwrap();
                quic::serve(&endpoint).await;
            });
        });
        let endpoint = told.recv().unwrap();
        for (own, from) in [
            (IpAddr::from(OWN), IpAddr::from(HOST)),
            (OTHER.into(), HOST.into()),
            (OWN6.into(), HOST6.into()),
        ] {
            let certificate = certificate.clone();
            host.run(move || {
                runtime().block_on(async {
                    let client = quic::endpoint(None, (from, 0).into(), None).unwrap();
                    let to = SocketAddr::from((own, 4433));
                    quic::send(&client, to, certificate, BYTES).await.unwrap();
                });
            })
            .unwrap();
        }
        endpoint.close(0u32.into(), b"");
        serves.join().unwrap();
    });
    // softnet asks.
    let (server, certificate) = quic::server_config().unwrap();
    std::thread::scope(|scope| {
        let (tell, told) = channel();
        let host = &host;
        let serves = scope.spawn(move || {
            host.run(|| {
                runtime().block_on(async {
                    let endpoint = quic::endpoint(None, (HOST, 4434).into(), Some(server)).unwrap();
                    tell.send(endpoint.clone()).unwrap();
                    quic::serve(&endpoint).await;
                });
            })
            .unwrap();
        });
        let endpoint = told.recv().unwrap();
        runtime().block_on(async {
            let client = quic::endpoint(Some(stack), (OWN, 0).into(), None).unwrap();
            quic::send(&client, (HOST, 4434).into(), certificate, BYTES).await.unwrap();
        });
        endpoint.close(0u32.into(), b"");
        serves.join().unwrap();
    });
}
