use softnet_core::SoftnetData;
use softnet_core::steer::policy::Place;
use softnet_dev::OpenDevice;
use softnet_dev::mem::{PairConfig, pair};

use super::*;
use crate::assembly::Assembly;
use crate::config::{Config, DeviceConfig, SteeringMode};
use crate::control::{SetSteering, Target};
use crate::driver::OpenRequest;

/// A stack of two workers with one device.
fn assembly(steering: SteeringMode) -> Assembly {
    let device =
        DeviceConfig { steering, addresses: vec!["10.0.0.1/24".parse().unwrap()], ..DeviceConfig::new("d") };
    let mut config = Config { devices: vec![device], ..Config::default() };
    config.stack.workers = vec![0, 1];
    let opener = |_: &OpenRequest<'_>, ctx: &mut SoftnetData| -> Result<OpenDevice, String> {
        let config = PairConfig { macs: [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 9]], ..PairConfig::default() };
        let [near, far] = pair(ctx.region(), [0, 9], &config).map_err(|error| error.to_string())?;
        far.rx.into_iter().for_each(|rx| rx.close(ctx));
        far.tx.into_iter().for_each(|tx| tx.close(ctx));
        Ok(near)
    };
    Assembly::new(config, vec![], |_| Ok(opener)).unwrap()
}

/// Two cores that share a cache.
fn auto() -> Auto {
    let places = |cpu| Place { cpu, core: cpu, llc: 0, node: 0 };
    let machine = Machine { workers: [0, 1].map(places).into(), wake_ns: 1000.0 };
    Auto { machine: Some(machine), ..Auto::default() }
}

/// An interval in which `instance` brought packets that cost 150 ns to collect, and 250 ns then.
fn interval(auto: &mut Auto, shared: &StackInner, now: &mut u64, kpackets: u64) {
    let instance = &shared.napis()[0];
    instance.napi.stats.packets.add(kpackets * 1000);
    instance.napi.stats.polls.add(kpackets * 1000 / 64);
    match instance.steering.plan() {
        Plan::None => instance.samples.add(1000, 150_000, 250_000),
        _ => {
            instance.samples.add(1000, 150_000, 25_000);
            instance.samples.add_steered(1000, 250_000);
        }
    }
    *now += INTERVAL;
    let mut ctx = SoftnetData::new(shared.region.clone(), shared.caches[0]);
    auto.run(shared, &mut ctx, *now);
    ctx.drain();
}

#[test]
fn a_busy_queue_is_handed_off_and_a_calm_one_comes_back() {
    let mut assembly = assembly(SteeringMode::Auto);
    let workers = std::mem::take(&mut assembly.workers);
    std::thread::scope(|scope| {
        // They give up the instance when its plan is changed.
        workers.into_iter().for_each(|worker| _ = scope.spawn(|| worker.run()));
        let _stop = Stop(&assembly.shared);
        busy_and_calm(&assembly.shared);
    });
}

/// Stops the workers, also if a test fails: its scope waits for them.
struct Stop<'a>(&'a StackInner);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.workers.iter().for_each(|worker| worker.stop());
    }
}

fn busy_and_calm(shared: &StackInner) {
    let (mut auto, mut now) = (auto(), 1_000_000_000);
    let plan = || shared.napis()[0].steering.plan();
    let chosen = || lock(&shared.napis()[0].steering.chosen).clone();
    // It does not look before something is busy.
    interval(&mut auto, shared, &mut now, 250);
    assert!(auto.next(shared).is_none() && chosen().is_none());
    shared.auto.is_busy(&shared.housekeeper);
    assert_eq!(auto.next(shared), Some(0), "at once");
    (0..6).for_each(|_| interval(&mut auto, shared, &mut now, 250));
    assert_eq!(plan(), Plan::HandOff(1));
    assert!(chosen().is_some_and(|chosen| chosen.why.contains("times as much")), "{:?}", chosen());
    // The load is twice as high once it fits.
    (0..20).for_each(|_| interval(&mut auto, shared, &mut now, 350));
    assert_eq!(plan(), Plan::HandOff(1));
    (0..20).for_each(|_| interval(&mut auto, shared, &mut now, 20));
    assert_eq!(plan(), Plan::None);
    assert!(chosen().is_some_and(|chosen| chosen.why.contains("busy 8 %")), "{:?}", chosen());
    (0..20).for_each(|_| interval(&mut auto, shared, &mut now, 20));
    assert!(auto.next(shared).is_none() && !shared.auto.is_going(), "all is quiet");
}

