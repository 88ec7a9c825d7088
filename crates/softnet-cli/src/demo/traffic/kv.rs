//! Requests to the server on the router itself, in memcached's protocol over UDP: a value of 1 to 1000 bytes is set, and
//! got again. Each answer is compared with the only right one to the last byte.

use std::time::Instant;

use super::super::flow::{Flows, Ip};
use super::super::kv;
use super::super::payload::Seed;
use super::ask::{ask, connect};

/// Most bytes of a value: with its key it fits into one datagram.
const MAX_VALUE: usize = 1000;
/// Keys that a client uses in turn, so that what it gets is seldom what was stored there first.
const KEYS: u64 = 1000;

/// A request and its answer. Both begin with the frame of a message of one datagram.
#[derive(Debug, PartialEq, Eq)]
struct Asked {
    request: Vec<u8>,
    answer: Vec<u8>,
}

/// What sets value `number` of the client that is called `name`, and what gets it.
fn set_and_get(name: &str, number: u64) -> [Asked; 2] {
    let key = format!("{name}:{}", number % KEYS);
    let seed = Seed::new(name, number);
    let mut value = vec![0; seed.number(1, MAX_VALUE)];
    seed.fill(0, &mut value);
    let (flags, len) = (number as u16, value.len());
    // An id of its own for each request: a late answer is not taken for another's.
    let frame = |id: u64| {
        let [high, low] = (id as u16).to_be_bytes();
        [high, low, 0, 0, 0, 1, 0, 0]
    };
    let (set, get) = (frame(2 * number), frame(2 * number + 1));
    [
        Asked {
            request: [&set, format!("set {key} {flags} 0 {len}\r\n").as_bytes(), &value, b"\r\n"].concat(),
            answer: [&set[..], b"STORED\r\n"].concat(),
        },
        Asked {
            request: [&get, format!("get {key}\r\n").as_bytes()].concat(),
            answer: [&get, format!("VALUE {key} {flags} {len}\r\n").as_bytes(), &value, b"\r\nEND\r\n"]
                .concat(),
        },
    ]
}

/// Whether `message` is what `expected` says; `None` if it answers another request.
fn compare(expected: &[u8], message: &[u8], name: &str) -> Result<Option<()>, String> {
    if message.get(..2) != expected.get(..2) {
        return Ok(None);
    }
    match message.iter().zip(expected).position(|(a, b)| a != b) {
        Some(at) => Err(format!("the answer to {name} differs at byte {at}")),
        None if message.len() != expected.len() => {
            Err(format!("the answer to {name} has {} bytes, expected {}", message.len(), expected.len()))
        }
        None => Ok(Some(())),
    }
}

/// Asks until told to stop.
pub(super) fn client(flows: &Flows, ip: Ip) -> Result<(), String> {
    let flow = &flows.kv[ip];
    let socket = connect(kv::address(ip)).map_err(|error| error.to_string())?;
    for number in 0.. {
        if flows.stopping() {
            break;
        }
        for (Asked { request, answer }, verb) in set_and_get(flow.name, number).iter().zip(["set", "get"]) {
            let name = format!("{verb} {number}");
            let asked = Instant::now();
            ask(flow, &socket, request, &name, |message| compare(answer, message, &name))?;
            flow.verified(request.len() + answer.len(), asked.elapsed());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_and_answers_are_those_of_the_protocol() {
        let [set, get] = set_and_get("kv6", 1007);
        let (head, rest) = set.request.split_at(8);
        assert_eq!(head, [0x07, 0xde, 0, 0, 0, 1, 0, 0]);
        let line = rest.iter().position(|b| *b == b'\n').unwrap() + 1;
        let (line, value) =
            (str::from_utf8(&rest[..line]).unwrap(), rest[line..].strip_suffix(b"\r\n").unwrap());
        assert_eq!(line, format!("set kv6:7 1007 0 {}\r\n", value.len()));
        assert_eq!(set.answer, [head, b"STORED\r\n"].concat());
        assert_eq!(get.request, b"\x07\xdf\0\0\0\x01\0\0get kv6:7\r\n");
        let told = format!("VALUE kv6:7 1007 {}\r\n", value.len());
        assert_eq!(get.answer, [&get.request[..8], told.as_bytes(), value, b"\r\nEND\r\n"].concat());
        assert_ne!(set_and_get("kv6", 7)[1].answer[8..], get.answer[8..], "the same key");
    }

    #[test]
    fn only_the_right_answer_is_right() {
        let [_, Asked { answer, .. }] = set_and_get("kv", 3);
        assert_eq!(compare(&answer, &answer, "get 3"), Ok(Some(())));
        for at in 2..answer.len() {
            let mut wrong = answer.clone();
            wrong[at] ^= 1;
            let error = compare(&answer, &wrong, "get 3");
            assert_eq!(error, Err(format!("the answer to get 3 differs at byte {at}")));
            let (n, m) = (at, answer.len());
            let error = compare(&answer, &answer[..at], "get 3");
            assert_eq!(error, Err(format!("the answer to get 3 has {n} bytes, expected {m}")));
        }
        assert_eq!(compare(&answer, &set_and_get("kv", 4)[1].answer, "get 3"), Ok(None));
        assert_eq!(compare(&answer, b"", "get 3"), Ok(None));
    }
}
