//! TOML to [`Config`]: types, unknown keys and spans. What the values mean together is for `check`.
//!
//! A value that cannot be read is told and its default stands in, so that one pass finds everything. The text comes in
//! pieces, see [`load`](super::load): one for each route and neighbour, and at last one for all the rest.

mod driver_keys;
mod filter;
mod follow;
mod metrics;
mod nat;
mod route;
mod steering;
mod tcp;

use std::net::IpAddr;
use std::ops::Range;
use std::path::PathBuf;

use softnet_core::gro::GroMode;
use softnet_core::ip::icmp_limit::IcmpParams;
use softnet_core::ip::source::RpFilter;
use softnet_core::ip::v4::options::OptionPolicy;
use softnet_core::qdisc::{Spec, SpecError};
use softnet_dev::sched::Policy;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::check::{self, GC_THRESH_KEYS, NS_PER_MS};
use super::errors::{Found, MAX_PROBLEMS, Place, Section, Spans};
use super::value::{Value, nearest, shown, whole};
use super::{Config, CpuList, DeviceConfig, InterfaceAddr, PartialCsum, StackConfig};
use crate::driver::{KINDS, Kind};
use crate::util::Limit;

use driver_keys::DriverKeys;

/// What reading brought.
#[derive(Default)]
pub(super) struct Read {
    pub(super) config: Config,
    /// Of the values of the piece that was read last.
    pub(super) spans: Spans,
    pub(super) found: Vec<Found>,
    /// Whether every device and address of that piece could be read. If not, what routes and neighbours refer to may be
    /// among the missing.
    pub(super) devices_complete: bool,
    /// Whether the piece is an entry of a list, and nothing else.
    pub(super) is_entry: bool,
    /// Where files are that the configuration names; `None` if it may name none.
    pub(super) directory: Option<PathBuf>,
    /// The lists of which there were entries.
    lists: Vec<&'static str>,
}

/// A table of the file, and which section it is (of).
#[derive(Clone, Copy)]
pub(super) struct Table<'a> {
    section: Section,
    span: (usize, usize),
    entries: &'a DeTable<'a>,
}

impl<'a> Table<'a> {
    fn get(&self, key: &str) -> Option<&'a Value<'a>> {
        self.entries.get(key)
    }
}

impl Read {
    /// Reads `text`, as much of it as can be read, beside what was read before. Says whether it is TOML; if not, what was
    /// found is what is wrong with that.
    pub(super) fn text(&mut self, text: &str) -> bool {
        let (root, syntax) = DeTable::parse_recoverable(text);
        // After a syntax error keys may be in the wrong section: whatever else were told could be its consequence.
        if syntax.is_empty() {
            self.root(root.get_ref());
        }
        for error in &syntax {
            let span = error.span().unwrap_or(0..0);
            self.problem(Section::Root.itself(), span, error.message().replace('\n', "; "));
        }
        syntax.is_empty()
    }

