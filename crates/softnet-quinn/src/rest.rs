//! What a socket had no room for, of datagrams that `quinn` sends by one call.
//!
//! `quinn` knows all or none: were some refused, it would send all again, and were they lost, it would take that for
//! congestion. So they are kept until there is room, and nothing overtakes them. Invariant: at most those of one call are
//! kept, and a task waits until they are sent.

use std::io;

use softnet::net::MsgHdr;

/// See the module.
pub(crate) struct Rest {
    bytes: Vec<u8>,
    /// Bytes that are sent.
    sent: usize,
    segment: usize,
    header: MsgHdr,
}

impl Rest {
    /// Of datagrams of `segment` bytes.
    pub(crate) fn new(bytes: &[u8], segment: usize, header: MsgHdr) -> Self {
        Rest { bytes: bytes.to_vec(), sent: 0, segment, header }
    }

    /// Sends it by `send`, as far as there is room. Returns whether that was all.
    pub(crate) fn send(&mut self, send: impl Fn(&[u8], usize, MsgHdr) -> io::Result<usize>) -> bool {
        while self.sent < self.bytes.len() {
            match send(&self.bytes[self.sent..], self.segment, self.header) {
                Ok(sent) => self.sent += sent.max(1),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
                // Lost, as they would be further on.
                Err(_) => break,
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[test]
    fn it_goes_on_where_the_socket_had_no_room() {
        let bytes: Vec<u8> = (0..95).collect();
        let (room, wire) = (RefCell::new(2), RefCell::new(Vec::new()));
        let send = |bytes: &[u8], segment: usize, _: MsgHdr| {
            let taken: Vec<&[u8]> = bytes.chunks(segment).take(room.take()).collect();
            match taken.is_empty() {
                true => Err(io::ErrorKind::WouldBlock.into()),
                false => {
                    wire.borrow_mut().extend(taken.iter().map(|piece| piece.to_vec()));
                    Ok(taken.iter().map(|piece| piece.len()).sum())
                }
            }
        };
        let mut rest = Rest::new(&bytes, 10, MsgHdr::default());
        assert!(!rest.send(send));
        assert_eq!(wire.borrow().len(), 2);
        assert!(!rest.send(send));
        room.replace(8);
        assert!(rest.send(send) && rest.send(send));
        assert!(wire.borrow().iter().eq(bytes.chunks(10)));
    }

    /// A route that is gone is no reason to keep what would leave by it.
    #[test]
    fn what_is_refused_is_lost() {
        let mut rest = Rest::new(&[0; 30], 10, MsgHdr::default());
        assert!(rest.send(|_, _, _| Err(io::ErrorKind::NetworkUnreachable.into())));
    }
}
