//! `softnet load` as a process, against servers in network namespaces of the test's own: udp-kv in this process,
//! and a real memcached where it is installed (under `SOFTNET_REQUIRE_NET=1` it has to be).
//!
//! Time-outs are generous, and nothing is asserted about how fast anything is.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value;
use softnet_dev::netlink::Netlink;
use softnet_dev::netns::NetNs;
use softnet_testkit::datagrams::{KernelSockets, Stop};
use softnet_testkit::net_allowed;
use udp_kv::Server;
use udp_kv::store::Store;

const PORT: u16 = 11211;

pub(super) fn address() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, PORT).into()
}

/// udp-kv with two threads, on sockets of the calling thread's namespace.
fn udp_kv() -> (Server, Arc<Store>) {
    let stop = Arc::new(Stop::new().unwrap());
    let sets = (0..2).map(|_| KernelSockets::bound(&[address()], 64, &stop).unwrap()).collect();
    let store = Arc::new(Store::new(64 << 20, 8));
    (Server::start(sets, &store, &stop).unwrap(), store)
}

/// `softnet load` on that server, in the calling thread's namespace.
pub(super) fn load(args: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_softnet"));
    command.args(["load", "127.0.0.1:11211", "--blocking", "--timeout", "10000"]);
    command.args(args.split_whitespace()).output().expect("spawn softnet")
}

/// What `softnet load` says when it ends with `code`.
pub(super) fn failed(args: &str, code: i32) -> String {
    let output = load(args);
    assert_eq!(output.status.code(), Some(code), "{args}: {output:?}");
    String::from_utf8(output.stderr).unwrap()
}

/// The row of figures, and the whole.
pub(super) fn figures(output: &Output) -> Value {
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_str(&text).expect("one JSON object");
    assert_eq!(report["bench"], "load");
    assert!(report["machine"]["cpus"].as_u64().unwrap() > 0);
    report["rows"][0].clone()
}

pub(super) fn figure(row: &Value, name: &str) -> f64 {
    row[name]["median"].as_f64().unwrap_or_else(|| panic!("no {name} in {row}"))
}

/// What holds of every run against a server that works.
pub(super) fn sound(row: &Value) {
    for name in ["misses", "wrong", "not_sent"] {
        assert_eq!(figure(row, name), 0.0, "{name}: {row}");
    }
    assert!(figure(row, "requests") > figure(row, "lost"));
    for pair in ["p50_us", "p90_us", "p99_us", "p999_us", "max_us"].windows(2) {
        assert!(figure(row, pair[0]) <= figure(row, pair[1]), "{row}");
    }
}

pub(super) const FACEBOOK: &str =
    "--records 500 --keysize fb_key --valuesize fb_value --update 0.03 --json --time 0.4 --warmup 0.1";

#[test]
fn udp_kv_bears_a_closed_and_an_open_loop() {
    if !net_allowed() {
        return;
    }
    NetNs::new()
        .unwrap()
        .run(|| {
            let (server, store) = udp_kv();
            assert_eq!(server.threads().len(), 2);
            let row = figures(&load(&format!("{FACEBOOK} -T 2 -c 4 --in-flight 2")));
            sound(&row);
            assert_eq!(
                (&row["case"], &row["rate"], &row["in_flight"]),
                (&"closed".into(), &"MAX".into(), &2.into())
            );
            assert_eq!(store.counters().curr_items, 500);
            let row = figures(&load(&format!("{FACEBOOK} -T 1 -c 4 --rate 2000 --iadist fb_ia --noload")));
            sound(&row);
            assert_eq!((&row["case"], &row["rate"]), (&"open".into(), &2000.0.into()));
            assert!((700.0..900.0).contains(&figure(&row, "requests")), "{row}");
            let received: u64 = server.counters().iter().map(|thread| thread.received.get()).sum();
            assert!(received as f64 >= figure(&row, "requests") + 500.0);
            for thread in server.counters() {
                assert_eq!((thread.malformed.get(), thread.multi_packet.get()), (0, 0));
                assert!(thread.received.get() > 0, "both threads had something to do");
            }
        })
        .unwrap();
}

/// A namespace for `softnet load` on a stack of its own, and another at the other end of a veth pair.
pub(super) struct Wire {
    near: NetNs,
    dir: tempfile::TempDir,
}

pub(super) const SERVERS: [&str; 2] = ["10.9.0.2:11211", "[fd09::2]:11211"];
pub(super) const DEFERS: &str =
    "napi_defer_hard_irqs = 100\ngro_flush_timeout = 200000\nirq_suspend_timeout = 20000000\n";

