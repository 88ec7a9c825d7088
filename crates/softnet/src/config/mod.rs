//! The configuration of a stack: plain types, the TOML they are read from, and the checks both must pass.
//!
//! A program may build a [`Config`] in code or [`load`](Config::load) one from a file; [`check`](Config::check)
//! says everything that is wrong with it at once. Invariant: a configuration that passed names only devices,
//! workers and gateways it declares itself, so that a stack that starts from it touches no interface
//! in vain.
//!
//! ```toml
//! [stack]
//! name = "softnet"                # control socket /run/softnet/<name>.sock, unless `control` says otherwise
//! workers = [0, 1]                # CPUs, one worker each
//!
//! [[device]]
//! name = "eth1"
//! addresses = ["10.0.0.1/24", "2001:db8::1/64"]
//!
//! [[route]]
//! to = "0.0.0.0/0"
//! via = "10.0.0.254"
//!
//! [[neighbour]]
//! dev = "eth1"
//! address = "10.0.0.254"
//! mac = "02:00:00:00:00:01"
//! ```

mod check;
mod check_filter;
mod check_nat;
mod context;
mod control;
mod errors;
mod filter;
mod follow;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod interface_addr;
mod knobs;
mod load;
mod metrics;
mod nat;
mod per_queue;
mod read;
mod route;
mod sections;
mod steering;
mod steering_mode;
mod tcp;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_filter;
#[cfg(test)]
mod tests_follow;
#[cfg(test)]
mod tests_ipv6;
#[cfg(test)]
mod tests_load;
#[cfg(test)]
mod tests_nat;
#[cfg(test)]
mod tests_route;
#[cfg(test)]
mod tests_steering;
mod value;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use softnet_core::ip::v6::addr::{link_local, subnet_router_anycast};
use softnet_core::ip::{Family, Prefix, Prefix6};
use softnet_core::qdisc::DevParams;
pub use softnet_core::steer::RssChange;
use softnet_core::steer::{MAX_CPUS, XpsError, XpsMaps};

pub(crate) use check::never_a_host;
pub use context::Context;
pub use control::ControlConfig;
pub use errors::{At, ConfigErrors, ParseError, Problem};
pub use filter::{FilterConfig, RuleAddresses, RuleConfig, SetConfig};
pub use follow::{FollowConfig, FpmConfig};
pub use interface_addr::InterfaceAddr;
pub(crate) use interface_addr::is_link_local;
pub use knobs::Knobs;
pub use metrics::{MetricsConfig, MetricsListen, MetricsListenError};
pub use nat::{
    NatConfig, NatForwardConfig, NatOneToOneConfig, NatPrefixConfig, NatProtocol, NatSourceConfig,
};
pub use per_queue::PerQueue;
pub use route::{NextHopConfig, RouteConfig, RouteTarget};
pub use softnet_core::conntrack::Timeouts;
pub use softnet_core::filter::{Action, Chain, FlowState};
pub use softnet_core::gro::GroMode;
pub use softnet_core::ip::icmp_limit::IcmpParams;
pub use softnet_core::ip::source::RpFilter;
pub use softnet_core::ip::v4::options::OptionPolicy;
pub use softnet_core::ip::{FibError, IpPrefix, PrefixError};
pub use softnet_core::nat::Filtering;
pub use softnet_core::qdisc::{Spec, SpecError};
pub use softnet_core::skb::CacheSizes;
pub use softnet_dev::sched::Policy;
pub use softnet_tcp::Config as TcpConfig;
pub use softnet_tcp::config::CongestionControl;
pub use steering::KnobError;
pub(crate) use steering::{QueueKnobs, SteeringSettings};
pub use steering_mode::SteeringMode;

use crate::driver::{DeviceDriver, DeviceError, OpenRequest, Vlan, VlanRequest, Xdp};

use sections::Source;
pub(crate) use value::parse_mac;

