//! The head: two cache lines of metadata, receive fields on the first.

/// Flag bits of [`Head::flags`].
pub struct Flags;

impl Flags {
    /// This packet was made here (ARP, ICMP), not received.
    pub const ORIGINATED: u16 = 1 << 0;
    /// A datagram of IPv6 that came in fragments: [`Head::frag`] says how its first one came.
    pub const FRAG: u16 = 1 << 1;
    /// [`Head::queue`] is the TX queue that its sender chose to leave by.
    pub const TX_QUEUE: u16 = 1 << 2;
    /// The neighbour table bounds how many of these there are: it waited there, or asks for a neighbour.
    pub const HELD: u16 = 1 << 3;
    /// The segments of an aggregate have all the same IPv4 identification (the kernel's
    /// `SKB_GSO_TCP_FIXEDID`).
    pub const GSO_FIXED_ID: u16 = 1 << 4;
    /// A capture has seen it leave, see [`tap`](crate::tap).
    pub const TAPPED: u16 = 1 << 5;
    /// Its destination is not the one that it came to.
    pub const TRANSLATED: u16 = 1 << 8;
    /// A hook made it a packet of the other family, and has looked at its source as `rp_filter`
    /// says.
    pub const CROSSED: u16 = 1 << 9;
    /// Traces follow it, see [`trace`](crate::tap::trace): a bit for each that there may be.
    pub const TRACED: u16 = 0xf << 10;
}

/// What is known of the L4 checksum (the kernel's `ip_summed`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Csum {
    /// Nothing: it has to be verified.
    #[default]
    None,
    /// It was found right.
    Unnecessary,
    /// The device has summed the packet from its L3 header on.
    Complete {
        /// The folded sum, not complemented.
        sum: u16,
    },
    /// The checksum field holds only the pseudo-header sum, and has to be completed before the packet leaves.
    Partial {
        /// Offset, from the first byte of the packet, at which summing starts.
        start: u16,
        /// Offset of the checksum field from `start`.
        offset: u16,
    },
}

/// The kind of VLAN tag that was taken out of a packet, or is to be put into it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum VlanProto {
    /// There is no tag.
    #[default]
    None,
    /// IEEE 802.1Q, EtherType 0x8100.
    Dot1q,
    /// IEEE 802.1ad, EtherType 0x88a8.
    Dot1ad,
}

/// The kind of segments that a packet consists of, or is to be cut into (the kernel's `SKB_GSO_*`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum GsoType {
    /// It is one segment.
    #[default]
    None,
    /// TCP over IPv4.
    TcpV4,
    /// TCP over IPv6.
    TcpV6,
    /// UDP datagrams of one size, the last one perhaps shorter.
    UdpL4,
    /// TCP segments or UDP datagrams, each with headers of its own (the kernel's
    /// `SKB_GSO_FRAGLIST`), see [`gso`](crate::gso).
    FragList,
}

/// Metadata of a packet that its holder may use. The first line is written when a packet is received or built: all of it
/// is 0 then but for what the device says, and 0 means *none*. [`frag`](Self::frag) and the control block are left as they
/// were.
///
/// In a [chain](super::Skb::append) the head of the first frame is that of the packet; those of the others say nothing.
#[repr(C)]
pub struct Head {
    /// Index of the device the packet came in by (for [`Flags::ORIGINATED`], leaves by).
    pub dev: u16,
    /// RX queue of that device. The packet's flow leaves by the TX queue of the same number; see [`Flags::TX_QUEUE`]. A packet
    /// that answers another has the other's.
    pub queue: u16,
    /// Flow hash, 0 = not computed, or not of a flow; see [`skb_get_hash`](crate::steer::skb_get_hash). Code that
    /// changes addresses or ports clears it.
    pub hash: u32,
    /// See [`Flags`].
    pub flags: u16,
    /// Offset of the L3 header from the first byte.
    pub l3: u16,
    /// Offset of the L4 header from the first byte, which is in the first frame; 0: not known.
    pub l4: u16,
    /// Protocol of the L4 header (IANA's number); says nothing while [`l4`](Self::l4) is 0.
    pub protocol: u8,
    /// Redirects to ingress that it has been through, see [`Mirred`](crate::qdisc::Mirred).
    pub tc_depth: u8,
    /// What is known of the L4 checksum.
    pub csum: Csum,
    /// Tag control information (priority, DEI, VLAN id); says nothing without `vlan_proto`.
    pub(crate) vlan_tci: u16,
    /// Set by filters and read by routing rules and others; 0: none.
    pub mark: u32,
    /// Its connection, as [`conntrack`](crate::conntrack) says it: an index and more, plus one; 0: none.
    pub conntrack: u32,
    /// Bytes of L4 payload in each segment but the last; 0: it is one segment.
    pub gso_size: u16,
    /// Segments that it consists of; 0 stands for one.
    pub gso_segs: u16,
    /// The kind of segments.
    pub gso_type: GsoType,
    /// The kind of VLAN tag; [`vlan::set`](crate::vlan::set) gives it one.
    pub(crate) vlan_proto: VlanProto,
    /// While it leads a [bundle](super::bundle): packets that follow it; else 0.
    pub(super) followers: u8,
    /// Frames of its chain. In a head of a chain: [further frames](super::fragment) that it has.
    pub(super) frag_count: u8,
    /// Bytes in the frames of its chain.
    pub(super) frag_len: u32,
    /// While it waits for a socket: generation of the slot it was meant for, see [`sock`](crate::sock).
    pub sk_generation: u32,
    /// With [`Flags::FRAG`]: how the datagram's first fragment came, see
    /// [`AsItCame`](crate::ip::reassembly::AsItCame).
    pub frag: u64,
    /// Control block of the layer that owns the packet now.
    pub cb: [u64; 6],
}

