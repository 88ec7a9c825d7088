//! What tests that need privileges share, those of other crates included.

/// Whether this process may make network namespaces. If not, says so and lets the test end early; under
/// `SOFTNET_REQUIRE_NET=1` that is a failure instead.
///
/// # Panics
/// When the network is required and not permitted.
pub fn net_allowed() -> bool {
    match crate::netns::NetNs::new() {
        Ok(_) => true,
        Err(error) if std::env::var_os("SOFTNET_REQUIRE_NET").is_some_and(|value| value == "1") => {
            panic!("network tests are required: {error}")
        }
        Err(error) => {
            println!("skipped: {error}");
            false
        }
    }
}

/// Runs `target` on every file of its corpus, `fuzz/corpus/<name>` of the repository.
///
/// # Panics
/// If `target` does, or there is no such corpus.
pub fn replay(name: &str, target: fn(&[u8])) {
    let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/");
    let files: Vec<_> = std::fs::read_dir(format!("{corpus}{name}")).expect("a corpus").collect();
    assert!(!files.is_empty(), "the corpus of {name} is empty");
    for file in files {
        target(&std::fs::read(file.expect("a file").path()).expect("a file that can be read"));
    }
}
