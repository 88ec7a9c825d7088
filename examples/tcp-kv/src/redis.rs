//! redis' protocol: RESP requests and inline ones, and the commands of strings, on memcached's items.
//!
//! A value that one protocol stored is there for the other. Numbers count as redis has them:
//! signed, and from 0 if there is no item.

use std::ops::Range;
use std::time::{SystemTime, UNIX_EPOCH};

use udp_kv::proto::{Expire, Response, Storage, Verb};
use udp_kv::store::{MAX_VALUE, Store, Stored};

/// Most arguments of a request.
pub const MAX_ARGS: usize = 4096;
/// Most bytes of a request.
pub const MAX_REQUEST: usize = 4 << 20;
/// Longest relative time of memcached's; later times are in Unix time.
const MONTH: i64 = 60 * 60 * 24 * 30;

/// Where the arguments of a request are.
pub type Args = Vec<Range<usize>>;

/// Reads the RESP request at the beginning of `stream`, and sets `args`. Returns the bytes it
/// takes; `None`: the rest of it is not there yet.
///
/// # Errors
/// It is none; what to answer before the connection is closed.
pub fn parse(stream: &[u8], args: &mut Args) -> Result<Option<usize>, &'static str> {
    const BAD_COUNT: &str = "ERR Protocol error: invalid multibulk length";
    const BAD_LEN: &str = "ERR Protocol error: invalid bulk length";
    args.clear();
    let Some((count, mut at)) = number(stream, 0, BAD_COUNT)? else { return Ok(None) };
    let count = usize::try_from(count.max(0)).ok().filter(|n| *n <= MAX_ARGS).ok_or(BAD_COUNT)?;
    for _ in 0..count {
        match stream.get(at) {
            None => return Ok(None),
            Some(b'$') => {}
            Some(_) => return Err("ERR Protocol error: expected '$'"),
        }
        let Some((len, begin)) = number(stream, at, BAD_LEN)? else { return Ok(None) };
        let len = usize::try_from(len).ok().filter(|len| *len <= MAX_VALUE).ok_or(BAD_LEN)?;
        let end = begin + len;
        if end > MAX_REQUEST {
            return Err("ERR Protocol error: request too long");
        }
        match stream.get(end..end + 2) {
            None => return Ok(None),
            Some(b"\r\n") => {}
            Some(_) => return Err(BAD_LEN),
        }
        args.push(begin..end);
        at = end + 2;
    }
    Ok(Some(at))
}

/// The number behind the byte at `at`, and where its line ends; `None`: not all of it is there.
fn number(stream: &[u8], at: usize, bad: &'static str) -> Result<Option<(i64, usize)>, &'static str> {
    let line = stream.get(at + 1..).unwrap_or_default();
    match line.iter().take(24).position(|byte| *byte == b'\n') {
        Some(end) => {
            let digits = line[..end].strip_suffix(b"\r").ok_or(bad)?;
            Ok(Some((signed(digits).ok_or(bad)?, at + end + 2)))
        }
        None if line.len() >= 24 => Err(bad),
        None => Ok(None),
    }
}

fn signed(digits: &[u8]) -> Option<i64> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// The commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Is the server there?
    Ping,
    /// The same back.
    Echo,
    /// A value.
    Get,
    /// Values.
    MGet,
    /// A value for a key.
    Set,
    /// The same, if there is none.
    SetNx,
    /// Values for keys.
    MSet,
    /// Deletes items.
    Del,
    /// Counts keys that have items.
    Exists,
    /// Counts up by 1, down by 1, up or down by a number.
    Count {
        /// By a number that is given.
        by: bool,
        /// Up.
        up: bool,
    },
    /// Bytes of a value.
    StrLen,
    /// Seconds until an item ends.
    Expire,
    /// Deletes all.
    FlushAll,
    /// Another database: there is only 0.
    Select,
    /// What clients ask when they connect: an empty list.
    Nothing,
    /// The end.
    Quit,
}

