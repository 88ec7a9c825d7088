//! `cargo xtask packetdrill`: scripts of packetdrill against the TCP engine.
//!
//! Neither the program nor scripts are part of the repository: the program is looked for on the
//! search path, the scripts under `SOFTNET_PACKETDRILL_SCRIPTS`. Each run has a tree of settings
//! of its own, which the library reads and the script's commands write: as `/proc/sys/net`, in a
//! private namespace, and through [`shims`] of `ip`, `tc` and others. Nothing of the host changes.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use crate::shims;

/// Where scripts are.
const SCRIPTS: &str = "SOFTNET_PACKETDRILL_SCRIPTS";

pub(crate) const HELP: &str = "\
cargo xtask packetdrill [--filter TEXT]... [--jobs N] [--timeout SECONDS] [--all] [--verbose]
    Runs every *.pkt under $SOFTNET_PACKETDRILL_SCRIPTS (a directory or a file) by `packetdrill`
    on the search path, over IPv4, IPv6 and IPv4 on IPv6 sockets: one line a run, and a summary.
    --filter TEXT   only scripts whose path contains TEXT, or any of several
    --jobs N        runs at a time (default: processors)
    --timeout N     seconds of a run (default 60)
    --all           also scripts of features that the engine does not have
    --verbose       all that a failed run printed, not its last lines";

/// What scripts need that the engine does not have: a word in them, and its name.
const MISSING: [(&str, &str); 8] = [
    ("fastopen/", "TCP Fast Open"),
    ("zerocopy/", "MSG_ZEROCOPY"),
    ("timestamping/", "SO_TIMESTAMPING"),
    ("md5/", "TCP MD5 signatures"),
    ("sendfile/", "sendfile"),
    ("splice/", "splice"),
    ("psp/", "PSP"),
    ("accecn", "Accurate ECN"),
];

/// How a script is run: name, IP version and addresses.
struct Variant {
    name: &'static str,
    mtu: u16,
    args: &'static [&'static str],
}

const V4: &[&str] = &[
    "--local_ip=192.168.0.1",
    "--gateway_ip=192.168.0.1",
    "--netmask_ip=255.255.0.0",
    "--remote_ip=192.0.2.1",
    "-D",
    "TFO_COOKIE=3021b9d889017eeb",
    "-D",
    "CODE=host_unreachable",
];

const VARIANTS: [Variant; 3] = [
    Variant {
        name: "ipv4",
        mtu: 1500,
        args: &["--ip_version=ipv4", "-D", "CMSG_LEVEL_IP=SOL_IP", "-D", "CMSG_TYPE_RECVERR=IP_RECVERR"],
    },
    Variant {
        name: "ipv4-mapped",
        mtu: 1500,
        args: &[
            "--ip_version=ipv4-mapped-ipv6",
            "-D",
            "CMSG_LEVEL_IP=SOL_IPV6",
            "-D",
            "CMSG_TYPE_RECVERR=IPV6_RECVERR",
        ],
    },
    Variant {
        name: "ipv6",
        mtu: 1520,
        args: &[
            "--ip_version=ipv6",
            "--mtu=1520",
            "--local_ip=fd3d:0a0b:17d6::1",
            "--gateway_ip=fd3d:0a0b:17d6:8888::1",
            "--remote_ip=fd3d:fa7b:d17d::1",
            "-D",
            "TFO_COOKIE=c1d1e9742a47a9bc",
            "-D",
            "CMSG_LEVEL_IP=SOL_IPV6",
            "-D",
            "CMSG_TYPE_RECVERR=IPV6_RECVERR",
        ],
    },
];

struct Options {
    filters: Vec<String>,
    jobs: usize,
    timeout: Duration,
    all: bool,
    verbose: bool,
}

