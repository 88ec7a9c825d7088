//! The window to advertise, and how the buffer behind it grows (RFC 9293 3.8.6.2.2, RFC 7323 2).
//!
//! "The SWS avoidance algorithm at the receiver: keep RCV.NXT+RCV.WND fixed until RCV.BUFF −
//! RCV.USER − RCV.WND ≥ min(Fr · RCV.BUFF, Eff.snd.MSS)" (MUST-39), and "a TCP receiver SHOULD NOT
//! shrink the window" (SHLD-14). Linux's rules keep both: the window is the free room, at most
//! `rcv_ssthresh`, which well-filled segments raise; and nothing when little is left.
//!
//! The buffer is memory as the host charges it, the window is payload: `ratio` is the share of
//! payload, learnt from what arrives. By dynamic right-sizing the buffer grows to twice what the
//! application read in a round trip, before the window could hold the peer back.

use crate::config::Config;
use crate::seq::Seq;
use crate::time::{Instant, Span};

/// The share of payload in memory before anything arrived: one half.
const DEFAULT_RATIO: u8 = 128;
/// A tick of the clock of timestamps, microseconds.
const TICK: u32 = 1000;
/// Segments that the first target of right-sizing holds.
const INIT_CWND: u32 = 10;
/// Segments of the window where the host's memory is scarce.
const PRESSED_SEGMENTS: u32 = 4;
/// The largest window field.
const FIELD_MAX: u32 = 65_535;

/// What arrives may take of memory, and what the peer was told.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecvWindow {
    /// The window last told, from `told_at` on.
    pub(crate) wnd: u32,
    /// `RCV.NXT` when it was told: everything before is acknowledged.
    pub(crate) told_at: Seq,
    /// The furthest edge that was ever told: what is before it is accepted (RFC 7323 2.4).
    pub(crate) max_edge: Seq,
    /// The most that is told now.
    pub(crate) ssthresh: u32,
    /// The most that is ever told.
    pub(crate) clamp: u32,
    /// Bytes of memory that received data may hold, and what it holds.
    pub(crate) buf: u32,
    pub(crate) held: u32,
    /// Largest segment that the peer may send.
    pub(crate) advmss: u16,
    /// The shift of windows told.
    pub(crate) scale: u8,
    ratio: u8,
    drs: RightSizing,
}

#[derive(Clone, Copy, Debug)]
struct RightSizing {
    since: Instant,
    rtt_since: Instant,
    seq: Seq,
    space: u32,
    rtt_seq: Seq,
    /// Eight times the receiver's estimate of the round trip.
    rtt: u32,
    last_ecr: u32,
    /// Whether the application fixed the buffer.
    locked: bool,
}

impl RecvWindow {
    /// The window before a handshake, and the scale to offer (Linux's
    /// `tcp_select_initial_window`).
    pub(crate) fn new(
        cfg: &Config,
        buf: u32,
        locked: bool,
        clamp: u32,
        advmss: u16,
        offer_scale: bool,
    ) -> Self {
        let mut window = RecvWindow {
            wnd: 0,
            told_at: Seq(0),
            max_edge: Seq(0),
            ssthresh: 0,
            clamp: if clamp == 0 { FIELD_MAX << 14 } else { clamp },
            buf,
            held: 0,
            advmss,
            scale: 0,
            ratio: DEFAULT_RATIO,
            drs: RightSizing {
                since: Instant(0),
                rtt_since: Instant(0),
                seq: Seq(0),
                space: 0,
                rtt_seq: Seq(0),
                rtt: 0,
                last_ecr: 0,
                locked,
            },
        };
        let mut space = window.payload_of(buf).min(window.clamp);
        let mss = u32::from(advmss.max(1));
        if space > mss {
            space -= space % mss;
        }
        window.wnd = space.min(FIELD_MAX);
        if offer_scale {
            let most = space.max(cfg.tcp_rmem[2]).max(cfg.rmem_max).min(window.clamp);
            window.scale = most.max(1).ilog2().saturating_sub(15).min(14) as u8;
        }
        window.clamp = window.clamp.min(FIELD_MAX << window.scale);
        window.ssthresh = window.wnd;
        window
    }