impl Command {
    const ALL: [(&str, Command, Range<usize>); 22] = [
        ("PING", Command::Ping, 1..3),
        ("ECHO", Command::Echo, 2..3),
        ("GET", Command::Get, 2..3),
        ("MGET", Command::MGet, 2..MAX_ARGS + 1),
        ("SET", Command::Set, 3..7),
        ("SETNX", Command::SetNx, 3..4),
        ("MSET", Command::MSet, 3..MAX_ARGS + 1),
        ("DEL", Command::Del, 2..MAX_ARGS + 1),
        ("UNLINK", Command::Del, 2..MAX_ARGS + 1),
        ("EXISTS", Command::Exists, 2..MAX_ARGS + 1),
        ("INCR", Command::Count { by: false, up: true }, 2..3),
        ("DECR", Command::Count { by: false, up: false }, 2..3),
        ("INCRBY", Command::Count { by: true, up: true }, 3..4),
        ("DECRBY", Command::Count { by: true, up: false }, 3..4),
        ("STRLEN", Command::StrLen, 2..3),
        ("EXPIRE", Command::Expire, 3..4),
        ("FLUSHALL", Command::FlushAll, 1..3),
        ("FLUSHDB", Command::FlushAll, 1..3),
        ("SELECT", Command::Select, 2..3),
        ("COMMAND", Command::Nothing, 1..MAX_ARGS + 1),
        ("CONFIG", Command::Nothing, 2..MAX_ARGS + 1),
        ("QUIT", Command::Quit, 1..2),
    ];

    /// The command of this name, in whichever case, and how many words it takes, with its name.
    pub fn of(name: &[u8]) -> Option<(Command, Range<usize>)> {
        let found = Self::ALL.iter().find(|(own, ..)| own.as_bytes().eq_ignore_ascii_case(name));
        found.map(|(_, command, words)| (*command, words.clone()))
    }
}

/// Carries out a request of these words, the first of which is the command, and answers it. Whether
/// it was the last.
pub fn carry_out(store: &Store, now: u32, words: &Words<'_>, reply: &mut impl Response) -> bool {
    let name = words.get(0);
    let Some((command, takes)) = Command::of(name) else {
        let shown = String::from_utf8_lossy(&name[..name.len().min(64)]).replace(['\r', '\n'], " ");
        error(reply, &format!("ERR unknown command '{shown}'"));
        return false;
    };
    let odd = command == Command::MSet && words.len().is_multiple_of(2);
    if !takes.contains(&words.len()) || odd {
        let shown = String::from_utf8_lossy(name).to_lowercase();
        error(reply, &format!("ERR wrong number of arguments for '{shown}' command"));
        return false;
    }
    let rest = || (1..words.len()).map(|i| words.get(i));
    match command {
        Command::Ping if words.len() == 1 => put(reply, "+PONG\r\n"),
        Command::Ping | Command::Echo => bulk(reply, words.get(1)),
        Command::Get => value(store, now, words.get(1), reply),
        Command::MGet => {
            put(reply, &format!("*{}\r\n", words.len() - 1));
            rest().for_each(|key| value(store, now, key, reply));
        }
        Command::Set => set(store, now, words, reply),
        Command::SetNx => match put_item(store, now, Verb::Add, [words.get(1), words.get(2)], Expire(0)) {
            Stored::Stored => integer(reply, 1),
            Stored::TooLarge => too_large(reply),
            _ => integer(reply, 0),
        },
        Command::MSet => {
            let pairs = (1..words.len()).step_by(2).map(|i| [words.get(i), words.get(i + 1)]);
            // Those that have room are stored in any case.
            let stored = |pair| put_item(store, now, Verb::Set, pair, Expire(0)) == Stored::Stored;
            match pairs.filter(|pair| stored(*pair)).count() == words.len() / 2 {
                true => put(reply, "+OK\r\n"),
                false => too_large(reply),
            }
        }
        Command::Del => integer(reply, rest().filter(|key| store.delete(key, now)).count() as i64),
        Command::Exists => {
            integer(reply, rest().filter(|key| store.get(key, now, |_| ()).is_some()).count() as i64);
        }
        Command::Count { by, up } => count(store, now, words, (by, up), reply),
        Command::StrLen => {
            integer(reply, store.get(words.get(1), now, |item| item.value.len()).unwrap_or(0) as i64);
        }
        Command::Expire => match signed(words.get(2)) {
            Some(seconds) => integer(reply, store.touch(words.get(1), expiry(seconds), now).into()),
            None => error(reply, NOT_INTEGER),
        },
        Command::FlushAll => {
            store.flush_all(Expire(0), now);
            put(reply, "+OK\r\n");
        }
        Command::Select if words.get(1) == b"0" => put(reply, "+OK\r\n"),
        Command::Select => error(reply, "ERR DB index is out of range"),
        Command::Nothing => put(reply, "*0\r\n"),
        Command::Quit => put(reply, "+OK\r\n"),
    }
    if reply.is_full() {
        reply.clear();
        error(reply, "ERR the answer is too long");
    }
    command == Command::Quit
}

const NOT_INTEGER: &str = "ERR value is not an integer or out of range";

/// The words of a request.
pub struct Words<'a> {
    stream: &'a [u8],
    args: &'a Args,
}

impl<'a> Words<'a> {
    /// Where `args` are in `stream`; one at least.
    pub fn new(stream: &'a [u8], args: &'a Args) -> Self {
        Words { stream, args }
    }

