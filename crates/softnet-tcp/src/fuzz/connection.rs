//! Any segments, calls and times, against an end in any state.

use super::{Script, advance, numbers, sent};
use crate::conn::{ConnOptions, Error, PathFloor, Shutdown, SockOpt, State, Writable};
use crate::testing::end::{End, enter};
use crate::wire::{SackRange, Timestamps};
use crate::{Config, Flags, Instant, Options, Segment, Seq};

/// An end, as three bytes describe it: it listens, or connects; its knobs; its numbers.
fn begin(script: &mut Script<'_>) -> End {
    let (how, knobs) = (script.byte(), script.byte());
    let mut cfg = Config {
        tcp_timestamps: (how >> 2 & 1) * 2,
        tcp_sack: how & 8 == 0,
        tcp_window_scaling: how & 16 == 0,
        tcp_syncookies: if how & 32 != 0 { 2 } else { 1 },
        tcp_ecn: (how >> 6) % 3,
        ..Config::default()
    };
    if knobs & 1 != 0 {
        cfg.tcp_rmem = [4096, 20_000, 40_000];
    }
    if knobs & 2 != 0 {
        cfg.tcp_wmem = [4096, 8192, 20_000];
    }
    if knobs & 4 != 0 {
        cfg.tcp_fin_timeout = 1;
    }
    let wraps = knobs & 8 != 0;
    let iss = if wraps { Seq(u32::MAX - 2000) } else { Seq(1_000_000) };
    let mut end = End::new(cfg, iss);
    end.options = ConnOptions::default();
    end.path_mss = if knobs & 16 != 0 { 536 } else { 1460 };
    if how & 1 != 0 {
        end.connect()
    } else {
        end.listen(i32::from(knobs >> 5))
    }
    if how & 2 == 0 {
        handshake(&mut end, how, if wraps { Seq(u32::MAX - 3000) } else { Seq(5_000_000) });
    }
    end
}

/// The segments that establish a connection.
fn handshake(end: &mut End, how: u8, isn: Seq) {
    let timestamps = (how & 4 != 0).then_some(Timestamps { val: 1, ecr: 0 });
    let options = Options {
        timestamps,
        mss: Some(1000),
        window_scale: Some(7),
        sack_permitted: true,
        ..Options::default()
    };
    let syn = if how & 1 != 0 { Flags::SYN | Flags::ACK } else { Flags::SYN };
    let ack = end.iss + u32::from(how & 1);
    let segment =
        Segment { seq: isn, ack, flags: syn, window: 32_792, segs: 1, options, ..Segment::default() };
    end.segment(&segment);
    let options = Options { timestamps, ..Options::default() };
    let (seq, ack) = (isn + 1, end.iss + 1);
    end.segment(&Segment {
        seq,
        ack,
        flags: Flags::ACK,
        window: 257,
        segs: 1,
        options,
        ..Segment::default()
    });
}

/// Flags that are likely, or any.
fn flags(script: &mut Script<'_>) -> Flags {
    const LIKELY: [u8; 8] = [
        Flags::ACK.0,
        Flags::ACK.0,
        Flags::ACK.0 | Flags::PSH.0,
        Flags::ACK.0 | Flags::FIN.0,
        Flags::RST.0,
        Flags::RST.0 | Flags::ACK.0,
        Flags::SYN.0,
        Flags::SYN.0 | Flags::ACK.0,
    ];
    match script.byte() {
        byte @ 0..=239 => Flags(LIKELY[usize::from(byte % 8)]),
        _ => Flags(script.byte()),
    }
}

/// A segment whose numbers are near those of the connection.
fn segment(end: &End, script: &mut Script<'_>) -> Segment {
    let (next, una) = numbers(end);
    let (flags, shape) = (flags(script), script.byte());
    let mut segment = Segment {
        seq: next + script.distance(),
        ack: una + script.distance(),
        flags,
        window: if shape & 1 != 0 { script.half() } else { 257 },
        urgent: if shape & 2 != 0 { script.half() } else { 0 },
        len: if shape & 4 != 0 { u32::from(script.half() % 1461) } else { 0 },
        segs: 1,
        ce: shape & 8 != 0,
        ..Segment::default()
    };
    if shape & 16 != 0 {
        let val = (end.now.0 / 1000) as u32;
        segment.options.timestamps =
            Some(Timestamps { val: val.wrapping_add(script.distance()), ecr: script.distance() });
    }
    for _ in 0..shape >> 6 {
        let (start, end) = (una + script.distance(), una + script.distance());
        segment.options.sack.push(SackRange { start, end });
    }
    if shape & 32 != 0 && segment.len > 0 {
        // As after GRO.
        segment.segs = 1 + u16::from(script.byte() % 16);
        segment.len = (segment.len * u32::from(segment.segs)).min(60_000);
    }
    segment
}

