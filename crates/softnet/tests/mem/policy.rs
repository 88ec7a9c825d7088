//! The workers' scheduling policy: what is configured is what the kernel has.

use softnet::Stack;
use softnet::config::Context;
use softnet::driver::OpenRequest;
use softnet::internals::Assembly;
use softnet_core::SoftnetData;
use softnet_core::sync::Ordering;
use softnet_dev::OpenDevice;
use softnet_dev::sched::Policy;

use softnet::config::{Config, DeviceConfig, StackConfig, available_cpus};

use super::world::{until, wire};

/// Policy of the worker, and of the thread of a device in the context `threaded`.
fn policies(worker_policy: Option<Policy>) -> (String, String) {
    let device = DeviceConfig::new("mem0").with(|device| {
        device.addresses = vec!["10.0.0.1/24".parse().unwrap()];
        device.threaded = Context::Threaded;
    });
    let stack = StackConfig::default().with(|stack| {
        stack.workers = vec![available_cpus()[0]];
        stack.worker_policy = worker_policy;
    });
    let config = Config::default().with(|config| {
        config.stack = stack;
        config.devices = vec![device];
    });
    let mut far = Vec::new();
    let assembly = Assembly::new(config, Vec::new(), |region| {
        let (near, lanes) = wire(region, 0, 1);
        far.extend(lanes);
        let mut near = Some(near);
        Ok(move |_: &OpenRequest<'_>, _: &mut SoftnetData| -> Result<OpenDevice, String> {
            near.take().ok_or_else(|| "opened twice".into())
        })
    });
    let stack = Stack::run(assembly.unwrap()).unwrap();
    let threads = stack.shared().threads();
    let started = |context| {
        let thread = threads.iter().find(|thread| thread.context == context).unwrap();
        until("the thread to have set itself up", || thread.tid.load(Ordering::Acquire) != 0);
        stack.view().workers().into_iter().find(|row| row.context == context).unwrap().policy
    };
    let found = (started(Context::Softirq), started(Context::Threaded));
    drop(stack);
    far.into_iter().for_each(|lane| _ = lane.close());
    found
}

#[test]
fn a_worker_has_the_policy_that_is_configured_and_others_keep_theirs() {
    let (worker, own) = policies(None);
    assert_eq!(worker, own, "nothing is configured");
    assert_eq!(policies(Some(Policy::Batch)), ("batch".into(), own.clone()));
    // Without the privilege the worker says so, and works all the same.
    let (worker, other) = policies(Some(Policy::Fifo(1)));
    assert!(worker == "fifo 1" || worker == own, "{worker}");
    assert_eq!(other, own);
}
