//! A run: two ends, the network between them, and the invariants of what passes it.
//!
//! Beside those that [`End`] asserts after every step (the identities of the sending half, the
//! edge that never retreats, memory, handles), a run asserts of every segment that it lies within
//! what its sender holds and the receiver's window, and that nothing stalls.
//!
//! *Stall*: a sender has something outstanding, and for twice its retransmission time-out, plus
//! the round trip that the network really has, `SND.UNA` does not move though nothing of the
//! connection was lost in that time. (RFC 6298 5: the timer runs whenever data is outstanding, so
//! that after one RTO the head is sent again; it is acknowledged within another one.) What counts
//! is the time-out that was in force, backed off.

use std::collections::BTreeMap;

use softnet_netem::{Fate, Netem};

use super::super::end::{End, enter};
use super::super::pair::segments_of;
use super::plan::{App, Dice, Ending, Plan};
use crate::conn::{Error, Shutdown, SockOpt, State, Writable};
use crate::timewait::TIMEWAIT_LEN;
use crate::wire::{Emit, Flags, Segment};
use crate::{Instant, Seq};

/// The time that a run may take: a buffer of three segments, without SACK and timestamps, makes
/// two kilobytes a time-out of two minutes, as in Linux.
const PATIENCE: u64 = 7 * 24 * 3_600_000_000;

#[derive(Debug)]
struct Side {
    end: End,
    app: App,
    written: u64,
    shut: bool,
    closed: bool,
    next_read: Instant,
    next_write: Instant,
    /// When the peer's last segment came.
    heard: Instant,
    /// Since when nothing was lost and `SND.UNA` did not move, and where that stood.
    still_since: Instant,
    still_at: (u64, Option<State>),
    /// Whether nothing was outstanding.
    idle: bool,
    /// The longest time-out in force since, microseconds.
    still_rto: u64,
}

struct Arrival {
    to: usize,
    segment: Segment,
    corrupt: bool,
}

/// What a run came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Report {
    /// When the last byte of each direction was delivered, microseconds from the start.
    pub(super) delivered_at: [u64; 2],
    /// Segments sent, and lost in either way.
    pub(super) segments: u64,
    pub(super) lost: u64,
    /// Retransmissions of the client; and how many of them brought what had arrived.
    pub(super) retransmitted: u64,
    pub(super) spurious: u64,
    pub(super) timeouts: u64,
}

pub(super) struct World {
    plan: Plan,
    sides: [Side; 2],
    links: [Netem; 2],
    held: [usize; 2],
    wire: BTreeMap<(u64, u64), Arrival>,
    order: u64,
    dice: Dice,
    start: Instant,
    now: Instant,
    /// Whether something was lost since the stalls were looked at.
    loss: bool,
    /// Segments that hosts have refused until then.
    refused: u64,
    /// The longest ways so far, microseconds.
    longest: [u64; 2],
    report: Report,
    pub(super) trace: bool,
}

impl World {
    pub(super) fn new(plan: &Plan) -> World {
        let mut dice = Dice::new(!plan.seed);
        let end = |side: &super::plan::Side, iss| {
            let mut end = End::new(side.cfg.clone(), iss);
            (end.options, end.path_mss) = (side.options, side.path_mss);
            end
        };
        // One in two is near the wrap.
        let mut isn = || match dice.below(4) {
            0 => Seq(0u32.wrapping_sub(dice.magnitude(1 << 20) as u32)),
            1 => Seq((1 << 31) - dice.magnitude(1 << 20) as u32),
            _ => Seq(dice.below(1 << 32) as u32),
        };
        let mut client = end(&plan.sides[0], isn());
        let mut server = end(&plan.sides[1], isn());
        server.listen(10);
        client.connect();
        let start = client.now;
        let side = |end, i: usize| Side {
            end,
            app: plan.sides[i].app,
            written: 0,
            shut: false,
            closed: false,
            next_read: start,
            next_write: start,
            heard: start,
            still_since: start,
            still_at: (0, None),
            idle: true,
            still_rto: 0,
        };
        World {
            plan: plan.clone(),
            sides: [side(client, 0), side(server, 1)],
            links: [Netem::new(plan.links[0]), Netem::new(plan.links[1])],
            held: [0; 2],
            wire: BTreeMap::new(),
            order: 0,
            dice,
            start,
            now: start,
            loss: false,
            refused: 0,
            longest: [0; 2],
            report: Report::default(),
            trace: false,
        }
    }

    fn micros(&self) -> u64 {
        self.now.0 - self.start.0
    }

