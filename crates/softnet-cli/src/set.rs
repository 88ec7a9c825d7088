//! `softnet set`: changes a running instance.

use softnet::context::Context;
use softnet::control::{Client, Request, Set, Target};
use softnet::show::NapiRow;

use crate::Failure;
use crate::show::rows;
use crate::text::print;

/// Change who polls the queues of a running instance.
#[derive(clap::Args)]
#[command(name = "set", after_help = EXAMPLES)]
pub(crate) struct SetArgs {
    /// Whether ID is the name of a device (all its queues) or the id of a NAPI instance (one queue).
    #[arg(value_enum)]
    what: What,
    /// The device or the instance, as `softnet show napi` has them.
    #[arg(value_name = "ID")]
    id: String,
    /// What to set: `threaded=CONTEXT`.
    #[arg(value_name = "KEY=VALUE", value_parser = setting)]
    setting: Context,
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

Threads other than workers are not pinned: `taskset` and `chrt` work on them. Packets wait in the device's ring during
a switch; none is lost, and flows keep their order. What is set for a device overrides what was set for its queues, and
is remembered when its interface goes and comes back.

Examples:
  softnet set dev eth1 threaded=1
  softnet set napi 8194 threaded=busy-poll
  taskset -p -c 3 $(softnet set napi 8194 threaded=1 --json | jq .[0].tid)";

#[derive(Clone, Copy, clap::ValueEnum)]
enum What {
    /// A device.
    Dev,
    /// A NAPI instance.
    Napi,
}

fn setting(text: &str) -> Result<Context, String> {
    match text.split_once('=') {
        Some(("threaded", value)) => value.parse(),
        Some((key, _)) => Err(format!("unknown key {key:?}; expected threaded")),
        None => Err("expected threaded=CONTEXT".into()),
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
    let request = Request::Set(Set { target, threaded: args.setting });
    let napis: Vec<NapiRow> = client.ask(&request).map_err(failed)?;
    if args.json {
        let text = serde_json::to_string_pretty(&napis).map_err(|e| Failure::of("writing JSON", e))?;
        return print(&format!("{text}\n"));
    }
    if napis.is_empty() {
        return print(&format!("{}: {}, once its interface is there\n", args.id, args.setting));
    }
    print(&rows::table(&napis, None))
}
