//! Any segments, calls and times, in any order: nothing panics, and the invariants hold.

use proptest::prelude::*;

use super::talk::Talk;
use crate::conn::{Shutdown, SockOpt, State};
use crate::wire::{Flags, Options, SackBlocks, SackRange, Segment, Timestamps};
use crate::{Instant, Seq};

/// A step, with numbers near those that matter.
#[derive(Clone, Debug)]
enum Step {
    Segment {
        flags: u8,
        seq: i32,
        ack: i32,
        len: u16,
        window: u16,
        ts: Option<i8>,
        sack: Vec<(i16, i16)>,
        ce: bool,
    },
    Write(u16, bool),
    Read(u16),
    Shutdown(u8),
    Close,
    Option(u8, u16),
    PathMss(u16),
    /// Up to the next deadline, or so many milliseconds.
    Deadline,
    Time(u16),
}

/// An offset near 0 or near the window's edge.
fn near() -> impl Strategy<Value = i32> {
    prop_oneof![4 => Just(0), 3 => -20..20i32, 2 => -3000..3000i32, 1 => 60_000..70_000i32, 1 => any::<i32>()]
}

fn step() -> impl Strategy<Value = Step> {
    let flags = prop_oneof![
        8 => Just(Flags::ACK.0), 4 => Just(Flags::ACK.0 | Flags::PSH.0), 2 => Just(Flags::ACK.0 | Flags::FIN.0),
        1 => Just(Flags::RST.0), 1 => Just(Flags::SYN.0), 1 => Just(Flags::SYN.0 | Flags::ACK.0), 1 => any::<u8>(),
    ];
    let ts = prop::option::of(-3..20i8);
    let sack = prop::collection::vec((-50..4000i16, -50..4000i16), 0..4);
    let segment =
        (flags, near(), near(), prop_oneof![Just(0u16), 0..1500u16], any::<u16>(), ts, sack, any::<bool>())
            .prop_map(|(flags, seq, ack, len, window, ts, sack, ce)| Step::Segment {
                flags,
                seq,
                ack,
                len,
                window,
                ts,
                sack,
                ce,
            });
    prop_oneof![
        12 => segment,
        4 => (1..20_000u16, any::<bool>()).prop_map(|(n, more)| Step::Write(n, more)),
        3 => any::<u16>().prop_map(Step::Read),
        1 => any::<u8>().prop_map(Step::Shutdown),
        1 => Just(Step::Close),
        1 => (any::<u8>(), any::<u16>()).prop_map(|(which, value)| Step::Option(which, value)),
        1 => any::<u16>().prop_map(Step::PathMss),
        4 => Just(Step::Deadline),
        3 => any::<u16>().prop_map(Step::Time),
    ]
}

fn option(which: u8, value: u16) -> SockOpt {
    let (on, wide) = (value & 1 == 1, u32::from(value));
    match which % 13 {
        0 => SockOpt::NoDelay(on),
        1 => SockOpt::Cork(on),
        2 => SockOpt::QuickAck(on),
        3 => SockOpt::MaxSeg(value),
        4 => SockOpt::KeepAlive(on),
        5 => SockOpt::KeepIdle(wide),
        6 => SockOpt::KeepIntvl(wide),
        7 => SockOpt::KeepCnt(which),
        8 => SockOpt::Linger2(i32::from(value) - 100),
        9 => SockOpt::UserTimeout(wide),
        10 => SockOpt::RcvLowat(wide),
        11 => SockOpt::SndBuf(wide),
        _ => SockOpt::LingerZero(on),
    }
}

fn alive(talk: &Talk) -> bool {
    talk.end.state().is_some_and(|state| state != State::Closed)
}

/// Where the peer's numbers and this end's stand.
fn numbers(talk: &Talk) -> (Seq, Seq) {
    let info = talk.end.conn().info(&talk.end.cfg);
    let next = talk.end.irs.unwrap_or(Seq(0)) + 1 + info.bytes_received as u32;
    let una = talk.end.iss + 1 + talk.end.host.acked as u32;
    (next, una)
}

fn take(talk: &mut Talk, step: &Step) {
    let closed = talk.end.conn().send_ended();
    match step {
        Step::Segment { flags, seq, ack, len, window, ts, sack, ce } => {
            let (next, una) = numbers(talk);
            let timestamps = ts.map(|val| Timestamps { val: val as u32, ecr: 1 });
            let mut options = Options { timestamps, sack: SackBlocks::EMPTY, ..Options::default() };
            for (start, end) in sack {
                options.sack.push(SackRange { start: una + *start as u32, end: una + *end as u32 });
            }
            talk.end.segment(&Segment {
                seq: next + *seq as u32,
                ack: una + *ack as u32,
                flags: Flags(*flags),
                window: *window,
                len: u32::from(*len),
                segs: 1,
                ce: *ce,
                options,
                ..Segment::default()
            });
        }
        Step::Write(bytes, more) if !closed && alive(talk) => talk.end.write(u32::from(*bytes), *more),
        Step::Read(bytes) => drop(talk.end.read(u32::from(*bytes))),
        Step::Shutdown(0) => talk.end.shutdown(Shutdown::Read),
        Step::Shutdown(1) => talk.end.shutdown(Shutdown::Write),
        Step::Shutdown(2) => talk.end.shutdown(Shutdown::Both),
        Step::Close if alive(talk) => talk.end.close(),
        Step::Option(which, value) => {
            let option = option(*which, *value);
            let _ = super::end::enter!(&mut talk.end, conn, cx => conn.set_option(cx, option));
            talk.end.after();
        }
        Step::PathMss(mss) => {
            let (_, una) = numbers(talk);
            talk.path_mss(una, *mss, crate::conn::PathFloor::Ipv4);
        }
        Step::Deadline => {
            let due = talk.end.deadline();
            if due.is_armed() && due.0 < 1 << 60 {
                talk.advance(due);
            }
        }
        Step::Time(millis) => talk.advance(Instant(talk.end.now.0 + u64::from(*millis) * 1000)),
        _ => {}
    }
    talk.end.host.sent.clear();
}

fn storm(mut talk: Talk, steps: &[Step]) {
    for step in steps {
        if talk.end.conn.is_none() {
            break;
        }
        take(&mut talk, step);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn an_established_connection_stands_anything(steps in prop::collection::vec(step(), 1..80), ts: bool) {
        let mut talk = Talk::listen(|cfg| cfg.tcp_timestamps = u8::from(ts));
        talk.run(
            "< SEW 0:0(0) win 32792 <mss 1000,sackOK,TS val 0 ecr 0,nop,wscale 7>
             > SE. 0:0(0) ack 1
             < . 1:1(0) ack 1 win 257 <TS val 0 ecr 0>",
        );
        storm(talk, &steps);
    }

    #[test]
    fn a_connection_that_is_being_opened_stands_anything(steps in prop::collection::vec(step(), 1..40), ts: bool) {
        let mut talk = Talk::connect(|cfg| cfg.tcp_timestamps = u8::from(ts));
        talk.run("> S 0:0(0)");
        storm(talk, &steps);
    }
}
