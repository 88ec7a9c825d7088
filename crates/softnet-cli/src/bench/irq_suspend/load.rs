//! How much is asked of a server.

use serde_json::{Value, json};

/// A load, as a row has it: without percent, as much as is answered.
pub(super) fn load_value(load: Option<u32>) -> Value {
    load.map_or(json!("MAX"), |percent| json!(percent))
}

/// How much is asked, where more than one host is measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Asked {
    /// As much as is answered.
    Max,
    /// Percent of what `base` of the same host answered.
    OfOwn(u32),
    /// Percent of what the kernel answered at its best: the same rate for all.
    OfKernel(u32),
}

impl Asked {
    /// All that is asked, `Max` first; with the `kernel` beside, shares of its maximum too.
    pub(super) fn all(quick: bool, kernel: bool) -> Vec<Asked> {
        let percents: &[u32] = if quick { &[20, 80] } else { &[20, 40, 60, 80, 100] };
        let own = percents.iter().map(|percent| Asked::OfOwn(*percent));
        let of_kernel = percents.iter().filter(|_| kernel).map(|percent| Asked::OfKernel(*percent));
        std::iter::once(Asked::Max).chain(own).chain(of_kernel).collect()
    }

    /// As rows have it.
    pub(super) fn percent(self) -> Option<u32> {
        match self {
            Asked::Max => None,
            Asked::OfOwn(percent) | Asked::OfKernel(percent) => Some(percent),
        }
    }

    /// What it is a share of, as rows have it.
    pub(super) fn load_of(self) -> &'static str {
        match self {
            Asked::Max | Asked::OfOwn(_) => "own",
            Asked::OfKernel(_) => "kernel",
        }
    }

    /// Requests a second, if these are limited, where the host's `base` answered `own` and the
    /// kernel at its best `kernel`.
    pub(super) fn rate(self, own: f64, kernel: f64) -> Option<f64> {
        let of = if let Asked::OfKernel(_) = self { kernel } else { own };
        self.percent().map(|percent| of * f64::from(percent) / 100.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_is_a_share_of_a_maximum() {
        assert_eq!(Asked::all(true, false), [Asked::Max, Asked::OfOwn(20), Asked::OfOwn(80)]);
        let all = Asked::all(false, true);
        assert_eq!((all.len(), all[0], all[10]), (11, Asked::Max, Asked::OfKernel(100)));
        let rates =
            [Asked::Max, Asked::OfOwn(20), Asked::OfKernel(80)].map(|asked| asked.rate(1000.0, 500.0));
        assert_eq!(rates, [None, Some(200.0), Some(400.0)]);
        assert_eq!(load_value(Asked::Max.percent()), "MAX");
        assert_eq!((load_value(Some(80)), Asked::OfKernel(80).load_of()), (json!(80), "kernel"));
    }
}