/// Everything a stack is started from.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Config {
    /// The stack itself: `[stack]`.
    pub stack: StackConfig,
    /// Its devices, in the order of their indices: `[[device]]`.
    pub devices: Vec<DeviceConfig>,
    /// Static routes beside the connected ones: `[[route]]`.
    pub routes: Vec<RouteConfig>,
    /// Permanent neighbours: `[[neighbour]]`.
    pub neighbours: Vec<NeighbourConfig>,
    /// The knobs of TCP: `[tcp]`.
    pub tcp: TcpConfig,
    /// Translation of addresses: `[nat]`; `None`: there is none.
    pub nat: Option<NatConfig>,
    /// Which packets pass: `[filter]`, `[[rule]]` and `[[set]]`.
    pub filter: FilterConfig,
    /// Which users may ask it: `[control]`.
    pub control: ControlConfig,
    /// Where it tells its metrics: `[metrics]`; `None`: nowhere.
    pub metrics: Option<MetricsConfig>,
}

/// `[stack]`: workers, packet memory and polling limits.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct StackConfig {
    /// Name of the instance.
    pub name: String,
    /// Control socket; [`socket_path`](Self::socket_path) says which one is used without it.
    pub control: Option<PathBuf>,
    /// CPUs, one worker each. Other sections name workers by their place in this list.
    pub workers: Vec<u32>,
    /// Scheduling policy of the workers, with its priority; `None`: the one that softnet was started with.
    pub worker_policy: Option<Policy>,
    /// Frames of packet memory, a power of two.
    pub frames: u32,
    /// Packets a worker polls before it lets others run (`net.core.netdev_budget`).
    pub netdev_budget: u32,
    /// Microseconds a worker polls before it lets others run (`net.core.netdev_budget_usecs`).
    pub netdev_budget_usecs: u32,
    /// Packets one poll of one NAPI instance may bring (`net.core.dev_weight`).
    pub dev_weight: u32,
    /// Each thread's caches of heads and frames.
    pub skb_cache: CacheSizes,
    /// That of frames, if it is another. Files have no key for it: it is there to be measured
    /// (`softnet bench skb-cache --app nat`).
    pub frame_cache: Option<CacheSizes>,
    /// Heads, and frames, that may be on their way home to the thread that took them, when others
    /// free them (`net.core.skb_defer_max`); 0: they stay where they are freed.
    pub skb_defer_max: u32,
    /// Threads of the pool that polls in the context `workqueue`; 0: as many as there are CPUs to run on.
    pub workqueue_threads: u32,
    /// Packets that may wait in a worker's backlog (`net.core.netdev_max_backlog`).
    pub netdev_max_backlog: u32,
    /// Flows of which sockets note where they are consumed (`net.core.rps_sock_flow_entries`); 0:
    /// none, RFS is off.
    pub rps_sock_flow_entries: u32,
    /// Buckets by which each steering thread limits flows (`net.core.flow_limit_table_len`); 0: it
    /// does not.
    pub flow_limit_table_len: u32,
    /// Packets that may be pending for the thread that owns a TX queue (`net.core.qdisc_max_burst`).
    pub qdisc_max_burst: u32,
    /// ms after which a sender's choice of a TX queue may be made anew although packets of it are in flight
    /// (`net.core.txq_reselection_ms`); 0: never.
    pub txq_reselection_ms: u32,
    /// Sockets that may be open at a time.
    pub max_sockets: u32,
    /// Discipline of TX queues for which none is set (`net.core.default_qdisc`).
    pub default_qdisc: Spec,
    /// Neighbours of each family on each device: so few stay however long they are unused, more than so many go when they
    /// are, and there are never more than so many (`net.ipv4.neigh.default.gc_thresh1` to `gc_thresh3`).
    pub gc_thresh: [u32; 3],
    /// What ICMP messages are limited to (`net.ipv4.icmp_ratelimit` and its kin).
    pub icmp: IcmpParams,
    /// What is done with IPv4 options that want something recorded.
    pub ip_options: OptionPolicy,
    /// What is taken over from the kernel's tables or from zebra's, and kept as it is there; `None`: nothing.
    pub follow: Option<FollowConfig>,
}

