//! Connections to a server that is played here: streams that take and give what a test says.

use std::cell::RefCell;
use std::rc::Rc;

use super::*;

/// What one stream does.
#[derive(Default)]
struct Played {
    /// What it gives, in such pieces; an empty one is the end.
    gives: VecDeque<Vec<u8>>,
    takes: Vec<u8>,
    /// How much more it takes.
    room: usize,
    write: bool,
}

#[derive(Clone, Default)]
struct Stream(Rc<RefCell<Played>>);

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut played = self.0.borrow_mut();
        let Some(piece) = played.gives.front_mut() else { return Err(ErrorKind::WouldBlock.into()) };
        let n = piece.len().min(buffer.len());
        buffer[..n].copy_from_slice(&piece[..n]);
        piece.drain(..n);
        // The end is told for ever.
        if n > 0 && piece.is_empty() {
            played.gives.pop_front();
        }
        Ok(n)
    }
}

impl Write for Stream {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let mut played = self.0.borrow_mut();
        let n = data.len().min(played.room);
        if n == 0 {
            return Err(ErrorKind::WouldBlock.into());
        }
        played.room -= n;
        played.takes.extend_from_slice(&data[..n]);
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[derive(Default)]
struct FakeNet(Rc<RefCell<Vec<Stream>>>);

impl Net for FakeNet {
    type Stream = Stream;

    fn begin_connect(&self, _: SocketAddr) -> io::Result<Stream> {
        let stream = Stream::default();
        self.0.borrow_mut().push(stream.clone());
        Ok(stream)
    }

    fn is_connected(_: &Stream) -> io::Result<bool> {
        Ok(true)
    }

    fn add(&mut self, _: &Stream, _: u64) -> io::Result<()> {
        Ok(())
    }

    fn watch(&mut self, stream: &Stream, _: u64, write: bool) -> io::Result<()> {
        stream.0.borrow_mut().write = write;
        Ok(())
    }

    fn wait(&mut self, _: Duration, tokens: &mut Vec<u64>) -> io::Result<()> {
        *tokens = (0..self.0.borrow().len() as u64).collect();
        Ok(())
    }

    fn napi_id(_: &Stream) -> u32 {
        0
    }
}

fn server() -> SocketAddr {
    ([10, 0, 0, 1], 11211).into()
}

/// Two connections, and their other ends.
fn two() -> (Streams<FakeNet>, Vec<Stream>) {
    let net = FakeNet::default();
    let ends = net.0.clone();
    let streams = Streams::connected(net, server(), 2).unwrap();
    let ends = ends.borrow().clone();
    (streams, ends)
}

fn requests(ids: &[u16]) -> Outbox {
    let mut outbox = Outbox::default();
    for id in ids {
        outbox.begin(server());
        let [high, low] = id.to_be_bytes();
        outbox.put(&[high, low, 0, 0, 0, 1, 0, 0]);
        outbox.put(format!("get {id}\r\n").as_bytes());
    }
    outbox
}

fn gives(end: &Stream, bytes: &[u8]) {
    end.0.borrow_mut().gives.push_back(bytes.to_vec());
}

/// What was taken, by id and without headers.
fn taken(streams: &Streams<FakeNet>, n: usize) -> Vec<(u16, String)> {
    let one = |i| {
        let (from, message) = streams.datagram(i);
        assert!(from == server() && message[2..8] == [0, 0, 0, 1, 0, 0]);
        (u16::from_be_bytes([message[0], message[1]]), String::from_utf8_lossy(&message[8..]).into())
    };
    (0..n).map(one).collect()
}

#[test]
fn responses_are_of_the_requests_in_their_order_in_whatever_pieces_they_come() {
    let answers = ["VALUE 700 0 3\r\nxyz\r\nEND\r\n", "END\r\n", "VALUE 9 1 5\r\nEND\r\n\r\nEND\r\n"];
    for piece in [1, 3, 1000] {
        let (mut streams, ends) = two();
        ends.iter().for_each(|end| end.0.borrow_mut().room = 1000);
        assert_eq!(streams.send(1, &requests(&[700, 2, 9])).unwrap(), 0);
        assert_eq!(ends[1].0.borrow().takes, b"get 700\r\nget 2\r\nget 9\r\n");
        let mut all = Vec::new();
        for bytes in answers.concat().as_bytes().chunks(piece) {
            gives(&ends[1], bytes);
            let n = streams.recv(1).unwrap();
            all.extend(taken(&streams, n));
        }
        let expected = [700, 2, 9].into_iter().zip(answers.map(String::from));
        assert_eq!(all, expected.collect::<Vec<_>>(), "in pieces of {piece}");
        assert_eq!(streams.recv(0).unwrap(), 0);
    }
}

#[test]
fn what_a_connection_does_not_take_waits_and_stays_in_order() {
    let (mut streams, ends) = two();
    ends[0].0.borrow_mut().room = 3;
    streams.send(0, &requests(&[1])).unwrap();
    assert!(ends[0].0.borrow().write, "it is watched for room");
    streams.send(0, &requests(&[2])).unwrap();
    assert_eq!(ends[0].0.borrow().takes, b"get");
    let mut ready = Vec::new();
    ends[0].0.borrow_mut().room = 8;
    streams.wait(None, &mut ready).unwrap();
    assert!(ends[0].0.borrow().write);
    ends[0].0.borrow_mut().room = 100;
    streams.wait(None, &mut ready).unwrap();
    assert_eq!(ends[0].0.borrow().takes, b"get 1\r\nget 2\r\n");
    assert!(!ends[0].0.borrow().write);
}

#[test]
fn an_end_is_told_after_what_came_before_it() {
    let (mut streams, ends) = two();
    ends[0].0.borrow_mut().room = 100;
    streams.send(0, &requests(&[1, 2])).unwrap();
    gives(&ends[0], b"END\r\nEN");
    gives(&ends[0], b"");
    assert_eq!(streams.recv(0).unwrap(), 1);
    let error = streams.recv(0).unwrap_err().to_string();
    assert!(error.contains("the server closed connection 1 of 2; does it allow so many"), "{error}");
}

#[test]
fn what_was_not_asked_for_is_said() {
    let (mut streams, ends) = two();
    gives(&ends[1], b"ERROR\r\n");
    let error = streams.recv(1).unwrap_err().to_string();
    assert_eq!(error, "connection 2 of 2: the server said \"ERROR\" without a request");
    // Whether or not something was asked by then.
    for asked in [&[][..], &[1]] {
        let (mut streams, ends) = two();
        ends[0].0.borrow_mut().room = 100;
        streams.send(0, &requests(asked)).unwrap();
        gives(&ends[0], b"ERROR Too many open connections\r\n");
        gives(&ends[0], b"");
        let error = streams.recv(0).unwrap_err().to_string();
        assert!(error.starts_with("connection 1 of 2: the server takes no more; ask by fewer"), "{error}");
    }
}

/// A request that was given up is answered all the same: its response is not that of a later one which
/// has its identifier.
#[test]
fn a_late_response_is_not_a_later_requests() {
    let (mut streams, ends) = two();
    ends[0].0.borrow_mut().room = 1000;
    streams.send(0, &requests(&[7, 8, 7])).unwrap();
    gives(&ends[0], b"VALUE 1 0 3\r\nold\r\nEND\r\nEND\r\nVALUE 2 0 3\r\nnew\r\nEND\r\n");
    let n = streams.recv(0).unwrap();
    let expected = [(8, "END\r\n".into()), (7, "VALUE 2 0 3\r\nnew\r\nEND\r\n".into())];
    assert_eq!(taken(&streams, n), expected);
}
