//! Conversations with a [`Sender`] in virtual time, for tests.
//!
//! [`Talk`] plays a peer that says what the test says, in packets of [`MSS`] bytes counted from 0.
//! [`Net`](super::tests) builds on it. After every step the identities are asserted, and that no
//! packet but a probe leaves beyond the congestion window or the peer's.

use super::*;
use crate::wire::SackRange;

/// Payload of a full segment in conversations.
pub(super) const MSS: u32 = 1000;

/// A pure ACK of nothing.
pub(super) const QUIET: AckInput<'_> = AckInput {
    ack: Seq(0),
    sack: &[],
    tsecr: None,
    ece: false,
    payload: false,
    window_changed: false,
    segs: 1,
    max_window: 1 << 20,
};

/// What left, and when: microseconds since the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sent {
    pub(super) at: u64,
    pub(super) transmit: Transmit,
}

pub(super) struct Talk {
    pub(super) sender: Sender,
    pub(super) cfg: Config,
    pub(super) counters: SendCounters,
    pub(super) now: Instant,
    /// The number of packet 0.
    pub(super) base: Seq,
    pub(super) write_seq: Seq,
    pub(super) fin: bool,
    pub(super) wnd: u32,
    pub(super) una: Seq,
    pub(super) partial_ok: bool,
    pub(super) max_len: u32,
    /// What left since it was last asked for.
    pub(super) sent: Vec<Sent>,
}

/// How a conversation begins.
#[derive(Clone, Copy)]
pub(super) struct Begin {
    pub(super) base: u32,
    pub(super) sack: bool,
    pub(super) ecn: bool,
    pub(super) congestion: CongestionControl,
    pub(super) linux: bool,
}

impl Default for Begin {
    fn default() -> Self {
        // Ten packets before the wrap: every conversation crosses it.
        let base = 0u32.wrapping_sub(10 * MSS);
        Begin { base, sack: true, ecn: false, congestion: CongestionControl::Cubic, linux: false }
    }
}

impl Talk {
    /// An established connection with an RTT of 20 ms measured in the handshake.
    pub(super) fn new(begin: Begin) -> Talk {
        Talk::with(begin, Config::default(), Some(20_000))
    }

    pub(super) fn with(begin: Begin, cfg: Config, rtt: Option<u32>) -> Talk {
        let base = Seq(begin.base);
        let cubic = if begin.linux { CubicParams::LINUX } else { CubicParams::default() };
        let init = SenderInit { nxt: base, mss: MSS as u16, congestion: begin.congestion, cubic };
        let now = Instant(1_000_000);
        let mut talk = Talk {
            sender: Sender::new(&init, now),
            cfg,
            counters: SendCounters::default(),
            now,
            base,
            write_seq: base,
            fin: false,
            wnd: 1 << 20,
            una: base,
            partial_ok: true,
            max_len: MSS,
            sent: Vec::new(),
        };
        talk.sender.on_established(MSS as u16, begin.sack, begin.ecn, false);
        if let Some(rtt) = rtt {
            let Talk { sender, cfg, counters, .. } = &mut talk;
            sender.seed_rtt(&Cx { now, cfg, counters }, Span(rtt));
        }
        talk
    }

    /// Milliseconds since the start.
    pub(super) fn ms(&self) -> u64 {
        (self.now.0 - 1_000_000) / 1000
    }

    fn cx(&mut self) -> (&mut Sender, Cx<'_>) {
        let Talk { sender, cfg, counters, now, .. } = self;
        (sender, Cx { now: *now, cfg, counters })
    }

    /// Queues `n` packets and lets them out.
    pub(super) fn write(&mut self, n: u32) {
        self.write_bytes(n * MSS);
    }

    pub(super) fn write_bytes(&mut self, n: u32) {
        assert!(!self.fin);
        self.write_seq += n;
        self.output();
    }

    pub(super) fn close(&mut self) {
        self.write_seq += 1;
        self.fin = true;
        self.output();
    }

