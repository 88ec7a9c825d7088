//! Routing daemons beside softnet, on the same interfaces: bird and FRR. What they put into the
//! kernel's table softnet forwards by.

use std::fmt::Write as _;
use std::fs::Permissions;
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use softnet_dev::netns::NetNs;

use super::follow::{asking, assert_equal, followed, follows, give, ip, reaches};
use super::world::{World, host, interface, kernel, until};

/// A daemon that a test started. It ends with this.
struct Daemon(Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Whether bird is there; says so if not.
fn has_bird() -> bool {
    let there = Command::new("bird").arg("--version").output().is_ok();
    if !there {
        eprintln!("skipped: bird is not installed");
    }
    there
}

/// Starts bird in `ns` with `protocols`, its files in `directory`. Its routes go to the kernel.
fn bird(ns: &NetNs, directory: &Path, id: Ipv4Addr, protocols: &str) -> Daemon {
    let [conf, socket] = ["conf", "ctl"].map(|end| directory.join(format!("{id}.{end}")));
    let text = format!(
        "router id {id};\nprotocol device {{ scan time 1; }}\n\
         protocol kernel {{ ipv4 {{ export all; import none; }}; }}\n{protocols}\n"
    );
    std::fs::write(&conf, text).unwrap();
    let mut command = Command::new("bird");
    command.arg("-f").arg("-c").arg(conf).arg("-s").arg(socket);
    Daemon(ns.run(|| command.spawn().unwrap()).unwrap())
}

/// bird, if it is there: a router beside softnet, on the same interfaces, and one behind it, which
/// speak OSPF. What bird in the middle puts into the kernel's table softnet forwards by.
#[test]
fn a_routing_daemon_beside_softnet_works() {
    let Some(mut world) = World::new(2) else { return };
    if !has_bird() {
        return;
    }
    let given = give(&world, 1, "192.0.2.1/32");
    world.start_with(follows(world.config()));
    let directory = tempfile::tempdir().unwrap();
    let ospf = |interface: &str| {
        format!(
            "protocol direct {{ ipv4; interface \"lo\"; }}\n\
             protocol ospf v2 {{ ipv4 {{ import all; export all; }};\n\
             area 0 {{ interface \"{interface}\" {{ hello 1; dead 4; type ptp; }}; }}; }}"
        )
    };
    let birds = [
        bird(&world.middle, directory.path(), kernel(1), &ospf(&interface(1))),
        bird(&world.hosts[1], directory.path(), host(1), &ospf("eth0")),
    ];
    until("an echo by a route that OSPF brought", || reaches(&world, 0, "192.0.2.1"));
    assert_equal(&world);
    // A network more, and one less.
    let second = give(&world, 1, "192.0.2.2/32");
    until("an echo by another one", || reaches(&world, 0, "192.0.2.2"));
    ip(&world.hosts[1], "addr del 192.0.2.1/32 dev lo");
    until("it is gone", || !followed(&world).iter().any(|(to, _, _)| to == "192.0.2.1/32"));
    assert_equal(&world);
    drop((birds, second, given));
    world.end();
}

/// The same with BGP, and a table: as much as a small provider has. When the session ends, they go.
#[test]
fn a_table_comes_by_bgp_and_goes() {
    let Some(mut world) = World::new(2) else { return };
    if !has_bird() {
        return;
    }
    const ROUTES: u32 = 100_000;
    let given = give(&world, 1, "192.0.2.1/32");
    world.start_with(follows(world.config()));
    let directory = tempfile::tempdir().unwrap();
    // bird speaks from the address that the kernel has on the wire.
    let own = IpAddr::from(kernel(1));
    let bgp = |own: IpAddr, number: u32, peer: IpAddr, of_peer: u32, policy: &str| {
        format!(
            "protocol bgp {{ local {own} as {number}; neighbor {peer} as {of_peer}; connect retry time 1;\n\
             connect delay time 1; error wait time 1, 2; ipv4 {{ {policy} }}; }}\n"
        )
    };
    let mut table = String::from("protocol static { ipv4;\n route 192.0.2.0/24 blackhole;\n");
    for n in 0..ROUTES {
        let to = Ipv4Addr::from((20 << 24) + (n << 8));
        writeln!(table, " route {to}/24 blackhole;").unwrap();
    }
    table.push_str("}\n");
    let peer = IpAddr::from(host(1));
    let middle = bird(
        &world.middle,
        directory.path(),
        kernel(1),
        &bgp(own, 65_001, peer, 65_002, "import all; export none;"),
    );
    // It says what it has, and has none of it in its own kernel.
    let behind = {
        let conf = bgp(peer, 65_002, own, 65_001, "import none; export all; next hop self;");
        let [file, socket] = ["behind.conf", "behind.ctl"].map(|name| directory.path().join(name));
        let text = format!("router id {};\nprotocol device {{ scan time 1; }}\n{table}{conf}", host(1));
        std::fs::write(&file, text).unwrap();
        let mut command = Command::new("bird");
        command.arg("-f").arg("-c").arg(file).arg("-s").arg(socket);
        Daemon(world.hosts[1].run(|| command.spawn().unwrap()).unwrap())
    };
    until("the table", || world.view().stats().routes > u64::from(ROUTES));
    until("an echo by a route that BGP brought", || reaches(&world, 0, "192.0.2.1"));
    assert_equal(&world);
    let follow = world.view().stats().follow.unwrap();
    assert_eq!((follow.fib_refused, follow.errors), (0, 0));
    drop(behind);
    until("the table is gone", || world.view().stats().routes < 100);
    assert_equal(&world);
    drop((middle, given));
    world.end();
}

/// Where Debian's package of FRR puts its daemons.
const FRR: &str = "/usr/lib/frr";

/// Whether FRR is there; says so if not.
pub(crate) fn has_frr() -> bool {
    let there = Path::new(FRR).join("zebra").exists();
    if !there {
        eprintln!("skipped: FRR is not installed");
    }
    there
}

/// FRR in one namespace: zebra, and a daemon for a protocol.
pub(crate) struct Frr {
    /// That of the protocol ends first.
    protocol: Option<Daemon>,
    _zebra: Daemon,
    name: &'static str,
    directory: PathBuf,
}

impl Frr {
    /// Starts both in `ns`, with files of their own in `directory`, to which FRR's user gets.
    fn start(ns: &NetNs, directory: PathBuf, name: &'static str, conf: &str) -> Frr {
        Self::start_with(ns, directory, (name, conf), &[], "")
    }

    /// The same with more options for zebra, and a configuration.
    pub(crate) fn start_with(
        ns: &NetNs,
        directory: PathBuf,
        (name, conf): (&'static str, &str),
        options: &[&str],
        zebra_conf: &str,
    ) -> Frr {
        std::fs::create_dir(&directory).unwrap();
        std::fs::set_permissions(directory.parent().unwrap(), Permissions::from_mode(0o755)).unwrap();
        assert!(Command::new("chown").arg("frr").arg(&directory).status().unwrap().success());
        std::fs::write(directory.join("zebra.conf"), zebra_conf).unwrap();
        std::fs::write(directory.join(format!("{name}.conf")), conf).unwrap();
        let zebra = Self::daemon(ns, &directory, "zebra", options);
        until("zebra", || directory.join("zserv.api").exists());
        let protocol = Some(Self::daemon(ns, &directory, name, &[]));
        Frr { protocol, _zebra: zebra, name, directory }
    }

    /// Has zebra take these lines of configuration.
    pub(crate) fn configure(&self, lines: &[String]) {
        let mut vtysh = Command::new("vtysh");
        vtysh.arg("--vty_socket").arg(&self.directory).args(["-c", "configure terminal"]);
        lines.iter().for_each(|line| {
            vtysh.args(["-c", line]);
        });
        let output = vtysh.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    }

    fn daemon(ns: &NetNs, directory: &Path, name: &str, options: &[&str]) -> Daemon {
        let mut command = Command::new(Path::new(FRR).join(name));
        command
            .arg("-f")
            .arg(directory.join(format!("{name}.conf")))
            .arg("-z")
            .arg(directory.join("zserv.api"));
        command.arg("-i").arg(directory.join(format!("{name}.pid"))).arg("--vty_socket").arg(directory);
        command.args(options);
        command.args(["--log", "stdout", "--log-level", "warnings"]).stdout(Stdio::null());
        Daemon(ns.run(|| command.spawn().unwrap()).unwrap())
    }

    /// Ends the protocol's daemon, without a word to its peers.
    fn kill(&mut self) {
        self.protocol = None;
    }

    fn again(&mut self, ns: &NetNs) {
        self.protocol = Some(Self::daemon(ns, &self.directory, self.name, &[]));
    }
}

/// FRR, if it is there, with OSPF. It gives its routes as next-hop objects.
#[test]
fn frr_brings_routes_by_ospf() {
    let Some(mut world) = World::new(2) else { return };
    if !has_frr() {
        return;
    }
    let given = give(&world, 1, "192.0.2.1/32");
    world.start_with(follows(world.config()));
    let directory = tempfile::tempdir().unwrap();
    let conf = |id: Ipv4Addr, interface: &str| {
        format!(
            "interface {interface}\n ip ospf area 0\n ip ospf network point-to-point\n\
             ip ospf hello-interval 1\n ip ospf dead-interval 4\ninterface lo\n ip ospf area 0\n\
             router ospf\n ospf router-id {id}\n timers throttle spf 10 100 1000\n"
        )
    };
    let start =
        |ns: &NetNs, name: &str, conf: &str| Frr::start(ns, directory.path().join(name), "ospfd", conf);
    let middle = start(&world.middle, "middle", &conf(kernel(1), &interface(1)));
    let behind = start(&world.hosts[1], "behind", &conf(host(1), "eth0"));
    until("an echo by a route that OSPF brought", || reaches(&world, 0, "192.0.2.1"));
    assert_equal(&world);
    // A network more, and one less.
    let second = give(&world, 1, "192.0.2.2/32");
    until("an echo by another one", || reaches(&world, 0, "192.0.2.2"));
    ip(&world.hosts[1], "addr del 192.0.2.1/32 dev lo");
    until("it is gone", || !followed(&world).iter().any(|(to, _, _)| to == "192.0.2.1/32"));
    assert_equal(&world);
    drop((behind, middle, second, given));
    world.end();
}

/// The same with BGP. Its session ends and comes again, and with it 10,000 routes, while packets
/// pass by a route that stays.
#[test]
fn frr_brings_a_table_by_bgp() {
    let Some(mut world) = World::new(2) else { return };
    if !has_frr() {
        return;
    }
    const ROUTES: u32 = 10_000;
    let given = [give(&world, 1, "192.0.2.1/32"), give(&world, 1, "198.51.100.1/32")];
    world.start_with(follows(world.config()));
    ip(&world.middle, &format!("route add 192.0.2.0/24 via {} dev {}", host(1), interface(1)));
    let directory = tempfile::tempdir().unwrap();
    let conf = |(own, number): (Ipv4Addr, u32), (peer, of_peer): (Ipv4Addr, u32)| {
        format!(
            "router bgp {number}\n bgp router-id {own}\n no bgp ebgp-requires-policy\n\
             no bgp network import-check\n neighbor {peer} remote-as {of_peer}\n\
             neighbor {peer} timers connect 1\n neighbor {peer} advertisement-interval 0\n"
        )
    };
    let (own, peer) = ((kernel(1), 65_001), (host(1), 65_002));
    let mut table = conf(peer, own);
    table.push_str(" address-family ipv4 unicast\n  network 198.51.100.0/24\n");
    for n in 0..ROUTES {
        writeln!(table, "  network {}/24", Ipv4Addr::from((20 << 24) + (n << 8))).unwrap();
    }
    let start =
        |ns: &NetNs, name: &str, conf: &str| Frr::start(ns, directory.path().join(name), "bgpd", conf);
    let middle = start(&world.middle, "middle", &conf(own, peer));
    let mut behind = start(&world.hosts[1], "behind", &table);
    let all = || world.view().stats().routes > u64::from(ROUTES);
    until("the table", all);
    until("an echo by a route that BGP brought", || reaches(&world, 0, "198.51.100.1"));
    until("an echo by a route that stays", || reaches(&world, 0, "192.0.2.1"));
    assert_equal(&world);
    let (asked, answered) = asking(&world, "192.0.2.1", || {
        for _ in 0..2 {
            behind.kill();
            until("the table is gone", || world.view().stats().routes < 100);
            behind.again(&world.hosts[1]);
            until("the table again", all);
        }
    });
    assert!(asked > 100, "{asked}");
    assert_eq!(asked, answered, "{:?}", world.view().drops());
    assert_equal(&world);
    let follow = world.view().stats().follow.unwrap();
    assert_eq!((follow.fib_refused, follow.errors), (0, 0));
    drop((behind, middle, given));
    world.end();
}
