//! The program, asked by others than its author's code: by libmemcached's load tool, and in the same words as a real
//! memcached, whose answers its own are compared with.
//!
//! Each test has a network namespace of its own, so that ports are free and nothing stays behind. Without the
//! programs (Debian: `memcached`, `libmemcached-tools`) the tests are skipped; under `SOFTNET_REQUIRE_NET=1` that
//! is a failure.

use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use softnet_dev::netlink::Netlink;
use softnet_dev::netns::NetNs;
use softnet_testkit::net_allowed;

const PATIENCE: Duration = Duration::from_secs(30);
const PORT: u16 = 11211;

/// A program that is ended with the test.
struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Whether a program is there; else says so.
fn installed(program: &str) -> bool {
    let found = Command::new(program).arg("-h").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok();
    let required = std::env::var_os("SOFTNET_REQUIRE_NET").is_some_and(|value| value == "1");
    assert!(found || !required, "{program} is required");
    if !found {
        println!("skipped: {program} is not installed");
    }
    found
}

fn address() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, PORT).into()
}

fn udp_kv(args: &[&str]) -> Program {
    let mut child = Command::new(env!("CARGO_BIN_EXE_udp-kv"))
        .args(args)
        .stdout(Stdio::piped())
        .spawn()
        .expect("spawn udp-kv");
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.starts_with("udp-kv: serving 127.0.0.1:11211 with "), "{line:?}");
    Program(child)
}

fn memcached() -> Program {
    let args =
        ["-u", "root", "-l", "127.0.0.1", "-U", "11211", "-p", "11211", "-t", "1", "-o", "no_lru_crawler"];
    let child = Command::new("memcached").args(args).spawn().expect("spawn memcached");
    let program = Program(child);
    let client = client();
    let give_up = Instant::now() + PATIENCE;
    // Until its port is open it refuses.
    while exchange(&client, 0, b"version\r\n").is_empty() {
        assert!(Instant::now() < give_up, "memcached does not answer");
        std::thread::sleep(Duration::from_millis(5));
    }
    program
}

fn client() -> UdpSocket {
    let client = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    client.connect(address()).unwrap();
    client
}

/// Datagrams of the protocol, written by hand: a request with that id, and what comes back.
fn exchange(client: &UdpSocket, id: u16, request: &[u8]) -> Vec<u8> {
    let [high, low] = id.to_be_bytes();
    let datagram = [&[high, low, 0, 0, 0, 1, 0, 0][..], request].concat();
    // It fails where an earlier one met a closed port.
    if client.send(&datagram).is_err() { Vec::new() } else { response(client, id) }
}

/// The first message with that id, put together; empty if nothing comes for a while.
fn response(client: &UdpSocket, id: u16) -> Vec<u8> {
    // There is no other way to see that there is no answer.
    client.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    let mut parts: Vec<Option<Vec<u8>>> = Vec::new();
    let mut datagram = vec![0; 65_536];
    while let Ok(len) = client.recv(&mut datagram) {
        assert!(len > 8 && len <= 1400, "{len} bytes");
        let field = |at: usize| u16::from_be_bytes([datagram[at], datagram[at + 1]]);
        if field(0) != id {
            continue;
        }
        let (number, total) = (usize::from(field(2)), usize::from(field(4)));
        parts.resize(total, None);
        assert_eq!(parts[number].replace(datagram[8..len].to_vec()), None, "part {number} came twice");
        if parts.iter().all(Option::is_some) {
            return parts.into_iter().flatten().flatten().collect();
        }
    }
    Vec::new()
}

/// What is asked of both servers, one after the other. Left out is where udp-kv differs on purpose: memcached 1.6
/// answers each key of a `get` with a message of its own, which `protocol.txt` does not allow, and waits for the
/// rest of a value that is cut off; and `cas` numbers are each server's own affair, so only those are used that
/// no item has.
fn conversation() -> Vec<Vec<u8>> {
    let long_key = "k".repeat(250);
    let too_long = "k".repeat(251);
    let large = "0123456789".repeat(3_000);
    let mut requests: Vec<String> = vec![
        "get a\r\n".into(),
        "set a 0 0 1\r\n1\r\n".into(),
        "set b 4294967295 0 0\r\n\r\n".into(),
        "get a\r\n".into(),
        "get b\n".into(),
        "get c\r\n".into(),
        "add a 0 0 1\r\n2\r\n".into(),
        "add c 7 100 3\r\na\nb\r\n".into(),
        "get c\r\n".into(),
        "replace d 0 0 1\r\nx\r\n".into(),
        "replace c 8 0 2\r\nyz\r\n".into(),
        "append c 9 0 2\r\n12\r\n".into(),
        "prepend c 9 0 1\r\n_\r\n".into(),
        "get c\r\n".into(),
        "append nothing 0 0 1\r\nx\r\n".into(),
        "cas a 0 0 1 99999999\r\n5\r\n".into(),
        "cas nothing 0 0 1 1\r\n5\r\n".into(),
        "cas a 0 0 1 x\r\n5\r\n".into(),
        "incr a 9\r\n".into(),
        "decr a 6\r\n".into(),
        "get a\r\n".into(),
        "decr a 600\r\n".into(),
        "incr a 18446744073709551615\r\n".into(),
        "incr a 3\r\n".into(),
        "incr a x\r\n".into(),
        "incr a -1\r\n".into(),
        "incr c 1\r\n".into(),
        "incr nothing 1\r\n".into(),
        "incr a\r\n".into(),
        "touch a 1000\r\n".into(),
        "touch nothing 1000\r\n".into(),
        "touch a x\r\n".into(),
        "set soon 0 -1 1\r\nx\r\n".into(),
        "get soon\r\n".into(),
        "set past 0 1000000000 1\r\nx\r\n".into(),
        "get past\r\n".into(),
        "set quiet 0 0 1 noreply\r\nx\r\nget quiet\r\n".into(),
        "delete quiet noreply\r\nget quiet\r\n".into(),
        "delete quiet\r\n".into(),
        "delete c\r\n".into(),
        "delete a 0\r\n".into(),
        "delete\r\n".into(),
        "get\r\n".into(),
        "get \r\n".into(),
        "\r\n".into(),
        "nonsense\r\n".into(),
        "set\r\n".into(),
        "set a b c d\r\n".into(),
        "set a 0 0 x\r\n".into(),
        "set a -1 0 1\r\nx\r\n".into(),
        format!("get {too_long}\r\n"),
        format!("delete {too_long}\r\n"),
        format!("set {long_key} 1 0 4\r\nlong\r\n"),
        format!("get {long_key}\r\n"),
        format!("set large 3 0 {}\r\n{large}\r\n", large.len()),
        "get large\r\n".into(),
        "flush_all x\r\n".into(),
        "verbosity 0\r\n".into(),
        "stats reset\r\n".into(),
    ];
    requests
        .extend(["set a 0 0 3\r\nabc\r\n", "flush_all\r\n", "get a\r\n", "get large\r\n"].map(String::from));
    requests.into_iter().map(String::into_bytes).collect()
}

