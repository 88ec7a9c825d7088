//! A star of namespaces: hosts, each on a veth pair of its own, and softnet in the middle.
//!
//! Host `i` has 10.`i`.0.2 and sends everything to softnet's 10.`i`.0.1; the middle's kernel has 10.`i`.0.3. In a world of
//! both families (`World::dual`) the same holds for fd00:0:0:`i`::2, ::1 and ::3.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use softnet::config::{Config, DeviceConfig, InterfaceAddr, StackConfig, available_cpus};
use softnet::control::show::DevRow;
use softnet::driver::Xdp;
use softnet::internals::StackInner;
use softnet::net::Handle;
use softnet::{Introspect, NapiPoller, PacketFilter, PollerParams, Stack, StackBuilder, StartError};
use softnet_dev::netlink::Netlink;
use softnet_dev::netns::NetNs;
use softnet_testkit::{kernel_has, net_allowed};

use super::hosts::{Echo, ask};

const PATIENCE: Duration = Duration::from_secs(60);

/// Waits for something that happens unless softnet is broken.
pub(crate) fn until(what: &str, mut done: impl FnMut() -> bool) {
    let give_up = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < give_up, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Whether the kernel has AF_XDP packets of several frames; if not, says so.
pub(crate) fn has_frags() -> bool {
    kernel_has("AF_XDP packets of several frames", (6, 6))
}

pub(crate) fn softnet(i: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, i as u8, 0, 1)
}
pub(crate) fn host(i: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, i as u8, 0, 2)
}
pub(crate) fn kernel(i: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, i as u8, 0, 3)
}

pub(crate) fn softnet6(i: usize) -> Ipv6Addr {
    Ipv6Addr::new(0xfd00, 0, 0, i as u16, 0, 0, 0, 1)
}
pub(crate) fn host6(i: usize) -> Ipv6Addr {
    Ipv6Addr::new(0xfd00, 0, 0, i as u16, 0, 0, 0, 2)
}
pub(crate) fn kernel6(i: usize) -> Ipv6Addr {
    Ipv6Addr::new(0xfd00, 0, 0, i as u16, 0, 0, 0, 3)
}

/// softnet's interface to host `i`, in the middle.
pub(crate) fn interface(i: usize) -> String {
    format!("s{i}")
}

/// The namespaces, and the stack once it was started.
pub(crate) struct World {
    pub(crate) middle: NetNs,
    pub(crate) hosts: Vec<NetNs>,
    stack: Option<Stack>,
    /// What each device counted when it was looked at last.
    last: Vec<DevRow>,
}

impl World {
    /// With this many hosts, and nothing running yet; `None` if that is not permitted.
    pub(crate) fn new(hosts: usize) -> Option<World> {
        if !net_allowed() {
            return None;
        }
        let hosts: Vec<_> = (0..hosts).map(|_| NetNs::new().unwrap()).collect();
        let world = World { middle: NetNs::new().unwrap(), hosts, stack: None, last: Vec::new() };
        (0..world.hosts.len()).for_each(|i| world.plug(i));
        Some(world)
    }

    /// The same, with IPv6 beside IPv4.
    pub(crate) fn dual(hosts: usize) -> Option<World> {
        let world = World::new(hosts)?;
        for (i, host) in world.hosts.iter().enumerate() {
            let add = |name: &str, address| Netlink::new().unwrap().add_address(name, address, 64).unwrap();
            world.middle.run(|| add(&interface(i), kernel6(i))).unwrap();
            host.run(|| {
                add("eth0", host6(i));
                Netlink::new().unwrap().add_route(Ipv6Addr::UNSPECIFIED, 0, softnet6(i)).unwrap();
            })
            .unwrap();
        }
        Some(world)
    }

    /// The configuration for it.
    pub(crate) fn config_dual(&self) -> Config {
        let mut config = self.config();
        for (i, device) in config.devices.iter_mut().enumerate() {
            device.addresses.push(InterfaceAddr::new(softnet6(i), 64).unwrap());
        }
        config
    }

