//! Switches instances between polling contexts, and owns the threads that this takes.
//!
//! Called by the housekeeper only. First every thread that is needed is made; if one cannot be, the others are ended and
//! nothing has changed. Then one instance after the other is disabled (a poll that runs now is finished), leaves its
//! old home, and is enabled in the new one, whose first poll finds what came meanwhile: packets wait in the device's
//! ring. Last, the threads that have nothing to poll any more are ended.
//!
//! Invariant: a thread of an instance's own lives as long as that instance's home is there, and the pool as long as it
//! has instances.

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

use softnet_core::sync::Ordering;

use super::{PoolThread, Worker};
use crate::config::Context;
use crate::napi::{Home, NapiInstance, PAUSE, PollThread, Pool, WorkerShared};
use crate::stack::StackInner;
use crate::util::Spawn;

/// Bytes of a thread's name (`TASK_COMM_LEN`, less the closing zero).
const NAME: usize = 15;

/// See the module.
pub(crate) struct Contexts {
    shared: Arc<StackInner>,
    /// How many threads the pool has while there is one.
    pool_threads: u32,
    threads: Vec<(Arc<WorkerShared>, JoinHandle<()>)>,
    pool: Option<RunningPool>,
}

struct RunningPool {
    pool: Arc<Pool>,
    threads: Vec<(Arc<PollThread>, JoinHandle<()>)>,
}

/// The name of an instance's own thread. The number tells it from all others, so of a long device name only the beginning
/// stays.
fn thread_name(dev: &str, id: u32) -> String {
    let number = format!("-{id}");
    let room = NAME.saturating_sub("napi/".len() + number.len());
    let end = (0..=room.min(dev.len())).rev().find(|at| dev.is_char_boundary(*at)).unwrap_or(0);
    format!("napi/{}{number}", &dev[..end])
}

impl Contexts {
    /// No threads but the workers.
    pub(crate) fn new(shared: Arc<StackInner>, pool_threads: u32) -> Self {
        Contexts { shared, pool_threads, threads: Vec::new(), pool: None }
    }

    /// Homes for instances, each in the context beside it, with their threads running. Gives nothing and leaves nothing
    /// if a thread cannot be made.
    pub(crate) fn prepare(
        &mut self,
        wanted: &[(Arc<NapiInstance>, Context)],
        spawn: Spawn<'_>,
    ) -> io::Result<Vec<Home>> {
        let mut homes = Vec::with_capacity(wanted.len());
        for (instance, context) in wanted {
            match self.home(instance, *context, spawn) {
                Ok(home) => homes.push(home),
                Err(error) => {
                    for ((instance, _), home) in wanted.iter().zip(&homes) {
                        if let Home::Pool(pool) = home {
                            pool.release(instance);
                        }
                    }
                    self.retire(homes);
                    return Err(error);
                }
            }
        }
        // So that `softnet show` has the threads' ids as soon as the switch is answered.
        let threads = homes.iter().filter_map(|home| match home {
            Home::Worker(worker) if worker.thread.context != Context::Softirq => Some(&worker.thread),
            _ => None,
        });
        for thread in threads.chain(self.pool.iter().flat_map(|p| p.threads.iter().map(|(me, _)| me))) {
            while thread.tid.load(Ordering::Acquire) == 0 {
                std::thread::sleep(PAUSE);
            }
        }
        Ok(homes)
    }

    fn home(&mut self, instance: &NapiInstance, context: Context, spawn: Spawn<'_>) -> io::Result<Home> {
        match context {
            Context::Softirq => Ok(Home::Worker(self.shared.workers[instance.worker].clone())),
            Context::Threaded | Context::BusyPoll => {
                let dev = &self.shared.devices[usize::from(instance.napi.dev)].name;
                let name = thread_name(dev, instance.napi.id);
                let thread = PollThread::new(name.clone(), context, None, self.shared.clock.now());
                let me = Arc::new(WorkerShared::new(thread)?);
                let worker = Worker::new(&self.shared, &me)?;
                let handle = spawn(&name, Box::new(move || worker.run()))?;
                self.shared.add_thread(&me.thread);
                self.threads.push((me.clone(), handle));
                Ok(Home::Worker(me))
            }
            Context::Workqueue => {
                if self.pool.is_none() {
                    self.pool = Some(self.start_pool(spawn)?);
                }
                let running = self.pool.as_ref().map(|running| running.pool.clone());
                let pool = running.ok_or(io::ErrorKind::NotFound)?;
                pool.reserve(instance)?;
                Ok(Home::Pool(pool))
            }
        }
    }

    fn start_pool(&mut self, spawn: Spawn<'_>) -> io::Result<RunningPool> {
        let mut running = RunningPool { pool: Arc::new(Pool::new()?), threads: Vec::new() };
        for n in 0..self.pool_threads.max(1) {
            let name = format!("napi-wq/{n}");
            let now = self.shared.clock.now();
            let me = Arc::new(PollThread::new(name.clone(), Context::Workqueue, None, now));
            let thread = PoolThread::new(&self.shared, &running.pool, me.clone());
            match spawn(&name, Box::new(move || thread.run())) {
                Ok(handle) => {
                    self.shared.add_thread(&me);
                    running.threads.push((me, handle));
                }
                Err(error) => {
                    running.end(&self.shared);
                    return Err(error);
                }
            }
        }
        Ok(running)
    }

    /// Switches instances to the contexts beside them. The error is that a thread could not be made; then nothing changed.
    pub(crate) fn switch(
        &mut self,
        mut wanted: Vec<(Arc<NapiInstance>, Context)>,
        spawn: Spawn<'_>,
    ) -> io::Result<()> {
        wanted.retain(|(instance, context)| instance.home().is_none_or(|home| home.context() != *context));
        let homes = self.prepare(&wanted, spawn)?;
        let mut left = Vec::with_capacity(homes.len());
        for ((instance, _), home) in wanted.iter().zip(&homes) {
            let (disabled, old) = instance.evict();
            left.extend(old);
            instance.attach(home, disabled);
        }
        self.retire(left);
        Ok(())
    }

    /// Ends the threads of homes that instances left, if they have nothing else to poll.
    pub(crate) fn retire(&mut self, homes: Vec<Home>) {
        for home in homes {
            let Home::Worker(worker) = home else { continue };
            let Some(at) = self.threads.iter().position(|(me, _)| Arc::ptr_eq(me, &worker)) else { continue };
            let (me, handle) = self.threads.swap_remove(at);
            me.stop();
            let _ = handle.join();
            self.shared.remove_thread(&me.thread);
        }
        self.end_idle_pool();
    }

    fn end_idle_pool(&mut self) {
        if let Some(running) = self.pool.take_if(|running| running.pool.is_empty()) {
            running.end(&self.shared);
        }
    }
}

impl RunningPool {
    fn end(self, shared: &StackInner) {
        self.pool.stop();
        for (me, handle) in self.threads {
            let _ = handle.join();
            shared.remove_thread(&me);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_fit_and_keep_their_number() {
        assert_eq!(thread_name("eth0", 8193), "napi/eth0-8193");
        assert_eq!(thread_name("enp3s0f0np0", 8193), "napi/enp3s-8193");
        assert_eq!(thread_name("äöü", 12345), "napi/äö-12345");
        assert_eq!(thread_name("eth0", 1_000_000_000), "napi/-1000000000");
    }
}
