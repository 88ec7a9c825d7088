//! `TCP_INFO`, `TCP_CC_INFO` and `SO_MEMINFO` as the kernel lays them out.

use softnet_tcp::conn::TcpInfo;
use softnet_tcp::{Config, Instant, Span};

use crate::sock::{Body, Sock};

/// A structure that is filled field after field, each aligned to its size.
#[derive(Default)]
struct Layout(Vec<u8>);

impl Layout {
    fn u8(&mut self, value: u8) {
        self.0.push(value);
    }

    fn u16(&mut self, value: u16) {
        self.align(2);
        self.0.extend(value.to_ne_bytes());
    }

    fn u32(&mut self, value: u32) {
        self.align(4);
        self.0.extend(value.to_ne_bytes());
    }

    fn u64(&mut self, value: u64) {
        self.align(8);
        self.0.extend(value.to_ne_bytes());
    }

    fn align(&mut self, to: usize) {
        self.0.resize(self.0.len().next_multiple_of(to), 0);
    }
}

/// Bytes of the kernel's `struct tcp_info` that scripts read.
const TCP_INFO_LEN: usize = 320;

/// `struct tcp_info` of a socket.
pub(crate) fn tcp_info(sock: &Sock, cfg: &Config, now: Instant) -> Vec<u8> {
    let mut bytes = match &sock.body {
        Body::Live(live) => layout(&live.conn.info_at(cfg, now), now),
        Body::Listener(listener, _) => {
            let mut out = Layout::default();
            out.u8(10);
            out.0.resize(24, 0);
            out.u32(listener.waiting());
            out.u32(listener.backlog());
            out.0
        }
        Body::Fresh => vec![7],
    };
    bytes.resize(TCP_INFO_LEN, 0);
    bytes
}

fn layout(info: &TcpInfo, now: Instant) -> Vec<u8> {
    let (send, mut out) = (&info.send, Layout::default());
    let micros = |span: Span| span.0;
    let ago = |at: Instant| now.millis_since(at).min(u64::from(u32::MAX)) as u32;
    out.u8(info.state);
    out.u8(send.ca_state as u8);
    out.u8(send.retransmits);
    out.u8(send.probes);
    out.u8(send.backoff);
    out.u8(info.options);
    out.u8(info.snd_wscale | info.rcv_wscale << 4);
    out.u8(u8::from(send.delivery_rate_app_limited));
    out.u32(micros(send.rto));
    out.u32(micros(info.ato));
    out.u32(send.snd_mss);
    out.u32(info.rcv_mss);
    out.u32(send.unacked);
    out.u32(send.sacked);
    out.u32(send.lost);
    out.u32(send.retrans);
    out.u32(0);
    out.u32(ago(send.last_data_sent));
    out.u32(0);
    out.u32(ago(info.last_data_recv));
    out.u32(ago(info.last_ack_recv));
    out.u32(info.path_mss + 40);
    out.u32(info.rcv_ssthresh);
    out.u32(micros(send.rtt));
    out.u32(micros(send.rttvar));
    out.u32(send.snd_ssthresh);
    out.u32(send.snd_cwnd);
    out.u32(info.advmss);
    out.u32(send.reordering);
    out.u32(micros(info.rcv_rtt));
    out.u32(info.rcv_space);
    out.u32(send.total_retrans);
    out.u64(send.pacing_rate);
    out.u64(u64::MAX);
    out.u64(send.bytes_acked);
    out.u64(info.bytes_received);
    out.u32(info.segs_out);
    out.u32(info.segs_in);
    out.u32(info.notsent_bytes);
    out.u32(if send.min_rtt == Span::MAX { u32::MAX } else { micros(send.min_rtt) });
    out.u32(info.data_segs_in);
    out.u32(info.data_segs_out);
    out.u64(send.delivery_rate);
    let (busy, window, buffer) = info.chrono.times();
    [busy, window, buffer].into_iter().for_each(|micros| out.u64(micros));
    out.u32(send.delivered);
    out.u32(send.delivered_ce);
    out.u64(send.bytes_sent);
    out.u64(send.bytes_retrans);
    out.u32(send.dsack_dups);
    out.u32(send.reord_seen);
    out.u32(info.rcv_ooopack);
    out.u32(info.snd_wnd);
    out.u32(info.rcv_wnd);
    out.u32(0);
    out.u16(send.total_rto.min(u32::from(u16::MAX)) as u16);
    out.0
}

/// `SK_MEMINFO_*`: nine words.
pub(crate) fn mem_info(sock: &Sock, cfg: &Config) -> Vec<u8> {
    let mut words = [0u32; 9];
    if let Some(live) = sock.live() {
        let info = live.conn.info(cfg);
        let queued = live.data.skbs.memory();
        (words[0], words[1]) = info.rmem;
        (words[2], words[3], words[5]) = (queued, info.wmem.1, queued);
    }
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_lie_where_the_kernel_has_them() {
        let mut out = Layout::default();
        (0..8).for_each(|i| out.u8(i));
        out.u32(1);
        out.u64(2);
        assert_eq!(out.0.len(), 24, "the 64-bit field is aligned");
        assert_eq!(out.0[8..12], 1u32.to_ne_bytes());
        assert_eq!(out.0[12..16], [0; 4]);
    }

    #[test]
    fn a_fresh_socket_is_closed() {
        let info = tcp_info(&Sock::new(false), &Config::default(), Instant(0));
        assert_eq!((info.len(), info[0]), (TCP_INFO_LEN, 7));
    }
}
