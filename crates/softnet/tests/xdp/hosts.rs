//! What runs on the hosts: ordinary kernel sockets.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddrV4, SocketAddrV6, TcpListener, TcpStream, UdpSocket};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, ipproto, sendto};
use softnet_core::ip::checksum;
use softnet_dev::netns::NetNs;

const PORT: u16 = 7;
/// How long one answer may take before the question is asked again.
const RETRY: Duration = Duration::from_millis(200);
/// How long a stream may stand still.
const STILL: Duration = Duration::from_secs(30);

/// To be bound to, for `peer` to reach.
fn unspecified(peer: IpAddr) -> IpAddr {
    match peer {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    }
}

/// A host that sends every UDP datagram back, of either family.
pub(crate) struct Echo {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Echo {
    pub(crate) fn start(ns: &NetNs) -> Echo {
        let socket = ns.run(|| UdpSocket::bind((Ipv6Addr::UNSPECIFIED, PORT)).unwrap()).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let serve = {
            let stop = stop.clone();
            move || {
                let mut buffer = vec![0; 1 << 16];
                while !stop.load(Ordering::Relaxed) {
                    // What cannot be received or answered now is asked again.
                    if let Ok((n, from)) = socket.recv_from(&mut buffer) {
                        let _ = socket.send_to(&buffer[..n], from);
                    }
                }
            }
        };
        Echo { stop, thread: Some(std::thread::spawn(serve)) }
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Sends `payload` to the echo server at `to`. Whether it came back in time; if something came back, then intact.
pub(crate) fn ask(to: impl Into<IpAddr>, payload: &[u8]) -> bool {
    let to = to.into();
    let Ok(socket) = UdpSocket::bind((unspecified(to), 0)) else { return false };
    socket.set_read_timeout(Some(RETRY)).unwrap();
    let mut buffer = vec![0; 1 << 16];
    // There may be no route while an interface is away.
    if socket.connect((to, PORT)).is_err() || socket.send(payload).is_err() {
        return false;
    }
    match socket.recv(&mut buffer) {
        Ok(n) => {
            assert!(buffer[..n] == *payload, "{n} bytes came back, not the {} sent", payload.len());
            true
        }
        Err(_) => false,
    }
}

/// The bytes of a stream, from `offset` on.
fn fill(buffer: &mut [u8], offset: usize) {
    buffer.iter_mut().zip(offset..).for_each(|(byte, i)| *byte = (i ^ i >> 8 ^ i >> 16) as u8);
}

fn write_stream(stream: &mut TcpStream, len: usize) -> io::Result<()> {
    let mut buffer = [0; 4096];
    for offset in (0..len).step_by(buffer.len()) {
        fill(&mut buffer, offset);
        stream.write_all(&buffer[..(len - offset).min(4096)])?;
    }
    Ok(())
}

fn read_stream(stream: &mut TcpStream, len: usize) -> io::Result<()> {
    let (mut buffer, mut expected) = ([0; 4096], [0; 4096]);
    let mut offset = 0;
    while offset < len {
        let n = stream.read(&mut buffer)?;
        assert!(n > 0, "the stream ended after {offset} bytes");
        fill(&mut expected[..n], offset);
        assert!(buffer[..n] == expected[..n], "differs after byte {offset}");
        offset += n;
    }
    assert_eq!(offset, len);
    Ok(())
}

/// Moves `len` bytes from `client` to `server` at address `to`, and as many back.
pub(crate) fn tcp(client: &NetNs, server: &NetNs, to: impl Into<IpAddr>, len: usize) {
    let to = to.into();
    let listener = server.run(|| TcpListener::bind((unspecified(to), 0)).unwrap()).unwrap();
    let port = listener.local_addr().unwrap().port();
    let patient = |stream: &TcpStream| {
        stream.set_read_timeout(Some(STILL)).unwrap();
        stream.set_write_timeout(Some(STILL)).unwrap();
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut stream = listener.accept().unwrap().0;
            patient(&stream);
            read_stream(&mut stream, len).unwrap();
            write_stream(&mut stream, len).unwrap();
        });
        let mut stream = client.run(|| TcpStream::connect((to, port)).unwrap()).unwrap();
        patient(&stream);
        write_stream(&mut stream, len).unwrap();
        read_stream(&mut stream, len).unwrap();
    });
}

