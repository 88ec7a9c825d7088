//! Packets: to softnet, past it, through it.

use std::os::fd::AsRawFd;

use super::*;
use crate::testing::{is_ready, rings};

fn echo_in_mode(mode: Mode) -> Option<(DeviceInfo, Vec<usize>)> {
    let world = World::new()?;
    let mut ctx = world.ctx();
    world.add_pair(0, 2);
    let cfg = XdpConfig { mode, ..world.config(0) };
    let (mut device, _claims) = world.open(&cfg, &mut ctx).unwrap();
    assert_eq!((device.rx.len(), device.tx.len()), (2, 2));
    let sockets: Vec<_> = (0..32).map(|_| world.peer_socket(0)).collect();
    let counts = echo(&mut device, &mut ctx, &sockets, softnet(0));
    let info = device.device.info().clone();
    let received: u64 = device.rx.iter().map(|rx| rx.stats().packets.get()).sum();
    let sent: u64 = device.tx.iter().map(|tx| tx.stats().packets.get()).sum();
    assert_eq!(received, counts.iter().sum::<usize>() as u64);
    assert_eq!(sent + ctx.stats().dropped(), received);
    assert_eq!(device.tx[0].held(), 0, "veth completes within the call");
    until("link up", || device.device.link() == LinkState::Up);
    assert_eq!(device.rx[0].stats().ring_drops.get(), 0);
    close(device, &mut ctx);
    assert!(world.umem.reclaimed() > 0);
    world.assert_whole(&mut ctx);
    Some((info, counts))
}

#[test]
fn native_mode_echoes_on_every_queue() {
    let Some((info, counts)) = echo_in_mode(Mode::Auto) else { return };
    assert!(info.mode.starts_with("native") && info.driver == "xdp", "{}", info.mode);
    assert!(info.features.partial_csum && !info.features.zero_copy);
    assert!(counts.iter().all(|n| *n > 0), "a queue without packets: {counts:?}");
}

#[test]
fn skb_mode_echoes() {
    let Some((info, counts)) = echo_in_mode(Mode::Skb) else { return };
    assert!(info.mode.starts_with("skb mode: as configured"), "{}", info.mode);
    assert!(counts[0] > 0, "{counts:?}");
}

#[test]
fn what_is_not_softnets_reaches_the_kernel() {
    let Some(world) = World::new() else { return };
    for mode in [Mode::Native, Mode::Skb] {
        let mut ctx = world.ctx();
        world.add_pair(0, 2);
        let (v4, v6, index) = world
            .here
            .run(|| {
                Netlink::new().unwrap().add_address("s0", kernel(0), 24).unwrap();
                let v6 = UdpSocket::bind("[::]:0").unwrap();
                v6.set_nonblocking(true).unwrap();
                (udp(kernel(0)), v6, Netlink::new().unwrap().link("s0").unwrap().unwrap())
            })
            .unwrap();
        let [a, b, c, d, e, f] = index.mac;
        let local =
            std::net::Ipv6Addr::from([0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xff, 0xfe, d, e, f]);
        let scope = world.there.run(|| Netlink::new().unwrap().link("k0").unwrap().unwrap().index).unwrap();

        let cfg = XdpConfig { mode, ..world.config(0) };
        let (mut device, _claims) = world.open(&cfg, &mut ctx).unwrap();
        let sender = world.peer_socket(0);
        let sender6 = world.there.run(|| UdpSocket::bind("[::]:0").unwrap()).unwrap();
        let mut buffer = [0; 64];
        let to6 = std::net::SocketAddrV6::new(local, v6.local_addr().unwrap().port(), 0, scope);
        let mut from_kernel = |socket: &UdpSocket, send: &dyn Fn() -> bool| {
            until("to the kernel", || {
                // Link-local addresses and routes take a moment to appear.
                let sent = send();
                serve(&mut device, &mut ctx, softnet(0));
                sent && socket.recv_from(&mut buffer).is_ok()
            });
        };
        from_kernel(&v4, &|| sender.send_to(b"4", v4.local_addr().unwrap()).is_ok());
        from_kernel(&v6, &|| sender6.send_to(b"6", to6).is_ok());
        // Both got by; nothing of it came to softnet.
        assert_eq!(device.rx.iter().map(|rx| rx.stats().packets.get()).sum::<u64>(), 0);
        // And softnet's own address still answers, ARP included.
        echo(&mut device, &mut ctx, &[sender], softnet(0));
        close(device, &mut ctx);
        world.assert_whole(&mut ctx);
        world.delete_pair(0);
    }
}

#[test]
fn claims_change_while_the_device_is_open() {
    let Some(world) = World::new() else { return };
    let mut ctx = world.ctx();
    world.add_pair(0, 1);
    world.here.run(|| Netlink::new().unwrap().add_address("s0", kernel(0), 24).unwrap()).unwrap();
    let (mut device, claims) = world.open(&world.config(0), &mut ctx).unwrap();
    let socket = world.peer_socket(0);
    echo(&mut device, &mut ctx, std::slice::from_ref(&socket), softnet(0));
    // An address that both have is softnet's.
    claims.replace(&Claim { addresses: vec![kernel(0).into()], ..Claim::default() }).unwrap();
    echo(&mut device, &mut ctx, std::slice::from_ref(&socket), kernel(0));
    close(device, &mut ctx);
    claims.replace(&Claim::default()).unwrap();
    world.assert_whole(&mut ctx);
}

