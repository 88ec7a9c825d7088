//! How each row looks to people.

use serde::Serialize;
use serde::de::DeserializeOwned;
use softnet::control::show::{
    ConntrackRow, DevRow, DropRow, FilterRow, FollowStats, NatAddressRow, NatStats, NeighRow, QdiscRow,
    RouteRow, RuleRow, SocketRow, Stats, SteeredRow, SteeringRow, TxRow, WorkerRow,
};

use crate::qdisc::print as qdisc;
use crate::text::{self, Align, bit_rate, bytes, grouped, rate, seconds};

/// One cell with its header.
pub(crate) type Cell = (&'static str, Align, String);

/// A row that can be printed.
pub(crate) trait Row: Serialize + DeserializeOwned {
    /// What is printed in place of an empty table.
    const NONE: &'static str;
    /// The same in two answers if it is the same thing.
    fn key(&self) -> String;
    /// Its cells. With the same row some seconds ago, counters become rates.
    fn cells(&self, since: Since<'_, Self>) -> Vec<Cell>;
    /// What is said of it below the table.
    fn note(&self) -> Option<String> {
        None
    }
}

/// The row some seconds ago: `None` the first time, `Some((None, _))` if there was no such row then.
pub(crate) type Since<'a, R> = Option<(Option<&'a R>, f64)>;

/// A whole table.
pub(crate) fn table<R: Row>(rows: &[R], before: Option<(&[R], f64)>) -> String {
    let then = |row: &R| {
        let (rows, seconds) = before?;
        Some((rows.iter().find(|old| old.key() == row.key()), seconds))
    };
    match rows.is_empty() {
        true => format!("{}\n", R::NONE),
        false => {
            let mut text = cells_table(rows.iter().map(|row| row.cells(then(row))).collect());
            rows.iter().filter_map(Row::note).for_each(|note| text += &format!("{note}\n"));
            text
        }
    }
}

/// Rows of cells that have the same headers; nothing if there are none.
pub(crate) fn cells_table(rows: Vec<Vec<Cell>>) -> String {
    let Some(first) = rows.first() else { return String::new() };
    let headers: Vec<(String, Align)> =
        first.iter().map(|(title, align, _)| ((*title).into(), *align)).collect();
    let rows: Vec<Vec<String>> =
        rows.into_iter().map(|row| row.into_iter().map(|(.., cell)| cell).collect()).collect();
    text::table(&headers, &rows)
}

/// The totals, one to a line.
pub(crate) fn stats(now: &Stats, before: Option<(&Stats, f64)>) -> String {
    let since = before.map(|(then, seconds)| (Some(then), seconds));
    let count = |field: fn(&Stats) -> u64| counter(now, since, field);
    let part = |free: u64, all: u64| format!("{} of {} free in the pool", grouped(free), grouped(all));
    let cores = match before {
        Some((then, s)) => now.cpu_ns.saturating_sub(then.cpu_ns) as f64 / 1e7 / s,
        None => now.cpu_ns as f64 / 1e7 / now.uptime_s.max(1e-9),
    };
    let mut lines = vec![
        ("instance", format!("{} (softnet {}, pid {})", now.name, now.version, now.pid)),
        ("uptime", seconds(now.uptime_s)),
        ("cpu", format!("{cores:.1} % of one core, all threads")),
        ("received", count(|s| s.received)),
        ("originated", count(|s| s.originated)),
        ("transmitted", count(|s| s.transmitted)),
        ("delivered", count(|s| s.delivered)),
        ("dropped", count(|s| s.dropped)),
        ("merged", count(|s| s.merged)),
        ("held", grouped(now.held)),
        ("frames", part(now.frames_free, now.frames)),
        ("heads", part(now.heads_free, now.heads)),
        ("routes", format!("{}, {} of tables", grouped(now.routes), bytes(now.fib_bytes))),
        (
            "neighbours",
            format!("{}, no room for {} more", grouped(now.neighbours), count(|s| s.neigh_table_fulls)),
        ),
        ("sockets", grouped(now.sockets)),
        ("limited", format!("{} ICMP errors not sent", count(|s| s.icmp_limited))),
        (
            "path mtus",
            format!(
                "{} below the first link's, {} reports not believed",
                grouped(now.path_mtus),
                count(|s| s.pmtu_ignored)
            ),
        ),
        ("slow path", format!("{} times entered", count(|s| s.slow_path))),
        (
            "fragments",
            format!(
                "{} datagrams waiting, {} put together, {} packets cut",
                grouped(now.fragments.waiting),
                count(|s| s.fragments.reassembled),
                count(|s| s.fragments.cut)
            ),
        ),
        ("exhausted", format!("{} times out of packet memory", count(|s| s.exhausted))),
    ];
    if now.address_conflicts > 0 {
        let claims = count(|s| s.address_conflicts);
        lines.push(("conflicts", format!("{claims} times a neighbour claimed an own address")));
    }
    if let Some(follow) = &now.follow {
        let told = |field: fn(&FollowStats) -> u64| count_of(now, since, field);
        lines.push((
            "kernel",
            format!(
                "{} changes of routes, in {} batches; listed {} times, for {} overruns; {} by other interfaces, {} not done",
                told(|f| f.events),
                told(|f| f.published),
                told(|f| f.lists),
                told(|f| f.overruns),
                grouped(follow.other_interface),
                grouped(follow.unsupported)
            ),
        ));
        if let Some(fpm) = &follow.fpm {
            let messages = told(|f| f.fpm.map_or(0, |fpm| fpm.messages));
            lines.push((
                "fpm",
                format!(
                    "zebra is {}; {messages} messages, {} routes, {} of them of before; {} connections, {} were no FPM",
                    if fpm.connected { "connected" } else { "not connected" },
                    grouped(fpm.routes),
                    grouped(fpm.stale),
                    grouped(fpm.connections),
                    grouped(fpm.malformed)
                ),
            ));
        }
        if follow.list_due {
            lines.push(("", "all are to be listed again; until then some may be of before".into()));
        }
        if follow.fib_refused > 0 {
            lines.push(("fib", format!("no room for {} changes", grouped(follow.fib_refused))));
        }
    }
    if now.leaked > 0 {
        lines.push(("leaked", format!("{}: a bug in softnet; please report it", grouped(now.leaked))));
    }
    lines.iter().map(|(title, value)| format!("{title:<12} {value}\n")).collect()
}

/// A counter of what is followed, or its rate.
fn count_of(now: &Stats, since: Since<'_, Stats>, field: fn(&FollowStats) -> u64) -> String {
    counter(now, since, |stats| stats.follow.as_ref().map_or(0, field))
}

/// How much a counter grew each second; nothing can be said of a row that is new.
pub(crate) fn growth<R>(
    now: &R,
    (then, seconds): (Option<&R>, f64),
    field: impl Fn(&R) -> u64,
) -> Option<f64> {
    then.map(|then| field(now).saturating_sub(field(then)) as f64 / seconds)
}

/// A counter, or its rate.
pub(crate) fn counter<R>(now: &R, since: Since<'_, R>, field: impl Fn(&R) -> u64) -> String {
    match since {
        Some(since) => growth(now, since, field).map_or("-".into(), rate),
        None => grouped(field(now)),
    }
}

/// A counter of bytes, or its rate in bits.
fn volume<R>(now: &R, since: Since<'_, R>, field: impl Fn(&R) -> u64) -> String {
    match since {
        Some(since) => growth(now, since, field).map_or("-".into(), bit_rate),
        None => bytes(field(now)),
    }
}

pub(crate) fn left(title: &'static str, cell: impl Into<String>) -> Cell {
    (title, Align::Left, cell.into())
}

pub(crate) fn right(title: &'static str, cell: impl Into<String>) -> Cell {
    (title, Align::Right, cell.into())
}

/// Its addresses, and those that it does not use.
fn addresses(dev: &DevRow) -> String {
    let duplicates = dev.duplicates.iter().map(|own| format!("{own}(duplicate)"));
    dev.addresses.iter().cloned().chain(duplicates).collect::<Vec<_>>().join(" ")
}

impl Row for DevRow {
    const NONE: &'static str = "no devices";

    fn key(&self) -> String {
        self.name.clone()
    }

    fn cells(&self, since: Since<'_, Self>) -> Vec<Cell> {
        let count = |field: fn(&Self) -> u64| counter(self, since, field);
        vec![
            left("dev", &self.name),
            left("link", &self.link),
            left("addresses", addresses(self)),
            left("groups", groups(self)),
            left("mac", &self.mac),
            right("mtu", self.mtu.to_string()),
            right("queues", self.queues.to_string()),
            right("rx packets", count(|d| d.rx_packets)),
            right("rx bytes", volume(self, since, |d| d.rx_bytes)),
            right("rx missed", count(|d| d.rx_ring_drops)),
            right("tx packets", count(|d| d.tx_packets)),
            right("tx bytes", volume(self, since, |d| d.tx_bytes)),
            right("tx refused", count(|d| d.tx_ring_drops)),
            right("drops", count(|d| d.drops)),
            right("kicks", count(|d| d.rx_kicks + d.tx_kicks)),
            right("held", grouped(self.held)),
            right("reopened", grouped(self.reopened)),
            left("driver", [&self.driver[..], &self.mode].join(" ").trim_end()),
        ]
    }
}

/// The groups that a device is in, each with its members; of many how many there are.
fn groups(dev: &DevRow) -> String {
    match dev.groups.len() {
        0 => "-".into(),
        1..=4 => {
            let each = dev.groups.iter().map(|(group, members)| format!("{group} ({members})"));
            each.collect::<Vec<_>>().join(" ")
        }
        many => format!("{} groups", grouped(many as u64)),
    }
}

impl Row for WorkerRow {
    const NONE: &'static str = "no threads";

    fn key(&self) -> String {
        self.tid.to_string()
    }

    fn cells(&self, since: Since<'_, Self>) -> Vec<Cell> {
        let count = |field: fn(&Self) -> u64| counter(self, since, field);
        let cpu =
            since.and_then(|since| growth(self, since, |w| w.cpu_ns)).map_or(self.cpu_percent, |ns| ns / 1e7);
        let causes = self.wakeups.keys().map(|cause| {
            let woken = |row: &Self| row.wakeups.get(cause).copied().unwrap_or(0);
            format!("{cause} {}", counter(self, since, woken))
        });
        vec![
            left("thread", &self.name),
            left("context", self.context.name()),
            right("cpu", self.cpu.map_or("-".into(), |cpu| cpu.to_string())),
            left("policy", &self.policy),
            right("tid", self.tid.to_string()),
            left("state", &self.state),
            right("use", format!("{cpu:.1} %")),
            right("packets", count(|w| w.packets)),
            right("rounds", count(|w| w.rounds)),
            right("time squeeze", count(|w| w.time_squeeze)),
            right("sleeps", count(|w| w.sleeps)),
            left("woken by", causes.collect::<Vec<_>>().join(", ")),
            right("cached heads", grouped(self.cached_heads)),
            right("frames", grouped(self.cached_frames)),
        ]
    }
}

impl Row for NeighRow {
    const NONE: &'static str = "no neighbours";

    fn key(&self) -> String {
        format!("{} {}", self.dev, self.ip)
    }

    fn cells(&self, _: Since<'_, Self>) -> Vec<Cell> {
        vec![
            left("dev", &self.dev),
            left("ip", self.ip.to_string()),
            left("mac", self.mac.as_deref().unwrap_or("-")),
            left("state", &self.state),
            right("age", seconds(self.age_s)),
            right("queued", grouped(self.queued)),
        ]
    }
}

impl Row for ConntrackRow {
    const NONE: &'static str = "no connections";

    fn key(&self) -> String {
        format!("{} {} {}", self.protocol, self.src, self.dst)
    }

    fn cells(&self, _: Since<'_, Self>) -> Vec<Cell> {
        let nat = match (self.snat, self.dnat) {
            (true, true) => "snat dnat",
            (true, false) => "snat",
            (false, true) => "dnat",
            (false, false) => "-",
        };
        vec![
            left("proto", &self.protocol),
            left("state", &self.state),
            left("src", self.src.to_string()),
            left("dst", self.dst.to_string()),
            left("reply src", self.reply_src.to_string()),
            left("reply dst", self.reply_dst.to_string()),
            left("nat", nat),
            right("age", seconds(self.age_s.into())),
            right("expires", seconds(self.expires_s.into())),
        ]
    }
}

impl Row for NatAddressRow {
    const NONE: &'static str = "no sources are hidden";

    fn key(&self) -> String {
        format!("{} {}", self.dev, self.address)
    }

    fn cells(&self, _: Since<'_, Self>) -> Vec<Cell> {
        vec![
            left("dev", &self.dev),
            left("address", self.address.to_string()),
            right("tcp ports", grouped(self.tcp.into())),
            right("udp ports", grouped(self.udp.into())),
            right("icmp ids", grouped(self.icmp.into())),
        ]
    }
}

/// What NAT has: totals, then its addresses.
pub(crate) fn nat(now: &NatStats, before: Option<(&NatStats, f64)>) -> String {
    if now.connections_max == 0 {
        return "no NAT: the configuration has no [nat]\n".into();
    }
    let since = before.map(|(then, seconds)| (Some(then), seconds));
    let count = |field: fn(&NatStats) -> u64| counter(now, since, field);
    let of = format!("{} of {}", grouped(now.connections), grouped(now.connections_max));
    let totals = format!(
        "connections {of}, made {}, expired {}, ended {}, dropped early {}, no room for {}\n\
         hosts {}, the most of one {}, over its limit {}\n\
         mappings {}, no port for {}; {} of memory\n\n",
        count(|s| s.created),
        count(|s| s.expired),
        count(|s| s.ended),
        count(|s| s.early_drop),
        count(|s| s.full),
        grouped(now.hosts),
        grouped(now.most_of_a_host),
        count(|s| s.connlimit),
        grouped(now.mappings),
        count(|s| s.ports_exhausted),
        bytes(now.bytes),
    );
    totals + &table(&now.addresses, None)
}

impl Row for RuleRow {
    const NONE: &'static str = "no rules: the configuration has no [[rule]], and no policy but \"allow\"";

    fn key(&self) -> String {
        format!("{:?} {:?}", self.number, self.hooks)
    }

    fn cells(&self, since: Since<'_, Self>) -> Vec<Cell> {
        vec![
            right("rule", self.number.map_or("-".into(), |number| number.to_string())),
            left("name", self.name.as_deref().unwrap_or("-")),
            left("hook", self.hooks.join(",")),
            left("matches", &self.rule),
            left("action", &self.action),
            right("packets", counter(self, since, |row| row.packets)),
            right("bytes", volume(self, since, |row| row.bytes)),
        ]
    }
}

impl Row for RouteRow {
    const NONE: &'static str = "no routes: no device is open";

    fn key(&self) -> String {
        self.prefix.clone()
    }

    fn cells(&self, _: Since<'_, Self>) -> Vec<Cell> {
        vec![
            left("prefix", &self.prefix),
            left("kind", &self.kind),
            left("via", or_dash(self.via.iter().chain(self.hops.iter().flat_map(|hop| &hop.via)))),
            left("dev", or_dash(self.dev.iter().chain(self.hops.iter().map(|hop| &hop.dev)))),
            right("metric", self.metric.to_string()),
            left("source", &self.source),
            left("used", if self.used { "yes" } else { "no" }),
        ]
    }
}

/// All of them, with commas between; `-` for none.
fn or_dash(all: impl Iterator<Item = impl ToString>) -> String {
    let all: Vec<String> = all.map(|one| one.to_string()).collect();
    if all.is_empty() { "-".into() } else { all.join(",") }
}

impl Row for QdiscRow {
    const NONE: &'static str = "no devices";

    fn key(&self) -> String {
        // Another kind counts from 0 again.
        format!("{} {:?} {}", self.dev, self.queue, self.kind)
    }

    fn cells(&self, since: Since<'_, Self>) -> Vec<Cell> {
        let count = |field: fn(&Self) -> u64| counter(self, since, field);
        let of_tx = |field: fn(&TxRow) -> u64| match &self.tx {
            Some(_) => counter(self, since, |row| row.tx.as_ref().map_or(0, field)),
            None => "-".into(),
        };
        let ring = self
            .tx
            .as_ref()
            .map_or("-".into(), |tx| format!("{} of {}", bytes(tx.inflight), bytes(tx.limit)));
        vec![
            left("dev", &self.dev),
            left("parent", qdisc::parent(self)),
            left("qdisc", qdisc::spec(self)),
            right("sent", count(|q| q.packets)),
            right("bytes", volume(self, since, |q| q.bytes)),
            right("dropped", count(|q| q.drops)),
            right("overlimits", count(|q| q.overlimits)),
            right("requeues", count(|q| q.requeues)),
            right("queued", grouped(self.qlen)),
            right("backlog", bytes(self.backlog)),
            right("ring", ring),
            right("owned", of_tx(|tx| tx.owned)),
            right("handed over", of_tx(|tx| tx.handed_over)),
            right("held back", of_tx(|tx| tx.held_back)),
        ]
    }
}

impl Row for FilterRow {
    const NONE: &'static str = "no filters; `softnet filter --help` says how to add one";

    fn key(&self) -> String {
        format!("{} {}", self.dev, self.parent.name())
    }

    fn cells(&self, since: Since<'_, Self>) -> Vec<Cell> {
        let count = |field: fn(&Self) -> u64| counter(self, since, field);
        vec![
            left("dev", &self.dev),
            left("parent", self.parent.name()),
            left("match", &self.kind),
            left("action", format!("{} {}", self.mirred_action.name(), self.direction.name())),
            left("to", &self.to_dev),
            right("packets", count(|f| f.packets)),
            right("bytes", volume(self, since, |f| f.bytes)),
            right("dropped", count(|f| f.drops)),
            right("overlimits", count(|f| f.overlimits)),
        ]
    }
}

impl Row for SocketRow {
    const NONE: &'static str = "no sockets";

    fn key(&self) -> String {
        format!("{} {} {:?}", self.protocol, self.local, self.peer)
    }

    fn cells(&self, since: Since<'_, Self>) -> Vec<Cell> {
        let napi = match (&self.napi, self.napi_id) {
            (_, 0) => "-".into(),
            (Some(name), id) => format!("{name} ({id})"),
            (None, id) => id.to_string(),
        };
        let thread = match (&self.thread, self.tid) {
            (_, 0) => "-".into(),
            (Some(name), tid) => format!("{name} ({tid})"),
            (None, tid) => format!("({tid})"),
        };
        vec![
            left("proto", &self.protocol),
            left("local", &self.local),
            left("peer", self.peer.as_deref().unwrap_or("*")),
            right("queued", grouped(self.queued)),
            right("of", grouped(self.limit)),
            right("drops", counter(self, since, |row| row.drops)),
            left("napi", &napi),
            left("thread", &thread),
        ]
    }
}

impl Row for SteeringRow {
    const NONE: &'static str = "no RX queues";

    fn key(&self) -> String {
        self.id.to_string()
    }

    fn cells(&self, since: Since<'_, Self>) -> Vec<Cell> {
        let sum =
            |field: fn(&SteeredRow) -> u64| move |row: &Self| row.workers.iter().map(field).sum::<u64>();
        let count = |field| counter(self, since, sum(field));
        let all = sum(|to| to.packets)(self).max(1);
        let share = |to: &SteeredRow| format!("{} {} %", to.worker, (to.packets * 100 + all / 2) / all);
        let shares: Vec<String> = self.workers.iter().map(share).collect();
        vec![
            left("napi", &self.name),
            left("mode", &self.mode),
            right("packets", count(|to| to.packets)),
            right("wakeups", count(|to| to.wakeups)),
            right("dropped", count(|to| to.dropped + to.no_memory)),
            right("limited", count(|to| to.flow_limited)),
            right("held", count(|to| to.held)),
            right("moves", counter(self, since, |row| row.moves)),
            right("filters", self.filters.as_ref().map_or("-".into(), |filters| grouped(filters.now))),
            right("backlog", grouped(sum(|to| to.backlog)(self))),
            left("workers", if shares.is_empty() { "-".into() } else { shares.join(", ") }),
        ]
    }

    fn note(&self) -> Option<String> {
        let mut notes = Vec::new();
        if let (Some(why), Some(otherwise)) = (&self.why, &self.otherwise) {
            let wake = match self.wake_ns {
                // Not measured: there is nothing to choose.
                0 => String::new(),
                ns => format!(" (to wake a worker costs {:.1} µs here)", ns as f64 / 1e3),
            };
            notes.push(format!("{}: {why}; {otherwise}{wake}", self.name));
        }
        notes.extend(self.warning.as_ref().map(|warning| format!("{}: warning: {warning}", self.name)));
        (!notes.is_empty()).then(|| notes.join("\n"))
    }
}

impl Row for DropRow {
    const NONE: &'static str = "nothing was dropped";

    fn key(&self) -> String {
        format!("{} {}", self.dev, self.reason)
    }

    fn cells(&self, since: Since<'_, Self>) -> Vec<Cell> {
        let mut cells = vec![left("dev", &self.dev), left("reason", &self.reason)];
        cells.push(right("packets", grouped(self.packets)));
        if let Some((then, s)) = since {
            // A reason that had no row had dropped nothing.
            let before = then.map_or(0, |then| then.packets);
            cells.push(right("rate", rate(self.packets.saturating_sub(before) as f64 / s)));
        }
        cells.push(left("meaning", &self.help));
        cells
    }
}