    fn len(&self) -> usize {
        self.args.len()
    }

    fn get(&self, i: usize) -> &'a [u8] {
        self.args.get(i).map_or(&[], |range| &self.stream[range.clone()])
    }
}

fn put(reply: &mut impl Response, text: &str) {
    reply.put(text.as_bytes());
}

fn error(reply: &mut impl Response, why: &str) {
    put(reply, "-");
    put(reply, why);
    put(reply, "\r\n");
}

fn too_large(reply: &mut impl Response) {
    error(reply, "ERR key or value is too large");
}

fn integer(reply: &mut impl Response, number: i64) {
    put(reply, if number < 0 { ":-" } else { ":" });
    reply.number(number.unsigned_abs());
    put(reply, "\r\n");
}

fn bulk(reply: &mut impl Response, bytes: &[u8]) {
    put(reply, "$");
    reply.number(bytes.len() as u64);
    put(reply, "\r\n");
    reply.put(bytes);
    put(reply, "\r\n");
}

fn value(store: &Store, now: u32, key: &[u8], reply: &mut impl Response) {
    if store.get(key, now, |item| bulk(reply, item.value)).is_none() {
        put(reply, "$-1\r\n");
    }
}

/// A time from now in memcached's words; one that is over, or now, is at once.
fn expiry(seconds: i64) -> Expire {
    match seconds {
        ..=0 => Expire(-1),
        1..=MONTH => Expire(seconds as i32),
        _ => {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
            let at = i64::try_from(now).unwrap_or(i64::MAX).saturating_add(seconds);
            Expire(i32::try_from(at).unwrap_or(i32::MAX))
        }
    }
}

fn put_item(store: &Store, now: u32, verb: Verb, [key, value]: [&[u8]; 2], expire: Expire) -> Stored {
    store.store(&Storage { verb, key, flags: 0, expire, value }, now)
}

/// `SET key value [NX | XX] [EX seconds | PX milliseconds]`.
fn set(store: &Store, now: u32, words: &Words<'_>, reply: &mut impl Response) {
    let (mut verb, mut expire) = (Verb::Set, Expire(0));
    let mut i = 3;
    while i < words.len() {
        let option = words.get(i);
        let is = |name: &[u8]| option.eq_ignore_ascii_case(name);
        let step: i64 = if is(b"PX") { 1000 } else { 1 };
        match (signed(words.get(i + 1)), verb) {
            (_, Verb::Set) if is(b"NX") => verb = Verb::Add,
            (_, Verb::Set) if is(b"XX") => verb = Verb::Replace,
            (Some(time), _) if (is(b"EX") || is(b"PX")) && expire == Expire(0) => {
                if time <= 0 {
                    return error(reply, "ERR invalid expire time in 'set' command");
                }
                // Items end at whole seconds.
                expire = expiry((time - 1) / step + 1);
                i += 1;
            }
            (None, _) if (is(b"EX") || is(b"PX")) && i + 1 < words.len() => {
                return error(reply, NOT_INTEGER);
            }
            _ => return error(reply, "ERR syntax error"),
        }
        i += 1;
    }
    match put_item(store, now, verb, [words.get(1), words.get(2)], expire) {
        Stored::Stored => put(reply, "+OK\r\n"),
        Stored::TooLarge => too_large(reply),
        _ => put(reply, "$-1\r\n"),
    }
}

/// Counts: looks, and stores what it is then if nothing else has meanwhile. When the item ends stays.
fn count(store: &Store, now: u32, words: &Words<'_>, (by, up): (bool, bool), reply: &mut impl Response) {
    let key = words.get(1);
    let Some(delta) = (if by { signed(words.get(2)) } else { Some(1) }) else {
        return error(reply, NOT_INTEGER);
    };
    loop {
        let found = store.get(key, now, |item| {
            // memcached leaves blanks behind a number that became shorter.
            (signed(item.value.trim_ascii_end()), item.cas)
        });
        let (old, verb) = match found {
            Some((Some(old), cas)) => (old, Verb::Swap(cas)),
            Some((None, _)) => return error(reply, NOT_INTEGER),
            None => (0, Verb::Add),
        };
        let new = if up { old.checked_add(delta) } else { old.checked_sub(delta) };
        let Some(new) = new else { return error(reply, "ERR increment or decrement would overflow") };
        match put_item(store, now, verb, [key, new.to_string().as_bytes()], Expire(0)) {
            Stored::Stored => return integer(reply, new),
            Stored::TooLarge => return too_large(reply),
            Stored::NotStored | Stored::Exists | Stored::NotFound => {}
        }
    }
}
