//! `softnet addr`: own addresses of a running instance, in the words of `ip addr`.

use softnet::control::show::{DevRow, Table};
use softnet::control::{LiveAction, Request, SetAddr};

use crate::Failure;
use crate::live::{Live, misread, no_device};
use crate::text::{print, print_json};
use crate::words::Words;

/// Add and remove addresses of a running instance.
#[derive(clap::Args)]
#[command(name = "addr", override_usage = USAGE, after_help = HELP)]
pub(crate) struct AddrArgs {
    /// What to do, as below.
    #[arg(value_name = "WORDS", required = true)]
    words: Vec<String>,
    /// The instance: its name (`stack.name`), or the path of its control socket. Without it, the only one running.
    #[arg(long)]
    name: Option<String>,
    /// Print JSON; after a change, how many addresses were changed.
    #[arg(long)]
    json: bool,
}

const USAGE: &str = "softnet addr show [dev DEV]
       softnet addr add|replace ADDR/LEN dev DEV
       softnet addr del ADDR[/LEN] dev DEV
       softnet addr flush dev DEV";

const HELP: &str = "\
With an address come the route to its network, what the device claims from its interface, and an announcement to the
neighbours (gratuitous ARP, an unsolicited neighbour advertisement). With it they go, and so do the neighbours on that
network. Routes via gateways there stay, and so do sockets: those that are bound to the address receive nothing then.

One that the kernel has, too, is refused unless the device's `shared` or `force` is set. Changes end with the instance;
a reload of the configuration leaves them as they are, unless it says otherwise of the same address.

Examples:
  softnet addr add 10.0.0.5/24 dev eth1
  softnet addr del 2001:db8::5/64 dev eth1
  softnet addr show";

/// What was asked for.
#[derive(Debug, PartialEq)]
enum Order {
    Show(Option<String>),
    Set(SetAddr),
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
        Some(action) => {
            let addr = match action {
                LiveAction::Flush => None,
                _ => Some(words.next("an address with its prefix length, such as 10.0.0.5/24")?.into()),
            };
            Order::Set(SetAddr { action, dev: words.dev()?, addr })
        }
    };
    words.end()?;
    Ok(order)
}

/// Runs the command.
pub(crate) fn addr(args: &AddrArgs) -> Result<(), Failure> {
    let order = parse(&args.words).map_err(|error| misread("addr", &error))?;
    let live = Live::new(args.name.as_deref(), args.json)?;
    match order {
        Order::Show(dev) => {
            let rows: Vec<DevRow> = live.ask(&Request::Show(Table::Dev))?;
            let rows: Vec<&DevRow> =
                rows.iter().filter(|row| dev.as_ref().is_none_or(|dev| row.name == *dev)).collect();
            if let (Some(dev), true) = (&dev, rows.is_empty()) {
                return Err(no_device(dev));
            }
            let all: Vec<(&str, &str, bool)> = rows
                .iter()
                .flat_map(|row| {
                    let used = row.addresses.iter().map(|own| (&row.name[..], &own[..], false));
                    used.chain(row.duplicates.iter().map(|own| (&row.name[..], &own[..], true)))
                })
                .collect();
            let line = |(dev, addr, duplicate): &(&str, &str, bool)| {
                format!("{addr} dev {dev}{}\n", if *duplicate { " duplicate" } else { "" })
            };
            match live.json {
                true => {
                    let row = |(dev, addr, duplicate): &(&str, &str, bool)| {
                        let mut row = serde_json::json!({"dev": dev, "addr": addr});
                        if *duplicate {
                            row["duplicate"] = true.into();
                        }
                        row
                    };
                    let rows: Vec<_> = all.iter().map(row).collect();
                    print_json(&rows)
                }
                false => print(&all.iter().map(line).collect::<String>()),
            }
        }
        Order::Set(set) => live.change(&Request::Addr(set)),
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
        let set = |action, addr: Option<&str>| {
            Ok(Order::Set(SetAddr { action, dev: "a".into(), addr: addr.map(Into::into) }))
        };
        assert_eq!(read("show"), Ok(Order::Show(None)));
        assert_eq!(read("show dev a"), Ok(Order::Show(Some("a".into()))));
        assert_eq!(read("add 10.0.0.5/24 dev a"), set(LiveAction::Add, Some("10.0.0.5/24")));
        assert_eq!(read("replace fd00::5/64 dev a"), set(LiveAction::Replace, Some("fd00::5/64")));
        assert_eq!(read("del 10.0.0.5 dev a"), set(LiveAction::Del, Some("10.0.0.5")));
        assert_eq!(read("flush dev a"), set(LiveAction::Flush, None));
        let error = read("add 10.0.0.5/24").unwrap_err();
        assert_eq!(error, "expected dev next, found nothing");
    }
}
