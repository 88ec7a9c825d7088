//! `softnet trace`: what each stage of a running instance does with the next packets.
//!
//! The instance tells steps of many packets as they are taken; here those of one are put together.
//! A packet is complete when it left or was dropped; one that waits for something (a neighbour, a
//! socket, a discipline) is shown as far as it came when nothing more is told of it for a while.

use std::collections::{HashMap, VecDeque};
use std::fmt::Write as _;
use std::io::{self, Read};
use std::net::Shutdown;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;
use softnet::control::{CaptureInfo, Client, SetCapture, end_of_capture};
use softnet_core::ip::adjacency::Kind;
use softnet_core::ip::hooks::Slot;
use softnet_core::ip::input::Exception;
use softnet_core::tap::trace::{Ends, Step, Traced};
use softnet_core::tap::{Filter, Record};
use softnet_dev::process::{Signals, ignore_signals};

use super::summary::summary;
use crate::Failure;
use crate::text::{print, print_json};

/// Show what each stage of a running instance does with the next packets.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub(crate) struct TraceArgs {
    /// The device by which the packets come in, or `any`.
    dev: String,
    /// Which packets, as tcpdump has it, see `softnet capture --help`.
    /// All, if there is none.
    #[arg(value_name = "EXPRESSION", trailing_var_arg = true)]
    expression: Vec<String>,
    /// Follow so many packets, and end.
    #[arg(short = 'n', long = "packets", value_name = "PACKETS", default_value_t = 50,
          value_parser = clap::value_parser!(u32).range(1..=100_000))]
    packets: u32,
    /// Only packets of this RX queue.
    #[arg(long)]
    queue: Option<u16>,
    /// One JSON object for each packet.
    #[arg(long)]
    json: bool,
    /// The instance: its name (`stack.name`), or the path of its control
    /// socket. Without it, the only one running.
    #[arg(long)]
    name: Option<String>,
}

const HELP: &str = "\
For each packet: when and by which queue it came, what it is, and a line for
each stage that it passed, in order:
  rx           it came in (after GRO, before filters)
  dev          the link handed it to a VLAN's device, or a redirect to another
  prerouting, input, forward, output, postrouting
               rules, NAT and connection tracking: addresses before and after
  route        the prefix that was found, and where it leads
  slow path    why the fast path did not do
  neighbour    it waits for a MAC address
  socket       it was handed to the sockets of its protocol
  local        softnet itself took it
  queue        the discipline of a TX queue got it
  tx           it was put on the wire
  drop         it was dropped, and why, as `softnet show drops` names it

Nothing is slowed down: while there is no trace a stage looks at one flag for
each batch. What softnet makes itself (ICMP errors, ARP) is not followed.

Examples:
  softnet trace eth1                        the next 50 packets
  softnet trace eth1 -n 1 icmp              the next ping
  softnet trace any -n 5 dst port 443       whichever way they come
  softnet trace eth1 -n 5 --json udp port 53";

/// A step of a packet, as it is shown.
#[derive(Serialize)]
struct StepRow {
    /// ns since the packet came.
    ns: u64,
    stage: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    dev: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    queue: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prefix: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    kind: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    via: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mac: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    before: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    after: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    conntrack: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    /// The packet, as it left.
    #[serde(skip_serializing_if = "Option::is_none")]
    packet: Option<String>,
}

/// A packet, as it is shown.
#[derive(Serialize)]
struct PacketRow {
    /// ns since 1970.
    time_ns: u64,
    dev: String,
    queue: u16,
    len: u32,
    /// What it is.
    packet: String,
    /// `sent`, `dropped`, `local`, or `held` if nothing more was told.
    end: &'static str,
    steps: Vec<StepRow>,
}

fn ends(ends: &Ends) -> String {
    let [from, to] = [0, 1].map(|end| match ends.ports[end] {
        0 => ends.addrs[end].to_string(),
        port => format!("{}.{port}", ends.addrs[end]),
    });
    format!("{from} > {to}")
}

fn slot(slot: Slot) -> &'static str {
    match slot {
        Slot::Prerouting => "prerouting",
        Slot::Input => "input",
        Slot::Forward => "forward",
        Slot::Output => "output",
        Slot::Postrouting => "postrouting",
    }
}

