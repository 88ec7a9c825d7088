//! A host has an address that softnet is given: that is found, told, and the address not used.

use std::net::UdpSocket;
use std::time::Duration;

use super::follow::ip;
use super::hosts::ask;
use super::world::{World, host, softnet, softnet6, until};

fn row(world: &World, i: usize) -> softnet::control::show::DevRow {
    world.view().devs().remove(i)
}

#[test]
fn an_address_that_a_neighbour_has_is_not_used() {
    let Some(mut world) = World::dual(2) else { return };
    let taken = [format!("{}/24", softnet(0)), format!("{}/64", softnet6(0))];
    for own in &taken {
        let nodad = if own.contains(':') { " nodad" } else { "" };
        ip(&world.hosts[0], &format!("addr add {own} dev eth0{nodad}"));
    }
    world.start_with(world.config_dual());
    until("both duplicates", || row(&world, 0).duplicates.len() == 2);
    let now = row(&world, 0);
    assert!(taken.iter().all(|own| now.duplicates.contains(own) && !now.addresses.contains(own)), "{now:?}");
    assert_eq!(world.view().stats().address_conflicts, 2);
    // It does not answer for it: the host hears itself alone, and another on its link would, too.
    let routes = world.view().routes();
    assert!(!routes.iter().any(|row| row.prefix == format!("{}/32", softnet(0))), "{routes:?}");
    // No station has those of the other device.
    assert!(row(&world, 1).duplicates.is_empty());

    // When that is mended it is taken, and asked for anew.
    for own in &taken {
        ip(&world.hosts[0], &format!("addr del {own} dev eth0"));
    }
    for own in &taken {
        let set = softnet::control::SetAddr {
            action: softnet::control::LiveAction::Add,
            dev: now.name.clone(),
            addr: Some(own.clone()),
        };
        world.view().set_addr(set).unwrap();
    }
    let now = row(&world, 0);
    assert!(now.duplicates.is_empty() && taken.iter().all(|own| now.addresses.contains(own)), "{now:?}");
    let echoes = world.echoes();
    until("an echo", || world.hosts[0].run(|| ask(host(1), b"by softnet?")).unwrap());
    std::thread::sleep(Duration::from_millis(1));
    drop(echoes);
    world.end();
}

/// With `dad` off none is asked for, and a claim is a conflict that changes nothing.
#[test]
fn it_can_be_switched_off() {
    let Some(mut world) = World::new(1) else { return };
    let own = format!("{}/24", softnet(0));
    ip(&world.hosts[0], &format!("addr add {own} dev eth0"));
    let config = world.config().with(|config| config.devices[0].dad = false);
    world.start_with(config);
    until("a conflict", || {
        ip(&world.hosts[0], "neigh flush dev eth0");
        let socket = world.hosts[0].run(|| UdpSocket::bind((softnet(0), 0)).unwrap()).unwrap();
        socket.send_to(b"I am it", "10.0.0.77:9").unwrap();
        world.view().stats().address_conflicts > 0
    });
    let now = row(&world, 0);
    assert!(now.duplicates.is_empty() && now.addresses.contains(&own), "{now:?}");
    world.end();
}

/// Whatever was asked while there was no link was asked in vain.
#[test]
fn it_is_asked_again_when_the_link_is_up() {
    let Some(mut world) = World::new(1) else { return };
    let own = format!("{}/24", softnet(0));
    ip(&world.hosts[0], "link set eth0 down");
    ip(&world.hosts[0], &format!("addr add {own} dev eth0"));
    world.start_with(world.config());
    until("the device without a link", || row(&world, 0).link == "down");
    // The last of three times is two seconds after the first.
    std::thread::sleep(Duration::from_millis(2500));
    assert!(row(&world, 0).duplicates.is_empty());
    ip(&world.hosts[0], "link set eth0 up");
    until("the duplicate", || row(&world, 0).duplicates == [own.clone()]);
    world.end();
}
