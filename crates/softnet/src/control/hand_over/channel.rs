//! The connection between the two processes: messages of a kind, with bytes, and descriptors.
//!
//! Blocking, with a time-out for each call, and one for several together. Used by one thread at a
//! time.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};

/// Bytes of the longest message: the frames of the largest region, and as much again.
const MAX_LEN: usize = 8 << 20;

/// Descriptors that go together; the kernel takes 253.
const AT_ONCE: usize = 64;

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    Stop = 1,
    Stopped,
    Refused,
    Take,
    Yours,
    Done,
    Connections,
}

const KINDS: [Kind; 7] = {
    use Kind::*;
    [Stop, Stopped, Refused, Take, Yours, Done, Connections]
};

/// One end of the connection.
#[derive(Debug)]
pub(crate) struct Channel {
    stream: UnixStream,
    /// How long a message that is sent may wait for room.
    patience: Duration,
    /// When messages must have been sent and received, whatever patience there is.
    deadline: Option<Instant>,
}

/// Bytes that are written at once: so few that a write waits for room no more than once.
const PART: usize = 16 << 10;

/// Until then; an error of kind `WouldBlock` if that is past.
fn left(until: Instant) -> io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(left) }
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

impl Channel {
    /// By `stream`. What is sent may wait for so long.
    pub(super) fn new(stream: UnixStream, patience: Duration) -> io::Result<Self> {
        stream.set_nonblocking(false)?;
        stream.set_write_timeout(Some(patience))?;
        Ok(Channel { stream, patience, deadline: None })
    }

    /// From now on all messages must have been sent and received at `deadline`, if there is one.
    pub(crate) fn set_deadline(&mut self, deadline: Option<Instant>) {
        self.deadline = deadline;
    }

