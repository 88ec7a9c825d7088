//! The stack behind its lock, virtual time, and calls that wait.
//!
//! packetdrill makes calls that block from a thread of its own, and takes for granted that time
//! stands still while a call returns. So the clock moves only when a thread asks for it, or waits;
//! and whenever something has happened, the thread that waits tries again, and the main thread
//! goes on only when that thread sleeps again, or has asked for the time at which its call ended.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};

use softnet_tcp::{Instant, Span};

use crate::calls::WAIT;
use crate::settings::Settings;
use crate::stack::Stack;

/// How far time jumps while a packet is awaited: longer than any keepalive.
const FAR: u64 = 4 * 3600 * 1000;

/// The thread whose call waits. There is one at most: packetdrill makes no second such call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Waiter {
    None,
    /// It sleeps until poked, or until then.
    Asleep(Instant),
    /// It is to try again.
    Poked,
    /// Its call has returned, and the end is not timed yet.
    Leaving(ThreadId),
}

pub(crate) struct World {
    pub(crate) stack: Stack,
    main: ThreadId,
    waiter: Waiter,
}

static WORLD: Mutex<Option<World>> = Mutex::new(None);
/// The waiter is poked.
static POKE: Condvar = Condvar::new();
/// The waiter sleeps or has left.
static SETTLED: Condvar = Condvar::new();

type Guard = MutexGuard<'static, Option<World>>;

fn lock() -> Guard {
    WORLD.lock().unwrap_or_else(PoisonError::into_inner)
}

fn wait(condvar: &Condvar, guard: Guard) -> Guard {
    condvar.wait(guard).unwrap_or_else(PoisonError::into_inner)
}

/// Begins a run.
pub(crate) fn begin(settings: Settings) {
    let world = World { stack: Stack::new(settings), main: thread::current().id(), waiter: Waiter::None };
    *lock() = Some(world);
}

/// Ends it.
pub(crate) fn end() {
    *lock() = None;
}

/// Whether a run is under way.
pub(crate) fn is_running() -> bool {
    lock().is_some()
}

/// Runs `f` on the stack, if there is a run; what it changes may let the waiter go on.
pub(crate) fn with<T>(f: impl FnOnce(&mut Stack) -> T) -> Option<T> {
    let mut guard = lock();
    let world = guard.as_mut()?;
    world.stack.refresh();
    let result = f(&mut world.stack);
    world.stack.refresh();
    drop(settle(guard));
    Some(result)
}

/// A call that may wait. `until` says how long; `None`: not at all, then [`WAIT`] is its error.
pub(crate) fn call<T>(
    until: impl FnOnce(&Stack) -> Option<Instant>,
    mut attempt: impl FnMut(&mut Stack) -> Result<T, i32>,
) -> Result<T, i32> {
    let mut guard = lock();
    let mut until = Some(until);
    let mut limit = None;
    let mut has_waited = false;
    loop {
        let Some(world) = guard.as_mut() else { return Err(libc::EBADF) };
        world.stack.refresh();
        let result = attempt(&mut world.stack);
        if let Some(until) = until.take() {
            limit = until(&world.stack);
        }
        let is_main = world.main == thread::current().id();
        let over = limit.is_none_or(|limit| limit <= world.stack.now);
        match result {
            Err(WAIT) if !over => {}
            result => {
                if has_waited {
                    world.waiter = Waiter::Leaving(thread::current().id());
                    SETTLED.notify_all();
                } else {
                    drop(settle(guard));
                }
                return result;
            }
        }
        let limit = limit.unwrap_or(Instant::NEVER);
        if is_main {
            // Nothing but time can make it ready.
            let next = world.stack.deadline().min(limit);
            if !next.is_armed() {
                return Err(libc::EDEADLK);
            }
            guard = advance(guard, next);
        } else {
            has_waited = true;
            world.waiter = Waiter::Asleep(limit);
            SETTLED.notify_all();
            while guard.as_ref().is_some_and(|world| world.waiter != Waiter::Poked) {
                guard = wait(&POKE, guard);
            }
        }
    }
}

/// Lets the waiter try again, and returns when it sleeps or has left.
fn settle(mut guard: Guard) -> Guard {
    let Some(world) = guard.as_mut() else { return guard };
    if world.waiter == Waiter::Leaving(thread::current().id()) {
        return guard;
    }
    if matches!(world.waiter, Waiter::Asleep(_)) {
        world.waiter = Waiter::Poked;
        POKE.notify_all();
    }
    while let Some(world) = guard.as_ref()
        && matches!(world.waiter, Waiter::Poked | Waiter::Leaving(_))
    {
        guard = wait(&SETTLED, guard);
    }
    guard
}

/// When something is due: of the stack, or the waiter's end.
fn next(world: &World) -> Instant {
    let waiter = match world.waiter {
        Waiter::Asleep(until) => until,
        _ => Instant::NEVER,
    };
    world.stack.deadline().min(waiter)
}

/// Time goes on to `to`; what is due before happens when it is due.
fn advance(mut guard: Guard, to: Instant) -> Guard {
    loop {
        let Some(world) = guard.as_mut() else { return guard };
        let due = next(world);
        if due > to {
            world.stack.now = world.stack.now.max(to);
            return guard;
        }
        world.stack.now = world.stack.now.max(due);
        world.stack.on_time();
        guard = settle(guard);
    }
}

/// The time, in microseconds. Each question takes one: packetdrill spins on the clock before an
/// event, on the thread that is to run it.
pub(crate) fn time() -> u64 {
    let mut guard = lock();
    let Some(world) = guard.as_mut() else { return 0 };
    if world.waiter == Waiter::Leaving(thread::current().id()) {
        world.waiter = Waiter::None;
        SETTLED.notify_all();
        return world.stack.now.0;
    }
    let to = world.stack.now + Span(1);
    guard = advance(guard, to);
    guard.as_ref().map_or(0, |world| world.stack.now.0)
}

/// A thread sleeps, while no other runs.
pub(crate) fn sleep(micros: u32) {
    let mut guard = lock();
    if let Some(world) = guard.as_mut() {
        world.stack.refresh();
        let to = world.stack.now + Span(micros);
        drop(advance(guard, to));
    }
}

/// The next packet that leaves, and when it left; time goes on until there is one. `None`: none
/// comes.
pub(crate) fn receive() -> Option<(Vec<u8>, u64)> {
    let mut guard = lock();
    let world = guard.as_mut()?;
    world.stack.refresh();
    let last = world.stack.now.plus_millis(FAR);
    loop {
        let world = guard.as_mut()?;
        if let Some((packet, at)) = world.stack.net.take(world.stack.now) {
            return Some((packet, at.0));
        }
        let due = next(world).min(world.stack.net.departure());
        if due > last {
            return None;
        }
        guard = advance(guard, due);
    }
}

/// A packet for the stack.
pub(crate) fn send(packet: &[u8]) {
    with(|stack| stack.packet(packet));
}
