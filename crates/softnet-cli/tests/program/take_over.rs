//! `softnet run --take-over`: an instance in the place of another, on real interfaces, with packets
//! on their way.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::process::Signal;

use super::process::{Process, World, host, until};

/// Packets from one host to the other, 2000 a second, until it is stopped.
struct Traffic {
    stop: Arc<AtomicBool>,
    sender: JoinHandle<u32>,
    server: UdpSocket,
}

impl Traffic {
    fn start(world: &World) -> Self {
        let server = world.hosts[1].run(|| UdpSocket::bind((host(1), 9)).unwrap()).unwrap();
        rustix::net::sockopt::set_socket_recv_buffer_size_force(&server, 8 << 20).unwrap();
        server.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
        let client = world.hosts[0].run(|| UdpSocket::bind((host(0), 0)).unwrap()).unwrap();
        client.connect((host(1), 9)).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let sender = std::thread::spawn({
            let stop = stop.clone();
            move || {
                let mut sent = 0u32;
                while !stop.load(Ordering::Relaxed) {
                    client.send(&sent.to_le_bytes()).unwrap();
                    sent += 1;
                    std::thread::sleep(Duration::from_micros(450));
                }
                sent
            }
        });
        Traffic { stop, sender, server }
    }

    /// All that were sent have arrived, in order, each once.
    fn assert_complete(self) {
        self.stop.store(true, Ordering::Relaxed);
        let sent = self.sender.join().unwrap();
        let mut buffer = [0; 4];
        for expected in 0..sent {
            let got = self.server.recv(&mut buffer).map(|_| u32::from_le_bytes(buffer));
            assert_eq!(got.ok(), Some(expected), "of {sent}");
        }
        self.server.set_nonblocking(true).unwrap();
        assert!(self.server.recv(&mut buffer).is_err(), "one more than {sent}");
    }
}

fn successor(world: &World, config: &str) -> Process {
    world.middle().run(|| Process::start(&["run", config, "--take-over"])).unwrap()
}

fn pid(world: &World) -> u64 {
    world.show("stats")["pid"].as_u64().unwrap()
}

/// A configuration whose devices are attached in `mode`.
fn config(world: &World, mode: &str) -> String {
    let path = world.config("r.toml", "");
    let text = std::fs::read_to_string(&path).unwrap();
    let text = text.replace("ring = 256", &format!("ring = 256\nmode = {mode:?}"));
    std::fs::write(&path, text).unwrap();
    path
}

fn takes_over_without_loss(mode: &str) {
    let Some(world) = World::new() else { return };
    let config = config(&world, mode);
    let mut running = world.running(&config);
    world.assert_forwards();
    let traffic = Traffic::start(&world);
    // Once from the first instance, then from a successor.
    for _ in 0..3 {
        let mut next = successor(&world, &config);
        next.line(&format!("process-test: running in the place of pid {}, after ", running.pid()));
        assert_eq!(running.end().code(), Some(0), "{}", running.errors());
        running.line("process-test: handed over");
        let told = running.errors();
        assert!(told.contains("another process takes over: ") && told.contains("0 were held"), "{told}");
        assert_eq!(pid(&world), u64::from(next.pid()));
        running = next;
    }
    traffic.assert_complete();
    let neighbours = world.show("neigh");
    assert!(neighbours.as_array().unwrap().iter().any(|n| n["ip"] == "10.1.0.2"), "{neighbours}");
    let stats = world.show("stats");
    let count = |key: &str| stats[key].as_u64().unwrap();
    let (came, went) = (count("received") + count("originated"), count("transmitted") + count("delivered"));
    assert_eq!(came, went + count("dropped") + count("merged") + count("held"), "{stats}");
    // The control socket is its own, and so is what the interfaces are to be given back with.
    let mut second = world.middle().run(|| Process::start(&["run", &config])).unwrap();
    assert_eq!(second.end().code(), Some(1));
    let errors = second.errors();
    assert!(errors.contains(&format!("is already running, pid {}", running.pid())), "{errors}");
    running.signal(Signal::TERM);
    assert_eq!((running.end().code(), running.errors()), (Some(0), String::new()));
    assert!(!world.socket().exists());
    let _anew = world.running(&config);
    world.assert_forwards();
}

#[test]
fn an_instance_takes_the_place_of_another_in_native_mode() {
    takes_over_without_loss("native");
}

#[test]
fn an_instance_takes_the_place_of_another_in_skb_mode() {
    takes_over_without_loss("skb");
}

