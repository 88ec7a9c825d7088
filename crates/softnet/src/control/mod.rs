//! The control socket: how the `softnet` program asks a running instance.
//!
//! One request and one answer to a line, both JSON: `{"show": "dev"}` brings `{"ok": …}` or `{"error": "…"}`. The
//! socket is a Unix stream socket, `/run/softnet/<name>.sock` unless configured otherwise, for its owner only.
//!
//! * An instance binds before it touches an interface, so that a second one of the
//!   same name is refused in time, and serves once it runs.
//! * The program [asks](Client::ask) through a [`Client`].
//!
//! Invariant: at most one live instance has a given socket; a socket file that no process listens on is replaced.

pub(crate) mod capture;
mod client;
pub(crate) mod commands;
mod error;
pub(crate) mod hand_over;
pub(crate) mod listener;
mod requests;
mod routing;
pub(crate) mod server;
pub mod show;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

pub use crate::driver::LinkChange;
pub use crate::live::LiveError;
pub use capture::{CaptureInfo, CaptureStream, SetCapture, end_of_capture};
pub use client::{Client, ClientError};
pub use error::ControlError;
pub use hand_over::TakeOverError;
pub use listener::BindError;
pub(crate) use listener::Listener;
pub use requests::{
    Action, Direction, MirredAction, NtupleAnswer, Request, Response, RssAnswer, Set, SetFilter, SetKnobs,
    SetMirred, SetNtuple, SetQdisc, SetRss, SetSteering, TakeOver, Target,
};
pub use routing::{
    LiveAction, LiveAnswer, LookupHop, NextHop, Reloaded, RouteLookup, RouteType, SetAddr, SetLink, SetNeigh,
    SetRoute,
};
pub(crate) use server::{Handler, Server};

use listener::{Probe, may_be, probe};

/// Bytes of the longest request.
const MAX_REQUEST: usize = 4096;

/// Names of the instances that listen in `directory`, sorted. Empty if there is no such directory.
pub fn instances(directory: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        sockets(directory).filter(|(_, is_live)| *is_live).map(|(path, _)| name(&path)).collect();
    names.sort();
    names
}

/// The control sockets in `directory`, and whether an instance is known to listen.
fn sockets(directory: &Path) -> impl Iterator<Item = (PathBuf, bool)> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let paths = entries.map(|entry| entry.path());
    paths.filter(|path| path.extension().is_some_and(|extension| extension == "sock")).map(|path| {
        let is_live = match probe(&path) {
            Ok(Probe::Listens(_)) => true,
            // One that is not ours to ask may run too, or be dead.
            Ok(Probe::Denied) => is_listed(&path),
            Ok(Probe::Gone) | Err(_) => false,
        };
        (path, is_live)
    })
}

fn name(path: &Path) -> String {
    path.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}

/// Whether a process listens on `path` (or on the same name elsewhere) in this network namespace, as the kernel tells any user. (The sockets of others
/// work across namespaces, but are only listed in their own.)
fn is_listed(path: &Path) -> bool {
    // __SO_ACCEPTCON, in the column of flags.
    const LISTENS: u32 = 1 << 16;
    let listed = std::fs::read("/proc/thread-self/net/unix").unwrap_or_default();
    let listed = String::from_utf8_lossy(&listed);
    let mut lines = listed.lines().filter_map(|line| {
        // Num RefCount Protocol Flags Type St Inode Path
        let flags = line.split_whitespace().nth(3)?;
        let flags = u32::from_str_radix(flags, 16).ok()?;
        (flags & LISTENS != 0).then(|| line.find(" /").map(|at| &line[at + 1..])).flatten()
    });
    lines.any(|listed| may_be(Path::new(listed), path))
}