impl Default for StackConfig {
    fn default() -> Self {
        StackConfig {
            name: "softnet".into(),
            control: None,
            workers: vec![0],
            worker_policy: None,
            frames: 16384,
            netdev_budget: 300,
            netdev_budget_usecs: 2000,
            dev_weight: 64,
            skb_cache: CacheSizes::default(),
            frame_cache: None,
            skb_defer_max: 0,
            workqueue_threads: 0,
            netdev_max_backlog: 1000,
            rps_sock_flow_entries: 0,
            flow_limit_table_len: 4096,
            qdisc_max_burst: 1000,
            txq_reselection_ms: 1000,
            max_sockets: 131_072,
            default_qdisc: Spec::PfifoFast,
            gc_thresh: [128, 512, 1024],
            icmp: IcmpParams::default(),
            ip_options: OptionPolicy::default(),
            follow: None,
        }
    }
}

/// The directory of control sockets.
pub(crate) const CONTROL_DIRECTORY: &str = "/run/softnet";

/// The control socket of the instance `name`, unless it is configured to have another.
pub fn socket_path(name: &str) -> PathBuf {
    Path::new(CONTROL_DIRECTORY).join(format!("{name}.sock"))
}

impl StackConfig {
    /// The same, changed by `change`: as a struct expression, which other crates can't write, for fields are added now and then.
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    /// How many threads the pool has.
    pub(crate) fn pool_threads(&self) -> u32 {
        match self.workqueue_threads {
            0 => available_cpus().len().clamp(1, check::WORKQUEUE_THREADS.max as usize) as u32,
            n => n,
        }
    }

    /// Where the control socket is.
    pub fn socket_path(&self) -> PathBuf {
        self.control.clone().unwrap_or_else(|| socket_path(&self.name))
    }
}

/// `[[device]]`: an interface that softnet takes, and how.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct DeviceConfig {
    /// Interface name.
    pub name: String,
    /// What opens it, with that one's own keys.
    pub driver: DeviceDriver,
    /// Take it even if it carries the machine's default route or hides VLAN tags, and addresses
    /// even if the kernel has them.
    pub force: bool,
    /// softnet's own addresses on it, of either family; their networks are connected routes.
    pub addresses: Vec<InterfaceAddr>,
    /// The workers that poll it: queue `i` belongs to `workers[i % workers.len()]`, an index into
    /// [`StackConfig::workers`]. Empty: all workers in turn.
    pub workers: Vec<usize>,
    /// Whether frames may arrive with a partial L4 checksum.
    pub partial_csum: PartialCsum,
    /// Whether senders on its link are told of a better first hop there (`net.ipv4.conf.DEV.send_redirects`), of either
    /// family.
    pub send_redirects: bool,
    /// Whether its IPv4 addresses are announced when it is opened (`net.ipv4.conf.DEV.arp_notify`).
    pub arp_notify: bool,
    /// Whether its IPv6 addresses are (`net.ipv6.conf.DEV.ndisc_notify`).
    pub ndisc_notify: bool,
    /// Whether it is asked on the link if another station has its addresses
    /// (`net.ipv6.conf.DEV.accept_dad`, of IPv4 too): not of those that it shares with the kernel.
    pub dad: bool,
    /// How sources of packets that come by it are asked for their way back
    /// (`net.ipv4.conf.DEV.rp_filter`), of IPv6 too.
    pub rp_filter: RpFilter,
    /// In which context it is polled, until that is changed while it runs.
    pub threaded: Context,
    /// Completions without work that leave a queue's doorbell masked, at most 2147483647; these three, too, until they are
    /// changed while it runs.
    pub napi_defer_hard_irqs: u32,
    /// ns until a masked queue is polled.
    pub gro_flush_timeout: u64,
    /// ns for which an application that receives may leave a masked queue alone.
    pub irq_suspend_timeout: u64,
    /// What GRO makes one packet of, until that is changed while it runs.
    pub gro: GroMode,
    /// Its root discipline, until that is changed while it runs. `None`: [`StackConfig::default_qdisc`], one for each TX
    /// queue (`mq`) if it has several.
    pub qdisc: Option<Spec>,
    /// Packets that a discipline holds unless it is told otherwise.
    pub tx_queue_len: u32,
    /// How its RX queues are steered for which the next two set nothing.
    pub steering: SteeringMode,
    /// The CPU whose worker goes on with all that an RX queue brings, until that is changed while it runs; these three.
    pub processing_cpu: PerQueue<u32>,
    /// The CPUs over whose workers the flows of an RX queue are spread.
    pub rps_cpus: PerQueue<CpuList>,
    /// Entries of an RX queue's table of flows that follow their consumers; 0: none does.
    pub rps_flow_cnt: PerQueue<u32>,
    /// How it spreads flows over its RX queues, until that is changed while it runs. `None`: in its own way.
    pub rss: Option<RssChange>,
    /// For each TX queue the CPUs whose packets leave by it. Empty: not by CPU. Queues at the end may be left out.
    pub xps_cpus: Vec<CpuList>,
    /// For each TX queue the RX queues whose packets leave by it; goes before `xps_cpus`. Empty: that of the same number.
    pub xps_rxqs: Vec<CpuList>,
}