impl Head {
    /// The packet becomes one that is made here, in the same buffer, such as the answer to itself:
    /// forgets what was received, but for the way back. That is the device and the queue, and where
    /// the L3 header is. Traces go on.
    #[inline]
    pub fn turn_around(&mut self) {
        let Head { dev, queue, l3, frag_count, frag_len, flags, .. } = *self;
        let kept = Head { dev, queue, l3, frag_count, frag_len, ..Head::EMPTY };
        *self = Head { flags: Flags::ORIGINATED | flags & Flags::TRACED, ..kept };
    }

    /// Takes over what `of` says of the way of its packet, of which this one is a part: where it
    /// came from, and what filters and connection tracking found out. What depends on the bytes
    /// (hash, L4, checksum, segments) is its own.
    #[inline]
    pub fn copy_metadata(&mut self, of: &Head) {
        let Head { dev, queue, flags, tc_depth, vlan_proto, vlan_tci, mark, conntrack, .. } = *of;
        (self.dev, self.queue, self.flags, self.tc_depth) = (dev, queue, flags, tc_depth);
        (self.vlan_proto, self.vlan_tci) = (vlan_proto, vlan_tci);
        (self.mark, self.conntrack) = (mark, conntrack);
    }

    /// Takes over what `of` says, but for its chain and the control block, which says nothing until it is written.
    #[inline]
    pub(super) fn copy_from(&mut self, of: &Head) {
        let Head { frag_count, frag_len, cb, .. } = *self;
        *self = Head { frag_count, frag_len, cb, ..*of };
    }
}

impl Head {
    /// That of a new packet.
    const EMPTY: Head = Head {
        dev: 0,
        queue: 0,
        hash: 0,
        flags: 0,
        l3: 0,
        l4: 0,
        protocol: 0,
        tc_depth: 0,
        csum: Csum::None,
        vlan_tci: 0,
        mark: 0,
        conntrack: 0,
        gso_size: 0,
        gso_segs: 0,
        gso_type: GsoType::None,
        vlan_proto: VlanProto::None,
        followers: 0,
        frag_count: 0,
        frag_len: 0,
        sk_generation: 0,
        frag: 0,
        cb: [0; 6],
    };
}

/// A whole head, two cache lines: what ties it to its frames, which only this module may touch, and the [`Head`].
#[repr(C, align(64))]
pub(super) struct RawHead {
    /// Link of the list, or of the chain, this skb is on (index within the same region, [`NONE`] at its end).
    pub(super) next: u32,
    /// Index of the attached frame.
    pub(super) frame: u32,
    /// Offset of the first packet byte in the frame; `off + head_len` is at most the frame's size.
    pub(super) off: u16,
    /// Bytes in the attached frame.
    pub(super) head_len: u16,
    /// Index of the first skb of the chain, [`NONE`] without one. In that first skb: index of the last one.
    pub(super) frag_list: u32,
    pub(super) head: Head,
    /// Mark of the feature `debug-poison`.
    #[cfg(feature = "debug-poison")]
    pub(super) poison: u32,
}

/// `next` of an skb that is last, or on no list; `frag_list` of one without a chain.
pub(super) const NONE: u32 = u32::MAX;

/// Bytes of the [`Head`] that are on the first line.
const FIRST_LINE: usize = 64 - std::mem::offset_of!(RawHead, head);

/// Further frames that a head in a chain has room for, see [`fragment`](super::fragment): words on its
/// second line.
pub(super) const MORE: usize = 7;

const _: () = assert!(size_of::<RawHead>() == 128);
const _: () = assert!(size_of::<Head>() == FIRST_LINE + MORE * 8);
const _: () = assert!(FIRST_LINE == 48 && std::mem::offset_of!(Head, frag) == FIRST_LINE);

impl RawHead {
    /// Initialises the first line.
    #[inline(always)]
    pub(super) fn init(&mut self, frame: u32, off: u16, len: u16) {
        self.next = NONE;
        self.frame = frame;
        self.off = off;
        self.head_len = len;
        self.frag_list = NONE;
        // SAFETY: these are the head's own bytes, up to `frag`. All of its fields there may be zero: integers, and enums
        // whose first variant has no data.
        unsafe { std::ptr::from_mut(&mut self.head).cast::<u8>().write_bytes(0, FIRST_LINE) };
    }

    /// Where the word of a further frame is: number `at`, below [`MORE`], of the head at `head`.
    #[inline(always)]
    pub(super) fn word(head: *mut RawHead, at: usize) -> *mut u64 {
        head.cast::<u64>().wrapping_add(64 / 8 + at)
    }

    /// The second line of the [`Head`], as words.
    #[inline(always)]
    pub(super) fn words(&self) -> &[u64; MORE] {
        // SAFETY: these are its own bytes (as is asserted above), and any are a word.
        unsafe { &*std::ptr::from_ref(self).cast::<u64>().add(64 / 8).cast() }
    }

    /// The same, to write. Any bytes are a `frag` and a `cb`.
    #[inline(always)]
    pub(super) fn words_mut(&mut self) -> &mut [u64; MORE] {
        // SAFETY: as above, and they are borrowed by `self`.
        unsafe { &mut *std::ptr::from_mut(self).cast::<u64>().add(64 / 8).cast() }
    }
}
