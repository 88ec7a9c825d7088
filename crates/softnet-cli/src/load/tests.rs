//! A client against a server that is played here, in virtual time.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io;
use std::rc::Rc;

use softnet_testkit::datagrams::Outbox;

use super::*;

const MS: u64 = 1_000_000;

/// What the server does with request number `n`.
type Fate = Box<dyn Fn(u64) -> Does>;

enum Does {
    /// Answers after so many ns.
    Answer(u64),
    /// Answers something else after so many ns.
    Lie(u64),
    /// Sends what is no response to it, and then answers, after so many ns.
    Babble(u64),
    Nothing,
}

/// A server and the way to it: answers in `PART`s, last part first.
struct Fake {
    now: Rc<Cell<u64>>,
    /// How long a wait takes.
    step: u64,
    fate: Fate,
    /// Requests so far, and those of each connection that are outstanding: for the test to see.
    seen: Rc<RefCell<Seen>>,
    items: HashMap<Vec<u8>, (String, Vec<u8>)>,
    /// By time and order.
    on_the_way: BTreeMap<(u64, u64), (usize, Vec<u8>)>,
    inbox: Vec<VecDeque<Vec<u8>>>,
    taken: Vec<Vec<u8>>,
}

#[derive(Default)]
struct Seen {
    requests: u64,
    sets: u64,
    outstanding: i64,
    most: i64,
}

const PART: usize = 500;

impl Fake {
    fn new(
        connections: usize,
        fate: impl Fn(u64) -> Does + 'static,
    ) -> (Self, Rc<Cell<u64>>, Rc<RefCell<Seen>>) {
        let (now, seen) = (Rc::new(Cell::new(0)), Rc::new(RefCell::new(Seen::default())));
        let fake = Fake {
            now: now.clone(),
            step: 1000,
            fate: Box::new(fate),
            seen: seen.clone(),
            items: HashMap::new(),
            on_the_way: BTreeMap::new(),
            inbox: (0..connections).map(|_| VecDeque::new()).collect(),
            taken: Vec::new(),
        };
        (fake, now, seen)
    }

    fn answer(&mut self, body: &[u8]) -> Vec<u8> {
        let end = body.iter().position(|b| *b == b'\n').unwrap() + 1;
        let line = String::from_utf8(body[..end].to_vec()).unwrap();
        let words: Vec<&str> = line.split_whitespace().collect();
        let key = words[1].as_bytes().to_vec();
        if words[0] == "set" {
            let len: usize = words[4].parse().unwrap();
            assert_eq!(&body[end + len..], b"\r\n");
            self.items.insert(key, (words[2].into(), body[end..end + len].to_vec()));
            self.seen.borrow_mut().sets += 1;
            return b"STORED\r\n".to_vec();
        }
        assert_eq!(words[0], "get");
        let Some((flags, value)) = self.items.get(&key) else { return b"END\r\n".to_vec() };
        let head = format!("VALUE {} {flags} {}\r\n", words[1], value.len());
        [head.as_bytes(), value, b"\r\nEND\r\n"].concat()
    }
}

impl DatagramSet for Fake {
    fn wait(&mut self, timeout: Option<Duration>, ready: &mut Vec<usize>) -> io::Result<()> {
        ready.clear();
        self.now.set(self.now.get() + self.step + timeout.unwrap().as_nanos() as u64);
        while let Some(entry) = self.on_the_way.first_entry() {
            if entry.key().0 > self.now.get() {
                break;
            }
            let (socket, datagram) = entry.remove();
            self.inbox[socket].push_back(datagram);
        }
        ready.extend((0..self.inbox.len()).filter(|socket| !self.inbox[*socket].is_empty()));
        Ok(())
    }

    fn recv(&mut self, socket: usize) -> io::Result<usize> {
        self.taken = self.inbox[socket].drain(..).collect();
        self.seen.borrow_mut().outstanding -= self.taken.len() as i64;
        Ok(self.taken.len())
    }

    fn datagram(&self, i: usize) -> (SocketAddr, &[u8]) {
        (server(), &self.taken[i])
    }

