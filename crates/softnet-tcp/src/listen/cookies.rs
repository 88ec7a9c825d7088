//! SYN cookies (RFC 4987 3.6), in Linux's form.
//!
//! When the request queue overflows, the SYN-ACK's sequence number says all that a request would
//! have held: ISN = H1(tuple) + SEG.SEQ + (minutes << 24) + ((H2(tuple, minutes) + MSS index)
//! mod 2²⁴). With timestamps, the low six bits of TSval carry the window scale, SACK and ECN. A
//! cookie is good for one to two minutes.

use crate::isn::{KeyedHash, Tuple};
use crate::seq::Seq;
use crate::time::Instant;

/// Bits of the hash and the index; the minutes stand above.
const BITS: u32 = 24;
const MASK: u32 = (1 << BITS) - 1;
/// Minutes that a cookie is good for.
const MAX_AGE: u32 = 2;
/// The segment sizes that a cookie can tell.
const MSS_V4: [u16; 4] = [536, 1300, 1440, 1460];
const MSS_V6: [u16; 4] = [1280 - 60, 1480 - 60, 1500 - 60, 9000 - 60];

const TS_BITS: u32 = 6;
const TS_MASK: u32 = (1 << TS_BITS) - 1;
const TS_NO_SCALE: u32 = 0xf;
const TS_SACK: u32 = 1 << 4;
const TS_ECN: u32 = 1 << 5;

/// What a peer offered, as far as a timestamp can carry it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CookieOptions {
    /// The shift of the peer's windows.
    pub window_scale: Option<u8>,
    /// Whether the peer takes selective acknowledgements.
    pub sack: bool,
    /// Whether ECN was agreed on.
    pub ecn: bool,
}

fn sizes(tuple: &Tuple) -> &'static [u16; 4] {
    if tuple.local.to_canonical().is_ipv4() { &MSS_V4 } else { &MSS_V6 }
}

fn hash(key: &impl KeyedHash, tuple: &Tuple, count: u32, which: u64) -> u32 {
    let [a, b, c, d, ports] = tuple.words();
    key.hash(&[a, b, c, d, ports, u64::from(count) << 1 | which]) as u32
}

fn minutes(now: Instant) -> u32 {
    (now.0 / 60_000_000) as u32
}

/// The sequence number of the SYN-ACK for a SYN at `irs` that offered `mss`, and the size that
/// it stands for.
pub fn cookie(key: &impl KeyedHash, tuple: &Tuple, now: Instant, irs: Seq, mss: u16) -> (Seq, u16) {
    let sizes = sizes(tuple);
    let index = sizes.iter().rposition(|size| *size <= mss).unwrap_or(0);
    let count = minutes(now);
    let low = hash(key, tuple, count, 1).wrapping_add(index as u32) & MASK;
    let seq = hash(key, tuple, 0, 0).wrapping_add(irs.0).wrapping_add(count << BITS).wrapping_add(low);
    (Seq(seq), sizes[index])
}

/// The MSS that a cookie stands for, if `cookie` (SEG.ACK − 1) is one for the SYN at `irs`.
pub fn check(key: &impl KeyedHash, tuple: &Tuple, now: Instant, irs: Seq, cookie: Seq) -> Option<u16> {
    let rest = cookie.0.wrapping_sub(hash(key, tuple, 0, 0)).wrapping_sub(irs.0);
    let count = minutes(now);
    // How old it says it is, by its eight bits of the count.
    let age = count.wrapping_sub(rest >> BITS) & (u32::MAX >> BITS);
    if age >= MAX_AGE {
        return None;
    }
    let index = rest.wrapping_sub(hash(key, tuple, count.wrapping_sub(age), 1)) & MASK;
    sizes(tuple).get(index as usize).copied()
}

/// TSval for a SYN-ACK with a cookie: the clock `ts_now`, its low bits replaced, and never after
/// it.
pub fn timestamp(ts_now: u32, options: CookieOptions) -> u32 {
    let bits = options.window_scale.map_or(TS_NO_SCALE, |shift| u32::from(shift.min(14)))
        | if options.sack { TS_SACK } else { 0 }
        | if options.ecn { TS_ECN } else { 0 };
    let ts = ts_now & !TS_MASK | bits;
    if ts.wrapping_sub(ts_now) as i32 > 0 { ts.wrapping_sub(1 << TS_BITS) } else { ts }
}

/// The options in the TSecr of the ACK that completes the handshake.
pub fn options_of(ecr: u32) -> CookieOptions {
    let scale = ecr & TS_NO_SCALE;
    CookieOptions {
        window_scale: (scale != TS_NO_SCALE).then_some((scale as u8).min(14)),
        sack: ecr & TS_SACK != 0,
        ecn: ecr & TS_ECN != 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{test_hash, tuple};
    use proptest::prelude::*;

    #[test]
    fn a_cookie_is_good_for_one_to_two_minutes() {
        let minute = 60_000_000;
        for start in [0, 5 * minute, 255 * minute, 256 * minute + 7, (1 << 24) * minute] {
            let (seq, mss) = cookie(&test_hash, &tuple(), Instant(start), Seq(77), 1450);
            assert_eq!(mss, 1440);
            let at = |later| check(&test_hash, &tuple(), Instant(start + later), Seq(77), seq);
            assert_eq!((at(0), at(minute)), (Some(1440), Some(1440)));
            assert_eq!((at(2 * minute), at(100 * minute)), (None, None));
            assert_eq!(check(&test_hash, &tuple(), Instant(start), Seq(177), seq), None);
        }
        assert_eq!(cookie(&test_hash, &tuple(), Instant(0), Seq(1), 10).1, 536);
        assert_eq!(cookie(&test_hash, &tuple(), Instant(0), Seq(1), 9000).1, 1460);
    }

    proptest! {
        #[test]
        fn the_timestamp_carries_options_and_is_not_in_the_future(
            now: u32, shift in prop::option::of(0u8..15), sack: bool, ecn: bool,
        ) {
            let options = CookieOptions { window_scale: shift, sack, ecn };
            let ts = timestamp(now, options);
            prop_assert!(now.wrapping_sub(ts) < 64);
            prop_assert_eq!(options_of(ts), options);
        }

        #[test]
        fn a_guess_is_no_cookie(irs: u32, guess: u32, minute in 0u64..10_000) {
            let now = Instant(minute * 60_000_000);
            let good = check(&test_hash, &tuple(), now, Seq(irs), Seq(guess)).is_some();
            let known = [0, 1].iter().any(|age| {
                let then = Instant(minute.saturating_sub(*age) * 60_000_000);
                [536, 1300, 1440, 1460].iter().any(|mss| {
                    cookie(&test_hash, &tuple(), then, Seq(irs), *mss).0 == Seq(guess)
                })
            });
            prop_assert_eq!(good, known);
        }
    }
}
