//! The cases: which thread polls, when, and how long the doorbell stays masked. Those of the kernel's own experiment, by its names.

use std::time::Duration;

use softnet::PollerParams;
use softnet::config::Knobs;
use softnet::net::EpollParams;
use softnet_dev::mem::Coalesce;

use crate::bench::tcp::ways::{self, Way};

/// One way to wait for requests.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Case {
    pub(super) name: &'static str,
    /// Of the comparison with --quick.
    pub(super) quick: bool,
    /// The worker has the scheduling policy of the application, instead of one that preempts it.
    pub(super) fair: bool,
    pub(super) napi_defer_hard_irqs: u64,
    /// In µs.
    pub(super) gro_flush_timeout: u64,
    /// In ms.
    pub(super) irq_suspend_timeout: u64,
    /// If any, with `prefer_busy_poll`.
    pub(super) busy_poll_usecs: Option<u32>,
    /// Time-out of the application's waits.
    pub(super) wait: Option<Duration>,
    pub(super) coalesce: Coalesce,
}

const DEFER: u64 = 100;
const SUSPEND_MS: u64 = 20;

const BASE: Case = Case {
    name: "base",
    quick: true,
    fair: false,
    napi_defer_hard_irqs: 0,
    gro_flush_timeout: 0,
    irq_suspend_timeout: 0,
    busy_poll_usecs: None,
    wait: None,
    coalesce: Coalesce { rx_usecs: 0, rx_frames: 0, adaptive: false },
};

const fn defer(name: &'static str, quick: bool, usecs: u64) -> Case {
    Case { name, quick, napi_defer_hard_irqs: DEFER, gro_flush_timeout: usecs, ..BASE }
}

const fn suspend(name: &'static str, quick: bool, usecs: u64) -> Case {
    Case { irq_suspend_timeout: SUSPEND_MS, busy_poll_usecs: Some(0), ..defer(name, quick, usecs) }
}

const fn coalesce(name: &'static str, rx_usecs: u32, rx_frames: u32) -> Case {
    Case { name, coalesce: Coalesce { rx_usecs, rx_frames, adaptive: false }, ..BASE }
}

/// All of them; `base` first.
pub(super) static CASES: [Case; 17] = [
    BASE,
    Case { name: "base-fair", fair: true, ..BASE },
    defer("defer10", false, 10),
    defer("defer20", true, 20),
    defer("defer50", false, 50),
    defer("defer100", false, 100),
    defer("defer200", true, 200),
    Case { busy_poll_usecs: Some(64), ..defer("napibusy", true, 200) },
    Case {
        busy_poll_usecs: Some(1000),
        wait: Some(Duration::from_millis(1)),
        ..defer("fullbusy", true, 5000)
    },
    Case { napi_defer_hard_irqs: 0, ..suspend("suspend0", true, 0) },
    suspend("suspend10", false, 10),
    suspend("suspend20", true, 20),
    suspend("suspend50", true, 50),
    suspend("suspend200", true, 200),
    coalesce("coalesce8", 8, 128),
    coalesce("coalesce64", 64, 128),
    Case { name: "adaptive", coalesce: Coalesce { rx_usecs: 0, rx_frames: 0, adaptive: true }, ..BASE },
];

/// The case of this name.
///
/// # Panics
/// If there is none.
pub(super) fn named(name: &str) -> &'static Case {
    CASES.iter().find(|case| case.name == name).expect("a case of that name")
}

impl Case {
    /// Whether it is about the NIC, not about its driver.
    pub(super) fn coalesces(&self) -> bool {
        self.coalesce != BASE.coalesce
    }

    /// Of the instance.
    pub(super) fn knobs(&self) -> Knobs {
        self.way().knobs()
    }

    /// Of the application.
    pub(super) fn poller(&self) -> PollerParams {
        let EpollParams { busy_poll_usecs, busy_poll_budget, prefer_busy_poll } = self.way().params();
        PollerParams { busy_poll_usecs, busy_poll_budget, prefer_busy_poll, ..PollerParams::default() }
    }

    /// Of instance and application, as the benches of TCP have it.
    pub(super) fn way(&self) -> Way {
        Way {
            name: self.name,
            busy_poll_usecs: self.busy_poll_usecs,
            napi_defer_hard_irqs: self.napi_defer_hard_irqs,
            gro_flush_timeout: self.gro_flush_timeout,
            irq_suspend_timeout: self.irq_suspend_timeout,
            ..ways::BASE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_what_they_are() {
        assert_eq!(CASES[0], BASE);
        for case in &CASES {
            assert_eq!(CASES.iter().filter(|other| other.name == case.name).count(), 1, "{}", case.name);
            let number = case.name.trim_start_matches(|c: char| !c.is_ascii_digit()).parse::<u64>();
            let Ok(number) = number else { continue };
            match case.coalesces() {
                true => assert_eq!(u64::from(case.coalesce.rx_usecs), number),
                false => assert_eq!(case.gro_flush_timeout, number),
            }
            assert_eq!(case.irq_suspend_timeout > 0, case.name.starts_with("suspend"));
        }
        let fullbusy = CASES.iter().find(|case| case.name == "fullbusy").unwrap();
        let poller = fullbusy.poller();
        assert!(poller.prefer_busy_poll && poller.busy_poll_usecs == 1000 && poller.busy_poll_budget == 64);
        assert_eq!(fullbusy.knobs().gro_flush_timeout, Some(5_000_000));
        assert!(!BASE.poller().prefer_busy_poll);
    }

    /// The benches of TCP have some of the cases by the same names.
    #[test]
    fn ways_of_tcp_are_the_same() {
        for way in [ways::BASE, ways::SUSPEND20, ways::FULLBUSY] {
            assert_eq!(named(way.name).way(), way);
        }
        for case in CASES.iter().filter(|case| !case.coalesces()) {
            let (way, poller) = (case.way(), case.poller());
            assert_eq!(way.knobs(), case.knobs());
            assert_eq!(way.params(), poller.epoll(), "{}", case.name);
            assert!(case.wait.is_none_or(|wait| way.wait() == wait));
        }
    }
}
