//! IPv4 packets that are not plain: what the fast path did not check of them, and the options they
//! have.

use super::*;
use crate::ip::v4::header::MIN_LEN;
use crate::ip::v4::icmp::renew_check;
use crate::ip::v4::options::{self, EchoOptions, OptionPolicy, Record};

/// What a packet is that is not plain.
pub(super) enum Unusual {
    /// To one host, maybe softnet.
    Unicast,
    /// A datagram to all on the link, or to a multicast group.
    Group,
    /// Its options can't be understood, from this byte of its header on.
    Malformed(u8),
}

impl SlowPath {
    /// What the fast path did not check of an IPv4 packet that is not plain: a broadcast or
    /// multicast frame, a header with options, or addresses that may not go everywhere.
    pub(super) fn check_unusual(&self, view: RouteSnapshot<'_>, skb: &Skb) -> Result<Unusual, DropReason> {
        let data = skb.data();
        let packet = data.get(ETH_LEN..).ok_or(DropReason::PktTooSmall)?;
        let lengths = validate_part(packet, skb.len() - ETH_LEN)?;
        let header = Ipv4Header::new(packet).ok_or(DropReason::PktTooSmall)?;
        if is_martian_source(header.src()) {
            return Err(DropReason::IpInvalidSource);
        }
        let dst = header.dst();
        let group_frame = data.first_chunk().is_some_and(is_group);
        let acceptable = match group_frame {
            // A unicast packet in a broadcast frame is not for us (RFC 1122 section 3.3.6), and
            // only sockets are in groups.
            true => {
                let to_many = is_multicast(dst) || dst == u32::MAX || view.is_broadcast(dst.into());
                to_many && header.protocol() == protocol::UDP
            }
            false => !is_martian_destination(dst) && !is_multicast(dst),
        };
        if !acceptable {
            return Err(DropReason::IpInvalidDest);
        }
        let dev = skb.head().dev;
        let filter = view.iface(dev).map_or_else(Default::default, |iface| iface.rp_filter);
        if !filter.allows(&view.tables.v4, dev, Ipv4Addr::from(header.src())) {
            return Err(DropReason::IpRpFilter);
        }
        let options = match options::parse(packet.get(..lengths.header).unwrap_or_default()) {
            Ok(options) => options,
            Err(pointer) => return Ok(Unusual::Malformed(pointer)),
        };
        // No router should do source routing today (RFC 7126 sections 4.3 and 4.4).
        let drops = self.option_policy == OptionPolicy::Drop && options.wants_record();
        if options.has_source_route() || drops {
            return Err(DropReason::IpOptions);
        }
        Ok(if group_frame { Unusual::Group } else { Unusual::Unicast })
    }

    /// Does what the options of a packet ask for that leaves from `addr`.
    pub(super) fn record_options(&self, view: RouteSnapshot<'_>, skb: &mut Skb, addr: Ipv4Addr) {
        let header = skb.data_mut().get_mut(ETH_LEN..).and_then(options_of);
        let Some(header) = header.filter(|_| self.option_policy == OptionPolicy::Process) else { return };
        let Ok(options) = options::parse(header) else { return };
        options.record(header, &self.record(view, addr, &|addr| view.is_own(addr)));
        renew_check(header);
    }

    /// The options of the reply to an echo request to `addr`.
    pub(super) fn echo_options(&self, view: RouteSnapshot<'_>, skb: &mut Skb, addr: Ipv4Addr) -> EchoOptions {
        let header = skb.data_mut().get_mut(ETH_LEN..).and_then(options_of);
        let header = header.filter(|_| self.option_policy == OptionPolicy::Process);
        let Some((header, Ok(options))) = header.map(|header| (&*header, options::parse(header))) else {
            return EchoOptions::NONE;
        };
        EchoOptions::of(header, &options, &self.record(view, addr, &|addr| view.is_own(addr)))
    }

    fn record<'a>(
        &self,
        view: RouteSnapshot<'_>,
        addr: Ipv4Addr,
        is_own: &'a dyn Fn(Ipv4Addr) -> bool,
    ) -> Record<'a> {
        let utc = self.midnight.map(|since| since.saturating_add(view.now));
        Record { addr, time: options::timestamp(utc, view.now), is_own }
    }
}

/// The header of an IPv4 packet, if it has options.
fn options_of(packet: &mut [u8]) -> Option<&mut [u8]> {
    let len = Ipv4Header::new(packet)?.header_len();
    packet.get_mut(..len).filter(|header| header.len() > MIN_LEN)
}
