//! The kernel's NAPI instances and their knobs, by the generic netlink family `netdev`
//! (Documentation/netlink/specs/netdev.yaml; Linux 6.8 to read, 6.13 to set).
//!
//! Control-path code; the socket belongs to the namespace of the thread that made it. A number that the kernel does not
//! tell is `None`, so that a silent driver is not taken for one that has said no.

use std::io;

use netlink_packet_core::{NetlinkPayload, NetlinkSerializable};
use netlink_sys::protocols::NETLINK_GENERIC;

use super::socket::{Answer, Netlink, attributes_of, number};
use crate::sys_error::{SysError, SysResult};

/// The family that knows the others by name (`GENL_ID_CTRL`).
const CTRL: u16 = 0x10;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;

const QUEUE_GET: u8 = 10;
const NAPI_GET: u8 = 11;
const NAPI_SET: u8 = 14;

const QUEUE_ID: u16 = 1;
const QUEUE_IFINDEX: u16 = 2;
const QUEUE_TYPE: u16 = 3;
const QUEUE_NAPI_ID: u16 = 4;
const QUEUE_TYPE_RX: u32 = 0;

const NAPI_IFINDEX: u16 = 1;
const NAPI_ID: u16 = 2;
const NAPI_IRQ: u16 = 3;
const NAPI_DEFER_HARD_IRQS: u16 = 5;
const NAPI_GRO_FLUSH_TIMEOUT: u16 = 6;
const NAPI_IRQ_SUSPEND_TIMEOUT: u16 = 7;

/// Command, version and two bytes of nothing, before the attributes (`struct genlmsghdr`).
const HEADER_LEN: usize = 4;

/// What interrupt mitigation of a NAPI instance of the kernel is set to. All 0: none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NapiKnobs {
    /// `defer-hard-irqs`: completions without work that leave the interrupt masked.
    pub defer_hard_irqs: u32,
    /// `gro-flush-timeout`: ns until a masked instance is polled.
    pub gro_flush_timeout: u64,
    /// `irq-suspend-timeout`: ns for which an application that polls may leave the instance alone.
    pub irq_suspend_timeout: u64,
}

/// A NAPI instance of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelNapi {
    /// Its number, unique in the kernel while it exists.
    pub id: u32,
    /// The interrupt that schedules it; `None` if the driver has none, or does not tell.
    pub irq: Option<u32>,
    /// Its knobs; `None` before Linux 6.13.
    pub knobs: Option<NapiKnobs>,
}

impl KernelNapi {
    pub(super) fn parse(answer: &[u8]) -> Option<Self> {
        let (mut id, mut irq) = (None, None);
        let (mut defer, mut flush, mut suspend) = (None, None, None);
        for (kind, value) in attributes_of(answer.get(HEADER_LEN..)?) {
            match kind {
                NAPI_ID => id = number(&value, 0),
                NAPI_IRQ => irq = number(&value, 0),
                NAPI_DEFER_HARD_IRQS => defer = number(&value, 0),
                NAPI_GRO_FLUSH_TIMEOUT => flush = uint(&value),
                NAPI_IRQ_SUSPEND_TIMEOUT => suspend = uint(&value),
                _ => {}
            }
        }
        let knobs = defer.zip(flush).zip(suspend);
        let knobs = knobs.map(|((defer_hard_irqs, gro_flush_timeout), irq_suspend_timeout)| NapiKnobs {
            defer_hard_irqs,
            gro_flush_timeout,
            irq_suspend_timeout,
        });
        Some(KernelNapi { id: id?, irq, knobs })
    }
}

/// A message to a family of generic netlink.
#[derive(Clone)]
struct Message {
    family: u16,
    command: u8,
    attributes: Vec<u8>,
}

impl Message {
    fn new(family: u16, command: u8) -> Self {
        Message { family, command, attributes: Vec::new() }
    }

    /// `value` is short: a number or a name.
    fn with(mut self, kind: u16, value: &[u8]) -> Self {
        let length = (HEADER_LEN + value.len()) as u16;
        self.attributes.extend(length.to_ne_bytes());
        self.attributes.extend(kind.to_ne_bytes());
        self.attributes.extend(value);
        self.attributes.resize(self.attributes.len().next_multiple_of(4), 0);
        self
    }

