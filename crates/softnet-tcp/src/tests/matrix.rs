//! Every state × kind of segment × edge of the window (RFC 9293 3.10.7.4, RFC 5961): what is
//! answered, what is taken, and the state after it.

use super::talk::Talk;
use crate::DropReason;
use crate::conn::State;
use crate::wire::{Flags, Segment};

const STATES: [State; 7] = [
    State::SynReceived,
    State::Established,
    State::FinWait1,
    State::FinWait2,
    State::CloseWait,
    State::Closing,
    State::LastAck,
];

/// A conversation that has come to `state`.
fn talk_in(state: State) -> Talk {
    if state == State::SynReceived {
        let mut talk = Talk::connect(|_| {});
        talk.run("> S 0:0(0)\n< S 0:0(0) win 32768 <mss 1000,sackOK>\n> S. 0:0(0) ack 1");
        return talk;
    }
    let mut talk = Talk::accepted(|_| {});
    let fin_sent = "shutdown wr\n> F. 1:1(0) ack 1";
    let fin_taken = "< F. 1:1(0) ack 1 win 257\n> . 1:1(0) ack 2";
    talk.run(match state {
        State::FinWait1 | State::FinWait2 | State::Closing => fin_sent,
        State::CloseWait | State::LastAck => fin_taken,
        _ => "nothing",
    });
    talk.run(match state {
        State::FinWait2 => "< . 1:1(0) ack 2 win 257",
        State::Closing => "< F. 1:1(0) ack 1 win 257\n> . 2:2(0) ack 2",
        State::LastAck => "shutdown wr\n> F. 1:1(0) ack 2",
        _ => "nothing",
    });
    assert_eq!(talk.end.state(), Some(state));
    talk
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Rst,
    Syn,
    Bare,
    Fin,
    Data,
    NoFlags,
}

/// Where the segment's number stands.
#[derive(Clone, Copy, Debug, PartialEq)]
enum At {
    /// A hundred before RCV.NXT.
    Old,
    /// RCV.NXT − 1.
    Before,
    /// RCV.NXT.
    Exact,
    /// RCV.NXT + 5.
    Inside,
    /// The last number in the window.
    Last,
    /// The first number behind it.
    Edge,
    /// One more.
    Beyond,
}

#[derive(Clone, Copy, Debug, PartialEq, Default)]
struct Outcome {
    /// Segments sent in answer, all of them ACKs (a SYN-ACK for the SYN of SYN-RECEIVED).
    answers: usize,
    /// Bytes delivered.
    taken: u64,
    /// The connection is reset.
    reset: bool,
    /// The state after it, if another.
    moved: Option<State>,
}

const ANSWER: Outcome = Outcome { answers: 1, taken: 0, reset: false, moved: None };
const SILENCE: Outcome = Outcome { answers: 0, ..ANSWER };
const RESET: Outcome = Outcome { reset: true, moved: Some(State::Closed), ..SILENCE };

/// What the RFCs, and Linux where they leave a choice, say.
fn outcome(state: State, kind: Kind, at: At) -> Outcome {
    let fin_taken = matches!(state, State::CloseWait | State::Closing | State::LastAck);
    let crossed = state == State::SynReceived;
    let base = match kind {
        Kind::NoFlags => return SILENCE,
        Kind::Syn => return ANSWER,
        Kind::Rst => {
            return match at {
                At::Exact => RESET,
                At::Before if fin_taken => RESET,
                At::Old | At::Before | At::Beyond => SILENCE,
                At::Inside | At::Last | At::Edge => ANSWER,
            };
        }
        Kind::Bare => match at {
            At::Old | At::Before | At::Beyond => return ANSWER,
            _ => SILENCE,
        },
        Kind::Data => match at {
            At::Old | At::Beyond => return ANSWER,
            At::Before if fin_taken => ANSWER,
            _ if fin_taken => SILENCE,
            At::Before => Outcome { taken: 9, ..ANSWER },
            At::Exact => Outcome { taken: 10, ..ANSWER },
            At::Inside | At::Last | At::Edge => ANSWER,
        },
        Kind::Fin => match at {
            At::Old | At::Beyond => return ANSWER,
            At::Before => ANSWER,
            _ if fin_taken => SILENCE,
            At::Exact => Outcome {
                moved: Some(match state {
                    State::FinWait1 => State::Closing,
                    State::FinWait2 => State::Closed,
                    _ => State::CloseWait,
                }),
                ..ANSWER
            },
            At::Inside | At::Last | At::Edge => ANSWER,
        },
    };
    // What is acceptable, and has an ACK, establishes a connection whose SYNs crossed.
    let moved = base.moved.or(crossed.then_some(State::Established));
    Outcome { moved, ..base }
}

