//! Whether what a forwarder sends is right: some hundred numbered packets, caught behind it by a packet socket and
//! compared byte for byte. Called before anything is timed.

use std::num::NonZeroU32;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{AddressFamily, Protocol, RecvFlags, SocketFlags, SocketType, recv, socket_with, sockopt};
use softnet_core::ip::checksum::checksum;
use softnet_testkit::UdpFrame;

use super::rig::{PORT, Rig, Way, destination};
use crate::bench::text;

/// Different packets, each of which must arrive.
const PACKETS: u16 = 256;
/// Their port: the sink takes no notice of it, so that they come to the socket.
const CHECK_PORT: u16 = PORT + 1;
/// Packets a second: so few that there is no reason to drop any.
const RATE: u64 = 5_000;
const TIMEOUT: Duration = Duration::from_secs(5);
const ETH_P_IP: u16 = 0x0800;
const TTL: usize = 22;
const SRC_PORT: usize = 34;

/// Sends each packet at least once through the forwarder.
///
/// # Errors
/// The first that came out otherwise than it should, or how many are missing.
pub(super) fn check(rig: &Rig) -> Result<(), String> {
    let socket = rig.testbed.sink.run(packet_socket).map_err(text)?.map_err(text)?;
    let frames: Vec<Vec<u8>> = (0..PACKETS).map(|number| frame(rig, number)).collect();
    let expected: Vec<Vec<u8>> = frames.iter().map(|frame| forwarded(rig, frame)).collect();
    let mut seen = vec![0u64; frames.len()];
    let deadline = Instant::now() + TIMEOUT;
    let generator = rig.generate(frames, Some(RATE))?;
    while generator.report().sent < u64::from(PACKETS) && Instant::now() < deadline {
        catch(&socket, &expected, &mut seen)?;
    }
    let sent = generator.stop().map_err(text)?.sent;
    while seen.iter().sum::<u64>() < sent && Instant::now() < deadline {
        catch(&socket, &expected, &mut seen)?;
    }
    let arrived: u64 = seen.iter().sum();
    let missing = seen.iter().filter(|times| **times == 0).count();
    if arrived != sent || missing > 0 {
        return Err(format!("{arrived} of {sent} packets arrived, {missing} of {PACKETS} never"));
    }
    Ok(())
}

/// Packet `number`, told apart by its source port.
fn frame(rig: &Rig, number: u16) -> Vec<u8> {
    let incoming = &rig.testbed.incoming;
    UdpFrame {
        src_mac: incoming.near_mac,
        dst_mac: incoming.far_mac,
        src: incoming.near_ip,
        dst: destination(number),
        src_port: number,
        dst_port: CHECK_PORT,
        len: super::SIZE,
    }
    .build()
}

/// What must become of `frame`.
fn forwarded(rig: &Rig, frame: &[u8]) -> Vec<u8> {
    let mut out = frame.to_vec();
    if rig.way == Way::Plain {
        return out;
    }
    let outgoing = &rig.testbed.outgoing;
    out[..6].copy_from_slice(&outgoing.near_mac);
    out[6..12].copy_from_slice(&outgoing.far_mac);
    out[TTL] -= 1;
    // Computed afresh, not by difference.
    out[24..26].fill(0);
    let sum = checksum(&out[14..34]);
    out[24..26].copy_from_slice(&sum.to_be_bytes());
    out
}

/// Takes what has arrived, else waits a little.
fn catch(socket: &OwnedFd, expected: &[Vec<u8>], seen: &mut [u64]) -> Result<(), String> {
    let mut buffer = [0; 2048];
    loop {
        let packet = match recv(socket, &mut buffer, RecvFlags::DONTWAIT) {
            Ok((length, _)) => &buffer[..length],
            Err(Errno::AGAIN) => {
                std::thread::sleep(Duration::from_millis(1));
                return Ok(());
            }
            Err(Errno::INTR) => continue,
            Err(errno) => return Err(format!("receive from a packet socket: {errno}")),
        };
        let number = packet.get(SRC_PORT..SRC_PORT + 2).map(|b| usize::from(b[0]) << 8 | usize::from(b[1]));
        let wanted = number.and_then(|number| expected.get(number));
        match number.zip(wanted) {
            Some((number, wanted)) if wanted == packet => seen[number] += 1,
            _ => return Err(format!("{packet:02x?} came out instead of {wanted:02x?}")),
        }
    }
}

/// Receives all IPv4 frames of the calling thread's namespace.
fn packet_socket() -> rustix::io::Result<OwnedFd> {
    let protocol = NonZeroU32::new(u32::from(ETH_P_IP.to_be())).map(Protocol::from_raw);
    let socket = socket_with(AddressFamily::PACKET, SocketType::RAW, SocketFlags::CLOEXEC, protocol)?;
    // So that a reader that is late loses nothing.
    sockopt::set_socket_recv_buffer_size_force(&socket, 4 << 20)?;
    Ok(socket)
}
