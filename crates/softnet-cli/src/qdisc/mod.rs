//! `softnet qdisc`: the queueing disciplines of a running instance, in `tc`'s words.
//!
//! What is read here is the place, device and parent; the discipline itself is read as the configuration has it.

mod help;
pub(crate) mod print;

use std::time::Duration;

use softnet::control::show::{DevRow, QdiscRow, Table};
use softnet::control::{Action, Client, Request, SetQdisc};
use softnet_core::qdisc::Spec;

use crate::Failure;
use crate::show::{Output, ask, interval, json, repeat};
use crate::text;
use help::{HELP, MORE, USAGE};

/// Show and change the queueing disciplines of a running instance, in tc's words.
#[derive(clap::Args)]
#[command(override_usage = USAGE, after_help = HELP)]
pub(crate) struct Qdisc {
    #[command(subcommand)]
    command: Option<Command>,
    /// Show what they sent, hold and dropped too, as `tc -s` does.
    #[arg(short, long, global = true)]
    statistics: bool,
    /// The instance: its name (`stack.name`), or the path of its control socket. Without it, the only one running.
    #[arg(long, global = true)]
    name: Option<String>,
    /// Print JSON: raw numbers, a row for each discipline.
    #[arg(long, global = true)]
    json: bool,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Show them, all or those of a device; without a command that is what is done
    #[command(override_usage = "softnet qdisc [OPTIONS] show [dev DEV]", after_help = MORE)]
    Show {
        #[arg(hide = true)]
        words: Vec<String>,
        /// Show them again every SECS seconds (1 if left out), with statistics and rates.
        #[arg(long, value_name = "SECS", num_args = 0..=1, default_missing_value = "1", value_parser = interval)]
        watch: Option<Duration>,
    },
    /// Set a discipline where none is set yet
    #[command(override_usage = "softnet qdisc [OPTIONS] add dev DEV [root | parent :N] KIND [PARAMETERS]", after_help = MORE)]
    Add {
        #[arg(hide = true)]
        words: Vec<String>,
    },
    /// Set a discipline, or change the parameters of what is there
    #[command(override_usage = "softnet qdisc [OPTIONS] replace dev DEV [root | parent :N] KIND\n                     [PARAMETERS]", after_help = MORE)]
    Replace {
        #[arg(hide = true)]
        words: Vec<String>,
    },
    /// Go back to the default
    #[command(override_usage = "softnet qdisc [OPTIONS] del dev DEV [root | parent :N]", after_help = MORE)]
    Del {
        #[arg(hide = true)]
        words: Vec<String>,
    },
}

/// What the words before a discipline say.
#[derive(Debug, Default, PartialEq)]
struct Place<'a> {
    dev: Option<&'a str>,
    /// The TX queue under mq; `None`: the root.
    queue: Option<u16>,
    /// What follows.
    rest: &'a [String],
}

fn place(words: &[String]) -> Result<Place<'_>, String> {
    let (mut dev, mut parent, mut rest) = (None, None, words);
    while let [word, after @ ..] = rest {
        let value = |what: &str| after.first().ok_or(format!("`{word}`: expected {what} after it"));
        let twice = match &word[..] {
            "dev" => dev.replace(&value("the name of a device")?[..]).is_some(),
            "root" => parent.replace(None).is_some(),
            "parent" => parent.replace(Some(tx_queue(value("the number of a TX queue")?)?)).is_some(),
            "handle" => {
                return Err("disciplines have no handles here: leave out `handle` and its number".into());
            }
            _ => break,
        };
        if twice {
            return Err(format!(
                "`{word}`: expected one `dev DEV`, and one of `root` and `parent :N` at the most"
            ));
        }
        rest = if word == "root" { after } else { &after[1..] };
    }
    Ok(Place { dev, queue: parent.flatten(), rest })
}

