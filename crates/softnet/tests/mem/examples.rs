//! The servers of `examples/` echo. (Of its router see `builder`, of the program of the README `tests/docs.rs`.)

use std::net::SocketAddrV4;

use softnet::Handle;

use super::frames::{host, own};
use super::udp::{datagram, sent, start};
use super::world::until;

#[allow(dead_code, unreachable_pub)]
#[path = "../../examples/epoll_echo.rs"]
mod epoll_echo;
#[cfg(feature = "tokio")]
#[allow(dead_code, unreachable_pub)]
#[path = "../../examples/tokio_echo.rs"]
mod tokio_echo;

/// Runs `server`, which is to echo what comes to `ports`, until the stack's end ends it.
fn echoes(ports: &[u16], server: impl FnOnce(Handle) -> std::io::Result<()> + Send + 'static) {
    let (mut world, mut lanes, handle) = start(&[1], true);
    let thread = std::thread::spawn(move || server(handle));
    let bound = |port: &u16| world.view.sockets().iter().any(|row| row.local == format!("0.0.0.0:{port}"));
    until("the server has its sockets", || ports.iter().all(bound));
    let (mut asked, mut answered) = (0u16, 0);
    until("all are answered", || {
        if asked < 1000 && asked - answered < 32 {
            let port = ports[usize::from(asked) % ports.len()];
            lanes[0].send(&[datagram(0, own(0), (2000 + asked, port), &asked.to_be_bytes())]);
            asked += 1;
        }
        lanes[0].receive(|frame| {
            let (from, to, payload) = sent(frame).unwrap();
            let n = u16::from_be_bytes(payload.try_into().unwrap());
            assert_eq!(from, SocketAddrV4::new(own(0), ports[usize::from(n) % ports.len()]));
            assert_eq!(to, SocketAddrV4::new(host(0), 2000 + n));
            answered += 1;
        });
        answered == 1000
    });
    world.stop();
    assert!(thread.join().unwrap().is_err(), "the end of the stack ends it");
    world.end(lanes);
}

#[test]
fn the_epoll_server_echoes() {
    echoes(&[7, 1007], |handle| epoll_echo::echo(&handle, &[7, 1007]));
}

#[cfg(feature = "tokio")]
#[test]
fn the_tokio_server_echoes() {
    echoes(&[7], |handle| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
        runtime.block_on(tokio_echo::echo(&handle))
    });
}
