//! What comes on a connection is answered: pure, bytes in, bytes out.

use softnet_testkit::datagrams::Stop;
use udp_kv::commands::{self, TOO_LARGE, line};
use udp_kv::proto::{Request, Response, length, parse};
use udp_kv::store::{MAX_VALUE, Store};

use crate::redis::{self, Args, Words};
use crate::server::Counters;

/// Longest line of memcached's, or inline request of redis'.
pub const MAX_LINE: usize = 64 << 10;
/// Most bytes of the answer to one request.
const MAX_RESPONSE: usize = 16 << 20;
/// Bytes of answers from which on they are sent before more is served.
const ENOUGH: usize = 256 << 10;

/// What it takes to answer.
pub struct Desk<'a> {
    /// The items.
    pub store: &'a Store,
    /// The store's time.
    pub now: u32,
    /// What the calling thread counts.
    pub counters: &'a Counters,
    /// What all threads count, for `stats`.
    pub threads: &'a [Counters],
    /// Ends a long run of requests.
    pub stop: &'a Stop,
}

/// How far a stream was served.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Served {
    /// Bytes that are done with.
    pub taken: usize,
    /// Bytes that come next and belong to a value that was refused.
    pub skip: usize,
    /// Whether to close the connection once the answers are sent.
    pub close: bool,
    /// Whether there may be more requests in what is left.
    pub more: bool,
}

/// What is written to a connection.
struct Answer<'a> {
    out: &'a mut Vec<u8>,
    begin: usize,
    full: bool,
}

impl<'a> Answer<'a> {
    fn new(out: &'a mut Vec<u8>) -> Self {
        Answer { begin: out.len(), out, full: false }
    }
}

impl Response for Answer<'_> {
    fn put(&mut self, bytes: &[u8]) {
        self.full |= self.out.len() - self.begin + bytes.len() > MAX_RESPONSE;
        if !self.full {
            self.out.extend_from_slice(bytes);
        }
    }

    fn is_full(&self) -> bool {
        self.full
    }

    fn clear(&mut self) {
        self.out.truncate(self.begin);
        self.full = false;
    }
}

/// What a stream begins with.
enum Begins {
    /// A request, so long; whether it is the last.
    Request(usize, bool),
    /// One whose value is refused: the length of its line, and of the value.
    Refused(usize, usize),
    /// Not all of one.
    Part,
    /// What no protocol has: the connection is closed.
    Bad,
}

impl Desk<'_> {
    /// Serves what is whole of `stream`, and appends the answers to `out`. `args` is room.
    pub fn serve(&self, stream: &[u8], args: &mut Args, out: &mut Vec<u8>) -> Served {
        let (mut served, begin) = (Served::default(), out.len());
        while served.taken < stream.len() {
            if out.len() - begin >= ENOUGH || self.stop.told() {
                return Served { more: true, ..served };
            }
            match self.one(&stream[served.taken..], args, out) {
                Begins::Request(len, last) => {
                    self.counters.requests.add(1);
                    served.taken += len;
                    if last {
                        return Served { close: true, ..served };
                    }
                }
                Begins::Refused(len, skip) => {
                    self.counters.requests.add(1);
                    let there = skip.min(stream.len() - served.taken - len);
                    served.taken += len + there;
                    served.skip = skip - there;
                }
                Begins::Part => return served,
                Begins::Bad => {
                    self.counters.malformed.add(1);
                    return Served { close: true, ..served };
                }
            }
        }
        served
    }

    fn one(&self, stream: &[u8], args: &mut Args, out: &mut Vec<u8>) -> Begins {
        let mut answer = Answer::new(out);
        if stream[0] == b'*' {
            return match redis::parse(stream, args) {
                Ok(None) => Begins::Part,
                // As redis: nothing was asked.
                Ok(Some(len)) if args.is_empty() => Begins::Request(len, false),
                Ok(Some(len)) => Begins::Request(len, self.redis(stream, args, &mut answer)),
                Err(why) => {
                    answer.put(format!("-{why}\r\n").as_bytes());
                    Begins::Bad
                }
            };
        }
        let Some(length) = length(&stream[..stream.len().min(MAX_LINE)]) else {
            if stream.len() < MAX_LINE {
                return Begins::Part;
            }
            line(&mut answer, "CLIENT_ERROR line too long");
            return Begins::Bad;
        };
        let (line_len, all) = (length.line, length.line + length.value);
        if is_redis(&stream[..line_len]) {
            words(&stream[..line_len], args);
            return Begins::Request(line_len, self.redis(stream, args, &mut answer));
        }
        if length.value > MAX_VALUE + 2 {
            line(&mut answer, TOO_LARGE);
            return Begins::Refused(line_len, length.value);
        }
        let Some(request) = stream.get(..all) else { return Begins::Part };
        let Some(parsed) = parse(request) else { return Begins::Part };
        match parsed.request {
            Ok(ref request) => {
                let more = |stat: &mut dyn FnMut(&str, u64)| self.tell_stats(stat);
                commands::carry_out(self.store, self.now, request, &mut answer, more);
            }
            Err(why) => line(&mut answer, why),
        }
        if parsed.quiet {
            answer.clear();
        }
        Begins::Request(all, parsed.request == Ok(Request::Quit))
    }

    fn redis(&self, stream: &[u8], args: &Args, answer: &mut Answer<'_>) -> bool {
        redis::carry_out(self.store, self.now, &Words::new(stream, args), answer)
    }

    fn tell_stats(&self, stat: &mut dyn FnMut(&str, u64)) {
        stat("threads", self.threads.len() as u64);
        for (i, name) in Counters::NAMES.iter().enumerate() {
            stat(name, self.threads.iter().map(|counters| counters.values()[i]).sum());
        }
        let [opened, closed] = [0, 1].map(|i| self.threads.iter().map(|c| c.values()[i]).sum::<u64>());
        stat("curr_connections", opened.saturating_sub(closed));
    }
}

/// Whether a line is an inline request of redis': its first word is a command of redis', and not
/// written as memcached's commands are, which are in small letters.
fn is_redis(line: &[u8]) -> bool {
    let first = line.split(u8::is_ascii_whitespace).find(|word| !word.is_empty()).unwrap_or_default();
    let both = [&b"get"[..], b"set", b"incr", b"decr", b"quit"];
    redis::Command::of(first).is_some() && !both.contains(&first)
}

/// Sets `args` to the words of a line.
fn words(line: &[u8], args: &mut Args) {
    args.clear();
    let mut at = 0;
    for word in line.split(u8::is_ascii_whitespace) {
        if !word.is_empty() {
            args.push(at..at + word.len());
        }
        at += word.len() + 1;
    }
}

#[cfg(test)]
mod tests;