    fn root(&mut self, entries: &DeTable<'_>) {
        let root = Table { section: Section::Root, span: (0, 0), entries };
        self.known_keys(
            root,
            &[
                "stack",
                "device",
                "route",
                "neighbour",
                "tcp",
                "nat",
                "filter",
                "rule",
                "set",
                "control",
                "metrics",
            ],
        );
        if let Some(table) = root.get("stack").and_then(|value| self.table(Section::Stack, value)) {
            self.config.stack = self.stack(table);
        }
        let before = self.found.len();
        for value in self.list(root, "device") {
            if let Some(table) = self.table(Section::Device(self.config.devices.len()), value) {
                let device = self.device(table);
                self.config.devices.push(device);
            }
        }
        self.devices_complete = self.found.len() == before;
        for value in self.list(root, "route") {
            let section = Section::Route(self.config.routes.len());
            match self.table(section, value).and_then(|table| self.route(table)) {
                Some(route) => self.config.routes.push(route),
                // The next route gets the same index.
                None => self.forget(section),
            }
        }
        for value in self.list(root, "neighbour") {
            let section = Section::Neighbour(self.config.neighbours.len());
            match self.table(section, value).and_then(|table| self.neighbour(table)) {
                Some(neighbour) => self.config.neighbours.push(neighbour),
                None => self.forget(section),
            }
        }
        if let Some(table) = root.get("tcp").and_then(|value| self.table(Section::Tcp, value)) {
            self.config.tcp = self.tcp(table);
        }
        if let Some(table) = root.get("nat").and_then(|value| self.table(Section::Nat, value)) {
            self.config.nat = Some(self.nat(table));
        }
        if let Some(table) = root.get("control").and_then(|value| self.table(Section::Control, value)) {
            self.known_keys(table, &["group"]);
            self.config.control.group = self.string(table, "group");
            if self
                .config
                .control
                .group
                .as_ref()
                .is_some_and(|group| group.is_empty() || group.contains([':', '\n']))
            {
                self.wrong(table, "group", "expected the name or the number of a group");
            }
        }
        if let Some(table) = root.get("metrics").and_then(|value| self.table(Section::Metrics, value)) {
            self.config.metrics = self.metrics(table);
        }
        let mut filter = std::mem::take(&mut self.config.filter);
        if let Some(table) = root.get("filter").and_then(|value| self.table(Section::Filter, value)) {
            self.filter(table, &mut filter);
        }
        for value in self.list(root, "set") {
            let section = Section::Set(filter.sets.len());
            match self.table(section, value).and_then(|table| self.set(table)) {
                Some(set) => filter.sets.push(set),
                None => self.forget(section),
            }
        }
        for value in self.list(root, "rule") {
            let section = Section::Rule(filter.rules.len());
            match self.table(section, value).and_then(|table| self.rule(table)) {
                Some(rule) => filter.rules.push(rule),
                None => self.forget(section),
            }
        }
        self.config.filter = filter;
    }

    fn stack(&mut self, table: Table<'_>) -> StackConfig {
        self.known_keys(
            table,
            &[
                "name",
                "control",
                "workers",
                "worker_policy",
                "worker_priority",
                "frames",
                "netdev_budget",
                "netdev_budget_usecs",
                "dev_weight",
                "skb_cache",
                "skb_defer_max",
                "workqueue_threads",
                "netdev_max_backlog",
                "rps_sock_flow_entries",
                "flow_limit_table_len",
                "qdisc_max_burst",
                "txq_reselection_ms",
                "max_sockets",
                "default_qdisc",
                "gc_thresh1",
                "gc_thresh2",
                "gc_thresh3",
                "icmp_ratelimit",
                "icmp_ratemask",
                "icmpv6_ratelimit",
                "icmp_msgs_per_sec",
                "icmp_msgs_burst",
                "ip_options",
                "follow",
            ],
        );
        let mut stack = StackConfig::default();
        set(&mut stack.name, self.string(table, "name"));
        stack.control = self.string(table, "control").map(PathBuf::from);
        set(&mut stack.workers, self.integers(table, "workers", &check::CPU));
        stack.worker_policy = self.worker_policy(table);
        set(&mut stack.frames, self.integer(table, "frames", &check::FRAMES));
        set(&mut stack.netdev_budget, self.integer(table, "netdev_budget", &check::NETDEV_BUDGET));
        let usecs = self.integer(table, "netdev_budget_usecs", &check::NETDEV_BUDGET_USECS);
        set(&mut stack.netdev_budget_usecs, usecs);
        set(&mut stack.dev_weight, self.integer(table, "dev_weight", &check::DEV_WEIGHT));
        let pool = self.integer(table, "workqueue_threads", &check::WORKQUEUE_THREADS);
        set(&mut stack.workqueue_threads, pool);
        for (key, limit, slot) in [
            ("netdev_max_backlog", &check::NETDEV_MAX_BACKLOG, &mut stack.netdev_max_backlog),
            ("rps_sock_flow_entries", &check::RPS_SOCK_FLOW_ENTRIES, &mut stack.rps_sock_flow_entries),
            ("flow_limit_table_len", &check::FLOW_LIMIT_TABLE_LEN, &mut stack.flow_limit_table_len),
        ] {
            set(slot, self.integer(table, key, limit));
        }
        set(&mut stack.skb_defer_max, self.integer(table, "skb_defer_max", &check::SKB_DEFER_MAX));
        set(&mut stack.qdisc_max_burst, self.integer(table, "qdisc_max_burst", &check::QDISC_MAX_BURST));
        let ms = self.integer(table, "txq_reselection_ms", &check::TXQ_RESELECTION_MS);
        set(&mut stack.txq_reselection_ms, ms);
        set(&mut stack.max_sockets, self.integer(table, "max_sockets", &check::MAX_SOCKETS));
        set(&mut stack.default_qdisc, self.qdisc(table, "default_qdisc"));
        for ((slot, key), limit) in stack.gc_thresh.iter_mut().zip(GC_THRESH_KEYS).zip(&check::GC_THRESH) {
            set(slot, self.integer(table, key, limit));
        }
        self.icmp(table, &mut stack.icmp);
        let policies = [
            ("process", OptionPolicy::Process),
            ("ignore", OptionPolicy::Ignore),
            ("drop", OptionPolicy::Drop),
        ];
        set(&mut stack.ip_options, self.choice(table, "ip_options", &policies));
        stack.follow = self.follow(table);
        if let Some(cache) = table.get("skb_cache").and_then(|value| self.table(Section::SkbCache, value)) {
            self.known_keys(cache, &["size", "refill", "flush"]);
            for (key, limit, slot) in [
                ("size", &check::CACHE_SIZE, &mut stack.skb_cache.size),
                ("refill", &check::CACHE_MOVE, &mut stack.skb_cache.refill),
                ("flush", &check::CACHE_MOVE, &mut stack.skb_cache.flush),
            ] {
                set(slot, self.integer(cache, key, limit));
            }
        }
        stack
    }

