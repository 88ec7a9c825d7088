//! The README, the book and the configurations beside them are true to the code: the README's program runs, links lead
//! somewhere, and configurations are right.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
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
