//! The calls that scripts make, each as one attempt: what cannot be done yet is [`WAIT`], and
//! [`crate::world`] decides whether the caller waits.

use std::net::SocketAddr;

use libc::{MSG_EOR, MSG_ERRQUEUE, MSG_MORE, MSG_OOB, MSG_PEEK, MSG_TRUNC};
use softnet_tcp::State;
use softnet_tcp::conn::{Shutdown, Writable};
use softnet_tcp::listen::Listener;
use softnet_tcp::send::{CubicParams, Hystart};

use crate::sock::{Body, Sock, SockId, errno};
use crate::stack::{File, Stack};

/// The call would have to wait (`EAGAIN`).
pub(crate) const WAIT: i32 = libc::EAGAIN;

impl Stack {
    pub(crate) fn socket(&mut self, domain: i32, kind: i32) -> Result<SockId, i32> {
        if !matches!(domain, libc::AF_INET | libc::AF_INET6) {
            return Err(libc::EAFNOSUPPORT);
        }
        if kind & 0xf != libc::SOCK_STREAM {
            return Err(libc::EPROTONOSUPPORT);
        }
        Ok(self.add_sock(Sock::new(domain == libc::AF_INET6)))
    }

    pub(crate) fn bind(&mut self, id: SockId, mut name: SocketAddr) -> Result<(), i32> {
        if name.port() == 0 {
            name.set_port(self.ephemeral());
        }
        let sock = self.sock(id)?;
        if sock.local.is_some() {
            return Err(libc::EINVAL);
        }
        sock.local = Some(name);
        Ok(())
    }

    pub(crate) fn listen(&mut self, id: SockId, backlog: i32) -> Result<(), i32> {
        let port = self.ephemeral();
        let any = self.net.settings.local(false);
        self.tune(id)?;
        let cfg = &self.cfg;
        let sock = self.socks.get_mut(&id).ok_or(libc::EBADF)?;
        match &mut sock.body {
            Body::Listener(listener, _) => listener.set_backlog(cfg, backlog),
            Body::Live(_) => return Err(libc::EINVAL),
            Body::Fresh => {
                sock.local.get_or_insert(SocketAddr::new(any, port));
                let listener = Listener::new(cfg, backlog, sock.options);
                sock.body = Body::Listener(listener, Default::default());
            }
        }
        Ok(())
    }

    /// What a socket takes over from the settings when its connection begins.
    fn tune(&mut self, id: SockId) -> Result<(), i32> {
        let hystart = if self.net.settings.hystart_detect() == 0 { Hystart::Off } else { Hystart::Linux };
        self.sock(id)?.options.cubic = CubicParams { hystart, ..CubicParams::LINUX };
        Ok(())
    }

    pub(crate) fn accept_one(&mut self, id: SockId) -> Result<(SockId, SocketAddr), i32> {
        let Body::Listener(listener, queue) = &mut self.sock(id)?.body else { return Err(libc::EINVAL) };
        let child = queue.pop_front().ok_or(WAIT)?;
        listener.accepted();
        let remote = self.sock(child)?.remote.ok_or(libc::ECONNABORTED)?;
        Ok((child, remote))
    }

    pub(crate) fn connect(&mut self, id: SockId, remote: SocketAddr) -> Result<(), i32> {
        let sock = self.sock(id)?;
        match &mut sock.body {
            Body::Listener(..) => return Err(libc::EISCONN),
            Body::Fresh => {
                self.tune(id)?;
                self.open(id, remote)?;
            }
            Body::Live(_) => {}
        }
        let Some(live) = self.sock(id)?.live_mut() else { return Err(libc::EINVAL) };
        if live.connected {
            let again = std::mem::replace(&mut live.told, true);
            return if again { Err(libc::EISCONN) } else { Ok(()) };
        }
        if live.conn.state() == State::Closed {
            let error = live.conn.take_error().map_or(libc::ECONNABORTED, errno);
            self.forget(id);
            return Err(error);
        }
        Err(WAIT)
    }

    /// Whether a `connect` is under way.
    pub(crate) fn is_connecting(&self, id: SockId) -> bool {
        let live = self.socks.get(&id).and_then(Sock::live);
        live.is_some_and(|live| !live.connected && live.conn.state() != State::Closed)
    }

    /// Reads once. `None` for the buffer throws away.
    pub(crate) fn read(&mut self, id: SockId, buf: &mut [u8], flags: i32) -> Result<usize, i32> {
        if flags & MSG_ERRQUEUE != 0 {
            return Err(WAIT);
        }
        if flags & MSG_OOB != 0 {
            return Err(libc::EINVAL);
        }
        let Some(live) = self.sock(id)?.live_mut() else { return Err(libc::ENOTCONN) };
        if live.data.readable() > 0 && !buf.is_empty() {
            let (read, memory) = match flags & MSG_TRUNC {
                0 => live.data.read(buf, flags & MSG_PEEK != 0),
                _ => live.data.skip(buf.len()),
            };
            if flags & MSG_PEEK == 0 {
                self.enter(id, |conn, cx| conn.read(cx, read as u32, memory));
            }
            return Ok(read);
        }
        if buf.is_empty() || live.done {
            return Ok(0);
        }
        if let Some(error) = live.conn.take_error() {
            return Err(errno(error));
        }
        if live.conn.receive_ended() {
            return Ok(0);
        }
        Err(WAIT)
    }

