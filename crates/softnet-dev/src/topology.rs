//! Where CPUs are: which share a core, a last-level cache, or a NUMA node, as the kernel tells under
//! `/sys/devices/system/cpu`.
//!
//! Any thread may ask. What the kernel does not tell is taken for the simplest: a core of its own,
//! a cache for each node, one node.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use softnet_core::steer::policy::Place;

/// Where `cpus` are.
pub fn places(cpus: &[u32]) -> Vec<Place> {
    places_in(Path::new("/sys/devices/system/cpu"), cpus)
}

/// Where all CPUs of the machine are, ascending.
pub fn all() -> Vec<Place> {
    all_in(Path::new("/sys/devices/system/cpu"))
}

/// The NUMA nodes of `cpus`, each once, ascending. None on a machine of one node: there is nothing to choose.
pub fn nodes(cpus: &[u32]) -> Vec<u16> {
    let distinct = |places: Vec<Place>| places.iter().map(|place| place.node).collect::<BTreeSet<_>>();
    if distinct(all()).len() < 2 {
        return Vec::new();
    }
    distinct(places(cpus)).into_iter().collect()
}

fn all_in(root: &Path) -> Vec<Place> {
    let mut cpus: Vec<u32> = entries(root, "cpu").map(|(cpu, _)| cpu.into()).collect();
    cpus.sort_unstable();
    places_in(root, &cpus)
}

fn places_in(root: &Path, cpus: &[u32]) -> Vec<Place> {
    cpus.iter().map(|cpu| place(&root.join(format!("cpu{cpu}")), *cpu as u16)).collect()
}

fn place(dir: &Path, cpu: u16) -> Place {
    let node = entries(dir, "node").map(|(number, _)| number).next().unwrap_or(0);
    let core = first(&dir.join("topology/thread_siblings_list")).unwrap_or(cpu);
    let caches = entries(&dir.join("cache"), "index").filter_map(|(_, cache)| {
        let level: u32 = read(&cache.join("level"))?.parse().ok()?;
        Some((level, first(&cache.join("shared_cpu_list"))?))
    });
    // A number that no CPU has, so that no cache of another node has it either.
    let unknown = u16::MAX - node;
    let llc = caches.max_by_key(|(level, _)| *level).map_or(unknown, |(_, first)| first);
    Place { cpu, core, llc, node }
}

/// The entries of `dir` whose names are `prefix` and a number.
fn entries(dir: &Path, prefix: &'static str) -> impl Iterator<Item = (u16, std::path::PathBuf)> + use<> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter_map(move |entry| {
        let number = entry.file_name().to_str()?.strip_prefix(prefix)?.parse().ok()?;
        Some((number, entry.path()))
    })
}

/// The lowest CPU of a list such as `0-3,8`: what its members are known by.
fn first(list: &Path) -> Option<u16> {
    read(list)?.split(['-', ',']).next()?.trim().parse().ok()
}

fn read(path: &Path) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two nodes of two cores of two threads; a cache for each core and one for each node.
    #[test]
    fn what_the_kernel_tells() {
        let root = std::env::temp_dir().join(format!("softnet-topology-{}", std::process::id()));
        for cpu in 0..8u16 {
            let (core, node) = (cpu % 4, cpu % 4 / 2);
            let dir = root.join(format!("cpu{cpu}"));
            let write = |path: &str, text: String| {
                let path = dir.join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            };
            fs::create_dir_all(dir.join(format!("node{node}"))).unwrap();
            write("topology/thread_siblings_list", format!("{core},{}\n", core + 4));
            write("cache/index0/level", "1\n".into());
            write("cache/index0/shared_cpu_list", format!("{core},{}\n", core + 4));
            write("cache/index3/level", "3\n".into());
            write(
                "cache/index3/shared_cpu_list",
                format!("{}-{},{}\n", 2 * node, 2 * node + 1, 2 * node + 4),
            );
        }
        fs::create_dir_all(root.join("cpufreq")).unwrap();
        let all = all_in(&root);
        let places = places_in(&root, &[0, 5, 3, 9]);
        fs::remove_dir_all(&root).unwrap();
        let place = |cpu, core, llc, node| Place { cpu, core, llc, node };
        let unknown = place(9, 9, u16::MAX, 0);
        assert_eq!(all.iter().map(|place| place.cpu).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!((all[5], all[3]), (places[1], places[2]));
        assert_eq!(places, [place(0, 0, 0, 0), place(5, 1, 0, 0), place(3, 3, 2, 1), unknown]);
    }

    #[test]
    fn this_machine_has_a_place_for_each_cpu() {
        assert_eq!(places(&[0]).len(), 1);
        assert_eq!(places(&[0])[0].cpu, 0);
        assert!(all().contains(&places(&[0])[0]));
    }
}
