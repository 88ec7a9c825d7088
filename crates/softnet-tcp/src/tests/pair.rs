//! Two ends over a channel that may lose, delay, reorder and duplicate, in virtual time.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::end::End;
use crate::conn::{Error, Shutdown, State, Writable};
use crate::timewait::TIMEWAIT_LEN;
use crate::wire::{Emit, Flags, Segment};
use crate::{Config, Instant, Seq};

/// What the channel does, in both directions.
#[derive(Clone, Copy, Debug)]
pub(super) struct Channel {
    /// Microseconds each way.
    pub(super) delay: u64,
    /// Microseconds more, at most.
    pub(super) jitter: u64,
    /// Of a thousand segments.
    pub(super) loss: u64,
    pub(super) duplicate: u64,
    /// Held back for five times the delay.
    pub(super) reorder: u64,
}

impl Channel {
    pub(super) const PERFECT: Channel =
        Channel { delay: 5_000, jitter: 0, loss: 0, duplicate: 0, reorder: 0 };
}

/// What an application does with its end.
#[derive(Clone, Copy, Debug)]
pub(super) struct App {
    /// Bytes to send, then it ends sending.
    pub(super) send: u64,
    /// Bytes of a write.
    pub(super) chunk: u32,
    /// Microseconds between reads; 0 reads at once.
    pub(super) read_every: u64,
}

#[derive(Debug)]
struct Side {
    end: End,
    app: App,
    written: u64,
    shut: bool,
    closed: bool,
    next_read: Instant,
}

/// Two ends, and what is between them.
pub(super) struct Pair {
    sides: [Side; 2],
    channel: Channel,
    /// Segments under way, by arrival and order: to which side, and what.
    wire: BTreeMap<(u64, u64), (usize, Segment)>,
    order: u64,
    seed: u64,
    now: Instant,
    pub(super) segments: u64,
    trace: bool,
}

impl Pair {
    pub(super) fn new(cfg: Config, channel: Channel, apps: [App; 2], seed: u64) -> Pair {
        let isn = Seq((seed.wrapping_mul(0x9e37_79b9) as u32).wrapping_sub(10_000));
        let mut client = End::new(cfg.clone(), isn);
        let mut server = End::new(cfg, Seq(u32::MAX - 5000));
        server.listen(10);
        client.connect();
        let now = client.now;
        let side = |end, app| Side { end, app, written: 0, shut: false, closed: false, next_read: now };
        Pair {
            sides: [side(client, apps[0]), side(server, apps[1])],
            channel,
            wire: BTreeMap::new(),
            order: 0,
            seed: seed | 1,
            now,
            segments: 0,
            trace: false,
        }
    }

    fn random(&mut self, below: u64) -> u64 {
        self.seed ^= self.seed << 13;
        self.seed ^= self.seed >> 7;
        self.seed ^= self.seed << 17;
        (self.seed >> 11) % below.max(1)
    }

    fn carry(&mut self) {
        for from in 0..2 {
            while let Some((at, emit)) = self.sides[from].end.host.sent.pop_front() {
                for segment in segments_of(&emit) {
                    self.segments += 1;
                    if self.trace {
                        eprintln!("{:?} {} {:?}", at, if from == 0 { "->" } else { "<-" }, segment);
                    }
                    let copies = if self.random(1000) < self.channel.duplicate { 2 } else { 1 };
                    for _ in 0..copies {
                        if self.random(1000) < self.channel.loss {
                            continue;
                        }
                        let late = if self.random(1000) < self.channel.reorder { 5 } else { 1 };
                        let jitter = self.random(self.channel.jitter + 1);
                        let arrival = at.0 + self.channel.delay * late + jitter;
                        self.order += 1;
                        self.wire.insert((arrival, self.order), (1 - from, segment));
                    }
                }
            }
        }
    }

    /// Lets the applications do what they can.
    fn apps(&mut self) {
        let now = self.now;
        for side in &mut self.sides {
            side.end.now = now;
            let Some(state) = side.end.state() else { continue };
            if state == State::Closed {
                continue;
            }
            if now >= side.next_read {
                side.end.read(u32::MAX);
                side.next_read = Instant(now.0 + side.app.read_every);
            }
            while side.written < side.app.send
                && let Writable::Room(room) = side.end.conn().writable()
                && room > 0
            {
                let left = side.app.send - side.written;
                let bytes = u64::from(room.min(side.app.chunk)).min(left) as u32;
                side.written += u64::from(bytes);
                side.end.write(bytes, false);
            }
            let ready = !matches!(state, State::SynSent | State::SynReceived);
            if ready && side.written == side.app.send && !side.shut {
                side.shut = true;
                side.end.shutdown(Shutdown::Write);
            }
            let over = side.end.conn().receive_ended() && side.end.conn().unread() == 0;
            if side.shut && over && !side.closed && side.end.state() != Some(State::Closed) {
                side.closed = true;
                side.end.close();
            }
        }
    }

