//! What fuzzing runs on this crate. The tests run it on the corpus of `fuzz/corpus`; `cargo fuzz` for as long as it is let.

pub use crate::control::server::fuzz::control;

/// A configuration file: what it brings is consistent, and has routes if it is good.
pub fn config(data: &[u8]) {
    if let Some(config) = crate::config::fuzz::config(data) {
        let _ = crate::stack::routes::routes(&config);
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_corpus_of_configurations_is_replayed() {
        softnet_testkit::replay("config", super::config);
    }
}
