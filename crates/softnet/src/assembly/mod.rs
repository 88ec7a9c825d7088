//! Puts a stack together from its configuration and takes it apart: start and stop, the housekeeper, and what a running
//! stack tells of itself.
//!
//! The only folder that knows all others.

mod builder;
mod follower;
mod housekeeper;
mod introspect;
mod snooper;
mod stack;

pub use builder::StackBuilder;
pub(crate) use follower::Follower;
pub(crate) use housekeeper::Housekeeper;
pub use introspect::Introspect;
pub use stack::{Assembly, Stack, StartError};
