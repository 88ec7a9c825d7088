use super::*;

/// One CPU.
fn one() -> Vec<Place> {
    vec![Place { cpu: 0, core: 0, llc: 0, node: 0 }]
}

/// A virtual machine of two CPUs, which it takes for cores with one cache.
fn vm2() -> Vec<Place> {
    (0..2).map(|cpu| Place { cpu, core: cpu, llc: 0, node: 0 }).collect()
}

/// A desktop: four cores of two threads each, numbered as Linux does on Intel's: first threads first.
fn desktop() -> Vec<Place> {
    (0..8).map(|cpu| Place { cpu, core: cpu % 4, llc: 0, node: 0 }).collect()
}

/// A server of two sockets of 64 cores of two threads (EPYC): eight cores share a cache.
fn two_by_128() -> Vec<Place> {
    (0..256)
        .map(|cpu| (cpu, cpu % 128))
        .map(|(cpu, core)| Place { cpu, core, llc: core / 8, node: core / 64 })
        .collect()
}

fn machine(workers: Vec<Place>, wake_ns: f64) -> Machine {
    Machine { workers, wake_ns }
}

/// A queue of worker 0 that many flows come by.
fn queue(pps: f64, receive_ns: f64, service_ns: f64) -> QueueLoad {
    QueueLoad {
        id: 0,
        plan: Plan::None,
        home: Some(0),
        pps,
        receive_ns,
        service_ns,
        batch: 64.0,
        slices: [100; SLICES],
    }
}

/// What comes of the same load for `n` intervals: the last decision, and how often the plan changed.
fn after(policy: &mut Policy, machine: &Machine, queues: &[QueueLoad], n: usize) -> (Vec<Decision>, usize) {
    let mut queues = queues.to_vec();
    (0u32..).zip(&mut queues).for_each(|(id, queue)| queue.id = id);
    let (mut last, mut changes) = (Vec::new(), 0);
    for _ in 0..n {
        last = policy.decide(machine, &queues, &[]);
        for (queue, decision) in queues.iter_mut().zip(&last) {
            changes += usize::from(queue.plan != decision.plan);
            queue.plan = decision.plan.clone();
        }
    }
    (last, changes)
}

fn chosen(machine: &Machine, load: &QueueLoad) -> Decision {
    after(&mut Policy::default(), machine, std::slice::from_ref(load), 20).0.remove(0)
}

/// The places that a plan uses.
fn places(machine: &Machine, plan: &Plan) -> Vec<Place> {
    plan.workers().iter().map(|worker| machine.workers[usize::from(*worker)]).collect()
}

#[test]
fn one_worker_has_no_choice() {
    let decision = chosen(&machine(one(), 8000.0), &queue(5e6, 100.0, 1000.0));
    assert_eq!(decision, Decision { plan: Plan::None, why: Why::OneWorker });
    assert!(decision.otherwise().contains("stack.workers"));
}

#[test]
fn a_queue_that_its_worker_carries_stays() {
    for workers in [vm2(), desktop(), two_by_128()] {
        for load in [0.0, 0.1, 0.5, 0.8] {
            let decision =
                chosen(&machine(workers.clone(), 8000.0), &queue(load * 1e9 / 1100.0, 100.0, 1000.0));
            assert_eq!(decision.plan, Plan::None);
            assert!(matches!(decision.why, Why::Fits(busy) if (busy - load).abs() < 1e-6), "{decision:?}");
        }
    }
}

/// Collecting and the rest cost about the same: one other worker, and the queue keeps its order whatever its flows are.
#[test]
fn half_of_the_work_is_handed_off() {
    let machine = machine(vm2(), 8000.0);
    let mut load = queue(2.8e6, 150.0, 200.0);
    assert_eq!(chosen(&machine, &load).plan, Plan::HandOff(1));
    load.slices = [0; SLICES];
    let decision = chosen(&machine, &load);
    assert_eq!(decision.plan, Plan::HandOff(1), "it needs no flows");
    assert!(matches!(decision.why, Why::Overload { gain, .. } if gain > 1.43), "{decision:?}");
}

/// Collecting costs little: the worker that collects takes its part of the flows.
#[test]
fn dear_service_is_spread() {
    let machine = machine(vm2(), 8000.0);
    let mut load = queue(0.9e6, 100.0, 1000.0);
    assert_eq!(chosen(&machine, &load).plan, Plan::Rps { workers: [0, 1].into(), flows: 0 });
    // One flow can't be spread, and to move it gains nothing.
    load.slices = [0; SLICES];
    load.slices[7] = 1000;
    let decision = chosen(&machine, &load);
    assert!(matches!(decision.why, Why::NoGain { gain, .. } if gain < 1.1), "{decision:?}");
    assert_eq!(decision.plan, Plan::None);
}

/// Few packets a poll, and hardly anything to do for each: waking costs more than it spares.
#[test]
fn a_dear_wake_up_keeps_a_queue_where_it_is() {
    let mut load = queue(2e6, 350.0, 150.0);
    load.batch = 4.0;
    let dear = chosen(&machine(vm2(), 8000.0), &load);
    assert_eq!(dear.plan, Plan::None);
    assert!(matches!(dear.why, Why::NoGain { wakes, .. } if wakes > 0.5), "{dear:?}");
    assert!(dear.why.to_string().contains("wake-ups"));
    assert_eq!(chosen(&machine(vm2(), 100.0), &load).plan, Plan::HandOff(1), "a cheap one does not");
}

