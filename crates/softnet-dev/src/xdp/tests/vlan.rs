//! Frames of a VLAN, which are the kernel's, wherever their tag is: in the frame, as a packet
//! socket sends it, or beside it, as a bridge leaves it that forwards to a port with
//! `tx-vlan-offload`.

use super::*;
use crate::packet::{FilterInsn, PacketSocket};
use softnet_core::skb::VlanProto;
use softnet_testkit::UdpFrame;

/// Frames with a tag of VLAN 5, wherever it is now (classic BPF: load, jump if equal, return).
const VLAN_5: [FilterInsn; 7] = [
    (0x20, 0, 0, 0xffff_f000 + 48),
    (0x15, 3, 0, 0),
    (0x20, 0, 0, 0xffff_f000 + 44),
    (0x54, 0, 0, 0x0fff),
    (0x15, 1, 0, 5),
    (0x06, 0, 0, 0),
    (0x06, 0, 0, u32::MAX),
];

fn link(ns: &NetNs, name: &str) -> Link {
    ns.run(|| Netlink::new().unwrap().existing_link(name).unwrap()).unwrap()
}

fn packet_socket(ns: &NetNs, name: &str, filter: &[FilterInsn]) -> PacketSocket {
    let index = link(ns, name).index;
    ns.run(|| PacketSocket::open(index, filter).unwrap()).unwrap()
}

/// Puts a bridge before the far end of pair 0, and returns the name of what sends to it.
fn bridge(world: &World) -> &'static str {
    let made = world.there.run(|| {
        let mut netlink = Netlink::new().unwrap();
        netlink.add_veth("f0", "f1", (1, 1), None).unwrap();
        netlink.add_bridge("br0", "f1").unwrap();
        netlink.add_bridge_port("br0", "k0").unwrap();
        ["f0", "f1"].iter().for_each(|name| netlink.set_up(name).unwrap());
        ["f0", "f1", "br0"].iter().for_each(|name| netlink.wait_running(name).unwrap());
    });
    made.unwrap();
    "f0"
}

/// A datagram to `dst` and interface `name` with the tag `tci`.
fn tagged(world: &World, name: &str, dst: Ipv4Addr, tci: u16) -> Vec<u8> {
    let (src_mac, dst_mac) = ([2, 9, 9, 9, 9, 9], link(&world.here, name).mac);
    let frame = UdpFrame { src_mac, dst_mac, src: peer(0), dst, src_port: 9, dst_port: 7, len: 100 }.build();
    [&frame[..12], &[0x81, 0x00], &tci.to_be_bytes(), &frame[12..]].concat()
}

/// What became of four frames of VLAN 5 that `far` sent to the interface `name`: how many softnet
/// got, and how many the kernel, with their tag. Frames that have only a priority are softnet's.
fn outcome(world: &World, name: &str, mode: Mode, far: &str) -> (usize, usize) {
    outcome_with(world, name, mode, far, &[])
}

/// The same where the VLANs `ours` are softnet's.
fn outcome_with(world: &World, name: &str, mode: Mode, far: &str, ours: &[u16]) -> (usize, usize) {
    let mut ctx = world.ctx();
    let sender = packet_socket(&world.there, far, &[]);
    let mut config = XdpConfig { mode, interface: name.into(), ..world.config(0) };
    let vlan = |id: &u16| ClaimedVlan { proto: VlanProto::Dot1q, id: *id, addresses: vec![] };
    config.claim.vlans = ours.iter().map(vlan).collect();
    let (mut device, _claims) = world.open(&config, &mut ctx).unwrap();
    let kernel = packet_socket(&world.here, name, &VLAN_5);
    let (mut taken, mut passed, mut batch) = (0, 0, Batch::new());
    let of_vlan = tagged(world, name, softnet(0), 5);
    // Told apart by its length. One goes first, which says that the path is open, and one after
    // them.
    let with_priority = [tagged(world, name, softnet(0), 0xe000), vec![0; 50]].concat();
    for frames in [0, 4] {
        (0..frames).for_each(|_| sender.send(&of_vlan).unwrap());
        until("a frame of no VLAN", || {
            sender.send(&with_priority).unwrap();
            device.rx[0].rx_burst(&mut ctx, &mut batch, 64);
            let mut ended = false;
            for skb in batch.drain() {
                match skb.data().len() {
                    150.. => ended = true,
                    _ => {
                        // Of a VLAN of softnet's it has all bytes.
                        assert!(ours.is_empty() || skb.data() == of_vlan, "{:x?}", skb.data());
                        taken += 1;
                    }
                }
                ctx.free(skb, DropReason::UnhandledProto);
            }
            ended
        });
    }
    while kernel.recv(&mut [0; 256]).unwrap().is_some() {
        passed += 1;
    }
    close(device, &mut ctx);
    world.assert_whole(&mut ctx);
    (taken, passed)
}

