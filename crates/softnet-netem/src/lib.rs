//! What a bad network does to packets, as a pure model: no clock, I/O, packets or dependencies.
//!
//! [`Netem`] decides about one packet after the other: whether it is lost, when it may leave,
//! whether it leaves twice or with a bit flipped. The holder of the packets (a queueing discipline,
//! a simulator in virtual time) does what was decided. Parameters and their meaning are those of
//! the kernel's `sch_netem` (tc-netem(8)), but for one thing: a rate does not undo the reordering
//! that jitter brings.
//!
//! Invariant: decisions depend on the parameters, the seed among them, and on the packets' times,
//! lengths and queue lengths alone: the same run gives the same decisions on every machine.
#![forbid(unsafe_code)]

mod random;

use std::fmt;

use random::{Correlated, Rng};

/// A probability, in units of 10⁻⁸: one hundred million is certain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Chance(pub u32);

impl Chance {
    /// Certain.
    pub const ALWAYS: Chance = Chance(100_000_000);
    /// Impossible.
    pub const NEVER: Chance = Chance(0);

    /// `n` percent.
    pub const fn percent(n: u32) -> Chance {
        Chance(n.saturating_mul(1_000_000))
    }

    /// Of 2³², rounded up, so that no chance but [`NEVER`](Self::NEVER) is nothing.
    fn threshold(self) -> u64 {
        (u64::from(self.0.min(Self::ALWAYS.0)) << 32).div_ceil(u64::from(Self::ALWAYS.0))
    }
}

impl fmt::Display for Chance {
    /// In percent, as `tc` reads it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, fraction) = (self.0 / 1_000_000, self.0 % 1_000_000);
        if fraction == 0 {
            return write!(f, "{whole}%");
        }
        let digits = format!("{fraction:06}");
        write!(f, "{whole}.{}%", digits.trim_end_matches('0'))
    }
}

/// A chance of each packet, and how far it depends on the packet before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Random {
    /// The chance.
    pub chance: Chance,
    /// The weight of the last packet's random number in this one's.
    pub correlation: Chance,
}

impl Random {
    /// Independent of packet to packet.
    pub const fn of(chance: Chance) -> Random {
        Random { chance, correlation: Chance::NEVER }
    }
}

/// How packets are lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// `loss [random] chance [correlation]`.
    Random(Random),
    /// `loss gemodel p [r [1-h [1-k]]]`: two states, good and bad (Gilbert and Elliott).
    Gemodel {
        /// The chance to turn bad, at each packet.
        p: Chance,
        /// The chance to turn good.
        r: Chance,
        /// The chance to be lost while bad.
        lost_bad: Chance,
        /// The chance to be lost while good.
        lost_good: Chance,
    },
}

/// The parameters; the default does nothing but hold 1000 packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Params {
    /// Packets that are held, those included that are merely delayed.
    pub limit: u32,
    /// Delay, ns.
    pub delay: u64,
    /// The delay is within so many ns of [`delay`](Self::delay), each value as likely.
    pub jitter: u64,
    /// How far a packet's jitter depends on that of the packet before.
    pub jitter_correlation: Chance,
    /// Losses.
    pub loss: Loss,
    /// Packets that leave twice.
    pub duplicate: Random,
    /// Packets that leave at once, ahead of those that are delayed.
    pub reorder: Random,
    /// Of so many packets in turn, only the last may be ahead; 0 and 1: any.
    pub gap: u32,
    /// Packets of which a bit flips.
    pub corrupt: Random,
    /// Bytes a second that leave; 0: no limit.
    pub rate: u64,
    /// What random numbers begin with.
    pub seed: u64,
}

impl Default for Params {
    fn default() -> Params {
        Params {
            limit: 1000,
            delay: 0,
            jitter: 0,
            jitter_correlation: Chance::NEVER,
            loss: Loss::Random(Random::default()),
            duplicate: Random::default(),
            reorder: Random::default(),
            gap: 0,
            corrupt: Random::default(),
            rate: 0,
            seed: 0,
        }
    }
}

/// What becomes of a packet, or of its copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It is lost on the way.
    Lost,
    /// It finds the queue full.
    Overlimit,
    /// It leaves.
    Leaves {
        /// When, ns. Of packets with the same time, the one that was decided on first leaves
        /// first.
        at: u64,
        /// Whether it was chosen to be ahead of those that wait.
        ahead: bool,
        /// If a bit of it flips: a number whose remainder by the count of its bits says which.
        corrupt: Option<u32>,
    },
}

