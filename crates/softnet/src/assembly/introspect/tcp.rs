//! What is told of TCP. Each shard is read under its lock, one after the other: rows of different
//! shards may be of different instants.

use std::collections::BTreeMap;

use softnet_core::sock::key::{Addr, unmapped};
use softnet_core::sock::tcp::ConnInfo;
use softnet_tcp::conn::{State, TcpInfo};
use softnet_tcp::send::CaState;
use softnet_tcp::{Instant, Span};

use super::Introspect;
use super::sockets::{end, napi_names};
use crate::control::show::{TcpInfoRow, TcpRow, TcpStats, TcpSummary};
use crate::stack::tcp::Caller;
use crate::stack::{StackInner, with};

/// Connections that are told at a time: an answer must not take as much memory as the table.
const MAX_ROWS: usize = 65_536;

/// The IP header and the fixed part of TCP's, of IPv4 and of IPv6.
const HEADERS: [u32; 2] = [40, 60];

impl Introspect {
    /// How many there are but for those that are established, and counters: what takes no look at each connection.
    pub(crate) fn tcp_summary(&self) -> (TcpSummary, BTreeMap<String, u64>) {
        let table = &self.shared.sockets.tcp;
        let (counters, [connections, syn_recv, time_wait]) = table.counters();
        let summary = TcpSummary {
            listening: table.listeners().all().len() as u64,
            connections: connections as u64,
            syn_recv: syn_recv as u64,
            time_wait: time_wait as u64,
            ..TcpSummary::default()
        };
        (summary, counters.each().map(|(name, count)| (name.into(), count)).collect())
    }

    /// TCP: listeners, connections, the first 65,536 of them, and counters.
    pub fn tcp(&self) -> TcpStats {
        let shared = &self.shared;
        let table = &shared.sockets.tcp;
        let (counters, [connections, syn_recv, time_wait]) = table.counters();
        let now = shared.clock.now();
        let mut sockets = listeners(shared);
        let mut summary = TcpSummary {
            listening: sockets.len() as u64,
            connections: 0,
            estab: 0,
            orphaned: 0,
            syn_recv: syn_recv as u64,
            time_wait: time_wait as u64,
        };
        let mut infos = Vec::new();
        if connections > 0 {
            let mut see = |info: ConnInfo| {
                summary.connections += 1;
                summary.estab += u64::from(info.state == State::Established);
                summary.orphaned += u64::from(info.slot.is_none());
                if infos.len() < MAX_ROWS {
                    infos.push(info);
                }
            };
            with(shared, |thread| {
                let caller = Caller { shared, tables: thread.tables.load(), now, napi_id: 0 };
                table.each_info(&mut thread.ctx, &caller, &mut see);
            });
        }
        let instant = Instant(now / 1000);
        let name = napi_names(shared);
        let told = infos.iter().map(|info| {
            let row = connection(shared, info, instant);
            TcpRow { napi: name(info.napi_id), ..row }
        });
        sockets.extend(told);
        let counters = counters.each().map(|(name, count)| (name.into(), count)).collect();
        TcpStats { sockets, summary, counters }
    }
}

/// The listeners, by address.
fn listeners(shared: &StackInner) -> Vec<TcpRow> {
    let all = shared.sockets.tcp.listeners().all();
    let row = |listening: &std::sync::Arc<crate::stack::tcp::Listening>| {
        let sockets = &shared.sockets.sockets;
        let slot = sockets.slot(listening.slot())?;
        let (key, v4) = slot.key()?;
        let [waiting, backlog, requests] = listening.with(sockets, |state| {
            [state.len() as u64, state.engine.backlog().into(), state.engine.requests().into()]
        })?;
        Some(TcpRow {
            state: "LISTEN".into(),
            recv_q: waiting,
            send_q: backlog,
            local: end(shared, key.flow.local, key.flow.lport, v4),
            peer: None,
            attached: true,
            requests: Some(requests),
            napi_id: 0,
            napi: None,
            info: None,
        })
    };
    let mut rows: Vec<TcpRow> = all.iter().filter_map(row).collect();
    rows.sort_by(|a, b| a.local.cmp(&b.local));
    rows
}

