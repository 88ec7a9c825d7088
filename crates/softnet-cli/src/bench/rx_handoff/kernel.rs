//! The kernel beside it: its router in a namespace of its own, with its own RPS.
//!
//! Packets come as a driver's poll brings them, on the CPU of the thread that injects them
//! ([`Program::inject`]): an XDP program makes each a packet of one of the flows and computes what a driver
//! costs, the stack steers it by RPS, a program at the tc hook behind RPS computes the service, the kernel's
//! IPv4 forwards it, and a program at the other interface's tc hook counts and frees it. So the kernel pays for
//! no wire and no transmission, which softnet's routers do.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use softnet_dev::bpf::{
    Alu, Assembler, Cond, Map, Program, Reg, Size, TcxAction, TcxHook, TcxLink, XdpAction, XdpLink, XdpMode,
};
use softnet_dev::netlink::Netlink;
use softnet_dev::netns::NetNs;
use softnet_testkit::{UdpFrame, sysctl};

use super::wire::FLOWS;
use crate::bench::report::Sample;
use crate::bench::{pin, text};

const NEAR: &str = "near";
const FAR: &str = "far";
const HOST: Ipv4Addr = Ipv4Addr::new(198, 19, 0, 2);
/// Packets that one call injects: so many that what the call itself costs is not seen.
const BURST: u32 = 8192;

/// Which CPUs the kernel steers packets to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Steer {
    Off,
    /// To the other CPU, as hand-off does.
    Other,
    /// To both.
    Both,
}

impl Steer {
    pub(super) const ALL: [Steer; 3] = [Steer::Off, Steer::Other, Steer::Both];

    pub(super) fn name(self) -> &'static str {
        match self {
            Steer::Off => "kernel-single",
            Steer::Other => "kernel-handoff",
            Steer::Both => "kernel-rps",
        }
    }
}

/// A router of the kernel's. All of it vanishes with this.
pub(super) struct Kernel {
    ns: NetNs,
    cpus: [usize; 2],
    frame: Vec<u8>,
    near: u32,
    source: Program,
    out: Map,
    _links: (XdpLink, [TcxLink; 2]),
}

/// Adds steps that depend on each other, as [`Service`](super::service::Service) computes them.
fn compute(asm: &mut Assembler, steps: u32) {
    asm.mov(Reg::R2, 1);
    asm.mov(Reg::R3, steps as i32);
    let (again, end) = (asm.label(), asm.label());
    asm.bind(again);
    asm.jump_if(Cond::Eq, Reg::R3, 0, end);
    asm.alu(Alu::Mul, Reg::R2, 0x5e37_79b9);
    asm.alu(Alu::Add, Reg::R2, 7);
    asm.alu(Alu::Sub, Reg::R3, 1);
    asm.jump(again);
    asm.bind(end);
}

/// How many steps take so long, in ns.
fn steps(ns: u32) -> Result<u32, String> {
    const STEPS: u32 = 2000;
    let mut asm = Assembler::new();
    compute(&mut asm, STEPS);
    asm.mov(Reg::R0, XdpAction::Pass as i32);
    asm.exit();
    let program = asm.load_xdp("softnet_steps", 0).map_err(text)?;
    let times = (0..50).map(|_| program.time(&[0; 64], 100)).collect::<Result<Vec<_>, _>>().map_err(text)?;
    let fastest = times.into_iter().min().unwrap_or_default().max(1);
    Ok((u64::from(ns) * u64::from(STEPS) / u64::from(fastest)) as u32)
}

