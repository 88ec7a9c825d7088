//! What the values of a [`Config`] must be, each for itself and all together. Pure: it looks at no interface.

mod route;
mod vlan;

pub(super) use route::{METRIC, WEIGHT};

use std::collections::HashMap;
use std::net::IpAddr;

use softnet_core::napi::MAX_DEFER_HARD_IRQS;
use softnet_core::qdisc::{Spec, SpecError};
use softnet_core::sock::scope::scope_id;
use softnet_core::softnet_data::MAX_DEVICES;
use softnet_core::steer::{FlowLimit, MAX_CPUS, SockFlowTable};
use softnet_dev::sched::Policy;

use super::errors::{Found, MAX_PROBLEMS, Place, Section};
use super::{
    Config, DeviceConfig, InterfaceAddr, KnobError, QueueKnobs, StackConfig, format_mac, is_link_local,
};
use crate::util::{Limit, power, range};

pub(super) const CPU: Limit = range(0, 8191);
/// CPUs and queues in lists, as they are read from text.
const LISTED: Limit = range(0, MAX_CPUS as u64 - 1);
pub(super) const WORKER: Limit = range(0, 8191);
/// Real-time priorities (sched(7)).
pub(super) const WORKER_PRIORITY: Limit = range(1, 99);
pub(super) const FRAMES: Limit = power(1024, 1 << 19);
pub(super) const NETDEV_BUDGET: Limit = range(1, 100_000);
pub(super) const NETDEV_BUDGET_USECS: Limit = range(1, 1_000_000);
/// The kernel warns above 64 (`NAPI_POLL_WEIGHT`), and a batch holds no more.
pub(super) const DEV_WEIGHT: Limit = range(1, 64);
pub(super) const WORKQUEUE_THREADS: Limit = range(0, 256);
pub(super) const SKB_DEFER_MAX: Limit = range(0, 65_536);
pub(super) const CACHE_SIZE: Limit = range(1, 4096);
pub(super) const CACHE_MOVE: Limit = range(1, 4096);
pub(super) const DEFER_HARD_IRQS: Limit = range(0, MAX_DEFER_HARD_IRQS as u64);
pub(super) const NANOSECONDS: Limit = range(0, u64::MAX);
pub(super) const NETDEV_MAX_BACKLOG: Limit = range(1, 1 << 20);
pub(super) const RPS_SOCK_FLOW_ENTRIES: Limit = range(0, SockFlowTable::MAX as u64);
pub(super) const RPS_FLOW_CNT: Limit = range(0, softnet_core::steer::rfs::FlowTable::MAX as u64);
pub(super) const FLOW_LIMIT_TABLE_LEN: Limit = range(0, FlowLimit::MAX_BUCKETS as u64);
pub(super) const QDISC_MAX_BURST: Limit = range(1, 1 << 20);
pub(super) const MAX_SOCKETS: Limit = range(1, softnet_core::sock::MAX_SOCKETS as u64);
pub(super) const NS_PER_MS: u64 = 1_000_000;
/// In ms.
pub(super) const ICMP_RATELIMIT: Limit = range(0, 3_600_000);
pub(super) const ICMP_RATEMASK: Limit = range(0, u32::MAX as u64);
pub(super) const ICMP_MSGS: Limit = range(0, i32::MAX as u64);
pub(super) const TXQ_RESELECTION_MS: Limit = range(0, i32::MAX as u64);
/// The first and the second may be 0.
pub(super) const GC_THRESH: [Limit; 3] = [range(0, 1 << 20), range(0, 1 << 20), range(1, 1 << 20)];
/// Their keys.
pub(super) const GC_THRESH_KEYS: [&str; 3] = ["gc_thresh1", "gc_thresh2", "gc_thresh3"];
/// Of routes by FPM, in seconds.
pub(super) const HOLD: Limit = range(1, 86_400);
pub(super) const NAT_CONNECTIONS: Limit = range(1, 1 << 22);
/// In seconds.
pub(super) const NAT_TIMEOUT: Limit = range(1, 1 << 20);
pub(super) const NAT_PORT: Limit = range(1, 65_535);
pub(super) const TX_QUEUE_LEN: Limit = range(1, 1 << 20);

impl Limit {
    pub(super) fn check(&self, place: Place, value: impl Into<u64>, found: &mut Vec<Found>) {
        found.extend(self.wrong(value.into()).map(|why| Found::new(place, why)));
    }
}