    fn send(&mut self, socket: usize, outbox: &Outbox) -> io::Result<usize> {
        for i in 0..outbox.len() {
            let request = outbox.get(i).1.to_vec();
            assert_eq!(request[2..8], [0, 0, 0, 1, 0, 0]);
            let n = self.seen.borrow().requests;
            let mut message = self.answer(&request[8..]);
            {
                let mut seen = self.seen.borrow_mut();
                seen.requests += 1;
                seen.outstanding += 1;
                seen.most = seen.most.max(seen.outstanding);
            }
            let delay = match (self.fate)(n) {
                Does::Answer(delay) => delay,
                Does::Lie(delay) => {
                    message[0] ^= 1;
                    delay
                }
                Does::Babble(delay) => {
                    let id = [request[0], request[1]];
                    let noise: [&[u8]; 6] = [
                        &[],
                        &[id[0], id[1], 0, 0, 0, 1, 0],
                        &[id[0], id[1], 0, 0, 0, 0, 0, 0, 1],
                        &[id[0], id[1], 0, 5, 0, 5, 0, 0, 1],
                        &[id[0], id[1], 0, 0, 0xff, 0xff, 0, 0, 1],
                        // To a request that was never made.
                        &[id[0] ^ 0x80, id[1], 0, 0, 0, 1, 0, 0, 1],
                    ];
                    for (i, datagram) in noise.iter().enumerate() {
                        let at = (self.now.get() + delay - 1, (n << 8) | i as u64);
                        self.on_the_way.insert(at, (socket, datagram.to_vec()));
                        self.seen.borrow_mut().outstanding += 1;
                    }
                    delay
                }
                Does::Nothing => continue,
            };
            let total = message.len().div_ceil(PART);
            for (number, part) in message.chunks(PART).enumerate().rev() {
                let header = [request[0], request[1], 0, number as u8, 0, total as u8, 0, 0];
                let order = (n << 8) | (total - number) as u64;
                let datagram = [&header[..], part].concat();
                self.on_the_way.insert((self.now.get() + delay, order), (socket, datagram));
            }
        }
        Ok(0)
    }

    fn napi_id(&self, _: usize) -> u32 {
        0
    }
}

fn server() -> SocketAddr {
    ([10, 0, 0, 1], 11211).into()
}

fn config(load: Load, valuesize: &str) -> Config {
    let dist = |text: &str| text.parse().unwrap();
    Config {
        server: server(),
        transport: Transport::Udp,
        threads: 1,
        connections: 4,
        cpus: Vec::new(),
        load,
        records: Records { count: 50, key_size: dist("20"), value_size: dist(valuesize), max_value: 60_000 },
        update: 0.1,
        preload: true,
        warm_up: Duration::ZERO,
        measure: Duration::ZERO,
        timeout: Duration::from_millis(20),
        longest_wait: Duration::ZERO,
    }
}

fn open(rate: f64, gaps: &str) -> Load {
    Load::Open { rate, gaps: gaps.parse().unwrap() }
}

/// Stores the records if they are to be, and applies the load for 200 ms, after 20.
fn run_on(config: &Config, fate: impl Fn(u64) -> Does + 'static) -> (Result<Tally, String>, Seen) {
    let (fake, now, seen) = Fake::new(config.connections, fate);
    let progress = Progress::default();
    let mut clock = || {
        now.set(now.get() + 50);
        now.get()
    };
    let mut client = Client::new(fake, config, 0, &progress);
    let mut result = Ok(Tally::new());
    if config.preload {
        result = client.preload(0..config.records.count, &mut clock).map(|()| Tally::new());
    }
    if result.is_ok() {
        // What was lost before is outstanding for ever.
        seen.replace_with(|seen| Seen { requests: seen.requests, ..Seen::default() });
        let start = now.get();
        let span = Span { start, from: start + 20 * MS, until: start + 220 * MS };
        result = client.run(span, 0, &mut clock);
    }
    drop(client);
    (result, Rc::into_inner(seen).unwrap().into_inner())
}

fn consistent(tally: &Tally) {
    assert_eq!(tally.sent, tally.received() + tally.lost);
}