impl Options {
    fn parse(args: &[&str]) -> Result<Options, String> {
        let jobs = thread::available_parallelism().map_or(1, usize::from);
        let timeout = Duration::from_secs(60);
        let mut options = Options { filters: Vec::new(), jobs, timeout, all: false, verbose: false };
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            let mut value = || args.next().ok_or_else(|| format!("{arg} wants a value\n{HELP}"));
            match *arg {
                "--filter" => options.filters.push((*value()?).into()),
                "--jobs" => options.jobs = number(value()?)?.max(1) as usize,
                "--timeout" => options.timeout = Duration::from_secs(number(value()?)?),
                "--all" => options.all = true,
                "--verbose" => options.verbose = true,
                _ => return Err(format!("{arg}: no such option\n{HELP}")),
            }
        }
        Ok(options)
    }
}

fn number(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("{text}: not a number"))
}

/// One script in one variant.
struct Job<'a> {
    script: &'a Path,
    /// The path below the directory of scripts.
    name: &'a str,
    variant: &'static Variant,
    index: usize,
}

/// How it ended.
enum Outcome {
    Ok,
    Failed(String),
    Skipped(&'static str),
}

/// The surroundings of all runs.
struct Runner<'a> {
    options: &'a Options,
    library: PathBuf,
    temp: PathBuf,
    /// The command that makes a private namespace.
    private: &'static [&'static str],
}

/// Runs scripts.
pub(crate) fn run(root: &Path, args: &[&str]) -> Result<(), String> {
    let options = Options::parse(args)?;
    let skip = |why: &str| {
        println!("packetdrill: skipped: {why}");
        Ok(())
    };
    if !on_path("packetdrill") {
        return skip(
            "no such program on the search path. It is built from github.com/google/packetdrill \
             (gtests/net/packetdrill: ./configure && make; needs gcc, make, bison and flex).",
        );
    }
    let Some(scripts) = env::var_os(SCRIPTS).map(PathBuf::from) else {
        return skip(&format!("{SCRIPTS} names no directory of scripts (gtests/net/tcp, say)."));
    };
    let Some(private) = private_namespace() else {
        return skip("scripts want private namespaces of network and mounts, which need privileges.");
    };
    let mut paths = Vec::new();
    find(&scripts, &mut paths).map_err(|error| format!("{}: {error}", scripts.display()))?;
    paths.sort();
    let base = if scripts.is_dir() { &scripts } else { scripts.parent().unwrap_or(Path::new("")) };
    let named: Vec<(&Path, String)> = paths
        .iter()
        .map(|path| (path.as_path(), path.strip_prefix(base).unwrap_or(path).display().to_string()))
        .filter(|(_, name)| {
            options.filters.is_empty() || options.filters.iter().any(|text| name.contains(text.as_str()))
        })
        .collect();
    let library = build(root)?;
    let temp = env::temp_dir().join(format!("softnet-packetdrill-{}", std::process::id()));
    shims::install(&temp).map_err(|error| format!("{}: {error}", temp.display()))?;
    let runner = Runner { options: &options, library, temp, private };
    let result = runner.all(&named);
    // What is left behind is a directory of small files.
    let _ = fs::remove_dir_all(&runner.temp);
    result
}

fn on_path(program: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).any(|dir| dir.join(program).is_file())
}

/// What makes a private namespace here: as root, or as root of a user namespace.
fn private_namespace() -> Option<&'static [&'static str]> {
    const WAYS: [&[&str]; 2] = [&["-n", "-m"], &["-r", "-n", "-m"]];
    let works = |way: &&&[&str]| {
        let mut command = Command::new("unshare");
        let script = "mount -t tmpfs none /sys/module && mount --bind /tmp /proc/sys/net";
        command.args(**way).args(["sh", "-c", script]).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    };
    WAYS.iter().find(works).copied()
}

fn find(path: &Path, found: &mut Vec<PathBuf>) -> std::io::Result<()> {
    if path.is_dir() {
        for entry in fs::read_dir(path)? {
            find(&entry?.path(), found)?;
        }
    } else if path.extension().is_some_and(|extension| extension == "pkt") {
        found.push(path.canonicalize()?);
    }
    Ok(())
}