#[test]
fn the_answer_to_softnets_own_request_arrives() {
    let Some(world) = World::new() else { return };
    let mut ctx = world.ctx();
    world.add_pair(0, 1);
    // The kernel at this end would like the answer, too.
    world.here.run(|| Netlink::new().unwrap().add_address("s0", kernel(0), 24).unwrap()).unwrap();
    let (mut device, _claims) = world.open(&world.config(0), &mut ctx).unwrap();
    let mac = device.device.info().mac;
    let mut request = packet(&mut ctx, 0);
    let data = request.data_mut();
    data[..6].fill(0xff);
    data[6..12].copy_from_slice(&mac);
    data[12..22].copy_from_slice(&[0x08, 0x06, 0, 1, 0x08, 0, 6, 4, 0, 1]);
    data[22..28].copy_from_slice(&mac);
    data[28..32].copy_from_slice(&softnet(0).octets());
    data[38..42].copy_from_slice(&peer(0).octets());
    let mut batch = Batch::new();
    batch.push(request).unwrap();
    assert_eq!(device.tx[0].tx_burst(&mut ctx, &mut batch), 1);
    device.tx[0].kick(&mut ctx);
    until("the answer", || {
        device.rx[0].rx_burst(&mut ctx, &mut batch, 64);
        batch.drain().fold(false, |found, skb| {
            let data = skb.data();
            let answer = data[12..14] == [0x08, 0x06] && data[21] == 2 && data[28..32] == peer(0).octets();
            assert_eq!(skb.headroom(), HEADROOM);
            ctx.deliver(skb);
            found | answer
        })
    });
    close(device, &mut ctx);
    world.assert_whole(&mut ctx);
}

#[test]
fn the_doorbell_rings_while_there_are_packets() {
    let Some(world) = World::new() else { return };
    let mut ctx = world.ctx();
    world.add_pair(0, 1);
    let (mut device, _claims) = world.open(&world.config(0), &mut ctx).unwrap();
    let socket = world.peer_socket(0);
    // ARP is settled here.
    echo(&mut device, &mut ctx, std::slice::from_ref(&socket), softnet(0));
    until("quiet", || serve(&mut device, &mut ctx, softnet(0)) == [0]);
    let doorbell = device.rx[0].doorbell();
    assert!(!doorbell.pending() && !rings(&*doorbell));
    assert!(!is_ready(&*doorbell, PollFlags::OUT), "packets that were sent would wake what waits");
    socket.send_to(b"ring", (softnet(0), 7)).unwrap();
    until("ring", || doorbell.pending());
    assert!(rings(&*doorbell));
    until("answered", || serve(&mut device, &mut ctx, softnet(0)) == [1]);
    assert!(!doorbell.pending() && !rings(&*doorbell));

    // It may outlive its queue, and is silent then, though packets were waiting.
    socket.send_to(b"ring", (softnet(0), 7)).unwrap();
    until("ring", || doorbell.pending());
    close(device, &mut ctx);
    assert_eq!(ctx.stats().drops(0, DropReason::Shutdown), 1);
    assert!(!doorbell.pending() && !rings(&*doorbell));
    world.assert_whole(&mut ctx);
}

#[test]
fn frames_move_between_devices_without_a_copy() {
    let Some(world) = World::new() else { return };
    let mut ctx = world.ctx();
    let mut devices: Vec<_> = (0..2)
        .map(|i| {
            world.add_pair(i, 1);
            world.open(&world.config(i), &mut ctx).unwrap().0
        })
        .collect();
    let sockets = [world.peer_socket(0), world.peer_socket(1)];
    for i in 0..2u8 {
        echo(&mut devices[usize::from(i)], &mut ctx, &sockets[usize::from(i)..][..1], softnet(i));
    }
    let (mac, to) = world
        .there
        .run(|| (Netlink::new().unwrap().link("k1").unwrap().unwrap().mac, sockets[1].local_addr().unwrap()))
        .unwrap();
    let held: Vec<_> = devices.iter().map(|device| device.rx[0].held()).collect();
    // More than a ring holds, so that frames go round.
    for number in 0..600u32 {
        sockets[0].send_to(&number.to_be_bytes(), (softnet(0), to.port())).unwrap();
        let mut batch = Batch::new();
        until("a packet", || devices[0].rx[0].rx_burst(&mut ctx, &mut batch, 64) > 0);
        for skb in batch.as_mut_slice() {
            let data = skb.data_mut();
            data[..6].copy_from_slice(&mac);
            data[26..30].copy_from_slice(&softnet(1).octets());
            data[30..34].copy_from_slice(&peer(1).octets());
            // 10.9.0.2 to 10.9.0.1 became 10.9.1.1 to 10.9.1.2.
            let sum = u16::from_be_bytes([data[24], data[25]]);
            let sum =
                (0..2).fold(sum, |sum, _| sum.checked_sub(0x100).unwrap_or_else(|| sum.wrapping_sub(0x101)));
            data[24..26].copy_from_slice(&sum.to_be_bytes());
            data[40..42].fill(0);
        }
        let out = &mut devices[1].tx[0];
        assert_eq!(out.tx_burst(&mut ctx, &mut batch), 1);
        out.kick(&mut ctx);
        out.reap(&mut ctx);
        let mut buffer = [0; 8];
        until("the packet", || match sockets[1].recv_from(&mut buffer) {
            Ok((n, _)) => {
                assert_eq!(buffer[..n], number.to_be_bytes());
                true
            }
            Err(_) => false,
        });
    }
    assert_eq!(devices[1].tx[0].held(), 0);
    assert!(devices[0].rx[0].held() + 64 > held[0]);
    devices.into_iter().for_each(|device| close(device, &mut ctx));
    world.assert_whole(&mut ctx);
}

