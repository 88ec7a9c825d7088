//! How full Linux would think a send buffer is.
//!
//! Scripts tell to the byte how much a write takes. In Linux a buffer has room while its `skb`s,
//! overhead included, take less than `sk_sndbuf`; then a whole `skb` more is filled, of the size
//! that offload is given (`tcp_send_mss`). The engine knows no `skb`s, and hosts of its own kind
//! count bytes: so the model is this host's.

use std::collections::VecDeque;

use softnet_tcp::Seq;

/// What an `skb` takes beside its payload: `SKB_TRUESIZE(MAX_TCP_HEADER)`.
const OVERHEAD: u32 = 1280;

/// An `skb`: one past its last number, and whether nothing may be added (`MSG_EOR`).
#[derive(Debug, Clone, Copy)]
struct Skb {
    end: Seq,
    eor: bool,
}

/// The `skb`s of a send queue.
#[derive(Debug)]
pub(crate) struct Skbs {
    skbs: VecDeque<Skb>,
    una: Seq,
    sent: Seq,
}

impl Skbs {
    pub(crate) fn new(base: Seq) -> Skbs {
        Skbs { skbs: VecDeque::new(), una: base, sent: base }
    }

    fn end(&self) -> Seq {
        self.skbs.back().map_or(self.una, |skb| skb.end)
    }

    /// Everything that the queue takes (`sk_wmem_queued`).
    pub(crate) fn memory(&self) -> u32 {
        (self.end() - self.una) + self.skbs.len() as u32 * OVERHEAD
    }

    /// How many bytes the next copy may add: the rest of the last `skb`, or a new one of `size`.
    pub(crate) fn room(&self, size: u32, sndbuf: u32) -> u32 {
        if let Some(last) = self.skbs.back()
            && last.end.after(self.sent)
            && !last.eor
        {
            let before = if self.skbs.len() > 1 { self.skbs[self.skbs.len() - 2].end } else { self.una };
            let len = last.end - before.max(self.sent);
            if len < size {
                return size - len;
            }
        }
        if self.memory() < sndbuf || self.skbs.is_empty() { size } else { 0 }
    }

    /// `bytes` were added, at most what [`room`](Self::room) said.
    pub(crate) fn add(&mut self, bytes: u32, size: u32, eor: bool) {
        let end = self.end() + bytes;
        let appended = self.skbs.back().is_some_and(|last| {
            let before = if self.skbs.len() > 1 { self.skbs[self.skbs.len() - 2].end } else { self.una };
            last.end.after(self.sent) && !last.eor && last.end - before.max(self.sent) < size
        });
        match self.skbs.back_mut() {
            Some(last) if appended => *last = Skb { end, eor },
            _ => self.skbs.push_back(Skb { end, eor }),
        }
    }

    /// Everything before `end` was sent: the `skb` that it lies in is split.
    pub(crate) fn sent(&mut self, end: Seq) {
        if !end.after(self.sent) {
            return;
        }
        self.sent = end;
        if let Some(at) = self.skbs.iter().position(|skb| skb.end.after(end)) {
            let before = if at > 0 { self.skbs[at - 1].end } else { self.una };
            if end.after(before) {
                self.skbs.insert(at, Skb { end, eor: false });
            }
        }
    }

    /// Everything before `una` was acknowledged.
    pub(crate) fn acked(&mut self, una: Seq) {
        self.una = una;
        self.sent = self.sent.max(una);
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
            skbs.add(room, 16_000, false);
            taken += room;
            if taken == 16_000 {
                // The window lets ten segments go.
                skbs.sent(Seq(10_001));
            }
        }
        assert_eq!(taken, 58_000);
        skbs.acked(Seq(26_001));
        assert_eq!(skbs.memory(), 32_000 + 2 * OVERHEAD);
    }
}
