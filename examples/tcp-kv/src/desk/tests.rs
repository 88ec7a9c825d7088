use std::cell::Cell;

use proptest::prelude::*;

use super::*;

struct World {
    store: Store,
    counters: [Counters; 1],
    stop: Stop,
    now: Cell<u32>,
}

impl World {
    fn new() -> Self {
        World {
            store: Store::new(0, 1),
            counters: Default::default(),
            stop: Stop::new().unwrap(),
            now: Cell::new(5),
        }
    }

    fn serve(&self, stream: &[u8]) -> (Served, Vec<u8>) {
        let mut out = Vec::new();
        let [counters] = &self.counters;
        let (store, stop) = (&self.store, &self.stop);
        let desk = Desk { store, now: self.now.get(), counters, threads: &self.counters, stop };
        (desk.serve(stream, &mut Args::new(), &mut out), out)
    }

    /// The answers to all of `requests`.
    fn ask(&self, requests: &[u8]) -> String {
        let (served, out) = self.serve(requests);
        assert_eq!((served.taken, served.skip, served.more), (requests.len(), 0, false));
        String::from_utf8(out).unwrap()
    }
}

/// RESP of these words.
fn resp(words: &[&str]) -> Vec<u8> {
    let mut request = format!("*{}\r\n", words.len());
    words.iter().for_each(|word| request += &format!("${}\r\n{word}\r\n", word.len()));
    request.into_bytes()
}

#[test]
fn memcached_is_spoken() {
    let world = World::new();
    let pipelined = b"set a 5 0 3\r\nxyz\r\nget a b\r\nset b 0 0 1 noreply\r\n7\r\nincr b 5\r\ngets b\r\n";
    assert_eq!(
        world.ask(pipelined),
        "STORED\r\nVALUE a 5 3\r\nxyz\r\nEND\r\n12\r\nVALUE b 0 2 3\r\n12\r\nEND\r\n"
    );
    for (request, answer) in [
        ("add a 0 0 1\r\n1\r\n", "NOT_STORED\r\n"),
        ("replace c 0 0 1\r\n1\r\n", "NOT_STORED\r\n"),
        ("decr b 2\r\n", "10\r\n"),
        ("touch a 0\r\ntouch c 0\r\n", "TOUCHED\r\nNOT_FOUND\r\n"),
        ("delete a\r\ndelete a\r\n", "DELETED\r\nNOT_FOUND\r\n"),
        ("verbosity 1\r\nbogus\r\n", "OK\r\nERROR\r\n"),
        ("set a 0 0 1\r\nxyz\r\n", "CLIENT_ERROR bad data chunk\r\nERROR\r\n"),
        ("flush_all\r\nget b\r\n", "OK\r\nEND\r\n"),
    ] {
        assert_eq!(world.ask(request.as_bytes()), answer, "{request:?}");
    }
    let stats = world.ask(b"stats\r\n");
    assert!(stats.contains("STAT threads 1\r\n") && stats.contains("STAT tcp_requests "), "{stats}");
    let (served, out) = world.serve(b"quit\r\nget a\r\n");
    assert_eq!((served, out.len()), (Served { taken: 6, close: true, ..Served::default() }, 0));
}

#[test]
fn redis_is_spoken() {
    let world = World::new();
    for (words, answer) in [
        (&["PING"][..], "+PONG\r\n"),
        (&["ping", "you"], "$3\r\nyou\r\n"),
        (&["SET", "a", "1"], "+OK\r\n"),
        (&["GET", "a"], "$1\r\n1\r\n"),
        (&["GET", "b"], "$-1\r\n"),
        (&["SET", "a", "2", "NX"], "$-1\r\n"),
        (&["SET", "b", "2", "xx"], "$-1\r\n"),
        (&["SET", "a", "9", "EX", "10", "XX"], "+OK\r\n"),
        (&["SET", "a", "9", "EX", "0"], "-ERR invalid expire time in 'set' command\r\n"),
        (&["SET", "a", "9", "PX", "x"], "-ERR value is not an integer or out of range\r\n"),
        (&["SET", "a", "9", "NX", "XX"], "-ERR syntax error\r\n"),
        (&["SETNX", "a", "9"], ":0\r\n"),
        (&["INCR", "a"], ":10\r\n"),
        (&["DECRBY", "a", "11"], ":-1\r\n"),
        (&["DECR", "new"], ":-1\r\n"),
        (&["INCRBY", "a", "9223372036854775807"], ":9223372036854775806\r\n"),
        (&["INCRBY", "a", "2"], "-ERR increment or decrement would overflow\r\n"),
        (&["MSET", "x", "1", "y", "two"], "+OK\r\n"),
        (&["INCR", "y"], "-ERR value is not an integer or out of range\r\n"),
        (&["MGET", "x", "none", "y"], "*3\r\n$1\r\n1\r\n$-1\r\n$3\r\ntwo\r\n"),
        (&["STRLEN", "y"], ":3\r\n"),
        (&["EXISTS", "x", "x", "none"], ":2\r\n"),
        (&["EXPIRE", "x", "100"], ":1\r\n"),
        (&["EXPIRE", "x", "-1"], ":1\r\n"),
        (&["GET", "x"], "$-1\r\n"),
        (&["DEL", "y", "y", "a"], ":2\r\n"),
        (&["SELECT", "0"], "+OK\r\n"),
        (&["SELECT", "1"], "-ERR DB index is out of range\r\n"),
        (&["CONFIG", "GET", "save"], "*0\r\n"),
        (&["GET"], "-ERR wrong number of arguments for 'get' command\r\n"),
        (&["MSET", "a", "1", "b"], "-ERR wrong number of arguments for 'mset' command\r\n"),
        (&["LPUSH", "a", "1"], "-ERR unknown command 'LPUSH'\r\n"),
        (&["FLUSHALL"], "+OK\r\n"),
        (&["GET", "new"], "$-1\r\n"),
    ] {
        assert_eq!(world.ask(&resp(words)), answer, "{words:?}");
    }
    assert_eq!(world.ask(b"PING\r\nSET k v\r\nGET k\r\nping\n"), "+PONG\r\n+OK\r\n$1\r\nv\r\n+PONG\r\n");
    assert!(world.serve(&resp(&["QUIT"])).0.close);
}

