//! The assembler: instructions one by one, jumps by label.
//!
//! It checks nothing that the verifier checks better; only what would be lost silently (a jump that does not fit, a
//! label never bound) is refused here.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use super::btf::KernelFn;
use super::sys::Program;
use crate::sys_error::{SysError, SysResult};

/// A register. R0: result; R1–R5: arguments, clobbered by calls; R6–R9: kept across calls; R10: frame pointer, whose
/// 512 bytes below are the stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum Reg {
    R0,
    R1,
    R2,
    R3,
    R4,
    R5,
    R6,
    R7,
    R8,
    R9,
    R10,
}

/// Width of a memory access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum Size {
    U32 = 0x00,
    U16 = 0x08,
    U8 = 0x10,
    U64 = 0x18,
}

/// An arithmetic operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum Alu {
    Add = 0x00,
    Sub = 0x10,
    Mul = 0x20,
    Or = 0x40,
    And = 0x50,
    Lsh = 0x60,
    Rsh = 0x70,
    Xor = 0xa0,
}

/// A condition; `Gt` to `Le` compare without sign.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum Cond {
    Eq = 0x10,
    Gt = 0x20,
    Ge = 0x30,
    /// Some bit of the operand is set.
    Set = 0x40,
    Ne = 0x50,
    Lt = 0xa0,
    Le = 0xb0,
}

/// The second operand of an operation: a register, or a constant that is sign-extended to 64 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Operand {
    Reg(Reg),
    Imm(i32),
}

impl From<Reg> for Operand {
    fn from(reg: Reg) -> Self {
        Operand::Reg(reg)
    }
}

impl From<i32> for Operand {
    fn from(value: i32) -> Self {
        Operand::Imm(value)
    }
}

/// Numbers of kernel helper functions (`enum bpf_func_id`), for [`Assembler::call`].
pub mod helper {
    /// `void *bpf_map_lookup_elem(map, &key)`: null where there is none.
    pub const MAP_LOOKUP_ELEM: i32 = 1;
    /// `long bpf_map_update_elem(map, &key, &value, flags)`: 0 if the entry is there now.
    pub const MAP_UPDATE_ELEM: i32 = 2;
    /// `long bpf_map_delete_elem(map, &key)`: 0 if the entry was there.
    pub const MAP_DELETE_ELEM: i32 = 3;
    /// `u64 bpf_ktime_get_ns()`: CLOCK_MONOTONIC in ns.
    pub const KTIME_GET_NS: i32 = 5;
    /// `long bpf_skb_vlan_push(skb, protocol, tci)`: 0 if the packet has one more tag, outside those
    /// that it had; the EtherType is in network order.
    pub const SKB_VLAN_PUSH: i32 = 18;
    /// `long bpf_skb_vlan_pop(skb)`: 0 if the packet lost its outermost tag.
    pub const SKB_VLAN_POP: i32 = 19;
    /// `long bpf_redirect(ifindex, flags)`: an action of tc's, out of that interface if `flags` is 0.
    pub const REDIRECT: i32 = 23;
    /// `long bpf_redirect_map(map, key, flags)`: an XDP action; the low bits of `flags` are the action where the map
    /// has no entry.
    pub const REDIRECT_MAP: i32 = 51;
    /// `long bpf_xdp_adjust_head(ctx, delta)`: moves the packet's beginning; 0 if that can be. What was known of the packet's
    /// bounds is void.
    pub const XDP_ADJUST_HEAD: i32 = 44;
    /// `u64 bpf_xdp_get_buff_len(ctx)`: bytes of the packet, those behind the first piece included.
    pub const XDP_GET_BUFF_LEN: i32 = 188;
}

/// A place in the program, to jump to.
#[derive(Clone, Copy, Debug)]
pub struct Label(usize);

/// One instruction as the kernel takes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Insn {
    code: u8,
    /// Destination in the low, source in the high four bits (on little-endian machines; swapped on others).
    regs: u8,
    offset: i16,
    imm: i32,
}

impl Insn {
    /// By how many instructions the verifier makes it longer, at the most: it has a buffer of 32
    /// for what takes the place of a call; fields of the context are one or two loads further away;
    /// and a barrier may stand behind anything.
    fn growth(&self) -> usize {
        match self.code {
            CALL => 31,
            code if code & CLASSES == CLASS_LDX => 4,
            _ => 1,
        }
    }
}