#[test]
fn what_can_not_be_taken_over_goes_on() {
    let Some(world) = World::new() else { return };
    let config = config(&world, "native");
    let text = std::fs::read_to_string(&config).unwrap();
    let mut nothing = successor(&world, &config);
    assert_eq!(nothing.end().code(), Some(1));
    let errors = nothing.errors();
    assert!(errors.contains("is running that could be taken over: run without --take-over"), "{errors}");
    let running = world.running(&config);
    world.assert_forwards();
    let traffic = Traffic::start(&world);
    let second = text.rfind("[[device]]").unwrap();
    for (wrong, code, expected) in [
        (text.replace("10.1.0.1/24", "10.1.0.1/240"), 2, "no interface was touched"),
        (text.replace("4096", "8192"), 1, "stack.frames is 8192 here, and 4096 in the running instance"),
        (
            text.replace("ring = 256", "ring = 128"),
            1,
            "s0: it can't be taken over: the running instance has it with ring 256, this configuration would have 128",
        ),
        (
            text.replace("native", "skb"),
            1,
            "the running instance has it with mode native, this configuration would have skb",
        ),
        (text.clone() + "\n[control]\ngroup = \"nosuch\"\n", 1, "there is no group \"nosuch\" in /etc/group"),
        (text[..second].into(), 1, "the running instance has s1, which this configuration lacks"),
        (
            text.replace("\"s1\"", "\"lo\""),
            1,
            "lo is in this configuration, and the running instance does not have it open",
        ),
    ] {
        let path = world.path("wrong.toml");
        std::fs::write(&path, wrong).unwrap();
        let mut process = successor(&world, path.to_str().unwrap());
        let status = process.end();
        let errors = process.errors();
        assert!(status.code() == Some(code) && errors.contains(expected), "{status}: {errors}");
        assert_eq!(pid(&world), u64::from(running.pid()));
    }
    traffic.assert_complete();
    assert!(!running.said().contains("takes over"), "{}", running.said());
}

/// As a successor, as far as `steps` go: what it sends, and what is answered.
fn ask(world: &World, steps: &[(u8, u8)]) -> UnixStream {
    let connect = || {
        let mut stream = UnixStream::connect(world.socket()).unwrap();
        stream.write_all(b"{\"takeover\":{\"version\":2,\"program\":\"test\"}}\n").unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        (stream, reader, line)
    };
    // One at a time: that the one before has ended may not have been noticed yet.
    let mut connected = connect();
    until("its turn", || {
        let busy = connected.2.contains("another process is taking over already");
        if busy {
            connected = connect();
        }
        !busy
    });
    let (mut stream, mut reader, line) = connected;
    assert!(line.contains("\"ok\":{\"pid\":"), "{line}");
    // One lot of descriptors.
    reader.read_exact(&mut [0]).unwrap();
    let mut message = || {
        let mut head = [0; 5];
        reader.read_exact(&mut head).unwrap();
        let len = u32::from_le_bytes([head[1], head[2], head[3], head[4]]);
        reader.read_exact(&mut vec![0; len as usize]).unwrap();
        head[0]
    };
    // No connections.
    assert_eq!(message(), CONNECTIONS);
    for (say, answer) in steps {
        stream.write_all(&[*say, 0, 0, 0, 0]).unwrap();
        assert_eq!(message(), *answer);
    }
    stream
}

const STOP: u8 = 1;
const STOPPED: u8 = 2;
const TAKE: u8 = 4;
const YOURS: u8 = 5;
const CONNECTIONS: u8 = 7;

/// Up to the moment at which the other may touch rings, the instance goes on; after it, it never
/// does.
#[test]
fn a_successor_that_ends_before_it_took_over_changes_nothing() {
    let Some(world) = World::new() else { return };
    let config = config(&world, "native");
    let mut running = world.running(&config);
    world.assert_forwards();
    let traffic = Traffic::start(&world);
    let refused = |line: &str| {
        let mut stream = UnixStream::connect(world.socket()).unwrap();
        stream.write_all(line.as_bytes()).unwrap();
        let mut answer = String::new();
        BufReader::new(stream).read_line(&mut answer).unwrap();
        answer
    };
    let answer = refused("{\"takeover\":{\"version\":0,\"program\":\"0.0.1\"}}\n");
    assert!(answer.contains("hands over by version 2, softnet 0.0.1 takes over by version 0"), "{answer}");
    assert!(refused("{\"takeover\":{}}\n").contains("not a request"));
    for steps in [&[][..], &[(STOP, STOPPED)]] {
        drop(ask(&world, steps));
        world.assert_forwards();
    }
    // A message of no known kind, where it is to say that it takes over.
    let mut stream = ask(&world, &[(STOP, STOPPED)]);
    stream.write_all(&[99, 1, 2, 3, 4]).unwrap();
    world.assert_forwards();
    drop(stream);
    traffic.assert_complete();
    // One that says nothing any more.
    let silent = ask(&world, &[(STOP, STOPPED)]);
    world.assert_forwards();
    drop(silent);
    assert_eq!(pid(&world), u64::from(running.pid()));
    until("what became of them", || running.said().contains("another process could not take over"));
    // It may have touched rings: the instance ends, and says why.
    drop(ask(&world, &[(STOP, STOPPED), (TAKE, YOURS)]));
    assert_eq!(running.end().code(), Some(1));
    let errors = running.errors();
    assert!(errors.contains("the process that took over failed: it has ended"), "{errors}");
    // As after SIGKILL.
    let _anew = world.running(&config);
    world.assert_forwards();
}

