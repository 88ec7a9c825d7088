//! The packets that an instance holds, and what becomes of the next ones.

use super::merge::{ENDS, Form, Held, Refusal, flags, is_mergeable, verify};
use super::run::{Foreseen, NO_RUN, Runs};
use super::{BUCKETS, Flushed, GroMode, GroParams, GroStats, MAX_HELD, OLD};
use crate::SoftnetData;
use crate::gso;
use crate::gso::header::{TCP_FLAGS, put, tcp_flags};
use crate::gso::layout::{L4, Layout, l3_of};
use crate::ip::v6::header::LEN as IPV6_LEN;
use crate::napi::Gro;
use crate::skb::{Batch, Csum, DropReason, Flags, GsoType, Skb, SkbList};
use crate::steer::skb_get_hash;

/// See the [module](super).
pub struct GroTable {
    /// Each oldest first, and made for [`MAX_HELD`].
    buckets: [Vec<Held>; BUCKETS],
    runs: Runs,
    held: usize,
    /// Packets that became part of another, and were not counted yet.
    merged: u64,
    /// Time, in units of [`OLD`].
    now: u64,
    /// What was merged lately.
    mode: GroMode,
    /// What goes on, and found no room in the batch that came.
    more: Batch,
}

impl Default for GroTable {
    fn default() -> Self {
        Self::new()
    }
}

/// The headers of a packet are prefetched while so many others are looked at.
const AHEAD: usize = 3;

/// Where packets go on, in order.
struct Out<'a> {
    batch: &'a mut Batch,
    more: &'a mut Batch,
}

impl Out<'_> {
    #[inline(always)]
    fn push(&mut self, ctx: &mut SoftnetData, skb: Skb) {
        let refused = if self.more.is_empty() { self.batch.push(skb) } else { Err(skb) };
        // Together they have room for all that can be held and all that can come.
        if let Err(skb) = refused
            && let Err(skb) = self.more.push(skb)
        {
            ctx.free(skb, DropReason::Shutdown);
        }
    }
}

impl GroTable {
    /// An empty table.
    pub fn new() -> Self {
        GroTable {
            buckets: std::array::from_fn(|_| Vec::with_capacity(MAX_HELD)),
            runs: Runs::new(),
            held: 0,
            merged: 0,
            now: 0,
            mode: GroMode::Off,
            more: Batch::new(),
        }
    }

    /// One packet.
    #[inline]
    fn receive_one(
        &mut self,
        ctx: &mut SoftnetData,
        stats: &GroStats,
        params: &GroParams,
        mut skb: Skb,
        batch: &mut Batch,
    ) {
        if let Some(foreseen) = self.runs.find(&self.buckets, &skb) {
            match self.go_on(ctx, stats, params, skb, &foreseen, batch) {
                None => return,
                Some(refused) => skb = refused,
            }
        }
        let layout = Layout::of(skb.data());
        if layout.is_none() && self.held > 0 {
            self.end_flows_of(ctx, stats, &skb, batch);
        }
        let GroTable { buckets, runs, held, merged, now, more, .. } = self;
        let mut out = Out { batch, more };
        let Some(layout) = layout else { return out.push(ctx, skb) };
        let Some(form) = Form::of(params.mode, layout.l4_is) else { return out.push(ctx, skb) };
        let hash = skb_get_hash(&mut skb);
        let at_bucket = hash as usize % BUCKETS;
        let bucket = &mut buckets[at_bucket];
        let mergeable = is_mergeable(&skb, &layout, form);
        if let Some(at) = bucket.iter().position(|held| held.is_same_flow(hash, &skb, &layout)) {
            let why = if mergeable {
                match merge(&mut bucket[at], skb, &layout, form, params) {
                    Ok(None) => {
                        *merged += 1;
                        return runs.renew(&mut bucket[at], at_bucket);
                    }
                    Ok(Some(why)) => {
                        *merged += 1;
                        let done = bucket.remove(at);
                        *held -= 1;
                        return out.push(ctx, finish(stats, runs, done, why));
                    }
                    Err((refused, why)) => {
                        skb = refused;
                        why
                    }
                }
            } else {
                Flushed::Mismatch
            };
            let done = bucket.remove(at);
            *held -= 1;
            out.push(ctx, finish(stats, runs, done, why));
        }
        if !mergeable || flags(skb.data(), &layout) & ENDS != 0 {
            return out.push(ctx, skb);
        }
        // A list has no sum to answer for, unless another stage would have completed it.
        if form == Form::List && params.partial_csum && !verify(&mut skb, &layout, true, true) {
            return out.push(ctx, skb);
        }
        if bucket.len() == MAX_HELD {
            let oldest = bucket.remove(0);
            *held -= 1;
            out.push(ctx, finish(stats, runs, oldest, Flushed::Evicted));
        }
        let (len, size) = (skb.len() - layout.l3(), (skb.len() - layout.payload()) as u16);
        bucket.push(Held {
            skb,
            more: SkbList::new(),
            hash,
            run: NO_RUN,
            form,
            layout,
            age: *now,
            size,
            count: 1,
            len,
            verified: form == Form::List,
            fixed_id: false,
        });
        *held += 1;
    }