    /// The most that `SO_RCVLOWAT` may be: what half of the largest buffer would hold.
    pub(crate) fn most_held(&self, cfg: &Config) -> u32 {
        let buf = if self.drs.locked { self.buf } else { cfg.tcp_rmem[2].max(self.buf) };
        buf / 2
    }

    /// `bytes` are to wait to be read at once, or fewer, if that is too much: the buffer, unless it was
    /// set, is made to hold them (Linux `tcp_set_rcvlowat`). Returns how many.
    pub(crate) fn hold(&mut self, cfg: &Config, bytes: u32) -> u32 {
        let bytes = bytes.min(self.most_held(cfg));
        let memory = self.memory_of(bytes.into());
        if !self.drs.locked && memory > self.buf.into() {
            self.buf = u32::try_from(memory).unwrap_or(u32::MAX);
            self.clamp = self.clamp.max(bytes).min(FIELD_MAX << self.scale);
        }
        bytes
    }

    /// The peer offered no scale.
    pub(crate) fn no_scale(&mut self) {
        self.scale = 0;
        self.clamp = self.clamp.min(FIELD_MAX);
    }

    /// The connection is established: receiving starts at `rcv_nxt`.
    pub(crate) fn established(&mut self, now: Instant, rcv_nxt: Seq) {
        let most = self.payload_of(self.buf);
        let mss = u32::from(self.advmss);
        self.clamp = self.clamp.min(most);
        if self.clamp > 2 * mss && self.clamp + mss > most {
            // Room for one segment stays in reserve.
            self.clamp = (most.saturating_sub(mss)).max(2 * mss);
        }
        self.ssthresh = self.ssthresh.min(self.clamp);
        self.drs.since = now;
        self.drs.seq = rcv_nxt;
        self.drs.space = self.ssthresh.min(self.wnd).min(INIT_CWND * mss);
    }

    /// Payload that fits `memory` bytes.
    fn payload_of(&self, memory: u32) -> u32 {
        ((u64::from(memory) * u64::from(self.ratio)) >> 8) as u32
    }

    /// Memory that `payload` bytes take.
    fn memory_of(&self, payload: u64) -> u64 {
        (payload << 8) / u64::from(self.ratio.max(1))
    }

    /// What is left of the window told.
    pub(crate) fn current(&self, rcv_nxt: Seq) -> u32 {
        (self.told_at + self.wnd).past(rcv_nxt)
    }

    /// Payload that the free memory could hold.
    fn space(&self) -> u32 {
        self.payload_of(self.buf.saturating_sub(self.held))
    }

    /// The window that the free memory allows (Linux's `__tcp_select_window`). The second result
    /// says that room has become scarce: quick mode ends.
    pub(crate) fn offer(&self, cfg: &Config, rcv_mss: u16) -> (u32, bool) {
        let mut free = self.space();
        let allowed = self.payload_of(self.buf);
        let full = self.clamp.min(allowed);
        let mss = u32::from(rcv_mss).min(full);
        let unit = 1u32 << self.scale;
        let mut scarce = false;
        if mss == 0 {
            return (0, false);
        }
        if free < full / 2 {
            scarce = true;
            free -= free % unit;
            if free < allowed / 16 || free < mss {
                return (0, true);
            }
        }
        free = free.min(self.ssthresh);
        let exact = cfg.tcp_shrink_window && self.scale > 0;
        let window = if exact {
            free - free % unit
        } else if self.scale > 0 {
            free.next_multiple_of(unit)
        } else if self.wnd + mss <= free || self.wnd > free {
            free - free % mss
        } else if mss == full && free > self.wnd + full / 2 {
            free
        } else {
            self.wnd
        };
        (window, scarce)
    }