#[test]
fn a_closed_loop_has_as_many_in_flight_as_it_may() {
    let config = config(Load::Closed { in_flight: 3 }, "100");
    let (tally, seen) = run_on(&config, |_| Does::Answer(100_000));
    let tally = tally.unwrap();
    consistent(&tally);
    assert_eq!(seen.most, 12);
    // Twelve each 100 µs and what it takes to send the next.
    assert!((20_000..24_000).contains(&tally.sent), "{}", tally.sent);
    assert_eq!((tally.lost, tally.misses, tally.wrong, tally.late, tally.not_sent), (0, 0, 0, 0, 0));
    let share = tally.updates.count() as f64 / tally.sent as f64;
    assert!((0.09..0.11).contains(&share), "{share}");
    let p50 = tally.reads.figures()[1];
    assert!(p50.0 == "p50_us" && (100.0..104.0).contains(&p50.1), "{p50:?}");
}

#[test]
fn an_open_loop_does_not_wait() {
    for gaps in ["exponential", "fb_ia", "fixed"] {
        let config = config(open(100_000.0, gaps), "100");
        let (tally, _) = run_on(&config, |_| Does::Answer(5 * MS));
        let tally = tally.unwrap();
        consistent(&tally);
        assert!((19_500..20_500).contains(&tally.sent), "{gaps}: {}", tally.sent);
        assert_eq!((tally.lost, tally.sent_late), (0, 0));
        assert!(
            tally.in_time.abs_diff(tally.sent) < 400,
            "{}: what was due before was answered in time",
            tally.in_time
        );
    }
}

/// The server stands still for 100 ms out of a second: a tenth of the requests waits, 50 ms on average. A client that
/// waited with it and counted from when it sent would see one slow request for each connection.
#[test]
fn a_stall_shows_in_all_that_it_held_up() {
    let stalls = Rc::new(Cell::new(0));
    let mut config = config(open(10_000.0, "fixed"), "10");
    config.timeout = Duration::from_millis(500);
    let (fake, now, _) = Fake::new(4, |_| Does::Answer(0));
    /// Its waits take 100 ms once.
    struct Stalling(Fake, Rc<Cell<u64>>, Rc<Cell<u32>>);
    impl DatagramSet for Stalling {
        fn wait(&mut self, timeout: Option<Duration>, ready: &mut Vec<usize>) -> io::Result<()> {
            if self.1.get() > 500 * MS && self.2.get() == 0 {
                self.2.set(1);
                self.1.set(self.1.get() + 100 * MS);
            }
            self.0.wait(timeout, ready)
        }
        fn recv(&mut self, socket: usize) -> io::Result<usize> {
            self.0.recv(socket)
        }
        fn datagram(&self, i: usize) -> (SocketAddr, &[u8]) {
            self.0.datagram(i)
        }
        fn send(&mut self, socket: usize, outbox: &Outbox) -> io::Result<usize> {
            self.0.send(socket, outbox)
        }
        fn napi_id(&self, socket: usize) -> u32 {
            self.0.napi_id(socket)
        }
    }
    let set = Stalling(fake, now.clone(), stalls.clone());
    let progress = Progress::default();
    let mut clock = || {
        now.set(now.get() + 50);
        now.get()
    };
    let mut client = Client::new(set, &config, 0, &progress);
    let span = Span { start: 0, from: 0, until: 1000 * MS };
    let tally = client.run(span, 0, &mut clock).unwrap();
    consistent(&tally);
    assert_eq!(stalls.get(), 1);
    assert!((9_990..=10_000).contains(&tally.sent), "{}", tally.sent);
    assert!(
        (990..1010).contains(&tally.sent_late),
        "{}: a tenth was sent late, and it says so",
        tally.sent_late
    );
    let figures: HashMap<&str, f64> = [&tally.reads, &tally.updates][0].figures().into_iter().collect();
    assert!((98_000.0..101_000.0).contains(&figures["max_us"]), "{figures:?}");
    assert!((85_000.0..95_000.0).contains(&figures["p99_us"]), "{figures:?}");
    assert!(figures["p50_us"] < 10.0, "{figures:?}");
    assert_eq!(
        tally.misses,
        tally.received() - tally.updates.count() - hits(&tally),
        "nothing was stored before"
    );
}

/// Reads that were answered with a value.
fn hits(tally: &Tally) -> u64 {
    tally.reads.count() - tally.misses - tally.wrong
}

