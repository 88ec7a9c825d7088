//! The packets that an instance holds, and what becomes of the next ones.

use super::merge::{ENDS, Form, Held, Refusal, flags, is_mergeable, verify};
use super::{BUCKETS, Flushed, GroMode, GroParams, GroStats, MAX_HELD, OLD};
use crate::SoftnetData;
use crate::gso;
use crate::gso::header::{TCP_FLAGS, put, tcp_flags};
use crate::gso::layout::{L4, Layout, l3_of};
use crate::ip::v6::header::LEN as IPV6_LEN;
use crate::napi::Gro;
use crate::skb::{Batch, Csum, DropReason, Flags, GsoType, Skb};
use crate::steer::skb_get_hash;

/// See the [module](super).
pub struct GroTable {
    /// Each oldest first, and made for [`MAX_HELD`].
    buckets: [Vec<Held>; BUCKETS],
    held: usize,
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
            held: 0,
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
        let layout = Layout::of(skb.data());
        if layout.is_none() && self.held > 0 {
            self.end_flows_of(ctx, stats, &skb, batch);
        }
        let GroTable { buckets, held, now, more, .. } = self;
        let mut out = Out { batch, more };
        let Some(layout) = layout else { return out.push(ctx, skb) };
        let Some(form) = Form::of(params.mode, layout.l4_is) else { return out.push(ctx, skb) };
        let hash = skb_get_hash(&mut skb);
        let bucket = &mut buckets[hash as usize % BUCKETS];
        let mergeable = is_mergeable(&skb, &layout, form);
        if let Some(at) = bucket.iter().position(|held| held.is_same_flow(hash, &skb, &layout)) {
            let why = if mergeable {
                match merge(ctx, stats, &mut bucket[at], skb, &layout, form, params) {
                    Ok(None) => return,
                    Ok(Some(why)) => {
                        let done = bucket.remove(at);
                        *held -= 1;
                        return out.push(ctx, finish(stats, done, why));
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
            out.push(ctx, finish(stats, done, why));
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
            out.push(ctx, finish(stats, oldest, Flushed::Evicted));
        }
        let (len, size) = (skb.len() - layout.l3(), (skb.len() - layout.payload()) as u16);
        bucket.push(Held {
            skb,
            hash,
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

    /// A packet came that can't be merged with anything, and whose ports are not read: all that is
    /// held between its ends goes on before it.
    #[cold]
    fn end_flows_of(&mut self, ctx: &mut SoftnetData, stats: &GroStats, skb: &Skb, batch: &mut Batch) {
        let data = skb.data();
        let Some((l3, is_v6)) = l3_of(data) else { return };
        let ends = if is_v6 { l3 + 8..l3 + IPV6_LEN } else { l3 + 12..l3 + 20 };
        let Some(ends) = data.get(ends) else { return };
        let GroTable { buckets, held, more, .. } = self;
        let mut out = Out { batch, more };
        for bucket in buckets {
            for done in bucket.extract_if(.., |held| held.has_ends(ends)) {
                *held -= 1;
                out.push(ctx, finish(stats, done, Flushed::Mismatch));
            }
        }
    }
}

/// Makes of a packet the next segment of the held one of its flow. Says whether that ends here, and
/// why; or hands the packet back, with the reason for which the held one ends.
#[inline]
fn merge(
    ctx: &mut SoftnetData,
    stats: &GroStats,
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
    let payload = skb.len() - layout.payload();
    let fixed_id = !layout.is_v6 && layout.id(skb.data()) == layout.id(held.skb.data());
    // Both are there: the layout was read from them.
    let _ = skb.pull(layout.payload());
    if let Err(mut skb) = held.skb.append(skb) {
        let _ = skb.push(layout.payload());
        return Err((skb, Flushed::Full));
    }
    ctx.merged(1);
    stats.merged.add(1);
    if held.count == 1 {
        held.fixed_id = fixed_id;
    }
    held.count += 1;
    held.len += payload;
    if flags & ENDS != 0 && form == Form::Frags {
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
fn finish(stats: &GroStats, held: Held, why: Flushed) -> Skb {
    stats.count_flushed(why);
    let Held { mut skb, layout, count, .. } = held;
    if count == 1 {
        return skb;
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
        for skb in packets.drain() {
            self.receive_one(ctx, stats, params, skb, batch);
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
        let GroTable { buckets, held, now, .. } = self;
        for bucket in buckets {
            let why = if old_only { Flushed::Old } else { Flushed::PollEnd };
            let n = bucket.iter().take_while(|held| !old_only || held.age != *now).count().min(out.room());
            for done in bucket.drain(..n) {
                *held -= 1;
                if let Err(skb) = out.push(finish(stats, done, why)) {
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
