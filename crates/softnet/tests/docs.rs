//! The README, the book and the configurations beside them are true to the code: the README's program runs, links lead
//! somewhere, and configurations are right.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use softnet::Stack;
use softnet::config::Config;
use softnet::driver::OpenRequest;
use softnet::internals::Assembly;
use softnet::net::UdpSocket;
use softnet_core::SoftnetData;
use softnet_dev::OpenDevice;
use softnet_dev::mem::{PairConfig, pair};

/// The README's program: compiled here too, so that its server can be run on an in-process device.
#[allow(dead_code, unreachable_pub)]
#[path = "../examples/udp_echo.rs"]
mod udp_echo;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn the_readme_has_the_program_that_is_run_here() {
    let example = include_str!("../examples/udp_echo.rs");
    let (_, program) = example.split_once("\n\nuse ").expect("a header, and then the program");
    assert!(read(&root().join("README.md")).contains(&format!("```rust,no_run\nuse {program}```\n")));
}

/// systemd's own measure of how far a service is confined. Without that program the test is skipped.
#[test]
fn the_service_is_confined() {
    let unit = root().join("contrib/systemd/softnet@.service");
    let text = read(&unit);
    let of = |key: &str| text.lines().find_map(|line| line.strip_prefix(key)).unwrap().to_string();
    let four = "CAP_NET_ADMIN CAP_BPF CAP_NET_RAW CAP_IPC_LOCK";
    assert_eq!([of("AmbientCapabilities="), of("CapabilityBoundingSet=")], [four, four]);
    // The last of these counts: a group that is taken out takes out what is in it.
    let calls = text.lines().filter_map(|line| line.strip_prefix("SystemCallFilter=")).next_back().unwrap();
    assert!(calls.split(' ').any(|call| call == "bpf"), "{calls}");
    let analyze = Command::new("systemd-analyze")
        // In tenths.
        .args(["security", "--offline=true", "--no-pager", "--threshold=20"])
        .arg(&unit)
        .output();
    let Ok(output) = analyze else { return println!("skipped: no systemd-analyze") };
    let said = String::from_utf8_lossy(&output.stdout);
    // Old ones know no --offline.
    if said.contains("Overall exposure level") {
        assert!(output.status.success(), "{said}");
    }
}

#[test]
fn the_program_of_the_readme_echoes() {
    let kv = read(&root().join("examples/kv.toml"));
    let config = Config::parse(&kv, "kv.toml", &[0]).unwrap_or_else(|errors| panic!("{errors}"));
    // A wire, whose far end stays in place as long as the stack runs.
    let far = Arc::new(Mutex::new(None));
    let open = {
        let far = far.clone();
        move |&OpenRequest { dev, .. }: &OpenRequest<'_>,
              ctx: &mut SoftnetData|
              -> Result<OpenDevice, String> {
            let ends = pair(ctx.region(), [dev, dev + 1], &PairConfig::default());
            let [near, end] = ends.map_err(|error| error.to_string())?;
            *far.lock().unwrap() = Some(end);
            Ok(near)
        }
    };
    let stack = Stack::run(Assembly::new(config, Vec::new(), |_| Ok(open)).unwrap()).unwrap();
    let handle = stack.handle();
    let server = std::thread::spawn({
        let handle = handle.clone();
        move || udp_echo::echo(&handle)
    });
    let client = UdpSocket::bind(&handle, "10.0.0.1:0").unwrap();
    // Until the server has its socket, the port is closed, and the client is told.
    client.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    let mut buffer = [0; 64];
    let answer = (0..600).find_map(|_| {
        client.send_to(b"hello", "10.0.0.1:7").ok()?;
        client.recv_from(&mut buffer).ok()
    });
    assert_eq!(answer, Some((5, "10.0.0.1:7".parse().unwrap())));
    assert_eq!(&buffer[..5], b"hello");
    // The end of the stack ends the server's loop.
    drop((client, stack));
    assert!(server.join().unwrap().is_err());
}

/// Pages that link to each other.
fn pages() -> Vec<PathBuf> {
    let md = |dir: PathBuf| {
        let entries = fs::read_dir(&dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display()));
        let paths = entries.map(|entry| entry.unwrap().path());
        paths.filter(|path| path.extension().is_some_and(|ext| ext == "md")).collect::<Vec<_>>()
    };
    [md(root()), md(root().join("docs/src"))].concat()
}