#[test]
fn counting_leaves_the_end_where_it_is() {
    let world = World::new();
    assert_eq!(world.ask(&resp(&["SET", "n", "8", "EX", "10"])), "+OK\r\n");
    assert_eq!(world.ask(&resp(&["INCRBY", "n", "2"])), ":10\r\n");
    world.now.set(14);
    assert_eq!(world.ask(&resp(&["INCR", "n"])), ":11\r\n");
    world.now.set(15);
    assert_eq!(world.ask(&resp(&["INCR", "n"])), ":1\r\n");
}

#[test]
fn both_see_the_same_items() {
    let world = World::new();
    assert_eq!(world.ask(b"set n 7 0 3\r\n100\r\n"), "STORED\r\n");
    assert_eq!(world.ask(b"decr n 1\r\n"), "99\r\n");
    assert_eq!(world.ask(&resp(&["INCR", "n"])), ":100\r\n", "memcached left a blank behind it");
    assert_eq!(world.ask(b"get n\r\n"), "VALUE n 7 3\r\n100\r\nEND\r\n");
    // Values may be anything.
    assert_eq!(world.ask(&resp(&["SET", "n", "a\r\nget n\r\n"])), "+OK\r\n");
    assert_eq!(world.ask(b"get n\r\n"), "VALUE n 0 10\r\na\r\nget n\r\n\r\nEND\r\n");
}

#[test]
fn limits_are_told_and_kept() {
    let world = World::new();
    let big = MAX_VALUE + 1;
    let head = format!("set a 0 0 {big}\r\n");
    let (served, out) = world.serve(&[head.as_bytes(), b"xyz"].concat());
    assert_eq!(String::from_utf8(out).unwrap(), "SERVER_ERROR object too large for cache\r\n");
    assert_eq!(served, Served { taken: head.len() + 3, skip: big + 2 - 3, ..Served::default() });
    for (stream, answer) in [
        (vec![b'x'; MAX_LINE], "CLIENT_ERROR line too long\r\n"),
        (b"*5000\r\n".to_vec(), "-ERR Protocol error: invalid multibulk length\r\n"),
        (b"*1\r\n$1048577\r\n".to_vec(), "-ERR Protocol error: invalid bulk length\r\n"),
        (b"*1\r\n:1\r\n".to_vec(), "-ERR Protocol error: expected '$'\r\n"),
        (b"*1\r\n$1\r\nxyz".to_vec(), "-ERR Protocol error: invalid bulk length\r\n"),
        (b"*111111111111111111111111".to_vec(), "-ERR Protocol error: invalid multibulk length\r\n"),
    ] {
        let (served, out) = world.serve(&stream);
        assert_eq!((String::from_utf8(out).unwrap(), served.close), (answer.into(), true));
    }
    assert_eq!(world.counters[0].malformed.get(), 6);
    // Answers leave before there are too many.
    world.ask(&resp(&["SET", "a", &"x".repeat(100_000)]));
    let many = b"get a\r\n".repeat(20);
    let (served, out) = world.serve(&many);
    assert!(served.more && served.taken == 3 * 7 && out.len() < 400_000, "{served:?}");
    // No short request makes an endless answer.
    let key = " a".repeat(1000);
    let answer = world.ask(format!("get{key}\r\n").as_bytes());
    assert_eq!(answer, "SERVER_ERROR out of memory writing get response\r\n");
    let keys = [vec!["MGET"], vec!["a"; 1000]].concat();
    assert_eq!(world.ask(&resp(&keys)), "-ERR the answer is too long\r\n");
}

/// What streams are made of, as a pattern.
const WORDS: &str = "get|set|cas|incr|GET|INCR|PING|stats|noreply|quit|-1|0|1|3|a|b|\\*1\r\n|\\*2\r\n|\\$1\r\n|\r\n|\r\nx\r\n";

proptest! {
    /// However a stream is cut, the answers are the same; and nothing panics.
    #[test]
    fn pieces_make_no_difference(
        stream in prop_oneof![
            prop::collection::vec(any::<u8>(), 0..200),
            prop::collection::vec(WORDS, 0..60).prop_map(|words| words.join(" ").into_bytes()),
            prop::collection::vec(WORDS, 0..60).prop_map(|words| words.concat().into_bytes()),
        ],
        piece in 1usize..9,
    ) {
        let (served, whole) = World::new().serve(&stream);
        let world = World::new();
        let (mut held, mut out, mut skip, mut close) = (Vec::new(), Vec::new(), 0usize, false);
        for byte in stream.chunks(piece) {
            let skipped = skip.min(byte.len());
            skip -= skipped;
            held.extend_from_slice(&byte[skipped..]);
            let (served, answers) = world.serve(&held);
            out.extend(answers);
            held.drain(..served.taken);
            skip += served.skip;
            close = served.close;
            if close {
                break;
            }
        }
        prop_assert_eq!(close, served.close);
        // The same but for the process' time, which `stats` does not tell here.
        prop_assert_eq!(String::from_utf8_lossy(&out), String::from_utf8_lossy(&whole));
    }
}
