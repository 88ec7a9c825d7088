//! The program as a user meets it: help, exit codes, errors, and tables of an instance that answers over a real control
//! socket.

use std::process::{Command, Output};

use serde_json::Value;
use softnet::control::Request;
use softnet::control::show::Table;
use softnet::internals::Handler;

use crate::instance::{Instance, serve};

fn softnet(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_softnet")).args(args).output().unwrap()
}

/// Exit code, standard output, standard error.
pub(crate) fn told(args: &[&str]) -> (i32, String, String) {
    let output = softnet(args);
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

#[test]
fn help_teaches_by_example() {
    for (args, expected) in [
        (&["--help"][..], "softnet demo     "),
        (&["run", "--help"], "[[device]]\n  name = \"eth1\""),
        (&["show", "--help"], "softnet show napi eth1-0 --watch"),
        (&["top", "--help"], "softnet top --once --interval 5"),
        (&["set", "--help"], "prefer_busy_poll"),
        (&["qdisc", "--help"], "tbf rate RATE burst SIZE {latency TIME | limit SIZE}"),
        (&["qdisc", "add", "--help"], "softnet qdisc [OPTIONS] add dev DEV"),
        (&["filter", "--help"], "mirred ingress mirror dev TO"),
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
        &["top", "--interval", "0"],
        &["show", "dev", "--watch", "0"],
        &["filter"],
        &["filter", "add", "dev"],
        &["demo", "--duration", "soon"],
        &["qdisc", "change", "dev", "eth1", "root", "pfifo"],
        &["qdisc", "show", "eth1"],
        &["qdisc", "add", "dev", "eth1", "root", "codel"],
        &["qdisc", "del", "dev", "eth1", "parent", "1"],
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
    let path = file.to_str().unwrap();
    for driver in ["xdp", "tap", "packet"] {
        // No machine has this interface, and none is made.
        let device = "[[device]]\nname = \"nosuchif0\"\naddresses = [\"10.0.0.1/24\"]\n";
        std::fs::write(&file, format!("{device}driver = \"{driver}\"\n")).unwrap();
        let expected = format!("{path}: ok: 1 device, 1 worker, 0 routes, 0 neighbours\n");
        assert_eq!(told(&["run", path, "--check"]), (0, expected, String::new()));
        assert!(!std::path::Path::new("/sys/class/net/nosuchif0").exists(), "{driver}");
    }
}

#[test]
fn the_home_router_is_a_right_configuration() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/home-router.toml");
    let expected = format!("{path}: ok: 3 devices, 1 worker, 4 routes, 0 neighbours\n");
    assert_eq!(told(&["run", path, "--check"]), (0, expected, String::new()));
}

#[test]
fn an_instance_that_is_not_there_is_1() {
    let (code, out, err) = told(&["show", "dev", "--name", "/nowhere/x.sock"]);
    assert!(code == 1 && out.is_empty(), "{out}");
    assert!(err.starts_with("error: no instance \"/nowhere/x.sock\" is running; "), "{err}");
}

const STEERING: &str = concat!(
    "NAPI    MODE       PACKETS  WAKEUPS  DROPPED  LIMITED  HELD  MOVES  FILTERS  BACKLOG  WORKERS\n",
    "eth1-0  rps+rfs  1,000,000    2,000        5       64     0     17        3       12  softnet/1 75 %, softnet/2 25 %\n",
    "wan-0   none             0        0        0        0     0      0        -        0  -\n",
);

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
            "DEV   LINK  ADDRESSES                GROUPS                         MAC                 MTU  QUEUES  RX PACKETS  RX BYTES  RX MISSED  TX PACKETS  TX BYTES  TX REFUSED  DROPS   KICKS   HELD  REOPENED  DRIVER\n",
            "eth1  up    10.0.0.1/24 10.0.8.1/24  224.0.1.129 (1) 239.1.2.3 (2)  02:00:00:00:00:01  1500       4   1,234,567   942 MiB          3   1,234,000   941 MiB           0    567  40,017  2,048         0  xdp native\n",
            "wan   down  192.0.2.2/31             -                              02:00:00:00:00:02  1500       1           0       0 B          0          12     504 B           0      0      12      0         1  xdp skb mode: native refused: no driver support\n",
        ))
    );
    assert_eq!(
        show("napi"),
        fine(concat!(
            "  ID  NAME    CONTEXT    THREAD      TID  OWNER             DOORBELL  TIMER                   EFFECTIVE\n",
            "8193  eth1-0  softirq    softnet/0  4711  application echo  masked    irq_suspend in 19.2 ms    65.1 µs\n",
            "8194  wan-0   workqueue  napi-wq       -  none              unmasked  -                               -\n",
            "\n",
            "NAME    PACKETS  POLLS  EMPTY  PER POLL  DOORBELLS  SUSPENDS    IRQ  DEFER  SUSP  POLL   APP\n",
            "eth1-0   59,000  1,000    1 %      59.0        100       390   50 %   20 %  20 %  10 %  <1 %\n",
            "wan-0         0      0      -         -          0         0  100 %    0 %   0 %   0 %   0 %\n",
            "\n",
            "NAME    WHY\n",
            "eth1-0  awake: application echo has polled for 12.0 µs\n",
            "wan-0   asleep: nothing came for 3.20 s; its doorbell will wake napi-wq\n",
            "wan-0   warning: napi_defer_hard_irqs has no effect without gro_flush_timeout\n",
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
            "PREFIX        KIND       VIA       DEV   METRIC  SOURCE  USED\n",
            "0.0.0.0/0     via        10.0.0.2  eth1       0  static  yes\n",
            "10.66.0.0/16  blackhole  -         -         20  kernel  no\n",
        ))
    );
    assert_eq!(
        show("filter"),
        fine(concat!(
            "DEV   PARENT   MATCH     ACTION           TO    PACKETS     BYTES  DROPPED  OVERLIMITS\n",
            "eth1  ingress  matchall  redirect egress  wan     1,200  96.1 KiB        3           0\n",
            "wan   egress   matchall  mirror ingress   eth1       12     504 B        0          12\n",
        ))
    );
    let sockets = fine(concat!(
        "PROTO  LOCAL       PEER            QUEUED   OF  DROPS  NAPI           THREAD\n",
        "udp    10.0.0.1:7  *                    3  481  1,200  eth1-0 (8193)  -\n",
        "udp    10.0.0.1:9  10.0.0.2:40000       0  481      0  -              server (77)\n",
    ));
    assert_eq!([show("socket"), show("ss")], [sockets.clone(), sockets]);
    let warning = "wan-0: warning: rps_flow_cnt has no effect without rps_cpus\n";
    assert_eq!(show("steering"), fine(&[STEERING, warning].concat()));
    assert_eq!(show("drops"), fine("nothing was dropped\n"));
    assert_eq!(
        show("conntrack"),
        fine(concat!(
            "PROTO  STATE        SRC                DST               REPLY SRC       REPLY DST          NAT         AGE    EXPIRES\n",
            "tcp    established  192.168.1.9:40000  192.0.2.7:443     192.0.2.7:443   203.0.113.5:51234  snat  1 min 1 s  2 h 1 min\n",
            "udp    unreplied    198.51.100.2:53    203.0.113.5:5353  192.168.1.9:53  198.51.100.2:53    dnat      0.0 s  2 min 0 s\n",
        ))
    );
    assert_eq!(
        show("nat"),
        fine(concat!(
            "connections 1,200 of 262,144, made 5,000, expired 3,790, ended 4, dropped early 10, no room for 2\n",
            "hosts 12, the most of one 300, over its limit 7\n",
            "mappings 1,100, no port for 1; 30.0 MiB of memory\n",
            "\n",
            "DEV  ADDRESS      TCP PORTS  UDP PORTS  ICMP IDS\n",
            "wan  203.0.113.5        800        300         1\n",
        ))
    );
    assert_eq!(
        show("rule"),
        fine(concat!(
            "RULE  NAME     HOOK           MATCHES                    ACTION  PACKETS     BYTES\n",
            "   1  belongs  forward        state established,related  allow    12,000  8.58 MiB\n",
            "   2  -        input,forward  in wan source @bad         drop         17    1020 B\n",
            "   -  -        forward        policy                     drop          3     180 B\n",
        ))
    );
    let (code, out, err) = show("stats");
    assert!(code == 0 && err.is_empty() && out.contains("received     59,000\n"), "{out}{err}");
    let fragments = "fragments    2 datagrams waiting, 4,100 put together, 7 packets cut\n";
    assert!(out.contains(fragments), "{out}");
}

