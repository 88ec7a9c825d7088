use std::cell::RefCell;
use std::collections::BTreeMap;

use softnet_testkit::net_allowed;

use super::*;
use crate::netlink::Netlink;
use crate::netns::NetNs;

fn rule(text: &str) -> Rule {
    match text.parse().unwrap() {
        RuleOrder::Insert { rule, .. } => rule,
        RuleOrder::Delete(_) => panic!("no filter"),
    }
}

#[test]
fn filters_are_what_the_kernel_reads() {
    let request = encode(&rule("flow-type udp4 src-ip 10.0.0.0 m 0.0.0.255 dst-port 53 vlan 7 action 2"), 9);
    assert_eq!((request.0.len(), request.u32(0), request.u32(FS_FLOW_TYPE)), (192, 0x32, 0x8000_0002));
    assert_eq!(request.0[20..33], [10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 53, 0]);
    assert_eq!(request.0[92..105], [255, 255, 255, 0, 0, 0, 0, 0, 0, 0, 255, 255, 0]);
    assert_eq!((&request.0[82..84], &request.0[154..156]), (&[0, 7][..], &[255, 255][..]));
    assert_eq!((request.u64(168), request.u32(176)), (2, 9));
    let request = encode(&rule("flow-type ip6 l4proto 58 context 3"), ANY_LOCATION);
    assert_eq!((request.u32(FS_FLOW_TYPE), request.u32(184)), (0x2000_000e, 3));
    assert_eq!((request.0[20 + 37], request.0[92 + 37]), (58, 255));
    for text in [
        "flow-type udp4 action -1",
        "flow-type tcp4 src-ip 10.1.2.3 dst-ip 10.0.0.0 m 0.0.255.255 tos 16 src-port 1 m 0xff00 action 3",
        "flow-type ip4 l4proto 47 vlan 7 m 0xf000 action 0",
        "flow-type tcp6 src-ip fe80::1 tclass 8 dst-port 443 context 2",
        "flow-type ip6 dst-ip ff02:: m 0:ffff:ffff:ffff:ffff:ffff:ffff:ffff l4proto 17 action 65535",
    ] {
        assert_eq!(decode(&encode(&rule(text), 0)).unwrap().to_string(), text);
    }
    let mut ether = encode(&rule("flow-type udp4 action 1"), 0);
    ether.put(FS_FLOW_TYPE, &0x12u32.to_ne_bytes());
    assert_eq!(decode(&ether), None);
}

#[test]
fn changes_are_what_the_kernel_reads() {
    let key = RssHash::new(&MICROSOFT, Xfrm::None, 7).unwrap().key().to_vec();
    let main = Rxfh { table: vec![0; 128], key, hfunc: 1, xfrm: 0 };
    let words = |text: &str| {
        let change = text.parse::<RssChange>().unwrap();
        srssh(&change, &main, || Ok(4)).map_err(|error| error.to_string())
    };
    let xfrm = |hfunc, xfrm| u32::from_ne_bytes([hfunc, xfrm, 0, 0]);
    let equal = words("equal 2").unwrap();
    assert_eq!((equal.len(), &equal[..8]), (134, &[0x47, 0, 128, 0, xfrm(0, 0xff), 0, 0, 1][..]));
    assert_eq!(words("default").unwrap(), [0x47, 0, 0, 0, xfrm(0, 0xff), 0]);
    assert_eq!(words("context 3 default").unwrap()[..3], [0x47, 3, 128], "not deleted");
    assert_eq!(words("context 3 delete").unwrap(), [0x47, 3, 0, 0, xfrm(0, 0xff), 0]);
    let new = words("context new").unwrap();
    assert_eq!((&new[..3], &new[6..11]), (&[0x47, u32::MAX, 128][..], &[0, 1, 2, 3, 0][..]));
    assert_eq!(words("xfrm symmetric-xor hfunc toeplitz").unwrap()[2..5], [u32::MAX, 0, xfrm(1, 1)]);
    let key = format_key(&[0x6d, 0x5a].repeat(20));
    let with_key = words(&format!("hkey {key}")).unwrap();
    assert_eq!((with_key.len(), with_key[3]), (16, 40));
    assert_eq!(with_key[6], u32::from_ne_bytes([0x6d, 0x5a, 0x6d, 0x5a]));
    assert!(words(&format!("hkey {key} xfrm symmetric-xor")).unwrap_err().contains("singular"));
    let periodic = Rxfh { key: [0x6d, 0x5a].repeat(20), ..main.clone() };
    let alone = srssh(&"xfrm symmetric-xor".parse().unwrap(), &periodic, || Ok(4));
    assert!(alone.unwrap_err().to_string().contains("singular"), "with the key that there is");
    assert!(words("hkey 01:02").unwrap_err().contains("expected a key of 40 bytes, found 2"));
    assert!(words("equal 5").unwrap_err().contains("queue 4 is not there"));
}

const MICROSOFT: [u8; KEY_LEN] = [
    0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0,
    0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42,
    0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
];

/// A driver with four queues that hashes ports, and refuses some requests.
#[derive(Default)]
struct Driver {
    fields: RefCell<BTreeMap<u32, u64>>,
    asked: RefCell<Vec<u32>>,
    refuses: RefCell<Option<(u32, i32)>>,
}