/// What was decided about a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The packet.
    pub packet: Fate,
    /// Its copy, if it is duplicated.
    pub copy: Option<Fate>,
}

/// A bad network in one direction.
#[derive(Clone, Debug)]
pub struct Netem {
    params: Params,
    rng: Rng,
    loss: Correlated,
    duplicate: Correlated,
    reorder: Correlated,
    corrupt: Correlated,
    jitter: Correlated,
    /// Whether the Gilbert–Elliott model is in its bad state.
    bad: bool,
    /// Packets since the last that was ahead.
    since_ahead: u32,
    /// When the last byte has left at the rate, ns.
    busy_until: u64,
}

impl Netem {
    /// A network with these parameters.
    pub fn new(params: Params) -> Netem {
        let loss = match params.loss {
            Loss::Random(random) => random,
            Loss::Gemodel { .. } => Random::default(),
        };
        let jitter = Random { chance: Chance::NEVER, correlation: params.jitter_correlation };
        Netem {
            params,
            rng: Rng::new(params.seed),
            loss: Correlated::new(loss),
            duplicate: Correlated::new(params.duplicate),
            reorder: Correlated::new(params.reorder),
            corrupt: Correlated::new(params.corrupt),
            jitter: Correlated::new(jitter),
            bad: false,
            since_ahead: 0,
            busy_until: 0,
        }
    }

    /// The parameters.
    pub fn params(&self) -> &Params {
        &self.params
    }

    /// Takes other parameters. Random numbers begin anew; what the rate owes is kept.
    pub fn change(&mut self, params: Params) {
        *self = Netem { busy_until: self.busy_until, ..Netem::new(params) };
    }

    /// Decides about a packet of `len` bytes that comes at `now`, ns, while `queued` are held.
    pub fn decide(&mut self, now: u64, len: usize, queued: usize) -> Decision {
        let twice = self.duplicate.happens(&mut self.rng);
        let lost = self.loses();
        // As in the kernel, of a packet that is both duplicated and lost one is left.
        match (twice, lost) {
            (false, true) => Decision { packet: Fate::Lost, copy: None },
            (false, false) | (true, true) => Decision { packet: self.place(now, len, queued), copy: None },
            (true, false) => {
                let packet = self.place(now, len, queued);
                let held = queued + usize::from(packet != Fate::Overlimit);
                Decision { packet, copy: Some(self.place(now, len, held)) }
            }
        }
    }

    fn loses(&mut self) -> bool {
        match self.params.loss {
            Loss::Random(_) => self.loss.happens(&mut self.rng),
            Loss::Gemodel { p, r, lost_bad, lost_good } => {
                let (turns, lost) = if self.bad { (r, lost_bad) } else { (p, lost_good) };
                let is_lost = self.rng.chance(lost);
                self.bad ^= self.rng.chance(turns);
                is_lost
            }
        }
    }

    fn place(&mut self, now: u64, len: usize, queued: usize) -> Fate {
        let corrupt = self.corrupt.happens(&mut self.rng).then(|| self.rng.next());
        if queued >= self.params.limit as usize {
            return Fate::Overlimit;
        }
        let may_be_ahead = self.since_ahead + 1 >= self.params.gap;
        if may_be_ahead && self.reorder.happens(&mut self.rng) {
            self.since_ahead = 0;
            return Fate::Leaves { at: now, ahead: true, corrupt };
        }
        self.since_ahead = self.since_ahead.saturating_add(1);
        let at = self.leaves_line(now, len).saturating_add(self.delay());
        Fate::Leaves { at, ahead: false, corrupt }
    }

    /// When the last byte of a packet has left at the rate.
    fn leaves_line(&mut self, now: u64, len: usize) -> u64 {
        if self.params.rate == 0 {
            return now;
        }
        let takes = (len as u128 * 1_000_000_000).div_ceil(u128::from(self.params.rate));
        let takes = u64::try_from(takes).unwrap_or(u64::MAX);
        self.busy_until = self.busy_until.max(now).saturating_add(takes);
        self.busy_until
    }

    fn delay(&mut self) -> u64 {
        let Params { delay, jitter, .. } = self.params;
        if jitter == 0 {
            return delay;
        }
        let width = u128::from(jitter) * 2 + 1;
        let offset = (u128::from(self.jitter.next(&mut self.rng)) * width) >> 32;
        // Less than twice a u64, so that the sum fits; a delay below zero is none.
        let sum = (u128::from(delay) + offset).saturating_sub(u128::from(jitter));
        u64::try_from(sum).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests;
