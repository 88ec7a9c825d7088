//! How `show tcp` looks: the words and the order are those of `ss -ti`, the counters' names those of `nstat`.

use softnet::control::show::{TcpInfoRow, TcpRow, TcpStats};

use super::rows::{Cell, cells_table, left, right};
use crate::text::{grouped, rate};

/// What is asked of `show tcp`.
#[derive(clap::Args, Default)]
#[command(next_help_heading = "With `tcp`")]
pub(crate) struct TcpArgs {
    /// What each connection knows of its path, below it, in the words of `ss -i`
    #[arg(short, long)]
    pub(crate) info: bool,
    /// Listeners only
    #[arg(short, long, conflicts_with = "state")]
    pub(crate) listening: bool,
    /// Sockets in this state only; may be given several times
    #[arg(long, value_name = "STATE", value_parser = STATES)]
    pub(crate) state: Vec<String>,
    /// Sockets with this port only, here or at the peer
    #[arg(long, value_name = "PORT")]
    pub(crate) port: Option<u16>,
    /// Counters instead of sockets, under nstat's names; those that are 0 are left out
    #[arg(long, conflicts_with_all = ["info", "listening", "state", "port"])]
    pub(crate) counters: bool,
}

/// The states as `ss state` takes them; the answer has them in capitals, and two of them shorter.
const STATES: [&str; 10] = [
    "listening",
    "syn-sent",
    "syn-recv",
    "established",
    "fin-wait-1",
    "fin-wait-2",
    "close-wait",
    "closing",
    "last-ack",
    "closed",
];

/// Columns that a line takes at most.
const WIDTH: usize = 120;

impl TcpArgs {
    /// Whether anything was asked.
    pub(crate) fn is_any(&self) -> bool {
        let TcpArgs { info, listening, state, port, counters } = self;
        *info || *listening || *counters || !state.is_empty() || port.is_some()
    }

    /// Leaves what was asked for.
    pub(crate) fn filter(&self, mut stats: TcpStats) -> TcpStats {
        stats.sockets.retain(|row| {
            let state = match &*row.state {
                "LISTEN" => "listening".into(),
                "ESTAB" => "established".into(),
                "UNCONN" => "closed".into(),
                other => other.to_lowercase(),
            };
            let of = |end: &str| {
                let port = end.rsplit_once(':').and_then(|(_, port)| port.parse().ok());
                port == self.port
            };
            (!self.listening || state == "listening")
                && (self.state.is_empty() || self.state.contains(&state))
                && (self.port.is_none() || of(&row.local) || row.peer.as_deref().is_some_and(of))
        });
        stats
    }

    /// The sockets, and how many there are of each kind.
    pub(crate) fn text(&self, now: &TcpStats) -> String {
        let all = now.summary;
        let summary = format!(
            "{} listening; {} connections, {} of them ESTAB, {} without an application; {} SYN-RECV, {} TIME-WAIT\n",
            grouped(all.listening),
            grouped(all.connections),
            grouped(all.estab),
            grouped(all.orphaned),
            grouped(all.syn_recv),
            grouped(all.time_wait),
        );
        let table = cells_table(now.sockets.iter().map(cells).collect());
        if !self.info {
            return table + &summary;
        }
        let mut lines = table.lines();
        let mut text = lines.next().map_or(String::new(), |head| format!("{head}\n"));
        for (line, row) in lines.zip(&now.sockets) {
            text += &format!("{line}\n{}", info(row));
        }
        text + &summary
    }
}

fn cells(row: &TcpRow) -> Vec<Cell> {
    let napi = match (&row.napi, row.napi_id) {
        (_, 0) => "-".into(),
        (Some(name), _) => name.clone(),
        (None, id) => id.to_string(),
    };
    vec![
        left("state", &row.state),
        right("recv-q", grouped(row.recv_q)),
        right("send-q", grouped(row.send_q)),
        left("local", &row.local),
        left("peer", row.peer.as_deref().unwrap_or("*")),
        left("napi", napi),
    ]
}

/// What `ss -i` prints below a socket, on lines that are not too long.
fn info(row: &TcpRow) -> String {
    let words = match &row.info {
        Some(info) => words(info),
        None => row.requests.filter(|n| *n > 0).map(|n| format!("syn-recv:{n}")).into_iter().collect(),
    };
    let mut text = String::new();
    let mut line = String::new();
    for word in words {
        if !line.is_empty() && line.len() + 1 + word.len() > WIDTH {
            text += &format!("{line}\n");
            line.clear();
        }
        line += if line.is_empty() { "       " } else { "" };
        line += &format!(" {word}");
    }
    if line.is_empty() { text } else { text + &line + "\n" }
}

