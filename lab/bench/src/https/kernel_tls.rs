//! Whether kernel TLS makes the body of a response cheaper: `make bench-kernel-tls`.
//!
//! One thread reads a body from a server's socket and sends it to a client by TLS 1.3 with AES-128-GCM, over the loopback, in
//! three ways: sealed by rustls in this process, as the terminating path does; copied through this process and sealed by the
//! kernel; spliced from socket to socket, and sealed by the kernel. What is compared is that thread's processor time for each
//! byte. In a guest whose clock counts instructions (`tests/kernels/guest -i`), a nanosecond is an instruction.

use crate::suite::report::{self, Bar, ReportRow};
use crate::suite::samples::RepeatedValues;
use anyhow::{Context, Result, bail, ensure};
use nix::errno::Errno;
use nix::fcntl::{SpliceFFlags, splice};
use nix::libc;
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::{TcpTlsTx, TcpUlp, TlsCryptoInfo};
use nix::time::{ClockId, clock_gettime};
use rcgen::{CertifiedKey, generate_simple_self_signed};
use rustls::pki_types::{PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, ConnectionTrafficSecrets, RootCertStore, ServerConfig, ServerConnection};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// What the balancing thread reads, writes or splices at a time; the terminating path's copy buffer has as much. In bytes.
const COPIED_BYTES: usize = 256 * 1024;
const NAME: &str = "kernel-tls.test";

/// The arguments of the benchmark.
#[derive(Clone, Debug, clap::Args)]
pub struct KernelTlsArgs {
    /// The body's size, in MiB.
    #[arg(long, default_value_t = 128)]
    mib: u64,
    /// Bodies of each way, in turn.
    #[arg(long, default_value_t = 3)]
    repetitions: usize,
    /// The unit of the processor's time: `ns`, or `instructions` where a nanosecond is one.
    #[arg(long, default_value = "ns")]
    unit: String,
    /// The directory for `kernel-tls.json`.
    #[arg(long, default_value = "target/bench")]
    directory: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Way {
    Process,
    Copied,
    Spliced,
}

impl Way {
    const ALL: [Way; 3] = [Way::Process, Way::Copied, Way::Spliced];

    fn name(self) -> &'static str {
        match self {
            Way::Process => "sealed by the process",
            Way::Copied => "copied, sealed by the kernel",
            Way::Spliced => "spliced, sealed by the kernel",
        }
    }
}

/// Measures the three ways in turn, and writes `kernel-tls.json`. Fails where the kernel has no TLS.
pub fn run(arguments: &KernelTlsArgs) -> Result<()> {
    let bytes = arguments.mib << 20;
    let unit: &'static str = if arguments.unit == "ns" { "ns/byte" } else { "instructions/byte" };
    let configs = configs()?;
    let mut taken: BTreeMap<Way, Vec<f64>> = BTreeMap::new();
    for _ in 0..arguments.repetitions.max(1) {
        for way in Way::ALL {
            let time = measure(&configs, way, bytes).with_context(|| format!("a body {}", way.name()))?;
            let each = time.as_nanos() as f64 / bytes as f64;
            println!("{:30} {each:.3} {unit}", way.name());
            taken.entry(way).or_default().push(each);
        }
    }
    let median = |way: Way| RepeatedValues::from(taken[&way].clone()).median();
    let beside: BTreeMap<String, f64> =
        [Way::Copied, Way::Spliced].map(|way| (way.name().to_owned(), median(way))).into_iter().collect();
    let ours = RepeatedValues::from(taken[&Way::Process].clone());
    let rows: Vec<ReportRow> = [Way::Copied, Way::Spliced]
        .map(|way| ReportRow::new("a byte of a large body", unit, &ours, &beside, way.name(), Bar::AtMost(1.0)))
        .into();
    println!("\n{}", report::table(&rows));
    report::write(&arguments.directory, "kernel-tls", &rows)
}

fn configs() -> Result<(Arc<ServerConfig>, Arc<ClientConfig>)> {
    let CertifiedKey { cert, signing_key } = generate_simple_self_signed([NAME.to_owned()])?;
    let mut provider = rustls::crypto::aws_lc_rs::default_provider();
    provider.cipher_suites = vec![rustls::crypto::aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256];
    let provider = Arc::new(provider);
    let mut roots = RootCertStore::empty();
    roots.add(cert.der().clone())?;
    let key = PrivateKeyDer::Pkcs8(signing_key.serialize_der().into());
    let mut server = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_no_client_auth()
        .with_single_cert(vec![cert.der().clone()], key)?;
    server.enable_secret_extraction = true;
    server.send_tls13_tickets = 0;
    let client = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok((Arc::new(server), Arc::new(client)))
}

/// The time that the thread in the middle takes for a body of `bytes`, which the client has received and compared.
fn measure((server, client): &(Arc<ServerConfig>, Arc<ClientConfig>), way: Way, bytes: u64) -> Result<Duration> {
    let (origin, front) = (TcpListener::bind("127.0.0.1:0")?, TcpListener::bind("127.0.0.1:0")?);
    let (to_origin, to_front) = (origin.local_addr()?, front.local_addr()?);
    std::thread::scope(|scope| {
        let origin = scope.spawn(move || send_body(origin.accept()?.0, bytes));
        let client = scope.spawn(move || receive_body(TcpStream::connect(to_front)?, Arc::clone(client), bytes));
        let balancer = scope.spawn(move || {
            let mut session = ServerConnection::new(Arc::clone(server))?;
            let mut socket = front.accept()?.0;
            while session.is_handshaking() || session.wants_write() {
                session.complete_io(&mut socket)?;
            }
            forward(way, TcpStream::connect(to_origin)?, socket, session)
        });
        let taken = balancer.join().expect("the balancing thread does not panic");
        let sent = origin.join().expect("the server's thread does not panic");
        let received = client.join().expect("the client's thread does not panic");
        let taken = taken?;
        sent.and(received)?;
        Ok(taken)
    })
}

