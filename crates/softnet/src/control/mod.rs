//! The control socket: how the `softnet` program asks a running instance.
//!
//! One request and one answer to a line, both JSON: `{"show": "dev"}` brings `{"ok": …}` or `{"error": "…"}`. The
//! socket is a Unix stream socket, `/run/softnet/<name>.sock` unless configured otherwise, for its owner only.
//!
//! * An instance binds before it touches an interface, so that a second one of the
//!   same name is refused in time, and serves once it runs.
//! * The program [asks](client::Client::ask) through a [`Client`].
//!
//! Invariant: at most one live instance has a given socket; a socket file that nobody listens on is replaced.

pub mod client;
pub mod commands;
mod listener;
pub mod server;
pub mod show;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

pub use client::Client;
pub use listener::{BindError, Listener};
pub use server::Server;

use crate::config::Context;
use crate::control::show::Table;
use crate::device::Knobs;
use crate::device::filter::{Direction, MirredAction};
use crate::tx::qdisc::Action;
use listener::{Probe, may_be, probe};

/// Where instances put their sockets.
pub const DIRECTORY: &str = "/run/softnet";

/// Bytes of the longest request.
const MAX_REQUEST: usize = 4096;

/// What can be asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Request {
    /// A table, see [`Table`] for what it brings.
    Show(Table),
    /// A change, answered when it is done: by a list of the [`NapiRow`](crate::control::show::NapiRow)s it was about.
    Set(Set),
    /// Knobs of polling, answered like [`Set`](Self::Set).
    Knobs(SetKnobs),
    /// A change of a device's disciplines, answered when it is done: by a list of its [`QdiscRow`](crate::control::show::QdiscRow)s.
    Qdisc(SetQdisc),
    /// A change of a filter, answered when it is done: by a list of the device's [`FilterRow`](crate::control::show::FilterRow)s.
    Filter(SetFilter),
}

/// A change of a device's disciplines:
/// `{"dev": "eth1", "action": "replace", "qdisc": "tbf rate 10mbit burst 15kb latency 50ms"}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetQdisc {
    /// The device. What is set is remembered when it is opened anew.
    pub dev: String,
    /// A TX queue under `mq`; without it, the root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<u16>,
    /// What to do.
    pub action: Action,
    /// The discipline in `tc`'s words; none to delete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub qdisc: Option<String>,
}

/// A change of the filter in one of a device's hooks:
/// `{"dev": "eth1", "parent": "egress", "action": "add", "mirred": {"direction": "egress", "action": "mirror", "dev": "eth2"}}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetFilter {
    /// The device. What is set holds whether its interface is there or not.
    pub dev: String,
    /// Which of its hooks.
    pub parent: Direction,
    /// What to do.
    pub action: Action,
    /// The filter's action, to be applied to all packets; none to delete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mirred: Option<SetMirred>,
}

/// The action `mirred` of a filter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetMirred {
    /// Whether packets are to leave by the other device, or to come in by it.
    pub direction: Direction,
    /// What to do with the packets.
    pub action: MirredAction,
    /// The other device.
    pub dev: String,
}

/// Knobs of interrupt mitigation, for a device's instances or one; what is left out stays as it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetKnobs {
    /// What to change. For a device it holds for all queues, and is remembered when the device is opened anew, as it is
    /// for an instance's queue.
    #[serde(flatten)]
    pub target: Target,
    /// The values.
    #[serde(flatten)]
    pub knobs: Knobs,
}

/// A change of a running instance: `{"dev": "eth1", "threaded": "busy-poll"}` or `{"napi": 8193, "threaded": …}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Set {
    /// What to change.
    #[serde(flatten)]
    pub target: Target,
    /// In which context to poll it. For a device it holds for all queues, those that were set for themselves included;
    /// either is remembered when the device is opened anew.
    pub threaded: Context,
}

/// What a [`Set`] is about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Target {
    /// A device, by name.
    Dev(String),
    /// A NAPI instance, by id.
    Napi(u32),
}

/// What is answered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Response {
    /// The answer.
    Ok(serde_json::Value),
    /// Why there is none.
    Error(String),
}

/// Who answers requests. Called by the control thread, one request at a time; it may take locks of the control
/// plane, and must not make a worker wait.
pub trait Handler: Send + Sync {
    /// The answer, or why there is none.
    fn request(&self, request: Request) -> Result<serde_json::Value, String>;

    /// The same as text, for answers that are too large to be built as values first.
    fn answer(&self, request: Request) -> Result<String, String> {
        serde_json::to_string(&self.request(request)?).map_err(|error| error.to_string())
    }
}

/// The control socket of the instance `name`.
pub fn socket_path(name: &str) -> PathBuf {
    Path::new(DIRECTORY).join(format!("{name}.sock"))
}

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
