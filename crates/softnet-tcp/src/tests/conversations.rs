//! Which conversation is held where: the ones that a TCP has to be able to hold, and those that
//! gVisor's packetimpact has with stacks over a wire, in words of our own. Those that stand in no
//! other file stand here. A name without a test fails the first one.

use super::end::enter;
use super::talk::Talk;
use crate::conn::Error;

/// A conversation, what proves it, and the file and tests that do.
type Row = (&'static str, &'static str, &'static [&'static str]);

/// The first conversations of any TCP.
const FIRST: &[Row] = &[
    ("three-way handshake", "handshake", &["active_open", "passive_open_and_data_both_ways"]),
    ("SYN lost for ever", "handshake", &["a_syn_that_is_lost_for_ever_ends_after_131_seconds"]),
    ("SYN-ACK lost", "handshake", &["a_syn_ack_that_is_lost_goes_again_until_the_request_is_forgotten"]),
    ("third ACK lost", "handshake", &["a_third_ack_that_is_lost_is_made_good_by_data"]),
    ("refused", "handshake", &["a_refused_connection_says_so"]),
    (
        "crossed SYNs",
        "handshake",
        &["crossed_syns_open_one_connection", "crossed_syns_with_a_bad_ack_are_reset"],
    ),
    ("FIN first", "close", &["this_end_closes_first", "the_peer_closes_first"]),
    ("FIN at once", "close", &["both_close_at_once", "a_fin_that_acknowledges_the_fin_ends_at_once"]),
    (
        "FIN behind a hole",
        "close",
        &["a_fin_beyond_a_hole_waits_for_the_data", "nothing_is_taken_behind_a_fin"],
    ),
    ("RST in each state and place", "matrix", &["every_state_kind_and_edge"]),
    ("half close, a megabyte", "close", &["this_end_shuts_down_and_the_peer_goes_on_for_a_megabyte"]),
    ("close with unread data", "close", &["closing_with_unread_data_resets"]),
    ("linger 0", "close", &["lingering_for_no_time_resets"]),
    ("zero window, probes", "flow", &["a_zero_window_is_probed_less_and_less_often"]),
    ("window update lost", "conversations", &["a_window_update_that_is_lost_is_found_by_a_probe"]),
    ("delayed ACK", "receive", &["a_delayed_ack_waits_forty_milliseconds_outside_quick_mode"]),
    ("ACK on an answer", "receive", &["an_answer_carries_the_ack"]),
    ("Nagle and Minshall", "flow", &["a_small_segment_waits_only_for_a_small_one"]),
    (
        "cork, NODELAY",
        "flow",
        &["a_cork_holds_a_partial_segment_for_200_ms", "without_nagle_all_goes_at_once"],
    ),
    (
        "tail-loss probe",
        "send/loss",
        &["a_probe_shows_a_lost_tail", "a_probe_that_repairs_costs_one_reduction"],
    ),
    (
        "RACK and reordering",
        "send/reordering",
        &["a_distance_of_one_or_two_retransmits_nothing", "known_reordering_ends_the_duplicate_threshold"],
    ),
    (
        "two losses, PRR",
        "send/loss",
        &["the_first_and_two_at_once", "the_reduction_spreads_over_the_round_trip"],
    ),
    ("retransmission lost", "send/loss", &["a_lost_retransmission_is_sent_again"]),
    ("spurious time-out", "send/timeout", &["a_spurious_timeout_is_undone"]),
    ("reneging", "send/timeout", &["reneging_is_believed_after_a_while"]),
    ("PAWS", "receive", &["old_timestamps_are_dropped_and_answered"]),
    ("timestamps wrap", "receive", &["timestamps_may_wrap"]),
    ("numbers wrap", "handshake", &["numbers_may_wrap"]),
    ("TIME-WAIT, a new SYN", "close", &["a_new_syn_takes_over_a_time_wait"]),
    ("SYN cookie", "listen", &["a_cookie_makes_a_connection_with_what_it_can_carry"]),
    ("accept queue overflows", "listen", &["a_full_accept_queue_drops_the_third_ack_and_keeps_the_request"]),
    ("keepalive, a dead peer", "timeouts", &["keepalive_finds_a_dead_peer"]),
    ("user time-out", "timeouts", &["the_users_timeout_ends_unacknowledged_data"]),
    ("path MTU shrinks", "flow", &["a_smaller_path_cuts_what_is_sent_again"]),
    ("ECN", "receive", &["ecn_is_echoed_until_cwr"]),
    ("ECN, the sender", "send/marks", &["one_reduction_a_round_trip_and_cwr_on_new_data"]),
    ("a peer without SACK", "send/loss", &["without_sack_three_duplicates_and_partial_acks"]),
    ("answers without SACK", "receive", &["a_peer_without_sack_gets_bare_duplicate_acks"]),
];

