//! Sends cases to both routers and says what came out.
//!
//! Many cases run at once, each with addresses of its own. A step has ended when each router has answered an echo request on
//! each link that was sent behind its frames, and then nothing came for a while. That makes it likely, on a busy machine too,
//! that everything came; a case that differs from what is expected runs once more, alone, before it counts.

use std::collections::HashMap;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use softnet::driver::XdpMode;

use super::case::Case;
use super::decode::{Decoder, Said, is_announcement, is_noise, run_of};
use super::net::{
    FIRST_RUN, LINKS, Net, anybody_mac, gateway_mac, remote_net4, router_local, router_mac, router4, router6,
};
use super::packet::{Arp, Frame, ICMP6, Ip4, Ip6};
use super::router::Router;

/// Cases that run at once. No more ICMP errors than softnet has in its bucket shall follow.
const BATCH: usize = 32;
/// For so long nothing comes when a case has ended, and when a step has on which another builds: what softnet only overhears it
/// learns a little later.
const QUIET: Duration = Duration::from_millis(20);
const QUIET_BETWEEN: Duration = Duration::from_millis(100);
/// How long an answer may take before the question is asked again, and before the test fails.
const RETRY: Duration = Duration::from_millis(300);
const PATIENCE: Duration = Duration::from_secs(60);
/// What the echo requests have in place of a run's number.
const SENTINEL: u16 = 0xffee;

/// What came out of one router in one run of a case.
pub(crate) type Frames = Vec<(usize, Vec<u8>)>;

/// A run of a case on both routers: what was sent, and what came out, in words.
pub(crate) struct Outcome {
    pub(crate) sent: Vec<Frame>,
    pub(crate) net: Net,
    pub(crate) said: [Vec<Said>; 2],
}

/// A run of a case that is under way.
struct Run<'a> {
    case: &'a Case,
    net: Net,
    steps: Vec<Vec<Frame>>,
    out: [Frames; 2],
}

/// What one router still has to answer.
struct Waiting {
    /// Sequence number of the last echo requests.
    seq: u16,
    /// Whether they were answered, by link.
    answered: [bool; 3],
    asked: Instant,
    last: Instant,
}

/// Both routers.
pub(crate) struct Pair {
    routers: [Router; 2],
    next_run: u16,
    next_seq: u16,
    buffer: Vec<u8>,
    /// What came and was no case's, by router.
    pub(crate) stray: [Frames; 2],
}

fn sentinel(link: usize, seq: u16) -> Vec<u8> {
    let [a, b, ..] = remote_net4(link).octets();
    let [hi, lo] = SENTINEL.to_be_bytes();
    let packet = Ip4::new(Ipv4Addr::new(a, b, hi, lo), router4(link));
    let packet = packet.icmp(8, 0, u32::from(SENTINEL) << 16 | u32::from(seq), &[]);
    Frame::new(link, (gateway_mac(link), router_mac(link)), &packet).bytes()
}

impl Pair {
    pub(crate) fn new(mode: XdpMode) -> Pair {
        Pair {
            routers: [Router::kernel(), Router::softnet(mode)],
            next_run: FIRST_RUN,
            next_seq: 0,
            buffer: vec![0; 1 << 16],
            stray: Default::default(),
        }
    }

    pub(crate) fn end(self) {
        self.routers.into_iter().for_each(Router::end);
    }

    /// Runs all of them, as many at once as may be; what came of each, in order.
    pub(crate) fn run_all(&mut self, cases: &[&Case]) -> Vec<Outcome> {
        let mut outcomes: Vec<Option<Outcome>> = cases.iter().map(|_| None).collect();
        let mut order: Vec<usize> = (0..cases.len()).collect();
        order.sort_by_key(|&at| (cases[at].alone, cases[at].wait));
        let same = |a: usize, b: usize| {
            !cases[a].alone && !cases[b].alone && (cases[a].wait.is_zero() == cases[b].wait.is_zero())
        };
        for group in order.chunk_by(|a, b| same(*a, *b)) {
            for batch in group.chunks(BATCH) {
                let picked: Vec<_> = batch.iter().map(|at| cases[*at]).collect();
                for (at, outcome) in batch.iter().zip(self.run(&picked)) {
                    outcomes[*at] = Some(outcome);
                }
            }
        }
        outcomes.into_iter().flatten().collect()
    }

