//! Which worker is near a CPU: what RFS sends the flows of a thread to that runs there.
//!
//! A pure function of where CPUs are; the runtime calls it once, when it knows its workers.
//! Invariant: the worker on a CPU is the one near to it; CPUs that are equally near to several
//! workers are dealt to these in turn, so that no worker gets the consumers of a whole cache.

use super::policy::Place;

/// How far a worker's CPU is, the nearest first: as the kernel's `cpu_rmap` has it, by what the two
/// share.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Distance {
    Same,
    Core,
    Llc,
    Node,
}

/// `None`: they share nothing, so that what one brings is as far from the other as from any.
fn distance(cpu: &Place, worker: &Place) -> Option<Distance> {
    match () {
        () if cpu.cpu == worker.cpu => Some(Distance::Same),
        () if cpu.node != worker.node => None,
        () if cpu.core == worker.core => Some(Distance::Core),
        () if cpu.llc == worker.llc => Some(Distance::Llc),
        () => Some(Distance::Node),
    }
}

/// For each of `cpus` the number of the worker that is nearest: on it, else on its core, else under
/// its last-level cache, else on its NUMA node; `None` if no worker is even there.
pub fn nearest(cpus: &[Place], workers: &[Place]) -> Vec<Option<u16>> {
    let mut dealt = vec![0u32; workers.len()];
    let of = |cpu: &Place| {
        let near = workers.iter().enumerate().filter_map(|(at, worker)| Some((distance(cpu, worker)?, at)));
        let (distance, at) = near.min_by_key(|&(distance, at)| (distance, dealt[at], at))?;
        if distance != Distance::Same {
            dealt[at] += 1;
        }
        Some(at as u16)
    };
    cpus.iter().map(of).collect()
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A machine as the kernel numbers it: threads of one core are `cores` apart.
    fn machine(nodes: u16, llcs: u16, cores: u16, threads: u16) -> Vec<Place> {
        let all = nodes * llcs * cores;
        let place = |cpu: u16| {
            let core = cpu % all;
            Place { cpu, core, llc: core / cores * cores, node: core / (llcs * cores) }
        };
        (0..all * threads).map(place).collect()
    }

    fn near(machine: &[Place], workers: &[u16]) -> Vec<Option<u16>> {
        let workers: Vec<Place> = workers.iter().map(|cpu| machine[usize::from(*cpu)]).collect();
        nearest(machine, &workers)
    }

    #[test]
    fn a_laptop_of_four_cores_with_two_threads_each() {
        // Workers on the first threads of two cores: their siblings first, the others in turn.
        let found = near(&machine(1, 1, 4, 2), &[0, 1]);
        assert_eq!(found, [0, 1, 0, 1, 0, 1, 0, 1].map(Some));
    }

    #[test]
    fn a_desktop_of_two_caches() {
        // Four cores under each cache, one worker there each: consumers stay under theirs.
        let found = near(&machine(1, 2, 4, 1), &[6, 1]);
        assert_eq!(found, [1, 1, 1, 1, 0, 0, 0, 0].map(Some));
        // Without a worker under the second cache, its node will do.
        assert_eq!(near(&machine(1, 2, 4, 1), &[1]), [Some(0); 8]);
    }

    #[test]
    fn a_server_of_two_sockets() {
        let machine = machine(2, 4, 16, 2);
        // All workers on the first node: nothing is near to the second one's CPUs.
        let found = near(&machine, &[0, 16, 32, 48]);
        for (place, worker) in machine.iter().zip(&found) {
            let expected = (place.node == 0).then_some(place.llc / 16);
            assert_eq!(*worker, expected, "{place:?}");
        }
        // Two workers under one cache share what is there and not theirs.
        let found = near(&machine, &[0, 1]);
        let of = |worker| found[..16].iter().filter(|found| **found == Some(worker)).count();
        assert_eq!((found[0], found[1], found[128], found[129]), (Some(0), Some(1), Some(0), Some(1)));
        assert_eq!((of(0), of(1)), (8, 8));
    }

    #[test]
    fn a_machine_that_tells_nothing_and_one_without_workers() {
        // As `softnet_dev::topology` has it then: cores of their own, one cache, one node.
        let machine: Vec<Place> =
            (0..4).map(|cpu| Place { cpu, core: cpu, llc: u16::MAX, node: 0 }).collect();
        assert_eq!(near(&machine, &[2, 3]), [0, 1, 0, 1].map(Some));
        assert_eq!(near(&machine, &[]), [None; 4]);
        assert_eq!(nearest(&[], &machine), []);
    }

    proptest! {
        #[test]
        fn nothing_nearer_is_passed_over(
            (nodes, llcs, cores, threads) in (1u16..3, 1u16..3, 1u16..5, 1u16..3),
            picks in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
        ) {
            let machine = machine(nodes, llcs, cores, threads);
            let workers: Vec<Place> = picks.iter().map(|pick| *pick.get(&machine)).collect();
            let found = nearest(&machine, &workers);
            prop_assert_eq!(found.len(), machine.len());
            for (cpu, found) in machine.iter().zip(found) {
                let best = workers.iter().filter_map(|worker| distance(cpu, worker)).min();
                let found = found.and_then(|at| distance(cpu, &workers[usize::from(at)]));
                prop_assert!(found == best);
            }
        }
    }
}