/// packetimpact's, by its names.
const PACKETIMPACT: &[Row] = &[
    ("acceptable_ack_syn_rcvd", "handshake", &["a_third_ack_with_another_number_is_refused"]),
    ("connect_icmp_error", "timeouts", &["an_error_ends_a_connection_that_is_being_opened"]),
    ("cork_mss", "conversations", &["a_cork_holds_no_full_segment"]),
    ("fin_retransmission", "conversations", &["a_fin_goes_again_in_fin_wait_1_and_last_ack"]),
    (
        "fin_wait2_timeout",
        "close",
        &["fin_wait_2_of_an_orphan_is_a_small_object_and_ends", "linger2_shortens_or_forbids_the_wait"],
    ),
    ("handshake_window_size", "conversations", &["the_window_of_a_syn_ack_is_not_scaled"]),
    ("info", "conversations", &["info_tells_what_an_exchange_was"]),
    ("linger", "close", &["lingering_for_no_time_resets"]),
    ("listen_backlog", "listen", &["a_backlog_of_zero_admits_one", "the_backlog_is_bounded_by_somaxconn"]),
    ("network_unreachable", "conversations", &["no_way_to_the_network_ends_a_connect"]),
    ("noaccept_close_rst", "conversations", &["a_listener_that_closes_resets_what_was_not_accepted"]),
    ("outside_the_window", "matrix", &["every_state_kind_and_edge"]),
    ("paws_mechanism", "receive", &["old_timestamps_are_dropped_and_answered"]),
    ("queue_send_recv_in_syn_sent", "handshake", &["data_queued_before_the_handshake_carries_its_ack"]),
    (
        "rack",
        "send/loss",
        &[
            "a_probe_shows_a_lost_tail",
            "a_lost_retransmission_is_sent_again",
            "packets_of_one_burst_are_ordered_by_number",
        ],
    ),
    ("rcv_buf_space", "receive", &["memory_for_what_waits_beyond_a_hole_is_bounded"]),
    ("retransmits", "send/timeout", &["rto_doubles_up_to_its_bound"]),
    ("send_window_sizes_piggyback", "conversations", &["a_window_that_rides_on_data_makes_data_go"]),
    (
        "syncookie",
        "listen",
        &["a_cookie_makes_a_connection_with_what_it_can_carry", "a_cookie_that_is_not_ours_is_reset"],
    ),
    ("synrcvd_reset", "handshake", &["a_reset_forgets_a_request_and_one_out_of_window_does_not"]),
    (
        "synsent_reset",
        "handshake",
        &[
            "an_old_connection_that_answers_is_reset_and_the_syn_goes_again",
            "a_reset_without_a_good_ack_does_not_refuse",
        ],
    ),
    ("timewait_reset", "timewait", &["rfc1337_decides_about_resets"]),
    ("unacc_seq_ack", "matrix", &["every_state_and_edge_of_the_ack_field"]),
    ("user_timeout", "timeouts", &["the_users_timeout_ends_unacknowledged_data"]),
    ("window_shrink", "flow", &["a_shrunken_window_is_no_error"]),
    ("zero_receive_window", "receive", &["a_closed_window_drops_answers_and_opens"]),
    ("zero_window_probe", "flow", &["a_zero_window_is_probed_less_and_less_often"]),
    (
        "zero_window_probe_retransmit",
        "flow",
        &["a_peer_that_answers_probes_is_not_given_up", "a_peer_that_answers_no_probe_is_given_up"],
    ),
    ("zero_window_probe_usertimeout", "timeouts", &["the_users_timeout_ends_unanswered_probes"]),
];

fn source(file: &str) -> &'static str {
    match file {
        "close" => include_str!("close.rs"),
        "conversations" => include_str!("conversations.rs"),
        "flow" => include_str!("flow.rs"),
        "handshake" => include_str!("handshake.rs"),
        "listen" => include_str!("listen.rs"),
        "matrix" => include_str!("matrix.rs"),
        "receive" => include_str!("receive.rs"),
        "timeouts" => include_str!("timeouts.rs"),
        "timewait" => include_str!("../timewait.rs"),
        "send/loss" => include_str!("../send/tests/loss.rs"),
        "send/marks" => include_str!("../send/tests/marks.rs"),
        "send/reordering" => include_str!("../send/tests/reordering.rs"),
        "send/timeout" => include_str!("../send/tests/timeout.rs"),
        other => panic!("no such file: {other}"),
    }
}

#[test]
fn every_conversation_is_held() {
    assert_eq!(PACKETIMPACT.len(), 29);
    for (name, file, tests) in FIRST.iter().chain(PACKETIMPACT) {
        for test in *tests {
            assert!(
                source(file).contains(&format!("#[test]\n    fn {test}("))
                    || source(file).contains(&format!("#[test]\nfn {test}(")),
                "{name}: {file}: {test}"
            );
        }
    }
}

