//! `examples/home-router.toml` as its users use it: curl, dig, ping, traceroute and tracepath
//! inside, real servers outside.
//!
//! ```text
//!  inside ── softnet ── gateway (kernel router) ──── beyond: HTTP, DNS
//!                          198.51.100.9   └─ MTU 1300 ─┘ 198.51.101.9
//! ```

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::Duration;

use softnet::config::GroMode;
use softnet_dev::netlink::Netlink;
use softnet_dev::netns::NetNs;
use softnet_testkit::sysctl;

use super::home::{GATEWAY, Home, LAN, REMOTE, SERVER, WAN, WEB};
use super::world::until;

const BEYOND: Ipv4Addr = Ipv4Addr::new(198, 51, 101, 9);
/// Of the link from the gateway to `BEYOND`, as the gateway has it.
const NARROW: u32 = 1300;
const GIB: u64 = 1 << 30;
/// For one stream to go on.
const STILL: Duration = Duration::from_secs(30);

/// Whether the program is there. Where network tests are required it must be.
pub(crate) fn has(tool: &str) -> bool {
    let found = Command::new("sh").args(["-c", &format!("command -v {tool}")]).stdout(Stdio::null()).status();
    let found = found.is_ok_and(|status| status.success());
    assert!(found || std::env::var_os("SOFTNET_REQUIRE_NET").is_none(), "{tool} is not installed");
    if !found {
        eprintln!("skipped: {tool} is not installed");
    }
    found
}

/// What a program prints that runs to its end in a namespace.
fn run(ns: &NetNs, command: &str) -> String {
    let mut words = command.split_whitespace();
    let mut program = Command::new(words.next().unwrap());
    program.args(words);
    let output = ns.run(|| program.output().unwrap()).unwrap();
    let [out, err] = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    assert!(output.status.success(), "{command}: {}\n{out}{err}", output.status);
    out
}

/// A program that runs until this goes.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn byte(at: u64) -> u8 {
    (at ^ at >> 8 ^ at >> 16 ^ at >> 24) as u8
}

fn fill(buffer: &mut [u8], at: u64) {
    buffer.iter_mut().zip(at..).for_each(|(to, at)| *to = byte(at));
}

/// What a request says: its first line, and how many bytes come with it.
fn request(reader: &mut impl BufRead) -> Option<(String, u64)> {
    let (mut first, mut len) = (String::new(), 0);
    reader.read_line(&mut first).unwrap();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).unwrap() == 0 {
            return None;
        }
        if line == "\r\n" {
            return Some((first, len));
        }
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            len = value.trim().parse().unwrap();
        }
    }
}

/// Reads `len` bytes of the pattern.
fn check(mut from: impl Read, len: u64) {
    let (mut buffer, mut want, mut at) = (vec![0; 1 << 16], vec![0; 1 << 16], 0);
    while at < len {
        let n = from.read(&mut buffer).unwrap();
        assert!(n > 0, "ended after {at} of {len} bytes");
        fill(&mut want[..n], at);
        assert!(buffer[..n] == want[..n], "differs after byte {at}");
        at += n as u64;
    }
    assert_eq!(at, len);
}

/// An HTTP server for one request: `GET /LENGTH` is answered by so many bytes, a `PUT` is read and
/// checked. Returns where the request came from.
fn http(ns: &NetNs, at: (Ipv4Addr, u16)) -> JoinHandle<IpAddr> {
    let listener = ns.run(|| TcpListener::bind(at).unwrap()).unwrap();
    std::thread::spawn(move || {
        let (stream, from) = listener.accept().unwrap();
        stream.set_read_timeout(Some(STILL)).unwrap();
        stream.set_write_timeout(Some(STILL)).unwrap();
        serve(stream);
        from.ip()
    })
}

