//! What a process that only moves packets gives up for good: capabilities that it has no use for,
//! and system calls that a router never makes. Code that gets in by a packet finds neither.
//!
//! For `main`, before it makes other threads: capabilities are a property of a thread in Linux, and
//! threads inherit them. (The filter is on all threads there are, and on those they make.)
//!
//! The filter is a list of what is refused, not of what is allowed: a program that embeds libraries
//! cannot know all that those call, and a new libc would break it. It answers EPERM instead of
//! killing: what is refused is an error to its caller, which a router survives. It is made by hand
//! since it must refuse the 32-bit and x32 calls of the same kernel, too, by which a list of numbers
//! would be passed by; and it asks for no protection from speculation (`SPEC_ALLOW`), which kernels
//! before 5.16 would slow all of the process down with.
//!
//! On other architectures than x86-64 and AArch64 the filter is not supported, and that is an error.

use std::io;

use rustix::thread::{CapabilitySet, capabilities, set_capabilities, set_no_new_privs};

/// What is refused with EPERM, in groups.
#[rustfmt::skip]
const REFUSED: &[libc::c_long] = &[
    // Other programs, and what other processes hold.
    libc::SYS_execve, libc::SYS_execveat, libc::SYS_ptrace, libc::SYS_process_vm_readv, libc::SYS_process_vm_writev,
    libc::SYS_pidfd_getfd, libc::SYS_kcmp,
    // The kernel itself.
    libc::SYS_kexec_load, libc::SYS_kexec_file_load, libc::SYS_init_module, libc::SYS_finit_module,
    libc::SYS_delete_module, libc::SYS_reboot, libc::SYS_syslog, libc::SYS_perf_event_open, libc::SYS_userfaultfd,
    // Rings that make system calls past a filter.
    libc::SYS_io_uring_setup, libc::SYS_io_uring_enter, libc::SYS_io_uring_register,
    // File systems and namespaces.
    libc::SYS_mount, libc::SYS_umount2, libc::SYS_mount_setattr, libc::SYS_move_mount, libc::SYS_open_tree,
    libc::SYS_fsopen, libc::SYS_fsconfig, libc::SYS_fsmount, libc::SYS_fspick, libc::SYS_pivot_root,
    libc::SYS_chroot, libc::SYS_unshare, libc::SYS_setns, libc::SYS_open_by_handle_at, libc::SYS_fanotify_init,
    libc::SYS_swapon, libc::SYS_swapoff, libc::SYS_acct, libc::SYS_quotactl, libc::SYS_quotactl_fd,
    // Other users, keys, personalities.
    libc::SYS_setuid, libc::SYS_setgid, libc::SYS_setreuid, libc::SYS_setregid, libc::SYS_setresuid,
    libc::SYS_setresgid, libc::SYS_setfsuid, libc::SYS_setfsgid, libc::SYS_setgroups, libc::SYS_keyctl,
    libc::SYS_add_key, libc::SYS_request_key, libc::SYS_personality,
    // The clock, names.
    libc::SYS_settimeofday, libc::SYS_clock_settime, libc::SYS_clock_adjtime, libc::SYS_adjtimex,
    libc::SYS_sethostname, libc::SYS_setdomainname,
    // Ports of the machine, and 16-bit segments.
    #[cfg(target_arch = "x86_64")] libc::SYS_iopl,
    #[cfg(target_arch = "x86_64")] libc::SYS_ioperm,
    #[cfg(target_arch = "x86_64")] libc::SYS_modify_ldt,
];

// A jump is 255 instructions long at the most.
const _: () = assert!(REFUSED.len() < 240);

/// Flags of clone(2) that make namespaces. (CLONE_NEWTIME is a signal's number there.)
const NEW_NAMESPACES: u32 = (libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET) as u32;

/// What the kernel calls the calls that [`REFUSED`] numbers (`AUDIT_ARCH_…` of `linux/audit.h`).
const ARCH: Option<u32> = if cfg!(all(target_arch = "x86_64", target_pointer_width = "64")) {
    Some(0xc000_003e)
} else if cfg!(all(target_arch = "aarch64", target_endian = "little")) {
    Some(0xc000_00b7)
} else {
    None
};

/// From this number on there are the calls of x32, which x86_64's architecture number stands for, too.
const X32: u32 = 0x4000_0000;