/// Instructions that a jump passes over at the most, less than half of what it could.
const FARTHEST: usize = 16_000;
const CALL: u8 = CLASS_JMP | OP_CALL;
const CLASSES: u8 = 0x07;
const CLASS_LD: u8 = 0x00;
const CLASS_LDX: u8 = 0x01;
const CLASS_ST: u8 = 0x02;
const CLASS_STX: u8 = 0x03;
const CLASS_ALU32: u8 = 0x04;
const CLASS_JMP: u8 = 0x05;
const CLASS_JMP32: u8 = 0x06;
const CLASS_ALU64: u8 = 0x07;
const MODE_MEM: u8 = 0x60;
const MODE_ATOMIC: u8 = 0xc0;
const SOURCE_REG: u8 = 0x08;
const OP_MOV: u8 = 0xb0;
const OP_END: u8 = 0xd0;
const OP_CALL: u8 = 0x80;
const OP_EXIT: u8 = 0x90;
const PSEUDO_MAP_FD: u8 = 1;
const PSEUDO_KFUNC_CALL: u8 = 2;

/// A program in the making.
#[derive(Debug, Default)]
pub struct Assembler {
    insns: Vec<Insn>,
    /// Where each label is, once bound.
    labels: Vec<Option<usize>>,
    /// Jumps to patch: instruction, label.
    jumps: Vec<(usize, Label)>,
}

impl Assembler {
    /// An empty program.
    pub fn new() -> Self {
        Self::default()
    }

    fn push(&mut self, code: u8, dst: u8, src: u8, offset: i16, imm: i32) {
        let regs = if cfg!(target_endian = "little") { src << 4 | dst } else { dst << 4 | src };
        self.insns.push(Insn { code, regs, offset, imm });
    }

    fn push_with(&mut self, code: u8, dst: Reg, operand: Operand, offset: i16) {
        match operand {
            Operand::Reg(src) => self.push(code | SOURCE_REG, dst as u8, src as u8, offset, 0),
            Operand::Imm(imm) => self.push(code, dst as u8, 0, offset, imm),
        }
    }

    /// `dst = operand`.
    pub fn mov(&mut self, dst: Reg, operand: impl Into<Operand>) {
        self.push_with(CLASS_ALU64 | OP_MOV, dst, operand.into(), 0);
    }

    /// `dst = map` (a [`Map`](super::Map) or a [`Set`](super::Set)), as helpers want it. The map must live until the program is loaded; the program then holds it.
    pub fn load_map(&mut self, dst: Reg, map: &impl AsFd) {
        self.wide(dst, PSEUDO_MAP_FD, map.as_fd().as_raw_fd(), 0);
    }

    /// `dst = value`, all 64 bits of it.
    pub fn mov64(&mut self, dst: Reg, value: u64) {
        self.wide(dst, 0, value as i32, (value >> 32) as i32);
    }

    fn wide(&mut self, dst: Reg, src: u8, low: i32, high: i32) {
        self.push(CLASS_LD | Size::U64 as u8, dst as u8, src, 0, low);
        self.push(0, 0, 0, 0, high);
    }

    /// `dst = dst op operand`, in 64 bits.
    pub fn alu(&mut self, op: Alu, dst: Reg, operand: impl Into<Operand>) {
        self.push_with(CLASS_ALU64 | op as u8, dst, operand.into(), 0);
    }

    /// `dst = dst op operand`, in 32 bits; the upper half becomes zero.
    pub fn alu32(&mut self, op: Alu, dst: Reg, operand: impl Into<Operand>) {
        self.push_with(CLASS_ALU32 | op as u8, dst, operand.into(), 0);
    }

    /// Converts the low 16, 32 or 64 bits of `dst` between network and host order, and clears those above.
    pub fn to_be(&mut self, dst: Reg, bits: i32) {
        self.push(CLASS_ALU32 | OP_END | SOURCE_REG, dst as u8, 0, 0, bits);
    }

    /// `dst = *(base + offset)`, zero-extended, in the machine's byte order.
    pub fn load(&mut self, size: Size, dst: Reg, base: Reg, offset: i16) {
        self.push(CLASS_LDX | MODE_MEM | size as u8, dst as u8, base as u8, offset, 0);
    }

