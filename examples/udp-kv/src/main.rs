//! The `udp-kv` program: the server on the kernel's sockets, or on those of a softnet stack that it runs itself, until a
//! signal ends it.
#![deny(unsafe_code)]

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use softnet::Stack;
use softnet::config::Config;
use softnet::net::EpollParams;
use softnet_dev::process::{Signals, ignore_signals};
use softnet_testkit::datagrams::{DatagramSet, KernelSockets, Stop};
use udp_kv::store::Store;
use udp_kv::{Server, SoftnetSockets, Waiting};

/// memcached's port.
const PORT: u16 = 11211;

/// A key-value server that speaks memcached's text protocol over UDP.
#[derive(Parser)]
#[command(name = "udp-kv", version, after_help = EXAMPLES)]
struct Args {
    /// Address to serve; may be given several times [default: 127.0.0.1:11211; with --softnet port 11211 of each
    /// address of the stack]
    #[arg(short, long, value_name = "IP:PORT")]
    listen: Vec<SocketAddr>,
    /// Threads, each with sockets of its own on the same addresses [default: one for each CPU; with --softnet one for each
    /// NAPI instance]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: Option<u16>,
    /// Lead packets to threads by the RX queue that they come by, not by their flow: with as many threads as an
    /// interface has queues, each serves one NAPI instance. With --softnet it is always so
    #[arg(long, conflicts_with = "softnet")]
    by_queue: bool,
    /// Memory for items, in MiB
    #[arg(short, long, value_name = "MIB", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1_048_576))]
    memory: u32,
    /// Most datagrams that a thread takes from a socket at a time; of softnet's, no more than 64
    #[arg(short, long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=1024))]
    batch: u16,
    /// Most sockets that a thread serves between two waits
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=64))]
    maxevents: u16,
    /// Serve on a softnet stack with this configuration (as of `softnet run`), not on the kernel's sockets
    #[arg(long, value_name = "FILE.toml")]
    softnet: Option<PathBuf>,
    /// µs for which a thread polls its NAPI instance before it sleeps; 0: not, or, with --prefer-busy-poll, once
    #[arg(long, value_name = "US", default_value_t = 0, requires = "softnet")]
    busy_poll_usecs: u32,
    /// Packets that one such poll may bring, 1 to 64
    #[arg(long, value_name = "N", default_value_t = 64, requires = "softnet")]
    busy_poll_budget: u16,
    /// Poll rather than be woken: with napi_defer_hard_irqs, gro_flush_timeout and irq_suspend_timeout set, the doorbell stays
    /// masked while requests come
    #[arg(long, requires = "softnet")]
    prefer_busy_poll: bool,
}

const EXAMPLES: &str = "\
Examples:
  udp-kv --listen 127.0.0.1:11211 --threads 2
  softnet load 127.0.0.1:11211                  how fast is it?
  memcaslap -U -s 127.0.0.1:11211 -t 5s         the same question, asked by libmemcached's tool
  udp-kv --softnet kv.toml --prefer-busy-poll   on a stack of its own, and polls it while it is busy

It knows get, gets, set, add, replace, append, prepend, cas, delete, incr, decr, touch, stats, version and flush_all.
A request has to fit into one datagram; a response may take several.

Any host that reaches it may read and change everything, and the address a request claims to come from gets the answer, be
it a thousand times as long: do not open it to a network that you do not trust.";

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(1)
        }
    }
}

fn run(args: &Args) -> Result<(), String> {
    ignore_signals();
    // Before there are threads, which inherit what is blocked.
    let signals = Signals::new().map_err(|error| format!("signals: {error}"))?;
    let stop = Arc::new(Stop::new().map_err(|error| format!("eventfd: {error}"))?);
    match &args.softnet {
        None => {
            let cpus = std::thread::available_parallelism().map_or(1, usize::from);
            let sets = bind(args, args.threads.map_or(cpus, usize::from), &stop)?;
            let addresses = sets[0].local_addrs().map_err(|error| error.to_string())?;
            serve(args, sets, &addresses, &signals, &stop)
        }
        Some(file) => {
            let config = Config::load(file).map_err(|errors| errors.to_string())?;
            let listen = listen_on(args, &config)?;
            // Ends after the server, whose sockets are on it.
            let stack = Stack::builder().config(config).control_socket().start();
            let stack = stack.map_err(|error| error.to_string())?;
            let sets = bind_on(&stack, args, &listen, &stop)?;
            let addresses = sets[0].local_addrs().map_err(|error| error.to_string())?;
            serve(args, sets, &addresses, &signals, &stop)
        }
    }
}

