//! The stack takes another process's place: its devices are open in both until then, and stand
//! still here; then the other stops, and they go on here.
//!
//! Invariant: before the other has said that all is this process's, no ring and no frame is
//! touched: no instance is enabled, and no frame is free.

use std::collections::BTreeMap;
use std::sync::Arc;

use softnet_core::napi::Disabled;
use softnet_core::nat::seconds;
use softnet_core::skb::{Frame, HandedFrames};
use softnet_dev::hand_over::{DeviceHandOver, HeldFrames};

use super::Housekeeper;
use crate::control::hand_over::message::{OfferedNeighbour, connections};
use crate::control::hand_over::{Predecessor, Stopped, StoppedDevice, TakeOverError};
use crate::device::OpenParts;
use crate::napi::{Home, Input, NapiInstance};
use crate::util::warn;

/// Frames that are made free before packets flow again; the others are while they do.
const FIRST: usize = 4096;

/// What is taken over, until it is this process's.
pub(in crate::assembly) struct Taking {
    frames: HandedFrames,
    devices: BTreeMap<String, DeviceHandOver>,
    neighbours: Vec<OfferedNeighbour>,
    /// Instances that are to be enabled then.
    waiting: Vec<(Arc<NapiInstance>, Disabled<Option<Input>>, Home)>,
}

impl Taking {
    /// The devices and neighbours of `predecessor`, and the frames of its memory.
    pub(in crate::assembly) fn new(predecessor: &mut Predecessor, frames: HandedFrames) -> Self {
        let devices = std::mem::take(&mut predecessor.devices);
        let neighbours = std::mem::take(&mut predecessor.neighbours);
        Taking { frames, devices, neighbours, waiting: Vec::new() }
    }
}

impl Housekeeper {
    /// From now on devices are opened as those of another process.
    pub(in crate::assembly) fn prepare_take_over(&mut self, taking: Taking) {
        self.taking = Some(taking);
    }

    /// What another process tells of the device called `name`.
    pub(super) fn handed(&mut self, name: &str) -> Option<DeviceHandOver> {
        self.taking.as_mut()?.devices.remove(name)
    }

    /// Takes an instance home, or keeps it until it is this process's.
    pub(super) fn attach(
        &mut self,
        instance: Arc<NapiInstance>,
        disabled: Disabled<Option<Input>>,
        home: Home,
    ) {
        match &mut self.taking {
            Some(taking) => taking.waiting.push((instance, disabled, home)),
            None => instance.attach(&home, disabled),
        }
    }

    /// Has `predecessor` stop, and goes on in its place. On an error nothing was touched, and that
    /// goes on.
    pub(in crate::assembly) fn take_over(
        &mut self,
        predecessor: &mut Predecessor,
    ) -> Result<(), TakeOverError> {
        let done = self.stop_and_go_on(predecessor);
        if done.is_err() {
            // Before anything is closed, which takes its time.
            predecessor.give_up();
        }
        done
    }

    fn stop_and_go_on(&mut self, predecessor: &mut Predecessor) -> Result<(), TakeOverError> {
        self.learn_neighbours();
        self.make_connections(predecessor);
        let open: Vec<(u16, Arc<OpenParts>)> = predecessor
            .names
            .iter()
            .filter_map(|name| {
                let device = self.shared.devices.iter().find(|device| device.name == *name)?;
                Some((device.index, device.live.load_full()?))
            })
            .collect();
        let began = self.shared.clock.now();
        let stopped = predecessor.stop()?;
        let fits = |((_, live), stopped): (&(u16, Arc<OpenParts>), &StoppedDevice)| {
            (live.napis.len(), live.tx.queues.len()) == (stopped.rx.len(), stopped.tx.len())
        };
        let whole = open.len() == predecessor.names.len() && open.len() == stopped.devices.len();
        if !whole || !open.iter().zip(&stopped.devices).all(fits) {
            return Err(TakeOverError::Nonsense("frames of other queues than it has"));
        }
        // Those that changed meanwhile.
        self.make_connections(predecessor);
        predecessor.take()?;
        let rest = self.go_on(&open, stopped);
        predecessor.paused = self.shared.clock.now() - began;
        self.settle_down(&open, rest);
        Ok(())
    }

