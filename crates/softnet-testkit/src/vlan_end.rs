//! The far end of VLANs, on kernels without 8021q: for each VLAN a wire, whose packets get its tags and leave by the trunk, and
//! which gets what comes there with them.
//!
//! ```text
//!  a host's eth0 ═══ port ┐
//!                         ├ programs ┤ trunk ═══ the system under test
//!  a host's eth0 ═══ port ┘
//! ```

use std::collections::BTreeMap;

use softnet_dev::bpf::{Alu, Assembler, Cond, Label, Reg, Size, TcxAction, TcxHook, TcxLink, helper};
use softnet_dev::sys_error::SysResult;

use crate::testing::kernel_has;

/// Of `struct __sk_buff`.
const VLAN_PRESENT: i16 = 20;
const VLAN_TCI: i16 = 24;
const VLAN_PROTO: i16 = 28;
/// Kept across calls: the packet.
const SKB: Reg = Reg::R6;

/// A tag: EtherType, and VLAN number.
type Tag = (u16, u16);

/// A port of a VLAN.
#[derive(Clone, Debug)]
pub struct VlanPort {
    /// Its interface.
    pub ifindex: u32,
    /// One tag, or two: the outermost first.
    pub tags: Vec<Tag>,
}

/// VLANs on a trunk; gone when dropped or when the process ends. What comes by the trunk with other
/// tags, or none, is the kernel's.
#[derive(Debug)]
pub struct VlanEnd {
    _links: Vec<TcxLink>,
}

impl VlanEnd {
    /// Whether the kernel has what it is made of; if not, says so.
    pub fn is_possible() -> bool {
        kernel_has("TCX", (6, 6))
    }

    /// On the interface `trunk` of the calling thread's namespace, where the ports are too.
    ///
    /// # Errors
    /// What the kernel says. Needs Linux 6.6, CAP_BPF and CAP_NET_ADMIN.
    pub fn attach(trunk: u32, ports: &[VlanPort]) -> SysResult<Self> {
        let untag = split(ports).load_tc("softnet_untag")?;
        let mut links = vec![TcxLink::attach(&untag, trunk, TcxHook::Ingress)?];
        for port in ports {
            let program = tag(&port.tags, trunk).load_tc("softnet_tag")?;
            links.push(TcxLink::attach(&program, port.ifindex, TcxHook::Ingress)?);
        }
        Ok(VlanEnd { _links: links })
    }
}

/// As it lies in memory.
fn network_order(value: u16) -> i32 {
    i32::from(u16::from_ne_bytes(value.to_be_bytes()))
}

fn redirect(asm: &mut Assembler, ifindex: u32) {
    asm.mov(Reg::R1, ifindex as i32);
    asm.mov(Reg::R2, 0);
    asm.call(helper::REDIRECT);
    asm.exit();
}

/// Gives packets tags, the innermost first, and sends them out of `trunk`.
fn tag(tags: &[Tag], trunk: u32) -> Assembler {
    let mut asm = Assembler::new();
    asm.mov(SKB, Reg::R1);
    for (proto, id) in tags.iter().rev() {
        asm.mov(Reg::R1, SKB);
        asm.mov(Reg::R2, network_order(*proto));
        asm.mov(Reg::R3, i32::from(*id));
        asm.call(helper::SKB_VLAN_PUSH);
    }
    redirect(&mut asm, trunk);
    asm
}

/// Goes to `or` unless the outermost tag is `tag`; else takes it off.
fn untag(asm: &mut Assembler, (proto, id): Tag, or: Label) {
    asm.load(Size::U32, Reg::R2, SKB, VLAN_PRESENT);
    asm.jump_if(Cond::Eq, Reg::R2, 0, or);
    asm.load(Size::U32, Reg::R2, SKB, VLAN_PROTO);
    asm.jump_if(Cond::Ne, Reg::R2, network_order(proto), or);
    asm.load(Size::U32, Reg::R2, SKB, VLAN_TCI);
    asm.alu(Alu::And, Reg::R2, 0x0fff);
    asm.jump_if(Cond::Ne, Reg::R2, i32::from(id), or);
    asm.mov(Reg::R1, SKB);
    asm.call(helper::SKB_VLAN_POP);
}

/// Sends packets out of the port that their tags are of, without these.
fn split(ports: &[VlanPort]) -> Assembler {
    let mut by_outer: BTreeMap<Tag, Vec<&VlanPort>> = BTreeMap::new();
    for port in ports {
        if let Some(outer) = port.tags.first() {
            by_outer.entry(*outer).or_default().push(port);
        }
    }
    let mut asm = Assembler::new();
    asm.mov(SKB, Reg::R1);
    for (outer, ports) in by_outer {
        let other = asm.label();
        untag(&mut asm, outer, other);
        for port in &ports {
            if let Some(inner) = port.tags.get(1) {
                let next = asm.label();
                untag(&mut asm, *inner, next);
                redirect(&mut asm, port.ifindex);
                asm.bind(next);
            }
        }
        match ports.iter().find(|port| port.tags.len() == 1) {
            Some(port) => redirect(&mut asm, port.ifindex),
            None => {
                asm.mov(Reg::R0, TcxAction::Drop as i32);
                asm.exit();
            }
        }
        asm.bind(other);
    }
    asm.mov(Reg::R0, TcxAction::Next as i32);
    asm.exit();
    asm
}
