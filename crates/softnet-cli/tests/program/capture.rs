//! `softnet capture` on an instance that forwards over veth pairs: the file is read back by another
//! program's reader.

use std::net::{Ipv4Addr, UdpSocket};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use pcap_parser::{Block, OptionCode, parse_block_le};

use super::process::{World, host};

const EXE: &str = env!("CARGO_BIN_EXE_softnet");

/// A packet of the file: interface, direction, comment, bytes.
#[derive(Debug)]
struct Packet {
    dev: String,
    direction: u32,
    comment: Option<String>,
    data: Vec<u8>,
    len: u32,
}

fn packets(mut file: &[u8]) -> Vec<Packet> {
    let (mut devs, mut packets) = (Vec::new(), Vec::new());
    while !file.is_empty() {
        let (rest, block) = parse_block_le(file).expect("a block");
        file = rest;
        match block {
            Block::SectionHeader(_) => assert!(devs.is_empty()),
            Block::InterfaceDescription(interface) => {
                assert_eq!(interface.if_tsresol, 9);
                let name = interface.options.iter().find(|option| option.code == OptionCode(2)).unwrap();
                devs.push(String::from_utf8(name.value[..usize::from(name.len)].to_vec()).unwrap());
            }
            Block::EnhancedPacket(packet) => {
                let option = |code| packet.options.iter().find(|option| option.code == code);
                // epb_flags has the number 2, as if_name.
                let flags = option(OptionCode(2)).unwrap().value[..4].try_into().unwrap();
                let comment =
                    option(OptionCode::Comment).map(|option| &option.value[..usize::from(option.len)]);
                packets.push(Packet {
                    dev: devs[packet.if_id as usize].clone(),
                    direction: u32::from_le_bytes(flags) & 3,
                    comment: comment.map(|comment| String::from_utf8(comment.to_vec()).unwrap()),
                    data: packet.data[..packet.caplen as usize].to_vec(),
                    len: packet.origlen,
                });
            }
            block => panic!("{block:?}"),
        }
    }
    packets
}

/// Runs `capture` with these arguments, and sends datagrams with `ttl` to port `port` of the far
/// host until it ends.
fn capture(world: &World, args: &[&str], (ttl, port): (u32, u16)) -> Output {
    let socket = world.socket();
    let mut command = Command::new(EXE);
    command.args(["capture", "--name", socket.to_str().unwrap()]).args(args);
    let mut process = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let client = world.hosts[0].run(|| UdpSocket::bind((host(0), 0)).unwrap()).unwrap();
    client.set_ttl(ttl).unwrap();
    while process.try_wait().unwrap().is_none() {
        client.send_to(b"hello", (host(1), port)).unwrap();
        std::thread::sleep(Duration::from_millis(5));
    }
    process.wait_with_output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn packets_are_captured_while_it_runs() {
    let Some(world) = World::new() else { return };
    let _process = world.running(&world.config("r.toml", ""));
    world.assert_forwards();

    let path = world.path("c.pcapng");
    let file = path.to_str().unwrap();
    let output = capture(&world, &["any", "-c", "6", "-w", file, "udp", "dst", "port", "9"], (64, 9));
    assert!(output.status.success(), "{output:?}");
    assert_eq!(text(&output.stderr), "6 packets captured, 0 lost by the capture\n");
    let found = packets(&std::fs::read(&path).unwrap());
    assert_eq!(found.len(), 6);
    for packet in &found {
        let (dev, ttl) =
            (if packet.direction == 1 { "s0" } else { "s1" }, if packet.direction == 1 { 64 } else { 63 });
        assert_eq!(
            (&packet.dev[..], packet.comment.as_deref(), packet.data[22]),
            (dev, None, ttl),
            "{packet:?}"
        );
        assert_eq!((&packet.data[42..47], packet.len as usize), (&b"hello"[..], packet.data.len()));
    }
    assert!(
        found.iter().any(|packet| packet.direction == 1) && found.iter().any(|packet| packet.direction == 2)
    );

    // What is dropped, and why.
    let output = capture(&world, &["s0", "-Q", "drop", "-c", "2", "-w", file], (1, 9));
    assert!(output.status.success(), "{output:?}");
    let found = packets(&std::fs::read(&path).unwrap());
    assert_eq!(found.len(), 2);
    for packet in &found {
        assert_eq!(
            (&packet.dev[..], packet.comment.as_deref()),
            ("s0", Some("dropped: ip_ttl")),
            "{packet:?}"
        );
    }

    // As text, and only a part of each.
    let output = capture(&world, &["s1", "-Q", "out", "-c", "1", "--snaplen", "60", "port 11"], (64, 11));
    let line = text(&output.stdout);
    let expected = format!("> {}.11: UDP, length 5\n", Ipv4Addr::new(10, 1, 0, 2));
    assert!(line.contains(" s1 q0 Out IP 10.0.0.2.") && line.ends_with(&expected), "{line}");

    for (args, code, expected) in [
        (&["s7"][..], 1, "no device \"s7\"; there are: s0, s1"),
        (&["s0", "port", "http"], 2, "expected a port, 0 to 65535, found \"http\"\n  port http\n       ^"),
    ] {
        let socket = world.socket();
        let output =
            Command::new(EXE).args(["capture", "--name", socket.to_str().unwrap()]).args(args).output();
        let output = output.unwrap();
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        assert!(text(&output.stderr).contains(expected), "{output:?}");
    }
}
