//! How a configured device becomes an open one.

use std::net::IpAddr;
use std::sync::Arc;

use softnet_core::SoftnetData;
use softnet_core::skb::Region;
use softnet_dev::OpenDevice;
use softnet_dev::xdp::{self, Claim, Claims, Conflict, Mode, Ports, UdpPorts, Umem, XdpConfig};

use super::DeviceError;
use crate::config::{DeviceConfig, XdpMode};
use crate::util::note;

/// Opens devices. Called by one thread at a time: at start, and whenever an interface comes back.
pub trait Opener: Send {
    /// Opens the device with index `dev` on the region of `ctx`.
    fn open(
        &mut self,
        dev: u16,
        config: &DeviceConfig,
        ctx: &mut SoftnetData,
    ) -> Result<OpenDevice, DeviceError>;

    /// The addresses that the kernel has changed, or what a device's interface is a port of; or may
    /// have.
    fn addresses_changed(&mut self, _dev: u16, _config: &DeviceConfig) {}

    /// Where its devices look up the ports that sockets have open, if they do.
    fn ports(&self) -> Option<Arc<dyn Ports>> {
        None
    }

    /// Whether the device with index `dev` is an interface of the kernel, which comes and goes.
    fn on_interface(&self, _dev: u16) -> bool {
        false
    }
}

impl<F, E> Opener for F
where
    F: FnMut(u16, &DeviceConfig, &mut SoftnetData) -> Result<OpenDevice, E> + Send,
    E: Into<DeviceError>,
{
    fn open(
        &mut self,
        dev: u16,
        config: &DeviceConfig,
        ctx: &mut SoftnetData,
    ) -> Result<OpenDevice, DeviceError> {
        self(dev, config, ctx).map_err(Into::into)
    }
}

/// Opens AF_XDP devices, all on one registered region, in the network namespace of the thread it is used on.
pub struct XdpOpener {
    umem: Arc<Umem>,
    /// Frames that each device may keep posted.
    max_posted: usize,
    ports: Arc<UdpPorts>,
    claims: Vec<Option<Claims>>,
}

impl XdpOpener {
    /// For `devices` devices on `region`. Together they may keep half of its frames posted: the rest is for what is sent,
    /// what waits for neighbours, and what softnet has to say itself.
    pub fn new(region: &Arc<Region>, devices: usize) -> std::io::Result<Self> {
        let ports = Arc::new(UdpPorts::new()?);
        let max_posted = region.frame_count() as usize / 2 / devices.max(1);
        Ok(XdpOpener { umem: Umem::new(region.clone())?, max_posted, ports, claims: Vec::new() })
    }
}

fn claim(config: &DeviceConfig) -> Claim {
    let anycast = config.anycast6().map(IpAddr::V6);
    let addresses = config.addresses.iter().map(|a| a.addr()).chain(anycast).collect();
    Claim { addresses, shared: config.shared }
}

impl Opener for XdpOpener {
    fn open(
        &mut self,
        dev: u16,
        config: &DeviceConfig,
        ctx: &mut SoftnetData,
    ) -> Result<OpenDevice, DeviceError> {
        let xdp = XdpConfig {
            interface: config.name.clone(),
            mode: match config.mode {
                XdpMode::Auto => Mode::Auto,
                XdpMode::Native => Mode::Native,
                XdpMode::Skb => Mode::Skb,
            },
            ring: config.ring,
            max_posted: self.max_posted,
            force: config.force,
            claim: claim(config),
            ports: Some(self.ports.clone()),
        };
        let (open, claims) = xdp::open_with_claims(&xdp, &self.umem, dev, ctx)?;
        let mode = &open.device.info().mode;
        // What another mode does not do has to be known, also where it was asked for.
        if !mode.starts_with("native") {
            note(format_args!("{}: {mode}", config.name));
        }
        let slot = usize::from(dev);
        if self.claims.len() <= slot {
            self.claims.resize_with(slot + 1, || None);
        }
        self.claims[slot] = Some(claims);
        Ok(open)
    }

    fn addresses_changed(&mut self, dev: u16, config: &DeviceConfig) {
        let Some(Some(claims)) = self.claims.get(usize::from(dev)) else { return };
        let name = &config.name;
        match claims.replace(&claim(config)) {
            Ok(Some(Conflict { address, holder })) if !config.force => note(format_args!(
                "{name}: the kernel has {address} now, too, on {holder}: what is sent there by {name} reaches softnet alone (`shared = true` in its [[device]] would share it)"
            )),
            Ok(_) => {}
            Err(error) => note(format_args!("{name}: what it claims could not be updated: {error}")),
        }
    }

    fn ports(&self) -> Option<Arc<dyn Ports>> {
        Some(self.ports.clone())
    }

    fn on_interface(&self, _dev: u16) -> bool {
        true
    }
}
