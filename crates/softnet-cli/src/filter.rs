//! `softnet filter`: redirects and mirrors packets of a running instance, in the words of `tc filter`.

use softnet::control::Direction::{Egress, Ingress};
use softnet::control::MirredAction::{Mirror, Redirect};
use softnet::control::show::{DevRow, FilterRow, Table};
use softnet::control::{Action, Client, ClientError, Direction, MirredAction, Request, SetFilter, SetMirred};

use crate::Failure;
use crate::text::{print, print_json};
use crate::words::Words;

/// Redirect or mirror packets of a running instance to another device.
#[derive(clap::Args)]
#[command(name = "filter", override_usage = USAGE, after_help = HELP)]
pub(crate) struct FilterArgs {
    /// What to do, as below.
    #[arg(value_name = "WORDS", required = true)]
    words: Vec<String>,
    /// Show counters as well.
    #[arg(short, long)]
    statistics: bool,
    /// The instance: its name (`stack.name`), or the path of its control socket. Without it, the only one running.
    #[arg(long)]
    name: Option<String>,
    /// Print the filters as JSON; after a change, those of its device.
    #[arg(long)]
    json: bool,
}

const USAGE: &str = "softnet filter [-s] show [dev DEV [ingress|egress]]
       softnet filter add|replace dev DEV ingress|egress matchall
                      action mirred ingress|egress redirect|mirror dev TO
       softnet filter del dev DEV ingress|egress";

const HELP: &str = "\
A device has a hook for what it received (ingress), before applications and routing get it, and one for what it is to
send (egress), before a TX queue is chosen. A hook holds one filter; the one that there is, matchall, takes every packet.
(What softnet leaves to the kernel does not come by.) Its action:

  mirred egress redirect dev TO    the packet leaves by TO instead, as it is
  mirred egress mirror dev TO      a copy leaves by TO, and the packet goes on
  mirred ingress redirect dev TO   the packet is received as if it had come in by TO
  mirred ingress mirror dev TO     a copy is, and the packet goes on

Nothing in a packet is changed. So what is to be routed after `mirred ingress` must have the MAC address of TO, as what
comes by the wire (else it is dropped: otherhost); applications on TO take it as it is.

A filter is in force when the command returns, holds whether the interfaces are there or not, and ends with the instance.
TO may be DEV. Packets that would go in circles are noticed: on the way to egress, a device that is already being sent to
(overlimits), or more than 4 of them in a row; to ingress, the fourth time for a packet, ever (both: dropped).

With -s: Sent counts the packets that came by the filter. dropped: those of them that went through too many redirects, that
there was no memory to copy, or that TO was not open for. overlimits: those that would have come back. A packet that was
to be redirected is then freed (`softnet show drops`: tc_egress, tc_ingress, dev_ready); one to be mirrored goes on, unless
it went through too many redirects. To ingress, up to 1000 packets wait for each RX queue of TO (more: cpu_backlog).

Examples:
  softnet filter add dev eth1 ingress matchall action mirred egress mirror dev mon0    watch what eth1 receives
  softnet filter add dev eth1 egress matchall action mirred egress mirror dev mon0     and what it sends
  softnet filter replace dev eth1 ingress matchall action mirred egress redirect dev eth2
  softnet filter -s show
  softnet filter del dev eth1 ingress
  softnet show filter --watch                                                          counters as rates";

const HOOK: [(&str, Direction); 2] = [("ingress", Ingress), ("egress", Egress)];
const WHAT: [(&str, MirredAction); 2] = [("redirect", Redirect), ("mirror", Mirror)];

/// What was asked for.
#[derive(Debug, PartialEq)]
enum Order {
    Show { dev: Option<String>, parent: Option<Direction> },
    Set(SetFilter),
}

/// Reads an order.
fn parse(words: &[String]) -> Result<Order, String> {
    let mut words = Words::new(words);
    let orders = [
        ("show", None),
        ("add", Some(Action::Add)),
        ("replace", Some(Action::Replace)),
        ("del", Some(Action::Del)),
    ];
    let order = match words.one_of(&orders)? {
        None => {
            let dev = if words.is_empty() { None } else { Some(words.dev()?) };
            let parent = if words.is_empty() { None } else { Some(words.one_of(&HOOK)?) };
            Order::Show { dev, parent }
        }
        Some(action) => {
            let (dev, parent) = (words.dev()?, words.one_of(&HOOK)?);
            let mirred = if action == Action::Del { None } else { Some(mirred(&mut words)?) };
            Order::Set(SetFilter { dev, parent, action, mirred })
        }
    };
    words.end()?;
    Ok(order)
}