    /// Gives the network what the ends have sent.
    fn carry(&mut self) {
        for from in 0..2 {
            while let Some((at, emit)) = self.sides[from].end.host.sent.pop_front() {
                assert_eq!(at, self.now, "segments leave in their step");
                self.is_within_bounds(from, &emit);
                for segment in segments_of(&emit) {
                    self.send(from, segment, &emit);
                }
            }
        }
    }

    /// A sender sends what its host still holds, and nothing beyond the window.
    fn is_within_bounds(&self, from: usize, emit: &Emit) {
        if emit.len == 0 {
            return;
        }
        let (side, peer) = (&self.sides[from].end, &self.sides[1 - from].end);
        let front = u64::from(emit.seq - (side.iss + 1));
        let end = front + u64::from(emit.len);
        // Streams of runs are shorter than the numbers.
        assert!(end <= side.queued, "{emit:?} of {} bytes", side.queued);
        if peer.state() == Some(State::Closed) {
            // What it told in its last step was not looked at.
            return;
        }
        // While the receiver is a request, its first window is not known here.
        let inside = peer.edge().is_none_or(|edge| (emit.seq + emit.len).at_or_before(edge));
        assert!(inside, "{emit:?} beyond {:?}", peer.edge());
    }

    fn send(&mut self, from: usize, mut segment: Segment, emit: &Emit) {
        self.report.segments += 1;
        let bytes = 20 + emit.header_len() + segment.len as usize;
        let decision = self.links[from].decide(self.now.0 * 1000, bytes, self.held[from]);
        segment.ce = emit.ect && self.held[from] >= self.plan.mark_from;
        if self.trace {
            let arrow = if from == 0 { "->" } else { "<-" };
            let fate = decision.packet;
            let again = if emit.retransmit { " again" } else { "" };
            eprintln!("{:>12} {arrow} {}{again} {fate:?}", self.micros(), self.text(from, &segment));
        }
        for fate in [Some(decision.packet), decision.copy].into_iter().flatten() {
            let Fate::Leaves { at, corrupt, .. } = fate else {
                self.report.lost += 1;
                self.loss = true;
                continue;
            };
            let at = at.div_ceil(1000);
            self.longest[from] = self.longest[from].max(at - self.now.0);
            self.held[from] += 1;
            self.order += 1;
            let arrival = Arrival { to: 1 - from, segment, corrupt: corrupt.is_some() };
            self.wire.insert((at, self.order), arrival);
        }
    }

    fn text(&self, from: usize, segment: &Segment) -> String {
        let (mine, theirs) = (self.sides[from].end.iss, self.sides[1 - from].end.iss);
        let sack: Vec<_> = segment
            .options
            .sack
            .iter()
            .map(|range| format!("{}:{}", range.start - theirs, range.end - theirs))
            .collect();
        let seq = segment.seq - mine;
        let ts = segment.options.timestamps.map(|ts| (ts.val, ts.ecr));
        format!(
            "{:?} {seq}:{}({}) ack {} win {} {sack:?} {ts:?}",
            segment.flags,
            seq + segment.len,
            segment.len,
            segment.ack - theirs,
            segment.window
        )
    }

    /// What has arrived by now, in one batch for each end.
    fn arrive(&mut self) {
        let mut batches: [Vec<Segment>; 2] = Default::default();
        while let Some(entry) = self.wire.first_entry()
            && entry.key().0 <= self.now.0
        {
            let arrival = entry.remove();
            self.held[1 - arrival.to] -= 1;
            if arrival.corrupt {
                // The checksum does not match.
                self.report.lost += 1;
                self.loss = true;
                continue;
            }
            let batch = &mut batches[arrival.to];
            match batch.last_mut() {
                Some(last) if self.plan.gro && merges(last, &arrival.segment) => {
                    last.len += arrival.segment.len;
                    last.segs += 1;
                    last.flags = last.flags | arrival.segment.flags;
                }
                _ => batch.push(arrival.segment),
            }
        }
        for (to, batch) in batches.into_iter().enumerate() {
            if batch.is_empty() {
                continue;
            }
            let side = &mut self.sides[to];
            side.end.now = self.now;
            side.heard = self.now;
            for segment in &batch {
                let drops = side.end.host.drops.len();
                let before = side.end.counters.dsack_old_sent + side.end.counters.dsack_ofo_sent;
                side.end.segment_in_batch(segment);
                let after = side.end.counters.dsack_old_sent + side.end.counters.dsack_ofo_sent;
                self.report.spurious += if to == 1 { after - before } else { 0 };
                // What the receiver has no room for is as good as lost.
                self.loss |= side.end.host.drops.len() > drops;
            }
            side.end.after();
            if to == 1 && side.end.conn.is_some() {
                // A SYN of the past does not begin a second connection with the same numbers.
                side.end.listener = None;
            }
        }
    }

