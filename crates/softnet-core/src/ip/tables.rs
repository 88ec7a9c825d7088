//! The forwarding tables of one moment, and how they follow the devices and the neighbours.
//!
//! Immutable once published. A writer (configuration, the owner of the slow path) makes a changed copy and publishes
//! that; a reader takes the snapshot once per batch.

use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use super::MacAddr;
use super::adjacency::{Adjacency, Kind};
use super::family::{Family, LongestMatch, NO_ROUTE};
use super::hooks::Hooks;
use super::iface::Iface;
use crate::fold::FoldKey;

/// Key of an IPv4 neighbour in [`Routing::hosts`].
#[inline(always)]
pub fn host_key(dev: u16, addr: u32) -> u64 {
    u64::from(dev) << 32 | u64::from(addr)
}

/// Key of an IPv6 neighbour there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostKey6 {
    addr: u128,
    dev: u16,
}

impl HostKey6 {
    /// Of neighbour `addr` on device `dev`.
    #[inline(always)]
    pub fn new(dev: u16, addr: Ipv6Addr) -> Self {
        HostKey6 { addr: addr.to_bits(), dev }
    }
}

impl Hash for HostKey6 {
    /// In words: what is derived puts a length and single bytes in.
    #[inline(always)]
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u128(self.addr);
        state.write_u64(self.dev.into());
    }
}

/// What is known of a neighbour: its device, address, and the MAC address that may be used, if one may.
pub type Neighbour = (u16, IpAddr, Option<MacAddr>);

/// The forwarding tables of one moment. A changed copy ([`Arc::make_mut`]) has new tables only of the family that changed.
#[derive(Clone)]
pub struct Tables {
    /// Of IPv4.
    pub v4: Arc<Routing<Ipv4Addr>>,
    /// Of IPv6.
    pub v6: Arc<Routing<Ipv6Addr>>,
    /// The devices, by index; `None` for one whose interface is not there.
    pub ifaces: Arc<[Option<Iface>]>,
    /// What stands in the hook slots.
    pub hooks: Hooks,
}

impl Tables {
    /// Tables without a route. `key` hashes neighbours, and must be random: strangers choose their addresses.
    pub fn new(key: FoldKey) -> Self {
        let (v4, v6) = (Arc::new(Routing::new(key)), Arc::new(Routing::new(key)));
        Tables { v4, v6, ifaces: Arc::default(), hooks: Hooks::default() }
    }

    /// Brings MTUs up to date after a device came or went, and forgets all neighbours of devices that are gone.
    pub fn set_ifaces(&mut self, ifaces: &[Option<Iface>]) {
        self.ifaces = ifaces.into();
        Arc::make_mut(&mut self.v4).set_ifaces(ifaces);
        Arc::make_mut(&mut self.v6).set_ifaces(ifaces);
    }

    /// Brings one device up to date: its interface is there, or (`None`) is not.
    pub fn set_iface(&mut self, dev: u16, iface: Option<Iface>) {
        let mut ifaces = self.ifaces.to_vec();
        ifaces.resize(ifaces.len().max(usize::from(dev) + 1), None);
        ifaces[usize::from(dev)] = iface;
        self.set_ifaces(&ifaces);
    }

    /// What `changes`, in the order in which they happened, come to: of each neighbour the last one, if that is not what
    /// the tables have already.
    pub fn neighbour_news(&self, changes: impl IntoIterator<Item = Neighbour>) -> Vec<Neighbour> {
        let last: HashMap<_, _> = changes.into_iter().map(|(dev, ip, mac)| ((dev, ip), mac)).collect();
        let news = last.into_iter().map(|((dev, ip), mac)| (dev, ip, mac));
        news.filter(|change| self.would_change(*change)).collect()
    }

    /// Whether [`set_neighbour`](Self::set_neighbour) would change anything.
    fn would_change(&self, (dev, ip, mac): Neighbour) -> bool {
        match ip {
            IpAddr::V4(ip) => self.v4.would_change(dev, ip, mac),
            IpAddr::V6(ip) => self.v6.would_change(dev, ip, mac),
        }
    }

    /// Notes that a neighbour is usable with this MAC address, or (`None`) that it must be asked for. Nothing changes for a
    /// device that is not there.
    pub fn set_neighbour(&mut self, (dev, ip, mac): Neighbour) {
        let Some(Some(iface)) = self.ifaces.get(usize::from(dev)) else { return };
        match ip {
            IpAddr::V4(ip) => Arc::make_mut(&mut self.v4).set_neighbour(iface, dev, ip, mac),
            IpAddr::V6(ip) => Arc::make_mut(&mut self.v6).set_neighbour(iface, dev, ip, mac),
        }
    }
}

