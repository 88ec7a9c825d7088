//! Conversations: a connection against scripted segments, or two connections over a channel, in
//! virtual time. After every step the invariants are asserted.

mod close;
mod conversations;

mod flow;
mod handshake;
mod listen;
mod long;
mod matrix;
mod options;
mod pair;
mod pressure;
mod receive;
mod runs;
mod sim;
mod sizes;
mod storm;
mod talk;
mod timeouts;

use crate::testing::end;