impl Ethtool for Driver {
    fn ethtool(&self, words: &mut [u32]) -> io::Result<()> {
        self.asked.borrow_mut().push(words[0]);
        if let Some((_, error)) = self.refuses.borrow().filter(|(command, _)| *command == words[0]) {
            return Err(io::Error::from_raw_os_error(error));
        }
        match words[0] {
            GRSSH => {
                words[2..4].copy_from_slice(&[128, 40]);
                if let Some(key) = words.get_mut(RXFH_WORDS + 128..) {
                    let bytes = MICROSOFT.as_chunks::<4>().0;
                    key.iter_mut().zip(bytes).for_each(|(word, four)| *word = u32::from_ne_bytes(*four));
                }
            }
            GRXRINGS => words[2] = 4,
            GRXFH => {
                let kind = words[1];
                words[2] = *self.fields.borrow().get(&kind).unwrap_or(&(ADDRESSES | PORTS)) as u32;
            }
            SRXFH => _ = self.fields.borrow_mut().insert(words[1], words[2].into()),
            SRSSH if words[1] == NEW_CONTEXT => words[1] = 5,
            _ => {}
        }
        Ok(())
    }
}

#[test]
fn a_change_that_is_refused_changes_nothing() {
    let (driver, class) = (Driver::default(), KernelRxClass::default());
    let set = |text: &str| class.set_rss(&driver, &text.parse().unwrap()).map_err(|e| e.to_string());
    let changes = || driver.asked.take().into_iter().filter(|c| [SRXFH, SRSSH].contains(c)).count();
    // What is wrong is found before the driver is asked for any of it.
    for text in
        ["rx-flow-hash udp4 sd equal 5", "rx-flow-hash udp4 sd delete", "rx-flow-hash udp4 sd hkey 01"]
    {
        assert!(set(text).is_err());
        assert_eq!(changes(), 0, "{text}");
    }
    // What the driver refuses only then: what it did before is undone.
    *driver.refuses.borrow_mut() = Some((SRSSH, libc::EINVAL));
    assert!(set("rx-flow-hash udp4 sd rx-flow-hash tcp6 sd equal 2").is_err());
    let fields = || driver.fields.borrow().values().copied().collect::<Vec<_>>();
    assert_eq!((changes(), fields()), (5, vec![ADDRESSES | PORTS; 2]));
    *driver.refuses.borrow_mut() = None;
    assert_eq!(set("rx-flow-hash udp4 sd equal 2"), Ok(None));
    assert_eq!((changes(), fields()), (2, vec![ADDRESSES, ADDRESSES | PORTS]));
}

#[test]
fn a_context_is_forgotten_when_it_is_gone_and_for_no_other_reason() {
    let (driver, class) = (Driver::default(), KernelRxClass::default());
    assert_eq!(class.set_rss(&driver, &"context new equal 2".parse().unwrap()).unwrap(), Some(5));
    let contexts = || class.rss(&driver).unwrap().contexts.iter().map(|(id, _)| *id).collect::<Vec<_>>();
    assert_eq!(contexts(), [0, 5]);
    for (error, after) in [(libc::EBUSY, vec![0, 5]), (libc::ENOENT, vec![0])] {
        let gone = Refusing { driver: &driver, context: 5, error };
        assert_eq!(class.rss(&gone).unwrap().contexts.len(), 1);
        assert_eq!(contexts(), after, "{error}");
    }
}

/// A driver that can't tell of a context.
struct Refusing<'a> {
    driver: &'a Driver,
    context: u32,
    error: i32,
}

impl Ethtool for Refusing<'_> {
    fn ethtool(&self, words: &mut [u32]) -> io::Result<()> {
        match words[..2] == [GRSSH, self.context] {
            true => Err(io::Error::from_raw_os_error(self.error)),
            false => self.driver.ethtool(words),
        }
    }
}

/// The driver of veth has neither RSS nor filters: that is the kernel's answer, with what it
/// means.
#[test]
fn what_a_driver_can_not_do_is_told() {
    if !net_allowed() {
        return;
    }
    let ns = NetNs::new().unwrap();
    ns.run(|| {
        let mut netlink = Netlink::new().unwrap();
        netlink.add_veth("a", "b", (2, 2), None).unwrap();
        let control = Control::new(netlink.existing_link("a").unwrap().index).unwrap();
        let class = KernelRxClass::default();
        let of_context = class.set_rss(&control, &"context 1 rx-flow-hash udp4 sd".parse().unwrap());
        assert!(of_context.unwrap_err().to_string().starts_with("rx-flow-hash: is the device's"));
        let order = |text: &str| class.set_rule(&control, &text.parse().unwrap()).map(drop);
        let errors = [
            class.rss(&control).map(drop),
            class.set_rss(&control, &"equal 1".parse().unwrap()).map(drop),
            class.set_rss(&control, &"rx-flow-hash udp4 sd".parse().unwrap()).map(drop),
            class.rules(&control).map(drop),
            order("flow-type udp4 action 1"),
            order("flow-type udp4 action 1 loc 3"),
            order("delete 3"),
        ];
        // So it takes none of flows either.
        assert_eq!((class.flow_filters(&control), class.filters_settled()), (0, true));
        assert!(class.set_flow_filter(&control, 0, None).is_err());
        for error in errors {
            let error = error.unwrap_err().to_string();
            assert!(error.contains("not supported") && error.contains("driver can't do that"), "{error}");
        }
    })
    .unwrap();
}
