//! What is refused, and what is said then.

use super::*;

#[test]
fn a_refused_native_mode_says_why_and_falls_back() {
    let Some(world) = World::new() else { return };
    let mut ctx = world.ctx();
    // A veth with fewer RX queues than its peer has TX queues can't do native XDP.
    world
        .here
        .run(|| {
            let mut netlink = Netlink::new().unwrap();
            netlink.add_veth("s0", "k0", (1, 2), Some(&world.there)).unwrap();
            netlink.set_up("s0").unwrap();
        })
        .unwrap();
    world
        .there
        .run(|| {
            let mut netlink = Netlink::new().unwrap();
            netlink.add_address("k0", peer(0), 24).unwrap();
            netlink.set_up("k0").unwrap();
        })
        .unwrap();
    let native = XdpConfig { mode: Mode::Native, ..world.config(0) };
    let error = world.open(&native, &mut ctx).err().unwrap().to_string();
    assert!(error.contains("s0") && error.contains("Native"), "{error}");
    let (mut device, _claims) = world.open(&world.config(0), &mut ctx).unwrap();
    let mode = &device.device.info().mode;
    assert!(mode.starts_with("skb mode: native refused: No space left on device"), "{mode}");
    assert!(mode.contains("as many RX queues"), "{mode}");
    echo(&mut device, &mut ctx, &[world.peer_socket(0)], softnet(0));
    close(device, &mut ctx);
    world.assert_whole(&mut ctx);
}

#[test]
fn refusals_say_what_is_wrong_and_leave_nothing_behind() {
    let Some(world) = World::new() else { return };
    let mut ctx = world.ctx();
    world.add_pair(0, 1);
    let good = world.config(0);
    let refused = |cfg: &XdpConfig, ctx: &mut SoftnetData| world.open(cfg, ctx).err().unwrap();

    let error = refused(&XdpConfig { interface: "s7".into(), ..good.clone() }, &mut ctx).to_string();
    assert!(error.contains("no interface s7") && error.contains("lo, s0"), "{error}");
    for ring in [0, 64, 1000, 1 << 20] {
        let error = refused(&XdpConfig { ring, ..good.clone() }, &mut ctx);
        assert!(matches!(error, XdpError::RingSize(r) if r == ring), "{error}");
    }
    world.here.run(|| Netlink::new().unwrap().set_mtu("s0", MAX_MTU + 1).unwrap()).unwrap();
    let error = refused(&good, &mut ctx).to_string();
    assert!(error.contains("MTU of 9001") && error.contains("mtu 9000"), "{error}");
    world.here.run(|| Netlink::new().unwrap().set_mtu("s0", MAX_MTU).unwrap()).unwrap();

    world
        .here
        .run(|| {
            let mut netlink = Netlink::new().unwrap();
            netlink.add_address("s0", kernel(0), 24).unwrap();
            netlink.add_route(Ipv4Addr::UNSPECIFIED, 0, peer(0)).unwrap();
        })
        .unwrap();
    let error = refused(&good, &mut ctx).to_string();
    assert!(error.contains("default route") && error.contains("force = true"), "{error}");
    let good = XdpConfig { force: true, ..good };

    let poor = World::with_frames(48);
    let error = refused(&good, &mut poor.ctx());
    assert!(matches!(error, XdpError::Region { .. }), "{error}");
    let mut poor_ctx = poor.ctx();
    let poor = World { here: world.here.try_clone().unwrap(), ..poor };
    let error = poor.open(&good, &mut poor_ctx).err().unwrap();
    assert!(matches!(error, XdpError::NoFrames { posted: 48, .. }), "{error}");
    poor.assert_whole(&mut poor_ctx);

    let (device, _claims) = world.open(&good, &mut ctx).unwrap();
    let error = refused(&good, &mut ctx);
    assert!(matches!(error, XdpError::Occupied { .. }), "{error}");
    close(device, &mut ctx);
    world.assert_whole(&mut ctx);
}

/// The message of a thread that lacks `missing`.
fn without(world: &World, missing: CapabilitySet) -> String {
    let mut ctx = world.ctx();
    let cfg = world.config(0);
    let error = world
        .here
        .run(|| {
            let mut sets = rustix::thread::capabilities(None).unwrap();
            sets.effective -= missing;
            rustix::thread::set_capabilities(None, sets).unwrap();
            open(&cfg, &world.umem, 0, &mut ctx).expect_err("opened without the privilege")
        })
        .unwrap()
        .to_string();
    world.assert_whole(&mut ctx);
    error
}

