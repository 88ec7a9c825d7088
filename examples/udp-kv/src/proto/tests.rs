use std::net::{Ipv4Addr, SocketAddr};

use proptest::prelude::*;
use softnet_testkit::datagrams::Outbox;

use super::*;

fn request(text: &str) -> Result<Request<'_>, &'static str> {
    let parsed = parse(text.as_bytes()).expect("a complete request");
    assert_eq!(parsed.rest, b"", "{text:?}");
    parsed.request
}

fn storage<'a>(verb: Verb, key: &'a str, flags: u32, expire: i32, value: &'a str) -> Request<'a> {
    let (key, value) = (key.as_bytes(), value.as_bytes());
    Request::Store(Storage { verb, key, flags, expire: Expire(expire), value })
}

#[test]
fn requests_are_read() {
    let get = |keys: &'static str, cas| Ok(Request::Get { keys: keys.as_bytes(), cas });
    assert_eq!(request("get a\r\n"), get(" a", false));
    assert_eq!(request("  gets a  bc\n"), get(" a  bc", true));
    let keys: Vec<&[u8]> = Request::keys(b" a  bc d ").collect();
    assert_eq!(keys, [&b"a"[..], b"bc", b"d"]);
    assert_eq!(request("set k 7 0 3\r\na\nb\r\n"), Ok(storage(Verb::Set, "k", 7, 0, "a\nb")));
    assert_eq!(request("add k 4294967295 -1 0\r\n\r\n"), Ok(storage(Verb::Add, "k", u32::MAX, -1, "")));
    assert_eq!(request("cas k 0 9 1 77\r\nx\r\n"), Ok(storage(Verb::Cas(77), "k", 0, 9, "x")));
    assert_eq!(request("delete k\r\n"), Ok(Request::Delete { key: b"k" }));
    assert_eq!(request("delete k 0\r\n"), Ok(Request::Delete { key: b"k" }));
    let arith = |delta, up| Ok(Request::Arith(Arith { key: b"k", delta, up }));
    assert_eq!(request("incr k 18446744073709551615\r\n"), arith(u64::MAX, true));
    assert_eq!(request("decr k 2\r\n"), arith(2, false));
    assert_eq!(request("touch k 10\r\n"), Ok(Request::Touch { key: b"k", expire: Expire(10) }));
    assert_eq!(request("flush_all\r\n"), Ok(Request::FlushAll { at: Expire(0) }));
    assert_eq!(request("flush_all 5 noreply\r\n"), Ok(Request::FlushAll { at: Expire(5) }));
    for (text, expected) in [
        ("stats\r\n", Request::Stats),
        ("stats reset\r\n", Request::StatsReset),
        ("version\r\n", Request::Version),
        ("verbosity 1\r\n", Request::Verbosity),
        ("quit\r\n", Request::Quit),
    ] {
        assert_eq!(request(text), Ok(expected));
    }
}

#[test]
fn several_requests_are_read_one_by_one() {
    let body = b"set a 0 0 1\r\nx\r\nget a\r\nfoo\r\nget b";
    let first = parse(body).unwrap();
    assert_eq!(first.request, Ok(storage(Verb::Set, "a", 0, 0, "x")));
    let second = parse(first.rest).unwrap();
    assert_eq!(second.request, Ok(Request::Get { keys: b" a", cas: false }));
    let third = parse(second.rest).unwrap();
    assert_eq!(third.request, Err("ERROR"));
    assert_eq!(parse(third.rest), None, "the last has no end");
}

#[test]
fn noreply_is_a_word_only_where_it_can_stand() {
    let quiet = |text: &str| parse(text.as_bytes()).unwrap().quiet;
    for text in [
        "set k 0 0 1 noreply\r\nx\r\n",
        "cas k 0 0 1 5 noreply\r\nx\r\n",
        "delete k noreply\r\n",
        "incr k 1 noreply\r\n",
        "touch k 1 noreply\r\n",
        "flush_all noreply\r\n",
        "verbosity 1 noreply\r\n",
    ] {
        assert!(quiet(text), "{text}");
    }
    for text in ["delete noreply\r\n", "get noreply\r\n", "set noreply 0 0 1\r\nx\r\n", "touch noreply 1\r\n"]
    {
        assert!(!quiet(text), "{text}");
    }
    // It is quiet about its error, too, as memcached is.
    assert!(quiet("set k 0 0 x noreply\r\n"));
}

