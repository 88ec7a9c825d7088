//! Rows of `show steering`, `show rss` and `show ntuple`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// What an RX queue does with what it brings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct SteeringRow {
    /// Its NAPI instance: `eth1-0`.
    pub name: String,
    /// That one's number.
    pub id: u32,
    /// Device.
    pub dev: String,
    /// RX queue.
    pub queue: u16,
    /// After `auto: ` if it was chosen automatically. `none`: the thread that polls it goes on with
    /// it; `hand-off`: all to one worker; `rps`: flows over several; `rps+rfs`: flows after their
    /// consumers.
    pub mode: String,
    /// Of what was chosen automatically: why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// And what it would take for another choice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub otherwise: Option<String>,
    /// ns that a thread spends on waking a worker here; 0: not measured.
    #[serde(default)]
    pub wake_ns: u64,
    /// Samples of what packets cost that did not count: the thread lost its CPU meanwhile.
    #[serde(default)]
    pub odd_samples: u64,
    /// Knob: the CPU whose worker gets everything.
    pub processing_cpu: Option<u32>,
    /// Knob: the CPUs over whose workers flows are spread.
    pub rps_cpus: Vec<u32>,
    /// Knob: entries of its table of flows.
    pub rps_flow_cnt: u32,
    /// Flows that went to another worker, after their consumers.
    pub moves: u64,
    /// Filters of the device that have flows arrive near their consumers; none if it takes none, or
    /// RFS is off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filters: Option<FlowFilterRow>,
    /// What each worker got, those that got nothing left out.
    pub workers: Vec<SteeredRow>,
    /// What keeps a knob that is set from acting.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warning: Option<String>,
}

/// Filters that accelerated RFS set, by the RX queue that they lead to.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct FlowFilterRow {
    /// Flows that they send to the queue now.
    pub now: u64,
    /// Flows that one was set for so far.
    pub set: u64,
    /// Of these, flows that went quiet, so that it was deleted.
    pub expired: u64,
    /// Flows that arrive at this queue, and no filter sent elsewhere: there was no room, or the
    /// device refused.
    pub refused: u64,
    /// Times that packets in a flow's old queue were waited for in vain, for 0.2 s: some may have been
    /// overtaken.
    pub late: u64,
}

/// What an RX queue steered to a worker.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct SteeredRow {
    /// Its thread's name.
    pub worker: String,
    /// Packets that were put on its backlog.
    pub packets: u64,
    /// Times that its backlog was empty before, so that it was to be told.
    pub wakeups: u64,
    /// Packets that were dropped, since its backlog was full (`netdev_max_backlog`).
    pub dropped: u64,
    /// Packets that were dropped, since all backlogs together held as much of packet memory as they
    /// may.
    #[serde(default)]
    pub no_memory: u64,
    /// Packets that were dropped, since their flow had more than its share of it.
    pub flow_limited: u64,
    /// Polls that collected nothing, since its backlog was full and all packets are for it.
    #[serde(default)]
    pub held: u64,
    /// Packets in its backlog now, of all RX queues.
    pub backlog: u64,
    /// Frames of packet memory that these take.
    #[serde(default)]
    pub backlog_frames: u64,
}

/// How a device spreads flows over its RX queues, by one of its contexts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RssRow {
    /// Device.
    pub dev: String,
    /// 0 is the main one; to others filters lead.
    pub context: u32,
    /// RX queues of the device.
    pub queues: u32,
    /// The indirection table: the low bits of a packet's hash choose the entry, which is an RX
    /// queue.
    pub table: Vec<u32>,
    /// The hash function: `toeplitz`.
    pub hfunc: String,
    /// `none`; `symmetric-xor` or `symmetric-or-xor`: both directions of a flow have one hash.
    pub xfrm: String,
    /// What is hashed, by kind of flow (`udp4`): `sd`, addresses, or `sdfn`, ports as well.
    pub fields: BTreeMap<String, String>,
    /// The key, `6d:5a:…`; empty if the device does not tell.
    pub hkey: String,
    /// Why there is nothing to tell: the device has no RSS, or is not open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// Why the device does not have what is set for it (the key `rss` of its configuration, and `set
    /// rss` before its interface went away).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warning: Option<String>,
}

/// A filter of a device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct NtupleRow {
    /// Device.
    pub dev: String,
    /// Where it is; the filter with the lowest location that takes a packet decides.
    pub location: u32,
    /// The filter, in the words that make it.
    pub rule: String,
    /// Packets that it took; none if the device does not count them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub packets: Option<u64>,
    /// Accelerated RFS set it, for one flow.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub rfs: bool,
}
