//! TCP sockets and listeners in an [`Epoll`], and as event sources of `mio`: what is told, and how often.

use std::io::{ErrorKind, Write};
use std::net::Shutdown;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use softnet::net::{Epoll, EpollParams, Event, Interest, TcpListener, TcpStream};

use super::epoll::{AT_ONCE, PREFER};
use super::frames::own;
use super::tcp::{listen, pair, start};
use super::world::until;

/// What an event says, in the kernel's words.
fn told(event: &Event) -> (u64, String) {
    let bits = [
        (event.is_readable(), "in"),
        (event.is_writable(), "out"),
        (event.is_peer_closed(), "rdhup"),
        (event.is_hung_up(), "hup"),
        (event.is_error(), "err"),
    ];
    let names: Vec<_> = bits.iter().filter(|(on, _)| *on).map(|(_, name)| *name).collect();
    (event.token, names.join(" "))
}

/// What is ready now.
fn now(epoll: &mut Epoll) -> Vec<(u64, String)> {
    let mut events = Vec::new();
    epoll.wait(&mut events, 16, AT_ONCE).unwrap();
    events.iter().map(told).collect()
}

fn is(token: u64, what: &str) -> Vec<(u64, String)> {
    vec![(token, what.to_string())]
}

#[test]
fn level_edge_and_one_shot_tell_streams_as_epoll_does() {
    let (world, lanes, handle) = start();
    let listener = listen(&handle);
    let all = Interest::IN | Interest::OUT | Interest::RDHUP;
    let modes = [(all, 3), (all | Interest::EDGE, 1), (all | Interest::ONE_SHOT, 1)];
    for (interest, times) in modes {
        let [client, server] = pair(&handle, &listener);
        server.set_nonblocking(true).unwrap();
        let mut epoll = Epoll::new(&handle).unwrap();
        epoll.ctl().add(&server, interest, 1).unwrap();
        // What is ready when it is added is told.
        let seen = |epoll: &mut Epoll, what: &str| (0..3).filter(|_| now(epoll) == is(1, what)).count();
        assert_eq!(seen(&mut epoll, "out"), times);
        let again = |epoll: &Epoll| epoll.ctl().modify(&server, interest, 1).unwrap();
        let edge = interest == all | Interest::EDGE;
        for n in 1..3 {
            (&client).write_all(b"data").unwrap();
            until("it is there", || server.peek(&mut [0; 99]).is_ok_and(|peeked| peeked == 4 * n));
            if !edge {
                again(&epoll);
            }
            assert_eq!(seen(&mut epoll, "in out"), times, "each arrival is told of, though nothing was read");
        }
        assert_eq!(server.recv(&mut [0; 99]).unwrap(), 8);
        if edge {
            assert_eq!(now(&mut epoll), [], "reading is no news");
        }
        client.shutdown(Shutdown::Write).unwrap();
        until("the end is there", || server.readiness().peer_closed);
        if !edge {
            again(&epoll);
        }
        assert_eq!(seen(&mut epoll, "in out rdhup"), times);
        server.shutdown(Shutdown::Write).unwrap();
        if !edge {
            again(&epoll);
        }
        until("it is over", || server.readiness().hung_up);
        assert!(seen(&mut epoll, "in out rdhup hup") >= times.min(1));
        drop((epoll, client, server));
    }
    // What is not asked for is not told, but the end and errors are.
    let [client, server] = pair(&handle, &listener);
    let mut epoll = Epoll::new(&handle).unwrap();
    epoll.ctl().add(&server, Interest::RDHUP, 7).unwrap();
    (&client).write_all(b"data").unwrap();
    until("it is there", || server.readiness().readable);
    assert_eq!(now(&mut epoll), []);
    client.set_linger(Some(Duration::ZERO)).unwrap();
    drop(client);
    until("it is reset", || server.readiness().hung_up);
    assert_eq!(now(&mut epoll), is(7, "in rdhup hup err"));
    drop((epoll, server, listener));
    world.end(lanes);
}