fn serve(stream: TcpStream) {
    let mut reader = BufReader::new(&stream);
    let (first, sent) = request(&mut reader).unwrap();
    if first.starts_with("PUT") {
        check(reader, sent);
        (&stream).write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n").unwrap();
        return;
    }
    let path = first.split(' ').nth(1).unwrap();
    let len: u64 = path[1..].parse().unwrap();
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {len}\r\nConnection: close\r\n\r\n");
    (&stream).write_all(head.as_bytes()).unwrap();
    let (mut buffer, mut at) = (vec![0; 1 << 16], 0);
    while at < len {
        let n = (len - at).min(buffer.len() as u64) as usize;
        fill(&mut buffer[..n], at);
        (&stream).write_all(&buffer[..n]).unwrap();
        at += n as u64;
    }
}

/// Downloads by curl in `ns`, and checks each byte.
fn download(ns: &NetNs, from: (Ipv4Addr, u16), len: u64) {
    let url = format!("http://{}:{}/{len}", from.0, from.1);
    let mut curl = Command::new("curl");
    curl.args(["--silent", "--show-error", "--max-time", "240", &url]).stdout(Stdio::piped());
    let mut curl = Running(ns.run(|| curl.spawn().unwrap()).unwrap());
    check(curl.0.stdout.take().unwrap(), len);
    assert!(curl.0.wait().unwrap().success());
}

/// Adds the hosts beyond the gateway.
fn beyond(home: &Home) -> NetNs {
    let far = NetNs::new().unwrap();
    let join = || {
        let mut netlink = Netlink::new().unwrap();
        netlink.add_veth("far", "eth0", (1, 1), Some(&far)).unwrap();
        netlink.set_mtu("far", NARROW).unwrap();
        netlink.add_address("far", Ipv4Addr::new(198, 51, 101, 1), 24).unwrap();
        netlink.set_up("far").unwrap();
        sysctl("ipv4/ip_forward", "1").unwrap();
    };
    home.outside.run(join).unwrap();
    let up = || {
        let mut netlink = Netlink::new().unwrap();
        netlink.add_address("eth0", BEYOND, 24).unwrap();
        netlink.set_up("eth0").unwrap();
        netlink.wait_running("eth0").unwrap();
        netlink.add_route(Ipv4Addr::UNSPECIFIED, 0, Ipv4Addr::new(198, 51, 101, 1)).unwrap();
    };
    far.run(up).unwrap();
    home.ping(BEYOND, 100);
    far
}

/// A gibibyte through VLAN and NAT, as one TCP stream: by packets, and by aggregates.
#[test]
fn curl_downloads_a_gibibyte() {
    if !has("curl") {
        return;
    }
    for gro in [GroMode::Off, GroMode::Frags] {
        let quick = |config: &mut softnet::config::Config| {
            // The line's rate is not what is tested.
            config.devices.iter_mut().for_each(|device| device.qdisc = None);
            config.devices[..2].iter_mut().for_each(|device| device.gro = gro);
        };
        let Some(home) = Home::with(quick) else { return };
        let server = http(&home.outside, (REMOTE, 80));
        let len = if gro == GroMode::Off { GIB / 8 } else { GIB };
        download(&home.inside, (REMOTE, 80), len);
        assert_eq!(server.join().unwrap(), IpAddr::from(WAN));
        home.end();
    }
}

/// The web server inside: from outside, and by its outer address from inside.
#[test]
fn curl_reaches_the_forwarded_server_from_both_sides() {
    if !has("curl") {
        return;
    }
    let Some(home) = Home::new() else { return };
    for (ns, seen) in [(&home.outside, GATEWAY), (&home.inside, WAN)] {
        let server = http(&home.inside, (SERVER, WEB[1]));
        download(ns, (WAN, WEB[0]), 1 << 20);
        assert_eq!(server.join().unwrap(), IpAddr::from(seen));
    }
    home.end();
}