    /// Lets the applications do what they can.
    fn apps(&mut self) {
        for i in 0..2 {
            let refuse = self.plan.refuse > 0 && self.dice.one_in(self.plan.refuse);
            let side = &mut self.sides[i];
            side.end.now = self.now;
            side.end.host.refuse = refuse;
            if side.closed || side.end.state().is_none_or(|state| state == State::Closed) {
                continue;
            }
            if let Ending::Abort(after) = side.app.ending
                && self.now.0 - self.start.0 >= after
            {
                side.closed = true;
                enter!(&mut side.end, conn, cx => conn.set_option(cx, SockOpt::LingerZero(true))).unwrap();
                side.end.close();
                continue;
            }
            side.read(self.now);
            side.write(self.now, &mut self.dice);
            side.finish();
        }
    }

    fn is_done(&self) -> bool {
        self.sides.iter().all(|side| match side.end.state() {
            Some(state) => state == State::Closed,
            // The client ended before the server had a connection, or its request.
            None => self.sides[0].end.state() == Some(State::Closed) && self.wire.is_empty(),
        })
    }

    /// When something happens next.
    fn next(&self) -> Instant {
        let arrival = self.wire.first_key_value().map_or(Instant::NEVER, |(key, _)| Instant(key.0));
        self.sides.iter().fold(arrival, |next, side| next.min(side.next(self.start)))
    }

    /// The end of a step: nothing stalls.
    fn look(&mut self) {
        let refused = self.sides.iter().map(|side| side.end.host.refused).sum();
        let loss = std::mem::take(&mut self.loss) || refused > self.refused;
        self.refused = refused;
        // What a host refused is tried again in half a second (Linux RESOURCE_PROBE_INTERVAL).
        let patience = if self.plan.refuse > 0 { 500_000 } else { 0 };
        let way = self.longest[0] + self.longest[1] + patience;
        for i in 0..2 {
            let delivered = self.sides[1 - i].end.host.delivered;
            if delivered == self.sides[i].app.send && self.report.delivered_at[i] == 0 {
                self.report.delivered_at[i] = self.micros();
            }
            let side = &mut self.sides[i];
            let Some(conn) = &side.end.conn else { continue };
            let send = conn.info(&side.end.cfg).send;
            let at = (send.bytes_acked, side.end.state());
            // From the first look on at which something is outstanding.
            let idle = std::mem::replace(&mut side.idle, send.unacked == 0 || conn.state() == State::Closed);
            if loss || idle || at != side.still_at {
                (side.still_since, side.still_at, side.still_rto) = (self.now, at, 0);
            }
            side.still_rto = side.still_rto.max(u64::from(send.rto.0));
            let still = self.now.0 - side.still_since.0;
            let most = 2 * side.still_rto + way;
            assert!(still <= most, "side {i} stalls: {still} us of {most}, {send:?}");
        }
    }

    /// Runs until both ends are closed, and asserts that what had to arrive did.
    pub(super) fn run(&mut self) -> Report {
        loop {
            self.apps();
            self.carry();
            self.look();
            if self.is_done() {
                break;
            }
            let next = self.next();
            if !next.is_armed() && self.sides.iter().any(Side::gave_up_unsent) {
                // Its peer heard nothing of it, and has nothing to ask.
                break;
            }
            assert!(next.is_armed(), "nothing will happen: {:?}", self.states());
            assert!(next.0 < self.start.0 + PATIENCE, "no end: {:?}", self.states());
            self.now = self.now.max(next);
            self.arrive();
            for side in &mut self.sides {
                if side.end.deadline() <= self.now {
                    side.end.time(self.now);
                    let due = side.end.deadline();
                    assert!(due > self.now, "a timer that is due stays due");
                }
            }
        }
        self.judge();
        let send = &self.sides[0].end.counters.send;
        (self.report.retransmitted, self.report.timeouts) = (send.retrans_segs, send.tcp_timeouts);
        self.report
    }

    fn judge(&self) {
        for (from, to) in [(0, 1), (1, 0)] {
            let (sender, receiver) = (&self.sides[from], &self.sides[to]);
            assert!(receiver.end.host.delivered <= sender.written, "more than was sent");
            if !self.plan.is_graceful(from) || !self.plan.is_graceful(to) && self.plan.is_graceful(from) {
                continue;
            }
            let errors = [from, to].map(|i| self.sides[i].end.conn.as_ref().and_then(|conn| conn.error()));
            if errors.iter().any(|error| self.is_excused(*error)) {
                continue;
            }
            assert_eq!(errors, [None; 2], "{:?}", self.states());
            assert_eq!(receiver.end.host.delivered, sender.app.send, "from side {from}");
        }
    }

