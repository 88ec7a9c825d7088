//! What `softnet run` gives up at its start, and that it still does all of its work.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use softnet_dev::netlink::Netlink;

use super::process::{Process, World, host, until};

const EXE: &str = env!("CARGO_BIN_EXE_softnet");

/// Every thread's values of a line of `/proc/PID/task/TID/status`.
fn statuses(process: &Process, field: &str) -> BTreeSet<String> {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", process.pid())).unwrap();
    let texts = tasks.flatten().filter_map(|task| std::fs::read_to_string(task.path().join("status")).ok());
    let of = |text: String| text.lines().find_map(|line| Some(line.strip_prefix(field)?.trim().to_owned()));
    texts.map(|text| of(text).unwrap()).collect()
}

fn assert_confined(process: &Process) {
    assert_eq!(statuses(process, "Seccomp:"), ["2".to_owned()].into());
    assert_eq!(statuses(process, "NoNewPrivs:"), ["1".to_owned()].into());
    for field in ["CapPrm:", "CapEff:"] {
        for value in statuses(process, field) {
            let value = u64::from_str_radix(&value, 16).unwrap();
            // CAP_SYS_ADMIN, CAP_SYS_PTRACE, CAP_SYS_MODULE, CAP_SETUID; CAP_NET_ADMIN.
            let bit = |n: u32| value >> n & 1;
            assert_eq!((bit(21), bit(19), bit(16), bit(7), bit(12)), (0, 0, 0, 0, 1), "{value:x}");
        }
    }
}

/// Runs a command on the instance, which has to succeed: what it printed.
fn command(world: &World, words: &str) -> String {
    let (code, out, errors) = world.ask(words);
    assert_eq!(code, 0, "{words}: {errors}");
    out
}

#[test]
fn a_confined_router_does_all_of_its_work() {
    let Some(world) = World::new() else { return };
    let config = world.config("r.toml", "");
    let plain = std::fs::read_to_string(&config).unwrap();
    let write = |text: &str| std::fs::write(&config, text).unwrap();
    let metrics: SocketAddr = "127.0.0.1:9469".parse().unwrap();
    let more = "\n[metrics]\nlisten = \"127.0.0.1:9469\"\n";
    write(&(plain.clone() + more));
    let mut process = world.running(&config);
    assert_confined(&process);
    world.assert_forwards();

    // Another address, a route, a discipline, an address by hand, other contexts with its threads.
    let new =
        plain.replace("\"10.0.0.1/24\"]", "\"10.0.0.1/24\", \"10.5.0.1/24\"]\nqdisc = \"pfifo limit 99\"");
    let new = new + more + "\n[[route]]\nto = \"10.8.0.0/16\"\nvia = \"10.5.0.9\"\n";
    write(&new);
    command(&world, "reload");
    assert!(world.show("dev").to_string().contains("10.5.0.1/24"));
    assert!(world.show("route").to_string().contains("10.8.0.0/16"));
    assert!(command(&world, "qdisc show dev s0").contains("pfifo dev s0 root limit 99p"));
    command(&world, "set dev s1 threaded=1");
    command(&world, "set dev s0 threaded=workqueue");
    command(&world, "addr add 10.6.0.1/24 dev s1");
    assert_confined(&process);
    world.assert_forwards();

    // A device goes and comes back, by the configuration and by its link.
    let second = new.rfind("[[device]]").unwrap();
    write(&(new[..second].to_owned() + more));
    command(&world, "reload");
    assert_eq!(world.show("dev")[1]["link"], "gone");
    write(&new);
    process.signal(Signal::HUP);
    until("the device", || process.said().contains("s1: is back"));
    let set = |mtu: u32| world.middle().run(|| Netlink::new().unwrap().set_mtu("s0", mtu).unwrap()).unwrap();
    set(1400);
    until("the MTU", || world.show("dev")[0]["mtu"] == 1400);
    set(1500);
    until("the MTU", || world.show("dev")[0]["mtu"] == 1500);
    assert_confined(&process);
    world.assert_forwards();

    // A capture, and the metrics.
    let mut capture = Command::new(EXE);
    capture.args(["capture", "s0", "-c", "1", "--name", world.socket().to_str().unwrap(), "udp"]);
    let mut capture = capture.stdout(Stdio::piped()).spawn().unwrap();
    let client = world.hosts[0].run(|| UdpSocket::bind((host(0), 0)).unwrap()).unwrap();
    until("a captured packet", || {
        let _ = client.send_to(b"hello", (host(1), 9));
        capture.try_wait().unwrap().is_some()
    });
    assert!(capture.wait().unwrap().success());
    let mut scrape = world.middle().run(|| TcpStream::connect(metrics).unwrap()).unwrap();
    scrape.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut text = String::new();
    scrape.read_to_string(&mut text).unwrap();
    assert!(text.starts_with("HTTP/1.1 200") && text.contains("# EOF"), "{text}");

    process.signal(Signal::TERM);
    assert_eq!(process.end().code(), Some(0));
    let errors = process.errors();
    assert!(!errors.contains("no use for"), "{errors}");
    assert!(!world.socket().exists());
}

/// The process beside it that closes what it leaves open can do nothing else, and ends after it.
#[test]
fn what_closes_its_files_is_confined_and_ends_after_it() {
    let Some(world) = World::new() else { return };
    let config = world.config("r.toml", "");
    for signal in [Signal::KILL, Signal::TERM] {
        let mut process = world.running(&config);
        let pid = process.pid();
        let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
        let closer: u32 = children.trim().parse().expect("one child");
        let of_closer = |file: &str| std::fs::read_to_string(format!("/proc/{closer}/{file}"));
        assert_eq!(of_closer("comm").unwrap(), "softnet-closer\n");
        let status = of_closer("status").unwrap();
        for line in ["CapPrm:\t0000000000000000", "CapEff:\t0000000000000000", "Seccomp:\t2"] {
            assert!(status.contains(line), "{line}: {status}");
        }
        // As a terminal and a supervisor send it to all at once.
        kill_process(Pid::from_raw(closer as i32).unwrap(), Signal::TERM).unwrap();
        process.signal(signal);
        process.end();
        // A zombie it may stay, where no process takes it on.
        until("its end", || of_closer("stat").map_or(true, |stat| stat.contains(") Z ")));
    }
}
