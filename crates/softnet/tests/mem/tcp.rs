//! TCP sockets of one stack that talk to each other through its own addresses, by calls of threads
//! that block or do not.

use std::io::{ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::net::{IpAddr, Ipv6Addr, Shutdown, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rustix::io::Errno;
use softnet::config::InterfaceAddr;
use softnet::net::{Handle, TcpBuilder, TcpListener, TcpReader, TcpStream};

use super::frames::{host, own};
use super::world::{Lane, Setup, World, until};

pub(crate) const LIMIT: Option<Duration> = Some(Duration::from_secs(30));
/// To see that nothing comes.
const SHORT: Option<Duration> = Some(Duration::from_millis(20));

fn own6() -> Ipv6Addr {
    "fd00::1".parse().unwrap()
}

/// A stack with addresses of both families.
pub(crate) fn start() -> (World, Vec<Lane>, Handle) {
    let setup = Setup { ports: &[1], workers: 1, known: true, ..Setup::default() };
    let (world, lanes) =
        setup.start_with(|config| config.devices[0].addresses.push(InterfaceAddr::new(own6(), 64).unwrap()));
    let handle = world.handle();
    (world, lanes, handle)
}

pub(crate) fn addresses() -> [IpAddr; 2] {
    [own(0).into(), own6().into()]
}

/// Byte `at` of a stream.
pub(crate) fn byte(at: usize) -> u8 {
    (at * 31 % 251) as u8
}

/// Writes `len` bytes of the stream, in pieces of a length that is no multiple of anything.
pub(crate) fn write(mut to: impl Write, len: usize) {
    let data: Vec<u8> = (0..len).map(byte).collect();
    data.chunks(7001).for_each(|piece| to.write_all(piece).unwrap());
}

/// Reads to the end: the bytes are `len` of the stream.
pub(crate) fn read(mut from: impl Read, len: usize) {
    let (mut buffer, mut at) = (vec![0; 65_536], 0);
    loop {
        let n = from.read(&mut buffer).unwrap_or_else(|error| panic!("after {at} of {len} bytes: {error}"));
        if n == 0 {
            break;
        }
        let want = (at..at + n).map(byte);
        assert!(buffer[..n].iter().copied().eq(want), "bytes {at} to {}", at + n);
        at += n;
    }
    assert_eq!(at, len);
}

/// Both ends of a connection to `listener`.
pub(crate) fn pair(handle: &Handle, listener: &TcpListener) -> [TcpStream; 2] {
    let client = TcpStream::connect(handle, listener.local_addr().unwrap()).unwrap();
    let (server, from) = listener.accept().unwrap();
    assert_eq!(from, client.local_addr().unwrap());
    assert_eq!(server.local_addr().unwrap(), client.peer_addr().unwrap());
    [&client, &server].iter().for_each(|end| {
        end.set_read_timeout(LIMIT).unwrap();
        end.set_write_timeout(LIMIT).unwrap();
    });
    [client, server]
}

pub(crate) fn listen(handle: &Handle) -> TcpListener {
    TcpListener::bind(handle, (own(0), 0)).unwrap()
}

fn kind<T: std::fmt::Debug>(result: std::io::Result<T>) -> ErrorKind {
    result.unwrap_err().kind()
}

/// The error that ended a connection is told once, and then its end.
fn is_reset(stream: &TcpStream) {
    until("it is reset", || stream.readiness().hung_up);
    assert!(stream.readiness().error);
    assert_eq!(kind(stream.recv(&mut [0; 9])), ErrorKind::ConnectionReset);
    assert_eq!(stream.recv(&mut [0; 9]).unwrap(), 0);
    assert_eq!(kind(stream.send(b"x")), ErrorKind::BrokenPipe);
    assert_eq!(kind(stream.shutdown(Shutdown::Write)), ErrorKind::NotConnected);
}

#[test]
fn bytes_go_both_ways_at_once_in_both_families() {
    let (world, lanes, handle) = start();
    for addr in addresses() {
        let listener = TcpListener::bind(&handle, (addr, 0)).unwrap();
        for len in [0, 1, 1460, 100_000, 3_000_000] {
            let [client, server] = pair(&handle, &listener);
            assert_eq!((client.peer_addr().unwrap().ip(), client.local_addr().unwrap().ip()), (addr, addr));
            std::thread::scope(|scope| {
                for end in [&client, &server] {
                    scope.spawn(move || {
                        write(end, len);
                        end.shutdown(Shutdown::Write).unwrap();
                    });
                    scope.spawn(move || read(end, len));
                }
            });
        }
    }
    // One that listens on all addresses takes both families, and tells IPv4 addresses as mapped ones.
    let any = TcpListener::bind(&handle, (Ipv6Addr::UNSPECIFIED, 0)).unwrap();
    for addr in addresses() {
        let client = TcpStream::connect(&handle, (addr, any.local_addr().unwrap().port())).unwrap();
        let (server, from) = any.accept().unwrap();
        assert_eq!((from.ip().to_canonical(), from.is_ipv6()), (addr, true));
        (&client).write_all(b"to any").unwrap();
        let mut buffer = [0; 6];
        (&server).read_exact(&mut buffer).unwrap();
        assert_eq!(&buffer, b"to any");
    }
    drop(any);
    world.end(lanes);
}

#[test]
fn half_closed_connections_go_on_and_what_is_not_read_resets() {
    let (world, lanes, handle) = start();
    let listener = listen(&handle);
    let [client, server] = pair(&handle, &listener);
    // The client says all, and then hears all.
    write(&client, 5000);
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(kind(client.send(b"more")), ErrorKind::BrokenPipe);
    read(&server, 5000);
    assert!(server.readiness().peer_closed && !server.readiness().hung_up);
    write(&server, 200_000);
    drop(server);
    read(&client, 200_000);
    assert_eq!(client.recv(&mut [0; 9]).unwrap(), 0, "the end stays the end");
    // Closed with unread bytes.
    let [client, server] = pair(&handle, &listener);
    (&client).write_all(b"unread").unwrap();
    until("it is there", || server.readiness().readable);
    drop(server);
    is_reset(&client);
    // Closed with `SO_LINGER` of 0; what the peer has got it may still read, and then learns.
    let [client, server] = pair(&handle, &listener);
    (&client).write_all(b"last words").unwrap();
    until("it is there", || server.readiness().readable);
    client.set_linger(Some(Duration::ZERO)).unwrap();
    drop(client);
    until("it is reset", || server.readiness().hung_up);
    let mut buffer = [0; 99];
    assert_eq!(server.recv(&mut buffer).unwrap(), 10);
    is_reset(&server);
    // Ending reading is no news to the peer.
    let [client, server] = pair(&handle, &listener);
    client.shutdown(Shutdown::Read).unwrap();
    assert_eq!(client.recv(&mut buffer).unwrap(), 0);
    (&client).write_all(b"still here").unwrap();
    assert_eq!(server.recv(&mut buffer).unwrap(), 10);
    // Both at once.
    server.shutdown(Shutdown::Both).unwrap();
    assert_eq!((server.recv(&mut buffer).unwrap(), kind(server.send(b"x"))), (0, ErrorKind::BrokenPipe));
    until("the peer learns", || client.readiness().peer_closed);
    drop((client, server, listener));
    world.end(lanes);
}

#[test]
fn calls_that_would_block_say_so_and_those_that_may_wait_give_up_in_time() {
    let (world, lanes, handle) = start();
    let listener = listen(&handle);
    listener.set_nonblocking(true).unwrap();
    assert_eq!(kind(listener.accept()), ErrorKind::WouldBlock);
    let to = listener.local_addr().unwrap();
    // Connecting is begun, and done some time later.
    let client = TcpBuilder::new(&handle).begin_connect(&to).unwrap();
    client.set_nonblocking(true).unwrap();
    until("it is connected", || client.readiness().writable);
    assert!(client.take_error().unwrap().is_none());
    let (server, _) = listener.accept().unwrap();
    let mut buffer = [0; 9];
    assert_eq!(kind(client.recv(&mut buffer)), ErrorKind::WouldBlock);
    assert_eq!(kind(client.peek(&mut buffer)), ErrorKind::WouldBlock);
    let mut sent = 0;
    loop {
        match client.send(&[7; 10_000]) {
            Ok(n) => sent += n,
            Err(error) => break assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
    }
    // What was queued on a connection whose peer does not read has its limits.
    assert!((10_000..30_000_000).contains(&sent), "{sent} bytes");
    let to_come = std::thread::spawn(move || {
        let mut got = 0;
        while got < sent {
            got += server.recv(&mut [0; 9999]).unwrap();
        }
        server
    });
    let server = to_come.join().unwrap();
    until("there is room", || client.readiness().writable);
    // A closed port answers.
    let refused = TcpBuilder::new(&handle).begin_connect(&(own(0), 9).into()).unwrap();
    until("it is refused", || refused.readiness().error);
    assert_eq!(refused.take_error().unwrap().unwrap().kind(), ErrorKind::ConnectionRefused);
    assert_eq!(kind(TcpStream::connect(&handle, (own(0), 9))), ErrorKind::ConnectionRefused);
    // An address at which nothing answers does not.
    let silent = SocketAddr::from((host(0), 9));
    assert_eq!(
        kind(TcpStream::connect_timeout(&handle, &silent, Duration::from_millis(20))),
        ErrorKind::TimedOut
    );
    let pending = TcpBuilder::new(&handle).begin_connect(&silent).unwrap();
    pending.set_nonblocking(true).unwrap();
    assert_eq!(kind(pending.recv(&mut buffer)), ErrorKind::WouldBlock);
    assert_eq!(kind(pending.send(b"early")), ErrorKind::WouldBlock);
    assert_eq!(pending.readiness(), Default::default());
    pending.shutdown(Shutdown::Both).unwrap();
    assert_eq!(kind(pending.recv(&mut buffer)), ErrorKind::NotConnected);
    // Time-outs.
    server.set_nonblocking(false).unwrap();
    server.set_read_timeout(SHORT).unwrap();
    assert_eq!(server.read_timeout().unwrap(), SHORT);
    assert_eq!(kind(server.recv(&mut buffer)), ErrorKind::WouldBlock);
    server.set_write_timeout(SHORT).unwrap();
    let full = loop {
        if let Err(error) = server.send(&[7; 10_000]) {
            break error.kind();
        }
    };
    assert_eq!(full, ErrorKind::WouldBlock);
    assert_eq!(kind(server.set_read_timeout(Some(Duration::ZERO))), ErrorKind::InvalidInput);
    drop((client, server, listener, refused, pending));
    world.end(lanes);
}

#[test]
fn bytes_are_peeked_scattered_and_gathered() {
    let (world, lanes, handle) = start();
    let listener = listen(&handle);
    let [mut client, mut server] = pair(&handle, &listener);
    let data: Vec<u8> = (0..9000).map(byte).collect();
    let (a, rest) = data.split_at(1);
    let (b, c) = rest.split_at(4000);
    let n = client.write_vectored(&[IoSlice::new(a), IoSlice::new(&[]), IoSlice::new(b), IoSlice::new(c)]);
    assert_eq!(n.unwrap(), 9000);
    let mut peeked = vec![0; 9000];
    until("all is there", || server.peek(&mut peeked).unwrap() == 9000);
    assert_eq!(peeked, data);
    let mut parts = [vec![0; 10], vec![0; 3000], vec![0; 9000]];
    let n = server.read_vectored(&mut parts.each_mut().map(|part| IoSliceMut::new(part)));
    assert_eq!(n.unwrap(), 9000);
    assert_eq!(parts.concat()[..9000], data);
    assert_eq!(client.send_more(b"one ", true).unwrap() + client.send(b"segment").unwrap(), 11);
    let mut buffer = [0; 99];
    until("both are there", || server.peek(&mut buffer).unwrap() == 11);
    assert_eq!(server.recv(&mut buffer[..0]).unwrap(), 0, "nothing is asked for");
    drop((client, server, listener));
    world.end(lanes);
}

/// Lines of all lengths through a reader, which borrows them where they lie.
#[test]
fn readers_borrow_what_has_arrived() {
    const LINES: usize = 3000;
    let line = |i: usize| -> Vec<u8> { (0..i * 37 % 5000).map(|at| b'a' + (i + at) as u8 % 26).collect() };
    let (world, lanes, handle) = start();
    let listener = listen(&handle);
    let [client, server] = pair(&handle, &listener);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for i in 0..LINES {
                (&client).write_all(&[line(i), vec![b'\n']].concat()).unwrap();
            }
            client.shutdown(Shutdown::Write).unwrap();
        });
        let mut reader = TcpReader::new(server.clone());
        let mut lines = 0;
        while reader.fill().unwrap() > 0 {
            assert!(world.view.stats().held > 0, "what is borrowed is in the books");
            while let Some(end) = reader.find(b'\n') {
                assert_eq!(reader.get(end).unwrap(), line(lines), "line {lines}");
                reader.consume(end + 1);
                lines += 1;
            }
        }
        assert_eq!((lines, reader.len()), (LINES, 0));
    });
    // As a `BufRead`; and some of what it borrows it has when it is dropped.
    let [client, server] = pair(&handle, &listener);
    (&client).write_all(b"first\nsecond\nthird").unwrap();
    let mut reader = TcpReader::new(server);
    let mut text = String::new();
    std::io::BufRead::read_line(&mut reader, &mut text).unwrap();
    assert_eq!(text, "first\n");
    let mut six = [0; 6];
    reader.read_exact(&mut six).unwrap();
    assert_eq!(&six, b"second");
    until("all is borrowed", || reader.len() >= 6 || reader.fill().unwrap() > 0 && reader.len() >= 6);
    reader.get_ref().set_nonblocking(true).unwrap();
    assert_eq!(kind(reader.fill()), ErrorKind::WouldBlock);
    drop((client, reader, listener));
    assert_eq!(world.view.stats().held, 0);
    world.end(lanes);
}

