//! Sends raw frames at a set rate, or as fast as it can, from a thread of its own on a CPU of its own.
//!
//! Frames leave by AF_PACKET without a qdisc, many per `sendmmsg`. A mapped transmit ring was no faster on veth, and a
//! quarter slower where the receiver polls on another CPU: its slots stay taken until the receiver is done with them.
//! At a set rate the load is open: a frame that the interface refuses is counted and not sent again, and the
//! generator does not slow down for the receiver. Between bursts it sleeps whenever there is time to, so that the
//! share of time it slept says how far it is from its own limit.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, gettid, sched_setaffinity};
use softnet_core::softnet_data::Counter;

use super::packet;
use super::sender::Sender;
use softnet_dev::netlink::Netlink;
use softnet_dev::netns::NetNs;
use softnet_dev::sys_error::SysError;

/// What to send, and how.
#[derive(Clone, Debug)]
pub struct GeneratorConfig {
    /// Name of the interface to send by.
    pub interface: String,
    /// Frames, from the Ethernet header on, sent in turn, over and over.
    pub frames: Vec<Vec<u8>>,
    /// Frames per second; `None`: as many as possible.
    pub rate: Option<u64>,
    /// CPU to run on.
    pub cpu: Option<usize>,
}

/// What a generator did up to some moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Frames that the interface took.
    pub sent: u64,
    /// Frames that the interface refused.
    pub refused: u64,
    /// Frames that were due and not tried, because the generator was late by more than 10 ms.
    pub skipped: u64,
    /// Time since it started.
    pub elapsed: Duration,
    /// Of this, time it slept because nothing was due.
    pub slept: Duration,
    /// CPU time of its thread; it includes softirqs that ran inside its sends only where the kernel accounts them so.
    pub cpu: Duration,
}

impl Report {
    /// What happened between `earlier` and this one.
    #[must_use]
    pub fn since(&self, earlier: &Report) -> Report {
        Report {
            sent: self.sent.saturating_sub(earlier.sent),
            refused: self.refused.saturating_sub(earlier.refused),
            skipped: self.skipped.saturating_sub(earlier.skipped),
            elapsed: self.elapsed.saturating_sub(earlier.elapsed),
            slept: self.slept.saturating_sub(earlier.slept),
            cpu: self.cpu.saturating_sub(earlier.cpu),
        }
    }

    /// The share of time, 0 to 1, in which the generator had nothing to do. Zero when sending flat out.
    pub fn idle_share(&self) -> f64 {
        if self.elapsed.is_zero() { 0.0 } else { self.slept.as_secs_f64() / self.elapsed.as_secs_f64() }
    }

    /// Frames that left, per second.
    pub fn rate(&self) -> f64 {
        if self.elapsed.is_zero() { 0.0 } else { self.sent as f64 / self.elapsed.as_secs_f64() }
    }
}

/// Written by the generator's thread only.
#[derive(Default)]
pub(super) struct Progress {
    /// The one field that others write.
    pub(super) stop: AtomicBool,
    thread: AtomicI32,
    pub(super) sent: Counter,
    pub(super) refused: Counter,
    pub(super) skipped: Counter,
    pub(super) slept_ns: Counter,
}

/// A running generator. Dropping it stops it.
pub struct Generator {
    thread: Option<JoinHandle<io::Result<Duration>>>,
    progress: Arc<Progress>,
    started: Instant,
}

