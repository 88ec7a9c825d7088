//! Listeners: both queues, cookies, data that is waited for.

use crate::config::CongestionControl;
use crate::conn::ConnOptions;
use crate::counters::Counters;
use crate::isn::Tuple;
use crate::listen::{ListenCx, Listener, Request, RequestVerdict, Timeout, Verdict};
use crate::testing::{test_hash, tuple};
use crate::wire::{Emit, Flags, Options, Segment, Timestamps};
use crate::{Config, DropReason, Instant, Seq, Span};

struct Server {
    cfg: Config,
    counters: Counters,
    now: Instant,
    listener: Listener,
}

fn peer(port: u16) -> Tuple {
    Tuple { remote_port: port, ..tuple() }
}

fn syn(options: Options) -> Segment {
    Segment { seq: Seq(100), flags: Flags::SYN, window: 5000, segs: 1, options, ..Segment::default() }
}

fn ack(emit: &Emit) -> Segment {
    let timestamps = emit.options.timestamps.map(|ts| Timestamps { val: 7, ecr: ts.val });
    Segment {
        seq: emit.ack,
        ack: emit.seq + 1,
        flags: Flags::ACK,
        window: 100,
        segs: 1,
        options: Options { timestamps, ..Options::default() },
        ..Segment::default()
    }
}

impl Server {
    fn new(backlog: i32, change: impl FnOnce(&mut Config)) -> Server {
        let mut cfg = Config::default();
        change(&mut cfg);
        let listener = Listener::new(&cfg, backlog, ConnOptions::default());
        Server { cfg, counters: Counters::default(), now: Instant(600_000_000), listener }
    }

    fn give(&mut self, port: u16, segment: &Segment) -> Verdict {
        let mut cx = ListenCx { now: self.now, cfg: &self.cfg, counters: &mut self.counters };
        self.listener.input(&mut cx, &test_hash, &peer(port), segment, 1460, None)
    }

    fn request(&mut self, port: u16) -> (Request, Emit) {
        match self.give(port, &syn(Options::default())) {
            Verdict::Request(request, emit) => (request, emit),
            other => panic!("{other:?}"),
        }
    }

    fn answer(&mut self, request: &mut Request, segment: &Segment) -> RequestVerdict {
        let mut cx = ListenCx { now: self.now, cfg: &self.cfg, counters: &mut self.counters };
        self.listener.request_input(&mut cx, request, segment)
    }

    fn timeout(&mut self, request: &mut Request) -> Timeout {
        self.now = request.deadline();
        let mut cx = ListenCx { now: self.now, cfg: &self.cfg, counters: &mut self.counters };
        self.listener.request_timeout(&mut cx, request)
    }

    /// A handshake from SYN to the accept queue.
    fn open(&mut self, port: u16) {
        let (mut request, emit) = self.request(port);
        assert!(matches!(self.answer(&mut request, &ack(&emit)), RequestVerdict::Accept(_)));
    }
}

#[test]
fn a_backlog_of_zero_admits_one() {
    let mut server = Server::new(0, |_| {});
    server.open(1);
    assert!(server.listener.is_full());
    assert_eq!(server.give(2, &syn(Options::default())), Verdict::Drop(DropReason::TcpListenOverflow));
    assert_eq!((server.counters.listen_overflows, server.counters.listen_drops), (1, 1));
    server.listener.accepted();
    server.open(3);
}

#[test]
fn the_backlog_is_bounded_by_somaxconn() {
    let cfg = Config::default();
    for (given, kept) in [(-1, 4096), (1 << 20, 4096), (7, 7), (0, 0)] {
        assert_eq!(Listener::new(&cfg, given, ConnOptions::default()).backlog(), kept);
    }
}

#[test]
fn a_full_accept_queue_drops_the_third_ack_and_keeps_the_request() {
    let mut server = Server::new(0, |cfg| cfg.tcp_syncookies = 0);
    let (mut request, emit) = server.request(1);
    // Another one is faster.
    server.listener.forget(&request);
    server.open(2);
    let verdict = server.answer(&mut request, &ack(&emit));
    assert_eq!(verdict, RequestVerdict::Drop(DropReason::TcpListenOverflow));
    server.listener.accepted();
    // The SYN-ACK goes again, and its ACK finds room.
    let Timeout::Resend(again) = server.timeout(&mut request) else { panic!() };
    assert_eq!(again.seq, emit.seq);
    assert!(matches!(server.answer(&mut request, &ack(&again)), RequestVerdict::Accept(_)));
}

#[test]
fn abort_on_overflow_resets_instead() {
    let mut server = Server::new(0, |cfg| cfg.tcp_abort_on_overflow = true);
    let (mut request, emit) = server.request(1);
    server.listener.forget(&request);
    server.open(2);
    let verdict = server.answer(&mut request, &ack(&emit));
    assert!(matches!(verdict, RequestVerdict::Gone(Some(_), DropReason::TcpListenOverflow)));
}