/// The clients speak first: a SYN cookie's connection whose ACK met a full accept queue is known to its
/// client alone, until that sends something (RFC 4987 section 3.6).
#[test]
fn connections_beyond_the_backlog_wait_and_are_served() {
    const CLIENTS: usize = 12;
    let (world, lanes, handle) = start();
    let listener = TcpBuilder::new(&handle).backlog(2).listen((own(0), 0)).unwrap();
    listener.set_nonblocking(true).unwrap();
    let to = listener.local_addr().unwrap();
    let clients: Vec<_> =
        (0..CLIENTS).map(|_| TcpBuilder::new(&handle).begin_connect(&to).unwrap()).collect();
    std::thread::scope(|scope| {
        for (i, client) in clients.iter().enumerate() {
            scope.spawn(move || {
                until("it is connected", || client.readiness().writable);
                client.set_read_timeout(LIMIT).unwrap();
                (&mut &*client).write_all(&[i as u8]).unwrap();
                let mut answer = [0];
                (&mut &*client).read_exact(&mut answer).unwrap();
                assert_eq!(usize::from(answer[0]), i);
            });
        }
        for _ in 0..CLIENTS {
            let mut accepted = None;
            until("one is accepted", || {
                accepted = listener.accept().ok();
                accepted.is_some()
            });
            let (server, from) = accepted.unwrap();
            server.set_read_timeout(LIMIT).unwrap();
            let mut number = [0];
            (&server).read_exact(&mut number).unwrap();
            assert_eq!(clients[usize::from(number[0])].local_addr().unwrap(), from);
            (&server).write_all(&number).unwrap();
        }
    });
    assert_eq!(kind(listener.accept()), ErrorKind::WouldBlock);
    drop((clients, listener));
    world.end(lanes);
}

