//! The command line of `softnet load`.

use std::io::IsTerminal;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;

use softnet_dev::process::raise_files_limit;
use softnet_testkit::datagrams::{KernelSockets, Stop};

use super::report::{report, text};
use super::stack::OwnStack;
use super::stream::{KernelNet, Streams};
use super::{Config, Dist, LONGEST_WAIT, Load, Moment, Records, Transport, run};
use crate::Failure;
use crate::text::{grouped, print, rate};

/// Put load on a memcached server over UDP or TCP, and measure how it bears it
#[derive(clap::Args, Debug)]
pub(crate) struct LoadArgs {
    /// The server: address or name, and port
    #[arg(value_name = "HOST:PORT")]
    server: String,
    /// Ask over TCP, by connections that stay; else over UDP
    #[arg(long)]
    tcp: bool,
    /// Requests a second, whatever becomes of those before; without it each connection waits for its responses
    #[arg(short, long, value_name = "N", value_parser = positive)]
    rate: Option<f64>,
    /// Time between requests of a connection, with --rate: exponential, fb_ia, fixed, uniform
    #[arg(long, value_name = "DIST", default_value = "exponential", requires = "rate")]
    iadist: Dist,
    /// Outstanding requests of each connection, without --rate
    #[arg(long, value_name = "N", default_value_t = 1, conflicts_with = "rate", value_parser = clap::value_parser!(u16).range(1..=4096))]
    in_flight: u16,
    /// Threads of the generator
    #[arg(short = 'T', long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: u16,
    /// Connections of each thread: sockets, each with a port of its own
    #[arg(short, long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=16384))]
    connections: u16,
    /// CPU for a thread; may be given several times
    #[arg(long, value_name = "CPU")]
    cpu: Vec<usize>,
    /// Ask by softnet's sockets, on a stack that is run as this file says, and not by the kernel's
    #[arg(long, value_name = "FILE")]
    softnet: Option<PathBuf>,
    /// Sleep when there is nothing to do: leaves its CPU to others, but sees responses later
    #[arg(short = 'B', long)]
    blocking: bool,
    /// Different keys
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    records: u32,
    /// Length of keys
    #[arg(short = 'K', long, value_name = "DIST", default_value = "30")]
    keysize: Dist,
    /// Length of values
    #[arg(short = 'V', long, value_name = "DIST", default_value = "200")]
    valuesize: Dist,
    /// Cut longer values to so many bytes, at most 65000, or 1000000 with --tcp; more than 1300
    /// take requests or responses of several packets
    #[arg(long, value_name = "BYTES", default_value_t = 1300, value_parser = clap::value_parser!(u32).range(..=1_000_000))]
    max_value: u32,
    /// Share of requests that store a value
    #[arg(short, long, value_name = "0..1", default_value_t = 0.0, value_parser = share)]
    update: f64,
    /// Seconds to measure
    #[arg(short, long, value_name = "S", default_value_t = 5.0, value_parser = positive)]
    time: f64,
    /// Seconds of the same load before that
    #[arg(short, long, value_name = "S", default_value_t = 1.0, value_parser = seconds)]
    warmup: f64,
    /// Milliseconds after which a request counts as lost
    #[arg(long, value_name = "MS", default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=60_000))]
    timeout: u32,
    /// The records are there already: do not store them first
    #[arg(long, conflicts_with = "loadonly")]
    noload: bool,
    /// Store the records, and end
    #[arg(long)]
    loadonly: bool,
    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
}

pub(crate) const HELP: &str = "\
Examples:
  udp-kv --listen 127.0.0.1:11211 &       or: memcached -U 11211
  softnet load 127.0.0.1:11211            as fast as 8 connections can, one request at a time each
  softnet load --tcp 127.0.0.1:11211      the same by TCP; the server: tcp-kv --listen 127.0.0.1:11211, or memcached
  softnet load 10.0.0.2:11211 --rate 100000 --time 30
                                          100,000 requests a second, as independent clients would send them
  softnet load 10.0.0.2:11211 --rate 200000 -T 2 -c 20 --records 1000000 --keysize fb_key \\
      --valuesize fb_value --iadist fb_ia --update 0.03
                                          what was seen in front of Facebook's servers, as mutilate has it
  softnet load --softnet load.toml 10.0.0.2:11211
                                          the same question by softnet's sockets

  softnet load --tcp -T 2 -c 1000 10.0.0.2:11211 --max-value 100000 --valuesize uniform:100000
                                          2,000 connections, and values of up to 100,000 bytes

