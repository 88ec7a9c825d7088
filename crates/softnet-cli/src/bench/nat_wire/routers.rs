//! What stands between the hosts of a [`Rig`](super::rig::Rig): softnet, its driver alone, or the kernel.

use std::process::Command;
use std::sync::Arc;

use softnet::config::{Config, DeviceConfig, GroMode, InterfaceAddr, NatConfig, NatSourceConfig};
use softnet::driver::{DeviceDriver, DropReason, OpenRequest, Opener, Own, Xdp};
use softnet::internals::{Assembly, XdpOpener};
use softnet::{DeviceError, SoftnetData, Stack};
use softnet_dev::OpenDevice;
use softnet_dev::device::{Device, DeviceInfo, LinkState};
use softnet_dev::netlink::{self, Netlink, Offload};
use softnet_dev::netns::NetNs;
use softnet_dev::tap::{self, TapConfig, TapQueues};
use softnet_testkit::sysctl;

use super::rig::{INSIDE, OUTSIDE};
use crate::bench::text;

/// Frames of packet memory.
const FRAMES: u32 = 1 << 15;

/// Makes the kernel route between the interfaces in the middle, and hide what leaves by the second.
pub(super) fn kernel_router(
    middle: &NetNs,
    names: &[String; 2],
    napi: Option<[usize; 2]>,
    nat: bool,
) -> Result<(), String> {
    let set = || -> Result<(), String> {
        sysctl("ipv4/ip_forward", "1").map_err(text)?;
        let mut netlink = Netlink::new().map_err(text)?;
        for (at, (name, own)) in names.iter().zip([INSIDE, OUTSIDE]).enumerate() {
            netlink.add_address(name, own, 24).map_err(text)?;
            if let Some(cpus) = napi {
                receive_on(name, cpus[at])?;
            }
        }
        if !nat {
            return Ok(());
        }
        let rules = [
            "add table ip nat".into(),
            "add chain ip nat post { type nat hook postrouting priority 100 ; }".into(),
            format!("add rule ip nat post oifname {} masquerade", names[1]),
        ];
        for rule in rules {
            let output = Command::new("nft").arg(&rule).output();
            let output =
                output.map_err(|error| format!("nft (Debian: apt-get install nftables): {error}"))?;
            if !output.status.success() {
                return Err(format!("nft {rule}: {}", String::from_utf8_lossy(&output.stderr)));
            }
        }
        Ok(())
    };
    middle.run(set).map_err(text)?
}

/// Opens TAPs with offloads, one for each device, in namespaces of their own.
pub(super) struct Taps(Vec<(NetNs, String, Option<Arc<TapQueues>>)>);

impl Taps {
    pub(super) fn new(interfaces: &[(&NetNs, &str)]) -> Result<Self, String> {
        let each = interfaces.iter().map(|(ns, name)| Ok((ns.try_clone()?, (*name).to_string(), None)));
        Ok(Taps(each.collect::<std::io::Result<_>>().map_err(text)?))
    }
}

impl Opener for Taps {
    fn open(&mut self, device: &OpenRequest<'_>, ctx: &mut SoftnetData) -> Result<OpenDevice, DeviceError> {
        let (ns, name, kept) = &mut self.0[usize::from(device.dev)];
        let mut config = TapConfig::new(&*name);
        config.offloads = true;
        let mut opened = ns.run(|| tap::open(&config, kept, device.dev, ctx)).map_err(text)??;
        opened.device = Arc::new(Elsewhere::new(opened.device));
        Ok(opened)
    }
}

/// A device on an interface of another namespace than the stack's, which cannot watch it.
struct Elsewhere {
    device: Arc<dyn Device>,
    info: DeviceInfo,
}

impl Elsewhere {
    fn new(device: Arc<dyn Device>) -> Self {
        let mut info = device.info().clone();
        info.ifindex = 0;
        Elsewhere { device, info }
    }
}

impl Device for Elsewhere {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn link(&self) -> LinkState {
        self.device.link()
    }

    fn losses(&self) -> Vec<(DropReason, u64)> {
        self.device.losses()
    }
}

/// What softnet's devices in the middle are.
pub(super) enum Driver {
    Taps(Taps),
    /// AF_XDP on the veth pairs' ends; `tso`: runs of segments leave uncut.
    Xdp {
        tso: bool,
    },
}

/// Has a thread of the kernel's on `cpu` receive for a veth.
pub(super) fn receive_on(name: &str, cpu: usize) -> Result<(), String> {
    // With it a veth has a NAPI instance.
    netlink::set_offload(name, Offload::Gro, true).map_err(text)?;
    netlink::set_threaded(name, true).map_err(text)?;
    netlink::pin_napi_threads(name, cpu).map_err(text).map(drop)
}

/// Starts softnet as the router.
pub(super) fn softnet(
    nat: bool,
    cpus: [usize; 2],
    names: &[String; 2],
    middle: &NetNs,
    driver: Driver,
) -> Result<Stack, String> {
    let mut config = Config::default();
    if nat {
        let mut hide = NatConfig::default();
        hide.source = vec![NatSourceConfig::new(names[1].clone())];
        config.nat = Some(hide);
    }
    // What a TAP brings is merged already.
    let gro = if matches!(driver, Driver::Taps(_)) { GroMode::Off } else { GroMode::Frags };
    let workers = if cpus[0] == cpus[1] { &cpus[..1] } else { &cpus[..] };
    for (at, (name, own)) in names.iter().zip([INSIDE, OUTSIDE]).enumerate() {
        let addresses = vec![InterfaceAddr::new(own, 24).map_err(text)?];
        config.devices.push(DeviceConfig::new(name).with(|device| {
            device.addresses = addresses;
            device.gro = gro;
            device.workers = vec![at % workers.len()];
        }));
    }
    start(config, workers, Vec::new(), middle, driver)
}

/// Starts softnet's driver alone: of each two devices what one receives leaves by the other.
pub(super) fn patch(cpu: usize, names: &[String], middle: &NetNs, driver: Driver) -> Result<Stack, String> {
    let mut config = Config::default();
    for (at, name) in (0..).zip(names) {
        // A device has to have one; nothing asks for it.
        let unused = InterfaceAddr::new(std::net::Ipv4Addr::new(10, 73, at, 1), 24).map_err(text)?;
        config.devices.push(DeviceConfig::new(name).with(|device| device.addresses = vec![unused]));
    }
    let patches = (0..names.len() as u16).map(|dev| (dev, dev ^ 1)).collect();
    start(config, &[cpu], patches, middle, driver)
}

fn start(
    mut config: Config,
    cpus: &[usize],
    patches: Vec<(u16, u16)>,
    middle: &NetNs,
    driver: Driver,
) -> Result<Stack, String> {
    config.stack.workers = cpus.iter().map(|cpu| *cpu as u32).collect();
    config.stack.frames = FRAMES;
    let devices = config.devices.len();
    let opened_by: DeviceDriver = match driver {
        Driver::Taps(_) => Own.into(),
        Driver::Xdp { tso } => Xdp::default().with(|xdp| xdp.tso = tso).into(),
    };
    config.devices.iter_mut().for_each(|device| device.driver = opened_by.clone());
    let assembly = || match driver {
        Driver::Taps(taps) => Assembly::new(config, patches, |_: &_| Ok(taps)),
        Driver::Xdp { .. } => {
            Assembly::new(config, patches, |region: &_| Ok(XdpOpener::new(region, devices)?))
        }
    };
    middle.run(|| Stack::run(assembly().map_err(text)?).map_err(text)).map_err(text)?
}
