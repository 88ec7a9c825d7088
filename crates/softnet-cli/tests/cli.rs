//! The program as a user meets it: help, exit codes, errors, and tables of an instance that answers over a real control
//! socket.

use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;

use serde_json::{Value, json};
use softnet::control::{Handler, Listener, Request, Server, Set, Target};
use softnet::show::Table;

fn softnet(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_softnet")).args(args).output().unwrap()
}

/// Exit code, standard output, standard error.
fn told(args: &[&str]) -> (i32, String, String) {
    let output = softnet(args);
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

#[test]
fn help_teaches_by_example() {
    for (args, expected) in [
        (&["--help"][..], "softnet demo     "),
        (&["run", "--help"], "[[device]]\n  name = \"eth1\""),
        (&["show", "--help"], "softnet show napi --watch"),
        (&["demo", "--help"], "client ──── softnet ──── server"),
        (&["bench", "--help"], "softnet bench forward --report f.html"),
        (&["bench", "forward", "--help"], "--baseline <FILE.json>"),
    ] {
        let (code, out, err) = told(args);
        assert!(code == 0 && err.is_empty() && out.contains(expected), "{args:?}: {code}\n{out}{err}");
    }
}

#[test]
fn wrong_usage_is_2() {
    for args in [
        &[][..],
        &["rum"],
        &["run"],
        &["show", "weather"],
        &["show", "dev", "--watch", "0"],
        &["demo", "--duration", "soon"],
    ] {
        let (code, out, err) = told(args);
        assert!(code == 2 && out.is_empty() && !err.is_empty(), "{args:?}: {code}\n{out}{err}");
    }
}

#[test]
fn a_bad_configuration_is_2_and_names_the_place() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("r.toml");
    std::fs::write(&file, "[[device]]\nname = \"eth1\"\nadresses = [\"10.0.0.1/24\"]\n").unwrap();
    let file = file.to_str().unwrap();
    let expected = format!(
        "error: the configuration has 2 errors; no interface was touched\n\
         {file}:1:1: device.addresses: expected at least one address, such as [\"10.0.0.1/24\"]: without one, nothing on \
         the link can find softnet\n \
         1 | [[device]]\n   \
         | ^^^^^^^^^^\n\
         {file}:3:1: device: unknown key \"adresses\"; did you mean \"addresses\"?\n \
         3 | adresses = [\"10.0.0.1/24\"]\n   \
         | ^^^^^^^^\n"
    );
    for args in [&["run", file, "--check"][..], &["run", file]] {
        assert_eq!(told(args), (2, String::new(), expected.clone()));
    }
    let (code, _, err) = told(&["run", "/nowhere.toml"]);
    assert_eq!(code, 2);
    assert!(err.ends_with("\n/nowhere.toml: no such file\n"), "{err}");
}

#[test]
fn check_touches_no_interface() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("r.toml");
    // No machine has this interface.
    std::fs::write(&file, "[[device]]\nname = \"nosuchif0\"\naddresses = [\"10.0.0.1/24\"]\n").unwrap();
    let file = file.to_str().unwrap();
    let expected = format!("{file}: ok: 1 device, 1 worker, 0 routes, 0 neighbours\n");
    assert_eq!(told(&["run", file, "--check"]), (0, expected, String::new()));
}

#[test]
fn an_instance_that_is_not_there_is_1() {
    let (code, out, err) = told(&["show", "dev", "--name", "/nowhere/x.sock"]);
    assert!(code == 1 && out.is_empty(), "{out}");
    assert!(err.starts_with("error: no instance \"/nowhere/x.sock\" is running; "), "{err}");
}

/// An instance that has seen better days.
struct Instance;