    fn with_u32(self, kind: u16, value: u32) -> Self {
        self.with(kind, &value.to_ne_bytes())
    }

    /// A `uint` of the specification: as short as it can be.
    fn with_uint(self, kind: u16, value: u64) -> Self {
        match u32::try_from(value) {
            Ok(value) => self.with_u32(kind, value),
            Err(_) => self.with(kind, &value.to_ne_bytes()),
        }
    }
}

impl NetlinkSerializable for Message {
    fn message_type(&self) -> u16 {
        self.family
    }

    fn buffer_len(&self) -> usize {
        HEADER_LEN + self.attributes.len()
    }

    fn serialize(&self, buffer: &mut [u8]) {
        const VERSION: u8 = 1;
        buffer[..HEADER_LEN].copy_from_slice(&[self.command, VERSION, 0, 0]);
        buffer[HEADER_LEN..].copy_from_slice(&self.attributes);
    }
}

impl From<Message> for NetlinkPayload<Message> {
    fn from(message: Message) -> Self {
        NetlinkPayload::InnerMessage(message)
    }
}

/// A number of 4 or 8 bytes.
fn uint(value: &[u8]) -> Option<u64> {
    match value.len() {
        8 => value.try_into().ok().map(u64::from_ne_bytes),
        _ => number(value, 0).map(u64::from),
    }
}

/// The value of the attribute `wanted` in an answer.
fn attribute((_, answer): &Answer, wanted: u16) -> Option<Vec<u8>> {
    attributes_of(answer.get(HEADER_LEN..)?).find(|(kind, _)| *kind == wanted).map(|(_, value)| value)
}

/// A way to the NAPI instances of one network namespace.
#[derive(Debug)]
pub struct NetdevFamily {
    netlink: Netlink,
    id: u16,
}

impl NetdevFamily {
    /// That of the calling thread's namespace.
    ///
    /// # Errors
    /// ENOENT if the kernel has no such family (Linux 6.3).
    pub fn new() -> SysResult<Self> {
        let what = "look up the generic netlink family netdev";
        let mut netlink = Netlink::of_protocol(NETLINK_GENERIC)?;
        let request = Message::new(CTRL, CTRL_CMD_GETFAMILY).with(CTRL_ATTR_FAMILY_NAME, b"netdev\0");
        let answers = netlink.get(request, what)?;
        let id = answers.iter().find_map(|answer| attribute(answer, CTRL_ATTR_FAMILY_ID));
        let id = id.and_then(|id| id.try_into().ok()).map(u16::from_ne_bytes);
        let id = id.ok_or_else(|| SysError::new(what, io::Error::from_raw_os_error(libc::ENOENT)))?;
        Ok(NetdevFamily { netlink, id })
    }

    /// Which NAPI instance polls RX queue `queue` of the interface `ifindex`; `None` if the driver does not tell.
    ///
    /// # Errors
    /// EINVAL if there is no such queue; EOPNOTSUPP before Linux 6.8.
    pub fn queue_napi(&mut self, ifindex: u32, queue: u32) -> SysResult<Option<u32>> {
        let request = Message::new(self.id, QUEUE_GET)
            .with_u32(QUEUE_IFINDEX, ifindex)
            .with_u32(QUEUE_TYPE, QUEUE_TYPE_RX)
            .with_u32(QUEUE_ID, queue);
        let answers =
            self.netlink.get(request, &format!("look up RX queue {queue} of interface {ifindex}"))?;
        let id = answers.iter().find_map(|answer| attribute(answer, QUEUE_NAPI_ID));
        Ok(id.and_then(|id| number(&id, 0)))
    }

    /// The NAPI instance `id`.
    ///
    /// # Errors
    /// ENOENT if the namespace has none of that number.
    pub fn napi(&mut self, id: u32) -> SysResult<KernelNapi> {
        let what = format!("look up NAPI instance {id}");
        let answers = self.netlink.get(Message::new(self.id, NAPI_GET).with_u32(NAPI_ID, id), &what)?;
        let napi = answers.iter().find_map(|(_, answer)| KernelNapi::parse(answer));
        napi.ok_or_else(|| SysError::new(what, io::Error::from_raw_os_error(libc::ENOENT)))
    }

