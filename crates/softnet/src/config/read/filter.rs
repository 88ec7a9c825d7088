//! `[filter]`, `[[rule]]` and `[[set]]`.

use std::io::Read as _;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use softnet_core::filter::{Action, Chain, FlowState};
use softnet_core::ip::v4::header::protocol;
use softnet_core::ip::v6::header::next;
use softnet_core::ip::{IpPrefix, Prefix};
use toml::de::DeValue;

use super::super::check;
use super::super::errors::Place;
use super::super::filter::{FilterConfig, PROTOCOLS, RuleAddresses, RuleConfig, SetConfig};
use super::super::sections::{Source, SourceError};
use super::super::value::{Value, shown, whole};
use super::{Read, Table, set};

/// Bytes of the longest file of a set: a million prefixes.
const MAX_FILE: u64 = 64 << 20;
/// What a prefix looks like.
const PREFIX: &str = "an address or a prefix, such as 192.0.2.0/24 or 2001:db8::1";
/// Messages by name, with their types of ICMP and of ICMPv6.
const MESSAGES: [(&str, Option<u8>, Option<u8>); 9] = [
    ("echo-request", Some(8), Some(128)),
    ("echo-reply", Some(0), Some(129)),
    ("destination-unreachable", Some(3), Some(1)),
    ("time-exceeded", Some(11), Some(3)),
    ("parameter-problem", Some(12), Some(4)),
    ("redirect", Some(5), Some(137)),
    ("timestamp-request", Some(13), None),
    ("timestamp-reply", Some(14), None),
    ("packet-too-big", None, Some(2)),
];

/// A prefix, or an address by itself.
fn prefix(text: &str) -> Result<IpPrefix, String> {
    if let Ok(addr) = text.parse::<IpAddr>() {
        return Ok(Prefix::host(addr));
    }
    match text.contains('/') {
        true => text.parse::<IpPrefix>().map_err(|error| error.to_string()),
        false => Err(format!("expected {PREFIX}, found {text:?}")),
    }
}

impl Read {
    /// `[filter]`, beside the rules and sets that there are.
    pub(super) fn filter(&mut self, table: Table<'_>, filter: &mut FilterConfig) {
        self.known_keys(table, &["input", "forward", "output", "connections"]);
        let actions = Action::ALL.map(|action| (action.name(), action));
        for chain in Chain::ALL {
            set(&mut filter.policies[chain as usize], self.choice(table, chain.name(), &actions));
        }
        set(&mut filter.connections, self.integer(table, "connections", &check::NAT_CONNECTIONS));
    }