    /// Queues what there is room for: a count, which is less than all if the caller has to wait.
    pub(crate) fn write(&mut self, id: SockId, bytes: &[u8], flags: i32) -> Result<usize, i32> {
        let Some(live) = self.sock(id)?.live_mut() else { return Err(libc::EPIPE) };
        match live.conn.writable() {
            Writable::NotYet => return Err(WAIT),
            Writable::Shut => {
                let error = live.conn.take_error();
                return Err(error.map_or(libc::EPIPE, errno));
            }
            Writable::Room(_) => {}
        }
        let mut written = 0;
        while written < bytes.len() {
            let cfg = &self.cfg;
            let sock = self.socks.get_mut(&id).ok_or(libc::EBADF)?;
            let Body::Live(live) = &mut sock.body else { return Err(libc::EPIPE) };
            let info = live.conn.info(cfg);
            let size = size_goal(info.send.snd_mss, live.conn.half_window());
            let below = live.conn.unsent() < live.conn.notsent_lowat(cfg);
            let room = live.data.skbs.room(size, if below { info.wmem.1 } else { 0 }) as usize;
            if room == 0 {
                sock.no_space = true;
                live.conn.waits_for_room(true);
                break;
            }
            let take = room.min(bytes.len() - written);
            let half_window = live.conn.half_window();
            live.data.queue(&bytes[written..written + take]);
            live.data.skbs.add(take as u32, size, written == 0, half_window);
            written += take;
            let last = written == bytes.len();
            if last {
                live.data.skbs.push(flags & MSG_MORE == 0, flags & MSG_EOR != 0, half_window);
            }
            self.enter(id, |conn, _| conn.write(take as u32, flags & MSG_MORE != 0 || !last));
        }
        if written < bytes.len() && written > 0 {
            // What was queued goes, though the caller has more (`do_error` of Linux).
            if let Some(live) = self.sock(id)?.live_mut() {
                live.data.skbs.push(flags & MSG_MORE == 0, false, live.conn.half_window());
            }
            self.enter(id, |conn, _| conn.write(0, flags & MSG_MORE != 0));
        }
        if written == 0 && !bytes.is_empty() { Err(WAIT) } else { Ok(written) }
    }

    /// Whether a socket has room for a writer or poller that waits (`sk_stream_is_writeable`).
    pub(crate) fn has_room(&self, id: SockId) -> bool {
        let Some(live) = self.socks.get(&id).and_then(Sock::live) else { return true };
        match live.conn.writable() {
            Writable::Shut => true,
            Writable::NotYet => false,
            Writable::Room(_) => {
                let (queued, sndbuf) = (live.data.skbs.memory(), live.conn.info(&self.cfg).wmem.1);
                let unsent = u64::from(live.conn.unsent()) * 2;
                let lowat = u64::from(live.conn.notsent_lowat(&self.cfg));
                sndbuf.saturating_sub(queued) >= queued / 2 && unsent < lowat
            }
        }
    }

    pub(crate) fn shutdown(&mut self, id: SockId, how: i32) -> Result<(), i32> {
        let how = match how {
            libc::SHUT_RD => Shutdown::Read,
            libc::SHUT_WR => Shutdown::Write,
            libc::SHUT_RDWR => Shutdown::Both,
            _ => return Err(libc::EINVAL),
        };
        let Some(live) = self.sock(id)?.live() else { return Err(libc::ENOTCONN) };
        if live.conn.state() == State::Closed {
            return Err(libc::ENOTCONN);
        }
        self.enter(id, |conn, cx| conn.shutdown(cx, how));
        Ok(())
    }

    pub(crate) fn ioctl(&mut self, id: SockId, request: u64) -> Result<i32, i32> {
        const SIOCINQ: u64 = 0x541b;
        const SIOCOUTQ: u64 = 0x5411;
        const SIOCOUTQNSD: u64 = 0x894b;
        let sock = self.sock(id)?;
        if matches!(sock.body, Body::Listener(..)) {
            return Err(libc::EINVAL);
        }
        let conn = sock.live().map(|live| &live.conn);
        let told = |of: fn(&softnet_tcp::Conn<crate::sock::Payload>) -> u32| conn.map_or(0, of) as i32;
        match request {
            SIOCINQ => Ok(told(|conn| conn.unread())),
            SIOCOUTQ => Ok(told(|conn| conn.unacked())),
            SIOCOUTQNSD => Ok(told(|conn| conn.unsent())),
            _ => Err(libc::ENOTTY),
        }
    }

    /// Whether a call on a descriptor does not wait.
    pub(crate) fn is_nonblocking(&self, fd: i32) -> bool {
        matches!(self.files.get(&fd), Some(File::Sock { nonblock: true, .. }))
    }
}

/// The most that one `skb` is filled with (Linux `tcp_send_mss`, `tcp_xmit_size_goal`).
fn size_goal(mss: u32, half_window: u32) -> u32 {
    /// 64 KB, less headers of all layers.
    const GSO_MAX: u32 = 65_536 - 1 - 320;
    let goal = GSO_MAX.min(half_window.max(68));
    (goal / mss * mss).max(mss)
}
