//! The secret key of the flow hash, drawn once for the process.
//!
//! Called before the first packet is hashed: when a stack starts, and when a device is made that
//! hashes by itself. Any thread may. Invariant: after it was called the key is not a published one,
//! unless the program set that itself, before.

use std::hash::{BuildHasher, RandomState};

use softnet_core::steer::{KEY_LEN, set_flow_hkey};

/// Gives the process a key of its own, by the secret that seeds its hash maps.
pub fn draw() {
    loop {
        let secret = RandomState::new();
        let words: [[u8; 8]; KEY_LEN / 8] = std::array::from_fn(|at| secret.hash_one(at).to_ne_bytes());
        if let Ok(key) = words.as_flattened().try_into()
            // One in some ten thousand is singular.
            && set_flow_hkey(key).is_ok()
        {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use softnet_core::steer::{PUBLISHED_HKEY, RxClass, flow_hash, flow_hkey, format_key, scale};

    use super::*;

    /// UDP over IPv4 between addresses and ports that `n` says.
    fn frame(n: u64) -> Vec<u8> {
        let [mut a, mut b] = [n, !n].map(|n| {
            let n = (n ^ n >> 31).wrapping_mul(0x7fb5_d329_728e_a185);
            (n ^ n >> 27).wrapping_mul(0x81da_def4_bc2d_d44d)
        });
        (a, b) = (a ^ a >> 33, b ^ b >> 33);
        let mut frame = vec![2; 12];
        frame.extend([8, 0, 0x45, 0, 0, 46, 0, 0, 0x40, 0, 64, 17, 0, 0]);
        frame.extend(a.to_be_bytes());
        frame.extend(&b.to_be_bytes()[..4]);
        frame.resize(60, 0);
        frame
    }

    /// A sender that knows the published key makes flows that all come to one of four workers, and to
    /// one of four queues. With the secret one they are spread.
    #[test]
    fn flows_made_for_the_published_key_do_not_come_to_one_worker() {
        draw();
        let key = *flow_hkey();
        draw();
        assert_eq!(*flow_hkey(), key, "drawn once");
        let mut public = RxClass::new(4).unwrap();
        let published = format!("hkey {}", format_key(&PUBLISHED_HKEY));
        public.set_rss(&published.parse().unwrap()).unwrap();
        let made: Vec<_> = (0..)
            .map(frame)
            .filter(|frame| {
                let hash = public.hash(frame);
                scale(hash, 4) == 2 && hash & 3 == 1
            })
            .take(400)
            .collect();
        let (mut workers, mut queues) = ([0; 4], [0; 4]);
        for frame in &made {
            let hash = flow_hash(frame);
            workers[scale(hash, 4)] += 1;
            queues[hash as usize & 3] += 1;
        }
        assert!(workers.iter().chain(&queues).all(|n| (20..300).contains(n)), "{workers:?} {queues:?}");
        assert_eq!(*RxClass::new(4).unwrap().rss().hash().key(), key, "that of devices is the same");
    }
}
