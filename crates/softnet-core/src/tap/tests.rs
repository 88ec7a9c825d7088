//! What contexts show and what a reader gets: all of it once, whole, with tags; losses counted.

use std::sync::Arc;

use super::*;
use crate::SoftnetData;
use crate::skb::{CacheSizes, HeapMemory, Region};

const FRAMES: u32 = 64;

fn context(taps: &Arc<Taps>) -> SoftnetData {
    let memory = Box::new(HeapMemory::new(Region::bytes(FRAMES, FRAMES)));
    let region = Region::new(memory, FRAMES, FRAMES).unwrap();
    let mut ctx = SoftnetData::new(region, CacheSizes::default());
    ctx.set_taps(taps);
    ctx
}

fn packet(ctx: &mut SoftnetData, bytes: &[u8]) -> Skb {
    let mut skb = ctx.alloc_skb().unwrap();
    skb.put(bytes.len()).unwrap().copy_from_slice(bytes);
    skb
}

fn batch(ctx: &mut SoftnetData, packets: &[&[u8]]) -> Batch {
    let mut batch = Batch::new();
    for bytes in packets {
        let skb = packet(ctx, bytes);
        batch.push(skb).unwrap();
    }
    batch
}

/// An UDP datagram to `port`, as far as a filter looks.
fn udp(port: u16) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0];
    frame.extend([0x45, 0, 0, 40, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 1, 2, 0, 9]);
    frame.extend(port.to_be_bytes());
    frame.extend([0; 17]);
    frame
}

const ALL: Wanted = Wanted {
    dev: None,
    queue: None,
    seen: [true; 3],
    snaplen: MAX_SNAPLEN,
    filter: Filter::ALL,
    trace: None,
};

fn read(reader: &mut TapReader) -> Vec<u8> {
    let mut out = Vec::new();
    reader.read((77, u64::MAX), usize::MAX, &mut out);
    out
}

fn records(mut bytes: &[u8]) -> Vec<Record<'_>> {
    let mut records = Vec::new();
    while let Some((record, len)) = Record::read(bytes) {
        records.push(record);
        bytes = &bytes[len..];
    }
    assert!(bytes.is_empty());
    records
}

#[test]
fn packets_are_seen_where_they_pass() {
    let taps = Arc::new(Taps::default());
    let mut ctx = context(&taps);
    let (a, b) = (udp(1), udp(2));
    let mut packets = batch(&mut ctx, &[&a, &b]);
    ctx.tap_in(1, 3, 4, &mut packets);
    let mut reader = taps.start(ALL).unwrap();
    ctx.tap_in(10, 3, 4, &mut packets);
    ctx.tap_to_link(11, 6, 0, &packets);
    ctx.tap_out(12, 5, 1, &mut packets);
    // The ring had no room for the second, which comes by again.
    packets.drain().for_each(|skb| ctx.deliver(skb));
    let mut second = batch(&mut ctx, &[&b]);
    second.as_mut_slice()[0].head_mut().flags |= Flags::TAPPED;
    ctx.tap_out(13, 5, 1, &mut second);
    (second.as_mut_slice()[0].head_mut().dev, second.as_mut_slice()[0].head_mut().queue) = (3, 4);
    ctx.free_batch(&mut second, DropReason::IpTtl);
    let other = packet(&mut ctx, &a);
    ctx.free_at(other, 5, DropReason::FullRing);
    let bytes = read(&mut reader);
    let of = |seen, reason, dev, queue, time, data: &'static [u8]| Record {
        seen,
        reason,
        dev,
        queue,
        time,
        len: data.len() as u32,
        data,
    };
    let (a, b): (&'static [u8], &'static [u8]) = (a.leak(), b.leak());
    let (ttl, full) = (DropReason::IpTtl as u8, DropReason::FullRing as u8);
    assert_eq!(
        records(&bytes),
        [
            of(Seen::In, 0, 3, 4, 10, a),
            of(Seen::In, 0, 3, 4, 10, b),
            of(Seen::Out, 0, 6, 0, 11, a),
            of(Seen::Out, 0, 6, 0, 11, b),
            of(Seen::Out, 0, 5, 1, 12, a),
            of(Seen::Out, 0, 5, 1, 12, b),
            of(Seen::Drop, ttl, 3, 4, 13, b),
            of(Seen::Drop, full, 5, 0, 13, a),
        ]
    );
    assert_eq!(reader.lost(), 0);
    drop(reader);
    assert!(!taps.is_on());
}

