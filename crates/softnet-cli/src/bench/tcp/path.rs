//! A long or lossy path between a sender and a receiver that is the kernel's.
//!
//! ```text
//!   sender ─► veth ═══ veth ─► [router: netem] ─► veth ═══ veth ─► the kernel's receiver
//! ```
//!
//! The router is softnet, and impairs what leaves by it: data as a [`Weather`] says, ACKs by half
//! of the round trip alone. The sender is softnet by AF_XDP, or the kernel; router, discipline,
//! seed and receiver are the same for both. On veth the CPU that sends does the other end's
//! softirq: the router's CPU also receives, the sender's has the rest.

use std::fmt::Write;
use std::net::{Ipv4Addr, SocketAddr};

use softnet::config::{Config, DeviceConfig, GroMode, InterfaceAddr};
use softnet::control::{Action, SetQdisc};
use softnet::driver::Xdp;
use softnet::internals::{Assembly, XdpOpener};
use softnet::{DeviceError, Stack};
use softnet_dev::netlink::Netlink;
use softnet_dev::netns::NetNs;
use softnet_testkit::{Testbed, Wire, sysctl};

use super::host::{Kernel, Softnet};
use super::rig;
use crate::bench::proc_net::counters;
use crate::bench::text;

/// Frames of the router: what is on its way waits in it.
const FRAMES: u32 = 1 << 16;
/// Packets that may be on their way.
const LIMIT: u32 = 40_000;
const PORT: u16 = 7001;

/// What befalls packets of data.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Weather {
    /// Lost, percent.
    pub(super) loss: f64,
    /// Ahead of those that wait, by half of the round trip, percent.
    pub(super) reorder: f64,
    /// The round trip, ms.
    pub(super) rtt: u32,
}

impl Weather {
    /// The discipline that data passes, in `tc`'s words.
    fn netem(&self, rate_mbit: u32, seed: u64) -> String {
        let mut words = format!("{} rate {rate_mbit}mbit limit {LIMIT} seed {seed}", self.delay());
        for (word, percent) in [("loss", self.loss), ("reorder", self.reorder)] {
            if percent > 0.0 {
                // Writing to a string does not fail.
                let _ = write!(words, " {word} {percent}%");
            }
        }
        words
    }

    /// The discipline of a path that is merely long.
    fn delay(&self) -> String {
        format!("netem delay {}us", self.rtt * 500)
    }
}

/// Who sends.
pub(super) enum Sender {
    /// Its stack is kept for as long as the path is.
    Softnet(Softnet, Stack),
    Kernel(Kernel),
}

/// See the [module](self). Stacks go before their interfaces do.
pub(super) struct Path {
    pub(super) sender: Sender,
    pub(super) receiver: Kernel,
    router: Stack,
    testbed: Testbed,
}

/// Fills a namespace of the kernel's.
fn kernel_end(ns: &NetNs, wire: &Wire) -> Result<(), String> {
    let set = || -> Result<(), String> {
        let mut netlink = Netlink::new().map_err(text)?;
        netlink.add_address(&wire.near, wire.near_ip, 24).map_err(text)?;
        netlink.add_route(Ipv4Addr::UNSPECIFIED, 0, wire.far_ip).map_err(text)?;
        // What one connection learnt is not the next one's: each measurement is a first one.
        sysctl("ipv4/tcp_no_metrics_save", "1").map_err(text)
    };
    ns.run(set).map_err(text)?
}

fn run(ns: &NetNs, config: Config, devices: usize) -> Result<Stack, String> {
    let run = || {
        let opener = |region: &_| XdpOpener::new(region, devices).map_err(DeviceError::from);
        Stack::run(Assembly::new(config, vec![], opener).map_err(text)?).map_err(text)
    };
    rig::started(ns.run(run).map_err(text)??)
}

fn router(testbed: &Testbed, cpu: usize) -> Result<Stack, String> {
    let mut config = Config::default();
    config.stack.workers = vec![cpu as u32];
    config.stack.frames = FRAMES;
    for wire in [&testbed.incoming, &testbed.outgoing] {
        let address = InterfaceAddr::new(wire.far_ip, 24).map_err(text)?;
        config.devices.push(DeviceConfig::new(&wire.far).with(|device| {
            device.addresses = vec![address];
            device.arp_notify = false;
            device.dad = false;
            // Packets are impaired one by one.
            device.gro = GroMode::Off;
            device.driver = Xdp::default().with(|xdp| xdp.ring = 2048).into();
        }));
        let near = (wire.near_ip, wire.near_mac);
        config.neighbours.push(softnet::config::NeighbourConfig::new(wire.far.clone(), near.0, near.1));
    }
    run(&testbed.middle, config, 2)
}

