//! The head: two cache lines of metadata, receive fields on the first.

/// Flag bits of [`Head::flags`].
pub struct Flags;

impl Flags {
    /// The L4 checksum field holds only the pseudo-header sum (a veth or TAP peer left it to "hardware").
    pub const CSUM_PARTIAL: u16 = 1 << 0;
    /// This packet was made here (ARP, ICMP), not received.
    pub const ORIGINATED: u16 = 1 << 1;
    /// [`Head::queue`] is the TX queue that its sender chose to leave by.
    pub const TX_QUEUE: u16 = 1 << 3;
    /// It waited for a neighbour.
    pub const HELD: u16 = 1 << 4;
    /// The datagram goes on in the next skb of the list: all but the last of a *run* have it. Only the first of a run
    /// has headers, and its L3 header tells the length of all.
    pub const MORE: u16 = 1 << 2;
}

/// Metadata of a packet that whoever has the skb may use. The first line is written when a packet is received or
/// built; the control block is left as it was, and whoever uses it writes it first.
#[repr(C)]
pub struct Head {
    /// Index of the device the packet came in by (for [`Flags::ORIGINATED`], leaves by).
    pub dev: u16,
    /// RX queue of that device. The packet's flow leaves by the TX queue of the same number; see [`Flags::TX_QUEUE`]. A packet
    /// that answers another has the other's.
    pub queue: u16,
    /// Flow hash, 0 = not computed, or not of a flow; see [`skb_get_hash`](crate::steer::skb_get_hash). Whoever
    /// changes addresses or ports clears it.
    pub hash: u32,
    /// See [`Flags`].
    pub flags: u16,
    /// Offset of the L3 header from the first byte.
    pub l3: u16,
    /// Redirects to ingress that it has been through, see [`Mirred`](crate::qdisc::Mirred).
    pub tc_depth: u8,
    pub(super) _pad: [u8; 3],
    /// While it waits for a socket: generation of the slot it was meant for, see [`sock`](crate::sock).
    pub sk_generation: u32,
    pub(super) _pad2: u32,
    /// Of a datagram of IPv6 that came in fragments: how its first one came, see
    /// [`AsItCame`](crate::ip::reassembly::AsItCame); else 0.
    pub frag: u64,
    pub(super) reserved: [u64; 2],
    /// Control block of the layer that owns the packet now.
    pub cb: [u64; 8],
}

impl Head {
    /// Takes over what `of` says, but for the control block, which is nobody's until it is written.
    #[inline]
    pub(super) fn copy_from(&mut self, of: &Head) {
        *self = Head { cb: self.cb, ..*of };
    }
}

/// A whole head, two cache lines: what ties it to its frame, which only this module may touch, and the [`Head`].
#[repr(C, align(64))]
pub(super) struct RawHead {
    /// Link of the list this skb is on (index within the same region, [`NONE`] at its end).
    pub(super) next: u32,
    /// Index of the attached frame.
    pub(super) frame: u32,
    /// Offset of the first packet byte in the frame; `off + len` is at most the frame's size.
    pub(super) off: u16,
    /// Packet length in bytes.
    pub(super) len: u16,
    #[cfg(feature = "debug-poison")]
    pub(super) poison: u32,
    pub(super) head: Head,
}

/// `next` of an skb that is on no list.
pub(super) const NONE: u32 = u32::MAX;

const _: () = assert!(size_of::<RawHead>() == 128 && size_of::<Head>() == 112);

impl RawHead {
    /// Initialises the first line.
    #[inline(always)]
    pub(super) fn init(&mut self, frame: u32, off: u16, len: u16) {
        self.next = NONE;
        self.frame = frame;
        self.off = off;
        self.len = len;
        let head = &mut self.head;
        head.dev = 0;
        head.queue = 0;
        head.hash = 0;
        head.flags = 0;
        head.l3 = 0;
        head.tc_depth = 0;
        head._pad = [0; 3];
        head.sk_generation = 0;
        head._pad2 = 0;
        head.frag = 0;
        head.reserved = [0; 2];
    }
}