    /// A run of output.
    pub(super) fn output(&mut self) {
        let limits = Limits {
            write_seq: self.write_seq,
            edge: self.una + self.wnd,
            max_len: self.max_len,
            partial_ok: self.partial_ok,
            fin: self.fin,
        };
        loop {
            let (sender, mut cx) = self.cx();
            let Some(transmit) = sender.next(&mut cx, &limits) else { break };
            let new = transmit.seq == sender.nxt();
            let head = transmit.seq == sender.una();
            assert!(transmit.len > 0);
            sender.on_sent(&mut cx, &transmit);
            sender.check();
            if transmit.kind != Kind::Probe {
                // The last packet goes beyond it, if a FIN is on it.
                let most = sender.cwnd() + u32::from(transmit.fin);
                assert!(sender.in_flight() <= most, "beyond the window: {transmit:?}");
            }
            let end = transmit.seq + transmit.len;
            assert!(end.at_or_before(limits.write_seq));
            if new || !head {
                assert!(end.at_or_before(limits.edge), "beyond the peer's window: {transmit:?}");
            }
            let at = self.now.0 - 1_000_000;
            self.sent.push(Sent { at, transmit });
        }
        self.sender.check();
    }

    /// Time passes; timers fire when they are due, and what they ask for goes out.
    pub(super) fn until(&mut self, ms: u64) {
        let end = Instant(1_000_000 + ms * 1000);
        assert!(end >= self.now, "time goes on");
        while self.sender.deadline() <= end {
            self.now = self.now.max(self.sender.deadline());
            self.fire();
        }
        self.now = end;
    }

    /// Fires the timer, whether it is due or not.
    pub(super) fn fire(&mut self) -> Fired {
        let closed = self.wnd == 0;
        let (sender, mut cx) = self.cx();
        let fired = sender.on_time(&mut cx, closed);
        sender.check();
        self.output();
        fired
    }

    /// The number of packet `i`.
    pub(super) fn seq(&self, i: u32) -> Seq {
        self.base + i * MSS
    }

    /// Acknowledges the first `n` packets, and SACKs ranges of packets.
    pub(super) fn ack(&mut self, n: u32, sack: &[(u32, u32)]) -> AckOutcome {
        let tsecr = None;
        self.ack_with(n, sack, tsecr, false)
    }

    /// The same with ECE or TSecr (milliseconds since the start).
    pub(super) fn ack_with(
        &mut self,
        n: u32,
        sack: &[(u32, u32)],
        tsecr: Option<u64>,
        ece: bool,
    ) -> AckOutcome {
        let blocks: Vec<_> =
            sack.iter().map(|&(a, b)| SackRange { start: self.seq(a), end: self.seq(b) }).collect();
        let input = AckInput {
            ack: self.seq(n),
            sack: &blocks,
            tsecr: tsecr.map(|ms| 1000 + ms as u32),
            ece,
            payload: false,
            window_changed: false,
            segs: 1,
            max_window: 1 << 20,
        };
        self.ack_input(&input)
    }

    pub(super) fn ack_input(&mut self, input: &AckInput<'_>) -> AckOutcome {
        let (sender, mut cx) = self.cx();
        let outcome = sender.on_ack(&mut cx, input);
        sender.check();
        self.una = self.una.max(input.ack);
        self.output();
        outcome
    }

    /// What left since the last call: packet numbers, by kind.
    pub(super) fn took(&mut self) -> Vec<(u32, Kind)> {
        let mut all = Vec::new();
        for Sent { transmit, .. } in std::mem::take(&mut self.sent) {
            let mut seq = transmit.seq;
            let end = transmit.seq + transmit.len;
            while seq.before(end) {
                all.push(((seq - self.base) / MSS, transmit.kind));
                seq += MSS;
            }
        }
        all
    }

    /// Numbers of new packets that left since the last call; asserts that nothing else did.
    pub(super) fn new_packets(&mut self) -> Vec<u32> {
        let all = self.took();
        assert!(all.iter().all(|&(_, kind)| kind == Kind::New), "{all:?}");
        all.into_iter().map(|(i, _)| i).collect()
    }

    pub(super) fn state(&self) -> CaState {
        self.sender.ca_state()
    }

    pub(super) fn info(&self) -> SendInfo {
        self.sender.info(&self.cfg)
    }
}