#[test]
fn what_is_set_is_left_alone() {
    let assembly = assembly(SteeringMode::Off);
    assert!(!assembly.shared.is_automatic(&assembly.shared.napis()[0]));
    assert!(!assembly.shared.auto.samples(), "nothing to choose, nothing to measure");
}

/// A queue that was not looked at yet says so, and what would have it looked at.
#[test]
fn before_the_first_choice_there_is_a_reason_too() {
    let row = |steering| assembly(steering).view.steering().remove(0);
    let auto = row(SteeringMode::Auto);
    assert_eq!(auto.why.as_deref(), Some("no poll has brought as much as it might"));
    assert_eq!(auto.otherwise.as_deref(), Some("looked at when one does"));
    let off = row(SteeringMode::Off);
    assert_eq!((off.why, off.otherwise), (None, None));
}

/// A change of a device's steering.
fn change(steering: Option<SteeringMode>, rps_flow_cnt: Option<u32>) -> SetSteering {
    let target = Target::Dev("d".into());
    SetSteering { target, steering, processing_cpu: None, rps_cpus: None, rps_flow_cnt }
}

/// Also on a stack that was started with nothing to choose for.
#[test]
fn the_choice_is_switched_on_while_it_runs() {
    let assembly = assembly(SteeringMode::Off);
    let shared = &assembly.shared;
    let mut ctx = SoftnetData::new(shared.region.clone(), shared.caches[0]);
    shared.set_steering(&mut ctx, &change(Some(SteeringMode::Auto), None)).unwrap();
    assert!(shared.is_automatic(&shared.napis()[0]) && shared.auto.samples());
    ctx.drain();
}

/// What is chosen stays until the next look, if the choice goes on.
#[test]
fn other_knobs_leave_what_was_chosen_as_it_is() {
    let mut assembly = assembly(SteeringMode::Auto);
    let workers = std::mem::take(&mut assembly.workers);
    let shared = &assembly.shared;
    std::thread::scope(|scope| {
        workers.into_iter().for_each(|worker| _ = scope.spawn(|| worker.run()));
        let _stop = Stop(shared);
        let mut ctx = SoftnetData::new(shared.region.clone(), shared.caches[0]);
        let plan = || shared.napis()[0].steering.plan();
        shared.set_plan(&mut ctx, &shared.napis()[0], Plan::HandOff(1));
        let mut set = |steering, flows| {
            shared.set_steering(&mut ctx, &change(steering, flows)).unwrap();
            plan()
        };
        assert_eq!(set(None, Some(64)), Plan::HandOff(1));
        assert_eq!(set(Some(SteeringMode::Auto), None), Plan::HandOff(1));
        assert_eq!(set(Some(SteeringMode::Off), None), Plan::None);
        assert_eq!(set(Some(SteeringMode::Auto), None), Plan::None);
        ctx.drain();
    });
}

#[test]
fn a_table_of_flows_that_is_too_large_is_refused() {
    let assembly = assembly(SteeringMode::Auto);
    let shared = &assembly.shared;
    let mut ctx = SoftnetData::new(shared.region.clone(), shared.caches[0]);
    let error = shared.set_steering(&mut ctx, &change(None, Some(1 << 20 | 1))).unwrap_err();
    let expected = "rps_flow_cnt: expected a number from 0 to 1048576, found 1048577";
    assert!(error.to_string().ends_with(expected), "{error}");
    ctx.drain();
}
