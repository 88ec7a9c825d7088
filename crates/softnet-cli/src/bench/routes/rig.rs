//! A router that follows the kernel's routes, between two wires, with a daemon's routes in its kernel.
//!
//! Invariant: all routes lead to the same host, by one of two gateways, so that a packet arrives whichever of a
//! prefix's routes it goes by, and is lost only if there is none.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

use softnet::config::{Config, DeviceConfig, FollowConfig, InterfaceAddr};
use softnet::{Introspect, Stack};
use softnet_dev::netlink::{FibEvent, FibMonitor, Netlink};
use softnet_testkit::{
    Generator, GeneratorConfig, LoadedRoute, RouteChange, RouteLoader, Sink, SinkFilter, Testbed, sysctl,
};

use crate::bench::text;

/// Port of the packets that the sink counts.
const PORT: u16 = 9;
/// Flows, each with a destination of its own.
const FLOWS: u16 = 256;
/// What they go to (RFC 2544).
const NET: (Ipv4Addr, u8) = (Ipv4Addr::new(198, 18, 0, 0), 15);
/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(120);
/// Two gateways, which are one host.
const GATEWAYS4: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 71, 2, 2), Ipv4Addr::new(10, 71, 2, 3)];
const GATEWAYS6: [Ipv6Addr; 2] =
    [Ipv6Addr::new(0xfd00, 71, 0, 0, 0, 0, 0, 2), Ipv6Addr::new(0xfd00, 71, 0, 0, 0, 0, 0, 3)];
const KERNEL6: Ipv6Addr = Ipv6Addr::new(0xfd00, 71, 0, 0, 0, 0, 0, 1);

/// See the [module](self). The stack goes before its interfaces do.
pub(super) struct Rig {
    stack: Stack,
    sink: Sink,
    loader: RouteLoader,
    testbed: Testbed,
    source_cpu: usize,
    /// Routes that were there before any were loaded.
    base: u64,
}

/// Packets of one measurement.
pub(super) struct Passed {
    pub(super) seconds: f64,
    pub(super) sent: u64,
    pub(super) arrived: u64,
    /// By softnet, for whichever reason.
    pub(super) dropped: u64,
}

impl Rig {
    pub(super) fn new(cpu: usize, source_cpu: usize) -> Result<Self, String> {
        let testbed = Testbed::new(1).map_err(text)?;
        let (incoming, outgoing) = (&testbed.incoming, &testbed.outgoing);
        let prepare = || -> std::io::Result<()> {
            sysctl("ipv6/conf/all/disable_ipv6", "0")?;
            // A million routes of IPv6 were more than a kernel without this takes.
            let _ = sysctl("ipv6/route/max_size", "2147483647");
            let mut netlink = Netlink::new()?;
            netlink.add_address(&incoming.far, incoming.far_ip, 24)?;
            netlink.add_address(&outgoing.far, outgoing.far_ip, 24)?;
            netlink.add_address(&outgoing.far, KERNEL6, 64)?;
            netlink.add_neighbour(&incoming.far, incoming.near_ip, incoming.near_mac)?;
            let all = GATEWAYS4.map(IpAddr::from).into_iter().chain(GATEWAYS6.map(IpAddr::from));
            for gateway in all {
                netlink.add_neighbour(&outgoing.far, gateway, outgoing.near_mac)?;
            }
            Ok(())
        };
        testbed.middle.run(prepare).map_err(text)?.map_err(text)?;
        let device = |name: &str, address: [u8; 4]| -> Result<DeviceConfig, String> {
            let addresses = vec![InterfaceAddr::new(address, 24).map_err(text)?];
            Ok(DeviceConfig::new(name).with(|device| {
                device.addresses = addresses;
                device.arp_notify = false;
                device.dad = false;
            }))
        };
        let mut config = Config::default();
        config.stack.workers = vec![cpu as u32];
        config.stack.follow = Some(FollowConfig::default());
        config.devices =
            vec![device(&incoming.far, [10, 71, 1, 254])?, device(&outgoing.far, [10, 71, 2, 254])?];
        let stack = testbed.middle.run(|| Stack::start(config)).map_err(text)?.map_err(text)?;
        let sink = testbed.sink.run(|| Sink::attach(outgoing.near_index, SinkFilter::UdpPort(PORT)));
        let sink = sink.map_err(text)?.map_err(text)?;
        let loader = testbed.middle.run(RouteLoader::new).map_err(text)?.map_err(text)?;
        let mut rig = Rig { stack, sink, loader, testbed, source_cpu, base: 0 };
        rig.change(RouteChange::Add, [(NET.0.into(), NET.1)].into_iter(), 0)?;
        rig.until("the first route", |view| view.stats().follow.is_some_and(|follow| follow.lists > 0))?;
        rig.settle()?;
        rig.base = rig.view().stats().routes;
        Ok(rig)
    }

