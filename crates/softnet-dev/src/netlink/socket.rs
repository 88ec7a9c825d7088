//! The socket: one request, its answers, its acknowledgement.

use std::io;

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, NLMSG_DONE, NLMSG_ERROR, NLMSG_OVERRUN, NetlinkBuffer,
    NetlinkMessage, NetlinkPayload, NetlinkSerializable, NlasIterator,
};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};

use crate::sys_error::{SysError, SysResult};

/// The kernel never sends a datagram beyond 32 KiB to a reader with a buffer as large.
pub(super) const RECV_LEN: usize = 64 * 1024;
/// The dump changed while it was read (`NLM_F_DUMP_INTR`).
pub(super) const DUMP_INTERRUPTED: u16 = 0x10;
const ACK_HAS_ATTRIBUTES: u16 = 0x200;
const EXTACK_MESSAGE: u16 = 1;

/// A raw answer: message type and what follows the netlink header.
pub(super) type Answer = (u16, Vec<u8>);

/// What can be asked: a message of rtnetlink, or of a family of generic netlink.
pub(super) trait Request: NetlinkSerializable + Into<NetlinkPayload<Self>> + Clone {}

impl<M: NetlinkSerializable + Into<NetlinkPayload<M>> + Clone> Request for M {}

/// A socket to the rtnetlink of the namespace that the thread which made it was in.
#[derive(Debug)]
pub struct Netlink {
    socket: Socket,
    sequence: u32,
    buffer: Vec<u8>,
}

impl Netlink {
    /// A socket in the calling thread's network namespace.
    pub fn new() -> SysResult<Self> {
        Self::of_protocol(NETLINK_ROUTE)
    }

    /// A socket of another protocol than rtnetlink, in the same way.
    pub(super) fn of_protocol(protocol: isize) -> SysResult<Self> {
        let open = || -> io::Result<Socket> {
            let mut socket = Socket::new(protocol)?;
            socket.bind_auto()?;
            socket.connect(&SocketAddr::new(0, 0))?;
            // Neither is essential: the first brings reasons in words, the second leaves the request out of errors.
            let _ = socket.set_ext_ack(true);
            let _ = socket.set_cap_ack(true);
            Ok(socket)
        };
        let socket = open().map_err(|error| SysError::new("open a netlink socket", error))?;
        Ok(Netlink { socket, sequence: 0, buffer: vec![0; RECV_LEN] })
    }

    /// Makes a change. `what` describes it in an error.
    pub(super) fn change(&mut self, message: impl Request, flags: u16, what: &str) -> SysResult<()> {
        self.transact(message, NLM_F_ACK | flags, what)
            .map(drop)
            .map_err(|error| error.needs("CAP_NET_ADMIN"))
    }

    /// Asks for one object.
    pub(super) fn get(&mut self, message: impl Request, what: &str) -> SysResult<Vec<Answer>> {
        self.transact(message, NLM_F_ACK, what)
    }

    /// Asks for all objects of a kind. A list that changed while it was read is read again.
    pub(super) fn dump(&mut self, message: impl Request, what: &str) -> SysResult<Vec<Answer>> {
        let mut attempt = 0;
        loop {
            match self.transact(message.clone(), NLM_F_DUMP, what) {
                Err(error) if error.errno() == Some(libc::EINTR) && attempt < 16 => attempt += 1,
                result => return result,
            }
        }
    }

    fn transact(&mut self, message: impl Request, flags: u16, what: &str) -> SysResult<Vec<Answer>> {
        self.exchange(message, flags).map_err(|(error, detail)| SysError::new(what, error).detail(detail))
    }

    fn exchange(&mut self, message: impl Request, flags: u16) -> Result<Vec<Answer>, (io::Error, String)> {
        let plain = |error: io::Error| (error, String::new());
        self.sequence = self.sequence.wrapping_add(1);
        let mut request = NetlinkMessage::from(message);
        request.header.flags = NLM_F_REQUEST | flags;
        request.header.sequence_number = self.sequence;
        request.finalize();
        let mut bytes = vec![0; request.buffer_len()];
        request.serialize(&mut bytes);
        self.socket.send(&bytes, 0).map_err(plain)?;

        let mut answers = Vec::new();
        let mut interrupted = false;
        loop {
            let length = match self.socket.recv(&mut &mut self.buffer[..], libc::MSG_TRUNC) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                result => result.map_err(plain)?,
            };
            for message in messages(&self.buffer, length).map_err(plain)? {
                // An answer to an earlier request that was given up on.
                if message.sequence_number() != self.sequence {
                    continue;
                }
                interrupted |= message.flags() & DUMP_INTERRUPTED != 0;
                match message.message_type() {
                    NLMSG_DONE | NLMSG_ERROR => {
                        // Both start with an error number, zero for success.
                        let code = number(message.payload(), 0).map_or(0, u32::cast_signed);
                        if code != 0 {
                            let error = io::Error::from_raw_os_error(code.wrapping_neg());
                            return Err((error, reason(&message)));
                        }
                        if interrupted {
                            return Err(plain(io::Error::from_raw_os_error(libc::EINTR)));
                        }
                        return Ok(answers);
                    }
                    kind => answers.push((kind, message.payload().to_vec())),
                }
            }
        }
    }
}

/// The messages of a datagram of `length` bytes in `buffer`.
pub(super) fn messages(buffer: &[u8], length: usize) -> io::Result<Vec<NetlinkBuffer<&[u8]>>> {
    let bad = |why: &str| io::Error::new(io::ErrorKind::InvalidData, format!("netlink: {why}"));
    let mut rest = buffer.get(..length).ok_or_else(|| bad("datagram longer than any should be"))?;
    let mut found = Vec::new();
    while !rest.is_empty() {
        let message = NetlinkBuffer::new_checked(rest).map_err(|error| bad(&error.to_string()))?;
        let length = message.length() as usize;
        if message.message_type() == NLMSG_OVERRUN {
            return Err(io::Error::from_raw_os_error(libc::ENOBUFS));
        }
        // The view reaches to the end of the datagram; its payload must not.
        found.push(NetlinkBuffer::new_checked(&rest[..length]).map_err(|error| bad(&error.to_string()))?);
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or(&[]);
    }
    Ok(found)
}

/// What the kernel says in words about an error, if it does (extended acknowledgement, `nlmsgerr_attrs`).
pub(super) fn reason(message: &NetlinkBuffer<&[u8]>) -> String {
    if message.flags() & ACK_HAS_ATTRIBUTES == 0 {
        return String::new();
    }
    // The error number; for errors (not for the end of a dump) the request's header, 16 bytes, its body left out.
    let start = if message.message_type() == NLMSG_ERROR { 20 } else { 4 };
    let attributes = message.payload().get(start..).unwrap_or(&[]);
    attributes_of(attributes)
        .find(|(kind, _)| *kind == EXTACK_MESSAGE)
        .map_or_else(String::new, |(_, value)| text(&value))
}

/// Kind and value of each attribute in `bytes`; ends at the first malformed one.
pub(super) fn attributes_of(bytes: &[u8]) -> impl Iterator<Item = (u16, Vec<u8>)> {
    NlasIterator::new(bytes)
        .map_while(Result::ok)
        .map(|attribute| (attribute.kind(), attribute.value().to_vec()))
}

/// The 32-bit number at `offset`.
pub(super) fn number(bytes: &[u8], offset: usize) -> Option<u32> {
    bytes.get(offset..offset + 4).and_then(|four| four.try_into().ok()).map(u32::from_ne_bytes)
}

/// A zero-terminated string.
pub(super) fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}
