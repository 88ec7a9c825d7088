//! The `udp-kv` program: the server on the kernel's sockets, until a signal ends it.
#![deny(unsafe_code)]

use std::io;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use softnet_dev::process::Signals;
use softnet_dev::traffic::datagrams::{KernelSockets, Stop};
use udp_kv::Server;
use udp_kv::store::Store;

/// A key-value server that speaks memcached's text protocol over UDP.
#[derive(Parser)]
#[command(name = "udp-kv", version, after_help = EXAMPLES)]
struct Args {
    /// Address to serve; may be given several times
    #[arg(short, long, value_name = "IP:PORT", default_value = "127.0.0.1:11211")]
    listen: Vec<SocketAddr>,
    /// Threads, each with sockets of its own on the same addresses [default: one for each CPU]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: Option<u16>,
    /// Lead packets to threads by the RX queue that they come by, not by their flow: with as many threads as an
    /// interface has queues, each serves one NAPI instance
    #[arg(long)]
    by_queue: bool,
    /// Memory for items, in MiB
    #[arg(short, long, value_name = "MIB", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1_048_576))]
    memory: u32,
    /// Most datagrams that a thread takes at a time
    #[arg(short, long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=1024))]
    batch: u16,
}

const EXAMPLES: &str = "\
Examples:
  udp-kv --listen 127.0.0.1:11211 --threads 2
  softnet load 127.0.0.1:11211                  how fast is it?
  memcaslap -U -s 127.0.0.1:11211 -t 5s         the same question, asked by libmemcached's tool

It knows get, gets, set, add, replace, append, prepend, cas, delete, incr, decr, touch, stats, version and flush_all.
A request has to fit into one datagram; a response may take several.

Whoever reaches it may read and change everything, and the address a request claims to come from gets the answer, be
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
    // Before there are threads, which inherit what is blocked.
    let signals = Signals::new().map_err(|error| format!("signals: {error}"))?;
    let stop = Arc::new(Stop::new().map_err(|error| format!("eventfd: {error}"))?);
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = args.threads.map_or(cpus, usize::from);
    let sets = bind(&args.listen, threads, args.batch.into(), &stop)?;
    let addresses = sets[0].local_addrs().map_err(|error| error.to_string())?;
    if args.by_queue {
        sets[0].lead_by_queue(threads as u32).map_err(|error| format!("--by-queue: {error}"))?;
    }
    let store = Arc::new(Store::new((args.memory as usize) << 20, 8 * threads));
    let server = Server::start(sets, &store, &stop).map_err(|error| format!("threads: {error}"))?;
    let addresses: Vec<String> = addresses.iter().map(SocketAddr::to_string).collect();
    println!(
        "udp-kv: serving {} with {threads} threads and {} MiB",
        addresses.join(", "),
        store.limit() >> 20
    );
    loop {
        let mut fds = [PollFd::new(&signals, PollFlags::IN), PollFd::new(&stop, PollFlags::IN)];
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

/// Sockets for each thread. All share the ports of the first, which the kernel may have chosen.
fn bind(
    listen: &[SocketAddr],
    threads: usize,
    batch: usize,
    stop: &Stop,
) -> Result<Vec<KernelSockets>, String> {
    let names: Vec<String> = listen.iter().map(SocketAddr::to_string).collect();
    let failed = |error: io::Error| format!("cannot serve {}: {error}", names.join(", "));
    let first = KernelSockets::bound(listen, batch, stop).map_err(failed)?;
    let addresses = first.local_addrs().map_err(failed)?;
    let mut sets = vec![first];
    for _ in 1..threads {
        sets.push(KernelSockets::bound(&addresses, batch, stop).map_err(failed)?);
    }
    Ok(sets)
}