    pub(super) fn view(&self) -> &Introspect {
        self.stack.view()
    }

    /// Changes the routes to these prefixes, by gateway number `way`. Returns how many the kernel took.
    pub(super) fn change(
        &mut self,
        change: RouteChange,
        prefixes: impl ExactSizeIterator<Item = (IpAddr, u8)>,
        way: usize,
    ) -> Result<u64, String> {
        let (ifindex, n) = (self.testbed.outgoing.far_index, prefixes.len() as u64);
        let route = |to: (IpAddr, u8)| {
            let via = match to.0 {
                IpAddr::V4(_) => GATEWAYS4[way % 2].into(),
                IpAddr::V6(_) => GATEWAYS6[way % 2].into(),
            };
            LoadedRoute { to, via, ifindex }
        };
        Ok(n - self.loader.change(change, prefixes.map(route)).map_err(text)?)
    }

    /// The route of the packets, by gateway number `way`.
    pub(super) fn move_traffic(&mut self, way: usize) -> Result<(), String> {
        self.change(RouteChange::Replace, [(NET.0.into(), NET.1)].into_iter(), way).map(|_| ())
    }

    fn until(&self, what: &str, is: impl Fn(&Introspect) -> bool) -> Result<(), String> {
        let give_up = Instant::now() + PATIENCE;
        while !is(self.view()) {
            if Instant::now() > give_up {
                return Err(format!("{what} did not come: {:?}", self.view().stats()));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Waits until there are `n` routes besides those at the beginning.
    pub(super) fn until_routes(&self, n: u64) -> Result<(), String> {
        self.until("all routes", |view| view.stats().routes == self.base + n)
    }

    /// Waits until nothing was told for a while, and nothing is to be listed: after an overrun that may be
    /// seconds later.
    pub(super) fn settle(&self) -> Result<(), String> {
        let figures = || self.view().stats().follow.map(|f| (f.events, f.published, f.lists, f.list_due));
        let give_up = Instant::now() + PATIENCE;
        let mut before = None;
        while before != figures() || before.is_none_or(|(.., due)| due) {
            if Instant::now() > give_up {
                return Err("routes go on changing".into());
            }
            before = figures();
            std::thread::sleep(Duration::from_millis(500));
        }
        Ok(())
    }

    /// Sends at `rate`, or as fast as it can, while `meanwhile` runs, and accounts for what became of it.
    pub(super) fn traffic(
        &mut self,
        rate: Option<u64>,
        meanwhile: impl FnOnce(&mut Self) -> Result<(), String>,
    ) -> Result<Passed, String> {
        let destination = |flow: u16| Ipv4Addr::from(u32::from(NET.0) + (u32::from(flow) << 9) + 1);
        let frames = (0..FLOWS).map(|flow| self.testbed.frame(destination(flow), PORT, 60)).collect();
        let interface = self.testbed.incoming.near.clone();
        let config = GeneratorConfig { interface, frames, rate, cpu: Some(self.source_cpu) };
        let (arrived, dropped) = (self.sink.count().map_err(text)?, self.view().stats().dropped);
        let began = Instant::now();
        let generator = Generator::start(&self.testbed.source, config).map_err(text)?;
        let result = meanwhile(self);
        let sent = generator.stop().map_err(text)?.sent;
        let seconds = began.elapsed().as_secs_f64();
        result?;
        // What is under way.
        let mut last = u64::MAX;
        while last != self.sink.count().map_err(text)? {
            last = self.sink.count().map_err(text)?;
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(Passed { seconds, sent, arrived: last - arrived, dropped: self.view().stats().dropped - dropped })
    }

    /// Routes by a gateway that only the kernel has, only softnet, or that lead elsewhere.
    pub(super) fn differing(&self) -> Result<u64, String> {
        let list = || -> Result<HashMap<(String, u32), IpAddr>, String> {
            let mut monitor = FibMonitor::new().map_err(text)?;
            let mut all = HashMap::new();
            monitor
                .list(|event| {
                    if let FibEvent::Route(route, _) = event
                        && let Some(gateway) = route.hops.first().and_then(|hop| hop.gateway)
                    {
                        all.insert((format!("{}/{}", route.to.0, route.to.1), route.metric), gateway);
                    }
                })
                .map_err(text)?;
            Ok(all)
        };
        let mut kernel = self.testbed.middle.run(list).map_err(text)??;
        let mut differ = 0;
        for row in self.view().routes().into_iter().filter(|row| row.source == "kernel" && row.via.is_some())
        {
            differ += u64::from(kernel.remove(&(row.prefix, row.metric)) != row.via);
        }
        Ok(differ + kernel.len() as u64)
    }
}
