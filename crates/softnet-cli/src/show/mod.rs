//! `softnet show`: tables of a running instance.

pub(crate) mod napi;
pub(crate) mod rows;
mod skb;
pub(crate) mod tcp;

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use softnet::control::show::{
    ConntrackRow, DevRow, DropRow, FilterRow, NapiRow, NatStats, NeighRow, NtupleRow, QdiscRow, RouteRow,
    RssRow, RuleRow, SkbStats, SocketRow, Stats, SteeringRow, Table, TcpStats, WorkerRow,
};
use softnet::control::{Client, Request, RouteLookup};

use crate::Failure;
use crate::route;
use crate::text::print;
use rows::Row;

/// Show what a running instance does.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Show {
    /// What to show.
    #[arg(value_parser = table())]
    table: Table,
    /// With `napi`: only this instance, in full: by its id or name, or those of a device by its name. With `route`: the
    /// route of this address. With `dev` and `neigh`: this device alone.
    #[arg(value_name = "ID")]
    id: Option<String>,
    /// The instance: its name (`stack.name`), or the path of its control socket. Without it, the only one running.
    #[arg(long)]
    name: Option<String>,
    /// Print JSON: raw numbers, units in the names. With --watch, one line each time.
    #[arg(long)]
    json: bool,
    /// Show it again every SECS seconds (1 if left out), counters as rates.
    #[arg(long, value_name = "SECS", num_args = 0..=1, default_missing_value = "1", value_parser = interval)]
    watch: Option<Duration>,
    #[command(flatten)]
    tcp: tcp::TcpArgs,
}

const EXAMPLES: &str = "\
Examples:
  softnet show dev                    packets, bytes and drops of each device
  softnet show napi                   which thread polls which queue, what it brings, why it is awake or asleep
  softnet show napi eth1-0 --watch    all about one queue, counters as rates
  softnet show neigh eth1             the neighbours on one device (as `show dev eth1`)
  softnet show route 10.9.1.1         the route that packets to it follow, and what is known of the neighbour
  softnet show worker --watch 0.2     which worker is awake, and what woke it
  softnet show qdisc                  what waits before each TX queue; `softnet qdisc` says it as tc does, and more of it
  softnet show socket                 what is bound and connected where, what waits in each (also: `softnet show ss`)
  softnet show tcp --info             listeners and connections, with what `ss -ti` says of them
  softnet show tcp --listening        listeners: RECV-Q connections wait to be accepted, SEND-Q may
  softnet show tcp --state established --port 80 --json | jq '.sockets[].info.rtt_us'
  softnet show tcp --counters --watch what nstat counts, as rates
  softnet show steering               which workers go on with what each RX queue brings
  softnet show rss                    how devices spread flows over their queues; with --json the tables whole
  softnet show ntuple --watch         packets that filters of devices take, as rates
  softnet show conntrack              connections that are tracked, what is translated, and when they expire
  softnet show nat                    how many there are, and ports in use
  softnet show rule --watch           filter rules, and packets that each decides, as rates
  softnet show skb                    packet memory: what is in use, cached, on its way home, and what ran out
  softnet show drops --name edge      what the instance \"edge\" lost, and why
  softnet show stats --json | jq .dropped

In `show napi`, IRQ, DEFER, SUSP, POLL and APP are shares of time: waited for its doorbell; doorbell masked, the timer polls
next; suspended by an application that polls next; polled by its context; polled by an application. EFFECTIVE is what
gro_flush_timeout takes here, on average.

In `show tcp`, RECV-Q are bytes that the application has not read, SEND-Q bytes that the peer has not acknowledged. Of --info
rto, rtt (smoothed/mean deviation), ato and minrtt are in ms; lastsnd, lastrcv and lastack ms ago; cwnd, ssthresh,
unacked, retrans (now/ever), lost and sacked segments; rates bits per second.";

impl Show {
    fn output(&self) -> Output {
        Output { json: self.json, watch: self.watch, then: "counters are rates" }
    }
}

/// Reads the name of a table.
fn table() -> impl TypedValueParser<Value = Table> {
    // What the kernel's sockets are shown by.
    let ss = |table: Table| (table == Table::Socket).then_some("ss");
    let named = move |table: Table| PossibleValue::new(table.name()).help(table.help()).aliases(ss(table));
    PossibleValuesParser::new(Table::ALL.map(named)).try_map(move |name| {
        Table::ALL
            .into_iter()
            .find(|table| table.name() == name || ss(*table) == Some(&*name))
            .ok_or_else(|| format!("no table {name:?}"))
    })
}