/// Capabilities that a stack may have a use for: its devices (CAP_NET_ADMIN, CAP_BPF, CAP_PERFMON,
/// without which the kernel has programs take detours, CAP_NET_RAW, CAP_IPC_LOCK), real-time workers
/// (CAP_SYS_NICE), ports below 1024, and files of its configuration and sockets whatever their owner.
const USED: [CapabilitySet; 11] = [
    CapabilitySet::NET_ADMIN,
    CapabilitySet::BPF,
    CapabilitySet::PERFMON,
    CapabilitySet::NET_RAW,
    CapabilitySet::IPC_LOCK,
    CapabilitySet::SYS_NICE,
    CapabilitySet::NET_BIND_SERVICE,
    CapabilitySet::DAC_OVERRIDE,
    CapabilitySet::DAC_READ_SEARCH,
    CapabilitySet::CHOWN,
    CapabilitySet::FOWNER,
];

/// Gives up the calling thread's capabilities, those apart that a stack may have a use for at its start
/// or later, when a configuration is read again. Threads that it makes from now on lack them, too.
///
/// # Errors
/// Where a filter of others refuses it. A thread that has no others is left alone.
pub fn drop_capabilities() -> io::Result<()> {
    let used = USED.into_iter().fold(CapabilitySet::empty(), |set, one| set | one);
    let had = capabilities(None)?;
    let mut keep = had;
    keep.effective &= used;
    keep.permitted &= used;
    keep.inheritable &= used;
    if keep != had {
        set_capabilities(None, keep)?;
    }
    Ok(())
}

/// From now on no thread of the process gains privileges by a program that it starts
/// (`no_new_privs`), and the system calls in the module's list fail with EPERM. For good.
///
/// # Errors
/// Unsupported on other architectures; EINVAL of kernels without seccomp's filters; ESRCH if a
/// thread has a filter of its own, which this one can't be put upon.
pub fn filter_system_calls() -> io::Result<()> {
    let arch = ARCH.ok_or(io::ErrorKind::Unsupported)?;
    set_no_new_privs(true)?;
    let mut program = program(arch);
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    let flags = libc::SECCOMP_FILTER_FLAG_TSYNC
        | libc::SECCOMP_FILTER_FLAG_TSYNC_ESRCH
        | libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW;
    // SAFETY: `filter` names `program` by its length; the kernel copies both, and keeps no address.
    let result =
        unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const filter) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Offsets in `struct seccomp_data`; of the first argument its lower half.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
const FIRST_ARGUMENT: u32 = 16;

