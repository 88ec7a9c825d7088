//! IPv4 options (RFC 791 section 3.1): which of them a header has, whether they are well-formed,
//! and what record route and timestamp ask for (the kernel's `ip_options_compile`,
//! `ip_forward_options` and `ip_options_echo`).
//!
//! For the slow path, which is where packets with options go. Invariant: [`parse`] changes nothing,
//! so that an ICMP error quotes the packet as it came; what it found is [recorded](Options::record)
//! in the header when the packet goes on, and in [`EchoOptions`] when it is answered.

use std::net::Ipv4Addr;

use super::header::MIN_LEN;

const END: u8 = 0;
const NO_OPERATION: u8 = 1;
const RECORD_ROUTE: u8 = 7;
const TIMESTAMP: u8 = 68;
const LOOSE_SOURCE_ROUTE: u8 = 131;
const STRICT_SOURCE_ROUTE: u8 = 137;
const ROUTER_ALERT: u8 = 148;

/// What a timestamp option wants to know.
const TIME_ONLY: u8 = 0;
const TIME_AND_ADDRESS: u8 = 1;
const OF_LISTED: u8 = 3;

/// Bytes of options that a header has room for.
const MOST: usize = 40;

/// What is done with record route and timestamp options (RFC 7126 sections 4.5 and 4.6 ask for the
/// choice).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OptionPolicy {
    /// What they say, on the way and in echo replies, as the kernel does.
    #[default]
    Process,
    /// Nothing: packets pass, and are answered, as if they had none.
    Ignore,
    /// Packets with them are dropped.
    Drop,
}

/// Where the options of a header are that softnet knows, in bytes from its first; the header was
/// found well-formed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    record_route: Option<usize>,
    timestamp: Option<usize>,
    source_route: Option<usize>,
    /// Where the list ends, if before the header does.
    end: Option<usize>,
}

/// What a router writes down: its address on the way out, the time (see [`timestamp`]), and which
/// addresses it has.
pub struct Record<'a> {
    /// An address.
    pub addr: Ipv4Addr,
    /// The time, as the wire has it.
    pub time: u32,
    /// Whether an address is one of softnet's own.
    pub is_own: &'a dyn Fn(Ipv4Addr) -> bool,
}

/// Finds the options of `header`, which ends where it says. `Err` is the place of the first byte
/// that can't be: the pointer of a parameter problem.
pub fn parse(header: &[u8]) -> Result<Options, u8> {
    let mut found = Options::default();
    let mut at = MIN_LEN;
    while let Some(&kind) = header.get(at) {
        let wrong = |offset: usize| (at + offset) as u8;
        match kind {
            END => {
                found.end = Some(at + 1);
                break;
            }
            NO_OPERATION => {
                at += 1;
                continue;
            }
            _ => {}
        }
        let len = header.get(at + 1).map_or(0, |len| usize::from(*len));
        let option = header.get(at..at + len).filter(|_| len >= 2).ok_or(wrong(0))?;
        // A second one of these would have the first one's say.
        let slot = match kind {
            RECORD_ROUTE => Some(&mut found.record_route),
            TIMESTAMP => Some(&mut found.timestamp),
            LOOSE_SOURCE_ROUTE | STRICT_SOURCE_ROUTE => Some(&mut found.source_route),
            _ => None,
        };
        if slot.is_some_and(|slot| slot.replace(at).is_some()) {
            return Err(wrong(0));
        }
        // The place of the fault, from the first byte of the option.
        let fault = match *option {
            [RECORD_ROUTE | LOOSE_SOURCE_ROUTE | STRICT_SOURCE_ROUTE, _] => Some(1),
            [LOOSE_SOURCE_ROUTE | STRICT_SOURCE_ROUTE, _, pointer, ..] => (pointer < 4).then_some(2),
            [RECORD_ROUTE, _, pointer, ..] => {
                let room = (usize::from(pointer)..=len).count();
                (pointer < 4 || (1..4).contains(&room)).then_some(2)
            }
            [TIMESTAMP, _, pointer, flags, ..] => {
                let room = (usize::from(pointer)..=len).count();
                let needed = if flags & 15 == TIME_ONLY { 4 } else { 8 };
                // The kernel knows no more of other flags than that there is room for a time.
                let needed =
                    if matches!(flags & 15, TIME_ONLY | TIME_AND_ADDRESS | OF_LISTED) { needed } else { 4 };
                match room {
                    _ if pointer < 5 => Some(2),
                    0 if flags & 15 != OF_LISTED && flags >> 4 == 15 => Some(3),
                    0 => None,
                    room => (room < needed).then_some(2),
                }
            }
            [TIMESTAMP | ROUTER_ALERT, ..] if len < 4 => Some(1),
            _ => None,
        };
        if let Some(offset) = fault {
            return Err(wrong(offset));
        }
        at += len;
    }
    Ok(found)
}

impl Options {
    /// Whether the packet asks for a way of its own.
    pub fn has_source_route(&self) -> bool {
        self.source_route.is_some()
    }

