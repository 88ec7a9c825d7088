//! TCP sockets as tasks have them: halves, many connections at once, cancelled calls, the end of
//! the stack, and HTTP by `hyper`.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper::body::{Body, Incoming};
use hyper::rt::ReadBufCursor;
use hyper::{Request, Response};
use softnet::net::Handle;
use softnet::net::tokio::{TcpListener, TcpStream};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf, copy_bidirectional};

use super::frames::own;
use super::tcp::{addresses, byte, start};

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// Serves every connection until the stack stops.
async fn serve<F: Future<Output = ()> + 'static>(listener: TcpListener, each: impl Fn(TcpStream) -> F) {
    let error = loop {
        match listener.accept().await {
            Ok((stream, from)) => {
                assert_eq!(stream.get_ref().peer_addr().unwrap(), from);
                tokio::task::spawn_local(each(stream));
            }
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::NetworkDown);
}

async fn echo(mut stream: TcpStream) {
    let (mut from, mut to) = stream.split();
    tokio::io::copy(&mut from, &mut to).await.unwrap();
    to.shutdown().await.unwrap();
}

/// Sends `len` bytes, and hears them back.
async fn ask(handle: &Handle, to: SocketAddr, len: usize) {
    let stream = TcpStream::connect(handle, to).await.unwrap();
    let (mut from, mut to) = stream.into_split();
    let data: Vec<u8> = (0..len).map(byte).collect();
    let sent = data.clone();
    let sender = tokio::task::spawn_local(async move {
        to.write_all(&sent).await.unwrap();
        // Dropped, it ends the sending direction.
    });
    let mut got = Vec::new();
    from.read_to_end(&mut got).await.unwrap();
    assert!(got == data, "{} bytes of {len}", got.len());
    sender.await.unwrap();
}

#[test]
fn tasks_serve_each_other_until_the_stack_ends() {
    let (mut world, lanes, handle) = start();
    let local = tokio::task::LocalSet::new();
    local.block_on(&runtime(), async {
        let mut servers = Vec::new();
        for addr in addresses() {
            let listener = TcpListener::bind(&handle, (addr, 0)).unwrap();
            let to = listener.get_ref().local_addr().unwrap();
            servers.push(tokio::task::spawn_local(serve(listener, echo)));
            let mut clients = Vec::new();
            for i in 0..50 {
                let handle = handle.clone();
                clients.push(tokio::task::spawn_local(async move { ask(&handle, to, i * i * 71).await }));
            }
            for client in clients {
                client.await.unwrap();
            }
        }
        let refused = TcpStream::connect(&handle, (own(0), 9)).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
        world.stop();
        for server in servers {
            server.await.unwrap();
        }
    });
    world.end(lanes);
}

/// A proxy passes both directions on, each to its end; a call that is cancelled loses nothing.
#[test]
fn a_proxy_passes_both_directions_on() {
    let (mut world, lanes, handle) = start();
    let local = tokio::task::LocalSet::new();
    local.block_on(&runtime(), async {
        let server = TcpListener::bind(&handle, (own(0), 0)).unwrap();
        let to = server.get_ref().local_addr().unwrap();
        let proxy = TcpListener::bind(&handle, (own(0), 0)).unwrap();
        let by = proxy.get_ref().local_addr().unwrap();
        let through = handle.clone();
        let proxied = move |mut client: TcpStream| {
            let handle = through.clone();
            async move {
                let mut server = TcpStream::connect(&handle, to).await.unwrap();
                copy_bidirectional(&mut client, &mut server).await.unwrap();
            }
        };
        let tasks =
            [tokio::task::spawn_local(serve(server, echo)), tokio::task::spawn_local(serve(proxy, proxied))];
        ask(&handle, by, 2_000_000).await;
        let mut stream = TcpStream::connect(&handle, by).await.unwrap();
        let mut buffer = [0; 4];
        let never = tokio::time::timeout(Duration::from_millis(20), stream.read(&mut buffer)).await;
        assert!(never.is_err(), "nothing was sent");
        stream.write_all(b"ping").await.unwrap();
        stream.read_exact(&mut buffer).await.unwrap();
        assert_eq!(&buffer, b"ping");
        drop(stream);
        world.stop();
        for task in tasks {
            task.await.unwrap();
        }
    });
    world.end(lanes);
}

/// `hyper`'s traits on top of `tokio`'s.
struct ForHyper(TcpStream);

impl hyper::rt::Read for ForHyper {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        mut to: ReadBufCursor<'_>,
    ) -> Poll<std::io::Result<()>> {
        let mut space = [0; 4096];
        let mut buffer = ReadBuf::new(&mut space[..to.remaining().min(4096)]);
        ready!(Pin::new(&mut self.0).poll_read(cx, &mut buffer))?;
        to.put_slice(buffer.filled());
        Poll::Ready(Ok(()))
    }
}

impl hyper::rt::Write for ForHyper {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, data)
    }
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

async fn body(mut incoming: Incoming) -> Vec<u8> {
    let mut all = Vec::new();
    while let Some(frame) = std::future::poll_fn(|cx| Pin::new(&mut incoming).poll_frame(cx)).await {
        all.extend_from_slice(frame.unwrap().data_ref().unwrap());
    }
    all
}

/// Requests on connections that are kept, with bodies of all sizes.
#[test]
fn hyper_speaks_http_over_it() {
    let (mut world, lanes, handle) = start();
    let local = tokio::task::LocalSet::new();
    local.block_on(&runtime(), async {
        let listener = TcpListener::bind(&handle, (own(0), 80)).unwrap();
        let server = tokio::task::spawn_local(serve(listener, |stream| async {
            let answer = hyper::service::service_fn(|request: Request<Incoming>| async {
                let path = request.uri().path().to_owned();
                let body = String::from_utf8(body(request.into_body()).await).unwrap();
                Ok::<_, std::convert::Infallible>(Response::new(format!("{path} {body}")))
            });
            let http = hyper::server::conn::http1::Builder::new();
            http.serve_connection(ForHyper(stream), answer).await.unwrap();
        }));
        for _ in 0..3 {
            let stream = TcpStream::connect(&handle, (own(0), 80)).await.unwrap();
            let (mut client, connection) =
                hyper::client::conn::http1::handshake(ForHyper(stream)).await.unwrap();
            let connection = tokio::task::spawn_local(connection);
            for i in 0..20 {
                let sent = "x".repeat(i * i * 531);
                let request = Request::post(format!("/{i}")).header("host", "softnet").body(sent.clone());
                let response = client.send_request(request.unwrap()).await.unwrap();
                assert_eq!(response.status(), 200);
                assert!(body(response.into_body()).await == format!("/{i} {sent}").into_bytes(), "{i}");
            }
            drop(client);
            connection.await.unwrap().unwrap();
        }
        world.stop();
        server.await.unwrap();
    });
    world.end(lanes);
}