    fn icmp(&mut self, table: Table<'_>, icmp: &mut IcmpParams) {
        for (key, slot) in
            [("icmp_ratelimit", &mut icmp.icmp_ratelimit), ("icmpv6_ratelimit", &mut icmp.icmpv6_ratelimit)]
        {
            let ms = self.integer::<u64>(table, key, &check::ICMP_RATELIMIT);
            set(slot, ms.map(|ms| ms.saturating_mul(NS_PER_MS)));
        }
        for (key, limit, slot) in [
            ("icmp_ratemask", &check::ICMP_RATEMASK, &mut icmp.icmp_ratemask),
            ("icmp_msgs_per_sec", &check::ICMP_MSGS, &mut icmp.icmp_msgs_per_sec),
            ("icmp_msgs_burst", &check::ICMP_MSGS, &mut icmp.icmp_msgs_burst),
        ] {
            set(slot, self.integer(table, key, limit));
        }
    }

    fn qdisc(&mut self, table: Table<'_>, key: &'static str) -> Option<Spec> {
        let (text, value) = (self.string(table, key)?, table.get(key)?);
        let read = text.parse().map_err(|error: SpecError| error.to_string());
        self.parsed(table.section.key(key), value, read)
    }

    /// One list for each queue.
    fn cpu_lists(&mut self, table: Table<'_>, key: &'static str, expected: &str) -> Vec<CpuList> {
        let mut lists = Vec::new();
        for (item, value) in self.items(table, key, expected) {
            let place = table.section.item(key, item);
            if let Some(text) = self.as_string(place, value) {
                lists.push(self.parsed(place, value, text.parse()).unwrap_or_default());
            }
        }
        lists
    }

