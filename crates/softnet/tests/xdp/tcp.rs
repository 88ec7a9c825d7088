//! softnet's TCP sockets, and the kernel's at the other end of the wire.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener as KernelListener, TcpStream as KernelStream};
use std::time::Duration;

use softnet::net::{TcpListener, TcpStream};

use super::world::{World, host, softnet};

const LIMIT: Option<Duration> = Some(Duration::from_secs(10));

/// Byte `at` of a stream.
fn byte(at: usize) -> u8 {
    (at * 31 % 251) as u8
}

/// Writes `len` bytes of the stream, in pieces of a length that is no multiple of anything.
fn write(mut to: impl Write, len: usize) {
    let data: Vec<u8> = (0..len).map(byte).collect();
    data.chunks(7001).for_each(|piece| to.write_all(piece).unwrap());
}

/// Reads `len` bytes, and checks that they are the stream's.
fn read(mut from: impl Read, len: usize) {
    let mut buffer = vec![0; 65_536];
    let mut at = 0;
    while at < len {
        let n = from.read(&mut buffer).unwrap_or_else(|error| panic!("after {at} of {len} bytes: {error}"));
        assert!(n > 0, "the stream ended after {at} of {len} bytes");
        for (i, got) in buffer[..n].iter().enumerate() {
            assert_eq!(*got, byte(at + i), "byte {}", at + i);
        }
        at += n;
    }
    assert_eq!(at, len);
}

/// Reads to the end: there is nothing more.
fn end(mut from: impl Read) {
    assert_eq!(from.read(&mut [0; 16]).unwrap(), 0);
}

#[test]
fn kernel_clients_are_served() {
    let Some(mut world) = World::new(2) else { return };
    world.start();
    let handle = world.handle();
    let listener = TcpListener::bind(&handle, "0.0.0.0:7").unwrap();
    assert_eq!(listener.local_addr().unwrap(), "0.0.0.0:7".parse::<SocketAddr>().unwrap());
    for len in [0, 1, 1448, 1449, 100_000, 5_000_000] {
        for i in [0, 1] {
            std::thread::scope(|scope| {
                let client = scope.spawn(|| {
                    let mut client =
                        world.hosts[i].run(|| KernelStream::connect((softnet(i), 7))).unwrap().unwrap();
                    client.set_read_timeout(LIMIT).unwrap();
                    let ends = (client.local_addr().unwrap(), client.peer_addr().unwrap());
                    std::thread::scope(|scope| {
                        let other = client.try_clone().unwrap();
                        scope.spawn(move || {
                            write(&other, len);
                            other.shutdown(Shutdown::Write).unwrap();
                        });
                        read(&mut client, len);
                        end(&mut client);
                    });
                    ends
                });
                let (server, from) = listener.accept().unwrap();
                server.set_read_timeout(LIMIT).unwrap();
                std::thread::scope(|scope| {
                    let other = server.try_clone().unwrap();
                    scope.spawn(move || {
                        write(&other, len);
                        other.shutdown(Shutdown::Write).unwrap();
                    });
                    read(&server, len);
                    end(&server);
                });
                assert_eq!((from, server.local_addr().unwrap()), client.join().unwrap());
            });
        }
    }
    drop(listener);
    let refused = world.hosts[0].run(|| KernelStream::connect((softnet(0), 7))).unwrap();
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::ConnectionRefused);
    world.end();
}

#[test]
fn kernel_servers_are_asked() {
    let Some(mut world) = World::new(1) else { return };
    world.start();
    let handle = world.handle();
    let peer = SocketAddr::from((host(0), 8080));
    let refused = TcpStream::connect(&handle, peer).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused, "{refused}");
    let listener = world.hosts[0].run(|| KernelListener::bind(peer)).unwrap().unwrap();
    for len in [1, 100_000, 5_000_000] {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let (server, _) = listener.accept().unwrap();
                server.set_read_timeout(LIMIT).unwrap();
                read(&server, len);
                write(&server, len);
            });
            let client = TcpStream::connect(&handle, peer).unwrap();
            client.set_read_timeout(LIMIT).unwrap();
            assert_eq!(client.peer_addr().unwrap(), peer);
            assert_eq!(client.local_addr().unwrap().ip(), softnet(0));
            write(&client, len);
            read(&client, len);
            end(&client);
            let info = client.info().unwrap();
            assert!(info.send.bytes_acked >= len as u64, "{info:?}");
        });
    }
    world.end();
}
