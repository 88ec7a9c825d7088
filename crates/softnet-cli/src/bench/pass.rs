//! An XDP program that lets all packets pass: with it veth does with what it receives what it does for
//! AF_XDP, so that the kernel is compared on the way that softnet's packets take.

use softnet_dev::bpf::{Assembler, F_XDP_HAS_FRAGS, Reg, XdpAction, XdpLink, XdpMode};
use softnet_dev::netlink::Netlink;

use super::text;

/// Attaches it to the interface called `name` of the calling thread's namespace, for as long as what is
/// returned lives.
pub(super) fn let_pass(name: &str) -> Result<XdpLink, String> {
    let mut asm = Assembler::new();
    asm.mov(Reg::R0, XdpAction::Pass as i32);
    asm.exit();
    let program = asm.load_xdp("softnet_pass", F_XDP_HAS_FRAGS).map_err(text)?;
    let link = Netlink::new().and_then(|mut netlink| netlink.existing_link(name)).map_err(text)?;
    XdpLink::attach(&program, link.index, XdpMode::Native).map_err(text)
}