/// The words of `ss -i`, in its order; what is 0 and is left out there is left out here.
fn words(info: &TcpInfoRow) -> Vec<String> {
    let ms = |us: u32| {
        let text = format!("{:.3}", f64::from(us) / 1e3);
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    };
    let some = |name: &str, value: u64| (value > 0).then(|| format!("{name}:{value}"));
    let has_scale = info.options.iter().any(|option| option == "wscale");
    let scale = has_scale.then(|| format!("wscale:{},{}", info.snd_wscale, info.rcv_wscale));
    let rtt = info.rtt_us.map(|rtt| format!("rtt:{}/{}", ms(rtt), ms(info.rttvar_us.unwrap_or(0))));
    let window = u128::from(info.snd_mss) * u128::from(info.snd_cwnd) * 8_000_000;
    let send = info.rtt_us.map(|rtt| format!("send {}bps", window / u128::from(rtt.max(1))));
    let bps = |name: &str, bytes: u64| format!("{name} {}bps", u128::from(bytes) * 8);
    let ago = |name: &str, ago: Option<u64>| ago.map(|ms| format!("{name}:{ms}"));
    let again = info.retrans > 0 || info.total_retrans > 0;
    let first = info.options.iter().filter(|option| *option != "wscale").cloned();
    let words = [
        Some(info.congestion.clone()),
        scale,
        Some(format!("rto:{}", ms(info.rto_us))),
        some("backoff", info.backoff.into()),
        rtt,
        (info.ato_us > 0).then(|| format!("ato:{}", ms(info.ato_us))),
        Some(format!("mss:{}", info.snd_mss)),
        Some(format!("pmtu:{}", info.pmtu)),
        Some(format!("rcvmss:{}", info.rcv_mss)),
        Some(format!("advmss:{}", info.advmss)),
        Some(format!("cwnd:{}", info.snd_cwnd)),
        some("ssthresh", info.snd_ssthresh.unwrap_or(0).into()),
        some("bytes_sent", info.bytes_sent),
        some("bytes_retrans", info.bytes_retrans),
        some("bytes_acked", info.bytes_acked),
        some("bytes_received", info.bytes_received),
        some("segs_out", info.segs_out.into()),
        some("segs_in", info.segs_in.into()),
        some("data_segs_out", info.data_segs_out.into()),
        some("data_segs_in", info.data_segs_in.into()),
        send,
        ago("lastsnd", info.last_data_sent_ms),
        ago("lastrcv", info.last_data_recv_ms),
        ago("lastack", info.last_ack_recv_ms),
        info.pacing_rate.map(|rate| bps("pacing_rate", rate)),
        (info.delivery_rate > 0).then(|| bps("delivery_rate", info.delivery_rate)),
        some("delivered", info.delivered.into()),
        some("delivered_ce", info.delivered_ce.into()),
        info.delivery_rate_app_limited.then(|| "app_limited".into()),
        (info.ca_state != "open").then(|| format!("ca_state:{}", info.ca_state)),
        some("unacked", info.unacked.into()),
        again.then(|| format!("retrans:{}/{}", info.retrans, info.total_retrans)),
        some("lost", info.lost.into()),
        some("sacked", info.sacked.into()),
        some("dsack_dups", info.dsack_dups.into()),
        // As ss: 3 is what all begin with.
        some("reordering", info.reordering.into()).filter(|_| info.reordering != 3),
        some("reord_seen", info.reord_seen.into()),
        info.rcv_rtt_us.map(|us| format!("rcv_rtt:{}", ms(us))),
        some("rcv_space", info.rcv_space.into()),
        some("rcv_ssthresh", info.rcv_ssthresh.into()),
        some("notsent", info.notsent_bytes.into()),
        info.min_rtt_us.map(|us| format!("minrtt:{}", ms(us))),
        some("rcv_ooopack", info.rcv_ooopack.into()),
        some("snd_wnd", info.snd_wnd.into()),
        some("rcv_wnd", info.rcv_wnd.into()),
    ];
    first.chain(words.into_iter().flatten()).collect()
}

/// Counters, one to a line; since some seconds ago also how fast they grow.
pub(crate) fn counters(now: &TcpStats, before: Option<(&TcpStats, f64)>) -> String {
    let rows = now.counters.iter().filter(|(_, count)| **count > 0);
    let row = |(name, count): (&String, &u64)| {
        let mut cells = vec![left("counter", name), right("count", grouped(*count))];
        if let Some((then, seconds)) = before {
            let grown = count.saturating_sub(then.counters.get(name).copied().unwrap_or(0));
            cells.push(right("rate", rate(grown as f64 / seconds)));
        }
        cells
    };
    let rows: Vec<_> = rows.map(row).collect();
    if rows.is_empty() { "nothing was counted\n".into() } else { cells_table(rows) }
}