/// An offer ends when a device of it is closed; its queues are free as soon as the process that got it
/// has let go of them, and no frame was lost.
#[test]
fn an_offer_ends_when_a_device_is_closed() {
    let Some(world) = World::new() else { return };
    let config = config(&world, "native");
    let mut running = world.running(&config);
    world.assert_forwards();
    // It closes the sockets that it got at once, and keeps the connection.
    let mut stream = ask(&world, &[]);
    let (code, _, errors) = world.ask("link set s0 down");
    assert_eq!((code, &errors[..]), (0, ""));
    assert_eq!(stream.read(&mut [0; 8]).unwrap(), 0, "it is over");
    assert_eq!(world.ask("link set s0 up").0, 0);
    until("s0 to be open", || world.show("dev").to_string().matches("native").count() == 2);
    world.assert_forwards();
    let mut next = successor(&world, &config);
    next.line("running in the place of pid");
    assert_eq!(running.end().code(), Some(0), "{}", running.errors());
    world.assert_forwards();
}

/// A connection of TCP and a mapping of UDP, through NAT, over two take-overs.
#[test]
fn connections_through_nat_go_on() {
    let Some(world) = World::new() else { return };
    let config = config(&world, "native");
    let gro = "gro = \"frags\"\nnapi_defer_hard_irqs = 2\ngro_flush_timeout = 200000\n";
    let nat = "\n[nat]\n\n[[nat.source]]\ndev = \"s1\"\n";
    let text =
        std::fs::read_to_string(&config).unwrap().replace("ring =", &(gro.to_owned() + "ring =")) + nat;
    std::fs::write(&config, text).unwrap();
    let mut running = world.running(&config);
    let listener = world.hosts[1].run(|| TcpListener::bind((host(1), 80)).unwrap()).unwrap();
    let mut client = world.hosts[0].run(|| TcpStream::connect((host(1), 80)).unwrap()).unwrap();
    let (mut server, seen) = listener.accept().unwrap();
    assert_eq!(seen.ip().to_string(), "10.1.0.1", "translated");
    let (udp, echo) = (
        world.hosts[0].run(|| UdpSocket::bind((host(0), 5001)).unwrap()).unwrap(),
        world.hosts[1].run(|| UdpSocket::bind((host(1), 7)).unwrap()).unwrap(),
    );
    let patience = Some(Duration::from_secs(20));
    client.set_read_timeout(patience).unwrap();
    server.set_read_timeout(patience).unwrap();
    udp.set_read_timeout(patience).unwrap();
    echo.set_read_timeout(patience).unwrap();
    let mut from = None;
    let mut buffer = [0; 8];
    for round in 0..3u8 {
        if round > 0 {
            let mut next = successor(&world, &config);
            next.line("running in the place of pid");
            assert_eq!(running.end().code(), Some(0));
            running = next;
        }
        // First what comes from outside, which only a connection that is known lets in.
        server.write_all(&[round]).unwrap();
        client.read_exact(&mut buffer[..1]).unwrap();
        assert_eq!(buffer[0], round);
        client.write_all(&[round + 100]).unwrap();
        server.read_exact(&mut buffer[..1]).unwrap();
        assert_eq!(buffer[0], round + 100);
        if let Some(from) = from {
            echo.send_to(&[round], from).unwrap();
            assert_eq!(udp.recv(&mut buffer).unwrap(), 1);
        }
        udp.send_to(b"udp", (host(1), 7)).unwrap();
        let (_, now) = echo.recv_from(&mut buffer).unwrap();
        assert_eq!(*from.get_or_insert(now), now, "the same port");
        echo.send_to(b"udp", now).unwrap();
        assert_eq!(udp.recv(&mut buffer).unwrap(), 3);
    }
    let nat = world.show("nat");
    assert_eq!(nat["mappings"], 2, "{nat}");
    running.signal(Signal::TERM);
    assert_eq!((running.end().code(), running.errors()), (Some(0), String::new()));
}