/// `matchall action mirred ingress|egress redirect|mirror dev DEV`.
fn mirred(words: &mut Words<'_>) -> Result<SetMirred, String> {
    ["matchall", "action", "mirred"].into_iter().try_for_each(|word| words.exactly(word))?;
    Ok(SetMirred { direction: words.one_of(&HOOK)?, action: words.one_of(&WHAT)?, dev: words.dev()? })
}

/// Runs the command.
pub(crate) fn filter(args: &FilterArgs) -> Result<(), Failure> {
    let order = parse(&args.words)
        .map_err(|error| Failure::Usage(format!("{error}; `softnet filter --help` has all of it")))?;
    let failed = |error: ClientError| Failure::Run(error.to_string());
    let client = Client::new(args.name.as_deref()).map_err(failed)?;
    let (mut rows, changed): (Vec<FilterRow>, bool) = match &order {
        Order::Set(set) => (client.ask(&Request::Filter(set.clone())).map_err(failed)?, true),
        Order::Show { .. } => (client.ask(&Request::Show(Table::Filter)).map_err(failed)?, false),
    };
    if let Order::Show { dev: Some(dev), parent } = &order {
        rows.retain(|row| row.dev == *dev && parent.is_none_or(|parent| parent == row.parent));
        if rows.is_empty() {
            is_there(&client, dev)?;
        }
    }
    if args.json {
        return print_json(&rows);
    }
    // Like tc, which says nothing of what went well.
    if changed && !args.statistics {
        return Ok(());
    }
    print(&rows.iter().map(|row| text(row, args.statistics)).collect::<String>())
}

/// Whether the instance has that device, which has no filter.
fn is_there(client: &Client, dev: &str) -> Result<(), Failure> {
    let devs: Vec<DevRow> =
        client.ask(&Request::Show(Table::Dev)).map_err(|error| Failure::Run(error.to_string()))?;
    let names: Vec<&str> = devs.iter().map(|row| &row.name[..]).collect();
    if names.contains(&dev) {
        return Ok(());
    }
    Err(Failure::Run(format!("no device {dev:?}; there are: {}", names.join(", "))))
}

/// A filter in the words that make it, and its counters as `tc -s` has them.
fn text(row: &FilterRow, statistics: bool) -> String {
    let FilterRow { dev, kind, action, to_dev, bytes, packets, drops, overlimits, .. } = row;
    let (parent, direction, what) = (row.parent.name(), row.direction.name(), row.mirred_action.name());
    let mut text =
        format!("filter dev {dev} {parent} {kind} action {action} {direction} {what} dev {to_dev}\n");
    if statistics {
        text += &format!(" Sent {bytes} bytes {packets} pkt (dropped {drops}, overlimits {overlimits})\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Order, String> {
        parse(&text.split_whitespace().map(String::from).collect::<Vec<_>>())
    }

    #[test]
    fn orders_are_read() {
        let show = |dev: Option<&str>, parent| Ok(Order::Show { dev: dev.map(Into::into), parent });
        assert_eq!(read("show"), show(None, None));
        assert_eq!(read("show dev eth1"), show(Some("eth1"), None));
        assert_eq!(read("show dev eth1 egress"), show(Some("eth1"), Some(Egress)));
        let set =
            |action, parent, mirred| Ok(Order::Set(SetFilter { dev: "a".into(), parent, action, mirred }));
        let mirred = |direction, action| Some(SetMirred { direction, action, dev: "b".into() });
        assert_eq!(
            read("add dev a ingress matchall action mirred egress redirect dev b"),
            set(Action::Add, Ingress, mirred(Egress, Redirect))
        );
        assert_eq!(
            read("replace dev a egress matchall action mirred ingress mirror dev b"),
            set(Action::Replace, Egress, mirred(Ingress, Mirror))
        );
        assert_eq!(read("del dev a egress"), set(Action::Del, Egress, None));
    }

    #[test]
    fn a_bad_word_is_named_with_what_was_expected() {
        for (text, expected) in [
            ("list", "expected show, add, replace or del, found \"list\""),
            ("add", "expected dev next, found nothing"),
            ("add eth1", "expected dev, found \"eth1\""),
            ("add dev", "expected the name of a device next, found nothing"),
            ("show dev eth1 root", "expected ingress or egress, found \"root\""),
            ("add dev eth1 ingress u32", "expected matchall, found \"u32\""),
            ("add dev eth1 ingress matchall", "expected action next, found nothing"),
            ("add dev eth1 ingress matchall action drop", "expected mirred, found \"drop\""),
            (
                "add dev eth1 ingress matchall action mirred egress steal",
                "expected redirect or mirror, found \"steal\"",
            ),
            ("del dev eth1 egress now", "expected nothing more, found \"now\""),
        ] {
            assert_eq!(read(text), Err(expected.into()), "{text}");
        }
    }
}