    /// `*(base + offset) = operand`.
    pub fn store(&mut self, size: Size, base: Reg, offset: i16, operand: impl Into<Operand>) {
        match operand.into() {
            Operand::Reg(src) => {
                self.push(CLASS_STX | MODE_MEM | size as u8, base as u8, src as u8, offset, 0);
            }
            Operand::Imm(imm) => self.push(CLASS_ST | MODE_MEM | size as u8, base as u8, 0, offset, imm),
        }
    }

    /// `*(base + offset) += src`, atomically; `size` is U32 or U64.
    pub fn atomic_add(&mut self, size: Size, base: Reg, offset: i16, src: Reg) {
        self.push(CLASS_STX | MODE_ATOMIC | size as u8, base as u8, src as u8, offset, 0);
    }

    /// A label, to be bound once.
    pub fn label(&mut self) -> Label {
        self.labels.push(None);
        Label(self.labels.len() - 1)
    }

    /// `label` is here.
    pub fn bind(&mut self, label: Label) {
        self.labels[label.0] = Some(self.insns.len());
    }

    /// Goes to `label`.
    pub fn jump(&mut self, label: Label) {
        self.jumps.push((self.insns.len(), label));
        self.push(CLASS_JMP, 0, 0, 0, 0);
    }

    /// Goes to `label` if `dst cond operand` holds for all 64 bits.
    pub fn jump_if(&mut self, cond: Cond, dst: Reg, operand: impl Into<Operand>, label: Label) {
        self.jumps.push((self.insns.len(), label));
        self.push_with(CLASS_JMP | cond as u8, dst, operand.into(), 0);
    }

    /// Goes to `label` if `dst cond operand` holds for the low 32 bits.
    pub fn jump_if32(&mut self, cond: Cond, dst: Reg, operand: impl Into<Operand>, label: Label) {
        self.jumps.push((self.insns.len(), label));
        self.push_with(CLASS_JMP32 | cond as u8, dst, operand.into(), 0);
    }

    /// Calls a kernel helper; see [`helper`].
    pub fn call(&mut self, function: i32) {
        self.push(CALL, 0, 0, 0, function);
    }

    /// Calls a function of the kernel's, with arguments as a helper's.
    pub fn call_kernel(&mut self, function: KernelFn) {
        self.push(CALL, 0, PSEUDO_KFUNC_CALL, 0, function.id());
    }

    /// Ends the program; R0 is its result.
    pub fn exit(&mut self) {
        self.push(CLASS_JMP | OP_EXIT, 0, 0, 0, 0);
    }

    /// `r0 =` where the value of the key at `r10 + key` lies in `map`; goes to `or` if there is none. Changes R1 to R5.
    pub fn look_up(&mut self, map: &impl AsFd, key: i16, or: Label) {
        self.load_map(Reg::R1, map);
        self.mov(Reg::R2, Reg::R10);
        self.alu(Alu::Add, Reg::R2, i32::from(key));
        self.call(helper::MAP_LOOKUP_ELEM);
        self.jump_if(Cond::Eq, Reg::R0, 0, or);
    }

    /// Adds one to this CPU's counter at `key` of `counters`, and leaves its value in R1; goes to `or` if there is none. Changes
    /// R0 to R5 and the word at `r10 - 4`.
    pub fn count(&mut self, counters: &impl AsFd, key: i32, or: Label) {
        const KEY: i16 = -4;
        self.store(Size::U32, Reg::R10, KEY, key);
        self.look_up(counters, KEY, or);
        // Each CPU has its own counter, and is the only one to write it.
        self.load(Size::U64, Reg::R1, Reg::R0, 0);
        self.alu(Alu::Add, Reg::R1, 1);
        self.store(Size::U64, Reg::R0, 0, Reg::R1);
    }

    /// The instructions, with every jump resolved.
    ///
    /// # Errors
    /// A label that was never bound, or a jump over more than 32,767 instructions.
    pub fn finish(&self) -> SysResult<Vec<Insn>> {
        let mut insns = self.insns.clone();
        for &(at, label) in &self.jumps {
            let refuse = |why: &str| {
                let error = io::Error::new(io::ErrorKind::InvalidInput, why);
                SysError::new(format!("assemble a BPF program: jump at instruction {at}"), error)
            };
            let target = self.labels[label.0].ok_or_else(|| refuse("its label is not bound"))?;
            insns[at].offset =
                i16::try_from(target as i64 - at as i64 - 1).map_err(|_| refuse("its target is too far"))?;
        }
        Ok(insns)
    }

