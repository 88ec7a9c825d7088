//! The stack is handed over to another process: what it has is told, its queues are stopped, and
//! either the process ends, or all goes on.
//!
//! Invariant: from the moment at which the frames of rings are told until the end, no thread of
//! this process touches a ring; if it goes on, it does so with rings that no other process has
//! touched.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use softnet_core::napi::Disabled;
use softnet_core::nat::seconds;
use softnet_core::skb::Batch;
use softnet_core::stack::tx_queue::FrozenQueue;
use softnet_dev::hand_over::HeldFrames;

use super::Housekeeper;
use crate::control::ControlError;
use crate::control::hand_over::message::{Connections, Offer, OfferedDevice, OfferedNeighbour, push};
use crate::control::hand_over::{Channel, Offered, Stopped, StoppedDevice, giver};
use crate::device::OpenParts;
use crate::napi::{Input, NapiInstance};
use crate::tx::{NetdevQueue, QueueWake};
use crate::util::lock;

/// How long packets that were received may take to leave, before queues stand still.
const DRAIN: Duration = Duration::from_micros(1500);
const LOOK: Duration = Duration::from_micros(50);

const SOCKETS: &str = "it has sockets open, which can't be handed over";

/// The devices that were offered, as they were open then.
#[derive(Default)]
pub(super) struct Offering {
    /// The connections that were told then.
    known: Vec<u32>,
    /// The other process may never come back to it: one that is closed meanwhile goes at once.
    devices: Vec<(u16, Weak<OpenParts>)>,
}

type Paused = (Arc<NapiInstance>, Disabled<Option<Input>>);

impl Housekeeper {
    /// What another process needs to take over. Nothing changes by that.
    pub(super) fn offer(&mut self) -> Result<Offered, ControlError> {
        let refuse = |why: String| Err(ControlError::HandOver(why));
        if !self.shared.sockets.is_empty() {
            return refuse(SOCKETS.into());
        }
        let mut fds: Vec<OwnedFd> = Vec::new();
        let (mut devices, mut offering) = (Vec::new(), Offering::default());
        for device in self.shared.devices.iter() {
            let Some(live) = device.live.load_full() else { continue };
            if device.vlan.is_some() {
                continue;
            }
            let name = device.name.clone();
            let told = match live.device.hand_over() {
                Some(Ok(told)) => told,
                Some(Err(error)) => return refuse(format!("{name}: {error}")),
                None => {
                    let driver = live.device.info().driver;
                    return refuse(format!("{name}: a device of driver {driver:?} can't be handed over"));
                }
            };
            devices.push(OfferedDevice { name, facts: told.facts, descriptors: told.fds.len() });
            fds.extend(told.fds);
            offering.devices.push((device.index, Arc::downgrade(&live)));
        }
        let control = self.shared.control();
        let known = control.slow.neighbours().entries().filter_map(|neighbour| {
            let device = self.shared.devices.get(usize::from(neighbour.dev))?;
            let dev = device.name.clone();
            Some(OfferedNeighbour { dev, ip: neighbour.ip, mac: neighbour.mac? })
        });
        let neighbours = known.collect();
        drop(control);
        let connections = self.connections(&mut offering.known);
        self.offering = offering;
        let (pid, frames) = (std::process::id(), self.shared.region.frame_count());
        Ok(Offered { offer: Offer { pid, frames, devices, neighbours }, fds, connections })
    }

    /// Those that are not as they are `known`.
    fn connections(&self, known: &mut Vec<u32>) -> Connections {
        let (mut all, now) = (Connections::new(), seconds(self.shared.clock.now()));
        match (&self.shared.nat, &self.shared.conntrack) {
            (Some(nat), _) => nat.carry(now, known, |carried| push(&mut all, carried)),
            (None, Some(table)) => table.carry(now, known, |carried| push(&mut all, carried)),
            (None, None) => {}
        }
        all
    }