    /// The values of `key`, which may be one by itself.
    fn one_or_more<'a>(&mut self, table: Table<'a>, key: &'static str) -> Vec<(Place, &'a Value<'a>)> {
        let Some(value) = table.get(key) else { return Vec::new() };
        let place = table.section.key(key);
        let Some(array) = value.get_ref().as_array() else {
            self.spans.insert(place, value.span());
            return vec![(place, value)];
        };
        if array.is_empty() {
            self.wrong(table, key, "expected one value or more, or no such key");
        }
        let items = self.items(table, key, "a list");
        items.into_iter().map(|(item, value)| (table.section.item(key, item), value)).collect()
    }

    /// The same, each read by `read`, which says what it expects.
    fn each<T>(
        &mut self,
        table: Table<'_>,
        key: &'static str,
        expected: &str,
        read: impl Fn(&DeValue<'_>) -> Option<T>,
    ) -> Vec<T> {
        let mut all = Vec::new();
        for (place, value) in self.one_or_more(table, key) {
            let one =
                read(value.get_ref()).ok_or_else(|| format!("expected {expected}, found {}", shown(value)));
            all.extend(self.parsed(place, value, one));
        }
        all
    }

    /// The same of names.
    fn names<T: Copy>(&mut self, table: Table<'_>, key: &'static str, known: &[(&str, T)]) -> Vec<T> {
        let names: Vec<String> = known.iter().map(|(name, _)| format!("{name:?}")).collect();
        self.each(table, key, &names.join(" or "), |value| {
            let text = value.as_str()?;
            known.iter().find(|(name, _)| *name == text).map(|(_, value)| *value)
        })
    }

    fn rule_addresses(&mut self, table: Table<'_>, key: &'static str) -> Vec<RuleAddresses> {
        let mut all = Vec::new();
        for (place, value) in self.one_or_more(table, key) {
            let Some(text) = self.as_string(place, value) else { continue };
            let read = match text.strip_prefix('@') {
                Some(name) => Ok(RuleAddresses::Set(name.into())),
                None => prefix(text).map(RuleAddresses::Prefix),
            };
            all.extend(self.parsed(place, value, read));
        }
        all
    }

    fn ports(&mut self, table: Table<'_>, key: &'static str) -> Vec<RangeInclusive<u16>> {
        let expected = "a port, such as 443, or a range, such as \"8000-8080\"";
        self.each(table, key, expected, |value| match value.as_str() {
            Some(text) => {
                let (first, last) = text.split_once('-').unwrap_or((text, text));
                let (first, last) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
                (first <= last).then_some(first..=last)
            }
            None => whole(value).map(|port: u16| port..=port),
        })
    }

    /// A rule; `None` if it could not be read.
    pub(super) fn rule(&mut self, table: Table<'_>) -> Option<RuleConfig> {
        self.known_keys(
            table,
            &[
                "name",
                "hook",
                "in",
                "out",
                "source",
                "destination",
                "protocol",
                "source_port",
                "destination_port",
                "icmp_type",
                "tcp_syn",
                "state",
                "action",
            ],
        );
        let before = self.found.len();
        for key in ["hook", "action"] {
            if table.get(key).is_none() {
                self.wrong(table, key, &format!("expected the key {key:?}, which is missing"));
            }
        }
        let text = |value: &DeValue<'_>| value.as_str().map(str::to_owned);
        let protocols = PROTOCOLS.map(|(name, _)| name).join(", ");
        let expected = format!("a protocol by name ({protocols}) or number");
        let numbers = |value: &DeValue<'_>| match value.as_str() {
            Some(text) => PROTOCOLS.iter().find(|(name, _)| *name == text).map(|(_, number)| *number),
            None => whole(value),
        };
        let mut rule = RuleConfig {
            name: self.string(table, "name"),
            hook: self.names(table, "hook", &Chain::ALL.map(|chain| (chain.name(), chain))),
            input: self.each(table, "in", "the name of a device in quotes", text),
            output: self.each(table, "out", "the name of a device in quotes", text),
            source: self.rule_addresses(table, "source"),
            destination: self.rule_addresses(table, "destination"),
            protocol: self.each(table, "protocol", &expected, numbers),
            source_port: self.ports(table, "source_port"),
            destination_port: self.ports(table, "destination_port"),
            state: self.names(table, "state", &FlowState::ASKED.map(|state| (state.name(), state))),
            ..RuleConfig::default()
        };
        rule.icmp_type = self.icmp_types(table, &rule.protocol);
        set(&mut rule.tcp_syn, self.boolean(table, "tcp_syn"));
        let actions = Action::ALL.map(|action| (action.name(), action));
        set(&mut rule.action, self.choice(table, "action", &actions));
        (self.found.len() == before).then_some(rule)
    }

    /// Types of messages: by name those of the protocols that the rule has.
    fn icmp_types(&mut self, table: Table<'_>, protocols: &[u8]) -> Vec<u8> {
        let [four, six] = [protocol::ICMP, next::ICMPV6].map(|number| protocols.contains(&number));
        let known = MESSAGES.iter().filter(|(_, v4, v6)| four && v4.is_some() || six && v6.is_some());
        let names: Vec<&str> = known.clone().map(|(name, ..)| *name).collect();
        let expected = format!("the number of a type, or its name ({})", names.join(", "));
        let types = self.each(table, "icmp_type", &expected, |value| match value.as_str() {
            Some(text) => {
                let (_, v4, v6) = known.clone().find(|(name, ..)| *name == text)?;
                Some([v4.filter(|_| four), v6.filter(|_| six)])
            }
            None => Some([whole::<u8>(value), None]).filter(|[number, _]| number.is_some()),
        });
        types.into_iter().flatten().flatten().collect()
    }

    /// A set; `None` if it could not be read.
    pub(super) fn set(&mut self, table: Table<'_>) -> Option<SetConfig> {
        self.known_keys(table, &["name", "prefixes", "file"]);
        let before = self.found.len();
        let name = self.required_string(table, "name");
        let mut prefixes = Vec::new();
        for (item, value) in self.items(table, "prefixes", "a list of prefixes, such as [\"192.0.2.0/24\"]") {
            let place = table.section.item("prefixes", item);
            if let Some(text) = self.as_string(place, value) {
                prefixes.extend(self.parsed(place, value, prefix(text)));
            }
        }
        if let Some(file) = self.string(table, "file")
            && let Some(value) = table.get("file")
        {
            let read = self.file(Path::new(&file)).and_then(|path| prefixes_of(&path));
            prefixes.extend(self.parsed(table.section.key("file"), value, read).into_iter().flatten());
        }
        if table.get("prefixes").is_none() && table.get("file").is_none() {
            self.wrong(table, "prefixes", "expected prefixes, or a file of them");
        }
        (self.found.len() == before).then_some(())?;
        Some(SetConfig { name: name?, prefixes })
    }

    /// Where a file is that the configuration names: beside it.
    fn file(&self, name: &Path) -> Result<PathBuf, String> {
        let base = self.directory.as_ref();
        let path = base.map(|directory| directory.join(name));
        path.ok_or_else(|| "expected prefixes: only a configuration that is a file can name others".into())
    }
}

/// The prefixes in a file: one in each line, but for empty ones and what is behind a `#`.
fn prefixes_of(path: &Path) -> Result<Vec<IpPrefix>, String> {
    let shown = path.display();
    let mut text = String::new();
    let read = match Source::open(path) {
        Ok(Source::File(file)) => file.take(MAX_FILE + 1).read_to_string(&mut text).map_err(SourceError::Io),
        Ok(Source::Text(_)) => Ok(0),
        Err(error) => Err(error),
    };
    match read {
        Ok(_) if text.len() as u64 > MAX_FILE => {
            return Err(format!("{shown}: expected at most {} MiB, found more", MAX_FILE >> 20));
        }
        Ok(_) => {}
        Err(SourceError::Io(error)) if error.kind() == std::io::ErrorKind::NotFound => {
            return Err(format!("{shown}: no such file"));
        }
        Err(SourceError::Io(error)) => return Err(format!("{shown}: cannot be read: {error}")),
        Err(_) => return Err(format!("{shown}: expected a regular file of at most {} MiB", MAX_FILE >> 20)),
    }
    let mut prefixes = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let text = line.split('#').next().unwrap_or_default().trim();
        if text.is_empty() {
            continue;
        }
        let read = prefix(text).map_err(|why| format!("{shown}:{}: {why}", number + 1));
        prefixes.push(read?);
    }
    Ok(prefixes)
}
