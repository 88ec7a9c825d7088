//! What neighbours say of themselves to all, heard beside the kernel.
//!
//! A driver that takes only some of an interface's frames leaves to the kernel what is for all on the link: gratuitous ARP
//! (RFC 5227 section 3) and unsolicited neighbour advertisements (RFC 4861 section 7.2.6) among it, by which a neighbour
//! that moved says where it is. An XDP program can't give a frame to two receivers. So a packet socket copies just these to
//! softnet on their way into the kernel, which hears them as ever.
//!
//! One thread reads. Invariant: no more waits than the socket's buffer holds; what is lost beyond that is counted.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use softnet_core::ip::v6::addr::{ALL_NODES, multicast_mac};

use crate::packet::{FilterInsn, PacketSocket};
use crate::sys_error::SysResult;

// Classic BPF, as in linux/bpf_common.h: loads of a byte, half-word, word of the frame into A; jumps; return.
const LDB: u16 = 0x30;
const LDH: u16 = 0x28;
const LDW: u16 = 0x20;
const JEQ: u16 = 0x15;
const JSET: u16 = 0x45;
const RET: u16 = 0x06;
/// Where the frame's metadata is (`SKF_AD_OFF`): its type, whether a VLAN tag was taken off, and which.
const META: u32 = 0xffff_f000;
const PKTTYPE: u32 = META + 4;
const VLAN_TCI: u32 = META + 44;
const VLAN_PRESENT: u32 = META + 48;
/// `PACKET_OTHERHOST`.
const OTHERHOST: u32 = 3;
/// The VLAN of a tag; 0 is none, only a priority (IEEE 802.1Q section 6.9).
const VID: u32 = 0x0fff;

/// ARP that has a sender, and neighbour advertisements, of no VLAN. Jumps count from the instruction behind.
const FILTER: [FilterInsn; 18] = [
    (LDW, 0, 0, PKTTYPE),
    (JEQ, 15, 0, OTHERHOST),
    (LDW, 0, 0, VLAN_PRESENT),
    (JEQ, 2, 0, 0),
    (LDW, 0, 0, VLAN_TCI),
    (JSET, 11, 0, VID),
    (LDH, 0, 0, 12),
    (JEQ, 0, 3, 0x0806),
    // The sender's IP address; 0 in a probe.
    (LDW, 0, 0, 28),
    (JEQ, 7, 0, 0),
    (RET, 0, 0, u32::MAX),
    (JEQ, 0, 5, 0x86dd),
    (LDB, 0, 0, 20),
    (JEQ, 0, 3, 58),
    (LDB, 0, 0, 54),
    (JEQ, 0, 1, 136),
    (RET, 0, 0, u32::MAX),
    (RET, 0, 0, 0),
];

/// The copies of one interface's neighbour messages.
#[derive(Debug)]
pub struct Snoop {
    socket: PacketSocket,
    heard: AtomicU64,
    lost: AtomicU64,
}

impl Snoop {
    /// Of the interface with index `ifindex` of the calling thread's network namespace. Neighbour
    /// advertisements to all nodes come whether the kernel speaks IPv6 on the interface or not:
    /// softnet may at any time.
    ///
    /// # Errors
    /// Needs CAP_NET_RAW.
    pub fn open(ifindex: u32) -> SysResult<Self> {
        let socket = PacketSocket::open(ifindex, &FILTER)?;
        socket.join(ifindex, multicast_mac(ALL_NODES))?;
        Ok(Snoop { socket, heard: AtomicU64::new(0), lost: AtomicU64::new(0) })
    }