#[test]
fn tcp_in_the_words_of_ss() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.sock");
    let _server = serve(&path);
    let ask = |args: &[&str]| told(&[&["show", "tcp", "--name", path.to_str().unwrap()], args].concat());
    let show = |args: &[&str]| {
        let (code, out, err) = ask(args);
        assert_eq!((code, &*err), (0, ""), "{args:?}");
        assert!(out.lines().all(|line| line.len() <= 120), "{out}");
        out
    };
    let summary = "1 listening; 2 connections, 1 of them ESTAB, 0 without an application; 5 SYN-RECV, 1,200 TIME-WAIT\n";
    let all = concat!(
        "STATE       RECV-Q  SEND-Q  LOCAL           PEER             NAPI\n",
        "LISTEN           3   1,024  0.0.0.0:80      *                -\n",
        "ESTAB            0   1,000  10.0.0.1:80     10.0.0.2:40000   eth1-0\n",
        "CLOSE-WAIT      77       0  [fd00::1]:8080  [fd00::2]:40001  8194\n",
    );
    assert_eq!(show(&[]), [all, summary].concat());
    let states = |args: &[&str]| -> Vec<String> {
        let out = show(args);
        let rows = out.lines().take_while(|line| !line.contains("listening;")).skip(1);
        rows.map(|line| line.split(' ').next().unwrap().into()).collect()
    };
    assert_eq!(states(&["--listening"]), ["LISTEN"]);
    assert_eq!(states(&["--port", "80"]), ["LISTEN", "ESTAB"]);
    assert_eq!(states(&["--port", "40001"]), ["CLOSE-WAIT"]);
    assert_eq!(states(&["--state", "established", "--state", "close-wait"]), ["ESTAB", "CLOSE-WAIT"]);
    assert_eq!(states(&["--state", "established", "--port", "8080"]), [""; 0]);
    let info = show(&["--info"]);
    for words in [
        " syn-recv:5\n",
        " ts sack cubic wscale:7,10 rto:201 rtt:0.412/0.06 ato:40 mss:1448 pmtu:1500 rcvmss:536 advmss:1448 cwnd:10\n",
        " send 281165048bps lastsnd:4 lastrcv:1200 lastack:3 pacing_rate 560000000bps delivery_rate 100000000bps\n",
        " delivered:3459 app_limited unacked:1 rcv_space:14600",
        " minrtt:0.3",
        " rto:201 backoff:2 ato:40",
        " cwnd:1 ssthresh:5 ",
        " ca_state:loss unacked:1 retrans:1/12 lost:3 sacked:2 reordering:9 reord_seen:1",
    ] {
        let folded = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(folded(&info).contains(&folded(words)), "{words:?} is not in\n{info}");
    }
    assert_eq!(
        show(&["--counters"]),
        "COUNTER              COUNT\nTcpExtTCPLossProbes      7\nTcpPassiveOpens      1,202\n"
    );
    let json = |args: &[&str]| serde_json::from_str::<serde_json::Value>(&show(args)).unwrap();
    assert_eq!(json(&["--counters", "--json"])["TcpActiveOpens"], 0);
    let sockets = json(&["--json", "--listening"]);
    assert_eq!(
        (sockets["sockets"].as_array().unwrap().len(), &sockets["summary"]["time_wait"]),
        (1, &1200.into())
    );
    assert_eq!(json(&["--json"])["sockets"][1]["info"]["rtt_us"], 412);
    assert_eq!(ask(&["--state", "hopeful"]).0, 2);
    let (code, _, err) = told(&["show", "dev", "--info", "--name", path.to_str().unwrap()]);
    assert!(code == 2 && err.contains("are for `show tcp`, not `show dev`"), "{code} {err}");
}