/// RFC 9293 3.8.6.1: without probes, both ends would wait for ever.
#[test]
fn a_window_update_that_is_lost_is_found_by_a_probe() {
    let mut talk = Talk::accepted(|_| {});
    talk.run(
        "write 1000
         > P. 1:1001(1000) ack 1
         +10 < . 1:1(0) ack 1001 win 0
         write 500
         // The peer reads, and what it says of its window is lost.
         +210 > . 1000:1000(0) ack 1
         +10 < . 1:1(0) ack 1001 win 257
         > P. 1001:1501(500) ack 1",
    );
}

/// Cork waits for full segments, and for no more than that.
#[test]
fn a_cork_holds_no_full_segment() {
    let mut talk = Talk::accepted(|_| {});
    talk.run(
        "cork on
         write 999
         nothing
         write 1
         > P. 1:1001(1000) ack 1",
    );
}

#[test]
fn a_fin_goes_again_in_fin_wait_1_and_last_ack() {
    for (by_peer, ack) in [("nothing", 1), ("< F. 1:1(0) ack 1 win 257\n> . 1:1(0) ack 2", 2)] {
        let mut talk = Talk::accepted(|_| {});
        talk.run(by_peer);
        talk.run(&format!(
            "shutdown wr
             > F. 1:1(0) ack {ack}
             +210 > F. 1:1(0) ack {ack}
             +10 < . {ack}:{ack}(0) ack 2 win 257"
        ));
        talk.run(if ack == 1 { "state FinWait2" } else { "state Closed" });
    }
}

/// RFC 7323 2.2: "The window field in a segment where the SYN bit is set (i.e., a <SYN> or
/// <SYN,ACK>) MUST NOT be scaled."
#[test]
fn the_window_of_a_syn_ack_is_not_scaled() {
    let mut talk = Talk::connect(|_| {});
    talk.run(
        "> S 0:0(0)
         +10 < S. 0:0(0) ack 1 win 2000 <mss 1000,nop,wscale 7>
         > . 1:1(0) ack 1
         write 5000
         > P. 1:2001(2000) ack 1
         +10 < . 1:1(0) ack 2001 win 16
         > P. 2001:4001(2000) ack 1",
    );
}

#[test]
fn info_tells_what_an_exchange_was() {
    let mut talk = Talk::accepted(|_| {});
    talk.run(
        "write 2000
         > P. 1:2001(2000) ack 1
         +20 < P. 1:101(100) ack 2001 win 257
         > . 2001:2001(0) ack 101",
    );
    let info = talk.end.conn().info(&talk.end.cfg);
    assert_eq!((info.state, info.bytes_received, info.send.bytes_acked), (1, 100, 2000));
    assert_eq!((info.send.unacked, info.send.snd_mss, info.send.total_retrans), (0, 1000, 0));
    assert_eq!((info.data_segs_in, info.data_segs_out, info.snd_wnd), (1, 2, 257 << 7));
    // The handshake's 10 ms, and an eighth of the way to 20 ms (RFC 6298 2.3).
    assert_eq!(info.send.rtt.0, 11_250);
}

#[test]
fn no_way_to_the_network_ends_a_connect() {
    let mut talk = Talk::connect(|_| {});
    talk.run("> S 0:0(0)");
    let iss = talk.end.iss;
    enter!(&mut talk.end, conn, cx => conn.icmp_error(cx, iss, Error::NetworkUnreachable));
    talk.run("state Closed\nerror NetworkUnreachable");
}

/// The peer believes in a connection that no application ever saw.
#[test]
fn a_listener_that_closes_resets_what_was_not_accepted() {
    let mut talk = Talk::accepted(|_| {});
    talk.run("< P. 1:101(100) ack 1 win 257\n> . 1:1(0) ack 101");
    enter!(&mut talk.end, conn, cx => conn.kill(cx));
    talk.run("> R. 1:1(0) ack 101\nstate Closed");
}

#[test]
fn a_window_that_rides_on_data_makes_data_go() {
    let mut talk = Talk::accepted(|_| {});
    talk.run(
        "write 1000
         > P. 1:1001(1000) ack 1
         +10 < . 1:1(0) ack 1001 win 0
         write 2000
         +10 < P. 1:101(100) ack 1001 win 16
         > P. 1001:3001(2000) ack 101",
    );
}

/// The SYN's number was sent: an ACK of it is old, but not of what never was (RFC 5961 5.2).
#[test]
fn data_with_the_oldest_number_acknowledged_is_taken() {
    let mut talk = Talk::accepted(|_| {});
    talk.run(
        "< . 1:1001(1000) ack 0 win 257
         > . 1:1(0) ack 1001
         read 1000
         // Of what was before the SYN.
         +10 < . 1001:2001(1000) ack 4294967295 win 257
         > . 1:1(0) ack 1001
         +10 < . 1001:2001(1000) ack 1 win 257
         > . 1:1(0) ack 2001",
    );
    assert_eq!((talk.end.counters.challenge_ack, talk.end.host.delivered), (1, 2000));
}