    /// A packet came that is the next segment of one that is held, if its checksum is right and
    /// memory is of one region; else hands it back.
    #[inline(always)]
    fn go_on(
        &mut self,
        ctx: &mut SoftnetData,
        stats: &GroStats,
        params: &GroParams,
        mut skb: Skb,
        &Foreseen { bucket, at, flags }: &Foreseen,
        batch: &mut Batch,
    ) -> Option<Skb> {
        let bucket = &mut self.buckets[bucket];
        let held = &mut bucket[at];
        if !verify(&mut skb, &held.layout, params.partial_csum, false) {
            return Some(skb);
        }
        let why = match attach(held, skb, flags) {
            Ok(why) => why,
            Err(skb) => return Some(skb),
        };
        self.merged += 1;
        self.runs.step(held.size);
        if let Some(why) = why {
            let done = bucket.remove(at);
            self.held -= 1;
            let done = finish(stats, &mut self.runs, done, why);
            Out { batch, more: &mut self.more }.push(ctx, done);
        }
        None
    }

    /// A packet came that can't be merged with anything, and whose ports are not read: all that is
    /// held between its ends goes on before it.
    #[cold]
    fn end_flows_of(&mut self, ctx: &mut SoftnetData, stats: &GroStats, skb: &Skb, batch: &mut Batch) {
        let data = skb.data();
        let Some((l3, is_v6)) = l3_of(data) else { return };
        let ends = if is_v6 { l3 + 8..l3 + IPV6_LEN } else { l3 + 12..l3 + 20 };
        let Some(ends) = data.get(ends) else { return };
        let GroTable { buckets, runs, held, more, .. } = self;
        let mut out = Out { batch, more };
        for bucket in buckets {
            for done in bucket.extract_if(.., |held| held.has_ends(ends)) {
                *held -= 1;
                out.push(ctx, finish(stats, runs, done, Flushed::Mismatch));
            }
        }
    }
}

/// Makes of a packet the next segment of the held one of its flow. Says whether that ends here, and
/// why; or hands the packet back, with the reason for which the held one ends.
#[inline]
fn merge(
    held: &mut Held,
    mut skb: Skb,
    layout: &Layout,
    form: Form,
    params: &GroParams,
) -> Result<Option<Flushed>, (Skb, Flushed)> {
    match held.accepts(&skb, layout, form) {
        Ok(()) => {}
        Err(Refusal::Mismatch) => return Err((skb, Flushed::Mismatch)),
        Err(Refusal::Full) => return Err((skb, Flushed::Full)),
    }
    let partial = params.partial_csum;
    match form {
        Form::Frags => {
            if !held.verified {
                held.verified = verify(&mut held.skb, &held.layout, partial, false);
            }
            if !held.verified || !verify(&mut skb, layout, partial, false) {
                return Err((skb, Flushed::Mismatch));
            }
        }
        Form::List if partial && !verify(&mut skb, layout, true, true) => {
            return Err((skb, Flushed::Mismatch));
        }
        Form::List => {}
    }
    let flags = flags(skb.data(), layout);
    attach(held, skb, flags).map_err(|skb| (skb, Flushed::Full))
}

