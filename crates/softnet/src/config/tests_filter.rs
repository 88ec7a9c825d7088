//! `[filter]`, `[[rule]]` and `[[set]]`: what is read, and what is refused.

use std::net::IpAddr;

use softnet_core::filter::{Addresses, Rule};

use super::*;

const DEVICES: &str = r#"[[device]]
name = "lan"
addresses = ["192.168.1.1/24"]
[[device]]
name = "wan"
addresses = ["203.0.113.5/24"]
"#;

fn parse(text: &str) -> Result<Config, ConfigErrors> {
    Config::parse(&format!("{DEVICES}{text}"), "r.toml", &[0])
}

fn prefix(text: &str) -> IpPrefix {
    text.parse().unwrap()
}

#[test]
fn all_keys_are_read() {
    let text = r#"[filter]
input = "reject"
forward = "drop"
output = "allow"
connections = 1000
[[set]]
name = "bad"
prefixes = ["198.51.100.0/24", "2001:db8::1"]
[[rule]]
name = "everything"
hook = "forward"
in = "lan"
out = ["wan", "lan"]
source = ["192.168.1.0/24", "@bad"]
destination = "192.0.2.1"
protocol = ["tcp", "udp", 132]
source_port = "1024-65535"
destination_port = [22, "80-81"]
state = ["new", "established"]
action = "allow"
[[rule]]
hook = ["input", "output"]
protocol = ["icmp", "icmpv6"]
icmp_type = ["echo-request", 13, "packet-too-big"]
action = "reject"
[[rule]]
hook = "input"
protocol = "tcp"
tcp_syn = true
action = "drop"
"#;
    let config = parse(text).unwrap();
    let filter = &config.filter;
    assert_eq!(filter.policies, [Action::Reject, Action::Drop, Action::Allow]);
    assert_eq!((filter.connections, filter.is_empty()), (1000, false));
    let rules = filter.rules(&config);
    assert!(rules.ask_for_states());
    assert_eq!(rules.sets, [[prefix("198.51.100.0/24"), prefix("2001:db8::1/128")]]);
    let host = Prefix::host("192.0.2.1".parse::<IpAddr>().unwrap());
    let first = Rule {
        chains: vec![Chain::Forward],
        input: vec![0],
        output: vec![1, 0],
        source: vec![Addresses::Prefix(prefix("192.168.1.0/24")), Addresses::Set(0)],
        destination: vec![Addresses::Prefix(host)],
        protocol: vec![6, 17, 132],
        source_port: vec![1024..=65535],
        destination_port: vec![22..=22, 80..=81],
        state: vec![FlowState::New, FlowState::Established],
        action: Action::Allow,
        ..Rule::default()
    };
    assert_eq!(rules.rules[0], first);
    let second = &rules.rules[1];
    assert_eq!(
        (&second.chains[..], &second.icmp_type[..]),
        (&[Chain::Input, Chain::Output][..], &[8, 128, 13, 2][..])
    );
    assert_eq!(
        (second.action, rules.rules[2].action, rules.rules[2].tcp_syn),
        (Action::Reject, Action::Drop, true)
    );
    let told = "in lan out wan,lan source 192.168.1.0/24,@bad destination 192.0.2.1 protocol tcp,udp,sctp \
                source_port 1024-65535 destination_port 22,80-81 state new,established";
    assert_eq!(filter.rules[0].to_string(), told);
    assert_eq!(filter.rules[2].to_string(), "protocol tcp tcp_syn true");
    assert_eq!(RuleConfig::default().to_string(), "all");
    assert_eq!(config.tracked().unwrap().0, 1000);
    let none = parse("").unwrap();
    assert!(none.filter.is_empty() && none.tracked().is_none());
    // NAT has a number of its own.
    let both =
        parse("[nat]\nconnections = 7\n[[rule]]\nhook = \"input\"\nstate = \"new\"\naction = \"drop\"");
    assert_eq!(both.unwrap().tracked().unwrap().0, 7);
}

