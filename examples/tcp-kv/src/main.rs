//! The `tcp-kv` program: the server on the kernel's sockets, or on those of a softnet stack that it
//! runs itself, until a signal ends it.
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
use softnet_testkit::datagrams::Stop;
use tcp_kv::Server;
use tcp_kv::net::{KernelNet, Net, SoftnetNet};
use udp_kv::store::Store;

/// memcached's port.
const PORT: u16 = 11211;

/// A key-value server that speaks memcached's text protocol and redis' over TCP, on one port.
#[derive(Parser)]
#[command(name = "tcp-kv", version, after_help = EXAMPLES)]
struct Args {
    /// Address to serve; may be given several times [default: 127.0.0.1:11211; with --softnet port
    /// 11211 of each address of the stack]
    #[arg(short, long, value_name = "IP:PORT")]
    listen: Vec<SocketAddr>,
    /// Threads, each with listeners of its own on the same addresses [default: one for each CPU;
    /// with --softnet one for each NAPI instance]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: Option<u16>,
    /// Memory for items, in MiB
    #[arg(short, long, value_name = "MIB", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1_048_576))]
    memory: u32,
    /// Serve on a softnet stack with this configuration (as of `softnet run`), not on the kernel's sockets
    #[arg(long, value_name = "FILE.toml")]
    softnet: Option<PathBuf>,
    /// Most sockets that a thread serves between two waits
    #[arg(long, value_name = "N", default_value_t = 64, requires = "softnet", value_parser = clap::value_parser!(u16).range(1..=64))]
    maxevents: u16,
    /// µs for which a thread polls its NAPI instance before it sleeps; 0: not, or, with
    /// --prefer-busy-poll, once
    #[arg(long, value_name = "US", default_value_t = 0, requires = "softnet")]
    busy_poll_usecs: u32,
    /// Packets that one such poll may bring, 1 to 64
    #[arg(long, value_name = "N", default_value_t = 64, requires = "softnet")]
    busy_poll_budget: u16,
    /// Poll rather than be woken: with napi_defer_hard_irqs, gro_flush_timeout and
    /// irq_suspend_timeout set, the doorbell stays masked while requests come
    #[arg(long, requires = "softnet")]
    prefer_busy_poll: bool,
}

const EXAMPLES: &str = "\
Examples:
  tcp-kv --listen 127.0.0.1:11211 --threads 2
  printf 'set a 0 0 1\\r\\n7\\r\\nincr a 1\\r\\nquit\\r\\n' | nc 127.0.0.1 11211
  redis-cli -p 11211 incr a                     the same item, by the other protocol
  tcp-kv --softnet kv.toml --prefer-busy-poll   on a stack of its own, and polls it while it is busy
  softnet show tcp --info --name kv             its connections, while it runs

memcached's: get, gets, set, add, replace, append, prepend, cas, delete, incr, decr, touch, stats, version, verbosity,
flush_all, quit. redis', as RESP or inline: PING, ECHO, GET, MGET, SET (NX, XX, EX, PX), SETNX, MSET, DEL, EXISTS, INCR, DECR,
INCRBY, DECRBY, STRLEN, EXPIRE, FLUSHALL, SELECT 0, QUIT. An inline request that both know is memcached's in small letters.
Keys have up to 250 bytes, values up to 1 MiB.

Any host that reaches it may read and change everything: do not open it to a network that you do not trust.";

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
            let default = [SocketAddr::from(([127, 0, 0, 1], PORT))];
            let listen = if args.listen.is_empty() { &default[..] } else { &args.listen };
            let threads = args.threads.map_or(cpus, usize::from);
            let nets =
                bind(listen, threads, |addresses| KernelNet::bound(addresses, &stop), KernelNet::local_addrs);
            let (nets, addresses) = nets.map_err(|error| cannot_serve(listen, &error))?;
            serve(args, nets, &addresses, &signals, &stop)
        }
        Some(file) => {
            let config = Config::load(file).map_err(|errors| errors.to_string())?;
            let listen = listen_on(args, &config)?;
            // Ends after the server, whose sockets are on it.
            let stack = Stack::builder().config(config).control_socket().start();
            let stack = stack.map_err(|error| error.to_string())?;
            let napis: Vec<u32> = stack.view().napis().iter().map(|napi| napi.id).collect();
            let threads = args.threads.map_or(napis.len().max(1), usize::from);
            let params = EpollParams {
                busy_poll_usecs: args.busy_poll_usecs,
                busy_poll_budget: args.busy_poll_budget,
                prefer_busy_poll: args.prefer_busy_poll,
            };
            let on = stack.handle();
            let bound = |addresses: &[SocketAddr]| {
                SoftnetNet::bound(&on, addresses, params, args.maxevents.into(), &stop)
            };
            let nets = bind(&listen, threads, bound, SoftnetNet::local_addrs);
            let (nets, addresses) = nets.map_err(|error| cannot_serve(&listen, &error))?;
            // With fewer threads than instances, what comes by the others goes by its flow.
            nets.iter().zip(napis).for_each(|(net, napi)| net.lead_napi(napi));
            serve(args, nets, &addresses, &signals, &stop)
        }
    }
}

/// Listeners for each thread. All share the ports of the first, which may have been chosen for it.
fn bind<N>(
    listen: &[SocketAddr],
    threads: usize,
    bound: impl Fn(&[SocketAddr]) -> io::Result<N>,
    local_addrs: impl Fn(&N) -> io::Result<Vec<SocketAddr>>,
) -> io::Result<(Vec<N>, Vec<SocketAddr>)> {
    let first = bound(listen)?;
    let addresses = local_addrs(&first)?;
    let mut nets = vec![first];
    for _ in 1..threads {
        nets.push(bound(&addresses)?);
    }
    Ok((nets, addresses))
}

/// Serves until a signal comes or a thread fails.
fn serve<N: Net + Send + 'static>(
    args: &Args,
    nets: Vec<N>,
    addresses: &[SocketAddr],
    signals: &Signals,
    stop: &Arc<Stop>,
) -> Result<(), String> {
    let threads = nets.len();
    let store = Arc::new(Store::new((args.memory as usize) << 20, 8 * threads));
    let mut server = Server::start(nets, &store, stop).map_err(|error| format!("threads: {error}"))?;
    let addresses: Vec<String> = addresses.iter().map(SocketAddr::to_string).collect();
    println!(
        "tcp-kv: serving {} with {threads} threads and {} MiB",
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

fn cannot_serve(listen: &[SocketAddr], error: &io::Error) -> String {
    let names: Vec<String> = listen.iter().map(SocketAddr::to_string).collect();
    format!("cannot serve {}: {error}", names.join(", "))
}

/// What to serve on a stack: all its addresses, but those that mean nothing without a link, which
/// sockets cannot have.
fn listen_on(args: &Args, config: &Config) -> Result<Vec<SocketAddr>, String> {
    if !args.listen.is_empty() {
        return Ok(args.listen.clone());
    }
    let own = config.devices.iter().flat_map(|device| &device.addresses).map(|own| own.addr());
    let link_local = |addr: &IpAddr| matches!(addr, IpAddr::V6(addr) if addr.is_unicast_link_local());
    let own: Vec<SocketAddr> = own.filter(|addr| !link_local(addr)).map(|addr| (addr, PORT).into()).collect();
    if own.is_empty() { Err("the stack has no address to serve on".into()) } else { Ok(own) }
}