    /// Stops the queues, and hands all over by `channel`. Comes back only if that failed, with the
    /// queues going on.
    pub(super) fn hand_over(&mut self, channel: &mut Channel) -> ControlError {
        let Offering { devices: offered, mut known } = std::mem::take(&mut self.offering);
        let count = offered.len();
        let there = |(dev, live): (u16, Weak<OpenParts>)| Some((dev, live.upgrade()?));
        let devices: Vec<(u16, Arc<OpenParts>)> = offered.into_iter().filter_map(there).collect();
        let is_open = |(dev, live): &(u16, Arc<OpenParts>)| {
            let now = self.shared.devices[usize::from(*dev)].live.load_full();
            now.is_some_and(|now| Arc::ptr_eq(&now, live))
        };
        let open = self.shared.devices.iter().filter(|dev| dev.vlan.is_none() && dev.live.load().is_some());
        if devices.len() != count || open.count() != count || !devices.iter().all(is_open) {
            return ControlError::HandOver("a device was opened or closed meanwhile: try again".into());
        }
        let since = Instant::now();
        let mut paused = self.pause(&devices);
        let queues: Vec<Vec<Arc<NetdevQueue>>> =
            devices.iter().map(|(_, live)| live.tx.queues.clone()).collect();
        let mut frozen: Vec<Vec<FrozenQueue<'_, QueueWake>>> = Vec::new();
        for queues in &queues {
            let now = self.shared.clock.now();
            frozen.push(queues.iter().map(|queue| queue.freeze(&mut self.ctx, now)).collect());
        }
        let why = match stopped(&devices, &mut paused, &mut frozen) {
            // One may have been opened since the offer.
            Some(_) if !self.shared.sockets.is_empty() => SOCKETS.into(),
            Some(stopped) => {
                let changed = self.connections(&mut known);
                giver::hand_over(&self.shared.giving, (channel, since), (&changed, &stopped), &self.totals())
            }
            None => "a queue can't be handed over".into(),
        };
        let now = self.shared.clock.now();
        frozen.into_iter().flatten().for_each(|queue| queue.thaw(&mut self.ctx, now));
        paused.into_iter().for_each(|(instance, disabled)| instance.resume(disabled));
        ControlError::HandOver(why)
    }

    /// Stops reception, and waits a while until what was received has left. Disciplines that hold
    /// packets back on purpose are not waited for.
    fn pause(&mut self, devices: &[(u16, Arc<OpenParts>)]) -> Vec<Paused> {
        let pause = |instance: &Arc<NapiInstance>| (instance.clone(), instance.pause());
        let napis = devices.iter().flat_map(|(_, live)| &live.napis);
        let mut paused: Vec<Paused> = napis.map(pause).collect();
        let until = Instant::now() + DRAIN;
        let wait = |is_done: &dyn Fn() -> bool| {
            while !is_done() && Instant::now() < until {
                std::thread::sleep(LOOK);
            }
        };
        paused.iter_mut().for_each(|paused| self.flush_gro(paused));
        wait(&|| self.shared.backlogs.len() == 0);
        paused.extend(self.shared.backlogs.instances().iter().map(pause));
        self.shared.handle_left(&mut self.ctx);
        wait(&|| {
            devices.iter().all(|(_, live)| {
                let layout = lock(&live.layout);
                layout.is_shaped() || layout.totals().qlen == 0
            })
        });
        paused
    }

    /// Has what GRO holds of a paused instance received by its worker, as if it were steered there.
    /// A filter at ingress would not see it: then it stays.
    fn flush_gro(&mut self, (instance, disabled): &mut Paused) {
        let filtered =
            self.shared.netdevs.get(usize::from(instance.napi.dev)).is_some_and(|dev| dev.ingress.is_set());
        let Some(backlog) = self.shared.backlogs.instances().get(instance.worker).filter(|_| !filtered)
        else {
            return;
        };
        let mut batch = Batch::new();
        loop {
            disabled.take_gro(&mut batch);
            if batch.is_empty() {
                return;
            }
            backlog.netif_rx(&mut self.ctx, &mut batch);
        }
    }

    /// What it has done, in words: its counters end with it.
    fn totals(&self) -> String {
        let (mut rx, mut tx, mut held) = (0, 0, 0);
        for device in self.shared.devices.iter() {
            let totals = device.totals();
            (rx, tx) = (rx + totals.rx.packets, tx + totals.tx.packets);
            if let Some(live) = device.live.load_full() {
                held += lock(&live.layout).totals().qlen;
                held += live.napis.iter().map(|instance| instance.napi.stats.gro.held() as u64).sum::<u64>();
            }
        }
        held += self.shared.control().slow.held() as u64 + self.shared.backlogs.len() as u64;
        let dropped: u64 = self.shared.contexts().iter().map(|context| context.dropped()).sum();
        format!("{rx} packets received, {tx} transmitted, {dropped} dropped; {held} were held, and end here")
    }
}

/// The frames that rings hold, by device; `None` if a queue does not tell.
fn stopped(
    devices: &[(u16, Arc<OpenParts>)],
    paused: &mut [Paused],
    frozen: &mut [Vec<FrozenQueue<'_, QueueWake>>],
) -> Option<Stopped> {
    let mut paused = paused.iter_mut();
    let mut all = Vec::with_capacity(devices.len());
    for ((_, live), queues) in devices.iter().zip(frozen) {
        let held = |(_, disabled): &mut Paused| -> Option<HeldFrames> {
            disabled.body().rx.as_mut()?.queue()?.held_frames()
        };
        let rx = paused.by_ref().take(live.napis.len()).map(held).collect::<Option<Vec<_>>>()?;
        let tx = queues.iter_mut().map(|queue| queue.queue()?.held_frames()).collect::<Option<Vec<_>>>()?;
        all.push(StoppedDevice { rx, tx });
    }
    Some(Stopped { devices: all })
}