#[test]
fn what_is_wrong_is_refused_in_memcacheds_words() {
    let long = "k".repeat(MAX_KEY + 1);
    let format = "CLIENT_ERROR bad command line format";
    for (text, expected) in [
        ("\r\n".into(), "ERROR"),
        ("get\r\n".into(), "ERROR"),
        ("get \r\n".into(), "ERROR"),
        ("GET a\r\n".into(), "ERROR"),
        ("incr k\r\n".into(), "ERROR"),
        ("set k 0 0\r\n".into(), "ERROR"),
        (format!("get a {long}\r\n"), format),
        (format!("delete {long}\r\n"), format),
        (format!("set {long} 0 0 1\r\nx\r\n"), format),
        ("delete k 5\r\n".into(), format),
        ("set k a 0 1\r\nx\r\n".into(), format),
        ("set k 0 a 1\r\nx\r\n".into(), format),
        ("set k 0 0 -1\r\nx\r\n".into(), format),
        ("cas k 0 0 1 a\r\nx\r\n".into(), format),
        ("incr k -1\r\n".into(), "CLIENT_ERROR invalid numeric delta argument"),
        ("touch k a\r\n".into(), "CLIENT_ERROR invalid exptime argument"),
        ("flush_all a\r\n".into(), "CLIENT_ERROR invalid exptime argument"),
        ("set k 0 0 3\r\nx\r\n".into(), "CLIENT_ERROR bad data chunk"),
        ("set k 0 0 1\r\nxyz\r\n".into(), "CLIENT_ERROR bad data chunk"),
        ("set k 0 0 2147483647\r\nx\r\n".into(), "CLIENT_ERROR bad data chunk"),
    ] {
        let parsed = parse(text.as_bytes()).unwrap();
        assert_eq!(parsed.request, Err(expected), "{text}");
    }
    assert_eq!(parse(b""), None);
    assert_eq!(parse(b"get a"), None);
}

fn client() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, 7).into()
}

/// What a client makes of the datagrams of one response.
fn assembled(out: &Outbox, request_id: u16) -> Vec<u8> {
    let mut message = Vec::new();
    for i in 0..out.len() {
        let (to, datagram) = out.get(i);
        assert_eq!(to, client());
        let (frame, payload) = Frame::split(datagram).unwrap();
        assert_eq!(frame, Frame { request_id, sequence: i as u16, total: out.len() as u16 });
        assert!(!payload.is_empty() && payload.len() <= PAYLOAD);
        assert!(i + 1 == out.len() || payload.len() == PAYLOAD, "all but the last are full");
        message.extend_from_slice(payload);
    }
    message
}

/// What requests are made of, as a pattern.
const WORDS: &str = "get|gets|set|add|cas|append|delete|incr|touch|flush_all|stats|verbosity|noreply|\
                     -1|0|1|2|99999999999|k| |\n|\r\n|\r\nx\r\n";

proptest! {
    /// However a response is put together, its datagrams carry it whole.
    #[test]
    fn a_response_is_what_was_put(
        pieces in prop::collection::vec(prop_oneof![0usize..40, 1380usize..1400, 0usize..9000], 0..12),
        request_id: u16,
    ) {
        let mut out = Outbox::default();
        let mut expected = Vec::new();
        let mut reply = Reply::new(&mut out, client(), request_id);
        for (i, len) in pieces.iter().enumerate() {
            let piece: Vec<u8> = (0..*len).map(|at| (at * 31 + i) as u8).collect();
            reply.put(&piece);
            reply.number(*len as u64);
            expected.extend_from_slice(&piece);
            expected.extend_from_slice(len.to_string().as_bytes());
        }
        reply.finish();
        prop_assert_eq!(assembled(&out, request_id), expected);
    }

    /// Whatever comes, it is taken apart without a panic, and from the front.
    #[test]
    fn any_bytes_are_read(body in prop::collection::vec(any::<u8>(), 0..300)) {
        all_is_read(&body);
    }

    /// The same of what looks like requests.
    #[test]
    fn anything_like_requests_is_read(words in prop::collection::vec(WORDS, 0..24)) {
        all_is_read(words.join(" ").as_bytes());
        all_is_read(words.concat().as_bytes());
    }

    #[test]
    fn frames_keep_their_numbers(request_id: u16, sequence: u16, total: u16, rest: Vec<u8>) {
        let frame = Frame { request_id, sequence, total };
        let datagram = [&frame.bytes()[..], &rest].concat();
        prop_assert_eq!(Frame::split(&datagram), Some((frame, &rest[..])));
        prop_assert_eq!(Frame::split(&datagram[..7]), None);
    }
}

fn all_is_read(mut body: &[u8]) {
    while let Some(parsed) = parse(body) {
        assert!(parsed.rest.len() < body.len());
        assert!(parsed.rest.is_empty() || body.ends_with(parsed.rest));
        match parsed.request {
            Ok(Request::Get { keys, .. }) => {
                assert!(Request::keys(keys).all(|key| (1..=MAX_KEY).contains(&key.len())));
                assert!(Request::keys(keys).next().is_some());
            }
            Ok(Request::Store(storage)) => assert!((1..=MAX_KEY).contains(&storage.key.len())),
            _ => {}
        }
        body = parsed.rest;
    }
}

#[test]
fn a_response_has_an_end() {
    let mut out = Outbox::default();
    out.begin(client());
    let mut reply = Reply::new(&mut out, client(), 1);
    reply.put(&vec![b'x'; MAX_DATAGRAMS * PAYLOAD]);
    assert!(!reply.is_full());
    reply.put(b"x");
    assert!(reply.is_full());
    reply.clear();
    reply.put(b"sorry");
    reply.finish();
    assert_eq!(out.len(), 2, "what was there before stays");
    assert_eq!(&out.get(1).1[HEADER..], b"sorry");
}