fn kind(kind: Kind) -> &'static str {
    match kind {
        Kind::NoRoute => "no route",
        Kind::Rewrite | Kind::Resolve => "via",
        Kind::Connected => "connected",
        Kind::Local => "local",
        Kind::Broadcast => "broadcast",
        Kind::Blackhole => "blackhole",
        Kind::Unreachable => "unreachable",
        Kind::Prohibit => "prohibit",
        Kind::Multipath => "multipath",
    }
}

fn why(exception: Exception) -> &'static str {
    match exception {
        Exception::Arp => "ARP",
        Exception::Unusual => "options, broadcast, multicast or link-local: validated step by step",
        Exception::Ttl => "its time to live ran out",
        Exception::NextHop => "for softnet itself, no route, or a neighbour that is not known",
        Exception::TooBig => "larger than the MTU of the way out",
        Exception::NoSocket => "no socket is bound to its destination",
        Exception::Made => "made by a hook",
        Exception::Fragment => "waits for its other fragments",
        Exception::Rejected => "refused by a rule, its sender is told",
    }
}

impl StepRow {
    fn new(info: &CaptureInfo, record: &Record<'_>, traced: &Traced<'_>, since: u64) -> StepRow {
        let dev = info.devs.get(usize::from(record.dev)).cloned();
        let mut row = StepRow {
            ns: record.time.saturating_sub(since),
            stage: "",
            dev: None,
            queue: None,
            prefix: None,
            kind: None,
            via: None,
            mac: None,
            before: None,
            after: None,
            conntrack: None,
            reason: None,
            packet: None,
        };
        row.stage = match traced.step {
            Step::Received => "rx",
            Step::Handed => "dev",
            Step::ToLink => "link",
            Step::Passed { slot: at, ends: both, conntrack } => {
                if let Some([before, after]) = both {
                    row.before = Some(ends(&before));
                    row.after = (before != after).then(|| ends(&after));
                }
                row.conntrack = conntrack.checked_sub(1);
                slot(at)
            }
            Step::Taken(at) => {
                row.reason = Some("taken to the slow path".into());
                slot(at)
            }
            Step::Route { dst, len, kind: of, gateway, mac } => {
                if of != Kind::NoRoute {
                    row.prefix = Some(prefix(dst, len));
                }
                row.kind = Some(match (of, gateway) {
                    // The neighbour is the destination itself.
                    (Kind::Rewrite | Kind::Resolve, None) => "connected",
                    _ => kind(of),
                });
                row.via = gateway.map(|gateway| gateway.to_string());
                row.mac = mac.map(|mac| mac.map(|byte| format!("{byte:02x}")).join(":"));
                let sent = matches!(of, Kind::Rewrite | Kind::Resolve | Kind::Connected);
                row.dev = dev.clone().filter(|_| sent);
                "route"
            }
            Step::Slow(exception) => {
                row.reason = Some(why(exception).into());
                "slow path"
            }
            Step::Waits(neighbour) => {
                row.via = Some(neighbour.to_string());
                "neighbour"
            }
            Step::Socket(protocol) => {
                row.reason = Some(match protocol {
                    6 => "TCP".into(),
                    17 => "UDP".into(),
                    other => format!("protocol {other}"),
                });
                "socket"
            }
            Step::Delivered => "local",
            Step::Queued => "queue",
            Step::Sent => {
                row.packet = Some(summary(traced.bytes, record.len as usize));
                "tx"
            }
            Step::Dropped(reason) => {
                row.reason = Some(info.reasons.get(usize::from(reason)).map_or("?".into(), String::clone));
                "drop"
            }
        };
        if matches!(
            traced.step,
            Step::Received | Step::Handed | Step::ToLink | Step::Waits(_) | Step::Dropped(_)
        ) {
            row.dev = dev.clone();
        }
        if matches!(traced.step, Step::Queued | Step::Sent | Step::Received) {
            (row.dev, row.queue) = (dev, Some(record.queue));
        }
        row
    }

