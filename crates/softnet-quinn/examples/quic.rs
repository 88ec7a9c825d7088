//! QUIC over softnet: a server that sends back what each stream brings, and a client that checks it. Either has its sockets on a stack of
//! softnet's, if it gets the stack's configuration, or on the kernel's.
//!
//! ```text
//! cargo run --release -p softnet-quinn --example quic -- serve [::]:4433 --stack router.toml
//! cargo run --release -p softnet-quinn --example quic -- send 192.0.2.1:4433 1000000000
//! ```
//!
//! The server leaves its certificate in `quic.der`, where the client looks for it.

use std::error::Error;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use quinn::{ClientConfig, Endpoint, EndpointConfig, ReadExactError, ServerConfig, TokioRuntime};
use rustls::RootCertStore;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use softnet::Stack;
use softnet::config::Config;
use softnet::net::UdpSocket;

/// A program's result.
pub type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const USAGE: &str = "usage: quic serve ADDRESS:PORT [--stack FILE.toml]
       quic send ADDRESS:PORT BYTES [--stack FILE.toml]";
const CERTIFICATE: &str = "quic.der";
/// The name in the certificate.
const NAME: &str = "softnet";
/// Bytes that are written and checked at a time.
const PIECE: usize = 1 << 16;

fn main() -> Result<()> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(run())
}

async fn run() -> Result<()> {
    let mut args: Vec<_> = std::env::args().skip(1).collect();
    let stack = match args.iter().position(|arg| arg == "--stack") {
        Some(at) => {
            let file = args.drain(at..).nth(1).ok_or(USAGE)?;
            Some(Stack::start(Config::load(Path::new(&file))?)?)
        }
        None => None,
    };
    let args: Vec<_> = args.iter().map(String::as_str).collect();
    match args[..] {
        ["serve", addr] => {
            let (server, certificate) = server_config()?;
            std::fs::write(CERTIFICATE, certificate)?;
            let endpoint = endpoint(stack.as_ref(), addr.parse()?, Some(server))?;
            println!("serving at {}; its certificate is in {CERTIFICATE}", endpoint.local_addr()?);
            serve(&endpoint).await;
        }
        ["send", addr, bytes] => {
            let addr: SocketAddr = addr.parse()?;
            let any = if addr.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
            let endpoint = endpoint(stack.as_ref(), any.parse()?, None)?;
            let certificate = std::fs::read(CERTIFICATE)?;
            let (bytes, from) = (bytes.parse()?, Instant::now());
            send(&endpoint, addr, certificate, bytes).await?;
            let seconds = from.elapsed().as_secs_f64();
            println!(
                "{bytes} bytes there and back, all as sent: {:.2} Gbit/s each way",
                bytes as f64 * 8e-9 / seconds
            );
        }
        _ => return Err(USAGE.into()),
    }
    Ok(())
}

/// An endpoint on `stack`, or on the kernel.
pub fn endpoint(stack: Option<&Stack>, addr: SocketAddr, server: Option<ServerConfig>) -> Result<Endpoint> {
    let config = EndpointConfig::default();
    Ok(match stack {
        Some(stack) => softnet_quinn::endpoint(config, server, UdpSocket::bind(&stack.handle(), addr)?)?,
        None => Endpoint::new(config, server, std::net::UdpSocket::bind(addr)?, Arc::new(TokioRuntime))?,
    })
}

/// What a server needs, with a certificate that it signed itself.
pub fn server_config() -> Result<(ServerConfig, Vec<u8>)> {
    let made = rcgen::generate_simple_self_signed([NAME.to_owned()])?;
    let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
    let server = ServerConfig::with_single_cert(vec![made.cert.der().clone()], key.into())?;
    Ok((server, made.cert.der().to_vec()))
}

/// Accepts connections, and sends back what their streams bring.
pub async fn serve(endpoint: &Endpoint) {
    while let Some(incoming) = endpoint.accept().await {
        tokio::spawn(async move {
            let connection = match incoming.await {
                Ok(connection) => connection,
                Err(error) => return eprintln!("a connection failed: {error}"),
            };
            while let Ok((mut to, mut from)) = connection.accept_bi().await {
                tokio::spawn(async move {
                    while let Ok(Some(chunk)) = from.read_chunk(PIECE, true).await {
                        if to.write_chunk(chunk.bytes).await.is_err() {
                            return;
                        }
                    }
                    let _ = to.finish();
                });
            }
        });
    }
}

/// Byte number `at` of what is sent.
fn byte(at: u64) -> u8 {
    (at ^ at >> 8 ^ at >> 16) as u8
}

/// Bytes from number `at` on.
fn piece(at: u64, bytes: u64) -> Vec<u8> {
    (at..bytes.min(at + PIECE as u64)).map(byte).collect()
}

/// Sends `bytes` to a server and checks what comes back.
pub async fn send(endpoint: &Endpoint, to: SocketAddr, certificate: Vec<u8>, bytes: u64) -> Result<()> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from(certificate))?;
    let client = ClientConfig::with_root_certificates(Arc::new(roots))?;
    let connection = endpoint.connect_with(client, to, NAME)?.await?;
    let (mut out, mut back) = connection.open_bi().await?;
    let sender = tokio::spawn(async move {
        for at in (0..bytes).step_by(PIECE) {
            out.write_all(&piece(at, bytes)).await?;
        }
        out.finish().map_err(std::io::Error::from)
    });
    let mut buffer = vec![0; PIECE];
    for at in (0..bytes).step_by(PIECE) {
        let wanted = piece(at, bytes);
        let got = &mut buffer[..wanted.len()];
        back.read_exact(got).await.map_err(|error| match error {
            ReadExactError::FinishedEarly(n) => format!("the answer ends after {} bytes", at + n as u64),
            ReadExactError::ReadError(error) => error.to_string(),
        })?;
        if *got != wanted {
            return Err(format!("what came back differs within {PIECE} bytes from {at} on").into());
        }
    }
    sender.await??;
    connection.close(0u32.into(), b"done");
    endpoint.wait_idle().await;
    Ok(())
}
