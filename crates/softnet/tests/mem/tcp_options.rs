//! Options of TCP sockets, as programs meet them: low-water marks of calls that block, congestion controls
//! by name, ports of connections that have ended.

use std::io::{ErrorKind, Read, Write};
use std::time::Duration;

use softnet::net::{TcpBuilder, TcpStream};

use super::frames::own;
use super::tcp::{LIMIT, listen, pair, start};
use super::world::until;

/// Bytes that have come, read or not.
fn received(stream: &TcpStream) -> u64 {
    stream.info().unwrap().bytes_received
}

#[test]
fn a_read_that_blocks_waits_for_the_low_water_mark() {
    let (world, lanes, handle) = start();
    let listener = listen(&handle);
    let [client, server] = pair(&handle, &listener);
    client.set_nodelay(true).unwrap();
    server.set_recv_lowat(1000).unwrap();
    let mut buffer = [0; 4096];
    // All that comes until then is returned together.
    std::thread::scope(|scope| {
        let read = scope.spawn(|| server.recv(&mut [0; 4096]).unwrap());
        for _ in 0..9 {
            (&client).write_all(&[1; 100]).unwrap();
        }
        until("it is there", || received(&server) == 900);
        assert!(!read.is_finished() && !server.readiness().readable);
        (&client).write_all(&[1; 100]).unwrap();
        assert_eq!(read.join().unwrap(), 1000);
    });
    // One that asks for less waits for that, also if it is the first that comes.
    std::thread::scope(|scope| {
        let read = scope.spawn(|| server.recv(&mut [0; 4]).unwrap());
        (&client).write_all(&[2; 4]).unwrap();
        assert_eq!(read.join().unwrap(), 4);
    });
    // A call that does not block returns what there is, and so does one whose time is over.
    (&client).write_all(&[3; 50]).unwrap();
    until("it is there", || received(&server) == 1054);
    server.set_read_timeout(Some(Duration::from_millis(10))).unwrap();
    assert_eq!(server.recv(&mut buffer[..20]).unwrap(), 20);
    assert_eq!(server.recv(&mut buffer).unwrap(), 30);
    assert_eq!(server.recv(&mut buffer).unwrap_err().kind(), ErrorKind::WouldBlock);
    server.set_nonblocking(true).unwrap();
    (&client).write_all(&[4; 50]).unwrap();
    until("it is there", || received(&server) == 1104);
    assert_eq!(server.recv(&mut buffer).unwrap(), 50);
    server.set_nonblocking(false).unwrap();
    // The end is enough.
    server.set_read_timeout(None).unwrap();
    std::thread::scope(|scope| {
        let read = scope.spawn(|| server.recv(&mut [0; 4096]).unwrap());
        (&client).write_all(&[5; 7]).unwrap();
        client.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(read.join().unwrap(), 7);
    });
    assert_eq!(server.recv(&mut buffer).unwrap(), 0);
    drop((client, server, listener));
    world.end(lanes);
}

/// A writer that blocks waits at the mark, and goes on as the peer reads.
#[test]
fn a_write_that_blocks_waits_at_the_low_water_mark() {
    let (world, lanes, handle) = start();
    let listener = TcpBuilder::new(&handle).notsent_lowat(20_000).listen((own(0), 0)).unwrap();
    let [client, server] = pair(&handle, &listener);
    for (stream, mark) in [(&server, 20_000), (&client, 10_000)] {
        stream.set_nonblocking(true).unwrap();
        if mark != 20_000 {
            stream.set_notsent_lowat(mark).unwrap();
        }
        let error = loop {
            if let Err(error) = stream.send(&[7; 5000]) {
                break error;
            }
        };
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
        // Acknowledgements may come at any time; a buffer without a mark is far larger.
        let waits = stream.info().unwrap().notsent_bytes;
        assert!(waits < mark + 5000, "{waits}");
        stream.set_nonblocking(false).unwrap();
    }
    std::thread::scope(|scope| {
        scope.spawn(|| (&client).write_all(&[7; 1 << 20]).unwrap());
        let mut buffer = vec![0; 1 << 20];
        (&server).read_exact(&mut buffer).unwrap();
        assert!(buffer.iter().all(|byte| *byte == 7));
    });
    drop((client, server, listener));
    world.end(lanes);
}