    fn worker_policy(&mut self, table: Table<'_>) -> Option<Policy> {
        let policies = [
            ("other", Policy::Other),
            ("batch", Policy::Batch),
            ("idle", Policy::Idle),
            ("fifo", Policy::Fifo(1)),
            ("rr", Policy::Rr(1)),
        ];
        let policy = self.choice(table, "worker_policy", &policies);
        let priority = self.integer(table, "worker_priority", &check::WORKER_PRIORITY);
        match (policy, priority) {
            (Some(Policy::Fifo(_)), Some(priority)) => Some(Policy::Fifo(priority)),
            (Some(Policy::Rr(_)), Some(priority)) => Some(Policy::Rr(priority)),
            // One that can't be read is told already.
            (None, Some(_)) if table.get("worker_policy").is_some() => None,
            (_, Some(_)) => {
                let message =
                    "expected worker_policy = \"fifo\" or \"rr\" beside it: no other has priorities";
                self.wrong(table, "worker_priority", message);
                policy
            }
            (_, None) => policy,
        }
    }

    fn device(&mut self, table: Table<'_>) -> DeviceConfig {
        let kinds: Vec<(&str, &Kind)> = KINDS.iter().map(|kind| (kind.name, kind)).collect();
        let kind = self.choice(table, "driver", &kinds);
        self.device_keys(table, kind);
        let mut device = DeviceConfig::new(self.required_string(table, "name").unwrap_or_default());
        if let Some(kind) = kind.or(KINDS.first()) {
            device.driver = (kind.read)(&mut DriverKeys { read: self, table });
        }
        set(&mut device.force, self.boolean(table, "force"));
        for (item, value) in self.items(table, "addresses", "a list of addresses, such as [\"10.0.0.1/24\"]")
        {
            let place = table.section.item("addresses", item);
            if let Some(text) = self.as_string(place, value) {
                device.addresses.extend(self.parsed(place, value, text.parse::<InterfaceAddr>()));
            }
        }
        let workers = self.integers(table, "workers", &check::WORKER);
        set(&mut device.workers, workers.map(|all| all.into_iter().map(|i| i as usize).collect()));
        let answers = [("auto", PartialCsum::Auto), ("on", PartialCsum::On), ("off", PartialCsum::Off)];
        set(&mut device.partial_csum, self.choice(table, "partial_csum", &answers));
        for (key, slot) in [
            ("send_redirects", &mut device.send_redirects),
            ("arp_notify", &mut device.arp_notify),
            ("ndisc_notify", &mut device.ndisc_notify),
            ("dad", &mut device.dad),
        ] {
            set(slot, self.boolean(table, key));
        }
        let filters = [("off", RpFilter::Off), ("strict", RpFilter::Strict), ("loose", RpFilter::Loose)];
        set(&mut device.rp_filter, self.choice(table, "rp_filter", &filters));
        if let Some(text) = self.string(table, "threaded")
            && let Some(value) = table.get("threaded")
        {
            set(&mut device.threaded, self.parsed(table.section.key("threaded"), value, text.parse()));
        }
        let n = self.integer(table, "napi_defer_hard_irqs", &check::DEFER_HARD_IRQS);
        set(&mut device.napi_defer_hard_irqs, n);
        for (key, slot) in [
            ("gro_flush_timeout", &mut device.gro_flush_timeout),
            ("irq_suspend_timeout", &mut device.irq_suspend_timeout),
        ] {
            set(slot, self.integer(table, key, &check::NANOSECONDS));
        }
        let modes = GroMode::ALL.map(|mode| (mode.name(), mode));
        set(&mut device.gro, self.choice(table, "gro", &modes));
        device.qdisc = self.qdisc(table, "qdisc");
        set(&mut device.tx_queue_len, self.integer(table, "tx_queue_len", &check::TX_QUEUE_LEN));
        self.steering(table, &mut device);
        let expected = "a list for each TX queue, such as [\"0-3\", \"4,6\"]";
        device.xps_cpus = self.cpu_lists(table, "xps_cpus", expected);
        device.xps_rxqs = self.cpu_lists(table, "xps_rxqs", expected);
        device
    }