/// Adds everything that is wrong with `config` to `found`. Without `devices_complete`, what routes and
/// neighbours refer to is not looked for.
pub(super) fn check(config: &Config, cpus: &[u32], devices_complete: bool, found: &mut Vec<Found>) {
    stack(&config.stack, cpus, found);
    // A table of another name may have been meant for one.
    if config.devices.is_empty() && devices_complete && !told(found, Section::Root.itself()) {
        let message =
            "expected at least one [[device]]: without one there is nothing to receive from or send by";
        found.push(Found::new(Section::Root.key("device"), message));
    }
    devices(config, found);
    route::check(config, devices_complete, found);
    neighbours(config, devices_complete, found);
    super::check_filter::check(config, devices_complete, found);
    super::tcp::check(&config.tcp, found);
    if let Some(nat) = &config.nat {
        super::check_nat::check(config, nat, devices_complete, found);
    }
}

/// Whether something is known to be wrong at `place` already: what stands in for it is not worth a second word.
fn told(found: &[Found], place: Place) -> bool {
    found.iter().any(|problem| problem.place == place)
}

fn stack(stack: &StackConfig, cpus: &[u32], found: &mut Vec<Found>) {
    let at = Section::Stack;
    let named = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let name = &stack.name;
    if name.is_empty() || name.len() > 64 || name.starts_with('.') || !name.chars().all(named) {
        let expected = "expected 1 to 64 letters, digits, '-', '_' or '.', not starting with '.'";
        found.push(Found::new(at.key("name"), format!("{expected}, found {name:?}")));
    }
    if let Some(path) = &stack.control {
        // 108 bytes with the closing zero: sun_path of unix(7).
        if !path.is_absolute() || path.as_os_str().len() > 107 {
            let message = format!("expected an absolute path of at most 107 bytes, found {path:?}");
            found.push(Found::new(at.key("control"), message));
        }
    }
    if let Some(fpm) = stack.follow.as_ref().and_then(|follow| follow.fpm) {
        if !fpm.is_local() {
            let message = format!("expected FPM at an address of loopback and a port, found {}", fpm.listen);
            found.push(Found::new(at.key("follow"), message));
        }
        HOLD.check(at.key("follow"), fpm.hold.as_secs(), found);
    }
    if stack.workers.is_empty() {
        found.push(Found::new(at.key("workers"), "expected at least one CPU, found none"));
    }
    for (i, cpu) in stack.workers.iter().enumerate() {
        if told(found, at.item("workers", i)) {
            continue;
        }
        if !cpus.contains(cpu) {
            let message = format!("expected a CPU this process may run on ({}), found {cpu}", ranges(cpus));
            found.push(Found::new(at.item("workers", i), message));
        } else if stack.workers[..i].contains(cpu) {
            let message = format!("CPU {cpu} is listed twice; expected one worker for each CPU");
            found.push(Found::new(at.item("workers", i), message));
        }
    }
    if let Some(Policy::Fifo(priority) | Policy::Rr(priority)) = stack.worker_policy {
        WORKER_PRIORITY.check(at.key("worker_priority"), priority, found);
    }
    FRAMES.check(at.key("frames"), stack.frames, found);
    NETDEV_BUDGET.check(at.key("netdev_budget"), stack.netdev_budget, found);
    NETDEV_BUDGET_USECS.check(at.key("netdev_budget_usecs"), stack.netdev_budget_usecs, found);
    DEV_WEIGHT.check(at.key("dev_weight"), stack.dev_weight, found);
    WORKQUEUE_THREADS.check(at.key("workqueue_threads"), stack.workqueue_threads, found);
    NETDEV_MAX_BACKLOG.check(at.key("netdev_max_backlog"), stack.netdev_max_backlog, found);
    RPS_SOCK_FLOW_ENTRIES.check(at.key("rps_sock_flow_entries"), stack.rps_sock_flow_entries, found);
    FLOW_LIMIT_TABLE_LEN.check(at.key("flow_limit_table_len"), stack.flow_limit_table_len, found);
    SKB_DEFER_MAX.check(at.key("skb_defer_max"), stack.skb_defer_max, found);
    QDISC_MAX_BURST.check(at.key("qdisc_max_burst"), stack.qdisc_max_burst, found);
    MAX_SOCKETS.check(at.key("max_sockets"), stack.max_sockets, found);
    TXQ_RESELECTION_MS.check(at.key("txq_reselection_ms"), stack.txq_reselection_ms, found);
    for ((limit, key), value) in GC_THRESH.iter().zip(GC_THRESH_KEYS).zip(stack.gc_thresh) {
        limit.check(at.key(key), value, found);
    }
    let possible = !GC_THRESH_KEYS.iter().any(|key| told(found, at.key(key)));
    for (keys, values) in GC_THRESH_KEYS.windows(2).zip(stack.gc_thresh.windows(2)) {
        if possible && values[0] > values[1] {
            let message = format!("expected at most {} of {}, found {}", keys[1], values[1], values[0]);
            found.push(Found::new(at.key(keys[0]), message));
        }
    }
    let icmp = &stack.icmp;
    ICMP_RATELIMIT.check(at.key("icmp_ratelimit"), icmp.icmp_ratelimit / NS_PER_MS, found);
    ICMP_RATELIMIT.check(at.key("icmpv6_ratelimit"), icmp.icmpv6_ratelimit / NS_PER_MS, found);
    ICMP_RATEMASK.check(at.key("icmp_ratemask"), icmp.icmp_ratemask, found);
    ICMP_MSGS.check(at.key("icmp_msgs_per_sec"), icmp.icmp_msgs_per_sec, found);
    ICMP_MSGS.check(at.key("icmp_msgs_burst"), icmp.icmp_msgs_burst, found);
    if stack.default_qdisc == Spec::Mq {
        found.push(Found::new(at.key("default_qdisc"), SpecError::NotForQueue.to_string()));
    }
    let cache = stack.skb_cache;
    let (at, whole) = (Section::SkbCache, |n: usize| n as u64);
    CACHE_SIZE.check(at.key("size"), whole(cache.size), found);
    for (key, moved) in [("refill", cache.refill), ("flush", cache.flush)] {
        CACHE_MOVE.check(at.key(key), whole(moved), found);
        if moved > cache.size && moved <= CACHE_MOVE.max as usize {
            let message = format!("expected at most the cache's size of {}, found {moved}", cache.size);
            found.push(Found::new(at.key(key), message));
        }
    }
}

