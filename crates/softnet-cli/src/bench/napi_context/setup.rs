//! Set-ups of `bench napi-context`: where the threads are, and how many compete with them.

use clap::ValueEnum;

use super::rig::Pin;
use crate::bench::cpus;

/// Hungry threads of `hog`. Beside a single one the worker has half of its CPU left over, and mostly gets it as it wakes.
const HOGS: usize = 2;

/// See the [module](self).
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Setup {
    /// Two RX queues whose interrupts go to one CPU, two responders, hungry threads; nothing but the worker is pinned
    Contended,
    /// As contended, with one RX queue and one responder
    OneQueue,
    /// As contended, with the worker of the second queue on the second CPU
    Spread,
    /// One RX queue and one responder; the hungry threads are bound to the worker's CPU
    Hog,
    /// One RX queue, its poller on one CPU and the responder on another; no thread competes
    Pinned,
}

impl Setup {
    /// As on the command line.
    pub(super) fn name(self) -> &'static str {
        match self {
            Setup::Contended => "contended",
            Setup::OneQueue => "one-queue",
            Setup::Spread => "spread",
            Setup::Hog => "hog",
            Setup::Pinned => "pinned",
        }
    }

    /// CPU of the worker of each queue; the first is `cpu`.
    pub(super) fn workers(self, cpu: usize) -> Vec<u32> {
        let cpu = cpu as u32;
        match self {
            Setup::Contended => vec![cpu, cpu],
            Setup::OneQueue | Setup::Hog | Setup::Pinned => vec![cpu],
            Setup::Spread => vec![cpu, other(cpu as usize) as u32],
        }
    }

    /// Where pollers and responders run, if that is not the scheduler's choice.
    pub(super) fn pins(self, cpu: usize) -> Option<Vec<Pin>> {
        (self == Setup::Pinned).then(|| vec![Pin { poller: cpu, responder: other(cpu) }])
    }

    /// How many threads compete where the user does not say.
    pub(super) fn hungry(self) -> usize {
        match self {
            Setup::Contended | Setup::OneQueue | Setup::Spread => cpus().len(),
            Setup::Hog => HOGS,
            Setup::Pinned => 0,
        }
    }

    /// Where these run, if that is not the scheduler's choice; `cpu` is the first worker's.
    pub(super) fn hungry_cpu(self, cpu: usize) -> Option<usize> {
        (self == Setup::Hog).then_some(cpu)
    }
}

/// Another CPU, if there is one.
fn other(cpu: usize) -> usize {
    cpus().into_iter().find(|other| *other != cpu).unwrap_or(cpu)
}