impl Handler for Instance {
    fn request(&self, request: Request) -> Result<Value, String> {
        let table = match request {
            Request::Show(table) => table,
            Request::Knobs(_) => return self.request(Request::Show(Table::Napi)),
            Request::Set(Set { target: Target::Dev(dev), .. }) => {
                return Err(format!("no device {dev:?}; there are: eth1, wan"));
            }
            Request::Set(Set { target: Target::Napi(_), threaded }) => {
                let mut napis = self.request(Request::Show(Table::Napi))?;
                napis[0]["context"] = threaded.name().into();
                return Ok(napis);
            }
        };
        Ok(match table {
            Table::Dev => json!([
                {"index": 0, "name": "eth1", "driver": "xdp", "mode": "native", "link": "up", "mac": "02:00:00:00:00:01",
                 "mtu": 1500, "addresses": ["10.0.0.1/24", "10.0.8.1/24"], "queues": 4, "rx_packets": 1234567,
                 "rx_bytes": 987654321, "rx_ring_drops": 3, "rx_kicks": 17, "tx_packets": 1234000, "tx_bytes": 987000000,
                 "tx_ring_drops": 0, "tx_kicks": 40000, "drops": 567, "held": 2048, "reopened": 0},
                {"index": 1, "name": "wan", "driver": "xdp", "mode": "skb mode: native refused: no driver support",
                 "link": "down", "mac": "02:00:00:00:00:02", "mtu": 1500, "addresses": ["192.0.2.2/31"], "queues": 1,
                 "rx_packets": 0, "rx_bytes": 0, "rx_ring_drops": 0, "rx_kicks": 0, "tx_packets": 12, "tx_bytes": 504,
                 "tx_ring_drops": 0, "tx_kicks": 12, "drops": 0, "held": 0, "reopened": 1},
            ]),
            Table::Napi => json!([
                {"id": 1, "name": "eth1-0", "dev": "eth1", "queue": 0, "worker": 0, "context": "softirq",
                 "thread": "softnet/0", "tid": 4711, "state": ["sched", "missed"], "doorbell": "masked", "napi_defer_hard_irqs": 0,
                 "gro_flush_timeout": 0, "warning": null, "kernel_irq": "masked while deferred", "polls": 1000,
                 "empty_polls": 10, "full_polls": 900, "packets": 59000, "schedules": 100, "missed": 2},
            ]),
            Table::Worker => json!([
                {"name": "softnet/0", "context": "softirq", "cpu": 2, "policy": "fifo 10", "tid": 4711, "state": "sleeping", "cpu_ns": 123456789, "cpu_percent": 12.34,
                 "rounds": 5000, "sleeps": 300, "wakeups": {"doorbell": 290, "timer": 10}, "time_squeeze": 4,
                 "packets": 59000, "cached_heads": 96, "cached_frames": 80},
                {"name": "napi-wq/0", "context": "workqueue", "cpu": null, "policy": "other", "tid": 4712, "state": "running",
                 "cpu_ns": 0, "cpu_percent": 0.0, "rounds": 0, "sleeps": 1, "wakeups": {"doorbell": 1, "timer": 0},
                 "time_squeeze": 0, "packets": 0, "cached_heads": 0, "cached_frames": 0},
            ]),
            Table::Neigh => json!([
                {"dev": "eth1", "ip": "10.0.0.2", "mac": "02:00:00:00:00:09", "state": "reachable", "age_s": 4.25,
                 "queued": 0},
                {"dev": "eth1", "ip": "10.0.0.77", "mac": null, "state": "incomplete", "age_s": 0.5, "queued": 3},
            ]),
            Table::Route => json!([
                {"prefix": "0.0.0.0/0", "kind": "via", "via": "10.0.0.2", "dev": "eth1"},
                {"prefix": "10.66.0.0/16", "kind": "blackhole", "via": null, "dev": null},
            ]),
            Table::Drops => json!([]),
            Table::Stats => return Err("it is a bad night".into()),
        })
    }
}

fn serve(path: &Path) -> Server {
    Listener::bind(path).unwrap().serve(Arc::new(Instance)).unwrap()
}

#[test]
fn tables_for_people() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.sock");
    let _server = serve(&path);
    let show = |table: &str| told(&["show", table, "--name", path.to_str().unwrap()]);
    let fine = |text: &str| (0, text.to_owned(), String::new());
    assert_eq!(
        show("dev"),
        fine(concat!(
            "DEV   LINK  ADDRESSES                MAC                 MTU  QUEUES  RX PACKETS  RX BYTES  RX MISSED  TX PACKETS  TX BYTES  TX REFUSED  DROPS   KICKS   HELD  REOPENED  DRIVER\n",
            "eth1  up    10.0.0.1/24 10.0.8.1/24  02:00:00:00:00:01  1500       4   1,234,567   942 MiB          3   1,234,000   941 MiB           0    567  40,017  2,048         0  xdp native\n",
            "wan   down  192.0.2.2/31             02:00:00:00:00:02  1500       1           0       0 B          0          12     504 B           0      0      12      0         1  xdp skb mode: native refused: no driver support\n",
        ))
    );
    assert_eq!(
        show("napi"),
        fine(concat!(
            "ID  NAME    DEV   QUEUE  CONTEXT  THREAD      TID  STATE         DOORBELL  KERNEL IRQ             PACKETS  POLLS  EMPTY  FULL  PACKETS/POLL  SCHEDULES  MISSED\n",
            " 1  eth1-0  eth1      0  softirq  softnet/0  4711  sched,missed  masked    masked while deferred   59,000  1,000     10   900          59.0        100       2\n",
        ))
    );
    assert_eq!(
        show("worker"),
        fine(concat!(
            "THREAD     CONTEXT    CPU  POLICY    TID  STATE        USE  PACKETS  ROUNDS  TIME SQUEEZE  SLEEPS  WOKEN BY                CACHED HEADS  FRAMES\n",
            "softnet/0  softirq      2  fifo 10  4711  sleeping  12.3 %   59,000   5,000             4     300  doorbell 290, timer 10            96      80\n",
            "napi-wq/0  workqueue    -  other    4712  running    0.0 %        0       0             0       1  doorbell 1, timer 0                0       0\n",
        ))
    );
    assert_eq!(
        show("neigh"),
        fine(concat!(
            "DEV   IP         MAC                STATE         AGE  QUEUED\n",
            "eth1  10.0.0.2   02:00:00:00:00:09  reachable   4.2 s       0\n",
            "eth1  10.0.0.77  -                  incomplete  0.5 s       3\n",
        ))
    );
    assert_eq!(
        show("route"),
        fine(concat!(
            "PREFIX        KIND       VIA       DEV\n",
            "0.0.0.0/0     via        10.0.0.2  eth1\n",
            "10.66.0.0/16  blackhole  -         -\n",
        ))
    );
    assert_eq!(show("drops"), fine("nothing was dropped\n"));
    assert_eq!(show("stats"), (1, String::new(), "error: the instance answered: it is a bad night\n".into()));
}