    /// All NAPI instances of the interface `ifindex`, whichever queues they are for.
    ///
    /// # Errors
    /// EOPNOTSUPP before Linux 6.8.
    pub fn napis(&mut self, ifindex: u32) -> SysResult<Vec<KernelNapi>> {
        let request = Message::new(self.id, NAPI_GET).with_u32(NAPI_IFINDEX, ifindex);
        let answers = self.netlink.dump(request, &format!("list NAPI instances of interface {ifindex}"))?;
        Ok(answers.iter().filter_map(|(_, answer)| KernelNapi::parse(answer)).collect())
    }

    /// Sets the knobs of the NAPI instance `id`. They take effect with its next completion.
    ///
    /// An instance without an [`irq`](KernelNapi::irq), such as a veth's, is polled by its timer alone while it is
    /// "masked": with a long timer it seems to receive no more.
    ///
    /// # Errors
    /// ENOENT if the namespace has none of that number; EOPNOTSUPP before Linux 6.13; ERANGE for a number of completions
    /// above `i32::MAX`. Needs CAP_NET_ADMIN.
    pub fn set_napi(&mut self, id: u32, knobs: NapiKnobs) -> SysResult<()> {
        let request = Message::new(self.id, NAPI_SET)
            .with_u32(NAPI_ID, id)
            .with_u32(NAPI_DEFER_HARD_IRQS, knobs.defer_hard_irqs)
            .with_uint(NAPI_GRO_FLUSH_TIMEOUT, knobs.gro_flush_timeout)
            .with_uint(NAPI_IRQ_SUSPEND_TIMEOUT, knobs.irq_suspend_timeout);
        self.netlink.change(request, 0, &format!("set the knobs of NAPI instance {id}"))
    }
}

#[cfg(test)]
mod tests {
    use super::super::set_offload;
    use super::*;
    use crate::netlink::Offload;
    use crate::netns::NetNs;
    use softnet_testkit::net_allowed;

    /// What follows the netlink header.
    fn bytes(message: &Message) -> Vec<u8> {
        let mut bytes = vec![0xff; message.buffer_len()];
        message.serialize(&mut bytes);
        bytes
    }

    /// Written by hand in the byte order of x86 and most others.
    #[cfg(target_endian = "little")]
    #[test]
    fn requests_are_what_the_specification_says() {
        let message = Message::new(20, NAPI_SET)
            .with_u32(NAPI_ID, 0x2001)
            .with_uint(NAPI_GRO_FLUSH_TIMEOUT, 20_000)
            .with_uint(NAPI_IRQ_SUSPEND_TIMEOUT, 1 << 32);
        #[rustfmt::skip]
        let expected = [
            14, 1, 0, 0,
            8, 0, 2, 0, 0x01, 0x20, 0, 0,
            8, 0, 6, 0, 0x20, 0x4e, 0, 0,
            12, 0, 7, 0, 0, 0, 0, 0, 1, 0, 0, 0,
        ];
        assert_eq!(bytes(&message), expected);
        assert_eq!(message.message_type(), 20);
        // A name is padded, and its length says how long it is without.
        let message = Message::new(CTRL, CTRL_CMD_GETFAMILY).with(CTRL_ATTR_FAMILY_NAME, b"netdev\0");
        assert_eq!(bytes(&message), [3, 1, 0, 0, 11, 0, 2, 0, b'n', b'e', b't', b'd', b'e', b'v', 0, 0]);
    }