#[test]
fn many_threads_may_use_one_stream_and_one_listener() {
    const THREADS: usize = 8;
    const EACH: usize = 200;
    let (world, lanes, handle) = start();
    let listener = listen(&handle);
    let [client, server] = pair(&handle, &listener);
    let got = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let senders: Vec<_> = (0..THREADS)
            .map(|_| scope.spawn(|| (0..EACH).for_each(|_| (&client).write_all(&[1; 100]).unwrap())))
            .collect();
        for _ in 0..THREADS {
            scope.spawn(|| {
                let mut buffer = [0; 333];
                loop {
                    let n = server.recv(&mut buffer).unwrap();
                    assert!(buffer[..n].iter().all(|byte| *byte == 1));
                    got.fetch_add(n, Ordering::Relaxed);
                    if n == 0 {
                        break;
                    }
                }
            });
        }
        senders.into_iter().for_each(|sender| sender.join().unwrap());
        client.shutdown(Shutdown::Write).unwrap();
    });
    assert_eq!(got.load(Ordering::Relaxed), THREADS * EACH * 100);
    drop((client, server));
    // Each connection is accepted by one of them.
    let (accepted, to) = (AtomicUsize::new(0), listener.local_addr().unwrap());
    std::thread::scope(|scope| {
        let acceptors: Vec<_> = (0..THREADS)
            .map(|_| {
                scope.spawn(|| {
                    loop {
                        let (stream, _) = listener.accept().unwrap();
                        let mut buffer = [0];
                        (&stream).read_exact(&mut buffer).unwrap();
                        if buffer[0] == 0 {
                            break;
                        }
                        accepted.fetch_add(1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        let clients: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    for _ in 0..EACH {
                        let client = TcpStream::connect(&handle, to).unwrap();
                        (&client).write_all(&[1]).unwrap();
                    }
                })
            })
            .collect();
        clients.into_iter().for_each(|client| client.join().unwrap());
        for _ in 0..THREADS {
            (&TcpStream::connect(&handle, to).unwrap()).write_all(&[0]).unwrap();
        }
        acceptors.into_iter().for_each(|acceptor| acceptor.join().unwrap());
    });
    assert_eq!(accepted.load(Ordering::Relaxed), 4 * EACH);
    drop(listener);
    world.end(lanes);
}

/// Thousands of connections, one after the other, each with a request and an answer.
#[test]
fn short_connections_leave_nothing() {
    const CONNECTIONS: usize = 5000;
    let (world, lanes, handle) = start();
    let listener = listen(&handle);
    let to = listener.local_addr().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for i in 0..CONNECTIONS {
                let (mut server, _) = listener.accept().unwrap();
                server.set_read_timeout(LIMIT).unwrap();
                let mut asked = [0; 8];
                server.read_exact(&mut asked).unwrap();
                assert_eq!(u64::from_be_bytes(asked), i as u64);
                server.write_all(&asked).unwrap();
                // Each of the ends closes first at times.
                if i % 2 == 0 {
                    assert_eq!(server.read(&mut asked).unwrap(), 0);
                }
            }
        });
        for i in 0..CONNECTIONS {
            let mut client = TcpStream::connect(&handle, to).unwrap();
            client.set_read_timeout(LIMIT).unwrap();
            client.write_all(&(i as u64).to_be_bytes()).unwrap();
            let mut answer = [0; 8];
            client.read_exact(&mut answer).unwrap();
            assert_eq!(u64::from_be_bytes(answer), i as u64);
            if i % 2 != 0 {
                assert_eq!(client.read(&mut answer).unwrap(), 0);
            }
        }
    });
    assert_eq!(world.view.stats().held, 0);
    drop(listener);
    world.end(lanes);
}

