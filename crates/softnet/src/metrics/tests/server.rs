//! The server as its clients see it, over loopback and a Unix socket.

use std::cell::Cell;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use proptest::prelude::*;

use crate::config::MetricsConfig;
use crate::metrics::http::{Bound, Parsed, Server, Source, parse};

fn bound(listen: &str) -> Result<Bound, String> {
    Bound::new(&MetricsConfig::new(listen.parse().unwrap()))
}

fn serve(text: &str) -> Server {
    let text = text.to_owned();
    softnet_testkit::raise_loopback();
    bound("127.0.0.1:0").unwrap().serve(move || text.clone()).unwrap()
}

/// All that comes until the server closes the connection.
fn ask(mut stream: impl Read + Write, request: &[u8]) -> String {
    stream.write_all(request).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

fn connect(server: &Server) -> TcpStream {
    TcpStream::connect(server.address().unwrap()).unwrap()
}

#[test]
fn a_scrape_brings_the_text() {
    let server = serve("# EOF\n");
    let get = b"GET /metrics HTTP/1.1\r\nHost: x\r\nAccept: application/openmetrics-text\r\n\r\n";
    let answer = ask(connect(&server), get);
    assert!(
        answer.starts_with("HTTP/1.1 200 OK\r\nContent-Type: application/openmetrics-text; version=1.0.0;")
    );
    assert!(answer.contains("\r\nContent-Length: 6\r\n") && answer.ends_with("\r\n\r\n# EOF\n"), "{answer}");
    // One that is asked for its head only says how long it were.
    let answer = ask(connect(&server), b"HEAD http://x/metrics?a=b HTTP/1.0\n\n");
    assert!(answer.contains("\r\nContent-Length: 6\r\n") && answer.ends_with("close\r\n\r\n"), "{answer}");
}

#[test]
fn other_requests_are_refused_in_words() {
    let server = serve("# EOF\n");
    let long = format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(8192 - 18));
    for (request, status) in [
        ("GET / HTTP/1.1\r\n\r\n", "404"),
        ("GET /metrics/x HTTP/1.1\r\n\r\n", "404"),
        ("DELETE /metrics HTTP/1.1\r\n\r\n", "405"),
        ("GET /metrics\r\n\r\n", "400"),
        ("GET /metrics HTTP/2\r\n\r\n", "400"),
        ("\u{1}\u{2}\n\n", "400"),
        (&long, "404"),
        (&"x".repeat(8192), "431"),
        // What is not read of it does not cost the client its answer.
        (&"x".repeat(100_000), "431"),
    ] {
        let answer = ask(connect(&server), request.as_bytes());
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{request:?}: {answer}");
    }
}

/// Clients that say nothing, or take nothing, keep no other from its answer.
#[test]
fn many_silent_clients_do_not_keep_others_out() {
    let text = "x".repeat(8 << 20);
    let server = serve(&text);
    let silent: Vec<_> = (0..40).map(|_| connect(&server)).collect();
    let slow: Vec<_> = (0..4)
        .map(|_| {
            let mut stream = connect(&server);
            stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
            stream
        })
        .collect();
    let answer = ask(connect(&server), b"GET /metrics HTTP/1.1\r\n\r\n");
    assert!(answer.ends_with(&text));
    // Of those that said nothing, the first have made room.
    let mut byte = [0];
    assert_eq!((&silent[0]).read(&mut byte).unwrap_or(0), 0);
    drop((silent, slow));
}

#[test]
fn clients_at_the_same_time_share_a_text() {
    let made = Cell::new(0);
    let mut source = Source::new(|| made.replace(made.get() + 1).to_string());
    let start = Instant::now();
    let mut told = |after| source.get(start + Duration::from_millis(after)).to_string();
    assert_eq!([0, 99, 100, 199, 1000].map(&mut told), ["0", "0", "1", "1", "2"]);
}

#[test]
fn a_unix_socket_is_for_its_owner_and_goes_with_the_server() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("metrics.sock");
    let listen = path.to_str().unwrap();
    let server = bound(listen).unwrap().serve(|| "# EOF\n".into()).unwrap();
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(bound(listen).unwrap_err(), "another process listens there");
    let answer = ask(UnixStream::connect(&path).unwrap(), b"GET /metrics HTTP/1.1\r\n\r\n");
    assert!(answer.ends_with("# EOF\n"), "{answer}");
    drop(server);
    assert!(!path.exists());
}

#[test]
fn a_port_that_is_taken_is_told() {
    let server = serve("");
    let error = bound(&server.address().unwrap().to_string()).unwrap_err();
    assert!(error.contains("in use"), "{error}");
}

proptest! {
    /// A request in pieces is the same as one at once, and nothing makes it panic.
    #[test]
    fn what_is_no_request_is_refused_once_it_is_whole(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let whole = [&bytes[..], b"\r\n\r\n"].concat();
        let found = parse(&whole);
        let is_empty = bytes.iter().all(|byte| b"\r\n".contains(byte));
        prop_assert_eq!(found == Parsed::Partial, is_empty);
        for end in 0..whole.len() {
            let part = parse(&whole[..end]);
            prop_assert!(part == Parsed::Partial || part == found, "{:?} of {} bytes, then {:?}", part, end, found);
        }
    }
}
