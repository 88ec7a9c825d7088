//! The program as a process: it runs on real interfaces, in namespaces of the test's own; it is asked, told to stop, and
//! killed; and it leaves nothing behind.
//!
//! Time-outs are there to fail instead of to hang; nothing is asserted about how long anything takes.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use softnet_dev::netlink::Netlink;
use softnet_dev::netns::NetNs;
use softnet_testkit::net_allowed;
use tempfile::TempDir;

const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn until(what: &str, mut done: impl FnMut() -> bool) {
    let give_up = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < give_up, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A running `softnet`, killed when the test has done with it.
pub(crate) struct Process {
    child: Child,
    lines: Receiver<String>,
    errors: Arc<Mutex<String>>,
    reader: Option<JoinHandle<()>>,
}

impl Process {
    /// In the calling thread's namespace.
    pub(crate) fn start(args: &[&str]) -> Process {
        let mut command = Command::new(env!("CARGO_BIN_EXE_softnet"));
        let mut child =
            command.args(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("spawn softnet");
        let (tx, lines) = mpsc::channel();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || stdout.lines().map_while(Result::ok).all(|line| tx.send(line).is_ok()));
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let errors = Arc::new(Mutex::new(String::new()));
        let reader = std::thread::spawn({
            let errors = errors.clone();
            move || {
                for line in stderr.lines().map_while(Result::ok) {
                    *errors.lock().unwrap() += &(line + "\n");
                }
            }
        });
        Process { child, lines, errors, reader: Some(reader) }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The next line it prints that contains `text`.
    pub(crate) fn line(&mut self, text: &str) -> String {
        loop {
            match self.lines.recv_timeout(PATIENCE) {
                Ok(line) if line.contains(text) => return line,
                Ok(_) => {}
                Err(error) => {
                    let _ = self.child.kill();
                    panic!("no line with {text:?}: {error}; {}", self.errors());
                }
            }
        }
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits for its end.
    pub(crate) fn end(&mut self) -> ExitStatus {
        let mut status = None;
        until("the end of the process", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }

    /// All it said on standard error. It has ended.
    pub(crate) fn errors(&mut self) -> String {
        if let Some(reader) = self.reader.take() {
            reader.join().unwrap();
        }
        self.said()
    }

    /// What it has said there so far.
    pub(crate) fn said(&self) -> String {
        self.errors.lock().unwrap().clone()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Two hosts, and between them the namespace that `softnet run` is for.
pub(crate) struct World {
    middle: NetNs,
    pub(crate) hosts: [NetNs; 2],
    dir: TempDir,
}

pub(crate) fn host(i: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, i as u8, 0, 2)
}
fn router(i: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, i as u8, 0, 1)
}

impl World {
    pub(crate) fn new() -> Option<World> {
        if !net_allowed() {
            return None;
        }
        let ns = || NetNs::new().unwrap();
        let world = World { middle: ns(), hosts: [ns(), ns()], dir: tempfile::tempdir().unwrap() };
        for (i, host_ns) in world.hosts.iter().enumerate() {
            let name = format!("s{i}");
            let near = || {
                let mut netlink = Netlink::new().unwrap();
                netlink.add_veth(&name, "eth0", (1, 1), Some(host_ns)).unwrap();
                netlink.set_up(&name).unwrap();
            };
            let far = || {
                let mut netlink = Netlink::new().unwrap();
                netlink.add_address("eth0", host(i), 24).unwrap();
                netlink.set_up("eth0").unwrap();
                netlink.add_route(Ipv4Addr::UNSPECIFIED, 0, router(i)).unwrap();
            };
            world.middle.run(near).unwrap();
            host_ns.run(far).unwrap();
        }
        Some(world)
    }

    pub(crate) fn middle(&self) -> &NetNs {
        &self.middle
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.path("x.sock")
    }

    /// Writes a configuration, with `extra` in the section of the first device.
    pub(crate) fn config(&self, name: &str, extra: &str) -> String {
        let socket = self.socket();
        let text = format!(
            "[stack]\nname = \"process-test\"\ncontrol = {socket:?}\nframes = 4096\n\n\
             [[device]]\nname = \"s0\"\naddresses = [\"10.0.0.1/24\"]\nring = 256\n{extra}\n\n\
             [[device]]\nname = \"s1\"\naddresses = [\"10.1.0.1/24\"]\nring = 256\n"
        );
        let path = self.path(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().into()
    }

    fn run(&self, config: &str) -> Process {
        self.middle.run(|| Process::start(&["run", config])).unwrap()
    }

    /// Runs it, and waits until it says that it does.
    pub(crate) fn running(&self, config: &str) -> Process {
        self.running_with(config, &[])
    }

    /// The same with other arguments.
    pub(crate) fn running_with(&self, config: &str, more: &[&str]) -> Process {
        let args = [&["run", config], more].concat();
        let mut process = self.middle.run(|| Process::start(&args)).unwrap();
        process.line("process-test: running: 2 devices");
        process
    }

    /// Asks it for a table.
    pub(crate) fn show(&self, table: &str) -> Value {
        let socket = self.socket();
        let mut show = Process::start(&["show", table, "--json", "--name", socket.to_str().unwrap()]);
        let status = show.end();
        let errors = show.errors();
        assert!(status.success() && errors.is_empty(), "{status}: {errors}");
        let out: String = show.lines.iter().collect();
        serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}"))
    }

    /// Runs a command on it: its exit code, and what it printed of output and of errors.
    pub(crate) fn ask(&self, words: &str) -> (i32, String, String) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_softnet"));
        let output =
            command.args(words.split_whitespace()).arg("--name").arg(self.socket()).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
    }

    /// Waits until a datagram from one host has reached the other.
    pub(crate) fn assert_forwards(&self) {
        let server = self.hosts[1].run(|| UdpSocket::bind((host(1), 7)).unwrap()).unwrap();
        let client = self.hosts[0].run(|| UdpSocket::bind((host(0), 0)).unwrap()).unwrap();
        server.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        until("a datagram", || {
            let _ = client.send_to(b"hello", (host(1), 7));
            let mut buffer = [0; 16];
            server.recv_from(&mut buffer).is_ok_and(|(n, from)| {
                assert_eq!((&buffer[..n], from.ip()), (&b"hello"[..], host(0).into()));
                true
            })
        });
    }
}

#[test]
fn it_runs_is_asked_and_stops() {
    let Some(world) = World::new() else { return };
    let config = world.config("r.toml", "");
    for signal in [Signal::TERM, Signal::INT] {
        let mut process = world.running(&config);
        world.assert_forwards();
        let stats = world.show("stats");
        assert_eq!((&stats["name"], &stats["pid"]), (&"process-test".into(), &process.pid().into()));
        assert!(stats["transmitted"].as_u64().unwrap() > 0 && stats["leaked"] == 0, "{stats}");
        for (table, rows) in [("dev", 2), ("napi", 2 + 1), ("worker", 1), ("steering", 2)] {
            let shown = world.show(table);
            assert_eq!(shown.as_array().unwrap().len(), rows, "{table}: {shown}");
        }
        let dev = &world.show("dev")[0];
        assert_eq!((&dev["name"], &dev["driver"], &dev["link"]), (&"s0".into(), &"xdp".into(), &"up".into()));
        assert!(world.show("route").as_array().unwrap().iter().any(|r| r["prefix"] == "10.1.0.0/24"));
        let neighbours = world.show("neigh");
        assert!(neighbours.as_array().unwrap().iter().any(|n| n["ip"] == "10.1.0.2"), "{neighbours}");
        assert!(world.show("drops").is_array());
        process.signal(signal);
        assert_eq!(process.end().code(), Some(0));
        assert_eq!(process.errors(), "");
        process.line("process-test: stopped");
        assert!(!world.socket().exists());
    }
}

/// None of them asks it to end, and what it has to give back would stay.
#[test]
fn signals_that_mean_nothing_are_ignored() {
    let Some(world) = World::new() else { return };
    let mut process = world.running(&world.config("r.toml", ""));
    for signal in [Signal::USR1, Signal::USR2, Signal::PIPE] {
        process.signal(signal);
    }
    world.assert_forwards();
    assert_eq!(world.show("stats")["pid"], process.pid());
    process.signal(Signal::TERM);
    assert_eq!((process.end().code(), process.errors()), (Some(0), String::new()));
    assert!(!world.socket().exists());
}

/// An interface is there but can't be taken, and is tried again whenever something happens to it, and every second.
#[test]
fn what_stays_as_it_is_is_told_once() {
    let Some(world) = World::new() else { return };
    let mut process = world.running(&world.config("r.toml", ""));
    let set = |mtu: u32| {
        world.middle.run(|| Netlink::new().unwrap().set_mtu("s0", mtu).unwrap()).unwrap();
    };
    // More than softnet takes.
    set(9001);
    until("the refusal", || process.said().contains("can't be taken yet"));
    let down_and_up = || {
        let mut netlink = Netlink::new().unwrap();
        netlink.set_down("s0").unwrap();
        netlink.set_up("s0").unwrap();
    };
    (0..5).for_each(|_| world.middle.run(down_and_up).unwrap());
    // And some of those that it makes by itself.
    std::thread::sleep(Duration::from_millis(2500));
    set(1500);
    until("s0", || process.said().contains("s0 is back"));
    process.signal(Signal::TERM);
    assert_eq!(process.end().code(), Some(0));
    let errors = process.errors();
    assert_eq!(errors.matches("s0 is there but can't be taken yet: ").count(), 1, "{errors}");
}

/// Each context in turn, by the command, with the threads that belong to it.
#[test]
fn contexts_are_set_while_it_runs() {
    let Some(world) = World::new() else { return };
    let config = world.config("r.toml", "threaded = \"threaded\"");
    let process = world.running(&config);
    let comms = || -> BTreeSet<String> {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", process.pid())).unwrap();
        tasks.flatten().filter_map(|t| std::fs::read_to_string(t.path().join("comm")).ok()).collect()
    };
    let has = |prefix: &str| comms().iter().any(|comm| comm.starts_with(prefix));
    assert!(has("napi/s0-") && !has("napi/s1-") && !has("napi-wq/"), "{:?}", comms());
    let set = |words: &str| {
        let (code, out, errors) = world.ask(&format!("set {words} --json"));
        assert_eq!(code, 0, "{errors}");
        serde_json::from_str::<Value>(&out).unwrap()
    };
    let id = set("dev s0 threaded=0")[0]["id"].to_string();
    assert!(!has("napi/s0-"), "{:?}", comms());
    world.assert_forwards();
    assert_eq!(set(&format!("napi {id} threaded=workqueue"))[0]["thread"], "napi-wq");
    assert!(has("napi-wq/0"), "{:?}", comms());
    world.assert_forwards();
    assert_eq!(set("dev s1 threaded=busy-poll")[0]["context"], "busy-poll");
    assert!(has("napi/s1-"), "{:?}", comms());
    world.assert_forwards();
    let shown = world.show("napi");
    assert_eq!((&shown[0]["context"], &shown[1]["context"]), (&"workqueue".into(), &"busy-poll".into()));
}

/// Disciplines of real devices, by the command.
#[test]
fn disciplines_are_changed_while_it_runs() {
    let Some(world) = World::new() else { return };
    let _process = world.running(&world.config("r.toml", "qdisc = \"pfifo limit 100\""));
    let qdisc = |line: &str| world.ask(&format!("qdisc {line}"));
    let fine = |out: &str| (0, out.to_owned(), String::new());
    assert_eq!(qdisc("show"), fine("qdisc pfifo dev s0 root limit 100p\nqdisc pfifo_fast dev s1 root\n"));
    world.assert_forwards();
    let tbf = "qdisc tbf dev s1 root rate 10Mbit burst 15Kb lat 50ms\n";
    assert_eq!(qdisc("add dev s1 tbf rate 10mbit burst 15kb latency 50ms"), fine(tbf));
    assert_eq!(qdisc("show dev s1"), fine(tbf));
    world.assert_forwards();
    let row = |dev: &str| {
        let rows = world.show("qdisc");
        rows.as_array().unwrap().iter().find(|row| row["dev"] == dev).unwrap().clone()
    };
    assert!(row("s1")["packets"].as_u64().unwrap() > 0 && row("s1")["tx"]["owned"].as_u64().unwrap() > 0);
    // So little that no frame fits: nothing passes, and it is told.
    let (code, _, warning) = qdisc("replace dev s1 root tbf rate 10mbit burst 10b latency 1ms");
    let expected = "warning: s1: tbf: burst 10b is less than the longest frame, 1514 bytes with an MTU of 1500: longer \
                    frames than that are dropped\n";
    assert_eq!((code, &warning[..]), (0, expected));
    assert_eq!(format!("warning: s1: {}\n", row("s1")["warning"].as_str().unwrap()), expected);
    let client = world.hosts[0].run(|| UdpSocket::bind((host(0), 0)).unwrap()).unwrap();
    until("a drop", || {
        let _ = client.send_to(b"too long", (host(1), 7));
        row("s1")["drops_by_reason"]["qdisc_drop"].as_u64().is_some_and(|n| n > 0)
    });
    let (code, out, _) = qdisc("-s show dev s1");
    assert!(
        code == 0 && out.contains("\n drops: qdisc_drop ") && out.contains("\n tx queue: owned "),
        "{out}"
    );
    assert_eq!(qdisc("del dev s1"), fine("qdisc pfifo_fast dev s1 root\n"));
    // Configured is as if set.
    assert_eq!(qdisc("del dev s0 root"), fine("qdisc pfifo_fast dev s0 root\n"));
    world.assert_forwards();
    for (line, expected) in [
        ("add dev s7 root pfifo", "no device \"s7\"; there are: s0, s1"),
        ("del dev s1", "the root has its default discipline, which can't be deleted"),
        (
            "add dev s1 parent :1 pfifo",
            "parent: the root is not mq, so TX queues have no discipline of their own;",
        ),
        ("show dev s7", "no device \"s7\"; there are: s0, s1"),
    ] {
        let (code, out, err) = qdisc(line);
        assert!(code == 1 && out.is_empty() && err.contains(expected), "{line}: {code} {out}{err}");
    }
    assert_eq!(qdisc("replace dev s1 mq"), fine("qdisc mq dev s1 root\nqdisc pfifo_fast dev s1 parent :1\n"));
    let (code, _, err) = qdisc("add dev s1 parent :1 mq");
    assert!(code == 1 && err.ends_with("mq is for devices, not for one of their TX queues\n"), "{err}");
    let (code, _, err) = qdisc("add dev s1 parent :2 pfifo");
    assert!(code == 1 && err.ends_with("no TX queue 1 (:2); there are 1, expected :1 to :1\n"), "{err}");
}

/// What came in by `s0` goes round and round, until the filter is gone.
#[test]
fn filters_are_set_while_it_runs() {
    let Some(world) = World::new() else { return };
    let config = world.config("r.toml", "");
    let _process = world.running(&config);
    let filter = |words: &str| {
        let (code, out, errors) = world.ask(&format!("filter {words}"));
        (code, out + &errors)
    };
    world.assert_forwards();
    let rule = "dev s0 ingress matchall action mirred ingress redirect dev s0";
    let fine = |text: &str| (0, text.to_owned());
    assert_eq!(filter(&format!("add {rule}")), fine(""));
    assert_eq!(filter("show"), fine(&format!("filter {rule}\n")));
    let client = world.hosts[0].run(|| UdpSocket::bind((host(0), 0)).unwrap()).unwrap();
    until("a packet that went round", || {
        let _ = client.send_to(b"hello", (host(1), 7));
        let row = &world.show("filter")[0];
        row["drops"].as_u64().unwrap() > 0 && row["packets"].as_u64().unwrap() >= 4
    });
    let mine = |row: &Value| row["dev"] == "s0" && row["reason"] == "tc_ingress";
    assert!(world.show("drops").as_array().unwrap().iter().any(mine));
    for (words, error) in [
        (format!("add {rule}"), "ingress of s0 has a filter already: `replace` it, or `del` it first"),
        ("del dev s1 ingress".into(), "ingress of s1 has no filter, so none to delete"),
        (rule.replace("dev s0 ing", "replace dev s0 ing") + "7", "no device \"s07\"; there are: s0, s1"),
    ] {
        assert_eq!(filter(&words), (1, format!("error: the instance answered: {error}\n")));
    }
    assert_eq!(filter("del dev s0 ingress"), fine(""));
    assert_eq!(filter("show dev s0"), fine(""));
    world.assert_forwards();
}

#[test]
fn after_sigkill_it_can_be_started_at_once() {
    let Some(world) = World::new() else { return };
    let config = world.config("r.toml", "");
    for _ in 0..4 {
        let mut process = world.running(&config);
        world.assert_forwards();
        process.signal(Signal::KILL);
        process.end();
        assert!(world.socket().exists(), "it had no chance to remove it");
    }
    let _last = world.running(&config);
    world.assert_forwards();
}

#[test]
fn a_second_instance_of_the_same_name_is_refused() {
    let Some(world) = World::new() else { return };
    let config = world.config("r.toml", "");
    let first = world.running(&config);
    let mut second = world.run(&config);
    assert_eq!(second.end().code(), Some(1));
    let errors = second.errors();
    assert!(errors.contains(&format!("is already running, pid {}", first.pid())), "{errors}");
    world.assert_forwards();
    assert_eq!(world.show("stats")["pid"], first.pid());
}

#[test]
fn a_bad_configuration_touches_nothing() {
    let Some(world) = World::new() else { return };
    let bad = world.config("bad.toml", "rings = 256");
    let mut process = world.run(&bad);
    assert_eq!(process.end().code(), Some(2));
    let errors = process.errors();
    assert!(errors.contains("no interface was touched"), "{errors}");
    assert!(errors.contains(&format!("{bad}:10:1: device: unknown key \"rings\"")), "{errors}");
    assert!(!world.socket().exists());
    // A device that is not there is found out later; what was taken by then is given back.
    let missing = world
        .config("missing.toml", "\n[[device]]\nname = \"s7\"\naddresses = [\"10.7.0.1/24\"]\nring = 256");
    let mut process = world.run(&missing);
    assert_eq!(process.end().code(), Some(1));
    let errors = process.errors();
    assert!(errors.contains("no interface s7 here; there are: ") && errors.contains("s0"), "{errors}");
    assert!(!world.socket().exists());
    let _good = world.running(&world.config("r.toml", ""));
    world.assert_forwards();
}

/// What reading a table takes ends with the reading, and of a route remains what its look-up needs and what shows it.
#[test]
fn routes_take_little_more_memory_than_their_tables() {
    const ROUTES: usize = 100_000;
    let Some(world) = World::new() else { return };
    let text = std::fs::read_to_string(world.config("none.toml", "")).unwrap();
    let route = |i: usize| {
        let net = Ipv4Addr::from_bits(0x1400_0000 + ((i as u32) << 8));
        format!("\n[[route]]\nto = \"{net}/24\"\nvia = \"10.0.0.{}\"\n", 2 + i % 200)
    };
    std::fs::write(world.path("many.toml"), text + &(0..ROUTES).map(route).collect::<String>()).unwrap();
    let [none, many] = ["none.toml", "many.toml"].map(|name| {
        let process = world.running(world.path(name).to_str().unwrap());
        let memory = || {
            let status = std::fs::read_to_string(format!("/proc/{}/status", process.pid())).unwrap();
            ["VmHWM:", "RssAnon:"].map(|name| {
                let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
                line.trim().strip_suffix(" kB").unwrap().parse::<usize>().unwrap() << 10
            })
        };
        let before = memory();
        let fib = world.show("stats")["fib_bytes"].as_u64().unwrap() as usize;
        assert!(world.show("route").as_array().unwrap().len() >= 6);
        // The answer's text goes after its last byte was sent.
        until("the memory of an answer", || memory()[1] < before[1] + (2 << 20));
        (before, fib, memory()[0])
    });
    let more = |of: fn(&([usize; 2], usize, usize)) -> usize| of(&many).saturating_sub(of(&none));
    let shown = format!("{ROUTES} routes: {none:?}, {many:?}");
    let fib = more(|all| all.1);
    // An entry of the tree of routes is 24 bytes; its leaves are two thirds full.
    assert!(more(|all| all.0[1]) < fib + 36 * ROUTES + (2 << 20), "resident: {shown}");
    assert!(more(|all| all.0[0]) < fib + 150 * ROUTES + (4 << 20), "peak: {shown}");
    // Showing them needs little more than the text that is sent.
    assert!(more(|all| all.2) < fib + 400 * ROUTES + (4 << 20), "peak of showing: {shown}");
}

#[test]
fn the_interface_of_the_default_route_is_refused() {
    let Some(world) = World::new() else { return };
    let default_route = || {
        let mut netlink = Netlink::new().unwrap();
        netlink.add_address("s0", Ipv4Addr::new(10, 0, 0, 3), 24).unwrap();
        netlink.add_route(Ipv4Addr::UNSPECIFIED, 0, host(0)).unwrap();
    };
    world.middle.run(default_route).unwrap();
    let mut process = world.run(&world.config("r.toml", ""));
    assert_eq!(process.end().code(), Some(1));
    let errors = process.errors();
    assert!(errors.contains("s0 carries a default route") && errors.contains("force = true"), "{errors}");
    let _forced = world.running(&world.config("force.toml", "force = true"));
    world.assert_forwards();
}

/// What a demo could leave behind in the namespaces of the calling thread.
fn surroundings() -> (BTreeSet<String>, Vec<String>, bool) {
    let links = Netlink::new().unwrap().links().unwrap().into_iter().map(|link| link.name).collect();
    let mounts = std::fs::read_to_string("/proc/thread-self/mounts").unwrap();
    let mounts = mounts.lines().filter(|line| line.contains("nsfs") || line.contains("sysfs"));
    (links, mounts.map(String::from).collect(), Path::new("/run/softnet/demo.sock").exists())
}

/// In a namespace of its own, so that no other interfaces come into it. The demo dies with the thread that started
/// it, so it is started and watched by one thread.
fn alone(test: impl FnOnce() + Send) {
    if net_allowed() {
        NetNs::new().unwrap().run(test).unwrap();
    }
}

#[test]
fn the_demo_succeeds_and_leaves_nothing() {
    alone(|| {
        let before = surroundings();
        let mut demo = Process::start(&["demo", "--duration", "2", "--json"]);
        let status = demo.end();
        assert_eq!((status.code(), demo.errors()), (Some(0), String::new()));
        let out: String = demo.lines.iter().collect();
        let summary: Value = serde_json::from_str(&out).unwrap();
        assert_eq!(summary["ok"], true, "{summary:#}");
        assert_eq!(surroundings(), before);
    });
}

#[test]
fn a_killed_demo_leaves_nothing() {
    alone(|| {
        let before = surroundings();
        let mut demo = Process::start(&["demo", "--duration", "60"]);
        demo.lines.recv_timeout(PATIENCE).expect("progress");
        demo.signal(Signal::KILL);
        demo.end();
        assert_eq!(surroundings(), before);
    });
}

#[test]
fn the_demo_dies_with_its_parent() {
    if !net_allowed() {
        return;
    }
    let parent = || {
        let demo = Process::start(&["demo", "--duration", "60"]);
        demo.lines.recv_timeout(PATIENCE).expect("progress");
        demo
    };
    let mut demo = std::thread::spawn(parent).join().unwrap();
    let status = demo.end();
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(Signal::KILL.as_raw()));
}
