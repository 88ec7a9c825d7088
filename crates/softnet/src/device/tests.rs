use softnet_core::SoftnetData;
use softnet_core::skb::{Batch, DropReason};

use super::filter;
use super::{Netdev, TxHint, dev_queue_xmit};
use crate::control::{Action, Direction, MirredAction, SetFilter, SetMirred};
use crate::testing::World;

/// One packet of a byte.
fn packet(ctx: &mut SoftnetData, byte: u8) -> Batch {
    let mut batch = Batch::new();
    let mut skb = ctx.alloc_skb().unwrap();
    skb.put(60).unwrap().fill(byte);
    batch.push(skb).unwrap();
    batch
}

impl World {
    /// What came out at the far end of a device, by first bytes.
    fn came_out(&mut self, device: usize) -> Vec<u8> {
        let mut batch = Batch::new();
        self.ends[device].rx_burst(&mut self.ctx, &mut batch, 64);
        batch
            .drain()
            .map(|skb| {
                let first = skb.data()[0];
                self.ctx.free_skb(skb);
                first
            })
            .collect()
    }
}

/// Netdevs on one device send by its queues; what is set for one of them is not for the others.
#[test]
fn a_device_carries_several_netdevs() {
    let mut world = World::new(2);
    let shared = world.assembly.shared.clone();
    let own = &shared.netdevs[0];
    let other = Netdev::new(9, "d0.9".into(), shared.devices[0].clone());
    let send = |world: &mut World, netdev: &Netdev, byte| {
        let mut batch = packet(&mut world.ctx, byte);
        dev_queue_xmit(&mut world.ctx, netdev, 1, TxHint::forwarded(0), &mut batch);
        assert!(batch.is_empty());
    };
    send(&mut world, own, 1);
    send(&mut world, &other, 2);
    assert_eq!((world.came_out(0), world.came_out(1)), (vec![1, 2], vec![]));
    let mirred = SetMirred { action: MirredAction::Redirect, direction: Direction::Egress, dev: "d1".into() };
    let redirect =
        SetFilter { dev: "d0".into(), parent: Direction::Egress, action: Action::Add, mirred: Some(mirred) };
    filter::set(&shared.netdevs, &redirect).unwrap();
    send(&mut world, own, 3);
    send(&mut world, &other, 4);
    assert_eq!((world.came_out(0), world.came_out(1)), (vec![4], vec![3]));
    // Without its device none of them sends.
    let live = shared.devices[0].live.swap(None);
    send(&mut world, &other, 5);
    let drops = |world: &World, dev| world.ctx.stats().drops(dev, DropReason::DevReady);
    assert_eq!((drops(&world, 0), drops(&world, 9)), (0, 1));
    shared.devices[0].live.store(live);
    drop(shared);
    world.close();
}