load.toml, where eth1 is an interface that softnet may take:
  [[device]]
  name = \"eth1\"
  addresses = [\"10.0.0.1/24\"]
  napi_defer_hard_irqs = 100
  gro_flush_timeout = 200000

Closed loop (without --rate): the load adapts to the server, so this finds how much it can do. Open loop (--rate): \
requests are due by the clock, and latency counts from when a request was due, not from when it left: a stall shows in all \
the requests that it held up. Compare latencies in an open loop, at a rate that all sides can do.

First every record is stored, and again if the server does not confirm it. Keys and values are functions of their \
numbers, and every response is compared with them to the last byte; one that differs makes the exit code 1. What was \
not answered in time counts as lost, and not in the latencies.

Over TCP (--tcp) all connections are made first and stay; requests of one are answered in their order, so that a long response \
holds up those behind it. A connection that ends, or says what was not asked for, ends the run.

DIST is a number, or fixed:N, uniform:MOST, exponential:LAMBDA, pareto:LOC,SCALE,SHAPE, gev:LOC,SCALE,SHAPE, fb_key, \
fb_value, fb_ia (mutilate's names and parameters). For --iadist the mean comes from --rate, and numbers may be left out.

  read, update    latency of requests that get and that store a value
  lost            not answered within --timeout; the responses to them that came all the same are late
  misses          read, and the server did not have it
  not sent        due, but as many were outstanding as can be

With --softnet the command runs a stack of its own (`softnet run --help` has more of the file, `softnet show napi` looks inside \
while it runs) and gives the interfaces back in the end. Each thread has sockets and an epoll set there, and polls the queue that its \
responses come by itself. The two knobs keep that queue's doorbell from waking a worker as well; gro_flush_timeout, in ns, is how long \
the thread may be away. With --blocking the thread sleeps, and is woken. Give workers ([stack] workers = [0]) and threads (--cpu 1) different CPUs.

If the generator cannot keep its rate, it says so: then the latencies are its own. By default its threads do not sleep, \
and need a CPU each; --blocking makes them sleep, and is late by as much as the machine takes to wake a thread.

Exit codes: 0 done; 1 no server, no response, or a wrong one; 2 the command line or the stack's configuration is wrong.";

/// Longest value that fits into a datagram with its request.
const MAX_UDP_VALUE: u32 = 65_000;

fn positive(text: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|_| "expected a number")?;
    if number.is_finite() && number > 0.0 && number <= 1e9 {
        Ok(number)
    } else {
        Err("expected more than 0".into())
    }
}

fn seconds(text: &str) -> Result<f64, String> {
    if text.parse() == Ok(0.0) { Ok(0.0) } else { positive(text) }
}

fn share(text: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|_| "expected a number")?;
    if (0.0..=1.0).contains(&number) { Ok(number) } else { Err("expected a number from 0 to 1".into()) }
}

impl LoadArgs {
    fn config(&self) -> Result<Config, String> {
        let load = match self.rate {
            Some(rate) => {
                // What is no distribution of gaps is found now, and not when threads run.
                self.iadist.with_mean(1.0).map_err(|error| format!("--iadist: {error}"))?;
                Load::Open { rate, gaps: self.iadist.clone() }
            }
            None => Load::Closed { in_flight: self.in_flight },
        };
        if !self.tcp && self.max_value > MAX_UDP_VALUE {
            return Err(format!(
                "--max-value: a request by UDP has room for {MAX_UDP_VALUE} bytes; longer ones need --tcp"
            ));
        }
        let records = Records {
            count: self.records,
            key_size: self.keysize.clone(),
            value_size: self.valuesize.clone(),
            max_value: self.max_value as usize,
        };
        Ok(Config {
            server: resolve(&self.server)?,
            transport: if self.tcp { Transport::Tcp } else { Transport::Udp },
            threads: self.threads.into(),
            connections: self.connections.into(),
            cpus: self.cpu.clone(),
            load,
            records,
            update: self.update,
            preload: !self.noload,
            warm_up: Duration::from_secs_f64(self.warmup),
            measure: if self.loadonly { Duration::ZERO } else { Duration::from_secs_f64(self.time) },
            timeout: Duration::from_millis(self.timeout.into()),
            // A look at the kernel's sockets takes what came; softnet's poll for it while they wait.
            longest_wait: match self.blocking || self.softnet.is_some() {
                true => LONGEST_WAIT,
                false => Duration::ZERO,
            },
        })
    }
}