#[test]
fn what_is_not_answered_in_time_is_lost_and_its_response_late() {
    let config = config(Load::Closed { in_flight: 1 }, "100");
    let fate = |n| match n % 100 {
        0 => Does::Nothing,
        1 => Does::Answer(30 * MS),
        _ => Does::Answer(10_000),
    };
    let (tally, _) = run_on(&config, fate);
    let tally = tally.unwrap();
    consistent(&tally);
    assert_eq!(tally.wrong, 0);
    let share = tally.lost as f64 / tally.sent as f64;
    assert!((0.015..0.025).contains(&share), "{share}: two of a hundred");
    assert!(tally.late > 0 && tally.late <= tally.lost, "{} of {}", tally.late, tally.lost);
    assert!(tally.reads.figures()[6].1 < 20_000.0, "a lost request has no latency");
}

#[test]
fn the_records_are_stored_whatever_is_lost_on_the_way() {
    // The second is longer than a silent server is borne with.
    for timeout in [20, 60_000].map(Duration::from_millis) {
        let config = Config { update: 0.0, timeout, ..config(Load::Closed { in_flight: 1 }, "fb_value") };
        let (tally, seen) =
            run_on(&config, |n| if n < 60 && n % 3 == 0 { Does::Nothing } else { Does::Answer(10_000) });
        let tally = tally.unwrap();
        consistent(&tally);
        assert_eq!((tally.misses, tally.wrong, tally.lost), (0, 0, 0));
        assert_eq!(seen.sets, 0, "counted since the load began");
        assert_eq!(hits(&tally), tally.sent);
    }
}

#[test]
fn long_responses_are_put_together() {
    let config = config(Load::Closed { in_flight: 8 }, "3000");
    let (tally, _) = run_on(&config, |_| Does::Answer(200_000));
    let tally = tally.unwrap();
    consistent(&tally);
    assert_eq!((tally.misses, tally.wrong, tally.lost, tally.late), (0, 0, 0, 0));
    assert!(tally.reads.count() > 1000);
}

#[test]
fn a_wrong_response_is_told_with_an_example() {
    let config = Config { preload: false, update: 0.0, ..config(Load::Closed { in_flight: 1 }, "10") };
    let (tally, _) = run_on(&config, |n| if n % 50 == 7 { Does::Lie(10_000) } else { Does::Answer(10_000) });
    let tally = tally.unwrap();
    consistent(&tally);
    assert!(tally.wrong > 0);
    assert!(tally.misses > 0, "nothing was stored before");
    assert!(tally.wrong_example.unwrap().contains(" of record "));
}

#[test]
fn what_is_no_response_is_counted_and_harms_no_request() {
    let config = config(Load::Closed { in_flight: 2 }, "1200");
    let fate = |n| if n % 10 == 0 { Does::Babble(10_000) } else { Does::Answer(10_000) };
    let (tally, seen) = run_on(&config, fate);
    let tally = tally.unwrap();
    consistent(&tally);
    assert_eq!((tally.misses, tally.wrong, tally.lost), (0, 0, 0));
    // Of the whole run, of which all but the warm-up is measured; each babble has five, and one that seems late.
    let babbles = seen.requests / 10;
    assert!(tally.strange.abs_diff(5 * babbles) < 100, "{} of {babbles}", tally.strange);
    assert!(tally.late.abs_diff(babbles) < 20, "{} of {babbles}", tally.late);
}

#[test]
fn a_refused_value_and_a_silent_server_end_the_preload() {
    let config = config(Load::Closed { in_flight: 1 }, "10");
    let (result, _) = run_on(&config, |_| Does::Lie(10_000));
    assert!(result.err().unwrap().contains("a value was refused: Set of record"));
    let (result, _) = run_on(&config, |_| Does::Nothing);
    assert_eq!(result.err().unwrap(), "10.0.0.1:11211 does not answer");
}

#[test]
fn more_than_can_be_outstanding_is_not_sent_and_said() {
    let mut config = Config { preload: false, ..config(open(400_000.0, "exponential"), "10") };
    config.timeout = Duration::from_secs(1);
    config.connections = 1;
    let (tally, seen) = run_on(&config, |_| Does::Nothing);
    let tally = tally.unwrap();
    consistent(&tally);
    assert_eq!(tally.received(), 0);
    assert!(tally.not_sent > 40_000, "{}", tally.not_sent);
    assert!(seen.requests < 40_000, "{}", seen.requests);
}
