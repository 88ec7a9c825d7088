//! Counts what arrives on an interface, as cheaply as the kernel can: an XDP program that counts per CPU and drops.
//!
//! It costs about as much as the veth hop itself, and no process has to run for it.

use softnet_dev::bpf::{Alu, Assembler, Cond, Map, Reg, Size, XdpAction, XdpLink, XdpMode};
use softnet_dev::sys_error::SysResult;

/// Which frames the sink takes. It passes all others to the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SinkFilter {
    /// Every frame.
    All,
    /// UDP over IPv4 without options, to this port. ARP and the like are left to the kernel, which answers it.
    UdpPort(u16),
}

/// A counting program on an interface; gone when dropped or when the process ends.
#[derive(Debug)]
pub struct Sink {
    counters: Map,
    _link: XdpLink,
}

const PACKETS: u32 = 0;
const ETH_LEN: i32 = 14;
const ETHERTYPE_AT: i16 = 12;
const IP_VERSION_AT: i16 = 14;
const IP_FRAGMENT_AT: i16 = 20;
const IP_PROTOCOL_AT: i16 = 23;
const UDP_PORT_AT: i16 = 36;
const UDP_END: i32 = ETH_LEN + 20 + 8;

impl Sink {
    /// Starts to count on interface `ifindex` of the calling thread's namespace: in native mode, else after the
    /// kernel made an skb.
    ///
    /// # Errors
    /// EBUSY if another XDP program is attached. Needs CAP_BPF and CAP_NET_ADMIN.
    pub fn attach(ifindex: u32, filter: SinkFilter) -> SysResult<Self> {
        let counters = Map::percpu_counters("softnet_sink", 1)?;
        let program = program(&counters, filter).load_xdp("softnet_sink", 0)?;
        let link = match XdpLink::attach(&program, ifindex, XdpMode::Native) {
            Err(error) if matches!(error.errno(), Some(libc::EOPNOTSUPP | libc::EINVAL | libc::ERANGE)) => {
                XdpLink::attach(&program, ifindex, XdpMode::Skb)?
            }
            result => result?,
        };
        Ok(Sink { counters, _link: link })
    }

    /// Frames taken so far.
    pub fn count(&self) -> SysResult<u64> {
        self.counters.sum(PACKETS)
    }
}

fn program(counters: &Map, filter: SinkFilter) -> Assembler {
    let mut asm = Assembler::new();
    let pass = asm.label();
    if let SinkFilter::UdpPort(port) = filter {
        asm.load(Size::U32, Reg::R6, Reg::R1, 0);
        asm.load(Size::U32, Reg::R7, Reg::R1, 4);
        asm.mov(Reg::R2, Reg::R6);
        asm.alu(Alu::Add, Reg::R2, UDP_END);
        asm.jump_if(Cond::Gt, Reg::R2, Reg::R7, pass);
        let mut expect = |size, at, mask: u16, value: u16| {
            asm.load(size, Reg::R2, Reg::R6, at);
            if matches!(size, Size::U16) {
                asm.to_be(Reg::R2, 16);
            }
            if mask != u16::MAX {
                asm.alu(Alu::And, Reg::R2, i32::from(mask));
            }
            asm.jump_if(Cond::Ne, Reg::R2, i32::from(value), pass);
        };
        expect(Size::U16, ETHERTYPE_AT, u16::MAX, 0x0800);
        expect(Size::U8, IP_VERSION_AT, u16::MAX, 0x45);
        expect(Size::U8, IP_PROTOCOL_AT, u16::MAX, libc::IPPROTO_UDP as u16);
        // A fragment but the first has no ports.
        expect(Size::U16, IP_FRAGMENT_AT, 0x1fff, 0);
        expect(Size::U16, UDP_PORT_AT, u16::MAX, port);
    }
    asm.count(counters, PACKETS as i32, pass);
    asm.mov(Reg::R0, XdpAction::Drop as i32);
    asm.exit();
    asm.bind(pass);
    asm.mov(Reg::R0, XdpAction::Pass as i32);
    asm.exit();
    asm
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::UdpFrame;
    use crate::net_allowed;

    #[test]
    fn takes_what_the_filter_names_and_nothing_else() {
        if !net_allowed() {
            return;
        }
        let frame = UdpFrame {
            src_mac: [2; 6],
            dst_mac: [4; 6],
            src: Ipv4Addr::new(192, 0, 2, 1),
            dst: Ipv4Addr::new(192, 0, 2, 2),
            src_port: 9,
            dst_port: 4789,
            len: 60,
        }
        .build();
        let counters = Map::percpu_counters("test_sink", 1).unwrap();
        let program_for = |filter| program(&counters, filter).load_xdp("softnet_sink", 0).unwrap();
        let by_port = program_for(SinkFilter::UdpPort(4789));
        let action = |frame: &[u8]| by_port.test_run(frame).unwrap().0;
        assert_eq!(action(&frame), XdpAction::Drop as u32);
        // Another port, a protocol that is not UDP, a later fragment, IP options, ARP, a frame too short for ports.
        for (at, value) in [(37, 0), (23, 6), (21, 1), (14, 0x46), (13, 0x06)] {
            let mut other = frame.clone();
            other[at] = value;
            assert_eq!(action(&other), XdpAction::Pass as u32, "byte {at}");
        }
        assert_eq!(action(&frame[..41]), XdpAction::Pass as u32);
        assert_eq!(counters.sum(0).unwrap(), 1);
        let all = program_for(SinkFilter::All);
        assert_eq!(all.test_run(&frame[..41]).unwrap().0, XdpAction::Drop as u32);
        assert_eq!(counters.sum(0).unwrap(), 2);
    }
}
