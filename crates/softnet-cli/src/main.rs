//! The `softnet` program.
//!
//! Exit codes: 0 done; 1 it failed while it ran; 2 the command line or the configuration is wrong. Every
//! message says what to do next.
#![deny(unsafe_code)]

mod addr;
mod bench;
mod capture;
mod connected;
mod demo;
mod filter;
mod generate;
mod help;
mod instance;
mod link;
mod live;
mod load;
mod neigh;
mod ntuple;
mod qdisc;
mod reload;
mod route;
mod rss;
mod run;
mod set;
mod show;
mod supervisor;
mod text;
mod top;
mod words;

use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

/// A user-space network stack for Linux: polls when busy, sleeps when idle.
#[derive(Parser)]
#[command(name = "softnet", version, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  softnet demo                     see it forward real traffic, here and now
  softnet run router.toml --check  is the configuration right?
  softnet run router.toml          route between its interfaces, until Ctrl-C
  softnet show napi                which thread polls which queue, and why
  softnet top                      the same, live, with what it costs
  softnet show drops               what was lost, and why
  softnet set dev eth1 threaded=1  poll each queue by a thread of its own
  softnet set rss eth1 equal 4     spread flows over RX queues, as `ethtool -X`
  softnet ntuple --help            which packets go where, as `ethtool -N`
  softnet qdisc replace dev eth1 root tbf rate 10mbit burst 15kb latency 50ms
                                   send no more than that, as `tc` has it
  softnet filter --help            redirect or mirror what passes a device
  softnet route --help             routes, as `ip route` has them
  softnet neigh --help             neighbours, as `ip neigh` has them
  softnet addr --help              addresses, as `ip addr` has them
  softnet link --help              links and MTUs, as `ip link` has them
  softnet reload                   read the configuration again, and apply it
  softnet capture eth1 udp port 53 packets that pass, as tcpdump shows them
  softnet trace eth1 -n 5          what each stage does with the next packets
  softnet bench forward            how fast this machine forwards
  softnet load 10.0.0.2:11211      how fast a memcached server answers over UDP

run needs root, and so do the benches that use interfaces.
show, top, set, qdisc, filter, ntuple, route, neigh, addr, link and reload need
the user that runs the instance.
`softnet COMMAND --help` says more.";

#[derive(Subcommand)]
enum Command {
    Run(run::Run),
    Show(show::Show),
    Top(top::Top),
    Set(set::SetArgs),
    Qdisc(qdisc::Qdisc),
    Filter(filter::FilterArgs),
    Ntuple(ntuple::NtupleArgs),
    Route(route::RouteArgs),
    Neigh(neigh::NeighArgs),
    Addr(addr::AddrArgs),
    Link(link::LinkArgs),
    Reload(reload::Reload),
    Capture(capture::CaptureArgs),
    Trace(capture::trace::TraceArgs),
    Demo(demo::Demo),
    #[command(after_help = load::HELP)]
    Load(load::LoadArgs),
    /// Measure softnet on this machine
    #[command(subcommand)]
    Bench(bench::Bench),
    #[command(hide = true)]
    Generate(generate::Generate),
}

/// Why a command ends early.
#[derive(Debug)]
enum Failure {
    /// What was asked for makes no sense, or the configuration is wrong: exit code 2.
    Usage(String),
    /// It could not be done: exit code 1.
    Run(String),
    /// It was done, and what it found has been told: exit code 1.
    Told,
    /// The reader of our output is gone (`softnet show dev | head -1`): nothing is wrong.
    PipeClosed,
}

impl Failure {
    /// A failure while doing `what`.
    fn of(what: &str, error: impl std::fmt::Display) -> Failure {
        Failure::Run(format!("{what}: {error}"))
    }
}

fn main() -> ExitCode {
    let matches = help::paged(Cli::command()).get_matches();
    let command = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit()).command;
    let result = match command {
        Command::Run(args) => run::run(&args),
        Command::Show(args) => show::show(&args),
        Command::Top(args) => top::top(&args),
        Command::Set(args) => set::set(&args),
        Command::Qdisc(args) => qdisc::qdisc(&args),
        Command::Filter(args) => filter::filter(&args),
        Command::Ntuple(args) => ntuple::ntuple(&args),
        Command::Route(args) => route::route(&args),
        Command::Neigh(args) => neigh::neigh(&args),
        Command::Addr(args) => addr::addr(&args),
        Command::Link(args) => link::link(&args),
        Command::Reload(args) => reload::reload(&args),
        Command::Capture(args) => capture::capture(&args),
        Command::Trace(args) => capture::trace::trace(&args),
        Command::Demo(args) => demo::demo(&args),
        Command::Load(args) => load::load(&args),
        Command::Bench(bench) => bench.run(),
        Command::Generate(args) => generate::generate(&args),
    };
    let (code, message) = match result {
        Ok(()) | Err(Failure::PipeClosed) => return ExitCode::SUCCESS,
        Err(Failure::Told) => return ExitCode::from(1),
        Err(Failure::Run(message)) => (1, message),
        Err(Failure::Usage(message)) => (2, message),
    };
    // One `error:` and the rest below it, also when a configuration has several.
    eprintln!("error: {message}");
    ExitCode::from(code)
}
