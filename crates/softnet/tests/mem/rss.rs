//! RSS and ntuple filters of a device: flows are received by the queue that the table says, unless
//! a filter says otherwise; changing either loses nothing.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use softnet::control::show::NtupleRow;
use softnet::control::{SetNtuple, SetRss};
use softnet_core::steer::{flow_hash, flow_hkey, format_key};

use super::frames::{host, number_of, numbered, to_port};
use super::world::{Lane, Setup, World, of_port, on_all, until};

const QUEUES: usize = 4;
const FLOWS: u16 = 64;

fn start() -> (World, Vec<Lane>) {
    Setup { ports: &[QUEUES, QUEUES], workers: 2, known: true, rss: true, ..Setup::default() }.start()
}

/// A packet of flow `flow`, to be forwarded.
fn of_flow(flow: u16, number: u32) -> Vec<u8> {
    to_port(numbered(0, host(1), flow.into(), number), flow)
}

/// Packets that each queue of the first port received.
fn by_queue(world: &World) -> Vec<u64> {
    let rows = world.view.napis();
    rows.iter().filter(|row| row.dev == "mem0").map(|row| row.packets).collect()
}

fn drain(sinks: &mut [Lane]) -> usize {
    sinks.iter_mut().map(|sink| sink.receive(|_| {})).sum()
}

/// Sends a packet of each flow by `lane`, and returns how many each queue received. `dropped` of
/// them do not arrive.
fn sweep(world: &World, lane: &mut Lane, sinks: &mut [Lane], dropped: u64) -> Vec<u64> {
    let before = by_queue(world);
    let frames: Vec<_> = (0..FLOWS).map(|flow| of_flow(flow, 0)).collect();
    assert_eq!(lane.send(&frames), frames.len());
    let mut got = 0;
    until("what is forwarded", || {
        got += drain(sinks);
        got as u64 == u64::from(FLOWS) - dropped
    });
    let received =
        || by_queue(world).iter().zip(&before).map(|(now, before)| now - before).collect::<Vec<_>>();
    until("the counters", || received().iter().sum::<u64>() == u64::from(FLOWS) - dropped);
    received()
}

/// What the queues should get by `table` alone.
fn expected(table: impl Fn(usize) -> usize) -> Vec<u64> {
    let mut queues = vec![0; QUEUES];
    for flow in 0..FLOWS {
        queues[table(flow_hash(&of_flow(flow, 0)) as usize & 127)] += 1;
    }
    queues
}

fn set_rss(world: &World, change: &str) -> Result<Option<u32>, String> {
    let set = SetRss { dev: "mem0".into(), change: change.into() };
    world.view.set_rss(&set).map(|answer| answer.context).map_err(|error| error.to_string())
}

fn set_ntuple(world: &World, change: &str) -> Result<u32, String> {
    let set = SetNtuple { dev: "mem0".into(), change: change.into() };
    world.view.set_ntuple(&set).map(|answer| answer.location).map_err(|error| error.to_string())
}

fn drops(world: &World) -> u64 {
    let rows = world.view.drops();
    rows.iter()
        .find(|row| (&row.dev[..], &row.reason[..]) == ("mem0", "ntuple_drop"))
        .map_or(0, |row| row.packets)
}

