//! ICMP echo (RFC 792, RFC 4443) from a raw socket: 1 to 1400 bytes, checked byte by byte when they come back.

use std::net::{IpAddr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrAny, SocketFlags, SocketType, ipproto, recvfrom, sendto,
    socket_with,
};
use softnet_core::ip::checksum;

use super::super::flow::{Flows, Ip};
use super::super::payload::Seed;
use super::super::topology::server;
use super::PATIENCE;

const MAX_PAYLOAD: usize = 1400;
const HEADER: usize = 8;

/// The types of messages that matter here: echo request, its reply, unreachable, time exceeded.
const fn types(ip: Ip) -> [u8; 4] {
    match ip {
        Ip::V4 => [8, 0, 3, 11],
        Ip::V6 => [128, 129, 1, 3],
    }
}

/// From one ping to the next.
const INTERVAL: Duration = Duration::from_millis(10);
/// How long a reply may take before the ping is sent again.
const RETRY: Duration = Duration::from_millis(500);

/// Pings until told to stop.
pub(super) fn client(flows: &Flows, ip: Ip) -> Result<(), String> {
    let flags = SocketFlags::CLOEXEC;
    let (family, protocol) = match ip {
        Ip::V4 => (AddressFamily::INET, ipproto::ICMP),
        Ip::V6 => (AddressFamily::INET6, ipproto::ICMPV6),
    };
    let socket = socket_with(family, SocketType::RAW, flags, Some(protocol))
        .map_err(|error| format!("opening a raw ICMP socket: {error} (needs CAP_NET_RAW: run as root)"))?;
    // The socket sees every ICMP message of its namespace; the process id tells ours apart.
    let id = std::process::id() as u16;
    for number in 0.. {
        if flows.stopping() {
            break;
        }
        let request = echo(ip, id, number);
        let sent = Instant::now();
        let mut said = None;
        loop {
            // Unreachable for now: that is what retries are for.
            let _ = sendto(&socket, &request, SendFlags::empty(), &SocketAddr::new(server(ip), 0));
            if reply(ip, &socket, &request, &mut said)? {
                break;
            }
            if sent.elapsed() > PATIENCE {
                let said = said.map(|error| format!(" ({error})")).unwrap_or_default();
                return Err(format!("no reply to ping {number} within {} s{said}", PATIENCE.as_secs()));
            }
            flows.ping[ip].retries.fetch_add(1, Relaxed);
        }
        flows.ping[ip].verified(2 * (request.len() - HEADER), sent.elapsed());
        std::thread::sleep(INTERVAL);
    }
    Ok(())
}

/// Echo request `number`. The checksum of IPv6, which covers addresses, is the kernel's to fill in and to verify.
fn echo(ip: Ip, id: u16, number: u64) -> Vec<u8> {
    let seed = Seed::new("ping", number);
    let mut message = vec![0; HEADER + seed.number(1, MAX_PAYLOAD)];
    message[0] = types(ip)[0];
    message[4..6].copy_from_slice(&id.to_be_bytes());
    message[6..8].copy_from_slice(&(number as u16).to_be_bytes());
    seed.fill(0, &mut message[HEADER..]);
    if ip == Ip::V4 {
        let sum = checksum::checksum(&message);
        message[2..4].copy_from_slice(&sum.to_be_bytes());
    }
    message
}

/// Waits for the reply to `request`. False if it did not come in time; `said` is what a router said instead.
fn reply(ip: Ip, socket: &OwnedFd, request: &[u8], said: &mut Option<String>) -> Result<bool, String> {
    let [_, echo_reply, unreachable, time_exceeded] = types(ip);
    let deadline = Instant::now() + RETRY;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec { tv_sec: 0, tv_nsec: left.subsec_nanos().into() };
        // A poll that was interrupted is as one that found nothing: the deadline decides.
        let _ = poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&timeout));
        let mut packet = [0; 2048];
        let Ok((n, _, from)) = recvfrom(socket, &mut packet, RecvFlags::DONTWAIT) else {
            if deadline <= Instant::now() {
                return Ok(false);
            }
            continue;
        };
        let (Some(from), Some(message)) = (from.and_then(address), icmp(ip, &packet[..n.min(2048)])) else {
            continue;
        };
        match message {
            [kind, 0, _, _, rest @ ..] if *kind == echo_reply && rest.get(..4) == request.get(4..8) => {
                let number = u16::from_be_bytes([request[6], request[7]]);
                if from != server(ip) {
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
            [kind, code, ..] if *kind == unreachable => {
                *said = Some(format!("{from} says: unreachable, code {code}"));
            }
            [kind, ..] if *kind == time_exceeded => *said = Some(format!("{from} says: TTL exceeded")),
            _ => {}
        }
    }
}

/// The ICMP message of what the socket gives: of IPv4 its header comes first.
fn icmp(ip: Ip, packet: &[u8]) -> Option<&[u8]> {
    match ip {
        Ip::V4 => packet.get(usize::from(packet.first()? & 15) * 4..),
        Ip::V6 => Some(packet),
    }
}

fn address(from: SocketAddrAny) -> Option<IpAddr> {
    let v4 = || SocketAddrV4::try_from(from.clone()).ok().map(|from| IpAddr::V4(*from.ip()));
    v4().or_else(|| SocketAddrV6::try_from(from.clone()).ok().map(|from| IpAddr::V6(*from.ip())))
}
