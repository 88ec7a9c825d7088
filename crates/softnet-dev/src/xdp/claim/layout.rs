//! Where the fields of frames are that the rule looks at, and what it compares them with: the
//! program, the model of it and their tests read the same.
//!
//! Offsets are those of a frame without tag.

use softnet_core::skb::{FRAME_SIZE, HEADROOM};

/// Longest frame that there is room for behind the kernel's headroom.
pub(super) const MAX_LEN: usize = FRAME_SIZE - HEADROOM;

/// Bytes of a VLAN tag.
pub(super) const TAG_LEN: usize = 4;
pub(super) const ETH_LEN: usize = 14;
pub(super) const ETHERTYPE: usize = 12;

pub(super) const ARP_FORMAT: usize = ETH_LEN;
pub(super) const ARP_LENGTHS: usize = ETH_LEN + 4;
pub(super) const ARP_OPERATION: usize = ETH_LEN + 6;
pub(super) const ARP_TARGET: usize = ETH_LEN + 24;
pub(super) const ARP_END: usize = ETH_LEN + 28;

/// Version and header length.
pub(super) const IPV4_VIHL: usize = ETH_LEN;
pub(super) const IPV4_ID: usize = ETH_LEN + 4;
pub(super) const IPV4_FRAGMENT: usize = ETH_LEN + 6;
pub(super) const IPV4_PROTOCOL: usize = ETH_LEN + 9;
pub(super) const IPV4_SRC: usize = ETH_LEN + 12;
pub(super) const IPV4_DST: usize = ETH_LEN + 16;
/// Of a header without options.
pub(super) const IPV4_END: usize = ETH_LEN + 20;

pub(super) const IPV6_NEXT: usize = ETH_LEN + 6;
pub(super) const IPV6_SRC: usize = ETH_LEN + 8;
pub(super) const IPV6_DST: usize = ETH_LEN + 24;
pub(super) const IPV6_END: usize = ETH_LEN + 40;
/// Of a fragment header behind that: offset and flags, identification, and what follows.
pub(super) const IPV6_FRAGMENT: usize = IPV6_END + 2;
pub(super) const IPV6_ID: usize = IPV6_END + 4;
pub(super) const FRAGMENT_END: usize = IPV6_END + 8;
pub(super) const ND_TYPE: usize = IPV6_END;
pub(super) const ND_TARGET: usize = IPV6_END + 8;
pub(super) const ND_END: usize = ND_TARGET + 16;

/// Of a header of UDP or TCP, from its beginning on: where the destination port is.
pub(super) const PORT_DST: usize = 2;
/// Of a UDP header. Of TCP's as much is looked at.
pub(super) const UDP_LEN: usize = 8;
/// Of an ICMP or ICMPv6 message, what an error quotes.
pub(super) const QUOTE: usize = 8;

/// Of a BOOTP message: what it is, the client's MAC address.
pub(super) const BOOTP: usize = IPV4_END + UDP_LEN;
pub(super) const BOOTP_CHADDR: usize = BOOTP + 28;
pub(super) const BOOTP_END: usize = BOOTP_CHADDR + 6;
pub(super) const BOOTREPLY: u8 = 2;
/// From a DHCP server to a client, as the two ports lie in the header.
pub(super) const DHCP_PORTS: [u8; 4] = [0, 67, 0, 68];

pub(super) const IPV4: [u8; 2] = [0x08, 0x00];
pub(super) const ARP: [u8; 2] = [0x08, 0x06];
pub(super) const IPV6: [u8; 2] = [0x86, 0xdd];
/// EtherTypes of tags: of customers and of providers.
pub(super) const TAGS: [[u8; 2]; 2] = [[0x81, 0x00], [0x88, 0xa8]];
/// The VLAN in a tag.
pub(super) const VID: [u8; 2] = [0x0f, 0xff];
/// What MAC addresses of solicited-node groups begin with (RFC 2464 section 7, RFC 4291 section
/// 2.7.1).
pub(super) const SOLICITED_NODE: [u8; 3] = [0x33, 0x33, 0xff];
/// The bit that is set in the first byte of MAC addresses of many (IEEE 802.3).
pub(super) const TO_MANY: u8 = 1;
/// ARP for IPv4 (0x0800) over Ethernet (1), RFC 826.
pub(super) const ARP_IPV4: [u8; 4] = [0, 1, 0x08, 0x00];
pub(super) const ARP_MAC_IPV4: [u8; 2] = [6, 4];
pub(super) const REQUEST: [u8; 2] = [0, 1];
pub(super) const REPLY: [u8; 2] = [0, 2];

/// IPv4 without options.
pub(super) const PLAIN: u8 = 0x45;
/// Of flags and fragment offset: more fragments, and the offset.
pub(super) const FRAGMENTED: [u8; 2] = [0x3f, 0xff];
/// The offset alone; that of IPv6.
pub(super) const OFFSET: [u8; 2] = [0x1f, 0xff];
pub(super) const OFFSET6: [u8; 2] = [0xff, 0xf8];
/// First octet of addresses that are no single host's: groups, and all (RFC 1112 section 4, RFC 919).
pub(super) const FIRST_GROUP4: u8 = 224;
/// What IPv6 addresses of groups begin with (RFC 4291 section 2.7).
pub(super) const GROUP6: u8 = 0xff;
/// What link-local addresses begin with, in ten bits.
pub(super) const LINK_LOCAL: [u8; 2] = [0xfe, 0x80];
pub(super) const LINK_LOCAL_MASK: [u8; 2] = [0xff, 0xc0];

pub(super) const ICMP: u8 = 1;
pub(super) const TCP: u8 = 6;
pub(super) const UDP: u8 = 17;
pub(super) const FRAGMENT: u8 = 44;
pub(super) const ICMPV6: u8 = 58;
pub(super) const ECHO_REQUEST: u8 = 128;
pub(super) const SOLICITATION: u8 = 135;
/// ICMP errors: destination unreachable, time exceeded, parameter problem.
pub(super) const ICMP_ERRORS: [u8; 3] = [3, 11, 12];
/// ICMPv6 errors: from 1 on; also packet too big.
pub(super) const LAST_ICMPV6_ERROR: u8 = 4;

/// How long a first fragment decides for the others, in ns: as long as they are waited for (the
/// defaults of `ipfrag_time` and `ip6frag_time`).
pub(super) const LIFETIME4: u64 = 30_000_000_000;
pub(super) const LIFETIME6: u64 = 60_000_000_000;