    /// Whether an error is the network's: a peer that was silent for long, or one that has
    /// forgotten the connection for which every segment was lost as long as that. Or its host's.
    fn is_excused(&self, error: Option<Error>) -> bool {
        match error {
            Some(Error::ConnectionReset) => self.micros() > u64::from(TIMEWAIT_LEN.0),
            Some(Error::TimedOut) => {
                let silent = |side: &Side| self.now.0 - side.heard.0 > u64::from(TIMEWAIT_LEN.0);
                self.sides.iter().any(|side| silent(side) || side.gave_up_unsent())
            }
            _ => false,
        }
    }

    fn states(&self) -> String {
        let text = |side: &Side| {
            let (end, conn) = (&side.end, side.end.conn.as_ref());
            format!(
                "{:?} {:?}, written {}, delivered {}, unread {:?}, heard {}, refused {}",
                end.state(),
                conn.and_then(|conn| conn.error()),
                side.written,
                end.host.delivered,
                conn.map(|conn| conn.unread()),
                side.heard.0 - self.start.0,
                end.host.refused
            )
        };
        format!("at {}: {}; {}", self.micros(), text(&self.sides[0]), text(&self.sides[1]))
    }
}

impl Side {
    /// Whether the connection ended since its host refused one probe after the other: those count
    /// as sent (Linux `tcp_send_probe0`).
    fn gave_up_unsent(&self) -> bool {
        self.end.host.refused_in_row >= u32::from(self.end.cfg.tcp_retries2)
            && self.end.conn.as_ref().is_some_and(|conn| conn.error() == Some(Error::TimedOut))
    }

    fn read(&mut self, now: Instant) {
        if now < self.next_read || self.end.conn().unread() == 0 {
            return;
        }
        self.end.read(self.app.read_max);
        self.next_read = Instant(now.0 + self.app.read_every);
        while self.app.read_every == 0 && self.end.conn().unread() > 0 {
            self.end.read(self.app.read_max);
        }
    }

    fn write(&mut self, now: Instant, dice: &mut Dice) {
        while self.written < self.app.send
            && now >= self.next_write
            && let Writable::Room(room) = self.end.conn().writable()
            && room > 0
        {
            let left = self.app.send - self.written;
            let bytes = u64::from(room.min(self.app.chunk)).min(left) as u32;
            self.written += u64::from(bytes);
            let more = self.written < self.app.send && dice.below(8) < self.app.more;
            self.end.write(bytes, more);
            self.next_write = Instant(now.0 + self.app.write_every);
        }
    }

    fn finish(&mut self) {
        let Some(state) = self.end.state() else { return };
        let ready = !matches!(state, State::SynSent | State::SynReceived | State::Closed);
        if !ready || self.written < self.app.send {
            return;
        }
        match self.app.ending {
            Ending::Close => {
                self.closed = true;
                self.end.close();
            }
            _ if !self.shut => {
                self.shut = true;
                self.end.shutdown(Shutdown::Write);
            }
            _ => {}
        }
        let over = self.end.conn().receive_ended() && self.end.conn().unread() == 0;
        if self.shut && over && !self.closed && self.end.state() != Some(State::Closed) {
            self.closed = true;
            self.end.close();
        }
    }

    fn next(&self, start: Instant) -> Instant {
        let mut next = self.end.deadline();
        let Some(conn) = self.end.conn.as_ref() else { return next };
        if self.closed || conn.state() == State::Closed {
            return next;
        }
        if let Ending::Abort(after) = self.app.ending {
            next = next.min(Instant(start.0 + after));
        }
        if conn.unread() > 0 {
            next = next.min(self.next_read);
        }
        let room = matches!(conn.writable(), Writable::Room(1..));
        if self.written < self.app.send && room {
            next = next.min(self.next_write);
        }
        next
    }
}

/// Whether GRO makes `next` part of `last`.
fn merges(last: &Segment, next: &Segment) -> bool {
    let plain = |segment: &Segment| !segment.flags.any(Flags::SYN | Flags::FIN | Flags::RST | Flags::CWR);
    last.len > 0
        && next.len > 0
        && next.seq == last.seq + last.len
        && (last.ack, last.window, last.ce) == (next.ack, next.window, next.ce)
        && last.options == next.options
        && plain(last)
        && plain(next)
        && !last.flags.any(Flags::PSH)
        && last.segs < 44
}
