//! Opening, closing, interfaces that vanish, go down, or run out of frames.

use super::*;

#[test]
fn a_device_can_be_opened_again_at_once() {
    let Some(world) = World::new() else { return };
    let mut ctx = world.ctx();
    world.add_pair(0, 2);
    let sockets: Vec<_> = (0..4).map(|_| world.peer_socket(0)).collect();
    for mode in [Mode::Native, Mode::Native, Mode::Skb, Mode::Native] {
        let cfg = XdpConfig { mode, ..world.config(0) };
        let (mut device, _claims) = world.open(&cfg, &mut ctx).unwrap();
        echo(&mut device, &mut ctx, &sockets, softnet(0));
        close(device, &mut ctx);
        world.assert_whole(&mut ctx);
    }
}

#[test]
fn interfaces_vanish_and_return_in_any_order() {
    let Some(world) = World::new() else { return };
    let mut ctx = world.ctx();
    let mut devices = vec![];
    for i in 0..3 {
        world.add_pair(i, 1);
        devices.push(Some(world.open(&world.config(i), &mut ctx).unwrap().0));
    }
    let all = [0u8, 1, 2];
    let mut dropped = 0;
    // The one that registered the memory, the last, the middle one, two, all; closed before the interface returns, or
    // (where the memory is then shared through a socket whose device is gone) after.
    let orders: [&[u8]; 7] = [&[0], &[2], &[1], &[0, 1], &[2, 0], &all, &[2, 1, 0]];
    for (gone, early) in orders.into_iter().flat_map(|gone| [(gone, true), (gone, false)]) {
        let at = |i: u8| usize::from(i);
        gone.iter().for_each(|&i| world.delete_pair(i));
        let mut dead = vec![];
        for &i in gone {
            let mut device = devices[at(i)].take().unwrap();
            assert_eq!(device.device.link(), LinkState::Gone);
            // What is sent into nothing is dropped for a reason, and nothing waits.
            let mut batch = Batch::new();
            batch.push(packet(&mut ctx, i)).unwrap();
            device.tx[0].tx_burst(&mut ctx, &mut batch);
            device.tx[0].kick(&mut ctx);
            batch.push(packet(&mut ctx, i)).unwrap();
            assert_eq!(device.tx[0].tx_burst(&mut ctx, &mut batch), 1);
            assert!(batch.is_empty() && !device.rx[0].doorbell().pending());
            dropped += 1;
            dead.push(device);
        }
        if early {
            dead.drain(..).for_each(|device| close(device, &mut ctx));
        }
        for &i in all.iter().filter(|i| !gone.contains(i)) {
            let device = devices[at(i)].as_mut().unwrap();
            echo(device, &mut ctx, &[world.peer_socket(i)], softnet(i));
        }
        for &i in gone {
            world.add_pair(i, 1);
            devices[at(i)] = Some(world.open(&world.config(i), &mut ctx).unwrap().0);
        }
        dead.into_iter().for_each(|device| close(device, &mut ctx));
        for i in all {
            let device = devices[at(i)].as_mut().unwrap();
            echo(device, &mut ctx, &[world.peer_socket(i)], softnet(i));
            until("link up", || device.device.link() == LinkState::Up);
        }
    }
    let ready: u64 = (0..3).map(|i| ctx.stats().drops(i, DropReason::DevReady)).sum();
    assert_eq!(ready, dropped);
    devices.into_iter().flatten().for_each(|device| close(device, &mut ctx));
    world.assert_whole(&mut ctx);
}

#[test]
fn an_interface_that_is_down_drops_and_recovers() {
    let Some(world) = World::new() else { return };
    let mut ctx = world.ctx();
    world.add_pair(0, 1);
    // It may be down when it is opened, too.
    world.here.run(|| Netlink::new().unwrap().set_down("s0").unwrap()).unwrap();
    let (mut device, _claims) = world.open(&world.config(0), &mut ctx).unwrap();
    assert_eq!(device.device.link(), LinkState::Down);
    world.here.run(|| Netlink::new().unwrap().set_up("s0").unwrap()).unwrap();
    until("link up", || device.device.link() == LinkState::Up);
    let socket = world.peer_socket(0);
    echo(&mut device, &mut ctx, std::slice::from_ref(&socket), softnet(0));
    world.here.run(|| Netlink::new().unwrap().set_down("s0").unwrap()).unwrap();
    assert_eq!(device.device.link(), LinkState::Down);
    let mut batch = Batch::new();
    for _ in 0..3 {
        batch.push(packet(&mut ctx, 0)).unwrap();
        assert_eq!(device.tx[0].tx_burst(&mut ctx, &mut batch), 1);
        device.tx[0].kick(&mut ctx);
    }
    // The first was on the ring before it was known.
    assert_eq!(ctx.stats().drops(0, DropReason::DevReady), 2);
    assert!(!device.rx[0].doorbell().pending());
    world.here.run(|| Netlink::new().unwrap().set_up("s0").unwrap()).unwrap();
    until("link up", || device.device.link() == LinkState::Up);
    device.tx[0].kick(&mut ctx);
    echo(&mut device, &mut ctx, &[socket], softnet(0));
    close(device, &mut ctx);
    world.assert_whole(&mut ctx);
}

