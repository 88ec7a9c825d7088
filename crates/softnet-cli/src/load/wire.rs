//! memcached's protocol from the client's side: requests as datagrams, and what became of them.
//!
//! Apart from any server's code on purpose: what both sides get wrong together, no response would show.

use std::io::Write;
use std::net::SocketAddr;

use softnet_testkit::datagrams::Outbox;

use super::record::Records;

/// Bytes before each message: request id, number of this datagram, number of all, reserved; 16 bits each, big-endian.
pub(super) const HEADER: usize = 8;
/// Most datagrams of a response that are believed in: the longest value takes 48 of 1,400 bytes.
const MAX_PARTS: u16 = 1024;

/// What is done with a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Op {
    Get,
    Set,
}

/// What a whole response says.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The value, as it should be; or it was stored.
    Right,
    /// The server does not have it.
    Miss,
    /// Something else than it should be.
    Wrong,
}

/// Writes requests and checks responses; keeps its memory.
pub(super) struct Wire<'a> {
    records: &'a Records,
    key: Vec<u8>,
    text: Vec<u8>,
}

impl<'a> Wire<'a> {
    pub(super) fn new(records: &'a Records) -> Self {
        Wire { records, key: Vec::new(), text: Vec::new() }
    }

    /// Appends a request to `out`.
    pub(super) fn request(&mut self, out: &mut Outbox, to: SocketAddr, id: u16, op: Op, record: u32) {
        let [high, low] = id.to_be_bytes();
        out.begin(to);
        out.put(&[high, low, 0, 0, 0, 1, 0, 0]);
        self.records.key(record, &mut self.key);
        match op {
            Op::Get => {
                out.put(b"get ");
                out.put(&self.key);
                out.put(b"\r\n");
            }
            Op::Set => {
                out.put(b"set ");
                out.put(&self.key);
                self.text.clear();
                let (flags, len) = (self.records.flags(record), self.records.value_len(record));
                // Writing into a vector does not fail.
                let _ = write!(self.text, " {flags} 0 {len}\r\n");
                self.records.value(record, &mut self.text);
                out.put(&self.text);
                out.put(b"\r\n");
            }
        }
    }

    /// What `message` says as the response to a request.
    pub(super) fn check(&mut self, op: Op, record: u32, message: &[u8]) -> Verdict {
        let right = match op {
            Op::Set => message == b"STORED\r\n",
            Op::Get if message == b"END\r\n" => return Verdict::Miss,
            Op::Get => {
                self.records.key(record, &mut self.key);
                self.text.clear();
                self.text.extend_from_slice(b"VALUE ");
                self.text.extend_from_slice(&self.key);
                let (flags, len) = (self.records.flags(record), self.records.value_len(record));
                let _ = write!(self.text, " {flags} {len}\r\n");
                self.records.value(record, &mut self.text);
                self.text.extend_from_slice(b"\r\nEND\r\n");
                message == self.text
            }
        };
        if right { Verdict::Right } else { Verdict::Wrong }
    }
}

/// One datagram of a response.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Part<'a> {
    pub(super) id: u16,
    pub(super) number: u16,
    pub(super) total: u16,
    pub(super) payload: &'a [u8],
}

impl<'a> Part<'a> {
    /// `None` if it is none.
    pub(super) fn of(datagram: &'a [u8]) -> Option<Part<'a>> {
        let (header, payload) = datagram.split_first_chunk::<HEADER>()?;
        let field = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
        let part = Part { id: field(0), number: field(2), total: field(4), payload };
        (part.number < part.total && part.total <= MAX_PARTS).then_some(part)
    }
}

/// A response of several datagrams, some of which have come, in whatever order.
#[derive(Debug)]
pub(super) struct Parts {
    parts: Vec<Option<Vec<u8>>>,
    missing: usize,
}

impl Parts {
    pub(super) fn new(total: u16) -> Self {
        Parts { parts: vec![None; total.into()], missing: total.into() }
    }