#[test]
fn a_full_request_queue_drops_or_sends_cookies() {
    let mut server = Server::new(2, |cfg| cfg.tcp_syncookies = 0);
    server.request(1);
    server.request(2);
    assert_eq!(server.give(3, &syn(Options::default())), Verdict::Drop(DropReason::TcpReqQFullDrop));
    assert_eq!(server.counters.req_q_full_drop, 1);
    server.cfg.tcp_syncookies = 1;
    assert!(matches!(server.give(3, &syn(Options::default())), Verdict::Answer(_)));
    assert_eq!((server.counters.req_q_full_do_cookies, server.counters.syncookies_sent), (1, 1));
    assert_eq!(server.listener.requests(), 2, "nothing is kept");
}

#[test]
fn a_cookie_makes_a_connection_with_what_it_can_carry() {
    let mut server = Server::new(5, |cfg| cfg.tcp_syncookies = 2);
    let offered =
        Options { mss: Some(1400), window_scale: Some(9), sack_permitted: true, ..Options::default() };
    let Verdict::Answer(emit) = server.give(1, &syn(offered)) else { panic!() };
    assert_eq!((emit.options.window_scale, emit.options.sack_permitted), (None, false));
    let Verdict::Accept(accepted) = server.give(1, &ack(&emit)) else { panic!() };
    assert_eq!((accepted.iss, accepted.irs, accepted.peer_mss), (emit.seq, Seq(100), 1300));
    assert_eq!((accepted.window_scale, accepted.sack, accepted.ts_recent), (None, false, None));

    let ts = Options { timestamps: Some(Timestamps { val: 3, ecr: 0 }), ..offered };
    let Verdict::Answer(emit) = server.give(2, &syn(ts)) else { panic!() };
    server.now = server.now.plus_millis(59_000);
    let Verdict::Accept(accepted) = server.give(2, &ack(&emit)) else { panic!() };
    assert_eq!((accepted.window_scale, accepted.sack, accepted.ts_recent), (Some(9), true, Some(7)));
    assert_eq!(accepted.window, 100 << 9);
    assert_eq!(server.counters.syncookies_recv, 2);
}

/// DCTCP agrees to ECN by a cookie, too, marked SYN or not, whatever `tcp_ecn` says, if timestamps can carry
/// that; and what comes back says so only if it was agreed to.
#[test]
fn a_cookie_carries_the_ecn_that_dctcp_lives_by() {
    for (control, tcp_ecn, marked, agrees) in [
        (CongestionControl::Dctcp, 0, false, true),
        (CongestionControl::Dctcp, 0, true, true),
        (CongestionControl::Reno, 0, false, false),
        (CongestionControl::Reno, 1, false, true),
        (CongestionControl::Reno, 1, true, false),
    ] {
        let mut server = Server::new(5, |cfg| {
            (cfg.tcp_syncookies, cfg.tcp_ecn, cfg.tcp_congestion_control) = (2, tcp_ecn, control);
        });
        for timestamps in [None, Some(Timestamps { val: 3, ecr: 0 })] {
            let syn = syn(Options { timestamps, ..Options::default() });
            let syn = Segment { flags: Flags::SYN | Flags::ECE | Flags::CWR, ce: marked, ..syn };
            let Verdict::Answer(emit) = server.give(1, &syn) else { panic!() };
            let agrees = agrees && timestamps.is_some();
            assert_eq!(emit.flags.any(Flags::ECE), agrees, "{control:?} {tcp_ecn} {marked}");
            let Verdict::Accept(accepted) = server.give(1, &ack(&emit)) else { panic!() };
            assert_eq!(accepted.ecn, agrees, "{control:?} {tcp_ecn} {marked}");
            server.listener.accepted();
        }
        // It did not ask.
        let timestamps = Some(Timestamps { val: 3, ecr: 0 });
        let Verdict::Answer(emit) = server.give(2, &syn(Options { timestamps, ..Options::default() })) else {
            panic!()
        };
        let Verdict::Accept(accepted) = server.give(2, &ack(&emit)) else { panic!() };
        assert!(!emit.flags.any(Flags::ECE) && !accepted.ecn);
    }
}

#[test]
fn a_cookie_that_is_not_ours_is_reset() {
    let mut server = Server::new(5, |_| {});
    let stray = Segment { seq: Seq(1), ack: Seq(2), flags: Flags::ACK, segs: 1, ..Segment::default() };
    assert!(matches!(server.give(1, &stray), Verdict::Answer(emit) if emit.flags == Flags::RST));
    assert_eq!(server.counters.syncookies_failed, 0, "none was sent of late");
    server.cfg.tcp_syncookies = 2;
    assert!(matches!(server.give(1, &stray), Verdict::Answer(emit) if emit.flags == Flags::RST));
    assert_eq!(server.counters.syncookies_failed, 1);
    let Verdict::Answer(emit) = server.give(2, &syn(Options::default())) else { panic!() };
    // A reset with a good cookie completes nothing.
    let reset = Segment { flags: Flags::RST | Flags::ACK, ..ack(&emit) };
    assert_eq!(server.give(2, &reset), Verdict::Drop(DropReason::TcpReset));
    server.now = server.now.plus_millis(180_000);
    assert!(matches!(server.give(2, &ack(&emit)), Verdict::Answer(_)), "too old");
}