#[test]
fn each_capture_gets_what_it_wants() {
    let taps = Arc::new(Taps::default());
    let mut ctx = context(&taps);
    let filter = Filter::parse("udp port 2").unwrap();
    let mut of_port = taps.start(Wanted { filter, snaplen: 20, ..ALL }).unwrap();
    let mut of_queue = taps.start(Wanted { queue: Some(1), seen: [true, false, false], ..ALL }).unwrap();
    let mut of_dev = taps.start(Wanted { dev: Some(7), ..ALL }).unwrap();
    let (a, b) = (udp(1), udp(2));
    let mut packets = batch(&mut ctx, &[&a, &b]);
    ctx.tap_in(1, 7, 0, &mut packets);
    ctx.tap_in(2, 8, 1, &mut packets);
    ctx.tap_out(3, 8, 1, &mut packets);
    while let Some(skb) = packets.pop() {
        ctx.deliver(skb);
    }
    let bytes = read(&mut of_port);
    let times: Vec<_> =
        records(&bytes).iter().map(|r| (r.time, r.len as usize, r.data == &b[..20])).collect();
    assert_eq!(times, [1, 2, 3].map(|time| (time, b.len(), true)));
    let times = |bytes: &[u8]| records(bytes).iter().map(|r| r.time).collect::<Vec<_>>();
    assert_eq!((times(&read(&mut of_queue)), times(&read(&mut of_dev))), (vec![2, 2], vec![1, 1]));
    let _fourth = taps.start(ALL).unwrap();
    assert_eq!(taps.start(ALL).map(drop), Err(TapError::TooMany));
    // One that has stopped is still read out, and has its rings.
    of_dev.stop();
    assert_eq!(taps.start(ALL).map(drop), Err(TapError::TooMany));
    drop(of_dev);
    assert!(taps.start(ALL).is_ok());
    taps.close();
    assert!(!of_port.read((0, 0), usize::MAX, &mut Vec::new()));
    assert_eq!(taps.start(ALL).map(drop), Err(TapError::Closed));
}

/// Threads write to rings of their own; the reader puts the records in order.
#[test]
fn records_of_several_threads_are_in_order_of_time() {
    let taps = Arc::new(Taps::default());
    let mut reader = taps.start(ALL).unwrap();
    let mut contexts = [context(&taps), context(&taps), context(&taps)];
    let frame = udp(1);
    let mut packets = batch(&mut contexts[0], &[&frame, &frame]);
    for (time, i) in [(1, 2), (2, 0), (3, 0), (4, 1), (6, 2), (6, 1), (8, 0), (9, 2)] {
        contexts[i].tap_in(time, i as u16, 0, &mut packets);
    }
    let seen = |bytes: &[u8]| records(bytes).iter().map(|r| (r.time, r.dev)).collect::<Vec<_>>();
    let mut out = Vec::new();
    // What is younger waits: a thread may be about to write something that is older.
    assert!(reader.read((9, 6), usize::MAX, &mut out));
    let expected = [(1, 2), (2, 0), (3, 0), (4, 1), (6, 1), (6, 2)];
    assert_eq!(seen(&out), expected.map(|one| [one; 2]).concat());
    contexts[1].tap_in(7, 1, 0, &mut packets);
    // Packet by packet as well.
    let mut times = Vec::new();
    while {
        out.clear();
        reader.read((9, u64::MAX), 1, &mut out);
        times.extend(seen(&out));
        !out.is_empty()
    } {}
    times.dedup();
    assert_eq!(times, [(7, 1), (8, 0), (9, 2)]);
    packets.drain().for_each(|skb| contexts[0].deliver(skb));
}

/// A ring that fills is read out, however young its records are.
#[test]
fn a_ring_that_fills_does_not_wait() {
    let taps = Arc::new(Taps::default());
    let mut reader = taps.start(ALL).unwrap();
    let mut ctx = context(&taps);
    let mut packets = batch(&mut ctx, &[&[7; 1500][..]; 32]);
    let mut out = Vec::new();
    for round in 1..100 {
        ctx.tap_in(5, 0, 0, &mut packets);
        reader.read((5, 4), usize::MAX, &mut out);
        assert_eq!(out.is_empty(), round * 32 * ring::words_of(1500) < RING / 2, "{round}");
        if !out.is_empty() {
            break;
        }
    }
    assert!(!out.is_empty());
    assert_eq!(reader.lost(), 0);
    packets.drain().for_each(|skb| ctx.deliver(skb));
}

