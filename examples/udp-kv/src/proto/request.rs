//! Requests, read in place: keys and values are slices of the datagram.
//!
//! What is refused, and in which words, is as in memcached 1.6 (`proto_text.c`, `proto_parser.c`).

use super::MAX_KEY;

/// What a client asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request<'a> {
    /// `get`, `gets`: values of keys.
    Get {
        /// The keys, one or more, with blanks between them; see [`Request::keys`].
        keys: &'a [u8],
        /// Whether to tell each item's `cas` number.
        cas: bool,
    },
    /// `set`, `add`, `replace`, `append`, `prepend`, `cas`: a value for a key.
    Store(Storage<'a>),
    /// `delete`.
    Delete {
        /// Which.
        key: &'a [u8],
    },
    /// `incr`, `decr`: a number that is counted up or down.
    Arith(Arith<'a>),
    /// `touch`: another expiry for an item.
    Touch {
        /// Which.
        key: &'a [u8],
        /// The new expiry.
        expire: Expire,
    },
    /// `stats`, without arguments.
    Stats,
    /// `stats reset`.
    StatsReset,
    /// `version`.
    Version,
    /// `verbosity`: does nothing.
    Verbosity,
    /// `flush_all`: forget everything, now or later.
    FlushAll {
        /// From when on.
        at: Expire,
    },
    /// `quit`: nothing to do, where there is no connection.
    Quit,
}

/// How a value is to be stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// In any case.
    Set,
    /// If there is no such item.
    Add,
    /// If there is one.
    Replace,
    /// Behind the value that is there.
    Append,
    /// Before the value that is there.
    Prepend,
    /// If it has not changed since it was read with this `cas` number.
    Cas(u64),
    /// The same, and what else the item has stays: its flags and when it ends. No request of memcached's.
    Swap(u64),
}

/// A request to store something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Storage<'a> {
    /// How.
    pub verb: Verb,
    /// Under which key.
    pub key: &'a [u8],
    /// Opaque to the server.
    pub flags: u32,
    /// Until when.
    pub expire: Expire,
    /// What.
    pub value: &'a [u8],
}

/// A request to count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arith<'a> {
    /// The item.
    pub key: &'a [u8],
    /// By how much.
    pub delta: u64,
    /// Up or down.
    pub up: bool,
}

/// A time as clients give it: 0 for never, up to 30 days in seconds from now, beyond that in seconds of Unix time,
/// and negative for at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expire(pub i32);

/// A request, and where the next begins in the datagram.
#[derive(Debug, PartialEq, Eq)]
pub struct Parsed<'a> {
    /// The request; or what to answer to what is none.
    pub request: Result<Request<'a>, &'static str>,
    /// Whether the client wants no answer (`noreply`).
    pub quiet: bool,
    /// What follows.
    pub rest: &'a [u8],
}

const BAD_FORMAT: &str = "CLIENT_ERROR bad command line format";
const BAD_CHUNK: &str = "CLIENT_ERROR bad data chunk";
const BAD_DELTA: &str = "CLIENT_ERROR invalid numeric delta argument";
const BAD_EXPTIME: &str = "CLIENT_ERROR invalid exptime argument";
const UNKNOWN: &str = "ERROR";

impl Request<'_> {
    /// The keys of a list.
    pub fn keys(list: &[u8]) -> impl Iterator<Item = &[u8]> {
        list.split(|byte| *byte == b' ').filter(|key| !key.is_empty())
    }
}

/// Words of a line; more than any request has are not told apart.
struct Words<'a> {
    words: [&'a [u8]; 8],
    len: usize,
}

impl<'a> Words<'a> {
    fn of(line: &'a [u8]) -> Self {
        let mut words = Words { words: [&[]; 8], len: 0 };
        for word in Request::keys(line).take(8) {
            words.words[words.len] = word;
            words.len += 1;
        }
        words
    }

    fn get(&self, i: usize) -> Option<&'a [u8]> {
        self.words[..self.len].get(i).copied()
    }

    fn key(&self) -> Result<&'a [u8], &'static str> {
        match self.get(1) {
            Some(key) if key.len() <= MAX_KEY => Ok(key),
            _ => Err(BAD_FORMAT),
        }
    }

    fn number<N: std::str::FromStr>(&self, i: usize) -> Option<N> {
        std::str::from_utf8(self.get(i)?).ok()?.parse().ok()
    }

    /// Whether the last word is `noreply`; only where one can stand, from word `from` on.
    fn quiet(&self, from: usize) -> bool {
        self.len > from && self.words[self.len - 1] == b"noreply"
    }
}

/// The next request of `body`: what follows the frame header, or what earlier requests left of it. `None` if there is
/// none that is complete, which over UDP means that there never will be.
pub fn parse(body: &[u8]) -> Option<Parsed<'_>> {
    let end = body.iter().position(|byte| *byte == b'\n')?;
    let (line, rest) = (&body[..end], &body[end + 1..]);
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let command = Request::keys(line).next().unwrap_or(&[]);
    // Of these, all that follows on the line are keys.
    let cas = match command {
        b"get" => Some(false),
        b"gets" => Some(true),
        _ => None,
    };
    if let Some(cas) = cas {
        return Some(Parsed { request: get(line, command, cas), quiet: false, rest });
    }
    let words = Words::of(line);
    let verb = match command {
        b"set" => Some(Verb::Set),
        b"add" => Some(Verb::Add),
        b"replace" => Some(Verb::Replace),
        b"append" => Some(Verb::Append),
        b"prepend" => Some(Verb::Prepend),
        b"cas" => Some(Verb::Cas(0)),
        _ => None,
    };
    if let Some(verb) = verb {
        return Some(store(verb, &words, rest));
    }
    let (request, quiet) = other(command, &words);
    Some(Parsed { request, quiet, rest })
}

