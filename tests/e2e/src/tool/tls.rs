//! A client of HTTPS that makes as many connections as it can, or holds many.

use crate::namespace::Namespace;
use crate::tool::inside;
use anyhow::{Context, Result, ensure};
use rustls::client::Resumption;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a server may be silent.
const PATIENCE: Duration = Duration::from_secs(10);

/// A connection for each request.
#[derive(Clone, Copy, Debug)]
pub struct TlsLoad {
    /// The server.
    pub to: SocketAddr,
    /// The name it is asked for by.
    pub name: &'static str,
    /// The page.
    pub page: &'static str,
    /// Connections at a time.
    pub connections: usize,
    /// Whether each but the first resumes the session of the one before.
    pub resumed: bool,
    /// How long.
    pub duration: Duration,
    /// The core of the client.
    pub cpu: usize,
}

type Stream = StreamOwned<ClientConnection, TcpStream>;

/// The certificates in a file, to be trusted.
pub(crate) fn roots(certificate: &Path) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(certificate).context("the certificate")? {
        roots.add(certificate?)?;
    }
    Ok(roots)
}

fn client(certificate: &Path, resumed: bool) -> Result<Arc<ClientConfig>> {
    let mut provider = rustls::crypto::aws_lc_rs::default_provider();
    provider.cipher_suites.retain(|suite| {
        use rustls::CipherSuite::{TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, TLS13_AES_128_GCM_SHA256};
        [TLS13_AES_128_GCM_SHA256, TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256].contains(&suite.suite())
    });
    provider.kx_groups = vec![rustls::crypto::aws_lc_rs::kx_group::X25519];
    let builder = ClientConfig::builder_with_provider(Arc::new(provider)).with_safe_default_protocol_versions()?;
    let mut config = builder.with_root_certificates(roots(certificate)?).with_no_client_auth();
    if !resumed {
        config.resumption = Resumption::disabled();
    }
    Ok(Arc::new(config))
}

pub(super) fn connect(config: &Arc<ClientConfig>, to: SocketAddr, name: &'static str) -> Result<Stream> {
    let tcp = TcpStream::connect(to)?;
    tcp.set_nodelay(true)?;
    tcp.set_read_timeout(Some(PATIENCE))?;
    let session = ClientConnection::new(Arc::clone(config), ServerName::try_from(name)?)?;
    Ok(StreamOwned::new(session, tcp))
}

/// How many requests were answered.
///
/// # Errors
/// One was not.
pub fn handshakes(client_side: &Namespace, certificate: &Path, load: TlsLoad) -> Result<u64> {
    let thread = |_| {
        // Sessions of its own: a ticket is used once (RFC 8446, C.4).
        let config = client(certificate, load.resumed)?;
        Ok(inside::spawn(client_side, Some(load.cpu), move || requests(&config, load)))
    };
    let threads = (0..load.connections).map(thread).collect::<Result<Vec<_>>>()?;
    threads.into_iter().map(inside::join).sum()
}

fn requests(config: &Arc<ClientConfig>, load: TlsLoad) -> Result<u64> {
    let until = Instant::now() + load.duration;
    let (mut count, mut resumed) = (0, 0);
    while Instant::now() < until {
        let mut stream = connect(config, load.to, load.name)?;
        let request = format!("GET /{} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", load.page, load.name);
        stream.write_all(request.as_bytes())?;
        let mut response = Vec::new();
        // A server may close without close_notify.
        let _ = stream.read_to_end(&mut response);
        ensure!(response.starts_with(b"HTTP/1.1 200 "), "{}", String::from_utf8_lossy(&response));
        count += 1;
        resumed += u64::from(stream.conn.handshake_kind() == Some(rustls::HandshakeKind::Resumed));
    }
    ensure!(!load.resumed || resumed + 1 >= count, "{resumed} of {count} sessions were resumed");
    Ok(count)
}

/// Connections that have had a request and are idle now.
#[derive(Debug)]
pub struct HeldConnections {
    _streams: Vec<Stream>,
}

/// Makes so many connections and keeps them.
///
/// # Errors
/// One could not be made.
pub fn hold(
    client_side: &Namespace,
    certificate: &Path,
    (to, name): (SocketAddr, &'static str),
    count: usize,
) -> Result<HeldConnections> {
    let config = client(certificate, false)?;
    let streams = inside::run(client_side, move || {
        let one = |_| {
            let mut stream = connect(&config, to, name)?;
            stream.write_all(format!("GET /1k HTTP/1.1\r\nHost: {name}\r\n\r\n").as_bytes())?;
            let mut response = [0; 4096];
            let mut read = 0;
            while !response[..read].windows(4).any(|four| four == b"\r\n\r\n") || read < 1024 {
                let count = stream.read(&mut response[read..])?;
                ensure!(count > 0, "closed after {read} bytes");
                read += count;
            }
            Ok(stream)
        };
        (0..count).map(one).collect::<Result<Vec<_>>>()
    })?;
    Ok(HeldConnections { _streams: streams })
}