impl Path {
    /// softnet sends, with its worker on CPU `sender`; the router's is on CPU `router`.
    pub(super) fn softnet(sender: usize, router_cpu: usize) -> Result<Path, String> {
        let testbed = Testbed::new(1).map_err(text)?;
        let wire = &testbed.incoming;
        let device = DeviceConfig::new(&wire.near)
            .with(|device| device.driver = Xdp::default().with(|xdp| xdp.ring = 2048).into());
        let config = rig::config(sender, device, wire.near_ip, &[(wire.far_ip, wire.far_mac)])?;
        let stack = run(&testbed.source, config, 1)?;
        Path::with(Sender::Softnet(Softnet(stack.handle()), stack), testbed, router_cpu)
    }

    /// The kernel sends.
    pub(super) fn kernel(router_cpu: usize) -> Result<Path, String> {
        let testbed = Testbed::new(1).map_err(text)?;
        kernel_end(&testbed.source, &testbed.incoming)?;
        let source = Kernel::new(&testbed.source).map_err(text)?;
        Path::with(Sender::Kernel(source), testbed, router_cpu)
    }

    fn with(sender: Sender, testbed: Testbed, router_cpu: usize) -> Result<Path, String> {
        kernel_end(&testbed.sink, &testbed.outgoing)?;
        let receiver = Kernel::new(&testbed.sink).map_err(text)?;
        let router = router(&testbed, router_cpu)?;
        Ok(Path { sender, receiver, router, testbed })
    }

    /// Where the sender listens.
    pub(super) fn address(&self) -> SocketAddr {
        (self.testbed.incoming.near_ip, PORT).into()
    }

    fn set(&self, wire: &Wire, qdisc: String) -> Result<(), String> {
        let set =
            SetQdisc { dev: wire.far.clone(), queue: None, action: Action::Replace, qdisc: Some(qdisc) };
        self.router.view().set_qdisc(set).map(drop).map_err(text)
    }

    /// The path is long from now on, and does no harm yet.
    pub(super) fn lengthen(&self, weather: &Weather) -> Result<(), String> {
        self.set(&self.testbed.incoming, format!("{} limit {LIMIT}", weather.delay()))?;
        self.set(&self.testbed.outgoing, format!("{} limit {LIMIT}", weather.delay()))
    }

    /// From now on data suffers what `weather` says.
    pub(super) fn impair(&self, weather: &Weather, rate_mbit: u32, seed: u64) -> Result<(), String> {
        self.set(&self.testbed.outgoing, weather.netem(rate_mbit, seed))
    }

    /// Segments that the kernel of the sender's namespace has sent again.
    pub(super) fn kernel_retransmitted(&self) -> Result<u64, String> {
        counters(&self.testbed.source, "snmp", "Tcp", &["RetransSegs"])
    }

    /// Segments that the receiver had already, as it told by DSACK.
    pub(super) fn duplicates(&self) -> Result<u64, String> {
        counters(&self.testbed.sink, "netstat", "TcpExt", &["TCPDSACKOldSent", "TCPDSACKOfoSent"])
    }
}

#[cfg(test)]
mod tests {
    use softnet_core::qdisc::Spec;

    use super::*;

    #[test]
    fn weather_is_told_in_words_that_netem_knows() {
        for (loss, reorder) in [(0.0, 0.0), (0.1, 0.0), (0.0, 30.0), (5.0, 1.0)] {
            let weather = Weather { loss, reorder, rtt: 1 };
            for words in [weather.delay(), weather.netem(500, 7)] {
                assert!(matches!(words.parse(), Ok(Spec::Netem(_))), "{words}");
            }
        }
        let lossy = Weather { loss: 0.1, reorder: 0.0, rtt: 20 };
        assert_eq!(lossy.netem(500, 7), "netem delay 10000us rate 500mbit limit 40000 seed 7 loss 0.1%");
    }
}