    /// Refuses keys that no device has, and those of another driver than `kind`, which is `None` if the file names none that
    /// there is.
    fn device_keys(&mut self, table: Table<'_>, kind: Option<&Kind>) {
        let named = table.get("driver").is_some();
        let own = kind.or(KINDS.first().filter(|_| !named));
        let of = |name: &str| KINDS.iter().find(|kind| kind.keys.contains(&name));
        let keys = own.map_or(&[][..], |own| own.keys);
        let known: Vec<&str> = ["name", "driver"].iter().chain(keys).chain(DEVICE_KEYS).copied().collect();
        self.keys(table, &known, |name| {
            let other = of(name)?;
            Some(own.map(|own| {
                format!("{name:?} is a key of the driver {:?}, not of {:?}", other.name, own.name)
            }))
        });
    }

    fn problem(&mut self, place: Place, span: Range<usize>, message: impl Into<String>) {
        if self.found.len() >= MAX_PROBLEMS {
            return;
        }
        self.found.push(Found { place, span: Some(span), at: None, message: message.into() });
    }

    fn wrong(&mut self, table: Table<'_>, key: &'static str, message: &str) {
        let span = table.get(key).map_or(table.span.0..table.span.1, Spanned::span);
        self.problem(table.section.key(key), span, message);
    }

    /// Forgets where the values of `section` are.
    fn forget(&mut self, section: Section) {
        self.spans.retain(|place, _| place.section != section);
    }

    fn known_keys(&mut self, table: Table<'_>, known: &[&str]) {
        self.keys(table, known, |_| None);
    }

    /// Tells of every key that is not `known`; what, if anything, says `other` of those that it knows.
    fn keys(&mut self, table: Table<'_>, known: &[&str], other: impl Fn(&str) -> Option<Option<String>>) {
        for key in table.entries.keys() {
            let name: &str = key.get_ref();
            if known.contains(&name) {
                continue;
            }
            let hint = || match nearest(name, known) {
                Some(near) => format!("did you mean {near:?}?"),
                None => format!("expected one of {}", known.join(", ")),
            };
            let told = other(name).unwrap_or_else(|| Some(format!("unknown key {name:?}; {}", hint())));
            if let Some(told) = told {
                self.problem(table.section.itself(), key.span(), told);
            }
        }
    }

    /// `value` as a table, its span noted as that of `section`.
    fn table<'a>(&mut self, section: Section, value: &'a Value<'a>) -> Option<Table<'a>> {
        let span = value.span();
        match value.get_ref().as_table() {
            Some(entries) => {
                self.spans.insert(section.itself(), span.clone());
                Some(Table { section, span: (span.start, span.end), entries })
            }
            None => {
                self.problem(section.itself(), span, format!("expected a table, found {}", shown(value)));
                None
            }
        }
    }