/// Builds the library that packetdrill loads.
fn build(root: &Path) -> Result<PathBuf, String> {
    crate::run(crate::cargo().args(["build", "--quiet", "-p", "softnet-packetdrill"]).current_dir(root))?;
    let target = env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let library = target.join("debug/libsoftnet_packetdrill.so");
    library.canonicalize().map_err(|error| format!("{}: {error}", library.display()))
}

impl Runner<'_> {
    fn all(&self, named: &[(&Path, String)]) -> Result<(), String> {
        let mut jobs = VecDeque::new();
        for (script, name) in named {
            for variant in &VARIANTS {
                let only = if variant.name == "ipv6" { "v4.pkt" } else { "v6.pkt" };
                if !name.ends_with(only) {
                    let index = jobs.len();
                    jobs.push_back(Job { script, name, variant, index });
                }
            }
        }
        let width = named.iter().map(|(_, name)| name.len()).max().unwrap_or(0);
        let (jobs, outcomes) = (Mutex::new(jobs), Mutex::new(Vec::new()));
        thread::scope(|scope| {
            for _ in 0..self.options.jobs {
                scope.spawn(|| {
                    loop {
                        let job = jobs.lock().ok().and_then(|mut jobs| jobs.pop_front());
                        let Some(job) = job else { return };
                        let outcome = self.one(&job);
                        println!("{}", line(&job, &outcome, width));
                        if let Ok(mut outcomes) = outcomes.lock() {
                            outcomes.push((job.name, outcome));
                        }
                    }
                });
            }
        });
        let outcomes = outcomes.into_inner().unwrap_or_default();
        let count = |is: fn(&Outcome) -> bool| outcomes.iter().filter(|(_, outcome)| is(outcome)).count();
        let failed = count(|outcome| matches!(outcome, Outcome::Failed(_)));
        let whole = |name: &str, is: fn(&Outcome) -> bool| {
            outcomes.iter().filter(|(of, _)| *of == name).all(|(_, outcome)| is(outcome))
        };
        let good = named.iter().filter(|(_, name)| whole(name, |o| matches!(o, Outcome::Ok))).count();
        let skipped =
            named.iter().filter(|(_, name)| whole(name, |o| matches!(o, Outcome::Skipped(_)))).count();
        println!(
            "\n{} scripts: {good} pass in every variant, {} fail, {skipped} skipped; {} runs: {} ok, {failed} failed, {} skipped",
            named.len(),
            named.len() - good - skipped,
            outcomes.len(),
            count(|outcome| matches!(outcome, Outcome::Ok)),
            count(|outcome| matches!(outcome, Outcome::Skipped(_))),
        );
        if failed > 0 { Err(format!("{failed} runs failed")) } else { Ok(()) }
    }

    fn one(&self, job: &Job<'_>) -> Outcome {
        if !self.options.all
            && let Some((_, feature)) =
                MISSING.iter().find(|(word, _)| job.script.to_string_lossy().contains(word))
        {
            return Outcome::Skipped(feature);
        }
        let settings = self.temp.join(job.index.to_string());
        match self.try_one(job, &settings) {
            Ok(outcome) => outcome,
            Err(error) => Outcome::Failed(error.to_string()),
        }
    }

    fn try_one(&self, job: &Job<'_>, settings: &Path) -> std::io::Result<Outcome> {
        shims::make_tree(settings)?;
        let text = String::from_utf8_lossy(&fs::read(job.script)?).into_owned();
        if text.contains("nstat") {
            // The library keeps it up to date where it is.
            fs::write(settings.join("nstat"), "")?;
        }
        let log = settings.join("log");
        let out = fs::File::create(&log)?;
        let directory = job.script.parent().unwrap_or(Path::new("."));
        let mut path = self.temp.join("bin").into_os_string();
        path.push(":");
        path.push(env::var_os("PATH").unwrap_or_default());
        // The program replaces the shell, so that ending this process ends it.
        let script = "mount --bind \"$1/net\" /proc/sys/net && mount --bind \"$1/module\" /sys/module \
                      && shift && library=$1 && shift && LD_PRELOAD=$library exec packetdrill \"$@\"";
        let mut command = Command::new("unshare");
        command.args(self.private).args(["sh", "-c", script, "sh"]).arg(settings).arg(&self.library);
        command.arg(format!("--so_filename={}", self.library.display()));
        command.arg(format!("--so_flags={}", flags(job.variant, &text)));
        command.args(job.variant.args);
        if job.variant.name != "ipv6" {
            command.args(V4);
        }
        command.arg(job.script).current_dir(directory);
        command.env("PATH", path).env("SOFTNET_PACKETDRILL_SETTINGS", settings);
        command.stdin(Stdio::null()).stdout(out.try_clone()?).stderr(out);
        let ended = wait(command.spawn()?, self.options.timeout)?;
        let printed = String::from_utf8_lossy(&fs::read(&log)?).into_owned();
        let printed = if self.options.verbose { printed } else { last_lines(&printed, 6) };
        Ok(match ended {
            Some(status) if status.success() => Outcome::Ok,
            Some(status) if printed.is_empty() => Outcome::Failed(status.to_string()),
            Some(_) => Outcome::Failed(printed),
            None => {
                let seconds = self.options.timeout.as_secs();
                Outcome::Failed(format!("{printed}\nno end within {seconds} s"))
            }
        })
    }
}

