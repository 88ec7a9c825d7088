//! What is asked of a running instance, and what it answers: the messages of the control socket, as plain data.
//!
//! Only types: what they mean is checked by the code that carries them out.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::capture::SetCapture;
use super::routing::{SetAddr, SetLink, SetNeigh, SetRoute};
use super::show::{NtupleRow, RssRow, Table};
use crate::config::{Context, Knobs, SteeringMode};
pub use crate::control::hand_over::giver::TakeOver;

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
    /// A change of steering, answered when it is done: by a list of the
    /// [`SteeringRow`](crate::control::show::SteeringRow)s it was about.
    Steering(SetSteering),
    /// A change of a device's disciplines, answered when it is done: by a list of its [`QdiscRow`](crate::control::show::QdiscRow)s.
    Qdisc(SetQdisc),
    /// A change of a filter, answered when it is done: by a list of the device's [`FilterRow`](crate::control::show::FilterRow)s.
    Filter(SetFilter),
    /// A change of a device's RSS, answered when it is done: by an [`RssAnswer`].
    Rss(SetRss),
    /// A change of a device's ntuple filters, answered when it is done: by an [`NtupleAnswer`].
    Ntuple(SetNtuple),
    /// A change of routes, answered when packets follow it: by a [`LiveAnswer`](crate::control::LiveAnswer).
    Route(SetRoute),
    /// Which way packets to an address go: answered by a [`RouteLookup`](crate::control::RouteLookup).
    Lookup(IpAddr),
    /// A change of neighbours, answered when it is done: by a [`LiveAnswer`](crate::control::LiveAnswer).
    Neigh(SetNeigh),
    /// A change of addresses, answered when it is done: by a [`LiveAnswer`](crate::control::LiveAnswer).
    Addr(SetAddr),
    /// A change of a device's link, answered when it is done: by a [`LiveAnswer`](crate::control::LiveAnswer).
    Link(SetLink),
    /// The configuration is to be read again, answered when the difference is applied: by a
    /// [`Reloaded`](crate::control::Reloaded).
    Reload,
    /// Another process is to take this one's place: answered by what this one has, after which the
    /// connection is theirs.
    TakeOver(TakeOver),
    /// Packets from now on: answered by a [`CaptureInfo`](crate::control::CaptureInfo), after which
    /// the connection is the capture's.
    Capture(SetCapture),
}

impl Request {
    /// Whether it tells what is there, and changes nothing. What packets contain is more than that.
    pub(crate) fn only_looks(&self) -> bool {
        matches!(self, Request::Show(_) | Request::Lookup(_))
    }
}

/// What to do to a discipline or a filter, in `tc`'s words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    /// Set it where none is set yet.
    Add,
    /// Set it; a discipline of the same kind keeps its packets.
    Replace,
    /// Go back to the default.
    Del,
}

/// A change of a device's disciplines:
/// `{"dev": "eth1", "action": "replace", "qdisc": "tbf rate 10mbit burst 15kb latency 50ms"}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
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
#[serde(deny_unknown_fields)]
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
#[serde(deny_unknown_fields)]
pub struct SetMirred {
    /// Whether packets are to leave by the other device, or to come in by it.
    pub direction: Direction,
    /// What to do with the packets.
    pub action: MirredAction,
    /// The other device.
    pub dev: String,
}

/// A change of how a device spreads flows over its RX queues: `{"dev": "eth1", "change": "equal
/// 4"}`. It is the device's, and gone with its interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetRss {
    /// The device.
    pub dev: String,
    /// The change, in the words of `ethtool -X`.
    pub change: String,
}

/// What became of a [`SetRss`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RssAnswer {
    /// The context that was made, if one was.
    pub context: Option<u32>,
    /// How the device spreads flows now.
    pub rss: Vec<RssRow>,
}

/// A change of a device's ntuple filters: `{"dev": "eth1", "change": "flow-type udp4 dst-port 53
/// action 2"}`. They are the device's, and gone with its interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetNtuple {
    /// The device.
    pub dev: String,
    /// The change, in the words of `ethtool -N`.
    pub change: String,
}

/// What became of a [`SetNtuple`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NtupleAnswer {
    /// Where the filter is, or was.
    pub location: u32,
    /// The filters that the device has now.
    pub filters: Vec<NtupleRow>,
}

/// Knobs of interrupt mitigation, for a device's instances or one; what is left out stays as it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetKnobs {
    /// What to change. For a device it holds for all queues, and is remembered when the device is opened anew, as it is
    /// for an instance's queue.
    #[serde(flatten)]
    pub target: Target,
    /// The values.
    #[serde(flatten)]
    pub knobs: Knobs,
}

/// A change of what a device's RX queues steer, or one instance's: `{"dev": "eth1", "rps_cpus":
/// "0-3"}`. What is left out stays as it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetSteering {
    /// What to change. For a device it holds for all queues, those that were set for themselves
    /// included; either is remembered when the device is opened anew.
    #[serde(flatten)]
    pub target: Target,
    /// What chooses, where the next two set nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steering: Option<SteeringMode>,
    /// The CPU whose worker goes on with everything; `none`: no such.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processing_cpu: Option<String>,
    /// The CPUs over whose workers flows are spread, `0-3,8`; empty or `none`: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rps_cpus: Option<String>,
    /// Entries of each queue's table of flows that follow their consumers; 0: none does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rps_flow_cnt: Option<u32>,
}

/// A change of a running instance: `{"dev": "eth1", "threaded": "busy-poll"}` or `{"napi": 8193, "threaded": …}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
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

/// The direction of packets through a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// They come in by it.
    Ingress,
    /// They leave by it.
    Egress,
}

impl Direction {
    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Direction::Ingress => "ingress",
            Direction::Egress => "egress",
        }
    }
}

/// What `mirred` does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MirredAction {
    /// Sends the packet elsewhere.
    Redirect,
    /// Sends a copy; the packet goes on.
    Mirror,
}

impl MirredAction {
    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            MirredAction::Redirect => "redirect",
            MirredAction::Mirror => "mirror",
        }
    }
}
