//! The error of a request to the kernel: what was asked, what the kernel said, and what mends it.
//!
//! Unlike a bare [`std::io::Error`] it says which request failed, and names the missing privilege; unlike a wrapped
//! one it keeps the error number for callers that act on it.

use std::fmt;
use std::io;

/// A failed request to the kernel.
#[derive(Debug)]
pub struct SysError {
    what: String,
    source: io::Error,
    detail: String,
}

/// `Result` of a request to the kernel.
pub type SysResult<T> = Result<T, SysError>;

/// What it takes to run a stack on AF_XDP devices.
const NEEDED: [&str; 4] = ["cap_net_admin", "cap_bpf", "cap_net_raw", "cap_ipc_lock"];

impl SysError {
    /// `what` is the request in words ("set eth0 up"); `source` what the kernel answered.
    pub fn new(what: impl Into<String>, source: io::Error) -> Self {
        SysError { what: what.into(), source, detail: String::new() }
    }

    /// The error that the last system call of this thread left in `errno`.
    pub fn last(what: impl Into<String>) -> Self {
        Self::new(what, io::Error::last_os_error())
    }

    /// Adds what the kernel or we know beyond the error number (a verifier's log, an extended acknowledgement).
    #[must_use]
    pub fn detail(mut self, detail: impl Into<String>) -> Self {
        self.detail = detail.into();
        self
    }

    /// Adds, if the kernel refused for want of privilege, which capability it wanted and what grants it.
    #[must_use]
    pub fn needs(mut self, capability: &str) -> Self {
        if matches!(self.errno(), Some(libc::EPERM | libc::EACCES)) {
            let program = std::env::current_exe()
                .map_or_else(|_| "<program>".to_owned(), |path| path.display().to_string());
            // `setcap` replaces what was granted before, so it must name all that softnet needs. What takes more than
            // that (namespaces) is root's.
            let grant = match NEEDED.iter().any(|needed| capability.to_lowercase().contains(needed)) {
                true => format!(
                    "needs {capability}: run as root, or grant it with `sudo setcap {}+ep {program}`",
                    NEEDED.join(",")
                ),
                false => format!("needs {capability}: run as root, such as `sudo {program} …`"),
            };
            self.detail = if self.detail.is_empty() { grant } else { format!("{}; {grant}", self.detail) };
        }
        self
    }

    /// The kernel's error number, if it was the kernel that refused.
    pub fn errno(&self) -> Option<i32> {
        self.source.raw_os_error()
    }

    /// Whether what was asked for is not there, or is better not asked for.
    pub(crate) fn is_unsupported(&self) -> bool {
        self.source.kind() == io::ErrorKind::Unsupported
    }

    /// Whether the request failed for want of privilege.
    pub fn is_permission(&self) -> bool {
        self.source.kind() == io::ErrorKind::PermissionDenied
    }
}

/// What mends `error`, to be written behind it, if it is that the process has as many files open as
/// it may; else nothing.
pub fn files_hint(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::EMFILE) => format!(
            ": this process may have {} (RLIMIT_NOFILE); a device takes about a dozen for each queue pair; raise the limit, \
             such as by `ulimit -n` or systemd's LimitNOFILE=",
            crate::process::files_limit().map_or("no more open files".into(), |n| format!("{n} files open")),
        ),
        _ => String::new(),
    }
}

impl fmt::Display for SysError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}{}", self.what, self.source, files_hint(&self.source))?;
        if !self.detail.is_empty() {
            write!(f, ": {}", self.detail)?;
        }
        Ok(())
    }
}

impl std::error::Error for SysError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}

impl From<SysError> for io::Error {
    fn from(error: SysError) -> Self {
        io::Error::new(error.source.kind(), error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_the_missing_privilege_and_keeps_the_number() {
        let error =
            SysError::new("set eth9 up", io::Error::from_raw_os_error(libc::EPERM)).needs("CAP_NET_ADMIN");
        assert_eq!(error.errno(), Some(libc::EPERM));
        let text = error.to_string();
        assert!(text.starts_with("set eth9 up: "), "{text}");
        assert!(text.contains("needs CAP_NET_ADMIN: run as root"), "{text}");
        let all = "setcap cap_net_admin,cap_bpf,cap_net_raw,cap_ipc_lock+ep";
        assert!(text.contains(all), "granting one alone would take the others away: {text}");
        assert_eq!(io::Error::from(error).kind(), io::ErrorKind::PermissionDenied);

        let files = SysError::new("open eth9", io::Error::from_raw_os_error(libc::EMFILE)).to_string();
        assert!(files.contains(" files open (RLIMIT_NOFILE); "), "{files}");

        let other = SysError::new("x", io::Error::from_raw_os_error(libc::ENODEV)).needs("CAP_NET_ADMIN");
        assert!(!other.to_string().contains("CAP_") && !other.to_string().contains("RLIMIT"), "{other}");
    }
}
