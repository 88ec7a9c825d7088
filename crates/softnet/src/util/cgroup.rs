//! How close a process is to the memory limit of its control group, at which the kernel kills it.
//!
//! Asked by a thread of the control plane now and then. Reads the files of cgroup v2 and v1; pages
//! of files that the kernel can let go of do not count. Invariant: whatever is in those files, no
//! panic; where nothing can be read there is no limit.

use std::path::{Path, PathBuf};

/// Where control groups are mounted, by convention.
const ROOT: &str = "/sys/fs/cgroup";
/// v1 says so if there is none: a number of pages that no machine has.
const NO_LIMIT: u64 = 1 << 60;
/// Parts of the limit, in percent: from where on it is near, and below which it is not any more.
const NEAR: u64 = 90;
const FAR: u64 = 80;

/// What becomes of a group at a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A process of it is killed.
    Max,
    /// It is slowed down.
    High,
}

/// The use of memory of a control group that has a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Usage {
    /// The group's directory.
    pub(crate) group: PathBuf,
    /// The limit's file there.
    pub(crate) file: &'static str,
    /// What happens at the limit.
    pub(crate) kind: Kind,
    /// Bytes in use that the kernel cannot just let go of.
    pub(crate) used: u64,
    /// Bytes.
    pub(crate) limit: u64,
}

impl Usage {
    fn percent(&self) -> u64 {
        (u128::from(self.used) * 100 / u128::from(self.limit.max(1))).min(1000) as u64
    }
}

/// The names of a version's files.
struct Files {
    used: &'static str,
    limits: &'static [(&'static str, Kind)],
    /// In `memory.stat`: pages of files that were not used lately.
    inactive: &'static str,
}

const V2: Files = Files {
    used: "memory.current",
    limits: &[("memory.max", Kind::Max), ("memory.high", Kind::High)],
    inactive: "inactive_file",
};
const V1: Files = Files {
    used: "memory.usage_in_bytes",
    limits: &[("memory.limit_in_bytes", Kind::Max)],
    inactive: "total_inactive_file",
};

fn number(path: &Path) -> Option<u64> {
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// The limits of the group at `directory`, and its use of memory.
fn of_group(directory: &Path, files: &Files) -> Vec<Usage> {
    let Some(all) = number(&directory.join(files.used)) else { return Vec::new() };
    let stat = std::fs::read_to_string(directory.join("memory.stat")).unwrap_or_default();
    let mut lines = stat.lines().filter_map(|line| line.split_once(' '));
    let inactive = lines.find(|(name, _)| *name == files.inactive);
    let inactive = inactive.and_then(|(_, bytes)| bytes.trim().parse().ok()).unwrap_or(0);
    let used = all.saturating_sub(inactive);
    let limits = files.limits.iter().filter_map(|(file, kind)| {
        // `max` is no number, and no limit.
        let limit = number(&directory.join(file)).filter(|limit| *limit < NO_LIMIT)?;
        Some(Usage { group: directory.into(), file, kind: *kind, used, limit })
    });
    limits.collect()
}

/// The limit that the process is closest to: of its control groups, which `groups` lists as `/proc/self/cgroup` does, below
/// `root`, and of those that they are in. In a container the paths may be those of the host, which are not there: then the
/// groups' root is the container's.
pub(crate) fn look(root: &Path, groups: &str) -> Option<Usage> {
    let mut found = Vec::new();
    for line in groups.lines() {
        // ID:CONTROLLERS:PATH
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
        let (mounts, files) = match controllers {
            "" => (&["", "unified"][..], &V2),
            list if list.split(',').any(|one| one == "memory") => (&["memory"][..], &V1),
            _ => continue,
        };
        // No file says where a path goes up from.
        let inside: Vec<_> = Path::new(path.trim_start_matches('/')).components().collect();
        if inside.iter().any(|part| matches!(part, std::path::Component::ParentDir)) {
            continue;
        }
        for mount in mounts {
            let top = if mount.is_empty() { root.to_owned() } else { root.join(mount) };
            // The group, those that it is in, and the root, which has files in a container.
            for n in 0..=inside.len() {
                let directory = inside[..n].iter().fold(top.clone(), |path, part| path.join(part));
                found.extend(of_group(&directory, files));
            }
        }
    }
    // Of two that are as close, the one that kills.
    found.into_iter().max_by_key(|usage| (usage.percent(), usage.kind == Kind::Max))
}

/// The same of this process.
pub(crate) fn own() -> Option<Usage> {
    let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    look(Path::new(ROOT), &groups)
}

/// What was told of the limit last.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    near: bool,
}

/// What is to be told.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum News {
    /// The limit is near.
    Near(String),
    /// It is not any more.
    Far(String),
}