/// How much of a stream a request takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Length {
    /// Bytes of its line, with the end of it.
    pub line: usize,
    /// Bytes of the value that follows, with the end of it.
    pub value: usize,
}

/// How much the request at the beginning of `stream` takes, for those that come in pieces. `None`:
/// the end of its line is not there yet. What is no request, or none with a length to rely on, is a
/// line.
pub fn length(stream: &[u8]) -> Option<Length> {
    let end = stream.iter().position(|byte| *byte == b'\n')?;
    let line = &stream[..end];
    let words = Words::of(line.strip_suffix(b"\r").unwrap_or(line));
    let with_cas = match words.get(0) {
        Some(b"set" | b"add" | b"replace" | b"append" | b"prepend") => Some(0),
        Some(b"cas") => Some(1),
        _ => None,
    };
    let value = with_cas
        .filter(|cas| (5 + cas..=6 + cas).contains(&words.len))
        .and_then(|_| usize::try_from(words.number::<i32>(4)?).ok());
    Some(Length { line: end + 1, value: value.map_or(0, |len| len + 2) })
}

fn get<'a>(line: &'a [u8], command: &[u8], cas: bool) -> Result<Request<'a>, &'static str> {
    let at = line.iter().position(|byte| *byte != b' ').unwrap_or(0) + command.len();
    let keys = &line[at..];
    if Request::keys(keys).next().is_none() {
        return Err(UNKNOWN);
    }
    // None of them is looked up if one can't be a key.
    if Request::keys(keys).any(|key| key.len() > MAX_KEY) {
        return Err(BAD_FORMAT);
    }
    Ok(Request::Get { keys, cas })
}

/// A request with a value, which follows on a line of its own.
fn store<'a>(verb: Verb, words: &Words<'a>, rest: &'a [u8]) -> Parsed<'a> {
    let with_cas = usize::from(matches!(verb, Verb::Cas(_)));
    let quiet = words.quiet(5 + with_cas);
    let refuse = |why, rest| Parsed { request: Err(why), quiet, rest };
    if words.len < 5 + with_cas || words.len > 6 + with_cas {
        // Without a length that can be relied on, it is unknown where the next request would begin.
        return refuse(UNKNOWN, &[]);
    }
    let Some(len) = words.number::<i32>(4).and_then(|len| usize::try_from(len).ok()) else {
        return refuse(BAD_FORMAT, &[]);
    };
    let Some((value, tail)) = rest.split_at_checked(len) else { return refuse(BAD_CHUNK, &[]) };
    let Some(rest) = tail.strip_prefix(b"\r\n") else { return refuse(BAD_CHUNK, &[]) };
    let verb = match (verb, words.number(5)) {
        (Verb::Cas(_), None) => return refuse(BAD_FORMAT, rest),
        (Verb::Cas(_), Some(cas)) => Verb::Cas(cas),
        (verb, _) => verb,
    };
    let request = match (words.key(), words.number(2), words.number(3).map(Expire)) {
        (Ok(key), Some(flags), Some(expire)) => {
            Ok(Request::Store(Storage { verb, key, flags, expire, value }))
        }
        _ => Err(BAD_FORMAT),
    };
    Parsed { request, quiet, rest }
}

/// A request of one line, and whether it is to be answered.
fn other<'a>(command: &[u8], words: &Words<'a>) -> (Result<Request<'a>, &'static str>, bool) {
    match command {
        b"delete" => {
            let quiet = words.quiet(2);
            let arguments = words.len - 1 - usize::from(quiet);
            // Old clients say when: only at once is known.
            let fits = arguments == 1 || (arguments == 2 && words.get(2) == Some(b"0"));
            let request = match arguments {
                0 => Err(UNKNOWN),
                _ if !fits => Err(BAD_FORMAT),
                _ => words.key().map(|key| Request::Delete { key }),
            };
            (request, quiet)
        }
        b"incr" | b"decr" if (3..=4).contains(&words.len) => {
            let up = command == b"incr";
            let request = words.key().and_then(|key| {
                let delta = words.number(2).ok_or(BAD_DELTA)?;
                Ok(Request::Arith(Arith { key, delta, up }))
            });
            (request, words.quiet(3))
        }
        b"touch" if (3..=4).contains(&words.len) => {
            let request = words.key().and_then(|key| {
                let expire = words.number(2).map(Expire).ok_or(BAD_EXPTIME)?;
                Ok(Request::Touch { key, expire })
            });
            (request, words.quiet(3))
        }
        b"flush_all" => {
            let quiet = words.quiet(1);
            let at = match words.len - usize::from(quiet) {
                1 => Some(Expire(0)),
                _ => words.number(1).map(Expire),
            };
            (at.map(|at| Request::FlushAll { at }).ok_or(BAD_EXPTIME), quiet)
        }
        b"verbosity" if words.len > 1 => (Ok(Request::Verbosity), words.quiet(1)),
        b"stats" if words.len == 1 => (Ok(Request::Stats), false),
        b"stats" if words.get(1) == Some(b"reset") => (Ok(Request::StatsReset), false),
        b"version" => (Ok(Request::Version), false),
        b"quit" => (Ok(Request::Quit), true),
        _ => (Err(UNKNOWN), false),
    }
}
