//! `softnet capture`: packets of a running instance, as text or as a pcapng file.

mod pcapng;
mod summary;
pub(crate) mod trace;

use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::net::Shutdown;
use std::path::PathBuf;

use rustix::event::{PollFd, PollFlags, poll};
use softnet::control::{CaptureInfo, Client, SetCapture, end_of_capture};
use softnet_core::tap::{Filter, Record, Seen};
use softnet_dev::process::{Signals, ignore_signals};

use crate::Failure;

/// Show or save packets that a running instance receives, sends and drops.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub(crate) struct CaptureArgs {
    /// The device, or `any`.
    dev: String,
    /// Which packets, as tcpdump has it, see below. All, if there is none.
    #[arg(value_name = "EXPRESSION", trailing_var_arg = true)]
    expression: Vec<String>,
    /// Only this RX or TX queue.
    #[arg(long)]
    queue: Option<u16>,
    /// Packets that softnet drops as well, each with the reason.
    #[arg(long)]
    drops: bool,
    /// Which way packets pass; `drop`: only those that are dropped.
    #[arg(short = 'Q', long, default_value = "inout", value_parser = ["in", "out", "inout", "drop"])]
    direction: String,
    /// Write a pcapng file; `-`: to standard output.
    #[arg(short, value_name = "FILE.pcapng")]
    write: Option<PathBuf>,
    /// End after so many packets.
    #[arg(short, value_name = "COUNT")]
    count: Option<u64>,
    /// Bytes of each packet to keep; 0: all.
    #[arg(long, default_value_t = 0)]
    snaplen: u32,
    /// The instance: its name (`stack.name`), or the path of its control socket. Without it, the
    /// only one running.
    #[arg(long)]
    name: Option<String>,
}

const HELP: &str = "\
Received packets are seen after GRO and before filters, routing and NAT; sent ones behind the queueing discipline, before
they are cut into segments: an aggregate is one packet. VLAN tags are in the packet as on the wire. In a file, each packet
has its direction in its flags, and a dropped one the reason as a comment.

Expressions are those of pcap-filter(7): [ip|ip6|arp|ether|tcp|udp|sctp] [src|dst] host|net|port|portrange|proto WHAT,
a protocol alone (icmp, icmp6 too), vlan [ID], broadcast, multicast, less|greater BYTES; and, or, not, parentheses.
`and` and `or` are read from left to right. Tests look behind VLAN tags. Names are not looked up.

A capture slows no packet down: what it can't take in time it loses, and the end says how many.

Examples:
  softnet capture eth1                          both directions, until Ctrl-C
  softnet capture eth1 -c 10 tcp port 443 and host 10.0.0.7
  softnet capture any -Q drop                   what is dropped anywhere, and why
  softnet capture eth1 --drops -w eth1.pcapng   for wireshark
  softnet capture eth1 -w - | tcpdump -r -";