impl Watch {
    /// What there is to tell now, once for each change.
    pub(crate) fn news(&mut self, usage: Option<&Usage>) -> Option<News> {
        let percent = usage.map_or(0, Usage::percent);
        let near = if self.near { percent >= FAR } else { percent >= NEAR };
        if near == self.near {
            return None;
        }
        self.near = near;
        let Some(Usage { group, file, kind, used, limit }) = usage else {
            return Some(News::Far("memory: there is no limit any more".into()));
        };
        let (used, limit, group) = (mib(*used), mib(*limit), group.display());
        if !near {
            return Some(News::Far(format!(
                "memory: {used} of {limit} of the control group's limit in use again"
            )));
        }
        let then = match kind {
            Kind::Max => "the kernel kills a process of the group",
            Kind::High => "the kernel slows the group down",
        };
        Some(News::Near(format!(
            "memory: {used} of {limit} in use, the limit of the control group ({file} in {group}): at the limit {then}; \
             raise it (systemd: {}), or have softnet use less: fewer routes, stack.frames, nat.connections",
            match kind {
                Kind::Max => "MemoryMax=",
                Kind::High => "MemoryHigh=",
            }
        )))
    }

    /// ns until it is to be looked again, which costs a few reads.
    pub(crate) fn interval(usage: Option<&Usage>) -> u64 {
        const SECOND: u64 = 1_000_000_000;
        match usage.map(Usage::percent) {
            // Groups get limits later, too.
            None => 60 * SECOND,
            Some(..50) => 5 * SECOND,
            Some(_) => SECOND,
        }
    }
}

fn mib(bytes: u64) -> String {
    format!("{} MiB", bytes >> 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(root: &Path, file: &str, text: &str) {
        let path = root.join(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    const MIB: u64 = 1 << 20;

    #[test]
    fn the_limit_of_v2_that_is_closest_counts() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        for (file, text) in [
            ("a/memory.current", format!("{}\n", 600 * MIB)),
            ("a/memory.max", format!("{}\n", 1000 * MIB)),
            ("a/memory.high", "max\n".into()),
            ("a/b/memory.current", format!("{}\n", 500 * MIB)),
            ("a/b/memory.max", "max\n".into()),
            ("a/b/memory.high", format!("{}\n", 520 * MIB)),
            ("a/b/memory.stat", format!("anon 1\ninactive_file {}\nactive_file 9\n", 400 * MIB)),
        ] {
            write(root, file, &text);
        }
        let usage = look(root, "0::/a/b\n").unwrap();
        assert_eq!((usage.group, usage.file, usage.kind), (root.join("a"), "memory.max", Kind::Max));
        assert_eq!((usage.used, usage.limit), (600 * MIB, 1000 * MIB));
        // With fewer pages that the kernel can let go of it is the other one.
        write(root, "a/b/memory.stat", "inactive_file 0\n");
        let usage = look(root, "0::/a/b\n").unwrap();
        assert_eq!((usage.file, usage.kind, usage.used), ("memory.high", Kind::High, 500 * MIB));
    }

    #[test]
    fn the_limit_of_v1_counts_and_a_group_without_one_does_not() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        write(root, "memory/memory.usage_in_bytes", "5000000\n");
        write(root, "memory/memory.limit_in_bytes", "9223372036854771712\n");
        let groups = "4:cpu,memory:/x\n3:cpuset:/\n0::/\n";
        assert_eq!(look(root, groups), None);
        write(root, "memory/x/memory.usage_in_bytes", "5000000\n");
        write(root, "memory/x/memory.limit_in_bytes", "8000000\n");
        write(root, "memory/x/memory.stat", "inactive_file 7\ntotal_inactive_file 1000000\n");
        let usage = look(root, groups).unwrap();
        assert_eq!((usage.used, usage.limit, usage.file), (4_000_000, 8_000_000, "memory.limit_in_bytes"));
        // In a container the path may be the host's.
        write(root, "memory/memory.limit_in_bytes", "6000000\n");
        assert_eq!(look(root, "4:memory:/of/the/host\n").unwrap().limit, 6_000_000);
    }

    #[test]
    fn anything_may_stand_there() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        write(root, "memory.current", "many\n");
        write(root, "memory.max", "0\n");
        for groups in ["", "::", "0::", "x", "0::/../..", "4:memory:relative", "0::/a/b\n\n:\n"] {
            assert_eq!(look(root, groups), None, "{groups}");
        }
        write(root, "memory.current", "18446744073709551615\n");
        let usage = look(root, "0::/\n").unwrap();
        assert_eq!((usage.limit, usage.percent()), (0, 1000));
    }

    #[test]
    fn each_change_is_told_once() {
        let usage = |used| Usage {
            group: "/g".into(),
            file: "memory.max",
            kind: Kind::Max,
            used: used * MIB,
            limit: 100 * MIB,
        };
        let mut watch = Watch::default();
        let mut kinds = Vec::new();
        for used in [10, 89, 90, 95, 85, 91, 80, 79, 89, 90] {
            let said = match watch.news(Some(&usage(used))) {
                None => "-",
                Some(News::Near(text)) => {
                    assert!(text.contains("limit of the control group (memory.max in /g)"), "{text}");
                    assert!(text.contains("MemoryMax=") && text.contains("kills"), "{text}");
                    "near"
                }
                Some(News::Far(_)) => "far",
            };
            kinds.push(said);
        }
        assert_eq!(kinds, ["-", "-", "near", "-", "-", "-", "-", "far", "-", "near"]);
        assert!(matches!(watch.news(None), Some(News::Far(_))));
        assert_eq!(watch.news(None), None);
        assert!(Watch::interval(Some(&usage(95))) < Watch::interval(Some(&usage(10))));
    }
}