#[test]
fn tags_are_put_back_and_chains_are_whole() {
    let taps = Arc::new(Taps::default());
    let mut ctx = context(&taps);
    let mut reader = taps.start(ALL).unwrap();
    let mut skb = packet(&mut ctx, &udp(3));
    let more = packet(&mut ctx, b"and more");
    skb.append(more).unwrap();
    vlan::set(skb.head_mut(), VlanProto::Dot1ad, 0x2007);
    let mut one = Batch::new();
    one.push(skb).unwrap();
    ctx.tap_in(1, 0, 0, &mut one);
    ctx.free_batch(&mut one, DropReason::OtherHost);
    let mut expected = udp(3);
    expected.splice(12..12, [0x88, 0xa8, 0x20, 7]);
    expected.extend(b"and more");
    let bytes = read(&mut reader);
    for record in records(&bytes) {
        assert_eq!((record.data, record.len as usize), (&expected[..], expected.len()));
    }
    for snaplen in 0..expected.len() {
        drop(reader);
        reader = taps.start(Wanted { snaplen, ..ALL }).unwrap();
        let mut skb = packet(&mut ctx, &udp(3));
        vlan::set(skb.head_mut(), VlanProto::Dot1ad, 0x2007);
        ctx.free(skb, DropReason::OtherHost);
        let bytes = read(&mut reader);
        let kept = snaplen.min(expected.len() - 8);
        assert_eq!(records(&bytes)[0].data, &expected[..kept]);
    }
}

#[test]
fn a_full_ring_loses_packets_and_counts_them() {
    let taps = Arc::new(Taps::default());
    let mut reader = taps.start(ALL).unwrap();
    let (mut total, bytes) = (0, [7; 1500]);
    let thread_taps = taps.clone();
    let thread = std::thread::spawn(move || {
        let mut ctx = context(&thread_taps);
        let mut packets = batch(&mut ctx, &[&bytes[..]; 32]);
        for _ in 0..100 {
            ctx.tap_in(1, 0, 0, &mut packets);
        }
        let mut packets = packets;
        packets.drain().for_each(|skb| ctx.deliver(skb));
    });
    thread.join().unwrap();
    let mut out = Vec::new();
    while {
        out.clear();
        reader.read((0, u64::MAX), 10_000, &mut out);
        !out.is_empty()
    } {
        assert!(out.len() < 10_000 + 8 * ring::words_of(1500));
        let records = records(&out);
        assert!(records.iter().all(|record| record.data == bytes));
        total += records.len() as u64;
    }
    assert_eq!(total, (8 * RING / (8 * ring::words_of(1500))) as u64, "as many as there is room for");
    assert_eq!(reader.lost(), 3200 - total);
}

/// A trace follows as many packets as it was asked for, and those that it wants; captures get packets as ever.
#[test]
fn a_trace_follows_the_first_packets() {
    let taps = Arc::new(Taps::default());
    let mut ctx = context(&taps);
    let budget = Arc::new(Budget::new(2));
    let filter = Filter::parse("udp port 1").unwrap();
    let wanted = Wanted { dev: Some(3), filter, trace: Some(budget), snaplen: 4, ..ALL };
    let mut trace = taps.start(wanted).unwrap();
    let mut capture = taps.start(Wanted { seen: [true, false, false], ..ALL }).unwrap();
    let mut packets = batch(&mut ctx, &[&udp(1), &udp(2), &udp(1), &udp(1)]);
    ctx.tap_in(10, 3, 4, &mut packets);
    let followed: Vec<_> = packets.as_slice().iter().map(trace::is_traced).collect();
    assert_eq!(followed, [true, false, true, false]);
    ctx.trace_all(11, &packets, (5, 0), Step::Queued);
    ctx.tap_out(12, 5, 1, &mut packets);
    ctx.tap_out(12, 5, 1, &mut packets);
    let last = packets.pop().unwrap();
    let dropped = packets.pop().unwrap();
    ctx.free(dropped, DropReason::IpTtl);
    ctx.free(last, DropReason::IpTtl);
    packets.drain().for_each(|skb| ctx.deliver(skb));

    let bytes = read(&mut trace);
    let told: Vec<_> = records(&bytes)
        .iter()
        .map(|record| {
            let traced = trace::Traced::read(record).unwrap();
            (traced.step, record.dev, record.time, traced.bytes.len())
        })
        .collect();
    let ttl = Step::Dropped(DropReason::IpTtl as u8);
    assert_eq!(
        told,
        [
            (Step::Received, 3, 10, 4),
            (Step::Received, 3, 10, 4),
            (Step::Queued, 5, 11, 0),
            (Step::Queued, 5, 11, 0),
            (Step::Sent, 5, 12, 4),
            (Step::Sent, 5, 12, 4),
            (ttl, 0, 12, 0),
            (Step::Delivered, 0, 12, 0),
        ]
    );
    let bytes = read(&mut capture);
    let whole = records(&bytes).iter().all(|record| record.seen == Seen::In && record.data.len() > 40);
    assert!(whole && records(&bytes).len() == 4);
}