/// What the library is told: the script's own options, which stand in its first lines, come first.
fn flags(variant: &Variant, script: &str) -> String {
    let own = |name: &str| {
        let lines = script
            .lines()
            .take_while(|line| line.starts_with("--") || line.trim().is_empty() || line.starts_with("//"));
        lines.flat_map(str::split_whitespace).find_map(|word| Some(word.strip_prefix(name)?.to_owned()))
    };
    let mtu = own("--mtu=").unwrap_or_else(|| variant.mtu.to_string());
    let mut flags = format!("mtu={mtu}");
    if let Some(ip) = own("--local_ip=") {
        let _ = write!(flags, ",local{}={ip}", if ip.contains(':') { 6 } else { 4 });
    }
    if let Some(size) = own("--mss=") {
        let _ = write!(flags, ",gso={size}");
    }
    if own("--strict_segments").is_some() {
        flags += ",whole";
    }
    flags
}

/// Waits for a process, and ends it if it takes too long: then `None`.
fn wait(mut child: Child, timeout: Duration) -> std::io::Result<Option<std::process::ExitStatus>> {
    let began = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if began.elapsed() > timeout {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        thread::sleep(Duration::from_millis(5));
    }
}

fn last_lines(text: &str, n: usize) -> String {
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(n)..].join("\n")
}

fn line(job: &Job<'_>, outcome: &Outcome, width: usize) -> String {
    let (name, variant) = (job.name, job.variant.name);
    match outcome {
        Outcome::Ok => format!("ok      {name:width$}  {variant}"),
        Outcome::Skipped(why) => format!("skipped {name:width$}  {variant:11}  {why}"),
        Outcome::Failed(printed) => {
            let printed = printed.replace('\n', "\n        ");
            format!("FAILED  {name:width$}  {variant}\n        {printed}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scripts_own_options_come_first() {
        let script =
            "// about\n--mtu=1060\n--local_ip=fd::1 --strict_segments\n\n 0 socket(...) = 3\n--mtu=9\n";
        assert_eq!(flags(&VARIANTS[0], script), "mtu=1060,local6=fd::1,whole");
        assert_eq!(flags(&VARIANTS[2], "0 socket(...) = 3\n"), "mtu=1520");
    }

    #[test]
    fn options_are_read_and_others_refused() {
        let options = Options::parse(&["--filter", "a", "--filter", "b", "--jobs", "3"]).unwrap();
        assert_eq!((options.filters, options.jobs), (vec!["a".to_owned(), "b".to_owned()], 3));
        assert!(Options::parse(&["--filter"]).is_err());
        assert!(Options::parse(&["--nonsense"]).is_err());
    }

    #[test]
    fn the_last_lines_are_told() {
        assert_eq!(last_lines("a\n\nb\nc\n", 2), "b\nc");
        assert_eq!(last_lines("", 2), "");
    }
}
