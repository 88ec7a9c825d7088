//! A router between a client and a server, and TCP streams through it.
//!
//! ```text
//!  client ─ eth0 ═══ in [router] out ═══ eth0 ─ server
//! ```
//!
//! Each [`Rig`] has namespaces of its own. The server has no route to the client, so that answers show that the router
//! translates. Invariant: streams end with the measurement that started them.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::net::sockopt::set_tcp_congestion;
use softnet::Stack;
use softnet_dev::bpf::XdpLink;
use softnet_dev::netlink::{self, Netlink, Offload};
use softnet_dev::netns::NetNs;
use softnet_testkit::sysctl;

use super::iperf3;
use super::routers::{Driver, Taps, kernel_router, patch, receive_on, softnet};
use crate::bench::cpu::busy_ns;
use crate::bench::cpus;
use crate::bench::pass::let_pass;
use crate::bench::proc_net::counters;
use crate::bench::report::Sample;
use crate::bench::text;

const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 72, 1, 2);
pub(super) const INSIDE: Ipv4Addr = Ipv4Addr::new(10, 72, 1, 1);
pub(super) const OUTSIDE: Ipv4Addr = Ipv4Addr::new(10, 72, 2, 1);
const SERVER: Ipv4Addr = Ipv4Addr::new(10, 72, 2, 2);
/// How long a stream may stand still.
const STILL: Duration = Duration::from_secs(20);
/// Bytes of one write.
const WRITE: usize = 128 << 10;

/// What joins the router to its neighbours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wires {
    /// veth pairs whose ends send frames of the MTU, as they do with AF_XDP on the other.
    Veth,
    /// veth pairs with XDP on the ends in the middle, so that hosts send frames of the MTU; what leaves
    /// the middle may leave uncut. The kernel has a program there that lets all pass: the driver then
    /// does with what it receives what it does for AF_XDP.
    VethXdp,
    /// The same, but all ends send frames of the MTU.
    VethXdpPlain,
    /// veth pairs with all offloads.
    VethSegments,
    /// TAPs with offloads in the hosts' namespaces.
    Taps,
}

/// What is between the wires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Router {
    /// With a worker on each of these CPUs, for each device.
    Softnet([usize; 2]),
    /// softnet's driver of TAPs alone: what comes in by one goes out by the other. Both hosts are on one network.
    Plain,
    /// In softirq, or by NAPI threads on these CPUs, for each device.
    Kernel(Option<[usize; 2]>),
}

/// Where the kernel's endpoints process what a veth brings them.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ends {
    /// Where it is sent: inside the send of the router, as veth does by itself
    Softirq,
    /// On the other CPU, by the kernel's NAPI threads
    Threaded,
    /// On the other CPU, in softirq (RPS)
    Rps,
}

/// See the [module](self). The stack goes before its interfaces do.
pub(super) struct Rig {
    _stack: Option<Stack>,
    _programs: Vec<XdpLink>,
    client: NetNs,
    server: NetNs,
    _middle: NetNs,
    nat: bool,
}

/// Interfaces have names of their own in the whole machine, because the kernel's threads carry them.
fn names(sides: [char; 2], case: u32) -> [String; 2] {
    sides.map(|side| format!("{side}{}n{case}", std::process::id()))
}