/// The steps of a trace, and when they were.
fn steps(bytes: &[u8]) -> Vec<(Step, u64)> {
    let step = |record: &Record<'_>| (trace::Traced::read(record).unwrap().step, record.time);
    records(bytes).iter().map(step).collect()
}

/// Each of several traces is told of its own packets, and one that two want is told to both.
#[test]
fn traces_at_once_have_their_own_packets() {
    let taps = Arc::new(Taps::default());
    let mut ctx = context(&taps);
    let start = |filter: &str, packets| {
        let (filter, budget) = (Filter::parse(filter).unwrap(), Arc::new(Budget::new(packets)));
        taps.start(Wanted { filter, trace: Some(budget), snaplen: 64, ..ALL })
    };
    let mut traces = [("udp port 1", 5), ("udp port 2", 5), ("udp", 1)].map(|(f, n)| start(f, n).unwrap());
    let _capture = taps.start(ALL).unwrap();
    assert_eq!(start("", 1).map(drop), Err(TapError::TooMany));
    let mut packets = batch(&mut ctx, &[&udp(1), &udp(2), &udp(3), &udp(2)]);
    ctx.tap_in(10, 3, 4, &mut packets);
    // One that comes to another device has its marks, and gets no second one.
    ctx.tap_in(11, 5, 4, &mut packets);
    ctx.tap_out(12, 5, 1, &mut packets);
    packets.drain().for_each(|skb| ctx.deliver(skb));
    let ports = |bytes: &[u8]| -> Vec<(bool, u8)> {
        let traced =
            records(bytes).iter().map(|record| trace::Traced::read(record).unwrap()).collect::<Vec<_>>();
        let shown = traced.iter().filter(|traced| !traced.bytes.is_empty());
        shown.map(|traced| (traced.step == Step::Received, traced.bytes[37])).collect()
    };
    let all = traces.each_mut().map(read);
    assert_eq!(ports(&all[0]), [(true, 1), (false, 1)]);
    assert_eq!(ports(&all[1]), [(true, 2), (true, 2), (false, 2), (false, 2)]);
    assert_eq!(ports(&all[2]), [(true, 1), (false, 1)]);
    let of_one = [Step::Received, Step::Handed, Step::Sent, Step::Delivered];
    for bytes in [&all[0], &all[2]] {
        assert_eq!(steps(bytes).iter().map(|(step, _)| *step).collect::<Vec<_>>(), of_one);
    }
    assert_eq!(steps(&all[1]).len(), 2 * of_one.len());

    // The next trace has another mark: it is not told what becomes of packets of one that ended.
    let mut packets = batch(&mut ctx, &[&udp(2)]);
    ctx.tap_in(13, 3, 4, &mut packets);
    let [first, second, third] = traces;
    drop((first, second));
    let mut later = start("udp port 9", 1).unwrap();
    ctx.tap_out(14, 5, 1, &mut packets);
    packets.drain().for_each(|skb| ctx.deliver(skb));
    assert!(read(&mut later).is_empty());
    drop(third);
}

/// A packet that a thread hands to another one, whose batch is older: its steps are in order.
#[test]
fn steps_of_two_threads_are_in_order() {
    let taps = Arc::new(Taps::default());
    // The first to join has the first ring.
    for swapped in [false, true] {
        let (mut from, mut to) = (context(&taps), context(&taps));
        let budget = Some(Arc::new(Budget::new(2)));
        let mut reader = taps.start(Wanted { trace: budget, ..ALL }).unwrap();
        if swapped {
            to.tap_in(1, 0, 0, &mut Batch::new());
        }
        let base = 100 * u64::from(swapped);
        let mut packets = batch(&mut from, &[&udp(1), &udp(2)]);
        from.tap_in(base + 10, 3, 0, &mut packets);
        from.trace_all(base + 10, &packets, (5, 0), Step::Queued);
        to.tap_out(base + 7, 5, 0, &mut packets);
        packets.drain().for_each(|skb| from.free(skb, DropReason::FullRing));
        let bytes = read(&mut reader);
        let (times, full) = (steps(&bytes), Step::Dropped(DropReason::FullRing as u8));
        let expected = [(Step::Received, 10), (Step::Queued, 10), (Step::Sent, 11)];
        for (at, (step, time)) in expected.into_iter().enumerate() {
            assert_eq!(times[2 * at..2 * at + 2], [(step, base + time); 2]);
        }
        // The reader has told the clock's time.
        assert!(matches!(times[6..], [(a, t), (b, u)] if a == full && b == full && t == u && t > base + 11));
    }
}
