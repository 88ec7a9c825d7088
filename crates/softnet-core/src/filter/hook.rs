//! The hook: leads the packets of a batch through the rules.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use super::addresses::{Class, ends4, ends6};
use super::facts::{Facts, is_discovery};
use super::rule::{Action, Chain, FlowState, Rules};
use super::table::Table;
use super::track::Tracker;
use crate::conntrack::Conntrack;
use crate::ip::hooks::{Hook, HookContext, Hooks, Layer, Passage, Slot};
use crate::ip::{ETH_LEN, Family, FibError, LongestMatch};
use crate::nat::NatState;
use crate::nat::seconds;
use crate::skb::{BATCH, Batch, DropReason, Flags, Skb};

/// See the [module](super).
pub struct Filter {
    table: Table,
    tracker: Option<Tracker>,
}

/// What becomes of a packet.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Pass,
    Drop(DropReason),
    Reject,
    /// It waits for the others of its datagram.
    Gather,
}

/// Packets and bytes of a run of packets that one rule decides.
#[derive(Default)]
struct Run {
    number: u16,
    packets: u64,
    bytes: u64,
}

impl Filter {
    /// By `rules`. Where they [ask for states](Rules::ask_for_states), `conntrack` has the
    /// connections; those of NAT, if there is any, whose hooks look up what comes of IPv4.
    pub fn new(
        rules: &Rules,
        conntrack: Option<(Arc<Conntrack>, Option<Arc<NatState>>)>,
    ) -> Result<Self, FibError> {
        let tracker = conntrack.map(|(conntrack, nat)| Tracker::new(conntrack, nat));
        Ok(Filter { table: Table::new(rules)?, tracker })
    }

    /// Bytes that the rules take, compiled.
    pub fn bytes(&self) -> usize {
        self.table.bytes()
    }

    /// Puts it into the slots of `hooks` where it has something to do, in place of the filter that
    /// stands there; what else stands there stays.
    pub fn stand(self, rules: &Rules, hooks: &mut Hooks) {
        hooks.clear(Layer::Filter);
        let nat = self.tracker.as_ref().is_some_and(Tracker::has_nat);
        let filter: Arc<dyn Hook> = Arc::new(self);
        let mut stand = |slot| hooks.set_layer(slot, Layer::Filter, Some(filter.clone()));
        let tracks = rules.ask_for_states();
        for chain in Chain::ALL {
            let asked = rules.rules.iter().any(|rule| rule.chains.contains(&chain));
            // What is made here is looked up at `output`; what passes opens connections at all three.
            if asked || tracks || rules.policies[chain as usize] != Action::Allow {
                stand([Slot::Input, Slot::Forward, Slot::Output][chain as usize]);
            }
        }
        if tracks {
            stand(Slot::Prerouting);
        }
        if nat {
            stand(Slot::Postrouting);
        }
    }

    #[inline(never)]
    fn filter(&self, cx: &mut HookContext<'_>, chain: Chain, passage: Passage, batch: &mut Batch) {
        let candidates = self.table.candidates(chain, passage.input, passage.output);
        let mut numbers = [0u16; BATCH];
        let mut facts = [(Facts::default(), FlowState::Untracked); BATCH];
        let mut fates = [Fate::Pass; BATCH];
        // Those that more must be looked at of, and those that are not counted.
        let (mut open, mut uncounted, mut all_pass) = (0u64, 0u64, true);
        for (at, skb) in batch.as_slice().iter().enumerate().take(BATCH) {
            let state = self.tracker.as_ref().map_or(FlowState::Untracked, |tracker| tracker.state(skb));
            if let Some(number) = candidates.at_once[state as usize] {
                numbers[at] = number;
            } else {
                match Facts::of(skb) {
                    Ok(read) => {
                        facts[at] = (read, state);
                        open |= 1 << at;
                    }
                    Err(_) => {
                        fates[at] = Fate::Drop(DropReason::PktTooSmall);
                        (uncounted, all_pass) = (uncounted | 1 << at, false);
                    }
                }
            }
            if chain == Chain::Input && is_discovery(skb) {
                fates[at] = Fate::Pass;
                (open, uncounted) = (open & !(1 << at), uncounted | 1 << at);
            }
        }
        if open != 0 {
            let classes = self.classes(batch.as_slice(), open);
            for at in (0..batch.len().min(BATCH)).filter(|at| open >> at & 1 != 0) {
                let (facts, state) = facts[at];
                numbers[at] = self.table.first(&candidates, facts, classes[at], state);
            }
        }
        let mut run = Run::default();
        for (at, skb) in batch.as_slice().iter().enumerate().take(BATCH) {
            if uncounted >> at & 1 != 0 {
                continue;
            }
            let number = numbers[at];
            if number != run.number {
                cx.ctx.count_rule(run.number, run.packets, run.bytes);
                run = Run { number, ..Run::default() };
            }
            run.packets += 1;
            run.bytes += skb.len().saturating_sub(ETH_LEN) as u64;
            match self.table.action(number) {
                Action::Allow => {}
                Action::Drop => (fates[at], all_pass) = (Fate::Drop(DropReason::NetfilterDrop), false),
                Action::Reject => (fates[at], all_pass) = (Fate::Reject, false),
            }
        }
        cx.ctx.count_rule(run.number, run.packets, run.bytes);
        if !all_pass {
            part(cx, batch, &fates);
        }
    }