    #[cfg(target_endian = "little")]
    #[test]
    fn answers_are_read_whatever_else_is_in_them() {
        #[rustfmt::skip]
        let answer = [
            11, 1, 0, 0,
            8, 0, 3, 0, 42, 0, 0, 0,
            8, 0, 2, 0, 0x01, 0x20, 0, 0,
            8, 0, 1, 0, 3, 0, 0, 0,
            12, 0, 7, 0, 0, 0, 0, 0, 1, 0, 0, 0,
            8, 0, 6, 0, 0x20, 0x4e, 0, 0,
            5, 0, 99, 0, 1, 0, 0, 0,
            8, 0, 5, 0, 2, 0, 0, 0,
        ];
        let knobs = NapiKnobs { defer_hard_irqs: 2, gro_flush_timeout: 20_000, irq_suspend_timeout: 1 << 32 };
        let all = KernelNapi { id: 0x2001, irq: Some(42), knobs: Some(knobs) };
        assert_eq!(KernelNapi::parse(&answer), Some(all));
        // A kernel that has no knobs yet, and a driver without an interrupt.
        let bare = KernelNapi { id: 0x2001, irq: None, knobs: None };
        assert_eq!(KernelNapi::parse(&[&answer[..4], &answer[12..20]].concat()), Some(bare));
        // Cut off anywhere, it is read as far as it goes, or not at all.
        for end in 0..answer.len() {
            let read = KernelNapi::parse(&answer[..end]);
            assert!(read.is_none_or(|napi| napi.id == 0x2001 && napi.irq == Some(42)), "{end}: {read:?}");
            assert_eq!(read.is_some(), end >= 20, "{end}");
        }
    }

    #[test]
    fn what_is_sent_is_what_is_read() {
        for t in [0, 1, u64::from(u32::MAX), u64::from(u32::MAX) + 1, u64::MAX] {
            let message = Message::new(20, NAPI_GET)
                .with_u32(NAPI_ID, 7)
                .with_u32(NAPI_DEFER_HARD_IRQS, 3)
                .with_uint(NAPI_GRO_FLUSH_TIMEOUT, t)
                .with_uint(NAPI_IRQ_SUSPEND_TIMEOUT, t / 2);
            let napi = KernelNapi::parse(&bytes(&message)).unwrap();
            let knobs = NapiKnobs { defer_hard_irqs: 3, gro_flush_timeout: t, irq_suspend_timeout: t / 2 };
            assert_eq!(napi, KernelNapi { id: 7, irq: None, knobs: Some(knobs) });
        }
    }

    /// An unused veth stands for a NIC: knobs are set, read and put back, and no packet comes its way.
    #[test]
    fn the_kernel_takes_and_tells_knobs() {
        if !net_allowed() {
            return;
        }
        let ns = NetNs::new().unwrap();
        ns.run(|| {
            let mut netlink = Netlink::new().unwrap();
            netlink.add_veth("left", "right", (2, 2), None).unwrap();
            set_offload("left", Offload::Gro, true).unwrap();
            netlink.set_up("left").unwrap();
            let index = netlink.existing_link("left").unwrap().index;

            let mut family = NetdevFamily::new().unwrap();
            assert_eq!(family.queue_napi(index, 1).unwrap(), None, "a veth that tells");
            assert_eq!(family.queue_napi(index, 2).unwrap_err().errno(), Some(libc::EINVAL));
            assert_eq!(family.napi(u32::MAX).unwrap_err().errno(), Some(libc::ENOENT));

            let napis = family.napis(index).unwrap();
            assert_eq!(napis.len(), 2, "{napis:?}");
            assert!(napis.iter().all(|napi| napi.irq.is_none()), "{napis:?}");
            let id = napis[0].id;
            let before = napis[0].knobs.unwrap();
            let knobs = NapiKnobs { defer_hard_irqs: 2, gro_flush_timeout: 1 << 33, irq_suspend_timeout: 5 };
            family.set_napi(id, knobs).unwrap();
            assert_eq!(family.napi(id).unwrap().knobs, Some(knobs));
            assert_eq!(family.napi(napis[1].id).unwrap(), napis[1], "the other is as it was");
            let wrong = NapiKnobs { defer_hard_irqs: 1 << 31, ..before };
            assert_eq!(family.set_napi(id, wrong).unwrap_err().errno(), Some(libc::ERANGE));
            assert_eq!(family.napi(id).unwrap().knobs, Some(knobs), "refused, and nothing changed");
            family.set_napi(id, before).unwrap();
            assert_eq!(family.napi(id).unwrap(), napis[0]);
        })
        .unwrap();
    }
}
