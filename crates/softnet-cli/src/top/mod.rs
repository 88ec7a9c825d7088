//! `softnet top`: which thread polls which queue, what that costs and brings, and why it is awake or asleep, live.
//!
//! An instance is asked once in an interval; what is shown is the difference of two answers ([`interval`]), drawn by a pure
//! function ([`screen`]) on a terminal ([`live`]), or printed as text or JSON.

mod interval;
mod live;
mod screen;
#[cfg(test)]
mod tests;

use std::io::IsTerminal;
use std::time::Duration;

use softnet::control::Client;

use crate::Failure;
use crate::show::interval as seconds;
use crate::text::print;
use interval::{Interval, Sample};

/// Watch a running instance: CPU use, polls, packets, and why each queue is awake or asleep.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub(crate) struct Top {
    /// The instance: its name (`stack.name`), or the path of its control socket. Without it, the only one running.
    #[arg(long)]
    name: Option<String>,
    /// Seconds between two looks, from 0.1 to 3600.
    #[arg(long, value_name = "SECS", default_value = "1", value_parser = seconds)]
    interval: Duration,
    /// Print one interval as text (or JSON), and exit: what happens anyway if this is no terminal.
    #[arg(long)]
    once: bool,
    /// Print JSON, one object to a line for each interval: `napi` has the rows of `softnet show napi --json`, each with its
    /// figures of the interval.
    #[arg(long)]
    json: bool,
}

const HELP: &str = "\
Keys:
  q, Ctrl-C     quit
  p, space      pause, and go on
  s             sort by the next column: queue, packets, polls, time awake
  up, down      choose a queue (also k, j); all about it is shown below
  ?             help

TIME shows where the interval went, by its letters:
  .  waited for the doorbell                     p  polled by its context
  d  deferred: doorbell masked, timer polls next a  polled by an application
  s  suspended: an application polls next

CPU is of one core. Threads of applications are those that wait for packets of a queue.

Examples:
  softnet top
  softnet top --once --interval 5            one interval of five seconds, as text
  softnet top --json | jq .cpu_percent       what it costs, once a second

Exit codes: 0 quit, 1 there is no such instance, or it stopped.";

/// Runs the command.
pub(crate) fn top(args: &Top) -> Result<(), Failure> {
    let client = Client::new(args.name.as_deref()).map_err(|error| Failure::Run(error.to_string()))?;
    if !args.once && !args.json && std::io::stdout().is_terminal() && std::io::stdin().is_terminal() {
        return live::run(&client, args.interval);
    }
    let mut then = Sample::take(&client).map_err(|error| Failure::Run(error.to_string()))?;
    loop {
        std::thread::sleep(args.interval);
        let now = then.next(&client)?;
        // It was started anew: there is nothing to compare with yet.
        if let Some(interval) = Interval::between(&then, &now) {
            match args.json {
                true => {
                    let line =
                        serde_json::to_string(&interval).map_err(|e| Failure::of("writing JSON", e))?;
                    print(&format!("{line}\n"))?;
                }
                false => print(&interval.text())?,
            }
            if args.once || !args.json {
                return Ok(());
            }
        }
        then = now;
    }
}
