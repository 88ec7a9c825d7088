#![doc = include_str!("../README.md")]
//!
//! # Invariants
//! What a call of `quinn` sends is all taken or none of it: a part for which there is no room is kept
//! until there is (`rest`). The socket sends no fragments, and lets QUIC find out by itself what a
//! path takes (softnet's `MtuDiscover::Probe`).

mod rest;

use std::fmt;
use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use quinn::udp::{EcnCodepoint, RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, Endpoint, EndpointConfig, ServerConfig, TokioRuntime, UdpPoller};
use softnet::net::tokio::UdpSocket as Async;
use softnet::net::{MsgHdr, MtuDiscover, PktInfo, RecvBatch, UdpSocket};

use rest::Rest;

/// An endpoint that sends and receives by `socket`, in the `tokio` runtime of the calling task. It accepts connections if there is a
/// `server`. The socket is non-blocking from now on.
///
/// # Errors
/// Those of `quinn`, and without a descriptor to wait by (`EMFILE`).
///
/// # Panics
/// Outside a runtime, or in one without I/O.
pub fn endpoint(
    config: EndpointConfig,
    server: Option<ServerConfig>,
    socket: UdpSocket,
) -> io::Result<Endpoint> {
    Endpoint::new_with_abstract_socket(config, server, Arc::new(Socket::new(socket)?), Arc::new(TokioRuntime))
}

/// A UDP socket of softnet's, as `quinn` wants one.
pub struct Socket {
    socket: Arc<Async>,
    /// Where datagrams lie until they are copied to `quinn`. One task receives.
    received: Mutex<RecvBatch>,
    /// What there was no room for yet.
    rest: Arc<Mutex<Option<Rest>>>,
}

impl Socket {
    /// Of a socket, which is non-blocking from now on and sends no fragments.
    ///
    /// # Errors
    /// Without a descriptor to wait by (`EMFILE`).
    ///
    /// # Panics
    /// Outside a runtime, or in one without I/O.
    pub fn new(socket: UdpSocket) -> io::Result<Self> {
        socket.set_mtu_discover(MtuDiscover::Probe)?;
        let socket = Arc::new(Async::new(socket)?);
        Ok(Socket { socket, received: Mutex::new(RecvBatch::new()), rest: Arc::default() })
    }

    /// Keeps datagrams, and has a task send them as soon as there is room.
    fn keep(&self, rest: Rest) {
        let (socket, kept) = (self.socket.clone(), self.rest.clone());
        *kept.lock().unwrap_or_else(PoisonError::into_inner) = Some(rest);
        tokio::spawn(async move { while socket.writable().await.is_ok() && !flush(&socket, &kept) {} });
    }
}

impl fmt::Debug for Socket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.socket.fmt(f)
    }
}

/// Sends what is kept. Returns whether nothing is left.
fn flush(socket: &Async, kept: &Mutex<Option<Rest>>) -> bool {
    let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
    let send = |bytes: &[u8], segment, header| socket.get_ref().send_segments(bytes, segment, header);
    let done = kept.as_mut().is_none_or(|rest| rest.send(send));
    if done {
        *kept = None;
    }
    done
}

/// The lower two bits of the type of service (RFC 3168 section 5).
const ECN: u8 = 0b11;

/// The headers of what `quinn` sends.
fn header(transmit: &Transmit<'_>) -> MsgHdr {
    // By the link where it goes, should it be a link-local one.
    let info = transmit.src_ip.map(|addr| PktInfo { addr, if_index: 0 });
    let header = MsgHdr::new(Some(transmit.destination), info);
    match transmit.ecn {
        Some(ecn) => header.with_tos(ecn as u8 & ECN),
        None => header,
    }
}

impl AsyncUdpSocket for Socket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Box::pin(Writable { socket: self.socket.clone(), waits: None })
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        if !flush(&self.socket, &self.rest) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let (socket, header) = (self.socket.get_ref(), header(transmit));
        let sent = match transmit.segment_size {
            Some(segment) => socket.send_segments(transmit.contents, segment, header),
            None => socket.send_msg(transmit.contents, header),
        };
        match (sent, transmit.segment_size) {
            (Ok(sent), Some(segment)) if sent < transmit.contents.len() => {
                self.keep(Rest::new(&transmit.contents[sent..], segment, header));
                Ok(())
            }
            (Err(error), _) if error.kind() == io::ErrorKind::WouldBlock => Err(error),
            // A stack that has stopped.
            (Err(error), _) if error.kind() == io::ErrorKind::NetworkDown => Err(error),
            // Lost, as it would be further on: a probe that is too long, a route that is gone for now,
            // an address that was taken away. An error would end the connection's task, and with it
            // its timers, for good.
            _ => Ok(()),
        }
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let mut received = self.received.lock().unwrap_or_else(PoisonError::into_inner);
        let received = &mut *received;
        let most = bufs.len().min(meta.len());
        std::task::ready!(self.socket.poll_recv_batch(cx, received, most))?;
        let mut n = 0;
        for ((datagram, buf), meta) in received.iter().zip(bufs).zip(meta) {
            let len = datagram.copy_to(buf);
            *meta = RecvMeta::default();
            (meta.addr, meta.len, meta.stride) = (datagram.from, len, len);
            meta.ecn = EcnCodepoint::from_bits(datagram.tos() & ECN);
            meta.dst_ip = Some(datagram.info().addr);
            n += 1;
        }
        received.clear();
        Poll::Ready(Ok(n))
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.get_ref().local_addr()
    }

    fn max_transmit_segments(&self) -> usize {
        UdpSocket::MAX_SEGMENTS
    }

    fn may_fragment(&self) -> bool {
        false
    }
}

type Waits = Pin<Box<dyn Future<Output = io::Result<()>> + Send + Sync>>;

/// Waits for room to send, for one task.
struct Writable {
    socket: Arc<Async>,
    waits: Option<Waits>,
}

impl UdpPoller for Writable {
    fn poll_writable(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Writable { socket, waits } = &mut *self;
        let wait = waits.get_or_insert_with(|| {
            let socket = socket.clone();
            Box::pin(async move { socket.writable().await })
        });
        let done = wait.as_mut().poll(cx);
        if done.is_ready() {
            *waits = None;
        }
        done
    }
}

impl fmt::Debug for Writable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.socket.fmt(f)
    }
}