    /// The other end learns at once that nothing will come any more, nor be read.
    pub(super) fn shut_down(&self) {
        // One that is closed needs none.
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    /// By which another thread shuts it down.
    pub(super) fn handle(&self) -> io::Result<UnixStream> {
        self.stream.try_clone()
    }

    /// From now on the other end can't send. What it has sent can be received.
    pub(super) fn hear_no_more(&self) -> io::Result<()> {
        self.stream.shutdown(Shutdown::Read)
    }

    /// When what may take `patience` must be done.
    fn until(&self, patience: Duration) -> Instant {
        let until = Instant::now() + patience;
        self.deadline.map_or(until, |deadline| deadline.min(until))
    }

    /// Reads all of `bytes` until `until`.
    fn read_all(&mut self, mut bytes: &mut [u8], until: Instant) -> io::Result<()> {
        while !bytes.is_empty() {
            self.stream.set_read_timeout(Some(left(until)?))?;
            match self.stream.read(bytes) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(n) => bytes = &mut bytes[n..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    pub(super) fn send(&mut self, kind: Kind, bytes: &[u8]) -> io::Result<()> {
        let mut message = Vec::with_capacity(5 + bytes.len());
        message.push(kind as u8);
        message.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
        message.extend_from_slice(bytes);
        let until = self.until(self.patience);
        // A short one all at once: the other end is woken once.
        let mut rest = &message[..];
        while !rest.is_empty() {
            self.stream.set_write_timeout(Some(left(until)?))?;
            match self.stream.write(&rest[..rest.len().min(PART)]) {
                Ok(n) => rest = &rest[n..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// The next message. An error of kind `WouldBlock` if it does not come within `patience`.
    pub(super) fn receive(&mut self, patience: Duration) -> io::Result<(Kind, Vec<u8>)> {
        let until = self.until(patience);
        let mut head = [0; 5];
        self.read_all(&mut head, until)?;
        let [kind, len @ ..] = head;
        let kind = KINDS
            .into_iter()
            .find(|known| *known as u8 == kind)
            .ok_or_else(|| invalid("a message of no known kind"))?;
        let len = u32::from_le_bytes(len) as usize;
        if len > MAX_LEN {
            return Err(invalid("a message that is too long"));
        }
        let mut bytes = vec![0; len];
        self.read_all(&mut bytes, until)?;
        Ok((kind, bytes))
    }

    pub(super) fn send_line(&mut self, line: &[u8]) -> io::Result<()> {
        self.stream.write_all(&[line, b"\n"].concat())
    }

    /// A line of text, and not a byte more.
    pub(super) fn receive_line(&mut self, patience: Duration) -> io::Result<Vec<u8>> {
        self.stream.set_read_timeout(Some(patience))?;
        let (mut line, mut byte) = (Vec::new(), [0]);
        loop {
            self.stream.read_exact(&mut byte)?;
            match byte[0] {
                b'\n' => return Ok(line),
                _ if line.len() == MAX_LEN => return Err(invalid("a line that is too long")),
                byte => line.push(byte),
            }
        }
    }

    /// Sends descriptors, a byte with each lot of them.
    pub(super) fn send_fds(&mut self, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        for lot in fds.chunks(AT_ONCE) {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(AT_ONCE))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            if !control.push(SendAncillaryMessage::ScmRights(lot)) {
                return Err(invalid("too many descriptors"));
            }
            sendmsg(&self.stream, &[IoSlice::new(&[0])], &mut control, SendFlags::NOSIGNAL)?;
        }
        Ok(())
    }

    /// Receives so many descriptors, no fewer and no more.
    pub(super) fn receive_fds(&mut self, count: usize, patience: Duration) -> io::Result<Vec<OwnedFd>> {
        self.stream.set_read_timeout(Some(patience))?;
        let mut fds = Vec::new();
        while fds.len() < count {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(AT_ONCE))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let mut byte = [0];
            let flags = RecvFlags::CMSG_CLOEXEC;
            let got = recvmsg(&self.stream, &mut [IoSliceMut::new(&mut byte)], &mut control, flags)?;
            let before = fds.len();
            for message in control.drain() {
                if let RecvAncillaryMessage::ScmRights(lot) = message {
                    fds.extend(lot);
                }
            }
            if got.bytes == 0 || fds.len() == before {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        match fds.len() == count {
            true => Ok(fds),
            false => Err(invalid("more descriptors than were told of")),
        }
    }

    /// Waits until the other end is closed, but no longer than for `patience`.
    pub(super) fn wait_closed(&mut self, patience: Duration) -> io::Result<()> {
        self.stream.set_read_timeout(Some(patience))?;
        match self.stream.read(&mut [0; 64])? {
            0 => Ok(()),
            _ => Err(invalid("a message where none was expected")),
        }
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(5);

    fn pair() -> (Channel, Channel, UnixStream) {
        let (a, b) = UnixStream::pair().unwrap();
        let raw = a.try_clone().unwrap();
        (Channel::new(a, PATIENCE).unwrap(), Channel::new(b, PATIENCE).unwrap(), raw)
    }

    #[test]
    fn messages_lines_and_descriptors_arrive() {
        let (mut a, mut b, _raw) = pair();
        a.send_line(b"{}").unwrap();
        let file = tempfile::tempfile().unwrap();
        // More than go at once.
        a.send_fds(&vec![file.as_fd(); AT_ONCE + 3]).unwrap();
        a.send(Kind::Stopped, b"abc").unwrap();
        assert_eq!(b.receive_line(PATIENCE).unwrap(), b"{}");
        assert_eq!(b.receive_fds(AT_ONCE + 3, PATIENCE).unwrap().len(), AT_ONCE + 3);
        assert_eq!(b.receive(PATIENCE).unwrap(), (Kind::Stopped, b"abc".to_vec()));
        drop((a, _raw));
        assert!(b.receive(PATIENCE).is_err() && b.wait_closed(PATIENCE).is_ok());
    }

    #[test]
    fn a_deadline_is_for_all_that_is_said() {
        let (mut a, mut b, _raw) = pair();
        a.set_deadline(Some(Instant::now() + Duration::from_millis(20)));
        // Far more than there is room for, and nobody reads.
        let error = a.send(Kind::Connections, &[0; 4 << 20]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        assert_eq!(a.receive(PATIENCE).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        b.send(Kind::Take, &[]).unwrap();
        assert!(a.receive(PATIENCE).is_err(), "too late");
        a.set_deadline(None);
        assert_eq!(a.receive(PATIENCE).unwrap(), (Kind::Take, vec![]));
    }

    /// What was sent before is received, and nothing is sent after: so both ends know the same.
    #[test]
    fn an_end_that_hears_no_more_has_all_that_was_sent() {
        let (mut a, mut b, _raw) = pair();
        b.send(Kind::Yours, &[]).unwrap();
        a.hear_no_more().unwrap();
        assert_eq!(b.send(Kind::Yours, &[]).unwrap_err().kind(), io::ErrorKind::BrokenPipe);
        assert_eq!(a.receive(PATIENCE).unwrap(), (Kind::Yours, vec![]));
        assert_eq!(a.receive(PATIENCE).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        a.send(Kind::Done, &[]).unwrap();
        assert_eq!(b.receive(PATIENCE).unwrap(), (Kind::Done, vec![]));
        a.shut_down();
        assert_eq!(b.receive(PATIENCE).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn what_is_wrong_is_an_error() {
        for wrong in [&[99, 0, 0, 0, 0][..], &[1, 255, 255, 255, 255]] {
            let (_a, mut b, mut raw) = pair();
            raw.write_all(wrong).unwrap();
            assert_eq!(b.receive(PATIENCE).unwrap_err().kind(), io::ErrorKind::InvalidData);
        }
        // Bytes without descriptors, more and fewer of them than told, and none at all in time.
        let (_a, mut b, mut raw) = pair();
        raw.write_all(&[0]).unwrap();
        assert!(b.receive_fds(1, PATIENCE).is_err());
        let (mut a, mut b, _raw) = pair();
        let file = tempfile::tempfile().unwrap();
        a.send_fds(&[file.as_fd(); 3]).unwrap();
        assert!(b.receive_fds(2, PATIENCE).is_err());
        assert!(b.receive_fds(1, Duration::from_millis(10)).is_err());
        assert!(b.receive_line(Duration::from_millis(10)).is_err());
    }
}
