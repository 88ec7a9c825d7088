//! A path that loses, delays, duplicates and reorders, and a receiver that may renege, close its
//! window and delay its ACKs: seeded, in virtual time.

use super::*;
use crate::wire::SackRange;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

/// What the path and the peer do. Shares are in 1/1000.
#[derive(Clone, Debug)]
pub(super) struct Path {
    pub(super) seed: u64,
    pub(super) loss: u32,
    pub(super) ack_loss: u32,
    pub(super) reorder: u32,
    pub(super) duplicate: u32,
    /// One way, microseconds.
    pub(super) delay: u32,
    /// The most that a reordered packet is late.
    pub(super) late: u32,
    /// Shares of out-of-order data that the receiver drops again.
    pub(super) renege: u32,
    pub(super) sack: bool,
    pub(super) dsack: bool,
    pub(super) timestamps: bool,
    pub(super) delayed_ack: bool,
    /// Bytes that the receiver holds for its reader.
    pub(super) buffer: u32,
    /// How often its reader reads, microseconds; 0 is at once.
    pub(super) read_every: u32,
    pub(super) bytes: u32,
    pub(super) base: u32,
    /// After this time nothing is lost, microseconds.
    pub(super) heals: u64,
    pub(super) super_segments: bool,
    pub(super) ecn: u32,
    pub(super) congestion: CongestionControl,
    pub(super) linux: bool,
}

enum Event {
    Packet { seq: Seq, len: u32, tsval: u32, marked: bool },
    Ack(Ack),
    Read,
    DelayedAck,
}

#[derive(Clone)]
struct Ack {
    ack: Seq,
    sack: Vec<SackRange>,
    tsecr: u32,
    edge: Seq,
    ece: bool,
}

/// The receiver's state. Offsets are from the start of the stream.
struct Receiver {
    next: u32,
    read: u32,
    /// Out-of-order ranges, by start.
    ooo: BTreeMap<u32, u32>,
    /// Starts of ranges, the latest first.
    recent: Vec<u32>,
    dsack: Option<(u32, u32)>,
    ts_recent: u32,
    pending: u32,
    edge: u32,
    ece: bool,
}

pub(super) struct Net {
    pub(super) talk: Talk,
    path: Path,
    rng: u64,
    events: BinaryHeap<Reverse<(u64, u64)>>,
    bodies: BTreeMap<u64, Event>,
    ids: u64,
    receiver: Receiver,
    written: u32,
    /// When SND.UNA last advanced, and the longest RTO since then, backed off.
    last_advance: u64,
    longest_rto: u32,
    pub(super) steps: u32,
}

impl Net {
    pub(super) fn new(path: Path) -> Net {
        let begin = Begin {
            base: path.base,
            sack: path.sack,
            ecn: path.ecn > 0,
            congestion: path.congestion,
            linux: path.linux,
        };
        let mut talk = Talk::with(begin, Config::default(), Some(path.delay * 2));
        talk.max_len = if path.super_segments { 64_000 } else { MSS };
        talk.wnd = path.buffer;
        let rng = path.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let receiver = Receiver {
            next: 0,
            read: 0,
            ooo: BTreeMap::new(),
            recent: Vec::new(),
            dsack: None,
            ts_recent: ts_clock(talk.now),
            pending: 0,
            edge: path.buffer,
            ece: false,
        };
        Net {
            talk,
            path,
            rng,
            events: BinaryHeap::new(),
            bodies: BTreeMap::new(),
            ids: 0,
            receiver,
            written: 0,
            last_advance: 0,
            longest_rto: 0,
            steps: 0,
        }
    }

    fn random(&mut self, below: u32) -> u32 {
        self.rng ^= self.rng << 13;
        self.rng ^= self.rng >> 7;
        self.rng ^= self.rng << 17;
        if below == 0 { 0 } else { ((self.rng >> 33) % u64::from(below)) as u32 }
    }

    fn chance(&mut self, share: u32) -> bool {
        self.random(1000) < share
    }

    fn now(&self) -> u64 {
        self.talk.now.0 - 1_000_000
    }

    fn push(&mut self, at: u64, event: Event) {
        self.ids += 1;
        self.events.push(Reverse((at, self.ids)));
        self.bodies.insert(self.ids, event);
    }

    /// Sends something over the path, for the other end to find after a while, or not.
    fn carry(&mut self, loss: u32, make: impl Fn() -> Event) {
        let healed = self.now() >= self.path.heals;
        let copies = 1 + u32::from(!healed && self.chance(self.path.duplicate));
        for _ in 0..copies {
            if !healed && self.chance(loss) {
                continue;
            }
            let mut at = self.now() + u64::from(self.path.delay);
            if !healed && self.chance(self.path.reorder) {
                at += u64::from(self.random(self.path.late.max(1)));
            }
            self.push(at, make());
        }
    }

