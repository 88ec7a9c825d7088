//! The knobs that all connections of a stack share, under the names of Linux's sysctls.
//!
//! The host owns one and passes it to every entry by reference; a change takes effect at the next
//! one. Fields without a unit in their name have the kernel's unit, which their comment gives.

/// `net.ipv4.tcp_*`, with Linux's defaults (Documentation/networking/ip-sysctl.rst).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Bytes of a connection's receive buffer: least, initial, most by autotuning.
    pub tcp_rmem: [u32; 3],
    /// Bytes of a connection's send buffer: least, initial, most by autotuning.
    pub tcp_wmem: [u32; 3],
    /// `net.core.rmem_max`: the most that `SO_RCVBUF` sets.
    pub rmem_max: u32,
    /// `net.core.wmem_max`: the most that `SO_SNDBUF` sets.
    pub wmem_max: u32,
    /// `net.core.somaxconn`: the longest accept queue.
    pub somaxconn: u32,
    /// Whether receive buffers grow by what is read (4.2 of the engine's rules, "DRS").
    pub tcp_moderate_rcvbuf: bool,
    /// Least retransmission time-out, microseconds.
    pub tcp_rto_min_us: u32,
    /// Longest retransmission time-out, milliseconds (1,000 to 120,000).
    pub tcp_rto_max_ms: u32,
    /// Retransmissions of a SYN after the linear ones.
    pub tcp_syn_retries: u8,
    /// SYN time-outs of one second each before they double.
    pub tcp_syn_linear_timeouts: u8,
    /// Retransmissions of a SYN-ACK.
    pub tcp_synack_retries: u8,
    /// Retransmissions, modelled in time, after which a connection ends.
    pub tcp_retries2: u8,
    /// Retransmissions after which an orphan ends; 0 means 8.
    pub tcp_orphan_retries: u8,
    /// 0: no tail-loss probe; 3 and 4: tail-loss probes.
    pub tcp_early_retrans: u8,
    /// Bits: 1 RACK, 2 no reordering window by static threshold, 4 no duplicate-ACK threshold.
    pub tcp_recovery: u8,
    /// Whether spurious time-outs are detected (RFC 5682).
    pub tcp_frto: bool,
    /// Initial reordering degree, packets.
    pub tcp_reordering: u32,
    /// Greatest reordering degree, packets.
    pub tcp_max_reordering: u32,
    /// Seconds of the windowed minimum of round-trip times.
    pub tcp_min_rtt_wlen: u32,
    /// Whether the congestion window decays while nothing is sent.
    pub tcp_slow_start_after_idle: bool,
    /// Whether thin streams keep a linear time-out for six retransmissions.
    pub tcp_thin_linear_timeouts: bool,
    /// Congestion control of new connections.
    pub tcp_congestion_control: CongestionControl,
    /// Fewest segments of a run that offload cuts, where as many may go.
    pub tcp_min_tso_segs: u32,
    /// Paths of less than 2 to this power microseconds have runs as long as they may be; each
    /// such time more halves what is added to what pacing allows.
    pub tcp_tso_rtt_log: u8,
    /// Percent of the estimated rate at which slow start paces.
    pub tcp_pacing_ss_ratio: u16,
    /// Percent of the estimated rate at which congestion avoidance paces.
    pub tcp_pacing_ca_ratio: u16,
    /// Whether segments are spread over time. Linux paces only where `fq` or BBR ask for it.
    pub pacing: bool,
    /// Bytes of this stack that may wait before a device when a connection that has some in flight adds to
    /// them; about a millisecond of its rate, if that is less.
    pub tcp_limit_output_bytes: u32,
    /// Bytes beyond which unsent data makes a socket not writable.
    pub tcp_notsent_lowat: u32,
    /// Whether selective acknowledgements are offered (RFC 2018).
    pub tcp_sack: bool,
    /// Whether duplicates are reported (RFC 2883).
    pub tcp_dsack: bool,
    /// 0: no timestamps; 1: with a random offset a connection; 2: without (RFC 7323).
    pub tcp_timestamps: u8,
    /// Whether window scaling is offered (RFC 7323).
    pub tcp_window_scaling: bool,
    /// 0: no ECN; 1: asks and agrees; 2: agrees (RFC 3168).
    pub tcp_ecn: u8,
    /// Whether a SYN is retransmitted once without ECN.
    pub tcp_ecn_fallback: bool,
    /// 0: never, 1: when the request queue overflows, 2: always.
    pub tcp_syncookies: u8,
    /// Requests of all listeners, beyond which unproven peers are refused without cookies.
    pub tcp_max_syn_backlog: u32,
    /// Whether a third ACK that finds the accept queue full is answered by RST.
    pub tcp_abort_on_overflow: bool,
    /// Seconds that an orphan stays in FIN-WAIT-2.
    pub tcp_fin_timeout: u32,
    /// Most connections that no application has; one more is reset.
    pub tcp_max_orphans: u32,
    /// Most TIME-WAIT objects.
    pub tcp_max_tw_buckets: u32,
    /// 0: a port in TIME-WAIT is not used again; 1: it is; 2: on the loopback only.
    pub tcp_tw_reuse: u8,
    /// Milliseconds in TIME-WAIT before reuse.
    pub tcp_tw_reuse_delay: u32,
    /// Whether RST in TIME-WAIT is ignored (RFC 1337).
    pub tcp_rfc1337: bool,
    /// Seconds of idleness before the first keepalive probe.
    pub tcp_keepalive_time: u32,
    /// Seconds between keepalive probes.
    pub tcp_keepalive_intvl: u32,
    /// Keepalive probes without answer after which a connection ends.
    pub tcp_keepalive_probes: u8,
    /// Milliseconds between two answers to invalid segments on a connection.
    pub tcp_invalid_ratelimit: u32,
    /// Most compressed duplicate ACKs.
    pub tcp_comp_sack_nr: u8,
    /// Longest delay of a compressed ACK, microseconds.
    pub tcp_comp_sack_delay_us: u32,
    /// Percent of the round-trip time that a compressed ACK may be late.
    pub tcp_comp_sack_rtt_percent: u8,
    /// Round-trip time below which buffers grow with care, microseconds; 0: all grow alike.
    pub tcp_rcvbuf_low_rtt_us: u32,
    /// Answers to the peer after which a connection counts as interactive.
    pub tcp_pingpong_thresh: u8,
    /// Whether a window may be taken back when memory is short.
    pub tcp_shrink_window: bool,
    /// Least segment size that is ever used, whatever the peer announces.
    pub tcp_min_snd_mss: u16,
    /// First and last of ephemeral ports.
    pub ip_local_port_range: [u16; 2],
}

