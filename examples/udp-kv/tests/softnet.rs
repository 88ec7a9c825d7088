//! The program on a softnet stack: over a veth pair, with the kernel's sockets at the other end.

use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use softnet_dev::netlink::Netlink;
use softnet_dev::netns::NetNs;
use softnet_testkit::net_allowed;

const PATIENCE: Duration = Duration::from_secs(60);
const SERVER: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);
const SERVER6: Ipv6Addr = Ipv6Addr::new(0xfd09, 0, 0, 0, 0, 0, 0, 1);

/// A program that is ended with the test.
struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Sends `request` until there is an answer; it or its answer may be lost while the interfaces come up.
fn ask(socket: &UdpSocket, id: u8, request: &[u8]) -> Vec<u8> {
    let give_up = Instant::now() + PATIENCE;
    let mut answer = [0; 2048];
    while Instant::now() < give_up {
        let sent = socket.send(&[&[0, id, 0, 0, 0, 1, 0, 0], request].concat());
        while sent.is_ok()
            && let Ok(n) = socket.recv(&mut answer)
        {
            if answer[..8] == [0, id, 0, 0, 0, 1, 0, 0] {
                return answer[8..n].to_vec();
            }
        }
    }
    panic!("no answer to {:?}", String::from_utf8_lossy(request));
}

#[test]
fn the_program_serves_on_a_stack_of_its_own() {
    if !net_allowed() {
        return;
    }
    let (server, client) = (NetNs::new().unwrap(), NetNs::new().unwrap());
    let wire = || {
        let mut netlink = Netlink::new().unwrap();
        netlink.add_veth("kv0", "eth0", (2, 2), Some(&client)).unwrap();
        netlink.set_up("kv0").unwrap();
    };
    server.run(wire).unwrap();
    let far = || {
        let mut netlink = Netlink::new().unwrap();
        // No other host has its addresses: they are good at once.
        std::fs::write("/proc/sys/net/ipv6/conf/eth0/accept_dad", "0").unwrap();
        netlink.add_address("eth0", Ipv4Addr::new(10, 9, 0, 2), 24).unwrap();
        netlink.set_up("eth0").unwrap();
        netlink.add_address("eth0", Ipv6Addr::new(0xfd09, 0, 0, 0, 0, 0, 0, 2), 64).unwrap();
    };
    client.run(far).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let mut file = std::fs::File::create(dir.path().join("kv.toml")).unwrap();
    let control = dir.path().join("control");
    let config = format!(
        "[stack]\ncontrol = {control:?}\nworkers = [0]\nframes = 8192\n\n\
         [[device]]\nname = \"kv0\"\naddresses = [\"{SERVER}/24\", \"{SERVER6}/64\"]\nring = 256\n\
         napi_defer_hard_irqs = 10\ngro_flush_timeout = 20000\nirq_suspend_timeout = 20000000\n"
    );
    file.write_all(config.as_bytes()).unwrap();
    let start = || {
        Command::new(env!("CARGO_BIN_EXE_udp-kv"))
            .args([
                "--softnet",
                "kv.toml",
                "--prefer-busy-poll",
                "--busy-poll-usecs",
                "20",
                "--maxevents",
                "1",
            ])
            .current_dir(dir.path())
            .stdout(Stdio::piped())
            .spawn()
            .expect("spawn udp-kv")
    };
    let mut program = Program(server.run(start).unwrap());
    let mut line = String::new();
    BufReader::new(program.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "udp-kv: serving 10.9.0.1:11211, [fd09::1]:11211 with 2 threads and 64 MiB\n");
    // Flows that may come by either queue.
    let socket = |from: &str, to: IpAddr| {
        let socket = UdpSocket::bind(from).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        socket.connect((to, 11211)).unwrap();
        socket
    };
    let [one, other] = client.run(|| [0, 1].map(|_| socket("0.0.0.0:0", SERVER.into()))).unwrap();
    let v6 = client.run(|| socket("[::]:0", SERVER6.into())).unwrap();
    let value: String = "value".repeat(200);
    let set = format!("set key 1 0 1000\r\n{value}\r\n");
    assert_eq!(ask(&one, 1, set.as_bytes()), b"STORED\r\n");
    let found = format!("VALUE key 1 1000\r\n{value}\r\nEND\r\n");
    assert_eq!(ask(&one, 2, b"get key\r\n"), found.as_bytes());
    assert_eq!(ask(&other, 3, b"get key\r\n"), found.as_bytes());
    assert_eq!(ask(&v6, 5, b"get key\r\n"), found.as_bytes());
    let stats = String::from_utf8(ask(&other, 4, b"stats\r\n")).unwrap();
    assert!(
        stats.contains("STAT udp_malformed 0\r\n") && stats.contains("STAT udp_not_sent 0\r\n"),
        "{stats}"
    );
    assert!(control.exists(), "`softnet show` can ask");
    let pid = rustix::process::Pid::from_raw(program.0.id().cast_signed()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert!(program.0.wait().unwrap().success());
}