/// Makes of a packet that fits the last segment of the held one. Says whether that ends here, and
/// why; or hands the packet back, if its memory is of another region.
#[inline(always)]
fn attach(held: &mut Held, mut skb: Skb, flags: u8) -> Result<Option<Flushed>, Skb> {
    let layout = &held.layout;
    let payload = skb.len() - layout.payload();
    if held.count == 1 {
        held.fixed_id = !layout.is_v6 && layout.id(skb.data()) == layout.id(held.skb.data());
    }
    // Both are there: the layout was read from them.
    if skb.region() != held.skb.region() {
        return Err(skb);
    }
    let _ = skb.pull(layout.payload());
    if let Err(mut skb) = held.more.push_back(skb) {
        // Not reached: those in the list are of the same region.
        let _ = skb.push(layout.payload());
        return Err(skb);
    }
    held.count += 1;
    held.len += payload;
    if flags & ENDS != 0 && held.form == Form::Frags {
        let at = layout.l4() + TCP_FLAGS;
        let of_first = held.skb.data()[at];
        put(held.skb.data_mut(), at, [of_first | flags & (tcp_flags::FIN | tcp_flags::PSH)]);
    }
    if flags & ENDS != 0 || payload < held.size.into() {
        return Ok(Some(Flushed::Last));
    }
    Ok((usize::from(held.count) >= held.most()).then_some(Flushed::Full))
}

/// What is held no more, as it goes on.
fn finish(stats: &GroStats, runs: &mut Runs, held: Held, why: Flushed) -> Skb {
    stats.count_flushed(why);
    runs.end(held.run);
    let Held { mut skb, more, layout, count, .. } = held;
    if count == 1 {
        return skb;
    }
    let bytes = held.len - layout.headers() - usize::from(held.size);
    if let Err(more) = skb.append_list(more, bytes) {
        // Not reached: they are of one region, and no more than there may be. Dropping them makes a
        // mistake there show as a leak.
        drop(more);
    }
    stats.aggregates.add(1);
    stats.segments.add(count.into());
    let payload = held.len - layout.headers();
    layout.set_lengths(skb.data_mut(), payload, None);
    let head = skb.head_mut();
    (head.l3, head.l4, head.protocol) = (layout.l3, layout.l4, layout.l4_is.number());
    (head.gso_size, head.gso_segs) = (held.size, count);
    if held.fixed_id {
        head.flags |= Flags::GSO_FIXED_ID;
    }
    head.gso_type = match (held.form, layout.l4_is, layout.is_v6) {
        (Form::List, ..) => GsoType::FragList,
        (Form::Frags, L4::Tcp, false) => GsoType::TcpV4,
        (Form::Frags, L4::Tcp, true) => GsoType::TcpV6,
        (Form::Frags, L4::Udp, _) => GsoType::UdpL4,
    };
    if held.form == Form::Frags {
        head.csum = Csum::Partial { start: layout.l4, offset: layout.l4_is.check_at() as u16 };
        let pseudo = layout.pseudo(skb.data(), layout.l4_headers() + payload);
        put(skb.data_mut(), layout.check(), pseudo.to_be_bytes());
    }
    gso::announce();
    skb
}

impl Gro for GroTable {
    fn receive(&mut self, ctx: &mut SoftnetData, stats: &GroStats, params: &GroParams, batch: &mut Batch) {
        self.now = params.now / OLD;
        let mut packets = std::mem::take(batch);
        if self.mode != params.mode {
            // What was held may be of what is not looked at any more.
            self.mode = params.mode;
            self.flush(stats, batch, false);
        }
        let mut packets = packets.drain();
        while let Some(skb) = packets.next() {
            if let Some(later) = packets.ahead(AHEAD) {
                later.prefetch_headers();
            }
            self.receive_one(ctx, stats, params, skb, batch);
        }
        let merged = std::mem::take(&mut self.merged);
        if merged > 0 {
            ctx.merged(merged);
            stats.merged.add(merged);
        }
        stats.set_held(self.held);
    }

    fn more(&mut self, out: &mut Batch) {
        out.append(&mut self.more);
    }

    fn tick(&mut self, now: u64) {
        self.now = now / OLD;
    }

    fn flush(&mut self, stats: &GroStats, out: &mut Batch, old_only: bool) {
        let GroTable { buckets, runs, held, now, .. } = self;
        for bucket in buckets {
            let why = if old_only { Flushed::Old } else { Flushed::PollEnd };
            let n = bucket.iter().take_while(|held| !old_only || held.age != *now).count().min(out.room());
            for done in bucket.drain(..n) {
                *held -= 1;
                if let Err(skb) = out.push(finish(stats, runs, done, why)) {
                    // Not reached: there was room. Dropping it makes a mistake there show as a
                    // leak.
                    drop(skb);
                }
            }
        }
        stats.set_held(*held);
    }

    fn held(&self) -> usize {
        self.held
    }
}
