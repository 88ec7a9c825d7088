//! Reading in pieces: it brings what reading the whole brings, its errors have the file's own lines, and what has no end
//! is refused.

use std::io::Write;

use proptest::prelude::*;

use super::read::Read;
use super::*;

const DEVICE: &str = "[[device]]\nname = \"eth1\"\naddresses = [\"10.0.0.1/24\"]\n";

fn parse(text: &str) -> Result<Config, ConfigErrors> {
    Config::parse(text, "r.toml", &[0])
}

/// What the whole of `text` brings, if it is TOML without a mistake.
fn whole(text: &str) -> Option<Config> {
    let mut read = Read::default();
    (read.text(text) && read.found.is_empty()).then_some(read.config)
}

/// A file with `lines`, and what loading it brings.
fn load(lines: impl IntoIterator<Item = String>) -> Result<Config, String> {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    lines.into_iter().for_each(|line| file.write_all(line.as_bytes()).unwrap());
    let path = file.path().display().to_string();
    Config::load(file.path()).map_err(|errors| errors.to_string().replace(&path, "r.toml"))
}

#[test]
fn tables_may_come_in_any_order_and_dress() {
    let text = r#"
        # [[route]] in a comment
        route_is_no_key = '''
[[route]]
'''
    "#
    .replace("route_is_no_key", "[stack]\nname");
    assert!(parse(&format!("{text}\n{DEVICE}")).is_err_and(|e| e.to_string().contains("stack.name")));
    let text = "\u{feff}[[route]]\nto = \"10.1.0.0/16\"\nblackhole = true\n\
                [[ \"route\" ]] # quoted\r\nto = '''10.2.0.0/16'''\r\nblackhole = true\r\n\
                [[device]]\nname = \"eth1\"\naddresses = [ # [[route]]\n  \"10.0.0.1/24\", \"10.0.0.2/24\",\n]\n\
                [['neighbour']]\ndev = \"eth1\"\naddress = \"10.0.0.9\"\nmac = \"02:00:00:00:00:01\"\n\
                [[\"rou\\u0074e\"]]\nto = \"10.3.0.0/16\"\ndev = \"eth1\"";
    let config = parse(text).unwrap();
    assert_eq!((config.routes.len(), config.neighbours.len(), config.devices[0].addresses.len()), (3, 1, 2));
    assert_eq!(Some(config), whole(text));
    // The other way to write it.
    let text = format!("route = [{{ to = \"10.1.0.0/16\", blackhole = true }}]\n{DEVICE}");
    assert_eq!(parse(&text).unwrap().routes.len(), 1);
}

#[test]
fn problems_have_the_lines_of_the_file() {
    let route = |to: &str| format!("\n[[route]]\nto = \"{to}\"\nvia = \"10.0.0.9\"\n");
    let text = [
        &route("10.1.0.1/16")[..],
        "[stack]\nframes = 5",
        &route("10.2.0.0/16"),
        DEVICE,
        &route("10.2.0.0/16"),
        "[stack.skb_cache]\nsize = 5000\n",
        "[[neighbour]]\ndev = \"eth1\"\naddress = \"10.0.9.9\"\nmac = \"02:00:00:00:00:01\"",
    ]
    .concat();
    let errors = parse(&text).unwrap_err();
    let told: Vec<_> = errors.problems.iter().map(|p| (p.at.as_ref().unwrap().line, &p.key[..])).collect();
    let expected = [
        (3, "route.to"),
        (6, "stack.frames"),
        (6, "stack.frames"),
        (15, "route.to"),
        (18, "stack.skb_cache.size"),
        (21, "neighbour.address"),
    ];
    assert_eq!(told, expected, "{errors}");
    assert!(
        errors.to_string().contains("\n 15 | to = \"10.2.0.0/16\"\n    |      ^^^^^^^^^^^^^\n"),
        "{errors}"
    );
    // Only what is wrong with the syntax, wherever it is.
    let shown = parse(&format!("{DEVICE}ring = 7\n[[route]]\nto = 10.0.0.0\n")).unwrap_err().to_string();
    assert!(shown.starts_with("r.toml:6:") && !shown.contains("ring"), "{shown}");
    let shown = parse(&format!("{DEVICE}[[route]]\nto = \"x\"\n[route.more]\n")).unwrap_err().to_string();
    assert!(shown.contains("r.toml:6:2: route: expected all of them as [[route]], as others are"), "{shown}");
}

