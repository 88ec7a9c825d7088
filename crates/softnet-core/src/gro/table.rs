//! The packets that an instance holds, and what becomes of the next ones.

use super::arrived::{Arrived, Bare};
use super::merge::{ENDS, Form, Held, Refusal, flags, is_completed, is_mergeable, is_right};
use super::run::Foreseen;
use super::slots::Slots;
use super::{AHEAD, BUCKETS, Flushed, GroMode, GroParams, GroStats, MAX_SIZE, OLD};
use crate::SoftnetData;
use crate::gso;
use crate::gso::header::{TCP_FLAGS, put, tcp_flags};
use crate::gso::layout::{L4, Layout, l3_of};
use crate::ip::v6::header::LEN as IPV6_LEN;
use crate::napi::Gro;
use crate::skb::{Batch, Csum, DropReason, Flags, FrameBatch, FrameChain, GsoType, Skb};
use crate::steer::skb_get_hash;

/// See the [module](super).
pub struct GroTable {
    slots: Slots,
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

/// What a table needs for each packet beside itself.
struct Call<'a> {
    ctx: &'a mut SoftnetData,
    stats: &'a GroStats,
    params: &'a GroParams,
    batch: &'a mut Batch,
}

impl GroTable {
    /// An empty table.
    pub fn new() -> Self {
        GroTable { slots: Slots::new(), merged: 0, now: 0, mode: GroMode::Off, more: Batch::new() }
    }

    /// One packet.
    #[inline(always)]
    fn receive_one(&mut self, call: &mut Call<'_>, packet: impl Arrived) {
        let Some((number, foreseen)) = self.slots.foresee(&packet) else {
            return self.look_up(call, packet);
        };
        match foreseen {
            Foreseen::Next(flags) => self.go_on(call, packet, number, flags),
            Foreseen::AfterFull => {
                self.end(call, number, Flushed::Full);
                self.begin(call, packet, number);
            }
            Foreseen::First => self.begin(call, packet, number),
        }
    }

    /// A packet came that was not foreseen.
    fn look_up(&mut self, call: &mut Call<'_>, packet: impl Arrived) {
        if let Some(skb) = packet.into_skb(call.ctx) {
            self.receive_skb(call, skb);
        }
    }

    #[inline(never)]
    fn receive_skb(&mut self, call: &mut Call<'_>, mut skb: Skb) {
        let layout = Layout::of(skb.data());
        if layout.is_none() && self.slots.held() > 0 {
            self.end_flows_of(call, &skb);
        }
        let Some(layout) = layout else { return self.push(call, skb) };
        let Some(form) = Form::of(call.params.mode, layout.l4_is) else { return self.push(call, skb) };
        let hash = skb_get_hash(&mut skb);
        let mergeable = is_mergeable(&skb, &layout, form);
        if let Some(number) = self.slots.of_flow(hash, &skb, &layout) {
            let why = match mergeable {
                true => self.merge(call, number, skb, &layout, form),
                false => Some((skb, Flushed::Mismatch)),
            };
            let Some((refused, why)) = why else { return };
            self.end(call, number, why);
            skb = refused;
        }
        if !mergeable || flags(skb.data(), &layout) & ENDS != 0 {
            return self.push(call, skb);
        }
        // A list has no sum to answer for, unless another stage would have completed it.
        if form == Form::List && call.params.partial_csum && !is_completed(&mut skb, &layout) {
            return self.push(call, skb);
        }
        self.make_room(call, hash);
        let held = Held::new(skb, layout, form, hash, self.now);
        self.slots.hold(held);
    }

    /// Makes of a packet the next segment of the held one of its flow; or hands it back, with the
    /// reason for which the held one ends.
    #[inline]
    fn merge(
        &mut self,
        call: &mut Call<'_>,
        number: u8,
        mut skb: Skb,
        layout: &Layout,
        form: Form,
    ) -> Option<(Skb, Flushed)> {
        let (held, _) = self.slots.get(number)?;
        match held.accepts(&skb, layout, form) {
            Ok(()) => {}
            Err(Refusal::Mismatch) => return Some((skb, Flushed::Mismatch)),
            Err(Refusal::Full) => return Some((skb, Flushed::Full)),
        }
        let partial = call.params.partial_csum;
        let right = match form {
            Form::Frags => {
                held.is_verified(partial) && is_right(skb.data(), skb.head().csum, layout, partial)
            }
            Form::List => !partial || is_completed(&mut skb, layout),
        };
        if !right {
            return Some((skb, Flushed::Mismatch));
        }
        let region = call.ctx.region().id();
        if skb.region() != region || held.skb.region() != region {
            return Some((skb, Flushed::Full));
        }
        if held.count == 1 {
            held.fixed_id = !layout.is_v6 && layout.id(skb.data()) == layout.id(held.skb.data());
        }
        let flags = flags(skb.data(), layout);
        let payload = skb.len() - layout.payload();
        if skb.append_to(call.ctx, &mut held.more, layout.payload()) {
            let why = held.appended(payload, flags);
            self.merged += 1;
            self.slots.foresee_of(number);
            why.inspect(|why| self.end(call, number, *why));
        }
        None
    }