fn resolve(server: &str) -> Result<SocketAddr, String> {
    let mut addresses =
        server.to_socket_addrs().map_err(|error| format!("{server:?}: {error}; expected HOST:PORT"))?;
    addresses.next().ok_or_else(|| format!("{server:?}: no address"))
}

/// Runs the command.
pub(crate) fn load(args: &LoadArgs) -> Result<(), Failure> {
    let config = args.config().map_err(Failure::Usage)?;
    if cfg!(debug_assertions) {
        eprintln!("softnet: this is a debug build; its figures mean nothing (use cargo run --release)");
    }
    // Only its duration ends it.
    let stop = Stop::new().map_err(|error| Failure::of("eventfd", error))?;
    let mut shown = Shown::new(&config, !args.json && std::io::stderr().is_terminal());
    let tell = |moment| shown.tell(moment);
    // Each socket of the kernel's is one.
    raise_files_limit();
    let (server, count) = (config.server, config.connections);
    let stack = args.softnet.as_deref().map(|file| OwnStack::start(file, args.blocking)).transpose()?;
    let tally = match (&stack, config.transport) {
        (None, Transport::Udp) => run(&config, |_| KernelSockets::connected(server, count, 64, &stop), tell),
        (None, Transport::Tcp) => {
            run(&config, |_| Streams::connected(KernelNet::new()?, server, count), tell)
        }
        (Some(stack), Transport::Udp) => {
            run(&config, |_| stack.sockets(server, count, args.blocking, &stop), tell)
        }
        (Some(stack), Transport::Tcp) => run(&config, |_| stack.streams(server, count, args.blocking), tell),
    };
    drop(stack);
    let tally = tally.map_err(Failure::Run)?;
    if args.loadonly {
        return print(&format!("{} records are stored\n", grouped(config.records.count.into())));
    }
    if args.json {
        print(&report(&config, &tally).render(true, false))?
    } else {
        print(&text(&config, &tally))?
    }
    match (tally.received(), &tally.wrong_example) {
        (0, _) => Err(Failure::Run(format!("{} answered no request", config.server))),
        (_, Some(example)) => {
            Err(Failure::Run(format!("{} responses were wrong; one of them: {example}", tally.wrong)))
        }
        _ => Ok(()),
    }
}

/// The line that says how far it is, on a terminal.
struct Shown {
    on: bool,
    seconds: f64,
    before: u64,
}

impl Shown {
    fn new(config: &Config, on: bool) -> Self {
        Shown { on, seconds: config.measure.as_secs_f64(), before: 0 }
    }

    fn tell(&mut self, moment: Moment) {
        if !self.on {
            return;
        }
        match moment {
            Moment::Loaded => eprint!("\r\x1b[Krecords are stored; warming up"),
            Moment::Begin => eprint!("\r\x1b[Kmeasuring for {} s", self.seconds),
            Moment::Progress { since, answered, lost } => {
                let now = rate((answered - self.before) as f64);
                self.before = answered;
                // The first second has what came while it warmed up.
                let now = if since.as_secs() > 1 { format!(", {now}") } else { String::new() };
                eprint!("\r\x1b[K{} of {} s{now}, lost {}", since.as_secs(), self.seconds, grouped(lost));
            }
            Moment::End => eprint!("\r\x1b[K"),
        }
    }
}
