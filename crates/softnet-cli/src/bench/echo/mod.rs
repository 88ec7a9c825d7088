//! An application that answers requests, and a client that measures it: what the benches of polling contexts and of
//! interrupt suspension share.
//!
//! ```text
//!   client (spins on a CPU of its own)          server
//!   requests ──► wire ──► RX queue ─► NAPI instance ─► application: Responder
//!   latency  ◄── wire ◄── TX queue ◄──────────────────────┘
//! ```
//!
//! A [`Bed`] is a running stack of one worker and one queue, and the client at the other end of its wire. Applications
//! come and go on it, as do knobs and contexts; while none is there, nothing may be sent.
//!
//! The client plays the other machines, so what it costs does not count: [`Usage`] is taken of the threads of the server
//! alone. Verified by each run: that every response is its request with the ends exchanged, byte for byte, and in order;
//! and that requests are answered or counted as lost ([`Client::run`]).

mod answers;
mod client;
mod mem;
mod packet;
mod responder;
#[cfg(test)]
mod tests;
mod usage;
pub(super) mod xdp;

use std::time::{Duration, Instant};

use softnet::Stack;
use softnet::config::{Config, Context};
use softnet_dev::mem::Coalesce;
use softnet_dev::sched::Policy;

pub(super) use answers::{Answers, Responses};
pub(crate) use client::{Client, Load};
pub(super) use client::{Outcome, Sent, Wire};
pub(crate) use packet::PORT;
pub(crate) use responder::Responder;
pub(crate) use usage::Usage;
use xdp::Veth;

/// What a [`Bed`] is to be like.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    /// CPU of the worker.
    pub(crate) cpu: usize,
    /// Its scheduling policy; `None`: that of the calling thread. Without the privilege it has that as well.
    pub(crate) policy: Option<Policy>,
    /// Bytes of a request's UDP payload, 8 to 1472; otherwise the nearest of these.
    pub(crate) payload: usize,
    /// In which context the instance is polled at first.
    pub(crate) context: Context,
    /// How the emulated NIC coalesces interrupts.
    pub(crate) coalesce: Coalesce,
}

/// See the [module](self). Threads that the stack makes later (those of contexts but `softirq`) may run where the thread
/// that made it might then: pin that to the client's CPU afterwards.
pub(crate) struct Bed {
    /// The client. First, so that its end of the wire is closed first.
    pub(crate) client: Client,
    /// The server's stack, its only device `nic0` or a veth.
    pub(crate) stack: Stack,
    /// Id of its NAPI instance.
    pub(crate) napi: u32,
    veth: Option<Veth>,
}

impl Setup {
    fn config(&self) -> Config {
        let mut config = Config::default();
        config.stack.workers = vec![self.cpu as u32];
        config.stack.worker_policy = self.policy;
        config
    }
}

impl Bed {
    /// With an emulated NIC.
    pub(crate) fn mem(setup: &Setup) -> Result<Self, String> {
        mem::bed(setup)
    }

    /// With a veth pair. Needs root.
    pub(crate) fn xdp(setup: &Setup) -> Result<Self, String> {
        xdp::bed(setup)
    }

    fn new(stack: Stack, client: Client, veth: Option<Veth>) -> Result<Self, String> {
        let napi = stack.view().napis().first().ok_or("the device has no NAPI instance")?.id;
        let bed = Bed { client, stack, napi, veth };
        // Ids of threads are known when they run.
        let patience = Instant::now() + Duration::from_secs(10);
        while bed.threads().contains(&0) {
            if Instant::now() > patience {
                return Err("the worker does not start".into());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(bed)
    }

    /// Requests and responses that were lost on the wire so far, as the device or the kernel counts them.
    pub(crate) fn lost_on_the_wire(&self) -> Result<u64, String> {
        let device: u64 = self.stack.view().devs().iter().map(|dev| dev.rx_ring_drops).sum();
        Ok(device + self.veth.as_ref().map_or(Ok(0), Veth::drops)?)
    }

    /// Ids of the threads that poll.
    pub(crate) fn threads(&self) -> Vec<i32> {
        self.stack.view().workers().iter().map(|worker| worker.tid).collect()
    }
}