/// Runs the command.
pub(crate) fn capture(args: &CaptureArgs) -> Result<(), Failure> {
    let filter = args.expression.join(" ");
    Filter::parse(&filter).map_err(|error| Failure::Usage(error.to_string()))?;
    let which = &args.direction[..];
    let set = SetCapture {
        dev: (args.dev != "any").then(|| args.dev.clone()),
        queue: args.queue,
        r#in: matches!(which, "in" | "inout"),
        out: matches!(which, "out" | "inout"),
        drops: args.drops || which == "drop",
        snaplen: args.snaplen,
        filter,
        ..SetCapture::default()
    };
    let client = Client::new(args.name.as_deref()).map_err(|error| Failure::Run(error.to_string()))?;
    ignore_signals();
    let signals = Signals::new().map_err(|error| Failure::of("waiting for signals", error))?;
    let capture = client.capture(&set).map_err(|error| Failure::Run(error.to_string()))?;
    let mut sink = Sink::open(args.write.as_ref(), &capture.info)?;
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::BrokenPipe => Failure::PipeClosed,
        _ => Failure::of("capturing", error),
    };
    let stop = || capture.stream.shutdown(Shutdown::Write);
    let (mut bytes, mut chunk) = (Vec::new(), vec![0; 1 << 16]);
    let (mut captured, mut stopped) = (0, false);
    let lost = loop {
        let mut fds = [PollFd::new(&*capture.stream, PollFlags::IN), PollFd::new(&signals, PollFlags::IN)];
        // One that is interrupted has found nothing.
        let _ = poll(&mut fds, None);
        if signals.taken().is_some() {
            if stopped {
                break None;
            }
            stopped = true;
            stop().map_err(failed)?;
        }
        if fds[0].revents().is_empty() {
            continue;
        }
        match (&*capture.stream).read(&mut chunk).map_err(failed)? {
            0 => break None,
            n => bytes.extend_from_slice(&chunk[..n]),
        }
        let mut at = 0;
        while let Some((record, len)) = Record::read(&bytes[at..]) {
            at += len;
            if args.count.is_none_or(|count| captured < count) {
                sink.put(&capture.info, &record).map_err(failed)?;
                captured += 1;
            }
        }
        let end = end_of_capture(&bytes[at..]);
        bytes.drain(..at);
        sink.flush().map_err(failed)?;
        if end.is_some() {
            break end;
        }
        if args.count.is_some_and(|count| captured >= count) && !stopped {
            stopped = true;
            stop().map_err(failed)?;
        }
    };
    let packets = |n: u64| format!("{n} packet{}", if n == 1 { "" } else { "s" });
    match lost {
        Some(lost) => eprintln!("{} captured, {lost} lost by the capture", packets(captured)),
        None if stopped => {
            eprintln!("{} captured; stopped before all that was seen had come", packets(captured))
        }
        None => eprintln!("{} captured; the instance ended", packets(captured)),
    }
    Ok(())
}

/// Where packets go.
enum Sink {
    Text(BufWriter<io::Stdout>),
    File(pcapng::Writer<Box<dyn Write>>),
}

impl Sink {
    fn open(path: Option<&PathBuf>, info: &CaptureInfo) -> Result<Sink, Failure> {
        let Some(path) = path else { return Ok(Sink::Text(BufWriter::new(io::stdout()))) };
        let to: Box<dyn Write> = match path.as_os_str() == "-" {
            true => Box::new(BufWriter::new(io::stdout())),
            false => {
                let made = File::create(path);
                Box::new(BufWriter::new(
                    made.map_err(|error| Failure::of(&format!("writing {}", path.display()), error))?,
                ))
            }
        };
        let writer = pcapng::Writer::new(to, &info.devs, info.snaplen);
        Ok(Sink::File(writer.map_err(|error| Failure::of("writing the file", error))?))
    }

    fn put(&mut self, info: &CaptureInfo, record: &Record<'_>) -> io::Result<()> {
        let time = info.epoch_ns + record.time;
        let reason = info.reasons.get(usize::from(record.reason)).map_or("?", |reason| reason);
        match self {
            Sink::File(file) => {
                let comment = (record.seen == Seen::Drop).then(|| format!("dropped: {reason}"));
                let flags = match record.seen {
                    Seen::In => pcapng::INBOUND,
                    Seen::Out => pcapng::OUTBOUND,
                    Seen::Drop | Seen::Step => 0,
                };
                let packet =
                    pcapng::Packet { interface: record.dev.into(), time, len: record.len, data: record.data };
                file.packet(&packet, flags, comment.as_deref())
            }
            Sink::Text(out) => {
                let (us, dev) = (time / 1000, info.devs.get(usize::from(record.dev)).map_or("-", |dev| dev));
                let s = us / 1_000_000;
                let way = match record.seen {
                    Seen::In => "In ".into(),
                    Seen::Out => "Out".into(),
                    Seen::Drop => format!("Drop({reason})"),
                    // A capture gets none.
                    Seen::Step => "-".into(),
                };
                let (h, m, s, us) = (s / 3600 % 24, s / 60 % 60, s % 60, us % 1_000_000);
                let text = summary::summary(record.data, record.len as usize);
                writeln!(out, "{h:02}:{m:02}:{s:02}.{us:06} {dev} q{} {way} {text}", record.queue)
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Sink::Text(out) => out.flush(),
            Sink::File(file) => file.flush(),
        }
    }
}