#[test]
fn ports_and_addresses_are_ones_own_and_free() {
    let (world, lanes, handle) = start();
    let listener = listen(&handle);
    let to = listener.local_addr().unwrap();
    // A connection from a chosen port: the same one again is refused.
    let from = |port| TcpBuilder::new(&handle).local_addr((own(0), port).into());
    let client = from(5000).connect(to).unwrap();
    assert_eq!(client.local_addr().unwrap(), (own(0), 5000).into());
    assert_eq!(from(5000).connect(to).unwrap_err().raw_os_error(), Some(Errno::ADDRNOTAVAIL.raw_os_error()));
    let foreign = TcpBuilder::new(&handle).local_addr((host(0), 0).into());
    assert_eq!(kind(foreign.connect(to)), ErrorKind::AddrNotAvailable);
    assert_eq!(kind(TcpListener::bind(&handle, (host(0), 7))), ErrorKind::AddrNotAvailable);
    assert_eq!(kind(TcpListener::bind(&handle, to)), ErrorKind::AddrInUse);
    assert_eq!(kind(TcpListener::bind(&handle, ("0.0.0.0", to.port()))), ErrorKind::AddrInUse);
    // Closed, it is free at once, whatever becomes of its connections.
    drop(listener);
    is_reset(&client);
    let again = TcpListener::bind(&handle, to).unwrap();
    let second = from(5000).connect(to).unwrap();
    let (server, _) = again.accept().unwrap();
    (&second).write_all(b"anew").unwrap();
    let mut buffer = [0; 4];
    (&server).read_exact(&mut buffer).unwrap();
    assert_eq!(&buffer, b"anew");
    // Two sockets may share a port if both say so.
    let share = |share| TcpBuilder::new(&handle).reuse_port(share).listen((own(0), 77));
    let (_one, _two) = (share(true).unwrap(), share(true).unwrap());
    assert_eq!(kind(share(false)), ErrorKind::AddrInUse);
    drop((client, second, server, again, _one, _two));
    world.end(lanes);
}

