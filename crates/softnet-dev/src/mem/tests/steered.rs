//! A pair with RSS.

use softnet_core::steer::{FlowKey, RuleOrder, flow_hash};

use super::*;
use crate::rx_class::RxClassError;

fn rss_pair(ctx: &SoftnetData, queues: usize, ring: usize) -> [OpenDevice; 2] {
    let config = PairConfig { queues, ring, rss: true, ..PairConfig::default() };
    pair(ctx.region(), [3, 4], &config).unwrap()
}

/// UDP from port `port`.
fn udp(ctx: &mut SoftnetData, port: u16) -> Skb {
    let mut skb = packet(ctx, 0, 60);
    skb.data_mut()[12..24].copy_from_slice(&[8, 0, 0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17]);
    skb.data_mut()[34..36].copy_from_slice(&port.to_be_bytes());
    skb
}

fn send(ctx: &mut SoftnetData, queue: &mut Box<dyn crate::TxQueue>, skbs: Vec<Skb>) -> usize {
    let mut batch = Batch::new();
    skbs.into_iter().for_each(|skb| batch.push(skb).unwrap());
    let sent = queue.tx_burst(ctx, &mut batch);
    queue.kick(ctx);
    batch.drain().for_each(|skb| ctx.free_skb(skb));
    sent
}

fn order(text: &str) -> RuleOrder {
    text.parse().unwrap()
}

#[test]
fn packets_go_where_the_receivers_table_says_with_their_hash() {
    let mut ctx = context();
    let [mut a, mut b] = rss_pair(&ctx, 2, 64);
    for tx in 0..2 {
        // Ports that differ in all their bits: by the few of small ones a random key may tell none apart.
        let skbs: Vec<Skb> = (1..41).map(|n: u16| udp(&mut ctx, n.wrapping_mul(0x9e37))).collect();
        let want: Vec<u32> = skbs.iter().map(|skb| flow_hash(skb.data())).collect();
        assert_eq!(send(&mut ctx, &mut a.tx[tx], skbs), 40);
        let mut got = 0;
        for queue in 0..2 {
            assert!(b.rx[queue].doorbell().pending());
            let mut batch = Batch::new();
            got += b.rx[queue].rx_burst(&mut ctx, &mut batch, 64);
            for skb in batch.drain() {
                let hash = flow_hash(skb.data());
                assert!(want.contains(&hash));
                assert_eq!((skb.head().hash, skb.head().queue, skb.head().dev), (hash, hash as u16 & 1, 4));
                ctx.free_skb(skb);
            }
            assert!(!b.rx[queue].doorbell().pending());
        }
        assert_eq!(got, 40);
    }
    // With another key the hash is not softnet's, which is then computed by whatever wants it.
    b.device.set_rss(&"xfrm symmetric-xor".parse().unwrap()).unwrap();
    assert_eq!(b.device.rss().unwrap().xfrm, "symmetric-xor");
    assert_eq!(a.device.rss().unwrap().xfrm, "none", "each port has its own");
    let skb = udp(&mut ctx, 7);
    send(&mut ctx, &mut a.tx[0], vec![skb]);
    let mut batch = Batch::new();
    b.rx.iter_mut().for_each(|queue| _ = queue.rx_burst(&mut ctx, &mut batch, 64));
    assert_eq!((batch.len(), batch.as_slice()[0].head().hash), (1, 0));
    batch.drain().for_each(|skb| ctx.free_skb(skb));
    close(a, &mut ctx);
    close(b, &mut ctx);
    all_home(ctx);
}

/// A queue that is full holds its sender back; what a filter drops takes no place.
#[test]
fn a_full_queue_refuses_and_a_drop_does_not() {
    let mut ctx = context();
    let [mut a, mut b] = rss_pair(&ctx, 2, 4);
    b.device.set_rss(&"equal 1".parse().unwrap()).unwrap();
    let skbs: Vec<Skb> = (0..6).map(|port| udp(&mut ctx, port)).collect();
    assert_eq!(send(&mut ctx, &mut a.tx[0], skbs), 4);
    assert_eq!(a.tx[0].reap(&mut ctx).room, 0);
    // The other TX queue has lanes of its own.
    let skbs: Vec<Skb> = (0..6).map(|port| udp(&mut ctx, port)).collect();
    assert_eq!(send(&mut ctx, &mut a.tx[1], skbs), 4);
    let mut batch = Batch::new();
    assert_eq!(b.rx[0].rx_burst(&mut ctx, &mut batch, 3), 3);
    assert_eq!(b.rx[0].rx_burst(&mut ctx, &mut batch, 64), 5);
    batch.drain().for_each(|skb| ctx.free_skb(skb));
    assert_eq!(b.device.set_rule(&order("flow-type udp4 action -1")).unwrap(), 1023);
    for sent in [4, 8] {
        let skbs: Vec<Skb> = (0..4).map(|port| udp(&mut ctx, port)).collect();
        assert_eq!(send(&mut ctx, &mut a.tx[0], skbs), 4);
        assert_eq!(b.device.losses(), [(DropReason::NtupleDrop, sent)]);
        assert_eq!(b.device.rules().unwrap()[0].packets, Some(sent));
    }
    assert_eq!((b.rx[0].held(), a.tx[0].stats().packets.get()), (0, 12));
    close(a, &mut ctx);
    close(b, &mut ctx);
    all_home(ctx);
}

