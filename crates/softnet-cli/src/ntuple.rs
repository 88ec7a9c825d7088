//! `softnet ntuple`: filters of a device, in the words of `ethtool -N`.

use softnet::control::show::{NtupleRow, RssRow, Table};
use softnet::control::{Client, ClientError, NtupleAnswer, Request, SetNtuple};
use softnet_core::steer::RuleOrder;

use crate::Failure;
use crate::show::rows::table;
use crate::text::{print, print_json};

/// Say which packets of a device go to which RX queue, or nowhere.
#[derive(clap::Args)]
#[command(name = "ntuple", override_usage = USAGE, after_help = HELP)]
pub(crate) struct NtupleArgs {
    /// The device.
    #[arg(value_name = "DEV")]
    dev: String,
    /// What to do, as below.
    #[arg(value_name = "WORDS", required = true, allow_negative_numbers = true)]
    words: Vec<String>,
    /// The instance: its name (`stack.name`), or the path of its control socket. Without it, the
    /// only one running.
    #[arg(long)]
    name: Option<String>,
    /// Print the filters as JSON; after a change, those of its device.
    #[arg(long)]
    json: bool,
}

const USAGE: &str = "softnet ntuple [--name NAME] [--json] DEV show
       softnet ntuple DEV flow-type ip4|tcp4|udp4|ip6|tcp6|udp6
                      [src-ip A [m M]] [dst-ip A [m M]]
                      [src-port N [m M]] [dst-port N [m M]]
                      [tos N [m M]] [l4proto N [m M]] [vlan N [m M]]
                      action N | action -1 | context N  [loc N]
       softnet ntuple DEV delete N";

const HELP: &str = "\
A filter says what becomes of the packets that it takes, whatever their hash says (`softnet show rss`):

  action N     they go to RX queue N
  action -1    they are dropped, and counted (`softnet show drops`: ntuple_drop)
  context N    they go where the table of RSS context N says (`softnet set rss DEV context new` makes one)

A part that is left out may be anything. Behind m are the bits of a value that do NOT count, as ethtool has it: `src-ip
10.0.0.0 m 0.0.255.255` is 10.0.0.0/16. tos is called tclass with ip6, tcp6 and udp6; l4proto goes with ip4 and ip6. vlan is
the outermost tag, with its priority: `vlan 7 m 0xf000` is VLAN 7 with any. Fragments have no ports: no filter by port takes
one.

Each filter has a location. Of several that take a packet, the one with the lowest decides. Without loc it is the last one
that is free. Filters are the device's: they are lost with its interface, and on an interface of the kernel they outlive
softnet; what the driver can't do, the kernel refuses.

A filter moves flows from one queue to another at once: what is in the old queue may be overtaken, as on any NIC.

Examples:
  softnet ntuple eth1 flow-type udp4 dst-port 53 action 2         DNS by queue 2
  softnet ntuple eth1 flow-type tcp4 src-ip 192.0.2.0 m 0.0.0.255 action -1 loc 10
  softnet ntuple eth1 flow-type ip6 vlan 7 m 0xf000 context 1     the table of context 1 for IPv6 on VLAN 7
  softnet ntuple eth1 delete 10
  softnet ntuple eth1 show
  softnet show ntuple --watch                                     of all devices, packets as rates";

/// Runs the command.
pub(crate) fn ntuple(args: &NtupleArgs) -> Result<(), Failure> {
    let change = args.words.join(" ");
    let failed = |error: ClientError| Failure::Run(error.to_string());
    let (rows, changed) = if change == "show" {
        let client = Client::new(args.name.as_deref()).map_err(failed)?;
        let rows: Vec<NtupleRow> = client.ask(&Request::Show(Table::Ntuple)).map_err(failed)?;
        let rows: Vec<_> = rows.into_iter().filter(|row| row.dev == args.dev).collect();
        if rows.is_empty() {
            is_there(&client, &args.dev)?;
        }
        (rows, None)
    } else {
        // What is no order is told without an instance.
        let order: RuleOrder = change
            .parse()
            .map_err(|error| Failure::Usage(format!("{error}; `softnet ntuple --help` has all of it")))?;
        let client = Client::new(args.name.as_deref()).map_err(failed)?;
        let set = SetNtuple { dev: args.dev.clone(), change };
        let answer: NtupleAnswer = client.ask(&Request::Ntuple(set)).map_err(failed)?;
        (answer.filters, Some((order, answer.location)))
    };
    if args.json {
        return print_json(&rows);
    }
    match changed {
        // Like ethtool, which says where it put a filter, and nothing else of what went well.
        Some((RuleOrder::Insert { .. }, location)) => {
            print(&format!("added filter with location {location}\n"))
        }
        Some((RuleOrder::Delete(_), _)) => Ok(()),
        None => print(&table(&rows, None)),
    }
}

/// Whether the instance has that device, which has no filter.
fn is_there(client: &Client, dev: &str) -> Result<(), Failure> {
    let devs: Vec<RssRow> =
        client.ask(&Request::Show(Table::Rss)).map_err(|error| Failure::Run(error.to_string()))?;
    let mut names: Vec<&str> = devs.iter().map(|row| &row.dev[..]).collect();
    // A device has a row for each context.
    names.dedup();
    if names.contains(&dev) {
        return Ok(());
    }
    Err(Failure::Run(format!("no device {dev:?}; there are: {}", names.join(", "))))
}