/// What is in no block of code.
fn prose(text: &str) -> Vec<&str> {
    let mut code = false;
    let outside = |line: &&str| {
        let fence = line.trim_start().starts_with("```");
        code ^= fence;
        !fence && !code
    };
    text.lines().filter(outside).collect()
}

/// The anchors that GitHub and mdBook give headings.
fn anchors(text: &str) -> HashSet<String> {
    let anchor = |heading: &str| {
        let kept = heading.trim().to_lowercase().replace(' ', "-");
        kept.chars().filter(|c| c.is_alphanumeric() || "-_".contains(*c)).collect()
    };
    let headings = prose(text).into_iter().filter(|line| line.starts_with('#'));
    headings.map(|line| anchor(line.trim_start_matches('#'))).collect()
}

/// Where links and pictures of a page lead.
fn links(text: &str) -> Vec<String> {
    let prose = prose(text).join(" ");
    let ends = prose.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
    ends.map(|(link, _)| link.to_owned()).filter(|link| !link.contains("://")).collect()
}

#[test]
fn links_between_pages_lead_somewhere() {
    let mut broken = Vec::new();
    for page in pages() {
        for link in links(&read(&page)) {
            let (file, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let target = if file.is_empty() { page.clone() } else { page.parent().unwrap().join(file) };
            let there = target.exists() && (anchor.is_empty() || anchors(&read(&target)).contains(anchor));
            if !there {
                broken.push(format!("{}: {link}", page.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}

#[test]
fn the_book_lists_all_its_pages() {
    let src = root().join("docs/src");
    let listed: HashSet<String> = links(&read(&src.join("SUMMARY.md"))).into_iter().collect();
    let names = pages().into_iter().filter(|page| page.starts_with(&src));
    let names = names.filter_map(|page| Some(page.file_name()?.to_str()?.to_owned()));
    assert_eq!(names.filter(|name| name != "SUMMARY.md").collect::<HashSet<_>>(), listed);
}

/// A configuration in a page begins with the table of the stack or of a device, and is complete.
#[test]
fn configurations_in_pages_are_right() {
    let mut found = 0;
    for page in pages() {
        let text = read(&page);
        for block in text.split("```toml\n").skip(1).filter_map(|rest| rest.split_once("\n```")) {
            let name = page.display().to_string();
            Config::parse(block.0, &name, &[0, 1]).unwrap_or_else(|errors| panic!("{errors}"));
            found += 1;
        }
    }
    assert!(found > 0);
}

/// `examples/router.toml` has every key; so does the page about them.
#[test]
fn the_page_on_configuration_has_every_key() {
    let page = read(&root().join("docs/src/configuration.md"));
    let example = read(&root().join("examples/router.toml"));
    let keys = example.lines().filter_map(|line| line.trim_start_matches("# ").split_once(" = "));
    let keys: HashSet<&str> = keys.map(|(key, _)| key).filter(|key| !key.contains(' ')).collect();
    let missing: Vec<_> = keys.iter().filter(|key| !page.contains(&format!("`{key}`"))).collect();
    assert!(keys.len() > 40 && missing.is_empty(), "{missing:?}");
}

/// The sources, by path from the root: without lines of comments.
fn sources() -> Vec<(String, String)> {
    fn add(dir: &Path, to: &mut Vec<(String, String)>) {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                if !path.ends_with("target") {
                    add(&path, to);
                }
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                // Names in this file are none.
                let text = if path.ends_with(file!()) { String::new() } else { read(&path) };
                let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
                to.push((path.display().to_string(), code.collect::<Vec<_>>().join("\n")));
            }
        }
    }
    let mut all = Vec::new();
    ["crates", "examples", "xtask"].iter().for_each(|dir| add(&root().join(dir), &mut all));
    all
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Whether `text` has `word`, and no longer one around it.
fn has_word(text: &str, word: &str) -> bool {
    text.match_indices(word).any(|(at, _)| {
        let (before, after) = (&text[..at], &text[at + word.len()..]);
        !before.ends_with(is_word) && !after.starts_with(is_word)
    })
}

/// Whether a line of `code` defines `name`: a function, a field, a constant, or a variant.
fn defines(code: &str, name: &str) -> bool {
    code.lines().any(|line| {
        let mut line = line.trim_start();
        while let Some(rest) = ["pub ", "pub(crate) ", "pub(super) ", "const ", "unsafe ", "async ", "type "]
            .iter()
            .find_map(|word| line.strip_prefix(word))
        {
            line = rest;
        }
        let (function, line) = (line.starts_with("fn "), line.strip_prefix("fn ").unwrap_or(line));
        let Some(rest) = line.strip_prefix(name) else { return false };
        let variant = name.starts_with(char::is_uppercase) && !rest.starts_with(is_word);
        let field = rest.starts_with(':') && !rest.starts_with("::");
        field || variant || function && !rest.starts_with(is_word)
    })
}

/// What text in code font names, if that is looked for in the sources: a file of Rust, a path such
/// as `Type::member` or `module::item`, or a type by a name of several words.
fn is_there(name: &str, sources: &[(String, String)]) -> Option<bool> {
    let name = name.strip_suffix("()").unwrap_or(name);
    let only = |more: &str| name.chars().all(|c| is_word(c) || more.contains(c));
    if name.ends_with(".rs") && only("/-.") {
        let end = format!("/{name}");
        return Some(sources.iter().any(|(path, _)| path.ends_with(&end)));
    }
    if !only(":") || name.ends_with(':') || name.starts_with(':') {
        return None;
    }
    let kinds = ["struct", "enum", "trait", "type", "union"];
    if let Some((rest, member)) = name.rsplit_once("::") {
        let of = rest.rsplit("::").next().unwrap_or(rest);
        if of.starts_with(char::is_uppercase) {
            let is_of = |line: &str| {
                kinds.iter().any(|kind| has_word(line, &format!("{kind} {of}")))
                    || line.starts_with("impl") && has_word(line, of)
            };
            let there = |(_, code): &(String, String)| code.lines().any(is_of) && defines(code, member);
            return Some(sources.iter().any(there));
        }
        let module = [format!("/{of}/"), format!("/{of}.rs"), format!("/{}/", of.replace('_', "-"))];
        let is_module = |(path, _): &(String, String)| module.iter().any(|module| path.contains(module));
        let items = ["struct", "enum", "trait", "type", "fn", "const", "static", "mod"];
        let item = |code: &str| items.iter().any(|kind| has_word(code, &format!("{kind} {member}")));
        return Some(sources.iter().any(is_module) && sources.iter().any(|(_, code)| item(code)));
    }
    let humps = name.matches(char::is_uppercase).count();
    let camel = name.starts_with(char::is_uppercase) && humps > 1 && name.contains(char::is_lowercase);
    camel.then(|| sources.iter().any(|(_, code)| has_word(code, name)))
}

/// What is in code font: in lines of prose between backticks, in drawings the words that look so.
fn code_font(page: &str) -> Vec<(usize, String)> {
    let (mut found, mut drawing) = (Vec::new(), false);
    for (number, line) in (1..).zip(page.lines()) {
        if line.starts_with("```") {
            drawing = !drawing;
        } else if drawing {
            let words = line.split(|c: char| !is_word(c) && !":/.-".contains(c));
            let coded = words.filter(|word| word.contains("::") || word.ends_with(".rs"));
            found.extend(coded.map(|word| (number, word.to_owned())));
        } else {
            found.extend(line.split('`').skip(1).step_by(2).map(|span| (number, span.to_owned())));
        }
    }
    found
}

#[test]
fn the_architecture_names_what_there_is() {
    let sources = sources();
    let page = read(&root().join("ARCHITECTURE.md"));
    let looked_for: Vec<_> = code_font(&page)
        .into_iter()
        .filter_map(|(line, name)| Some((is_there(&name, &sources)?, line, name)))
        .collect();
    assert!(looked_for.len() > 200, "{}", looked_for.len());
    let gone: Vec<_> =
        looked_for.iter().filter(|(there, ..)| !there).map(|(_, line, name)| (line, name)).collect();
    assert!(gone.is_empty(), "ARCHITECTURE.md names what is in no source: {gone:#?}");
    for name in ["Netdev::groups", "Worker::listen_to", "skb/pool.rs", "tx::xmit_never"] {
        assert_eq!(is_there(name, &sources), Some(false), "{name}");
    }
    for name in ["Worker::round", "poll/worker.rs", "tx::xmit_waiting", "OpenParts", "StackDevice::groups"] {
        assert_eq!(is_there(name, &sources), Some(true), "{name}");
    }
}