/// A listener that is closed takes its waiting connections along, and wakes none in vain.
#[test]
fn a_closed_listener_resets_what_waited() {
    let (world, lanes, handle) = start();
    let listener = listen(&handle);
    let to = listener.local_addr().unwrap();
    let clients: Vec<_> = (0..20).map(|_| TcpStream::connect(&handle, to).unwrap()).collect();
    until("they wait", || listener.readiness().readable);
    drop(listener);
    clients.iter().for_each(is_reset);
    assert_eq!(kind(TcpStream::connect(&handle, to)), ErrorKind::ConnectionRefused);
    drop(clients);
    world.end(lanes);
}

/// Each member of a group gets its share of connections; what waited for one that is closed is
/// lost, as in Linux.
#[test]
fn listeners_of_a_group_share_what_comes() {
    const CLIENTS: usize = 200;
    let (world, lanes, handle) = start();
    let member = |_| TcpBuilder::new(&handle).reuse_port(true).listen((own(0), 80)).unwrap();
    let mut group: Vec<_> = (0..4).map(member).collect();
    group.iter().for_each(|listener| listener.set_nonblocking(true).unwrap());
    let clients: Vec<_> = (0..CLIENTS).map(|_| TcpStream::connect(&handle, (own(0), 80)).unwrap()).collect();
    let accept = |listener: &TcpListener| std::iter::from_fn(|| listener.accept().ok()).collect::<Vec<_>>();
    let closed = group.pop().unwrap();
    let mut shares = Vec::new();
    until("all but the last one's have come", || {
        shares.extend(group.iter().flat_map(accept));
        shares.len() + 90 > CLIENTS && group.iter().all(|listener| !listener.readiness().readable)
    });
    drop(closed);
    until("the others are reset", || {
        clients.iter().filter(|client| client.readiness().hung_up).count() + shares.len() == CLIENTS
    });
    assert!((90..CLIENTS - 10).contains(&shares.len()), "{} of {CLIENTS}", shares.len());
    // All that comes from now on is for those that are left.
    let later: Vec<_> = (0..50).map(|_| TcpStream::connect(&handle, (own(0), 80)).unwrap()).collect();
    let mut more = Vec::new();
    until("all have come", || {
        more.extend(group.iter().flat_map(accept));
        more.len() == later.len()
    });
    drop((group, clients, shares, later, more));
    world.end(lanes);
}

