//! The program `softnet` as a process. One binary for all, since each takes seconds to link.

mod capture;
mod check;
mod cli;
mod confined;
mod control_group;
mod generate;
mod instance;
mod load;
mod load_tcp;
mod process;
mod reload;
mod rootless;
mod rx_class;
mod take_over;
mod tc;
mod top;
mod trace;