#[test]
fn it_answers_as_memcached_does() {
    if !net_allowed() || !installed("memcached") {
        return;
    }
    let answers = |start: fn() -> Program| {
        let ns = NetNs::new().unwrap();
        ns.run(|| {
            let _server = start();
            let client = client();
            (1..).zip(conversation()).map(|(id, request)| exchange(&client, id, &request)).collect::<Vec<_>>()
        })
        .unwrap()
    };
    let theirs = answers(memcached);
    let ours = answers(|| udp_kv(&["--threads", "1"]));
    for ((request, ours), theirs) in conversation().iter().zip(&ours).zip(&theirs) {
        let [request, ours, theirs] = [request, ours, theirs].map(|text| String::from_utf8_lossy(text));
        assert_eq!(ours, theirs, "{request:?}");
    }
}

#[test]
fn a_client_of_libmemcached_finds_what_it_stored() {
    if !net_allowed() || !installed("memcaslap") {
        return;
    }
    let ns = NetNs::new().unwrap();
    let output = ns.run(|| {
        // It looks up its server in a way that finds none on a host that has no address but the loopback's.
        let mut netlink = Netlink::new().unwrap();
        netlink.add_veth("v0", "v1", (1, 1), None).unwrap();
        netlink.add_address("v0", Ipv4Addr::new(10, 0, 0, 1), 24).unwrap();
        ["v0", "v1"].iter().for_each(|name| netlink.set_up(name).unwrap());
        let _server = udp_kv(&["--threads", "2"]);
        // All its reads are compared with what it wrote.
        let args = ["-s", "127.0.0.1:11211", "--udp", "-T", "1", "-c", "16", "-x", "50000", "-v", "1.0"];
        Command::new("memcaslap").args(args).output().unwrap()
    });
    let output = output.unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{}: {text}{}", output.status, String::from_utf8_lossy(&output.stderr));
    let figure = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap_or_else(|| panic!("no {name} in {text}")).trim().parse::<u64>().unwrap()
    };
    assert!(figure("cmd_get:") > 40_000, "{text}");
    for name in ["verify_misses:", "verify_failed:", "packet_disorder:"] {
        assert_eq!(figure(name), 0, "{text}");
    }
    // What the loopback interface loses in a burst is asked for again.
    assert!(figure("get_misses:") <= figure("packet_drop:"), "{text}");
}

#[test]
fn a_request_of_several_datagrams_is_not_answered() {
    if !net_allowed() {
        return;
    }
    let ns = NetNs::new().unwrap();
    ns.run(|| {
        let _server = udp_kv(&["--threads", "1"]);
        let client = client();
        for total in [0, 2] {
            client.send(&[&[0, 7, 0, 0, 0, total, 0, 0][..], b"version\r\n"].concat()).unwrap();
        }
        assert_eq!(response(&client, 7), b"");
        assert_eq!(exchange(&client, 8, b"version\r\n"), b"VERSION 0.1.0\r\n");
        let stats = String::from_utf8(exchange(&client, 8, b"stats\r\n")).unwrap();
        assert!(stats.contains("STAT udp_multi_packet 2\r\n"), "{stats}");
    })
    .unwrap();
}

#[test]
fn it_ends_when_told_to_and_says_why_it_cannot_start() {
    use rustix::process::{Pid, Signal, kill_process};
    if !net_allowed() {
        return;
    }
    let ns = NetNs::new().unwrap();
    ns.run(|| {
        let mut server = udp_kv(&["--threads", "3", "--by-queue"]);
        assert_eq!(exchange(&client(), 8, b"version\r\n"), b"VERSION 0.1.0\r\n");
        kill_process(Pid::from_child(&server.0), Signal::TERM).unwrap();
        assert!(server.0.wait().unwrap().success());
        let args = ["--listen", "192.0.2.1:11211"];
        let output = Command::new(env!("CARGO_BIN_EXE_udp-kv")).args(args).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(error.starts_with("error: cannot serve 192.0.2.1:11211: "), "{error}");
    })
    .unwrap();
}
