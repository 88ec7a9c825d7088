//! `tbf`: a token bucket before a FIFO, and a second, small one for the peak rate (`net/sched/sch_tbf.c`).
//!
//! A bucket holds what may still be sent, fills at its rate and is capped at its depth. The packet at the head leaves
//! if both hold enough for it; else everything waits, so that nothing shorter passes it. Tokens are counted in bytes
//! times 10^9, of which a rate in bytes per second brings a whole number each nanosecond. So nothing is rounded: for
//! all t, bytes sent are at most burst + rate·t, and no token is lost while packets wait.
//!
//! A packet that is dequeued waits no nanosecond longer than that asks for. But a wake-up for each packet costs more than the
//! packet: where several may leave within [`SLACK`], [`next_event`](Qdisc::next_event) asks for one for all of them, for as
//! many as wait, and never so late that the bucket could be full. So the rate is kept exactly, and the last packet of a backlog
//! leaves when it may.

use std::sync::Arc;

use super::fifo::{append, purge, push};
use super::{DevParams, Qdisc, QdiscStats, Quota, Rate, Size, Spec, SpecError, Time, ToFree, Verdict};
use crate::gso::pkt_len;
use crate::skb::{Batch, DropReason, Skb, SkbList};

/// Tokens that a byte costs; also ns in a second.
const SECOND: u128 = 1_000_000_000;

/// How much later than it may a packet may be asked to leave, in ns, so that others leave with it: little beside what it has
/// waited in a queue in which others wait behind it.
const SLACK: u128 = 100_000;

/// Parameters of a `tbf`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TbfSpec {
    /// Long-term rate.
    pub rate: Rate,
    /// Depth of the bucket: what may leave at once. A longer packet never may.
    pub burst: Size,
    /// How much may wait.
    pub limit: TbfLimit,
    /// Limit to the speed at which a burst leaves.
    pub peak: Option<TbfPeak>,
}

/// How much may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TbfLimit {
    /// So many bytes.
    Limit(Size),
    /// As many bytes as leave in this time, burst included.
    Latency(Time),
}

/// The second bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TbfPeak {
    /// Its rate.
    pub peakrate: Rate,
    /// Its depth. A longer packet is never sent.
    pub mtu: Size,
}

impl TbfSpec {
    /// Whether the parameters go together.
    pub fn check(&self) -> Result<(), SpecError> {
        let peak = self.peak;
        let mistakes = [
            (self.rate.0 == 0, "expected a rate above 0"),
            (self.burst.0 == 0, "expected a burst above 0"),
            (peak.is_some_and(|p| p.peakrate <= self.rate), "expected a peakrate above rate"),
            (peak.is_some_and(|p| p.mtu.0 == 0), "expected an mtu above 0"),
        ];
        let mistake = mistakes.into_iter().find(|(is_made, _)| *is_made);
        mistake.map_or(Ok(()), |(_, what)| Err(SpecError::Tbf(what)))
    }

    /// Bytes of the longest frame that can pass, and which parameter has it so.
    pub(super) fn longest(&self) -> (&'static str, u32) {
        let peak = self.peak.map(|peak| ("mtu", peak.mtu.0));
        let all = [("burst", self.burst.0), ("limit", self.limit())].into_iter().chain(peak);
        all.min_by_key(|(_, bytes)| *bytes).unwrap_or(("burst", self.burst.0))
    }

    /// Bytes that may wait.
    fn limit(&self) -> u32 {
        match self.limit {
            TbfLimit::Limit(Size(limit)) => limit,
            TbfLimit::Latency(Time(latency)) => {
                let bytes = |rate: Rate, depth: Size| {
                    u128::from(rate.0) * u128::from(latency) / SECOND + u128::from(depth.0)
                };
                let limit = bytes(self.rate, self.burst);
                let limit = self.peak.map_or(limit, |p| limit.min(bytes(p.peakrate, p.mtu)));
                u32::try_from(limit).unwrap_or(u32::MAX)
            }
        }
    }
}

/// A bucket.
struct Bucket {
    rate: u128,
    depth: u128,
    tokens: u128,
    /// When it held `tokens`; before the first packet it is simply full.
    since: Option<u64>,
}

impl Bucket {
    fn full(rate: Rate, depth: Size) -> Self {
        let depth = u128::from(depth.0) * SECOND;
        Bucket { rate: rate.0.into(), depth, tokens: depth, since: None }
    }

    /// What it holds at `now`.
    fn tokens(&self, now: u64) -> u128 {
        // A clock that goes back fills nothing.
        let filled = self.since.map_or(0, |since| u128::from(now.saturating_sub(since)) * self.rate);
        self.depth.min(self.tokens + filled)
    }

