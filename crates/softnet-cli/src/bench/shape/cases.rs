//! What is asked for: rates, bursts and sizes of packets.

/// One shaping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shaping {
    /// Rate in Mbit/s.
    pub(super) mbit: u64,
    /// Bytes of a packet, from the Ethernet header on, without FCS.
    pub(super) size: u16,
    /// Also measured with `--quick`.
    pub(super) quick: bool,
}

const fn shaping(mbit: u64, size: u16, quick: bool) -> Shaping {
    Shaping { mbit, size, quick }
}

/// Those that are measured: full packets at each rate, and as small ones as Ethernet has at rates that are no more
/// packets than one sender brings through a veth pair.
pub(super) const ALL: [Shaping; 4] =
    [shaping(10, 1514, true), shaping(40, 60, true), shaping(100, 1514, false), shaping(1000, 1514, true)];

impl Shaping {
    /// Bytes a second.
    pub(super) fn rate(&self) -> f64 {
        self.mbit as f64 * 1e6 / 8.0
    }

    /// Depth of the bucket in bytes: what the rate brings in 10 ms. `tc-tbf(8)` says to take what it brings between two
    /// ticks of the kernel's clock, of which there are 100 a second at the fewest.
    pub(super) fn burst(&self) -> u64 {
        self.mbit * 1_000_000 / 8 / 100
    }

    /// The discipline in `tc`'s words.
    pub(super) fn tbf(&self) -> String {
        format!("tbf rate {}mbit burst {} latency 50ms", self.mbit, self.burst())
    }

    /// Packets a second that pass.
    pub(super) fn packets(&self) -> f64 {
        self.rate() / f64::from(self.size)
    }

    /// Packets a second that are offered: half as many again.
    pub(super) fn offered(&self) -> u64 {
        (1.5 * self.packets()) as u64
    }
}

#[cfg(test)]
mod tests {
    use softnet_core::qdisc::Spec;

    use super::*;

    #[test]
    fn a_burst_has_room_for_packets() {
        for shaping in ALL {
            assert!(matches!(shaping.tbf().parse(), Ok(Spec::Tbf(_))), "{shaping:?}");
            assert!(shaping.burst() >= 2 * u64::from(shaping.size), "{shaping:?}");
        }
        assert_eq!((ALL[0].burst(), ALL[0].offered()), (12_500, 1238));
    }
}
