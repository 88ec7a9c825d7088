//! Rows of `show tcp`, under the names of `ss` and of `struct tcp_info`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// TCP: its sockets, what is no socket yet or no more, and counters.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct TcpStats {
    /// Listeners, then connections, the first 65,536 of them.
    pub sockets: Vec<TcpRow>,
    /// How many there are.
    pub summary: TcpSummary,
    /// Counters of all connections and listeners, under the names of `nstat`.
    pub counters: BTreeMap<String, u64>,
}

/// How many there are, as `ss -s` says it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct TcpSummary {
    /// Listeners.
    pub listening: u64,
    /// Connections, those that the application has closed and that have not ended included.
    pub connections: u64,
    /// Of these, those whose handshake is done and that neither end has closed.
    pub estab: u64,
    /// Of these, those that no application has: not accepted yet, or closed.
    pub orphaned: u64,
    /// Requests: SYNs of peers that were answered, and whose handshake is not done.
    pub syn_recv: u64,
    /// Connections that ended and whose ports are not free yet.
    pub time_wait: u64,
}

/// A listener or a connection.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct TcpRow {
    /// As `ss` names it: `LISTEN`, `SYN-SENT`, `SYN-RECV`, `ESTAB`, `FIN-WAIT-1`, `FIN-WAIT-2`, `CLOSE-WAIT`,
    /// `CLOSING`, `LAST-ACK`, `UNCONN`.
    pub state: String,
    /// Bytes that arrived and that the application has not read. Of a listener: connections that wait to be
    /// accepted.
    pub recv_q: u64,
    /// Bytes that were written and that the peer has not acknowledged. Of a listener: how many
    /// connections may wait (`backlog`).
    pub send_q: u64,
    /// Our address and port.
    pub local: String,
    /// The peer's; none of a listener.
    pub peer: Option<String>,
    /// Whether an application has it.
    pub attached: bool,
    /// Of a listener: requests, whose handshake is not done.
    pub requests: Option<u64>,
    /// Id of the NAPI instance that its last packet came by; 0 if none did.
    pub napi_id: u32,
    /// Name of that instance, if it is there.
    pub napi: Option<String>,
    /// What the connection knows of itself.
    pub info: Option<TcpInfoRow>,
}

/// `TCP_INFO` of a connection: the kernel's fields, without `tcpi_`. Times that have no value yet are `None`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct TcpInfoRow {
    /// Congestion control: `cubic`, `reno`, `dctcp`.
    pub congestion: String,
    /// What of it goes on: `open`, `disorder`, `cwr`, `recovery`, `loss`.
    pub ca_state: String,
    /// What both ends agreed on: `ts`, `sack`, `wscale`, `ecn`.
    pub options: Vec<String>,
    /// Shift of the peer's window.
    pub snd_wscale: u8,
    /// Shift of ours.
    pub rcv_wscale: u8,
    /// Time until a retransmission, back-off included, µs.
    pub rto_us: u32,
    /// How often it was doubled.
    pub backoff: u8,
    /// Round-trip time, smoothed, µs.
    pub rtt_us: Option<u32>,
    /// Its mean deviation, µs.
    pub rttvar_us: Option<u32>,
    /// The smallest of late, µs.
    pub min_rtt_us: Option<u32>,
    /// Time that an ACK is delayed, µs.
    pub ato_us: u32,
    /// Bytes of a segment that is sent.
    pub snd_mss: u32,
    /// Those that come, as far as is known.
    pub rcv_mss: u32,
    /// What this end said that it takes.
    pub advmss: u32,
    /// Bytes of the largest packet of the path, with the IP header.
    pub pmtu: u32,
    /// Congestion window, segments.
    pub snd_cwnd: u32,
    /// Where slow start ends, segments; `None`: nowhere yet.
    pub snd_ssthresh: Option<u32>,
    /// Bytes sent, those that were sent again included.
    pub bytes_sent: u64,
    /// Bytes sent again.
    pub bytes_retrans: u64,
    /// Bytes acknowledged.
    pub bytes_acked: u64,
    /// Bytes received.
    pub bytes_received: u64,
    /// Segments sent.
    pub segs_out: u32,
    /// Segments received.
    pub segs_in: u32,
    /// Segments with data sent.
    pub data_segs_out: u32,
    /// Segments with data received.
    pub data_segs_in: u32,
    /// Milliseconds since data was sent last.
    pub last_data_sent_ms: Option<u64>,
    /// Milliseconds since data was received last.
    pub last_data_recv_ms: Option<u64>,
    /// Milliseconds since an ACK was received last.
    pub last_ack_recv_ms: Option<u64>,
    /// Bytes a second at which it sends at most.
    pub pacing_rate: Option<u64>,
    /// Bytes a second that arrived of late.
    pub delivery_rate: u64,
    /// Whether that is all that the application wrote.
    pub delivery_rate_app_limited: bool,
    /// Segments that arrived.
    pub delivered: u32,
    /// Of these, those with a mark of congestion.
    pub delivered_ce: u32,
    /// Segments on their way.
    pub unacked: u32,
    /// Of these, those that arrived behind a hole.
    pub sacked: u32,
    /// Those that count as lost.
    pub lost: u32,
    /// Those that are on their way again.
    pub retrans: u32,
    /// Segments sent again, ever.
    pub total_retrans: u32,
    /// Time-outs, ever.
    pub total_rto: u32,
    /// Segments that arrived twice, as the peer says.
    pub dsack_dups: u32,
    /// Segments by which packets are out of order at most.
    pub reordering: u32,
    /// Times that they were.
    pub reord_seen: u32,
    /// Segments received out of order.
    pub rcv_ooopack: u32,
    /// Bytes written and not sent yet.
    pub notsent_bytes: u32,
    /// Round-trip time as the receiving half sees it, µs.
    pub rcv_rtt_us: Option<u32>,
    /// Bytes that the application reads in one.
    pub rcv_space: u32,
    /// Bytes of the largest window that is offered at present.
    pub rcv_ssthresh: u32,
    /// Bytes of the peer's window.
    pub snd_wnd: u32,
    /// Bytes of ours.
    pub rcv_wnd: u32,
    /// Bytes of packet memory that wait to be read.
    pub rmem: u32,
    /// Bytes of it that may.
    pub rcvbuf: u32,
    /// Bytes that may be queued for sending.
    pub sndbuf: u32,
}