/// Reads an interval.
pub(crate) fn interval(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|s| (0.1..=3600.0).contains(s));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| "expected seconds, from 0.1 to 3600".into())
}

/// Runs the command.
pub(crate) fn show(args: &Show) -> Result<(), Failure> {
    let takes_id = matches!(args.table, Table::Napi | Table::Route | Table::Dev | Table::Neigh);
    if args.id.is_some() && !takes_id {
        return Err(Failure::Usage(format!(
            "`show {}` shows all there is; only `show napi`, `dev`, `neigh` and `route` take an ID",
            args.table.name()
        )));
    }
    if args.tcp.is_any() && args.table != Table::Tcp {
        return Err(Failure::Usage(format!(
            "--info, --listening, --state, --port and --counters are for `show tcp`, not `show {}`",
            args.table.name()
        )));
    }
    let client = Client::new(args.name.as_deref()).map_err(|error| Failure::Run(error.to_string()))?;
    match args.table {
        Table::Dev => of_device(args, &client, |row: &DevRow| &row.name),
        Table::Napi => show_napi(args, &client),
        Table::Worker => list::<WorkerRow>(args, &client),
        Table::Neigh => of_device(args, &client, |row: &NeighRow| &row.dev),
        Table::Route => match &args.id {
            None => list::<RouteRow>(args, &client),
            Some(addr) => show_route(args, &client, addr),
        },
        Table::Drops => list::<DropRow>(args, &client),
        Table::Qdisc => list::<QdiscRow>(args, &client),
        Table::Filter => list::<FilterRow>(args, &client),
        Table::Socket => list::<SocketRow>(args, &client),
        Table::Tcp => show_tcp(args, &client),
        Table::Steering => list::<SteeringRow>(args, &client),
        Table::Rss => list::<RssRow>(args, &client),
        Table::Ntuple => list::<NtupleRow>(args, &client),
        Table::Conntrack => list::<ConntrackRow>(args, &client),
        Table::Nat => repeat(
            &args.output(),
            || ask(&client, Table::Nat),
            |now: &NatStats, before| rows::nat(now, before),
        ),
        Table::Rule => list::<RuleRow>(args, &client),
        Table::Skb => repeat(
            &args.output(),
            || ask(&client, Table::Skb),
            |now: &SkbStats, before| skb::tables(now, before),
        ),
        Table::Stats => repeat(
            &args.output(),
            || ask(&client, Table::Stats),
            |now: &Stats, before| rows::stats(now, before),
        ),
    }
}

/// The rows of all devices, or of the one that was asked for.
fn of_device<R: Row>(args: &Show, client: &Client, dev: impl Fn(&R) -> &str) -> Result<(), Failure> {
    let Some(name) = &args.id else { return list::<R>(args, client) };
    let devs: Vec<DevRow> = ask(client, Table::Dev)?;
    if !devs.iter().any(|row| row.name == *name) {
        let there: Vec<&str> = devs.iter().map(|row| &row.name[..]).collect();
        return Err(Failure::Run(format!("no device {name:?}; there are: {}", there.join(", "))));
    }
    let those = || {
        let mut rows: Vec<R> = ask(client, args.table)?;
        rows.retain(|row| dev(row) == name);
        Ok(rows)
    };
    repeat(&args.output(), those, |now: &Vec<R>, before| rows::table(now, before.map(|(b, s)| (&b[..], s))))
}

/// Which way packets to an address go.
fn show_route(args: &Show, client: &Client, addr: &str) -> Result<(), Failure> {
    let addr = addr.parse().map_err(|_| {
        Failure::Usage(format!("expected an IP address behind `show route`, to look up, found {addr:?}"))
    })?;
    let found = || client.ask(&Request::Lookup(addr)).map_err(|error| Failure::Run(error.to_string()));
    repeat(&args.output(), found, |now: &RouteLookup, _| route::text(now))
}

