use softnet_core::skb::{HeapMemory, Region};
use softnet_dev::OpenDevice;
use softnet_dev::mem::{PairConfig, pair};

use super::testing::Test;
use super::*;
use crate::config::{Config, DeviceConfig, StackConfig};

const DEVICE: &str = "[[device]]\nname = \"eth1\"\naddresses = [\"10.0.0.1/24\"]\n";

fn parse(keys: &str) -> Result<DeviceConfig, String> {
    let config = Config::parse(&format!("{DEVICE}{keys}"), "r.toml", &[0]);
    config.map(|mut config| config.devices.remove(0)).map_err(|errors| errors.to_string())
}

#[test]
fn each_driver_reads_its_own_keys() {
    let device = parse("driver = \"test\"\nloops = true\nlanes = 3\nforce = true").unwrap();
    assert_eq!(device.driver, Test { lanes: 3, loops: true }.into());
    assert_eq!((device.driver.name(), device.driver.frames(), device.force), ("test", 300, true));
    assert_eq!(parse("driver = \"test\"").unwrap().driver, Test { lanes: 1, loops: false }.into());
    let xdp = parse("ring = 128").unwrap().driver;
    assert_eq!(xdp, Xdp { ring: 128, ..Xdp::default() }.into());
    assert_eq!(parse("driver = \"xdp\"\nring = 128").unwrap().driver, xdp);
    assert!(xdp != Test { lanes: 1, loops: false }.into() && xdp != Own.into());
}

#[test]
fn each_driver_refuses_the_keys_of_others_by_name() {
    for (keys, told) in [
        (
            "driver = \"test\"\nmode = \"skb\"",
            "5:1: device: \"mode\" is a key of the driver \"xdp\", not of \"test\"",
        ),
        ("loops = true", "4:1: device: \"loops\" is a key of the driver \"test\", not of \"xdp\""),
        ("driver = \"test\"\nlanes = 5", "5:9: device.lanes: expected a number from 1 to 4, found 5"),
        ("driver = \"test\"\nlanes = -5", "5:9: device.lanes: expected a number from 1 to 4, found -5"),
        ("driver = \"test\"\nlane = 1", "5:1: device: unknown key \"lane\"; did you mean \"lanes\"?"),
        ("rin = 1", "4:1: device: unknown key \"rin\"; did you mean \"ring\"?"),
        // Its keys are any driver's, as far as can be told.
        (
            "driver = \"tset\"\nlanes = 9\nmode = \"skb\"",
            "4:10: device.driver: expected \"xdp\" or \"vlan\" or \"tap\" or \"packet\" or \"test\", found \"tset\"",
        ),
    ] {
        let errors = parse(keys).unwrap_err();
        assert_eq!(errors.lines().next(), Some(format!("r.toml:{told}").as_str()), "{keys}");
        assert_eq!(errors.matches("r.toml:").count(), 1, "{errors}");
    }
}

#[test]
fn what_a_driver_is_told_can_be_changed_of_a_copy() {
    let one = DeviceConfig::new("eth1");
    let mut other = one.clone();
    assert!(other.driver.get_mut::<Own>().is_none());
    other.driver.get_mut::<Xdp>().unwrap().ring = 256;
    assert_eq!(one.driver.get(), Some(&Xdp::default()));
    assert_eq!(other.driver.get(), Some(&Xdp { ring: 256, ..Xdp::default() }));
}

/// Rings take memory, as much as their drivers say.
#[test]
fn memory_is_for_all_drivers() {
    let device = |name: &str, n: u8, driver: DeviceDriver| DeviceConfig {
        driver,
        addresses: vec![format!("10.0.{n}.1/24").parse().unwrap()],
        ..DeviceConfig::new(name)
    };
    let xdp = || Xdp { ring: 256, ..Xdp::default() }.into();
    let mut devices = vec![device("a", 1, xdp()), device("b", 2, xdp()), device("c", 3, Own.into())];
    let stack = StackConfig { frames: 1024, ..StackConfig::default() };
    let check = |devices: &[DeviceConfig]| {
        let config = Config { stack: stack.clone(), devices: devices.to_vec(), ..Config::default() };
        config.check(&[0]).map_err(|errors| errors.to_string())
    };
    assert_eq!(check(&devices), Ok(()));
    devices.push(device("d", 4, Test { lanes: 1, loops: false }.into()));
    assert!(check(&devices).unwrap_err().contains("stack.frames: expected at least 1124 "));
}