#[test]
fn a_full_queue_sheds_old_requests_early() {
    let mut server = Server::new(8, |_| {});
    let mut requests: Vec<_> = (0..8).map(|port| server.request(port).0).collect();
    for request in &mut requests {
        assert!(matches!(server.timeout(request), Timeout::Resend(_)));
    }
    assert!(matches!(server.timeout(&mut requests[0]), Timeout::Resend(_)));
    assert_eq!(server.timeout(&mut requests[0]), Timeout::Gone, "two instead of five");
    assert_eq!(server.listener.requests(), 7);
}

#[test]
fn defer_accept_waits_for_data() {
    let mut server = Server::new(5, |_| {});
    server.listener.set_defer_accept(&server.cfg.clone(), 5);
    assert_eq!(server.listener.defer_accept(&server.cfg), 7, "1 + 2 + 4");
    let (mut request, emit) = server.request(1);
    let bare = ack(&emit);
    assert_eq!(server.answer(&mut request, &bare), RequestVerdict::Drop(DropReason::TcpDeferAccept));
    assert_eq!(server.timeout(&mut request), Timeout::Wait);
    assert_eq!(server.timeout(&mut request), Timeout::Wait);
    assert!(matches!(server.timeout(&mut request), Timeout::Resend(_)), "towards the end it asks");
    let data = Segment { len: 5, ..bare };
    assert!(matches!(server.answer(&mut request, &data), RequestVerdict::Accept(_)));
    assert_eq!(server.counters.defer_accept_drop, 1);
}

/// The time until the first data is the client's, not the path's.
#[test]
fn a_deferred_accept_measures_no_round_trip() {
    let rtt = |deferred: bool| {
        let mut server = Server::new(5, |_| {});
        server.listener.set_defer_accept(&server.cfg.clone(), 5);
        let (mut request, emit) = server.request(1);
        server.now.0 += 30_000;
        let bare = ack(&emit);
        if deferred {
            server.answer(&mut request, &bare);
            server.now.0 += 700_000;
        }
        match server.answer(&mut request, &Segment { len: 5, ..bare }) {
            RequestVerdict::Accept(accepted) => accepted.rtt,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!((rtt(false), rtt(true)), (Some(Span(30_000)), None));
}

#[test]
fn what_a_listener_does_not_want() {
    let mut server = Server::new(5, |_| {});
    let with = |flags| Segment { flags, ..syn(Options::default()) };
    assert_eq!(server.give(1, &with(Flags::RST)), Verdict::Drop(DropReason::TcpReset));
    assert_eq!(server.give(1, &with(Flags::SYN | Flags::FIN)), Verdict::Drop(DropReason::TcpFlags));
    assert_eq!(server.give(1, &with(Flags::FIN)), Verdict::Drop(DropReason::TcpFlags));
    assert_eq!(server.give(1, &with(Flags::NONE)), Verdict::Drop(DropReason::TcpFlags));
    assert!(
        matches!(server.give(1, &with(Flags::SYN | Flags::ACK)), Verdict::Answer(emit) if emit.flags == Flags::RST)
    );
    assert_eq!(server.listener.requests(), 0);
}

#[test]
fn an_echo_that_is_not_ours_is_answered_and_dropped() {
    let mut server = Server::new(5, |_| {});
    let ts = Options { timestamps: Some(Timestamps { val: 3, ecr: 0 }), ..Options::default() };
    let Verdict::Request(mut request, emit) = server.give(1, &syn(ts)) else { panic!() };
    let mut foreign = ack(&emit);
    foreign.options.timestamps =
        Some(Timestamps { val: 4, ecr: emit.options.timestamps.unwrap().val + 1000 });
    let RequestVerdict::Answer(answer) = server.answer(&mut request, &foreign) else { panic!() };
    assert_eq!((answer.flags, answer.seq, answer.ack), (Flags::ACK, emit.seq + 1, Seq(101)));
    // Without the option, though it was agreed on, the ACK is good.
    let without = Segment { options: Options::default(), ..ack(&emit) };
    assert!(matches!(server.answer(&mut request, &without), RequestVerdict::Accept(_)));
}

/// A stale timer costs the peer no try.
#[test]
fn a_request_timer_before_its_deadline_does_nothing() {
    let mut server = Server::new(16, |_| {});
    let (mut request, _) = server.request(1);
    let before = request.deadline();
    for _ in 0..20 {
        let mut cx = ListenCx { now: server.now, cfg: &server.cfg, counters: &mut server.counters };
        assert_eq!(server.listener.request_timeout(&mut cx, &mut request), Timeout::Wait);
    }
    assert_eq!(request.deadline(), before);
    assert!(matches!(server.timeout(&mut request), Timeout::Resend(_)));
}