impl DeviceConfig {
    /// An `xdp` device with defaults and no address.
    pub fn new(name: impl Into<String>) -> Self {
        DeviceConfig {
            name: name.into(),
            driver: Xdp::default().into(),
            force: false,
            addresses: Vec::new(),
            workers: Vec::new(),
            partial_csum: PartialCsum::Auto,
            send_redirects: true,
            arp_notify: true,
            ndisc_notify: true,
            dad: true,
            rp_filter: RpFilter::Off,
            threaded: Context::Softirq,
            napi_defer_hard_irqs: 0,
            gro_flush_timeout: 0,
            irq_suspend_timeout: 0,
            gro: GroMode::Off,
            qdisc: None,
            tx_queue_len: 1000,
            steering: SteeringMode::Auto,
            processing_cpu: PerQueue::default(),
            rps_cpus: PerQueue::default(),
            rps_flow_cnt: PerQueue::All(0),
            rss: None,
            xps_cpus: Vec::new(),
            xps_rxqs: Vec::new(),
        }
    }

    /// The same, changed by `change`: as a struct expression, which other crates can't write, for fields are added now and then.
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    /// The same with `address` beside those it has.
    pub fn address(mut self, address: InterfaceAddr) -> Self {
        self.addresses.push(address);
        self
    }

