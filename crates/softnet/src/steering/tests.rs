//! Devices that are closed and opened again while what they brought waits in backlogs.

use std::sync::{Arc, Mutex};

use softnet_core::SoftnetData;
use softnet_core::ip::v4::header::Ipv4Header;
use softnet_core::skb::{Batch, CacheSizes, HEADROOM};
use softnet_core::steer::{Plan, flow_hash_of};
use softnet_core::sync::{AtomicBool, Ordering};
use softnet_dev::OpenDevice;
use softnet_dev::mem::{PairConfig, pair};

use crate::assembly::Assembly;
use crate::config::{Config, CpuList, DeviceConfig, PerQueue};
use crate::driver::OpenRequest;
use crate::napi::EVERY;
use crate::net::UdpSocket;

/// A packet of `flow` to softnet, for a port that no socket has.
fn packet(flow: u16) -> Vec<u8> {
    let mut frame = [&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 9, 8, 0][..], &[0; 20]].concat();
    Ipv4Header::new_mut(&mut frame[14..]).unwrap().fill(20 + 8, 1, 64, 17, 0x0a00_0007, 0x0a00_0001);
    frame.extend([&flow.to_be_bytes()[..], &[0, 9, 0, 8, 0, 0]].concat());
    frame.resize(60, 0);
    frame
}

/// Sends packets to the far end that is there, of which the wire takes as many as it has room for.
fn send(ctx: &mut SoftnetData, far: &Mutex<Option<OpenDevice>>) {
    let mut batch = Batch::new();
    for flow in 0..32 {
        let Some(mut frame) = ctx.alloc_frame() else { break };
        let bytes = packet(flow);
        frame.bytes_mut()[HEADROOM..][..bytes.len()].copy_from_slice(&bytes);
        match ctx.build_skb(frame, HEADROOM, bytes.len()) {
            Ok(skb) => batch.push(skb).unwrap(),
            Err(frame) => ctx.free_frame(frame),
        }
    }
    if let Some(end) = far.lock().unwrap().as_mut() {
        end.tx[0].tx_burst(ctx, &mut batch);
        end.tx[0].kick(ctx);
    }
    batch.drain().for_each(|skb| ctx.free_skb(skb));
}

/// Three workers and a device that steers, and the far end of its wire.
fn assemble(
    processing_cpu: PerQueue<u32>,
    rps_cpus: PerQueue<CpuList>,
    netdev_max_backlog: u32,
) -> (Assembly, Arc<Mutex<Option<OpenDevice>>>) {
    let device = DeviceConfig {
        addresses: vec!["10.0.0.1/24".parse().unwrap()],
        processing_cpu,
        rps_cpus,
        rps_flow_cnt: PerQueue::All(64),
        ..DeviceConfig::new("d")
    };
    let mut config = Config { devices: vec![device], ..Config::default() };
    (config.stack.workers, config.stack.rps_sock_flow_entries) = (vec![0, 1, 2], 64);
    config.stack.netdev_max_backlog = netdev_max_backlog;
    let far = Arc::new(Mutex::new(None));
    let opener = {
        let far = far.clone();
        move |_: &OpenRequest<'_>, ctx: &mut SoftnetData| -> Result<OpenDevice, String> {
            let config =
                PairConfig { macs: [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 9]], ..PairConfig::default() };
            let [near, end] = pair(ctx.region(), [0, 9], &config).unwrap();
            *far.lock().unwrap() = Some(end);
            Ok(near)
        }
    };
    (Assembly::new(config, vec![], |_| Ok(opener)).unwrap(), far)
}

#[test]
fn a_closed_device_leaves_nothing_on_backlogs() {
    let plans = [
        (PerQueue::All(1), PerQueue::default()),
        (PerQueue::default(), PerQueue::All("0-2".parse().unwrap())),
    ];
    for (processing_cpu, rps_cpus) in plans {
        let (mut assembly, far) = assemble(processing_cpu, rps_cpus, 1000);
        let (shared, view) = (assembly.shared.clone(), assembly.view.clone());
        let workers = std::mem::take(&mut assembly.workers);
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            workers.into_iter().for_each(|worker| _ = scope.spawn(|| worker.run()));
            scope.spawn(|| {
                let mut ctx = SoftnetData::new(shared.region.clone(), CacheSizes::default());
                while !over.load(Ordering::Relaxed) {
                    send(&mut ctx, &far);
                }
            });
            let keeper = assembly.housekeeper().unwrap();
            let heads = || shared.backlogs.instances().iter().map(|i| i.backlog.head()).sum::<u64>();
            for _ in 0..50 {
                // It steers again in each life.
                let before = heads();
                while heads() < before + 100 {
                    std::thread::yield_now();
                }
                let end = far.lock().unwrap().take();
                keeper.close(0);
                let left: Vec<_> =
                    shared.backlogs.instances().iter().map(|i| (i.backlog.len(), i.backlog.head())).collect();
                assert!(left.iter().all(|(len, _)| *len == 0), "{left:?}");
                let mut ctx = SoftnetData::new(shared.region.clone(), CacheSizes::default());
                if let Some(OpenDevice { rx, tx, .. }) = end {
                    rx.into_iter().for_each(|rx| rx.close(&mut ctx));
                    tx.into_iter().for_each(|tx| tx.close(&mut ctx));
                }
                ctx.drain();
                keeper.open(0).unwrap();
            }
            over.store(true, Ordering::Relaxed);
            shared.workers.iter().for_each(|worker| worker.stop());
        });
        drop(assembly);
        let stats = view.stats();
        let ended = stats.transmitted + stats.delivered + stats.dropped + stats.merged;
        assert_eq!((stats.received + stats.originated, stats.held, stats.leaked), (ended, 0, 0), "{stats:?}");
        drop(far.lock().unwrap().take());
    }
}