    /// Another has come. The whole message, if it was the last that was missing.
    pub(super) fn add(&mut self, part: &Part<'_>) -> Option<Vec<u8>> {
        // Duplicates, and parts of other messages, are not counted.
        if usize::from(part.total) == self.parts.len()
            && let Some(place @ None) = self.parts.get_mut(usize::from(part.number))
        {
            *place = Some(part.payload.to_vec());
            self.missing -= 1;
        }
        (self.missing == 0).then(|| self.parts.iter().flatten().flatten().copied().collect())
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn records(value_size: &str) -> Records {
        let (key_size, value_size) = ("5".parse().unwrap(), value_size.parse().unwrap());
        Records { count: 100, key_size, value_size, max_value: 60_000 }
    }

    fn request(records: &Records, op: Op) -> Vec<u8> {
        let mut out = Outbox::default();
        Wire::new(records).request(&mut out, (Ipv4Addr::LOCALHOST, 1).into(), 0x0102, op, 42);
        assert_eq!(out.len(), 1);
        out.get(0).1.to_vec()
    }

    #[test]
    fn requests_are_what_the_protocol_says() {
        let records = records("3");
        assert_eq!(request(&records, Op::Get), b"\x01\x02\0\0\0\x01\0\0get 00042\r\n");
        let mut value = Vec::new();
        records.value(42, &mut value);
        let flags = records.flags(42);
        let text = [format!("set 00042 {flags} 0 3\r\n").as_bytes(), &value, b"\r\n"].concat();
        assert_eq!(request(&records, Op::Set), [b"\x01\x02\0\0\0\x01\0\0", &text[..]].concat());
    }

    #[test]
    fn responses_are_compared_to_the_last_byte() {
        let records = records("300");
        let mut wire = Wire::new(&records);
        let mut value = Vec::new();
        records.value(42, &mut value);
        let head = format!("VALUE 00042 {} 300\r\n", records.flags(42));
        let right = [head.as_bytes(), &value, b"\r\nEND\r\n"].concat();
        assert_eq!(wire.check(Op::Get, 42, &right), Verdict::Right);
        assert_eq!(wire.check(Op::Get, 42, b"END\r\n"), Verdict::Miss);
        assert_eq!(wire.check(Op::Get, 43, &right), Verdict::Wrong, "another's value");
        for at in 0..right.len() {
            let mut wrong = right.clone();
            wrong[at] ^= 1;
            assert_eq!(wire.check(Op::Get, 42, &wrong), Verdict::Wrong, "byte {at}");
            assert_eq!(wire.check(Op::Get, 42, &right[..at]), Verdict::Wrong);
        }
        assert_eq!(wire.check(Op::Set, 42, b"STORED\r\n"), Verdict::Right);
        assert_eq!(wire.check(Op::Set, 42, b"SERVER_ERROR out of memory storing object\r\n"), Verdict::Wrong);
        assert_eq!(wire.check(Op::Get, 42, b""), Verdict::Wrong);
    }

    #[test]
    fn parts_come_in_any_order_and_more_than_once() {
        let part = |number, payload| Part { id: 1, number, total: 3, payload };
        let mut parts = Parts::new(3);
        assert_eq!(parts.add(&part(2, b"ef")), None);
        assert_eq!(parts.add(&part(0, b"ab")), None);
        assert_eq!(parts.add(&part(0, b"xx")), None, "a duplicate");
        assert_eq!(parts.add(&Part { total: 2, ..part(1, b"xx") }), None, "of another message");
        assert_eq!(parts.add(&part(1, b"cd")).unwrap(), b"abcdef");
    }

    #[test]
    fn what_is_no_part_is_none() {
        assert_eq!(Part::of(b"\0\x01\0\0\0\x01\0"), None);
        assert_eq!(Part::of(b"\0\x01\0\0\0\0\0\0"), None, "one of none");
        assert_eq!(Part::of(b"\0\x01\0\x02\0\x02\0\0"), None, "the third of two");
        assert_eq!(Part::of(b"\0\x01\0\0\xff\xff\0\0"), None, "of more than there may be");
        let part = Part { id: 1, number: 1, total: 2, payload: b"x" };
        assert_eq!(Part::of(b"\0\x01\0\x01\0\x02\0\0x"), Some(part));
    }
}
