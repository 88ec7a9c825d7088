//! The loop of the control thread, a round at a time.

use serde_json::Value;

use super::*;
use crate::control::Request;

/// Answers with as much as may wait to be taken.
struct Large;

impl Handler for Large {
    fn request(&self, _: Request) -> Result<Value, String> {
        Ok("x".repeat(MAX_PENDING).into())
    }
}

/// A client waits for its answer until another takes its own, and hangs up: the thread takes note of that once.
#[test]
fn a_held_client_that_hangs_up_does_not_keep_the_thread_busy() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.sock");
    let listener = Listener::bind(&path).unwrap();
    let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC).unwrap());
    let mut service = Loop { listener, stop, handler: Arc::new(Large), clients: vec![], mute_until: None };
    let ask = || {
        let mut client = UnixStream::connect(&path).unwrap();
        client.write_all(b"{\"show\":\"stats\"}\n").unwrap();
        client
    };
    let _slow = ask();
    assert!(!service.round().unwrap());
    let held = ask();
    assert!(!service.round().unwrap());
    assert_eq!(service.clients.iter().map(|client| client.is_held).collect::<Vec<_>>(), [false, true]);
    drop(held);
    assert!(!service.round().unwrap());
    assert_eq!(service.clients.len(), 1, "each round would find it again");
}