    /// As [`finish`](Self::finish), of a program that the kernel makes no longer than this however
    /// much it rewrites: instructions that are never reached come first. The verifier removes them
    /// before it patches the others.
    pub(crate) fn finish_with_room(&self) -> SysResult<Vec<Insn>> {
        let insns = self.finish()?;
        let mut left: usize = insns.iter().map(Insn::growth).sum();
        let mut front = Assembler::new();
        while left > 0 {
            let dead = left.min(FARTHEST);
            let end = front.label();
            front.mov(Reg::R0, 0);
            front.jump_if(Cond::Eq, Reg::R0, 0, end);
            (0..dead).for_each(|_| front.mov(Reg::R0, 0));
            front.bind(end);
            left -= dead;
        }
        Ok([front.finish()?, insns].concat())
    }

    /// Loads the program as an XDP program called `name` (at most 15 bytes; shown by `bpftool`). `flags` is 0 or
    /// [`F_XDP_HAS_FRAGS`](super::F_XDP_HAS_FRAGS).
    ///
    /// # Errors
    /// The verifier's log is part of the message. Needs CAP_BPF and CAP_NET_ADMIN.
    pub fn load_xdp(&self, name: &str, flags: u32) -> SysResult<Program> {
        Program::load_xdp(&self.finish()?, name, flags)
    }

    /// Loads the program for the tc hooks of interfaces ([`TcxLink`](super::TcxLink)).
    ///
    /// # Errors
    /// As [`load_xdp`](Self::load_xdp).
    pub fn load_tc(&self, name: &str) -> SysResult<Program> {
        Program::load_tc(&self.finish()?, name)
    }

    /// Loads the program for the driver of the interface with index `ifindex` of the calling
    /// thread's network namespace: it can be attached there alone, in native mode, and may call the
    /// functions that tell what the driver knows of a packet.
    ///
    /// The kernel (6.18) follows a dangling pointer, with its network lock held, when the namespace
    /// of such a program is deleted and the program was moved in memory while it was loaded. So
    /// this one comes with room for what the verifier adds, and is not loaded at all where the
    /// kernel copies programs to blind their constants (`net.core.bpf_jit_harden`).
    ///
    /// # Errors
    /// As [`load_xdp`](Self::load_xdp); EOPNOTSUPP or EINVAL where the driver or the kernel has
    /// nothing to tell; [`Unsupported`](std::io::ErrorKind::Unsupported) if the kernel would move it.
    pub fn load_xdp_for(&self, name: &str, ifindex: u32, flags: u32) -> SysResult<Program> {
        Program::load_xdp_for(&self.finish_with_room()?, name, ifindex, flags)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encodes_as_the_instruction_set_says() {
        let mut asm = Assembler::new();
        let end = asm.label();
        asm.mov(Reg::R0, 2);
        asm.load(Size::U16, Reg::R3, Reg::R2, 12);
        asm.jump_if(Cond::Ne, Reg::R3, Reg::R4, end);
        asm.alu32(Alu::And, Reg::R3, 0xff);
        asm.store(Size::U64, Reg::R10, -8, Reg::R1);
        asm.to_be(Reg::R3, 16);
        asm.bind(end);
        asm.exit();
        let bytes: Vec<[u8; 8]> = asm
            .finish()
            .unwrap()
            .iter()
            .map(|i| {
                let (o, m) = (i.offset.to_le_bytes(), i.imm.to_le_bytes());
                [i.code, i.regs, o[0], o[1], m[0], m[1], m[2], m[3]]
            })
            .collect();
        assert_eq!(
            bytes,
            [
                [0xb7, 0x00, 0, 0, 2, 0, 0, 0],
                [0x69, 0x23, 12, 0, 0, 0, 0, 0],
                [0x5d, 0x43, 3, 0, 0, 0, 0, 0],
                [0x54, 0x03, 0, 0, 0xff, 0, 0, 0],
                [0x7b, 0x1a, 0xf8, 0xff, 0, 0, 0, 0],
                [0xdc, 0x03, 0, 0, 16, 0, 0, 0],
                [0x95, 0x00, 0, 0, 0, 0, 0, 0],
            ]
        );
    }

    #[test]
    fn refuses_a_label_that_was_never_bound() {
        let mut asm = Assembler::new();
        let nowhere = asm.label();
        asm.jump(nowhere);
        assert!(asm.finish().unwrap_err().to_string().contains("not bound"));
    }
}