/// The TX queue of a class of mq, `:1` or `8001:1`.
fn tx_queue(class: &str) -> Result<u16, String> {
    let minor = class.split_once(':').and_then(|(major, minor)| {
        let hex = |text: &str| u16::from_str_radix(text, 16).ok();
        if major.is_empty() { hex(minor) } else { hex(major).and(hex(minor)) }
    });
    minor.and_then(|minor| minor.checked_sub(1)).ok_or_else(|| {
        format!(
            "`parent`: expected :N, the number of a TX queue plus 1 in hexadecimal, such as :1 for TX queue 0; got `{class}`"
        )
    })
}

/// Runs the command.
pub(crate) fn qdisc(args: &Qdisc) -> Result<(), Failure> {
    match &args.command {
        None => show(args, &[], None),
        Some(Command::Show { words, watch }) => show(args, words, *watch),
        Some(Command::Add { words }) => change(args, Action::Add, words),
        Some(Command::Replace { words }) => change(args, Action::Replace, words),
        Some(Command::Del { words }) => change(args, Action::Del, words),
    }
}

fn client(args: &Qdisc) -> Result<Client, Failure> {
    Client::new(args.name.as_deref()).map_err(|error| Failure::Run(error.to_string()))
}

fn show(args: &Qdisc, words: &[String], watch: Option<Duration>) -> Result<(), Failure> {
    let dev = match words {
        [] => None,
        [word, dev] if word == "dev" => Some(&dev[..]),
        _ => {
            return Err(Failure::Usage(format!(
                "show: expected `dev DEV` or nothing, got `{}`",
                words.join(" ")
            )));
        }
    };
    let client = client(args)?;
    let those = || {
        let mut rows: Vec<QdiscRow> = ask(&client, Table::Qdisc)?;
        let Some(dev) = dev else { return Ok(rows) };
        rows.retain(|row| row.dev == dev);
        if rows.is_empty() {
            let devs: Vec<DevRow> = ask(&client, Table::Dev)?;
            let names: Vec<&str> = devs.iter().map(|row| &row.name[..]).collect();
            return Err(Failure::Run(match names.contains(&dev) {
                true => format!("{dev} is not open: its interface is gone"),
                false => format!("no device {dev:?}; there are: {}", names.join(", ")),
            }));
        }
        Ok(rows)
    };
    let statistics = args.statistics || watch.is_some();
    repeat(&Output { json: args.json, watch, then: "with rates" }, those, |rows, before| {
        print::lines(rows, statistics, before.map(|(rows, seconds)| (&rows[..], seconds)))
    })
}

fn change(args: &Qdisc, action: Action, words: &[String]) -> Result<(), Failure> {
    let request = Request::Qdisc(request(action, words).map_err(Failure::Usage)?);
    let rows: Vec<QdiscRow> = client(args)?.ask(&request).map_err(|error| Failure::Run(error.to_string()))?;
    for row in &rows {
        if let Some(warning) = &row.warning {
            eprintln!("warning: {}: {warning}", row.dev);
        }
    }
    if args.json {
        return text::print(&format!("{}\n", json(serde_json::to_string_pretty(&rows))?));
    }
    text::print(&print::lines(&rows, args.statistics, None))
}

fn request(action: Action, words: &[String]) -> Result<SetQdisc, String> {
    let Place { dev, queue, rest } = place(words)?;
    let rest = rest.join(" ");
    let qdisc = match (action, dev) {
        (Action::Del, _) if !rest.is_empty() => {
            return Err(format!("del: expected dev DEV and root or parent :N, nothing more; got `{rest}`"));
        }
        (_, None) => return Err(format!("expected `dev DEV`, such as `dev eth1`{}", before(&rest))),
        (Action::Del, _) => None,
        _ => Some(rest.parse::<Spec>().map_err(|error| error.to_string())?.to_string()),
    };
    Ok(SetQdisc { dev: dev.unwrap_or_default().into(), queue, action, qdisc })
}