#[test]
fn caches_are_shared_first_and_nodes_are_not_left() {
    let machine = machine(two_by_128(), 2000.0);
    let Decision { plan, .. } = chosen(&machine, &queue(0.9e6, 100.0, 1000.0));
    let used = places(&machine, &plan);
    assert!((2..=3).contains(&used.len()), "{plan:?}");
    assert!(used.iter().all(|place| place.llc == 0 && place.cpu < 128), "{plan:?}");
    // Many times what one carries: beyond the cache, not beyond the node.
    let mut policy = Policy::default();
    let mut load = queue(0.0, 50.0, 3000.0);
    for mpps in [0.3, 0.6, 1.2, 2.4, 4.0, 5.0] {
        load.pps = mpps * 1e6;
        let (mut decisions, _) = after(&mut policy, &machine, std::slice::from_ref(&load), 10);
        load.plan = decisions.remove(0).plan;
    }
    let used = places(&machine, &load.plan);
    assert!(used.len() > 8 && used.len() <= WIDEST, "{used:?}");
    assert!(used.iter().all(|place| place.node == 0));
}

#[test]
fn a_sibling_is_taken_only_while_it_is_idle() {
    // Only the two threads of a core.
    let pair = machine(desktop().into_iter().filter(|place| place.core == 0).collect(), 1000.0);
    let load = queue(0.9e6, 550.0, 550.0);
    let mut policy = Policy::default();
    let decide = |policy: &mut Policy, other: f64| {
        (0..5)
            .map(|_| policy.decide(&pair, std::slice::from_ref(&load), &[0.0, other]))
            .last()
            .unwrap()
            .remove(0)
    };
    assert_eq!(decide(&mut policy, 0.2).plan, Plan::None);
    let mut policy = Policy::default();
    let idle = decide(&mut policy, 0.0);
    assert!(
        idle.plan.workers().is_empty() || matches!(idle.why, Why::Overload { gain, .. } if gain < 1.3),
        "{idle:?}"
    );
}

#[test]
fn queues_share_what_is_free() {
    let machine = machine(desktop(), 2000.0);
    let mut queues: Vec<QueueLoad> = (0..4).map(|_| queue(0.9e6, 100.0, 1000.0)).collect();
    for (worker, queue) in (0..).zip(&mut queues) {
        queue.home = Some(worker);
    }
    // Each core has a busy queue: nothing is free but siblings, which do not pay.
    let (decisions, changes) = after(&mut Policy::default(), &machine, &queues, 50);
    assert!(changes <= 8, "{changes} changes");
    for decision in &decisions {
        assert!(decision.plan.workers().len() <= 4, "{decision:?}");
    }
    // Two of them calm: the other two find workers.
    for queue in &mut queues[2..] {
        queue.pps = 1e3;
    }
    let (decisions, changes) = after(&mut Policy::default(), &machine, &queues, 50);
    assert!(decisions[..2].iter().all(|decision| !decision.plan.workers().is_empty()), "{decisions:?}");
    assert!(decisions[2..].iter().all(|decision| decision.plan == Plan::None));
    assert!(changes <= 8, "{changes} changes");
}

/// A load that swings about the limit every interval changes nothing every interval.
#[test]
fn changes_are_rare() {
    let machine = machine(vm2(), 8000.0);
    let mut policy = Policy::default();
    let (mut plan, mut changes) = (Plan::None, 0);
    for at in 0..200 {
        let pps = if at % 2 == 0 { 2.8e6 } else { 2.0e6 };
        let load = QueueLoad { plan: plan.clone(), ..queue(pps, 150.0, 200.0) };
        let now = policy.decide(&machine, &[load], &[]).remove(0).plan;
        changes += usize::from(now != plan);
        plan = now;
    }
    assert!(changes <= 1, "{changes}");
    // A load that has gone leads back, once.
    let (decisions, _) = after(&mut policy, &machine, &[queue(2.8e6, 150.0, 200.0)], 10);
    assert_eq!(decisions[0].plan, Plan::HandOff(1));
    let load = QueueLoad { plan: Plan::HandOff(1), ..queue(0.5e6, 150.0, 200.0) };
    let (decisions, changes) = after(&mut policy, &machine, &[load], 100);
    assert_eq!((decisions[0].plan.clone(), changes), (Plan::None, 1));
    assert!(decisions[0].why.to_string().contains("18 %"), "{}", decisions[0].why);
}

#[test]
fn what_no_worker_polls_stays() {
    let mut load = queue(5e6, 150.0, 200.0);
    load.home = None;
    assert_eq!(chosen(&machine(vm2(), 8000.0), &load).why, Why::Elsewhere);
}

/// Nothing that was measured, however odd, makes it fail.
#[test]
fn odd_figures_are_survived() {
    for pps in [0.0, 1.0, 1e12, f64::INFINITY, f64::NAN] {
        for ns in [0.0, 1e12, f64::NAN] {
            for home in [0, 1, 9] {
                let mut load = queue(pps, ns, ns);
                load.home = Some(home);
                load.batch = 0.0;
                let mut policy = Policy::default();
                for others in [&[][..], &[2.0, -1.0], &[f64::NAN; 8]] {
                    let decisions = policy.decide(&machine(vm2(), ns), &[load.clone(), load.clone()], others);
                    assert_eq!(decisions.len(), 2);
                }
            }
        }
    }
}