#[test]
fn connecting_and_room_are_edges_to_write() {
    let (world, lanes, handle) = start();
    let listener = listen(&handle);
    let to = listener.local_addr().unwrap();
    let mut epoll = Epoll::new(&handle).unwrap();
    let begin = |port| {
        let builder = softnet::net::TcpBuilder::new(&handle);
        let stream = builder.begin_connect(&(own(0), port).into()).unwrap();
        stream.set_nonblocking(true).unwrap();
        stream
    };
    let (client, refused) = (begin(to.port()), begin(9));
    let interest = Interest::IN | Interest::OUT | Interest::EDGE;
    epoll.ctl().add(&client, interest, 1).unwrap();
    epoll.ctl().add(&refused, interest, 2).unwrap();
    let mut seen = Vec::new();
    until("both are told of", || {
        seen.extend(now(&mut epoll));
        seen.len() >= 2
    });
    seen.sort();
    assert_eq!(seen, [(1, "out".to_string()), (2, "in out hup err".to_string())]);
    let (server, _) = listener.accept().unwrap();
    let mut sent = 0;
    while let Ok(n) = client.send(&[1; 10_000]) {
        sent += n;
    }
    assert_eq!(now(&mut epoll), []);
    let mut got = 0;
    while got < sent {
        got += server.recv(&mut [0; 10_000]).unwrap();
    }
    until("there is room", || client.readiness().writable);
    assert_eq!(now(&mut epoll), is(1, "out"));
    assert_eq!(now(&mut epoll), []);
    drop((epoll, client, refused, server, listener));
    world.end(lanes);
}

#[test]
fn listeners_are_readable_while_connections_wait() {
    let (world, lanes, handle) = start();
    let listener = listen(&handle);
    let to = listener.local_addr().unwrap();
    listener.set_nonblocking(true).unwrap();
    let mut epoll = Epoll::new(&handle).unwrap();
    epoll.ctl().add(&listener, Interest::IN | Interest::OUT, 3).unwrap();
    assert_eq!(now(&mut epoll), []);
    let clients: Vec<_> = (0..2).map(|_| TcpStream::connect(&handle, to).unwrap()).collect();
    until("both wait", || now(&mut epoll) == is(3, "in"));
    let first = listener.accept().unwrap();
    until("the other waits", || now(&mut epoll) == is(3, "in"));
    let second = listener.accept().unwrap();
    assert_eq!((now(&mut epoll), listener.accept().unwrap_err().kind()), (vec![], ErrorKind::WouldBlock));
    drop((epoll, clients, first, second, listener));
    world.end(lanes);
}

/// Of two sets that watch a listener exclusively, each connection is found by one at least, and taken once.
#[test]
fn sets_that_watch_a_listener_exclusively_serve_all() {
    const CLIENTS: usize = 300;
    let (world, lanes, handle) = start();
    let listener = listen(&handle);
    let to = listener.local_addr().unwrap();
    listener.set_nonblocking(true).unwrap();
    let (taken, over) = (AtomicUsize::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut epoll = Epoll::new(&handle).unwrap();
                epoll.ctl().add(&listener, Interest::IN | Interest::EXCLUSIVE, 1).unwrap();
                let mut events = Vec::new();
                while !over.load(Ordering::Relaxed) {
                    epoll.wait(&mut events, 16, Some(Duration::from_millis(20))).unwrap();
                    if events.is_empty() {
                        continue;
                    }
                    match listener.accept() {
                        Ok(_) => _ = taken.fetch_add(1, Ordering::Relaxed),
                        Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}"),
                    }
                }
            });
        }
        let clients: Vec<_> = (0..CLIENTS).map(|_| TcpStream::connect(&handle, to).unwrap()).collect();
        let unserved = || clients.iter().filter(|client| !client.readiness().peer_closed).count();
        let give_up = std::time::Instant::now() + Duration::from_secs(20);
        while unserved() > 0 && std::time::Instant::now() < give_up {
            std::thread::yield_now();
        }
        over.store(true, Ordering::Relaxed);
        let unserved = unserved();
        let taken = taken.load(Ordering::Relaxed);
        let left = (listener.readiness().readable, listener.accept().is_ok());
        let (drops, stats) = (world.view.drops(), world.view.stats());
        assert_eq!((taken, unserved, left), (CLIENTS, 0, (false, false)), "{drops:?} {stats:?}");
    });
    drop(listener);
    world.end(lanes);
}