/// All instances, or the one that was asked for.
fn show_napi(args: &Show, client: &Client) -> Result<(), Failure> {
    let Some(id) = &args.id else {
        let text = |now: &Vec<NapiRow>, before: Option<(&Vec<NapiRow>, f64)>| {
            napi::tables(now, before.map(|(rows, seconds)| (&rows[..], seconds)))
        };
        return repeat(&args.output(), || ask(client, Table::Napi), text);
    };
    let those = || {
        let (those, others): (Vec<NapiRow>, Vec<NapiRow>) = ask::<Vec<NapiRow>>(client, Table::Napi)?
            .into_iter()
            .partition(|row| row.id.to_string() == *id || row.name == *id || row.dev == *id);
        if !those.is_empty() {
            return Ok(those);
        }
        let there: Vec<String> = others.iter().map(|row| format!("{} ({})", row.id, row.name)).collect();
        let there = if there.is_empty() {
            "there is none".into()
        } else {
            format!("there are: {}", there.join(", "))
        };
        Err(Failure::Run(format!("no NAPI instance {id:?}; {there}")))
    };
    repeat(&args.output(), those, |now, before| {
        let since = |row: &NapiRow| before.map(|(rows, s)| (rows.iter().find(|old| old.id == row.id), s));
        now.iter().map(|row| napi::block(row, since(row))).collect::<Vec<_>>().join("\n")
    })
}

/// Listeners and connections, or counters.
fn show_tcp(args: &Show, client: &Client) -> Result<(), Failure> {
    let stats = || Ok::<TcpStats, Failure>(args.tcp.filter(ask(client, Table::Tcp)?));
    match args.tcp.counters {
        false => repeat(&args.output(), stats, |now: &TcpStats, _| args.tcp.text(now)),
        true if args.json => repeat(&args.output(), || Ok(stats()?.counters), |_, _| String::new()),
        true => repeat(&args.output(), stats, |now: &TcpStats, before| tcp::counters(now, before)),
    }
}

fn list<R: Row>(args: &Show, client: &Client) -> Result<(), Failure> {
    repeat(
        &args.output(),
        || ask(client, args.table),
        |now: &Vec<R>, before| rows::table(now, before.map(|(b, s)| (&b[..], s))),
    )
}

/// Asks for a table.
pub(crate) fn ask<T: serde::de::DeserializeOwned>(client: &Client, table: Table) -> Result<T, Failure> {
    client.ask(&Request::Show(table)).map_err(|error| Failure::Run(error.to_string()))
}

/// How an answer is printed.
pub(crate) struct Output {
    /// As JSON.
    pub(crate) json: bool,
    /// Again and again, so far apart.
    pub(crate) watch: Option<Duration>,
    /// What is different from the second time on.
    pub(crate) then: &'static str,
}

/// Asks and prints, once or again and again. `text` gets the answer before, if any, and how many seconds ago it was.
pub(crate) fn repeat<T: serde::Serialize>(
    output: &Output,
    mut ask: impl FnMut() -> Result<T, Failure>,
    text: impl Fn(&T, Option<(&T, f64)>) -> String,
) -> Result<(), Failure> {
    let mut before: Option<(T, Instant)> = None;
    loop {
        let (now, at) = (ask()?, Instant::now());
        let since = before.as_ref().map(|(b, then)| (b, at.duration_since(*then).as_secs_f64()));
        match (output.json, output.watch) {
            (true, None) => print(&format!("{}\n", json(serde_json::to_string_pretty(&now))?))?,
            (true, Some(_)) => print(&format!("{}\n", json(serde_json::to_string(&now))?))?,
            (false, None) => print(&text(&now, None))?,
            // Home, then clear what was there: nothing flickers.
            (false, Some(_)) => print(&format!("\x1b[H\x1b[J{}\n{}", clock(output.then), text(&now, since)))?,
        }
        let Some(interval) = output.watch else { return Ok(()) };
        before = Some((now, at));
        std::thread::sleep(interval);
    }
}

pub(crate) fn json(text: serde_json::Result<String>) -> Result<String, Failure> {
    text.map_err(|error| Failure::of("writing JSON", error))
}

/// Time of day in UTC, and what to know about the second time.
fn clock(then: &str) -> String {
    let s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    format!("{:02}:{:02}:{:02} UTC; {then} from the second time on\n", s / 3600 % 24, s / 60 % 60, s % 60)
}