/// Workers end before the housekeeper, which may be changing a plan just then.
#[test]
fn a_plan_is_changed_though_the_workers_have_ended() {
    let (mut assembly, far) = assemble(PerQueue::All(1), PerQueue::default(), 1000);
    let shared = assembly.shared.clone();
    let mut ctx = SoftnetData::new(shared.region.clone(), CacheSizes::default());
    send(&mut ctx, &far);
    while assembly.workers[0].round() {}
    assert_eq!(shared.backlogs.instances()[1].backlog.len(), 32);
    assembly.workers.clear();
    let (done, changed) = std::sync::mpsc::channel();
    let keeper = std::thread::spawn(move || {
        shared.set_plan(&mut ctx, &shared.napis()[0], Plan::None);
        ctx.drain();
        let _ = done.send(());
    });
    changed.recv_timeout(std::time::Duration::from_secs(20)).expect("it waits for ever");
    keeper.join().unwrap();
    let view = assembly.view.clone();
    drop(assembly);
    assert_eq!((view.stats().held, view.stats().leaked), (0, 0));
    drop(far.lock().unwrap().take());
}

/// What a socket sends after it has another peer says nothing of the old one's flow.
#[test]
fn a_socket_with_another_peer_does_not_note_the_flow_of_the_old_one() {
    let (mut assembly, far) = assemble(PerQueue::default(), PerQueue::All("0".parse().unwrap()), 1000);
    let shared = assembly.shared.clone();
    let mut ctx = SoftnetData::new(shared.region.clone(), CacheSizes::default());
    let socket = UdpSocket::bind(&assembly.handle(), "10.0.0.1:9").unwrap();
    socket.set_nonblocking(true).unwrap();
    let flows = shared.backlogs.sockets.as_ref().unwrap();
    let [src, dst] = ["10.0.0.7", "10.0.0.1"].map(|addr| addr.parse().unwrap());
    let hash = flow_hash_of(src, dst, [0, 5, 0, 9]);
    for reconnect in [|socket: &UdpSocket| socket.connect("10.0.0.7:6"), UdpSocket::disconnect] {
        socket.connect("10.0.0.7:5").unwrap();
        send(&mut ctx, &far);
        // Flows follow their consumers.
        assembly.workers.iter_mut().for_each(|worker| while worker.round() {});
        socket.recv(&mut [0; 64]).unwrap();
        assert!(flows.wanted(hash).is_some());
        // No CPU here has this worker.
        flows.record(hash, 2, true);
        reconnect(&socket).unwrap();
        let _ = socket.send_to(b"x", "10.0.0.7:6");
        assert_eq!(flows.wanted(hash), Some(2));
    }
    drop((socket, assembly));
    ctx.drain();
    drop(far.lock().unwrap().take());
}

/// What a packet costs that was steered is told of the queue that it came by.
#[test]
fn costs_of_steered_packets_are_those_of_their_queue() {
    let (mut assembly, far) = assemble(PerQueue::All(1), PerQueue::default(), 1000);
    let shared = assembly.shared.clone();
    shared.auto.enable();
    let mut ctx = SoftnetData::new(shared.region.clone(), CacheSizes::default());
    for _ in 0..2 * EVERY {
        send(&mut ctx, &far);
        assembly.workers.iter_mut().for_each(|worker| while worker.round() {});
    }
    let instance = &shared.napis()[0];
    let (packets, ns) = instance.samples.steered();
    assert!(packets > 0 && packets < 32 * u64::from(EVERY) && ns > 0, "{packets} {ns}");
    drop(assembly);
    ctx.drain();
    drop(far.lock().unwrap().take());
}