#[test]
fn a_missing_privilege_is_named_with_what_grants_it() {
    let Some(world) = World::new() else { return };
    world.add_pair(0, 1);
    let admin = CapabilitySet::NET_ADMIN | CapabilitySet::SYS_ADMIN | CapabilitySet::BPF;
    let mut cases = vec![
        (CapabilitySet::NET_RAW, "CAP_NET_RAW"),
        (CapabilitySet::NET_ADMIN | CapabilitySet::SYS_ADMIN, "CAP_NET_ADMIN"),
        (admin, "CAP_BPF"),
    ];
    let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock).current;
    if limit.is_some_and(|bytes| bytes < world.umem.region().frame_bytes() as u64) {
        cases.push((CapabilitySet::IPC_LOCK, "CAP_IPC_LOCK"));
    }
    for (missing, name) in cases {
        let error = without(&world, missing);
        assert!(error.contains(name) && error.contains("setcap"), "{error}");
    }
}

/// The bridge has the address and the default route; taking its port would take both away.
#[test]
fn the_port_of_a_bridge_that_carries_the_default_route() {
    let Some(world) = World::new() else { return };
    world.add_pair(0, 1);
    let mut ctx = world.ctx();
    let route = |via: Ipv4Addr| {
        let mut netlink = Netlink::new().unwrap();
        netlink.add_bridge("br0", "s0").unwrap();
        netlink.add_address("br0", kernel(0), 24).unwrap();
        // A default route in two halves is one too.
        netlink.add_route(Ipv4Addr::UNSPECIFIED, 1, via).unwrap();
    };
    world.here.run(|| route(peer(0))).unwrap();
    let cfg = world.config(0);
    let error = world.open(&cfg, &mut ctx).expect_err("refused");
    assert!(matches!(error, XdpError::DefaultRoute { .. }), "{error}");
    // Taken all the same, it leaves the bridge its address.
    let (device, _claims) = world.open(&XdpConfig { force: true, ..cfg }, &mut ctx).unwrap();
    close(device, &mut ctx);
    world.assert_whole(&mut ctx);
}

#[test]
fn many_queues_share_the_memory_they_are_given() {
    let Some(world) = World::new() else { return };
    world.add_pair(0, 4);
    let mut ctx = world.ctx();
    let cfg = XdpConfig { ring: 512, max_posted: 1000, ..world.config(0) };
    let (device, _claims) = world.open(&cfg, &mut ctx).unwrap();
    let held: usize = device.rx.iter().map(|queue| queue.held()).sum();
    assert_eq!((device.rx.len(), held), (4, 4 * 128));
    assert!(
        device.device.info().mode.contains("rings of 128 instead of 512"),
        "{}",
        device.device.info().mode
    );
    close(device, &mut ctx);
    world.assert_whole(&mut ctx);
}

#[test]
fn senders_that_leave_checksums_to_hardware_are_known() {
    for (kind, driver, native, skb) in [
        (Some("veth"), "veth", true, true),
        (Some("bond"), "bonding", true, true),
        (Some("ipvlan"), "ipvlan", true, true),
        (None, "virtio_net", false, true),
        (None, "vif", false, true),
        (None, "igb", false, false),
        (Some("vxlan"), "vxlan", false, false),
    ] {
        let partial = |mode| hands_over_partial_checksums(kind, driver, mode);
        assert_eq!((partial(XdpMode::Native), partial(XdpMode::Skb)), (native, skb), "{driver}");
    }
}

/// What merges segments on the interface is off while a device is open in SKB mode, and what was on is on again then.
#[test]
fn offloads_that_merge_are_off_in_skb_mode_and_put_back() {
    let Some(world) = World::new() else { return };
    let mut ctx = world.ctx();
    world.add_pair(0, 1);
    let ethtool = world.here.run(|| {
        let index = Netlink::new().unwrap().existing_link("s0").unwrap().index;
        Ethtool::new(index).unwrap()
    });
    let ethtool = ethtool.unwrap();
    let is_on = |name| ethtool.is_on(name).unwrap().unwrap();
    for (mode, before, meanwhile) in
        [(Mode::Skb, true, false), (Mode::Skb, false, false), (Mode::Native, true, true)]
    {
        ethtool.set(&["rx-gro"], before).unwrap();
        let (device, _claims) = world.open(&XdpConfig { mode, ..world.config(0) }, &mut ctx).unwrap();
        assert_eq!((is_on("rx-gro"), is_on("rx-udp-gro-forwarding")), (meanwhile, false), "{mode:?}");
        let told = device.device.info().mode.contains("ethtool -K s0 gro on");
        assert_eq!(told, before != meanwhile, "{}", device.device.info().mode);
        close(device, &mut ctx);
        assert_eq!(is_on("rx-gro"), before);
    }
    world.assert_whole(&mut ctx);
}

