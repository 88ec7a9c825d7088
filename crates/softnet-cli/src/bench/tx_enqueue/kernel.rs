//! The kernel beside it (`--peer kernel`): the same senders on UDP sockets, over `tbf` on an interface that frees what it is
//! given (`ifb`), in a namespace of its own. Needs root, and `ip` and `tc`.
//!
//! Its call is `send(2)`: it makes the headers and allocates, which the other ways do before the call, and waits for the
//! socket's send buffer. Packets are counted by the interface; those that the discipline dropped are missing there.

use std::io;
use std::net::UdpSocket;
use std::panic::resume_unwind;
use std::process::Command;
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread::{Builder, ScopedJoinHandle};
use std::time::Instant;

use softnet_dev::netns::NetNs;

use super::rig::{LATENCIES, OTHERS, Times};
use super::sender::{MEASURE, SAMPLED, STOP, WARM_UP};
use super::wire::SIZE;
use crate::bench::echo::Usage;
use crate::bench::latency::Latency;
use crate::bench::others::{Others, process_cpu_ns};
use crate::bench::report::Sample;
use crate::bench::{cpus, pin};

/// Behind Ethernet, IPv4 and UDP headers.
const PAYLOAD: [u8; SIZE - 14 - 20 - 8] = [7; SIZE - 14 - 20 - 8];
const DEVICE: &str = "ifb0";
/// As in the other cases, a rate that does not limit, and room for the windows of all senders.
const SETUP: [&str; 5] = [
    "ip link add ifb0 numtxqueues 1 numrxqueues 1 type ifb",
    "ip address add 198.18.0.1/24 dev ifb0",
    "ip link set ifb0 up",
    "ip neighbour add 198.18.0.2 lladdr 02:00:00:00:09:00 dev ifb0",
    "tc qdisc replace dev ifb0 root tbf rate 100gbit burst 64mb limit 64mb",
];

/// The namespace with the interface; both vanish with it.
pub(super) struct Kernel {
    ns: NetNs,
}

fn command(line: &str) -> Result<(), String> {
    let mut words = line.split(' ');
    let output = Command::new(words.next().unwrap_or_default()).args(words).output();
    let output = output.map_err(|e| format!("{line}: {e}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.success() { Ok(()) } else { Err(format!("{line}: {}", said.trim_end())) }
}

/// Packets that the interface was given. Of the calling thread's namespace.
fn arrived() -> Result<u64, String> {
    let text = std::fs::read_to_string("/proc/thread-self/net/dev").map_err(|e| e.to_string())?;
    let line = text.lines().find_map(|line| line.trim_start().strip_prefix(DEVICE)?.strip_prefix(':'));
    // It counts as received what it is given to send.
    let packets = line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok());
    packets.ok_or_else(|| format!("{DEVICE} is gone"))
}

struct Done {
    sent: u64,
    latency: Latency,
    usage: Usage,
}

fn send(socket: &UdpSocket, phase: &AtomicU8) -> io::Result<Done> {
    let (mut sent, mut latency) = (0, Latency::new());
    loop {
        let now = phase.load(Ordering::Relaxed);
        if now == STOP {
            let me = rustix::thread::gettid().as_raw_pid();
            return Ok(Done { sent, latency, usage: Usage::of(&[me]) });
        }
        sent += 1;
        let called = (now == MEASURE && sent % SAMPLED == 0).then(Instant::now);
        socket.send(&PAYLOAD)?;
        if let Some(called) = called {
            latency.record(called.elapsed().as_nanos() as u64);
        }
    }
}

impl Kernel {
    /// # Errors
    /// Without the privilege, or without the tools.
    pub(super) fn new() -> Result<Self, String> {
        let ns = NetNs::new().map_err(|e| e.to_string())?;
        ns.run(|| SETUP.iter().try_for_each(|line| command(line))).map_err(|e| e.to_string())??;
        Ok(Kernel { ns })
    }

    /// Measures it with so many senders.
    pub(super) fn measure(&self, senders: usize, pinned: bool, times: Times) -> Result<Sample, String> {
        self.ns.run(|| run(senders, pinned, times)).map_err(|e| e.to_string())?
    }
}

fn run(senders: usize, pinned: bool, times: Times) -> Result<Sample, String> {
    let (phase, cpus, started) = (AtomicU8::new(WARM_UP), cpus(), Instant::now());
    let socket = || {
        let socket = UdpSocket::bind("198.18.0.1:0")?;
        socket.connect("198.18.0.2:9").map(|()| socket)
    };
    let sockets = (0..senders).map(|_| socket()).collect::<io::Result<Vec<_>>>();
    let sockets = sockets.map_err(|e| format!("a socket: {e}"))?;
    let before = arrived()?;
    let (done, from, to) = std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for (i, socket) in sockets.iter().enumerate() {
            let (phase, cpu) = (&phase, cpus[i % cpus.len()]);
            let work = move || {
                if pinned {
                    pin(cpu)?;
                }
                send(socket, phase).map_err(|e| format!("send: {e}"))
            };
            threads.push(Builder::new().name(format!("kernel/{i}")).spawn_scoped(scope, work));
        }
        let count = || Ok::<_, String>((Instant::now(), arrived()?, process_cpu_ns(), Others::now()));
        std::thread::sleep(times.warm_up);
        phase.store(MEASURE, Ordering::Relaxed);
        let from = count();
        std::thread::sleep(times.measure);
        let to = count();
        phase.store(STOP, Ordering::Relaxed);
        let join = |thread: io::Result<ScopedJoinHandle<'_, Result<Done, String>>>| {
            let thread = thread.map_err(|e| format!("a thread: {e}"))?;
            thread.join().unwrap_or_else(|panic| resume_unwind(panic))
        };
        Ok::<_, String>((threads.into_iter().map(join).collect::<Result<Vec<_>, _>>()?, from?, to?))
    })?;
    let lived = started.elapsed().as_secs_f64();
    let sent: u64 = done.iter().map(|done| done.sent).sum();
    let missing = sent.saturating_sub(arrived()? - before);
    let (elapsed, packets) = (to.0.duration_since(from.0).as_nanos() as f64, (to.1 - from.1) as f64);
    let mut latency = Latency::new();
    done.iter().for_each(|done| latency.add(&done.latency));
    let used: Usage = done.iter().map(|done| done.usage).sum();
    let cpu_ns = if packets > 0.0 { (to.2 - from.2) as f64 / packets } else { 0.0 };
    let mut sample = vec![("mpps", 1e3 * packets / elapsed), ("cpu_ns_per_packet", cpu_ns)];
    sample.extend(latency.figures().into_iter().filter(|(name, _)| LATENCIES.contains(name)));
    sample.extend([
        ("switches_per_s", (used.blocked + used.preempted) as f64 / lived),
        ("drops_percent", 100.0 * missing as f64 / sent.max(1) as f64),
        (OTHERS, 100.0 * to.3.since(from.3) as f64 / elapsed),
    ]);
    Ok(sample)
}
