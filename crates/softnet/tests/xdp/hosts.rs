//! What runs on the hosts: ordinary kernel sockets.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream, UdpSocket};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, ipproto, recv, sendto};
use softnet_core::ip::checksum;
use softnet_dev::netns::NetNs;

const PORT: u16 = 7;
/// How long one answer may take before the question is asked again.
const RETRY: Duration = Duration::from_millis(200);
/// How long a stream may stand still.
const STILL: Duration = Duration::from_secs(30);

/// A host that sends every UDP datagram back.
pub(crate) struct Echo {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Echo {
    pub(crate) fn start(ns: &NetNs) -> Echo {
        let socket = ns.run(|| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, PORT)).unwrap()).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let serve = {
            let stop = stop.clone();
            move || {
                let mut buffer = [0; 2048];
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
pub(crate) fn ask(to: Ipv4Addr, payload: &[u8]) -> bool {
    let Ok(socket) = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)) else { return false };
    socket.set_read_timeout(Some(RETRY)).unwrap();
    let mut buffer = [0; 2048];
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
pub(crate) fn tcp(client: &NetNs, server: &NetNs, to: Ipv4Addr, len: usize) {
    let listener = server.run(|| TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap()).unwrap();
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

/// A raw ICMP socket: sees every ICMP message of its namespace.
pub(crate) struct Icmp(OwnedFd);

/// An ICMP message: who sent it, type, code, and all of it.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) from: Ipv4Addr,
    pub(crate) kind: (u8, u8),
    pub(crate) bytes: Vec<u8>,
}

impl Icmp {
    pub(crate) fn new(ns: &NetNs) -> Icmp {
        let open = || {
            rustix::net::socket_with(
                AddressFamily::INET,
                SocketType::RAW,
                SocketFlags::CLOEXEC,
                Some(ipproto::ICMP),
            )
        };
        Icmp(ns.run(open).unwrap().unwrap())
    }

    /// Sends an echo request with `payload` to `to`. Returns the message that an intact reply has.
    pub(crate) fn ping(&self, to: Ipv4Addr, ttl: u8, payload: &[u8]) -> Vec<u8> {
        rustix::net::sockopt::set_ip_ttl(&self.0, ttl.into()).unwrap();
        let message = |kind| {
            let mut message = [&[kind, 0, 0, 0, 0x12, 0x34, 0, 1], payload].concat();
            let check = checksum::checksum(&message);
            message[2..4].copy_from_slice(&check.to_be_bytes());
            message
        };
        // What cannot be sent now is sent again.
        let _ = sendto(&self.0, &message(8), SendFlags::empty(), &SocketAddrV4::new(to, 0));
        message(0)
    }

    /// The next message that `wanted` accepts, if one comes in time.
    pub(crate) fn receive(&self, wanted: impl Fn(&Message) -> bool) -> Option<Message> {
        let deadline = Instant::now() + RETRY;
        while let Some(left) = deadline.checked_duration_since(Instant::now()) {
            let timeout = Timespec { tv_sec: 0, tv_nsec: left.subsec_nanos().into() };
            let _ = poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&timeout));
            let mut packet = vec![0; 1 << 16];
            let Ok((n, _)) = recv(&self.0, &mut packet, RecvFlags::DONTWAIT) else { continue };
            let header = usize::from(packet[0] & 15) * 4;
            let bytes = packet[header..n].to_vec();
            let from = Ipv4Addr::new(packet[12], packet[13], packet[14], packet[15]);
            let message = Message { from, kind: (bytes[0], bytes[1]), bytes };
            if wanted(&message) {
                return Some(message);
            }
        }
        None
    }
}