#[test]
fn a_thousand_problems_are_enough() {
    let lines = (0..5000).map(|_| "[[route]]\nto = 1\n".to_owned());
    let shown = load([DEVICE.to_owned()].into_iter().chain(lines)).unwrap_err();
    assert_eq!(shown.matches("route.to: expected text").count(), 1000);
    assert!(shown.contains("r.toml: these are the first 1000 problems; there may be more"), "{shown}");
    let same = (0..5000).map(|_| "[[route]]\nto = \"10.1.0.0/16\"\nblackhole = true\n".to_owned());
    let shown = load([DEVICE.to_owned()].into_iter().chain(same)).unwrap_err();
    assert_eq!(shown.matches("there are two routes to 10.1.0.0/16").count(), 1000);
    assert!(shown.contains("r.toml:3002:6: route.to"), "{shown}");
}

#[test]
fn a_configuration_without_a_device_is_refused() {
    let shown = parse("").unwrap_err().to_string();
    let expected = "r.toml:1:1: device: expected at least one [[device]]: without one there is nothing to receive from or \
                    send by\n 1 | \n   | ^";
    assert_eq!(shown, expected);
    assert!(Config::default().check(&[0]).is_err());
}

/// With the MTU of the device if it is known, else with that of Ethernet.
#[test]
fn a_discipline_that_drops_the_longest_frames_is_warned_of() {
    let tbf = |burst: u32| {
        let text = format!("{DEVICE}qdisc = \"tbf rate 10mbit burst {burst}b latency 50ms\"");
        parse(&text).unwrap()
    };
    let warning = "eth1: tbf: burst 1513b is less than the longest frame, 1514 bytes with an MTU of 1500: longer frames than \
                   that are dropped";
    assert_eq!(tbf(1513).warnings(|_| None), [warning]);
    assert_eq!(tbf(1514).warnings(|_| None), [""; 0]);
    assert_eq!(tbf(1513).warnings(|name| (name == "eth1").then_some(1499)), [""; 0]);
    assert_eq!(tbf(1514).warnings(|_| Some(1501)).len(), 1);
    let default = parse(&format!("{DEVICE}[stack]\ndefault_qdisc = \"bfifo limit 1000\"")).unwrap();
    assert!(default.warnings(|_| None)[0].starts_with("eth1: bfifo: limit 1000b is less than"));
}

#[test]
fn what_has_no_end_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let fifo = dir.path().join("fifo");
    rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, rustix::fs::Mode::RWXU).unwrap();
    for path in [Path::new("/dev/zero"), &fifo, dir.path()] {
        let shown = Config::load(path).unwrap_err().to_string();
        let expected = "expected a regular file, found a directory, a device or a pipe";
        assert_eq!(shown, format!("{}: {expected}", path.display()));
    }
    // Nothing of it takes room on the disk, nor, being refused, in memory.
    let long = tempfile::NamedTempFile::new().unwrap();
    long.as_file().set_len(sections::MAX_BYTES + 1).unwrap();
    let shown = Config::load(long.path()).unwrap_err().to_string();
    assert!(shown.ends_with(": expected at most 256 MiB, found more"), "{shown}");
    let one = sections::MAX_PIECE / 4;
    let endless = |text: &str| load([DEVICE.to_owned(), text.to_owned(), " ".repeat(5 * one)]).unwrap_err();
    let expected = "expected at most 16 MiB in one table, and in all together but [[route]] and [[neighbour]]; is a \
                    quote or a bracket not closed?";
    assert_eq!(endless("[[route]]\nto = [\n"), format!("r.toml: line 4: {expected}"));
    let tables = (0..5).map(|i| format!("[table{i}]\n{}\n", " ".repeat(one)));
    assert_eq!(load(tables), Err(format!("r.toml: line 7: {expected}")));
    let shown = load([DEVICE.to_owned(), "[[route]]\n".repeat(2)]).unwrap_err();
    assert!(shown.starts_with("r.toml:4:1: route.to: expected the key"), "{shown}");
    let bad = tempfile::NamedTempFile::new().unwrap();
    bad.as_file().write_all(b"[stack]\n[[route]]\nto = \"\xff\"\n").unwrap();
    let shown = Config::load(bad.path()).unwrap_err().to_string();
    assert!(shown.ends_with(": line 3: expected text in UTF-8"), "{shown}");
}

