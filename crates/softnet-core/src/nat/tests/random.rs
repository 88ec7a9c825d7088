//! Random traffic of several hosts, both ways: what leaves is whole and right, and an external
//! endpoint is one host's.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn endpoints_are_one_to_one(
        steps in prop::collection::vec((0u16..8, 0u8..4, 0usize..3, any::<bool>(), 0u64..6), 1..80),
    ) {
        let mut router = Router::new(&masquerade());
        let mut outside: HashMap<(u8, End4), End4> = HashMap::new();
        for (port, host, number, reply, seconds) in steps {
            router.world.now += seconds * SECOND / 8;
            let number = PROTOCOLS[number];
            let (src, server) = ((Ipv4Addr::host(0, 9 + host), 5000 + port), service(number, SERVER));
            match outside.get(&(number, src)) {
                Some(external) if reply => {
                    let sent = router.world.one(1, frame(1, number, server, *external, ACK, &[host]));
                    // It is asked for where hosts are, but for one.
                    if let Some((0, back)) = sent.iter().find(|(_, frame)| frame[12..14] == [8, 0]) {
                        prop_assert_eq!(said(back).dst, src);
                    }
                }
                _ => {
                    let out = router.out(frame(0, number, src, server, ACK, &[host]));
                    prop_assert_eq!((out.dst, &out.payload[..]), (server, &[host][..]));
                    prop_assert_eq!(out.src.0, OUTSIDE);
                    let known = outside.insert((number, src), out.src);
                    prop_assert!(known.is_none_or(|known| known == out.src));
                    let same = outside.iter().filter(|((of, _), external)| *of == number && **external == out.src);
                    prop_assert_eq!(same.count(), 1);
                }
            }
        }
    }

    /// Whatever comes, from whichever side: no panic, and the books balance.
    #[test]
    fn survives_anything(
        frames in prop::collection::vec((any::<bool>(), 0usize..4, prop::collection::vec((14usize..90, any::<u8>()), 0..6), 20usize..90), 1..20),
    ) {
        let mut router = Router::new(&masquerade());
        let out = router.world.one(0, udp(0, (CLIENT, 5001), (SERVER, 53)));
        for (inside, kind, changes, len) in frames {
            let (dev, src, dst) = if inside { (0, CLIENT, SERVER) } else { (1, SERVER, OUTSIDE) };
            let mut frame = match kind {
                0..3 => frame(dev, PROTOCOLS[kind], (src, 5001), (dst, 53), ACK, b"some bytes of a payload"),
                _ => {
                    let message = [&[3, 1, 0, 0, 0, 0, 0, 0][..], packet(&out[0].1)].concat();
                    crate::ip::slow::world::icmp(dev, src, dst, 9, &message)
                }
            };
            changes.iter().for_each(|(at, byte)| if let Some(to) = frame.get_mut(*at) { *to = *byte });
            frame.truncate(len);
            if frame.len() >= 34 {
                let total = (frame.len() - ETH_LEN) as u16;
                frame[16..18].copy_from_slice(&total.to_be_bytes());
                frame[14] = frame[14].clamp(0x45, 0x46);
                if frame.len() >= 38 {
                    frame = mend(frame);
                }
            }
            router.world.input(dev, &[frame]);
        }
    }
}
