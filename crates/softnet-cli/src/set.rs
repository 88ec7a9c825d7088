//! `softnet set`: changes a running instance.

use softnet::config::{Context, Knobs, ParseError, SteeringMode};
use softnet::control::show::{NapiRow, SteeringRow};
use softnet::control::{Client, Request, Set, SetKnobs, SetSteering, Target};
use softnet_core::gro::{GroMode, NoSuchMode};
use softnet_core::napi::MAX_DEFER_HARD_IRQS;
use softnet_core::steer::rfs::FlowTable;

use crate::Failure;
use crate::rss;
use crate::show::{napi, rows};
use crate::text::{print, print_json};

/// Change which threads poll the queues of a running instance, when their doorbells ring, and which
/// workers go on with what they bring.
#[derive(clap::Args)]
#[command(name = "set", after_help = EXAMPLES)]
pub(crate) struct SetArgs {
    /// Whether ID is the name of a device (all its queues) or the id of a NAPI instance (one
    /// queue); or `rss`: how the device ID spreads flows over its queues.
    #[arg(value_enum)]
    what: What,
    /// The device or the instance, as `softnet show napi` has them.
    #[arg(value_name = "ID")]
    id: String,
    /// What to set: `threaded=CONTEXT`, `napi-defer-hard-irqs=N`, `gro-flush-timeout=NANOSECONDS`,
    /// `irq-suspend-timeout=NANOSECONDS`, `gro=MODE`, `steering=MODE`, `processing-cpu=CPU`,
    /// `rps-cpus=CPUS`, `rps-flow-cnt=N`.
    #[arg(value_name = "KEY=VALUE", value_parser = setting, required = true)]
    settings: Vec<Setting>,
    /// The instance: its name (`stack.name`), or the path of its control socket. Without it, the only one running.
    #[arg(long)]
    name: Option<String>,
    /// Print the NAPI instances it was about as JSON; or, of steering alone, the rows of `softnet
    /// show steering`.
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Contexts:
  softirq (0, disabled)   the worker that the queue belongs to, pinned to its CPU
  threaded (1, enabled)   a thread for each queue, napi/DEV-ID, which sleeps while the queue is quiet
  workqueue               a pool of threads, napi-wq/N, shared by all queues in this context
  busy-poll               a thread for each queue that never sleeps, and burns what the scheduler gives it

Deferral (in all but busy-poll, which never unmasks a doorbell; the kernel's knobs of the same names; it takes both):
  napi-defer-hard-irqs    polls without work, after the last one with work, that leave the doorbell masked
  gro-flush-timeout       nanoseconds from one of these polls to the next; `softnet show napi` says how many it is in effect

Suspension (with deferral, and an application that polls its queue by itself, with prefer_busy_poll):
  irq-suspend-timeout     nanoseconds for which the application may leave its queue masked while it works on what it received.
                          A safety net: a little more than its longest work, far more than gro-flush-timeout. If the
                          application hangs, others on the queue wait that long once.

GRO (packets of a flow that follow each other become one, and are cut into the same packets where they leave; `softnet show
napi` counts):
  gro                     off; frags, TCP (the kernel's rx-gro); frags-udp, and UDP (rx-udp-gro-forwarding); list, both as lists
                          of whole packets, whose checksums are not looked at (rx-gro-list)

Steering (the kernel's knobs; CPUs are those of workers; `softnet show steering` says what becomes of packets):
  steering                where the next two set nothing: auto, chosen by load and what wake-ups cost; off, packets stay
  processing-cpu          the CPU whose worker goes on with all that the queue brings; none: the thread that polls it
  rps-cpus                the CPUs over whose workers flows are spread, as a list: 0-3,8; none: they stay
  rps-flow-cnt            entries of the queue's table of flows that follow the threads which consume them; 0: none does

A knob that can't act is set all the same, and a warning says what it lacks.

RSS, in `ethtool -X`'s words (`softnet show rss` says how it is):
  equal N [start Q]       spread over N queues, from queue Q on; default: over all
  weight W0 W1 … [start Q]  by these weights
  hkey xx:xx:…            the key, of 40 bytes; one that would send different flows to one queue is refused. One that senders
                          may know has them choose flows that all come to one queue: by itself each start has a secret one
  xfrm symmetric-xor      both directions of a flow to one queue (symmetric-or-xor: and more of the flow counts); none: as usual
  rx-flow-hash udp4 sd    hash addresses only (sdfn: and ports) of tcp4, udp4, tcp6 or udp6
  context new|N …         the same for a table of its own, to which filters lead (`softnet ntuple --help`); context N delete

A change moves flows from one queue to another at once: what is in the old queue may be overtaken, as on any NIC. It is
made again when the interface goes and comes back, but for contexts and filters; the key `rss` of the configuration has the
same words. On an interface of the kernel it outlives softnet.

Threads other than workers are not pinned: `taskset` and `chrt` work on them. Packets wait in the device's ring during
a switch; none is lost, and flows keep their order. What is set for a device overrides what was set for its queues, and
is remembered when its interface goes and comes back.

Examples:
  softnet set dev eth1 threaded=1
  softnet set napi 8194 threaded=busy-poll
  softnet set dev eth1 rps-cpus=0-3 rps-flow-cnt=4096
  softnet set dev eth1 gro=frags
  softnet set dev eth1 napi-defer-hard-irqs=2 gro-flush-timeout=20000
  softnet set napi 8194 napi-defer-hard-irqs=100 gro-flush-timeout=20000 irq-suspend-timeout=20000000
  softnet set rss eth1 weight 6 2
  softnet set rss eth1 context new equal 2
  taskset -p -c 3 $(softnet set napi 8194 threaded=1 --json | jq .[0].tid)";

#[derive(Clone, Copy, clap::ValueEnum)]
enum What {
    /// A device.
    Dev,
    /// A NAPI instance.
    Napi,
    /// How a device spreads flows over its RX queues.
    Rss,
}

/// One `KEY=VALUE`.
#[derive(Clone)]
enum Setting {
    Threaded(Context),
    DeferHardIrqs(u64),
    GroFlushTimeout(u64),
    IrqSuspendTimeout(u64),
    Gro(GroMode),
    Steering(SteeringMode),
    ProcessingCpu(String),
    RpsCpus(String),
    RpsFlowCnt(u32),
    /// A word of `set rss`.
    Word(String),
}

fn setting(text: &str) -> Result<Setting, String> {
    let within = |value: &str, max: u64, of: &str| match value.parse() {
        Ok(number) if number <= max => Ok(number),
        _ => Err(format!("expected a whole number{of} from 0 to {max}, found {value:?}")),
    };
    let polls = |value| within(value, MAX_DEFER_HARD_IRQS.into(), "");
    let ns = |value| within(value, u64::MAX, " of nanoseconds");
    match text.split_once('=') {
        Some(("threaded", value)) => {
            value.parse().map(Setting::Threaded).map_err(|error: ParseError| error.to_string())
        }
        Some(("napi-defer-hard-irqs", value)) => polls(value).map(Setting::DeferHardIrqs),
        Some(("gro-flush-timeout", value)) => ns(value).map(Setting::GroFlushTimeout),
        Some(("irq-suspend-timeout", value)) => ns(value).map(Setting::IrqSuspendTimeout),
        Some(("gro", value)) => {
            value.parse().map(Setting::Gro).map_err(|error: NoSuchMode| error.to_string())
        }
        Some(("steering", value)) => {
            value.parse().map(Setting::Steering).map_err(|error: ParseError| error.to_string())
        }
        Some(("processing-cpu", value)) => Ok(Setting::ProcessingCpu(value.into())),
        Some(("rps-cpus", value)) => Ok(Setting::RpsCpus(value.into())),
        Some(("rps-flow-cnt", value)) => {
            within(value, FlowTable::MAX.into(), "").map(|flows| Setting::RpsFlowCnt(flows as u32))
        }
        Some((key, _)) => Err(format!(
            "unknown key {key:?}; expected threaded, napi-defer-hard-irqs, gro-flush-timeout, irq-suspend-timeout, gro, \
             steering, processing-cpu, rps-cpus or rps-flow-cnt"
        )),
        None => Ok(Setting::Word(text.into())),
    }
}

/// Runs the command.
pub(crate) fn set(args: &SetArgs) -> Result<(), Failure> {
    let words = args.settings.iter().filter_map(|setting| match setting {
        Setting::Word(word) => Some(&word[..]),
        _ => None,
    });
    let words: Vec<&str> = words.collect();
    let target = match args.what {
        What::Rss if words.len() < args.settings.len() => {
            let found = "`set rss` takes words, such as equal 4, no KEY=VALUE";
            return Err(Failure::Usage(found.into()));
        }
        What::Rss => return rss::set(&args.id, &words.join(" "), args.name.as_deref(), args.json),
        _ if !words.is_empty() => {
            return Err(Failure::Usage(format!(
                "expected KEY=VALUE, such as threaded=1, found {:?}",
                words[0]
            )));
        }
        What::Dev => Target::Dev(args.id.clone()),
        What::Napi => Target::Napi(args.id.parse().map_err(|_| {
            Failure::Usage(format!("expected the id of a NAPI instance (a number), found {:?}", args.id))
        })?),
    };
    let failed = |error: softnet::control::ClientError| Failure::Run(error.to_string());
    let client = Client::new(args.name.as_deref()).map_err(failed)?;
    let mut knobs = Knobs::default();
    let mut steering = SetSteering {
        target: target.clone(),
        steering: None,
        processing_cpu: None,
        rps_cpus: None,
        rps_flow_cnt: None,
    };
    let mut threaded = None;
    for setting in &args.settings {
        match *setting {
            Setting::Threaded(context) => threaded = Some(context),
            Setting::Steering(mode) => steering.steering = Some(mode),
            Setting::ProcessingCpu(ref cpu) => steering.processing_cpu = Some(cpu.clone()),
            Setting::RpsCpus(ref cpus) => steering.rps_cpus = Some(cpus.clone()),
            Setting::RpsFlowCnt(flows) => steering.rps_flow_cnt = Some(flows),
            Setting::DeferHardIrqs(n) => knobs.napi_defer_hard_irqs = Some(n),
            Setting::GroFlushTimeout(ns) => knobs.gro_flush_timeout = Some(ns),
            Setting::Word(_) => {}
            Setting::IrqSuspendTimeout(ns) => knobs.irq_suspend_timeout = Some(ns),
            Setting::Gro(mode) => knobs.gro = Some(mode),
        }
    }
    let mut napis: Vec<NapiRow> = Vec::new();
    if knobs != Knobs::default() {
        napis = client.ask(&Request::Knobs(SetKnobs { target: target.clone(), knobs })).map_err(failed)?;
    }
    let steers = (steering.steering, &steering.processing_cpu, &steering.rps_cpus, steering.rps_flow_cnt)
        != (None, &None, &None, None);
    if steers {
        let rows: Vec<SteeringRow> = client.ask(&Request::Steering(steering)).map_err(failed)?;
        if knobs == Knobs::default() && threaded.is_none() {
            return steered(args, rows);
        }
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
        return print_json(&napis);
    }
    if napis.is_empty() {
        return print(&format!("{}: set, for when its interface is there\n", args.id));
    }
    print(&napi::pollers(&napis))?;
    let set =
        |n: &&NapiRow| n.napi_defer_hard_irqs > 0 || n.gro_flush_timeout > 0 || n.irq_suspend_timeout > 0;
    // Also those that were just set to 0.
    let shown = napis.iter().filter(|n| knobs != Knobs::default() || set(n));
    let lines = shown.map(|n| {
        format!(
            "{}: napi-defer-hard-irqs {}, gro-flush-timeout {} ns, irq-suspend-timeout {} ns, gro {}\n",
            n.name, n.napi_defer_hard_irqs, n.gro_flush_timeout, n.irq_suspend_timeout, n.gro.mode
        )
    });
    print(&lines.collect::<String>())
}

/// Says what queues steer now.
fn steered(args: &SetArgs, mut rows: Vec<SteeringRow>) -> Result<(), Failure> {
    for row in &rows {
        if let Some(warning) = &row.warning {
            eprintln!("warning: {}: {warning}", row.name);
        }
    }
    if args.json {
        return print_json(&rows);
    }
    if rows.is_empty() {
        return print(&format!("{}: set, for when its interface is there\n", args.id));
    }
    // Once is enough.
    rows.iter_mut().for_each(|row| row.warning = None);
    print(&rows::table(&rows, None))
}