impl Wire {
    /// And what `serve` makes at the other end, on the kernel's sockets.
    pub(super) fn new<T: Send>(serve: impl FnOnce() -> T + Send) -> (Wire, T) {
        let (near, far) = (NetNs::new().unwrap(), NetNs::new().unwrap());
        let wire = || {
            let mut netlink = Netlink::new().unwrap();
            netlink.add_veth("load0", "eth0", (2, 2), Some(&far)).unwrap();
            netlink.set_up("load0").unwrap();
        };
        let serve = || {
            // No other host has its addresses: they are good at once.
            std::fs::write("/proc/sys/net/ipv6/conf/eth0/accept_dad", "0").unwrap();
            let mut netlink = Netlink::new().unwrap();
            netlink.set_up("eth0").unwrap();
            netlink.add_address("eth0", Ipv4Addr::new(10, 9, 0, 2), 24).unwrap();
            netlink.add_address("eth0", Ipv6Addr::new(0xfd09, 0, 0, 0, 0, 0, 0, 2), 64).unwrap();
            netlink.wait_running("eth0").unwrap();
            serve()
        };
        near.run(wire).unwrap();
        let served = far.run(serve).unwrap();
        (Wire { near, dir: tempfile::tempdir().unwrap() }, served)
    }

    fn control(&self) -> PathBuf {
        self.dir.path().join("control")
    }

    /// The stack from now on, with these knobs of its device.
    pub(super) fn configure(&self, knobs: &str) {
        let config = format!(
            "[stack]\ncontrol = {:?}\nworkers = [0]\nframes = 16384\n\n\
             [[device]]\nname = \"load0\"\naddresses = [\"10.9.0.1/24\", \"fd09::1/64\"]\nring = 512\n{knobs}",
            self.control()
        );
        std::fs::write(self.dir.path().join("load.toml"), config).unwrap();
    }

    fn start(&self, server: &str, args: &str) -> Child {
        let mut command = Command::new(env!("CARGO_BIN_EXE_softnet"));
        command.args(["load", server, "--timeout", "10000", "--softnet", "load.toml"]);
        command.args(args.split_whitespace()).current_dir(self.dir.path());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        self.near.run(|| command.spawn()).unwrap().expect("spawn softnet")
    }

    pub(super) fn load(&self, server: &str, args: &str) -> Output {
        self.start(server, args).wait_with_output().unwrap()
    }

    /// What it says when it fails.
    fn failed(&self, server: &str, code: i32) -> String {
        let output = self.load(server, "--time 0.1");
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    }
}

/// With udp-kv at the other end.
fn world() -> (Wire, Server) {
    Wire::new(|| {
        let stop = Arc::new(Stop::new().unwrap());
        let addresses = SERVERS.map(|server| server.parse().unwrap());
        let sets = vec![KernelSockets::bound(&addresses, 64, &stop).unwrap()];
        Server::start(sets, &Arc::new(Store::new(64 << 20, 8)), &stop).unwrap()
    })
}

#[test]
fn a_stack_of_its_own_asks_the_kernel() {
    if !net_allowed() {
        return;
    }
    let (world, server) = world();
    world.configure(DEFERS);
    let mut asked = 0.0;
    for server in SERVERS {
        for args in [
            &format!("{FACEBOOK} -T 2 -c 4 --in-flight 2 --blocking"),
            &format!("{FACEBOOK} -c 4 --rate 2000 --blocking --noload"),
            // Its thread polls, and sends and takes what needs several packets.
            "--records 100 --valuesize uniform:4000 --max-value 4000 --update 0.2 --json --time 0.3 --warmup 0.1 -c 2",
        ] {
            let row = figures(&world.load(server, args));
            sound(&row);
            asked += figure(&row, "requests");
        }
    }
    let counters = &server.counters()[0];
    assert!(counters.received.get() as f64 >= asked + 2.0 * 600.0);
    assert_eq!((counters.malformed.get(), counters.not_sent.get()), (0, 0));
    assert!(!world.control().exists(), "it took its control socket away");
}

#[test]
fn a_stack_of_its_own_says_what_goes_wrong() {
    if !net_allowed() {
        return;
    }
    let (world, _server) = world();
    world.configure(DEFERS);
    let error = world.failed("10.9.0.2:11212", 1);
    assert!(
        error.contains("error: no server answers at 10.9.0.2:11212") && !error.contains("load0"),
        "{error}"
    );
    world.configure("");
    let error = world.failed("192.0.2.1:11211", 1);
    assert!(error.contains("error: sockets for 192.0.2.1:11211: "), "{error}");
    assert!(error.contains("load0: every response will wake a worker"), "{error}");
    world.configure("gro_flush_timeout = \"long\"\n");
    assert!(world.failed(SERVERS[0], 2).contains("load.toml:10:"));
}

#[test]
fn a_signal_ends_a_stack_of_its_own_in_order() {
    if !net_allowed() {
        return;
    }
    let (world, server) = world();
    world.configure(DEFERS);
    let child = world.start(SERVERS[0], "--time 600");
    let give_up = Instant::now() + Duration::from_secs(60);
    // More than there are records to be stored: it is well under way.
    while server.counters()[0].received.get() < 15_000 {
        assert!(Instant::now() < give_up, "it does not ask");
        std::thread::sleep(Duration::from_millis(5));
    }
    let pid = rustix::process::Pid::from_raw(child.id().cast_signed()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && said.contains("error: interrupted"), "{output:?}");
    assert!(!world.control().exists(), "it took its control socket away");
}