/// The filter, in classic BPF. The kernel runs it once for each number at most whose answer does
/// not depend on arguments (5.11), and remembers.
fn program(arch: u32) -> Vec<libc::sock_filter> {
    let jump = libc::BPF_JMP | libc::BPF_K;
    let insn = |code: u32, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k };
    let load = |offset| insn(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset);
    let answer = |what| insn(libc::BPF_RET | libc::BPF_K, what);
    let errno = |errno: i32| libc::SECCOMP_RET_ERRNO | errno as u32;

    let mut tests = vec![(libc::BPF_JGE, X32)];
    tests.extend(REFUSED.iter().map(|&number| (libc::BPF_JEQ, number as u32)));
    // Where tests lead: behind them and the five of threads and processes.
    let refuse = 3 + tests.len() + 5;
    let mut program = vec![load(ARCHITECTURE), insn(jump | libc::BPF_JEQ, arch), load(NUMBER)];
    program[1].jf = (refuse - 2) as u8;
    for (test, k) in tests {
        let jt = (refuse - program.len() - 1) as u8;
        program.push(libc::sock_filter { jt, ..insn(jump | test, k) });
    }
    // Where the flags of clone3 are no filter can look; C libraries make threads by clone without it.
    program.push(libc::sock_filter { jt: 5, ..insn(jump | libc::BPF_JEQ, libc::SYS_clone3 as u32) });
    program.push(libc::sock_filter { jf: 2, ..insn(jump | libc::BPF_JEQ, libc::SYS_clone as u32) });
    program.push(load(FIRST_ARGUMENT));
    program.push(libc::sock_filter { jt: 1, ..insn(jump | libc::BPF_JSET, NEW_NAMESPACES) });
    program.push(answer(libc::SECCOMP_RET_ALLOW));
    debug_assert_eq!(program.len(), refuse);
    program.push(answer(errno(libc::EPERM)));
    program.push(answer(errno(libc::ENOSYS)));
    program
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::sync::mpsc;

    use super::*;

    const CHILD: &str = "SOFTNET_CONFINED_CHILD";

    /// What the kernel answers to a call whose arguments make no sense, so that it does nothing.
    fn errno_of(number: libc::c_long) -> i32 {
        // SAFETY: the addresses and descriptors are none, which each of these calls refuses.
        let result = unsafe { libc::syscall(number, -1, -1, -1, -1, -1, -1) };
        if result < 0 { io::Error::last_os_error().raw_os_error().unwrap() } else { 0 }
    }

    fn status(field: &str) -> String {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        status.lines().find_map(|line| line.strip_prefix(field)).unwrap().trim().into()
    }

    /// A filter stays: so a process of its own has it.
    #[test]
    fn what_is_refused_is_refused_on_every_thread() {
        if std::env::var_os(CHILD).is_none() {
            let name = "confine::tests::what_is_refused_is_refused_on_every_thread";
            let mut child = Command::new(std::env::current_exe().unwrap());
            let output = child.args([name, "--exact", "--nocapture"]).env(CHILD, "1").output().unwrap();
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(output.status.success() && text.contains("1 passed"), "{output:?}");
            return;
        }
        let refused = || -> Vec<libc::c_long> {
            REFUSED.iter().copied().filter(|&number| errno_of(number) == libc::EPERM).collect()
        };
        // One that was there before.
        let (ask, asked) = mpsc::channel::<()>();
        let (answer, answered) = mpsc::channel();
        let earlier = std::thread::spawn(move || {
            asked.recv().unwrap();
            answer.send((refused(), status("NoNewPrivs:"), status("Seccomp:"))).unwrap();
        });
        if ARCH.is_none() {
            assert_eq!(filter_system_calls().unwrap_err().kind(), io::ErrorKind::Unsupported);
            return;
        }
        filter_system_calls().unwrap();
        ask.send(()).unwrap();
        let all = (REFUSED.to_vec(), "1".to_owned(), "2".to_owned());
        assert_eq!(answered.recv().unwrap(), all);
        earlier.join().unwrap();
        // One that is made now, which is allowed as processes are, and namespaces are not.
        assert_eq!(std::thread::spawn(refused).join().unwrap(), REFUSED);
        assert_eq!(errno_of(libc::SYS_clone3), libc::ENOSYS);
        for flag in [libc::CLONE_NEWUSER, libc::CLONE_NEWNET, libc::CLONE_NEWNS] {
            // SAFETY: it is refused; if it were not, the child would only end.
            let pid = unsafe { libc::syscall(libc::SYS_clone, flag | libc::SIGCHLD, 0, 0, 0, 0) };
            if pid == 0 {
                // SAFETY: ends the child at once.
                unsafe { libc::_exit(0) };
            }
            assert_eq!((pid, io::Error::last_os_error().raw_os_error()), (-1, Some(libc::EPERM)));
        }
        if cfg!(target_arch = "x86_64") {
            assert_eq!(errno_of(libc::SYS_getpid | libc::c_long::from(X32)), libc::EPERM);
        }
        let program = Command::new("/bin/true").status().unwrap_err();
        assert_eq!(program.kind(), io::ErrorKind::PermissionDenied);
        // What is not on the list gets as far as ever.
        assert_eq!(errno_of(libc::SYS_close), libc::EBADF);
    }

    /// On a thread of its own, whose capabilities they are.
    #[test]
    fn what_a_stack_has_no_use_for_is_dropped() {
        std::thread::spawn(|| {
            let had = capabilities(None).unwrap().permitted;
            drop_capabilities().unwrap();
            let has = capabilities(None).unwrap();
            assert!(!has.permitted.intersects(CapabilitySet::SYS_ADMIN | CapabilitySet::SYS_PTRACE));
            assert_eq!(has.effective & !has.permitted, CapabilitySet::empty());
            for one in USED {
                assert_eq!(has.permitted.contains(one), had.contains(one), "{one:?}");
            }
            // It is the same a second time.
            drop_capabilities().unwrap();
            assert_eq!(capabilities(None).unwrap(), has);
        })
        .join()
        .unwrap();
    }
}
