//! What `softnet run` tells the supervisor that started it: systemd's notification protocol (`sd_notify(3)`).
//!
//! A datagram of `KEY=value` lines to the Unix socket that `NOTIFY_SOCKET` names; without it nothing is told. A supervisor
//! that cannot be told is no reason not to run: it notices by itself.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use softnet::log::{self, Level};
use softnet_dev::process::Signals;

/// How long one that can't start waits before it says so by its end.
const BETWEEN_STARTS: Duration = Duration::from_secs(1);

/// Tells that the instance serves: systemd starts what comes after a unit of `Type=notify` now. One
/// that `took_over` is the unit's main process from now on.
pub(crate) fn ready(status: &str, took_over: bool) {
    tell(&readiness(status, took_over.then(std::process::id)));
}

/// It can't start, and its unit has it started again at once, since one that was killed must not wait: it waits itself,
/// so that it tries once a second. A signal ends that.
pub(crate) fn pause(signals: &Signals) {
    if std::env::var_os("NOTIFY_SOCKET").is_some() {
        signals.wait(Some(BETWEEN_STARTS));
    }
}

/// That it serves; and that it is the main process, by its number.
fn readiness(status: &str, main: Option<u32>) -> String {
    let main = main.map_or_else(String::new, |pid| format!("MAINPID={pid}\n"));
    format!("{main}READY=1\nSTATUS={}\n", one_line(status))
}

/// Tells that it stops because it was asked to.
pub(crate) fn stopping() {
    tell("STOPPING=1\nSTATUS=giving its interfaces back\n");
}

fn tell(message: &str) {
    let Some(socket) = std::env::var_os("NOTIFY_SOCKET") else { return };
    if let Err(error) = send(&socket, message) {
        log::say(Level::Warn, format_args!("NOTIFY_SOCKET={}: {error}", socket.display()));
    }
}

/// A line that begins another key would be taken for one.
fn one_line(text: &str) -> String {
    text.replace('\n', " ")
}

/// Sends `message` to `socket`: a path, or a name in the abstract namespace behind `@`.
fn send(socket: &OsStr, message: &str) -> io::Result<()> {
    let address = match socket.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        [b'/', ..] => SocketAddr::from_pathname(socket)?,
        _ => return Err(io::Error::other("neither an absolute path nor a name behind @")),
    };
    let sender = UnixDatagram::unbound()?;
    // One that takes nothing must not keep the router from running.
    sender.set_nonblocking(true)?;
    sender.send_to_addr(message.as_bytes(), &address).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(supervisor: &UnixDatagram) -> String {
        let mut message = [0; 256];
        let len = supervisor.recv(&mut message).unwrap();
        String::from_utf8_lossy(&message[..len]).into_owned()
    }

    #[test]
    fn a_supervisor_is_told_by_path_and_by_abstract_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let by_path = UnixDatagram::bind(&path).unwrap();
        send(path.as_os_str(), "READY=1\n").unwrap();
        assert_eq!(received(&by_path), "READY=1\n");
        let name = format!("softnet-test-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let abstract_one = UnixDatagram::bind_addr(&address).unwrap();
        send(OsStr::new(&format!("@{name}")), "STOPPING=1\n").unwrap();
        assert_eq!(received(&abstract_one), "STOPPING=1\n");
    }

    /// It is told, and nothing waits for it.
    #[test]
    fn a_supervisor_that_cannot_be_told_is_an_error_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        assert_eq!(send(path.as_os_str(), "x").unwrap_err().kind(), io::ErrorKind::NotFound);
        assert!(send(OsStr::new("notify"), "x").is_err());
        assert!(send(OsStr::new(""), "x").is_err());
        let full = UnixDatagram::bind(&path).unwrap();
        let error = (0..100_000).find_map(|_| send(path.as_os_str(), "x").err()).unwrap();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        drop(full);
    }

    #[test]
    fn one_that_took_over_is_the_main_process() {
        assert_eq!(readiness("running", None), "READY=1\nSTATUS=running\n");
        assert_eq!(readiness("running", Some(77)), "MAINPID=77\nREADY=1\nSTATUS=running\n");
    }

    #[test]
    fn a_status_is_one_line() {
        assert_eq!(one_line("a\nREADY=1"), "a READY=1");
    }
}
