//! What packetdrill calls: a structure of C functions (its `packetdrill.h`), filled by
//! `packetdrill_interface_init`.
//!
//! With `memory` and [`crate::preload`] the only module that handles what C hands over: pointers
//! become slices, and results −1 and `errno`. The functions that are variadic in C are
//! declared with their one further argument, an integer or a pointer, which the C ABIs of x86-64
//! and AArch64 pass in the same register.

use std::ffi::{CStr, c_char, c_int, c_long, c_longlong, c_uint, c_ulong, c_void};
use std::{ptr, slice};

use libc::{
    MSG_DONTWAIT, MSG_WAITALL, O_NONBLOCK, SOCK_NONBLOCK, epoll_event, iovec, msghdr, pollfd, size_t,
    sockaddr, socklen_t, ssize_t, timeval,
};
use softnet_tcp::Instant;

use crate::calls::WAIT;
use crate::epoll::Epoll;
use crate::memory::{bytes, bytes_mut, gather, name_of, put_name, scatter, vector_len};
use crate::options::TCP_INQ;
use crate::settings::Settings;
use crate::stack::{File, Stack};
use crate::world;

type User = *mut c_void;

/// `struct packetdrill_interface`.
#[repr(C)]
struct Interface {
    userdata: User,
    free: unsafe extern "C" fn(User),
    socket: unsafe extern "C" fn(User, c_int, c_int, c_int) -> c_int,
    bind: unsafe extern "C" fn(User, c_int, *const sockaddr, socklen_t) -> c_int,
    listen: unsafe extern "C" fn(User, c_int, c_int) -> c_int,
    accept: unsafe extern "C" fn(User, c_int, *mut sockaddr, *mut socklen_t) -> c_int,
    connect: unsafe extern "C" fn(User, c_int, *const sockaddr, socklen_t) -> c_int,
    read: unsafe extern "C" fn(User, c_int, *mut c_void, size_t) -> ssize_t,
    readv: unsafe extern "C" fn(User, c_int, *const iovec, c_int) -> ssize_t,
    recv: unsafe extern "C" fn(User, c_int, *mut c_void, size_t, c_int) -> ssize_t,
    recvfrom: unsafe extern "C" fn(
        User,
        c_int,
        *mut c_void,
        size_t,
        c_int,
        *mut sockaddr,
        *mut socklen_t,
    ) -> ssize_t,
    recvmsg: unsafe extern "C" fn(User, c_int, *mut msghdr, c_int) -> ssize_t,
    write: unsafe extern "C" fn(User, c_int, *const c_void, size_t) -> ssize_t,
    writev: unsafe extern "C" fn(User, c_int, *const iovec, c_int) -> ssize_t,
    send: unsafe extern "C" fn(User, c_int, *const c_void, size_t, c_int) -> ssize_t,
    sendto: unsafe extern "C" fn(
        User,
        c_int,
        *const c_void,
        size_t,
        c_int,
        *const sockaddr,
        socklen_t,
    ) -> ssize_t,
    sendmsg: unsafe extern "C" fn(User, c_int, *const msghdr, c_int) -> ssize_t,
    fcntl: unsafe extern "C" fn(User, c_int, c_int, c_long) -> c_int,
    ioctl: unsafe extern "C" fn(User, c_int, c_ulong, *mut c_int) -> c_int,
    close: unsafe extern "C" fn(User, c_int) -> c_int,
    shutdown: unsafe extern "C" fn(User, c_int, c_int) -> c_int,
    getsockopt: unsafe extern "C" fn(User, c_int, c_int, c_int, *mut c_void, *mut socklen_t) -> c_int,
    setsockopt: unsafe extern "C" fn(User, c_int, c_int, c_int, *const c_void, socklen_t) -> c_int,
    poll: unsafe extern "C" fn(User, *mut pollfd, libc::nfds_t, c_int) -> c_int,
    netdev_send: unsafe extern "C" fn(User, *const c_void, size_t) -> c_int,
    netdev_receive: unsafe extern "C" fn(User, *mut c_void, *mut size_t, *mut c_longlong) -> c_int,
    usleep: unsafe extern "C" fn(User, c_uint) -> c_int,
    gettimeofday: unsafe extern "C" fn(User, *mut timeval, *mut c_void) -> c_int,
    epoll_create: unsafe extern "C" fn(User, c_int) -> c_int,
    epoll_ctl: unsafe extern "C" fn(User, c_int, c_int, c_int, *mut epoll_event) -> c_int,
    epoll_wait: unsafe extern "C" fn(User, c_int, *mut epoll_event, c_int, c_int) -> c_int,
    pipe: unsafe extern "C" fn(User, *mut c_int) -> c_int,
    splice: unsafe extern "C" fn(User, c_int, *mut i64, c_int, *mut i64, size_t, c_uint) -> ssize_t,
}

