//! What fuzzing runs on the reader of configurations. The tests run it on the corpus of `fuzz/corpus`; `cargo fuzz` for as
//! long as it is let.

use super::Config;
use super::load::read_pieces;
use super::read::Read;
use super::sections::Source;

/// A file: its pieces bring what the whole brings; it is a configuration, which then passes its own checks, or there are errors, which can be told.
pub fn config(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let mut whole = Read::default();
    let is_good = whole.text(text) && whole.found.is_empty();
    assert_eq!(read_pieces(Source::Text(text)), is_good.then_some(whole.config));
    match Config::parse(text, "softnet.toml", &[0, 1]) {
        Ok(config) => {
            assert!(config.check(&[0, 1]).is_ok());
            let _ = crate::stack::routes::routes(&config);
        }
        Err(errors) => assert!(errors.to_string().contains("softnet.toml")),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_corpus_is_replayed() {
        softnet_dev::testing::replay("config", super::config);
    }
}