    /// Puts on the path what the sender has let out.
    fn transmit(&mut self) {
        for sent in std::mem::take(&mut self.talk.sent) {
            let tsval = ts_clock(self.talk.now);
            let mut seq = sent.transmit.seq;
            let end = seq + sent.transmit.len;
            let mss = self.talk.sender.mss();
            while seq != end {
                let len = (end - seq).min(mss);
                let marked = sent.transmit.ect && self.chance(self.path.ecn);
                self.carry(self.path.loss, || Event::Packet { seq, len, tsval, marked });
                seq += len;
            }
        }
    }

    fn write(&mut self) {
        if self.written < self.path.bytes {
            let n = (1 + self.random(20_000)).min(self.path.bytes - self.written);
            self.written += n;
            self.talk.write_seq += n;
        }
        self.talk.output();
    }

    /// Runs until everything is acknowledged.
    pub(super) fn run(&mut self) {
        self.write();
        self.transmit();
        while (self.talk.sender.una() - self.talk.base) < self.path.bytes {
            self.steps += 1;
            assert!(self.steps < 2_000_000, "it does not end: {:?}", self.talk.info());
            self.step();
            self.assert_no_stall();
        }
        assert_eq!(self.receiver.next, self.path.bytes, "all was delivered");
        let info = self.talk.info();
        assert_eq!((info.unacked, info.sacked, info.lost, info.retrans), (0, 0, 0, 0));
        assert_eq!(self.talk.sender.deadline(), Instant::NEVER);
        assert_eq!(info.bytes_acked, u64::from(self.path.bytes));
    }

    fn step(&mut self) {
        let event = self.events.peek().map_or(u64::MAX, |&Reverse((at, _))| at);
        let deadline = self.talk.sender.deadline().0.saturating_sub(1_000_000);
        if deadline <= event {
            assert!(deadline < u64::MAX / 2, "nothing is armed and nothing is on its way");
            self.talk.now = self.talk.now.max(Instant(deadline + 1_000_000));
            if self.talk.fire() == Fired::Persist {
                // An empty segment below the window: the peer has to answer.
                let seq = self.talk.sender.una() - 1;
                let tsval = ts_clock(self.talk.now);
                self.carry(self.path.loss, || Event::Packet { seq, len: 0, tsval, marked: false });
            }
        } else if let Some(Reverse((at, id))) = self.events.pop() {
            self.talk.now = Instant(at + 1_000_000);
            match self.bodies.remove(&id) {
                Some(Event::Packet { seq, len, tsval, marked }) => self.receive(seq, len, tsval, marked),
                Some(Event::Ack(ack)) => self.take_ack(&ack),
                Some(Event::Read) => self.read(),
                Some(Event::DelayedAck) if self.receiver.pending > 0 => self.send_ack(),
                _ => {}
            }
        }
        self.write();
        self.transmit();
        let Talk { sender, cfg, counters, now, write_seq, .. } = &mut self.talk;
        if sender.packets_out() == 0 && sender.nxt() != *write_seq {
            sender.arm_persist(&Cx { now: *now, cfg, counters });
        }
    }

    /// While anything is out a timer is armed, for RTO at the latest; and if there is anything to
    /// send, then it was sent, or a timer is armed for that.
    fn assert_no_stall(&mut self) {
        let talk = &self.talk;
        let rto = talk.sender.rto(&talk.cfg);
        let waiting = talk.write_seq.after(talk.sender.una());
        if waiting {
            let deadline = talk.sender.deadline();
            assert!(deadline.is_armed(), "a stall: {:?}", talk.info());
            // An RTT that fell since leaves the timer where it was.
            let most = talk.now + rto.times(2);
            assert!(deadline <= most, "{deadline:?} > {most:?}: {:?}", talk.info());
        }
        self.longest_rto = self.longest_rto.max(rto.0);
        // Once the path loses nothing, two time-outs are enough for some progress.
        let healed = self.now().min(self.path.heals) == self.path.heals;
        if healed && waiting && self.path.read_every == 0 {
            let since = self.last_advance.max(self.path.heals);
            let most = u64::from(self.longest_rto) * 2 + u64::from(self.path.delay) * 4 + 100_000;
            assert!(self.now() - since <= most, "no progress for {most} µs: {:?}", talk.info());
        }
    }