/// Fills in the interface, and begins a run with the settings in `flags`.
///
/// # Safety
///
/// `flags` is null or a C string, and `interface` points to packetdrill's structure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn packetdrill_interface_init(flags: *const c_char, interface: *mut c_void) {
    let text = if flags.is_null() {
        String::new()
    } else {
        // SAFETY: it is a C string, as the caller promises.
        unsafe { CStr::from_ptr(flags) }.to_string_lossy().into_owned()
    };
    match Settings::new(&text) {
        Ok(settings) => world::begin(settings),
        Err(error) => {
            eprintln!("softnet-packetdrill: {error}");
            std::process::exit(1);
        }
    }
    let filled = Interface {
        userdata: ptr::null_mut(),
        free,
        socket,
        bind,
        listen,
        accept,
        connect,
        read,
        readv,
        recv,
        recvfrom,
        recvmsg,
        write,
        writev,
        send,
        sendto,
        sendmsg,
        fcntl,
        ioctl,
        close,
        shutdown,
        getsockopt,
        setsockopt,
        poll,
        netdev_send,
        netdev_receive,
        usleep,
        gettimeofday,
        epoll_create,
        epoll_ctl,
        epoll_wait,
        pipe,
        splice,
    };
    // SAFETY: packetdrill's structure has these fields in this order.
    unsafe { interface.cast::<Interface>().write(filled) };
}

/// −1, and `errno`.
pub(crate) fn fail(errno: i32) -> c_int {
    // SAFETY: it is this thread's `errno`.
    unsafe { *libc::__errno_location() = errno };
    -1
}

fn done(result: Result<(), i32>) -> c_int {
    result.map_or_else(fail, |()| 0)
}

fn count(result: Result<usize, i32>) -> ssize_t {
    result.map_or_else(|errno| fail(errno) as ssize_t, |count| count as ssize_t)
}

fn stack<T>(f: impl FnOnce(&mut Stack) -> Result<T, i32>) -> Result<T, i32> {
    world::with(f).unwrap_or(Err(libc::EBADF))
}

/// A descriptor of the kernel's, so that its number is no other file's and can be closed.
fn descriptor(file: File) -> Result<c_int, i32> {
    // SAFETY: no pointers.
    let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
    if fd < 0 {
        return Err(libc::EMFILE);
    }
    stack(|stack| {
        stack.files.insert(fd, file);
        Ok(fd)
    })
}

/// How long a call waits on a descriptor.
fn patience(fd: c_int, flags: c_int) -> impl FnOnce(&Stack) -> Option<Instant> {
    move |stack| {
        let never = flags & MSG_DONTWAIT != 0 || stack.is_nonblocking(fd);
        (!never).then_some(Instant::NEVER)
    }
}

unsafe extern "C" fn free(_: User) {
    world::end();
}

unsafe extern "C" fn socket(_: User, domain: c_int, kind: c_int, _: c_int) -> c_int {
    let made = stack(|stack| stack.socket(domain, kind));
    let nonblock = kind & SOCK_NONBLOCK != 0;
    made.and_then(|id| descriptor(File::Sock { id, nonblock })).unwrap_or_else(fail)
}