#[test]
fn each_device_is_opened_by_its_driver_or_by_the_programs_opener() {
    let region = Region::new(Box::new(HeapMemory::new(Region::bytes(64, 64))), 64, 64).unwrap();
    let mut ctx = SoftnetData::new(region.clone(), Default::default());
    let drivers: [DeviceDriver; 4] = [
        Own.into(),
        Test { lanes: 1, loops: false }.into(),
        Own.into(),
        Test { lanes: 2, loops: true }.into(),
    ];
    struct Named(&'static str, bool);
    impl Opener for Named {
        fn open(
            &mut self,
            device: &OpenRequest<'_>,
            ctx: &mut SoftnetData,
        ) -> Result<OpenDevice, DeviceError> {
            let names = [format!("{} {}", self.0, device.name), String::new()];
            let [near, _] =
                pair(ctx.region(), [device.dev, 9], &PairConfig { names, ..PairConfig::default() })?;
            Ok(near)
        }

        fn on_interface(&self, _: u16) -> bool {
            self.1
        }
    }
    let openers = Openers::new(&region, &drivers.each_ref()).unwrap();
    let mut openers = openers.with(2, Box::new(Named("own", false))).with(3, Box::new(Named("other", true)));
    let mut open = |dev: u16| {
        let config = DeviceConfig {
            driver: drivers[usize::from(dev)].clone(),
            ..DeviceConfig::new(format!("d{dev}"))
        };
        let opened = openers.open(&config.request(dev), &mut ctx);
        opened.map(|open| open.device.info().name.clone()).map_err(|error| error.to_string())
    };
    let refused = |dev| Err(format!("d{dev}: expected an opener of the program's own"));
    assert_eq!(
        [0, 1, 2, 3].map(&mut open),
        [refused(0), refused(1), Ok("own d2".into()), Ok("other d3".into())]
    );
    assert_eq!([0, 1, 2, 3, 4].map(|dev| openers.on_interface(dev)), [false, false, false, true, false]);
}

/// A driver of a program's own that has another's name.
#[derive(Debug)]
struct Namesake;

impl Driver for Namesake {
    fn name(&self) -> &'static str {
        Xdp::default().name()
    }

    fn frames(&self) -> u64 {
        0
    }

    fn check(&self, _: &mut dyn FnMut(&'static str, String)) {}

    fn opener(&self, _: &Arc<Region>, devices: usize) -> Result<Box<dyn Opener>, DeviceError> {
        let refuse = move |_: &OpenRequest<'_>, _: &mut SoftnetData| -> Result<_, DeviceError> {
            Err(format!("the namesake's, of {devices}").into())
        };
        Ok(Box::new(refuse))
    }

    fn is_equal(&self, _: &dyn Any) -> bool {
        false
    }
}

#[test]
fn a_driver_opens_the_devices_of_its_type_alone() {
    let region = Region::new(Box::new(HeapMemory::new(Region::bytes(1024, 1024))), 1024, 1024).unwrap();
    let (own, namesake) = (DeviceDriver::from(Own), DeviceDriver::from(Namesake));
    let test = DeviceDriver::from(Test { lanes: 1, loops: false });
    let mut openers = Openers::new(&region, &[&namesake, &test, &namesake, &own]).unwrap();
    assert_eq!((openers.all.len(), &openers.of), (3, &vec![0, 1, 0, 2]));
    let mut ctx = SoftnetData::new(region, Default::default());
    let request =
        OpenRequest { dev: 2, name: "x", addresses: vec![], force: false, driver: &namesake, vlans: vec![] };
    let error = openers.open(&request, &mut ctx).err().map(|error| error.to_string());
    assert_eq!(error.as_deref(), Some("the namesake's, of 2"));
    assert!(namesake.name() == "xdp" && namesake.kind() != DeviceDriver::from(Xdp::default()).kind());
}

#[test]
fn taps_and_packet_sockets_have_keys_of_their_own() {
    let all = "driver = \"tap\"\nqueues = 4\nmac = \"02:00:00:00:00:09\"\nmtu = 9000\noffloads = true\nforce = true";
    let tap = Tap { queues: 4, mac: Some([2, 0, 0, 0, 0, 9]), mtu: Some(9000), offloads: true };
    // Each queue has frames for the longest packet.
    assert_eq!(tap.frames(), 4 * 33);
    assert_eq!(parse(all).unwrap().driver, tap.into());
    assert_eq!(parse("driver = \"tap\"").unwrap().driver, Tap::default().into());
    let packet = Packet { queues: 2, ring: 100, offloads: true };
    let keys = "driver = \"packet\"\nqueues = 2\nring = 100\noffloads = true";
    assert_eq!(parse(keys).unwrap().driver, packet.into());
    for (keys, told) in [
        ("driver = \"tap\"\nqueues = 65", "5:10: device.queues: expected a number from 1 to 64, found 65"),
        ("driver = \"tap\"\nmtu = 67", "5:7: device.mtu: expected a number from 68 to 65521, found 67"),
        (
            "driver = \"tap\"\nmac = \"02:00\"",
            "5:7: device.mac: expected a MAC address, such as \"02:00:00:00:00:01\", found \"02:00\"",
        ),
        (
            "driver = \"tap\"\nmac = \"01:00:5e:00:00:01\"",
            "5:7: device.mac: expected the MAC address of a host: no group's, and not zero",
        ),
        (
            "driver = \"packet\"\nmtu = 1500",
            "5:1: device: \"mtu\" is a key of the driver \"vlan\", not of \"packet\"",
        ),
        (
            "driver = \"packet\"\nring = 40000",
            "5:8: device.ring: expected a number from 64 to 32768, found 40000",
        ),
        ("queues = 2", "4:1: device: \"queues\" is a key of the driver \"tap\", not of \"xdp\""),
        ("driver = \"tap\"\noffloads = 1", "5:12: device.offloads: expected true or false, found 1"),
    ] {
        let errors = parse(keys).unwrap_err();
        assert_eq!(errors.lines().next(), Some(format!("r.toml:{told}").as_str()), "{keys}");
        assert_eq!(errors.matches("r.toml:").count(), 1, "{errors}");
    }
}
