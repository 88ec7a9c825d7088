//! Adaptive coalescing, in the spirit of Linux's DIM (`lib/dim`): steps through a table of profiles by what was seen.
//! Pure; part of a [`Coalescer`](super::coalesce::Coalescer).
//!
//! A window lasts until 64 interrupts or one millisecond have passed, whichever is first. It asks for a step up if
//! there were more than [`HIGH`] interrupts in a millisecond (that is packet rate by packets per interrupt, so that
//! load which is polled without interrupts asks for nothing), and for a step down if at this packet rate the profile
//! below would make fewer than [`LOW`]. Two windows in a row must ask for the same. Unlike DIM it does not compare
//! throughput before and after a step.

use super::coalesce::Coalesce;

/// `(rx_usecs, rx_frames)`. Against a driver that is idle for every packet, a profile is reached and left at these
/// packet rates (in 1000 a second):
///
/// | rx_usecs | rx_frames | reached above | left below |
/// |---:|---:|---:|---:|
/// | 0 | 1 | | |
/// | 8 | 16 | 20 | 16 |
/// | 16 | 32 | 23.8 | 18.3 |
/// | 64 | 64 | 29.4 | 21.5 |
/// | 128 | 128 | 1280 | 1024 |
const PROFILES: [(u32, u32); 5] = [(0, 1), (8, 16), (16, 32), (64, 64), (128, 128)];

/// Interrupts in a millisecond that ask for a step up.
const HIGH: f64 = 20.0;
/// Interrupts in a millisecond that would still be few.
const LOW: f64 = 16.0;

/// Interrupts that end a window.
const WINDOW_INTERRUPTS: u64 = 64;
/// Nanoseconds that end a window.
const WINDOW_NS: u64 = 1_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Down,
    Stay,
    Up,
}

/// What the present window has seen, and the present profile.
pub(super) struct Dim {
    profile: usize,
    began: u64,
    packets: u64,
    interrupts: u64,
    /// What the last window asked for.
    asked: Step,
}

impl Default for Dim {
    fn default() -> Self {
        Dim { profile: 0, began: 0, packets: 0, interrupts: 0, asked: Step::Stay }
    }
}

/// Interrupts in a millisecond that `profile` makes of `packets` in a millisecond, if each finds the driver idle.
fn expected((usecs, frames): (u32, u32), packets: f64) -> f64 {
    let by_time = packets / (1.0 + packets * f64::from(usecs) / 1000.0);
    by_time.max(packets / f64::from(frames))
}

/// What a window asks for that saw so many packets and interrupts in a millisecond.
fn ask(profile: usize, packets: f64, interrupts: f64) -> Step {
    if profile + 1 < PROFILES.len() && interrupts > HIGH {
        Step::Up
    } else if profile > 0 && expected(PROFILES[profile - 1], packets) < LOW {
        Step::Down
    } else {
        Step::Stay
    }
}

impl Dim {
    /// The present profile.
    pub(super) fn values(&self) -> Coalesce {
        let (rx_usecs, rx_frames) = PROFILES[self.profile];
        Coalesce { rx_usecs, rx_frames, adaptive: true }
    }

    /// `n` packets came.
    pub(super) fn arrived(&mut self, n: u64) {
        self.packets += n;
    }

    /// There was an interrupt.
    pub(super) fn interrupted(&mut self) {
        self.interrupts += 1;
    }

    /// It is `now` (ns): ends the window if it is over.
    pub(super) fn tick(&mut self, now: u64) {
        let elapsed = now.saturating_sub(self.began);
        if elapsed < WINDOW_NS && self.interrupts < WINDOW_INTERRUPTS {
            return;
        }
        let in_a_millisecond = |n: u64| n as f64 * 1e6 / elapsed.max(1) as f64;
        let asked = ask(self.profile, in_a_millisecond(self.packets), in_a_millisecond(self.interrupts));
        let mut next = Dim { profile: self.profile, began: now, asked, ..Dim::default() };
        if asked == self.asked && asked != Step::Stay {
            // `ask` stays within the table. The next step needs two windows again.
            next.profile = if asked == Step::Up { self.profile + 1 } else { self.profile - 1 };
            next.asked = Step::Stay;
        }
        *self = next;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs one window of a millisecond.
    fn window(dim: &mut Dim, packets: u64, interrupts: u64) -> u32 {
        dim.packets += packets;
        dim.interrupts += interrupts;
        dim.tick(dim.began + WINDOW_NS);
        dim.values().rx_usecs
    }

    #[test]
    fn two_windows_in_a_row_make_a_step() {
        let mut dim = Dim::default();
        assert_eq!(window(&mut dim, 50, 50), 0);
        assert_eq!(window(&mut dim, 50, 50), 8);
        assert_eq!(window(&mut dim, 50, 30), 8, "each step needs two");
        assert_eq!(window(&mut dim, 20, 18), 8, "not in a row");
        assert_eq!(window(&mut dim, 50, 30), 8);
        assert_eq!(window(&mut dim, 50, 30), 16);
        assert_eq!(window(&mut dim, 1, 1), 16);
        assert_eq!(window(&mut dim, 0, 0), 8);
    }

    #[test]
    fn the_table_has_two_ends() {
        let mut dim = Dim::default();
        for _ in 0..20 {
            window(&mut dim, 4000, 40);
        }
        assert_eq!(dim.values(), Coalesce { rx_usecs: 128, rx_frames: 128, adaptive: true });
        for _ in 0..20 {
            window(&mut dim, 0, 0);
        }
        assert_eq!(dim.values(), Coalesce { rx_usecs: 0, rx_frames: 1, adaptive: true });
    }

    #[test]
    fn load_that_is_polled_asks_for_nothing() {
        let mut dim = Dim::default();
        for _ in 0..20 {
            window(&mut dim, 4000, 2);
        }
        assert_eq!(dim.values().rx_usecs, 0);
    }

    #[test]
    fn a_window_ends_by_interrupts_too() {
        let mut dim = Dim::default();
        for now in 1..=2 {
            (0..63).for_each(|_| dim.interrupted());
            dim.arrived(64);
            dim.tick(now * 100_000);
            assert_eq!(dim.interrupts, 63, "not over");
            dim.interrupted();
            dim.tick(now * 100_000);
            assert_eq!(dim.interrupts, 0);
        }
        assert_eq!(dim.values().rx_usecs, 8);
    }

    /// The rates of the table, for a driver that is idle for every packet.
    #[test]
    fn profiles_are_reached_and_left_where_the_table_says() {
        let rates = [(20.0, 16.0), (23.8, 18.3), (29.4, 21.5), (1280.0, 1024.0)];
        for (below, (reached, left)) in rates.into_iter().enumerate() {
            let seen = |rate: f64| ask(below, rate, expected(PROFILES[below], rate));
            assert_ne!(seen(reached * 0.99), Step::Up);
            assert_eq!(seen(reached * 1.01), Step::Up);
            let seen = |rate: f64| ask(below + 1, rate, expected(PROFILES[below + 1], rate));
            assert_ne!(seen(left * 1.01), Step::Down);
            assert_eq!(seen(left * 0.99), Step::Down);
        }
    }
}