    /// The field of the window that a segment tells now; once it has left, [`told`](Self::told)
    /// takes note. The second result is [`offer`](Self::offer)'s.
    pub(crate) fn field(&self, cfg: &Config, rcv_nxt: Seq, rcv_mss: u16, no_memory: bool) -> (u16, bool) {
        if no_memory {
            return (0, true);
        }
        let current = self.current(rcv_nxt);
        let (mut window, scarce) = self.offer(cfg, rcv_mss);
        if window < current && !(cfg.tcp_shrink_window && self.scale > 0) {
            window = current.next_multiple_of(1 << self.scale);
        }
        let window = window.min(FIELD_MAX << self.scale);
        ((window >> self.scale) as u16, scarce)
    }

    /// A segment told `field` from `rcv_nxt` on.
    pub(crate) fn told(&mut self, rcv_nxt: Seq, field: u16) {
        (self.wnd, self.told_at) = (u32::from(field) << self.scale, rcv_nxt);
        self.max_edge = self.max_edge.max(rcv_nxt + self.wnd);
    }

    /// Whether another segment may be held. As in Linux (`tcp_can_ingest`) it may exceed the
    /// buffer: where two small segments were promised room, and their memory is a little more than
    /// that, the second would be refused at each round trip.
    pub(crate) fn fits(&self) -> bool {
        self.held <= self.buf
    }

    /// Sets the numbers before the first segment: everything before `rcv_nxt` is acknowledged.
    pub(crate) fn start(&mut self, rcv_nxt: Seq) {
        self.told_at = rcv_nxt;
        self.max_edge = rcv_nxt + self.wnd;
    }

    /// Learns the share of payload from a segment of a new size.
    pub(crate) fn learn_ratio(&mut self, len: u32, charge: u32) {
        if charge > 0 {
            self.ratio = ((u64::from(len) << 8) / u64::from(charge)).clamp(1, 255) as u8;
        }
    }

    /// A segment of at least 128 bytes arrived: the window opens further, if its memory is well
    /// used. Returns whether it did.
    pub(crate) fn grow(&mut self, cfg: &Config, len: u32, charge: u32, rcv_mss: u16) -> bool {
        let room = self.clamp.min(self.space()).saturating_sub(self.ssthresh);
        if room == 0 {
            return false;
        }
        let mut size = self.payload_of(charge);
        let step = if size <= len {
            2 * u32::from(self.advmss)
        } else {
            // Poorly filled segments open small windows only.
            size /= 2;
            let mut limit = self.payload_of(cfg.tcp_rmem[2]) / 2;
            loop {
                if self.ssthresh > limit {
                    break 0;
                }
                if size <= len {
                    break 2 * u32::from(rcv_mss);
                }
                (size, limit) = (size / 2, limit / 2);
            }
        };
        if step == 0 {
            return false;
        }
        self.ssthresh += room.min(step.max(2 * len));
        true
    }

    /// Memory ran out: the window is held to what there is, or the buffer takes what is used
    /// already.
    pub(crate) fn clamp_to_memory(&mut self, cfg: &Config) {
        if self.buf < cfg.tcp_rmem[2] && !self.drs.locked {
            self.buf = self.buf.max(self.held.min(cfg.tcp_rmem[2]));
        }
        if self.held > self.buf {
            self.ssthresh = self.clamp.min(2 * u32::from(self.advmss));
        }
    }

    /// The host's memory is scarce: four segments are told from now on (Linux `tcp_adjust_rcv_ssthresh`),
    /// until the window may grow again.
    pub(crate) fn press(&mut self) {
        self.ssthresh = self.ssthresh.min(self.pressed_window());
    }

    /// The memory that this window takes.
    pub(crate) fn pressed_memory(&self) -> u32 {
        u32::try_from(self.memory_of(self.pressed_window().into())).unwrap_or(u32::MAX)
    }

