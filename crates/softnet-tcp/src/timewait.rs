//! TIME-WAIT, and FIN-WAIT-2 of an orphan, as an object of its own (RFC 9293 3.10.7.4, RFC 1337,
//! RFC 6191; Linux `tcp_timewait_state_process`).
//!
//! "When the ACK for its FIN arrives, enter TIME-WAIT … until 2 MSL have passed": one minute here,
//! as in Linux. What must be remembered of a connection for that are its numbers.

use crate::config::Config;
use crate::counters::Counters;
use crate::send::ts_clock;
use crate::seq::Seq;
use crate::time::{Instant, Span};
use crate::wire::{Emit, Flags, Segment, Timestamps};

/// How long TIME-WAIT lasts.
pub const TIMEWAIT_LEN: Span = Span(60_000_000);

/// After this long, a timestamp proves nothing: 24 days, in milliseconds.
const PAWS_24_DAYS_MS: u32 = 24 * 24 * 3600 * 1000;

/// What is awaited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Substate {
    /// The peer's FIN.
    FinWait2,
    /// The end of old segments.
    TimeWait,
}

/// A connection that has ended, but for its numbers.
#[derive(Clone, Copy, Debug)]
pub struct TimeWait {
    deadline: Instant,
    snd_nxt: Seq,
    rcv_nxt: Seq,
    window: u32,
    ts_recent: u32,
    /// Milliseconds of the clock at which `ts_recent` was learnt.
    ts_recent_at: u32,
    ts_offset: u32,
    /// Milliseconds of the clock at which the last answer was sent.
    answered: u32,
    /// Milliseconds of the clock at which this began.
    since: u32,
    substate: Substate,
    scale: u8,
    has_ts: bool,
    has_answered: bool,
}

/// What to do with a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing.
    Drop,
    /// Send this.
    Answer(Emit),
    /// Send this reset, if any, and forget the object.
    Gone(Option<Emit>),
    /// It is a SYN of a new connection: forget the object, and give the segment to the listener,
    /// which starts at this number.
    NewConnection(Seq),
}

impl TimeWait {
    pub(crate) fn new(
        substate: Substate,
        deadline: Instant,
        (snd_nxt, rcv_nxt): (Seq, Seq),
        window: u32,
        scale: u8,
        ts: Option<(u32, Instant)>,
        ts_offset: u32,
    ) -> TimeWait {
        TimeWait {
            deadline,
            snd_nxt,
            rcv_nxt,
            window,
            ts_recent: ts.map_or(0, |(recent, _)| recent),
            ts_recent_at: ts.map_or(0, |(_, at)| ts_clock(at)),
            ts_offset,
            answered: 0,
            since: ts_clock(Instant(deadline.0.saturating_sub(u64::from(TIMEWAIT_LEN.0)))),
            substate,
            scale,
            has_ts: ts.is_some(),
            has_answered: false,
        }
    }

    /// When the object is to be forgotten.
    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// What is awaited.
    pub fn substate(&self) -> Substate {
        self.substate
    }

    /// Whether an active open may take the port (`tcp_tw_reuse`): both FINs are acknowledged, there
    /// were timestamps, and a second has passed. The new connection starts at the number in the
    /// answer, and keeps the peer's last timestamp.
    pub fn reusable(&self, now: Instant, cfg: &Config, loopback: bool) -> Option<(Seq, u32)> {
        let allowed = cfg.tcp_tw_reuse == 1 || (cfg.tcp_tw_reuse == 2 && loopback);
        let waited = ts_clock(now).wrapping_sub(self.since);
        let ended = self.substate == Substate::TimeWait;
        (allowed && ended && self.has_ts && waited > cfg.tcp_tw_reuse_delay)
            .then(|| (self.next_iss(), self.ts_recent))
    }

    /// The same for a program that asked for this port: it has waited as long as it thought fit, whatever
    /// `tcp_tw_reuse` says (Linux `tcp_twsk_unique` without a TIME-WAIT socket to replace).
    pub fn reusable_by_port(&self) -> Option<(Seq, u32)> {
        let ended = self.substate == Substate::TimeWait;
        (ended && self.has_ts).then(|| (self.next_iss(), self.ts_recent))
    }

    /// A number that no old segment can have; never zero.
    fn next_iss(&self) -> Seq {
        let iss = self.snd_nxt + 65_537;
        if iss == Seq(0) { Seq(1) } else { iss }
    }

