//! What a stack's connections and listeners count, under the names of `nstat`, and why segments
//! are dropped, under the names of Linux's `skb_drop_reason`.

/// Declares counters, their names and their sum.
macro_rules! counters {
    ($($(#[$doc:meta])* $field:ident = $name:literal,)*) => {
        /// Counters of the connections of one owner, but for those of
        /// [`SendCounters`](crate::send::SendCounters).
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
        pub struct Counters {
            /// Those of the sending halves.
            pub send: crate::send::SendCounters,
            $($(#[$doc])* pub $field: u64,)*
        }

        impl Counters {
            /// Every counter, with the kernel's name of it.
            pub fn each(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$(($name, self.$field)),*].into_iter().chain(self.send.each())
            }

            /// Adds the counters of another owner.
            pub fn add(&mut self, other: &Counters) {
                self.send.add(&other.send);
                $(self.$field = self.$field.wrapping_add(other.$field);)*
            }
        }
    };
}

counters! {
    /// Connections opened by this end.
    active_opens = "TcpActiveOpens",
    /// Connections accepted.
    passive_opens = "TcpPassiveOpens",
    /// Handshakes that failed.
    attempt_fails = "TcpAttemptFails",
    /// Established connections that were reset.
    estab_resets = "TcpEstabResets",
    /// Segments received.
    in_segs = "TcpInSegs",
    /// Segments sent, without retransmissions.
    out_segs = "TcpOutSegs",
    /// Resets sent.
    out_rsts = "TcpOutRsts",
    /// SYNs dropped because the accept queue was full.
    listen_overflows = "TcpExtListenOverflows",
    /// SYNs dropped by listeners, for any reason.
    listen_drops = "TcpExtListenDrops",
    /// SYNs answered by cookies because the request queue was full.
    req_q_full_do_cookies = "TcpExtTCPReqQFullDoCookies",
    /// SYNs dropped because the request queue was full.
    req_q_full_drop = "TcpExtTCPReqQFullDrop",
    /// Cookies sent.
    syncookies_sent = "TcpExtSyncookiesSent",
    /// Valid cookies received.
    syncookies_recv = "TcpExtSyncookiesRecv",
    /// Invalid cookies received.
    syncookies_failed = "TcpExtSyncookiesFailed",
    /// Bare ACKs dropped for `TCP_DEFER_ACCEPT`.
    defer_accept_drop = "TcpExtTCPDeferAcceptDrop",
    /// Delayed ACKs sent.
    delayed_acks = "TcpExtDelayedACKs",
    /// Segments that came again because their ACK was late or lost.
    delayed_ack_lost = "TcpExtDelayedACKLost",
    /// Pure ACKs received.
    pure_acks = "TcpExtTCPPureAcks",
    /// Data received by the predicted path.
    hp_hits = "TcpExtTCPHPHits",
    /// ACKs received by the predicted path.
    hp_acks = "TcpExtTCPHPAcks",
    /// Segments dropped by their timestamps.
    paws_estab = "TcpExtPAWSEstab",
    /// Pure ACKs dropped by their timestamps.
    paws_old_ack = "TcpExtPAWSOldAck",
    /// SYN-ACKs dropped by their timestamps.
    paws_active = "TcpExtPAWSActive",
    /// Challenge ACKs sent (RFC 5961).
    challenge_ack = "TcpExtTCPChallengeACK",
    /// Challenge ACKs sent for SYNs.
    syn_challenge = "TcpExtTCPSYNChallenge",
    /// ACKs not sent in answer to a sequence number out of the window.
    ack_skipped_seq = "TcpExtTCPACKSkippedSeq",
    /// ACKs not sent in answer to an old timestamp.
    ack_skipped_paws = "TcpExtTCPACKSkippedPAWS",
    /// Challenge ACKs not sent.
    ack_skipped_challenge = "TcpExtTCPACKSkippedChallenge",
    /// ACKs not sent in FIN-WAIT-2.
    ack_skipped_fin_wait2 = "TcpExtTCPACKSkippedFinWait2",
    /// ACKs not sent in TIME-WAIT.
    ack_skipped_time_wait = "TcpExtTCPACKSkippedTimeWait",
    /// SYN-ACKs not sent again for a SYN that came again.
    ack_skipped_syn_recv = "TcpExtTCPACKSkippedSynRecv",
    /// Segments queued beyond a hole.
    ofo_queue = "TcpExtTCPOFOQueue",
    /// Segments beyond a hole dropped for want of memory.
    ofo_drop = "TcpExtTCPOFODrop",
    /// Segments beyond a hole that were there already.
    ofo_merge = "TcpExtTCPOFOMerge",
    /// Segments beyond a hole thrown away for want of memory.
    ofo_pruned = "TcpExtOfoPruned",
    /// Times that received data had to give way.
    prune_called = "TcpExtPruneCalled",
    /// Times that memory for all connections became scarce.
    memory_pressures = "TcpExtTCPMemoryPressures",
    /// Milliseconds for which it was.
    memory_pressures_chrono = "TcpExtTCPMemoryPressuresChrono",
    /// Segments in order dropped for want of memory.
    rcv_q_drop = "TcpExtTCPRcvQDrop",
    /// Duplicates reported below `RCV.NXT`.
    dsack_old_sent = "TcpExtTCPDSACKOldSent",
    /// Duplicates reported beyond a hole.
    dsack_ofo_sent = "TcpExtTCPDSACKOfoSent",
    /// Duplicate ACKs left out.
    ack_compressed = "TcpExtTCPAckCompressed",
    /// Data dropped because the window was closed.
    zero_window_drop = "TcpExtTCPZeroWindowDrop",
    /// Windows closed.
    to_zero_window_adv = "TcpExtTCPToZeroWindowAdv",
    /// Windows that would have closed, had it been allowed.
    want_zero_window_adv = "TcpExtTCPWantZeroWindowAdv",
    /// Windows opened again.
    from_zero_window_adv = "TcpExtTCPFromZeroWindowAdv",
    /// Window probes sent.
    win_probe = "TcpExtTCPWinProbe",
    /// Keepalive probes sent.
    keep_alive = "TcpExtTCPKeepAlive",
    /// Connections reset because data came after they were closed.
    abort_on_data = "TcpExtTCPAbortOnData",
    /// Connections reset because they were closed with unread data.
    abort_on_close = "TcpExtTCPAbortOnClose",
    /// Connections ended by a time-out.
    abort_on_timeout = "TcpExtTCPAbortOnTimeout",
    /// Connections ended because the wait in FIN-WAIT-2 is forbidden.
    abort_on_linger = "TcpExtTCPAbortOnLinger",
    /// Connections ended for want of memory.
    abort_on_memory = "TcpExtTCPAbortOnMemory",
    /// TIME-WAITs ended by their timer.
    tw = "TcpExtTW",
    /// TIME-WAITs ended by a new connection.
    tw_recycled = "TcpExtTWRecycled",
}

/// Why a segment, or what was held of it, is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DropReason {
    /// None of ACK, RST and SYN, or flags that the state excludes.
    TcpFlags,
    /// Wholly before what was acknowledged.
    TcpOldSequence,
    /// Wholly beyond the window.
    TcpInvalidSequence,
    /// Its end is beyond the window.
    TcpInvalidEndSequence,
    /// Old by its timestamp.
    TcpRfc7323Paws,
    /// A pure ACK, old by its timestamp.
    TcpRfc7323PawsAck,
    /// It ended the connection, or would have with another number.
    TcpReset,
    /// A SYN on a connection.
    TcpInvalidSyn,
    /// It acknowledges what is acknowledged.
    TcpOldAck,
    /// It acknowledges what is long acknowledged.
    TcpTooOldAck,
    /// It acknowledges what was never sent.
    TcpAckUnsentData,
    /// It acknowledges what a handshake did not send.
    TcpInvalidAckSequence,
    /// All of it had arrived before.
    TcpOldData,
    /// Data beyond the window.
    TcpOverwindow,
    /// Data while the window is closed.
    TcpZeroWindow,
    /// Beyond a hole, and there already.
    TcpOfoMerge,
    /// Beyond a hole, and no memory.
    ProtoMem,
    /// It gave way to data that is nearer.
    TcpOfoQueuePrune,
    /// The application reads no more.
    TcpAbortOnData,
    /// The connection has ended.
    TcpClose,
    /// Nothing that it says is news.
    TcpNothingNew,
    /// The accept queue is full.
    TcpListenOverflow,
    /// The request queue is full.
    TcpReqQFullDrop,
    /// The bare ACK of a handshake that waits for data.
    TcpDeferAccept,
    /// No such connection: the host answers by a reset.
    NoSocket,
}