/// Makes each packet anew, in memory that an earlier one left as the router wrote it, and costs what a driver does.
fn source(frame: &[u8], numbers: &Map, steps: u32) -> Assembler {
    let mut asm = Assembler::new();
    let fails = asm.label();
    asm.load(Size::U32, Reg::R6, Reg::R1, 0);
    asm.load(Size::U32, Reg::R7, Reg::R1, 4);
    asm.mov(Reg::R2, Reg::R6);
    asm.alu(Alu::Add, Reg::R2, 64);
    asm.jump_if(Cond::Gt, Reg::R2, Reg::R7, fails);
    let word = |at: usize| i32::from_le_bytes([frame[at], frame[at + 1], frame[at + 2], frame[at + 3]]);
    // Both MAC addresses, and the word with TTL and header checksum.
    for at in [0, 4, 8, 22] {
        asm.store(Size::U32, Reg::R6, at as i16, word(at));
    }
    asm.count(numbers, 0, fails);
    asm.alu(Alu::And, Reg::R1, FLOWS as i32 - 1);
    asm.alu(Alu::Add, Reg::R1, 1024);
    asm.to_be(Reg::R1, 16);
    asm.store(Size::U16, Reg::R6, 34, Reg::R1);
    compute(&mut asm, steps);
    asm.mov(Reg::R0, XdpAction::Pass as i32);
    asm.exit();
    asm.bind(fails);
    asm.mov(Reg::R0, XdpAction::Drop as i32);
    asm.exit();
    asm
}

fn service(steps: u32) -> Assembler {
    let mut asm = Assembler::new();
    compute(&mut asm, steps);
    asm.mov(Reg::R0, TcxAction::Next as i32);
    asm.exit();
    asm
}

/// Counts what the router sends, and frees it.
fn sink(out: &Map) -> Assembler {
    let mut asm = Assembler::new();
    let fails = asm.label();
    asm.count(out, 0, fails);
    asm.bind(fails);
    asm.mov(Reg::R0, TcxAction::Drop as i32);
    asm.exit();
    asm
}

/// Packets that backlogs had no room for, on all CPUs and in all namespaces.
fn backlog_drops() -> u64 {
    let stat = std::fs::read_to_string("/proc/net/softnet_stat").unwrap_or_default();
    let dropped = |line: &str| u64::from_str_radix(line.split_whitespace().nth(1)?, 16).ok();
    stat.lines().filter_map(dropped).sum()
}

/// Time that a CPU was not idle, in ns, as the timer tick sampled it.
fn busy_ns(cpu: usize) -> u64 {
    let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let name = format!("cpu{cpu}");
    let line = stat.lines().find(|line| line.split_whitespace().next() == Some(&name)).unwrap_or_default();
    let ticks: Vec<u64> = line.split_whitespace().skip(1).map(|n| n.parse().unwrap_or(0)).collect();
    [0, 1, 2, 5, 6, 7].iter().filter_map(|at| ticks.get(*at)).sum::<u64>() * 10_000_000
}

