//! Frames of FPM as FRR's zebra makes them: messages of rtnetlink behind a header of four bytes.

use std::net::IpAddr;

/// `RTM_NEWROUTE`.
pub const NEW_ROUTE: u16 = 24;
/// `RTM_DELROUTE`.
pub const DEL_ROUTE: u16 = 25;
/// `RTM_NEWNEXTHOP`.
pub const NEW_NEXTHOP: u16 = 104;
/// `RTM_DELNEXTHOP`.
pub const DEL_NEXTHOP: u16 = 105;
/// `RTPROT_KERNEL`: what zebra has from the kernel.
pub const KERNEL: u8 = 2;
/// `RTPROT_ZSTATIC`: what staticd has told zebra.
pub const STATIC: u8 = 196;

const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_PRIORITY: u16 = 6;
const RTA_NH_ID: u16 = 30;
const NHA_ID: u16 = 1;
const NHA_GROUP: u16 = 2;
const NHA_OIF: u16 = 5;
const NHA_GATEWAY: u16 = 6;

/// Where a route leads.
#[derive(Clone, Copy, Debug)]
pub enum To {
    /// By a router behind an interface.
    Via(IpAddr, u32),
    /// The link of an interface.
    Link(u32),
    /// Where this next-hop object leads.
    Object(u32),
    /// Nowhere.
    Blackhole,
}

fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let mut bytes = ((4 + value.len()) as u16).to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

fn octets(addr: IpAddr) -> Vec<u8> {
    match addr {
        IpAddr::V4(addr) => addr.octets().to_vec(),
        IpAddr::V6(addr) => addr.octets().to_vec(),
    }
}

fn family(addr: IpAddr) -> u8 {
    if addr.is_ipv4() { 2 } else { 10 }
}

fn message(kind: u16, header: &[u8], attributes: &[Vec<u8>]) -> Vec<u8> {
    let body = [header, &attributes.concat()].concat();
    let mut bytes = (16 + body.len() as u32).to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    // NLM_F_REQUEST, NLM_F_CREATE, NLM_F_REPLACE.
    bytes.extend(0x501u16.to_ne_bytes());
    bytes.extend([0; 8]);
    bytes.extend(body);
    bytes
}

/// A route of the main table.
pub fn route((addr, len): (IpAddr, u8), protocol: u8, to: To) -> Vec<u8> {
    let kind = if matches!(to, To::Blackhole) { 6 } else { 1 };
    let mut attributes =
        vec![attribute(RTA_DST, &octets(addr)), attribute(RTA_PRIORITY, &20u32.to_ne_bytes())];
    match to {
        To::Via(gateway, ifindex) => {
            attributes.push(attribute(RTA_GATEWAY, &octets(gateway)));
            attributes.push(attribute(RTA_OIF, &ifindex.to_ne_bytes()));
        }
        To::Link(ifindex) => attributes.push(attribute(RTA_OIF, &ifindex.to_ne_bytes())),
        To::Object(id) => attributes.push(attribute(RTA_NH_ID, &id.to_ne_bytes())),
        To::Blackhole => {}
    }
    message(NEW_ROUTE, &[family(addr), len, 0, 0, 254, protocol, 0, kind, 0, 0, 0, 0], &attributes)
}

/// It goes. zebra says neither of which kind it was, nor where it led.
pub fn delete((addr, len): (IpAddr, u8)) -> Vec<u8> {
    let attributes = [attribute(RTA_DST, &octets(addr)), attribute(RTA_PRIORITY, &20u32.to_ne_bytes())];
    message(DEL_ROUTE, &[family(addr), len, 0, 0, 254, STATIC, 0, 0, 0, 0, 0, 0], &attributes)
}

/// A next-hop object.
pub fn object(id: u32, gateway: IpAddr, ifindex: u32) -> Vec<u8> {
    let attributes = [
        attribute(NHA_ID, &id.to_ne_bytes()),
        attribute(NHA_GATEWAY, &octets(gateway)),
        attribute(NHA_OIF, &ifindex.to_ne_bytes()),
    ];
    message(NEW_NEXTHOP, &[family(gateway), 0, 0, 0, 0, 0, 0, 0], &attributes)
}

/// A group of others, with one share each.
pub fn group(id: u32, members: &[u32]) -> Vec<u8> {
    let entry = |id: &u32| [&id.to_ne_bytes()[..], &[0; 4]].concat();
    let entries: Vec<u8> = members.iter().flat_map(entry).collect();
    message(NEW_NEXTHOP, &[0; 8], &[attribute(NHA_ID, &id.to_ne_bytes()), attribute(NHA_GROUP, &entries)])
}

/// An object goes.
pub fn delete_object(id: u32) -> Vec<u8> {
    message(DEL_NEXTHOP, &[0; 8], &[attribute(NHA_ID, &id.to_ne_bytes())])
}

/// A frame around messages.
pub fn frame(messages: &[Vec<u8>]) -> Vec<u8> {
    let content = messages.concat();
    let mut bytes = vec![1, 1];
    bytes.extend(((4 + content.len()) as u16).to_be_bytes());
    bytes.extend(content);
    bytes
}
