//! What only a connection has that lost, reordered or retransmitted something: allocated at the
//! first SACK, duplicate ACK, retransmission or time-out, and kept for its totals.

use std::collections::VecDeque;

use super::rack::Rack;
use super::scoreboard::SackCache;
use crate::{Config, Instant, Seq};

#[derive(Debug)]
pub(super) struct Cold {
    /// Retransmissions in order of time: first number and time of each. An entry whose record was
    /// sent again, delivered or lost since is stale, and skipped.
    pub(super) fifo: VecDeque<(Seq, Instant)>,
    pub(super) cache: SackCache,
    pub(super) rack: Rack,
    /// No record below is lost and not retransmitted.
    pub(super) rtx_hint: Seq,
    /// The end of the highest SACKed record; meaningful while `sacked_out > 0`.
    pub(super) fack: Seq,
    /// Window at the start of the reduction; 0 before the first.
    pub(super) prior_cwnd: u32,
    /// Threshold that an undo restores; 0 forbids it to.
    pub(super) prior_ssthresh: u32,
    pub(super) prr_delivered: u32,
    pub(super) prr_out: u32,
    /// SND.UNA when the recovery began that may be undone.
    pub(super) undo_marker: Option<Seq>,
    /// Retransmissions not yet reported by DSACK; −1 if there was none.
    pub(super) undo_retrans: i32,
    /// TSval of the first retransmission (RFC 3522).
    pub(super) retrans_stamp: Option<u32>,
    /// When the first retransmission since the last ACK of new data was due.
    pub(super) retrans_began: Option<Instant>,
    /// This host dropped something before it left, and nothing has been acknowledged since.
    pub(super) dropped_here: bool,
    /// Packets that may be late before duplicate ACKs mean loss; 0 is `tcp_reordering`.
    pub(super) reordering: u32,
    pub(super) reord_seen: u32,
    pub(super) dsack_dups: u32,
    pub(super) total_retrans: u32,
    pub(super) bytes_retrans: u64,
    pub(super) total_rto: u32,
    /// The peer reneged: until recovery ends, what SACK called delivered is no rate sample.
    pub(super) reneged: bool,
    /// Packets ever marked lost.
    pub(super) total_lost: u32,
}

impl Cold {
    pub(super) fn new(una: Seq, nxt: Seq) -> Cold {
        Cold {
            fifo: VecDeque::new(),
            cache: SackCache::default(),
            rack: Rack::new(una),
            rtx_hint: nxt,
            fack: una,
            prior_cwnd: 0,
            prior_ssthresh: 0,
            prr_delivered: 0,
            prr_out: 0,
            undo_marker: None,
            undo_retrans: -1,
            retrans_stamp: None,
            retrans_began: None,
            dropped_here: false,
            reordering: 0,
            reord_seen: 0,
            dsack_dups: 0,
            total_retrans: 0,
            bytes_retrans: 0,
            total_rto: 0,
            reneged: false,
            total_lost: 0,
        }
    }

    /// Bytes on the heap.
    pub(super) fn memory(&self) -> usize {
        self.fifo.capacity() * size_of::<(Seq, Instant)>()
    }
}

impl super::Sender {
    /// The cold part, made now if there is none.
    pub(super) fn cold(&mut self) -> &mut Cold {
        let (una, nxt) = (self.una, self.nxt);
        self.cold.get_or_insert_with(|| Box::new(Cold::new(una, nxt)))
    }

    /// Duplicate ACKs, or SACKed packets, that mean loss (RFC 5681's three, unless reordering was
    /// seen).
    pub(super) fn reordering(&self, cfg: &Config) -> u32 {
        self.cold.as_ref().map(|cold| cold.reordering).filter(|&n| n != 0).unwrap_or(cfg.tcp_reordering)
    }
}