/// Whether a veth's program can't see tags beside frames: that takes native mode and Linux 6.8.
fn is_blind(mode: Mode) -> bool {
    mode == Mode::Skb || crate::bpf::KernelFn::xdp_vlan_tag().is_none()
}

fn ethtool(ns: &NetNs, name: &str) -> Ethtool {
    let index = link(ns, name).index;
    ns.run(|| Ethtool::new(index).unwrap()).unwrap()
}

#[test]
fn frames_of_vlans_are_the_kernels_wherever_their_tag_is() {
    for mode in [Mode::Native, Mode::Skb] {
        let Some(world) = World::new() else { return };
        world.add_pair(0, 1);
        assert_eq!(outcome(&world, "s0", mode, "k0"), (0, 4), "{mode:?}, inside");
        let far = bridge(&world);
        if is_blind(mode) {
            // What its program can't see, the peer has to put into frames.
            let (taken, _) = outcome(&world, "s0", mode, far);
            assert!(taken > 0, "it sees tags beside frames now: the notice is wrong");
            ethtool(&world.there, "k0").set(&["tx-vlan-hw-insert"], false).unwrap();
        }
        assert_eq!(outcome(&world, "s0", mode, far), (0, 4), "{mode:?}, beside");
    }
}

/// Those of VLANs that are softnet's are, and have their tag in them.
#[test]
fn frames_of_softnets_vlans_have_their_tag_wherever_it_was() {
    for mode in [Mode::Native, Mode::Skb] {
        let Some(world) = World::new() else { return };
        world.add_pair(0, 1);
        assert_eq!(outcome_with(&world, "s0", mode, "k0", &[4, 5]), (4, 0), "{mode:?}, inside");
        assert_eq!(outcome_with(&world, "s0", mode, "k0", &[6]), (0, 4), "{mode:?}, another");
        let far = bridge(&world);
        if is_blind(mode) {
            ethtool(&world.there, "k0").set(&["tx-vlan-hw-insert"], false).unwrap();
        }
        assert_eq!(outcome_with(&world, "s0", mode, far, &[4, 5]), (4, 0), "{mode:?}, beside");
        assert_eq!(outcome_with(&world, "s0", mode, far, &[6]), (0, 4), "{mode:?}, another beside");
    }
}

/// The kernel takes tags out of frames at a bridge's port, before the bridge's program sees them;
/// that is said.
#[test]
fn of_a_bridge_that_is_taken_vlans_are_not_told_apart() {
    let Some(world) = World::new() else { return };
    world.add_pair(0, 1);
    world.here.run(|| Netlink::new().unwrap().add_bridge("b0", "s0").unwrap()).unwrap();
    let (taken, _) = outcome(&world, "b0", Mode::Skb, "k0");
    assert!(taken > 0, "it sees them now: the notice is wrong");
    let mut ctx = world.ctx();
    let cfg = XdpConfig { interface: "b0".into(), ..world.config(0) };
    let (device, _claims) = world.open(&cfg, &mut ctx).unwrap();
    let mode = &device.device.info().mode;
    assert!(mode.contains("frames of VLANs pass for untagged (where there are VLANs"), "{mode}");
    close(device, &mut ctx);
    world.assert_whole(&mut ctx);
}

/// Whatever takes tags out of frames is off while the device is open, and on again afterwards.
#[test]
fn no_tags_are_taken_out_of_frames() {
    const NAME: &str = "rx-vlan-hw-parse";
    let Some(world) = World::new() else { return };
    let mut ctx = world.ctx();
    world.add_pair(0, 1);
    let s0 = ethtool(&world.here, "s0");
    for (mode, before) in [(Mode::Native, true), (Mode::Skb, true), (Mode::Skb, false), (Mode::Native, false)]
    {
        s0.set(&[NAME], before).unwrap();
        assert_eq!(s0.is_on(NAME).unwrap(), Some(before));
        let (device, _claims) = world.open(&XdpConfig { mode, ..world.config(0) }, &mut ctx).unwrap();
        assert_eq!(s0.is_on(NAME).unwrap(), Some(false), "{mode:?}");
        // Only a program that asks the driver sees what the peer leaves beside frames.
        let warned = device.device.info().mode.contains("txvlan off");
        assert_eq!(warned, is_blind(mode), "{}", device.device.info().mode);
        close(device, &mut ctx);
        assert_eq!(s0.is_on(NAME).unwrap(), Some(before), "{mode:?}");
    }
    world.assert_whole(&mut ctx);
}

#[test]
fn tags_that_stay_out_of_frames_are_refused_with_the_command() {
    let command = "`ethtool -K eth9 rxvlan off`".into();
    let error = XdpError::VlanOffload { name: "eth9".into(), command }.to_string();
    for part in ["eth9: ", "`ethtool -K eth9 rxvlan off`", "--force", "force = true"] {
        assert!(error.contains(part), "{error}");
    }
}