#[test]
fn one_instance_in_full() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.sock");
    let _server = serve(&path);
    let show = |args: [&str; 2]| told(&[&["show"][..], &args, &["--name", path.to_str().unwrap()]].concat());
    let eth1 = concat!(
        "eth1-0, id 8193: RX queue 0 of eth1\n",
        "  awake: application echo has polled for 12.0 µs\n",
        "  polled by    softnet/0 (tid 4711), context softirq; owner now: application echo\n",
        "  doorbell     masked; rang: 100; the kernel's own interrupt: masked while deferred\n",
        "  timer        armed with irq_suspend_timeout, due in 19.2 ms\n",
        "  knobs        napi_defer_hard_irqs 100, gro_flush_timeout 20.0 µs, irq_suspend_timeout 20.0 ms\n",
        "  deferral     the timer polled: 500; on average 65.1 µs after it was armed\n",
        "  suspension   suspended: 390; resumed: 8; irq_suspend_timeout ran out: 1\n",
        "  polls        1,000, of them 1 % empty and 900 full; packets: 59,000, 59.0 a poll\n",
        "  busy polls   by applications: 400; found it taken: 2\n",
        "  gro          frags; 200 packets of 5,800 segments; held: 1; given up: full 11, last 150, mismatch 40, poll end 1,200\n",
        "  time         irq 50 %, deferred 20 %, suspended 20 %, polled 10 %, application <1 %\n",
        "  application  echo (tid 5000): 58,000 packets, 0 dropped for want of room, 2 wait; slept 17 times\n",
    );
    for id in ["8193", "eth1-0", "eth1"] {
        assert_eq!(show(["napi", id]), (0, eth1.to_owned(), String::new()));
    }
    let (_, out, _) = show(["napi", "wan-0"]);
    assert!(
        out.contains("  warning: napi_defer_hard_irqs has no effect without gro_flush_timeout\n"),
        "{out}"
    );
    let error = "error: no NAPI instance \"eth9\"; there are: 8193 (eth1-0), 8194 (wan-0)\n";
    assert_eq!(show(["napi", "eth9"]), (1, String::new(), error.into()));
    let error =
        "error: `show worker` shows all there is; only `show napi`, `dev`, `neigh` and `route` take an ID\n";
    assert_eq!(show(["worker", "eth1"]), (2, String::new(), error.into()));
    let (_, out, _) = show(["dev", "eth1"]);
    assert!(out.contains("\neth1 ") && out.lines().count() == 2, "{out}");
    let error = "error: no device \"eth9\"; there are: eth1, wan\n";
    assert_eq!(show(["neigh", "eth9"]), (1, String::new(), error.into()));
}

