//! TLS towards backends: who they must be, and who Hairpin is to them.

use crate::certificates::{self, CertificateSummary};
use anyhow::{Context, Result, ensure};
use aws_lc_rs::digest::{self, SHA256};
use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::sign::SingleCertAndKey;
use rustls::{AlertDescription, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// The CAs that this host trusts, as Debian's package ca-certificates keeps them.
pub const SYSTEM_ROOTS: &str = "/etc/ssl/certs/ca-certificates.crt";
/// Sessions that are kept at most for one service or group; rustls keeps up to eight of each name or address.
pub const SESSIONS_MAX: usize = 2048;

/// Hairpin's side of TLS with the backends of a service or group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendTlsOptions {
    /// Files in PEM with the CAs that sign the backends' certificates; not read where these are not verified.
    pub roots: Vec<PathBuf>,
    /// The name that is asked for, and that certificates must have; `None`: none is asked for, and they must have the
    /// backend's address.
    pub name: Option<String>,
    /// Whether certificates are verified.
    pub verify: bool,
    /// A file with the certificate that backends are shown, and its key.
    pub certificate: Option<PathBuf>,
    /// Whether the backends speak HTTP/2 (ALPN `h2`), or HTTP/1.1.
    pub http2: bool,
}

impl BackendTlsOptions {
    /// The files that are read.
    pub fn files(&self) -> impl Iterator<Item = &PathBuf> {
        self.roots.iter().filter(|_| self.verify).chain(&self.certificate)
    }
}

/// Whether this can be the name of a server: a DNS name or an address.
pub fn is_server_name(name: &str) -> bool {
    ServerName::try_from(name).is_ok()
}

/// Hairpin's side of TLS with the backends of a service or group, read and checked. Two that agree with the same servers are
/// equal, also if they were read at different times.
#[derive(Clone)]
pub struct BackendTls {
    config: Arc<ClientConfig>,
    name: Option<ServerName<'static>>,
    /// A digest of all that decides which servers are agreed with.
    identity: [u8; 32],
    /// The certificate that backends are shown.
    pub summary: Option<CertificateSummary>,
}

impl fmt::Debug for BackendTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BackendTls").field("name", &self.name).finish_non_exhaustive()
    }
}

impl PartialEq for BackendTls {
    fn eq(&self, other: &BackendTls) -> bool {
        self.identity == other.identity
    }
}

impl Eq for BackendTls {}

impl BackendTls {
    /// Reads and checks what `options` name.
    ///
    /// # Errors
    /// The first file that cannot be read, or is not what it should be, and why.
    pub fn load(options: &BackendTlsOptions) -> Result<BackendTls> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let name = match &options.name {
            Some(name) => {
                let parsed = ServerName::try_from(name.clone());
                Some(parsed.with_context(|| format!("\"{name}\" is no name of a server"))?)
            }
            None => None,
        };
        let mut identity = Identity(digest::Context::new(&SHA256));
        identity.add(options.name.as_deref().unwrap_or_default().as_bytes());
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])?;
        let builder = if options.verify {
            builder.with_root_certificates(read_roots(&options.roots, &mut identity)?)
        } else {
            identity.add(b"unverified");
            let verifier = Unverified(provider.signature_verification_algorithms);
            builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier))
        };
        let (mut config, summary) = match &options.certificate {
            None => (builder.with_no_client_auth(), None),
            Some(file) => {
                let loaded = certificates::load_file(file, None, &provider)?;
                identity.add(b"shown");
                loaded.key.cert.iter().for_each(|certificate| identity.add(certificate));
                let shown = SingleCertAndKey::from(Arc::clone(&loaded.key));
                (builder.with_client_cert_resolver(Arc::new(shown)), Some(loaded.summary))
            }
        };
        let protocol: &[u8] = if options.http2 { b"h2" } else { b"http/1.1" };
        identity.add(protocol);
        config.alpn_protocols = vec![protocol.to_vec()];
        config.resumption = Resumption::in_memory_sessions(SESSIONS_MAX);
        Ok(BackendTls { config: Arc::new(config), name, identity: identity.finish(), summary })
    }

    /// Shakes hands with the backend at `address`.
    ///
    /// # Errors
    /// The kernel's error, or one that [`tls_failure`] has words for.
    pub async fn connect(&self, tcp: TcpStream, address: IpAddr) -> io::Result<TlsStream<TcpStream>> {
        let name = self.name.clone().unwrap_or_else(|| ServerName::from(address));
        TlsConnector::from(Arc::clone(&self.config)).connect(name, tcp).await
    }
}

/// Why TLS with a backend failed, in words of which none are the backend's; `None`: TLS did not.
pub fn tls_failure(error: &io::Error) -> Option<&'static str> {
    use rustls::CertificateError::{
        BadSignature, Expired, ExpiredContext, NotValidForName, NotValidForNameContext, UnknownIssuer,
    };
    use rustls::Error::{AlertReceived, InvalidCertificate, PeerIncompatible};
    Some(match error.get_ref()?.downcast_ref::<rustls::Error>()? {
        // The second: a CA has the name of one of these, but another key.
        InvalidCertificate(UnknownIssuer | BadSignature) => {
            "TLS: the certificate is signed by none of the CAs in `roots`"
        }
        InvalidCertificate(NotValidForName | NotValidForNameContext { .. }) => {
            "TLS: the certificate is for another name"
        }
        InvalidCertificate(Expired | ExpiredContext { .. }) => "TLS: the certificate has expired",
        InvalidCertificate(_) => "TLS: the certificate is not valid",
        AlertReceived(AlertDescription::CertificateRequired) => "TLS: the backend asks for a certificate",
        AlertReceived(_) => "TLS: the backend refuses the handshake",
        PeerIncompatible(_) => "TLS: no version or cipher in common",
        _ => "the answer is not TLS as it should be",
    })
}

/// A digest in the making.
struct Identity(digest::Context);

impl Identity {
    fn add(&mut self, part: &[u8]) {
        // The length keeps two parts apart from one that is both of them.
        self.0.update(&(part.len() as u64).to_le_bytes());
        self.0.update(part);
    }

    fn finish(self) -> [u8; 32] {
        let mut bytes = [0; 32];
        bytes.copy_from_slice(self.0.finish().as_ref());
        bytes
    }
}

fn read_roots(files: &[PathBuf], identity: &mut Identity) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for file in files {
        let before = roots.len();
        for authority in certificates::read_chain(file).with_context(|| remedy(file))? {
            identity.add(&authority);
            let added = roots.add(authority);
            // Others decide what is in the system's file: one CA that cannot be used takes nothing from the others.
            if file != Path::new(SYSTEM_ROOTS) {
                added.with_context(|| format!("{} has a certificate that is no CA's", file.display()))?;
            }
        }
        ensure!(roots.len() > before, "{} has no certificate of a CA", file.display());
    }
    Ok(roots)
}

fn remedy(file: &Path) -> String {
    match file == Path::new(SYSTEM_ROOTS) {
        true => "the system has no CAs: install the package ca-certificates, or name files in `roots`".to_string(),
        false => "no CAs of backends' certificates".to_string(),
    }
}

/// Takes every certificate, whose key the server must still have.
#[derive(Debug)]
struct Unverified(WebPkiSupportedAlgorithms);

impl ServerCertVerifier for Unverified {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signed, &self.0)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signed, &self.0)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_schemes()
    }
}