/// The stack stops: every thread that waits learns of it, and memory goes home.
#[test]
fn the_end_of_the_stack_ends_all_waiting() {
    let (mut world, lanes, handle) = start();
    let listener = listen(&handle);
    let [client, server] = pair(&handle, &listener);
    let mut lent = TcpReader::new(pair(&handle, &listener)[1].clone());
    assert_eq!(lent.fill().unwrap(), 0, "its other end is gone");
    let [one, other] = pair(&handle, &listener);
    (&one).write_all(b"borrowed beyond the end").unwrap();
    let mut lent = TcpReader::new(other);
    lent.fill().unwrap();
    server.set_read_timeout(None).unwrap();
    client.set_write_timeout(None).unwrap();
    std::thread::scope(|scope| {
        let reads = scope.spawn(|| kind(client.recv(&mut [0; 9])));
        let accepts = scope.spawn(|| kind(listener.accept()));
        let connects = scope.spawn(|| kind(TcpStream::connect(&handle, (host(0), 9))));
        let writes = scope.spawn(|| {
            loop {
                if let Err(error) = client.send(&[7; 10_000]) {
                    break error.kind();
                }
            }
        });
        until("it is full", || !client.readiness().writable);
        world.stop();
        for thread in [reads, accepts, connects, writes] {
            assert_eq!(thread.join().unwrap(), ErrorKind::NetworkDown);
        }
    });
    assert_eq!(kind(server.send(b"x")), ErrorKind::NetworkDown);
    assert_eq!(kind(TcpListener::bind(&handle, (own(0), 0))), ErrorKind::NetworkDown);
    assert_eq!(lent.get(8).unwrap(), &b"borrowed"[..]);
    assert_eq!(kind(lent.fill()), ErrorKind::NetworkDown);
    drop((client, server, listener, one, lent));
    world.end(lanes);
}