#[test]
fn set_says_what_became_of_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.sock");
    let _server = serve(&path);
    let set = |args: [&str; 3]| told(&[&["set"][..], &args, &["--name", path.to_str().unwrap()]].concat());
    let (code, out, err) = set(["napi", "8193", "threaded=1"]);
    let warning = "warning: wan-0: napi_defer_hard_irqs has no effect without gro_flush_timeout\n";
    assert_eq!((code, &err[..]), (0, warning));
    assert!(out.contains("8193  eth1-0  threaded   softnet/0  4711  application echo  masked"), "{out}");
    let knobs = concat!(
        "eth1-0: napi-defer-hard-irqs 100, gro-flush-timeout 20000 ns, irq-suspend-timeout 20000000 ns, gro frags\n",
        "wan-0: napi-defer-hard-irqs 2, gro-flush-timeout 0 ns, irq-suspend-timeout 0 ns, gro off\n"
    );
    assert!(out.ends_with(knobs), "{out}");
    let (code, out, err) = set(["dev", "eth1", "irq-suspend-timeout=18446744073709551615"]);
    assert!(code == 0 && err == warning && out.ends_with(knobs), "{out}{err}");
    let (code, out, err) = set(["dev", "eth1", "gro=list"]);
    assert!(code == 0 && err == warning && out.ends_with(knobs), "{out}{err}");
    let warning = "warning: wan-0: rps_flow_cnt has no effect without rps_cpus\n";
    for knob in ["rps-cpus=0-3", "rps-flow-cnt=4096", "processing-cpu=none"] {
        assert_eq!(set(["dev", "eth1", knob]), (0, STEERING.into(), warning.into()));
    }
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
        (
            ["dev", "eth1", "gro-flush-timeout=20us"],
            "expected a whole number of nanoseconds from 0 to 18446744073709551615, found \"20us\"",
        ),
        (
            ["dev", "eth1", "napi-defer-hard-irqs=2147483648"],
            "expected a whole number from 0 to 2147483647, found \"2147483648\"",
        ),
        (
            ["dev", "eth1", "rps-flow-cnt=1048577"],
            "expected a whole number from 0 to 1048576, found \"1048577\"",
        ),
        (["dev", "eth1", "gro=on"], "expected off, frags, frags-udp or list, found \"on\""),
        (["dev", "eth1", "irq-suspend-timeout=-1"], "expected a whole number of nanoseconds from 0"),
    ] {
        let (code, out, err) = set(args);
        assert_eq!((code, &out[..]), (2, ""));
        assert!(err.contains(expected), "{err}");
    }
}

