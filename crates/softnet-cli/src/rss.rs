//! `softnet set rss` and how RSS and ntuple filters look to people.

use std::collections::BTreeMap;

use softnet::control::show::{NtupleRow, RssRow};
use softnet::control::{Client, ClientError, Request, RssAnswer, SetRss};
use softnet_core::steer::RssChange;

use crate::Failure;
use crate::show::rows::{Cell, Row, Since, counter, left, right, table};
use crate::text::{print, print_json};

/// Changes how device `dev` spreads flows, in the words of `ethtool -X`.
pub(crate) fn set(dev: &str, change: &str, name: Option<&str>, json: bool) -> Result<(), Failure> {
    // What is no order is told without an instance.
    change
        .parse::<RssChange>()
        .map_err(|error| Failure::Usage(format!("{error}; `softnet set --help` has all of it")))?;
    let failed = |error: ClientError| Failure::Run(error.to_string());
    let client = Client::new(name).map_err(failed)?;
    let set = SetRss { dev: dev.into(), change: change.into() };
    let answer: RssAnswer = client.ask(&Request::Rss(set)).map_err(failed)?;
    if json {
        return print_json(&answer);
    }
    if let Some(context) = answer.context {
        print(&format!("new RSS context is {context}\n"))?;
    }
    print(&table(&answer.rss, None))
}

/// How many entries of the table each queue has: `0: 64, 1: 64`.
fn shares(row: &RssRow) -> String {
    const SHOWN: usize = 16;
    let mut entries = BTreeMap::<u32, usize>::new();
    row.table.iter().for_each(|queue| *entries.entry(*queue).or_default() += 1);
    let alike = entries.values().min() == entries.values().max();
    let all: Vec<String> = entries.iter().map(|(queue, n)| format!("{queue}: {n}")).collect();
    match (alike, all.len()) {
        (_, 0) => "-".into(),
        (true, n) if n > SHOWN => format!("{n} queues, {} each", row.table.len() / n),
        (false, n) if n > SHOWN => format!("{}, … ({n} queues)", all[..SHOWN].join(", ")),
        _ => all.join(", "),
    }
}

/// Which kinds of flow are hashed with their ports.
fn with_ports(row: &RssRow) -> String {
    let kinds: Vec<&str> =
        row.fields.iter().filter(|(_, fields)| *fields == "sdfn").map(|(kind, _)| &kind[..]).collect();
    if kinds.is_empty() { "-".into() } else { kinds.join(" ") }
}

impl Row for RssRow {
    const NONE: &'static str = "no devices";

    fn key(&self) -> String {
        format!("{} {}", self.dev, self.context)
    }

    fn cells(&self, _: Since<'_, Self>) -> Vec<Cell> {
        let or_dash = |text: &str| if text.is_empty() { "-".to_owned() } else { text.to_owned() };
        let known = |cell: String| if self.why.is_some() { "-".into() } else { cell };
        let entries = match &self.why {
            Some(why) => why.clone(),
            None => shares(self),
        };
        vec![
            left("dev", &self.dev),
            right("context", known(self.context.to_string())),
            right("queues", known(self.queues.to_string())),
            left("entries of each queue", entries),
            left("hfunc", or_dash(&self.hfunc)),
            left("xfrm", or_dash(&self.xfrm)),
            left("with ports", with_ports(self)),
            left("hkey", or_dash(&self.hkey)),
        ]
    }

    fn note(&self) -> Option<String> {
        self.warning.as_ref().map(|warning| format!("{}: {warning}", self.dev))
    }
}

impl Row for NtupleRow {
    const NONE: &'static str = "no filters; `softnet ntuple --help` says how to add one";

    fn key(&self) -> String {
        format!("{} {} {}", self.dev, self.location, self.rule)
    }

    fn cells(&self, since: Since<'_, Self>) -> Vec<Cell> {
        let packets = match self.packets {
            Some(_) => counter(self, since, |row| row.packets.unwrap_or(0)),
            None => "-".into(),
        };
        vec![
            left("dev", &self.dev),
            right("loc", self.location.to_string()),
            left("filter", if self.rfs { format!("{} (RFS)", self.rule) } else { self.rule.clone() }),
            right("packets", packets),
        ]
    }
}