/// An address that the kernel has on the interface is not taken by accident.
#[test]
fn an_address_of_the_kernels_is_refused_unless_it_is_meant() {
    let Some(world) = World::new() else { return };
    let mut ctx = world.ctx();
    world.add_pair(0, 1);
    let good = world.config(0);
    world.here.run(|| Netlink::new().unwrap().add_address("s0", softnet(0), 24).unwrap()).unwrap();
    let error = world.open(&good, &mut ctx).err().unwrap().to_string();
    for part in ["10.9.0.1", "s0", "shared = true", "--force"] {
        assert!(error.contains(part), "{part}: {error}");
    }
    let shared = XdpConfig { claim: Claim { shared: true, ..good.claim.clone() }, ..good.clone() };
    for meant in [shared, XdpConfig { force: true, ..good }] {
        let (device, _claims) = world.open(&meant, &mut ctx).unwrap();
        close(device, &mut ctx);
    }
    world.assert_whole(&mut ctx);
}

/// Wherever the kernel has it: on loopback, or on a bridge above the interface, whenever that was
/// made.
#[test]
fn an_address_that_the_kernel_has_elsewhere_counts_too() {
    let Some(world) = World::new() else { return };
    let mut ctx = world.ctx();
    world.add_pair(0, 1);
    let good = world.config(0);
    let in_here = |work: fn(&mut Netlink)| world.here.run(|| work(&mut Netlink::new().unwrap())).unwrap();
    in_here(|netlink| {
        netlink.add_address("lo", kernel(0), 32).unwrap();
        netlink.add_address("lo", softnet(0), 32).unwrap();
    });
    let error = world.open(&good, &mut ctx).err().unwrap();
    let is_lo = matches!(&error, XdpError::KernelAddress { holder, .. } if holder == "lo");
    assert!(is_lo && error.to_string().contains("s0: the kernel has 10.9.0.1, too, on lo"), "{error}");
    let shared = XdpConfig { claim: Claim { shared: true, ..good.claim.clone() }, ..good.clone() };
    let forced = XdpConfig { force: true, ..good.clone() };
    for meant in [&shared, &forced] {
        let (device, _claims) = world.open(meant, &mut ctx).unwrap();
        close(device, &mut ctx);
    }
    // What is on no other machine is everybody's.
    let loopback = Claim { addresses: vec![Ipv4Addr::LOCALHOST.into()], ..Claim::default() };
    in_here(|netlink| netlink.set_up("lo").unwrap());
    let (device, claims) = world.open(&XdpConfig { claim: loopback, ..good.clone() }, &mut ctx).unwrap();
    assert_eq!(claims.replace(&Claim::default()).unwrap(), None);
    let conflict = Some(Conflict { address: softnet(0).into(), holder: "lo".into() });
    assert_eq!(claims.replace(&good.claim).unwrap(), conflict);
    assert_eq!(claims.replace(&good.claim).unwrap(), None, "it is told once");
    assert_eq!(claims.replace(&shared.claim).unwrap(), None);
    in_here(|netlink| {
        netlink.add_bridge("br0", "s0").unwrap();
        netlink.add_address("br0", kernel(1), 24).unwrap();
    });
    let on_bridge = Claim { addresses: vec![kernel(1).into()], ..Claim::default() };
    let conflict = Some(Conflict { address: kernel(1).into(), holder: "br0".into() });
    assert_eq!(claims.replace(&on_bridge).unwrap(), conflict);
    close(device, &mut ctx);
    world.assert_whole(&mut ctx);
}

/// What reaches the kernel by its address on another interface goes on to; link-local addresses of
/// other links do not count.
#[test]
fn what_the_kernel_has_elsewhere_stays_its() {
    let Some(world) = World::new() else { return };
    let mut ctx = world.ctx();
    world.add_pair(0, 1);
    let local = std::net::Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0x99);
    let server = world.here.run(|| {
        let mut netlink = Netlink::new().unwrap();
        netlink.add_veth("x0", "x1", (1, 1), None).unwrap();
        netlink.add_address("x0", kernel(0), 24).unwrap();
        netlink.add_address("x0", local, 64).unwrap();
        netlink.set_up("x0").unwrap();
        netlink.add_address("s0", kernel(9), 32).unwrap();
        // The answer goes back where the question came from.
        udp(kernel(0))
    });
    let server = server.unwrap();
    let claim = Claim { addresses: vec![softnet(0).into(), local.into()], ..Claim::default() };
    let (device, _claims) = world.open(&XdpConfig { claim, ..world.config(0) }, &mut ctx).unwrap();
    let mac = world.here.run(|| Netlink::new().unwrap().existing_link("s0").unwrap().mac).unwrap();
    world.there.run(|| Netlink::new().unwrap().add_neighbour("k0", kernel(0), mac).unwrap()).unwrap();
    let sender = world.peer_socket(0);
    until("a datagram to the kernel", || {
        sender.send_to(b"there?", server.local_addr().unwrap()).unwrap();
        server.recv_from(&mut [0; 9]).is_ok()
    });
    close(device, &mut ctx);
    world.assert_whole(&mut ctx);
}
