//! memcached's commands, whatever a request came by: what it asks for is done, and answered in
//! memcached's words.

use crate::proto::{Request, Response};
use crate::store::{Counted, Store, Stored};

/// Does what `request` asks for, at the store's time `now`, and writes the answer. `more` tells
/// further statistics.
pub fn carry_out(
    store: &Store,
    now: u32,
    request: &Request<'_>,
    reply: &mut impl Response,
    more: impl FnOnce(&mut dyn FnMut(&str, u64)),
) {
    match *request {
        Request::Get { keys, cas } => get(store, now, (keys, cas), reply),
        Request::Store(ref storage) => {
            let word = match store.store(storage, now) {
                Stored::Stored => "STORED",
                Stored::NotStored => "NOT_STORED",
                Stored::Exists => "EXISTS",
                Stored::NotFound => "NOT_FOUND",
                Stored::TooLarge => TOO_LARGE,
            };
            line(reply, word);
        }
        Request::Delete { key } => line(reply, if store.delete(key, now) { "DELETED" } else { "NOT_FOUND" }),
        Request::Arith(ref arith) => match store.arith(arith, now) {
            Counted::Value(value) => {
                reply.number(value);
                reply.put(b"\r\n");
            }
            Counted::NotFound => line(reply, "NOT_FOUND"),
            Counted::NotNumeric => {
                line(reply, "CLIENT_ERROR cannot increment or decrement non-numeric value");
            }
        },
        Request::Touch { key, expire } => {
            line(reply, if store.touch(key, expire, now) { "TOUCHED" } else { "NOT_FOUND" });
        }
        Request::FlushAll { at } => {
            store.flush_all(at, now);
            line(reply, "OK");
        }
        Request::Version => line(reply, concat!("VERSION ", env!("CARGO_PKG_VERSION"))),
        Request::Verbosity => line(reply, "OK"),
        Request::Stats => tell_stats(store, now, reply, more),
        Request::StatsReset => {
            store.reset_counters();
            line(reply, "RESET");
        }
        Request::Quit => {}
    }
}

/// What is answered to a value that no item can hold.
pub const TOO_LARGE: &str = "SERVER_ERROR object too large for cache";

/// Writes a line.
pub fn line(reply: &mut impl Response, text: &str) {
    reply.put(text.as_bytes());
    reply.put(b"\r\n");
}

fn get(store: &Store, now: u32, (keys, cas): (&[u8], bool), reply: &mut impl Response) {
    for key in Request::keys(keys) {
        store.get(key, now, |item| {
            reply.put(b"VALUE ");
            reply.put(key);
            for number in
                [item.flags.into(), item.value.len() as u64].into_iter().chain(cas.then_some(item.cas))
            {
                reply.put(b" ");
                reply.number(number);
            }
            reply.put(b"\r\n");
            reply.put(item.value);
            reply.put(b"\r\n");
        });
    }
    reply.put(b"END\r\n");
    if reply.is_full() {
        reply.clear();
        line(reply, "SERVER_ERROR out of memory writing get response");
    }
}

fn tell_stats(
    store: &Store,
    now: u32,
    reply: &mut impl Response,
    more: impl FnOnce(&mut dyn FnMut(&str, u64)),
) {
    let items = store.counters();
    let mut stat = |name: &str, value: u64| {
        reply.put(b"STAT ");
        reply.put(name.as_bytes());
        reply.put(b" ");
        reply.number(value);
        reply.put(b"\r\n");
    };
    stat("pid", std::process::id().into());
    stat("uptime", now.into());
    stat("limit_maxbytes", store.limit() as u64);
    stat("cmd_get", items.get_hits + items.get_misses);
    stat("cmd_set", items.cmd_set);
    stat("cmd_flush", store.flushes());
    stat("get_hits", items.get_hits);
    stat("get_misses", items.get_misses);
    stat("delete_hits", items.delete_hits);
    stat("delete_misses", items.delete_misses);
    stat("bytes", items.bytes);
    stat("curr_items", items.curr_items);
    stat("total_items", items.total_items);
    stat("evictions", items.evictions);
    stat("reclaimed", items.reclaimed);
    more(&mut stat);
    reply.put(b"END\r\n");
}