impl Rig {
    pub(super) fn new(
        wires: Wires,
        router: Router,
        nat: bool,
        (cpu, ends): (usize, Ends),
    ) -> Result<Self, String> {
        static SERIAL: AtomicU64 = AtomicU64::new(0);
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed) as u32;
        let (names, hosts) = (names(['i', 'o'], serial), names(['c', 's'], serial));
        let [client, middle, server] =
            [NetNs::new().map_err(text)?, NetNs::new().map_err(text)?, NetNs::new().map_err(text)?];
        for (ns, name, end) in [(&client, &names[0], &hosts[0]), (&server, &names[1], &hosts[1])] {
            ns.run(|| sysctl("ipv6/conf/all/disable_ipv6", "1")).map_err(text)?.map_err(text)?;
            if wires == Wires::Taps {
                continue;
            }
            let join = || {
                let mut netlink = Netlink::new()?;
                netlink.add_veth(name, end, (1, 1), Some(ns))?;
                netlink.set_up(name)
            };
            middle.run(join).map_err(text)?.map_err(text)?;
            if let Router::Kernel(_) = router {
                for (ns, name) in [(&middle, name), (ns, end)] {
                    let uncut = matches!(wires, Wires::VethSegments | Wires::VethXdp);
                    let set = || netlink::set_offload(name, Offload::Tso, uncut);
                    ns.run(set).map_err(text)?.map_err(text)?;
                }
            }
        }
        let programs = match (router, wires) {
            (Router::Kernel(_), Wires::VethXdp | Wires::VethXdpPlain) => middle
                .run(|| names.iter().map(|name| let_pass(name)).collect::<Result<_, _>>())
                .map_err(text)??,
            _ => Vec::new(),
        };
        let taps = || Taps::new(&[(&client, &hosts[0]), (&server, &hosts[1])]);
        let stack = match (router, wires) {
            (Router::Softnet(cpus), Wires::Taps) => {
                Some(softnet(nat, cpus, &names, &middle, Driver::Taps(taps()?))?)
            }
            (Router::Softnet(cpus), _) => {
                let driver = Driver::Xdp { tso: wires == Wires::VethXdp };
                Some(softnet(nat, cpus, &names, &middle, driver)?)
            }
            (Router::Plain, _) => Some(patch(cpu, &names, &middle, Driver::Taps(taps()?))?),
            (Router::Kernel(_), Wires::Taps) => {
                let [inside, outside] = names.each_ref().map(String::as_str);
                let four =
                    [(&client, &*hosts[0]), (&middle, inside), (&server, &*hosts[1]), (&middle, outside)];
                let names = ["host0", "router0", "host1", "router1"].map(String::from);
                Some(patch(cpu, &names, &middle, Driver::Taps(Taps::new(&four)?))?)
            }
            (Router::Kernel(_), _) => None,
        };
        if let Router::Kernel(napi) = router {
            kernel_router(&middle, &names, napi, nat)?;
        }
        let routed = router != Router::Plain;
        host((&client, &hosts[0]), CLIENT, routed, Some(INSIDE))?;
        host((&server, &hosts[1]), SERVER, routed, (!nat).then_some(OUTSIDE))?;
        for (ns, end) in [(&client, &hosts[0]), (&server, &hosts[1])] {
            ns.run(|| received_by(end, ends, cpu)).map_err(text)??;
        }
        Ok(Rig { _stack: stack, _programs: programs, client, server, _middle: middle, nat })
    }

    /// A connection: the client's end and the server's.
    fn connect(&self) -> Result<[TcpStream; 2], String> {
        let listener = self.server.run(|| TcpListener::bind((SERVER, 0))).map_err(text)?.map_err(text)?;
        let to = listener.local_addr().map_err(text)?;
        let deadline = Instant::now() + STILL;
        let near = loop {
            let tried =
                self.client.run(|| TcpStream::connect_timeout(&to, Duration::from_secs(1))).map_err(text)?;
            match tried {
                Ok(stream) => break stream,
                // The interfaces may not be up yet.
                Err(error) if Instant::now() > deadline => return Err(format!("connect to {to}: {error}")),
                Err(_) => std::thread::sleep(Duration::from_millis(20)),
            }
        };
        let (far, from) = listener.accept().map_err(text)?;
        let expected = IpAddr::from(if self.nat { OUTSIDE } else { CLIENT });
        if from.ip() != expected {
            return Err(format!("the server saw {}, not {expected}", from.ip()));
        }
        for end in [&near, &far] {
            set_tcp_congestion(end, "cubic").map_err(text)?;
            end.set_read_timeout(Some(STILL)).map_err(text)?;
            end.set_write_timeout(Some(STILL)).map_err(text)?;
        }
        Ok([near, far])
    }

    /// Four megabytes each way, compared.
    pub(super) fn verify(&self) -> Result<(), String> {
        const LEN: usize = 4 << 20;
        let [near, far] = self.connect()?;
        let bytes: Vec<u8> = (0..LEN).map(|at| (at ^ at >> 8 ^ at >> 16) as u8).collect();
        for (mut from, mut to) in [(&near, &far), (&far, &near)] {
            let received = std::thread::scope(|scope| {
                let sent = scope.spawn(|| from.write_all(&bytes));
                let mut received = vec![0; LEN];
                to.read_exact(&mut received).map_err(text)?;
                sent.join().map_err(|_| "the sender panicked")?.map_err(text)?;
                Ok::<_, String>(received)
            })?;
            if received != bytes {
                return Err("what arrived differs from what was sent".into());
            }
        }
        Ok(())
    }

    /// What `streams` from client to server carry together in `time`.
    pub(super) fn measure(&self, streams: usize, warm: Duration, time: Duration) -> Result<Sample, String> {
        let (stop, bytes) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let mut threads: Vec<JoinHandle<std::io::Result<()>>> = Vec::new();
        for _ in 0..streams {
            let [mut near, mut far] = self.connect()?;
            let (stop, bytes) = (stop.clone(), bytes.clone());
            threads.push(std::thread::spawn(move || {
                let block = vec![7; WRITE];
                while !stop.load(Ordering::Relaxed) {
                    near.write_all(&block)?;
                }
                Ok(())
            }));
            threads.push(std::thread::spawn(move || {
                let mut block = vec![0; WRITE];
                loop {
                    match far.read(&mut block)? {
                        0 => return Ok(()),
                        n => bytes.fetch_add(n as u64, Ordering::Relaxed),
                    };
                }
            }));
        }
        std::thread::sleep(warm);
        let before = self.segments()?;
        let (from, begin, cpu) = (bytes.load(Ordering::Relaxed), Instant::now(), busy_ns());
        std::thread::sleep(time);
        let (moved, took) = (bytes.load(Ordering::Relaxed) - from, begin.elapsed().as_secs_f64());
        let cpu = busy_ns().saturating_sub(cpu) as f64 / 1e9 / took;
        let after = self.segments()?;
        stop.store(true, Ordering::Relaxed);
        for thread in threads {
            thread.join().map_err(|_| "a stream's thread panicked")?.map_err(text)?;
        }
        let gbit_s = moved as f64 * 8.0 / took / 1e9;
        let [again, sent] = [0, 1].map(|i| after[i].saturating_sub(before[i]) as f64);
        Ok(vec![
            ("gbit_s", gbit_s),
            ("cpu_percent", 100.0 * cpu),
            ("gbit_s_per_cpu", gbit_s / cpu.max(0.01)),
            ("retransmits_percent", 100.0 * again / (again + sent).max(1.0)),
        ])
    }

    /// The same by iperf3, in whole seconds.
    pub(super) fn measure_iperf3(
        &self,
        streams: usize,
        warm: Duration,
        time: Duration,
    ) -> Result<Sample, String> {
        iperf3::measure([&self.client, &self.server], &SERVER.to_string(), streams, (warm, time))
    }

    /// How many segments the client has sent again, and how many for the first time.
    fn segments(&self) -> Result<[u64; 2], String> {
        let count = |name| counters(&self.client, "snmp", "Tcp", &[name]);
        // In the kernel's words neither counts the other.
        Ok([count("RetransSegs")?, count("OutSegs")?])
    }
}

/// Has the interface of a host process what it receives as `ends` says; `cpu` is the router's.
fn received_by(name: &str, ends: Ends, cpu: usize) -> Result<(), String> {
    let other = cpus().into_iter().find(|other| *other != cpu).unwrap_or(cpu);
    match ends {
        Ends::Softirq => Ok(()),
        Ends::Threaded => receive_on(name, other),
        Ends::Rps => netlink::set_rps(name, &[other]).map_err(text),
    }
}

/// Gives a host its address, and a gateway if there is a router.
fn host(
    (ns, name): (&NetNs, &str),
    own: Ipv4Addr,
    routed: bool,
    via: Option<Ipv4Addr>,
) -> Result<(), String> {
    let up = || {
        let mut netlink = Netlink::new()?;
        netlink.add_address(name, own, if routed { 24 } else { 16 })?;
        netlink.set_up(name)?;
        netlink.wait_running(name)?;
        via.filter(|_| routed)
            .into_iter()
            .try_for_each(|via| netlink.add_route(Ipv4Addr::UNSPECIFIED, 0, via))
    };
    ns.run(up).map_err(text)?.map_err(text)
}
