//! `softnet run`: a stack from a configuration file, until a signal ends it.

use std::path::PathBuf;

use rustix::process::Signal;
use softnet::config::Config;
use softnet::control::Reloaded;
use softnet::log::{self, Level};
use softnet_dev::netlink::Netlink;
use softnet_dev::process::{Signals, ignore_signals, raise_files_limit, return_large_memory};
use softnet_dev::{closer, confine};

use crate::Failure;
use crate::instance::{self, Instance};
use crate::reload;
use crate::supervisor;
use crate::text::print;

/// Run a stack from a configuration file, until SIGINT or SIGTERM.
#[derive(Clone, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Run {
    /// The configuration, in TOML.
    config: PathBuf,
    /// Only check the configuration; touch no interface (and look at none without --live).
    #[arg(long)]
    check: bool,
    /// With --check: also look at the interfaces, as they are now. None is touched.
    #[arg(long, requires = "check")]
    live: bool,
    /// Take every interface it names, even one that carries the machine's default route or hides
    /// VLAN tags, and addresses even if the kernel has them (as `force = true` does for one
    /// device).
    #[arg(long)]
    force: bool,
    /// Take the place of the instance that runs under the same name: it goes on until this one is
    /// ready, then hands over its devices, and ends. Forwarding stops for a few milliseconds, and
    /// what waits in rings goes on; packets that wait for a neighbour or in a shaper, and parts of
    /// datagrams, are dropped.
    #[arg(long, conflicts_with = "check")]
    take_over: bool,
    /// With --take-over: the name of the running instance, and then of this one, instead of
    /// stack.name; or the path of its control socket.
    #[arg(long, requires = "take_over")]
    name: Option<String>,
    /// What is told on standard error while it runs: of error, warn, info, debug those up to this.
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    log_level: Level,
}

const EXAMPLES: &str = r#"A small router:

  [[device]]
  name = "eth1"
  addresses = ["10.0.0.1/24"]

  [[device]]
  name = "eth2"
  addresses = ["10.0.1.1/24"]

  [[route]]
  to = "0.0.0.0/0"
  via = "10.0.1.254"

examples/router.toml in the source tree has every key, explained.

Of an interface, softnet takes IPv4 frames to its MAC address (except for IP addresses that the kernel has, on whatever interface), and ARP for its own addresses; on a device with an IPv6 address in its `addresses`, IPv6 frames by the same rule, and neighbour solicitations for its own addresses. The rest stays with the kernel. The interface that carries the default route is refused without --force (or `force = true` in its [[device]]), and so is an address that the kernel has, too, which `shared = true` shares with it.

Needs root, or CAP_NET_ADMIN, CAP_BPF, CAP_NET_RAW and CAP_IPC_LOCK. While it runs, `softnet show` looks inside.

It gives up what a router has no use for before it takes an interface: other capabilities than those, and system calls such as execve, ptrace and mount, which fail with EPERM (seccomp).

SIGINT and SIGTERM end it; SIGUSR1 and SIGUSR2 are ignored. SIGHUP has it read the configuration again, as `softnet reload` does: what differs is applied, or, if it is wrong, nothing is changed.

Lines on standard error begin with the instance's name; under journald they have priorities (`journalctl -p warning`).

Started by systemd in a unit of Type=notify, it says when it runs and when it stops (sd_notify).

With --take-over it takes the place of the running instance of the same name, say that of an older version: see "Upgrading without a pause" in the book. Its configuration, which must have the same interfaces with the same `ring` and `mode`, and the same `frames`, is read and checked first; if anything is wrong, the running instance goes on.

Exit codes: 0 stopped by a signal or taken over, 1 failed, 2 the configuration is wrong (every error is listed)."#;

impl Run {
    /// What is said on the command line comes before what the file says.
    fn change(&self, config: &mut Config) {
        config.devices.iter_mut().for_each(|device| device.force |= self.force);
        match &self.name {
            Some(path) if path.contains('/') => config.stack.control = Some(path.into()),
            Some(name) => (config.stack.name, config.stack.control) = (name.clone(), None),
            None => {}
        }
    }
}