    /// A packet came that is the next segment of what slot `number` holds, if its checksum is right
    /// and memory is of one region.
    #[inline(always)]
    fn go_on(&mut self, call: &mut Call<'_>, packet: impl Arrived, number: u8, flags: u8) {
        let Some((held, Some(run))) = self.slots.get(number) else { return self.look_up(call, packet) };
        let (partial, region) = (call.params.partial_csum, call.ctx.region().id());
        if !held.is_verified(partial)
            || !is_right(packet.data(), packet.csum(), &held.layout, partial)
            || packet.region() != region
            || held.skb.region() != region
        {
            return self.look_up(call, packet);
        }
        if held.count == 1 {
            held.fixed_id = run.has_fixed_id();
        }
        if packet.append_to(call.ctx, &mut held.more, held.layout.payload()) {
            let why = held.appended(run.size(), flags);
            run.step();
            self.merged += 1;
            if let Some(why) = why {
                self.end(call, number, why);
            }
        }
    }

    /// Frames came of which the first are next segments of what one of the likely two slots holds:
    /// all that need not end that become part of it at once. Returns whether there were any. The
    /// slot in `not` is not asked; then that is the slot of which the first frame left is not the
    /// next.
    #[inline(always)]
    fn go_on_in_a_row(&mut self, call: &mut Call<'_>, frames: &mut FrameBatch, not: &mut Option<u8>) -> bool {
        let region = call.ctx.region().id();
        let not_now = not.take();
        self.slots.likely().into_iter().filter(|number| Some(*number) != not_now).any(|number| {
            let Some((held, Some(run))) = self.slots.get(number) else { return false };
            let partial = call.params.partial_csum;
            if !run.is_untagged()
                || !held.is_verified(partial)
                || frames.region() != region
                || held.skb.region() != region
            {
                return false;
            }
            // Below where it would be full.
            let room = (MAX_SIZE - 1 - held.len) / run.size();
            let most = frames.len().min(room).min(held.most() - 1 - usize::from(held.count));
            let (csum, layout) = (frames.csum, &held.layout);
            let row = run.in_a_row(frames, most, |data| is_right(data, csum, layout, partial));
            if row.0 == 0 {
                return false;
            }
            if held.count == 1 {
                held.fixed_id = run.has_fixed_id();
            }
            let n = call.ctx.chain_frames(&mut held.more, frames, row.0, layout.payload());
            held.count += n as u16;
            held.len += n * run.size();
            run.went_on(n, row);
            *not = (n == row.0 && n < most).then_some(number);
            self.merged += n as u64;
            self.slots.found(number);
            n > 0
        })
    }

    /// A packet came that is the first of an aggregate to be, of the flow that slot `number` waits
    /// for.
    fn begin(&mut self, call: &mut Call<'_>, packet: impl Arrived, number: u8) {
        let Some(mut skb) = packet.into_skb(call.ctx) else { return };
        let Some(run) = self.slots.waiting(number) else { return self.receive_skb(call, skb) };
        let (layout, hash) = (run.layout(), run.hash);
        run.step();
        skb.head_mut().hash = hash;
        self.make_room(call, hash);
        self.slots.put(number, Held::new(skb, layout, Form::Frags, hash, self.now));
    }

    /// Makes room in the bucket of `hash` for one more.
    #[inline(always)]
    fn make_room(&mut self, call: &mut Call<'_>, hash: u32) {
        if let Some(oldest) = self.slots.to_evict(hash) {
            self.end(call, oldest, Flushed::Evicted);
        }
    }

    /// A packet came that can't be merged with anything, and whose ports are not read: all that is
    /// held between its ends goes on before it.
    #[cold]
    fn end_flows_of(&mut self, call: &mut Call<'_>, skb: &Skb) {
        let data = skb.data();
        let Some((l3, is_v6)) = l3_of(data) else { return };
        let ends = if is_v6 { l3 + 8..l3 + IPV6_LEN } else { l3 + 12..l3 + 20 };
        let Some(ends) = data.get(ends) else { return };
        for bucket in 0..BUCKETS {
            while let Some(number) = self.slots.first(bucket, |held| held.has_ends(ends)) {
                self.end(call, number, Flushed::Mismatch);
            }
        }
    }

    /// What slot `number` holds goes on.
    fn end(&mut self, call: &mut Call<'_>, number: u8, why: Flushed) {
        let goes_on = matches!(why, Flushed::Last | Flushed::Full);
        if let Some(held) = self.slots.take(number, goes_on) {
            let skb = finish(call.stats, held, why);
            self.push(call, skb);
        }
    }