/// A raw ICMP socket, of IPv4 or of IPv6: sees every ICMP message of its family in its namespace.
pub(crate) struct Icmp {
    socket: OwnedFd,
    v6: bool,
}

/// An ICMP message: its sender, type, code, and all of it.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) from: IpAddr,
    pub(crate) kind: (u8, u8),
    pub(crate) bytes: Vec<u8>,
}

impl Icmp {
    pub(crate) fn new(ns: &NetNs) -> Icmp {
        Self::open(ns, false)
    }

    pub(crate) fn v6(ns: &NetNs) -> Icmp {
        Self::open(ns, true)
    }

    fn open(ns: &NetNs, v6: bool) -> Icmp {
        let (family, protocol) = match v6 {
            true => (AddressFamily::INET6, ipproto::ICMPV6),
            false => (AddressFamily::INET, ipproto::ICMP),
        };
        let open = || rustix::net::socket_with(family, SocketType::RAW, SocketFlags::CLOEXEC, Some(protocol));
        Icmp { socket: ns.run(open).unwrap().unwrap(), v6 }
    }

    /// Sends an echo request with `payload` to `to`. Returns the message that an intact reply has; of IPv6 without its
    /// checksum, which is the kernel's to fill in and to verify.
    pub(crate) fn ping(&self, to: impl Into<IpAddr>, ttl: u8, payload: &[u8]) -> Vec<u8> {
        let message = |kind| {
            let mut message = [&[kind, 0, 0, 0, 0x12, 0x34, 0, 1], payload].concat();
            let check = checksum::checksum(&message);
            message[2..4].copy_from_slice(&check.to_be_bytes());
            message
        };
        // What cannot be sent now is sent again.
        match to.into() {
            IpAddr::V4(to) => {
                rustix::net::sockopt::set_ip_ttl(&self.socket, ttl.into()).unwrap();
                self.send(to, &message(8));
                message(0)
            }
            IpAddr::V6(to) => self.ping_on(to, 0, ttl, payload),
        }
    }

    /// The same, to an address on the link of the interface with index `ifindex`.
    pub(crate) fn ping_on(&self, to: Ipv6Addr, ifindex: u32, ttl: u8, payload: &[u8]) -> Vec<u8> {
        let message = |kind| [&[kind, 0, 0, 0, 0x12, 0x34, 0, 1], payload].concat();
        rustix::net::sockopt::set_ipv6_unicast_hops(&self.socket, Some(ttl)).unwrap();
        let to = SocketAddrV6::new(to, 0, 0, ifindex);
        let _ = sendto(&self.socket, &message(128), SendFlags::empty(), &to);
        message(129)
    }

    /// Sends a message of IPv4 as it is.
    pub(crate) fn send(&self, to: Ipv4Addr, message: &[u8]) {
        let _ = sendto(&self.socket, message, SendFlags::empty(), &SocketAddrV4::new(to, 0));
    }

    /// The next message that `wanted` accepts, if one comes in time.
    pub(crate) fn receive(&self, wanted: impl Fn(&Message) -> bool) -> Option<Message> {
        let deadline = Instant::now() + RETRY;
        while let Some(left) = deadline.checked_duration_since(Instant::now()) {
            let timeout = Timespec { tv_sec: 0, tv_nsec: left.subsec_nanos().into() };
            let _ = poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], Some(&timeout));
            let mut packet = vec![0; 1 << 16];
            let received = rustix::net::recvfrom(&self.socket, &mut packet, RecvFlags::DONTWAIT);
            let Ok((n, _, Some(from))) = received else { continue };
            let from = match self.v6 {
                true => SocketAddrV6::try_from(from).map(|from| IpAddr::V6(*from.ip())),
                false => SocketAddrV4::try_from(from).map(|from| IpAddr::V4(*from.ip())),
            };
            // Of IPv4 the header comes first.
            let header = if self.v6 { 0 } else { usize::from(packet[0] & 15) * 4 };
            let mut bytes = packet[header..n].to_vec();
            if self.v6 {
                bytes[2..4].fill(0);
            }
            let message = Message { from: from.unwrap(), kind: (bytes[0], bytes[1]), bytes };
            if wanted(&message) {
                return Some(message);
            }
        }
        None
    }
}