#[test]
fn flows_are_received_by_the_queue_that_the_table_says() {
    let (world, mut lanes) = start();
    let mut sinks = of_port(&mut lanes, 1);
    // Whichever queue the other end sends by.
    for lane in &mut lanes {
        assert_eq!(sweep(&world, lane, &mut sinks, 0), expected(|entry| entry % QUEUES));
    }
    set_rss(&world, "equal 2 start 1").unwrap();
    assert_eq!(sweep(&world, &mut lanes[3], &mut sinks, 0), expected(|entry| 1 + entry % 2));
    set_rss(&world, "weight 3 0 0 1").unwrap();
    assert_eq!(sweep(&world, &mut lanes[0], &mut sinks, 0), expected(|entry| if entry < 96 { 0 } else { 3 }));
    let rows = world.view.rss();
    assert_eq!((rows.len(), &rows[0].dev[..], rows[0].context, rows[0].queues), (2, "mem0", 0, 4));
    assert_eq!((rows[0].table.len(), rows[0].table[0], rows[0].table[127]), (128, 0, 3));
    assert_eq!((&rows[0].hfunc[..], &rows[0].xfrm[..]), ("toeplitz", "none"));
    assert_eq!(rows[0].hkey, format_key(flow_hkey()), "that of the process");
    assert_eq!(rows[0].fields["udp4"], "sdfn");
    // A change that can't be is refused whole; a device without RSS says so.
    let refused = "mem0: equal: queue 4 is not there: the device has 4, numbered from 0";
    assert_eq!(set_rss(&world, "xfrm symmetric-xor equal 5"), Err(refused.into()));
    assert_eq!(world.view.rss()[0], rows[0]);
    let why = "not supported: its queues are wired one to one to those of its peer (PairConfig::rss is off)";
    assert_eq!((&rows[1].dev[..], rows[1].why.as_deref()), ("mem1", Some(why)));
    let set = SetRss { dev: "mem1".into(), change: "default".into() };
    assert_eq!(world.view.set_rss(&set).unwrap_err().to_string(), format!("mem1: {why}"));
    let set = SetRss { dev: "mem7".into(), change: "default".into() };
    assert!(world.view.set_rss(&set).unwrap_err().to_string().starts_with("no device \"mem7\""));
    lanes.extend(sinks);
    world.end(lanes);
}

#[test]
fn a_filter_comes_before_the_table_and_drops_are_counted() {
    let (world, mut lanes) = start();
    let mut sinks = of_port(&mut lanes, 1);
    set_rss(&world, "equal 1").unwrap();
    // Ports 0 to 15 go to queue 2, but 3 goes nowhere; the others go where the table says.
    assert_eq!(set_ntuple(&world, "flow-type udp4 dst-port 0 m 0xf action 2 loc 8"), Ok(8));
    assert_eq!(set_ntuple(&world, "flow-type udp4 dst-port 3 action -1 loc 7"), Ok(7));
    assert_eq!(sweep(&world, &mut lanes[1], &mut sinks, 1), [48, 0, 15, 0]);
    assert_eq!(drops(&world), 1);
    let rows: Vec<NtupleRow> = world.view.ntuples();
    let shown: Vec<_> = rows.iter().map(|row| (row.location, &row.rule[..], row.packets)).collect();
    assert_eq!(
        shown,
        [
            (7, "flow-type udp4 dst-port 3 action -1", Some(1)),
            (8, "flow-type udp4 dst-port 0 m 0xf action 2", Some(15))
        ]
    );
    // To a context, whose table is its own.
    assert_eq!(set_rss(&world, "context new equal 1 start 3"), Ok(Some(1)));
    assert_eq!(set_ntuple(&world, "flow-type ip4 dst-ip 10.1.0.2 context 1"), Ok(1023));
    assert_eq!(sweep(&world, &mut lanes[2], &mut sinks, 1), [0, 0, 15, 48]);
    let busy = "mem0: context 1 is in use by the filter at location 1023: delete that first";
    assert_eq!(set_rss(&world, "context 1 delete"), Err(busy.into()));
    for at in [7, 8, 1023] {
        assert_eq!(set_ntuple(&world, &format!("delete {at}")), Ok(at));
    }
    assert_eq!(set_rss(&world, "context 1 delete"), Ok(None));
    assert_eq!(sweep(&world, &mut lanes[0], &mut sinks, 0), [64, 0, 0, 0]);
    assert_eq!((drops(&world), world.view.ntuples()), (2, vec![]));
    let none = "mem0: delete: no filter at location 7; `softnet show ntuple` lists those that there are";
    assert_eq!(set_ntuple(&world, "delete 7"), Err(none.into()));
    lanes.extend(sinks);
    world.end(lanes);
}

