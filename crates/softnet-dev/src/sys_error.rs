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
            let grant = format!(
                "needs {capability}: run as root, or grant it with `setcap {}+ep {program}`",
                capability.to_lowercase()
            );
            self.detail = if self.detail.is_empty() { grant } else { format!("{}; {grant}", self.detail) };
        }
        self
    }

    /// The kernel's error number, if it was the kernel that refused.
    pub fn errno(&self) -> Option<i32> {
        self.source.raw_os_error()
    }

    /// Whether the request failed for want of privilege.
    pub fn is_permission(&self) -> bool {
        self.source.kind() == io::ErrorKind::PermissionDenied
    }
}

impl fmt::Display for SysError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what, self.source)?;
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
        assert!(text.contains("needs CAP_NET_ADMIN") && text.contains("setcap cap_net_admin+ep"), "{text}");
        assert_eq!(io::Error::from(error).kind(), io::ErrorKind::PermissionDenied);

        let other = SysError::new("x", io::Error::from_raw_os_error(libc::ENODEV)).needs("CAP_NET_ADMIN");
        assert!(!other.to_string().contains("CAP_"), "{other}");
    }
}
