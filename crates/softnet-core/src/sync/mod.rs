//! Everything that two threads share goes through here.
//!
//! * The façade: production code takes its atomics, fences, cells and the like from this module and never from `std`, so
//!   that the loom models run the production types themselves. Backends: `std`, and loom under the feature
//!   `loom`. (`Arc` counts references and nothing else, so `std`'s will do where no model looks at it.)
//! * [`Handover`]: owner word and pending list in one, by which every hand-over between threads is done.
//!   [`mailbox`] is its use for values of any type, one permanent owner.
//! * [`Left`]: what threads that must not wait for a lock leave to its holder.
//! * [`Owned`]: a word with an ownership bit, and the state that only the bit's holder may touch.
//! * [`Pool`]: a lock-free stack of indices, in chunks.
//! * [`Home`]: a thread's list of what others freed that it took; another use of [`Handover`].
//! * [`ReadyQueue`]: what several threads take from, each of which sleeps when it finds nothing.
//! * [`Sleeper`]: how one thread goes to sleep without missing the wake-up of many others.
//!
//! `unsafe` lives in [`Owned`] and [`mailbox`] alone, and their APIs are safe: exclusive access is a matter of
//! holding a guard that only a successful compare-exchange can make.

#[cfg(not(feature = "loom"))]
pub use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
};
#[cfg(all(test, not(feature = "loom")))]
pub(crate) use std::sync::{Mutex, MutexGuard};

#[cfg(feature = "loom")]
pub use loom::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
};
#[cfg(all(test, feature = "loom"))]
pub(crate) use loom::sync::{Mutex, MutexGuard};

mod abort;
mod cell;
mod due;
mod handover;
mod left;
mod mailbox;
#[cfg(all(test, feature = "loom"))]
mod models;
mod mutant;
mod owned;
mod pool;
mod ready;
mod remote;
mod sleep;

pub use abort::AbortOnPanic;
pub use cell::UnsafeCell;
pub use due::{Deadline, Due};
pub use handover::{Drain, Entered, Handover, LinkTable, Links, NIL, OwnLine, Owner, Refused};
pub use left::{Left, left};
pub use mailbox::{Mailbox, PushError, Received, Receiver, mailbox};
pub(crate) use mutant::{Mutant, model_failed, mutated, weakened};
#[cfg(all(test, feature = "loom"))]
pub(crate) use mutant::{check, must_fail};
pub use owned::{Guard, OWNED, Owned, Word};
pub use pool::Pool;
pub use ready::{Lock, Ready, ReadyQueue};
pub use remote::{Deferred, Home, HomeOwner, Homes, Kick};
pub use sleep::{Announced, Sleeper};