#[test]
fn losses_are_counted_and_a_starved_queue_does_not_sleep() {
    let Some(world) = World::new() else { return };
    let world = World { umem: World::with_frames(512).umem, ..world };
    let mut ctx = world.ctx();
    world.add_pair(0, 1);
    let cfg = XdpConfig { ring: 128, ..world.config(0) };
    let (mut device, _claims) = world.open(&cfg, &mut ctx).unwrap();
    let socket = world.peer_socket(0);
    echo(&mut device, &mut ctx, std::slice::from_ref(&socket), softnet(0));
    let before = device.rx[0].stats().packets.get();

    // Another context has all the frames.
    let mut hoard = vec![];
    while let Some(frame) = ctx.alloc_frame() {
        hoard.push(frame);
    }
    const SENT: u64 = 300;
    for _ in 0..SENT {
        socket.send_to(b"x", (softnet(0), 7)).unwrap();
    }
    let mut batch = Batch::new();
    let mut held = vec![];
    until("the posted frames", || {
        device.rx[0].rx_burst(&mut ctx, &mut batch, 64);
        held.extend(batch.drain());
        device.device.link();
        let stats = device.rx[0].stats();
        stats.packets.get() - before + stats.ring_drops.get() == SENT
    });
    assert_eq!(device.rx[0].held(), 0);
    assert!(device.rx[0].stats().ring_drops.get() >= SENT - 128);
    let doorbell = device.rx[0].doorbell();
    assert!(doorbell.starved(), "would sleep for ever");
    assert!(!doorbell.pending(), "would never sleep");
    hoard.into_iter().for_each(|frame| ctx.free_frame(frame));
    held.into_iter().for_each(|skb| ctx.deliver(skb));
    device.rx[0].rx_burst(&mut ctx, &mut batch, 64);
    assert!(!doorbell.starved() && !doorbell.pending());
    echo(&mut device, &mut ctx, &[socket], softnet(0));
    close(device, &mut ctx);
    world.assert_whole(&mut ctx);
}

/// The kernel goes on with a socket that another process has, whatever is closed here: frames stay
/// out, and are not handed over.
#[test]
fn frames_of_a_socket_that_another_has_stay_out() {
    let Some(world) = World::new() else { return };
    let mut ctx = world.ctx();
    (0..2).for_each(|i| world.add_pair(i, 1));
    for mode in [Mode::Native, Mode::Skb] {
        let cfg = XdpConfig { mode, ..world.config(0) };
        let (device, _claims) = world.open(&cfg, &mut ctx).unwrap();
        let told = world.here.run(|| device.device.hand_over().unwrap().unwrap()).unwrap();
        assert_eq!(told.fds.len(), 3, "the program's, and two sockets");
        // The other is gone before it is closed.
        drop(told);
        close(device, &mut ctx);
        world.assert_whole(&mut ctx);
    }
    let (device, _claims) = world.open(&world.config(0), &mut ctx).unwrap();
    let posted = device.rx[0].held();
    let told = world.here.run(|| device.device.hand_over().unwrap().unwrap()).unwrap();
    close(device, &mut ctx);
    ctx.drain();
    let region = world.umem.region();
    assert_eq!(region.frames_free() + posted as u64, u64::from(region.frame_count()));
    let (other, _claims) = world.open(&world.config(1), &mut ctx).unwrap();
    let error = world.here.run(|| other.device.hand_over().unwrap().unwrap_err()).unwrap();
    assert!(error.to_string().contains(&format!("not let go of {posted} frames")), "{error}");
    close(other, &mut ctx);
    drop(told);
}

#[test]
fn a_queue_is_known_to_be_released() {
    let Some(world) = World::new() else { return };
    let mut ctx = world.ctx();
    world.add_pair(0, 1);
    let (device, _claims) = world.open(&world.config(0), &mut ctx).unwrap();
    let binding = Binding { ifindex: device.device.info().ifindex, queue: 0, copy: true, frags: false };
    let spare = || world.here.run(|| socket::socket().unwrap()).unwrap();
    assert!(!socket::wait_released(spare().as_fd(), binding), "in use");
    close(device, &mut ctx);
    assert!(socket::wait_released(spare().as_fd(), binding));
    world.delete_pair(0);
    assert!(socket::wait_released(spare().as_fd(), binding), "gone");
    world.assert_whole(&mut ctx);
}
