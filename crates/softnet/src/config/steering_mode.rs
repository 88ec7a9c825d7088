//! How RX queues are steered for which nothing else is set.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::ParseError;

/// What chooses the workers that go on with an RX queue's packets, if neither `processing_cpu` nor `rps_cpus` does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SteeringMode {
    /// softnet, by the load, the workers' places and the cost of wake-ups.
    #[default]
    Auto,
    /// Nothing: the thread that polls the queue goes on with them.
    Off,
}

impl SteeringMode {
    /// All of them.
    pub const ALL: [SteeringMode; 2] = [SteeringMode::Auto, SteeringMode::Off];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            SteeringMode::Auto => "auto",
            SteeringMode::Off => "off",
        }
    }
}

impl fmt::Display for SteeringMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for SteeringMode {
    type Err = ParseError;

    fn from_str(s: &str) -> Result<Self, ParseError> {
        let mode = SteeringMode::ALL.into_iter().find(|mode| mode.name() == s);
        mode.ok_or_else(|| ParseError::new("auto or off", s))
    }
}
