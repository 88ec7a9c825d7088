//! `softnet route`: changes and looks up routes of a running instance, in the words of `ip route`.

use std::net::IpAddr;

use softnet::control::show::{RouteRow, Table};
use softnet::control::{LiveAction, NextHop, Request, RouteLookup, RouteType, SetRoute};

use crate::Failure;
use crate::live::{Live, misread};
use crate::show::rows::table;
use crate::text::{print, print_json};
use crate::words::Words;

/// Add, change, remove and look up routes of a running instance.
#[derive(clap::Args)]
#[command(name = "route", override_usage = USAGE, after_help = HELP)]
pub(crate) struct RouteArgs {
    /// What to do, as below.
    #[arg(value_name = "WORDS", required = true)]
    words: Vec<String>,
    /// The instance: its name (`stack.name`), or the path of its control socket. Without it, the only one running.
    #[arg(long)]
    name: Option<String>,
    /// Print JSON; after a change, how many routes were changed.
    #[arg(long)]
    json: bool,
}

const USAGE: &str = "softnet route show
       softnet route get ADDR
       softnet route add|replace PREFIX [via ADDR] [dev DEV] [metric N]
       softnet route add|replace PREFIX [metric N] nexthop [via ADDR] [dev DEV]
                     [weight N] nexthop …
       softnet route add|replace blackhole|unreachable|prohibit PREFIX
                     [metric N]
       softnet route del [TYPE] PREFIX [via ADDR] [dev DEV] [metric N]
       softnet route flush [to PREFIX] [dev DEV]";

const HELP: &str = "\
PREFIX is of either family: 10.0.0.0/8, an address, `default`. A gateway is a host on a network of the device; DEV may
be left out unless the gateway is link-local. Of the routes to a prefix the one with the lowest metric is used by which
packets can leave; without `metric` it is 0. Flows are spread over several next hops by their weights, from 1 to 256.

Packets follow a change when the command returns. It ends with the instance, and `softnet route show` calls such routes
`manual`. At the same metric they go before the configuration's (`static`), and those before the kernel's.

  add       refused if a route to that prefix has that metric
  replace   takes its place, also that of a `static` one
  del       the first that fits; one that is `static` too. The kernel's, if they are followed, are `ip route`'s
  flush     removes all that are `manual`, or those by DEV, or to prefixes within PREFIX
  get       the longest prefix that ADDR is in, its routes, and what is known of the neighbour

Examples:
  softnet route add 10.9.0.0/16 via 10.0.0.9
  softnet route add default nexthop via 10.0.0.1 weight 2 nexthop via 10.0.1.1
  softnet route replace 2001:db8:9::/48 via fe80::9 dev eth1 metric 10
  softnet route add blackhole 192.0.2.0/24
  softnet route get 10.9.1.1";

/// What was asked for.
#[derive(Debug, PartialEq)]
enum Order {
    Show,
    Get(IpAddr),
    Set(SetRoute),
}

fn parse(words: &[String]) -> Result<Order, String> {
    #[derive(Clone, Copy)]
    enum Verb {
        Show,
        Get,
        Change(LiveAction),
    }
    let mut words = Words::new(words);
    let verbs = [
        ("show", Verb::Show),
        ("get", Verb::Get),
        ("add", Verb::Change(LiveAction::Add)),
        ("replace", Verb::Change(LiveAction::Replace)),
        ("del", Verb::Change(LiveAction::Del)),
        ("flush", Verb::Change(LiveAction::Flush)),
    ];
    let order = match words.one_of(&verbs)? {
        Verb::Show => Order::Show,
        Verb::Get => Order::Get(words.address("an IP address")?),
        Verb::Change(action) => Order::Set(change(action, &mut words)?),
    };
    words.end()?;
    Ok(order)
}

/// What stands behind `add`, `replace`, `del` and `flush`.
fn change(action: LiveAction, words: &mut Words<'_>) -> Result<SetRoute, String> {
    let mut set = SetRoute { action, to: None, kind: RouteType::Unicast, nexthops: Vec::new(), metric: None };
    if action == LiveAction::Flush {
        while !words.is_empty() {
            match words.one_of(&[("to", true), ("dev", false)])? {
                true => set.to = Some(words.next("a prefix")?.into()),
                false => {
                    let dev = words.next("the name of a device")?.into();
                    set.nexthops = vec![NextHop { via: None, dev: Some(dev), weight: 1 }];
                }
            }
        }
        return Ok(set);
    }
    let kinds = [
        ("unicast", RouteType::Unicast),
        ("blackhole", RouteType::Blackhole),
        ("unreachable", RouteType::Unreachable),
        ("prohibit", RouteType::Prohibit),
    ];
    if let Some((_, kind)) = kinds.into_iter().find(|(name, _)| words.skip(name)) {
        set.kind = kind;
    }
    let to = words.next("a prefix")?;
    let mut single = NextHop { via: None, dev: None, weight: 1 };
    while !words.is_empty() {
        match words.one_of(&[("via", 0), ("dev", 1), ("metric", 2), ("nexthop", 3)])? {
            0 => single.via = Some(words.address("the address of a gateway")?),
            1 => single.dev = Some(words.next("the name of a device")?.into()),
            2 => set.metric = Some(words.number("a metric, from 0 to 4294967295")?),
            _ => set.nexthops.push(next_hop(words)?),
        }
    }
    if single.via.is_some() || single.dev.is_some() {
        if !set.nexthops.is_empty() {
            return Err("expected via and dev either once or behind each nexthop, found both".into());
        }
        set.nexthops.push(single);
    }
    // Of which family that is, another part of the command says.
    let v6 = set.nexthops.iter().filter_map(|hop| hop.via).any(|via| via.is_ipv6());
    set.to = Some(match to {
        "default" => if v6 { "::/0" } else { "0.0.0.0/0" }.into(),
        to => to.into(),
    });
    Ok(set)
}

