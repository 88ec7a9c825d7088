//! The program on the kernel's sockets and on a softnet stack over a veth pair, asked by the
//! kernel's sockets.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use softnet::control::show::{SocketRow, Table, TcpStats};
use softnet::control::{Client, Request};
use softnet_dev::netlink::Netlink;
use softnet_dev::netns::NetNs;
use softnet_testkit::{net_allowed, raise_loopback};

const PATIENCE: Duration = Duration::from_secs(60);
const SERVER: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);
const SERVER6: Ipv6Addr = Ipv6Addr::new(0xfd09, 0, 0, 0, 0, 0, 0, 1);

/// A program that is ended with the test.
struct Program(Child);

impl Program {
    fn start(dir: &Path, args: &[&str]) -> (Program, String) {
        let mut child = Command::new(env!("CARGO_BIN_EXE_tcp-kv"))
            .args(args)
            .current_dir(dir)
            .stdout(Stdio::piped())
            .spawn()
            .expect("spawn tcp-kv");
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        (Program(child), line)
    }

    /// Ends it by a signal.
    fn end(mut self) {
        let pid = rustix::process::Pid::from_raw(self.0.id().cast_signed()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        assert!(self.0.wait().unwrap().success());
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Connects; interfaces may still be coming up.
fn connect(to: SocketAddr) -> TcpStream {
    let give_up = Instant::now() + PATIENCE;
    loop {
        match TcpStream::connect(to) {
            Ok(stream) => {
                stream.set_read_timeout(Some(PATIENCE)).unwrap();
                return stream;
            }
            Err(error) => assert!(Instant::now() < give_up, "{to}: {error}"),
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Asks, and reads exactly the answer.
fn ask(stream: &mut TcpStream, request: &[u8], answer: &[u8]) {
    stream.write_all(request).unwrap();
    let mut got = vec![0; answer.len()];
    let shown = String::from_utf8_lossy(&request[..request.len().min(80)]);
    stream.read_exact(&mut got).unwrap_or_else(|error| panic!("{shown:?}: {error}"));
    assert!(got == answer, "{shown:?}: {:?}", String::from_utf8_lossy(&got[..got.len().min(80)]));
}

/// What every server has to do. `connect` opens a connection by one or the other family, which may
/// come by any queue.
fn converse(connect: impl Fn(bool) -> TcpStream + Sync) {
    let (mut one, mut other) = (connect(false), connect(true));
    ask(&mut one, b"set a 1 0 5\r\nhello\r\n", b"STORED\r\n");
    ask(&mut other, b"*2\r\n$3\r\nGET\r\n$1\r\na\r\n", b"$5\r\nhello\r\n");
    ask(&mut other, b"PING\r\n", b"+PONG\r\n");
    // The largest value, in pieces that end anywhere, and back.
    let value: Vec<u8> = (0..1 << 20).map(|i: u32| (i * 31 % 251) as u8).collect();
    let set = [b"set big 0 0 1048576\r\n".as_slice(), &value, b"\r\n"].concat();
    let all = set.len();
    set[..all - 1].chunks(60_001).for_each(|piece| one.write_all(piece).unwrap());
    ask(&mut one, &set[all - 1..], b"STORED\r\n");
    let found = [b"VALUE big 0 1048576\r\n".as_slice(), &value, b"\r\nEND\r\n"].concat();
    ask(&mut one, b"get big\r\n", &found);
    ask(
        &mut other,
        b"*2\r\n$3\r\nGET\r\n$3\r\nbig\r\n",
        &[b"$1048576\r\n".as_slice(), &value, b"\r\n"].concat(),
    );
    // Answers to requests that came together, more than a socket takes: all of them, in order.
    one.write_all(&b"get big\r\n".repeat(8)).unwrap();
    for _ in 0..8 {
        ask(&mut one, b"", &found);
    }
    // Too large a value is refused, and the next request found.
    let large = [b"set c 0 0 2000000\r\n".as_slice(), &vec![b'x'; 2_000_000], b"\r\nget c\r\n"].concat();
    ask(&mut one, &large, b"SERVER_ERROR object too large for cache\r\nEND\r\n");
    // Connections at the same time, each counting.
    std::thread::scope(|scope| {
        for i in 0..16 {
            let connect = &connect;
            scope.spawn(move || {
                let mut stream = connect(i % 2 == 1);
                for _ in 0..100 {
                    stream.write_all(b"*2\r\n$4\r\nINCR\r\n$1\r\nn\r\n").unwrap();
                    let mut answer = String::new();
                    BufReader::new(&stream).read_line(&mut answer).unwrap();
                    assert!(answer.starts_with(':'), "{answer}");
                }
            });
        }
    });
    ask(&mut one, b"get n\r\n", b"VALUE n 0 4\r\n1600\r\nEND\r\n");
    // What is asked before the end of a stream is answered, and the connection closed.
    other.write_all(b"get a\r\nversion\r\nget").unwrap();
    other.shutdown(Shutdown::Write).unwrap();
    let mut rest = String::new();
    other.read_to_string(&mut rest).unwrap();
    assert!(rest.starts_with("VALUE a 1 5\r\nhello\r\nEND\r\nVERSION "), "{rest}");
    one.write_all(b"quit\r\n").unwrap();
    assert_eq!(one.read(&mut [0; 8]).unwrap(), 0);
    // What no protocol has ends the connection, and is counted.
    let mut bad = connect(false);
    ask(&mut bad, b"*1\r\n:1\r\n", b"-ERR Protocol error: expected '$'\r\n");
    assert_eq!(bad.read(&mut [0; 8]).unwrap(), 0);
    let mut last = connect(false);
    last.write_all(b"stats\r\nquit\r\n").unwrap();
    let mut stats = String::new();
    last.read_to_string(&mut stats).unwrap();
    for stat in
        ["STAT tcp_malformed 1\r\n", "STAT rejected_connections 0\r\n", "STAT total_connections 20\r\n"]
    {
        assert!(stats.contains(stat), "{stat:?} is not in {stats}");
    }
}

/// What `softnet show tcp` is told of `stream` and the rest.
fn shown(control: &Path, mut stream: TcpStream) {
    ask(&mut stream, b"*2\r\n$4\r\nINCR\r\n$5\r\nshown\r\n", b":1\r\n");
    let client = Client::new(control.to_str()).unwrap();
    let peer = stream.local_addr().unwrap().to_string();
    // The acknowledgement of the answer comes when the client's kernel thinks fit.
    let give_up = Instant::now() + PATIENCE;
    let (stats, row) = loop {
        let stats: TcpStats = client.ask(&Request::Show(Table::Tcp)).unwrap();
        let row = stats.sockets.iter().find(|row| row.peer.as_deref() == Some(&peer)).cloned();
        match row {
            Some(row) if row.send_q == 0 => break (stats, row),
            row => assert!(Instant::now() < give_up, "{row:?} in {stats:?}"),
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    let info = row.info.as_ref().unwrap();
    assert_eq!((&*row.state, &*row.local, row.recv_q, row.attached), ("ESTAB", "10.9.0.1:11211", 0, true));
    assert!(row.napi.as_deref().is_some_and(|napi| napi.starts_with("kv0-")), "{row:?}");
    assert_eq!((info.bytes_received, info.bytes_sent, info.bytes_acked), (25, 4, 4), "{info:?}");
    assert_eq!((info.snd_mss, info.pmtu, &*info.congestion), (1448, 1500, "cubic"), "{info:?}");
    assert_eq!(info.options, ["ts", "sack", "wscale"]);
    assert!(info.rtt_us.is_some() && info.last_data_recv_ms.is_some_and(|ms| ms < 3_600_000), "{info:?}");
    let listeners: Vec<_> = stats.sockets.iter().filter(|row| row.state == "LISTEN").collect();
    let local: Vec<&str> = listeners.iter().map(|row| &*row.local).collect();
    assert_eq!(local, ["10.9.0.1:11211", "10.9.0.1:11211", "[fd09::1]:11211", "[fd09::1]:11211"]);
    assert!(
        listeners.iter().all(|row| (row.recv_q, row.send_q, &row.peer) == (0, 1024, &None)),
        "{listeners:?}"
    );
    let summary = stats.summary;
    assert_eq!((summary.listening, summary.estab, summary.syn_recv), (4, 1, 0), "{summary:?}");
    let of_state = |state| stats.sockets.iter().filter(|row| row.state == state).count() as u64;
    assert_eq!(summary.estab, of_state("ESTAB"));
    assert_eq!(summary.connections + summary.listening, stats.sockets.len() as u64);
    assert_eq!(stats.counters["TcpPassiveOpens"], 21, "20 of the conversation, and this");
    let sockets: Vec<SocketRow> = client.ask(&Request::Show(Table::Socket)).unwrap();
    assert!(sockets.len() == 4 && sockets.iter().all(|socket| socket.protocol == "tcp"), "{sockets:?}");
}

#[test]
fn the_program_serves_on_the_kernel() {
    raise_loopback();
    let dir = tempfile::tempdir().unwrap();
    let (program, line) =
        Program::start(dir.path(), &["--listen", "127.0.0.1:0", "--threads", "2", "--memory", "64"]);
    let to = line.strip_prefix("tcp-kv: serving ").and_then(|rest| rest.split(' ').next()).unwrap();
    assert!(line.ends_with(" with 2 threads and 64 MiB\n"), "{line}");
    let to: SocketAddr = to.parse().unwrap();
    converse(|_| connect(to));
    program.end();
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
    let control = dir.path().join("control");
    let config = format!(
        "[stack]\ncontrol = {control:?}\nworkers = [0]\nframes = 16384\n\n\
         [[device]]\nname = \"kv0\"\naddresses = [\"{SERVER}/24\", \"{SERVER6}/64\"]\nring = 256\n\
         napi_defer_hard_irqs = 10\ngro_flush_timeout = 20000\nirq_suspend_timeout = 20000000\n"
    );
    std::fs::write(dir.path().join("kv.toml"), config).unwrap();
    for polling in [&[][..], &["--prefer-busy-poll", "--busy-poll-usecs", "20", "--maxevents", "1"]] {
        let args = [&["--softnet", "kv.toml"], polling].concat();
        let (program, line) = server.run(|| Program::start(dir.path(), &args)).unwrap();
        assert_eq!(line, "tcp-kv: serving 10.9.0.1:11211, [fd09::1]:11211 with 2 threads and 64 MiB\n");
        let to = |v6: bool| -> SocketAddr {
            let addr: IpAddr = if v6 { SERVER6.into() } else { SERVER.into() };
            (addr, 11211).into()
        };
        converse(|v6| client.run(|| connect(to(v6))).unwrap());
        shown(&control, client.run(|| connect(to(false))).unwrap());
        program.end();
    }
}