/// Serves until a signal comes or a thread fails.
fn serve<S: DatagramSet + Send + 'static>(
    args: &Args,
    sets: Vec<S>,
    addresses: &[SocketAddr],
    signals: &Signals,
    stop: &Arc<Stop>,
) -> Result<(), String> {
    let threads = sets.len();
    let store = Arc::new(Store::new((args.memory as usize) << 20, 8 * threads));
    let mut server = Server::start(sets, &store, stop).map_err(|error| format!("threads: {error}"))?;
    let addresses: Vec<String> = addresses.iter().map(SocketAddr::to_string).collect();
    println!(
        "udp-kv: serving {} with {threads} threads and {} MiB",
        addresses.join(", "),
        store.limit() >> 20
    );
    loop {
        let mut fds = [PollFd::new(signals, PollFlags::IN), PollFd::new(stop, PollFlags::IN)];
        match poll(&mut fds, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(format!("poll: {}", io::Error::from(error))),
        }
        // A thread that failed has told the others to stop.
        if signals.taken().is_some() || stop.told() {
            stop.stop();
            return server.join().map_err(|error| format!("serving: {error}"));
        }
    }
}

/// The kernel's sockets for each thread. All share the ports of the first, which the kernel may have chosen.
fn bind(args: &Args, threads: usize, stop: &Stop) -> Result<Vec<KernelSockets>, String> {
    let default = [SocketAddr::from(([127, 0, 0, 1], PORT))];
    let listen = if args.listen.is_empty() { &default[..] } else { &args.listen };
    let failed = |error| cannot_serve(listen, error);
    let mut sets: Vec<KernelSockets> = Vec::with_capacity(threads);
    for _ in 0..threads {
        let addresses = sets.first().map_or(Ok(listen.to_vec()), KernelSockets::local_addrs);
        let mut set =
            KernelSockets::bound(&addresses.map_err(failed)?, args.batch.into(), stop).map_err(failed)?;
        set.set_max_events(args.maxevents.into());
        sets.push(set);
    }
    if args.by_queue {
        sets[0].lead_by_queue(threads as u32).map_err(|error| format!("--by-queue: {error}"))?;
    }
    Ok(sets)
}

fn cannot_serve(listen: &[SocketAddr], error: io::Error) -> String {
    let names: Vec<String> = listen.iter().map(SocketAddr::to_string).collect();
    format!("cannot serve {}: {error}", names.join(", "))
}

/// What to serve on a stack: all its addresses, but those that mean nothing without a link, which sockets cannot have.
fn listen_on(args: &Args, config: &Config) -> Result<Vec<SocketAddr>, String> {
    if !args.listen.is_empty() {
        return Ok(args.listen.clone());
    }
    let own = config.devices.iter().flat_map(|device| &device.addresses).map(|own| own.addr());
    let link_local = |addr: &IpAddr| matches!(addr, IpAddr::V6(addr) if addr.is_unicast_link_local());
    let own: Vec<SocketAddr> = own.filter(|addr| !link_local(addr)).map(|addr| (addr, PORT).into()).collect();
    if own.is_empty() { Err("the stack has no address to serve on".into()) } else { Ok(own) }
}

/// softnet's sockets for each thread: thread after thread is for what comes by one NAPI instance.
fn bind_on(
    stack: &Stack,
    args: &Args,
    listen: &[SocketAddr],
    stop: &Stop,
) -> Result<Vec<SoftnetSockets>, String> {
    let waiting = Waiting {
        params: EpollParams {
            busy_poll_usecs: args.busy_poll_usecs,
            busy_poll_budget: args.busy_poll_budget,
            prefer_busy_poll: args.prefer_busy_poll,
        },
        max_events: args.maxevents.into(),
        batch: args.batch.into(),
        longest: None,
    };
    let failed = |error| cannot_serve(listen, error);
    let napis: Vec<u32> = stack.view().napis().iter().map(|napi| napi.id).collect();
    let threads = args.threads.map_or(napis.len().max(1), usize::from);
    let mut sets: Vec<SoftnetSockets> = Vec::with_capacity(threads);
    for _ in 0..threads {
        let addresses =
            sets.first().map_or(Ok(listen.to_vec()), SoftnetSockets::local_addrs).map_err(failed)?;
        sets.push(SoftnetSockets::bound(&stack.handle(), &addresses, waiting, stop).map_err(failed)?);
    }
    // With fewer threads than instances, what comes by the others goes by its flow.
    sets.iter().zip(napis).for_each(|(set, napi)| set.lead_napi(napi));
    Ok(sets)
}
