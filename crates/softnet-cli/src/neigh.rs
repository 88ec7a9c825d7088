//! `softnet neigh`: fixes and forgets neighbours of a running instance, in the words of `ip neigh`.

use softnet::control::show::{NeighRow, Table};
use softnet::control::{LiveAction, Request, SetNeigh};

use crate::Failure;
use crate::live::{Live, misread};
use crate::show::rows::table;
use crate::text::{print, print_json};
use crate::words::Words;

/// Fix and forget neighbours of a running instance.
#[derive(clap::Args)]
#[command(name = "neigh", override_usage = USAGE, after_help = HELP)]
pub(crate) struct NeighArgs {
    /// What to do, as below.
    #[arg(value_name = "WORDS", required = true)]
    words: Vec<String>,
    /// The instance: its name (`stack.name`), or the path of its control socket. Without it, the only one running.
    #[arg(long)]
    name: Option<String>,
    /// Print JSON; after a change, how many neighbours were changed.
    #[arg(long)]
    json: bool,
}

const USAGE: &str = "softnet neigh show [dev DEV]
       softnet neigh add|replace ADDR lladdr MAC dev DEV
       softnet neigh del ADDR dev DEV
       softnet neigh flush dev DEV";

const HELP: &str = "\
  add       a neighbour whose MAC address is never asked for (permanent); refused if it is fixed already
  replace   the same, whatever is known of it
  del       forgets it, fixed or not: when it is needed it is asked for
  flush     forgets all that were learned; those that are fixed stay

What is fixed by hand stays until the device's interface goes, or the instance ends. [[neighbour]] in the configuration
is for ever.

Examples:
  softnet neigh add 10.0.0.9 lladdr 02:00:00:00:00:09 dev eth1
  softnet neigh del fe80::9 dev eth1
  softnet neigh flush dev eth1";

/// What was asked for.
#[derive(Debug, PartialEq)]
enum Order {
    Show(Option<String>),
    Set(SetNeigh),
}

fn parse(words: &[String]) -> Result<Order, String> {
    let mut words = Words::new(words);
    let verbs = [
        ("show", None),
        ("add", Some(LiveAction::Add)),
        ("replace", Some(LiveAction::Replace)),
        ("del", Some(LiveAction::Del)),
        ("flush", Some(LiveAction::Flush)),
    ];
    let order = match words.one_of(&verbs)? {
        None if words.is_empty() => Order::Show(None),
        None => Order::Show(Some(words.dev()?)),
        Some(action @ LiveAction::Flush) => {
            Order::Set(SetNeigh { action, dev: words.dev()?, to: None, lladdr: None })
        }
        Some(action) => {
            let to = Some(words.address("the neighbour's IP address")?);
            let (mut dev, mut lladdr) = (None, None);
            while !words.is_empty() {
                match words.one_of(&[("lladdr", true), ("dev", false)])? {
                    true => lladdr = Some(words.next("a MAC address")?.into()),
                    false => dev = Some(words.next("the name of a device")?.into()),
                }
            }
            let dev = dev.ok_or("expected dev DEV")?;
            match (action, &lladdr) {
                (LiveAction::Del, Some(_)) => return Err("expected no lladdr to delete a neighbour".into()),
                (LiveAction::Add | LiveAction::Replace, None) => return Err("expected lladdr MAC".into()),
                _ => Order::Set(SetNeigh { action, dev, to, lladdr }),
            }
        }
    };
    words.end()?;
    Ok(order)
}

/// Runs the command.
pub(crate) fn neigh(args: &NeighArgs) -> Result<(), Failure> {
    let order = parse(&args.words).map_err(|error| misread("neigh", &error))?;
    let live = Live::new(args.name.as_deref(), args.json)?;
    match order {
        Order::Show(dev) => {
            let mut rows: Vec<NeighRow> = live.ask(&Request::Show(Table::Neigh))?;
            rows.retain(|row| dev.as_ref().is_none_or(|dev| row.dev == *dev));
            match live.json {
                true => print_json(&rows),
                false => print(&table(&rows, None)),
            }
        }
        Order::Set(set) => live.change(&Request::Neigh(set)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Order, String> {
        parse(&text.split_whitespace().map(String::from).collect::<Vec<_>>())
    }

    #[test]
    fn orders_are_read() {
        let set = |action, to: Option<&str>, lladdr: Option<&str>| {
            let to = to.map(|to| to.parse().unwrap());
            Ok(Order::Set(SetNeigh { action, dev: "a".into(), to, lladdr: lladdr.map(Into::into) }))
        };
        assert_eq!(read("show dev a"), Ok(Order::Show(Some("a".into()))));
        let mac = Some("02:00:00:00:00:01");
        assert_eq!(
            read("add 10.0.0.2 lladdr 02:00:00:00:00:01 dev a"),
            set(LiveAction::Add, Some("10.0.0.2"), mac)
        );
        assert_eq!(
            read("replace fe80::2 dev a lladdr 02:00:00:00:00:01"),
            set(LiveAction::Replace, Some("fe80::2"), mac)
        );
        assert_eq!(read("del 10.0.0.2 dev a"), set(LiveAction::Del, Some("10.0.0.2"), None));
        assert_eq!(read("flush dev a"), set(LiveAction::Flush, None, None));
    }

    #[test]
    fn a_bad_word_is_named_with_what_was_expected() {
        for (text, expected) in [
            ("add eth1", "expected the neighbour's IP address, found \"eth1\""),
            ("add 10.0.0.2 dev a", "expected lladdr MAC"),
            ("add 10.0.0.2 lladdr 02:00:00:00:00:01", "expected dev DEV"),
            ("del 10.0.0.2 lladdr 02:00:00:00:00:01 dev a", "expected no lladdr to delete a neighbour"),
            ("flush", "expected dev next, found nothing"),
        ] {
            assert_eq!(read(text).unwrap_err(), expected, "{text}");
        }
    }
}
