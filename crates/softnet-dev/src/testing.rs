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