    /// What to wait for (readable).
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Takes the next frame into `buffer`; `None` if none waits. One that does not fit says nothing of a neighbour.
    pub fn next<'a>(&self, buffer: &'a mut [u8]) -> Option<&'a [u8]> {
        // An interface that was set down is told of once, as an error.
        let len = match self.socket.recv(buffer) {
            Err(_) => self.socket.recv(buffer).ok()?,
            Ok(len) => len,
        }?;
        self.heard.fetch_add(1, Ordering::Relaxed);
        Some(buffer.get(..len).unwrap_or_default())
    }

    /// Closes the socket, for which the kernel waits 10 to 20 ms. Its descriptor is one of what `quiet` is from
    /// then on, so that a thread which polls it hears nothing.
    pub(crate) fn close(&self, quiet: BorrowedFd<'_>) {
        self.lost();
        // SAFETY: both descriptors are open; the number of the second stays that of `socket`.
        unsafe { libc::dup3(quiet.as_raw_fd(), self.socket.as_fd().as_raw_fd(), libc::O_CLOEXEC) };
    }

    /// Frames that were read.
    pub fn heard(&self) -> u64 {
        self.heard.load(Ordering::Relaxed)
    }

    /// Frames that found no room.
    pub fn lost(&self) -> u64 {
        let lost = self.socket.lost();
        self.lost.fetch_add(lost, Ordering::Relaxed) + lost
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;
    use crate::netlink::Netlink;
    use crate::netns::NetNs;
    use softnet_testkit::net_allowed;

    const PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
    const ALL: [u8; 6] = [0xff; 6];
    const NODES: [u8; 6] = [0x33, 0x33, 0, 0, 0, 1];
    const STRANGER: [u8; 6] = [2, 9, 9, 9, 9, 9];

    /// A frame of this type to `dst`; `at` has other bytes.
    fn frame(dst: [u8; 6], ethertype: u16, at: &[(usize, u8)]) -> Vec<u8> {
        let mut frame = vec![0; 86];
        frame[..6].copy_from_slice(&dst);
        frame[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 7]);
        frame[12..14].copy_from_slice(&ethertype.to_be_bytes());
        at.iter().for_each(|(at, value)| frame[*at] = *value);
        frame
    }

    #[test]
    fn hears_what_neighbours_say_and_nothing_else() {
        if !net_allowed() {
            return;
        }
        let (here, there) = (NetNs::new().unwrap(), NetNs::new().unwrap());
        let (snoop, mac) = here
            .run(|| {
                let mut netlink = Netlink::new().unwrap();
                netlink.add_veth("a", "b", (1, 1), Some(&there)).unwrap();
                netlink.set_up("a").unwrap();
                let link = netlink.existing_link("a").unwrap();
                (Snoop::open(link.index).unwrap(), link.mac)
            })
            .unwrap();
        let peer = there
            .run(|| {
                let mut netlink = Netlink::new().unwrap();
                netlink.set_up("b").unwrap();
                netlink.wait_running("b").unwrap();
                PacketSocket::open(netlink.existing_link("b").unwrap().index, &[]).unwrap()
            })
            .unwrap();
        here.run(|| Netlink::new().unwrap().wait_running("a").unwrap()).unwrap();
        let sender = [(28, 10), (31, 7)];
        let advertisement = [(20, 58), (54, 136)];
        let tagged = |tci: u8, inner: &[u8]| {
            let mut frame = inner.to_vec();
            frame.splice(12..12, [0x81, 0x00, 0xe0, tci]);
            frame
        };
        let said = frame(ALL, 0x0806, &sender);
        let last = frame(mac, 0x0806, &[(28, 99)]);
        for frame in [
            &said,
            &frame(ALL, 0x0806, &[]),
            &frame(STRANGER, 0x0806, &sender),
            &tagged(5, &said),
            &tagged(0, &said),
            &frame(ALL, 0x0800, &sender),
            &frame(NODES, 0x86dd, &advertisement),
            &frame(NODES, 0x86dd, &[(20, 58), (54, 134)]),
            &frame(NODES, 0x86dd, &[(20, 17), (54, 136)]),
            &frame(NODES, 0x86dd, &advertisement)[..54].to_vec(),
            &last,
        ] {
            peer.send(frame).unwrap();
        }
        let (mut buffer, mut heard) = ([0; 1500], Vec::new());
        while heard.last() != Some(&last) {
            poll(&mut [PollFd::from_borrowed_fd(snoop.fd(), PollFlags::IN)], None).unwrap();
            // (The kernel has things of its own to say at the start.)
            let is_ours = |frame: &&[u8]| frame[6..12] == [2, 0, 0, 0, 0, 7];
            heard.extend(snoop.next(&mut buffer).filter(is_ours).map(<[u8]>::to_vec));
        }
        let priority = frame(ALL, 0x0806, &sender);
        assert_eq!(heard, [said, priority, frame(NODES, 0x86dd, &advertisement), last]);
        assert_eq!(snoop.lost(), 0);
        // Set down and up again, it hears as before.
        here.run(|| {
            let mut netlink = Netlink::new().unwrap();
            netlink.set_down("a").unwrap();
            netlink.set_up("a").unwrap();
        })
        .unwrap();
        there.run(|| Netlink::new().unwrap().wait_running("b").unwrap()).unwrap();
        let again = frame(ALL, 0x0806, &[(28, 98)]);
        while snoop.next(&mut buffer) != Some(&again) {
            // The first may come before the link is up again.
            peer.send(&again).unwrap();
            poll(&mut [PollFd::from_borrowed_fd(snoop.fd(), PollFlags::IN)], Some(&PAUSE)).unwrap();
        }
    }
}
