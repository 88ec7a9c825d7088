//! Where a stack tells its metrics: `[metrics]`.
//!
//! Plain types; how they are read is in `read`.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

/// `[metrics]`: OpenMetrics over HTTP.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MetricsConfig {
    /// Where it listens.
    pub listen: MetricsListen,
}

impl MetricsConfig {
    /// On `listen`.
    pub fn new(listen: MetricsListen) -> Self {
        MetricsConfig { listen }
    }
}

/// Where metrics are asked for. The kernel's own stack serves it, not softnet's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MetricsListen {
    /// An address of the kernel and a TCP port; 0: one that is free.
    Tcp(SocketAddr),
    /// A Unix stream socket of mode 0600, by its absolute path.
    Unix(PathBuf),
}

/// Why a text does not say where to listen.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected an address with a port, such as 127.0.0.1:9950 or [::1]:9950, or an absolute path")]
pub struct MetricsListenError;

impl FromStr for MetricsListen {
    type Err = MetricsListenError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.starts_with('/') && !text.ends_with('/') {
            return Ok(MetricsListen::Unix(text.into()));
        }
        text.parse().map(MetricsListen::Tcp).map_err(|_| MetricsListenError)
    }
}

impl fmt::Display for MetricsListen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MetricsListen::Tcp(address) => address.fmt(f),
            MetricsListen::Unix(path) => path.display().fmt(f),
        }
    }
}
