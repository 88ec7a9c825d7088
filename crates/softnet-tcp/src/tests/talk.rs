//! Conversations that read like packetdrill's: `<` is a segment that arrives, `>` one that has to
//! leave, `+10` is ten milliseconds after the last event. Numbers are relative to both ends' first
//! ones, timestamps to the start. What is not said (window, options) is not compared, but a segment
//! without `sack` in its options has none. At the end, nothing may have been sent that was not
//! expected.

use super::end::{End, enter};
use crate::conn::{ConnOptions, PathFloor, Shutdown, SockOpt};
use crate::wire::{Emit, Flags, Options, SackBlocks, SackRange, Segment, Timestamps};
use crate::{Config, Instant, Seq};

/// The longest wait for a segment that has to leave.
const PATIENCE: u64 = 8_000_000_000;

/// A conversation.
pub(super) struct Talk {
    pub(super) end: End,
    start: Instant,
    /// The time of the last event.
    last: Instant,
    peer_isn: Seq,
    line: String,
}

impl Talk {
    fn new(cfg: Config, iss: Seq, peer_isn: Seq) -> Talk {
        let end = End::new(Config { tcp_timestamps: cfg.tcp_timestamps.min(1) * 2, ..cfg }, iss);
        let (start, last) = (end.now, end.now);
        Talk { end, start, last, peer_isn, line: String::new() }
    }

    /// A listener with a backlog of 16; `change` is applied to the knobs.
    pub(super) fn listen(change: impl FnOnce(&mut Config)) -> Talk {
        Talk::listen_with(change, ConnOptions::default(), 16)
    }

    pub(super) fn listen_with(change: impl FnOnce(&mut Config), options: ConnOptions, backlog: i32) -> Talk {
        let mut cfg = script_config();
        change(&mut cfg);
        let mut talk = Talk::new(cfg, Seq(1_000_000), Seq(5_000_000));
        talk.end.options = options;
        talk.end.listen(backlog);
        talk
    }

    /// A connection that is being opened.
    pub(super) fn connect(change: impl FnOnce(&mut Config)) -> Talk {
        Talk::connect_at(change, Seq(1_000_000), Seq(5_000_000))
    }

    pub(super) fn connect_with(change: impl FnOnce(&mut Config), options: ConnOptions) -> Talk {
        let mut cfg = script_config();
        change(&mut cfg);
        let mut talk = Talk::new(cfg, Seq(1_000_000), Seq(5_000_000));
        talk.end.options = options;
        talk.end.connect();
        talk
    }

    pub(super) fn connect_at(change: impl FnOnce(&mut Config), iss: Seq, peer_isn: Seq) -> Talk {
        let mut cfg = script_config();
        change(&mut cfg);
        let mut talk = Talk::new(cfg, iss, peer_isn);
        talk.end.connect();
        talk
    }

    /// A connection that a peer opened 10 ms ago: MSS 1000, SACK, window scale 7, no timestamps.
    pub(super) fn accepted(change: impl FnOnce(&mut Config)) -> Talk {
        let mut talk = Talk::listen(change);
        talk.run(
            "< S 0:0(0) win 32792 <mss 1000,sackOK,nop,nop,nop,wscale 7>
             > S. 0:0(0) ack 1
             +10 < . 1:1(0) ack 1 win 257",
        );
        talk
    }

    /// The same with both ends' numbers about to wrap.
    pub(super) fn accepted_at(iss: Seq, peer_isn: Seq) -> Talk {
        let mut talk = Talk::listen(|_| {});
        (talk.end.iss, talk.peer_isn) = (iss, peer_isn);
        talk.run(
            "< S 0:0(0) win 32792 <mss 1000,sackOK,nop,nop,nop,wscale 7>
             > S. 0:0(0) ack 1
             +10 < . 1:1(0) ack 1 win 257",
        );
        talk
    }

    /// Holds the lines of a script, and asserts that nothing else was sent.
    pub(super) fn run(&mut self, script: &str) {
        self.play(script);
        let rest: Vec<_> = self.end.host.sent.iter().map(|(_, emit)| self.text(emit)).collect();
        assert!(rest.is_empty(), "after '{}' was also sent: {rest:?}", self.line);
    }

