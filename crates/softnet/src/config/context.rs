//! Polling contexts: the threads that poll a NAPI instance. Named as `softnet set … threaded=` and the configuration name them.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::ParseError;

/// Which threads poll an instance (the kernel's `threaded` attribute of a NAPI instance, and the default beside it).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Context {
    /// The worker that its queue belongs to, pinned to a CPU.
    #[default]
    Softirq,
    /// A thread of its own, `napi/<dev>-<id>`, which sleeps while its queue is quiet.
    Threaded,
    /// Whichever thread of a shared pool, `napi-wq/<n>`, is free.
    Workqueue,
    /// A thread of its own that never sleeps.
    BusyPoll,
}

impl Context {
    /// All of them.
    pub const ALL: [Context; 4] =
        [Context::Softirq, Context::Threaded, Context::Workqueue, Context::BusyPoll];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Context::Softirq => "softirq",
            Context::Threaded => "threaded",
            Context::Workqueue => "workqueue",
            Context::BusyPoll => "busy-poll",
        }
    }
}

impl fmt::Display for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Context {
    type Err = ParseError;

    /// Reads a name. `0`, `1`, `disabled` and `enabled` are taken as the kernel means them.
    fn from_str(s: &str) -> Result<Self, ParseError> {
        match s {
            "0" | "disabled" => Ok(Context::Softirq),
            "1" | "enabled" => Ok(Context::Threaded),
            _ => {
                let context = Context::ALL.into_iter().find(|context| context.name() == s);
                context.ok_or_else(|| ParseError::new("softirq (0), threaded (1), workqueue or busy-poll", s))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for context in Context::ALL {
            assert_eq!(context.to_string().parse(), Ok(context));
            assert_eq!(serde_json::to_value(context).unwrap(), context.name());
        }
        let kernel = ["0", "disabled", "1", "enabled"].map(|s| s.parse::<Context>().unwrap());
        use Context::{Softirq, Threaded};
        assert_eq!(kernel, [Softirq, Softirq, Threaded, Threaded]);
        assert!("2".parse::<Context>().unwrap_err().to_string().ends_with("found \"2\""));
    }
}
