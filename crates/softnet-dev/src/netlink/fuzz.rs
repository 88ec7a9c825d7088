//! What fuzzing runs on the parsers of netlink answers: whatever bytes they are given, none may panic. The tests run it on
//! the corpus of `fuzz/corpus`; `cargo fuzz` for as long as it is let.

use super::link::{Link, LinkCounters};
use super::netdev::KernelNapi;
use super::route::{default_route_outputs, local_address};
use super::socket::{attributes_of, messages, number, reason, text};

/// A datagram of the kernel's, read by all code that reads any.
pub fn netlink(data: &[u8]) {
    let Ok(messages) = messages(data, data.len()) else { return };
    assert!(messages.iter().map(|message| message.payload().len()).sum::<usize>() <= data.len());
    for message in &messages {
        let payload = message.payload();
        super::fib::fuzz(message.message_type(), message.flags(), payload);
        let _ = (reason(message), number(payload, 0), text(payload));
        if let Some(link) = Link::parse(payload) {
            assert!(!link.name.is_empty());
        }
        let _ = (LinkCounters::parse(payload), KernelNapi::parse(payload));
        let _ = payload.get(8..).and_then(local_address);
        // No more interfaces than there are bytes to name them.
        assert!(default_route_outputs(payload).len() <= payload.len());
        for (_, value) in attributes_of(payload) {
            assert!(value.len() <= payload.len());
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_corpus_is_replayed() {
        softnet_testkit::replay("netlink", super::netlink);
    }
}