fn connection(shared: &StackInner, conn: &ConnInfo, now: Instant) -> TcpRow {
    let flow = &conn.flow;
    let v4 = |addr: Addr| unmapped(addr).is_some();
    TcpRow {
        state: state_name(conn.state).into(),
        recv_q: conn.recv_q.into(),
        send_q: conn.send_q.into(),
        local: end(shared, flow.local, flow.lport, v4(flow.local)),
        peer: Some(end(shared, flow.remote, flow.rport, v4(flow.remote))),
        attached: conn.slot.is_some(),
        requests: None,
        napi_id: conn.napi_id,
        napi: None,
        info: Some(info(&conn.info, HEADERS[usize::from(!v4(flow.remote))], now)),
    }
}

/// A state's name in `ss`.
fn state_name(state: State) -> &'static str {
    match state {
        State::SynSent => "SYN-SENT",
        State::SynReceived => "SYN-RECV",
        State::Established => "ESTAB",
        State::FinWait1 => "FIN-WAIT-1",
        State::FinWait2 => "FIN-WAIT-2",
        State::CloseWait => "CLOSE-WAIT",
        State::Closing => "CLOSING",
        State::LastAck => "LAST-ACK",
        State::Closed => "UNCONN",
    }
}

fn info(info: &TcpInfo, headers: u32, now: Instant) -> TcpInfoRow {
    let send = &info.send;
    let sampled = |span: Span| (span.0 != 0 && span != Span::MAX).then_some(span.0);
    // The engine's clock counts from the stack's start, when nothing happened yet.
    let ago = |at: Instant| (at.is_armed() && at != Instant::default()).then(|| now.millis_since(at));
    let names = [(1, "ts"), (2, "sack"), (4, "wscale"), (8, "ecn")];
    TcpInfoRow {
        congestion: info.send.congestion.name().into(),
        ca_state: match send.ca_state {
            CaState::Open => "open",
            CaState::Disorder => "disorder",
            CaState::Cwr => "cwr",
            CaState::Recovery => "recovery",
            CaState::Loss => "loss",
        }
        .into(),
        options: names.iter().filter(|(bit, _)| info.options & bit != 0).map(|(_, n)| (*n).into()).collect(),
        snd_wscale: info.snd_wscale,
        rcv_wscale: info.rcv_wscale,
        rto_us: send.rto.0,
        backoff: send.backoff,
        rtt_us: sampled(send.rtt),
        rttvar_us: sampled(send.rtt).map(|_| send.rttvar.0),
        min_rtt_us: sampled(send.min_rtt),
        ato_us: info.ato.0,
        snd_mss: send.snd_mss,
        rcv_mss: info.rcv_mss,
        advmss: info.advmss,
        pmtu: info.path_mss + headers,
        snd_cwnd: send.snd_cwnd,
        snd_ssthresh: (send.snd_ssthresh < 0x7fff_ffff).then_some(send.snd_ssthresh),
        bytes_sent: send.bytes_sent,
        bytes_retrans: send.bytes_retrans,
        bytes_acked: send.bytes_acked,
        bytes_received: info.bytes_received,
        segs_out: info.segs_out,
        segs_in: info.segs_in,
        data_segs_out: info.data_segs_out,
        data_segs_in: info.data_segs_in,
        last_data_sent_ms: (info.data_segs_out > 0).then(|| ago(send.last_data_sent)).flatten(),
        last_data_recv_ms: (info.data_segs_in > 0).then(|| ago(info.last_data_recv)).flatten(),
        last_ack_recv_ms: ago(info.last_ack_recv),
        pacing_rate: (send.pacing_rate != u64::MAX).then_some(send.pacing_rate),
        delivery_rate: send.delivery_rate,
        delivery_rate_app_limited: send.delivery_rate_app_limited,
        delivered: send.delivered,
        delivered_ce: send.delivered_ce,
        unacked: send.unacked,
        sacked: send.sacked,
        lost: send.lost,
        retrans: send.retrans,
        total_retrans: send.total_retrans,
        total_rto: send.total_rto,
        dsack_dups: send.dsack_dups,
        reordering: send.reordering,
        reord_seen: send.reord_seen,
        rcv_ooopack: info.rcv_ooopack,
        notsent_bytes: info.notsent_bytes,
        rcv_rtt_us: sampled(info.rcv_rtt),
        rcv_space: info.rcv_space,
        rcv_ssthresh: info.rcv_ssthresh,
        snd_wnd: info.snd_wnd,
        rcv_wnd: info.rcv_wnd,
        rmem: info.rmem.0,
        rcvbuf: info.rmem.1,
        sndbuf: info.wmem.1,
    }
}