    /// A segment for the connection that was. `has_listener`: whether a listener would take a SYN
    /// that opens a new one; without, the old connection answers it, and is remembered (Linux
    /// `tcp_v4_rcv`, `TCP_TW_SYN`).
    pub fn input(
        &mut self,
        now: Instant,
        cfg: &Config,
        counters: &mut Counters,
        segment: &Segment,
        has_listener: bool,
    ) -> Verdict {
        counters.in_segs += u64::from(segment.segs);
        let paws_rejects = self.paws_rejects(now, segment);
        if self.substate == Substate::FinWait2 {
            return self.in_fin_wait2(now, cfg, counters, segment, paws_rejects);
        }
        let (rst, syn) = (segment.flags.any(Flags::RST), segment.flags.any(Flags::SYN));
        let ack = segment.flags.any(Flags::ACK);
        if !paws_rejects && segment.seq == self.rcv_nxt && (segment.seq_len() == 0 || rst) {
            // "In window segment, it may be only reset or bare ack." RFC 1337 advises against
            // believing the reset.
            if rst {
                // What is not believed changes nothing, its timestamp included.
                return if cfg.tcp_rfc1337 { Verdict::Drop } else { Verdict::Gone(None) };
            }
            self.restart(now);
            self.take_timestamp(now, segment);
            return Verdict::Drop;
        }
        // RFC 9293 3.10.7.4, RFC 6191 2: a new SYN whose number or timestamp is greater than the
        // last one's opens a new connection.
        let newer_ts = self.has_ts
            && segment.options.timestamps.is_some_and(|ts| (self.ts_recent.wrapping_sub(ts.val) as i32) < 0);
        let opens = syn && !rst && !ack && !paws_rejects;
        if opens && has_listener && (segment.seq.after(self.rcv_nxt) || newer_ts) {
            counters.tw_recycled += 1;
            return Verdict::NewConnection(self.next_iss());
        }
        if paws_rejects {
            counters.paws_estab += 1;
        }
        if rst {
            return Verdict::Drop;
        }
        // An old SYN does not make the state last: it may be spoofed.
        if paws_rejects || ack {
            self.restart(now);
        }
        self.answer(now, cfg, segment, &mut counters.ack_skipped_time_wait)
    }

    fn in_fin_wait2(
        &mut self,
        now: Instant,
        cfg: &Config,
        counters: &mut Counters,
        segment: &Segment,
        paws_rejects: bool,
    ) -> Verdict {
        let end = segment.end();
        if paws_rejects || !self.in_window(segment) {
            return self.answer(now, cfg, segment, &mut counters.ack_skipped_fin_wait2);
        }
        if segment.flags.any(Flags::RST) {
            return Verdict::Gone(None);
        }
        if segment.flags.any(Flags::SYN) && !segment.seq.before(self.rcv_nxt) {
            return Verdict::Gone(crate::reset::reset_for(segment));
        }
        // "Dup ACK?"
        if !segment.flags.any(Flags::ACK) || !end.after(self.rcv_nxt) || end == segment.seq {
            return Verdict::Drop;
        }
        // New data, or a half-closer's FIN with data: it is lost, and the peer is told.
        if !segment.flags.any(Flags::FIN) || end != self.rcv_nxt + 1 {
            return Verdict::Gone(crate::reset::reset_for(segment));
        }
        // "FIN arrived, enter true time-wait state."
        self.substate = Substate::TimeWait;
        self.rcv_nxt = end;
        self.take_timestamp(now, segment);
        self.restart(now);
        self.since = ts_clock(now);
        Verdict::Answer(self.ack(now))
    }

    fn in_window(&self, segment: &Segment) -> bool {
        let (seq, end) = (segment.seq, segment.end());
        let edge = self.rcv_nxt + self.window;
        seq == self.rcv_nxt || (end.after(self.rcv_nxt) && seq.before(edge)) || (seq == edge && seq == end)
    }

    fn paws_rejects(&self, now: Instant, segment: &Segment) -> bool {
        let Some(ts) = segment.options.timestamps.filter(|_| self.has_ts) else { return false };
        let fresh = ts_clock(now).wrapping_sub(self.ts_recent_at) < PAWS_24_DAYS_MS;
        (ts.val.wrapping_sub(self.ts_recent) as i32) < 0 && fresh && !segment.flags.any(Flags::RST)
    }

    fn take_timestamp(&mut self, now: Instant, segment: &Segment) {
        if let Some(ts) = segment.options.timestamps.filter(|_| self.has_ts) {
            self.ts_recent = ts.val;
            self.ts_recent_at = ts_clock(now);
        }
    }