    fn pressed_window(&self) -> u32 {
        PRESSED_SEGMENTS * u32::from(self.advmss)
    }

    /// A segment with timestamps arrived: `ecr` came back after `ticks` of 1 ms. Less than two say only
    /// that the round trip is not much longer than one: a longer estimate comes down, a shorter stays.
    pub(crate) fn rtt_by_timestamp(&mut self, ecr: u32, ticks: i32, full: bool, queue_empty: bool) {
        if ecr == self.drs.last_ecr {
            return;
        }
        self.drs.last_ecr = ecr;
        // An echo of the future is made up.
        let Ok(ticks) = u32::try_from(ticks) else { return };
        let says = ticks > 1 || self.drs.rtt / 8 >= TICK || ticks == 1 && self.drs.rtt == 0;
        if full && says {
            self.rtt_sample(ticks.max(1).saturating_mul(TICK), false, queue_empty);
        }
    }

    /// Data arrived: the time that a window takes bounds the round trip.
    pub(crate) fn rtt_by_window(&mut self, now: Instant, rcv_nxt: Seq) {
        if self.drs.rtt_since != Instant(0) {
            if rcv_nxt.before(self.drs.rtt_seq) {
                return;
            }
            let took = now.since(self.drs.rtt_since).0;
            if took == 0 {
                // All of one batch, which came at one time: it says nothing of how long a window takes.
                return;
            }
            self.rtt_sample(took, true, true);
        }
        // Beyond all that was told so far: a window that was taken back since is still on its way.
        let end = rcv_nxt + self.wnd;
        self.drs.rtt_seq = if self.max_edge.after(end) { self.max_edge + 1 } else { end };
        self.drs.rtt_since = now;
    }

    fn rtt_sample(&mut self, sample: u32, by_window: bool, queue_empty: bool) {
        // Eight of them have to fit.
        let sample = sample.min(u32::MAX / 8);
        let eight = sample * 8;
        if self.drs.rtt == 0 || eight < self.drs.rtt {
            self.drs.rtt = eight;
        } else if !by_window && queue_empty {
            self.drs.rtt = (self.drs.rtt - self.drs.rtt / 8).saturating_add(sample);
        }
    }

    /// The receiver's estimate of the round trip; zero while unknown.
    pub(crate) fn rtt(&self) -> Span {
        Span(self.drs.rtt / 8)
    }

    /// The application fixes the buffer.
    pub(crate) fn lock(&mut self) {
        self.drs.locked = true;
    }

    /// What right-sizing holds a round trip to be worth, bytes.
    pub(crate) fn drs_space(&self) -> u32 {
        self.drs.space
    }

    /// The application has read up to `copied`.
    pub(crate) fn right_size(&mut self, now: Instant, cfg: &Config, copied: Seq, rcv_nxt: Seq, beyond: u32) {
        let rtt = self.drs.rtt / 8;
        if self.drs.rtt == 0 || now.since(self.drs.since).0 < rtt {
            return;
        }
        let read = (copied - self.drs.seq).saturating_sub(rcv_nxt - copied);
        if read > self.drs.space {
            self.grow_buffer(cfg, read, rtt, beyond);
        }
        (self.drs.seq, self.drs.since) = (copied, now);
    }

