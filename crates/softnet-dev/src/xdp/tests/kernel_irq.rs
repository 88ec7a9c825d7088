//! The kernel's interrupt: on a veth, which has none, nothing may be set; and busy polling, which needs no interrupt.

use std::sync::Weak;

use softnet_core::napi::MitigationConfig;

use super::*;
use crate::device::KernelIrq;
use crate::netlink::{NapiKnobs, NetdevFamily};

#[test]
fn a_veth_has_no_interrupt_and_its_knobs_are_left_alone() {
    let Some(world) = World::new() else { return };
    let mut ctx = world.ctx();
    world.add_pair(0, 2);
    let (mut device, _claims) = world.open(&world.config(0), &mut ctx).unwrap();
    let doorbells: Vec<_> = device.rx.iter().map(|rx| rx.doorbell()).collect();
    let none = KernelIrq::NotMasked("no deferral is set".into());
    assert!(doorbells.iter().all(|doorbell| doorbell.kernel_irq() == none));
    let knobs = MitigationConfig::default();
    for (n, t) in [(0, 0), (2, 20_000), (0, 0), (5, 1_000_000)] {
        knobs.set_defer_hard_irqs(n).unwrap();
        knobs.set_gro_flush_timeout(t);
        for doorbell in &doorbells {
            doorbell.mitigation_changed(&knobs);
            assert_eq!(doorbell.kernel_irq().to_string(), "not masked: veth has no interrupt");
        }
        let ifindex = device.device.info().ifindex;
        let napis = world.here.run(|| NetdevFamily::new().unwrap().napis(ifindex).unwrap()).unwrap();
        assert_eq!(napis.len(), 2, "one for each queue: {napis:?}");
        for napi in napis {
            assert_eq!((napi.irq, napi.knobs), (None, Some(NapiKnobs::default())));
        }
    }
    assert!(world.umem.sockets().iter().filter_map(Weak::upgrade).all(|socket| !socket.irq.is_polled()));
    echo(&mut device, &mut ctx, &[world.peer_socket(0)], softnet(0));
    close(device, &mut ctx);
    for doorbell in doorbells {
        doorbell.mitigation_changed(&knobs);
        assert_eq!(doorbell.kernel_irq(), KernelIrq::None, "closed");
    }
    world.assert_whole(&mut ctx);
}

/// The socket's part of it alone: calls on it poll the kernel's instance, whose own knobs stay 0.
#[test]
fn queues_that_busy_poll_the_kernel_receive_and_send() {
    let Some(world) = World::new() else { return };
    for mode in [Mode::Native, Mode::Skb] {
        let mut ctx = world.ctx();
        world.add_pair(0, 2);
        let cfg = XdpConfig { mode, ..world.config(0) };
        let (mut device, _claims) = world.open(&cfg, &mut ctx).unwrap();
        let sockets: Vec<_> = world.umem.sockets().iter().filter_map(Weak::upgrade).collect();
        assert_eq!(sockets.len(), 2);
        let prefer = |on| {
            sockets.iter().for_each(|socket| socket.irq.prefer_busy_poll(socket.pollable(), on));
            assert!(sockets.iter().all(|socket| socket.irq.is_polled() == on));
        };
        let kicks = |device: &OpenDevice| device.rx.iter().map(|rx| rx.stats().kicks.get()).sum::<u64>();
        let peers: Vec<_> = (0..16).map(|_| world.peer_socket(0)).collect();
        prefer(true);
        echo(&mut device, &mut ctx, &peers, softnet(0));
        let before = kicks(&device);
        until("a poll of the kernel for an empty ring", || {
            serve(&mut device, &mut ctx, softnet(0));
            kicks(&device) > before
        });
        prefer(false);
        echo(&mut device, &mut ctx, &peers, softnet(0));
        let before = kicks(&device);
        serve(&mut device, &mut ctx, softnet(0));
        assert_eq!(kicks(&device), before);
        prefer(true);
        close(device, &mut ctx);
        assert!(sockets.iter().all(|socket| !socket.irq.is_polled()));
        drop(sockets);
        world.assert_whole(&mut ctx);
        world.delete_pair(0);
    }
}