/// Where something is missing.
fn before(rest: &str) -> String {
    if rest.is_empty() { String::new() } else { format!(" before `{rest}`") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(action: Action, line: &str) -> Result<SetQdisc, String> {
        request(
            action,
            &line.split(' ').filter(|word| !word.is_empty()).map(String::from).collect::<Vec<_>>(),
        )
    }

    #[test]
    fn places_are_read_as_tc_reads_them() {
        let set = |queue, qdisc: &str| SetQdisc {
            dev: "eth1".into(),
            queue,
            action: Action::Replace,
            qdisc: Some(qdisc.into()),
        };
        for (line, expected) in [
            ("dev eth1 pfifo", set(None, "pfifo")),
            ("dev eth1 root pfifo limit 7", set(None, "pfifo limit 7p")),
            ("root dev eth1 mq", set(None, "mq")),
            ("dev eth1 parent :1 bfifo", set(Some(0), "bfifo")),
            ("dev eth1 parent 1:a bfifo", set(Some(9), "bfifo")),
            ("parent 8001:ffff dev eth1 pfifo_fast", set(Some(65534), "pfifo_fast")),
            (
                "dev eth1 tbf rate 10mbit burst 15kb latency 50ms",
                set(None, "tbf rate 10Mbit burst 15Kb lat 50ms"),
            ),
            // A device may be called anything.
            ("dev root root noqueue", SetQdisc { dev: "root".into(), ..set(None, "noqueue") }),
        ] {
            assert_eq!(read(Action::Replace, line), Ok(expected));
        }
        let del = |queue| SetQdisc { dev: "eth1".into(), queue, action: Action::Del, qdisc: None };
        assert_eq!(read(Action::Del, "dev eth1"), Ok(del(None)));
        assert_eq!(read(Action::Del, "dev eth1 parent :10"), Ok(del(Some(15))));
    }

    #[test]
    fn what_is_wrong_is_told_with_what_was_expected() {
        let class = "`parent`: expected :N, the number of a TX queue plus 1 in hexadecimal, such as :1 for TX queue 0; got ";
        for (line, expected) in [
            ("", "expected `dev DEV`, such as `dev eth1`".to_owned()),
            ("root pfifo", "expected `dev DEV`, such as `dev eth1` before `pfifo`".into()),
            ("eth1 root pfifo", "expected `dev DEV`, such as `dev eth1` before `eth1 root pfifo`".into()),
            ("dev", "`dev`: expected the name of a device after it".into()),
            ("dev eth1 parent", "`parent`: expected the number of a TX queue after it".into()),
            ("dev eth1 parent 1 pfifo", format!("{class}`1`")),
            ("dev eth1 parent :0 pfifo", format!("{class}`:0`")),
            ("dev eth1 parent :10000 pfifo", format!("{class}`:10000`")),
            ("dev eth1 parent x:1 pfifo", format!("{class}`x:1`")),
            ("dev eth1 parent 1:", format!("{class}`1:`")),
            (
                "dev eth1 root parent :1 pfifo",
                "`parent`: expected one `dev DEV`, and one of `root` and `parent :N` at the most".into(),
            ),
            (
                "dev eth1 root handle 1: pfifo",
                "disciplines have no handles here: leave out `handle` and its number".into(),
            ),
            (
                "dev eth1 root",
                "expected noqueue, mq, pfifo_fast, pfifo, bfifo, tbf or netem, got nothing".into(),
            ),
            (
                "dev eth1 codel",
                "expected noqueue, mq, pfifo_fast, pfifo, bfifo, tbf or netem, got `codel`".into(),
            ),
            ("dev eth1 pfifo root", "pfifo: expected limit, got `root`".into()),
        ] {
            assert_eq!(read(Action::Add, line), Err(expected), "{line}");
        }
        assert_eq!(
            read(Action::Del, "dev eth1 root tbf"),
            Err("del: expected dev DEV and root or parent :N, nothing more; got `tbf`".into())
        );
    }
}