fn devices(config: &Config, found: &mut Vec<Found>) {
    let devices = &config.devices;
    if devices.len() > MAX_DEVICES {
        let message = format!("expected at most {MAX_DEVICES} devices, found {}", devices.len());
        found.push(Found::new(Section::Device(MAX_DEVICES).itself(), message));
    }
    let mut names = HashMap::new();
    for (i, device) in devices.iter().enumerate() {
        let at = Section::Device(i);
        // One that is missing, or could not be read, is told already.
        if !device.name.is_empty() || !told(found, at.key("name")) {
            interface_name(at.key("name"), &device.name, found);
            if names.insert(&device.name, i).is_some() {
                let message = format!("the device {:?} is configured twice", device.name);
                found.push(Found::new(at.key("name"), message));
            }
        }
        device.driver.check(&mut |key, why| found.push(Found::new(at.key(key), why)));
        DEFER_HARD_IRQS.check(at.key("napi_defer_hard_irqs"), device.napi_defer_hard_irqs, found);
        TX_QUEUE_LEN.check(at.key("tx_queue_len"), device.tx_queue_len, found);
        for (item, &worker) in device.workers.iter().enumerate() {
            if worker >= config.stack.workers.len() && !config.stack.workers.is_empty() {
                let last = config.stack.workers.len() - 1;
                let message = format!("expected an index into stack.workers (0 to {last}), found {worker}");
                found.push(Found::new(at.item("workers", item), message));
            }
        }
        for (key, lists) in [("xps_cpus", &device.xps_cpus), ("xps_rxqs", &device.xps_rxqs)] {
            for (item, list) in lists.iter().enumerate() {
                let wrong = list.0.iter().find_map(|n| LISTED.wrong((*n).into()));
                found.extend(wrong.map(|why| Found::new(at.item(key, item), why)));
            }
        }
        steering(config, i, device, found);
        addresses(i, device, config, found);
    }
    vlan::check(config, found);
    memory(config, found);
}

