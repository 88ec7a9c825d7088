//! Idle connections of the kernel's that a process keeps without a descriptor for each.
//!
//! Their descriptors are in a message that waits in a pair of UNIX sockets, and closed meanwhile: a process
//! whose limit of open files it may not raise still has as many connections as a measurement wants. (Without
//! CAP_SYS_ADMIN and CAP_SYS_RESOURCE the kernel lets no more be in flight than that limit: ETOOMANYREFS.)
//! Invariant: streams come out in the order in which they went in, and dropping it closes them.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::TcpStream;
use std::os::fd::{AsFd, OwnedFd};

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};

/// Descriptors that a message has at the most (`SCM_MAX_FD`).
pub(super) const MOST: usize = 253;

/// See the module.
pub(super) struct Parked {
    // What is in flight lives as long as both ends.
    _tx: OwnedFd,
    rx: OwnedFd,
}

impl Parked {
    /// Up to [`MOST`] streams.
    pub(super) fn new(streams: &[TcpStream]) -> io::Result<Self> {
        let (tx, rx) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        let fds: Vec<_> = streams.iter().map(AsFd::as_fd).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !control.push(SendAncillaryMessage::ScmRights(&fds)) {
            return Err(io::Error::other(format!("{} streams, {MOST} at the most", streams.len())));
        }
        sendmsg(&tx, &[IoSlice::new(&[0])], &mut control, SendFlags::empty())?;
        Ok(Parked { _tx: tx, rx })
    }

    /// Opens a descriptor for each again.
    pub(super) fn unpark(self) -> io::Result<Vec<TcpStream>> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        recvmsg(&self.rx, &mut [IoSliceMut::new(&mut [0])], &mut control, RecvFlags::CMSG_CLOEXEC)?;
        let streams = control.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(fds) => Some(fds.map(TcpStream::from)),
            _ => None,
        });
        Ok(streams.flatten().collect())
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{Ipv4Addr, TcpListener};

    use super::*;

    #[test]
    fn streams_come_out_as_they_went_in_and_end_with_it() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let at = listener.local_addr().unwrap();
        let (own, mut peers): (Vec<_>, Vec<_>) =
            (0..20).map(|_| (TcpStream::connect(at).unwrap(), listener.accept().unwrap().0)).unzip();
        let parked = Parked::new(&own).unwrap();
        drop(own);
        for (mut stream, peer) in parked.unpark().unwrap().into_iter().zip(&peers) {
            let mut byte = [0];
            let mut peer = peer;
            peer.write_all(b"x").unwrap();
            stream.read_exact(&mut byte).unwrap();
            assert_eq!(stream.peer_addr().unwrap(), peer.local_addr().unwrap());
            drop(Parked::new(&[stream]).unwrap());
        }
        assert!(peers.iter_mut().all(|peer| peer.read(&mut [0]).unwrap() == 0));
    }
}