    /// The classes of the addresses of those packets that `open` has.
    #[inline(always)]
    fn classes(&self, skbs: &[Skb], open: u64) -> [Class; BATCH] {
        let addresses = &self.table.addresses;
        let mut classes = [addresses.class(0); BATCH];
        if let Some(fib) = &addresses.v4 {
            self.look_up::<Ipv4Addr>(fib, skbs, open, (4, ends4), &mut classes);
        }
        if let Some(fib) = &addresses.v6 {
            self.look_up::<Ipv6Addr>(fib, skbs, open, (6, ends6), &mut classes);
        }
        classes
    }

    #[inline(always)]
    fn look_up<F: Family>(
        &self,
        fib: &F::Fib,
        skbs: &[Skb],
        open: u64,
        (version, ends): (u8, impl Fn(&[u8]) -> Option<[F::Bits; 2]>),
        classes: &mut [Class; BATCH],
    ) {
        let mut addrs = [[F::Bits::default(); BATCH]; 2];
        let (mut places, mut n) = ([0u8; BATCH], 0);
        for (at, skb) in skbs.iter().enumerate().take(BATCH).filter(|(at, _)| open >> at & 1 != 0) {
            let packet = skb.data().get(ETH_LEN..).unwrap_or_default();
            let of_family = packet.first().is_some_and(|first| first >> 4 == version);
            let Some([src, dst]) = ends(packet).filter(|_| of_family) else { continue };
            (addrs[0][n], addrs[1][n], places[n]) = (src, dst, at as u8);
            n += 1;
        }
        for (side, addrs) in addrs.iter().enumerate() {
            let mut found = [0; BATCH];
            fib.lookup_batch(&addrs[..n], &mut found[..n]);
            for (place, found) in places[..n].iter().zip(found) {
                classes[usize::from(*place) % BATCH][side] = self.table.addresses.class(found)[side];
            }
        }
    }

    /// Packets that the rules let pass, at `slot`: open connections.
    #[inline(never)]
    fn passed(&self, cx: &mut HookContext<'_>, slot: Slot, batch: &mut Batch) {
        let Some(tracker) = &self.tracker else { return };
        let (now, mut fates, mut all_pass) = (seconds(cx.now), [Fate::Pass; BATCH], true);
        for (skb, fate) in batch.as_mut_slice().iter_mut().zip(&mut fates) {
            if let Err(reason) = tracker.passed(now, slot, skb) {
                (*fate, all_pass) = (Fate::Drop(reason), false);
            }
        }
        if !all_pass {
            part(cx, batch, &fates);
        }
    }

    /// Packets that came: looks them up, and has those wait that are not whole.
    #[inline(never)]
    fn came(&self, cx: &mut HookContext<'_>, batch: &mut Batch) {
        let Some(tracker) = &self.tracker else { return };
        let parts = tracker.came(seconds(cx.now), batch);
        if parts != 0 {
            let fates = std::array::from_fn(|at| match parts >> at & 1 {
                0 => Fate::Pass,
                _ => Fate::Gather,
            });
            part(cx, batch, &fates);
        }
    }
}

/// Takes out of `batch` what does not pass.
#[cold]
#[inline(never)]
fn part(cx: &mut HookContext<'_>, batch: &mut Batch, fates: &[Fate; BATCH]) {
    let mut some = std::mem::take(batch);
    for (skb, fate) in some.drain().zip(fates) {
        let dropped = match fate {
            Fate::Pass => batch.push(skb).map_err(|skb| (skb, DropReason::NetfilterDrop)),
            Fate::Drop(reason) => Err((skb, *reason)),
            Fate::Gather => {
                cx.gather(skb);
                Ok(())
            }
            // Its sender is here.
            Fate::Reject if skb.head().flags & Flags::ORIGINATED != 0 => {
                Err((skb, DropReason::NetfilterDrop))
            }
            Fate::Reject => {
                cx.reject(skb);
                Ok(())
            }
        };
        if let Err((skb, reason)) = dropped {
            cx.ctx.free(skb, reason);
        }
    }
}

impl Hook for Filter {
    fn run(&self, cx: &mut HookContext<'_>, passage: Passage, batch: &mut Batch) {
        match passage.slot {
            Slot::Prerouting => self.came(cx, batch),
            Slot::Input => self.filter(cx, Chain::Input, passage, batch),
            Slot::Forward => self.filter(cx, Chain::Forward, passage, batch),
            Slot::Output => {
                if let Some(tracker) = &self.tracker {
                    tracker.made(seconds(cx.now), batch);
                }
                self.filter(cx, Chain::Output, passage, batch);
            }
            Slot::Postrouting => {}
        }
        if passage.slot != Slot::Prerouting {
            self.passed(cx, passage.slot, batch);
        }
    }
}
