//! `softnet reload`: has a running instance read its configuration again.

use softnet::control::{Client, Reloaded, Request};

use crate::Failure;
use crate::text::{print, print_json};

/// Have a running instance read its configuration again, and apply the difference.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub(crate) struct Reload {
    /// The instance: its name (`stack.name`), or the path of its control socket. Without it, the only one running.
    #[arg(long)]
    name: Option<String>,
    /// Print what was changed as JSON.
    #[arg(long)]
    json: bool,
}

const HELP: &str = "\
The file that `softnet run` was started with is read and checked as a whole. If anything in it is wrong, or can't be
changed while the instance runs, nothing is changed, and the error names file, line and key. SIGHUP does the same, and
says in the log what came of it.

What can be changed: addresses, [[route]], [[neighbour]], the rules of [nat], [filter] with [[rule]] and [[set]], and of
a device qdisc, threaded, napi_defer_hard_irqs, gro_flush_timeout, irq_suspend_timeout, gro, send_redirects, arp_notify,
ndisc_notify and dad. A device that is new is added, also a VLAN; one that the file does not have any more is closed and
given back, and comes back by a later reload. Of a device of driver xdp or packet the driver and its keys, and of all but
VLANs workers, partial_csum, rp_filter, tx_queue_len, xps_cpus and xps_rxqs, have it opened anew: it loses what is on its
way by it, others lose nothing. All else takes a restart: keys of a TAP or a VLAN, rss, steering, processing_cpu,
rps_cpus, rps_flow_cnt, [stack], [tcp], [control], the size of tables.

Only what the file says otherwise than when it was read last is changed. So what `softnet route`, `addr`, `neigh`, `set`,
`qdisc` and `filter` changed stays. (A route of the file that was removed by hand is there again.)";

/// Runs the command.
pub(crate) fn reload(args: &Reload) -> Result<(), Failure> {
    let failed = |error: softnet::control::ClientError| Failure::Run(error.to_string());
    let client = Client::new(args.name.as_deref()).map_err(failed)?;
    let done: Reloaded = client.ask(&Request::Reload).map_err(failed)?;
    if args.json {
        return print_json(&done);
    }
    print(&text(&done))
}

/// A line for each change.
pub(crate) fn text(done: &Reloaded) -> String {
    match &done.changes[..] {
        [] => "nothing to change\n".into(),
        changes => changes.iter().map(|change| format!("{change}\n")).collect(),
    }
}