    /// What stands behind the stage.
    fn text(&self) -> String {
        let dev = self.dev.as_deref().unwrap_or("-");
        match self.stage {
            "rx" | "queue" => format!("{dev} queue {}", self.queue.unwrap_or_default()),
            "tx" => {
                let packet = self.packet.as_deref().unwrap_or_default();
                format!("{dev} queue {}: {packet}", self.queue.unwrap_or_default())
            }
            "route" => {
                let mut text =
                    format!("{} {}", self.prefix.as_deref().unwrap_or(""), self.kind.unwrap_or("-"));
                if let Some(via) = &self.via {
                    let _ = write!(text, " {via}");
                }
                if let Some(dev) = &self.dev {
                    let _ = write!(text, " dev {dev}");
                }
                if let Some(mac) = &self.mac {
                    let _ = write!(text, " lladdr {mac}");
                }
                text.trim_start().to_owned()
            }
            "neighbour" => {
                format!("{} dev {dev}: waits for its MAC address", self.via.as_deref().unwrap_or("-"))
            }
            "drop" => format!("{} ({dev})", self.reason.as_deref().unwrap_or("-")),
            "dev" | "link" => dev.to_owned(),
            "slow path" | "socket" => self.reason.clone().unwrap_or_default(),
            "local" => String::new(),
            _ => {
                let mut text = match (&self.before, &self.after, &self.reason) {
                    (Some(before), Some(after), _) => format!("{before} becomes {after}"),
                    (Some(before), None, _) => format!("{before} passes"),
                    (None, _, Some(reason)) => reason.clone(),
                    (None, _, None) => "passes".into(),
                };
                if let Some(number) = self.conntrack {
                    let _ = write!(text, ", connection {number}");
                }
                text
            }
        }
    }
}

/// The prefix of `len` bits that `dst` is in.
fn prefix(dst: std::net::IpAddr, len: u8) -> String {
    use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
    match dst {
        IpAddr::V4(dst) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(len.min(32))).unwrap_or(0);
            format!("{}/{len}", Ipv4Addr::from_bits(dst.to_bits() & mask))
        }
        IpAddr::V6(dst) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(len.min(128))).unwrap_or(0);
            format!("{}/{len}", Ipv6Addr::from_bits(dst.to_bits() & mask))
        }
    }
}

/// A packet of which more may be told.
struct Open {
    number: u64,
    row: PacketRow,
    /// ns of the instance's clock at which it came.
    came: u64,
    told: Instant,
    done: bool,
}

/// Puts steps together. Packets come out in the order in which they came in.
#[derive(Default)]
struct Packets {
    open: VecDeque<Open>,
    /// The last packet with a number, as a place in `open`, counted from the first packet of all.
    last: HashMap<u64, usize>,
    /// Packets that came out of `open`.
    gone: usize,
}

/// How long a packet is waited for that a socket or softnet itself took, and one that something holds.
const TAKEN: Duration = Duration::from_millis(50);
const HELD: Duration = Duration::from_secs(5);

impl Packets {
    fn told(&mut self, info: &CaptureInfo, record: &Record<'_>, now: Instant) {
        let Some(traced) = Traced::read(record) else { return };
        if traced.step == Step::Received {
            // Its head is another packet's now.
            if let Some(before) = self.find(traced.packet) {
                before.done = true;
            }
            let dev = info.devs.get(usize::from(record.dev)).map_or("-", |dev| dev).to_owned();
            let row = PacketRow {
                time_ns: info.epoch_ns + record.time,
                dev,
                queue: record.queue,
                len: record.len,
                packet: summary(traced.bytes, record.len as usize),
                end: "held",
                steps: Vec::new(),
            };
            self.last.insert(traced.packet, self.gone + self.open.len());
            let came = record.time;
            self.open.push_back(Open { number: traced.packet, row, came, told: now, done: false });
        }
        let Some(open) = self.find(traced.packet) else { return };
        let step = StepRow::new(info, record, &traced, open.came);
        open.row.steps.push(step);
        open.told = now;
        match traced.step {
            Step::Sent => (open.row.end, open.done) = ("sent", true),
            Step::Dropped(_) => (open.row.end, open.done) = ("dropped", true),
            Step::Delivered => (open.row.end, open.done) = ("local", true),
            Step::Socket(_) => open.row.end = "local",
            _ => open.row.end = "held",
        }
    }

    fn find(&mut self, number: u64) -> Option<&mut Open> {
        let at = self.last.get(&number)?.checked_sub(self.gone)?;
        self.open.get_mut(at).filter(|open| !open.done)
    }

    /// The next packet that is complete, or that nothing more is told of; with `all`, any.
    fn next(&mut self, now: Instant, all: bool) -> Option<PacketRow> {
        let first = self.open.front()?;
        let patience = if first.row.end == "local" { TAKEN } else { HELD };
        if !all && !first.done && now.duration_since(first.told) < patience {
            return None;
        }
        let first = self.open.pop_front()?;
        if self.last.get(&first.number) == Some(&self.gone) {
            self.last.remove(&first.number);
        }
        self.gone += 1;
        Some(first.row)
    }
}