/// Congestion control algorithms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CongestionControl {
    /// RFC 9438.
    #[default]
    Cubic,
    /// RFC 5681, 6582.
    Reno,
    /// RFC 8257.
    Dctcp,
}

impl CongestionControl {
    /// All there are.
    pub const ALL: [CongestionControl; 3] =
        [CongestionControl::Cubic, CongestionControl::Reno, CongestionControl::Dctcp];

    /// Its name, as `TCP_CONGESTION` has it.
    pub const fn name(self) -> &'static str {
        match self {
            CongestionControl::Cubic => "cubic",
            CongestionControl::Reno => "reno",
            CongestionControl::Dctcp => "dctcp",
        }
    }

    /// The one of that name.
    pub fn from_name(name: &str) -> Option<CongestionControl> {
        CongestionControl::ALL.into_iter().find(|control| control.name() == name)
    }
}

impl Default for Config {
    fn default() -> Self {
        Config {
            tcp_rmem: [4096, 131_072, 32 << 20],
            tcp_wmem: [4096, 16_384, 4 << 20],
            rmem_max: 212_992,
            wmem_max: 212_992,
            somaxconn: 4096,
            tcp_moderate_rcvbuf: true,
            tcp_rto_min_us: 200_000,
            tcp_rto_max_ms: 120_000,
            tcp_syn_retries: 6,
            tcp_syn_linear_timeouts: 4,
            tcp_synack_retries: 5,
            tcp_retries2: 15,
            tcp_orphan_retries: 0,
            tcp_early_retrans: 3,
            tcp_recovery: 1,
            tcp_frto: true,
            tcp_reordering: 3,
            tcp_max_reordering: 300,
            tcp_min_rtt_wlen: 300,
            tcp_slow_start_after_idle: true,
            tcp_thin_linear_timeouts: false,
            tcp_congestion_control: CongestionControl::Cubic,
            tcp_min_tso_segs: 2,
            tcp_tso_rtt_log: 9,
            tcp_pacing_ss_ratio: 200,
            tcp_pacing_ca_ratio: 120,
            pacing: false,
            tcp_limit_output_bytes: 4 << 20,
            tcp_notsent_lowat: u32::MAX,
            tcp_sack: true,
            tcp_dsack: true,
            tcp_timestamps: 1,
            tcp_window_scaling: true,
            tcp_ecn: 2,
            tcp_ecn_fallback: true,
            tcp_syncookies: 1,
            tcp_max_syn_backlog: 4096,
            tcp_abort_on_overflow: false,
            tcp_fin_timeout: 60,
            tcp_max_orphans: 131_072,
            tcp_max_tw_buckets: 131_072,
            tcp_tw_reuse: 2,
            tcp_tw_reuse_delay: 1000,
            tcp_rfc1337: false,
            tcp_keepalive_time: 7200,
            tcp_keepalive_intvl: 75,
            tcp_keepalive_probes: 9,
            tcp_invalid_ratelimit: 500,
            tcp_comp_sack_nr: 44,
            tcp_comp_sack_delay_us: 1000,
            tcp_comp_sack_rtt_percent: 33,
            tcp_rcvbuf_low_rtt_us: 1000,
            tcp_pingpong_thresh: 1,
            tcp_shrink_window: false,
            tcp_min_snd_mss: 48,
            ip_local_port_range: [32_768, 60_999],
        }
    }
}