    /// Runs these at once.
    pub(crate) fn run(&mut self, cases: &[&Case]) -> Vec<Outcome> {
        let start = |case: &&'_ Case| {
            let net = Net { run: self.next_run };
            self.next_run += 1;
            (net, case.steps(net))
        };
        let started: Vec<_> = cases.iter().map(start).collect();
        let mut runs: Vec<_> = cases
            .iter()
            .zip(started)
            .map(|(case, (net, steps))| Run { case, net, steps, out: Default::default() })
            .collect();
        let wait = cases.iter().map(|case| case.wait).max().unwrap_or_default();
        let steps = runs.iter().map(|run| run.steps.len()).max().unwrap_or(0);
        for step in 0..steps {
            let frames: Vec<_> =
                runs.iter().filter_map(|run| run.steps.get(step)).flatten().cloned().collect();
            let last = step + 1 == steps;
            let until = Instant::now() + if last { wait } else { Duration::ZERO };
            self.step(&frames, &mut runs, until, if last { QUIET } else { QUIET_BETWEEN });
        }
        runs.into_iter().map(Run::outcome).collect()
    }

    /// Sends `frames` to both routers and collects what comes out.
    fn step(&mut self, frames: &[Frame], runs: &mut [Run<'_>], until: Instant, quiet: Duration) {
        let index: HashMap<u16, usize> = runs.iter().enumerate().map(|(at, run)| (run.net.run, at)).collect();
        for frame in frames {
            for router in &self.routers {
                send(router, frame.link, &frame.bytes());
            }
        }
        let mut waiting = [self.ask(0), self.ask(1)];
        loop {
            let now = Instant::now();
            let mut done = now >= until;
            for (at, waiting) in waiting.iter_mut().enumerate() {
                let busy = self.receive(at, waiting, runs, &index);
                if busy {
                    // What was answered now has consequences: ask once more behind it.
                    *waiting = self.ask(at);
                }
                let answered = waiting.answered == [true; 3];
                done &= answered && waiting.last.elapsed() >= quiet;
                let router = &self.routers[at];
                if !answered && waiting.last.elapsed() > PATIENCE {
                    panic!("the {} does not answer: {:?}", router.name, waiting.answered);
                }
                if !answered && waiting.asked.elapsed() > RETRY {
                    waiting.asked = now;
                    for link in LINKS.into_iter().filter(|link| !waiting.answered[*link]) {
                        send(router, link, &sentinel(link, waiting.seq));
                    }
                }
            }
            if done {
                return;
            }
            let ends = self.routers.iter().flat_map(|router| &router.ends);
            let mut fds: Vec<_> = ends.map(|end| PollFd::new(end, PollFlags::IN)).collect();
            // Servers have no descriptor here.
            poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 2_000_000 })).unwrap();
        }
    }

    /// Sends echo requests on every link behind all that was sent.
    fn ask(&mut self, router: usize) -> Waiting {
        self.next_seq += 1;
        let (seq, now) = (self.next_seq, Instant::now());
        for link in LINKS {
            send(&self.routers[router], link, &sentinel(link, seq));
        }
        Waiting { seq, answered: [false; 3], asked: now, last: now }
    }

    /// Takes what a router sent, and answers as hosts and servers do. Whether anything was answered.
    fn receive(
        &mut self,
        at: usize,
        waiting: &mut Waiting,
        runs: &mut [Run<'_>],
        index: &HashMap<u16, usize>,
    ) -> bool {
        let mut answers = Vec::new();
        let router = &mut self.routers[at];
        let busy = router.serve();
        for link in LINKS {
            while let Some(len) = router.ends[link].recv(&mut self.buffer).unwrap() {
                let frame = &self.buffer[..len];
                if let Some(seq) = sentinel_reply(frame) {
                    if seq == waiting.seq {
                        waiting.answered[link] = true;
                        waiting.last = Instant::now();
                    }
                    continue;
                }
                if is_noise(frame) || (is_announcement(frame) && !runs.iter().any(|run| run.case.told_all)) {
                    continue;
                }
                waiting.last = Instant::now();
                let of = run_of(frame, |run| index.contains_key(&run)).map(|run| index[&run]);
                let late = || run_of(frame, |run| (FIRST_RUN..self.next_run).contains(&run)).is_some();
                match of.or((runs.len() == 1 && !late()).then_some(0)) {
                    Some(of) => {
                        runs[of].out[at].push((link, frame.to_vec()));
                        answers.extend(runs[of].answer(link, frame));
                    }
                    None if late() => {}
                    None => self.stray[at].push((link, frame.to_vec())),
                }
            }
        }
        for answer in &answers {
            send(router, answer.link, &answer.bytes());
        }
        busy || !answers.is_empty()
    }
}