/// Accepts and echoes what comes, by one set that polls as `params` say.
fn echo(listener: &TcpListener, mut epoll: Epoll, params: EpollParams) {
    epoll.set_params(params).unwrap();
    listener.set_nonblocking(true).unwrap();
    epoll.ctl().add(listener, Interest::IN, u64::MAX).unwrap();
    let (mut streams, mut events, mut buffer) = (Vec::<Option<TcpStream>>::new(), Vec::new(), [0; 4096]);
    loop {
        if let Err(error) = epoll.wait(&mut events, 16, None) {
            return assert_eq!(error.kind(), ErrorKind::NetworkDown);
        }
        for event in &events {
            if event.token == u64::MAX {
                loop {
                    match listener.accept() {
                        Ok((stream, _)) => {
                            epoll.ctl().add(&stream, Interest::IN, streams.len() as u64).unwrap();
                            streams.push(Some(stream));
                        }
                        Err(error) if error.kind() == ErrorKind::NetworkDown => return,
                        Err(_) => break,
                    }
                }
                continue;
            }
            let place = &mut streams[event.token as usize];
            let Some(stream) = place else { continue };
            match stream.recv(&mut buffer) {
                Ok(0) => *place = None,
                Ok(n) => (&*stream).write_all(&buffer[..n]).unwrap(),
                // What was ready when the stack stopped is so for ever.
                Err(error) if error.kind() == ErrorKind::NetworkDown => return,
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}"),
            }
        }
    }
}

#[test]
fn a_set_that_polls_and_suspends_serves_streams() {
    for params in
        [EpollParams::default(), EpollParams { busy_poll_usecs: 50, ..EpollParams::default() }, PREFER]
    {
        let (mut world, lanes, handle) = start();
        let listener = listen(&handle);
        let to = listener.local_addr().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| echo(&listener, Epoll::new(&handle).unwrap(), params));
            let clients: Vec<_> = (0..4)
                .map(|_| {
                    scope.spawn(|| {
                        let client = TcpStream::connect(&handle, to).unwrap();
                        for i in 0..500usize {
                            let data = vec![i as u8; 1 + i % 700];
                            (&client).write_all(&data).unwrap();
                            let mut got = vec![0; data.len()];
                            std::io::Read::read_exact(&mut &client, &mut got).unwrap();
                            assert_eq!(got, data);
                        }
                    })
                })
                .collect();
            clients.into_iter().for_each(|client| client.join().unwrap());
            world.stop();
        });
        drop(listener);
        world.end(lanes);
    }
}

/// The same server as a program on `mio` writes it, by sources.
#[cfg(feature = "mio")]
#[test]
fn mio_sources_serve_streams() {
    use mio::{Events, Interest, Poll, Token};
    use softnet::net::ReadyFd;

    let (mut world, lanes, handle) = start();
    let listener = listen(&handle);
    let to = listener.local_addr().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut poll, mut events) = (Poll::new().unwrap(), Events::with_capacity(8));
            let mut source = ReadyFd::new(listener.try_clone().unwrap()).unwrap();
            poll.registry().register(&mut source, Token(usize::MAX), Interest::READABLE).unwrap();
            let mut streams: Vec<ReadyFd<TcpStream>> = Vec::new();
            loop {
                poll.poll(&mut events, None).unwrap();
                for event in &events {
                    let Token(at) = event.token();
                    if at == usize::MAX {
                        loop {
                            match source.socket().accept() {
                                Ok((stream, _)) => {
                                    let mut stream = ReadyFd::new(stream).unwrap();
                                    let token = Token(streams.len());
                                    poll.registry().register(&mut stream, token, Interest::READABLE).unwrap();
                                    streams.push(stream);
                                }
                                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                                Err(error) => return assert_eq!(error.kind(), ErrorKind::NetworkDown),
                            }
                        }
                        continue;
                    }
                    let mut buffer = [0; 4096];
                    while let Ok(n @ 1..) = streams[at].socket().recv(&mut buffer) {
                        streams[at].socket().send(&buffer[..n]).unwrap();
                    }
                }
            }
        });
        for len in [1usize, 100, 4000] {
            let client = TcpStream::connect(&handle, to).unwrap();
            for i in 0..200 {
                let data = vec![i as u8; len];
                (&client).write_all(&data).unwrap();
                let mut got = vec![0; len];
                std::io::Read::read_exact(&mut &client, &mut got).unwrap();
                assert_eq!(got, data);
            }
        }
        world.stop();
    });
    drop(listener);
    world.end(lanes);
}
