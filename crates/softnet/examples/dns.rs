//! A name server that knows one name, `whoami.softnet`: to which address the question was sent, and by which device it came. On one
//! socket for all addresses of both families, as name servers are run; resolvers take an answer only from the address that they asked.
//!
//! ```text
//! cargo run --release -p softnet --example dns -- router.toml
//! dig @192.0.2.1 whoami.softnet TXT
//! ```

use std::net::IpAddr;

use softnet::Stack;
use softnet::config::Config;
use softnet::net::{Handle, PktInfo, UdpSocket};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).ok_or("usage: dns CONFIG")?;
    let stack = Stack::start(Config::load(path.as_ref())?)?;
    Ok(serve(&stack.handle())?)
}

/// Bytes of a header (RFC 1035 section 4.1.1).
const HEADER: usize = 12;
/// `whoami.softnet` on the wire.
const NAME: &[u8] = b"\x06whoami\x07softnet\0";
const A: u16 = 1;
const TXT: u16 = 16;
const AAAA: u16 = 28;
const INTERNET: u16 = 1;
/// Seconds that an answer may be kept.
const TTL: u32 = 0;

/// Answers questions to port 53 of any address, until the stack stops.
pub fn serve(stack: &Handle) -> std::io::Result<()> {
    let socket = UdpSocket::bind(stack, "[::]:53")?;
    let mut buffer = [0; 512];
    loop {
        let (n, from, asked) = socket.recv_msg(&mut buffer)?;
        let device = stack.if_indextoname(asked.if_index).unwrap_or("no device");
        if let Some(answer) = answer(&buffer[..n], &asked, device) {
            // An answer that cannot be sent, such as one to port 0, is the asker's loss.
            let _ = socket.send_msg(&answer, (from, asked));
        }
    }
}

/// The answer to a message; `None` if it is no question.
pub fn answer(message: &[u8], asked: &PktInfo, device: &str) -> Option<Vec<u8>> {
    let word = |at: usize| Some(u16::from_be_bytes(*message.get(at..)?.first_chunk()?));
    let (flags, questions) = (word(2)?, word(4)?);
    if flags & 0x8000 != 0 || questions != 1 {
        return None;
    }
    // The name, label by label; questions have no pointers.
    let mut at = HEADER;
    loop {
        match *message.get(at)? {
            0 => break,
            len if len < 64 => at += 1 + usize::from(len),
            _ => return None,
        }
    }
    let (kind, class, end) = (word(at + 1)?, word(at + 3)?, at + 5);
    let known = message[HEADER..=at].eq_ignore_ascii_case(NAME) && class == INTERNET;
    let data = match (kind, asked.addr.to_canonical()) {
        (A, IpAddr::V4(addr)) => Some(addr.octets().to_vec()),
        (AAAA, IpAddr::V6(addr)) => Some(addr.octets().to_vec()),
        (TXT, addr) => {
            let text = format!("{addr} by {device}");
            let text = &text.as_bytes()[..text.len().min(255)];
            Some([&[text.len() as u8], text].concat())
        }
        _ => None,
    };
    let data = data.filter(|_| known);
    let opcode_and_wish = flags & 0x7900;
    // A standard query, to which this is the authority (RFC 1035 section 4.1.1); no such name, or what was asked for is not kept.
    let code = if flags & 0x7800 != 0 {
        4
    } else if known {
        0
    } else {
        3
    };
    let mut answer = message[..2].to_vec();
    for word in [0x8400 | opcode_and_wish | code, 1, u16::from(data.is_some()), 0, 0] {
        answer.extend(word.to_be_bytes());
    }
    answer.extend(&message[HEADER..end]);
    if let Some(data) = data {
        // The name is the question's.
        answer.extend((0xc000 | HEADER as u16).to_be_bytes());
        [kind, class].iter().for_each(|word| answer.extend(word.to_be_bytes()));
        answer.extend(TTL.to_be_bytes());
        answer.extend((data.len() as u16).to_be_bytes());
        answer.extend(data);
    }
    Some(answer)
}
