//! TCP connections with a stream both ways at once. The receiver compares each byte with what was sent, and in the
//! end the length.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::Ordering::Relaxed;

use super::super::flow::{Both, Flow, Flows, Ip};
use super::super::own::{self, Listen, Stream};
use super::super::payload::Seed;
use super::super::topology;
use super::{PATIENCE, timed_out};

const PORT: u16 = 7001;
const CHUNK: usize = 64 << 10;
/// What a stream may have on its way, in bytes: enough to fill the path. With the kernel's default, megabytes queue up
/// in the rings before the endpoints' CPUs get to them, and everybody's latency is that queue.
const SEND_BUFFER: usize = 64 << 10;
/// The last bytes of a stream: how many were before, so that an end too early is seen.
const LENGTH: usize = 8;

fn address(ip: Ip) -> SocketAddr {
    SocketAddr::new(topology::server(ip), PORT)
}

pub(super) fn listen(ip: Ip) -> io::Result<TcpListener> {
    TcpListener::bind(address(ip))
}

/// Takes one connection and exchanges streams on it.
pub(super) fn server(flows: &Flows, listener: &mut dyn Listen, at: End, ip: Ip) -> Result<(), String> {
    let accepted = listener.accept(PATIENCE).map_err(|error| format!("accepting a connection: {error}"))?;
    // A missing connection is reported by the client, which knows why.
    let Some(stream) = accepted else { return Ok(()) };
    exchange(flows, &*stream, (at, ip), ["to client", "to server"])
}

/// Connects and exchanges streams.
pub(super) fn client(flows: &Flows, at: End, ip: Ip) -> Result<(), String> {
    let to = match at {
        End::Server => address(ip),
        End::Router => own::address(ip),
    };
    let stream =
        TcpStream::connect_timeout(&to, PATIENCE).map_err(|error| format!("no connection: {error}"))?;
    exchange(flows, &stream, (at, ip), ["to server", "to client"])
}

/// Where a stream ends.
#[derive(Clone, Copy)]
pub(super) enum End {
    /// Beyond the router.
    Server,
    /// At the router itself.
    Router,
}

impl End {
    /// The traffic that ends there.
    pub(super) fn of(self, flows: &Flows) -> &Both {
        match self {
            End::Server => &flows.tcp,
            End::Router => &flows.own,
        }
    }
}

/// Sends one stream and checks the other, until told to stop and both have ended.
fn exchange(
    flows: &Flows,
    stream: &dyn Stream,
    (at, ip): (End, Ip),
    [out, back]: [&str; 2],
) -> Result<(), String> {
    stream.limit(SEND_BUFFER, PATIENCE).map_err(|error| error.to_string())?;
    let (name, id) = (|direction: &str| format!("stream {direction}"), ip as u64);
    std::thread::scope(|scope| {
        let sender = std::thread::Builder::new().name("demo-tcp-send".into()).spawn_scoped(scope, || {
            let sent = send(flows, stream, Seed::new(out, id));
            sent.map_err(|error| format!("{}: {error}", name(out)))
        });
        let sender = sender.map_err(|error| error.to_string())?;
        let received = receive(&at.of(flows)[ip], stream, Seed::new(back, id))
            .map_err(|error| format!("{}: {error}", name(back)));
        let sent = sender.join().unwrap_or_else(|_| Err(format!("{}: its thread panicked", name(out))));
        received.and(sent)
    })
}

fn send(flows: &Flows, stream: &dyn Stream, seed: Seed) -> Result<(), String> {
    let mut chunk = vec![0; CHUNK];
    let mut sent = 0;
    let write = |data: &[u8]| {
        stream.write_all(data).map_err(|error| match timed_out(&error) {
            true => format!("stood still for {} s", PATIENCE.as_secs()),
            false => error.to_string(),
        })
    };
    while !flows.stopping() {
        seed.fill(sent, &mut chunk);
        write(&chunk)?;
        sent += CHUNK as u64;
    }
    write(&sent.to_be_bytes())?;
    stream.end().map_err(|error| error.to_string())
}

fn receive(flow: &Flow, stream: &dyn Stream, seed: Seed) -> Result<(), String> {
    let mut buffer = vec![0; CHUNK + LENGTH];
    // The last bytes received may be the length: they are kept until more come.
    let (mut verified, mut kept) = (0u64, 0);
    loop {
        let n = match stream.read(&mut buffer[kept..]) {
            Ok(0) => break,
            Ok(n) => kept + n,
            Err(error) if timed_out(&error) => {
                return Err(format!("stood still for {} s after {verified} bytes", PATIENCE.as_secs()));
            }
            Err(error) => return Err(format!("after {verified} bytes: {error}")),
        };
        let content = n.saturating_sub(LENGTH);
        if let Some(at) = seed.difference(verified, &buffer[..content]) {
            return Err(format!("differs at byte {}", verified + at as u64));
        }
        buffer.copy_within(content..n, 0);
        kept = n - content;
        verified += content as u64;
        flow.bytes.fetch_add(content as u64, Relaxed);
    }
    match buffer.first_chunk::<LENGTH>().map(|length| u64::from_be_bytes(*length)) {
        Some(length) if kept == LENGTH && length == verified => {
            flow.payloads.fetch_add(1, Relaxed);
            Ok(())
        }
        Some(length) if kept == LENGTH => Err(format!("ended after {verified} bytes, expected {length}")),
        _ => Err(format!("ended after {} bytes, without its length", verified + kept as u64)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What `receive` says of a stream whose content is `damage`d before its length follows.
    fn received(damage: impl FnOnce(&mut Vec<u8>)) -> (Result<(), String>, Flows) {
        softnet_testkit::raise_loopback();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let receiver = listener.accept().unwrap().0;
        let (flows, seed) = (Flows::new(), Seed::new("x", 1));
        let mut data = vec![0; 200_000];
        seed.fill(0, &mut data);
        data.extend(200_000u64.to_be_bytes());
        damage(&mut data);
        let result = std::thread::scope(|scope| {
            scope.spawn(move || {
                // The receiver may have heard enough already.
                let _ = sender.write_all(&data);
            });
            receive(&flows.tcp[Ip::V4], &receiver, seed)
        });
        (result, flows)
    }

    #[test]
    fn a_stream_arrives_whole_or_is_told() {
        let (result, flows) = received(|_| ());
        assert_eq!(result, Ok(()));
        assert_eq!(
            (flows.tcp[Ip::V4].payloads.load(Relaxed), flows.tcp[Ip::V4].bytes.load(Relaxed)),
            (1, 200_000)
        );

        let (result, flows) = received(|data| data[123_456] ^= 4);
        assert_eq!(result, Err("differs at byte 123456".into()));
        assert_eq!(flows.tcp[Ip::V4].payloads.load(Relaxed), 0);

        assert_eq!(
            received(|data| data.copy_within(123_457.., 123_456)).0,
            Err("differs at byte 123456".into())
        );
        assert_eq!(
            received(|data| data.truncate(5)).0,
            Err("ended after 5 bytes, without its length".into())
        );
        let longer = |data: &mut Vec<u8>| *data.last_mut().unwrap() += 1;
        assert_eq!(received(longer).0, Err("ended after 200000 bytes, expected 200001".into()));
    }
}
