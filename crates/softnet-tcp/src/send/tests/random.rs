//! Properties over random paths: everything arrives, the identities hold after every input (which
//! [`Talk`] asserts), no packet leaves beyond a window, and nothing stalls.

use super::net::{Net, Path};
use super::*;
use proptest::prelude::*;

fn path() -> impl Strategy<Value = Path> {
    let rates = (0u32..250, 0u32..500, 0u32..300, 0u32..50, 0u32..3, 0u32..200);
    let times = (50u32..100_000, 1u32..60_000, 0u64..5_000_000, 0u32..3);
    let peer = any::<(bool, bool, bool, bool)>();
    let sizes = (2_000u32..300_000, 1u32..400_000, any::<u32>(), any::<bool>(), 0u8..4);
    (any::<u64>(), rates, times, peer, sizes).prop_map(|(seed, rates, times, peer, sizes)| {
        let (loss, ack_loss, reorder, duplicate, renege, ecn) = rates;
        let (delay, late, heals, reader) = times;
        let (sack, dsack, timestamps, delayed_ack) = peer;
        let (buffer, bytes, base, super_segments, kind) = sizes;
        Path {
            seed,
            // Half of the paths lose little.
            loss: if seed % 2 == 0 { loss / 10 } else { loss },
            ack_loss: if seed % 3 == 0 { ack_loss } else { 0 },
            reorder: if seed % 5 < 2 { reorder } else { 0 },
            duplicate,
            delay,
            late,
            renege: if renege == 2 { 50 } else { 0 },
            sack: sack || seed % 4 != 0,
            dsack,
            timestamps,
            delayed_ack,
            buffer,
            read_every: if reader == 0 { 20_000 } else { 0 },
            bytes,
            // A third of the streams cross the wrap.
            base: if base % 3 == 0 { 0u32.wrapping_sub(bytes / 2) } else { base },
            heals,
            super_segments,
            ecn: ecn.saturating_sub(150),
            congestion: match kind {
                0 => CongestionControl::Reno,
                1 => CongestionControl::Dctcp,
                _ => CongestionControl::Cubic,
            },
            linux: kind == 3,
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn everything_arrives(path in path()) {
        Net::new(path).run();
    }

    /// Whatever a peer says, the identities hold: numbers, blocks and echoes are random.
    #[test]
    fn no_peer_breaks_the_books(
        seed in any::<u64>(),
        sack in any::<bool>(),
        steps in proptest::collection::vec(
            (0u8..12, 0u32..40, 0u32..60, 0u32..60, any::<u32>(), any::<bool>()), 1..200),
    ) {
        let mut talk = Talk::new(Begin { sack, ..Begin::default() });
        let mut written = 0;
        for (kind, n, a, b, odd, bit) in steps {
            match kind {
                0 => {
                    talk.write(n % 12);
                    written += n % 12;
                }
                1 => talk.write_bytes(odd % 3000),
                2 => talk.until(talk.ms() + u64::from(n) * 10),
                3 => talk.wnd = n * 500,
                4 if !bit => {
                    talk.sender.set_mss(100 + (odd % 1400) as u16);
                    talk.output();
                }
                _ => {
                    let una = (talk.sender.una() - talk.base) / MSS;
                    let range = crate::wire::SackRange {
                        start: talk.seq(una) + odd % (20 * MSS),
                        end: talk.seq(una) + odd.rotate_left(9) % (20 * MSS),
                    };
                    let aligned = crate::wire::SackRange { start: talk.seq(a), end: talk.seq(b) };
                    let near = crate::wire::SackRange {
                        start: talk.seq((una + a % 10).saturating_sub(2)),
                        end: talk.seq(una + a % 10 + b % 7),
                    };
                    let blocks = [near, aligned, range, near];
                    let ack = if bit { talk.seq(una + n % 4) } else { talk.sender.una() + odd % 1500 };
                    let input = AckInput {
                        ack: if seed % 7 == u64::from(kind) { talk.seq(n) } else { ack },
                        sack: &blocks[..(odd % 5) as usize],
                        tsecr: (odd % 3 == 0).then_some(odd % 4000),
                        ece: odd % 11 == 0,
                        payload: odd % 5 == 0,
                        window_changed: odd % 6 == 0,
                        segs: (odd % 4) as u16,
                        max_window: 1 << 16,
                    };
                    talk.ack_input(&input);
                }
            }
        }
        let _ = written;
    }
}

/// The worst of the sheet's list in one: half of the ACKs lost, a fifth of the data.
#[test]
fn a_terrible_path_delivers_across_the_wrap() {
    for seed in 0..50 {
        let path = Path {
            seed,
            loss: 200,
            ack_loss: 500,
            reorder: 300,
            duplicate: 50,
            delay: 10_000,
            late: 40_000,
            renege: 10,
            sack: seed % 5 != 0,
            dsack: seed % 2 == 0,
            timestamps: seed % 3 == 0,
            delayed_ack: true,
            buffer: 65_535,
            read_every: 0,
            bytes: 200_000,
            base: 0u32.wrapping_sub(10 * MSS),
            heals: u64::MAX,
            super_segments: false,
            ecn: 0,
            congestion: CongestionControl::Cubic,
            linux: false,
        };
        Net::new(path).run();
    }
}
