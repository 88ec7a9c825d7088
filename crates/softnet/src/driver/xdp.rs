//! `driver = "xdp"`: AF_XDP on an interface of the kernel. All devices of a stack are on one registered region.

use std::any::Any;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use softnet_core::SoftnetData;
use softnet_core::skb::Region;
use softnet_dev::OpenDevice;
use softnet_dev::xdp::{self, Claim, ClaimedVlan, Claims, Conflict, Mode, OpenPorts, Ports, Umem, XdpConfig};

use super::link::set_interface;
use super::{
    DeviceDriver, DeviceError, DeviceHandOver, Driver, Keys, Kind, LinkChange, OpenRequest, Opener,
    VlanRequest,
};
use crate::util::{Limit, fail, note, power, warn};

pub(super) const KIND: Kind = Kind { name: NAME, keys: &["mode", "shared", "ring", "tso"], read };

const NAME: &str = "xdp";
const RING: Limit = power(128, 32768);
const MODES: [(&str, XdpMode); 3] =
    [("auto", XdpMode::Auto), ("native", XdpMode::Native), ("skb", XdpMode::Skb)];

/// What the driver is told of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Xdp {
    /// How it is attached.
    pub mode: XdpMode,
    /// Share addresses that the kernel has, too, on whatever interface: of these only the UDP ports
    /// that sockets have open are softnet's.
    pub shared: bool,
    /// Descriptors of each ring, a power of two.
    pub ring: u32,
    /// Leave it to the kernel to cut runs of TCP segments, where it copies what is sent: they go to it
    /// whole, by a packet socket. Without effect in zero-copy mode.
    pub tso: bool,
}

impl Default for Xdp {
    fn default() -> Self {
        Xdp { mode: XdpMode::Auto, shared: false, ring: 2048, tso: false }
    }
}

impl Xdp {
    /// The same, changed by `change`.
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }
}

/// How a device attaches to its interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum XdpMode {
    /// In the driver if it can, else generic.
    Auto,
    /// In the driver or not at all.
    Native,
    /// Generic: any interface, but slower.
    Skb,
}

fn read(keys: &mut dyn Keys) -> DeviceDriver {
    let default = Xdp::default();
    let mode = keys.choice("mode", &MODES.map(|(name, _)| name)).map(|at| MODES[at].1);
    let shared = keys.boolean("shared");
    let ring = keys.integer("ring", &RING);
    let tso = keys.boolean("tso").unwrap_or(default.tso);
    let (mode, shared) = (mode.unwrap_or(default.mode), shared.unwrap_or(default.shared));
    Xdp { mode, shared, ring: ring.unwrap_or(default.ring), tso }.into()
}

impl Driver for Xdp {
    fn name(&self) -> &'static str {
        NAME
    }

    fn frames(&self) -> u64 {
        2 * u64::from(self.ring)
    }

    fn check(&self, wrong: &mut dyn FnMut(&'static str, String)) {
        if let Some(why) = RING.wrong(self.ring.into()) {
            wrong("ring", why);
        }
    }

    fn look(&self, device: &OpenRequest<'_>) -> Result<(), DeviceError> {
        Ok(xdp::look(&config(device, self))?)
    }

    fn opener(&self, region: &Arc<Region>, devices: usize) -> Result<Box<dyn Opener>, DeviceError> {
        Ok(Box::new(XdpOpener::new(region, devices)?))
    }

    fn is_equal(&self, other: &dyn Any) -> bool {
        other.downcast_ref() == Some(self)
    }
}

/// Opens AF_XDP devices, all on one registered region, in the network namespace of the thread it is used on.
pub struct XdpOpener {
    umem: Arc<Umem>,
    /// Frames that each device may keep posted, and that all may.
    max_posted: usize,
    max_all: usize,
    /// Those that each one may have posted, by index.
    posted: BTreeMap<u16, usize>,
    ports: Arc<OpenPorts>,
    claims: Vec<Option<Claims>>,
}

impl XdpOpener {
    /// For `devices` devices on `region`. Together they may keep half of its frames posted: the rest is for what is sent,
    /// what waits for neighbours, and what softnet has to say itself. More devices share what these leave of it.
    pub fn new(region: &Arc<Region>, devices: usize) -> std::io::Result<Self> {
        let ports = Arc::new(OpenPorts::new()?);
        let max_all = region.frame_count() as usize / 2;
        let max_posted = max_all / devices.max(1);
        let (posted, claims) = Default::default();
        Ok(XdpOpener { umem: Umem::new(region.clone())?, max_posted, max_all, posted, ports, claims })
    }