    /// Has all queues go on where they stopped. Returns frames that are to become free.
    fn go_on(
        &mut self,
        open: &[(u16, Arc<OpenParts>)],
        stopped: Stopped,
    ) -> impl Iterator<Item = Frame> + use<> {
        let (mut frames, mut waiting) = match self.taking.take() {
            Some(Taking { frames, waiting, .. }) => (Some(frames), waiting),
            None => (None, Vec::new()),
        };
        let mut unused: Vec<Frame> = Vec::new();
        for ((_, live), StoppedDevice { rx, tx }) in open.iter().zip(stopped.devices) {
            for (queue, held) in live.tx.queues.iter().zip(tx) {
                let held = held.into_iter().filter_map(|index| frames.as_mut()?.take(index)).collect();
                unused.extend(queue.take_over(&mut self.ctx, self.shared.clock.now(), held));
            }
            for (instance, HeldFrames { frames: held, is_amid }) in live.napis.iter().zip(rx) {
                let held = held.into_iter().filter_map(|index| frames.as_mut()?.take(index)).collect();
                let own = waiting.iter_mut().find(|(other, ..)| Arc::ptr_eq(other, instance));
                let queue = own.and_then(|(_, disabled, _)| disabled.body().rx.as_mut()?.queue());
                match queue {
                    Some(queue) => unused.extend(queue.take_over(held, is_amid)),
                    None => unused.extend(held),
                }
            }
        }
        let mut rest = unused.into_iter().chain(frames.into_iter().flat_map(HandedFrames::rest));
        self.ctx.free_frames(rest.by_ref().take(FIRST));
        self.ctx.drain();
        for (instance, disabled, home) in waiting {
            instance.attach(&home, disabled);
        }
        rest
    }

    /// Does what may take its time, while packets flow.
    fn settle_down(&mut self, open: &[(u16, Arc<OpenParts>)], rest: impl Iterator<Item = Frame>) {
        self.ctx.free_frames(rest);
        self.ctx.drain();
        for (dev, live) in open {
            if let Err(error) = live.device.taken_over() {
                let name = &self.shared.devices[usize::from(*dev)].name;
                warn(format_args!("{name}: what it claims is what the instance before had: {error}"));
            }
            self.apply_settings(*dev, live);
        }
        let open_now = (0..self.shared.devices.len() as u16).filter(|dev| self.is_open(*dev));
        for dev in open_now.collect::<Vec<_>>() {
            let addresses = self.config.devices[usize::from(dev)].addresses.clone();
            self.announce(dev, &addresses);
        }
    }

    /// Packets of its connections are of such here, and are translated as they were.
    fn make_connections(&mut self, predecessor: &mut Predecessor) {
        let now = seconds(self.shared.clock.now());
        let all = std::mem::take(&mut predecessor.connections);
        for carried in all.iter().flat_map(|some| connections(some)) {
            // Where there is no room for one, or no address of its any more, it ends.
            let _made = match (&self.shared.nat, &self.shared.conntrack) {
                (Some(nat), _) => nat.take_over(now, &carried),
                (None, Some(table)) => table.take_over(now, &carried),
                (None, None) => false,
            };
        }
    }

    /// Packets go at once where the other process's went.
    fn learn_neighbours(&mut self) {
        let neighbours =
            self.taking.as_mut().map_or_else(Vec::new, |taking| std::mem::take(&mut taking.neighbours));
        for OfferedNeighbour { dev, ip, mac } in neighbours {
            let Some(device) = self.shared.devices.iter().find(|device| device.name == dev) else { continue };
            let known = (device.index, ip, mac);
            if device.live.load().is_some() {
                self.shared.slow_path(&mut self.ctx, |slow, ctx, view, out| {
                    slow.take_over_neighbour(ctx, view, known, out);
                });
            }
        }
    }

    /// The take-over failed: its instances can be closed like others, without their queues, which
    /// are the other process's still.
    pub(super) fn give_up_taking(&mut self) {
        let Some(taking) = self.taking.take() else { return };
        for (instance, mut disabled, home) in taking.waiting {
            if let Some(rx) = disabled.body().rx.take() {
                rx.close(&mut self.ctx);
            }
            instance.attach(&home, disabled);
        }
    }
}
