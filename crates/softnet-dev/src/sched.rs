//! Scheduling policies of threads (sched(7)): which one a thread has, and another for the calling one, or for another.
//!
//! Any thread may call this. A policy is a thread's own; threads that it makes later inherit it.

use std::fmt;
use std::io;

use crate::sys_error::{SysError, SysResult};

/// How the kernel shares out CPU time to a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// `SCHED_OTHER`: what threads have unless told otherwise.
    Other,
    /// `SCHED_BATCH`: as `Other`, but it does not preempt others when it wakes.
    Batch,
    /// `SCHED_IDLE`: only what others leave.
    Idle,
    /// `SCHED_FIFO`: before all of these, and before real-time threads of a lower priority, for as long as it wants.
    /// Priorities are 1 to 99.
    Fifo(u32),
    /// `SCHED_RR`: as `Fifo`, in turns with others of the same priority.
    Rr(u32),
}

impl Policy {
    fn number(self) -> (i32, u32) {
        match self {
            Policy::Other => (libc::SCHED_OTHER, 0),
            Policy::Batch => (libc::SCHED_BATCH, 0),
            Policy::Idle => (libc::SCHED_IDLE, 0),
            Policy::Fifo(priority) => (libc::SCHED_FIFO, priority),
            Policy::Rr(priority) => (libc::SCHED_RR, priority),
        }
    }
}

/// `other`, `batch`, `idle`, `fifo 10`, `rr 10`.
impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Policy::Other => f.write_str("other"),
            Policy::Batch => f.write_str("batch"),
            Policy::Idle => f.write_str("idle"),
            Policy::Fifo(priority) => write!(f, "fifo {priority}"),
            Policy::Rr(priority) => write!(f, "rr {priority}"),
        }
    }
}

/// Gives the calling thread a policy. It has the one it had if this fails.
///
/// # Errors
/// EINVAL for a priority that is none. `Fifo`, `Rr`, and leaving `Idle` need CAP_SYS_NICE, or a resource limit that allows
/// them (`RLIMIT_RTPRIO`, `RLIMIT_NICE`).
pub fn set_policy(policy: Policy) -> SysResult<()> {
    // The calling thread.
    set(0, policy)
}

/// Gives the thread `tid` of whatever process, or of the kernel, a policy.
///
/// # Errors
/// ESRCH if there is no such thread; otherwise as [`set_policy`]. Needs CAP_SYS_NICE for a thread of another user.
pub fn set_policy_of(tid: u32, policy: Policy) -> SysResult<()> {
    // 0 would be the calling thread; no thread has the largest number.
    let tid = libc::pid_t::try_from(tid).ok().filter(|tid| *tid != 0);
    set(tid.unwrap_or(libc::pid_t::MAX), policy)
}

fn set(tid: libc::pid_t, policy: Policy) -> SysResult<()> {
    let (number, priority) = policy.number();
    let param = libc::sched_param { sched_priority: priority.cast_signed() };
    // SAFETY: takes numbers; `param` is a live value.
    match unsafe { libc::sched_setscheduler(tid, number, &raw const param) } {
        0 => Ok(()),
        _ => Err(SysError::last(format!("set the scheduling policy {policy}")).needs("CAP_SYS_NICE")),
    }
}

/// The policy of the thread `tid` of whatever process.
///
/// # Errors
/// ESRCH if there is no such thread; `Unsupported` if its policy is none of those above (`SCHED_DEADLINE`, `SCHED_EXT`).
pub fn policy(tid: u32) -> io::Result<Policy> {
    // 0 would be the calling thread.
    let tid = libc::pid_t::try_from(tid).ok().filter(|tid| *tid != 0);
    let tid = tid.ok_or_else(|| io::Error::from_raw_os_error(libc::ESRCH))?;
    let mut param = libc::sched_param { sched_priority: 0 };
    // SAFETY: takes a number only.
    let number = unsafe { libc::sched_getscheduler(tid) };
    // SAFETY: `param` is a live value for the kernel to write.
    if number < 0 || unsafe { libc::sched_getparam(tid, &raw mut param) } < 0 {
        return Err(io::Error::last_os_error());
    }
    let priority = param.sched_priority.cast_unsigned();
    match number & !libc::SCHED_RESET_ON_FORK {
        libc::SCHED_OTHER => Ok(Policy::Other),
        libc::SCHED_BATCH => Ok(Policy::Batch),
        libc::SCHED_IDLE => Ok(Policy::Idle),
        libc::SCHED_FIFO => Ok(Policy::Fifo(priority)),
        libc::SCHED_RR => Ok(Policy::Rr(priority)),
        number => Err(io::Error::new(io::ErrorKind::Unsupported, format!("scheduling policy {number}"))),
    }
}

#[cfg(test)]
mod tests {
    use rustix::thread::{CapabilitySet, capabilities, gettid, set_capabilities};

    use super::*;

    /// On a thread of its own, whose policy does not matter.
    fn on_a_thread(work: impl FnOnce(u32) + Send) {
        std::thread::scope(|scope| {
            scope.spawn(|| work(gettid().as_raw_nonzero().get().cast_unsigned()));
        });
    }

    #[test]
    fn a_thread_has_the_policy_it_took() {
        on_a_thread(|tid| {
            let before = policy(tid).unwrap();
            set_policy(Policy::Batch).unwrap();
            assert_eq!(policy(tid).unwrap(), Policy::Batch);
            assert_eq!(policy(std::process::id()).unwrap(), before, "the main thread's is its own");
            set_policy_of(tid, Policy::Other).unwrap();
            assert_eq!(policy(tid).unwrap(), Policy::Other);
            assert_eq!(set_policy_of(0, Policy::Other).unwrap_err().errno(), Some(libc::ESRCH));
            set_policy(Policy::Other).unwrap();
            for real_time in [Policy::Fifo(1), Policy::Rr(2)] {
                match set_policy(real_time) {
                    Ok(()) => assert_eq!(policy(tid).unwrap(), real_time),
                    Err(error) => assert!(error.is_permission(), "{error}"),
                }
            }
            let error = set_policy(Policy::Fifo(100)).unwrap_err();
            assert!(matches!(error.errno(), Some(libc::EINVAL | libc::EPERM)), "{error}");
        });
        for no_thread in [0, u32::MAX] {
            assert_eq!(policy(no_thread).unwrap_err().raw_os_error(), Some(libc::ESRCH));
        }
    }

    #[test]
    fn the_missing_capability_is_named() {
        on_a_thread(|tid| {
            let mut sets = capabilities(None).unwrap();
            sets.effective -= CapabilitySet::SYS_NICE;
            set_capabilities(None, sets).unwrap();
            match set_policy(Policy::Fifo(99)) {
                Err(error) => {
                    let text = error.to_string();
                    assert!(text.starts_with("set the scheduling policy fifo 99: "), "{text}");
                    assert!(text.contains("CAP_SYS_NICE"), "{text}");
                    assert_eq!(policy(tid).unwrap(), Policy::Other);
                }
                // RLIMIT_RTPRIO allows it.
                Ok(()) => assert_eq!(policy(tid).unwrap(), Policy::Fifo(99)),
            }
        });
    }
}