    /// The tables of `[[key]]`.
    fn list<'a>(&mut self, root: Table<'a>, key: &'static str) -> Vec<&'a Value<'a>> {
        let Some(value) = root.get(key) else { return Vec::new() };
        match (self.is_entry, self.lists.contains(&key)) {
            (true, false) => self.lists.push(key),
            (false, true) => {
                self.wrong(root, key, &format!("expected all of them as [[{key}]], as others are"));
                return Vec::new();
            }
            _ => {}
        }
        match value.get_ref().as_array() {
            Some(array) => array.iter().collect(),
            None => {
                self.wrong(root, key, &format!("expected a list of tables: write [[{key}]]"));
                Vec::new()
            }
        }
    }

    /// The elements of an array, each span noted.
    fn items<'a>(
        &mut self,
        table: Table<'a>,
        key: &'static str,
        expected: &str,
    ) -> Vec<(usize, &'a Value<'a>)> {
        let Some(value) = table.get(key) else { return Vec::new() };
        self.spans.insert(table.section.key(key), value.span());
        let Some(array) = value.get_ref().as_array() else {
            self.wrong(table, key, &format!("expected {expected}, found {}", shown(value)));
            return Vec::new();
        };
        for (item, element) in array.iter().enumerate() {
            self.spans.insert(table.section.item(key, item), element.span());
        }
        array.iter().enumerate().collect()
    }

    /// The value of `key` as `read` sees it, its span noted; told if `read` does not take it.
    fn value<'a, T>(
        &mut self,
        table: Table<'a>,
        key: &'static str,
        expected: &str,
        read: impl FnOnce(&'a DeValue<'a>) -> Option<T>,
    ) -> Option<T> {
        let value = table.get(key)?;
        self.spans.insert(table.section.key(key), value.span());
        let taken = read(value.get_ref());
        if taken.is_none() {
            self.wrong(table, key, &format!("expected {expected}, found {}", shown(value)));
        }
        taken
    }

    pub(super) fn boolean(&mut self, table: Table<'_>, key: &'static str) -> Option<bool> {
        self.value(table, key, "true or false", DeValue::as_bool)
    }

    fn string(&mut self, table: Table<'_>, key: &'static str) -> Option<String> {
        self.value(table, key, "text in quotes", |value| value.as_str().map(str::to_owned))
    }

    fn required_string(&mut self, table: Table<'_>, key: &'static str) -> Option<String> {
        if table.get(key).is_none() {
            let message = format!("expected the key {key:?}, which is missing");
            self.problem(table.section.key(key), table.span.0..table.span.1, message);
        }
        self.string(table, key)
    }

    fn as_string<'a>(&mut self, place: Place, value: &'a Value<'a>) -> Option<&'a str> {
        let text = value.get_ref().as_str();
        if text.is_none() {
            self.problem(place, value.span(), format!("expected text in quotes, found {}", shown(value)));
        }
        text
    }

    fn choice<T: Copy>(&mut self, table: Table<'_>, key: &'static str, choices: &[(&str, T)]) -> Option<T> {
        let names: Vec<String> = choices.iter().map(|(name, _)| format!("{name:?}")).collect();
        self.value(table, key, &names.join(" or "), |value| {
            let text = value.as_str()?;
            choices.iter().find(|(name, _)| *name == text).map(|&(_, choice)| choice)
        })
    }

    /// A number that a `T` can hold; whether it is within `limit` is for `check`.
    pub(super) fn integer<T: TryFrom<u64>>(
        &mut self,
        table: Table<'_>,
        key: &'static str,
        limit: &Limit,
    ) -> Option<T> {
        self.value(table, key, &limit.to_string(), whole)
    }

    fn integers(&mut self, table: Table<'_>, key: &'static str, limit: &Limit) -> Option<Vec<u32>> {
        let items = self.items(table, key, "a list of numbers, such as [0]");
        table.get(key)?.get_ref().as_array()?;
        let mut all = Vec::new();
        for (item, value) in items {
            match whole(value.get_ref()) {
                Some(number) => all.push(number),
                None => {
                    let message = format!("expected {limit}, found {}", shown(value));
                    self.problem(table.section.item(key, item), value.span(), message);
                    // Its place is kept, so that the others keep theirs.
                    all.push(0);
                }
            }
        }
        Some(all)
    }

    fn address(&mut self, table: Table<'_>, key: &'static str) -> Option<IpAddr> {
        self.value(table, key, "an IP address, such as \"10.0.0.1\"", |value| value.as_str()?.parse().ok())
    }

    fn parsed<T>(&mut self, place: Place, value: &Value<'_>, read: Result<T, impl ToString>) -> Option<T> {
        read.map_err(|error| self.problem(place, value.span(), error.to_string())).ok()
    }
}

/// Keys of every device, whatever its driver is.
const DEVICE_KEYS: &[&str] = &[
    "force",
    "addresses",
    "workers",
    "partial_csum",
    "send_redirects",
    "arp_notify",
    "ndisc_notify",
    "dad",
    "rp_filter",
    "threaded",
    "napi_defer_hard_irqs",
    "gro_flush_timeout",
    "irq_suspend_timeout",
    "gro",
    "qdisc",
    "tx_queue_len",
    "steering",
    "processing_cpu",
    "rps_cpus",
    "rps_flow_cnt",
    "rss",
    "xps_cpus",
    "xps_rxqs",
];

pub(super) fn set<T>(slot: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *slot = value;
    }
}