    /// The packet goes on.
    #[inline(always)]
    fn push(&mut self, call: &mut Call<'_>, skb: Skb) {
        let refused = if self.more.is_empty() { call.batch.push(skb) } else { Err(skb) };
        // Together they have room for all that can be held and all that can come.
        if let Err(skb) = refused
            && let Err(skb) = self.more.push(skb)
        {
            call.ctx.free(skb, DropReason::Shutdown);
        }
    }

    /// Before packets are received.
    fn begin_call(&mut self, stats: &GroStats, params: &GroParams, batch: &mut Batch) {
        self.now = params.now / OLD;
        if self.mode != params.mode {
            // What was held may be of what is not looked at any more.
            self.mode = params.mode;
            self.slots.forget();
            self.flush(stats, batch, false);
        }
    }

    /// After packets were received.
    fn end_call(&mut self, ctx: &mut SoftnetData, stats: &GroStats) {
        let merged = std::mem::take(&mut self.merged);
        if merged > 0 {
            ctx.merged(merged);
            stats.merged.add(merged);
        }
        stats.set_held(self.slots.held());
    }
}

impl Held {
    /// A packet that is the first of an aggregate to be.
    fn new(skb: Skb, layout: Layout, form: Form, hash: u32, now: u64) -> Self {
        let (len, size) = (skb.len() - layout.l3(), (skb.len() - layout.payload()) as u16);
        let verified = form == Form::List;
        let more = FrameChain::new();
        Held { skb, more, hash, form, layout, age: now, size, count: 1, len, verified, fixed_id: false }
    }

    /// Whether the L4 checksum of the first is right.
    #[inline(always)]
    fn is_verified(&mut self, partial_csum: bool) -> bool {
        if !self.verified {
            self.verified = is_right(self.skb.data(), self.skb.head().csum, &self.layout, partial_csum);
        }
        self.verified
    }

    /// A segment with `payload` bytes and these flags was appended. Says whether it was the last,
    /// and why.
    #[inline(always)]
    fn appended(&mut self, payload: usize, flags: u8) -> Option<Flushed> {
        self.count += 1;
        self.len += payload;
        if flags & ENDS != 0 && self.form == Form::Frags {
            let at = self.layout.l4() + TCP_FLAGS;
            let of_first = self.skb.data()[at];
            put(self.skb.data_mut(), at, [of_first | flags & (tcp_flags::FIN | tcp_flags::PSH)]);
        }
        if flags & ENDS != 0 || payload < self.size.into() {
            return Some(Flushed::Last);
        }
        (usize::from(self.count) >= self.most()).then_some(Flushed::Full)
    }
}

/// What is held no more, as it goes on.
fn finish(stats: &GroStats, held: Held, why: Flushed) -> Skb {
    stats.count_flushed(why);
    let Held { mut skb, more, layout, count, .. } = held;
    if count == 1 {
        return skb;
    }
    if let Err(more) = skb.append_chain(more) {
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
        let mut packets = std::mem::take(batch);
        self.begin_call(stats, params, batch);
        let mut packets = packets.drain();
        let mut call = Call { ctx, stats, params, batch };
        while let Some(skb) = packets.next() {
            if let Some(later) = packets.ahead(AHEAD) {
                later.prefetch_headers();
            }
            self.receive_one(&mut call, skb);
        }
        self.end_call(ctx, stats);
    }

    fn receive_frames(
        &mut self,
        ctx: &mut SoftnetData,
        stats: &GroStats,
        params: &GroParams,
        frames: &mut FrameBatch,
        batch: &mut Batch,
    ) {
        self.begin_call(stats, params, batch);
        (0..AHEAD).for_each(|n| frames.prefetch_headers(n));
        let (mut call, mut not) = (Call { ctx, stats, params, batch }, None);
        while !frames.is_empty() {
            if !self.go_on_in_a_row(&mut call, frames, &mut not) {
                self.receive_one(&mut call, Bare(frames));
            }
        }
        self.end_call(ctx, stats);
    }

    fn more(&mut self, out: &mut Batch) {
        out.append(&mut self.more);
    }

    fn tick(&mut self, now: u64) {
        self.now = now / OLD;
    }

    fn flush(&mut self, stats: &GroStats, out: &mut Batch, old_only: bool) {
        let (now, why) = (self.now, if old_only { Flushed::Old } else { Flushed::PollEnd });
        for bucket in 0..BUCKETS {
            while out.room() > 0
                && let Some(number) = self.slots.first(bucket, |_| true)
                && let Some(held) = self.slots.take_if(number, |held| !old_only || held.age != now)
            {
                if let Err(skb) = out.push(finish(stats, held, why)) {
                    // Not reached: there was room. Dropping it makes a mistake there show as a
                    // leak.
                    drop(skb);
                }
            }
        }
        stats.set_held(self.slots.held());
    }

    fn held(&self) -> usize {
        self.slots.held()
    }
}
