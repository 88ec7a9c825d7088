//! How a server waits for its requests.

use std::time::Duration;

use softnet::config::{Context, Knobs};
use softnet::net::EpollParams;

/// What serves.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::bench) enum Side {
    Softnet,
    Kernel,
    /// Behind a program that lets all pass, so that veth does what it does for AF_XDP.
    KernelXdp,
    /// The same, and what veth receives is handled by a thread of the kernel's on the server's CPU.
    KernelXdpThreaded,
}

/// One way to wait; the first three are softnet's, by the names that `bench irq-suspend` has for them.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::bench) struct Way {
    pub(in crate::bench) name: &'static str,
    pub(in crate::bench) server: Side,
    /// In which context softnet polls.
    pub(in crate::bench) context: Context,
    pub(in crate::bench) busy_poll_usecs: Option<u32>,
    pub(in crate::bench) napi_defer_hard_irqs: u64,
    /// In µs.
    pub(in crate::bench) gro_flush_timeout: u64,
    /// In ms.
    pub(in crate::bench) irq_suspend_timeout: u64,
}

/// The worker polls, the application is woken.
pub(in crate::bench) const BASE: Way = Way {
    name: "base",
    server: Side::Softnet,
    context: Context::Softirq,
    busy_poll_usecs: None,
    napi_defer_hard_irqs: 0,
    gro_flush_timeout: 0,
    irq_suspend_timeout: 0,
};

/// The application polls while it has work, and else is woken.
pub(in crate::bench) const SUSPEND20: Way = Way {
    name: "suspend20",
    busy_poll_usecs: Some(0),
    napi_defer_hard_irqs: 100,
    gro_flush_timeout: 20,
    irq_suspend_timeout: 20,
    ..BASE
};

/// The application polls.
pub(in crate::bench) const FULLBUSY: Way = Way {
    name: "fullbusy",
    busy_poll_usecs: Some(1000),
    napi_defer_hard_irqs: 100,
    gro_flush_timeout: 5000,
    ..BASE
};

/// A call that blocks polls first, and the doorbell stays masked between two calls.
pub(super) const BUSY: Way = Way {
    name: "busy",
    busy_poll_usecs: Some(200),
    napi_defer_hard_irqs: 100,
    gro_flush_timeout: 200,
    ..BASE
};

/// A thread of the ordinary policy polls.
pub(in crate::bench) const THREADED: Way = Way { name: "threaded", context: Context::Threaded, ..BASE };

/// A pool of such threads does.
pub(in crate::bench) const WORKQUEUE: Way = Way { name: "workqueue", context: Context::Workqueue, ..BASE };

/// The kernel's server sleeps in `epoll_wait`.
pub(in crate::bench) const KERNEL: Way = Way { name: "kernel", server: Side::Kernel, ..BASE };

/// The same, and its packets come the way that softnet's come.
pub(super) const KERNEL_XDP: Way = Way { name: "kernel-xdp", server: Side::KernelXdp, ..BASE };

/// The same, and the server's CPU does the receiving, as softnet's does.
pub(in crate::bench) const KERNEL_XDP_THREADED: Way =
    Way { name: "kernel-xdp-threaded", server: Side::KernelXdpThreaded, ..BASE };

/// The kernel's server asks `epoll_wait` again and again.
pub(in crate::bench) const KERNEL_SPIN: Way =
    Way { name: "kernel-spin", busy_poll_usecs: Some(1000), ..KERNEL };

impl Way {
    pub(in crate::bench) fn kernel(&self) -> bool {
        self.server != Side::Softnet
    }

    pub(super) fn spins(&self) -> bool {
        self.busy_poll_usecs.is_some_and(|usecs| usecs > 0)
    }

    pub(in crate::bench) fn params(&self) -> EpollParams {
        EpollParams {
            busy_poll_usecs: self.busy_poll_usecs.unwrap_or(0),
            busy_poll_budget: 64,
            prefer_busy_poll: self.busy_poll_usecs.is_some(),
        }
    }

    /// How long a wait lasts that finds nothing.
    pub(in crate::bench) fn wait(&self) -> Duration {
        if self.spins() { Duration::from_millis(1) } else { Duration::from_millis(50) }
    }

    pub(in crate::bench) fn knobs(&self) -> Knobs {
        Knobs::default().with(|knobs| {
            knobs.napi_defer_hard_irqs = Some(self.napi_defer_hard_irqs);
            knobs.gro_flush_timeout = Some(self.gro_flush_timeout * 1000);
            knobs.irq_suspend_timeout = Some(self.irq_suspend_timeout * 1_000_000);
        })
    }
}
