//! The response to a request, written straight into the datagrams that carry it.
//!
//! A response longer than [`PAYLOAD`] goes in several datagrams, each with a frame header; how many there are is
//! known at the end, and entered then. Invariant: every datagram of a finished response but the last is full.

use softnet_testkit::datagrams::{Endpoints, Outbox};

use super::{Frame, HEADER, PAYLOAD, Response};

/// Most datagrams of one response: a mebibyte and a half. memcached is bounded by its numbers of 16 bits only; but a
/// short request for many keys could then make a server send for seconds, to the address that it bears.
pub const MAX_DATAGRAMS: usize = 1100;

/// A response that is being written.
pub struct Reply<'a> {
    out: &'a mut Outbox,
    to: Endpoints,
    request_id: u16,
    first: usize,
    /// It has more than a response may: what is written is lost.
    full: bool,
}

impl<'a> Reply<'a> {
    /// To the request `request_id` of `to`, behind what is in `out`.
    pub fn new(out: &'a mut Outbox, to: impl Into<Endpoints>, request_id: u16) -> Self {
        let (first, to) = (out.len(), to.into());
        Reply { out, to, request_id, first, full: false }
    }

    /// The response is complete.
    pub fn finish(self) {
        let total = (self.out.len() - self.first) as u16;
        if total > 1 {
            for i in self.first..self.out.len() {
                // Where a `Frame` has its total.
                self.out.get_mut(i)[4..6].copy_from_slice(&total.to_be_bytes());
            }
        }
    }
}

impl Response for Reply<'_> {
    fn put(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() && !self.full {
            let datagrams = self.out.len() - self.first;
            let room = if datagrams == 0 { 0 } else { HEADER + PAYLOAD - self.out.last_len() };
            if room > 0 {
                let (now, later) = bytes.split_at(room.min(bytes.len()));
                self.out.put(now);
                bytes = later;
            } else if datagrams < MAX_DATAGRAMS {
                self.out.begin(self.to);
                let sequence = datagrams as u16;
                self.out.put(&Frame { request_id: self.request_id, sequence, total: 1 }.bytes());
            } else {
                self.full = true;
            }
        }
    }

    fn is_full(&self) -> bool {
        self.full
    }

    fn clear(&mut self) {
        self.out.truncate(self.first);
        self.full = false;
    }
}

/// `number` in decimal digits, at the end of `digits`.
pub(crate) fn decimal(mut number: u64, digits: &mut [u8; 20]) -> &[u8] {
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            return &digits[at..];
        }
    }
}
