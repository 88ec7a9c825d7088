//! `softnet demo`: real kernel traffic through softnet, in namespaces of its own, every payload checked.
//!
//! One process, threads only, namespaces held by descriptor: whatever ends it, nothing stays behind.

mod flow;
mod kv;
mod live;
mod own;
mod payload;
mod summary;
#[cfg(test)]
mod tests;
pub(crate) mod topology;
mod traffic;

use std::io::IsTerminal;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::{Signal, set_parent_process_death_signal};
use softnet::control::show::{DropRow, Stats, Table, WorkerRow};
use softnet_dev::process::Signals;
use softnet_dev::userns;
use udp_kv::{SoftnetSockets, Waiting};

use crate::Failure;
use crate::instance::{self, Instance, Running};
use crate::text::print;
use flow::{Flows, Ip};
use kv::{Kv, KvRow};
use live::Live;
use own::{Listen, Own};
use summary::Summary;
use topology::{Taken, Topology};
use traffic::Traffic;

/// See softnet forward ping, UDP and TCP between kernel endpoints, and serve, over IPv4 and IPv6, every payload verified.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Demo {
    /// How long to send, in seconds.
    #[arg(long, value_name = "SECS", default_value = "10", value_parser = duration)]
    duration: Duration,
    /// Print nothing but one JSON object at the end.
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
client ──── softnet ──── server

Three anonymous network namespaces, joined by veth pairs. Kernel sockets in the outer ones exchange ping, UDP \
requests and responses of 1 to 1400 bytes, and TCP streams both ways, over IPv4 and over IPv6; softnet routes between them over AF_XDP. Both \
ends check every byte. Meanwhile the router serves: udp-kv, on softnet's UDP sockets and an epoll set, is asked by the \
client in memcached's protocol (kv, kv6), which compares every answer; and TCP streams both ways end at the router \
itself, on softnet's TCP sockets (own, own6). Requests and pings that get lost are sent again and \
counted as retries.

The machine's own network is not touched, and nothing stays behind. Without root, the demo runs in a user \
namespace, if the machine allows that, and softnet takes its interfaces by packet sockets.

Examples:
  softnet demo                          ten seconds, with a live table on a terminal
  softnet demo --duration 60
  softnet demo --duration 3 --json | jq .ok
  softnet demo --json | jq .router.kv   what the server's thread used, and which thread polled for it

Exit codes: 0 every payload arrived intact and every answer was right, 1 not so, or softnet could not start, 2 wrong usage.";

fn duration(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|s| (0.5..=86_400.0).contains(s));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| "expected seconds, from 0.5 to 86400".into())
}

/// How progress is told.
#[derive(Clone, Copy, PartialEq)]
enum Progress {
    /// A table that is drawn again and again.
    Table,
    /// A line each second.
    Lines,
    /// Not at all.
    Quiet,
}

/// Runs the command.
pub(crate) fn demo(args: &Demo) -> Result<(), Failure> {
    let taken = privileges()?;
    set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|error| Failure::of("tying the demo to its parent", error))?;
    let signals = Signals::new().map_err(|error| Failure::of("waiting for signals", error))?;
    let progress = match args.json {
        true => Progress::Quiet,
        false if std::io::stdout().is_terminal() => Progress::Table,
        false => Progress::Lines,
    };
    if taken == Taken::Packet && progress != Progress::Quiet {
        print(WITHOUT_ROOT)?;
    }
    let topology = Topology::build(taken).map_err(|error| Failure::of("making the demo's network", error))?;
    let config = topology::config(taken)?;
    let router = topology
        .router
        .run(|| instance::start(config))
        .map_err(|error| Failure::of("entering the router's namespace", error))?
        .map_err(|error| Failure::of("starting softnet", error))?;
    let summary = serve(&router).and_then(|served| {
        let interrupted = |_: &Flows, wait| signals.wait(Some(wait)).is_some();
        exchange(&topology, &*router, served, args.duration, progress, interrupted)
    });
    router.stop();
    let mut summary = summary?;
    summary.taken = taken;
    print(&if args.json { summary.json()? } else { summary.text() })?;
    if summary.ok { Ok(()) } else { Err(Failure::Told) }
}

const WITHOUT_ROOT: &str = "Without root: in a user namespace, by packet sockets instead of AF_XDP.\n\n";

/// Sees to it that the process may have networks of its own, if need be in a user namespace. Before
/// there are other threads.
fn privileges() -> Result<Taken, Failure> {
    if !userns::may_make_networks() {
        userns::enter().map_err(|error| {
            Failure::Run(format!("the demo wants root or, without it, a user namespace: {error}"))
        })?;
    }
    Ok(if userns::is_inside() { Taken::Packet } else { Taken::Xdp })
}

/// What the router serves: requests, and TCP streams of IPv4 and of IPv6.
type Served = (Kv, [Box<dyn Listen>; 2]);

/// The router's own servers, on softnet's sockets.
fn serve(router: &Running) -> Result<Served, Failure> {
    let stopped = || std::io::Error::from(std::io::ErrorKind::NetworkDown);
    let listen = |ip| -> std::io::Result<Box<dyn Listen>> {
        Ok(Box::new(Own::bind(&router.handle().ok_or_else(stopped)?, ip)?))
    };
    let own = || Ok::<_, std::io::Error>([listen(Ip::V4)?, listen(Ip::V6)?]);
    let own = own().map_err(|error| Failure::of("listening on softnet", error))?;
    let kv = Kv::start(|addresses, stop| {
        let on = router.handle().ok_or_else(stopped)?;
        SoftnetSockets::bound(&on, addresses, Waiting::default(), stop)
    });
    Ok((kv?, own))
}

/// Exchanges traffic for `duration`, or until `interrupted` (which waits for the time it is given) says so. Then stops `kv`.
fn exchange(
    topology: &Topology,
    router: &dyn Instance,
    (kv, own): Served,
    duration: Duration,
    progress: Progress,
    mut interrupted: impl FnMut(&Flows, Duration) -> bool,
) -> Result<Summary, Failure> {
    let flows = Arc::new(Flows::new());
    let begin = Instant::now();
    let traffic = Traffic::start(topology, &flows, own)
        .map_err(|error| Failure::of("starting the endpoints", error))?;
    let tick = Duration::from_millis(if progress == Progress::Table { 250 } else { 1000 });
    let mut live = Live::new(progress, duration);
    let mut told = Ok(());
    loop {
        let left = duration.saturating_sub(begin.elapsed());
        // The output is not read any more: the endpoints still must end in order.
        if left.is_zero() || told.is_err() || interrupted(&flows, left.min(tick)) {
            break;
        }
        told = observe(router, &kv).and_then(|router| live.tell(&flows, &router, begin.elapsed()));
    }
    let sent_for = begin.elapsed();
    traffic.finish();
    told?;
    let router = observe(router, &kv)?;
    kv.stop()?;
    Ok(Summary::new(&flows, router, sent_for))
}

/// What the router says of itself.
#[derive(Clone, Debug, Default, serde::Serialize)]
struct Router {
    stats: Stats,
    workers: Vec<WorkerRow>,
    drops: Vec<DropRow>,
    kv: KvRow,
}

fn observe(router: &dyn Instance, kv: &Kv) -> Result<Router, Failure> {
    let failed = |error| Failure::of("asking softnet", error);
    Ok(Router {
        stats: instance::ask(router, Table::Stats).map_err(failed)?,
        workers: instance::ask(router, Table::Worker).map_err(failed)?,
        drops: instance::ask(router, Table::Drops).map_err(failed)?,
        kv: kv.observe(router).map_err(failed)?,
    })
}
