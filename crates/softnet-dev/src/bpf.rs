//! BPF without a compiler or C library: an assembler for small programs, and the bpf(2) calls that load, feed and
//! attach them.
//!
//! Control-path code; any thread may call it. Programs, maps and attachments are descriptors: whatever this process
//! made vanishes with it, however it ends. Opcodes, helper numbers and attribute layouts are those of the kernel's
//! `include/uapi/linux/bpf.h`; the instruction set is RFC 9669.
//!
//! ```no_run
//! # use softnet_dev::bpf::{Assembler, Cond, Map, Reg, Size, XdpAction, helper};
//! # fn main() -> softnet_dev::SysResult<()> {
//! // Every frame to the socket of its RX queue; to the kernel where none is bound.
//! let sockets = Map::xsk(64)?;
//! let mut asm = Assembler::new();
//! asm.load(Size::U32, Reg::R2, Reg::R1, 16); // xdp_md.rx_queue_index
//! asm.load_map(Reg::R1, &sockets);
//! asm.mov(Reg::R3, XdpAction::Pass as i32);
//! asm.call(helper::REDIRECT_MAP);
//! asm.exit();
//! let program = asm.load_xdp("softnet_xdp", 0)?;
//! # drop(program); Ok(()) }
//! ```

mod asm;
mod btf;
mod run;
mod sys;
mod tcx;

pub use asm::{Alu, Assembler, Cond, Insn, Label, Operand, Reg, Size, helper};
pub use btf::KernelFn;
pub use sys::{F_XDP_HAS_FRAGS, LruMap, Map, Program, Set, XdpAction, XdpLink, XdpMode, possible_cpus};
pub use tcx::{TcxAction, TcxHook, TcxLink};
