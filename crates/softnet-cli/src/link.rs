//! `softnet link`: the links of a running instance's devices, in the words of `ip link`.

use softnet::control::show::{DevRow, Table};
use softnet::control::{LinkChange, Request, SetLink};

use crate::Failure;
use crate::live::{Live, misread, no_device};
use crate::text::{print, print_json};
use crate::words::Words;

/// Set devices of a running instance up and down, and their MTU.
#[derive(clap::Args)]
#[command(name = "link", override_usage = USAGE, after_help = HELP)]
pub(crate) struct LinkArgs {
    /// What to do, as below.
    #[arg(value_name = "WORDS", required = true)]
    words: Vec<String>,
    /// The instance: its name (`stack.name`), or the path of its control socket. Without it, the only one running.
    #[arg(long)]
    name: Option<String>,
    /// Print JSON; after a change, how many links were changed.
    #[arg(long)]
    json: bool,
}

const USAGE: &str = "softnet link show [dev DEV]
       softnet link set [dev] DEV up|down
       softnet link set [dev] DEV mtu BYTES";

const HELP: &str = "\
A device that is set down is closed: routes by way of it give way to others,
what is on its way by it is dropped and counted, and the VLANs over it go with
it. The kernel's interface is set down, too, as by `ip link set`, and its peer
sees that; a TAP has no carrier then. It stays down until it is set up,
whatever becomes of its interface, or until the instance ends. (The interface
is down then, still.)

With another MTU the device is opened anew, for which packets on their way by
it are lost. One that it can't be opened with is refused, and the device is as
before. The MTU of a VLAN is that of its link, or `mtu` in its [[device]].

Examples:
  softnet link set eth1 down
  softnet link set eth1 up
  softnet link set eth1 mtu 9000
  softnet link show";

/// What was asked for.
#[derive(Debug, PartialEq)]
enum Order {
    Show(Option<String>),
    Set(SetLink),
}

fn parse(words: &[String]) -> Result<Order, String> {
    let mut words = Words::new(words);
    let order = match words.one_of(&[("show", false), ("set", true)])? {
        false if words.is_empty() => Order::Show(None),
        false => Order::Show(Some(words.dev()?)),
        true => {
            words.skip("dev");
            let dev = words.next("the name of a device")?.into();
            let change = match words.one_of(&[("up", 0), ("down", 1), ("mtu", 2)])? {
                0 => LinkChange::Up,
                1 => LinkChange::Down,
                _ => LinkChange::Mtu(words.number("an MTU in bytes")?),
            };
            Order::Set(SetLink { dev, change })
        }
    };
    words.end()?;
    Ok(order)
}

/// Runs the command.
pub(crate) fn link(args: &LinkArgs) -> Result<(), Failure> {
    let order = parse(&args.words).map_err(|error| misread("link", &error))?;
    let live = Live::new(args.name.as_deref(), args.json)?;
    match order {
        Order::Show(dev) => {
            let mut rows: Vec<DevRow> = live.ask(&Request::Show(Table::Dev))?;
            rows.retain(|row| dev.as_ref().is_none_or(|dev| row.name == *dev));
            if let (Some(dev), true) = (&dev, rows.is_empty()) {
                return Err(no_device(dev));
            }
            if live.json {
                let row = |row: &DevRow| {
                    let DevRow { name, link, mtu, mac, .. } = row;
                    serde_json::json!({"dev": name, "link": link, "mtu": mtu, "mac": mac})
                };
                return print_json(&rows.iter().map(row).collect::<Vec<_>>());
            }
            print(&rows.iter().map(line).collect::<String>())
        }
        Order::Set(set) => live.change(&Request::Link(set)),
    }
}

/// What is known of a closed device is its name.
fn line(row: &DevRow) -> String {
    let DevRow { name, link, mtu, mac, .. } = row;
    match row.queues {
        0 => format!("{name} {link}\n"),
        _ => format!("{name} {link} mtu {mtu} lladdr {mac}\n"),
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
        let set = |change| Ok(Order::Set(SetLink { dev: "a".into(), change }));
        assert_eq!(read("show"), Ok(Order::Show(None)));
        assert_eq!(read("show dev a"), Ok(Order::Show(Some("a".into()))));
        assert_eq!(read("set a up"), set(LinkChange::Up));
        assert_eq!(read("set dev a down"), set(LinkChange::Down));
        assert_eq!(read("set a mtu 9000"), set(LinkChange::Mtu(9000)));
        let wrong = |text: &str| read(text).unwrap_err();
        assert_eq!(wrong("set a"), "expected up, down or mtu next, found nothing");
        assert_eq!(wrong("set a mtu big"), "expected an MTU in bytes, found \"big\"");
        assert_eq!(wrong("set a up down"), "expected nothing more, found \"down\"");
    }
}
