//! UDP requests and responses: a number, then 1 to 1400 bytes that follow from it. The server checks the request
//! before it answers; the client checks the response, and asks again if none comes.

use std::io;
use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Instant;

use super::super::flow::{Flows, Ip};
use super::super::payload::Seed;
use super::super::topology::server;
use super::ask::{ask, connect};
use super::{TICK, timed_out};

const PORT: u16 = 7000;
const MAX_PAYLOAD: usize = 1400;
const NUMBER: usize = 8;

/// Writes message `number` of the given kind. Returns its length.
fn write(kind: &str, number: u64, message: &mut [u8; NUMBER + MAX_PAYLOAD]) -> usize {
    let seed = Seed::new(kind, number);
    let end = NUMBER + seed.number(1, MAX_PAYLOAD);
    message[..NUMBER].copy_from_slice(&number.to_be_bytes());
    seed.fill(0, &mut message[NUMBER..end]);
    end
}

/// The number of a message and whether it is exactly what `write` makes of it.
fn read(kind: &str, message: &[u8]) -> Result<u64, String> {
    let Some((number, payload)) = message.split_first_chunk::<NUMBER>() else {
        return Err(format!("a {kind} of {} bytes is too short", message.len()));
    };
    let number = u64::from_be_bytes(*number);
    let seed = Seed::new(kind, number);
    let expected = seed.number(1, MAX_PAYLOAD);
    if payload.len() != expected {
        return Err(format!("{kind} {number} has {} bytes of payload, expected {expected}", payload.len()));
    }
    match seed.difference(0, payload) {
        Some(at) => Err(format!("{kind} {number} differs at byte {at} of its payload")),
        None => Ok(number),
    }
}

pub(super) fn bind_server(ip: Ip) -> io::Result<UdpSocket> {
    UdpSocket::bind((server(ip), PORT))
}

/// The server's thread.
pub(super) struct Server {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Server {
    pub(super) fn start(socket: UdpSocket, flows: Arc<Flows>, ip: Ip) -> io::Result<Server> {
        socket.set_read_timeout(Some(TICK))?;
        let stop = Arc::new(AtomicBool::new(false));
        let thread = std::thread::Builder::new().name("demo-udp-serve".into()).spawn({
            let stop = stop.clone();
            move || {
                while !stop.load(Relaxed) {
                    if let Err(error) = answer(&socket) {
                        flows.udp[ip].failed(format!("at the server: {error}"));
                    }
                }
            }
        })?;
        Ok(Server { stop, thread })
    }

    pub(super) fn stop(self) {
        self.stop.store(true, Relaxed);
        // A panic has been told by the thread itself, and its client saw that no answers came.
        let _ = self.thread.join();
    }
}

/// Receives at most one request, and answers it.
fn answer(socket: &UdpSocket) -> Result<(), String> {
    let mut message = [0; NUMBER + MAX_PAYLOAD];
    let (n, from) = match socket.recv_from(&mut message) {
        Ok(received) => received,
        Err(error) if timed_out(&error) => return Ok(()),
        Err(error) => return Err(error.to_string()),
    };
    let number = read("request", &message[..n])?;
    let n = write("response", number, &mut message);
    // What cannot be sent is lost, as on any network: the client asks again.
    let _ = socket.send_to(&message[..n], from);
    Ok(())
}

/// Asks until told to stop.
pub(super) fn client(flows: &Flows, ip: Ip) -> Result<(), String> {
    let flow = &flows.udp[ip];
    let socket = connect((server(ip), PORT).into()).map_err(|error| error.to_string())?;
    let mut request = [0; NUMBER + MAX_PAYLOAD];
    for number in 0.. {
        if flows.stopping() {
            break;
        }
        let n = write("request", number, &mut request);
        let asked = Instant::now();
        let answer = |message: &[u8]| Ok((read("response", message)? == number).then_some(message.len()));
        let answered = ask(flow, &socket, &request[..n], format_args!("request {number}"), answer)?;
        flow.verified(n + answered - 2 * NUMBER, asked.elapsed());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_exactly_what_was_written_is_read() {
        let mut message = [0; NUMBER + MAX_PAYLOAD];
        let n = write("request", 5, &mut message);
        assert_eq!(read("request", &message[..n]), Ok(5));
        assert!(read("response", &message[..n]).is_err());
        let differs = read("request", &{
            let mut damaged = message[..n].to_vec();
            damaged[n - 1] ^= 1;
            damaged
        });
        assert_eq!(differs, Err(format!("request 5 differs at byte {} of its payload", n - 1 - NUMBER)));
        let short = format!("request 5 has {} bytes of payload, expected {}", n - 1 - NUMBER, n - NUMBER);
        assert_eq!(read("request", &message[..n - 1]), Err(short));
        assert_eq!(read("request", &message[..7]), Err("a request of 7 bytes is too short".into()));
    }
}