fn segment(talk: &Talk, kind: Kind, at: At) -> Segment {
    let conn = talk.end.conn();
    let info = conn.info(&talk.end.cfg);
    let next = talk.end.irs.unwrap() + 1 + u32::from(conn.receive_ended());
    let edge = next + info.rcv_wnd;
    let seq = match at {
        At::Old => next - 100,
        At::Before => next - 1,
        At::Exact => next,
        At::Inside => next + 5,
        At::Last => edge - 1,
        At::Edge => edge,
        At::Beyond => edge + 1,
    };
    let flags = match kind {
        Kind::Rst => Flags::RST,
        Kind::Syn => Flags::SYN,
        Kind::Bare => Flags::ACK,
        Kind::Fin => Flags::FIN | Flags::ACK,
        Kind::Data => Flags::ACK | Flags::PSH,
        Kind::NoFlags => Flags::PSH,
    };
    // This end's FIN stays unacknowledged, but where it is already.
    let acked = match conn.state() {
        State::FinWait2 => 2,
        _ => 1,
    };
    let len = if kind == Kind::Data || kind == Kind::NoFlags { 10 } else { 0 };
    Segment { seq, ack: talk.end.iss + acked, flags, window: 257, len, segs: 1, ..Segment::default() }
}

#[test]
fn every_state_kind_and_edge() {
    let kinds = [Kind::Rst, Kind::Syn, Kind::Bare, Kind::Fin, Kind::Data, Kind::NoFlags];
    let edges = [At::Old, At::Before, At::Exact, At::Inside, At::Last, At::Edge, At::Beyond];
    let mut wrong = Vec::new();
    let mut cases = 0;
    let mut all = Vec::new();
    for state in STATES {
        for kind in kinds {
            all.extend(edges.map(|at| (state, kind, at)));
        }
    }
    for (state, kind, at) in all {
        let mut talk = talk_in(state);
        let segment = segment(&talk, kind, at);
        talk.end.segment(&segment);
        let sent: Vec<_> = talk.end.host.sent.drain(..).map(|(_, emit)| emit).collect();
        assert!(sent.iter().all(|emit| emit.flags.any(Flags::ACK) && !emit.flags.any(Flags::RST)));
        let after = talk.end.state().unwrap();
        let got = Outcome {
            answers: sent.len(),
            taken: talk.end.host.delivered,
            reset: talk.end.conn().error().is_some(),
            moved: (after != state).then_some(after),
        };
        let want = outcome(state, kind, at);
        if got != want {
            wrong.push(format!("{state:?} {kind:?} {at:?}: {got:?}, wanted {want:?}"));
        }
        assert_eq!(
            talk.end.host.time_wait.is_some(),
            state == State::FinWait2 && after == State::Closed && !got.reset
        );
        cases += 1;
    }
    assert_eq!(cases, 294);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Where the ACK field stands.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Ack {
    /// Further back than any window reaches.
    TooOld,
    /// SND.UNA − 1.
    Old,
    /// SND.UNA.
    Una,
    /// Half of what is out.
    Half,
    /// SND.NXT.
    All,
    /// SND.NXT + 1.
    Unsent,
}

#[test]
fn every_state_and_edge_of_the_ack_field() {
    let acks = [Ack::TooOld, Ack::Old, Ack::Una, Ack::Half, Ack::All, Ack::Unsent];
    let mut cases = 0;
    let mut all = Vec::new();
    for state in [State::Established, State::CloseWait, State::FinWait1, State::LastAck] {
        for ack in acks {
            all.extend([0u32, 10].map(|len| (state, ack, len)));
        }
    }
    for (state, ack, len) in all {
        let mut talk = Talk::accepted(|_| {});
        // A window and more of acknowledged data, then 2000 bytes out.
        talk.run("write 1000\n> P. 1:1001(1000) ack 1\n+10 < . 1:1(0) ack 1001 win 257");
        let fin_taken = matches!(state, State::CloseWait | State::LastAck);
        if fin_taken {
            talk.run("< F. 1:1(0) ack 1001 win 257\n> . 1001:1001(0) ack 2");
        }
        talk.run(&format!("write 2000\n> P. 1001:3001(2000) ack {}", 1 + u32::from(fin_taken)));
        let fin_sent = matches!(state, State::FinWait1 | State::LastAck);
        if fin_sent {
            talk.run(&format!("shutdown wr\n> F. 3001:3001(0) ack {}", 1 + u32::from(fin_taken)));
        }
        assert_eq!(talk.end.state(), Some(state));
        let number = match ack {
            Ack::TooOld => -40_000,
            Ack::Old => 1000,
            Ack::Una => 1001,
            Ack::Half => 2001,
            Ack::All => 3001 + i64::from(fin_sent),
            Ack::Unsent => 3002 + i64::from(fin_sent),
        };
        let next = 1 + u32::from(fin_taken);
        let text = format!(". {next}:{}({len}) ack {number} win 257", next + len);
        let segment = talk.parse(&text);
        let unacked = talk.end.conn().unacked();
        talk.end.segment(&segment);
        let case = format!("{state:?} {ack:?} with {len} bytes");
        let sent: Vec<_> = talk.end.host.sent.drain(..).map(|(_, emit)| emit).collect();
        let progress = unacked - talk.end.conn().unacked();
        let believed = !matches!(ack, Ack::TooOld | Ack::Unsent);
        assert_eq!(
            progress,
            match ack {
                Ack::Half => 1000,
                Ack::All => 2000,
                _ => 0,
            },
            "{case}"
        );
        // A segment whose ACK is not believed is answered, and its data is not taken; nothing is
        // taken after a FIN. An established connection leaves unanswered what acknowledges the
        // future.
        let ignored = state == State::Established && matches!(ack, Ack::Unsent);
        let taken = if believed && !fin_taken { u64::from(len) } else { 0 };
        assert_eq!(talk.end.host.delivered, taken, "{case}");
        let acks = sent.iter().filter(|emit| emit.len == 0).count();
        assert_eq!(acks, usize::from((!believed && !ignored) || taken > 0), "{case}: {sent:?}");
        if !believed && !ignored {
            assert_eq!(talk.end.counters.challenge_ack, 1, "{case}");
        }
        let moved = match (state, ack) {
            (State::FinWait1, Ack::All) => State::FinWait2,
            (State::LastAck, Ack::All) => State::Closed,
            (state, _) => state,
        };
        assert_eq!(talk.end.state(), Some(moved), "{case}");
        cases += 1;
    }
    assert_eq!(cases, 48);
}

#[test]
fn challenge_acks_are_limited() {
    let mut talk = Talk::accepted(|_| {});
    talk.run(
        "< R 10:10(0) win 0
         > . 1:1(0) ack 1
         < R 11:11(0) win 0
         +499 < S 12:12(0) win 0
         +1 < S 12:12(0) win 0
         > . 1:1(0) ack 1",
    );
    assert_eq!((talk.end.counters.challenge_ack, talk.end.counters.ack_skipped_challenge), (2, 2));
}

#[test]
fn a_reset_at_the_end_of_a_reported_block_is_believed() {
    let mut talk = Talk::accepted(|_| {});
    talk.run(
        "< . 1001:2001(1000) ack 1 win 257
         > . 1:1(0) ack 1 <sack 1001:2001>
         < R 2001:2001(0) win 0
         state Closed
         error ConnectionReset",
    );
}

#[test]
fn a_segment_with_a_tail_beyond_the_window_is_taken_only_by_an_idle_reader() {
    for read in [true, false] {
        let mut talk = Talk::accepted(|_| {});
        talk.run("< . 1:2(1) ack 1 win 257\n> . 1:1(0) ack 2");
        if read {
            talk.run("read 1");
        }
        let info = talk.end.conn().info(&talk.end.cfg);
        let edge = 2 + info.rcv_wnd;
        let text = format!(". 2:{}({}) ack 1 win 257", edge + 10, edge + 8);
        let segment = talk.parse(&text);
        talk.end.segment(&segment);
        let last = talk.end.host.drops.last().copied();
        if read {
            assert_eq!(talk.end.host.delivered, 1 + u64::from(info.rcv_wnd));
        } else {
            assert_eq!(last, Some(DropReason::TcpInvalidEndSequence));
            assert_eq!(talk.end.host.delivered, 1);
        }
        talk.end.host.sent.clear();
    }
}
