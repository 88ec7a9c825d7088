//! Time as the mechanisms see it: a number of nanoseconds that comes in as an argument. No clock is read here.

mod wheel;
#[cfg(all(test, not(feature = "loom")))]
mod wheel_tests;

pub use wheel::{Timer, TimerWheel};
