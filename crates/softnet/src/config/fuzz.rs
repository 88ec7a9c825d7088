//! What fuzzing runs on the reader of configurations, see [`fuzz`](crate::fuzz).

use super::Config;
use super::load::read_pieces;
use super::read::Read;
use super::sections::Source;

/// Reads a file: its pieces bring what the whole brings; it is a configuration, which then passes its own checks and is
/// returned, or there are errors, which can be told.
pub(crate) fn config(data: &[u8]) -> Option<Config> {
    let text = std::str::from_utf8(data).ok()?;
    let mut whole = Read::default();
    let is_good = whole.text(text) && whole.found.is_empty();
    assert_eq!(read_pieces(Source::Text(text)), is_good.then_some(whole.config));
    match Config::parse(text, "softnet.toml", &[0, 1]) {
        Ok(config) => {
            assert!(config.check(&[0, 1]).is_ok());
            Some(config)
        }
        Err(errors) => {
            assert!(errors.to_string().contains("softnet.toml"));
            None
        }
    }
}
