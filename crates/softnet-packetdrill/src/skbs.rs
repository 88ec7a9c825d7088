//! The send queue in `skb`s, as Linux would hold it.
//!
//! Scripts tell to the byte how much a write takes, and where a run of segments ends. In Linux a
//! buffer has room while its `skb`s, overhead included, take less than `sk_sndbuf`; then a whole
//! `skb` more is filled, of the size that offload is given (`tcp_send_mss`). No run reaches from
//! one into the next, and each has its own PSH. The engine knows no `skb`s: the model is this
//! host's, and [`Skbs::piece`] tells the engine.

use std::collections::VecDeque;

use softnet_tcp::Seq;
use softnet_tcp::conn::Piece;

/// What an `skb` takes beside its payload: `SKB_TRUESIZE(MAX_TCP_HEADER)`.
const OVERHEAD: u32 = 1280;

/// An `skb`.
#[derive(Debug, Clone, Copy)]
struct Skb {
    start: Seq,
    end: Seq,
    /// Its last segment carries PSH.
    psh: bool,
    /// Nothing may be added (`MSG_EOR`).
    eor: bool,
}

/// The `skb`s of a send queue.
#[derive(Debug)]
pub(crate) struct Skbs {
    skbs: VecDeque<Skb>,
    una: Seq,
    sent: Seq,
    write_seq: Seq,
    pushed: Seq,
}

impl Skbs {
    pub(crate) fn new(base: Seq) -> Skbs {
        Skbs { skbs: VecDeque::new(), una: base, sent: base, write_seq: base, pushed: base }
    }

    /// Everything that the queue takes (`sk_wmem_queued`).
    pub(crate) fn memory(&self) -> u32 {
        (self.write_seq - self.una) + self.skbs.len() as u32 * OVERHEAD
    }

    /// The last `skb`, if more can be added: it was not sent, and is less than `size`.
    fn tail(&mut self, size: u32) -> Option<&mut Skb> {
        let sent = self.sent;
        self.skbs.back_mut().filter(|last| last.end.after(sent) && !last.eor && last.end - last.start < size)
    }

    /// How many bytes the next copy may add: the rest of the last `skb`, or a new one of `size`.
    pub(crate) fn room(&mut self, size: u32, sndbuf: u32) -> u32 {
        if let Some(tail) = self.tail(size) {
            return size - (tail.end - tail.start);
        }
        if self.memory() < sndbuf { size } else { 0 }
    }

    /// `bytes` are added, at most what [`room`](Self::room) said, by a call that has added others
    /// before if not `first`. Half the peer's `window` without PSH is enough (`forced_push`).
    pub(crate) fn add(&mut self, bytes: u32, size: u32, first: bool, half_window: u32) {
        let start = self.write_seq;
        self.write_seq += bytes;
        let end = self.write_seq;
        let force = end.after(self.pushed + half_window);
        match self.tail(size) {
            Some(tail) => {
                tail.end = end;
                tail.psh &= !first;
            }
            None => self.skbs.push_back(Skb { start, end, psh: false, eor: false }),
        }
        let last = self.skbs.back_mut();
        if let Some(last) = last.filter(|last| force && last.end - last.start == size) {
            last.psh = true;
            self.pushed = end;
        }
    }

    /// A call ends: what it has added is pushed, if it says so or much was not.
    pub(crate) fn push(&mut self, push: bool, eor: bool, half_window: u32) {
        let force = self.write_seq.after(self.pushed + half_window);
        if let Some(last) = self.skbs.back_mut() {
            last.eor |= eor;
            if push || force {
                last.psh = true;
                self.pushed = last.end;
            }
        }
    }

    /// The `skb` that `seq` lies in.
    pub(crate) fn piece(&self, seq: Seq) -> Option<Piece> {
        let skb = self.skbs.iter().find(|skb| skb.end.after(seq))?;
        Some(Piece { end: skb.end, psh: skb.psh })
    }

    /// Everything before `end` was sent: the `skb` that it lies in is split.
    pub(crate) fn sent(&mut self, end: Seq) {
        if !end.after(self.sent) {
            return;
        }
        self.sent = end;
        if let Some(at) = self.skbs.iter().position(|skb| skb.end.after(end))
            && end.after(self.skbs[at].start)
        {
            let skb = self.skbs[at];
            self.skbs[at].start = end;
            self.skbs.insert(at, Skb { end, psh: false, eor: false, ..skb });
        }
    }

    /// Everything before `una` was acknowledged.
    pub(crate) fn acked(&mut self, una: Seq) {
        self.una = una;
        self.sent = self.sent.max(una);
        self.write_seq = self.write_seq.max(una);
        while self.skbs.front().is_some_and(|skb| skb.end.at_or_before(una)) {
            self.skbs.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_takes_a_whole_skb_more_than_it_holds() {
        let mut skbs = Skbs::new(Seq(1));
        let mut taken = 0;
        loop {
            let room = skbs.room(16_000, 50_000);
            if room == 0 {
                break;
            }
            skbs.add(room, 16_000, taken == 0, 16_448);
            taken += room;
            if taken == 16_000 {
                // The window lets ten segments go.
                skbs.sent(Seq(10_001));
            }
        }
        assert_eq!(taken, 58_000);
        assert_eq!(skbs.piece(Seq(1)), Some(Piece { end: Seq(10_001), psh: false }));
        assert_eq!(skbs.piece(Seq(10_001)), Some(Piece { end: Seq(26_001), psh: true }));
        skbs.acked(Seq(26_001));
        assert_eq!(skbs.memory(), 32_000 + 2 * OVERHEAD);
    }

    #[test]
    fn records_are_not_added_to_and_psh_moves_on() {
        let mut skbs = Skbs::new(Seq(1));
        skbs.add(100, 1000, true, 9999);
        skbs.push(true, false, 9999);
        skbs.add(50, 1000, true, 9999);
        assert_eq!(skbs.piece(Seq(1)), Some(Piece { end: Seq(151), psh: false }));
        skbs.push(true, true, 9999);
        skbs.add(10, 1000, true, 9999);
        skbs.push(true, false, 9999);
        assert_eq!(skbs.piece(Seq(1)), Some(Piece { end: Seq(151), psh: true }));
        assert_eq!(skbs.piece(Seq(151)), Some(Piece { end: Seq(161), psh: true }));
    }
}
