//! Every request is answered or lost, on whichever sockets.

use std::net::Ipv4Addr;
use std::time::Duration;

use softnet::config::Knobs;
use softnet::control::{SetKnobs, Target};
use softnet::net::EpollParams;
use udp_kv::Waiting;

use super::packet::{Ends, Format, Request, number};
use super::*;
use crate::bench::echo::Load;

/// The response to a request, as udp-kv makes it.
fn response(format: &Format, request: Request) -> Vec<u8> {
    let mut packet = vec![0; 256];
    let n = format.write(request, &mut packet);
    packet.truncate(n);
    let mut answer =
        [&packet[6..12], &packet[..6], &packet[12..26], &packet[30..34], &packet[26..30]].concat();
    answer.extend([&packet[36..38], &packet[34..36], &packet[38..50]].concat());
    let (key, value) = packet::item(std::str::from_utf8(&packet[58..61]).unwrap().parse().unwrap());
    answer.extend(format!("VALUE {key} 0 64\r\n{}\r\nEND\r\n", String::from_utf8(value).unwrap()).bytes());
    let len = answer.len() as u16;
    answer[16..18].copy_from_slice(&(len - 14).to_be_bytes());
    answer[38..40].copy_from_slice(&(len - 34).to_be_bytes());
    answer[24..26].fill(0);
    let check = !softnet_core::ip::checksum::sum(&answer[14..34]);
    answer[24..26].copy_from_slice(&check.to_be_bytes());
    answer
}

#[test]
fn a_response_names_its_request_and_no_other_byte_will_do() {
    let end = |n| ([2, 0, 0, 0, 0, n], Ipv4Addr::new(198, 18, 0, n));
    let format = Format::new(Ends { client: end(1), server: end(2) }, false);
    for request in
        [0, 1, 63, 64, 65_535].into_iter().flat_map(|id| [Request::Server(id), Request::Second(id)])
    {
        let mut answer = response(&format, request);
        assert_eq!(format.answered(&answer), Some(request));
        for at in 0..answer.len() {
            answer[at] ^= 1;
            // The UDP checksum, and what the IP header's covers twice.
            assert!(
                (40..42).contains(&at) || format.answered(&answer) != Some(request),
                "{request:?} byte {at}"
            );
            answer[at] ^= 1;
        }
        assert_eq!(format.answered(&answer[..answer.len() - 1]), None);
        let mut buf = [0; 256];
        let n = format.write(request, &mut buf);
        assert_eq!((n, format.answered(&buf[..n])), (format.len(), None), "a request is no response");
    }
    for (next, id, expected) in
        [(1, 0, 0), (65_536, 65_535, 65_535), (65_537, 65_535, 65_535), (70_000, 4_463, 69_999)]
    {
        assert_eq!(number(id, next), expected);
    }
}

fn run(bed: &mut Bed, waiting: Waiting, load: Load) -> app::Served {
    // However long the machine keeps a thread waiting.
    bed.client.silence = Duration::from_secs(60);
    let app = App::start(&bed.side, waiting, crate::bench::cpus()[0]).unwrap();
    assert!(app.threads().iter().all(|tid| *tid > 0));
    let lost = bed.side.lost_on_the_wire().unwrap();
    let (short, measure) = (Duration::from_millis(5), Duration::from_millis(60));
    let outcome = bed.client.run(&load, short, measure, &mut || ()).unwrap();
    let lost = bed.side.lost_on_the_wire().unwrap() - lost;
    let served = app.stop().unwrap();
    let second = bed.side.second.lock().unwrap();
    assert!(outcome.received > 0 && outcome.lost <= lost, "{load:?}: {} lost, {lost}", outcome.lost);
    assert!(second.latency.count() > 0 && second.lost <= lost, "{} lost, {lost}", second.lost);
    assert_eq!((served.received, served.not_sent), (served.sent, 0));
    assert!(served.sent >= outcome.received + second.latency.count());
    served
}

fn in_all_ways(bed: &mut Bed) {
    let prefer = EpollParams { busy_poll_usecs: 0, busy_poll_budget: 64, prefer_busy_poll: true };
    for params in [EpollParams::default(), prefer] {
        for (max_events, load) in [(64, Load::Closed { flows: 200 }), (1, Load::Open { rate: 3_000.0 })] {
            let before = bed.side.stack().map(|(stack, _)| stack.view().stats());
            let served = run(bed, Waiting { params, max_events, ..Waiting::default() }, load);
            let Some((stack, _)) = bed.side.stack() else { return };
            let (before, after) = (before.unwrap(), stack.view().stats());
            assert_eq!(after.received - before.received, served.received + after.dropped - before.dropped);
            assert_eq!((after.transmitted - before.transmitted, after.leaked), (served.sent, 0));
        }
        let knobs = Knobs::default().with(|knobs| {
            knobs.napi_defer_hard_irqs = Some(100);
            knobs.gro_flush_timeout = Some(20_000);
            knobs.irq_suspend_timeout = Some(20_000_000);
        });
        let Some((stack, napi)) = bed.side.stack() else { return };
        stack.view().set_knobs(&SetKnobs { target: Target::Napi(napi), knobs }).unwrap();
    }
    assert!(bed.side.stack().unwrap().0.view().napis()[0].suspensions > 0);
}

#[test]
fn the_server_on_softnets_sockets_answers_by_an_emulated_nic() {
    in_all_ways(&mut Bed::mem(crate::bench::cpus()[0], None).unwrap());
}

#[test]
fn it_answers_by_a_veth_pair_as_the_kernels_sockets_do() {
    if !softnet_testkit::net_allowed() {
        return;
    }
    let cpus = crate::bench::cpus();
    let cpu = cpus[0];
    for receive in [Receive::Client, Receive::Server { cpu }] {
        in_all_ways(&mut Bed::xdp(cpu, None, receive).unwrap());
        let mut bed = Bed::kernel(receive).unwrap();
        assert_eq!(bed.side.kernel_threads().len(), usize::from(receive != Receive::Client));
        in_all_ways(&mut bed);
        let deferred =
            NapiKnobs { defer_hard_irqs: 100, gro_flush_timeout: 100_000, irq_suspend_timeout: 20_000_000 };
        bed.side.set_kernel_knobs(deferred).unwrap();
        in_all_ways(&mut bed);
    }
}