unsafe extern "C" fn bind(_: User, fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int {
    // SAFETY: as packetdrill passes it.
    let name = unsafe { name_of(addr, len) };
    done(stack(|stack| stack.bind(stack.sock_id(fd)?, name?)))
}

unsafe extern "C" fn listen(_: User, fd: c_int, backlog: c_int) -> c_int {
    done(stack(|stack| stack.listen(stack.sock_id(fd)?, backlog)))
}

unsafe extern "C" fn accept(_: User, fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int {
    let accepted = world::call(patience(fd, 0), |stack| {
        let id = stack.sock_id(fd)?;
        let (child, remote) = stack.accept_one(id)?;
        Ok((child, remote, stack.sock(id)?.v6))
    });
    let result = accepted.and_then(|(id, remote, v6)| {
        // SAFETY: as packetdrill passes it.
        unsafe { put_name(remote, v6, addr, len) };
        descriptor(File::Sock { id, nonblock: false })
    });
    result.unwrap_or_else(fail)
}

unsafe extern "C" fn connect(_: User, fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int {
    // SAFETY: as packetdrill passes it.
    let name = match unsafe { name_of(addr, len) } {
        Ok(name) => name,
        Err(errno) => return fail(errno),
    };
    let was = stack(|stack| Ok(stack.is_connecting(stack.sock_id(fd)?))).unwrap_or(false);
    let result = world::call(patience(fd, 0), |stack| stack.connect(stack.sock_id(fd)?, name));
    done(result.map_err(|errno| match (errno, was) {
        (WAIT, true) => libc::EALREADY,
        (WAIT, false) => libc::EINPROGRESS,
        (errno, _) => errno,
    }))
}

/// Reads into `buf`; with `MSG_WAITALL` until it is full.
fn receive(fd: c_int, buf: &mut [u8], flags: c_int) -> Result<usize, i32> {
    let mut total = 0;
    let result = world::call(patience(fd, flags), |stack| {
        let id = stack.sock_id(fd)?;
        while total < buf.len() || buf.is_empty() {
            match stack.read(id, &mut buf[total..], flags) {
                Ok(0) => return Ok(total),
                Ok(read) => total += read,
                Err(_) if total > 0 && flags & MSG_WAITALL == 0 => return Ok(total),
                Err(errno) => return Err(errno),
            }
            if flags & MSG_WAITALL == 0 {
                break;
            }
        }
        Ok(total)
    });
    if total > 0 { Ok(total) } else { result }
}

/// Writes `from`; a blocking call until all of it is queued.
fn transmit(fd: c_int, from: &[u8], flags: c_int) -> Result<usize, i32> {
    let mut total = 0;
    let mut waits = false;
    let result = world::call(patience(fd, flags), |stack| {
        let id = stack.sock_id(fd)?;
        // A writer that waits goes on when a poller would be woken, not at the first byte.
        if waits && stack.sock(id)?.no_space {
            return Err(WAIT);
        }
        waits = true;
        let stops = flags & MSG_DONTWAIT != 0 || stack.is_nonblocking(fd);
        total += stack.write(id, &from[total..], flags)?;
        if total == from.len() || stops { Ok(total) } else { Err(WAIT) }
    });
    if total > 0 { Ok(total) } else { result }
}

unsafe extern "C" fn read(_: User, fd: c_int, buf: *mut c_void, len: size_t) -> ssize_t {
    // SAFETY: as packetdrill passes it.
    count(unsafe { bytes_mut(buf, len) }.and_then(|buf| receive(fd, buf, 0)))
}

unsafe extern "C" fn readv(_: User, fd: c_int, iov: *const iovec, n: c_int) -> ssize_t {
    // SAFETY: as packetdrill passes it.
    let mut buf = vec![0; unsafe { vector_len(iov, n as usize) }];
    let result = receive(fd, &mut buf, 0);
    if let Ok(read) = result {
        // SAFETY: likewise.
        unsafe { scatter(iov, n as usize, &buf[..read]) };
    }
    count(result)
}

unsafe extern "C" fn recv(_: User, fd: c_int, buf: *mut c_void, len: size_t, flags: c_int) -> ssize_t {
    // SAFETY: as packetdrill passes it.
    count(unsafe { bytes_mut(buf, len) }.and_then(|buf| receive(fd, buf, flags)))
}

unsafe extern "C" fn recvfrom(
    user: User,
    fd: c_int,
    buf: *mut c_void,
    len: size_t,
    flags: c_int,
    _: *mut sockaddr,
    _: *mut socklen_t,
) -> ssize_t {
    // SAFETY: as packetdrill passes it.
    unsafe { recv(user, fd, buf, len, flags) }
}

unsafe extern "C" fn recvmsg(_: User, fd: c_int, msg: *mut msghdr, flags: c_int) -> ssize_t {
    // SAFETY: packetdrill passes a message whose vector and control buffer are its own.
    let msg = unsafe { &mut *msg };
    // SAFETY: likewise.
    let mut buf = vec![0; unsafe { vector_len(msg.msg_iov, msg.msg_iovlen) }];
    let result = receive(fd, &mut buf, flags);
    msg.msg_flags = 0;
    let Ok(read) = result else { return count(result) };
    // SAFETY: likewise.
    unsafe { scatter(msg.msg_iov, msg.msg_iovlen, &buf[..read]) };
    let inq = stack(|stack| {
        let sock = stack.sock(stack.sock_id(fd)?)?;
        let wanted = sock.value(libc::SOL_TCP, TCP_INQ, 0) != 0;
        // A FIN that was not read yet counts for one: there is something to be read.
        let left = sock.live().map_or(0, |live| live.conn.unread() + u32::from(live.done));
        Ok(wanted.then_some(left as c_int))
    });
    let room = msg.msg_controllen;
    msg.msg_controllen = 0;
    if let Ok(Some(left)) = inq {
        const HEADER: usize = size_of::<libc::cmsghdr>();
        if room >= HEADER + 4 {
            // SAFETY: the control buffer is aligned, and holds a header and four bytes.
            unsafe {
                let header = msg.msg_control.cast::<libc::cmsghdr>();
                (*header).cmsg_len = HEADER + 4;
                (*header).cmsg_level = libc::SOL_TCP;
                (*header).cmsg_type = TCP_INQ;
                header.add(1).cast::<c_int>().write_unaligned(left);
            }
            msg.msg_controllen = room.min(HEADER + 8);
        } else {
            msg.msg_flags |= libc::MSG_CTRUNC;
        }
    }
    read as ssize_t
}

unsafe extern "C" fn write(_: User, fd: c_int, buf: *const c_void, len: size_t) -> ssize_t {
    // SAFETY: as packetdrill passes it.
    count(unsafe { bytes(buf, len) }.and_then(|buf| transmit(fd, buf, 0)))
}

unsafe extern "C" fn writev(_: User, fd: c_int, iov: *const iovec, n: c_int) -> ssize_t {
    // SAFETY: as packetdrill passes it.
    count(unsafe { gather(iov, n as usize) }.and_then(|buf| transmit(fd, &buf, 0)))
}

unsafe extern "C" fn send(_: User, fd: c_int, buf: *const c_void, len: size_t, flags: c_int) -> ssize_t {
    // SAFETY: as packetdrill passes it.
    count(unsafe { bytes(buf, len) }.and_then(|buf| transmit(fd, buf, flags)))
}

unsafe extern "C" fn sendto(
    user: User,
    fd: c_int,
    buf: *const c_void,
    len: size_t,
    flags: c_int,
    _: *const sockaddr,
    _: socklen_t,
) -> ssize_t {
    if flags & libc::MSG_FASTOPEN != 0 {
        return fail(libc::EOPNOTSUPP) as ssize_t;
    }
    // SAFETY: as packetdrill passes it.
    unsafe { send(user, fd, buf, len, flags) }
}

unsafe extern "C" fn sendmsg(_: User, fd: c_int, msg: *const msghdr, flags: c_int) -> ssize_t {
    // SAFETY: packetdrill passes a message whose vector is its own.
    let gathered = unsafe { gather((*msg).msg_iov, (*msg).msg_iovlen) };
    count(gathered.and_then(|buf| transmit(fd, &buf, flags)))
}

unsafe extern "C" fn fcntl(_: User, fd: c_int, command: c_int, arg: c_long) -> c_int {
    let result = stack(|stack| match (stack.files.get_mut(&fd), command) {
        (None, _) => Err(libc::EBADF),
        (Some(File::Sock { nonblock, .. }), libc::F_GETFL) => {
            Ok(libc::O_RDWR | if *nonblock { O_NONBLOCK } else { 0 })
        }
        (Some(File::Sock { nonblock, .. }), libc::F_SETFL) => {
            *nonblock = arg as c_int & O_NONBLOCK != 0;
            Ok(0)
        }
        (Some(_), libc::F_GETFD | libc::F_SETFD) => Ok(0),
        _ => Err(libc::EINVAL),
    });
    result.unwrap_or_else(fail)
}

unsafe extern "C" fn ioctl(_: User, fd: c_int, request: c_ulong, out: *mut c_int) -> c_int {
    // packetdrill's requests are `int`s.
    let request = request & 0xffff_ffff;
    done(stack(|stack| stack.ioctl(stack.sock_id(fd)?, request)).map(|value| {
        // SAFETY: packetdrill passes a pointer to an `int` with each of these requests.
        unsafe { out.write(value) }
    }))
}

unsafe extern "C" fn close(_: User, fd: c_int) -> c_int {
    let result = stack(|stack| {
        let file = stack.files.remove(&fd).ok_or(libc::EBADF)?;
        for other in stack.files.values_mut() {
            if let File::Epoll(epoll) = other {
                epoll.forget(fd);
            }
        }
        if let File::Sock { id, .. } = file {
            stack.close(id);
        }
        Ok(())
    });
    if result.is_ok() {
        // SAFETY: `descriptor` made it, and nothing else refers to it now.
        unsafe { libc::close(fd) };
    }
    done(result)
}

unsafe extern "C" fn shutdown(_: User, fd: c_int, how: c_int) -> c_int {
    done(stack(|stack| stack.shutdown(stack.sock_id(fd)?, how)))
}

unsafe extern "C" fn getsockopt(
    _: User,
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    // SAFETY: as packetdrill passes it.
    unsafe { option(fd, level, name, value, len) }
}

/// `getsockopt`, for packetdrill and for what is preloaded.
///
/// # Safety
///
/// `len` points to the number of bytes that `value` points to.
pub(crate) unsafe fn option(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    done(stack(|stack| stack.option(stack.sock_id(fd)?, level, name)).and_then(|bytes| {
        if value.is_null() || len.is_null() {
            return Err(libc::EFAULT);
        }
        // SAFETY: no more is written than `*len` bytes.
        unsafe {
            let room = bytes.len().min(*len as usize);
            ptr::copy_nonoverlapping(bytes.as_ptr(), value.cast(), room);
            *len = room as socklen_t;
        }
        Ok(())
    }))
}

/// Whether a descriptor is one of the run's.
pub(crate) fn owns(fd: c_int) -> bool {
    stack(|stack| stack.sock_id(fd)).is_ok()
}

unsafe extern "C" fn setsockopt(
    _: User,
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> c_int {
    // SAFETY: as packetdrill passes it.
    let value = unsafe { bytes(value, len as usize) };
    done(stack(|stack| stack.set_option(stack.sock_id(fd)?, level, name, value?)))
}

/// When a timeout in milliseconds is over; `None` if it is none.
fn timeout(stack: &Stack, millis: c_int) -> Option<Instant> {
    match millis {
        0 => None,
        ..0 => Some(Instant::NEVER),
        millis => Some(stack.now.plus_millis(millis as u64)),
    }
}

unsafe extern "C" fn poll(_: User, fds: *mut pollfd, n: libc::nfds_t, millis: c_int) -> c_int {
    if fds.is_null() && n > 0 {
        return fail(libc::EFAULT);
    }
    // SAFETY: the array has `n` entries.
    let fds = if n == 0 { &mut [] } else { unsafe { slice::from_raw_parts_mut(fds, n as usize) } };
    let result = world::call(
        |stack| timeout(stack, millis),
        |stack| {
            fds.iter_mut().for_each(|one| one.revents = stack.poll_one(one.fd, one.events));
            let ready = fds.iter().filter(|one| one.revents != 0).count();
            if ready > 0 { Ok(ready as c_int) } else { Err(WAIT) }
        },
    );
    match result {
        Err(WAIT) => 0,
        result => result.unwrap_or_else(fail),
    }
}

unsafe extern "C" fn netdev_send(_: User, packet: *const c_void, len: size_t) -> c_int {
    // SAFETY: as packetdrill passes it.
    done(unsafe { bytes(packet, len) }.map(world::send))
}

unsafe extern "C" fn netdev_receive(
    _: User,
    into: *mut c_void,
    len: *mut size_t,
    micros: *mut c_longlong,
) -> c_int {
    let Some((packet, at)) = world::receive() else {
        // packetdrill would ask again for ever.
        eprintln!("softnet-packetdrill: a packet is expected, and none will leave: no timer is armed");
        std::process::exit(1);
    };
    // SAFETY: `into` points to `*len` bytes, and no more are written.
    unsafe {
        let room = packet.len().min(*len);
        ptr::copy_nonoverlapping(packet.as_ptr(), into.cast(), room);
        *len = room;
        *micros = at as c_longlong;
    }
    0
}

unsafe extern "C" fn usleep(_: User, micros: c_uint) -> c_int {
    world::sleep(micros);
    0
}

unsafe extern "C" fn gettimeofday(_: User, time: *mut timeval, _: *mut c_void) -> c_int {
    let now = world::time();
    // SAFETY: packetdrill passes a pointer to its structure.
    unsafe { time.write(timeval { tv_sec: (now / 1_000_000) as _, tv_usec: (now % 1_000_000) as _ }) };
    0
}

unsafe extern "C" fn epoll_create(_: User, size: c_int) -> c_int {
    if size <= 0 {
        return fail(libc::EINVAL);
    }
    descriptor(File::Epoll(Epoll::default())).unwrap_or_else(fail)
}

unsafe extern "C" fn epoll_ctl(_: User, epfd: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
    let (events, data) = if event.is_null() {
        (0, 0)
    } else {
        // SAFETY: packetdrill passes a pointer to its structure.
        let event = unsafe { event.read_unaligned() };
        (event.events, event.u64)
    };
    done(stack(|stack| stack.epoll_ctl(epfd, op, fd, events, data)))
}

unsafe extern "C" fn epoll_wait(
    _: User,
    epfd: c_int,
    events: *mut epoll_event,
    most: c_int,
    millis: c_int,
) -> c_int {
    if most <= 0 {
        return fail(libc::EINVAL);
    }
    let result = world::call(
        |stack| timeout(stack, millis),
        |stack| match stack.epoll_ready(epfd, most as usize)? {
            ready if ready.is_empty() => Err(WAIT),
            ready => Ok(ready),
        },
    );
    let ready = match result {
        Ok(ready) => ready,
        Err(WAIT) => Vec::new(),
        Err(errno) => return fail(errno),
    };
    for (i, (mask, data)) in ready.iter().enumerate() {
        // SAFETY: the array has `most` entries, and `ready` no more.
        unsafe { events.add(i).write_unaligned(epoll_event { events: *mask, u64: *data }) };
    }
    ready.len() as c_int
}

unsafe extern "C" fn pipe(_: User, _: *mut c_int) -> c_int {
    fail(libc::ENOSYS)
}

unsafe extern "C" fn splice(
    _: User,
    _: c_int,
    _: *mut i64,
    _: c_int,
    _: *mut i64,
    _: size_t,
    _: c_uint,
) -> ssize_t {
    fail(libc::ENOSYS) as ssize_t
}