fn steering(config: &Config, index: usize, device: &DeviceConfig, found: &mut Vec<Found>) {
    let at = Section::Device(index);
    let place = |key, item: Option<usize>| item.map_or(at.key(key), |item| at.item(key, item));
    for (item, flows) in device.rps_flow_cnt.iter() {
        RPS_FLOW_CNT.check(place("rps_flow_cnt", item), *flows, found);
    }
    if device.rss.as_ref().is_some_and(|rss| !rss.is_of_device()) {
        let message = "expected how the device spreads flows, without `context`: `softnet set rss` makes and deletes \
                       contexts, for the filters that lead to them";
        found.push(Found::new(at.key("rss"), message));
    }
    let queues = [device.processing_cpu.iter().count(), device.rps_cpus.iter().count()];
    for queue in 0..queues.into_iter().max().unwrap_or(0) as u16 {
        let knobs = QueueKnobs::of(device, queue);
        let Err(error) = knobs.plan(&config.stack.workers) else { continue };
        let key = match &error {
            KnobError::NoWorker { knob, .. } | KnobError::Value { knob, .. } => knob,
            KnobError::Both => "processing_cpu",
        };
        let text = error.to_string();
        let text = text.strip_prefix(&format!("{key}: ")).unwrap_or(&text);
        let place = at.key(key);
        if !config.stack.workers.is_empty() && !told(found, place) {
            found.push(Found::new(place, text));
        }
    }
}

/// The kernel's `dev_valid_name`.
fn interface_name(place: Place, name: &str, found: &mut Vec<Found>) {
    let odd = |c: char| c == '/' || c == ':' || c.is_whitespace() || c == '\0';
    if name.is_empty() || name.len() > 15 || name == "." || name == ".." || name.contains(odd) {
        let expected = "expected an interface name (1 to 15 bytes, no space, '/' or ':')";
        found.push(Found::new(place, format!("{expected}, found {name:?}")));
    }
}

fn addresses(index: usize, device: &DeviceConfig, config: &Config, found: &mut Vec<Found>) {
    let devices = &config.devices[..];
    let at = Section::Device(index);
    let unread = found.iter().any(|problem| problem.place.section == at && problem.place.key == "addresses");
    // One that has VLANs need not be anything else, and one may have the kernel's.
    let follows = device.follows_addresses(config.stack.follow.as_ref());
    if device.addresses.is_empty() && !unread && !follows && !vlan::is_link(devices, &device.name) {
        let message = "expected at least one address, such as [\"10.0.0.1/24\"]: without one, nothing on the \
                       link can find softnet";
        found.push(Found::new(at.key("addresses"), message));
    }
    for (item, &own) in device.addresses.iter().enumerate() {
        let place = at.item("addresses", item);
        if let Some(why) = not_a_host(own) {
            found.push(Found::new(place, format!("expected the address of a host, but {own} {why}")));
            continue;
        }
        if device.addresses[..item].iter().any(|other| other.addr() == own.addr()) {
            found.push(Found::new(place, format!("{} is configured twice", own.addr())));
        }
        // Link-local networks are on every link.
        for other in devices[..index].iter().filter(|_| !is_link_local(own.addr())) {
            let clash = other.addresses.iter().find(|theirs| {
                theirs.network().contains(own.network().addr())
                    || own.network().contains(theirs.network().addr())
            });
            if let Some(theirs) = clash {
                let message = format!(
                    "{own} overlaps {theirs} of {:?}; expected every network on one device only",
                    other.name
                );
                found.push(Found::new(place, message));
            }
        }
    }
}

/// Whether `problem` is that a device has no address at all.
pub(super) fn is_without_addresses(problem: &Found) -> bool {
    let Place { section, key, item } = problem.place;
    matches!(section, Section::Device(_)) && key == "addresses" && item.is_none()
}

/// Why an address cannot be a host's own, if so (RFC 6890, RFC 1122 3.2.1.3, RFC 4291 2.5 and 2.6.1).
fn not_a_host(own: InterfaceAddr) -> Option<String> {
    let (addr, network) = (own.addr(), own.network());
    if let Some(why) = never_a_host(addr) {
        return Some(why.into());
    }
    if own.has_host(addr) {
        return None;
    }
    let which = match addr {
        IpAddr::V6(_) => "address of any router of its network (subnet-router anycast)",
        _ if addr == network.addr() => "network itself",
        _ => "broadcast address of its network",
    };
    Some(format!("is the {which}"))
}