impl Kernel {
    /// A router that takes packets in on the first of `cpus`. They cost `receive` and `service` ns.
    ///
    /// # Errors
    /// Without the privilege; before Linux 6.6.
    pub(super) fn start(
        steer: Steer,
        cpus: [usize; 2],
        [receive, serve]: [u32; 2],
    ) -> Result<Kernel, String> {
        let mask = match steer {
            Steer::Off => 0,
            Steer::Other => 1u64 << cpus[1],
            Steer::Both => 1 << cpus[0] | 1 << cpus[1],
        };
        let ns = NetNs::new().map_err(text)?;
        let (near, near_mac, far) = ns
            .run(|| {
                let _ = sysctl("ipv6/conf/default/disable_ipv6", "1");
                // The mask of queues made from now on: those that are there have it in a file system of the first namespace.
                sysctl("core/rps_default_mask", &format!("{mask:x}")).map_err(text)?;
                let mut netlink = Netlink::new().map_err(text)?;
                for (name, address) in
                    [(NEAR, Ipv4Addr::new(198, 18, 0, 254)), (FAR, Ipv4Addr::new(198, 19, 0, 1))]
                {
                    let peer = format!("{name}-peer");
                    netlink.add_veth(name, &peer, (1, 1), None).map_err(text)?;
                    netlink.set_up(name).map_err(text)?;
                    netlink.set_up(&peer).map_err(text)?;
                    netlink.wait_running(name).map_err(text)?;
                    netlink.add_address(name, address, 24).map_err(text)?;
                }
                netlink.add_neighbour(FAR, HOST, [2, 0, 0, 0, 3, 1]).map_err(text)?;
                sysctl("ipv4/ip_forward", "1").map_err(text)?;
                let near = netlink.existing_link(NEAR).map_err(text)?;
                let far = netlink.existing_link(FAR).map_err(text)?;
                Ok::<_, String>((near.index, near.mac, far.index))
            })
            .map_err(text)??;
        let frame = UdpFrame {
            src_mac: [2, 0, 0, 0, 3, 0],
            dst_mac: near_mac,
            src: Ipv4Addr::new(198, 18, 0, 1),
            dst: HOST,
            src_port: 1024,
            dst_port: 9,
            len: 50,
        };
        let mut frame = frame.build();
        frame.resize(64, 0);
        let counters = |name| Map::percpu_counters(name, 1).map_err(text);
        let (numbers, out) = (counters("softnet_number")?, counters("softnet_out")?);
        let source = source(&frame, &numbers, steps(receive)?).load_xdp("softnet_source", 0).map_err(text)?;
        let service = service(steps(serve)?).load_tc("softnet_service").map_err(text)?;
        let sink = sink(&out).load_tc("softnet_sink").map_err(text)?;
        let links = ns
            .run(|| {
                Ok::<_, softnet_dev::SysError>((
                    XdpLink::attach(&source, near, XdpMode::Native)?,
                    [
                        TcxLink::attach(&service, near, TcxHook::Ingress)?,
                        TcxLink::attach(&sink, far, TcxHook::Egress)?,
                    ],
                ))
            })
            .map_err(text)?
            .map_err(text)?;
        Ok(Kernel { ns, cpus, frame, near, source, out, _links: links })
    }

    /// Lets packets come as fast as they are taken. Returns how many did.
    fn flood(&self, time: Duration) -> Result<u64, String> {
        let (start, mut offered) = (Instant::now(), 0);
        while start.elapsed() < time {
            self.source.inject(&self.frame, self.near, BURST).map_err(text)?;
            offered += u64::from(BURST);
        }
        Ok(offered)
    }

    /// Packets come for `warm`, and then for `time`, which counts.
    pub(super) fn measure(&self, warm: Duration, time: Duration) -> Result<Sample, String> {
        let run = || {
            pin(self.cpus[0])?;
            self.flood(warm)?;
            let busy = || self.cpus.map(busy_ns);
            let (before, dropped, start, out) =
                (busy(), backlog_drops(), Instant::now(), self.out.sum(0).map_err(text)?);
            let offered = self.flood(time)?;
            let (ns, after) = (start.elapsed().as_nanos() as f64, busy());
            let came_out = self.out.sum(0).map_err(text)? - out;
            // What still waits in backlogs is on its way.
            std::thread::sleep(Duration::from_millis(20));
            let (late, dropped) = (self.out.sum(0).map_err(text)? - out, backlog_drops() - dropped);
            let missing = offered.saturating_sub(late);
            if missing > dropped {
                return Err(format!(
                    "{missing} of {} packets did not come out, {dropped} were dropped",
                    offered
                ));
            }
            let came = offered.max(1) as f64;
            let used = [0, 1].map(|cpu| after[cpu].saturating_sub(before[cpu]) as f64);
            Ok(vec![
                ("mpps", came_out as f64 / ns * 1e3),
                ("loss_percent", (100.0 * (1.0 - came_out as f64 / came)).max(0.0)),
                ("cpu_percent", 100.0 * (used[0] + used[1]) / ns),
                ("idle_percent", (100.0 * (1.0 - used[0] / ns)).max(0.0)),
            ])
        };
        self.ns
            .run(|| std::thread::scope(|scope| scope.spawn(run).join()))
            .map_err(text)?
            .map_err(|_| "the thread that injects packets ended".to_string())?
    }
}