/// Pieces of files: tables of all kinds, and what could be taken for one.
fn fragment() -> impl Strategy<Value = String> {
    let route = "[[route]]\nto = \"10.{}.0.0/16\"\nblackhole = true\n";
    let plain = prop::sample::select(vec![
        route,
        route,
        "  [[ 'route' ]]# x ]\nto = '''\n10.{}.0.0/16'''\nunreachable = true\n",
        "[[route]]\nto = \"10.{}.0.0/16\" # \"\ndev = \"eth1\"\n\n",
        "[[neighbour]]\ndev = \"eth1\"\naddress = \"10.0.0.{}\"\nmac = \"02:00:00:00:00:01\"\n",
        "[[device]]\nname = \"e{}\"\naddresses = [\n[[route]]\n]\n",
        "[[device]]\nname = \"e{}\"\naddresses = [\n\"11.{}.0.1/24\", # [\n'11.{}.0.2/24']\n",
        "[[device]]\nname = \"e\\\"[{}\"\naddresses = [\"12.{}.0.1/24\"]\n",
        "[[device]]\nname = \"\"\"e{}\"\"\"\naddresses = ['''13.{}.0.1/24''']\n",
        "[[device]]\nname = \"\"\"\n[[route]]\n\\\"\"\"\"\"\naddresses = [\"14.{}.0.1/24\"]\n",
        "[[device]]\nname = '''\n[[route]]'''''\n",
        "[stack]\nname = \"{}\"\n",
        "[stack.skb_cache]\nsize = 64\n",
        "[ stack . \"skb_cache\" ]\nsize = 64\n",
        "[route]\n",
        "[[route.x]]\n",
        "# [[route]]\n",
        "\n[[route]\n",
        "x = \"\n",
        "x = [\n",
        "x = {\n",
        "]",
        "'''",
        "\r\n",
    ]);
    (plain, 0..250u8).prop_map(|(text, n)| text.replace("{}", &n.to_string()))
}

proptest! {
    /// Of any file that is right as a whole the pieces are the same configuration, and none that is wrong gets by.
    #[test]
    fn pieces_bring_what_the_whole_brings(fragments in prop::collection::vec(fragment(), 0..12)) {
        let text = fragments.concat();
        let config = load::read_pieces(sections::Source::Text(&text));
        prop_assert_eq!(config, whole(&text));
    }

    /// Pieces, one behind the other, are the text.
    #[test]
    fn nothing_is_lost_between_pieces(fragments in prop::collection::vec(fragment(), 0..12), noise in "\\PC{0,9}") {
        let text = fragments.join(&noise);
        let mut source = sections::Source::Text(&text);
        let (mut sections, mut all) = (source.sections().unwrap(), String::new());
        while let Some(piece) = sections.next(String::new()).unwrap() {
            prop_assert_eq!(piece.first_line, all.matches('\n').count() + 1);
            all += &piece.text;
        }
        prop_assert_eq!(&all, &text);
    }
}
