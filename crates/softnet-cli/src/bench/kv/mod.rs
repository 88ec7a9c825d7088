//! `udp-kv` as the application, on softnet's sockets or on the kernel's, and a client that measures it: what `bench
//! irq-suspend --app kv` is made of.
//!
//! ```text
//!   client (spins on a CPU of its own)          server
//!   `get`s  ──► wire ──► RX queue ─► NAPI instance ─► sockets ─► epoll ─► udp-kv, and a second application
//!   latency ◄── wire ◄── TX queue ◄────────────────────────────────────────┘
//! ```
//!
//! A [`Bed`] is a running stack, or a namespace of the kernel's, and the client at the other end of its wire: that of
//! [`echo`](super::echo), which asks the same of both. The server has 512 sockets in one set, so that `maxevents` is
//! what it serves between two waits. The second application has a thread and a socket of its own, is woken, and is asked
//! lightly: it shows what an application pays that shares the queue with a server.
//!
//! Verified: every response is that of its request, byte for byte, and in the order of its socket; requests are answered or
//! counted as lost; and the server answered all that it received.

mod app;
mod light;
mod mem;
mod packet;
#[cfg(test)]
mod tests;
mod xdp;

use std::sync::{Arc, Mutex};

use softnet::Stack;
use softnet::config::{Config, DeviceConfig, NeighbourConfig};
use softnet_dev::netlink::NapiKnobs;
use softnet_dev::sched::{Policy, policy};

use super::echo::Client;
use super::echo::xdp::Veth;
use super::text;
pub(super) use app::App;
pub(super) use light::Second;

/// The stack of the server's sockets.
enum Host {
    /// A stack, and its NAPI instance.
    Softnet(Box<Stack>, u32),
    /// The kernel.
    Kernel,
}

/// Where the receiving work of the driver at the server's end of a veth pair is done. A NIC's is on the CPU of the queue's
/// interrupt, so on the server's; a veth's is on the sender's, if nothing else is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Receive {
    /// On the server's CPU, by a thread of the kernel's that preempts what runs there; counted as the server's.
    Server {
        /// That CPU.
        cpu: usize,
    },
    /// On the client's CPU, within its sends; not counted for either.
    Client,
}

/// See the [module](self).
pub(super) struct Bed {
    /// First, so that its end of the wire is closed first.
    pub(super) client: Client,
    pub(super) side: Side,
}

/// The server's side of a bed.
pub(super) struct Side {
    /// What the second application's client found.
    pub(super) second: Arc<Mutex<Second>>,
    host: Host,
    veth: Option<Veth>,
    /// The kernel's NAPI threads at the server's end.
    threads: Vec<u32>,
}

impl Bed {
    /// softnet, with an emulated NIC.
    pub(super) fn mem(cpu: usize, policy: Option<Policy>) -> Result<Self, String> {
        mem::bed(cpu, policy)
    }

    /// softnet, with a veth pair. Needs root.
    pub(super) fn xdp(cpu: usize, policy: Option<Policy>, receive: Receive) -> Result<Self, String> {
        xdp::softnet(cpu, policy, receive)
    }

    /// The kernel, with a veth pair. Needs root.
    pub(super) fn kernel(receive: Receive) -> Result<Self, String> {
        xdp::kernel(receive)
    }
}

impl Side {
    /// The stack and its NAPI instance, if it is softnet's.
    pub(super) fn stack(&self) -> Option<(&Stack, u32)> {
        match &self.host {
            Host::Softnet(stack, napi) => Some((stack, *napi)),
            Host::Kernel => None,
        }
    }

    /// The kernel's NAPI threads at its end of the wire.
    pub(super) fn kernel_threads(&self) -> &[u32] {
        &self.threads
    }

    /// Sets the knobs of the kernel's NAPI instance at its end of the wire, if it has one of its own.
    pub(super) fn set_kernel_knobs(&self, knobs: NapiKnobs) -> Result<(), String> {
        match &self.veth {
            Some(veth) if !self.threads.is_empty() => xdp::set_knobs(veth, knobs),
            _ => Ok(()),
        }
    }

    /// Scheduling policy of the thread that polls, if one does.
    pub(super) fn policy(&self) -> String {
        match &self.host {
            Host::Softnet(stack, _) => stack.view().workers().first().map(|worker| worker.policy.clone()),
            Host::Kernel => {
                self.threads.first().and_then(|tid| policy(*tid).ok()).map(|policy| policy.to_string())
            }
        }
        .unwrap_or_else(|| "-".into())
    }

    /// Requests and responses that were lost on the wire so far, as the device or the kernel counts them.
    pub(super) fn lost_on_the_wire(&self) -> Result<u64, String> {
        let rows = self.stack().map(|(stack, _)| stack.view().devs()).unwrap_or_default();
        let device: u64 = rows.iter().map(|dev| dev.rx_ring_drops).sum();
        Ok(device + self.veth.as_ref().map_or(Ok(0), Veth::drops)?)
    }
}

/// A stack of one worker on `cpu` with this device, to whose peer it knows the way.
fn config(
    cpu: usize,
    policy: Option<Policy>,
    mut device: DeviceConfig,
    ends: &packet::Ends,
) -> Result<Config, String> {
    let mut config = Config::default();
    config.stack.workers = vec![cpu as u32];
    config.stack.worker_policy = policy;
    device.addresses = vec![format!("{}/24", ends.server.1).parse().map_err(text)?];
    let dev = device.name.clone();
    config.neighbours = vec![NeighbourConfig::new(dev, ends.client.1, ends.client.0)];
    config.devices = vec![device];
    Ok(config)
}

/// The host that is `stack`.
fn host(stack: Stack) -> Result<Host, String> {
    let napi = stack.view().napis().first().ok_or("the device has no NAPI instance")?.id;
    // Ids of threads are known when they run.
    let patience = std::time::Instant::now() + std::time::Duration::from_secs(10);
    while stack.view().workers().iter().any(|worker| worker.tid == 0) {
        if std::time::Instant::now() > patience {
            return Err("the worker does not start".into());
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    Ok(Host::Softnet(stack.into(), napi))
}