/// Bytes as they came from the wire; the numbers in them count from the connection's.
fn raw(end: &End, script: &mut Script<'_>) -> Option<Segment> {
    let mut segment = Segment::parse(script.bytes(200)).ok()?;
    let (next, una) = numbers(end);
    (segment.seq, segment.ack) = (segment.seq + next.0, segment.ack + una.0);
    Some(segment)
}

fn option(script: &mut Script<'_>) -> SockOpt {
    let (which, value) = (script.byte(), script.half());
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

/// Offers a segment, which is counted once.
fn offer(end: &mut End, segment: &Segment) {
    let heard = end.state().is_some_and(|state| state != State::Closed);
    let before = end.counters.in_segs;
    end.segment(segment);
    if heard {
        assert_eq!(end.counters.in_segs, before + u64::from(segment.segs), "{segment:?} is counted once");
    }
}

/// A call of the application, where it has a connection that it may call.
fn call(end: &mut End, script: &mut Script<'_>, which: u8) {
    let alive = end.state().is_some_and(|state| state != State::Closed);
    if !alive {
        return;
    }
    match which {
        0 => {
            if let Writable::Room(room) = end.conn().writable() {
                let bytes = u32::from(script.half()).min(room);
                if bytes > 0 {
                    end.write(bytes, script.byte() & 1 != 0);
                }
            }
        }
        1 => drop(end.read(u32::from(script.half()))),
        2 => match script.byte() % 8 {
            0 => end.shutdown(Shutdown::Read),
            1 => end.shutdown(Shutdown::Both),
            2 => end.close(),
            _ => end.shutdown(Shutdown::Write),
        },
        3 => {
            let option = option(script);
            // Values out of range are refused.
            let _ = enter!(&mut *end, conn, cx => conn.set_option(cx, option));
            end.after();
        }
        4 => {
            let (_, una) = numbers(end);
            let (quoted, mss) = (una + script.distance(), script.half());
            enter!(&mut *end, conn, cx => conn.path_mss_changed(cx, quoted, mss, PathFloor::Ipv4));
            end.after();
        }
        _ => {
            let (_, una) = numbers(end);
            let quoted = una + script.distance();
            let error =
                if script.byte() & 1 != 0 { Error::ConnectionRefused } else { Error::HostUnreachable };
            enter!(&mut *end, conn, cx => conn.icmp_error(cx, quoted, error));
            end.after();
        }
    }
}

/// Plays a script against an end. After every step the invariants hold, and at the end, when the
/// application has given up, all memory is handed back.
pub fn connection(data: &[u8]) {
    let script = &mut Script(data);
    let mut end = begin(script);
    sent(&mut end);
    while let Some(step) = script.step() {
        match step % 16 {
            0..=5 => {
                let segment = segment(&end, script);
                offer(&mut end, &segment);
            }
            6 => {
                if let Some(segment) = raw(&end, script) {
                    offer(&mut end, &segment);
                }
            }
            7 | 8 => call(&mut end, script, 0),
            9 => call(&mut end, script, 1),
            10 => {
                let which = 2 + script.byte() % 4;
                call(&mut end, script, which);
            }
            11 | 12 => {
                let due = end.deadline();
                if due.is_armed() && due.0 < 1 << 60 {
                    advance(&mut end, due);
                }
            }
            13 | 14 => {
                let micros = u64::from(script.half()) << (script.byte() % 16);
                let at = Instant(end.now.0 + micros);
                advance(&mut end, at);
            }
            _ => end.host.refuse = step & 16 != 0,
        }
        sent(&mut end);
    }
    give_up(&mut end);
}

/// The application closes by a reset: the connection ends, and so does every handle.
fn give_up(end: &mut End) {
    end.host.refuse = false;
    if end.state().is_some_and(|state| state != State::Closed) {
        enter!(&mut *end, conn, cx => conn.set_option(cx, SockOpt::LingerZero(true))).expect("in range");
        end.read(u32::MAX);
        end.close();
        if end.state() != Some(State::Closed) {
            // It was closed before, and waits as an orphan: for the peer, or for its patience.
            let at = Instant(end.now.0 + 7 * 24 * 3_600_000_000);
            advance(end, at);
        }
        assert_eq!(end.state(), Some(State::Closed));
    }
    sent(end);
}
