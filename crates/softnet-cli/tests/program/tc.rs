//! Disciplines and filters of an instance in `tc`'s words.

use serde_json::Value;
use softnet::control::Request;
use softnet::control::show::Table;
use softnet::internals::Handler;

use crate::cli::told;
use crate::instance::{Instance, serve};

/// Words and order are `tc`'s; the lines that begin with "drops" and "tx queue" are softnet's.
#[test]
fn disciplines_are_shown_as_tc_shows_them() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.sock");
    let _server = serve(&path);
    let name = path.to_str().unwrap();
    let qdisc = |args: &[&str]| told(&[&["qdisc", "--name", name][..], args].concat());
    let fine = |out: &str| (0, out.to_owned(), String::new());
    let plain = concat!(
        "qdisc mq dev eth1 root\n",
        "qdisc pfifo_fast dev eth1 parent :1\n",
        "qdisc tbf dev wan root rate 10Mbit burst 15Kb lat 50ms\n",
    );
    assert_eq!(qdisc(&[]), fine(plain));
    assert_eq!(qdisc(&["show"]), fine(plain));
    let wan = concat!(
        "qdisc tbf dev wan root rate 10Mbit burst 15Kb lat 50ms\n",
        " Sent 504 bytes 12 pkt (dropped 0, overlimits 4 requeues 0)\n",
        " backlog 3028b 2p requeues 0\n",
        " tx queue: owned 12 times, 0 packets handed over, parked 0; no sender held back; ring 0 of 0 bytes\n",
    );
    assert_eq!(qdisc(&["-s", "show", "dev", "wan"]), fine(wan));
    assert_eq!(qdisc(&["show", "dev", "wan", "--statistics"]), fine(wan));
    let eth1 = concat!(
        "qdisc mq dev eth1 root\n",
        " Sent 987000000 bytes 1234000 pkt (dropped 12, overlimits 0 requeues 3)\n",
        " backlog 0b 0p requeues 3\n",
        " drops: qdisc_overlimit 12\n",
        "qdisc pfifo_fast dev eth1 parent :1\n",
        " Sent 987000000 bytes 1234000 pkt (dropped 12, overlimits 0 requeues 3)\n",
        " backlog 0b 0p requeues 3\n",
        " drops: qdisc_overlimit 12\n",
        " tx queue: owned 40,000 times, 700 packets handed over, parked 1; held back senders 2 times, 3.00 ms in all, ",
        "longest 2.00 ms; ring 1514 of 90840 bytes\n",
    );
    assert_eq!(qdisc(&["show", "dev", "eth1", "-s"]), fine(eth1));
    let there = "error: no device \"eth9\"; there are: eth1, wan\n";
    assert_eq!(qdisc(&["show", "dev", "eth9"]), (1, String::new(), there.into()));

    // A change answers with what there is then.
    assert_eq!(qdisc(&["replace", "dev", "wan", "pfifo"]), fine(plain));
    for args in [&["show", "dev", "wan", "--json"][..], &["--json", "show", "dev", "wan"]] {
        let (code, out, err) = qdisc(args);
        let rows: Value = serde_json::from_str(&out).unwrap();
        assert_eq!((code, &err[..], rows.as_array().unwrap().len()), (0, "", 1));
        assert_eq!((&rows[0]["backlog"], &rows[0]["tx"]["owned"]), (&3028.into(), &12.into()));
    }
    let (code, out, err) = qdisc(&["del", "dev", "wan", "--json"]);
    assert!(code == 0 && err.is_empty(), "{err}");
    assert_eq!(
        serde_json::from_str::<Value>(&out).unwrap(),
        Instance.request(Request::Show(Table::Qdisc)).unwrap()
    );

    let (code, out, _) = told(&["show", "qdisc", "--name", name]);
    let wan = "\nwan   root    tbf rate 10Mbit burst 15Kb lat 50ms         12    504 B        0           4 ";
    assert!(code == 0 && out.starts_with("DEV   PARENT  QDISC ") && out.contains(wan), "{out}");
    assert!(out.contains("  1.48 KiB of 88.7 KiB  40,000          700          2\n"), "{out}");
}

#[test]
fn filters_in_the_words_of_tc() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.sock");
    let _server = serve(&path);
    let filter = |words: &str| {
        let words = words.split_whitespace();
        told(
            &["filter"]
                .into_iter()
                .chain(words)
                .chain(["--name", path.to_str().unwrap()])
                .collect::<Vec<_>>(),
        )
    };
    let fine = |text: &str| (0, text.to_owned(), String::new());
    let eth1 = "filter dev eth1 ingress matchall action mirred egress redirect dev wan\n";
    let wan = "filter dev wan egress matchall action mirred ingress mirror dev eth1\n";
    assert_eq!(filter("show"), fine(&format!("{eth1}{wan}")));
    let statistics = format!("{wan} Sent 504 bytes 12 pkt (dropped 0, overlimits 12)\n");
    assert_eq!(filter("-s show dev wan"), fine(&statistics));
    assert_eq!(filter("show -s dev wan egress"), fine(&statistics));
    assert_eq!(filter("show dev wan ingress"), fine(""));
    // What is shown can be said.
    let words = eth1.strip_prefix("filter ").unwrap();
    assert_eq!(filter(&format!("add {words}")), fine(""));
    assert_eq!(filter("del dev eth1 ingress"), fine(""));
    let (code, out, err) = filter(&format!("replace {words} --json"));
    let shown: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, &err[..], &shown[0]["to_dev"]), (0, "", &"wan".into()));
    for (words, expected) in [
        ("show dev eth9", (1, "no device \"eth9\"; there are: eth1, wan")),
        ("del dev eth9 egress", (1, "the instance answered: no device \"eth9\"; there are: eth1, wan")),
        ("del eth1", (2, "expected dev, found \"eth1\"; `softnet filter --help` has all of it")),
    ] {
        assert_eq!(filter(words), (expected.0, String::new(), format!("error: {}\n", expected.1)));
    }
}
