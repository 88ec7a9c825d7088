//! softnet: a user-space network stack for Linux that polls when busy and sleeps when idle.

pub mod config;
pub mod control;
pub mod show;