#[test]
fn packets_on_the_lanes_of_a_closed_pair_go_home() {
    let mut ctx = context();
    let [mut a, b] = rss_pair(&ctx, 2, 64);
    let skbs: Vec<Skb> = (1..41).map(|port| udp(&mut ctx, port)).collect();
    send(&mut ctx, &mut a.tx[1], skbs);
    close(b, &mut ctx);
    assert_eq!(ctx.stats().drops(4, DropReason::Shutdown), 40);
    let skb = udp(&mut ctx, 1);
    assert_eq!(send(&mut ctx, &mut a.tx[0], vec![skb]), 1, "taken, but the other end is gone");
    assert!(a.tx[0].down());
    assert_eq!(ctx.stats().drops(3, DropReason::DevReady), 1);
    close(a, &mut ctx);
    // Neither end is closed.
    let [mut a, b] = rss_pair(&ctx, 2, 64);
    let skbs: Vec<Skb> = (1..41).map(|port| udp(&mut ctx, port)).collect();
    send(&mut ctx, &mut a.tx[1], skbs);
    drop((a, b));
    all_home(ctx);
}

#[test]
fn a_pair_that_is_wired_one_to_one_has_no_rss() {
    let ctx = context();
    let [a, _b] = pair(ctx.region(), [0, 1], &PairConfig::default()).unwrap();
    for error in [a.device.rss().unwrap_err(), a.device.set_rule(&order("delete 1")).unwrap_err()] {
        assert!(
            matches!(error, RxClassError::NotSupported(_)) && error.to_string().contains("PairConfig::rss")
        );
    }
    let nic = nic(5, &NicConfig::default(), vec![(Count(0), Sum(Arc::default()))]).unwrap();
    assert_eq!(
        nic.open.device.rss().unwrap_err().to_string(),
        "not supported: its driver has no way to set RSS or filters"
    );
}

/// What was classified before a filter of a flow was set is in its lane when the device says so.
#[test]
fn a_filter_of_a_flow_is_settled_when_its_senders_have_kicked() {
    let mut ctx = context();
    let [mut a, b] = rss_pair(&ctx, 2, 64);
    assert_eq!(b.device.flow_filters(), 256);
    let skb = udp(&mut ctx, 1);
    let (key, old) = (FlowKey::of(skb.data()).unwrap(), flow_hash(skb.data()) as u16 & 1);
    let mut batch = Batch::from(skb);
    assert_eq!(a.tx[0].tx_burst(&mut ctx, &mut batch), 1);
    assert!(b.device.filters_settled());
    b.device.set_flow_filter(3, Some((&key, 1 - old))).unwrap();
    assert!(!b.device.filters_settled(), "one is not kicked yet");
    // The same flow, by the same TX queue: the older packet is kicked first.
    let skb = udp(&mut ctx, 1);
    assert_eq!(a.tx[0].tx_burst(&mut ctx, &mut Batch::from(skb)), 1);
    assert!(b.device.filters_settled());
    let waiting = |b: &OpenDevice| [old, 1 - old].map(|queue| b.rx[usize::from(queue)].held());
    assert_eq!(waiting(&b), [1, 0]);
    a.tx[0].kick(&mut ctx);
    assert_eq!(waiting(&b), [1, 1]);
    let rule = &b.device.rules().unwrap()[0];
    assert_eq!((rule.location, rule.rfs, rule.packets), (1027, true, Some(1)));
    assert!(rule.rule.ends_with(&format!("action {}", 1 - old)), "{}", rule.rule);
    b.device.set_flow_filter(3, None).unwrap();
    // A burst that nothing came of, and a sender that is gone, hold nothing up.
    a.tx[1].tx_burst(&mut ctx, &mut Batch::new());
    b.device.set_flow_filter(3, None).unwrap();
    assert!(b.device.filters_settled() && b.device.rules().unwrap().is_empty());
    let skb = udp(&mut ctx, 1);
    a.tx[1].tx_burst(&mut ctx, &mut Batch::from(skb));
    b.device.set_flow_filter(3, None).unwrap();
    assert!(!b.device.filters_settled());
    close(a, &mut ctx);
    assert!(b.device.filters_settled());
    close(b, &mut ctx);
    all_home(ctx);
    let ctx = context();
    let [wired, _other] = pair(ctx.region(), [0, 1], &PairConfig::default()).unwrap();
    assert_eq!((wired.device.flow_filters(), wired.device.filters_settled()), (0, true));
    wired.device.set_flow_filter(0, None).unwrap_err();
}
