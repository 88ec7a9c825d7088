//! Interrupt coalescing: when packets that wait are reason enough to interrupt. State of a [`NicPort`](super::NicPort).
//!
//! Pure: time and positions come in as arguments, and the answer is a time. Invariant: while a packet waits there is
//! such a time, and it lies no later than `rx_usecs` after the oldest one came.

use super::dim::Dim;

/// How long a NIC gathers packets before it interrupts; fields are named as `ethtool -C` names them. The default
/// interrupts for every packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Coalesce {
    /// Interrupt so many microseconds after the first packet that waits.
    pub rx_usecs: u32,
    /// Interrupt when so many packets wait, if that is earlier; 0: the time alone decides.
    pub rx_frames: u32,
    /// The NIC chooses both by the load, in the place of the two above.
    pub adaptive: bool,
}

impl Coalesce {
    /// Refuses what would let packets wait for ever.
    fn check(&self) -> Result<(), String> {
        if !self.adaptive && self.rx_usecs == 0 && self.rx_frames > 1 {
            return Err(format!(
                "rx_frames {} with rx_usecs 0: fewer packets than rx_frames would never interrupt; set rx_usecs too, \
                 or rx_frames to 0 or 1",
                self.rx_frames
            ));
        }
        Ok(())
    }

    fn at_once(&self) -> bool {
        !self.adaptive && self.rx_usecs == 0
    }
}

/// When each waiting packet came, and what that means for the interrupt.
pub(super) struct Coalescer {
    /// The values in force.
    values: Coalesce,
    /// Arrival times, by position modulo the number of places.
    times: Box<[u64]>,
    dim: Option<Dim>,
}

impl Coalescer {
    /// For a ring of `places`, a power of two. `None` if nothing is to be coalesced.
    pub(super) fn new(config: Coalesce, places: usize) -> Result<Option<Self>, String> {
        config.check()?;
        if config.at_once() {
            return Ok(None);
        }
        let dim = config.adaptive.then(Dim::default);
        let values = dim.as_ref().map_or(config, Dim::values);
        Ok(Some(Coalescer { values, times: vec![0; places].into(), dim }))
    }

    fn place(&self, position: u64) -> usize {
        position as usize & (self.times.len() - 1)
    }

    /// `n` packets came at `now` (ns) and have the positions from `first` on. There were places for them.
    pub(super) fn arrived(&mut self, first: u64, n: u64, now: u64) {
        for i in 0..n {
            self.times[self.place(first.wrapping_add(i))] = now;
        }
        if let Some(dim) = &mut self.dim {
            dim.arrived(n);
        }
    }

    /// When to interrupt (ns) if the packets of the `waiting` positions from `first` on wait; may be past.
    pub(super) fn due_at(&self, first: u64, waiting: u64) -> Option<u64> {
        if waiting == 0 {
            return None;
        }
        let came = |i: u64| self.times[self.place(first.wrapping_add(i))];
        let by_time = came(0).saturating_add(u64::from(self.values.rx_usecs) * 1000);
        let frames = u64::from(self.values.rx_frames);
        let by_count = if (1..=waiting).contains(&frames) { came(frames - 1) } else { u64::MAX };
        Some(by_time.min(by_count))
    }

    /// It is `now` (ns): adapts.
    pub(super) fn tick(&mut self, now: u64) {
        if let Some(dim) = &mut self.dim {
            dim.tick(now);
            self.values = dim.values();
        }
    }

    /// There was an interrupt.
    pub(super) fn interrupted(&mut self) {
        if let Some(dim) = &mut self.dim {
            dim.interrupted();
        }
    }

    /// The values in force.
    pub(super) fn values(&self) -> Coalesce {
        self.values
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn coalescer(rx_usecs: u32, rx_frames: u32) -> Option<Coalescer> {
        Coalescer::new(Coalesce { rx_usecs, rx_frames, adaptive: false }, 8).unwrap()
    }

    #[test]
    fn by_time_or_by_count_whichever_is_first() {
        let mut c = coalescer(10, 3).unwrap();
        assert_eq!(c.due_at(0, 0), None);
        c.arrived(0, 1, 5_000);
        c.arrived(1, 1, 9_000);
        assert_eq!(c.due_at(0, 2), Some(15_000), "10 us after the first");
        c.arrived(2, 2, 12_000);
        assert_eq!(c.due_at(0, 4), Some(12_000), "when the third came");
        assert_eq!(c.due_at(1, 3), Some(12_000));
        assert_eq!(c.due_at(2, 2), Some(22_000), "of those that are left");
        assert_eq!(c.due_at(4, 0), None);
    }

    #[test]
    fn time_alone_decides_without_a_number_of_frames() {
        let mut c = coalescer(10, 0).unwrap();
        c.arrived(0, 8, 1_000);
        assert_eq!(c.due_at(0, 8), Some(11_000));
    }

    #[test]
    fn positions_wrap() {
        let mut c = coalescer(1, 4).unwrap();
        let first = u64::MAX - 1;
        c.arrived(first, 2, 1_000);
        c.arrived(first.wrapping_add(2), 2, 1_500);
        assert_eq!(c.due_at(first, 3), Some(2_000));
        assert_eq!(c.due_at(first, 4), Some(1_500));
        assert_eq!(c.due_at(0, 2), Some(2_500));
    }

    #[test]
    fn what_interrupts_for_every_packet_is_not_coalesced() {
        assert!(coalescer(0, 0).is_none());
        assert!(coalescer(0, 1).is_none());
    }

    #[test]
    fn a_count_without_a_time_is_refused() {
        let count = Coalesce { rx_frames: 32, ..Coalesce::default() };
        let Err(error) = Coalescer::new(count, 8) else { panic!("accepted") };
        assert!(error.contains("rx_frames 32") && error.contains("rx_usecs 0"), "{error}");
        assert!(Coalescer::new(Coalesce { adaptive: true, ..count }, 8).is_ok(), "the NIC chooses both");
    }
}