#[test]
fn set_says_what_became_of_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.sock");
    let _server = serve(&path);
    let set = |args: [&str; 3]| told(&[&["set"][..], &args, &["--name", path.to_str().unwrap()]].concat());
    let (code, out, err) = set(["napi", "1", "threaded=1"]);
    assert_eq!((code, &err[..]), (0, ""));
    assert!(out.contains(" 1  eth1-0  eth1      0  threaded  softnet/0  4711"), "{out}");
    let error = "error: the instance answered: no device \"eth9\"; there are: eth1, wan\n";
    assert_eq!(set(["dev", "eth9", "threaded=busy-poll"]), (1, String::new(), error.into()));
    for (args, expected) in [
        (["napi", "eth1", "threaded=1"], "expected the id of a NAPI instance (a number), found \"eth1\""),
        (
            ["dev", "eth1", "threaded=2"],
            "expected softirq (0), threaded (1), workqueue or busy-poll, found \"2\"",
        ),
        (["dev", "eth1", "thread=1"], "unknown key \"thread\"; expected threaded"),
        (["dev", "eth1", "threaded"], "expected KEY=VALUE, such as threaded=1"),
        (["dev", "eth1", "gro-flush-timeout=20us"], "expected a whole number, found \"20us\""),
    ] {
        let (code, out, err) = set(args);
        assert_eq!((code, &out[..]), (2, ""));
        assert!(err.contains(expected), "{err}");
    }
}

#[test]
fn json_carries_raw_numbers() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.sock");
    let _server = serve(&path);
    for (table, request) in
        [("dev", Table::Dev), ("napi", Table::Napi), ("worker", Table::Worker), ("drops", Table::Drops)]
    {
        let (code, out, err) = told(&["show", table, "--json", "--name", path.to_str().unwrap()]);
        assert_eq!((code, &err[..]), (0, ""));
        let shown: Value = serde_json::from_str(&out).unwrap();
        assert_eq!(shown, Instance.request(Request::Show(request)).unwrap());
    }
}

#[test]
fn a_bench_writes_a_page_and_compares_with_an_earlier_run() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_string();
    let (base, page) = (path("base.json"), path("page.html"));
    let bench = |more: &[&str]| told(&[&["bench", "skb-cache", "--quick", "--rounds", "1"], more].concat());

    let (code, out, _) = bench(&["--json", "--report", &page]);
    let first: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, first["rows"].as_array().unwrap().len()), (0, 4));
    let html = std::fs::read_to_string(&page).unwrap();
    assert!(
        html.contains("<title>softnet bench skb-cache</title>") && html.contains("mimalloc</th>"),
        "{html}"
    );

    std::fs::write(&base, out).unwrap();
    let (code, out, _) = bench(&["--json", "--baseline", &base]);
    let again: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(code, 0);
    for row in again["rows"].as_array().unwrap() {
        assert!(row["ratio_to_baseline"]["ns_per_pair"].as_f64().unwrap() > 0.0, "{row}");
    }
    let (code, out, _) = bench(&["--baseline", &base]);
    assert!(code == 0 && out.contains("vs baseline: ns_per_pair, divided by"), "{out}");

    // What cannot be read or written is told before anything is measured.
    let missing = path("no/such/file");
    for (option, file, expected) in [
        ("--baseline", &page, "this is no report of a bench"),
        ("--baseline", &missing, "make one with `softnet bench skb-cache --json > FILE`"),
        ("--report", &missing, "name a file that you may write"),
    ] {
        let (code, out, err) = bench(&[option, file]);
        assert!(
            code == 2 && out.is_empty() && err.contains(expected) && err.contains(file),
            "{code}\n{out}{err}"
        );
    }
    let (code, _, err) = told(&["bench", "idle", "--baseline", &base]);
    assert!(code == 2 && err.contains("this is of bench skb-cache, not idle"), "{err}");
}
