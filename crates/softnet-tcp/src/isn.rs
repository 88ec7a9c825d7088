//! Initial sequence numbers and timestamp offsets (RFC 6528, RFC 7323 7.1).
//!
//! "ISN = M + F(localip, localport, remoteip, remoteport, secretkey)", where M is a clock of 64 ns
//! and F a keyed hash that cannot be computed from outside. One 64-bit hash gives both: its low
//! half the number, its high half the offset of the connection's timestamps.

use std::net::IpAddr;

use crate::seq::Seq;
use crate::time::Instant;

/// The two ends of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tuple {
    /// Address of this end.
    pub local: IpAddr,
    /// Address of the other end.
    pub remote: IpAddr,
    /// Port of this end.
    pub local_port: u16,
    /// Port of the other end.
    pub remote_port: u16,
}

impl Tuple {
    /// The tuple as words to be hashed.
    pub fn words(&self) -> [u64; 5] {
        let [a, b] = halves(self.local);
        let [c, d] = halves(self.remote);
        [a, b, c, d, u64::from(self.local_port) << 16 | u64::from(self.remote_port)]
    }
}

fn halves(addr: IpAddr) -> [u64; 2] {
    let bits = match addr {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().to_bits(),
        IpAddr::V6(v6) => v6.to_bits(),
    };
    [(bits >> 64) as u64, bits as u64]
}

/// A hash that cannot be predicted without a secret, over words of eight bytes: SipHash-2-4 or as
/// good. The host owns the algorithm and the key, which has to be random in every boot.
pub trait KeyedHash {
    /// The hash of `words`.
    fn hash(&self, words: &[u64]) -> u64;
}

impl<F: Fn(&[u64]) -> u64> KeyedHash for F {
    fn hash(&self, words: &[u64]) -> u64 {
        self(words)
    }
}

/// What a connection's numbers start at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Initial {
    /// ISS.
    pub seq: Seq,
    /// What is added to the millisecond clock for TSval.
    pub ts_offset: u32,
}

/// The numbers of a new connection; `random_offset` as `tcp_timestamps` = 1 wants it.
pub fn initial(key: &impl KeyedHash, tuple: &Tuple, now: Instant, random_offset: bool) -> Initial {
    let hash = key.hash(&tuple.words());
    // 64 ns a tick: 15.625 a microsecond.
    let ticks = (u128::from(now.0) * 1000 / 64) as u32;
    Initial {
        seq: Seq((hash as u32).wrapping_add(ticks)),
        ts_offset: if random_offset { (hash >> 32) as u32 } else { 0 },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::test_hash;

    #[test]
    fn numbers_advance_with_the_clock_and_differ_by_tuple() {
        let mut tuple = Tuple {
            local: "192.0.2.1".parse().unwrap(),
            remote: "192.0.2.2".parse().unwrap(),
            local_port: 80,
            remote_port: 1000,
        };
        let first = initial(&test_hash, &tuple, Instant(0), true);
        let later = initial(&test_hash, &tuple, Instant(64), true);
        assert_eq!(later.seq - first.seq, 1000, "15.625 a microsecond");
        assert_eq!(later.ts_offset, first.ts_offset);
        assert_eq!(initial(&test_hash, &tuple, Instant(0), false).ts_offset, 0);
        tuple.remote_port += 1;
        let other = initial(&test_hash, &tuple, Instant(0), true);
        assert!(other.seq != first.seq && other.ts_offset != first.ts_offset);
        let v6 = Tuple { local: "::ffff:192.0.2.1".parse().unwrap(), ..tuple };
        assert_eq!(v6.words(), tuple.words(), "a mapped address is the address");
    }
}