/// Runs the command.
pub(crate) fn run(args: &Run) -> Result<(), Failure> {
    return_large_memory();
    // Before any other thread is made: they inherit that the signals are blocked.
    let signals = (!args.check).then(be_a_daemon).transpose()?;
    let mut config = Config::load(&args.config).map_err(|errors| {
        let many = match errors.problems.len() {
            1 => "1 error".into(),
            n => format!("{n} errors"),
        };
        signals.iter().for_each(supervisor::pause);
        Failure::Usage(format!("the configuration has {many}; no interface was touched\n{errors}"))
    })?;
    args.change(&mut config);
    let summary = [
        (config.devices.len(), "device"),
        (config.stack.workers.len(), "worker"),
        (config.routes.len(), "route"),
        (config.neighbours.len(), "neighbour"),
    ]
    .map(|(n, what)| format!("{n} {what}{}", if n == 1 { "" } else { "s" }))
    .join(", ");
    let Some(signals) = signals else {
        // As it is here and now; the device's own is looked at when it is opened.
        let mtu = |name: &str| Netlink::new().ok()?.link(name).ok()?.map(|link| link.mtu);
        config.warnings(mtu).iter().for_each(|warning| eprintln!("warning: {warning}"));
        if args.live {
            let found: Vec<String> = config.look().iter().map(ToString::to_string).collect();
            if !found.is_empty() {
                return Err(Failure::Run(found.join("\n")));
            }
        }
        return print(&format!("{}: ok: {summary}\n", args.config.display()));
    };
    let path = config.stack.socket_path();
    let name = config.stack.name.clone();
    log::set(&name, args.log_level);
    give_up_privileges();
    let stack = match args.take_over {
        true => instance::take_over(config)?,
        false => instance::start_shown(config).inspect_err(|_| supervisor::pause(&signals))?,
    };
    let again = args.clone();
    stack.view().on_reload(move || {
        let mut config = Config::load(&again.config)?;
        again.change(&mut config);
        Ok(config)
    });
    let own = name.clone();
    stack.view().on_hand_over(move |how| match how {
        Ok(()) => {
            // It may not be read any more.
            let _ = print(&format!("{own}: handed over\n"));
            std::process::exit(0)
        }
        Err(why) => {
            log::say(Level::Error, format_args!("the process that took over failed: {why}"));
            std::process::exit(1)
        }
    });
    let instead = stack.predecessor().map_or_else(String::new, |(pid, pause)| {
        format!(" in the place of pid {pid}, after {:.1} ms", pause.as_secs_f64() * 1000.0)
    });
    // Before anything is printed, which waits while nobody reads a pipe that is full.
    supervisor::ready(&format!("running: {summary}"), args.take_over);
    if let Err(error) = stack.end_predecessor() {
        log::say(Level::Warn, format_args!("{error}"));
    }
    // The router runs whether or not this is read.
    let _ = print(&format!(
        "{name}: running{instead}: {summary}; `softnet show stats --name {}`\n",
        shown_name(&name, &path)
    ));
    while signals.wait(None) == Some(Signal::HUP.as_raw()) {
        match stack.view().reload() {
            Ok(done) => log::say(Level::Info, format_args!("configuration read again: {}", told(&done))),
            Err(error) => log::say(Level::Error, format_args!("configuration read again: {error}")),
        }
    }
    supervisor::stopping();
    // A second signal ends it at once, without a tidy end.
    std::thread::spawn(move || {
        while signals.wait(None) == Some(Signal::HUP.as_raw()) {}
        std::process::exit(1);
    });
    stack.stop();
    let _ = print(&format!("{name}: stopped\n"));
    Ok(())
}

/// Before anything else: signals come by the descriptor, and what a process that is killed leaves open is closed
/// by another.
fn be_a_daemon() -> Result<Signals, Failure> {
    ignore_signals();
    let signals = Signals::with_hangup().map_err(|error| Failure::of("waiting for signals", error))?;
    // The other has the limit that there is now.
    raise_files_limit();
    // Without it a successor waits longer for what this process leaves behind.
    let _ = closer::start();
    Ok(signals)
}

/// Before any other thread is made, and before a device is opened: what the start can do without, reading
/// the configuration again can, too. The router runs without it as well.
fn give_up_privileges() {
    let failed = |what: &str, error| log::say(Level::Warn, format_args!("{what}: {error}"));
    if let Err(error) = confine::drop_capabilities() {
        failed("keeps capabilities that it has no use for", error);
    }
    if let Err(error) = confine::filter_system_calls() {
        failed("system calls that it has no use for are not refused", error);
    }
}

/// What a reload changed, below each other.
fn told(done: &Reloaded) -> String {
    let lines = reload::text(done);
    if done.changes.len() > 1 { format!("\n{lines}") } else { lines }
}

/// How `softnet show --name` finds the instance.
fn shown_name(name: &str, path: &std::path::Path) -> String {
    if path == softnet::config::socket_path(name) { name.into() } else { path.display().to_string() }
}
