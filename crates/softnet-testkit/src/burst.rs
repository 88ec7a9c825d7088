//! Whole frames that differ from one to the next, many per `sendmmsg`, by AF_PACKET without a qdisc.
//!
//! For a load that is part of another thread's loop: a [`Generator`](super::Generator) has a thread of
//! its own, and sends the same frames over and over. One thread uses it. Frames that the interface
//! refuses are lost, as by a wire that is full.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use softnet_dev::netlink::Netlink;

use super::generator::packet_socket;

/// See the module.
pub struct FrameBurst {
    socket: OwnedFd,
    /// Room for each frame of a burst, one behind the other.
    bytes: Vec<u8>,
    len: usize,
}

impl FrameBurst {
    /// Of up to `most` frames of `len` bytes, by the interface called `name` of the calling thread's
    /// namespace.
    ///
    /// # Errors
    /// ENODEV if there is no such interface. Needs CAP_NET_RAW.
    pub fn open(name: &str, len: usize, most: usize) -> io::Result<Self> {
        let socket = packet_socket(Netlink::new()?.existing_link(name)?.index)?;
        Ok(FrameBurst { socket, bytes: vec![0; len * most], len })
    }

    /// Has `write` fill `n` frames, as far as there is room for so many, and sends them. Returns how many
    /// the interface took.
    ///
    /// # Errors
    /// ENETDOWN, ENXIO if the interface is down or gone.
    pub fn send(&mut self, n: usize, write: impl FnMut(&mut [u8])) -> io::Result<usize> {
        let frames = self.bytes.chunks_exact_mut(self.len).take(n);
        frames.for_each(write);
        let frames = self.bytes.chunks_exact(self.len).take(n);
        let mut vectors: Vec<libc::iovec> = frames
            .map(|frame| libc::iovec { iov_base: frame.as_ptr().cast_mut().cast(), iov_len: frame.len() })
            .collect();
        let mut messages: Vec<libc::mmsghdr> = vectors
            .iter_mut()
            .map(|vector| {
                // SAFETY: plain numbers and pointers, for which zero is a value.
                let mut message: libc::mmsghdr = unsafe { std::mem::zeroed() };
                message.msg_hdr.msg_iov = vector;
                message.msg_hdr.msg_iovlen = 1;
                message
            })
            .collect();
        let (mut at, mut taken) = (0, 0);
        while at < messages.len() {
            let left = &mut messages[at..];
            // SAFETY: so many messages within a live list, each pointing to a live I/O vector, and that to
            // live bytes of `self`, none of which moves meanwhile. Sending reads them only, but for the
            // lengths in the messages.
            let sent = unsafe {
                libc::sendmmsg(
                    self.socket.as_raw_fd(),
                    left.as_mut_ptr(),
                    left.len() as libc::c_uint,
                    libc::MSG_DONTWAIT as _,
                )
            };
            match usize::try_from(sent) {
                Ok(sent) => (at, taken) = (at + sent, taken + sent),
                Err(_) => {
                    let error = io::Error::last_os_error();
                    match error.raw_os_error() {
                        // The first of them was refused.
                        Some(libc::ENOBUFS | libc::EAGAIN | libc::EBUSY) => at += 1,
                        Some(libc::EINTR) => {}
                        _ => return Err(error),
                    }
                }
            }
        }
        Ok(taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{PacketSocket, net_allowed};
    use softnet_dev::netns::NetNs;

    #[test]
    fn each_frame_is_as_it_was_written() {
        if !net_allowed() {
            return;
        }
        let ns = NetNs::new().unwrap();
        let (mut burst, socket) = ns
            .run(|| {
                let mut netlink = Netlink::new().unwrap();
                netlink.add_veth("left", "right", (1, 1), None).unwrap();
                ["left", "right"].iter().for_each(|end| netlink.set_up(end).unwrap());
                ["left", "right"].iter().for_each(|end| netlink.wait_running(end).unwrap());
                (FrameBurst::open("left", 60, 8).unwrap(), PacketSocket::open("right").unwrap())
            })
            .unwrap();
        let mut number = 0;
        let sent = burst.send(9, |frame| {
            // An ethertype that is free for private use.
            frame[..14].copy_from_slice(&[2, 0, 0, 0, 9, 9, 2, 0, 0, 0, 9, 8, 0x88, 0xb5]);
            number += 1;
            frame[14] = number;
        });
        assert_eq!((sent.unwrap(), number), (8, 8), "there is room for eight");
        let (mut seen, mut buffer) = (Vec::new(), [0; 2048]);
        let give_up = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while seen.len() < 8 {
            assert!(std::time::Instant::now() < give_up);
            match socket.recv(&mut buffer).unwrap() {
                // The kernel's own frames come, too.
                Some(_) if buffer[12..14] == [0x88, 0xb5] => seen.push(buffer[14]),
                Some(_) => {}
                None => std::thread::sleep(std::time::Duration::from_millis(1)),
            }
        }
        assert_eq!(seen, [1, 2, 3, 4, 5, 6, 7, 8]);
    }
}