impl Generator {
    /// Starts to send, inside `ns`.
    ///
    /// # Errors
    /// An empty list of frames or a rate of zero (`InvalidInput`); no such interface; no such CPU. Needs CAP_NET_RAW.
    pub fn start(ns: &NetNs, config: GeneratorConfig) -> io::Result<Self> {
        if config.frames.is_empty() || config.frames.iter().any(Vec::is_empty) || config.rate == Some(0) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "generator: no frames, or no rate, to send at",
            ));
        }
        let socket = ns.run(|| packet_socket(Netlink::new()?.existing_link(&config.interface)?.index))??;
        let progress = Arc::new(Progress::default());
        let (ready, is_ready) = std::sync::mpsc::channel();
        let started = Instant::now();
        let thread = std::thread::Builder::new().name("generator".into()).spawn({
            let progress = progress.clone();
            move || {
                let prepared = prepare_thread(config.cpu);
                progress.thread.store(gettid().as_raw_nonzero().get(), Ordering::Release);
                let failed = prepared.is_err();
                let _ = ready.send(prepared);
                if failed {
                    return Ok(Duration::ZERO);
                }
                let sent = Sender::new(socket, config.frames).run(&progress, config.rate);
                sent.map(|()| thread_cpu_time(libc::CLOCK_THREAD_CPUTIME_ID))
            }
        })?;
        let generator = Generator { thread: Some(thread), progress, started };
        is_ready.recv().unwrap_or_else(|_| Err(io::Error::other("generator: its thread ended")))?;
        Ok(generator)
    }

    /// What it did so far.
    pub fn report(&self) -> Report {
        // The kernel's number for the CPU clock of a thread: its inverted id, and `CPUCLOCK_PERTHREAD | CPUCLOCK_SCHED`.
        let clock = (!self.progress.thread.load(Ordering::Acquire) << 3) | 6;
        self.snapshot(thread_cpu_time(clock))
    }

    /// Id of its thread, for `/proc`.
    pub fn thread(&self) -> u32 {
        self.progress.thread.load(Ordering::Acquire) as u32
    }

    /// Whether it gave up by itself; [`stop`](Self::stop) says why.
    pub fn ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    fn snapshot(&self, cpu: Duration) -> Report {
        Report {
            sent: self.progress.sent.get(),
            refused: self.progress.refused.get(),
            skipped: self.progress.skipped.get(),
            elapsed: self.started.elapsed(),
            slept: Duration::from_nanos(self.progress.slept_ns.get()),
            cpu,
        }
    }

    /// Stops sending; what it did in all.
    ///
    /// # Errors
    /// What ended it before its time (ENETDOWN, ENXIO: the interface went away).
    pub fn stop(mut self) -> io::Result<Report> {
        self.progress.stop.store(true, Ordering::Relaxed);
        let cpu = match self.thread.take().map(JoinHandle::join) {
            Some(Ok(result)) => result?,
            Some(Err(panic)) => std::panic::resume_unwind(panic),
            None => Duration::ZERO,
        };
        Ok(self.snapshot(cpu))
    }
}

impl Drop for Generator {
    fn drop(&mut self) {
        self.progress.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // `stop` is the call that returns how it ended.
            let _ = thread.join();
        }
    }
}

fn prepare_thread(cpu: Option<usize>) -> io::Result<()> {
    if let Some(cpu) = cpu {
        if cpu >= CpuSet::MAX_CPU {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("generator: no CPU {cpu}")));
        }
        let mut set = CpuSet::new();
        set.set(cpu);
        sched_setaffinity(None, &set)
            .map_err(|errno| SysError::new(format!("run the generator on CPU {cpu}"), errno.into()))?;
    }
    // Without this the kernel may add 50 µs to every sleep.
    // SAFETY: takes plain numbers, and affects only this thread's timers.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) };
    Ok(())
}

fn thread_cpu_time(clock: libc::clockid_t) -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is live; a clock of a thread that has ended is refused and leaves it zero.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// A packet socket that sends by interface `index`, receives nothing, and bypasses the qdisc.
pub(super) fn packet_socket(index: u32) -> io::Result<OwnedFd> {
    let socket = packet::socket(0)?;
    packet::set_option(socket.as_fd(), libc::SOL_PACKET, libc::PACKET_QDISC_BYPASS, 1)
        .map_err(|error| SysError::new("bypass the qdisc of a packet socket", error))?;
    // Frames in flight are bounded by the receiver's ring, not by this.
    packet::force_buffer(&socket, libc::SO_SNDBUFFORCE, libc::SO_SNDBUF)?;
    packet::bind(&socket, index, 0)?;
    Ok(socket)
}
