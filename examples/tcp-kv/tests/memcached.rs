//! The program, asked over TCP in the same words as a real memcached, whose answers its own are
//! compared with.
//!
//! In a network namespace of its own, so that ports are free. Without memcached the test is skipped;
//! under `SOFTNET_REQUIRE_NET=1` that is a failure.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use softnet_dev::netlink::Netlink;
use softnet_dev::netns::NetNs;
use softnet_testkit::net_allowed;

const PATIENCE: Duration = Duration::from_secs(30);
const PORTS: [u16; 2] = [11211, 11212];

/// A program that is ended with the test.
struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// All that is answered to `requests` on a connection of its own, which is sent in pieces.
fn answers(port: u16, requests: &[u8], piece: usize) -> String {
    let give_up = Instant::now() + PATIENCE;
    let mut stream = loop {
        match TcpStream::connect((Ipv4Addr::LOCALHOST, port)) {
            Ok(stream) => break stream,
            Err(error) => assert!(Instant::now() < give_up, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_nodelay(true).unwrap();
    requests.chunks(piece).for_each(|piece| stream.write_all(piece).unwrap());
    let mut answers = String::new();
    stream.read_to_string(&mut answers).unwrap();
    answers
}

/// What is asked of both. Left out are `cas` numbers, which are each server's own affair, and the
/// version.
const REQUESTS: &[&str] = &[
    "get none\r\n",
    "set a 5 0 3\r\nxyz\r\n",
    "get a\r\nget a b a\r\nget   a  \r\n",
    "set b 4294967295 0 0\r\n\r\n",
    "get b a\r\n",
    "set c 0 0 1 noreply\r\n1\r\n",
    "add c 0 0 1\r\n2\r\n",
    "replace c 7 0 2\r\n10\r\n",
    "append c 9 0 1\r\n0\r\n",
    "prepend c 9 0 1\r\n2\r\n",
    "get c\r\n",
    "incr c 5\r\n",
    "decr c 2000\r\n",
    "get c\r\n",
    "incr c 18446744073709551615\r\n",
    "incr a 1\r\n",
    "incr none 1\r\n",
    "incr c -1\r\n",
    "touch c 100\r\n",
    "touch none 100\r\n",
    "touch c -1\r\n",
    "get c\r\n",
    "delete a\r\n",
    "delete a\r\n",
    "delete b noreply\r\n",
    "get a b\r\n",
    "set d 0 0 2\r\nab\r\nset e 0 0 2\r\ncd\r\nget d e\r\n",
    "set f 0 -1 1\r\nx\r\nget f\r\n",
    "verbosity 1\r\n",
    "bogus\r\n",
    "\r\n",
    "flush_all\r\n",
    "get d\r\n",
    "set g 0 0 10\r\n0123456789\r\nget g\r\n",
    "quit\r\n",
];

#[test]
fn it_answers_as_memcached_does() {
    let found = Command::new("memcached").arg("-h").stdout(Stdio::null()).status().is_ok();
    let required = std::env::var_os("SOFTNET_REQUIRE_NET").is_some_and(|value| value == "1");
    assert!(found || !required, "memcached is required");
    if !found || !net_allowed() {
        println!("skipped: memcached is not installed, or namespaces are not allowed");
        return;
    }
    let ns = NetNs::new().unwrap();
    ns.run(|| {
        Netlink::new().unwrap().set_up("lo").unwrap();
        let [theirs, ours] = PORTS.map(|port| port.to_string());
        let args = ["-u", "root", "-l", "127.0.0.1", "-U", "0", "-p", &theirs, "-t", "1"];
        let _theirs = Program(Command::new("memcached").args(args).spawn().expect("spawn memcached"));
        let listen = format!("127.0.0.1:{ours}");
        let ours = Command::new(env!("CARGO_BIN_EXE_tcp-kv"))
            .args(["--threads", "1", "--listen", &listen])
            .stdout(Stdio::null())
            .spawn();
        let _ours = Program(ours.expect("spawn tcp-kv"));
        let requests = REQUESTS.concat().into_bytes();
        for piece in [requests.len(), 7, 1] {
            let [theirs, ours] = PORTS.map(|port| answers(port, &requests, piece));
            assert_eq!(ours, theirs, "in pieces of {piece}");
            assert!(ours.contains("VALUE a 5 3\r\nxyz\r\n") && ours.len() > 500, "{ours}");
        }
    })
    .unwrap();
}