/// The forwarding tables of one family.
pub struct Routing<A: Family> {
    /// Prefix → index into `next_hops`.
    pub fib: Arc<A::Fib>,
    /// What the FIB's leaves mean; entry 0 is [`Kind::NoRoute`].
    pub next_hops: Vec<Adjacency<A>>,
    /// Of each group of next hops its buckets: a flow's hash says in which one it is, and the
    /// bucket by which next hop it goes. Never empty, and none of them is [`Kind::Multipath`].
    pub groups: Vec<Arc<[u32]>>,
    /// Neighbours of connected networks that are usable now, by device and address. Looked up per packet, so that the hash is
    /// the fast one; of an IPv6 neighbour three multiplications.
    pub hosts: HashMap<A::HostKey, Adjacency<A>, FoldKey>,
}

impl<A: Family> Clone for Routing<A> {
    fn clone(&self) -> Self {
        let Routing { fib, next_hops, groups, hosts } = self;
        Routing {
            fib: fib.clone(),
            next_hops: next_hops.clone(),
            groups: groups.clone(),
            hosts: hosts.clone(),
        }
    }
}

impl<A: Family> Routing<A> {
    fn new(key: FoldKey) -> Self {
        Routing {
            fib: Arc::new(A::Fib::default()),
            next_hops: vec![Adjacency::special(Kind::NoRoute)],
            groups: Vec::new(),
            hosts: HashMap::with_hasher(key),
        }
    }

    /// The next hop with this index; one that does not exist means no route.
    #[inline(always)]
    pub fn next_hop(&self, index: u32) -> &Adjacency<A> {
        self.next_hops.get(index as usize).unwrap_or(A::NO_ROUTE)
    }

    /// What a look-up of `dst` that ended at next hop `index` means: of a neighbour on the link,
    /// its own next hop; of several next hops, that of the flow with this `hash`.
    #[inline(always)]
    pub(super) fn resolve(&self, index: u32, dst: A::Bits, hash: impl FnOnce() -> u32) -> &Adjacency<A> {
        let hop = self.next_hop(index);
        match hop.kind {
            // First, as it is the one that is asked for most.
            Kind::Rewrite => hop,
            Kind::Connected => self.hosts.get(&A::host_key(hop.dev, A::from_bits(dst))).unwrap_or(hop),
            Kind::Multipath => self.resolve_member(hop, dst, hash()),
            _ => hop,
        }
    }

    #[inline(never)]
    fn resolve_member(&self, hop: &Adjacency<A>, dst: A::Bits, hash: u32) -> &Adjacency<A> {
        let hop = self.member(hop, hash);
        match hop.kind {
            Kind::Connected => self.hosts.get(&A::host_key(hop.dev, A::from_bits(dst))).unwrap_or(hop),
            _ => hop,
        }
    }

    /// The next hop by which a flow with this hash goes, of those of `hop`.
    fn member(&self, hop: &Adjacency<A>, hash: u32) -> &Adjacency<A> {
        let buckets = self.groups.get(hop.group()).map_or(&[][..], |group| group);
        // By the hash's upper bits: its lower ones say by which queue it came.
        let bucket = ((u64::from(hash) * buckets.len() as u64) >> 32) as usize;
        self.next_hop(buckets.get(bucket).copied().unwrap_or(NO_ROUTE))
    }

    /// Whether `hop`, or one of those that it is, satisfies `is`.
    pub(super) fn any_hop(&self, hop: &Adjacency<A>, is: impl Fn(&Adjacency<A>) -> bool) -> bool {
        match (hop.kind, self.groups.get(hop.group())) {
            (Kind::Multipath, Some(group)) => group.iter().any(|member| is(self.next_hop(*member))),
            _ => is(hop),
        }
    }