/// So much of a body as its position says: bytes that tell when some are lost, or in another order.
fn pattern() -> Vec<u8> {
    (0..COPIED_BYTES + 251).map(|index| (index % 251) as u8).collect()
}

fn send_body(mut socket: TcpStream, bytes: u64) -> Result<()> {
    let pattern = pattern();
    let mut sent = 0;
    while sent < bytes {
        let begin = (sent % 251) as usize;
        let count = (COPIED_BYTES as u64).min(bytes - sent) as usize;
        socket.write_all(&pattern[begin..begin + count])?;
        sent += count as u64;
    }
    Ok(())
}

fn receive_body(mut socket: TcpStream, config: Arc<ClientConfig>, bytes: u64) -> Result<()> {
    let mut session = ClientConnection::new(config, ServerName::try_from(NAME)?)?;
    let mut stream = rustls::Stream::new(&mut session, &mut socket);
    let (pattern, mut buffer, mut received) = (pattern(), vec![0; COPIED_BYTES], 0u64);
    while received < bytes {
        let count = stream.read(&mut buffer).context("the client reads")?;
        let begin = (received % 251) as usize;
        ensure!(count > 0, "the body ends after {received} of {bytes} bytes");
        ensure!(buffer[..count] == pattern[begin..begin + count], "wrong bytes in the {count} from {received} on");
        received += count as u64;
    }
    Ok(())
}

fn forward(way: Way, origin: TcpStream, client: TcpStream, session: ServerConnection) -> Result<Duration> {
    let now = || clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map(Duration::from);
    let begin = now()?;
    match way {
        Way::Process => seal(origin, client, session)?,
        Way::Copied => {
            hand_over(&client, session)?;
            copy(origin, client)?;
        }
        Way::Spliced => {
            hand_over(&client, session)?;
            splice_all(&origin, &client)?;
        }
    }
    Ok(now()? - begin)
}

fn seal(mut origin: TcpStream, mut client: TcpStream, mut session: ServerConnection) -> Result<()> {
    session.set_buffer_limit(None);
    let mut buffer = vec![0; COPIED_BYTES];
    loop {
        let count = origin.read(&mut buffer)?;
        if count == 0 {
            return Ok(());
        }
        session.writer().write_all(&buffer[..count])?;
        while session.wants_write() {
            session.write_tls(&mut client)?;
        }
    }
}

/// The kernel seals what is written to `client` from here on.
fn hand_over(client: &TcpStream, session: ServerConnection) -> Result<()> {
    let (sequence, secrets) = session.dangerous_extract_secrets()?.tx;
    let ConnectionTrafficSecrets::Aes128Gcm { key, iv } = secrets else { bail!("another cipher was agreed on") };
    let (salt, nonce) = iv.as_ref().split_at(4);
    let info = libc::tls12_crypto_info_aes_gcm_128 {
        info: libc::tls_crypto_info { version: libc::TLS_1_3_VERSION, cipher_type: libc::TLS_CIPHER_AES_GCM_128 },
        iv: nonce.try_into()?,
        key: key.as_ref().try_into()?,
        salt: salt.try_into()?,
        rec_seq: sequence.to_be_bytes(),
    };
    match setsockopt(client, TcpUlp::default(), b"tls") {
        Err(Errno::ENOENT) => bail!("this kernel has no TLS (`modprobe tls`)"),
        set => set.context("could not give the socket kernel TLS")?,
    }
    setsockopt(client, TcpTlsTx, &TlsCryptoInfo::Aes128Gcm(info)).context("the kernel does not take the key")
}

fn copy(mut origin: TcpStream, mut client: TcpStream) -> Result<()> {
    let mut buffer = vec![0; COPIED_BYTES];
    loop {
        match origin.read(&mut buffer)? {
            0 => return Ok(()),
            count => client.write_all(&buffer[..count])?,
        }
    }
}

fn splice_all(origin: &TcpStream, client: &TcpStream) -> Result<()> {
    let (out, into) = nix::unistd::pipe()?;
    nix::fcntl::fcntl(&into, nix::fcntl::FcntlArg::F_SETPIPE_SZ(COPIED_BYTES as i32))?;
    let flags = SpliceFFlags::SPLICE_F_MOVE | SpliceFFlags::SPLICE_F_MORE;
    loop {
        let mut waiting = splice(origin, None, &into, None, COPIED_BYTES, flags)?;
        if waiting == 0 {
            return Ok(());
        }
        while waiting > 0 {
            waiting -= splice(&out, None, client, None, waiting, SpliceFFlags::SPLICE_F_MOVE)?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_arrives() {
        assert!(measure(&configs().unwrap(), Way::Process, 3 << 20).unwrap() > Duration::ZERO);
    }
}