    /// What its driver is asked for, as the device with index `dev`.
    pub(crate) fn request(&self, dev: u16) -> OpenRequest<'_> {
        let anycast = self.anycast6().map(IpAddr::V6);
        let addresses = self.addresses.iter().map(|own| own.addr()).chain(anycast).collect();
        let (name, force, driver, vlans) = (&self.name, self.force, &self.driver, Vec::new());
        OpenRequest { dev, name, addresses, force, driver, vlans }
    }

    /// Whether its addresses are the kernel's, too.
    fn is_shared(&self) -> bool {
        self.driver.get::<Xdp>().is_some_and(|xdp| xdp.shared)
    }

    /// Whether duplicates of its addresses are looked for.
    pub(crate) fn detects_duplicates(&self) -> bool {
        self.dad && !self.is_shared()
    }

    /// Whether it has the addresses of its interface, too. One that does not share them would take
    /// them away from the kernel.
    pub(crate) fn follows_addresses(&self, follow: Option<&FollowConfig>) -> bool {
        self.is_shared() && follow.is_some_and(|follow| follow.addresses)
    }

    /// Whether it has an IPv6 address. One that has none has no link-local one either.
    pub(crate) fn speaks_ipv6(&self) -> bool {
        self.addresses.iter().any(|own| own.addr().is_ipv6())
    }

    /// Its IPv4 addresses with their networks.
    pub(crate) fn addresses4(&self) -> Vec<(Ipv4Addr, Prefix)> {
        let of = |own: &InterfaceAddr| Some((Ipv4Addr::of(own.addr())?, own.network().of()?));
        self.addresses.iter().filter_map(of).collect()
    }

    /// Its IPv6 addresses with their networks, when it has this MAC address: if any is configured, also the link-local one
    /// that follows from that.
    pub(crate) fn addresses6(&self, mac: [u8; 6]) -> Vec<(Ipv6Addr, Prefix6)> {
        let of = |own: &InterfaceAddr| Some((Ipv6Addr::of(own.addr())?, own.network().of()?));
        let mut all: Vec<_> = self.addresses.iter().filter_map(of).collect();
        let derived = link_local(mac);
        if !all.is_empty()
            && let Ok(network) = Prefix::containing(derived, 64)
        {
            all.push((derived, network));
        }
        all
    }

    /// Whether `own` is the link-local address that follows from its MAC address, and not configured.
    pub(crate) fn derives(&self, own: &InterfaceAddr, mac: [u8; 6]) -> bool {
        own.addr() == IpAddr::V6(link_local(mac)) && !self.addresses.contains(own)
    }

    /// The subnet-router anycast addresses of its IPv6 networks, which are every router's there (RFC 4291 section 2.6.1).
    pub(crate) fn anycast6(&self) -> impl Iterator<Item = Ipv6Addr> {
        let networks = self.addresses.iter().filter(|own| !is_link_local(own.addr()));
        networks.filter_map(|own| subnet_router_anycast(own.network().of::<Ipv6Addr>()?))
    }

    /// Its knobs of interrupt mitigation and GRO.
    pub(crate) fn knobs(&self) -> Knobs {
        Knobs {
            napi_defer_hard_irqs: Some(self.napi_defer_hard_irqs.into()),
            gro_flush_timeout: Some(self.gro_flush_timeout),
            irq_suspend_timeout: Some(self.irq_suspend_timeout),
            gro: Some(self.gro),
        }
    }

    /// Its XPS maps, for so many TX queues.
    pub(crate) fn xps(&self, tx_queues: u16) -> Result<XpsMaps, XpsError> {
        let cpus: Vec<&[u32]> = self.xps_cpus.iter().map(|list| &list.0[..]).collect();
        // Of a configuration that was checked, all of them can be told.
        let number = |queue: &u32| u16::try_from(*queue).unwrap_or(u16::MAX);
        let queues = |list: &CpuList| list.0.iter().map(number).collect::<Vec<_>>();
        XpsMaps::new(tx_queues, &cpus, &self.xps_rxqs.iter().map(queues).collect::<Vec<_>>())
    }

    /// The worker that polls RX queue `queue` of a stack with `workers` workers.
    pub(crate) fn worker_of(&self, queue: usize, workers: usize) -> usize {
        match self.workers.len() {
            0 => queue % workers.max(1),
            n => self.workers[queue % n],
        }
    }
}

/// Whether a device's frames may carry only the pseudo-header sum in the L4 checksum field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PartialCsum {
    /// If the device says so (veth).
    Auto,
    /// Yes.
    On,
    /// No.
    Off,
}

/// `[[neighbour]]`: a MAC address that is never asked for.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct NeighbourConfig {
    /// The device it is behind.
    pub dev: String,
    /// Its address, on a connected network of the device.
    pub address: IpAddr,
    /// Its MAC address.
    pub mac: [u8; 6],
}

impl NeighbourConfig {
    /// The neighbour `address` behind device `dev`.
    pub fn new(dev: impl Into<String>, address: impl Into<IpAddr>, mac: [u8; 6]) -> Self {
        NeighbourConfig { dev: dev.into(), address: address.into(), mac }
    }
}

/// CPUs, or queues, as the kernel lists them: `0-3,8`. Each is below 8192, which the check of a
/// [`Config`] sees to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuList(pub Vec<u32>);

impl FromStr for CpuList {
    type Err = ParseError;

    /// Reads numbers below 8192 and ranges of them; nothing for none.
    fn from_str(s: &str) -> Result<Self, ParseError> {
        let number = |text: &str| text.trim().parse().ok().filter(|n| *n < MAX_CPUS);
        let range = |text: &str| {
            let (first, last) = text.split_once('-').unwrap_or((text, text));
            let (first, last) = (number(first)?, number(last)?);
            (first <= last).then_some(first..=last)
        };
        let parts: Option<Vec<_>> = s.split(',').filter(|part| !part.trim().is_empty()).map(range).collect();
        const _: () = assert!(MAX_CPUS == 8192);
        let expected = "numbers below 8192 and ranges of them, such as \"0-3,8\"";
        let parts = parts.ok_or_else(|| ParseError::new(expected, s))?;
        Ok(CpuList(parts.into_iter().flatten().collect()))
    }
}

