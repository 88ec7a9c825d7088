//! A queue for which there is no packet memory: its owner sleeps, looks again, and goes on when there is some.

use std::net::UdpSocket as KernelSocket;

use softnet::net::UdpSocket;
use softnet_core::SoftnetData;
use softnet_core::skb::CacheSizes;

use super::world::{World, host, softnet, until};

#[test]
fn a_queue_without_memory_does_not_keep_its_worker_from_sleep() {
    let Some(mut world) = World::new(2) else { return };
    world.start();
    let (handle, shared) = (world.handle(), world.shared());
    let silent = UdpSocket::builder(&handle).recv_buffer_size(64 << 20).bind("0.0.0.0:7").unwrap();
    let from = world.hosts[0].run(|| KernelSocket::bind((host(0), 9)).unwrap()).unwrap();
    let send = || _ = from.send_to(b"and one more", (softnet(0), 7));
    until("softnet hears the host", || {
        send();
        silent.readiness().readable
    });
    // All memory that is left is another's, and what is posted goes to a socket that keeps it.
    let mut ctx = SoftnetData::new(shared.region.clone(), CacheSizes::default());
    let mut taken: Vec<_> = std::iter::from_fn(|| ctx.alloc_frame()).collect();
    let napis = || shared.napis();
    until("a queue has nothing posted", || {
        send();
        taken.extend(std::iter::from_fn(|| ctx.alloc_frame()));
        napis().iter().any(|instance| instance.doorbell.starved())
    });
    let find = || napis().into_iter().find(|instance| instance.doorbell.starved());
    let starved = find().expect("nothing gives it memory");
    let worker = shared.workers[starved.worker].clone();
    // It does both, time and again.
    for _ in 0..10 {
        let refills = starved.timer.stats.refills.get();
        until("its worker sleeps", || worker.is_sleeping());
        until("it is polled again", || {
            // What the kernel sends to groups by itself is dropped, and its frame posted again: that one is used up, too.
            if !starved.doorbell.starved() {
                send();
                taken.extend(std::iter::from_fn(|| ctx.alloc_frame()));
            }
            starved.timer.stats.refills.get() > refills
        });
    }
    taken.into_iter().for_each(|frame| ctx.free_frame(frame));
    ctx.drain();
    until("there is memory, and it is heard", || {
        send();
        while silent.readiness().readable {
            silent.recv(&mut [0; 64]).unwrap();
        }
        !starved.doorbell.starved()
    });
    until("softnet hears the host", || {
        send();
        silent.readiness().readable
    });
    drop(silent);
    world.end();
}
