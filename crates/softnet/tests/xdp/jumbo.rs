//! Packets that take several frames: AF_XDP on interfaces with a large MTU.

use std::net::IpAddr;

use softnet::driver::{Xdp, XdpMode};
use softnet_dev::netlink::Netlink;

use super::hosts::{Icmp, ask, tcp};
use super::world::{World, has_frags, host, host6, interface, softnet, until};

/// A world whose wires have these MTUs.
fn wide(mtus: &[u32]) -> Option<World> {
    if !has_frags() {
        return None;
    }
    let world = World::dual(mtus.len())?;
    for (i, mtu) in mtus.iter().enumerate() {
        let set = |name: &str| Netlink::new().unwrap().set_mtu(name, *mtu).unwrap();
        world.middle.run(|| set(&interface(i))).unwrap();
        world.hosts[i].run(|| set("eth0")).unwrap();
    }
    Some(world)
}

#[test]
fn packets_of_several_frames_pass_whole() {
    for mode in [XdpMode::Native, XdpMode::Skb] {
        let Some(mut world) = wide(&[9000, 9000]) else { return };
        let mut config = world.config_dual();
        config.devices.iter_mut().for_each(|device| device.driver.get_mut::<Xdp>().unwrap().mode = mode);
        world.start_with(config);
        assert_eq!(world.devs().iter().map(|row| row.mtu).collect::<Vec<_>>(), [9000, 9000]);
        let _echoes = world.echoes();
        world.assert_connected();
        for len in [1, 1400, 1736, 1737, 1750, 1751, 2100, 3500, 3600, 8000, 8952] {
            until(&format!("an echo of {len} bytes"), || {
                world.hosts[0].run(|| ask(host(1), &vec![7; len]) && ask(host6(1), &vec![8; len])).unwrap()
            });
        }
        let icmp = Icmp::new(&world.hosts[0]);
        let to: [IpAddr; 2] = [softnet(0).into(), softnet(1).into()];
        for to in to {
            until(&format!("a ping of {to}"), || {
                let reply = icmp.ping(to, 64, &[7; 8972]);
                let answered = icmp.receive(|message| message.from == to && message.kind == (0, 0));
                answered.is_some_and(|message| message.bytes == reply)
            });
        }
        if mode == XdpMode::Native {
            // (In SKB mode senders that do not cut their segments are to be told.)
            tcp(&world.hosts[0], &world.hosts[1], host(1), 3_000_000);
            tcp(&world.hosts[1], &world.hosts[0], host6(0), 3_000_000);
        }
        let fragments = world.view().stats().fragments;
        // What is sent from here fits one frame of memory, so large answers to pings are cut.
        assert_eq!(fragments.reassembled, 0, "{mode:?} {fragments:?}");
        let drops = world.view().drops();
        assert!(
            drops.iter().all(|row| row.reason != "nonlinear" && row.reason != "rx_too_long"),
            "{drops:?}"
        );
        world.end();
    }
}

/// A narrow interface beside a wide one: senders are told, or their packets cut.
#[test]
fn wide_and_narrow_interfaces_go_together() {
    for mtus in [[9000, 1500], [1500, 9000]] {
        let Some(mut world) = wide(&mtus) else { return };
        world.start_with(world.config_dual());
        let _echoes = world.echoes();
        world.assert_connected();
        for len in [1400, 1472, 1473, 4000, 8000] {
            until(&format!("an echo of {len} bytes"), || {
                world.hosts[0].run(|| ask(host(1), &vec![7; len])).unwrap()
            });
            until(&format!("an echo of {len} bytes over IPv6"), || {
                world.hosts[0].run(|| ask(host6(1), &vec![7; len])).unwrap()
            });
        }
        tcp(&world.hosts[0], &world.hosts[1], host(1), 1_000_000);
        tcp(&world.hosts[0], &world.hosts[1], host6(1), 1_000_000);
        world.end();
    }
}
