//! `softnet set`: changes a running instance.

use softnet::context::Context;
use softnet::control::{Client, Request, Set, SetKnobs, Target};
use softnet::netdev::Knobs;
use softnet::show::NapiRow;

use crate::Failure;
use crate::show::rows;
use crate::text::print;

/// Change who polls the queues of a running instance, and when their doorbells ring.
#[derive(clap::Args)]
#[command(name = "set", after_help = EXAMPLES)]
pub(crate) struct SetArgs {
    /// Whether ID is the name of a device (all its queues) or the id of a NAPI instance (one queue).
    #[arg(value_enum)]
    what: What,
    /// The device or the instance, as `softnet show napi` has them.
    #[arg(value_name = "ID")]
    id: String,
    /// What to set: `threaded=CONTEXT`, `napi-defer-hard-irqs=N`, `gro-flush-timeout=NANOSECONDS`.
    #[arg(value_name = "KEY=VALUE", value_parser = setting, required = true)]
    settings: Vec<Setting>,
    /// The instance: its name (`stack.name`), or the path of its control socket. Without it, the only one running.
    #[arg(long)]
    name: Option<String>,
    /// Print the NAPI instances it was about as JSON.
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Contexts:
  softirq (0, disabled)   the worker that the queue belongs to, pinned to its CPU
  threaded (1, enabled)   a thread for each queue, napi/DEV-ID, which sleeps while the queue is quiet
  workqueue               a pool of threads, napi-wq/N, shared by all queues in this context
  busy-poll               a thread for each queue that never sleeps, and burns what the scheduler gives it

Deferral (in softirq and threaded; the kernel's knobs of the same names):
  napi-defer-hard-irqs    polls without work, after the last one with work, that leave the doorbell masked
  gro-flush-timeout       nanoseconds from one of these polls to the next

Threads other than workers are not pinned: `taskset` and `chrt` work on them. Packets wait in the device's ring during
a switch; none is lost, and flows keep their order. What is set for a device overrides what was set for its queues, and
is remembered when its interface goes and comes back.

Examples:
  softnet set dev eth1 threaded=1
  softnet set napi 8194 threaded=busy-poll
  softnet set dev eth1 napi-defer-hard-irqs=2 gro-flush-timeout=20000
  taskset -p -c 3 $(softnet set napi 8194 threaded=1 --json | jq .[0].tid)";

#[derive(Clone, Copy, clap::ValueEnum)]
enum What {
    /// A device.
    Dev,
    /// A NAPI instance.
    Napi,
}

/// One `KEY=VALUE`.
#[derive(Clone)]
enum Setting {
    Threaded(Context),
    DeferHardIrqs(u64),
    GroFlushTimeout(u64),
    IrqSuspendTimeout(u64),
}

fn setting(text: &str) -> Result<Setting, String> {
    let number = |value: &str| value.parse().map_err(|_| format!("expected a whole number, found {value:?}"));
    match text.split_once('=') {
        Some(("threaded", value)) => value.parse().map(Setting::Threaded),
        Some(("napi-defer-hard-irqs", value)) => number(value).map(Setting::DeferHardIrqs),
        Some(("gro-flush-timeout", value)) => number(value).map(Setting::GroFlushTimeout),
        Some(("irq-suspend-timeout", value)) => number(value).map(Setting::IrqSuspendTimeout),
        Some((key, _)) => Err(format!(
            "unknown key {key:?}; expected threaded, napi-defer-hard-irqs, gro-flush-timeout or irq-suspend-timeout"
        )),
        None => Err("expected KEY=VALUE, such as threaded=1".into()),
    }
}

/// Runs the command.
pub(crate) fn set(args: &SetArgs) -> Result<(), Failure> {
    let target = match args.what {
        What::Dev => Target::Dev(args.id.clone()),
        What::Napi => Target::Napi(args.id.parse().map_err(|_| {
            Failure::Usage(format!("expected the id of a NAPI instance (a number), found {:?}", args.id))
        })?),
    };
    let failed = |error: softnet::control::client::ClientError| Failure::Run(error.to_string());
    let client = Client::new(args.name.as_deref()).map_err(failed)?;
    let mut knobs = Knobs::default();
    let mut threaded = None;
    for setting in &args.settings {
        match *setting {
            Setting::Threaded(context) => threaded = Some(context),
            Setting::DeferHardIrqs(n) => knobs.napi_defer_hard_irqs = Some(n),
            Setting::GroFlushTimeout(ns) => knobs.gro_flush_timeout = Some(ns),
            Setting::IrqSuspendTimeout(ns) => knobs.irq_suspend_timeout = Some(ns),
        }
    }
    let mut napis: Vec<NapiRow> = Vec::new();
    if knobs != Knobs::default() {
        napis = client.ask(&Request::Knobs(SetKnobs { target: target.clone(), knobs })).map_err(failed)?;
    }
    if let Some(threaded) = threaded {
        napis = client.ask(&Request::Set(Set { target, threaded })).map_err(failed)?;
    }
    for napi in &napis {
        if let Some(warning) = &napi.warning {
            eprintln!("warning: {}: {warning}", napi.name);
        }
    }
    if args.json {
        let text = serde_json::to_string_pretty(&napis).map_err(|e| Failure::of("writing JSON", e))?;
        return print(&format!("{text}\n"));
    }
    if napis.is_empty() {
        return print(&format!("{}: set, for when its interface is there\n", args.id));
    }
    print(&rows::table(&napis, None))?;
    let deferring = napis.iter().filter(|n| n.napi_defer_hard_irqs > 0 || n.gro_flush_timeout > 0);
    let lines = deferring.map(|n| {
        format!(
            "{}: napi-defer-hard-irqs {}, gro-flush-timeout {} ns\n",
            n.name, n.napi_defer_hard_irqs, n.gro_flush_timeout
        )
    });
    print(&lines.collect::<String>())
}