    fn config(&self, device: &OpenRequest<'_>) -> XdpConfig {
        let told = device.driver.get::<Xdp>().cloned().unwrap_or_default();
        let others = self.posted.iter().filter(|(dev, _)| **dev != device.dev).map(|(_, posted)| posted);
        let rest = self.max_posted.min(self.max_all.saturating_sub(others.sum()));
        // One that is opened again has what it had, though others came meanwhile.
        let max_posted = self.posted.get(&device.dev).map_or(rest, |had| rest.max(*had));
        XdpConfig { max_posted, ports: Some(self.ports.clone()), ..config(device, &told) }
    }

    fn keep(&mut self, dev: u16, (queues, ring): (usize, u32), claims: Claims) {
        self.posted.insert(dev, queues * ring as usize);
        let slot = usize::from(dev);
        if self.claims.len() <= slot {
            self.claims.resize_with(slot + 1, || None);
        }
        self.claims[slot] = Some(claims);
    }
}

fn claim(device: &OpenRequest<'_>, xdp: &Xdp) -> Claim {
    let vlan = |vlan: &VlanRequest| {
        let VlanRequest { protocol, id, addresses } = vlan.clone();
        ClaimedVlan { proto: protocol.into(), id, addresses }
    };
    let vlans = device.vlans.iter().map(vlan).collect();
    Claim { addresses: device.addresses.clone(), shared: xdp.shared, vlans }
}

fn config(device: &OpenRequest<'_>, told: &Xdp) -> XdpConfig {
    XdpConfig {
        mode: match told.mode {
            XdpMode::Auto => Mode::Auto,
            XdpMode::Native => Mode::Native,
            XdpMode::Skb => Mode::Skb,
        },
        ring: told.ring,
        tso: told.tso,
        force: device.force,
        claim: claim(device, told),
        ..XdpConfig::new(device.name)
    }
}

impl Opener for XdpOpener {
    fn open(&mut self, device: &OpenRequest<'_>, ctx: &mut SoftnetData) -> Result<OpenDevice, DeviceError> {
        let config = self.config(device);
        let (open, claims) = xdp::open_with_claims(&config, &self.umem, device.dev, ctx)?;
        let mode = &open.device.info().mode;
        // What another mode does not do has to be known, also where it was asked for.
        if !mode.starts_with("native") {
            note(format_args!("{}: {mode}", device.name));
        }
        let queues = open.rx.len();
        self.keep(device.dev, (queues, config.fitting_ring(queues)), claims);
        Ok(open)
    }

    fn take(
        &mut self,
        device: &OpenRequest<'_>,
        ctx: &mut SoftnetData,
        handed: DeviceHandOver,
    ) -> Result<OpenDevice, DeviceError> {
        let config = self.config(device);
        let ring = handed.facts.ring;
        let (open, claims) = xdp::take_with_claims(&config, &self.umem, device.dev, ctx, handed)?;
        self.keep(device.dev, (open.rx.len(), ring), claims);
        Ok(open)
    }

    fn forget(&mut self, dev: u16) {
        self.posted.remove(&dev);
        if let Some(claims) = self.claims.get_mut(usize::from(dev)) {
            *claims = None;
        }
    }

    fn addresses_changed(&mut self, device: &OpenRequest<'_>) {
        let Some(Some(claims)) = self.claims.get(usize::from(device.dev)) else { return };
        let told = device.driver.get::<Xdp>().cloned().unwrap_or_default();
        let name = device.name;
        match claims.replace(&claim(device, &told)) {
            Ok(Some(Conflict { address, holder })) if !device.force => warn(format_args!(
                "{name}: the kernel has {address} now, too, on {holder}: what is sent there by {name} reaches softnet alone (`shared = true` in its [[device]] would share it)"
            )),
            Ok(_) => {}
            Err(error) => fail(format_args!("{name}: what it claims could not be updated: {error}")),
        }
    }

    fn conflict(&mut self, device: &OpenRequest<'_>) -> Option<(IpAddr, String)> {
        let shared = device.driver.get::<Xdp>().is_some_and(|xdp| xdp.shared);
        let claims = self.claims.get(usize::from(device.dev))?.as_ref()?;
        let addresses = if shared || device.force { &[][..] } else { &device.addresses };
        claims.conflict(addresses).map(|Conflict { address, holder }| (address, holder))
    }

    fn ports(&self) -> Option<Arc<dyn Ports>> {
        Some(self.ports.clone())
    }

    fn set_link(&mut self, device: &OpenRequest<'_>, change: LinkChange) -> Result<(), DeviceError> {
        set_interface(device.name, change)
    }

    fn on_interface(&self, _: u16) -> bool {
        true
    }
}
