//! Why a packet was freed before it reached a receiver.

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident = $text:literal, $help:literal;)*) => {
        /// Why a packet was freed before it reached a receiver. Names follow the kernel's `SKB_DROP_REASON_*`
        /// where it has one.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum DropReason { $(#[doc = $help] $name,)* }

        impl DropReason {
            /// Every reason, in the order of their numbers.
            pub const ALL: &'static [DropReason] = &[$(DropReason::$name,)*];
            /// How many there are.
            pub const COUNT: usize = Self::ALL.len();

            /// The name that tables and `--json` print.
            pub fn name(self) -> &'static str {
                match self { $(DropReason::$name => $text,)* }
            }

            /// One line on what it means.
            pub fn help(self) -> &'static str {
                match self { $(DropReason::$name => $help,)* }
            }
        }
    };
}

reasons! {
    NoHead = "no_head", "no buffer head was free";
    NoFrame = "no_frame", "no frame was free";
    DevReady = "dev_ready", "the outgoing device was down or gone";
    Nonlinear = "nonlinear", "in several frames, and too long for the one that it has to be in";
    NoHeadroom = "no_headroom", "no room in its frame for the VLAN tag that it is to leave with";
    FullRing = "full_ring", "the outgoing device's ring was full";
    KernelEgress = "kernel_egress", "the kernel did not send it by the outgoing interface: its queue was full, or a rule dropped it";
    PktTooSmall = "pkt_too_small", "shorter than its headers";
    PktTooBig = "pkt_too_big", "larger than the outgoing MTU";
    OtherHost = "otherhost", "the destination MAC is not ours";
    UnhandledProto = "unhandled_proto", "an EtherType that softnet does not serve";
    VlanUnknown = "vlan_unknown", "of a VLAN that no device on its link is configured for";
    IpInHdr = "ip_inhdr", "malformed IP header (version, header length, total length)";
    IpCsum = "ip_csum", "wrong IPv4 header checksum";
    IpOptions = "ip_options", "IPv4 options that may not pass (source routing; others by ip_options)";
    IpInvalidSource = "ip_invalid_source", "martian source address";
    IpRpFilter = "ip_rpfilter", "packets to the source would not leave by the device it came by (rp_filter)";
    IpInvalidDest = "ip_invalid_dest", "martian, multicast or broadcast destination that is not forwarded";
    IpNoRoute = "ip_outnoroutes", "no route to the destination";
    IpBlackhole = "ip_blackhole", "the route says: discard";
    NetfilterDrop = "netfilter_drop", "a hook took it out, or made it for one of a chain of packets that hooks made";
    ConntrackInvalid = "conntrack_invalid", "its source was to be hidden, but it opens no connection and is of none";
    ConntrackFull = "conntrack_full", "the table of connections was full, of such that were answered (softnet show nat)";
    ConntrackLimit = "conntrack_limit", "its source had as many connections as a host may have (nat.connlimit)";
    ConntrackBusy = "conntrack_busy", "another thread opened a connection of the same source at that moment";
    NatPorts = "nat_ports", "no port was free of the addresses that its source was to be hidden behind (softnet show nat)";
    NatFragment = "nat_fragment", "a fragment whose source was to be hidden, and that did not come by a device";
    NatPrefix = "nat_prefix", "its address has none in the other prefix (nat.prefix)";
    Nat64 = "nat64", "cannot be translated between IPv6 and IPv4: protocol, type of ICMP, or address (pool6)";
    IpTtl = "ip_ttl", "TTL ran out on the way";
    IpFragLocal = "ip_frag_local", "a fragment where only a whole packet will do";
    Ipv6NdiscFrag = "ipv6_ndisc_frag", "neighbour discovery in fragments";
    FragReasmTimeout = "frag_reasm_timeout", "the other fragments of its datagram did not come in time";
    DupFrag = "dup_frag", "a fragment that had come already";
    FragOverlap = "frag_overlap", "of a datagram whose fragments overlap";
    FragTooFar = "frag_too_far", "too many other fragments of its source came since its datagram's last";
    FragInvalid = "frag_invalid", "a fragment that contradicts itself or the others of its datagram, or is too small";
    FragLimit = "frag_limit", "of a datagram in too many fragments";
    FragEvicted = "frag_evicted", "of the oldest datagram when the memory for fragments was used up";
    IpNoProto = "ip_noproto", "addressed to softnet, for a protocol without a handler or a port without a socket";
    IcmpCsum = "icmp_csum", "wrong ICMP checksum";
    IcmpMalformed = "icmp_malformed", "malformed ICMP message";
    ArpMalformed = "arp_malformed", "malformed ARP packet";
    ArpIgnored = "arp_ignored", "an ARP packet that is none of our business";
    Ipv6BadScope = "ipv6_bad_scope", "a link-local IPv6 address with a scope in it, which no other host may know";
    Ipv6BadExthdr = "ipv6_bad_exthdr", "malformed IPv6 extension headers, too many, or an option that may not pass";
    NdiscHopLimit = "ipv6_ndisc_hop_limit", "a neighbour discovery message that came from beyond the link";
    NdiscMalformed = "ipv6_ndisc_malformed", "malformed neighbour discovery message (addresses, options)";
    NdiscIgnored = "ipv6_ndisc_ignored", "a neighbour discovery message that is none of our business";
    NeighQueueFull = "neigh_queuefull", "too many packets wait for this neighbour, or too many new ones are asked for";
    NeighFailed = "neigh_failed", "the neighbour did not answer";
    NeighTableFull = "neigh_tablefull", "the neighbour table is full";
    NeighDead = "neigh_dead", "the neighbour entry was removed";
    Shutdown = "shutdown", "held when the device or the stack was stopped";
    SocketRcvbuff = "socket_rcvbuff", "its receiver, an application, did not take what waited for it in time";
    IcmpIgnored = "icmp_ignored", "an ICMP message to softnet that asks for no answer, or may not have one";
    QdiscDrop = "qdisc_drop", "the qdisc can never send it (larger than its bucket), or was replaced";
    QdiscOverlimit = "qdisc_overlimit", "the qdisc was at its limit";
    QdiscLoss = "qdisc_loss", "the qdisc is a netem, which lost it as it is to";
    QdiscBurstDrop = "qdisc_burst_drop", "too many packets waited for the sender that owned the TX queue";
    TcIngress = "tc_ingress", "an action dropped it where it came in, such as a redirect that loops";
    TcEgress = "tc_egress", "an action dropped it where it was to leave, such as a redirect that loops";
    NtupleDrop = "ntuple_drop", "a filter of its device dropped it (softnet show ntuple)";
    UdpCsum = "udp_csum", "wrong UDP checksum";
    TcpCsum = "tcp_csum", "wrong TCP checksum";
    TcpFlags = "tcp_flags", "a TCP segment with flags that the connection's state excludes";
    TcpOldData = "tcp_old_data", "TCP data that had arrived before";
    TcpOverwindow = "tcp_overwindow", "TCP data beyond the receive window";
    TcpZeroWindow = "tcp_zerowindow", "TCP data while the receive window was closed: what was received is not read";
    TcpPaws = "tcp_rfc7323_paws", "a TCP segment that is old by its timestamp";
    TcpReset = "tcp_reset", "a TCP reset, whether it ended a connection or was not believed";
    TcpOldAck = "tcp_old_ack", "a TCP segment without news: what it acknowledges, and has, was known";
    TcpInvalidAck = "tcp_ack_unsent_data", "a TCP segment that acknowledges what was not sent";
    TcpOfoQueuePrune = "tcp_ofo_queue_prune", "TCP data beyond a hole that gave way to data that was nearer";
    TcpAbortOnData = "tcp_abort_on_data", "TCP data for an application that reads no more";
    TcpListenOverflow = "tcp_listen_overflow", "the accept queue of a TCP listener was full";
    TcpReqQFull = "tcp_reqqfulldrop", "the request queue of a TCP listener was full, and cookies are off";
    TcpRequest = "tcp_request", "a TCP segment of a handshake that was answered by itself, or waits";
    TcpTimeWait = "tcp_time_wait", "a TCP segment for a connection that has ended (TIME-WAIT)";
    SocketBacklog = "socket_backlog", "too many TCP segments waited for the thread that was at their connections";
    ProtoMem = "proto_mem", "all sockets together held as much of packet memory as they may";
    SocketClose = "socket_close", "its socket was closed before the packet was read";
    SnoopOverflow = "snoop_overflow", "a copy of what a neighbour said to all, which was not read in time";
    RxTooLong = "rx_too_long", "longer than a frame when it came in: segments that were merged (GRO, LRO) or not cut yet (TSO)";
    CpuBacklog = "cpu_backlog", "the backlog of the worker, or of the RX queue, that was to receive it was full";
    BacklogMem = "backlog_mem", "all backlogs together held as much of packet memory as they may";
    FlowLimit = "flow_limit", "of a flow that had more than its share of a backlog that was half full";
}