    /// The next hop towards `dst`, connected ones resolved through the host table. Of several, the
    /// same one for all that is sent there.
    pub fn route(&self, dst: A) -> Adjacency<A> {
        self.route_flow(dst, || {
            let bits = dst.bits();
            let folded = (bits ^ bits >> 64) as u64;
            (folded.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32
        })
    }

    /// The same; of several next hops, that of the flow with this `hash`.
    pub fn route_flow(&self, dst: A, hash: impl FnOnce() -> u32) -> Adjacency<A> {
        let mut hop = self.next_hop(self.fib.longest_match(dst));
        if hop.kind == Kind::Multipath {
            hop = self.member(hop, hash());
        }
        match hop.kind {
            Kind::Connected => self.on_link(hop.dev, hop.mtu, dst),
            _ => *hop,
        }
    }

    /// Has index `index` mean `hop`, which is as its device and its neighbour are known to be.
    pub fn set_next_hop(&mut self, index: u32, mut hop: Adjacency<A>, ifaces: &[Option<Iface>]) {
        if let Some(Some(iface)) = ifaces.get(usize::from(hop.dev)).filter(|_| hop.is_reachable()) {
            hop.mtu = iface.mtu;
            if let (Kind::Resolve, Some(host)) =
                (hop.kind, self.hosts.get(&A::host_key(hop.dev, hop.gateway)))
            {
                hop = *host;
            }
        }
        let index = index as usize;
        if self.next_hops.len() <= index {
            self.next_hops.resize(index + 1, Adjacency::special(Kind::NoRoute));
        }
        self.next_hops[index] = hop;
    }

    /// Whether a packet that came from outside can't be from `addr`, since that is one of ours, or that of all on a link
    /// (RFC 1812 section 5.3.7; the kernel's `fib_validate_source`).
    #[inline]
    pub fn is_martian_source(&self, addr: A) -> bool {
        matches!(self.next_hop(self.fib.longest_match(addr)).kind, Kind::Local | Kind::Broadcast)
    }

    /// The next hop towards `neighbour`, which is one on the link of `dev`.
    pub fn on_link(&self, dev: u16, mtu: u16, neighbour: A) -> Adjacency<A> {
        let host = self.hosts.get(&A::host_key(dev, neighbour)).copied();
        host.unwrap_or(Adjacency::gateway(dev, mtu, neighbour))
    }

    fn set_ifaces(&mut self, ifaces: &[Option<Iface>]) {
        let iface = |dev: u16| ifaces.get(usize::from(dev)).and_then(Option::as_ref);
        for hop in self.next_hops.iter_mut().filter(|hop| hop.is_reachable()) {
            match iface(hop.dev) {
                Some(iface) => hop.mtu = iface.mtu,
                None if hop.kind == Kind::Rewrite => hop.kind = Kind::Resolve,
                None => {}
            }
        }
        self.hosts.retain(|_, hop| iface(hop.dev).is_some());
    }

    fn would_change(&self, dev: u16, ip: A, mac: Option<MacAddr>) -> bool {
        match (self.hosts.get(&A::host_key(dev, ip)), mac) {
            (Some(host), Some(mac)) => host.rewrite[..6] != mac,
            (None, None) => {
                let uses =
                    |hop: &Adjacency<A>| hop.kind == Kind::Rewrite && hop.dev == dev && hop.gateway == ip;
                self.next_hops.iter().any(uses)
            }
            _ => true,
        }
    }

    fn set_neighbour(&mut self, iface: &Iface, dev: u16, ip: A, mac: Option<MacAddr>) {
        for hop in &mut self.next_hops {
            if hop.dev == dev && hop.gateway == ip && matches!(hop.kind, Kind::Rewrite | Kind::Resolve) {
                match mac {
                    Some(mac) => *hop = hop.resolved(iface.mac, mac),
                    None => hop.kind = Kind::Resolve,
                }
            }
        }
        match mac {
            Some(mac) => {
                let hop = Adjacency::gateway(dev, iface.mtu, ip).resolved(iface.mac, mac);
                self.hosts.insert(A::host_key(dev, ip), hop);
            }
            None => {
                self.hosts.remove(&A::host_key(dev, ip));
            }
        }
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use std::hash::BuildHasher;

    use super::*;
    use crate::ip::prefix::Prefix;
    use crate::ip::source::RpFilter;

    const A: MacAddr = [2, 0, 0, 0, 0, 0xa];
    const B: MacAddr = [2, 0, 0, 0, 0, 0xb];

    const KEYS: [FoldKey; 2] = [
        FoldKey::new([0x243f_6a88_85a3_08d3, 0x1319_8a2e_0370_7344]),
        FoldKey::new([0xa409_3822_299f_31d0, 0xd82e_fa98_ec4e_6c89]),
    ];

    /// By one multiplication for each word with a factor that is known.
    fn known(words: &[u64]) -> u64 {
        words.iter().fold(0, |state, word| {
            let product = u128::from(state ^ word) * 0x9e37_79b9_7f4a_7c15;
            (product >> 64) as u64 ^ product as u64
        })
    }

    /// What a table of 2,048 places looks at first: where a key belongs, and the seven bits that it keeps beside it.
    fn place(hash: u64) -> (u64, u64) {
        (hash % 2048, hash >> 57)
    }

    /// The most of `hashes` that would be in one place, tags apart.
    fn crowd(hashes: impl Iterator<Item = u64>) -> usize {
        let mut places = HashMap::new();
        hashes.for_each(|hash| *places.entry(place(hash).0).or_insert(0) += 1);
        places.into_values().max().unwrap()
    }

    /// A thousand hosts that took addresses on a link which all belong in one place by a hash without a secret, are where
    /// chance has them.
    #[test]
    fn neighbours_that_collide_cannot_be_chosen() {
        let target = place(known(&[host_key(1, 0x0a00_0001)])).0;
        let v4: Vec<u64> = (0x0a00_0000..0x0b00_0000)
            .map(|addr| host_key(1, addr))
            .filter(|key| place(known(&[*key])).0 == target)
            .take(1000)
            .collect();
        assert_eq!((v4.len(), crowd(v4.iter().map(|key| known(&[*key])))), (1000, 1000));
        const NET: u64 = 0x2001_0db8_0000_0001;
        let v6: Vec<u64> = (0..).filter(|low| place(known(&[NET, *low, 1])).0 == target).take(1000).collect();
        let mut orders = Vec::new();
        for key in KEYS {
            let hashes: Vec<u64> = v4.iter().map(|host| key.hash_one(host)).collect();
            assert!(crowd(hashes.iter().copied()) < 8);
            let host =
                |low: &u64| HostKey6::new(1, Ipv6Addr::from_bits(u128::from(NET) << 64 | u128::from(*low)));
            let hashes6: Vec<u64> = v6.iter().map(|low| key.hash_one(host(low))).collect();
            assert!(crowd(hashes6.iter().copied()) < 8);
            orders.push((hashes, hashes6));
        }
        assert!(orders[0].0 != orders[1].0 && orders[0].1 != orders[1].1, "each stack has its own");
    }

    /// Words, and not bytes: what is written is what is multiplied.
    #[test]
    fn keys_are_hashed_in_words() {
        #[derive(Default)]
        struct Count(usize);
        impl Hasher for Count {
            fn write(&mut self, bytes: &[u8]) {
                panic!("{} single bytes", bytes.len());
            }
            fn write_u64(&mut self, _: u64) {
                self.0 += 1;
            }
            fn write_u128(&mut self, _: u128) {
                self.0 += 2;
            }
            fn finish(&self) -> u64 {
                0
            }
        }
        let words = |key: &dyn Fn(&mut Count)| {
            let mut count = Count::default();
            key(&mut count);
            count.0
        };
        assert_eq!(words(&|to| Ipv4Addr::host_key(1, Ipv4Addr::LOCALHOST).hash(to)), 1);
        assert_eq!(words(&|to| Ipv6Addr::host_key(1, Ipv6Addr::LOCALHOST).hash(to)), 3);
    }

    /// A connected network for the link of device 0.
    fn connect<F: Family>(routing: &mut Routing<F>, net: Prefix<F>) {
        routing.next_hops.push(Adjacency::connected(0, 0));
        routing.fib = Arc::new(F::Fib::build_in(&[(net, 1)], &crate::memory::Heap).unwrap());
    }

    fn tables() -> Tables {
        let (own, own6): (Ipv4Addr, Ipv6Addr) = (Ipv4Addr::new(10, 0, 0, 1), "fd00::1".parse().unwrap());
        let (net, net6) = (Prefix::containing(own, 24).unwrap(), Prefix::containing(own6, 64).unwrap());
        let mut tables = Tables::new(FoldKey::new([1, 2]));
        connect(Arc::make_mut(&mut tables.v4), net);
        connect(Arc::make_mut(&mut tables.v6), net6);
        tables.set_ifaces(&[Some(Iface {
            mac: A,
            mtu: 1500,
            addresses: vec![(own, net)],
            addresses6: vec![(own6, net6)],
            send_redirects: true,
            rp_filter: RpFilter::Off,
        })]);
        tables
    }

    /// A neighbour that is withdrawn and told again in one batch is what it was.
    #[test]
    fn the_last_word_on_a_neighbour_counts() {
        let mut tables = tables();
        let [one, two]: [IpAddr; 2] = ["10.0.0.2", "fd00::2"].map(|ip| ip.parse().unwrap());
        let news = tables.neighbour_news([(0, one, Some(A)), (0, one, None), (0, two, None)]);
        assert_eq!(news, [], "nothing is what there was");
        let news = tables.neighbour_news([(0, one, None), (0, one, Some(A))]);
        assert_eq!(news, [(0, one, Some(A))]);
        tables.set_neighbour((0, one, Some(A)));
        assert_eq!(tables.neighbour_news([(0, one, None), (0, one, Some(A))]), []);
        assert_eq!(tables.neighbour_news([(0, one, Some(A)), (0, one, Some(B))]), [(0, one, Some(B))]);
        assert_eq!(tables.neighbour_news([(0, one, Some(A)), (0, one, None)]), [(0, one, None)]);
    }

    /// What changed of one family costs no copy of the other's tables.
    #[test]
    fn a_change_copies_the_tables_of_its_family_only() {
        let before = tables();
        let mut after = before.clone();
        after.set_neighbour((0, "10.0.0.2".parse().unwrap(), Some(A)));
        assert!(Arc::ptr_eq(&before.v6, &after.v6) && !Arc::ptr_eq(&before.v4, &after.v4));
        assert!(Arc::ptr_eq(&before.v4.fib, &after.v4.fib));
        assert_eq!((before.v4.hosts.len(), after.v4.hosts.len()), (0, 1));
    }

    /// Flows are spread over the next hops of a group, each stays with its own, and a neighbour
    /// that is known is used at once.
    #[test]
    fn flows_go_by_one_of_several_next_hops() {
        let mut tables = tables();
        let ifaces = tables.ifaces.clone();
        let gateways = [2, 3].map(|n| Ipv4Addr::new(10, 0, 0, n));
        tables.set_neighbour((0, gateways[0].into(), Some(B)));
        let v4 = Arc::make_mut(&mut tables.v4);
        v4.set_next_hop(2, Adjacency::gateway(0, 0, gateways[0]), &ifaces);
        v4.set_next_hop(3, Adjacency::gateway(0, 0, gateways[1]), &ifaces);
        v4.set_next_hop(4, Adjacency::multipath(0), &ifaces);
        v4.groups = vec![Arc::from([2, 2, 2, 3])];
        let far: Prefix = "192.0.2.0/24".parse().unwrap();
        v4.fib = Arc::new(crate::ip::v4::fib::Fib::build(&[(far, 4)]).unwrap());
        let of = |hash: u32| {
            let hop = v4.route_flow(far.addr(), || hash);
            assert_eq!(v4.resolve(4, far.addr().to_bits(), || hash), &hop);
            hop
        };
        let all = [0, 0x3fff_ffff, 0x4000_0000, 0xbfff_ffff, 0xc000_0000, u32::MAX];
        assert_eq!(all.map(|hash| of(hash).gateway), [0, 0, 0, 0, 1, 1].map(|i: usize| gateways[i]));
        assert_eq!((of(0).kind, of(u32::MAX).kind, of(0).mtu), (Kind::Rewrite, Kind::Resolve, 1500));
        assert_eq!(v4.route(far.addr()), v4.route(far.addr()));
        let (strict, loose) = (RpFilter::Strict, RpFilter::Loose);
        assert!(strict.allows(v4, 0, far.addr()) && !strict.allows(v4, 1, far.addr()));
        assert!(loose.allows(v4, 1, far.addr()));
        // A group that does not exist is no route.
        v4.groups.clear();
        assert_eq!(v4.route(far.addr()).kind, Kind::NoRoute);
    }

    /// A device brings its MTU, and takes its neighbours with it; there is none where there is no device.
    #[test]
    fn routes_and_neighbours_follow_the_devices() {
        let mut tables = tables();
        assert_eq!(tables.v4.next_hops[1].mtu, 1500);
        let [one, two]: [IpAddr; 2] = ["10.0.0.2", "fd00::2"].map(|ip| ip.parse().unwrap());
        let gateway = Adjacency::gateway(0, 1500, Ipv4Addr::new(10, 0, 0, 2));
        Arc::make_mut(&mut tables.v4).next_hops.push(gateway);
        for neighbour in [one, two] {
            tables.set_neighbour((0, neighbour, Some(B)));
            tables.set_neighbour((1, neighbour, Some(B)));
        }
        assert_eq!(tables.v4.next_hops[2].rewrite[..6], B);
        assert_eq!((tables.v4.hosts.len(), tables.v6.hosts.len()), (1, 1));
        tables.set_ifaces(&[None]);
        assert_eq!(
            (tables.v4.next_hops[1].kind, tables.v4.next_hops[2].kind),
            (Kind::Connected, Kind::Resolve)
        );
        assert_eq!((tables.v4.hosts.len(), tables.v6.hosts.len()), (0, 0));
    }
}