/// Requests and responses of several packets.
#[test]
fn large_values_come_whole() {
    if !net_allowed() {
        return;
    }
    NetNs::new()
        .unwrap()
        .run(|| {
            let _server = udp_kv();
            let args = "--records 50 --valuesize uniform:60000 --max-value 60000 --update 0.2 --json --time 0.3 -c 2";
            sound(&figures(&load(args)));
        })
        .unwrap();
}

/// memcached with two threads on the loopback, until it is dropped.
pub(super) struct Memcached(Child);

impl Memcached {
    /// One that is `ready`; `None`: it is not installed.
    pub(super) fn start(args: &[&str], ready: impl Fn() -> bool) -> Option<Memcached> {
        let mut command = Command::new("memcached");
        command.args(["-u", "root", "-l", "127.0.0.1", "-t", "2"]).args(args).stderr(Stdio::null());
        match command.spawn() {
            Ok(child) => {
                let (started, give_up) = (Memcached(child), Instant::now() + Duration::from_secs(30));
                while !ready() {
                    assert!(Instant::now() < give_up, "memcached does not start");
                    std::thread::sleep(Duration::from_millis(5));
                }
                Some(started)
            }
            Err(error) => {
                let required = std::env::var_os("SOFTNET_REQUIRE_NET").is_some_and(|value| value == "1");
                assert!(!required, "memcached is required: {error}");
                println!("skipped: memcached is not installed");
                None
            }
        }
    }
}

impl Drop for Memcached {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn memcached_bears_it_too() {
    if !net_allowed() {
        return;
    }
    NetNs::new()
        .unwrap()
        .run(|| {
            // A free port can be taken.
            let ready = || UdpSocket::bind(address()).is_err();
            let Some(_server) = Memcached::start(&["-U", "11211", "-p", "0"], ready) else { return };
            sound(&figures(&load(&format!("{FACEBOOK} -c 8"))));
            sound(&figures(&load(&format!("{FACEBOOK} -c 8 --rate 2000 --noload"))));
        })
        .unwrap();
}

#[test]
fn a_table_for_people() {
    if !net_allowed() {
        return;
    }
    let ns = NetNs::new().unwrap();
    let text = ns.run(|| {
        let _server = udp_kv();
        let loaded = load("--records 1000 --loadonly");
        assert_eq!(String::from_utf8_lossy(&loaded.stdout), "1,000 records are stored\n");
        String::from_utf8(load("--records 1000 --noload --rate 1000 --update 0.5 --time 0.5").stdout).unwrap()
    });
    let text = text.unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(
        lines[0],
        "127.0.0.1:11211: open loop, 1.00 k/s (exponential) on 8 connections of 1 thread, for 0.5 s"
    );
    assert_eq!(lines[1], "1,000 records, keys 30, values 200 (up to 1300 bytes), 50 % updates");
    let header: Vec<&str> = lines[3].split_whitespace().collect();
    assert_eq!(header, ["REQUESTS", "RATE", "AVG", "P50", "P90", "P95", "P99", "P99.9", "MAX"]);
    for (line, name) in lines[4..7].iter().zip(["read", "update", "all"]) {
        assert!(line.starts_with(name), "{text}");
    }
    assert!(text.contains("misses 0, wrong 0"), "{text}");
}

#[test]
fn what_goes_wrong_is_said() {
    if !net_allowed() {
        return;
    }
    NetNs::new()
        .unwrap()
        .run(|| {
            assert!(failed("", 1).contains("error: no server answers at 127.0.0.1:11211"));
            assert!(
                failed("--noload --time 0.1 --warmup 0", 1)
                    .contains("error: 127.0.0.1:11211 answered no request")
            );
            // A server that stores everything, and has something else for it.
            let liar = UdpSocket::bind(address()).unwrap();
            let lies = std::thread::spawn(move || {
                let mut request = [0; 2048];
                while let Ok((len, from)) = liar.recv_from(&mut request) {
                    match request[8..len].split(|b| *b == b' ').next() {
                        Some(b"get") => {
                            let lie = [&request[..8], b"VALUE a 0 1\r\nx\r\nEND\r\n"].concat();
                            let _ = liar.send_to(&lie, from);
                        }
                        Some(b"set") => {
                            let _ = liar.send_to(&[&request[..8], b"STORED\r\n"].concat(), from);
                        }
                        _ => break,
                    }
                }
            });
            let error = failed("--records 10 --time 0.2 --warmup 0", 1);
            assert!(error.contains("responses were wrong; one of them: Get of record"), "{error}");
            UdpSocket::bind("127.0.0.1:0").unwrap().send_to(b"12345678end", address()).unwrap();
            lies.join().unwrap();
            for (args, expected) in [
                ("--rate 0", "more than 0"),
                ("--iadist fb_ia", "--rate"),
                ("--rate 5 --iadist fb_key", "--iadist: fb_key is not for times between requests"),
                ("--keysize big", "expected a number, fixed:VALUE"),
                ("--update 2", "from 0 to 1"),
                ("--rate 5 --in-flight 2", "cannot be used with"),
            ] {
                let error = failed(args, 2);
                assert!(error.contains(expected), "{args}: {error}");
            }
        })
        .unwrap();
}