/// What is wrong with each, and in which line.
#[test]
fn mistakes_are_told_with_their_lines() {
    let rule = |keys: &str| format!("[[rule]]\nhook = \"forward\"\naction = \"drop\"\n{keys}");
    for (text, line, told) in [
        (
            "[filter]\nforward = \"deny\"".into(),
            8,
            r#"filter.forward: expected "allow" or "drop" or "reject", found "deny""#,
        ),
        (
            "[filter]\nconnections = 0".into(),
            8,
            "filter.connections: expected a number from 1 to 4194304, found 0",
        ),
        (
            "[filter]\nprerouting = \"drop\"".into(),
            8,
            "filter: unknown key \"prerouting\"; expected one of input, forward, output, connections",
        ),
        ("[[rule]]\naction = \"drop\"".into(), 7, "rule.hook: expected the key \"hook\", which is missing"),
        (
            "[[rule]]\nhook = \"input\"".into(),
            7,
            "rule.action: expected the key \"action\", which is missing",
        ),
        (
            "[[rule]]\nhook = []\naction = \"drop\"".into(),
            8,
            "rule.hook: expected one value or more, or no such key",
        ),
        (
            "[[rule]]\nhook = \"postrouting\"\naction = \"drop\"".into(),
            8,
            r#"rule.hook: expected "input" or "forward" or "output", found "postrouting""#,
        ),
        (
            "[[rule]]\nhook = \"output\"\nin = \"lan\"\naction = \"drop\"".into(),
            9,
            "rule.in: expected no such key with the hook \"output\": what is made here came by none",
        ),
        (
            "[[rule]]\nhook = \"input\"\nout = \"lan\"\naction = \"drop\"".into(),
            9,
            "rule.out: expected no such key with the hook \"input\": what is for softnet leaves by none",
        ),
        (rule("in = \"dmz\""), 10, "rule.in: expected the name of a [[device]] (lan, wan), found \"dmz\""),
        (
            rule("source = \"192.0.2.1/24\""),
            10,
            "rule.source: 192.0.2.1/24 has host bits set: expected 192.0.2.0/24",
        ),
        (
            rule("source = \"example.org\""),
            10,
            "rule.source: expected an address or a prefix, such as 192.0.2.0/24 or 2001:db8::1, found \"example.org\"",
        ),
        (
            rule("source = \"@bad\""),
            10,
            "rule.source: expected the name of a [[set]] (there is none), found \"bad\"",
        ),
        (
            rule("source = \"10.0.0.0/8\"\ndestination = \"::/0\""),
            11,
            "rule.destination: expected addresses of the family of the sources: no packet is of both",
        ),
        (
            rule("destination_port = 80"),
            10,
            "rule.destination_port: expected protocol = \"tcp\" or \"udp\" beside it: others have no ports",
        ),
        (
            rule("protocol = \"tcp\"\ndestination_port = \"90-80\""),
            11,
            "rule.destination_port: expected a port, such as 443, or a range, such as \"8000-8080\", found \"90-80\"",
        ),
        (
            rule("protocol = \"tcp\"\ndestination_port = 70000"),
            11,
            "rule.destination_port: expected a port, such as 443, or a range, such as \"8000-8080\", found 70000",
        ),
        (rule("icmp_type = 8"), 10, "rule.icmp_type: expected protocol = \"icmp\" or \"icmpv6\" beside it"),
        (
            rule("protocol = \"icmp\"\nicmp_type = \"packet-too-big\""),
            11,
            "rule.icmp_type: expected the number of a type, or its name (echo-request",
        ),
        (
            rule("protocol = \"udp\"\ntcp_syn = true"),
            11,
            "rule.tcp_syn: expected protocol = \"tcp\" beside it",
        ),
        (rule("protocol = \"tpc\""), 10, "rule.protocol: expected a protocol by name (tcp, udp"),
        (
            rule("state = \"old\""),
            10,
            r#"rule.state: expected "new" or "established" or "related" or "invalid", found "old""#,
        ),
        (rule("stat = \"new\""), 10, "rule: unknown key \"stat\"; did you mean \"state\"?"),
        ("[[set]]\nname = \"a\"".into(), 7, "set.prefixes: expected prefixes, or a file of them"),
        ("[[set]]\nname = \"a b\"\nprefixes = []".into(), 8, "set.name: expected 1 to 64 letters"),
        (
            "[[set]]\nname = \"a\"\nprefixes = []\n[[set]]\nname = \"a\"\nprefixes = []".into(),
            11,
            "set.name: the set \"a\" is there twice",
        ),
        (
            "[[set]]\nname = \"a\"\nprefixes = [\n\"10.0.0.0/8\",\n\"10.0.0.0/33\"]".into(),
            11,
            "set.prefixes: prefix length 33: expected 0 to 32",
        ),
        (
            "[[set]]\nname = \"a\"\nfile = \"a.txt\"".into(),
            9,
            "set.file: expected prefixes: only a configuration that is a file can name others",
        ),
        ("rule = 3".into(), 1, ""),
    ] {
        let errors = match parse(&text) {
            Ok(_) => panic!("{text}"),
            Err(errors) => errors,
        };
        if !told.is_empty() {
            assert_eq!(errors.problems.len(), 1, "{text}\n{errors}");
            let problem = format!("{}: {}", errors.problems[0].key, errors.problems[0].message);
            assert!(problem.starts_with(told), "{problem}");
            assert_eq!(errors.problems[0].at.as_ref().map(|at| at.line), Some(line), "{text}\n{errors}");
        }
    }
}

#[test]
fn sets_are_read_from_files_beside_the_configuration() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("r.toml");
    let text = format!(
        "[stack]\nworkers = [{}]\n{DEVICES}[[set]]\nname = \"bad\"\nprefixes = [\"10.0.0.0/8\"]\nfile = \"bad.txt\"\n",
        available_cpus()[0]
    );
    std::fs::write(&file, text).unwrap();
    let told = |errors: ConfigErrors| {
        assert_eq!((errors.problems.len(), errors.problems[0].key.as_str()), (1, "set.file"), "{errors}");
        assert_eq!(errors.problems[0].at.as_ref().map(|at| at.line), Some(12), "{errors}");
        errors.problems[0].message.clone()
    };
    let listed = directory.path().join("bad.txt");
    let shown = listed.display();
    assert_eq!(told(Config::load(&file).unwrap_err()), format!("{shown}: no such file"));
    let lines = (0..100_000u32).map(|n| format!("{}/32\n", std::net::Ipv4Addr::from(0x0b00_0000 + n)));
    std::fs::write(&listed, format!("# bad ones\n\n2001:db8::/32 # all\n{}", lines.collect::<String>()))
        .unwrap();
    let config = Config::load(&file).unwrap();
    let prefixes = &config.filter.sets[0].prefixes;
    assert_eq!(
        (prefixes.len(), prefixes[1], prefixes[2]),
        (100_002, prefix("2001:db8::/32"), prefix("11.0.0.0/32"))
    );
    std::fs::write(&listed, "10.0.0.0/8\n\n10.0.0/8\n").unwrap();
    let why = told(Config::load(&file).unwrap_err());
    assert!(why.starts_with(&format!("{shown}:3: ")), "{why}");
    std::fs::remove_file(&listed).unwrap();
    std::fs::create_dir(&listed).unwrap();
    let why = told(Config::load(&file).unwrap_err());
    assert_eq!(why, format!("{shown}: expected a regular file of at most 64 MiB"));
}