    /// The same, whatever else was sent.
    pub(super) fn play(&mut self, script: &str) {
        for line in script.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("//")) {
            self.line = line.to_owned();
            self.step(line);
        }
    }

    fn step(&mut self, line: &str) {
        let (delta, rest) = match line.strip_prefix('+') {
            Some(timed) => {
                let (ms, rest) = timed.split_once(' ').expect("a time and an event");
                ((ms.parse::<f64>().expect("milliseconds") * 1000.0).round() as u64, rest.trim())
            }
            None => (0, line),
        };
        let at = Instant(self.last.0 + delta);
        if let Some(expected) = rest.strip_prefix("> ") {
            return self.expect(at, expected.trim());
        }
        self.advance(at);
        self.last = at;
        match rest.strip_prefix("< ") {
            Some(segment) => {
                let segment = self.parse(segment.trim());
                self.end.segment(&segment);
            }
            None => self.call(rest),
        }
    }

    /// Lets time pass up to `at`: what is due on the way happens.
    pub(super) fn advance(&mut self, at: Instant) {
        while self.end.deadline() <= at {
            let due = self.end.deadline().max(self.end.now);
            self.end.time(due);
            assert!(self.end.deadline() > due, "'{}': a timer that is due stays due", self.line);
        }
        self.end.now = at;
    }

    fn expect(&mut self, at: Instant, expected: &str) {
        while self.end.host.sent.is_empty() {
            let due = self.end.deadline();
            let patient = due.is_armed() && due.0 < self.start.0 + PATIENCE;
            assert!(patient, "'{}' was not sent; state {:?}", self.line, self.end.state());
            self.advance(due);
        }
        let (sent_at, mut emit) = self.end.host.sent.pop_front().expect("a segment");
        // Runs that follow one another at once count as one where the script has them so.
        let wanted = expected.split_once('(').and_then(|(_, rest)| rest.split(')').next()?.parse().ok());
        while let Some((at, next)) = self.end.host.sent.front()
            && wanted.is_some_and(|wanted: u32| emit.len < wanted)
            && (*at, next.seq) == (sent_at, emit.seq + emit.len)
            && emit.len > 0
            && next.len > 0
        {
            emit = Emit { seq: emit.seq, len: emit.len + next.len, ..*next };
            self.end.host.sent.pop_front();
        }
        let got = self.text(&emit);
        let ms = |at: Instant| (at.0 - self.start.0) as f64 / 1000.0;
        let late = sent_at.0.abs_diff(at.0);
        assert!(matches(expected, &got), "expected '{expected}', sent at {} ms: '{got}'", ms(sent_at));
        assert!(late <= 1000, "'{}': expected at {} ms, sent at {} ms", self.line, ms(at), ms(sent_at));
        self.last = sent_at.max(at);
    }

    fn call(&mut self, call: &str) {
        let (name, argument) = call.split_once(' ').unwrap_or((call, ""));
        let number = || argument.parse::<u32>().unwrap_or_else(|_| panic!("'{call}': a number"));
        let on = argument == "on";
        match name {
            "write" => self.end.write(number(), false),
            "write-more" => self.end.write(number(), true),
            "read" => assert_eq!(self.end.read(u32::MAX), number(), "'{call}'"),
            "read-some" => assert_eq!(self.end.read(number()), number(), "'{call}'"),
            "close" => self.end.close(),
            "shutdown" => self.end.shutdown(match argument {
                "rd" => Shutdown::Read,
                "wr" => Shutdown::Write,
                _ => Shutdown::Both,
            }),
            "nodelay" => self.option(SockOpt::NoDelay(on)),
            "cork" => self.option(SockOpt::Cork(on)),
            "quickack" => self.option(SockOpt::QuickAck(on)),
            "keepalive" => self.option(SockOpt::KeepAlive(on)),
            "keepidle" => self.option(SockOpt::KeepIdle(number())),
            "keepintvl" => self.option(SockOpt::KeepIntvl(number())),
            "keepcnt" => self.option(SockOpt::KeepCnt(number() as u8)),
            "user-timeout" => self.option(SockOpt::UserTimeout(number())),
            "linger-zero" => self.option(SockOpt::LingerZero(on)),
            "linger2" => self.option(SockOpt::Linger2(argument.parse().unwrap())),
            "rcvbuf" => self.option(SockOpt::RcvBuf(number())),
            "state" => {
                let state = self.end.state().map_or("None".into(), |state| format!("{state:?}"));
                assert_eq!(state, argument);
            }
            "error" => {
                let error = enter!(&mut self.end, conn, cx => { let _ = cx; conn.take_error() });
                assert_eq!(error.map_or("None".into(), |error| format!("{error:?}")), argument);
            }
            "path-mss" => {
                let mss = number() as u16;
                let una = self.end.iss + 1 + self.end.host.acked as u32;
                self.path_mss(una, mss, PathFloor::Ipv4);
            }
            "unsent" => assert_eq!(self.end.conn().unsent(), number()),
            "unacked" => assert_eq!(self.end.conn().unacked(), number()),
            "unread" => assert_eq!(self.end.conn().unread(), number()),
            "time-wait" => assert_eq!(self.end.host.time_wait.is_some(), on),
            "refuse" => self.end.host.refuse = on,
            "flush" => self.end.after(),
            "nothing" => {}
            "drop" => {
                let last = self.end.host.drops.last().map_or("None".into(), |drop| format!("{drop:?}"));
                assert_eq!(last, argument);
            }
            other => panic!("no such call: {other}"),
        }
    }

    /// An ICMP message about the packet that began at `quoted`.
    pub(super) fn path_mss(&mut self, quoted: Seq, mss: u16, floor: PathFloor) {
        enter!(&mut self.end, conn, cx => conn.path_mss_changed(cx, quoted, mss, floor));
        self.end.after();
    }

    fn option(&mut self, option: SockOpt) {
        enter!(&mut self.end, conn, cx => conn.set_option(cx, option)).unwrap();
        self.end.after();
    }

    /// A segment as a script writes it.
    pub(super) fn parse(&self, text: &str) -> Segment {
        let (head, options) = match text.split_once('<') {
            Some((head, options)) => (head, options.trim_end_matches('>')),
            None => (text, ""),
        };
        let mut words = head.split_whitespace();
        let mut segment = Segment { segs: 1, ..Segment::default() };
        for flag in words.next().expect("flags").chars() {
            segment.flags = segment.flags | flag_named(flag);
        }
        let range = words.next().expect("numbers");
        let (seq, rest) = range.split_once(':').expect("start:end(len)");
        let (_, len) = rest.split_once('(').expect("start:end(len)");
        segment.seq = self.peer_isn + seq.parse::<i64>().expect("a number") as u32;
        segment.len = len.trim_end_matches(')').parse().expect("a length");
        while let Some(word) = words.next() {
            let value = match word {
                "ce" => {
                    segment.ce = true;
                    continue;
                }
                _ => words.next().unwrap_or_else(|| panic!("a value after {word}")),
            };
            match word {
                "ack" => segment.ack = self.end.iss + value.parse::<i64>().expect("a number") as u32,
                "win" => segment.window = value.parse().expect("a window"),
                "segs" => segment.segs = value.parse().expect("segments"),
                other => panic!("no such word: {other}"),
            }
        }
        segment.options = self.parse_options(options);
        segment
    }

    fn parse_options(&self, text: &str) -> Options {
        let mut options = Options::default();
        for option in text.split(',').map(str::trim).filter(|option| !option.is_empty()) {
            let words: Vec<_> = option.split_whitespace().collect();
            match words[0] {
                "nop" => {}
                "mss" => options.mss = Some(words[1].parse().unwrap()),
                "wscale" => options.window_scale = Some(words[1].parse().unwrap()),
                "sackOK" => options.sack_permitted = true,
                "TS" => {
                    let ecr: u32 = words[4].parse().unwrap();
                    let ecr = if ecr == 0 { 0 } else { ecr.wrapping_add(self.start_ms()) };
                    options.timestamps = Some(Timestamps { val: words[2].parse().unwrap(), ecr });
                }
                "sack" => {
                    for block in &words[1..] {
                        let (start, end) = block.split_once(':').expect("start:end");
                        let number = |n: &str| self.end.iss + n.parse::<i64>().unwrap() as u32;
                        options.sack.push(SackRange { start: number(start), end: number(end) });
                    }
                }
                other => panic!("no such option: {other}"),
            }
        }
        options
    }

    fn start_ms(&self) -> u32 {
        crate::send::ts_clock(self.start)
    }

    /// A segment that was sent, as a script writes it.
    fn text(&self, emit: &Emit) -> String {
        // Numbers are relative, unless they come from a segment that was made up.
        let near = |seq: Seq, base: Seq| seq - base;
        let iss =
            if emit.flags == Flags::RST | Flags::ACK && emit.seq == Seq(0) { Seq(0) } else { self.end.iss };
        let seq = near(emit.seq, iss) as i32;
        let end = seq.wrapping_add(emit.len as i32);
        let mut text = format!("{:?} {seq}:{end}({})", emit.flags, emit.len);
        if emit.flags.any(Flags::ACK) {
            text += &format!(" ack {}", near(emit.ack, self.peer_isn) as i32);
        }
        text += &format!(" win {} <{}>", emit.window, self.options_text(emit));
        text
    }

    fn options_text(&self, emit: &Emit) -> String {
        let o = &emit.options;
        let mut parts = Vec::new();
        parts.extend(o.mss.map(|mss| format!("mss {mss}")));
        if o.sack_permitted {
            parts.push("sackOK".into());
        }
        if let Some(ts) = o.timestamps {
            parts.push(format!("TS val {} ecr {}", ts.val.wrapping_sub(self.start_ms()), ts.ecr));
        }
        parts.extend(o.window_scale.map(|shift| format!("wscale {shift}")));
        if o.sack != SackBlocks::EMPTY {
            let near = |seq: Seq| seq - self.peer_isn;
            let blocks: Vec<_> =
                o.sack.iter().map(|range| format!("{}:{}", near(range.start), near(range.end))).collect();
            parts.push(format!("sack {}", blocks.join(" ")));
        }
        parts.join(",")
    }
}