    /// Whether it asks for something to be written down.
    pub fn wants_record(&self) -> bool {
        self.record_route.is_some() || self.timestamp.is_some()
    }

    /// Writes into `header`, of which these are the options, what they ask for, and zeros behind
    /// the end of the list. The checksum is the caller's to renew.
    pub fn record(&self, header: &mut [u8], what: &Record<'_>) {
        if let Some(rest) = self.end.and_then(|end| header.get_mut(end..)) {
            rest.fill(END);
        }
        if let Some(option) = self.record_route.and_then(|at| option_at(header, at)) {
            record_route(option, what.addr);
        }
        if let Some(option) = self.timestamp.and_then(|at| option_at(header, at)) {
            let stamped = stamp(option, what);
            // That it found no room is noted.
            if !stamped && is_full(option) && option[3] & 15 != OF_LISTED {
                option[3] = option[3].saturating_add(0x10);
            }
        }
    }
}

/// The option that begins at `at`.
fn option_at(header: &mut [u8], at: usize) -> Option<&mut [u8]> {
    let len = usize::from(*header.get(at + 1)?);
    header.get_mut(at..at + len)
}

fn is_full(option: &[u8]) -> bool {
    usize::from(option[2]) > option.len()
}

/// Puts `bytes` where the pointer of `option` says, and moves that behind them; false if there is
/// no room.
fn put<const N: usize>(option: &mut [u8], bytes: [u8; N]) -> bool {
    let Some(pointer) = option.get(2).copied() else { return false };
    let Some(room) = usize::from(pointer).checked_sub(1).and_then(|at| option.get_mut(at..at + N)) else {
        return false;
    };
    room.copy_from_slice(&bytes);
    option[2] = pointer.wrapping_add(N as u8);
    true
}

fn record_route(option: &mut [u8], addr: Ipv4Addr) {
    put(option, addr.octets());
}

/// Fills in the next entry of a timestamp option. False if it has none, or none for us.
fn stamp(option: &mut [u8], what: &Record<'_>) -> bool {
    let time = what.time.to_be_bytes();
    let [a, b, c, d] = what.addr.octets();
    let [e, f, g, h] = time;
    match option.get(3).map(|flags| flags & 15) {
        Some(TIME_ONLY) => put(option, time),
        Some(TIME_AND_ADDRESS) => put(option, [a, b, c, d, e, f, g, h]),
        Some(OF_LISTED) => {
            let at = usize::from(option[2]).saturating_sub(1);
            let Some(&[a, b, c, d]) = option.get(at..).and_then(|rest| rest.first_chunk()) else {
                return false;
            };
            (what.is_own)(Ipv4Addr::new(a, b, c, d)) && put(option, [a, b, c, d, e, f, g, h])
        }
        _ => false,
    }
}

/// The options of an echo reply: what those of the request ask for, brought up to date for the
/// host's way in and for its way out (RFC 1122 section 3.2.2.6), and nothing else.
#[derive(Clone, Copy, Debug)]
pub struct EchoOptions {
    bytes: [u8; MOST],
    len: usize,
}

impl EchoOptions {
    /// None.
    pub const NONE: EchoOptions = EchoOptions { bytes: [0; MOST], len: 0 };

    /// What answers the `options` of `header`.
    pub fn of(header: &[u8], options: &Options, what: &Record<'_>) -> Self {
        let mut echo = EchoOptions::NONE;
        for at in [options.record_route, options.timestamp].into_iter().flatten() {
            let mut option = [0; MOST];
            let Some(from) = header.get(at..).and_then(|rest| rest.get(..usize::from(*rest.get(1)?))) else {
                continue;
            };
            let Some(option) = option.get_mut(..from.len()) else { continue };
            option.copy_from_slice(from);
            let place = Options {
                record_route: (option[0] == RECORD_ROUTE).then_some(0),
                timestamp: (option[0] == TIMESTAMP).then_some(0),
                ..Options::default()
            };
            place.record(option, what);
            // Once more, if there is room; that there is none was noted.
            if !is_full(option) {
                place.record(option, what);
            }
            if let Some(to) = echo.bytes.get_mut(echo.len..echo.len + option.len()) {
                to.copy_from_slice(option);
                echo.len += option.len();
            }
        }
        echo.len = echo.len.next_multiple_of(4).min(MOST);
        echo
    }

    /// The bytes, a multiple of four.
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// The time of day as a timestamp option has it, `utc` being the time since midnight UT in ns: ms;
/// or, if that is not known, ms of any `clock` (ns), marked as such.
pub fn timestamp(utc: Option<u64>, clock: u64) -> u32 {
    const MS: u64 = 1_000_000;
    const DAY_MS: u64 = 86_400_000;
    match utc {
        Some(ns) => (ns / MS % DAY_MS) as u32,
        None => (clock / MS) as u32 | 1 << 31,
    }
}

#[cfg(all(test, not(feature = "loom")))]
#[path = "options_tests.rs"]
mod tests;
