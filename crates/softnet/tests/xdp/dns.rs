//! A name server on one socket for all addresses, asked by `dig` at each of several addresses by each of two interfaces: answers come
//! from where the question went, or `dig` would not take them.

use std::net::IpAddr;
use std::process::Command;

use softnet::net::PktInfo;

use super::home_clients::has;
use super::world::{World, interface, softnet, softnet6, until};

#[allow(dead_code, unreachable_pub)]
#[path = "../../examples/dns.rs"]
mod server;

#[test]
fn dig_is_answered_from_the_address_that_it_asked() {
    if !has("dig") {
        return;
    }
    let Some(mut world) = World::dual(2) else { return };
    let config = world.config_dual();
    world.start_with(config);
    let handle = world.handle();
    let server = std::thread::spawn(move || server::serve(&handle));
    for (host, ns) in world.hosts.iter().enumerate() {
        let asked: [IpAddr; 4] =
            [softnet(0).into(), softnet(1).into(), softnet6(0).into(), softnet6(1).into()];
        for addr in asked {
            let ask = |kind: &str| {
                let mut dig = Command::new("dig");
                dig.args([&format!("@{addr}"), "whoami.softnet", kind, "+short", "+tries=1", "+time=2"]);
                String::from_utf8(ns.run(|| dig.output().unwrap()).unwrap().stdout).unwrap()
            };
            let text = format!("\"{addr} by {}\"\n", interface(host));
            until(&format!("host {host} is answered by {addr}"), || ask("TXT") == text);
            assert_eq!(ask(if addr.is_ipv4() { "A" } else { "AAAA" }), format!("{addr}\n"));
        }
        let mut dig = Command::new("dig");
        dig.args([&format!("@{}", softnet(host)), "elsewhere.example", "A", "+tries=1", "+time=2"]);
        let said = String::from_utf8(ns.run(|| dig.output().unwrap()).unwrap().stdout).unwrap();
        assert!(said.contains("status: NXDOMAIN"), "{said}");
    }
    world.end();
    // It ends with the stack.
    assert!(server.join().unwrap().is_err());
}

#[test]
fn what_is_no_question_gets_no_answer() {
    let asked = PktInfo { addr: softnet(0).into(), if_index: 1 };
    let question = b"\0\x07\x01\0\0\x01\0\0\0\0\0\0\x06whoami\x07softnet\0\0\x10\0\x01";
    assert!(server::answer(question, &asked, "s0").unwrap().ends_with(b"10.0.0.1 by s0"));
    // However little of it there is, and whatever its lengths say.
    assert!((0..question.len()).all(|len| server::answer(&question[..len], &asked, "s0").is_none()));
    for at in 0..question.len() {
        for byte in [0, 1, 0x3f, 0x40, 0xc0, 0xff] {
            let mut broken = *question;
            broken[at] = byte;
            let _ = server::answer(&broken, &asked, "s0");
        }
    }
}
