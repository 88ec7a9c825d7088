//! [`StackBuilder`]: which devices a stack has and how they are opened, before it starts.

use std::fmt;
use std::sync::Arc;

use softnet_core::SoftnetData;
use softnet_core::skb::Region;
use softnet_dev::OpenDevice;

use super::stack::bind_metrics;
use super::{Assembly, Stack, StartError};
use crate::config::{Config, DeviceConfig, NeighbourConfig, RouteConfig, available_cpus};
use crate::control::Listener;
use crate::control::hand_over::{Predecessor, TakeOverError};
use crate::driver::{DeviceDriver, DeviceError, OpenRequest, Opener, Openers, Own};
use crate::util::warn;

/// How a program opens a device of its own.
type Factory = Box<dyn Opener>;

/// Starts a [`Stack`]: from a configuration, from devices that the program opens itself, or both.
///
/// ```no_run
/// use softnet::config::DeviceConfig;
/// use softnet::mem::{PairConfig, pair};
/// use softnet::{Stack, net::UdpSocket};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let wire = DeviceConfig::new("wire0").address("10.0.0.1/24".parse()?);
/// let stack = Stack::builder()
///     .device_with(wire, |device, ctx| {
///         // The other end is dropped here: nothing answers on this wire, but the stack has an address.
///         let ends = pair(ctx.region(), [device.dev, device.dev + 1], &PairConfig::default());
///         ends.map(|[near, _far]| near)
///     })
///     .start()?;
/// let socket = UdpSocket::bind(&stack.handle(), "10.0.0.1:7")?;
/// socket.send_to(b"to itself", "10.0.0.1:7")?;
/// let mut buffer = [0; 64];
/// assert_eq!(socket.recv(&mut buffer)?, 9);
/// # Ok(())
/// # }
/// ```
#[must_use = "it starts by `start`"]
#[derive(Default)]
pub struct StackBuilder {
    config: Config,
    own: Vec<(DeviceConfig, Factory)>,
    control: bool,
    take_over: bool,
}

impl fmt::Debug for StackBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let own: Vec<_> = self.own.iter().map(|(device, _)| device).collect();
        let StackBuilder { config, control, take_over, .. } = self;
        f.debug_struct("StackBuilder")
            .field("config", config)
            .field("own", &own)
            .field("control", control)
            .field("take_over", take_over)
            .finish()
    }
}

impl StackBuilder {
    /// From `config`, in place of what was configured so far; devices that the program opens itself stay.
    pub fn config(mut self, config: Config) -> Self {
        self.config = config;
        self
    }

    /// With a device, opened by its driver.
    pub fn device(mut self, device: DeviceConfig) -> Self {
        self.config.devices.push(device);
        self
    }

    /// With a device that `open` opens, whatever driver `device` has: on the region of the context,
    /// with the index that it is given. It is called when the stack starts; and, if what it opens
    /// is on an interface of the kernel (it has an
    /// [`ifindex`](crate::driver::DeviceInfo::ifindex)), again each time that an interface called
    /// as `device` is back, or has changed.
    pub fn device_with<E>(
        mut self,
        device: DeviceConfig,
        open: impl FnMut(&OpenRequest<'_>, &mut SoftnetData) -> Result<OpenDevice, E> + Send + 'static,
    ) -> Self
    where
        E: Into<DeviceError> + 'static,
    {
        self.own.push((device.with(|device| device.driver = Own.into()), Box::new(open)));
        self
    }

    /// With a static route.
    pub fn route(mut self, route: RouteConfig) -> Self {
        self.config.routes.push(route);
        self
    }

    /// With a permanent neighbour.
    pub fn neighbour(mut self, neighbour: NeighbourConfig) -> Self {
        self.config.neighbours.push(neighbour);
        self
    }

    /// With a control socket, by which `softnet show` and `softnet set` find the stack under its name. It comes first, so that
    /// a second instance of the same name is refused before it touches an interface.
    pub fn control_socket(mut self) -> Self {
        self.control = true;
        self
    }

    /// With a control socket, in the place of another process that has it, and allows that
    /// ([`Introspect::on_hand_over`](crate::Introspect::on_hand_over)): that one's devices go on
    /// here, where they stopped there, and its neighbours are known. When the stack has started,
    /// [`Stack::end_predecessor`] has the other end.
    pub fn take_over(mut self) -> Self {
        (self.control, self.take_over) = (true, true);
        self
    }

    /// Checks everything, takes the interfaces in the calling thread's network namespace, and runs.
    pub fn start(self) -> Result<Stack, StartError> {
        let StackBuilder { mut config, own, control, take_over } = self;
        let configured = config.devices.len();
        let (devices, factories): (Vec<_>, Vec<_>) = own.into_iter().unzip();
        config.devices.extend(devices);
        config.check(&available_cpus())?;
        if take_over && config.stack.follow.as_ref().is_some_and(|follow| follow.fpm.is_some()) {
            return Err(TakeOverError::Fpm.into());
        }
        let (path, group) = (config.stack.socket_path(), config.control.group.clone());
        let mut predecessor = take_over.then(|| Predecessor::connect(&path)).transpose()?;
        if let Some(predecessor) = &predecessor {
            predecessor.check(&config)?;
        }
        let mut control = match &mut predecessor {
            Some(predecessor) => {
                let socket = predecessor.listener.take();
                let socket = socket.ok_or(TakeOverError::Nonsense("no control socket"))?;
                Some(Listener::handed_over(socket, &path, group.as_deref())?)
            }
            None => control.then(|| Listener::bind_for(&path, group.as_deref())).transpose()?,
        };
        // The one that is taken over tells them until it ends.
        let (later, now) = match take_over {
            true => (config.metrics.clone(), None),
            false => (None, config.metrics.as_ref()),
        };
        let metrics = now.map(bind_metrics).transpose()?;
        let drivers: Vec<DeviceDriver> = config.devices.iter().map(|device| device.driver.clone()).collect();
        let opener = |region: &Arc<Region>| {
            let openers = Openers::new(region, &drivers.iter().collect::<Vec<_>>())?;
            let own = (configured as u16..).zip(factories);
            Ok(own.fold(openers, |openers, (dev, own)| openers.with(dev, own)))
        };
        let assembly = Assembly::make(config, Vec::new(), opener, predecessor.as_mut())?;
        let mut stack = match predecessor {
            Some(mut predecessor) => {
                let mut stack = Stack::run_instead(assembly, &mut predecessor)?;
                stack.after = Some(Box::new((predecessor, later)));
                if let Some(Err(error)) = control.as_mut().map(|control| control.taken_over(&path)) {
                    // The other was asked to stop in this moment, and has removed it. Else it
                    // serves all the same.
                    match Listener::bind_for(&path, group.as_deref()) {
                        Ok(anew) => control = Some(anew),
                        Err(_) => warn(format_args!("{error}")),
                    }
                }
                stack
            }
            None => Stack::run(assembly)?,
        };
        if let Some(control) = control {
            stack.serve(control)?;
        }
        if let Some(metrics) = metrics {
            stack.tell_metrics(metrics)?;
        }
        Ok(stack)
    }
}
