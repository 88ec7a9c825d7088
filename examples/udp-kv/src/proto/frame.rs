//! The frame header that begins every datagram: four numbers of 16 bits in network byte order.

/// Bytes of the header.
pub const HEADER: usize = 8;
/// Most bytes of a response that one datagram carries (UDP_DATA_SIZE): with the headers 1,428 on the wire, which fits
/// everywhere.
pub const PAYLOAD: usize = 1392;

/// The header of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Chosen by the client, and returned to it.
    pub request_id: u16,
    /// Number of this datagram, from 0, among those of its message.
    pub sequence: u16,
    /// Datagrams in the message.
    pub total: u16,
}

impl Frame {
    /// Splits a datagram into its header and what follows; `None` if it is too short for one.
    pub fn split(datagram: &[u8]) -> Option<(Frame, &[u8])> {
        let (header, rest) = datagram.split_first_chunk::<HEADER>()?;
        // The last two bytes are reserved; memcached does not look at them either.
        let [a, b, c, d, e, f, _, _] = *header;
        let number = |high, low| u16::from_be_bytes([high, low]);
        Some((Frame { request_id: number(a, b), sequence: number(c, d), total: number(e, f) }, rest))
    }

    /// The header's bytes.
    pub fn bytes(self) -> [u8; HEADER] {
        let ([a, b], [c, d]) = (self.request_id.to_be_bytes(), self.sequence.to_be_bytes());
        let [e, f] = self.total.to_be_bytes();
        [a, b, c, d, e, f, 0, 0]
    }
}
