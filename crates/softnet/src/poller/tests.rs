//! What can happen between two steps of one call. Nothing runs but the test.

use std::sync::Mutex;

use softnet_core::skb::{CacheSizes, HEADROOM};
use softnet_dev::mem::{PairConfig, pair};
use softnet_dev::{OpenDevice, TxQueue};

use super::*;
use crate::Assembly;
use crate::config::{Config, DeviceConfig};
use crate::timer::Timeout;

const HOUR: u64 = 3_600_000_000_000;

/// A device with a packet in its ring, and the far end of its wire.
fn one_packet() -> (Assembly, Box<dyn TxQueue>, SoftnetData) {
    let far = Arc::new(Mutex::new(None));
    let devices =
        vec![DeviceConfig { addresses: vec!["10.0.0.1/24".parse().unwrap()], ..DeviceConfig::new("a") }];
    let assembly = Assembly::new(Config { devices, ..Config::default() }, vec![], {
        let far = far.clone();
        move |_| {
            Ok(move |_: u16, _: &DeviceConfig, ctx: &mut SoftnetData| -> Result<OpenDevice, String> {
                let [near, end] = pair(ctx.region(), [0, 9], &PairConfig::default()).unwrap();
                *far.lock().unwrap() = Some(end);
                Ok(near)
            })
        }
    });
    let mut assembly = assembly.unwrap();
    // The first poll, for nothing.
    assembly.workers[0].round();
    let mut tx = far.lock().unwrap().take().unwrap().tx.remove(0);
    let mut ctx = SoftnetData::new(assembly.shared.region.clone(), CacheSizes::default());
    let frame = ctx.alloc_frame().unwrap();
    let mut batch = Batch::new();
    batch.push(ctx.build_skb(frame, HEADROOM, 60).unwrap_or_else(|_| panic!("no head"))).unwrap();
    assert_eq!(tx.tx_burst(&mut ctx, &mut batch), 1);
    tx.kick(&mut ctx);
    (assembly, tx, ctx)
}

/// A stop that leaves the timer to the suspension which is to follow, and then that does not come about.
#[test]
fn a_suspend_timeout_that_is_set_to_0_meanwhile_leaves_a_timer() {
    for (s, expected) in [(0, Timeout::GroFlush), (2 * HOUR, Timeout::IrqSuspend)] {
        let (assembly, tx, mut ctx) = one_packet();
        let instance = assembly.shared.napis().remove(0);
        instance.napi.mitigation.set_defer_hard_irqs(9).unwrap();
        instance.napi.mitigation.set_gro_flush_timeout(HOUR);
        instance.napi.mitigation.set_irq_suspend_timeout(2 * HOUR);
        let params = PollerParams { prefer_busy_poll: true, ..PollerParams::default() };
        let mut poller =
            NapiPoller::new(&assembly.shared, instance.napi.id, "t", Filter::All, params).unwrap();
        poller.busy.busy_loop(&mut poller.inbox, None);
        assert!(poller.inbox.is_ready() && !instance.timer.is_armed());
        instance.napi.mitigation.set_irq_suspend_timeout(s);
        let mut batch = Batch::new();
        let n = poller.inbox.take(&mut poller.busy.env.ctx, &mut batch);
        poller.busy.suspend(n);
        assert_eq!((n, instance.timer.armed().map(|(timeout, ..)| timeout)), (1, Some(expected)));
        batch.drain().for_each(|skb| poller.ctx().free_skb(skb));
        drop(poller);
        tx.close(&mut ctx);
    }
}
