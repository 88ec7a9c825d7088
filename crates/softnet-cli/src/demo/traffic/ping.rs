//! ICMP echo (RFC 792) from a raw socket: 1 to 1400 bytes, checked byte by byte when they come back.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, ipproto, recv, sendto, socket_with,
};
use softnet_core::ip::checksum;

use super::super::flow::Flows;
use super::super::payload::Seed;
use super::super::topology::SERVER;
use super::PATIENCE;

const MAX_PAYLOAD: usize = 1400;
const HEADER: usize = 8;
const ECHO_REPLY: u8 = 0;
const UNREACHABLE: u8 = 3;
const ECHO: u8 = 8;
const TIME_EXCEEDED: u8 = 11;

/// From one ping to the next.
const INTERVAL: Duration = Duration::from_millis(10);
/// How long a reply may take before the ping is sent again.
const RETRY: Duration = Duration::from_millis(500);

/// Pings until told to stop.
pub(super) fn client(flows: &Flows) -> Result<(), String> {
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::INET, SocketType::RAW, flags, Some(ipproto::ICMP))
        .map_err(|error| format!("opening a raw ICMP socket: {error} (needs CAP_NET_RAW: run as root)"))?;
    // The socket sees every ICMP message of its namespace; the process id tells ours apart.
    let id = std::process::id() as u16;
    for number in 0.. {
        if flows.stopping() {
            break;
        }
        let request = echo(id, number);
        let sent = Instant::now();
        let mut said = None;
        loop {
            // Unreachable for now: that is what retries are for.
            let _ = sendto(&socket, &request, SendFlags::empty(), &SocketAddrV4::new(SERVER, 0));
            if reply(&socket, &request, &mut said)? {
                break;
            }
            if sent.elapsed() > PATIENCE {
                let said = said.map(|error| format!(" ({error})")).unwrap_or_default();
                return Err(format!("no reply to ping {number} within {} s{said}", PATIENCE.as_secs()));
            }
            flows.ping.retries.fetch_add(1, Relaxed);
        }
        flows.ping.verified(2 * (request.len() - HEADER), sent.elapsed());
        std::thread::sleep(INTERVAL);
    }
    Ok(())
}

/// Echo request `number`.
fn echo(id: u16, number: u64) -> Vec<u8> {
    let seed = Seed::new("ping", number);
    let mut message = vec![0; HEADER + seed.number(1, MAX_PAYLOAD)];
    message[0] = ECHO;
    message[4..6].copy_from_slice(&id.to_be_bytes());
    message[6..8].copy_from_slice(&(number as u16).to_be_bytes());
    seed.fill(0, &mut message[HEADER..]);
    let sum = checksum::checksum(&message);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    message
}

/// Waits for the reply to `request`. False if it did not come in time; `said` is what a router said instead.
fn reply(socket: &OwnedFd, request: &[u8], said: &mut Option<String>) -> Result<bool, String> {
    let deadline = Instant::now() + RETRY;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec { tv_sec: 0, tv_nsec: left.subsec_nanos().into() };
        // A poll that was interrupted is as one that found nothing: the deadline decides.
        let _ = poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&timeout));
        let mut packet = [0; 2048];
        let Ok((n, _)) = recv(socket, &mut packet, RecvFlags::DONTWAIT) else {
            if deadline <= Instant::now() {
                return Ok(false);
            }
            continue;
        };
        let Some((from, message)) = icmp(&packet[..n.min(2048)]) else { continue };
        match message {
            [ECHO_REPLY, 0, _, _, rest @ ..] if rest.get(..4) == request.get(4..8) => {
                let number = u16::from_be_bytes([request[6], request[7]]);
                if from != SERVER {
                    return Err(format!("reply {number} came from {from}"));
                }
                if rest[4..] == request[HEADER..] {
                    return Ok(true);
                }
                let at = rest[4..].iter().zip(&request[HEADER..]).position(|(a, b)| a != b);
                let (had, expected) = (rest.len() - 4, request.len() - HEADER);
                return Err(match at {
                    Some(at) => format!("reply {number} differs at byte {at} of its payload"),
                    None => format!("reply {number} has {had} bytes of payload, expected {expected}"),
                });
            }
            [UNREACHABLE, code, ..] => *said = Some(format!("{from} says: unreachable, code {code}")),
            [TIME_EXCEEDED, ..] => *said = Some(format!("{from} says: TTL exceeded")),
            _ => {}
        }
    }
}

/// The sender and the ICMP message of an IPv4 packet.
fn icmp(packet: &[u8]) -> Option<(Ipv4Addr, &[u8])> {
    let header = usize::from(packet.first()? & 15) * 4;
    let source: [u8; 4] = packet.get(12..16)?.try_into().ok()?;
    Some((source.into(), packet.get(header..)?))
}
