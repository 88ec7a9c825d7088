//! The head: two cache lines of metadata, receive fields on the first.

/// Flag bits of [`Head::flags`].
pub struct Flags;

impl Flags {
    /// The L4 checksum field holds only the pseudo-header sum (a veth or TAP peer left it to "hardware").
    pub const CSUM_PARTIAL: u16 = 1 << 0;
    /// This packet was made here (ARP, ICMP), not received.
    pub const ORIGINATED: u16 = 1 << 1;
}

/// Metadata of a packet. The first line is written when a packet is received or built; the second is left
/// as it was, and whoever uses it writes it first.
#[repr(C, align(64))]
pub struct Head {
    /// Link of the list this skb is on (index within the same region, `u32::MAX` = none).
    pub(super) next: u32,
    /// Index of the attached frame.
    pub(super) frame: u32,
    /// Offset of the first packet byte in the frame.
    pub(super) off: u16,
    /// Packet length in bytes.
    pub(super) len: u16,
    /// Index of the device the packet came in by (for [`Flags::ORIGINATED`], leaves by).
    pub dev: u16,
    /// RX queue of that device.
    pub queue: u16,
    /// Flow hash, 0 = not computed.
    pub hash: u32,
    /// See [`Flags`].
    pub flags: u16,
    /// Offset of the L3 header from the first byte.
    pub l3: u16,
    /// Next hop that the FIB look-up chose (index into the adjacency snapshot).
    pub nexthop: u32,
    /// NAPI instance the packet came by, 0 = none.
    pub napi_id: u32,
    /// When the packet was received, in ns of the stack's clock; 0 = not stamped.
    pub stamp: u64,
    pub(super) reserved: [u64; 2],
    #[cfg(feature = "debug-poison")]
    pub(super) poison: u32,
    /// Control block of the layer that owns the packet now.
    pub cb: [u64; 7],
}

/// `next` of an skb that is on no list.
pub(super) const NONE: u32 = u32::MAX;

const _: () = assert!(size_of::<Head>() == 128);

impl Head {
    /// Initialises the first line.
    #[inline(always)]
    pub(super) fn init(&mut self, frame: u32, off: u16, len: u16) {
        self.next = NONE;
        self.frame = frame;
        self.off = off;
        self.len = len;
        self.dev = 0;
        self.queue = 0;
        self.hash = 0;
        self.flags = 0;
        self.l3 = 0;
        self.nexthop = 0;
        self.napi_id = 0;
        self.stamp = 0;
        self.reserved = [0; 2];
    }
}
