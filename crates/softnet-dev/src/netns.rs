//! Network namespaces without names: held by a descriptor only, so that nothing stays behind when the process ends,
//! whatever ended it.
//!
//! Any thread may call this. A namespace is a property of a thread in Linux: sockets, netlink and sysctls that a
//! thread opens belong to the namespace it is in at that moment and stay there afterwards.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::resume_unwind;

use rustix::fs::fstat;
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};

use crate::netlink::Netlink;
use crate::sys_error::SysError;

/// A network namespace, alive as long as this (or a thread or socket in it) is.
#[derive(Debug)]
pub struct NetNs {
    fd: OwnedFd,
}

impl NetNs {
    /// A fresh, anonymous namespace whose loopback interface is up.
    ///
    /// # Errors
    /// Without CAP_SYS_ADMIN the kernel refuses (`PermissionDenied`); the message names it.
    pub fn new() -> io::Result<Self> {
        std::thread::scope(|scope| {
            let maker = std::thread::Builder::new().name("netns-new".into()).spawn_scoped(scope, || {
                // SAFETY: unsharing the network namespace affects nothing but which namespace this thread, which
                // ends right after, opens sockets in; no descriptor table or memory is touched.
                unsafe { unshare_unsafe(UnshareFlags::NEWNET) }.map_err(|errno| {
                    SysError::new("create a network namespace", errno.into()).needs("CAP_SYS_ADMIN")
                })?;
                let ns = Self::current()?;
                Netlink::new()?.set_up("lo")?;
                Ok(ns)
            })?;
            maker.join().unwrap_or_else(|panic| resume_unwind(panic))
        })
    }

    /// The namespace the calling thread is in.
    pub fn current() -> io::Result<Self> {
        let path = "/proc/thread-self/ns/net";
        let file = File::open(path).map_err(|error| SysError::new(format!("open {path}"), error))?;
        Ok(NetNs { fd: file.into() })
    }

    /// Moves the calling thread into the namespace, for good. Threads it spawns later start there too.
    ///
    /// # Errors
    /// Without CAP_SYS_ADMIN the kernel refuses (`PermissionDenied`); the message names it.
    pub fn enter(&self) -> io::Result<()> {
        move_into_link_name_space(self.fd(), Some(LinkNameSpaceType::Network)).map_err(|errno| {
            SysError::new("enter a network namespace", errno.into()).needs("CAP_SYS_ADMIN").into()
        })
    }

    /// Runs `work` inside the namespace, on a thread of its own, and returns what it returned. The calling thread
    /// stays where it is. A panic in `work` goes on in the caller.
    ///
    /// # Errors
    /// When the thread can't be made or can't enter the namespace; `work` has not run then.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> io::Result<T> {
        std::thread::scope(|scope| {
            let runner = std::thread::Builder::new()
                .name("netns-run".into())
                .spawn_scoped(scope, || self.enter().map(|()| work()))?;
            runner.join().unwrap_or_else(|panic| resume_unwind(panic))
        })
    }

    /// Whether the calling thread is in the namespace.
    pub fn is_current(&self) -> io::Result<bool> {
        let (this, current) = (fstat(&self.fd)?, fstat(&Self::current()?.fd)?);
        Ok((this.st_dev, this.st_ino) == (current.st_dev, current.st_ino))
    }

    /// The descriptor that holds the namespace.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// A second holder of the same namespace.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(NetNs { fd: self.fd.try_clone()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use softnet_testkit::net_allowed;

    #[test]
    fn a_new_namespace_has_loopback_up_and_nothing_else() {
        if !net_allowed() {
            return;
        }
        let ns = NetNs::new().unwrap();
        let links = ns.run(|| Netlink::new().unwrap().links().unwrap()).unwrap();
        assert_eq!(links.len(), 1, "{links:?}");
        assert_eq!(links[0].name, "lo");
        assert!(links[0].up);
    }

    #[test]
    fn run_leaves_the_caller_where_it_was_and_enter_does_not() {
        if !net_allowed() {
            return;
        }
        let here = NetNs::current().unwrap();
        let ns = NetNs::new().unwrap();
        assert!(ns.run(|| ns.is_current().unwrap() && !here.is_current().unwrap()).unwrap());
        assert!(here.is_current().unwrap() && !ns.is_current().unwrap());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                ns.enter().unwrap();
                assert!(ns.is_current().unwrap());
            });
        });
    }
}