/// Writes a MAC address the usual way: `02:00:00:00:00:01`.
pub(crate) fn format_mac(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

impl Config {
    /// The same, changed by `change`: as a struct expression, which other crates can't write, for fields are added now and then.
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    /// Reads and checks a file. Errors name file, line, column, key and what was expected, all of them at once (the first
    /// thousand). Touches nothing but the file, which is read in pieces and never held as a whole.
    pub fn load(path: &Path) -> Result<Config, ConfigErrors> {
        let file = path.display().to_string();
        match Source::open(path) {
            Ok(source) => load::config(source, &file, &available_cpus()),
            Err(error) => Err(ConfigErrors::unreadable(&file, error)),
        }
    }

    /// Reads and checks TOML. `file` is what errors call it; `cpus` are those that workers may run on.
    pub fn parse(text: &str, file: &str, cpus: &[u32]) -> Result<Config, ConfigErrors> {
        load::config(Source::Text(text), file, cpus)
    }

    /// What the driver of the device with index `dev` is asked for.
    pub(crate) fn request(&self, dev: u16) -> OpenRequest<'_> {
        let device = &self.devices[usize::from(dev)];
        OpenRequest { vlans: self.vlans(&device.name), ..device.request(dev) }
    }

    /// The VLANs over device `link`.
    fn vlans(&self, link: &str) -> Vec<VlanRequest> {
        let of = |(dev, device): (usize, &DeviceConfig)| {
            let vlan = device.driver.get::<Vlan>().filter(|vlan| vlan.link == link)?;
            let mut addresses = device.request(dev as u16).addresses;
            self.vlans(&device.name).into_iter().for_each(|over| addresses.extend(over.addresses));
            Some(VlanRequest { protocol: vlan.protocol, id: vlan.id, addresses })
        };
        self.devices.iter().enumerate().filter_map(of).collect()
    }

    /// What it has that is hardly meant, though it is allowed. `mtu` says that of a device, if it is known; else that of
    /// Ethernet is taken.
    pub fn warnings(&self, mtu: impl Fn(&str) -> Option<u32>) -> Vec<String> {
        let of = |device: &DeviceConfig| {
            let mtu = mtu(&device.name).unwrap_or(1500);
            let dev = DevParams { mtu, tx_queue_len: device.tx_queue_len };
            let warning = device.qdisc.as_ref().unwrap_or(&self.stack.default_qdisc).warning(&dev)?;
            Some(format!("{}: {warning}", device.name))
        };
        self.devices.iter().filter_map(of).collect()
    }

    /// Looks at the interfaces that it names, in the calling thread's network namespace, and touches
    /// none. Returns why devices can't be taken as they are now.
    pub fn look(&self) -> Vec<DeviceError> {
        let all = 0..self.devices.len() as u16;
        all.filter_map(|dev| self.devices[usize::from(dev)].driver.look(&self.request(dev)).err()).collect()
    }

    /// Checks a configuration built in code. `cpus` are those that workers may run on, usually
    /// [`available_cpus`].
    pub fn check(&self, cpus: &[u32]) -> Result<(), ConfigErrors> {
        let mut found = Vec::new();
        check::check(self, cpus, true, &mut found);
        ConfigErrors::in_code(found)
    }

    /// The same of one that runs: its devices may have lost their last addresses.
    pub(crate) fn check_running(&self, cpus: &[u32]) -> Result<(), ConfigErrors> {
        let mut found = Vec::new();
        check::check(self, cpus, true, &mut found);
        found.retain(|problem| !check::is_without_addresses(problem));
        ConfigErrors::in_code(found)
    }
}

/// CPUs that this process may run on (its affinity).
pub fn available_cpus() -> Vec<u32> {
    // A process can always ask for its own affinity; where it is refused all the same, CPU 0 exists.
    let Ok(set) = rustix::thread::sched_getaffinity(None) else { return vec![0] };
    (0..rustix::thread::CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).map(|cpu| cpu as u32).collect()
}