#[test]
fn rss_is_shown_and_set_in_the_words_of_ethtool() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.sock");
    let _server = serve(&path);
    let name = path.to_str().unwrap();
    let run = |args: &[&str]| told(&[args, &["--name", name]].concat());
    let (code, shown, err) = run(&["show", "rss"]);
    assert_eq!((code, &err[..]), (0, ""));
    for line in [
        "DEV   CONTEXT  QUEUES  ENTRIES OF EACH QUEUE",
        "eth1        0       4  0: 2, 1: 2, 2: 2, 3: 2",
        "eth1        1       4  0: 6, 3: 2",
        "toeplitz  none  tcp4        6d:5a:56:da",
        "not supported: its driver has no way to set RSS or filters",
    ] {
        assert!(shown.contains(line), "{line}\n{shown}");
    }
    let (_, json, _) = run(&["show", "rss", "--json"]);
    let rows: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(rows[1]["table"], serde_json::json!([0, 0, 0, 0, 0, 0, 3, 3]));
    assert_eq!(run(&["set", "rss", "eth1", "equal", "4"]), (0, shown.clone(), String::new()));
    let new = run(&["set", "rss", "eth1", "context", "new", "weight", "6", "2"]);
    assert_eq!(new, (0, format!("new RSS context is 1\n{shown}"), String::new()));
    let (code, json, _) = run(&["set", "rss", "eth1", "xfrm", "symmetric-xor", "--json"]);
    assert_eq!(code, 0);
    assert_eq!(serde_json::from_str::<Value>(&json).unwrap()["rss"], rows);
    let error =
        "error: the instance answered: wan: not supported: its driver has no way to set RSS or filters\n";
    assert_eq!(run(&["set", "rss", "wan", "default"]), (1, String::new(), error.into()));
    for (words, expected) in [
        (&["equals", "4"][..], "expected equal, start, weight, default"),
        (
            &["equal"],
            "equal: expected a number from 0 to 65535, found nothing; `softnet set --help` has all of it",
        ),
        (&["threaded=1"], "`set rss` takes words, such as equal 4, no KEY=VALUE"),
    ] {
        let (code, out, err) = run(&[&["set", "rss", "eth1"], words].concat());
        assert_eq!((code, &out[..]), (2, ""));
        assert!(err.contains(expected), "{err}");
    }
}

#[test]
fn ntuple_filters_are_shown_and_set_in_the_words_of_ethtool() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.sock");
    let _server = serve(&path);
    let name = path.to_str().unwrap();
    let run = |args: &[&str]| told(&[&["ntuple", "--name", name], args].concat());
    let table = "DEV    LOC  FILTER                                                PACKETS
eth1     7  flow-type udp4 dst-port 53 action 2                     1,234
eth1  1023  flow-type ip4 tos 16 action -1                              -
eth1  1030  flow-type tcp4 src-port 7 dst-port 80 action 1 (RFS)        9
";
    let (_, shown, _) = told(&["show", "ntuple", "--name", name]);
    assert_eq!(shown, table);
    assert_eq!(run(&["eth1", "show"]), (0, shown, String::new()));
    assert_eq!(run(&["wan", "show"]).1, "no filters; `softnet ntuple --help` says how to add one\n");
    // Options may come behind the words, which may be numbers below 0.
    let behind = ["ntuple", "eth1", "flow-type", "udp4", "dst-port", "53", "action", "-1", "--name", name];
    assert_eq!(told(&behind).1, "added filter with location 1023\n");
    let added = run(&["eth1", "flow-type", "udp4", "dst-port", "53", "action", "-1"]);
    assert_eq!(added, (0, "added filter with location 1023\n".into(), String::new()));
    assert_eq!(run(&["eth1", "delete", "7"]), (0, String::new(), String::new()));
    let (_, json, _) = run(&["--json", "eth1", "show"]);
    assert_eq!(serde_json::from_str::<Value>(&json).unwrap()[0]["packets"], 1234);
    let error = "error: no device \"eth9\"; there are: eth1, wan\n";
    assert_eq!(run(&["eth9", "show"]), (1, String::new(), error.into()));
    for (words, expected) in [
        (
            &["flow-type", "udp4"][..],
            "expected action or context at the end, found nothing; `softnet ntuple --help`",
        ),
        (&["list"], "expected flow-type or delete, found \"list\""),
        (&["delete", "-1"], "delete: expected the location of a filter, found \"-1\""),
    ] {
        let (code, out, err) = run(&[&["eth1"], words].concat());
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
    let cases: Vec<_> = first["rows"].as_array().unwrap().iter().map(|row| row["case"].as_str()).collect();
    assert_eq!((code, &cases[..4]), (0, &["raw", "skb", "system", "mimalloc"].map(Some)[..]));
    // Those with a second thread are there if there is a CPU for it.
    assert!(cases[4..].is_empty() || cases[4..] == [Some("remote"); 2], "{cases:?}");
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