    /// Makes the wire to host `i`. Those with an even number have two queues.
    pub(crate) fn plug(&self, i: usize) {
        let queues = 2 - i as u32 % 2;
        let (name, host_ns) = (interface(i), &self.hosts[i]);
        self.middle
            .run(|| {
                let mut netlink = Netlink::new().unwrap();
                netlink.add_veth(&name, "eth0", (queues, queues), Some(host_ns)).unwrap();
                netlink.add_address(&name, kernel(i), 24).unwrap();
                netlink.set_up(&name).unwrap();
            })
            .unwrap();
        host_ns
            .run(|| {
                let mut netlink = Netlink::new().unwrap();
                netlink.add_address("eth0", host(i), 24).unwrap();
                netlink.set_up("eth0").unwrap();
                netlink.add_route(Ipv4Addr::UNSPECIFIED, 0, softnet(i)).unwrap();
            })
            .unwrap();
    }

    /// Deletes the wire to host `i`.
    pub(crate) fn unplug(&self, i: usize) {
        self.middle.run(|| Netlink::new().unwrap().delete_link(&interface(i)).unwrap()).unwrap();
    }

    pub(crate) fn config(&self) -> Config {
        let device = |i: usize| {
            DeviceConfig::new(interface(i)).with(|device| {
                device.driver = Xdp::default().with(|xdp| xdp.ring = 512).into();
                device.addresses = vec![InterfaceAddr::new(softnet(i), 24).unwrap()];
            })
        };
        Config::default().with(|config| {
            config.stack = StackConfig::default().with(|stack| {
                stack.workers = available_cpus().into_iter().take(2).collect();
                stack.frames = 8192;
            });
            config.devices = (0..self.hosts.len()).map(device).collect();
        })
    }

    pub(crate) fn start(&mut self) {
        self.start_with(self.config());
    }

    pub(crate) fn start_with(&mut self, config: Config) {
        self.stack = Some(self.try_start(config).unwrap());
    }

    /// As a builder says.
    pub(crate) fn start_by(&mut self, builder: StackBuilder) {
        self.stack = Some(self.middle.run(|| builder.start()).unwrap().unwrap());
    }

    pub(crate) fn try_start(&self, config: Config) -> Result<Stack, StartError> {
        self.middle.run(|| Stack::start(config)).unwrap()
    }

    pub(crate) fn view(&self) -> &Arc<Introspect> {
        self.stack.as_ref().expect("was started").view()
    }

    /// Leads to the stack.
    pub(crate) fn handle(&self) -> Handle {
        self.stack.as_ref().expect("was started").handle()
    }

    /// What the stack's threads share.
    pub(crate) fn shared(&self) -> Arc<StackInner> {
        self.stack.as_ref().expect("was started").shared().clone()
    }

    /// A poller of instance `napi`.
    pub(crate) fn poller(&self, napi: u32, filter: PacketFilter, params: PollerParams) -> NapiPoller {
        self.stack.as_ref().expect("was started").poller(napi, "test", filter, params).unwrap()
    }

    /// Servers on every host.
    pub(crate) fn echoes(&self) -> Vec<Echo> {
        self.hosts.iter().map(Echo::start).collect()
    }

    /// Waits until every host reaches every other.
    pub(crate) fn assert_connected(&self) {
        for from in 0..self.hosts.len() {
            for to in (0..self.hosts.len()).filter(|to| *to != from) {
                until(&format!("an echo from host {to} to {from}"), || {
                    self.hosts[from].run(|| ask(host(to), b"anybody there?")).unwrap()
                });
            }
        }
    }

    /// Looks at the devices. No counter may have gone backwards.
    pub(crate) fn devs(&mut self) -> Vec<DevRow> {
        let now = self.view().devs();
        let counters = |row: &DevRow| {
            [row.rx_packets, row.rx_bytes, row.rx_kicks, row.tx_packets, row.tx_bytes, row.tx_kicks]
                .into_iter()
                .chain([row.rx_ring_drops, row.tx_ring_drops, row.drops, row.reopened])
                .collect::<Vec<_>>()
        };
        for (before, now) in self.last.iter().zip(&now) {
            let back = counters(before).iter().zip(counters(now)).any(|(before, now)| now < *before);
            assert!(!back, "{before:?}\n{now:?}");
        }
        self.last = now.clone();
        now
    }

    /// Stops the stack and checks that nothing is left: every packet in the books, all memory home.
    pub(crate) fn end(mut self) {
        let view = self.view().clone();
        self.stack = None;
        let s = view.stats();
        assert_eq!(
            s.received + s.originated,
            s.transmitted + s.delivered + s.dropped + s.merged,
            "{s:?}\n{:?}",
            view.drops()
        );
        assert_eq!((s.held, s.leaked), (0, 0), "{s:?}");
        assert_eq!((s.frames_free, s.heads_free), (s.frames, s.heads), "{s:?}");
    }
}
