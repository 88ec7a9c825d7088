//! The records that requests are for: their keys and values are functions of their numbers, so that every response
//! can be compared to the last byte, by a process that did not store it.

use super::dist::Dist;
use super::random::{number, share};

/// Longest key that memcached takes.
const MAX_KEY: usize = 250;
/// What sizes and contents are drawn from.
const KEY_SEED: u64 = 0x6b65_7973;
const SIZE_SEED: u64 = 0x7369_7a65;
const VALUE_SEED: u64 = 0x7661_6c75;

/// How many records there are, and how large.
#[derive(Clone, Debug)]
pub(crate) struct Records {
    pub(crate) count: u32,
    pub(crate) key_size: Dist,
    pub(crate) value_size: Dist,
    /// Longer values are cut to this, in bytes.
    pub(crate) max_value: usize,
}

impl Records {
    /// Writes the key of a record to `key`: its number, with zeros before it to make it as long as it shall be (as
    /// mutilate has it); longer, if the largest number takes more.
    pub(crate) fn key(&self, record: u32, key: &mut Vec<u8>) {
        let size = self.key_size.quantile(share(number(KEY_SEED, record.into()))).round() as usize;
        let most = self.count.saturating_sub(1).max(1).ilog10() as usize + 1;
        let size = size.clamp(most, MAX_KEY);
        key.clear();
        key.resize(size, b'0');
        let mut rest = record;
        for digit in key.iter_mut().rev() {
            if rest == 0 {
                break;
            }
            *digit += (rest % 10) as u8;
            rest /= 10;
        }
    }

    /// Bytes of a record's value.
    pub(crate) fn value_len(&self, record: u32) -> usize {
        let size = self.value_size.quantile(share(number(SIZE_SEED, record.into())));
        (size.round() as usize).min(self.max_value)
    }

    /// Appends a record's value.
    pub(crate) fn value(&self, record: u32, value: &mut Vec<u8>) {
        let end = value.len() + self.value_len(record);
        let seed = number(VALUE_SEED, record.into());
        for at in 0.. {
            let left = end - value.len();
            if left == 0 {
                break;
            }
            let piece = number(seed, at).to_le_bytes();
            value.extend_from_slice(&piece[..left.min(8)]);
        }
    }

    /// What the server keeps for the client beside a record's value.
    pub(crate) fn flags(&self, record: u32) -> u32 {
        number(SIZE_SEED ^ VALUE_SEED, record.into()) as u32
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn records(key_size: &str, value_size: &str) -> Records {
        let (key_size, value_size) = (key_size.parse().unwrap(), value_size.parse().unwrap());
        Records { count: 10_000, key_size, value_size, max_value: 1300 }
    }

    #[test]
    fn keys_are_distinct_and_as_long_as_they_shall_be() {
        let records = records("fb_key", "10");
        let mut keys = HashSet::new();
        let (mut key, mut sum) = (Vec::new(), 0);
        for record in 0..records.count {
            records.key(record, &mut key);
            assert!((4..=MAX_KEY).contains(&key.len()));
            assert!(key.iter().all(u8::is_ascii_digit));
            assert_eq!(std::str::from_utf8(&key).unwrap().parse::<u32>().unwrap(), record);
            sum += key.len();
            keys.insert(key.clone());
        }
        assert_eq!(keys.len(), 10_000);
        let mean = f64::from(sum as u32) / 10_000.0;
        assert!((35.0..37.5).contains(&mean), "{mean}: the mean of the distribution is 36.3");
    }

    #[test]
    fn keys_have_room_for_the_largest_number() {
        let mut key = Vec::new();
        for (count, expected) in [(1, 1), (2, 1), (10, 1), (11, 2), (1_000_000, 6), (1_000_001, 7)] {
            let records = Records { count, ..records("1", "1") };
            records.key(count - 1, &mut key);
            assert_eq!(key.len(), expected, "{count} records");
        }
        records("1000", "1").key(7, &mut key);
        assert_eq!(key.len(), MAX_KEY);
    }

    #[test]
    fn values_are_functions_of_the_number() {
        let records = records("10", "fb_value");
        let value = |record| {
            let mut value = b"x".to_vec();
            records.value(record, &mut value);
            value.split_off(1)
        };
        let mut seen = HashSet::new();
        let mut cut = 0;
        for record in 0..2_000 {
            let one = value(record);
            assert_eq!(one, value(record));
            assert_eq!(one.len(), records.value_len(record));
            assert!(one.len() <= 1300);
            cut += usize::from(one.len() == 1300);
            if one.len() > 10 {
                assert!(seen.insert(one), "{record}: no two are alike");
            }
        }
        // P(size > 1300) = 0.558 (1 + 0.348238 · 1285 / 214.476)^(-1 / 0.348238) = 2.2 %.
        assert!((25..70).contains(&cut), "{cut}");
    }
}