/// What stands behind `nexthop`.
fn next_hop(words: &mut Words<'_>) -> Result<NextHop, String> {
    let mut hop = NextHop { via: None, dev: None, weight: 1 };
    if words.skip("via") {
        hop.via = Some(words.address("the address of a gateway")?);
    }
    if words.skip("dev") {
        hop.dev = Some(words.next("the name of a device")?.into());
    }
    if words.skip("weight") {
        hop.weight = words.number("a weight, from 1 to 256")?;
    }
    match (hop.via, &hop.dev) {
        (None, None) => Err("expected via ADDR or dev DEV behind nexthop".into()),
        _ => Ok(hop),
    }
}

/// Runs the command.
pub(crate) fn route(args: &RouteArgs) -> Result<(), Failure> {
    let order = parse(&args.words).map_err(|error| misread("route", &error))?;
    let live = Live::new(args.name.as_deref(), args.json)?;
    match order {
        Order::Show => {
            let rows: Vec<RouteRow> = live.ask(&Request::Show(Table::Route))?;
            match live.json {
                true => print_json(&rows),
                false => print(&table(&rows, None)),
            }
        }
        Order::Get(addr) => {
            let found: RouteLookup = live.ask(&Request::Lookup(addr))?;
            match live.json {
                true => print_json(&found),
                false => print(&text(&found)),
            }
        }
        Order::Set(set) => live.change(&Request::Route(set)),
    }
}

/// The routes of a look-up, and its next hops with their neighbours.
pub(crate) fn text(found: &RouteLookup) -> String {
    if found.routes.is_empty() {
        return format!(
            "no route to {}: packets are dropped (ip_outnoroutes), and answered with an ICMP error\n",
            found.addr
        );
    }
    let mut text = table(&found.routes, None);
    for hop in &found.hops {
        let (weight, mac) = (hop.weight, hop.mac.as_deref().unwrap_or("-"));
        let state = match (hop.open, &hop.state[..]) {
            (false, _) => "the device is not open".into(),
            (true, "none") => "not asked for yet".into(),
            (true, state) => format!("{state}, lladdr {mac}"),
        };
        let weight = if found.hops.len() > 1 { format!(" weight {weight}") } else { String::new() };
        text += &format!("{} to {} dev {}{weight}: {state}\n", found.addr, hop.neighbour, hop.dev);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Order, String> {
        parse(&text.split_whitespace().map(String::from).collect::<Vec<_>>())
    }

    fn set(
        action: LiveAction,
        to: &str,
        kind: RouteType,
        nexthops: Vec<NextHop>,
        metric: Option<u32>,
    ) -> Order {
        Order::Set(SetRoute { action, to: Some(to.into()), kind, nexthops, metric })
    }

    fn hop(via: Option<&str>, dev: Option<&str>, weight: u16) -> NextHop {
        NextHop { via: via.map(|via| via.parse().unwrap()), dev: dev.map(Into::into), weight }
    }

    #[test]
    fn orders_are_read() {
        use LiveAction::{Add, Del, Replace};
        use RouteType::{Blackhole, Unicast};
        assert_eq!(read("show"), Ok(Order::Show));
        assert_eq!(read("get 10.0.0.1"), Ok(Order::Get("10.0.0.1".parse().unwrap())));
        assert_eq!(
            read("add 10.9.0.0/16 via 10.0.0.9 dev eth1 metric 5"),
            Ok(set(Add, "10.9.0.0/16", Unicast, vec![hop(Some("10.0.0.9"), Some("eth1"), 1)], Some(5)))
        );
        assert_eq!(
            read("replace default nexthop via fe80::1 dev a weight 3 nexthop dev b"),
            Ok(set(
                Replace,
                "::/0",
                Unicast,
                vec![hop(Some("fe80::1"), Some("a"), 3), hop(None, Some("b"), 1)],
                None
            ))
        );
        assert_eq!(read("del blackhole 10.0.0.0/8"), Ok(set(Del, "10.0.0.0/8", Blackhole, vec![], None)));
        assert_eq!(read("del default"), Ok(set(Del, "0.0.0.0/0", Unicast, vec![], None)));
        let Ok(Order::Set(flush)) = read("flush dev eth1 to 10.0.0.0/8") else { panic!("no flush") };
        assert_eq!(
            (flush.to.as_deref(), &flush.nexthops[..]),
            (Some("10.0.0.0/8"), &[hop(None, Some("eth1"), 1)][..])
        );
    }

    #[test]
    fn a_bad_word_is_named_with_what_was_expected() {
        for (text, expected) in [
            ("list", "expected show, get, add, replace, del or flush, found \"list\""),
            ("add", "expected a prefix next, found nothing"),
            ("add 10.0.0.0/8 via eth1", "expected the address of a gateway, found \"eth1\""),
            ("add 10.0.0.0/8 by eth1", "expected via, dev, metric or nexthop, found \"by\""),
            ("add 10.0.0.0/8 metric -1", "expected a metric, from 0 to 4294967295, found \"-1\""),
            ("add 10.0.0.0/8 nexthop weight 2", "expected via ADDR or dev DEV behind nexthop"),
            (
                "add 10.0.0.0/8 dev a nexthop dev b",
                "expected via and dev either once or behind each nexthop, found both",
            ),
            ("get eth1", "expected an IP address, found \"eth1\""),
            ("flush all", "expected to or dev, found \"all\""),
            ("show all", "expected nothing more, found \"all\""),
        ] {
            assert_eq!(read(text).unwrap_err(), expected, "{text}");
        }
    }
}
