//! Requests over UDP: each is sent again until its answer comes, and that is counted.

use std::fmt::Display;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use super::super::flow::Flow;
use super::{PATIENCE, timed_out};

/// How long a client waits before it asks again.
const RETRY: Duration = Duration::from_millis(200);
/// Longest answer of the demo's servers.
const ROOM: usize = 2048;

/// A socket that asks `server`.
pub(super) fn connect(server: SocketAddr) -> io::Result<UdpSocket> {
    let any = match server {
        SocketAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        SocketAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    let socket = UdpSocket::bind((any, 0))?;
    socket.connect(server)?;
    Ok(socket)
}

/// Sends `request`, which is called `name`, until `answer` finds its answer in what comes; what is another's is `None` to it.
///
/// # Errors
/// An answer is wrong; or none came.
pub(super) fn ask<T>(
    flow: &Flow,
    socket: &UdpSocket,
    request: &[u8],
    name: impl Display,
    answer: impl Fn(&[u8]) -> Result<Option<T>, String>,
) -> Result<T, String> {
    let asked = Instant::now();
    loop {
        // Refused or unreachable for now: that is what retries are for.
        let _ = socket.send(request);
        if let Some(answered) = receive(socket, &answer)? {
            return Ok(answered);
        }
        if asked.elapsed() > PATIENCE {
            return Err(format!("no response to {name} within {} s", PATIENCE.as_secs()));
        }
        flow.retries.fetch_add(1, Relaxed);
    }
}

/// Waits for what `answer` takes for one. `None` if it did not come in time.
fn receive<T>(
    socket: &UdpSocket,
    answer: impl Fn(&[u8]) -> Result<Option<T>, String>,
) -> Result<Option<T>, String> {
    let deadline = Instant::now() + RETRY;
    let mut message = [0; ROOM];
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(None);
        }
        socket.set_read_timeout(Some(left)).map_err(|error| error.to_string())?;
        match socket.recv(&mut message) {
            // An earlier one is the answer to a request that was sent twice.
            Ok(n) => {
                if let Some(answered) = answer(&message[..n])? {
                    return Ok(Some(answered));
                }
            }
            Err(error) if timed_out(&error) => return Ok(None),
            // An ICMP error about an earlier request: not so fast with the next.
            Err(_) => std::thread::sleep(left),
        }
    }
}
