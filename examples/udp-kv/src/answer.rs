//! One datagram: what it asks for is done, and answered.

use softnet_testkit::datagrams::{Endpoints, Outbox};

use crate::commands::{carry_out, line};
use crate::proto::{Frame, MAX_DATAGRAMS, Reply, Response, parse};
use crate::server::Counters;
use crate::store::Store;

/// What it takes to answer.
pub(crate) struct Desk<'a> {
    pub(crate) store: &'a Store,
    /// The store's time.
    pub(crate) now: u32,
    /// What the calling thread counts.
    pub(crate) counters: &'a Counters,
    /// What all threads count, for `stats`.
    pub(crate) threads: &'a [Counters],
}

impl Desk<'_> {
    /// Does what `datagram` asks for, and appends the responses, which go to `to`, to `out`.
    pub(crate) fn answer(&self, to: impl Into<Endpoints>, datagram: &[u8], out: &mut Outbox) {
        let to = to.into();
        let Some((frame, mut body)) = Frame::split(datagram) else { return self.counters.malformed.add(1) };
        if frame.total != 1 {
            // As memcached since 1.6.8: silently.
            return self.counters.multi_packet.add(1);
        }
        let first = out.len();
        while !body.is_empty() {
            if out.len() - first >= MAX_DATAGRAMS {
                return self.counters.cut.add(1);
            }
            // The rest of it is nowhere: over UDP nothing follows.
            let Some(parsed) = parse(body) else { return self.counters.malformed.add(1) };
            self.counters.requests.add(1);
            body = parsed.rest;
            let mut reply = Reply::new(out, to, frame.request_id);
            match parsed.request {
                Ok(request) => {
                    carry_out(self.store, self.now, &request, &mut reply, |stat| self.tell_stats(stat));
                }
                Err(why) => line(&mut reply, why),
            }
            if parsed.quiet {
                reply.clear();
            }
            reply.finish();
        }
    }

    /// What a datagram server has to tell beside what all tell.
    fn tell_stats(&self, stat: &mut dyn FnMut(&str, u64)) {
        stat("threads", self.threads.len() as u64);
        for (i, name) in Counters::NAMES.iter().enumerate() {
            stat(name, self.threads.iter().map(|counters| counters.values()[i]).sum());
        }
        for (i, thread) in self.threads.iter().enumerate() {
            stat(&format!("udp_napi_id_{i}"), thread.napi_id().into());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};

    use proptest::prelude::*;

    use super::*;
    use crate::proto::{HEADER, PAYLOAD};

    struct World {
        store: Store,
        counters: [Counters; 1],
    }

    impl World {
        fn new() -> Self {
            World { store: Store::new(0, 1), counters: Default::default() }
        }

        fn datagram(&self, datagram: &[u8]) -> Outbox {
            let mut out = Outbox::default();
            let [counters] = &self.counters;
            let desk = Desk { store: &self.store, now: 5, counters, threads: &self.counters };
            desk.answer(SocketAddr::from((Ipv4Addr::LOCALHOST, 9)), datagram, &mut out);
            out
        }

        /// The response to `requests`, without frame headers.
        fn ask(&self, requests: &str) -> String {
            let frame = Frame { request_id: 0x1234, sequence: 0, total: 1 };
            let out = self.datagram(&[&frame.bytes()[..], requests.as_bytes()].concat());
            let payloads = (0..out.len()).map(|i| {
                let (frame, payload) = Frame::split(out.get(i).1).unwrap();
                assert_eq!(frame.request_id, 0x1234);
                payload.to_vec()
            });
            String::from_utf8(payloads.collect::<Vec<_>>().concat()).unwrap()
        }
    }

    #[test]
    fn a_conversation() {
        let world = World::new();
        for (request, response) in [
            ("get a b\r\n", "END\r\n"),
            ("set a 5 0 3\r\nxyz\r\n", "STORED\r\n"),
            ("set b 0 0 0 noreply\r\n\r\n", ""),
            ("get a c b\r\n", "VALUE a 5 3\r\nxyz\r\nVALUE b 0 0\r\n\r\nEND\r\n"),
            ("gets a\r\n", "VALUE a 5 3 1\r\nxyz\r\nEND\r\n"),
            ("cas a 0 0 1 1\r\n7\r\n", "STORED\r\n"),
            ("cas a 0 0 1 1\r\n8\r\n", "EXISTS\r\n"),
            ("cas c 0 0 1 1\r\n8\r\n", "NOT_FOUND\r\n"),
            ("add a 0 0 1\r\n8\r\n", "NOT_STORED\r\n"),
            ("incr a 5\r\n", "12\r\n"),
            ("decr a 13\r\n", "0\r\n"),
            ("incr b 1\r\n", "CLIENT_ERROR cannot increment or decrement non-numeric value\r\n"),
            ("incr c 1\r\n", "NOT_FOUND\r\n"),
            ("touch a 10\r\ntouch c 10\r\n", "TOUCHED\r\nNOT_FOUND\r\n"),
            ("delete a\r\ndelete a\r\ndelete a noreply\r\n", "DELETED\r\nNOT_FOUND\r\n"),
            ("version\r\nfoo\r\n", concat!("VERSION ", env!("CARGO_PKG_VERSION"), "\r\nERROR\r\n")),
            ("flush_all\r\nget b\r\n", "OK\r\nEND\r\n"),
            ("quit\r\n", ""),
        ] {
            assert_eq!(world.ask(request), response, "{request:?}");
        }
        let stats = world.ask("stats\r\n");
        for line in [
            "STAT get_hits 3",
            "STAT get_misses 4",
            "STAT cmd_set 6",
            "STAT uptime 5",
            "STAT udp_requests 24",
            "STAT curr_items 0",
        ] {
            assert!(stats.contains(&format!("{line}\r\n")), "{line} is not in {stats}");
        }
        assert_eq!(world.ask("stats reset\r\n"), "RESET\r\n");
        assert!(world.ask("stats\r\n").contains("STAT get_hits 0\r\n"));
    }

    #[test]
    fn what_is_no_request_is_counted_and_not_answered() {
        let world = World::new();
        let counted = || world.counters[0].values();
        let before = counted();
        let frame = |sequence, total| Frame { request_id: 1, sequence, total }.bytes();
        assert!(world.datagram(b"get a\r").is_empty());
        assert!(world.datagram(&[&frame(0, 1)[..], b"get a"].concat()).is_empty());
        assert!(world.datagram(&[&frame(0, 2)[..], b"get a\r\n"].concat()).is_empty());
        assert!(world.datagram(&[&frame(0, 0)[..], b"get a\r\n"].concat()).is_empty());
        assert!(world.datagram(&frame(0, 1)).is_empty());
        let name = |name| Counters::NAMES.iter().position(|n| *n == name).unwrap();
        assert_eq!(counted()[name("udp_malformed")] - before[name("udp_malformed")], 2);
        assert_eq!(counted()[name("udp_multi_packet")] - before[name("udp_multi_packet")], 2);
        // The number of a datagram in a message of one is not looked at, as in memcached.
        assert_eq!(world.datagram(&[&frame(3, 1)[..], b"get a\r\n"].concat()).len(), 1);
    }

    #[test]
    fn short_requests_do_not_make_endless_responses() {
        let world = World::new();
        let frame = Frame { request_id: 1, sequence: 0, total: 1 }.bytes();
        let large = format!("set a 0 0 60000\r\n{}\r\n", "x".repeat(60_000));
        assert_eq!(world.ask(&large), "STORED\r\n");
        let refused = "SERVER_ERROR out of memory writing get response\r\n";
        assert_eq!(world.ask(&format!("get{}\r\n", " a".repeat(5_000))), refused);
        let many = world.datagram(&[&frame[..], "x\n".repeat(30_000).as_bytes()].concat());
        assert_eq!(many.len(), MAX_DATAGRAMS);
        assert_eq!(world.counters[0].cut.get(), 1);
        let out = world.datagram(&[&frame[..], b"get a\r\n"].concat());
        let bytes: usize = (0..out.len()).map(|i| out.get(i).1.len() - HEADER).sum();
        assert_eq!((out.len(), bytes), (60_024usize.div_ceil(PAYLOAD), 60_024));
    }

    /// What requests are made of, as a pattern.
    const WORDS: &str = "get|gets|set|add|cas|append|delete|incr|touch|flush_all|stats|\
                         -1|0|1|3|a|b| |\r\n|\r\nx\r\n";

    proptest! {
        /// Whatever arrives: each response is a whole message, and nothing panics.
        #[test]
        fn any_datagram_is_borne(
            header in prop::collection::vec(prop_oneof![Just(0u8), Just(1), any::<u8>()], 8),
            body in prop_oneof![
                prop::collection::vec(any::<u8>(), 0..200),
                prop::collection::vec(WORDS, 0..40)
                    .prop_map(|words| words.join(" ").into_bytes()),
            ],
        ) {
            let world = World::new();
            let valid = [0, 1, 0, 0, 0, 1, 0, 0];
            for header in [&header[..], &valid] {
                let out = world.datagram(&[header, &body].concat());
                for i in 0..out.len() {
                    let (frame, payload) = Frame::split(out.get(i).1).unwrap();
                    prop_assert!(frame.sequence < frame.total && !payload.is_empty());
                }
            }
        }
    }
}
