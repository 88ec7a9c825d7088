//! What the sending half counts, under the names of `nstat`.

/// Declares the counters, their names and their sum.
macro_rules! counters {
    ($($(#[$doc:meta])* $field:ident = $name:literal,)*) => {
        /// Counters of the sending half. The owner of many connections keeps one set for all.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
        pub struct SendCounters {
            $($(#[$doc])* pub $field: u64,)*
        }

        impl SendCounters {
            /// Every counter, with the kernel's name of it.
            pub fn each(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$(($name, self.$field)),*].into_iter()
            }

            /// Adds the counters of another owner.
            pub fn add(&mut self, other: &SendCounters) {
                $(self.$field = self.$field.wrapping_add(other.$field);)*
            }
        }
    };
}

counters! {
    /// Packets sent again.
    retrans_segs = "TcpRetransSegs",
    /// Retransmission time-outs.
    tcp_timeouts = "TcpExtTCPTimeouts",
    /// Retransmissions of fast recovery.
    tcp_fast_retrans = "TcpExtTCPFastRetrans",
    /// Retransmissions after a time-out.
    tcp_slow_start_retrans = "TcpExtTCPSlowStartRetrans",
    /// Tail-loss probes sent.
    tcp_loss_probes = "TcpExtTCPLossProbes",
    /// Tail-loss probes that repaired a loss.
    tcp_loss_probe_recovery = "TcpExtTCPLossProbeRecovery",
    /// Retransmissions that were lost again.
    tcp_lost_retransmit = "TcpExtTCPLostRetransmit",
    /// Recoveries begun by SACK.
    tcp_sack_recovery = "TcpExtTCPSackRecovery",
    /// Recoveries begun by duplicate ACKs of a peer without SACK.
    tcp_reno_recovery = "TcpExtTCPRenoRecovery",
    /// Time-outs during a SACK recovery.
    tcp_sack_recovery_fail = "TcpExtTCPSackRecoveryFail",
    /// Time-outs during a recovery without SACK.
    tcp_reno_recovery_fail = "TcpExtTCPRenoRecoveryFail",
    /// Time-outs with SACKed segments outstanding and no recovery.
    tcp_sack_failures = "TcpExtTCPSackFailures",
    /// Time-outs with duplicate ACKs outstanding and no recovery, without SACK.
    tcp_reno_failures = "TcpExtTCPRenoFailures",
    /// Time-outs during the recovery from a time-out.
    tcp_loss_failures = "TcpExtTCPLossFailures",
    /// Reordering found by SACK.
    tcp_sack_reorder = "TcpExtTCPSACKReorder",
    /// Reordering found by duplicate ACKs.
    tcp_reno_reorder = "TcpExtTCPRenoReorder",
    /// Reordering found by a timestamp.
    tcp_ts_reorder = "TcpExtTCPTSReorder",
    /// Time-outs found spurious by F-RTO.
    tcp_spurious_rtos = "TcpExtTCPSpuriousRTOs",
    /// Recoveries undone at their end.
    tcp_full_undo = "TcpExtTCPFullUndo",
    /// Recoveries undone by a timestamp of a partial ACK.
    tcp_partial_undo = "TcpExtTCPPartialUndo",
    /// Reductions undone because DSACK reported all retransmissions as needless.
    tcp_dsack_undo = "TcpExtTCPDSACKUndo",
    /// Time-outs undone.
    tcp_loss_undo = "TcpExtTCPLossUndo",
    /// DSACKs received for data above `SND.UNA`'s past.
    tcp_dsack_recv = "TcpExtTCPDSACKRecv",
    /// DSACKs received for out-of-order data.
    tcp_dsack_ofo_recv = "TcpExtTCPDSACKOfoRecv",
    /// Packets that DSACKs reported.
    tcp_dsack_recv_segs = "TcpExtTCPDSACKRecvSegs",
    /// DSACKs that were not believed, with no recovery to undo.
    tcp_dsack_ignored_no_undo = "TcpExtTCPDSACKIgnoredNoUndo",
    /// DSACKs that were too old.
    tcp_dsack_ignored_old = "TcpExtTCPDSACKIgnoredOld",
    /// DSACKs for more than was ever retransmitted.
    tcp_dsack_ignored_dubious = "TcpExtTCPDSACKIgnoredDubious",
    /// SACK blocks out of the window.
    tcp_sack_discard = "TcpExtTCPSACKDiscard",
    /// Peers that dropped what they had SACKed.
    tcp_sack_reneging = "TcpExtTCPSACKReneging",
    /// Ends of slow start by the spacing of ACKs.
    tcp_hystart_train_detect = "TcpExtTCPHystartTrainDetect",
    /// Congestion windows at those ends, summed.
    tcp_hystart_train_cwnd = "TcpExtTCPHystartTrainCwnd",
    /// Ends of slow start by rising delay.
    tcp_hystart_delay_detect = "TcpExtTCPHystartDelayDetect",
    /// Congestion windows at those ends, summed.
    tcp_hystart_delay_cwnd = "TcpExtTCPHystartDelayCwnd",
    /// Packets delivered.
    tcp_delivered = "TcpExtTCPDelivered",
    /// Packets delivered with congestion experienced.
    tcp_delivered_ce = "TcpExtTCPDeliveredCE",
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_sums_are_per_counter() {
        let mut one = SendCounters { tcp_timeouts: 2, ..SendCounters::default() };
        one.add(&SendCounters { tcp_timeouts: 3, retrans_segs: 1, ..SendCounters::default() });
        let named: Vec<_> = one.each().filter(|&(_, n)| n != 0).collect();
        assert_eq!(named, [("TcpRetransSegs", 1), ("TcpExtTCPTimeouts", 5)]);
        let mut names: Vec<_> = one.each().map(|(name, _)| name).collect();
        names.sort_unstable();
        let all = names.len();
        names.dedup();
        assert_eq!(names.len(), all);
    }
}