/// While table and filters stay as they are, flows keep their order, whichever queues their packets
/// go through.
#[test]
fn flows_keep_their_order() {
    const NUMBERS: u32 = 200;
    let (world, mut lanes) = start();
    let sinks = of_port(&mut lanes, 1);
    let sent = AtomicU32::new(0);
    lanes.extend(sinks);
    let last: Vec<AtomicU32> = (0..FLOWS).map(|_| AtomicU32::new(0)).collect();
    let got = AtomicU32::new(0);
    let lanes = on_all(lanes, |lane| {
        if lane.port == 0 {
            // Each flow is sent by one queue.
            let mine: Vec<u16> =
                (0..FLOWS).filter(|flow| usize::from(*flow) % QUEUES == lane.queue).collect();
            for number in 1..=NUMBERS {
                for flow in &mine {
                    let frame = [of_flow(*flow, number)];
                    until("room on the wire", || lane.send(&frame) == 1);
                }
                // No more on the way than there is room for.
                let all = sent.fetch_add(mine.len() as u32, Ordering::Relaxed) + mine.len() as u32;
                until("what was sent arrives", || got.load(Ordering::Relaxed) + 256 > all);
            }
        } else {
            until("all that is sent", || {
                let n = lane.receive(|frame| {
                    let (flow, number) = number_of(frame).expect("nothing else is sent");
                    assert_eq!(
                        last[flow as usize].swap(number, Ordering::Relaxed),
                        number - 1,
                        "flow {flow}"
                    );
                });
                got.fetch_add(n as u32, Ordering::Relaxed);
                got.load(Ordering::Relaxed) == NUMBERS * u32::from(FLOWS)
            });
        }
    });
    world.end(lanes);
}

/// Table, key and filters change all the time, under traffic by all queues: each packet arrives
/// once or is counted as dropped.
#[test]
fn nothing_is_lost_while_the_table_changes() {
    let (world, mut lanes) = start();
    let sinks = of_port(&mut lanes, 1);
    let done = AtomicBool::new(false);
    lanes.extend(sinks);
    let (sent, got) = (AtomicU32::new(0), AtomicU32::new(0));
    let (lanes, changes) = std::thread::scope(|scope| {
        let changing = scope.spawn(|| {
            let mut changes = 0;
            while !done.load(Ordering::Relaxed) {
                for change in [
                    "equal 1",
                    "weight 1 2 3 4",
                    "xfrm symmetric-or-xor",
                    "equal 2 start 2",
                    "default xfrm none",
                ] {
                    set_rss(&world, change).unwrap();
                }
                let at = set_ntuple(&world, "flow-type udp4 dst-port 0 m 0x7 action -1").unwrap();
                std::thread::yield_now();
                set_ntuple(&world, &format!("delete {at}")).unwrap();
                changes += 1;
            }
            changes
        });
        let lanes = on_all(lanes, |lane| {
            if lane.port == 1 {
                until("the senders", || {
                    got.fetch_add(lane.receive(|_| {}) as u32, Ordering::Relaxed);
                    done.load(Ordering::Relaxed)
                });
                return;
            }
            for number in 0..3000 {
                let frame = [of_flow(number as u16 % FLOWS, number)];
                until("room on the wire", || lane.send(&frame) == 1);
                let all = sent.fetch_add(1, Ordering::Relaxed) + 1;
                // What is dropped does not arrive; some of it may be on the way.
                until("what was sent arrives", || {
                    got.load(Ordering::Relaxed) + drops(&world) as u32 + 200 > all
                });
            }
            until("all to arrive", || {
                let all = sent.load(Ordering::Relaxed);
                got.load(Ordering::Relaxed) + drops(&world) as u32 == all
            });
            done.store(all_sent(&sent), Ordering::Relaxed);
        });
        (lanes, changing.join().unwrap())
    });
    assert!(changes > 0);
    let stats = world.view.stats();
    assert_eq!(u64::from(sent.into_inner()), stats.received + drops(&world));
    assert_eq!(stats.dropped, 0, "{:?}", world.view.drops());
    world.end(lanes);
}

fn all_sent(sent: &AtomicU32) -> bool {
    sent.load(Ordering::Relaxed) == 3000 * QUEUES as u32
}