pub(crate) fn never_a_host(addr: IpAddr) -> Option<&'static str> {
    let addr = match addr {
        IpAddr::V4(addr) => addr,
        IpAddr::V6(addr) if addr.is_unspecified() => return Some("is the unspecified address"),
        IpAddr::V6(addr) if addr.is_loopback() => return Some("is the loopback address"),
        IpAddr::V6(addr) if addr.is_multicast() => return Some("is a multicast address"),
        IpAddr::V6(addr) if addr.to_ipv4_mapped().is_some() => return Some("is an IPv4 address in disguise"),
        IpAddr::V6(addr) if scope_id(addr.to_bits()) != 0 => {
            return Some("has more than zeros behind fe80, where a link-local address has none");
        }
        IpAddr::V6(_) => return None,
    };
    let first = addr.octets()[0];
    match first {
        0 => Some("is in 0.0.0.0/8, \"this network\""),
        127 => Some("is a loopback address"),
        224..=239 => Some("is a multicast address"),
        240..=255 => Some("is in the reserved 240.0.0.0/4"),
        _ => None,
    }
}

/// What the drivers say that their devices take, most of them a ring of frames posted and another in sending.
fn memory(config: &Config, found: &mut Vec<Found>) {
    let rings: u64 = config.devices.iter().map(|device| device.driver.frames()).sum();
    if u64::from(config.stack.frames) < rings {
        let message = format!(
            "expected at least {rings} (each queue keeps up to `ring` frames posted for receiving and as many in \
             sending), found {}",
            config.stack.frames
        );
        found.push(Found::new(Section::Stack.key("frames"), message));
    }
}

pub(super) fn known_device<'a>(
    config: &'a Config,
    place: Place,
    name: &str,
    found: &mut Vec<Found>,
) -> Option<&'a DeviceConfig> {
    let device = config.devices.iter().find(|device| device.name == name);
    if device.is_none() {
        let names: Vec<&str> = config.devices.iter().map(|device| device.name.as_str()).collect();
        let names = if names.is_empty() { "there is none".into() } else { names.join(", ") };
        found.push(Found::new(place, format!("expected the name of a [[device]] ({names}), found {name:?}")));
    }
    device
}

fn neighbours(config: &Config, devices_complete: bool, found: &mut Vec<Found>) {
    let mut seen = HashMap::new();
    for (i, neighbour) in config.neighbours.iter().enumerate() {
        if found.len() >= MAX_PROBLEMS {
            return;
        }
        let at = Section::Neighbour(i);
        let (address, mac) = (neighbour.address, neighbour.mac);
        if seen.insert((&neighbour.dev, address), i).is_some() {
            let message = format!("{address} on {:?} is configured twice", neighbour.dev);
            found.push(Found::new(at.key("address"), message));
        }
        if mac == [0; 6] || mac[0] & 1 != 0 {
            let message = format!("expected the MAC address of one host, found {}", format_mac(mac));
            found.push(Found::new(at.key("mac"), message));
        }
        if !devices_complete {
            continue;
        }
        let Some(device) = known_device(config, at.key("dev"), &neighbour.dev, found) else { continue };
        let on_link = device.addresses.iter().any(|own| own.has_host(address))
            || is_link_local(address) && device.speaks_ipv6() && never_a_host(address).is_none();
        if device.addresses.iter().any(|own| own.addr() == address) {
            let message = format!("expected another host, but {address} is softnet's own address");
            found.push(Found::new(at.key("address"), message));
        } else if !on_link {
            let networks: Vec<String> =
                device.addresses.iter().map(|own| own.network().to_string()).collect();
            let message =
                format!("expected a host on {} ({}), found {address}", device.name, networks.join(", "));
            found.push(Found::new(at.key("address"), message));
        }
    }
}

/// `0-3,8`, as the kernel lists CPUs.
fn ranges(cpus: &[u32]) -> String {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for &cpu in cpus {
        match runs.last_mut() {
            Some((_, end)) if *end + 1 == cpu => *end = cpu,
            _ => runs.push((cpu, cpu)),
        }
    }
    let one =
        |&(start, end): &(u32, u32)| if start == end { start.to_string() } else { format!("{start}-{end}") };
    runs.iter().map(one).collect::<Vec<_>>().join(",")
}
