//! What fuzzing runs on the server: the tests run it on the corpus of `fuzz/corpus`, `cargo fuzz` for as long as it is let.

use std::net::{Ipv4Addr, SocketAddr};

use softnet_testkit::datagrams::Outbox;

use crate::answer::Desk;
use crate::proto::{Frame, HEADER, MAX_DATAGRAMS, PAYLOAD, Request, parse};
use crate::server::Counters;
use crate::store::Store;

/// Datagrams, each with two bytes before it that say how long it is: every request is answered once, unless it wants no
/// answer; whatever else is in a datagram is counted; and answers are whole messages.
pub fn udp_kv(mut data: &[u8]) {
    let (store, counters) = (Store::new(0, 1), [Counters::default()]);
    let mut now = 5;
    while let Some((len, rest)) = data.split_first_chunk() {
        let (datagram, rest) = rest.split_at(usize::from(u16::from_be_bytes(*len)).min(rest.len()));
        data = rest;
        let mut out = Outbox::default();
        let before = Counted::of(&counters[0]);
        let desk = Desk { store: &store, now, counters: &counters[0], threads: &counters };
        desk.answer(SocketAddr::from((Ipv4Addr::LOCALHOST, 9)), datagram, &mut out);
        let counted = Counted::of(&counters[0]);
        let (answers, wanted) = (messages(datagram, &out), wanted(datagram));
        let requests = counted.requests - before.requests;
        if counted.cut > before.cut {
            assert!(out.len() >= MAX_DATAGRAMS && requests <= wanted.requests);
        } else {
            assert_eq!((requests, answers), (wanted.requests, wanted.answers));
            assert_eq!(counted.refused - before.refused, wanted.refused);
        }
        now += 1;
    }
}

struct Counted {
    requests: u64,
    /// Datagrams that are no request from some place on.
    refused: u64,
    /// Datagrams that ask for more than is answered.
    cut: u64,
}

impl Counted {
    fn of(counters: &Counters) -> Self {
        let value = |name| {
            let at = Counters::NAMES.iter().position(|known| *known == name);
            counters.values()[at.expect("a counter of that name")]
        };
        let refused = value("udp_malformed") + value("udp_multi_packet");
        Counted { requests: value("udp_requests"), refused, cut: value("udp_cut") }
    }
}

/// What is to come of a datagram.
#[derive(Default)]
struct Wanted {
    requests: u64,
    answers: usize,
    refused: u64,
}

fn wanted(datagram: &[u8]) -> Wanted {
    let mut wanted = Wanted::default();
    let Some((_, mut body)) = Frame::split(datagram).filter(|(frame, _)| frame.total == 1) else {
        return Wanted { refused: 1, ..wanted };
    };
    while !body.is_empty() {
        let Some(parsed) = parse(body) else { return Wanted { refused: 1, ..wanted } };
        wanted.requests += 1;
        let silent = parsed.quiet || matches!(parsed.request, Ok(Request::Quit));
        wanted.answers += usize::from(!silent);
        body = parsed.rest;
    }
    wanted
}

/// How many messages `out` holds, all of them answers to `request`.
fn messages(request: &[u8], out: &Outbox) -> usize {
    // The last answer may begin just before the bound.
    assert!(out.len() < 2 * MAX_DATAGRAMS);
    let (mut messages, mut left) = (0, 0);
    for i in 0..out.len() {
        let (to, datagram) = out.get(i);
        let (frame, payload) = Frame::split(datagram).expect("a frame header");
        assert_eq!((to, &datagram[..2]), ((Ipv4Addr::LOCALHOST, 9).into(), &request[..2]));
        if left == 0 {
            (messages, left) = (messages + 1, frame.total);
        }
        assert_eq!(frame.sequence, frame.total - left);
        left -= 1;
        let full = datagram.len() == HEADER + PAYLOAD;
        assert!(!payload.is_empty() && (full || left == 0));
    }
    assert_eq!(left, 0);
    messages
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_corpus_is_replayed() {
        softnet_testkit::replay("udp_kv", super::udp_kv);
    }
}