    fn restart(&mut self, now: Instant) {
        self.deadline = now + TIMEWAIT_LEN;
    }

    /// The last ACK again, unless one went a moment ago. Data is always answered.
    fn answer(&mut self, now: Instant, cfg: &Config, segment: &Segment, skipped: &mut u64) -> Verdict {
        let clock = ts_clock(now);
        let bare = segment.seq_len() == 0 || segment.flags.any(Flags::SYN);
        if bare && self.has_answered && clock.wrapping_sub(self.answered) < cfg.tcp_invalid_ratelimit {
            *skipped += 1;
            return Verdict::Drop;
        }
        (self.answered, self.has_answered) = (clock, true);
        Verdict::Answer(self.ack(now))
    }

    fn ack(&self, now: Instant) -> Emit {
        let mut emit = Emit {
            seq: self.snd_nxt,
            ack: self.rcv_nxt,
            flags: Flags::ACK,
            window: (self.window >> self.scale).min(65_535) as u16,
            ..Emit::default()
        };
        if self.has_ts {
            let val = ts_clock(now).wrapping_add(self.ts_offset);
            emit.options.timestamps = Some(Timestamps { val, ecr: self.ts_recent });
        }
        emit
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Options;

    const NOW: Instant = Instant(100_000_000);

    fn tw(substate: Substate) -> TimeWait {
        TimeWait::new(substate, NOW + TIMEWAIT_LEN, (Seq(500), Seq(1000)), 4096, 0, Some((70, NOW)), 0)
    }

    fn seg(seq: u32, flags: Flags, len: u32, ts: u32) -> Segment {
        let options = Options { timestamps: Some(Timestamps { val: ts, ecr: 1 }), ..Options::default() };
        Segment { seq: Seq(seq), ack: Seq(500), flags, len, segs: 1, options, ..Segment::default() }
    }

    fn give(tw: &mut TimeWait, cfg: &Config, after_ms: u64, segment: &Segment) -> Verdict {
        tw.input(NOW.plus_millis(after_ms), cfg, &mut Counters::default(), segment, true)
    }

    fn answered(verdict: Verdict) -> Option<(u32, u32)> {
        match verdict {
            Verdict::Answer(emit) => Some((emit.seq.0, emit.ack.0)),
            _ => None,
        }
    }

    #[test]
    fn it_is_small() {
        assert!(size_of::<TimeWait>() <= 64, "{}", size_of::<TimeWait>());
    }

    #[test]
    fn a_fin_that_comes_again_is_answered_and_restarts_the_wait() {
        let (mut tw, cfg) = (tw(Substate::TimeWait), Config::default());
        let fin = seg(999, Flags::FIN | Flags::ACK, 0, 70);
        assert_eq!(answered(give(&mut tw, &cfg, 1000, &fin)), Some((500, 1000)));
        assert_eq!(tw.deadline(), NOW.plus_millis(61_000));
        assert_eq!(answered(give(&mut tw, &cfg, 1100, &fin)), Some((500, 1000)), "it has a number");
        let old = seg(900, Flags::ACK, 0, 70);
        assert_eq!(give(&mut tw, &cfg, 1200, &old), Verdict::Drop, "limited");
        assert!(answered(give(&mut tw, &cfg, 1700, &old)).is_some());
    }

    #[test]
    fn a_new_syn_is_a_new_connection_and_an_old_one_is_not() {
        let cfg = Config::default();
        let by = |seq, ts| give(&mut tw(Substate::TimeWait), &cfg, 2000, &seg(seq, Flags::SYN, 0, ts));
        assert_eq!(by(1001, 70), Verdict::NewConnection(Seq(500 + 65_537)));
        assert_eq!(by(10, 71), Verdict::NewConnection(Seq(500 + 65_537)), "by its timestamp");
        assert!(answered(by(10, 70)).is_some());
        assert!(answered(by(5000, 60)).is_some(), "old by its timestamp");
    }

    /// A port that only an active open used: anybody's SYN must not end the wait.
    #[test]
    fn a_new_syn_without_a_listener_is_answered_by_the_old_connection() {
        let (mut tw, cfg) = (tw(Substate::TimeWait), Config::default());
        let (deadline, mut counters) = (tw.deadline(), Counters::default());
        let syn = seg(1001, Flags::SYN, 0, 71);
        let verdict = tw.input(NOW.plus_millis(2000), &cfg, &mut counters, &syn, false);
        assert_eq!(answered(verdict), Some((500, 1000)));
        assert_eq!((tw.deadline(), counters.tw_recycled), (deadline, 0));
        assert!(matches!(give(&mut tw, &cfg, 4000, &syn), Verdict::NewConnection(_)));
    }

    #[test]
    fn rfc1337_decides_about_resets() {
        let (mut cfg, rst) = (Config::default(), seg(1000, Flags::RST, 0, 70));
        assert_eq!(give(&mut tw(Substate::TimeWait), &cfg, 1, &rst), Verdict::Gone(None));
        cfg.tcp_rfc1337 = true;
        assert_eq!(give(&mut tw(Substate::TimeWait), &cfg, 1, &rst), Verdict::Drop);
        // Nor is its timestamp: a FIN that comes again with an older one is no duplicate of old.
        let (mut object, ts) = (tw(Substate::TimeWait), |val| Some(Timestamps { val, ecr: 0 }));
        let mut late = rst;
        late.options.timestamps = ts(5000);
        assert_eq!(give(&mut object, &cfg, 1, &late), Verdict::Drop);
        let mut before = seg(1000, Flags::ACK, 0, 70);
        before.options.timestamps = ts(100);
        let since = object.deadline();
        assert_eq!(give(&mut object, &cfg, 1000, &before), Verdict::Drop);
        assert!(object.deadline() > since, "the ACK was heard");
        let off = seg(1001, Flags::RST, 0, 70);
        assert_eq!(give(&mut tw(Substate::TimeWait), &cfg, 1, &off), Verdict::Drop);
    }

    #[test]
    fn fin_wait_2_waits_for_the_fin_and_refuses_data() {
        let cfg = Config::default();
        let by = |segment| give(&mut tw(Substate::FinWait2), &cfg, 1, &segment);
        assert_eq!(by(seg(1000, Flags::ACK, 0, 70)), Verdict::Drop);
        assert!(matches!(by(seg(1000, Flags::ACK, 5, 70)), Verdict::Gone(Some(_))));
        assert!(matches!(by(seg(1000, Flags::FIN | Flags::ACK, 5, 70)), Verdict::Gone(Some(_))));
        assert!(matches!(by(seg(1000, Flags::SYN, 0, 70)), Verdict::Gone(Some(_))));
        assert_eq!(by(seg(1000, Flags::RST, 0, 70)), Verdict::Gone(None));
        assert_eq!(answered(by(seg(9000, Flags::ACK, 0, 70))), Some((500, 1000)), "out of the window");
        let mut waiting = tw(Substate::FinWait2);
        let fin = seg(1000, Flags::FIN | Flags::ACK, 0, 70);
        assert_eq!(answered(give(&mut waiting, &cfg, 10, &fin)), Some((500, 1001)));
        assert_eq!(waiting.substate(), Substate::TimeWait);
        assert_eq!(waiting.deadline(), NOW.plus_millis(60_010));
    }

    #[test]
    fn a_program_may_ask_for_the_port_at_once() {
        // Whatever tcp_tw_reuse says, if timestamps keep the connections apart.
        let (seq, ts_recent) = tw(Substate::TimeWait).reusable_by_port().unwrap();
        assert_eq!((seq, ts_recent), (Seq(500 + 65_537), 70));
        assert_eq!(tw(Substate::FinWait2).reusable_by_port(), None);
        assert_eq!(TimeWait { has_ts: false, ..tw(Substate::TimeWait) }.reusable_by_port(), None);
    }

    #[test]
    fn an_active_open_may_not_take_the_port_of_fin_wait_2() {
        let (cfg, mut waiting) = (Config { tcp_tw_reuse: 1, ..Config::default() }, tw(Substate::FinWait2));
        assert_eq!(waiting.reusable(NOW.plus_millis(2000), &cfg, true), None);
        give(&mut waiting, &cfg, 2000, &seg(1000, Flags::FIN | Flags::ACK, 0, 70));
        assert!(waiting.reusable(NOW.plus_millis(3001), &cfg, true).is_some());
    }

    #[test]
    fn an_active_open_may_take_the_port_after_a_second() {
        let (mut cfg, tw) = (Config::default(), tw(Substate::TimeWait));
        assert_eq!(tw.reusable(NOW.plus_millis(1000), &cfg, true), None);
        assert_eq!(tw.reusable(NOW.plus_millis(1001), &cfg, true), Some((Seq(66_037), 70)));
        assert_eq!(tw.reusable(NOW.plus_millis(1001), &cfg, false), None);
        cfg.tcp_tw_reuse = 1;
        assert!(tw.reusable(NOW.plus_millis(1001), &cfg, false).is_some());
    }
}