/// A link beyond the NAT is narrower: its router's answers reach the sender inside, with the inner
/// address in the quoted packet, and an upload goes on in smaller segments.
#[test]
fn path_mtu_discovery_works_through_nat() {
    if !has("curl") || !has("tracepath") {
        return;
    }
    let Some(home) = Home::new() else { return };
    let far = beyond(&home);
    let server = http(&far, (BEYOND, 80));
    let url = format!("http://{BEYOND}/up");
    let mut curl = Command::new("curl");
    curl.args(["--silent", "--show-error", "--max-time", "120", "--request", "PUT", "--header", "Expect:"]);
    curl.args(["--data-binary", "@-", &url]);
    let mut curl = Running(home.inside.run(|| curl.stdin(Stdio::piped()).spawn().unwrap()).unwrap());
    let mut bytes = vec![0; 1 << 20];
    fill(&mut bytes, 0);
    curl.0.stdin.take().unwrap().write_all(&bytes).unwrap();
    assert!(curl.0.wait().unwrap().success());
    assert_eq!(server.join().unwrap(), IpAddr::from(WAN));

    let path = run(&home.inside, &format!("tracepath -n {BEYOND}"));
    assert!(path.contains(&format!("pmtu {NARROW}")), "{path}");
    assert!(path.contains(&LAN.to_string()) && path.contains(&BEYOND.to_string()), "{path}");
    let route = run(&home.inside, &format!("ip route get {BEYOND}"));
    assert!(route.contains(&format!("mtu {NARROW}")), "{route}");
    home.end();
}

/// Each way of asking names the router, the gateway and the host, in this order.
#[test]
fn traceroute_names_each_hop() {
    if !has("traceroute") {
        return;
    }
    let Some(home) = Home::new() else { return };
    let far = beyond(&home);
    let _open = far.run(|| TcpListener::bind((BEYOND, 80)).unwrap()).unwrap();
    for way in ["-U -p 33434", "-I", "-T -p 80"] {
        until(way, || {
            let hops = run(&home.inside, &format!("traceroute -n -q 1 -w 2 -N 1 -m 6 {way} {BEYOND}"));
            let hops: Vec<_> =
                hops.lines().skip(1).filter_map(|line| line.split_whitespace().nth(1)).collect();
            // The router's limit of errors to one host may have one of them silent for a moment.
            hops == [LAN, GATEWAY, BEYOND].map(|addr| addr.to_string())
        });
    }
    home.end();
}

#[test]
fn dig_asks_a_server_outside_by_udp_and_tcp() {
    if !has("dig") || !has("dnsmasq") {
        return;
    }
    let Some(home) = Home::new() else { return };
    let mut dnsmasq = Command::new("dnsmasq");
    let at = format!("--listen-address={REMOTE}");
    dnsmasq.args([
        "--keep-in-foreground",
        "--conf-file=/dev/null",
        "--no-resolv",
        "--no-hosts",
        "--bind-interfaces",
    ]);
    dnsmasq
        .args(["--user=root", "--pid-file=", "--address=/router.test/192.0.2.55", &at])
        .stderr(Stdio::null());
    let _server = Running(home.outside.run(|| dnsmasq.spawn().unwrap()).unwrap());
    for transport in ["+notcp", "+tcp"] {
        until(&format!("an answer by {transport}"), || {
            let mut dig = Command::new("dig");
            dig.args([&format!("@{REMOTE}"), "router.test", "A", "+short", "+tries=1", "+time=2", transport]);
            let output = home.inside.run(|| dig.output().unwrap()).unwrap();
            output.stdout == b"192.0.2.55\n"
        });
    }
    home.end();
}

#[test]
fn ping_counts_no_loss() {
    if !has("ping") {
        return;
    }
    let Some(home) = Home::new() else { return };
    let said = run(&home.inside, &format!("ping -n -c 20 -i 0.05 -s 1400 {REMOTE}"));
    assert!(said.contains("20 received, 0% packet loss"), "{said}");
    home.end();
}