fn send(router: &Router, link: usize, frame: &[u8]) {
    let end = &router.ends[link];
    let give_up = Instant::now() + PATIENCE;
    while let Err(error) = end.send(frame) {
        // No room for now.
        let full = matches!(error.raw_os_error(), Some(105 | 11));
        assert!(full && Instant::now() < give_up, "send {} bytes by link {link}: {error}", frame.len());
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The sequence number of an answer to a sentinel.
fn sentinel_reply(frame: &[u8]) -> Option<u16> {
    let reply = frame.get(12..14) == Some(&[8, 0]) && frame.get(23) == Some(&1) && frame.get(34) == Some(&0);
    let ours = frame.get(38..40) == Some(&SENTINEL.to_be_bytes());
    let seq = frame.get(40..42).map(|seq| u16::from_be_bytes([seq[0], seq[1]]));
    seq.filter(|_| reply && ours)
}

impl Run<'_> {
    /// What the hosts of the case answer to a frame of the router. If it runs alone, there is also a host at each address that
    /// is no router's, so that nothing is asked for again while another case runs.
    fn answer(&self, link: usize, frame: &[u8]) -> Option<Frame> {
        if self.case.silent {
            return None;
        }
        let net = self.net;
        let (host, other) = (net.host_mac(link), net.other_mac(link));
        let anybody = |router: bool| (self.case.alone && !router).then_some(anybody_mac(link));
        match frame.get(12..14)? {
            [8, 6] if frame.get(20..22)? == [0, 1] => {
                let [asker, wanted] = [28, 38].map(|at| <[u8; 4]>::try_from(frame.get(at..at + 4)?).ok());
                let (asker, wanted) = (Ipv4Addr::from(asker?), Ipv4Addr::from(wanted?));
                let mac = match wanted {
                    addr if addr == net.host4(link) => Some(host),
                    addr if addr == net.other4(link) => Some(other),
                    addr => anybody(LINKS.map(router4).contains(&addr)),
                };
                let reply = Arp::new(2, (mac?, wanted), (router_mac(link), asker));
                Some(Frame::new(link, (mac?, router_mac(link)), &reply))
            }
            [0x86, 0xdd] if frame.get(20)? == &ICMP6 && frame.get(54)? == &135 => {
                let [asker, wanted] = [22, 62].map(|at| <[u8; 16]>::try_from(frame.get(at..at + 16)?).ok());
                let (asker, wanted) = (Ipv6Addr::from(asker?), Ipv6Addr::from(wanted?));
                let mac = match wanted {
                    addr if [net.host6(link), net.host_local(link)].contains(&addr) => Some(host),
                    addr if addr == net.other6(link) => Some(other),
                    addr => {
                        anybody(LINKS.map(router6).contains(&addr) || LINKS.map(router_local).contains(&addr))
                    }
                };
                let body = [&wanted.octets()[..], &[2, 1], &mac?].concat();
                let reply = Ip6::new(wanted, asker).hops(255).icmp(136, 0, 0x6000_0000, &body);
                Some(Frame::new(link, (mac?, router_mac(link)), &reply))
            }
            _ => None,
        }
    }

    fn outcome(self) -> Outcome {
        let sent: Vec<Frame> = self.steps.into_iter().flatten().collect();
        let packets: Vec<Vec<u8>> = sent.iter().map(|frame| frame.packet().to_vec()).collect();
        let said = self.out.map(|frames| {
            let mut decoder = Decoder::new(self.net, &packets);
            let mut said: Vec<_> = frames.iter().map(|(link, frame)| decoder.read(*link, frame)).collect();
            said.sort_by_key(Said::line);
            said
        });
        Outcome { sent, net: self.net, said }
    }
}

/// What was sent, in words, and as bytes.
pub(crate) fn describe(outcome: &Outcome) -> Vec<String> {
    let mut decoder = Decoder::new(outcome.net, &[]);
    let frames = outcome.sent.iter();
    frames
        .map(|frame| {
            let bytes = frame.bytes();
            let hex: String = bytes.iter().take(120).map(|byte| format!("{byte:02x}")).collect();
            format!("{}\n           {hex}", decoder.read(frame.link, &bytes).line())
        })
        .collect()
}
