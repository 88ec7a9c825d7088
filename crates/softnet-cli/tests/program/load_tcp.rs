//! `softnet load --tcp` against real servers, in network namespaces of the test's own: tcp-kv in
//! this process, and a real memcached where it is installed (under `SOFTNET_REQUIRE_NET=1` it has
//! to be).
//!
//! Time-outs are generous, and nothing is asserted about how fast anything is.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;

use softnet_dev::netns::NetNs;
use softnet_testkit::datagrams::Stop;
use softnet_testkit::net_allowed;
use tcp_kv::Server;
use tcp_kv::net::KernelNet;
use udp_kv::store::Store;

use super::load::{
    DEFERS, FACEBOOK, Memcached, SERVERS, Wire, address, failed, figure, figures, load, sound,
};

/// tcp-kv with two threads, on sockets of the calling thread's namespace.
fn tcp_kv(addresses: &[SocketAddr]) -> (Server, Arc<Store>) {
    let stop = Arc::new(Stop::new().unwrap());
    let nets = (0..2).map(|_| KernelNet::bound(addresses, &stop).unwrap()).collect();
    let store = Arc::new(Store::new(64 << 20, 8));
    (Server::start(nets, &store, &stop).unwrap(), store)
}

/// Requests that it served, and connections that it took.
fn served(server: &Server) -> (u64, u64) {
    let counters = server.counters();
    (
        counters.iter().map(|thread| thread.requests.get()).sum(),
        counters.iter().map(|thread| thread.accepted.get()).sum(),
    )
}

#[test]
fn tcp_kv_bears_a_closed_and_an_open_loop() {
    if !net_allowed() {
        return;
    }
    NetNs::new()
        .unwrap()
        .run(|| {
            let (server, store) = tcp_kv(&[address()]);
            let row = figures(&load(&format!("--tcp {FACEBOOK} -T 2 -c 4 --in-flight 2")));
            sound(&row);
            assert_eq!(
                (&row["case"], &row["transport"], &row["in_flight"]),
                (&"closed".into(), &"tcp".into(), &2.into())
            );
            assert_eq!(figure(&row, "lost"), 0.0, "{row}");
            assert_eq!(store.counters().curr_items, 500);
            assert_eq!(served(&server).1, 8, "connections stay");
            let row = figures(&load(&format!("--tcp {FACEBOOK} -c 4 --rate 2000 --iadist fb_ia --noload")));
            sound(&row);
            assert!((700.0..900.0).contains(&figure(&row, "requests")), "{row}");
            let (requests, connections) = served(&server);
            assert!(requests as f64 >= figure(&row, "requests") + 500.0);
            assert_eq!(connections, 12);
            // Longer than a datagram, in many segments, and several of them behind one another.
            let large = "--tcp --records 20 --valuesize uniform:900000 --max-value 900000 --update 0.2 --json --time 0.3 \
                         -c 2 --in-flight 4";
            sound(&figures(&load(large)));
            let counters = server.counters();
            assert_eq!(counters.iter().map(|thread| thread.malformed.get()).sum::<u64>(), 0);
            let text = String::from_utf8(load("--tcp --records 500 --noload --time 0.2 -c 2").stdout).unwrap();
            let line = "127.0.0.1:11211 by TCP: closed loop, 1 in flight on each of 2 connections of 1 thread, for 0.2 s";
            assert_eq!(text.lines().next(), Some(line));
        })
        .unwrap();
}

#[test]
fn a_stack_of_its_own_asks_the_kernel_over_tcp() {
    if !net_allowed() {
        return;
    }
    let (wire, (server, _)) = Wire::new(|| tcp_kv(&SERVERS.map(|server| server.parse().unwrap())));
    wire.configure(DEFERS);
    let mut asked = 0.0;
    for server in SERVERS {
        for args in [
            &format!("--tcp {FACEBOOK} -T 2 -c 4 --in-flight 2 --blocking"),
            &format!("--tcp {FACEBOOK} -c 4 --rate 2000 --blocking --noload"),
            // Its thread polls, and sends and takes what needs many segments.
            "--tcp --records 20 --valuesize uniform:200000 --max-value 200000 --update 0.2 --json --time 0.3 --warmup 0.1 -c 2",
        ] {
            let row = figures(&wire.load(server, args));
            sound(&row);
            assert_eq!((figure(&row, "lost"), &row["transport"]), (0.0, &"tcp".into()), "{row}");
            asked += figure(&row, "requests");
        }
    }
    let (requests, connections) = served(&server);
    assert!(requests as f64 >= asked + 2.0 * 520.0);
    assert_eq!(connections, 2 * (8 + 4 + 2));
    let failed = |server: &str, expected: &str| {
        let output = wire.load(server, "--tcp --time 0.1");
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(1) && error.contains(expected), "{output:?}");
    };
    failed("10.9.0.2:11212", "error: no server answers at 10.9.0.2:11212 by TCP: its port is closed");
    failed("192.0.2.1:11211", "error: sockets for 192.0.2.1:11211: ");
}

#[test]
fn memcached_bears_it_over_tcp() {
    if !net_allowed() {
        return;
    }
    NetNs::new()
        .unwrap()
        .run(|| {
            let (args, ready) =
                (["-U", "0", "-p", "11211", "-c", "64"], || TcpStream::connect(address()).is_ok());
            let Some(_server) = Memcached::start(&args, ready) else { return };
            sound(&figures(&load(&format!("--tcp {FACEBOOK} -c 8 --in-flight 4"))));
            sound(&figures(&load(&format!("--tcp {FACEBOOK} -c 8 --rate 2000 --noload"))));
            // More than it takes: it says so, and closes.
            let output = load("--tcp -c 200 --time 0.2");
            let error = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(1), "{error}");
            assert!(
                error.contains("of 200: the server takes no more")
                    || error.contains("the server closed connection"),
                "{error}"
            );
        })
        .unwrap();
}

#[test]
fn what_goes_wrong_over_tcp_is_said() {
    if !net_allowed() {
        return;
    }
    NetNs::new()
        .unwrap()
        .run(|| {
            let error = failed("--tcp", 1);
            assert!(error.contains("its port is closed; without --tcp it is asked by UDP"), "{error}");
            let error = failed("--max-value 65001", 2);
            assert!(error.contains("longer ones need --tcp"), "{error}");
            // Servers that say each something else.
            let listener = TcpListener::bind(address()).unwrap();
            for (says, expected) in [
                (&b""[..], "the server closed connection 1 of 1; does it allow so many"),
                (b"HTTP/1.1 400 Bad Request\r\n\r\n", "responses were wrong; one of them: Get of record"),
                (b"VALUE a b c\r\n", "\"VALUE a b c\" is no response in memcached's text protocol"),
            ] {
                let listener = listener.try_clone().unwrap();
                let server = std::thread::spawn(move || {
                    let (mut stream, _) = listener.accept().unwrap();
                    let mut request = [0; 2048];
                    while !says.is_empty() && stream.read(&mut request).is_ok_and(|n| n > 0) {
                        if stream.write_all(says).is_err() {
                            break;
                        }
                    }
                });
                let error = failed("--tcp -c 1 --noload --time 0.2 --warmup 0", 1);
                server.join().unwrap();
                let also = "without a request";
                assert!(error.contains(expected) || error.contains(also) && !says.is_empty(), "{error}");
            }
            drop(listener);
            // By UDP to a server of TCP.
            let _server = tcp_kv(&[address()]);
            assert!(failed("", 1).contains("is asked with --tcp"));
        })
        .unwrap();
}
