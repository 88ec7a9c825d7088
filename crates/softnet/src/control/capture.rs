//! Captures over the control socket: what is asked, and the stream that answers.
//!
//! A client sends [`SetCapture`](Request::Capture) and gets one line, a [`CaptureInfo`] or an
//! error. From then on the connection is the capture's: records as
//! [`Record`](softnet_core::tap::Record) reads them, until the client shuts its side down; then
//! what is left, and an end record. A thread of the instance, `softnet-capture`, reads the rings
//! out.
//!
//! Invariant: the thread ends with the client, or with the stack; a client that reads slowly costs
//! packets of its capture, which are counted, and nothing else.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::{Deserialize, Serialize};
use softnet_core::skb::DropReason;
use softnet_core::tap::trace::Budget;
use softnet_core::tap::{Filter, MAX_SNAPLEN, RECORD, TapReader, Wanted};

use super::Response;
use crate::device::find_netdev;
use crate::stack::StackInner;
use crate::util::spawn;

/// What to capture: `{"dev": "eth1", "in": true, "filter": "udp port 53"}`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SetCapture {
    /// The device; without it, all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dev: Option<String>,
    /// The RX or TX queue; without it, all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<u16>,
    /// Packets that come in.
    pub r#in: bool,
    /// Packets that leave.
    pub out: bool,
    /// Packets that are dropped.
    pub drops: bool,
    /// Bytes of each packet that are kept; 0: all.
    pub snaplen: u32,
    /// Which packets, in the syntax of `pcap-filter(7)`; empty: all.
    pub filter: String,
    /// Not packets, but what stages do with so many of those that come in: see
    /// [`trace`](softnet_core::tap::trace). 0: packets.
    #[serde(skip_serializing_if = "is_zero")]
    pub trace: u32,
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// What a client has to know about the records.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CaptureInfo {
    /// Names of devices, by index.
    pub devs: Vec<String>,
    /// Names of reasons of drops, by number.
    pub reasons: Vec<String>,
    /// ns since 1970 at which the clock of the records was 0.
    pub epoch_ns: u64,
    /// Bytes of each packet that are kept.
    pub snaplen: u32,
}

/// Packets of a trace at the most.
const MAX_TRACED: u32 = 100_000;
/// The byte of an end record that says so; in the records of packets it says where they were seen.
const END: u64 = 0xff;
/// Bytes that are read out before they are written to the client.
const CHUNK: usize = 1 << 18;
/// How long the rings are left alone when they were empty: at 1 Mpps of short packets they hold ten
/// times as much.
const IDLE: Timespec = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
const NO_WAIT: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
/// ns that a record waits for older ones of other threads, which may be at work on their batches.
const REORDER: u64 = 1_000_000;
/// How often a thread that waits for its client looks whether the stack is still there.
const LOOK: Duration = Duration::from_millis(100);

/// Starts the capture that a client of `stream` asks for, which has its answer from here on.
pub(crate) fn start(shared: &StackInner, set: &SetCapture, stream: &UnixStream) -> Result<(), String> {
    let dev = match &set.dev {
        None => None,
        Some(name) => Some(find_netdev(&shared.netdevs, name).map_err(|error| error.to_string())?.index),
    };
    let snaplen = match set.snaplen as usize {
        0 => MAX_SNAPLEN,
        snaplen => snaplen.min(MAX_SNAPLEN),
    };
    let filter = Filter::parse(&set.filter).map_err(|error| error.to_string())?;
    let trace = (set.trace > 0).then(|| Arc::new(Budget::new(set.trace.min(MAX_TRACED))));
    let seen = [set.r#in, set.out, set.drops];
    let wanted = Wanted { dev, queue: set.queue, seen, snaplen, filter, trace };
    let stream = stream.try_clone().map_err(|error| error.to_string())?;
    let clock = shared.clock;
    let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64;
    let info = CaptureInfo {
        devs: shared.netdevs.iter().map(|dev| dev.name.clone()).collect(),
        reasons: DropReason::ALL.iter().map(|reason| reason.name().into()).collect(),
        epoch_ns: unix.saturating_sub(clock.now()),
        snaplen: snaplen as u32,
    };
    let info = serde_json::to_value(info).map_err(|error| error.to_string())?;
    let mut hello = serde_json::to_vec(&Response::Ok(info)).map_err(|error| error.to_string())?;
    hello.push(b'\n');
    let reader = shared.taps.start(wanted).map_err(|error| error.to_string())?;
    let body = move || {
        // A client that is gone needs no answer.
        let _ = serve(reader, stream, &hello, || clock.now());
    };
    spawn("softnet-capture", Box::new(body)).map_err(|error| error.to_string())?;
    Ok(())
}

fn serve(
    mut reader: TapReader,
    mut stream: UnixStream,
    hello: &[u8],
    now: impl Fn() -> u64,
) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_write_timeout(Some(LOOK))?;
    write_all(&mut reader, &mut stream, hello)?;
    let mut out = Vec::with_capacity(CHUNK);
    loop {
        out.clear();
        let now = now();
        let goes_on = reader.read((now, now.saturating_sub(REORDER)), CHUNK, &mut out);
        write_all(&mut reader, &mut stream, &out)?;
        let timeout = if out.is_empty() { &IDLE } else { &NO_WAIT };
        let mut fds = [PollFd::new(&stream, PollFlags::IN)];
        // A poll that is interrupted has found nothing.
        let _ = poll(&mut fds, Some(timeout));
        let asks_to_stop = !fds[0].revents().is_empty() && !matches!(stream.read(&mut [0; 64]), Ok(1..));
        if !goes_on || asks_to_stop {
            break;
        }
    }
    reader.stop();
    loop {
        out.clear();
        reader.read((now(), u64::MAX), CHUNK, &mut out);
        if out.is_empty() {
            break;
        }
        write_all(&mut reader, &mut stream, &out)?;
    }
    let end: Vec<u8> = [reader.lost(), 0, END << 32].into_iter().flat_map(u64::to_le_bytes).collect();
    write_all(&mut reader, &mut stream, &end)
}

/// Writes all, for as long as the stack is there.
fn write_all(reader: &mut TapReader, stream: &mut UnixStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match stream.write(bytes) {
            Ok(n) => bytes = &bytes[n..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && !reader.is_closed() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// What an end record says: packets that the capture lost. `None`: `bytes` do not start with one.
pub fn end_of_capture(bytes: &[u8]) -> Option<u64> {
    let word = |at: usize| bytes.get(8 * at..)?.first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
    let place = word(RECORD / 8 - 1)?;
    if place >> 32 & 0xff == END { word(0) } else { None }
}

/// A capture that runs: its records come out of [`stream`](Self::stream).
#[derive(Debug)]
pub struct CaptureStream {
    /// About the records.
    pub info: CaptureInfo,
    /// Records, then an end record. Shutting down its writing side ends the capture.
    pub stream: Arc<UnixStream>,
}