    fn done(&self) -> bool {
        self.sides.iter().all(|side| side.end.state() == Some(State::Closed))
    }

    /// Runs until both ends are closed, and asserts that all bytes arrived.
    pub(super) fn run(&mut self) -> Instant {
        let start = self.now;
        for _ in 0..2_000_000u64 {
            self.apps();
            self.carry();
            if self.done() {
                break;
            }
            let arrival = self.wire.first_key_value().map_or(Instant::NEVER, |(key, _)| Instant(key.0));
            let mut next = arrival;
            for side in &self.sides {
                next = next.min(side.end.deadline());
                let reads = side
                    .end
                    .conn
                    .as_ref()
                    .is_some_and(|conn| conn.state() != State::Closed && conn.unread() > 0);
                if reads {
                    next = next.min(side.next_read);
                }
            }
            assert!(next.is_armed(), "nothing will happen: {:?}", self.states());
            assert!(next.0 < start.0 + 7_200_000_000, "after two hours: {:?}", self.states());
            self.now = self.now.max(next);
            while let Some(entry) = self.wire.first_entry()
                && entry.key().0 <= self.now.0
            {
                let (to, segment) = entry.remove();
                let end = &mut self.sides[to].end;
                end.now = self.now;
                end.segment(&segment);
            }
            for side in &mut self.sides {
                if side.end.deadline() <= self.now {
                    side.end.time(self.now);
                }
            }
        }
        assert!(self.done(), "not done: {:?}", self.states());
        for (side, other) in [(0, 1), (1, 0)] {
            assert_eq!(self.sides[other].end.host.delivered, self.sides[side].app.send, "from side {side}");
            // A last ACK that is lost until TIME-WAIT is over leaves a peer that is reset.
            let error = self.sides[side].end.conn().error();
            let late = self.now.0 > start.0 + u64::from(TIMEWAIT_LEN.0);
            assert!(error.is_none() || (late && error == Some(Error::ConnectionReset)), "{error:?}");
        }
        self.now
    }

    fn states(&self) -> [(Option<State>, u64, u64); 2] {
        [0, 1].map(|i| {
            let side = &self.sides[i];
            (side.end.state(), side.written, side.end.host.delivered)
        })
    }
}

/// The segments on the wire that `emit` is.
pub(super) fn segments_of(emit: &Emit) -> Vec<Segment> {
    let mss = u32::from(emit.mss.max(1));
    let syn = u32::from(emit.flags.any(Flags::SYN));
    let count = emit.segs();
    (0..count)
        .map(|i| {
            let front = i * mss;
            let mut flags = emit.flags;
            if i + 1 < count {
                flags = flags.without(Flags::FIN | Flags::PSH);
            }
            if i > 0 {
                flags = flags.without(Flags::CWR);
            }
            Segment {
                seq: emit.seq + front + if i > 0 { syn } else { 0 },
                ack: emit.ack,
                flags,
                window: emit.window,
                len: (emit.len - front).min(mss),
                segs: 1,
                options: emit.options,
                ..Segment::default()
            }
        })
        .collect()
}

fn bulk(send: u64) -> App {
    App { send, chunk: 64 * 1024, read_every: 0 }
}

#[test]
fn a_megabyte_each_way_over_a_perfect_channel() {
    let mut pair = Pair::new(Config::default(), Channel::PERFECT, [bulk(1 << 20), bulk(1 << 20)], 7);
    let took = pair.run().0 - 1_000_000_000;
    assert!(took < 2_000_000, "{took}: ten round trips and the slow start");
}

#[test]
fn losses_are_made_good() {
    for seed in 1..30 {
        let channel = Channel { loss: 30, jitter: 500, ..Channel::PERFECT };
        Pair::new(Config::default(), channel, [bulk(300_000), bulk(20_000)], seed).run();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn bytes_arrive_exactly_and_both_ends_close(
        delay in 100u64..50_000, jitter in 0u64..20_000, loss in 0u64..120, duplicate in 0u64..60,
        reorder in 0u64..120, seed: u64, sends in (0u64..200_000, 0u64..100_000),
        chunk in 1u32..20_000, read_every in prop_oneof![Just(0u64), 1000u64..2_000_000],
        timestamps in 0u8..3, sack: bool, scaling: bool, small: bool,
    ) {
        let mut cfg = Config {
            tcp_timestamps: timestamps, tcp_sack: sack, tcp_window_scaling: scaling,
            // An orphan has the patience of any connection: eight tries may all be lost.
            tcp_orphan_retries: 15, ..Config::default()
        };
        if small {
            cfg.tcp_rmem = [4096, 20_000, 40_000];
        }
        let channel = Channel { delay, jitter, loss, duplicate, reorder };
        let chunk = chunk.max(sends.0.max(sends.1) as u32 / 2000);
        let app = |send| App { send, chunk, read_every };
        Pair::new(cfg, channel, [app(sends.0), app(sends.1)], seed).run();
    }
}
