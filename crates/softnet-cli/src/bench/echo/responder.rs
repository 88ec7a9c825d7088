//! The application: a thread that answers requests by [`NapiPoller`](softnet::NapiPoller), each after some work.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use softnet::{NapiPoller, PacketFilter, PollerParams, Stack};
use softnet_core::skb::Batch;

use super::packet::{PORT, answer};
use crate::bench::pin;

/// Responses that are sent at once. A request does not wait for the work on 63 others to be answered, and yet not each
/// response pays for the transmit queue's lock and, on real devices, for a system call.
const SEND: usize = 8;
/// How long a wait lasts that is to have no end: [`Responder::stop`] is noticed then at the latest.
const LONG: Duration = Duration::from_millis(50);

/// What it did, from start to stop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Answered {
    /// Requests it answered.
    pub(crate) requests: u64,
    /// Waits that returned requests.
    pub(crate) waits: u64,
}

/// See the [module](self). Dropping it stops it.
pub(crate) struct Responder {
    tid: i32,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<Answered, String>>>,
}

impl Responder {
    /// Answers what NAPI instance `napi` of `stack` receives for port [`PORT`], computing for `work` on each request, until
    /// it is stopped. It waits for requests with time-out `wait`, and runs on `cpu`, or anywhere the caller may.
    pub(crate) fn start(
        stack: &Stack,
        napi: u32,
        params: PollerParams,
        work: Duration,
        wait: Option<Duration>,
        cpu: Option<usize>,
    ) -> Result<Self, String> {
        let poller =
            stack.poller(napi, "echo", PacketFilter::UdpPort(PORT), params).map_err(|e| e.to_string())?;
        let (work, wait) = (Work::lasting(work), wait.unwrap_or(LONG));
        let stop = Arc::new(AtomicBool::new(false));
        let (ready, is_ready) = std::sync::mpsc::sync_channel(1);
        let thread = std::thread::Builder::new().name("echo".into()).spawn({
            let stop = stop.clone();
            move || {
                if let Some(cpu) = cpu {
                    pin(cpu)?;
                }
                // Without it the kernel adds 50 µs to the time-outs of its waits.
                let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
                let _ = ready.send(rustix::thread::gettid().as_raw_pid());
                serve(poller, &work, wait, &stop)
            }
        });
        let thread = Some(thread.map_err(|e| e.to_string())?);
        let mut responder = Responder { tid: 0, stop, thread };
        match is_ready.recv() {
            Ok(tid) => responder.tid = tid,
            Err(_) => return Err(responder.end().err().unwrap_or_else(|| "the application ended".into())),
        }
        Ok(responder)
    }

    /// Id of its thread.
    pub(crate) fn tid(&self) -> i32 {
        self.tid
    }

    /// Ends it. Requests that it has not answered are dropped.
    pub(crate) fn stop(mut self) -> Result<Answered, String> {
        self.end()
    }

    fn end(&mut self) -> Result<Answered, String> {
        self.stop.store(true, Ordering::Relaxed);
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(answered)) => answered,
            Some(Err(panic)) => std::panic::resume_unwind(panic),
            None => Ok(Answered::default()),
        }
    }
}

impl Drop for Responder {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // `stop` is the call that returns how it ended.
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn serve(mut poller: NapiPoller, work: &Work, wait: Duration, stop: &AtomicBool) -> Result<Answered, String> {
    let (mut requests, mut responses) = (Batch::new(), Batch::new());
    let mut answered = Answered::default();
    while !stop.load(Ordering::Relaxed) {
        let n = poller.wait(&mut requests, Some(wait)).map_err(|e| e.to_string())?;
        if n == 0 {
            continue;
        }
        answered.requests += n as u64;
        answered.waits += 1;
        for mut skb in requests.drain() {
            work.on(skb.data());
            // The poller's filter wants nothing that is too short for it.
            answer(skb.data_mut());
            if let Err(skb) = responses.push(skb) {
                // There is room for eight.
                poller.ctx().free_skb(skb);
            }
            if responses.len() == SEND {
                poller.send(&mut responses);
            }
        }
        if !responses.is_empty() {
            poller.send(&mut responses);
        }
    }
    Ok(answered)
}

/// Computing that takes a certain time if nothing interrupts it, and reads no clock meanwhile.
struct Work {
    rounds: u64,
}

impl Work {
    fn lasting(time: Duration) -> Self {
        Work { rounds: (time.as_nanos() as f64 / round_ns()) as u64 }
    }

    #[inline]
    fn on(&self, data: &[u8]) -> u64 {
        let (words, rest) = data.as_chunks::<8>();
        let seed = words.iter().fold(rest.len() as u64, |sum, word| sum ^ u64::from_le_bytes(*word));
        spin(seed, self.rounds)
    }
}

#[inline]
fn spin(mut x: u64, rounds: u64) -> u64 {
    for _ in 0..rounds {
        // Each round needs the one before, so that they take the same time on any superscalar core.
        x = black_box(x.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ x >> 29);
    }
    x
}

/// How long a round of [`spin`] takes: the shortest of some measurements, since others may use this CPU too.
fn round_ns() -> f64 {
    const ROUNDS: u64 = 100_000;
    static NS: OnceLock<f64> = OnceLock::new();
    *NS.get_or_init(|| {
        let measure = |seed| {
            let start = Instant::now();
            black_box(spin(seed, ROUNDS));
            start.elapsed().as_nanos() as f64 / ROUNDS as f64
        };
        (0..20).map(measure).fold(f64::MAX, f64::min).max(0.01)
    })
}