fn show(args: &TraceArgs, number: usize, row: &PacketRow) -> Result<(), Failure> {
    if args.json {
        return print_json(row);
    }
    let us = row.time_ns / 1000;
    let (s, us) = (us / 1_000_000, us % 1_000_000);
    let (h, m, s) = (s / 3600 % 24, s / 60 % 60, s % 60);
    let mut text = format!(
        "{}{number}: {h:02}:{m:02}:{s:02}.{us:06} {}\n",
        if number > 1 { "\n" } else { "" },
        row.packet
    );
    for step in &row.steps {
        let line = format!("{:>10.1} us  {:<11}  {}", step.ns as f64 / 1000.0, step.stage, step.text());
        let _ = writeln!(text, "{}", line.trim_end());
    }
    if row.end == "held" {
        text.push_str("               (nothing more was told of it)\n");
    }
    print(&text)
}

/// Runs the command.
pub(crate) fn trace(args: &TraceArgs) -> Result<(), Failure> {
    let filter = args.expression.join(" ");
    Filter::parse(&filter).map_err(|error| Failure::Usage(error.to_string()))?;
    let set = SetCapture {
        dev: (args.dev != "any").then(|| args.dev.clone()),
        queue: args.queue,
        snaplen: 128,
        filter,
        trace: args.packets,
        ..SetCapture::default()
    };
    let client = Client::new(args.name.as_deref()).map_err(|error| Failure::Run(error.to_string()))?;
    ignore_signals();
    let signals = Signals::new().map_err(|error| Failure::of("waiting for signals", error))?;
    let capture = client.capture(&set).map_err(|error| Failure::Run(error.to_string()))?;
    let failed = |error: io::Error| Failure::of("tracing", error);
    let (mut bytes, mut chunk) = (Vec::new(), vec![0; 1 << 16]);
    let (mut packets, mut shown, mut stopped) = (Packets::default(), 0, false);
    let lost = loop {
        let mut fds = [PollFd::new(&*capture.stream, PollFlags::IN), PollFd::new(&signals, PollFlags::IN)];
        // One that is interrupted has found nothing.
        let _ = poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 10_000_000 }));
        let mut lost = None;
        if !fds[0].revents().is_empty() {
            match (&*capture.stream).read(&mut chunk).map_err(failed)? {
                0 => lost = Some(None),
                n => bytes.extend_from_slice(&chunk[..n]),
            }
        }
        let (mut at, now) = (0, Instant::now());
        while let Some((record, len)) = Record::read(&bytes[at..]) {
            at += len;
            packets.told(&capture.info, &record, now);
        }
        if let Some(end) = end_of_capture(&bytes[at..]) {
            lost = Some(Some(end));
        }
        bytes.drain(..at);
        while let Some(row) = packets.next(now, lost.is_some()) {
            shown += 1;
            show(args, shown, &row)?;
        }
        if let Some(lost) = lost {
            break lost;
        }
        let asked = signals.taken().is_some();
        if asked && stopped {
            break None;
        }
        if !stopped && (asked || shown >= args.packets as usize) {
            stopped = true;
            capture.stream.shutdown(Shutdown::Write).map_err(failed)?;
        }
    };
    match lost {
        Some(0) => {}
        Some(lost) => eprintln!("{lost} steps are missing: the trace could not take them in time"),
        None if !stopped => eprintln!("the instance ended"),
        None => {}
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_of_any_length() {
        let v4 = |text: &str| text.parse::<std::net::IpAddr>().unwrap();
        assert_eq!(prefix(v4("10.1.2.3"), 24), "10.1.2.0/24");
        assert_eq!(prefix(v4("10.1.2.3"), 0), "0.0.0.0/0");
        assert_eq!(prefix(v4("10.1.2.3"), 32), "10.1.2.3/32");
        assert_eq!(prefix(v4("2001:db8::7"), 32), "2001:db8::/32");
        assert_eq!(prefix(v4("2001:db8::7"), 0), "::/0");
        // A length that no prefix has is no reason to panic.
        assert_eq!(prefix(v4("10.1.2.3"), 200), "10.1.2.3/200");
    }
}