    /// ns from `now` until `len` bytes may leave. A packet that is longer than the bucket is deep waits for a full one: it
    /// was queued before a change, and must not stop the queue for ever.
    fn wait(&self, now: u64, len: u64) -> u64 {
        let lacks = self.depth.min(u128::from(len) * SECOND).saturating_sub(self.tokens(now));
        // Dividing 128 bits is not cheap, and mostly there is nothing to divide.
        if lacks == 0 { 0 } else { lacks.div_ceil(self.rate).try_into().unwrap_or(u64::MAX) }
    }

    /// How many bytes to let leave at once, if a packet of `len` does and `backlog` bytes wait, it included: as many packets of
    /// that length as the rate brings within [`SLACK`], and no more of the bucket than leaves three quarters of the room that it
    /// has beside one packet to whatever else is late.
    fn run(&self, len: u64, backlog: u64) -> u64 {
        let room = (self.depth / SECOND).saturating_sub(len.into()) / 4;
        let more = (self.rate * SLACK / SECOND).min(room) / u128::from(len.max(1));
        len.saturating_mul(1 + u64::try_from(more).unwrap_or(u64::MAX)).min(backlog).max(len)
    }

    /// Pays for a packet that may leave at `now`.
    fn pay(&mut self, now: u64, len: usize) {
        self.tokens = self.tokens(now).saturating_sub(len as u128 * SECOND);
        self.since = self.since.max(Some(now));
    }
}

/// A `tbf`.
pub struct Tbf {
    list: SkbList,
    limit: u32,
    /// Longest packet that fits both buckets.
    max_size: u32,
    bucket: Bucket,
    peak: Option<Bucket>,
    stats: Arc<QdiscStats>,
}

impl Tbf {
    /// One with full buckets.
    pub fn new(spec: &TbfSpec) -> Result<Self, SpecError> {
        spec.check()?;
        let peak = spec.peak.map(|p| Bucket::full(p.peakrate, p.mtu));
        Ok(Tbf {
            list: SkbList::new(),
            limit: spec.limit(),
            max_size: spec.peak.map_or(spec.burst, |p| p.mtu.min(spec.burst)).0,
            bucket: Bucket::full(spec.rate, spec.burst),
            peak,
            stats: Arc::default(),
        })
    }

    /// ns from `now` until `len` bytes may leave.
    fn wait(&self, now: u64, len: u64) -> u64 {
        self.bucket.wait(now, len).max(self.peak.as_ref().map_or(0, |peak| peak.wait(now, len)))
    }
}

impl Qdisc for Tbf {
    fn enqueue(&mut self, skb: Skb, _now: u64, to_free: &mut ToFree) -> Verdict {
        if pkt_len(&skb) > self.max_size as usize {
            self.stats.dropped(DropReason::QdiscDrop);
            to_free.push(skb, DropReason::QdiscDrop);
            return Verdict::Drop;
        }
        let room = self.stats.backlog() + pkt_len(&skb) as u64 <= u64::from(self.limit);
        append(&mut self.list, room, skb, &self.stats, to_free)
    }

    fn dequeue(&mut self, now: u64, quota: &mut Quota, out: &mut Batch, _to_free: &mut ToFree) {
        while quota.is_open()
            && out.room() > 0
            && let Some(len) = self.list.front_len()
        {
            if self.wait(now, len as u64) > 0 {
                self.stats.overlimit();
                return;
            }
            self.bucket.pay(now, len);
            self.peak.iter_mut().for_each(|peak| peak.pay(now, len));
            quota.take(len);
            self.stats.unqueued(len);
            if let Some(skb) = self.list.pop_front() {
                self.stats.sent(skb.segments(), len as u64);
                push(out, skb);
            }
        }
    }

    fn next_event(&self, now: u64) -> Option<u64> {
        let len = self.list.front_len()? as u64;
        if self.wait(now, len) == 0 {
            return None;
        }
        // A second bucket is about one packet deep: no more leave at once anyway.
        let run = if self.peak.is_some() { len } else { self.bucket.run(len, self.stats.backlog()) };
        Some(now.saturating_add(self.wait(now, run)))
    }

    fn max_len(&self) -> usize {
        self.max_size as usize
    }

    fn can_bypass(&self) -> bool {
        false
    }

    fn reset(&mut self, reason: DropReason, to_free: &mut ToFree) {
        purge(&mut self.list, reason, &self.stats, to_free);
    }

    /// Fills the buckets, as the kernel does.
    fn change(&mut self, spec: &Spec, _dev: &DevParams) -> Result<(), SpecError> {
        let Spec::Tbf(spec) = spec else {
            return Err(SpecError::OtherKind { is: "tbf", asked: spec.kind() });
        };
        let Tbf { limit, max_size, bucket, peak, .. } = Tbf::new(spec)?;
        (self.limit, self.max_size, self.bucket, self.peak) = (limit, max_size, bucket, peak);
        Ok(())
    }

    fn stats(&self) -> &Arc<QdiscStats> {
        &self.stats
    }
}