/// The worker that a device's packets wait for comes to them only after the device began to be
/// closed.
#[test]
fn closing_a_device_waits_for_workers_to_drop_its_packets() {
    let (mut assembly, far) = assemble(PerQueue::All(1), PerQueue::default(), 1000);
    let (shared, view) = (assembly.shared.clone(), assembly.view.clone());
    let mut workers = std::mem::take(&mut assembly.workers);
    let mut ctx = SoftnetData::new(shared.region.clone(), CacheSizes::default());
    for _ in 0..3 {
        send(&mut ctx, &far);
        while workers[0].round() {}
    }
    let backlog = &shared.backlogs.instances()[1].backlog;
    assert_eq!((backlog.len(), backlog.head()), (96, 0));
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for (number, worker) in workers.iter_mut().enumerate() {
            let over = &over;
            scope.spawn(move || {
                std::thread::sleep(std::time::Duration::from_millis(30 * number as u64));
                while !over.load(Ordering::Relaxed) {
                    worker.round();
                }
            });
        }
        assembly.housekeeper().unwrap().close(0);
        over.store(true, Ordering::Relaxed);
        assert_eq!((backlog.len(), backlog.head()), (0, 96));
    });
    let drops = view.drops();
    let [drop] = &drops[..] else { panic!("{drops:?}") };
    assert_eq!((&drop.dev[..], &drop.reason[..], drop.packets), ("d", "dev_ready", 96));
}

/// Backlogs may have a quarter of packet memory, whatever `netdev_max_backlog` says: a worker that
/// hangs does not take the frames that RX rings are filled with. Of what a queue hands off the rest
/// waits in the ring; what is spread is dropped, for a reason of its own.
#[test]
fn backlogs_leave_memory_to_rings() {
    let spread = PerQueue::All("1,2".parse().unwrap());
    for (processing_cpu, rps_cpus) in [(PerQueue::All(1), PerQueue::default()), (PerQueue::default(), spread)]
    {
        let hands_off = processing_cpu.get(0).is_some();
        let (mut assembly, far) = assemble(processing_cpu, rps_cpus, 1_000_000);
        let (shared, view) = (assembly.shared.clone(), assembly.view.clone());
        let mut workers = std::mem::take(&mut assembly.workers);
        let mut ctx = SoftnetData::new(shared.region.clone(), CacheSizes::default());
        // Nearly all there is, to workers that do nothing.
        for _ in 0..400 {
            send(&mut ctx, &far);
            (0..20).for_each(|_| _ = workers[0].round());
        }
        let backlogs = || shared.backlogs.instances().iter();
        let frames = || backlogs().map(|i| i.backlog.frames()).sum::<usize>();
        let most = shared.region.frame_count() as usize / 4;
        assert!((most / 2..=most + 64).contains(&frames()), "{} of {most}", frames());
        let row = view.steering().remove(0);
        let sum =
            |field: fn(&crate::control::show::SteeredRow) -> u64| row.workers.iter().map(field).sum::<u64>();
        assert_eq!((sum(|to| to.dropped), sum(|to| to.backlog_frames)), (0, frames() as u64));
        let lost = sum(|to| to.no_memory);
        assert_eq!((lost > 0, sum(|to| to.held) > 0), (!hands_off, hands_off), "{row:?}");
        let drops = view.drops().into_iter().find(|row| row.reason == "backlog_mem");
        assert_eq!(drops.map_or(0, |row| row.packets), lost);
        // It is theirs again when workers come to it.
        while frames() > 0 {
            workers.iter_mut().for_each(|worker| _ = worker.round());
        }
        send(&mut ctx, &far);
        let taken = || view.steering()[0].workers.iter().map(|to| to.packets).sum::<u64>();
        let before = taken();
        while taken() == before {
            workers.iter_mut().for_each(|worker| _ = worker.round());
        }
        drop((workers, assembly));
        ctx.drain();
        drop(far.lock().unwrap().take());
        assert_eq!((view.stats().held, view.stats().leaked), (0, 0));
    }
}

/// What a worker has no room for stays in the device's ring, and comes when there is room.
#[test]
fn a_queue_collects_no_more_than_its_target_takes() {
    let (mut assembly, far) = assemble(PerQueue::All(1), PerQueue::default(), 100);
    let (shared, view) = (assembly.shared.clone(), assembly.view.clone());
    let mut workers = std::mem::take(&mut assembly.workers);
    let mut ctx = SoftnetData::new(shared.region.clone(), CacheSizes::default());
    for _ in 0..6 {
        send(&mut ctx, &far);
        (0..100).for_each(|_| _ = workers[0].round());
    }
    let (backlog, steering) = (&shared.backlogs.instances()[1].backlog, &shared.napis()[0].steering);
    assert_eq!((backlog.len(), backlog.head()), (64, 0), "with one more list it would hold more than 100");
    let held = steering.counts()[1].held.get();
    assert!((1..500).contains(&held), "polled again when its timer fires, and not before: {held}");
    assert!(shared.napis()[0].timer.is_armed());
    while backlog.head() < 6 * 32 {
        workers.iter_mut().for_each(|worker| _ = worker.round());
    }
    let drops = view.drops();
    let [drop] = &drops[..] else { panic!("{drops:?}") };
    assert_eq!((&drop.reason[..], drop.packets), ("ip_noproto", 6 * 32), "none for want of room");
    ctx.drain();
}
