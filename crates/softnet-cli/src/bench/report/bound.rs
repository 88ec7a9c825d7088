//! Bounds that a bench states of its figures, and their verdicts.
//!
//! A bound on a ratio, or one that any machine has to keep, is judged wherever the bench runs. A bound on a rate or a time
//! carries the machine that it was stated for and is judged on that machine alone; elsewhere the figure is shown beside
//! it without a verdict.

use super::machine::Hardware;
use super::row::number;

/// What a figure's median must keep to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Bound {
    /// No less.
    AtLeast(f64),
    /// No more.
    AtMost(f64),
}

/// The machine that softnet is developed on: absolute figures are stated for it.
pub(crate) const REFERENCE: Hardware = Hardware { cpu: "AMD EPYC", mhz: 2596, cpus: 2 };

/// How a bound came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Kept,
    Missed,
    /// It was stated for another machine.
    NotJudged,
}

/// A bound that was stated, and how it came out.
pub(crate) struct Checked {
    pub(super) what: String,
    pub(super) measured: f64,
    pub(super) bound: Bound,
    /// The machine it was stated for; none: any.
    pub(super) stated_for: Option<&'static Hardware>,
    /// Whether this is that machine.
    here: bool,
    /// What it means to keep it, in a sentence.
    pub(super) meaning: &'static str,
}

impl Checked {
    pub(super) fn new(what: String, measured: f64, bound: Bound) -> Self {
        Checked { what, measured, bound, stated_for: None, here: true, meaning: "" }
    }

    /// Judged on the machine `hardware` alone.
    pub(crate) fn on(&mut self, hardware: &'static Hardware) -> &mut Self {
        self.stated_for = Some(hardware);
        self.here = hardware.is_this();
        self
    }

    /// A sentence for people that see the bound's name for the first time.
    pub(crate) fn meaning(&mut self, sentence: &'static str) -> &mut Self {
        self.meaning = sentence;
        self
    }

    pub(super) fn verdict(&self) -> Verdict {
        let kept = match self.bound {
            Bound::AtLeast(b) => self.measured >= b,
            Bound::AtMost(b) => self.measured <= b,
        };
        match (self.here, kept) {
            (false, _) => Verdict::NotJudged,
            (true, true) => Verdict::Kept,
            (true, false) => Verdict::Missed,
        }
    }

    /// The bound's sign and value.
    pub(super) fn limit(&self) -> (&'static str, f64) {
        match self.bound {
            Bound::AtLeast(b) => ("≥", b),
            Bound::AtMost(b) => ("≤", b),
        }
    }

    /// What came out, in words.
    pub(super) fn outcome(&self) -> String {
        let (_, limit) = self.limit();
        let off = 100.0 * ((self.measured - limit) / limit).abs();
        let off = if off.is_finite() { format!(" by {} %", number(off)) } else { String::new() };
        match (self.verdict(), self.stated_for) {
            (Verdict::Kept, _) => format!("Kept{off}."),
            (Verdict::Missed, _) => format!("Missed{off}."),
            (Verdict::NotJudged, Some(hardware)) => format!("Not judged here: stated for {hardware}."),
            (Verdict::NotJudged, None) => "Not judged here.".into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ELSEWHERE: Hardware = Hardware { cpu: "no such CPU", mhz: 1, cpus: 4096 };

    #[test]
    fn a_bound_is_judged_on_its_own_machine() {
        let mut checked = Checked::new("x".into(), 3.0, Bound::AtLeast(4.0));
        assert_eq!((checked.verdict(), checked.outcome()), (Verdict::Missed, "Missed by 25.0 %.".into()));
        checked.on(&ELSEWHERE);
        assert_eq!(checked.verdict(), Verdict::NotJudged);
        assert_eq!(checked.outcome(), "Not judged here: stated for no such CPU at 1 MHz, 4096 CPUs.");
        let checked = Checked::new("x".into(), 0.0, Bound::AtMost(4.0));
        assert_eq!((checked.verdict(), checked.outcome()), (Verdict::Kept, "Kept by 100.0 %.".into()));
        assert_eq!(Checked::new("x".into(), 0.0, Bound::AtMost(0.0)).outcome(), "Kept.");
    }
}
