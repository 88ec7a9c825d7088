//! `softnet show`: tables of a running instance.

pub(crate) mod rows;

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use softnet::control::{Client, Request};
use softnet::show::{DevRow, DropRow, NapiRow, NeighRow, RouteRow, Stats, Table, WorkerRow};

use crate::Failure;
use crate::text::print;
use rows::Row;

/// Show what a running instance does.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Show {
    /// What to show.
    #[arg(value_enum)]
    table: What,
    /// The instance: its name (`stack.name`), or the path of its control socket. Without it, the only one running.
    #[arg(long)]
    name: Option<String>,
    /// Print JSON: raw numbers, units in the names. With --watch, one line each time.
    #[arg(long)]
    json: bool,
    /// Show it again every SECS seconds (1 if left out), counters as rates.
    #[arg(long, value_name = "SECS", num_args = 0..=1, default_missing_value = "1", value_parser = interval)]
    watch: Option<Duration>,
}

const EXAMPLES: &str = "\
Examples:
  softnet show dev                    packets, bytes and drops of each device
  softnet show napi --watch           polls and packets per poll of each queue, as rates
  softnet show worker --watch 0.2     who is awake, and what woke it
  softnet show drops --name edge      what the instance \"edge\" lost, and why
  softnet show stats --json | jq .dropped";

#[derive(Clone, Copy, clap::ValueEnum)]
enum What {
    /// Devices: link, addresses, traffic.
    Dev,
    /// NAPI instances: who polls which queue, and what it brings.
    Napi,
    /// Workers and the other threads that poll: CPU use, sleeps, and what woke them.
    Worker,
    /// Neighbours: IP and MAC addresses on the links.
    Neigh,
    /// Routes: connected and configured.
    Route,
    /// Packets that were dropped, by device and reason.
    Drops,
    /// Totals: every packet is somewhere.
    Stats,
}

fn interval(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|s| (0.1..=3600.0).contains(s));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| "expected seconds, from 0.1 to 3600".into())
}

/// Runs the command.
pub(crate) fn show(args: &Show) -> Result<(), Failure> {
    let client = Client::new(args.name.as_deref()).map_err(|error| Failure::Run(error.to_string()))?;
    match args.table {
        What::Dev => list::<DevRow>(args, &client, Table::Dev),
        What::Napi => list::<NapiRow>(args, &client, Table::Napi),
        What::Worker => list::<WorkerRow>(args, &client, Table::Worker),
        What::Neigh => list::<NeighRow>(args, &client, Table::Neigh),
        What::Route => list::<RouteRow>(args, &client, Table::Route),
        What::Drops => list::<DropRow>(args, &client, Table::Drops),
        What::Stats => {
            repeat(args, || ask(&client, Table::Stats), |now: &Stats, before| rows::stats(now, before))
        }
    }
}

fn list<R: Row>(args: &Show, client: &Client, table: Table) -> Result<(), Failure> {
    repeat(
        args,
        || ask(client, table),
        |now: &Vec<R>, before| rows::table(now, before.map(|(b, s)| (&b[..], s))),
    )
}

fn ask<T: serde::de::DeserializeOwned>(client: &Client, table: Table) -> Result<T, Failure> {
    client.ask(&Request::Show(table)).map_err(|error| Failure::Run(error.to_string()))
}

/// Asks and prints, once or again and again. `text` gets the answer before, if any, and how many seconds ago it was.
fn repeat<T: serde::Serialize>(
    args: &Show,
    mut ask: impl FnMut() -> Result<T, Failure>,
    text: impl Fn(&T, Option<(&T, f64)>) -> String,
) -> Result<(), Failure> {
    let mut before: Option<(T, Instant)> = None;
    loop {
        let (now, at) = (ask()?, Instant::now());
        let since = before.as_ref().map(|(b, then)| (b, at.duration_since(*then).as_secs_f64()));
        match (args.json, args.watch) {
            (true, None) => print(&format!("{}\n", json(serde_json::to_string_pretty(&now))?))?,
            (true, Some(_)) => print(&format!("{}\n", json(serde_json::to_string(&now))?))?,
            (false, None) => print(&text(&now, None))?,
            // Home, then clear what was there: nothing flickers.
            (false, Some(_)) => print(&format!("\x1b[H\x1b[J{}\n{}", clock(), text(&now, since)))?,
        }
        let Some(interval) = args.watch else { return Ok(()) };
        before = Some((now, at));
        std::thread::sleep(interval);
    }
}

fn json(text: serde_json::Result<String>) -> Result<String, Failure> {
    text.map_err(|error| Failure::of("writing JSON", error))
}

/// Time of day in UTC.
fn clock() -> String {
    let s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    format!(
        "{:02}:{:02}:{:02} UTC; counters are rates from the second time on\n",
        s / 3600 % 24,
        s / 60 % 60,
        s % 60
    )
}