    fn grow_buffer(&mut self, cfg: &Config, read: u32, rtt: u32, beyond: u32) {
        let before = std::mem::replace(&mut self.drs.space, read);
        if !cfg.tcp_moderate_rcvbuf || self.drs.locked {
            return;
        }
        // What is measured is one round trip late: twice as much is needed by now.
        let window = u64::from(read) * 2;
        let low = u64::from(cfg.tcp_rcvbuf_low_rtt_us);
        let more = if u64::from(rtt) < low {
            window * u64::from(rtt) / low
        } else {
            (window * 2).saturating_mul(u64::from(read.saturating_sub(before))) / u64::from(before.max(1))
        };
        let window = window.saturating_add(more).saturating_add(u64::from(beyond)).min(1 << 40);
        let buf = self.memory_of(window).min(u64::from(cfg.tcp_rmem[2])) as u32;
        if buf > self.buf {
            self.buf = buf;
            self.clamp = self.payload_of(buf).min(FIELD_MAX << self.scale);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl RecvWindow {
        fn tell(&mut self, cfg: &Config, rcv_nxt: Seq, rcv_mss: u16, no_memory: bool) -> (u16, bool) {
            let (field, scarce) = self.field(cfg, rcv_nxt, rcv_mss, no_memory);
            self.told(rcv_nxt, field);
            (field, scarce)
        }
    }

    fn window() -> (Config, RecvWindow) {
        let cfg = Config::default();
        let window = RecvWindow::new(&cfg, cfg.tcp_rmem[1], false, 0, 1460, true);
        (cfg, window)
    }

    #[test]
    fn the_first_window_and_scale_are_linux() {
        let (mut cfg, window) = window();
        assert_eq!((window.wnd, window.scale), (64_240, 10));
        for (most, scale) in [(4 << 20, 7), (6 << 20, 7), (15 << 20, 8), (32 << 20, 10)] {
            cfg.tcp_rmem[2] = most;
            assert_eq!(RecvWindow::new(&cfg, 131_072, false, 0, 1460, true).scale, scale);
        }
        let small = RecvWindow::new(&cfg, 131_072, false, 0, 1460, false);
        assert_eq!((small.scale, small.clamp), (0, 65_535));
    }

    #[test]
    fn the_edge_never_retreats_and_little_room_is_none() {
        let (cfg, mut window) = window();
        window.start(Seq(1000));
        window.established(Instant(0), Seq(1000));
        let mut edge = Seq(0);
        for (held, rcv_nxt) in [(0, 1000), (40_000, 21_000), (100_000, 51_000), (125_000, 64_000)] {
            window.held = held;
            let (field, _) = window.tell(&cfg, Seq(rcv_nxt), 1460, false);
            let told = Seq(rcv_nxt) + (u32::from(field) << window.scale);
            assert!(told.at_or_after(edge), "{told:?} after {edge:?}");
            edge = told;
        }
        window.held = 130_000;
        assert_eq!(window.tell(&cfg, edge, 1460, false).0, 0);
        assert_eq!(window.current(edge), 0);
        window.held = 0;
        assert!(window.tell(&cfg, edge, 1460, false).0 > 0);
        assert_eq!(window.tell(&cfg, edge, 1460, true).0, 0, "no memory");
        assert!(window.max_edge.after(edge), "what was told is still accepted");
    }

    #[test]
    fn without_scale_the_window_is_a_multiple_of_segments() {
        let cfg = Config::default();
        let mut window = RecvWindow::new(&cfg, 20_000, true, 0, 1000, false);
        window.start(Seq(0));
        window.established(Instant(0), Seq(0));
        assert_eq!(window.wnd % 1000, 0);
        window.held = 3000;
        let told = u32::from(window.tell(&cfg, Seq(1500), 1000, false).0);
        assert!(told % 1000 == 0 || Seq(1500) + told == window.max_edge, "{told}");
    }

    /// What an echo that was made up, and a gigabyte read at once, make of the arithmetic.
    #[test]
    fn right_sizing_has_no_number_to_overflow() {
        let (cfg, mut window) = window();
        window.start(Seq(0));
        window.established(Instant(0), Seq(0));
        window.rtt_by_timestamp(1, i32::MAX, true, true);
        window.rtt_by_timestamp(2, i32::MAX, true, true);
        assert_eq!(window.rtt(), Span(u32::MAX / 8));
        window.drs.space = 0;
        window.grow_buffer(&cfg, u32::MAX, 1_000_000, u32::MAX);
        assert_eq!(window.buf, cfg.tcp_rmem[2]);
    }

    /// A round trip of 40 µs, by a clock of milliseconds and by windows that come in batches.
    #[test]
    fn a_short_round_trip_is_neither_nothing_nor_a_tick() {
        let (_, mut window) = window();
        window.start(Seq(0));
        window.rtt_by_timestamp(1, 0, true, true);
        assert_eq!(window.rtt(), Span(0), "within a tick");
        window.rtt_by_window(Instant(100), Seq(0));
        let end = Seq(0) + window.wnd;
        window.rtt_by_window(Instant(100), end);
        assert_eq!(window.rtt(), Span(0), "a whole window in one batch");
        window.rtt_by_window(Instant(140), end);
        assert_eq!(window.rtt(), Span(40));
        window.rtt_by_timestamp(2, 1, true, true);
        assert_eq!(window.rtt(), Span(40), "the clock has ticked meanwhile");
        window.rtt_by_timestamp(3, 8, true, true);
        assert_eq!(window.rtt(), Span(35 + 1000), "an eighth of 8 ms");
        window.rtt_by_timestamp(4, -1, true, true);
        assert_eq!(window.rtt(), Span(1035), "an echo of the future");
        window.rtt_by_timestamp(5, 0, true, true);
        assert_eq!(window.rtt(), Span(1000), "no more than a tick");
        window.rtt_by_timestamp(6, 0, true, true);
        assert_eq!(window.rtt(), Span(1000));
    }

    /// What is on its way when a window is taken back is not a window that came at once.
    #[test]
    fn a_window_that_was_taken_back_is_no_round_trip() {
        let (cfg, mut window) = window();
        window.start(Seq(0));
        window.established(Instant(0), Seq(0));
        window.rtt_by_window(Instant(100), Seq(0));
        let end = Seq(0) + window.wnd;
        window.tell(&cfg, Seq(10_000), 1460, false);
        assert!(window.max_edge.after(end), "what is on its way");
        window.tell(&cfg, end, 1460, true);
        window.rtt_by_window(Instant(20_100), end);
        assert_eq!((window.rtt(), window.wnd), (Span(20_000), 0));
        window.rtt_by_window(Instant(20_150), end + 1460);
        assert_eq!(window.rtt(), Span(20_000));
    }

    #[test]
    fn the_buffer_grows_to_what_is_read() {
        let (cfg, mut window) = window();
        window.start(Seq(0));
        window.established(Instant(0), Seq(0));
        assert_eq!(window.drs_space(), 14_600);
        window.rtt_by_timestamp(1, 10, true, true);
        assert_eq!(window.rtt(), Span(10_000));
        window.right_size(Instant(5_000), &cfg, Seq(29_200), Seq(29_200), 0);
        assert_eq!(window.buf, 131_072, "a round trip has not passed");
        window.right_size(Instant(10_000), &cfg, Seq(29_200), Seq(29_200), 0);
        assert_eq!(window.buf, 350_400, "58,400 and 116,800 at one half");
        window.right_size(Instant(20_000), &cfg, Seq(u32::MAX / 2), Seq(u32::MAX / 2), 0);
        assert_eq!(window.buf, cfg.tcp_rmem[2]);
    }

    #[test]
    fn poorly_filled_segments_open_the_window_less() {
        let (cfg, mut window) = window();
        window.start(Seq(0));
        window.established(Instant(0), Seq(0));
        window.ssthresh = 14_600;
        assert!(window.grow(&cfg, 1448, 2176, 1448));
        assert_eq!(window.ssthresh, 14_600 + 2920);
        assert!(window.grow(&cfg, 128, 2176, 1448), "while it is small");
        window.ssthresh = 40_000_000;
        assert!(!window.grow(&cfg, 128, 2176, 1448), "no room");
    }
}