    fn take_ack(&mut self, ack: &Ack) {
        let una = self.talk.sender.una();
        let window = ack.edge.past(ack.ack);
        let newer = ack.ack.at_or_after(una);
        let changed = newer && window != self.talk.wnd;
        if newer {
            self.talk.wnd = window;
        }
        let input = AckInput {
            ack: ack.ack,
            sack: &ack.sack,
            tsecr: self.path.timestamps.then_some(ack.tsecr),
            ece: ack.ece,
            payload: false,
            window_changed: changed,
            segs: 1,
            max_window: self.path.buffer,
        };
        let outcome = self.talk.ack_input(&input);
        assert!(!outcome.invalid);
        if outcome.acked > 0 {
            self.last_advance = self.now();
            self.longest_rto = 0;
        }
        if self.talk.wnd >= MSS {
            self.talk.sender.cancel_persist();
        }
    }

    fn read(&mut self) {
        let closed = self.receiver.edge - self.receiver.next < MSS;
        self.receiver.read = self.receiver.next;
        if closed {
            self.send_ack();
        }
        if self.receiver.next < self.path.bytes {
            let every = u64::from(self.path.read_every.max(1));
            self.push(self.now() + every, Event::Read);
        }
    }

    fn receive(&mut self, seq: Seq, len: u32, tsval: u32, marked: bool) {
        let base = self.talk.base;
        self.receiver.ece |= marked;
        if len == 0 {
            self.send_ack();
            return;
        }
        if self.receiver.next == 0 && self.path.read_every > 0 && self.receiver.read == 0 {
            self.push(self.now() + u64::from(self.path.read_every), Event::Read);
        }
        let start = seq - base;
        let end = start + len;
        let receiver = &mut self.receiver;
        if end > receiver.edge {
            // Beyond the window: a retransmitted head after a shrink, never new data.
            self.send_ack();
            return;
        }
        if start <= receiver.next && (tsval.wrapping_sub(receiver.ts_recent) as i32) >= 0 {
            receiver.ts_recent = tsval;
        }
        if end <= receiver.next {
            receiver.dsack = Some((start, end));
            self.send_ack();
            return;
        }
        let covered = receiver.ooo.range(..=start).next_back().is_some_and(|(_, &stop)| stop >= end);
        if covered {
            receiver.dsack = Some((start, end));
            self.send_ack();
            return;
        }
        let in_order = start <= receiver.next && receiver.ooo.is_empty();
        self.insert(start, end);
        if !in_order {
            if self.chance(self.path.renege) && self.now() < self.path.heals {
                self.receiver.ooo.clear();
                self.receiver.recent.clear();
            }
            self.send_ack();
            return;
        }
        self.receiver.pending += 1;
        if self.receiver.pending >= 2 || !self.path.delayed_ack {
            self.send_ack();
        } else {
            self.push(self.now() + 40_000, Event::DelayedAck);
        }
    }

    fn insert(&mut self, mut start: u32, mut end: u32) {
        let receiver = &mut self.receiver;
        let touching: Vec<_> = receiver
            .ooo
            .range(..=end)
            .filter(|&(_, &stop)| stop >= start)
            .map(|(&from, &stop)| (from, stop))
            .collect();
        for (from, stop) in touching {
            receiver.ooo.remove(&from);
            receiver.recent.retain(|&known| known != from);
            start = start.min(from);
            end = end.max(stop);
        }
        if start <= receiver.next {
            receiver.next = receiver.next.max(end);
        } else {
            receiver.ooo.insert(start, end);
            receiver.recent.insert(0, start);
        }
        if self.path.read_every == 0 {
            receiver.read = receiver.next;
        }
    }

    fn send_ack(&mut self) {
        let base = self.talk.base;
        let receiver = &mut self.receiver;
        receiver.pending = 0;
        receiver.edge = receiver.edge.max(receiver.read + self.path.buffer);
        let mut sack = Vec::new();
        if let Some((start, end)) = receiver.dsack.take().filter(|_| self.path.dsack) {
            sack.push(SackRange { start: base + start, end: base + end });
        }
        for start in &receiver.recent {
            if sack.len() < if self.path.timestamps { 3 } else { 4 } {
                sack.push(SackRange { start: base + *start, end: base + receiver.ooo[start] });
            }
        }
        if !self.path.sack {
            sack.clear();
        }
        let ack = Ack {
            ack: base + receiver.next,
            sack,
            tsecr: receiver.ts_recent,
            edge: base + receiver.edge,
            ece: std::mem::take(&mut receiver.ece),
        };
        self.carry(self.path.ack_loss, || Event::Ack(ack.clone()));
    }
}