impl Drop for Talk {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("at '{}'", self.line);
        }
    }
}

/// The knobs of packetdrill's scripts: window scale 8, no timestamps, ECN as Linux has it.
fn script_config() -> Config {
    Config { tcp_rmem: [4096, 131_072, 15 << 20], tcp_timestamps: 0, ..Config::default() }
}

fn flag_named(flag: char) -> Flags {
    match flag {
        'S' => Flags::SYN,
        'F' => Flags::FIN,
        'R' => Flags::RST,
        'P' => Flags::PSH,
        '.' => Flags::ACK,
        'U' => Flags::URG,
        'E' => Flags::ECE,
        'W' => Flags::CWR,
        '-' => Flags::NONE,
        other => panic!("no such flag: {other}"),
    }
}

/// Whether what was sent is what was expected, as far as that says.
fn matches(expected: &str, got: &str) -> bool {
    let split = |text: &str| -> (Vec<String>, Option<String>) {
        let (head, options) = match text.split_once('<') {
            Some((head, options)) => (head, Some(options.trim_end_matches('>').to_owned())),
            None => (text, None),
        };
        (head.split_whitespace().map(str::to_owned).collect(), options)
    };
    let ((want, want_options), (have, have_options)) = (split(expected), split(got));
    let have_options = have_options.unwrap_or_default();
    let mut flags_want: Vec<_> = want[0].chars().collect();
    let mut flags_have: Vec<_> = have[0].chars().collect();
    flags_want.sort_unstable();
    flags_have.sort_unstable();
    if flags_want != flags_have || want[1] != have[1] {
        return false;
    }
    let value = |words: &[String], name: &str| {
        words.iter().position(|word| word == name).map(|at| words[at + 1].clone())
    };
    if value(&want, "ack") != value(&have, "ack") {
        return false;
    }
    if let Some(window) = value(&want, "win")
        && Some(window) != value(&have, "win")
    {
        return false;
    }
    match want_options {
        Some(options) => {
            let strip = |text: &str| {
                text.split(',')
                    .map(str::trim)
                    .filter(|o| *o != "nop" && !o.is_empty())
                    .collect::<Vec<_>>()
                    .join(",")
            };
            strip(&options) == strip(&have_options)
        }
        None => !have_options.contains("sack "),
    }
}
