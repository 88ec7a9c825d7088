//! Reads `[metrics]`.

use super::{Read, Table};
use crate::config::metrics::{MetricsConfig, MetricsListen};

impl Read {
    /// `None` if what it says cannot be read, which was told.
    pub(super) fn metrics(&mut self, table: Table<'_>) -> Option<MetricsConfig> {
        self.known_keys(table, &["listen"]);
        let text = self.required_string(table, "listen")?;
        match text.parse::<MetricsListen>() {
            Ok(listen) => Some(MetricsConfig::new(listen)),
            Err(error) => {
                self.wrong(table, "listen", &format!("{error}, found {text:?}"));
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::config::Config;

    fn parse(section: &str) -> Result<Option<MetricsConfig>, String> {
        let text = format!("[[device]]\nname = \"eth1\"\naddresses = [\"10.0.0.1/24\"]\n{section}");
        let config = Config::parse(&text, "r.toml", &[0]).map_err(|errors| errors.to_string())?;
        Ok(config.metrics)
    }

    #[test]
    fn an_address_or_a_path_is_listened_on() {
        let listen =
            |text: &str| parse(&format!("[metrics]\nlisten = \"{text}\"")).map(|read| read.unwrap().listen);
        assert_eq!(parse(""), Ok(None), "nothing is listened on unless it is asked for");
        assert_eq!(listen("127.0.0.1:9950"), Ok(MetricsListen::Tcp(([127, 0, 0, 1], 9950).into())));
        assert_eq!(listen("[::1]:0").unwrap().to_string(), "[::1]:0");
        let path = PathBuf::from("/run/softnet/metrics.sock");
        assert_eq!(listen("/run/softnet/metrics.sock"), Ok(MetricsListen::Unix(path)));
    }

    #[test]
    fn what_cannot_be_listened_on_is_told_with_its_line() {
        for text in ["localhost:9950", "127.0.0.1", ":9950", "metrics.sock", "/", "/run/", ""] {
            let error = parse(&format!("[metrics]\nlisten = \"{text}\"")).unwrap_err();
            assert!(
                error.contains("r.toml:5:10: metrics.listen: expected an address with a port"),
                "{error}"
            );
            assert!(error.contains(&format!("found {text:?}")), "{error}");
        }
        let error = parse("[metrics]").unwrap_err();
        assert!(error.contains("metrics") && error.contains("listen"), "{error}");
        let error = parse("[metrics]\nport = 1\nlisten = \"[::1]:1\"").unwrap_err();
        assert!(error.contains("metrics: unknown key \"port\"; expected one of listen"), "{error}");
    }
}