#[test]
fn congestion_controls_have_names() {
    let (world, lanes, handle) = start();
    let listener = TcpBuilder::new(&handle).congestion("reno").unwrap().listen((own(0), 0)).unwrap();
    let [client, server] = pair(&handle, &listener);
    assert_eq!((client.congestion().unwrap(), server.congestion().unwrap()), ("cubic", "reno"));
    client.set_congestion("dctcp").unwrap();
    assert_eq!(client.congestion().unwrap(), "dctcp");
    for error in [
        client.set_congestion("bbr").unwrap_err(),
        TcpBuilder::new(&handle).congestion("").map(|_| ()).unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::NotFound);
    }
    // Each is shown with its own.
    let mut shown: Vec<_> = world
        .view
        .tcp()
        .sockets
        .iter()
        .filter_map(|row| Some(row.info.as_ref()?.congestion.clone()))
        .collect();
    shown.sort();
    assert_eq!(shown, ["dctcp", "reno"]);
    (&client).write_all(b"goes on").unwrap();
    let mut buffer = [0; 7];
    (&server).read_exact(&mut buffer).unwrap();
    assert_eq!(&buffer, b"goes on");
    drop((client, server, listener));
    world.end(lanes);
}

/// The port of a connection in TIME-WAIT may be asked for, and gives another that works.
#[test]
fn the_port_of_an_ended_connection_is_used_again() {
    let (world, lanes, handle) = start();
    let listener = listen(&handle);
    let to = listener.local_addr().unwrap();
    for round in 0..5u8 {
        let client = TcpBuilder::new(&handle).local_addr((own(0), 5000).into()).connect(to).unwrap();
        let (server, _) = listener.accept().unwrap();
        (&client).write_all(&[round; 100]).unwrap();
        // The client closes first, and so is the one that waits.
        client.shutdown(std::net::Shutdown::Write).unwrap();
        let mut all = Vec::new();
        (&server).read_to_end(&mut all).unwrap();
        assert_eq!(all, [round; 100]);
        drop(server);
        (&client).read_to_end(&mut all).unwrap();
        drop(client);
        until("it waits", || {
            let summary = world.view.tcp().summary;
            (summary.connections, summary.time_wait) == (0, 1)
        });
    }
    assert_eq!(world.view.tcp().counters["TcpExtTWRecycled"], 4);
    drop(listener);
    world.end(lanes);
}

/// A program that accepts need not wait for ever.
#[test]
fn accepting_takes_no_longer_than_its_time_out() {
    let (world, lanes, handle) = start();
    let listener = listen(&handle);
    assert_eq!(listener.read_timeout().unwrap(), None);
    assert_eq!(listener.set_read_timeout(Some(Duration::ZERO)).unwrap_err().kind(), ErrorKind::InvalidInput);
    let limit = Duration::from_millis(20);
    listener.set_read_timeout(Some(limit)).unwrap();
    // A clone is the same listener.
    let clone = listener.try_clone().unwrap();
    assert_eq!(clone.read_timeout().unwrap(), Some(limit));
    assert_eq!(clone.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
    // What comes in time is accepted, and begins with the same limit.
    let client = TcpStream::connect(&handle, listener.local_addr().unwrap()).unwrap();
    listener.set_read_timeout(LIMIT).unwrap();
    let (server, _) = listener.accept().unwrap();
    assert_eq!((server.read_timeout().unwrap(), client.read_timeout().unwrap()), (LIMIT, None));
    drop((client, server, clone, listener));
    world.end(lanes);
}