#[test]
fn what_cannot_be_sent_is_dropped_for_a_reason() {
    let Some(world) = World::new() else { return };
    let mut ctx = world.ctx();
    world.add_pair(0, 1);
    let (mut device, _claims) = world.open(&world.config(0), &mut ctx).unwrap();
    let stranger = World::with_frames(64);
    let mut foreign = stranger.ctx();
    let mut batch = Batch::new();
    batch.push(ctx.alloc_skb().unwrap()).unwrap();
    batch.push(packet(&mut foreign, 0)).unwrap();
    let mut long = ctx.alloc_skb().unwrap();
    long.put(1500).unwrap().fill(0);
    let mut more = ctx.alloc_skb().unwrap();
    more.put(1500).unwrap().fill(0);
    long.append(more).unwrap();
    batch.push(long).unwrap();
    // By which device they came is of no matter.
    batch.as_mut_slice().iter_mut().for_each(|skb| skb.head_mut().dev = 7);
    assert_eq!(device.tx[0].tx_burst(&mut ctx, &mut batch), 3);
    assert_eq!(ctx.stats().drops(0, DropReason::Nonlinear), 1);
    assert_eq!(ctx.stats().drops(0, DropReason::PktTooSmall), 1);
    assert_eq!(ctx.stats().drops(0, DropReason::NoFrame), 1);
    // A full ring takes no more, and what it did not take stays.
    let mut taken = 0;
    loop {
        while batch.room() > 0 {
            batch.push(packet(&mut ctx, 0)).unwrap();
        }
        let n = device.tx[0].tx_burst(&mut ctx, &mut batch);
        taken += n;
        if n == 0 {
            break;
        }
    }
    assert_eq!((taken, batch.len(), device.tx[0].held()), (256, 64, 256));
    device.tx[0].kick(&mut ctx);
    assert_eq!(device.tx[0].reap(&mut ctx).freed, 256);
    assert!(device.tx[0].stats().kicks.get() >= 1);
    for skb in batch.drain() {
        ctx.free(skb, DropReason::FullRing);
    }
    close(device, &mut ctx);
    world.assert_whole(&mut ctx);
    stranger.assert_whole(&mut foreign);
}

/// Has the kernel take what is sent by `socket` for segments of `bytes` each (udp(7), `UDP_SEGMENT`).
fn segment(socket: &UdpSocket, bytes: i32) {
    // SAFETY: the option's value is a live int of the stated length.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_UDP,
            libc::UDP_SEGMENT,
            std::ptr::from_ref(&bytes).cast(),
            size_of::<i32>() as u32,
        )
    };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}

#[test]
fn segments_larger_than_the_mtu_arrive_in_pieces_or_are_counted() {
    let Some(world) = World::new() else { return };
    for (mode, arrive, lost) in [(Mode::Native, 3, 0), (Mode::Skb, 0, 1)] {
        let mut ctx = world.ctx();
        world.add_pair(0, 1);
        let cfg = XdpConfig { mode, ..world.config(0) };
        let (mut device, _claims) = world.open(&cfg, &mut ctx).unwrap();
        let socket = world.peer_socket(0);
        echo(&mut device, &mut ctx, std::slice::from_ref(&socket), softnet(0));
        let before = device.rx[0].stats().packets.get();
        segment(&socket, 1000);
        socket.send_to(&[7; 3000], (softnet(0), 7)).unwrap();
        let stats = device.rx[0].stats();
        until("three segments", || {
            serve(&mut device, &mut ctx, softnet(0));
            device.device.link();
            let losses = device.device.losses();
            let too_long = losses.iter().find(|(reason, _)| *reason == DropReason::RxTooLong).unwrap().1;
            (stats.packets.get() - before, too_long, stats.ring_drops.get()) == (arrive, lost, 0)
        });
        close(device, &mut ctx);
        world.assert_whole(&mut ctx);
        world.delete_pair(0);
    }
}
