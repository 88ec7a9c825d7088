//! The context of an application thread: packet memory, tables and counters of a thread that uses
//! sockets.
//!
//! Made when a thread first calls a socket of a stack, kept by the thread, and given back when it
//! ends or the stack stops. Only the thread uses it while the stack runs, so its lock is never
//! contended; the lock is there for the stack's end, which must not depend on when threads end.
//! Between two calls, and while the thread is blocked, the context keeps no more packet memory than
//! [`CacheShare`](crate::stack::CacheShare) allows. Invariant: it is not locked while code of
//! the caller runs.

use std::any::Any;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::{Arc, Mutex, Weak};

use arc_swap::{ArcSwap, Cache};
use softnet_core::SoftnetData;
use softnet_core::ip::tables::Tables;

use super::StackInner;
use crate::util::{current_tid, lock};

/// What a thread keeps from one call to the next.
pub(crate) trait Parked: Any + Send {
    /// The thread blocks without it: it gives back memory that other threads may need meanwhile.
    fn before_wait(&mut self);
}

/// See the module.
pub(crate) struct AppThread {
    pub(crate) ctx: SoftnetData,
    pub(crate) tables: Cache<Arc<ArcSwap<Tables>>, Arc<Tables>>,
    /// Slots of the sockets that this thread sent to.
    pub(crate) ready: Vec<u32>,
    /// The thread's id.
    pub(crate) tid: u32,
    /// What polls in calls of the thread that block, between two of them.
    pub(crate) parked: Option<Box<dyn Parked>>,
}

impl AppThread {
    fn new(shared: &Arc<StackInner>) -> Self {
        let ctx = shared.context();
        if let Some(name) = std::thread::current().name() {
            ctx.stats().name.get_or_init(|| name.into());
        }
        let tables = Cache::new(shared.tables.clone());
        AppThread { ctx, tables, ready: Vec::new(), tid: current_tid(), parked: None }
    }

    /// Gives cached packet memory back; what polls is gone.
    pub(crate) fn drain(&mut self) {
        self.parked = None;
        self.ctx.drain();
    }
}

/// A context of the calling thread, and its stack.
struct Registered {
    shared: Weak<StackInner>,
    thread: Arc<Mutex<AppThread>>,
}

impl Drop for Registered {
    fn drop(&mut self) {
        lock(&self.thread).drain();
        if let Some(shared) = self.shared.upgrade() {
            shared.sockets.remove_thread(&self.thread);
        }
    }
}

thread_local! {
    static THREADS: RefCell<Vec<Rc<Registered>>> = const { RefCell::new(Vec::new()) };
}

/// The calling thread's context on `shared`, made if there is none.
fn registered(shared: &Arc<StackInner>) -> Option<Rc<Registered>> {
    THREADS
        .try_with(|threads| {
            let mut threads = threads.borrow_mut();
            let this = Arc::as_ptr(shared);
            if let Some(known) = threads.iter().find(|known| known.shared.as_ptr() == this) {
                return known.clone();
            }
            threads.retain(|known| known.shared.strong_count() > 0);
            let thread = Arc::new(Mutex::new(AppThread::new(shared)));
            shared.sockets.add_thread(&thread);
            let new = Rc::new(Registered { shared: Arc::downgrade(shared), thread });
            threads.push(new.clone());
            new
        })
        .ok()
}

/// Runs `f` with the calling thread's context on `shared`. `f` must call neither this function nor
/// code of the caller.
#[inline]
pub(crate) fn with<R>(shared: &Arc<StackInner>, f: impl FnOnce(&mut AppThread) -> R) -> R {
    match registered(shared) {
        Some(known) => {
            let mut thread = lock(&known.thread);
            let result = f(&mut thread);
            shared.cache_share.after_call(&mut thread.ctx);
            if shared.sockets.is_stopped() {
                thread.drain();
            }
            result
        }
        // The thread is about to end, and its own context is gone already.
        None => f(&mut AppThread::new(shared)),
    }
}

/// The calling thread is about to block: its context, if it has one, and what it has
/// [parked](Parked) give back memory that other threads may need meanwhile.
pub(crate) fn before_wait(shared: &StackInner) {
    let known = THREADS.try_with(|threads| {
        threads.borrow().iter().find(|known| std::ptr::eq(known.shared.as_ptr(), shared)).cloned()
    });
    if let Ok(Some(known)) = known {
        let AppThread { ctx, tables, parked, .. } = &mut *lock(&known.thread);
        parked.iter_mut().for_each(|parked| parked.before_wait());
        // So that no old snapshot is kept alive.
        tables.load();
        shared.cache_share.before_wait(ctx);
    }
}
