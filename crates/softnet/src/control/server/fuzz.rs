//! What fuzzing runs on the control protocol. The tests run it on the corpus of `fuzz/corpus`; `cargo fuzz` for as long as
//! it is let.

use softnet_core::qdisc::Spec;

use super::super::Request;
use super::*;

/// Understands what only a running instance would look into, and answers with what was asked.
struct Echo;

impl Handler for Echo {
    fn request(&self, request: Request) -> Result<serde_json::Value, String> {
        if let Request::Qdisc(set) = &request
            && let Some(words) = &set.qdisc
        {
            words.parse::<Spec>().map_err(|error| error.to_string())?;
        }
        serde_json::to_value(request).map_err(|error| error.to_string())
    }
}

/// What a client says: each line is answered by one line, until one is too long.
pub fn control(data: &[u8]) {
    let (ours, mut theirs) = UnixStream::pair().expect("a pair of sockets");
    for stream in [&ours, &theirs] {
        stream.set_nonblocking(true).expect("a socket that does not block");
    }
    let now = Instant::now();
    let mut client = Client::new(ours, now);
    let (mut sent, mut answers) = (0, Vec::new());
    let mut stays = true;
    while stays {
        match theirs.write(&data[sent..]) {
            Ok(n) => sent += n,
            // It has said goodbye, and does not listen any more.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
            Err(error) => assert!(would_block(&error), "{error}"),
        }
        if sent == data.len() {
            let _ = theirs.shutdown(std::net::Shutdown::Write);
        }
        stays = client.turn(&Echo, now, true);
        let mut chunk = [0; 4096];
        while let Ok(n @ 1..) = theirs.read(&mut chunk) {
            answers.extend_from_slice(&chunk[..n]);
        }
    }
    let mut rest = data;
    let mut expected = 0;
    loop {
        match rest.iter().position(|&byte| byte == b'\n') {
            Some(end) if end <= MAX_REQUEST => rest = &rest[end + 1..],
            None if rest.len() <= MAX_REQUEST => break,
            _ => {
                expected += 1;
                break;
            }
        }
        expected += 1;
    }
    let lines: Vec<_> = answers.split_inclusive(|&byte| byte == b'\n').collect();
    assert_eq!(lines.len(), expected);
    for line in lines {
        let response: Response = serde_json::from_slice(line).expect("an answer");
        // What is understood is said again as it was meant.
        if let Response::Ok(value) = response {
            let request: Request = serde_json::from_value(value.clone()).expect("the request");
            assert_eq!(serde_json::to_value(request).ok(), Some(value));
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_corpus_is_replayed() {
        softnet_testkit::replay("control", super::control);
    }
}
